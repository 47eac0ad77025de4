//! Bulk copies: PTX ISA 9.7.9.25.4 (`cp.async.bulk`, `cp.reduce.async.bulk`,
//! `cp.async.bulk.prefetch`, `cp.async.bulk.commit_group`,
//! `cp.async.bulk.wait_group`).
//!
//! All directions, multicast and byte masks are modelled. Cache policies and prefetches have
//! no effect, but the range of a prefetch is checked. Every executing lane issues a separate
//! operation.
//!
//! Limits: reductions combine all bytes at once; see also `machine::units`.

use super::cp_async::{commit, wait};
use super::mbarrier::{SharedOperand, semantics, shared_operand};
use super::{mem, tma};
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::diagnostic::{AccessKind, Exec, Space};
use crate::machine::code::Op;
use crate::machine::regs::Slot;
use crate::machine::units::{
    At, GroupKind, Operation, Piece, Reach, Signal, Source, Target, Touch, Transfer, lanes,
};
use crate::machine::{AddressSpace, Context};
use crate::tensor_map::{ElementType, ReduceOp, Reduction};

/// Alignment of addresses and sizes, bytes.
const ALIGN: u64 = 16;

/// Decodes the rest of `cp.async.bulk`.
pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.has("commit_group") {
        return Ok(commit(GroupKind::Bulk));
    }
    if d.has("wait_group") {
        let reads_only = d.has("read");
        return Ok(wait(GroupKind::Bulk, Some(d.constant_u32(0)?), reads_only));
    }
    let prefetch = d.has("prefetch");
    if d.has("tensor") {
        return if prefetch { tma::prefetch(d) } else { tma::copy(d) };
    }
    if prefetch {
        return self::prefetch(d);
    }
    copy(d, None)
}

/// Decodes the rest of `cp.reduce`.
pub(super) fn reduce(d: &mut Decode<'_>) -> Decoded<Op> {
    if !d.has("async") || !d.has("bulk") {
        return Err(Reject::unsupported("cp.reduce without .async.bulk"));
    }
    if d.has("tensor") {
        return tma::reduce(d);
    }
    // `.noftz` is the only way that f16 and bf16 exist.
    let _ = d.has("noftz");
    let op = reduce_op(d)?;
    let element = match d.ty()? {
        Type::U32 | Type::B32 => ElementType::U32,
        Type::S32 => ElementType::S32,
        Type::U64 | Type::B64 => ElementType::U64,
        // A sum does not depend on the sign.
        Type::S64 if op == ReduceOp::Add => ElementType::U64,
        Type::S64 => ElementType::S64,
        Type::F16 => ElementType::F16,
        Type::Bf16 => ElementType::Bf16,
        Type::F32 => ElementType::F32,
        Type::F64 => ElementType::F64,
        other => return d.bad_type(other),
    };
    let reduction =
        Reduction::new(op, element).map_err(|why| Reject::unsupported(why.to_string()))?;
    copy(d, Some(reduction))
}

/// Takes the operation of a reduction.
pub(super) fn reduce_op(d: &mut Decode<'_>) -> Decoded<ReduceOp> {
    d.pick(ReduceOp::from_name).ok_or_else(|| Reject::unsupported("no known reduction"))
}

/// `cp.async.bulk.prefetch.L2.global [src], size`
fn prefetch(d: &mut Decode<'_>) -> Decoded<Op> {
    let _ = d.has("L2::cache_hint");
    if !d.has("L2") || !d.has("global") {
        return Err(Reject::unsupported("a prefetch other than .L2.global"));
    }
    let source = d.operand(0)?;
    let (source, _) = mem::address(d, source, AddressSpace::One(Space::Global))?;
    let size = d.src::<u32>(1)?;
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (addrs, sizes) = (source.rows(cx), *cx.regs.row32(size));
        for lane in lanes(mask) {
            let bytes = check_size(cx, sizes[lane], lane)?;
            let touch = Touch { bytes, align: ALIGN, kind: AccessKind::Read, lane };
            cx.global_at(addrs[lane], touch)?;
            cx.stats.asynchronous.prefetches += 1;
        }
        Ok(())
    })))
}

fn check_size(cx: &Context<'_>, size: u32, lane: usize) -> Exec<u64> {
    if u64::from(size).is_multiple_of(ALIGN) {
        return Ok(size.into());
    }
    Err(cx.bad_operand(lane, "bulk copy: size", "a multiple of 16", size))
}

/// The report of a copy to shared memory, and its receiver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) barrier: SharedOperand,
    /// `.multicast::cluster`: CTAs that get the data.
    pub(super) ctas: Option<Slot>,
    /// `.cta_group::2`: the mbarrier may be that of the other CTA of the pair.
    pub(super) pair: bool,
}

