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
//! 3. The rest is added exactly. An f32 result is cut towards zero to 24 significant bits (14 after
//!    8-bit types), an f16 result rounded to nearest even. Results beyond the type are infinite. A
//!    sum of zero is +0, also of zeros that are all negative and of one too small for the type.
//! 4. NaN, infinity times zero, and infinities of both signs give the canonical NaN.
//!
//! `mma.sync` of 8-bit types is not an instruction of this hardware. ptxas makes two of
//! f16 of it, the first of elements 0 and 1 of every four along K from zero, the second
//! of elements 2 and 3 onto that, and adds the accumulator with an ordinary addition
//! ([`Adder::split`]).
//!
//! Limits: machines other than the H200 are taken to add f16, bf16 and tf32 in `mma.sync` the same
//! way; `tcgen05` and the forms of sm_120a are not modelled here but by
//! [`product`](super::product).

use super::element::Element;
use super::product::{Addend, FloatColumns, FloatRows, STEP, Sums, WIDTH, for_rows, round_f16};
use crate::num::{half, single};
use ptx_emu_simd::{Host, on_host};

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

/// Exponent of a number that is neither zero nor subnormal in f64.
fn exponent(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32 - 1023
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
    /// Returns the adder of f16, bf16 and tf32 operands, and of 8-bit ones in `wgmma`. `half`:
    /// accumulators are f16.
    #[must_use]
    pub const fn new(a: Element, b: Element, half: bool) -> Self {
        let narrow = matches!(a, Element::E4m3 | Element::E5m2);
        let (kept, digits) = if narrow { (13, 13) } else { (25, 23) };
        Self { kept, digits, least: [least(a), least(b)], half }
    }

    /// Returns the adder of f16 products which stand for products of 8-bit types.
    #[must_use]
    pub const fn as_f16(half: bool) -> Self {
        Self::new(Element::F16, Element::F16, half)
    }

    const fn least_c(&self) -> i32 {
        if self.half { -14 } else { -126 }
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

    /// Rounds a sum to the accumulator's type.
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
        on_host!(host => host.run(|| {
            let store = |sums: &[f64; WIDTH], d: &mut [f32]| {
                for (bits, d) in self.truncated(sums).into_iter().zip(d) {
                    *d = f32::from_bits(bits);
                }
            };
            self.multiply(host, (a, b), addend, d, |&d| d.into(), store);
        }));
    }

    /// The same with f16 accumulators.
    pub fn multiply_f16(&self, a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [u16]) {
        on_host!(host => host.run(|| {
            let store = |sums: &[f64; WIDTH], d: &mut [u16]| {
                for (sum, d) in sums.iter().zip(d) {
                    *d = result_f16(*sum);
                }
            };
            self.multiply(host, (a, b), addend, d, |&d| half_value(d), store);
        }));
    }

    #[inline(always)]
    fn multiply<H: Host, D>(
        &self,
        host: H,
        (a, b): (&FloatRows, &FloatColumns),
        addend: Addend,
        d: &mut [D],
        number: impl Fn(&D) -> f64,
        store: impl Fn(&[f64; WIDTH], &mut [D]),
    ) {
        let (rows, columns) = (a.rows(), b.columns());
        let ((k, left), (depth, right)) = (a.elements(), b.elements());
        if k != depth || k == 0 {
            return;
        }
        let left = Lines::new(left, |&x| scale_of(x, self.least[0]));
        let right = Lines::new(right, |line| line.map(|x| scale_of(x, self.least[1])));
        let finite = left.data.iter().all(|x| x.is_finite())
            && right.data.as_flattened().iter().all(|x| x.is_finite());
        let factor = addend.factor();
        for i in (0..rows).step_by(STEP) {
            let left = left.part(i * k..(i + STEP) * k);
            for j in (0..columns).step_by(WIDTH) {
                let right = right.part(j / WIDTH * k..(j / WIDTH + 1) * k);
                let (height, width) = (STEP.min(rows - i), WIDTH.min(columns - j));
                let mut starts = Sums::default();
                if let Some(factor) = factor {
                    for (r, starts) in starts.iter_mut().enumerate().take(height) {
                        let from = (i + r) * columns + j;
                        let Some(old) = d.get(from..from + width) else { continue };
                        if let Some(old) = old.first_chunk::<WIDTH>() {
                            for (start, old) in starts.iter_mut().zip(old) {
                                *start = number(old) * factor;
                            }
                        } else {
                            for (start, old) in starts.iter_mut().zip(old) {
                                *start = number(old) * factor;
                            }
                        }
                    }
                }
                let mut sums = self.tile(host, left, right, &starts);
                let all = starts.as_flattened().iter().fold(true, |all, x| all & x.is_finite());
                if !(finite && all) {
                    plain_cells(left.0, right.0, &starts, &mut sums);
                }
                for_rows(&sums, (i, rows), (j, columns), d, &store);
            }
        }
    }

    /// Computes [`sum`](Self::sum) for a whole tile, without branches. A NaN or an infinity spoils
    /// its own cell only.
    #[inline(always)]
    fn tile<H: Host>(
        &self,
        _: H,
        (a, a_powers): (&[f64], &[f64]),
        (b, b_powers): (&[[f64; WIDTH]], &[[f64; WIDTH]]),
        starts: &Sums,
    ) -> Sums {
        let k = b.len();
        let mut out = Sums::default();
        for (r, out) in out.iter_mut().enumerate() {
            let line = r * k..(r + 1) * k;
            *out = self.row::<H>((&a[line.clone()], &a_powers[line]), (b, b_powers), &starts[r]);
        }
        out
    }

    /// The same for a row.
    #[inline(always)]
    fn row<H: Host>(
        &self,
        (a, a_powers): (&[f64], &[f64]),
        (b, b_powers): (&[[f64; WIDTH]], &[[f64; WIDTH]]),
        starts: &[f64; WIDTH],
    ) -> [f64; WIDTH] {
        let mut tops = [0.0; WIDTH];
        for (top, start) in tops.iter_mut().zip(starts) {
            *top = scale_of(*start, self.least_c());
        }
        for (power, powers) in a_powers.iter().zip(b_powers) {
            for (top, other) in tops.iter_mut().zip(powers) {
                let product = power * other;
                *top = if product > *top { product } else { *top };
            }
        }
        let (mut units, mut scales) = ([0.0; WIDTH], [0.0; WIDTH]);
        for c in 0..WIDTH {
            units[c] = if tops[c] == 0.0 { 1.0 } else { tops[c] * power(-self.kept) };
            scales[c] = 1.0 / units[c];
        }
        let mut sums = [0.0; WIDTH];
        for c in 0..WIDTH {
            sums[c] = cut_on::<H>(starts[c] * scales[c]);
        }
        for (x, line) in a.iter().zip(b) {
            for c in 0..WIDTH {
                sums[c] += cut_on::<H>(x * line[c] * scales[c]);
            }
        }
        for c in 0..WIDTH {
            sums[c] *= units[c];
        }
        sums
    }

    /// Adds the products of rows of `A` and eight columns of `B`, line after line of K, to what
    /// is in `d`, by one instruction, whose result `d` gets.
    pub(crate) fn add_products<const K: usize>(
        &self,
        a: &[[f64; K]],
        b: &[[f64; WIDTH]],
        d: &mut [[f64; WIDTH]],
    ) {
        on_host!(host => host.run(|| self.rows(host, a, b, d)));
    }

    #[inline(always)]
    fn rows<H: Host, const K: usize>(
        &self,
        _: H,
        a: &[[f64; K]],
        b: &[[f64; WIDTH]],
        d: &mut [[f64; WIDTH]],
    ) {
        let mut powers = [[0.0; WIDTH]; K];
        for (powers, line) in powers.iter_mut().zip(b) {
            for (power, x) in powers.iter_mut().zip(line) {
                *power = scale_of(*x, self.least[1]);
            }
        }
        let powers = &powers[..b.len().min(K)];
        let finite = |row: &[f64]| row.iter().fold(true, |all, x| all & x.is_finite());
        let all = finite(b.as_flattened());
        for (row, d) in a.iter().zip(d) {
            let mut row_powers = [0.0; K];
            for (power, x) in row_powers.iter_mut().zip(row) {
                *power = scale_of(*x, self.least[0]);
            }
            let mut sums = self.row::<H>((row, &row_powers), (b, powers), d);
            if !(all & finite(row) & finite(d)) {
                let mut tile = [sums];
                plain_cells(&row[..b.len().min(K)], b, &[*d], &mut tile);
                [sums] = tile;
            }
            if self.half {
                for (out, sum) in d.iter_mut().zip(sums) {
                    *out = half_value(result_f16(sum));
                }
            } else {
                for (out, bits) in d.iter_mut().zip(self.truncated(&sums)) {
                    *out = f32::from_bits(bits).into();
                }
            }
        }
    }

    /// Sums as f32 accumulators.
    #[inline(always)]
    fn truncated(&self, sums: &[f64; WIDTH]) -> [u32; WIDTH] {
        let mut row = truncate_row(sums);
        if self.digits < 23 {
            row = row.map(|bits| cut_digits(bits, self.digits));
        }
        row
    }
}

