//! Launches written as bundles: replayed on the emulator they give the same bytes, under every
//! schedule.

use crate::support;
use std::path::{Path, PathBuf};
use std::process::Command;

use fp4_formats::{Arch, Family, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels, LaunchSpec};
use nvfp4::shape::GemvShape;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::{self, GemvOperands};
use ptx_emu::bundle::{Bundle, ReplayOptions, RunBundle as _};
use ptx_emu_core::Schedule;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)];

/// `y[i] = x[i] + n` for the threads of one CTA; every second word of `y` only.
const PTX: &str = ".version 9.0
.target sm_90a
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .b64 %x, %y; .reg .b32 %t, %n, %v;
    ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u32 %n, [n];
    mov.u32 %t, %tid.x;
    mad.wide.u32 %x, %t, 4, %x; mad.wide.u32 %y, %t, 8, %y;
    ld.global.u32 %v, [%x]; add.u32 %v, %v, %n; st.global.u32 [%y], %v;
    ret;
}
";

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capture-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

fn kernels(folder: &Path) -> Kernels {
    let module = (Family::Ceiling, PTX, ["add"].as_slice());
    support::write_kernels(&folder.join("k"), Arch::Sm90a, &[module], 3);
    let device = Device::open(&"emu:h200".parse().expect("known")).expect("opens");
    let device = device.with_capture(&folder.join("bundles"));
    device.kernels(Some(&folder.join("k"))).expect("loads")
}

fn launch(
    kernels: &Kernels,
    x: &DeviceBuffer,
    y: &DeviceBuffer,
    n: u32,
) -> nvfp4::error::Result<()> {
    let addresses = [x.address(), y.address()];
    let mut params: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    params.extend(n.to_le_bytes());
    let spec = LaunchSpec {
        entry: "add",
        grid: [1, 1, 1],
        block: [4, 1, 1],
        cluster: None,
        overlaps: false,
        dynamic_shared: 0,
        params: &params,
    };
    // SAFETY: the device is the emulator, which checks every access.
    unsafe { kernels.launch(&spec) }.map(|_| ())
}

fn bundles(folder: &Path) -> Vec<(String, Bundle)> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("bundles")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let read = |name: String| {
        let bundle = Bundle::read(&folder.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, bundle)
    };
    names.into_iter().map(read).collect()
}

/// Replays under every schedule; how many outputs were compared.
fn green(name: &str, bundle: &Bundle) -> usize {
    let mut outputs = 0;
    for schedule in SCHEDULES {
        let options = ReplayOptions { schedule, ..ReplayOptions::default() };
        let replay = bundle.replay(&options).unwrap_or_else(|e| panic!("{name}, {schedule}: {e}"));
        assert!(replay.is_right(), "{name}, {schedule}: {:?}", replay.outputs);
        outputs = replay.outputs.len();
    }
    outputs
}

#[test]
fn every_launch_becomes_a_bundle() {
    let folder = folder("small");
    let kernels = kernels(&folder);
    let words =
        |values: [u32; 4]| values.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    let x = DeviceBuffer::upload(kernels.device(), "x", &words([1, 20, 300, 4000])).expect("room");
    let y = DeviceBuffer::poisoned(kernels.device(), "y", 32).expect("room");
    launch(&kernels, &x, &y, 7).expect("runs");
    // The second launch reads what the first one wrote, and writes over it.
    launch(&kernels, &y, &y, 1).expect_err("every second word is uninitialised");
    launch(&kernels, &x, &y, 8).expect("runs");
    launch(&kernels, &x, &y, 8).expect("runs");
    assert_eq!(kernels.device().capture().expect("there").launches(), 4);

    let bundles = bundles(&folder.join("bundles"));
    let names: Vec<&str> = bundles.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["000-add", "001-add", "002-add", "003-add"]);
    let (_, first) = &bundles[0];
    assert_eq!(first.memory[0].contents.as_deref(), Some(&words([1, 20, 300, 4000])[..]));
    assert_eq!((first.memory[1].name.as_str(), &first.memory[1].contents), ("y", &None));
    let expected: Vec<(u64, Vec<u8>)> =
        first.expected.values().map(|e| (e.addr - y.address(), e.bytes.clone())).collect();
    let word = |value: u32| value.to_le_bytes().to_vec();
    let all = [(0, word(8)), (8, word(27)), (16, word(307)), (24, word(4007))];
    assert_eq!(expected, all, "only what was written");
    // The one that failed has no outputs.
    assert!(bundles[1].1.expected.is_empty());
    let outputs: Vec<usize> =
        [0, 2, 3].iter().map(|&at| green(&bundles[at].0, &bundles[at].1)).collect();
    assert_eq!(outputs, [4, 4, 0], "a launch that changes nothing");

    let mut wrong = first.clone();
    wrong.memory[0].contents.as_mut().expect("there")[4] ^= 1;
    let replay = wrong.replay(&ReplayOptions::default()).expect("runs");
    assert!(!replay.is_right());
    std::fs::remove_dir_all(&folder).expect("removable");
}

#[test]
fn a_folder_with_bundles_is_not_overwritten() {
    let folder = folder("twice");
    let run = || {
        let kernels = kernels(&folder);
        let x = DeviceBuffer::upload(kernels.device(), "x", &[1; 16]).expect("room");
        let y = DeviceBuffer::poisoned(kernels.device(), "y", 32).expect("room");
        launch(&kernels, &x, &y, 1)
    };
    run().expect("runs");
    let error = run().expect_err("the bundle is there").to_string();
    assert!(error.contains("capture: ") && error.contains("000-add"), "{error}");
    std::fs::remove_dir_all(&folder).expect("removable");
}

/// `nvfp4 run gemv --capture` with the project's own kernels.
#[test]
fn gemv_bundles_replay() {
    let dir = support::kernels_dir();
    let folder = folder("gemv");
    let inputs = folder.join("in.safetensors");
    let shape = GemvShape { m: 33, k: 160, l: 2 };
    let layouts = [ScaleLayout::Linear, ScaleLayout::Blocked128x4];
    let (a, b) = Generator::FullRange.gemv(shape, layouts, 5).expect("small");
    operands::write(&inputs, &GemvOperands { a, b, alpha: 0.75 }).expect("written");
    for (device, arch) in support::compiled() {
        let captured = folder.join(arch.name());
        let out = folder.join(format!("{arch}.safetensors"));
        let output = Command::new(env!("CARGO_BIN_EXE_nvfp4"))
            .args(["run", "gemv", "--device", device, "--inputs"])
            .arg(&inputs)
            .arg("--out")
            .arg(&out)
            .arg("--kernels")
            .arg(&dir)
            .arg("--capture")
            .arg(&captured)
            .output()
            .expect("the program starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let bundles = bundles(&captured);
        assert!(!bundles.is_empty());
        for (name, bundle) in &bundles {
            assert!(green(name, bundle) > 0, "{name} compares nothing");
        }
    }
    std::fs::remove_dir_all(&folder).expect("removable");
}
