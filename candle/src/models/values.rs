//! Floats of a checkpoint on their way to where they are computed with: read once, by all cores, and kept in the type that
//! they are stored in wherever that is the type that they are needed in.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use nvfp4::FloatType;
use nvfp4::error::filled;
use nvfp4::quantize::source::Source;
use nvfp4_checkpoint::{Model, RawTensor};
use rayon::prelude::*;

use crate::error::wrap;

/// Bytes that one thread copies at once.
const CHUNK: usize = 1 << 18;
/// Rows that one thread turns at once: a cache line of 16-bit elements that are beside each other in what it reads.
const ROWS: usize = 32;

/// Elements of tensors, piece after piece.
pub(super) struct Floats {
    tensors: Vec<Tensors>,
    /// A tensor, and the elements of it.
    pieces: Vec<(usize, Range<usize>)>,
}

enum Tensors {
    /// A tensor of the checkpoint, which is read when it is needed.
    Stored(String),
    /// Such a tensor of matrices `[columns, rows]`, read as `[rows, columns]`.
    Turned(String, [usize; 2]),
    Decoded(Vec<f32>),
}

impl Floats {
    /// The elements of a tensor that the checkpoint has in floats, so many.
    pub fn stored(name: String, elements: usize) -> Self {
        Self { tensors: vec![Tensors::Stored(name)], pieces: vec![(0, 0..elements)] }
    }

    /// The elements of a tensor that the checkpoint has in floats, so many, with each of its matrices turned to
    /// `[rows, columns]`.
    pub fn turned(name: String, elements: usize, [rows, columns]: [usize; 2]) -> Self {
        let tensors = vec![Tensors::Turned(name, [rows, columns])];
        Self { tensors, pieces: vec![(0, 0..elements)] }
    }

    /// These numbers.
    pub fn decoded(values: Vec<f32>) -> Self {
        let all = 0..values.len();
        Self { tensors: vec![Tensors::Decoded(values)], pieces: vec![(0, all)] }
    }

    pub fn len(&self) -> usize {
        self.pieces.iter().map(|(_, range)| range.len()).sum()
    }

    /// The elements of the first, then those of the second, and so on; of each of `count` parts of equal size.
    pub fn joined(all: Vec<Self>, count: usize) -> Self {
        let (mut tensors, mut each) = (Vec::new(), Vec::new());
        for floats in all {
            let (before, size) = (tensors.len(), floats.len() / count);
            let part = |at: usize| {
                let pieces = floats.part(at * size..(at + 1) * size);
                pieces.map(|(tensor, range)| (before + tensor, range)).collect::<Vec<_>>()
            };
            each.push((0..count).map(part).collect::<Vec<_>>());
            tensors.extend(floats.tensors);
        }
        let pieces = (0..count).flat_map(|at| each.iter().flat_map(move |own| own[at].clone()));
        Self { pieces: pieces.collect(), tensors }
    }

    /// The pieces that some of the elements are.
    fn part(&self, part: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut begin = 0;
        self.pieces.iter().filter_map(move |(tensor, range)| {
            let own = begin..begin + range.len();
            begin = own.end;
            let (from, until) = (own.start.max(part.start), own.end.min(part.end));
            let within = |at: usize| range.start + at - own.start;
            (from < until).then(|| (*tensor, within(from)..within(until)))
        })
    }

    /// Opens the tensors, whose elements are all finite.
    pub fn open<'a>(&'a self, model: &'a Model) -> Result<Open<'a>> {
        let tensor = |tensor: &'a Tensors| match tensor {
            Tensors::Stored(name) => {
                let (dtype, tensor) = bytes(model, name)?;
                Ok(OpenTensor::Stored(dtype, tensor))
            }
            Tensors::Turned(name, sizes) => {
                let (dtype, tensor) = bytes(model, name)?;
                let turned = match dtype {
                    FloatType::F32 => {
                        turned(tensor.data.as_chunks::<4>().0, *sizes)?.into_flattened()
                    }
                    FloatType::F16 | FloatType::Bf16 => {
                        turned(tensor.data.as_chunks::<2>().0, *sizes)?.into_flattened()
                    }
                };
                Ok(OpenTensor::Turned(dtype, turned))
            }
            Tensors::Decoded(values) => Ok(OpenTensor::Decoded(values)),
        };
        let tensors = self.tensors.iter().map(tensor).collect::<Result<_>>()?;
        Ok(Open { floats: self, tensors })
    }
}

/// A tensor as it is stored.
fn bytes<'a>(model: &'a Model, name: &str) -> Result<(FloatType, RawTensor<'a>)> {
    model.file(name).map_err(wrap)?.float_bytes(name).map_err(wrap)
}

