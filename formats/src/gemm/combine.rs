//! The epilogue's combine step: from the affine step's values to results.
//!
//! Plain, one value makes one result: `act(x)`. Gated, two do: `act(gate) * up`. The rows of gated
//! weights alternate, [`GATE_ROWS`] rows of the gate and as many of `up`
//! ([`PairedRows`]), so that a kernel finds both values of a result side by side.
//!
//! | activation | `act(x)`, and the use of `up` |
//! | --- | --- |
//! | `identity` | `x` |
//! | `silu` | `x sigmoid(x)` |
//! | `gelu-tanh` | `x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2` |
//! | `gelu` | `x (1 + erf(x / sqrt(2))) / 2` |
//! | `relu2` | `max(x, 0)^2` |
//! | `clamped-swiglu` | `x' sigmoid(slope x')` of `x' = min(x, limit)`; `up` is clamped to `-limit..limit`, and 1 is added |
//!
//! Sources: the functional reference of PyTorch for SiLU and both forms of GELU; relu squared as in
//! Primer (So et al., 2021); the clamped form as in OpenAI's gpt-oss reference (`limit` 7, `slope`
//! 1.702).
//!
//! # Arithmetic
//! f32. `(1 + tanh(u)) / 2 = sigmoid(2 u)`, so that three activations are one formula,
//! `x sigmoid(x (slope + cubic x^2))`. Infinities are first moved to the largest finite number (of a
//! sigmoid's argument, a little less), and so is a square: `inf * 0` cannot occur, and finite sums
//! never make a NaN. NaN stays NaN. (The
//! identity without a gate changes no value.)

use core::fmt;

use crate::params::blocks;

/// Rows of the gate that follow one another in gated weights, and then as many of `up`.
pub const GATE_ROWS: u32 = 8;

/// The order of rows in weights that hold gate and `up`: `GATE_ROWS` rows of the gate alternate
/// with the same rows of `up`. The last group may reach past the matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairedRows;

/// The halves of gated weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The operand of the activation function.
    Gate,
    /// The operand that the activation's result is multiplied by.
    Up,
}

impl PairedRows {
    /// Rows of the weights that hold two matrices of `columns` rows.
    #[inline(always)]
    pub const fn rows(columns: u32) -> u32 {
        columns.div_ceil(GATE_ROWS) * 2 * GATE_ROWS
    }

    /// The half that a row belongs to, and its index there: a column of the result, unless it is
    /// past the last.
    #[inline(always)]
    pub const fn source(row: u32) -> (Half, u32) {
        let (group, within) = (row / (2 * GATE_ROWS), row % (2 * GATE_ROWS));
        let half = if within < GATE_ROWS { Half::Gate } else { Half::Up };
        (half, group * GATE_ROWS + within % GATE_ROWS)
    }
}

/// A function between a product and its stored result, or between the two products of a gated one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// No function.
    #[default]
    Identity,
    /// SiLU, also called swish; with a gate SwiGLU.
    Silu,
    /// GELU by `tanh`.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
    /// The square of the positive part.
    ReluSquared,
    /// gpt-oss's form of SwiGLU.
    ClampedSwiglu {
        /// The largest gate, and the largest magnitude of `up`. Positive.
        limit: f32,
        /// Factor of the sigmoid's argument.
        slope: f32,
    },
}

impl Activation {
    /// gpt-oss's form with its own constants.
    pub const GPT_OSS: Self = Self::ClampedSwiglu { limit: 7.0, slope: 1.702 };

    /// One of each.
    pub const ALL: [Self; 6] =
        [Self::Identity, Self::Silu, Self::GeluTanh, Self::Gelu, Self::ReluSquared, Self::GPT_OSS];

