//! Activations and gated products on the emulated machines, against the f64 oracle.

use fp4_formats::gemm::{Split, sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, HalfType, Nvfp4, ScaleLayout};
use nvfp4::gemm::{
    Activation, Activations, GatedWeights, GemmOptions, GemmResult, HalfMatrix, UpOptions, gemm,
    gemm_gated,
};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::tune::ResultKind;
use nvfp4_lab::gemm::{Verify, reference};
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::{
    ActivationType, BF16, BLOCKED, Case, F16, FLOATS, GatedForm, LINEAR, Placement, RESULTS,
};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, emulated};
use ptx_emu::Schedule;

const ACTIVATIONS: [Activation; 6] = Activation::ALL;

/// Full-range inputs, whose sums are around 1 for K about 100, with everything that differs
/// between cases chosen by `index`.
pub fn varied(sizes: [usize; 4], index: usize) -> Case {
    let mut case = Case::new(sizes).gated_as(GatedForm::ALL[index % 3]);
    case.generator = Generator::FullRange;
    case.seed = index as u64;
    case.alpha = [4.0, -0.75, 16.0][index / 3 % 3];
    case.layout = ScaleLayout::ALL[index / 2 % 2];
    case.magnitude = index % 4 > 1;
    case.activation = ACTIVATIONS[index % 6];
    case.vectors = [index.is_multiple_of(2), index.is_multiple_of(5), index / 3 % 2 == 1];
    case.up([1.0, -2.5][index / 2 % 2], [index / 5 % 2 == 1, index % 4 == 1])
}

/// Every configuration of sm_90a on a shape that fills no tile, alone, with K in parts and divided
/// evenly, under all schedules.
#[test]
fn every_configuration_of_sm_90a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    for (at, config) in sm90::CONFIGS.iter().enumerate() {
        let (m, n) = (config.tokens as usize + 3, config.rows as usize / 2 + 40);
        for (i, (k, split)) in [(160, Split::None), (672, Split::Cluster(3)), (672, Split::StreamK)]
            .into_iter()
            .enumerate()
        {
            let index = 3 * at + i;
            let case = varied([m, n, k, 1], index)
                .decoded_to(config.scheme.format, config.scheme.operand, index)
                .kernel(config.name, split.at_most(config.max_split()))
                .result(RESULTS[index % 3]);
            case.check(&machines[index % 5]);
            let result = RESULTS[3 + index % 4];
            let n = n.next_multiple_of(result.block());
            let blocks = Case { shape: nvfp4::shape::GemmShape { n, ..case.shape }, ..case };
            blocks.result(result).check(&machines[(index + 2) % 5]);
        }
    }
}

/// Every configuration of sm_100a, by the plan's choice of places for the operands.
#[test]
fn every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (i, config) in sm100::CONFIGS.iter().enumerate() {
        for (at, result) in [RESULTS[i % 3], RESULTS[3 + i % 4]].into_iter().enumerate() {
            let (m, n) = ([3, 33, 150][i % 3], [16usize, 80, 208][i / 3 % 3]);
            let n = if at == 0 { n - 5 } else { n.next_multiple_of(result.block()) };
            let k = (config.step() * config.k_parts()) as usize + 32;
            let mut case = varied([m, n, k, 2 + i % 2], i).format(config.format).result(result);
            case.activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => ActivationType::Blocks(ScaleLayout::ALL[i / 2 % 2]),
            };
            case.shared_weights = i % 2 == 1;
            case.kernel(config.name, config.split).check(&machines[(i + 2 * at) % 5]);
        }
    }
}

/// Ragged shapes: columns that are no multiple of 8 or 16, in every form, with every activation and
/// every type of activations and weights.
#[test]
fn ragged_shapes() {
    let machines = SCHEDULES.map(|s| MACHINES.map(|device| emulated(device, s)));
    let mut index = 0;
    for m in [1, 7, 65, 129, 300] {
        for n in [1, 7, 8, 9, 24, 40, 129, 200] {
            let k = [16, 32, 144, 416][index % 4];
            index += 1;
            let format = [Format::Nvfp4, Format::Mxfp4][usize::from(index % 3 == 0)];
            let all = ActivationType::all(format);
            let mut case = varied([m, n, k, 1], index).format(format);
            case.activations = all[index / 2 % all.len()];
            case.result = FLOATS[index / 5 % 3].into();
            case.check_on(&machines[index % 5]);
        }
    }
}

