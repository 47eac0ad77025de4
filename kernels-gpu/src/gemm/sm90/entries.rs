//! The entry points: the kernels of the table.

use cuda_std::kernel;
use cuda_std::ptx::registers;
use fp4_formats::gemm::sm90::config::{Sm90Config, THREADS, named};

use super::folded_rows::{Mxfp4E4m3, Nvfp4E4m3};
use super::{Kernel, Sm90, gemm};
use crate::gemm::decoded::decoder;
use crate::gemm::entries::{arguments, parameters};

/// The weights of a scheme.
macro_rules! weights {
    (nvfp4_e4m3) => {
        Nvfp4E4m3
    };
    (mxfp4_e4m3) => {
        Mxfp4E4m3
    };
    ($scheme:ident) => {
        decoder!($scheme)
    };
}

/// The entry point of a kernel of the table.
macro_rules! entry {
    ([$($name:tt)+] $scheme:ident $problems:ident $tile:tt $decided:tt) => {
        const _: () = {
            const CONFIG: Sm90Config = named(concat!($(stringify!($name)),+));

            pub enum Entry {}

            impl Kernel for Entry {
                const CONFIG: Sm90Config = CONFIG;
                type Weights = weights!($scheme);

                #[inline(always)]
                unsafe fn take_registers() {
                    const REGISTERS: u32 = CONFIG.consumer_registers();
                    // SAFETY: whole warpgroups, for whom the registers are released.
                    unsafe { registers::setmaxnreg_inc::<REGISTERS>() };
                }

                #[inline(always)]
                unsafe fn release_registers() {
                    const REGISTERS: u32 = CONFIG.producer_registers();
                    // SAFETY: a whole warpgroup, which has more.
                    unsafe { registers::setmaxnreg_dec::<REGISTERS>() };
                }
            }

            /// The GEMM of a configuration.
            ///
            /// # Safety
            /// As the contract of [`sm90`](super).
            #[kernel(name = ($($name)+), threads = THREADS, max_registers = CONFIG.registers())]
            pub unsafe fn entry(params: parameters!(Sm90, $problems)) {
                let (params, list) = arguments!(Sm90, $scheme $problems, &CONFIG, &params);
                // SAFETY: the caller keeps the contract.
                unsafe {
                    gemm::<Entry, _, { CONFIG.thread_sums() }, { CONFIG.row_blocks() as usize }>(
                        params, list,
                    )
                }
            }
        };
    };
}
fp4_formats::sm90a_gemm_configs!(entry);
