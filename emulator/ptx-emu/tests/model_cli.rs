//! `--model`: which orders hold.

use std::path::Path;
use std::process::Command;

/// Bytes of the operands that the kernel copies to shared memory.
const OPERANDS: usize = 4608;

#[test]
fn hardware_orders_what_ptx_does_not() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("model");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let args = r#"[{"buffer": {"bytes": 1024}}, {"buffer": {"file": "in.bin"}},
        {"struct": {"bytes": 128, "fields": [{"offset": 0, "u32": 0}]}}]"#;
    std::fs::write(folder.join("k.ptx"), include_str!("data/scales_copied_again.ptx"))
        .expect("writable");
    std::fs::write(folder.join("in.bin"), [0x21; OPERANDS]).expect("writable");
    std::fs::write(folder.join("args.json"), args).expect("writable");
    let run = |options: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
            .arg("run")
            .arg(folder.join("k.ptx"))
            .args(["--entry", "k", "--grid", "1", "--block", "128", "--schedule", "lazy", "--args"])
            .arg(folder.join("args.json"))
            .args(options)
            .output()
            .expect("the program starts")
    };
    let default = run(&[]);
    assert!(default.status.success(), "{}", String::from_utf8_lossy(&default.stderr));
    let strict = run(&["--model", "ptx"]);
    assert_eq!(strict.status.code(), Some(1));
    let said = String::from_utf8_lossy(&strict.stderr);
    assert!(said.contains("tensor memory in flight: write of columns 40 to 43"), "{said}");
}
