//! f16 `m8n8k4`: four products of 8 x 8 x 4, each of eight lanes.
//!
//! Since sm_80 the hardware does not have this instruction: ptxas (13.0) replaces it by f32
//! additions and fused multiply-adds, in the same order as here.

use super::form::{Accumulator, Form};
use super::{sources, targets, whole_warp};
use crate::decode::{Decode, Decoded};
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Regs, Slot};
use crate::num::half;
use crate::tensor::fragment::quad;
use crate::tensor::product::round_f32;

const SIDE: usize = 8;
const K: usize = 4;
const GROUPS: usize = 4;

type Lines = [[[f32; K]; SIDE]; GROUPS];

/// An element of `D` in f32 operations, as ptxas makes them for an f16 result.
fn halves(a: &[f32; K], b: &[f32; K], c: f32) -> f32 {
    let pair = |k: usize| a[k + 1].mul_add(b[k + 1], a[k] * b[k]);
    c + pair(0) + pair(2)
}

/// The same for an f32 result.
fn singles(a: &[f32; K], b: &[f32; K], c: f32) -> f32 {
    c + a.iter().zip(b).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum))
}

/// The f16 in half `e` of a word.
fn number(word: u32, e: usize) -> f32 {
    half::to_f32((word >> (16 * e)) as u16)
}

fn load(regs: &Regs, slots: &[Slot], along_k: bool) -> Lines {
    let mut out = [[[0.0; K]; SIDE]; GROUPS];
    for (register, slot) in slots.iter().enumerate() {
        for (lane, word) in regs.row32(*slot).iter().enumerate() {
            for e in 0..2 {
                let (line, k) = quad::operand(along_k, lane, 2 * register + e);
                out[quad::group(lane)][line][k] = number(*word, e);
            }
        }
    }
    out
}

pub(super) fn decode(d: &mut Decode<'_>, form: &Form, a_row: bool, b_row: bool) -> Decoded<Op> {
    let registers = |ty| if ty == Accumulator::F16 { 4 } else { 8 };
    let target = targets::<u32>(d, 0, registers(form.d))?;
    let a = sources::<u32>(d, 1, 2)?;
    let b = sources::<u32>(d, 2, 2)?;
    let c = match form.c {
        Accumulator::F16 => sources::<u32>(d, 3, registers(form.c))?,
        _ => sources::<f32>(d, 3, registers(form.c))?,
    };
    let (c_half, d_half) = (form.c == Accumulator::F16, form.d == Accumulator::F16);
    whole_warp(d, move |cx| {
        let regs = &mut *cx.regs;
        let left = load(regs, &a, a_row);
        let right = load(regs, &b, !b_row);
        let mut values = [[[0.0; SIDE]; SIDE]; GROUPS];
        for (register, slot) in c.iter().enumerate() {
            for (lane, word) in regs.row32(*slot).iter().enumerate() {
                let group = &mut values[quad::group(lane)];
                if c_half {
                    for e in 0..2 {
                        let (row, column) = quad::half(lane, 2 * register + e);
                        group[row][column] = number(*word, e);
                    }
                } else {
                    let (row, column) = quad::single(lane, register);
                    group[row][column] = f32::from_bits(*word);
                }
            }
        }
        for ((left, right), values) in left.iter().zip(&right).zip(&mut values) {
            for (left, values) in left.iter().zip(values) {
                for (right, value) in right.iter().zip(values) {
                    *value = if d_half {
                        halves(left, right, *value)
                    } else {
                        singles(left, right, *value)
                    };
                }
            }
        }
        for (register, slot) in target.iter().enumerate() {
            let row: [u32; LANES] = std::array::from_fn(|lane| {
                let group = &values[quad::group(lane)];
                if d_half {
                    let value = |e| {
                        let (row, column) = quad::half(lane, 2 * register + e);
                        u32::from(half::from_f32(group[row][column]))
                    };
                    value(0) | value(1) << 16
                } else {
                    let (row, column) = quad::single(lane, register);
                    round_f32(group[row][column].into()).to_bits()
                }
            });
            regs.put(*slot, FULL, &row);
        }
        Ok(())
    })
}
