//! Argument files of `ptx-emu run`, end to end: the README's example, what buffers must hold, buffers at
//! an address, and tensor maps as the driver encodes them.

use ptx_emu::tensor_map::{ElementType, TensorMap};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of the example.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// `ptx-emu run` of a module with `words` and these arguments, in a folder of the test's own.
fn run(test: &str, module: &Path, words: &str, arguments: &Value) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("arguments-{test}"));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("args.json");
    std::fs::write(&file, arguments.to_string()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .arg("run")
        .arg(module)
        .args(words.split_whitespace())
        .arg("--args")
        .arg(file)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The example `add`, with this result expected of the elements `[1, 2] + [0.5, -4]`.
fn add(test: &str, expect: &Value) -> Output {
    let arguments = json!([
        {"buffer": {"f32": [1, 2]}},
        {"buffer": {"f32": [0.5, -4]}},
        {"buffer": {"bytes": 8}, "expect": expect},
        {"u32": 2},
    ]);
    run(test, &examples().join("add.ptx"), "--grid 1 --block 32", &arguments)
}

#[test]
fn the_readme_example_runs_as_printed() {
    let readme = std::fs::read_to_string(examples().join("../../../README.md")).unwrap();
    let begin = "cargo run --release -p ptx-emu -- ";
    let mut commands = readme.lines().filter_map(|line| line.strip_prefix(begin));
    let words = commands.find(|words| words.starts_with("run ")).expect("the example is printed");
    let output = Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .args(words.split_whitespace())
        .current_dir(examples().join("../../.."))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(printed.contains("\nc: 5 elements as expected\n"), "{printed}");
}

#[test]
fn results_are_compared() {
    let output = add("equal", &json!({"f32": [1.5, -2]}));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let near = json!({"f32": [1.25, -2], "atol": 0.25});
    assert_eq!(add("near", &near).status.code(), Some(0));

    let output = add("different", &json!({"f32": [1.5, -2.5], "rtol": 0.1}));
    assert_eq!(output.status.code(), Some(1));
    let expected =
        "\nc: 1 of 2 elements differ, first [1]: expected -2.5, got -2, largest error 5.000e-1";
    assert!(text(&output.stdout).contains(expected), "{}", text(&output.stdout));
    let output = add("integers", &json!({"u32": ["0x3fc00000", 5]}));
    assert_eq!(output.status.code(), Some(1));
    let expected = "\nc: 1 of 2 elements differ, first [1]: expected 5, got 3221225472";
    assert!(text(&output.stdout).contains(expected), "{}", text(&output.stdout));
}

#[test]
fn comparisons_are_in_json() {
    let arguments = json!([
        {"buffer": {"f32": [1]}},
        {"buffer": {"f32": [1]}},
        {"buffer": {"name": "sum", "f32": [0]}, "expect": {"f32": [3]}},
        {"u32": 1},
    ]);
    let module = examples().join("add.ptx");
    let output = run("json", &module, "--grid 1 --block 1 --json", &arguments);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["status"], "different");
    let compared = json!([{"name": "sum", "elements": 1, "mismatches": 1, "max_error": 1.0,
        "first": {"index": 0, "expected": "3", "actual": "2"}}]);
    assert_eq!(report["compared"], compared);
    // So that exploring schedules fails by it, too.
    let output = run("explore", &module, "--grid 1 --block 1 --explore 1", &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
}

#[test]
fn sizes_are_those_of_the_buffer() {
    let output = add("size", &json!({"f32": [1.5]}));
    assert_eq!(output.status.code(), Some(2));
    let message = "argument 2 (parameter `c`): expect: required 8 bytes, the size of the buffer, actual 4 bytes";
    assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
}

/// Copies the first two words of the map, its address among them, and the address of `b` to `out`.
const WORDS: &str = "\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry words(.param .u64 out, .param .align 64 .b8 map[128], .param .u64 b)
{
	.reg .b64 %d<5>;
	ld.param.u64 %d0, [out];
	ld.param.u64 %d1, [map];
	ld.param.u64 %d2, [map+8];
	ld.param.u64 %d3, [b];
	st.global.u64 [%d0], %d1;
	st.global.u64 [%d0+8], %d2;
	st.global.u64 [%d0+16], %d3;
	ret;
}
";

#[test]
fn maps_are_given_as_bytes_and_buffers_at_an_address() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arguments-map");
    std::fs::create_dir_all(&folder).unwrap();
    let module = folder.join("words.ptx");
    std::fs::write(&module, WORDS).unwrap();
    let encode = |address| {
        TensorMap::tiled(ElementType::F16, address, &[64, 8], &[128], &[32, 4]).encode().unwrap()
    };
    std::fs::write(folder.join("map.bin"), encode(0x1_0000)).unwrap();
    std::fs::write(folder.join("short.bin"), [0; 127]).unwrap();
    const AT: u64 = 0x7f_0000;
    let arguments = |file: &str, buffer: Option<&str>, right: &[u8; 128]| {
        let word = |at: usize| u64::from_le_bytes(right[at..at + 8].try_into().unwrap());
        let mut map = json!({"tensor_map": {"file": file}});
        if let Some(buffer) = buffer {
            map["buffer"] = json!(buffer);
        }
        json!([
            {"buffer": {"bytes": 24}, "expect": {"u64": [word(0), word(8), AT]}},
            map,
            {"buffer": {"name": "b", "bytes": 1024, "fill": "zero", "at": AT}},
        ])
    };
    let words = "--grid 1 --block 1";
    for (buffer, right) in [(None, encode(0x1_0000)), (Some("b"), encode(AT))] {
        let output = run("map", &module, words, &arguments("map.bin", buffer, &right));
        let all = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{buffer:?}: {all}");
    }
    let output = run("map", &module, words, &arguments("short.bin", None, &encode(0)));
    assert_eq!(output.status.code(), Some(2));
    let message =
        "argument 1 (parameter `map`): tensor_map.file: required 128 bytes, actual 127 bytes";
    assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
}
