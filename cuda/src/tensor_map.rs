//! Tensor maps: 128 bytes that describe boxes of a tensor to the copy engine.

use std::ptr;

use cuda_lazy::raw;

use super::device::CudaDevice;
use super::error::{CudaError, check};

/// Bytes of a tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

/// Most dimensions of a map.
const MAX_RANK: usize = 5;

/// The arguments of `cuTensorMapEncodeTiled`, enumerations as the driver numbers them.
/// Dimension 0 is the innermost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMapArguments<'a> {
    /// `CUtensorMapDataType`.
    pub element: u32,
    /// Device address of element 0.
    pub address: u64,
    /// Size of each dimension, elements.
    pub dims: &'a [u64],
    /// Strides of dimension 1 and above, bytes.
    pub strides: &'a [u64],
    /// Extent of the box in each dimension, elements.
    pub box_dims: &'a [u32],
    /// Step through each dimension, elements.
    pub element_strides: &'a [u32],
    /// `CUtensorMapInterleave`.
    pub interleave: u32,
    /// `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`.
    pub l2_promotion: u32,
    /// `CUtensorMapFloatOOBfill`.
    pub fill: u32,
}

/// The driver requires a map to be 64-byte aligned, newer headers 128-byte aligned.
#[repr(C, align(128))]
struct Aligned([u8; TENSOR_MAP_BYTES]);

impl CudaDevice {
    /// Encodes a tensor map for this GPU. Launches nothing and touches no device memory.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] if lists have different lengths; a failed call if the driver
    /// does not accept the arguments.
    pub fn encode_tensor_map(
        &self,
        map: &TensorMapArguments<'_>,
    ) -> Result<[u8; TENSOR_MAP_BYTES], CudaError> {
        let rank = map.dims.len();
        let lists = [
            ("dimensions", rank.clamp(1, MAX_RANK), rank),
            ("strides", rank.saturating_sub(1), map.strides.len()),
            ("box dimensions", rank, map.box_dims.len()),
            ("element strides", rank, map.element_strides.len()),
        ];
        for (field, required, actual) in lists {
            if required != actual {
                return Err(CudaError::BadArgument {
                    operation: "encoding a tensor map",
                    field,
                    required: required.to_string(),
                    actual: actual.to_string(),
                });
            }
        }
        self.bind()?;
        let mut bytes = Aligned([0; TENSOR_MAP_BYTES]);
        // SAFETY: the lists have the lengths that the rank requires, as checked; the map has
        // 128 aligned bytes. The address is encoded, not dereferenced.
        check("cuTensorMapEncodeTiled", unsafe {
            raw::cuTensorMapEncodeTiled(
                (&raw mut bytes).cast(),
                map.element,
                rank as u32,
                ptr::without_provenance_mut(map.address as usize),
                map.dims.as_ptr(),
                map.strides.as_ptr(),
                map.box_dims.as_ptr(),
                map.element_strides.as_ptr(),
                map.interleave,
                map.swizzle,
                map.l2_promotion,
                map.fill,
            )
        })?;
        Ok(bytes.0)
    }
}
