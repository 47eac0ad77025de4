//! Comments and symbol references that `cuda_builder` turns into directives
//! and declarations: what PTX needs and Rust cannot say.

use core::arch::asm;

/// Plants `// cuda_builder.launch_bounds ...`; see [`crate::kernel`].
#[inline(always)]
pub fn launch_bounds<
    const TX: u32,
    const TY: u32,
    const TZ: u32,
    const EXACT: bool,
    const BLOCKS: u32,
    const REGISTERS: u32,
    const CX: u32,
    const CY: u32,
    const CZ: u32,
>() {
    // SAFETY: a comment.
    unsafe {
        asm!(
            "// cuda_builder.launch_bounds threads={},{},{} exact={} min_blocks={} max_registers={} cluster={},{},{}",
            const TX, const TY, const TZ, const EXACT as u32, const BLOCKS, const REGISTERS,
            const CX, const CY, const CZ,
            options(nostack, preserves_flags),
        );
    }
}

/// `mov.u32 d, __dynamic_shared;` address of dynamic shared memory.
/// ISA 9.7.9.3, 5.1.7. All targets. Any thread.
#[inline(always)]
pub fn dynamic_shared<const ALIGN: u32>() -> u32 {
    let address;
    // SAFETY: takes the address of a symbol that cuda_builder declares.
    unsafe {
        asm!(
            "mov.u32 {}, __dynamic_shared; // cuda_builder.dynamic_shared align={}",
            out(reg32) address, const ALIGN,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    address
}

/// `mov.u32 d, __static_shared_ID;` address of a static shared buffer.
/// ISA 9.7.9.3, 5.1.7. All targets. Any thread.
#[inline(always)]
pub fn static_shared<const ID: u32, const BYTES: u32, const ALIGN: u32>() -> u32 {
    let address;
    // SAFETY: takes the address of a symbol that cuda_builder declares.
    unsafe {
        asm!(
            "mov.u32 {0}, __static_shared_{1}; // cuda_builder.static_shared id={1} bytes={2} align={3}",
            out(reg32) address, const ID, const BYTES, const ALIGN,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    address
}
