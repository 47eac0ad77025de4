//! `ptx-emu replay --on cuda:0`. If there is no GPU, the library that stands in for the driver is in
//! its place, so that all but the kernel's own run is that of a GPU.
#![cfg(target_os = "linux")]

// The library that stands in for the driver is built because this names it.
use ptx_emu_cuda as _;

use ptx_emu::bundle::{
    Allocation, Bundle, Compare, Expected, MapPlace, PlacedMap, ReplayOptions, RunBundle as _,
};
use ptx_emu::tensor_map::{ElementType, TensorMap};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const X: u64 = 0x7412_3400_0000;
const Y: u64 = 0x7412_3400_0200;
/// Not the page of the others.
const MAPS: u64 = 0x7412_4560_0080;

/// `y[i] = 2 x[i]` for 64 floats in 2 CTAs, and the first 8 bytes of two tensor maps to `y[64..]`.
/// The second parameter's place in the driver's block depends on the GPU.
const PTX: &str = "
.version 9.0
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 x, .param .align 64 .b8 map[128], .param .u64 y, .param .u64 maps) {
    .reg .b64 %x, %y, %m; .reg .b32 %t, %c; .reg .f32 %f;
    ld.param.u64 %x, [x]; ld.param.u64 %y, [y];
    ld.param.b64 %m, [map]; st.global.b64 [%y+256], %m;
    ld.param.b64 %m, [maps]; ld.global.b64 %m, [%m]; st.global.b64 [%y+264], %m;
    mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x;
    mad.lo.u32 %t, %c, 32, %t;
    mad.wide.u32 %x, %t, 4, %x;
    ld.global.f32 %f, [%x];
    add.f32 %f, %f, %f;
    mad.wide.u32 %y, %t, 4, %y;
    st.global.f32 [%y], %f;
    ret;
}";

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn bundle() -> Bundle {
    let map = TensorMap::tiled(ElementType::F32, X, &[64, 1], &[256], &[32, 1]);
    let encoded = map.encode().expect("a map that fits");
    let mut params = vec![0; 64 + 128 + 16];
    params[..8].copy_from_slice(&X.to_le_bytes());
    params[192..200].copy_from_slice(&Y.to_le_bytes());
    params[200..].copy_from_slice(&MAPS.to_le_bytes());
    let mut y = floats((0..64).map(|i| i as f32));
    y.extend_from_slice(&encoded[..8]);
    y.extend_from_slice(&encoded[..8]);
    let allocation = |name: &str, addr, size, contents| Allocation {
        addr,
        size,
        name: name.to_owned(),
        contents,
    };
    let x = floats((0..64).map(|i| i as f32 / 2.0));
    Bundle {
        ptx: PTX.to_owned(),
        entry: "twice".to_owned(),
        grid: [2, 1, 1],
        block: [32, 1, 1],
        cluster: Some([2, 1, 1]),
        dynamic_shared: 1024,
        cooperative: true,
        programmatic: true,
        params,
        memory: vec![
            allocation("x", X, 256, Some(x)),
            allocation("y", Y, 272, None),
            allocation("maps", MAPS, 128, Some(vec![0; 128])),
        ],
        tensor_maps: vec![
            PlacedMap { place: MapPlace::Param(64), map: map.clone() },
            PlacedMap { place: MapPlace::Global(MAPS), map },
        ],
        expected: BTreeMap::from([(
            "y".to_owned(),
            Expected { addr: Y, bytes: y, compare: Compare::Exact },
        )]),
    }
}

