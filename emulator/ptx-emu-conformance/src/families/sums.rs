//! The tensor cores' rounding of sums that are not exact: how many bits terms keep when
//! they are aligned, whether the accumulator is aligned with them, in which order and
//! how often sums are rounded, and special values.
//!
//! Each probe has up to 64 x 8 sums. The row chooses an exponent or a value, the column
//! a position or a number of terms; products are powers of two, so that the remaining bits of
//! a term are visible in the result. PTX specifies none of it; the findings are stated in
//! [`tensor::aligned`](ptx_emu_core::tensor::aligned) and compared bit by bit.

mod kernels;

use crate::builder::Set;
use crate::values::SplitMix;
use ptx_emu_core::num::minifloat::Minifloat;
use ptx_emu_core::num::{bfloat, half};

const ROWS: usize = 64;
const COLUMNS: usize = 8;

/// Operand and accumulator types of an instruction.
#[derive(Debug, Clone, Copy)]
struct Form {
    ty: &'static str,
    sum: &'static str,
    bits: u32,
    k: usize,
    /// Exponents of powers of two that the type has.
    exponents: (i32, i32),
}

const FORMS: [Form; 7] = [
    Form { ty: "f16", sum: "f32", bits: 16, k: 16, exponents: (-24, 15) },
    Form { ty: "bf16", sum: "f32", bits: 16, k: 16, exponents: (-60, 60) },
    Form { ty: "tf32", sum: "f32", bits: 32, k: 8, exponents: (-60, 60) },
    Form { ty: "e4m3", sum: "f32", bits: 8, k: 32, exponents: (-9, 8) },
    Form { ty: "e5m2", sum: "f32", bits: 8, k: 32, exponents: (-16, 15) },
    Form { ty: "f16", sum: "f16", bits: 16, k: 16, exponents: (-24, 15) },
    Form { ty: "e4m3", sum: "f16", bits: 8, k: 32, exponents: (-9, 8) },
];

impl Form {
    fn code(&self, x: f64) -> u32 {
        let near = x as f32;
        match self.ty {
            "f16" => half::from_f32(near).into(),
            "bf16" => bfloat::from_f32(near).into(),
            "e4m3" => Minifloat::E4m3.from_f32(near, false).into(),
            "e5m2" => Minifloat::E5m2.from_f32(near, false).into(),
            _ => near.to_bits() & 0xffff_e000,
        }
    }

    /// Factors whose product is 2 to the power `exponent`, where the type has them. The
    /// second does not depend on it as long as it is `below` to `below` less what the
    /// type spans.
    fn factors(&self, exponent: i32, below: i32) -> Option<(f64, f64)> {
        let (least, most) = self.exponents;
        let second = least.max(below - most);
        let first = exponent - second;
        (least..=most).contains(&first).then(|| (2f64.powi(first), 2f64.powi(second)))
    }

    /// Position `index` of 8 among `k`, none of them the first.
    fn position(&self, index: usize) -> usize {
        1 + index * (self.k - 2) / (COLUMNS - 1)
    }
}

/// Operands as codes: `a[row][k]`, `b[column][k]`, `c[row][column]` as numbers.
struct Sums {
    name: &'static str,
    a: Vec<Vec<u32>>,
    b: Vec<Vec<u32>>,
    c: Vec<[f64; COLUMNS]>,
}

impl Sums {
    fn new(form: &Form, name: &'static str) -> Self {
        Self {
            name,
            a: vec![vec![0; form.k]; ROWS],
            b: vec![vec![0; form.k]; COLUMNS],
            c: vec![[0.0; COLUMNS]; ROWS],
        }
    }
}

/// Exponent and sign that a row stands for.
fn row_of(row: usize) -> (i32, f64) {
    ((row % 32) as i32, if row < 32 { 1.0 } else { -1.0 })
}

/// A small term of `2^(largest - e)` at the column's position; `e` by row. The terms in
/// `around` are (position, value of `a`, value of `b`).
fn small_terms(
    form: &Form,
    name: &'static str,
    largest: i32,
    around: &[(usize, f64, f64)],
    c: f64,
) -> Sums {
    let mut sums = Sums::new(form, name);
    let second = form.factors(largest, largest).map_or(1.0, |(_, second)| second);
    for row in 0..ROWS {
        let (e, sign) = row_of(row);
        let first = form.factors(largest - e, largest).map_or(0.0, |(first, _)| first);
        for k in 0..form.k {
            sums.a[row][k] = form.code(sign * first);
        }
        for &(position, a, _) in around {
            sums.a[row][position] = form.code(a);
        }
        sums.c[row] = [c; COLUMNS];
        for (column, line) in sums.b.iter_mut().enumerate() {
            line[form.position(column)] = form.code(second);
            for &(position, _, b) in around {
                line[position] = form.code(b);
            }
        }
    }
    sums
}

/// Adds probes as [`small_terms`] does, with the first so many small terms by column.
fn many_terms(form: &Form, name: &'static str, around: &[(usize, f64, f64)], c: f64) -> Sums {
    let mut sums = small_terms(form, name, 0, around, c);
    let second = form.factors(0, 0).map_or(1.0, |(_, second)| second);
    for (column, line) in sums.b.iter_mut().enumerate() {
        for (k, code) in line.iter_mut().enumerate().skip(1) {
            *code = form.code(if k <= form.position(column) { second } else { 0.0 });
        }
    }
    sums
}

