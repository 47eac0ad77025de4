//! GEMM on batches whose matrices are strided or, of activations, shared: right results, nothing
//! between matrices read or written, and typed errors for strides that no kernel takes. On both
//! emulated machines; right results also on a GPU where there is one.

use fp4_formats::FloatType;
use fp4_formats::Nvfp4;
use fp4_formats::ScaleLayout::{Blocked128x4, Linear};
use fp4_formats::gemm::{Operands, sm90, sm100, sm120};
use fp4_formats::quantize::Format;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::Error;
use nvfp4::gemm::{
    ActivationBuffers, BatchStrides, DeviceWeights, Gemm, GemmOptions, Output, Repacked,
    ResultBuffers, Vectors,
};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::tune::ResultKind;
use nvfp4_lab::gemm::Verify;
use nvfp4_tests::gemm::Placement::{Dense, Padded, Shared};
use nvfp4_tests::gemm::{ActivationType, BF16, BLOCKED, Case, F16, LINEAR};
use nvfp4_tests::refusals::refused;
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, also_gpu, emulated};
use ptx_emu::Schedule;

/// A batch with an f16 result.
fn case(sizes: [usize; 4], activations: ActivationType) -> Case {
    Case::new(sizes).activations(activations).result(FloatType::F16)
}

/// Runs all cases under all schedules on both machines, and on a GPU where there is one.
fn check_all(cases: &[Case]) {
    let machines = DEVICES.iter().flat_map(|name| SCHEDULES.map(|s| emulated(name, s)));
    let machines: Vec<Kernels> = machines.chain(also_gpu()).collect();
    for case in cases {
        case.check_on(&machines);
    }
}

#[test]
fn padded_halves() {
    check_all(&[
        // A slot for eight tokens; rows of results in and out of step with 16 bytes.
        case([5, 40, 96, 2], F16)
            .activations_at([Padded(3 * 96), Dense])
            .result_at([Padded(3 * 40), Dense]),
        case([3, 33, 96, 3], BF16)
            .format(Format::Mxfp4)
            .result(FloatType::F32)
            .activations_at([Padded(8), Dense])
            .result_at([Padded(1), Dense]),
        // Rows of results are multiples of 16 bytes, matrices are not.
        case([17, 64, 160, 2], F16)
            .result(FloatType::Bf16)
            .activations_at([Padded(24), Dense])
            .result_at([Padded(3), Dense]),
        case([70, 136, 80, 3], BF16)
            .shared_weights()
            .activations_at([Padded(16), Dense])
            .result_at([Padded(8), Dense]),
        // One of the two.
        case([4, 48, 64, 3], F16).activations_at([Padded(1000), Dense]),
        case([4, 48, 64, 3], F16).result_at([Padded(5), Dense]),
        // Strides of one entry are not looked at.
        case([6, 24, 32, 1], F16).activations_at([Shared, Dense]).result_at([Padded(1), Dense]),
    ]);
}

#[test]
fn shared_activations() {
    let all = [Shared, Shared];
    check_all(&[
        case([5, 40, 96, 2], F16).activations_at([Shared, Dense]).result_at([Padded(9), Dense]),
        case([37, 65, 48, 3], BF16)
            .shared_weights()
            .result(FloatType::F32)
            .activations_at([Shared, Dense]),
        case([3, 40, 96, 3], LINEAR).activations_at(all).result_at([Padded(7), Dense]),
        case([20, 56, 48, 2], BLOCKED).activations_at(all),
        case([128, 48, 64, 3], BLOCKED).activations_at(all),
        case([9, 40, 96, 2], LINEAR).format(Format::Mxfp4).shared_weights().activations_at(all),
    ]);
}

