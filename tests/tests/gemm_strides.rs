//! GEMM on batches whose matrices are apart or, of activations, shared: right results, nothing
//! between matrices read or written, and typed errors for strides that no kernel takes. On both
//! emulated machines; right results also on a GPU where there is one.

use fp4_formats::ScaleLayout::{Blocked128x4, Linear};
use fp4_formats::gemm::blackwell;
use fp4_formats::gemm::hopper::{self, Operand};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, BatchStrides, DeviceWeights, Gemm, GemmOptions,
    GemmOverrides, GemmResult, HalfMatrix, Output, Repacked, ResultBuffers, Vectors, Workspace,
    reference,
};
use nvfp4::generate::Generator;
use nvfp4::oracle::Verification;
use nvfp4::rng::SplitMix64;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::tune::ResultKind;
use nvfp4_tests::{Left, SCHEDULES, emulated, gpu};
use ptx_emu::Schedule;

const MACHINES: [&str; 2] = ["emu:h200", "emu:b200"];
/// What is between matrices, and behind the last: NaN in every float type and every scale type.
const POISON: u8 = 0xff;
/// Bytes behind the last matrix.
const GUARD: usize = 48;

/// How the matrices of an operand lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    /// As without strides.
    Dense,
    /// So many elements, or bytes of scales, are between them.
    Apart(usize),
    /// One for all.
    Shared,
}

use Lie::{Apart, Dense, Shared};

/// One part of an operand: elements or codes, or scales.
#[derive(Clone, Copy)]
struct Part {
    lie: Lie,
    batch: usize,
    /// Bytes of a matrix; 0 where there is no such part.
    size: usize,
    /// Bits of what strides are counted in.
    bits: usize,
}

impl Part {
    /// What is between two matrices, bytes.
    fn between(&self) -> usize {
        match self.lie {
            Apart(units) => units * self.bits / 8,
            Dense | Shared => 0,
        }
    }

    /// The stride as it is given.
    fn stride(&self) -> Option<usize> {
        match self.lie {
            Dense => None,
            Apart(_) => Some((self.size + self.between()) * 8 / self.bits),
            Shared => Some(0),
        }
    }

    /// The contents of a buffer with `matrices`, which follow each other here. There is a guard
    /// behind them where a stride is given.
    fn spread(&self, matrices: &[u8]) -> Vec<u8> {
        let guard = match self.lie {
            _ if self.size == 0 => return vec![POISON],
            Dense => return matrices.to_vec(),
            Shared => return [&matrices[..self.size], &[POISON; GUARD]].concat(),
            Apart(_) => [POISON; GUARD],
        };
        let between = vec![POISON; self.between()];
        let matrices: Vec<&[u8]> = matrices.chunks_exact(self.size).collect();
        [matrices.join(&between[..]), guard.to_vec()].concat()
    }

    /// The matrices in a buffer, one after the other. Fails where anything else was written; `what`
    /// is what the message calls it.
    fn gather(&self, what: &str, bytes: &[u8]) -> Vec<u8> {
        if self.size == 0 {
            return Vec::new();
        }
        let stride = self.size + self.between();
        let inside = |at: usize| at / stride < self.batch && at % stride < self.size;
        if let Some(at) = (0..bytes.len()).find(|&at| !inside(at) && bytes[at] != POISON) {
            let (size, byte) = (self.size, bytes[at]);
            panic!("{what}: byte {at} is {byte:#x}; matrices have {size} bytes, {stride} apart");
        }
        let matrices = bytes.chunks(stride).take(self.batch);
        matrices.flat_map(|matrix| &matrix[..self.size]).copied().collect()
    }
}

/// One product and where its matrices are.
#[derive(Debug, Clone)]
struct Case {
    /// M, N, K, L.
    sizes: [usize; 4],
    format: Format,
    left: Left,
    /// The scale of one in NVFP4 is what its largest magnitude asks for.
    kind: ResultKind,
    /// Of the activations, and of their scales.
    activations: [Lie; 2],
    /// Of the result, and of its scales.
    result: [Lie; 2],
    shared_weights: bool,
    overrides: GemmOverrides,
    seed: u64,
}

