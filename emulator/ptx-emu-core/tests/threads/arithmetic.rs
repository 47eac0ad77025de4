//! Register instructions: each spelling is decoded to the right operation, with the right operand
//! order and width. The operations' results are tested with the numerics; here expectations are
//! written in plain Rust.

use crate::support::{Run, check, error_of};

/// Lane inputs with edge cases.
fn words() -> Vec<u32> {
    let edges = [
        0,
        1,
        2,
        7,
        31,
        32,
        33,
        255,
        256,
        0x7fff,
        0x8000,
        0xffff,
        0x1_0000,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_fffe,
        0xffff_ffff,
    ];
    let mut state = 0x1234_5678u32;
    let mut all: Vec<u32> = edges.to_vec();
    while all.len() < 96 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        all.push(state.rotate_left(13));
    }
    all
}

/// Lane `i`'s operands: `a`, `b`, `c`.
fn operands(lane: usize) -> (u32, u32, u32) {
    let words = words();
    (words[lane], words[(lane * 7 + 3) % 96], words[(lane * 5 + 11) % 96])
}

/// Runs `code` with `%r1`, `%r2`, `%r3` set, and compares `%r0`.
#[track_caller]
fn op32(code: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let inputs: Vec<u32> = (0..96)
        .flat_map(|lane| {
            let (a, b, c) = operands(lane);
            [a, b, c]
        })
        .collect();
    let run = Run {
        block: 96,
        out_bytes: 384,
        ..Run::body(&format!(
            "mad.wide.u32 %d1, %tid, 12, %in;
             ld.global.u32 %r1, [%d1]; ld.global.u32 %r2, [%d1+4]; ld.global.u32 %r3, [%d1+8];
             mov.u32 %r0, 0;
             {code}
             st.global.u32 [%po], %r0;"
        ))
        .u32s(&inputs)
    };
    let expected: Vec<u32> = (0..96)
        .map(|lane| {
            let (a, b, c) = operands(lane);
            expected(a, b, c)
        })
        .collect();
    check(code, &run.words(), &expected);
}

/// Same for `%d1`, `%d2`, `%d3` and `%d0`, made of two words each.
#[track_caller]
fn op64(code: &str, expected: impl Fn(u64, u64, u64) -> u64) {
    let wide = |lane: usize| {
        let at = |k| {
            u64::from(operands((lane + k) % 96).0) << 32 | u64::from(operands((lane + k) % 96).1)
        };
        (at(0), at(5), at(17))
    };
    let inputs: Vec<u64> = (0..96)
        .flat_map(|lane| {
            let (a, b, c) = wide(lane);
            [a, b, c]
        })
        .collect();
    let run = Run {
        block: 96,
        out_bytes: 768,
        ..Run::body(&format!(
            "mad.wide.u32 %d9, %tid, 24, %in; mad.wide.u32 %d8, %tid, 8, %out;
             ld.global.u64 %d1, [%d9]; ld.global.u64 %d2, [%d9+8]; ld.global.u64 %d3, [%d9+16];
             mov.u64 %d0, 0;
             {code}
             st.global.u64 [%d8], %d0;"
        ))
        .u64s(&inputs)
        .target("sm_100")
    };
    let expected: Vec<u64> = (0..96)
        .map(|lane| {
            let (a, b, c) = wide(lane);
            expected(a, b, c)
        })
        .collect();
    check(code, &run.longs(), &expected);
}

