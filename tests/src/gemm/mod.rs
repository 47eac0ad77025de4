//! The harness of all GEMM tests: a case with all options, its inputs, the oracle's results, and
//! the comparison.
//!
//! | step | where |
//! | --- | --- |
//! | what is multiplied, and how | [`Case`] |
//! | operands | [`Case::inputs`] |
//! | where the matrices of a batch are; poison around them | [`Placement`] |
//! | through the host library, on any device | [`Case::check`], [`Case::check_on`] |
//! | launches of sm_100a's kernels that the host library does not choose | [`tcgen05`] |
//! | right results | [`Expected`] |

mod expected;
pub mod grouped;
pub mod mixed;
mod placement;
mod run;
pub mod tcgen05;

use std::borrow::Cow;

use fp4_formats::gemm::{OUT_RECIPE, Split};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat, FloatType, HalfType, Operand, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, Activations, Fp8Matrix, GatedWeights,
    GemmOptions, GemmOverrides, HalfMatrix, UpOptions, Weights,
};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::tune::ResultKind;
pub use nvfp4_lab::gemm::adding_of;
use nvfp4_lab::gemm::reference_for;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::gemm::GemmActivations;
use nvfp4_lab::rng::SplitMix64;

pub use expected::{Expected, compare_largest};
pub use placement::{GUARD, OperandBuffer, POISON, Placement, ResidualAt};

/// Ragged numbers of tokens.
pub const TOKENS: [usize; 6] = [1, 7, 65, 127, 129, 300];
/// Ragged numbers of weight rows.
pub const ROWS: [usize; 7] = [1, 3, 8, 40, 72, 200, 1000];
/// Values of K from one block on, most of them no multiple of a step.
pub const DEPTHS: [usize; 9] = [16, 32, 48, 144, 160, 416, 1040, 2064, 7184];
/// Every type of float that a result can be.
pub const FLOATS: [FloatType; 3] = FloatType::ALL;
/// Every type of a result.
pub const RESULTS: [ResultKind; 7] = [
    ResultKind::Floats(FloatType::F16),
    ResultKind::Floats(FloatType::Bf16),
    ResultKind::Floats(FloatType::F32),
    ResultKind::Blocks(Format::Nvfp4, ScaleLayout::Linear),
    ResultKind::Blocks(Format::Nvfp4, ScaleLayout::Blocked128x4),
    ResultKind::Blocks(Format::Mxfp4, ScaleLayout::Linear),
    ResultKind::Blocks(Format::Mxfp4, ScaleLayout::Blocked128x4),
];

/// Returns the message of an error that is bad input.
///
/// # Panics
/// If there is none; `what` was to be refused.
pub fn refused<T>(what: &str, result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("{what}: taken"),
        Err(error) => {
            let known = matches!(error, Error::Shape { .. } | Error::WrongDevice { .. });
            assert!(known, "{what}: {error}");
            assert_eq!(error.exit_code(), 2, "{what}: {error}");
            error.to_string()
        }
    }
}

/// The type of activations, beside weights of any format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ActivationType {
    /// Blocks in the weights' format, with scales in this layout.
    Blocks(ScaleLayout),
    /// 16-bit floats.
    Halves(HalfType),
    /// e4m3 with a scale for each token, given or made of floats before the product.
    Fp8(Option<HalfType>),
}

/// f16 activations.
pub const F16: ActivationType = ActivationType::Halves(HalfType::F16);
/// bf16 activations.
pub const BF16: ActivationType = ActivationType::Halves(HalfType::Bf16);
/// Activations in the weights' format with linear scales.
pub const LINEAR: ActivationType = ActivationType::Blocks(ScaleLayout::Linear);
/// Activations in the weights' format with scales in the 128x4 layout.
pub const BLOCKED: ActivationType = ActivationType::Blocks(ScaleLayout::Blocked128x4);

impl ActivationType {
    /// Returns the host library's name of the type, beside weights in `format`.
    #[must_use]
    pub fn kind(self, format: Format) -> ActivationKind {
        match self {
            Self::Blocks(layout) => ActivationKind::Blocks { format, layout },
            Self::Halves(operand) => ActivationKind::Halves(operand),
            Self::Fp8(from) => ActivationKind::Fp8(from),
        }
    }

