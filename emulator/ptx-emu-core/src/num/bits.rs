//! Logic, shifts and bit fields: PTX ISA sections 9.7.1.14 to 9.7.1.22, 9.7.8 and
//! 9.7.9.7 (`prmt`).
//!
//! `popc`, `clz` and `brev` are the host's `count_ones`, `leading_zeros` and
//! `reverse_bits`.

/// The meaning of an out-of-range operand of `shf`, `bmsk` and `szext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShiftMode {
    /// `.clamp`
    Clamp,
    /// `.wrap`: only the low five bits count.
    Wrap,
}

macro_rules! shifts {
    ($($ty:ty, $signed:ty, $shl:ident, $shr:ident, $shr_signed:ident;)*) => {$(
        /// `shl`: amounts at or beyond the width give 0. Section 9.7.8.8.
        #[inline]
        pub const fn $shl(a: $ty, amount: u32) -> $ty {
            if amount < <$ty>::BITS { a << amount } else { 0 }
        }

        /// `shr` of unsigned and untyped values: amounts at or beyond the width give 0.
        /// Section 9.7.8.9.
        #[inline]
        pub const fn $shr(a: $ty, amount: u32) -> $ty {
            if amount < <$ty>::BITS { a >> amount } else { 0 }
        }

        /// `shr` of signed values: amounts at or beyond the width fill with the sign.
        /// Section 9.7.8.9.
        #[inline]
        pub const fn $shr_signed(a: $signed, amount: u32) -> $signed {
            a >> (if amount < <$ty>::BITS { amount } else { <$ty>::BITS - 1 })
        }
    )*};
}

shifts! {
    u16, i16, shl_b16, shr_u16, shr_s16;
    u32, i32, shl_b32, shr_u32, shr_s32;
    u64, i64, shl_b64, shr_u64, shr_s64;
}

macro_rules! fields {
    ($($ty:ty, $signed:ty, $count:expr, $bfe:ident, $bfe_signed:ident, $bfi:ident, $bfind:ident, $bfind_signed:ident;)*) => {$(
        /// `bfe` of an unsigned value: `len` bits from `pos`, zero-extended. As on an H200, a
        /// 32-bit value takes only the low eight bits of `pos` and `len`, a 64-bit value all of
        /// them; PTX limits both to 255. Section
        /// 9.7.1.19.
        #[inline]
        pub const fn $bfe(a: $ty, pos: u32, len: u32) -> $ty {
            let (pos, len) = (pos & $count, len & $count);
            let field = if pos < <$ty>::BITS { a >> pos } else { 0 };
            if len < <$ty>::BITS { field & ((1 << len) - 1) } else { field }
        }

        /// `bfe` of a signed value: as for an unsigned one, extended by the field's
        /// sign, which is the value's where the field reaches beyond it.
        #[inline]
        pub const fn $bfe_signed(a: $signed, pos: u32, len: u32) -> $signed {
            let (pos, len) = (pos & $count, len & $count);
            let field = a >> (if pos < <$ty>::BITS { pos } else { <$ty>::BITS - 1 });
            if len == 0 {
                0
            } else if len < <$ty>::BITS {
                let unused = <$ty>::BITS - len;
                field << unused >> unused
            } else {
                field
            }
        }

        /// `bfi`: `b` with `len` bits from `pos` replaced by the low bits of `a`. `pos`
        /// and `len` count as in `bfe`. Section 9.7.1.20.
        #[inline]
        pub const fn $bfi(a: $ty, b: $ty, pos: u32, len: u32) -> $ty {
            let (pos, len) = (pos & $count, len & $count);
            if pos >= <$ty>::BITS {
                return b;
            }
            let mask = if len < <$ty>::BITS { (1 << len) - 1 } else { <$ty>::MAX };
            (b & !(mask << pos)) | ((a & mask) << pos)
        }

        /// `bfind` of an unsigned value: position of the highest one, or with
        /// `shiftamt` the left shift that brings it to the top; `0xffffffff` if there
        /// is none. Section 9.7.1.16.
        #[inline]
        pub const fn $bfind(a: $ty, shiftamt: bool) -> u32 {
            if a == 0 {
                u32::MAX
            } else if shiftamt {
                a.leading_zeros()
            } else {
                <$ty>::BITS - 1 - a.leading_zeros()
            }
        }

        /// `bfind` of a signed value: as for an unsigned one, of the highest bit that
        /// differs from the sign.
        #[inline]
        pub const fn $bfind_signed(a: $signed, shiftamt: bool) -> u32 {
            $bfind((a ^ (a >> (<$ty>::BITS - 1))) as $ty, shiftamt)
        }
    )*};
}

fields! {
    u32, i32, 0xff, bfe_u32, bfe_s32, bfi_b32, bfind_u32, bfind_s32;
    u64, i64, u32::MAX, bfe_u64, bfe_s64, bfi_b64, bfind_u64, bfind_s64;
}

/// `fns`: position of the `offset`-th one of `mask` from bit `base`, upwards if
/// `offset` is positive, downwards if negative; `0xffffffff` if there is none. An
/// `offset` of 0 asks for bit `base` itself. Section 9.7.1.17. PTX leaves `base > 31`
/// open; nothing is found then.
pub const fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if offset == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    let mut left = offset.unsigned_abs();
    let mut pos = base as i32;
    while pos >= 0 && pos < 32 {
        left -= mask >> pos & 1;
        if left == 0 {
            return pos as u32;
        }
        pos += offset.signum();
    }
    u32::MAX
}