/// Every activation with every type of result, gated and not.
#[test]
fn every_activation_and_result() {
    let machines = DEVICES.map(|device| emulated(device, Schedule::Eager));
    for (i, activation) in ACTIVATIONS.into_iter().enumerate() {
        for (j, result) in RESULTS.into_iter().enumerate() {
            let index = RESULTS.len() * i + j;
            let n = [80, 112].map(|n: usize| n.next_multiple_of(result.block()));
            let case = varied([37, n[0], 160, 1], index).activation(activation).result(result);
            case.activations([LINEAR, F16, BLOCKED, BF16][index % 4]).check_on(&machines);
            let mut plain = Case { gated: None, ..varied([20, n[1], 96, 1], index) };
            (plain.activation, plain.result) = (activation, result);
            plain.check_on(&machines);
        }
    }
}

/// Batches with their own weights and shared, dense and with matrices apart; activations that
/// all entries share.
#[test]
fn batches() {
    let machines = DEVICES.map(|device| emulated(device, SCHEDULES[3]));
    for (index, form) in GatedForm::ALL.into_iter().cycle().take(12).enumerate() {
        let result = RESULTS[index % RESULTS.len()];
        let n = 48usize.next_multiple_of(result.block());
        let mut case = varied([5, n, 192, 3], index).gated_as(form).up(-1.5, [false; 2]);
        (case.vectors, case.magnitude) = ([false; 3], false);
        case.shared_weights = index % 2 == 1;
        case.result = result;
        case.activations = [LINEAR, F16, BLOCKED][index / 4];
        let case = match index / 3 {
            0 => case,
            1 => case.result_at([
                Placement::Padded(n),
                match result {
                    ResultKind::Floats(_) => Placement::Dense,
                    ResultKind::Blocks(..) => Placement::Padded(16),
                },
            ]),
            2 if case.activations == F16 => {
                case.activations_at([Placement::Shared, Placement::Dense])
            }
            _ => case.activations_at([Placement::Shared; 2]),
        };
        case.check_on(&machines);
    }
}

/// Results of 16 bits that are gated by a sigmoid go from registers to memory on sm_90a, in every configuration
/// that can: with the same bits as by way of shared memory, which asking for the largest magnitude does.
#[test]
fn from_registers() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    let sigmoids =
        ACTIVATIONS.into_iter().filter(|activation| activation.combine(true).is_sigmoid_gate());
    let mut cases = sigmoids
        .flat_map(|activation| [FloatType::F16, FloatType::Bf16].map(|result| (activation, result)))
        .cycle();
    let mut index = 0;
    for config in sm90::CONFIGS.iter().filter(|config| config.stages_results()) {
        if config.scheme.operand.half().is_none() {
            continue; // Activations in e4m3 have factors of rows.
        }
        let (tokens, rows) = (config.tokens as usize, config.rows as usize);
        for ([m, n, k, l], split) in [
            ([tokens + 35, rows + 40, 160, 2], Split::None),
            ([tokens - 7, 3 * rows / 2 + 8, 416, 1], Split::StreamK),
            ([1, 8, 160, 1], Split::None),
        ] {
            let (activation, result) = cases.next().expect("they repeat");
            let mut case = varied([m, n, k, l], index)
                .activation(activation)
                .decoded_to(config.scheme.format, config.scheme.operand, index)
                .kernel(config.name, split)
                .result(result)
                .up([1.0, -2.5, 1e37][index % 3], [false; 2]);
            (case.vectors, case.magnitude) = ([false; 3], false);
            case.alpha = [4.0, 1e37, -0.75][index / 3 % 3];
            let machine = &machines[index % 5];
            let registers = case.check(machine);
            case.magnitude = true;
            let shared = case.check(machine);
            let [one, other] = [registers.values(), shared.values()];
            let differs = one.iter().zip(&other).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differs, None, "{case:?}: first value that differs");
            index += 1;
        }
    }
    assert!(index >= 9, "{index} cases");
}

