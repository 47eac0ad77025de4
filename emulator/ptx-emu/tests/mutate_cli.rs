//! `ptx-emu mutate`: reports, exit codes, lists of known equivalents.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Words exchanged through shared memory; the second barrier orders nothing.
const PTX: &str = ".version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .shared .b32 s[64];
    .reg .b64 %o; .reg .b32 %t, %a, %b, %v;
    ld.param.u64 %o, [out];
    mov.u32 %t, %tid.x;
    mov.u32 %a, s;
    mad.lo.u32 %b, %t, 4, %a;
    st.shared.u32 [%b], %t;
    bar.sync 0;
    xor.b32 %b, %t, 63;
    mad.lo.u32 %b, %b, 4, %a;
    ld.shared.u32 %v, [%b];
    bar.sync 1, 64;
    mad.wide.u32 %o, %t, 4, %o;
    st.global.u32 [%o], %v;
    ret;
}
.visible .entry wrong() {
    .shared .b32 s[64];
    .reg .b32 %v;
    ld.shared.u32 %v, [s];
    bar.sync 0;
    ret;
}
";

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutate-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, text) in [
        ("k.ptx", PTX),
        ("args.json", r#"[{"buffer": {"bytes": 256}, "out": "out.bin"}]"#),
        (
            "list.txt",
            "k | remove | bar.sync 1, 64; | nothing behind it is shared
             k | threads -32 | bar.sync 1, 64; | the same\n",
        ),
        ("bad.txt", "k | remove\n"),
    ] {
        std::fs::write(folder.join(name), text).expect("writable");
    }
    folder
}

fn mutate(folder: &Path, words: &str) -> Output {
    let place = |word: &str| match word.contains('.') {
        true => folder.join(word).into_os_string(),
        false => word.into(),
    };
    Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .arg("mutate")
        .args(words.split_whitespace().map(place))
        .output()
        .expect("the program starts")
}

const RUN: &str = "k.ptx --entry k --grid 1 --block 64 --args args.json --seeds 20";

#[test]
fn survivors_fail_until_they_are_explained() {
    let folder = folder("survivors");
    let output = mutate(&folder, RUN);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("2 of 4 caught (50.0 %; at least 95 % required), 2 unexplained"),
        "{text}"
    );
    let listed = mutate(&folder, &format!("{RUN} --equivalents list.txt"));
    let text = String::from_utf8(listed.stdout).expect("UTF-8");
    assert_eq!(listed.status.code(), Some(0), "{text}");
    assert!(text.contains("-- nothing behind it is shared"), "{text}");
    assert!(text.contains("2 of 2 caught"), "{text}");
    let lax = mutate(&folder, &format!("{RUN} --threshold 50"));
    assert_eq!(lax.status.code(), Some(0));
    assert!(!folder.join("out.bin").exists(), "nothing is written");
}

#[test]
fn json() {
    let output = mutate(&folder("json"), &format!("{RUN} --json"));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["status"], "survivors");
    let kernel = &json["kernels"][0];
    assert_eq!((&kernel["counted"], &kernel["caught"]), (&4.into(), &2.into()));
    let mutants = kernel["mutants"].as_array().expect("a list");
    let fates: Vec<&str> = mutants.iter().filter_map(|m| m["fate"].as_str()).collect();
    assert_eq!(fates, ["caught", "survived", "caught", "survived"], "{json}");
    assert_eq!(mutants[0]["instruction"], "bar.sync 0;");
    assert_eq!(mutants[2]["mutation"], "threads +32");
    assert_eq!(mutants[2]["detail"], "eager: deadlock");
}

#[test]
fn bad_input() {
    let folder = folder("bad");
    for (words, code, said) in [
        ("k.ptx", 2, "without --entry"),
        ("k.ptx list.txt --entry k --grid 1 --block 64", 2, "2 targets with --entry"),
        ("k.ptx --entry k --grid 1 --block 64 --args args.json --equivalents bad.txt", 2, "line 1"),
        ("k.ptx --entry k", 2, "--grid"),
        ("k.ptx --entry wrong --grid 1 --block 64", 1, "goes wrong without any mutation"),
        ("missing.d", 2, "cannot be read"),
    ] {
        let output = mutate(&folder, words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words}: {text}");
        assert!(text.contains(said), "{words}: {text}");
    }
}
