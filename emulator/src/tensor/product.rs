//! Panels of decoded operands, and the blocked products over them.
//!
//! An operand is decoded once an instruction into a panel whose order suits the
//! inner loop: rows of `A` as they are, columns of `B` four at a time side by side.
//! The loops keep a tile of 4x4 sums in registers and have no branches, so that they
//! vectorise for any x86-64. Floating-point operands are f64: all products, and for
//! types of up to 8 bits all sums, are exact. Integers are pairs of i16 whose two
//! products are added at once; e2m1 goes the same way, doubled, because it is twice
//! as fast as f64 and as exact.

use crate::num::{half, single};

/// Rows of `A` and columns of `B` that one step of the loops takes.
const STEP: usize = 4;

/// `A` as numbers, row-major.
#[derive(Debug, Clone, Default)]
pub struct FloatRows {
    rows: usize,
    k: usize,
    data: Vec<f64>,
}

impl FloatRows {
    /// Makes it `rows` times `k`, element `(row, k)` being `value(row, k)`.
    pub fn fill(&mut self, rows: usize, k: usize, mut value: impl FnMut(usize, usize) -> f64) {
        (self.rows, self.k) = (rows, k);
        self.data.clear();
        self.data.resize(rows.next_multiple_of(STEP) * k, 0.0);
        if k == 0 {
            return;
        }
        for (row, line) in self.data.chunks_exact_mut(k).take(rows).enumerate() {
            for (at, out) in line.iter_mut().enumerate() {
                *out = value(row, at);
            }
        }
    }

    /// Multiplies element `(row, k)` by `scale(row, k / block)`.
    pub fn scale(&mut self, block: usize, mut scale: impl FnMut(usize, usize) -> f64) {
        if self.k == 0 || block == 0 {
            return;
        }
        for (row, line) in self.data.chunks_exact_mut(self.k).take(self.rows).enumerate() {
            for (at, part) in line.chunks_mut(block).enumerate() {
                let scale = scale(row, at);
                for value in part {
                    *value *= scale;
                }
            }
        }
    }
}

/// `B` as numbers: four columns side by side, `k` after `k`.
#[derive(Debug, Clone, Default)]
pub struct FloatColumns {
    columns: usize,
    k: usize,
    data: Vec<[f64; STEP]>,
}

impl FloatColumns {
    /// Makes it `k` times `columns`, element `(k, column)` being `value(column, k)`.
    pub fn fill(&mut self, columns: usize, k: usize, mut value: impl FnMut(usize, usize) -> f64) {
        (self.columns, self.k) = (columns, k);
        self.data.clear();
        self.data.resize(columns.div_ceil(STEP) * k, [0.0; STEP]);
        if k == 0 {
            return;
        }
        for column in 0..columns {
            let group = &mut self.data[column / STEP * k..][..k];
            for (at, out) in group.iter_mut().enumerate() {
                out[column % STEP] = value(column, at);
            }
        }
    }

    /// Multiplies element `(k, column)` by `scale(column, k / block)`.
    pub fn scale(&mut self, block: usize, mut scale: impl FnMut(usize, usize) -> f64) {
        if self.k == 0 || block == 0 {
            return;
        }
        for column in 0..self.columns {
            let group = &mut self.data[column / STEP * self.k..][..self.k];
            for (at, part) in group.chunks_mut(block).enumerate() {
                let scale = scale(column, at);
                for value in part {
                    value[column % STEP] *= scale;
                }
            }
        }
    }
}

/// `A` as integers: each pair of neighbours in K four times over.
#[derive(Debug, Clone, Default)]
pub struct IntRows {
    rows: usize,
    k: usize,
    data: Vec<[i16; 2 * STEP]>,
}

impl IntRows {
    /// Makes it `rows` times `k`, element `(row, k)` being `value(row, k)`.
    pub fn fill(&mut self, rows: usize, k: usize, mut value: impl FnMut(usize, usize) -> i16) {
        (self.rows, self.k) = (rows, k);
        let pairs = k.div_ceil(2);
        self.data.clear();
        self.data.resize(rows.next_multiple_of(STEP) * pairs, [0; 2 * STEP]);
        if pairs == 0 {
            return;
        }
        for (row, line) in self.data.chunks_exact_mut(pairs).take(rows).enumerate() {
            for (pair, out) in line.iter_mut().enumerate() {
                let low = value(row, 2 * pair);
                let high = if 2 * pair + 1 < k { value(row, 2 * pair + 1) } else { 0 };
                *out = std::array::from_fn(|i| if i % 2 == 0 { low } else { high });
            }
        }
    }
}

/// `B` as integers: pairs of neighbours in K, four columns side by side.
#[derive(Debug, Clone, Default)]
pub struct IntColumns {
    columns: usize,
    k: usize,
    data: Vec<[i16; 2 * STEP]>,
}

