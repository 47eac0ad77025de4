//! Rotations against other projects' own code, on the CPU and on the emulators; see `tests/data/quant`.

use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{FloatType, HalfType};
use nvfp4::floats;
use nvfp4::quantize::{QuantizeOptions, QuantizedMatrix, Recipe, TensorScale};
use nvfp4::rows::{Made, Operands, Results, Rotation, RowsOptions, Source, values};
use nvfp4_tests::golden::{COLUMNS, file};

use super::{Case, Inputs, machines};

/// Rows of the recordings.
const ROWS: usize = 24;
/// The first of them, whose sums are exact in any order.
const EXACT: usize = 16;
/// The signs of both projects' recipes, one bit for each element that is negated.
const SIGNS: u16 = 0xd7e8;

/// The recordings with signs and without.
const RECORDED: [(&str, u16); 2] = [("rotation_plain", 0), ("rotation_signs", SIGNS)];

fn recorded(name: &str) -> Vec<f32> {
    let found = floats::decode(FloatType::F32, &file(name));
    assert_eq!(found.len(), ROWS * COLUMNS, "{name}");
    found
}

/// The recorded input in bf16, which it is exactly.
fn input() -> Vec<u8> {
    let values = recorded("rotation_input.f32le");
    let bytes = floats::encode(FloatType::Bf16, values.iter().map(|&x| x.into()));
    assert_eq!(floats::decode(FloatType::Bf16, &bytes), values);
    bytes
}

fn rotated(signs: u16, results: Results) -> RowsOptions {
    RowsOptions::new(Source::Plain, results).rotation(Some(Rotation { signs }))
}

/// Runs the recorded input on every machine.
fn on_machines(options: RowsOptions) -> Vec<Made> {
    let case = Case { rows: ROWS, cols: COLUMNS, element: HalfType::Bf16, options };
    let [up, residual, weight, bias, index] = [const { None }; 5];
    let inputs = Inputs { input: input(), up, residual, weight, bias, index };
    let machines = machines().into_iter().flatten();
    machines.map(|machine| case.run(&machine, &inputs, true).expect("launched").made).collect()
}

/// Values equal Transformer Engine's where sums are exact, and are as near as f32's rounding of 16 terms elsewhere.
#[test]
fn values_are_those_of_transformer_engine() {
    let input = input();
    for (name, signs) in RECORDED {
        let expected = recorded(&format!("{name}.te-ref-d0067d0d.f32le"));
        let options = rotated(signs, Results::Half);
        let operands = Operands::plain(&input[..]);
        let (found, _) =
            values(ROWS, COLUMNS, HalfType::Bf16, &options, &operands).expect("of these sizes");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let allowed = if at < EXACT * COLUMNS { 0.0 } else { 16.0 * f32::EPSILON };
            assert!((found - expected).abs() <= allowed, "{name} {at}: {found} {expected}");
        }
    }
}

/// Results in bf16 equal TorchAO's where sums are exact, and are the same or next numbers elsewhere.
#[test]
fn rounded_values_are_those_of_torchao() {
    let expected = file("rotation_signs.torchao-36027d82.bf16le");
    let expected = floats::decode(FloatType::Bf16, &expected);
    assert_eq!(expected.len(), ROWS * COLUMNS);
    for made in on_machines(rotated(SIGNS, Results::Half)) {
        let Made::Half(bytes) = made else { panic!("16 bits were asked for") };
        let found = floats::decode(FloatType::Bf16, &bytes);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let step = 2.0 * floats::half_ulp(FloatType::Bf16, f64::from(expected.abs()));
            let allowed = if at < EXACT * COLUMNS { 0.0 } else { step as f32 };
            assert!((found - expected).abs() <= allowed, "{at}: {found} {expected}");
        }
    }
}

/// Rotated and quantised rows are Transformer Engine's bytes where sums are exact.
#[test]
fn bytes_are_those_of_transformer_engine() {
    let recipe = Nvfp4Recipe::TransformerEngine;
    for (name, signs) in RECORDED {
        let name = format!("{name}.te-ref-d0067d0d");
        let largest =
            recorded(&format!("{name}.f32le")).iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = TensorScale::Given(recipe.tensor_parameter(largest));
        let options = QuantizeOptions::new(Recipe::Nvfp4(recipe)).scale(scale);
        let (codes, scales) =
            (file(&format!("{name}.packed.u8")), file(&format!("{name}.scale_e4m3.u8")));
        for made in on_machines(rotated(signs, Results::Blocks(options))) {
            let Made::Blocks(QuantizedMatrix { codes: found, scales: and, .. }) = made else {
                panic!("blocks were asked for")
            };
            let rows = EXACT * COLUMNS;
            assert_eq!(and[..rows / 16], scales[..rows / 16], "{name}");
            assert_eq!(found[..rows / 2], codes[..rows / 2], "{name}");
        }
    }
}
