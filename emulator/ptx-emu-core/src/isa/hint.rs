//! Instructions without effect on results: `nanosleep`, `prefetch`,
//! `prefetchu`, `createpolicy`, `applypriority`, `discard`, `pmevent` (PTX ISA
//! 9.7.9, 9.7.12, 9.7.19).
//!
//! `nanosleep` lets other warps run first. Addresses are not checked. `discard` leaves memory
//! unchanged, although PTX allows its contents to be lost. The cache policy of
//! `createpolicy` is 0.

use super::Instructions;
use crate::Family;
use crate::decode::{Decode, Decoded};
use crate::machine::code::Op;
use crate::machine::regs::LANES;

/// Hints.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| {
        matches!(
            ins.opcode.as_str(),
            "nanosleep"
                | "prefetch"
                | "prefetchu"
                | "createpolicy"
                | "applypriority"
                | "discard"
                | "pmevent"
        )
    },
    decode: |d| Ok((Family::Hint, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    while d.pick(|_| Some(())).is_some() {}
    if d.ins.opcode == "createpolicy" {
        let policy = d.dst::<u64>(0)?;
        return Ok(Op::Alu(Box::new(move |regs, mask| {
            regs.put(policy, mask, &[0u64; LANES]);
        })));
    }
    if d.ins.opcode == "nanosleep" {
        return Ok(Op::Look(Box::new(|_, _| Ok(true))));
    }
    Ok(Op::Nop)
}
