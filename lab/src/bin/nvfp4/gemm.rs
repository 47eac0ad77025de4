//! `run gemm`, `run dual` and `run grouped`: a product of operands from a file.

use std::fmt;
use std::process::ExitCode;

use fp4_formats::BlockFormat;
use nvfp4::device::{Choice, Kernels};
use nvfp4::error::Result;
use nvfp4::gemm::{
    Activation, Activations, GemmOptions, GemmOverrides, GemmPlan, GemmResult, GroupedRun, Output,
    Repacked, Weights, gemm, gemm_gated, group_options,
};
use nvfp4::observe::Reports;
use nvfp4::quantize::Format;
use nvfp4::tensor::Dims;
use nvfp4_checkpoint::{Checkpoint, Model};
use nvfp4_lab::bench::Emulated;
use nvfp4_lab::gemm::{Verify, reference, reference_grouped};
use nvfp4_lab::operands::gemm::{AnyOperands, GemmOperands, read, write_result};
use nvfp4_lab::operands::grouped::{self, AnyGroupedOperands, GroupedOperands};
use nvfp4_lab::operands::layer::{self, Context, Values};
use nvfp4_lab::oracle::{Reference, Verification};
use nvfp4_lab::shape::{GemmShape, Shape};
use serde::Serialize;

use crate::args::{Gemm, Grouped, Product, ResultType};
use crate::common::{GATE, exit, open, print};
use crate::progress::Progress;

/// A run on given operands, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    /// The source of the operands; absent if they are from a file of operands.
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
    let args = &args.product;
    match operands {
        AnyOperands::Nvfp4(operands) => multiply(args, gated, operands, layer, progress),
        AnyOperands::Mxfp4(operands) => multiply(args, gated, operands, layer, progress),
    }
}

/// A grouped product, gated where its weights are.
pub fn run_grouped(args: &Grouped) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    progress.step("reading operands");
    let args_of = &args.product;
    match grouped::read(&Checkpoint::open(&args.inputs)?)? {
        AnyGroupedOperands::Nvfp4(operands) => multiply_groups(args_of, operands, progress),
        AnyGroupedOperands::Mxfp4(operands) => multiply_groups(args_of, operands, progress),
    }
}

/// Returns the output that is asked for; the scale of a result in NVFP4 may be left open, and is 1
/// then.
fn asked(args: &Product) -> anyhow::Result<Output> {
    match (args.dtype, args.out_scale) {
        (ResultType::Blocks(Format::Nvfp4), scale) => {
            Ok(Output::Nvfp4 { scale: scale.unwrap_or(1.0), layout: args.out_layout })
        }
        (ResultType::Blocks(Format::Mxfp4), None) => Ok(Output::Mxfp4 { layout: args.out_layout }),
        (ResultType::Floats(floats), None) => Ok(floats.into()),
        (other, Some(scale)) => {
            let name = other.name();
            anyhow::bail!("--out-scale must be absent for a result in {name}, but is {scale}")
        }
    }
}

impl Product {
    /// The options of a file's operands with what is asked for.
    fn options(&self, of_file: &GemmOptions, output: Output) -> GemmOptions {
        let overrides = GemmOverrides::new()
            .kernel(self.kernel.clone())
            .split(self.split)
            .batch_invariant(self.batch_invariant);
        let default = if of_file.up.is_some() { GATE } else { Activation::default() };
        let activation = self.activation.unwrap_or(default);
        let options = of_file.clone().output(output).overrides(overrides);
        options.activation(activation).adding(self.adding)
    }
}

fn multiply<F: BlockFormat>(
    args: &Product,
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
    let opened = open(&args.target, args.results.capture.as_deref(), &progress)?.observed();
    let (a, b) = (operands.a.activations(), operands.weights()?);
    let run = Run::<F> {
        args,
        shape,
        name: if gated { Shape::Dual(shape) } else { Shape::Gemm(shape) }.to_string(),
        opened,
        a: &a,
        options: args.options(&operands.options, output),
        layer,
    };
    run.verified(
        progress,
        |options| reference(&a, b, options),
        |kernels, options| match &b {
            Weights::Plain(b) => gemm(kernels, &a, b, options),
            Weights::Gated(b) => gemm_gated(kernels, &a, b, options),
        },
    )
}

fn multiply_groups<F: BlockFormat>(
    args: &Product,
    operands: GroupedOperands<F>,
    progress: Progress,
) -> anyhow::Result<ExitCode> {
    let output = asked(args)?;
    let shape = operands.shape()?;
    let tokens = shape.tokens();
    output.bytes(Dims::new(1, tokens, shape.n)?)?;
    let opened = open(&args.target, args.results.capture.as_deref(), &progress)?.observed();
    let (a, weights) = (operands.a.activations(), operands.weights()?);
    let gated = operands.is_gated();
    let (groups, ranges) = (shape.counts.len(), shape.ranges());
    let run = Run::<F> {
        args,
        shape: GemmShape::of(tokens, shape.n, shape.k),
        name: if gated { Shape::GroupedDual(shape.clone()) } else { Shape::Grouped(shape.clone()) }
            .to_string(),
        opened,
        a: &a,
        options: args.options(&operands.options, output),
        layer: None,
    };
    run.verified(
        progress,
        |options| {
            let options = group_options(options, groups, shape.n);
            reference_grouped(&a, &weights, &ranges, &options)
        },
        |kernels, options| {
            let part = |weights: &Weights<'_, F>| {
                Repacked::of_weights(kernels.device(), *weights, a.kind())
            };
            let parts: Vec<Repacked> = weights.iter().map(part).collect::<Result<_>>()?;
            let weights = Repacked::stack(&parts)?;
            GroupedRun::new(kernels, &a, &weights, &shape.counts, options)?.run()
        },
    )
}

/// A product on the way to its result.
struct Run<'a, F> {
    args: &'a Product,
    /// Sizes of the result, and K.
    shape: GemmShape,
    name: String,
    /// The kernels, and the reports of their launches.
    opened: (Kernels, Reports),
    a: &'a Activations<'a, F>,
    options: GemmOptions,
    layer: Option<Context>,
}

impl<F: BlockFormat> Run<'_, F> {
    /// Makes the product, compares it with the reference, writes it, and prints the report.
    fn verified(
        self,
        progress: Progress,
        reference: impl Fn(&GemmOptions) -> Result<Reference>,
        product: impl Fn(&Kernels, &GemmOptions) -> Result<GemmResult>,
    ) -> anyhow::Result<ExitCode> {
        let Self { args, shape, name, opened: (kernels, reports), a, mut options, layer } = self;
        let mut expected = None;
        if let (Output::Nvfp4 { layout, .. }, None) = (options.output, args.out_scale) {
            progress.step("looking for the largest magnitude");
            let reference = expected.insert(reference(&options)?);
            options.output = Output::nvfp4_of(reference.largest(), layout);
        }
        progress.step("multiplying");
        let result = product(&kernels, &options)?;
        progress.step("verifying");
        let expected = expected.map_or_else(|| reference(&options), Ok)?;
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
            shape: name,
            format: F::NAME,
            activations: a.kind().name(),
            activation: options.activation.to_string(),
            output: result.output.name(),
            output_scale: match result.output {
                Output::Nvfp4 { scale, .. } => Some(scale),
                Output::Floats(_) | Output::Mxfp4 { .. } => None,
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
}
