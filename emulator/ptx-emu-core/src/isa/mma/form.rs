//! The forms of `mma.sync`: the syntax of PTX ISA 9.7.14.5.14.

use super::sync_aligned;
use crate::decode::{Decode, Decoded, Reject};
use crate::tensor::element::{Element, ScaleType, ScaleVec};

/// Type of `C` or `D`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::isa) enum Accumulator {
    F16,
    F32,
    F64,
    S32,
}

impl Accumulator {
    /// Width of an element in bits.
    pub(in crate::isa) const fn bits(self) -> usize {
        match self {
            Self::F16 => 16,
            Self::F32 | Self::S32 => 32,
            Self::F64 => 64,
        }
    }
}

/// The kind of product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// f16 `m8n8k4`: four products of quads, in any layout.
    Quad {
        a_row: bool,
        b_row: bool,
    },
    Float,
    Scaled(Scaling),
    Double,
    Integer {
        saturate: bool,
    },
    Bits {
        xor: bool,
    },
}

/// Block scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scaling {
    pub(super) vec: ScaleVec,
    pub(super) ty: ScaleType,
}

/// A form of the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) a: Element,
    pub(super) b: Element,
    pub(super) c: Accumulator,
    pub(super) d: Accumulator,
    /// Bits of a register that an element takes.
    pub(super) container: u32,
    pub(super) kind: Kind,
    /// Whether it names its kind with `.kind::`.
    pub(super) named: bool,
}

impl Form {
    /// Takes the modifiers.
    pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Self> {
        sync_aligned(d)?;
        let (m, n, k) = d.pick(shape).ok_or_else(|| Reject::unsupported("no known shape"))?;
        let mut layout = || d.pick(|m| ["row", "col"].into_iter().find(|name| *name == m));
        let layouts = (layout(), layout());
        let kind = d.pick(|m| m.strip_prefix("kind::").map(str::to_owned));
        let scaled = d.has("block_scale");
        let vec = if scaled { d.pick(scale_vec) } else { None };
        let bits = d.pick(|m| match m {
            "xor" => Some(true),
            "and" => Some(false),
            _ => None,
        });
        if bits.is_some() != d.has("popc") {
            return Err(Reject::unsupported("one of .popc and its operation without the other"));
        }
        let d_type = take(d, accumulator, "type of D")?;
        let a = take(d, Element::parse, "type of A")?;
        let b = take(d, Element::parse, "type of B")?;
        let c = take(d, accumulator, "type of C")?;
        let scale = if scaled { d.pick(ScaleType::parse) } else { None };
        if scaled != kind.as_deref().is_some_and(|kind| kind.starts_with("mx")) {
            return Err(Reject::unsupported("block scales without their kind, or the reverse"));
        }
        let family = Family::of(a, b, kind.as_deref());
        let named = kind.is_some();
        let kind = match (family, kind.as_deref(), bits) {
            (Some(Family::F16), None, None) if (m, n, k) == (8, 8, 4) => {
                let (Some(a), Some(b)) = layouts else {
                    return Err(Reject::unsupported("no layouts"));
                };
                Kind::Quad { a_row: a == "row", b_row: b == "row" }
            }
            _ if layouts != (Some("row"), Some("col")) => {
                return Err(Reject::unsupported("layouts other than .row.col"));
            }
            (Some(Family::Bits), None, Some(xor)) => Kind::Bits { xor },
            (_, _, Some(_)) | (Some(Family::Bits), ..) => {
                return Err(Reject::unsupported("single bits need .xor.popc or .and.popc"));
            }
            (Some(Family::Integer), None, _) => Kind::Integer { saturate: d.has("satfinite") },
            (Some(Family::Double), None, _) => Kind::Double,
            (Some(_), Some(name), _) if scaled => Kind::Scaled(scaling(name, vec, scale)?),
            (Some(_), ..) => Kind::Float,
            (None, ..) => {
                let why = format!("operands {a:?} and {b:?}");
                return Err(Reject::unsupported(why));
            }
        };
        let form = Self { m, k, a, b, c, d: d_type, container: container(a, family), kind, named };
        if n == 8 && form.exists(family) {
            Ok(form)
        } else {
            let why = format!("m{m}n{n}k{k} of {a:?} and {b:?} into {d_type:?}");
            Err(Reject::unsupported(why))
        }
    }

