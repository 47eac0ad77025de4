//! All steps as one layer.

use fp4_formats::gemm::{Adding, OUT_MX_RECIPE, OUT_RECIPE};
use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::{FloatType, HalfType, ScaleLayout};

use super::arrival::Arrival;
use super::routing::{CombineOperands, check_gathered};
use super::{CombineTypes, ExpertMap, HALF_BYTES, MoeProblem, MoeShape, Routes, Routing};
use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, Kernels, Prepared, Queue, Target};
use crate::error::{Error, Result};
use crate::gemm::described::{self, Planner, Sizes};
use crate::gemm::{
    Activation, ActivationBuffers, ActivationKind, ChosenRows, DeviceWeights, Gemm, GemmOptions,
    GroupBuffers, Grouping, Output, ResultBuffers, SettledCounts, TokenBuffers, UpOptions, Vectors,
    Workspace,
};
use crate::quantize::device::{Input, Quantizer};
use crate::quantize::{self, QuantizeOptions, QuantizedMatrix, TensorScale};
use crate::rows;
use crate::setters::setters;
use crate::stream::FirstStream;
use crate::tune::ResultKind;

/// A whole layer, planned once and launched any number of times.
///
/// A layer for one token neither routes nor gathers, unless its activations are quantised or it has a map of experts: its
/// products take the ids themselves ([`Grouping::Chosen`]).
///
/// ```
/// use std::path::Path;
///
/// use fp4_formats::{FloatType, HalfType, ScaleLayout};
/// use nvfp4::buffer::DeviceBuffer;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemm::{Activation, ActivationKind, GatedWeights, HalfMatrix, Repacked};
/// use nvfp4::moe::{MoeInputs, MoeLayer, MoeOptions, MoeShape};
/// use nvfp4::quantize::{TensorScale, quantize};
/// use nvfp4::tensor::Dims;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&"emu:h200".parse::<DeviceRequest>()?)?;
/// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
/// let (kind, linear) = (ActivationKind::Halves(HalfType::Bf16), ScaleLayout::Linear);
///
/// // Two experts of 32 hidden and 16 intermediate columns, each a tensor with its own scale.
/// let (mut first, mut second) = (Vec::new(), Vec::new());
/// for value in [0.5, 1.0] {
///     let tensor = |name, rows, columns| {
///         let dims = Dims::new(1, rows, columns)?;
///         quantize(name, &vec![value; rows * columns], dims, TensorScale::FromAmax, linear)
///     };
///     let (gate, up, down) = (tensor("gate", 16, 32)?, tensor("up", 16, 32)?, tensor("down", 32, 16)?);
///     first.push(Repacked::gated(&device, &GatedWeights::pair(&gate, &up)?, kind)?);
///     second.push(Repacked::for_device(&device, &down, kind)?);
/// }
/// let first = Repacked::stack(&first)?.upload(&device)?;
/// let second = Repacked::stack(&second)?.upload(&device)?;
///
/// // Three tokens choose one expert each.
/// let shape = MoeShape { tokens: 3, top_k: 1, experts: 2, first: 0, count: 2 };
/// let options = MoeOptions::new().activation(Activation::Silu);
/// let layer = MoeLayer::new(&kernels, shape, &first, &second, HalfType::Bf16, &options)?;
/// let memory = layer.memory()?;
/// let words = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
/// let ids = DeviceBuffer::upload(&device, "ids", &words([1, 0, 1]))?;
/// let weights = DeviceBuffer::upload(&device, "weights", &words([1f32.to_bits(); 3]))?;
/// let x = HalfMatrix::round("x", Dims::new(1, 3, 32)?, HalfType::Bf16, &[0.125; 3 * 32])?;
/// let x = DeviceBuffer::upload(&device, "x", x.bytes())?;
/// let out = DeviceBuffer::poisoned(&device, "out", 3 * 32 * 4)?;
/// let inputs = MoeInputs { activations: &x, ids: &ids, weights: &weights, shared: None };
/// layer.launch(&inputs, [&first, &second], &memory, &out, Default::default())?;
/// assert_eq!(memory.problem()?, None);
///
/// let bytes = out.read()?;
/// let values: Vec<f32> =
///     bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
/// // silu(2) * 2 * 8 and silu(4) * 4 * 16.
/// for (token, right) in [(0, 251.4), (1, 28.19), (2, 251.4)] {
///     assert!((values[token * 32] / right - 1.0).abs() < 0.01, "{}", values[token * 32]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MoeLayer {
    pub(super) routing: Routing,
    first: Gemm,
    second: Gemm,
    hidden: usize,
    half: HalfType,
    quantized: Quantized,
    /// Whether rows between the steps are in the order of choices.
    chooses: bool,
    pub(super) arrival: Arrival,
    /// Format of the weights.
    pub(super) format: Format,
    /// Types of the rows that are combined, of the result, and of what is added.
    types: CombineTypes,
}

