//! The entry points: the kernels of the table.

use cuda_std::ptx::registers;
use cuda_std::{kernel, shared};
use fp4_formats::gemm::Mixed;
use fp4_formats::gemm::sm90::config::{Sm90Config, THREADS, named};
use fp4_formats::gemm::sm90::params::{Sm90GroupedParams, Sm90Params};

use super::folded_rows::{Mxfp4E4m3, Nvfp4E4m3};
use super::operands::{Mxfp4Bf16, Nvfp4Bf16, Nvfp4F16};
use super::{Kernel, gemm};
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::MixedTable;
use crate::gemm::work::{Scaled, Uniform};

/// The decoder of a scheme.
macro_rules! decoder {
    (nvfp4_f16) => {
        Nvfp4F16
    };
    (nvfp4_bf16) => {
        Nvfp4Bf16
    };
    (mxfp4_bf16) => {
        Mxfp4Bf16
    };
    (nvfp4_e4m3) => {
        Nvfp4E4m3
    };
    (mxfp4_e4m3) => {
        Mxfp4E4m3
    };
}

/// The parameters of a kernel for these problems.
macro_rules! parameters {
    (uniform) => {
        Sm90Params
    };
    (grouped) => {
        Sm90GroupedParams
    };
    (mixed) => {
        Mixed
    };
}

/// The function that makes the arguments of [`gemm`] for weights of a scheme, and for problems.
macro_rules! arguments {
    (nvfp4_e4m3 uniform) => {
        scaled
    };
    (mxfp4_e4m3 uniform) => {
        scaled
    };
    ($scheme:ident $problems:ident) => {
        $problems
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
                type Weights = decoder!($scheme);

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
            pub unsafe fn entry(params: parameters!($problems)) {
                let (params, list) = arguments!($scheme $problems)(&CONFIG, &params);
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

/// The arguments of [`gemm`] for dense and batched products.
#[inline(always)]
fn uniform<'a>(_: &Sm90Config, params: &'a Sm90Params) -> (&'a Sm90Params, Uniform) {
    (params, Uniform)
}

/// The arguments of [`gemm`] for dense and batched products in e4m3.
#[inline(always)]
fn scaled<'a>(_: &Sm90Config, params: &'a Sm90Params) -> (&'a Sm90Params, Scaled) {
    (params, Scaled { row_factor_stride: params.row_factor_stride })
}

/// The arguments of [`gemm`] for grouped products.
#[inline(always)]
fn grouped<'a>(
    config: &Sm90Config,
    params: &'a Sm90GroupedParams,
) -> (&'a Sm90Params, GroupTable<'a>) {
    let table = shared::dynamic::<1024>() + config.table_offset();
    (&params.gemm, GroupTable { groups: &params.groups, table, sorts: config.is_wide() })
}

/// The arguments of [`gemm`] for mixed products. Parameters of a launch, as opposed to a product's,
/// are those of the first product: all products have them in common.
#[inline(always)]
fn mixed<'a>(config: &Sm90Config, mixed: &'a Mixed) -> (&'a Sm90Params, MixedTable<'a>) {
    let table = shared::dynamic::<1024>() + config.table_offset();
    let table = MixedTable { mixed, table };
    // SAFETY: there is a first product.
    (unsafe { table.block(0) }, table)
}
