//! Checks and their levels: `--model`, `--allow`, `--warn`, `--deny`; how findings are shown.

use super::console;
use clap::Args;
use ptx_emu::{Checks, Diagnostic, Kind, Level, Model, Schedule};

/// Model and levels of findings.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChecksArgs {
    /// Orders that hold: what hardware is known to order, or only what PTX ISA promises.
    #[arg(long, value_name = "hardware|ptx", default_value_t = Model::Hardware)]
    model: Model,
    /// Do not mention findings of a kind; `ptx-emu explain` lists the kinds.
    #[arg(long, value_name = "KIND", value_parser = not_fatal)]
    allow: Vec<Kind>,
    /// Mention findings of a kind, but call the run right.
    #[arg(long, value_name = "KIND", value_parser = not_fatal)]
    warn: Vec<Kind>,
    /// Call a run with a finding of a kind wrong.
    #[arg(long, value_name = "KIND")]
    deny: Vec<Kind>,
    /// Most findings of a run that are shown.
    #[arg(long, value_name = "N", default_value_t = Checks::MOST)]
    max_findings: usize,
}

/// A kind whose findings need not end a run.
fn not_fatal(name: &str) -> Result<Kind, String> {
    let kind = name.parse::<Kind>().map_err(|error| error.to_string())?;
    if kind.is_fatal() {
        return Err("a finding of this kind ends the run: it has no other level".to_owned());
    }
    Ok(kind)
}

impl ChecksArgs {
    /// The checks: a finding does not end the run unless it must. The strictest level counts
    /// where a kind is named more than once.
    pub(crate) fn checks(&self) -> Checks {
        let levels =
            [(&self.allow, Level::Allow), (&self.warn, Level::Warn), (&self.deny, Level::Deny)];
        let named =
            levels.into_iter().flat_map(|(kinds, level)| kinds.iter().map(move |k| (*k, level)));
        let checks =
            named.fold(Checks::new(self.model), |checks, (kind, level)| checks.with(kind, level));
        checks.collecting(self.max_findings)
    }

    /// The levels that were asked for, in the order in which they count, by name.
    pub(crate) fn named(&self) -> Vec<(&'static str, String)> {
        let levels =
            [(&self.allow, Level::Allow), (&self.warn, Level::Warn), (&self.deny, Level::Deny)];
        let named = |(kinds, level): (&'_ Vec<Kind>, Level)| {
            kinds.iter().map(|kind| (kind.name(), level.to_string())).collect::<Vec<_>>()
        };
        levels.into_iter().flat_map(named).collect()
    }

    pub(crate) fn most(&self) -> usize {
        self.max_findings
    }

    pub(crate) fn model(&self) -> Model {
        self.model
    }
}

/// The schedules that were run: one, or so many.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tried {
    One(Schedule),
    /// The same of a program with its launches.
    Program(Schedule),
    Many(u64),
}

/// Returns the checks that a clean run did not make.
pub(crate) fn not_looked_for(tried: Tried, model: Model) -> String {
    let (schedule, under, advice) = match tried {
        Tried::One(schedule) => {
            (Some(schedule), format!(" under {schedule}"), "; try --explore 10")
        }
        Tried::Program(schedule) => {
            let advice = match schedule {
                Schedule::Eager => "; try --schedule lazy and random:1",
                Schedule::Lazy | Schedule::Random(_) => "",
            };
            (Some(schedule), format!(" under {schedule}"), advice)
        }
        Tried::Many(_) => (None, String::new(), ""),
    };
    let mut what: Vec<String> =
        ptx_emu::not_looked_for(schedule, model).into_iter().map(str::to_owned).collect();
    if model == Model::Hardware
        && let Some(orders) = what.last_mut()
    {
        orders.push_str(" (--model ptx)");
    }
    if let (Tried::Many(count), Some(schedules)) = (tried, what.get_mut(1)) {
        *schedules = format!("{schedules} {count}");
    }
    let last = what.pop().unwrap_or_default();
    format!("not looked for{under}: {} and {last}{advice}", what.join(", "))
}

/// Shows findings on standard error.
pub(crate) fn complain<'a>(findings: impl IntoIterator<Item = &'a Diagnostic>, left_out: usize) {
    for found in findings {
        console::complain(line(found));
    }
    if left_out != 0 {
        console::complain(format_args!("{left_out} more findings; --max-findings shows more"));
    }
}

/// A finding, and what to do about it.
pub(crate) fn line(found: &Diagnostic) -> String {
    let word = match found.level {
        Level::Deny => "error",
        Level::Allow | Level::Warn => "warning",
    };
    let kind = found.kind();
    format!(
        "{word}[{kind}]: {found} (see `ptx-emu explain {kind}`)\n  what to do: {}",
        kind.advice()
    )
}
