//! `ptx-emu bound`.

use super::checks::ChecksArgs;
use super::run::MachineArgs;
use super::{console, replay};
use clap::Args;
use cuda_builder::{BuildError, nvdisasm, ptxas};
use ptx_emu::bound::{BlockCount, BoundError, Launched, MachineBound, bound};
use ptx_emu::bundle::{self, Bundle, BundleError, RunBundle as _};
use ptx_emu::experiment::Conditions;
use ptx_emu::{LowerBound, Schedule, readable_name};
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Says how long a launch takes at least, by the machine code that ptxas makes of its PTX.
///
/// Runs a bundle on the emulator and weighs each machine instruction with how often its line of PTX
/// was executed. The printed value is a bound for issue slots and pipes, never a time: dependences,
/// latencies and memory are left out. Needs ptxas and nvdisasm: in CUDA_HOME, on PATH, or in --tools.
#[derive(Debug, Clone, Args)]
pub(crate) struct BoundArgs {
    /// Folder with `bundle.json`.
    bundle: PathBuf,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    checks: ChecksArgs,
    /// Folder with tools that were installed.
    #[arg(long, value_name = "DIR", default_value = "target/cuda-tools")]
    tools: PathBuf,
    /// Install tools that are missing, from PyPI, into the folder of --tools.
    #[arg(long)]
    install: bool,
    /// The output of `nvdisasm -c -gp` for the bundle's module, instead of running the tools.
    #[arg(long, value_name = "FILE", conflicts_with = "install")]
    disassembly: Option<PathBuf>,
    /// Print the blocks of machine code that count, too.
    #[arg(long)]
    blocks: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The reason why there is no bound.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Bound(#[from] BoundError),
    #[error(transparent)]
    Tool(#[from] BuildError),
    #[error("{tool}: required in CUDA_HOME, on PATH or in {}, actual none; --install installs it", .tools.display())]
    Missing { tool: &'static str, tools: PathBuf },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
}

/// Runs the command: what to print on standard output, and the exit code.
pub(crate) fn run(args: &BoundArgs) -> (Option<String>, u8) {
    match found(args) {
        Ok(found) => (Some(if args.json { found.json() } else { found.text(args.blocks) }), 0),
        Err(failure) => {
            console::complain(&failure);
            let code = match &failure {
                Failure::Bundle(error) if error.happened_while_running() => 1,
                _ => 2,
            };
            let json = || match &failure {
                Failure::Bundle(error) => replay::failure(error, Some(args.checks.model())),
                other => json!({ "status": "bad input", "error": other.to_string() }).to_string(),
            };
            (args.json.then(json), code)
        }
    }
}

/// Both bounds of a launch.
struct Found {
    kernel: String,
    ctas: u64,
    counted: LowerBound,
    machine: MachineBound,
}

fn found(args: &BoundArgs) -> Result<Found, Failure> {
    let bundle = Bundle::read(&args.bundle)?;
    let disassembly = match &args.disassembly {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|source| Failure::File { path: path.clone(), source })?,
        None => disassemble(args, &bundle)?,
    };
    let mut experiment = bundle.experiment(Some(&args.machine.machine(&bundle.ptx)))?;
    let module = bundle::load(&experiment)?;
    let conditions = Conditions {
        schedule: Schedule::Eager,
        threads: None,
        instruction_limit: None,
        checks: args.checks.checks(),
    };
    let outcome = experiment.run_once(&module, &conditions).map_err(BundleError::from)?;
    let issued: Vec<_> = module.issued(&outcome.report.executed).collect();
    let counters = &outcome.report.counters;
    let launched = Launched {
        ptx: &bundle.ptx,
        kernel: &bundle.entry,
        threads_of_cta: bundle.block.iter().map(|&n| u64::from(n)).product(),
        issued: &issued,
        counters,
    };
    Ok(Found {
        machine: bound(&launched, &disassembly, &experiment.gpu)?,
        counted: counters.lower_bound(&experiment.gpu),
        ctas: counters.ctas,
        kernel: bundle.entry,
    })
}

/// The machine code of a bundle's module, as text.
fn disassemble(args: &BoundArgs, bundle: &Bundle) -> Result<String, Failure> {
    let tool = |tool, found: Option<PathBuf>, install: fn(&Path) -> Result<PathBuf, BuildError>| {
        match found {
            Some(found) => Ok(found),
            None if args.install => Ok(install(&args.tools)?),
            None => Err(Failure::Missing { tool, tools: args.tools.clone() }),
        }
    };
    let assembler = tool("ptxas", ptxas::find(&args.tools), ptxas::install)?;
    let disassembler = tool("nvdisasm", nvdisasm::find(&args.tools), nvdisasm::install)?;
    let target = bundle.ptx.lines().find_map(|line| line.trim().strip_prefix(".target"));
    let target = target.and_then(|rest| rest.split(',').next()).unwrap_or_default().trim();
    let folder = std::env::temp_dir().join(format!("ptx-emu-bound-{}", std::process::id()));
    let file = |source| Failure::File { path: folder.clone(), source };
    std::fs::create_dir(&folder).map_err(file)?;
    let (ptx, cubin) = (folder.join("module.ptx"), folder.join("module.cubin"));
    let text = std::fs::write(&ptx, &bundle.ptx).map_err(file).and_then(|()| {
        ptxas::with_lines(&assembler, &ptx, target, &cubin)?;
        Ok(nvdisasm::with_lines(&disassembler, &cubin)?)
    });
    std::fs::remove_dir_all(&folder).map_err(file)?;
    text
}

impl Found {
    fn json(&self) -> String {
        json!({
            "status": "done",
            "kernel": self.kernel,
            "ctas": self.ctas,
            "emulated": true,
            "from_counters": self.counted,
            "from_machine_code": self.machine,
        })
        .to_string()
    }

    fn text(&self, blocks: bool) -> String {
        let Self { kernel, ctas, counted, machine } = self;
        let [all, reached] = machine.static_instructions;
        let mut text = format!(
            "`{}`, {ctas} CTAs, as {}: bounds, not times\n\
             from counters of PTX:  {:>9.3} us, by {}\n\
             from machine code:     {:>9.3} us, by {}{}\n\
             {} warp instructions at least, {} in PTX; {reached} of {all} instructions count, {} anchors",
            readable_name(kernel),
            machine.gpu,
            counted.seconds * 1e6,
            counted.by,
            machine.seconds * 1e6,
            machine.by.name(),
            if machine.assumed { ", whose rate is an assumption" } else { "" },
            machine.instructions,
            machine.ptx_instructions,
            machine.anchors,
        );
        if machine.moved_loads != 0 {
            let _ = write!(text, ", {} loads that ptxas moved", machine.moved_loads);
        }
        for limit in &machine.limits {
            let (name, clocks) = (limit.resource.name(), limit.clocks);
            let micros = limit.seconds * 1e6;
            let _ = write!(text, "\n  {name:<12} {clocks:>12.0} clocks {micros:>9.3} us");
        }
        for block in machine.blocks.iter().filter(|_| blocks) {
            let BlockCount { address, instructions, warps } = block;
            let _ =
                write!(text, "\n  {address:#06x} {instructions:>4} instructions {warps:>10} warps");
        }
        text
    }
}
