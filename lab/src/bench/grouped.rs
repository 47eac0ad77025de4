//! One verified grouped product, with times from a GPU or counters from the emulator.

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4};

use super::experts::Experts;
use super::gemm::{mma_rate, tensor_rate};
use super::gpu::PeerProducts;
use super::timing::{Peers, ReadCeiling, SetTimes, input_sets};
use super::{GemmBench, GemmReport, GemmTiming, HostCost, gpu};
use crate::gemm::{Verify, reference_grouped_for};
use crate::oracle::Reference;
use crate::rng::SplitMix64;
use crate::shape::GroupedShape;
use nvfp4::cuda::CublasShape;
use nvfp4::device::Kernels;
use nvfp4::error::{Result, require_memory};
use nvfp4::gemm::{Activations, GemmOptions, GroupedRun, Output, Repacked, scale_options};
use nvfp4::tensor::Dims;

/// Runs a grouped product of `shape`, gated or not, on random inputs, verifies it, and on a GPU times
/// it. Token counts are on the device, one group's tokens behind another's.
///
/// # Errors
/// Bad sizes and [`DeviceError`](nvfp4::device::DeviceError). A wrong result is not an error: the
/// report says so, and nothing is timed.
pub fn grouped(kernels: &Kernels, shape: &GroupedShape, bench: &GemmBench) -> Result<GemmReport> {
    match bench.format {
        Format::Nvfp4 => run::<Nvfp4>(kernels, shape, bench),
        Format::Mxfp4 => run::<Mxfp4>(kernels, shape, bench),
    }
}

fn run<F: BlockFormat>(
    kernels: &Kernels,
    shape: &GroupedShape,
    bench: &GemmBench,
) -> Result<GemmReport> {
    let device = kernels.device();
    let name = shape.text(bench.is_gated());
    let (tokens, &GroupedShape { n, k, .. }) = (shape.tokens(), shape);
    // The weights of groups without tokens need not be read.
    let used = shape.counts.iter().filter(|count| **count > 0).count();
    let bytes = bench.bytes::<F>(Dims::new(1, tokens, n)?, used, k)?;
    require_memory(&format!("running {name}"), bytes.saturating_mul(6))?;
    let mut rng = SplitMix64::new(bench.seed);
    let groups = shape.counts.len();
    let experts: Experts<F> =
        Experts::generate(bench.generator, groups, [n, k], bench.is_gated(), &mut rng)?;
    let dims = Dims::new(1, tokens, k)?;
    let a = bench.tokens::<F>(dims, &mut rng)?;
    let a = a.activations();
    let weights = experts.repack(device, a.kind())?;
    let mut options = vec![bench.options.clone(); groups];
    scale_options(&mut options, &experts.factors());
    let reference = reference_grouped_for(
        device.choice().arch,
        &a,
        &experts.weights()?,
        &shape.ranges(),
        &options,
    )?;
    let mut bench = bench.clone();
    if let Some(layout) = bench.quantized {
        bench.options.output = Output::nvfp4_of(reference.largest(), layout);
    }
    let (observed, reports) = kernels.observed();
    let kernels = &observed;
    let inputs = Inputs { kernels, shape, a: &a, weights: &weights, bench: &bench };
    let result = inputs.set(&bench.options)?.run()?;
    let (mut times, mut sweep) = (None, Vec::new());
    if bench.times_on(device) && result.verify(&reference).passed() {
        times = Some(inputs.time(&reference, bytes)?);
        let time = |options: &GemmOptions| inputs.time_sets(options, &reference, bytes);
        sweep = bench.swept(device, &result.plan, time)?;
    }
    let mut report = bench.report::<F>(kernels, name, (result, &reports), &reference, bytes);
    (report.times, report.sweep) = (times, sweep);
    let make = |kernels: &Kernels| Inputs { kernels, ..inputs }.set(&bench.options);
    report.head.host =
        HostCost::measure(kernels, bench.protocol, report.head.verified, make, GroupedRun::launch)?;
    Ok(report)
}

