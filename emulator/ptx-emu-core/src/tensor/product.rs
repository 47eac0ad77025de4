//! Panels of decoded operands, and the blocked products over them.
//!
//! An operand is decoded once per instruction into a panel of f64 whose order suits the
//! inner loop: rows of `A` unchanged, columns of `B` interleaved in groups of four. In
//! f64 all products, and for types of up to 8 bits all sums, are exact, whatever the
//! type of `D`; block scales are multiplied in beforehand. The loop keeps a tile of
//! 4x4 sums in registers and has no branches, so that it vectorises for any x86-64.
//! Integer multiply-adds of 16 bits could be faster, but the compiler does not reliably
//! generate the instruction for them.

use crate::num::{half, single};

/// Rows of `A` and columns of `B` that one step of the loops takes.
pub(super) const STEP: usize = 4;

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

    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    /// K and the elements, row after row, with rows of zeros up to a whole step.
    pub(super) fn elements(&self) -> (usize, &[f64]) {
        (self.k, &self.data)
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

    pub(super) const fn columns(&self) -> usize {
        self.columns
    }

    /// K and the elements, column group after column group.
    pub(super) fn elements(&self) -> (usize, &[[f64; STEP]]) {
        (self.k, &self.data)
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
    pub(super) fn factor(self) -> Option<f64> {
        match self {
            Self::Zero => None,
            Self::Old => Some(1.0),
            Self::Scaled(shift) => Some(f64::from_bits((1023 - u64::from(shift.min(1022))) << 52)),
        }
    }
}

pub(super) type Sums = [[f64; STEP]; STEP];

/// `D = A * B (+ D)`, f32 accumulators, `d` row-major, one element per column of `B`.
///
/// Only the part of `d` that exists is written: rows beyond its end are dropped.
/// Nothing is, here and below, if the operands have different K, or none.
pub fn multiply_f32(a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [f32]) {
    match addend.factor() {
        None => float_tiles(a, b, |i, j, sums| {
            for_cells(sums, (i, a.rows), (j, b.columns), d, |sum, d| *d = round_f32(sum));
        }),
        Some(factor) => float_tiles(a, b, |i, j, sums| {
            for_cells(sums, (i, a.rows), (j, b.columns), d, |sum, d| {
                *d = round_f32(sum + f64::from(*d) * factor);
            });
        }),
    }
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

/// `D = A * B (+ D)` of integers of up to 8 bits, `d` row-major; with `saturate`
/// clamped instead of wrapped.
pub fn multiply_i32(a: &FloatRows, b: &FloatColumns, add: bool, saturate: bool, d: &mut [i32]) {
    float_tiles(a, b, |i, j, sums| {
        for_cells(sums, (i, a.rows), (j, b.columns), d, |sum, d| {
            // An exact integer, far from overflow.
            let sum = sum as i32;
            *d = match (add, saturate) {
                (false, _) => sum,
                (true, false) => d.wrapping_add(sum),
                (true, true) => d.saturating_add(sum),
            };
        });
    });
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
pub(super) fn float_tiles(
    a: &FloatRows,
    b: &FloatColumns,
    mut emit: impl FnMut(usize, usize, &Sums),
) {
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

/// Calls `f` for the sums of a tile that are inside the matrix. `(i, rows)` and
/// `(j, columns)`: where the tile starts, how large the matrix is.
#[inline(always)]
fn for_cells<D>(
    sums: &Sums,
    (i, rows): (usize, usize),
    (j, columns): (usize, usize),
    d: &mut [D],
    mut f: impl FnMut(f64, &mut D),
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