/// Quantising of a layer's activations as planned.
#[derive(Clone, Debug)]
enum Quantized {
    No,
    /// A quantiser with these options, made of the scales, before tokens are gathered.
    Blocks(TokenScales, QuantizeOptions),
    /// The operation that gathers, and a launch before the second product.
    Fp8,
    /// NVFP4 with a scale for each row: the operation that gathers, and another one before the second product.
    Rows,
}

/// Choices of a layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MoeOptions {
    /// The activation function of the gate.
    pub activation: Activation,
    /// Type of the result.
    pub output: FloatType,
    /// Type of the second product's rows, which are added up in f32.
    pub rows: FloatType,
    /// Type of the tensor that is added to the result ([`MoeInputs::shared`]); the result's if `None`. The
    /// addition is in f32, before the sum is rounded to the result's type.
    pub shared: Option<FloatType>,
    /// The format that activations are quantised to before each product; `None` leaves them in 16 bits (W4A16).
    pub quantized: Option<TokenFormat>,
    /// The way in which products of e4m3 may be added.
    pub adding: Adding,
    /// The experts of this device, if they are not a range. A layer with a map routes and gathers a single token, too.
    pub map: Option<ExpertMap>,
    /// Whether a token's result has the same bits whatever the other tokens are and how many there are
    /// ([`GemmOverrides::batch_invariant`](crate::gemm::GemmOverrides)). Everything but the products is so in any case.
    pub batch_invariant: bool,
}

impl Default for MoeOptions {
    fn default() -> Self {
        let (output, rows) = (FloatType::F32, FloatType::F32);
        Self {
            activation: Activation::Silu,
            output,
            rows,
            shared: None,
            quantized: None,
            adding: Adding::default(),
            map: None,
            batch_invariant: false,
        }
    }
}

impl MoeOptions {
    /// The usual choices: SiLU of the gate, f32.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the type of the tensor that is added to the result.
    #[must_use]
    pub fn shared_type(&self) -> FloatType {
        self.shared.unwrap_or(self.output)
    }

    /// Returns the kind of activations that the products of a layer take, whose weights are in
    /// `format` and whose activations are `half`.
    #[must_use]
    pub fn activations(&self, half: HalfType, format: Format) -> ActivationKind {
        match self.quantized {
            None => ActivationKind::Halves(half),
            Some(TokenFormat::Blocks(_) | TokenFormat::ScaledRows) => {
                ActivationKind::Blocks { format, layout: LAYOUT }
            }
            Some(TokenFormat::Fp8) => ActivationKind::Fp8(Some(half)),
        }
    }
}

setters!(MoeOptions {
    activation: Activation,
    output: FloatType,
    rows: FloatType,
    shared: impl Into<Option<FloatType>>,
    quantized: impl Into<Option<TokenFormat>>,
    adding: Adding,
    map: impl Into<Option<ExpertMap>>,
    batch_invariant: bool,
});

/// A format that a layer quantises its activations to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenFormat {
    /// The weights' format with these tensor scales (W4A4).
    Blocks(TokenScales),
    /// e4m3 with a scale of each token, and of each row between the products (W4A8). A row with a value that is not
    /// finite becomes NaN.
    Fp8,
    /// NVFP4 with a scale of each token, and of each row between the products, found in the pass that quantises it (W4A4).
    /// There is nothing to calibrate.
    ScaledRows,
}

impl TokenFormat {
    /// Returns the tensor scales that it has.
    #[must_use]
    pub fn scales(&self) -> Option<TokenScales> {
        match self {
            Self::Blocks(scales) => Some(*scales),
            Self::Fp8 | Self::ScaledRows => None,
        }
    }
}

/// Tensor scales of activations in NVFP4: a value is code times block scale times this. Checkpoints
/// have them as input scales; of values up to `amax` it is `amax / (6 * 448)`. MXFP4 has none: both are
/// 1 then, see [`TokenScales::ONE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScales {
    /// The scale of the layer's activations.
    pub tokens: f32,
    /// The scale of the rows between the products.
    pub between: f32,
}

impl TokenScales {
    /// Block scales alone.
    pub const ONE: Self = Self { tokens: 1.0, between: 1.0 };

