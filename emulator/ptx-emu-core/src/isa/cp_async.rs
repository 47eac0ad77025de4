//! Copies by threads: PTX ISA 9.7.9.25.3 (`cp.async`,
//! `cp.async.commit_group`, `cp.async.wait_group`, `cp.async.wait_all`).
//!
//! These copies are of the generic proxy. Cache operators, prefetch sizes and
//! cache policies have no effect. The copies of one warp instruction read and
//! write together.

use super::Instructions;
use super::mbarrier::{self, shared_operand};
use super::{bulk, mem};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::{AccessKind, Space};
use crate::machine::AddressSpace;
use crate::machine::code::Op;
use crate::machine::regs::{LANES, Pred, Slot};
use crate::machine::units::{
    Awaited, GroupKind, GroupWait, Operation, Piece, Poll, Reach, Source, Target, Touch, Transfer,
    lanes,
};

/// `cp`.
pub(super) const INSTRUCTIONS: Instructions =
    Instructions { accepts: |ins| ins.opcode == "cp", decode: |d| Ok((Family::Copy, decode(d)?)) };

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.has("reduce") {
        return bulk::reduce(d);
    }
    if !d.has("async") {
        return Err(Reject::unsupported("cp without .async"));
    }
    if d.has("bulk") {
        return bulk::decode(d);
    }
    if d.has("mbarrier") {
        return if d.has("arrive") {
            mbarrier::copies_arrive(d)
        } else {
            Err(Reject::unsupported("no known operation"))
        };
    }
    if d.has("commit_group") {
        return Ok(commit(GroupKind::Copy));
    }
    if d.has("wait_all") {
        return Ok(wait(GroupKind::Copy, None, false));
    }
    if d.has("wait_group") {
        return Ok(wait(GroupKind::Copy, Some(d.constant_u32(0)?), false));
    }
    copy(d)
}

/// Closes the executing threads' groups.
pub(super) fn commit(kind: GroupKind) -> Op {
    Op::Effect(Box::new(move |cx, mask| {
        let warp = cx.warp();
        cx.units.groups.commit(kind, warp, mask);
        Ok(())
    }))
}

/// Waits until at most `keep` groups are in flight.
pub(super) fn wait(kind: GroupKind, keep: Option<u32>, reads_only: bool) -> Op {
    Op::Poll {
        aligned: false,
        run: Box::new(move |cx, mask| {
            let wait = GroupWait { kind, warp: cx.warp(), lanes: mask, keep, reads_only };
            let awaited = Awaited::Groups(wait);
            if !cx.units.over(&awaited) {
                return Ok(Poll::Wait(awaited));
            }
            cx.units.learn_groups(&wait);
            Ok(Poll::Done)
        }),
    }
}

/// The number of source bytes that a lane reads.
#[derive(Debug, Clone, Copy)]
enum Amount {
    All,
    Bytes(Slot),
    Unless(Pred),
}

/// `cp.async.{ca,cg}.shared.global [dst], [src], size{, bytes|ignore}{, policy}`
fn copy(d: &mut Decode<'_>) -> Decoded<Op> {
    let small = d.has("ca");
    if !small && !d.has("cg") {
        return Err(Reject::unsupported("neither .ca nor .cg"));
    }
    let space = mbarrier::reach(d);
    if space != Reach::Own || !d.has("global") {
        return Err(Reject::unsupported("other spaces than .shared and .global"));
    }
    let hint = d.has("L2::cache_hint");
    mem::skip_hints(d);
    let target = d.operand(0)?;
    let target = shared_operand(d, target, Reach::Own)?;
    let source = d.operand(1)?;
    let (source, _) = mem::address(d, source, AddressSpace::One(Space::Global))?;
    let size = d.constant_u32(2)?;
    if !matches!((size, small), (4 | 8 | 16, true) | (16, false)) {
        return Err(Reject::operand(format!(
            "size: required {}, actual {size}",
            if small { "4, 8 or 16" } else { "16" }
        )));
    }
    let amount = if d.count() > 3 + usize::from(hint) {
        let operand = d.operand(3)?;
        match d.pred(operand) {
            Ok(pred @ Pred::Register(..)) => {
                let what = "cp.async with a predicate";
                let language = d.module.language;
                match language.and_then(|language| language.lacks_since(what, (7, 5))) {
                    Some(why) => return Err(Reject::unsupported(why)),
                    None => Amount::Unless(pred),
                }
            }
            _ => Amount::Bytes(d.src::<u32>(3)?),
        }
    } else {
        Amount::All
    };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (targets, sources) = (target.address.rows(cx), source.rows(cx));
        let amounts: [u32; LANES] = match amount {
            Amount::All => [size; LANES],
            Amount::Bytes(slot) => *cx.regs.row32(slot),
            Amount::Unless(pred) => {
                let ignored = cx.regs.pred(pred);
                std::array::from_fn(|lane| if ignored >> lane & 1 != 0 { 0 } else { size })
            }
        };
        let warp = cx.warp();
        for (group, here) in cx.units.groups.split(GroupKind::Copy, warp, mask) {
            let mut transfer = Transfer { ranks: vec![cx.place.rank], ..Transfer::default() };
            for lane in lanes(here) {
                let bytes = amounts[lane];
                if bytes > size {
                    return Err(cx.bad_operand(
                        lane,
                        "cp.async: source size",
                        format!("at most {size}"),
                        bytes,
                    ));
                }
                let align = u64::from(size);
                let touch = |bytes, kind| Touch { bytes, align, kind, lane };
                let to =
                    cx.shared_at(Reach::Own, targets[lane], touch(align, AccessKind::Write))?;
                if bytes != 0 {
                    let from = touch(bytes.into(), AccessKind::Read);
                    let source = Source::Global(cx.global_at(sources[lane], from)?);
                    let target = Target::Shared(to.offset);
                    transfer.pieces.push(Piece { source, target, bytes });
                }
                if bytes < size {
                    transfer.pieces.push(Piece {
                        source: Source::Fill,
                        target: Target::Shared(to.offset + bytes),
                        bytes: size - bytes,
                    });
                }
                cx.stats.asynchronous.copies.count(align);
            }
            cx.issue(Operation {
                name: "cp.async",
                site: cx.site(here.trailing_zeros() as usize),
                lanes: here,
                reads: transfer.reads(),
                writes: transfer.writes(),
                async_proxy: false,
                atomic: false,
                group: Some(group),
                after: Vec::new(),
                signals: Vec::new(),
                work: transfer.work(),
            })?;
        }
        Ok(())
    })))
}
