//! `--coverage` of `ptx-emu run` and `ptx-emu replay`, and `ptx-emu coverage`.

use super::error::CliError;
use super::{console, output, run};
use clap::Args;
use ptx_emu::coverage::{Coverage, FunctionShare, Reached, Unreached};
use ptx_emu::{Module, readable_name};
use std::fmt::Write as _;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// Recording which instructions are reached.
#[derive(Debug, Clone, Args)]
pub(crate) struct CoverageArgs {
    /// Write which instructions the launch reached, of the functions that its kernel can call, as a
    /// tracefile of lcov: by line of source where the PTX has .loc, else by line of PTX. Counts of
    /// threads are added to those in the file, if it is there.
    #[arg(long, value_name = "OUT.INFO")]
    coverage: Option<PathBuf>,
}

impl CoverageArgs {
    /// Has the module's executions counted, if they are wanted; their file can be written.
    pub(crate) fn begin(&self, module: &mut Module) -> Result<(), CliError> {
        let Some(path) = &self.coverage else { return Ok(()) };
        output::check(path)?;
        if path.exists() {
            parse(path, &run::read_text(path)?)?;
        }
        module.count_executions();
        Ok(())
    }

    /// Adds what the module's launches reached to the file. `ptx`: the module's.
    pub(crate) fn write(&self, module: &Module, ptx: &Path) -> Result<(), CliError> {
        let Some(path) = &self.coverage else { return Ok(()) };
        let failed = |source| CliError::Write { path: path.clone(), source };
        let mut options = std::fs::File::options();
        let opened = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(failed)?;
        // Other processes may add to it at the same time.
        file.lock().map_err(failed)?;
        let mut before = String::new();
        file.read_to_string(&mut before).map_err(failed)?;
        let mut coverage = parse(path, &before)?;
        coverage.add(&Coverage::of(module, &ptx.display().to_string()));
        file.rewind().and_then(|()| file.set_len(0)).map_err(failed)?;
        file.write_all(coverage.to_string().as_bytes()).map_err(failed)?;
        let (reached, all) = coverage.lines();
        let shown = path.display();
        console::complain(format_args!("{shown}: {reached} of {all} lines are reached"));
        Ok(())
    }
}

fn parse(path: &Path, text: &str) -> Result<Coverage, CliError> {
    text.parse().map_err(|source| CliError::Coverage { path: path.to_owned(), source })
}

/// Says which instructions of modules test runs reached.
///
/// A process that launches kernels while the environment variable PTX_EMU_COVERAGE names a
/// folder notes there what it reaches: `ptx-emu` itself, programs under `ptx-emu exec`, tests that
/// use the library. An instruction is reached when a thread executes it, its guard true; a
/// branch counts where it is taken.
#[derive(Debug, Args)]
pub(crate) struct CoverageCommand {
    /// The folder.
    folder: PathBuf,
    /// PTX modules.
    #[arg(required = true)]
    modules: Vec<PathBuf>,
    /// Leave out functions of which no launch reached anything, but say how many there are.
    #[arg(long)]
    launched: bool,
    /// Exit code 1 if a smaller share of all instructions that count was reached, in percent.
    #[arg(long, value_name = "PERCENT")]
    aim: Option<f64>,
}

/// What to print on standard output, and the exit code.
pub(crate) fn run(args: &CoverageCommand) -> (Option<String>, u8) {
    match shares(args) {
        Ok(shares) => {
            let (text, percent) = report(&shares, args.launched);
            (Some(text), u8::from(args.aim.is_some_and(|aim| percent < aim)))
        }
        Err(error) => {
            console::complain(&error);
            (None, error.exit_code())
        }
    }
}

fn shares(args: &CoverageCommand) -> Result<Vec<FunctionShare>, CliError> {
    let reached = Reached::read(&args.folder)?;
    let mut shares = Vec::new();
    for path in &args.modules {
        let text = run::read_text(path)?;
        let of = reached.of(&text);
        shares.extend(of.map_err(|error| run::refused(path, &text, error.into()))?);
    }
    Ok(shares)
}

/// The functions by target and share, the instructions that nothing reached, and a last line with
/// the share of all, which is returned too.
fn report(shares: &[FunctionShare], launched: bool) -> (String, f64) {
    let mut shown: Vec<&FunctionShare> =
        shares.iter().filter(|share| !launched || share.reached() != 0).collect();
    let order = |share: &FunctionShare| percent(share.reached(), share.instructions);
    shown.sort_by(|a, b| {
        let of = |share: &FunctionShare| (share.target.clone(), share.name.clone());
        order(a).total_cmp(&order(b)).then_with(|| of(a).cmp(&of(b)))
    });
    let mut text = String::new();
    for share in shown.iter().filter(|share| share.reached() != 0) {
        for Unreached { line, instruction, source, .. } in &share.unreached {
            let place = source.as_ref().map(|(file, line)| format!(" ({file}:{line})"));
            let place = place.unwrap_or_default();
            let name = readable_name(&share.name);
            let _ = writeln!(text, "{} {name}:{line}{place}: {instruction}", share.target);
        }
    }
    if !text.is_empty() {
        text.insert_str(0, "not reached:\n");
        text.push('\n');
    }
    text.push_str("reached:\n");
    for share in &shown {
        let FunctionShare { target, name, instructions, .. } = share;
        let kind = if share.is_kernel { "" } else { " (function)" };
        let _ = writeln!(
            text,
            "{:>6.2} %  {:>6} of {instructions:>6}  {target} {}{kind}",
            order(share),
            share.reached(),
            readable_name(name),
        );
    }
    let left_out = shares.len() - shown.len();
    if left_out != 0 {
        let _ = writeln!(text, "no launch reached anything of {left_out} others");
    }
    let reached: usize = shown.iter().map(|share| share.reached()).sum();
    let all: usize = shown.iter().map(|share| share.instructions).sum();
    let percent = percent(reached, all);
    let _ = write!(text, "coverage: {percent:.2} %, {reached} of {all} instructions");
    let missed = shown.iter().flat_map(|share| &share.unreached);
    let branches = missed.filter(|one| is_guarded_branch(&one.instruction)).count();
    if branches != 0 {
        let _ = write!(text, "; guarded branches among the others: {branches}");
    }
    (text, percent)
}

/// Whether a line is a branch under a guard, which must be true for the branch to count.
fn is_guarded_branch(line: &str) -> bool {
    let behind = line.strip_prefix('@').and_then(|rest| rest.split_once(char::is_whitespace));
    behind.is_some_and(|(_, rest)| rest.trim_start().starts_with("bra"))
}

fn percent(reached: usize, all: usize) -> f64 {
    if all == 0 { 100.0 } else { 100.0 * reached as f64 / all as f64 }
}
