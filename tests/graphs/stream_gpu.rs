//! A layer in an engine's stream, memory and graph, as an inference engine would have it: BF16
//! activations that change from replay to replay are quantised and multiplied (W4A4), and
//! multiplied as they are (W4A16).
//!
//! On cuda:0 where there is one, on a stream of the driver's that is ordered with no other; on the
//! emulated machines, which have no streams, the same layer without a graph.

use cuda_lazy::raw;
use fp4_formats::arch::TensorFamily;
use fp4_formats::gemm::Split;
use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{FloatType, HalfType, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, DeviceWeights, Gemm, GemmOptions,
    GemmOverrides, HalfMatrix, Repacked, ResultBuffers, Vectors, Workspace,
};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize, quantize_matrix};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_checkpoint::Blocks;
use nvfp4_lab::gemm::reference;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::engine::{Engine, KERNEL, MEMCPY, gpu, ok};

/// The activations' scale, as calibration gives it.
const SCALE: f32 = 0.0625;

fn quantisation() -> QuantizeOptions {
    QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo))
        .scale(TensorScale::Given(SCALE))
        .layout(ScaleLayout::Linear)
}

/// One layer: its weights on the device, and buffers for the rest that someone else may own.
struct Layer {
    kernels: Kernels,
    shape: GemmShape,
    weight: BlockScaled<Nvfp4>,
    options: GemmOptions,
    /// Weights for FP4 and for BF16 activations.
    weights: [DeviceWeights; 2],
    quantizer: Quantizer,
    input: DeviceBuffer,
    out: [DeviceBuffer; 2],
    workspace: Workspace,
}

const FP4: ActivationKind =
    ActivationKind::Blocks { format: Format::Nvfp4, layout: ScaleLayout::Linear };
const BF16: ActivationKind = ActivationKind::Halves(HalfType::Bf16);

impl Layer {
    /// `memory` gives a buffer of a name and so many bytes.
    fn new(
        kernels: &Kernels,
        shape: GemmShape,
        split: Option<Split>,
        mut memory: impl FnMut(&str, usize) -> DeviceBuffer,
    ) -> Self {
        let GemmShape { m, n, k, .. } = shape;
        let device = kernels.device();
        let mut rng = SplitMix64::new(n as u64);
        let values: Vec<f32> = (0..n * k).map(|_| rng.normal() as f32 * 0.05).collect();
        let dims = Dims::new(1, n, k).expect("dims");
        let weight = quantize("w", &values, dims, TensorScale::FromAmax, ScaleLayout::Linear)
            .expect("finite");
        let options =
            GemmOptions::new().output(FloatType::F32).overrides(GemmOverrides::new().split(split));
        let weights = [FP4, BF16].map(|kind| {
            let repacked = Repacked::for_device(device, &weight, kind).expect("repacked");
            repacked.upload_to(memory("weights", repacked.bytes().len())).expect("uploaded")
        });
        let plain = Input::plain(FloatType::Bf16);
        let quantizer = Quantizer::new(kernels, m, k, plain, &quantisation()).expect("planned");
        let [fp4, bf16] = plans(kernels, m, &weights, &options);
        let bytes = fp4.workspace_bytes().max(bf16.workspace_bytes()).max(1);
        Self {
            kernels: kernels.clone(),
            shape,
            weight,
            options,
            weights,
            quantizer,
            input: memory("activations", m * k * 2),
            out: ["W4A4", "W4A16"].map(|name| memory(name, m * n * 4)),
            workspace: Workspace::over(memory("workspace", bytes)).expect("aligned"),
        }
    }

    fn plans(&self) -> [Gemm; 2] {
        plans(&self.kernels, self.shape.m, &self.weights, &self.options)
    }

    /// Plans and queues everything.
    fn launch(&self) {
        let [fp4, bf16] = self.plans();
        let workspace = Some(&self.workspace);
        self.quantizer.launch(&self.input, None).expect("quantised");
        let (codes, scales) = (self.quantizer.codes(), self.quantizer.scales());
        let a = ActivationBuffers::blocks(codes, scales);
        let out = ResultBuffers::Floats(&self.out[0]);
        fp4.launch(a, &self.weights[0], out, workspace, Vectors::default()).expect("W4A4");
        let a = ActivationBuffers::Halves(&self.input);
        let out = ResultBuffers::Floats(&self.out[1]);
        bf16.launch(a, &self.weights[1], out, workspace, Vectors::default()).expect("W4A16");
    }