/// `szext.s32`: the low `n` bits of `a`, sign-extended. Section 9.7.1.21.
#[inline]
pub const fn szext_s32(a: i32, n: u32, mode: ShiftMode) -> i32 {
    match (n, mode) {
        (32.., ShiftMode::Clamp) => a,
        _ if n & 31 == 0 => 0,
        _ => {
            let unused = 32 - (n & 31);
            a << unused >> unused
        }
    }
}

/// `szext.u32`: the low `n` bits of `a`, zero-extended. Section 9.7.1.21.
#[inline]
pub const fn szext_u32(a: u32, n: u32, mode: ShiftMode) -> u32 {
    match (n, mode) {
        (32.., ShiftMode::Clamp) => a,
        _ => a & ((1 << (n & 31)) - 1),
    }
}

/// `bmsk`: ones in bits `pos` up to `pos + len - 1`. Section 9.7.1.22.
#[inline]
pub const fn bmsk(pos: u32, len: u32, mode: ShiftMode) -> u32 {
    if matches!(mode, ShiftMode::Clamp) && pos >= 32 {
        return 0;
    }
    let from_pos = u32::MAX << (pos & 31);
    if matches!(mode, ShiftMode::Clamp) && len >= 32 {
        return from_pos;
    }
    let end = (pos & 31) + (len & 31);
    if end >= 32 { from_pos } else { from_pos & !(u32::MAX << end) }
}

/// `lop3`: bit `4 a + 2 b + c` of `lut` for each bit position. Section 9.7.8.6.
#[inline]
pub const fn lop3(a: u32, b: u32, c: u32, lut: u8) -> u32 {
    // One all-ones or all-zeros word per table entry, then three levels of selection.
    const fn entry(lut: u8, at: u32) -> u32 {
        ((lut as u32 >> at) & 1).wrapping_neg()
    }
    const fn pick(select: u32, zero: u32, one: u32) -> u32 {
        zero ^ (select & (zero ^ one))
    }
    let c00 = pick(c, entry(lut, 0), entry(lut, 1));
    let c01 = pick(c, entry(lut, 2), entry(lut, 3));
    let c10 = pick(c, entry(lut, 4), entry(lut, 5));
    let c11 = pick(c, entry(lut, 6), entry(lut, 7));
    pick(a, pick(b, c00, c01), pick(b, c10, c11))
}

const fn funnel_amount(amount: u32, mode: ShiftMode) -> u32 {
    match mode {
        ShiftMode::Clamp if amount > 32 => 32,
        ShiftMode::Clamp => amount,
        ShiftMode::Wrap => amount & 31,
    }
}

const fn concat(hi: u32, lo: u32) -> u64 {
    (hi as u64) << 32 | lo as u64
}

/// `shf.l`: bits 63:32 of `{hi, lo}` shifted left. PTX's operands are `lo`, `hi`, amount.
/// Section 9.7.8.7.
#[inline]
pub const fn shf_l(lo: u32, hi: u32, amount: u32, mode: ShiftMode) -> u32 {
    ((concat(hi, lo) << funnel_amount(amount, mode)) >> 32) as u32
}

/// `shf.r`: bits 31:0 of `{hi, lo}` shifted right. PTX's operands are `lo`, `hi`,
/// amount. Section 9.7.8.7.
#[inline]
pub const fn shf_r(lo: u32, hi: u32, amount: u32, mode: ShiftMode) -> u32 {
    (concat(hi, lo) >> funnel_amount(amount, mode)) as u32
}

/// Modes of `prmt` in which the low two bits of the third operand pick one of four
/// fixed permutations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrmtMode {
    /// `.f4e`: four bytes forward from the given one.
    F4e,
    /// `.b4e`: four bytes backward.
    B4e,
    /// `.rc8`: one byte, four times.
    Rc8,
    /// `.ecl`: clamped to at least the given byte.
    Ecl,
    /// `.ecr`: clamped to at most the given byte.
    Ecr,
    /// `.rc16`: one half, twice.
    Rc16,
}

impl PrmtMode {
    /// The selector that does the same in the mode without a name.
    #[inline]
    pub const fn selector(self, c: u32) -> u32 {
        let table = match self {
            Self::F4e => [0x3210, 0x4321, 0x5432, 0x6543],
            Self::B4e => [0x5670, 0x6701, 0x7012, 0x0123],
            Self::Rc8 => [0x0000, 0x1111, 0x2222, 0x3333],
            Self::Ecl => [0x3210, 0x3211, 0x3222, 0x3333],
            Self::Ecr => [0x0000, 0x1110, 0x2210, 0x3210],
            Self::Rc16 => [0x1010, 0x3232, 0x1010, 0x3232],
        };
        table[(c & 3) as usize]
    }
}

/// `prmt`: byte `i` of the result is the byte of `{b, a}` that nibble `i` of `selector`
/// names by its low three bits, or that byte's sign eight times if the nibble's top bit
/// is set. Section 9.7.9.7. The other modes go through [`PrmtMode::selector`].
#[inline]
pub const fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let source = concat(b, a);
    let b0 = (source >> ((selector & 7) * 8)) as u32 & 0xff;
    let b1 = (source >> ((selector >> 4 & 7) * 8)) as u32 & 0xff;
    let b2 = (source >> ((selector >> 8 & 7) * 8)) as u32 & 0xff;
    let b3 = (source >> ((selector >> 12 & 7) * 8)) as u32 & 0xff;
    let bytes = b0 | b1 << 8 | b2 << 16 | b3 << 24;
    // The top bit of nibble i, at bit 0 of byte i.
    let replicate = (selector >> 3 & 1)
        | (selector >> 7 & 1) << 8
        | (selector >> 11 & 1) << 16
        | (selector >> 15 & 1) << 24;
    let mask = replicate * 0xff;
    let signs = (bytes >> 7 & 0x0101_0101) * 0xff;
    (bytes & !mask) | (signs & mask)
}
