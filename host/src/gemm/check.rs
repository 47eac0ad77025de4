//! Checks of operands and sizes before anything is launched.

use std::fmt;

use fp4_formats::gemm::combine::GATE_ROWS;
use fp4_formats::gemm::{Operands, PairedRows, Problem, Split};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Operand, TensorFamily};

use super::epilogue::{check_residual, check_vectors};
use super::{ActivationKind, Activations, GemmOptions, GemmOverrides, Weights};
use crate::device::MAX_GRID_Y;
use crate::error::{Error, Result};
use crate::shape::{GemmShape, MAX_DIM};

/// Checks that operands and vectors fit each other.
///
/// # Errors
/// [`Error::Shape`].
pub fn check_operands<F: BlockFormat>(
    a: &Activations<'_, F>,
    b: Weights<'_, F>,
    options: &GemmOptions,
) -> Result<()> {
    let (da, db) = (a.dims(), b.dims());
    check_gated(b.is_gated(), options)?;
    let (a, b) = (a.name(), b.name());
    same_columns(b, db.cols(), format_args!("{}, the K of `{a}`", da.cols()), da.cols())?;
    if db.batch() != 1 && da.batch() != db.batch() {
        let required = format!("1 or {}, the batch of `{a}`", da.batch());
        return Err(Error::shape(format!("batch of `{b}`"), required, db.batch()));
    }
    check_residual(options, [da.batch(), da.rows(), db.rows()])?;
    check_vectors(options, da.rows(), db.rows())
}

/// Checks that there are options for the other half of gated weights, and only for those.
///
/// # Errors
/// [`Error::Shape`].
pub fn check_gated(gated: bool, options: &GemmOptions) -> Result<()> {
    match (gated, options.up.is_some()) {
        (true, true) | (false, false) => Ok(()),
        (true, false) => Err(Error::shape("options for up", "there for gated weights", "absent")),
        (false, true) => {
            Err(Error::shape("weights", "gated, as there are options for up", "not gated"))
        }
    }
}

/// Checks that nothing is asked of the split of K of a product of which CTAs take whole tiles.
///
/// # Errors
/// [`Error::Shape`].
pub(super) fn check_unsplit(overrides: &GemmOverrides) -> Result<()> {
    match overrides.split {
        None | Some(Split::None) => Ok(()),
        Some(split) => Err(Error::shape("split of K", "none, for mixed products", split)),
    }
}

/// Checks the K of operand `name`; `required` is how errors put what it must be.
pub(super) fn same_columns(
    name: &str,
    found: usize,
    required: impl fmt::Display,
    columns: usize,
) -> Result<()> {
    if found == columns {
        return Ok(());
    }
    Err(Error::shape(format!("K of `{name}`"), required.to_string(), found))
}

/// A size as kernels take it.
pub(super) fn size(field: &str, value: usize, most: u64) -> Result<u32> {
    match u32::try_from(value) {
        Ok(size) if (1..=most).contains(&u64::from(size)) => Ok(size),
        _ => Err(Error::shape(field, format!("from 1 to {most}"), value)),
    }
}

/// N as kernels take it, the number of rows of the weights: for gated weights of N columns of
/// the result, those of both halves.
///
/// # Errors
/// [`Error::Shape`] for sizes beyond their limits.
pub(super) fn weight_rows(n: usize, gated: bool) -> Result<u32> {
    if !gated {
        return size("N", n, MAX_DIM);
    }
    let rows = u64::from(GATE_ROWS);
    Ok(PairedRows::rows(size("N", n, MAX_DIM / (2 * rows) * rows)?))
}

/// The sizes as kernels take them; `gated` says whether two rows of weights make a column.
///
/// # Errors
/// [`Error::Shape`] for sizes beyond their limits, and a K that is not whole blocks.
pub(super) fn problem(shape: GemmShape, gated: bool, format: Format) -> Result<Problem> {
    let problem = Problem {
        m: size("M", shape.m, MAX_DIM)?,
        n: weight_rows(shape.n, gated)?,
        k: size("K", shape.k, MAX_DIM)?,
        l: size("batch", shape.l, MAX_GRID_Y as u64)?,
    };
    if problem.k.is_multiple_of(format.block()) {
        Ok(problem)
    } else {
        Err(Error::shape("K", format!("a multiple of {}", format.block()), problem.k))
    }
}

/// The formats that `tensor` multiplies for weights in `format` and activations of `kind`.
pub(super) fn multiplied(tensor: TensorFamily, format: Format, kind: ActivationKind) -> Operands {
    let activations = match (tensor, kind) {
        (TensorFamily::MmaSyncScaled | TensorFamily::Tcgen05, ActivationKind::Blocks { .. }) => {
            None
        }
        // Codes in e4m3 are decoded before the product where no kernel multiplies them: block-scaled products with
        // e4m3 have one scale for 32 columns, and NVFP4 has two.
        (TensorFamily::MmaSyncScaled, ActivationKind::Fp8(_)) => match format {
            Format::Nvfp4 => Some(Operand::BF16),
            Format::Mxfp4 => Some(Operand::E4m3),
        },
        (TensorFamily::MmaSync, ActivationKind::Fp8(_)) => Some(Operand::BF16),
        // So are blocks.
        (TensorFamily::MmaSync | TensorFamily::Wgmma, _) => Some(kind.operand()),
        (TensorFamily::MmaSyncScaled, ActivationKind::Halves(_))
        | (TensorFamily::Tcgen05, ActivationKind::Halves(_) | ActivationKind::Fp8(_)) => {
            Some(kind.operand())
        }
    };
    Operands { weights: format, activations }
}

/// Checks that `tensor` has kernels for weights in `format` and activations of `kind`, and returns the
/// formats that they multiply.
///
/// # Errors
/// [`Error::Shape`].
pub(super) fn operands(
    tensor: TensorFamily,
    format: Format,
    kind: ActivationKind,
) -> Result<Operands> {
    if let ActivationKind::Blocks { format: of_activations, .. } = kind
        && of_activations != format
    {
        let required = format!("{}, as the weights", format.name());
        return Err(Error::shape("format of activations", required, of_activations.name()));
    }
    let operands = multiplied(tensor, format, kind);
    if operands.has_kernels(tensor) {
        return Ok(operands);
    }
    let field = format!("type of activations for {} weights", format.name());
    let required = "bf16, fp8, or the weights' own format";
    Err(Error::shape(field, required, kind.operand().name()))
}
