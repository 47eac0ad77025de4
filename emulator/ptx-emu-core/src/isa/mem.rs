//! Loads and stores: PTX ISA 9.7.9.8 to 9.7.9.12 (`ld`, `ld.global.nc`, `ldu`,
//! `st`).
//!
//! Strong loads are counted to detect threads that spin (`units::spin`). Cache
//! operators, eviction priorities, prefetch sizes and cache policies have
//! no effect. `.volatile`, `.relaxed`, `.acquire`, `.release` and `.mmio` order
//! nothing more than program order: memory is sequentially consistent here, so
//! missing fences are not noticed.

use super::{Instructions, first_modifier};
use crate::Family;
use crate::decode::{AddressBase, Decode, Decoded, Destination, Reject, Source, Type};
use crate::diagnostic::{Exec, Space};
use crate::machine::code::Op;
use crate::machine::race::Order as Semantics;
use crate::machine::regs::{Class, FULL, LANES, Regs, Slot, map_row};
use crate::machine::units::{Unwritten, lanes};
use crate::machine::{AddressSpace, Context};
use crate::syntax::ast::{self, Operand};
use ptx_emu_simd::{Body, Host, on_host};

/// Loads and stores.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| match ins.opcode.as_str() {
        "ld" | "ldu" => true,
        opcode => opcode == "st" && first_modifier(ins) != "async",
    },
    decode: |d| Ok((Family::Memory, on_host!(h => decode(d, h))?)),
};

/// An address operand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    base: AddressBase,
    offset: i64,
}

impl Address {
    /// Address of each lane.
    #[inline(always)]
    pub(super) fn rows(&self, cx: &Context<'_>) -> [u64; LANES] {
        let mut out = [0; LANES];
        match self.base {
            AddressBase::R64(slot) => {
                for (out, base) in out.iter_mut().zip(cx.regs.row64(slot)) {
                    *out = base.wrapping_add(self.offset as u64);
                }
            }
            AddressBase::R32(slot) => {
                for (out, base) in out.iter_mut().zip(cx.regs.row32(slot)) {
                    *out = u64::from(base.wrapping_add(self.offset as u32));
                }
            }
            AddressBase::Frame => {
                out = [u64::from(cx.frame).wrapping_add(self.offset as u64); LANES];
            }
        }
        out
    }
}

/// The order that an access gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Weak,
    /// Volatile, relaxed, acquire, release: seen by others while running.
    Strong,
}

/// Takes the modifiers that have no effect here.
pub(super) fn skip_hints(d: &mut Decode<'_>) {
    const PLAIN: [&str; 12] =
        ["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak", "unified", "noftz", "no_allocate"];
    while d
        .pick(|m| {
            (PLAIN.contains(&m) || m.starts_with("L1::") || m.starts_with("L2::")).then_some(())
        })
        .is_some()
    {}
}

/// Takes ordering and scope; whether other CTAs may look on.
pub(super) fn order(d: &mut Decode<'_>) -> bool {
    let mut order = Order::Weak;
    while d
        .pick(|m| {
            matches!(m, "volatile" | "relaxed" | "acquire" | "release" | "acq_rel" | "mmio")
                .then_some(())
        })
        .is_some()
    {
        order = Order::Strong;
    }
    let narrow = d.has("cta");
    let wide = d.has("cluster") || d.has("gpu") || d.has("sys");
    order == Order::Strong && (wide || !narrow)
}

/// Ordering semantics that the modifiers spell.
pub(super) fn semantics(d: &Decode<'_>) -> Option<Semantics> {
    d.ins.modifiers.iter().find_map(|m| Semantics::parse(m))
}

/// Takes the state space.
pub(super) fn space(d: &mut Decode<'_>) -> AddressSpace {
    d.pick(|m| {
        Some(AddressSpace::One(match m {
            "shared::cluster" => return Some(AddressSpace::Cluster),
            "global" => Space::Global,
            "shared" | "shared::cta" => Space::Shared,
            "local" => Space::Local,
            "const" => Space::Const,
            "param" | "param::entry" | "param::func" => Space::Param,
            _ => return None,
        }))
    })
    .unwrap_or(AddressSpace::Generic)
}