/// Operands on the host: activations of every entry, shared or not, and weights.
struct Operands<F> {
    blocks: Option<BlockScaled<F>>,
    halves: Option<HalfMatrix>,
    weights: BlockScaled<F>,
}

impl<F: BlockFormat> Operands<F> {
    fn activations(&self) -> Activations<'_, F> {
        match (&self.blocks, &self.halves) {
            (Some(blocks), _) => Activations::Blocks(blocks),
            (None, Some(halves)) => Activations::Halves(halves),
            (None, None) => unreachable!("one of them"),
        }
    }

    /// Elements or codes, and scales.
    fn parts(&self) -> [&[u8]; 2] {
        match self.activations() {
            Activations::Blocks(blocks) => [blocks.codes(), blocks.scales()],
            Activations::Halves(halves) => [halves.bytes(), &[]],
        }
    }
}

impl Case {
    fn new(sizes: [usize; 4], left: Left) -> Self {
        Self {
            sizes,
            format: Format::Nvfp4,
            left,
            kind: ResultKind::Floats(FloatType::F16),
            activations: [Dense; 2],
            result: [Dense; 2],
            shared_weights: false,
            overrides: GemmOverrides::default(),
            seed: 1,
        }
    }

    fn format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    fn shared_weights(self) -> Self {
        Self { shared_weights: true, ..self }
    }

    fn kind(self, kind: ResultKind) -> Self {
        Self { kind, ..self }
    }

    fn activations(self, activations: [Lie; 2]) -> Self {
        Self { activations, ..self }
    }

    fn result(self, result: [Lie; 2]) -> Self {
        Self { result, ..self }
    }

    /// Exact inputs; shared activations are repeated for the oracle.
    fn operands<F: BlockFormat>(&self) -> Operands<F> {
        let [m, n, k, l] = self.sizes;
        let mut rng = SplitMix64::new(self.seed);
        let dims = Dims::new(if self.shared_weights { 1 } else { l }, n, k).expect("dims");
        let weights = Generator::Exact.blocks::<F>("b", dims, Linear, &mut rng).expect("b");
        let [matrices, copies] = if self.activations[0] == Shared { [1, l] } else { [l, 1] };
        let own = Dims::new(matrices, m, k).expect("dims");
        let all = Dims::new(l, m, k).expect("dims");
        let (mut blocks, mut halves) = (None, None);
        match self.left {
            Left::Blocks(layout) => {
                let one = Generator::Exact.blocks::<F>("a", own, layout, &mut rng).expect("a");
                let (codes, scales) = (one.codes().repeat(copies), one.scales().repeat(copies));
                let scale = one.global_scale();
                blocks = Some(BlockScaled::new("a", all, layout, codes, scales, scale).expect("a"));
            }
            Left::Halves(operand) => {
                let one = Generator::Exact.halves("a", own, operand, &mut rng).expect("a");
                let bytes = one.bytes().repeat(copies);
                halves = Some(HalfMatrix::new("a", all, operand, bytes).expect("a"));
            }
        }
        Operands { blocks, halves, weights }
    }

    /// Where activations, their scales, result and its scales are.
    fn parts<F: BlockFormat>(&self, operands: &Operands<F>, output: Output) -> [Part; 4] {
        let [m, n, _, batch] = self.sizes;
        let [codes, scales] = operands.parts().map(|part| part.len() / batch);
        let dims = Dims::new(1, m, n).expect("dims");
        let [out, out_scales] = output.bytes(dims).expect("small");
        let of_activations = if matches!(self.left, Left::Blocks(_)) { 4 } else { 16 };
        let [a, a_scales] = self.activations;
        let [c, c_scales] = self.result;
        [
            Part { lie: a, batch, size: codes, bits: of_activations },
            Part { lie: a_scales, batch, size: scales, bits: 8 },
            Part { lie: c, batch, size: out, bits: out * 8 / (m * n) },
            Part { lie: c_scales, batch, size: out_scales, bits: 8 },
        ]
    }

