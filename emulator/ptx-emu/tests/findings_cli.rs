//! Findings on the command line: `explain`, models, levels, collected findings, exit codes.

use ptx_emu::Kind;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("findings-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn program(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
    program.args(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the program of a kind's page, in a folder of the test's own.
fn run(test: &str, kind: Kind, options: &[&str]) -> Output {
    let folder = folder(test);
    let args = r#"[{"buffer": {"bytes": 4096, "fill": "zero"}, "out": "out.bin"},
        {"buffer": {"bytes": 16384, "fill": 1}}, {"struct": {"bytes": 128, "fields": []}}]"#;
    std::fs::write(folder.join("k.ptx"), kind.program()).expect("writable");
    std::fs::write(folder.join("args.json"), args).expect("writable");
    let path = |name: &str| folder.join(name).display().to_string();
    let (module, args) = (path("k.ptx"), path("args.json"));
    let block = if kind == Kind::DataRace { "64" } else { "32" };
    let fixed = ["run", &module, "--entry", "k", "--grid", "1", "--block", block, "--args", &args];
    program(&[&fixed[..], options].concat())
}

#[test]
fn every_kind_is_explained() {
    let list = program(&["explain"]);
    assert!(list.status.success());
    let list = text(&list.stdout);
    for kind in Kind::ALL {
        assert!(list.lines().any(|line| line.split(' ').next() == Some(kind.name())), "{kind}");
    }
    let page = text(&program(&["explain", "data-race"]).stdout);
    for part in ["# Two accesses", "## Rule", "PTX ISA 8.6", "## Mending", "//+ bar.sync 0;"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let unknown = program(&["explain", "data_race"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("required one that `ptx-emu explain` lists"));
}

#[test]
fn findings_have_levels_and_do_not_end_the_run() {
    let lazy = ["--schedule", "lazy", "--json"];
    let json = |test: &str, options: &[&str]| -> (Option<i32>, Value) {
        let output = run(test, Kind::DataRace, &[&lazy[..], options].concat());
        (output.status.code(), serde_json::from_slice(&output.stdout).expect("JSON"))
    };
    let (code, denied) = json("denied", &[]);
    assert_eq!((code, &denied["status"]), (Some(1), &"diagnostic".into()), "{denied}");
    assert_eq!(denied["model"], "hardware");
    let found = &denied["findings"][0];
    assert_eq!((&found["kind"], &found["level"]), (&"data-race".into(), &"deny".into()));
    // It ran to its end.
    assert!(denied["counters"]["warp_instructions"].as_u64().is_some_and(|count| count > 10));
    assert_eq!(denied["outputs"][0]["bytes"], 4096);
    let (code, warned) = json("warned", &["--warn", "data-race"]);
    assert_eq!((code, &warned["status"]), (Some(0), &"done".into()), "{warned}");
    assert_eq!(warned["findings"][0]["level"], "warn");
    let (code, allowed) = json("allowed", &["--allow", "data-race", "--model", "ptx"]);
    assert_eq!((code, &allowed["findings"]), (Some(0), &Value::Array(Vec::new())), "{allowed}");
    assert_eq!(allowed["model"], "ptx");
    let races = "data races in global memory and other schedules";
    assert_eq!(
        allowed["not_looked_for"],
        format!("not looked for under lazy: {races}; try --explore 10")
    );
    // Also where the run cannot go on.
    let (code, trapped) = {
        let output = run("trapped", Kind::Trap, &["--json", "--model", "ptx"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), report)
    };
    assert_eq!(
        (code, &trapped["kind"], &trapped["model"]),
        (Some(1), &"trap".into(), &"ptx".into())
    );
    assert_eq!(trapped["findings"][0]["kind"], "trap");
    let said = text(&run("said", Kind::DataRace, &["--schedule", "lazy"]).stderr);
    assert!(said.contains("error[data-race]: data race: "), "{said}");
    assert!(said.contains("(see `ptx-emu explain data-race`)"), "{said}");
    let unknown = run("unknown", Kind::DataRace, &["--allow", "races"]);
    assert_eq!(unknown.status.code(), Some(2));
    let fatal = run("fatal", Kind::Trap, &["--warn", "trap"]);
    assert_eq!(fatal.status.code(), Some(2));
    assert!(text(&fatal.stderr).contains("ends the run: it has no other level"));
}

#[test]
fn the_model_says_what_is_wrong() {
    let lazy = ["--schedule", "lazy"];
    let hardware = run("hardware", Kind::ExitSourceInFlight, &lazy);
    assert_eq!(hardware.status.code(), Some(0), "{}", text(&hardware.stderr));
    let ptx = run("ptx", Kind::ExitSourceInFlight, &[&lazy[..], &["--model", "ptx"]].concat());
    assert_eq!(ptx.status.code(), Some(1));
    assert!(text(&ptx.stderr).contains("error[exit-with-source-in-flight]"));
    let tried = run(
        "tried",
        Kind::ExitSourceInFlight,
        &["--explore", "3", "--deny", "exit-with-source-in-flight"],
    );
    assert_eq!(tried.status.code(), Some(1));
    assert!(text(&tried.stdout).contains("explained: ptx-emu explain exit-with-source-in-flight"));
}

#[test]
fn a_clean_run_says_what_it_did_not_look_for() {
    let clean = |test: &str, options: &[&str]| {
        let output = run(test, Kind::ExitSourceInFlight, options);
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let hardware = "orders that hardware keeps but PTX ISA does not promise (--model ptx)";
    let said = clean("eager", &[]);
    let expected = format!(
        "not looked for under eager: data races, other schedules and {hardware}; try --explore 10\n"
    );
    assert!(said.ends_with(&expected), "{said}");
    let said = clean("many", &["--explore", "3"]);
    let expected = format!(
        "nothing went wrong\nnot looked for: data races in global memory, schedules beyond these 5 and {hardware}\n"
    );
    assert!(said.ends_with(&expected), "{said}");
    let said = clean("many-json", &["--explore", "1", "--json"]);
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert!(
        report["not_looked_for"].as_str().is_some_and(|not| not.contains("beyond these 3")),
        "{said}"
    );
}
