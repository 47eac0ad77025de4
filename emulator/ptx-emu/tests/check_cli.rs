//! `ptx-emu check`, and `run` without `--entry`.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

/// One kernel that is modelled, and one that is not in two places.
const TWO: &str = "\
.extern .shared .align 16 .b8 smem[];
.visible .entry good(.param .u64 .ptr .global .align 4 out, .param .f32 scale, .param .align 8 .b8 pair[16])
.reqntid 64, 1, 1
{
	.shared .align 4 .b8 fixed[256];
	.reg .b32 %r<4>;
	.reg .b64 %d<4>;
	ld.param.u64 %d1, [out];
	mov.u32 %r1, smem;
	mov.u32 %r2, fixed;
	st.global.u32 [%d1], %r1;
	ret;
}
.visible .entry bad(.param .u32 n)
{
	.reg .b32 %r<4>;
	suq.width.b32 %r1, [0];
	frob.u32 %r1;
	ret;
}
";

const ONE: &str = ".visible .entry only() { ret; }\n";

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn program(&self, text: &str, words: &[&str]) -> (Option<i32>, String, String) {
        std::fs::write(self.0.join("k.ptx"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
        command.current_dir(&self.0).args(words);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }
}

#[test]
fn it_says_what_a_module_has_and_what_is_not_modelled() {
    let folder = Folder::new("text");
    let module = format!("{HEAD}{TWO}");
    let (code, said, errors) = folder.program(&module, &["check", "k.ptx"]);
    assert_eq!((code, errors.as_str()), (Some(2), ""), "{said}");
    let expected = "\
k.ptx: PTX 9.0 for sm_90a, looked at as h200; runs on h200
`good` loads
  --block 64,1,1 (.reqntid), 256 bytes of static shared memory, dynamic shared memory (--dynamic-smem)
  out: .u64, a pointer, 8 bytes at 0
  scale: .f32, 4 bytes at 8
  pair: .b8[16], 16 bytes at 16
`bad` does not load: 2 instructions are not supported
  n: .u32, 4 bytes at 0
  line 20: `suq.width.b32 %r1, [0];`: ";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.contains("\n  line 21: `frob.u32 %r1;`: "), "{said}");
    let (code, said, _) = folder.program(&module, &["check", "k.ptx", "--entry", "good"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("bad"), "{said}");
    let (code, _, errors) = folder.program(&module, &["check", "k.ptx", "--entry", "none"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("entry: required one of [good, bad], actual `none`"), "{errors}");
}

#[test]
fn a_program_is_no_module() {
    let folder = Folder::new("program");
    let program = env!("CARGO_BIN_EXE_ptx-emu");
    let (code, _, errors) = folder.program("", &["check", program]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("required text, such as PTX, actual other bytes"), "{errors}");
}

#[test]
fn lax_loads_what_ptxas_refuses() {
    let folder = Folder::new("lax");
    let module = format!(
        "{HEAD}.visible .entry k() {{ .reg .b64 %d<4>; add.ftz.f64 %d1, %d2, %d3; ret; }}\n"
    );
    let (code, said, _) = folder.program(&module, &["check", "k.ptx"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no form of add has the modifiers .ftz.f64"), "{said}");
    let (code, said, _) = folder.program(&module, &["check", "k.ptx", "--lax"]);
    assert_eq!(code, Some(0), "{said}");
    let shape = ["--grid", "1,1,1", "--block", "32,1,1"];
    let run =
        |more: &[&str]| folder.program(&module, &[&["run", "k.ptx"], &shape[..], more].concat());
    assert_eq!(run(&[]).0, Some(2));
    let (code, _, errors) = run(&["--lax"]);
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn it_says_the_same_as_json() {
    let folder = Folder::new("json");
    let module = format!("{HEAD}{TWO}");
    let (code, said, _) = folder.program(&module, &["check", "k.ptx", "--json"]);
    assert_eq!(code, Some(2));
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["version"], &report["gpu"]), (&"9.0".into(), &"h200".into()));
    let [good, bad] = [&report["entries"][0], &report["entries"][1]];
    assert_eq!((&good["loads"], &bad["loads"]), (&true.into(), &false.into()));
    assert_eq!(good["parameters"][1]["type"], "f32");
    assert_eq!(good["parameters"][2]["offset"], 16);
    assert_eq!((&good["dynamic_shared"], &good["static_shared"]), (&true.into(), &256.into()));
    assert_eq!(bad["unsupported"][1]["line"], 21);
}

#[test]
fn targets_that_do_not_run_name_those_that_do() {
    let folder = Folder::new("targets");
    for (target, words, message) in [
        (
            "sm_110a",
            &["check", "k.ptx"][..],
            "target: required one that h200 runs (sm_90a, and sm_90 or lower), actual sm_110a; \
             a100 runs sm_80 or lower; rtx3090 runs sm_86 or lower; rtx4090 runs sm_89 or lower; \
             l40s runs sm_89 or lower; b200 runs sm_100a, sm_100f, and sm_100 or lower; \
             b300 runs sm_103a, sm_103f, sm_100f, and sm_103 or lower; \
             rtx5090 runs sm_120a, sm_120f, and sm_120 or lower; \
             rtx-pro-6000 runs sm_120a, sm_120f, and sm_120 or lower; \
             dgx-spark runs sm_121a, sm_121f, sm_120f, and sm_121 or lower",
        ),
        (
            "sm_120a",
            &["check", "k.ptx", "--gpu", "dgx-spark"],
            "actual sm_120a; rtx5090 or rtx-pro-6000 runs it",
        ),
        ("sm_121a", &["check", "k.ptx", "--gpu", "rtx5090"], "actual sm_121a; dgx-spark runs it"),
        ("sm_100f", &["check", "k.ptx", "--gpu", "h200"], "actual sm_100f; b200 or b300 runs it"),
    ] {
        let text = format!("{}{ONE}", HEAD.replace("sm_90a", target));
        let (code, said, errors) = folder.program(&text, words);
        assert_eq!((code, said.as_str()), (Some(2), ""));
        assert!(errors.contains(message), "{errors}");
    }
    let broken = format!("{HEAD}.visible .entry k() {{ add.s32 %a %b; }}");
    let (code, _, errors) = folder.program(&broken, &["check", "k.ptx"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("k.ptx:4:34: expected `,` or `;`, found `%b`"), "{errors}");
}

#[test]
fn the_only_kernel_need_not_be_named() {
    let folder = Folder::new("entry");
    let words = ["run", "k.ptx", "--grid", "1", "--block", "32"];
    let (code, said, errors) = folder.program(&format!("{HEAD}{ONE}"), &words);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.starts_with("`only` ran on the emulator as h200"), "{said}");
    let (code, _, errors) = folder.program(&format!("{HEAD}{TWO}"), &words);
    assert_eq!(code, Some(2));
    let message = "entry: required --entry with one of [good, bad], actual `none`";
    assert!(errors.contains(message), "{errors}");
}

#[test]
fn it_lists_the_targets_on_which_a_module_loads() {
    let folder = Folder::new("all-targets");
    let plain = format!("{HEAD}{ONE}");
    let (code, said, _) = folder.program(&plain, &["check", "--targets", "k.ptx"]);
    assert_eq!(code, Some(0), "{said}");
    for line in
        ["sm_75: PTX 6.3 (CUDA 10.0, driver 410)", "sm_90a: PTX 8.0 (CUDA 12.0, driver 525)"]
    {
        assert!(said.lines().any(|other| other == line), "{said}");
    }
    let body = "mbarrier.try_wait.shared.b64 p, [b], d; cvt.rn.f16x2.e2m1x2 r, n;";
    let newer = format!(
        "{HEAD}.visible .entry k() {{ .shared .b64 b; .reg .pred p; .reg .b64 d; .reg .b32 r;
        .reg .b8 n; {body} ret; }}"
    );
    let (code, said, _) = folder.program(&newer, &["check", "--targets", "--json", "k.ptx"]);
    assert_eq!(code, Some(0), "{said}");
    let report: Value = serde_json::from_str(&said).unwrap();
    let of = |name: &str| {
        let all = report["targets"].as_array().unwrap();
        all.iter().find(|target| target["target"] == name).unwrap().clone()
    };
    assert_eq!(of("sm_100a")["version"], "8.6");
    assert_eq!(of("sm_120f")["version"], "8.8");
    assert_eq!(of("sm_90a")["loads"], false);
    assert!(of("sm_80")["why"].as_str().unwrap().contains("mbarrier.try_wait"), "{said}");
    // More static shared memory than the target has.
    let large = format!(
        "{HEAD}.visible .entry k() {{ .shared .b8 s[60000]; .reg .b32 r; mov.u32 r, s; ret; }}"
    );
    let (_, said, _) = folder.program(&large, &["check", "--targets", "k.ptx"]);
    assert!(said.contains("sm_90a: PTX 8.0") && said.contains("sm_120a: PTX 8.7"), "{said}");
    let why =
        "static shared memory of `k`: required at most 49152 bytes for sm_100f, actual 60000 bytes";
    assert!(said.contains(&format!("sm_100f: none: {why}")), "{said}");
    let refused = large.replace("sm_90a", "sm_90");
    let (code, said, _) = folder.program(&refused, &["check", "k.ptx"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("required at most 49152 bytes for sm_90"), "{said}");
}