    /// Makes random activations that are not block-scaled, `[batch, rows, K]`, `copies` times.
    ///
    /// # Panics
    /// If they are block-scaled.
    #[must_use]
    pub fn floats<F: BlockFormat>(
        self,
        generator: Generator,
        [batch, rows, k]: [usize; 3],
        copies: usize,
        rng: &mut SplitMix64,
    ) -> GemmActivations<F> {
        let mut halves = |half: HalfType| {
            let dims = Dims::new(batch, rows, k).expect("dims");
            let one = generator.halves("a", dims, half, rng).expect("a");
            let all = Dims::new(copies * batch, rows, k).expect("dims");
            HalfMatrix::new("a", all, half, one.bytes().repeat(copies)).expect("a")
        };
        match self {
            Self::Blocks(_) => panic!("{self:?} are block-scaled"),
            Self::Halves(half) => GemmActivations::Halves(halves(half)),
            Self::Fp8(Some(half)) => GemmActivations::ToFp8(halves(half)),
            Self::Fp8(None) => {
                let quantized = Fp8Matrix::quantize(&halves(HalfType::Bf16));
                GemmActivations::Fp8(quantized.expect("a"))
            }
        }
    }

    /// Returns the buffers of elements or codes, and of scales, as a product takes them.
    ///
    /// # Panics
    /// Without the scales that it takes.
    #[must_use]
    pub fn buffers<'a>(
        self,
        elements: &'a DeviceBuffer,
        scales: Option<&'a DeviceBuffer>,
    ) -> ActivationBuffers<'a> {
        let scales = || scales.expect("scales");
        match self {
            Self::Blocks(_) => ActivationBuffers::blocks(elements, scales()),
            Self::Halves(_) | Self::Fp8(Some(_)) => ActivationBuffers::Halves(elements),
            Self::Fp8(None) => ActivationBuffers::Fp8 { codes: elements, scales: scales() },
        }
    }

    /// Returns a type of activations for sm_90a's kernels that take weights in `format` and operands
    /// of this type: `index` chooses among all such types in turn.
    #[must_use]
    pub fn of_operand(format: Format, operand: Operand, index: usize) -> Self {
        match (format, operand) {
            (Format::Nvfp4, Operand::F16) | (Format::Mxfp4, Operand::BF16) => {
                let halves = operand.half().map_or(BLOCKED, Self::Halves);
                [LINEAR, halves, BLOCKED][index % 3]
            }
            (_, Operand::Half(half)) => Self::Halves(half),
            (_, Operand::E4m3) => {
                [Self::Fp8(None), Self::Fp8(Some(HalfType::Bf16)), Self::Fp8(Some(HalfType::F16))]
                    [index % 3]
            }
        }
    }

    /// Returns the activations that are multiplied in this type without a launch before.
    #[must_use]
    pub fn as_they_are(operand: Operand) -> Self {
        operand.half().map_or(Self::Fp8(None), Self::Halves)
    }

    /// Returns all types of activations that have kernels of every architecture for weights in
    /// `format`.
    #[must_use]
    pub fn all(format: Format) -> &'static [Self] {
        match format {
            Format::Nvfp4 => &[LINEAR, BLOCKED, F16, BF16],
            Format::Mxfp4 => &[LINEAR, BLOCKED, BF16],
        }
    }
}

/// Makes random matrices `[batch, rows, K]`, whose scale is `factor` times the generator's.
///
/// # Panics
/// If K is not whole blocks.
#[must_use]
pub fn blocks<F: BlockFormat>(
    generator: Generator,
    [batch, rows, k]: [usize; 3],
    layout: ScaleLayout,
    factor: f32,
    rng: &mut SplitMix64,
) -> BlockScaled<F> {
    let dims = Dims::new(batch, rows, k).expect("dims");
    let x = generator.blocks::<F>("x", dims, layout, rng).expect("whole blocks");
    let (codes, scales) = (x.codes().to_vec(), x.scales().to_vec());
    BlockScaled::new("x", dims, layout, codes, scales, factor * x.global_scale()).expect("valid")
}

/// The form in which the two matrices of a gated product are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatedForm {
    /// Two tensors.
    Pair,
    /// One tensor, the gate's rows first.
    Stacked,
    /// One tensor, whose even rows are the gate.
    Interleaved,
}

