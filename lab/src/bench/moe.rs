//! One verified layer of a mixture of experts, with times from a GPU or counters from the emulator.

use std::collections::BTreeSet;
use std::fmt;

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, HalfType, Mxfp4, Nvfp4};
use serde::Serialize;

use super::experts::Experts;
use super::gemm::tensor_rate;
use super::timing::{ReadCeiling, SetTimes, input_sets, microseconds};
use super::{ActivationInput, GemmBench, Head, HostCost};
use crate::moe::{HostBiases, MoeOperands, MoeRun, StepCheck};
use crate::rng::SplitMix64;
use crate::shape::MixtureShape;
use nvfp4::cuda::Times;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result, require_memory};
use nvfp4::gemm::{GemmPlan, Output, format_of};
use nvfp4::moe::{MoeOptions, MoeShape, TokenFormat};
use nvfp4::tensor::Dims;

/// A verified run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct MoeReport {
    /// The head of the report. `bytes` are the weights of the experts that some token took, tokens
    /// and results.
    #[serde(flatten)]
    pub head: Head,
    /// The plans of the products.
    pub plans: [GemmPlan; 2],
    /// The comparison of each step on its own inputs.
    pub steps: Vec<StepCheck>,
    /// Experts that some token took.
    pub experts_hit: usize,
    /// Times; only from a GPU, and only if verified.
    pub times: Option<MoeTiming>,
}

