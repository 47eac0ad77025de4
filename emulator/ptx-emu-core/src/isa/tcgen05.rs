//! Fifth-generation tensor cores: PTX ISA 9.7.16. Here: allocation (9.7.16.7), commit
//! (9.7.16.12), fences (9.7.16.11), waits; `tcgen05_data` has `ld`, `st`, `cp` and
//! `shift`, `tcgen05_mma` the products.
//!
//! `mma`, `cp` and `shift` of one thread are carried out in the order in which it issues
//! them, but for `mma` before `cp`, which PTX does not promise; of different threads, in
//! any order. Commits of one thread arrive in any order by the model of PTX. `ld` takes effect at once or as
//! late as its `wait::ld`, and `st` likewise. Using cells that an operation in flight uses
//! is reported, as are cells never written, columns not allocated, lanes of another warp,
//! and allocations left at exit. `alloc` of a CTA pair meets in both CTAs, and its warp must
//! know that the other one has started; `dealloc` and `relinquish_alloc_permit` act on the
//! executing one, and both must execute them.
//! Operations of different threads need fences, `machine::race` says which.
//!
//! Not modelled: `mma.ws`, `mma.sp`, `.ashift`, `ld.red`. Limits: orders between `cp` and `cp`,
//! `mma` and `mma` of one thread that PTX does not promise; CTAs of different clusters that compete
//! for the columns of an SM; scale factors that differ between the copies in the quarters of the
//! lanes.

use super::Instructions;
use super::mbarrier::{self, SharedOperand, shared_operand};
use super::mma::sync_aligned;
use super::wgmma::aligned;
use super::{tcgen05_data, tcgen05_mma};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::{AccessKind, Exec, Space};
use crate::machine::code::Op;
use crate::machine::race::Fence;
use crate::machine::regs::{LANES, Slot};
use crate::machine::units::tensor_memory::{ColumnsWait, region, split};
use crate::machine::units::{
    At, Awaited, GroupKind, GroupWait, Nothing, Operation, Poll, Reach, Signal, Touch, lanes,
};
use crate::machine::{AddressSpace, Context};

