//! Shape strings (`gemv:7168x16384x1`) and the named sets of shapes.

mod groups;
mod sets;

use std::fmt;
use std::str::FromStr;

use fp4_formats::{BlockFormat, Nvfp4};
use serde::Serialize;
use thiserror::Error;

pub use groups::{GroupedShape, MixtureShape};
pub use nvfp4::shape::{GemmShape, GemvShape, MAX_DIM};
pub use sets::{
    DUAL_CONTEST, DUAL_CORRECTNESS, GEMM_CONTEST, GEMM_CORRECTNESS, GEMM_LARGE, GEMV_CONTEST,
    GEMV_CORRECTNESS, QUANTIZE, decode, gemv_ragged, grouped_contest, set,
};

/// The reasons why a shape string cannot be used. All of them are bad input.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// The part before the colon is not an operation of this project.
    #[error(
        "unknown operation `{op}` in shape `{text}`; known: gemv, gemm, dual, grouped, \
         grouped-dual, moe, quantize, norm, act, mlp"
    )]
    UnknownOp {
        /// The whole string.
        text: String,
        /// The unknown word.
        op: String,
    },
    /// The string does not have the operation's form.
    #[error("shape `{text}` does not have the form {expected}")]
    Form {
        /// The whole string.
        text: String,
        /// The form, such as `gemv:MxKxL`.
        expected: &'static str,
    },
    /// A dimension is zero.
    #[error("{field} of shape `{text}` is 0; every dimension is at least 1")]
    Zero {
        /// The whole string.
        text: String,
        /// The dimension's letter.
        field: String,
    },
    /// A dimension, or the operands' size, does not fit.
    #[error("{field} of shape `{text}` is too large: at most {max}")]
    Overflow {
        /// The whole string.
        text: String,
        /// The dimension's letter, or the quantity that overflows.
        field: String,
        /// The limit.
        max: u64,
    },
    /// A dimension is not a multiple of the format's block.
    #[error("{field} of shape `{text}` is {actual}; it must be a multiple of {required}")]
    NotMultiple {
        /// The whole string.
        text: String,
        /// The dimension's letter.
        field: String,
        /// The block.
        required: usize,
        /// The value found.
        actual: usize,
    },
    /// There is no set with this name.
    #[error(
        "unknown set of shapes `{name}`; known: gemv, gemv-correctness, gemv-ragged, quantize, gemm, \
         gemm-correctness, dual, dual-correctness, grouped, grouped-decode, moe, decode, all"
    )]
    UnknownSet {
        /// The name.
        name: String,
    },
}

/// Sizes of a matrix that is quantised or dequantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct QuantizeShape {
    /// Rows.
    pub m: usize,
    /// Columns, a multiple of 16 (nvfp4) or 32 (mxfp4).
    pub k: usize,
}

impl fmt::Display for QuantizeShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "quantize:{}x{}", self.m, self.k)
    }
}

/// Sizes of a matrix whose rows are normalised, or of the product of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RowsShape {
    /// Rows.
    pub m: usize,
    /// Columns, a multiple of 16, of mxfp4 results 32.
    pub k: usize,
    /// Whether the input is two matrices, a gate and what it is multiplied by.
    pub gated: bool,
}

impl RowsShape {
    /// The operation's name.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        if self.gated { "act" } else { "norm" }
    }
}

impl fmt::Display for RowsShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}x{}", self.op(), self.m, self.k)
    }
}

/// Sizes of a gated MLP: `down(act(gate(norm(x))) * up(norm(x))) + x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MlpShape {
    /// Tokens.
    pub tokens: usize,
    /// Columns of the tokens, a multiple of the block.
    pub hidden: usize,
    /// Columns between the products, a multiple of the block.
    pub between: usize,
}

impl fmt::Display for MlpShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mlp:{}x{}x{}", self.tokens, self.hidden, self.between)
    }
}

/// A shape whose operation this version can run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Batched NVFP4 GEMV.
    Gemv(GemvShape),
    /// GEMM with block-scaled weights.
    Gemm(GemmShape),
    /// GEMM with the weights of a gate and of what it is multiplied with; N is the result's.
    Dual(GemmShape),
    /// GEMM of several problems with their own token counts.
    Grouped(GroupedShape),
    /// The same with gated weights; N is the result's.
    GroupedDual(GroupedShape),
    /// A mixture of experts.
    Moe(MixtureShape),
    /// Quantisation or dequantisation of a matrix.
    Quantize(QuantizeShape),
    /// Norm or gated activation of rows, and their quantisation.
    Rows(RowsShape),
    /// A gated MLP.
    Mlp(MlpShape),
}

