//! The values of a residual, as options have them.

use fp4_formats::FloatType;

use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::Result;
use crate::floats;

/// The options' residual: matrices of floats, row-major, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct ResidualValues {
    float_type: FloatType,
    values: Vec<f32>,
}

impl ResidualValues {
    /// Rounds `values` to the type.
    #[must_use]
    pub fn round(float_type: FloatType, values: &[f32]) -> Self {
        let bytes = floats::encode(float_type, values.iter().map(|&value| value.into()));
        Self { float_type, values: floats::decode(float_type, &bytes) }
    }

    /// Their type.
    #[must_use]
    pub const fn float_type(&self) -> FloatType {
        self.float_type
    }

    /// The values that are added.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Little-endian elements.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        floats::encode(self.float_type, self.values.iter().map(|&value| value.into()))
    }

    /// Copies them to a device.
    pub(super) fn upload(&self, device: &Device) -> Result<(DeviceBuffer, FloatType)> {
        let buffer = DeviceBuffer::upload(device, "residual", &self.bytes())?;
        Ok((buffer, self.float_type))
    }
}