/// `tcgen05`.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| ins.opcode == "tcgen05",
    decode: |d| Ok((Family::Tensor, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    let first = d.ins.modifiers.first().map(String::as_str).unwrap_or_default();
    let _ = d.has(first);
    match first {
        "alloc" => alloc(d),
        "dealloc" => dealloc(d),
        "relinquish_alloc_permit" => {
            let group = cta_group(d)?;
            sync_aligned(d)?;
            Ok(aligned(move |cx| {
                let rank = cx.place.rank;
                cx.units.tensor.ranks(group, rank)?;
                cx.units.tensor.relinquish(rank)
            }))
        }
        "commit" => commit(d),
        "fence::after_thread_sync" => Ok(Op::Effect(Box::new(|cx, mask| {
            cx.race_tensor_fence(Fence::After, mask);
            Ok(())
        }))),
        "fence::before_thread_sync" => Ok(Op::Effect(Box::new(|cx, mask| {
            cx.race_tensor_fence(Fence::Before, mask);
            Ok(())
        }))),
        "wait::ld" => {
            sync_aligned(d)?;
            Ok(wait(GroupKind::TensorLoad))
        }
        "wait::st" => {
            sync_aligned(d)?;
            Ok(wait(GroupKind::TensorStore))
        }
        "ld" => tcgen05_data::load(d),
        "st" => tcgen05_data::store(d),
        "cp" => tcgen05_data::copy(d),
        "shift" => tcgen05_data::shift(d),
        "mma" => tcgen05_mma::decode(d),
        other => Err(Reject::unsupported(format!("tcgen05.{other}"))),
    }
}

/// Takes `.cta_group::1` or `.cta_group::2`.
pub(super) fn cta_group(d: &mut Decode<'_>) -> Decoded<u32> {
    d.pick(|m| match m {
        "cta_group::1" => Some(1),
        "cta_group::2" => Some(2),
        _ => None,
    })
    .ok_or_else(|| Reject::unsupported("no .cta_group"))
}

/// The value of an operand that must be the same in all executing lanes.
pub(super) fn uniform(
    cx: &Context<'_>,
    row: &[u32; LANES],
    mask: u32,
    operand: &'static str,
) -> Exec<u32> {
    let first = row[mask.trailing_zeros() as usize];
    match lanes(mask).find(|&lane| row[lane] != first) {
        None => Ok(first),
        Some(lane) => {
            let required = format!("{first:#x} in all lanes");
            Err(cx.bad_operand(lane, operand, required, format!("{:#x}", row[lane])))
        }
    }
}

fn wait(kind: GroupKind) -> Op {
    Op::Poll {
        aligned: true,
        run: Box::new(move |cx, mask| {
            let warp = cx.warp();
            let wait = GroupWait { kind, warp, lanes: mask, keep: None, reads_only: false };
            let awaited = Awaited::Groups(wait);
            if !cx.units.over(&awaited) {
                return Ok(Poll::Wait(awaited));
            }
            cx.units.learn_groups(&wait);
            if kind == GroupKind::TensorLoad {
                cx.units.tensor.finish_loads(warp, cx.regs);
            }
            Ok(Poll::Done)
        }),
    }
}

/// `tcgen05.alloc.cta_group.sync.aligned{.shared::cta}.b32 [dst], columns`
fn alloc(d: &mut Decode<'_>) -> Decoded<Op> {
    let group = cta_group(d)?;
    sync_aligned(d)?;
    let reach = mbarrier::reach(d);
    let _ = d.has("b32");
    let operand = d.operand(0)?;
    let target = shared_operand(d, operand, reach)?;
    if let Some(count) = d.known_u32(1)
        && !(count.is_power_of_two() && (32..=512).contains(&count))
    {
        let why = format!("columns: required a power of two from 32 to 512, actual {count}");
        return Err(Reject::operand(why));
    }
    let columns = d.src::<u32>(1)?;
    Ok(Op::Poll {
        aligned: true,
        run: Box::new(move |cx, mask| {
            let lane = mask.trailing_zeros() as usize;
            let columns = uniform(cx, cx.regs.row32(columns), mask, "tcgen05.alloc: columns")?;
            let address = target.address.rows(cx)[lane];
            let touch = Touch { bytes: 4, align: 4, kind: AccessKind::Write, lane };
            let at = cx.shared_at(target.reach, address, touch)?;
            let rank = cx.place.rank;
            for other in cx.units.tensor.ranks(group, rank)? {
                cx.check_started(other, lane)?;
            }
            let wait = ColumnsWait { rank, columns, pair: group == 2 };
            let site = cx.site(lane);
            let Some(column) = cx.units.tensor.allocate(wait, site)? else {
                return Ok(Poll::Wait(Awaited::Columns(wait)));
            };
            cx.race_allocated(group);
            cx.units.happened();
            let addrs = [u64::from(at.address()); LANES];
            let mut values = [[0; LANES]; 4];
            values[0] = [u64::from(column); LANES];
            cx.store(AddressSpace::One(Space::Shared), &addrs, 1 << lane, 4, &values)?;
            // All lanes together have stored it.
            cx.race_met(mask);
            Ok(Poll::Done)
        }),
    })
}

/// `tcgen05.dealloc.cta_group.sync.aligned.b32 taddr, columns`
fn dealloc(d: &mut Decode<'_>) -> Decoded<Op> {
    let group = cta_group(d)?;
    sync_aligned(d)?;
    let _ = d.has("b32");
    let (address, columns) = (d.src::<u32>(0)?, d.src::<u32>(1)?);
    Ok(Op::Poll {
        aligned: true,
        run: Box::new(move |cx, mask| {
            let address = uniform(cx, cx.regs.row32(address), mask, "tcgen05.dealloc: address")?;
            let columns = uniform(cx, cx.regs.row32(columns), mask, "tcgen05.dealloc: columns")?;
            let rank = cx.place.rank;
            cx.units.tensor.ranks(group, rank)?;
            cx.units.tensor.deallocate(rank, address, columns)?;
            let mut ranges = Vec::new();
            region(rank, (0, 128), (split(address).1, columns), &mut ranges);
            for range in &ranges {
                cx.check_flight_at(range, true, mask.trailing_zeros() as usize)?;
            }
            cx.race_freed(group, &ranges)?;
            cx.units.happened();
            Ok(Poll::Done)
        }),
    })
}

/// CTAs that a commit reports to.
#[derive(Debug, Clone, Copy)]
struct Commit {
    group: u32,
    barrier: SharedOperand,
    /// `.multicast::cluster`
    ctas: Option<Slot>,
}

/// `tcgen05.commit.cta_group.mbarrier::arrive::one{.shared::cluster}
/// {.multicast::cluster}.b64 [mbar]{, mask}`
fn commit(d: &mut Decode<'_>) -> Decoded<Op> {
    let group = cta_group(d)?;
    if !d.has("mbarrier::arrive::one") {
        return Err(Reject::unsupported("completion other than .mbarrier::arrive::one"));
    }
    let reach = mbarrier::reach(d);
    let multicast = d.has("multicast::cluster");
    let _ = d.has("b64");
    let operand = d.operand(0)?;
    let barrier = shared_operand(d, operand, reach)?;
    let ctas = if multicast { Some(d.src::<u16>(1)?) } else { None };
    let commit = Commit { group, barrier, ctas };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let addrs = commit.barrier.address.rows(cx);
        for lane in lanes(mask) {
            commit.issue(cx, addrs[lane], lane)?;
        }
        Ok(())
    })))
}

