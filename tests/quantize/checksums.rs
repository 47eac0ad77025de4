//! Every quantise and dequantise kernel gives the bits that are recorded in
//! `tests/data/checksums`, whose README says when a change is legitimate.

use fp4_formats::quantize::{Format, Recipe};
use fp4_formats::recipe::{AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{FloatType, HalfType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::dequantize::{Dequantizer, Multiplier};
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, TensorScale};
use nvfp4::rows::{Made, Operands, Results, Rotation, Rows, RowsOptions, Source};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::checksums::{self, Checksums};
use nvfp4_tests::emulated;

const DEVICES: [&str; 2] = ["emu:h200", "emu:b200"];

/// A matrix of magnitudes from 2^-20 to 2^10, on the device.
fn input(kernels: &Kernels, element: FloatType, count: usize, seed: u64) -> DeviceBuffer {
    let mut rng = SplitMix64::new(seed);
    let values = (0..count).map(|_| rng.normal() * 2f64.powi(rng.below(28) as i32 - 20));
    let bytes = floats::encode(element, values.collect::<Vec<_>>());
    DeviceBuffer::upload(kernels.device(), "input", &bytes).expect("memory")
}

fn recipes() -> impl Iterator<Item = Recipe> {
    let nvfp4 = Nvfp4Recipe::ALL.into_iter().map(Recipe::Nvfp4);
    nvfp4.chain(Mxfp4Recipe::ALL.into_iter().map(Recipe::Mxfp4))
}

/// All recipes, plain and gated, from every type, in both layouts, with each source of the
/// tensor-level scale.
#[test]
fn quantize() {
    let mut sums = Checksums::default();
    for device in DEVICES {
        let kernels = emulated(device, checksums::schedule());
        let arch = &kernels.device().choice().arch;
        let mut i = 0;
        for recipe in recipes() {
            let scales: &[_] = match recipe {
                Recipe::Nvfp4(_) | Recipe::Adaptive(_) => &[
                    ("two levels", TensorScale::FromAmax),
                    ("by row", TensorScale::PerRow),
                    ("one level", TensorScale::OneLevel),
                ],
                Recipe::Mxfp4(_) => &[("blocks", TensorScale::OneLevel)],
            };
            for element in FloatType::ALL {
                for gated in [false, true] {
                    for layout in ScaleLayout::ALL {
                        let (name, scale) = scales[i % scales.len()];
                        let [rows, cols] = [[37, 352], [130, 96], [3, 1056]][i % 3];
                        let options = QuantizeOptions::new(recipe).scale(scale).layout(layout);
                        let (from, count) = (Input { element, gated }, rows * cols);
                        let quantizer = Quantizer::new(&kernels, rows, cols, from, &options);
                        let quantizer = quantizer.expect("planned");
                        let matrix = input(&kernels, element, count, i as u64);
                        let up = gated.then(|| input(&kernels, element, count, i as u64 + 1000));
                        quantizer.launch(&matrix, up.as_ref()).expect("runs");
                        let result = quantizer.result("input").expect("finite");
                        let key = format!(
                            "{arch} {} {} {name} {layout}, {}{} {rows}x{cols}",
                            recipe.format().name(),
                            recipe.name(),
                            if gated { "gated " } else { "" },
                            element.name(),
                        );
                        let parameters = result.parameters.iter().flat_map(|x| x.to_le_bytes());
                        let parameters: Vec<u8> = parameters.collect();
                        sums.add(key, &[&result.codes, &result.scales, &parameters]);
                        i += 1;
                    }
                }
            }
        }
    }
    sums.compare("quantize");
}

/// Both formats to every type, in both layouts, with each source of the multiplier.
#[test]
fn dequantize() {
    let mut sums = Checksums::default();
    for device in DEVICES {
        let kernels = emulated(device, checksums::schedule());
        let arch = &kernels.device().choice().arch;
        let upload =
            |bytes: &[u8]| DeviceBuffer::upload(kernels.device(), "input", bytes).expect("memory");
        for format in [Format::Nvfp4, Format::Mxfp4] {
            for output in FloatType::ALL {
                for layout in ScaleLayout::ALL {
                    for [rows, cols] in [[37, 352], [130, 96]] {
                        let blocks = cols / format.block() as usize;
                        let mut rng = SplitMix64::new((rows * cols) as u64);
                        let mut codes = vec![0; rows * cols / 2];
                        rng.fill_bytes(&mut codes, |random| random);
                        let mut scales = vec![0; layout.bytes(rows, blocks).expect("small")];
                        rng.fill_bytes(&mut scales, |random| random & 0x7f);
                        let (codes, scales) = (upload(&codes), upload(&scales));
                        let levels: Vec<u8> =
                            (0..rows).flat_map(|i| (0.5 + i as f32).to_le_bytes()).collect();
                        let levels = [upload(&levels[..4]), upload(&levels)];
                        for (name, multiplier) in [
                            ("given", Multiplier::Given(0.75)),
                            ("tensor", Multiplier::Tensor(&levels[0])),
                            ("rows", Multiplier::Rows(&levels[1])),
                        ] {
                            let dequantizer =
                                Dequantizer::new(&kernels, rows, cols, format, layout, output);
                            let dequantizer = dequantizer.expect("planned");
                            dequantizer.launch(&codes, &scales, multiplier).expect("runs");
                            let key = format!(
                                "{arch} {} {layout} {name}, {} {rows}x{cols}",
                                format.name(),
                                output.name(),
                            );
                            sums.add(key, &[&dequantizer.result().expect("written")]);
                        }
                    }
                }
            }
        }
    }
    sums.compare("dequantize");
}

/// Operations on rows to every kind of results: their codes, scales, and the sums with the residual.
#[test]
fn rows() {
    let mut sums = Checksums::default();
    for device in DEVICES {
        let kernels = emulated(device, checksums::schedule());
        let arch = &kernels.device().choice().arch;
        let blocks = |recipe: Recipe, scale: TensorScale| {
            Results::Blocks(QuantizeOptions::new(recipe).scale(scale))
        };
        let adaptive = Recipe::Adaptive(AdaptiveRecipe::TransformerEngine);
        let made = recipes().map(|recipe| blocks(recipe, TensorScale::OneLevel));
        let others = [blocks(adaptive, TensorScale::PerRow), Results::E4m3, Results::Half];
        for (i, results) in made.chain(others).enumerate() {
            let element = [HalfType::F16, HalfType::Bf16][i % 2];
            let (rows, cols) = (3, 32 * 37);
            let epsilon = 1e-6;
            let source = [
                Source::RmsNorm { epsilon, residual: true },
                Source::LayerNorm { epsilon, residual: true, bias: false },
            ][i / 2 % 2];
            let rotation = (i % 3 == 0).then_some(Rotation { signs: 0x8d21 });
            let options = RowsOptions::new(source, results).rotation(rotation);
            let operation = Rows::new(&kernels, rows, cols, element, &options).expect("planned");
            let matrix =
                |count: usize, seed: u64| input(&kernels, element.float(), count, seed + i as u64);
            let (x, residual) = (matrix(rows * cols, 0), matrix(rows * cols, 100));
            let weight = matrix(cols, 200);
            let operands = Operands::normed(&x, &weight).residual(&residual);
            operation.launch(&operands).expect("launches");
            let residual = residual.read().expect("written");
            let recipe = match &results {
                Results::Blocks(options) => options.recipe.name(),
                Results::E4m3 | Results::Half => "none",
            };
            let key = format!(
                "{arch} {rows}x{cols} {} of {} to {} by {recipe}, rotated: {}",
                source.name(),
                element.name(),
                results.name(),
                rotation.is_some()
            );
            match operation.result("x").expect("finite") {
                Made::Blocks(made) => sums.add(key, &[&made.codes, &made.scales, &residual]),
                Made::E4m3 { codes, scales } => {
                    let scales: Vec<u8> = scales.iter().flat_map(|x| x.to_le_bytes()).collect();
                    sums.add(key, &[&codes, &scales, &residual]);
                }
                Made::Half(elements) => sums.add(key, &[&elements, &residual]),
            }
        }
    }
    sums.compare("rows");
}
