//! Exchange between lanes of a warp: PTX ISA 9.7.9.6 (`shfl.sync`), 9.7.13.3 to
//! 9.7.13.7 (`vote.sync`, `match.sync`, `activemask`, `redux.sync`), 9.7.13.8
//! (`elect.sync`).
//!
//! A `.sync` instruction waits until all live lanes of the executing lane's member mask are at it. Lanes of one warp
//! may use different masks at once. Lanes that have exited are not waited for. Values that are read from a lane that
//! does not take part are undefined, and reported if something depends on them. The forms without `.sync` do not
//! exist on `sm_70` and later.

use super::Instructions;
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::diagnostic::Exec;
use crate::machine::Context;
use crate::machine::code::{Effect, Op};
use crate::machine::regs::{FULL, LANES, POISONED, Slot, map_row};
use crate::num::{MinMaxFlags, single};

/// Exchanges between the lanes of a warp.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| {
        matches!(ins.opcode.as_str(), "shfl" | "vote" | "match" | "redux" | "elect" | "activemask")
    },
    decode: |d| Ok((Family::Warp, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.ins.opcode == "activemask" {
        d.ty()?;
        let target = d.dst::<u32>(0)?;
        return Ok(Op::Effect(Box::new(move |cx, mask| {
            cx.regs.put(target, mask, &[mask; LANES]);
            Ok(())
        })));
    }
    if !d.has("sync") {
        return Err(Reject::unsupported("no .sync"));
    }
    match d.ins.opcode.as_str() {
        "shfl" => shfl(d),
        "vote" => vote(d),
        "match" => match_lanes(d),
        "redux" => redux(d),
        _ => elect(d),
    }
}

fn exchange(d: &mut Decode<'_>, members: usize, run: impl FnOnce(Slot) -> Effect) -> Decoded<Op> {
    let members = d.src::<u32>(members)?;
    Ok(Op::Exchange { members, run: run(members) })
}

/// Calls `f` for each group of executing lanes with the same member mask.
fn for_groups(
    cx: &mut Context<'_>,
    members: Slot,
    mask: u32,
    mut f: impl FnMut(&mut Context<'_>, u32),
) {
    let row = *cx.regs.row32(members);
    let mut rest = mask;
    while rest != 0 {
        let group = row[rest.trailing_zeros() as usize];
        let here = rest & group;
        f(cx, here);
        rest &= !here;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

impl Shuffle {
    /// Source lane and whether it is in range (pseudocode of 9.7.9.6).
    #[inline(always)]
    fn source(self, lane: u32, b: u32, c: u32) -> (u32, bool) {
        let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
        let most = (lane & segment) | (clamp & !segment);
        let least = lane & segment;
        let (source, valid) = match self {
            // Wraps below 0; as signed numbers the comparison fails then.
            Self::Up => {
                let source = lane as i32 - b as i32;
                (source as u32, source >= most as i32)
            }
            Self::Down => (lane + b, lane + b <= most),
            Self::Bfly => (lane ^ b, lane ^ b <= most),
            Self::Idx => {
                let source = least | (b & !segment);
                (source, source <= most)
            }
        };
        (if valid { source } else { lane }, valid)
    }
}

fn shfl(d: &mut Decode<'_>) -> Decoded<Op> {
    let mode = d
        .pick(|m| {
            Some(match m {
                "up" => Shuffle::Up,
                "down" => Shuffle::Down,
                "bfly" => Shuffle::Bfly,
                "idx" => Shuffle::Idx,
                _ => return None,
            })
        })
        .ok_or_else(|| Reject::unsupported("no known mode"))?;
    d.ty()?;
    let (target, pred) = Decode::pair(d.operand(0)?);
    let target = d.dst_of::<u32>(target)?;
    let pred = pred.map(|p| d.pred_target(p)).transpose()?;
    let (a, b, c) = (d.src::<u32>(1)?, d.src::<u32>(2)?, d.src::<u32>(3)?);
    exchange(d, 4, |members| {
        Box::new(move |cx: &mut Context<'_>, mask: u32| -> Exec {
            let regs = &mut *cx.regs;
            let mut out = [0; LANES];
            let (mut valid, mut inactive, mut undefined) = (0, 0, 0);
            let unknown = regs.undefined(a);
            {
                let (a, b, c) = (regs.row32(a), regs.row32(b), regs.row32(c));
                let members = regs.row32(members);
                for lane in 0..LANES {
                    let (source, inside) = mode.source(lane as u32, b[lane], c[lane]);
                    out[lane] = a[(source & 31) as usize];
                    valid |= u32::from(inside) << lane;
                    let present = mask & members[lane] & 1 << (source & 31) != 0;
                    inactive |= u32::from(!present) << lane;
                    undefined |= (unknown >> (source & 31) & 1) << lane;
                    if !present {
                        out[lane] = POISONED;
                    }
                }
            }
            regs.put(target, mask, &out);
            inactive &= mask;
            if inactive != 0 || regs.watch.busy() {
                regs.undefine(target, mask, undefined & !inactive, None);
                regs.undefine(target, inactive, inactive, Some(cx.pc));
            }
            if let Some(pred) = pred {
                regs.set_pred(pred, mask, valid);
            }
            Ok(())
        })
    })
}

fn vote(d: &mut Decode<'_>) -> Decoded<Op> {
    let mode = d
        .pick(|m| ["all", "any", "uni", "ballot"].into_iter().find(|mode| *mode == m))
        .ok_or_else(|| Reject::unsupported("no known mode"))?;
    let ty = d.ty()?;
    let source = d.operand(1)?;
    let source = d.pred(source)?;
    let target = d.operand(0)?;
    if mode == "ballot" {
        let target = d.dst_of::<u32>(target)?;
        return exchange(d, 2, |members| {
            Box::new(move |cx, mask| {
                let value = cx.regs.pred(source);
                for_groups(cx, members, mask, |cx, here| {
                    cx.regs.put(target, here, &[value & here; LANES]);
                });
                Ok(())
            })
        });
    }
    if ty != Type::Pred {
        return d.bad_type(ty);
    }
    let target = d.pred_target(target)?;
    exchange(d, 2, |members| {
        Box::new(move |cx, mask| {
            let value = cx.regs.pred(source);
            for_groups(cx, members, mask, |cx, here| {
                let trues = value & here;
                let result = match mode {
                    "all" => trues == here,
                    "any" => trues != 0,
                    _ => trues == here || trues == 0,
                };
                cx.regs.set_pred(target, here, if result { FULL } else { 0 });
            });
            Ok(())
        })
    })
}

fn match_lanes(d: &mut Decode<'_>) -> Decoded<Op> {
    let all = d.has("all");
    if !all && !d.has("any") {
        return Err(Reject::unsupported("neither .any nor .all"));
    }
    let wide = match d.ty()? {
        Type::B32 => false,
        Type::B64 => true,
        other => return d.bad_type(other),
    };
    let (target, pred) = Decode::pair(d.operand(0)?);
    let target = d.dst_of::<u32>(target)?;
    let pred = pred.map(|p| d.pred_target(p)).transpose()?;
    let a = if wide { d.src::<u64>(1)? } else { d.src::<u32>(1)? };
    exchange(d, 2, |members| {
        Box::new(move |cx, mask| {
            let values =
                if wide { *cx.regs.row64(a) } else { map_row(cx.regs.row32(a), u64::from) };
            for_groups(cx, members, mask, |cx, here| {
                let mut out = [0; LANES];
                let mut every = false;
                for lane in (0..LANES).filter(|lane| here >> lane & 1 != 0) {
                    let mut same = 0;
                    for (other, value) in values.iter().enumerate() {
                        same |= u32::from(*value == values[lane]) << other;
                    }
                    same &= here;
                    every = same == here;
                    out[lane] = if all && !every { 0 } else { same };
                }
                cx.regs.put(target, here, &out);
                if let Some(pred) = pred {
                    cx.regs.set_pred(pred, here, if every { FULL } else { 0 });
                }
            });
            Ok(())
        })
    })
}

fn redux(d: &mut Decode<'_>) -> Decoded<Op> {
    let op = d
        .pick(|m| ["add", "min", "max", "and", "or", "xor"].into_iter().find(|op| *op == m))
        .ok_or_else(|| Reject::unsupported("no known operation"))?;
    let flags = MinMaxFlags { abs: d.has("abs"), nan: d.has("NaN"), ..MinMaxFlags::default() };
    let ty = d.ty()?;
    let join: Box<dyn Fn(u32, u32) -> u32 + Send + Sync> = match (op, ty) {
        ("add", Type::U32 | Type::S32) => Box::new(u32::wrapping_add),
        ("min", Type::U32) => Box::new(|a, b| a.min(b)),
        ("max", Type::U32) => Box::new(|a, b| a.max(b)),
        ("min", Type::S32) => Box::new(|a, b| (a as i32).min(b as i32) as u32),
        ("max", Type::S32) => Box::new(|a, b| (a as i32).max(b as i32) as u32),
        ("and", Type::B32) => Box::new(|a, b| a & b),
        ("or", Type::B32) => Box::new(|a, b| a | b),
        ("xor", Type::B32) => Box::new(|a, b| a ^ b),
        ("min", Type::F32) => {
            Box::new(move |a, b| single::min(f32::from_bits(a), f32::from_bits(b), flags).to_bits())
        }
        ("max", Type::F32) => {
            Box::new(move |a, b| single::max(f32::from_bits(a), f32::from_bits(b), flags).to_bits())
        }
        _ => return Err(Reject::unsupported(format!("{op} of {ty:?}"))),
    };
    let (target, a) = (d.dst::<u32>(0)?, d.src::<u32>(1)?);
    exchange(d, 2, |members| {
        Box::new(move |cx, mask| {
            let values = *cx.regs.row32(a);
            for_groups(cx, members, mask, |cx, here| {
                let first = here.trailing_zeros() as usize;
                // Joining the first value with itself changes no sum: only what
                // min and max do to a single operand.
                let start = match op {
                    "min" | "max" => join(values[first], values[first]),
                    _ => values[first],
                };
                let result = (first + 1..LANES)
                    .filter(|lane| here >> lane & 1 != 0)
                    .fold(start, |sum, lane| join(sum, values[lane]));
                cx.regs.put(target, here, &[result; LANES]);
            });
            Ok(())
        })
    })
}

/// `elect.sync d|p, membermask`: the lowest lane of the mask is elected.
fn elect(d: &mut Decode<'_>) -> Decoded<Op> {
    let (target, pred) = Decode::pair(d.operand(0)?);
    let target = d.dst_of::<u32>(target)?;
    let pred = pred.map(|p| d.pred_target(p)).transpose()?;
    exchange(d, 1, |members| {
        Box::new(move |cx, mask| {
            for_groups(cx, members, mask, |cx, here| {
                let leader = here.trailing_zeros();
                cx.regs.put(target, here, &[leader; LANES]);
                if let Some(pred) = pred {
                    cx.regs.set_pred(pred, here, 1 << leader);
                }
            });
            Ok(())
        })
    })
}
