//! Findings in the Static Analysis Results Interchange Format (SARIF, OASIS standard 2.1.0), which code
//! hosts and editors show beside the source.
//!
//! A result is at the line of source that the PTX names (`-lineinfo`); without one, at the line of the
//! PTX module, or at the program that holds it. Its rule is the kind of finding with its page. Files
//! below the current folder have relative names.

use crate::Kind;
use serde_json::{Value, json};
use std::path::Path;

/// The place of the standard's schema.
const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// The text that the lines of a finding count.
#[derive(Debug, Clone, Copy)]
pub enum Lines<'a> {
    /// A PTX module.
    Module(&'a Path),
    /// A program with PTX in it, which has no lines.
    Program(&'a Path),
}

/// A fault of a run that is no finding of the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Outputs are not what is expected, or differ between schedules.
    Outputs,
    /// A program ended with an exit code other than 0.
    Program,
    /// A launch did not run.
    Launch,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Outputs => "outputs-differ",
            Self::Program => "program-failed",
            Self::Launch => "launch-not-run",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Outputs => "Outputs that differ from what is expected, or between schedules",
            Self::Program => "A program that ends with an error",
            Self::Launch => "A launch that did not run",
        }
    }
}

/// A log with one run of the emulator.
#[derive(Debug, Clone, Default)]
pub struct Log {
    rules: Vec<Value>,
    results: Vec<Value>,
    notes: Vec<Value>,
}

impl Log {
    /// An empty log: nothing was found.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of results.
    #[must_use]
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// Adds a finding in the form of [`Diagnostic::to_json`](crate::Diagnostic::to_json). `replay`: the
    /// command that has it again. A finding of the same kind at the same line of the same kernel is
    /// counted with the first one.
    pub fn finding(&mut self, finding: &Value, lines: Lines<'_>, replay: Option<&str>) {
        let text = |field: &str| finding[field].as_str().unwrap_or_default();
        let rule = text("kind");
        let fingerprint = format!("{rule}:{}:{}", text("kernel"), text("instruction"));
        let (place, file) = place(finding, lines);
        let same = |known: &&mut Value| {
            known["ruleId"] == rule
                && known["properties"]["ptxLine"] == finding["line"]
                && known["partialFingerprints"]["ptxEmu/v1"] == *fingerprint
                && known["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == *file
        };
        if let Some(known) = self.results.iter_mut().find(same) {
            let count = known["occurrenceCount"].as_u64().unwrap_or(1);
            known["occurrenceCount"] = json!(count + 1);
            return;
        }
        let mut message = format!("{}\nWhat to do: {}", text("error"), text("advice"));
        if let Some(replay) = replay {
            message += &format!("\nReplay: {replay}");
        }
        let index = self.rule(rule);
        self.results.push(json!({
            "ruleId": rule,
            "ruleIndex": index,
            "level": level(text("level")),
            "message": { "text": message },
            "locations": [{
                "physicalLocation": place,
                "logicalLocations": [{
                    "name": text("kernel_name"),
                    "decoratedName": text("kernel"),
                    "kind": "function",
                }],
            }],
            "occurrenceCount": 1,
            "partialFingerprints": { "ptxEmu/v1": fingerprint },
            "properties": {
                "schedule": finding["schedule"],
                "cta": finding["cta"],
                "warp": finding["warp"],
                "lane": finding["lane"],
                "ptxLine": finding["line"],
                "instruction": finding["instruction"],
            },
        }));
    }

    /// Adds a fault that is no finding.
    pub fn fault(&mut self, fault: Fault, message: &str, file: &Path) {
        let index = self.rule(fault.name());
        self.results.push(json!({
            "ruleId": fault.name(),
            "ruleIndex": index,
            "level": "error",
            "message": { "text": message },
            "locations": [{
                "physicalLocation": { "artifactLocation": { "uri": uri(file) } },
            }],
        }));
    }

    /// Notes that the emulator itself could not do what it was asked for.
    pub fn failed(&mut self, message: &str) {
        self.notes.push(json!({ "level": "error", "message": { "text": message } }));
    }

    /// The place of a rule in the list, which has it from then on.
    fn rule(&mut self, name: &str) -> usize {
        if let Some(known) = self.rules.iter().position(|rule| rule["id"] == name) {
            return known;
        }
        let faults = [Fault::Outputs, Fault::Program, Fault::Launch];
        let rule = match name.parse::<Kind>() {
            Ok(kind) => json!({
                "id": name,
                "shortDescription": { "text": kind.title() },
                "fullDescription": { "text": kind.advice() },
                "help": { "text": kind.explanation(), "markdown": kind.explanation() },
                "defaultConfiguration": { "level": level(&kind.level(crate::Model::Ptx).to_string()) },
            }),
            Err(_) => {
                let fault = faults.into_iter().find(|fault| fault.name() == name);
                let title = fault.map_or(name, |fault| fault.title());
                json!({ "id": name, "shortDescription": { "text": title } })
            }
        };
        self.rules.push(rule);
        self.rules.len() - 1
    }

    /// The run, an element of a log's `runs`.
    #[must_use]
    pub fn run(&self) -> Value {
        json!({
            "tool": {
                "driver": {
                    "name": "ptx-emu",
                    "version": env!("CARGO_PKG_VERSION"),
                    "semanticVersion": env!("CARGO_PKG_VERSION"),
                    "rules": self.rules,
                },
            },
            "invocations": [{
                "executionSuccessful": self.notes.is_empty(),
                "toolExecutionNotifications": self.notes,
            }],
            "results": self.results,
        })
    }

    /// The log as a document.
    #[must_use]
    pub fn to_json(&self) -> Value {
        document(&[self.run()])
    }
}

/// A document with several runs.
#[must_use]
pub fn document(runs: &[Value]) -> Value {
    json!({ "$schema": SCHEMA, "version": "2.1.0", "runs": runs })
}

/// SARIF's word for a level.
fn level(word: &str) -> &'static str {
    match word {
        "deny" => "error",
        "warn" => "warning",
        _ => "note",
    }
}

