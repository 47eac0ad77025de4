//! One verified layer of a mixture of experts, with times from a GPU or counters from the emulator.

use std::collections::BTreeSet;
use std::fmt;

use fp4_formats::gemm::OUT_RECIPE;
use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout};
use serde::Serialize;

use super::experts::Experts;
use super::gemm::tensor_rate;
use super::moe_check::{Choices, Layer, StepCheck};
use super::timing::{ReadCeiling, SetTimes, input_sets, microseconds};
use super::{ActivationInput, Emulated, GemmBench};
use crate::buffer::DeviceBuffer;
use crate::cuda::Times;
use crate::device::{Choice, Kernels};
use crate::error::{Error, Result, require_memory};
use crate::gemm::{ActivationKind, DeviceWeights, GemmPlan, Output};
use crate::moe::{MoeInputs, MoeLayer, MoeMemory, MoeOptions, MoeShape, MoeStep, TokenScales};
use crate::quantize::{QuantizeOptions, TensorScale};
use crate::rng::SplitMix64;
use crate::shape::MixtureShape;
use crate::tensor::Dims;

/// A verified run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct MoeReport {
    /// The operation.
    pub op: &'static str,
    /// The shape as a string.
    pub shape: String,
    /// Format of the weights.
    pub format: &'static str,
    /// What the activations are.
    pub activations: String,
    /// What becomes of the gate.
    pub activation: String,
    /// What it ran on, and why.
    pub device: Choice,
    /// How the products ran.
    pub plans: [GemmPlan; 2],
    /// The folder of kernels.
    pub kernels: String,
    /// How the inputs were made.
    pub generator: String,
    /// Their seed.
    pub seed: u64,
    /// Element type of the result.
    pub output: &'static str,
    /// Whether every step's results are as they must be.
    pub verified: bool,
    /// The comparison of each step on its own inputs.
    pub steps: Vec<StepCheck>,
    /// Experts that some token took.
    pub experts_hit: usize,
    /// Bytes that must be read and written at least once: the weights of those experts, tokens and
    /// results.
    pub bytes: u64,
    /// Times; only from a GPU, and only if verified.
    pub times: Option<MoeTiming>,
    /// Counters of each launch; only from the emulator.
    pub emulated: Vec<Emulated>,
}

/// Measured times of a layer.
#[derive(Clone, Debug, Serialize)]
pub struct MoeTiming {
    /// Of the whole layer, over input sets in rotation.
    #[serde(flatten)]
    pub measured: SetTimes,
    /// Each step alone, on what the steps before it left.
    pub steps: Vec<StepTime>,
    /// Operations a second.
    pub flops_per_second: f64,
    /// Reading the bytes that must move.
    #[serde(flatten)]
    pub read: ReadCeiling,
    /// Operations a second of a large f16 product of cuBLAS, if a peer was asked for.
    pub tensor_ceiling: Option<f64>,
}

/// Times of one step.
#[derive(Clone, Debug, Serialize)]
pub struct StepTime {
    /// The step.
    pub step: &'static str,
    /// Seconds.
    pub times: Times,
}

/// Runs a layer of `shape` on random inputs, verifies each step, and on a GPU times it. Products are
/// gated; all experts are on the device. Activations in FP4 are bf16 before they are quantised.
///
/// # Errors
/// Bad sizes and [`DeviceError`](crate::device::DeviceError). A wrong result is not an error: the
/// report says so, and nothing is timed.
pub fn moe(kernels: &Kernels, shape: MixtureShape, bench: &GemmBench) -> Result<MoeReport> {
    match bench.format {
        Format::Nvfp4 => run::<Nvfp4>(kernels, shape, bench),
        Format::Mxfp4 => run::<Mxfp4>(kernels, shape, bench),
    }
}

/// The tokens' experts, each taken once, and their weights, whose sum is 1. Different `set`s take
/// different experts.
fn choices(shape: MixtureShape, set: usize, seed: u64) -> Choices {
    let MixtureShape { tokens, experts, top_k, .. } = shape;
    let mut rng = SplitMix64::new(seed ^ (set as u64) << 32);
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    let mut all: Vec<i32> = (0..experts as i32).collect();
    for _ in 0..tokens {
        // The first of a shuffled deck.
        for at in 0..top_k {
            let other = at + rng.below((experts - at) as u32) as usize;
            all.swap(at, other);
        }
        ids.extend(&all[..top_k]);
        let raw: Vec<f64> = (0..top_k).map(|_| 0.1 + rng.uniform()).collect();
        let sum: f64 = raw.iter().sum();
        weights.extend(raw.iter().map(|weight| (weight / sum) as f32));
    }
    Choices { ids, weights }
}