impl IntColumns {
    /// Makes it `k` times `columns`, element `(k, column)` being `value(column, k)`.
    pub fn fill(&mut self, columns: usize, k: usize, mut value: impl FnMut(usize, usize) -> i16) {
        (self.columns, self.k) = (columns, k);
        let pairs = k.div_ceil(2);
        self.data.clear();
        self.data.resize(columns.div_ceil(STEP) * pairs, [0; 2 * STEP]);
        if pairs == 0 {
            return;
        }
        for column in 0..columns {
            let group = &mut self.data[column / STEP * pairs..][..pairs];
            for at in 0..k {
                group[at / 2][column % STEP * 2 + at % 2] = value(column, at);
            }
        }
    }
}

/// Block scales of an operand as numbers, times one constant.
#[derive(Debug, Clone, Default)]
pub struct Scales {
    lines: usize,
    blocks: usize,
    /// `[line / STEP][block][line % STEP]`, padded with zeros.
    data: Vec<[f64; STEP]>,
}

impl Scales {
    /// Makes it `lines` (rows of `A` or columns of `B`) times `blocks`.
    pub fn fill(
        &mut self,
        lines: usize,
        blocks: usize,
        mut value: impl FnMut(usize, usize) -> f64,
    ) {
        (self.lines, self.blocks) = (lines, blocks);
        self.data.clear();
        self.data.resize(lines.div_ceil(STEP) * blocks, [0.0; STEP]);
        for line in 0..lines {
            for block in 0..blocks {
                self.data[line / STEP * blocks + block][line % STEP] = value(line, block);
            }
        }
    }
}

/// What becomes of the old accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Addend {
    /// `D = A * B`; the old value is not looked at.
    #[default]
    Zero,
    /// `D = A * B + D`
    Old,
    /// `D = A * B + D * 2^-n`: `scale-input-d` of `tcgen05.mma`.
    Scaled(u32),
}

impl Addend {
    fn factor(self) -> Option<f64> {
        match self {
            Self::Zero => None,
            Self::Old => Some(1.0),
            Self::Scaled(shift) => Some(f64::from(-(shift.min(1000) as f32)).exp2()),
        }
    }
}

type Sums = [[f64; STEP]; STEP];

/// `D = A * B (+ D)`, f32 accumulators, `d` row-major with `B`'s columns a row.
///
/// Only the part of `d` that exists is written: rows beyond its end are dropped.
pub fn multiply_f32(a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [f32]) {
    let factor = addend.factor();
    float_tiles(a, b, |i, j, sums| finish_f32(sums, (i, a.rows), (j, b.columns), factor, d));
}

/// `D = A * B (+ D)`, f16 accumulators as bit patterns, `d` row-major.
pub fn multiply_f16(a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [u16]) {
    let factor = addend.factor();
    float_tiles(a, b, |i, j, sums| {
        for_cells(sums, (i, a.rows), (j, b.columns), d, |sum, d| {
            let old = factor.map_or(0.0, |factor| f64::from(half::to_f32(*d)) * factor);
            *d = round_f16(sum + old);
        });
    });
}

/// `D = A * B (+ D)` of integers, `d` row-major; with `saturate` clamped instead of
/// wrapped.
pub fn multiply_i32(a: &IntRows, b: &IntColumns, add: bool, saturate: bool, d: &mut [i32]) {
    let pairs = a.k.div_ceil(2);
    if a.k != b.k {
        return;
    }
    for i in (0..a.rows).step_by(STEP) {
        for j in (0..b.columns).step_by(STEP) {
            let sums = int_tile(a, b, pairs, (i, j), 0, pairs);
            for_cells(&sums, (i, a.rows), (j, b.columns), d, |sum, d| {
                *d = match (add, saturate) {
                    (false, _) => sum,
                    (true, false) => d.wrapping_add(sum),
                    (true, true) => d.saturating_add(sum),
                };
            });
        }
    }
}

/// `D = sum over blocks of (A * B) * sA * sB (+ D)` of doubled e2m1 operands, `d`
/// row-major. `block` is the number of elements a scale covers; the scales of `a`
/// and `b` must hold the quarter that undoes the doubling, in either of them.
pub fn multiply_scaled(
    (a, a_scales): (&IntRows, &Scales),
    (b, b_scales): (&IntColumns, &Scales),
    block: usize,
    addend: Addend,
    d: &mut [f32],
) {
    let factor = addend.factor();
    let (pairs, width) = (a.k / 2, block / 2);
    let blocks = if width == 0 { 0 } else { pairs / width };
    if a.k != b.k || a_scales.blocks != blocks || b_scales.blocks != blocks {
        return;
    }
    if a_scales.lines < a.rows || b_scales.lines < b.columns {
        return;
    }
    for i in (0..a.rows).step_by(STEP) {
        let a_scales = &a_scales.data[i / STEP * blocks..][..blocks];
        for j in (0..b.columns).step_by(STEP) {
            let b_scales = &b_scales.data[j / STEP * blocks..][..blocks];
            let mut sums = [[0.0; STEP]; STEP];
            for (at, (sa, sb)) in a_scales.iter().zip(b_scales).enumerate() {
                let part = int_tile(a, b, pairs, (i, j), at * width, (at + 1) * width);
                for r in 0..STEP {
                    for c in 0..STEP {
                        sums[r][c] += f64::from(part[r][c]) * (sa[r] * sb[c]);
                    }
                }
            }
            finish_f32(&sums, (i, a.rows), (j, b.columns), factor, d);
        }
    }
}

