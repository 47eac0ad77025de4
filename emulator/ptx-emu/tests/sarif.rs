//! `--sarif`: logs have the shape that the standard SARIF 2.1.0 demands, and say what was found.

use crate::bundles;
use ptx_emu::Kind;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Each thread writes its index.
const THREADS: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b64 %o; .reg .b32 %t, %i;
    ld.param.u64 %o, [out];
    mov.u32 %i, %tid.x;
    mad.wide.u32 %o, %i, 4, %o;
    mov.u32 %t, %tid.x;
    st.global.u32 [%o], %t;
    ret;
}";

/// The parts of the standard that logs use: nothing else may be there, and nothing that the standard
/// requires may be missing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    #[serde(rename = "$schema")]
    schema: String,
    version: String,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Run {
    tool: Tool,
    pub(crate) invocations: Vec<Invocation>,
    pub(crate) results: Vec<Found>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    driver: Driver,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Driver {
    name: String,
    version: String,
    semantic_version: String,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    id: String,
    short_description: Message,
    full_description: Option<Message>,
    help: Option<Message>,
    default_configuration: Option<Configuration>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    level: Level,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Invocation {
    pub(crate) execution_successful: bool,
    pub(crate) tool_execution_notifications: Vec<Notification>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Notification {
    pub(crate) message: Message,
    level: Level,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    pub(crate) text: String,
    markdown: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Error,
    Warning,
    Note,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Found {
    pub(crate) rule_id: String,
    rule_index: usize,
    pub(crate) level: Level,
    pub(crate) message: Message,
    pub(crate) locations: Vec<Location>,
    pub(crate) occurrence_count: Option<u64>,
    partial_fingerprints: Option<std::collections::BTreeMap<String, String>>,
    properties: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Location {
    pub(crate) physical_location: Physical,
    #[serde(default)]
    logical_locations: Vec<Logical>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Physical {
    pub(crate) artifact_location: Artifact,
    pub(crate) region: Option<Region>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Artifact {
    pub(crate) uri: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Region {
    pub(crate) start_line: u32,
    snippet: Option<Message>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Logical {
    name: String,
    decorated_name: String,
    kind: String,
}

/// Reads a log, and demands what a reader relies on.
pub(crate) fn read(path: &Path) -> Log {
    let text = std::fs::read_to_string(path).expect("a log was written");
    let log: Log = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(log.schema.ends_with("sarif-2.1.0.json") && log.version == "2.1.0");
    for run in &log.runs {
        let Driver { name, version, semantic_version, rules } = &run.tool.driver;
        assert!(
            name == "ptx-emu" && version == semantic_version && version.split('.').count() == 3
        );
        for rule in rules {
            assert!(!rule.short_description.text.is_empty(), "{rule:?}");
            if rule.id.parse::<Kind>().is_ok() {
                let Rule { full_description: Some(_), help: Some(help), .. } = rule else {
                    panic!("{rule:?}");
                };
                assert!(help.text.contains("## Mending") && help.markdown.is_some());
                assert!(
                    rule.default_configuration.as_ref().is_some_and(|c| c.level != Level::Note)
                );
            }
        }
        for found in &run.results {
            assert_eq!(rules[found.rule_index].id, found.rule_id);
            assert!(!found.message.text.is_empty() && found.locations.len() == 1, "{found:?}");
            let Location { physical_location: place, logical_locations } = &found.locations[0];
            let uri = &place.artifact_location.uri;
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/%:".contains(c);
            assert!(!uri.is_empty() && uri.chars().all(plain), "{uri}");
            if let Some(region) = &place.region {
                assert!(region.start_line > 0);
                assert!(region.snippet.as_ref().is_none_or(|snippet| !snippet.text.is_empty()));
            }
            if found.rule_id.parse::<Kind>().is_ok() {
                assert!(found.occurrence_count.is_some_and(|count| count > 0));
                assert!(
                    found.partial_fingerprints.as_ref().is_some_and(|prints| prints.len() == 1)
                );
                assert!(found.properties.as_ref().is_some_and(|all| all["ptxLine"].is_u64()));
                let [Logical { name, decorated_name, kind }] = &logical_locations[..] else {
                    panic!("{found:?}");
                };
                assert!(!name.is_empty() && !decorated_name.is_empty() && kind == "function");
            }
        }
        for note in run.invocations.iter().flat_map(|one| &one.tool_execution_notifications) {
            assert!(!note.message.text.is_empty() && note.level == Level::Error);
        }
    }
    log
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sarif-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn program(folder: &Path, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
    program.current_dir(folder).args(arguments).output().expect("the program starts")
}

/// Runs the program of a kind's page with a log; the exit code, and the log.
fn run(name: &str, kind: Kind, options: &[&str]) -> (Option<i32>, Log) {
    let folder = folder(name);
    let args = r#"[{"buffer": {"bytes": 4096, "fill": "zero"}},
        {"buffer": {"bytes": 16384, "fill": 1}}, {"struct": {"bytes": 128, "fields": []}}]"#;
    std::fs::write(folder.join("k e.ptx"), kind.program()).expect("writable");
    std::fs::write(folder.join("args.json"), args).expect("writable");
    let fixed = ["run", "k e.ptx", "--entry", "k", "--grid", "1", "--block", "64"];
    let more = ["--args", "args.json", "--sarif", "log.sarif"];
    let output = program(&folder, &[&fixed[..], &more, options].concat());
    (output.status.code(), read(&folder.join("log.sarif")))
}

#[test]
fn a_run_is_a_log() {
    let (code, log) = run("race", Kind::DataRace, &["--schedule", "lazy"]);
    let [found] = &log.runs[0].results[..] else { panic!("{log:?}") };
    assert_eq!((code, found.rule_id.as_str(), &found.level), (Some(1), "data-race", &Level::Error));
    let place = &found.locations[0].physical_location;
    assert_eq!(place.artifact_location.uri, "k%20e.ptx");
    let line = place.region.as_ref().expect("a line").start_line as usize;
    let text = Kind::DataRace.program().lines().nth(line - 1).expect("a line").trim();
    let named = place.region.as_ref().and_then(|region| region.snippet.as_ref());
    assert!(named.is_some_and(|snippet| text.starts_with(&snippet.text)), "{text}: {place:?}");
    // A warning is one, and a run without findings is a log without results.
    let (code, log) = run("warned", Kind::DataRace, &["--schedule", "lazy", "--warn", "data-race"]);
    assert_eq!((code, &log.runs[0].results[0].level), (Some(0), &Level::Warning));
    let (code, log) = run("clean", Kind::DataRace, &[]);
    assert_eq!((code, log.runs[0].results.len()), (Some(0), 0));
    assert!(log.runs[0].invocations[0].execution_successful);
    // One that ends the run.
    let (code, log) = run("trap", Kind::Trap, &[]);
    assert_eq!((code, log.runs[0].results[0].rule_id.as_str()), (Some(1), "trap"));
}

#[test]
fn an_exploration_says_how_to_replay() {
    let (code, log) = run("explored", Kind::DataRace, &["--explore", "3"]);
    assert_eq!(code, Some(1));
    let text = &log.runs[0].results[0].message.text;
    assert!(text.contains("\nReplay: ") && text.ends_with("--schedule lazy"), "{text}");
}

#[test]
fn bad_input_is_a_notification() {
    let folder = folder("bad");
    let fixed = ["run", "none.ptx", "--grid", "1", "--block", "1", "--sarif", "log.sarif"];
    assert_eq!(program(&folder, &fixed).status.code(), Some(2));
    let log = read(&folder.join("log.sarif"));
    let [Invocation { execution_successful: false, tool_execution_notifications: notes }] =
        &log.runs[0].invocations[..]
    else {
        panic!("{log:?}");
    };
    assert!(notes[0].message.text.contains("none.ptx"));
    // A log that cannot be written is an error, whatever was found.
    let nowhere = ["run", "none.ptx", "--grid", "1", "--block", "1", "--sarif", "no/log.sarif"];
    let said = program(&folder, &nowhere);
    assert!(String::from_utf8_lossy(&said.stderr).contains("no/log.sarif: cannot be written"));
    assert_eq!(said.status.code(), Some(2));
}

#[test]
fn a_log_of_several_bundles_has_a_run_of_each() {
    let folder = folder("bundles");
    let right = "mov.u32 %t, %tid.x;";
    for (name, wrong) in [("a", right), ("b", "mov.u32 %t, %laneid;")] {
        let ptx = THREADS.replace(right, wrong);
        let bundle = bundles::thread_indices(&ptx, "k");
        bundle.write(&folder.join("all").join(name)).expect("writable");
    }
    let out = program(&folder, &["replay", "all", "--sarif", "log.sarif"]);
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
    let log = read(&folder.join("log.sarif"));
    let results = log.runs.iter().map(|run| run.results.len()).collect::<Vec<_>>();
    assert_eq!(results, [0, 1]);
    let found = &log.runs[1].results[0];
    assert_eq!(found.rule_id, "outputs-differ");
    assert!(found.message.text.contains("32 of 256 elements differ"), "{found:?}");
    assert!(found.locations[0].physical_location.artifact_location.uri.starts_with("all/b/"));
}
