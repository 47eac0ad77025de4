//! `run moe`: a mixture of experts on operands from a file.

use std::fmt;
use std::process::ExitCode;

use fp4_formats::BlockFormat;
use nvfp4::device::Choice;
use nvfp4::gemm::{GemmPlan, format_of};
use nvfp4::moe::{MoeOptions, MoeProblem, TokenFormat, TokenScales};
use nvfp4_checkpoint::Checkpoint;
use nvfp4_lab::bench::Emulated;
use nvfp4_lab::moe::{MoeRun, StepCheck};
use nvfp4_lab::operands::moe::{AnyLayerFile, LayerFile, read, write_result};
use nvfp4_lab::shape::MixtureShape;
use serde::Serialize;

use crate::args::{Moe, TokensTo};
use crate::common::{exit, open, print};
use crate::progress::Progress;

/// A run on given operands, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    shape: String,
    format: &'static str,
    activations: &'static str,
    activation: String,
    output: &'static str,
    /// Scales of activations that are quantised: of the tokens, and of what is between the products.
    scales: Option<[f32; 2]>,
    device: Choice,
    /// The plans of the products.
    plans: [GemmPlan; 2],
    verified: bool,
    /// The fault that the device found with the operands.
    problem: Option<String>,
    /// The comparison of each step on its own inputs.
    steps: Vec<StepCheck>,
    /// Counters of each launch; only from the emulator.
    emulated: Vec<Emulated>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, format, activations, activation, output, .. } = self;
        writeln!(
            f,
            "{shape}, {format} weights, {activations} activations, {activation}, result {output}"
        )?;
        if let Some([tokens, between]) = self.scales {
            writeln!(f, "  scales    {tokens:e} of tokens, {between:e} between the products")?;
        }
        writeln!(f, "  device    {}", self.device)?;
        for (name, plan) in ["first", "second"].into_iter().zip(&self.plans) {
            writeln!(f, "  {name:<9} {}", plan.to_string().replace('\n', "\n            "))?;
        }
        self.problem.iter().try_for_each(|problem| writeln!(f, "  WRONG     {problem}"))?;
        self.steps.iter().try_for_each(|check| writeln!(f, "  {check}"))?;
        self.emulated.iter().try_for_each(|emulated| write!(f, "{emulated}"))
    }
}

pub fn run(args: &Moe) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    progress.step("reading operands");
    match read(&Checkpoint::open(&args.inputs)?)? {
        AnyLayerFile::Nvfp4(layer) => run_layer(args, &layer, progress),
        AnyLayerFile::Mxfp4(layer) => run_layer(args, &layer, progress),
    }
}

fn run_layer<F: BlockFormat>(
    args: &Moe,
    layer: &LayerFile<F>,
    progress: Progress,
) -> anyhow::Result<ExitCode> {
    let (activation, output) = (args.activation, args.dtype);
    let options = MoeOptions::new()
        .activation(activation)
        .output(output)
        .adding(args.adding)
        .batch_invariant(args.batch_invariant);
    let mut operands = layer.operands(&options)?;
    let (kernels, reports) =
        open(&args.target, args.results.capture.as_deref(), &progress)?.observed();
    match (args.quantize, operands.options.quantized) {
        (None, _) | (Some(TokensTo::Fp4), Some(_)) => {}
        (Some(TokensTo::Fp4), None) => {
            progress.step("looking for the largest magnitudes");
            operands.options.quantized = Some(TokenFormat::Blocks(operands.token_scales()?));
        }
        (Some(TokensTo::Fp4Rows), _) => {
            operands.options.quantized = Some(TokenFormat::ScaledRows);
        }
        (Some(TokensTo::Fp8), _) => operands.options.quantized = Some(TokenFormat::Fp8),
    }
    progress.step("running");
    let weights = operands.repack(kernels.device())?;
    let run = MoeRun::new(&kernels, &operands, weights.each_ref())?;
    run.launch()?;
    progress.step("verifying");
    let steps = run.check(&operands)?;
    let problem = run.problem()?.map(|problem| match problem {
        MoeProblem::BadId => "an id is no expert's".to_owned(),
        MoeProblem::OverCapacity => "an expert has more choices than rows".to_owned(),
        MoeProblem::NanWeight => "a weight is NaN".to_owned(),
        MoeProblem::BadCounts => "token counts are bad".to_owned(),
        MoeProblem::NotFinite => "an activation that is quantised is not finite".to_owned(),
    });
    let verified = problem.is_none() && steps.iter().all(|step| step.verified);
    let (tokens, hidden) = (layer.shape.tokens, layer.x.dims().cols());
    if let (true, Some(path)) = (verified, &args.results.out) {
        write_result(path, run.result()?, output, [tokens, hidden])?;
    }
    drop(progress);
    let device = kernels.device();
    let half = layer.x.operand();
    let between = layer.down.first().map_or(0, |weights| weights.dims().cols());
    let shape = MixtureShape {
        tokens,
        experts: layer.shape.experts,
        top_k: layer.shape.top_k,
        hidden,
        between,
    };
    let scales = operands.options.quantized.and_then(|format| format.scales());
    let report = Report {
        op: "moe",
        shape: shape.to_string(),
        format: F::NAME,
        activations: match operands.options.quantized {
            Some(TokenFormat::ScaledRows) => "fp4-rows",
            None | Some(TokenFormat::Blocks(_) | TokenFormat::Fp8) => {
                operands.options.activations(half, format_of::<F>()).name()
            }
        },
        activation: activation.to_string(),
        output: output.name(),
        scales: scales.map(|TokenScales { tokens, between }| [tokens, between]),
        device: device.choice().clone(),
        plans: run.layer().products().map(|product| product.plan().clone()),
        verified,
        problem,
        steps,
        emulated: Emulated::each(device, &reports.take()),
    };
    print(&report, args.target.json)?;
    Ok(exit(verified))
}
