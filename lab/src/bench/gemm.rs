//! One verified GEMM, with times from a GPU or counters from the emulator.

use std::fmt;

use fp4_formats::ceiling;
use fp4_formats::quantize::Format;
use fp4_formats::{
    BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, Operand, ScaleLayout, TensorFamily,
};
use ptx_emu_core::LaunchReport;
use serde::Serialize;

use super::gpu::PeerProducts;
use super::timing::{Peers, ReadCeiling, SetTimes, input_sets, microseconds};
use super::{ActivationInput, Emulated, HostCost, Protocol, gpu};
use crate::gemm::{Verify, reference_for};
use crate::generate::Generator;
use crate::oracle::{Reference, Verification, decibels};
use crate::rng::SplitMix64;
use crate::shape::GemmShape;
use nvfp4::cuda::{CublasShape, CudaDevice, Times};
use nvfp4::device::{Backend, Choice, Device, Kernels};
use nvfp4::error::{Error, Result, require_memory};
use nvfp4::gemm::{
    Activation, Activations, Candidate, Fp8Matrix, GatedWeights, GemmActivations, GemmOptions,
    GemmOverrides, GemmPlan, GemmResult, GemmRun, HalfMatrix, Output, Repacked, RowScaled, Weights,
};
use nvfp4::observe::Reports;
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize_matrix, recipe_by_name};
use nvfp4::tensor::{BlockScaled, Dims};

/// Rows and columns of the operands of the product that shows the tensor cores' ceiling.
const CEILING_SIZE: usize = 8192;
/// Rounds of products that show the ceiling of `mma.sync`: about a tenth of a millisecond.
const MMA_ROUNDS: u64 = 512;

/// The options of a run besides the shape.
#[derive(Clone, Debug)]
pub struct GemmBench {
    /// Format of the weights.
    pub format: Format,
    /// The type of the activations.
    pub activations: ActivationInput,
    /// The generator of the inputs.
    pub generator: Generator,
    /// Whether 16-bit activations have the values that block-scaled ones of the same seed decode to, and not the
    /// generator's own, which may have fewer digits and then take less power to multiply.
    pub decoded: bool,
    /// Their seed.
    pub seed: u64,
    /// Layout of the scales of block-scaled activations.
    pub layout: ScaleLayout,
    /// alpha, output type, activation, overrides. With options for `up`, products are gated, and
    /// their weights one tensor with the gate's rows first.
    pub options: GemmOptions,
    /// Instead of the output type: NVFP4 with scales in this layout, the tensor's scale from the
    /// oracle's largest magnitude.
    pub quantized: Option<ScaleLayout>,
    /// The protocol of timing; only on a GPU.
    pub protocol: Protocol,
    /// Whether to print the plan's candidates.
    pub explain: bool,
    /// The number of the plan's candidates to time besides.
    pub sweep: usize,
}