impl Report {
    /// Ranks that get the data, and the mbarriers that they complete on.
    pub(super) fn resolve(
        &self,
        cx: &Context<'_>,
        target: At,
        barrier: u64,
        lane: usize,
        bytes: u32,
    ) -> Exec<(Vec<u32>, Vec<Signal>)> {
        let barrier = cx.mbarrier_at(self.barrier.reach, barrier, lane)?;
        let near =
            if self.pair { barrier.rank ^ target.rank <= 1 } else { barrier.rank == target.rank };
        let Some(ctas) = self.ctas else {
            if !near {
                let required = if self.pair {
                    "in the CTA of the destination or the other one of its pair"
                } else {
                    "in the CTA of the destination"
                };
                let actual = format!("ranks {} and {}", barrier.rank, target.rank);
                return Err(cx.bad_operand(lane, "bulk copy: mbarrier", required, actual));
            }
            return Ok((vec![target.rank], vec![Signal::Transaction(barrier, bytes)]));
        };
        let mask = cx.regs.row32(ctas)[lane] & 0xffff;
        if mask == 0 || mask >> cx.shared.len() != 0 {
            let required = format!("bits of the {} CTAs of the cluster", cx.shared.len());
            return Err(cx.bad_operand(
                lane,
                "bulk copy: CTA mask",
                required,
                format!("{mask:#x}"),
            ));
        }
        let mut ranks = Vec::new();
        let mut signals = Vec::new();
        for rank in (0..16).filter(|rank| mask >> rank & 1 != 0) {
            cx.check_peer(rank, lane)?;
            // With a pair, the CTA of the same parity as the given mbarrier's
            // hears for both (PTX ISA 9.7.9.27.1.2).
            let listener = if self.pair { rank & !1 | barrier.rank & 1 } else { rank };
            ranks.push(rank);
            signals.push(Signal::Transaction(At { rank: listener, ..barrier }, bytes));
        }
        Ok((ranks, signals))
    }
}

/// An operation about to be issued.
pub(super) struct Bulk {
    pub(super) name: &'static str,
    pub(super) lane: usize,
    pub(super) transfer: Transfer,
    /// Signals of one that reports to mbarriers; else it joins a bulk group.
    pub(super) signals: Option<Vec<Signal>>,
}

impl Bulk {
    pub(super) fn issue(self, cx: &mut Context<'_>) -> Exec {
        let Self { name, lane, transfer, signals, .. } = self;
        let warp = cx.warp();
        let group = match signals {
            Some(_) => None,
            None => cx.units.groups.split(GroupKind::Bulk, warp, 1 << lane).first().map(|g| g.0),
        };
        cx.issue(Operation {
            name,
            site: cx.site(lane),
            lanes: 1 << lane,
            reads: transfer.reads(),
            writes: transfer.writes(),
            async_proxy: true,
            atomic: transfer.reduction.is_some(),
            group,
            after: Vec::new(),
            signals: signals.unwrap_or_default(),
            work: transfer.work(),
        })?;
        Ok(())
    }
}

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Load,
    Store,
    Across,
}

