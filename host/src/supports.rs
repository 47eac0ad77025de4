//! Whether there are kernels for an operation, before anything is allocated and without a device.
//!
//! Operations on a device are planned by the same functions, so [`supports`] says yes exactly where an operation can be
//! made, and gives the same reason where it cannot. Only operands decide about values of weights and of their scales, the
//! weights' order, and sizes and places of buffers; whether the folder of kernels is complete is not asked either.

use std::fmt;

use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, HalfType, ScaleLayout};

use crate::attention::{self, AttentionOptions, AttentionShape};
use crate::dequantize;
use crate::device::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::gemm::described::{self, Planner, Sizes};
use crate::gemm::{ActivationKind, GemmOptions, Grouping};
use crate::gemv::{self, GemvOptions, WeightForm};
use crate::moe::{LayerSizes, MoeOptions, MoeShape, PlannedLayer};
use crate::quantize::device::Input;
use crate::quantize::{self, QuantizeOptions};
use crate::rows::{self, RowsOptions};
use crate::shape::GemmShape;

/// An operation without its operands. References are to its options.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Description<'a> {
    /// A [`Gemv`](crate::gemv::Gemv).
    Gemv {
        /// Sizes and scales of the weights.
        weights: WeightForm,
        /// Layout of the activations' scales.
        activations: ScaleLayout,
        /// Whether launches have a workspace: [`Gemv::with_workspace`](crate::gemv::Gemv::with_workspace).
        workspace: bool,
        /// The options.
        options: &'a GemvOptions,
    },
    /// A [`Gemm`](crate::gemm::Gemm), plain or batched; gated where the options have an
    /// [`up`](GemmOptions::up).
    Gemm {
        /// M, N of the result, K and L.
        shape: GemmShape,
        /// Format of the weights.
        format: Format,
        /// The activations.
        activations: ActivationKind,
        /// The options.
        options: &'a GemmOptions,
    },
    /// A grouped [`Gemm`](crate::gemm::Gemm::grouped); gated where the options have an [`up`](GemmOptions::up).
    Grouped {
        /// N of the result and K.
        sizes: [usize; 2],
        /// Matrices of weights.
        matrices: usize,
        /// The order of tokens.
        grouping: Grouping,
        /// Format of the weights.
        format: Format,
        /// The activations.
        activations: ActivationKind,
        /// The options.
        options: &'a GemmOptions,
    },
    /// A [`MixedGemm`](crate::gemm::MixedGemm).
    Mixed {
        /// The products, in order.
        products: &'a [MixedDescription<'a>],
        /// The activations of all.
        activations: ActivationKind,
    },
    /// A [`MoeLayer`](crate::moe::MoeLayer).
    Moe {
        /// Tokens and experts.
        shape: MoeShape,
        /// Columns of tokens and result.
        hidden: usize,
        /// Columns between the products.
        intermediate: usize,
        /// Format of the weights.
        format: Format,
        /// Type of the tokens.
        tokens: HalfType,
        /// The options.
        options: &'a MoeOptions,
    },
    /// A [`Quantizer`](crate::quantize::device::Quantizer).
    Quantize {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// The input.
        input: Input,
        /// The options.
        options: &'a QuantizeOptions,
    },
    /// A [`Dequantizer`](crate::dequantize::Dequantizer).
    Dequantize {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Format of the codes.
        format: Format,
        /// Layout of the scales.
        layout: ScaleLayout,
        /// Type of the result.
        output: FloatType,
    },
    /// An operation on [`Rows`](crate::rows::Rows).
    Rows {
        /// Rows of the results.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Type of the input.
        element: HalfType,
        /// The options.
        options: &'a RowsOptions,
    },
    /// An [`Attention`](crate::attention::Attention).
    Attention {
        /// Sizes.
        shape: AttentionShape,
        /// Type of the tensors.
        element: HalfType,
        /// The options.
        options: &'a AttentionOptions,
    },
}

/// One product of a [`MixedGemm`](crate::gemm::MixedGemm), without its operands.
#[derive(Clone, Copy, Debug)]
pub struct MixedDescription<'a> {
    /// M; 0 for a product that is left out.
    pub tokens: usize,
    /// N of the result and K.
    pub sizes: [usize; 2],
    /// Format of the weights.
    pub format: Format,
    /// The options; the product is gated where they have an [`up`](GemmOptions::up).
    pub options: &'a GemmOptions,
}

