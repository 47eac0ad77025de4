//! Quantisation of a layer's inputs.

use serde::Serialize;

/// The quantisation of a layer's inputs when it is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inputs {
    /// Inputs that are not quantised.
    #[default]
    Float,
    /// Inputs in the weight's format; their tensor-level scale is from calibration and stored.
    Calibrated,
    /// Inputs in the weight's format; all scales are computed then.
    Dynamic,
    /// Inputs in NVFP4 without a tensor-level scale.
    OneLevel,
    /// Inputs in FP8.
    Fp8,
    /// Inputs in a format that is not read.
    Other,
}
