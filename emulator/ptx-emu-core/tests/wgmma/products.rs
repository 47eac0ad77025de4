//! Products of `wgmma.mma_async`: every type and shape, both places of `A`, every
//! layout in shared memory, against naive sums: exact ones of integers, others cut as
//! Hopper cuts them.

use crate::async_support::Case;
use crate::tensor_cores::{Layout, Matrix, Random, Sum, Ty, copy_in, dot, vector, words};
use ptx_emu_core::Schedule;

/// One instruction.
#[derive(Debug, Clone, Copy)]
struct Product {
    n: usize,
    a: Ty,
    b: Ty,
    d: Sum,
    a_registers: bool,
    /// Widths of lines.
    widths: (u32, u32),
    mn_major: (bool, bool),
    negate: (bool, bool),
    accumulate: bool,
    saturate: bool,
    /// Steps of K.
    steps: usize,
}

impl Product {
    fn new(n: usize, a: Ty, b: Ty, d: Sum) -> Self {
        Self {
            n,
            a,
            b,
            d,
            a_registers: false,
            widths: (128, 128),
            mn_major: (false, false),
            negate: (false, false),
            accumulate: true,
            saturate: false,
            steps: 1,
        }
    }

    /// Elements of K of an instruction.
    fn k(&self) -> usize {
        256 / self.a.bits() as usize
    }

    fn registers(&self) -> usize {
        if self.d == Sum::F16 { self.n / 4 } else { self.n / 2 }
    }