/// K in parts of every kind on sm_90a, with a fix-up in the workspace and without.
#[test]
fn splits_of_k() {
    let kernels = emulated(DEVICES[0], SCHEDULES[4]);
    let splits = [Split::None, Split::Cluster(2), Split::Cluster(5), Split::StreamK];
    for (index, split) in splits.into_iter().enumerate() {
        for (at, m) in [4, 130].into_iter().enumerate() {
            let mut case = varied([m, 130, 2064, 1], 2 * index + at).activations(F16);
            case.overrides.split = Some(split);
            case.check(&kernels);
        }
    }
}

/// The weights' tensor scales of both halves are apart, and those of a decoded MXFP4.
#[test]
fn scales_of_both_halves() {
    let machines = DEVICES.map(|device| emulated(device, Schedule::Lazy));
    for format in [Format::Nvfp4, Format::Mxfp4] {
        for &activations in ActivationType::all(format) {
            let case = varied([9, 56, 96, 1], 3).format(format).activations(activations);
            let gated = case.gated.map(|gated| nvfp4_tests::gemm::Gated {
                form: GatedForm::Pair,
                tensor_scale: 24.0,
                ..gated
            });
            Case { gated, tensor_scales: [2.0, 0.125], ..case }.check_on(&machines);
        }
    }
}

const K: usize = 16;

fn zeros(rows: usize) -> BlockScaled<Nvfp4> {
    let dims = Dims::new(1, rows, K).expect("dims");
    let layout = ScaleLayout::Linear;
    BlockScaled::new("w", dims, layout, vec![0; rows * K / 2], vec![0x38; rows], 1.0).expect("w")
}

/// Magnitudes from the smallest subnormal to the largest finite number, and around what
/// activations turn at.
fn values() -> Vec<f32> {
    let mut values = vec![0.0, f32::from_bits(1), 1e-40, f32::MIN_POSITIVE, f32::MAX];
    values.extend((-37..=38).step_by(3).map(|exponent| 10f32.powi(exponent)));
    values.extend([0.75, 1.278, 2.0, 5.0, 6.5, 7.0, 7.0f32.next_up(), 7.0f32.next_down(), 7.5]);
    values.extend([9.0, 13.0, 20.0, 87.0, 88.0, 89.0, 103.0, 110.0]);
    values.iter().flat_map(|&x| [x, -x]).collect()
}

/// The bias alone makes the results: every pair of values through every activation.
fn of_biases(activation: Activation, pairs: &[(f32, f32)]) -> GemmOptions {
    let (gate, up): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let up = UpOptions::new().alpha(0.0).bias(up);
    let output = FloatType::F32;
    let (bias, up) = (Some(gate), Some(up));
    GemmOptions::new().alpha(0.0).bias(bias).up(up).activation(activation).output(output)
}

fn verified(what: &str, result: &GemmResult, reference: &nvfp4_lab::oracle::Reference) {
    assert!(result.values().iter().all(|x| !x.is_nan()), "{what}: NaN");
    let check = result.verify(reference);
    assert!(check.passed(), "{what}\n{}\n{}", result.plan, check.summary());
}

#[test]
fn near_zero_at_the_clamp_and_at_the_ends_of_f32() {
    let values = values();
    let ups = [0.0, -0.0, 1e-40, 1.0, -1.0, 6.9, -7.0, 7.5, -8.0, 1e20, -1e38, f32::MAX, f32::MIN];
    let pairs: Vec<_> = values.iter().flat_map(|&x| ups.map(|up| (x, up))).collect();
    let (gate, up) = (zeros(pairs.len()), zeros(pairs.len()));
    let weights = GatedWeights::pair(&gate, &up).expect("a pair");
    let dims = Dims::new(1, 1, K).expect("dims");
    let a = HalfMatrix::round("a", dims, HalfType::F16, &[1.0; K]).expect("a");
    let a = Activations::<Nvfp4>::Halves(&a);
    for kernels in MACHINES.map(|device| emulated(device, Schedule::Eager)) {
        for activation in ACTIVATIONS {
            let what = format!("{activation}");
            let options = of_biases(activation, &pairs);
            let result = gemm_gated(&kernels, &a, &weights, &options).expect("runs");
            verified(&what, &result, &reference(&a, weights, &options).expect("the oracle"));
            let plain = options.up(None::<UpOptions>);
            let result = gemm(&kernels, &a, &gate, &plain).expect("runs");
            verified(&what, &result, &reference(&a, &gate, &plain).expect("the oracle"));
        }
    }
}

