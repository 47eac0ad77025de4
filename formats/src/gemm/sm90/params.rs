//! The parameter block of the sm_90a kernels.

use super::Sm90Config;
use crate::gemm::{Epilogue, Groups, Problem, Schedule, Walk};
use crate::tensor_map::{MapElement, TENSOR_MAP_BYTES, TensorMap, TensorMapShape};
use crate::{Operand, Swizzle};

/// Parameter block of every sm_90a GEMM kernel, passed by value. Pointers are device
/// addresses.
///
/// | field | shape | layout |
/// |---|---|---|
/// | `activations` | tensor map | [`activations_map`] |
/// | `partials` | one place per CTA | the partial sums that it sends, [`Sm90Config::partial_bytes`](super::Sm90Config::partial_bytes) |
/// | `flags` | one word per CTA | not 0 once the CTA's partial sums are there; all 0 before and after a launch |
/// | `weights` | `L` or 1 matrices | [`WeightLayout`](super::WeightLayout), at distances of `weight_stride` bytes (0:
/// shared), 128-byte aligned |
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sm90Params {
    /// Tensor map of the activations.
    pub activations: TensorMap,
    /// Repacked weights.
    pub weights: u64,
    /// Bytes from one batch entry's weights to the next.
    pub weight_stride: u64,
    /// Address of partial sums of tiles that several CTAs compute; 0 if each computes whole tiles.
    pub partials: u64,
    /// One flag per CTA: whether its partial sums are there.
    pub flags: u64,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Sizes.
    pub problem: Problem,
    /// The assignment of K steps and tiles to CTAs.
    pub schedule: Schedule,
    /// Distance of the row factors, which are the tokens' scales in e4m3, from one batch entry's to
    /// the next's; 0 for factors that all share. For other types, which always share them, 0.
    pub row_factor_stride: u32,
    /// 1 if [results are stored from registers](Sm90Config::stores_from_registers).
    pub from_registers: u32,
    /// 1 if the epilogue [is plain](Epilogue::is_plain).
    pub plain: u32,
    /// 1, from which kernels make the powers of two that they multiply by: see
    /// [`HalfType::multipliers`](crate::HalfType::multipliers).
    pub one: u32,
    /// The numbering of tiles: that of [`Sm90Config::tiles`].
    pub walk: Walk,
}

impl Sm90Params {
    /// The block as the kernel's `.param` space holds it: C layout, little endian.
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        const WIDE: usize = 4;
        const SINGLE: usize = 4;
        const EPILOGUE: usize = size_of::<Epilogue>() / 4;
        const SCHEDULE: usize = size_of::<Schedule>() / 4;
        const WALK: usize = size_of::<Walk>() / 4;
        const WORDS: usize = 2 * WIDE + EPILOGUE + 4 + SCHEDULE + SINGLE + WALK;
        const { assert!(size_of::<Self>() == TENSOR_MAP_BYTES + 4 * WORDS) };
        let map = self.activations.to_bytes();
        let wide = [self.weights, self.weight_stride, self.partials, self.flags];
        let epilogue = self.epilogue.words();
        let Problem { m, n, k, l } = self.problem;
        let (sizes, schedule, walk) = ([m, n, k, l], self.schedule.words(), self.walk.words());
        let single: [u32; SINGLE] =
            [self.row_factor_stride, self.from_registers, self.plain, self.one];
        let mut bytes = [0; size_of::<Self>()];
        let mut at = 0;
        while at < map.len() {
            bytes[at] = map[at];
            at += 1;
        }
        while at < bytes.len() {
            let i = (at - map.len()) / 4;
            let word = if i < 2 * WIDE {
                (wide[i / 2] >> (32 * (i % 2))) as u32
            } else if i < 2 * WIDE + EPILOGUE {
                epilogue[i - 2 * WIDE]
            } else {
                let i = i - 2 * WIDE - EPILOGUE;
                if i < sizes.len() {
                    sizes[i]
                } else if i < sizes.len() + SCHEDULE {
                    schedule[i - sizes.len()]
                } else if i < sizes.len() + SCHEDULE + SINGLE {
                    single[i - sizes.len() - SCHEDULE]
                } else {
                    walk[i - sizes.len() - SCHEDULE - SINGLE]
                }
            };
            bytes[at] = word.to_le_bytes()[at % 4];
            at += 1;
        }
        bytes
    }
}

