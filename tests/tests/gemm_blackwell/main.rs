//! The sm_100a GEMM on the emulator, against sums in f64.

mod blocks;
mod case;
mod dependent;
mod halves;
mod host;
mod mutated;
mod operand;
mod results;

use case::{Case, config};
use fp4_formats::FloatType;
use fp4_formats::gemm::blackwell::CONFIGS;
use fp4_formats::layout::ScaleLayout::{Blocked128x4, Linear};
use fp4_formats::quantize::Format;
use operand::Scales;
use ptx_emu::Schedule;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(5), Schedule::Random(6)];
const OUTPUTS: [FloatType; 3] = [FloatType::F16, FloatType::Bf16, FloatType::F32];
const LAYOUTS: [[fp4_formats::ScaleLayout; 2]; 4] = [
    [Blocked128x4, Blocked128x4],
    [Linear, Blocked128x4],
    [Blocked128x4, Linear],
    [Linear, Linear],
];

/// The smallest whole tile, one step, then more of each.
#[test]
fn whole_tiles() {
    for problem in [[128, 128, 256, 1], [128, 128, 2304, 1], [384, 256, 512, 2]] {
        Case::new(config("gemm_nvfp4_128x128"), problem).check();
    }
}

/// Every configuration, plain and swapped, static and dynamic, under all schedules, on
/// several tiles a cluster with ragged edges.
#[test]
fn every_configuration() {
    for config in &CONFIGS {
        for (i, schedule) in SCHEDULES.into_iter().enumerate() {
            let k = config.step() * (config.splits + 1) + 192;
            let mut case =
                Case::new(config, [config.rows() + 40, config.cluster_columns() + 24, k, 1]);
            case.schedule = schedule;
            case.swapped |= i % 2 == 1;
            case.dynamic = i / 2 == 1;
            case.scales = [Scales::Exact, Scales::FullRange][i % 2];
            case.output = OUTPUTS[i % 3];
            case.seed = i as u64;
            case.check();
        }
    }
}

/// M = 1 to 300, N = 7 to 1000, K from one block up, L = 1 to 3, every layout of the
/// scales, every type of the result, with and without factors and bias, in turn over the
/// configurations. The 128x4 padding holds NaN.
#[test]
fn ragged_shapes() {
    let mut i = 0;
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let configs: Vec<_> = CONFIGS.iter().filter(|c| c.format == format).collect();
        let steps: &[u32] = match format {
            Format::Nvfp4 => &[16, 32, 48, 64, 80, 256, 272, 304, 720, 1040],
            Format::Mxfp4 => &[32, 64, 96, 128, 160, 256, 288, 416, 736, 1056],
        };
        for m in [1, 7, 65, 127, 129, 300] {
            for n in [7, 40, 75, 200, 1000] {
                let k = steps[i % steps.len()];
                let config = (0..configs.len())
                    .map(|j| configs[(i + j) % configs.len()])
                    .find(|c| c.takes_k(k))
                    .expect("one without splits");
                let mut case = Case::new(config, [m, n, k, 1 + i as u32 % 3]);
                case.swapped |= i / 2 % 2 == 1;
                case.dynamic = i / 3 % 2 == 1;
                case.clusters = 1 + i as u32 % 4;
                case.layouts = LAYOUTS[i % 4];
                case.output = OUTPUTS[i % 3];
                case.direct = i % 7 == 3;
                case.vectors = [i & 1 != 0, i & 2 != 0, i & 4 != 0];
                case.alpha = [1.0, -0.5, 2.0][i / 4 % 3];
                case.schedule = SCHEDULES[i / 5 % 4];
                case.seed = 100 + i as u64;
                case.check();
                i += 1;
            }
        }
    }
}

/// Results in NVFP4 by every configuration, plain and swapped, static and dynamic, under all
/// schedules, in both layouts, with factors and bias; tiles that are not full, several of
/// them, and such that end inside the padding of 128x4 scales or before it.
#[test]
fn results_in_nvfp4() {
    let mut i = 0;
    for config in &CONFIGS {
        let tiles = [config.rows() + 40, config.cluster_columns() + 16];
        let shapes = [tiles, [config.columns, 272], [config.columns + 3, 80], [1, 16], [129, 48]];
        for [m, n] in shapes {
            let k = config.step() * config.splits + 64;
            let mut case = Case::new(config, [m, n, k, 1 + i / 4 % 3]);
            case.schedule = SCHEDULES[(i / 2 % 4) as usize];
            case.swapped |= i % 2 == 1;
            case.dynamic = i / 3 % 2 == 1;
            case.quantized = Some([Linear, Blocked128x4][(i / 7 % 2) as usize]);
            case.scales = [Scales::FullRange, Scales::Exact][(i % 3 / 2) as usize];
            case.vectors = [i % 4 == 1, i % 5 == 1, i % 3 == 1];
            case.alpha = -1.5;
            case.seed = u64::from(i);
            case.check();
            i += 1;
        }
    }
}

/// Every remainder of K that a block leaves, down to one block.
#[test]
fn every_length_of_k() {
    for (name, block) in [
        ("gemm_nvfp4_128x64", 16),
        ("gemm_mxfp4_128x192", 32),
        ("gemm_nvfp4_f16_128x64", 16),
        ("gemm_nvfp4_bf16_128x128", 16),
        ("gemm_mxfp4_bf16_128x64", 32),
        ("gemm_nvfp4_bf16_256x128", 16),
        ("gemm_mxfp4_bf16_256x256", 32),
    ] {
        for k in (block..=544).step_by(block as usize) {
            let mut case = Case::new(config(name), [33, 70, k, 2]);
            case.layouts = LAYOUTS[(k / block) as usize % 4];
            case.scales = Scales::FullRange;
            case.schedule = SCHEDULES[(k / block) as usize % 4];
            case.seed = u64::from(k);
            case.check();
        }
    }
}

/// One shape under many seeds: the same bits each time.
#[test]
fn random_schedules() {
    for name in [
        "gemm_nvfp4_128x192",
        "gemm_mxfp4_256x128",
        "gemm_nvfp4_256x256_share2",
        "gemm_nvfp4_128x64_split4",
        "gemm_nvfp4_f16_128x64",
        "gemm_nvfp4_f16_256x256",
        "gemm_mxfp4_bf16_256x128",
    ] {
        let config = config(name);
        let k = config.step() * (2 * config.splits + 1);
        for seed in 0..12 {
            let mut case = Case::new(config, [config.rows() + 1, config.columns * 3, k, 1]);
            case.schedule = Schedule::Random(1000 + seed);
            case.dynamic = seed % 2 == 1;
            case.swapped |= seed % 3 == 1;
            case.check();
        }
    }
}
