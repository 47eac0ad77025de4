//! Under the test harness, a test that is skipped is known by its name.

use std::process::Command;

use skipped::{Notes, Skip};

/// The child, run by the harness of this program with and without a file for what it says.
#[test]
fn a_test_is_known_by_its_name() {
    let program = std::env::current_exe().expect("this program");
    let run = || {
        let mut command = Command::new(&program);
        // With one thread the harness runs tests in its own, which has another name.
        command.args(["--exact", "child", "--ignored", "--test-threads=2"]);
        command
    };
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped.txt");
    let notes = Notes::new(path).expect("written");
    let (variable, file) = notes.variable();
    let output = run().env(variable, file).output().expect("this program runs again");
    assert!(output.status.success());
    let name = program.file_name().expect("a name").to_string_lossy().into_owned();
    let skip = |part: Option<&str>, reason: &str| Skip {
        program: name.clone(),
        test: "child".into(),
        part: part.map(str::to_owned),
        reason: reason.into(),
    };
    let said = [skip(None, "it is a child"), skip(Some("half"), "the other half is enough")];
    assert_eq!(notes.read().expect("readable"), said);

    let output = run().env_remove(variable).output().expect("this program runs again");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("skipped")).collect();
    let [whole, part] =
        ["skipped child: it is a child", "skipped child (half): the other half is enough"];
    assert_eq!(lines, [whole, whole, part]);
}

#[test]
#[ignore = "the child of a_test_is_known_by_its_name"]
fn child() {
    for _ in 0..2 {
        skipped::test("it is a child");
    }
    skipped::part("half", "the other half is enough");
}
