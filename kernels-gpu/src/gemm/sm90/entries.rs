//! The entry points: one kernel for each row of the tables of configurations.

use cuda_std::ptx::registers;
use cuda_std::{kernel, shared};
use fp4_formats::gemm::Mixed;
use fp4_formats::gemm::sm90::config::{Sm90Config, THREADS, named, named_grouped, named_mixed};
use fp4_formats::gemm::sm90::params::{Sm90GroupedParams, Sm90Params};

use super::decode::{Mxfp4Bf16, Nvfp4Bf16, Nvfp4F16};
use super::folded_rows::{Mxfp4E4m3, Nvfp4E4m3};
use super::work::{Scaled, Uniform};
use super::{Kernel, gemm};
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::MixedTable;

/// The decoder of a scheme.
macro_rules! decoder {
    (NVFP4_F16) => {
        Nvfp4F16
    };
    (NVFP4_BF16) => {
        Nvfp4Bf16
    };
    (MXFP4_BF16) => {
        Mxfp4Bf16
    };
    (NVFP4_E4M3) => {
        Nvfp4E4m3
    };
    (MXFP4_E4M3) => {
        Mxfp4E4m3
    };
}

/// The function that makes the arguments of [`gemm`] for weights of a scheme.
macro_rules! arguments {
    (NVFP4_E4M3, uniform) => {
        scaled
    };
    (MXFP4_E4M3, uniform) => {
        scaled
    };
    ($scheme:ident, $arguments:ident) => {
        $arguments
    };
}

/// The entry points of a table of configurations, `$named`, one for each row. A kernel of it has the
/// parameters `$Params`, from which `$arguments` makes those of [`gemm`].
macro_rules! entries {
    ($kernels:ident, $named:ident, $Params:ty, $arguments:ident;
     $($name:ident: $scheme:ident, $rows:literal x $tokens:literal, $blocks:literal per SM,
       multicast $multicast:literal;)*) => {
        mod $kernels {
            $(
                #[allow(non_camel_case_types)]
                pub enum $name {}
            )*
        }
        $(
            impl Kernel for $kernels::$name {
                const CONFIG: Sm90Config = $named::$name;
                type Weights = decoder!($scheme);

                #[inline(always)]
                unsafe fn take_registers() {
                    const REGISTERS: u32 = $named::$name.consumer_registers();
                    // SAFETY: whole warpgroups, for whom the registers are released.
                    unsafe { registers::setmaxnreg_inc::<REGISTERS>() };
                }

                #[inline(always)]
                unsafe fn release_registers() {
                    const REGISTERS: u32 = $named::$name.producer_registers();
                    // SAFETY: a whole warpgroup, which has more.
                    unsafe { registers::setmaxnreg_dec::<REGISTERS>() };
                }
            }

            #[doc = concat!("The GEMM of the configuration `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As the contract of [`sm90`](super).
            #[kernel(threads = THREADS, max_registers = $named::$name.registers())]
            pub unsafe fn $name(params: $Params) {
                let (p, work) = arguments!($scheme, $arguments)(&$named::$name, &params);
                // SAFETY: the caller keeps the contract.
                unsafe {
                    gemm::<
                        $kernels::$name,
                        _,
                        { $named::$name.thread_sums() },
                        { $named::$name.row_blocks() as usize },
                    >(p, work)
                }
            }
        )*
    };
}

/// Entry points of dense and batched products.
macro_rules! uniform_entries {
    ($($row:tt)*) => {
        entries! { kernels, named, Sm90Params, uniform; $($row)* }
    };
}
fp4_formats::sm90a_gemm_configs!(uniform_entries);

/// Entry points of grouped products.
macro_rules! grouped_entries {
    ($($row:tt)*) => {
        entries! { grouped_kernels, named_grouped, Sm90GroupedParams, grouped; $($row)* }
    };
}
fp4_formats::sm90a_grouped_configs!(grouped_entries);

/// Entry points of mixed products.
macro_rules! mixed_entries {
    ($($row:tt)*) => {
        entries! { mixed_kernels, named_mixed, Mixed, mixed; $($row)* }
    };
}
fp4_formats::sm90a_mixed_configs!(mixed_entries);

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

/// The arguments of [`gemm`] for mixed products. Where a launch's parameters are asked for and no
/// product's, the first product's serve: they have all in common that is looked at.
#[inline(always)]
fn mixed<'a>(config: &Sm90Config, mixed: &'a Mixed) -> (&'a Sm90Params, MixedTable<'a>) {
    let table = shared::dynamic::<1024>() + config.table_offset();
    let table = MixedTable { mixed, table };
    // SAFETY: there is a first product.
    (unsafe { table.block(0) }, table)
}
