//! Rows that choose their weights: against the same product with slots whose weights are copies of the chosen ones,
//! byte by byte. The reference is compared with the oracle in other tests.

use fp4_formats::gemm::Problems;
use fp4_formats::gemm::groups::MAX_PROBLEMS;
use fp4_formats::gemm::table::kernels;
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, Operand, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, ChosenRows, DeviceWeights, GatedWeights, Gemm,
    GemmOptions, GemmOverrides, GroupBuffers, Grouping, HalfMatrix, Output, Repacked,
    ResultBuffers, UpOptions, Vectors, Workspace,
};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::blocks;
use nvfp4_tests::{DEVICES, SCHEDULES, TARGETS, emulated};

/// The bytes of the result before the launch.
const POISON: u8 = 0xee;
/// Experts of all devices, the first one of this device, and how many it has.
const EXPERTS: [usize; 3] = [9, 2, 5];
/// Ids of rows: of this device, one of them twice; of others; of nobody.
const IDS: [i32; 16] = [4, 2, 0, 6, -1, 8, 4, 9, i32::MIN, 3, 0, 1, i32::MAX, 7, 8, 100];
const SIZES: [usize; 2] = [208, 224];
/// Rows, several for each lane of a warp: the ids, then some of others, and one of this device at the end.
const ROWS: usize = 250;

fn all_ids() -> Vec<i32> {
    let others = [0, 8, -1, 1, 9].into_iter().cycle();
    IDS.into_iter().chain(others).take(ROWS - 1).chain([5]).collect()
}

struct Operands<F> {
    gates: Vec<BlockScaled<F>>,
    ups: Vec<BlockScaled<F>>,
    x: HalfMatrix,
    /// Factors of each expert, and biases of each, of both halves.
    factors: [Vec<f32>; 2],
    biases: [Vec<f32>; 2],
}

impl<F: BlockFormat> Operands<F> {
    fn new(tokens: usize, half: HalfType, seed: u64) -> Self {
        let ([n, k], [_, _, count]) = (SIZES, EXPERTS);
        let mut rng = SplitMix64::new(seed);
        let mut tensors = || -> Vec<_> {
            let make = |expert: usize| {
                let (of, scale) = (Generator::FullRange, [1.0, 0.5, 4.0][expert % 3]);
                blocks::<F>(of, [1, n, k], ScaleLayout::Linear, scale, &mut rng)
            };
            (0..count).map(make).collect()
        };
        let [gates, ups] = [(); 2].map(|()| tensors());
        let mut floats =
            |count: usize| -> Vec<f32> { (0..count).map(|_| rng.normal() as f32).collect() };
        let x = floats(tokens * k);
        let x = HalfMatrix::round("x", Dims::new(1, tokens, k).expect("few"), half, &x);
        Self {
            gates,
            ups,
            x: x.expect("finite"),
            factors: [(); 2].map(|()| floats(count)),
            biases: [(); 2].map(|()| floats(count * n)),
        }
    }

    /// The weights of these experts, one after the other.
    fn weights(&self, kernels: &Kernels, gated: bool, experts: &[usize]) -> DeviceWeights {
        let (device, kind) = (kernels.device(), ActivationKind::Halves(self.x.operand()));
        let repack = |&expert: &usize| {
            let (gate, up) = (&self.gates[expert], &self.ups[expert]);
            match gated {
                false => Repacked::for_device(device, gate, kind),
                true => Repacked::gated(device, &GatedWeights::pair(gate, up)?, kind),
            }
        };
        let parts: Result<Vec<_>, _> = experts.iter().map(repack).collect();
        Repacked::stack(&parts.expect("weights")).expect("alike").upload(device).expect("memory")
    }
}

fn upload(kernels: &Kernels, bytes: &[u8]) -> DeviceBuffer {
    DeviceBuffer::upload(kernels.device(), "x", bytes).expect("memory")
}

