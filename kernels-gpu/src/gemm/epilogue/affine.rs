//! Factors and bias: `alpha * row[m] * column[n] * sum + bias[n]`, in f32, from left to right.

use cuda_std::ptx::{convert, memory};
use fp4_formats::gemm::{Affine, OutputType};

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
}

/// The result of a sum. `unit` is the value of a sum's 1, `row` is [`row_factor`].
#[inline(always)]
pub fn result(sum: f32, unit: f32, row: f32, column: Column) -> f32 {
    combine(sum * unit * row * column.factor + column.bias)
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
    // SAFETY: the column exists.
    let [column] = unsafe { columns(affine, n, 1) };
    column
}

/// Factors and biases of the columns from `n` on, of which the first `exist` exist.
///
/// # Safety
/// They do.
#[inline(always)]
pub unsafe fn columns<const N: usize>(affine: &Affine, n: u32, exist: u32) -> [Column; N] {
    let mut columns = [Column::NONE; N];
    if affine.column_factors != 0 {
        for i in 0..N as u32 {
            if i < exist {
                let address = affine.column_factors + u64::from(n + i) * 4;
                // SAFETY: an element of the vector, since the column exists.
                let bits = unsafe { memory::ld_global_nc_b32(address) };
                columns[i as usize].factor = f32::from_bits(bits);
            }
        }
    }
    if affine.bias != 0 {
        for i in 0..N as u32 {
            if i < exist {
                // SAFETY: there is a bias, and the column exists.
                columns[i as usize].bias = unsafe { bias(affine, n + i) };
            }
        }
    }
    columns
}

/// Element `n` of the bias.
///
/// # Safety
/// There is a bias, and it has this element.
#[inline(always)]
unsafe fn bias(affine: &Affine, n: u32) -> f32 {
    // SAFETY: an element of the vector, which has elements of its type.
    unsafe {
        if affine.bias_type == OutputType::F32 as u32 {
            f32::from_bits(memory::ld_global_nc_b32(affine.bias + u64::from(n) * 4))
        } else {
            let half = memory::ld_global_nc_u16(affine.bias + u64::from(n) * 2);
            if affine.bias_type == OutputType::F16 as u32 {
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
    affine: &Affine,
    unit: f32,
    [m, n]: [u32; 2],
    exist: u32,
    sums: [f32; N],
) -> [f32; N] {
    // SAFETY: row and columns exist, as the caller says.
    let (row, columns) = unsafe { (row_factor(affine, m), columns::<N>(affine, n, exist)) };
    core::array::from_fn(|i| result(sums[i], unit, row, columns[i]))
}

/// The results of column `n`, rows `m..`, of which the first `exist` exist.
///
/// # Safety
/// The column exists, and so do these rows.
#[inline(always)]
pub unsafe fn column_results<const N: usize>(
    affine: &Affine,
    unit: f32,
    [m, n]: [u32; 2],
    exist: u32,
    sums: [f32; N],
) -> [f32; N] {
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
    core::array::from_fn(|i| result(sums[i], unit, rows[i], column))
}