    /// Runs it with strides, or on the same buffers as if the batch were dense. The comparison, and
    /// the plan in words.
    fn run<F: BlockFormat>(&self, kernels: &Kernels, strided: bool) -> (Verification, String) {
        let [m, _, _, l] = self.sizes;
        let operands = self.operands::<F>();
        let a = operands.activations();
        let mut options = GemmOptions { overrides: self.overrides.clone(), ..Default::default() };
        let expected = reference(&a, &operands.weights, &options).expect("the oracle");
        options.output = match self.kind {
            ResultKind::Floats(floats) => floats.into(),
            ResultKind::Nvfp4(layout) => Output::nvfp4_of(&expected, layout),
        };
        let parts = self.parts(&operands, options.output);
        let repacked = Repacked::for_device(kernels.device(), &operands.weights, a.kind());
        let weights = repacked.and_then(|weights| weights.upload(kernels.device())).expect("loads");
        let gemm = Gemm::new(kernels, &weights, [l, m], a.kind(), a.global_scale(), &options);
        let gemm = gemm.and_then(|gemm| {
            let strides = strides(&parts);
            if strided { gemm.with_strides(strides) } else { Ok(gemm) }
        });
        let gemm = gemm.unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let matrices = launch(&gemm, &weights, kernels, &parts, operands.parts(), strided);
        let plan = gemm.plan().clone();
        let [bytes, scales] = matrices.unwrap_or_else(|e| panic!("{self:?}\n{plan}\n{e}"));
        let (dims, output) = (gemm.result_dims().expect("small"), options.output);
        let result = GemmResult { bytes, scales, dims, output, plan, reports: Vec::new() };
        (result.verify(&expected), result.plan.to_string())
    }

    /// Runs it and fails with the first mismatch.
    fn check(&self, kernels: &Kernels) {
        let (check, plan) = match self.format {
            Format::Nvfp4 => self.run::<Nvfp4>(kernels, true),
            Format::Mxfp4 => self.run::<Mxfp4>(kernels, true),
        };
        let [m, n, _, l] = self.sizes;
        assert_eq!(check.outputs, l * m * n, "{self:?}");
        let first = first_mismatch(&check, m);
        assert!(check.passed(), "{self:?}\n{plan}\n{}\nfirst: {first:?}", check.summary());
    }
}

fn strides(parts: &[Part; 4]) -> BatchStrides {
    let [activations, activation_scales, result, result_scales] = parts.map(|part| part.stride());
    BatchStrides { activations, activation_scales, result, result_scales }
}

/// Launches with `activations`, whose matrices follow each other, on buffers that have them as
/// `parts` say; where the product is of a dense batch, those are cut to its size. The matrices of
/// the result and those of its scales.
fn launch(
    gemm: &Gemm,
    weights: &DeviceWeights,
    kernels: &Kernels,
    parts: &[Part; 4],
    activations: [&[u8]; 2],
    strided: bool,
) -> Result<[Vec<u8>; 2]> {
    let device = kernels.device();
    let [a, a_scales, c, c_scales] = parts;
    let input = |part: &Part, matrices: &[u8]| {
        let bytes = part.spread(matrices);
        let len = if strided { bytes.len() } else { matrices.len().max(1) };
        DeviceBuffer::upload(device, "a", &bytes[..len])
    };
    let out = |part: &Part| {
        let nothing = vec![POISON; part.size * part.batch];
        DeviceBuffer::upload(device, "c", &part.spread(&nothing))
    };
    let inputs = [input(a, activations[0])?, input(a_scales, activations[1])?];
    let left = match &inputs {
        [elements, _] if a_scales.size == 0 => ActivationBuffers::Halves(elements),
        [codes, scales] => ActivationBuffers::Blocks { codes, scales },
    };
    let outputs = [out(c)?, out(c_scales)?];
    let to = match &outputs {
        [elements, _] if c_scales.size == 0 => ResultBuffers::Floats(elements),
        [codes, scales] => ResultBuffers::Blocks { codes, scales },
    };
    let workspace = Workspace::new(device, gemm.workspace_bytes().max(1))?;
    gemm.launch(left, weights, to, Some(&workspace), Vectors::default())?;
    Ok([
        c.gather("the result", &outputs[0].read()?),
        c_scales.gather("the result's scales", &outputs[1].read()?),
    ])
}

