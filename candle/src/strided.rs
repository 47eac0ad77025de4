//! Elements of tensors on the CPU, in the order of their indices, whatever the layout.

use candle_core::{CpuStorage, DType, Layout, Result};
use half::{bf16, f16};

use crate::engine::float_type;
use crate::error::shape;

/// Calls `visit` for each run of elements that follow each other, with its place in the storage and its
/// length, in the order of indices.
fn runs(layout: &Layout, mut visit: impl FnMut(usize, usize)) {
    let (dims, strides) = (layout.dims(), layout.stride());
    // Trailing dimensions that are contiguous form a run.
    let mut run = 1;
    let mut outer = dims.len();
    while outer > 0 && (strides[outer - 1] == run || dims[outer - 1] == 1) {
        run *= dims[outer - 1];
        outer -= 1;
    }
    let count: usize = dims[..outer].iter().product();
    for index in 0..count {
        let (mut rest, mut at) = (index, layout.start_offset());
        for (dim, stride) in dims[..outer].iter().zip(strides).rev() {
            at += rest % dim * stride;
            rest /= dim;
        }
        visit(at, run);
    }
}

fn collect<T: Copy, R>(data: &[T], layout: &Layout, convert: impl Fn(T) -> R) -> Vec<R> {
    let mut values = Vec::with_capacity(layout.shape().elem_count());
    runs(layout, |at, run| values.extend(data[at..at + run].iter().map(|&x| convert(x))));
    values
}

/// Floats in f32.
pub(crate) fn floats(storage: &CpuStorage, layout: &Layout) -> Result<Vec<f32>> {
    match storage {
        CpuStorage::F32(data) => Ok(collect(data, layout, |x| x)),
        CpuStorage::F16(data) => Ok(collect(data, layout, f16::to_f32)),
        CpuStorage::BF16(data) => Ok(collect(data, layout, bf16::to_f32)),
        other => Err(float_error(other)),
    }
}

/// The error for a type that is not supported.
fn float_error(storage: &CpuStorage) -> candle_core::Error {
    let dtype = candle_core::backend::BackendStorage::dtype(storage);
    match float_type(dtype, "the activations") {
        Err(error) => error,
        Ok(taken) => shape("type of the activations", "taken", taken.name()),
    }
}

/// Indices, of which none is negative.
pub(crate) fn indices(storage: &CpuStorage, layout: &Layout) -> Result<Vec<u32>> {
    let wide: Vec<i64> = match storage {
        CpuStorage::U32(data) => return Ok(collect(data, layout, |x| x)),
        CpuStorage::U8(data) => return Ok(collect(data, layout, u32::from)),
        CpuStorage::I32(data) => collect(data, layout, i64::from),
        CpuStorage::I64(data) => collect(data, layout, |x| x),
        other => {
            let dtype = candle_core::backend::BackendStorage::dtype(other);
            return Err(shape("type of the ids", "u8, u32, i32 or i64", dtype.as_str()));
        }
    };
    let narrow = |id: i64| u32::try_from(id).map_err(|_| shape("an id", "an expert's number", id));
    wide.into_iter().map(narrow).collect()
}

/// New storage of a float type with these values.
pub(crate) fn storage(values: Vec<f32>, dtype: DType) -> Result<CpuStorage> {
    Ok(match dtype {
        DType::F32 => CpuStorage::F32(values),
        DType::F16 => CpuStorage::F16(values.into_iter().map(f16::from_f32).collect()),
        DType::BF16 => CpuStorage::BF16(values.into_iter().map(bf16::from_f32).collect()),
        other => {
            return Err(float_type(other, "the result")
                .map(drop)
                .err()
                .unwrap_or_else(|| shape("type of the result", "a float", other.as_str())));
        }
    })
}

/// Writes values to where a layout has its elements.
pub(crate) fn scatter(values: &[f32], storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
    fn put<T>(values: &[f32], data: &mut [T], layout: &Layout, convert: impl Fn(f32) -> T) {
        let mut from = 0;
        runs(layout, |at, run| {
            let pairs = data[at..at + run].iter_mut().zip(&values[from..from + run]);
            pairs.for_each(|(to, &value)| *to = convert(value));
            from += run;
        });
    }
    match storage {
        CpuStorage::F32(data) => put(values, data, layout, |x| x),
        CpuStorage::F16(data) => put(values, data, layout, f16::from_f32),
        CpuStorage::BF16(data) => put(values, data, layout, bf16::from_f32),
        other => return Err(float_error(other)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Storage, Tensor};

    use super::*;

    /// The elements as `to_vec` returns them, after candle's own copy.
    fn expected(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("a CPU tensor")
    }

    #[test]
    fn every_layout_is_read_in_the_order_of_indices() -> Result<()> {
        let all = Tensor::arange(0f32, 4. * 6. * 8., &Device::Cpu)?.reshape((4, 6, 8))?;
        let views = [
            all.clone(),
            all.t()?,
            all.transpose(0, 1)?,
            all.narrow(1, 2, 3)?,
            all.narrow(2, 1, 5)?.transpose(0, 2)?,
            all.narrow(0, 1, 1)?,
            all.narrow(1, 0, 1)?.broadcast_as((4, 5, 8))?,
            all.permute((2, 0, 1))?,
        ];
        for view in views {
            let (storage, layout) = view.storage_and_layout();
            let Storage::Cpu(storage) = &*storage else { panic!("a CPU tensor") };
            assert_eq!(floats(storage, layout)?, expected(&view), "{layout:?}");
        }
        Ok(())
    }
}
