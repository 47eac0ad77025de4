//! `ptx-emu mutate`.

use super::error::CliError;
use super::run::{self, MachineArgs, ShapeArgs};
use super::{console, replay, report, sequence};
use clap::Args;
use ptx_emu::bundle::{Bundle, BundleError, RunBundle as _};
use ptx_emu::experiment::Experiment;
use ptx_emu::mutate::{
    Equivalent, EquivalentsError, Fate, Mutant, Mutants, MutateError, MutateOptions, mutate,
};
use ptx_emu::{LaunchError, Model};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Removes or weakens one synchronisation of a kernel at a time and reports
/// which of these mutants a diagnostic or a wrong output gives away.
#[derive(Debug, Args)]
pub(crate) struct MutateArgs {
    /// Launch bundles or folders of them, or one PTX module with the arguments of `run`.
    #[arg(required = true)]
    targets: Vec<PathBuf>,
    /// Kernel of a module.
    #[arg(long, value_name = "NAME", requires_all = ["grid", "block"])]
    entry: Option<String>,
    /// CTAs.
    #[arg(long, value_name = "X,Y,Z", value_parser = run::extent, requires = "entry")]
    grid: Option<[u32; 3]>,
    /// Threads of a CTA.
    #[arg(long, value_name = "X,Y,Z", value_parser = run::extent, requires = "entry")]
    block: Option<[u32; 3]>,
    /// CTAs of a cluster; by default what the kernel requires.
    #[arg(long, value_name = "X,Y,Z", value_parser = run::extent, requires = "entry")]
    cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a CTA, bytes.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "entry")]
    dynamic_smem: u32,
    /// Arguments, as `run` takes them.
    #[arg(long, value_name = "ARGS.JSON", requires = "entry")]
    args: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Seeds that a mutant must survive, besides eager and lazy.
    #[arg(long, value_name = "N", default_value_t = 64)]
    seeds: u64,
    /// Run at most so many mutants of a kernel, spread evenly over its text; by default all.
    #[arg(long, value_name = "N")]
    at_most: Option<usize>,
    /// Orders that hold: what hardware is known to order, or only what PTX ISA promises.
    #[arg(long, value_name = "hardware|ptx", default_value_t = Model::Ptx)]
    model: Model,
    /// List of mutants that are known to be no faults, with the reasons: lines
    /// of `kernel | mutation | instruction | reason`.
    #[arg(long, value_name = "FILE")]
    equivalents: Option<PathBuf>,
    /// Exit with 1 if less of the mutants were caught.
    #[arg(long, value_name = "PERCENT", default_value_t = 95)]
    threshold: u32,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Module(#[from] CliError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Mutate(#[from] MutateError),
    #[error("{}: {source}", .path.display())]
    Equivalents { path: PathBuf, source: EquivalentsError },
    #[error("targets: required one module, or bundles without --entry; actual {actual}")]
    Targets { actual: String },
}

impl Failed {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Module(error) => error.exit_code(),
            Self::Bundle(error) => u8::from(!error.happened_while_running()) + 1,
            Self::Mutate(MutateError::Original(_)) => 1,
            Self::Mutate(MutateError::Launch(LaunchError::Diagnostic(_))) => 1,
            _ => 2,
        }
    }

    fn json(&self) -> String {
        match self {
            Self::Module(error) => report::failure(error, None),
            Self::Bundle(error) => replay::failure(error, None),
            Self::Mutate(MutateError::Original(_)) => {
                json!({ "status": "wrong without mutation", "error": self.to_string() }).to_string()
            }
            _ => json!({ "status": "bad input", "error": self.to_string() }).to_string(),
        }
    }
}

/// Runs the command: what to print on standard output, and the exit code.
pub(crate) fn run(args: &MutateArgs) -> (Option<String>, u8) {
    match check(args) {
        Ok(all) => {
            let code = u8::from(!all.iter().all(|mutants| mutants.passes(args.threshold)));
            let text = if args.json {
                let all: Vec<Value> = all.iter().map(|m| as_json(args, m)).collect();
                json!({ "status": if code == 0 { "done" } else { "survivors" }, "kernels": all })
                    .to_string()
            } else {
                all.iter().map(|m| as_text(args, m)).collect::<Vec<_>>().join("\n\n")
            };
            (Some(text), code)
        }
        Err(error) => {
            console::complain(&error);
            (args.json.then(|| error.json()), error.exit_code())
        }
    }
}

fn check(args: &MutateArgs) -> Result<Vec<Mutants>, Failed> {
    let equivalents = match &args.equivalents {
        None => Vec::new(),
        Some(path) => Equivalent::parse(&run::read_text(path)?)
            .map_err(|source| Failed::Equivalents { path: path.clone(), source })?,
    };
    let options = MutateOptions {
        seeds: args.seeds,
        equivalents,
        at_most: args.at_most,
        workers: None,
        model: args.model,
    };
    let experiments = experiments(args)?;
    experiments.iter().map(|one| Ok(mutate(one, &options)?)).collect()
}

