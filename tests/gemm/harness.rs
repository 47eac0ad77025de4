//! The GEMM tests' own comparison: it takes right results, and finds one wrong bit.

use fp4_formats::{Nvfp4, ScaleLayout};
use nvfp4::gemm::{Activation, GatedWeights, GemmOptions, GemmResult, UpOptions, gemm};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::gemm::reference;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::{
    Case, Expected, GUARD, GatedForm, OperandBuffer, POISON, Placement, RESULTS,
};
use nvfp4_tests::{DEVICES, emulated};
use ptx_emu::Schedule;

/// A case's right results, and those of a device.
fn right(case: &Case) -> (Expected, GemmResult) {
    let kernels = emulated(DEVICES[0], Schedule::Eager);
    let inputs = case.inputs::<Nvfp4>();
    let expected = case.expected(&inputs, kernels.device().choice().arch);
    let options = inputs.options.clone().output(expected.output);
    let result = gemm(&kernels, &inputs.activations(), &inputs.weights, &options).expect("runs");
    (expected, result)
}

/// The lowest bit of any element, code or scale of a result whose sums are exact.
#[test]
fn one_wrong_bit_is_found() {
    for kind in RESULTS {
        let (expected, result) = right(&Case::new([3, 96, 64, 2]).result(kind));
        assert_eq!(expected.compare(&result), Ok(()), "{kind:?}");
        let element = (result.bytes.len() * 8 / (3 * 96 * 2)).div_ceil(8);
        for at in (0..result.bytes.len()).step_by(element) {
            let mut wrong = result.clone();
            wrong.bytes[at] ^= 1;
            assert!(expected.compare(&wrong).is_err(), "{kind:?}: element at {at}");
            assert!(expected.compare_bytes(&wrong, &result).is_err(), "{kind:?}: {at}");
        }
        for at in 0..result.scales.len() {
            let mut wrong = result.clone();
            wrong.scales[at] ^= 1;
            assert!(expected.compare(&wrong).is_err(), "{kind:?}: scale {at}");
        }
    }
}

/// Errors beyond the bound are found in full-range results, and any wrong bit in quantised ones.
#[test]
fn errors_beyond_the_bound_are_found() {
    let case = Case { generator: Generator::FullRange, ..Case::new([3, 48, 64, 1]) };
    let (expected, floats) = right(&case);
    for at in (0..floats.bytes.len()).step_by(4) {
        let mut wrong = floats.clone();
        // An exponent's highest bit.
        wrong.bytes[at + 3] ^= 0x40;
        assert!(expected.compare(&wrong).is_err(), "element at {at}");
    }
    let (expected, result) = right(&case.result(RESULTS[3]));
    let values = floats.values();
    let compare = |codes: &[u8]| expected.compare_quantized([codes, &result.scales], &values, true);
    assert_eq!(compare(&result.bytes), Ok(()));
    for at in 0..result.bytes.len() {
        let mut wrong = result.bytes.clone();
        wrong[at] ^= 1;
        assert!(compare(&wrong).is_err(), "codes {at}");
    }
}

/// A byte that is written between matrices or behind the last.
#[test]
fn writes_beside_a_matrix_are_found() {
    for placement in [Placement::Padded(5), Placement::Shared] {
        let part = OperandBuffer { placement, batch: 3, size: 8, bits: 16 };
        let matrices = [1; 24];
        let buffer = part.spread(&matrices);
        let stride = part.stride().expect("one is given") * 2;
        let inside = |at: usize| match placement {
            Placement::Shared => at < 8,
            _ => at / stride < 3 && at % stride < 8,
        };
        assert_eq!(buffer.len(), if stride == 0 { 8 } else { 2 * stride + 8 } + GUARD);
        assert!((0..buffer.len()).all(|at| inside(at) == (buffer[at] != POISON)));
        if placement == Placement::Shared {
            continue;
        }
        assert_eq!(part.gather(&buffer).as_deref(), Ok(&matrices[..]));
        for at in (0..buffer.len()).filter(|&at| !inside(at)) {
            let mut wrong = buffer.clone();
            wrong[at] = 0;
            assert!(part.gather(&wrong).is_err(), "byte {at}");
        }
    }
}

/// Rows `first`, `first + step`, ... of each matrix, `n` of them.
fn every(
    x: &BlockScaled<Nvfp4>,
    n: usize,
    [first, step]: [usize; 2],
    scale: f32,
) -> BlockScaled<Nvfp4> {
    let (batch, k) = (x.dims().batch(), x.dims().cols());
    let rows = (0..batch).flat_map(|l| (0..n).map(move |row| (l, first + step * row)));
    let codes = rows.clone().flat_map(|(l, row)| x.row_codes(l, row)).copied().collect();
    let scales = rows.flat_map(|(l, row)| (0..x.kblocks()).map(move |b| x.scale_byte(l, row, b)));
    let dims = Dims::new(batch, n, k).expect("dims");
    BlockScaled::new("half", dims, ScaleLayout::Linear, codes, scales.collect(), scale)
        .expect("valid")
}

/// The oracle of a gated product is the product of two plain ones', each with its own tensor
/// scale, alpha, column factors and bias, whatever form the weights come in.
#[test]
fn gated_references_are_made_of_two() {
    let (m, n, k, l) = (5, 19, 64, 2);
    for form in GatedForm::ALL {
        for shared in [false, true] {
            let mut case = Case::new([m, n, k, l]).gated_as(form).up(-0.5, [true; 2]);
            (case.generator, case.alpha, case.vectors) = (Generator::FullRange, 3.0, [true; 3]);
            (case.shared_weights, case.tensor_scales) = (shared, [2.0, 8.0]);
            let inputs = case.inputs::<Nvfp4>();
            let (weights, scale) = (&inputs.weights, inputs.weights.global_scale());
            let rows = match form {
                GatedForm::Pair => [[0, 1]; 2],
                GatedForm::Stacked => [[0, 1], [n, 1]],
                GatedForm::Interleaved => [[0, 2], [1, 2]],
            };
            let gate = every(weights, n, rows[0], scale);
            let up = match &inputs.up_weights {
                Some(up) => every(up, n, rows[1], up.global_scale()),
                None => every(weights, n, rows[1], scale),
            };
            let options = &inputs.options;
            let UpOptions { alpha, column_factors, bias, .. } = options.up.clone().expect("gated");
            let of_gate = options.clone().up(None::<UpOptions>);
            let of_up = of_gate.clone().alpha(alpha).column_factors(column_factors).bias(bias);
            let sums = |half: &BlockScaled<Nvfp4>, options: &GemmOptions| {
                reference(&inputs.activations(), half, options).expect("the oracle").values
            };
            let (gates, ups) = (sums(&gate, &of_gate), sums(&up, &of_up));
            let pair = GatedWeights::pair(&gate, &up).expect("as many rows");
            for activation in [Activation::Identity, Activation::ReluSquared] {
                let options = options.clone().activation(activation);
                let a = inputs.activations();
                let got = reference(&a, inputs.all_weights(), &options).expect("the oracle");
                let of_pair = reference(&a, pair, &options).expect("the oracle");
                assert_eq!(got, of_pair, "{form:?}");
                for (at, value) in got.values.into_iter().enumerate() {
                    let right = match activation {
                        Activation::ReluSquared => gates[at].max(0.0).powi(2) * ups[at],
                        _ => gates[at] * ups[at],
                    };
                    assert!((value - right).abs() <= 1e-12 * right.abs(), "{form:?} {at}");
                }
            }
        }
    }
}
