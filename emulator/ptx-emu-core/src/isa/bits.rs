//! Bit manipulation, logic and shifts: PTX ISA 9.7.1.14 to 9.7.1.22, 9.7.8 and
//! 9.7.9.7 (`prmt`). Complete.

use super::Instructions;
use super::int::integers;
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Pred, Regs, map_row};
use crate::num::bits::{self, PrmtMode, ShiftMode};
use crate::syntax::ast::Operand;
use ptx_emu_simd::{Host, on_host};

/// Shifts, bit fields, permutations.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| {
        matches!(
            ins.opcode.as_str(),
            "popc"
                | "clz"
                | "bfind"
                | "fns"
                | "brev"
                | "bfe"
                | "bfi"
                | "bmsk"
                | "szext"
                | "prmt"
                | "lop3"
                | "shf"
                | "shl"
                | "shr"
        )
    },
    decode: |d| Ok((Family::Integer, on_host!(h => decode(d, h))?)),
};

/// Bitwise logic, also of predicates.
pub(super) const LOGIC: Instructions = Instructions {
    accepts: |ins| matches!(ins.opcode.as_str(), "and" | "or" | "xor" | "not" | "cnot"),
    decode: |d| on_host!(h => logic(d, h)),
};

fn decode(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    match d.ins.opcode.as_str() {
        "popc" => match d.ty()? {
            Type::B32 => d.on(h).map1(u32::count_ones),
            Type::B64 => d.on(h).map1(|a: u64| a.count_ones()),
            other => d.bad_type(other),
        },
        "clz" => match d.ty()? {
            Type::B32 => d.on(h).map1(u32::leading_zeros),
            Type::B64 => d.on(h).map1(|a: u64| a.leading_zeros()),
            other => d.bad_type(other),
        },
        "brev" => match d.ty()? {
            Type::B32 => d.on(h).map1(u32::reverse_bits),
            Type::B64 => d.on(h).map1(u64::reverse_bits),
            other => d.bad_type(other),
        },
        "bfind" => {
            let amount = d.has("shiftamt");
            match d.ty()? {
                Type::U32 => d.on(h).map1(move |a| bits::bfind_u32(a, amount)),
                Type::S32 => d.on(h).map1(move |a| bits::bfind_s32(a, amount)),
                Type::U64 => d.on(h).map1(move |a| bits::bfind_u64(a, amount)),
                Type::S64 => d.on(h).map1(move |a| bits::bfind_s64(a, amount)),
                other => d.bad_type(other),
            }
        }
        "fns" => {
            d.ty()?;
            d.on(h).map3(bits::fns)
        }
        "bfe" => match d.ty()? {
            Type::U32 => d.on(h).map3(bits::bfe_u32),
            Type::S32 => d.on(h).map3(bits::bfe_s32),
            Type::U64 => d.on(h).map3(bits::bfe_u64),
            Type::S64 => d.on(h).map3(bits::bfe_s64),
            other => d.bad_type(other),
        },
        "bfi" => match d.ty()? {
            Type::B32 => d.on(h).map4(bits::bfi_b32),
            Type::B64 => d.on(h).map4(bits::bfi_b64),
            other => d.bad_type(other),
        },
        "bmsk" => {
            let mode = shift_mode(d)?;
            d.ty()?;
            d.on(h).map2(move |pos, len| bits::bmsk(pos, len, mode))
        }
        "szext" => {
            let mode = shift_mode(d)?;
            match d.ty()? {
                Type::U32 => d.on(h).map2(move |a, n| bits::szext_u32(a, n, mode)),
                Type::S32 => d.on(h).map2(move |a, n| bits::szext_s32(a, n, mode)),
                other => d.bad_type(other),
            }
        }
        "prmt" => prmt(d, h),
        "lop3" => lop3(d, h),
        "shf" => {
            let left = d.has("l");
            if !left && !d.has("r") {
                return Err(Reject::unsupported("shf without .l or .r"));
            }
            let mode = shift_mode(d)?;
            d.ty()?;
            if left {
                d.on(h).map3(move |lo, hi, n| bits::shf_l(lo, hi, n, mode))
            } else {
                d.on(h).map3(move |lo, hi, n| bits::shf_r(lo, hi, n, mode))
            }
        }
        "shl" => shl(d, h),
        "shr" => shr(d, h),
        other => Err(Reject::unsupported(format!("instruction {other}"))),
    }
}