impl GatedForm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pair, Self::Stacked, Self::Interleaved];

    /// Returns two matrices of weights in this form; `up` is the second of a pair.
    ///
    /// # Panics
    /// If the form does not take them.
    #[must_use]
    pub fn weights<'a, F: BlockFormat>(
        self,
        weights: &'a BlockScaled<F>,
        up: Option<&'a BlockScaled<F>>,
    ) -> GatedWeights<'a, F> {
        let gated = match self {
            Self::Pair => GatedWeights::pair(weights, up.expect("a pair")),
            Self::Stacked => GatedWeights::stacked(weights),
            Self::Interleaved => GatedWeights::interleaved(weights),
        };
        gated.expect("two matrices")
    }
}

/// The other half of a gated product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gated {
    /// The form of the matrices.
    pub form: GatedForm,
    /// Factor of the half.
    pub alpha: f32,
    /// Whether it has column factors and a bias.
    pub vectors: [bool; 2],
    /// Scale of its tensor over the generator's, if it has its own tensor.
    pub tensor_scale: f32,
}

/// One GEMM, its inputs and the way it is run.
#[derive(Debug, Clone)]
pub struct Case {
    /// Sizes; N is the result's.
    pub shape: GemmShape,
    /// Format of the weights.
    pub format: Format,
    /// Type of the activations.
    pub activations: ActivationType,
    /// Layout of the weights' scales.
    pub layout: ScaleLayout,
    /// Whether all batch entries have the same weights.
    pub shared_weights: bool,
    /// The generator of the inputs.
    pub generator: Generator,
    /// Seed of the inputs.
    pub seed: u64,
    /// Factor of the exponents of MXFP4's scales, which the generators leave within 2^10.
    pub spread: i16,
    /// Scales of the tensors over the generator's: activations, weights.
    pub tensor_scales: [f32; 2],
    /// The type of the result.
    pub result: ResultKind,
    /// The scale of a result in NVFP4 over the one that its largest magnitude asks for.
    pub result_scale: f32,
    /// Factor of the result.
    pub alpha: f32,
    /// Whether there are row factors, column factors, a bias.
    pub vectors: [bool; 3],
    /// The activation function of the epilogue.
    pub activation: Activation,
    /// The other half, if the product is gated.
    pub gated: Option<Gated>,
    /// Whether the largest magnitude of the results is asked for.
    pub magnitude: bool,
    /// The matrices that are added to the results.
    pub residual: Option<ResidualAt>,
    /// Placement of activations and of their scales.
    pub activations_at: [Placement; 2],
    /// Placement of the result and of its scales.
    pub result_at: [Placement; 2],
    /// Choices that are taken from the plan. A kernel's name is for devices that have it.
    pub overrides: GemmOverrides,
}

impl Case {
    /// Makes a case with exact NVFP4 operands, linear scales, an f32 result, and the host library's
    /// plan.
    #[must_use]
    pub fn new([m, n, k, l]: [usize; 4]) -> Self {
        Self {
            shape: GemmShape { m, n, k, l },
            format: Format::Nvfp4,
            activations: LINEAR,
            layout: ScaleLayout::Linear,
            shared_weights: false,
            generator: Generator::Exact,
            seed: 1,
            spread: 1,
            tensor_scales: [1.0; 2],
            result: ResultKind::Floats(FloatType::F32),
            result_scale: 1.0,
            alpha: 1.0,
            vectors: [false; 3],
            activation: Activation::Identity,
            gated: None,
            magnitude: false,
            residual: None,
            activations_at: [Placement::Dense; 2],
            result_at: [Placement::Dense; 2],
            overrides: GemmOverrides::default(),
        }
    }

    /// Selects the kernel `name` with so many parts of K.
    #[must_use]
    pub fn kernel(mut self, name: &str, split: Split) -> Self {
        self.overrides = GemmOverrides::new().kernel(name.to_string()).split(split);
        self
    }