    /// Whether shape and accumulators go with the operands.
    fn exists(&self, family: Option<Family>) -> bool {
        use Accumulator::{F16, F32, F64, S32};
        let shape = (self.m, self.k);
        let both = (self.c, self.d);
        let halves = matches!(self.c, F16 | F32) && matches!(self.d, F16 | F32);
        let single = both == (F32, F32);
        let integer = both == (S32, S32);
        match family {
            Some(Family::F16) => match shape {
                (8, 4) => halves && both != (F32, F16),
                // ptxas wants the types of C and D to be the same.
                (16, 8 | 16) => halves && self.c == self.d,
                _ => false,
            },
            Some(Family::Bf16) => single && matches!(shape, (16, 8 | 16)),
            Some(Family::Tf32) => single && matches!(shape, (16, 4 | 8)),
            Some(Family::F8) => halves && self.c == self.d && matches!(shape, (16, 16 | 32)),
            Some(Family::F8f6f4) => match self.kind {
                Kind::Scaled(_) => single && shape == (16, 32),
                _ => halves && self.c == self.d && shape == (16, 32),
            },
            Some(Family::F4) => single && shape == (16, 64),
            Some(Family::Double) => {
                both == (F64, F64) && matches!(shape, (8, 4) | (16, 4 | 8 | 16))
            }
            Some(Family::Integer) if self.container == 8 => {
                integer && matches!(shape, (8, 16) | (16, 16 | 32))
            }
            Some(Family::Integer) => integer && matches!(shape, (8, 32) | (16, 32 | 64)),
            Some(Family::Bits) => integer && matches!(shape, (8, 128) | (16, 128 | 256)),
            None => false,
        }
    }
}

/// Operand types that come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    F16,
    Bf16,
    Tf32,
    F8,
    F8f6f4,
    F4,
    Double,
    Integer,
    Bits,
}

impl Family {
    fn of(a: Element, b: Element, kind: Option<&str>) -> Option<Self> {
        let f8 = |e| matches!(e, Element::E4m3 | Element::E5m2);
        Some(match (a, b) {
            (Element::E2m1, Element::E2m1) if matches!(kind, Some("mxf4" | "mxf4nvf4")) => Self::F4,
            _ if matches!(kind, Some("f8f6f4" | "mxf8f6f4")) => {
                return (a.is_f8f6f4() && b.is_f8f6f4()).then_some(Self::F8f6f4);
            }
            _ if kind.is_some() => return None,
            (Element::F16, Element::F16) => Self::F16,
            (Element::Bf16, Element::Bf16) => Self::Bf16,
            (Element::Tf32, Element::Tf32) => Self::Tf32,
            (Element::F64, Element::F64) => Self::Double,
            (Element::B1, Element::B1) => Self::Bits,
            _ if f8(a) && f8(b) => Self::F8,
            _ if a.is_integer() && b.is_integer() && a.bits() == b.bits() => Self::Integer,
            _ => return None,
        })
    }
}

/// Bits of a register that an element takes: the f8f6f4 kinds use bytes for all.
fn container(a: Element, family: Option<Family>) -> u32 {
    match family {
        Some(Family::F8f6f4) => 8,
        _ => a.bits(),
    }
}

fn scaling(kind: &str, vec: Option<ScaleVec>, ty: Option<ScaleType>) -> Decoded<Scaling> {
    let ty = ty.ok_or_else(|| Reject::unsupported("no scale type"))?;
    let vec = match (kind, vec, ty) {
        ("mxf8f6f4", None | Some(ScaleVec::X1), ScaleType::Ue8m0) => ScaleVec::X1,
        ("mxf4", None | Some(ScaleVec::X2), ScaleType::Ue8m0) => ScaleVec::X2,
        ("mxf4nvf4", Some(ScaleVec::X2), ScaleType::Ue8m0) => ScaleVec::X2,
        ("mxf4nvf4", Some(ScaleVec::X4), _) => ScaleVec::X4,
        _ => {
            let why = format!("kind::{kind} with scale vector {vec:?} of {ty:?}");
            return Err(Reject::unsupported(why));
        }
    };
    Ok(Scaling { vec, ty })
}

fn take<T>(d: &mut Decode<'_>, parse: impl Fn(&str) -> Option<T>, what: &str) -> Decoded<T> {
    d.pick(parse).ok_or_else(|| Reject::unsupported(format!("no known {what}")))
}

/// The type of `C` or `D` that a modifier names.
pub(in crate::isa) fn accumulator(name: &str) -> Option<Accumulator> {
    Some(match name {
        "f16" => Accumulator::F16,
        "f32" => Accumulator::F32,
        "f64" => Accumulator::F64,
        "s32" => Accumulator::S32,
        _ => return None,
    })
}

fn scale_vec(name: &str) -> Option<ScaleVec> {
    Some(match name {
        "scale_vec::1X" => ScaleVec::X1,
        "scale_vec::2X" => ScaleVec::X2,
        "scale_vec::4X" => ScaleVec::X4,
        _ => return None,
    })
}

/// `m16n8k32`
pub(in crate::isa) fn shape(name: &str) -> Option<(usize, usize, usize)> {
    let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}