impl Shape {
    /// Additions and multiplications of the products; none of what is quantised, where nothing is
    /// multiplied by a matrix.
    #[must_use]
    pub fn flops(&self) -> Option<f64> {
        match self {
            Self::Gemv(shape) => Some(shape.flops()),
            Self::Gemm(shape) => Some(shape.flops()),
            Self::Dual(shape) => Some(GemmShape { n: 2 * shape.n, ..*shape }.flops()),
            Self::Grouped(shape) => Some(shape.flops(shape.n)),
            Self::GroupedDual(shape) => Some(shape.flops(2 * shape.n)),
            Self::Moe(shape) => Some(shape.flops()),
            Self::Mlp(MlpShape { tokens, hidden, between }) => {
                Some(6.0 * *tokens as f64 * *hidden as f64 * *between as f64)
            }
            Self::Quantize(_) | Self::Rows(_) => None,
        }
    }

    /// Whether an emulated device takes minutes for it: more than 64 GFLOP.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.flops().is_some_and(|flops| flops > 64e9)
    }

    /// The operation's name.
    #[must_use]
    pub fn op(&self) -> &'static str {
        match self {
            Self::Gemv(_) => "gemv",
            Self::Gemm(_) => "gemm",
            Self::Dual(_) => "dual",
            Self::Grouped(_) => "grouped",
            Self::GroupedDual(_) => "grouped-dual",
            Self::Moe(_) => "moe",
            Self::Quantize(_) => "quantize",
            Self::Rows(shape) => shape.op(),
            Self::Mlp(_) => "mlp",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gemv(shape) => shape.fmt(f),
            Self::Gemm(shape) => shape.fmt(f),
            Self::Dual(shape) => f.write_str(&shape.text(true)),
            Self::Grouped(shape) => f.write_str(&shape.text(false)),
            Self::GroupedDual(shape) => f.write_str(&shape.text(true)),
            Self::Moe(shape) => shape.fmt(f),
            Self::Quantize(shape) => shape.fmt(f),
            Self::Rows(shape) => shape.fmt(f),
            Self::Mlp(shape) => shape.fmt(f),
        }
    }
}

/// Operations by name, each with the form of its shape string.
const FORMS: [(&str, &str); 10] = [
    ("gemv", "gemv:MxKxL"),
    ("gemm", "gemm:MxNxK"),
    ("dual", "dual:MxNxK[xL]"),
    ("grouped", "grouped:M1,G*M,..xNxK"),
    ("grouped-dual", "grouped-dual:M1,G*M,..xNxK"),
    ("moe", "moe:TxExKxHxI"),
    ("quantize", "quantize:MxK"),
    ("norm", "norm:MxK"),
    ("act", "act:MxK"),
    ("mlp", "mlp:TxHxI"),
];

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let (op, sizes) = text.split_once(':').unwrap_or((text, ""));
        let Some(&(op, form)) = FORMS.iter().find(|(name, _)| *name == op) else {
            return Err(ShapeError::UnknownOp { text: text.into(), op: op.into() });
        };
        match op {
            "grouped" => return groups::grouped(text, sizes, form).map(Self::Grouped),
            "grouped-dual" => return groups::grouped(text, sizes, form).map(Self::GroupedDual),
            _ => {}
        }
        let dims = parse_sizes(text, sizes, form)?;
        match (op, dims.as_slice()) {
            ("gemv", &[m, k, l]) => gemv_shape(text, m, k, l),
            ("gemm", &[m, n, k]) => gemm_shape(text, m, n, k),
            ("dual", &[m, n, k]) => dual_shape(text, [m, n, k, 1]),
            ("dual", &[m, n, k, l]) => dual_shape(text, [m, n, k, l]),
            ("moe", &[t, e, k, h, i]) => groups::mixture(text, [t, e, k, h, i]).map(Self::Moe),
            ("quantize", &[m, k]) => quantize_shape(text, m, k),
            ("norm", &[m, k]) => rows_shape(text, m, k, false),
            ("act", &[m, k]) => rows_shape(text, m, k, true),
            ("mlp", &[t, h, i]) => mlp_shape(text, t, h, i),
            // A form has as many letters as one of these takes.
            _ => Err(ShapeError::Form { text: text.into(), expected: form }),
        }
    }
}

