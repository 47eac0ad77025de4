//! Programs whose output nobody reads any more.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Output, Stdio};

/// Exit code of a program that SIGPIPE ends.
pub const CLOSED_PIPE: i32 = 141;

/// Runs a program whose standard output nobody reads; with `messages`, nor its standard error.
pub fn without_a_reader(mut command: Command, messages: bool) -> Output {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    if messages {
        command.stderr(writer.try_clone().expect("a handle"));
    } else {
        command.stderr(Stdio::piped());
    }
    command.stdout(writer).output().expect("it starts")
}

/// `program .. | head -1`: how the program ended, and its messages.
pub fn with_a_reader_of_one_line(mut command: Command) -> (ExitStatus, String) {
    let mut program =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let out = program.stdout.take().expect("a pipe");
    let head = Command::new("head").arg("-1").stdin(out).output().expect("head runs");
    let lines = head.stdout.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines, 1, "{command:?}");
    let mut messages = String::new();
    program.stderr.take().expect("a pipe").read_to_string(&mut messages).expect("text");
    (program.wait().expect("it ends"), messages)
}