/// Batch entry, row and column of the first wrong element.
fn first_mismatch(check: &Verification, m: usize) -> Option<[usize; 3]> {
    // To the report a row of the result is a batch entry.
    check.first_mismatch.map(|first| [first.batch / m, first.batch % m, first.row])
}

/// Runs all cases under all schedules on both machines, and on a GPU where there is one.
fn check_all(cases: &[Case]) {
    let machines = MACHINES.iter().flat_map(|name| SCHEDULES.map(|s| emulated(name, s)));
    for kernels in machines.chain(gpu()) {
        for case in cases {
            case.check(&kernels);
        }
    }
}

const F16: Left = Left::Halves(Operand::F16);
const BF16: Left = Left::Halves(Operand::Bf16);

#[test]
fn halves_apart_from_each_other() {
    let floats = ResultKind::Floats;
    check_all(&[
        // A slot for eight tokens; rows of results in and out of step with 16 bytes.
        Case::new([5, 40, 96, 2], F16)
            .activations([Apart(3 * 96), Dense])
            .result([Apart(3 * 40), Dense]),
        Case::new([3, 33, 96, 3], BF16)
            .format(Format::Mxfp4)
            .kind(floats(FloatType::F32))
            .activations([Apart(8), Dense])
            .result([Apart(1), Dense]),
        // Rows of results are multiples of 16 bytes, matrices are not.
        Case::new([17, 64, 160, 2], F16)
            .kind(floats(FloatType::Bf16))
            .activations([Apart(24), Dense])
            .result([Apart(3), Dense]),
        Case::new([70, 136, 80, 3], BF16)
            .shared_weights()
            .activations([Apart(16), Dense])
            .result([Apart(8), Dense]),
        // One of the two.
        Case::new([4, 48, 64, 3], F16).activations([Apart(1000), Dense]),
        Case::new([4, 48, 64, 3], F16).result([Apart(5), Dense]),
        // Strides of one entry are not looked at.
        Case::new([6, 24, 32, 1], F16).activations([Shared, Dense]).result([Apart(1), Dense]),
    ]);
}

#[test]
fn shared_activations() {
    let all = [Shared, Shared];
    check_all(&[
        Case::new([5, 40, 96, 2], F16).activations([Shared, Dense]).result([Apart(9), Dense]),
        Case::new([37, 65, 48, 3], BF16)
            .shared_weights()
            .kind(ResultKind::Floats(FloatType::F32))
            .activations([Shared, Dense]),
        Case::new([3, 40, 96, 3], Left::Blocks(Linear)).activations(all).result([Apart(7), Dense]),
        Case::new([20, 56, 48, 2], Left::Blocks(Blocked128x4)).activations(all),
        Case::new([128, 48, 64, 3], Left::Blocks(Blocked128x4)).activations(all),
        Case::new([9, 40, 96, 2], Left::Blocks(Linear))
            .format(Format::Mxfp4)
            .shared_weights()
            .activations(all),
    ]);
}

#[test]
fn blocks_apart_from_each_other() {
    let linear = |sizes| Case::new(sizes, Left::Blocks(Linear));
    let tiles = |sizes| Case::new(sizes, Left::Blocks(Blocked128x4));
    check_all(&[
        linear([5, 40, 96, 2]).activations([Apart(3 * 96), Apart(3 * 6)]).result([Apart(1), Dense]),
        // Rows of codes that are no multiples of 16 bytes: strides of whole rows all the same.
        linear([3, 24, 48, 3])
            .activations([Apart(48), Apart(3)])
            .kind(ResultKind::Floats(FloatType::F32)),
        linear([7, 32, 64, 3]).activations([Dense, Apart(1)]),
        linear([7, 32, 80, 3]).activations([Apart(16), Dense]),
        linear([33, 40, 96, 2]).format(Format::Mxfp4).activations([Apart(32), Apart(5)]),
        tiles([5, 40, 96, 2]).activations([Apart(96), Apart(512)]).result([Apart(12), Dense]),
        tiles([9, 24, 48, 3]).activations([Apart(16), Apart(16)]),
        // Whole tiles, which the copy engine takes as they are.
        tiles([128, 40, 64, 3]).activations([Apart(64), Apart(16)]).result([Apart(8), Dense]),
        tiles([11, 40, 160, 2]).format(Format::Mxfp4).activations([Dense, Apart(1024)]),
    ]);
}

