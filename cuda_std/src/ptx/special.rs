//! Special registers. ISA 10. All targets. Any thread.

use core::arch::asm;

macro_rules! special_registers {
    ($($(#[$doc:meta])* $name:ident = $register:literal;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name() -> u32 {
                let value;
                // SAFETY: reads a register that is constant for the thread.
                unsafe {
                    asm!(
                        concat!("mov.u32 {}, ", $register, ";"),
                        out(reg32) value,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                value
            }
        )*
    };
}

special_registers! {
    /// `mov.u32 d, %tid.x;` ISA 10.1.
    tid_x = "%tid.x";
    /// `mov.u32 d, %ntid.x;` ISA 10.2.
    ntid_x = "%ntid.x";
    /// `mov.u32 d, %laneid;` ISA 10.3.
    laneid = "%laneid";
    /// `mov.u32 d, %ctaid.x;` ISA 10.6.
    ctaid_x = "%ctaid.x";
    /// `mov.u32 d, %ctaid.y;` ISA 10.6.
    ctaid_y = "%ctaid.y";
    /// `mov.u32 d, %ctaid.z;` ISA 10.6.
    ctaid_z = "%ctaid.z";
    /// `mov.u32 d, %nctaid.x;` ISA 10.7.
    nctaid_x = "%nctaid.x";
    /// `mov.u32 d, %cluster_ctarank;` ISA 10.16. sm_90+.
    cluster_ctarank = "%cluster_ctarank";
    /// `mov.u32 d, %cluster_nctarank;` ISA 10.17. sm_90+.
    cluster_nctarank = "%cluster_nctarank";
}
