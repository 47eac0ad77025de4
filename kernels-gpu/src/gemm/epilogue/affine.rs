//! Factors and bias: `alpha * row[m] * column[n] * sum + bias[n]`, in f32, from left to right.

use cuda_std::ptx::{convert, memory};
use fp4_formats::FloatType;
use fp4_formats::gemm::{Affine, Epilogue};

use super::combine::combine;

/// What belongs to one column of the result.
#[derive(Clone, Copy)]
pub struct Column {
    /// Its factor.
    pub factor: f32,
    /// What is added.
    pub bias: f32,
}

impl Column {
    /// Of a column without factor and bias. Neither operation changes any value: adding -0.0 keeps
    /// the sign of a zero.
    pub const NONE: Self = Self { factor: 1.0, bias: -0.0 };

    /// What the column makes of a [`scaled`] sum.
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

/// The result of a sum.
#[inline(always)]
pub fn result(epilogue: &Epilogue, sum: f32, unit: f32, row: f32, column: Column) -> f32 {
    combine(epilogue, column.apply(scaled(sum, unit, row)))
}

/// Whether columns have factors or a bias.
#[inline(always)]
pub fn has_columns(affine: &Affine) -> bool {
    affine.column_factors != 0 || affine.bias != 0
}

/// alpha times row `m`'s factor.
///
/// # Safety
/// The row exists.
#[inline(always)]
pub unsafe fn row_factor(affine: &Affine, m: u32) -> f32 {
    if affine.row_factors == 0 {
        return affine.alpha;
    }
    let address = affine.row_factors + u64::from(m) * 4;
    // SAFETY: an element of the vector, since the row exists.
    affine.alpha * f32::from_bits(unsafe { memory::ld_global_nc_b32(address) })
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

/// Factors and biases of the columns from `n` on.
///
/// # Safety
/// All of them exist.
#[inline(always)]
pub unsafe fn columns<const N: usize>(affine: &Affine, n: u32) -> [Column; N] {
    let mut columns = [Column::NONE; N];
    for i in 0..N {
        // SAFETY: the column exists.
        columns[i] = unsafe { column(affine, n + i as u32) };
    }
    columns
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
        if affine.bias_type == FloatType::F32 as u32 {
            f32::from_bits(memory::ld_global_nc_b32(affine.bias + u64::from(n) * 4))
        } else {
            let half = memory::ld_global_nc_u16(affine.bias + u64::from(n) * 2);
            if affine.bias_type == FloatType::F16 as u32 {
                convert::cvt_f32_f16(half)
            } else {
                f32::from_bits(u32::from(half) << 16)
            }
        }
    }
}

/// The results of row `m`, columns `n..`, of which the first `exist` exist. `unit` is the value of
/// a sum's 1.
///
/// # Safety
/// The row exists, and so do these columns.
#[inline(always)]
pub unsafe fn row_results<const N: usize>(
    epilogue: &Epilogue,
    unit: f32,
    [m, n]: [u32; 2],
    exist: u32,
    sums: [f32; N],
) -> [f32; N] {
    let affine = &epilogue.affine;
    // SAFETY: the row exists.
    let row = unsafe { row_factor(affine, m) };
    // One vector after the other: both would take twice the registers.
    let mut values = sums.map(|sum| scaled(sum, unit, row));
    if affine.column_factors != 0 {
        for i in 0..N as u32 {
            if i < exist {
                // SAFETY: there are factors, and the column exists.
                let factor = unsafe { column_factor(affine, n + i) };
                values[i as usize] = Column { factor, ..Column::NONE }.apply(values[i as usize]);
            }
        }
    }
    if affine.bias != 0 {
        for i in 0..N as u32 {
            if i < exist {
                // SAFETY: there is a bias, and the column exists.
                let bias = unsafe { bias(affine, n + i) };
                values[i as usize] = Column { bias, ..Column::NONE }.apply(values[i as usize]);
            }
        }
    }
    values.map(|value| combine(epilogue, value))
}

/// The results of column `n`, rows `m..`, of which the first `exist` exist.
///
/// # Safety
/// The column exists, and so do these rows.
#[inline(always)]
pub unsafe fn column_results<const N: usize>(
    epilogue: &Epilogue,
    unit: f32,
    [m, n]: [u32; 2],
    exist: u32,
    sums: [f32; N],
) -> [f32; N] {
    let affine = &epilogue.affine;
    // SAFETY: the column exists, as the caller says.
    let column = unsafe { column(affine, n) };
    let mut rows = [affine.alpha; N];
    if affine.row_factors != 0 {
        for i in 0..N as u32 {
            if i < exist {
                // SAFETY: the row exists.
                rows[i as usize] = unsafe { row_factor(affine, m + i) };
            }
        }
    }
    let mut results = [0.0; N];
    for i in 0..N {
        results[i] = result(epilogue, sums[i], unit, rows[i], column);
    }
    results
}
