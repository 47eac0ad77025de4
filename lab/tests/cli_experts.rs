//! `nvfp4 run grouped` and `run moe`: operands in files, results, bundles, and what is refused.
//!
//! Runs need the compiled kernels (`cargo xtask build-kernels`); without them, a test
//! leaves them out, or fails if `NVFP4_KERNELS_DIR` promises them.

use std::path::Path;
use std::process::Command;

use crate::support::{Folder, compiled, f32s, kernels_dir, tensor};
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::floats;
use nvfp4::gemm::{Activation, GemmOptions, HalfMatrix, ResidualValues, UpOptions, group_options};
use nvfp4::moe::{MoeOptions, MoeShape, TokenScales};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_checkpoint::{self as checkpoint, Checkpoint, NewTensor};
use nvfp4_lab::gemm::reference_grouped;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::GroupWeights;
use nvfp4_lab::operands::gemm::{GemmActivations, Halves};
use nvfp4_lab::operands::grouped::{self, AnyGroupedOperands, GroupedOperands};
use nvfp4_lab::operands::moe::{self, AnyLayerFile, LayerFile};
use nvfp4_lab::rng::SplitMix64;
use ptx_emu::bundle::{Bundle, ReplayOptions, RunBundle as _};
use ptx_emu_core::Schedule;
use safetensors::Dtype;
use serde_json::Value;

const LINEAR: ScaleLayout = ScaleLayout::Linear;
const BLOCKED: ScaleLayout = ScaleLayout::Blocked128x4;

/// Runs with `args`; the exit code must be `code`. Returns the printed text, of a refusal the
/// reason.
fn run(args: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.env_remove("NVFP4_KERNELS_DIR").env("NVFP4_TUNE", "off");
    let output = command.args(args).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    if code == 2 { stderr.into_owned() } else { String::from_utf8(output.stdout).expect("UTF-8") }
}

/// Matrices `[rows, K]` with their own scales.
fn matrices<F: BlockFormat>(
    name: &str,
    count: usize,
    [rows, k]: [usize; 2],
    layout: ScaleLayout,
    seed: u64,
) -> Vec<BlockScaled<F>> {
    let mut rng = SplitMix64::new(seed);
    let dims = Dims::new(1, rows, k).expect("dims");
    let matrix = |index: usize| {
        let x = Generator::FullRange.blocks::<F>("x", dims, layout, &mut rng).expect("a matrix");
        let scale = [1.0, 0.5, 0.25][index % 3] / 64.0;
        let (codes, scales) = (x.codes().to_vec(), x.scales().to_vec());
        BlockScaled::new(format!("{name}[{index}]"), dims, layout, codes, scales, scale)
            .expect("a matrix")
    };
    (0..count).map(matrix).collect()
}

/// Weights of groups in each form that a file can have.
fn groups<F: BlockFormat>(
    name: &str,
    count: usize,
    [n, k]: [usize; 2],
    form: &Halves<F>,
    layout: ScaleLayout,
) -> Vec<GroupWeights<F>> {
    let rows = match form {
        Halves::None | Halves::Pair(_) => n,
        Halves::Stacked | Halves::Interleaved => 2 * n,
    };
    let ups = matrices(&format!("{name}_up"), count, [n, k], LINEAR, 6);
    matrices(name, count, [rows, k], layout, 5)
        .into_iter()
        .zip(ups)
        .map(|(b, up)| {
            let halves = match form {
                Halves::None => Halves::None,
                Halves::Pair(_) => Halves::Pair(up),
                Halves::Stacked => Halves::Stacked,
                Halves::Interleaved => Halves::Interleaved,
            };
            GroupWeights { b, halves }
        })
        .collect()
}

/// A pair to name the form.
fn pair<F: BlockFormat>() -> Halves<F> {
    Halves::Pair(matrices("x", 1, [1, F::BLOCK], LINEAR, 0).remove(0))
}

fn ramp(count: usize, step: f32) -> Option<Vec<f32>> {
    Some((0..count).map(|i| 1.0 + step * (i % 7) as f32).collect())
}

