//! Tensors on GPUs: candle's memory is lent to launches on the stream of its device.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::{DType, Layout};
use half::{bf16, f16};
use nvfp4::buffer::{DeviceBuffer, VIEW_ALIGNMENT};
use nvfp4::cudarc::driver::DeviceRepr;
use nvfp4::cudarc::{Element, read, write};
use nvfp4::device::Device;
use nvfp4::{FloatType, HalfType};

use crate::engine::{Computer, Engine, dtype, float_type};
use crate::error::{shape, wrap};
use crate::results;

type Result<T, E = candle_core::Error> = std::result::Result<T, E>;

/// An error of candle's or of the library's.
pub(crate) struct Failed(pub candle_core::Error);

impl From<nvfp4::Error> for Failed {
    fn from(error: nvfp4::Error) -> Self {
        Self(wrap(error))
    }
}

impl From<candle_core::Error> for Failed {
    fn from(error: candle_core::Error) -> Self {
        Self(error)
    }
}

/// The device of an engine's kernels.
fn device(engine: &Engine) -> nvfp4::Result<&Device> {
    match engine.place() {
        Computer::Kernels(kernels) => Ok(kernels.device()),
        Computer::Reference => Err(nvfp4::Error::WrongDevice {
            field: "the activations".into(),
            required: "on the CPU, as the reference".into(),
            actual: "on a GPU".into(),
        }),
    }
}

/// Activations in an engine's 16-bit type, one after the other, at a multiple of 16 bytes.
pub(crate) struct Halves<'a> {
    half: HalfType,
    source: Source<'a>,
}

enum Source<'a> {
    /// Elements from a place on, so many.
    Given(&'a CudaStorage, usize, usize),
    Copied(CudaStorage),
}

impl<'a> Halves<'a> {
    /// Activations as they are, or a copy.
    pub fn of(storage: &'a CudaStorage, layout: &Layout, engine: &Engine) -> Result<Self> {
        let half = engine.half();
        float_type(storage.dtype(), "the activations")?;
        let source = match layout.contiguous_offsets() {
            Some((start, end))
                if storage.dtype() == dtype(half.float())
                    && (start as u64 * 2).is_multiple_of(VIEW_ALIGNMENT) =>
            {
                Source::Given(storage, start, end)
            }
            Some(_) | None => Source::Copied(storage.to_dtype(layout, dtype(half.float()))?),
        };
        Ok(Self { half, source })
    }

    /// Lends them to launches.
    pub fn lend<R>(
        &self,
        engine: &Engine,
        launch: impl FnOnce(&DeviceBuffer) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        match self.half {
            HalfType::F16 => self.lend_as::<f16, R>(engine, launch),
            HalfType::Bf16 => self.lend_as::<bf16, R>(engine, launch),
        }
    }

    fn lend_as<T: CudaDType + Element, R>(
        &self,
        engine: &Engine,
        launch: impl FnOnce(&DeviceBuffer) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        let device = device(engine)?;
        match &self.source {
            Source::Given(storage, start, end) => {
                let view = storage.as_cuda_slice::<T>()?.slice(*start..*end);
                read(device, "activations", &view, launch)
            }
            Source::Copied(storage) => {
                read(device, "activations", storage.as_cuda_slice::<T>()?, launch)
            }
        }
    }
}

/// Ids as u32, one after the other.
pub(crate) struct Ids<'a>(IdsSource<'a>);

enum IdsSource<'a> {
    /// Elements from a place on, so many.
    Given(&'a CudaStorage, usize, usize),
    Copied(CudaStorage),
}

impl<'a> Ids<'a> {
    pub fn of(storage: &'a CudaStorage, layout: &Layout) -> Result<Self> {
        match (storage.dtype(), layout.contiguous_offsets()) {
            (DType::U32, Some((start, end)))
                if (start as u64 * 4).is_multiple_of(VIEW_ALIGNMENT) =>
            {
                Ok(Self(IdsSource::Given(storage, start, end)))
            }
            (DType::U8 | DType::U32 | DType::I32 | DType::I64, _) => {
                Ok(Self(IdsSource::Copied(storage.to_dtype(layout, DType::U32)?)))
            }
            (other, _) => Err(shape("type of the ids", "u8, u32, i32 or i64", other.as_str())),
        }
    }

    pub fn lend<R>(
        &self,
        engine: &Engine,
        launch: impl FnOnce(&DeviceBuffer) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        let device = device(engine)?;
        match &self.0 {
            IdsSource::Given(storage, start, end) => {
                let view = storage.as_cuda_slice::<u32>()?.slice(*start..*end);
                read(device, "ids", &view, launch)
            }
            IdsSource::Copied(storage) => {
                read(device, "ids", storage.as_cuda_slice::<u32>()?, launch)
            }
        }
    }
}

