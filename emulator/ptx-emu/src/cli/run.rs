//! `ptx-emu run`.

use super::checks::ChecksArgs;
use super::coverage::CoverageArgs;
use super::error::CliError;
use super::explore::ExploreArgs;
use super::output::Output;
use super::output::Written;
use super::sarif::SarifArgs;
use super::trace::TraceArgs;
use super::{arguments, console, output, parameters};
use clap::Args;
use ptx_emu::bundle::OutputReport;
use ptx_emu::experiment::{Conditions, Experiment, Watched};
use ptx_emu::{
    Counters, Diagnostic, GlobalMemory, Gpu, Level, LoadError, LowerBound, Model, Module, Schedule,
    entry_names,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Runs a kernel of a PTX module.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../docs/arguments.md"))]
pub(crate) struct RunArgs {
    /// PTX module.
    pub(crate) module: PathBuf,
    /// Kernel; may be left out for a module with one.
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,
    /// Interleaving of warps and completion of asynchronous operations.
    #[arg(long, value_name = "eager|lazy|random:SEED", default_value = "eager")]
    schedule: Schedule,
    /// Stop with a diagnostic when a cluster has run that many warp
    /// instructions.
    #[arg(long, value_name = "N")]
    instruction_limit: Option<u64>,
    #[command(flatten)]
    pub(crate) checks: ChecksArgs,
    #[command(flatten)]
    pub(crate) explore: ExploreArgs,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    coverage: CoverageArgs,
    #[command(flatten)]
    pub(crate) sarif: SarifArgs,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shape, arguments and machine of a launch.
#[derive(Debug, Args)]
pub(crate) struct ShapeArgs {
    /// CTAs; in clusters, a multiple of the cluster.
    #[arg(long, value_name = "X,Y,Z", value_parser = extent)]
    pub(crate) grid: [u32; 3],
    /// Threads of a CTA.
    #[arg(long, value_name = "X,Y,Z", value_parser = extent)]
    pub(crate) block: [u32; 3],
    /// CTAs of a cluster; by default what the kernel requires.
    #[arg(long, value_name = "X,Y,Z", value_parser = extent)]
    pub(crate) cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a CTA, bytes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) dynamic_smem: u32,
    /// Arguments, a JSON list with one item per kernel parameter; may be left out
    /// for a kernel without parameters. Paths in it are relative to its folder.
    #[arg(long, value_name = "ARGS.JSON")]
    pub(crate) args: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

/// Machine to be.
#[derive(Debug, Clone, Args)]
pub(crate) struct MachineArgs {
    /// Machine to be; by default the one of the lowest compute capability that runs the module.
    #[arg(long, value_name = "NAME", value_parser = gpu, help = gpu_help())]
    gpu: Option<Gpu>,
    /// Load what ptxas refuses, too: statements that the module's target or version lacks or that no
    /// version of PTX has, and more static shared memory than the target allows.
    #[arg(long)]
    lax: bool,
}

impl MachineArgs {
    /// The machine that was asked for.
    pub(crate) fn named(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// Whether modules are loaded that ptxas refuses.
    pub(crate) fn lax(&self) -> bool {
        self.lax
    }

    /// The machine for a module.
    pub(crate) fn machine(&self, ptx: &str) -> Gpu {
        let gpu = self.gpu.clone().unwrap_or_else(|| Gpu::for_module(ptx));
        Gpu { lax: self.lax, ..gpu }
    }
}

/// A run that ended well.
#[derive(Debug)]
pub(crate) struct Done {
    /// Kernel.
    pub(crate) kernel: String,
    /// Machine.
    pub(crate) gpu: &'static str,
    /// Schedule.
    pub(crate) schedule: Schedule,
    /// The orders that held.
    pub(crate) model: Model,
    /// CTAs.
    pub(crate) grid: [u32; 3],
    /// Threads of a CTA.
    pub(crate) block: [u32; 3],
    /// The counts.
    pub(crate) counters: Counters,
    /// Least time on the machine.
    pub(crate) lower_bound: LowerBound,
    /// Files.
    pub(crate) outputs: Vec<Written>,
    /// Buffers, compared with what they must hold.
    pub(crate) compared: Vec<OutputReport>,
    /// Findings that did not end the run, the denied ones first.
    pub(crate) findings: Vec<Diagnostic>,
    /// Findings beyond those.
    pub(crate) findings_left_out: usize,
}

impl Done {
    /// The first denied finding.
    pub(crate) fn denied(&self) -> Option<&Diagnostic> {
        self.findings.iter().find(|found| found.level == Level::Deny)
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_right(&self) -> bool {
        self.denied().is_none() && self.compared.iter().all(|output| output.mismatches == 0)
    }

    /// Returns the warnings for the user of a run that went well.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.outputs.iter().filter_map(|written| {
            let offset = written.first_uninitialised?;
            Some(format!(
                "argument {} (parameter `{}`): byte {offset} of {} was never written; such bytes are 0xCB in {}",
                written.output.argument,
                written.output.parameter,
                written.output.bytes,
                written.output.path.display(),
            ))
        })
    }
}

/// Parses `X`, `X,Y` or `X,Y,Z`, each at least 1.
pub(crate) fn extent(text: &str) -> Result<[u32; 3], String> {
    let parts: Vec<&str> = text.split(',').collect();
    let mut extent = [1; 3];
    if parts.len() > 3 {
        return Err(format!("required 1 to 3 numbers, actual {}", parts.len()));
    }
    for (slot, part) in extent.iter_mut().zip(parts) {
        *slot = match part.trim().parse() {
            Ok(number) if number > 0 => number,
            _ => {
                return Err(format!("required numbers from 1 to {}, actual `{part}`", u32::MAX));
            }
        };
    }
    Ok(extent)
}

/// Parses a machine's name.
fn gpu(name: &str) -> Result<Gpu, String> {
    Gpu::by_name(name).ok_or_else(|| format!("required {}, actual `{name}`", Gpu::names()))
}

fn gpu_help() -> String {
    format!(
        "Machine to be: {}; by default the one of the lowest compute capability that runs the module",
        Gpu::names()
    )
}

pub(crate) fn read_text(path: &Path) -> Result<String, CliError> {
    let path = path.to_owned();
    std::fs::read_to_string(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::InvalidData => CliError::NotText { path },
        _ => CliError::Read { path, source },
    })
}