fn shift_mode(d: &mut Decode<'_>) -> Decoded<ShiftMode> {
    d.pick(|m| match m {
        "clamp" => Some(ShiftMode::Clamp),
        "wrap" => Some(ShiftMode::Wrap),
        _ => None,
    })
    .ok_or_else(|| Reject::unsupported("neither .clamp nor .wrap"))
}

// A shift by one constant for all lanes vectorises on every host.

fn shl(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    match (d.ty()?, d.known_u32(2)) {
        (Type::B16, _) => d.on(h).map2(bits::shl_b16),
        (Type::B32, Some(n)) if n < 32 => d.on(h).map1(move |a: u32| a << n),
        (Type::B64, Some(n)) if n < 64 => d.on(h).map1(move |a: u64| a << n),
        (Type::B32, _) => d.on(h).map2(bits::shl_b32),
        (Type::B64, _) => d.on(h).map2(bits::shl_b64),
        (other, _) => d.bad_type(other),
    }
}

fn shr(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    match (d.ty()?, d.known_u32(2)) {
        (Type::B16 | Type::U16, _) => d.on(h).map2(bits::shr_u16),
        (Type::S16, _) => d.on(h).map2(bits::shr_s16),
        (Type::B32 | Type::U32, Some(n)) if n < 32 => d.on(h).map1(move |a: u32| a >> n),
        (Type::S32, Some(n)) if n < 32 => d.on(h).map1(move |a: i32| a >> n),
        (Type::B64 | Type::U64, Some(n)) if n < 64 => d.on(h).map1(move |a: u64| a >> n),
        (Type::B32 | Type::U32, _) => d.on(h).map2(bits::shr_u32),
        (Type::S32, _) => d.on(h).map2(bits::shr_s32),
        (Type::B64 | Type::U64, _) => d.on(h).map2(bits::shr_u64),
        (Type::S64, _) => d.on(h).map2(bits::shr_s64),
        (other, _) => d.bad_type(other),
    }
}

fn prmt(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    d.ty()?;
    let mode = d.pick(|m| match m {
        "f4e" => Some(PrmtMode::F4e),
        "b4e" => Some(PrmtMode::B4e),
        "rc8" => Some(PrmtMode::Rc8),
        "ecl" => Some(PrmtMode::Ecl),
        "ecr" => Some(PrmtMode::Ecr),
        "rc16" => Some(PrmtMode::Rc16),
        _ => None,
    });
    if let Some(mode) = mode {
        return d.on(h).map3(move |a, b, c| bits::prmt(a, b, mode.selector(c)));
    }
    if let Some(selector) = d.known_u32(3) {
        return d.on(h).map2(move |a, b| bits::prmt(a, b, selector));
    }
    // One table for all lanes, picked from by selectors that vary: a look-up,
    // two result bytes an index.
    let (dst, a, b, c) = (d.dst::<u32>(0)?, d.src::<u32>(1)?, d.src::<u32>(2)?, d.src::<u32>(3)?);
    let run = move |regs: &mut Regs, mask: u32| {
        let (table_a, table_b, selectors) = (*regs.row32(a), *regs.row32(b), *regs.row32(c));
        let key = (table_a[0], table_b[0]);
        let mut differ = 0;
        for lane in 0..LANES {
            differ |= (table_a[lane] ^ key.0) | (table_b[lane] ^ key.1);
        }
        if differ == 0
            && let Some(out) = prmt_row(key, &selectors, h)
        {
            regs.put(dst, mask, &out);
            return;
        }
        let mut out = [0; LANES];
        let table = if differ == 0 {
            regs.byte_table(key, |pair| bits::prmt(key.0, key.1, pair) as u16)
        } else {
            None
        };
        if let Some(table) = table {
            for (out, c) in out.iter_mut().zip(selectors) {
                let low = table[(c & 0xff) as usize];
                let high = table[(c >> 8 & 0xff) as usize];
                *out = u32::from(low) | u32::from(high) << 16;
            }
        } else {
            for lane in 0..LANES {
                out[lane] = bits::prmt(table_a[lane], table_b[lane], selectors[lane]);
            }
        }
        regs.put(dst, mask, &out);
    };
    Ok(Op::Alu(Box::new(move |regs, mask| h.run(|| run(regs, mask)))))
}

