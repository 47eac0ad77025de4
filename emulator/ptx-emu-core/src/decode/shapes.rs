//! The shapes `d = f(a, b, c)`: a scalar function over the rows of a warp.
//!
//! All lanes are computed, active or not: the functions are total, and a loop
//! without conditions vectorises.

use super::{Decode, Decoded};
use crate::machine::code::Op;
use crate::machine::regs::{Bits, LANES, Regs, Scalar, Slot};

impl Decode<'_> {
    /// `d = f(a)`
    pub(crate) fn map1<A: Scalar, D: Scalar>(
        &mut self,
        f: impl Fn(A) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let (d, a) = (self.dst::<D>(0)?, self.src::<A>(1)?);
        Ok(Op::Alu(Box::new(move |regs, mask| unary(regs, mask, d, a, &f))))
    }

    /// `d = f(a, b)`
    pub(crate) fn map2<A: Scalar, B: Scalar, D: Scalar>(
        &mut self,
        f: impl Fn(A, B) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let (d, a, b) = (self.dst::<D>(0)?, self.src::<A>(1)?, self.src::<B>(2)?);
        Ok(Op::Alu(Box::new(move |regs, mask| {
            let mut out = [D::Bits::default(); LANES];
            let (a, b) = (A::Bits::row(regs, a), B::Bits::row(regs, b));
            for lane in 0..LANES {
                out[lane] = f(A::get(a[lane]), B::get(b[lane])).bits();
            }
            regs.put(d, mask, &out);
        })))
    }

    /// `d = f(a, b, c)`
    pub(crate) fn map3<A: Scalar, B: Scalar, C: Scalar, D: Scalar>(
        &mut self,
        f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let d = self.dst::<D>(0)?;
        let (a, b, c) = (self.src::<A>(1)?, self.src::<B>(2)?, self.src::<C>(3)?);
        Ok(Op::Alu(Box::new(move |regs, mask| {
            let mut out = [D::Bits::default(); LANES];
            let (a, b, c) = (A::Bits::row(regs, a), B::Bits::row(regs, b), C::Bits::row(regs, c));
            for lane in 0..LANES {
                out[lane] = f(A::get(a[lane]), B::get(b[lane]), C::get(c[lane])).bits();
            }
            regs.put(d, mask, &out);
        })))
    }

    /// `d = f(a, b, c, e)`
    pub(crate) fn map4<A: Scalar, B: Scalar, C: Scalar, E: Scalar, D: Scalar>(
        &mut self,
        f: impl Fn(A, B, C, E) -> D + Send + Sync + 'static,
    ) -> Decoded<Op> {
        let d = self.dst::<D>(0)?;
        let (a, b) = (self.src::<A>(1)?, self.src::<B>(2)?);
        let (c, e) = (self.src::<C>(3)?, self.src::<E>(4)?);
        Ok(Op::Alu(Box::new(move |regs, mask| {
            let mut out = [D::Bits::default(); LANES];
            let (a, b) = (A::Bits::row(regs, a), B::Bits::row(regs, b));
            let (c, e) = (C::Bits::row(regs, c), E::Bits::row(regs, e));
            for lane in 0..LANES {
                out[lane] =
                    f(A::get(a[lane]), B::get(b[lane]), C::get(c[lane]), E::get(e[lane])).bits();
            }
            regs.put(d, mask, &out);
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
