//! One verified gated MLP as an engine runs it: norm and quantising, gated product, quantising, product, residual.
//!
//! Each step is compared with the f64 oracle, or with the CPU's bytes, on its own inputs as the step before left them, so
//! that an error is named with its step. On a GPU all steps are timed as one graph, and each product as a graph of its own:
//! what the layer takes beside the products' sum is what is around them.

use std::fmt;

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, HalfType, Mxfp4, Nvfp4, ScaleLayout};
use serde::Serialize;

use super::gemm::Head;
use super::timing::{ReadCeiling, SetTimes, input_sets, microseconds};
use super::{ActivationInput, Emulated, GemmBench, StepTime};
use crate::gemm::{Verify, reference_for};
use crate::moe::StepCheck;
use crate::rng::SplitMix64;
use crate::shape::MlpShape;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result, require_memory};
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, DeviceWeights, Fp8Matrix, GatedWeights, Gemm,
    GemmActivations, GemmOptions, GemmPlan, GemmResult, HalfMatrix, Output, Repacked, Residual,
    ResidualValues, ResultBuffers, RowScaled, UpOptions, Vectors, Weights, Workspace,
};
use nvfp4::quantize::{QuantizeOptions, Recipe, TensorScale, recipe_by_name};
use nvfp4::rows::{Made, Operands, Results, Rows, RowsOptions, Source, reference};
use nvfp4::tensor::{BlockScaled, Dims};

/// The number that is added to the mean of squares.
const EPSILON: f32 = 1e-6;

/// A verified run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct MlpReport {
    /// The head of the report.
    #[serde(flatten)]
    pub head: Head,
    /// Plans of both products.
    pub plans: [GemmPlan; 2],
    /// The comparison of each step.
    pub steps: Vec<StepCheck>,
    /// Times; only from a GPU, and only if verified.
    pub times: Option<MlpTiming>,
}

/// Measured times of a layer.
#[derive(Clone, Debug, Serialize)]
pub struct MlpTiming {
    /// All steps, one graph.
    #[serde(flatten)]
    pub measured: SetTimes,
    /// Each product alone.
    pub products: Vec<StepTime>,
    /// The layer's time divided by the products' sum.
    pub ratio_to_products: f64,
    /// Reading the bytes that must move.
    #[serde(flatten)]
    pub read: ReadCeiling,
}

/// The operands on the host.
struct Data<F> {
    /// The residual stream, `[T, H]`.
    x: HalfMatrix,
    /// The norm's weights, `[H]`.
    norm: Vec<u8>,
    /// Gate and what it multiplies, `[2I, H]`, the gate's rows first.
    first: BlockScaled<F>,
    /// `[H, I]`.
    second: BlockScaled<F>,
}

/// The kinds of results and operands between the steps.
struct Kinds {
    half: HalfType,
    /// Results of the norm and of quantising.
    results: Results,
    /// Activations of the products.
    activations: ActivationKind,
}

impl Kinds {
    /// Finds them for the activations that a bench asks for.
    ///
    /// # Errors
    /// [`Error::Shape`] for activations that are quantised with a scale that must be known before.
    fn new(bench: &GemmBench) -> Result<Self> {
        let (half, results, activations) = match bench.activations {
            ActivationInput::Halves(half) => (half, Results::Half, ActivationKind::Halves(half)),
            ActivationInput::Fp8(Some(half)) => (half, Results::E4m3, ActivationKind::Fp8(None)),
            ActivationInput::Fp4Rows => {
                let recipe: Recipe = recipe_by_name(Format::Nvfp4, "torchao")?;
                let blocks = QuantizeOptions::new(recipe).scale(TensorScale::PerRow);
                let results = Results::Blocks(blocks.layout(bench.layout));
                (
                    HalfType::Bf16,
                    results,
                    ActivationKind::Blocks { format: Format::Nvfp4, layout: bench.layout },
                )
            }
            ActivationInput::Fp4 | ActivationInput::Fp8(None) => {
                let required = "16 bits, fp8 from 16 bits, or fp4-rows, for an MLP";
                return Err(Error::shape("activations", required, bench.activations));
            }
        };
        Ok(Self { half, results, activations })
    }

    /// Whether the gated product's result is quantised.
    fn quantizes(&self) -> bool {
        !matches!(self.results, Results::Half)
    }

