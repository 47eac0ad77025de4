//! The shapes `d = f(a, b, c)`: a scalar function over the rows of a warp.
//!
//! All lanes are computed, active or not: the functions are total, and a loop
//! without conditions vectorises.

use super::{Decode, Decoded};
use crate::machine::code::Op;
use crate::machine::regs::{Bits, LANES, Regs, Scalar, Slot};
use ptx_emu_simd::{Host, Plain};

/// Makes instructions of such shapes, for a host's vectors.
pub(crate) struct On<'d, 'a, H> {
    decode: &'d mut Decode<'a>,
    host: H,
}

impl<'a> Decode<'a> {
    /// Selects a host's vectors.
    pub(crate) fn on<H: Host>(&mut self, host: H) -> On<'_, 'a, H> {
        On { decode: self, host }
    }

    /// `d = f(a)`
    pub(crate) fn map1<A: Scalar, D: Scalar>(
        &mut self,
        f: impl Fn(A) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        self.on(Plain).map1(f)
    }

    /// `d = f(a, b)`
    pub(crate) fn map2<A: Scalar, B: Scalar, D: Scalar>(
        &mut self,
        f: impl Fn(A, B) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        self.on(Plain).map2(f)
    }

    /// `d = f(a, b, c)`
    pub(crate) fn map3<A: Scalar, B: Scalar, C: Scalar, D: Scalar>(
        &mut self,
        f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        self.on(Plain).map3(f)
    }
}

impl<H: Host> On<'_, '_, H> {
    /// `d = f(a)`
    pub(crate) fn map1<A: Scalar, D: Scalar>(
        self,
        f: impl Fn(A) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let On { decode, host } = self;
        let (d, a) = (decode.dst::<D>(0)?, decode.src::<A>(1)?);
        Ok(Op::Alu(Box::new(move |regs, mask| {
            host.run(|| unary(regs, mask, d, a, &f));
        })))
    }

    /// `d = f(a, b)`
    pub(crate) fn map2<A: Scalar, B: Scalar, D: Scalar>(
        self,
        f: impl Fn(A, B) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let On { decode, host } = self;
        let (d, a, b) = (decode.dst::<D>(0)?, decode.src::<A>(1)?, decode.src::<B>(2)?);
        Ok(Op::Alu(Box::new(move |regs, mask| {
            host.run(|| {
                let mut out = [D::Bits::default(); LANES];
                let (a, b) = (A::Bits::row(regs, a), B::Bits::row(regs, b));
                for lane in 0..LANES {
                    out[lane] = f(A::get(a[lane]), B::get(b[lane])).bits();
                }
                regs.put(d, mask, &out);
            });
        })))
    }

    /// `d = f(a, b, c)`
    pub(crate) fn map3<A: Scalar, B: Scalar, C: Scalar, D: Scalar>(
        self,
        f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let On { decode, host } = self;
        let d = decode.dst::<D>(0)?;
        let (a, b, c) = (decode.src::<A>(1)?, decode.src::<B>(2)?, decode.src::<C>(3)?);
        Ok(Op::Alu(Box::new(move |regs, mask| {
            host.run(|| {
                let mut out = [D::Bits::default(); LANES];
                let (a, b, c) =
                    (A::Bits::row(regs, a), B::Bits::row(regs, b), C::Bits::row(regs, c));
                for lane in 0..LANES {
                    out[lane] = f(A::get(a[lane]), B::get(b[lane]), C::get(c[lane])).bits();
                }
                regs.put(d, mask, &out);
            });
        })))
    }

    /// `d = f(a, b, c, e)`
    pub(crate) fn map4<A: Scalar, B: Scalar, C: Scalar, E: Scalar, D: Scalar>(
        self,
        f: impl Fn(A, B, C, E) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let On { decode, host } = self;
        let d = decode.dst::<D>(0)?;
        let (a, b) = (decode.src::<A>(1)?, decode.src::<B>(2)?);
        let (c, e) = (decode.src::<C>(3)?, decode.src::<E>(4)?);
        Ok(Op::Alu(Box::new(move |regs, mask| {
            host.run(|| {
                let mut out = [D::Bits::default(); LANES];
                let (a, b) = (A::Bits::row(regs, a), B::Bits::row(regs, b));
                let (c, e) = (C::Bits::row(regs, c), E::Bits::row(regs, e));
                for lane in 0..LANES {
                    out[lane] =
                        f(A::get(a[lane]), B::get(b[lane]), C::get(c[lane]), E::get(e[lane]))
                            .bits();
                }
                regs.put(d, mask, &out);
            });
        })))
    }
}

/// `d = f(a)` on rows.
#[inline(always)]
pub(crate) fn unary<A: Scalar, D: Scalar>(
    regs: &mut Regs,
    mask: u32,
    d: Slot,
    a: Slot,
    f: &impl Fn(A) -> D,
) {
    let mut out = [D::Bits::default(); LANES];
    let a = A::Bits::row(regs, a);
    for lane in 0..LANES {
        out[lane] = f(A::get(a[lane])).bits();
    }
    regs.put(d, mask, &out);
}