/// Decodes `[a]` and settles which space it is in.
pub(super) fn address(
    d: &mut Decode<'_>,
    operand: &Operand,
    named: AddressSpace,
) -> Decoded<(Address, AddressSpace)> {
    let Operand::Address { base, offset, rest } = operand else {
        return Err(Reject::operand(format!("required an address, actual {operand:?}")));
    };
    if !rest.is_empty() {
        return Err(Reject::unsupported("an address with coordinates"));
    }
    let place = match base {
        None => {
            let slot = d.constant_row64(*offset as u64);
            let base = AddressBase::R64(slot);
            return Ok((Address { base, offset: 0 }, named));
        }
        Some(name) => d.place(name, *offset)?,
    };
    let of_variable = place.space.map(|space| match space {
        ast::Space::Shared => Space::Shared,
        ast::Space::Const => Space::Const,
        ast::Space::Param => Space::Param,
        ast::Space::Local => Space::Local,
        _ => Space::Global,
    });
    let settled = match (named, of_variable) {
        // Parameters and results of device functions live in the local frame.
        (AddressSpace::One(Space::Param), Some(Space::Local)) => AddressSpace::One(Space::Local),
        (AddressSpace::One(Space::Param), None) if !d.function.is_entry => {
            AddressSpace::One(Space::Local)
        }
        // A variable without a stated space is in its own.
        (AddressSpace::Generic, Some(space)) => AddressSpace::One(space),
        (AddressSpace::One(named), Some(actual)) if named != actual => {
            return Err(Reject::operand(format!(
                "state space: required .{}, actual a .{} variable",
                named.name(),
                actual.name()
            )));
        }
        (named, _) => named,
    };
    let address = Address { base: place.base, offset: place.offset };
    Ok((address, settled))
}

/// Takes `.v2`, `.v4`, `.v8`.
pub(super) fn vector(d: &mut Decode<'_>) -> usize {
    d.pick(|m| match m {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    })
    .unwrap_or(1)
}

fn decode(d: &mut Decode<'_>, h: impl Host) -> Decoded<Op> {
    skip_hints(d);
    let seen = order(d);
    let space = space(d);
    let count = vector(d);
    let ty = d.ty()?;
    let bytes = ty.bytes() as usize * count;
    if bytes > 32 || ty == Type::Pred {
        return d.bad_type(ty);
    }
    let store = d.ins.opcode == "st";
    let order = semantics(d).unwrap_or_default();
    let (at, value) = if store { (0, 1) } else { (1, 0) };
    let operand = d.operand(at)?;
    let (address, space) = address(d, operand, space)?;
    if store && matches!(space, AddressSpace::One(Space::Param | Space::Const)) {
        return Err(Reject::operand("address: required memory that a kernel may write"));
    }
    if seen && matches!(space, AddressSpace::Generic | AddressSpace::One(Space::Global)) {
        d.function.global_sync = true;
    }
    let values = d.operand(value)?;
    let values = d.elements(values);
    if values.len() != count {
        return Err(Reject::operand(format!(
            "vector: required {count} elements, actual {}",
            values.len()
        )));
    }
    if store {
        let sources: Vec<Source> =
            values.iter().map(|value| store_source(d, value, ty)).collect::<Decoded<_>>()?;
        Ok(store_op(address, space, ty.bytes() as usize, sources, order, h))
    } else {
        let targets: Vec<Option<Destination>> =
            values.iter().map(|value| d.destination(value)).collect::<Decoded<_>>()?;
        if targets.iter().flatten().any(|t| t.class == Class::Pred || t.bits < ty.bits()) {
            return Err(Reject::operand(format!(
                "destination: required at least {} bits",
                ty.bits()
            )));
        }
        Ok(load_op(address, space, ty, targets, order, h))
    }
}