    /// Its name in commands and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Silu => "silu",
            Self::GeluTanh => "gelu-tanh",
            Self::Gelu => "gelu",
            Self::ReluSquared => "relu2",
            Self::ClampedSwiglu { .. } => "clamped-swiglu",
        }
    }

    /// Parses the name of an activation, with gpt-oss's constants if it has any.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|activation| activation.name() == name)
    }

    /// The kernels' parameters.
    pub const fn combine(self, gated: bool) -> Combine {
        // 2 sqrt(2 / pi), and 0.044715 of it.
        const TANH: f32 = 1.595_769;
        const CUBIC: f32 = 0.071_354_814;
        let finite = Combine {
            function: Function::Identity.word(),
            gated: gated as u32,
            slope: 0.0,
            cubic: 0.0,
            limit: f32::MAX,
            up_offset: 0.0,
        };
        let sigmoid = Combine { function: Function::Sigmoid.word(), limit: BELOW_MAX, ..finite };
        match self {
            Self::Identity if gated => finite,
            Self::Identity => Combine { limit: f32::INFINITY, ..finite },
            Self::Silu => Combine { slope: 1.0, ..sigmoid },
            Self::GeluTanh => Combine { slope: TANH, cubic: CUBIC, ..sigmoid },
            Self::Gelu => Combine { function: Function::Normal.word(), ..finite },
            Self::ReluSquared => Combine { function: Function::Square.word(), ..finite },
            Self::ClampedSwiglu { limit, slope } => {
                Combine { slope, limit, up_offset: 1.0, ..sigmoid }
            }
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClampedSwiglu { limit, slope } => {
                write!(f, "{} (limit {limit}, slope {slope})", self.name())
            }
            Self::Identity | Self::Silu | Self::GeluTanh | Self::Gelu | Self::ReluSquared => {
                f.write_str(self.name())
            }
        }
    }
}

/// Sixteen steps below the largest finite number: times an approximate sigmoid, which may be a few
/// steps above 1, it is finite.
const BELOW_MAX: f32 = f32::from_bits(f32::MAX.to_bits() - 16);

