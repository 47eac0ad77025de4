//! Sums as Hopper's tensor cores form them, bit for bit.
//!
//! Worked out from an H200 and checked against its recordings (conformance families
//! `sums` and `matrix`). One instruction adds all its products and the accumulator at
//! once:
//!
//! 1. Products are exact. Exponent of a product: the sum of its factors' exponents,
//!    where a subnormal number has that of the least normal one; the product's
//!    significand may be 2 or more and does not raise it. Exponent of the accumulator:
//!    its own. Zeros do not count.
//! 2. Every term is cut, towards zero, at `kept` bits below the largest exponent: 25 for
//!    f16, bf16 and tf32, 13 for the 8-bit types of `wgmma`. The accumulator is cut like
//!    the products. Terms and their order are alike, the whole K of the instruction is
//!    one sum, and nothing is rounded in between.
//! 3. What is left is added exactly. An f32 result is cut towards zero to 24 significant
//!    bits (14 after 8-bit types), an f16 result rounded to nearest even. Results beyond
//!    the type are infinite. A sum of zero is +0, also of zeros that are all negative and
//!    of one too small for the type.
//! 4. NaN, infinity times zero, and infinities of both signs give the canonical NaN.
//!
//! `mma.sync` of 8-bit types is not an instruction of this hardware. ptxas makes two of
//! f16 of it, the first of elements 0 and 1 of every four along K from zero, the second
//! of elements 2 and 3 onto that, and adds the accumulator with an ordinary addition
//! ([`Adder::split`]).
//!
//! What this can miss: machines other than the H200 are taken to add f16, bf16 and tf32
//! in `mma.sync` the same way; `tcgen05` and the forms of sm_120a are not modelled here
//! but by [`product`](super::product).

use super::element::Element;
use super::product::{Addend, FloatColumns, FloatRows, STEP, Sums, float_tiles, round_f16};
use crate::num::{half, single};

/// A tensor core's adder for operands of two types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adder {
    /// Bits that terms keep below the largest exponent.
    kept: i32,
    /// Bits of an f32 result's significand, without the leading one.
    digits: u32,
    /// Least exponents of `A`'s and `B`'s numbers.
    least: [i32; 2],
    /// Whether accumulators are f16.
    half: bool,
}

/// What has to be known of a line of an operand to see whether its sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    /// Largest exponent.
    top: i32,
    /// Exponent of the lowest bit that is set in any number.
    bottom: i32,
    /// Whether all are numbers.
    finite: bool,
}

/// Exponent of a number that is neither zero nor subnormal in f64.
fn exponent(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32 - 1023
}

/// Exponent of the lowest bit that is set.
fn lowest(x: f64) -> i32 {
    let fraction = x.to_bits() & ((1 << 52) - 1);
    exponent(x) - 52 + (fraction | 1 << 52).trailing_zeros() as i32
}

fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Least normal exponent of a type.
const fn least(element: Element) -> i32 {
    match element {
        Element::F16 | Element::E5m2 => -14,
        Element::E4m3 => -6,
        _ => -126,
    }
}

impl Adder {
    /// That of f16, bf16 and tf32 operands, and of 8-bit ones in `wgmma`. `half`:
    /// accumulators are f16.
    #[must_use]
    pub const fn new(a: Element, b: Element, half: bool) -> Self {
        let narrow = matches!(a, Element::E4m3 | Element::E5m2);
        let (kept, digits) = if narrow { (13, 13) } else { (25, 23) };
        Self { kept, digits, least: [least(a), least(b)], half }
    }

    /// That of f16 products which stand for products of 8-bit types.
    #[must_use]
    pub const fn as_f16(half: bool) -> Self {
        Self::new(Element::F16, Element::F16, half)
    }

    const fn least_c(&self) -> i32 {
        if self.half { -14 } else { -126 }
    }

    fn span(&self, line: impl Iterator<Item = f64>, which: usize) -> Span {
        let mut span = Span { top: i32::MIN, bottom: i32::MAX, finite: true };
        for x in line.filter(|&x| x != 0.0) {
            span.finite &= x.is_finite();
            span.top = span.top.max(exponent(x).max(self.least[which]));
            span.bottom = span.bottom.min(lowest(x));
        }
        span
    }

    /// Whether the sum of products of these lines and `c` loses no bit, or is none of
    /// numbers: then an exact sum is as good.
    fn is_exact(&self, a: &Span, b: &Span, c: f64) -> bool {
        if !(a.finite && b.finite && c.is_finite()) {
            return true;
        }
        let (mut top, mut bottom) = (i32::MIN, i32::MAX);
        if a.top > i32::MIN && b.top > i32::MIN {
            (top, bottom) = (a.top + b.top, a.bottom + b.bottom);
        }
        if c != 0.0 {
            top = top.max(exponent(c).max(self.least_c()));
            bottom = bottom.min(lowest(c));
        }
        top == i32::MIN || bottom >= top - self.kept
    }

