//! Tensor maps on the device and proxy fences: PTX ISA 9.7.9.28
//! (`tensormap.replace`), 9.7.13.17 (`tensormap.cp_fenceproxy`), 9.7.13.4
//! (`fence.proxy`).
//!
//! `fence.proxy.async` covers the warp's own writes through the generic proxy, see
//! `machine::units::proxy`; its one-directional forms count as the whole fence, and
//! `fence.proxy.alias` has no effect. `cp_fenceproxy` is executed by a whole warp,
//! with the addresses of its first lane.
//!
//! Limits: release fences of the tensormap proxy, scopes, maps that are replaced in global memory
//! and used without `cp_fenceproxy`.

use super::mbarrier::{self, SharedOperand, semantics, shared_operand};
use super::{Instructions, first_modifier};
use super::{mem, tma};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::diagnostic::{AccessKind, AsyncFault, DiagnosticKind, Exec, Fault, Space};
use crate::machine::code::Op;
use crate::machine::regs::Slot;
use crate::machine::units::{Fenced, Home, Poll, Range, Reach, Touch, lanes};
use crate::machine::{AddressSpace, Context, window};
use crate::tensor_map::{ReplaceField, TENSOR_MAP_BYTES, replace as replace_field};

/// `tensormap`.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| ins.opcode == "tensormap",
    decode: |d| Ok((Family::Copy, decode(d)?)),
};

/// `fence.proxy`.
pub(super) const FENCE: Instructions = Instructions {
    accepts: |ins| ins.opcode == "fence" && first_modifier(ins) == "proxy",
    decode: |d| Ok((Family::Sync, fence(d)?)),
};

/// Alignment of a tensor map, bytes.
const ALIGN: u64 = 64;

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.has("replace") {
        return replace(d);
    }
    if d.has("cp_fenceproxy") {
        return cp_fenceproxy(d);
    }
    Err(Reject::unsupported("no known operation"))
}

/// The place of a map that is edited.
#[derive(Debug, Clone, Copy)]
enum MapPlace {
    Shared(SharedOperand),
    Global(mem::Address),
    /// Generic address in shared or global memory.
    Generic(mem::Address),
}

/// `tensormap.replace.tile.field{.space}.b1024.type [map], {ordinal,} value`
fn replace(d: &mut Decode<'_>) -> Decoded<Op> {
    if !d.has("tile") || !d.has("b1024") {
        return Err(Reject::unsupported("other forms than .tile....b1024"));
    }
    let field =
        d.pick(ReplaceField::from_name).ok_or_else(|| Reject::unsupported("no known field"))?;
    let operand = d.operand(0)?;
    let place = if d.has("global") {
        MapPlace::Global(mem::address(d, operand, AddressSpace::One(Space::Global))?.0)
    } else {
        match mbarrier::reach(d) {
            Reach::Own => MapPlace::Shared(shared_operand(d, operand, Reach::Own)?),
            Reach::Generic => match mem::address(d, operand, AddressSpace::Generic)? {
                (address, AddressSpace::One(Space::Shared)) => {
                    MapPlace::Shared(SharedOperand { address, reach: Reach::Own })
                }
                (address, _) => MapPlace::Generic(address),
            },
            Reach::Cluster => return Err(Reject::unsupported("a map in another CTA")),
        }
    };
    let ty = d.ty()?;
    if ty.bits() != field.value_bits() || !matches!(ty, Type::B32 | Type::B64) {
        return d.bad_type(ty);
    }
    let ordinal = if field.ordinals() == 0 { None } else { Some(d.src::<u32>(1)?) };
    let at = 1 + usize::from(ordinal.is_some());
    match field {
        ReplaceField::ElementType
        | ReplaceField::InterleaveLayout
        | ReplaceField::SwizzleMode
        | ReplaceField::SwizzleAtomicity
        | ReplaceField::FillMode => {
            d.constant_u32(at)?;
        }
        ReplaceField::GlobalAddress
        | ReplaceField::Rank
        | ReplaceField::BoxDim
        | ReplaceField::GlobalDim
        | ReplaceField::GlobalStride
        | ReplaceField::ElementStride => {}
    }
    let wide = ty == Type::B64;
    let value = if wide { d.src::<u64>(at)? } else { d.src::<u32>(at)? };
    let edit = Edit { field, ordinal, value, wide };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let addrs = match &place {
            MapPlace::Shared(shared) => shared.address.rows(cx),
            MapPlace::Global(address) | MapPlace::Generic(address) => address.rows(cx),
        };
        for lane in lanes(mask) {
            let addr = addrs[lane];
            match place {
                MapPlace::Shared(shared) => edit.shared(cx, shared.reach, addr, lane)?,
                MapPlace::Generic(_) if window::tag(addr) == window::SHARED => {
                    edit.shared(cx, Reach::Generic, addr, lane)?;
                }
                MapPlace::Global(_) | MapPlace::Generic(_) => edit.global(cx, addr, lane)?,
            }
        }
        Ok(())
    })))
}

/// A change of one field.
#[derive(Debug, Clone, Copy)]
struct Edit {
    field: ReplaceField,
    ordinal: Option<Slot>,
    value: Slot,
    wide: bool,
}

impl Edit {
    fn apply(&self, cx: &Context<'_>, bytes: &mut [u8; TENSOR_MAP_BYTES], lane: usize) -> Exec {
        let ordinal = self.ordinal.map_or(0, |slot| cx.regs.row32(slot)[lane]);
        let value = if self.wide {
            cx.regs.row64(self.value)[lane]
        } else {
            cx.regs.row32(self.value)[lane].into()
        };
        replace_field(bytes, self.field, ordinal, value).map_err(|why| {
            Fault::lane(DiagnosticKind::Async(AsyncFault::Replace(why)), lane as u32)
        })
    }

