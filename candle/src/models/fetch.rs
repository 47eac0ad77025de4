//! Results of a step on their way from a GPU, while further work is queued.

#[cfg(feature = "cuda")]
pub(super) use gpu::Fetch;
#[cfg(not(feature = "cuda"))]
pub(super) use nowhere::Fetch;

#[cfg(feature = "cuda")]
mod gpu {
    use candle_core::cuda_backend::cudarc::driver::{
        CudaEvent, DeviceRepr, PinnedHostSlice, ValidAsZeroBits,
    };
    use candle_core::cuda_backend::{CudaDType, WrapErr};
    use candle_core::{CudaDevice, DType, Device, Result, Storage, Tensor};
    use half::{bf16, f16};

    use crate::error::shape;

    /// Memory of the host that a GPU copies a step's likeliest tokens and sums to.
    pub struct Fetch {
        sums: Sums,
        likeliest: PinnedHostSlice<u32>,
        /// The end of the copies. The event of pinned memory itself is not recorded while candle leaves the order of streams
        /// to its callers.
        copied: Option<CudaEvent>,
    }

    /// Sums of logits, of the type of activations.
    enum Sums {
        Bf16(PinnedHostSlice<bf16>),
        F16(PinnedHostSlice<f16>),
    }

    impl Fetch {
        /// Memory for the sums of so many texts, in the type `dtype`, on a device with pinned memory. `None` elsewhere.
        pub fn new(device: &Device, dtype: DType, texts: usize) -> Result<Option<Self>> {
            let Device::Cuda(gpu) = device else { return Ok(None) };
            let sums = match dtype {
                DType::BF16 => Sums::Bf16(pinned(gpu, texts)?),
                DType::F16 => Sums::F16(pinned(gpu, texts)?),
                _ => return Ok(None),
            };
            Ok(Some(Self { sums, likeliest: pinned(gpu, texts)?, copied: None }))
        }

        /// Queues the copies.
        pub fn queue(&mut self, sums: &Tensor, likeliest: &Tensor) -> Result<()> {
            match &mut self.sums {
                Sums::Bf16(to) => copy(sums, to)?,
                Sums::F16(to) => copy(sums, to)?,
            }
            copy(likeliest, &mut self.likeliest)?;
            if let Device::Cuda(gpu) = likeliest.device() {
                self.copied = Some(gpu.cuda_stream().record_event(None).w()?);
            }
            Ok(())
        }

        /// Waits for the copies: the sums, and the likeliest tokens.
        pub fn wait(&self) -> Result<(Vec<f32>, Vec<u32>)> {
            if let Some(copied) = &self.copied {
                copied.synchronize().w()?;
            }
            let sums = match &self.sums {
                Sums::Bf16(sums) => sums.as_slice().w()?.iter().map(|sum| sum.to_f32()).collect(),
                Sums::F16(sums) => sums.as_slice().w()?.iter().map(|sum| sum.to_f32()).collect(),
            };
            Ok((sums, self.likeliest.as_slice().w()?.to_vec()))
        }
    }

    /// Zeros in memory of the host that the GPU copies to.
    fn pinned<T: DeviceRepr + ValidAsZeroBits + Default>(
        gpu: &CudaDevice,
        elements: usize,
    ) -> Result<PinnedHostSlice<T>> {
        // SAFETY: the elements are written before they are read.
        let memory = unsafe { gpu.cuda_stream().context().alloc_pinned::<T>(elements) };
        let mut memory = memory.w()?;
        memory.as_mut_slice().w()?.fill_with(T::default);
        Ok(memory)
    }

    /// Queues the copy of all elements of `from`, which follow each other.
    fn copy<T: CudaDType + DeviceRepr>(from: &Tensor, to: &mut PinnedHostSlice<T>) -> Result<()> {
        let (storage, layout) = from.storage_and_layout();
        let (Storage::Cuda(storage), Some((begin, end))) = (&*storage, layout.contiguous_offsets())
        else {
            return Err(shape(
                "results of a step",
                "contiguous, on a GPU",
                from.device().location(),
            ));
        };
        let device = storage.device.clone();
        device.memcpy_dtoh(&storage.as_cuda_slice::<T>()?.slice(begin..end), to)
    }
}

#[cfg(not(feature = "cuda"))]
mod nowhere {
    use candle_core::{DType, Device, Result, Tensor};

    /// No device copies while others wait.
    pub enum Fetch {}

    impl Fetch {
        /// `None`.
        #[expect(clippy::unnecessary_wraps, reason = "a GPU's may fail")]
        pub fn new(_: &Device, _: DType, _: usize) -> Result<Option<Self>> {
            Ok(None)
        }

        /// Cannot be called.
        pub fn queue(&mut self, _: &Tensor, _: &Tensor) -> Result<()> {
            match *self {}
        }

        /// Cannot be called.
        pub fn wait(&self) -> Result<(Vec<f32>, Vec<u32>)> {
            match *self {}
        }
    }
}
