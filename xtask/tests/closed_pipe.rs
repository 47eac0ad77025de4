//! Output that nobody reads any more ends `cargo xtask` quietly.

#[path = "../../emulator/ptx-emu/tests/support/pipes.rs"]
mod pipes;

use pipes::CLOSED_PIPE;
use std::process::Command;

#[test]
fn output_without_a_reader() {
    for messages in [false, true] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        // Its first line ends it, before it has another program say the rest.
        command.arg("doctor");
        let output = pipes::without_a_reader(command, messages);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(CLOSED_PIPE), "{stderr}");
        assert!(stderr.is_empty(), "{stderr}");
    }
}