fn experiments(args: &MutateArgs) -> Result<Vec<Experiment>, Failed> {
    if let (Some(entry), Some(grid), Some(block)) = (&args.entry, args.grid, args.block) {
        let [module] = args.targets.as_slice() else {
            let actual = format!("{} targets with --entry", args.targets.len());
            return Err(Failed::Targets { actual });
        };
        let shape = ShapeArgs {
            grid,
            block,
            cluster: args.cluster,
            dynamic_smem: args.dynamic_smem,
            args: args.args.clone(),
            machine: args.machine.clone(),
        };
        return Ok(vec![run::prepare(module, Some(entry), &shape)?.experiment]);
    }
    if let Some(file) = args.targets.iter().find(|path| path.is_file()) {
        let actual = format!("the file {} without --entry", file.display());
        return Err(Failed::Targets { actual });
    }
    let read = |path: &PathBuf| {
        let bundle = Bundle::read(path)?;
        Ok(bundle.experiment(Some(&args.machine.machine(&bundle.ptx)))?)
    };
    let folders = args
        .targets
        .iter()
        .flat_map(|target| sequence::folders(target).unwrap_or_else(|| vec![target.clone()]));
    folders.map(|folder| read(&folder)).collect()
}

/// Returns the fate of a mutant in a word, and the details.
fn fate(mutant: &Mutant) -> (&'static str, Option<String>) {
    match &mutant.fate {
        Fate::Caught { schedule, finding } => {
            ("caught", Some(format!("{schedule}: {}", finding.summary())))
        }
        Fate::Survived if mutant.equivalent.is_some() => ("equivalent", None),
        Fate::Survived => ("survived", None),
        Fate::NotReached => ("not reached", None),
        Fate::LeftOut => ("left out", None),
        Fate::Refused(error) => ("refused", Some(error.clone())),
    }
}

fn as_json(args: &MutateArgs, mutants: &Mutants) -> Value {
    let one = |mutant: &Mutant| {
        let (fate, detail) = fate(mutant);
        let (schedule, error) = match &mutant.fate {
            Fate::Caught { schedule, finding } => {
                (Some(schedule.to_string()), Some(finding.to_string()))
            }
            Fate::Refused(error) => (None, Some(error.clone())),
            Fate::Survived | Fate::NotReached | Fate::LeftOut => (None, None),
        };
        json!({
            "function": mutant.function,
            "line": mutant.line,
            "instruction": mutant.instruction,
            "mutation": mutant.mutation.to_string(),
            "occurrence": mutant.occurrence,
            "place": mutant.place,
            "nth": mutant.nth,
            "fate": fate,
            "detail": detail,
            "schedule": schedule,
            "error": error,
            "reason": mutant.equivalent,
        })
    };
    json!({
        "kernel": mutants.kernel,
        "seeds": mutants.seeds,
        "counted": mutants.counted(),
        "caught": mutants.caught(),
        "unexplained": mutants.unexplained().count(),
        "threshold": args.threshold,
        "passes": mutants.passes(args.threshold),
        "mutants": mutants.mutants.iter().map(one).collect::<Vec<_>>(),
    })
}

fn as_text(args: &MutateArgs, mutants: &Mutants) -> String {
    let mut text = format!("mutants of `{}`\n", mutants.kernel);
    for mutant in &mutants.mutants {
        let (fate, detail) = fate(mutant);
        let mut instruction = mutant.instruction.clone();
        if mutant.occurrence > 1 {
            let _ = write!(instruction, " #{}", mutant.occurrence);
        }
        let reason = mutant.equivalent.as_ref().map(|reason| format!(" -- {reason}"));
        let _ = writeln!(
            text,
            "{:>6}  {:<12} {fate:<11} {:<44} {instruction}{}",
            mutant.line,
            mutant.mutation.to_string(),
            detail.unwrap_or_default(),
            reason.unwrap_or_default(),
        );
    }
    for mutant in mutants.contradicted() {
        let _ = writeln!(
            text,
            "line {}: `{}` is listed as no fault, but was caught",
            mutant.line, mutant.mutation
        );
    }
    let (caught, counted) = (mutants.caught(), mutants.counted());
    let share = if counted == 0 { 100.0 } else { 100.0 * caught as f64 / counted as f64 };
    let _ = write!(
        text,
        "{caught} of {counted} caught ({share:.1} %; at least {} % required), {} unexplained, {} seeds",
        args.threshold,
        mutants.unexplained().count(),
        mutants.seeds
    );
    text
}
