//! Quantising and dequantising on the emulator of both architectures: the CPU's bytes.
//!
//! Needs the compiled kernels (`cargo xtask build-kernels`); where there are none, each test
//! leaves them out, or fails if `NVFP4_KERNELS_DIR` promises them.

use std::process::Command;

use crate::support::*;
use fp4_formats::recipe::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::dequantize::{Dequantizer, Multiplier};
use nvfp4::error::{Error, Position};
use nvfp4::quantize::device::{Input, Quantizer, gated_product, quantize_once};
use nvfp4::quantize::{Format, QuantizeOptions, Recipe, TensorScale, quantize_matrix};
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::{Layout, Model, quantize_model};
use nvfp4_lab::bench::{self, Direction, Protocol, QuantizeBench};
use nvfp4_lab::shape::QuantizeShape;

fn recipes() -> Vec<Recipe> {
    let nvfp4 = Nvfp4Recipe::ALL.map(Recipe::Nvfp4);
    let adaptive = AdaptiveRecipe::ALL.map(Recipe::Adaptive);
    let mxfp4 = Mxfp4Recipe::ALL.map(Recipe::Mxfp4);
    nvfp4.into_iter().chain(adaptive).chain(mxfp4).collect()
}

#[test]
fn every_recipe_type_and_layout_equals_the_cpu() {
    for kernels in machines() {
        let name = &kernels.device().choice().device;
        let mut seed = 0;
        for recipe in recipes() {
            for element in FloatType::ALL {
                for (rows, cols) in [(1, 32), (3, 160), (130, 96)] {
                    seed += 1;
                    let scale = [TensorScale::FromAmax, TensorScale::PerRow, TensorScale::OneLevel]
                        [seed as usize % 3];
                    let layout = ScaleLayout::ALL[seed as usize % 2];
                    let direction =
                        if seed % 4 == 3 { Direction::Dequantize } else { Direction::Quantize };
                    let options = QuantizeOptions::new(recipe).scale(scale).layout(layout);
                    let protocol = Protocol::default();
                    let bench = QuantizeBench { direction, element, options, seed, protocol };
                    let shape = QuantizeShape { m: rows, k: cols };
                    let what = format!(
                        "{} {} {element:?} {shape} {scale:?} {layout} {direction:?} on {name}",
                        recipe.format().name(),
                        recipe.name()
                    );
                    let report = bench::quantize(&kernels, shape, &bench)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(report.verified, "{what}: {report}");
                    assert!(report.emulated.is_some(), "{what}");
                }
            }
        }
    }
}

#[test]
fn elements_that_are_not_finite_are_found() {
    let dims = Dims::new(1, 7, 96).expect("sizes above zero");
    for kernels in machines() {
        for recipe in [Recipe::Nvfp4(Nvfp4Recipe::TorchAo), Recipe::Mxfp4(Mxfp4Recipe::Floor)] {
            for scale in [TensorScale::FromAmax, TensorScale::OneLevel] {
                let options = QuantizeOptions::new(recipe).scale(scale);
                for (at, bad) in [(0, f32::NAN), (5 * 96 + 17, f32::INFINITY), (671, f32::NAN)] {
                    let mut values = normal(7, 96, 1);
                    values[at] = bad;
                    values[671] = f32::NEG_INFINITY;
                    let data = f32s(&values);
                    match quantize_once(&kernels, &data, FloatType::F32, dims, &options) {
                        Err(Error::NonFiniteAt { index, .. }) => {
                            let expected = Position { batch: 0, row: at / 96, column: at % 96 };
                            assert_eq!(index, expected, "{recipe:?} {scale:?}");
                        }
                        other => panic!("{recipe:?} {scale:?} {at}: {other:?}"),
                    }
                }
            }
        }
    }
}

