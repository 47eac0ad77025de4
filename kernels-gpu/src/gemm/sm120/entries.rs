//! The entry points: the kernels of the table.

use cuda_std::kernel;
use fp4_formats::gemm::sm120::config::{Sm120Config, THREADS, named};

use super::blocks::blocks;
use super::{Kernel, Sm120, gemm};
use crate::gemm::entries::{arguments, parameters};

/// The entry point of a kernel of the table.
macro_rules! entry {
    ([$($name:tt)+] $format:ident $problems:ident $tile:tt $decided:tt) => {
        const _: () = {
            const CONFIG: Sm120Config = named(concat!($(stringify!($name)),+));

            pub enum Entry {}

            impl Kernel for Entry {
                const CONFIG: Sm120Config = CONFIG;
                type Blocks = blocks!($format);
            }

            /// The GEMM of a configuration.
            ///
            /// # Safety
            /// As the contract of [`sm120`](super).
            #[kernel(name = ($($name)+), threads = THREADS, max_registers = CONFIG.registers())]
            pub unsafe fn entry(params: parameters!(Sm120, $problems)) {
                let (params, list) = arguments!(Sm120, $format $problems, &CONFIG, &params);
                // SAFETY: the caller keeps the contract.
                unsafe {
                    gemm::<
                        Entry,
                        _,
                        { CONFIG.warp_rows() as usize },
                        { CONFIG.warp_tokens() as usize },
                        { CONFIG.stages() - 2 },
                    >(params, list)
                }
            }
        };
    };
}
fp4_formats::sm120f_gemm_configs!(entry);