fn read_arguments(path: &Path) -> Result<Value, CliError> {
    serde_json::from_str(&read_text(path)?)
        .map_err(|source| CliError::Json { path: path.to_owned(), source })
}

/// A module that is refused.
pub(crate) fn refused(path: &Path, text: &str, error: LoadError) -> CliError {
    match error {
        LoadError::Entry { required, actual } => {
            CliError::Entry { required: format!("one of [{required}]"), actual }
        }
        LoadError::Syntax(error) => CliError::Syntax {
            path: path.to_owned(),
            rendered: error.render(text).trim_end().to_owned(),
        },
        source => CliError::Load { path: path.to_owned(), source },
    }
}

/// The kernel of that name, or the only one of the module.
fn kernel_name(path: &Path, text: &str, entry: Option<&str>) -> Result<String, CliError> {
    if let Some(entry) = entry {
        return Ok(entry.to_owned());
    }
    let mut names = entry_names(text).map_err(|error| refused(path, text, error.into()))?;
    match (names.pop(), names.is_empty()) {
        (Some(only), true) => Ok(only),
        (last, _) => {
            names.extend(last);
            let required = format!("--entry with one of [{}]", names.join(", "));
            Err(CliError::Entry { required, actual: "none".to_owned() })
        }
    }
}

/// A launch that is ready, and the files that it is to write.
pub(crate) struct Prepared {
    pub(crate) experiment: Experiment,
    pub(crate) module: Module,
    pub(crate) files: Vec<Output>,
}

