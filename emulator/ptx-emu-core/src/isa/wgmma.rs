//! Warpgroup products: PTX ISA 9.7.15 (`wgmma.mma_async`, `wgmma.fence`,
//! `wgmma.commit_group`, `wgmma.wait_group`).
//!
//! All dense shapes of f16, bf16, tf32, e4m3, e5m2, s8 and u8, `A` from registers or
//! shared memory, transposed tiles of the 16-bit types, f16, f32 and s32 accumulators.
//! Each warp computes its own 16 rows when its operation is carried out; the four warps
//! of a warpgroup must execute the same instructions. A `wait_group` waits for the groups of
//! all four. Results reach the registers there. Touching a register
//! in flight is reported, and so is a product whose registers were written since the
//! last `wgmma.fence`; the latter by instruction order, not by value.
//!
//! Not modelled: `.sp`, `.b1`. Limits: sums of f16, bf16 and tf32 may differ from hardware as
//! `tensor` says; a `wgmma.fence` that is executed in only some of the lanes' histories.

use super::Instructions;
use super::mma::{sources, sync_aligned, targets};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::Exec;
use crate::machine::Context;
use crate::machine::code::Op;
use crate::machine::regs::{Pred, Slot};
use crate::machine::units::wgmma::{
    Accumulator, ROWS, SumType, WARPS, WarpProduct, WgmmaA, registers_a,
};
use crate::machine::units::wgmma_tile::{SharedTile, invalid};
use crate::machine::units::{Awaited, GroupKind, GroupWait, Operation, Poll};
use crate::tensor::element::Element;
use crate::tensor::product::Addend;
use crate::tensor::shared::{Generation, Major, Operand, SharedDescriptor, Swizzle};
use crate::tensor::tile::Packing;

