//! The contract of the kernels around the grouped products of a mixture of experts.
//!
//! A token's *slots* are its `top_k` chosen experts, in the caller's order: slot `s` is choice
//! `s % top_k` of token `s / top_k`. The experts of this device are `first..first + count` of all, or those that a
//! [map](RouteParams::map) has.
//!
//! ```text
//! ids --route--> offsets, positions, sources
//! activations --gather by sources--> rows of expert 0, of expert 1, ...
//! rows --two grouped products--> rows
//! rows --combine by positions and weights--> result, token after token
//! ```
//!
//! | kernel | does |
//! |---|---|
//! | [`ROUTE`] | counts the slots of each expert of the device, and orders slots by expert; the slots of an expert keep their order |
//! | [`GATHER`] | copies each slot's token to the slot's row; rows that no slot has become zeros |
//! | [`PACK`] | gathers into [records](record), one for each row, that another device takes |
//! | [`COMBINE`] | adds up the rows of a token's slots times their weights, in the order of the slots, in f32 |
//!
//! Slots of experts that are not on this device have no row and add nothing, nor does a slot whose id is -1. A token
//! with another id that is no expert's becomes NaN, and the status word says so.
//!
//! # Several devices
//! ```text
//! sender:    ids --route by a map from experts to devices, with a capacity--> positions, sources
//!            tokens, quantised once --pack by sources--> records --exchange-->
//! receiver:  ids in records --route--> offsets, positions, sources
//!            records --gather by sources--> rows --two grouped products--> rows
//!            rows --gather by positions--> the records' places --exchange-->
//! sender:    rows --combine by positions and weights--> result
//! ```
//! With a capacity C, device `d` has the rows `d * C..(d + 1) * C`, of which slots fill the first ones, and rows keep
//! their places on the way there and back. A token with a slot beyond the capacity becomes NaN, and the status word
//! says so.

pub mod record;

use crate::Divisor;
use crate::gemm::groups::MAX_PROBLEMS;
use crate::params::blocks;

/// Kernel names.
pub const ROUTE: &str = "moe_route";
/// See [`ROUTE`].
pub const GATHER: &str = "moe_gather";
/// See [`ROUTE`].
pub const COMBINE: &str = "moe_combine";
/// See [`ROUTE`].
pub const PACK: &str = "moe_pack";
/// All of them.
pub const NAMES: [&str; 4] = [ROUTE, GATHER, COMBINE, PACK];

/// Threads of the one CTA of [`ROUTE`] if each has a slot at most; fewer meet sooner.
const FEW_ROUTE_THREADS: u32 = 256;
/// The most threads of that CTA.
pub const ROUTE_THREADS: u32 = 1024;
/// Threads of a CTA of [`GATHER`], [`COMBINE`] and [`PACK`].
pub const THREADS: u32 = 256;
/// Elements that a thread of [`COMBINE`] makes at a time: columns are a multiple of it.
pub const COMBINE_COLUMNS: u32 = 8;
/// Bytes that a thread of [`GATHER`] copies at a time if rows are multiples of them.
pub const GATHER_BYTES: u32 = 16;
/// The most experts of a device.
pub const MAX_EXPERTS: u32 = MAX_PROBLEMS;
/// The most experts that a token may choose.
pub const MAX_TOP_K: u32 = 256;

/// Stands for a position, and for an entry of a map: the slot's expert is not on this device, or its id is -1, which
/// is this number as i32. In place of a source: the row is no slot's.
pub const NOWHERE: u32 = u32::MAX;
/// Stands for a position: the slot's id is no expert's, or the slot is beyond the capacity.
pub const BAD: u32 = u32::MAX - 1;

/// The status word of [`ROUTE`] if an id is no expert's.
pub const STATUS_BAD_ID: u32 = 2;
/// The status word of [`COMBINE`] if a weight is NaN.
pub const STATUS_NAN_WEIGHT: u32 = 3;
/// The status word of [`ROUTE`] if more slots than its capacity are of one expert.
pub const STATUS_OVER_CAPACITY: u32 = 4;

/// The experts of a device among all: `first..first + count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Experts {
    /// Experts of all devices: ids are below it.
    pub all: u32,
    /// First expert of this device.
    pub first: u32,
    /// Experts of this device, at most [`MAX_EXPERTS`].
    pub count: u32,
}

impl Experts {
    /// The expert of an id, counted from the device's first one, [`NOWHERE`] or [`BAD`].
    #[must_use]
    #[inline(always)]
    pub const fn local(&self, id: u32) -> u32 {
        // A negative one is more than any expert's.
        if id == NOWHERE {
            NOWHERE
        } else if id >= self.all {
            BAD
        } else if id.wrapping_sub(self.first) < self.count {
            id - self.first
        } else {
            NOWHERE
        }
    }
}

