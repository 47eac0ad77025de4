//! The oracle's epilogue on exact sums, and the magnitudes that bound the error of a kernel's
//! result.
//!
//! The activations' formulas are written here anew, in f64, from their definitions; the kernels'
//! are those of `fp4_formats::gemm::combine`.
//!
//! # Bounds
//! An error is at most `eps (additions + 4)` times a *magnitude* (see [`crate::oracle`]). Below, `e`
//! is that bound for the largest number of additions, twice K: a kernel that makes fewer errs by less.
//!
//! *Affine.* The magnitude of `factor * sum + bias` is `|factor|` times the sum of the terms'
//! magnitudes, and `|bias|`.
//!
//! *Saturation and clamps.* They move no two values apart. A value that is beyond a bound by more
//! than `e` is the bound itself in every kernel: its magnitude is 0.
//!
//! *Activation.* `|act(x + e) - act(x)| <= L e`, so that the magnitude of the argument counts `L`
//! times.
//!
//! | activation | L |
//! | --- | --- |
//! | identity | 1 |
//! | SiLU, both forms of GELU, the clamped form | `1.13 D` |
//! | relu squared | `2 max(x, 0) + e` |
//!
//! SiLU and GELU are `x F(x)` of a function `F` that rises from 0 to 1, with slopes of at most 1.10
//! and 1.13. If `F` is the sigmoid of `-a`, or falls as `e^-a`, both slope and error of the function
//! fall with it: `D = min(1, (1 + 3 a) e^-a)` at the end of `x +- e` where `a` is smaller. For the
//! sigmoid of `s x`, `a = |s x|` and the slope is at most `(1 + a) e^-a`; for the form by `tanh`, `a`
//! grows as `x^3`, and it is `(1 + 3 a) e^-a`; for the error function, `a = x^2 / 2`, and it is below
//! `(1 + 2 a) e^-a`. A kernel's own error in `F` has a few parts in `eps` of the argument, the
//! exponential and the reciprocal, of which the first counts `a e^-a`; 2 magnitudes of `x D` allow 10
//! `eps` of it.
//!
//! *Product.* `(p + e_p)(u + e_u) - p u` is `e_p (|u| + e_u) + |p| e_u` at most, and its rounding is
//! within one magnitude of the product.
//!
//! *Residual.* It is added to a result `r` that is within its bound; the magnitude grows by `|R|` and, for
//! the rounding of the sum, by `|r + R|`.
//!
//! *Underflow.* Values that a GPU flushes to zero are below the smallest normal f32. In a sum that
//! is nothing; here it may be multiplied by `x` or `u`, and counts so often.

use fp4_formats::gemm::Activation;

use nvfp4::gemm::GemmOptions;

/// The largest slope of SiLU and GELU.
const SLOPE: f64 = 1.13;
/// Magnitudes of the argument for the error of an exponential and what is made of it.
const OWN: f64 = 2.0;
/// The largest finite magnitude.
const MOST: f64 = f32::MAX as f64;
/// The magnitude for an error of the smallest normal f32.
const TINY: f64 = f32::MIN_POSITIVE as f64 / (4.0 * f32::EPSILON as f64);

/// The epilogue in f64.
pub(super) struct Exact<'a> {
    options: &'a GemmOptions,
    /// Products of alpha and the tensors' scales, of both halves.
    factors: [f64; 2],
    /// An error over its magnitude, at most.
    slack: f64,
}

/// A value, and the magnitude of its error.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounded {
    value: f64,
    magnitude: f64,
}

impl<'a> Exact<'a> {
    /// Makes the epilogue of a product of `additions` additions, whose operands' scales multiply to
    /// `scales` in both halves.
    pub fn new(options: &'a GemmOptions, scales: [f64; 2], additions: usize) -> Self {
        let up_alpha = options.up.as_ref().map_or(1.0, |up| up.alpha);
        let factors = [scales[0] * f64::from(options.alpha), scales[1] * f64::from(up_alpha)];
        Self { options, factors, slack: f64::from(f32::EPSILON) * (additions + 4) as f64 }
    }

