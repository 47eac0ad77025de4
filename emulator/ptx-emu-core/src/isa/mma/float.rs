//! Floating-point products: f16, bf16, tf32, f8f6f4, block-scaled, f64.

use super::form::{Accumulator, Form, Kind};
use super::scales::{Scales, Selected, Side};
use super::{sources, targets, whole_warp};
use crate::decode::{Decode, Decoded};
use crate::machine::code::Op;
use crate::machine::regs::{FULL, LANES, Regs, Slot};
use crate::num::{Rounding, double, half};
use crate::tensor::aligned::Adder;
use crate::tensor::element::Element;
use crate::tensor::fragment::{Fragment, accumulator, scale_lane_a, scale_lane_b};
use crate::tensor::product::{round_f16, round_f32};

/// Largest M and K of these forms.
const M: usize = 16;
const K: usize = 64;
/// K of most.
const SHORT: usize = 16;
/// N of all of them.
const N: usize = 8;

/// `D`, `C`, or the sums of a product.
type Square = [[f64; N]; M];

/// `A` or `B`: a fragment of codes.
struct Codes {
    element: Element,
    fragment: Fragment,
    /// Bits from the low end of its container to the code.
    shift: u32,
    slots: Vec<Slot>,
}

impl Codes {
    fn decode(
        d: &mut Decode<'_>,
        at: usize,
        form: &Form,
        element: Element,
        rows: usize,
    ) -> Decoded<Self> {
        let fragment = Fragment::new(rows, form.k, form.container);
        // In its own byte e2m1 is in bits 2 to 5 (PTX ISA 9.7.14.5.11).
        let shift = if element == Element::E2m1 && form.container == 8 { 2 } else { 0 };
        let slots = sources::<u32>(d, at, fragment.registers())?;
        Ok(Self { element, fragment, shift, slots })
    }

    /// Calls `put(row, k, value)` for every element.
    #[inline(always)]
    fn each(&self, regs: &Regs, put: impl FnMut(usize, usize, f64)) {
        match (self.element, self.fragment.per_register) {
            (Element::F16, 2) => {
                self.decoded(regs, 2, |code| half::to_f32(code as u16).into(), put);
            }
            (element, count) => self.decoded(regs, count, |code| element.value(code), put),
        }
    }

    #[inline(always)]
    fn decoded(
        &self,
        regs: &Regs,
        count: usize,
        value: impl Fn(u32) -> f64,
        mut put: impl FnMut(usize, usize, f64),
    ) {
        let width = 32 / count as u32;
        for (register, slot) in self.slots.iter().enumerate() {
            // Four lanes share a row.
            let (first, start) = self.fragment.place(0, register);
            for (lane, word) in regs.row32(*slot).iter().enumerate() {
                let (row, k) = (first + lane / 4, start + lane % 4 * count);
                for e in 0..count {
                    put(row, k + e, value(word >> (e as u32 * width + self.shift)));
                }
            }
        }
    }
}

/// `C` or `D`.
struct Accumulators {
    ty: Accumulator,
    slots: Vec<Slot>,
}

impl Accumulators {
    fn registers(form: &Form, ty: Accumulator) -> usize {
        form.m * N / LANES / if ty == Accumulator::F16 { 2 } else { 1 }
    }

    fn source(d: &mut Decode<'_>, at: usize, form: &Form) -> Decoded<Self> {
        let count = Self::registers(form, form.c);
        let slots = match form.c {
            Accumulator::F32 => sources::<f32>(d, at, count)?,
            _ => sources::<u32>(d, at, count)?,
        };
        Ok(Self { ty: form.c, slots })
    }

    fn target(d: &mut Decode<'_>, at: usize, form: &Form) -> Decoded<Self> {
        let slots = targets::<u32>(d, at, Self::registers(form, form.d))?;
        Ok(Self { ty: form.d, slots })
    }

