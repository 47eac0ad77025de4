//! Results of the GEMM on the emulated machines, against the f64 oracle.

use fp4_formats::gemm::Split;
use fp4_formats::gemm::{sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout, e2m1, pack};
use nvfp4::gemm::{Activations, GemmOptions, GemmOverrides, HalfMatrix, gemm};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::{ActivationType, Case, FLOATS, RESULTS, TOKENS, compare_largest};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, emulated};
use ptx_emu::Schedule;

const FORMATS: [Format; 2] = [Format::Nvfp4, Format::Mxfp4];
const ALPHAS: [f32; 3] = [1.0, -0.375, 3.0];

/// Every configuration of sm_90a, on a shape that fills no tile, alone, with K in parts and
/// divided evenly, under all schedules.
#[test]
fn every_configuration_of_sm_90a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    for (config, kernels) in sm90::CONFIGS
        .iter()
        .flat_map(|config| machines.iter().map(move |kernels| (config, kernels)))
    {
        let (m, n) = (config.tokens as usize + 3, config.rows as usize + 72);
        for (k, split) in [(160, Split::None), (672, Split::Cluster(3)), (672, Split::StreamK)] {
            let split = split.at_most(config.max_split());
            let mut case = Case::new([m, n, k, 1])
                .decoded_to(config.scheme.format, config.scheme.operand, 0)
                .kernel(config.name, split);
            case.magnitude = k == 672;
            case.check(kernels);
        }
    }
}

/// Every configuration of sm_100a, by the plan's choice of places for the operands: weights of
/// each batch entry and shared ones, both layouts of the scales, every result, vectors.
#[test]
fn every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (i, config) in sm100::CONFIGS.iter().enumerate() {
        for shared in [false, true] {
            for (at, result) in [RESULTS[i % 3], RESULTS[3 + i % 2]].into_iter().enumerate() {
                let (m, n) = ([3, 33, 70][i % 3], [16, 80, 208][i / 3 % 3]);
                let k = (config.step() * config.k_parts()) as usize + 32;
                let mut case = Case::new([m, n, k, 2 + i % 2]).format(config.format);
                case.activations = match config.activations {
                    Some(operand) => ActivationType::as_they_are(operand),
                    None => ActivationType::Blocks(ScaleLayout::ALL[i / 2 % 2]),
                };
                case.generator = Generator::FullRange;
                case.seed = i as u64;
                case.shared_weights = shared;
                case.layout = ScaleLayout::ALL[1 - i % 2];
                case.alpha = -0.75;
                case.vectors = [i.is_multiple_of(2), i.is_multiple_of(3), shared];
                case.result = result;
                case.magnitude = shared;
                let case = case.kernel(config.name, config.split);
                case.check(&machines[(i + 2 * at + usize::from(shared)) % 5]);
            }
        }
    }
}

/// Ragged shapes under all schedules, all on sm_90a and a few on sm_100a; formats, activations, layouts, results,
/// alpha and inputs change from case to case. Padding of the 128x4 layout is NaN.
#[test]
fn ragged_shapes() {
    let machines = SCHEDULES.map(|s| MACHINES.map(|device| emulated(device, s)));
    let mut index = 0;
    for m in TOKENS {
        for n in [8, 40, 72, 200, 1000] {
            for k in [16usize, 32, 144, 416] {
                index += 1;
                let format = FORMATS[usize::from(k.is_multiple_of(32) && index % 3 != 0)];
                let all = ActivationType::all(format);
                let mut case = Case::new([m, n, k, 1]).format(format);
                case.activations = all[index % all.len()];
                case.seed = index as u64;
                case.generator = Generator::ALL[index % 3];
                case.layout = ScaleLayout::ALL[index / 2 % 2];
                case.result = FLOATS[index / 5 % 3].into();
                case.magnitude = index % 2 == 0;
                case.alpha = ALPHAS[index / 7 % 3];
                let devices = &machines[index / 3 % 5];
                case.check_on(if index % 5 == 4 { devices } else { &devices[..1] });
            }
        }
    }
}