#[test]
fn integer_arithmetic_32() {
    op32("add.u32 %r0, %r1, %r2;", |a, b, _| a.wrapping_add(b));
    op32("add.s32 %r0, %r1, -5;", |a, _, _| a.wrapping_sub(5));
    op32("add.sat.s32 %r0, %r1, %r2;", |a, b, _| (a as i32).saturating_add(b as i32) as u32);
    op32("sub.sat.s32 %r0, %r1, %r2;", |a, b, _| (a as i32).saturating_sub(b as i32) as u32);
    op32("sub.s32 %r0, %r1, %r2;", |a, b, _| a.wrapping_sub(b));
    op32("mul.lo.s32 %r0, %r1, %r2;", |a, b, _| a.wrapping_mul(b));
    op32("mul.hi.u32 %r0, %r1, %r2;", |a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    op32("mul.hi.s32 %r0, %r1, %r2;", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
    });
    op32("mad.lo.s32 %r0, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    op32("mad.hi.u32 %r0, %r1, %r2, %r3;", |a, b, c| {
        (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
    });
    op32("sad.s32 %r0, %r1, %r2, %r3;", |a, b, c| c.wrapping_add((a as i32).abs_diff(b as i32)));
    op32("or.b32 %r2, %r2, 1; div.s32 %r0, %r1, %r2;", |a, b, _| {
        (a as i32).wrapping_div((b | 1) as i32) as u32
    });
    op32("or.b32 %r2, %r2, 1; rem.u32 %r0, %r1, %r2;", |a, b, _| a % (b | 1));
    op32("abs.s32 %r0, %r1;", |a, _, _| (a as i32).wrapping_abs() as u32);
    op32("neg.s32 %r0, %r1;", |a, _, _| a.wrapping_neg());
    op32("min.s32 %r0, %r1, %r2;", |a, b, _| (a as i32).min(b as i32) as u32);
    op32("max.u32 %r0, %r1, %r2;", |a, b, _| a.max(b));
    op32("max.s32.relu %r0, %r1, %r2;", |a, b, _| (a as i32).max(b as i32).max(0) as u32);
    op32("mul24.lo.u32 %r0, %r1, %r2;", |a, b, _| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff));
    op32("dp4a.s32.u32 %r0, %r1, %r2, %r3;", |a, b, c| {
        (0..4).fold(c, |sum, k| {
            let product = i32::from((a >> (8 * k)) as u8 as i8) * i32::from((b >> (8 * k)) as u8);
            sum.wrapping_add(product as u32)
        })
    });
    op32("dp2a.hi.u32.s32 %r0, %r1, %r2, %r3;", |a, b, c| {
        (0..2).fold(c, |sum, k| {
            let product =
                (a >> (16 * k) & 0xffff) as i32 * i32::from((b >> (16 + 8 * k)) as u8 as i8);
            sum.wrapping_add(product as u32)
        })
    });
    op32("add.u16x2 %r0, %r1, %r2;", |a, b, _| {
        (a.wrapping_add(b) & 0xffff) | ((a >> 16).wrapping_add(b >> 16) << 16)
    });
    op32("max.s16x2 %r0, %r1, %r2;", |a, b, _| {
        let max = |s: u32| (a >> s) as i16 >= (b >> s) as i16;
        let half = |s: u32| if max(s) { a >> s & 0xffff } else { b >> s & 0xffff };
        half(0) | half(16) << 16
    });
}