    fn load(&self, regs: &Regs) -> Square {
        let mut out = [[0.0; N]; M];
        for (register, slot) in self.slots.iter().enumerate() {
            for (lane, word) in regs.row32(*slot).iter().enumerate() {
                if self.ty == Accumulator::F16 {
                    for (e, code) in [*word as u16, (word >> 16) as u16].into_iter().enumerate() {
                        let (row, column) = accumulator(lane, 2 * register + e);
                        out[row][column] = f64::from(half::to_f32(code));
                    }
                } else {
                    let (row, column) = accumulator(lane, register);
                    out[row][column] = f64::from(f32::from_bits(*word));
                }
            }
        }
        out
    }

    fn store(&self, regs: &mut Regs, values: &Square) {
        for (register, slot) in self.slots.iter().enumerate() {
            let mut row = [0; LANES];
            for (lane, word) in row.iter_mut().enumerate() {
                let value = |index| {
                    let (row, column): (usize, usize) = accumulator(lane, index);
                    values[row][column]
                };
                *word = if self.ty == Accumulator::F16 {
                    let halves = [value(2 * register), value(2 * register + 1)].map(round_f16);
                    u32::from(halves[0]) | u32::from(halves[1]) << 16
                } else {
                    round_f32(value(register)).to_bits()
                };
            }
            regs.put(*slot, FULL, &row);
        }
    }
}

/// The addition of products.
#[derive(Debug, Clone, Copy)]
enum Addition {
    /// All terms at once, by the adder of Hopper.
    Aligned(Adder),
    /// 8-bit types by way of f16.
    Split(Adder),
    /// Exactly, as far as f64 goes.
    Exact,
}

impl Addition {
    const fn of(form: &Form) -> Self {
        let half = matches!(form.d, Accumulator::F16);
        match form.kind {
            Kind::Float if form.named => Self::Exact,
            Kind::Float if form.container == 8 => Self::Split(Adder::as_f16(half)),
            Kind::Float => Self::Aligned(Adder::new(form.a, form.b, half)),
            _ => Self::Exact,
        }
    }

    /// Adds the products of rows of `A` and the columns of `B` to `C`. Rounding to nearest even
    /// turns the sums into `D`.
    fn add<const K: usize>(&self, a: &[[f64; K]], b: &[[f64; N]], c: &mut [[f64; N]]) {
        match self {
            Self::Aligned(adder) => adder.add_products(a, b, c),
            Self::Split(adder) => {
                for (row, c) in a.iter().zip(c) {
                    for (column, c) in c.iter_mut().enumerate() {
                        let terms: [(f64, f64); K] = std::array::from_fn(|k| {
                            (row[k], b.get(k).map_or(0.0, |line| line[column]))
                        });
                        *c = adder.split(&terms[..b.len()], *c);
                    }
                }
            }
            Self::Exact => {
                for (row, c) in a.iter().zip(c) {
                    let mut sums = [0.0; N];
                    for (x, line) in row.iter().zip(b) {
                        for (sum, y) in sums.iter_mut().zip(line) {
                            *sum += x * y;
                        }
                    }
                    for (c, sum) in c.iter_mut().zip(sums) {
                        *c += sum;
                    }
                }
            }
        }
    }
}

pub(super) fn decode(d: &mut Decode<'_>, form: &Form) -> Decoded<Op> {
    let target = Accumulators::target(d, 0, form)?;
    let a = Codes::decode(d, 1, form, form.a, form.m)?;
    let b = Codes::decode(d, 2, form, form.b, N)?;
    let c = Accumulators::source(d, 3, form)?;
    let scales = match form.kind {
        Kind::Scaled(scaling) => {
            Some((Scales::decode(d, 4, Side::A, scaling)?, Scales::decode(d, 6, Side::B, scaling)?))
        }
        _ => None,
    };
    let (m, k) = (form.m, form.k);
    let add = Addition::of(form);
    let product = Product { a, b, c, target, scales, m, k, add };
    whole_warp(d, move |cx| {
        let selected = match &product.scales {
            Some((a, b)) => Some((a.selected(cx)?, b.selected(cx)?)),
            None => None,
        };
        if k <= SHORT {
            product.run::<SHORT>(cx.regs, selected)
        } else {
            product.run::<K>(cx.regs, selected)
        }
        if !cx.regs.watch.undefined.is_empty() {
            product.undefine(cx.regs);
        }
        Ok(())
    })
}