/// `wgmma`.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| ins.opcode == "wgmma",
    decode: |d| Ok((Family::Tensor, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    sync_aligned(d)?;
    if d.has("fence") {
        return Ok(aligned(|cx| {
            cx.wgmma_log()?;
            cx.regs.watch.fence();
            Ok(())
        }));
    }
    if d.has("commit_group") {
        return Ok(aligned(|cx| {
            cx.wgmma_log()?;
            let warp = cx.warp();
            cx.units.groups.commit(GroupKind::Wgmma, warp, u32::MAX);
            Ok(())
        }));
    }
    if d.has("wait_group") {
        let keep = Some(d.constant_u32(0)?);
        return Ok(Op::Poll {
            aligned: true,
            run: Box::new(move |cx, mask| {
                let kind = GroupKind::Wgmma;
                let wait =
                    GroupWait { kind, warp: cx.warp(), lanes: mask, keep, reads_only: false };
                let awaited = Awaited::Groups(wait);
                if !cx.units.over(&awaited) {
                    return Ok(Poll::Wait(awaited));
                }
                cx.units.learn_groups(&wait);
                cx.wgmma_finish(&wait, mask);
                Ok(Poll::Done)
            }),
        });
    }
    if d.has("mma_async") {
        return product(d);
    }
    Err(Reject::unsupported("no known operation"))
}

/// An instruction of the whole warp that does not wait.
pub(super) fn aligned(run: impl Fn(&mut Context<'_>) -> Exec + Send + Sync + 'static) -> Op {
    Op::Poll { aligned: true, run: Box::new(move |cx, _| run(cx).map(|()| Poll::Done)) }
}

/// The operands of a form.
#[derive(Debug, Clone, Copy)]
struct Form {
    n: usize,
    k: usize,
    a: Element,
    b: Element,
    d: SumType,
    saturate: bool,
}

/// `m64n128k16`
fn shape(name: &str) -> Option<(usize, usize)> {
    let (n, k) = name.strip_prefix("m64n")?.split_once('k')?;
    Some((n.parse().ok()?, k.parse().ok()?))
}

impl Form {
    fn decode(d: &mut Decode<'_>) -> Decoded<Self> {
        let (n, k) = d.pick(shape).ok_or_else(|| Reject::unsupported("no known shape"))?;
        let saturate = d.has("satfinite");
        let sums = |name: &str| match name {
            "f32" => Some(SumType::F32),
            "f16" => Some(SumType::F16),
            "s32" => Some(SumType::S32),
            _ => None,
        };
        let no_type = || Reject::unsupported("no known type");
        let sum = d.pick(sums).ok_or_else(no_type)?;
        let a = d.pick(Element::parse).ok_or_else(no_type)?;
        let b = d.pick(Element::parse).ok_or_else(no_type)?;
        let form = Self { n, k, a, b, d: sum, saturate };
        if !form.exists() {
            return Err(Reject::unsupported("no such combination of shape and types"));
        }
        Ok(form)
    }

    /// PTX ISA 9.7.15.2 and 9.7.15.3.
    fn exists(&self) -> bool {
        let Self { n, k, a, b, d, saturate } = *self;
        let float = (8..=256).contains(&n) && n.is_multiple_of(8) && !saturate;
        let narrow = |element| matches!(element, Element::E4m3 | Element::E5m2);
        match (a, b) {
            (Element::F16, Element::F16) => float && k == 16 && d != SumType::S32,
            (Element::Bf16, Element::Bf16) => float && k == 16 && d == SumType::F32,
            (Element::Tf32, Element::Tf32) => float && k == 8 && d == SumType::F32,
            (a, b) if narrow(a) && narrow(b) => float && k == 32 && d != SumType::S32,
            (Element::S8 | Element::U8, Element::S8 | Element::U8) => {
                let shape =
                    matches!(n, 8 | 16 | 24) || (32..=256).contains(&n) && n.is_multiple_of(16);
                shape && k == 32 && d == SumType::S32
            }
            _ => false,
        }
    }

    /// 32-bit registers of `D`.
    fn registers(&self) -> usize {
        if self.d == SumType::F16 { self.n / 4 } else { self.n / 2 }
    }
}

/// `A` as an operand.
#[derive(Debug, Clone)]
enum Source {
    Registers(Vec<Slot>),
    Descriptor(Slot),
}

/// Immediate operands: `imm-scale-a`, `imm-scale-b`, `imm-trans-a`, `imm-trans-b`.
#[derive(Debug, Clone, Copy)]
struct Immediates {
    negate_a: bool,
    negate_b: bool,
    a_major: Major,
    b_major: Major,
}

impl Immediates {
    fn decode(d: &Decode<'_>, form: &Form, from_registers: bool) -> Decoded<Self> {
        let mut at = 4;
        let mut next = |wanted: [u32; 2], name: &str| {
            let value = d.constant_u32(at)?;
            at += 1;
            match wanted.iter().position(|&w| w == value) {
                Some(which) => Ok(which == 1),
                None => Err(Reject::operand(format!(
                    "{name}: required {} or {}, actual {}",
                    wanted[0] as i32, wanted[1] as i32, value as i32
                ))),
            }
        };
        let mut found =
            Self { negate_a: false, negate_b: false, a_major: Major::K, b_major: Major::K };
        if form.d != SumType::S32 {
            found.negate_a = next([1, u32::MAX], "imm-scale-a")?;
            found.negate_b = next([1, u32::MAX], "imm-scale-b")?;
        }
        if form.a.bits() == 16 {
            let major = |transposed| if transposed { Major::Mn } else { Major::K };
            if !from_registers {
                found.a_major = major(next([0, 1], "imm-trans-a")?);
            }
            found.b_major = major(next([0, 1], "imm-trans-b")?);
        }
        if d.count() != at {
            return Err(Reject::operand(format!("operands: required {at}, actual {}", d.count())));
        }
        Ok(found)
    }
}

/// The tile of 16 rows that starts at row `first` of `A`.
fn part(descriptor: SharedDescriptor, major: Major, first: u32, bits: u32) -> SharedDescriptor {
    let shift = match (major, descriptor.swizzle) {
        (Major::K, _) => first / 8 * descriptor.stride,
        (Major::Mn, Swizzle::None) => first * bits / 128 * descriptor.stride,
        (Major::Mn, swizzle) => {
            let (chunk, across) = (first * bits / 128, swizzle.width() / 16);
            chunk / across * descriptor.leading + chunk % across * 16
        }
    };
    SharedDescriptor { start: descriptor.start.wrapping_add(shift), ..descriptor }
}

/// A descriptor operand, which must be the same in all lanes.
fn descriptor(
    cx: &Context<'_>,
    slot: Slot,
    mask: u32,
    name: &'static str,
) -> Exec<SharedDescriptor> {
    let row = cx.regs.row64(slot);
    let first = row[mask.trailing_zeros() as usize];
    for (lane, &bits) in row.iter().enumerate() {
        if mask >> lane & 1 != 0 && bits != first {
            let required = format!("{first:#018x} in all lanes");
            return Err(cx.bad_operand(lane, name, required, format!("{bits:#018x}")));
        }
    }
    SharedDescriptor::decode(Generation::Sm90, first).map_err(|error| invalid(name, error))
}

const A: &str = "wgmma matrix A";
const B: &str = "wgmma matrix B";

/// `wgmma.mma_async.sync.aligned.shape.d.a.b {d}, a, b-desc, scale-d, ...`
fn product(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.ins.modifiers.iter().any(|m| m.starts_with("sp")) {
        return Err(Reject::unsupported("sparse operands"));
    }
    let form = Form::decode(d)?;
    d.module.async_proxy = true;
    let slots = targets::<u32>(d, 0, form.registers())?;
    let accumulator = Accumulator { ty: form.d, n: form.n, slots };
    let left = d.operand(1)?;
    let source = if d.elements(left).len() > 1 {
        Source::Registers(sources::<u32>(d, 1, 4)?)
    } else {
        Source::Descriptor(d.src::<u64>(1)?)
    };
    let right = d.src::<u64>(2)?;
    let scale = d.operand(3)?;
    let scale: Pred = d.pred(scale)?;
    let immediates = Immediates::decode(d, &form, matches!(source, Source::Registers(_)))?;
    Ok(Op::Poll {
        aligned: true,
        run: Box::new(move |cx, mask| {
            issue(cx, mask, &form, &accumulator, &source, right, scale, &immediates)?;
            Ok(Poll::Done)
        }),
    })
}

#[expect(clippy::too_many_arguments, reason = "the operands of the instruction")]
fn issue(
    cx: &mut Context<'_>,
    mask: u32,
    form: &Form,
    accumulator: &Accumulator,
    source: &Source,
    right: Slot,
    scale: Pred,
    immediates: &Immediates,
) -> Exec {
    cx.wgmma_log()?;
    let lane = mask.trailing_zeros() as usize;
    let added = cx.regs.pred(scale) & mask;
    if added != 0 && added != mask {
        let required = "the same in all lanes";
        return Err(cx.bad_operand(lane, "scale-d", required, format!("{added:#010x}")));
    }
    let rank = cx.place.rank;
    let mut reads = Vec::new();
    let operand =
        |element, major, rows| Operand { element, packing: Packing::Dense, major, rows, k: form.k };
    let b = SharedTile {
        name: B,
        descriptor: descriptor(cx, right, mask, B)?,
        operand: operand(form.b, immediates.b_major, form.n),
        rank,
        negate: immediates.negate_b,
    };
    b.reads(cx, &mut reads)?;
    let mut registers: &[Slot] = &[];
    let a = match source {
        Source::Registers(slots) => {
            registers = slots;
            let bytes = registers_a(cx.regs, slots, form.a, form.k);
            WgmmaA::Registers { element: form.a, k: form.k, bytes, negate: immediates.negate_a }
        }
        Source::Descriptor(slot) => {
            let major = immediates.a_major;
            let first = (cx.place.warp as usize % WARPS * ROWS) as u32;
            let whole = descriptor(cx, *slot, mask, A)?;
            let tile = SharedTile {
                name: A,
                descriptor: part(whole, major, first, form.a.bits()),
                operand: operand(form.a, major, ROWS),
                rank,
                negate: immediates.negate_a,
            };
            tile.reads(cx, &mut reads)?;
            WgmmaA::Shared(tile)
        }
    };
    let warp = cx.warp();
    let group = cx.units.groups.membership(GroupKind::Wgmma, warp, lane);
    let addend = if added == 0 { Addend::Zero } else { Addend::Old };
    let sums = cx.wgmma_take(accumulator, registers, group.index, addend == Addend::Zero)?;
    let (cache, saturate) = (cx.units.wgmma.panels.clone(), form.saturate);
    let work = WarpProduct { a, b, addend, saturate, sums, cache, panels: None };
    let in_f32 = form.d == SumType::F32;
    cx.stats.tensor.count(form.a, false, in_f32, (ROWS * form.n * form.k) as u64);
    // The four warps share B.
    let rows = form.n / WARPS + if matches!(source, Source::Descriptor(_)) { ROWS } else { 0 };
    cx.stats.tensor.shared_bytes += (rows * form.k * form.a.bits() as usize / 8) as u64;
    let after = cx.units.last_issued(GroupKind::Wgmma, warp, mask);
    cx.issue(Operation {
        name: "wgmma.mma_async",
        site: cx.site(lane),
        lanes: mask,
        reads,
        writes: Vec::new(),
        async_proxy: true,
        atomic: false,
        group: Some(group),
        after: after.into_iter().collect(),
        signals: Vec::new(),
        work: Box::new(work),
    })?;
    Ok(())
}