/// The inputs of a timed run.
struct Inputs<'a, F> {
    kernels: &'a Kernels,
    shape: &'a GroupedShape,
    a: &'a Activations<'a, F>,
    weights: &'a Repacked,
    bench: &'a GemmBench,
}

impl<F: BlockFormat> Inputs<'_, F> {
    /// A copy of all operands on the device.
    fn set(&self, options: &GemmOptions) -> Result<GroupedRun> {
        let Self { kernels, shape, a, weights, .. } = self;
        GroupedRun::new(kernels, a, weights, &shape.counts, options)
    }

    /// Times a product over as many input sets as make the caches cold, and verifies each of them.
    fn time_sets(
        &self,
        options: &GemmOptions,
        reference: &Reference,
        bytes: u64,
    ) -> Result<SetTimes> {
        let Self { kernels, bench, .. } = self;
        let gpu = kernels.device().gpu("timing")?;
        let (sets, cold) = input_sets(kernels, bytes, || self.set(options))?;
        // Once outside the graph: a refused launch would end the recording with another error.
        if let Some(set) = sets.first() {
            set.launch()?;
        }
        let wrong = |set: &GroupedRun| -> Result<_> {
            let result = set.result()?;
            let check = result.verify(reference);
            Ok((!check.passed()).then(|| format!(" by {}", result.plan.kernel)))
        };
        // SAFETY: operands and workspaces are the sets', and `kernels` has the module.
        unsafe { SetTimes::measure(gpu, (&sets, cold), bench.protocol, GroupedRun::launch, wrong) }
    }

    /// Times a product that has been verified once, its ceilings and its peer.
    fn time(&self, reference: &Reference, bytes: u64) -> Result<GemmTiming> {
        let Self { kernels, bench, .. } = self;
        let gpu = kernels.device().gpu("timing")?;
        let measured = self.time_sets(&bench.options, reference, bytes)?;
        let median = measured.times.median;
        let read = ReadCeiling::measure(kernels, bytes, bench.protocol, &measured.times)?;
        let (mut peers, mut tensor_ceiling) = (Peers::default(), None);
        if bench.protocol.cublas {
            peers = self.peer(median)?;
            tensor_ceiling =
                if peers.cublas.is_some() { tensor_rate(gpu, bench.protocol)? } else { None };
        }
        let rows = bench.weight_rows(self.shape.n);
        let flops_per_second = self.shape.flops(rows) / median;
        let mma_ceiling = mma_rate(kernels, bench.protocol)?;
        Ok(GemmTiming { measured, flops_per_second, read, tensor_ceiling, mma_ceiling, peers })
    }

    /// cuBLAS' products of all groups, one after another, without what follows the sums.
    fn peer(&self, ours: f64) -> Result<Peers> {
        let Self { kernels, shape, bench, .. } = self;
        let device = kernels.device();
        let (gpu, l2) = (device.gpu("timing")?, device.properties().l2_bytes);
        let GroupedShape { counts, n, k } = shape;
        let rows = bench.weight_rows(*n);
        let used: Vec<CublasShape> = counts
            .iter()
            .filter(|count| **count > 0)
            .map(|&count| CublasShape { m: rows, n: count, k: *k, batch: 1 })
            .collect();
        let weights = gpu::noise(used.len() * rows * k);
        let tokens = super::gemm::peer_tokens(self.a)?;
        let products = PeerProducts { shapes: &used, a: &weights, b: &tokens };
        let how = (bench.protocol, ours, l2);
        let mut peers = gpu::peer_or_reason(gpu::time_cublas(gpu, &products, how))?;
        if bench.in_e4m3() {
            gpu::add_e4m3(&mut peers, gpu, &used, how)?;
        }
        Ok(peers)
    }
}
