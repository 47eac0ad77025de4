//! Weights in the order in which the kernels read them.

use fp4_formats::gemm::Half;
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat, HalfType, ScaleLayout, TensorFamily};

use super::check::{size, weight_rows};
use super::family::family;
use super::gated::Paired;
use super::{ActivationKind, GatedWeights, format_of};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result, filled};
use crate::shape::MAX_DIM;
use crate::tensor::{BlockScaled, Dims};

/// The order of repacked weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightForm {
    /// The tensor cores whose kernels read it.
    pub tensor: TensorFamily,
    /// Format that the weights were repacked from.
    pub format: Format,
    /// The type of activations that the order depends on: those that weights are decoded to for
    /// `wgmma`. None where any activations take the same order.
    pub activations: Option<HalfType>,
    /// Rows of a matrix: N, or those of both halves of gated weights.
    pub rows: u32,
    /// Columns of a matrix, K.
    pub columns: u32,
    /// Of gated weights, whose rows are those of gate and up by turns: N of the result.
    pub gated: Option<u32>,
}

impl WeightForm {
    /// Whether two rows make a column of the result.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gated.is_some()
    }

    /// N of the result.
    #[must_use]
    pub fn result_columns(&self) -> u32 {
        self.gated.unwrap_or(self.rows)
    }

    /// The order, sizes left out.
    pub(super) fn order(&self) -> String {
        let Self { tensor, format, activations, .. } = self;
        let activations = activations.map_or(String::new(), |activations| {
            format!(" for {} activations", activations.name())
        });
        format!("{} in the order of {}{activations}", format.name(), tensor.name())
    }

    /// Whether it differs from `other` in sizes at most, and in whether it is gated.
    pub(super) fn same_order(&self, other: &Self) -> bool {
        let &Self { rows, columns, gated, .. } = other;
        Self { rows, columns, gated, ..*self } == *other
    }
}

/// A batch of block-scaled matrices, whatever their format.
pub(super) trait BlockRows: Sync {
    /// Format of codes and scales.
    fn format(&self) -> Format;
    /// Batch, rows, columns.
    fn dims(&self) -> Dims;
    /// Packed codes of a row.
    fn row_codes(&self, batch: usize, row: usize) -> &[u8];
    /// A scale byte.
    fn scale_byte(&self, batch: usize, row: usize, block: usize) -> u8;
    /// All scales in the 128x4 layout, zeros in the padding.
    ///
    /// # Errors
    /// [`Error::Memory`].
    fn blocked_scales(&self) -> Result<Vec<u8>>;
}

impl<F: BlockFormat> BlockRows for BlockScaled<F> {
    fn format(&self) -> Format {
        format_of::<F>()
    }

    fn dims(&self) -> Dims {
        self.dims()
    }

    fn row_codes(&self, batch: usize, row: usize) -> &[u8] {
        self.row_codes(batch, row)
    }

    fn scale_byte(&self, batch: usize, row: usize, block: usize) -> u8 {
        self.scale_byte(batch, row, block)
    }

    fn blocked_scales(&self) -> Result<Vec<u8>> {
        Ok(self.to_layout(ScaleLayout::Blocked128x4)?.scales().to_vec())
    }
}

/// Weights rearranged in host memory, once, at load.
#[derive(Clone, Debug, PartialEq)]
pub struct Repacked {
    form: WeightForm,
    batch: usize,
    global_scales: [f32; 2],
    bytes: Vec<u8>,
}

impl Repacked {
    /// Rearranges `weights`, on all cores, for products with activations of `kind` on `device`.
    ///
    /// # Errors
    /// [`Error::Shape`] where the device has no kernel for these formats and sizes,
    /// [`Error::Memory`].
    pub fn for_device<F: BlockFormat>(
        device: &Device,
        weights: &BlockScaled<F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::for_arch(device.choice().arch, weights, kind)
    }

