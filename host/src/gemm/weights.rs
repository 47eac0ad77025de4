//! Weights in the order in which the kernels read them.

use fp4_formats::arch::TensorFamily;
use fp4_formats::gemm::blackwell::prepare::PreparedBlocks;
use fp4_formats::gemm::hopper::repack::{CHUNK_COLUMNS, CHUNK_ROWS};
use fp4_formats::gemm::hopper::{Operand, Scheme, WeightLayout};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, pack};
use rayon::prelude::*;

use super::check::{scheme, size};
use super::{ActivationKind, blackwell, format_of};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result, filled};
use crate::shape::MAX_DIM;
use crate::tensor::BlockScaled;

/// The order of repacked weights: that of an architecture's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// sm_90a: the order in which threads decode them.
    Hopper(WeightLayout),
    /// sm_100a: as they are, padded for the copy engine.
    Blackwell(PreparedBlocks),
}

impl WeightForm {
    /// Rows of a matrix, N.
    #[must_use]
    pub fn rows(&self) -> u32 {
        match self {
            Self::Hopper(layout) => layout.rows,
            Self::Blackwell(blocks) => blocks.rows,
        }
    }

    /// Columns of a matrix, K.
    #[must_use]
    pub fn columns(&self) -> u32 {
        match self {
            Self::Hopper(layout) => layout.columns,
            Self::Blackwell(blocks) => blocks.columns,
        }
    }

    /// Format that they were repacked from.
    #[must_use]
    pub fn format(&self) -> Format {
        match self {
            Self::Hopper(layout) => layout.scheme.format,
            Self::Blackwell(blocks) => blocks.format,
        }
    }
}

/// Weights rearranged in host memory, once, at load.
#[derive(Clone, Debug, PartialEq)]
pub struct Repacked {
    form: WeightForm,
    batch: usize,
    global_scale: f32,
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
        match device.choice().arch.tensor() {
            TensorFamily::Tcgen05 => {
                let (form, bytes) = blackwell::repack(weights, kind)?;
                let (batch, global_scale) = (weights.dims().batch(), weights.global_scale());
                Ok(Self { form: WeightForm::Blackwell(form), batch, global_scale, bytes })
            }
            TensorFamily::Wgmma => Self::new(weights, kind.operand()),
        }
    }

    /// Rearranges `weights`, on all cores, for products on sm_90a with activations of type
    /// `operand`.
    ///
    /// # Errors
    /// [`Error::Shape`] where no kernel takes the format with this type or the sizes,
    /// [`Error::Memory`].
    pub fn new<F: BlockFormat>(weights: &BlockScaled<F>, operand: Operand) -> Result<Self> {
        let scheme = scheme(format_of::<F>(), operand)?;
        let dims = weights.dims();
        let (rows, columns) = (size("N", dims.rows(), MAX_DIM)?, size("K", dims.cols(), MAX_DIM)?);
        let layout = WeightLayout { scheme, rows, columns };
        let bytes = layout.bytes().and_then(|bytes| usize::try_from(bytes).ok());
        let total = bytes.and_then(|bytes| bytes.checked_mul(dims.batch()));
        let total = total.ok_or_else(|| Error::Overflow {
            what: format!("repacked `{}`", weights.name()),
            detail: format!("{} x {rows} x {columns}", dims.batch()),
        })?;
        let mut bytes = filled("repacked weights", total, 0u8)?;
        let chunks = bytes.par_chunks_exact_mut(scheme.chunk_bytes() as usize);
        let across = layout.column_chunks() as usize;
        let down = layout.row_chunks() as usize;
        chunks.enumerate().for_each(|(index, chunk)| {
            let (row_chunk, column_chunk) = (index / across, index % across);
            let (batch, row_chunk) = (row_chunk / down, row_chunk % down);
            let corner = [row_chunk * CHUNK_ROWS as usize, column_chunk * CHUNK_COLUMNS as usize];
            fill(scheme, chunk, weights, batch, corner);
        });
        let form = WeightForm::Hopper(layout);
        Ok(Self { form, batch: dims.batch(), global_scale: weights.global_scale(), bytes })
    }

    /// The order of the bytes.
    #[must_use]
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// The bytes, a matrix after the other.
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

    /// Copies them to memory that is there: a buffer of their size, or a view of the caller's.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another size, [`DeviceError`](crate::device::DeviceError).
    pub fn upload_to(&self, buffer: DeviceBuffer) -> Result<DeviceWeights> {
        buffer.write(&self.bytes)?;
        Ok(self.over(buffer))
    }

    /// These weights, which are in `buffer`.
    fn over(&self, buffer: DeviceBuffer) -> DeviceWeights {
        let Self { form, batch, global_scale, .. } = *self;
        DeviceWeights { form, batch, global_scale, buffer }
    }
}

/// Makes one chunk, whose first row and column are `corner`.
fn fill<F: BlockFormat>(
    scheme: Scheme,
    chunk: &mut [u8],
    weights: &BlockScaled<F>,
    batch: usize,
    [row, column]: [usize; 2],
) {
    let dims = weights.dims();
    let rows: Vec<&[u8]> = (row..dims.rows().min(row + CHUNK_ROWS as usize))
        .map(|row| weights.row_codes(batch, row))
        .collect();
    let code = |r: u32, c: u32| {
        let (row, column) = (r as usize, column + c as usize);
        if row >= rows.len() || column >= dims.cols() {
            return 0;
        }
        let (low, high) = pack::unpair(rows[row][column / 2]);
        if column.is_multiple_of(2) { low } else { high }
    };
    let scale = |r: u32, block: u32| {
        let (row, block) = (row + r as usize, column / F::BLOCK + block as usize);
        if row >= dims.rows() || block >= weights.kblocks() {
            return 0;
        }
        weights.scale_byte(batch, row, block)
    };
    scheme.fill_chunk(chunk, code, scale);
}

/// Repacked weights on a device.
#[derive(Debug)]
pub struct DeviceWeights {
    form: WeightForm,
    batch: usize,
    global_scale: f32,
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

    /// Scale of the whole tensor.
    #[must_use]
    pub fn global_scale(&self) -> f32 {
        self.global_scale
    }

    /// The bytes.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }
}