impl GemmBench {
    /// Whether two matrices of weights make the result.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.options.up.is_some()
    }

    /// Whether products are in e4m3.
    pub(super) fn in_e4m3(&self) -> bool {
        matches!(self.activations, ActivationInput::Fp8(_))
    }

    /// Rows of the weights for a result of `n` columns.
    pub(super) fn weight_rows(&self, n: usize) -> usize {
        if self.is_gated() { 2 * n } else { n }
    }

    /// Checks that decoded values are asked for only where there are any.
    ///
    /// # Errors
    /// [`Error::Shape`].
    fn check_decoded(&self) -> Result<()> {
        match (self.activations, self.decoded) {
            (ActivationInput::Halves(_), _) | (_, false) => Ok(()),
            (
                activations @ (ActivationInput::Fp4
                | ActivationInput::Fp4Rows
                | ActivationInput::Fp8(_)),
                true,
            ) => Err(Error::shape("activations with decoded values", "f16 or bf16", activations)),
        }
    }

    /// Random activations.
    pub(super) fn tokens<F: BlockFormat>(
        &self,
        dims: Dims,
        rng: &mut SplitMix64,
    ) -> Result<GemmActivations<F>> {
        self.check_decoded()?;
        Ok(match self.activations {
            ActivationInput::Fp4 => {
                GemmActivations::Blocks(self.generator.blocks("a", dims, self.layout, rng)?)
            }
            ActivationInput::Fp4Rows => {
                let values = self.generator.halves("a", dims, HalfType::Bf16, rng)?;
                let values = nvfp4::floats::decode(FloatType::Bf16, values.bytes());
                let recipe = recipe_by_name(Format::Nvfp4, "torchao")?;
                let options =
                    QuantizeOptions::new(recipe).scale(TensorScale::PerRow).layout(self.layout);
                let matrix = quantize_matrix("a", &values, dims, &options)?;
                GemmActivations::ScaledRows(RowScaled::of_matrix("a", matrix, dims)?)
            }
            ActivationInput::Halves(operand) if self.decoded => {
                let blocks = self.generator.blocks::<F>("a", dims, self.layout, rng)?;
                GemmActivations::Halves(HalfMatrix::round(
                    "a",
                    dims,
                    operand,
                    &blocks.dequantize()?,
                )?)
            }
            ActivationInput::Halves(operand) => {
                GemmActivations::Halves(self.generator.halves("a", dims, operand, rng)?)
            }
            ActivationInput::Fp8(None) => {
                let values = self.generator.halves("a", dims, HalfType::Bf16, rng)?;
                GemmActivations::Fp8(Fp8Matrix::quantize(&values)?)
            }
            ActivationInput::Fp8(Some(input)) => {
                GemmActivations::ToFp8(self.generator.halves("a", dims, input, rng)?)
            }
        })
    }

    /// Bytes that a product must read and write at least once: activations with K = `k`, `matrices`
    /// matrices of weights, and a result with the dimensions `result`.
    pub(super) fn bytes<F: BlockFormat>(
        &self,
        result: Dims,
        matrices: usize,
        k: usize,
    ) -> Result<u64> {
        let block_row = k / 2 + k / F::BLOCK;
        let activation_row = match self.activations {
            ActivationInput::Fp4 => block_row,
            ActivationInput::Fp4Rows => block_row + size_of::<f32>(),
            ActivationInput::Halves(_) | ActivationInput::Fp8(Some(_)) => 2 * k,
            ActivationInput::Fp8(None) => k + size_of::<f32>(),
        };
        let output = match self.quantized {
            Some(layout) => Output::Nvfp4 { scale: 1.0, layout },
            None => self.options.output,
        };
        let [elements, scales] = output.bytes(result)?;
        let tokens = result.batch() * result.rows();
        let rows = matrices * self.weight_rows(result.cols());
        Ok((tokens * activation_row + rows * block_row + elements + scales) as u64)
    }

    /// The plan's candidates as `time` times them with the options that it is given.
    ///
    /// # Errors
    /// [`Error::Wrong`] for a wrong result, and a device that is not usable any more.
    pub(super) fn swept(
        &self,
        device: &Device,
        plan: &GemmPlan,
        time: impl Fn(&GemmOptions) -> Result<SetTimes>,
    ) -> Result<Vec<Swept>> {
        let candidates = plan.candidates.iter().take(self.sweep);
        let swept = candidates.map(|candidate| {
            let overrides = GemmOverrides::new()
                .kernel(candidate.kernel.to_string())
                .split(candidate.split)
                .batch_invariant(self.options.overrides.batch_invariant);
            let (times, error) = match time(&self.options.clone().overrides(overrides)) {
                Ok(measured) => (Some(measured.times), None),
                Err(error @ Error::Wrong { .. }) => return Err(error),
                Err(error) => {
                    // A launch that was refused leaves the device usable; a kernel that went
                    // wrong does not, and nothing timed after it would be worth anything.
                    device.gpu("timing")?.synchronize()?;
                    (None, Some(error.to_string()))
                }
            };
            Ok(Swept { candidate: candidate.clone(), times, error })
        });
        swept.collect()
    }

    /// Whether a verified run is timed on this device.
    pub(super) fn times_on(&self, device: &Device) -> bool {
        matches!(device.backend(), Backend::Cuda(_)) && self.protocol.replays > 0
    }

    /// Makes the head of a report; `what` are the operation, the shape and the result's type.
    pub(super) fn head<F: BlockFormat>(
        &self,
        kernels: &Kernels,
        (op, shape, output): (&'static str, String, &'static str),
        reports: &[LaunchReport],
        (verified, bytes): (bool, u64),
    ) -> Head {
        let device = kernels.device();
        Head {
            op,
            shape,
            format: F::NAME,
            activations: match (self.activations, self.decoded) {
                (ActivationInput::Halves(_), true) => format!("{} (decoded)", self.activations),
                (activations, _) => activations.to_string(),
            },
            activation: self.options.activation.to_string(),
            device: device.choice().clone(),
            kernels: kernels.folder().display().to_string(),
            generator: self.generator.to_string(),
            seed: self.seed,
            output,
            verified,
            bytes,
            host: None,
            emulated: Emulated::each(device, reports),
        }
    }

    /// Makes the report of a run, without times.
    pub(super) fn report<F: BlockFormat>(
        &self,
        kernels: &Kernels,
        shape: String,
        (result, reports): (GemmResult, &Reports),
        reference: &Reference,
        bytes: u64,
    ) -> GemmReport {
        let verification = result.verify(reference);
        let what = (result.plan.op, shape, result.output.name());
        let verified = verification.passed();
        GemmReport {
            head: self.head::<F>(kernels, what, &reports.take(), (verified, bytes)),
            plan: result.plan,
            max_error: verification.max_abs_error,
            verification,
            folded: None,
            times: None,
            sweep: Vec::new(),
            explain: self.explain,
        }
    }
}