    /// Returns the options of quantising the activations of a layer with weights in `format`.
    ///
    /// # Errors
    /// [`Error::Scalar`] for scales other than 1 of MXFP4.
    pub fn of_tokens(&self, format: Format) -> Result<QuantizeOptions> {
        let (recipe, scale) = match format {
            Format::Nvfp4 => (Recipe::Nvfp4(OUT_RECIPE), TensorScale::Given(self.tokens)),
            Format::Mxfp4 => {
                for (name, scale) in [("tokens", self.tokens), ("between", self.between)] {
                    if scale != 1.0 {
                        return Err(Error::Scalar {
                            field: format!("tensor scale `{name}` of activations in mxfp4"),
                            required: "1",
                            actual: scale.into(),
                        });
                    }
                }
                (Recipe::Mxfp4(OUT_MX_RECIPE), TensorScale::default())
            }
        };
        Ok(QuantizeOptions { recipe, scale, layout: LAYOUT })
    }

    /// The scale for values of at most this magnitude, in `format`.
    #[must_use]
    pub fn of_largest(format: Format, amax: f32) -> f32 {
        match format {
            Format::Nvfp4 => OUT_RECIPE.tensor_parameter(amax),
            Format::Mxfp4 => 1.0,
        }
    }
}

/// A step of a layer, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoeStep {
    /// [`Routing::route`]; not of a layer for one token, unless its activations are quantised or it has a map of experts.
    Route,
    /// Quantising the tokens to the weights' format; only of a layer that does.
    Quantize,
    /// [`Routing::gather`] or [`Routing::gather_blocks`]; likewise. Tokens become e4m3 on the way in a layer of that
    /// ([`Rows`](crate::rows::Rows)).
    Gather,
    /// The gated product.
    First,
    /// The product back to the hidden size.
    Second,
    /// [`Routing::combine`].
    Combine,
}

impl MoeStep {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Route, Self::Quantize, Self::Gather, Self::First, Self::Second, Self::Combine];

    /// Returns the name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Quantize => "quantize",
            Self::Gather => "gather",
            Self::First => "first product",
            Self::Second => "second product",
            Self::Combine => "combine",
        }
    }
}

/// The inputs of a layer's launch besides weights.
#[derive(Clone, Copy, Debug)]
pub struct MoeInputs<'a> {
    /// `[tokens, H]` of the layer's 16-bit type.
    pub activations: &'a DeviceBuffer,
    /// i32 `[tokens, top_k]`: each token's experts. Nothing may write them while the layer runs.
    pub ids: &'a DeviceBuffer,
    /// f32 `[tokens, top_k]`: their weights.
    pub weights: &'a DeviceBuffer,
    /// A tensor that is added to the result, of its size and of the type that the options say: a shared expert's
    /// result, which launches queued before may make (example `shared_expert`).
    pub shared: Option<&'a DeviceBuffer>,
}

/// Biases of a layer's experts on a device, f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoeBiases<'a> {
    /// Biases of the gates, `[count, I]`.
    pub gate: Option<&'a DeviceBuffer>,
    /// Biases of the other halves, `[count, I]`.
    pub up: Option<&'a DeviceBuffer>,
    /// Biases of the second products, `[count, H]`; times the weights, as the rows.
    pub down: Option<&'a DeviceBuffer>,
}

/// Device memory of a layer, for one stream: the one that it is first used on.
#[derive(Debug)]
pub struct MoeMemory {
    /// The routes of the tokens, with the status word. A layer that does not [route](MoeStep::Route) uses the status
    /// word alone.
    pub routes: Routes,
    /// The quantiser of a layer that quantises its activations.
    quantizer: Option<Quantizer>,
    /// The operation that quantises what is between the products, by row.
    next: Option<Box<rows::Rows>>,
    /// Not of a layer that routes nothing.
    pub(super) gathered: Option<Gathered>,
    between: TokenBuffers,
    pub(super) rows: DeviceBuffer,
    workspace: Option<Workspace>,
    pub(super) stream: FirstStream,
}

/// The rows of the first product.
#[derive(Debug)]
pub(super) enum Gathered {
    /// Copies of tokens, as they are or quantised.
    Copies(TokenBuffers),
    /// Made by this operation: e4m3 or NVFP4, with a scale for each row.
    Made(Box<rows::Rows>),
}

impl Gathered {
    fn activations(&self) -> ActivationBuffers<'_> {
        match self {
            Self::Copies(tokens) => tokens.activations(),
            Self::Made(made) => made.outputs().into(),
        }
    }
}