/// An instruction's operands.
struct Product {
    a: Codes,
    b: Codes,
    c: Accumulators,
    target: Accumulators,
    scales: Option<(Scales, Scales)>,
    m: usize,
    k: usize,
    add: Addition,
}

impl Product {
    /// Marks what is undefined of the result.
    #[cold]
    fn undefine(&self, regs: &mut Regs) {
        let Self { a, b, c, target, .. } = self;
        let each = |of: &Accumulators| if of.ty == Accumulator::F16 { 2 } else { 1 };
        let (a, b) = ((a.fragment, a.slots.as_slice()), (b.fragment, b.slots.as_slice()));
        super::undefine(regs, a, b, (&c.slots, each(c)), (&target.slots, each(target)));
    }

    /// Computes it; `K` is at least its K, and `selected` chooses the scales, if it has some.
    fn run<const K: usize>(&self, regs: &mut Regs, selected: Option<(Selected, Selected)>) {
        let Self { a, b, c, target, scales, m, k, add } = self;
        let (m, k) = (*m, *k);
        let mut left = [[0.0; K]; M];
        let mut right = [[0.0; N]; K];
        a.each(regs, |row, k, value| left[row][k] = value);
        b.each(regs, |column, k, value| right[k][column] = value);
        if let (Some((a, b)), Some((in_a, in_b))) = (scales, selected) {
            let width = k / a.count();
            for (row, line) in left.iter_mut().enumerate().take(m) {
                for (block, part) in line[..k].chunks_exact_mut(width).enumerate() {
                    let lane = scale_lane_a(row, in_a.thread);
                    let scale = a.value(regs, lane, in_a.byte, block);
                    part.iter_mut().for_each(|value| *value *= scale);
                }
            }
            for (block, part) in right[..k].chunks_exact_mut(width).enumerate() {
                for column in 0..N {
                    let lane = scale_lane_b(column, in_b.thread);
                    let scale = b.value(regs, lane, in_b.byte, block);
                    part.iter_mut().for_each(|line| line[column] *= scale);
                }
            }
        }
        let mut values = c.load(regs);
        add.add(&left[..m], &right[..k], &mut values);
        target.store(regs, &values);
    }
}

pub(super) fn decode_double(d: &mut Decode<'_>, form: &Form) -> Decoded<Op> {
    let (m, k) = (form.m, form.k);
    let fragments = [Fragment::new(m, k, 64), Fragment::new(N, k, 64)];
    let count = m * N / LANES;
    let target = targets::<f64>(d, 0, count)?;
    let a = sources::<f64>(d, 1, fragments[0].registers())?;
    let b = sources::<f64>(d, 2, fragments[1].registers())?;
    let c = sources::<f64>(d, 3, count)?;
    whole_warp(d, move |cx| {
        let regs = &mut *cx.regs;
        let mut left = [[0.0; M]; M];
        let mut right = [[0.0; M]; N];
        let load = |fragment: Fragment, slots: &[Slot], lines: &mut [[f64; M]]| {
            for (register, slot) in slots.iter().enumerate() {
                for (lane, word) in regs.row64(*slot).iter().enumerate() {
                    let (row, k) = fragment.place(lane, register);
                    lines[row][k] = f64::from_bits(*word);
                }
            }
        };
        load(fragments[0], &a, &mut left);
        load(fragments[1], &b, &mut right);
        let results: Vec<[u64; LANES]> = c
            .iter()
            .enumerate()
            .map(|(register, slot)| {
                let addends = regs.row64(*slot);
                std::array::from_fn(|lane| {
                    let (row, column) = accumulator(lane, register);
                    let start = f64::from_bits(addends[lane]);
                    let factors = left[row].iter().zip(&right[column]).take(k);
                    factors
                        .fold(start, |sum, (a, b)| double::fma(*a, *b, sum, Rounding::Rn))
                        .to_bits()
                })
            })
            .collect();
        for (slot, row) in target.iter().zip(&results) {
            regs.put(*slot, FULL, row);
        }
        Ok(())
    })
}
