//! Barriers and fences: PTX ISA 9.7.13.1 (`bar`, `barrier`), 9.7.13.2
//! (`bar.warp.sync`), 9.7.13.4 (`membar`, `fence`).
//!
//! Memory is sequentially consistent here, so fences matter only for the detection of
//! races. `bar` is aligned, and `barrier` is with `.aligned`; an
//! aligned barrier that a part of the warp cannot reach is reported. Cluster
//! barriers and proxy fences belong to the asynchronous units.

use super::{Instructions, first_modifier};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::Reduction;
use crate::machine::code::{BarrierOp, Op, RedTarget};

/// Barriers of a CTA, and fences.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| match (ins.opcode.as_str(), first_modifier(ins)) {
        ("bar" | "membar", _) => true,
        ("barrier", first) => first != "cluster",
        ("fence", first) => first != "proxy",
        _ => false,
    },
    decode: |d| Ok((Family::Sync, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    match d.ins.opcode.as_str() {
        "membar" | "fence" => fence(d),
        _ => barrier(d),
    }
}

fn fence(d: &mut Decode<'_>) -> Decoded<Op> {
    const PLAIN: [&str; 12] = [
        "sc",
        "acq_rel",
        "acquire",
        "release",
        "cta",
        "cluster",
        "gpu",
        "sys",
        "gl",
        "volatile",
        "mbarrier_init",
        "sync_restrict::shared::cta",
    ];
    while d.pick(|m| PLAIN.contains(&m).then_some(())).is_some() {}
    Ok(Op::Effect(Box::new(|cx, mask| {
        cx.race_fence(mask);
        Ok(())
    })))
}

fn barrier(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.has("warp") {
        if !d.has("sync") {
            return Err(Reject::unsupported("bar.warp without .sync"));
        }
        let members = d.src::<u32>(0)?;
        return Ok(Op::WarpBarrier { members });
    }
    let _ = d.has("cta");
    let aligned = d.has("aligned") || d.ins.opcode == "bar";
    let kind = d
        .pick(|m| ["sync", "arrive", "red"].into_iter().find(|kind| *kind == m))
        .ok_or_else(|| Reject::unsupported("no known barrier operation"))?;
    if kind == "red" {
        return reduction(d, aligned);
    }
    let id = d.src::<u32>(0)?;
    let count = if d.count() > 1 { Some(d.src::<u32>(1)?) } else { None };
    if kind == "arrive" && count.is_none() {
        return Err(Reject::operand("thread count: required for .arrive"));
    }
    Ok(Op::Barrier(Box::new(BarrierOp {
        id,
        count,
        aligned,
        wait: kind == "sync",
        reduction: None,
    })))
}

/// `bar.red.popc.u32 d, a{, b}, {!}c`, `bar.red.and.pred p, a{, b}, {!}c`
fn reduction(d: &mut Decode<'_>, aligned: bool) -> Decoded<Op> {
    let op = d
        .pick(|m| {
            Some(match m {
                "popc" => Reduction::Count,
                "and" => Reduction::And,
                "or" => Reduction::Or,
                _ => return None,
            })
        })
        .ok_or_else(|| Reject::unsupported("no known reduction"))?;
    let target = d.operand(0)?;
    let target = match (d.ty()?, op) {
        (Type::U32, Reduction::Count) => RedTarget::Count(d.dst_of::<u32>(target)?),
        (Type::Pred, Reduction::And | Reduction::Or) => RedTarget::Pred(d.pred_target(target)?),
        (other, _) => return d.bad_type(other),
    };
    let id = d.src::<u32>(1)?;
    let (count, pred) = if d.count() > 3 { (Some(d.src::<u32>(2)?), 3) } else { (None, 2) };
    let pred = d.operand(pred)?;
    let pred = d.pred(pred)?;
    Ok(Op::Barrier(Box::new(BarrierOp {
        id,
        count,
        aligned,
        wait: true,
        reduction: Some((op, pred, target)),
    })))
}