    fn norm(&self) -> RowsOptions {
        RowsOptions::new(Source::RmsNorm { epsilon: EPSILON, residual: false }, self.results)
    }

    fn quantize(&self) -> RowsOptions {
        RowsOptions::new(Source::Plain, self.results)
    }

    /// Options of both products.
    fn products(&self, bench: &GemmBench) -> [GemmOptions; 2] {
        let options = GemmOptions::new()
            .output(Output::Floats(self.half.float()))
            .adding(bench.options.adding)
            .overrides(bench.options.overrides.clone());
        let first = options.clone().activation(bench.options.activation);
        [first.up(Some(UpOptions::new())), options]
    }
}

/// A step of a layer.
type Launch = fn(&Set) -> Result<()>;

/// A prepared layer with everything of its own.
struct Set {
    half: HalfType,
    norm: Rows,
    quantize: Option<Rows>,
    products: [Gemm; 2],
    weights: [DeviceWeights; 2],
    workspaces: [Option<Workspace>; 2],
    x: DeviceBuffer,
    norm_weight: DeviceBuffer,
    between: DeviceBuffer,
    out: DeviceBuffer,
}

impl Set {
    fn new<F: BlockFormat>(
        kernels: &Kernels,
        shape: MlpShape,
        data: &Data<F>,
        repacked: &[Repacked; 2],
        kinds: &Kinds,
        bench: &GemmBench,
    ) -> Result<Self> {
        let (device, MlpShape { tokens, hidden, between }) = (kernels.device(), shape);
        let [first, second] = repacked;
        let weights = [first.upload(device)?, second.upload(device)?];
        let [gated, plain] = kinds.products(bench);
        let product = |weights: &DeviceWeights, options: &GemmOptions| {
            Gemm::new(kernels, weights, [1, tokens], kinds.activations, options)
        };
        let products = [product(&weights[0], &gated)?, product(&weights[1], &plain)?];
        let workspace = |product: &Gemm| match product.workspace_bytes() {
            0 => Ok(None),
            bytes => Workspace::new(device, bytes).map(Some),
        };
        let rows = |columns: usize, options: &RowsOptions| {
            Rows::new(kernels, tokens, columns, kinds.half, options)
        };
        let out = |name: &str, product: &Gemm| {
            DeviceBuffer::poisoned(device, name, product.out_bytes()?[0])
        };
        Ok(Self {
            half: kinds.half,
            norm: rows(hidden, &kinds.norm())?,
            quantize: kinds.quantizes().then(|| rows(between, &kinds.quantize())).transpose()?,
            workspaces: [workspace(&products[0])?, workspace(&products[1])?],
            x: DeviceBuffer::upload(device, "x", data.x.bytes())?,
            norm_weight: DeviceBuffer::upload(device, "norm's weights", &data.norm)?,
            between: out("between", &products[0])?,
            out: out("out", &products[1])?,
            products,
            weights,
        })
    }

    fn launch(&self) -> Result<()> {
        self.norm.launch(&Operands::normed(&self.x, &self.norm_weight))?;
        self.gated()?;
        if let Some(quantize) = &self.quantize {
            quantize.launch(&Operands::plain(&self.between))?;
        }
        self.plain()
    }

    /// The gated product.
    fn gated(&self) -> Result<()> {
        let (a, out) = (self.norm.outputs().into(), ResultBuffers::Floats(&self.between));
        self.product(0, a, out, Vectors::default())
    }

    /// The second product, to which the residual stream is added.
    fn plain(&self) -> Result<()> {
        let a = match &self.quantize {
            Some(quantize) => quantize.outputs().into(),
            None => ActivationBuffers::Halves(&self.between),
        };
        let residual = Some(Residual::of(&self.x, self.half.float()));
        self.product(
            1,
            a,
            ResultBuffers::Floats(&self.out),
            Vectors { residual, ..Vectors::default() },
        )
    }

    fn product(
        &self,
        which: usize,
        a: ActivationBuffers<'_>,
        out: ResultBuffers<'_>,
        vectors: Vectors<'_>,
    ) -> Result<()> {
        let workspace = self.workspaces[which].as_ref();
        self.products[which].launch(a, &self.weights[which], out, workspace, vectors)
    }