#[test]
fn padded_blocks() {
    let linear = |sizes| case(sizes, LINEAR);
    let tiles = |sizes| case(sizes, BLOCKED);
    check_all(&[
        linear([5, 40, 96, 2])
            .activations_at([Padded(3 * 96), Padded(3 * 6)])
            .result_at([Padded(1), Dense]),
        // Rows of codes that are no multiples of 16 bytes: strides of whole rows all the same.
        linear([3, 24, 48, 3]).activations_at([Padded(48), Padded(3)]).result(FloatType::F32),
        linear([7, 32, 64, 3]).activations_at([Dense, Padded(1)]),
        linear([7, 32, 80, 3]).activations_at([Padded(16), Dense]),
        linear([33, 40, 96, 2]).format(Format::Mxfp4).activations_at([Padded(32), Padded(5)]),
        tiles([5, 40, 96, 2])
            .activations_at([Padded(96), Padded(512)])
            .result_at([Padded(12), Dense]),
        tiles([9, 24, 48, 3]).activations_at([Padded(16), Padded(16)]),
        // Whole tiles, which the copy engine takes as they are.
        tiles([128, 40, 64, 3])
            .activations_at([Padded(64), Padded(16)])
            .result_at([Padded(8), Dense]),
        tiles([11, 40, 160, 2]).format(Format::Mxfp4).activations_at([Dense, Padded(1024)]),
    ]);
}

#[test]
fn padded_results_in_nvfp4() {
    check_all(&[
        case([5, 48, 96, 2], F16)
            .result(ResultKind::Blocks(Format::Nvfp4, Linear))
            .activations_at([Padded(8), Dense])
            .result_at([Padded(16), Padded(1)]),
        case([19, 80, 64, 3], BF16)
            .result(ResultKind::Blocks(Format::Nvfp4, Blocked128x4))
            .activations_at([Shared, Dense])
            .result_at([Padded(3 * 80), Padded(512)]),
        case([3, 32, 48, 3], LINEAR)
            .result(ResultKind::Blocks(Format::Nvfp4, Blocked128x4))
            .activations_at([Padded(48), Padded(3)])
            .result_at([Dense, Padded(7)]),
        case([6, 48, 64, 2], BLOCKED)
            .result(ResultKind::Blocks(Format::Nvfp4, Linear))
            .result_at([Padded(32), Dense]),
    ]);
}

/// Every configuration of each machine, on a batch of two that fills no tile.
#[test]
fn every_kernel() {
    let [h200, b200, rtx5090] = MACHINES.map(|name| emulated(name, SCHEDULES[2]));
    let check = |case: Case, name: &str, kernels: &Kernels| {
        let scales = match case.activations {
            ActivationType::Blocks(_) => Padded(3),
            ActivationType::Halves(_) | ActivationType::Fp8(Some(_)) => Dense,
            ActivationType::Fp8(None) => Padded(8),
        };
        let row = case.shape.n;
        let case = case.activations_at([Padded(32), scales]);
        let mut case = case.result_at([Padded(row), Dense]);
        case.overrides.kernel = Some(name.into());
        case.check(kernels);
    };
    for config in &sm90::CONFIGS {
        let activations = ActivationType::as_they_are(config.scheme.operand);
        let (m, n) = (config.tokens as usize + 3, config.rows as usize + 24);
        let case = case([m, n, 160, 2], activations).format(config.scheme.format);
        check(case, config.name, &h200);
    }
    for config in &sm100::CONFIGS {
        let activations = config.activations.map_or(LINEAR, ActivationType::as_they_are);
        // A part of K and a bit for each CTA that shares a tile.
        let k = (config.step() * config.k_parts()) as usize + 32;
        for [m, n] in [[67, 40], [5, 200]] {
            let case = case([m, n, k, 2], activations).format(config.format);
            check(case, config.name, &b200);
        }
    }
    for config in &sm120::CONFIGS {
        let (m, n) = (config.tokens as usize + 3, config.rows as usize + 24);
        let Operands { weights, activations } = config.operands();
        let activations = activations.map_or(LINEAR, ActivationType::as_they_are);
        check(case([m, n, 160, 2], activations).format(weights), config.name, &rtx5090);
    }
}

/// A matrix that is taken from a wrong place is found: the first wrong element is the second
/// entry's.
#[test]
fn a_wrong_place_is_found_and_named() {
    const M: usize = 5;
    for kernels in MACHINES.map(|name| emulated(name, Schedule::Eager)) {
        let case = case([M, 40, 96, 2], F16).activations_at([Padded(8), Dense]);
        let (expected, result) = case.run_as_dense(&kernels);
        let check = result.verify(&expected.reference);
        // To the report a row of the result is a batch entry.
        let first = check.first_mismatch.map(|first| [first.batch / M, first.batch % M, first.row]);
        assert_eq!(first, Some([1, 0, 0]), "{}", check.summary());
    }
}