    fn name(&self) -> String {
        let Self { n, a, b, d, saturate, .. } = self;
        let saturate = if *saturate { ".satfinite" } else { "" };
        let d = format!("{d:?}").to_lowercase();
        let (k, a, b) = (self.k(), a.name(), b.name());
        format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}{saturate}.{d}.{a}.{b}")
    }

    /// The instruction of a step, its descriptors being `da` and `db`.
    fn instruction(&self, step: usize) -> String {
        let sign = |negate| if negate { ", -1" } else { ", 1" };
        let mut immediates = String::new();
        if self.d != Sum::S32 {
            immediates += sign(self.negate.0);
            immediates += sign(self.negate.1);
        }
        if self.a.bits() == 16 {
            if !self.a_registers {
                immediates += &format!(", {}", u32::from(self.mn_major.0));
            }
            immediates += &format!(", {}", u32::from(self.mn_major.1));
        }
        let a = if self.a_registers { vector("a", 4) } else { "da".to_owned() };
        let add = if self.accumulate || step != 0 { "yes" } else { "no" };
        let d = vector("x", self.registers());
        format!("{} {d}, {a}, db, {add}{immediates};", self.name())
    }

    fn layouts(&self) -> (Layout, Layout) {
        let a = Layout::new(self.a, self.mn_major.0, self.widths.0, 64, 0);
        let b = Layout::new(self.b, self.mn_major.1, self.widths.1, self.n, 32768);
        (a, b)
    }

    /// Adds products and an accumulator as Hopper does: all are cut at so many bits below the
    /// largest exponent, and an f32 sum is cut once more.
    fn aligned(&self, terms: &[(f64, f64)], c: f64) -> u32 {
        // Operands are finite, a sum of f16 before may not be.
        if !c.is_finite() {
            return self.d.round(c);
        }
        let least = |ty| match ty {
            Ty::F16 | Ty::E5m2 => -14.0,
            Ty::E4m3 => -6.0,
            _ => -126.0,
        };
        let narrow = self.a.bits() == 8;
        let exponent = |x: f64, least: f64| x.abs().log2().floor().max(least);
        let tops = terms.iter().filter(|(x, y)| x * y != 0.0);
        let tops = tops.map(|&(x, y)| exponent(x, least(self.a)) + exponent(y, least(self.b)));
        let least_c = if self.d == Sum::F16 { -14.0 } else { -126.0 };
        let top = tops.chain((c != 0.0).then(|| exponent(c, least_c)));
        let top = top.fold(-1000.0, f64::max);
        if top == -1000.0 {
            return 0;
        }
        let unit = (top - if narrow { 13.0 } else { 25.0 }).exp2();
        let whole = |x: f64| (x / unit) as i64;
        let total = terms.iter().map(|(x, y)| whole(x * y)).sum::<i64>() + whole(c);
        let sum = total as f64 * unit;
        if total == 0 || self.d == Sum::F16 {
            let code = self.d.round(sum);
            return if code & 0x7fff == 0 { 0 } else { code };
        }
        let near = sum as f32;
        let step = u32::from(f64::from(near).abs() > sum.abs());
        (near.to_bits() - step) & if narrow { !0x3ff } else { !0 }
    }

    /// Runs it and compares every element.
    #[track_caller]
    fn check(&self, seed: u64, schedules: &[Schedule]) {
        let mut random = Random::new(seed);
        let k = self.k();
        let mut make = |ty, rows| Matrix::new(ty, rows, k * self.steps, &mut random);
        let (a, b) = (make(self.a, 64), make(self.b, self.n));
        let (mut la, mut lb) = self.layouts();
        let mut image = Vec::new();
        let mut body = String::new();
        let registers = self.registers();
        body += "{ .reg .b32 x<128>, a<4>; .reg .b64 da, db; .reg .pred yes, no;
            setp.eq.u32 yes, 0, 0; setp.ne.u32 no, 0, 0;\n";
        let old: Vec<u32> = (0..registers * 128)
            .map(|_| match self.d {
                Sum::F16 => self.d.code(&mut random) | self.d.code(&mut random) << 16,
                _ => self.d.code(&mut random),
            })
            .collect();
        let mut products = String::new();
        for step in 0..self.steps {
            let part = |matrix: &Matrix| Matrix {
                k,
                codes: matrix
                    .codes
                    .chunks(k)
                    .skip(step)
                    .step_by(self.steps)
                    .flatten()
                    .copied()
                    .collect(),
                ..matrix.clone()
            };
            (la.inside, lb.inside) = (step as u32 * 32, step as u32 * 32);
            la.store(&part(&a), &mut image);
            lb.store(&part(&b), &mut image);
            let (da, db) = (la.descriptor(1024, false), lb.descriptor(1024, false));
            products += &format!("mov.b64 da, {da:#x}; mov.b64 db, {db:#x};\n");
            products += &self.instruction(step);
        }
        let size = image.len();
        body += "mov.u64 %d0, %in; mov.u32 %r0, %s;\n";
        body += &copy_in(size, 128);
        body += "mad.wide.u32 %d2, %tid, 4, %in;\n";
        for i in 0..registers {
            body += &format!("ld.global.b32 x{i}, [%d2+{}];\n", size + i * 512);
        }
        let a_at = size + registers * 512;
        if self.a_registers {
            for j in 0..4 {
                body += &format!("ld.global.b32 a{j}, [%d2+{}];\n", a_at + j * 512);
            }
        }
        body += "wgmma.fence.sync.aligned;\n";
        body += &products;
        body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
            mad.wide.u32 %d2, %tid, 4, %out;\n";
        for i in 0..registers {
            body += &format!("st.global.b32 [%d2+{}], x{i};\n", i * 512);
        }
        body += "}\n";

        let mut input = image;
        input.extend(old.iter().flat_map(|word| word.to_le_bytes()));
        for j in 0..4 {
            for thread in 0..128 {
                input.extend(self.a_register(&a, thread, j).to_le_bytes());
            }
        }
        let mut case = Case::new(&body).block(128).out(registers as u64 * 512);
        case.shared = size as u32;
        case.input = input;
        for &schedule in schedules {
            let out = match case.launch(schedule) {
                Ok((out, _)) => words(&out),
                Err(error) => panic!("{self:?}: {error}"),
            };
            for (at, (&new, &old)) in out.iter().zip(&old).enumerate() {
                let (register, thread) = (at / 128, at % 128);
                self.compare(&a, &b, (thread, register), new, old);
            }
        }
    }

    /// Register `j` of `A` of a thread (the fact sheet's formulas).
    fn a_register(&self, a: &Matrix, thread: usize, j: usize) -> u32 {
        let (warp, lane) = (thread / 32, thread % 32);
        let row = 16 * warp + lane / 4 + 8 * (j & 1);
        let per = 32 / self.a.bits() as usize;
        let k = per * (lane % 4) + 4 * per * (j / 2);
        (0..per).fold(0, |word, i| word | a.code(row, k + i) << (i as u32 * self.a.bits()))
    }

    #[track_caller]
    fn compare(&self, a: &Matrix, b: &Matrix, at: (usize, usize), new: u32, old: u32) {
        let (thread, register) = at;
        let (warp, lane) = (thread / 32, thread % 32);
        let halves = if self.d == Sum::F16 { 2 } else { 1 };
        for half in 0..halves {
            let i = register * halves + half;
            let row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
            let column = 8 * (i / 4) + 2 * (lane % 4) + (i & 1);
            let sign = if self.negate.0 != self.negate.1 { -1.0 } else { 1.0 };
            let width = 32 / halves as u32;
            let part = |word: u32| word >> (half as u32 * width) & (u32::MAX >> (32 - width));
            // Every step is rounded.
            let expected = (0..self.steps).fold(part(old), |old, step| {
                let ks = step * self.k()..(step + 1) * self.k();
                let add = self.accumulate || step != 0;
                let c = if add { self.d.value(old) } else { 0.0 };
                if self.d != Sum::S32 {
                    let terms = ks.map(|k| (sign * a.value(row, k), b.value(column, k)));
                    return self.aligned(&terms.collect::<Vec<_>>(), c);
                }
                let sum = dot(a, b, (row, column), ks, |_| (sign, 1.0)) + c;
                if self.saturate {
                    sum.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32 as u32
                } else {
                    self.d.round(sum)
                }
            });
            assert_eq!(
                part(new),
                expected,
                "{self:?}: row {row}, column {column}: {} instead of {}",
                self.d.value(part(new)),
                self.d.value(expected)
            );
        }
    }
}

