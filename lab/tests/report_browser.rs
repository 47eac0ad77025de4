//! Reports in a real browser: charts have a size, nothing is wider than the page, no text lies on other
//! text, and the console is silent.
//!
//! `NVFP4_CHROMIUM` says where Chromium is; `cargo xtask test` installs it. Without it nothing is tested.

use crate::support;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::Folder;
use serde_json::Value;

/// Widths of pages: a desk, and a phone.
const WIDTHS: [u32; 2] = [1280, 390];
/// The time that Chromium may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A page with the report in frames of both widths, and what was measured in them.
const HARNESS: &str = include_str!("data/report_frames.html");

fn chromium() -> Option<PathBuf> {
    let found = std::env::var_os("NVFP4_CHROMIUM").map(PathBuf::from);
    if found.is_none() {
        skipped::test("no Chromium in NVFP4_CHROMIUM");
    }
    found
}

/// Runs Chromium without a window; its output and its messages.
fn browse(chromium: &Path, folder: &Folder, args: &[&str]) -> (String, String) {
    let profile = folder.file("profile");
    let [out, err] = ["stdout", "stderr"].map(|name| folder.file(name));
    let file = |path: &Path| Stdio::from(std::fs::File::create(path).expect("a file"));
    let mut command = Command::new(chromium);
    // Containers have neither the kernel's name spaces for its sandbox nor much shared memory.
    command
        .args(["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
        .args(["--no-first-run", "--disable-extensions", "--hide-scrollbars"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(args)
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&err));
    let mut child = command.spawn().expect("Chromium starts");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a status") {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().expect("killed");
            child.wait().expect("ended");
            panic!("Chromium takes longer than {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let read =
        |path: &Path| String::from_utf8_lossy(&std::fs::read(path).expect("written")).into_owned();
    let (out, err) = (read(&out), read(&err));
    assert!(status.success(), "{status}: {err}");
    (out, err)
}

fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// Returns the messages of pages on the console, their own errors included.
fn console(messages: &str) -> Vec<&str> {
    messages.lines().filter(|line| line.contains("CONSOLE")).collect()
}

/// Returns the harness's measurements in frames of both widths.
fn measured(chromium: &Path, folder: &Folder, page: &str) -> Value {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    let frames: String = WIDTHS
        .iter()
        .map(|width| {
            format!("<iframe width=\"{width}\" height=\"900\" srcdoc=\"{escaped}\"></iframe>\n")
        })
        .collect();
    let harness = folder.file("harness.html");
    std::fs::write(&harness, HARNESS.replace("<!-- frames -->", &frames)).expect("written");
    let (dom, messages) = browse(chromium, folder, &["--dump-dom", &url(&harness)]);
    let said = console(&messages);
    assert!(said.is_empty(), "the console is not silent: {said:?}");
    let found =
        dom.split("<pre id=\"measured\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let text = found.unwrap_or_else(|| panic!("nothing was measured: {messages}"));
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Checks a page at both widths, and that it has so many charts.
fn check(chromium: &Path, folder: &Folder, page: &str, charts: u64) {
    let frames = measured(chromium, folder, page);
    assert_eq!(frames.as_array().map(Vec::len), Some(WIDTHS.len()), "{frames}");
    for (frame, width) in frames.as_array().into_iter().flatten().zip(WIDTHS) {
        assert_eq!(frame["width"], width);
        assert_eq!(frame["charts"], charts, "charts that are shown at {width}");
        assert!(frame["texts"].as_u64() > Some(5 * charts), "{width}: {}", frame["texts"]);
        for fault in ["empty", "wide", "cut", "overlapping"] {
            assert_eq!(frame[fault], Value::Array(Vec::new()), "{fault} at {width} pixels");
        }
    }
}

fn report(folder: &Folder, args: &[&str]) -> String {
    let out = folder.file("out");
    let status = Command::new(env!("CARGO_BIN_EXE_nvfp4"))
        .args(args)
        .arg("--report")
        .arg(&out)
        .env("NVFP4_TUNE", "off")
        .stdout(Stdio::null())
        .status()
        .expect("the program starts");
    assert!(status.success(), "{args:?}: {status}");
    std::fs::read_to_string(out.join("report.html")).expect("a page")
}

/// All that is recorded of an H200, with its history.
fn recorded(folder: &Folder) -> String {
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/record/h200");
    let entries = std::fs::read_dir(&record).expect("a folder").flatten();
    let mut files: Vec<String> = entries.map(|entry| entry.path().display().to_string()).collect();
    files.sort();
    let record = record.display().to_string();
    let mut args = vec!["report", "--record", &record, "--from"];
    args.extend(files.iter().map(String::as_str));
    report(folder, &args)
}

#[test]
fn the_recorded_report_is_right_on_a_desk_and_on_a_phone() {
    let Some(chromium) = chromium() else { return };
    let folder = Folder::new("report-browser");
    let page = recorded(&folder);
    let panels = page.matches("class=\"panel\"").count() as u64;
    assert!(panels > 2, "{panels} panels of the history");
    check(&chromium, &folder, &page, 2 + panels);

    for width in WIDTHS {
        let picture = folder.file(&format!("{width}.png"));
        let screenshot = format!("--screenshot={}", picture.display());
        let size = format!("--window-size={width},900");
        let out = folder.file("out/report.html");
        browse(&chromium, &folder, &[&screenshot, &size, &url(&out)]);
        let png = std::fs::read(&picture).expect("a screenshot");
        // Signature and size; an empty page takes less than a tenth.
        assert_eq!(png.get(1..4), Some(&b"PNG"[..]));
        assert_eq!(png.get(16..20), Some(&width.to_be_bytes()[..]));
        assert!(png.len() > 30_000, "{} bytes at {width}", png.len());
    }
}

#[test]
fn a_report_of_an_emulated_device_is_right_too() {
    let Some(chromium) = chromium() else { return };
    let Some((device, _)) = support::compiled().into_iter().next() else { return };
    let folder = Folder::new("report-browser-emulated");
    let kernels = support::kernels_dir().display().to_string();
    let shapes = ["bench", "--shape", "gemv:128x256x1", "--shape", "quantize:16x64"];
    let page =
        report(&folder, &[&shapes[..], &["--device", device, "--kernels", &kernels]].concat());
    check(&chromium, &folder, &page, 1);
}

/// The check finds what it is to find.
#[test]
fn faults_are_found() {
    let Some(chromium) = chromium() else { return };
    let folder = Folder::new("report-browser-faults");
    let svg = |class: &str, body: &str| {
        format!("<svg class=\"{class}\" viewBox=\"0 0 100 50\" width=\"100\">{body}</svg>")
    };
    let texts = r#"<text x="9" y="20">abcd</text><text x="12" y="22">abcd</text>"#;
    let page = [
        svg("lying", texts),
        svg("cut", r#"<text x="90" y="20">abcdefgh</text>"#),
        "<svg class=\"empty\" width=\"0\" height=\"0\"></svg>".to_owned(),
        "<p class=\"wide\" style=\"width: 2000px\">a</p>".to_owned(),
    ]
    .concat();
    let frames = measured(&chromium, &folder, &page);
    for frame in frames.as_array().expect("frames") {
        assert_eq!(frame["empty"].as_array().map(Vec::len), Some(1), "{frame}");
        assert_eq!(frame["cut"].as_array().map(Vec::len), Some(1), "{frame}");
        assert_eq!(frame["overlapping"].as_array().map(Vec::len), Some(1), "{frame}");
        assert_eq!(frame["wide"].as_array().map(Vec::len), Some(1), "{frame}");
    }
    let loud = folder.file("loud.html");
    std::fs::write(&loud, "<script>nothing.there()</script>").expect("written");
    let (_, messages) = browse(&chromium, &folder, &["--dump-dom", &url(&loud)]);
    assert_eq!(console(&messages).len(), 1, "{messages}");
}
