//! Clusters: PTX ISA 9.7.9.22 (`mapa`), 9.7.9.23 (`getctarank`), 9.7.13.3
//! (`barrier.cluster`), 9.7.9.12 (`st.async`), 9.7.13.12 (`red.async`), 9.7.19.5
//! (`setmaxnreg`).
//!
//! The semantics of the cluster barrier order nothing here. `st.async` and
//! `red.async` are one asynchronous operation per lane. `setmaxnreg` follows
//! the rules of `machine::units::registers`; as with the assembler, it has no effect in a
//! kernel that does not limit its number of registers.
//!
//! Limits: `.mmio` and global forms of `st.async` are not modelled, nor is `multimem`.

use super::bulk::reduce_op;
use super::mbarrier::{self, shared_operand};
use super::mem;
use super::{Instructions, first_modifier};
use crate::Family;
use crate::decode::{self, Decode, Decoded, Reject, Type};
use crate::diagnostic::AccessKind;
use crate::machine::code::Op;
use crate::machine::regs::LANES;
use crate::machine::units::{
    Awaited, Operation, Piece, Poll, REGISTER_COUNTS, Reach, Signal, Source, Target, Touch,
    Transfer, lanes,
};
use crate::machine::{RANK_SHIFT, window};
use crate::syntax::ast::Operand;
use crate::tensor_map::{ElementType, Reduction};

/// `st.async`, `red.async`.
pub(super) const STORES: Instructions = Instructions {
    accepts: |ins| matches!(ins.opcode.as_str(), "st" | "red") && first_modifier(ins) == "async",
    decode: |d| Ok((Family::Copy, decode_async(d)?)),
};

/// `barrier.cluster`.
pub(super) const BARRIER: Instructions = Instructions {
    accepts: |ins| ins.opcode == "barrier" && first_modifier(ins) == "cluster",
    decode: |d| Ok((Family::Cluster, barrier(d)?)),
};