const EAGER: [Schedule; 1] = [Schedule::Eager];
const SOME: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(3), Schedule::Random(4)];
const F8: [Ty; 2] = [Ty::E4m3, Ty::E5m2];

/// Types that exist together.
fn types() -> Vec<(Ty, Ty, Sum)> {
    let mut types = vec![
        (Ty::F16, Ty::F16, Sum::F32),
        (Ty::F16, Ty::F16, Sum::F16),
        (Ty::Bf16, Ty::Bf16, Sum::F32),
        (Ty::Tf32, Ty::Tf32, Sum::F32),
    ];
    for a in F8 {
        types.extend(F8.into_iter().flat_map(|b| [(a, b, Sum::F32), (a, b, Sum::F16)]));
    }
    for a in [Ty::S8, Ty::U8] {
        types.extend([Ty::S8, Ty::U8].map(|b| (a, b, Sum::S32)));
    }
    types
}

fn columns(d: Sum) -> Vec<usize> {
    match d {
        Sum::S32 => [8, 16, 24].into_iter().chain((32..=256).step_by(16)).collect(),
        _ => (8..=256).step_by(8).collect(),
    }
}

#[test]
fn every_type_and_number_of_columns() {
    for (at, (a, b, d)) in types().into_iter().enumerate() {
        for n in columns(d) {
            Product::new(n, a, b, d).check((at * 1000 + n) as u64, &EAGER);
        }
    }
}

#[test]
fn a_from_registers() {
    for (a, b, d) in types() {
        for n in [8, 48, 256] {
            let product = Product { a_registers: true, ..Product::new(n, a, b, d) };
            product.check(n as u64, &EAGER);
        }
    }
}

#[test]
fn every_swizzle_and_transposition() {
    let sixteen = [(Ty::F16, Sum::F32), (Ty::Bf16, Sum::F32), (Ty::F16, Sum::F16)];
    for widths in [16, 32, 64, 128].into_iter().flat_map(|a| [16, 32, 64, 128].map(|b| (a, b))) {
        for (ty, d) in sixteen {
            for mn_major in [(false, false), (true, false), (false, true), (true, true)] {
                let product = Product { widths, mn_major, ..Product::new(136, ty, ty, d) };
                product.check(u64::from(widths.0 + widths.1), &EAGER);
            }
        }
        for (ty, d) in [(Ty::Tf32, Sum::F32), (Ty::E4m3, Sum::F32), (Ty::S8, Sum::S32)] {
            Product { widths, ..Product::new(64, ty, ty, d) }.check(5, &EAGER);
        }
    }
    for width in [16, 32, 64, 128] {
        let product = Product::new(40, Ty::F16, Ty::F16, Sum::F32);
        Product { a_registers: true, widths: (128, width), mn_major: (false, true), ..product }
            .check(9, &EAGER);
    }
}

#[test]
fn scales_of_d_a_and_b() {
    for (a, b, d) in types() {
        for (negate, accumulate) in
            [((true, false), true), ((false, true), false), ((true, true), true)]
        {
            let negate = if d == Sum::S32 { (false, false) } else { negate };
            Product { negate, accumulate, ..Product::new(32, a, b, d) }.check(11, &EAGER);
        }
    }
}

#[test]
fn integers_wrap_or_saturate() {
    for seed in 0..20 {
        let product = Product::new(32, Ty::S8, Ty::U8, Sum::S32);
        product.check(seed, &EAGER);
        Product { saturate: true, ..product }.check(seed, &EAGER);
    }
}

#[test]
fn steps_along_k_accumulate_in_order() {
    for (a, b, d) in types() {
        Product { steps: 4, ..Product::new(96, a, b, d) }.check(17, &SOME);
    }
    Product { accumulate: false, ..Product::new(256, Ty::F16, Ty::F16, Sum::F32) }.check(3, &SOME);
    let registers = Product { a_registers: true, ..Product::new(64, Ty::E4m3, Ty::E5m2, Sum::F32) };
    registers.check(4, &SOME);
}