/// A folder of this test, without anything in it.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hardware").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Replays with the stand-in as the driver.
fn on_stand_in(name: &str, bundle: &Path, more: &[&str]) -> Output {
    let libraries = folder(&format!("{name}-libraries"));
    let test = std::env::current_exe().expect("this program");
    let found = test.ancestors().skip(1).take(2).map(|at| at.join("libptx_emu_cuda.so"));
    let library = found.into_iter().find(|path| path.is_file()).expect("cargo builds the library");
    std::os::unix::fs::symlink(library, libraries.join("libcuda.so.1")).expect("a link");
    Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .arg("replay")
        .arg(bundle)
        .args(["--on", "cuda:0"])
        .args(more)
        .env("LD_LIBRARY_PATH", libraries)
        .env("PTX_EMU_EXEC", r#"{"gpu": "h200"}"#)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_bundle_runs_at_its_addresses() {
    let here = bundle().replay(&ReplayOptions::default()).expect("it runs");
    assert!(here.is_right(), "{:?}", here.outputs);
    let at = folder("right").join("bundle");
    bundle().write(&at).expect("writable");
    let out = on_stand_in("right", &at, &["--json", "--dtype", "f32"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&json["status"], &json["device"]), (&"done".into(), &"cuda:0".into()));
    assert_eq!((&json["outputs"][0]["elements"], &json["emulated"]), (&68.into(), &false.into()));
}

#[test]
fn other_outputs_are_said_and_written() {
    let at = folder("wrong").join("bundle");
    let mut wrong = bundle();
    wrong.expected.get_mut("y").expect("there").bytes[8..12].copy_from_slice(&9f32.to_le_bytes());
    wrong.write(&at).expect("writable");
    let left = folder("wrong-left").join("bundle");
    let more = ["--dtype", "f32", "--out", left.to_str().expect("UTF-8")];
    let out = on_stand_in("wrong", &at, &more);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    assert!(said.starts_with("`twice` ran on cuda:0 ("), "{said}");
    assert!(said.contains("y: 1 of 68 elements differ, first [2]: expected 9, got 2"), "{said}");
    let left = Bundle::read(&left).expect("a bundle");
    assert_eq!(left.expected["y"].bytes, bundle().expected["y"].bytes);
    // The tensor map, which was put there before the launch.
    assert_eq!(left.expected.keys().collect::<Vec<_>>(), ["maps", "y"]);
}

/// Each of several in its own process: one that goes wrong takes its GPU with it.
#[test]
fn several_bundles_run_one_by_one() {
    let at = folder("several");
    bundle().write(&at.join("0")).expect("writable");
    let mut faulty = bundle();
    faulty.memory[1].size = 128;
    faulty.expected.clear();
    faulty.params[192..200].copy_from_slice(&(Y + (4 << 20)).to_le_bytes());
    faulty.write(&at.join("1")).expect("writable");
    bundle().write(&at.join("2")).expect("writable");
    let out = on_stand_in("several", &at, &[]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_eq!(text(&out.stdout).matches("272 elements as expected").count(), 2);
    assert!(said.contains("CUDA_ERROR_LAUNCH_FAILED"), "{said}");
}

#[test]
fn what_does_not_fit_is_refused() {
    type Change = fn(&mut Bundle);
    let cases: [(&str, Change, &str); 5] = [
        ("entry", |bundle| bundle.entry = "thrice".to_owned(), "thrice"),
        ("params", |bundle| bundle.params.truncate(200), "params: required 208 bytes, actual 200"),
        ("map", |bundle| bundle.tensor_maps[0].place = MapPlace::Param(100), "tensor_maps[0].at"),
        (
            "ptx",
            |bundle| bundle.ptx = PTX.replace("sm_90a", "sm_100a"),
            "the driver refused the module",
        ),
        ("expected", |bundle| bundle.memory[1].size = 260, "expected.y: required a range"),
    ];
    for (name, change, message) in cases {
        let at = folder(&format!("refused-{name}")).join("bundle");
        let mut bad = bundle();
        change(&mut bad);
        bad.write(&at).expect("writable");
        let out = on_stand_in(&format!("refused-{name}"), &at, &[]);
        let said = text(&out.stderr);
        assert!(said.contains(message), "{name}: {said}");
        assert_eq!(out.status.code(), Some(2), "{name}: {said}");
    }
}

#[test]
fn without_a_gpu_that_is_said() {
    let at = folder("none").join("bundle");
    bundle().write(&at).expect("writable");
    let run = |on: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ptx-emu"));
        command.arg("replay").arg(&at).args(["--json", "--on", on]);
        command.output().expect("the program starts")
    };
    // No machine has that many.
    let out = run("cuda:4000");
    assert_eq!(out.status.code(), Some(2));
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let error = json["error"].as_str().expect("text");
    assert!(error.starts_with("--on cuda:4000: "), "{error}");
    assert!(error.contains("no NVIDIA driver") || error.contains("GPU"), "{error}");
    let out = run("gpu0");
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("required cuda:N"));
}