/// Measured times of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GemmTiming {
    /// Over input sets in rotation, decoding of activations included.
    #[serde(flatten)]
    pub measured: SetTimes,
    /// Operations a second.
    pub flops_per_second: f64,
    /// Reading the bytes that must move.
    #[serde(flatten)]
    pub read: ReadCeiling,
    /// Operations a second of a large f16 product of cuBLAS.
    pub tensor_ceiling: Option<f64>,
    /// Operations a second of `mma.sync` with f16 operands in registers, if the product's kernels use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mma_ceiling: Option<f64>,
    /// The peers that it was compared with.
    #[serde(flatten)]
    pub peers: Peers,
}

/// A candidate's measured time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swept {
    /// The candidate.
    pub candidate: Candidate,
    /// Seconds a product, decoding of activations included.
    pub times: Option<Times>,
    /// The reason why there are none: the machine refused the launch.
    pub error: Option<String>,
}

/// The head of reports on products and on mixtures of experts.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// The operation.
    pub op: &'static str,
    /// The shape as a string.
    pub shape: String,
    /// Format of the weights.
    pub format: &'static str,
    /// The type of the activations.
    pub activations: String,
    /// The activation function of the values, or of the gate's.
    pub activation: String,
    /// The device, and why it was chosen.
    pub device: Choice,
    /// The folder of kernels.
    pub kernels: String,
    /// The generator of the inputs.
    pub generator: String,
    /// Their seed.
    pub seed: u64,
    /// Element type of the result.
    pub output: &'static str,
    /// Whether every result is as it must be.
    pub verified: bool,
    /// Bytes that must move at least once.
    pub bytes: u64,
    /// The cost of a launch on the host, if it was asked for.
    pub host: Option<HostCost>,
    /// Counters of each launch; only from the emulator.
    pub emulated: Vec<Emulated>,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, format, activations, output, activation, device, .. } = self;
        write!(f, "{shape}, {format} weights, {activations} activations")?;
        if *activation != Activation::default().to_string() {
            write!(f, ", {activation}")?;
        }
        writeln!(f, ", result {output}\n  device    {device}")
    }
}

/// The effect of folding weights to e4m3. Results are verified against the folded ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FoldedWeights {
    /// Weights that changed.
    pub changed: u64,
    /// All weights.
    pub weights: u64,
    /// The ratio of the weights' squares to those of the changes, in dB; none where nothing changed.
    pub sqnr_db: Option<f64>,
}

impl FoldedWeights {
    /// Returns the effect for weights for products in e4m3; none for others.
    fn of(weights: &Repacked) -> Option<Self> {
        let (form, lost) = (weights.form(), weights.lost());
        let in_bytes = form.activations == Some(Operand::E4m3);
        in_bytes.then(|| Self {
            changed: lost.changed,
            weights: weights.batch() as u64 * u64::from(form.rows) * u64::from(form.columns),
            sqnr_db: (lost.changed > 0).then(|| decibels(lost.signal, lost.noise)),
        })
    }
}

