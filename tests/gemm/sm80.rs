//! The kernels of sm_80, which every machine runs on request: here the emulated H200, against the f64 oracle.

use fp4_formats::gemm::{Split, sm80};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType, HalfType, Nvfp4, ScaleLayout, e2m1, e4m3};
use nvfp4::device::Kernels;
use nvfp4::gemm::{ActivationKind, Activations, Fp8Matrix, GemmOptions, GemmOverrides, gemm, plan};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_tests::gemm::grouped::GroupedCase;
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

/// Activations in e4m3 are decoded to bf16 by a launch before.
#[test]
fn e4m3_is_decoded() {
    decoded_e4m3(&machines(), &[Format::Nvfp4, Format::Mxfp4]);
}

/// Checks activations in e4m3, given and made of floats, beside weights in `formats` on `machines` with kernels of sm_80:
/// products, gated, grouped and mixed ones, batches with scales of their own and shared ones.
pub fn decoded_e4m3(machines: &[Kernels], formats: &[Format]) {
    let all = [None, Some(HalfType::F16), Some(HalfType::Bf16)].map(ActivationType::Fp8);
    for (i, activations) in all.into_iter().enumerate() {
        for (at, &format) in formats.iter().enumerate() {
            let index = 2 * i + at;
            let machine = &machines[index % machines.len()];
            let case = |case: Case| Case { format, activations, ..case };
            let mut uniform = case(Case::new([21, 136, 352, 3]));
            uniform.result = RESULTS[index % RESULTS.len()];
            uniform.shape.n = uniform.shape.n.next_multiple_of(uniform.result.block());
            uniform.vectors = [false, true, true];
            uniform.shared_weights = at == 1;
            uniform.check(machine);
            case(dual::varied([9, 96, 160, 1], index)).check(machine);
            let groups = grouped::varied(&[7, 0, 21], [200, 160], index);
            GroupedCase { format, activations, ..groups }.check(machine);
            let cases = mixed::launch([128, 64], format, activations, index);
            mixed::check(machine, &cases, sm80::MIXED[1 + at].name);
        }
    }
}

/// Plans say that weights are not folded, and each code is what the CPU decodes.
#[test]
fn every_code_of_e4m3() {
    decoded_codes(&few_sms(4, Schedule::Eager));
}

/// Checks the plan of a product by kernels of sm_80, and the results of each code of e4m3.
pub fn decoded_codes(kernels: &Kernels) {
    let machine = kernels.device().properties();
    let arch = kernels.device().choice().arch;
    let (shape, kind) = (GemmShape::of(3, 40, 64), ActivationKind::Fp8(None));
    let plan = plan(shape, Format::Nvfp4, kind, arch, machine, &GemmOverrides::default());
    let plan = plan.expect("e4m3 is decoded").to_string();
    assert!(plan.contains("decoded to bf16") && plan.contains("not folded"), "{plan}");
    // Token `m` has code `m` in its first column, and the weights are 1 there.
    let (m, n, k) = (256, 16, 32);
    let codes = (0..m * k).map(|at| if at % k == 0 { (at / k) as u8 } else { 0 }).collect();
    let dims = |rows| Dims::new(1, rows, k).expect("dims");
    let a = Fp8Matrix::new("a", dims(m), codes, vec![1.0; m]).expect("valid");
    let one = e2m1::encode(1.0);
    let weights = vec![one | one << 4; n * k / 2];
    let scales = vec![e4m3::encode(1.0); n * k / 16];
    let b = BlockScaled::<Nvfp4>::new("b", dims(n), ScaleLayout::Linear, weights, scales, 1.0);
    let options = GemmOptions::new().output(FloatType::F32);
    let found = gemm(kernels, &Activations::Fp8(&a), &b.expect("valid"), &options).expect("runs");
    for (row, values) in found.values().chunks_exact(n).enumerate() {
        let expected = e4m3::decode(row as u8);
        let same = |x: &f32| *x == expected || x.is_nan() && expected.is_nan();
        assert!(values.iter().all(same), "{row}: {values:?}, not {expected}");
    }
}
