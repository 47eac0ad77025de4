//! `--coverage` of `ptx-emu run` and `ptx-emu replay`, and `ptx-emu coverage`.

use super::error::CliError;
use super::{console, output, run};
use clap::Args;
use ptx_emu::coverage::{Coverage, Explained, Explanation, FunctionShare, Reached, Unreached};
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
    /// Counts the module's executions, if they are wanted; their file can be written.
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
    /// A list of reasons why instructions are not reached: one per line,
    /// `kernel | instructions | reason`. The instructions on the list are left out. Exit code 1 if a reason
    /// is of nothing, or of what was reached
    #[arg(long, value_name = "FILE")]
    explained: Option<PathBuf>,
    /// Exit code 1 if a smaller share of all instructions that count was reached, or is explained,
    /// in percent.
    #[arg(long, value_name = "PERCENT")]
    aim: Option<f64>,
}

/// Returns the text for standard output, and the exit code.
pub(crate) fn run(args: &CoverageCommand) -> (Option<String>, u8) {
    match shares(args) {
        Ok((shares, list)) => {
            let (mut text, percent) = report(&shares, args.launched, list.is_some());
            let mut good = args.aim.is_none_or(|aim| percent >= aim);
            // A kernel that was not launched reached nothing, whatever the list says.
            if let Some((path, explained)) = list.filter(|_| !args.launched) {
                good &= explained.holds();
                text += &faults(path, &explained);
            }
            (Some(text), u8::from(!good))
        }
        Err(error) => {
            console::complain(&error);
            (None, error.exit_code())
        }
    }
}

/// Returns the faults of a list of reasons, one line each.
fn faults(path: &Path, explained: &Explained) -> String {
    let path = path.display();
    let unused = explained
        .unused
        .iter()
        .map(|line| format!("\n{path}:{line}: no such place, or none that was not reached"));
    let reached = explained.reached.iter().map(|(line, function)| {
        format!("\n{path}:{line}: a place of {} was reached", readable_name(function))
    });
    unused.chain(reached).collect()
}

/// A list of reasons, and what it explains.
type List<'a> = (&'a Path, Explained);

/// Returns the reached share of each function, and the list of reasons, if there is one.
fn shares(args: &CoverageCommand) -> Result<(Vec<FunctionShare>, Option<List<'_>>), CliError> {
    let list = match &args.explained {
        Some(path) => {
            let list = Explanation::parse(&run::read_text(path)?);
            let wrong = |source| CliError::Explanations { path: path.clone(), source };
            Some((path.as_path(), list.map_err(wrong)?))
        }
        None => None,
    };
    let reached = Reached::read(&args.folder)?;
    let mut shares = Vec::new();
    for path in &args.modules {
        let text = run::read_text(path)?;
        let of = reached.of(&text);
        shares.extend(of.map_err(|error| run::refused(path, &text, error.into()))?);
    }
    let list = list.map(|(path, list)| (path, Explained::of(&mut shares, &list)));
    Ok((shares, list))
}

/// The functions by target and share, the instructions that nothing reached and no reason is known
/// for, and a last line with the share of all. That is returned too, with what is explained.
fn report(shares: &[FunctionShare], launched: bool, with_reasons: bool) -> (String, f64) {
    let mut shown: Vec<&FunctionShare> =
        shares.iter().filter(|share| !launched || share.reached() != 0).collect();
    let order = |share: &FunctionShare| percent(share.reached(), share.instructions);
    shown.sort_by(|a, b| {
        let of = |share: &FunctionShare| (share.target.clone(), share.name.clone());
        order(a).total_cmp(&order(b)).then_with(|| of(a).cmp(&of(b)))
    });
    let mut text = String::new();
    for share in shown.iter().filter(|share| share.reached() != 0) {
        for Unreached { line, instruction, source, explained, .. } in &share.unreached {
            if *explained {
                continue;
            }
            let place = source.as_ref().map(|(file, line)| format!(" ({file}:{line})"));
            let place = place.unwrap_or_default();
            let name = readable_name(&share.name);
            let _ = writeln!(text, "{} {name}:{line}{place}: {instruction}", share.target);
        }
    }
    if !text.is_empty() {
        let head = if with_reasons { "not reached, nor explained:\n" } else { "not reached:\n" };
        text.insert_str(0, head);
        text.push('\n');
    }
    text.push_str("reached:\n");
    for share in &shown {
        let FunctionShare { target, name, instructions, .. } = share;
        let kind = if share.is_kernel { "" } else { " (function)" };
        let explained = match share.explained() {
            0 => String::new(),
            count => format!(", {:.2} % explained", percent(count, *instructions)),
        };
        let _ = writeln!(
            text,
            "{:>6.2} %  {:>6} of {instructions:>6}  {target} {}{kind}{explained}",
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
    let share = percent(reached, all);
    let _ = write!(text, "coverage: {share:.2} %, {reached} of {all} instructions");
    if with_reasons {
        let explained: usize = shown.iter().map(|share| share.explained()).sum();
        let rest = all - reached - explained;
        let _ = write!(text, "; explained: {:.2} %, {explained}", percent(explained, all));
        let _ = write!(text, "; neither: {:.2} %, {rest}", percent(rest, all));
        return (text, percent(reached + explained, all));
    }
    let missed = shown.iter().flat_map(|share| &share.unreached);
    let branches = missed.filter(|one| is_guarded_branch(&one.instruction)).count();
    if branches != 0 {
        let _ = write!(text, "; guarded branches among the others: {branches}");
    }
    (text, share)
}

/// Whether a line is a branch under a guard, which must be true for the branch to count.
fn is_guarded_branch(line: &str) -> bool {
    let behind = line.strip_prefix('@').and_then(|rest| rest.split_once(char::is_whitespace));
    behind.is_some_and(|(_, rest)| rest.trim_start().starts_with("bra"))
}

fn percent(reached: usize, all: usize) -> f64 {
    if all == 0 { 100.0 } else { 100.0 * reached as f64 / all as f64 }
}