#[test]
fn results_in_nvfp4_apart_from_each_other() {
    check_all(&[
        Case::new([5, 48, 96, 2], F16)
            .kind(ResultKind::Nvfp4(Linear))
            .activations([Apart(8), Dense])
            .result([Apart(16), Apart(1)]),
        Case::new([19, 80, 64, 3], BF16)
            .kind(ResultKind::Nvfp4(Blocked128x4))
            .activations([Shared, Dense])
            .result([Apart(3 * 80), Apart(512)]),
        Case::new([3, 32, 48, 3], Left::Blocks(Linear))
            .kind(ResultKind::Nvfp4(Blocked128x4))
            .activations([Apart(48), Apart(3)])
            .result([Dense, Apart(7)]),
        Case::new([6, 48, 64, 2], Left::Blocks(Blocked128x4))
            .kind(ResultKind::Nvfp4(Linear))
            .result([Apart(32), Dense]),
    ]);
}

/// Every configuration of each machine, on a batch of two that fills no tile.
#[test]
fn every_kernel() {
    let kernels = MACHINES.map(|name| emulated(name, Schedule::Random(5)));
    let lies = |case: Case| {
        let scales = if matches!(case.left, Left::Blocks(_)) { Apart(3) } else { Dense };
        let weights = case.sizes[1];
        case.activations([Apart(32), scales]).result([Apart(weights), Dense])
    };
    for config in &hopper::CONFIGS {
        let left = Left::Halves(config.scheme.operand);
        let (m, n) = (config.tokens as usize + 3, config.rows as usize + 24);
        let mut case = lies(Case::new([m, n, 160, 2], left)).format(config.scheme.format);
        case.overrides.kernel = Some(config.name.into());
        case.check(&kernels[0]);
    }
    for config in &blackwell::CONFIGS {
        let left = config.left.map_or(Left::Blocks(Linear), Left::Halves);
        // A part of K and a bit for each CTA that shares a tile.
        let k = (config.step() * config.splits) as usize + 32;
        for [m, n] in [[67, 40], [5, 200]] {
            let mut case = lies(Case::new([m, n, k, 2], left)).format(config.format);
            case.overrides.kernel = Some(config.name.into());
            case.check(&kernels[1]);
        }
    }
}

/// Where matrices are taken from a wrong place, the first wrong element is the second entry's.
#[test]
fn a_wrong_place_is_found_and_named() {
    for kernels in MACHINES.map(|name| emulated(name, Schedule::Eager)) {
        let case = Case::new([5, 40, 96, 2], F16).activations([Apart(8), Dense]);
        let (check, _) = case.run::<Nvfp4>(&kernels, false);
        assert_eq!(first_mismatch(&check, 5), Some([1, 0, 0]), "{}", check.summary());
    }
}

/// A plan of weights that are all zero.
fn planned(kernels: &Kernels, sizes: [usize; 4], left: Left, output: Output) -> Planned {
    let [m, n, k, l] = sizes;
    let kind = match left {
        Left::Blocks(layout) => ActivationKind::Blocks { format: Format::Nvfp4, layout },
        Left::Halves(operand) => ActivationKind::Halves(operand),
    };
    let dims = Dims::new(1, n, k).expect("dims");
    let (codes, scales) = (vec![0; n * k / 2], vec![0; n * k / 16]);
    let weights = BlockScaled::<Nvfp4>::new("w", dims, Linear, codes, scales, 1.0).expect("fits");
    let repacked = Repacked::for_device(kernels.device(), &weights, kind).expect("repacked");
    let weights = repacked.upload(kernels.device()).expect("uploaded");
    let options = GemmOptions { output, ..GemmOptions::default() };
    let gemm = Gemm::new(kernels, &weights, [l, m], kind, 1.0, &options).expect("planned");
    Planned { gemm, weights }
}

