//! `ptx-emu replay`.

use super::checks::ChecksArgs;
use super::coverage::CoverageArgs;
use super::error::CliError;
use super::explore::{self, ExploreArgs};
use super::run::MachineArgs;
use super::sarif::SarifArgs;
use super::trace::TraceArgs;
use super::{checks, console, hardware, report, sarif, sequence};
use clap::Args;
use ptx_emu::bundle::{self, BUNDLE_FILE, Bundle, BundleError, Compare, Replay, RunBundle as _};
use ptx_emu::experiment::{Conditions, Experiment};
use ptx_emu::sarif::Log;
use ptx_emu::{LaunchError, Level, LoadError, Model, Module, Schedule, readable_name};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Runs a launch bundle and compares with its expected outputs.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReplayArgs {
    /// Folder with `bundle.json`, or with several such folders, which are replayed
    /// one by one in the order of their names.
    pub(super) bundle: PathBuf,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// Interleaving of warps and completion of asynchronous operations.
    #[arg(long, value_name = "eager|lazy|random:SEED", default_value = "eager")]
    pub(super) schedule: Schedule,
    /// Stop with a diagnostic when a cluster has run that many warp instructions.
    #[arg(long, value_name = "N")]
    pub(super) instruction_limit: Option<u64>,
    #[command(flatten)]
    pub(super) checks: ChecksArgs,
    #[command(flatten)]
    pub(super) explore: ExploreArgs,
    #[command(flatten)]
    pub(super) trace: TraceArgs,
    #[command(flatten)]
    pub(super) coverage: CoverageArgs,
    #[command(flatten)]
    pub(super) sarif: SarifArgs,
    #[command(flatten)]
    pub(super) outputs: OutputArgs,
    /// Run the bundle on a GPU instead of the emulator, with its memory at the same addresses.
    #[arg(
        long,
        value_name = "cuda:N",
        value_parser = hardware::ordinal,
        conflicts_with_all = ["gpu", "schedule", "explore", "trace", "instruction_limit", "sarif"],
    )]
    pub(super) on: Option<u32>,
    /// Print the report as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// The use of a bundle's outputs.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputArgs {
    /// Write the bundle to this new folder with what the launch left as its expected outputs: those
    /// of the bundle, and whatever else it changed. Each of several bundles goes to a folder below.
    #[arg(long, value_name = "DIR", conflicts_with = "explore")]
    pub(super) out: Option<PathBuf>,
    /// Compare outputs that the bundle compares byte by byte as elements of this type, all or
    /// those of a name: u8 to u64, s8 to s64, f16, bf16, f32, f64.
    #[arg(long, value_name = "[NAME=]TYPE", value_parser = elements)]
    pub(super) dtype: Vec<Typed>,
}

/// A type of outputs.
#[derive(Debug, Clone)]
pub(crate) struct Typed {
    /// The text as it was given.
    pub(super) text: String,
    /// The output; `None`: all that have none.
    name: Option<String>,
    compare: Compare,
}

/// Parses `--dtype`.
fn elements(text: &str) -> Result<Typed, String> {
    let (name, dtype) = match text.rsplit_once('=') {
        Some((name, dtype)) => (Some(name.to_owned()), dtype),
        None => (None, text),
    };
    let compare = Compare::equal(dtype);
    let compare = compare.ok_or_else(|| format!("required one of {}", Compare::TYPES))?;
    Ok(Typed { text: text.to_owned(), name, compare })
}