#[test]
fn integer_arithmetic_16_and_wide() {
    let load = "cvt.u16.u32 %h1, %r1; cvt.u16.u32 %h2, %r2;";
    op32(&format!("{load} add.s16 %h3, %h1, %h2; cvt.u32.u16 %r0, %h3;"), |a, b, _| {
        u32::from((a as u16).wrapping_add(b as u16))
    });
    op32(&format!("{load} min.s16 %h3, %h1, %h2; cvt.s32.s16 %r0, %h3;"), |a, b, _| {
        i32::from((a as i16).min(b as i16)) as u32
    });
    op32(&format!("{load} mul.wide.s16 %r0, %h1, %h2;"), |a, b, _| {
        (i32::from(a as i16) * i32::from(b as i16)) as u32
    });
    op32(&format!("{load} mul.hi.u16 %h3, %h1, %h2; cvt.u32.u16 %r0, %h3;"), |a, b, _| {
        ((a & 0xffff) * (b & 0xffff)) >> 16
    });
    op32(&format!("{load} shr.s16 %h3, %h1, 3; cvt.u32.u16 %r0, %h3;"), |a, _, _| {
        u32::from(((a as i16) >> 3) as u16)
    });
    op32("mul.wide.s32 %d1, %r1, %r2; shr.u64 %d1, %d1, 16; cvt.u32.u64 %r0, %d1;", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) as u64 >> 16) as u32
    });
    op64("mul.lo.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_mul(b));
    op64("mul.hi.u64 %d0, %d1, %d2;", |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    op64("mad.lo.s64 %d0, %d1, %d2, %d3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    op64("sub.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_sub(b));
    op64("max.s64 %d0, %d1, %d2;", |a, b, _| (a as i64).max(b as i64) as u64);
    op64("or.b64 %d2, %d2, 1; div.u64 %d0, %d1, %d2;", |a, b, _| a / (b | 1));
    op64("neg.s64 %d0, %d1;", |a, _, _| a.wrapping_neg());
}

#[test]
fn carry_chains() {
    // A 64-bit sum out of 32-bit ones, a 128-bit one out of 64-bit ones.
    op64(
        "mov.b64 {%r1, %r2}, %d1; mov.b64 {%r3, %r4}, %d2;
         add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4; mov.b64 %d0, {%r5, %r6};",
        |a, b, _| a.wrapping_add(b),
    );
    op64(
        "mov.b64 {%r1, %r2}, %d1; mov.b64 {%r3, %r4}, %d2;
         sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4; mov.b64 %d0, {%r5, %r6};",
        |a, b, _| a.wrapping_sub(b),
    );
    op64("add.cc.u64 %d4, %d1, %d2; addc.u64 %d0, %d3, 0;", |a, b, c| {
        c.wrapping_add(u64::from(a.overflowing_add(b).1))
    });
    op64(
        "mov.b64 {%r1, %r2}, %d1; mov.b64 {%r3, %r4}, %d2; mov.u32 %r9, 0;
         mad.lo.cc.u32 %r5, %r1, %r3, %r2; madc.hi.u32 %r6, %r1, %r3, %r4;
         mov.b64 %d0, {%r5, %r6};",
        |a, b, _| {
            let product = (a & 0xffff_ffff) * (b & 0xffff_ffff);
            let (low, carry) = (product as u32).overflowing_add((a >> 32) as u32);
            let high = ((product >> 32) as u32)
                .wrapping_add((b >> 32) as u32)
                .wrapping_add(u32::from(carry));
            u64::from(low) | u64::from(high) << 32
        },
    );
}

#[test]
fn logic_shifts_and_bits() {
    op32("and.b32 %r0, %r1, %r2;", |a, b, _| a & b);
    op32("or.b32 %r0, %r1, 0x0f0f;", |a, _, _| a | 0x0f0f);
    op32("xor.b32 %r0, %r1, %r2;", |a, b, _| a ^ b);
    op32("not.b32 %r0, %r1;", |a, _, _| !a);
    op32("cnot.b32 %r0, %r1;", |a, _, _| u32::from(a == 0));
    op32("and.b32 %r2, %r2, 63; shl.b32 %r0, %r1, %r2;", |a, b, _| {
        a.checked_shl(b & 63).unwrap_or(0)
    });
    op32("and.b32 %r2, %r2, 63; shr.u32 %r0, %r1, %r2;", |a, b, _| {
        a.checked_shr(b & 63).unwrap_or(0)
    });
    op32("shr.s32 %r0, %r1, %r2;", |a, b, _| ((a as i32) >> b.min(31)) as u32);
    op32("shr.s32 %r0, %r1, 4;", |a, _, _| ((a as i32) >> 4) as u32);
    op32("shl.b32 %r0, %r1, 32;", |_, _, _| 0);
    op32("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
    });
    op32("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32
    });
    let lop = |lut: u32| {
        move |a: u32, b: u32, c: u32| {
            (0..32).fold(0, |d, i| {
                let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1;
                d | (lut >> index & 1) << i
            })
        }
    };
    for lut in [0x00u32, 0x1b, 0x3c, 0x80, 0x96, 0xe8, 0xfe, 0xff] {
        op32(&format!("lop3.b32 %r0, %r1, %r2, %r3, {lut};"), lop(lut));
    }
    op32(
        "setp.lt.u32 %p1, %r3, 1000; lop3.and.b32 %r4|%p2, %r1, %r2, 0, 0xc0, %p1;
         selp.u32 %r0, %r4, 77, %p2;",
        |a, b, c| if a & b != 0 && c < 1000 { a & b } else { 77 },
    );
    let permute = |a: u32, b: u32, c: u32| {
        (0..4).fold(0, |d, i| {
            let nibble = c >> (4 * i) & 15;
            let byte = ((u64::from(b) << 32 | u64::from(a)) >> (8 * (nibble & 7))) as u8;
            let byte = if nibble & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
            d | u32::from(byte) << (8 * i)
        })
    };
    op32("prmt.b32 %r0, %r1, %r2, %r3;", permute);
    op32("prmt.b32 %r0, %r1, %r2, 0x5410;", move |a, b, _| permute(a, b, 0x5410));
    // The same table for all lanes, more than once.
    op32(
        "mov.u32 %r4, 0x83020100; prmt.b32 %r5, %r4, 0x0c080604, %r1;
         prmt.b32 %r0, %r4, 0x0c080604, %r5; prmt.b32 %r0, %r4, 0x0c080604, %r3;",
        move |_, _, c| permute(0x8302_0100, 0x0c08_0604, c),
    );
    op32("prmt.b32.rc16 %r0, %r1, %r2, 1;", |a, _, _| a >> 16 | a >> 16 << 16);
    op32("bfe.u32 %r0, %r1, 5, 9;", |a, _, _| a >> 5 & 0x1ff);
    op32("bfi.b32 %r0, %r1, %r2, 8, 4;", |a, b, _| b & !0xf00 | (a & 15) << 8);
    op32("popc.b32 %r0, %r1;", |a, _, _| a.count_ones());
    op32("clz.b32 %r0, %r1;", |a, _, _| a.leading_zeros());
    op32("brev.b32 %r0, %r1;", |a, _, _| a.reverse_bits());
    op32(
        "bfind.shiftamt.u32 %r0, %r1;",
        |a, _, _| if a == 0 { u32::MAX } else { a.leading_zeros() },
    );
    op32("bmsk.clamp.b32 %r0, 4, 8;", |_, _, _| 0xff0);
    op32("szext.wrap.s32 %r0, %r1, 8;", |a, _, _| a as u8 as i8 as u32);
    op64("shl.b64 %d0, %d1, 13;", |a, _, _| a << 13);
    op64("shr.s64 %d0, %d1, 13;", |a, _, _| ((a as i64) >> 13) as u64);
    op64("xor.b64 %d0, %d1, %d2;", |a, b, _| a ^ b);
    op64("popc.b64 %r1, %d1; cvt.u64.u32 %d0, %r1;", |a, _, _| a.count_ones().into());
}

