//! The f64 reference against a term-by-term sum, and what its tolerance accepts.

use fp4_formats::{FloatType, Nvfp4, ScaleLayout};
use nvfp4::error::Error;
use nvfp4::floats;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::oracle::{self, Reference};
use nvfp4_lab::shape::{GemvShape, gemv_ragged};

const LAYOUTS: [ScaleLayout; 2] = [ScaleLayout::Blocked128x4, ScaleLayout::Linear];

/// The formula, term by term, on dequantised values.
fn naive(a: &BlockScaled<Nvfp4>, b: &BlockScaled<Nvfp4>, alpha: f64) -> Vec<f64> {
    let (x, w) = (a.dequantize().expect("small"), b.dequantize().expect("small"));
    let (d, k) = (b.dims(), b.dims().cols());
    (0..d.batch() * d.rows())
        .map(|out| {
            let activations = &x[out / d.rows() * k..][..k];
            let terms = w[out * k..][..k].iter().zip(activations);
            alpha * terms.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>()
        })
        .collect()
}

#[test]
fn gemv_equals_the_naive_sum() {
    for shape in gemv_ragged().into_iter().filter(|shape| shape.k < 1000) {
        for generator in Generator::ALL {
            let (a, b) = generator.gemv(shape, LAYOUTS, 11).expect("small");
            let got = oracle::gemv(&a, &b, 0.75).expect("operands fit");
            assert_eq!(got.additions, shape.k / 16);
            for (at, want) in naive(&a, &b, 0.75).iter().enumerate() {
                let (value, magnitude) = (got.values[at], got.magnitudes[at]);
                let close = (value - want).abs() <= 1e-14 * magnitude;
                assert!(close, "{shape} {generator} [{at}]: {value} {want}");
                assert!(value.abs() <= magnitude, "{shape} {generator} [{at}]");
            }
        }
    }
}

#[test]
fn exact_inputs_need_no_rounding_and_rows_differ() {
    let shape = GemvShape { m: 129, k: 16384, l: 2 };
    let (a, b) = Generator::Exact.gemv(shape, LAYOUTS, 7).expect("fits");
    let reference = oracle::gemv(&a, &b, 1.0).expect("operands fit");
    for (at, magnitude) in reference.magnitudes.iter().enumerate() {
        assert!(*magnitude < f64::from(1 << 22), "[{at}]: {magnitude}");
        assert_eq!((reference.values[at] * 4.0).fract(), 0.0, "[{at}]");
    }
    let mut distinct = reference.values.clone();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    let (distinct, all) = (distinct.len(), reference.values.len());
    assert!(distinct * 10 > all * 9, "{distinct} of {all} answers are distinct");
}

#[test]
fn operands_must_fit() {
    let make = |name: &str, batch, rows, cols| {
        let dims = Dims::new(batch, rows, cols).expect("valid");
        let mut rng = nvfp4_lab::rng::SplitMix64::new(1);
        Generator::Contest.operand(name, dims, ScaleLayout::Linear, &mut rng).expect("small")
    };
    let b = make("b", 2, 3, 32);
    let text = |a| oracle::gemv(&a, &b, 1.0).expect_err("does not fit").to_string();
    assert_eq!(text(make("a", 2, 1, 48)), "K of `a` must be 32, the K of `b`, but is 48");
    assert_eq!(text(make("a", 1, 1, 32)), "batch of `a` must be 2, the batch of `b`, but is 1");
    assert_eq!(
        text(make("a", 2, 2, 32)),
        "rows of `a` must be 1: a GEMV has one vector of activations per batch entry, but is 2"
    );
}

fn reference(values: &[f64]) -> Reference {
    let magnitudes = values.iter().map(|v| v.abs()).collect();
    Reference { values: values.to_vec(), magnitudes, rows: 2, additions: 1 }
}

#[test]
fn correctly_rounded_results_pass_in_every_type() {
    let values = [0.0, 1.0 / 3.0, -1e-9, 65504.0, 65519.9, 65520.1, -7e4, 3e38, -3.5e38, 1e300];
    for dtype in FloatType::ALL {
        let got = floats::decode(dtype, &floats::encode(dtype, values));
        let report = reference(&values).verify(&got, dtype);
        assert!(report.passed(), "{dtype:?}: {report:?}");
    }
}