/// Cells of a tile of which not all are numbers: those have the exact sum, which is none.
#[cold]
fn plain_cells(a: &[f64], b: &[[f64; WIDTH]], starts: &[[f64; WIDTH]], sums: &mut [[f64; WIDTH]]) {
    for (r, row) in a.chunks_exact(b.len()).enumerate() {
        for c in 0..WIDTH {
            let terms = row.iter().zip(b).map(|(x, line)| (x, &line[c]));
            let finite = terms.clone().all(|(x, y)| x.is_finite() && y.is_finite());
            if !(finite && starts[r][c].is_finite()) {
                sums[r][c] = terms.fold(0.0, |sum, (x, y)| sum + x * y) + starts[r][c];
            }
        }
    }
}

/// The elements of an operand, and two to the power of each one's exponent, 0 of a zero.
struct Lines<'a, T> {
    data: &'a [T],
    powers: Vec<T>,
}

impl<'a, T> Lines<'a, T> {
    #[inline(always)]
    fn new(data: &'a [T], power: impl Fn(&T) -> T) -> Self {
        Self { data, powers: data.iter().map(power).collect() }
    }

    /// Some items and their powers.
    #[inline(always)]
    fn part(&self, items: std::ops::Range<usize>) -> (&[T], &[T]) {
        (&self.data[items.clone()], &self.powers[items])
    }
}

