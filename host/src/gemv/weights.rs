//! Weights with their scales in the layout that kernels read fastest.

use std::borrow::Cow;

use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout};

use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::Result;
use crate::shape::GemvShape;
use crate::tensor::{BlockScaled, Dims, byte_counts, relaid};

/// The sizes of weights and the order of their scales. Codes are `[L, M, K/2]` in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightForm {
    /// M, K and L.
    pub shape: GemvShape,
    /// Layout of the scales before they were loaded.
    pub stored: ScaleLayout,
    /// Layout in which kernels read them.
    pub scales: ScaleLayout,
}

impl WeightForm {
    /// Weights whose scales are read as they are stored.
    #[must_use]
    pub fn as_stored(shape: GemvShape, layout: ScaleLayout) -> Self {
        Self { shape, stored: layout, scales: layout }
    }

    /// Whether the scales change their layout at load.
    #[must_use]
    pub fn is_repacked(&self) -> bool {
        self.stored != self.scales
    }

    /// Returns the bytes of all scales in the layouts `stored` and `scales`, padding included,
    /// which repacking reads and writes once.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::error::Error::Shape) for sizes that are zero or a K that is not a multiple
    /// of 16, [`Error::Overflow`](crate::error::Error::Overflow).
    pub fn scale_bytes(&self) -> Result<[usize; 2]> {
        let dims = self.dims()?;
        let (_, stored) = byte_counts::<Nvfp4>("the weights", dims, self.stored)?;
        let (_, read) = byte_counts::<Nvfp4>("the weights", dims, self.scales)?;
        Ok([stored, read])
    }

    fn dims(&self) -> Result<Dims> {
        let GemvShape { m, k, l } = self.shape;
        Dims::new(l, m, k)
    }

    /// `scales` of these sizes, from the layout `stored` to the layout `scales`.
    fn relaid(&self, scales: &[u8]) -> Result<Vec<u8>> {
        let kblocks = self.shape.k / Nvfp4::BLOCK;
        relaid(scales, self.dims()?, kblocks, [self.stored, self.scales])
    }
}

/// NVFP4 weights in host memory, their scales in a layout chosen at load.
///
/// Linear scales are the fastest for every shape. Codes have one order only, so they are borrowed.
///
/// ```
/// use nvfp4::ScaleLayout::{Blocked128x4, Linear};
/// use nvfp4::buffer::DeviceBuffer;
/// use nvfp4::device::{Device, DeviceRequest};
/// use nvfp4::gemv::{Gemv, GemvOptions, Repacked};
/// use nvfp4::quantize::{TensorScale, quantize};
/// use nvfp4::tensor::Dims;
///
/// # fn main() -> nvfp4::error::Result<()> {
/// let device = Device::open(&DeviceRequest::Auto)?;
/// let kernels = device.kernels(None)?;
/// let scale = TensorScale::FromAmax;
/// let weight = quantize("w", &[0.5; 40 * 64], Dims::new(1, 40, 64)?, scale, Blocked128x4)?;
/// let input = quantize("x", &[3.0; 64], Dims::new(1, 1, 64)?, scale, Linear)?;
///
/// // Once, at load.
/// let weights = Repacked::new(&weight, Linear)?.upload(&device)?;
/// let options = GemvOptions::new().activation_scale(input.global_scale());
/// let product = Gemv::of_weights(&kernels, weights.form(), Linear, options)?;
/// assert!(product.plan().kernel.starts_with("gemv_nvfp4_linear"));
///
/// let codes = DeviceBuffer::upload(&device, "a codes", input.codes())?;
/// let scales = DeviceBuffer::upload(&device, "a scales", input.scales())?;
/// let out = DeviceBuffer::poisoned(&device, "c", product.out_bytes())?;
/// product.launch_weights([&codes, &scales], &weights, &out)?;
/// let values = nvfp4::floats::decode(product.output(), &out.read()?);
/// assert!(values.iter().all(|c| (c - 96.0).abs() < 0.1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Repacked<'a> {
    name: &'a str,
    form: WeightForm,
    codes: &'a [u8],
    scales: Cow<'a, [u8]>,
    global_scale: f32,
}

