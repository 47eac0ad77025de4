//! `run gemm` and `run dual`: a product of operands from a file.

use std::fmt;
use std::process::ExitCode;

use fp4_formats::BlockFormat;
use nvfp4::bench::Emulated;
use nvfp4::checkpoint::{Checkpoint, Model};
use nvfp4::device::Choice;
use nvfp4::gemm::{
    Activation, GemmOverrides, GemmPlan, Output, Weights, gemm, gemm_gated, reference,
};
use nvfp4::operands::gemm::{AnyOperands, GemmOperands, read, write_result};
use nvfp4::operands::layer::{self, Context, Values};
use nvfp4::oracle::Verification;
use nvfp4::shape::Shape;
use nvfp4::tensor::Dims;
use serde::Serialize;

use crate::args::{Gemm, ResultType};
use crate::commands::{GATE, exit, open, print};
use crate::progress::Progress;

/// A run on given operands, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    /// Where the operands came from; absent if from a file of operands.
    #[serde(flatten)]
    source: Option<Source>,
    shape: String,
    format: &'static str,
    activations: &'static str,
    activation: String,
    output: &'static str,
    /// Scale of the whole result; only in NVFP4.
    output_scale: Option<f32>,
    device: Choice,
    plan: GemmPlan,
    verified: bool,
    max_error: f64,
    verification: Verification,
    /// Counters of each launch; only from the emulator.
    emulated: Vec<Emulated>,
}

/// Operands from a checkpoint, and what their quantisation costs.
#[derive(Serialize)]
struct Source {
    #[serde(flatten)]
    layer: Context,
    /// Signal-to-quantisation-noise ratio against the f64 product of the data before, dB.
    sqnr_db: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, format, activations, output, .. } = self;
        write!(f, "{shape}, {format} weights, {activations} activations, result {output}")?;
        match self.output_scale {
            Some(scale) => writeln!(f, " of scale {scale:e}")?,
            None => writeln!(f)?,
        }
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        writeln!(f, "  {}", self.verification.summary())?;
        if let Some(Source { layer, sqnr_db }) = &self.source {
            writeln!(f, "  weight    {} ({})", layer.tensor, layer.stored)?;
            writeln!(f, "  vectors   {}", layer.vector)?;
            writeln!(f, "  SQNR      {sqnr_db:.2} dB against the f64 product of the data before")?;
        }
        self.emulated.iter().try_for_each(|emulated| write!(f, "{emulated}"))
    }
}

/// `gated` says which of both was asked for.
pub fn run(args: &Gemm, gated: bool) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    progress.step("reading operands");
    let (operands, layer) = match (&args.inputs, &args.checkpoint, &args.weight.tensor) {
        (Some(path), ..) => (read(&Checkpoint::open(path)?)?, None),
        (None, Some(_), _) if gated => {
            anyhow::bail!("`run dual` takes its operands from --inputs, not from --checkpoint")
        }
        (None, Some(path), Some(tensor)) => {
            let values = match &args.vector {
                Some(path) => Values::File(path.clone()),
                None => Values::Normal { rows: args.rows, seed: args.seed },
            };
            let model = Model::open(path)?;
            let layer = layer::read(&model, tensor, args.weight.expert, &values, args.activations)?;
            (layer.operands, Some(layer.context))
        }
        (None, ..) => anyhow::bail!("either --checkpoint with --tensor or --inputs is required"),
    };
    match operands {
        AnyOperands::Nvfp4(operands) => multiply(args, gated, operands, layer, progress),
        AnyOperands::Mxfp4(operands) => multiply(args, gated, operands, layer, progress),
    }
}

/// What is asked for; of a result in NVFP4 the scale may be left open, and is 1 then.
fn asked(args: &Gemm) -> anyhow::Result<Output> {
    match (args.dtype, args.out_scale) {
        (ResultType::Nvfp4, scale) => {
            Ok(Output::Nvfp4 { scale: scale.unwrap_or(1.0), layout: args.out_layout })
        }
        (ResultType::Floats(floats), None) => Ok(floats.into()),
        (ResultType::Floats(floats), Some(scale)) => {
            let name = Output::from(floats).name();
            anyhow::bail!("--out-scale must be absent for a result in {name}, but is {scale}")
        }
    }
}

fn multiply<F: BlockFormat>(
    args: &Gemm,
    gated: bool,
    operands: GemmOperands<F>,
    layer: Option<Context>,
    progress: Progress,
) -> anyhow::Result<ExitCode> {
    let (output, shape) = (asked(args)?, operands.shape());
    match (gated, operands.is_gated()) {
        (true, true) | (false, false) => {}
        (true, false) => anyhow::bail!(
            "`run dual` takes weights of two halves (`b_up`, or metadata `b_halves`), and this file has one matrix"
        ),
        (false, true) => {
            anyhow::bail!("this file has weights of two halves, which `run dual` takes")
        }
    }
    output.bytes(Dims::new(shape.l, shape.m, shape.n)?)?;
    let (kernels, reports) =
        open(&args.target, args.results.capture.as_deref(), &progress)?.observed();
    let GemmOperands { a, options, .. } = &operands;
    let (a, b) = (a.activations(), operands.weights()?);
    let overrides = GemmOverrides::new().kernel(args.kernel.clone()).split(args.split);
    let activation = args.activation.unwrap_or(if gated { GATE } else { Activation::default() });
    let mut options = options.clone().output(output).overrides(overrides).activation(activation);
    let mut expected = None;
    if let (Output::Nvfp4 { layout, .. }, None) = (output, args.out_scale) {
        progress.step("looking for the largest magnitude");
        let reference = expected.insert(reference(&a, b, &options)?);
        options.output = Output::nvfp4_of(reference, layout);
    }
    progress.step("multiplying");
    let result = match &b {
        Weights::Plain(b) => gemm(&kernels, &a, b, &options)?,
        Weights::Gated(b) => gemm_gated(&kernels, &a, b, &options)?,
    };
    progress.step("verifying");
    let expected = expected.map_or_else(|| reference(&a, b, &options), Ok)?;
    let verification = result.verify(&expected);
    let verified = verification.passed();
    if let (true, Some(path)) = (verified, &args.results.out) {
        write_result(path, &result, shape)?;
    }
    drop(progress);
    let source = match &layer {
        None => None,
        Some(layer) => {
            let values = layer.product(&result.values())?;
            Some(Source { layer: layer.clone(), sqnr_db: values })
        }
    };
    let device = kernels.device();
    let report = Report {
        op: result.plan.op,
        source,
        shape: if gated { Shape::Dual(shape) } else { Shape::Gemm(shape) }.to_string(),
        format: F::NAME,
        activations: a.kind().name(),
        activation: activation.to_string(),
        output: result.output.name(),
        output_scale: match result.output {
            Output::Nvfp4 { scale, .. } => Some(scale),
            Output::Floats(_) => None,
        },
        device: device.choice().clone(),
        emulated: Emulated::each(device, &reports.take()),
        plan: result.plan,
        verified,
        max_error: verification.max_abs_error,
        verification,
    };
    print(&report, args.target.json)?;
    Ok(exit(verified))
}
