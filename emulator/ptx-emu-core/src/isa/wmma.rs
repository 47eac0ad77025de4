//! Matrix products of a warp on fragments that PTX leaves opaque: PTX ISA 9.7.14.4 (`wmma.load`,
//! `wmma.mma`, `wmma.store`).
//!
//! All shapes and types: f16, bf16, s8 and u8 with 16 along K, tf32, f64, s4 and u4, single bits.
//! PTX does not say which thread holds what. Here fragments have the layouts of `mma.sync`
//! ([`fragment::wmma`](crate::tensor::fragment::wmma)), whatever the matrix's layout in memory is.
//! Arithmetic is that of [`tensor`](crate::tensor), the whole K one sum; f16 results with an
//! f32 addend, and the reverse, add as f32.
//!
//! The warp executes as a whole, with one address and stride for all lanes. Every row (or column)
//! must be aligned as its fragment, at most to 16 bytes by the model of hardware.
//!
//! Not noticed: a fragment that is used as that of another layout, shape or matrix; alignment beyond
//! the size of a row that is shorter than the fragment.

mod memory;
mod product;

use super::Instructions;
use super::mma::form::{Accumulator, shape};
use super::mma::sync_aligned;
use crate::Family;
use crate::decode::{Decode, Decoded, Reject};
use crate::machine::code::Op;
use crate::tensor::element::Element;
use crate::tensor::fragment::Fragment;

/// `wmma`.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| ins.opcode == "wmma",
    decode: |d| Ok((Family::Matrix, decode(d)?)),
};

/// Most rows, columns and elements along K of a matrix, single bits apart.
const MOST: usize = 32;

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.has("mma") {
        product::decode(d)
    } else if d.has("load") {
        memory::load(d)
    } else if d.has("store") {
        memory::store(d)
    } else {
        Err(Reject::unsupported("wmma other than .load, .mma and .store"))
    }
}

/// Rows of `A`, columns of `B`, and what is between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
}

impl Shape {
    /// Takes `.sync.aligned` and the shape.
    fn decode(d: &mut Decode<'_>) -> Decoded<Self> {
        sync_aligned(d)?;
        let (m, n, k) = d.pick(shape).ok_or_else(|| Reject::unsupported("no known shape"))?;
        Ok(Self { m, n, k })
    }

    /// Whether there are products of such operands.
    fn takes(self, element: Element) -> bool {
        let Self { m, n, k } = self;
        match element {
            Element::F16 | Element::Bf16 | Element::S8 | Element::U8 => {
                k == 16 && matches!((m, n), (16, 16) | (8, 32) | (32, 8))
            }
            Element::Tf32 => (m, n, k) == (16, 16, 8),
            Element::F64 => (m, n, k) == (8, 8, 4),
            Element::S4 | Element::U4 => (m, n, k) == (8, 8, 32),
            Element::B1 => (m, n, k) == (8, 8, 128),
            Element::E4m3 | Element::E5m2 | Element::E2m3 | Element::E3m2 | Element::E2m1 => false,
        }
    }

    /// Whether products of some type of operands have such results.
    fn gives(self, ty: Accumulator) -> bool {
        let of: &[Element] = match ty {
            Accumulator::F16 => &[Element::F16],
            Accumulator::F32 => &[Element::F16, Element::Tf32],
            Accumulator::F64 => &[Element::F64],
            Accumulator::S32 => &[Element::S8, Element::S4, Element::B1],
        };
        of.iter().any(|element| self.takes(*element))
    }

    fn lacks<T>(self, what: &str) -> Decoded<T> {
        let Self { m, n, k } = self;
        Err(Reject::unsupported(format!("m{m}n{n}k{k} of {what}")))
    }
}

/// `A` (`lines` are rows) or `B` (columns) in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Operand {
    element: Element,
    fragment: Fragment,
}

impl Operand {
    fn new(element: Element, lines: usize, k: usize) -> Self {
        Self { element, fragment: Fragment::new(lines, k, element.bits()) }
    }

    /// Registers of a lane, of 32 bits or of the element's 64: eight for f16 in any shape, some of
    /// which then have the same elements.
    fn registers(self) -> usize {
        if self.element == Element::F16 { 8 } else { self.fragment.registers() }
    }

    /// Line and k of the first element of a register.
    fn place(self, lane: usize, register: usize) -> (usize, usize) {
        self.fragment.place(lane, register % self.fragment.registers())
    }
}

/// Registers of a lane that hold `C` or `D`.
fn result_registers(shape: Shape, ty: Accumulator) -> usize {
    shape.m * shape.n / 32 / if ty == Accumulator::F16 { 2 } else { 1 }
}

/// Takes the layout: whether rows are contiguous.
fn layout(d: &mut Decode<'_>) -> Decoded<bool> {
    let found = d.pick(|m| match m {
        "row" => Some(true),
        "col" => Some(false),
        _ => None,
    });
    found.ok_or_else(|| Reject::unsupported("no layout"))
}