impl MoeMemory {
    /// The tokens as the layer quantised them to blocks; none of a layer that does not.
    ///
    /// # Errors
    /// The same as [`Quantizer::result`].
    pub fn quantized(&self) -> Result<Option<QuantizedMatrix>> {
        self.quantizer.as_ref().map(|quantizer| quantizer.result("x")).transpose()
    }

    /// The rows of the first product as the layer gathered them: elements, their scales, and beside blocks the scales of
    /// rows; none of a layer that does not gather.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn gathered(&self) -> Result<Option<[Vec<u8>; 3]>> {
        let read = |gathered: &Gathered| match gathered.activations() {
            ActivationBuffers::Halves(elements) => Ok([elements.read()?, Vec::new(), Vec::new()]),
            ActivationBuffers::Blocks { codes, scales, row_scales } => {
                let rows = row_scales.map_or(Ok(Vec::new()), DeviceBuffer::read)?;
                Ok([codes.read()?, scales.read()?, rows])
            }
            ActivationBuffers::Fp8 { codes, scales } => {
                Ok([codes.read()?, scales.read()?, Vec::new()])
            }
        };
        self.gathered.as_ref().map(read).transpose()
    }

    /// The result of the first product, elements and scales.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn between(&self) -> Result<[Vec<u8>; 2]> {
        self.between.read()
    }

    /// The result of the second product.
    #[must_use]
    pub fn rows(&self) -> &DeviceBuffer {
        &self.rows
    }

    /// Returns the fault of the operands of launches so far, if there was one; waits for the
    /// device.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn problem(&self) -> Result<Option<MoeProblem>> {
        if let Some(problem) = self.routes.problem()? {
            return Ok(Some(problem));
        }
        const NAME: &str = "activations";
        let found = |checked: Result<()>| match checked {
            Ok(()) => Ok(false),
            Err(Error::NonFiniteAt { .. }) => Ok(true),
            Err(error) => Err(error),
        };
        let mut bad = false;
        if let Some(quantizer) = &self.quantizer {
            bad |= found(quantizer.check(NAME))?;
        }
        if let Some(next) = &self.next {
            if let Some(Gathered::Made(made)) = &self.gathered {
                bad |= found(made.check(NAME))?;
            }
            if found(next.check(NAME))? {
                bad = true;
                // Rows that no expert has in the next launch keep what they were.
                self.between.clear()?;
            }
        }
        Ok(bad.then_some(MoeProblem::NotFinite))
    }
}

/// Layout of the scales of activations.
const LAYOUT: ScaleLayout = ScaleLayout::Linear;

/// Sizes and types of a layer, besides its tokens and experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerSizes {
    /// Columns of tokens and result.
    pub hidden: usize,
    /// Columns between the products.
    pub between: usize,
    /// Format of the weights.
    pub format: Format,
    /// Type of the tokens.
    pub half: HalfType,
}

/// The choices for a layer's steps, before anything is loaded.
#[derive(Debug)]
pub(crate) struct PlannedLayer {
    quantized: Quantized,
    chooses: bool,
    /// Activations of the products.
    kinds: [ActivationKind; 2],
    groupings: [Grouping; 2],
    options: [GemmOptions; 2],
}

impl PlannedLayer {
    /// [`of_arrival`](Self::of_arrival) for tokens in rows.
    ///
    /// # Errors
    /// The same.
    pub fn new(
        target: &Target,
        shape: MoeShape,
        sizes: LayerSizes,
        options: &MoeOptions,
    ) -> Result<Self> {
        Self::of_arrival(target, shape, sizes, options, Arrival::Rows)
    }

