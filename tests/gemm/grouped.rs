//! Grouped products on the emulated machines, against the f64 oracle.

use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::groups::STATUS_BAD_COUNTS;
use fp4_formats::gemm::sm90::Sm90Config;
use fp4_formats::gemm::{sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, e4m3, ue8m0};
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::{Activation, GemmOverrides};
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::{ActivationType, BF16, BLOCKED, F16, LINEAR, RESULTS};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, TARGETS, b200, emulated, emulated_on};
use ptx_emu::{Gpu, Schedule};

/// Full-range inputs with everything that differs between cases chosen by `index`.
pub fn varied(counts: &[usize], sizes: [usize; 2], index: usize) -> GroupedCase {
    let mut case = GroupedCase::new(counts, sizes);
    case.generator = Generator::FullRange;
    case.seed = index as u64;
    case.alpha = [4.0, -0.75, 16.0][index % 3];
    case.factors = index % 2 == 1;
    case.vectors = [index.is_multiple_of(2), index.is_multiple_of(3), index / 2 % 2 == 1];
    case.own_vectors = index / 3 % 2 == 1;
    case.gated = index / 2 % 3 == 1;
    case.activation = Activation::ALL[index % 6];
    case.spare = index % 4;
    case.magnitude = index % 5 < 3;
    case.settled = index % 7 < 4;
    case
}

/// [`varied`] inputs for a configuration of sm_90a, which takes the activations that `kind` says.
fn of_configuration(
    config: &Sm90Config,
    counts: &[usize],
    sizes: [usize; 2],
    [index, kind]: [usize; 2],
) -> GroupedCase {
    let mut case = varied(counts, sizes, index);
    let Scheme { format, operand } = config.scheme;
    case.format = format;
    case.activations = ActivationType::of_operand(format, operand, kind);
    case.result = RESULTS[index % RESULTS.len()];
    case.sizes[0] = case.sizes[0].next_multiple_of(case.result.block());
    case.overrides = GemmOverrides::new().kernel(config.name.to_string()).split(None);
    case
}

/// Counts that are multiples of nothing, around those of a tile of `tokens`, with empty groups.
pub fn ragged(tokens: usize, index: usize) -> Vec<usize> {
    match index % 4 {
        0 => vec![tokens + 3, 0, 1, tokens],
        1 => vec![0, 0, 5, 2 * tokens - 1, 0],
        2 => vec![7],
        _ => vec![1, 1, 0, 1, 2, tokens / 2 + 1],
    }
}

/// Every configuration of sm_90a on groups that fill no tile, under all schedules.
#[test]
fn every_configuration_of_sm_90a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    for (at, config) in sm90::GROUPED.iter().enumerate() {
        for i in 0..4 {
            let index = 4 * at + i;
            let counts = ragged(config.tokens as usize, i);
            let sizes = [config.rows as usize / 2 + 40, [160, 672][i % 2]];
            let case = of_configuration(config, &counts, sizes, [index, i]);
            case.check(&machines[index % 5]);
        }
    }
}

/// Every configuration of sm_100a on groups that fill no tile, or are exactly a tile, under all
/// schedules.
#[test]
fn every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (at, config) in sm100::GROUPED.iter().enumerate() {
        let mut tiles = Vec::new();
        for i in 0..6 {
            let index = 5 * at + i;
            let [rows, columns] = [config.rows(), config.columns].map(|size| size as usize);
            // Many tokens and few rows of weights: the tokens are the rows of the tiles.
            let (tokens, n) = if i % 3 == 2 { (rows, columns / 4) } else { (columns, rows / 2) };
            let counts = ragged(tokens, i);
            let mut case = varied(&counts, [n + 40, [160, 672, 528][i % 3]], index);
            case.format = config.format;
            // Blocks of MXFP4 are twice as long.
            case.sizes[1] = case.sizes[1].next_multiple_of(config.format.block() as usize);
            case.activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => [LINEAR, BLOCKED][i % 2],
            };
            case.result = RESULTS[(index + at) % RESULTS.len()];
            case.sizes[0] = case.sizes[0].next_multiple_of(case.result.block());
            if i >= 4 {
                case.slot = Some(counts.iter().max().expect("groups") + 3);
            }
            case.overrides = GemmOverrides::new().kernel(config.name.to_string()).split(None);
            tiles.push(case.check(&machines[index % 5]).tile);
        }
        let [rows, columns] = [config.rows(), config.columns];
        assert!(tiles.contains(&[rows, columns]), "{}: {tiles:?}", config.name);
        let plain = tiles.contains(&[columns, rows]) || config.activations.is_some();
        assert!(plain, "{}: {tiles:?}", config.name);
    }
}

