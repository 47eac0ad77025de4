//! Panels of decoded operands, and the blocked products over them.
//!
//! An operand is decoded once per instruction into a panel of f64 whose order suits the
//! inner loop: rows of `A` unchanged, columns of `B` interleaved in groups of eight. In
//! f64 all products, and for types of up to 8 bits all sums, are exact, whatever the
//! type of `D`; block scales are multiplied in beforehand. The loop keeps a tile of
//! sums in registers and has no branches, so that it vectorises for any x86-64.

use crate::num::{half, single};
use ptx_emu_simd::{Host, on_host};

/// Rows of `A` that one step of the loops takes.
pub(super) const STEP: usize = 4;
/// Columns of `B` that lie side by side.
pub(crate) const WIDTH: usize = 8;

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

    /// The same of elements that come in pairs along K, which is even.
    pub(super) fn fill_pairs(
        &mut self,
        rows: usize,
        k: usize,
        pair: impl Fn(usize, usize) -> [f64; 2],
    ) {
        (self.rows, self.k) = (rows, k);
        self.data.clear();
        self.data.resize(rows.next_multiple_of(STEP) * k, 0.0);
        if k == 0 {
            return;
        }
        for (row, line) in self.data.chunks_exact_mut(k).take(rows).enumerate() {
            for (at, out) in line.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *out = pair(row, at);
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

/// `B` as numbers: eight columns side by side, `k` after `k`.
#[derive(Debug, Clone, Default)]
pub struct FloatColumns {
    columns: usize,
    k: usize,
    data: Vec<[f64; WIDTH]>,
}

impl FloatColumns {
    /// Makes it `k` times `columns`, element `(k, column)` being `value(column, k)`.
    pub fn fill(&mut self, columns: usize, k: usize, mut value: impl FnMut(usize, usize) -> f64) {
        (self.columns, self.k) = (columns, k);
        self.data.clear();
        self.data.resize(columns.div_ceil(WIDTH) * k, [0.0; WIDTH]);
        if k == 0 {
            return;
        }
        for (group, lines) in self.data.chunks_exact_mut(k).enumerate() {
            let first = group * WIDTH;
            if first + WIDTH <= columns {
                for (at, line) in lines.iter_mut().enumerate() {
                    *line = std::array::from_fn(|c| value(first + c, at));
                }
            } else {
                for (at, line) in lines.iter_mut().enumerate() {
                    for (column, out) in (first..columns).zip(line) {
                        *out = value(column, at);
                    }
                }
            }
        }
    }

    /// The same of elements that come in pairs along K, which is even.
    pub(super) fn fill_pairs(
        &mut self,
        columns: usize,
        k: usize,
        pair: impl Fn(usize, usize) -> [f64; 2],
    ) {
        (self.columns, self.k) = (columns, k);
        self.data.clear();
        self.data.resize(columns.div_ceil(WIDTH) * k, [0.0; WIDTH]);
        if k == 0 {
            return;
        }
        for (group, lines) in self.data.chunks_exact_mut(k).enumerate() {
            let first = group * WIDTH;
            for (at, two) in lines.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                for (c, column) in (first..columns.min(first + WIDTH)).enumerate() {
                    let [low, high] = pair(column, at);
                    (two[0][c], two[1][c]) = (low, high);
                }
            }
        }
    }

    pub(super) const fn columns(&self) -> usize {
        self.columns
    }

    /// K and the elements, column group after column group.
    pub(super) fn elements(&self) -> (usize, &[[f64; WIDTH]]) {
        (self.k, &self.data)
    }

    /// Multiplies element `(k, column)` by `scale(column, k / block)`.
    pub fn scale(&mut self, block: usize, mut scale: impl FnMut(usize, usize) -> f64) {
        if self.k == 0 || block == 0 {
            return;
        }
        for (group, lines) in self.data.chunks_exact_mut(self.k).enumerate() {
            let columns = group * WIDTH..self.columns.min((group + 1) * WIDTH);
            for (at, part) in lines.chunks_mut(block).enumerate() {
                let mut scales = [1.0; WIDTH];
                for (scale_of, column) in scales.iter_mut().zip(columns.clone()) {
                    *scale_of = scale(column, at);
                }
                for line in part {
                    for (value, factor) in line.iter_mut().zip(&scales) {
                        *value *= factor;
                    }
                }
            }
        }
    }
}

/// The use of the old accumulator.
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

pub(super) type Sums = [[f64; WIDTH]; STEP];

/// `D = A * B (+ D)`, f32 accumulators, `d` row-major, one element per column of `B`.
///
/// Only the part of `d` that exists is written: rows beyond its end are dropped.
/// Nothing is, here and below, if the operands have different K, or none.
pub fn multiply_f32(a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [f32]) {
    on_host!(host => host.run(|| {
        float_tiles(host, a, b, |i, j, sums| {
            for_rows(sums, (i, a.rows), (j, b.columns), d, |sums, d| round_row(sums, addend, d));
        });
    }));
}

/// `D = A * B (+ D)`, f16 accumulators as bit patterns, `d` row-major.
pub fn multiply_f16(a: &FloatRows, b: &FloatColumns, addend: Addend, d: &mut [u16]) {
    let factor = addend.factor();
    on_host!(host => host.run(|| {
        float_tiles(host, a, b, |i, j, sums| {
            for_rows(sums, (i, a.rows), (j, b.columns), d, |sums, d| {
                for (sum, d) in sums.iter().zip(d) {
                    let old = factor.map_or(0.0, |factor| f64::from(half::to_f32(*d)) * factor);
                    *d = round_f16(sum + old);
                }
            });
        });
    }));
}

/// `D = A * B (+ D)` of integers of up to 8 bits, `d` row-major; with `saturate`
/// clamped instead of wrapped.
pub fn multiply_i32(a: &FloatRows, b: &FloatColumns, add: bool, saturate: bool, d: &mut [i32]) {
    on_host!(host => host.run(|| {
        float_tiles(host, a, b, |i, j, sums| {
            for_rows(sums, (i, a.rows), (j, b.columns), d, |sums, d| {
                for (sum, d) in sums.iter().zip(d) {
                    // An exact integer, far from overflow.
                    let sum = *sum as i32;
                    *d = match (add, saturate) {
                        (false, _) => sum,
                        (true, false) => d.wrapping_add(sum),
                        (true, true) => d.saturating_add(sum),
                    };
                }
            });
        });
    }));
}

/// A row of f32 accumulators gets its sums.
#[inline(always)]
pub(super) fn round_row<const N: usize>(sums: &[f64; N], addend: Addend, d: &mut [f32]) {
    if let (Some(factor), Some(d)) = (addend.factor(), d.first_chunk_mut::<N>()) {
        for (sum, d) in sums.iter().zip(d) {
            *d = round_f32(sum + f64::from(*d) * factor);
        }
    } else if let Some(factor) = addend.factor() {
        for (sum, d) in sums.iter().zip(d) {
            *d = round_f32(sum + f64::from(*d) * factor);
        }
    } else {
        for (sum, d) in sums.iter().zip(d) {
            *d = round_f32(*sum);
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
pub(super) fn float_tiles<H: Host>(
    _: H,
    a: &FloatRows,
    b: &FloatColumns,
    mut emit: impl FnMut(usize, usize, &Sums),
) {
    let k = a.k;
    if k != b.k || k == 0 {
        return;
    }
    for (i, rows) in a.data.chunks_exact(STEP * k).enumerate() {
        for (j, group) in b.data.chunks_exact(k).enumerate() {
            let mut sums = Sums::default();
            // As many sums as the host's vector registers hold.
            if H::WIDE {
                float_tile::<WIDTH>(rows, group, 0, &mut sums);
            } else {
                float_tile::<{ WIDTH / 2 }>(rows, group, 0, &mut sums);
                float_tile::<{ WIDTH / 2 }>(rows, group, WIDTH / 2, &mut sums);
            }
            emit(i * STEP, j * WIDTH, &sums);
        }
    }
}

/// Sums of `N` columns of a tile, from column `first` on.
#[inline(always)]
fn float_tile<const N: usize>(rows: &[f64], group: &[[f64; WIDTH]], first: usize, out: &mut Sums) {
    let (r0, rest) = rows.split_at(group.len());
    let (r1, rest) = rest.split_at(group.len());
    let (r2, r3) = rest.split_at(group.len());
    let mut sums = [[0.0; N]; STEP];
    let lines = r0.iter().zip(r1).zip(r2).zip(r3).zip(group);
    for ((((a0, a1), a2), a3), columns) in lines {
        let columns = &columns[first..first + N];
        for c in 0..N {
            sums[0][c] += a0 * columns[c];
            sums[1][c] += a1 * columns[c];
            sums[2][c] += a2 * columns[c];
            sums[3][c] += a3 * columns[c];
        }
    }
    for (out, sums) in out.iter_mut().zip(&sums) {
        out[first..first + N].copy_from_slice(sums);
    }
}

/// Calls `f` for the rows of a tile, the part that is inside the matrix. `(i, rows)` and
/// `(j, columns)`: where the tile starts, how large the matrix is.
#[inline(always)]
pub(super) fn for_rows<D, const N: usize>(
    sums: &[[f64; N]],
    (i, rows): (usize, usize),
    (j, columns): (usize, usize),
    d: &mut [D],
    mut f: impl FnMut(&[f64; N], &mut [D]),
) {
    let width = N.min(columns - j);
    for (r, sums) in sums.iter().enumerate().take(rows - i) {
        let start = (i + r) * columns + j;
        let Some(line) = d.get_mut(start..start + width) else {
            return;
        };
        f(sums, line);
    }
}

#[cfg(test)]
mod tests {
    use super::{FloatColumns, FloatRows, float_tiles};
    use ptx_emu_simd::{Host, Plain, on_host};

    /// Sums whose order shows are the same by the loops of every host.
    #[test]
    fn hosts_agree() {
        let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
        let value = |line: usize, k: usize| {
            let spread = (line * 7 + k * 13) % 60;
            (1.0 + ((line * 31 + k * 17) % 1023) as f64 / 1024.0) * 2f64.powi(spread as i32 - 30)
        };
        rows.fill(6, 24, value);
        columns.fill(21, 24, |column, k| -value(column + 3, k));
        let (mut plain, mut wide) = (Vec::new(), Vec::new());
        float_tiles(Plain, &rows, &columns, |i, j, sums| plain.push((i, j, *sums)));
        on_host!(host => host.run(|| {
            float_tiles(host, &rows, &columns, |i, j, sums| wide.push((i, j, *sums)));
        }));
        assert_eq!(plain.len(), 6);
        assert_eq!(plain, wide);
    }
}
