//! Moving 8x8 and 16x16 matrices between shared memory and the registers of a warp:
//! PTX ISA 9.7.14.5.15 (`ldmatrix`), .16 (`stmatrix`), .17 (`movmatrix`).
//!
//! Every lane of a group supplies the address of one row of 16 bytes, which is checked
//! for bounds, alignment and initialisation like any access; padding of
//! `.b4x16_p64` and `.b6x16_p32` rows need not be initialised. A warp with missing
//! lanes is reported. Not noticed: forms that the target lacks, which ptxas refuses.
//! The layout of the transposed 8-bit forms (`m16n16`, `m16n8`) is derived from their
//! use before `mma` and has no recording.

use super::Instructions;
use super::mem::{Address, address, space};
use super::mma::{sources, sync_aligned, targets, whole_warp};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::{AccessKind, DiagnosticKind, Exec, Space};
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Slot};
use crate::machine::{AddressSpace, Context};

/// Loads, stores and transposes of fragments.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| matches!(ins.opcode.as_str(), "ldmatrix" | "stmatrix" | "movmatrix"),
    decode: |d| Ok((Family::Matrix, decode(d)?)),
};

/// Bytes of a row.
const ROW: usize = 16;

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    sync_aligned(d)?;
    match d.ins.opcode.as_str() {
        "ldmatrix" => ldmatrix(d),
        "stmatrix" => stmatrix(d),
        _ => movmatrix(d),
    }
}

/// Places of a register's bytes in the rows of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Four consecutive bytes of a row: `m8n8` and `m8n16`.
    Plain,
    /// `m8n8.trans`: two 16-bit elements of a column.
    Columns16,
    /// `m16n16.trans`: four 8-bit elements of a column, the second register of a
    /// matrix 8 columns on.
    Columns8,
    /// `m16n8.trans`: two 8-bit elements of a column, and two 8 columns on.
    Halves8,
}

impl Layout {
    /// Rows that a register's worth of lanes takes from or gives to.
    const fn rows(self) -> usize {
        match self {
            Self::Columns8 => 16,
            _ => 8,
        }
    }

    /// Registers per matrix.
    const fn registers(self) -> usize {
        self.rows() / 8
    }

    /// Row, over all matrices, and byte in it of byte `byte` of a register.
    #[inline(always)]
    const fn place(self, lane: usize, register: usize, byte: usize) -> (usize, usize) {
        let (quad, line) = (lane % 4, lane / 4);
        match self {
            Self::Plain => (register * 8 + line, quad * 4 + byte),
            Self::Columns16 => (register * 8 + quad * 2 + byte / 2, line * 2 + byte % 2),
            Self::Columns8 => (register / 2 * 16 + quad * 4 + byte, line + register % 2 * 8),
            Self::Halves8 => (register * 8 + quad * 2 + byte % 2, line + byte / 2 * 8),
        }
    }
}

/// The contents of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Bytes,
    /// 16 elements of so many bits, then padding, one per byte once loaded.
    Narrow(u32),
}

/// `.x1`, `.x2`, `.x4`
fn count(d: &mut Decode<'_>) -> Decoded<usize> {
    d.pick(|m| match m {
        "x1" => Some(1),
        "x2" => Some(2),
        "x4" => Some(4),
        _ => None,
    })
    .ok_or_else(|| Reject::unsupported("no number of matrices"))
}