/// Operands of groups of these tokens with everything that a file can have.
fn grouped_operands<F: BlockFormat>(
    counts: &[usize],
    [n, k]: [usize; 2],
    half: Option<HalfType>,
    form: &Halves<F>,
    layout: ScaleLayout,
) -> GroupedOperands<F> {
    let (tokens, g) = (counts.iter().sum(), counts.len());
    let mut rng = SplitMix64::new(11);
    let dims = Dims::new(1, tokens, k).expect("dims");
    let a = match half {
        None => GemmActivations::Blocks(
            Generator::FullRange.blocks("a", dims, layout, &mut rng).expect("a"),
        ),
        Some(half) => GemmActivations::Halves(
            Generator::FullRange.halves("a", dims, half, &mut rng).expect("a"),
        ),
    };
    let gated = !matches!(form, Halves::None);
    let up = UpOptions::new().alpha(-0.5).bias(ramp(g * n, 0.75));
    let options = GemmOptions::new()
        .alpha(0.375)
        .row_factors(ramp(tokens, 0.25))
        .column_factors(ramp(n, -0.125))
        .bias(ramp(g * n, 0.5))
        .residual(ResidualValues::round(FloatType::Bf16, &vec![0.75; tokens * n]))
        .up(gated.then_some(up));
    let groups = groups("b", g, [n, k], form, layout);
    GroupedOperands { a, counts: counts.to_vec(), groups, options }
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).expect("a file")
}

#[test]
fn grouped_operands_come_back_as_they_were_written() {
    let folder = Folder::new("grouped-operands");
    let path = folder.file("in.safetensors");
    for (half, layout) in [(None, LINEAR), (None, BLOCKED), (Some(HalfType::Bf16), BLOCKED)] {
        for form in [Halves::None, pair(), Halves::Stacked, Halves::Interleaved] {
            let operands = grouped_operands::<Nvfp4>(&[3, 0, 2], [48, 64], half, &form, layout);
            grouped::write(&path, &operands).expect("written");
            let found = grouped::read(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(found, AnyGroupedOperands::Nvfp4(operands));
        }
    }
    let operands = grouped_operands::<Mxfp4>(&[5], [10, 96], None, &Halves::None, LINEAR);
    grouped::write(&path, &operands).expect("written");
    let found = grouped::read(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found, AnyGroupedOperands::Mxfp4(operands));
}

/// The options of a run whose result and bundles go to a folder.
struct Target<'a> {
    folder: &'a Folder,
    device: &'a str,
}

impl Target<'_> {
    /// Runs an operation and returns the printed text, and the file that it wrote; its launches are
    /// replayed.
    fn run(&self, op: &str, more: &[&str]) -> (Value, Checkpoint) {
        let file = |name: &str| self.folder.file(name).display().to_string();
        let (path, out, captured) =
            (file("in.safetensors"), file("out.safetensors"), file("bundles"));
        let _ = (std::fs::remove_file(&out), std::fs::remove_dir_all(&captured));
        let kernels = kernels_dir().display().to_string();
        let fixed = ["run", op, "--device", self.device, "--schedule", "random:3", "--json"];
        let files = ["--inputs", &path, "--out", &out, "--capture", &captured];
        let text = run(&[&fixed[..], &files, &["--kernels", &kernels], more].concat(), 0);
        let json: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["verified"], true, "{json}");
        let mut outputs = 0;
        for entry in std::fs::read_dir(&captured).expect("bundles").flatten() {
            let name = entry.path().display().to_string();
            let bundle = Bundle::read(&entry.path()).expect("read");
            let options = ReplayOptions { schedule: Schedule::Lazy, ..ReplayOptions::default() };
            let replay = bundle.replay(&options).unwrap_or_else(|e| panic!("{name}: {e}"));
            // A launch may write what was there: zeros where nobody chose an expert.
            assert!(replay.is_right(), "{name}");
            outputs += replay.outputs.len();
        }
        assert!(outputs > 0);
        (json, open(Path::new(&out)))
    }
}