/// A verified run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct GemmReport {
    /// The head of the report.
    #[serde(flatten)]
    pub head: Head,
    /// The plan.
    pub plan: GemmPlan,
    /// Largest absolute error against the f64 oracle.
    pub max_error: f64,
    /// The whole comparison.
    pub verification: Verification,
    /// The effect of folding a dense or gated product's weights to e4m3.
    pub folded: Option<FoldedWeights>,
    /// Times; only from a GPU, and only if verified.
    pub times: Option<GemmTiming>,
    /// Times of the plan's candidates, where they were asked for.
    pub sweep: Vec<Swept>,
    #[serde(skip)]
    explain: bool,
}

/// Runs a GEMM of `shape`, gated or not, on random inputs, verifies it, and on a GPU times it.
///
/// # Errors
/// Bad sizes and [`DeviceError`](nvfp4::device::DeviceError). A wrong result is not an error: the
/// report says so, and nothing is timed.
pub fn gemm(kernels: &Kernels, shape: GemmShape, bench: &GemmBench) -> Result<GemmReport> {
    match bench.format {
        Format::Nvfp4 => run::<Nvfp4>(kernels, shape, bench),
        Format::Mxfp4 => run::<Mxfp4>(kernels, shape, bench),
    }
}

fn run<F: BlockFormat>(
    kernels: &Kernels,
    shape: GemmShape,
    bench: &GemmBench,
) -> Result<GemmReport> {
    let device = kernels.device();
    let bytes = bench.bytes::<F>(Dims::new(shape.l, shape.m, shape.n)?, shape.l, shape.k)?;
    // Operands, their repacked and decoded forms, and on the emulator its own memory.
    let name = shape.text(bench.is_gated());
    require_memory(&format!("running {name}"), bytes.saturating_mul(6))?;
    let mut rng = SplitMix64::new(bench.seed);
    let GemmShape { m, k, l, .. } = shape;
    let rows = Dims::new(l, bench.weight_rows(shape.n), k)?;
    let tensor: BlockScaled<F> =
        bench.generator.blocks("b", rows, ScaleLayout::Linear, &mut rng)?;
    let b: Weights<'_, F> =
        if bench.is_gated() { GatedWeights::stacked(&tensor)?.into() } else { (&tensor).into() };
    let dims = Dims::new(l, m, k)?;
    let a = bench.tokens::<F>(dims, &mut rng)?;
    let a = a.activations();
    let weights = Repacked::rounded(device, b, a.kind())?;
    let reference = reference_for(device.choice().arch, &a, b, &bench.options)?;
    let mut bench = bench.clone();
    if let Some(layout) = bench.quantized {
        bench.options.output = Output::nvfp4_of(reference.largest(), layout);
    }
    let bench = &bench;
    let (observed, reports) = kernels.observed();
    let result = GemmRun::new(&observed, &a, &weights, &bench.options)?.run()?;
    let (mut times, mut sweep) = (None, Vec::new());
    if bench.times_on(device) && result.verify(&reference).passed() {
        times = Some(time(kernels, shape, &a, &tensor, &weights, bench, &reference)?);
        let time = |options: &GemmOptions| {
            time_sets(kernels, &a, &weights, options, bench, &reference, bytes)
        };
        sweep = bench.swept(device, &result.plan, time)?;
    }
    let mut report = bench.report::<F>(kernels, name, (result, &reports), &reference, bytes);
    (report.times, report.sweep) = (times, sweep);
    report.folded = FoldedWeights::of(&weights);
    let make = |kernels: &Kernels| GemmRun::new(kernels, &a, &weights, &bench.options);
    report.head.host =
        HostCost::measure(kernels, bench.protocol, report.head.verified, make, GemmRun::launch)?;
    Ok(report)
}

/// Times a GEMM over as many input sets as make the caches cold, and verifies each of them.
fn time_sets<F: BlockFormat>(
    kernels: &Kernels,
    a: &Activations<'_, F>,
    weights: &Repacked,
    options: &GemmOptions,
    bench: &GemmBench,
    reference: &Reference,
    bytes: u64,
) -> Result<SetTimes> {
    let gpu = kernels.device().gpu("timing")?;
    let (sets, cold) = input_sets(kernels, bytes, || GemmRun::new(kernels, a, weights, options))?;
    // Once outside the graph: a refused launch would end the recording with another error.
    if let Some(set) = sets.first() {
        set.launch()?;
    }
    let wrong = |set: &GemmRun| -> Result<_> {
        let result = set.result()?;
        let check = result.verify(reference);
        Ok((!check.passed()).then(|| format!(" by {}", result.plan.kernel)))
    };
    let launch = |set: &GemmRun| set.launch();
    // SAFETY: operands and workspaces are the sets', and `kernels` has the module.
    unsafe { SetTimes::measure(gpu, (&sets, cold), bench.protocol, launch, wrong) }
}

