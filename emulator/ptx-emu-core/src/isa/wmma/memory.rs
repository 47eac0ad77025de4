//! `wmma.load` and `wmma.store`: a matrix in memory, rows or columns a stride apart.

use super::{MOST, Operand, Shape, layout, result_registers};
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::Exec;
use crate::isa::mem::{Address, address, skip_hints, space};
use crate::isa::mma::form::{Accumulator, accumulator as accumulator_type};
use crate::isa::mma::{sources, targets, whole_warp};
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Slot};
use crate::machine::{AddressSpace, Context};
use crate::tensor::element::Element;
use crate::tensor::fragment::wmma::result;

/// Bytes of the largest matrix.
const BYTES: usize = 16 * MOST * 4;

/// The place of a matrix.
#[derive(Debug, Clone, Copy)]
struct Place {
    address: Address,
    space: AddressSpace,
    /// Elements from one row (or column) to the next.
    stride: Slot,
    geometry: Geometry,
}

/// A matrix in memory: contiguous parts of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    /// Rows, or columns.
    parts: usize,
    /// Elements of each.
    length: usize,
    /// Bits of an element.
    bits: usize,
    /// Bytes of a lane's fragment.
    fragment: usize,
}

impl Geometry {
    /// Bytes of a part.
    const fn part_bytes(&self) -> usize {
        self.length * self.bits / 8
    }
}

/// A matrix as one block of bytes, its parts one after another.
type Block = [u8; BYTES];

impl Place {
    fn decode(
        d: &mut Decode<'_>,
        at: usize,
        space: AddressSpace,
        geometry: Geometry,
    ) -> Decoded<Self> {
        let operand = d.operand(at)?;
        let (address, space) = address(d, operand, space)?;
        let stride = match d.count() {
            3 => d.src::<u32>(2)?,
            _ => d.constant_row32(geometry.length as u32),
        };
        Ok(Self { address, space, stride, geometry })
    }

    /// Bytes that a lane moves at once, as far as parts must be aligned.
    fn chunk(&self, cx: &Context<'_>) -> usize {
        let Geometry { fragment, .. } = self.geometry;
        let most = if cx.env.is_strict() { 32 } else { 16 };
        fragment.min(most).min(self.geometry.part_bytes())
    }

