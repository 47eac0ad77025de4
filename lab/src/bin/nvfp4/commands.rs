//! The implementation of each command.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use fp4_formats::{FloatType, HalfType, ScaleLayout};
use nvfp4::device::Choice;
use nvfp4::error::{Error, ErrorKind, Result as LibraryResult};
use nvfp4::gemm::{Activation, GemmOptions, GemmOverrides, Output};
use nvfp4::gemv::{self, GemvOptions, GemvOverrides, GemvPlan};
use nvfp4::quantize::{self, Format, QuantizeOptions, TensorScale};
use nvfp4::rows::{Results, Rotation, RowsOptions, Source};
use nvfp4_checkpoint::{Checkpoint, Model};
use nvfp4_lab::bench::{
    self, ActivationInput, Emulated, GemmBench, GemvBench, Protocol, QuantizeBench, RowsBench,
};
use nvfp4_lab::layer::{self, ActivationSource, Weight};
use nvfp4_lab::oracle::{self, Verification};
use nvfp4_lab::shape::{self, RowsShape, Shape};
use nvfp4_lab::{doctor, operands};
use serde::Serialize;
use serde_json::json;

use crate::args::{Args, Bench, BenchRows, Command, Doctor, Gemv, ResultType, Run};
use crate::checkpoints;
use crate::common::{exit, gated, open, print};
use crate::gemm;
use crate::moe;
use crate::progress::Progress;
use crate::report;
use crate::rows;
use crate::selftest;
use crate::tune;

/// There is nothing to run on.
const NOTHING: u8 = 2;

pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Run(Run::Gemv(args)) => {
            match (&args.checkpoint, &args.weight.tensor, &args.inputs) {
                (Some(path), Some(tensor), _) => run_checkpoint(&args, &Model::open(path)?, tensor),
                (_, _, Some(path)) => run_inputs(&args, path),
                _ => anyhow::bail!("either --checkpoint with --tensor or --inputs is required"),
            }
        }
        Command::Run(Run::Gemm(args)) => gemm::run(&args, false),
        Command::Run(Run::Dual(args)) => gemm::run(&args, true),
        Command::Run(Run::Grouped(args)) => gemm::run_grouped(&args),
        Command::Run(Run::Moe(args)) => moe::run(&args),
        Command::Run(Run::Rows(args)) => rows::run(&args),
        Command::Bench(args) => run_bench(&args),
        Command::Quantize(args) => checkpoints::quantize(&args),
        Command::Dequantize(args) => checkpoints::dequantize(&args),
        Command::Convert(args) => checkpoints::convert(&args),
        Command::Verify(args) => checkpoints::verify(&args),
        Command::Inspect(args) => checkpoints::inspect(&args),
        Command::Doctor(args) => diagnose(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Report(args) => report::run(&args),
    }
}

fn run_checkpoint(args: &Gemv, model: &Model, tensor: &str) -> anyhow::Result<ExitCode> {
    let source = match (&args.vector, args.seed) {
        (Some(path), _) => ActivationSource::File(path.clone()),
        (None, Some(seed)) => ActivationSource::Normal { seed },
        (None, None) => ActivationSource::Embedding { token: args.token },
    };
    let progress = Progress::new();
    let kernels = open(&args.target, args.results.capture.as_deref(), &progress)?;
    let options = GemvOptions::new().output(args.dtype);
    progress.step(format!("multiplying {tensor}"));
    let weight = Weight { tensor, expert: args.weight.expert };
    let (report, result) = layer::run(&kernels, model, weight, &source, args.layout, options)?;
    if let (true, Some(path)) = (report.verified, &args.results.out) {
        let rows = report.verification.outputs;
        operands::write_result(path, &result, 1, rows)?;
    }
    drop(progress);
    print(&report, args.target.json)?;
    Ok(exit(report.verified))
}

/// The report of a run on given operands, as `--json` prints it.
#[derive(Serialize)]
struct InputsReport {
    op: &'static str,
    shape: String,
    output: &'static str,
    device: Choice,
    plan: GemvPlan,
    verified: bool,
    max_error: f64,
    verification: Verification,
    emulated: Option<Emulated>,
}