fn shape(d: &mut Decode<'_>) -> Decoded<&'static str> {
    d.pick(|m| ["m8n8", "m8n16", "m16n16", "m16n8"].into_iter().find(|shape| *shape == m))
        .ok_or_else(|| Reject::unsupported("no known shape"))
}

/// The address operand, in shared memory or generic.
fn shared_address(d: &mut Decode<'_>, at: usize) -> Decoded<(Address, AddressSpace)> {
    let named = space(d);
    if !matches!(named, AddressSpace::Generic | AddressSpace::One(Space::Shared)) {
        return Err(Reject::unsupported("a state space other than .shared"));
    }
    let operand = d.operand(at)?;
    address(d, operand, named)
}

fn ldmatrix(d: &mut Decode<'_>) -> Decoded<Op> {
    let shape = shape(d)?;
    let count = count(d)?;
    let trans = d.has("trans");
    let (address, space) = shared_address(d, 1)?;
    let format = d.pick(|m| {
        Some(match m {
            "b16" => (16, Source::Bytes),
            "b8" => (8, Source::Bytes),
            "b4x16_p64" => (4, Source::Narrow(4)),
            "b6x16_p32" => (6, Source::Narrow(6)),
            _ => return None,
        })
    });
    let Some((bits, source)) = format else {
        return Err(Reject::unsupported("no known type"));
    };
    if bits < 8 && !d.has("b8x16") {
        return Err(Reject::unsupported("a packed source without .b8x16"));
    }
    let layout = match (shape, bits, trans) {
        ("m8n8", 16, false) | ("m8n16", 4 | 6, false) => Layout::Plain,
        ("m8n8", 16, true) => Layout::Columns16,
        ("m16n16", 8 | 4 | 6, true) if count < 4 => Layout::Columns8,
        _ => {
            let trans = if trans { ", transposed" } else { "" };
            let why = format!("{count} {shape} matrices of {bits} bits{trans}");
            return Err(Reject::unsupported(why));
        }
    };
    let registers = count * layout.registers();
    let targets = targets::<u32>(d, 0, registers)?;
    whole_warp(d, move |cx| {
        cx.follow_loads(true);
        let rows = load_rows(cx, address, space, count * layout.rows(), source);
        cx.follow_loads(false);
        let rows = rows?;
        let unwritten = cx.take_unwritten();
        for (register, slot) in targets.iter().enumerate() {
            let row: [u32; LANES] = std::array::from_fn(|lane| {
                u32::from_le_bytes(std::array::from_fn(|byte| {
                    let (row, at) = layout.place(lane, register, byte);
                    rows[row][at]
                }))
            });
            cx.regs.put(*slot, FULL, &row);
            if let Some(unwritten) = &unwritten {
                let missing = |lane: usize| {
                    (0..4).any(|byte| {
                        let (row, at) = layout.place(lane, register, byte);
                        let at = if source == Source::Bytes { 1 << at } else { u32::MAX };
                        unwritten.bytes(row) & at != 0
                    })
                };
                let found = (0..LANES).filter(|&lane| missing(lane));
                let pc = cx.pc;
                cx.regs.undefine(*slot, FULL, found.fold(0, |all, lane| all | 1 << lane), Some(pc));
            }
        }
        Ok(())
    })
}

/// The rows that the first `count` lanes point at.
fn load_rows(
    cx: &mut Context<'_>,
    address: Address,
    space: AddressSpace,
    count: usize,
    source: Source,
) -> Exec<[[u8; ROW]; LANES]> {
    let mask = FULL >> (LANES - count);
    let addrs = address.rows(cx);
    let mut words = [[0; LANES]; 4];
    let mut out = [[0; ROW]; LANES];
    match source {
        Source::Bytes => cx.load(space, &addrs, mask, ROW, &mut words)?,
        Source::Narrow(bits) => {
            check_alignment(cx, &addrs, count)?;
            cx.load(space, &addrs, mask, 8, &mut words)?;
            if bits == 6 {
                let mut rest = [[0; LANES]; 4];
                cx.load(space, &addrs.map(|addr| addr.wrapping_add(8)), mask, 4, &mut rest)?;
                words[1] = rest[0];
            }
        }
    }
    for (lane, row) in out.iter_mut().enumerate().take(count) {
        let value = u128::from(words[0][lane]) | u128::from(words[1][lane]) << 64;
        *row = match source {
            Source::Bytes => value.to_le_bytes(),
            Source::Narrow(bits) => {
                std::array::from_fn(|at| (value >> (at as u32 * bits)) as u8 & ((1 << bits) - 1))
            }
        };
    }
    Ok(out)
}

/// Rows start at a multiple of 16 bytes even if less of them is read.
fn check_alignment(cx: &Context<'_>, addrs: &[u64; LANES], count: usize) -> Exec {
    match addrs[..count].iter().position(|addr| !addr.is_multiple_of(ROW as u64)) {
        None => Ok(()),
        Some(lane) => {
            let kind = DiagnosticKind::Misaligned { required: ROW as u32 };
            let addr = addrs[lane] & 0xffff_ffff;
            Err(cx.fault(kind, Space::Shared, addr, ROW, AccessKind::Read, lane))
        }
    }
}

fn stmatrix(d: &mut Decode<'_>) -> Decoded<Op> {
    let shape = shape(d)?;
    let count = count(d)?;
    let trans = d.has("trans");
    let (address, space) = shared_address(d, 0)?;
    let layout = match (shape, trans) {
        ("m8n8", false) if d.has("b16") => Layout::Plain,
        ("m8n8", true) if d.has("b16") => Layout::Columns16,
        ("m16n8", true) if d.has("b8") => Layout::Halves8,
        _ => {
            let trans = if trans { ", transposed" } else { "" };
            return Err(Reject::unsupported(format!("{shape} matrices of this type{trans}")));
        }
    };
    let sources = sources::<u32>(d, 1, count)?;
    whole_warp(d, move |cx| store_rows(cx, address, space, layout, &sources))
}

fn store_rows(
    cx: &mut Context<'_>,
    address: Address,
    space: AddressSpace,
    layout: Layout,
    sources: &[Slot],
) -> Exec {
    let mut rows = [[0; ROW]; LANES];
    for (register, slot) in sources.iter().enumerate() {
        for (lane, word) in cx.regs.row32(*slot).iter().enumerate() {
            for (byte, value) in word.to_le_bytes().into_iter().enumerate() {
                let (row, at) = layout.place(lane, register, byte);
                rows[row][at] = value;
            }
        }
    }
    let mut words = [[0; LANES]; 4];
    for (lane, row) in rows.iter().enumerate() {
        let value = u128::from_le_bytes(*row);
        words[0][lane] = value as u64;
        words[1][lane] = (value >> 64) as u64;
    }
    let mask = FULL >> (LANES - sources.len() * layout.rows());
    let addrs = address.rows(cx);
    cx.store(space, &addrs, mask, ROW, &words)
}

/// `movmatrix.sync.aligned.m8n8.trans.b16 d, a`
fn movmatrix(d: &mut Decode<'_>) -> Decoded<Op> {
    for name in ["m8n8", "trans", "b16"] {
        if !d.has(name) {
            return Err(Reject::unsupported(format!("no .{name}")));
        }
    }
    let (target, a) = (d.dst::<u32>(0)?, d.src::<u32>(1)?);
    whole_warp(d, move |cx| {
        let words = *cx.regs.row32(a);
        let element =
            |row: usize, column: usize| words[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
        let row: [u32; LANES] = std::array::from_fn(|lane| {
            let (quad, line) = (lane % 4, lane / 4);
            element(2 * quad, line) | element(2 * quad + 1, line) << 16
        });
        cx.regs.put(target, FULL, &row);
        Ok(())
    })
}