    /// The result at `[row, column]` and its magnitude, from the sum and its magnitude of the only
    /// matrix, or of both halves; `index` is that of its element of the
    /// residual.
    pub fn result(&self, [row, column]: [usize; 2], index: usize, sums: &[[f64; 2]]) -> [f64; 2] {
        let GemmOptions { row_factors, column_factors, bias, activation, up, residual, .. } =
            self.options;
        let row = element(row_factors.as_ref(), row, 1.0);
        let affine = |half: usize, columns: Option<&Vec<f32>>, bias: Option<&Vec<f32>>| {
            let [sum, magnitude] = sums[half];
            let factor = self.factors[half] * row * element(columns, column, 1.0);
            let bias = element(bias, column, 0.0);
            let magnitude = magnitude * factor.abs() + bias.abs();
            Bounded { value: sum * factor + bias, magnitude }
        };
        let gate = affine(0, column_factors.as_ref(), bias.as_ref());
        let up = up.as_ref().map(|up| affine(1, up.column_factors.as_ref(), up.bias.as_ref()));
        let Bounded { value, magnitude } = combine(*activation, gate, up, self.slack);
        let Some(residual) = residual else { return [value, magnitude] };
        let added = f64::from(residual.values()[index]);
        [value + added, magnitude + added.abs() + (value + added).abs()]
    }
}

/// Element `index` of a vector.
fn element(vector: Option<&Vec<f32>>, index: usize, absent: f64) -> f64 {
    vector.map_or(absent, |vector| f64::from(vector[index]))
}

impl Bounded {
    /// The nearest value from `least` to `most`.
    fn between(self, [least, most]: [f64; 2], slack: f64) -> Self {
        let Self { value, magnitude } = self;
        let settled = value - slack * magnitude > most || value + slack * magnitude < least;
        let magnitude = if settled { 0.0 } else { magnitude };
        Self { value: value.clamp(least, most), magnitude }
    }
}

/// The result of a value, or of two.
fn combine(activation: Activation, gate: Bounded, up: Option<Bounded>, slack: f64) -> Bounded {
    let gate = activate(activation, gate, slack);
    let Some(up) = up else { return gate };
    let gate = gate.between([-MOST, MOST], slack);
    let (limit, offset) = match activation {
        Activation::ClampedSwiglu { limit, .. } => (f64::from(limit), 1.0),
        Activation::Identity
        | Activation::Silu
        | Activation::GeluTanh
        | Activation::Gelu
        | Activation::ReluSquared => (MOST, 0.0),
    };
    let up = up.between([-limit, limit], slack);
    let factor = up.value + offset;
    let value = gate.value * factor;
    let magnitude = gate.magnitude * (factor.abs() + slack * up.magnitude)
        + gate.value.abs() * up.magnitude
        + value.abs()
        + TINY * (1.0 + gate.value.abs() + factor.abs());
    Bounded { value, magnitude }
}

/// A gated product of exact values.
pub(crate) fn exactly_gated(activation: Activation, gate: f64, up: f64) -> f64 {
    let exactly = |value: f64| Bounded { value, magnitude: 0.0 };
    combine(activation, exactly(gate), Some(exactly(up)), 0.0).value
}

/// The activation of a value.
fn activate(activation: Activation, x: Bounded, slack: f64) -> Bounded {
    let finite = x.between([-MOST, MOST], slack);
    match activation {
        Activation::Identity => x,
        Activation::Silu => gate(finite, slack, silu, |x| x),
        Activation::GeluTanh => gate(finite, slack, gelu_tanh, |x| 2.0 * tanh_argument(x)),
        Activation::Gelu => gate(finite, slack, gelu, |x| if x < 0.0 { -x * x / 2.0 } else { 0.0 }),
        Activation::ReluSquared => {
            let x = x.between([0.0, MOST], slack);
            let slope = 2.0 * x.value + slack * x.magnitude;
            let value = x.value * x.value;
            let magnitude = x.magnitude * slope + value + TINY;
            Bounded { value, magnitude }.between([0.0, MOST], slack)
        }
        Activation::ClampedSwiglu { limit, slope } => {
            let (limit, slope) = (f64::from(limit), f64::from(slope));
            let x = x.between([-MOST, limit], slack);
            gate(x, slack, |x| x * sigmoid(slope * x), |x| slope * x)
        }
    }
}

/// `function`, `x F(x)` of a `F` that falls as `e^argument` where `argument` is below 0.
fn gate(
    x: Bounded,
    slack: f64,
    function: impl Fn(f64) -> f64,
    argument: impl Fn(f64) -> f64,
) -> Bounded {
    let error = slack * x.magnitude;
    let nearest = argument(x.value - error).max(argument(x.value + error)).min(0.0);
    let damping = ((1.0 - 3.0 * nearest) * nearest.exp()).min(1.0);
    let value = function(x.value);
    let magnitude = damping * (SLOPE * x.magnitude + OWN * x.value.abs())
        + value.abs()
        + TINY * (1.0 + x.value.abs());
    Bounded { value, magnitude }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn tanh_argument(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))
}

