//! Every order of tiles and every place of the operands on sm_100a, whatever the plan would choose.

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemm::ResultType;
use fp4_formats::gemm::sm100::CONFIGS;
use fp4_formats::gemm::sm100::config::NARROW_COLUMNS;
use fp4_formats::quantize::Format;
use nvfp4::tune::ResultKind;
use nvfp4_tests::SCHEDULES;
use nvfp4_tests::gemm::FLOATS;
use nvfp4_tests::gemm::tcgen05::{Product, config};
use ptx_emu::Schedule;
use std::collections::BTreeSet;

/// Layouts of activations and of weights.
const LAYOUTS: [[ScaleLayout; 2]; 4] = [
    [Blocked128x4, Blocked128x4],
    [Linear, Blocked128x4],
    [Blocked128x4, Linear],
    [Linear, Linear],
];

/// The smallest whole tile, one step, then more of each.
#[test]
fn whole_tiles() {
    for problem in [[128, 128, 256, 1], [128, 128, 2304, 1], [384, 256, 512, 2]] {
        Product::new(config("gemm_sm100_nvfp4_256x64"), problem).check();
    }
}

/// Every configuration, plain and swapped, static and dynamic, on several tiles per cluster with
/// ragged edges; all schedules in turn.
#[test]
fn every_configuration() {
    for (at, config) in CONFIGS.iter().enumerate() {
        for i in 0..4 {
            let k = config.step() * (config.k_parts() + 1) + 192;
            let sizes = [config.rows() + 40, config.cluster_columns() + 24, k, 1];
            let mut product = Product::new(config, sizes);
            if i % 2 == 1 {
                product = product.full_range();
            }
            product.schedule = SCHEDULES[(at + i) % 5];
            product.swapped |= i % 2 == 1;
            product.dynamic = i / 2 == 1;
            product.case.result = FLOATS[i % 3].into();
            product.case.seed = i as u64;
            product.check();
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
        let depths: &[u32] = match format {
            Format::Nvfp4 => &[16, 32, 48, 64, 80, 256, 272, 304, 720, 1040],
            Format::Mxfp4 => &[32, 64, 96, 128, 160, 256, 288, 416, 736, 1056],
        };
        for m in [1, 7, 65, 127, 129, 300] {
            for n in [7, 40, 75, 200, 1000] {
                let k = depths[i % depths.len()];
                let config = (0..configs.len())
                    .map(|j| configs[(i + j) % configs.len()])
                    .find(|c| c.takes_k(k))
                    .expect("one without splits");
                let sizes = [m, n, k, 1 + i as u32 % 3];
                let mut product = Product::new(config, sizes).layouts(LAYOUTS[i % 4]);
                product.swapped |= i / 2 % 2 == 1;
                product.dynamic = i / 3 % 2 == 1;
                product.clusters = 1 + i as u32 % 4;
                product.direct = i % 7 == 3;
                product.schedule = SCHEDULES[i % 5];
                product.case.result = FLOATS[i % 3].into();
                product.case.vectors = [i & 1 != 0, i & 2 != 0, i & 4 != 0];
                product.case.alpha = [1.0, -0.5, 2.0][i / 4 % 3];
                product.case.seed = 100 + i as u64;
                product.check();
                i += 1;
            }
        }
    }
}

/// Every configuration that takes 16-bit activations, with every type of the result: one token, a
/// tile but one, more than one tile, of tokens and of weights; K of a block, and such that it ends
/// within a step. In turn stored by the copy engine and by threads, with and without factors and
/// bias, batches, all schedules.
#[test]
fn ragged_halves() {
    let mut i = 0;
    for config in CONFIGS.iter().filter(|config| config.activations.is_some()) {
        let (step, block) = (config.step(), config.format.block());
        let tiles = [
            [1, 7, step * (config.k_parts() - 1) + block],
            [config.columns - 1, 72, step * config.k_parts() - block],
            [config.columns + 5, config.rows() + 9, step * config.k_parts() + 3 * block],
            [7, 2 * config.rows() - 40, step * (config.k_parts() + 1) + 96],
        ];
        for ([m, n, k], result) in tiles.iter().flat_map(|&tile| FLOATS.map(|r| (tile, r))) {
            let sizes = [m, n, k, 1 + i as u32 / 2 % 3];
            let mut product = Product::new(config, sizes).layouts(LAYOUTS[i % 4]);
            if i / 3 % 2 == 1 {
                product = product.full_range();
            }
            product.dynamic = i / 2 % 2 == 1;
            product.clusters = 1 + i as u32 % 4;
            product.direct = i % 5 == 2;
            product.schedule = SCHEDULES[i / 2 % 5];
            product.case.result = result.into();
            product.case.vectors = [i % 2 == 1, i / 3 % 2 == 1, i % 4 < 2];
            product.case.alpha = [1.0, -0.5, 2.0][i / 2 % 3];
            product.case.seed = 300 + i as u64;
            product.check();
            i += 1;
        }
    }
}

/// Narrow tiles: every count of tokens up to more than a tile, so that tiles begin at each row of a group of
/// scales at which they can, and of results that lie across the CTAs of a split; weights that fill no
/// tile. Every type of the result, stored in either way, every layout of the scales, whose padding holds
/// NaN, all schedules.
#[test]
fn narrow_tiles() {
    let narrow = || CONFIGS.iter().filter(|config| config.columns < NARROW_COLUMNS);
    assert_eq!(narrow().map(|config| config.columns).collect::<BTreeSet<_>>(), [8, 16, 32].into());
    let mut i = 0;
    for config in narrow() {
        for m in (1..=config.columns + 3).chain([40, 129]) {
            let k = config.step() * config.k_parts() + [32, 96, 160, 224][i % 4];
            let sizes = [m, [7, 48, 130, 200][i / 4 % 4], k, 1 + i as u32 % 2];
            let mut product = Product::new(config, sizes).layouts(LAYOUTS[i % 4]).full_range();
            product.dynamic = i / 2 % 2 == 1;
            product.clusters = 1 + i as u32 % 3;
            product.direct = i % 3 == 1;
            product.schedule = SCHEDULES[i % 5];
            product.case.result = match i % 5 {
                0..=2 => FLOATS[i % 3].into(),
                3.. => ResultKind::Blocks(Format::ALL[i % 2], ScaleLayout::ALL[i / 2 % 2]),
            };
            product.case.shape.n = product.case.shape.n.next_multiple_of(32);
            product.case.vectors = [i % 2 == 0, i % 3 == 0, i % 5 < 2];
            product.case.alpha = [1.0, -0.5, 2.0][i / 2 % 3];
            product.case.seed = 700 + i as u64;
            product.check();
            i += 1;
        }
    }
}

/// Results in NVFP4 by every configuration, plain and swapped, static and dynamic, under all
/// schedules, in both layouts, with factors and bias; tiles that are not full, several of
/// them, and such that end inside the padding of 128x4 scales or before it.
#[test]
fn results_in_blocks() {
    let mut i = 0;
    for config in &CONFIGS {
        let tiles = [config.rows() + 40, config.cluster_columns() + 16];
        let shapes = [tiles, [config.columns, 272], [config.columns + 3, 80], [1, 16], [129, 48]];
        for [m, n] in shapes {
            let k = config.step() * config.k_parts() + 64;
            let of = Format::ALL[i / 2 % 2];
            let n = n.next_multiple_of(of.block());
            let mut product = Product::new(config, [m, n, k, 1 + i as u32 / 4 % 3]);
            if i % 3 / 2 == 0 {
                product = product.full_range();
            }
            product.schedule = SCHEDULES[i / 2 % 5];
            product.swapped |= i % 2 == 1;
            product.dynamic = i / 3 % 2 == 1;
            product.case.result = ResultKind::Blocks(of, ScaleLayout::ALL[i / 7 % 2]);
            product.swapped |= !config.stores(ResultType::Blocks(of), false, false);
            product.case.vectors = [i % 4 == 1, i % 5 == 1, i % 3 == 1];
            product.case.alpha = -1.5;
            product.case.seed = i as u64;
            product.check();
            i += 1;
        }
    }
}

/// Every remainder of K that a block leaves, down to one block.
#[test]
fn every_length_of_k() {
    for name in [
        "gemm_sm100_nvfp4_128x64",
        "gemm_sm100_nvfp4_128x8",
        "gemm_sm100_mxfp4_128x32",
        "gemm_sm100_mxfp4_128x256_multicast2",
        "gemm_sm100_nvfp4_f16_128x64",
        "gemm_sm100_nvfp4_bf16_128x64",
        "gemm_sm100_mxfp4_bf16_128x64",
        "gemm_sm100_nvfp4_bf16_256x128",
        "gemm_sm100_mxfp4_bf16_256x256",
    ] {
        let config = config(name);
        for (i, k) in
            (config.format.block()..=544).step_by(config.format.block() as usize).enumerate()
        {
            let mut product =
                Product::new(config, [33, 70, k, 2]).layouts(LAYOUTS[i % 4]).full_range();
            product.schedule = SCHEDULES[i % 5];
            product.case.seed = u64::from(k);
            product.check();
        }
    }
}

/// One shape under many seeds.
#[test]
fn random_schedules() {
    for name in [
        "gemm_sm100_nvfp4_128x256_multicast2",
        "gemm_sm100_mxfp4_256x64",
        "gemm_sm100_nvfp4_256x256_multicast2",
        "gemm_sm100_nvfp4_128x128_split4",
        "gemm_sm100_nvfp4_128x8",
        "gemm_sm100_mxfp4_128x16",
        "gemm_sm100_nvfp4_128x32_split4",
        "gemm_sm100_nvfp4_f16_128x64",
        "gemm_sm100_nvfp4_bf16_256x256",
        "gemm_sm100_mxfp4_bf16_256x128",
    ] {
        let config = config(name);
        let k = config.step() * (2 * config.k_parts() + 1);
        for seed in 0..12 {
            let sizes = [config.rows() + 1, config.columns * 3, k, 1];
            let mut product = Product::new(config, sizes);
            product.schedule = Schedule::Random(1000 + seed);
            product.dynamic = seed % 2 == 1;
            product.swapped |= seed % 3 == 1;
            product.check();
        }
    }
}
