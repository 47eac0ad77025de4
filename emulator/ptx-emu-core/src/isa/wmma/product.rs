//! `wmma.mma`.

use super::{MOST, Operand, Shape, layout, result_registers};
use crate::decode::{Decode, Decoded, Reject};
use crate::isa::float::rounding;
use crate::isa::mma::form::{Accumulator, accumulator as accumulator_type};
use crate::isa::mma::{sources, targets, whole_warp};
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Regs, Slot};
use crate::num::{Rounding, bfloat, double, half};
use crate::tensor::aligned::Adder;
use crate::tensor::element::Element;
use crate::tensor::fragment::wmma::result;
use crate::tensor::product::{WIDTH, round_f16, round_f32};

/// Most single bits along K.
const MOST_BITS: usize = 128;
/// tf32 along K that are added at a time.
const TF32_STEP: usize = 4;
/// Elements of `C` or `D` that a lane has at most.
const RESULTS: usize = 8;
/// Most floating-point elements along K.
const DEPTH: usize = 16;

/// A form of the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    shape: Shape,
    /// The type of both operands' elements.
    element: Element,
    c: Accumulator,
    d: Accumulator,
}

impl Form {
    /// Takes the modifiers but those of the arithmetic.
    fn decode(d: &mut Decode<'_>) -> Decoded<Self> {
        let rows = [layout(d)?, layout(d)?];
        let shape = Shape::decode(d)?;
        let no_type = |what: &str| Reject::unsupported(format!("no known type of {what}"));
        let d_type = d.pick(accumulator_type).ok_or_else(|| no_type("D"))?;
        // f16 operands are not named.
        let named = matches!(d_type, Accumulator::F64 | Accumulator::S32)
            || d.ins.modifiers.iter().any(|name| name == "bf16" || name == "tf32");
        let element = if named {
            let mut operand = || d.pick(Element::parse).ok_or_else(|| no_type("an operand"));
            let (a, b) = (operand()?, operand()?);
            if a != b {
                return shape.lacks(&format!("{a:?} and {b:?}"));
            }
            a
        } else {
            Element::F16
        };
        let c = d.pick(accumulator_type).ok_or_else(|| no_type("C"))?;
        if element.bits() < 8 && rows != [true, false] {
            return Err(Reject::unsupported("layouts other than .row.col"));
        }
        use Accumulator::{F16, F32, F64, S32};
        let results = match element {
            Element::F16 => matches!(c, F16 | F32) && matches!(d_type, F16 | F32),
            Element::Bf16 | Element::Tf32 => (c, d_type) == (F32, F32),
            Element::F64 => (c, d_type) == (F64, F64),
            _ => (c, d_type) == (S32, S32),
        };
        if !results || !shape.takes(element) {
            return shape.lacks(&format!("{element:?} with {c:?} into {d_type:?}"));
        }
        Ok(Self { shape, element, c, d: d_type })
    }

    fn operands(&self) -> [Operand; 2] {
        let Shape { m, n, k } = self.shape;
        [m, n].map(|lines| Operand::new(self.element, lines, k))
    }

    /// Elements of `C` and `D` that a lane has.
    fn results(&self) -> usize {
        self.shape.m * self.shape.n / LANES
    }

    fn place(&self, lane: usize, index: usize) -> (usize, usize) {
        result(self.shape.m, lane, index)
    }
}

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    let bits = d.pick(|m| match m {
        "xor" => Some(true),
        "and" => Some(false),
        _ => None,
    });
    if bits.is_some() != d.has("popc") {
        return Err(Reject::unsupported("one of .popc and its operation without the other"));
    }
    let form = Form::decode(d)?;
    let op = match (form.element, bits) {
        (Element::B1, Some(xor)) => integers::<MOST_BITS>(d, form, false, move |a, b| {
            i32::from(if xor { a ^ b } else { a & b })
        }),
        (Element::B1, None) | (_, Some(_)) => {
            Err(Reject::unsupported("single bits need .xor.popc or .and.popc"))
        }
        (Element::S8 | Element::U8 | Element::S4 | Element::U4, None) => {
            let saturate = d.has("satfinite");
            integers::<MOST>(d, form, saturate, |a, b| i32::from(a) * i32::from(b))
        }
        (Element::F64, None) => doubles(d, form),
        _ => floats(d, form),
    }?;
    Ok(counted(op, form))
}

