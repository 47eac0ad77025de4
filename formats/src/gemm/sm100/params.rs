//! The parameter block of the sm_100a kernels and the tensor maps in it.

use super::config::Products;
use super::{Sm100Config, TokenBlocks};
use crate::gemm::{Epilogue, GroupedParams, Problem, Schedule, Walk};
use crate::layout::{TILE_BYTES, TILE_ROWS};
use crate::params::blocks;
use crate::swizzle::Swizzle;
use crate::tensor_map::{MapElement, TensorMap, TensorMapShape};

/// Parameter block of every sm_100a GEMM kernel, passed by value.
///
/// `X` is `A`, `Y` is `B`; if `swapped` is 1, `X` is `B` and `Y` is `A`. Codes are
/// packed, rows a multiple of 16 bytes; scales are in the 128x4 layout, and the padding
/// in it along K is a number (it meets codes that are 0), see
/// [`prepare`](super::prepare). Kernels that load tokens take these as they are
/// ([`tokens`](super::tokens)).
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sm100Params {
    /// The [`codes_map`] of `X`.
    pub x_codes: TensorMap,
    /// The [`codes_map`] or [`elements_map`] of `Y`; arbitrary if the kernel loads its codes.
    pub y_codes: TensorMap,
    /// The [`scales_map`] of `X`.
    pub x_scales: TensorMap,
    /// The [`scales_map`] of `Y`; arbitrary if `Y` is not 4-bit, or if the kernel [loads
    /// tokens](Sm100Config::loads_tokens).
    pub y_scales: TensorMap,
    /// The [`result_map`](super::result_map); arbitrary if `copied` is 0.
    pub result: TensorMap,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Partial sums of CTAs under stream-K, [`Sm100Config::partial_bytes`] each; any if no tile is cut.
    pub partials: u64,
    /// Address of the flags of their storing warps, zeros
    /// ([`flag_bytes`](super::config::flag_bytes)); arbitrary in the same case.
    pub flags: u64,
    /// The activations, of kernels that load tokens; any of others.
    pub tokens: TokenBlocks,
    /// Sizes.
    pub problem: Problem,
    /// 1 if `X` is the weights.
    pub swapped: u32,
    /// 1 if CTAs ask for tiles while the kernel runs (the grid then has a cluster for each tile); 0
    /// if each takes its run of the schedule, as kernels [with
    /// stream-K](Sm100Config::takes_stream_k) do, or every `clusters`-th tile.
    pub dynamic: u32,
    /// 1 if `X` is read once, so that L2 need not keep it.
    pub x_once: u32,
    /// 1 if `Y` is read once.
    pub y_once: u32,
    /// 1 if all batch entries have the same `X`.
    pub x_shared: u32,
    /// 1 if all batch entries have the same `Y`.
    pub y_shared: u32,
    /// 1 if the copy engine stores results as boxes from shared memory; 0 if threads store them.
    pub copied: u32,
    /// Distance of the row factors, which are the tokens' scales in e4m3, from one batch entry to the
    /// next.
    pub row_factor_stride: u32,
    /// The numbering of tiles: that of [`Sm100Config::tiles`].
    pub walk: Walk,
    /// The assignment of K steps and tiles; a CTA there is a cluster. Any if it is not looked at.
    pub schedule: Schedule,
}

/// Parameter block of the sm_100a kernels of grouped products, passed by value. `dynamic`, `x_shared` and `y_shared`
/// are 0, and walk and schedule are arbitrary. The scales of activations are one matrix of [`Groups::scale_tiles`]
/// row tiles. Only the CTAs of the runs count.
///
/// [`Groups::scale_tiles`]: crate::gemm::Groups::scale_tiles
pub type Sm100GroupedParams = GroupedParams<Sm100Params>;

/// One of the two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Rows of the tensor core's M.
    X,
    /// Rows of its N.
    Y,
}

/// Makes the map of an operand's codes: `batch` matrices of `rows` rows of `k` elements; rows and
/// matrices lie at these distances in bytes. One copy of a K step brings a box.
#[must_use]
pub const fn codes_map(
    config: &Sm100Config,
    side: Side,
    [rows, k, batch]: [u32; 3],
    row_stride: u64,
    batch_stride: u64,
) -> TensorMapShape {
    let box_rows = match side {
        Side::X => config.x_box_rows(),
        Side::Y => config.cta_columns(),
    };
    let (element, row, swizzle) = match config.products() {
        Products::Blocks => (MapElement::U8, k / 2, Swizzle::B128),
        Products::Halves(_) | Products::Folded => (MapElement::U8, k / 2, Swizzle::B64),
        // Rows are padded, as the type of the elements wants it.
        Products::Bytes => (MapElement::PaddedU4, k.next_multiple_of(config.step()), Swizzle::B128),
    };
    TensorMapShape {
        element,
        rank: 3,
        dims: [row as u64, rows as u64, batch as u64, 1, 1],
        strides: [row_stride, batch_stride, 0, 0],
        box_dims: [config.step() * 4 / element.bits(), box_rows, 1, 1, 1],
        swizzle,
    }
}

/// Makes the map of a `Y` whose elements are not 4-bit: rows follow each other, matrices lie at this
/// distance in bytes. A box is a row of the swizzle of all rows of a tile.
#[must_use]
pub const fn elements_map(
    config: &Sm100Config,
    [rows, k, batch]: [u32; 3],
    batch_stride: u64,
) -> TensorMapShape {
    let element = if config.takes_bytes() { MapElement::U8 } else { MapElement::U16 };
    let row = k as u64 * element.bits() as u64 / 8;
    TensorMapShape {
        element,
        rank: 3,
        dims: [k as u64, rows as u64, batch as u64, 1, 1],
        strides: [row, batch_stride, 0, 0],
        box_dims: [config.y_box(), config.cta_columns(), 1, 1, 1],
        swizzle: Swizzle::B128,
    }
}

/// Makes the map of an operand's scales in the 128x4 layout: `batch` matrices of the scales of
/// `rows` x `k` elements, at this distance in bytes. One copy of a K step brings a box.
#[must_use]
pub const fn scales_map(
    config: &Sm100Config,
    side: Side,
    [rows, k, batch]: [u32; 3],
    batch_stride: u64,
) -> TensorMapShape {
    let (box_tiles, groups) = match side {
        Side::X => (config.x_box_tiles(), 1),
        Side::Y => (config.y_box_tiles(), config.y_groups()),
    };
    let tiles = config.row_scale_tiles(k);
    let element = MapElement::U16;
    let row = TILE_BYTES as u32 * 8 / element.bits();
    TensorMapShape {
        element,
        rank: 4,
        dims: [row as u64, tiles as u64, rows.div_ceil(TILE_ROWS as u32) as u64, batch as u64, 1],
        strides: [TILE_BYTES as u64, tiles as u64 * TILE_BYTES as u64, batch_stride, 0],
        box_dims: [row, box_tiles, groups, 1, 1],
        swizzle: Swizzle::None,
    }
}

blocks! {
    Sm100Params {
        x_codes, y_codes, x_scales, y_scales, result, epilogue, partials, flags, tokens, problem, swapped, dynamic,
        x_once, y_once, x_shared, y_shared, copied, row_factor_stride, walk, schedule
    }
    Sm100GroupedParams { gemm, groups }
}
