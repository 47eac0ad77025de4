//! `--explore` of `ptx-emu run` and `ptx-emu replay`.

use super::{checks, report, sarif};
use clap::Args;
use ptx_emu::bundle::OutputReport;
use ptx_emu::experiment::Experiment;
use ptx_emu::explore::{Exploration, ExploreOptions, Failure, Finding};
use ptx_emu::sarif::{Fault, Log};
use ptx_emu::{Checks, Model, Schedule, readable_name};
use serde_json::{Value, json};
use std::path::Path;

/// Trying many schedules.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExploreArgs {
    /// Try eager, lazy and N seeds; stop at the first that goes wrong or gives
    /// other outputs than eager. Compared are the buffers with `out` (all
    /// buffers if none has), or a bundle's expected outputs.
    #[arg(long, value_name = "N", conflicts_with = "schedule")]
    explore: Option<u64>,
    /// Outputs may differ between schedules.
    #[arg(long, requires = "explore")]
    allow_different: bool,
}

impl ExploreArgs {
    /// Seeds to try, if any are asked for.
    pub(crate) fn seeds(&self) -> Option<u64> {
        self.explore
    }

    pub(crate) fn options(
        &self,
        seeds: u64,
        instruction_limit: Option<u64>,
        checks: Checks,
    ) -> ExploreOptions {
        let allow_different = self.allow_different;
        ExploreOptions { seeds, allow_different, instruction_limit, workers: None, checks }
    }
}

/// A finished exploration.
pub(crate) struct Tried {
    pub(crate) experiment: Experiment,
    pub(crate) found: Exploration,
}

/// Returns the text for standard output, and the exit code.
pub(crate) fn report(tried: &Tried, model: Model, json: bool) -> (Option<String>, u8) {
    let words = std::env::args();
    let replay = |failure: &Failure| command_line(words, failure.schedule);
    let Tried { experiment, found } = tried;
    checks::complain(&found.warnings, found.warnings_left_out);
    let Some(failure) = &found.failure else {
        let counters = found.eager.as_ref().map(|eager| &eager.report.counters);
        let not = checks::not_looked_for(checks::Tried::Many(found.passed), model);
        let text = if json {
            json!({
                "status": "done",
                "kernel": experiment.entry,
                "gpu": experiment.gpu.name,
                "emulated": true,
                "schedules": found.passed,
                "model": model.to_string(),
                "not_looked_for": not,
                "findings": report::findings(&found.warnings),
                "findings_left_out": found.warnings_left_out,
                "counters": counters,
                "lower_bound": counters.map(|counters| counters.lower_bound(&experiment.gpu)),
            })
            .to_string()
        } else {
            format!(
                "`{}` ran on the emulator as {} under {} schedules: nothing went wrong\n{not}",
                readable_name(&experiment.entry),
                experiment.gpu.name,
                found.passed
            )
        };
        return (Some(text), 0);
    };
    let replay = replay(failure);
    let text = if json {
        let mut text = match &failure.finding {
            Finding::Diagnostic(diagnostic) => report::failed(diagnostic, None),
            Finding::Wrong(output) => wrong(experiment, failure, output, "different"),
            Finding::Different(output) => wrong(experiment, failure, output, "differs from eager"),
        };
        text["model"] = json!(model.to_string());
        text["passed"] = json!(found.passed);
        text["replay"] = json!(replay);
        if let Some(output) = &failure.output {
            text["output"] = json!(output.to_string());
        }
        text.to_string()
    } else {
        let mut text = format!(
            "`{}` goes wrong under schedule {} ({} passed before): {}",
            readable_name(&experiment.entry),
            failure.schedule,
            found.passed,
            failure.finding
        );
        if let Finding::Diagnostic(diagnostic) = &failure.finding {
            let kind = diagnostic.kind();
            text += &format!("\nwhat to do: {}", kind.advice());
            text += &format!("\nexplained: ptx-emu explain {kind}");
            for other in &diagnostic.others {
                text += &format!("\nalso {}", checks::line(other));
            }
        }
        if let Some(output) = &failure.output {
            text += &format!("\nin that run {output}");
        }
        format!("{text}\nreplay: {replay}")
    };
    (Some(text), 1)
}

/// Adds what was found to a log.
pub(crate) fn add(tried: &Tried, log: &mut Log, module: &Path) {
    let found = &tried.found;
    sarif::findings(log, &found.warnings, module, None);
    let Some(failure) = &found.failure else { return };
    let replay = command_line(std::env::args(), failure.schedule);
    for part in std::iter::once(&failure.finding).chain(&failure.output) {
        match part {
            Finding::Diagnostic(diagnostic) => {
                let all = std::iter::once(&**diagnostic).chain(&diagnostic.others);
                sarif::findings(log, all, module, Some(&replay));
            }
            Finding::Wrong(_) | Finding::Different(_) => {
                let schedule = failure.schedule;
                let text = format!("under schedule {schedule} {part}\nReplay: {replay}");
                log.fault(Fault::Outputs, &text, module);
            }
        }
    }
}

fn wrong(experiment: &Experiment, failure: &Failure, output: &OutputReport, status: &str) -> Value {
    json!({
        "status": status,
        "error": failure.finding.to_string(),
        "kernel": experiment.entry,
        "gpu": experiment.gpu.name,
        "emulated": true,
        "schedule": failure.schedule.to_string(),
        "outputs": [report::output(output)],
    })
}

/// The command line `words` without its exploration, and with `schedule`. Words behind `--` are a
/// program's.
pub(crate) fn command_line(words: impl Iterator<Item = String>, schedule: Schedule) -> String {
    let mut kept = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next_if(|word| word != "--") {
        match word.as_str() {
            "--explore" => {
                words.next();
            }
            "--allow-different" => {}
            word if word.starts_with("--explore=") => {}
            word => kept.push(quoted(word)),
        }
    }
    kept.push(format!("--schedule {schedule}"));
    kept.extend(words.map(|word| quoted(&word)));
    kept.join(" ")
}

/// A word as a POSIX shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (explored, expected) in [
            ("ptx-emu run k.ptx --explore 9 --json", "ptx-emu run k.ptx --json --schedule lazy"),
            ("ptx-emu --explore=9 --allow-different a", "ptx-emu a --schedule lazy"),
            (
                "ptx-emu exec --explore 9 -- a --explore 3",
                "ptx-emu exec --schedule lazy -- a --explore 3",
            ),
        ] {
            assert_eq!(command_line(words(explored).into_iter(), Schedule::Lazy), expected);
        }
        let spaced = ["p".to_owned(), "it's a file".to_owned()].into_iter();
        assert_eq!(
            command_line(spaced, Schedule::Random(3)),
            r"p 'it'\''s a file' --schedule random:3"
        );
    }
}
