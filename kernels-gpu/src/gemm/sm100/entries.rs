//! The entry points: the kernels of the table.

use cuda_std::{kernel, shared};
use fp4_formats::gemm::Mixed;
use fp4_formats::gemm::sm100::config::{Sm100Config, named};
use fp4_formats::gemm::sm100::{Sm100GroupedParams, Sm100Params};

use super::memory::Memory;
use super::{Kernel, gemm};
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::MixedTable;
use crate::gemm::work::{Scaled, Uniform};

/// The parameters of a kernel for these problems.
macro_rules! parameters {
    (uniform) => {
        Sm100Params
    };
    (grouped) => {
        Sm100GroupedParams
    };
    (mixed) => {
        Mixed
    };
}

/// The function that makes the arguments of [`gemm`] for types and problems: another one for dense products where
/// activations have scales of rows.
macro_rules! arguments {
    (nvfp4_e4m3 uniform) => {
        scaled
    };
    (mxfp4_e4m3 uniform) => {
        scaled
    };
    ($types:ident $problems:ident) => {
        $problems
    };
}

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
            pub unsafe fn entry(params: parameters!($problems)) {
                let (p, list) = arguments!($types $problems)(&CONFIG, &params);
                // SAFETY: the caller keeps the contract.
                unsafe { gemm::<Entry, _>(p, list) }
            }
        };
    };
}
fp4_formats::sm100a_gemm_configs!(entry);

/// The arguments of [`gemm`] for dense and batched products.
#[inline(always)]
fn uniform<'a>(_: &Sm100Config, params: &'a Sm100Params) -> (&'a Sm100Params, Uniform) {
    (params, Uniform)
}

/// The arguments of [`gemm`] for dense and batched products of activations in e4m3.
#[inline(always)]
fn scaled<'a>(_: &Sm100Config, params: &'a Sm100Params) -> (&'a Sm100Params, Scaled) {
    (params, Scaled { row_factor_stride: params.row_factor_stride })
}

/// The arguments of [`gemm`] for grouped products.
#[inline(always)]
fn grouped<'a>(
    config: &Sm100Config,
    params: &'a Sm100GroupedParams,
) -> (&'a Sm100Params, GroupTable<'a>) {
    let table = Memory::new(config, shared::dynamic::<1024>()).table();
    (&params.gemm, GroupTable { groups: &params.groups, table, sorts: false })
}

/// The arguments of [`gemm`] for mixed products. Parameters of a launch, as opposed to a product's,
/// are those of the first product: all products have them in common.
#[inline(always)]
fn mixed<'a>(config: &Sm100Config, mixed: &'a Mixed) -> (&'a Sm100Params, MixedTable<'a>) {
    let table = Memory::new(config, shared::dynamic::<1024>()).table();
    let table = MixedTable { mixed, table };
    // SAFETY: there is a first product.
    (unsafe { table.block(0) }, table)
}
