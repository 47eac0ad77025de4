//! GEMV on the emulator, both architectures, against the f64 oracle.

use fp4_formats::FloatType;
use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::WARP;
use fp4_formats::gemv::{CONFIGS, MAX_WARPS};
use nvfp4::gemv::{GemvOptions, GemvOverrides};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{self, GemvShape};
use nvfp4_tests::gemv::Case;
use nvfp4_tests::{SCHEDULES, TARGETS, emulated};
use ptx_emu::Schedule;

fn case(shape: GemvShape, generator: Generator, seed: u64) -> Case {
    Case { shape, generator, layouts: [Linear, Linear], options: GemvOptions::default(), seed }
}

/// The contest's correctness shapes, its own inputs and full-range ones, each in
/// both scale layouts.
#[test]
fn contest_correctness_shapes() {
    for device in TARGETS {
        let kernels = emulated(device, Schedule::Eager);
        for (i, &shape) in shape::GEMV_CORRECTNESS.iter().enumerate() {
            let mut case = case(shape, Generator::Contest, i as u64);
            case.check(&kernels);
            case.generator = Generator::FullRange;
            case.layouts = [Linear, Blocked128x4];
            case.options.output = FloatType::F32;
            case.check(&kernels);
        }
    }
}

/// M = 1, 3, 129; K = 16, 48, 7184; L = 1, 2, 8: every combination with every
/// kind of input, both layouts of either operand, all output types, under all
/// schedules. The 128x4 padding holds NaN.
#[test]
fn ragged_shapes() {
    let mut seed = 100;
    for device in TARGETS {
        for schedule in [SCHEDULES[0], SCHEDULES[1], SCHEDULES[3]] {
            let kernels = emulated(device, schedule);
            for shape in shape::gemv_ragged() {
                for layouts in [
                    [Linear, Linear],
                    [Blocked128x4, Linear],
                    [Linear, Blocked128x4],
                    [Blocked128x4; 2],
                ] {
                    seed += 1;
                    let mut case = case(shape, Generator::ALL[seed as usize % 3], seed);
                    case.layouts = layouts;
                    case.options.output = FloatType::ALL[seed as usize / 3 % 3];
                    case.options.alpha = [1.0, -0.375, 3.0][seed as usize / 9 % 3];
                    case.check(&kernels);
                }
            }
        }
    }
}

/// Every configuration of the table on shapes it takes, with rows and chunks that do not fill its
/// tiles, scales of either operand that end anywhere in their words, and with fewer CTAs than planned.
#[test]
fn every_configuration() {
    let shapes = [(1, 32), (37, 224), (131, 1056), (261, 2080), (99, 96), (127, 352), (70, 544)];
    for device in TARGETS {
        let kernels = emulated(device, SCHEDULES[2]);
        for config in &CONFIGS {
            for (at, (m, k)) in shapes.into_iter().enumerate() {
                let k = if config.load_bytes == 8 { k + 16 } else { k };
                for (turn, ctas) in [None, Some(2), Some(3)].into_iter().enumerate() {
                    let mut case = case(GemvShape { m, k, l: 2 }, Generator::Exact, 11);
                    case.layouts = [ScaleLayout::ALL[(at + turn) % 2], config.scale_layout];
                    case.options.output = FloatType::F32;
                    case.options.overrides =
                        GemvOverrides::new().kernel(config.name.to_string()).ctas(ctas);
                    let result = case.check(&kernels);
                    assert_eq!(result.plan.kernel, config.name);
                }
            }
        }
    }
}

/// Rows with more chunks than a CTA has threads.
#[test]
fn more_than_one_panel() {
    for device in TARGETS {
        let kernels = emulated(device, Schedule::Lazy);
        for k in [16384, 16400, 32768, 40016] {
            for layout in [Linear, Blocked128x4] {
                let mut case = case(GemvShape { m: 35, k, l: 2 }, Generator::Exact, 5);
                case.layouts = [layout, layout];
                case.options.output = FloatType::F32;
                case.check(&kernels);
            }
        }
    }
}