struct Planned {
    gemm: Gemm,
    weights: DeviceWeights,
}

/// What is launched before a product depends on where its activations are.
#[test]
fn launches_before_a_product() {
    const SIZES: [usize; 4] = [4, 24, 48, 3];
    let [h200, b200] = MACHINES.map(|name| emulated(name, Schedule::Eager));
    // Codes are decoded on the one machine; on the other they are padded, then scales laid out.
    for (codes, scales, layout, launches) in [
        (None, None, Linear, [1, 2]),
        (None, None, Blocked128x4, [3, 2]),
        (Some(240), Some(28), Linear, [3, 4]),
        (Some(240), Some(528), Blocked128x4, [3, 4]),
        (Some(0), Some(0), Linear, [1, 2]),
        (Some(0), Some(0), Blocked128x4, [1, 2]),
    ] {
        for (kernels, expected) in [&h200, &b200].into_iter().zip(launches) {
            let Planned { gemm, .. } =
                planned(kernels, SIZES, Left::Blocks(layout), Output::default());
            let dense = gemm.plan().clone();
            let strides = BatchStrides {
                activations: codes,
                activation_scales: scales,
                ..BatchStrides::default()
            };
            let gemm = gemm.with_strides(strides).expect("allowed");
            assert_eq!(gemm.plan().before.len(), expected, "{strides:?}\n{}", gemm.plan());
            let again = gemm.with_strides(BatchStrides::default()).expect("allowed");
            assert_eq!(again.plan(), &dense, "{strides:?}");
        }
    }
}

/// The plan says how results get to memory, which their stride may change.
#[test]
fn the_plan_knows_who_stores_results() {
    let kernels = emulated("emu:b200", Schedule::Eager);
    let Planned { mut gemm, .. } = planned(&kernels, [4, 24, 48, 3], F16, Output::default());
    for (between, said) in [(0, "copy engine stores"), (1, "threads store"), (8, "copy engine")] {
        let result = Some(4 * 24 + between);
        gemm = gemm.with_strides(BatchStrides { result, ..BatchStrides::default() }).expect("fits");
        assert!(gemm.plan().to_string().contains(said), "{between}\n{}", gemm.plan());
    }
}

/// Fails unless `result` is the error for a shape with these fields.
fn refused<T>(result: Result<T>, fields: [&str; 3]) {
    match result.map(|_| ()) {
        Err(error @ Error::Shape { .. }) => {
            let [field, required, actual] = fields;
            assert_eq!(error.to_string(), format!("{field} must be {required}, but is {actual}"));
            assert_eq!(error.exit_code(), 2);
        }
        other => panic!("{fields:?}: {other:?}"),
    }
}