    /// Calls `each` with the addresses of up to a warp's worth of chunks, the lanes that have one,
    /// and the place of the first one in the block.
    fn chunks(
        &self,
        cx: &mut Context<'_>,
        chunk: usize,
        mut each: impl FnMut(&mut Context<'_>, &[u64; LANES], u32, usize) -> Exec,
    ) -> Exec {
        let base = uniform(cx, self.address.rows(cx), "wmma: address")?;
        let strides = cx.regs.row32(self.stride).map(u64::from);
        let stride = uniform(cx, strides, "wmma: stride")? * self.geometry.bits as u64 / 8;
        let per_part = self.geometry.part_bytes() / chunk;
        let all = self.geometry.parts * per_part;
        for first in (0..all).step_by(LANES) {
            let (mut part, mut place) = (first / per_part, first % per_part);
            let mut addrs = [0; LANES];
            for addr in &mut addrs {
                let start = base.wrapping_add(part as u64 * stride);
                *addr = start.wrapping_add((place * chunk) as u64);
                place += 1;
                if place == per_part {
                    (part, place) = (part + 1, 0);
                }
            }
            let mask = FULL >> (LANES - (all - first).min(LANES));
            each(cx, &addrs, mask, first * chunk)?;
        }
        Ok(())
    }

    fn load(&self, cx: &mut Context<'_>) -> Exec<Block> {
        let mut block = [0; BYTES];
        let (chunk, space) = (self.chunk(cx), self.space);
        self.chunks(cx, chunk, |cx, addrs, mask, at| {
            let mut words = [[0; LANES]; 4];
            cx.load(space, addrs, mask, chunk, &mut words)?;
            let count = mask.count_ones() as usize;
            for (lane, out) in block[at..].chunks_exact_mut(chunk).take(count).enumerate() {
                for (out, word) in out.chunks_mut(8).zip(&words) {
                    out.copy_from_slice(&word[lane].to_le_bytes()[..out.len()]);
                }
            }
            Ok(())
        })?;
        Ok(block)
    }

    fn store(&self, cx: &mut Context<'_>, block: &Block) -> Exec {
        let (chunk, space) = (self.chunk(cx), self.space);
        self.chunks(cx, chunk, |cx, addrs, mask, at| {
            let mut words = [[0; LANES]; 4];
            let count = mask.count_ones() as usize;
            for (lane, bytes) in block[at..].chunks_exact(chunk).take(count).enumerate() {
                for (bytes, word) in bytes.chunks(8).zip(&mut words) {
                    let mut whole = [0; 8];
                    whole[..bytes.len()].copy_from_slice(bytes);
                    word[lane] = u64::from_le_bytes(whole);
                }
            }
            cx.store(space, addrs, mask, chunk, &words)
        })
    }
}

/// The value of an operand that must be the same in all lanes.
fn uniform(cx: &Context<'_>, row: [u64; LANES], operand: &'static str) -> Exec<u64> {
    match row.iter().position(|value| *value != row[0]) {
        None => Ok(row[0]),
        Some(lane) => {
            let required = format!("{:#x} in all lanes", row[0]);
            Err(cx.bad_operand(lane, operand, required, format!("{:#x}", row[lane])))
        }
    }
}

/// Bits `at` to `at + count` of a block, which are within eight bytes.
fn bits(block: &Block, at: usize, count: usize) -> u64 {
    let mut bytes = [0; 8];
    let from = &block[at / 8..(at / 8 + 8).min(BYTES)];
    bytes[..from.len()].copy_from_slice(from);
    u64::from_le_bytes(bytes) >> (at % 8) & (u64::MAX >> (64 - count))
}

/// Takes the matrix of a load, type last.
enum Matrix {
    Operand(Operand, Geometry, bool),
    Result(Accumulator, Geometry, bool),
}

impl Matrix {
    /// Decodes the place of `A`, `B` or `C` in memory, and whether its parts run along K, or are
    /// rows.
    fn decode(d: &mut Decode<'_>, which: char) -> Decoded<(Self, AddressSpace)> {
        let rows = layout(d)?;
        let shape = Shape::decode(d)?;
        let space = space(d);
        skip_hints(d);
        if which == 'c' {
            let found = d.pick(accumulator_type);
            let ty = found.ok_or_else(|| Reject::unsupported("no known type"))?;
            if !shape.gives(ty) {
                return shape.lacks(&format!("{ty:?}"));
            }
            let (parts, length) = if rows { (shape.m, shape.n) } else { (shape.n, shape.m) };
            let bits = ty.bits();
            let width = if bits == 64 { 8 } else { 4 };
            let fragment = result_registers(shape, ty) * width;
            return Ok((Self::Result(ty, Geometry { parts, length, bits, fragment }, rows), space));
        }
        let found = d.pick(Element::parse);
        let element = found.ok_or_else(|| Reject::unsupported("no known type"))?;
        if !shape.takes(element) {
            return shape.lacks(&format!("{element:?}"));
        }
        let along_k = rows == (which == 'a');
        if element.bits() < 8 && !along_k {
            return Err(Reject::unsupported("this layout of elements smaller than a byte"));
        }
        let lines = if which == 'a' { shape.m } else { shape.n };
        let operand = Operand::new(element, lines, shape.k);
        let (parts, length) = if along_k { (lines, shape.k) } else { (shape.k, lines) };
        let bits = element.bits() as usize;
        let fragment = operand.registers() * bits.max(32) / 8;
        let geometry = Geometry { parts, length, bits, fragment };
        Ok((Self::Operand(operand, geometry, along_k), space))
    }
}

pub(super) fn load(d: &mut Decode<'_>) -> Decoded<Op> {
    let which = d.pick(|m| match m {
        "a" => Some('a'),
        "b" => Some('b'),
        "c" => Some('c'),
        _ => None,
    });
    let which = which.ok_or_else(|| Reject::unsupported("no matrix"))?;
    match Matrix::decode(d, which)? {
        (Matrix::Operand(operand, geometry, along_k), space) => {
            load_operand(d, operand, geometry, along_k, space)
        }
        (Matrix::Result(ty, geometry, rows), space) => load_result(d, ty, geometry, rows, space),
    }
}

fn load_operand(
    d: &mut Decode<'_>,
    operand: Operand,
    geometry: Geometry,
    along_k: bool,
    space: AddressSpace,
) -> Decoded<Op> {
    let count = operand.registers();
    let targets = match operand.element {
        Element::F64 => targets::<f64>(d, 0, count)?,
        _ => targets::<u32>(d, 0, count)?,
    };
    let place = Place::decode(d, 1, space, geometry)?;
    let per_register = operand.fragment.per_register;
    let Geometry { length, bits: width, .. } = geometry;
    // Along K the elements of a register follow each other.
    let starts = |register: usize| {
        std::array::from_fn(|lane| {
            let (line, k) = operand.place(lane, register);
            (line * length + k) * width
        })
    };
    let starts: Vec<[usize; LANES]> = (0..count).map(starts).collect();
    whole_warp(d, move |cx| {
        let block = place.load(cx)?;
        let word = |lane: usize, register: usize| {
            if along_k {
                return bits(&block, starts[register][lane], per_register * width);
            }
            let (line, k) = operand.place(lane, register);
            (0..per_register).fold(0, |word, e| {
                let at = if along_k { line * length + k + e } else { (k + e) * length + line };
                word | bits(&block, at * width, width) << (e * width)
            })
        };
        for (register, slot) in targets.iter().enumerate() {
            if width == 64 {
                let row: [u64; LANES] = std::array::from_fn(|lane| word(lane, register));
                cx.regs.put(*slot, FULL, &row);
            } else {
                let row: [u32; LANES] = std::array::from_fn(|lane| word(lane, register) as u32);
                cx.regs.put(*slot, FULL, &row);
            }
        }
        Ok(())
    })
}

/// Place of element `(row, column)` of `C` or `D` in the block.
fn in_block(geometry: &Geometry, rows: bool, (row, column): (usize, usize)) -> usize {
    if rows { row * geometry.length + column } else { column * geometry.length + row }
}

fn load_result(
    d: &mut Decode<'_>,
    ty: Accumulator,
    geometry: Geometry,
    rows: bool,
    space: AddressSpace,
) -> Decoded<Op> {
    let m = if rows { geometry.parts } else { geometry.length };
    let count = geometry.fragment / if ty == Accumulator::F64 { 8 } else { 4 };
    let targets = match ty {
        Accumulator::F64 => targets::<f64>(d, 0, count)?,
        _ => targets::<u32>(d, 0, count)?,
    };
    let place = Place::decode(d, 1, space, geometry)?;
    whole_warp(d, move |cx| {
        let block = place.load(cx)?;
        let element = |lane: usize, index: usize| {
            let at = in_block(&geometry, rows, result(m, lane, index));
            bits(&block, at * geometry.bits, geometry.bits)
        };
        for (register, slot) in targets.iter().enumerate() {
            if ty == Accumulator::F64 {
                let row: [u64; LANES] = std::array::from_fn(|lane| element(lane, register));
                cx.regs.put(*slot, FULL, &row);
                continue;
            }
            let row: [u32; LANES] = std::array::from_fn(|lane| match ty {
                Accumulator::F16 => {
                    (element(lane, 2 * register) | element(lane, 2 * register + 1) << 16) as u32
                }
                _ => element(lane, register) as u32,
            });
            cx.regs.put(*slot, FULL, &row);
        }
        Ok(())
    })
}

pub(super) fn store(d: &mut Decode<'_>) -> Decoded<Op> {
    if !d.has("d") {
        return Err(Reject::unsupported("no matrix .d"));
    }
    let (Matrix::Result(ty, geometry, rows), space) = Matrix::decode(d, 'c')? else {
        return Err(Reject::unsupported("no matrix .d"));
    };
    let m = if rows { geometry.parts } else { geometry.length };
    let place = Place::decode(d, 0, space, geometry)?;
    let count = geometry.fragment / if ty == Accumulator::F64 { 8 } else { 4 };
    let sources = match ty {
        Accumulator::F64 => sources::<f64>(d, 1, count)?,
        Accumulator::F32 => sources::<f32>(d, 1, count)?,
        Accumulator::F16 | Accumulator::S32 => sources::<u32>(d, 1, count)?,
    };
    whole_warp(d, move |cx| {
        let mut block = [0; BYTES];
        let width = geometry.bits / 8;
        let mut put = |lane: usize, index: usize, value: u64| {
            let at = in_block(&geometry, rows, result(m, lane, index)) * width;
            block[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        };
        for (register, slot) in sources.iter().enumerate() {
            if ty == Accumulator::F64 {
                let row = cx.regs.row64(*slot);
                row.iter().enumerate().for_each(|(lane, value)| put(lane, register, *value));
                continue;
            }
            for (lane, word) in cx.regs.row32(*slot).iter().enumerate() {
                if ty == Accumulator::F16 {
                    put(lane, 2 * register, u64::from(*word & 0xffff));
                    put(lane, 2 * register + 1, u64::from(*word >> 16));
                } else {
                    put(lane, register, u64::from(*word));
                }
            }
        }
        place.store(cx, &block)
    })
}
