//! Reports of the program: of a bench on an emulated device, and of recorded files.

use crate::support;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::Folder;
use serde_json::Value;

/// The chart that the README shows, and the runs of the record that it is made from.
const CHART: &str = "docs/times-h200.svg";
const CHART_FILES: [&str; 2] = ["2026-11-26.csv", "2026-11-28.csv"];
const CHART_RUNS: [&str; 5] = [
    "2026-11-26-gemv-linear",
    "2026-11-28-gemm-f16",
    "2026-11-28-dual-f16-peers",
    "2026-11-28-grouped-f16-peers",
    "2026-11-28-grouped-decode-f16",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn record() -> PathBuf {
    root().join("benches/record/h200")
}

fn nvfp4(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfp4"));
    command.args(args).env("NVFP4_TUNE", "off").current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.output().expect("the program starts")
}

/// Runs with `args` and expects this exit code; what was written to stderr.
fn ended(code: i32, args: &[&str]) -> String {
    let output = nvfp4(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    stderr
}

fn read(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A report of recorded files in a folder.
fn of_records(folder: &Path, files: &[&str], more: &[&str]) {
    let paths: Vec<String> =
        files.iter().map(|name| record().join(name).display().to_string()).collect();
    let folder = folder.display().to_string();
    let mut args = vec!["report", "--report", &folder];
    args.extend_from_slice(more);
    args.push("--from");
    args.extend(paths.iter().map(String::as_str));
    ended(0, &args);
}

#[test]
fn a_bench_on_an_emulated_device_reports_bounds_and_no_time() {
    let kernels = support::kernels_dir().display().to_string();
    for (device, _) in support::compiled() {
        let folder = Folder::new(&format!("report-{}", device.replace(':', "-")));
        let to = folder.path().display().to_string();
        let shapes = ["--shape", "gemv:128x256x1", "--shape", "gemm:8x128x128"];
        let on = ["--device", device, "--kernels", &kernels, "--report", &to];
        ended(0, &[&["bench"], &shapes[..], &on].concat());
        assert_eq!(folder.names(), ["report.html", "report.json", "times.svg"]);
        let data: Value = serde_json::from_str(&read(folder.path(), "report.json")).expect("JSON");
        let source = &data["sources"][0];
        let runs = source["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2);
        for run in runs {
            assert!(run["times"].is_null() && run["verified"] == true, "{run}");
            assert_eq!(run["launches"], "overlapping");
        }
        let about = &source["about"];
        for name in ["date", "gpu", "driver", "sms", "host", "program", "commit", "command"] {
            assert!(!about[name].is_null(), "{name}: {about}");
        }
        assert_eq!(about["device"], device);
        let page = read(folder.path(), "report.html");
        for text in [
            "No time was measured of runs on an emulated device.",
            "counted lower bound",
            ">not measured<",
            "No history: no run of this report was timed.",
            "gemm:8x128x128",
        ] {
            assert!(page.contains(text), "{text:?} is not in the page of {device}");
        }
        assert!(!page.contains("class=\"ours\""), "a time of {device}");

        // The page follows from the data alone.
        let again = Folder::new(&format!("report-again-{}", device.replace(':', "-")));
        let (data, to) = (folder.file("report.json"), again.path().display().to_string());
        ended(0, &["report", "--from", &data.display().to_string(), "--report", &to]);
        for name in ["report.html", "times.svg"] {
            let same = read(folder.path(), name) == read(again.path(), name);
            assert!(same, "{name} of {device} differs from what its data give");
        }
    }
}

#[test]
fn a_shape_without_room_is_in_the_report_and_others_run() {
    let Some((device, _)) = support::compiled().into_iter().next() else { return };
    let kernels = support::kernels_dir().display().to_string();
    let folder = Folder::new("report-memory");
    let to = folder.path().display().to_string();
    let shapes = ["--shape", "gemv:2000000000x4000000x1", "--shape", "gemv:128x256x1"];
    let on = ["--device", device, "--kernels", &kernels, "--report", &to];
    let stderr = ended(2, &[&["bench"], &shapes[..], &on].concat());
    assert!(stderr.contains("cannot provide"), "{stderr}");
    let page = read(folder.path(), "report.html");
    for text in ["1 of 2 runs have no result", "cannot provide", ">gemv:128x256x1<", ">yes<"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn recorded_runs_are_reported_with_their_history() {
    let folder = Folder::new("report-recorded");
    let of = record().display().to_string();
    of_records(folder.path(), &["2026-11-22.csv"], &["--record", &of]);
    let page = read(folder.path(), "report.html");
    let data: Value = serde_json::from_str(&read(folder.path(), "report.json")).expect("JSON");
    let text = read(&record(), "2026-11-22.csv");
    let rows = page.matches("<th scope=\"row\">").count();
    assert_eq!(rows, text.lines().count() - 1);
    // The median of the first recorded GEMM, its peer, and their quotient.
    for text in [">44.6 us<", ">69.2 us<", ">1.55<", ">gemm:128x7168x16384<"] {
        assert!(page.contains(text), "{text}");
    }
    // Quantisers were measured on two days.
    assert!(page.contains("<h3>quantize, nvfp4, torchao, bf16, one by one</h3>"));
    assert!(page.contains("2026-11-21: 88.5 us\n2026-11-22: 87.6 us"));
    assert_eq!(data["history"]["left_out"], Value::Array(Vec::new()));
    assert!(page.contains("NVIDIA H200, 2026-11-22</h1>"));
}

#[test]
fn a_record_names_what_it_leaves_out() {
    let folder = Folder::new("report-left-out");
    let odd = folder.file("record");
    std::fs::create_dir(&odd).expect("a folder");
    std::fs::write(odd.join("2026-11-01-broken.json"), "{").expect("written");
    std::fs::write(odd.join("2026-11-02.csv"), "shape,colour\n").expect("written");
    std::fs::write(odd.join("undated.json"), "[]").expect("written");
    let gemv = "2026-11-20.csv";
    std::fs::copy(record().join(gemv), odd.join(gemv)).expect("copied");
    let out = folder.file("out");
    of_records(&out, &[gemv], &["--record", &odd.display().to_string()]);
    let page = read(&out, "report.html");
    assert!(page.contains("(1 dated file)") && page.contains("Not read: undated.json"), "{page}");
    assert!(page.contains("Not read: 2026-11-01-broken.json"));
    assert!(page.contains("there is no column `colour`"));
    // Without a record the page says so.
    of_records(&out, &[gemv], &[]);
    let page = read(&out, "report.html");
    assert!(page.contains("No record: there is no folder benches/record/h200."));
}

#[test]
fn the_readmes_chart_is_what_the_record_gives() {
    let folder = Folder::new("report-readme");
    let more = [&["--activations", "f16", "--run"], &CHART_RUNS[..]].concat();
    of_records(folder.path(), &CHART_FILES, &more);
    let (made, shown) = (read(folder.path(), "times.svg"), read(&root(), CHART));
    assert!(
        made == shown,
        "{CHART} is not what these files give: copy {} there",
        folder.file("times.svg").display()
    );
    let readme = read(&root(), "README.md");
    let image = readme.split("![").find(|part| part.contains(CHART)).expect("the README shows it");
    let caption = made.split("<title>").nth(1).and_then(|rest| rest.split('<').next());
    let (gpu, days) = caption.and_then(|text| text.split_once(", ")).expect("a title");
    assert!(image.contains(gpu), "{gpu} is not in the README at the chart");
    let times = read(&root(), "docs/times.md");
    for text in CHART_FILES.iter().chain(&CHART_RUNS).copied().chain([gpu, days]) {
        assert!(times.contains(text), "{text} is not in docs/times.md");
    }
}

#[test]
fn bad_input_is_refused() {
    let folder = Folder::new("report-refused");
    let out = folder.file("out");
    let to = out.display().to_string();
    let broken = folder.file("broken.json").display().to_string();
    let refused = |args: &[&str], message: &str| {
        let stderr = ended(2, args);
        assert!(stderr.contains(message), "{args:?}: {stderr:?} lacks {message:?}");
        assert!(!out.exists(), "{args:?} wrote something");
    };
    for (text, message) in [
        ("{", "must have runs as `bench --json` writes them"),
        ("{}", "it has no runs of `bench --json`"),
        (r#"[{"op": "gemm"}]"#, "a run has no `op` or no `shape`"),
        (r#"[{"op": "gemm", "shape": "gemm:1x1x16", "bytes": 1e999}]"#, "number out of range"),
        (r#"{"nvfp4_report": 2, "sources": []}"#, "nvfp4_report must be 1, but is 2"),
    ] {
        std::fs::write(&broken, text).expect("written");
        refused(&["report", "--from", &broken, "--report", &to], message);
    }
    refused(&["report", "--from", "nowhere.json", "--report", &to], "reading nowhere.json");
    let gemm = record().join("2026-11-22.csv").display().to_string();
    let from = ["report", "--from", &gemm, "--report", &to];
    refused(&[&from[..], &["--set", "moe"]].concat(), "no run of the files is of moe");
    refused(&[&from[..], &["--set", "x"]].concat(), "unknown set of shapes `x`");
    refused(&[&from[..], &["--activations", "f64"]].concat(), "f64");
    refused(
        &[&from[..], &["--run", "2026-11-22-x"]].concat(),
        "no run of the files is of 2026-11-22-x",
    );

    // A folder that cannot be made ends a bench before anything runs.
    std::fs::write(&broken, "").expect("written");
    support::write_no_kernels(&folder.file("k"), fp4_formats::Arch::Sm90a);
    let kernels = folder.file("k").display().to_string();
    let bench = ["bench", "--shape", "gemv:1x16x1", "--device", "emu:h200", "--kernels", &kernels];
    refused(&[&bench[..], &["--report", &broken]].concat(), "writing");
    refused(&["bench", "--shape", "gemv:1x16x1", "--record", &to], "--report");
}
