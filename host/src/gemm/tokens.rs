//! A matrix of tokens in device memory of its own: activations, a result, or one that becomes the other.

use fp4_formats::BlockFormat;

use super::{ActivationBuffers, Activations, ResultBuffers};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::Result;

/// Floats, or codes with their scales.
#[derive(Debug)]
pub(crate) struct TokenBuffers {
    /// Floats or codes.
    elements: DeviceBuffer,
    scales: Scales,
}

/// The scales of the elements.
#[derive(Debug)]
enum Scales {
    None,
    /// Scales of blocks of codes.
    Blocks(DeviceBuffer),
    /// Scales of blocks of codes, and of rows.
    RowsOfBlocks(DeviceBuffer, DeviceBuffer),
    /// Scales of rows of e4m3.
    Rows(DeviceBuffer),
}

impl Scales {
    fn buffer(&self) -> Option<&DeviceBuffer> {
        match self {
            Self::None => None,
            Self::Blocks(buffer) | Self::RowsOfBlocks(buffer, _) | Self::Rows(buffer) => {
                Some(buffer)
            }
        }
    }

    /// The scales of rows beside those of blocks.
    fn of_rows(&self) -> Option<&DeviceBuffer> {
        match self {
            Self::RowsOfBlocks(_, rows) => Some(rows),
            Self::None | Self::Blocks(_) | Self::Rows(_) => None,
        }
    }
}

impl TokenBuffers {
    /// Copies activations.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn upload<F: BlockFormat>(device: &Device, a: &Activations<'_, F>) -> Result<Self> {
        let upload = |name: &str, bytes: &[u8]| DeviceBuffer::upload(device, name, bytes);
        Ok(match a {
            Activations::Blocks(blocks) => Self {
                elements: upload("a codes", blocks.codes())?,
                scales: Scales::Blocks(upload("a scales", blocks.scales())?),
            },
            Activations::ScaledRows(scaled) => Self {
                elements: upload("a codes", scaled.blocks().codes())?,
                scales: Scales::RowsOfBlocks(
                    upload("a scales", scaled.blocks().scales())?,
                    upload("a row scales", &scaled.scale_bytes())?,
                ),
            },
            Activations::Halves(halves) | Activations::ToFp8(halves) => {
                Self { elements: upload("a", halves.bytes())?, scales: Scales::None }
            }
            Activations::Fp8(bytes) => Self {
                elements: upload("a", bytes.codes())?,
                scales: Scales::Rows(upload("a scales", &bytes.scale_bytes())?),
            },
        })
    }

    /// Memory of this name for elements and, where they have bytes, for scales, each made by `allocate`.
    ///
    /// # Errors
    /// As `allocate`.
    pub fn of(
        name: &str,
        [bytes, scale_bytes]: [usize; 2],
        allocate: impl Fn(&str, usize) -> Result<DeviceBuffer>,
    ) -> Result<Self> {
        let scales = match scale_bytes {
            0 => Scales::None,
            bytes => Scales::Blocks(allocate(&format!("{name} scales"), bytes)?),
        };
        Ok(Self { elements: allocate(name, bytes)?, scales })
    }

    /// Elements with scales of blocks, and scales of rows, where they have them.
    pub fn with(
        elements: DeviceBuffer,
        blocks: Option<DeviceBuffer>,
        rows: Option<DeviceBuffer>,
    ) -> Self {
        let scales = match (blocks, rows) {
            (None, None) => Scales::None,
            (Some(blocks), None) => Scales::Blocks(blocks),
            (Some(blocks), Some(rows)) => Scales::RowsOfBlocks(blocks, rows),
            (None, Some(rows)) => Scales::Rows(rows),
        };
        Self { elements, scales }
    }

    /// Returns the activations for a product.
    pub fn activations(&self) -> ActivationBuffers<'_> {
        let elements = &self.elements;
        match &self.scales {
            Scales::None => ActivationBuffers::Halves(elements),
            Scales::Blocks(scales) => ActivationBuffers::blocks(elements, scales),
            Scales::RowsOfBlocks(scales, rows) => {
                ActivationBuffers::Blocks { codes: elements, scales, row_scales: Some(rows) }
            }
            Scales::Rows(scales) => ActivationBuffers::Fp8 { codes: elements, scales },
        }
    }

    /// Returns the buffers for a product's result.
    pub fn result(&self) -> ResultBuffers<'_> {
        match self.scales.buffer() {
            Some(scales) => ResultBuffers::Blocks { codes: &self.elements, scales },
            None => ResultBuffers::Floats(&self.elements),
        }
    }

    /// Elements, and scales if there are any.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn read(&self) -> Result<[Vec<u8>; 2]> {
        let scales = self.scales.buffer().map_or(Ok(Vec::new()), DeviceBuffer::read)?;
        Ok([self.elements.read()?, scales])
    }

    /// Queues setting floats, or codes, to zero.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn clear(&self) -> Result<()> {
        self.elements.fill(0)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        let scales = [self.scales.buffer(), self.scales.of_rows()];
        self.elements.len() + scales.into_iter().flatten().map(DeviceBuffer::len).sum::<usize>()
    }
}
