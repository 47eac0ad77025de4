//! The parameter block of the sm_100a kernels and the tensor maps in it.

use super::config::Products;
use super::{Sm100Config, TokenBlocks};
use crate::gemm::{Epilogue, Groups, Problem, Schedule, Walk};
use crate::layout::{TILE_BYTES, TILE_ROWS};
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

impl Sm100Params {
    /// The block as the kernel's `.param` space holds it: C layout, little endian.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        const MAP: usize = size_of::<TensorMap>() / 4;
        const EPILOGUE: usize = size_of::<Epilogue>() / 4;
        const MAPS: usize = 5;
        const WALK: usize = size_of::<Walk>() / 4;
        const SCHEDULE: usize = size_of::<Schedule>() / 4;
        const TOKENS: usize = size_of::<TokenBlocks>() / 4;
        const SUMS: usize = 4;
        const REST: usize = 12;
        const FRONT: usize = MAPS * MAP + EPILOGUE;
        const {
            let words = FRONT + SUMS + TOKENS + REST + WALK + SCHEDULE;
            assert!(size_of::<Self>() == 4 * words);
        }
        let maps: [_; MAPS] =
            [&self.x_codes, &self.y_codes, &self.x_scales, &self.y_scales, &self.result];
        let (epilogue, walk) = (self.epilogue.words(), self.walk.words());
        let schedule = self.schedule.words();
        let Problem { m, n, k, l } = self.problem;
        let sums: [_; SUMS] = [
            self.partials as u32,
            (self.partials >> 32) as u32,
            self.flags as u32,
            (self.flags >> 32) as u32,
        ];
        let tokens = self.tokens.words();
        let rest: [_; REST] = [
            m,
            n,
            k,
            l,
            self.swapped,
            self.dynamic,
            self.x_once,
            self.y_once,
            self.x_shared,
            self.y_shared,
            self.copied,
            self.row_factor_stride,
        ];
        let mut bytes = [0; size_of::<Self>()];
        let mut at = 0;
        while at < bytes.len() {
            let i = at / 4;
            let word = if i < MAPS * MAP {
                let wide = maps[i / MAP].0[i % MAP / 2];
                (wide >> (32 * (i % 2))) as u32
            } else if i < FRONT {
                epilogue[i - MAPS * MAP]
            } else if i < FRONT + SUMS {
                sums[i - FRONT]
            } else if i < FRONT + SUMS + TOKENS {
                tokens[i - FRONT - SUMS]
            } else if i < FRONT + SUMS + TOKENS + REST {
                rest[i - FRONT - SUMS - TOKENS]
            } else if i < FRONT + SUMS + TOKENS + REST + WALK {
                walk[i - FRONT - SUMS - TOKENS - REST]
            } else {
                schedule[i - FRONT - SUMS - TOKENS - REST - WALK]
            };
            bytes[at] = word.to_le_bytes()[at % 4];
            at += 1;
        }
        bytes
    }
}

/// Parameter block of the sm_100a kernels of grouped products, passed by value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sm100GroupedParams {
    /// The parameters that all kernels take. In the problem, M is the tokens of a matrix and L the number of
    /// matrices; `dynamic`, `x_shared` and `y_shared` are 0, and walk and schedule are arbitrary. Factors
    /// and bias are the first problem's. The scales of activations are one matrix of [`Groups::scale_tiles`]
    /// row tiles.
    pub gemm: Sm100Params,
    /// The problems; of the runs only the CTAs count.
    pub groups: Groups,
}

impl Sm100GroupedParams {
    /// The block as the kernel's `.param` space holds it: C layout, little endian.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        const GEMM: usize = size_of::<Sm100Params>();
        const END: usize = GEMM + size_of::<Groups>();
        let (gemm, groups) = (self.gemm.to_bytes(), self.groups.words());
        let mut bytes = [0; size_of::<Self>()];
        let mut at = 0;
        while at < END {
            bytes[at] =
                if at < GEMM { gemm[at] } else { groups[(at - GEMM) / 4].to_le_bytes()[at % 4] };
            at += 1;
        }
        bytes
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::epilogue::sample;
    use core::mem::offset_of;

    #[test]
    fn bytes_follow_the_layout() {
        let map = |seed: u64| TensorMap(core::array::from_fn(|i| seed << 32 | i as u64));
        let params = Sm100Params {
            x_codes: map(1),
            y_codes: map(2),
            x_scales: map(3),
            y_scales: map(4),
            result: map(23),
            epilogue: sample::epilogue(300),
            partials: 27 << 32 | 28,
            flags: 29 << 32 | 30,
            tokens: TokenBlocks {
                codes: 34 << 32 | 35,
                code_stride: 36 << 32 | 37,
                scales: 38 << 32 | 39,
                scale_stride: 40 << 32 | 41,
                blocked: 42,
                reserved: 0,
            },
            problem: Problem { m: 13, n: 14, k: 15, l: 16 },
            swapped: 17,
            dynamic: 18,
            x_once: 19,
            y_once: 20,
            x_shared: 21,
            y_shared: 22,
            copied: 24,
            row_factor_stride: 26,
            walk: Walk::new(Sm100Config::order(true), 25, 26),
            schedule: Schedule::stream_k(31, 32, 33).unwrap(),
        };
        let bytes = params.to_bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let walk = params.walk.words();
        for (i, expected) in (0..).zip(walk) {
            assert_eq!(word(offset_of!(Sm100Params, walk) + 4 * i), expected);
        }
        // Tiles, a band's, the last band's width and number.
        assert_eq!([walk[0], walk[3], walk[6], walk[9]], [25 * 26, 8 * 26, 1, 3]);
        for (i, expected) in (0..).zip(params.schedule.words()) {
            assert_eq!(word(offset_of!(Sm100Params, schedule) + 4 * i), expected);
        }
        let words = |at: usize| [word(at), word(at + 4)];
        assert_eq!(words(offset_of!(Sm100Params, partials)), [28, 27]);
        assert_eq!(words(offset_of!(Sm100Params, flags)), [30, 29]);
        for (i, expected) in (0..).zip(params.tokens.words()) {
            assert_eq!(word(offset_of!(Sm100Params, tokens) + 4 * i), expected);
        }
        for (at, seed) in [
            (offset_of!(Sm100Params, x_codes), 1),
            (offset_of!(Sm100Params, y_codes), 2),
            (offset_of!(Sm100Params, x_scales), 3),
            (offset_of!(Sm100Params, y_scales), 4),
            (offset_of!(Sm100Params, result), 23),
        ] {
            assert_eq!((word(at + 8), word(at + 12), at % 64), (1, seed, 0));
        }
        let epilogue = offset_of!(Sm100Params, epilogue);
        sample::assert_bytes(&bytes[epilogue..epilogue + size_of::<Epilogue>()], 300);
        assert_eq!(word(offset_of!(Sm100Params, problem) + 12), 16);
        assert_eq!(word(offset_of!(Sm100Params, swapped)), 17);
        assert_eq!(word(offset_of!(Sm100Params, dynamic)), 18);
        assert_eq!(word(offset_of!(Sm100Params, x_once)), 19);
        assert_eq!(word(offset_of!(Sm100Params, y_once)), 20);
        assert_eq!(word(offset_of!(Sm100Params, x_shared)), 21);
        assert_eq!(word(offset_of!(Sm100Params, y_shared)), 22);
        assert_eq!(word(offset_of!(Sm100Params, copied)), 24);
        assert_eq!(word(offset_of!(Sm100Params, row_factor_stride)), 26);
    }
}