    fn shared(&self, cx: &mut Context<'_>, reach: Reach, addr: u64, lane: usize) -> Exec {
        let bytes = TENSOR_MAP_BYTES as u64;
        let touch = Touch { bytes, align: ALIGN, kind: AccessKind::Atomic, lane };
        let at = cx.shared_at(reach, addr, touch)?;
        let home = Home::Shared(at.rank);
        cx.check_flight_at(&Range { home, start: at.offset.into(), bytes }, true, lane)?;
        let mut map = [0; TENSOR_MAP_BYTES];
        cx.shared[at.rank as usize].copy_out(at.offset as usize, &mut map);
        self.apply(cx, &mut map, lane)?;
        cx.shared[at.rank as usize].copy_in(at.offset as usize, &map);
        Ok(())
    }

    fn global(&self, cx: &mut Context<'_>, addr: u64, lane: usize) -> Exec {
        let bytes = TENSOR_MAP_BYTES as u64;
        let touch = Touch { bytes, align: ALIGN, kind: AccessKind::Atomic, lane };
        let addr = cx.global_at(addr, touch)?;
        cx.check_flight_at(&Range { home: Home::Global, start: addr, bytes }, true, lane)?;
        let env = cx.env;
        if let Some(id) = env.global.find(addr) {
            let block = env.global.block(id);
            let mut map = [0; TENSOR_MAP_BYTES];
            block.copy_out(addr, &mut map);
            self.apply(cx, &mut map, lane)?;
            block.copy_in(addr, &map, env.exclusive);
            cx.units.proxies.wrote_map(addr);
        }
        Ok(())
    }
}

/// `tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned
/// [dst], [src], 128`
fn cp_fenceproxy(d: &mut Decode<'_>) -> Decoded<Op> {
    const PARTS: [&str; 6] =
        ["global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"];
    if !PARTS.iter().all(|part| d.has(part)) {
        return Err(Reject::unsupported(
            "other forms than .global.shared::cta.tensormap::generic.release.scope.sync.aligned",
        ));
    }
    semantics(d);
    let target = d.operand(0)?;
    let (target, _) = mem::address(d, target, AddressSpace::One(Space::Global))?;
    let source = d.operand(1)?;
    let source = shared_operand(d, source, Reach::Own)?;
    if d.constant_u32(2)? != TENSOR_MAP_BYTES as u32 {
        return Err(Reject::operand("size: required 128"));
    }
    Ok(Op::Poll {
        aligned: true,
        run: Box::new(move |cx, mask| {
            let lane = mask.trailing_zeros() as usize;
            let touch = |kind| Touch { bytes: TENSOR_MAP_BYTES as u64, align: ALIGN, kind, lane };
            let (targets, sources) = (target.rows(cx), source.address.rows(cx));
            let to = cx.global_at(targets[lane], touch(AccessKind::Write))?;
            let from = cx.shared_at(source.reach, sources[lane], touch(AccessKind::Read))?;
            let (memory, offset) = (&cx.shared[from.rank as usize], from.offset as usize);
            if let Some(first) = memory.first_uninitialised_in(offset, TENSOR_MAP_BYTES) {
                let first = sources[lane] - offset as u64 + first as u64;
                let why = DiagnosticKind::UninitialisedRead { first, user: None };
                let kind = AccessKind::Read;
                let (space, addr) = (Space::Shared, sources[lane]);
                return Err(cx.fault(why, space, addr, TENSOR_MAP_BYTES, kind, lane));
            }
            let mut map = [0; TENSOR_MAP_BYTES];
            memory.copy_out(offset, &mut map);
            if let Some(id) = cx.env.global.find(to) {
                cx.env.global.block(id).copy_in(to, &map, cx.env.exclusive);
            }
            cx.units.proxies.wrote_map(to);
            Ok(Poll::Done)
        }),
    })
}

/// `fence.proxy.kind`
pub(super) fn fence(d: &mut Decode<'_>) -> Decoded<Op> {
    let _ = d.has("proxy");
    if d.has("alias") {
        return Ok(Op::Nop);
    }
    if d.has("tensormap::generic") {
        let acquire = d.has("acquire");
        semantics(d);
        return if acquire { acquire_map(d) } else { Ok(Op::Nop) };
    }
    if !d.has("async") && !d.has("async::generic") {
        return Err(Reject::unsupported("no known proxy"));
    }
    let global = d.has("global");
    let shared = d
        .pick(|m| {
            matches!(
                m,
                "shared::cta"
                    | "shared::cluster"
                    | "sync_restrict::shared::cta"
                    | "sync_restrict::shared::cluster"
            )
            .then_some(())
        })
        .is_some();
    semantics(d);
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (warp, syncs) = (cx.warp(), cx.syncs());
        // Without a space the fence covers all.
        if !global {
            cx.units.proxies.fence(Fenced::Shared, warp, syncs);
            cx.units.fence_responses(warp, mask);
            if let Some(races) = &mut cx.units.races {
                races.fence_reads(warp, mask);
            }
        }
        if !shared {
            cx.units.proxies.fence(Fenced::Global, warp, syncs);
        }
        Ok(())
    })))
}

/// `fence.proxy.tensormap::generic.acquire.scope [map], size`
fn acquire_map(d: &mut Decode<'_>) -> Decoded<Op> {
    let operand = d.operand(0)?;
    let map = tma::map_address(d, operand)?;
    let size = d.constant_u32(1)?;
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let addrs = map.rows(cx);
        for lane in lanes(mask) {
            cx.units.proxies.acquire_map(cx.place.rank, addrs[lane], size.into());
        }
        Ok(())
    })))
}