/// Compares a grouped product in the file with the oracle.
fn grouped_runs<F: BlockFormat>(target: &Target<'_>, operands: &GroupedOperands<F>, more: &[&str]) {
    grouped::write(&target.folder.file("in.safetensors"), operands).expect("written");
    let (json, file) = target.run("grouped", more);
    let shape = operands.shape().expect("a shape");
    let op = if operands.is_gated() { "grouped dual" } else { "grouped" };
    assert_eq!((&json["op"], &json["plan"]["op"]), (&op.into(), &op.into()), "{json}");
    let mut options = operands.options.clone();
    if operands.is_gated() {
        assert_eq!(json["activation"], "silu");
        options.activation = Activation::Silu;
    }
    let options = group_options(&options, shape.counts.len(), shape.n);
    let weights = operands.weights().expect("weights");
    let a = operands.a.activations();
    let reference = reference_grouped(&a, &weights, &shape.ranges(), &options).expect("oracle");
    let tokens = shape.tokens();
    if json["output"] == "nvfp4" {
        let dims = Dims::new(1, tokens, shape.n).expect("dims");
        let (c, scales) = (file.raw("c").expect("codes"), file.raw("c_scale").expect("scales"));
        let global = file.scalar("c_global_scale").expect("a scale");
        let (codes, scales) = (c.data.to_vec(), scales.data.to_vec());
        let layout = file.metadata("c_scale_layout").expect("a layout");
        let layout = nvfp4_lab::operands::layout_by_name("layout", layout).expect("known");
        let c = BlockScaled::<Nvfp4>::new("c", dims, layout, codes, scales, global).expect("c");
        let values = c.dequantize().expect("memory");
        let db = nvfp4_lab::oracle::sqnr_db(&reference.values, &values);
        assert!(db > 18.0, "{}: {db} dB", target.device);
        return;
    }
    let output = FloatType::by_name(json["output"].as_str().expect("a name")).expect("a type");
    let c = file.raw("c").expect("written");
    assert_eq!(c.shape, [1, tokens, shape.n]);
    let check = reference.verify(&floats::decode(output, &c.data), output);
    assert!(check.passed(), "{}: {}", target.device, check.summary());
}

#[test]
fn grouped_products_are_right_and_their_launches_replay() {
    let folder = Folder::new("grouped-runs");
    for (device, _) in compiled() {
        let target = Target { folder: &folder, device };
        let counts = [3, 0, 17];
        let plain = grouped_operands::<Nvfp4>(&counts, [48, 96], None, &Halves::None, BLOCKED);
        grouped_runs(&target, &plain, &["--dtype", "f32"]);
        grouped_runs(&target, &plain, &["--dtype", "nvfp4", "--out-layout", "128x4"]);
        let f16 = Some(HalfType::F16);
        let gated = grouped_operands::<Nvfp4>(&counts, [40, 64], f16, &pair(), LINEAR);
        grouped_runs(&target, &gated, &[]);
        let bf16 = Some(HalfType::Bf16);
        let gated =
            grouped_operands::<Mxfp4>(&[1, 2], [24, 64], bf16, &Halves::Interleaved, LINEAR);
        grouped_runs(&target, &gated, &["--dtype", "bf16"]);
    }
}

