//! Tensor copies: PTX ISA 9.7.9.27 (`cp.async.bulk.tensor`,
//! `cp.reduce.async.bulk.tensor`, `cp.async.bulk.prefetch.tensor`).
//!
//! Tile mode in 1 to 5 dimensions, `tile::gather4` and `tile::scatter4`,
//! multicast, `.cta_group`. The map is read and decoded at issue. `complete_tx`
//! counts the whole box, even if a part of it is out of bounds. Cache
//! policies and prefetches have no effect, but the operands of a prefetch are
//! checked. im2col modes are not modelled. Every executing lane issues a separate
//! operation.
//!
//! Limits: see `tensor_map` and `machine::units`; maps that another cluster edits meanwhile.

use super::bulk::{Bulk, Report, reduce_op};
use super::mbarrier::shared_operand;
use super::mem;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::{AccessKind, AsyncFault, DiagnosticKind, Exec, Fault};
use crate::machine::code::Op;
use crate::machine::regs::Slot;
use crate::machine::units::{At, Home, Piece, Reach, Source, Target, Touch, Transfer, lanes};
use crate::machine::{AddressSpace, Context, window};
use crate::syntax::ast::{self, Operand};
use crate::tensor_map::{ReduceOp, Reduction, SHARED_ALIGN, TensorMap, Tile};

/// `[map, {coordinates}]`
#[derive(Debug, Clone)]
struct MapOperand {
    map: MapAddress,
    coordinates: Vec<Slot>,
    /// `tile::gather4`, `tile::scatter4`: a column and four rows.
    rows4: bool,
}

/// The generic address of a tensor map.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapAddress {
    address: mem::Address,
    /// Window of a named variable.
    window: u64,
}

impl MapAddress {
    /// The address in each lane.
    pub(super) fn rows(&self, cx: &Context<'_>) -> [u64; 32] {
        self.address.rows(cx).map(|addr| addr | self.window)
    }
}

/// Decodes the address of a tensor map: a generic one, or a variable's name.
pub(super) fn map_address(d: &mut Decode<'_>, operand: &Operand) -> Decoded<MapAddress> {
    let Operand::Address { base, offset, .. } = operand else {
        return Err(Reject::operand(format!("required an address, actual {operand:?}")));
    };
    let window = match base {
        None => 0,
        Some(name) => match d.place(name, *offset)?.space {
            Some(ast::Space::Param) => window::PARAM,
            Some(ast::Space::Const) => window::CONST,
            _ => 0,
        },
    };
    let plain = Operand::Address { base: base.clone(), offset: *offset, rest: Vec::new() };
    let (address, _) = mem::address(d, &plain, AddressSpace::Generic)?;
    Ok(MapAddress { address, window })
}

impl MapOperand {
    fn decode(d: &mut Decode<'_>, at: usize, rank: usize, rows4: bool) -> Decoded<Self> {
        let operand = d.operand(at)?;
        let map = map_address(d, operand)?;
        let Operand::Address { rest, .. } = operand else {
            return Err(Reject::operand("tensor map: required an address"));
        };
        let items = match rest.as_slice() {
            [only] => d.elements(only),
            _ => return Err(Reject::operand("coordinates: required one vector")),
        };
        let wanted = if rows4 { 5 } else { rank };
        if items.len() != wanted {
            return Err(Reject::operand(format!(
                "coordinates: required {wanted}, actual {}",
                items.len()
            )));
        }
        let coordinates =
            items.iter().map(|item| d.src_of::<i32>(item)).collect::<Decoded<Vec<_>>>()?;
        Ok(Self { map, coordinates, rows4 })
    }

    /// Reads the map and places the box of a lane.
    fn tile(
        &self,
        cx: &Context<'_>,
        addr: u64,
        lane: usize,
        rank: usize,
        (shared, load): (u32, bool),
    ) -> Exec<(TensorMap, Tile)> {
        let fault = |why| Fault::lane(DiagnosticKind::Async(why), lane as u32);
        let bytes = cx.tensor_map_bytes(addr, lane)?;
        let map = TensorMap::decode(&bytes).map_err(|why| fault(AsyncFault::TensorMap(why)))?;
        if map.rank() != rank {
            return Err(cx.bad_operand(
                lane,
                "tensor copy: rank of the map",
                format!("{rank}, as the instruction's"),
                map.rank(),
            ));
        }
        let at: Vec<i32> =
            self.coordinates.iter().map(|slot| cx.regs.row32(*slot)[lane] as i32).collect();
        let tile = match (self.rows4, load, at.as_slice()) {
            (true, true, &[column, a, b, c, d]) => {
                Tile::gather4(&map, column, [a, b, c, d], shared)
            }
            (true, false, &[column, a, b, c, d]) => {
                Tile::scatter4(&map, column, [a, b, c, d], shared)
            }
            (_, true, at) => Tile::load(&map, at, shared),
            (_, false, at) => Tile::store(&map, at, shared),
        };
        Ok((map, tile.map_err(|why| fault(AsyncFault::Tile(why)))?))
    }
}