/// `x (1 + tanh(u)) / 2`, without the cancellation where `tanh` is near -1.
fn gelu_tanh(x: f64) -> f64 {
    x / (1.0 + (-2.0 * tanh_argument(x)).exp())
}

/// `x (1 + erf(x / sqrt(2))) / 2`, without the cancellation where `erf` is near -1.
fn gelu(x: f64) -> f64 {
    x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) / 2.0
}

#[cfg(test)]
mod tests {
    use approx::assert_relative_eq;
    use fp4_formats::FloatType;
    use fp4_formats::gemm::combine::Machine;

    use super::*;
    use crate::oracle::Reference;

    const SLACK: f64 = f32::EPSILON as f64 * 20.0;

    fn exactly(value: f64) -> Bounded {
        Bounded { value, magnitude: value.abs() }
    }

    fn act(activation: Activation, x: f64) -> f64 {
        activate(activation, exactly(x), SLACK).value
    }

    fn gated(activation: Activation, gate: f64, up: f64) -> f64 {
        combine(activation, exactly(gate), Some(exactly(up)), SLACK).value
    }

    /// Published values: the tables of the normal distribution, and by hand.
    #[test]
    fn known_values() {
        let near = |x: f64, y: f64| assert_relative_eq!(x, y, max_relative = 1e-12);
        near(act(Activation::Identity, -3.5), -3.5);
        near(act(Activation::Silu, 1.0), 0.731_058_578_630_004_9);
        near(act(Activation::Silu, -2.0), -0.238_405_844_044_234_98);
        near(act(Activation::GeluTanh, 1.0), 0.841_191_990_608_276_3);
        near(act(Activation::GeluTanh, -1.0), -0.158_808_009_391_723_7);
        near(act(Activation::Gelu, 1.0), 0.841_344_746_068_542_9);
        near(act(Activation::Gelu, -1.0), -0.158_655_253_931_457_07);
        near(act(Activation::Gelu, -6.0), -6.0 * 9.865_876_450_376_98e-10);
        near(act(Activation::ReluSquared, 3.0), 9.0);
        near(act(Activation::GPT_OSS, 9.0), 7.0 * sigmoid(7.0 * f64::from(1.702f32)));
        assert_eq!(act(Activation::ReluSquared, -3.0), 0.0);
        for (gate, up, factor) in [(0.5, 2.0, 3.0), (0.5, 9.0, 8.0), (0.5, -9.0, -6.0)] {
            near(gated(Activation::GPT_OSS, gate, up), act(Activation::GPT_OSS, gate) * factor);
        }
        near(gated(Activation::Silu, 1.0, -4.0), -4.0 * 0.731_058_578_630_004_9);
        near(gated(Activation::Identity, 3.0, -4.0), -12.0);
    }

    #[test]
    fn values_beyond_f32_saturate_before_the_product() {
        for activation in Activation::ALL {
            assert_eq!(
                gated(activation, 1e60, 0.0),
                match activation {
                    Activation::ClampedSwiglu { .. } => act(activation, 7.0),
                    _ => 0.0,
                }
            );
        }
        assert_eq!(act(Activation::Identity, 1e60), 1e60);
        assert_eq!(act(Activation::Silu, 1e60), MOST);
        assert_eq!(act(Activation::ReluSquared, 1e30), MOST);
        assert_eq!(gated(Activation::Identity, 1e60, 0.5), MOST / 2.0);
        assert_eq!(gated(Activation::ReluSquared, 1e30, 0.5), MOST / 2.0);
    }

    /// Bounds vanish beyond clamps and in tails: if no error of an argument can show, the bound has
    /// none of it.
    #[test]
    fn bounds_vanish_beyond_clamps_and_in_tails() {
        let bound = |activation, x| {
            let x = Bounded { value: x, magnitude: 4.0 * f64::abs(x) };
            SLACK * activate(activation, x, SLACK).magnitude
        };
        for (activation, x, most) in [
            (Activation::GPT_OSS, 1e20, 1e-4),
            (Activation::Silu, -200.0, 1e-34),
            (Activation::GeluTanh, -30.0, 1e-34),
            (Activation::Gelu, -30.0, 1e-34),
            (Activation::ReluSquared, -1e20, 1e-36),
            (Activation::ReluSquared, 1e25, 1e-36),
        ] {
            let bound = bound(activation, x);
            assert!(bound < most, "{activation} of {x}: {bound:e}");
        }
    }

