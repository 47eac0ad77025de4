//! Element types of results: rounding, names, bytes to numbers.

pub use fp4_formats::gemv::OutputType;
use half::{bf16, f16};

/// The type of this name (`f16`, `bf16`, `f32`), if there is one.
#[must_use]
pub fn by_name(name: &str) -> Option<OutputType> {
    ALL.into_iter().find(|&dtype| self::name(dtype) == name)
}

/// Every type, for tests and tables.
pub const ALL: [OutputType; 3] = [OutputType::F16, OutputType::Bf16, OutputType::F32];

/// The type's name in commands and reports.
#[must_use]
pub const fn name(dtype: OutputType) -> &'static str {
    match dtype {
        OutputType::F16 => "f16",
        OutputType::Bf16 => "bf16",
        OutputType::F32 => "f32",
    }
}

/// Significant bits, the hidden one included.
#[must_use]
pub const fn precision(dtype: OutputType) -> u32 {
    match dtype {
        OutputType::F16 => f16::MANTISSA_DIGITS,
        OutputType::Bf16 => bf16::MANTISSA_DIGITS,
        OutputType::F32 => f32::MANTISSA_DIGITS,
    }
}

/// Exponent of the smallest subnormal.
const fn min_exponent(dtype: OutputType) -> i32 {
    match dtype {
        OutputType::F16 => -24,
        OutputType::Bf16 => -133,
        OutputType::F32 => -149,
    }
}

/// Largest finite value.
#[must_use]
pub fn max(dtype: OutputType) -> f64 {
    match dtype {
        OutputType::F16 => f16::MAX.to_f64(),
        OutputType::Bf16 => bf16::MAX.to_f64(),
        OutputType::F32 => f64::from(f32::MAX),
    }
}

/// Largest error of rounding a number of magnitude up to `magnitude` to the nearest value: half
/// a unit in the last place, or half the smallest subnormal.
#[must_use]
pub fn half_ulp(dtype: OutputType, magnitude: f64) -> f64 {
    let relative = (-f64::from(precision(dtype))).exp2();
    (magnitude * relative).max((f64::from(min_exponent(dtype)) - 1.0).exp2())
}

/// Numbers from little-endian elements; an incomplete last element is dropped.
#[must_use]
pub fn decode(dtype: OutputType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        OutputType::F16 => {
            let (items, _) = bytes.as_chunks();
            items.iter().map(|&item| f16::from_le_bytes(item).to_f32()).collect()
        }
        OutputType::Bf16 => {
            let (items, _) = bytes.as_chunks();
            items.iter().map(|&item| bf16::from_le_bytes(item).to_f32()).collect()
        }
        OutputType::F32 => {
            let (items, _) = bytes.as_chunks();
            items.iter().map(|&item| f32::from_le_bytes(item)).collect()
        }
    }
}

/// Little-endian elements, each rounded to the nearest value of the type.
#[must_use]
pub fn encode(dtype: OutputType, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let values = values.into_iter();
    match dtype {
        OutputType::F16 => values.flat_map(|x| f16::from_f64(x).to_le_bytes()).collect(),
        OutputType::Bf16 => values.flat_map(|x| bf16::from_f64(x).to_le_bytes()).collect(),
        OutputType::F32 => values.flat_map(|x| (x as f32).to_le_bytes()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every f16: no number closer to it than half an ulp rounds to a further value.
    #[test]
    fn half_ulp_bounds_f16_rounding() {
        for bits in 0..f16::MAX.to_bits() {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let middle = f64::midpoint(low, high);
            let error = (f16::from_f64(middle).to_f64() - middle).abs();
            assert!(error <= half_ulp(OutputType::F16, middle), "at {bits:#06x}");
        }
    }

    #[test]
    fn names_and_bytes_round_trip() {
        for dtype in ALL {
            assert_eq!(by_name(name(dtype)), Some(dtype));
            let bytes = encode(dtype, [1.5, -2.0]);
            assert_eq!(bytes.len(), 2 * dtype.bytes() as usize);
            assert_eq!(decode(dtype, &bytes), [1.5, -2.0]);
        }
        assert_eq!(by_name("f64"), None);
    }
}
