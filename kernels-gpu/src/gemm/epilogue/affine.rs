//! Factors and bias: `alpha * row[m] * column[n] * sum + bias[n]`, in f32, from left to right.

use cuda_std::ptx::memory;
use fp4_formats::gemm::Affine;

use super::floats;

/// The factor and the bias of one column of the result.
#[derive(Clone, Copy)]
pub struct Column {
    /// Its factor.
    pub factor: f32,
    /// The bias.
    pub bias: f32,
}

impl Column {
    /// The values of a column without factor and bias. Neither operation changes any value: adding
    /// -0.0 keeps the sign of a zero.
    pub const NONE: Self = Self { factor: 1.0, bias: -0.0 };

    /// Applies the column to a [`scaled`] sum.
    #[inline(always)]
    pub fn apply(self, scaled: f32) -> f32 {
        scaled * self.factor + self.bias
    }
}

/// A sum times its row's factor and alpha. `unit` is the value of a sum's 1, `row` is
/// [`row_factor`].
#[inline(always)]
pub fn scaled(sum: f32, unit: f32, row: f32) -> f32 {
    sum * unit * row
}

/// The value of a sum.
#[inline(always)]
pub fn value(sum: f32, unit: f32, row: f32, column: Column) -> f32 {
    column.apply(scaled(sum, unit, row))
}

/// alpha times row `m`'s factor.
///
/// # Safety
/// The row exists.
#[inline(always)]
pub unsafe fn row_factor(affine: &Affine, m: u32) -> f32 {
    // SAFETY: the row exists.
    affine.alpha * unsafe { token_factor(affine, m) }
}

/// Row `m`'s factor.
///
/// # Safety
/// The row exists.
#[inline(always)]
pub unsafe fn token_factor(affine: &Affine, m: u32) -> f32 {
    if affine.row_factors == 0 {
        return 1.0;
    }
    let address = affine.row_factors + u64::from(m) * 4;
    // SAFETY: an element of the vector, since the row exists.
    f32::from_bits(unsafe { memory::ld_global_nc_b32(address) })
}

/// Factor and bias of column `n`.
///
/// # Safety
/// The column exists.
#[inline(always)]
pub unsafe fn column(affine: &Affine, n: u32) -> Column {
    let mut column = Column::NONE;
    // SAFETY: the vectors that there are have an element for the column, which exists.
    unsafe {
        if affine.column_factors != 0 {
            column.factor = column_factor(affine, n);
        }
        if affine.bias != 0 {
            column.bias = bias(affine, n);
        }
    }
    column
}

/// The values of the sums of columns `n..` in a row whose factor is `row`.
///
/// # Safety
/// The columns exist.
#[inline(always)]
pub unsafe fn values<const N: usize>(
    affine: &Affine,
    unit: f32,
    row: f32,
    n: u32,
    sums: [f32; N],
) -> [f32; N] {
    // One vector after the other: both would take twice the registers. One branch for all columns
    // on each vector and on the bias's type.
    let mut values = sums.map(|sum| scaled(sum, unit, row));
    // SAFETY: the vectors that there are have elements for the columns, which exist.
    unsafe {
        if affine.column_factors != 0 {
            for i in 0..N {
                let factor = column_factor(affine, n + i as u32);
                values[i] = Column { factor, ..Column::NONE }.apply(values[i]);
            }
        }
        if affine.bias == 0 {
            return values;
        }
        let mut biases = [0.0; N];
        if floats::is_f32(affine.bias_type) {
            for i in 0..N {
                biases[i] = wide_bias(affine, n + i as u32);
            }
        } else {
            let mut halves = [0; N];
            for i in 0..N {
                halves[i] = half_bias(affine, n + i as u32);
            }
            biases = floats::widened(affine.bias_type, halves);
        }
        for i in 0..N {
            values[i] = Column { bias: biases[i], ..Column::NONE }.apply(values[i]);
        }
    }
    values
}

/// Bytes of an element of the bias.
#[inline(always)]
pub fn bias_bytes(affine: &Affine) -> u64 {
    floats::bytes(affine.bias_type)
}

/// Factor of column `n`.
///
/// # Safety
/// There are column factors, and the column exists.
#[inline(always)]
unsafe fn column_factor(affine: &Affine, n: u32) -> f32 {
    // SAFETY: an element of the vector, since the column exists.
    f32::from_bits(unsafe { memory::ld_global_nc_b32(affine.column_factors + u64::from(n) * 4) })
}

/// Element `n` of the bias.
///
/// # Safety
/// There is a bias, and it has this element.
#[inline(always)]
unsafe fn bias(affine: &Affine, n: u32) -> f32 {
    // SAFETY: an element of the vector, which has elements of its type.
    unsafe {
        if floats::is_f32(affine.bias_type) {
            wide_bias(affine, n)
        } else {
            let [bias] = floats::widened(affine.bias_type, [half_bias(affine, n)]);
            bias
        }
    }
}

/// Element `n` of a bias in f32.
///
/// # Safety
/// As [`bias`].
#[inline(always)]
unsafe fn wide_bias(affine: &Affine, n: u32) -> f32 {
    // SAFETY: an element of the vector.
    f32::from_bits(unsafe { memory::ld_global_nc_b32(affine.bias + u64::from(n) * 4) })
}

/// The bits of element `n` of a bias in f16 or bf16.
///
/// # Safety
/// As [`bias`].
#[inline(always)]
unsafe fn half_bias(affine: &Affine, n: u32) -> u16 {
    // SAFETY: an element of the vector.
    unsafe { memory::ld_global_nc_u16(affine.bias + u64::from(n) * 2) }
}