/// Addresses in a cluster, and registers of a warpgroup.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| matches!(ins.opcode.as_str(), "mapa" | "getctarank" | "setmaxnreg"),
    decode: |d| Ok((Family::Cluster, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    match d.ins.opcode.as_str() {
        "mapa" => mapa(d),
        "getctarank" => getctarank(d),
        _ => setmaxnreg(d),
    }
}

const OFFSET: u32 = (1 << RANK_SHIFT) - 1;

/// `mapa{.shared::cluster}.{u32,u64} d, a, rank`
fn mapa(d: &mut Decode<'_>) -> Decoded<Op> {
    let shared = d.has("shared::cluster");
    match d.ty()? {
        Type::U32 if shared => {
            let operand = d.operand(1)?;
            let named = match operand {
                Operand::Ident(name) => d.address32(name, 0),
                Operand::SymbolOffset { name, offset } => d.address32(name, *offset),
                _ => None,
            };
            let address = match named {
                Some(slot) => slot,
                None => d.src::<u32>(1)?,
            };
            let (target, rank) = (d.dst::<u32>(0)?, d.src::<u32>(2)?);
            Ok(Op::Alu(Box::new(move |regs, mask| {
                let (addresses, ranks) = (regs.row32(address), regs.row32(rank));
                let mapped: [u32; LANES] = std::array::from_fn(|lane| {
                    addresses[lane] & OFFSET | ranks[lane] << RANK_SHIFT
                });
                regs.put(target, mask, &mapped);
            })))
        }
        Type::U64 => {
            let (target, address, rank) = (d.dst::<u64>(0)?, d.src::<u64>(1)?, d.src::<u32>(2)?);
            Ok(Op::Alu(Box::new(move |regs, mask| {
                let (addresses, ranks) = (regs.row64(address), regs.row32(rank));
                let mapped: [u64; LANES] = std::array::from_fn(|lane| {
                    window::tag(addresses[lane])
                        | addresses[lane] & u64::from(OFFSET)
                        | u64::from(ranks[lane]) << RANK_SHIFT
                });
                regs.put(target, mask, &mapped);
            })))
        }
        other => d.bad_type(other),
    }
}

/// `getctarank{.shared::cluster}.{u32,u64} d, a`
fn getctarank(d: &mut Decode<'_>) -> Decoded<Op> {
    let _ = d.has("shared::cluster");
    let rank = |address: u64| (address as u32) >> RANK_SHIFT;
    match d.ty()? {
        Type::U32 => d.map1(move |address: u32| rank(address.into())),
        Type::U64 => {
            let (target, address) = (d.dst::<u32>(0)?, d.src::<u64>(1)?);
            Ok(Op::Alu(Box::new(move |regs, mask| {
                decode::unary(regs, mask, target, address, &rank);
            })))
        }
        other => d.bad_type(other),
    }
}

/// `barrier.cluster.{arrive,wait}{.sem}{.aligned}`
pub(super) fn barrier(d: &mut Decode<'_>) -> Decoded<Op> {
    let _ = d.has("cluster");
    let arrive = d.has("arrive");
    if !arrive && !d.has("wait") {
        return Err(Reject::unsupported("neither .arrive nor .wait"));
    }
    let relaxed = mbarrier::semantics(d);
    let aligned = d.has("aligned");
    Ok(Op::Poll {
        aligned,
        run: Box::new(move |cx, mask| {
            let warp = cx.warp();
            if arrive {
                cx.stats.asynchronous.cluster_arrivals += 1;
                cx.units.cluster_arrive(warp, mask, relaxed)?;
                return Ok(Poll::Done);
            }
            Ok(if cx.units.cluster_wait(warp, mask)? {
                Poll::Done
            } else {
                Poll::Wait(Awaited::Cluster { generation: cx.units.cluster.generation() })
            })
        }),
    })
}

/// `setmaxnreg.{inc,dec}.sync.aligned.u32 count`
fn setmaxnreg(d: &mut Decode<'_>) -> Decoded<Op> {
    let grow = d.has("inc");
    if !grow && !d.has("dec") {
        return Err(Reject::unsupported("neither .inc nor .dec"));
    }
    if !d.has("sync") || !d.has("aligned") || d.ty()? != Type::U32 {
        return Err(Reject::unsupported("other forms than .sync.aligned.u32"));
    }
    let count = d.constant_u32(0)?;
    if !REGISTER_COUNTS.contains(&count) || count % 8 != 0 {
        let required = format!("a multiple of 8 in {REGISTER_COUNTS:?}");
        return Err(Reject::operand(format!("setmaxnreg: required {required}, actual {count}")));
    }
    Ok(Op::Poll {
        aligned: true,
        run: Box::new(move |cx, _| {
            let (rank, warp, pc) = (cx.place.rank, cx.warp(), cx.pc);
            if let Some(fault) = cx.units.registers.uneven_counts(warp, count) {
                cx.report(fault)?;
            }
            Ok(match cx.units.registers.set(rank, warp, pc, (grow, count))? {
                None => {
                    cx.units.happened();
                    Poll::Done
                }
                Some(wanted) => Poll::Wait(Awaited::Registers { rank, wanted }),
            })
        }),
    })
}

/// `st.async{.vec}.type [a], b, [mbar]`, `red.async.op.type [a], b, [mbar]`
pub(super) fn decode_async(d: &mut Decode<'_>) -> Decoded<Op> {
    let store = d.ins.opcode == "st";
    let _ = d.has("async");
    while d.pick(|m| matches!(m, "weak" | "relaxed" | "cluster").then_some(())).is_some() {}
    let reach = if d.has("shared::cluster") { Reach::Cluster } else { Reach::Generic };
    if !d.has("mbarrier::complete_tx::bytes") {
        return Err(Reject::unsupported("completion other than .mbarrier::complete_tx::bytes"));
    }
    let op = if store { None } else { Some(reduce_op(d)?) };
    let count = mem::vector(d);
    let ty = d.ty()?;
    let each = ty.bytes() as usize;
    let bytes = each * count;
    if !matches!(each, 4 | 8) || bytes > 32 || !store && count != 1 {
        return d.bad_type(ty);
    }
    let reduction = match op {
        None => None,
        Some(op) => {
            let element = match ty {
                Type::U32 | Type::B32 => ElementType::U32,
                Type::S32 => ElementType::S32,
                Type::U64 | Type::B64 | Type::S64 => ElementType::U64,
                other => return d.bad_type(other),
            };
            Some(Reduction::new(op, element).map_err(|why| Reject::unsupported(why.to_string()))?)
        }
    };
    let target = d.operand(0)?;
    let target = shared_operand(d, target, reach)?;
    let values = d.operand(1)?;
    let values = d.elements(values);
    if values.len() != count {
        return Err(Reject::operand(format!(
            "vector: required {count} elements, actual {}",
            values.len()
        )));
    }
    let sources =
        values.iter().map(|value| mem::store_source(d, value, ty)).collect::<Decoded<Vec<_>>>()?;
    let barrier = d.operand(2)?;
    let barrier = shared_operand(d, barrier, reach)?;
    let name = if store { "st.async" } else { "red.async" };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (targets, barriers) = (target.address.rows(cx), barrier.address.rows(cx));
        let mut words = [[0; LANES]; 4];
        mem::gather(cx.regs, &sources, each, &mut words);
        for lane in lanes(mask) {
            let size = bytes as u64;
            let touch = Touch { bytes: size, align: size, kind: AccessKind::Write, lane };
            let to = cx.shared_at(target.reach, targets[lane], touch)?;
            let signal = cx.mbarrier_at(barrier.reach, barriers[lane], lane)?;
            if signal.rank != to.rank {
                return Err(cx.bad_operand(
                    lane,
                    "st.async, red.async: mbarrier",
                    format!("in the CTA of the destination, rank {}", to.rank),
                    format!("rank {}", signal.rank),
                ));
            }
            let immediate: Vec<u8> =
                words.iter().flat_map(|row| row[lane].to_le_bytes()).take(bytes).collect();
            let piece = Piece {
                source: Source::Immediate(0),
                target: Target::Shared(to.offset),
                bytes: bytes as u32,
            };
            let transfer = Transfer { immediate, reduction, ..Transfer::one(piece, vec![to.rank]) };
            cx.stats.asynchronous.cluster_copies.count(size);
            cx.issue(Operation {
                name,
                site: cx.site(lane),
                lanes: 1 << lane,
                reads: Vec::new(),
                writes: transfer.writes(),
                async_proxy: false,
                atomic: reduction.is_some(),
                group: None,
                after: Vec::new(),
                signals: vec![Signal::Transaction(signal, bytes as u32)],
                work: transfer.work(),
            })?;
        }
        Ok(())
    })))
}
