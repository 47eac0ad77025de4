//! The options of `ptx-emu exec`, which it passes in an environment variable.

use crate::report;
use ptx_emu_core::{Checks, Gpu, Kind, Level, Model, Schedule};
use serde::Deserialize;
use std::path::PathBuf;

/// The environment variable.
pub(crate) const VARIABLE: &str = "PTX_EMU_EXEC";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Passed {
    gpu: Option<String>,
    lax: bool,
    schedule: Option<String>,
    model: Option<String>,
    levels: Vec<(String, String)>,
    max_findings: Option<usize>,
    event_times: Option<String>,
    capture: Option<PathBuf>,
    report: Option<PathBuf>,
}

/// The time between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EventTimes {
    /// Not a number.
    #[default]
    Nan,
    /// Zero.
    Zero,
    /// The lower bounds that follow from what the launches between them counted.
    Cycles,
}

/// The options of launches.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Machine; `None`: one that the program's PTX is for.
    pub(crate) gpu: Option<Gpu>,
    /// Whether modules are loaded that ptxas refuses.
    pub(crate) lax: bool,
    /// Schedule of every launch.
    pub(crate) schedule: Schedule,
    /// The checks.
    pub(crate) checks: Checks,
    /// The time between two events.
    pub(crate) event_times: EventTimes,
    /// The folder to which each launch is written as a bundle.
    pub(crate) capture: Option<PathBuf>,
    /// The file in which `exec` reads the outcome of the launches.
    pub(crate) report: Option<PathBuf>,
}

/// The fault of the variable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}: {field}: {problem}")]
struct SettingsError {
    field: &'static str,
    problem: String,
}

impl Settings {
    /// Returns the settings of the environment; the program ends if they are none.
    pub(crate) fn from_environment() -> Self {
        let text = std::env::var(VARIABLE).unwrap_or_else(|_| "{}".to_owned());
        Self::parse(&text).unwrap_or_else(|error| {
            report::complain(error);
            std::process::exit(2);
        })
    }

    fn parse(text: &str) -> Result<Self, SettingsError> {
        fn read<T: std::str::FromStr>(field: &'static str, text: &str) -> Result<T, SettingsError>
        where
            T::Err: std::fmt::Display,
        {
            text.parse()
                .map_err(|error: T::Err| SettingsError { field, problem: error.to_string() })
        }
        let passed: Passed = serde_json::from_str(text)
            .map_err(|error| SettingsError { field: "JSON", problem: error.to_string() })?;
        let gpu = match passed.gpu {
            None => None,
            Some(name) => Some(Gpu::by_name(&name).ok_or_else(|| SettingsError {
                field: "gpu",
                problem: format!("required {}, actual `{name}`", Gpu::names()),
            })?),
        };
        let model = passed.model.map(|model| read::<Model>("model", &model)).transpose()?;
        let mut checks = Checks::new(model.unwrap_or(Model::Hardware));
        for (kind, level) in &passed.levels {
            let level = match level.as_str() {
                "allow" => Level::Allow,
                "warn" => Level::Warn,
                "deny" => Level::Deny,
                _ => {
                    let problem = format!("required allow, warn or deny, actual `{level}`");
                    return Err(SettingsError { field: "levels", problem });
                }
            };
            checks = checks.with(read::<Kind>("levels", kind)?, level);
        }
        let event_times = match passed.event_times.as_deref() {
            None | Some("nan") => EventTimes::Nan,
            Some("zero") => EventTimes::Zero,
            Some("cycles") => EventTimes::Cycles,
            Some(other) => {
                let problem = format!("required nan, zero or cycles, actual `{other}`");
                return Err(SettingsError { field: "event_times", problem });
            }
        };
        let schedule =
            passed.schedule.map(|text| read::<Schedule>("schedule", &text)).transpose()?;
        Ok(Self {
            gpu,
            lax: passed.lax,
            schedule: schedule.unwrap_or_default(),
            checks: checks.collecting(passed.max_findings.unwrap_or(Checks::MOST)),
            event_times,
            capture: passed.capture,
            report: passed.report,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let text = r#"{"gpu": "b200", "schedule": "lazy", "model": "ptx",
            "levels": [["data-race", "warn"]], "capture": "there"}"#;
        let settings = Settings::parse(text).expect("right");
        assert_eq!(settings.gpu, Some(Gpu::b200()));
        assert_eq!(settings.schedule, Schedule::Lazy);
        assert_eq!(settings.checks.model, Model::Ptx);
        assert_eq!(settings.checks.level("data-race".parse().expect("a kind")), Level::Warn);
        assert_eq!(settings.capture, Some(PathBuf::from("there")));
        let none = Settings::parse("{}").expect("right");
        assert_eq!((none.gpu, none.checks.model), (None, Model::Hardware));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("{", "JSON"),
            (r#"{"gpu": "h100"}"#, "h100"),
            (r#"{"schedule": "never"}"#, "schedule"),
            (r#"{"event_times": "seconds"}"#, "event_times"),
            (r#"{"levels": [["data-race", "forbid"]]}"#, "forbid"),
            (r#"{"levels": [["nothing", "deny"]]}"#, "nothing"),
        ] {
            let error = Settings::parse(text).expect_err("wrong").to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