    /// [`for_device`](Self::for_device) for all devices of a target.
    ///
    /// # Errors
    /// As there.
    pub fn for_arch<F: BlockFormat>(
        arch: Arch,
        weights: &BlockScaled<F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::new(arch, weights, (weights.name(), None), [weights.global_scale(); 2], kind)
    }

    /// [`for_device`](Self::for_device) of gated weights: rows of both halves by turns
    /// ([`PairedRows`](fp4_formats::gemm::PairedRows)).
    ///
    /// # Errors
    /// As there.
    pub fn gated<F: BlockFormat>(
        device: &Device,
        weights: &GatedWeights<'_, F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::gated_for_arch(device.choice().arch, weights, kind)
    }

    /// [`gated`](Self::gated) for all devices of a target.
    ///
    /// # Errors
    /// As there.
    pub fn gated_for_arch<F: BlockFormat>(
        arch: Arch,
        weights: &GatedWeights<'_, F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        let n = weights.dims().rows();
        let paired = Paired::new(*weights, weight_rows(n, true)?)?;
        let scales = [Half::Gate, Half::Up].map(|half| weights.global_scale(half));
        // It fits, as twice as many do.
        Self::new(arch, &paired, (weights.name(), Some(n as u32)), scales, kind)
    }

    fn new(
        arch: Arch,
        weights: &dyn BlockRows,
        (name, gated): (&str, Option<u32>),
        global_scales: [f32; 2],
        kind: ActivationKind,
    ) -> Result<Self> {
        let (family, dims) = (family(arch), weights.dims());
        let sizes = [size("N", dims.rows(), MAX_DIM)?, size("K", dims.cols(), MAX_DIM)?];
        let batch = size("batch", dims.batch(), MAX_DIM)? as usize;
        let form = family.weight_form(weights.format(), kind, sizes)?;
        let form = WeightForm { gated, ..form };
        let total = family.weight_bytes(&form, batch).ok_or_else(|| Error::Overflow {
            what: format!("repacked `{name}`"),
            detail: format!("{batch} x {} x {}", dims.rows(), dims.cols()),
        })?;
        let mut bytes = filled("repacked weights", total, 0u8)?;
        family.repack(&form, weights, &mut bytes)?;
        Ok(Self { form, batch, global_scales, bytes })
    }

    /// The order of the bytes.
    #[must_use]
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// The bytes, one matrix after another.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies them to a device.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn upload(&self, device: &Device) -> Result<DeviceWeights> {
        Ok(self.over(DeviceBuffer::upload(device, "repacked weights", &self.bytes)?))
    }

    /// Copies them to existing memory: a buffer of their size, or a view of the caller's.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another size, [`DeviceError`](crate::device::DeviceError).
    pub fn upload_to(&self, buffer: DeviceBuffer) -> Result<DeviceWeights> {
        buffer.write(&self.bytes)?;
        Ok(self.over(buffer))
    }

    /// These weights, which are in `buffer`.
    fn over(&self, buffer: DeviceBuffer) -> DeviceWeights {
        let Self { form, batch, global_scales, .. } = *self;
        DeviceWeights { form, batch, global_scales, buffer }
    }
}

/// Repacked weights on a device.
#[derive(Debug)]
pub struct DeviceWeights {
    form: WeightForm,
    batch: usize,
    /// Of both halves; of weights that are not gated, twice the same.
    global_scales: [f32; 2],
    buffer: DeviceBuffer,
}

impl DeviceWeights {
    /// The order of the bytes.
    #[must_use]
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// Matrices: the batch, or 1 where all entries share it.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Scale of the whole tensor; of gated weights, of the gate's.
    #[must_use]
    pub fn global_scale(&self) -> f32 {
        self.half_scale(Half::Gate)
    }

    /// Scale of the tensor that a half of gated weights was in; of weights that are not gated, of
    /// the only tensor.
    #[must_use]
    pub fn half_scale(&self, half: Half) -> f32 {
        let [gate, up] = self.global_scales;
        match half {
            Half::Gate => gate,
            Half::Up => up,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }
}