pub(super) fn store_source(d: &mut Decode<'_>, value: &Operand, ty: Type) -> Decoded<Source> {
    let source = match ty {
        Type::F32 => d.src_of::<f32>(value).map(|slot| (Class::R32, slot)),
        Type::F64 => d.src_of::<f64>(value).map(|slot| (Class::R64, slot)),
        _ => {
            let source = d.source(value, if ty.bits() == 64 { 64 } else { 32 })?;
            Ok((source.class, source.slot))
        }
    };
    let (class, slot) = source?;
    let wide_enough = match class {
        Class::Pred => false,
        Class::R32 => ty.bits() <= 32,
        Class::R64 => ty.bits() <= 64,
        Class::R128 => ty.bits() == 128,
    };
    if !wide_enough {
        return Err(Reject::operand(format!("source: required {} bits", ty.bits())));
    }
    Ok(Source { class, slot })
}

/// Words of the vector: element `k` of `each` bytes, lowest first.
#[inline(always)]
pub(super) fn gather(regs: &Regs, sources: &[Source], each: usize, words: &mut [[u64; LANES]; 4]) {
    for (k, source) in sources.iter().enumerate() {
        let at = k * each;
        match (source.class, each) {
            (Class::R128, _) => {
                words[at / 8] = *regs.row64(source.slot);
                words[at / 8 + 1] = *regs.row64(source.slot.next());
            }
            (Class::R64, 8) => words[at / 8] = *regs.row64(source.slot),
            (class, _) => {
                let shift = (at % 8) * 8;
                let keep = u64::MAX >> (64 - 8 * each);
                let word = &mut words[at / 8];
                if class == Class::R64 {
                    for (word, value) in word.iter_mut().zip(regs.row64(source.slot)) {
                        *word |= (value & keep) << shift;
                    }
                } else {
                    for (word, value) in word.iter_mut().zip(regs.row32(source.slot)) {
                        *word |= (u64::from(*value) & keep) << shift;
                    }
                }
            }
        }
    }
}

fn store_op(
    address: Address,
    space: AddressSpace,
    each: usize,
    sources: Vec<Source>,
    order: Semantics,
    h: impl Host,
) -> Op {
    let store = Store { address, space, each, sources, order };
    Op::Effect(Box::new(move |cx, mask| h.run_body(StoreBody { store: &store, cx, mask })))
}

/// A store.
struct Store {
    address: Address,
    space: AddressSpace,
    /// Bytes of an element.
    each: usize,
    sources: Vec<Source>,
    order: Semantics,
}

/// One execution of it.
struct StoreBody<'a, 'c> {
    store: &'a Store,
    cx: &'a mut Context<'c>,
    mask: u32,
}

impl Body for StoreBody<'_, '_> {
    type Out = Exec;

    #[inline(always)]
    fn run(self) -> Exec {
        let StoreBody { store, cx, mask } = self;
        let Store { address, space, each, ref sources, order } = *store;
        let bytes = each * sources.len();
        let addrs = address.rows(cx);
        let mut words = [[0; LANES]; 4];
        gather(cx.regs, sources, each, &mut words);
        cx.set_order(order);
        let stored = cx.store_on_host(space, &addrs, mask, bytes, &words);
        cx.set_order(Semantics::Weak);
        stored?;
        if !cx.regs.watch.undefined.is_empty() {
            store.undefined(cx, &addrs, mask)?;
        }
        Ok(())
    }
}

impl Store {
    /// Makes undefined where it was stored what is undefined of the sources.
    #[cold]
    fn undefined(&self, cx: &mut Context<'_>, addrs: &[u64; LANES], mask: u32) -> Exec {
        for (k, source) in self.sources.iter().enumerate() {
            let at = addrs.map(|addr| addr.wrapping_add((k * self.each) as u64));
            let register = (source.class, source.slot);
            cx.stored_undefined(register, self.space, &at, mask, self.each)?;
        }
        Ok(())
    }
}

