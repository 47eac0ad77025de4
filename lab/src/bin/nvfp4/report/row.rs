//! The figures of one run, each defined here once.

use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::Shape;
use serde::Deserialize;
use serde_json::Value;

use super::raw::{self, Plan, Run, Spread, Step};
use super::scale::positive;

/// The floor of products, in words.
pub const READING: &str = "reading the bytes";
/// The floor of products that reading does not bound.
pub const TENSOR: &str = "multiply-adds at the f16 rate";
/// The floor of quantisers.
pub const COPYING: &str = "copying the bytes";
/// The name of launches that do not overlap.
const ONE_BY_ONE: &str = "one by one";

/// A run as tables and charts have it. Missing fields were not measured or not recorded; every number is
/// positive and finite.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub op: String,
    /// The shape as `--shape` takes it.
    pub shape: String,
    /// The differences from the operation's plain form.
    pub details: String,
    /// The generator of the inputs.
    pub inputs: Option<String>,
    /// Name of what it ran on.
    pub device: Option<String>,
    /// Whether that was the emulator.
    pub emulated: bool,
    /// Kernels, and how they were launched.
    pub plan: Option<[String; 2]>,
    /// The median.
    pub time: Option<f64>,
    /// 10th and 90th percentile.
    pub spread: Option<[f64; 2]>,
    /// Whether the caches were cold.
    pub cold: Option<bool>,
    pub floor: Option<Limit>,
    pub peer: Option<Peer>,
    /// The reason why there is no peer.
    pub no_peer: Option<String>,
    /// The emulator's lower bound.
    pub bound: Option<Limit>,
    /// Bytes that must be read or written at least once.
    pub bytes: Option<f64>,
    /// Additions and multiplications.
    pub flops: Option<f64>,
    /// Bytes per second of a kernel that only reads.
    pub read_rate: Option<f64>,
    /// Operations per second of a large f16 product.
    pub tensor_rate: Option<f64>,
    pub verified: Option<bool>,
    /// The largest error, the first difference, or why there is no result.
    pub remark: Option<String>,
}

/// A time that cannot be undercut, and by what.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub seconds: f64,
    pub by: String,
}

/// A peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    pub name: String,
    pub seconds: f64,
    /// Its time divided by ours.
    pub ratio: f64,
}

impl Row {
    /// Reads a row from the JSON of a run.
    pub fn new(run: &Value) -> Result<Self, String> {
        let run = Run::deserialize(run).map_err(|error| error.to_string())?;
        if run.op.is_empty() || run.shape.is_empty() {
            return Err("a run has no `op` or no `shape`".into());
        }
        let flops = run.shape.parse::<Shape>().ok().and_then(|shape| shape.flops());
        let details = details(&run);
        let remark =
            run.error.clone().or_else(|| run.difference.clone()).or_else(|| {
                run.max_error.map(|error| format!("largest absolute error {error:.3e}"))
            });
        let mut row = Self {
            details,
            inputs: run.generator,
            plan: plan(&run.plans, run.plan.as_ref()),
            bound: run.emulated.as_ref().and_then(|launches| bound(launches.each())),
            bytes: run.bytes.and_then(positive),
            flops: flops.and_then(positive),
            verified: run.verified,
            remark,
            op: run.op,
            shape: run.shape,
            ..Self::default()
        };
        if let Some(device) = run.device {
            row.emulated = device.device.starts_with("emu:");
            row.device = Some(device.name).filter(|name| !name.is_empty());
        }
        // Nothing that an emulator says is a time.
        if let Some(timing) = run.times.filter(|_| !row.emulated) {
            row.measured(timing, run.activations.as_deref());
        }
        Ok(row)
    }