    /// Checks all but the products, which [`check_products`](Self::check_products) does.
    ///
    /// # Errors
    /// As [`MoeLayer::new`] for all but weights, products and devices.
    fn of_arrival(
        target: &Target,
        shape: MoeShape,
        sizes: LayerSizes,
        options: &MoeOptions,
        arrival: Arrival,
    ) -> Result<Self> {
        shape.check()?;
        if let Some(map) = &options.map {
            map.check(shape)?;
        }
        let chooses = chooses(shape, options, arrival);
        let LayerSizes { hidden, between, format, half } = sizes;
        let slots = shape.tokens * shape.top_k;
        let kind = options.activations(half, format);
        let halves = ([1.0; 2], Output::Floats(half.float()));
        let (quantized, of_first, (scales, of_between)) = match options.quantized {
            None => (Quantized::No, kind, halves),
            Some(TokenFormat::Blocks(all)) => {
                let output = ResultKind::Blocks(format, LAYOUT).output(all.between);
                let made = Quantized::Blocks(all, all.of_tokens(format)?);
                (made, kind, ([all.tokens, all.between], output))
            }
            // Gathering makes the scales of all columns of a row; what is between the products is quantised by a
            // launch of the second one, because a tile of the first does not have whole rows.
            Some(TokenFormat::Fp8) => (Quantized::Fp8, ActivationKind::Fp8(None), halves),
            Some(TokenFormat::ScaledRows) => {
                if format != Format::Nvfp4 {
                    let what = "format of weights beside activations with a scale for each row";
                    return Err(Error::shape(what, Format::Nvfp4.name(), format.name()));
                }
                (Quantized::Rows, kind, halves)
            }
        };
        let groupings = match chooses {
            false => [Grouping::Contiguous { bound: slots }; 2],
            true => [true, false].map(|shared| {
                let MoeShape { experts, first, .. } = shape;
                Grouping::Chosen(ChosenRows { rows: slots, shared, experts, first })
            }),
        };
        match &quantized {
            Quantized::No if chooses => {}
            Quantized::No => check_gathered(hidden)?,
            Quantized::Blocks(_, options) => {
                let input = Input::plain(half.float());
                quantize::device::Planned::new(target, shape.tokens, hidden, input, options)?;
            }
            Quantized::Fp8 => {
                let options = gathers(shape, rows::Results::E4m3);
                rows::Planned::new(target, slots, hidden, half, &options)?;
            }
            Quantized::Rows => {
                let (gathers, next) = (gathers(shape, scaled_rows()), quantizes_rows());
                rows::Planned::new(target, slots, hidden, half, &gathers)?;
                rows::Planned::new(target, slots, between, half, &next)?;
            }
        }
        let first = GemmOptions {
            activation: options.activation,
            activation_scale: scales[0],
            output: of_between,
            up: Some(UpOptions::default()),
            adding: options.adding,
            ..GemmOptions::default()
        };
        let first = first.batch_invariant(options.batch_invariant);
        let second = GemmOptions::new().activation_scale(scales[1]).output(options.rows);
        let second = second.adding(options.adding).batch_invariant(options.batch_invariant);
        let (kinds, options) = ([of_first, kind], [first, second]);
        Ok(Self { quantized, chooses, kinds, groupings, options })
    }

    /// Plans the products by the model.
    ///
    /// # Errors
    /// As [`Gemm::grouped`] for all but weights and devices.
    pub fn check_products(
        &self,
        target: &Target,
        shape: MoeShape,
        sizes: LayerSizes,
    ) -> Result<()> {
        let LayerSizes { hidden, between, format, half: _ } = sizes;
        let of = |[n, k]: [usize; 2], gated| Sizes { n, k, matrices: shape.count, format, gated };
        let products = [of([between, hidden], true), of([hidden, between], false)];
        for (product, sizes) in products.into_iter().enumerate() {
            let Self { quantized: _, chooses: _, kinds, groupings, options } = self;
            let planner = Planner::Model(target);
            let (kind, options) = (kinds[product], &options[product]);
            described::grouped(planner, sizes, groupings[product], kind, options)?;
        }
        Ok(())
    }
}

/// NVFP4 with a scale for each row.
pub(crate) const fn scaled_rows() -> rows::Results {
    let options = QuantizeOptions::new(Recipe::Nvfp4(OUT_RECIPE)).layout(LAYOUT);
    rows::Results::Blocks(options.scale(TensorScale::PerRow))
}

/// Options of the operation that quantises what is between the products to that.
const fn quantizes_rows() -> rows::RowsOptions {
    rows::RowsOptions::new(rows::Source::Plain, scaled_rows())
}

/// Options of the operation that gathers a layer's tokens and quantises them by row.
fn gathers(shape: MoeShape, results: rows::Results) -> rows::RowsOptions {
    let gather = Some(rows::Gather { rows: shape.tokens, divisor: shape.top_k as u32 });
    rows::RowsOptions { gather, ..rows::RowsOptions::new(rows::Source::Plain, results) }
}

impl MoeLayer {
    /// Plans a layer of the gated weights `first`, `[count, I, H]` twice, and `second`,
    /// `[count, H, I]`, for activations of `half`. A token's result is the sum over its choices of
    /// weight times `second(act(gate x) * (up x))`. The weights were repacked for
    /// [the options' activations](MoeOptions::activations).
    ///
    /// # Errors
    /// The same as [`Routing::new`], [`Gemm::grouped`] and [`Quantizer::new`]; [`Error::Shape`] for weights
    /// that do not fit each other or the shape.
    pub fn new(
        kernels: &Kernels,
        shape: MoeShape,
        first: &DeviceWeights,
        second: &DeviceWeights,
        half: HalfType,
        options: &MoeOptions,
    ) -> Result<Self> {
        Self::of_arrival(kernels, shape, [first, second], half, options, Arrival::Rows)
    }

