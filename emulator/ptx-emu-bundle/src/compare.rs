//! Comparing outputs with expected ones.

use ptx_emu_core::num::{bfloat, half};
use rustc_apfloat::ieee::{BFloat, Double, Half};
use rustc_apfloat::{Float, FloatConvert, Round};

/// Element type of an output compared with a tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompareType {
    /// f16.
    F16,
    /// bf16.
    Bf16,
    /// f32.
    F32,
    /// f64.
    F64,
}

impl CompareType {
    const ALL: [Self; 4] = [Self::F16, Self::Bf16, Self::F32, Self::F64];

    /// Name in `compare.dtype`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// The type of a name; NumPy's and PyTorch's are understood as well.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let short = match name {
            "float16" | "half" => "f16",
            "bfloat16" => "bf16",
            "float32" | "float" => "f32",
            "float64" | "double" => "f64",
            other => other,
        };
        Self::ALL.into_iter().find(|ty| ty.name() == short)
    }

    /// Size of an element, bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// The bytes of the nearest number of this type, ties to even; `None` for a finite number
    /// beyond its range.
    #[must_use]
    pub fn nearest(self, wide: f64) -> Option<Vec<u8>> {
        let bits = u128::from(wide.to_bits());
        let mut loses = false;
        let (bytes, infinite) = match self {
            Self::F16 => {
                let near: Half =
                    Double::from_bits(bits).convert_r(Round::NearestTiesToEven, &mut loses).value;
                ((near.to_bits() as u16).to_le_bytes().to_vec(), near.is_infinite())
            }
            Self::Bf16 => {
                let near: BFloat =
                    Double::from_bits(bits).convert_r(Round::NearestTiesToEven, &mut loses).value;
                ((near.to_bits() as u16).to_le_bytes().to_vec(), near.is_infinite())
            }
            Self::F32 => ((wide as f32).to_le_bytes().to_vec(), (wide as f32).is_infinite()),
            Self::F64 => (wide.to_le_bytes().to_vec(), wide.is_infinite()),
        };
        (wide.is_infinite() || !infinite).then_some(bytes)
    }

    fn value(self, bytes: &[u8]) -> f64 {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::F16 => half::to_f32(bits as u16).into(),
            Self::Bf16 => bfloat::to_f32(bits as u16).into(),
            Self::F32 => f32::from_bits(bits as u32).into(),
            Self::F64 => f64::from_bits(bits),
        }
    }
}

/// The integer type of a name: its size in bytes, and whether it has a sign.
pub(super) fn integer_type(name: &str) -> Option<(usize, bool)> {
    let (signed, digits) = match name.strip_prefix('u') {
        Some(digits) => (false, digits),
        None => (true, name.strip_prefix(['s', 'i'])?),
    };
    let bits = ["8", "16", "32", "64"].iter().position(|known| *known == digits)?;
    Some((1 << bits, signed))
}

/// The condition under which an output is right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compare {
    /// The same bytes.
    Exact,
    /// The same integers.
    Integers {
        /// Size of one, bytes: 1, 2, 4 or 8.
        bytes: usize,
        /// Whether they have a sign.
        signed: bool,
    },
    /// Each element within `atol + rtol * |expected|`; NaN where NaN is expected,
    /// and the same infinities.
    Close {
        /// Element type.
        dtype: CompareType,
        /// Relative tolerance.
        rtol: f64,
        /// Absolute tolerance.
        atol: f64,
    },
}

impl Compare {
    /// The names of element types, for messages.
    pub const TYPES: &str = "u8, u16, u32, u64, s8, s16, s32, s64, f16, bf16, f32, f64";

    /// Equal elements of the type of a name: `u8` to `s64` (`i8` to `i64` mean the same), or a
    /// float, of which zeros are equal whatever their signs, and NaNs whatever their bits.
    #[must_use]
    pub fn equal(name: &str) -> Option<Self> {
        if let Some((bytes, signed)) = integer_type(name) {
            return Some(Self::Integers { bytes, signed });
        }
        let dtype = CompareType::from_name(name)?;
        Some(Self::Close { dtype, rtol: 0.0, atol: 0.0 })
    }

    /// Size of what is compared at a time, bytes.
    #[must_use]
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::Exact => 1,
            Self::Integers { bytes, .. } => bytes,
            Self::Close { dtype, .. } => dtype.bytes(),
        }
    }
}

/// The first element that is not right.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstMismatch {
    /// Element (byte, if compared exactly), from 0.
    pub index: usize,
    /// Expected value.
    pub expected: String,
    /// Value found.
    pub actual: String,
}

/// The outcome of an output's comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputReport {
    /// Name in the bundle.
    pub name: String,
    /// Elements (bytes, if compared exactly).
    pub elements: usize,
    /// Elements that are not right.
    pub mismatches: usize,
    /// The first of them.
    pub first: Option<FirstMismatch>,
    /// Largest absolute error of a finite element; 0 if compared exactly.
    pub max_error: f64,
}