fn run<F: BlockFormat>(
    kernels: &Kernels,
    shape: MixtureShape,
    bench: &GemmBench,
) -> Result<MoeReport> {
    let device = kernels.device();
    let MixtureShape { tokens, experts, hidden, between, .. } = shape;
    let matrices = |count: usize| {
        let row = |columns: usize| columns / 2 + columns / F::BLOCK;
        (count * (2 * between * row(hidden) + hidden * row(between))) as u64
    };
    require_memory(&format!("running {shape}"), matrices(experts).saturating_mul(3))?;
    let Output::Floats(output) = bench.options.output else {
        return Err(Error::shape("result of moe", "f16, bf16 or f32", bench.options.output.name()));
    };
    let half = match bench.activations {
        ActivationInput::Fp4 => HalfType::Bf16,
        ActivationInput::Halves(half) => half,
    };
    let mut rng = SplitMix64::new(bench.seed);
    let of = bench.generator;
    let first = Experts::<F>::generate(of, experts, [between, hidden], true, &mut rng)?;
    let second = Experts::generate(of, experts, [hidden, between], false, &mut rng)?;
    let x = of.halves("x", Dims::new(1, tokens, hidden)?, half, &mut rng)?;
    let (activation, layout) = (bench.options.activation, ScaleLayout::Linear);
    let quantized = match bench.activations {
        ActivationInput::Halves(_) => None,
        ActivationInput::Fp4 => {
            let values = crate::floats::decode(half.float(), x.bytes());
            let amax = values.iter().fold(0f32, |amax, value| amax.max(value.abs()));
            let scale = TensorScale::Given(OUT_RECIPE.tensor_parameter(amax));
            Some(QuantizeOptions { recipe: Recipe::Nvfp4(OUT_RECIPE), scale, layout })
        }
    };
    let layer = Layer { shape, first, second, activation, tokens: x, quantized, output };
    let own = choices(shape, 0, bench.seed);
    let scales = match layer.quantized.map(|options| options.scale) {
        Some(TensorScale::Given(tokens)) => {
            let amax = layer.largest_between(&own)?;
            Some(TokenScales { tokens, between: OUT_RECIPE.tensor_parameter(amax as f32) })
        }
        _ => None,
    };
    let kind = match bench.activations {
        ActivationInput::Fp4 => ActivationKind::Blocks { format: bench.format, layout },
        ActivationInput::Halves(half) => ActivationKind::Halves(half),
    };
    let weights = [
        layer.first.repack(device, kind)?.upload(device)?,
        layer.second.repack(device, kind)?.upload(device)?,
    ];
    let options = MoeOptions { activation, output, rows: FloatType::F32, quantized: scales };
    let sizes = MoeShape { tokens, top_k: shape.top_k, experts, first: 0, count: experts };
    let (observed, reports) = kernels.observed();
    let planned = MoeLayer::new(&observed, sizes, &weights[0], &weights[1], half, &options)?;
    let mixture = Mixture { kernels, bench, layer: &layer, planned: &planned, weights: &weights };

    let set = mixture.set(own)?;
    mixture.launch(&set)?;
    let steps = mixture.check(&set)?;
    let verified = steps.iter().all(|step| step.verified);
    let hit = set.choices.ids.iter().collect::<BTreeSet<_>>().len();
    let ends = tokens * hidden * (half.float().bytes() + output.bytes()) as usize;
    let bytes = matrices(hit) + ends as u64;
    let times = if bench.times_on(device) && verified { Some(mixture.time(bytes)?) } else { None };
    let emulated = Emulated::each(device, &reports.take());
    Ok(MoeReport {
        op: "moe",
        shape: shape.to_string(),
        format: F::NAME,
        activations: bench.activations.to_string(),
        activation: activation.to_string(),
        device: device.choice().clone(),
        plans: planned.products().map(|product| product.plan().clone()),
        kernels: kernels.folder().display().to_string(),
        generator: bench.generator.to_string(),
        seed: bench.seed,
        output: output.name(),
        verified,
        steps,
        experts_hit: hit,
        bytes,
        times,
        emulated,
    })
}

/// A layer with its weights on a device.
struct Mixture<'a, F> {
    kernels: &'a Kernels,
    bench: &'a GemmBench,
    layer: &'a Layer<F>,
    planned: &'a MoeLayer,
    weights: &'a [DeviceWeights; 2],
}

/// Everything of a launch but the weights, on a device.
struct Set {
    choices: Choices,
    activations: DeviceBuffer,
    ids: DeviceBuffer,
    weights: DeviceBuffer,
    memory: MoeMemory,
    out: DeviceBuffer,
}

