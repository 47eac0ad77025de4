//! `nvfp4 selftest` on the emulator.
//!
//! It needs the compiled kernels (`cargo xtask build-kernels`); where there are none, it
//! is left out, or fails if `NVFP4_KERNELS_DIR` promises them.

use std::process::Command;

use crate::support::{Folder, compiled, kernels_dir};
use serde_json::Value;

fn selftest(args: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.arg("selftest").args(args).env("NVFP4_KERNELS_DIR", kernels_dir());
    command.output().expect("it starts")
}

#[test]
fn a_quick_selftest_passes_and_reports_every_step() {
    let folder = Folder::new("selftest");
    for (device, arch) in compiled() {
        let file = folder.file("report.json").display().to_string();
        let args = ["--device", device, "--quick", "--report", &file];
        let output = selftest(&args);
        let (page, lines) = (
            String::from_utf8(output.stdout).expect("text"),
            String::from_utf8(output.stderr).expect("text"),
        );
        assert_eq!(output.status.code(), Some(0), "{page}{lines}");
        let report = std::fs::read_to_string(&file).expect("a report");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let steps = report["steps"].as_array().expect("steps");
        assert_eq!(report["device"]["device"], device);
        assert_eq!(report["device"]["arch"], arch.name());
        assert_eq!(report["counts"]["passed"], steps.len(), "{page}");
        // One line of progress for each, as stderr is no terminal, and one page.
        assert_eq!(lines.lines().count(), steps.len(), "{lines}");
        assert!(page.lines().count() < 60, "{page}");
        for stage in [
            "copies",
            "first",
            "gemv, ragged",
            "quantise",
            "rows",
            "gemm, exact",
            "gemm, residual",
            "gated, residual",
            "grouped, ragged",
            "grouped, residual",
            "grouped and gated, residual",
        ] {
            let of = || steps.iter().filter(|step| step["stage"] == stage);
            assert!(of().count() > 0, "{stage}");
            assert!(page.contains(stage), "{page}");
        }
        let kernels = steps.iter().filter(|step| step["stage"] == "gemm, exact");
        assert!(kernels.into_iter().all(|step| step["max_error"] == 0.0), "{report}");
    }
}

#[test]
fn what_cannot_be_run_is_an_error_before_any_step() {
    let output = selftest(&["--device", "cuda:77", "--quick"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    let output = selftest(&["--device", "emu:h200", "--quick", "--report", "/nowhere/report.json"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("/nowhere/report.json"), "{stderr}");
}
