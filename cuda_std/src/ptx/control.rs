//! Control flow.

use core::arch::asm;

/// `trap;` ISA 9.7.20.4. All targets. Any thread. Ends the grid with an error.
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: never returns; the loop after it is what the type system needs.
    unsafe {
        asm!("trap;", options(nostack));
    }
    #[allow(clippy::empty_loop)]
    loop {}
}
