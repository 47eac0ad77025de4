//! The entry points: one kernel for each row of the tables of configurations.

use cuda_std::{kernel, shared};
use fp4_formats::gemm::Mixed;
use fp4_formats::gemm::sm100::config::{Sm100Config, named, named_grouped, named_mixed};
use fp4_formats::gemm::sm100::{Sm100GroupedParams, Sm100Params};

use super::control::Control;
use super::work::{Scaled, Uniform};
use super::{Kernel, gemm};
use crate::gemm::groups::GroupTable;
use crate::gemm::mixed::MixedTable;

/// Makes the entry points of a table of configurations, `$named`, one for each row. A kernel of it
/// has the parameters `$Params`, from which `$arguments` makes the arguments of [`gemm`].
macro_rules! entries {
    ($kernels:ident, $named:ident, $Params:ty, $arguments:ident;
     $($name:ident: $format:ident x $activations:ident, $cta_group:literal CTA,
       $columns:literal columns, split $split:literal, multicast $multicast:literal;)*) => {
        mod $kernels {
            $(
                #[allow(non_camel_case_types)]
                pub enum $name {}
            )*
        }
        $(
            impl Kernel for $kernels::$name {
                const CONFIG: Sm100Config = $named::$name;
            }

            #[doc = concat!("The GEMM of the configuration `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As the contract of [`sm100`](super).
            #[kernel(
                threads = $named::$name.threads(),
                min_blocks = 1,
                cluster = cluster(&$named::$name)
            )]
            pub unsafe fn $name(params: $Params) {
                let (p, list) = arguments!($activations, $arguments)(&$named::$name, &params);
                // SAFETY: the caller keeps the contract.
                unsafe { gemm::<$kernels::$name, _>(p, list) }
            }
        )*
    };
}

/// Makes the arguments of [`gemm`]: dense products have others if activations have scales.
macro_rules! arguments {
    (E4m3, uniform) => {
        scaled
    };
    ($activations:ident, $arguments:ident) => {
        $arguments
    };
}

/// Returns the cluster that `#[kernel]` takes for a configuration: 0 if there is none.
const fn cluster(config: &Sm100Config) -> u32 {
    if config.cluster() == 1 { 0 } else { config.cluster() }
}

/// Entry points of dense and batched products.
macro_rules! uniform_entries {
    ($($row:tt)*) => {
        entries! { kernels, named, Sm100Params, uniform; $($row)* }
    };
}
fp4_formats::sm100a_gemm_configs!(uniform_entries);

/// Entry points of grouped products.
macro_rules! grouped_entries {
    ($($row:tt)*) => {
        entries! { grouped_kernels, named_grouped, Sm100GroupedParams, grouped; $($row)* }
    };
}
fp4_formats::sm100a_grouped_configs!(grouped_entries);

/// Entry points of mixed products.
macro_rules! mixed_entries {
    ($($row:tt)*) => {
        entries! { mixed_kernels, named_mixed, Mixed, mixed; $($row)* }
    };
}
fp4_formats::sm100a_mixed_configs!(mixed_entries);

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
    let table = Control::new(config, shared::dynamic::<1024>()).table();
    (&params.gemm, GroupTable { groups: &params.groups, table, sorts: false })
}

/// The arguments of [`gemm`] for mixed products. Parameters of a launch, as opposed to a product's,
/// are those of the first product: all products have them in common.
#[inline(always)]
fn mixed<'a>(config: &Sm100Config, mixed: &'a Mixed) -> (&'a Sm100Params, MixedTable<'a>) {
    let table = Control::new(config, shared::dynamic::<1024>()).table();
    let table = MixedTable { mixed, table };
    // SAFETY: there is a first product.
    (unsafe { table.block(0) }, table)
}
