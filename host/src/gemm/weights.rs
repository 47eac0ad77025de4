//! Weights in the order in which the kernels read them.

use std::borrow::Borrow;

use fp4_formats::gemm::fold::Lost;
use fp4_formats::gemm::{Half, NextWeights};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat};

use super::check::{size, weight_rows};
use super::families::{family, of_tensor};
use super::form::{BlockRows, PlacedWeights, WeightForm};
use super::gated::Paired;
use super::{ActivationKind, GatedWeights, Weights};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result, filled};
use crate::shape::MAX_DIM;
use crate::tensor::BlockScaled;

/// Weights rearranged in host memory, once, at load.
#[derive(Clone, Debug, PartialEq)]
pub struct Repacked {
    form: WeightForm,
    batch: usize,
    /// Scales of both halves; weights that are not gated have the same twice.
    global_scales: [f32; 2],
    /// Further factors of each matrix's halves, if its tensor had its own scale.
    matrix_scales: Option<[Vec<f32>; 2]>,
    /// The matrices, then those factors.
    bytes: Vec<u8>,
    /// The loss by folding.
    lost: Lost,
}

impl Repacked {
    /// Rearranges `weights`, on all cores, for products with activations of `kind` on `device`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the device has no kernel for these formats and sizes, and for MXFP4
    /// weights that e4m3 does not hold exactly, for products in it ([`rounded`](Self::rounded) takes
    /// them); [`Error::Memory`].
    pub fn for_device<F: BlockFormat>(
        device: &Device,
        weights: &BlockScaled<F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::for_arch(device.choice().arch, weights, kind)
    }

    /// Repacks as [`for_device`](Self::for_device) does, for all devices of a target.
    ///
    /// # Errors
    /// The same as there.
    pub fn for_arch<F: BlockFormat>(
        arch: Arch,
        weights: &BlockScaled<F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::plain(arch, weights, kind)?.exactly(weights.name())
    }

    fn plain<F: BlockFormat>(
        arch: Arch,
        weights: &BlockScaled<F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::new(arch, weights, (weights.name(), None), [weights.global_scale(); 2], kind)
    }

    /// Repacks weights of either kind in the order that `device`'s kernels read, rounded if
    /// activations are e4m3 and it does not hold them ([`fold`](fp4_formats::gemm::fold)):
    /// [`lost`](Self::lost) has the changes.
    ///
    /// # Errors
    /// [`Error::Shape`] if the device has no kernel for these formats and sizes, [`Error::Memory`].
    pub fn rounded<F: BlockFormat>(
        device: &Device,
        weights: Weights<'_, F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        let arch = device.choice().arch;
        match weights {
            Weights::Plain(weights) => Self::plain(arch, weights, kind),
            Weights::Gated(weights) => Self::paired(arch, &weights, kind),
        }
    }

    /// Refuses MXFP4 weights that folding changed. NVFP4 weights are rounded by whoever asks for
    /// products in e4m3: few fit.
    fn exactly(self, name: &str) -> Result<Self> {
        match (self.form.format, self.lost.changed) {
            (Format::Nvfp4, _) | (Format::Mxfp4, 0) => Ok(self),
            (Format::Mxfp4, changed) => {
                let what = format!("scales of `{name}`");
                let required = "within 2^11 in each row, for products in fp8";
                Err(Error::shape(what, required, format!("{changed} weights that do not fit")))
            }
        }
    }

    /// Repacks gated weights as [`for_device`](Self::for_device) does: rows of both halves
    /// alternate ([`PairedRows`](fp4_formats::gemm::PairedRows)).
    ///
    /// # Errors
    /// The same as there.
    pub fn gated<F: BlockFormat>(
        device: &Device,
        weights: &GatedWeights<'_, F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::gated_for_arch(device.choice().arch, weights, kind)
    }

    /// Repacks as [`gated`](Self::gated) does, for all devices of a target.
    ///
    /// # Errors
    /// The same as there.
    pub fn gated_for_arch<F: BlockFormat>(
        arch: Arch,
        weights: &GatedWeights<'_, F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        Self::paired(arch, weights, kind)?.exactly(weights.name())
    }