impl Display for InputsReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}, result {}", self.shape, self.output)?;
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        writeln!(f, "  {}", self.verification.summary())?;
        if let Some(emulated) = &self.emulated {
            write!(f, "{emulated}")?;
        }
        Ok(())
    }
}

fn run_inputs(args: &Gemv, path: &Path) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    progress.step("reading operands");
    let operands::GemvOperands { a, b, alpha } = operands::read(&Checkpoint::open(path)?)?;
    let (kernels, reports) =
        open(&args.target, args.results.capture.as_deref(), &progress)?.observed();
    let options = GemvOptions::new().alpha(alpha).output(args.dtype);
    progress.step("multiplying");
    let result = gemv::gemv(&kernels, &a, &b, options)?;
    progress.step("verifying");
    let verification = oracle::gemv(&a, &b, alpha)?
        .with_additions(result.plan.additions)
        .verify(&result.values(), result.output);
    let shape = gemv::shape(&a, &b)?;
    if let (true, Some(path)) = (verification.passed(), &args.results.out) {
        operands::write_result(path, &result, shape.l, shape.m)?;
    }
    drop(progress);
    let verified = verification.passed();
    let report = InputsReport {
        op: "gemv",
        shape: shape.to_string(),
        output: result.output.name(),
        device: kernels.device().choice().clone(),
        emulated: Emulated::of(kernels.device(), &reports.take()),
        plan: result.plan,
        verified,
        max_error: verification.max_abs_error,
        verification,
    };
    print(&report, args.target.json)?;
    Ok(exit(verified))
}

fn run_bench(args: &Bench) -> anyhow::Result<ExitCode> {
    let sets = args.set.iter().map(|name| shape::set(name)).collect::<Result<Vec<_>, _>>()?;
    let mut shapes =
        args.shape.iter().map(|text| text.parse()).collect::<Result<Vec<Shape>, _>>()?;
    shapes.extend(sets.concat());
    if let Some(ResultType::Blocks(format)) = args.dtype
        && let Some(shape) = shapes.iter().find(|shape| {
            matches!(
                shape,
                Shape::Gemv(_)
                    | Shape::Moe(_)
                    | Shape::Quantize(_)
                    | Shape::Rows(_)
                    | Shape::Mlp(_)
            )
        })
    {
        anyhow::bail!("--dtype of {shape} must be f16, bf16 or f32, but is {}", format.name());
    }
    let progress = Progress::new();
    let kernels = open(&args.target, args.capture.as_deref(), &progress)?;
    let kernels = if args.serial { kernels.serial() } else { kernels };
    if !args.set.is_empty() && kernels.device().gpu("bench").is_err() {
        let large: Vec<Shape> = shapes.extract_if(.., |shape| shape.is_large()).collect();
        for shape in large {
            let line = format!("left out on an emulated device: {shape}; --shape runs it");
            progress.suspend(|| writeln!(io::stderr(), "{line}"))?;
        }
    }
    let bench = GemvBench {
        generator: args.generator,
        seed: args.seed,
        layouts: [ScaleLayout::Linear, args.layout],
        as_stored: args.as_stored,
        options: GemvOptions::new()
            .output(ResultType::floats(args.dtype, FloatType::F16))
            .overrides(GemvOverrides::new().kernel(args.kernel.clone()).ctas(args.ctas)),
        protocol: protocol(args),
    };
    let quantize = quantize_bench(args)?;
    let gemm_bench = gemm_bench(args);
    if args.tune.tune {
        return tune::run(args, &kernels, &shapes, &gemm_bench, progress);
    }
    let gated_bench = gated(&gemm_bench, args.gemm.activation);
    let run = |shape: &Shape| -> LibraryResult<BenchReport> {
        let gemm = |report: bench::GemmReport| BenchReport::Gemm(Box::new(report));
        Ok(match shape {
            Shape::Gemv(shape) => {
                BenchReport::Gemv(Box::new(bench::gemv(&kernels, *shape, &bench)?))
            }
            Shape::Gemm(shape) => gemm(bench::gemm(&kernels, *shape, &gemm_bench)?),
            Shape::Dual(shape) => gemm(bench::gemm(&kernels, *shape, &gated_bench)?),
            Shape::Grouped(shape) => gemm(bench::grouped(&kernels, shape, &gemm_bench)?),
            Shape::GroupedDual(shape) => gemm(bench::grouped(&kernels, shape, &gated_bench)?),
            Shape::Moe(shape) => {
                BenchReport::Moe(Box::new(bench::moe(&kernels, *shape, &gated_bench)?))
            }
            Shape::Quantize(shape) => {
                BenchReport::Quantize(Box::new(bench::quantize(&kernels, *shape, &quantize)?))
            }
            Shape::Rows(shape) => {
                let bench = rows_bench(args, *shape, &quantize.options)?;
                BenchReport::Rows(Box::new(bench::rows(&kernels, *shape, &bench)?))
            }
            Shape::Mlp(shape) => {
                BenchReport::Mlp(Box::new(bench::mlp(&kernels, *shape, &gated_bench)?))
            }
        })
    };
    let mut page = args.report.begin(&kernels)?;
    let launches = if args.serial { "one by one" } else { "overlapping" };
    let (mut reports, mut failure) = (Vec::new(), None);
    for shape in &shapes {
        progress.step(format!("running and verifying {shape}"));
        let report = match (run(shape), &mut page) {
            (Ok(report), _) => Benched { launches, report },
            (Err(error), None) => return Err(error.into()),
            // The report has what came before. A device without room for one shape is usable.
            (Err(error), Some(page)) => {
                let why = error.to_string();
                page.add(json!({"op": shape.op(), "shape": shape.to_string(), "error": why}));
                let goes_on = error.kind() == ErrorKind::OutOfMemory;
                failure.get_or_insert(error);
                if goes_on {
                    continue;
                }
                break;
            }
        };
        if let Some(page) = &mut page {
            page.add(serde_json::to_value(&report)?);
        }
        if !args.target.json {
            progress.suspend(|| print(&report, false))?;
        }
        reports.push(report);
    }
    if let Some(page) = page {
        page.write()?;
    }
    if let Some(error) = failure {
        return Err(error.into());
    }
    drop(progress);
    if args.target.json {
        // A single `--shape` gives one object; otherwise the output is a list.
        let text = match reports.as_slice() {
            [report] if args.set.is_empty() => serde_json::to_string_pretty(report)?,
            _ => serde_json::to_string_pretty(&reports)?,
        };
        writeln!(io::stdout(), "{text}")?;
    } else {
        let verified = reports.iter().filter(|report| report.report.verified()).count();
        let verdict = if verified == reports.len() { "ok" } else { "WRONG" };
        let device = &kernels.device().choice().device;
        let shapes = reports.len();
        writeln!(io::stdout(), "{verdict}: {verified} of {shapes} shapes verified on {device}")?;
    }
    Ok(exit(reports.iter().all(|report| report.report.verified())))
}

