//! Data into, out of and within tensor memory: PTX ISA 9.7.16.8 (`tcgen05.ld`, `.st`)
//! and 9.7.16.9 (`tcgen05.cp`, `.shift`). All shapes of sm_100a, packing and unpacking
//! of 16-bit values, unpacking of 4- and 6-bit ones. Source registers of `st` are read at
//! issue.
//!
//! Taken for granted, since PTX shows it in pictures only: an unpacked code is in the low
//! bits of its byte, here and where `mma` reads such an `A`; `.shift` moves 31 rows one
//! lane up in number, within the 32 lanes that its address names.

use super::mem::{self, Address};
use super::mma::{sources, sync_aligned, targets};
use super::tcgen05::{cta_group, issue_ordered, uniform};
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::{Exec, Space, TensorFault};
use crate::machine::code::Op;
use crate::machine::regs::Slot;
use crate::machine::units::tcgen05::{
    Access, CopySource, CopyWork, LoadWork, SHIFT_LANES, SHIFTED, ShiftWork, StoreWork,
};
use crate::machine::units::tensor_memory::{COLUMNS, LANES, region, split};
use crate::machine::units::wgmma_tile::{SharedTile, fault, invalid};
use crate::machine::units::{GroupKind, Operation, Poll, Range, Work, lanes};
use crate::machine::{AddressSpace, Context};
use crate::tensor::shared::{Generation, SharedDescriptor};
use crate::tensor::tmem::{CopyShape, LoadShape};

/// `[taddr]`
pub(super) fn tensor_address(d: &mut Decode<'_>, at: usize) -> Decoded<Address> {
    let operand = d.operand(at)?;
    Ok(mem::address(d, operand, AddressSpace::One(Space::Shared))?.0)
}

/// Shape, repetition and packing of a load or store; `offset` is the operand that
/// `.16x32bx2` has.
fn access(d: &mut Decode<'_>, offset: usize, packing: &str) -> Decoded<Access> {
    sync_aligned(d)?;
    let offset = d.known_u32(offset);
    let shape = d
        .pick(|m| {
            Some(match m {
                "32x32b" => LoadShape::L32x32b,
                "16x64b" => LoadShape::L16x64b,
                "16x128b" => LoadShape::L16x128b,
                "16x256b" => LoadShape::L16x256b,
                "16x32bx2" => LoadShape::L16x32bx2 { offset: offset.filter(|&at| at < COLUMNS)? },
                _ => return None,
            })
        })
        .ok_or_else(|| Reject::unsupported("no known shape"))?;
    let repeat: u32 = d
        .pick(|m| m.strip_prefix('x')?.parse().ok())
        .ok_or_else(|| Reject::unsupported("no repetition"))?;
    if !repeat.is_power_of_two() || repeat > shape.max_repeat() {
        return Err(Reject::unsupported(format!(".x{repeat} of this shape")));
    }
    let halves = d.has(packing);
    let _ = d.has("b32");
    Ok(Access { shape, registers: shape.registers(repeat), halves })
}

/// The place of a warp's access: lane, column, and the ranges of its cells.
struct Where {
    lane: u32,
    column: u32,
    ranges: Vec<Range>,
}

/// Checks the address of a load or store.
fn locate(cx: &Context<'_>, operand: &'static str, access: &Access, address: u32) -> Exec<Where> {
    let (mut lane, column) = split(address);
    let own = cx.place.warp % 4 * 32;
    let lanes = access.shape.lanes();
    if lane == 0 && own != 0 {
        cx.report(fault(TensorFault::ImpliedLanes { required: own }))?;
        lane = own;
    }
    if lane < own || lane + lanes > own + 32 || !lane.is_multiple_of(16) {
        return Err(fault(TensorFault::WrongLanes { required: own, actual: lane, lanes }));
    }
    let rank = cx.place.rank;
    let mut ranges = Vec::new();
    for (first, columns) in access.columns() {
        let first = column + first;
        cx.units.tensor.check_allocated(operand, rank, first, columns)?;
        region(rank, (lane, lanes), (first, columns), &mut ranges);
    }
    Ok(Where { lane, column, ranges })
}