#[test]
fn floating_point() {
    let f = f32::from_bits;
    let canonical = |x: f32| if x.is_nan() { 0x7fff_ffff } else { x.to_bits() };
    let load = "mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;";
    let store = "mov.b32 %r0, %f0;";
    let op = |code: &str, expected: &dyn Fn(f32, f32, f32) -> u32| {
        op32(&format!("{load} {code} {store}"), |a, b, c| expected(f(a), f(b), f(c)));
    };
    op("add.f32 %f0, %f1, %f2;", &|a, b, _| canonical(a + b));
    op("sub.rn.f32 %f0, %f1, %f2;", &|a, b, _| canonical(a - b));
    op("mul.f32 %f0, %f1, 0f40490FDB;", &|a, _, _| canonical(a * f(0x4049_0fdb)));
    op("fma.rn.f32 %f0, %f1, %f2, %f3;", &|a, b, c| canonical(a.mul_add(b, c)));
    op("div.rn.f32 %f0, %f1, %f2;", &|a, b, _| canonical(a / b));
    op("abs.f32 %f1, %f1; add.f32 %f1, %f1, 0f3f800000; sqrt.rn.f32 %f0, %f1;", &|a, _, _| {
        canonical((a.abs() + 1.0).sqrt())
    });
    op("min.f32 %f0, %f1, 0f40000000;", &|a, _, _| {
        if a.is_nan() { 2f32.to_bits() } else { a.min(2.0).to_bits() }
    });
    op("setp.gtu.f32 %p1, %f1, %f2; selp.f32 %f0, 0f3f800000, 0f00000000, %p1;", &|a, b, _| {
        if a > b || a.is_nan() || b.is_nan() { 1f32.to_bits() } else { 0 }
    });
    op(
        "setp.lt.and.f32 %p1|%p2, %f1, %f2, 1; selp.u32 %r4, 1, 0, %p1; selp.u32 %r5, 2, 0, %p2;
        or.b32 %r4, %r4, %r5; cvt.rn.f32.u32 %f0, %r4;",
        &|a, b, _| {
            // The second predicate is the complement of the comparison.
            (if a < b { 1f32 } else { 2f32 }).to_bits()
        },
    );
    let halves = "mov.b32 {%h1, %h2}, %r1; mov.b32 {%h3, %h4}, %r2;";
    op32(&format!("{halves} cvt.f32.f16 %f1, %h1; mov.b32 %r0, %f1;"), |a, _, _| {
        let value = half::f16::from_bits(a as u16).to_f32();
        canonical(value)
    });
    op32(
        "and.b32 %r1, %r1, 0x7bff7bff; and.b32 %r2, %r2, 0x3bff3bff; mul.f16x2 %r0, %r1, %r2;",
        |a, b, _| {
            let product = |s: u32| {
                let x = half::f16::from_bits((a >> s) as u16 & 0x7bff).to_f64();
                let y = half::f16::from_bits((b >> s) as u16 & 0x3bff).to_f64();
                u32::from(half::f16::from_f64(x * y).to_bits())
            };
            product(0) | product(16) << 16
        },
    );
    op64("and.b64 %d1, %d1, 0x3fffffffffffffff; and.b64 %d2, %d2, 0x3fffffffffffffff;
          mov.b64 %fd1, %d1; mov.b64 %fd2, %d2; fma.rn.f64 %fd0, %fd1, %fd2, %fd1; mov.b64 %d0, %fd0;", |a, b, _| {
        let (a, b) = (f64::from_bits(a & (u64::MAX >> 2)), f64::from_bits(b & (u64::MAX >> 2)));
        a.mul_add(b, a).to_bits()
    });
    op64("mov.b64 {%r1, %r2}, %d1; and.b32 %r1, %r1, 0x3fffffff; and.b32 %r2, %r2, 0x3fffffff; mov.b64 %d1, {%r1, %r2};
          add.rn.f32x2 %d0, %d1, %d1;", |a, _, _| {
        let twice = |bits: u32| u64::from((f(bits & 0x3fff_ffff) * 2.0).to_bits());
        twice(a as u32) | twice((a >> 32) as u32) << 32
    });
}

