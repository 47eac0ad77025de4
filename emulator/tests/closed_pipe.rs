//! Output that nobody reads any more ends every command quietly.

use ptx_emu::bundle::{Allocation, Bundle, Compare, Expected};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exit code of a program that SIGPIPE ends.
const CLOSED_PIPE: i32 = 141;

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

/// Device address of the bundle's output.
const OUT: u64 = 0x7000_0000_0000;

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
        let contents: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
        let expected = Expected { addr: OUT, bytes: contents, compare: Compare::Exact };
        let bundle = Bundle {
            ptx: PTX.to_owned(),
            entry: "k".to_owned(),
            grid: [1; 3],
            block: [64, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: OUT.to_le_bytes().to_vec(),
            memory: vec![Allocation { addr: OUT, size: 256, name: "out".into(), contents: None }],
            tensor_maps: Vec::new(),
            expected: BTreeMap::from([("out".to_owned(), expected)]),
        };
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
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut command = ptx_emu(&args);
        if messages {
            command.stderr(writer.try_clone().expect("a handle"));
        } else {
            command.stderr(Stdio::piped());
        }
        let output = command.stdout(writer).output().expect("starts");
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
        let mut program = ptx_emu(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let out = program.stdout.take().expect("a pipe");
        let head = Command::new("head").arg("-1").stdin(out).output().expect("head runs");
        assert_eq!(head.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1, "{args:?}");
        let mut stderr = String::new();
        program.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
        let status = program.wait().expect("it ends");
        // Short output may have been written before the reader left, and some mutants survive.
        assert!(matches!(status.code(), Some(0 | 1 | CLOSED_PIPE)), "{args:?}: {status} {stderr}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    }
}
