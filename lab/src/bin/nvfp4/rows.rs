//! `run rows`: an operation on rows, of operands from a file.

use std::fmt;
use std::process::ExitCode;

use nvfp4::device::Choice;
use nvfp4::quantize::device::Plan;
use nvfp4::quantize::{QuantizeOptions, TensorScale, recipe_by_name};
use nvfp4::rows::{Results, Rotation, RowsOptions, Source};
use nvfp4_checkpoint::Checkpoint;
use nvfp4_lab::bench::Emulated;
use nvfp4_lab::operands::rows::{RowsFile, read, run as run_file, write_result};
use serde::Serialize;

use crate::args::Rows;
use crate::common::{GATE, exit, open, print};
use crate::progress::Progress;

/// A run on given operands, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    shape: String,
    source: &'static str,
    results: &'static str,
    device: Choice,
    plan: Plan,
    verified: bool,
    /// The first wrong result.
    difference: Option<String>,
    /// Counters; only from the emulator.
    emulated: Option<Emulated>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} to {}", self.shape, self.source, self.results)?;
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        match &self.difference {
            None => writeln!(f, "  verified  against the CPU's result")?,
            Some(difference) => writeln!(f, "  WRONG     {difference}")?,
        }
        self.emulated.iter().try_for_each(|emulated| write!(f, "{emulated}"))
    }
}

pub fn run(args: &Rows) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    progress.step("reading operands");
    let file = read(&Checkpoint::open(&args.inputs)?)?;
    let options = options(args, &file)?;
    let capture = args.results.capture.as_deref();
    let (kernels, reports) = open(&args.target, capture, &progress)?.observed();
    progress.step("running and verifying");
    let run = run_file(&kernels, &file, &options)?;
    let verified = run.difference.is_none();
    if let (true, Some(path)) = (verified, &args.results.out) {
        write_result(path, &file, &run.results)?;
    }
    drop(progress);
    let report = Report {
        op: "rows",
        shape: format!("rows:{}x{}", file.rows, file.cols),
        source: options.source.name(),
        results: options.results.name(),
        device: kernels.device().choice().clone(),
        plan: run.operation.plan().clone(),
        verified,
        difference: run.difference,
        emulated: Emulated::of(kernels.device(), &reports.take()),
    };
    print(&report, args.target.json)?;
    Ok(exit(verified))
}

/// The operation that the file's tensors and the arguments say.
fn options(args: &Rows, file: &RowsFile) -> anyhow::Result<RowsOptions> {
    let (epsilon, residual) = (args.epsilon, file.has_residual());
    let source = match (file.is_gated(), file.has_weight(), args.norm.as_str()) {
        (true, _, _) => Source::Gated(args.activation.unwrap_or(GATE)),
        (false, true, "layer") => Source::LayerNorm { epsilon, residual, bias: file.has_bias() },
        (false, true, _) => Source::RmsNorm { epsilon, residual },
        (false, false, _) => Source::Plain,
    };
    let results = match args.to.as_deref() {
        Some("e4m3") => Results::E4m3,
        Some(_) => Results::Half,
        None => {
            let recipe = recipe_by_name(args.format, &args.recipe)?;
            let scale = file.tensor_scale.map_or(TensorScale::PerRow, TensorScale::Given);
            Results::Blocks(QuantizeOptions::new(recipe).scale(scale).layout(args.layout))
        }
    };
    let rotation = args.rotate.map(|signs| Rotation { signs });
    Ok(RowsOptions::new(source, results).rotation(rotation).gather(file.gather))
}