#[test]
fn conversions() {
    op32("cvt.u8.u32 %r0, %r1;", |a, _, _| a & 0xff);
    op32("cvt.s8.s32 %r0, %r1;", |a, _, _| a as u8 as i8 as u32);
    op32("cvt.s32.s8 %r0, %r1;", |a, _, _| a as u8 as i8 as u32);
    op32("cvt.sat.s8.s32 %r0, %r1;", |a, _, _| (a as i32).clamp(-128, 127) as u32);
    op32("cvt.sat.u8.s32 %r0, %r1;", |a, _, _| (a as i32).clamp(0, 255) as u32);
    op32("cvt.s16.s8 %h1, %r1; cvt.u32.u16 %r0, %h1;", |a, _, _| {
        u32::from(a as u8 as i8 as i16 as u16)
    });
    op32("cvt.rn.f32.s32 %f1, %r1; mov.b32 %r0, %f1;", |a, _, _| (a as i32 as f32).to_bits());
    op32("cvt.rn.f32.u32 %f1, %r1; cvt.rzi.u32.f32 %r0, %f1;", |a, _, _| a as f32 as u32);
    op32("mov.b32 %f1, %r1; cvt.rzi.s32.f32 %r0, %f1;", |a, _, _| f32::from_bits(a) as i32 as u32);
    op32("cvt.s64.s32 %d1, %r1; shr.u64 %d1, %d1, 20; cvt.u32.u64 %r0, %d1;", |a, _, _| {
        ((i64::from(a as i32) as u64) >> 20) as u32
    });
    op32("and.b32 %r1, %r1, 0x3fffffff; and.b32 %r2, %r2, 0x3fffffff; mov.b32 %f1, %r1; mov.b32 %f2, %r2;
          cvt.rn.f16x2.f32 %r0, %f1, %f2;", |a, b, _| {
        let half = |x: u32| u32::from(half::f16::from_f32(f32::from_bits(x & 0x3fff_ffff)).to_bits());
        // The first source is the upper half.
        half(a) << 16 | half(b)
    });
    op32(
        "mov.u32 %r1, 0x3f800000; mov.b32 %f1, %r1; mov.f32 %f2, 0fc0000000;
          cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2; cvt.u32.u16 %r0, %h1;",
        |_, _, _| 0x38c0,
    );
    op32("mov.u16 %h1, 0x38c0; cvt.rn.f16x2.e4m3x2 %r0, %h1;", |_, _, _| 0x3c00_c000);
    op64("cvt.u64.u32 %d0, 7;", |_, _, _| 7);
    op64("cvt.f64.f32 %fd1, 0f40490FDB; mov.b64 %d0, %fd1;", |_, _, _| {
        f64::from(f32::from_bits(0x4049_0fdb)).to_bits()
    });
}