    /// Sets the weights' format; K is rounded up to whole blocks.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self.shape.k = self.shape.k.next_multiple_of(format.block() as usize);
        self
    }

    /// Sets the type of the activations.
    #[must_use]
    pub fn activations(self, activations: ActivationType) -> Self {
        Self { activations, ..self }
    }

    /// Sets weights in `format` beside activations of type `operand`, or of a type that becomes it
    /// before the product: `index` selects among them in turn.
    #[must_use]
    pub fn decoded_to(self, format: Format, operand: Operand, index: usize) -> Self {
        self.format(format).activations(ActivationType::of_operand(format, operand, index))
    }

    /// Sets the type of the result.
    #[must_use]
    pub fn result(self, result: impl Into<ResultKind>) -> Self {
        Self { result: result.into(), ..self }
    }

    /// Uses one matrix of weights for all batch entries.
    #[must_use]
    pub fn shared_weights(self) -> Self {
        Self { shared_weights: true, ..self }
    }

    /// Places activations and their scales.
    #[must_use]
    pub fn activations_at(self, activations_at: [Placement; 2]) -> Self {
        Self { activations_at, ..self }
    }

    /// Places the result and its scales.
    #[must_use]
    pub fn result_at(self, result_at: [Placement; 2]) -> Self {
        Self { result_at, ..self }
    }

    /// Adds a residual to the results.
    #[must_use]
    pub fn residual(self, residual: ResidualAt) -> Self {
        Self { residual: Some(residual), ..self }
    }

    /// Sets the activation function.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Makes the product gated, with two tensors of weights.
    #[must_use]
    pub fn gated(self) -> Self {
        self.gated_as(GatedForm::Pair)
    }

    /// Makes the product gated, with weights in this form.
    #[must_use]
    pub fn gated_as(self, form: GatedForm) -> Self {
        let gated = Gated { form, alpha: 1.0, vectors: [false; 2], tensor_scale: 1.0 };
        Self { gated: Some(gated), ..self }
    }

    /// Makes the product gated, if it is not, with this factor of the other half, and with column
    /// factors and a bias if `vectors` say so.
    #[must_use]
    pub fn up(self, alpha: f32, vectors: [bool; 2]) -> Self {
        let case = if self.gated.is_some() { self } else { self.gated() };
        let gated = case.gated.map(|gated| Gated { alpha, vectors, ..gated });
        Self { gated, ..case }
    }

    /// Whether no sum is rounded before the result is, whatever the order: each is a multiple of
    /// 1/4 that f32 holds. The contest's inputs are exact for any K of its shapes: only operands
    /// whose signs are all alike come near 2^22. Results of an activation or a gate are rounded.
    #[must_use]
    pub fn exact(&self) -> bool {
        // Folded weights and sums of e4m3 products are rounded.
        self.exact_vectors() && !matches!(self.activations, ActivationType::Fp8(_))
    }

    /// Whether the vectors round nothing if the sums are exact.
    fn exact_vectors(&self) -> bool {
        let sums = match self.generator {
            Generator::Exact | Generator::Contest | Generator::ContestGemm => true,
            Generator::FullRange | Generator::ContestDual => false,
        };
        sums && self.activation == Activation::Identity && self.gated.is_none()
    }

    /// Makes the operands, the vectors and alpha. `F` is the weights' format.
    ///
    /// # Panics
    /// If they do not fit.
    #[must_use]
    pub fn inputs<F: BlockFormat>(&self) -> Inputs<F> {
        let GemmShape { m, n, k, l } = self.shape;
        let mut rng = SplitMix64::new(self.seed);
        let [a_scale, b_scale] = self.tensor_scales;
        let matrices = if self.shared_weights { 1 } else { l };
        let rows = match self.gated.map(|gated| gated.form) {
            None | Some(GatedForm::Pair) => n,
            Some(GatedForm::Stacked | GatedForm::Interleaved) => 2 * n,
        };
        let weights = self.blocks::<F>([matrices, rows, k], self.layout, b_scale, &mut rng);
        let up_weights = self.gated.filter(|gated| gated.form == GatedForm::Pair).map(|gated| {
            let layout = ScaleLayout::ALL[usize::from(self.layout == ScaleLayout::ALL[0])];
            self.blocks::<F>([matrices, n, k], layout, gated.tensor_scale, &mut rng)
        });
        // The oracle has shared activations once for each entry.
        let [matrices, copies] =
            if self.activations_at[0] == Placement::Shared { [1, l] } else { [l, 1] };
        let all = Dims::new(l, m, k).expect("dims");
        let activations = match self.activations {
            ActivationType::Blocks(layout) => {
                let one = self.blocks::<F>([matrices, m, k], layout, a_scale, &mut rng);
                let (codes, scales) = (one.codes().repeat(copies), one.scales().repeat(copies));
                let scale = one.global_scale();
                let all = BlockScaled::new("a", all, layout, codes, scales, scale);
                GemmActivations::Blocks(all.expect("a"))
            }
            ActivationType::Halves(_) | ActivationType::Fp8(_) => {
                let (kind, dims) = (self.activations, [matrices, m, k]);
                kind.floats(self.generator, dims, copies, &mut rng)
            }
        };
        let mut vector = |wanted: bool, count: usize| {
            let choice = |rng: &mut SplitMix64| match self.exact_vectors() {
                true => [0.5, -1.0, 2.0, 4.0][rng.below(4) as usize],
                false => rng.normal() as f32,
            };
            wanted.then(|| (0..count).map(|_| choice(&mut rng)).collect())
        };
        let [rows, columns, bias] = self.vectors;
        // The scales of tokens take the place of row factors.
        let rows = rows && self.activations != ActivationType::Fp8(None);
        let (row_factors, column_factors) = (vector(rows, m), vector(columns, n));
        let options = GemmOptions::new()
            .alpha(self.alpha)
            .row_factors(row_factors)
            .column_factors(column_factors)
            .bias(vector(bias, n))
            .activation(self.activation)
            .magnitude(self.magnitude)
            .adding(adding_of(&self.overrides))
            .up(self.gated.map(|Gated { alpha, vectors: [columns, bias], .. }| {
                let column_factors = vector(columns, n);
                UpOptions::new().alpha(alpha).column_factors(column_factors).bias(vector(bias, n))
            }));
        let exact = self.exact_vectors();
        let residual = self.residual.map(|residual| residual.values([l, m * n], exact, &mut rng));
        let options = options.residual(residual);
        let form = self.gated.map(|gated| gated.form);
        Inputs { activations, weights, up_weights, form, options }
    }

    /// Makes random matrices with the case's spread of scales.
    fn blocks<F: BlockFormat>(
        &self,
        dims: [usize; 3],
        layout: ScaleLayout,
        factor: f32,
        rng: &mut SplitMix64,
    ) -> BlockScaled<F> {
        const ONE: i16 = 127;
        let x = blocks::<F>(self.generator, dims, layout, factor, rng);
        if self.spread == 1 {
            return x;
        }
        assert_eq!(self.format, Format::Mxfp4, "only its scales are exponents");
        let spread = |byte: u8| (ONE + (i16::from(byte) - ONE) * self.spread) as u8;
        // Padding is NaN, and stays so.
        let scales = x.scales().iter().map(|&byte| match F::scale_is_valid(byte) {
            true => spread(byte),
            false => byte,
        });
        let (codes, scales) = (x.codes().to_vec(), scales.collect());
        BlockScaled::new("x", x.dims(), layout, codes, scales, x.global_scale()).expect("valid")
    }

    /// Computes the oracle's results for `inputs` on a target, and converts them to the requested
    /// type.
    ///
    /// # Panics
    /// If the inputs do not fit one another.
    #[must_use]
    pub fn expected<F: BlockFormat>(&self, inputs: &Inputs<F>, arch: Arch) -> Expected {
        let weights = inputs.all_weights();
        let reference = reference_for(arch, &inputs.activations(), weights, &inputs.options)
            .expect("the oracle");
        let largest = reference.values.iter().fold(0f64, |amax, x| amax.max(x.abs())) as f32;
        let scale = OUT_RECIPE.tensor_parameter(largest) * self.result_scale;
        let output = self.result.output(scale);
        Expected::new(self.shape, reference, output, self.exact())
    }
}

/// The operands of a product.
#[derive(Debug)]
pub struct Inputs<F> {
    activations: GemmActivations<F>,
    /// Weights, per batch entry or shared; for a gated product, the gate's or those of both halves.
    pub weights: BlockScaled<F>,
    /// The second of a pair of weights.
    pub up_weights: Option<BlockScaled<F>>,
    /// The form of a gated product's weights.
    form: Option<GatedForm>,
    /// Alpha and vectors; the result is left at its default.
    pub options: GemmOptions,
}

impl<F: BlockFormat> Inputs<F> {
    /// Returns the activations of every batch entry.
    #[must_use]
    pub fn activations(&self) -> Activations<'_, F> {
        self.activations.activations()
    }

    /// Returns the weights, gated or not.
    #[must_use]
    pub fn all_weights(&self) -> Weights<'_, F> {
        match self.form {
            None => (&self.weights).into(),
            Some(form) => form.weights(&self.weights, self.up_weights.as_ref()).into(),
        }
    }

    /// Returns the bytes of the activations: elements or codes, and scales.
    #[must_use]
    pub fn activation_bytes(&self) -> [Cow<'_, [u8]>; 2] {
        self.activations.bytes()
    }
}
