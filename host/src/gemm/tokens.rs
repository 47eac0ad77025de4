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
    /// Of codes.
    scales: Option<DeviceBuffer>,
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
                scales: Some(upload("a scales", blocks.scales())?),
            },
            Activations::Halves(halves) => {
                Self { elements: upload("a", halves.bytes())?, scales: None }
            }
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
        let scales = (scale_bytes > 0).then(|| allocate(&format!("{name} scales"), scale_bytes));
        Ok(Self { elements: allocate(name, bytes)?, scales: scales.transpose()? })
    }

    /// As a product takes them.
    pub fn activations(&self) -> ActivationBuffers<'_> {
        match &self.scales {
            Some(scales) => ActivationBuffers::Blocks { codes: &self.elements, scales },
            None => ActivationBuffers::Halves(&self.elements),
        }
    }

    /// As a product leaves them.
    pub fn result(&self) -> ResultBuffers<'_> {
        match &self.scales {
            Some(scales) => ResultBuffers::Blocks { codes: &self.elements, scales },
            None => ResultBuffers::Floats(&self.elements),
        }
    }

    /// Elements, and scales if there are any.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn read(&self) -> Result<[Vec<u8>; 2]> {
        let scales = self.scales.as_ref().map_or(Ok(Vec::new()), DeviceBuffer::read)?;
        Ok([self.elements.read()?, scales])
    }

    /// Bytes of both.
    pub fn bytes(&self) -> usize {
        self.elements.len() + self.scales.as_ref().map_or(0, DeviceBuffer::len)
    }
}