impl OutputArgs {
    /// Gives outputs without a type one.
    fn type_outputs(&self, bundle: &mut Bundle) -> Result<(), BundleError> {
        for Typed { name: asked, compare, .. } in &self.dtype {
            let names: Vec<String> = bundle.expected.keys().cloned().collect();
            if let Some(asked) = asked
                && !names.contains(asked)
            {
                return Err(BundleError::Field {
                    field: "--dtype".to_owned(),
                    required: format!("the name of an output: {}", names.join(", ")),
                    actual: asked.clone(),
                });
            }
            for (name, output) in &mut bundle.expected {
                let named = asked.as_ref().is_some_and(|asked| asked == name);
                let whole = output.bytes.len().is_multiple_of(compare.element_bytes());
                if named && !whole {
                    return Err(BundleError::Field {
                        field: format!("--dtype of {name}"),
                        required: format!("a type whose size divides {}", output.bytes.len()),
                        actual: format!("{} bytes", compare.element_bytes()),
                    });
                }
                if named || (asked.is_none() && output.compare == Compare::Exact && whole) {
                    output.compare = *compare;
                }
            }
        }
        Ok(())
    }

    /// Reads a bundle, with types for its outputs.
    pub(super) fn read(&self, folder: &Path) -> Result<Bundle, BundleError> {
        let mut bundle = Bundle::read(folder)?;
        self.type_outputs(&mut bundle)?;
        Ok(bundle)
    }
}

/// Runs the command: what to print on standard output, and the exit code.
pub(crate) fn run(args: &ReplayArgs) -> (Option<String>, u8) {
    if let Some(folders) = sequence::folders(&args.bundle) {
        return match args.trace.check_single(folders.len()) {
            Ok(()) => sequence::run(args, folders),
            Err(error) => failed(args, &error.into(), &mut Log::new()),
        };
    }
    if let Some(ordinal) = args.on {
        return hardware::run(args, ordinal);
    }
    let mut log = Log::new();
    let (text, code) = one(args, &mut log);
    (text, args.sarif.write(&log, code))
}

/// Replays one bundle on the emulator, and adds what was found to the log.
pub(super) fn one(args: &ReplayArgs, log: &mut Log) -> (Option<String>, u8) {
    if let Some(seeds) = args.explore.seeds() {
        return match try_schedules(args, seeds) {
            Ok(tried) => {
                explore::add(&tried, log, &module_file(args));
                explore::report(&tried, args.checks.model(), args.json)
            }
            Err(error) => failed(args, &error, log),
        };
    }
    match replay(args) {
        Ok((bundle, replay)) => {
            checks::complain(&replay.findings, replay.findings_left_out);
            sarif::findings(log, &replay.findings, &module_file(args), None);
            sarif::outputs(log, &replay.outputs, &module_file(args));
            let show = if args.json { as_json } else { as_text };
            (Some(show(args, &bundle, &replay)), u8::from(!replay.is_right()))
        }
        Err(error) => failed(args, &error, log),
    }
}

/// The reason why there is no replay.
enum Failure {
    /// The bundle, or its run.
    Bundle(BundleError),
    /// Another file.
    File(CliError),
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Self {
        Self::Bundle(error)
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        Self::Bundle(error.into())
    }
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Self::File(error)
    }
}

fn failed(args: &ReplayArgs, failure: &Failure, log: &mut Log) -> (Option<String>, u8) {
    let model = Some(args.checks.model());
    let error = match failure {
        Failure::Bundle(error) => error,
        Failure::File(error) => {
            console::complain(error);
            log.failed(&error.to_string());
            return (args.json.then(|| report::failure(error, model)), error.exit_code());
        }
    };
    match error {
        BundleError::Launch(LaunchError::Diagnostic(found)) => {
            console::complain(checks::line(found));
            checks::complain(&found.others, 0);
            sarif::diagnostic(log, found, &module_file(args));
        }
        error => {
            console::complain(error);
            log.failed(&error.to_string());
        }
    }
    let code = if error.happened_while_running() { 1 } else { 2 };
    (args.json.then(|| self::failure(error, model)), code)
}

/// Reads the bundle and its module, which is ready to run.
fn prepare(args: &ReplayArgs) -> Result<(Bundle, Experiment, Module), Failure> {
    args.trace.wanted()?;
    let bundle = args.outputs.read(&args.bundle)?;
    let experiment = bundle.experiment(Some(&args.machine.machine(&bundle.ptx)))?;
    let mut module = bundle::load(&experiment)?;
    args.coverage.begin(&mut module)?;
    Ok((bundle, experiment, module))
}

