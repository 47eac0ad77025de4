//! The keys of a measurement: a device with its driver and kernels, and a problem.

use std::fmt;

use fp4_formats::gemm::{Adding, ResultType};
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, ScaleLayout};
use serde::{Deserialize, Serialize};

use crate::plan::ActivationKind;
use crate::shape::GemmShape;

/// The properties of a device that times depend on. A table is used only if all of them are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKey {
    /// Product name; `emulated H200` and the like on the emulator.
    pub name: String,
    /// Compute capability, such as `9.0`.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// The driver's CUDA version and, if the system reports it, its release, because its compiler
    /// makes the machine code. `emulator` on the emulator.
    pub driver: String,
    /// Fingerprint of the kernels, see
    /// [`KernelFiles::fingerprint`](crate::kernels::KernelFiles::fingerprint).
    pub kernels: String,
}

impl DeviceKey {
    /// The first field that differs in `found`: its name, its value here, its value there.
    #[must_use]
    pub fn difference(&self, found: &Self) -> Option<(&'static str, String, String)> {
        let fields = [
            ("device", self.name.clone(), found.name.clone()),
            (
                "compute capability",
                self.compute_capability.clone(),
                found.compute_capability.clone(),
            ),
            ("number of SMs", self.sms.to_string(), found.sms.to_string()),
            ("driver", self.driver.clone(), found.driver.clone()),
            ("kernels", self.kernels.clone(), found.kernels.clone()),
        ];
        fields.into_iter().find(|(_, ours, theirs)| ours != theirs)
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, compute_capability, sms, driver, kernels } = self;
        write!(f, "{name} ({compute_capability}, {sms} SMs), driver {driver}, kernels {kernels}")
    }
}

/// The result of a GEMM, without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultKind {
    /// Floats of a type.
    Floats(FloatType),
    /// NVFP4 or MXFP4 with scales in a layout.
    Blocks(Format, ScaleLayout),
}

impl ResultKind {
    /// The type for which plans are made. It is the same for all floats, so that the sums before
    /// rounding do not depend on the type of the result.
    pub(crate) fn planned(self) -> ResultType {
        match self {
            Self::Floats(_) => ResultType::Floats(FloatType::F16),
            Self::Blocks(format, _) => ResultType::Blocks(format),
        }
    }

    /// Returns the number of neighbouring columns of a row that are stored together, of which N is
    /// a multiple.
    #[must_use]
    pub fn block(self) -> usize {
        self.planned().block() as usize
    }

    /// The name in tables and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Floats(dtype) => dtype.name(),
            Self::Blocks(format, _) => format.name(),
        }
    }
}

impl From<FloatType> for ResultKind {
    fn from(dtype: FloatType) -> Self {
        Self::Floats(dtype)
    }
}

/// The properties of a GEMM that its time depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TuneProblem {
    /// Format of the weights.
    pub format: Format,
    /// The activations, with the layout of their scales.
    pub activations: ActivationKind,
    /// The result.
    pub output: ResultKind,
    /// Whether two matrices of weights make the result.
    pub gated: bool,
    /// M, N, K and L; N is the result's. See [`groups`](Self::groups) for a grouped product.
    pub shape: GemmShape,
    /// The groups of a grouped product.
    pub groups: Option<TuneGroups>,
    /// The way in which products of e4m3 may be added.
    pub adding: Adding,
}

/// The grouping of a grouped product's tokens: all that the host knows of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TuneGroups {
    /// Groups.
    pub count: usize,
    /// Whether each has its own matrix, of M tokens, and L is their number. Otherwise M is the most
    /// tokens of all, and L is 1.
    pub slots: bool,
}

impl TuneProblem {
    /// The same problem with another number of tokens.
    #[must_use]
    pub fn with_tokens(self, m: usize) -> Self {
        Self { shape: GemmShape { m, ..self.shape }, ..self }
    }

    /// The operation's name.
    #[must_use]
    pub fn op(&self) -> &'static str {
        match (self.groups, self.gated) {
            (None, false) => "gemm",
            (None, true) => "dual",
            (Some(_), false) => "grouped",
            (Some(_), true) => "grouped dual",
        }
    }
}

impl fmt::Display for TuneProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, activations, output, gated, shape, groups, adding } = self;
        let GemmShape { m, n, k, .. } = *shape;
        match *groups {
            None => f.write_str(&shape.text(*gated))?,
            Some(TuneGroups { count, slots }) => {
                let of = if slots { "of" } else { "with" };
                write!(f, "{} {n}x{k}, {count} groups {of} at most {m} tokens", self.op())?;
            }
        }
        write!(f, ", {} weights, {} activations", format.name(), activations.name())?;
        if let ActivationKind::Blocks { layout, .. } = activations {
            write!(f, " ({layout} scales)")?;
        }
        write!(f, ", result {}", output.name())?;
        if let ResultKind::Blocks(_, layout) = output {
            write!(f, " ({layout} scales)")?;
        }
        match adding {
            Adding::Promoted => Ok(()),
            Adding::Fast => write!(f, ", {} sums", adding.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let key = DeviceKey {
            name: "NVIDIA H200".into(),
            compute_capability: "9.0".into(),
            sms: 132,
            driver: "13.0".into(),
            kernels: "x".into(),
        };
        assert_eq!(key.difference(&key), None);
        let changed = [
            ("device", DeviceKey { name: "NVIDIA H100".into(), ..key.clone() }),
            ("compute capability", DeviceKey { compute_capability: "9.1".into(), ..key.clone() }),
            ("number of SMs", DeviceKey { sms: 114, ..key.clone() }),
            ("driver", DeviceKey { driver: "13.1".into(), ..key.clone() }),
            ("kernels", DeviceKey { kernels: "y".into(), ..key.clone() }),
        ];
        for (field, other) in changed {
            assert_eq!(key.difference(&other).map(|(name, ..)| name), Some(field));
        }
    }
}
