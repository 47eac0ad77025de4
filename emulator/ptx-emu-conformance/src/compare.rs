//! Compares an output with the recorded one.

use ptx_emu_core::num::{bfloat, half};

/// The elements of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// Integers or bit patterns of so many bytes (1, 2, 4, 8).
    Bits(usize),
    /// f16.
    F16,
    /// bf16.
    Bf16,
    /// f32.
    F32,
    /// f64.
    F64,
}

impl Element {
    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bits(bytes) => bytes,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// The value, and the distance to the next larger magnitude.
    fn value(self, bits: u64) -> (f64, f64) {
        // Precision and least exponent of a normal number.
        let (value, precision, least) = match self {
            Self::Bits(_) => return (bits as f64, 1.0),
            Self::F16 => (f64::from(half::to_f32(bits as u16)), 10, -14),
            Self::Bf16 => (f64::from(bfloat::to_f32(bits as u16)), 7, -126),
            Self::F32 => (f64::from(f32::from_bits(bits as u32)), 23, -126),
            Self::F64 => (f64::from_bits(bits), 52, -1022),
        };
        let exponent = match (value.to_bits() >> 52 & 0x7ff) as i32 {
            0 => least,
            biased => (biased - 1023).max(least),
        };
        (value, 2f64.powi(exponent - precision))
    }
}

/// The condition under which an output is as good as the recorded one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Comparison {
    /// The same bits.
    Exact,
    /// Zeros, infinities and NaNs the same bits, and otherwise
    /// `|got - recorded| <= relative * |recorded| + absolute + one unit in the last
    /// place`.
    Close {
        /// Relative error.
        relative: f64,
        /// Absolute error.
        absolute: f64,
        /// The source of the figures.
        reason: &'static str,
    },
}

/// An element that differs more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Element, from 0.
    pub index: usize,
    /// Recorded bits.
    pub expected: u64,
    /// The emulator's bits.
    pub actual: u64,
}

/// The result of comparing two outputs.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Compared {
    /// Elements whose bits differ.
    pub(super) inexact: usize,
    /// Largest distance of finite elements, in units in the last place of the
    /// recorded one.
    pub(super) worst_ulp: f64,
    /// Elements that differ more than they may.
    pub(super) mismatches: Vec<Mismatch>,
}

/// Compares outputs of equal length.
pub(super) fn compare(
    comparison: Comparison,
    element: Element,
    expected: &[u8],
    actual: &[u8],
) -> Compared {
    let mut compared = Compared::default();
    let size = element.bytes();
    let pairs = expected.chunks(size).zip(actual.chunks(size));
    for (index, (expected, actual)) in pairs.enumerate() {
        if expected == actual {
            continue;
        }
        compared.inexact += 1;
        let (expected, actual) = (bits(expected), bits(actual));
        let ((want, ulp), (got, _)) = (element.value(expected), element.value(actual));
        let distance = (got - want).abs();
        let ordinary = want.is_finite() && got.is_finite();
        if ordinary {
            compared.worst_ulp = compared.worst_ulp.max(distance / ulp);
        }
        let close = match comparison {
            Comparison::Exact => false,
            Comparison::Close { relative, absolute, .. } => {
                let signs = (want == 0.0 && got == 0.0) && want.signum() != got.signum();
                ordinary && !signs && distance <= relative * want.abs() + absolute + ulp
            }
        };
        if !close {
            compared.mismatches.push(Mismatch { index, expected, actual });
        }
    }
    compared
}

fn bits(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn exact_means_bits() {
        let compared =
            compare(Comparison::Exact, Element::F32, &f32s(&[0.0, 1.0]), &f32s(&[-0.0, 1.0]));
        let expected = Mismatch { index: 0, expected: 0, actual: 0x8000_0000 };
        assert_eq!((compared.inexact, compared.mismatches), (1, vec![expected]));
    }

    #[test]
    fn close_allows_what_it_says() {
        let close = Comparison::Close { relative: 1e-6, absolute: 0.0, reason: "" };
        let want = f32s(&[1.0, 1.0, f32::INFINITY, f32::NAN, 0.0]);
        let got = f32s(&[1.000_001, 1.000_002, f32::MAX, 1.0, -0.0]);
        let compared = compare(close, Element::F32, &want, &got);
        let places: Vec<usize> = compared.mismatches.iter().map(|m| m.index).collect();
        assert_eq!(places, [1, 2, 3, 4]);
        assert_eq!(compared.inexact, 5);
        assert_eq!(compared.worst_ulp, 17.0);
    }

    #[test]
    fn units_in_the_last_place() {
        assert_eq!(Element::F32.value(1f32.to_bits().into()), (1.0, 2f64.powi(-23)));
        assert_eq!(Element::F32.value(1).1, 2f64.powi(-149));
        assert_eq!(Element::F16.value(0x3c00), (1.0, 2f64.powi(-10)));
        assert_eq!(Element::F16.value(0x0001).1, 2f64.powi(-24));
        assert_eq!(Element::Bf16.value(0x3f80), (1.0, 2f64.powi(-7)));
        assert_eq!(Element::F64.value(1).1, f64::from_bits(1));
    }
}