/// Defines [`Function`], its words, and the one place that decodes them: a function without a word does
/// not compile, and one without a formula neither.
macro_rules! functions {
    ($(#[$plain:meta])* $identity:ident = 0; $($(#[$doc:meta])* $name:ident = $word:literal;)+) => {
        /// The function of one value that [`Combine`] applies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Function {
            $(#[$plain])* $identity,
            $($(#[$doc])* $name,)+
        }

        impl Function {
            /// Its word in a parameter block.
            pub const fn word(self) -> u32 {
                match self {
                    Self::$identity => 0,
                    $(Self::$name => $word,)+
                }
            }

            /// The function of a [word](Self::word). No [`Combine`] has another word; a kernel, which
            /// could not report one, takes it for the identity's.
            #[inline(always)]
            const fn decode(word: u32) -> Self {
                match word {
                    $($word => Self::$name,)+
                    _ => Self::$identity,
                }
            }
        }

        /// No two functions have one word.
        const _: () = {
            let words = [0, $($word),+];
            let mut i = 1;
            while i < words.len() {
                assert!(words[i] == i as u32);
                i += 1;
            }
        };
    };
}

functions! {
    /// `x`.
    Identity = 0;
    /// `x sigmoid(x (slope + cubic x^2))`.
    Sigmoid = 1;
    /// `x (1 + erf(x / sqrt(2))) / 2`.
    Normal = 2;
    /// `max(x, 0)^2`.
    Square = 3;
}

/// An activation as kernels take it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Combine {
    /// The [word](Function::word) of the function on a value, or on the gate.
    pub(in crate::gemm) function: u32,
    /// 1 if two values make a result.
    pub gated: u32,
    /// Factor of the sigmoid's argument.
    pub slope: f32,
    /// Factor of the argument's cube, over that of the argument.
    pub cubic: f32,
    /// The largest argument of the function, and the largest magnitude of `up`: finite, unless
    /// values are results.
    pub limit: f32,
    /// The addend of `up`.
    pub up_offset: f32,
}

/// The operations of [`Combine`] for which machines have their own instructions.
pub trait Machine {
    /// `2^x`, approximately; 0 or infinite beyond f32's range.
    fn exp2(x: f32) -> f32;
    /// `1 / x`, approximately.
    fn reciprocal(x: f32) -> f32;
    /// The smaller number; NaN if either is.
    fn minimum(x: f32, y: f32) -> f32;
    /// The larger number; NaN if either is.
    fn maximum(x: f32, y: f32) -> f32;

    /// Applies `function` to each value, if it is long and seldom used.
    #[inline(always)]
    fn each<const N: usize>(values: [f32; N], function: impl Fn(f32) -> f32) -> [f32; N] {
        values.map(function)
    }
}

impl Combine {
    /// One value makes one result, which is the value.
    pub const NONE: Self = Activation::Identity.combine(false);

    /// Whether the step does nothing.
    #[inline(always)]
    pub const fn is_none(&self) -> bool {
        // The other fields are the function's, and the gate's.
        let Self { function, gated, slope: _, cubic: _, limit: _, up_offset: _ } = self;
        *function == Function::Identity.word() && *gated == 0
    }

    /// Whether the product is gated, and its activation `x sigmoid(x (slope + cubic x^2))`.
    #[inline(always)]
    pub const fn is_sigmoid_gate(&self) -> bool {
        // The other fields are the function's, and the gate's.
        let Self { function, gated, slope: _, cubic: _, limit: _, up_offset: _ } = self;
        *function == Function::Sigmoid.word() && *gated != 0
    }

    /// `x sigmoid(x (slope + cubic x^2))`.
    #[inline(always)]
    pub fn by_sigmoid<M: Machine>(&self, x: f32) -> f32 {
        let x = between::<M>(x, f32::MIN, self.limit);
        x * sigmoid::<M>(x * (self.slope + self.cubic * square::<M>(x)))
    }

    /// Applies the function to each value.
    #[inline(always)]
    pub fn activate<M: Machine, const N: usize>(&self, values: [f32; N]) -> [f32; N] {
        // One branch for all values.
        match Function::decode(self.function) {
            Function::Sigmoid => values.map(|x| self.by_sigmoid::<M>(x)),
            Function::Normal => M::each(values, |x| {
                let x = between::<M>(x, f32::MIN, f32::MAX);
                x * normal::<M>(x)
            }),
            Function::Square => values.map(|x| square::<M>(M::maximum(x, 0.0))),
            Function::Identity => values.map(|x| between::<M>(x, -self.limit, self.limit)),
        }
    }

    /// Returns the results of a gated product, from the gate's [activated](Self::activate) values.
    #[inline(always)]
    pub fn gate<M: Machine, const N: usize>(&self, activated: [f32; N], up: [f32; N]) -> [f32; N] {
        let mut results = activated;
        for i in 0..N {
            results[i] *= between::<M>(up[i], -self.limit, self.limit) + self.up_offset;
        }
        results
    }
}

/// The results of a product that is gated by SiLU, of numbers whose magnitudes are at most those of 16-bit types: they need
/// no bounds. In every bit those of [`Combine::activate`] and [`Combine::gate`].
#[inline(always)]
pub fn silu_product<M: Machine, const N: usize>(gate: [f32; N], up: [f32; N]) -> [f32; N] {
    let mut results = gate;
    for i in 0..N {
        // The sum makes -0 +0.
        results[i] = gate[i] * sigmoid::<M>(gate[i]) * (up[i] + 0.0);
    }
    results
}

/// `x`, or the bound that it is beyond; NaN is NaN.
#[inline(always)]
fn between<M: Machine>(x: f32, least: f32, most: f32) -> f32 {
    M::minimum(M::maximum(x, least), most)
}

/// `x^2`, or the largest finite number.
#[inline(always)]
fn square<M: Machine>(x: f32) -> f32 {
    M::minimum(x * x, f32::MAX)
}

/// `1 / (1 + e^-x)`. If `e^-x` is infinite, it is 0.
#[inline(always)]
fn sigmoid<M: Machine>(x: f32) -> f32 {
    M::reciprocal(1.0 + M::exp2(x * -core::f32::consts::LOG2_E))
}

/// `(1 + erf(x / sqrt(2))) / 2`, the cumulative normal distribution.
///
/// Approximates the normal distribution: with `y = |x| / sqrt(2)`, `erfc(y) e^(y^2) / 2` is a
/// polynomial in `1 / (1 + P y)` within 2.4e-7 of itself, for `y` up to 10: coefficients by weighted
/// least squares. Beyond, the exponential is 0. That of a rounded square errs by up to `y^2` 2^-23 of
/// itself.
#[inline(always)]
fn normal<M: Machine>(x: f32) -> f32 {
    const P: f32 = 0.5875;
    const COEFFICIENTS: [f32; 8] = [
        -0.042_299_617,
        0.198_427_8,
        -0.330_484_87,
        0.168_926_61,
        0.027_987_616,
        0.146_933_51,
        0.164_736_76,
        0.165_772_27,
    ];
    let y = x.abs() * core::f32::consts::FRAC_1_SQRT_2;
    let t = M::reciprocal(1.0 + P * y);
    let mut polynomial = 0.0;
    for coefficient in COEFFICIENTS {
        polynomial = polynomial * t + coefficient;
    }
    let tail = polynomial * t * M::exp2(square::<M>(y) * -core::f32::consts::LOG2_E);
    if x < 0.0 { tail } else { 1.0 - tail }
}

blocks! {
    Combine { function, gated, slope, cubic, limit, up_offset }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    struct Exact;

    impl Machine for Exact {
        fn minimum(x: f32, y: f32) -> f32 {
            if x.is_nan() || y.is_nan() { f32::NAN } else { x.min(y) }
        }

        fn maximum(x: f32, y: f32) -> f32 {
            if x.is_nan() || y.is_nan() { f32::NAN } else { x.max(y) }
        }

        fn exp2(x: f32) -> f32 {
            x.exp2()
        }

        fn reciprocal(x: f32) -> f32 {
            1.0 / x
        }
    }

    fn act(activation: Activation, x: f32) -> f32 {
        let [result] = activation.combine(false).activate::<Exact, 1>([x]);
        result
    }

    fn gated(activation: Activation, gate: f32, up: f32) -> f32 {
        let combine = activation.combine(true);
        let [result] = combine.gate::<Exact, 1>(combine.activate::<Exact, 1>([gate]), [up]);
        result
    }

    #[test]
    fn rows_of_both_halves_alternate() {
        for columns in [1, 7, 8, 9, 40, 129] {
            let rows = PairedRows::rows(columns);
            assert!(rows.is_multiple_of(16) && rows >= 2 * columns && rows < 2 * columns + 16);
            let mut found: Vec<_> = (0..rows).map(PairedRows::source).collect();
            assert_eq!(found[..2], [(Half::Gate, 0), (Half::Gate, 1)]);
            assert_eq!(found[8], (Half::Up, 0));
            found.sort_by_key(|&(half, column)| (half == Half::Up, column));
            for (index, (_, column)) in found.into_iter().enumerate() {
                assert_eq!(column, index as u32 % (rows / 2));
            }
        }
    }

    /// Checks values of published tables: the functions themselves are compared with f64 when
    /// kernels run.
    #[test]
    fn known_values() {
        let near = |x: f32, y: f64| assert!((f64::from(x) - y).abs() <= 1e-6 * y.abs(), "{x} {y}");
        near(act(Activation::Silu, 1.0), 0.731_058_578_630_004_9);
        near(act(Activation::Silu, -2.0), -0.238_405_844_044_234_98);
        near(act(Activation::GeluTanh, 1.0), 0.841_191_990_608_276_3);
        near(act(Activation::Gelu, 1.0), 0.841_344_746_068_542_9);
        near(act(Activation::Gelu, -1.0), -0.158_655_253_931_457_07);
        near(act(Activation::Gelu, -4.0), -4.0 * 3.167_124_183_311_998e-5);
        near(act(Activation::ReluSquared, 3.0), 9.0);
        assert_eq!(act(Activation::ReluSquared, -3.0), 0.0);
        // 7 sigmoid(11.914), times 7 + 1.
        near(gated(Activation::GPT_OSS, 9.0, 100.0), 55.999_625_026);
    }

    #[test]
    fn finite_values_make_no_nan() {
        let most = f32::MAX;
        let values = [0.0, -0.0, 1e-45, 1.0, 88.0, 1e10, 1e20, most, f32::INFINITY];
        for activation in Activation::ALL {
            for x in values.into_iter().flat_map(|x| [x, -x]) {
                assert!(!act(activation, x).is_nan(), "{activation} of {x}");
                for up in values.into_iter().flat_map(|x| [x, -x]) {
                    assert!(!gated(activation, x, up).is_nan(), "{activation} of {x}, {up}");
                }
            }
            assert!(act(activation, f32::NAN).is_nan(), "{activation}");
            assert!(gated(activation, 1.0, f32::NAN).is_nan(), "{activation}");
            assert!(gated(activation, f32::NAN, 0.0).is_nan(), "{activation}");
        }
        assert_eq!(act(Activation::Silu, -1e30), 0.0);
        assert_eq!(act(Activation::Gelu, most), most);
        assert_eq!(act(Activation::ReluSquared, most), most);
        assert_eq!(gated(Activation::ReluSquared, most, 0.0), 0.0);
    }

    #[test]
    fn names_are_read_back() {
        for activation in Activation::ALL {
            assert_eq!(Activation::parse(activation.name()), Some(activation));
        }
        assert_eq!(Activation::parse("swish"), None);
    }
}
