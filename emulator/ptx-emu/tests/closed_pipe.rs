//! Output that nobody reads any more ends every command quietly.

#[path = "support/bundles.rs"]
mod bundles;
#[path = "support/pipes.rs"]
mod pipes;

use bundles::thread_indices;
use pipes::CLOSED_PIPE;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints a line, and writes each thread's index.
const PTX: &str = ".version 9.0
.target sm_90a
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[7] = {104, 101, 108, 108, 111, 10, 0};
.visible .entry k(.param .u64 out) {
    .reg .b64 %o, %s, %none; .reg .b32 %t, %r; .reg .pred %p;
    ld.param.u64 %o, [out];
    mov.u32 %t, %tid.x;
    mad.wide.u32 %o, %t, 4, %o;
    st.global.u32 [%o], %t;
    bar.sync 0;
    setp.ne.u32 %p, %t, 0; @%p bra DONE;
    mov.u64 %s, text; cvta.global.u64 %s, %s; mov.u64 %none, 0;
    {
        .param .b64 format; .param .b64 arguments; .param .b32 result;
        st.param.b64 [format], %s; st.param.b64 [arguments], %none;
        call.uni (result), vprintf, (format, arguments);
        ld.param.b32 %r, [result];
    }
DONE:
    ret;
}
";

/// A folder with the files of one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("closed-pipe-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("k.ptx"), PTX).expect("written");
        let args = r#"[{"buffer": {"bytes": 256}}]"#;
        std::fs::write(path.join("args.json"), args).expect("written");
        let bundle = thread_indices(PTX, "k");
        bundle.write(&path.join("bundle")).expect("written");
        Self(path)
    }

    /// Every command once.
    fn commands(&self) -> Vec<Vec<String>> {
        let [ptx, args, bundle, probes] = ["k.ptx", "args.json", "bundle", "probes"]
            .map(|name| self.0.join(name).display().to_string());
        let launch = [&ptx, "--entry", "k", "--grid", "1", "--block", "64", "--args", &args];
        let commands = [
            [&["run"][..], &launch].concat(),
            [&["run"][..], &launch, &["--json"]].concat(),
            [&["run"][..], &launch, &["--explore", "2"]].concat(),
            [&["mutate"][..], &launch].concat(),
            vec!["replay", &bundle],
            vec!["replay", &bundle, "--json"],
            vec!["replay", &bundle, "--explore", "2"],
            vec!["conformance", "check", "--family", "narrow"],
            vec!["conformance", "ptx", "--out", &probes],
        ];
        commands.map(|args| args.into_iter().map(str::to_owned).collect()).to_vec()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ptx_emu(args: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
    command.args(args);
    command
}

/// Nobody reads the report; with `messages` closed, nobody reads messages or what kernels print.
fn without_a_reader(messages: bool) {
    let folder = Folder::new(if messages { "all" } else { "report" });
    for args in folder.commands() {
        let usual = ptx_emu(&args).output().expect("starts");
        let stderr = String::from_utf8_lossy(&usual.stderr);
        assert!(matches!(usual.status.code(), Some(0 | 1)), "{args:?}: {stderr}");
        let output = pipes::without_a_reader(ptx_emu(&args), messages);
        assert_eq!(output.status.code(), Some(CLOSED_PIPE), "{args:?}: {stderr}");
        if !messages {
            assert_eq!(String::from_utf8_lossy(&output.stderr), stderr, "{args:?}");
        }
    }
}

#[test]
fn a_report_without_a_reader() {
    without_a_reader(false);
}

#[test]
fn a_report_and_messages_without_a_reader() {
    without_a_reader(true);
}

/// `ptx-emu .. | head -1`.
#[test]
fn a_reader_of_one_line() {
    let folder = Folder::new("head");
    for args in folder.commands() {
        let (status, stderr) = pipes::with_a_reader_of_one_line(ptx_emu(&args));
        // Short output may have been written before the reader left, and some mutants survive.
        assert!(matches!(status.code(), Some(0 | 1 | CLOSED_PIPE)), "{args:?}: {status} {stderr}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    }
}