/// Whether a kernel takes ids in place of the results of [`ROUTE`]: each choice has its own row then, in the
/// order of the choices. For one token, that is all that there is to route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Chosen {
    /// Not 0 if it does.
    given: u32,
    /// The experts that ids are of.
    pub experts: Experts,
}

impl Chosen {
    /// The parameters without ids.
    pub const NONE: Self = Self { given: 0, experts: Experts { all: 0, first: 0, count: 0 } };

    /// Ids of these experts.
    #[must_use]
    pub const fn of(experts: Experts) -> Self {
        Self { given: 1, experts }
    }

    /// Whether there are ids.
    #[must_use]
    #[inline(always)]
    pub const fn is_given(&self) -> bool {
        self.given != 0
    }
}

/// Parameters of [`ROUTE`]. Pointers are device addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct RouteParams {
    /// i32: the expert of each slot, [`id_stride`](Self::id_stride) bytes apart.
    pub ids: u64,
    /// i32 `[experts.all]`: the expert of each id on this device, below `experts.count`, or [`NOWHERE`]; 0 for the
    /// range of `experts`.
    pub map: u64,
    /// i32 `[count + 1]`: the first row of each expert of the device, then the number of rows, as without a capacity.
    pub offsets: u64,
    /// u32 `[slots]`: the row of each slot, [`NOWHERE`] or [`BAD`].
    pub positions: u64,
    /// u32 `[slots]`, or with a capacity `[count * capacity]`: the slot of each row, or [`NOWHERE`].
    pub sources: u64,
    /// u32 `[count]`: becomes the most slots that an expert has had in this launch or before, if they are more; 0
    /// without.
    pub most: u64,
    /// Address of a u32 that becomes [`STATUS_BAD_ID`] if an id is no expert's; 0 without one.
    pub status: u64,
    /// Tokens times `top_k`, below 2^31.
    pub slots: u32,
    /// Bytes from one id to the next, a multiple of 4.
    pub id_stride: u32,
    /// Rows of each expert; 0 if the rows of all follow each other.
    pub capacity: u32,
    /// The device's experts.
    pub experts: Experts,
}

impl RouteParams {
    /// Threads of the CTA.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        if self.slots <= FEW_ROUTE_THREADS { FEW_ROUTE_THREADS } else { ROUTE_THREADS }
    }

    /// Dynamic shared memory: a counter of each expert for each warp that has slots, and the offsets.
    #[must_use]
    pub const fn shared_bytes(&self) -> u32 {
        ((self.warps() + 1) * self.experts.count + 1) * size_of::<u32>() as u32
    }

    /// The slots of a warp: the first, and the one after the last. They are a multiple of a warp's
    /// lanes but for the last ones.
    #[must_use]
    pub const fn part(&self, warp: u32) -> (u32, u32) {
        let each = self.slots.div_ceil(self.threads()) * crate::WARP;
        let (first, end) = (warp.saturating_mul(each), (warp + 1).saturating_mul(each));
        let slots = self.slots;
        (if first < slots { first } else { slots }, if end < slots { end } else { slots })
    }

    /// Warps that have slots: the first ones.
    #[must_use]
    pub const fn warps(&self) -> u32 {
        let (first, end) = self.part(0);
        if end == first { 0 } else { self.slots.div_ceil(end - first) }
    }
}

/// Parameters of [`GATHER`], for up to three matrices whose rows belong together: codes, scales of blocks, scales of
/// rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct GatherParams {
    /// Activations, a row for each token. Addresses and strides are multiples of the [piece](Self::piece).
    pub from: [u64; GATHERED],
    /// `rows` rows, likewise.
    pub to: [u64; GATHERED],
    /// The same as [`RouteParams::sources`]. [`BAD`] is as [`NOWHERE`].
    pub sources: u64,
    /// Rows: slots.
    pub rows: u32,
    /// Bytes of a row of each matrix; 0 without one.
    pub row_bytes: [u32; GATHERED],
    /// Bytes from one row of `from` to the next.
    pub from_stride: [u32; GATHERED],
    /// Bytes from one row of `to` to the next.
    pub to_stride: [u32; GATHERED],
    /// Experts that a token chooses.
    pub top_k: Divisor,
    /// Not 0 if rows that no slot has keep what they are, in place of zeros.
    pub keeps: u32,
}

/// The most matrices that [`GATHER`] takes.
pub const GATHERED: usize = 3;

impl GatherParams {
    /// Bytes that a thread copies at a time, which rows of this length are multiples of.
    #[must_use]
    #[inline(always)]
    pub const fn piece(row_bytes: u32) -> u32 {
        if row_bytes.is_multiple_of(GATHER_BYTES) {
            GATHER_BYTES
        } else if row_bytes.is_multiple_of(size_of::<u32>() as u32) {
            size_of::<u32>() as u32
        } else {
            1
        }
    }
}

