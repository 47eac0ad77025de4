//! Control of the grid: PTX ISA 9.7.13.13 (`griddepcontrol`), 9.7.13.16
//! (`clusterlaunchcontrol.try_cancel`, `query_cancel`).
//!
//! `griddepcontrol` works between the launches of a sequence
//! (`machine::dependency`) and has no effect otherwise: earlier launches have
//! ended. `try_cancel` takes over the next cluster of the grid that has not
//! begun; which one is decided at issue, so a run stays deterministic. The
//! response is 16 bytes of the emulator's own: `%ctaid` of the cluster's first
//! CTA and, in the last word, whether there was one.
//!
//! Limits: a request behind one that was seen to fail is answered, though PTX leaves it undefined.

use super::Instructions;
use super::bulk::Bulk;
use super::mbarrier::{self, shared_operand};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::AccessKind;
use crate::machine::Context;
use crate::machine::code::Op;
use crate::machine::regs::{Class, FULL, map_row};
use crate::machine::units::{
    At, Awaited, Piece, Poll, Reach, Signal, Source, Target, Touch, Transfer, lanes,
};

/// Instructions that concern other clusters and grids.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| matches!(ins.opcode.as_str(), "griddepcontrol" | "clusterlaunchcontrol"),
    decode: |d| Ok((Family::Cluster, decode(d)?)),
};

/// Bytes of a response.
const RESPONSE: u32 = 16;
/// The result of `get_first_ctaid` when nothing was cancelled: PTX leaves it undefined.
const NO_CTA: u32 = 0xcbcb_cbcb;

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.ins.opcode == "griddepcontrol" {
        return if d.has("launch_dependents") {
            Ok(Op::Effect(Box::new(|cx, _| {
                cx.units.release_dependents(cx.env, cx.place.rank);
                Ok(())
            })))
        } else if d.has("wait") {
            let run = |cx: &mut Context<'_>, _| {
                let over = cx.units.over(&Awaited::Grid);
                Ok(if over { Poll::Done } else { Poll::Wait(Awaited::Grid) })
            };
            Ok(Op::Poll { aligned: false, run: Box::new(run) })
        } else {
            Err(Reject::unsupported("no known operation"))
        };
    }
    if d.has("try_cancel") {
        return try_cancel(d);
    }
    if d.has("query_cancel") {
        return query_cancel(d);
    }
    Err(Reject::unsupported("no known operation"))
}

/// `clusterlaunchcontrol.try_cancel.async... [response], [mbar]`
fn try_cancel(d: &mut Decode<'_>) -> Decoded<Op> {
    if !d.has("async") || !d.has("mbarrier::complete_tx::bytes") || !d.has("b128") {
        return Err(Reject::unsupported("other forms than .async...complete_tx::bytes.b128"));
    }
    // Who gets which cluster depends on the order of all.
    d.function.global_sync = true;
    d.function.takes_over = true;
    let everywhere = d.has("multicast::cluster::all");
    let reach = mbarrier::reach(d);
    if reach == Reach::Cluster {
        return Err(Reject::unsupported("a response in another CTA"));
    }
    let target = d.operand(0)?;
    let target = shared_operand(d, target, reach)?;
    let barrier = d.operand(1)?;
    let barrier = shared_operand(d, barrier, reach)?;
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (targets, barriers) = (target.address.rows(cx), barrier.address.rows(cx));
        for lane in lanes(mask) {
            let bytes = u64::from(RESPONSE);
            let touch = Touch { bytes, align: bytes, kind: AccessKind::Write, lane };
            let to = cx.shared_at(target.reach, targets[lane], touch)?;
            let at = cx.mbarrier_at(barrier.reach, barriers[lane], lane)?;
            let words = match cx.env.take_cluster() {
                Some(index) => {
                    let most = &mut cx.stats.asynchronous.most_taken_over;
                    *most = (*most).max(cx.units.take_over());
                    let [x, y, z] = cx.env.first_cta(index);
                    [x, y, z, 1]
                }
                None => [NO_CTA, NO_CTA, NO_CTA, 0],
            };
            let ranks: Vec<u32> =
                if everywhere { (0..cx.shared.len() as u32).collect() } else { vec![to.rank] };
            let signals = ranks
                .iter()
                .map(|&rank| Signal::Transaction(At { rank, ..at }, RESPONSE))
                .collect();
            let piece = Piece {
                source: Source::Immediate(0),
                target: Target::Shared(to.offset),
                bytes: RESPONSE,
            };
            let immediate = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let transfer = Transfer { immediate, ..Transfer::one(piece, ranks.clone()) };
            for &rank in &ranks {
                let (env, site) = (cx.env, cx.site(lane));
                cx.check_peer(rank, lane)?;
                cx.units.check_response(env, (rank, to.offset), site)?;
            }
            let name = "clusterlaunchcontrol.try_cancel";
            Bulk { name, lane, transfer, signals: Some(signals) }.issue(cx)?;
        }
        Ok(())
    })))
}

/// `clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, response`,
/// `.get_first_ctaid.v4.b32.b128 {x, y, z, _}, response`,
/// `.get_first_ctaid::x.b32.b128 x, response`
fn query_cancel(d: &mut Decode<'_>) -> Decoded<Op> {
    let response = d.operand(1)?;
    let response = d.source(response, 128)?;
    if response.class != Class::R128 {
        return Err(Reject::operand("response: required a .b128 register"));
    }
    let (low, high) = (response.slot, response.slot.next());
    let target = d.operand(0)?;
    if d.has("is_canceled") {
        if !d.has("pred") || !d.has("b128") {
            return Err(Reject::unsupported("other forms than .pred.b128"));
        }
        let target = d.pred_target(target)?;
        return Ok(Op::Alu(Box::new(move |regs, mask| {
            let value = regs
                .row64(high)
                .iter()
                .enumerate()
                .fold(0, |all, (lane, word)| all | u32::from(word >> 32 & 1 != 0) << lane);
            regs.set_pred(target, mask, value & FULL);
        })));
    }
    let one = d.pick(|m| {
        ["get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"]
            .iter()
            .position(|name| *name == m)
    });
    if one.is_none() && !(d.has("get_first_ctaid") && d.has("v4")) {
        return Err(Reject::unsupported("no known query"));
    }
    if !d.has("b32") || !d.has("b128") {
        return Err(Reject::unsupported("other forms than .b32.b128"));
    }
    let items = d.elements(target);
    let wanted = if one.is_some() { 1 } else { 4 };
    if items.len() != wanted {
        return Err(Reject::operand(format!(
            "destination: required {wanted} elements, actual {}",
            items.len()
        )));
    }
    let mut targets = Vec::new();
    for (at, item) in items.iter().enumerate() {
        targets.push((one.unwrap_or(at), d.dst_of::<u32>(item)?));
    }
    Ok(Op::Alu(Box::new(move |regs, mask| {
        for &(component, target) in &targets {
            let row = match component {
                0 => map_row(regs.row64(low), |word| word as u32),
                1 => map_row(regs.row64(low), |word| (word >> 32) as u32),
                2 => map_row(regs.row64(high), |word| word as u32),
                // The fourth component is not stated by PTX.
                _ => [0; 32],
            };
            regs.put(target, mask, &row);
        }
    })))
}
