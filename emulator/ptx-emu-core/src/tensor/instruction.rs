//! Instruction descriptors of `tcgen05.mma`: PTX ISA 9.7.16.4.2, shapes 9.7.16.2.1.

use super::TensorError;
use super::element::{Element, ScaleType, ScaleVec};
use super::shared::Major;
use super::tile::Packing;

/// `.kind` of `tcgen05.mma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `kind::f16`
    F16,
    /// `kind::tf32`
    Tf32,
    /// `kind::f8f6f4`
    F8f6f4,
    /// `kind::i8`
    I8,
    /// `kind::mxf8f6f4`: one ue8m0 scale for 32 elements.
    Mxf8f6f4,
    /// `kind::mxf4`: one ue8m0 scale for 32 elements.
    Mxf4,
    /// `kind::mxf4nvf4`: one scale for 16 (4X) or 32 (2X) elements.
    Mxf4nvf4(ScaleVec),
}

impl Kind {
    /// The kind that PTX modifiers name: what follows `kind::`, and `.scale_vec`,
    /// which for `.block16` is 4X and for `.block32` 1X or 2X. It may be absent where
    /// it has a default.
    #[must_use]
    pub fn parse(name: &str, scale_vec: Option<ScaleVec>) -> Option<Self> {
        Some(match (name, scale_vec) {
            ("f16", None) => Self::F16,
            ("tf32", None) => Self::Tf32,
            ("f8f6f4", None) => Self::F8f6f4,
            ("i8", None) => Self::I8,
            ("mxf8f6f4", None | Some(ScaleVec::X1)) => Self::Mxf8f6f4,
            ("mxf4", None | Some(ScaleVec::X2)) => Self::Mxf4,
            ("mxf4nvf4", Some(vec @ (ScaleVec::X2 | ScaleVec::X4))) => Self::Mxf4nvf4(vec),
            _ => return None,
        })
    }

    /// Elements of K an instruction takes (dense).
    #[must_use]
    pub const fn k(self) -> usize {
        match self {
            Self::Tf32 => 8,
            Self::F16 => 16,
            Self::F8f6f4 | Self::I8 | Self::Mxf8f6f4 => 32,
            Self::Mxf4 | Self::Mxf4nvf4(_) => 64,
        }
    }

    /// Packing of operands in shared memory.
    #[must_use]
    pub const fn packing(self) -> Packing {
        match self {
            Self::F8f6f4 | Self::Mxf8f6f4 => Packing::Padded,
            _ => Packing::Dense,
        }
    }

    /// Scales along K, for the block-scaled kinds.
    #[must_use]
    pub const fn scale_vec(self) -> Option<ScaleVec> {
        match self {
            Self::Mxf8f6f4 => Some(ScaleVec::X1),
            Self::Mxf4 => Some(ScaleVec::X2),
            Self::Mxf4nvf4(vec) => Some(vec),
            _ => None,
        }
    }
}

/// Type of the accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accumulator {
    /// f16, in the low half of a cell.
    F16,
    /// f32
    F32,
    /// s32
    S32,
}

/// Block scales of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scaling {
    /// Type of the scales.
    pub scale: ScaleType,
    /// Byte of a cell that holds the first scale of a row of `A`.
    pub a_id: u32,
    /// Byte of a cell that holds the first scale of a column of `B`.
    pub b_id: u32,
}

/// A decoded instruction descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstructionDescriptor {
    /// Kind it was decoded for.
    pub kind: Kind,
    /// Type of the accumulator.
    pub d: Accumulator,
    /// Type of `A`.
    pub a: Element,
    /// Type of `B`.
    pub b: Element,
    /// `A` is negated.
    pub negate_a: bool,
    /// `B` is negated.
    pub negate_b: bool,
    /// Contiguous dimension of `A` in shared memory.
    pub a_major: Major,
    /// Contiguous dimension of `B`.
    pub b_major: Major,
    /// Rows of `D`: of the CTA pair with `cta_group::2`.
    pub m: usize,
    /// Columns of `D`.
    pub n: usize,
    /// `A` is sparse (`.sp`).
    pub sparse: bool,
    /// Sparsity selector.
    pub sparsity: u32,
    /// Integers are clamped.
    pub saturate: bool,
    /// Largest shift of `.ws`.
    pub max_shift: u32,
    /// Block scales, for the block-scaled kinds.
    pub scaling: Option<Scaling>,
}

const WHAT: &str = "instruction descriptor";

