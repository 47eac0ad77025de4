//! A layer in an engine's stream, memory and graph, as an inference engine would have it: BF16
//! activations that change from replay to replay are quantised and multiplied (W4A4), and
//! multiplied as they are (W4A16).
//!
//! On cuda:0 where there is one, on a stream of the driver's that is ordered with no other; on the
//! emulated machines, which have no streams, the same layer without a graph.

use fp4_formats::arch::TensorFamily;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_lazy::raw;
use fp4_formats::gemm::Split;
use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{FloatType, HalfType, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::checkpoint::Blocks;
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, DeviceWeights, Gemm, GemmOptions,
    GemmOverrides, HalfMatrix, Repacked, ResultBuffers, Vectors, Workspace, reference,
};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize, quantize_matrix};
use nvfp4::rng::SplitMix64;
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};

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
    /// For FP4 and for BF16 activations.
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
        let a = ActivationBuffers::Blocks { codes, scales };
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
    let hopper = kernels.device().choice().arch.tensor() == TensorFamily::Wgmma;
    CASES.into_iter().map(move |(shape, split)| (shape, split.filter(|_| hopper)))
}

#[test]
fn emulated_layers_in_memory_of_the_callers() {
    for name in ["emu:h200", "emu:b200"] {
        let kernels = nvfp4_tests::emulated(name, ptx_emu::Schedule::Eager);
        let device = kernels.device().clone();
        let arena = DeviceBuffer::poisoned(&device, "arena", 4 << 20).expect("memory");
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

/// The kernels of cuda:0, for one test at a time, since a recording of the kind below is disturbed
/// by allocations of any thread (the lock comes first so that it goes last); none, with a note, where there is no such device.
fn gpu() -> Option<(MutexGuard<'static, ()>, Kernels)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Device::open(&DeviceRequest::Cuda(0)) {
        Ok(device) => {
            let kernels = device.kernels(Some(&nvfp4_tests::kernels_dir()));
            Some((alone, kernels.expect("kernels are built")))
        }
        Err(error) => {
            println!("skipped cuda:0: {error}");
            None
        }
    }
}

fn ok(call: &str, code: u32) {
    assert_eq!(code, 0, "{call} returned {code}");
}

/// What an engine has of its own: a stream in the primary context, memory, graphs.
struct Engine {
    stream: *mut c_void,
    memory: Vec<u64>,
    graphs: Vec<*mut c_void>,
}

impl Engine {
    fn new() -> Self {
        const NON_BLOCKING: u32 = 1;
        let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the driver is initialised, since a device is open; results are writable. The
        // context is retained until the process ends.
        unsafe {
            ok("retain", raw::cuDevicePrimaryCtxRetain(&mut context, 0));
            ok("bind", raw::cuCtxSetCurrent(context));
            ok("stream", raw::cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, 0));
        }
        Self { stream, memory: Vec::new(), graphs: Vec::new() }
    }

    fn alloc(&mut self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the context is current and the result writable.
        ok("alloc", unsafe { raw::cuMemAlloc_v2(&mut address, bytes) });
        self.memory.push(address);
        address
    }

    /// Memory of the engine's as a buffer of `device`.
    fn view(&mut self, device: &Device, name: &str, bytes: usize) -> DeviceBuffer {
        let address = self.alloc(bytes);
        // SAFETY: allocated above, and freed after everything else.
        unsafe { DeviceBuffer::from_raw(device, name, address, bytes) }.expect("aligned")
    }

    /// The engine's own way of bringing new activations.
    fn copy(&self, to: u64, bytes: &[u8]) {
        // SAFETY: the caller names memory of the engine's with so many bytes; the source lives
        // until the copy is waited for.
        unsafe {
            let from = bytes.as_ptr().cast_mut().cast();
            ok("copy", raw::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.stream));
            ok("wait", raw::cuStreamSynchronize(self.stream));
        }
    }

    /// Records in the mode that refuses whatever waits or allocates, on any thread, and gives the
    /// graph with the types of its nodes.
    fn record(&mut self, work: impl FnOnce()) -> (*mut c_void, Vec<u32>) {
        const GLOBAL: u32 = 0;
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is alive.
        ok("begin", unsafe { raw::cuStreamBeginCapture_v2(self.stream, GLOBAL) });
        work();
        let mut types = Vec::new();
        // SAFETY: stream and graph are alive, results are writable, and there is room for as many
        // nodes as the driver says there are.
        unsafe {
            ok("end", raw::cuStreamEndCapture(self.stream, &mut graph));
            let mut count = 0;
            ok("nodes", raw::cuGraphGetNodes(graph, ptr::null_mut(), &mut count));
            let mut nodes = vec![ptr::null_mut(); count];
            ok("nodes", raw::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
            for node in nodes {
                let mut kind = 0_u32;
                ok("type", raw::cuGraphNodeGetType(node, (&raw mut kind).cast()));
                types.push(kind);
            }
            ok("make", raw::cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            ok("destroy", raw::cuGraphDestroy(graph));
        }
        self.graphs.push(executable);
        (executable, types)
    }

    fn replay(&self, graph: *mut c_void) {
        // SAFETY: the graph is one of `graphs`; what it uses is alive.
        ok("replay", unsafe { raw::cuGraphLaunch(graph, self.stream) });
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: nothing uses them any more; a failed test may leave errors, which are no news.
        unsafe {
            raw::cuStreamSynchronize(self.stream);
            for &graph in &self.graphs {
                raw::cuGraphExecDestroy(graph);
            }
            for &address in &self.memory {
                raw::cuMemFree_v2(address);
            }
            raw::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// `CUgraphNodeType`.
const KERNEL: u32 = 0;
const MEMCPY: u32 = 1;

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