    /// Compares what the last launch left, step by step.
    fn check<F: BlockFormat>(
        &self,
        kernels: &Kernels,
        shape: MlpShape,
        data: &Data<F>,
        kinds: &Kinds,
        bench: &GemmBench,
    ) -> Result<Vec<StepCheck>> {
        let MlpShape { tokens, hidden, between } = shape;
        let rows =
            |step, columns, options: &RowsOptions, found: &Made, operands: &Operands<'_, [u8]>| {
                let right = reference(tokens, columns, kinds.half, options, operands)?;
                let verified = found.difference(&right.made).is_none();
                Ok::<_, Error>(StepCheck { step, verified, verification: None })
            };
        let arch = kernels.device().choice().arch;
        let product = |step,
                       which: usize,
                       a: &GemmActivations<F>,
                       b: Weights<'_, F>,
                       options: &GemmOptions,
                       bytes: &[u8]| {
            let reference = reference_for(arch, &a.activations(), b, options)?;
            let (product, output) = (&self.products[which], options.output);
            let (dims, plan) = (product.result_dims()?, product.plan().clone());
            let (bytes, scales) = (bytes.to_vec(), Vec::new());
            let result = GemmResult { bytes, scales, dims, output, magnitude: None, plan };
            let verification = result.verify(&reference);
            let verified = verification.passed();
            Ok::<_, Error>(StepCheck { step, verified, verification: Some(verification) })
        };
        let [gated, plain] = kinds.products(bench);

        let normed = self.norm.result("x")?;
        let operands = Operands::normed(data.x.bytes(), &data.norm[..]);
        let mut checks = vec![rows("norm", hidden, &kinds.norm(), &normed, &operands)?];
        let a = activations(normed, Dims::new(1, tokens, hidden)?, kinds.half)?;
        let first = GatedWeights::stacked(&data.first)?.into();
        let between_bytes = self.between.read()?;
        checks.push(product("gated product", 0, &a, first, &gated, &between_bytes)?);
        let dims = Dims::new(1, tokens, between)?;
        let a = match &self.quantize {
            Some(quantize) => {
                let found = quantize.result("between")?;
                let operands = Operands::plain(&between_bytes[..]);
                checks.push(rows("quantise", between, &kinds.quantize(), &found, &operands)?);
                activations(found, dims, kinds.half)?
            }
            None => activations(Made::Half(between_bytes), dims, kinds.half)?,
        };
        let stream = floats::decode(kinds.half.float(), data.x.bytes());
        let plain = plain.residual(Some(ResidualValues::round(kinds.half.float(), &stream)));
        checks.push(product("product", 1, &a, (&data.second).into(), &plain, &self.out.read()?)?);
        Ok(checks)
    }
}

/// The results of an operation on rows as a product's operand.
fn activations<F: BlockFormat>(
    made: Made,
    dims: Dims,
    half: HalfType,
) -> Result<GemmActivations<F>> {
    Ok(match made {
        Made::Blocks(matrix) => {
            GemmActivations::ScaledRows(RowScaled::of_matrix("a", matrix, dims)?)
        }
        Made::E4m3 { codes, scales } => {
            GemmActivations::Fp8(Fp8Matrix::new("a", dims, codes, scales)?)
        }
        Made::Half(bytes) => GemmActivations::Halves(HalfMatrix::new("a", dims, half, bytes)?),
    })
}

/// Runs an MLP of `shape` on random inputs, verifies each step, and on a GPU times it.
///
/// # Errors
/// Bad sizes and [`DeviceError`](nvfp4::device::DeviceError), and [`Error::Shape`] for activations with a scale that must
/// be known before. A wrong result is not an error: the report says so, and nothing is timed.
pub fn mlp(kernels: &Kernels, shape: MlpShape, bench: &GemmBench) -> Result<MlpReport> {
    match bench.format {
        Format::Nvfp4 => run::<Nvfp4>(kernels, shape, bench),
        Format::Mxfp4 => run::<Mxfp4>(kernels, shape, bench),
    }
}

