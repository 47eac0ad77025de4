//! The quantise and amax kernels on the emulator, both architectures, against the CPU reference:
//! bit for bit, wherever the arithmetic is not approximate by contract.

use fp4_formats::quantize::{NO_ERROR, ScaleSource};
use fp4_formats::{FloatType, ScaleLayout, e2m1, e4m3, ue8m0};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::SCHEDULES;
use nvfp4_tests::quantize::{Case, EMULATED_GPUS, check, encode, recipes, run, values};

/// M and blocks per row that fill no task, tile or wave, in both layouts, for all
/// types, with fewer CTAs than tasks too.
#[test]
fn ragged_shapes() {
    let sources = [ScaleSource::Given, ScaleSource::TensorAmax, ScaleSource::RowAmax];
    let mut random = SplitMix64::new(1);
    let mut turn = 0;
    for recipe in recipes() {
        for (m, blocks) in [(1, 1), (1, 67), (3, 5), (33, 2), (129, 3), (131, 9), (257, 4)] {
            for layout in ScaleLayout::ALL {
                turn += 1;
                let block = recipe.format().block() as usize;
                let mut case = Case::new(recipe, m, blocks * block);
                case.ty = FloatType::ALL[turn % 3];
                case.source = sources[turn / 3 % 3];
                case.given = [0.01, 1.0, 3.7][turn / 9 % 3];
                case.schedule = SCHEDULES[turn / 2 % 5];
                case.layout = layout;
                case.sms = [None, Some(1)][turn / 5 % 2];
                check(&case, &values(&mut random, m * blocks * block));
            }
        }
    }
}

/// Each type with each recipe, source and layout: tasks that warps take in turn, and fewer than there
/// are warps; blocks of moderate magnitude and others.
#[test]
fn every_entry() {
    let mut random = SplitMix64::new(2);
    for recipe in recipes() {
        for ty in FloatType::ALL {
            for layout in ScaleLayout::ALL {
                for source in [ScaleSource::Given, ScaleSource::TensorAmax, ScaleSource::RowAmax] {
                    // More tasks than warps have stages for, of whatever type.
                    let many = if source == ScaleSource::Given { 720 } else { 300 };
                    for (m, k, sms, given) in [
                        (37, 96, None, 0.02),
                        (many, 96, Some(1), 0.02),
                        (2, 32, None, 0.02),
                        (19, 96, None, 1e-36),
                    ] {
                        let case = Case::new(recipe, m, k);
                        let case = Case { ty, layout, source, sms, given, ..case };
                        check(&case, &values(&mut random, m * k));
                    }
                }
            }
        }
    }
}

/// The smallest index is reported, whatever the schedule and wherever it is.
#[test]
fn elements_that_are_not_finite() {
    let mut random = SplitMix64::new(5);
    let clean = values(&mut random, 131 * 96);
    for recipe in recipes() {
        for (turn, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
            for places in [&[0][..], &[131 * 96 - 1], &[5000, 4999, 12000], &[97, 96 * 130]] {
                let mut values = clean.clone();
                places.iter().for_each(|&at| values[at] = bad);
                let mut case = Case::new(recipe, 131, 96);
                case.ty = FloatType::ALL[turn];
                case.layout = ScaleLayout::ALL[turn % 2];
                case.schedule = SCHEDULES[2 + turn];
                let (bytes, _) = encode(case.ty, &values);
                for machine in EMULATED_GPUS.iter() {
                    let got = run(machine, &case, &bytes, None);
                    let first = places.iter().min().copied().map(|at| at as u64);
                    assert_eq!(Some(got.error), first, "{} {case:?} {bad}", machine.name);
                }
            }
        }
    }
}

/// Fused `silu(gate) * up`: every value within half a step of the exact product, plus
/// the product's own error of 2^-16, also of rows that are tiny beside others; and an infinity is found.
#[test]
fn gated_products() {
    let mut random = SplitMix64::new(6);
    for recipe in recipes() {
        for turn in 0..15 {
            // Few blocks, and tasks that warps take in turn.
            let (m, blocks, sms) = [(5, 7, None), (260, 5, Some(1))][turn / 6 % 2];
            let block = recipe.format().block() as usize;
            let count = m * blocks * block;
            let mut case = Case::new(recipe, m, blocks * block);
            (case.ty, case.sms) = (FloatType::ALL[turn % 3], sms);
            case.layout = ScaleLayout::ALL[turn % 2];
            case.source = match turn {
                12.. => ScaleSource::Given,
                _ => [ScaleSource::TensorAmax, ScaleSource::RowAmax][turn / 3 % 2],
            };
            let spread = |random: &mut SplitMix64| {
                (random.next_u64() >> 40) as f32 / (1 << 24) as f32 * 24.0 - 12.0
            };
            let gate: Vec<f32> = (0..count).map(|_| spread(&mut random)).collect();
            let mut up: Vec<f32> = (0..count).map(|_| spread(&mut random)).collect();
            if turn % 6 > 2 {
                let tiny = if case.ty == FloatType::F16 { 1e-4 } else { 1e-30 };
                up[..case.k].iter_mut().for_each(|x| *x *= tiny);
            }
            let (gate_bytes, gate) = encode(case.ty, &gate);
            let (up_bytes, up) = encode(case.ty, &up);
            let exact: Vec<f64> = gate
                .iter()
                .zip(&up)
                .map(|(&g, &u)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u))
                .collect();
            for machine in EMULATED_GPUS.iter() {
                let got = run(machine, &case, &gate_bytes, Some(&up_bytes));
                assert_eq!(got.error, NO_ERROR);
                for (at, &exact) in exact.iter().enumerate() {
                    let (row, column) = (at / case.k, at % case.k);
                    let byte = got.scales[case.layout.offset(row, column / block, blocks)];
                    let parameter =
                        got.parameters[if case.source == ScaleSource::RowAmax { row } else { 0 }];
                    let scale = match recipe.parameter_of() {
                        Some(project) => {
                            f64::from(e4m3::decode(byte)) * f64::from(project.multiplier(parameter))
                        }
                        None => f64::from(ue8m0::decode(byte)),
                    };
                    let code = got.codes[at / 2] >> (at % 2 * 4);
                    let scaled = (exact / scale).abs();
                    let step = if scaled < 2.0 {
                        0.5
                    } else if scaled < 4.0 {
                        1.0
                    } else {
                        2.0
                    };
                    let value = f64::from(e2m1::decode(code));
                    let error = (value - exact / scale).abs();
                    let bound = step / 2.0 + scaled * 2f64.powi(-16);
                    assert!(
                        error <= bound || scaled > 6.0 && value.abs() == 6.0 || scale == 0.0,
                        "{} {case:?} [{row}, {column}]: {exact:e} became {value} * {scale:e}",
                        machine.name
                    );
                }
                let mut broken = up_bytes.clone();
                let at = count - 3;
                let bytes = case.ty.bytes() as usize;
                let infinity = encode(case.ty, &[f32::INFINITY]).0;
                broken[at * bytes..(at + 1) * bytes].copy_from_slice(&infinity);
                let got = run(machine, &case, &gate_bytes, Some(&broken));
                assert_eq!(got.error, at as u64, "{} {case:?}", machine.name);
            }
        }
    }
}