/// Times a GEMM that has been verified once, its ceilings and its peer.
fn time<F: BlockFormat>(
    kernels: &Kernels,
    shape: GemmShape,
    a: &Activations<'_, F>,
    b: &BlockScaled<F>,
    weights: &Repacked,
    bench: &GemmBench,
    reference: &Reference,
) -> Result<GemmTiming> {
    let device = kernels.device();
    let gpu = device.gpu("timing")?;
    let (protocol, l2) = (bench.protocol, device.properties().l2_bytes);
    let bytes = bench.bytes::<F>(Dims::new(shape.l, shape.m, shape.n)?, shape.l, shape.k)?;
    let measured = time_sets(kernels, a, weights, &bench.options, bench, reference, bytes)?;
    let median = measured.times.median;
    let read = ReadCeiling::measure(kernels, bytes, protocol, &measured.times)?;
    let (mut peers, mut tensor_ceiling) = (Peers::default(), None);
    if protocol.cublas {
        let GemmShape { m, k, l, .. } = shape;
        // A gated product is compared with the sums of both halves, without the epilogue.
        let product = CublasShape { m: bench.weight_rows(shape.n), n: m, k, batch: l };
        let matrix = gpu::halves(b)?;
        let tokens = peer_tokens(a)?;
        let products = PeerProducts { shapes: &[product], a: &matrix, b: &tokens };
        let how = (protocol, median, l2);
        peers = gpu::peer_or_reason(gpu::time_cublas(gpu, &products, how))?;
        if bench.in_e4m3() {
            gpu::add_e4m3(&mut peers, gpu, &[product], how)?;
        }
        tensor_ceiling = if peers.cublas.is_some() { tensor_rate(gpu, protocol)? } else { None };
    }
    let sums = GemmShape { n: bench.weight_rows(shape.n), ..shape };
    let flops_per_second = sums.flops() / median;
    let mma_ceiling = mma_rate(kernels, protocol)?;
    Ok(GemmTiming { measured, flops_per_second, read, tensor_ceiling, mma_ceiling, peers })
}

/// The activations in f16, or of a type that is as wide, for the peer.
pub(super) fn peer_tokens<F: BlockFormat>(a: &Activations<'_, F>) -> Result<Vec<u8>> {
    Ok(match a {
        Activations::Blocks(blocks) => gpu::halves(blocks)?,
        Activations::ScaledRows(scaled) => gpu::halves(scaled.blocks())?,
        Activations::Halves(halves) | Activations::ToFp8(halves) => halves.bytes().to_vec(),
        Activations::Fp8(bytes) => gpu::noise(bytes.dims().elements()),
    })
}

/// Operations a second of a large f16 product of cuBLAS, where it can be timed.
pub(super) fn tensor_rate(gpu: &CudaDevice, protocol: Protocol) -> Result<Option<f64>> {
    let side = CEILING_SIZE;
    let product = CublasShape { m: side, n: side, k: side, batch: 1 };
    let operand = gpu::noise(side * side);
    let products = PeerProducts { shapes: &[product], a: &operand, b: &operand };
    let large = gpu::time_cublas(gpu, &products, (protocol, 1.0, 0));
    let flops = 2.0 * (side as f64).powi(3);
    Ok(gpu::peer_or_reason(large)?.cublas.map(|peer| flops / peer.times.median))
}

/// Operations a second of `mma.sync` with f16 operands in registers, where kernels multiply by it and the protocol asks
/// for ceilings.
pub(super) fn mma_rate(kernels: &Kernels, protocol: Protocol) -> Result<Option<f64>> {
    let device = kernels.device();
    match device.choice().arch.tensor() {
        TensorFamily::MmaSync if protocol.ceiling => {}
        TensorFamily::MmaSync
        | TensorFamily::MmaSyncScaled
        | TensorFamily::Wgmma
        | TensorFamily::Tcgen05 => return Ok(None),
    }
    let module = kernels.cuda("timing", ceiling::PRODUCTS_NAME)?;
    let (work, Protocol { warmup, replays, .. }) = (ceiling::cta_operations(MMA_ROUNDS), protocol);
    let kernel = (ceiling::PRODUCTS_NAME, ceiling::THREADS);
    // SAFETY: `ceiling_products` writes at most four bytes.
    let rate = unsafe {
        let gpu = device.gpu("timing")?;
        gpu.time_products(&module, kernel, (MMA_ROUNDS, work), warmup, replays)?
    };
    Ok(Some(rate.flops_per_second))
}

