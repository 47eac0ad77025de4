//! Candidates of a plan, and a request for them.

use std::fmt;

use fp4_formats::gemm::{Problem, Split};
use serde::{Serialize, Serializer};

use super::GemmOverrides;
use crate::device::DeviceProperties;
use crate::error::{Error, Result};
use crate::tune::TuneProblem;

/// Serialises a value as its `Display` text.
pub(super) fn display<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// One candidate of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Kernel name.
    pub kernel: &'static str,
    /// The split of K among CTAs.
    #[serde(serialize_with = "display")]
    pub split: Split,
    /// CTAs of the launch.
    pub ctas: u64,
    /// Times that the machine is filled with them.
    pub waves: u64,
    /// Cycles of the comparator's model; for ranking, not a prediction.
    pub cycles: u64,
    /// The limit of the main loop by the model.
    pub bound: &'static str,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, split, ctas, waves, cycles, bound } = self;
        write!(
            f,
            "{cycles:>9} cycles: {kernel}, split {split}, {ctas} CTAs in {waves} waves, {bound}"
        )
    }
}

/// The number of times that a product copies its operands, from L2 or from memory. The launches
/// before it do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reads {
    /// Times that each matrix of activations is read.
    pub activation_passes: u64,
    /// Times that the weights of a batch entry are read; where entries share weights, by each.
    pub weight_passes: u64,
    /// Bytes of all copies of operands: whole stages, including elements beyond the edges. Data of few tokens
    /// that a kernel loads besides do not count.
    pub bytes: u64,
}

impl Reads {
    /// Returns the reason in words.
    pub(super) fn reason(&self) -> String {
        let times = |count: u64| if count == 1 { "once".into() } else { format!("{count} times") };
        let (activations, weights) = (times(self.activation_passes), times(self.weight_passes));
        let bytes = self.bytes;
        format!(
            "activations are read {activations}, weights {weights}: {bytes} bytes in whole stages"
        )
    }
}

/// A request for candidates.
pub(super) struct Request<'a> {
    /// The sizes, checked.
    pub problem: Problem,
    /// Types, formats and sizes.
    pub asked: &'a TuneProblem,
    pub machine: DeviceProperties,
    pub overrides: &'a GemmOverrides,
}

impl Request<'_> {
    /// Checks that the kernel that is asked for, if one is, is one of `suitable`.
    ///
    /// # Errors
    /// [`Error::Shape`] with their names.
    pub fn check_kernel(&self, suitable: impl Iterator<Item = &'static str>) -> Result<()> {
        let Some(name) = &self.overrides.kernel else { return Ok(()) };
        let names: Vec<&str> = suitable.collect();
        if names.contains(&name.as_str()) {
            return Ok(());
        }
        Err(Error::shape("kernel", format!("one of {}", names.join(", ")), name))
    }

    /// Whether `kernel` is not ruled out by what is asked for.
    pub fn may_be(&self, kernel: &str) -> bool {
        self.overrides.kernel.as_ref().is_none_or(|name| name == kernel)
    }
}