fn protocol(args: &Bench) -> Protocol {
    let (replays, cublas, host) = (args.replays, args.vs.is_some(), args.host);
    Protocol { replays, cublas, host, ..Protocol::default() }
}

fn gemm_bench(args: &Bench) -> GemmBench {
    let overrides = GemmOverrides::new()
        .kernel(args.kernel.clone())
        .split(args.gemm.split)
        .batch_invariant(args.gemm.batch_invariant);
    let (output, quantized) = match args.dtype {
        None => (Output::default(), None),
        Some(ResultType::Floats(floats)) => (floats.into(), None),
        Some(ResultType::Blocks(Format::Nvfp4)) => (Output::default(), Some(args.gemm.out_layout)),
        Some(ResultType::Blocks(Format::Mxfp4)) => {
            (Output::Mxfp4 { layout: args.gemm.out_layout }, None)
        }
    };
    GemmBench {
        format: args.quantize.format,
        activations: args.gemm.activations.unwrap_or_else(|| default_activations(args)),
        generator: args.generator,
        decoded: args.gemm.decoded,
        seed: args.seed,
        layout: args.layout,
        options: GemmOptions::new()
            .output(output)
            .overrides(overrides)
            .adding(args.gemm.adding)
            .activation(args.gemm.activation.unwrap_or_default()),
        quantized,
        protocol: protocol(args),
        explain: args.gemm.explain,
        sweep: args.gemm.sweep,
    }
}

