//! Block scales of `mma.sync`: PTX ISA 9.7.14.3.

use super::form::Scaling;
use super::sources;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::Exec;
use crate::machine::Context;
use crate::machine::regs::{Regs, Slot};
use crate::syntax::ast::{Imm, Operand};
use crate::tensor::element::{ScaleType, ScaleVec};

/// One component of `{byte-id, thread-id}`, which chooses the bytes or the lanes of the scales.
struct Selector {
    name: &'static str,
    /// The values that PTX defines (table 40 of PTX ISA 9.7.14.3).
    allowed: &'static [u32],
    value: Choice,
}

enum Choice {
    Constant(u32),
    Register(Slot),
}

impl Selector {
    fn decode(
        d: &mut Decode<'_>,
        at: usize,
        item: &Operand,
        name: &'static str,
        allowed: &'static [u32],
    ) -> Decoded<Self> {
        let value = match item {
            Operand::Imm(Imm::Int { bits, .. }) => {
                match allowed.iter().find(|value| u64::from(**value) == *bits) {
                    Some(value) => Choice::Constant(*value),
                    None => {
                        let required = listed(allowed);
                        let why =
                            format!("operand {at}: {name}: required {required}, actual {bits}");
                        return Err(Reject::operand(why));
                    }
                }
            }
            register => Choice::Register(d.src_of::<u16>(register)?),
        };
        Ok(Self { name, allowed, value })
    }

    /// Returns the value. The machine code takes a register's value from one lane for all, so that it must be
    /// the same in all of them.
    #[inline(always)]
    fn read(&self, cx: &Context<'_>) -> Exec<usize> {
        match self.value {
            Choice::Constant(value) => Ok(value as usize),
            Choice::Register(slot) => self.uniform(cx, slot),
        }
    }

    fn uniform(&self, cx: &Context<'_>, slot: Slot) -> Exec<usize> {
        let values = cx.regs.row32(slot).map(|value| value & 0xffff);
        let refused = |lane: usize, required: String| {
            Err(cx.bad_operand(lane, self.name, required, values[lane].to_string()))
        };
        if !self.allowed.contains(&values[0]) {
            return refused(0, listed(self.allowed));
        }
        match values.iter().position(|value| *value != values[0]) {
            Some(lane) => refused(lane, format!("{} as in lane 0", values[0])),
            None => Ok(values[0] as usize),
        }
    }
}

/// `0, 1 or 2`
fn listed(values: &[u32]) -> String {
    let names: Vec<String> = values.iter().map(u32::to_string).collect();
    match names.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// The operand that scales belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// Block scales of `A` or `B`.
pub(super) struct Scales {
    ty: ScaleType,
    vec: ScaleVec,
    data: Slot,
    byte: Selector,
    thread: Selector,
}

impl Scales {
    /// Decodes operand `at`, the register of scales, and the one behind it, which selects from it.
    pub(super) fn decode(
        d: &mut Decode<'_>,
        at: usize,
        side: Side,
        scaling: Scaling,
    ) -> Decoded<Self> {
        // With or without braces.
        let data = sources::<u32>(d, at, 1)?;
        let [data] = data.as_slice() else {
            return Err(Reject::operand(format!("operand {at}: required 1 register")));
        };
        let data = *data;
        let selector = d.operand(at + 1)?;
        let Operand::Vector(ids) = selector else {
            return Err(Reject::operand(format!(
                "operand {}: required {{byte-id, thread-id}}, actual {selector:?}",
                at + 1
            )));
        };
        let [byte, thread] = ids.as_slice() else {
            return Err(Reject::operand(format!(
                "operand {}: required 2 selectors, actual {}",
                at + 1,
                ids.len()
            )));
        };
        let bytes: &[u32] = match scaling.vec {
            ScaleVec::X1 => &[0, 1, 2, 3],
            ScaleVec::X2 => &[0, 2],
            ScaleVec::X4 => &[0],
        };
        // A's scales are in two lanes of four, B's in one.
        let (names, threads): (_, &[u32]) = match side {
            Side::A => (["byte-id-a", "thread-id-a"], &[0, 1]),
            Side::B => (["byte-id-b", "thread-id-b"], &[0, 1, 2, 3]),
        };
        let byte = Selector::decode(d, at + 1, byte, names[0], bytes)?;
        let thread = Selector::decode(d, at + 1, thread, names[1], threads)?;
        Ok(Self { ty: scaling.ty, vec: scaling.vec, data, byte, thread })
    }

    /// The number of scales along K.
    pub(super) const fn count(&self) -> usize {
        self.vec.count()
    }

    /// Returns the values of the selector.
    pub(super) fn selected(&self, cx: &Context<'_>) -> Exec<Selected> {
        Ok(Selected { byte: self.byte.read(cx)?, thread: self.thread.read(cx)? })
    }

    /// The scale of `block` of a line whose scales are in the register of `lane`.
    #[inline(always)]
    pub(super) fn value(&self, regs: &Regs, lane: usize, byte: usize, block: usize) -> f64 {
        let word = regs.row32(self.data)[lane];
        self.ty.value((word >> ((byte + block) * 8)) as u8)
    }
}

/// The values of a selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Selected {
    pub(super) byte: usize,
    pub(super) thread: usize,
}