/// Long K that is no multiple of a step, in as many parts as there can be.
#[test]
fn long_k() {
    let splits =
        [Split::Cluster(8), Split::Cluster(5), Split::None, Split::StreamK, Split::StreamK];
    for (split, schedule) in splits.into_iter().zip(SCHEDULES) {
        let kernels = emulated(DEVICES[0], schedule);
        for &activations in ActivationType::all(Format::Nvfp4) {
            let mut case = Case::new([9, 130, 7184, 1]).activations(activations);
            case.overrides.split = Some(split);
            case.check(&kernels);
        }
    }
}

/// Batches, with their own weights and shared.
#[test]
fn batches() {
    let kernels = emulated(DEVICES[0], SCHEDULES[3]);
    for l in [2, 3] {
        for shared in [false, true] {
            for format in FORMATS {
                for &activations in ActivationType::all(format) {
                    let k = if format == Format::Nvfp4 { 304 } else { 288 };
                    let mut case =
                        Case::new([5, 136, k, l]).format(format).activations(activations);
                    (case.shared_weights, case.layout) = (shared, ScaleLayout::Blocked128x4);
                    case.check(&kernels);
                }
            }
        }
    }
}

/// Factors of rows and columns and a bias, at the edges of vectors that do not fill a tile.
#[test]
fn factors_and_bias() {
    let kernels = emulated(DEVICES[0], SCHEDULES[2]);
    for (result, format) in FLOATS.into_iter().flat_map(|r| FORMATS.map(|format| (r, format))) {
        let mut case = Case::new([37, 203, 288, 1]).format(format).result(result);
        case.generator = Generator::FullRange;
        case.alpha = -1.5;
        case.vectors = [true; 3];
        case.check(&kernels);
    }
}

/// The plan's choices on sm_100a, for shapes whose activations need to be laid out before, or their
/// scales, or both, or neither, or are of few tokens; shared and own weights; factors and bias;
/// every type of the result. The plan says how results get to memory and what is laid out before.
#[test]
fn as_planned_on_sm_100a() {
    let layouts = |i: usize| [ScaleLayout::ALL[i % 2], ScaleLayout::ALL[i / 2 % 2]];
    let mut seed = 0;
    for schedule in [SCHEDULES[0], SCHEDULES[1], SCHEDULES[4]] {
        let (kernels, reports) = emulated(DEVICES[1], schedule).observed();
        for sizes in [[128, 256, 512, 1], [1, 301, 1040, 2], [130, 40, 272, 3], [17, 1000, 2048, 1]]
        {
            seed += 1;
            for format in FORMATS {
                let [activations, weights] = layouts(seed);
                let mut case = Case::new(sizes)
                    .format(format)
                    .activations(ActivationType::Blocks(activations))
                    .result(FLOATS[seed % 3]);
                case.layout = weights;
                case.shared_weights = seed.is_multiple_of(2);
                case.generator = Generator::ALL[seed % 3];
                case.seed = seed as u64;
                case.alpha = -0.375;
                case.vectors = [seed % 2 == 1, seed % 3 == 1, seed % 5 < 3];
                let result = case.check(&kernels);

                let reports = reports.take();
                let counters = &reports.last().expect("a report").counters;
                let copied = counters.asynchronous.tensor_stores.operations > 0;
                let plan = &result.plan;
                let says = |text| plan.why.iter().any(|reason: &String| reason.contains(text));
                let said = [says("the copy engine stores"), says("threads store")];
                assert_eq!(said, [copied, !copied], "{case:?}\n{plan}");
                let (m, k) = (case.shape.m as u32, case.shape.k as u32);
                let mut configs = sm100::CONFIGS.iter();
                let config = configs.find(|config| config.name == plan.kernel).expect("one");
                // Kernels for few tokens take them as they are.
                let loaded = config.loads_tokens();
                assert_eq!(loaded, m <= 32, "{case:?}\n{plan}");
                assert_eq!(says("loads scales of activations"), loaded, "{case:?}\n{plan}");
                let laid_out = [
                    !loaded && sm100::prepare::codes_need_it(k),
                    !loaded && sm100::prepare::scales_need_it(format, activations, m, k),
                ];
                let said = [
                    says("rows of activations are not multiples of 16 bytes: padded before"),
                    says("scales of activations are laid out in whole 128x4 tiles before"),
                ];
                assert_eq!(said, laid_out, "{case:?}\n{plan}");
                let launched = [sm100::prepare::CODES_NAME, sm100::prepare::SCALES_NAME]
                    .map(|name| plan.before.iter().any(|step| step.kernel == name));
                assert_eq!(launched, laid_out, "{case:?}\n{plan}");
                assert_eq!(reports.len(), plan.before.len() + 1, "{case:?}");
                let meanwhile = says("the product begins to copy weights while that is done");
                assert_eq!(meanwhile, laid_out.contains(&true), "{case:?}\n{plan}");
            }
        }
    }
}