/// Parameter block of the sm_90a kernels of grouped products, passed by value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Sm90GroupedParams {
    /// The parameters that all kernels take. Only the K steps of a tile count in the schedule, M is
    /// the tokens of a matrix and L the number of matrices in the problem, and the walk is
    /// arbitrary. Factors and bias are the first problem's.
    pub gemm: Sm90Params,
    /// The problems.
    pub groups: Groups,
}

impl Sm90GroupedParams {
    /// The block as the kernel's `.param` space holds it: C layout, little endian.
    pub const fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        const GEMM: usize = size_of::<Sm90Params>();
        const { assert!(size_of::<Self>() == GEMM + size_of::<Groups>()) };
        let (gemm, groups) = (self.gemm.to_bytes(), self.groups.words());
        let mut bytes = [0; size_of::<Self>()];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] =
                if at < GEMM { gemm[at] } else { groups[(at - GEMM) / 4].to_le_bytes()[at % 4] };
            at += 1;
        }
        bytes
    }
}

/// Makes the map of `[L, M, K]` activations, matrices at distances of `stride` bytes; 0 if all are
/// one. One copy brings a box: a row of the swizzle of a CTA's part of the tokens.
#[must_use]
pub const fn activations_map(
    config: &Sm90Config,
    problem: &Problem,
    stride: u64,
) -> TensorMapShape {
    let Problem { m, k, l, .. } = *problem;
    let element = match config.scheme.operand {
        Operand::Half(_) => MapElement::U16,
        Operand::E4m3 => MapElement::U8,
    };
    TensorMapShape {
        element,
        rank: 3,
        dims: [k as u64, m as u64, l as u64, 1, 1],
        strides: [config.scheme.operand.bytes() as u64 * k as u64, stride, 0, 0],
        box_dims: [config.box_columns(), config.box_tokens(), 1, 1, 1],
        swizzle: Swizzle::B128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::epilogue::sample;
    use crate::gemm::{Split, TileOrder};
    use core::mem::offset_of;

    #[test]
    fn bytes_follow_the_layout() {
        let params = Sm90Params {
            activations: TensorMap([0x1112_1314_1516_1718; 16]),
            weights: 0x0807_0605_0403_0201,
            weight_stride: 3,
            partials: 16,
            flags: 17,
            epilogue: sample::epilogue(200),
            problem: Problem { m: 12, n: 13, k: 14, l: 15 },
            schedule: Schedule::new(Split::StreamK, 22, 18, 7).unwrap().keeping(2, 22),
            row_factor_stride: 23,
            from_registers: 27,
            plain: 28,
            one: 1,
            walk: Walk::new(TileOrder::TOKENS_INNERMOST, 22, 23),
        };
        let bytes = params.to_bytes();
        assert_eq!(bytes[..3], [0x18, 0x17, 0x16]);
        assert_eq!(bytes[128..136], [1, 2, 3, 4, 5, 6, 7, 8]);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(offset_of!(Sm90Params, weight_stride)), 3);
        let epilogue = offset_of!(Sm90Params, epilogue);
        sample::assert_bytes(&bytes[epilogue..epilogue + size_of::<Epilogue>()], 200);
        assert_eq!(word(offset_of!(Sm90Params, problem)), 12);
        assert_eq!(word(offset_of!(Sm90Params, problem) + 12), 15);
        assert_eq!(word(offset_of!(Sm90Params, partials)), 16);
        assert_eq!(word(offset_of!(Sm90Params, flags)), 17);
        assert_eq!(word(offset_of!(Sm90Params, from_registers)), 27);
        assert_eq!(word(offset_of!(Sm90Params, plain)), 28);
        let schedule = offset_of!(Sm90Params, schedule);
        let words = params.schedule.words();
        for (i, expected) in (0..).zip(words) {
            assert_eq!(word(schedule + 4 * i), expected);
        }
        // 22 tiles of 16 steps, and of two more, for 7 CTAs: runs of 50 steps, two of which have one
        // more.
        assert_eq!([words[0], words[3], words[6], words[9]], [16, 50, 51, 1]);
        assert_eq!(words[12..], [2, 18]);
        let walk = params.walk.words();
        for (i, expected) in (0..).zip(walk) {
            assert_eq!(word(offset_of!(Sm90Params, walk) + 4 * i), expected);
        }
        assert_eq!((walk[0], walk[6]), (22 * 23, 23));
    }
}
