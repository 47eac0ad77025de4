//! Integer, bit-field and packed operations against bit-by-bit oracles.

use proptest::prelude::*;
use ptx_emu_core::num::bits::{self, PrmtMode, ShiftMode};
use ptx_emu_core::num::compare::{self, FloatCmp, IntCmp, TestOp};
use ptx_emu_core::num::{bfloat, half, int, packed};

/// Returns the part of a position or length that counts: PTX takes the low eight bits, and hardware
/// does for 32-bit values, but takes all of it for 64-bit ones.
fn field_extent(msb: u32, extent: u32) -> u64 {
    u64::from(if msb == 31 { extent & 0xff } else { extent })
}

/// `bfe` as the PTX ISA's pseudo-code has it, on 64-bit images.
fn bfe_oracle(a: u64, msb: u32, signed: bool, pos: u32, len: u32) -> u64 {
    let (pos, len) = (field_extent(msb, pos), field_extent(msb, len));
    let msb = u64::from(msb);
    let bit = |i: u64| a >> i & 1;
    let sign = if !signed || len == 0 { 0 } else { bit((pos + len - 1).min(msb)) };
    (0..=msb).fold(0, |d, i| {
        let picked = if i < len && pos + i <= msb { bit(pos + i) } else { sign };
        d | picked << i
    })
}

fn bfi_oracle(a: u64, b: u64, msb: u32, pos: u32, len: u32) -> u64 {
    let (pos, len) = (field_extent(msb, pos), field_extent(msb, len));
    let msb = u64::from(msb);
    (0..len.min(64)).filter(|i| pos + i <= msb).fold(b, |f, i| {
        let at = pos + i;
        (f & !(1 << at)) | (a >> i & 1) << at
    })
}

fn bfind_oracle(a: u64, msb: u32, signed: bool, shiftamt: bool) -> u32 {
    let negative = signed && a >> msb & 1 == 1;
    let found = (0..=msb).rev().find(|&i| (a >> i & 1 == 1) != negative);
    found.map_or(u32::MAX, |i| if shiftamt { msb - i } else { i })
}

/// `fns` by listing the ones in the direction of the search.
fn fns_oracle(mask: u32, base: u32, offset: i32) -> u32 {
    let ones = |positions: &mut dyn Iterator<Item = u32>, n: usize| {
        positions.filter(|&i| mask >> i & 1 == 1).nth(n).unwrap_or(u32::MAX)
    };
    match offset {
        0 => ones(&mut (base..=base), 0),
        1.. => ones(&mut (base..32), offset as usize - 1),
        _ => ones(&mut (0..=base).rev(), offset.unsigned_abs() as usize - 1),
    }
}

fn bmsk_oracle(pos: u32, len: u32, mode: ShiftMode) -> u32 {
    let (pos, len) = match mode {
        ShiftMode::Clamp => (pos, len.min(32)),
        ShiftMode::Wrap => (pos & 31, len & 31),
    };
    (0..32u32).filter(|&i| i >= pos && i - pos < len).fold(0, |d, i| d | 1 << i)
}