impl<F: BlockFormat> Mixture<'_, F> {
    fn set(&self, choices: Choices) -> Result<Set> {
        let device = self.kernels.device();
        let upload = |name: &str, bytes: &[u8]| DeviceBuffer::upload(device, name, bytes);
        let ids: Vec<u8> = choices.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let weights: Vec<u8> = choices.weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        Ok(Set {
            activations: upload("x", self.layer.tokens.bytes())?,
            ids: upload("ids", &ids)?,
            weights: upload("weights", &weights)?,
            memory: self.planned.memory()?,
            out: DeviceBuffer::poisoned(device, "out", self.planned.out_bytes())?,
            choices,
        })
    }

    fn step(&self, set: &Set, step: MoeStep) -> Result<()> {
        let inputs = MoeInputs {
            activations: &set.activations,
            ids: &set.ids,
            weights: &set.weights,
            shared: None,
        };
        let weights = self.weights.each_ref();
        let (memory, out) = (&set.memory, &set.out);
        self.planned.launch_step(step, &inputs, weights, memory, out, Default::default())
    }

    fn launch(&self, set: &Set) -> Result<()> {
        self.planned.steps().try_for_each(|step| self.step(set, step))
    }

    fn check(&self, set: &Set) -> Result<Vec<StepCheck>> {
        self.layer.check(&set.choices, self.planned, &set.memory, &set.out)
    }

    /// Times a layer that has been verified once, and verifies each input set again.
    fn time(&self, bytes: u64) -> Result<MoeTiming> {
        let (kernels, protocol) = (self.kernels, self.bench.protocol);
        let gpu = kernels.device().gpu("timing")?;
        let index = std::cell::Cell::new(0);
        let (sets, cold) = input_sets(kernels, bytes, || {
            index.set(index.get() + 1);
            self.set(choices(self.layer.shape, index.get(), self.bench.seed))
        })?;
        let wrong = |set: &Set| -> Result<_> {
            let checks = self.check(set)?;
            let bad = checks.iter().find(|check| !check.verified);
            Ok(bad.map(|check| format!(", step {}", check.step)))
        };
        let right = |_: &Set| Ok(None);
        let launch = |set: &Set| self.launch(set);
        // SAFETY: operands and workspaces are the sets' and this layer's, and `kernels` has the
        // modules.
        let measured = unsafe { SetTimes::measure(gpu, (&sets, cold), protocol, launch, wrong)? };
        let mut steps = Vec::new();
        for step in self.planned.steps() {
            let launch = |set: &Set| self.step(set, step);
            // SAFETY: as above.
            let times = unsafe { SetTimes::measure(gpu, (&sets, cold), protocol, launch, right)? };
            steps.push(StepTime { step: step.name(), times: times.times });
        }
        drop(sets);
        let MixtureShape { tokens, top_k, hidden, between, .. } = self.layer.shape;
        let flops = 6.0 * (tokens * top_k) as f64 * hidden as f64 * between as f64;
        let read = ReadCeiling::measure(kernels, bytes, protocol, &measured.times)?;
        let tensor_ceiling = if protocol.cublas { tensor_rate(gpu, protocol)? } else { None };
        let flops_per_second = flops / measured.times.median;
        Ok(MoeTiming { measured, steps, flops_per_second, read, tensor_ceiling })
    }
}

impl fmt::Display for MoeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, format, activations, output, activation, .. } = self;
        writeln!(
            f,
            "{shape}, {format} weights, {activations} activations, {activation}, result {output}"
        )?;
        writeln!(f, "  device    {}", self.device)?;
        for (name, plan) in ["first", "second"].into_iter().zip(&self.plans) {
            writeln!(f, "  {name:<9} {}", plan.to_string().replace('\n', "\n            "))?;
        }
        writeln!(f, "  experts   {} of them taken", self.experts_hit)?;
        for StepCheck { step, verified, verification } in &self.steps {
            let verdict = match (verified, verification) {
                (_, Some(verification)) => verification.summary(),
                (true, None) => "verified  all bytes".into(),
                (false, None) => "WRONG     some bytes".into(),
            };
            writeln!(f, "  {verdict} ({step})")?;
        }
        if let Some(times) = &self.times {
            write!(f, "{times}")?;
        }
        self.emulated.iter().try_for_each(|emulated| write!(f, "{emulated}"))
    }
}

impl fmt::Display for MoeTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.flops_per_second * 1e-12;
        self.measured.write(f, format_args!("{rate:.1} TFLOP/s"))?;
        for StepTime { step, times } in &self.steps {
            writeln!(f, "  step      {:.3} us {step}", microseconds(times.median))?;
        }
        self.read.write(f, "memory")?;
        match self.tensor_ceiling {
            Some(flops) => writeln!(
                f,
                "  tensor    {:.1} TFLOP/s in a large f16 product; reached {:.1} %",
                flops * 1e-12,
                100.0 * self.flops_per_second / flops
            ),
            None => Ok(()),
        }
    }
}