/// Loads the module and binds the arguments.
pub(crate) fn prepare(
    path: &Path,
    entry: Option<&str>,
    shape: &ShapeArgs,
) -> Result<Prepared, CliError> {
    let ptx = read_text(path)?;
    let gpu = shape.machine.machine(&ptx);
    let entry = &kernel_name(path, &ptx, entry)?;
    let module =
        Module::load_entry(&ptx, &gpu, entry).map_err(|error| refused(path, &ptx, error))?;
    let Some(kernel) = module.entries().find(|info| info.name == *entry) else {
        let names: Vec<&str> = module.entries().map(|info| info.name.as_str()).collect();
        return Err(CliError::Entry {
            required: format!("one of [{}]", names.join(", ")),
            actual: entry.to_owned(),
        });
    };
    let (json, folder) = match &shape.args {
        Some(path) => (read_arguments(path)?, path.parent()),
        None => (Value::Array(Vec::new()), None),
    };
    let names: Vec<&str> = kernel.params.iter().map(|p| p.name.as_str()).collect();
    let arguments = arguments::read(&json, &names)?;
    let bound = parameters::bind(&arguments, kernel, &gpu, folder.unwrap_or(Path::new("")))?;
    let experiment = Experiment {
        ptx,
        gpu,
        entry: entry.clone(),
        grid: shape.grid,
        block: shape.block,
        cluster: shape.cluster,
        dynamic_shared: shape.dynamic_smem,
        params: bound.params,
        outputs: watched(&bound.outputs, bound.expected, &bound.memory),
        memory: bound.memory,
        earlier: None,
    };
    Ok(Prepared { experiment, module, files: bound.outputs })
}

/// The buffers that go to files, and those of which something is expected; all buffers if there is
/// neither.
fn watched(files: &[Output], expected: Vec<Watched>, memory: &GlobalMemory) -> Vec<Watched> {
    let watch =
        |name: &str, addr, bytes| Watched { name: name.to_owned(), addr, bytes, expected: None };
    if files.is_empty() && expected.is_empty() {
        return memory.allocations().map(|(name, addr, bytes)| watch(name, addr, bytes)).collect();
    }
    let mut all = expected;
    for file in files {
        if all.iter().all(|known| known.addr != file.addr) {
            all.push(watch(&file.parameter, file.addr, file.bytes));
        }
    }
    all
}

/// Loads, binds, launches, writes the outputs.
pub(crate) fn run(args: &RunArgs) -> Result<Done, CliError> {
    let Prepared { mut experiment, mut module, files } =
        prepare(&args.module, args.entry.as_deref(), &args.shape)?;
    args.coverage.begin(&mut module)?;
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
    args.coverage.write(&module, &args.module)?;
    let outcome = outcome?;
    if !outcome.report.printed.is_empty() {
        console::printed(&outcome.report.printed);
    }
    let compared = experiment.compare(&outcome.outputs);
    let outputs = output::write_all(files, &outcome.memory)?;
    let ptx_emu::LaunchReport { counters, findings, findings_left_out, .. } = outcome.report;
    Ok(Done {
        kernel: experiment.entry.clone(),
        gpu: experiment.gpu.name,
        schedule: args.schedule,
        model: args.checks.model(),
        grid: experiment.grid,
        block: experiment.block,
        lower_bound: counters.lower_bound(&experiment.gpu),
        counters,
        outputs,
        compared,
        findings,
        findings_left_out,
    })
}

/// Tries schedules; writes the outputs of `eager` if all went well.
pub(crate) fn explore(args: &RunArgs, seeds: u64) -> Result<super::explore::Tried, CliError> {
    let Prepared { mut experiment, mut module, files } =
        prepare(&args.module, args.entry.as_deref(), &args.shape)?;
    args.trace.wanted()?;
    args.coverage.begin(&mut module)?;
    let options = args.explore.options(seeds, args.instruction_limit, args.checks.checks());
    let found = ptx_emu::explore::explore(&experiment, &module, &options);
    args.coverage.write(&module, &args.module)?;
    let found = found?;
    args.trace.write_failure(&mut experiment, &module, &options, found.failure.as_ref())?;
    if let (None, Some(eager)) = (&found.failure, &found.eager) {
        output::write_all(files, &eager.memory)?;
    }
    Ok(super::explore::Tried { experiment, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents() {
        assert_eq!(extent("3"), Ok([3, 1, 1]));
        assert_eq!(extent("3,2"), Ok([3, 2, 1]));
        assert_eq!(extent("3, 2,7"), Ok([3, 2, 7]));
        for text in ["", "0", "1,0,1", "1,2,3,4", "-1", "4294967296", "x", "1,,1"] {
            assert!(extent(text).is_err(), "{text}");
        }
    }
}
