//! Comments and symbol references that `cuda_builder` turns into directives
//! and declarations, which PTX needs and Rust cannot express.

use core::arch::asm;

/// Emits the comment `// cuda_builder.launch_bounds ...`; see [`crate::kernel`].
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
    // SAFETY: emits a comment only.
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

/// `mov.b64 d, NAME_param_INDEX; cvta.param.u64 d, d;` generic address of a
/// parameter of the kernel that this is inlined into. ISA 9.7.9.20, PTX 7.7. sm_70+.
/// Any thread.
///
/// Taking a parameter's address in Rust would copy it to local memory, and would align it to
/// at most 16 bytes. `cuda_builder` therefore inserts the entry's own parameter here and
/// aligns it to `ALIGN`. The parameter stays in parameter space and is read-only, as with
/// `__grid_constant__` in CUDA C++.
#[inline(always)]
pub fn kernel_parameter<const INDEX: u32, const ALIGN: u32>() -> u64 {
    const { assert!(ALIGN.is_power_of_two() && ALIGN <= 128) };
    let address;
    // SAFETY: takes the address of a symbol that cuda_builder resolves.
    unsafe {
        asm!(
            "mov.b64 {0}, __kernel_param_{1}; // cuda_builder.kernel_param index={1} align={2}",
            "cvta.param.u64 {0}, {0};",
            out(reg64) address, const INDEX, const ALIGN,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    address
}

/// Fixes a value's position among instructions that are not moved: the computation of the value
/// stays above, and the uses of the result stay below. Emits a comment.
///
/// Asynchronous instructions use registers after the statement that names them, which the
/// compiler does not know; see `ptx::wgmma`.
#[inline(always)]
pub fn pin(mut value: u32) -> u32 {
    // SAFETY: emits a comment only.
    unsafe { asm!("// pin {0}", inout(reg32) value, options(nostack, preserves_flags)) }
    value
}