/// Parameters of [`PACK`]. Rows that no slot has get a [header](record::Header) alone, which says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PackParams {
    /// Copies of codes and scales of blocks, into the records; it [keeps](GatherParams::keeps) rows that no slot has.
    pub gather: GatherParams,
    /// Records, [`record_bytes`](Self::record_bytes) apart, 16-byte aligned.
    pub records: u64,
    /// i32 `[slots]`: the expert of each slot.
    pub ids: u64,
    /// i32: the expert of each id that a source has, on the device that the record is for.
    pub locals: u64,
    /// f32 `[slots]`: the weight of each slot.
    pub weights: u64,
    /// f32 `[tokens]`: the scale of each row; 0 if it is 1.
    pub row_scales: u64,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameters of [`COMBINE`]. Types are [`FloatType`](crate::FloatType)s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CombineParams {
    /// Rows of `from_type`, `[slots, columns]`, 16-byte aligned.
    pub from: u64,
    /// The same as [`RouteParams::positions`], or [`RouteParams::ids`] if they are [given](Chosen).
    pub positions: u64,
    /// f32 `[slots]`: the weight of each slot.
    pub weights: u64,
    /// The addends of each token's sum, `[tokens, columns]` of `shared_type`, 16-byte aligned; 0 if
    /// there are none.
    pub shared: u64,
    /// Result of `out_type`, `[tokens, columns]`, 16-byte aligned.
    pub out: u64,
    /// Address of a u32 that becomes [`STATUS_NAN_WEIGHT`] if a weight is NaN, and [`STATUS_BAD_ID`] if
    /// an id is no expert's; 0 without one.
    pub status: u64,
    /// Tokens; times `top_k` below 2^30.
    pub tokens: u32,
    /// Columns, a multiple of [`COMBINE_COLUMNS`].
    pub columns: u32,
    /// Experts that a token chooses.
    pub top_k: u32,
    /// Type of the rows.
    pub from_type: u32,
    /// Type of the result.
    pub out_type: u32,
    /// Type of `shared`.
    pub shared_type: u32,
    /// Not 0 if no kernel that may still run writes positions or weights: they are read before the
    /// kernels before have ended.
    pub settled: u32,
    /// Whether positions are ids.
    pub chosen: Chosen,
    /// 0; keeps the size a multiple of 8.
    pub reserved: u32,
}

impl CombineParams {
    /// Columns that a CTA makes of a token.
    pub const CTA_COLUMNS: u32 = THREADS * COMBINE_COLUMNS;

    /// CTAs that a token's columns take, below the limit of a grid's second dimension.
    #[must_use]
    pub const fn row_ctas(columns: u32) -> u32 {
        columns.div_ceil(Self::CTA_COLUMNS)
    }

    /// The most columns.
    pub const MAX_COLUMNS: u32 = Self::CTA_COLUMNS * 65_535;
}

blocks! {
    Experts { all, first, count }
    Chosen { given, experts }
    RouteParams {
        ids, map, offsets, positions, sources, most, status, slots, id_stride, capacity, experts
    }
    GatherParams {
        from, to, sources, rows, row_bytes, from_stride, to_stride, top_k, keeps
    }
    PackParams { gather, records, ids, locals, weights, row_scales, record_bytes, reserved }
    CombineParams {
        from, positions, weights, shared, out, status, tokens, columns, top_k, from_type, out_type,
        shared_type, settled, chosen, reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_share_all_slots() {
        for slots in [1, 31, 32, 33, 256, 257, 1024, 1025, 8192, 100_001] {
            let p = RouteParams {
                ids: 0,
                map: 0,
                offsets: 0,
                positions: 0,
                sources: 0,
                most: 0,
                status: 0,
                slots,
                id_stride: 4,
                capacity: 0,
                experts: Experts { all: 1, first: 0, count: 1 },
            };
            let mut next = 0;
            for warp in 0..p.threads() / crate::WARP {
                let (first, end) = p.part(warp);
                assert!(first == next && first <= end && (first % 32 == 0 || first == slots));
                assert_eq!(first < end, warp < p.warps(), "{slots} slots, warp {warp}");
                next = end;
            }
            assert_eq!(next, slots);
        }
    }

    #[test]
    fn ids_are_of_experts() {
        let experts = Experts { all: 10, first: 3, count: 4 };
        let ids = [2, 3, 6, 7, 9, 10, -1, i32::MIN, i32::MAX];
        let local = ids.map(|id: i32| experts.local(id as u32));
        assert_eq!(local, [NOWHERE, 0, 3, NOWHERE, NOWHERE, BAD, NOWHERE, BAD, BAD]);
        assert!(!Chosen::NONE.is_given() && Chosen::of(experts).is_given());
    }
}
