//! 16-bit activations: every configuration that takes them, on shapes that fill none of its
//! tiles.

use crate::case::Case;
use crate::operand::Scales;
use crate::{LAYOUTS, OUTPUTS, SCHEDULES};
use fp4_formats::ScaleLayout::{Blocked128x4, Linear};
use fp4_formats::gemm::blackwell::{BlackwellConfig, CONFIGS};
use fp4_formats::gemm::hopper::Operand;
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4};
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activations, GemmOptions, GemmOverrides, Output, gemm, reference};
use nvfp4::generate::Generator;
use nvfp4::rng::SplitMix64;
use nvfp4::tensor::Dims;
use nvfp4_tests::emulated;

fn configs() -> impl Iterator<Item = (&'static BlackwellConfig, Operand)> {
    CONFIGS.iter().filter_map(|config| Some((config, config.left?)))
}

/// One token, a tile but one, more than one tile, of tokens and of weights; K of a block, and
/// such that it ends within a step: each with every type of the result. In turn stored by the copy
/// engine and by threads, with and without factors and bias, batches, all schedules.
#[test]
fn ragged_shapes() {
    let mut i = 0;
    for (config, _) in configs() {
        let (step, block) = (config.step(), config.format.block());
        let tiles = [
            [1, 7, step * (config.splits - 1) + block],
            [config.columns - 1, 72, step * config.splits - block],
            [config.columns + 5, config.rows() + 9, step * config.splits + 3 * block],
            [7, 2 * config.rows() - 40, step * (config.splits + 1) + 96],
        ];
        for ([m, n, k], output) in tiles.iter().flat_map(|&tile| OUTPUTS.map(|o| (tile, o))) {
            let mut case = Case::new(config, [m, n, k, 1 + i / 2 % 3]);
            case.output = output;
            case.dynamic = i / 2 % 2 == 1;
            case.clusters = 1 + i % 4;
            case.layouts = LAYOUTS[i as usize % 4];
            case.direct = i % 5 == 2;
            case.vectors = [i % 2 == 1, i / 3 % 2 == 1, i % 4 < 2];
            case.alpha = [1.0, -0.5, 2.0][i as usize / 2 % 3];
            case.scales = [Scales::Exact, Scales::FullRange][(i / 3 % 2) as usize];
            case.schedule = SCHEDULES[(i / 2 % 4) as usize];
            case.seed = 300 + u64::from(i);
            case.check();
            i += 1;
        }
    }
}

/// Through the host library: weights of each batch entry and shared ones, in both layouts of
/// their scales, and every result.
#[test]
fn through_the_library() {
    let machines = SCHEDULES.map(|schedule| emulated("emu:b200", schedule));
    for (i, (config, operand)) in configs().enumerate() {
        for shared in [false, true] {
            let kernels = &machines[(i + usize::from(shared)) % 4];
            let outputs = [
                OUTPUTS[i % 3].into(),
                Output::Nvfp4 { scale: 0.5, layout: [Linear, Blocked128x4][i % 2] },
            ];
            for output in outputs {
                match config.format {
                    Format::Nvfp4 => product::<Nvfp4>(kernels, config, operand, shared, output, i),
                    Format::Mxfp4 => product::<Mxfp4>(kernels, config, operand, shared, output, i),
                }
            }
        }
    }
}

fn product<F: BlockFormat>(
    kernels: &Kernels,
    config: &BlackwellConfig,
    operand: Operand,
    shared: bool,
    output: Output,
    seed: usize,
) {
    let (m, n) = ([3, 33, 70][seed % 3], [16, 80, 208][seed / 3 % 3]);
    let (k, l) = ((config.step() * config.splits) as usize + 32, 2 + seed % 2);
    let mut rng = SplitMix64::new(seed as u64);
    let dims = Dims::new(if shared { 1 } else { l }, n, k).expect("dims");
    let layout = [Blocked128x4, Linear][seed % 2];
    let b = Generator::FullRange.blocks::<F>("b", dims, layout, &mut rng).expect("b");
    let dims = Dims::new(l, m, k).expect("dims");
    let a = Generator::FullRange.halves("a", dims, operand, &mut rng).expect("a");
    let a = Activations::<F>::Halves(&a);
    let ramp = |count: usize| Some((0..count).map(|i| 0.5 + (i % 5) as f32).collect());
    let options = GemmOptions {
        alpha: -0.75,
        output,
        row_factors: if seed.is_multiple_of(2) { ramp(m) } else { None },
        column_factors: if seed.is_multiple_of(3) { ramp(n) } else { None },
        bias: if shared { ramp(n) } else { None },
        overrides: GemmOverrides { kernel: Some(config.name.into()), split: None },
    };
    let what = format!("{}: {m} x {n} x {k} x {l}, shared: {shared}, {output:?}", config.name);
    let result = gemm(kernels, &a, &b, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(result.plan.kernel, config.name);
    let check = result.verify(&reference(&a, &b, &options).expect("the oracle"));
    assert!(check.passed(), "{what}\n{}\n{}", result.plan, check.summary());
}