/// Slots for groups of few tokens, with every type of result.
#[test]
fn slots() {
    for device in MACHINES {
        let machine = emulated(device, SCHEDULES[3]);
        for (index, result) in RESULTS.into_iter().enumerate() {
            let mut case = varied(&[3, 0, 12, 20, 1], [96, 160], 3 * index + 1);
            case.slot = Some(20);
            case.result = result;
            case.activations = [LINEAR, F16, BF16, BLOCKED][index % 4];
            case.check(&machine);
        }
    }
}

/// Many groups, most of them empty; all tokens in one; one each.
#[test]
fn many_groups() {
    let few = |at: usize| if at % 37 == 5 { at % 5 + 1 } else { 0 };
    let counts: [Vec<usize>; 4] = [
        (0..256).map(few).collect(),
        (0..64).map(|at| if at == 40 { 70 } else { 0 }).collect(),
        vec![1; 40],
        vec![0; 33],
    ];
    for device in MACHINES {
        let machine = emulated(device, Schedule::Lazy);
        for (index, counts) in counts.iter().enumerate() {
            let mut case = GroupedCase::new(counts, [72, 96]);
            case.spare = 2;
            case.seed = index as u64;
            case.result = FloatType::F16.into();
            for activations in [F16, LINEAR] {
                case.activations = activations;
                case.check(&machine);
            }
        }
    }
}

/// Checks as many groups as the largest mixtures have experts, each with weights of its own: a few tokens or none, in sequence and
/// in slots.
#[test]
fn five_hundred_and_twelve_groups() {
    let counts: Vec<usize> = (0..512).map(|group| [0, 1, 0, 3, 2, 0, 5][group % 7]).collect();
    for (at, device) in TARGETS[2..].iter().enumerate() {
        for (index, sizes) in [[64, 64], [64, 112], [72, 128]].into_iter().enumerate() {
            let machine = emulated(device, SCHEDULES[(2 * at + index) % 5]);
            let mut case = varied(&counts, sizes, index);
            case.gated = false;
            case.activations = [LINEAR, F16, BLOCKED][index];
            case.result = FloatType::ALL[index].into();
            case.slot = (index == 1).then_some(7);
            case.check(&machine);
        }
    }
}

/// More tiles than CTAs, of few steps: CTAs take whole tiles in turn, some one more than others.
#[test]
fn tiles_in_turn() {
    for (at, device) in DEVICES.into_iter().enumerate() {
        for (schedule, k) in [(SCHEDULES[at], 128), (SCHEDULES[at + 2], 112)] {
            let machine = emulated(device, schedule);
            let counts: Vec<usize> = (0..64).map(|group| (group * 7 + at) % 10).collect();
            let mut case = GroupedCase::new(&counts, [648, k]);
            case.activations = F16;
            case.check(&machine);
        }
    }
}

/// Wide tiles of every width, in one step or many: whole ones in turn, the heaviest first, on a machine
/// with few SMs, even runs on one with more, and problems that are too many to be sorted.
#[test]
fn wide_tiles() {
    let every: Vec<usize> = (0..16).rev().map(|i| 16 * i + 1 + i % 16).collect();
    let many: Vec<usize> = (0..40).map(|i| (i * 29) % 70).collect();
    let ragged = vec![130, 0, 300, 47, 256, 7, 520];
    let wide = sm90::GROUPED.iter().filter(|config| config.is_wide());
    let mut kinds = 0;
    for (at, config) in wide.enumerate() {
        for (i, (sms, counts)) in
            [(4, &every), (4, &ragged), (16, &ragged), (132, &every), (6, &many)]
                .into_iter()
                .enumerate()
        {
            let index = 5 * at + i;
            let machine = emulated_on(Gpu { sms, ..Gpu::h200() }, SCHEDULES[index % 5]);
            let sizes = [264, [672, 96, 160][index % 3]];
            let case = of_configuration(config, counts, sizes, [index, i]);
            case.check(&machine);
        }
        kinds += 1;
    }
    assert_eq!(kinds, 5, "configurations with wide tiles");
}

