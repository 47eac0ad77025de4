//! `--explore`: schedules that go wrong are found, named, and replayed by the
//! command line that is printed.

use crate::bundles::thread_indices;
use ptx_emu::bundle::{Bundle, RunBundle as _};
use ptx_emu::explore::{ExploreOptions, Finding, explore};
use ptx_emu::{DiagnosticKind, Schedule};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Two warps; `k` gives each thread's number, `ticket` the order in which warps
/// came, `early` reads what `cp.async` may not have brought, `reads` what nobody wrote.
const PTX: &str = "
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b64 %o; .reg .b32 %t;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mad.wide.u32 %o, %t, 4, %o;
    st.global.u32 [%o], %t; ret;
}
.visible .entry ticket(.param .u64 out) {
    .shared .u32 s;
    .reg .b64 %o; .reg .b32 %t, %n, %m; .reg .pred %p;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x;
    setp.eq.u32 %p, %t, 0; @%p st.shared.u32 [s], 0; bar.sync 0;
    atom.shared.add.u32 %n, [s], 1;
    mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %n; ret;
}
.visible .entry early(.param .u64 out) {
    .shared .align 16 .b8 s[1024];
    .reg .b64 %o; .reg .b32 %t, %a, %v;
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mad.wide.u32 %o, %t, 4, %o;
    mov.u32 %a, s; mad.lo.u32 %a, %t, 4, %a; st.global.u32 [%o], %t;
    cp.async.ca.shared.global [%a], [%o], 4;
    ld.shared.u32 %v, [%a]; st.global.u32 [%o], %v; ret;
}
.visible .entry reads(.param .u64 out) {
    .reg .b64 %o; .reg .b32 %v;
    ld.param.u64 %o, [out];
    ld.global.u32 %v, [%o];
    ld.global.u32 %v, [%o+4];
    ld.global.u32 %v, [%o+8];
    ret;
}";

fn bundle(entry: &str) -> Bundle {
    thread_indices(PTX, entry)
}

fn options(seeds: u64) -> ExploreOptions {
    ExploreOptions { seeds, ..ExploreOptions::default() }
}

#[test]
fn what_is_found_does_not_depend_on_the_workers() {
    // The tickets depend on the order of warps, and nothing is expected of them.
    let mut experiment = bundle("ticket").experiment(None).expect("it fits");
    experiment.outputs[0].expected = None;
    let module = experiment.load().expect("it loads");
    let with = |workers, allow_different| {
        let options = ExploreOptions { workers: Some(workers), allow_different, ..options(40) };
        explore(&experiment, &module, &options).expect("it launches")
    };
    let alone = with(1, false);
    let failure = alone.failure.expect("another order");
    assert_eq!((failure.schedule, alone.passed), (Schedule::Lazy, 1));
    let Finding::Different(report) = &failure.finding else {
        panic!("{failure:?}");
    };
    assert_eq!((report.elements, report.mismatches), (256, 64));
    for workers in [2, 5] {
        let many = with(workers, false);
        assert_eq!((many.failure.as_ref(), many.passed), (Some(&failure), 1));
    }
    let allowed = with(2, true);
    assert_eq!((allowed.failure, allowed.passed), (None, 42));
}

#[test]
fn the_first_failure_is_named() {
    let experiment = bundle("early").experiment(None).expect("it fits");
    let module = experiment.load().expect("it loads");
    let found = explore(&experiment, &module, &options(4)).expect("it launches");
    let failure = found.failure.expect("the read comes too early");
    assert_eq!(failure.schedule, Schedule::Lazy);
    let Finding::Diagnostic(diagnostic) = failure.finding else {
        panic!("{:?}", failure.finding);
    };
    assert!(matches!(diagnostic.kind, DiagnosticKind::Async(_)), "{diagnostic}");
}

/// The program in its own folder, with the bundle and a module with
/// arguments.
fn program(test: &str, entry: &str, words: &str) -> (PathBuf, Output) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("explore {test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    bundle(entry).write(&folder.join("bundle")).expect("writable");
    std::fs::write(folder.join("k.ptx"), PTX).expect("writable");
    let args = r#"[{"buffer": {"bytes": 256}, "out": "out.bin"}]"#;
    std::fs::write(folder.join("args.json"), args).expect("writable");
    let place = |word: &str| match word {
        "bundle" | "k.ptx" | "args.json" => folder.join(word).into_os_string(),
        word => word.into(),
    };
    let output = Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .args(words.split_whitespace().map(place))
        .output()
        .expect("the program starts");
    (folder, output)
}

