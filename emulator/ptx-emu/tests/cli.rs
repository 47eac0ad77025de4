//! The program `ptx-emu`, end to end: exit codes, messages, output bytes.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `y[i] = a * x[i] + y[i]` for `i < n`, one thread an element.
const SAXPY: &str = "\
.version 9.0
.target sm_90a
.address_size 64
.visible .entry saxpy(.param .u32 n, .param .f32 a, .param .u64 x, .param .u64 y)
{
	.reg .pred %p;
	.reg .b32 %r<5>;
	.reg .f32 %f<4>;
	.reg .b64 %d<5>;
	ld.param.u32 %r0, [n];
	ld.param.f32 %f0, [a];
	ld.param.u64 %d0, [x];
	ld.param.u64 %d1, [y];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.s32 %r4, %r1, %r2, %r3;
	setp.ge.u32 %p, %r4, %r0;
	@%p bra $end;
	mul.wide.u32 %d2, %r4, 4;
	add.s64 %d3, %d0, %d2;
	add.s64 %d4, %d1, %d2;
	ld.global.f32 %f1, [%d3];
	ld.global.f32 %f2, [%d4];
	fma.rn.f32 %f3, %f0, %f1, %f2;
	st.global.f32 [%d4], %f3;
$end:
	ret;
}
";

/// Writes the low byte of `s.value` to the first `s.count` bytes of `s.out`.
const BYTES: &str = "\
.version 9.0
.target sm_90a
.address_size 64
.visible .entry bytes(.param .align 8 .b8 s[16])
{
	.reg .pred %p;
	.reg .b32 %r<4>;
	.reg .b64 %d<3>;
	ld.param.u64 %d0, [s];
	ld.param.u32 %r0, [s+8];
	ld.param.u32 %r1, [s+12];
	mov.u32 %r2, %tid.x;
	setp.ge.u32 %p, %r2, %r0;
	@%p bra $end;
	cvt.u64.u32 %d1, %r2;
	add.s64 %d2, %d0, %d1;
	st.global.u8 [%d2], %r1;
$end:
	ret;
}
.visible .entry forever()
{
$again:
	bra $again;
}
";

/// A folder of its own with the files of one test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        let folder = Self(path);
        folder.write("saxpy.ptx", SAXPY);
        folder.write("bytes.ptx", BYTES);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    fn floats(&self, name: &str, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.write(name, bytes);
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Names of all files, sorted.
    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// `ptx-emu run` with the folder's `args.json`; words that end in `.ptx` are
    /// files of the folder.
    fn run(&self, arguments: &str, words: &str) -> Output {
        self.write("args.json", arguments);
        let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
        command.arg("run").arg("--args").arg(self.path("args.json"));
        for word in words.split_whitespace() {
            if word.ends_with(".ptx") {
                command.arg(self.path(word));
            } else {
                command.arg(word);
            }
        }
        command.output().unwrap()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

const SAXPY_SHAPE: &str = "saxpy.ptx --entry saxpy --grid 2 --block 32,1,1";

#[test]
fn outputs_have_the_result() {
    let folder = Folder::new("result");
    let x: Vec<f32> = (0..40).map(|i| i as f32 - 7.5).collect();
    let y: Vec<f32> = (0..40).map(|i| 0.25 * i as f32).collect();
    folder.floats("x.bin", &x);
    folder.floats("y.bin", &y);
    let expected: Vec<u8> =
        x.iter().zip(&y).flat_map(|(x, y)| 1.5f32.mul_add(*x, *y).to_le_bytes()).collect();
    let arguments = r#"[{"u32": 40}, {"f32": 1.5}, {"buffer": {"file": "x.bin"}},
        {"buffer": {"file": "y.bin"}, "out": "out.bin"}]"#;
    for schedule in ["eager", "lazy", "random:7", "random:8"] {
        let output = folder.run(arguments, &format!("{SAXPY_SHAPE} --schedule {schedule} --json"));
        assert_eq!(code(&output), Some(0), "{schedule}: {}", stderr(&output));
        assert_eq!(folder.read("out.bin"), expected, "{schedule}");
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(report["status"], "done");
        assert_eq!(report["kernel"], "saxpy");
        assert_eq!(report["gpu"], "h200");
        assert_eq!(report["schedule"], schedule);
        assert_eq!(report["counters"]["ctas"], 2);
        assert_eq!(report["counters"]["threads"], 64);
        assert_eq!(report["outputs"][0]["parameter"], "y");
        assert_eq!(report["outputs"][0]["bytes"], 160);
        assert!(report["lower_bound"]["seconds"].as_f64().unwrap() > 0.0);
        std::fs::remove_file(folder.path("out.bin")).unwrap();
    }
    let output = folder.run(arguments, SAXPY_SHAPE);
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with(
        "`saxpy` ran on the emulator as h200: grid 2 x 1 x 1, block 32 x 1 x 1, schedule eager\n"
    ));
    assert!(stdout(&output).contains("out.bin (160 bytes)"));
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
    assert_eq!(
        folder.files(),
        ["args.json", "bytes.ptx", "out.bin", "saxpy.ptx", "x.bin", "y.bin"]
    );
}

