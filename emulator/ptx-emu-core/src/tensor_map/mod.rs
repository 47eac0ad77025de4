//! Tensor maps and the tile copies that they describe, as pure functions.
//!
//! PTX ISA 5.5 (tensors), 9.7.9.27 (`cp.async.bulk.tensor`,
//! `cp.reduce.async.bulk.tensor`), 9.7.9.28 (`tensormap.replace`) and the
//! driver's `cuTensorMapEncodeTiled`. Nothing here touches a memory: a
//! [`TensorMap`] is arguments to and from 128 bytes, a [`Tile`] is the list of
//! byte runs that a copy moves, a [`Reduction`] is arithmetic on bytes.
//!
//! | file | what |
//! |---|---|
//! | `types` | enumerations of the driver's interface |
//! | `check` | the driver's rules |
//! | `encode` | the 128 bytes, to and from |
//! | `replace` | `tensormap.replace` |
//! | `swizzle` | permutation of shared addresses |
//! | `tile` | box geometry of a copy |
//! | `runs` | the byte runs of a tile |
//! | `reduce` | reductions, conversions of loaded elements |
//!
//! # Modelled
//!
//! Everything below was recorded on an H200 (driver 580) unless it says
//! otherwise.
//!
//! * Every type, rank, stride and swizzle that the driver encodes, bit for bit.
//! * Loads fill out-of-bounds elements exactly, with zeros or with 0x7ff7 in
//!   every 16 bits whatever the type; the whole box counts for `complete_tx`.
//! * Stores and reductions are clipped to whole 16-byte pieces of a row: **the
//!   bytes between the end of a row and the next multiple of 16 are written**.
//! * The first coordinate must be at a multiple of 16 bytes, shared addresses
//!   at multiples of 128; stores and reductions take no negative coordinates.
//! * A row narrower than the swizzle span takes the whole span in shared
//!   memory; the rest of the span is not touched.
//! * `TFLOAT32` loads round elements of the tensor, not those that fill, to nearest
//!   even; `_FTZ` types flush subnormals in additions only.
//!
//! # Limits
//!
//! * The sub-byte types and the `128B_ATOM_*` swizzles follow the
//!   documentation; an H200 refuses them. Their place in the 128 bytes is this
//!   module's own, and the order of 8-byte halves of `_FLIP_8B` is derived.
//! * The driver's limit on the size of a box is known to lie between 64 KiB and
//!   512 KiB; here it is the shared memory of a CTA.
//! * Copies through interleaved maps are refused as not modelled, and so is
//!   im2col, for which there is no map here.
//! * Bits of the 128 bytes without known meaning are ignored.

mod check;
mod encode;
mod error;
mod reduce;
mod replace;
mod runs;
mod swizzle;
mod tile;
mod types;

pub use encode::TENSOR_MAP_BYTES;
pub use error::{ReplaceError, TensorMapError, TileError};
pub use reduce::{ReduceOp, Reduction};
pub use replace::{ReplaceField, replace};
pub use runs::{Run, Runs};
pub use tile::{SHARED_ALIGN, Tile};
pub use types::{ElementType, Fill, Interleave, L2Promotion, Swizzle, UnknownName};

/// Largest number of dimensions.
pub const MAX_RANK: usize = 5;

/// The arguments of `cuTensorMapEncodeTiled`.
///
/// Dimension 0 is the innermost one; the rank is the length of `dims`.
///
/// ```
/// use ptx_emu_core::tensor_map::{ElementType, TensorMap, Tile};
///
/// // 3 rows of 100 bytes, 112 bytes apart; boxes of 2 rows of 64 bytes.
/// let map = TensorMap::tiled(ElementType::U8, 0x1000, &[100, 3], &[112], &[64, 2]);
/// assert_eq!(TensorMap::decode(&map.encode()?)?, map);
/// let tile = Tile::load(&map, &[64, 2], 0x400)?;
/// assert_eq!(tile.bytes(), 128);
/// let first = tile.runs().next().unwrap();
/// assert_eq!((first.shared, first.global, first.bytes), (0x400, Some(0x1000 + 64 + 224), 36));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMap {
    /// Element type.
    pub element: ElementType,
    /// Address of element 0 in global memory.
    pub address: u64,
    /// Size of each dimension, elements.
    pub dims: Vec<u64>,
    /// Distance of neighbours in dimensions 1 and up, bytes.
    pub strides: Vec<u64>,
    /// Extent of the box in each dimension, elements.
    pub box_dims: Vec<u32>,
    /// Step through each dimension, elements; a box has
    /// `ceil(box_dims[i] / element_strides[i])` of them. The first is ignored
    /// without interleave.
    pub element_strides: Vec<u32>,
    /// Interleaved layout.
    pub interleave: Interleave,
    /// Swizzle of shared memory.
    pub swizzle: Swizzle,
    /// L2 fetch size.
    pub l2_promotion: L2Promotion,
    /// Out-of-bounds elements of loads.
    pub fill: Fill,
}

impl TensorMap {
    /// A map with unit element strides, no interleave, no swizzle, no promotion
    /// and zero fill.
    #[must_use]
    pub fn tiled(
        element: ElementType,
        address: u64,
        dims: &[u64],
        strides: &[u64],
        box_dims: &[u32],
    ) -> Self {
        Self {
            element,
            address,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
            box_dims: box_dims.to_vec(),
            element_strides: vec![1; box_dims.len()],
            interleave: Interleave::None,
            swizzle: Swizzle::None,
            l2_promotion: L2Promotion::None,
            fill: Fill::Zero,
        }
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.dims.len()
    }
}
