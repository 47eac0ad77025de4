//! `ptx-emu exec --explore`, findings of programs as SARIF, and the project of the page about continuous
//! integration.
#![cfg(target_os = "linux")]

use crate::exec::{SM_100A, compile, documented, exec, folder, stand_in, text, tools};
use crate::sarif::{self, Level};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/project");

#[test]
fn a_right_program_is_right_under_all_schedules() {
    let Some(program) = compile("reduction.cu", "explored", &documented(SM_100A)) else { return };
    let log = folder().join("explored.sarif");
    let out = exec(&["--explore", "2", "--sarif", log.to_str().expect("UTF-8")], &program);
    let (printed, said) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{printed}{said}");
    assert_eq!(printed, "reduction: right\n", "{said}");
    assert!(said.contains("ran under 4 schedules: nothing went wrong"), "{said}");
    assert!(said.contains("schedules beyond these 4"), "{said}");
    assert!(sarif::read(&log).runs[0].results.is_empty());
}

#[test]
fn the_first_schedule_that_goes_wrong_is_named_and_replayed() {
    let arguments = [&documented(SM_100A)[..], &["-DBROKEN", "-lineinfo"]].concat();
    let Some(program) = compile("dependent.cu", "explored-broken", &arguments) else { return };
    let log = folder().join("explored-broken.sarif");
    let out = exec(&["--explore", "12", "--sarif", log.to_str().expect("UTF-8")], &program);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("goes wrong under schedule random:"), "{said}");
    assert!(said.contains("error[uninitialised-read]"), "{said}");
    let replay = said.lines().last().and_then(|line| line.strip_prefix("ptx-emu: replay: "));
    let replay = replay.expect("a command");
    assert!(replay.contains(" --schedule random:") && replay.contains(" -- "), "{replay}");
    let found = sarif::read(&log);
    let first = &found.runs[0].results[0];
    assert_eq!((first.rule_id.as_str(), &first.level), ("uninitialised-read", &Level::Error));
    assert!(first.message.text.ends_with(replay), "{first:?}");
    let place = &first.locations[0].physical_location;
    assert!(place.artifact_location.uri.ends_with("tests/exec/programs/dependent.cu"), "{place:?}");
    assert!(place.region.as_ref().is_some_and(|region| region.start_line > 1), "{place:?}");
    let again = Command::new("sh").args(["-c", replay]).output().expect("a shell");
    assert_eq!(again.status.code(), Some(1), "{replay}");
    assert!(text(&again.stderr).contains("error[uninitialised-read]"), "{replay}");
}

#[test]
fn outputs_that_depend_on_the_schedule_are_a_fault() {
    let Some(program) = compile("order.cu", "order", &documented(SM_100A)) else { return };
    let log = folder().join("order.sarif");
    let sarif = ["--sarif", log.to_str().expect("UTF-8")];
    let out = exec(&[&["--explore", "6"][..], &sarif].concat(), &program);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("differs from that under eager in line 2: `is 7` there, `is "), "{said}");
    assert_eq!(sarif::read(&log).runs[0].results[0].rule_id, "outputs-differ");
    let out = exec(&["--explore", "6", "--allow-different"], &program);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
}

fn shell(command: &str, options: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
    program.arg("exec").arg("--stand-in").arg(stand_in()).args(options);
    program.args(["--", "/bin/sh", "-c", command]).output().expect("ptx-emu runs")
}

#[test]
fn outputs_that_are_never_the_same_are_not_compared() {
    let out = shell("echo $$", &["--explore", "1"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("differs between two runs under eager: it is not compared"), "{said}");
    assert!(said.contains("ran under 3 schedules"), "{said}");
    assert_eq!(text(&out.stdout).lines().count(), 1);
}

#[test]
fn a_program_that_ends_with_an_error_goes_wrong() {
    let log = folder().join("ends.sarif");
    let out = shell("cat; exit 7", &["--explore", "1", "--sarif", log.to_str().expect("UTF-8")]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{said}");
    assert!(said.contains("under schedule eager (0 passed before)"), "{said}");
    assert!(said.contains("the program's exit code is 7"), "{said}");
    assert_eq!(sarif::read(&log).runs[0].results[0].rule_id, "program-failed");
    let both = shell("true", &["--explore", "1", "--schedule", "lazy"]);
    assert_eq!(both.status.code(), Some(2));
}

/// Runs the project's script in a folder of its own.
fn project(name: &str, flags: &str) -> Option<(Output, PathBuf)> {
    let (nvcc, libraries) = tools()?;
    let build = folder().join(name);
    let _ = std::fs::remove_dir_all(&build);
    // The script names the program alone: the stand-in is found beside it.
    let programs = build.join("programs");
    std::fs::create_dir_all(&programs).expect("a folder");
    for (file, name) in
        [(Path::new(env!("CARGO_BIN_EXE_ptx-emu")), "ptx-emu"), (&stand_in(), "libptx_emu_cuda.so")]
    {
        std::fs::hard_link(file, programs.join(name)).expect("a link");
    }
    let out = Command::new(Path::new(PROJECT).join("ci.sh"))
        .env("NVCC", nvcc)
        .env("NVCC_FLAGS", format!("-L {} {flags}", libraries.display()))
        .env("PTX_EMU", programs.join("ptx-emu"))
        .env("SEEDS", "2")
        .env("BUILD", &build)
        .output()
        .expect("the script runs");
    Some((out, build.join("row_sums.sarif")))
}

#[test]
fn the_project_of_the_page_passes_and_fails() {
    let Some((out, log)) = project("project", "") else { return };
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout), "row_sums: right\n");
    assert!(sarif::read(&log).runs[0].results.is_empty());
    let (out, log) = project("project-broken", "-DBROKEN").expect("nvcc");
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    // Its sum is wrong under `eager`, and `lazy` says why.
    assert!(text(&out.stderr).contains("findings under lazy:"), "{}", text(&out.stderr));
    let found = sarif::read(&log);
    let rules: Vec<&str> =
        found.runs[0].results.iter().map(|found| found.rule_id.as_str()).collect();
    assert!(rules.contains(&"program-failed"), "{rules:?}");
    let race = rules.iter().position(|rule| *rule == "data-race").expect("a race");
    let first = &found.runs[0].results[race];
    // The name that an upload needs, from the project's folder.
    let place = &first.locations[0].physical_location;
    assert_eq!(place.artifact_location.uri, "src/row_sums.cuh");
    assert_eq!(place.region.as_ref().map(|region| region.start_line), Some(17));
}

#[test]
fn the_page_has_the_script() {
    let page = include_str!("../docs/ci.md");
    let script = include_str!("../examples/project/ci.sh");
    assert!(page.contains(&format!("```sh\n{script}```")), "{script}");
}
