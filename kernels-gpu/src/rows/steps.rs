//! The steps of operations, and the copies of the kernels' code for those that are usual.

use fp4_formats::rows::{Norm, RowsParams};

/// The steps of an operation that a copy of the code has. Steps that the parameters have to ask for cost branches and keep
/// the compiler from moving instructions across them, so that usual operations have copies of their own.
pub trait Steps {
    /// Whether a row's first chunks are on their way to registers while the row before is finished, and their weights stay
    /// there. Loops over these chunks are unrolled then, a copy of their code for each.
    const AHEAD: bool;

    /// The [`Norm`].
    fn norm(p: &RowsParams) -> u32;
    /// Whether rows are chosen by an index.
    fn has_index(p: &RowsParams) -> bool;
    /// Whether there is a residual.
    fn has_residual(p: &RowsParams) -> bool;
    /// Whether there are addends behind the weights.
    fn has_bias(p: &RowsParams) -> bool;
    /// The signs of the rotation, if there is one.
    fn rotation(p: &RowsParams) -> Option<u32>;
    /// Whether a gated input's activation is SiLU.
    fn is_silu(p: &RowsParams) -> bool;
}

/// All steps, as the parameters ask for them.
pub struct Any;
/// One matrix as it is, or the product with SiLU.
pub struct Bare;
/// RMSNorm, with or without a residual.
pub struct Rms;
/// RMSNorm without a residual.
pub struct Alone;
/// RMSNorm with a residual.
pub struct Added;

impl Steps for Any {
    const AHEAD: bool = false;

    #[inline(always)]
    fn norm(p: &RowsParams) -> u32 {
        p.norm
    }

    #[inline(always)]
    fn has_index(p: &RowsParams) -> bool {
        p.index != 0
    }

    #[inline(always)]
    fn has_residual(p: &RowsParams) -> bool {
        p.quantize.up != 0
    }

    #[inline(always)]
    fn has_bias(p: &RowsParams) -> bool {
        p.bias != 0
    }

    #[inline(always)]
    fn rotation(p: &RowsParams) -> Option<u32> {
        p.rotation()
    }

    #[inline(always)]
    fn is_silu(_p: &RowsParams) -> bool {
        false
    }
}

/// Steps of usual operations: the norm, and whether there is a residual.
macro_rules! usual {
    ($name:ident, $norm:ident, |$p:ident| $residual:expr) => {
        impl Steps for $name {
            const AHEAD: bool = true;

            #[inline(always)]
            fn norm(_p: &RowsParams) -> u32 {
                Norm::$norm as u32
            }

            #[inline(always)]
            fn has_index(_p: &RowsParams) -> bool {
                false
            }

            #[inline(always)]
            fn has_residual($p: &RowsParams) -> bool {
                $residual
            }

            #[inline(always)]
            fn has_bias(_p: &RowsParams) -> bool {
                false
            }

            #[inline(always)]
            fn rotation(_p: &RowsParams) -> Option<u32> {
                None
            }

            #[inline(always)]
            fn is_silu(_p: &RowsParams) -> bool {
                true
            }
        }
    };
}

usual!(Bare, None, |_p| false);
usual!(Rms, Rms, |p| p.quantize.up != 0);
usual!(Alone, Rms, |_p| false);
usual!(Added, Rms, |_p| true);
