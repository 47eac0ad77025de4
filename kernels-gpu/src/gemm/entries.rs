//! The parameters of entry points, and the arguments that they give to an architecture's kernel body.
//! The entry points are in `sm80::entries`, `sm90::entries` and `sm100::entries`.

use fp4_formats::gemm::{GroupedParams, Mixed};

use super::cta::Target;
use super::groups::GroupTable;
use super::mixed::MixedTable;
use super::work::{Scaled, Uniform};

/// The parameters of an architecture's kernel for these problems.
macro_rules! parameters {
    ($target:ty, uniform) => {
        <$target as $crate::gemm::cta::Target>::Params
    };
    ($target:ty, grouped) => {
        fp4_formats::gemm::GroupedParams<<$target as $crate::gemm::cta::Target>::Params>
    };
    ($target:ty, mixed) => {
        fp4_formats::gemm::Mixed
    };
}

/// The arguments of the kernel body for types and problems: parameters and work list. Dense products with
/// activations in e4m3 have scales of rows; sm_80's take such activations decoded to bf16.
macro_rules! arguments {
    (Sm80, nvfp4_bf16 uniform, $($argument:expr),+) => {
        $crate::gemm::entries::scaled::<Sm80>($($argument),+)
    };
    (Sm80, mxfp4_bf16 uniform, $($argument:expr),+) => {
        $crate::gemm::entries::scaled::<Sm80>($($argument),+)
    };
    ($target:ty, nvfp4_e4m3 uniform, $($argument:expr),+) => {
        $crate::gemm::entries::scaled::<$target>($($argument),+)
    };
    ($target:ty, mxfp4_e4m3 uniform, $($argument:expr),+) => {
        $crate::gemm::entries::scaled::<$target>($($argument),+)
    };
    ($target:ty, $types:ident $problems:ident, $($argument:expr),+) => {
        $crate::gemm::entries::$problems::<$target>($($argument),+)
    };
}

pub(super) use {arguments, parameters};

/// The arguments for dense and batched products.
#[inline(always)]
pub fn uniform<'a, T: Target>(_: &T::Config, params: &'a T::Params) -> (&'a T::Params, Uniform) {
    (params, Uniform)
}

/// The arguments for dense and batched products of activations in e4m3.
#[inline(always)]
pub fn scaled<'a, T: Target>(_: &T::Config, params: &'a T::Params) -> (&'a T::Params, Scaled) {
    (params, Scaled { row_factor_stride: T::head(params).row_factor_stride })
}

/// The arguments for grouped products.
#[inline(always)]
pub fn grouped<'a, T: Target>(
    config: &T::Config,
    params: &'a GroupedParams<T::Params>,
) -> (&'a T::Params, GroupTable<'a>) {
    let GroupedParams { gemm, groups } = params;
    (gemm, GroupTable { groups, table: T::table(config), sorts: T::sorts(config) })
}

/// The arguments for mixed products. Parameters of a launch, as opposed to a product's, are those of the
/// first product: all products have them in common.
#[inline(always)]
pub fn mixed<'a, T: Target>(
    config: &T::Config,
    mixed: &'a Mixed,
) -> (&'a T::Params, MixedTable<'a>) {
    let table = MixedTable { mixed, table: T::table(config) };
    // SAFETY: there is a first product.
    (unsafe { table.block(0) }, table)
}
