//! Output that nobody reads any more ends `cargo xtask` quietly.

use std::io;
use std::process::Command;

/// Exit code of a program that SIGPIPE ends.
const CLOSED_PIPE: i32 = 141;

#[test]
fn output_without_a_reader() {
    for messages in [false, true] {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        if messages {
            command.stderr(writer.try_clone().expect("a handle"));
        }
        // Its first line ends it, before it has another program say the rest.
        let output = command.arg("doctor").stdout(writer).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(CLOSED_PIPE), "{stderr}");
        assert!(stderr.is_empty(), "{stderr}");
    }
}
