//! Choices of a product besides its operands.

use fp4_formats::gemm::{Activation, Adding, Split};

use super::{Output, ResidualValues};
use crate::setters::setters;

/// Choices that override the plan's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GemmOverrides {
    /// Kernel by name.
    pub kernel: Option<String>,
    /// The split of K. Kernels of sm_100a that do not split it in clusters take `none` and, but for the widest
    /// and those with multicast, `stream-k`; multicast kernels of sm_90a take both.
    pub split: Option<Split>,
    /// Whether a row's result has the same bits whatever the number of tokens, its position and the other rows: of all plans
    /// for the same weights, kinds of operands and result, and machine. Kernels are then those that add K in one order by
    /// one instruction, and K is cut by one split for all M, if at all; of grouped products it is not. Tuning tables are not
    /// looked at. [`split`](Self::split), if there is one, must be the same for all M.
    ///
    /// Without it the kernel and the cuts of K follow from M, and with them the order in which a row's products are added:
    /// in another batch its result may differ within the bound of rounding, and with a grouped product's counts, too. In
    /// launches of one plan, and of one set of counts, it is always the same.
    pub batch_invariant: bool,
}

impl GemmOverrides {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a kernel or a split is asked for.
    pub(super) fn names_any(&self) -> bool {
        self.kernel.is_some() || self.split.is_some()
    }
}

setters!(GemmOverrides {
    kernel: impl Into<Option<String>>,
    split: impl Into<Option<Split>>,
    batch_invariant: bool,
});

/// Choices of a GEMM besides its operands.
///
/// ```
/// use nvfp4::FloatType;
/// use nvfp4::gemm::{Activation, GemmOptions};
///
/// let options = GemmOptions::new().output(FloatType::Bf16).activation(Activation::Silu).alpha(0.5);
/// assert_eq!(options.alpha, 0.5);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GemmOptions {
    /// Factor of the sums; of a gated product, of the gate's.
    pub alpha: f32,
    /// Scale of the whole tensor of activations, of both halves' sums; 1 where the activations are a
    /// tensor of this crate's, which has its own.
    pub activation_scale: f32,
    /// Type of the result.
    pub output: Output,
    /// A factor for each row of `A`, `[M]`.
    pub row_factors: Option<Vec<f32>>,
    /// A factor for each row of `B`, `[N]`; of a gated product, of the gate.
    pub column_factors: Option<Vec<f32>>,
    /// The bias: added to each column, `[N]`; of a gated product, of the gate.
    pub bias: Option<Vec<f32>>,
    /// Activation function of the values; of a gated product, of the gate's.
    pub activation: Activation,
    /// Options of the other half, for gated weights.
    pub up: Option<UpOptions>,
    /// Whether a [`GemmRun`](super::GemmRun) or [`GroupedRun`](super::GroupedRun) finds the [largest magnitude](super::GemmResult::magnitude) of
    /// the results. Launches on buffers of the caller's name its place, [`Vectors::magnitude`](super::Vectors::magnitude).
    pub magnitude: bool,
    /// Matrices that are added to the results of a [`GemmRun`](super::GemmRun) or
    /// [`GroupedRun`](super::GroupedRun) in f32, before they are rounded, `[L, M, N]`. Launches on buffers of
    /// the caller's name theirs, [`Vectors::residual`](super::Vectors::residual).
    pub residual: Option<ResidualValues>,
    /// The way in which products of e4m3 may be added.
    pub adding: Adding,
    /// Choices that override the plan's.
    pub overrides: GemmOverrides,
}

impl Default for GemmOptions {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            activation_scale: 1.0,
            output: Output::default(),
            row_factors: None,
            column_factors: None,
            bias: None,
            activation: Activation::default(),
            up: None,
            magnitude: false,
            residual: None,
            adding: Adding::default(),
            overrides: GemmOverrides::default(),
        }
    }
}

/// Choices for the half of a gated product that the gate is multiplied with. Row factors are those
/// of [`GemmOptions`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct UpOptions {
    /// Factor of its sums.
    pub alpha: f32,
    /// A factor for each of its rows, `[N]`.
    pub column_factors: Option<Vec<f32>>,
    /// The bias: added to each column, `[N]`.
    pub bias: Option<Vec<f32>>,
}

impl Default for UpOptions {
    fn default() -> Self {
        Self { alpha: 1.0, column_factors: None, bias: None }
    }
}

impl GemmOptions {
    /// The usual choices: f16, and nothing but the product.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl GemmOptions {
    /// The same with or without [batch invariance](GemmOverrides::batch_invariant).
    #[must_use]
    pub fn batch_invariant(mut self, batch_invariant: bool) -> Self {
        self.overrides.batch_invariant = batch_invariant;
        self
    }
}

impl UpOptions {
    /// The usual choices: nothing but the product.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(GemmOptions {
    alpha: f32,
    activation_scale: f32,
    output: impl Into<Output>,
    row_factors: impl Into<Option<Vec<f32>>>,
    column_factors: impl Into<Option<Vec<f32>>>,
    bias: impl Into<Option<Vec<f32>>>,
    activation: Activation,
    up: impl Into<Option<UpOptions>>,
    magnitude: bool,
    residual: impl Into<Option<ResidualValues>>,
    adding: Adding,
    overrides: GemmOverrides,
});

setters!(UpOptions {
    alpha: f32,
    column_factors: impl Into<Option<Vec<f32>>>,
    bias: impl Into<Option<Vec<f32>>>,
});
