//! Control flow.

use core::arch::asm;

/// `trap;` ISA 9.7.20.4. All targets. Any thread. Ends the grid with an error.
#[inline(always)]
pub fn trap() -> ! {
    // SAFETY: `trap` never returns; the loop after it only satisfies the type system.
    unsafe {
        asm!("trap;", options(nostack));
    }
    #[allow(clippy::empty_loop)]
    loop {}
}
