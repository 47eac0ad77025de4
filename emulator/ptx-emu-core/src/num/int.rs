//! Integer arithmetic: PTX ISA sections 9.7.1 and 9.7.2.
//!
//! Addition, subtraction and low products wrap and are the host's `wrapping_*`; here is what is not
//! one host operation. If a function has a name for each type, the suffix is the PTX type.

macro_rules! mul_hi {
    ($($name:ident, $ty:ty, $wide:ty;)*) => {$(
        /// `mul.hi`: the upper half of the full product. Section 9.7.1.3.
        #[inline]
        pub const fn $name(a: $ty, b: $ty) -> $ty {
            ((a as $wide * b as $wide) >> <$ty>::BITS) as $ty
        }
    )*};
}

mul_hi! {
    mul_hi_u16, u16, u32;
    mul_hi_s16, i16, i32;
    mul_hi_u32, u32, u64;
    mul_hi_s32, i32, i64;
    mul_hi_u64, u64, u128;
    mul_hi_s64, i64, i128;
}

macro_rules! mul_wide {
    ($($name:ident, $ty:ty, $wide:ty;)*) => {$(
        /// `mul.wide`: the full product, of twice the width. Section 9.7.1.3.
        #[inline]
        pub const fn $name(a: $ty, b: $ty) -> $wide {
            a as $wide * b as $wide
        }
    )*};
}

mul_wide! {
    mul_wide_u16, u16, u32;
    mul_wide_s16, i16, i32;
    mul_wide_u32, u32, u64;
    mul_wide_s32, i32, i64;
}

/// `mad.hi.sat.s32`: the upper half of `a * b`, plus `c`, clamped. Section 9.7.1.4.
#[inline]
pub const fn mad_hi_sat_s32(a: i32, b: i32, c: i32) -> i32 {
    mul_hi_s32(a, b).saturating_add(c)
}

const fn low24(a: u32) -> u64 {
    a as u64 & 0x00ff_ffff
}

const fn low24_signed(a: i32) -> i64 {
    (a << 8 >> 8) as i64
}

/// `mul24.lo.u32`: bits 31:0 of the product of the low 24 bits. Section 9.7.1.5.
#[inline]
pub const fn mul24_lo_u32(a: u32, b: u32) -> u32 {
    (low24(a) * low24(b)) as u32
}

/// `mul24.hi.u32`: bits 47:16 of the product of the low 24 bits.
#[inline]
pub const fn mul24_hi_u32(a: u32, b: u32) -> u32 {
    ((low24(a) * low24(b)) >> 16) as u32
}

/// `mul24.lo.s32`: as [`mul24_lo_u32`], the 24 bits signed.
#[inline]
pub const fn mul24_lo_s32(a: i32, b: i32) -> i32 {
    (low24_signed(a) * low24_signed(b)) as i32
}

/// `mul24.hi.s32`: as [`mul24_hi_u32`], the 24 bits signed.
#[inline]
pub const fn mul24_hi_s32(a: i32, b: i32) -> i32 {
    ((low24_signed(a) * low24_signed(b)) >> 16) as i32
}

/// `mad24.hi.sat.s32`: [`mul24_hi_s32`] plus `c`, clamped. Section 9.7.1.6.
#[inline]
pub const fn mad24_hi_sat_s32(a: i32, b: i32, c: i32) -> i32 {
    mul24_hi_s32(a, b).saturating_add(c)
}

macro_rules! div_rem {
    ($($div:ident, $rem:ident, $ty:ty;)*) => {$(
        /// `div`. Section 9.7.1.8. PTX leaves division by zero open; all bits are set
        /// here. The smallest number divided by -1 wraps.
        #[inline]
        pub const fn $div(a: $ty, b: $ty) -> $ty {
            if b == 0 { !0 } else { a.wrapping_div(b) }
        }

        /// `rem`. Section 9.7.1.9. The result has the sign of `a`. PTX leaves division
        /// by zero open; all bits are set here.
        #[inline]
        pub const fn $rem(a: $ty, b: $ty) -> $ty {
            if b == 0 { !0 } else { a.wrapping_rem(b) }
        }
    )*};
}