/// The place of a finding, and its file.
fn place(finding: &Value, lines: Lines<'_>) -> (Value, String) {
    let source = finding["source"].as_str().and_then(|source| source.rsplit_once(':'));
    let source = source.and_then(|(file, line)| Some((file, line.parse::<u32>().ok()?)));
    let (file, region) = match (source, lines) {
        (Some((file, line)), _) => {
            (uri(Path::new(file)), Some(json!({ "startLine": line.max(1) })))
        }
        (None, Lines::Module(module)) => {
            let line = finding["line"].as_u64().unwrap_or(1).max(1);
            let snippet = json!({ "text": finding["instruction"] });
            (uri(module), Some(json!({ "startLine": line, "snippet": snippet })))
        }
        (None, Lines::Program(program)) => (uri(program), None),
    };
    let mut place = json!({ "artifactLocation": { "uri": file } });
    if let Some(region) = region {
        place["region"] = region;
    }
    (place, file)
}

/// A file as a URI reference: relative below the current folder.
fn uri(file: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let relative = file.strip_prefix(&here).unwrap_or(file);
    let text = relative.to_string_lossy();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let mut uri = String::from(if relative.is_absolute() { "file://" } else { "" });
    for byte in text.strip_prefix("./").unwrap_or(&text).bytes() {
        match plain(byte) {
            true => uri.push(char::from(byte)),
            false => uri += &format!("%{byte:02X}"),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(source: Option<&str>) -> Value {
        json!({
            "kind": "data-race", "level": "deny", "error": "data race: here", "advice": "Wait.",
            "kernel": "_Z1kv", "kernel_name": "k()", "line": 12, "source": source,
            "instruction": "st.shared.u32 [%r1], %r2;", "cta": [0, 0, 0], "warp": 1, "lane": 3,
            "schedule": "lazy",
        })
    }

    #[test]
    fn files_are_uris() {
        assert_eq!(uri(Path::new("./a b/ü%.cu")), "a%20b/%C3%BC%25.cu");
        assert_eq!(uri(Path::new("/no/where.cu")), "file:///no/where.cu");
        let here = std::env::current_dir().expect("a folder");
        assert_eq!(uri(&here.join("src/k.cu")), "src/k.cu");
    }

    #[test]
    fn results_are_at_the_source_if_the_ptx_names_it() {
        let mut log = Log::new();
        let module = Path::new("k.ptx");
        log.finding(
            &finding(Some("src/a:b.cu:7")),
            Lines::Module(module),
            Some("ptx-emu run k.ptx"),
        );
        log.finding(&finding(None), Lines::Module(module), None);
        log.finding(&finding(None), Lines::Program(Path::new("./program")), None);
        let place =
            |at: usize| log.run()["results"][at]["locations"][0]["physicalLocation"].clone();
        assert_eq!(place(0)["artifactLocation"]["uri"], "src/a%3Ab.cu");
        assert_eq!(place(0)["region"], json!({ "startLine": 7 }));
        assert_eq!(place(1)["artifactLocation"]["uri"], "k.ptx");
        assert_eq!(place(1)["region"]["startLine"], 12);
        assert_eq!(place(2), json!({ "artifactLocation": { "uri": "program" } }));
        let text = log.run()["results"][0]["message"]["text"].clone();
        assert_eq!(text, "data race: here\nWhat to do: Wait.\nReplay: ptx-emu run k.ptx");
        assert_eq!(log.run()["tool"]["driver"]["rules"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn the_same_finding_is_counted() {
        let mut log = Log::new();
        for cta in 0..3 {
            let mut again = finding(None);
            again["cta"] = json!([cta, 0, 0]);
            log.finding(&again, Lines::Module(Path::new("k.ptx")), None);
        }
        assert_eq!((log.len(), &log.run()["results"][0]["occurrenceCount"]), (1, &json!(3)));
        let mut other = finding(None);
        other["line"] = json!(13);
        log.finding(&other, Lines::Module(Path::new("k.ptx")), None);
        assert_eq!(log.len(), 2);
    }

    #[test]
    fn what_could_not_be_done_is_a_notification() {
        let mut log = Log::new();
        assert_eq!(log.run()["invocations"][0]["executionSuccessful"], true);
        log.failed("k.ptx: cannot be read");
        log.fault(Fault::Launch, "2 launches did not run", Path::new("program"));
        let run = log.run();
        assert_eq!(run["invocations"][0]["executionSuccessful"], false);
        assert_eq!(run["results"][0]["ruleId"], "launch-not-run");
        assert_eq!(
            run["tool"]["driver"]["rules"][0]["shortDescription"]["text"],
            Fault::Launch.title()
        );
    }
}