const RUN: &str = "run k.ptx --args args.json --grid 1 --block 64";

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[test]
fn all_well() {
    let (folder, output) = program("well", "k", &format!("{RUN} --entry k --explore 6"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).contains("under 8 schedules: nothing went wrong"), "{output:?}");
    let written = std::fs::read(folder.join("out.bin")).expect("written");
    assert_eq!(written, (0..64u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    let (_, output) = program("well-bundle", "k", "replay bundle --explore 6 --json");
    let json: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!((output.status.code(), &json["schedules"]), (Some(0), &8.into()), "{json}");
}

#[test]
fn the_printed_command_line_replays() {
    for (entry, words) in [
        ("early", "replay bundle --explore 9".to_owned()),
        ("early", { format!("{RUN} --entry early --explore=9") }),
    ] {
        let (_, output) = program("line", entry, &words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = stdout(&output);
        let (found, line) = text.split_once("\nreplay: ").expect("a command line");
        assert!(found.contains("goes wrong under schedule lazy (1 passed before)"), "{found}");
        let again = Command::new("sh").arg("-c").arg(line).output().expect("a shell");
        assert_eq!(again.status.code(), Some(1), "{again:?}");
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        let (_, diagnostic) = found.split_once("before): ").expect("a diagnostic");
        let diagnostic = diagnostic.lines().next().expect("a line");
        assert!(said.contains(diagnostic), "{said} is not {diagnostic}");
    }
}

#[test]
fn differing_outputs_fail_unless_allowed() {
    let words = format!("{RUN} --entry ticket --explore 3 --json");
    let (folder, output) = program("differ", "ticket", &words);
    let json: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(output.status.code(), Some(1), "{json}");
    assert_eq!(
        (&json["status"], &json["schedule"]),
        (&"differs from eager".into(), &"lazy".into())
    );
    assert_eq!(json["outputs"][0]["name"], "out");
    assert!(json["replay"].as_str().is_some_and(|line| line.ends_with("--schedule lazy")));
    assert!(!folder.join("out.bin").exists(), "nothing is written");
    let (folder, output) = program("allowed", "ticket", &format!("{words} --allow-different"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(folder.join("out.bin").exists());
    // A bundle's expected outputs are compared all the same.
    let (_, output) =
        program("expected", "ticket", "replay bundle --explore 3 --allow-different --json");
    let json: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!((output.status.code(), &json["status"]), (Some(1), &"different".into()), "{json}");
}

#[test]
fn bad_input() {
    for words in [
        format!("{RUN} --entry k --explore 3 --schedule lazy"),
        format!("{RUN} --entry k --allow-different"),
        format!("{RUN} --entry other --explore 3"),
        "replay k.ptx --explore 3".to_owned(),
    ] {
        let (_, output) = program("bad", "k", &words);
        assert_eq!(output.status.code(), Some(2), "{words}: {output:?}");
    }
}

#[test]
fn the_first_failure_is_traced() {
    for (name, words) in [
        ("trace", format!("{RUN} --entry early --explore 2 --trace")),
        ("trace-bundle", "replay bundle --explore 2 --trace".to_owned()),
    ] {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("explore-{name}.json"));
        let _ = std::fs::remove_file(&path);
        let (_, output) = program(name, "early", &format!("{words} {}", path.display()));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = std::fs::read_to_string(&path).expect("a timeline");
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(trace["otherData"]["schedule"], "lazy", "{trace}");
        assert!(text.contains("cp.async"), "{trace}");
    }
    // Nothing goes wrong: no timeline, which is said.
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("explore-no-trace.json");
    let words = format!("{RUN} --entry k --explore 2 --trace {}", path.display());
    let (_, output) = program("no-trace", "k", &words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no timeline was written") && !path.exists(), "{said}");
}

#[test]
fn warnings_that_are_not_shown_are_counted() {
    let warned = format!("{RUN} --entry reads --explore 2 --json --model ptx --allow-different");
    let warned = format!("{warned} --warn uninitialised-read");
    for (most, shown, left_out) in [(20, 3, 0), (1, 1, 2), (0, 0, 3)] {
        let words = format!("{warned} --max-findings {most}");
        let (_, output) = program("warnings", "reads", &words);
        let json: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!(output.status.code(), Some(0), "{json}");
        assert_eq!(json["findings"].as_array().map(Vec::len), Some(shown), "{json}");
        assert_eq!(json["findings_left_out"], left_out, "{json}");
        let said = String::from_utf8_lossy(&output.stderr);
        let counted = said.contains(&format!("{left_out} more findings"));
        assert_eq!(counted, left_out != 0, "{said}");
    }
}
