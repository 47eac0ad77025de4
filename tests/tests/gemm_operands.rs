//! A GEMM planned once and launched with operands that it was not planned with: those that fit
//! give their own results, all others are typed errors. On both emulated machines.

use fp4_formats::gemm::OutputType;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::Error;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, DeviceWeights, Gemm, GemmOptions, Repacked,
    ResultBuffers, Vectors, Workspace, reference,
};
use nvfp4::generate::Generator;
use nvfp4::output;
use nvfp4::rng::SplitMix64;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_tests::emulated;
use ptx_emu::{LaunchReport, Schedule};

const MACHINES: [&str; 2] = ["emu:h200", "emu:b200"];
const M: usize = 5;
const N: usize = 40;
const K: usize = 96;

fn machines() -> impl Iterator<Item = Kernels> {
    MACHINES.into_iter().map(|name| emulated(name, Schedule::Eager))
}

fn kind<F: BlockFormat>() -> ActivationKind {
    ActivationKind::Blocks { format: nvfp4::gemm::format_of::<F>(), layout: ScaleLayout::Linear }
}

/// A tensor `[batch, rows, K]` with a global scale.
fn blocks<F: BlockFormat>(batch: usize, rows: usize, scale: f32) -> BlockScaled<F> {
    let dims = Dims::new(batch, rows, K).expect("dims");
    let mut rng = SplitMix64::new((batch * rows) as u64);
    let blocks = Generator::Exact.blocks::<F>("x", dims, ScaleLayout::Linear, &mut rng);
    let blocks = blocks.expect("fits");
    let (codes, scales) = (blocks.codes().to_vec(), blocks.scales().to_vec());
    BlockScaled::new("x", dims, ScaleLayout::Linear, codes, scales, scale).expect("fits")
}

fn upload<F: BlockFormat>(
    kernels: &Kernels,
    weights: &BlockScaled<F>,
    kind: ActivationKind,
) -> DeviceWeights {
    let repacked = Repacked::for_device(kernels.device(), weights, kind).expect("repacked");
    repacked.upload(kernels.device()).expect("uploaded")
}

fn options() -> GemmOptions {
    GemmOptions { alpha: 0.75, output: OutputType::F32.into(), ..GemmOptions::default() }
}

/// What a launch needs besides weights, on a device.
struct Buffers {
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    out: DeviceBuffer,
    workspace: Workspace,
}

impl Buffers {
    fn new<F: BlockFormat>(kernels: &Kernels, a: &BlockScaled<F>) -> Self {
        let device = kernels.device();
        let upload =
            |name, bytes: &[u8]| DeviceBuffer::upload(device, name, bytes).expect("memory");
        let l = a.dims().batch();
        Self {
            codes: upload("codes", a.codes()),
            scales: upload("scales", a.scales()),
            out: DeviceBuffer::poisoned(device, "out", l * M * N * 4).expect("memory"),
            workspace: Workspace::new(device, 1 << 20).expect("memory"),
        }
    }

    fn launch(&self, gemm: &Gemm, weights: &DeviceWeights) -> Result<Vec<LaunchReport>, Error> {
        let a = ActivationBuffers::Blocks { codes: &self.codes, scales: &self.scales };
        let out = ResultBuffers::Floats(&self.out);
        gemm.launch(a, weights, out, Some(&self.workspace), Vectors::default())
    }

    fn check<F: BlockFormat>(&self, gemm: &Gemm, a: &BlockScaled<F>, b: &BlockScaled<F>) {
        let expected = reference(&Activations::Blocks(a), b, &options()).expect("the oracle");
        let expected = expected.with_additions(gemm.plan().additions);
        let got = output::decode(OutputType::F32, &self.out.read().expect("a result"));
        let check = expected.verify(&got, OutputType::F32);
        assert!(check.passed(), "{}\n{}", gemm.plan(), check.summary());
    }
}

/// Layers of the same sizes share a plan; each has a global scale of its own.
#[test]
fn each_launch_takes_the_scale_of_its_weights() {
    fn check<F: BlockFormat>(kernels: &Kernels, scales: [f32; 3]) {
        let a = blocks::<F>(1, M, if F::NAME == Nvfp4::NAME { 0.5 } else { 1.0 });
        let layers = scales.map(|scale| blocks::<F>(1, N, scale));
        let weights = layers.each_ref().map(|layer| upload(kernels, layer, kind::<F>()));
        let scale = a.global_scale();
        let gemm = Gemm::new(kernels, &weights[0], [1, M], kind::<F>(), scale, &options());
        let gemm = gemm.expect("planned");
        let buffers = Buffers::new(kernels, &a);
        for (layer, weights) in layers.iter().zip(&weights) {
            buffers.launch(&gemm, weights).expect("runs");
            buffers.check(&gemm, &a, layer);
        }
    }
    for kernels in machines() {
        check::<Nvfp4>(&kernels, [2.0, 0.125, 3.0]);
        check::<Mxfp4>(&kernels, [1.0; 3]);
    }
}

/// A scale that leaves f32's range with others is found at the launch that has it.
#[test]
fn a_scale_that_cannot_be_combined_is_refused_at_launch() {
    for kernels in machines() {
        let a = blocks::<Nvfp4>(1, M, 1e-30);
        let [usual, tiny] = [1.0, 1e-30]
            .map(|scale| upload(&kernels, &blocks::<Nvfp4>(1, N, scale), kind::<Nvfp4>()));
        let plan = |weights| {
            Gemm::new(&kernels, weights, [1, M], kind::<Nvfp4>(), a.global_scale(), &options())
        };
        let error = plan(&tiny).expect_err("out of range");
        assert!(matches!(error, Error::Scalar { .. }), "{error}");
        let gemm = plan(&usual).expect("planned");
        let buffers = Buffers::new(&kernels, &a);
        buffers.launch(&gemm, &usual).expect("runs");
        let error = buffers.launch(&gemm, &tiny).expect_err("out of range");
        assert!(matches!(error, Error::Scalar { .. }), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
