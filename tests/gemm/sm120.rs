//! The kernels of sm_120f on the emulated RTX 5090, against the f64 oracle: those for block-scaled products, and
//! sm_80's, compiled for this target.

use fp4_formats::gemm::sm120::Sm120Config;
use fp4_formats::gemm::sm120::config::TokenCodes;
use fp4_formats::gemm::{Split, sm120};
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, Mxfp4, Operand, ScaleLayout, e2m1, e4m3, ue8m0};
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    ActivationKind, Activations, Fp8Matrix, Gemm, GemmOptions, GemmOverrides, Repacked, gemm, plan,
};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_tests::gemm::{ActivationType, BF16, BLOCKED, Case, LINEAR, RESULTS};
use nvfp4_tests::{SCHEDULES, emulated_on};
use ptx_emu::{Gpu, Schedule};

use super::sm80::{decoded_codes, decoded_e4m3};
use super::{dual, grouped, mixed};

/// The machine with its kernels, under each schedule.
fn machines() -> [Kernels; SCHEDULES.len()] {
    SCHEDULES.map(|schedule| emulated_on(Gpu::rtx5090(), schedule))
}

/// A machine of so few SMs that each CTA has several tiles, and many CTAs have one.
fn few_sms(sms: u32, schedule: Schedule) -> Kernels {
    emulated_on(Gpu { sms, ..Gpu::rtx5090() }, schedule)
}

/// Activations of a configuration: blocks, whose scales have either layout, or e4m3, given or made of floats.
fn activations(config: &Sm120Config, index: usize) -> ActivationType {
    match config.codes {
        TokenCodes::Blocks => [LINEAR, BLOCKED][index % 2],
        TokenCodes::E4m3 => ActivationType::of_operand(config.format, Operand::E4m3, index),
    }
}

/// A K whose rows are at 16-byte boundaries or, of NVFP4, at 8-byte ones; and whose scales fill no word.
fn columns(format: Format, index: usize, steps: usize) -> usize {
    let last = match format {
        Format::Nvfp4 => [16, 32, 48, 112][index % 4],
        Format::Mxfp4 => [32, 64, 96][index % 3],
    };
    128 * steps + last
}

