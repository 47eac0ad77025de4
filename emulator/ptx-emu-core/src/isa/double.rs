//! f64 arithmetic: PTX ISA 9.7.3. Complete; `.approx.ftz` reciprocals have the
//! accuracy that [`num::approx`](crate::num::approx) states.

use super::float::rounding;
use super::{Instructions, is_numeric, last_type};
use crate::Family;
use crate::decode::{Decode, Decoded, Reject, Type};
use crate::machine::code::Op;
use crate::num::{approx, compare, double};

/// Arithmetic on f64.
pub(super) const INSTRUCTIONS: Instructions = Instructions {
    accepts: |ins| is_numeric(&ins.opcode) && last_type(ins) == Some(Type::F64),
    decode: |d| Ok((Family::Double, decode(d)?)),
};

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if d.ins.opcode == "testp" {
        return super::compare::testp(d);
    }
    let explicit = rounding(d);
    let r = explicit.unwrap_or_default();
    let (approximate, ftz) = (d.has("approx"), d.has("ftz"));
    d.ty()?;
    match d.ins.opcode.as_str() {
        "add" => d.map2(move |a, b| double::add(a, b, r)),
        "sub" => d.map2(move |a, b| double::sub(a, b, r)),
        "mul" => d.map2(move |a, b| double::mul(a, b, r)),
        "fma" | "mad" => d.map3(move |a, b, c| double::fma(a, b, c, r)),
        "div" => d.map2(move |a, b| double::div(a, b, r)),
        "abs" => d.map1(double::abs),
        "neg" => d.map1(double::neg),
        "min" => d.map2(double::min),
        "max" => d.map2(double::max),
        "rcp" if approximate => d.map1(approx::rcp_f64),
        "rcp" => d.map1(move |a| double::rcp(a, r)),
        "sqrt" => d.map1(move |a| double::sqrt(a, r)),
        "rsqrt" => d.map1(move |a| approx::rsqrt_f64(a, ftz)),
        "copysign" => d.map2(compare::copysign_f64),
        other => Err(Reject::unsupported(format!("{other}.f64"))),
    }
}