/// Panels that do not have equally many chunks, of many rows and of few: every kernel.
#[test]
fn uneven_panels() {
    for device in TARGETS {
        let kernels = emulated(device, Schedule::Lazy);
        for config in &CONFIGS {
            for (m, panels) in [(200, 1), (3, 2)] {
                let chunks = panels * MAX_WARPS * WARP + 1;
                let k = (chunks * config.chunk_elements()) as usize;
                let mut case = case(GemvShape { m, k, l: 1 }, Generator::Exact, 13);
                case.layouts = [ScaleLayout::ALL[m % 2], config.scale_layout];
                case.options.output = FloatType::F32;
                case.options.overrides =
                    GemvOverrides::new().kernel(config.name.to_string()).ctas(Some(1));
                assert_eq!(case.check(&kernels).plan.kernel, config.name);
            }
        }
    }
}

/// The architectures and all schedules agree bit for bit if nothing is rounded before the output.
#[test]
fn exact_inputs_give_the_same_bits_everywhere() {
    let mut case = case(GemvShape { m: 130, k: 7184, l: 2 }, Generator::Exact, 21);
    case.options.output = FloatType::F32;
    let mut first = None;
    for device in TARGETS {
        for schedule in SCHEDULES {
            let kernels = emulated(device, schedule);
            let bytes = case.check(&kernels).bytes;
            assert_eq!(
                first.get_or_insert(bytes.clone()),
                &bytes,
                "{} {schedule}",
                kernels.device().choice()
            );
        }
    }
}

/// Many seeds of the random schedule on one shape.
#[test]
fn random_schedules() {
    for device in TARGETS {
        let mut case = case(GemvShape { m: 67, k: 544, l: 2 }, Generator::FullRange, 77);
        case.options.output = FloatType::F32;
        let mut first = None;
        for seed in 0..64 {
            let kernels = emulated(device, Schedule::Random(seed));
            let bytes = case.check(&kernels).bytes;
            assert_eq!(first.get_or_insert(bytes.clone()), &bytes, "seed {seed}");
        }
    }
}

/// Each code of the weights times each code of the activations, and each scale times
/// each scale, alone in its row: 2^-149 to overflow of f16 are all met.
#[test]
fn every_code_and_every_scale() {
    use fp4_formats::{Nvfp4, e2m1, e4m3};
    use nvfp4::gemv::gemv;
    use nvfp4::tensor::{BlockScaled, Dims};
    // Row r of the weights has code r/16 at position r%16 and 0 elsewhere; the activations have
    // code v in each position. The result is the product of two codes.
    for device in TARGETS {
        let kernels = emulated(device, Schedule::Eager);
        let one = e4m3::encode(1.0);
        for v in 0..16u8 {
            let mut codes = vec![0u8; 256 * 8];
            for row in 0..256 {
                let (code, at) = (row as u8 / 16, row % 16);
                codes[row * 8 + at / 2] = code << (4 * (at % 2));
            }
            let b = BlockScaled::<Nvfp4>::new(
                "b",
                Dims::new(1, 256, 16).unwrap(),
                Linear,
                codes,
                vec![one; 256],
                1.0,
            )
            .unwrap();
            let a = BlockScaled::<Nvfp4>::new(
                "a",
                Dims::new(1, 1, 16).unwrap(),
                Linear,
                vec![v | v << 4; 8],
                vec![one],
                1.0,
            )
            .unwrap();
            let got = gemv(&kernels, &a, &b, GemvOptions::default()).unwrap().values();
            for (row, got) in got.into_iter().enumerate() {
                let expected = e2m1::decode(row as u8 / 16) * e2m1::decode(v);
                assert_eq!(got, expected, "code {} times code {v}", row / 16);
            }
        }
        // Row r has scale r; codes are all 1: 16 * scale * scale.
        let ones = |rows: usize| vec![e2m1::encode(1.0) * 0x11; rows * 8];
        let scales: Vec<u8> = (0..=e4m3::MAX_CODE).collect();
        let rows = scales.len();
        for &t in &scales {
            let b = BlockScaled::<Nvfp4>::new(
                "b",
                Dims::new(1, rows, 16).unwrap(),
                Linear,
                ones(rows),
                scales.clone(),
                1.0,
            )
            .unwrap();
            let a = BlockScaled::<Nvfp4>::new(
                "a",
                Dims::new(1, 1, 16).unwrap(),
                Linear,
                ones(1),
                vec![t],
                1.0,
            )
            .unwrap();
            let options = GemvOptions::new().output(FloatType::F32);
            let got = gemv(&kernels, &a, &b, options).unwrap().values();
            for (s, got) in got.into_iter().enumerate() {
                let expected = 16.0 * e4m3::decode(s as u8) * e4m3::decode(t);
                assert_eq!(got, expected, "scale {s} times scale {t}");
            }
        }
    }
}