/// Every configuration on a shape that fills no tile, alone and divided evenly, under all schedules: either layout
/// of scales, every result, vectors, batches with shared weights.
#[test]
fn every_configuration() {
    for (i, kernels) in machines().iter().enumerate() {
        for (at, config) in sm120::CONFIGS.iter().enumerate() {
            let (m, n) = (config.tokens as usize + 3, config.rows as usize + 72);
            for (steps, split) in [(1, Split::None), (5, Split::StreamK)] {
                let index = at + i;
                let result = RESULTS[index % RESULTS.len()];
                let n = n.next_multiple_of(result.block());
                let k = columns(config.format, index, steps);
                let mut case = Case::new([m, n, k, 1 + index % 2])
                    .format(config.format)
                    .activations(activations(config, index / 2))
                    .kernel(config.name, split)
                    .result(result);
                case.magnitude = steps == 5;
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
    for (at, config) in sm120::CONFIGS.iter().enumerate() {
        let (m, n) = (config.tokens as usize + 3, config.rows as usize / 2 + 40);
        for (i, (steps, split)) in [(1, Split::None), (5, Split::StreamK)].into_iter().enumerate() {
            let index = 2 * at + i;
            let result = RESULTS[index % RESULTS.len()];
            let k = columns(config.format, index, steps);
            let case = dual::varied([m, n.next_multiple_of(result.block()), k, 1], index)
                .format(config.format)
                .activations(activations(config, at))
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
    for (at, config) in sm120::GROUPED.iter().enumerate() {
        for i in 0..4 {
            let index = 4 * at + i;
            let counts = grouped::ragged(config.tokens as usize, i);
            let k = columns(config.format, index, [1, 5][i % 2]);
            let mut case = grouped::varied(&counts, [config.rows as usize / 2 + 40, k], index);
            case.format = config.format;
            case.activations = activations(config, i);
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
    for (at, config) in sm120::MIXED.iter().enumerate() {
        let size = [config.rows as usize, config.tokens as usize];
        for (i, machine) in machines().iter().enumerate() {
            let activations = activations(config, i);
            let cases = mixed::launch(size, config.format, activations, 5 * at + i);
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

/// A layout of scales whose rows end inside a word of four.
#[test]
fn rows_of_scales_in_any_place() {
    for (format, k) in [(Format::Nvfp4, 48), (Format::Nvfp4, 336), (Format::Mxfp4, 160)] {
        for layout in ScaleLayout::ALL {
            let mut case = Case::new([21, 200, k, 3]).format(format).result(FloatType::F32);
            case.layout = layout;
            case.activations = if layout == ScaleLayout::Linear { LINEAR } else { BLOCKED };
            case.check(&few_sms(5, Schedule::Lazy));
        }
    }
}

/// Activations in e4m3 are decoded to bf16 by a launch before, beside weights of NVFP4.
#[test]
fn e4m3_is_decoded() {
    decoded_e4m3(&machines(), &[Format::Nvfp4]);
    decoded_codes(&few_sms(4, Schedule::Eager));
}

/// Activations in e4m3 are multiplied as they are beside MXFP4, with weights whose order is that of blocks: the plan says
/// so, and each code is what the CPU decodes, beside each code of the weights and scales of the whole range.
#[test]
fn every_code_of_e4m3_by_every_code_of_e2m1() {
    let kernels = few_sms(4, Schedule::Eager);
    let (shape, kind) = (GemmShape::of(3, 40, 64), ActivationKind::Fp8(None));
    let (arch, machine) = (kernels.device().choice().arch, kernels.device().properties());
    let plan = plan(shape, Format::Mxfp4, kind, arch, machine, &GemmOverrides::default());
    let plan = plan.expect("e4m3 is multiplied").to_string();
    assert!(plan.contains("as they are, exactly") && plan.contains("not folded"), "{plan}");
    assert!(!plan.contains("decoded"), "{plan}");
    // Token `m` has code `m` in one column, which is another one for each, and row `n` the code `n % 16` in all.
    let (m, n, k) = (256, 16 * 5, 160);
    let column = |token: usize| token * 7 % k;
    let code = |at: usize| if at % k == column(at / k) { (at / k) as u8 } else { 0 };
    let a = Fp8Matrix::new("a", dims(m, k), (0..m * k).map(code).collect(), vec![1.0; m]);
    let row_code = |row: usize| (row % 16) as u8;
    let weights = (0..n * k / 2).map(|at| row_code(2 * at / k) * 0x11).collect();
    let scale = |row: usize, block: usize| [110, 127, 130, 141][(row / 16 + block) % 4];
    let scales = (0..n * k / 32).map(|at| scale(at / (k / 32), at % (k / 32))).collect();
    let b = BlockScaled::<Mxfp4>::new("b", dims(n, k), ScaleLayout::Linear, weights, scales, 1.0);
    let (a, b) = (a.expect("valid"), b.expect("valid"));
    let options = GemmOptions::new().output(FloatType::F32);
    let found = gemm(&kernels, &Activations::Fp8(&a), &b, &options).expect("runs");
    for (token, values) in found.values().chunks_exact(n).enumerate() {
        for (row, &found) in values.iter().enumerate() {
            let scale = ue8m0::decode(scale(row, column(token) / 32));
            let expected = e4m3::decode(token as u8) * e2m1::decode(row_code(row)) * scale;
            let same = found == expected || found.is_nan() && expected.is_nan();
            assert!(same, "{token}, {row}: {found}, not {expected}");
        }
    }
}

/// Weights of MXFP4 that were repacked for activations in blocks are those for e4m3; those for 16-bit ones are not.
#[test]
fn weights_serve_blocks_and_e4m3() {
    let kernels = few_sms(4, Schedule::Eager);
    let repacked = |weights: &BlockScaled<Mxfp4>, kind| {
        let repacked = Repacked::for_device(kernels.device(), weights, kind).expect("fits");
        repacked.upload(kernels.device()).expect("room")
    };
    let b = BlockScaled::<Mxfp4>::new(
        "b",
        dims(24, 96),
        ScaleLayout::Linear,
        vec![0; 24 * 48],
        vec![127; 24 * 3],
        1.0,
    );
    let b = b.expect("valid");
    let options = GemmOptions::new();
    let blocks = LINEAR.kind(Format::Mxfp4);
    let [bytes, halves] = [ActivationKind::Fp8(None), BF16.kind(Format::Mxfp4)];
    for (weights, kind) in [(blocks, bytes), (bytes, blocks)] {
        let weights = repacked(&b, weights);
        Gemm::new(&kernels, &weights, [1, 3], kind, &options).expect("the same order");
        let error = Gemm::new(&kernels, &weights, [1, 3], halves, &options).expect_err("another");
        assert!(error.to_string().contains("repacked for"), "{error}");
    }
}

fn dims(rows: usize, k: usize) -> Dims {
    Dims::new(1, rows, k).expect("dims")
}

/// 16-bit activations have sm_80's kernels, compiled for this target.
#[test]
fn halves_have_kernels() {
    for (format, activations) in [(Format::Nvfp4, BF16), (Format::Mxfp4, BF16)] {
        let case = Case::new([19, 200, 288, 1]).format(format).activations(activations);
        let plan = case.check(&few_sms(4, Schedule::Eager)).plan;
        assert!(plan.kernel.starts_with("gemm_sm80_"), "{plan}");
        assert_eq!(plan.arch.name(), "sm_120f");
    }
}