/// The sizes after the colon, in order, each checked and at least 1. `form` has the letters; what is
/// in brackets may be left out.
fn parse_sizes(text: &str, sizes: &str, form: &'static str) -> Result<Vec<u64>, ShapeError> {
    let letters = form.split_once(':').map_or("", |(_, letters)| letters);
    let (required, optional) = letters.split_once('[').unwrap_or((letters, ""));
    let mut letters: Vec<&str> = required.split('x').collect();
    let sizes: Vec<&str> = sizes.split('x').collect();
    if sizes.len() > letters.len() {
        letters.extend(optional.trim_end_matches(']').split('x').skip(1));
    }
    if letters.len() != sizes.len() {
        return Err(ShapeError::Form { text: text.into(), expected: form });
    }
    letters.iter().zip(sizes).map(|(letter, size)| parse_size(text, letter, size, form)).collect()
}

/// One size, at least 1.
fn parse_size(text: &str, field: &str, size: &str, form: &'static str) -> Result<u64, ShapeError> {
    match parse_count(text, field, size, form)? {
        0 => Err(ShapeError::Zero { text: text.into(), field: field.into() }),
        value => Ok(value),
    }
}

/// One size, which may be 0.
fn parse_count(text: &str, field: &str, size: &str, form: &'static str) -> Result<u64, ShapeError> {
    if size.is_empty() || !size.bytes().all(|c| c.is_ascii_digit()) {
        return Err(ShapeError::Form { text: text.into(), expected: form });
    }
    // It has digits only, so it can only be too large.
    match size.parse::<u64>() {
        Ok(value) if value <= MAX_DIM => Ok(value),
        _ => Err(ShapeError::Overflow { text: text.into(), field: field.into(), max: MAX_DIM }),
    }
}

fn gemv_shape(text: &str, m: u64, k: u64, l: u64) -> Result<Shape, ShapeError> {
    let max = isize::MAX as u64;
    let elements = m.checked_mul(k).and_then(|n| n.checked_mul(l));
    let Some(_) = elements.filter(|&n| n <= max) else {
        let (text, field) = (text.into(), "number of elements M*K*L".into());
        return Err(ShapeError::Overflow { text, field, max });
    };
    let k = whole_blocks(text, k)?;
    Ok(Shape::Gemv(GemvShape { m: m as usize, k, l: l as usize }))
}

fn gemm_shape(text: &str, m: u64, n: u64, k: u64) -> Result<Shape, ShapeError> {
    // With two sizes below 2^31 and elements of 4 bytes, neither operands nor result overflow.
    let k = whole_blocks(text, k)?;
    Ok(Shape::Gemm(GemmShape::of(m as usize, n as usize, k)))
}

fn dual_shape(text: &str, [m, n, k, l]: [u64; 4]) -> Result<Shape, ShapeError> {
    let max = isize::MAX as u64;
    // Two matrices of weights, and results of four bytes.
    for (a, b) in [(m, k), (2 * n, k), (m, 4 * n)] {
        if a.checked_mul(b).and_then(|matrix| matrix.checked_mul(l)).is_none_or(|all| all > max) {
            let (text, field) = (text.into(), "number of elements".into());
            return Err(ShapeError::Overflow { text, field, max });
        }
    }
    let k = whole_blocks(text, k)?;
    Ok(Shape::Dual(GemmShape { m: m as usize, n: n as usize, k, l: l as usize }))
}

/// Checks that the sizes are below 2^31, so that their product times the size of any element fits.
fn quantize_shape(text: &str, m: u64, k: u64) -> Result<Shape, ShapeError> {
    Ok(Shape::Quantize(QuantizeShape { m: m as usize, k: whole_blocks(text, k)? }))
}

/// The same for operations on rows.
fn rows_shape(text: &str, m: u64, k: u64, gated: bool) -> Result<Shape, ShapeError> {
    Ok(Shape::Rows(RowsShape { m: m as usize, k: whole_blocks(text, k)?, gated }))
}

/// Checks both dimensions of an MLP; no operand is larger than the first product's.
fn mlp_shape(text: &str, t: u64, h: u64, i: u64) -> Result<Shape, ShapeError> {
    let (hidden, between) = (whole_blocks_of(text, "H", h)?, whole_blocks_of(text, "I", i)?);
    dual_shape(text, [t, i, h, 1])?;
    Ok(Shape::Mlp(MlpShape { tokens: t as usize, hidden, between }))
}

/// Checks that K is a multiple of the smaller block.
fn whole_blocks(text: &str, k: u64) -> Result<usize, ShapeError> {
    whole_blocks_of(text, "K", k)
}

/// Checks that a size is a multiple of the smaller block.
fn whole_blocks_of(text: &str, field: &str, size: u64) -> Result<usize, ShapeError> {
    let (actual, required) = (size as usize, Nvfp4::BLOCK);
    if Nvfp4::blocks(actual).is_some() {
        return Ok(actual);
    }
    Err(ShapeError::NotMultiple { text: text.into(), field: field.into(), required, actual })
}