    /// The bound holds for whatever is within the error of the arguments, and for f32 arithmetic.
    #[test]
    fn bounds_hold_for_perturbed_arguments() {
        let mut rng = crate::rng::SplitMix64::new(5);
        let mut value = || rng.normal() * (rng.normal() * 2.0).exp2();
        for at in 0..20_000 {
            let activation = Activation::ALL[at % Activation::ALL.len()];
            let [gate, up] = [0; 2].map(|_| {
                let value = value();
                Bounded { value, magnitude: value.abs() * (1.0 + value * value) }
            });
            let moved = |x: Bounded, by: f64| exactly(x.value + by * SLACK * x.magnitude);
            for (by_gate, by_up) in [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-0.5, 0.25)] {
                for up in [None, Some(up)] {
                    let right = combine(activation, gate, up, SLACK);
                    let up = up.map(|up| moved(up, by_up));
                    let got = combine(activation, moved(gate, by_gate), up, SLACK).value;
                    let error = (got - right.value).abs();
                    // The oracle rounds too.
                    let allowed = SLACK * right.magnitude + 1e-14 * right.value.abs();
                    assert!(
                        error <= allowed,
                        "{activation} {gate:?} {up:?}: {error:e} {allowed:e}"
                    );
                }
            }
        }
    }

    /// Approximate instructions that err by the parts of `eps` that PTX allows, in one direction,
    /// and flush subnormal results.
    struct Erring<const UP: bool>;

    impl<const UP: bool> Erring<UP> {
        fn erring(exact: f64) -> f32 {
            let part = 2.0 * f64::from(f32::EPSILON);
            let result = (exact * if UP { 1.0 + part } else { 1.0 - part }) as f32;
            if result.is_subnormal() { 0.0 } else { result }
        }
    }

    impl<const UP: bool> Machine for Erring<UP> {
        fn minimum(x: f32, y: f32) -> f32 {
            if x.is_nan() { x } else { y.min(x) }
        }

        fn maximum(x: f32, y: f32) -> f32 {
            if x.is_nan() { x } else { y.max(x) }
        }

        fn exp2(x: f32) -> f32 {
            Self::erring(f64::from(x).exp2())
        }

        fn reciprocal(x: f32) -> f32 {
            Self::erring(1.0 / f64::from(x))
        }
    }

    /// The kernels' formulas in f32 are within the bound of the fewest additions: near 0, at the
    /// clamp, in the tails, and at the ends of f32.
    #[test]
    fn kernels_formulas_are_within_the_bound() {
        let mut values = vec![0.0, f32::from_bits(1), 1e-40, f32::MIN_POSITIVE, f32::MAX, 1e38];
        values.extend((-370..=380).map(|tenths| 10f32.powf(tenths as f32 / 10.0)));
        values.extend((0..2500).map(|step| step as f32 / 20.0 + 0.01));
        values.extend([7.0, 7.0f32.next_up(), 7.0f32.next_down(), 6.999, 7.001]);
        let ups = [0.0, 1e-40, 0.3, 0.999_999_9, 1.0, 6.9, 7.0, 7.5, 1e20, 1e38, f32::MAX];
        let options = GemmOptions::default();
        let slack = Exact::new(&options, [1.0; 2], 1).slack;
        let both = |x: f32| [x, -x];
        for activation in Activation::ALL {
            let (mut right, mut got) = (Vec::new(), [Vec::new(), Vec::new()]);
            let kernel = [activation.combine(false), activation.combine(true)];
            for x in values.iter().copied().flat_map(both) {
                right.push(combine(activation, exactly(x.into()), None, slack));
                let acts = [
                    kernel[0].activate::<Erring<false>, 1>([x]),
                    kernel[0].activate::<Erring<true>, 1>([x]),
                ];
                for up in ups.into_iter().flat_map(both) {
                    let of_up = Some(exactly(up.into()));
                    right.push(combine(activation, exactly(x.into()), of_up, slack));
                }
                for (got, act) in got.iter_mut().zip(acts) {
                    got.extend(act);
                    let gate = |up| kernel[1].gate::<Erring<false>, 1>(act, [up]);
                    got.extend(ups.into_iter().flat_map(both).flat_map(gate));
                }
            }
            let reference = Reference {
                values: right.iter().map(|right| right.value).collect(),
                magnitudes: right.iter().map(|right| right.magnitude).collect(),
                rows: right.len(),
                additions: 1,
            };
            for got in got {
                let check = reference.verify(&got, FloatType::F32);
                assert!(check.passed(), "{activation}\n{}", check.summary());
            }
        }
    }
}