/// Takes `.1d` to `.5d`.
fn rank(d: &mut Decode<'_>) -> Decoded<usize> {
    d.pick(|m| ["1d", "2d", "3d", "4d", "5d"].iter().position(|name| *name == m))
        .map(|at| at + 1)
        .ok_or_else(|| Reject::unsupported("no known number of dimensions"))
}

/// Takes the mode; whether it is one of four rows.
fn mode(d: &mut Decode<'_>, rows4: &str) -> Decoded<bool> {
    if d.has("tile") {
        return Ok(false);
    }
    if d.has(rows4) {
        return Ok(true);
    }
    match d.ins.modifiers.iter().find(|m| m.starts_with("im2col")) {
        Some(other) => Err(Reject::unsupported(format!("mode .{other}"))),
        None => Ok(false),
    }
}

/// Decodes the rest of `cp.async.bulk.tensor`: a load or a store.
pub(super) fn copy(d: &mut Decode<'_>) -> Decoded<Op> {
    d.module.async_proxy = true;
    let rank = rank(d)?;
    let spaces: Vec<&str> = d
        .ins
        .modifiers
        .iter()
        .map(String::as_str)
        .filter(|m| matches!(*m, "global" | "shared::cta" | "shared::cluster"))
        .collect();
    let reach = match spaces.as_slice() {
        ["global", "shared::cta"] => return store(d, rank, None),
        ["shared::cta", "global"] => Reach::Own,
        ["shared::cluster", "global"] => Reach::Cluster,
        other => return Err(Reject::unsupported(format!("a tensor copy between {other:?}"))),
    };
    while d.pick(|m| spaces.contains(&m).then_some(())).is_some() {}
    load(d, rank, reach)
}

/// `cp.async.bulk.tensor.Nd.shared.global.mbarrier... [dst], [map, {..}], [mbar]{, mask}{, policy}`
fn load(d: &mut Decode<'_>, rank: usize, reach: Reach) -> Decoded<Op> {
    let rows4 = mode(d, "tile::gather4")?;
    if !d.has("mbarrier::complete_tx::bytes") {
        return Err(Reject::unsupported("completion other than .mbarrier::complete_tx::bytes"));
    }
    let multicast = d.has("multicast::cluster");
    let _ = d.has("cta_group::1");
    let pair = d.has("cta_group::2");
    let hint = d.has("L2::cache_hint");
    let operands = 3 + usize::from(multicast) + usize::from(hint);
    if d.count() != operands {
        return Err(Reject::operand(format!(
            "operands: required {operands}, actual {}",
            d.count()
        )));
    }
    // Compute capability 12 copies such types to `.shared::cta` alone.
    let whole_bytes = reach == Reach::Cluster && d.module.gpu.compute_capability().0 == 12;
    let target = d.operand(0)?;
    let target = shared_operand(d, target, reach)?;
    let source = MapOperand::decode(d, 1, rank, rows4)?;
    let barrier = d.operand(2)?;
    let barrier_reach = if pair { Reach::Cluster } else { reach };
    let barrier = shared_operand(d, barrier, barrier_reach)?;
    let ctas = if multicast { Some(d.src::<u16>(3)?) } else { None };
    if hint {
        d.src::<u64>(operands - 1)?;
    }
    let report = Report { barrier, ctas, pair };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (targets, maps) = (target.address.rows(cx), source.map.rows(cx));
        let barriers = report.barrier.address.rows(cx);
        for lane in lanes(mask) {
            let touch =
                |bytes| Touch { bytes, align: SHARED_ALIGN.into(), kind: AccessKind::Write, lane };
            let to = cx.shared_at(target.reach, targets[lane], touch(1))?;
            let (map, tile) = source.tile(cx, maps[lane], lane, rank, (to.offset, true))?;
            if whole_bytes {
                map.check_cluster_destination().map_err(|why| {
                    Fault::lane(DiagnosticKind::Async(AsyncFault::Tile(why)), lane as u32)
                })?;
            }
            let extent = u64::from(tile.shared_bytes());
            cx.shared_at(target.reach, targets[lane], touch(extent))?;
            let bytes = tile.bytes();
            let (ranks, signals) = report.resolve(cx, to, barriers[lane], lane, bytes)?;
            let pieces = tile
                .runs()
                .map(|run| Piece {
                    source: run.global.map_or(Source::Fill, Source::Global),
                    target: Target::Shared(run.shared),
                    bytes: run.bytes,
                })
                .collect();
            let count = &mut cx.stats.asynchronous;
            count.tensor_loads.count(bytes.into());
            count.multicast_bytes += (ranks.len() as u64 - 1) * u64::from(bytes);
            let fill = tile.fill_pattern();
            let convert = Some(map.element);
            let transfer = Transfer { pieces, ranks, fill, convert, ..Transfer::default() };
            check_global(cx, &transfer, AccessKind::Read, lane)?;
            let name = "cp.async.bulk.tensor";
            Bulk { name, lane, transfer, signals: Some(signals) }.issue(cx)?;
        }
        Ok(())
    })))
}