    fn measured(&mut self, timing: raw::Timing, activations: Option<&str>) {
        let raw::Timing { times, cold, ceiling, copy, tensor_ceiling, cublas, .. } = timing;
        self.time = positive(times.median);
        self.spread = spread(&times);
        self.cold = cold;
        self.read_rate = ceiling.as_ref().and_then(|rate| positive(rate.bytes_per_second?));
        self.tensor_rate = tensor_ceiling.and_then(positive);
        let limit = |rate: Option<raw::Rate>, by: &str| {
            let seconds = positive(rate?.times.median)?;
            Some(Limit { seconds, by: by.into() })
        };
        // Other activations may have faster instructions.
        let halves = matches!(activations, Some("f16" | "bf16"));
        let products = self
            .flops
            .zip(self.tensor_rate)
            .filter(|_| halves)
            .map(|(flops, rate)| Limit { seconds: flops / rate, by: TENSOR.into() });
        self.floor = [limit(ceiling, READING), limit(copy, COPYING), products]
            .into_iter()
            .flatten()
            .max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let peer = |peer: raw::Peer| {
            let (seconds, ratio) = (positive(peer.times.median)?, positive(peer.ratio)?);
            Some(Peer { name: peer.name, seconds, ratio })
        };
        // For e4m3 activations, the peer is the faster product in e4m3, if there is one.
        let e4m3 = timing.cublas_e4m3.into_iter().filter_map(peer);
        let e4m3 = e4m3.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        self.peer = e4m3.or_else(|| cublas.and_then(peer));
        self.no_peer = timing.cublas_error;
    }

    /// The time divided by the floor.
    pub fn to_floor(&self) -> Option<f64> {
        Some(self.time? / self.floor.as_ref()?.seconds)
    }

    /// Additions and multiplications per byte that must move.
    pub fn intensity(&self) -> Option<f64> {
        Some(self.flops? / self.bytes?)
    }

    /// Additions and multiplications per second.
    pub fn flops_per_second(&self) -> Option<f64> {
        Some(self.flops? / self.time?)
    }

    /// The sizes, without the operation.
    pub fn sizes(&self) -> &str {
        self.shape.split_once(':').map_or(self.shape.as_str(), |(_, sizes)| sizes)
    }

    /// Sizes and details.
    pub fn label(&self) -> String {
        let separator = if self.details.is_empty() { "" } else { ", " };
        format!("{}{separator}{}", self.sizes(), self.details)
    }
}

fn spread(times: &Spread) -> Option<[f64; 2]> {
    Some([positive(times.p10?)?, positive(times.p90?)?])
}

/// The bound of launches that follow one another, by what bounds the longest.
fn bound(launches: &[raw::Emulated]) -> Option<Limit> {
    let longest =
        launches.iter().max_by(|a, b| a.lower_bound.seconds.total_cmp(&b.lower_bound.seconds))?;
    let seconds = positive(launches.iter().map(|launch| launch.lower_bound.seconds).sum())?;
    Some(Limit { seconds, by: longest.lower_bound.by.clone() })
}

/// Returns the differences from the plain form: NVFP4 with linear scales, results in f16, launches
/// that overlap.
fn details(run: &Run) -> String {
    let mut details: Vec<&str> = Vec::new();
    let quantiser = matches!(run.op.as_str(), "quantize" | "dequantize");
    let other_than = |text: &Option<String>, plain: &str| {
        text.clone().filter(|text| !plain.split(' ').any(|plain| plain == text))
    };
    let format = if quantiser { run.format.clone() } else { other_than(&run.format, "nvfp4") };
    let recipe = run.recipe.clone().filter(|_| run.op == "quantize");
    let layout = run.b_scale_layout.clone().or_else(|| run.layout.clone());
    let repacked = run.op == "gemv" && run.plan.as_ref().is_some_and(Plan::is_repacked);
    let read = if repacked { ", linear at load" } else { "" };
    let layout = other_than(&layout, "linear").map(|layout| format!("{layout} scales{read}"));
    let scale = other_than(&run.scale, "given one").map(|scale| format!("scale {scale}"));
    let gated = run.op.ends_with("dual") || run.op == "moe";
    let activation = other_than(&run.activation, if gated { "silu" } else { "identity" });
    let output = other_than(&run.output, "f16").map(|output| format!("to {output}"));
    let launches = run.launches.clone().filter(|launches| launches == ONE_BY_ONE);
    let all = [
        format,
        recipe,
        run.dtype.clone().filter(|_| quantiser),
        run.activations.clone(),
        activation,
        output,
        layout,
        scale,
        launches,
    ];
    details.extend(all.iter().flatten().map(String::as_str));
    details.join(", ")
}