/// Matrices `[columns, rows]` one after the other, each turned to `[rows, columns]` by all cores.
pub(super) fn turned<T: Copy + Default + Send + Sync>(
    elements: &[T],
    [rows, columns]: [usize; 2],
) -> Result<Vec<T>> {
    let mut turned = filled("floats", elements.len(), T::default()).map_err(wrap)?;
    let size = (rows * columns).max(1);
    let matrices = turned.par_chunks_mut(size).zip(elements.par_chunks(size));
    matrices.for_each(|(to, from)| {
        let some = to.par_chunks_mut(ROWS * columns).enumerate();
        some.for_each(|(at, to)| {
            for column in 0..columns {
                let from = &from[column * rows + at * ROWS..];
                to.iter_mut().skip(column).step_by(columns).zip(from).for_each(|(to, &x)| *to = x);
            }
        });
    });
    Ok(turned)
}

/// [`Floats`] that can be read.
pub(super) struct Open<'a> {
    floats: &'a Floats,
    tensors: Vec<OpenTensor<'a>>,
}

enum OpenTensor<'a> {
    Stored(FloatType, RawTensor<'a>),
    Turned(FloatType, Vec<u8>),
    Decoded(&'a [f32]),
}

/// Elements after each other.
pub(super) enum Elements<'a> {
    Bytes(FloatType, Cow<'a, [u8]>),
    Values(Vec<f32>),
}

impl Elements<'_> {
    pub fn source(&self) -> Source<'_> {
        match self {
            Self::Bytes(dtype, bytes) => Source::Bytes(*dtype, bytes),
            Self::Values(values) => Source::Values(values),
        }
    }
}