#[test]
fn buffers_are_shared_by_name() {
    let folder = Folder::new("shared");
    folder.floats("x.bin", &[1.0, 2.0, 3.0, 4.0]);
    // x is y: y = 2 x + x.
    let output = folder.run(
        r#"[{"u32": 4}, {"f32": 2}, {"buffer": "v"},
            {"buffer": {"name": "v", "file": "x.bin"}, "out": "x.bin"}]"#,
        SAXPY_SHAPE,
    );
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let expected: Vec<u8> = [3.0f32, 6.0, 9.0, 12.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(folder.read("x.bin"), expected);
}

#[test]
fn structures_and_unwritten_bytes() {
    let folder = Folder::new("structure");
    let output = folder.run(
        r#"[{"struct": {"bytes": 16, "fields": [{"offset": 8, "u32": 5},
            {"offset": 12, "i32": -2},
            {"offset": 0, "buffer": {"bytes": 8, "fill": "poison"}, "out": "o.bin"}]}}]"#,
        "bytes.ptx --entry bytes --grid 1,1,1 --block 8 --json",
    );
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let expected = [0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xcb, 0xcb, 0xcb];
    assert_eq!(folder.read("o.bin"), expected);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["outputs"][0]["first_uninitialised"], 5);
    assert!(
        stderr(&output)
            .contains("warning: argument 0 (parameter `s`): byte 5 of 8 was never written"),
        "{}",
        stderr(&output)
    );
    // A filled buffer has no such bytes.
    let output = folder.run(
        r#"[{"struct": {"bytes": 16, "fields": [{"offset": 8, "u32": 3},
            {"offset": 0, "buffer": {"bytes": 5, "fill": 9}, "out": "o.bin"}]}}]"#,
        "bytes.ptx --entry bytes --grid 1,1,1 --block 8",
    );
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    assert_eq!(folder.read("o.bin"), [0, 0, 0, 9, 9]);
    assert!(stderr(&output).is_empty());
}

#[test]
fn a_faulty_kernel_exits_with_1_and_writes_nothing() {
    let folder = Folder::new("fault");
    folder.write("out.bin", "before");
    let arguments = r#"[{"u32": 33}, {"f32": 1.5}, {"buffer": {"bytes": 128, "fill": "zero"}},
        {"buffer": {"name": "result", "bytes": 132, "fill": "zero"}, "out": "out.bin"}]"#;
    let output = folder.run(arguments, SAXPY_SHAPE);
    assert_eq!(code(&output), Some(1), "{}", stderr(&output));
    let message = stderr(&output);
    for part in ["out of bounds", "`saxpy`", "ld.global.f32 %f1", "`x`", "lane 0"] {
        assert!(message.contains(part), "{part} not in {message}");
    }
    assert!(stdout(&output).is_empty());
    assert_eq!(folder.read("out.bin"), b"before");

    let output = folder.run(arguments, &format!("{SAXPY_SHAPE} --json --schedule random:3"));
    assert_eq!(code(&output), Some(1));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["status"], "diagnostic");
    assert_eq!(report["kernel"], "saxpy");
    assert_eq!(report["instruction"], "ld.global.f32 %f1, [%d3];");
    assert_eq!(report["cta"], serde_json::json!([1, 0, 0]));
    assert_eq!(report["schedule"], "random:3");

    let output =
        folder.run("[]", "bytes.ptx --entry forever --grid 1 --block 1 --instruction-limit 1000");
    assert_eq!(code(&output), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("1000"), "{}", stderr(&output));
}