/// Names of kernels, and the rest of what a plan says.
fn plan<'a>(products: &'a [Plan], single: Option<&'a Plan>) -> Option<[String; 2]> {
    let plans: Vec<&Plan> = products.iter().chain(single).collect();
    let mut kernels = Vec::new();
    let mut hows = Vec::new();
    for plan in &plans {
        let names = |steps: &'a [Step]| steps.iter().map(|step| step.kernel.as_str());
        kernels.extend(names(&plan.before).chain(plan.kernel.as_deref()));
        kernels.extend(names(&plan.steps));
        let mut how = Vec::new();
        if let Some(grid) = &plan.grid {
            let sizes: Vec<String> = grid.iter().map(u64::to_string).collect();
            how.push(format!("grid {}", sizes.join("x")));
        }
        how.extend(plan.threads.map(|threads| format!("{threads} threads")));
        how.extend(plan.cluster.filter(|size| *size > 1).map(|size| format!("clusters of {size}")));
        how.extend(plan.split.as_ref().filter(|split| *split != "none").cloned());
        how.extend(plan.source.as_ref().map(|source| format!("chosen by {source}")));
        if !how.is_empty() {
            hows.push(how.join(", "));
        }
    }
    (!kernels.is_empty()).then(|| [kernels.join(", "), hows.join("; ")])
}