fn words<T: Copy>(values: &[T], to: impl Fn(T) -> [u8; 4]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

/// A launch: elements or codes, and scales.
fn launch<F: BlockFormat>(
    kernels: &Kernels,
    operands: &Operands<F>,
    grouping: Grouping,
    options: &GemmOptions,
    experts: &[usize],
    [counts, x]: [&[u8]; 2],
) -> [Vec<u8>; 2] {
    let gated = options.up.is_some();
    let weights = operands.weights(kernels, gated, experts);
    let kind = ActivationKind::Halves(operands.x.operand());
    let product = Gemm::grouped(kernels, &weights, grouping, kind, options).expect("planned");
    let of = |values: &[f32], each: usize| {
        let own = experts.iter().flat_map(|expert| &values[expert * each..][..each]);
        upload(kernels, &words(&own.copied().collect::<Vec<f32>>(), f32::to_le_bytes))
    };
    let factors = operands.factors.each_ref().map(|factors| of(factors, 1));
    let biases = operands.biases.each_ref().map(|bias| of(bias, SIZES[0]));
    let out = product.out_bytes().expect("few").map(|bytes| vec![POISON; bytes.max(1)]);
    let [elements, scales] = out.map(|bytes| upload(kernels, &bytes));
    let workspace = Workspace::new(kernels.device(), product.workspace_bytes()).expect("memory");
    let status = upload(kernels, &[POISON; 4]);
    let counts = upload(kernels, counts);
    let groups = GroupBuffers {
        status: Some(&status),
        factors: Some(&factors[0]),
        up_factors: gated.then_some(&factors[1]),
        own_vectors: true,
        next: Some(&weights),
        ..GroupBuffers::of(&counts)
    };
    let out = match options.output {
        Output::Floats(_) => ResultBuffers::Floats(&elements),
        Output::Nvfp4 { .. } | Output::Mxfp4 { .. } => {
            ResultBuffers::Blocks { codes: &elements, scales: &scales }
        }
    };
    let up_bias = gated.then_some(&biases[1]);
    let vectors = Vectors { bias: Some(&biases[0]), up_bias, ..Vectors::default() };
    let x = upload(kernels, x);
    let x = ActivationBuffers::Halves(&x);
    product.launch_grouped(groups, x, &weights, out, Some(&workspace), vectors).expect("launched");
    assert_eq!(status.read().expect("readable"), [POISON; 4], "ids may have any value");
    [elements, scales].map(|buffer| buffer.read().expect("readable"))
}

/// Checks that rows have their experts' products, whoever has the activations, and that others are left alone.
fn check<F: BlockFormat>(kernels: &Kernels, half: HalfType, options: &GemmOptions, at: usize) {
    let [experts, first, count] = EXPERTS;
    let ids = all_ids();
    let local = |&id: &i32| usize::try_from(id).ok()?.checked_sub(first).filter(|&at| at < count);
    let local: Vec<Option<usize>> = ids.iter().map(local).collect();
    let shared = (at / 2).is_multiple_of(2);
    let what = format!("{}, {options:?}, shared {shared}", kernels.device().choice());
    let operands = Operands::<F>::new(if shared { 1 } else { ROWS }, half, at as u64);
    let x = operands.x.bytes();
    let chosen = ChosenRows { rows: ROWS, shared, experts, first };
    let all: Vec<usize> = (0..count).collect();
    let ids = words(&ids, i32::to_le_bytes);
    let grouping = Grouping::Chosen(chosen);
    let got = launch(kernels, &operands, grouping, options, &all, [&ids, x]);

    // A slot for each row that has a product.
    let own: Vec<usize> = local.iter().flatten().copied().collect();
    let counts = words(&vec![1; own.len()], i32::to_le_bytes);
    let token = x.len() / if shared { 1 } else { ROWS };
    let rows = local.iter().enumerate().filter(|(_, expert)| expert.is_some()).map(|(row, _)| row);
    let tokens = rows.flat_map(|row| &x[if shared { 0 } else { row * token }..][..token]);
    let tokens: Vec<u8> = tokens.copied().collect();
    let grouping = Grouping::Slots { tokens: 1 };
    let right = launch(kernels, &operands, grouping, options, &own, [&counts[..], &tokens]);
    for (part, (got, right)) in got.iter().zip(&right).enumerate() {
        let row = got.len() / ROWS;
        assert_eq!(row, right.len() / own.len(), "{what}");
        let mut right = right.chunks_exact(row.max(1));
        for (at, (got, expert)) in got.chunks_exact(row.max(1)).zip(&local).enumerate() {
            match expert {
                Some(_) => assert_eq!(Some(got), right.next(), "{what}: part {part}, row {at}"),
                None => assert!(got.iter().all(|&byte| byte == POISON), "{what}: row {at}"),
            }
        }
    }
}

/// Options of a case, without and with a gate.
fn options(at: usize) -> GemmOptions {
    let output = [
        FloatType::F32.into(),
        FloatType::F16.into(),
        Output::Nvfp4 { scale: 0.5, layout: ScaleLayout::Linear },
    ][at % 3];
    let options = GemmOptions::new().alpha(0.75).output(output);
    match at % 2 {
        0 => options.activation(Activation::Silu).up(UpOptions::new().alpha(-1.5)),
        _ => options,
    }
}

/// The plan's choice on machines with their own copies of the code.
#[test]
fn rows_have_the_products_of_their_experts() {
    for at in 0..4 {
        let half = [HalfType::F16, HalfType::Bf16][at / 2 % 2];
        for device in DEVICES {
            check::<Nvfp4>(&emulated(device, SCHEDULES[at % 5]), half, &options(at), at);
        }
    }
}

/// Every kernel for 16-bit activations.
#[test]
fn with_every_grouped_configuration() {
    for device in TARGETS {
        let machines = SCHEDULES.map(|schedule| emulated(device, schedule));
        let tensor = machines[0].device().choice().arch.tensor();
        let grouped = kernels(tensor).iter().filter(|kernel| kernel.problems == Problems::Grouped);
        for (at, kernel) in grouped.enumerate() {
            let Some(Operand::Half(half)) = kernel.operands.activations else { continue };
            let overrides = GemmOverrides::new().kernel(kernel.name.to_string()).split(None);
            let options = options(at).overrides(overrides);
            let machine = &machines[at % 5];
            match kernel.operands.weights {
                Format::Nvfp4 => check::<Nvfp4>(machine, half, &options, at),
                Format::Mxfp4 => check::<Mxfp4>(machine, half, &options, at),
            }
        }
    }
}

/// Invalid rows that choose are refused before anything is launched.
#[test]
fn refused() {
    let kernels = emulated(DEVICES[0], SCHEDULES[0]);
    let operands = Operands::<Nvfp4>::new(1, HalfType::F16, 1);
    let weights = operands.weights(&kernels, false, &[0, 1, 2, 3, 4]);
    let halves = ActivationKind::Halves(HalfType::F16);
    let good = ChosenRows { rows: 3, shared: true, experts: 9, first: 2 };
    let plan = |chosen: ChosenRows, kind| {
        Gemm::grouped(&kernels, &weights, Grouping::Chosen(chosen), kind, &GemmOptions::new())
    };
    for (what, chosen) in [
        ("chosen rows", ChosenRows { rows: 0, ..good }),
        ("chosen rows", ChosenRows { rows: MAX_PROBLEMS as usize + 1, ..good }),
        ("experts of this device", ChosenRows { first: 5, ..good }),
        ("experts of this device", ChosenRows { first: usize::MAX, ..good }),
        ("experts", ChosenRows { experts: 0, ..good }),
        ("experts", ChosenRows { experts: usize::MAX, ..good }),
    ] {
        let error = plan(chosen, halves).expect_err(what).to_string();
        assert!(error.contains(what), "{chosen:?}: {error}");
    }
    for kind in [
        ActivationKind::Blocks { format: Format::Nvfp4, layout: ScaleLayout::Linear },
        ActivationKind::Fp8(None),
    ] {
        let error = plan(good, kind).expect_err("not halves").to_string();
        assert!(error.contains("type of activations"), "{kind:?}: {error}");
    }
    let product = plan(good, halves).expect("planned");
    let [ids, short] = [3, 2].map(|rows| upload(&kernels, &vec![0; rows * 4]));
    let (x, rows) = (upload(&kernels, operands.x.bytes()), upload(&kernels, &[0; 3 * 4]));
    let out = upload(&kernels, &vec![0; product.out_bytes().expect("few")[0]]);
    let workspace = Workspace::new(kernels.device(), product.workspace_bytes()).expect("memory");
    // One token for all rows, no more.
    let long = upload(&kernels, &operands.x.bytes().repeat(3));
    for (what, counts, x, row_factors) in [
        ("row factors of chosen rows", &ids, &x, Some(&rows)),
        ("the ids", &short, &x, None),
        ("activations", &ids, &long, None),
    ] {
        let vectors = Vectors { row_factors, ..Vectors::default() };
        let (a, out) = (ActivationBuffers::Halves(x), ResultBuffers::Floats(&out));
        let groups = GroupBuffers::of(counts);
        let error = product.launch_grouped(groups, a, &weights, out, Some(&workspace), vectors);
        let error = error.expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    }
}