impl<'a> Repacked<'a> {
    /// `weights` with their scales in `layout`, on all cores; borrowed if they are in it already. Padding
    /// of the stored layout is not read, and new padding is zero.
    ///
    /// # Errors
    /// [`Error::Overflow`](crate::error::Error::Overflow) or
    /// [`Error::Memory`](crate::error::Error::Memory) if the scales do not fit.
    pub fn new(weights: &'a BlockScaled<Nvfp4>, layout: ScaleLayout) -> Result<Self> {
        let dims = weights.dims();
        let shape = GemvShape { m: dims.rows(), k: dims.cols(), l: dims.batch() };
        let form = WeightForm { shape, stored: weights.layout(), scales: layout };
        let scales = match form.is_repacked() {
            true => Cow::Owned(form.relaid(weights.scales())?),
            false => Cow::Borrowed(weights.scales()),
        };
        let (name, codes) = (weights.name(), weights.codes());
        Ok(Self { name, form, codes, scales, global_scale: weights.global_scale() })
    }

    /// The tensor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// Sizes, and the order of the scales.
    #[must_use]
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// Scale of the whole tensor.
    #[must_use]
    pub fn global_scale(&self) -> f32 {
        self.global_scale
    }

    /// Copies them to a device.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn upload(&self, device: &Device) -> Result<DeviceWeights> {
        let codes = DeviceBuffer::upload(device, "b codes", self.codes)?;
        let scales = DeviceBuffer::upload(device, "b scales", &self.scales)?;
        let &Self { form, global_scale, .. } = self;
        Ok(DeviceWeights { form, global_scale, codes, scales })
    }
}

/// Weights on a device, complete: a launch may read them before the stream's work before it has ended.
#[derive(Debug)]
pub struct DeviceWeights {
    form: WeightForm,
    global_scale: f32,
    codes: DeviceBuffer,
    scales: DeviceBuffer,
}

impl DeviceWeights {
    /// Weights that are in device memory: codes, scales, and the scale of the whole tensor. This waits for
    /// the device, whose work may be making them. Scales that change their layout are copied to the host,
    /// rearranged and copied to their own memory; the buffer they were in is dropped. All of its bytes
    /// must have been written, padding included.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::error::Error::Shape) for buffers of other sizes than the form's,
    /// [`Error::Overflow`](crate::error::Error::Overflow),
    /// [`Error::Memory`](crate::error::Error::Memory), and
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn from_buffers(
        device: &Device,
        form: WeightForm,
        [codes, scales]: [DeviceBuffer; 2],
        global_scale: f32,
    ) -> Result<Self> {
        let (code_bytes, _) = byte_counts::<Nvfp4>("the weights", form.dims()?, form.stored)?;
        let [stored, _] = form.scale_bytes()?;
        codes.checked("the weights' codes", code_bytes, device)?;
        scales.checked("the weights' scales", stored, device)?;
        // Launches read weights while the kernel before them runs.
        device.wait()?;
        let scales = match form.is_repacked() {
            true => DeviceBuffer::upload(device, "b scales", &form.relaid(&scales.read()?)?)?,
            false => scales,
        };
        Ok(Self { form, global_scale, codes, scales })
    }

    /// Sizes, and the order of the scales.
    #[must_use]
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// Scale of the whole tensor.
    #[must_use]
    pub fn global_scale(&self) -> f32 {
        self.global_scale
    }

    /// Packed codes `[L, M, K/2]`.
    #[must_use]
    pub fn codes(&self) -> &DeviceBuffer {
        &self.codes
    }

    /// Scales: for each batch entry a matrix of M rows in the form's layout.
    #[must_use]
    pub fn scales(&self) -> &DeviceBuffer {
        &self.scales
    }
}