/// Finite sums whose affine values are beyond f32, in either half: never a NaN.
#[test]
fn values_beyond_f32() {
    for (index, activation) in ACTIVATIONS.into_iter().enumerate() {
        for (alpha, up) in [(1e37, 1e-37), (1e-37, 1e37), (1e37, 1e37), (-1e37, 0.0)] {
            // Without column factors: the step before them may exceed f32 where the value does not.
            let mut case = Case::new([5, 24, 64, 1]).activation(activation).up(up, [false, true]);
            (case.generator, case.alpha) = (Generator::ContestGemm, alpha);
            case.vectors = [true, false, true];
            case.seed = index as u64;
            for kernels in MACHINES.map(|device| emulated(device, Schedule::Eager)) {
                let result = case.check(&kernels);
                assert!(result.values().iter().all(|x| !x.is_nan()), "{case:?}");
            }
        }
    }
}

/// NaN stays NaN, whichever half has it.
#[test]
fn nan_stays() {
    let (gate, up) = (zeros(16), zeros(16));
    let weights = GatedWeights::pair(&gate, &up).expect("a pair");
    let dims = Dims::new(1, 2, K).expect("dims");
    let a = HalfMatrix::round("a", dims, HalfType::F16, &[1.0; 2 * K]).expect("a");
    let a = Activations::<Nvfp4>::Halves(&a);
    for kernels in MACHINES.map(|device| emulated(device, Schedule::Eager)) {
        for activation in ACTIVATIONS {
            let mut pairs = vec![(0.5, 2.0); 16];
            (pairs[3], pairs[9]) = ((f32::NAN, 0.0), (-3.0, f32::NAN));
            let options = of_biases(activation, &pairs);
            let result = gemm_gated(&kernels, &a, &weights, &options).expect("runs");
            for (at, x) in result.values().into_iter().enumerate() {
                assert_eq!(x.is_nan(), [3, 9].contains(&(at % 16)), "{activation}: {at} is {x}");
            }
        }
    }
}

/// The same weights in all three forms make the same bytes.
#[test]
fn forms_make_the_same_results() {
    let case = varied([11, 40, 160, 2], 7).gated_as(GatedForm::Stacked);
    let inputs = case.inputs::<Nvfp4>();
    let both = &inputs.weights;
    let (n, k) = (40, 160);
    let part = |half: usize, step: usize| {
        let rows = |l: usize| {
            (0..n).map(move |row| (l, if step == 1 { half * n + row } else { 2 * row + half }))
        };
        let rows: Vec<_> = (0..2).flat_map(rows).collect();
        let codes = rows.iter().flat_map(|&(l, row)| both.row_codes(l, row).to_vec()).collect();
        let blocks = k / 16;
        let scales = rows
            .iter()
            .flat_map(|&(l, row)| (0..blocks).map(move |block| both.scale_byte(l, row, block)));
        let dims = Dims::new(2, n, k).expect("dims");
        let scale = both.global_scale();
        BlockScaled::<Nvfp4>::new("w", dims, ScaleLayout::Linear, codes, scales.collect(), scale)
            .expect("w")
    };
    for kernels in MACHINES.map(|device| emulated(device, Schedule::Eager)) {
        for (step, one) in [
            (1, GatedWeights::stacked(both).expect("even")),
            (2, GatedWeights::interleaved(both).expect("even")),
        ] {
            let (gate, up) = (part(0, step), part(1, step));
            let pair = GatedWeights::pair(&gate, &up).expect("a pair");
            let run = |weights: &GatedWeights<'_, Nvfp4>| {
                let result = gemm_gated(&kernels, &inputs.activations(), weights, &inputs.options);
                result.expect("runs").bytes
            };
            assert_eq!(run(&one), run(&pair));
        }
    }
}