#[test]
fn the_first_wrong_result_is_named() {
    let values = [1.0, 2.0, 3.0, 4.0];
    let report = reference(&values).verify(&[1.0, 2.0, 3.1, f32::NAN], FloatType::F32);
    assert_eq!(report.mismatches, 2);
    let first = report.first_mismatch.expect("a mismatch");
    assert_eq!((first.batch, first.row, first.got, first.expected), (1, 0, 3.1, 3.0));
    assert!(!report.contest_criterion);
    approx::assert_abs_diff_eq!(report.max_abs_error, 0.1, epsilon = 1e-6);
}

#[test]
fn wrong_infinities_and_missing_results_fail() {
    let dtype = FloatType::F16;
    let right = reference(&[1e6, -1e6]).verify(&[f32::INFINITY, f32::NEG_INFINITY], dtype);
    assert!(right.passed() && right.overflowed == 2, "{right:?}");
    assert!(!reference(&[1e6]).verify(&[f32::NEG_INFINITY], dtype).passed());
    assert!(!reference(&[1e4]).verify(&[f32::INFINITY], dtype).passed());
    let short = reference(&[1.0, 2.0]).verify(&[1.0], dtype);
    assert_eq!(short.mismatches, 1);
    assert!(!short.contest_criterion);
}

/// Operands that overflowed make results infinite or NaN, and only the same are right.
#[test]
fn results_that_are_not_finite_are_compared() {
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0];
    let exact = reference(&values);
    let right = values.map(|value| value as f32);
    let report = exact.verify(&right, FloatType::F16);
    assert!(report.passed() && report.contest_criterion && report.overflowed == 2, "{report:?}");
    for (index, wrong) in [
        (0, [0.0, f32::INFINITY, f32::NEG_INFINITY]),
        (1, [65504.0, f32::NEG_INFINITY, f32::NAN]),
        (2, [-65504.0, f32::INFINITY, f32::NAN]),
        (3, [f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ]
    .into_iter()
    .flat_map(|(index, wrong)| wrong.map(|wrong| (index, wrong)))
    {
        let mut got = right;
        got[index] = wrong;
        let report = exact.verify(&got, FloatType::F16);
        assert_eq!(report.mismatches, 1, "{wrong} for {}", values[index]);
    }
}

#[test]
fn one_f32_ulp_a_block_is_allowed_and_a_dropped_term_is_not() {
    let exact =
        Reference { values: vec![1000.0], magnitudes: vec![5000.0], rows: 1, additions: 448 };
    let allowed = exact.allowed(0, FloatType::F32);
    assert!(allowed > 5000.0 * 448.0 * f64::from(f32::EPSILON), "{allowed}");
    assert!(allowed < 0.3, "{allowed}");
}

#[test]
fn unquantised_product_and_sqnr() {
    let product = oracle::product(&[1.0, 2.0, 3.0, 4.0], &[1.0, -1.0]).expect("fits");
    assert_eq!(product, [-1.0, -1.0]);
    assert!(matches!(oracle::product(&[1.0; 5], &[1.0; 2]), Err(Error::Shape { .. })));
    assert!(matches!(oracle::product(&[1.0; 5], &[]), Err(Error::Shape { .. })));
    approx::assert_abs_diff_eq!(oracle::sqnr_db(&[10.0], &[9.0]), 20.0, epsilon = 1e-9);
    assert_eq!(oracle::sqnr_db(&[1.0], &[1.0]), f64::INFINITY);
}

#[test]
fn decibels_of_nothing_are_not_numbers() {
    assert_eq!(oracle::decibels(1.0, 1.0), 0.0);
    assert_eq!(oracle::decibels(1000.0, 1.0), 30.0);
    assert_eq!(oracle::decibels(1.0, 100.0), -20.0);
    assert_eq!(oracle::decibels(4.0, 0.0), f64::INFINITY);
    assert_eq!(oracle::decibels(0.0, 4.0), f64::NEG_INFINITY);
    for (signal, noise) in [(0.0, 0.0), (f64::NAN, 1.0), (1.0, f64::NAN)] {
        assert!(oracle::decibels(signal, noise).is_nan(), "{signal}, {noise}");
    }
}