/// Strides of two matrices of three tokens, each refused.
#[test]
fn strides_that_no_kernel_takes() {
    const A: &str = "batch stride of the activations";
    const CODES: &str = "batch stride of the activations' codes";
    const A_SCALES: &str = "batch stride of the activations' scales";
    const C: &str = "batch stride of the result";
    const C_CODES: &str = "batch stride of the result's codes";
    const C_SCALES: &str = "batch stride of the result's scales";
    let none = BatchStrides::default();
    let a = |stride| BatchStrides { activations: Some(stride), ..none };
    let a_scales = |stride| BatchStrides { activation_scales: Some(stride), ..none };
    let c = |stride| BatchStrides { result: Some(stride), ..none };
    let c_scales = |stride| BatchStrides { result_scales: Some(stride), ..none };
    let (linear, tiles) = (Left::Blocks(Linear), Left::Blocks(Blocked128x4));
    let floats = Output::default();
    let blocks = Output::Nvfp4 { scale: 1.0, layout: Linear };
    let (eights, sixteens) = ("a multiple of 8 elements", "a multiple of 16 elements");
    let (far, of_halves) = ("1099511627776", "0 or from 144 to 549755813880 elements");
    for kernels in MACHINES.map(|name| emulated(name, Schedule::Eager)) {
        for (k, left, output, strides, expected) in [
            (48, F16, floats, a(143), [A, of_halves, "143"]),
            (48, F16, floats, a(1), [A, of_halves, "1"]),
            (48, F16, floats, a(1 << 40), [A, of_halves, far]),
            (48, BF16, floats, a(148), [A, eights, "148"]),
            (48, F16, floats, a_scales(512), [A_SCALES, "absent beside f16", "512"]),
            (48, F16, floats, c(143), [C, "at least 144 elements", "143"]),
            (48, F16, floats, c(0), [C, "at least 144 elements", "0"]),
            (48, F16, floats, c_scales(9), [C_SCALES, "absent beside f16", "9"]),
            (48, linear, floats, a(136), [CODES, "0 or from 144 to 2199023255520 elements", "136"]),
            (48, linear, floats, a(152), [CODES, sixteens, "152"]),
            (96, linear, floats, a(304), [CODES, "a multiple of 32 elements", "304"]),
            (48, linear, floats, a(0), [A_SCALES, "0, as that of the codes", "9"]),
            (
                48,
                linear,
                floats,
                a_scales(0),
                [A_SCALES, "other than 0, as that of the codes", "0"],
            ),
            (
                48,
                linear,
                floats,
                a_scales(8),
                [A_SCALES, "0 or from 9 to 1099511627760 bytes", "8"],
            ),
            (48, tiles, floats, a_scales(520), [A_SCALES, "a multiple of 16 bytes", "520"]),
            (48, F16, blocks, c(128), [C_CODES, "at least 144 elements", "128"]),
            (48, F16, blocks, c(152), [C_CODES, sixteens, "152"]),
            (48, F16, blocks, c_scales(8), [C_SCALES, "at least 9 bytes", "8"]),
        ] {
            let Planned { gemm, .. } = planned(&kernels, [3, 48, k, 2], left, output);
            refused(gemm.with_strides(strides), expected);
        }
        for stride in [usize::MAX, usize::MAX / 2 - 50] {
            let Planned { gemm, .. } = planned(&kernels, [3, 48, 48, 2], F16, floats);
            let error = gemm.with_strides(c(stride)).expect_err("beyond any memory");
            assert!(matches!(error, Error::Overflow { .. }), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}

/// Buffers hold all matrices; they may be longer only where their stride is given.
#[test]
fn buffers_must_hold_all_matrices() {
    for kernels in MACHINES.map(|name| emulated(name, Schedule::Eager)) {
        let Planned { gemm, weights } = planned(&kernels, [3, 48, 48, 2], F16, Output::default());
        let buffer = |bytes: usize| {
            DeviceBuffer::upload(kernels.device(), "x", &vec![0; bytes]).expect("memory")
        };
        let launch = |gemm: &Gemm, [a, c]: [usize; 2]| {
            let (a, c) = (buffer(a), buffer(c));
            let (a, c) = (ActivationBuffers::Halves(&a), ResultBuffers::Floats(&c));
            gemm.launch(a, &weights, c, None, Vectors::default())
        };
        let (a, c) = ("bytes of the activations", "bytes of the result");
        let given = BatchStrides { activations: Some(160), ..BatchStrides::default() };
        let gemm = gemm.with_strides(given).expect("allowed");
        assert_eq!(gemm.out_bytes().expect("small"), [576, 0]);
        launch(&gemm, [608, 576]).expect("just enough");
        launch(&gemm, [900, 576]).expect("more");
        refused(launch(&gemm, [607, 576]), [a, "at least 608", "607"]);
        refused(launch(&gemm, [608, 577]), [c, "576", "577"]);

        let given = BatchStrides { activations: Some(0), result: Some(145), ..given };
        let gemm = gemm.with_strides(given).expect("allowed");
        assert_eq!(gemm.out_bytes().expect("small"), [578, 0]);
        launch(&gemm, [288, 578]).expect("just enough");
        refused(launch(&gemm, [287, 578]), [a, "at least 288", "287"]);
        refused(launch(&gemm, [288, 577]), [c, "at least 578", "577"]);
    }
}