/// A tensor and its name.
type Named = (&'static str, NewTensor);

/// Writes `tensors` with one of them replaced or left out, and runs; it must be refused.
fn refused(
    folder: &Folder,
    op: &str,
    (tensors, metadata): (&[Named], &[(&str, String)]),
    (name, new): (&'static str, Option<NewTensor>),
    message: &str,
) {
    let [path, out] = ["in.safetensors", "out.safetensors"].map(|name| folder.file(name));
    let mut tensors = tensors.to_vec();
    tensors.retain(|(known, _)| *known != name);
    tensors.extend(new.map(|new| (name, new)));
    checkpoint::write(&path, &tensors, metadata).expect("written");
    let [path, out_path] = [&path, &out].map(|path| path.display().to_string());
    let stderr = run(&["run", op, "--inputs", &path, "--out", &out_path], 2);
    assert!(stderr.contains(message), "{name}: {stderr:?} lacks {message:?}");
    assert!(!out.exists());
}

fn bytes(dtype: Dtype, shape: &[usize], value: u8, each: usize) -> NewTensor {
    tensor(dtype, shape, vec![value; each * shape.iter().product::<usize>()])
}

fn i32s(shape: &[usize], values: &[i32]) -> NewTensor {
    tensor(Dtype::I32, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

#[test]
fn bad_grouped_operands_are_refused() {
    let folder = Folder::new("grouped-refused");
    // Two groups of one token and two, N = 3, K = 16.
    let small = [
        ("a", bytes(Dtype::BF16, &[3, 16], 0x3f, 2)),
        ("counts", i32s(&[2], &[1, 2])),
        ("b", bytes(Dtype::U8, &[2, 3, 8], 0x11, 1)),
        ("b_scale", bytes(Dtype::F8_E4M3, &[2, 3, 1], 0x38, 1)),
        ("bias", bytes(Dtype::F32, &[2, 3], 0, 4)),
    ];
    let with = |name: &'static str, new: Option<NewTensor>, message: &str| {
        refused(&folder, "grouped", (&small, &[]), (name, new), message);
    };
    with("a", None, "has no tensor `a`");
    with("counts", None, "has no tensor `counts`");
    with("b", None, "has no tensor `b`");
    with("counts", Some(bytes(Dtype::F32, &[2], 0, 4)), "has type F32; required I32");
    with("counts", Some(i32s(&[1, 2], &[1, 2])), "required [G], at least 1");
    with("counts", Some(i32s(&[0], &[])), "required [G], at least 1");
    with("counts", Some(i32s(&[2], &[4, -1])), "count of group 1 must be at least 0, but is -1");
    with("counts", Some(i32s(&[2], &[1, 1])), "sum of `counts` must be 3, the rows of `a`");
    with(
        "counts",
        Some(i32s(&[2], &[i32::MAX, i32::MAX])),
        "sum of `counts` must be 3, the rows of `a`, but is 4294967294",
    );
    with("counts", Some(i32s(&[3], &[1, 1, 1])), "matrices of `b` must be 3, one for each of");
    with("a", Some(bytes(Dtype::BF16, &[1, 3, 32], 0, 2)), "K of `b` must be 32, the K of `a`");
    with("a", Some(bytes(Dtype::BF16, &[3, 1, 16], 0, 2)), "required [T, K/2] or [T, K]");
    with("a", Some(bytes(Dtype::F32, &[3, 16], 0, 4)), "required U8, F16, BF16 or F8_E4M3");
    with("b", Some(bytes(Dtype::U8, &[6, 8], 0, 1)), "required [matrices, rows, K/2]");
    with("b", Some(bytes(Dtype::U8, &[2, 0, 8], 0, 1)), "rows must be at least 1");
    with("b_scale", Some(bytes(Dtype::U8, &[2, 2, 1], 0, 1)), "length of `b` scales must be 2 x 3");
    with("b_scale", Some(bytes(Dtype::F8_E4M3, &[2, 3, 1], 0x7f, 1)), "`b[0]`");
    with("b_global_scale", Some(bytes(Dtype::F32, &[3], 0, 4)), "required [] or [2], one for each");
    with("bias", Some(bytes(Dtype::F32, &[4], 0, 4)), "required [N = 3] or [G = 2, N = 3]");
    with("row_factors", Some(bytes(Dtype::F32, &[2], 0, 4)), "required [T = 3]");
    with("residual", Some(bytes(Dtype::F32, &[3], 0, 4)), "required [1, 3, 3], or [3, 3]");
    with("up_bias", Some(bytes(Dtype::F32, &[3], 0, 4)), "`up_bias` must be absent");
    with("b_up", Some(bytes(Dtype::U8, &[2, 3, 8], 0, 1)), "has no tensor `b_up_scale`");
    for (metadata, message) in [
        (("format", "fp8"), "metadata `format` must be nvfp4 or mxfp4"),
        (("b_halves", "stacked"), "rows of `b[0]` must be even"),
        (("b_halves", "apart"), "metadata `b_halves` must be stacked or interleaved"),
    ] {
        let metadata = [(metadata.0, metadata.1.to_owned())];
        refused(&folder, "grouped", (&small, &metadata), ("none", None), message);
    }
}

/// A layer of 4 experts, of which `count` from `first` on are in the file, for `tokens` tokens that
/// choose 2 each; all that a file can have.
fn layer<F: BlockFormat>(
    tokens: usize,
    [first, count]: [usize; 2],
    form: &Halves<F>,
    half: HalfType,
    all: bool,
) -> LayerFile<F> {
    let [hidden, between] = [64, 96];
    let shape = MoeShape { tokens, top_k: 2, experts: 4, first, count };
    let mut rng = SplitMix64::new(3);
    let mut normal = |count: usize| (0..count).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
    let dims = Dims::new(1, tokens, hidden).expect("dims");
    let x = HalfMatrix::round("x", dims, half, &normal(tokens * hidden)).expect("x");
    let ids = (0..tokens as i32).flat_map(|token| [token % 4, (token + 1 + token / 4) % 4]);
    let bias = |columns: usize| all.then(|| ramp(count * columns, 0.25)).flatten();
    LayerFile {
        shape,
        x,
        ids: ids.collect(),
        weights: normal(2 * tokens),
        gate: groups("gate", count, [between, hidden], form, LINEAR),
        down: matrices("down", count, [hidden, between], BLOCKED, 9),
        biases: [bias(between), bias(between), bias(hidden)],
        shared: all.then(|| normal(tokens * hidden)),
        scales: None,
    }
}

#[test]
fn layers_come_back_as_they_were_written() {
    let folder = Folder::new("moe-operands");
    let path = folder.file("in.safetensors");
    for (form, all) in [(pair(), true), (Halves::Stacked, false), (Halves::Interleaved, true)] {
        let mut layer = layer::<Nvfp4>(5, [1, 3], &form, HalfType::Bf16, all);
        layer.scales = all.then_some(TokenScales { tokens: 0.5, between: 0.25 });
        moe::write(&path, &layer).expect("written");
        let found = moe::read(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found, AnyLayerFile::Nvfp4(layer));
    }
    let layer = layer::<Mxfp4>(3, [0, 4], &pair(), HalfType::Bf16, true);
    moe::write(&path, &layer).expect("written");
    let found = moe::read(&open(&path)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found, AnyLayerFile::Mxfp4(layer));
}

/// The layer in f64 on dequantised weights, without any rounding between.
fn exact<F: BlockFormat>(layer: &LayerFile<F>) -> Vec<f64> {
    let LayerFile { shape, x, ids, weights, biases, .. } = layer;
    let (hidden, between) = (x.dims().cols(), layer.down[0].dims().cols());
    let x = floats::decode(x.operand().float(), x.bytes());
    let values = |x: &BlockScaled<F>| x.dequantize().expect("memory");
    let dot =
        |row: &[f32], x: &[f64]| -> f64 { row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum() };
    let mut out: Vec<f64> = match &layer.shared {
        Some(shared) => shared.iter().copied().map(f64::from).collect(),
        None => vec![0.0; shape.tokens * hidden],
    };
    for (slot, (&id, &weight)) in ids.iter().zip(weights).enumerate() {
        let Some(expert) = (id as usize).checked_sub(shape.first) else { continue };
        if expert >= shape.count {
            continue;
        }
        let token = slot / shape.top_k;
        let bias = |at: usize, columns: usize, column: usize| {
            biases[at].as_ref().map_or(0.0, |bias| f64::from(bias[expert * columns + column]))
        };
        let own: Vec<f64> = x[token * hidden..][..hidden].iter().copied().map(f64::from).collect();
        let GroupWeights { b, halves } = &layer.gate[expert];
        let first = values(b);
        let row = |row: usize| &first[row * hidden..][..hidden];
        let ups = match halves {
            Halves::Pair(up) => values(up),
            Halves::None | Halves::Stacked | Halves::Interleaved => Vec::new(),
        };
        let inner: Vec<f64> = (0..between)
            .map(|column| {
                let (gate, up) = match halves {
                    Halves::Pair(_) => (row(column), &ups[column * hidden..][..hidden]),
                    Halves::Stacked => (row(column), row(between + column)),
                    Halves::Interleaved => (row(2 * column), row(2 * column + 1)),
                    Halves::None => panic!("layers are gated"),
                };
                let gate = dot(gate, &own) + bias(0, between, column);
                let up = dot(up, &own) + bias(1, between, column);
                gate / (1.0 + (-gate).exp()) * up
            })
            .collect();
        let down = values(&layer.down[expert]);
        for column in 0..hidden {
            let value = dot(&down[column * between..][..between], &inner);
            out[token * hidden + column] += f64::from(weight) * (value + bias(2, hidden, column));
        }
    }
    out
}

fn moe_runs<F: BlockFormat>(target: &Target<'_>, layer: &LayerFile<F>, more: &[&str], db: f64) {
    moe::write(&target.folder.file("in.safetensors"), layer).expect("written");
    let (json, file) = target.run("moe", more);
    assert_eq!((&json["op"], &json["format"]), (&"moe".into(), &F::NAME.into()), "{json}");
    let steps = json["steps"].as_array().expect("a list");
    assert!(steps.iter().all(|step| step["verified"] == true), "{json}");
    let activations = json["activations"].as_str().expect("a name");
    let expected = match (activations, layer.shape.tokens) {
        ("nvfp4", _) => 6,
        // One token in 16 bits is neither routed nor gathered.
        ("f16" | "bf16", 1) => 3,
        _ => 5,
    };
    assert_eq!(steps.len(), expected, "{json}");
    assert_eq!(json["scales"].is_array(), activations == "nvfp4", "{json}");
    let output = FloatType::by_name(json["output"].as_str().expect("a name")).expect("a type");
    let c = file.raw("c").expect("written");
    assert_eq!(c.shape, [layer.shape.tokens, layer.x.dims().cols()]);
    let got = floats::decode(output, &c.data);
    let found = nvfp4_lab::oracle::sqnr_db(&exact(layer), &got);
    assert!(found > db, "{}: {found} dB", target.device);
}

#[test]
fn layers_are_right_and_their_launches_replay() {
    let folder = Folder::new("moe-runs");
    for (device, _) in compiled() {
        let target = Target { folder: &folder, device };
        let whole = layer::<Nvfp4>(5, [0, 4], &pair(), HalfType::F16, true);
        moe_runs(&target, &whole, &[], 55.0);
        moe_runs(&target, &whole, &["--quantize", "fp8"], 20.0);
        // Experts elsewhere: some, and all that anybody chose.
        let part = layer::<Nvfp4>(9, [1, 2], &Halves::Stacked, HalfType::Bf16, true);
        moe_runs(&target, &part, &["--dtype", "bf16"], 35.0);
        let mut none = layer::<Nvfp4>(1, [2, 2], &Halves::Interleaved, HalfType::Bf16, true);
        none.ids = vec![0, 1];
        moe_runs(&target, &none, &["--dtype", "f32"], 100.0);
        let mut fp4 = layer::<Nvfp4>(6, [0, 4], &Halves::Interleaved, HalfType::Bf16, false);
        moe_runs(&target, &fp4, &["--quantize"], 10.0);
        moe_runs(&target, &fp4, &["--quantize", "fp4-rows", "--batch-invariant"], 10.0);
        let options = MoeOptions::new();
        fp4.scales = Some(fp4.operands(&options).expect("fits").token_scales().expect("oracle"));
        moe_runs(&target, &fp4, &[], 10.0);
        let mx = layer::<Mxfp4>(3, [0, 4], &pair(), HalfType::Bf16, false);
        moe_runs(&target, &mx, &["--dtype", "f32"], 35.0);
    }
}

#[test]
fn bad_layers_are_refused() {
    let folder = Folder::new("moe-refused");
    // Two tokens, two experts, H = 32, I = 16.
    let small = [
        ("x", bytes(Dtype::BF16, &[2, 32], 0x3f, 2)),
        ("ids", i32s(&[2, 1], &[0, 1])),
        ("weights", tensor(Dtype::F32, &[2, 1], f32s(&[0.5, 1.0]))),
        ("gate", bytes(Dtype::U8, &[2, 16, 16], 0x11, 1)),
        ("gate_scale", bytes(Dtype::F8_E4M3, &[2, 16, 2], 0x38, 1)),
        ("gate_up", bytes(Dtype::U8, &[2, 16, 16], 0x11, 1)),
        ("gate_up_scale", bytes(Dtype::F8_E4M3, &[2, 16, 2], 0x38, 1)),
        ("down", bytes(Dtype::U8, &[2, 32, 8], 0x11, 1)),
        ("down_scale", bytes(Dtype::F8_E4M3, &[2, 32, 1], 0x38, 1)),
    ];
    let with = |name: &'static str, new: Option<NewTensor>, message: &str| {
        refused(&folder, "moe", (&small, &[]), (name, new), message);
    };
    for name in ["x", "ids", "weights", "gate", "gate_scale", "gate_up_scale", "down"] {
        with(name, None, &format!("has no tensor `{name}`"));
    }
    with("gate_up", None, "weights of `gate` must be gated");
    with("x", Some(bytes(Dtype::F32, &[2, 32], 0, 4)), "required F16 or BF16");
    with("x", Some(bytes(Dtype::BF16, &[1, 2, 32], 0, 2)), "required [T, H]");
    with("x", Some(bytes(Dtype::BF16, &[0, 32], 0, 2)), "rows must be at least 1");
    with("x", Some(bytes(Dtype::BF16, &[2, 64], 0, 2)), "K of `gate[0]` must be 64, but is 32");
    let nan = tensor(Dtype::BF16, &[2, 32], [0xc0, 0x7f].repeat(64));
    with("x", Some(nan), "has NaN at index 0");
    with("ids", Some(bytes(Dtype::U8, &[2, 1], 0, 1)), "has type U8; required I32");
    with("ids", Some(i32s(&[2], &[0, 1])), "required [T = 2, k]");
    with("ids", Some(i32s(&[2, 0], &[])), "has shape [2, 1]; required [T = 2, k = 0]");
    with("ids", Some(i32s(&[2, 1], &[0, 2])), "id 0 of token 1 must be from 0 to 1, but is 2");
    with("ids", Some(i32s(&[2, 1], &[-1, 0])), "id 0 of token 0 must be from 0 to 1, but is -1");
    with("weights", Some(tensor(Dtype::F32, &[2, 1], f32s(&[f32::NAN, 1.0]))), "has NaN");
    with("weights", Some(bytes(Dtype::F32, &[2, 2], 0, 4)), "required [T = 2, k = 1]");
    with("gate_bias", Some(bytes(Dtype::F32, &[2, 15], 0, 4)), "required [2, I = 16]");
    with("down_bias", Some(bytes(Dtype::F32, &[16], 0, 4)), "required [2, H = 32]");
    with("shared", Some(bytes(Dtype::F32, &[2, 31], 0, 4)), "required [T = 2, H = 32]");
    with("x_global_scale", Some(bytes(Dtype::F32, &[1], 0, 4)), "no tensor `between_global_scale`");
    with("down", Some(bytes(Dtype::U8, &[1, 32, 8], 0, 1)), "length of `down` scales");
    for (key, value, message) in [
        ("experts", "1", "must be"),
        ("experts", "two", "metadata `experts` must be a number, but is `two`"),
        ("first", "1", "experts of this device must be within 2"),
        ("format", "int4", "metadata `format` must be nvfp4 or mxfp4"),
        ("gate_halves", "stacked", "metadata `gate_halves` must be absent beside `gate_up`"),
    ] {
        let metadata = [(key, value.to_owned())];
        refused(&folder, "moe", (&small, &metadata), ("none", None), message);
    }
}