/// The plan's choices on sm_100a for 16-bit activations, of each type that weights are decoded to.
#[test]
fn halves_as_planned_on_sm_100a() {
    for schedule in [SCHEDULES[0], SCHEDULES[3]] {
        let kernels = emulated(DEVICES[1], schedule);
        for sizes in [[1, 300, 1040, 1], [70, 200, 272, 2], [33, 1000, 4096, 1]] {
            for (format, operand) in [
                (Format::Nvfp4, HalfType::F16),
                (Format::Nvfp4, HalfType::Bf16),
                (Format::Mxfp4, HalfType::Bf16),
            ] {
                let mut case = Case::new(sizes).format(format);
                case.activations = ActivationType::Halves(operand);
                case.generator = Generator::FullRange;
                case.shared_weights = true;
                case.check(&kernels);
            }
        }
    }
}

/// Neither the schedule nor the number of parts changes the bits of an exact result; for one
/// number of parts no result depends on the schedule.
#[test]
fn results_do_not_depend_on_timing() {
    let all: Vec<Split> = Split::up_to(8).collect();
    for (generator, splits) in [
        (Generator::Exact, &all[..]),
        (Generator::FullRange, &[Split::StreamK]),
        (Generator::FullRange, &[Split::Cluster(4)]),
    ] {
        let mut first = None;
        for schedule in SCHEDULES {
            let kernels = emulated(DEVICES[0], schedule);
            for &split in splits {
                let mut case = Case::new([20, 144, 1040, 1]);
                case.generator = generator;
                case.overrides = GemmOverrides::new().split(split);
                let bytes = case.check(&kernels).bytes;
                let expected = first.get_or_insert_with(|| bytes.clone());
                assert_eq!(*expected, bytes, "{generator} {schedule}, split {split}");
            }
        }
    }
}

/// Every code with every scale, alone: the other operand picks one column each. In weights, beside
/// 16-bit activations and beside those in their format; and in such activations.
#[test]
fn every_code_with_every_scale() {
    for device in MACHINES {
        every_code::<Nvfp4>(device, &[HalfType::F16, HalfType::Bf16], 0x38);
        every_code::<Mxfp4>(device, &[HalfType::Bf16], 127);
    }
}