impl Commit {
    fn issue(&self, cx: &mut Context<'_>, address: u64, lane: usize) -> Exec {
        let rank = cx.place.rank;
        cx.units.tensor.ranks(self.group, rank)?;
        // A 32-bit shared address without a state space may be of any CTA.
        let at = cx.mbarrier_at(self.barrier.reach.wider(), address, lane)?;
        let mut signals = Vec::new();
        match self.ctas {
            None => signals.push(Signal::Arrive(at, 1)),
            Some(slot) => {
                let ctas = cx.regs.row32(slot)[lane] & 0xffff;
                if ctas == 0 || ctas >> cx.shared.len() != 0 {
                    let required = format!("bits of the {} CTAs of the cluster", cx.shared.len());
                    let actual = format!("{ctas:#x}");
                    return Err(cx.bad_operand(lane, "tcgen05.commit: CTA mask", required, actual));
                }
                for rank in (0..16).filter(|rank| ctas >> rank & 1 != 0) {
                    cx.check_peer(rank, lane)?;
                    signals.push(Signal::Arrive(At { rank, ..at }, 1));
                }
            }
        }
        let none = (Vec::new(), Vec::new());
        issue_ordered(cx, GroupKind::TensorCommit, lane, none, signals, Nothing)
    }
}

impl Reach {
    /// Returns the state space that a generic operand reaches.
    const fn wider(self) -> Self {
        match self {
            Self::Own => Self::Cluster,
            other => other,
        }
    }
}

/// Issues an operation that comes after those of the thread that are ordered before it.
pub(super) fn issue_ordered(
    cx: &mut Context<'_>,
    kind: GroupKind,
    lane: usize,
    (reads, writes): (Vec<crate::machine::units::Range>, Vec<crate::machine::units::Range>),
    signals: Vec<Signal>,
    work: impl crate::machine::units::Work + 'static,
) -> Exec {
    let warp = cx.warp();
    let lanes = 1 << lane;
    let earlier = kind.ordered_behind(cx.env.is_strict());
    let after = cx.units.issued_by(earlier, warp, lanes);
    cx.issue(Operation {
        name: match kind {
            GroupKind::TensorProduct => "tcgen05.mma",
            GroupKind::TensorCopy => "tcgen05.cp",
            GroupKind::TensorShift => "tcgen05.shift",
            _ => "tcgen05.commit",
        },
        site: cx.site(lane),
        lanes,
        reads,
        writes,
        async_proxy: true,
        atomic: false,
        group: Some(cx.units.groups.membership(kind, warp, lane)),
        after,
        signals,
        work: Box::new(work),
    })?;
    Ok(())
}