/// The operation, its multiply-adds counted.
fn counted(op: Op, form: Form) -> Op {
    let Shape { m, n, k } = form.shape;
    let in_f32 = form.d == Accumulator::F32;
    match op {
        Op::Exchange { members, run } => Op::Exchange {
            members,
            run: Box::new(move |cx, mask| {
                cx.stats.tensor.count(form.element, false, in_f32, (m * n * k) as u64);
                run(cx, mask)
            }),
        },
        other => other,
    }
}

/// Calls `put(line, k, code)` for every element of an operand in registers of 32 bits.
fn each(operand: Operand, slots: &[Slot], regs: &Regs, mut put: impl FnMut(usize, usize, u32)) {
    let width = operand.element.bits();
    for (register, slot) in slots.iter().enumerate().take(operand.fragment.registers()) {
        for (lane, word) in regs.row32(*slot).iter().enumerate() {
            let (line, k) = operand.place(lane, register);
            for e in 0..operand.fragment.per_register {
                put(line, k + e, word >> (e as u32 * width));
            }
        }
    }
}

/// Calls `put(line, k, value)` for every element of a floating-point operand.
fn each_float(
    operand: Operand,
    slots: &[Slot],
    regs: &Regs,
    mut put: impl FnMut(usize, usize, f64),
) {
    match operand.element {
        Element::Bf16 => each(operand, slots, regs, |line, k, code| {
            put(line, k, bfloat::to_f32(code as u16).into());
        }),
        Element::F16 => each(operand, slots, regs, |line, k, code| {
            put(line, k, half::to_f32(code as u16).into());
        }),
        element => each(operand, slots, regs, |line, k, code| put(line, k, element.value(code))),
    }
}

fn floats(d: &mut Decode<'_>, form: Form) -> Decoded<Op> {
    let [a, b] = form.operands();
    let target = targets::<u32>(d, 0, result_registers(form.shape, form.d))?;
    let a_slots = sources::<u32>(d, 1, a.registers())?;
    let b_slots = sources::<u32>(d, 2, b.registers())?;
    let c_slots = match form.c {
        Accumulator::F16 => sources::<u32>(d, 3, result_registers(form.shape, form.c))?,
        _ => sources::<f32>(d, 3, result_registers(form.shape, form.c))?,
    };
    let halves = (form.c, form.d) == (Accumulator::F16, Accumulator::F16);
    let adder = Adder::new(form.element, form.element, halves);
    whole_warp(d, move |cx| {
        let regs = &mut *cx.regs;
        let mut left = [[0.0; DEPTH]; MOST];
        let mut right = [[[0.0; WIDTH]; DEPTH]; MOST / WIDTH];
        let put_left = |line: usize, k: usize, value: f64| left[line][k] = value;
        let put_right =
            |line: usize, k: usize, value: f64| right[line / WIDTH][k][line % WIDTH] = value;
        each_float(a, &a_slots, regs, put_left);
        each_float(b, &b_slots, regs, put_right);
        let mut sums = [[[0.0; WIDTH]; MOST]; MOST / WIDTH];
        for index in 0..form.results() {
            let row = match form.c {
                Accumulator::F16 => {
                    let shift = index % 2 * 16;
                    let halves = regs.row32(c_slots[index / 2]);
                    halves.map(|word| half::to_f32((word >> shift) as u16))
                }
                _ => regs.row32(c_slots[index]).map(f32::from_bits),
            };
            for (lane, start) in row.into_iter().enumerate() {
                let (line, column) = form.place(lane, index);
                sums[column / WIDTH][line][column % WIDTH] = start.into();
            }
        }
        let Shape { m, n, k } = form.shape;
        for (columns, sums) in right.iter().zip(&mut sums).take(n / WIDTH) {
            let sums = &mut sums[..m];
            if form.element == Element::Tf32 {
                // An H200 has tf32 products of four along K, and adds those of the first four first.
                for from in (0..k).step_by(TF32_STEP) {
                    let part: [[f64; TF32_STEP]; MOST] =
                        left.map(|line| std::array::from_fn(|at| line[from + at]));
                    adder.add_products(&part[..m], &columns[from..from + TF32_STEP], sums);
                }
            } else {
                adder.add_products(&left[..m], &columns[..k], sums);
            }
        }
        let value = |lane: usize, index: usize| {
            let (line, column) = form.place(lane, index);
            sums[column / WIDTH][line][column % WIDTH]
        };
        for (register, slot) in target.iter().enumerate() {
            let row: [u32; LANES] = std::array::from_fn(|lane| match form.d {
                Accumulator::F16 => {
                    let pair = [2 * register, 2 * register + 1];
                    let [low, high] = pair.map(|index| u32::from(round_f16(value(lane, index))));
                    low | high << 16
                }
                _ => round_f32(value(lane, register)).to_bits(),
            });
            regs.put(*slot, FULL, &row);
        }
        Ok(())
    })
}

