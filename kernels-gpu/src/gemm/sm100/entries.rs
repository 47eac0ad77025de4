//! The entry points: the kernels of the table.

use cuda_std::kernel;
use fp4_formats::gemm::sm100::config::{Sm100Config, named};

use super::{Kernel, Sm100, gemm};
use crate::gemm::entries::{arguments, parameters};

/// Returns the cluster that `#[kernel]` takes for a configuration: 0 if there is none.
const fn cluster(config: &Sm100Config) -> u32 {
    if config.cluster() == 1 { 0 } else { config.cluster() }
}

/// The entry point of a kernel of the table.
macro_rules! entry {
    ([$($name:tt)+] $types:ident $problems:ident $tile:tt $decided:tt) => {
        const _: () = {
            const CONFIG: Sm100Config = named(concat!($(stringify!($name)),+));

            pub enum Entry {}

            impl Kernel for Entry {
                const CONFIG: Sm100Config = CONFIG;
            }

            /// The GEMM of a configuration.
            ///
            /// # Safety
            /// As the contract of [`sm100`](super).
            #[kernel(
                name = ($($name)+),
                threads = CONFIG.threads(),
                min_blocks = 1,
                cluster = cluster(&CONFIG)
            )]
            pub unsafe fn entry(params: parameters!(Sm100, $problems)) {
                let (p, list) = arguments!(Sm100, $types $problems, &CONFIG, &params);
                // SAFETY: the caller keeps the contract.
                unsafe { gemm::<Entry, _>(p, list) }
            }
        };
    };
}
fp4_formats::sm100a_gemm_configs!(entry);