/// One preparation, several inputs, an error in between.
#[test]
fn a_quantizer_can_be_used_again() {
    let recipe = Recipe::Nvfp4(Nvfp4Recipe::CompressedTensors);
    let options = QuantizeOptions::new(recipe);
    let dims = Dims::new(1, 5, 64).expect("sizes above zero");
    for kernels in machines() {
        let input = Input::plain(FloatType::F32);
        let quantizer = Quantizer::new(&kernels, 5, 64, input, &options).expect("plans");
        assert_eq!(quantizer.plan().steps.len(), 2);
        for round in 0..4u64 {
            // Smaller and smaller, so that an old maximum would show.
            let mut values = normal(5, 64, round);
            values.iter_mut().for_each(|x| *x *= 0.1f32.powi(round as i32));
            if round == 2 {
                values[70] = f32::NAN;
            }
            let buffer = DeviceBuffer::upload(kernels.device(), "x", &f32s(&values)).expect("fits");
            quantizer.launch(&buffer, None).expect("launches");
            let result = quantizer.result("x");
            if round == 2 {
                let error = result.expect_err("a NaN").to_string();
                assert!(error.contains("`x` has an infinity or a NaN at [0, 1, 6]"), "{error}");
                continue;
            }
            let expected = quantize_matrix("x", &values, dims, &options).expect("finite");
            let difference = result.expect("finite").difference(&expected);
            assert_eq!(difference, None, "round {round}");
        }
        let small = DeviceBuffer::upload(kernels.device(), "x", &[0; 16]).expect("fits");
        let error = quantizer.launch(&small, None).expect_err("too small").to_string();
        assert_eq!(error, "bytes of `input` must be 1280, but is 16");
        let whole = DeviceBuffer::upload(kernels.device(), "x", &[0; 1280]).expect("fits");
        let error = quantizer.launch(&whole, Some(&whole)).expect_err("not gated").to_string();
        assert_eq!(error, "the second input must be absent, but is given");
    }
}

#[test]
fn sizes_that_no_kernel_takes_are_refused() {
    for kernels in machines() {
        let input = Input::plain(FloatType::Bf16);
        for (recipe, rows, cols, message) in [
            (Recipe::Nvfp4(Nvfp4Recipe::TorchAo), 0, 32, "M must be from 1 to"),
            (Recipe::Nvfp4(Nvfp4Recipe::TorchAo), 1, 24, "K must be a multiple of 16, but is 24"),
            (Recipe::Mxfp4(Mxfp4Recipe::Floor), 1, 48, "K must be a multiple of 32, but is 48"),
            (Recipe::Mxfp4(Mxfp4Recipe::Floor), 1 << 40, 32, "M must be from 1 to"),
        ] {
            let options = QuantizeOptions::new(recipe);
            let error = Quantizer::new(&kernels, rows, cols, input, &options).expect_err("refused");
            assert!(error.to_string().starts_with(message), "{error}");
            let (format, layout) = (recipe.format(), ScaleLayout::Linear);
            let error = Dequantizer::new(&kernels, rows, cols, format, layout, FloatType::F32);
            assert!(error.expect_err("refused").to_string().starts_with(message));
        }
        let mut options = QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::ModelOpt));
        options.scale = TensorScale::Given(f32::NAN);
        let error = Quantizer::new(&kernels, 1, 16, input, &options).expect_err("refused");
        assert!(matches!(error, Error::Scalar { .. }), "{error}");
    }
}

/// A tensor-level scale that is on the device.
#[test]
fn multipliers_may_be_on_the_device() {
    let dims = Dims::new(1, 3, 32).expect("sizes above zero");
    let options = QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo));
    let matrix = quantize_matrix("x", &normal(3, 32, 5), dims, &options).expect("finite");
    for kernels in machines() {
        let upload =
            |bytes: &[u8]| DeviceBuffer::upload(kernels.device(), "x", bytes).expect("fits");
        let (codes, scales) = (upload(&matrix.codes), upload(&matrix.scales));
        let tensor = upload(&f32s(&matrix.multipliers()));
        let (format, layout) = (Format::Nvfp4, ScaleLayout::Linear);
        let operation = Dequantizer::new(&kernels, 3, 32, format, layout, FloatType::F32);
        let operation = operation.expect("plans");
        operation.launch(&codes, &scales, Multiplier::Tensor(&tensor)).expect("launches");
        let found = operation.result().expect("written");
        let expected = nvfp4::dequantize::dequantize_matrix(&matrix, FloatType::F32);
        assert_eq!(found, expected.expect("small"));
        let error = operation.launch(&scales, &scales, Multiplier::Given(1.0)).expect_err("short");
        assert_eq!(error.to_string(), "bytes of codes must be 48, but is 6");
    }
}

