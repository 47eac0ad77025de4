//! Shape strings (`gemv:7168x16384x1`) and the named sets of shapes.

use std::fmt;
use std::str::FromStr;

use fp4_formats::{BlockFormat, Nvfp4};
use serde::Serialize;
use thiserror::Error;

/// Largest dimension: kernels take 32-bit sizes.
pub const MAX_DIM: u64 = i32::MAX as u64;

/// The reasons why a shape string cannot be used. All of them are bad input.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// The part before the colon is not an operation of this project.
    #[error(
        "unknown operation `{op}` in shape `{text}`; known: gemv, gemm, dual, grouped, quantize"
    )]
    UnknownOp {
        /// The whole string.
        text: String,
        /// The unknown word.
        op: String,
    },
    /// The operation is planned, but this version has no kernel for it.
    #[error(
        "operation `{op}` of shape `{text}` is known but not built in this version; built: gemv, gemm, dual, quantize"
    )]
    NotBuilt {
        /// The whole string.
        text: String,
        /// The operation.
        op: &'static str,
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
        "unknown set of shapes `{name}`; known: gemv, gemv-correctness, gemv-ragged, quantize, gemm, gemm-correctness, dual, dual-correctness, grouped, decode, all; built: the gemv, gemm and dual sets, decode, quantize, all"
    )]
    UnknownSet {
        /// The name.
        name: String,
    },
}

/// Sizes of a batched GEMV, `C[l, m] = sum_k A[l, k] * B[l, m, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GemvShape {
    /// Rows of each batch entry's weights: outputs, which a GEMM calls N.
    pub m: usize,
    /// Elements of a row, a multiple of 16.
    pub k: usize,
    /// Batch entries.
    pub l: usize,
}

impl GemvShape {
    /// A shape from its three sizes, unchecked; for tables of known-good shapes.
    const fn of(m: usize, k: usize, l: usize) -> Self {
        Self { m, k, l }
    }

    /// Bytes that the operation must read or write at least once: codes, scales without padding,
    /// and the result in elements of `output_bytes`.
    #[must_use]
    pub fn bytes(self, output_bytes: usize) -> u64 {
        let row = (self.k / 2 + self.k / Nvfp4::BLOCK) as u64;
        self.l as u64 * ((self.m as u64 + 1) * row + (self.m * output_bytes) as u64)
    }
}

impl fmt::Display for GemvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gemv:{}x{}x{}", self.m, self.k, self.l)
    }
}

/// Sizes of a batched GEMM, `C[l, m, n] = sum_k A[l, m, k] * B[l, n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GemmShape {
    /// Rows of each `A`: tokens.
    pub m: usize,
    /// Rows of each `B`: output columns.
    pub n: usize,
    /// Columns of both, a multiple of the format's block.
    pub k: usize,
    /// Batch entries; the string of a plain product always means one.
    pub l: usize,
}

impl GemmShape {
    /// A shape of one batch entry, unchecked.
    #[must_use]
    pub const fn of(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k, l: 1 }
    }

    /// Additions and multiplications.
    #[must_use]
    pub fn flops(self) -> f64 {
        2.0 * self.l as f64 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

impl GemmShape {
    /// The shape as text, of a product that is gated or not.
    pub(crate) fn text(self, gated: bool) -> String {
        let Self { m, n, k, l } = self;
        match (gated, l) {
            (false, 1) => format!("gemm:{m}x{n}x{k}"),
            (false, _) => format!("gemm:{m}x{n}x{k}, {l} batch entries"),
            (true, 1) => format!("dual:{m}x{n}x{k}"),
            (true, _) => format!("dual:{m}x{n}x{k}x{l}"),
        }
    }
}

impl fmt::Display for GemmShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(false))
    }
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

/// A shape whose operation this version can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Batched NVFP4 GEMV.
    Gemv(GemvShape),
    /// GEMM with block-scaled weights.
    Gemm(GemmShape),
    /// GEMM with the weights of a gate and of what it is multiplied with; N is the result's.
    Dual(GemmShape),
    /// Quantisation or dequantisation of a matrix.
    Quantize(QuantizeShape),
}

impl Shape {
    /// The operation's name.
    #[must_use]
    pub fn op(self) -> &'static str {
        match self {
            Self::Gemv(_) => "gemv",
            Self::Gemm(_) => "gemm",
            Self::Dual(_) => "dual",
            Self::Quantize(_) => "quantize",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gemv(shape) => shape.fmt(f),
            Self::Gemm(shape) => shape.fmt(f),
            Self::Dual(shape) => f.write_str(&shape.text(true)),
            Self::Quantize(shape) => shape.fmt(f),
        }
    }
}