/// Every byte of the tensor that a copy touches must be allocated.
fn check_global(cx: &Context<'_>, transfer: &Transfer, kind: AccessKind, lane: usize) -> Exec {
    let ranges = if kind == AccessKind::Read { transfer.reads() } else { transfer.writes() };
    for range in ranges.iter().filter(|range| range.home == Home::Global) {
        let touch = Touch { bytes: range.bytes, align: 1, kind, lane };
        cx.global_at(range.start, touch)?;
    }
    Ok(())
}

/// Decodes the rest of `cp.reduce.async.bulk.tensor`.
pub(super) fn reduce(d: &mut Decode<'_>) -> Decoded<Op> {
    d.module.async_proxy = true;
    d.function.global_sync = true;
    let rank = rank(d)?;
    let op = reduce_op(d)?;
    store(d, rank, Some(op))
}

/// `cp[.reduce].async.bulk.tensor.Nd.global.shared::cta.bulk_group [map, {..}], [src]{, policy}`
fn store(d: &mut Decode<'_>, rank: usize, op: Option<ReduceOp>) -> Decoded<Op> {
    if !d.has("global") || !d.has("shared::cta") {
        return Err(Reject::unsupported("other spaces than .global.shared::cta"));
    }
    let rows4 = mode(d, "tile::scatter4")?;
    if !d.has("bulk_group") {
        return Err(Reject::unsupported("completion other than .bulk_group"));
    }
    let hint = d.has("L2::cache_hint");
    let target = MapOperand::decode(d, 0, rank, rows4)?;
    let source = d.operand(1)?;
    let source = shared_operand(d, source, Reach::Own)?;
    if hint {
        d.src::<u64>(2)?;
    }
    let name = if op.is_some() { "cp.reduce.async.bulk.tensor" } else { "cp.async.bulk.tensor" };
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let (maps, sources) = (target.map.rows(cx), source.address.rows(cx));
        for lane in lanes(mask) {
            let touch =
                |bytes| Touch { bytes, align: SHARED_ALIGN.into(), kind: AccessKind::Read, lane };
            let from = cx.shared_at(source.reach, sources[lane], touch(1))?;
            let (map, tile) = target.tile(cx, maps[lane], lane, rank, (from.offset, false))?;
            let extent = u64::from(tile.shared_bytes());
            cx.shared_at(source.reach, sources[lane], touch(extent))?;
            let reduction =
                op.map(|op| Reduction::new(op, map.element)).transpose().map_err(|why| {
                    Fault::lane(DiagnosticKind::Async(AsyncFault::Tile(why)), lane as u32)
                })?;
            let pieces = tile
                .runs()
                .filter_map(|run| {
                    Some(Piece {
                        source: Source::Shared(At { offset: run.shared, ..from }),
                        target: Target::Global(run.global?),
                        bytes: run.bytes,
                    })
                })
                .collect();
            let transfer = Transfer { pieces, reduction, ..Transfer::default() };
            check_global(cx, &transfer, AccessKind::Write, lane)?;
            let count = &mut cx.stats.asynchronous;
            if op.is_some() { &mut count.tensor_reductions } else { &mut count.tensor_stores }
                .count(transfer.bytes());
            Bulk { name, lane, transfer, signals: None }.issue(cx)?;
        }
        Ok(())
    })))
}

/// `cp.async.bulk.prefetch.tensor.Nd.L2.global [map, {..}]{, policy}`
pub(super) fn prefetch(d: &mut Decode<'_>) -> Decoded<Op> {
    let rank = rank(d)?;
    if !d.has("L2") || !d.has("global") {
        return Err(Reject::unsupported("a prefetch other than .L2.global"));
    }
    let rows4 = mode(d, "tile::gather4")?;
    let hint = d.has("L2::cache_hint");
    let source = MapOperand::decode(d, 0, rank, rows4)?;
    if hint {
        d.src::<u64>(1)?;
    }
    Ok(Op::Effect(Box::new(move |cx, mask| {
        let maps = source.map.rows(cx);
        for lane in lanes(mask) {
            source.tile(cx, maps[lane], lane, rank, (SHARED_ALIGN, true))?;
            cx.stats.asynchronous.prefetches += 1;
        }
        Ok(())
    })))
}
