//! `run gemm`: a product of operands from a file.

use std::fmt;
use std::process::ExitCode;

use fp4_formats::BlockFormat;
use nvfp4::bench::Emulated;
use nvfp4::checkpoint::Checkpoint;
use nvfp4::device::Choice;
use nvfp4::gemm::{GemmOptions, GemmOverrides, GemmPlan, gemm, reference};
use nvfp4::operands::gemm::{AnyOperands, GemmOperands, read, write_result};
use nvfp4::oracle::Verification;
use serde::Serialize;

use crate::args::Gemm;
use crate::commands::{exit, open, print};
use crate::progress::Progress;

/// A run on given operands, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    shape: String,
    format: &'static str,
    activations: &'static str,
    output: &'static str,
    device: Choice,
    plan: GemmPlan,
    verified: bool,
    max_error: f64,
    verification: Verification,
    /// Counters of each launch; only from the emulator.
    emulated: Vec<Emulated>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, format, activations, output, .. } = self;
        writeln!(f, "{shape}, {format} weights, {activations} activations, result {output}")?;
        writeln!(f, "  device    {}", self.device)?;
        writeln!(f, "  plan      {}", self.plan.to_string().replace('\n', "\n          "))?;
        writeln!(f, "  {}", self.verification.summary())?;
        self.emulated.iter().try_for_each(|emulated| write!(f, "{emulated}"))
    }
}

pub fn run(args: &Gemm) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    progress.step("reading operands");
    match read(&Checkpoint::open(&args.inputs)?)? {
        AnyOperands::Nvfp4(operands) => multiply(args, operands, progress),
        AnyOperands::Mxfp4(operands) => multiply(args, operands, progress),
    }
}

fn multiply<F: BlockFormat>(
    args: &Gemm,
    operands: GemmOperands<F>,
    progress: Progress,
) -> anyhow::Result<ExitCode> {
    let kernels = open(&args.target, args.capture.as_deref(), &progress)?;
    let shape = operands.shape();
    let GemmOperands { a, b, options } = &operands;
    let a = a.activations();
    let overrides = GemmOverrides { kernel: args.kernel.clone(), splits: args.splits };
    let options = GemmOptions { output: args.dtype.into(), overrides, ..options.clone() };
    progress.step("multiplying");
    let result = gemm(&kernels, &a, b, &options)?;
    progress.step("verifying");
    let verification = reference(&a, b, &options)?
        .with_additions(result.plan.additions)
        .verify(&result.values(), args.dtype);
    let verified = verification.passed();
    if let (true, Some(path)) = (verified, &args.out) {
        write_result(path, &result, shape)?;
    }
    drop(progress);
    let device = kernels.device();
    let reports = result.reports.iter();
    let report = Report {
        op: "gemm",
        shape: shape.to_string(),
        format: F::NAME,
        activations: a.kind().name(),
        output: result.output.name(),
        device: device.choice().clone(),
        emulated: reports
            .filter_map(|report| Emulated::of(device, std::slice::from_ref(report)))
            .collect(),
        plan: result.plan,
        verified,
        max_error: verification.max_abs_error,
        verification,
    };
    print(&report, args.target.json)?;
    Ok(exit(verified))
}
