//! The kernels of sm_80, which every machine runs on request: here the emulated H200, against the f64 oracle.

use fp4_formats::gemm::{Split, sm80};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType};
use nvfp4::device::Kernels;
use nvfp4::gemm::{ActivationKind, GemmOverrides, plan};
use nvfp4::shape::GemmShape;
use nvfp4_tests::gemm::{ActivationType, Case, LINEAR, RESULTS};
use nvfp4_tests::{SCHEDULES, emulated_for};
use ptx_emu::{Gpu, Schedule};

use super::{dual, grouped, mixed};

/// The machine with its kernels, under each schedule.
fn machines() -> [Kernels; SCHEDULES.len()] {
    SCHEDULES.map(|schedule| emulated_for(Arch::Sm80, Gpu::h200(), schedule))
}

/// A machine of so few SMs that each CTA has several tiles, and many CTAs have one.
fn few_sms(sms: u32, schedule: Schedule) -> Kernels {
    emulated_for(Arch::Sm80, Gpu { sms, ..Gpu::h200() }, schedule)
}

/// Every configuration on a shape that fills no tile, alone and divided evenly, under all schedules: decoded and
/// 16-bit activations, every result, vectors, batches with shared weights.
#[test]
fn every_configuration() {
    for (i, kernels) in machines().iter().enumerate() {
        for (at, config) in sm80::CONFIGS.iter().enumerate() {
            let (m, n) = (config.tokens as usize + 3, config.rows as usize + 72);
            for (k, split) in [(160, Split::None), (672, Split::StreamK)] {
                let index = at + i;
                let result = RESULTS[index % RESULTS.len()];
                let n = n.next_multiple_of(result.block());
                let mut case = Case::new([m, n, k, 1 + index % 2])
                    .decoded_to(config.scheme.format, config.scheme.operand, index)
                    .kernel(config.name, split)
                    .result(result);
                case.magnitude = k == 672;
                case.vectors = [index % 2 == 0, index % 3 == 0, index % 4 < 2];
                case.shared_weights = index % 4 == 1;
                case.check(kernels);
            }
        }
    }
}

/// Every configuration gated.
#[test]
fn every_gated_configuration() {
    let machines = machines();
    for (at, config) in sm80::CONFIGS.iter().enumerate() {
        let (m, n) = (config.tokens as usize + 3, config.rows as usize / 2 + 40);
        for (i, (k, split)) in [(160, Split::None), (672, Split::StreamK)].into_iter().enumerate() {
            let index = 2 * at + i;
            let result = RESULTS[index % RESULTS.len()];
            let case = dual::varied([m, n.next_multiple_of(result.block()), k, 1], index)
                .decoded_to(config.scheme.format, config.scheme.operand, index)
                .kernel(config.name, split)
                .result(result);
            case.check(&machines[index % machines.len()]);
        }
    }
}

/// Every configuration of grouped products on groups that fill no tile.
#[test]
fn every_grouped_configuration() {
    let machines = machines();
    for (at, config) in sm80::GROUPED.iter().enumerate() {
        for i in 0..4 {
            let index = 4 * at + i;
            let counts = grouped::ragged(config.tokens as usize, i);
            let sizes = [config.rows as usize / 2 + 40, [160, 672][i % 2]];
            let mut case = grouped::varied(&counts, sizes, index);
            case.format = config.scheme.format;
            case.activations = ActivationType::of_operand(case.format, config.scheme.operand, i);
            case.result = RESULTS[index % RESULTS.len()];
            case.sizes[0] = case.sizes[0].next_multiple_of(case.result.block());
            case.overrides = GemmOverrides::new().kernel(config.name.to_string()).split(None);
            case.check(&machines[index % machines.len()]);
        }
    }
}

/// Every configuration of mixed products, under all schedules.
#[test]
fn every_mixed_configuration() {
    for (at, config) in sm80::MIXED.iter().enumerate() {
        let size = [config.rows as usize, config.tokens as usize];
        let format = config.scheme.format;
        for (i, machine) in machines().iter().enumerate() {
            let activations = ActivationType::of_operand(format, config.scheme.operand, i + 1);
            let cases = mixed::launch(size, format, activations, 5 * at + i);
            mixed::check(machine, &cases, config.name);
        }
    }
}

/// CTAs with several tiles, and tiles of several CTAs.
#[test]
fn tiles_in_turn() {
    for (sms, [m, n, k], split) in [
        (2, [40, 1320, 160], Split::None),
        (3, [40, 1320, 288], Split::StreamK),
        (9, [5, 264, 4128], Split::StreamK),
    ] {
        for schedule in SCHEDULES {
            let mut case = Case::new([m, n, k, 1]).activations(LINEAR).result(FloatType::F32);
            case.overrides = GemmOverrides::new().split(split);
            case.check(&few_sms(sms, schedule));
        }
    }
}

/// Activations in e4m3 are refused by name, before anything is launched.
#[test]
fn e4m3_is_refused() {
    let machine = few_sms(4, Schedule::Eager).device().properties();
    let (shape, kind) = (GemmShape::of(3, 40, 64), ActivationKind::Fp8(None));
    let overrides = GemmOverrides::default();
    let error = plan(shape, Format::Nvfp4, kind, Arch::Sm80, machine, &overrides)
        .expect_err("there is no such kernel")
        .to_string();
    assert!(error.contains("bf16, or the weights' own format, on this target"), "{error}");
}