/// Writes element `k` of a loaded vector to its destination.
#[inline(always)]
fn scatter(
    regs: &mut Regs,
    mask: u32,
    (target, at): (Destination, usize),
    ty: Type,
    words: &[[u64; LANES]],
) {
    let each = ty.bytes() as usize;
    let word = &words[at / 8];
    match (each, target.class) {
        (16, _) => {
            regs.put(target.slot, mask, word);
            regs.put(target.slot.next(), mask, &words[at / 8 + 1]);
        }
        (8, Class::R64) => regs.put(target.slot, mask, word),
        (4, Class::R32) => {
            let mut out = [0u32; LANES];
            if at % 8 == 0 {
                for (out, word) in out.iter_mut().zip(word) {
                    *out = *word as u32;
                }
            } else {
                for (out, word) in out.iter_mut().zip(word) {
                    *out = (*word >> 32) as u32;
                }
            }
            regs.put(target.slot, mask, &out);
        }
        _ => {
            // Narrower than the register: extended by the type's sign, up to
            // the register's width.
            let down = 64 - 8 * each as u32;
            let up = down - (at % 8 * 8) as u32;
            let signed = ty.is_signed();
            let extend = |word: u64| {
                let top = word << up;
                if signed { ((top as i64) >> down) as u64 } else { top >> down }
            };
            if target.class == Class::R64 {
                regs.put(target.slot, mask, &map_row(word, extend));
            } else {
                let keep = u32::MAX >> (32 - target.bits);
                regs.put(target.slot, mask, &map_row(word, |word| extend(word) as u32 & keep));
            }
        }
    }
}

fn load_op(
    address: Address,
    space: AddressSpace,
    ty: Type,
    targets: Vec<Option<Destination>>,
    order: Semantics,
    h: impl Host,
) -> Op {
    let each = ty.bytes() as usize;
    let bytes = each * targets.len();
    let places: Vec<(Destination, usize)> = targets
        .into_iter()
        .enumerate()
        .filter_map(|(k, target)| Some((target?, k * each)))
        .collect();
    let load = Load { address, space, ty, bytes, places, order };
    if order == Semantics::Weak {
        if let (4, &[(Destination { class: Class::R32, bits: 32, slot }, 0)]) =
            (each, load.places.as_slice())
        {
            return load.word(slot, h);
        }
        return match bytes {
            4 => load.weak::<4, 1>(h),
            16 => load.weak::<16, 2>(h),
            ..8 => load.weak::<0, 1>(h),
            8 => load.weak::<8, 1>(h),
            _ => load.weak::<0, 4>(h),
        };
    }
    Op::Look(Box::new(move |cx, mask| {
        let addrs = load.address.rows(cx);
        let mut words = [[0; LANES]; 4];
        load.run::<0>(cx, mask, &addrs, &mut words)?;
        Ok(cx.looked(&addrs, &words, mask))
    }))
}

/// A load.
struct Load {
    address: Address,
    space: AddressSpace,
    ty: Type,
    bytes: usize,
    /// Destinations of the elements at these bytes.
    places: Vec<(Destination, usize)>,
    order: Semantics,
}

impl Load {
    /// A weak load of 4 bytes into a register of as many.
    fn word(self, target: Slot, h: impl Host) -> Op {
        Op::Effect(Box::new(move |cx, mask| h.run_body(Word { load: &self, target, cx, mask })))
    }

    /// A weak load of `BYTES` bytes, any number if that is 0, in `WORDS` words.
    fn weak<const BYTES: usize, const WORDS: usize>(self, h: impl Host) -> Op {
        Op::Effect(Box::new(move |cx, mask| {
            h.run_body(Weak::<BYTES, WORDS> { load: &self, cx, mask })
        }))
    }