    fn paired<F: BlockFormat>(
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

    /// Weights of either kind in the order that `device`'s kernels read.
    ///
    /// # Errors
    /// The same as [`for_arch`](Self::for_arch).
    pub fn of_weights<F: BlockFormat>(
        device: &Device,
        weights: Weights<'_, F>,
        kind: ActivationKind,
    ) -> Result<Self> {
        match weights {
            Weights::Plain(weights) => Self::for_device(device, weights, kind),
            Weights::Gated(weights) => Self::gated(device, &weights, kind),
        }
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
        let lost = family.repack(&form, weights, &mut bytes)?;
        Ok(Self { form, batch, global_scales, matrix_scales: None, bytes, lost })
    }

    /// Concatenates the experts' matrices, each with its own tensor scale, into the weights of one
    /// grouped product. All parts must have the same order.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are none, or their sizes or formats differ; [`Error::Memory`].
    pub fn stack(parts: &[impl Borrow<Self>]) -> Result<Self> {
        Self::stack_scaled(parts.iter().map(|part| (part.borrow(), 1.0)))
    }

    /// The same, each part [`scaled`](Self::scaled) by the factor beside it.
    ///
    /// # Errors
    /// The same as [`stack`](Self::stack).
    pub fn stack_scaled<'a>(parts: impl Iterator<Item = (&'a Self, f32)> + Clone) -> Result<Self> {
        let scaled = parts.clone();
        let parts = || parts.clone().map(|(part, _)| part);
        let Some(first) = parts().next() else {
            return Err(Error::shape("matrices to stack", "at least one", 0));
        };
        let matrices: usize = parts().map(|part| part.matrices().len()).sum();
        let batch: usize = parts().map(|part| part.batch).sum();
        let bytes = matrices + scale_bytes(batch);
        let mut all = filled("repacked weights", bytes, 0u8)?;
        let mut at = 0;
        let mut matrix_scales = [Vec::new(), Vec::new()];
        for (index, (part, factor)) in scaled.enumerate() {
            if part.form != first.form {
                let what = format!("matrix {index} to stack");
                let text = |form: &WeightForm| {
                    let WeightForm { rows, columns, gated, .. } = form;
                    format!("{rows} x {columns} {}, gated: {}", form.order(), gated.is_some())
                };
                return Err(Error::shape(what, text(&first.form), text(&part.form)));
            }
            let bytes = part.matrices();
            all[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
            for (half, scales) in matrix_scales.iter_mut().enumerate() {
                let all = part.global_scales[half] * factor;
                match &part.matrix_scales {
                    Some(own) => scales.extend(own[half].iter().map(|own| own * all)),
                    None => scales.extend(vec![all; part.batch]),
                }
            }
        }
        let (words, _) = all[matrices..].as_chunks_mut();
        for (word, scale) in words.iter_mut().zip(matrix_scales.iter().flatten()) {
            *word = scale.to_le_bytes();
        }
        Ok(Self {
            form: first.form,
            batch,
            global_scales: [1.0; 2],
            matrix_scales: Some(matrix_scales),
            bytes: all,
            lost: parts().fold(Lost::default(), |lost, part| lost.and(part.lost)),
        })
    }

    /// The same weights times `factor`, which goes to the tensor's scale.
    #[must_use]
    pub fn scaled(mut self, factor: f32) -> Self {
        self.global_scales = self.global_scales.map(|scale| scale * factor);
        self
    }

    /// The order of the bytes.
    #[must_use]
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// Matrices.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the loss by folding to e4m3; nothing if the weights are as they were.
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// The bytes, one matrix after another; behind [stacked](Self::stack) ones their scales.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of the matrices.
    fn matrices(&self) -> &[u8] {
        let scales = self.matrix_scales.as_ref().map_or(0, |_| scale_bytes(self.batch));
        &self.bytes[..self.bytes.len() - scales]
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
        let scales = self.matrix_scales.as_ref().map(|_| self.matrices().len());
        DeviceWeights { form, batch, global_scales, scales, buffer }
    }
}

/// Bytes of the scales of both halves of stacked matrices.
fn scale_bytes(batch: usize) -> usize {
    2 * batch * size_of::<f32>()
}

/// Repacked weights on a device.
#[derive(Debug)]
pub struct DeviceWeights {
    form: WeightForm,
    batch: usize,
    /// Scales of both halves; weights that are not gated have the same twice.
    global_scales: [f32; 2],
    /// Offset of further factors, `[2, batch]`: of each matrix's gate, then of the other halves.
    scales: Option<usize>,
    buffer: DeviceBuffer,
}

impl DeviceWeights {
    /// The order of the bytes.
    #[must_use]
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// Returns the number of matrices: the batch, or 1 if all entries share it.
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

    /// The matrices as a launch takes them.
    pub(super) fn placed(&self) -> PlacedWeights {
        // The batch was checked when the weights were repacked.
        PlacedWeights { form: self.form(), batch: self.batch() as u32, address: self.address() }
    }

    /// Returns the addresses of the factors of both halves of each matrix; 0 if all matrices have
    /// the same.
    pub(super) fn scale_addresses(&self) -> [u64; 2] {
        let Some(offset) = self.scales else { return [0; 2] };
        let gate = self.buffer.address() + offset as u64;
        [gate, gate + (self.batch * size_of::<f32>()) as u64]
    }

    /// Checks that all matrices have the same scale.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(super) fn require_one_scale(&self) -> Result<()> {
        match self.scales {
            None => Ok(()),
            Some(_) => {
                let required = "one for all matrices, but in a grouped product";
                Err(Error::shape("scales of the weights", required, self.batch))
            }
        }
    }

    /// Returns the part of the weights that a launch on `device`, before a product of `problems` problems with
    /// them, brings to L2.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of matrices, and weights elsewhere.
    pub(crate) fn next(&self, problems: usize, device: &Device) -> Result<NextWeights> {
        if self.batch != problems {
            let what = "matrices of the next product's weights";
            return Err(Error::shape(what, problems.to_string(), self.batch));
        }
        self.buffer.require_on("the next product's weights", device)?;
        Ok(of_tensor(self.form.tensor).next_weights(self.placed()))
    }

    /// The device address of the bytes. A kernel or a copy that writes them must have ended before
    /// a product with these weights is launched.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.buffer.address()
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the buffer. No call hands it out: products read weights before the work before them
    /// in the stream has ended, so no launch may name it as its output.
    pub(super) fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }
}