#[test]
fn comparisons_and_selection() {
    op32("setp.lt.s32 %p1, %r1, %r2; selp.u32 %r0, %r1, %r2, %p1;", |a, b, _| {
        (a as i32).min(b as i32) as u32
    });
    op32("setp.hs.u32 %p1, %r1, %r2; @%p1 mov.u32 %r0, 5; @!%p1 mov.u32 %r0, 6;", |a, b, _| {
        if a >= b { 5 } else { 6 }
    });
    op32(
        "setp.eq.u32 %p2, %r3, 0; setp.ne.or.s32 %p1, %r1, %r2, !%p2; selp.u32 %r0, 1, 0, %p1;",
        |a, b, c| u32::from(a != b || c != 0),
    );
    op32("set.gt.u32.s32 %r0, %r1, %r2;", |a, b, _| if a as i32 > b as i32 { u32::MAX } else { 0 });
    op32(
        "set.gt.f32.u32 %f1, %r1, %r2; mov.b32 %r0, %f1;",
        |a, b, _| if a > b { 0x3f80_0000 } else { 0 },
    );
    op32("slct.u32.s32 %r0, %r1, %r2, %r3;", |a, b, c| if c as i32 >= 0 { a } else { b });
    op32(
        "setp.lt.u32 %p1, %r1, %r2; setp.lt.u32 %p2, %r2, %r3; xor.pred %p3, %p1, %p2; not.pred %p3, %p3; selp.u32 %r0, 1, 0, %p3;",
        |a, b, c| u32::from((a < b) == (b < c)),
    );
    op32("mov.b32 %f1, %r1; testp.subnormal.f32 %p1, %f1; selp.u32 %r0, 1, 0, %p1;", |a, _, _| {
        u32::from(f32::from_bits(a).is_subnormal())
    });
    op64("setp.lt.s64 %p1, %d1, %d2; selp.b64 %d0, %d1, %d2, %p1;", |a, b, _| {
        (a as i64).min(b as i64) as u64
    });
}

#[test]
fn packing_and_unpacking() {
    op32("mov.b32 {%h1, %h2}, %r1; mov.b32 %r0, {%h2, %h1};", |a, _, _| a.rotate_left(16));
    op32("mov.b32 {%b1, %b2, %b3, %b4}, %r1; mov.b32 %r0, {%b4, %b3, %b2, %b1};", |a, _, _| {
        a.swap_bytes()
    });
    op32("mov.b32 {_, %h2}, %r1; cvt.u32.u16 %r0, %h2;", |a, _, _| a >> 16);
    op64("mov.b64 {%r1, %r2}, %d1; mov.b64 %d0, {%r2, %r1};", |a, _, _| a.rotate_left(32));
    op64("mov.b128 %q1, {%d1, %d2}; mov.b128 %q2, %q1; mov.b128 {_, %d0}, %q2;", |_, b, _| b);
    op64("mov.b64 {%h1, %h2, %h3, %h4}, %d1; mov.b64 %d0, {%h1, %h1, %h4, %h1};", |a, _, _| {
        let low = a & 0xffff;
        low | low << 16 | a >> 48 << 32 | low << 48
    });
}

#[test]
fn unknown_modifiers_and_operands_are_refused() {
    for (code, reason) in [
        ("add.f32.bogus %f1, %f1, %f1;", ".bogus"),
        ("prmt.b32.f8x %r1, %r1, %r2, %r3;", ".f8x"),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2}];", "instruction tex"),
        ("shfl.down.b32 %r1, %r1, 1, 31;", "no .sync"),
        ("cvt.rs.f16.f32 %h1, %f1, %r1;", "stochastic"),
    ] {
        let message = error_of(code, "sm_100a").to_string();
        assert!(message.contains(reason), "{code}: {message}");
    }
}