/// A plan of weights that are all zero.
fn planned(
    kernels: &Kernels,
    sizes: [usize; 4],
    activations: ActivationType,
    output: Output,
) -> Planned {
    let [m, n, k, l] = sizes;
    let kind = activations.kind(Format::Nvfp4);
    let dims = Dims::new(1, n, k).expect("dims");
    let (codes, scales) = (vec![0; n * k / 2], vec![0; n * k / 16]);
    let weights = BlockScaled::<Nvfp4>::new("w", dims, Linear, codes, scales, 1.0).expect("fits");
    let repacked = Repacked::for_device(kernels.device(), &weights, kind).expect("repacked");
    let weights = repacked.upload(kernels.device()).expect("uploaded");
    let options = GemmOptions::new().output(output);
    let gemm = Gemm::new(kernels, &weights, [l, m], kind, &options).expect("planned");
    Planned { gemm, weights }
}

struct Planned {
    gemm: Gemm,
    weights: DeviceWeights,
}

/// The launches before a product depend on the placement of its activations. Before one of few
/// tokens it is nothing on sm_100a, and on sm_120f it is never anything.
#[test]
fn launches_before_a_product() {
    const SIZES: [usize; 4] = [40, 24, 48, 3];
    let [h200, b200, rtx5090] = MACHINES.map(|name| emulated(name, Schedule::Eager));
    // Codes are decoded on the one machine; on the other they are padded, then scales laid out.
    let (codes, scales) = (Some(40 * 48 + 48), Some(40 * 3 + 8));
    for (codes, scales, layout, launches) in [
        (None, None, Linear, [1, 2]),
        (None, None, Blocked128x4, [3, 2]),
        (codes, scales, Linear, [3, 4]),
        (codes, Some(528), Blocked128x4, [3, 4]),
        (Some(0), Some(0), Linear, [1, 2]),
        (Some(0), Some(0), Blocked128x4, [1, 2]),
    ] {
        for (kernels, tokens, expected) in [
            (&h200, SIZES[0], launches[0]),
            (&b200, SIZES[0], launches[1]),
            (&h200, 4, launches[0]),
            (&b200, 4, 0),
            (&rtx5090, SIZES[0], 0),
            (&rtx5090, 4, 0),
        ] {
            let sizes = [tokens, SIZES[1], SIZES[2], SIZES[3]];
            let Planned { gemm, .. } =
                planned(kernels, sizes, ActivationType::Blocks(layout), Output::default());
            let dense = gemm.plan().clone();
            let strides = BatchStrides::new().activations(codes).activation_scales(scales);
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
        gemm = gemm.with_strides(BatchStrides::new().result(result)).expect("fits");
        assert!(gemm.plan().to_string().contains(said), "{between}\n{}", gemm.plan());
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
    let a = |stride| none.activations(stride);
    let a_scales = |stride| none.activation_scales(stride);
    let c = |stride| none.result(stride);
    let c_scales = |stride| none.result_scales(stride);
    let (linear, tiles) = (LINEAR, BLOCKED);
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
        let given = BatchStrides::new().activations(160);
        let gemm = gemm.with_strides(given).expect("allowed");
        assert_eq!(gemm.out_bytes().expect("small"), [576, 0]);
        launch(&gemm, [608, 576]).expect("just enough");
        launch(&gemm, [900, 576]).expect("more");
        refused(launch(&gemm, [607, 576]), [a, "at least 608", "607"]);
        refused(launch(&gemm, [608, 577]), [c, "576", "577"]);

        let given = given.activations(0).result(145);
        let gemm = gemm.with_strides(given).expect("allowed");
        assert_eq!(gemm.out_bytes().expect("small"), [578, 0]);
        launch(&gemm, [288, 578]).expect("just enough");
        refused(launch(&gemm, [287, 578]), [a, "at least 288", "287"]);
        refused(launch(&gemm, [288, 577]), [c, "at least 578", "577"]);
    }
}