fn prmt_oracle(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
    let pick = |i: u32| {
        let nibble = selector >> (4 * i) & 15;
        let byte = bytes[(nibble & 7) as usize];
        if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

/// Positions and lengths of fields, some beyond eight bits.
fn field_extents() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..300, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

const MODES: [ShiftMode; 2] = [ShiftMode::Clamp, ShiftMode::Wrap];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn bit_fields(a: u64, b: u64, pos in field_extents(), len in field_extents()) {
        let (a32, b32) = (a as u32, b as u32);
        prop_assert_eq!(u64::from(bits::bfe_u32(a32, pos, len)),
            bfe_oracle(u64::from(a32), 31, false, pos, len));
        prop_assert_eq!(bits::bfe_u64(a, pos, len), bfe_oracle(a, 63, false, pos, len));
        prop_assert_eq!(u64::from(bits::bfe_s32(a32 as i32, pos, len) as u32),
            bfe_oracle(u64::from(a32), 31, true, pos, len));
        prop_assert_eq!(bits::bfe_s64(a as i64, pos, len) as u64, bfe_oracle(a, 63, true, pos, len));
        prop_assert_eq!(u64::from(bits::bfi_b32(a32, b32, pos, len)),
            bfi_oracle(u64::from(a32), u64::from(b32), 31, pos, len));
        prop_assert_eq!(bits::bfi_b64(a, b, pos, len), bfi_oracle(a, b, 63, pos, len));
        let narrowed = a >> (pos % 64);
        for shiftamt in [false, true] {
            for a in [narrowed, !narrowed, 0, u64::MAX] {
                let a32 = a as u32;
                prop_assert_eq!(bits::bfind_u32(a32, shiftamt),
                    bfind_oracle(u64::from(a32), 31, false, shiftamt));
                prop_assert_eq!(bits::bfind_s32(a32 as i32, shiftamt),
                    bfind_oracle(u64::from(a32), 31, true, shiftamt));
                prop_assert_eq!(bits::bfind_u64(a, shiftamt), bfind_oracle(a, 63, false, shiftamt));
                prop_assert_eq!(bits::bfind_s64(a as i64, shiftamt),
                    bfind_oracle(a, 63, true, shiftamt));
            }
        }
    }

    #[test]
    fn fns_and_prmt_and_lop3(a: u32, b: u32, c: u32, base in 0u32..32, offset in -34i32..35, lut: u8) {
        prop_assert_eq!(bits::fns(a, base, offset), fns_oracle(a, base, offset));
        prop_assert_eq!(bits::prmt(a, b, c), prmt_oracle(a, b, c));
        let expected = (0..32).fold(0, |d, i| {
            let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
            d | u32::from(lut >> index & 1) << i
        });
        prop_assert_eq!(bits::lop3(a, b, c, lut), expected);
    }

    #[test]
    fn shifts(a: u64, hi: u32, amount in 0u32..80, wild: u32) {
        let lo = a as u32;
        let wide = u128::from(hi) << 32 | u128::from(lo);
        for amount in [amount, wild] {
            let n = |mode| if mode == ShiftMode::Wrap { amount & 31 } else { amount.min(32) };
            for mode in MODES {
                prop_assert_eq!(bits::shf_l(lo, hi, amount, mode), (wide << n(mode) >> 32) as u32);
                prop_assert_eq!(bits::shf_r(lo, hi, amount, mode), (wide >> n(mode)) as u32);
            }
            let shift = amount.min(64);
            let signed = a as i64 as i128;
            prop_assert_eq!(bits::shl_b64(a, amount), (u128::from(a) << shift) as u64);
            prop_assert_eq!(bits::shr_u64(a, amount), (u128::from(a) >> shift) as u64);
            prop_assert_eq!(bits::shr_s64(a as i64, amount), (signed >> shift) as i64);
            prop_assert_eq!(bits::shl_b32(lo, amount), (u128::from(lo) << shift) as u32);
            prop_assert_eq!(bits::shr_u32(lo, amount), (u128::from(lo) >> shift) as u32);
            prop_assert_eq!(bits::shr_s32(lo as i32, amount), (i128::from(lo as i32) >> shift) as i32);
            prop_assert_eq!(bits::shl_b16(a as u16, amount), (u128::from(a) << shift) as u16);
            prop_assert_eq!(bits::shr_u16(a as u16, amount), (u128::from(a as u16) >> shift) as u16);
            prop_assert_eq!(bits::shr_s16(a as i16, amount), (i128::from(a as i16) >> shift) as i16);
        }
    }

    #[test]
    fn products(a: u64, b: u64, c: u64, carry: bool) {
        let (a32, b32, c32) = (a as u32, b as u32, c as u32);
        let (s32, t32) = (a32 as i32, b32 as i32);
        prop_assert_eq!(int::mul_hi_u64(a, b), ((u128::from(a) * u128::from(b)) >> 64) as u64);
        prop_assert_eq!(int::mul_hi_s64(a as i64, b as i64),
            ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as i64);
        prop_assert_eq!(int::mul_hi_u32(a32, b32), ((i128::from(a32) * i128::from(b32)) >> 32) as u32);
        prop_assert_eq!(int::mul_hi_s32(s32, t32), ((i128::from(s32) * i128::from(t32)) >> 32) as i32);
        prop_assert_eq!(int::mul_wide_u32(a32, b32), u64::from(a32) * u64::from(b32));
        prop_assert_eq!(int::mul_wide_s32(s32, t32), i64::from(s32) * i64::from(t32));
        prop_assert_eq!(int::mul_hi_s16(a as i16, b as i16),
            ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as i16);
        prop_assert_eq!(int::mul_hi_u16(a as u16, b as u16),
            ((u32::from(a as u16) * u32::from(b as u16)) >> 16) as u16);
        prop_assert_eq!(int::mul_wide_u16(a as u16, b as u16), u32::from(a as u16) * u32::from(b as u16));
        prop_assert_eq!(int::mul_wide_s16(a as i16, b as i16), i32::from(a as i16) * i32::from(b as i16));
        let hi = i64::from(int::mul_hi_s32(s32, t32)) + i64::from(c32 as i32);
        prop_assert_eq!(i64::from(int::mad_hi_sat_s32(s32, t32, c32 as i32)),
            hi.clamp(i64::from(i32::MIN), i64::from(i32::MAX)));
        let low = |x: u32| i64::from(x << 8) / 256;
        let low_signed = |x: u32| i64::from((x << 8) as i32) / 256;
        prop_assert_eq!(int::mul24_lo_u32(a32, b32), (low(a32) * low(b32)) as u32);
        prop_assert_eq!(int::mul24_hi_u32(a32, b32), ((low(a32) * low(b32)) >> 16) as u32);
        prop_assert_eq!(int::mul24_lo_s32(s32, t32), (low_signed(a32) * low_signed(b32)) as i32);
        prop_assert_eq!(int::mul24_hi_s32(s32, t32), ((low_signed(a32) * low_signed(b32)) >> 16) as i32);
        prop_assert_eq!(int::mad24_hi_sat_s32(s32, t32, 5), int::mul24_hi_s32(s32, t32).saturating_add(5));

        let wide = |lo: u64, c: u64, carry: bool| {
            let sum = u128::from(lo) + u128::from(c) + u128::from(carry);
            (sum as u64, sum >> 64 != 0)
        };
        prop_assert_eq!(int::add_carry_64(a, b, carry), wide(a, b, carry));
        prop_assert_eq!(int::mad_lo_carry_64(a, b, c, carry), wide(a.wrapping_mul(b), c, carry));
        prop_assert_eq!(int::mad_hi_carry_u64(a, b, c, carry), wide(int::mul_hi_u64(a, b), c, carry));
        prop_assert_eq!(int::mad_hi_carry_s64(a, b, c, carry),
            wide(int::mul_hi_s64(a as i64, b as i64) as u64, c, carry));
        let narrow = |lo: u32, c: u32, carry: bool| {
            let sum = u64::from(lo) + u64::from(c) + u64::from(carry);
            (sum as u32, sum >> 32 != 0)
        };
        prop_assert_eq!(int::add_carry_32(a32, b32, carry), narrow(a32, b32, carry));
        prop_assert_eq!(int::mad_lo_carry_32(a32, b32, c32, carry),
            narrow(a32.wrapping_mul(b32), c32, carry));
        prop_assert_eq!(int::mad_hi_carry_u32(a32, b32, c32, carry),
            narrow(int::mul_hi_u32(a32, b32), c32, carry));
        prop_assert_eq!(int::mad_hi_carry_s32(a32, b32, c32, carry),
            narrow(int::mul_hi_s32(s32, t32) as u32, c32, carry));
        for (x, y) in [(a, b), (a, a)] {
            let difference = i128::from(x) - i128::from(y) - i128::from(carry);
            prop_assert_eq!(int::sub_borrow_64(x, y, carry), (difference as u64, difference < 0));
            let (x, y) = (x as u32, y as u32);
            let difference = i64::from(x) - i64::from(y) - i64::from(carry);
            prop_assert_eq!(int::sub_borrow_32(x, y, carry), (difference as u32, difference < 0));
        }
    }

    #[test]
    fn sums_of_absolute_differences(a: u64, b: u64, c: u64) {
        let sad = |a: i128, b: i128, c: i128| c.wrapping_add((a - b).abs());
        let wide = |x: u64| i128::from(x);
        let signed = |x: u64| i128::from(x as i64);
        prop_assert_eq!(int::sad_u64(a, b, c), sad(wide(a), wide(b), wide(c)) as u64);
        prop_assert_eq!(int::sad_s64(a as i64, b as i64, c as i64), sad(signed(a), signed(b), signed(c)) as i64);
        prop_assert_eq!(int::sad_u32(a as u32, b as u32, c as u32),
            sad(i128::from(a as u32), i128::from(b as u32), wide(c)) as u32);
        prop_assert_eq!(int::sad_s32(a as i32, b as i32, c as i32),
            sad(i128::from(a as i32), i128::from(b as i32), wide(c)) as i32);
        prop_assert_eq!(int::sad_u16(a as u16, b as u16, c as u16),
            sad(i128::from(a as u16), i128::from(b as u16), wide(c)) as u16);
        prop_assert_eq!(int::sad_s16(a as i16, b as i16, c as i16),
            sad(i128::from(a as i16), i128::from(b as i16), wide(c)) as i16);
    }

    #[test]
    fn dot_products(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) {
        let element = |x: u32, at: u32, width: u32, signed: bool| {
            let value = i64::from(x >> at & ((1 << width) - 1));
            if signed && value >> (width - 1) == 1 { value - (1 << width) } else { value }
        };
        let dot = (0..4).fold(i64::from(c), |d, i| {
            d + element(a, 8 * i, 8, a_signed) * element(b, 8 * i, 8, b_signed)
        });
        prop_assert_eq!(packed::dp4a(a, b, c, a_signed, b_signed), dot as u32);
        for hi in [false, true] {
            let first = if hi { 16 } else { 0 };
            let dot = (0..2).fold(i64::from(c), |d, i| {
                d + element(a, 16 * i, 16, a_signed) * element(b, first + 8 * i, 8, b_signed)
            });
            prop_assert_eq!(packed::dp2a(a, b, c, a_signed, b_signed, hi), dot as u32);
        }
    }

    #[test]
    fn halves_are_independent(a: u32, b: u32, relu: bool) {
        let each = |f: &dyn Fn(u16, u16) -> u16| {
            u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
        };
        let floor = if relu { 0 } else { i16::MIN };
        prop_assert_eq!(packed::add_16x2(a, b), each(&|a, b| a.wrapping_add(b)));
        prop_assert_eq!(packed::min_u16x2(a, b), each(&|a, b| a.min(b)));
        prop_assert_eq!(packed::max_u16x2(a, b), each(&|a, b| a.max(b)));
        prop_assert_eq!(packed::min_s16x2(a, b, relu),
            each(&|a, b| (a as i16).min(b as i16).max(floor) as u16));
        prop_assert_eq!(packed::max_s16x2(a, b, relu),
            each(&|a, b| (a as i16).max(b as i16).max(floor) as u16));
    }
}

#[test]
fn masks_and_extensions_of_every_size() {
    let wild = [0x8000_0000, u32::MAX, 0x100];
    for pos in (0..70).chain(wild) {
        for len in (0..70).chain(wild) {
            for mode in MODES {
                assert_eq!(
                    bits::bmsk(pos, len, mode),
                    bmsk_oracle(pos, len, mode),
                    "bmsk {mode:?} {pos} {len}"
                );
            }
        }
        for mode in MODES {
            let n = match mode {
                ShiftMode::Clamp => pos.min(32),
                ShiftMode::Wrap => pos & 31,
            };
            for a in [0u32, u32::MAX, 0x5555_5555, 0xaaaa_aaaa, 0x8000_0001] {
                let low = u64::from(a) & ((1 << n) - 1);
                assert_eq!(
                    u64::from(bits::szext_u32(a, pos, mode)),
                    low,
                    "szext.u32 {mode:?} {pos}"
                );
                let negative = n > 0 && low >> (n - 1) == 1;
                let expected = if negative { low as i64 - (1 << n) } else { low as i64 };
                assert_eq!(
                    i64::from(bits::szext_s32(a as i32, pos, mode)),
                    expected,
                    "szext.s32 {mode:?} {a:#x} {pos}"
                );
            }
        }
    }
    assert_eq!(bits::fns(u32::MAX, 32, 1), u32::MAX);
}

#[test]
fn named_permutations() {
    let (a, b) = (0x3322_1100, 0x7766_5544);
    for (mode, expected) in [
        (PrmtMode::F4e, [0x3322_1100, 0x4433_2211, 0x5544_3322, 0x6655_4433u32]),
        (PrmtMode::B4e, [0x5566_7700, 0x6677_0011, 0x7700_1122, 0x0011_2233]),
        (PrmtMode::Rc8, [0x0000_0000, 0x1111_1111, 0x2222_2222, 0x3333_3333]),
        (PrmtMode::Ecl, [0x3322_1100, 0x3322_1111, 0x3322_2222, 0x3333_3333]),
        (PrmtMode::Ecr, [0x0000_0000, 0x1111_1100, 0x2222_1100, 0x3322_1100]),
        (PrmtMode::Rc16, [0x1100_1100, 0x3322_3322, 0x1100_1100, 0x3322_3322]),
    ] {
        for (c, expected) in (0u32..).zip(expected) {
            assert_eq!(bits::prmt(a, b, mode.selector(c | 0xf0)), expected, "{mode:?} {c}");
        }
    }
}

#[test]
fn division_is_total() {
    assert_eq!((int::div_u32(7, 0), int::rem_u32(7, 0)), (u32::MAX, u32::MAX));
    assert_eq!((int::div_s64(7, 0), int::rem_s64(7, 0)), (-1, -1));
    assert_eq!((int::div_s32(i32::MIN, -1), int::rem_s32(i32::MIN, -1)), (i32::MIN, 0));
    assert_eq!((int::div_s16(-7, 2), int::rem_s16(-7, 2)), (-3, -1));
    assert_eq!((int::div_u16(7, 2), int::rem_u64(7, 4), int::div_u64(9, 2)), (3, 3, 4));
    assert_eq!((int::min_relu_s32(-3, 5), int::max_relu_s32(-3, -5)), (0, 0));
    assert_eq!((int::min_relu_s32(3, 5), int::max_relu_s32(3, 5)), (3, 5));
}

#[test]
fn comparisons() {
    use FloatCmp::{Eq, Equ, Ge, Geu, Gt, Gtu, Le, Leu, Lt, Ltu, Nan, Ne, Neu, Num};
    // Bit i of a row: the answer for less, equal, greater, unordered operands.
    let table = [
        (Eq, 0b0010),
        (Ne, 0b0101),
        (Lt, 0b0001),
        (Le, 0b0011),
        (Gt, 0b0100),
        (Ge, 0b0110),
        (Equ, 0b1010),
        (Neu, 0b1101),
        (Ltu, 0b1001),
        (Leu, 0b1011),
        (Gtu, 0b1100),
        (Geu, 0b1110),
        (Num, 0b0111),
        (Nan, 0b1000),
    ];
    let operands = [(-1.0f32, 2.0f32), (0.0, -0.0), (3.0, -3.0), (f32::NAN, 1.0)];
    for (op, row) in table {
        for (case, (a, b)) in operands.into_iter().enumerate() {
            let expected = row >> case & 1 == 1;
            assert_eq!(compare::f32(op, a, b, false), expected, "{op:?} f32 {a} {b}");
            assert_eq!(compare::f64(op, a.into(), b.into()), expected, "{op:?} f64 {a} {b}");
            let [ha, hb] = [a, b].map(half::from_f32);
            assert_eq!(compare::f16(op, ha, hb, false), expected, "{op:?} f16 {a} {b}");
            let [ba, bb] = [a, b].map(bfloat::from_f32);
            assert_eq!(compare::bf16(op, ba, bb), expected, "{op:?} bf16 {a} {b}");
        }
    }
    assert!(compare::f32(Eq, f32::from_bits(1), -0.0, true));
    assert!(compare::f16(Eq, 0x8001, 0, true));
    assert!(!compare::f16(Eq, 0x8001, 0, false));

    let table = [
        (IntCmp::Eq, 0b010),
        (IntCmp::Ne, 0b101),
        (IntCmp::Lt, 0b001),
        (IntCmp::Le, 0b011),
        (IntCmp::Gt, 0b100),
        (IntCmp::Ge, 0b110),
    ];
    for (op, row) in table {
        for (case, (a, b)) in [(-1i32, 2), (5, 5), (7, -7)].into_iter().enumerate() {
            assert_eq!(compare::integer(op, a, b), row >> case & 1 == 1, "{op:?} {a} {b}");
        }
    }
    assert!(compare::integer(IntCmp::Gt, -1i32 as u32, 2));
}

#[test]
fn properties_and_signs() {
    use TestOp::{Finite, Infinite, Normal, NotANumber, Number, Subnormal};
    let table: [(f32, &[TestOp]); 5] = [
        (-0.0, &[Finite, Number, Normal]),
        (1.5, &[Finite, Number, Normal]),
        (f32::from_bits(1), &[Finite, Number, Subnormal]),
        (f32::NEG_INFINITY, &[Infinite, Number]),
        (f32::NAN, &[NotANumber]),
    ];
    for (x, holds) in table {
        for op in [Finite, Infinite, Number, NotANumber, Normal, Subnormal] {
            assert_eq!(compare::testp_f32(op, x), holds.contains(&op), "{op:?} {x}");
            let wide = if op == Subnormal || op == Normal { continue } else { f64::from(x) };
            assert_eq!(compare::testp_f64(op, wide), holds.contains(&op), "{op:?} f64 {x}");
        }
    }
    assert!(compare::testp_f64(Subnormal, f64::from_bits(1)));
    assert_eq!(compare::copysign_f32(-1.0, 2.0), -2.0);
    assert_eq!(compare::copysign_f64(1.0, -2.0), 2.0);
}