    /// [`new`](Self::new) for tokens that come in this form.
    pub(super) fn of_arrival(
        kernels: &Kernels,
        shape: MoeShape,
        [first, second]: [&DeviceWeights; 2],
        half: HalfType,
        options: &MoeOptions,
        arrival: Arrival,
    ) -> Result<Self> {
        let routing = match &options.map {
            Some(map) => Routing::mapped(kernels, shape, map)?,
            None => Routing::new(kernels, shape)?,
        };
        let (a, b) = (first.form(), second.form());
        let (hidden, between) = (a.columns, a.result_columns());
        for (what, found, required) in [
            ("experts in the first weights", first.batch(), shape.count),
            ("experts in the second weights", second.batch(), shape.count),
            ("K of the second weights", b.columns as usize, between as usize),
            ("N of the second weights", b.result_columns() as usize, hidden as usize),
        ] {
            if found != required {
                return Err(Error::shape(what, required.to_string(), found));
            }
        }
        let sizes = LayerSizes {
            hidden: hidden as usize,
            between: between as usize,
            format: a.format,
            half,
        };
        let planned = PlannedLayer::of_arrival(&kernels.into(), shape, sizes, options, arrival)?;
        let PlannedLayer { quantized, chooses, kinds, groupings, options: of } = planned;
        Ok(Self {
            first: Gemm::grouped(kernels, first, groupings[0], kinds[0], &of[0])?,
            second: Gemm::grouped(kernels, second, groupings[1], kinds[1], &of[1])?,
            routing,
            hidden: hidden as usize,
            half,
            quantized,
            chooses,
            arrival,
            format: sizes.format,
            types: CombineTypes {
                rows: options.rows,
                result: options.output,
                shared: options.shared_type(),
            },
        })
    }

    /// The products, in order.
    #[must_use]
    pub fn products(&self) -> [&Gemm; 2] {
        [&self.first, &self.second]
    }

    /// The steps that it takes, in order.
    pub fn steps(&self) -> impl Iterator<Item = MoeStep> + use<> {
        let chooses = self.chooses();
        let quantizes_apart = matches!(self.quantized, Quantized::Blocks(..));
        MoeStep::ALL.into_iter().filter(move |step| match step {
            MoeStep::Quantize => quantizes_apart,
            MoeStep::Route | MoeStep::Gather => !chooses,
            MoeStep::First | MoeStep::Second | MoeStep::Combine => true,
        })
    }

    /// Whether rows between the steps are in the order of choices, not of experts.
    #[must_use]
    pub fn chooses(&self) -> bool {
        self.chooses
    }

    /// Sizes of the layer as planned.
    #[must_use]
    pub fn shape(&self) -> MoeShape {
        self.routing.shape()
    }

    /// H, the columns of tokens and result.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Type of the tokens.
    #[must_use]
    pub fn tokens(&self) -> HalfType {
        self.half
    }

    /// Format of the weights.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Type of the second product's rows.
    #[must_use]
    pub fn rows(&self) -> FloatType {
        self.types.rows
    }

    /// Whether the layer quantises its activations.
    #[must_use]
    pub fn quantizes(&self) -> bool {
        !matches!(self.quantized, Quantized::No)
    }

    /// The format that the layer quantises its activations to, if it does.
    #[must_use]
    pub fn quantized(&self) -> Option<TokenFormat> {
        match &self.quantized {
            Quantized::No => None,
            Quantized::Blocks(scales, _) => Some(TokenFormat::Blocks(*scales)),
            Quantized::Fp8 => Some(TokenFormat::Fp8),
            Quantized::Rows => Some(TokenFormat::ScaledRows),
        }
    }

    /// Bytes of the result.
    #[must_use]
    pub fn out_bytes(&self) -> usize {
        self.routing.shape().tokens * self.hidden * self.types.result.bytes() as usize
    }

    /// Type of what is added to the result.
    #[must_use]
    pub fn shared(&self) -> FloatType {
        self.types.shared
    }

    /// Type of the result.
    #[must_use]
    pub fn output(&self) -> FloatType {
        self.types.result
    }