    /// Activations in BF16, little-endian.
    fn activations(&self, seed: u64) -> HalfMatrix {
        let GemmShape { m, k, .. } = self.shape;
        let mut rng = SplitMix64::new(seed);
        let values: Vec<f32> = (0..m * k).map(|_| rng.normal() as f32).collect();
        let dims = Dims::new(1, m, k).expect("dims");
        HalfMatrix::round("x", dims, HalfType::Bf16, &values).expect("fits")
    }

    /// Compares quantised activations and both results with the CPU's, and forgets the results.
    fn check(&self, x: &HalfMatrix) {
        self.quantizer.check("x").expect("all is finite");
        let values = floats::decode(FloatType::Bf16, x.bytes());
        let matrix = quantize_matrix("x", &values, x.dims(), &quantisation()).expect("finite");
        assert_eq!(self.quantizer.codes().read().expect("codes"), matrix.codes);
        assert_eq!(self.quantizer.scales().read().expect("scales"), matrix.scales);
        let Blocks::Nvfp4(blocks) = matrix.into_blocks("x", x.dims()).expect("a tensor") else {
            panic!("NVFP4 was asked for");
        };
        let plans = self.plans();
        for ((a, out), plan) in
            [Activations::Blocks(&blocks), Activations::Halves(x)].iter().zip(&self.out).zip(plans)
        {
            let reference = reference(a, &self.weight, &self.options).expect("the oracle");
            let got = floats::decode(FloatType::F32, &out.read().expect("a result"));
            let additions = plan.plan().additions;
            let check = reference.with_additions(additions).verify(&got, FloatType::F32);
            assert!(check.passed(), "{}\n{}", plan.plan(), check.summary());
            out.write(&vec![0xff; out.len()]).expect("forgotten");
        }
    }
}

/// The products with FP4 and with BF16 activations.
fn plans(
    kernels: &Kernels,
    m: usize,
    weights: &[DeviceWeights; 2],
    options: &GemmOptions,
) -> [Gemm; 2] {
    let plan = |kind, scale, weights| {
        Gemm::new(kernels, weights, [1, m], kind, &options.clone().activation_scale(scale))
            .expect("planned")
    };
    [plan(FP4, SCALE, &weights[0]), plan(BF16, 1.0, &weights[1])]
}

/// Few tokens and many, K whole and in parts that meet in the workspace.
const CASES: [(GemmShape, Option<Split>); 3] = [
    (GemmShape { m: 3, n: 200, k: 512, l: 1 }, None),
    (GemmShape { m: 70, n: 392, k: 1040, l: 1 }, None),
    (GemmShape { m: 20, n: 264, k: 2048, l: 1 }, Some(Split::StreamK)),
];

/// Stream-K is of sm_90a alone.
fn cases(kernels: &Kernels) -> impl Iterator<Item = (GemmShape, Option<Split>)> {
    let sm90 = kernels.device().choice().arch.tensor() == TensorFamily::Wgmma;
    CASES.into_iter().map(move |(shape, split)| (shape, split.filter(|_| sm90)))
}

#[test]
fn emulated_layers_in_memory_of_the_callers() {
    for name in ["emu:h200", "emu:b200"] {
        let kernels = nvfp4_tests::emulated(name, ptx_emu::Schedule::Eager);
        let device = kernels.device().clone();
        let arena = DeviceBuffer::poisoned(&device, "arena", 16 << 20).expect("memory");
        for (shape, split) in cases(&kernels) {
            let mut at = arena.address();
            let layer = Layer::new(&kernels, shape, split, |name, bytes| {
                let start = at;
                at += bytes.next_multiple_of(256) as u64;
                // SAFETY: nothing on the emulator depends on it.
                unsafe { DeviceBuffer::from_raw(&device, name, start, bytes) }.expect("a part")
            });
            assert!(at <= arena.address() + arena.len() as u64, "the arena is too small");
            let before = device.allocations();
            for seed in [1, 2] {
                let x = layer.activations(seed);
                layer.input.write(x.bytes()).expect("written");
                layer.launch();
                layer.check(&x);
            }
            assert_eq!(device.allocations(), before, "{name}: a launch allocates");
        }
        // Dropping views has freed nothing.
        arena.fill(0).expect("still there");
    }
}