/// Tiles that multiply as many tokens as they have: of each count up to a tile's, and in the last tile of a
/// larger group. Products are counted: each is of 32 tokens or a multiple of eight above.
#[test]
fn trimmed_tiles() {
    let every: Vec<usize> = (1..=48).map(|i| i * 29 % 49).collect();
    let ragged = vec![49, 0, 48, 130, 33, 7, 81, 96];
    let (mut kinds, k) = (0, 672);
    for (at, config) in sm90::GROUPED.iter().filter(|config| config.trims()).enumerate() {
        for (i, (sms, counts)) in [(132, &every), (5, &ragged), (7, &every)].into_iter().enumerate()
        {
            let index = 3 * at + i;
            let machine = emulated_on(Gpu { sms, ..Gpu::h200() }, SCHEDULES[index % 5]);
            let case = of_configuration(config, counts, [264, k], [index, i]);
            let result = case.check(&machine).result;
            let tile = config.tokens as usize;
            let widths = counts.iter().flat_map(|&count| {
                (0..count.div_ceil(tile)).map(move |at| (count - at * tile).min(tile))
            });
            let tokens: usize = widths.map(|width| width.next_multiple_of(8).max(32)).sum();
            let halves = if case.gated { 2 } else { 1 };
            let rows = (halves * case.sizes[0]).next_multiple_of(config.rows as usize);
            let products = (tokens * rows * k.next_multiple_of(128)) as u64;
            let counters = &result.reports.last().expect("a launch").counters;
            assert_eq!(counters.tensor.half, products, "{}: {counts:?}", config.name);
        }
        kinds += 1;
    }
    assert_eq!(kinds, 3, "configurations that trim tiles");
}

/// Results of wide tiles that go from registers to memory: 16 bits, with and without factors of rows.
#[test]
fn wide_tiles_from_registers() {
    let counts = [200, 3, 100, 64, 0, 250];
    for (at, config) in sm90::GROUPED.iter().filter(|config| config.is_wide()).enumerate() {
        for (i, result) in [FloatType::F16, FloatType::Bf16].into_iter().enumerate() {
            let machine = emulated_on(Gpu { sms: 6, ..Gpu::h200() }, SCHEDULES[(2 * at + i) % 5]);
            let mut case = GroupedCase::new(&counts, [200, 672]);
            case.generator = Generator::FullRange;
            case.alpha = 0.5;
            case.factors = i == 1;
            case.vectors = [(at + i) % 2 == 1, false, false];
            case.format = config.scheme.format;
            let Scheme { format, operand } = config.scheme;
            case.activations = ActivationType::of_operand(format, operand, i);
            case.result = result.into();
            case.overrides = GemmOverrides::new().kernel(config.name.to_string());
            case.check(&machine);
        }
    }
}

/// Exact sums of the contest's correctness shapes with common N and K.
#[test]
fn contest_shapes_scaled_down() {
    let machines = DEVICES
        .map(|device| [SCHEDULES[0], SCHEDULES[4]].map(|schedule| emulated(device, schedule)));
    let counts = [80usize, 176, 128, 72, 64, 248, 96, 160].map(|count| count / 4);
    for (index, machine) in machines.iter().flatten().enumerate() {
        let mut case = GroupedCase::new(&counts, [256, 512]);
        case.activations = [F16, LINEAR][index % 2];
        case.result = FloatType::F16.into();
        case.check(machine);
    }
}

/// Bad counts: every configuration makes every result NaN, the status word says so, and nothing is out
/// of bounds.
#[test]
fn bad_counts_make_all_results_nan() {
    let (sm90, sm100) = few_sms();
    for config in &sm90::GROUPED {
        let activations = ActivationType::as_they_are(config.scheme.operand);
        bad_counts(&sm90, config.name, config.scheme.format, activations, false);
    }
    for config in &sm100::GROUPED {
        let activations = config.activations.map_or(BLOCKED, ActivationType::as_they_are);
        bad_counts(&sm100, config.name, config.format, activations, false);
    }
}

