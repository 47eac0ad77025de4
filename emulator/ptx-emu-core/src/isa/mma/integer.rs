//! Integer and single-bit products.

use super::form::Form;
use super::{sources, targets, whole_warp};
use crate::decode::{Decode, Decoded};
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Regs, Slot};
use crate::tensor::element::Element;
use crate::tensor::fragment::{Fragment, accumulator};

const M: usize = 16;
const K: usize = 64;
const N: usize = 8;
/// Most words of single bits in a row.
const WORDS: usize = 8;

struct Operands {
    target: Vec<Slot>,
    a: (Fragment, Vec<Slot>),
    b: (Fragment, Vec<Slot>),
    c: Vec<Slot>,
}

impl Operands {
    fn decode(d: &mut Decode<'_>, form: &Form) -> Decoded<Self> {
        let count = form.m * N / LANES;
        let a = Fragment::new(form.m, form.k, form.container);
        let b = Fragment::new(N, form.k, form.container);
        Ok(Self {
            target: targets::<u32>(d, 0, count)?,
            a: (a, sources::<u32>(d, 1, a.registers())?),
            b: (b, sources::<u32>(d, 2, b.registers())?),
            c: sources::<u32>(d, 3, count)?,
        })
    }

    /// Writes `D`: `value(row, column, c)` for every element.
    fn finish(&self, regs: &mut Regs, value: impl Fn(usize, usize, i32) -> i32) {
        let mut results = [[0; LANES]; 4];
        for ((register, slot), out) in self.c.iter().enumerate().zip(&mut results) {
            for ((lane, c), out) in regs.row32(*slot).iter().enumerate().zip(out) {
                let (row, column) = accumulator(lane, register);
                *out = value(row, column, *c as i32) as u32;
            }
        }
        for (slot, row) in self.target.iter().zip(&results) {
            regs.put(*slot, FULL, row);
        }
    }
}

/// Calls `put(row, k of the first element, word)` for every register of a lane.
fn each(
    (fragment, slots): &(Fragment, Vec<Slot>),
    regs: &Regs,
    mut put: impl FnMut(usize, usize, u32),
) {
    for (register, slot) in slots.iter().enumerate() {
        for (lane, word) in regs.row32(*slot).iter().enumerate() {
            let (row, k) = fragment.place(lane, register);
            put(row, k, *word);
        }
    }
}

/// Integers of one operand.
fn integers<const ROWS: usize>(
    operand: &(Fragment, Vec<Slot>),
    element: Element,
    regs: &Regs,
) -> [[i16; K]; ROWS] {
    let mut out = [[0; K]; ROWS];
    let bits = element.bits();
    each(operand, regs, |row, k, word| {
        for e in 0..operand.0.per_register {
            out[row][k + e] = element.integer(word >> (e as u32 * bits));
        }
    });
    out
}

pub(super) fn decode(d: &mut Decode<'_>, form: &Form, saturate: bool) -> Decoded<Op> {
    let operands = Operands::decode(d, form)?;
    let (a, b) = (form.a, form.b);
    whole_warp(d, move |cx| {
        let regs = &mut *cx.regs;
        let left = integers::<M>(&operands.a, a, regs);
        let right = integers::<N>(&operands.b, b, regs);
        operands.finish(regs, |row, column, c| {
            let products = left[row].iter().zip(&right[column]);
            let sum: i32 = products.map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
            if saturate { c.saturating_add(sum) } else { c.wrapping_add(sum) }
        });
        if !regs.watch.undefined.is_empty() {
            let Operands { target, a, b, c } = &operands;
            super::undefine(regs, (a.0, &a.1), (b.0, &b.1), (c, 1), (target, 1));
        }
        Ok(())
    })
}

pub(super) fn decode_bits(d: &mut Decode<'_>, form: &Form, xor: bool) -> Decoded<Op> {
    let operands = Operands::decode(d, form)?;
    let words = form.k / 32;
    whole_warp(d, move |cx| {
        let regs = &mut *cx.regs;
        let mut left = [[0u32; WORDS]; M];
        let mut right = [[0u32; WORDS]; N];
        each(&operands.a, regs, |row, k, word| left[row][k / 32] = word);
        each(&operands.b, regs, |column, k, word| right[column][k / 32] = word);
        operands.finish(regs, |row, column, c| {
            let pairs = left[row].iter().zip(&right[column]).take(words);
            let count: u32 = pairs.map(|(a, b)| if xor { a ^ b } else { a & b }.count_ones()).sum();
            c.wrapping_add(count as i32)
        });
        Ok(())
    })
}