/// Measured times of a layer.
#[derive(Clone, Debug, Serialize)]
pub struct MoeTiming {
    /// Times of the whole layer, over input sets in rotation.
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
/// gated; all experts are on the device. Activations in FP4 are bf16 before they are quantised, and those in e4m3 have a
/// 16-bit type.
///
/// # Errors
/// Bad sizes and [`DeviceError`](nvfp4::device::DeviceError). A wrong result is not an error: the
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

/// Choices of each expert.
pub(super) fn token_counts(shape: MixtureShape, seed: u64) -> Vec<usize> {
    let mut counts = vec![0; shape.experts];
    choices(shape, 0, seed).ids.iter().for_each(|&id| counts[id as usize] += 1);
    counts
}

/// The experts of each token, in one launch.
struct Choices {
    /// `[T, K]`.
    ids: Vec<i32>,
    /// `[T, K]`.
    weights: Vec<f32>,
}

impl Choices {
    /// The same operands with these choices.
    fn of<'a, F: Clone>(&'a self, operands: &MoeOperands<'a, F>) -> MoeOperands<'a, F> {
        let (ids, weights) = (self.ids.as_slice(), self.weights.as_slice());
        MoeOperands { ids, weights, ..operands.clone() }
    }
}

fn run<F: BlockFormat>(
    kernels: &Kernels,
    shape: MixtureShape,
    bench: &GemmBench,
) -> Result<MoeReport> {
    let device = kernels.device();
    let MixtureShape { tokens, experts, top_k, hidden, between } = shape;
    let matrices = |count: usize| {
        let row = |columns: usize| columns / 2 + columns / F::BLOCK;
        (count * (2 * between * row(hidden) + hidden * row(between))) as u64
    };
    require_memory(&format!("running {shape}"), matrices(experts).saturating_mul(3))?;
    let Output::Floats(output) = bench.options.output else {
        return Err(Error::shape("result of moe", "f16, bf16 or f32", bench.options.output.name()));
    };
    if bench.decoded {
        let what = "activations of a mixture of experts";
        return Err(Error::shape(what, "the generator's own", "decoded ones"));
    }
    let half = match bench.activations {
        ActivationInput::Fp4 | ActivationInput::Fp4Rows => HalfType::Bf16,
        ActivationInput::Halves(half) => half,
        ActivationInput::Fp8(Some(half)) => half,
        ActivationInput::Fp8(None) => {
            let required = "16 bits, which the layer quantises, for a mixture of experts";
            return Err(Error::shape("activations", required, bench.activations));
        }
    };
    let mut rng = SplitMix64::new(bench.seed);
    let of = bench.generator;
    let first = Experts::<F>::generate(of, experts, [between, hidden], true, &mut rng)?;
    let second = Experts::<F>::generate(of, experts, [hidden, between], false, &mut rng)?;
    let x = of.halves("x", Dims::new(1, tokens, hidden)?, half, &mut rng)?;
    let own = choices(shape, 0, bench.seed);
    let mut operands = MoeOperands {
        shape: MoeShape { tokens, top_k, experts, first: 0, count: experts },
        tokens: &x,
        ids: &own.ids,
        weights: &own.weights,
        first: first.weights()?,
        second: second.weights()?,
        factors: Some(first.factors()),
        biases: HostBiases::default(),
        shared: None,
        options: MoeOptions::new()
            .activation(bench.options.activation)
            .output(output)
            .adding(bench.options.adding)
            .batch_invariant(bench.options.overrides.batch_invariant),
    };
    operands.options.quantized = match bench.activations {
        ActivationInput::Fp4 => Some(TokenFormat::Blocks(operands.token_scales()?)),
        ActivationInput::Fp4Rows => Some(TokenFormat::ScaledRows),
        ActivationInput::Halves(_) => None,
        ActivationInput::Fp8(_) => Some(TokenFormat::Fp8),
    };
    let kind = operands.options.activations(half, format_of::<F>());
    let weights = [first.repack(device, kind)?, second.repack(device, kind)?];
    let (observed, reports) = kernels.observed();
    let set = MoeRun::new(&observed, &operands, weights.each_ref())?;
    // They take as much memory as on the device.
    let weights = bench.protocol.host.then_some(weights);
    set.launch()?;
    let reports = reports.take();
    let steps = set.check(&operands)?;
    let verified = steps.iter().all(|step| step.verified);
    let hit = own.ids.iter().collect::<BTreeSet<_>>().len();
    let ends = tokens * hidden * (half.float().bytes() + output.bytes()) as usize;
    let bytes = matrices(hit) + ends as u64;
    let times = match bench.times_on(device) && verified {
        true => Some(time(kernels, shape, bench, &operands, &set, bytes)?),
        false => None,
    };
    let what = ("moe", shape.to_string(), output.name());
    let mut head = bench.head::<F>(kernels, what, &reports, (verified, bytes));
    if let Some(weights) = &weights {
        let make = |kernels: &Kernels| MoeRun::new(kernels, &operands, weights.each_ref());
        head.host = HostCost::measure(kernels, bench.protocol, verified, make, MoeRun::launch)?;
    }
    Ok(MoeReport {
        head,
        plans: set.layer().products().map(|product| product.plan().clone()),
        steps,
        experts_hit: hit,
        times,
    })
}

/// Times a layer that has been verified once, each input set with other choices, and verifies each.
fn time<F: BlockFormat>(
    kernels: &Kernels,
    shape: MixtureShape,
    bench: &GemmBench,
    operands: &MoeOperands<'_, F>,
    first: &MoeRun,
    bytes: u64,
) -> Result<MoeTiming> {
    let protocol = bench.protocol;
    let gpu = kernels.device().gpu("timing")?;
    let index = std::cell::Cell::new(0);
    let (sets, cold) = input_sets(kernels, bytes, || {
        index.set(index.get() + 1);
        let choices = choices(shape, index.get(), bench.seed);
        let run = first.beside(&choices.of(operands))?;
        Ok((choices, run))
    })?;
    let wrong = |(choices, run): &(Choices, MoeRun)| -> Result<_> {
        let checks = run.check(&choices.of(operands))?;
        let bad = checks.iter().find(|check| !check.verified);
        Ok(bad.map(|check| format!(", step {}", check.step)))
    };
    let right = |_: &(Choices, MoeRun)| Ok(None);
    let launch = |(_, run): &(Choices, MoeRun)| run.launch();
    // SAFETY: operands and workspaces are the sets' and this layer's, and `kernels` has the modules.
    let measured = unsafe { SetTimes::measure(gpu, (&sets, cold), protocol, launch, wrong)? };
    let mut steps = Vec::new();
    for step in first.layer().steps() {
        let launch = |(_, run): &(Choices, MoeRun)| run.launch_step(step);
        // SAFETY: as above.
        let times = unsafe { SetTimes::measure(gpu, (&sets, cold), protocol, launch, right)? };
        steps.push(StepTime { step: step.name(), times: times.times });
    }
    drop(sets);
    let read = ReadCeiling::measure(kernels, bytes, protocol, &measured.times)?;
    let tensor_ceiling = if protocol.cublas { tensor_rate(gpu, protocol)? } else { None };
    let flops_per_second = shape.flops() / measured.times.median;
    Ok(MoeTiming { measured, steps, flops_per_second, read, tensor_ceiling })
}

impl fmt::Display for MoeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        for (name, plan) in ["first", "second"].into_iter().zip(&self.plans) {
            writeln!(f, "  {name:<9} {}", plan.to_string().replace('\n', "\n            "))?;
        }
        writeln!(f, "  experts   {} of them taken", self.experts_hit)?;
        self.steps.iter().try_for_each(|check| writeln!(f, "  {check}"))?;
        if let Some(times) = &self.times {
            write!(f, "{times}")?;
        }
        if let Some(host) = &self.head.host {
            write!(f, "{host}")?;
        }
        self.head.emulated.iter().try_for_each(|emulated| write!(f, "{emulated}"))
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