/// `cp.async.bulk.dst.src.completion [dst], [src], size, ...`
fn copy(d: &mut Decode<'_>, reduction: Option<Reduction>) -> Decoded<Op> {
    d.module.async_proxy = true;
    semantics(d);
    let mut spaces = Vec::new();
    while let Some(space) = d.pick(|m| {
        ["global", "shared::cta", "shared::cluster"].into_iter().find(|space| *space == m)
    }) {
        spaces.push(space);
    }
    let (way, reach) = match spaces.as_slice() {
        ["shared::cta", "global"] => (Way::Load, Reach::Own),
        ["shared::cluster", "global"] => (Way::Load, Reach::Cluster),
        ["shared::cluster", "shared::cta"] => (Way::Across, Reach::Cluster),
        ["global", "shared::cta"] => (Way::Store, Reach::Own),
        _ => return Err(Reject::unsupported(format!("a bulk copy between {spaces:?}"))),
    };
    if reduction.is_some() && way == Way::Load {
        return Err(Reject::unsupported("a reduction from global memory"));
    }
    let completion = if way == Way::Store { "bulk_group" } else { "mbarrier::complete_tx::bytes" };
    if !d.has(completion) {
        return Err(Reject::unsupported(format!("completion other than .{completion}")));
    }
    let hint = d.has("L2::cache_hint");
    let multicast = way == Way::Load && d.has("multicast::cluster");
    let masked = way == Way::Store && reduction.is_none() && d.has("cp_mask");
    let operands =
        3 + usize::from(way != Way::Store) + usize::from(multicast || masked) + usize::from(hint);
    if d.count() != operands {
        return Err(Reject::operand(format!(
            "operands: required {operands}, actual {}",
            d.count()
        )));
    }
    if way == Way::Store {
        return store(d, reduction, masked, hint);
    }
    let target = d.operand(0)?;
    let target = shared_operand(d, target, reach)?;
    let source = d.operand(1)?;
    let (source, own) = if way == Way::Load {
        (mem::address(d, source, AddressSpace::One(Space::Global))?.0, None)
    } else {
        let source = shared_operand(d, source, Reach::Own)?;
        (source.address, Some(source.reach))
    };
    let size = d.src::<u32>(2)?;
    let barrier = d.operand(3)?;
    let barrier = shared_operand(d, barrier, reach)?;
    let ctas = if multicast { Some(d.src::<u16>(4)?) } else { None };
    let report = Report { barrier, ctas, pair: false };
    if hint {
        d.src::<u64>(4 + usize::from(multicast))?;
    }
    let name = match (reduction, way) {
        (Some(_), _) => "cp.reduce.async.bulk",
        _ => "cp.async.bulk",
    };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (targets, sources) = (target.address.rows(cx), source.rows(cx));
        let (sizes, barriers) = (*cx.regs.row32(size), report.barrier.address.rows(cx));
        for lane in lanes(mask) {
            let bytes = check_size(cx, sizes[lane], lane)?;
            let touch = |kind| Touch { bytes, align: ALIGN, kind, lane };
            let to = cx.shared_at(target.reach, targets[lane], touch(AccessKind::Write))?;
            let from = match own {
                None => Source::Global(cx.global_at(sources[lane], touch(AccessKind::Read))?),
                Some(reach) => {
                    Source::Shared(cx.shared_at(reach, sources[lane], touch(AccessKind::Read))?)
                }
            };
            let (ranks, signals) = report.resolve(cx, to, barriers[lane], lane, bytes as u32)?;
            let count = &mut cx.stats.asynchronous;
            if own.is_none() { &mut count.bulk_loads } else { &mut count.cluster_copies }
                .count(bytes);
            count.multicast_bytes += (ranks.len() as u64 - 1) * bytes;
            let piece =
                Piece { source: from, target: Target::Shared(to.offset), bytes: bytes as u32 };
            let transfer = Transfer { reduction, ..Transfer::one(piece, ranks) };
            Bulk { name, lane, transfer, signals: Some(signals) }.issue(cx)?;
        }
        Ok(())
    })))
}

/// `cp.async.bulk.global.shared::cta.bulk_group [dst], [src], size{, policy}{, mask}`
fn store(
    d: &mut Decode<'_>,
    reduction: Option<Reduction>,
    masked: bool,
    hint: bool,
) -> Decoded<Op> {
    let target = d.operand(0)?;
    let (target, _) = mem::address(d, target, AddressSpace::One(Space::Global))?;
    let source = d.operand(1)?;
    let source = shared_operand(d, source, Reach::Own)?;
    let size = d.src::<u32>(2)?;
    if hint {
        d.src::<u64>(3)?;
    }
    let keep = if masked { Some(d.src::<u16>(3 + usize::from(hint))?) } else { None };
    if reduction.is_some() {
        // The order of reductions from several clusters shows.
        d.function.global_sync = true;
    }
    let name = if reduction.is_some() { "cp.reduce.async.bulk" } else { "cp.async.bulk" };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (targets, sources) = (target.rows(cx), source.address.rows(cx));
        let sizes = *cx.regs.row32(size);
        for lane in lanes(mask) {
            let bytes = check_size(cx, sizes[lane], lane)?;
            let touch = |kind| Touch { bytes, align: ALIGN, kind, lane };
            let to = cx.global_at(targets[lane], touch(AccessKind::Write))?;
            let from = cx.shared_at(source.reach, sources[lane], touch(AccessKind::Read))?;
            let piece = |at: u32, bytes| Piece {
                source: Source::Shared(At { offset: from.offset + at, ..from }),
                target: Target::Global(to + u64::from(at)),
                bytes,
            };
            let pieces = match keep {
                None => vec![piece(0, bytes as u32)],
                // Bit i of the mask keeps byte i of every 16.
                Some(slot) => {
                    let keep = cx.regs.row32(slot)[lane];
                    (0..bytes as u32)
                        .filter(|at| keep >> (at % 16) & 1 != 0)
                        .map(|at| piece(at, 1))
                        .collect()
                }
            };
            let count = &mut cx.stats.asynchronous;
            if reduction.is_some() { &mut count.bulk_reductions } else { &mut count.bulk_stores }
                .count(bytes);
            let transfer = Transfer { pieces, reduction, ..Transfer::default() };
            Bulk { name, lane, transfer, signals: None }.issue(cx)?;
        }
        Ok(())
    })))
}