    /// Allocates what launches need besides weights, inputs and result.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), and as [`Quantizer::new`].
    pub fn memory(&self) -> Result<MoeMemory> {
        let kernels = self.routing.kernels();
        let device = kernels.device();
        let (slots, tokens) = (self.routing.slots(), self.routing.shape().tokens);
        let zeroed = |name: &str, bytes| DeviceBuffer::zeroed(device, name, bytes);
        let copies = |bytes| TokenBuffers::of("gathered", bytes, zeroed).map(Gathered::Copies);
        let (mut quantizer, mut gathered, mut next) = (None, None, None);
        let made = |columns: usize, options: &rows::RowsOptions| {
            rows::Rows::new(kernels, slots, columns, self.half, options).map(Box::new)
        };
        match &self.quantized {
            of if self.arrival == Arrival::Records => {
                gathered = Some(Gathered::Copies(self.unpacked(zeroed)?));
                if matches!(of, Quantized::Rows) {
                    let columns = self.first.result_dims()?.cols();
                    next = Some(made(columns, &quantizes_rows())?);
                }
            }
            Quantized::No if self.chooses() => {}
            Quantized::No => gathered = Some(copies([slots * self.hidden * HALF_BYTES, 0])?),
            Quantized::Blocks(_, options) => {
                let input = Input::plain(self.half.float());
                quantizer = Some(Quantizer::new(kernels, tokens, self.hidden, input, options)?);
                let block = options.recipe.format().block() as usize;
                gathered = Some(copies([slots * self.hidden / 2, slots * (self.hidden / block)])?);
            }
            Quantized::Fp8 => {
                let options = gathers(self.routing.shape(), rows::Results::E4m3);
                gathered = Some(Gathered::Made(made(self.hidden, &options)?));
            }
            Quantized::Rows => {
                let options = gathers(self.routing.shape(), scaled_rows());
                gathered = Some(Gathered::Made(made(self.hidden, &options)?));
                let columns = self.first.result_dims()?.cols();
                next = Some(made(columns, &quantizes_rows())?);
            }
        }
        let workspace = match self.first.workspace_bytes().max(self.second.workspace_bytes()) {
            0 => None,
            bytes => Some(Workspace::new(device, bytes)?),
        };
        Ok(MoeMemory {
            routes: self.routing.routes()?,
            quantizer,
            next,
            gathered,
            // Copies of the second product, or quantising before it, reach over rows that no expert has; what they
            // bring is not used, but the emulator asks that it was written.
            between: TokenBuffers::of("between", self.first.out_bytes()?, zeroed)?,
            rows: DeviceBuffer::poisoned(device, "rows", self.second.out_bytes()?[0])?,
            workspace,
            stream: FirstStream::default(),
        })
    }

    /// Queues the layer: `out` becomes `[tokens, H]`. `weights` are the first and the second product's. If an
    /// argument is wrong, no step is queued.
    ///
    /// # Errors
    /// As the steps'.
    pub fn launch(
        &self,
        inputs: &MoeInputs<'_>,
        weights: [&DeviceWeights; 2],
        memory: &MoeMemory,
        out: &DeviceBuffer,
        biases: MoeBiases<'_>,
    ) -> Result<()> {
        // SAFETY: gathering copies, which is queued between routing and the products, lets later kernels begin when
        // routing is complete, and with it all that was queued before. If nothing is gathered, or made e4m3 on the
        // way, the first product reads ids or offsets when all work queued before is complete, and then lets later
        // ones begin.
        let settled = Some(unsafe { SettledCounts::new() });
        let mut prepared = Prepared::new();
        for step in self.steps() {
            self.give(&mut prepared, settled, step, inputs, weights, memory, out, biases)?;
        }
        // SAFETY: the arguments are borrowed by this call, and the layer's memory is not shared between threads.
        unsafe { prepared.queue() }
    }

    /// Queues one step of a launch; those before it have been queued.
    ///
    /// # Errors
    /// The same as [`Routing`]'s, [`Quantizer::launch`] and [`Gemm::launch_grouped`]; [`Error::Shape`] for
    /// memory of a layer that has other steps, and for memory that was used on another stream.
    pub fn launch_step(
        &self,
        step: MoeStep,
        inputs: &MoeInputs<'_>,
        weights: [&DeviceWeights; 2],
        memory: &MoeMemory,
        out: &DeviceBuffer,
        biases: MoeBiases<'_>,
    ) -> Result<()> {
        self.give(&mut AtOnce, None, step, inputs, weights, memory, out, biases)
    }