div_rem! {
    div_u16, rem_u16, u16;
    div_s16, rem_s16, i16;
    div_u32, rem_u32, u32;
    div_s32, rem_s32, i32;
    div_u64, rem_u64, u64;
    div_s64, rem_s64, i64;
}

macro_rules! sad {
    ($($name:ident, $ty:ty;)*) => {$(
        /// `sad`: `c + |a - b|`, wrapping. Section 9.7.1.7.
        #[inline]
        pub const fn $name(a: $ty, b: $ty, c: $ty) -> $ty {
            c.wrapping_add(a.abs_diff(b) as $ty)
        }
    )*};
}

sad! {
    sad_u16, u16;
    sad_s16, i16;
    sad_u32, u32;
    sad_s32, i32;
    sad_u64, u64;
    sad_s64, i64;
}

/// `min.relu.s32`: the smaller, at least 0. Section 9.7.1.12.
#[inline]
pub fn min_relu_s32(a: i32, b: i32) -> i32 {
    a.min(b).max(0)
}

/// `max.relu.s32`: the larger, at least 0. Section 9.7.1.13.
#[inline]
pub fn max_relu_s32(a: i32, b: i32) -> i32 {
    a.max(b).max(0)
}

macro_rules! carry {
    ($ty:ty, $add:ident, $sub:ident, $mad_lo:ident, $mad_hi_u:ident, $mad_hi_s:ident, $signed:ty, $mul_hi_u:ident, $mul_hi_s:ident) => {
        /// `add.cc`, `addc`, `addc.cc`: `a + b + carry`, and the carry out. Sections
        /// 9.7.2.1 and 9.7.2.2.
        #[inline]
        pub const fn $add(a: $ty, b: $ty, carry: bool) -> ($ty, bool) {
            let (sum, first) = a.overflowing_add(b);
            let (sum, second) = sum.overflowing_add(carry as $ty);
            (sum, first | second)
        }

        /// `sub.cc`, `subc`, `subc.cc`: `a - (b + borrow)`, and the borrow out, which is
        /// what `CC.CF` holds after a subtraction. Sections 9.7.2.3 and 9.7.2.4.
        #[inline]
        pub const fn $sub(a: $ty, b: $ty, borrow: bool) -> ($ty, bool) {
            let (difference, first) = a.overflowing_sub(b);
            let (difference, second) = difference.overflowing_sub(borrow as $ty);
            (difference, first | second)
        }

        /// `mad.lo.cc`, `madc.lo`, `madc.lo.cc`: the lower half of `a * b`, plus `c`,
        /// plus `carry`, and the carry out; the same for signed operands. Sections
        /// 9.7.2.5 and 9.7.2.6.
        #[inline]
        pub const fn $mad_lo(a: $ty, b: $ty, c: $ty, carry: bool) -> ($ty, bool) {
            $add(a.wrapping_mul(b), c, carry)
        }

        /// `mad.hi.cc`, `madc.hi`, `madc.hi.cc` of unsigned operands.
        #[inline]
        pub const fn $mad_hi_u(a: $ty, b: $ty, c: $ty, carry: bool) -> ($ty, bool) {
            $add($mul_hi_u(a, b), c, carry)
        }

        /// `mad.hi.cc`, `madc.hi`, `madc.hi.cc` of signed operands, given and returned
        /// as bit patterns.
        #[inline]
        pub const fn $mad_hi_s(a: $ty, b: $ty, c: $ty, carry: bool) -> ($ty, bool) {
            $add($mul_hi_s(a as $signed, b as $signed) as $ty, c, carry)
        }
    };
}

carry!(
    u32,
    add_carry_32,
    sub_borrow_32,
    mad_lo_carry_32,
    mad_hi_carry_u32,
    mad_hi_carry_s32,
    i32,
    mul_hi_u32,
    mul_hi_s32
);
carry!(
    u64,
    add_carry_64,
    sub_borrow_64,
    mad_lo_carry_64,
    mad_hi_carry_u64,
    mad_hi_carry_s64,
    i64,
    mul_hi_u64,
    mul_hi_s64
);