#[test]
fn bad_arguments_exit_with_2_and_write_nothing() {
    let folder = Folder::new("arguments");
    folder.write("empty.bin", "");
    folder.write("x.bin", [0; 16]);
    let before = {
        folder.write("args.json", "");
        folder.files()
    };
    for (arguments, message) in [
        ("[", "args.json: not JSON: "),
        ("{}", "required a list of arguments, actual {}"),
        ("[]", "arguments of `saxpy`: required 4 (n, a, x, y), actual 0"),
        (
            r#"[{"u64": 1}, {"f32": 1}, {"buffer": "v"}, {"buffer": {"name": "v", "bytes": 4}}]"#,
            "argument 0 (parameter `n`): u64: required 4 bytes, the size of the parameter's type .u32, actual 8 bytes",
        ),
        (
            r#"[{"u32": 1}, {"buffer": "v"}, {"buffer": "v"}, {"buffer": {"name": "v", "bytes": 4}}]"#,
            "argument 1 (parameter `a`): buffer: required 4 bytes, the size of the parameter's type .f32, actual 8 bytes",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"struct": {"bytes": 9, "fields": []}}, {"buffer": {"bytes": 4}}]"#,
            "argument 2 (parameter `x`): struct.bytes: required 8 bytes, the size of the parameter's type .u64, actual 9 bytes",
        ),
        (
            r#"[{"u32": -1}, {"f32": 1}, {"buffer": "v"}, {"buffer": {"name": "v", "bytes": 4}}]"#,
            "argument 0 (parameter `n`): u32: required an integer from 0 to 4294967295, actual -1",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"buffer": "w"}, {"buffer": {"name": "v", "bytes": 4}, "out": "o"}]"#,
            "argument 2 (parameter `x`): buffer: required a defined name, one of [v], actual `w`",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"buffer": {"name": "v", "bytes": 4}}, {"buffer": {"name": "v", "bytes": 4}}]"#,
            "argument 3 (parameter `y`): buffer.name: required a name that no other buffer is defined with, actual `v`",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"buffer": {"file": "empty.bin"}}, {"buffer": {"bytes": 4}}]"#,
            "argument 2 (parameter `x`): buffer.file: required at least 1 byte, actual 0 bytes",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"buffer": {"file": "none.bin"}}, {"buffer": {"bytes": 4}}]"#,
            "none.bin: cannot be read: ",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"tensor_map": {}}, {"buffer": {"bytes": 4}}]"#,
            "argument 2 (parameter `x`): tensor_map.dims: required a list of integers, actual none",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"buffer": {"bytes": 4}, "out": "none/o"}, {"buffer": {"bytes": 4}}]"#,
            "cannot be written: its folder does not exist",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"buffer": {"bytes": 4}, "out": "o"}, {"buffer": {"bytes": 4}, "out": "o"}]"#,
            "argument 3 (parameter `y`): out: required a file that no other argument writes, actual o",
        ),
        (
            r#"[{"u32": 1}, {"f32": 1}, {"buffer": {"bytes": 72057594037927936}}, {"buffer": {"bytes": 4}}]"#,
            "required at most ",
        ),
    ] {
        let output = folder.run(arguments, SAXPY_SHAPE);
        assert_eq!(code(&output), Some(2), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{message:?} not in {:?}", stderr(&output));
        assert_eq!(folder.files(), before, "{arguments}");
        let output = folder.run(arguments, &format!("{SAXPY_SHAPE} --json"));
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(report["status"], "bad input", "{arguments}");
        assert!(report["error"].as_str().unwrap().contains(message));
    }
}

