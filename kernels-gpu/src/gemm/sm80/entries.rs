//! The entry points: the kernels of the table.

use cuda_std::kernel;
use fp4_formats::gemm::sm80::config::{MMA_K, Sm80Config, THREADS, named};

use super::{Kernel, Sm80, gemm};
use crate::gemm::decoded::decoder;
use crate::gemm::entries::{arguments, parameters};

/// The entry point of a kernel of the table.
macro_rules! entry {
    ([$($name:tt)+] $scheme:ident $problems:ident $tile:tt $decided:tt) => {
        const _: () = {
            const CONFIG: Sm80Config = named(concat!($(stringify!($name)),+));

            pub enum Entry {}

            impl Kernel for Entry {
                const CONFIG: Sm80Config = CONFIG;
                type Weights = decoder!($scheme);
            }

            /// The GEMM of a configuration.
            ///
            /// # Safety
            /// As the contract of [`sm80`](super).
            #[kernel(name = ($($name)+), threads = THREADS, max_registers = CONFIG.registers())]
            pub unsafe fn entry(params: parameters!(Sm80, $problems)) {
                let (params, list) = arguments!(Sm80, $scheme $problems, &CONFIG, &params);
                // SAFETY: the caller keeps the contract.
                unsafe {
                    gemm::<
                        Entry,
                        _,
                        { CONFIG.warp_rows() as usize },
                        { CONFIG.warp_tokens() as usize },
                        { CONFIG.part_tokens() as usize },
                        { (CONFIG.k_step() / MMA_K) as usize },
                        { CONFIG.stages() - 2 },
                    >(params, list)
                }
            }
        };
    };
}
fp4_formats::sm80_gemm_configs!(entry);