/// A small accumulator beside a large product at the column's position.
fn small_accumulator(form: &Form) -> Sums {
    let mut sums = Sums::new(form, "a small accumulator beside a product of 1");
    for row in 0..ROWS {
        let (e, sign) = row_of(row);
        sums.a[row] = vec![form.code(1.0); form.k];
        sums.c[row] = [sign * 2f64.powi(-e); COLUMNS];
    }
    for (column, line) in sums.b.iter_mut().enumerate() {
        line[form.position(column)] = form.code(1.0);
    }
    sums
}

/// Accumulators of full precision and terms of eighths of their last place (of the
/// least product, where the type has none so small).
fn rounding(form: &Form) -> Sums {
    let mut sums = Sums::new(form, "eighths of the last place");
    let bits = if form.sum == "f16" { 10 } else { 23 };
    // As far down as the type goes.
    let least = (-bits - 3).max(2 * form.exponents.0 + 1);
    let Some((first, second)) = form.factors(least, least / 2 + form.exponents.1) else {
        return sums;
    };
    for row in 0..ROWS {
        let sign = if row & 16 == 0 { 1.0 } else { -1.0 };
        let term = if row & 32 == 0 { 1.0 } else { -1.0 };
        sums.a[row] = vec![form.code(term * first); form.k];
        let last = [0.0, 1.0, 2.0, 3.0, 2f64.powi(bits) - 1.0][row % 5] * 2f64.powi(-bits);
        sums.c[row] = [sign * (1.0 + last); COLUMNS];
    }
    for (column, line) in sums.b.iter_mut().enumerate() {
        // So many eighths, spread over as many terms.
        for code in line.iter_mut().take(column + 1) {
            *code = form.code(second);
        }
    }
    sums
}

/// Products of two special values, alone or beside ones.
fn specials(form: &Form) -> Sums {
    let mut sums = Sums::new(form, "special values");
    let codes: [u32; 16] = match form.ty {
        "f16" => [
            0x3c00, 0xbc00, 0, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x7bff, 0x0001, 0x03ff,
            0x8001, 0x0400, 0x5555, 0xfbff, 0x3555,
        ],
        "e4m3" => [
            0x38, 0xb8, 0, 0x80, 0x7e, 0xfe, 0x7f, 0xff, 0x01, 0x07, 0x81, 0x08, 0x87, 0x55, 0x40,
            0x33,
        ],
        "e5m2" => [
            0x3c, 0xbc, 0, 0x80, 0x7c, 0xfc, 0x7e, 0x7d, 0x7b, 0x01, 0x03, 0x81, 0x04, 0x55, 0xfb,
            0x35,
        ],
        _ => {
            let upper = [
                0x3f80, 0xbf80, 0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0x7f7f, 0x0001, 0x007f,
                0x8001, 0x0080, 0x2055, 0xff7f, 0x1fab,
            ];
            if form.ty == "bf16" { upper } else { upper.map(|code| code << 16) }
        }
    };
    // tf32 also with bits that it does not have.
    let codes_a = if form.ty == "tf32" { codes.map(|code| code | 0x1fff) } else { codes };
    for row in 0..ROWS {
        sums.a[row][row % form.k] = if row < 48 { codes[row % 16] } else { codes_a[row % 16] };
        let c = [0.0, -0.0, 1.0, f64::from(f32::MIN_POSITIVE) / 4.0][row / 16];
        sums.c[row] = [c; COLUMNS];
    }
    for (column, line) in sums.b.iter_mut().enumerate() {
        line.fill(codes[column * 2]);
    }
    sums
}

/// Numbers of all sizes between 2^-6 and 2^6.
fn random(form: &Form) -> Sums {
    let mut sums = Sums::new(form, "random terms");
    let mut rng = SplitMix::new(form.k as u64);
    let mut number = || {
        let bits = rng.next();
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        let exponent = (bits >> 1) as i32 & 7;
        sign * (1.0 + (bits >> 12) as f64 / (1u64 << 52) as f64) * 2f64.powi(exponent - 4)
    };
    for line in sums.a.iter_mut().chain(&mut sums.b) {
        for code in line {
            *code = form.code(number());
        }
    }
    for line in &mut sums.c {
        for value in line {
            *value = number();
        }
    }
    sums
}

fn all(form: &Form) -> Vec<Sums> {
    let last = form.k - 1;
    let large = 2f64.powi(7);
    vec![
        small_terms(form, "a small term beside a product of 1 at 0", 0, &[(0, 1.0, 1.0)], 0.0),
        small_terms(
            form,
            "a small term beside a product of 1 at the end",
            0,
            &[(last, 1.0, 1.0)],
            0.0,
        ),
        small_terms(form, "a small term beside an accumulator of 1", 0, &[], 1.0),
        small_accumulator(form),
        many_terms(form, "small terms beside a product of 1", &[(0, 1.0, 1.0)], 0.0),
        many_terms(form, "small terms beside an accumulator of 1", &[], 1.0),
        small_terms(
            form,
            "a small term beside products that cancel",
            14,
            &[(0, large, large), (last, -large, large)],
            0.0,
        ),
        small_terms(
            form,
            "a small term beside an accumulator that cancels",
            14,
            &[(0, -large, large)],
            2f64.powi(14),
        ),
        rounding(form),
        specials(form),
        random(form),
    ]
}

pub(super) fn probes(set: &mut Set) {
    for form in FORMS {
        for sums in all(&form) {
            kernels::by_warp(set, &form, &sums);
            kernels::by_warpgroup(set, &form, &sums);
        }
    }
}
