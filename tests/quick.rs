//! One configuration of each family of kernels under two schedules, against the oracle or the CPU:
//! what `cargo xtask test --quick` launches.

use fp4_formats::gemm::{Split, sm90, sm100};
use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::recipe::{Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::dequantize::{Dequantizer, Multiplier, dequantize_matrix};
use nvfp4::gemv::GemvOptions;
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize_matrix};
use nvfp4::shape::GemvShape;
use nvfp4::tensor::Dims;
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{ActivationType, Case};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, emulated, gemv, quantize};
use ptx_emu::Schedule;

/// `eager` and `lazy`.
fn schedules() -> impl Iterator<Item = Schedule> {
    SCHEDULES.into_iter().take(2)
}

const RECIPES: [Recipe; 2] =
    [Recipe::Nvfp4(Nvfp4Recipe::TorchAo), Recipe::Mxfp4(Mxfp4Recipe::Rceil)];

/// The first element of each kind, in order.
fn first_of_each<T, K: PartialEq>(all: &[T], kind: impl Fn(&T) -> K) -> Vec<&T> {
    let mut found: Vec<&T> = Vec::new();
    for element in all {
        if !found.iter().any(|other| kind(other) == kind(element)) {
            found.push(element);
        }
    }
    found
}

/// All operand types of each weight format, with `mma` and with `wgmma`, alone and in pairs that
/// share activations; K divided evenly.
#[test]
fn gemm_of_sm_90a() {
    let kinds = first_of_each(&sm90::CONFIGS, |c| (c.scheme, c.uses_mma_sync(), c.multicast));
    let schemes = first_of_each(&sm90::CONFIGS, |config| config.scheme).len();
    assert_eq!(schemes, sm90::operands().count());
    assert!(kinds.len() > schemes, "{}", kinds.len());
    for schedule in schedules() {
        let kernels = emulated(DEVICES[0], schedule);
        for (i, config) in kinds.iter().enumerate() {
            let sizes = [config.tokens as usize + 3, config.rows as usize + 80, 416, 1];
            let mut case = Case::new(sizes)
                .decoded_to(config.scheme.format, config.scheme.operand, i)
                .kernel(config.name, Split::StreamK.at_most(config.max_split()));
            if i % 3 == 0 {
                case.result = ResultKind::Blocks(Format::Nvfp4, ScaleLayout::ALL[i / 3 % 2]);
            }
            case.check(&kernels);
        }
    }
}

/// Both weight formats beside activations in theirs and beside 16-bit ones, by one CTA and by a CTA
/// pair, with K split, with multicast, for few tokens.
#[test]
fn gemm_of_sm_100a() {
    let kinds = first_of_each(&sm100::CONFIGS, |c| {
        (c.format, c.activations, c.cta_group, c.k_parts() > 1, c.multicast, c.loads_tokens())
    });
    assert!(kinds.len() > 15, "{}", kinds.len());
    for schedule in schedules() {
        let kernels = emulated(DEVICES[1], schedule);
        for (i, config) in kinds.iter().enumerate() {
            let k = (config.step() * config.k_parts()) as usize + 32;
            let mut case = Case::new([9, config.rows() as usize + 80, k, 1])
                .format(config.format)
                .kernel(config.name, config.split);
            if let Some(operand) = config.activations {
                case.activations = ActivationType::as_they_are(operand);
            }
            if i % 3 == 0 {
                case.result = ResultKind::Blocks(Format::Nvfp4, ScaleLayout::ALL[i / 3 % 2]);
            }
            case.check(&kernels);
        }
    }
}

#[test]
fn gemv_of_both_architectures() {
    for device in MACHINES {
        for schedule in schedules() {
            let kernels = emulated(device, schedule);
            for (layout, k) in [(ScaleLayout::Linear, 2080), (ScaleLayout::Blocked128x4, 1040)] {
                let case = gemv::Case {
                    shape: GemvShape { m: 131, k, l: 2 },
                    generator: Generator::FullRange,
                    layouts: [layout; 2],
                    options: GemvOptions::default(),
                    seed: k as u64,
                };
                case.check(&kernels);
            }
        }
    }
}

#[test]
fn quantise_to_both_formats() {
    let mut random = SplitMix64::new(1);
    for recipe in RECIPES {
        for (schedule, ty) in schedules().zip([FloatType::F32, FloatType::Bf16]) {
            for layout in ScaleLayout::ALL {
                let case = quantize::Case::new(recipe, 131, 288);
                let case = quantize::Case { ty, layout, schedule, ..case };
                quantize::check(&case, &quantize::values(&mut random, 131 * 288));
            }
        }
    }
}

#[test]
fn dequantise_both_formats() {
    let [rows, cols] = [37, 288];
    let mut random = SplitMix64::new(2);
    let values: Vec<f32> = (0..rows * cols).map(|_| random.normal() as f32).collect();
    let dims = Dims::new(1, rows, cols).expect("dims");
    for recipe in RECIPES {
        for layout in ScaleLayout::ALL {
            let options = QuantizeOptions::new(recipe).scale(TensorScale::OneLevel).layout(layout);
            let matrix = quantize_matrix("x", &values, dims, &options).expect("finite");
            for device in MACHINES {
                for (schedule, output) in schedules().zip([FloatType::F32, FloatType::Bf16]) {
                    let kernels = emulated(device, schedule);
                    let upload = |bytes: &[u8]| {
                        DeviceBuffer::upload(kernels.device(), "x", bytes).expect("memory")
                    };
                    let (codes, scales) = (upload(&matrix.codes), upload(&matrix.scales));
                    let format = recipe.format();
                    let dequantizer =
                        Dequantizer::new(&kernels, rows, cols, format, layout, output);
                    let dequantizer = dequantizer.expect("planned");
                    dequantizer.launch(&codes, &scales, Multiplier::Given(1.0)).expect("runs");
                    let expected = dequantize_matrix(&matrix, output).expect("small");
                    assert_eq!(dequantizer.result().expect("written"), expected, "{device}");
                }
            }
        }
    }
}