/// Integers of up to `K` along K: sums of `multiply`, modulo 2^32 or clamped once at the end.
fn integers<const K: usize>(
    d: &mut Decode<'_>,
    form: Form,
    saturate: bool,
    multiply: impl Fn(i16, i16) -> i32 + Send + Sync + 'static,
) -> Decoded<Op> {
    let [a, b] = form.operands();
    let target = targets::<u32>(d, 0, form.results())?;
    let a_slots = sources::<u32>(d, 1, a.registers())?;
    let b_slots = sources::<u32>(d, 2, b.registers())?;
    let c_slots = sources::<u32>(d, 3, form.results())?;
    whole_warp(d, move |cx| {
        let regs = &mut *cx.regs;
        let mut left = [[0; K]; MOST];
        let mut right = [[0; K]; MOST];
        each(a, &a_slots, regs, |line, k, code| left[line][k] = form.element.integer(code));
        each(b, &b_slots, regs, |line, k, code| right[line][k] = form.element.integer(code));
        let mut values = [[0; LANES]; RESULTS];
        for ((index, row), slot) in values.iter_mut().enumerate().zip(&c_slots) {
            for ((lane, value), c) in row.iter_mut().enumerate().zip(regs.row32(*slot)) {
                let (line, column) = form.place(lane, index);
                let pairs = left[line].iter().zip(&right[column]).take(form.shape.k);
                let sum: i32 = pairs.map(|(a, b)| multiply(*a, *b)).sum();
                let c = *c as i32;
                let sum = if saturate { c.saturating_add(sum) } else { c.wrapping_add(sum) };
                *value = sum as u32;
            }
        }
        for (slot, row) in target.iter().zip(&values) {
            regs.put(*slot, FULL, row);
        }
        Ok(())
    })
}

fn doubles(d: &mut Decode<'_>, form: Form) -> Decoded<Op> {
    let rounding = rounding(d).unwrap_or(Rounding::Rn);
    let [a, b] = form.operands();
    let target = targets::<f64>(d, 0, form.results())?;
    let a_slots = sources::<f64>(d, 1, a.registers())?;
    let b_slots = sources::<f64>(d, 2, b.registers())?;
    let c_slots = sources::<f64>(d, 3, form.results())?;
    whole_warp(d, move |cx| {
        let regs = &mut *cx.regs;
        let lines = |operand: Operand, slots: &[Slot]| {
            let mut lines = [[0.0; 4]; 8];
            for (register, slot) in slots.iter().enumerate() {
                for (lane, word) in regs.row64(*slot).iter().enumerate() {
                    let (line, k) = operand.place(lane, register);
                    lines[line][k] = f64::from_bits(*word);
                }
            }
            lines
        };
        let (left, right) = (lines(a, &a_slots), lines(b, &b_slots));
        let mut values = [[0; LANES]; 2];
        for ((index, row), slot) in values.iter_mut().enumerate().zip(&c_slots) {
            for ((lane, value), c) in row.iter_mut().enumerate().zip(regs.row64(*slot)) {
                let (line, column) = form.place(lane, index);
                let pairs = left[line].iter().zip(right[column]);
                let sum =
                    pairs.fold(f64::from_bits(*c), |sum, (a, b)| double::fma(*a, b, sum, rounding));
                *value = sum.to_bits();
            }
        }
        for (slot, row) in target.iter().zip(&values) {
            regs.put(*slot, FULL, row);
        }
        Ok(())
    })
}