/// Two to the power of a number's exponent; 0 of a zero.
#[inline(always)]
fn scale_of(x: f64, least: i32) -> f64 {
    let power = f64::from_bits(x.to_bits() & 0x7ff << 52);
    let least = self::power(least);
    let power = if power > least { power } else { least };
    if x == 0.0 { 0.0 } else { power }
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

/// The same by an instruction of the host, if it has one.
#[inline(always)]
fn cut_on<H: Host>(x: f64) -> f64 {
    if H::WIDE { x.trunc() } else { cut(x) }
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
    let [bits] = truncate_row(&[x]);
    f32::from_bits(if digits < 23 { cut_digits(bits, digits) } else { bits })
}

/// Cuts a row to f32 with all its digits, as bit patterns. Without branches, so that it
/// vectorises.
#[inline(always)]
fn truncate_row<const N: usize>(row: &[f64; N]) -> [u32; N] {
    let mut out = [0; N];
    for (out, &x) in out.iter_mut().zip(row) {
        let near = x as f32;
        let bits = near.to_bits();
        // One too far from zero is one step back; one below infinity is the largest number.
        let away = (f64::from(near).abs() > x.abs()) & (x.abs() < power(128));
        let down = bits - u32::from(away);
        let signed = if down & 0x7fff_ffff == 0 { 0 } else { down };
        *out = if x.is_nan() { single::NAN.to_bits() } else { signed };
    }
    out
}

/// Keeps `digits` bits after the leading one of an f32, which a subnormal one has
/// further down.
fn cut_digits(bits: u32, digits: u32) -> u32 {
    let leading = 31 - (bits & 0x7fff_ffff | 1).leading_zeros();
    let place = leading.min(23);
    let drop = place.saturating_sub(digits);
    let cut = bits >> drop << drop;
    // A zero has no sign, and a NaN and infinities are not cut.
    match cut & 0x7fff_ffff {
        0 => 0,
        0x7f80_0000.. => bits,
        _ => cut,
    }
}

#[cfg(test)]
mod tests {
    use super::{Adder, Host, WIDTH};
    use crate::tensor::element::Element;
    use ptx_emu_simd::{Plain, on_host};

    /// Patterns of f16, some of them not numbers.
    fn halves<const K: usize, const N: usize>(state: &mut u32) -> [[f64; N]; K] {
        std::array::from_fn(|_| {
            std::array::from_fn(|_| {
                *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let code = *state >> 16;
                // Most exponents near one, so that terms of different sizes meet.
                let near = code & 0x8fff | 0x3000;
                Element::F16.value(if *state & 0xff == 0 { code } else { near })
            })
        })
    }

    /// Each sum is the same by the loops of every host, and that of the cell alone.
    #[test]
    fn hosts_agree() {
        let mut state = 1;
        for half in [false, true] {
            let adder = Adder::new(Element::F16, Element::F16, half);
            for _ in 0..2000 {
                let a: [[f64; 16]; 4] = halves(&mut state);
                let b: [[f64; WIDTH]; 16] = halves(&mut state);
                let c: [[f64; WIDTH]; 4] = halves(&mut state);
                let (mut plain, mut wide) = (c, c);
                adder.rows(Plain, &a, &b, &mut plain);
                on_host!(host => host.run(|| adder.rows(host, &a, &b, &mut wide)));
                for (r, row) in a.iter().enumerate() {
                    for column in 0..WIDTH {
                        let terms = row.iter().zip(&b).map(|(x, line)| (*x, line[column]));
                        let cell = adder.result(adder.sum(terms, c[r][column]));
                        let found = [plain[r][column], wide[r][column]];
                        assert_eq!(found.map(f64::to_bits), [cell.to_bits(); 2], "{cell:e}");
                    }
                }
            }
        }
    }
}