/// `prmt` of one pair of words by the selectors of all lanes, where the host looks up bytes.
#[inline(always)]
fn prmt_row(
    (low, high): (u32, u32),
    selectors: &[u32; LANES],
    h: impl Host,
) -> Option<[u32; LANES]> {
    // Bit 3 of a selector asks for copies of the byte's sign.
    let mut table = [0; 16];
    table[..4].copy_from_slice(&low.to_le_bytes());
    table[4..8].copy_from_slice(&high.to_le_bytes());
    for at in 0..8 {
        table[8 + at] = ((table[at] as i8) >> 7) as u8;
    }
    let codes =
        map_row(selectors, |c| c & 0xf | (c & 0xf0) << 4 | (c & 0xf00) << 8 | (c & 0xf000) << 12);
    h.look_up(table, &codes)
}

fn lop3(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    let combine = d.pick(|m| match m {
        "or" => Some(false),
        "and" => Some(true),
        _ => None,
    });
    d.ty()?;
    let lut = d.constant_u32(4)? as u8;
    let Some(and) = combine else {
        return d.on(h).map3(move |a, b, c| bits::lop3(a, b, c, lut));
    };
    // lop3.BoolOp d|p, a, b, c, lut, q: p is (d != 0) combined with q.
    let (target, pred) = Decode::pair(d.operand(0)?);
    let dst = d.dst_of::<u32>(target)?;
    let Some(pred) = pred else {
        return Err(Reject::operand("destination: required d|p, actual only d"));
    };
    let p = d.pred_target(pred)?;
    let (a, b, c) = (d.src::<u32>(1)?, d.src::<u32>(2)?, d.src::<u32>(3)?);
    let q = d.operand(5)?;
    let q = d.pred(q)?;
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let mut out = [0; LANES];
        let mut nonzero = 0;
        let (a, b, c) = (regs.row32(a), regs.row32(b), regs.row32(c));
        for lane in 0..LANES {
            out[lane] = bits::lop3(a[lane], b[lane], c[lane], lut);
            nonzero |= u32::from(out[lane] != 0) << lane;
        }
        let q = regs.pred(q);
        regs.put(dst, mask, &out);
        regs.set_pred(p, mask, if and { nonzero & q } else { nonzero | q });
    })))
}

/// `and`, `or`, `xor`, `not`, `cnot` of bits and predicates.
fn logic(d: &mut Decode<'_>, h: impl Host) -> Decoded<(Family, Op)> {
    let ty = d.ty()?;
    let opcode = d.ins.opcode.as_str();
    if ty == Type::Pred {
        return Ok((Family::Predicate, predicate_logic(d, opcode)?));
    }
    let op = match opcode {
        "and" => integers!(d, ty, T => d.on(h).map2(|a: T, b: T| a & b)),
        "or" => integers!(d, ty, T => d.on(h).map2(|a: T, b: T| a | b)),
        "xor" => integers!(d, ty, T => d.on(h).map2(|a: T, b: T| a ^ b)),
        "not" => integers!(d, ty, T => d.on(h).map1(|a: T| !a)),
        _ => integers!(d, ty, T => d.on(h).map1(|a: T| T::from(a == 0))),
    }?;
    Ok((Family::Integer, op))
}

fn predicate_logic(d: &mut Decode<'_>, opcode: &str) -> Decoded<Op> {
    let target: &Operand = d.operand(0)?;
    let target = d.pred_target(target)?;
    let a = d.operand(1)?;
    let a = d.pred(a)?;
    let b = match opcode {
        "not" => Pred::Const(true),
        _ => {
            let b = d.operand(2)?;
            d.pred(b)?
        }
    };
    let f: fn(u32, u32) -> u32 = match opcode {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        "xor" => |a, b| a ^ b,
        "not" => |a, _| a ^ FULL,
        other => return Err(Reject::unsupported(format!("{other}.pred"))),
    };
    Ok(Op::Alu(Box::new(move |regs, mask| {
        let value = f(regs.pred(a), regs.pred(b));
        regs.set_pred(target, mask, value);
    })))
}