    #[inline(always)]
    fn run<const BYTES: usize>(
        &self,
        cx: &mut Context<'_>,
        mask: u32,
        addrs: &[u64; LANES],
        words: &mut [[u64; LANES]],
    ) -> Exec {
        let bytes = if BYTES == 0 { self.bytes } else { BYTES };
        let elsewhere =
            matches!(self.space, AddressSpace::One(Space::Global | Space::Const | Space::Param));
        cx.follow_loads(!elsewhere);
        cx.set_order(self.order);
        let loaded = cx.load_on_host(self.space, addrs, mask, bytes, words);
        cx.set_order(Semantics::Weak);
        cx.follow_loads(false);
        loaded?;
        for &place in &self.places {
            scatter(cx.regs, mask, place, self.ty, words);
        }
        if !elsewhere && let Some(unwritten) = cx.take_unwritten() {
            self.undefine(cx, mask, &unwritten);
        }
        Ok(())
    }

    /// Marks the lanes of the registers that got bytes which were never written.
    #[cold]
    fn undefine(&self, cx: &mut Context<'_>, mask: u32, unwritten: &Unwritten) {
        let each = self.ty.bytes();
        for &(target, at) in &self.places {
            let bytes = (u32::MAX >> (32 - each.min(32))) << at;
            let found = lanes(unwritten.lanes()).filter(|&lane| unwritten.bytes(lane) & bytes != 0);
            let found = found.fold(0, |all, lane| all | 1 << lane);
            let pc = cx.pc;
            cx.regs.undefine_of((target.class, target.slot), mask, found, Some(pc));
        }
    }
}

/// An execution of a load of 4 bytes into a register of as many.
struct Word<'a, 'c> {
    load: &'a Load,
    target: Slot,
    cx: &'a mut Context<'c>,
    mask: u32,
}

impl Body for Word<'_, '_> {
    type Out = Exec;

    #[inline(always)]
    fn run(self) -> Exec {
        let Word { load, target, cx, mask } = self;
        if mask == FULL
            && load.space == AddressSpace::One(Space::Shared)
            && let AddressBase::R32(slot) = load.address.base
        {
            let mut addrs = [0; LANES];
            for (addr, base) in addrs.iter_mut().zip(cx.regs.row32(slot)) {
                *addr = base.wrapping_add(load.address.offset as u32);
            }
            if let Some(words) = cx.load_word_shared_row(&addrs)? {
                cx.regs.put(target, FULL, &words);
                return Ok(());
            }
        }
        let addrs = load.address.rows(cx);
        if mask == FULL
            && let AddressSpace::One(space) = load.space
            && let Some(words) = cx.load_word(space, &addrs)?
        {
            cx.regs.put(target, FULL, &words);
            return Ok(());
        }
        load.run::<4>(cx, mask, &addrs, &mut [[0; LANES]; 1])
    }
}

/// An execution of a weak load.
struct Weak<'a, 'c, const BYTES: usize, const WORDS: usize> {
    load: &'a Load,
    cx: &'a mut Context<'c>,
    mask: u32,
}

impl<const BYTES: usize, const WORDS: usize> Body for Weak<'_, '_, BYTES, WORDS> {
    type Out = Exec;

    #[inline(always)]
    fn run(self) -> Exec {
        let Weak { load, cx, mask } = self;
        let addrs = load.address.rows(cx);
        load.run::<BYTES>(cx, mask, &addrs, &mut [[0; LANES]; WORDS])
    }
}

/// A row of words as a register of `bytes` bytes gets it: used by atomics.
pub(super) fn put_words(
    regs: &mut Regs,
    mask: u32,
    target: Destination,
    words: &[[u64; LANES]; 4],
) {
    match target.class {
        Class::R128 => {
            regs.put(target.slot, mask, &words[0]);
            regs.put(target.slot.next(), mask, &words[1]);
        }
        Class::R64 => regs.put(target.slot, mask, &words[0]),
        _ => regs.put(target.slot, mask, &map_row(&words[0], |word| word as u32)),
    }
}

/// A register of up to 64 bits as a row of words.
pub(super) fn word_row(regs: &Regs, source: Source) -> [u64; LANES] {
    match source.class {
        Class::R32 => map_row(regs.row32(source.slot), u64::from),
        _ => *regs.row64(source.slot),
    }
}

/// Upper half of a 128-bit register.
pub(super) fn upper_row(regs: &Regs, slot: Slot) -> [u64; LANES] {
    *regs.row64(slot.next())
}