impl fmt::Display for GemmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        if self.explain {
            writeln!(
                f,
                "  table     {}",
                self.plan.explain().trim_end().replace('\n', "\n            ")
            )?;
        }
        writeln!(f, "  {}", self.verification.summary())?;
        if let Some(FoldedWeights { changed, weights, sqnr_db }) = self.folded {
            let ratio = sqnr_db
                .map_or(String::new(), |ratio| format!("; signal over what changed {ratio:.2} dB"));
            writeln!(f, "  folded    {changed} of {weights} weights changed{ratio}")?;
        }
        if let Some(times) = &self.times {
            write!(f, "{times}")?;
        }
        if let Some(host) = &self.head.host {
            write!(f, "{host}")?;
        }
        for Swept { candidate, times, error } in &self.sweep {
            match (times, error) {
                (Some(Times { median, p10, p90, .. }), _) => {
                    let [median, p10, p90] = [*median, *p10, *p90].map(microseconds);
                    writeln!(
                        f,
                        "  swept     {median:>8.3} us (p10 {p10:.3}, p90 {p90:.3}) {candidate}"
                    )?;
                }
                (None, error) => {
                    let error = error.as_deref().unwrap_or("not timed");
                    writeln!(f, "  swept     refused: {error} {candidate}")?;
                }
            }
        }
        self.head.emulated.iter().try_for_each(|emulated| write!(f, "{emulated}"))
    }
}

impl fmt::Display for GemmTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.flops_per_second;
        self.measured.write(f, format_args!("{:.1} TFLOP/s", rate * 1e-12))?;
        self.read.write(f, "memory")?;
        if let Some(flops) = self.tensor_ceiling {
            writeln!(
                f,
                "  tensor    {:.1} TFLOP/s in a large f16 product; reached {:.1} %",
                flops * 1e-12,
                100.0 * rate / flops
            )?;
        }
        if let Some(flops) = self.mma_ceiling {
            writeln!(
                f,
                "  mma.sync  {:.1} TFLOP/s with operands in registers; reached {:.1} %",
                flops * 1e-12,
                100.0 * rate / flops
            )?;
        }
        self.peers.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decoded values are those of the FP4 activations, without rounding, and only 16-bit ones can be.
    #[test]
    fn decoded_activations_have_the_values_of_blocks() {
        fn check<F: BlockFormat>(generator: Generator) {
            let dims = Dims::new(1, 5, 64).expect("few");
            let bench = |activations, decoded| GemmBench {
                format: nvfp4::gemm::format_of::<F>(),
                activations,
                generator,
                decoded,
                seed: 1,
                layout: ScaleLayout::Linear,
                options: GemmOptions::default(),
                quantized: None,
                protocol: Protocol::default(),
                explain: false,
                sweep: 0,
            };
            let tokens = |activations, decoded| {
                bench(activations, decoded).tokens::<F>(dims, &mut SplitMix64::new(7))
            };
            let Ok(GemmActivations::Blocks(blocks)) = tokens(ActivationInput::Fp4, false) else {
                panic!("blocks")
            };
            let values = blocks.dequantize().expect("few");
            for half in [HalfType::F16, HalfType::Bf16] {
                let Ok(GemmActivations::Halves(halves)) =
                    tokens(ActivationInput::Halves(half), true)
                else {
                    panic!("halves")
                };
                let got = nvfp4::floats::decode(half.float(), halves.bytes());
                assert!(got == values, "{generator} {half:?}");
            }
            assert!(tokens(ActivationInput::Fp4, true).is_err());
            assert!(tokens(ActivationInput::Fp8(None), true).is_err());
        }
        for generator in [Generator::Contest, Generator::ContestGemm, Generator::ContestDual] {
            check::<Nvfp4>(generator);
            check::<Mxfp4>(generator);
        }
    }
}