fn replay(args: &ReplayArgs) -> Result<(Bundle, Replay), Failure> {
    let (bundle, mut experiment, module) = prepare(args)?;
    let conditions = Conditions {
        schedule: args.schedule,
        threads: None,
        instruction_limit: args.instruction_limit,
        checks: args.checks.checks(),
    };
    let outcome = match args.trace.wanted()? {
        None => experiment.run_once(&module, &conditions),
        Some(limit) => {
            let (outcome, trace) = experiment.run_traced(&module, &conditions, limit);
            args.trace.write(&trace)?;
            outcome
        }
    };
    args.coverage.write(&module, &module_file(args))?;
    let outcome = outcome?;
    if let Some(folder) = &args.outputs.out {
        bundle.left_in(&outcome.memory)?.write(folder)?;
    }
    Ok((bundle, Replay::new(experiment, outcome)))
}

fn try_schedules(args: &ReplayArgs, seeds: u64) -> Result<explore::Tried, Failure> {
    let (_, mut experiment, module) = prepare(args)?;
    let options = args.explore.options(seeds, args.instruction_limit, args.checks.checks());
    let found = ptx_emu::explore::explore(&experiment, &module, &options);
    args.coverage.write(&module, &module_file(args))?;
    let found = found?;
    args.trace.write_failure(&mut experiment, &module, &options, found.failure.as_ref())?;
    Ok(explore::Tried { experiment, found })
}

/// The file of the bundle's module.
fn module_file(args: &ReplayArgs) -> PathBuf {
    let text = std::fs::read_to_string(args.bundle.join(BUNDLE_FILE)).unwrap_or_default();
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    args.bundle.join(json["ptx"].as_str().unwrap_or_default())
}

pub(crate) fn failure(error: &BundleError, model: Option<Model>) -> String {
    match error {
        BundleError::Launch(LaunchError::Diagnostic(diagnostic)) => {
            report::failed(diagnostic, model)
        }
        BundleError::Load { source: LoadError::Unsupported(items), .. } => {
            report::unsupported(&error.to_string(), items)
        }
        _ => json!({ "status": "bad input", "error": error.to_string() }),
    }
    .to_string()
}

fn as_json(args: &ReplayArgs, bundle: &Bundle, replay: &Replay) -> String {
    json!({
        "status": status(replay),
        "bundle": args.bundle.display().to_string(),
        "kernel": bundle.entry,
        "gpu": replay.gpu.name,
        "emulated": true,
        "schedule": args.schedule.to_string(),
        "grid": bundle.grid,
        "block": bundle.block,
        "counters": replay.counters,
        "lower_bound": replay.counters.lower_bound(&replay.gpu),
        "outputs": replay.outputs.iter().map(report::output).collect::<Vec<_>>(),
        "model": args.checks.model().to_string(),
        "findings": report::findings(&replay.findings),
        "findings_left_out": replay.findings_left_out,
        "not_looked_for": not_looked_for(args),
    })
    .to_string()
}

fn status(replay: &Replay) -> &'static str {
    if replay.is_right() {
        "done"
    } else if replay.findings.iter().any(|found| found.level == Level::Deny) {
        "diagnostic"
    } else {
        "different"
    }
}

fn as_text(args: &ReplayArgs, bundle: &Bundle, replay: &Replay) -> String {
    let mut text = format!(
        "`{}` ran on the emulator as {}, schedule {}: {} warp instructions",
        readable_name(&bundle.entry),
        replay.gpu.name,
        args.schedule,
        replay.counters.warp_instructions
    );
    if replay.outputs.is_empty() {
        text.push_str("\nthe bundle expects no outputs: nothing was compared");
    }
    replay.outputs.iter().for_each(|output| report::comparison(&mut text, output));
    if replay.is_right() {
        let _ = write!(text, "\n{}", not_looked_for(args));
    }
    text
}

fn not_looked_for(args: &ReplayArgs) -> String {
    checks::not_looked_for(checks::Tried::One(args.schedule), args.checks.model())
}