fn issue(
    cx: &mut Context<'_>,
    name: &'static str,
    kind: GroupKind,
    mask: u32,
    (reads, writes): (Vec<Range>, Vec<Range>),
    work: Box<dyn Work>,
) -> Exec<Poll> {
    let warp = cx.warp();
    let lane = mask.trailing_zeros() as usize;
    let id = cx.issue(Operation {
        name,
        site: cx.site(lane),
        lanes: mask,
        reads,
        writes,
        async_proxy: false,
        atomic: false,
        group: Some(cx.units.groups.membership(kind, warp, lane)),
        after: Vec::new(),
        signals: Vec::new(),
        work,
    })?;
    if kind == GroupKind::TensorLoad {
        cx.units.tensor.load_issued(warp, id);
    }
    Ok(Poll::Done)
}

/// `tcgen05.ld.sync.aligned.shape.xN{.pack::16b}.b32 {r}, [taddr]{, offset}`
pub(super) fn load(d: &mut Decode<'_>) -> Decoded<Op> {
    let access = access(d, 2, "pack::16b")?;
    let slots: Vec<Slot> = targets::<u32>(d, 0, access.registers as usize)?;
    let address = tensor_address(d, 1)?;
    Ok(Op::Poll {
        aligned: true,
        run: Box::new(move |cx, mask| {
            let addrs = address.rows(cx).map(|address| address as u32);
            let address = uniform(cx, &addrs, mask, "tcgen05.ld: address")?;
            let Where { lane, column, ranges } = locate(cx, "tcgen05.ld", &access, address)?;
            cx.stats.tensor_memory.read += u64::from(access.registers) * 128;
            let (warp, pc) = (cx.warp(), cx.pc);
            let memory = cx.units.tensor.memory(cx.place.rank);
            cx.regs.hold(&slots, false);
            let values = cx.units.tensor.add_load(warp, pc, mask, slots.clone());
            let work = LoadWork { memory, access, lane, column, mask, values };
            let ranges = (ranges, Vec::new());
            issue(cx, "tcgen05.ld", GroupKind::TensorLoad, mask, ranges, Box::new(work))
        }),
    })
}

/// `tcgen05.st.sync.aligned.shape.xN{.unpack::16b}.b32 [taddr], {offset,} {r}`
pub(super) fn store(d: &mut Decode<'_>) -> Decoded<Op> {
    let access = access(d, 1, "unpack::16b")?;
    let at = d.count().saturating_sub(1);
    let slots: Vec<Slot> = sources::<u32>(d, at, access.registers as usize)?;
    let address = tensor_address(d, 0)?;
    Ok(Op::Poll {
        aligned: true,
        run: Box::new(move |cx, mask| {
            let addrs = address.rows(cx).map(|address| address as u32);
            let address = uniform(cx, &addrs, mask, "tcgen05.st: address")?;
            let Where { lane, column, ranges } = locate(cx, "tcgen05.st", &access, address)?;
            cx.stats.tensor_memory.written += u64::from(access.registers) * 128;
            let memory = cx.units.tensor.memory(cx.place.rank);
            let values = slots.iter().map(|&slot| *cx.regs.row32(slot)).collect();
            let work = StoreWork { memory, access, lane, column, mask, values };
            let ranges = (Vec::new(), ranges);
            issue(cx, "tcgen05.st", GroupKind::TensorStore, mask, ranges, Box::new(work))
        }),
    })
}