/// Lends the memory of `storage`, floats that are copied unless they follow each other from a multiple of 16 bytes on.
pub(crate) fn lend<R>(
    engine: &Engine,
    storage: &CudaStorage,
    layout: &Layout,
    launch: impl FnOnce(&DeviceBuffer) -> Result<R, Failed>,
) -> Result<R, Failed> {
    match float_type(storage.dtype(), "a tensor")? {
        FloatType::F32 => lend_as::<f32, R>(engine, storage, layout, launch),
        FloatType::F16 => lend_as::<f16, R>(engine, storage, layout, launch),
        FloatType::Bf16 => lend_as::<bf16, R>(engine, storage, layout, launch),
    }
}

fn lend_as<T: CudaDType + Element, R>(
    engine: &Engine,
    storage: &CudaStorage,
    layout: &Layout,
    launch: impl FnOnce(&DeviceBuffer) -> Result<R, Failed>,
) -> Result<R, Failed> {
    let device = device(engine)?;
    match layout.contiguous_offsets() {
        Some((start, end)) if ((start * size_of::<T>()) as u64).is_multiple_of(VIEW_ALIGNMENT) => {
            let view = storage.as_cuda_slice::<T>()?.slice(start..end);
            read(device, "a tensor", &view, launch)
        }
        Some(_) | None => {
            let copied = storage.to_dtype(layout, storage.dtype())?;
            read(device, "a tensor", copied.as_cuda_slice::<T>()?, launch)
        }
    }
}

/// A new result of the type of `like`, which `launch` writes whole.
pub(crate) fn result(
    engine: &Engine,
    like: &CudaStorage,
    elements: usize,
    launch: impl FnOnce(&DeviceBuffer, FloatType) -> Result<(), Failed>,
) -> Result<CudaStorage> {
    let output = float_type(like.dtype(), "the activations")?;
    let result = match output {
        FloatType::F32 => new::<f32>(engine, like, elements, |y| launch(y, output)),
        FloatType::F16 => new::<f16>(engine, like, elements, |y| launch(y, output)),
        FloatType::Bf16 => new::<bf16>(engine, like, elements, |y| launch(y, output)),
    };
    result.map_err(|Failed(error)| error)
}

/// A new result of the engine's 16-bit type, as `like` is, which `launch` writes whole.
#[cfg(feature = "models")]
pub(crate) fn new_halves(
    engine: &Engine,
    like: &CudaStorage,
    elements: usize,
    launch: impl FnOnce(&DeviceBuffer) -> Result<(), Failed>,
) -> Result<CudaStorage> {
    let required = dtype(engine.half().float());
    if like.dtype() != required {
        let actual = like.dtype().as_str();
        return Err(shape("type of the activations", required.as_str(), actual));
    }
    result(engine, like, elements, |y, _| launch(y))
}

fn new<T: CudaDType + DeviceRepr + Element>(
    engine: &Engine,
    like: &CudaStorage,
    elements: usize,
    launch: impl FnOnce(&DeviceBuffer) -> Result<(), Failed>,
) -> Result<CudaStorage, Failed> {
    // SAFETY: the launches write every element; if one fails, nobody gets the memory.
    let mut out = unsafe { results::allocate::<T>(like.device(), elements)? };
    write(device(engine)?, "result", &mut out, launch)?;
    Ok(CudaStorage::wrap_cuda_slice(out, like.device().clone()))
}

/// Lends the memory of `y`, whose elements follow each other, to be written.
pub(crate) fn into(
    engine: &Engine,
    y: &mut CudaStorage,
    layout: &Layout,
    launch: impl FnOnce(&DeviceBuffer, FloatType) -> Result<(), Failed>,
) -> Result<()> {
    let output = float_type(y.dtype(), "the result")?;
    let Some(place) = layout.contiguous_offsets() else {
        return Err(shape("layout of the result on a GPU", "contiguous", layout.stride()));
    };
    let result = match output {
        FloatType::F32 => existing::<f32>(engine, y, place, |y| launch(y, output)),
        FloatType::F16 => existing::<f16>(engine, y, place, |y| launch(y, output)),
        FloatType::Bf16 => existing::<bf16>(engine, y, place, |y| launch(y, output)),
    };
    result.map_err(|Failed(error)| error)
}

fn existing<T: CudaDType + Element>(
    engine: &Engine,
    y: &mut CudaStorage,
    (start, end): (usize, usize),
    launch: impl FnOnce(&DeviceBuffer) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut part = y.as_cuda_slice_mut::<T>()?.slice_mut(start..end);
    write(device(engine)?, "result", &mut part, launch)
}