/// `one` is the scale of value 1.
fn every_code<F: BlockFormat>(device: &str, operands: &[HalfType], one: u8) {
    let kernels = emulated(device, Schedule::Eager);
    let scales: Vec<u8> = (0..=255).filter(|&byte| F::scale_is_valid(byte)).collect();
    let (rows, k) = (scales.len(), F::BLOCK);
    // Row n has scale n; column c has code c % 16.
    let row: Vec<u8> = (0..k as u8 / 2).map(|j| (2 * j % 16) | (((2 * j + 1) % 16) << 4)).collect();
    let dims = Dims::new(1, rows, k).expect("dims");
    let (linear, codes) = (ScaleLayout::Linear, row.repeat(rows));
    let all = BlockScaled::<F>::new("all", dims, linear, codes, scales.clone(), 1.0);
    let all = all.expect("every code");
    let run = |a: &Activations<'_, F>, b: &BlockScaled<F>| {
        let options = GemmOptions::new().output(FloatType::F32);
        gemm(&kernels, a, b, &options).expect("runs").values()
    };
    let expect = |got: f32, code: usize, row: usize, what: &str| {
        let (code, scale) = ((code % 16) as u8, scales[row]);
        let expected = e2m1::decode(code) * F::decode_scale(scale);
        assert_eq!(got, expected, "{device}, {} {what}: code {code} scale {scale:#x}", F::NAME);
    };
    let dims = Dims::new(1, k, k).expect("dims");
    let identity = |i: usize| i / k == i % k;
    for &operand in operands {
        let values: Vec<f32> = (0..k * k).map(|i| f32::from(u8::from(identity(i)))).collect();
        let a = HalfMatrix::round("a", dims, operand, &values).expect("activations");
        for (i, got) in run(&Activations::Halves(&a), &all).into_iter().enumerate() {
            expect(got, i / rows, i % rows, operand.name());
        }
    }
    let code = |i| if identity(i) { e2m1::encode(1.0) } else { 0 };
    let codes = (0..k * k / 2).map(|i| pack::pair(code(2 * i), code(2 * i + 1))).collect();
    let unit = BlockScaled::<F>::new("unit", dims, linear, codes, vec![one; k], 1.0);
    let unit = unit.expect("an identity");
    for (i, got) in run(&Activations::Blocks(&unit), &all).into_iter().enumerate() {
        expect(got, i / rows, i % rows, "weights beside blocks");
    }
    for (i, got) in run(&Activations::Blocks(&all), &unit).into_iter().enumerate() {
        expect(got, i % k, i / k, "activations");
    }
}

/// The largest magnitude is that of results in f32, beyond the range of the result's type too, and NaN
/// if one result is: by the bias of zero products, with the largest value in each place in turn.
#[test]
fn largest_magnitudes() {
    let zeros = |rows: usize| {
        let dims = Dims::new(1, rows, 16).expect("dims");
        BlockScaled::<Nvfp4>::new(
            "zeros",
            dims,
            ScaleLayout::Linear,
            vec![0; rows * 8],
            vec![0x38; rows],
            1.0,
        )
        .expect("an operand")
    };
    for (device, schedule) in DEVICES.into_iter().zip([SCHEDULES[1], SCHEDULES[4]]) {
        let kernels = emulated(device, schedule);
        for (index, n) in [7, 8, 40, 129, 136, 160].into_iter().enumerate() {
            let (a, b) = (zeros([1, 5, 70][index % 3]), zeros(n));
            for (at, value) in [
                (0, -70000.0),
                (n - 1, 70000.0),
                (n / 2, -f32::MAX),
                (n - 1, f32::NEG_INFINITY),
                (n / 3, f32::INFINITY),
                (n - 1, f32::NAN),
                (0, -f32::NAN),
                (0, 0.0),
            ] {
                let mut bias: Vec<f32> = (0..n).map(|column| -(column as f32)).collect();
                bias[at] = value;
                for floats in FLOATS {
                    let options =
                        GemmOptions::new().output(floats).bias(bias.clone()).magnitude(true);
                    let result = gemm(&kernels, &Activations::Blocks(&a), &b, &options);
                    let found = result.expect("runs").magnitude.expect("it was asked for");
                    if let Err(error) = compare_largest(found, FloatType::F32, &bias) {
                        panic!("{device} {floats:?} {n} {at}: {error}");
                    }
                }
            }
        }
    }
}
