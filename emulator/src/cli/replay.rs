//! `ptx-emu replay`.

use super::checks::ChecksArgs;
use super::error::CliError;
use super::explore::{self, ExploreArgs};
use super::run::MachineArgs;
use super::trace::TraceArgs;
use super::{checks, console, report, sequence};
use clap::Args;
use ptx_emu::bundle::{self, Bundle, BundleError, Replay, ReplayOptions};
use ptx_emu::{LaunchError, Level, LoadError, Model, Schedule, readable_name};
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

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
    /// Print the report as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs the command: what to print on standard output, and the exit code.
pub(crate) fn run(args: &ReplayArgs) -> (Option<String>, u8) {
    if let Some(folders) = sequence::folders(&args.bundle) {
        return match args.trace.check_single(folders.len()) {
            Ok(()) => sequence::run(args, folders),
            Err(error) => unwritable(args, &error),
        };
    }
    if let Some(seeds) = args.explore.seeds() {
        return match try_schedules(args, seeds) {
            Ok(tried) => explore::report(&tried, args.checks.model(), args.json),
            Err(error) => failed(args, &error),
        };
    }
    let limit = match args.trace.wanted() {
        Ok(limit) => limit,
        Err(error) => return unwritable(args, &error),
    };
    let done = Bundle::read(&args.bundle).and_then(|bundle| {
        let options = ReplayOptions {
            gpu: Some(args.machine.machine(&bundle.ptx)),
            schedule: args.schedule,
            instruction_limit: args.instruction_limit,
            checks: args.checks.checks(),
        };
        let Some(limit) = limit else {
            return bundle.replay(&options).map(|replay| (bundle, replay, None));
        };
        let (replay, trace) = bundle.replay_traced(&options, limit)?;
        if let Err(error) = args.trace.write(&trace) {
            return Ok((bundle, replay?, Some(error)));
        }
        Ok((bundle, replay?, None))
    });
    match done {
        Ok((.., Some(error))) => unwritable(args, &error),
        Ok((bundle, replay, None)) => {
            checks::complain(&replay.findings, replay.findings_left_out);
            let show = if args.json { as_json } else { as_text };
            (Some(show(args, &bundle, &replay)), u8::from(!replay.is_right()))
        }
        Err(error) => failed(args, &error),
    }
}

fn unwritable(args: &ReplayArgs, error: &CliError) -> (Option<String>, u8) {
    console::complain(error);
    let json = || report::failure(error, Some(args.checks.model()));
    (args.json.then(json), error.exit_code())
}

fn failed(args: &ReplayArgs, error: &BundleError) -> (Option<String>, u8) {
    match error {
        BundleError::Launch(LaunchError::Diagnostic(found)) => {
            console::complain(checks::line(found));
            checks::complain(&found.others, 0);
        }
        error => console::complain(error),
    }
    let code = if error.happened_while_running() { 1 } else { 2 };
    (args.json.then(|| failure(error, Some(args.checks.model()))), code)
}

fn try_schedules(args: &ReplayArgs, seeds: u64) -> Result<explore::Tried, BundleError> {
    let bundle = Bundle::read(&args.bundle)?;
    let experiment = bundle.experiment(Some(&args.machine.machine(&bundle.ptx)))?;
    let module = bundle::load(&experiment)?;
    let options = args.explore.options(seeds, args.instruction_limit, args.checks.checks());
    let found = ptx_emu::explore::explore(&experiment, &module, &options)?;
    Ok(explore::Tried { experiment, found })
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