/// Operations by name, each with the form of its shape string.
const FORMS: [(&str, &str); 5] = [
    ("gemv", "gemv:MxKxL"),
    ("gemm", "gemm:MxNxK"),
    ("dual", "dual:MxNxK[xL]"),
    ("grouped", "grouped:M1,M2,..xNxK"),
    ("quantize", "quantize:MxK"),
];

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let (op, sizes) = text.split_once(':').unwrap_or((text, ""));
        let Some(&(op, form)) = FORMS.iter().find(|(name, _)| *name == op) else {
            return Err(ShapeError::UnknownOp { text: text.into(), op: op.into() });
        };
        let dims = parse_sizes(text, sizes, form)?;
        match (op, dims.as_slice()) {
            ("gemv", &[m, k, l]) => gemv_shape(text, m, k, l),
            ("gemm", &[m, n, k]) => gemm_shape(text, m, n, k),
            ("dual", &[m, n, k]) => dual_shape(text, [m, n, k, 1]),
            ("dual", &[m, n, k, l]) => dual_shape(text, [m, n, k, l]),
            ("quantize", &[m, k]) => quantize_shape(text, m, k),
            _ => Err(ShapeError::NotBuilt { text: text.into(), op }),
        }
    }
}

/// The sizes after the colon, in order, each checked. `form` has the letters; a letter followed by
/// a list (`M1,M2,..`) takes any number of sizes, and what is in brackets may be left out.
fn parse_sizes(text: &str, sizes: &str, form: &'static str) -> Result<Vec<u64>, ShapeError> {
    let wrong_form = || ShapeError::Form { text: text.into(), expected: form };
    let letters = form.split_once(':').map_or("", |(_, letters)| letters);
    let (required, optional) = letters.split_once('[').unwrap_or((letters, ""));
    let mut letters: Vec<&str> = required.split('x').collect();
    let groups: Vec<&str> = sizes.split('x').collect();
    if groups.len() > letters.len() {
        letters.extend(optional.trim_end_matches(']').split('x').skip(1));
    }
    if letters.len() != groups.len() {
        return Err(wrong_form());
    }
    let mut dims = Vec::new();
    for (letter, group) in letters.iter().zip(groups) {
        let is_list = letter.contains(',');
        for (index, size) in group.split(',').enumerate() {
            if (index > 0 && !is_list)
                || size.is_empty()
                || !size.bytes().all(|c| c.is_ascii_digit())
            {
                return Err(wrong_form());
            }
            let field = || if is_list { format!("M{}", index + 1) } else { (*letter).to_owned() };
            // It has digits only, so it can only be too large.
            match size.parse::<u64>() {
                Ok(0) => return Err(ShapeError::Zero { text: text.into(), field: field() }),
                Ok(value) if value <= MAX_DIM => dims.push(value),
                _ => {
                    let (text, field) = (text.into(), field());
                    return Err(ShapeError::Overflow { text, field, max: MAX_DIM });
                }
            }
        }
    }
    Ok(dims)
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

/// Checks that K is a multiple of the smaller block.
fn whole_blocks(text: &str, k: u64) -> Result<usize, ShapeError> {
    let (actual, required) = (k as usize, Nvfp4::BLOCK);
    if Nvfp4::blocks(actual).is_some() {
        return Ok(actual);
    }
    Err(ShapeError::NotMultiple { text: text.into(), field: "K".into(), required, actual })
}

/// The benchmark shapes of the public GEMV contest.
pub const GEMV_CONTEST: [GemvShape; 3] =
    [GemvShape::of(7168, 16384, 1), GemvShape::of(4096, 7168, 8), GemvShape::of(7168, 2048, 4)];

/// The correctness shapes of the public GEMV contest.
pub const GEMV_CORRECTNESS: [GemvShape; 9] = [
    GemvShape::of(128, 256, 1),
    GemvShape::of(128, 1536, 1),
    GemvShape::of(128, 3072, 1),
    GemvShape::of(256, 7168, 1),
    GemvShape::of(2432, 4608, 2),
    GemvShape::of(384, 7168, 2),
    GemvShape::of(512, 512, 2),
    GemvShape::of(512, 4096, 2),
    GemvShape::of(512, 1536, 2),
];

/// Ragged shapes: every combination of M = 1, 3, 129; K = 16, 48, 7184; L = 1, 2, 8.
#[must_use]
pub fn gemv_ragged() -> Vec<GemvShape> {
    let mut shapes = Vec::new();
    for m in [1, 3, 129] {
        for k in [16, 48, 7184] {
            shapes.extend([1, 2, 8].map(|l| GemvShape { m, k, l }));
        }
    }
    shapes
}

/// The benchmark shapes of the public GEMM contest.
pub const GEMM_CONTEST: [GemmShape; 3] = [
    GemmShape::of(128, 7168, 16384),
    GemmShape::of(128, 4096, 7168),
    GemmShape::of(128, 7168, 2048),
];

/// The correctness shapes of the public GEMM contest.
pub const GEMM_CORRECTNESS: [GemmShape; 10] = [
    GemmShape::of(128, 256, 256),
    GemmShape::of(128, 1536, 7168),
    GemmShape::of(128, 3072, 1536),
    GemmShape::of(256, 7168, 256),
    GemmShape::of(256, 7168, 2048),
    GemmShape::of(2304, 4608, 7168),
    GemmShape::of(384, 7168, 2304),
    GemmShape::of(512, 512, 7168),
    GemmShape::of(512, 4096, 512),
    GemmShape::of(512, 1536, 7168),
];

/// The benchmark shapes of the public dual GEMM contest.
pub const DUAL_CONTEST: [GemmShape; 4] = [
    GemmShape::of(256, 4096, 7168),
    GemmShape::of(512, 4096, 7168),
    GemmShape::of(256, 3072, 4096),
    GemmShape::of(512, 3072, 7168),
];

/// The correctness shapes of the public dual GEMM contest.
pub const DUAL_CORRECTNESS: [GemmShape; 9] = [
    GemmShape::of(1536, 512, 7168),
    GemmShape::of(256, 512, 256),
    GemmShape::of(3072, 1024, 1536),
    GemmShape::of(7168, 1024, 256),
    GemmShape::of(7168, 2304, 2048),
    GemmShape::of(4608, 384, 7168),
    GemmShape::of(7168, 384, 2304),
    GemmShape::of(512, 768, 7168),
    GemmShape::of(4096, 768, 512),
];

/// The products of one decoding step: few tokens, two layers.
#[must_use]
pub fn decode() -> Vec<GemmShape> {
    let layer = |(n, k)| [1, 2, 4, 8, 16, 32, 64].map(|m| GemmShape::of(m, n, k));
    [(7168, 16384), (4096, 7168)].into_iter().flat_map(layer).collect()
}

/// The matrices with which quantising is measured.
pub const QUANTIZE: [QuantizeShape; 4] = [
    QuantizeShape { m: 1024, k: 1024 },
    QuantizeShape { m: 4096, k: 8192 },
    QuantizeShape { m: 8192, k: 4096 },
    QuantizeShape { m: 16384, k: 8192 },
];

/// The shapes of a named set (`--set`): `gemv`, `gemm` and `dual` (the benchmarks of the contests),
/// `gemv-correctness`, `gemv-ragged`, `gemm-correctness` and `dual-correctness` (for checking, not
/// for timing),
/// `decode` (GEMM with few tokens), `quantize`, or `all`, which is every benchmark set that is
/// built.
///
/// # Errors
/// [`ShapeError::NotBuilt`] and [`ShapeError::UnknownSet`].
pub fn set(name: &str) -> Result<Vec<Shape>, ShapeError> {
    let not_built = |op| Err(ShapeError::NotBuilt { text: name.into(), op });
    match name {
        "gemv" => Ok(GEMV_CONTEST.map(Shape::Gemv).to_vec()),
        "quantize" => Ok(QUANTIZE.map(Shape::Quantize).to_vec()),
        "gemm" => Ok(GEMM_CONTEST.map(Shape::Gemm).to_vec()),
        "gemm-correctness" => Ok(GEMM_CORRECTNESS.map(Shape::Gemm).to_vec()),
        "decode" => Ok(decode().into_iter().map(Shape::Gemm).collect()),
        "all" => {
            let [gemv, gemm, dual] = [set("gemv")?, set("gemm")?, set("dual")?];
            Ok([gemv, gemm, dual, set("decode")?, set("quantize")?].concat())
        }
        "gemv-correctness" => Ok(GEMV_CORRECTNESS.map(Shape::Gemv).to_vec()),
        "gemv-ragged" => Ok(gemv_ragged().into_iter().map(Shape::Gemv).collect()),
        "dual" => Ok(DUAL_CONTEST.map(Shape::Dual).to_vec()),
        "dual-correctness" => Ok(DUAL_CORRECTNESS.map(Shape::Dual).to_vec()),
        "grouped" => not_built("grouped"),
        _ => Err(ShapeError::UnknownSet { name: name.into() }),
    }
}