impl Description<'_> {
    /// The operation's name.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        match self {
            Self::Gemv { .. } => "gemv",
            Self::Gemm { .. } => "gemm",
            Self::Grouped { .. } => "grouped",
            Self::Mixed { .. } => "mixed",
            Self::Moe { .. } => "moe",
            Self::Quantize { .. } => "quantize",
            Self::Dequantize { .. } => "dequantize",
            Self::Rows { .. } => "rows",
            Self::Attention { .. } => "attention",
        }
    }

    /// Plans it and drops the plan.
    fn plan(&self, target: &Target) -> Result<()> {
        let model = Planner::Model(target);
        match *self {
            Self::Gemv { weights, activations, workspace, options } => {
                gemv::Planned::new(target, &weights, activations, options, workspace).map(drop)
            }
            Self::Gemm { shape: GemmShape { m, n, k, l }, format, activations, options } => {
                let sizes = sizes([n, k], 1, format, options);
                described::uniform(model, sizes, [l, m], activations, options).map(drop)
            }
            Self::Grouped { sizes: of, matrices, grouping, format, activations, options } => {
                let sizes = sizes(of, matrices, format, options);
                described::grouped(model, sizes, grouping, activations, options).map(drop)
            }
            Self::Mixed { products, activations } => {
                let products: Vec<_> = products
                    .iter()
                    .map(|&MixedDescription { tokens, sizes: of, format, options }| {
                        (sizes(of, 1, format, options), tokens, options)
                    })
                    .collect();
                described::mixed(target, &products, activations).map(drop)
            }
            Self::Moe { shape, hidden, intermediate, format, tokens, options } => {
                let sizes = LayerSizes { hidden, between: intermediate, format, half: tokens };
                let planned = PlannedLayer::new(target, shape, sizes, options)?;
                planned.check_products(target, shape, sizes)
            }
            Self::Quantize { rows, columns, input, options } => {
                quantize::device::Planned::new(target, rows, columns, input, options).map(drop)
            }
            Self::Dequantize { rows, columns, format, layout, output } => {
                dequantize::Planned::new(target, rows, columns, format, layout, output).map(drop)
            }
            Self::Rows { rows, columns, element, options } => {
                rows::Planned::new(target, rows, columns, element, options).map(drop)
            }
            Self::Attention { shape, element, options } => {
                let expected = shape.capacity;
                attention::Planned::new(target, shape, element, expected, options).map(drop)
            }
        }
    }
}

/// Weights that a description has.
fn sizes([n, k]: [usize; 2], matrices: usize, format: Format, options: &GemmOptions) -> Sizes {
    Sizes { n, k, matrices, format, gated: options.up.is_some() }
}

/// The reason why there is no kernel for a description: the error that planning it gives.
#[derive(Debug)]
pub struct Reason {
    op: &'static str,
    error: Error,
}

impl Reason {
    /// The operation's name.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        self.op
    }

    /// The error, with the field, what is required of it and what it is.
    #[must_use]
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, error } = self;
        write!(f, "{op}: {error}")
    }
}

impl std::error::Error for Reason {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<Reason> for Error {
    fn from(reason: Reason) -> Self {
        reason.error
    }
}

/// Checks whether there are kernels for what `description` says, on the [usual
/// machine](crate::device::DeviceProperties::usual) of an architecture or on a device. Nothing is loaded or allocated.
///
/// ```
/// use nvfp4::gemm::{ActivationKind, GemmOptions};
/// use nvfp4::quantize::Format;
/// use nvfp4::shape::GemmShape;
/// use nvfp4::supports::Description;
/// use nvfp4::{Arch, HalfType, supports};
///
/// let options = GemmOptions::new();
/// let product = |format, half| Description::Gemm {
///     shape: GemmShape::of(64, 7168, 2048),
///     format,
///     activations: ActivationKind::Halves(half),
///     options: &options,
/// };
/// assert!(supports(Arch::Sm90a, &product(Format::Nvfp4, HalfType::F16)).is_ok());
/// // The range of MXFP4 exceeds that of f16.
/// let reason = supports(Arch::Sm90a, &product(Format::Mxfp4, HalfType::F16)).unwrap_err();
/// assert!(reason.to_string().contains("must be bf16"), "{reason}");
/// ```
///
/// # Errors
/// The error that making the operation on such a device gives.
pub fn supports(
    target: impl Into<Target>,
    description: &Description<'_>,
) -> std::result::Result<(), Reason> {
    let planned = description.plan(&target.into());
    planned.map_err(|error| Reason { op: description.op(), error })
}