    /// Checks the arguments of a step and gives its launches to a queue. `settled`: what wrote routes, ids and
    /// weights is complete early enough, as [`SettledCounts`] says of counts.
    #[expect(clippy::too_many_arguments, reason = "those of a public function, and two more")]
    pub(super) fn give<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        settled: Option<SettledCounts>,
        step: MoeStep,
        inputs: &MoeInputs<'k>,
        [first, second]: [&'k DeviceWeights; 2],
        memory: &'k MoeMemory,
        out: &DeviceBuffer,
        biases: MoeBiases<'_>,
    ) -> Result<()> {
        let MoeInputs { activations, ids, weights, shared } = *inputs;
        let MoeMemory { routes, quantizer, next, gathered, between, rows, workspace, stream } =
            memory;
        stream.require("layer's memory", self.routing.kernels().device())?;
        let workspace = workspace.as_ref();
        let chooses = self.chooses();
        let counts = if chooses { ids } else { &routes.offsets };
        let groups = GroupBuffers {
            status: Some(&routes.status),
            own_vectors: true,
            settled,
            ..GroupBuffers::of(counts)
        };
        let other = || Error::shape("memory", "of this layer", "of another one");
        match step {
            MoeStep::Route | MoeStep::Gather if chooses => {
                Err(Error::shape("step", "one of `MoeLayer::steps`", step.name()))
            }
            MoeStep::Route => self.routing.give_route(queue, self.routing.dense(ids), routes),
            MoeStep::Quantize => quantizer.as_ref().ok_or_else(other)?.prepare(queue, activations),
            MoeStep::Gather => {
                match (gathered.as_ref().ok_or_else(other)?, &self.quantized, quantizer) {
                    (Gathered::Made(made), Quantized::Fp8 | Quantized::Rows, None) => {
                        let operands = rows::Operands::plain(activations).index(&routes.sources);
                        made.prepare(queue, &operands)
                    }
                    (Gathered::Copies(copies), of, quantizer) => {
                        match (copies.activations(), of, quantizer) {
                            (ActivationBuffers::Halves(to), Quantized::No, None) => self
                                .routing
                                .give_gather(queue, activations, routes, to, self.hidden),
                            (
                                ActivationBuffers::Blocks { codes, scales, row_scales: None },
                                Quantized::Blocks(_, options),
                                Some(quantizer),
                            ) => self.routing.give_gather_blocks(
                                queue,
                                options.recipe.format(),
                                [quantizer.codes(), codes],
                                [quantizer.scales(), scales],
                                routes,
                                self.hidden,
                            ),
                            _ => Err(other()),
                        }
                    }
                    (Gathered::Made(_), _, _) => Err(other()),
                }
            }
            MoeStep::First => {
                let vectors =
                    Vectors { bias: biases.gate, up_bias: biases.up, ..Vectors::default() };
                let (a, settled) = match (gathered, chooses) {
                    (Some(copies @ Gathered::Copies(_)), false) => (copies.activations(), settled),
                    // It lets this launch begin before routing is complete.
                    (Some(made @ Gathered::Made(_)), false) => (made.activations(), None),
                    // Work queued before may write the ids.
                    (None, true) => (ActivationBuffers::Halves(activations), None),
                    (Some(_), true) | (None, false) => return Err(other()),
                };
                let out = between.result();
                let groups = GroupBuffers { next: Some(second), settled, ..groups };
                self.first.prepare_grouped(queue, groups, a, first, out, workspace, vectors)
            }
            MoeStep::Second => {
                let vectors = Vectors { bias: biases.down, ..Vectors::default() };
                let a = match (&self.quantized, next, between.activations()) {
                    (Quantized::Rows, Some(next), ActivationBuffers::Halves(halves)) => {
                        next.prepare(queue, &rows::Operands::plain(halves))?;
                        next.outputs().into()
                    }
                    (Quantized::Rows, ..) | (_, Some(_), _) => return Err(other()),
                    (_, None, between) => between,
                };
                let out = ResultBuffers::Floats(rows);
                self.second.prepare_grouped(queue, groups, a, second, out, workspace, vectors)
            }
            MoeStep::Combine => {
                let ids = chooses.then_some(ids);
                let operands = CombineOperands { from: rows, routes, ids, weights, shared, out };
                self.routing.give_combine(
                    queue,
                    operands,
                    (self.hidden, self.types),
                    settled.is_some(),
                )
            }
        }
    }
}

/// Whether a layer takes rows in the order of choices: a layer for one token whose activations are not quantised, which
/// does not come in a record, and whose experts are a range.
fn chooses(shape: MoeShape, options: &MoeOptions, arrival: Arrival) -> bool {
    let MoeOptions { quantized, map, .. } = options;
    shape.tokens == 1 && quantized.is_none() && map.is_none() && arrival == Arrival::Rows
}