/// The same of gated products, and on sm_90a of FP4 activations, which a launch before decodes in either layout of
/// scales, and of floats that a launch before quantises.
#[test]
fn bad_counts_of_gated_products_and_of_activations_made_before() {
    let (sm90, sm100) = few_sms();
    for config in &sm90::GROUPED {
        let Scheme { format, operand } = config.scheme;
        for index in 0..3 {
            let activations = ActivationType::of_operand(format, operand, index);
            // Activations that are multiplied as they are, not gated, are above.
            let made = activations != ActivationType::as_they_are(operand);
            for gated in [false, true].into_iter().filter(|&gated| made || gated) {
                bad_counts(&sm90, config.name, format, activations, gated);
            }
        }
    }
    for config in &sm100::GROUPED {
        let activations = config.activations.map_or(LINEAR, ActivationType::as_they_are);
        bad_counts(&sm100, config.name, config.format, activations, true);
    }
}

/// Machines whose CTAs each have a share of few results.
fn few_sms() -> (Kernels, Kernels) {
    let sm90 = emulated_on(Gpu { sms: 3, ..Gpu::h200() }, SCHEDULES[2]);
    (sm90, emulated_on(Gpu { sms: 4, ..b200() }, SCHEDULES[3]))
}

fn bad_counts(
    machine: &Kernels,
    name: &str,
    format: Format,
    activations: ActivationType,
    gated: bool,
) {
    let overrides = GemmOverrides::new().kernel(name.to_string()).split(None);
    let contiguous: [[i32; 4]; 5] =
        [[0, 5, 3, 9], [-1, 2, 5, 9], [0, 5, 7, 10], [0, i32::MAX, i32::MIN, 9], [9, 8, 9, 9]];
    let slots: [[i32; 3]; 3] = [[1, 4, 2], [-1, 2, 3], [i32::MAX, 0, i32::MIN]];
    for (index, result) in RESULTS.into_iter().enumerate() {
        let mut case = GroupedCase::new(&[3, 3, 3], [3 * result.block().max(16), 96]);
        (case.format, case.activations) = (format, activations);
        case.result = result;
        case.overrides = overrides.clone();
        (case.gated, case.magnitude) = (gated, true);
        let check = |case: &GroupedCase, counts: &[i32]| {
            let what = format!("{case:?}\n{counts:?}");
            let got = case.run_with(machine, counts);
            assert_eq!(got.status, STATUS_BAD_COUNTS, "{what}");
            assert!(got.magnitude.is_some_and(f32::is_nan), "{what}");
            // Results, the status word and the largest magnitude are all that the product writes.
            let written =
                got.reports.last().expect("a launch").counters.global_unique_bytes_written;
            let most = got.bytes.len() + got.scales.len() + 2 * size_of::<u32>();
            assert!(written <= most as u64, "{what}: {written} bytes written, at most {most}");
            match case.result {
                ResultKind::Floats(of) => {
                    let values = floats::decode(of, &got.bytes);
                    let number = values.iter().position(|value| !value.is_nan());
                    let place = number.map(|at| [at / case.sizes[0], at % case.sizes[0]]);
                    assert_eq!(place, None, "{what}: row and column of the first number");
                }
                ResultKind::Blocks(format, layout) => {
                    let nan = match format {
                        Format::Nvfp4 => e4m3::NAN,
                        Format::Mxfp4 => ue8m0::NAN,
                    };
                    let [tokens, blocks] = [9 / if case.slot.is_some() { 3 } else { 1 }, 3];
                    let matrices = 9 / tokens;
                    let stride = got.scales.len() / matrices;
                    for matrix in 0..matrices {
                        for (row, block) in
                            (0..tokens).flat_map(|row| (0..blocks).map(move |b| (row, b)))
                        {
                            let at = matrix * stride + layout.offset(row, block, blocks);
                            let place = format!("matrix {matrix}, row {row}, block {block}");
                            assert_eq!(got.scales[at], nan, "{what}: {place}");
                        }
                    }
                }
            }
        };
        check(&case, &contiguous[index % 5]);
        case.slot = Some(3);
        check(&case, &slots[index % 3]);
    }
    let mut good = GroupedCase::new(&[3, 3, 3], [48, 96]);
    (good.format, good.activations, good.overrides) = (format, activations, overrides);
    good.gated = gated;
    assert_ne!(good.run_with(machine, &[0, 3, 6, 9]).status, STATUS_BAD_COUNTS);
}