/// Whether a generator's name is the default one's.
pub fn plain_inputs(name: &str) -> bool {
    name == Generator::FullRange.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gemm(times: Value) -> Row {
        let run = json!({
            "op": "gemm", "shape": "gemm:2x4x16", "activations": "f16", "output": "f16",
            "format": "nvfp4", "bytes": 128, "verified": true, "times": times,
            "device": {"device": "cuda:0", "name": "NVIDIA H200"},
        });
        Row::new(&run).expect("a row")
    }

    fn times(tensor: f64) -> Value {
        json!({
            "times": {"median": 4e-6, "p10": 3e-6, "p90": 5e-6},
            "ceiling": {"times": {"median": 1e-6}, "bytes_per_second": 1.28e8},
            "tensor_ceiling": tensor,
            "cublas": {"name": "cuBLAS", "times": {"median": 8e-6}, "ratio": 2.0},
        })
    }

    #[test]
    fn figures_follow_from_what_was_measured() {
        let row = gemm(times(1e9));
        assert_eq!((row.flops, row.bytes), (Some(256.0), Some(128.0)));
        assert_eq!((row.time, row.spread), (Some(4e-6), Some([3e-6, 5e-6])));
        let floor = row.floor.clone().expect("a floor");
        assert_eq!((floor.seconds, floor.by.as_str()), (1e-6, READING));
        assert_eq!(row.to_floor(), Some(4.0));
        assert_eq!(row.intensity(), Some(2.0));
        assert_eq!(row.flops_per_second(), Some(256.0 / 4e-6));
        let peer = row.peer.expect("a peer");
        assert_eq!((peer.seconds, peer.ratio), (8e-6, 2.0));
        // A slower product bounds more than reading.
        let floor = gemm(times(1e8)).floor.expect("a floor");
        assert_eq!((floor.seconds, floor.by.as_str()), (256.0 / 1e8, TENSOR));
    }

    /// The peer of e4m3 activations is the fastest of its products in e4m3, if one was timed.
    #[test]
    fn the_peer_of_e4m3_activations_is_in_e4m3() {
        let peer = |name: &str, median: f64| {
            let times = json!({"median": median});
            json!({"name": name, "times": times, "ratio": 1.25})
        };
        let mut all = times(1e9);
        all["cublas_e4m3"] = json!([peer("e4m3", 6e-6), peer("fast", 5e-6), peer("none", 0.0)]);
        let row = gemm(all.clone()).peer.expect("a peer");
        assert_eq!((row.name.as_str(), row.seconds, row.ratio), ("fast", 5e-6, 1.25));
        all["cublas_e4m3"] = json!([]);
        all["cublas_e4m3_error"] = json!("refused");
        assert_eq!(gemm(all).peer.expect("a peer").name, "cuBLAS");
    }

    #[test]
    fn numbers_that_are_none_are_missing() {
        for bad in [json!(0.0), json!(-1e-6)] {
            let mut all = times(1e9);
            all["times"]["median"] = bad.clone();
            all["ceiling"]["times"]["median"] = bad.clone();
            all["cublas"]["times"]["median"] = bad.clone();
            all["tensor_ceiling"] = bad;
            let row = gemm(all);
            assert_eq!((row.time, row.floor.clone(), row.peer.clone()), (None, None, None));
            assert_eq!(
                (row.tensor_rate, row.to_floor(), row.flops_per_second()),
                (None, None, None)
            );
        }
        assert_eq!(gemm(Value::Null).time, None);
    }

    #[test]
    fn an_emulator_has_bounds_and_never_times() {
        let launch =
            |seconds: f64, by: &str| json!({"lower_bound": {"seconds": seconds, "by": by}});
        let mut run = json!({
            "op": "gemv", "shape": "gemv:4x16x1", "times": times(1e9),
            "device": {"device": "emu:h200", "name": "emulated H200"},
            "emulated": [launch(1e-6, "issue"), launch(3e-6, "dram")],
        });
        let row = Row::new(&run).expect("a row");
        assert!(row.emulated && row.time.is_none() && row.floor.is_none() && row.peer.is_none());
        let bound = row.bound.expect("a bound");
        assert!((bound.seconds - 4e-6).abs() < 1e-12 && bound.by == "dram");
        run["emulated"] = launch(2e-6, "l2");
        let bound = Row::new(&run).expect("a row").bound.expect("a bound");
        assert_eq!((bound.seconds, bound.by.as_str()), (2e-6, "l2"));
    }

    #[test]
    fn details_are_what_is_not_plain() {
        let details = |run: Value| Row::new(&run).expect("a row").details;
        let gemv = json!({"op": "gemv", "shape": "gemv:4x16x1", "output": "f16",
            "b_scale_layout": "linear"});
        assert_eq!(details(gemv), "");
        let gemv = json!({"op": "gemv", "shape": "gemv:4x16x1", "output": "f32",
            "layout": "128x4"});
        assert_eq!(details(gemv), "to f32, 128x4 scales");
        let repacked = |how: &str| {
            details(json!({"op": "gemv", "shape": "gemv:4x16x1", "output": "f16",
                "b_scale_layout": "128x4", "plan": {"kernel": "k", "repack": how}}))
        };
        assert_eq!(repacked("none"), "128x4 scales");
        assert_eq!(repacked("the weights' scales"), "128x4 scales, linear at load");
        let dual = json!({"op": "dual", "shape": "dual:4x16x16", "activations": "fp4",
            "activation": "silu", "format": "mxfp4", "output": "f16"});
        assert_eq!(details(dual), "mxfp4, fp4");
        let quantize = json!({"op": "quantize", "shape": "quantize:4x16", "format": "nvfp4",
            "recipe": "te", "dtype": "bf16", "scale": "amax", "launches": "one by one"});
        assert_eq!(details(quantize), "nvfp4, te, bf16, scale amax, one by one");
    }

    #[test]
    fn a_plan_names_its_kernels_in_order() {
        let run = json!({"op": "gemm", "shape": "gemm:4x16x16", "plan": {
            "before": [{"kernel": "decode"}], "kernel": "gemm", "grid": [2, 3], "threads": 384,
            "cluster": 2, "split": "none", "source": "table"}});
        let [kernels, how] = Row::new(&run).expect("a row").plan.expect("a plan");
        assert_eq!(kernels, "decode, gemm");
        assert_eq!(how, "grid 2x3, 384 threads, clusters of 2, chosen by table");
        let run = json!({"op": "moe", "shape": "moe:1x1x1x16x16",
            "plans": [{"kernel": "a", "split": "stream-k"}, {"kernel": "b"}]});
        let plan = Row::new(&run).expect("a row").plan;
        assert_eq!(plan, Some(["a, b".to_owned(), "stream-k".to_owned()]));
    }

    #[test]
    fn what_is_no_run_is_refused() {
        for bad in [json!({}), json!({"op": "gemm"}), json!([1]), json!({"op": 1, "shape": "a"})] {
            assert!(Row::new(&bad).is_err(), "{bad}");
        }
    }
}