impl Open<'_> {
    fn sources(&self, part: Range<usize>) -> Vec<Source<'_>> {
        let source = |(tensor, range): (usize, Range<usize>)| match &self.tensors[tensor] {
            OpenTensor::Stored(dtype, tensor) => Source::Bytes(*dtype, &tensor.data).part(range),
            OpenTensor::Turned(dtype, bytes) => Source::Bytes(*dtype, bytes).part(range),
            OpenTensor::Decoded(values) => Source::Values(&values[range]),
        };
        self.floats.part(part).map(source).collect()
    }

    /// Some of the elements in f32.
    pub fn values(&self, part: Range<usize>) -> Result<Vec<f32>> {
        let mut values = filled("floats", part.len(), 0f32).map_err(wrap)?;
        let mut rest = values.as_mut_slice();
        for source in self.sources(part) {
            let (own, others) = rest.split_at_mut(source.len());
            source.par_load(own);
            rest = others;
        }
        Ok(values)
    }

    /// Some of the elements: as they are stored if all are of one type, without a copy if all are of one tensor.
    pub fn elements(&self, part: Range<usize>) -> Result<Elements<'_>> {
        let sources = self.sources(part.clone());
        let mut all = Vec::with_capacity(sources.len());
        let mut of_all = None;
        for source in &sources {
            match *source {
                Source::Bytes(dtype, bytes) if of_all.is_none_or(|known| known == dtype) => {
                    of_all = Some(dtype);
                    all.push(bytes);
                }
                Source::Bytes(..) | Source::Values(_) => {
                    return self.values(part).map(Elements::Values);
                }
            }
        }
        let (Some(dtype), [first, others @ ..]) = (of_all, all.as_slice()) else {
            return Ok(Elements::Values(Vec::new()));
        };
        if others.is_empty() {
            return Ok(Elements::Bytes(dtype, Cow::Borrowed(first)));
        }
        let size = all.iter().map(|bytes| bytes.len()).sum();
        let mut bytes = filled("floats", size, 0u8).map_err(wrap)?;
        let mut rest = bytes.as_mut_slice();
        for from in all {
            let (own, others) = rest.split_at_mut(from.len());
            let chunks = own.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK));
            chunks.for_each(|(to, from)| to.copy_from_slice(from));
            rest = others;
        }
        Ok(Elements::Bytes(dtype, Cow::Owned(bytes)))
    }

    /// All elements as a tensor of `dtype` on `device`.
    pub fn tensor(&self, dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        let all = 0..self.floats.len();
        if dtype == DType::F32 {
            return Tensor::from_vec(self.values(all)?, dims, device);
        }
        let is_stored_so = |source: &Source<'_>| match source {
            Source::Bytes(stored, _) => crate::engine::dtype(*stored) == dtype,
            Source::Values(_) => false,
        };
        if cfg!(target_endian = "little")
            && self.sources(all.clone()).iter().all(is_stored_so)
            && let Elements::Bytes(_, bytes) = self.elements(all.clone())?
        {
            return Tensor::from_raw_buffer(&bytes, dtype, dims, device);
        }
        let values = self.values(all)?;
        match dtype {
            DType::BF16 => {
                let values: Vec<bf16> = values.into_par_iter().map(bf16::from_f32).collect();
                Tensor::from_vec(values, dims, device)
            }
            DType::F16 => {
                let values: Vec<f16> = values.into_par_iter().map(f16::from_f32).collect();
                Tensor::from_vec(values, dims, device)
            }
            _ => Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)?.to_device(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint of tensors, which the caller may remove the file of.
    fn checkpoint(name: &str, tensors: Vec<(&str, Tensor)>) -> Result<(Model, std::path::PathBuf)> {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("nvfp4-values-{name}-{}.safetensors", std::process::id()));
        candle_core::safetensors::save(&tensors.into_iter().collect(), &path)?;
        Ok((Model::open(&path).map_err(wrap)?, path))
    }

    fn random(shape: (usize, usize, usize), dtype: DType) -> Result<Tensor> {
        Tensor::randn(0f32, 1., shape, &Device::Cpu)?.to_dtype(dtype)
    }

    fn same(found: &Tensor, right: &Tensor) -> Result<bool> {
        let bits = |tensor: &Tensor| -> Result<Vec<f32>> {
            tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
        };
        Ok(found.dtype() == right.dtype()
            && found.dims() == right.dims()
            && bits(found)? == bits(right)?)
    }

    /// Matrices that are joined in the type that they are stored in, and through others, are those that candle joins.
    #[test]
    fn joined_elements_are_candles() -> Result<()> {
        const MATRICES: usize = 3;
        for (name, types) in [
            ("bf16", [DType::BF16, DType::BF16]),
            ("f16", [DType::F16, DType::F16]),
            ("mixed", [DType::BF16, DType::F32]),
        ] {
            let [a, b] = [(MATRICES, 4, 5), (MATRICES, 2, 5)];
            let (a, b) = (random(a, types[0])?, random(b, types[1])?);
            let (model, path) = checkpoint(name, vec![("a", a.clone()), ("b", b.clone())])?;
            let c = random((MATRICES, 1, 5), DType::F32)?;
            let all =
                || [("a", &a), ("b", &b)].map(|(n, x)| Floats::stored(n.into(), x.elem_count()));
            let decoded =
                || Ok::<_, candle_core::Error>(Floats::decoded(c.flatten_all()?.to_vec1()?));
            for with_decoded in [false, true] {
                let (mut parts, mut right) = (Vec::from(all()), vec![a.clone(), b.clone()]);
                if with_decoded {
                    parts.push(decoded()?);
                    right.push(c.clone());
                }
                let joined = Floats::joined(parts, MATRICES);
                let open = joined.open(&model)?;
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    let right =
                        right.iter().map(|x| x.to_dtype(DType::F32)).collect::<Result<Vec<_>>>()?;
                    let right = Tensor::cat(&right, 1)?.to_dtype(dtype)?;
                    let found = open.tensor(right.dims(), dtype, &Device::Cpu)?;
                    assert!(same(&found, &right)?, "{name} {dtype:?} {with_decoded}");
                }
                let is_stored = matches!(open.elements(0..joined.len())?, Elements::Bytes(..));
                assert_eq!(is_stored, name != "mixed" && !with_decoded, "{name} {with_decoded}");
                // Elements of the second matrix, from within `a` to within `b`.
                let each = joined.len() / MATRICES;
                let part = each + 7..each + 23;
                let right = open.values(0..joined.len())?[part.clone()].to_vec();
                let mut found = vec![0.; part.len()];
                open.elements(part)?.source().load(&mut found);
                assert_eq!(found, right, "{name}");
            }
            std::fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Matrices of any sizes are turned as candle turns them, in the type that they are stored in.
    #[test]
    fn turned_elements_are_candles() -> Result<()> {
        for (name, dtype) in [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)] {
            for (matrices, columns, rows) in [(1, 1, 7), (3, 5, 1), (2, 70, 33), (3, 31, 96)] {
                let stored = random((matrices, columns, rows), dtype)?;
                let name = format!("turned-{name}-{rows}");
                let (model, path) = checkpoint(&name, vec![("a", stored.clone())])?;
                let floats = Floats::turned("a".into(), stored.elem_count(), [rows, columns]);
                let open = floats.open(&model)?;
                let right = stored.transpose(1, 2)?.contiguous()?;
                let found = open.tensor(right.dims(), dtype, &Device::Cpu)?;
                assert!(same(&found, &right)?, "{name}");
                let all = open.elements(0..floats.len())?;
                assert!(matches!(all, Elements::Bytes(..)), "{name}");
                std::fs::remove_file(path)?;
            }
        }
        assert!(turned::<f32>(&[], [0, 0])?.is_empty());
        Ok(())
    }

    #[test]
    fn one_tensor_is_not_copied() -> Result<()> {
        let (model, path) = checkpoint("one", vec![("a", random((2, 3, 4), DType::BF16)?)])?;
        let floats = Floats::stored("a".into(), 24);
        let open = floats.open(&model)?;
        assert!(matches!(
            open.elements(12..24)?,
            Elements::Bytes(FloatType::Bf16, Cow::Borrowed(_))
        ));
        std::fs::remove_file(path)?;
        Ok(())
    }

    #[test]
    fn what_is_not_finite_is_refused_by_name() -> Result<()> {
        let values = Tensor::new(&[1f32, 2., f32::NAN, 4.], &Device::Cpu)?.to_dtype(DType::BF16)?;
        let (model, path) = checkpoint("odd", vec![("odd.weight", values)])?;
        let error =
            Floats::stored("odd.weight".into(), 4).open(&model).err().map(|e| e.to_string());
        assert!(error.is_some_and(|error| error.contains("odd.weight") && error.contains('2')));
        std::fs::remove_file(path)?;
        Ok(())
    }
}
