//! The JSON of `bench --json`, of all operations and of recorded files, as far as a report has it.

use serde::Deserialize;
use serde_json::Value;

/// One run. Fields that an operation does not have are absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Run {
    pub op: String,
    pub shape: String,
    pub format: Option<String>,
    pub activations: Option<String>,
    pub activation: Option<String>,
    pub recipe: Option<String>,
    pub dtype: Option<String>,
    pub output: Option<String>,
    pub scale: Option<String>,
    /// Layout of the scales of what is quantised.
    pub layout: Option<String>,
    /// Layout of the scales of a GEMV's weights.
    pub b_scale_layout: Option<String>,
    pub generator: Option<String>,
    /// Whether launches overlap.
    pub launches: Option<String>,
    pub device: Option<Device>,
    pub plan: Option<Plan>,
    pub plans: Vec<Plan>,
    pub verified: Option<bool>,
    pub max_error: Option<f64>,
    pub difference: Option<String>,
    pub bytes: Option<f64>,
    pub times: Option<Timing>,
    pub emulated: Option<Launches>,
    /// The reason why there is no result.
    pub error: Option<String>,
}

/// The device that it ran on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Device {
    pub device: String,
    pub name: String,
    pub arch: String,
}

/// The plan of a run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// Kernels that are launched first.
    pub before: Vec<Step>,
    pub kernel: Option<String>,
    pub grid: Option<Vec<u64>>,
    pub threads: Option<u64>,
    pub cluster: Option<u64>,
    pub split: Option<String>,
    /// Kernels of a quantiser, which follow one another.
    pub steps: Vec<Step>,
    pub source: Option<String>,
    /// Operands of a GEMV that were rearranged at load, or `none`.
    pub repack: Option<String>,
}

impl Plan {
    /// Whether operands were rearranged at load.
    pub fn is_repacked(&self) -> bool {
        self.repack.as_deref().is_some_and(|repack| repack != "none")
    }
}

/// A kernel that others follow.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Step {
    pub kernel: String,
}

/// Times in seconds; records have no percentiles of some.
#[derive(Clone, Debug, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub p10: Option<f64>,
    pub p90: Option<f64>,
}

/// The measured times.
#[derive(Debug, Deserialize)]
pub struct Timing {
    pub times: Spread,
    pub cold: Option<bool>,
    /// Reading the bytes.
    pub ceiling: Option<Rate>,
    /// Copying them.
    pub copy: Option<Rate>,
    /// Operations per second of a large f16 product.
    pub tensor_ceiling: Option<f64>,
    pub cublas: Option<Peer>,
    pub cublas_error: Option<String>,
    /// Peers of products in e4m3.
    #[serde(default)]
    pub cublas_e4m3: Vec<Peer>,
}

/// A limit of the device.
#[derive(Debug, Deserialize)]
pub struct Rate {
    pub times: Spread,
    pub bytes_per_second: Option<f64>,
}

/// A peer's time.
#[derive(Debug, Deserialize)]
pub struct Peer {
    pub name: String,
    pub times: Spread,
    pub ratio: f64,
}

/// Counts of one launch, or of each.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Launches {
    Each(Vec<Emulated>),
    One(Emulated),
}

impl Launches {
    pub fn each(&self) -> &[Emulated] {
        match self {
            Self::Each(all) => all,
            Self::One(one) => std::slice::from_ref(one),
        }
    }
}

/// The emulator's results.
#[derive(Debug, Deserialize)]
pub struct Emulated {
    pub lower_bound: Bound,
}

/// A lower bound in seconds.
#[derive(Debug, Deserialize)]
pub struct Bound {
    pub seconds: f64,
    pub by: String,
}

/// The runs of a file: a list, or a single one.
pub fn runs(file: Value) -> Result<Vec<Value>, String> {
    match file {
        Value::Array(runs) => Ok(runs),
        Value::Object(fields) if fields.contains_key("op") => Ok(vec![Value::Object(fields)]),
        Value::Object(_) => Err("it has no runs of `bench --json`".into()),
        _ => Err("it is neither a list nor an object".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_file_is_a_list_or_a_run() {
        let run = json!({"op": "gemv", "shape": "gemv:1x16x1"});
        assert_eq!(runs(json!([run, run])).map(|all| all.len()), Ok(2));
        assert_eq!(runs(run.clone()), Ok(vec![run]));
    }

    #[test]
    fn other_files_are_refused() {
        for other in
            [json!(1), json!("gemv"), json!({}), json!({"rows": []}), json!({"shape": "a"})]
        {
            let refused = runs(other.clone());
            assert!(refused.is_err(), "{other}: {refused:?}");
        }
    }
}