impl InstructionDescriptor {
    /// Decodes the descriptor of an instruction of that kind; `ctas` is the
    /// `cta_group`, 1 or 2.
    ///
    /// # Errors
    ///
    /// Types, shapes, scale ids and reserved bits that the kind does not have.
    pub fn decode(kind: Kind, ctas: u32, bits: u32) -> Result<Self, TensorError> {
        let field = |at: u32, width: u32| bits >> at & ((1 << width) - 1);
        let zero = |name, at, width| match field(at, width) {
            0 => Ok(()),
            actual => Err(TensorError::new(WHAT, name, "0", format!("{actual} in {bits:#010x}"))),
        };
        let flag = |at| field(at, 1) != 0;
        let major = |at| if flag(at) { Major::Mn } else { Major::K };
        let packed = matches!(kind, Kind::Mxf4 | Kind::Mxf4nvf4(_));
        let (a_code, b_code) = (field(7, 3), field(10, if packed { 2 } else { 3 }));
        if packed {
            zero("bit 12", 12, 1)?;
            zero("transpose, bits 15-16", 15, 2)?;
        }
        let a = element(kind, "type of A, bits 7-9", a_code)?;
        let b = element(kind, "type of B, bits 10-12", b_code)?;
        if kind == Kind::F16 && a != b {
            let required = format!("{a:?}, as A");
            return Err(TensorError::new(
                WHAT,
                "type of B, bits 10-12",
                required,
                format!("{b:?}"),
            ));
        }
        let (d, m, scaling) = match kind.scale_vec() {
            None => {
                zero("bit 6", 6, 1)?;
                zero("bit 23", 23, 1)?;
                zero("bit 29", 29, 1)?;
                if kind != Kind::I8 {
                    zero("saturate, bit 3", 3, 1)?;
                } else {
                    zero("negate, bits 13-14", 13, 2)?;
                }
                (accumulator(kind, field(4, 2))?, field(24, 5) << 4, None)
            }
            Some(vec) => {
                zero("sparsity selector, bits 0-1", 0, 2)?;
                zero("bit 3", 3, 1)?;
                zero("bit 6", 6, 1)?;
                zero("bits 24-26", 24, 3)?;
                zero("bit 31, K", 31, 1)?;
                let scaling = scaling(kind, vec, field(23, 1), field(29, 2), field(4, 2))?;
                (Accumulator::F32, field(27, 2) << 7, Some(scaling))
            }
        };
        let n = field(17, 6) << 3;
        check_shape(kind, ctas, m, n)?;
        Ok(Self {
            kind,
            d,
            a,
            b,
            negate_a: flag(13),
            negate_b: flag(14),
            a_major: major(15),
            b_major: major(16),
            m: m as usize,
            n: n as usize,
            sparse: flag(2),
            sparsity: if scaling.is_none() { field(0, 2) } else { 0 },
            saturate: scaling.is_none() && flag(3),
            max_shift: if scaling.is_none() { field(30, 2) } else { 0 },
            scaling,
        })
    }
}

fn element(kind: Kind, name: &'static str, code: u32) -> Result<Element, TensorError> {
    let (known, required): (&[_], _) = match kind {
        Kind::F16 => (&[(0, Element::F16), (1, Element::Bf16)], "0 (f16) or 1 (bf16)"),
        Kind::Tf32 => (&[(2, Element::Tf32)], "2 (tf32)"),
        Kind::I8 => (&[(0, Element::U8), (1, Element::S8)], "0 (u8) or 1 (s8)"),
        Kind::F8f6f4 | Kind::Mxf8f6f4 => (
            &[
                (0, Element::E4m3),
                (1, Element::E5m2),
                (3, Element::E2m3),
                (4, Element::E3m2),
                (5, Element::E2m1),
            ],
            "0 (e4m3), 1 (e5m2), 3 (e2m3), 4 (e3m2) or 5 (e2m1)",
        ),
        Kind::Mxf4 | Kind::Mxf4nvf4(_) => (&[(1, Element::E2m1)], "1 (e2m1)"),
    };
    match known.iter().find(|(known, _)| *known == code) {
        Some((_, element)) => Ok(*element),
        None => Err(TensorError::new(WHAT, name, required, code)),
    }
}

fn accumulator(kind: Kind, code: u32) -> Result<Accumulator, TensorError> {
    let required = match (kind, code) {
        (Kind::F16 | Kind::F8f6f4, 0) => return Ok(Accumulator::F16),
        (Kind::F16 | Kind::F8f6f4 | Kind::Tf32, 1) => return Ok(Accumulator::F32),
        (Kind::I8, 2) => return Ok(Accumulator::S32),
        (Kind::I8, _) => "2 (s32)",
        (Kind::Tf32, _) => "1 (f32)",
        _ => "0 (f16) or 1 (f32)",
    };
    Err(TensorError::new(WHAT, "type of D, bits 4-5", required, code))
}

fn scaling(
    kind: Kind,
    vec: ScaleVec,
    scale: u32,
    a_id: u32,
    b_id: u32,
) -> Result<Scaling, TensorError> {
    let scale = match (kind, scale) {
        (_, 1) => ScaleType::Ue8m0,
        (Kind::Mxf4nvf4(ScaleVec::X4), _) => ScaleType::Ue4m3,
        (_, code) => {
            return Err(TensorError::new(WHAT, "scale type, bit 23", "1 (ue8m0)", code));
        }
    };
    for (name, id) in [("scale A id, bits 29-30", a_id), ("scale B id, bits 4-5", b_id)] {
        if !vec.accepts_id(id) {
            let required = format!("a multiple of {}, below 4", vec.count());
            return Err(TensorError::new(WHAT, name, required, id));
        }
    }
    Ok(Scaling { scale, a_id, b_id })
}

fn check_shape(kind: Kind, ctas: u32, m: u32, n: u32) -> Result<(), TensorError> {
    let scaled = kind.scale_vec().is_some();
    let (ms, step): (&[u32], u32) = match (ctas, scaled) {
        (1, false) => (&[64, 128], 8),
        (1, true) => (&[128], 8),
        (2, _) => (&[128, 256], 16),
        _ => return Err(TensorError::new("tcgen05.mma", "cta_group", "1 or 2", ctas)),
    };
    if !ms.contains(&m) {
        return Err(TensorError::new(WHAT, "M", format!("one of {ms:?}"), m));
    }
    if n == 0 || n > 256 || !n.is_multiple_of(step) {
        let required = format!("a multiple of {step}, up to 256");
        return Err(TensorError::new(WHAT, "N", required, n));
    }
    Ok(())
}
