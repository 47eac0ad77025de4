//! Findings for people: lines of source, names, lists cut short, advice, plain words for what
//! newcomers do first.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// A kernel as nvcc writes it with `-lineinfo`: a template of C++, `.loc` lines, the names of files
/// at the end.
const LINEINFO: &str = "\
.version 9.0
.target sm_100a
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry _Z5scaleIfEvPT_S0_(
	.param .u64 _Z5scaleIfEvPT_S0__param_0,
	.param .f32 _Z5scaleIfEvPT_S0__param_1
)
{
	.reg .f32 %f<8>;
	.reg .b32 %r<8>;
	.reg .b64 %rd<8>;
	.loc 1 7 0
	ld.param.u64 %rd1, [_Z5scaleIfEvPT_S0__param_0];
	ld.param.f32 %f1, [_Z5scaleIfEvPT_S0__param_1];
	.loc 1 9 5
	st.global.v4.f32 [%rd1], {%f1, %f1, %f1, %f1};
	.loc 1 10 5, function_name $L__info_string0, inlined_at 1 20 3
	ld.global.v8.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f0}, [%rd1];
	.loc 2 33 5
	mov.u32 %r1, smem;
	st.shared.u32 [%r1+8], %r1;
	ret;
}
.visible .entry plain(.param .u64 out)
{
	.reg .b64 %rd<8>;
	ld.param.u64 %rd1, [out];
	st.global.u64 [%rd1+8], %rd1;
	ret;
}
.file	1 \"scale.cu\"
.file	2 \"/usr/include/helper.h\", 1700000000, 5
.section .debug_str
{
$L__info_string0:
.b8 95, 0
}
";

fn run(test: &str, entry: &str, args: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("readable-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("k.ptx"), LINEINFO).unwrap();
    std::fs::write(folder.join("args.json"), args).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
    command.current_dir(&folder).args(["run", "k.ptx", "--grid", "1", "--block", "1"]);
    command.args(["--args", "args.json", "--entry", entry]).args(words);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const SCALE: &str = "_Z5scaleIfEvPT_S0_";

#[test]
fn a_finding_names_the_line_of_source_and_the_kernel_as_written() {
    let small = r#"[{"buffer": {"bytes": 16}}, {"f32": 2}]"#;
    let (code, _, said) = run("source", SCALE, small, &["--dynamic-smem", "64"]);
    assert_eq!(code, Some(1));
    let place = "kernel `scale<float>`, line 19: `ld.global.v8.f32 {%f1, %f2, .., %f0}, [%rd1];` from scale.cu:10, CTA (0, 0, 0)";
    assert!(said.contains(place), "{said}");
    assert!(said.contains("\n  what to do: Compare the index with the size of the allocation, most often a guard at the last, partial tile.\n"), "{said}");
    let (_, json, _) = run("json", SCALE, small, &["--dynamic-smem", "64", "--json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["source"], "scale.cu:10");
    assert_eq!(report["kernel"], SCALE);
    assert_eq!(report["kernel_name"], "scale<float>");
    assert!(report["advice"].as_str().unwrap().starts_with("Compare the index"));
    // A function without `.loc` has no source, whatever stands before it.
    let (_, _, said) = run("plain", "plain", r#"[{"buffer": {"bytes": 8}}]"#, &[]);
    assert!(
        said.contains("kernel `plain`, line 29: `st.global.u64 [%rd1+8], %rd1;`, CTA"),
        "{said}"
    );
}

#[test]
fn the_first_faults_of_newcomers_have_plain_names() {
    let null = r#"[{"u64": 0}, {"f32": 2}]"#;
    let (code, _, said) = run("null", SCALE, null, &[]);
    assert_eq!(code, Some(1));
    let start =
        "ptx-emu: error[out-of-bounds]: null pointer: write of 16 bytes at global address 0x0; ";
    assert!(said.starts_with(start), "{said}");
    let good = r#"[{"buffer": {"bytes": 32, "fill": 0}}, {"f32": 2}]"#;
    let (code, _, said) = run("dynamic", SCALE, good, &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("missing dynamic shared memory: write of 4 bytes at shared address 0x408, and the launch gives the kernel none (--dynamic-smem); "), "{said}");
    assert!(said.contains("from /usr/include/helper.h:33"), "{said}");
    let (code, _, said) = run("less", SCALE, good, &["--dynamic-smem", "8"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("error[out-of-bounds]: out of bounds: write of 4 bytes"), "{said}");
    assert_eq!(run("right", SCALE, good, &["--dynamic-smem", "12"]).0, Some(0));
}

#[test]
fn arguments_of_the_wrong_type_are_called_that() {
    for (args, message) in [
        (
            r#"[{"buffer": {"bytes": 32}}, {"u32": 2}]"#,
            "u32: required an argument of the parameter's type .f32, actual one of the wrong type, u32",
        ),
        (
            r#"[{"f64": 2}, {"f32": 2}]"#,
            "f64: required an argument of the parameter's type .u64, actual one of the wrong type, f64",
        ),
    ] {
        let (code, _, said) = run("wrong", SCALE, args, &[]);
        assert_eq!(code, Some(2));
        assert!(said.contains(message), "{said}");
    }
}