/// Rounds to f16, once.
#[must_use]
pub fn round_f16(x: f64) -> u16 {
    let near = x as f32;
    let back = f64::from(near);
    if back == x || x.is_nan() {
        return half::from_f32(near);
    }
    // Truncated, with the last bit set for what was cut: f32 keeps two bits more
    // than f16 needs, so rounding it again is as good as rounding x.
    let down = if back.abs() > x.abs() { near.to_bits() - 1 } else { near.to_bits() };
    half::from_f32(f32::from_bits(down | 1))
}

/// Rounds to f32; NaN becomes the canonical NaN.
#[inline(always)]
#[must_use]
pub fn round_f32(x: f64) -> f32 {
    let near = x as f32;
    if near.is_nan() { single::NAN } else { near }
}

/// Calls `emit` with the first row, first column and sums of every tile.
#[inline(always)]
fn float_tiles(a: &FloatRows, b: &FloatColumns, mut emit: impl FnMut(usize, usize, &Sums)) {
    let k = a.k;
    if k != b.k || k == 0 {
        return;
    }
    for (i, rows) in a.data.chunks_exact(STEP * k).enumerate() {
        let (r0, rest) = rows.split_at(k);
        let (r1, rest) = rest.split_at(k);
        let (r2, r3) = rest.split_at(k);
        for (j, group) in b.data.chunks_exact(k).enumerate() {
            let mut sums = [[0.0; STEP]; STEP];
            let lines = r0.iter().zip(r1).zip(r2).zip(r3).zip(group);
            for ((((a0, a1), a2), a3), columns) in lines {
                for c in 0..STEP {
                    sums[0][c] += a0 * columns[c];
                    sums[1][c] += a1 * columns[c];
                    sums[2][c] += a2 * columns[c];
                    sums[3][c] += a3 * columns[c];
                }
            }
            emit(i * STEP, j * STEP, &sums);
        }
    }
}

/// Sums of the tile at `(i, j)` over the pairs `from..to`.
#[inline(always)]
fn int_tile(
    a: &IntRows,
    b: &IntColumns,
    pairs: usize,
    (i, j): (usize, usize),
    from: usize,
    to: usize,
) -> [[i32; STEP]; STEP] {
    let row = |r: usize| &a.data[(i + r) * pairs + from..(i + r) * pairs + to];
    let rows = [row(0), row(1), row(2), row(3)];
    let group = &b.data[j / STEP * pairs + from..j / STEP * pairs + to];
    let mut sums = [[0i32; STEP]; STEP];
    for (at, columns) in group.iter().enumerate() {
        for r in 0..STEP {
            let pair = &rows[r][at];
            // This shape, two products of neighbours added, is one instruction.
            for c in 0..STEP {
                let low = i32::from(pair[2 * c]) * i32::from(columns[2 * c]);
                let high = i32::from(pair[2 * c + 1]) * i32::from(columns[2 * c + 1]);
                sums[r][c] = sums[r][c].wrapping_add(low + high);
            }
        }
    }
    sums
}

#[inline(always)]
fn finish_f32(
    sums: &Sums,
    rows: (usize, usize),
    columns: (usize, usize),
    factor: Option<f64>,
    d: &mut [f32],
) {
    match factor {
        None => for_cells(sums, rows, columns, d, |sum, d| *d = round_f32(sum)),
        Some(factor) => for_cells(sums, rows, columns, d, |sum, d| {
            *d = round_f32(sum + f64::from(*d) * factor);
        }),
    }
}

/// Calls `f` for the sums of a tile that are inside the matrix. `(i, rows)` and
/// `(j, columns)`: where the tile starts, how large the matrix is.
#[inline(always)]
fn for_cells<S: Copy, D>(
    sums: &[[S; STEP]; STEP],
    (i, rows): (usize, usize),
    (j, columns): (usize, usize),
    d: &mut [D],
    mut f: impl FnMut(S, &mut D),
) {
    let width = STEP.min(columns - j);
    for (r, sums) in sums.iter().enumerate().take(rows - i) {
        let start = (i + r) * columns + j;
        let Some(line) = d.get_mut(start..start + width) else {
            return;
        };
        for (sum, d) in sums.iter().zip(line) {
            f(*sum, d);
        }
    }
}