fn run<F: BlockFormat>(kernels: &Kernels, shape: MlpShape, bench: &GemmBench) -> Result<MlpReport> {
    let device = kernels.device();
    let MlpShape { tokens, hidden, between } = shape;
    let row = |columns: usize| columns / 2 + columns / F::BLOCK;
    let weight_bytes = 2 * between * row(hidden) + hidden * row(between);
    let bytes = (weight_bytes + 4 * tokens * hidden) as u64;
    // Operands, their repacked and decoded forms, and on the emulator its own memory.
    require_memory(&format!("running {shape}"), bytes.saturating_mul(6))?;
    let kinds = Kinds::new(bench)?;
    let mut rng = SplitMix64::new(bench.seed);
    let of = bench.generator;
    let mut weights = |name: &str, rows: usize, columns: usize| {
        of.blocks::<F>(name, Dims::new(1, rows, columns)?, ScaleLayout::Linear, &mut rng)
    };
    let first = weights("first", 2 * between, hidden)?;
    let second = weights("second", hidden, between)?;
    let x = of.halves("x", Dims::new(1, tokens, hidden)?, kinds.half, &mut rng)?;
    let norm = floats::encode(kinds.half.float(), (0..hidden).map(|_| 0.5 + rng.uniform()));
    let data = Data { x, norm, first, second };
    let repacked = [
        Repacked::rounded(device, GatedWeights::stacked(&data.first)?.into(), kinds.activations)?,
        Repacked::rounded(device, (&data.second).into(), kinds.activations)?,
    ];
    let make = |kernels: &Kernels| Set::new(kernels, shape, &data, &repacked, &kinds, bench);
    let (observed, reports) = kernels.observed();
    let set = make(&observed)?;
    set.launch()?;
    let reports = reports.take();
    let steps = set.check(kernels, shape, &data, &kinds, bench)?;
    let verified = steps.iter().all(|step| step.verified);
    let plans = set.products.each_ref().map(|product| product.plan().clone());
    drop(set);
    let times = match bench.times_on(device) && verified {
        true => {
            let check = |set: &Set| set.check(kernels, shape, &data, &kinds, bench);
            Some(time(kernels, bench, bytes, || make(kernels), check)?)
        }
        false => None,
    };
    let what = ("mlp", shape.to_string(), kinds.half.name());
    let head = bench.head::<F>(kernels, what, &reports, (verified, bytes));
    Ok(MlpReport { head, plans, steps, times })
}

/// Times a layer that has been verified once, each input set in memory of its own, and verifies each set.
fn time(
    kernels: &Kernels,
    bench: &GemmBench,
    bytes: u64,
    make: impl Fn() -> Result<Set>,
    check: impl Fn(&Set) -> Result<Vec<StepCheck>>,
) -> Result<MlpTiming> {
    let protocol = bench.protocol;
    let gpu = kernels.device().gpu("timing")?;
    let (sets, cold) = input_sets(kernels, bytes, make)?;
    let wrong = |set: &Set| -> Result<_> {
        let checks = check(set)?;
        let bad = checks.iter().find(|check| !check.verified);
        Ok(bad.map(|check| format!(", step {}", check.step)))
    };
    let right = |_: &Set| Ok(None);
    // SAFETY: operands and workspaces are the sets', and `kernels` has the modules.
    let measured = unsafe { SetTimes::measure(gpu, (&sets, cold), protocol, Set::launch, wrong)? };
    let steps: [(&'static str, Launch); 2] =
        [("gated product", Set::gated), ("product", Set::plain)];
    let mut products = Vec::new();
    for (step, launch) in steps {
        // SAFETY: as above.
        let times = unsafe { SetTimes::measure(gpu, (&sets, cold), protocol, launch, right)? };
        products.push(StepTime { step, times: times.times });
    }
    drop(sets);
    let sum: f64 = products.iter().map(|product| product.times.median).sum();
    let read = ReadCeiling::measure(kernels, bytes, protocol, &measured.times)?;
    Ok(MlpTiming { ratio_to_products: measured.times.median / sum, measured, products, read })
}

impl fmt::Display for MlpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        for (name, plan) in ["first", "second"].into_iter().zip(&self.plans) {
            writeln!(f, "  {name:<9} {}", plan.to_string().replace('\n', "\n            "))?;
        }
        self.steps.iter().try_for_each(|check| writeln!(f, "  {check}"))?;
        if let Some(times) = &self.times {
            write!(f, "{times}")?;
        }
        self.head.emulated.iter().try_for_each(|emulated: &Emulated| write!(f, "{emulated}"))
    }
}

impl fmt::Display for MlpTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measured, products, ratio_to_products, read } = self;
        measured.write(f, format_args!("{ratio_to_products:.3} times its products"))?;
        for StepTime { step, times } in products {
            writeln!(f, "  step      {:.3} us {step} alone", microseconds(times.median))?;
        }
        read.write(f, "memory")
    }
}