impl OutputReport {
    /// Compares `actual` with `expected` of the same length. `unwritten` is the
    /// first byte that the kernel should have written and did not.
    #[must_use]
    pub fn new(
        name: &str,
        compare: Compare,
        expected: &[u8],
        actual: &[u8],
        unwritten: Option<usize>,
    ) -> Self {
        let size = compare.element_bytes();
        let mut report = Self {
            name: name.to_owned(),
            elements: expected.len() / size,
            mismatches: 0,
            first: None,
            max_error: 0.0,
        };
        let pairs = expected.chunks_exact(size).zip(actual.chunks_exact(size));
        for (index, (want, got)) in pairs.enumerate() {
            let missing = unwritten.is_some_and(|byte| byte / size == index);
            let (right, texts) = match compare {
                Compare::Exact => (want == got, [want, got].map(|x| format!("{:#04x}", x[0]))),
                Compare::Integers { signed, .. } => {
                    (want == got, [want, got].map(|x| integer(x, signed).to_string()))
                }
                Compare::Close { dtype, rtol, atol } => {
                    let (want, got) = (dtype.value(want), dtype.value(got));
                    let error = (got - want).abs();
                    if error.is_finite() {
                        report.max_error = report.max_error.max(error);
                    }
                    // An infinity's tolerance would be infinite.
                    let close = error.is_finite() && error <= atol + rtol * want.abs();
                    let right = want == got || (want.is_nan() && got.is_nan()) || close;
                    (right, [want, got].map(|x| x.to_string()))
                }
            };
            if right && !missing {
                continue;
            }
            report.mismatches += 1;
            if report.first.is_none() {
                let [expected, actual] = texts;
                let actual = if missing { "never written".to_owned() } else { actual };
                report.first = Some(FirstMismatch { index, expected, actual });
            }
        }
        report
    }
}

/// A little-endian integer of at most 8 bytes.
fn integer(bytes: &[u8], signed: bool) -> i128 {
    let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = if negative { [0xff; 16] } else { [0; 16] };
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_compared_whole() {
        let (want, got) = ([1, 0, 0xff, 0xff, 2, 0], [1, 0, 0xfe, 0xff, 3, 0]);
        let shown = |signed| {
            let compare = Compare::Integers { bytes: 2, signed };
            let report = OutputReport::new("o", compare, &want, &got, None);
            assert_eq!((report.elements, report.mismatches), (3, 2));
            report.first.map(|first| (first.index, first.expected, first.actual))
        };
        assert_eq!(shown(true), Some((1, "-1".into(), "-2".into())));
        assert_eq!(shown(false), Some((1, "65535".into(), "65534".into())));
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn bytes_are_compared_one_by_one() {
        let report = OutputReport::new("o", Compare::Exact, &[1, 2, 3], &[1, 5, 4], None);
        assert_eq!((report.elements, report.mismatches), (3, 2));
        let first = FirstMismatch { index: 1, expected: "0x02".into(), actual: "0x05".into() };
        assert_eq!(report.first, Some(first));
    }

    #[test]
    fn what_was_never_written_is_wrong() {
        let report = OutputReport::new("o", Compare::Exact, &[1, 2], &[1, 2], Some(1));
        assert_eq!(report.mismatches, 1);
        assert_eq!(report.first.expect("a mismatch").actual, "never written");
    }

    #[test]
    fn tolerances() {
        let compare = Compare::Close { dtype: CompareType::F32, rtol: 0.1, atol: 0.5 };
        let inf = f32::INFINITY;
        let want = f32s(&[10.0, 10.0, f32::NAN, f32::NAN, inf, inf, inf, 1.0]);
        let got = f32s(&[11.5, 11.75, f32::NAN, 0.0, inf, -inf, 1.0, inf]);
        let report = OutputReport::new("o", compare, &want, &got, None);
        assert_eq!(report.mismatches, 5);
        assert_eq!(report.max_error, 1.75);
        let first = FirstMismatch { index: 1, expected: "10".into(), actual: "11.75".into() };
        assert_eq!(report.first, Some(first));
    }

    #[test]
    fn names_of_types() {
        for ty in CompareType::ALL {
            assert_eq!(CompareType::from_name(ty.name()), Some(ty));
        }
        assert_eq!(CompareType::from_name("bfloat16"), Some(CompareType::Bf16));
        assert_eq!(CompareType::from_name("int8"), None);
        for name in Compare::TYPES.split(", ") {
            assert!(Compare::equal(name).is_some(), "{name}");
        }
        assert_eq!(Compare::equal("i16"), Some(Compare::Integers { bytes: 2, signed: true }));
        assert_eq!(Compare::equal("u64"), Some(Compare::Integers { bytes: 8, signed: false }));
        for name in ["u", "u24", "32", "f8", ""] {
            assert_eq!(Compare::equal(name), None, "{name}");
        }
    }
}