#[test]
fn bad_modules_and_launches_exit_with_2() {
    let folder = Folder::new("modules");
    folder.write("syntax.ptx", ".version 9.0\n.target sm_90a\n.entry k() {\n\tadd.s32 %a %b;\n}\n");
    folder.write(
        "unknown.ptx",
        ".version 9.0\n.target sm_90a\n.address_size 64\n.entry k()\n{\n\tfrob.u32 1;\n\tret;\n\tfrob.u64 2;\n}\n",
    );
    folder.write(
        "blackwell.ptx",
        ".version 9.0\n.target sm_100a\n.address_size 64\n.entry k()\n{\n\tret;\n}\n",
    );
    folder.write(
        "shape.ptx",
        ".version 9.0\n.target sm_90a\n.address_size 64\n.entry k()\n.reqntid 64, 1, 1\n{\n\tret;\n}\n",
    );
    for (words, messages) in [
        ("none.ptx --entry k --grid 1 --block 1", &["none.ptx: cannot be read: "][..]),
        (
            "syntax.ptx --entry k --grid 1 --block 1",
            &[
                "syntax.ptx:4:13: expected `,` or `;`, found `%b`",
                "4 | \tadd.s32 %a %b;\n  | \t           ^",
            ],
        ),
        ("unknown.ptx --entry k --grid 1 --block 1", &["line 6", "frob.u32", "line 8", "frob.u64"]),
        (
            "blackwell.ptx --entry k --grid 1 --block 1 --gpu h200",
            &[
                "target: required one that h200 runs (sm_90a, and sm_90 or lower), actual sm_100a; b200 runs it",
            ],
        ),
        (
            "saxpy.ptx --entry nothing --grid 1 --block 1",
            &["entry: required one of [saxpy], actual `nothing`"],
        ),
        (
            "shape.ptx --entry k --grid 1 --block 32",
            &["launch of `k`: block: required [64, 1, 1]", "actual [32, 1, 1]"],
        ),
        (
            "shape.ptx --entry k --grid 3 --block 64 --cluster 2",
            &["grid: required a multiple of the cluster", "actual [3, 1, 1]"],
        ),
        (
            "shape.ptx --entry k --grid 1 --block 64 --dynamic-smem 300000",
            &["shared memory: required at most", "300000 dynamic"],
        ),
        ("shape.ptx --entry k --grid 1 --block 2000", &["block: required"]),
        (
            "shape.ptx --entry k --grid 0,1,1 --block 64",
            &["--grid", "required numbers from 1 to 4294967295, actual `0`"],
        ),
        ("shape.ptx --entry k --grid 1,1,1,1 --block 64", &["required 1 to 3 numbers, actual 4"]),
        (
            "shape.ptx --entry k --grid 1 --block 64 --gpu v100",
            &[
                "required a100, rtx3090, rtx4090, l40s, h200, b200, b300, rtx5090, rtx-pro-6000 or dgx-spark, actual `v100`",
            ],
        ),
        (
            "shape.ptx --entry k --grid 1 --block 64 --schedule random:x",
            &["random:SEED", "actual `random:x`"],
        ),
        ("shape.ptx --entry k --grid 1", &["--block"]),
    ] {
        let output = folder.run("[]", words);
        assert_eq!(code(&output), Some(2), "{words}: {}", stderr(&output));
        for message in messages {
            assert!(
                stderr(&output).contains(message),
                "{words}: {message:?} not in {:?}",
                stderr(&output)
            );
        }
        assert!(stdout(&output).is_empty(), "{words}");
    }
    let output = folder.run("[]", "blackwell.ptx --entry k --grid 1 --block 1 --json");
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("\"gpu\":\"b200\""));
    let output = folder.run("[]", "unknown.ptx --entry k --grid 1 --block 1 --json");
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["unsupported"][0]["line"], 6);
    assert_eq!(report["unsupported"][1]["instruction"], "frob.u64 2;");
}