    /// The sum of products and `c`, terms cut as hardware does; an f64 has it exactly.
    pub fn sum(&self, terms: impl Iterator<Item = (f64, f64)> + Clone, c: f64) -> f64 {
        let mut top = i32::MIN;
        let mut plain = c;
        for (a, b) in terms.clone() {
            let product = a * b;
            plain += product;
            if product != 0.0 {
                let [least_a, least_b] = self.least;
                top = top.max(exponent(a).max(least_a) + exponent(b).max(least_b));
            }
        }
        if c != 0.0 {
            top = top.max(exponent(c).max(self.least_c()));
        }
        if !plain.is_finite() || top == i32::MIN {
            // A zero loses its sign.
            return plain + 0.0;
        }
        let (down, up) = (power(self.kept - top), power(top - self.kept));
        terms.fold(cut(c * down), |total, (a, b)| total + cut(a * b * down)) * up
    }

    /// What a sum becomes in the accumulator's type.
    #[must_use]
    pub fn result(&self, sum: f64) -> f64 {
        if self.half { half_value(result_f16(sum)) } else { truncate_f32(sum, self.digits).into() }
    }

    /// Sum of products of 8-bit numbers, in order of k, by way of f16 instructions, and
    /// `c`, as it is before a last rounding to nearest even.
    #[must_use]
    pub fn split(&self, terms: &[(f64, f64)], c: f64) -> f64 {
        let part = |first: usize, from: f64| {
            let chosen = terms.iter().enumerate().filter(move |(k, _)| k % 4 / 2 == first);
            self.result(self.sum(chosen.map(|(_, &term)| term), from))
        };
        part(1, part(0, 0.0)) + c
    }

    /// `D = A * B (+ D)`, f32 accumulators, `d` row-major, one element per column of `B`. As
    /// [`product::multiply_f32`](super::product::multiply_f32) otherwise.
    pub fn multiply_f32(&self, a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [f32]) {
        self.multiply(
            a,
            b,
            addend,
            d,
            |&d| d.into(),
            |sum, d| {
                *d = truncate_f32(sum, self.digits);
            },
        );
    }

    /// The same with f16 accumulators.
    pub fn multiply_f16(&self, a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [u16]) {
        self.multiply(a, b, addend, d, |&d| half_value(d), |sum, d| *d = result_f16(sum));
    }

    #[inline(always)]
    fn multiply<D>(
        &self,
        a: &FloatRows,
        b: &FloatColumns,
        addend: Addend,
        d: &mut [D],
        number: impl Fn(&D) -> f64,
        store: impl Fn(f64, &mut D),
    ) {
        let (left, right) = (self.left(a), self.right(b));
        let (rows, columns) = (a.rows(), b.columns());
        let factor = addend.factor();
        float_tiles(a, b, |i, j, sums| {
            let (height, width) = (STEP.min(rows - i), STEP.min(columns - j));
            let mut starts = [[0.0; STEP]; STEP];
            let mut exact = [[true; STEP]; STEP];
            for r in 0..height {
                for c in 0..width {
                    let Some(old) = d.get((i + r) * columns + j + c) else { continue };
                    let start = factor.map_or(0.0, |factor| number(old) * factor);
                    starts[r][c] = start;
                    exact[r][c] = self.is_exact(&left.spans[i + r], &right.spans[j + c], start);
                }
            }
            let cut = if exact.iter().flatten().all(|&exact| exact) {
                Sums::default()
            } else {
                self.tile(&left.step(i), &right.step(j), &starts)
            };
            for r in 0..height {
                for c in 0..width {
                    let Some(cell) = d.get_mut((i + r) * columns + j + c) else { continue };
                    let sum = if exact[r][c] { sums[r][c] + starts[r][c] } else { cut[r][c] };
                    store(sum, cell);
                }
            }
        });
    }