/// `tcgen05.cp.cta_group.shape{.multicast}{.b8x16.src} [taddr], s-desc`
pub(super) fn copy(d: &mut Decode<'_>) -> Decoded<Op> {
    d.module.async_proxy = true;
    let group = cta_group(d)?;
    let name = d
        .pick(|m| (m.ends_with('b') && m.contains('x')).then(|| m.to_owned()))
        .ok_or_else(|| Reject::unsupported("no shape"))?;
    let multicast = d.pick(|m| m.starts_with("warpx").then(|| m.to_owned())).unwrap_or_default();
    let shape = CopyShape::parse(&name, &multicast)
        .ok_or_else(|| Reject::unsupported(format!("shape {name} with multicast `{multicast}`")))?;
    let unpack = if d.has("b8x16") {
        let bits = d.pick(|m| match m {
            "b4x16_p64" => Some(4),
            "b6x16_p32" => Some(6),
            _ => None,
        });
        Some(bits.ok_or_else(|| Reject::unsupported("no known source format"))?)
    } else {
        None
    };
    let address = tensor_address(d, 0)?;
    let descriptor = d.src::<u64>(1)?;
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let addrs = address.rows(cx);
        for lane in lanes(mask) {
            let bits = cx.regs.row64(descriptor)[lane];
            let descriptor = SharedDescriptor::decode(Generation::Sm100, bits)
                .map_err(|error| invalid("tcgen05.cp source", error))?;
            issue_copy(cx, group, lane, addrs[lane] as u32, (shape, unpack), descriptor)?;
        }
        Ok(())
    })))
}

fn issue_copy(
    cx: &mut Context<'_>,
    group: u32,
    lane: usize,
    address: u32,
    (shape, unpack): (CopyShape, Option<u32>),
    descriptor: SharedDescriptor,
) -> Exec {
    let (first, column) = split(address);
    if first != 0 {
        let required = "lane 0";
        return Err(cx.bad_operand(lane, "tcgen05.cp: address", required, format!("{address:#x}")));
    }
    let (mut reads, mut writes, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    for rank in cx.units.tensor.ranks(group, cx.place.rank)? {
        let source = CopySource { shape, descriptor, unpack, rank };
        let operand = source.operand();
        let tile =
            SharedTile { name: "tcgen05.cp source", descriptor, operand, rank, negate: false };
        tile.reads(cx, &mut reads)?;
        cx.units.tensor.check_allocated("tcgen05.cp", rank, column, shape.columns())?;
        region(rank, (0, LANES), (column, shape.columns()), &mut writes);
        cx.stats.tensor_memory.written += u64::from(shape.columns()) * 512;
        sources.push((source, cx.units.tensor.memory(rank)));
    }
    let work = CopyWork { sources, lane: first, column, taken: Vec::new() };
    issue_ordered(cx, GroupKind::TensorCopy, lane, (reads, writes), Vec::new(), work)
}

/// `tcgen05.shift.cta_group.down [taddr]`
pub(super) fn shift(d: &mut Decode<'_>) -> Decoded<Op> {
    let group = cta_group(d)?;
    if !d.has("down") {
        return Err(Reject::unsupported("a direction other than .down"));
    }
    let address = tensor_address(d, 0)?;
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let addrs = address.rows(cx);
        for lane in lanes(mask) {
            let (first, column) = split(addrs[lane] as u32);
            if !first.is_multiple_of(32) {
                let required = "a multiple of 32 lanes";
                return Err(cx.bad_operand(lane, "tcgen05.shift: address", required, first));
            }
            let (mut writes, mut memories) = (Vec::new(), Vec::new());
            for rank in cx.units.tensor.ranks(group, cx.place.rank)? {
                cx.units.tensor.check_allocated("tcgen05.shift", rank, column, SHIFTED)?;
                region(rank, (first, SHIFT_LANES), (column, SHIFTED), &mut writes);
                memories.push(cx.units.tensor.memory(rank));
            }
            let work = ShiftWork { memories, lane: first, column };
            issue_ordered(
                cx,
                GroupKind::TensorShift,
                lane,
                (Vec::new(), writes),
                Vec::new(),
                work,
            )?;
        }
        Ok(())
    })))
}