/// The activations where none are asked for.
fn default_activations(args: &Bench) -> ActivationInput {
    match args.set.iter().any(|name| name == "all") {
        true => ActivationInput::Halves(HalfType::F16),
        false => ActivationInput::Fp4,
    }
}

fn quantize_bench(args: &Bench) -> LibraryResult<QuantizeBench> {
    let recipe = quantize::recipe_by_name(args.quantize.format, &args.quantize.recipe)?;
    let scale = match (args.quantize.scale.as_str(), recipe) {
        ("one", _) => TensorScale::OneLevel,
        ("amax", _) => TensorScale::FromAmax,
        ("row", _) => TensorScale::PerRow,
        // The scale for the largest magnitude of normal values in such shapes.
        (_, recipe) => {
            recipe.tensor_parameter(6.0).map_or(TensorScale::OneLevel, TensorScale::Given)
        }
    };
    Ok(QuantizeBench {
        direction: args.quantize.direction,
        element: ResultType::floats(args.dtype, FloatType::Bf16),
        options: QuantizeOptions::new(recipe).scale(scale).layout(args.layout),
        seed: args.seed,
        protocol: protocol(args),
    })
}

fn rows_bench(
    args: &Bench,
    shape: RowsShape,
    blocks: &QuantizeOptions,
) -> LibraryResult<RowsBench> {
    let BenchRows { norm, residual, to, rotate } = &args.rows;
    let (epsilon, residual) = (1e-6, *residual);
    let source = match (shape.gated, norm.as_str()) {
        (true, _) => Source::Gated(args.gemm.activation.unwrap_or(Activation::Silu)),
        (false, "layer") => Source::LayerNorm { epsilon, residual, bias: true },
        (false, "none") => Source::Plain,
        (false, _) => Source::RmsNorm { epsilon, residual },
    };
    if residual && !source.has_residual() {
        let required = "absent where nothing is normalised";
        return Err(Error::shape("residual", required, "there"));
    }
    let results = match to.as_deref() {
        Some("e4m3") => Results::E4m3,
        Some(_) => Results::Half,
        None => Results::Blocks(*blocks),
    };
    let element = match ResultType::floats(args.dtype, FloatType::Bf16) {
        FloatType::F16 => HalfType::F16,
        FloatType::Bf16 => HalfType::Bf16,
        FloatType::F32 => return Err(Error::shape("--dtype", "f16 or bf16", "f32")),
    };
    let rotation = rotate.then_some(Rotation { signs: 0x6b2d });
    Ok(RowsBench {
        element,
        options: RowsOptions::new(source, results).rotation(rotation),
        seed: args.seed,
        protocol: protocol(args),
    })
}

/// A report of `bench`.
#[derive(Serialize)]
struct Benched {
    /// Whether launches overlap or follow one another one by one.
    launches: &'static str,
    #[serde(flatten)]
    report: BenchReport,
}

impl Display for Benched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report.fmt(f)
    }
}

/// The report of one shape of any operation.
#[derive(Serialize)]
#[serde(untagged)]
enum BenchReport {
    Gemv(Box<bench::Report>),
    Gemm(Box<bench::GemmReport>),
    Moe(Box<bench::MoeReport>),
    Quantize(Box<bench::QuantizeBenchReport>),
    Rows(Box<bench::RowsReport>),
    Mlp(Box<bench::MlpReport>),
}

impl BenchReport {
    fn verified(&self) -> bool {
        match self {
            Self::Gemv(report) => report.verified,
            Self::Gemm(report) => report.head.verified,
            Self::Moe(report) => report.head.verified,
            Self::Quantize(report) => report.verified,
            Self::Rows(report) => report.verified,
            Self::Mlp(report) => report.head.verified,
        }
    }
}

impl Display for BenchReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gemv(report) => report.fmt(f),
            Self::Gemm(report) => report.fmt(f),
            Self::Moe(report) => report.fmt(f),
            Self::Quantize(report) => report.fmt(f),
            Self::Rows(report) => report.fmt(f),
            Self::Mlp(report) => report.fmt(f),
        }
    }
}

fn diagnose(args: &Doctor) -> anyhow::Result<ExitCode> {
    let diagnosis = doctor::diagnose(args.kernels.as_deref())?;
    print(&diagnosis, args.json)?;
    Ok(if diagnosis.ready { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
}