    fn left<'a>(&self, a: &'a FloatRows) -> Lines<'a, f64> {
        let (k, data) = a.elements();
        let powers = data.iter().map(|&x| scale_of(x, self.least[0])).collect();
        let spans = data.chunks_exact(k.max(1));
        let spans = spans.map(|row| self.span(row.iter().copied(), 0)).collect();
        Lines { k: STEP * k, data, powers, spans }
    }

    fn right<'a>(&self, b: &'a FloatColumns) -> Lines<'a, [f64; STEP]> {
        let (k, data) = b.elements();
        let powers = data.iter().map(|line| line.map(|x| scale_of(x, self.least[1]))).collect();
        let span = |group: &[[f64; STEP]], c: usize| self.span(group.iter().map(|line| line[c]), 1);
        let groups = data.chunks_exact(k.max(1));
        let spans = groups.flat_map(|group| (0..STEP).map(move |c| span(group, c))).collect();
        Lines { k, data, powers, spans }
    }

    /// As [`sum`](Self::sum) for a whole tile, without branches. What is not a number
    /// spoils its own cell only.
    fn tile(
        &self,
        (a, a_powers): &(&[f64], &[f64]),
        (b, b_powers): &(&[[f64; STEP]], &[[f64; STEP]]),
        starts: &Sums,
    ) -> Sums {
        let k = b.len();
        let mut out = Sums::default();
        for (r, out) in out.iter_mut().enumerate() {
            let line = r * k..(r + 1) * k;
            let mut tops = starts[r].map(|c| scale_of(c, self.least_c()));
            for (power, powers) in a_powers[line.clone()].iter().zip(*b_powers) {
                for (top, other) in tops.iter_mut().zip(powers) {
                    let product = power * other;
                    *top = if product > *top { product } else { *top };
                }
            }
            let units = tops.map(|top| if top == 0.0 { 1.0 } else { top * power(-self.kept) });
            let scales = units.map(f64::recip);
            for c in 0..STEP {
                out[c] = cut(starts[r][c] * scales[c]);
            }
            for (x, line) in a[line].iter().zip(*b) {
                for c in 0..STEP {
                    out[c] += cut(x * line[c] * scales[c]);
                }
            }
            for (sum, unit) in out.iter_mut().zip(units) {
                *sum *= unit;
            }
        }
        out
    }
}

/// The lines of an operand, four at a time one after another.
struct Lines<'a, T> {
    /// Items that four lines take.
    k: usize,
    data: &'a [T],
    /// Two to the power of each element's exponent, 0 of a zero.
    powers: Vec<T>,
    /// Of each line.
    spans: Vec<Span>,
}

impl<T> Lines<'_, T> {
    /// Elements and powers of the four lines from `first` on.
    fn step(&self, first: usize) -> (&[T], &[T]) {
        let items = first / STEP * self.k..(first / STEP + 1) * self.k;
        (&self.data[items.clone()], &self.powers[items])
    }
}

/// Two to the power of a number's exponent; 0 of a zero.
fn scale_of(x: f64, least: i32) -> f64 {
    let power = f64::from_bits(x.to_bits() & 0x7ff << 52);
    if x == 0.0 { 0.0 } else { power.max(self::power(least)) }
}

/// The integer at or before a number below 2^51, towards zero.
#[inline(always)]
fn cut(x: f64) -> f64 {
    const INTEGERS: f64 = (1u64 << 52) as f64;
    let size = x.abs();
    let near = (size + INTEGERS) - INTEGERS;
    let down = if near > size { near - 1.0 } else { near };
    down.copysign(x)
}

fn half_value(code: u16) -> f64 {
    half::to_f32(code).into()
}

/// An f16 accumulator: zero has no sign.
fn result_f16(sum: f64) -> u16 {
    let code = round_f16(sum);
    if code & 0x7fff == 0 { 0 } else { code }
}

/// Cuts to an f32 of `digits` bits after the leading one, towards zero. A zero has no
/// sign, a NaN is canonical, and what is beyond f32 is infinite.
#[must_use]
pub fn truncate_f32(x: f64, digits: u32) -> f32 {
    if x.is_nan() {
        return single::NAN;
    }
    if x.abs() >= power(128) {
        return if x > 0.0 { f32::INFINITY } else { f32::NEG_INFINITY };
    }
    let near = x as f32;
    let bits = near.to_bits();
    // One too far from zero is one step back; one below infinity is the largest number.
    let down = if f64::from(near).abs() > x.abs() { bits - 1 } else { bits };
    let cut = if digits < 23 { cut_digits(down, digits) } else { down };
    if cut & 0x7fff_ffff == 0 { 0.0 } else { f32::from_bits(cut) }
}

/// Keeps `digits` bits after the leading one of an f32, which a subnormal one has
/// further down.
fn cut_digits(bits: u32, digits: u32) -> u32 {
    let leading = 31 - (bits & 0x7fff_ffff | 1).leading_zeros();
    let place = leading.min(23);
    let drop = place.saturating_sub(digits);
    bits >> drop << drop
}