#[test]
fn a_layer_in_an_engines_graph() {
    let Some((_alone, kernels)) = gpu() else { return };
    let mut engine = Engine::new();
    // SAFETY: the stream is the engine's, which is dropped after everything else.
    let kernels = unsafe { kernels.with_stream(engine.stream) }.expect("the primary context");
    let device = kernels.device().clone();
    for (shape, split) in cases(&kernels) {
        let layer =
            Layer::new(&kernels, shape, split, |name, bytes| engine.view(&device, name, bytes));
        let before = device.allocations();
        // Once as it is.
        let x = layer.activations(1);
        engine.copy(layer.input.address(), x.bytes());
        layer.launch();
        layer.check(&x);

        // Planned and launched while the engine records.
        let (graph, nodes) = engine.record(|| layer.launch());
        assert!(nodes.len() >= 3 && nodes.iter().all(|&node| node == KERNEL), "{nodes:?}");
        // New activations, by the engine's copy and by the library's.
        for seed in [2, 3, 4] {
            let x = layer.activations(seed);
            if seed == 3 {
                layer.input.write(x.bytes()).expect("written");
            } else {
                engine.copy(layer.input.address(), x.bytes());
            }
            engine.replay(graph);
            layer.check(&x);
        }
        // Again without waiting in between: the workspace is as each replay needs it.
        for _ in 0..20 {
            engine.replay(graph);
        }
        layer.check(&layer.activations(4));
        assert_eq!(device.allocations(), before, "a launch allocates");
    }
}

/// An engine that copies new tokens within the graph: what comes before our first launch is no
/// kernel, which launches that may overlap must take.
#[test]
fn a_layer_behind_a_copy_in_the_graph() {
    let Some((_alone, kernels)) = gpu() else { return };
    let mut engine = Engine::new();
    // SAFETY: as above.
    let kernels = unsafe { kernels.with_stream(engine.stream) }.expect("the primary context");
    let device = kernels.device().clone();
    let (shape, split) = CASES[0];
    let layer = Layer::new(&kernels, shape, split, |name, bytes| engine.view(&device, name, bytes));
    let bytes = layer.input.len();
    let staging = engine.alloc(bytes);
    layer.launch();
    let (stream, input) = (engine.stream, layer.input.address());
    let (graph, nodes) = engine.record(|| {
        // SAFETY: both are the engine's memory and have so many bytes.
        ok("copy", unsafe { raw::cuMemcpyDtoDAsync_v2(input, staging, bytes, stream) });
        layer.launch();
    });
    assert_eq!(nodes.iter().filter(|&&node| node == MEMCPY).count(), 1, "{nodes:?}");
    for seed in [5, 6] {
        let x = layer.activations(seed);
        engine.copy(staging, x.bytes());
        engine.replay(graph);
        layer.check(&x);
    }
}

/// The first use of every kernel is recorded: nothing of what is done once waits or allocates.
#[test]
fn first_launches_can_be_recorded() {
    let Some((_alone, kernels)) = gpu() else { return };
    let mut engine = Engine::new();
    // SAFETY: as above.
    let kernels = unsafe { kernels.with_stream(engine.stream) }.expect("the primary context");
    let device = kernels.device().clone();
    let (shape, split) = CASES[1];
    let layer = Layer::new(&kernels, shape, split, |name, bytes| engine.view(&device, name, bytes));
    let (graph, _) = engine.record(|| layer.launch());
    let x = layer.activations(7);
    engine.copy(layer.input.address(), x.bytes());
    engine.replay(graph);
    layer.check(&x);
}