/// `silu(gate) * up`, which is approximate on the device: nearly all codes are those of the exact
/// product, and no block scale is more than a step away.
#[test]
fn gated_products_are_quantised() {
    let (gate, up) = (normal(9, 64, 1), normal(9, 64, 2));
    let wider = |values: Vec<f32>| -> Vec<f32> { values.iter().map(|x| x * 40.0).collect() };
    let (gate, up) = (wider(gate), wider(up));
    let product = gated_product(&gate, &up).expect("one length");
    let dims = Dims::new(1, 9, 64).expect("sizes above zero");
    for kernels in machines() {
        for recipe in [Recipe::Nvfp4(Nvfp4Recipe::TorchAo), Recipe::Mxfp4(Mxfp4Recipe::Floor)] {
            let options = QuantizeOptions::new(recipe);
            let expected = quantize_matrix("x", &product, dims, &options).expect("finite");
            let input = Input { element: FloatType::F32, gated: true };
            let quantizer = Quantizer::new(&kernels, 9, 64, input, &options).expect("plans");
            let upload = |x: &[f32]| DeviceBuffer::upload(kernels.device(), "x", &f32s(x));
            let (gate, up) = (upload(&gate).expect("fits"), upload(&up).expect("fits"));
            quantizer.launch(&gate, Some(&up)).expect("launches");
            let found = quantizer.result("x").expect("finite");
            let near = |x: &u8, y: &u8| x.abs_diff(*y) <= 1;
            assert!(found.scales.iter().zip(&expected.scales).all(|(x, y)| near(x, y)));
            let differ = found.codes.iter().zip(&expected.codes).filter(|(x, y)| x != y).count();
            assert!(differ * 50 <= found.codes.len(), "{differ} of {}", found.codes.len());
            let error = quantizer.launch(&gate, None).expect_err("gated").to_string();
            assert_eq!(error, "the second input must be given, but is absent");
        }
    }
}

/// A whole checkpoint on the device is the CPU's, byte for byte.
#[test]
fn checkpoints_are_the_same() {
    let folder = Folder::new("quantize-device");
    for kernels in machines() {
        let source = folder.file("source.safetensors");
        write_model(&source);
        let model = Model::open(&source).expect("a model");
        let options = options(Format::Nvfp4, Layout::ModelOpt);
        let mut files = Vec::new();
        for (name, kernels) in [("cpu", None), ("device", Some(&kernels))] {
            let out = folder.file(name);
            let _ = std::fs::remove_dir_all(&out);
            quantize_model(&model, &options, &out, kernels, &mut ()).expect("quantised");
            files.push(std::fs::read(out.join("model.safetensors")).expect("readable"));
        }
        assert!(files[0] == files[1], "on {}", kernels.device().choice().device);
    }
}

/// Kernels that are promised and missing are no reason to pass.
#[test]
fn missing_kernels_are_a_failure_where_they_are_promised() {
    let folder = Folder::new("quantize-device-none");
    let run = |test: &str| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let command = command.args(["--exact", test]).env("NVFP4_KERNELS_DIR", folder.path());
        command.output().expect("it starts")
    };
    let output = run("quantize_device::sizes_that_no_kernel_takes_are_refused");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("1 failed"), "{stdout}");
    assert!([stdout, stderr].concat().contains("no kernels for sm_90a"));
}
