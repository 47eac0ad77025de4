//! Launch bundles: written and read again, replayed, and refused when something
//! does not fit.

use ptx_emu::bundle::{
    Allocation, BUNDLE_FILE, Bundle, BundleError, Compare, CompareType, Expected, MapPlace,
    PlacedMap, ReplayOptions, RunBundle as _,
};
use ptx_emu::tensor_map::{ElementType, Swizzle, TensorMap};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

const X: u64 = 0x7f12_3400_0000;
const Y: u64 = 0x7f12_3500_0200;

/// `y[i] = 2 x[i]` for 64 floats, and the first 8 bytes of a tensor map to `y[64..]`.
const PTX: &str = "
.version 9.0
.target sm_90a
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .align 64 .b8 map[128]) {
    .reg .b64 %x, %y, %m; .reg .b32 %t; .reg .f32 %f; .reg .pred %p;
    ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.b64 %m, [map];
    mov.u32 %t, %tid.x;
    mad.wide.u32 %x, %t, 4, %x;
    ld.global.f32 %f, [%x];
    add.f32 %f, %f, %f;
    st.global.b64 [%y+256], %m;
    mad.wide.u32 %y, %t, 4, %y;
    st.global.f32 [%y], %f;
    ret;
}";

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn bundle() -> Bundle {
    let mut map = TensorMap::tiled(ElementType::F16, X, &[64, 2], &[128], &[64, 2]);
    map.swizzle = Swizzle::B128;
    let encoded = map.encode().expect("a map that fits");
    let mut params = [X, Y].map(u64::to_le_bytes).concat();
    params.resize(64 + 128, 0xee);
    let mut y = floats((0..64).map(|i| i as f32));
    y.extend_from_slice(&encoded[..8]);
    let tolerant = Compare::Close { dtype: CompareType::F32, rtol: 1e-6, atol: 0.0 };
    let expected = [
        ("exact".to_owned(), Expected { addr: Y, bytes: y.clone(), compare: Compare::Exact }),
        ("close".to_owned(), Expected { addr: Y, bytes: y[..256].to_vec(), compare: tolerant }),
    ];
    let x = floats((0..64).map(|i| i as f32 / 2.0));
    let allocation = |name: &str, addr, size, contents| Allocation {
        addr,
        size,
        name: name.to_owned(),
        contents,
    };
    Bundle {
        ptx: PTX.to_owned(),
        entry: "twice".to_owned(),
        grid: [1, 1, 1],
        block: [64, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        cooperative: false,
        programmatic: false,
        params,
        memory: vec![allocation("x", X, 256, Some(x)), allocation("the output: y", Y, 264, None)],
        tensor_maps: vec![PlacedMap { place: MapPlace::Param(64), map }],
        expected: BTreeMap::from(expected),
    }
}

/// A folder that does not exist yet.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ptx-emu-replay-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn replay(folder: &std::path::Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .arg("replay")
        .arg(folder)
        .args(more)
        .output()
        .expect("the program starts")
}

#[test]
fn what_is_written_is_read() {
    let folder = folder("round-trip");
    let mut written = bundle();
    written.cluster = Some([1, 1, 1]);
    written.dynamic_shared = 48;
    let global = PlacedMap { place: MapPlace::Global(Y), ..written.tensor_maps[0].clone() };
    written.tensor_maps.push(global);
    written.write(&folder).expect("writable");
    assert_eq!(Bundle::read(&folder).expect("readable"), written);
    let again = written.write(&folder).expect_err("it exists").to_string();
    assert!(again.contains("cannot be written"), "{again}");
    assert_eq!(Bundle::read(&folder).expect("still readable"), written);
    std::fs::remove_dir_all(&folder).expect("removable");
}

#[test]
fn right_outputs() {
    let replay = bundle().replay(&ReplayOptions::default()).expect("it runs");
    assert!(replay.is_right(), "{:?}", replay.outputs);
    assert_eq!(replay.gpu.name, "h200");
    let elements: Vec<(&str, usize)> =
        replay.outputs.iter().map(|output| (output.name.as_str(), output.elements)).collect();
    assert_eq!(elements, [("close", 64), ("exact", 264)]);
}

#[test]
fn maps_go_to_global_memory_too() {
    let mut bundle = bundle();
    let place = X + 0x10_0000;
    let contents = Some(vec![0; 128]);
    bundle.memory.push(Allocation { addr: place, size: 128, name: "m".into(), contents });
    let encoded = bundle.tensor_maps[0].map.encode().expect("fits").to_vec();
    bundle
        .tensor_maps
        .push(PlacedMap { place: MapPlace::Global(place), ..bundle.tensor_maps[0].clone() });
    let expected = Expected { addr: place, bytes: encoded, compare: Compare::Exact };
    bundle.expected.insert("map".into(), expected);
    assert!(bundle.replay(&ReplayOptions::default()).expect("it runs").is_right());
}

#[test]
fn wrong_outputs_are_named() {
    let mut bundle = bundle();
    let exact = bundle.expected.get_mut("exact").expect("there");
    exact.bytes[9] ^= 0x10;
    let close = bundle.expected.get_mut("close").expect("there");
    close.bytes[12..16].copy_from_slice(&3.5f32.to_le_bytes());
    // 5.000001 is near enough.
    close.bytes[20..24].copy_from_slice(&5.000_001_f32.to_le_bytes());
    let folder = folder("wrong");
    bundle.write(&folder).expect("writable");
    let text = replay(&folder, &[]);
    assert_eq!(text.status.code(), Some(1));
    let text = String::from_utf8(text.stdout).expect("text");
    let close = "close: 1 of 64 elements differ, first [3]: expected 3.5, got 3, \
                 largest error 5.000e-1";
    assert!(text.contains(close), "{text}");
    let exact = "exact: 1 of 264 elements differ, first [9]: expected 0x10, got 0x00";
    assert!(text.contains(exact), "{text}");
    let json = replay(&folder, &["--json", "--schedule", "random:3"]);
    assert_eq!(json.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["status"], "different");
    assert_eq!(json["outputs"][0]["first"]["index"], 3);
    assert_eq!(json["schedule"], "random:3");
    std::fs::remove_dir_all(&folder).expect("removable");
}

#[test]
fn outputs_never_written_are_wrong() {
    let mut bundle = bundle();
    bundle.memory[1].size += 8;
    let expected = Expected { addr: Y + 264, bytes: vec![0xcb; 8], compare: Compare::Exact };
    bundle.expected.insert("behind".into(), expected);
    let replay = bundle.replay(&ReplayOptions::default()).expect("it runs");
    let behind = &replay.outputs[0];
    assert_eq!(behind.first.as_ref().expect("a mismatch").actual, "never written");
}

#[test]
fn kernels_that_do_wrong_are_diagnosed() {
    let mut bundle = bundle();
    bundle.memory[0].size = 128;
    bundle.memory[0].contents = Some(vec![0; 128]);
    let folder = folder("diagnostic");
    bundle.write(&folder).expect("writable");
    let output = replay(&folder, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["status"], &json["lane"]), (&json!("diagnostic"), &json!(0)));
    assert!(json["error"].as_str().expect("text").contains("out of bounds"), "{json}");
    std::fs::remove_dir_all(&folder).expect("removable");
}

/// Replaces a field, given by its path.
fn set(json: &mut Value, path: &str, value: Value) {
    *json.pointer_mut(path).expect("the field exists") = value;
}

#[test]
fn bad_bundles_are_refused_with_their_field() {
    let folder = folder("bad");
    bundle().write(&folder).expect("writable");
    let path = folder.join(BUNDLE_FILE);
    let good: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    let cases: [(&str, Value, &str); 18] = [
        ("/grid", json!([1, 1]), "bundle.json: invalid length 2"),
        ("/grid", json!([0, 1, 1]), "launch of `twice`: grid: required 1 to"),
        ("/entry", json!("thrice"), "entry: required one of: twice, actual thrice"),
        ("/ptx", json!("missing.ptx"), "missing.ptx: cannot be read"),
        ("/params", json!("abc"), "params: required pairs of hexadecimal digits, actual 3 digits"),
        ("/params", json!("zz"), "params: required pairs of hexadecimal digits, actual byte 0x7a"),
        ("/params", json!("00"), "tensor_maps[0].at: required 128 bytes within the 1 of params"),
        ("/memory/0/size", json!(255), "memory[0].file: required a file of 255 bytes, actual 0-x"),
        ("/memory/0/file", json!("../x"), "memory[0].file: required a path below the folder"),
        ("/memory/0/addr", json!(-1), "required an unsigned 64-bit number"),
        ("/memory/0/addr", json!("0xg"), "required an unsigned 64-bit number, actual `0xg`"),
        ("/memory/1/addr", json!(X + 8), "overlap `x`"),
        (
            "/tensor_maps/0/in",
            json!("local"),
            "tensor_maps[0].in: required \"param\" or \"global\"",
        ),
        ("/tensor_maps/0/dtype", json!("HALF"), "tensor_maps[0].dtype: required one of UINT8"),
        ("/tensor_maps/0/rank", json!(3), "tensor_maps[0].rank: required 2, the number of dims"),
        ("/tensor_maps/0/box", json!([64, 512]), "tensor_maps[0].box"),
        ("/expected/close/compare", json!("near"), "expected.close.compare: required \"exact\" or"),
        ("/expected/close/addr", json!(8), "expected.close: required a range in `memory`"),
    ];
    for (place, value, message) in cases {
        let mut bad = good.clone();
        set(&mut bad, place, value.clone());
        std::fs::write(&path, bad.to_string()).expect("writable");
        let output = replay(&folder, &["--json"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(message), "{place} = {value}: {error}");
        assert_eq!(output.status.code(), Some(2), "{place} = {value}: {error}");
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(json["status"], "bad input", "{place} = {value}");
    }
    std::fs::remove_dir_all(&folder).expect("removable");
}

#[test]
fn descriptions_may_say_more_or_less() {
    let folder = folder("lenient");
    bundle().write(&folder).expect("writable");
    let path = folder.join(BUNDLE_FILE);
    let mut json: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    json["tool"] = json!({"name": "a profiler"});
    json["memory"][0]["pitch"] = json!(4);
    json["memory"][0]["addr"] = json!(format!("{X:#x}"));
    let map = json["tensor_maps"][0].as_object_mut().expect("an object");
    for field in ["rank", "estrides", "interleave", "l2", "oob"] {
        map.remove(field).expect("it was written");
    }
    for field in ["cluster", "dynamic_shared"] {
        json.as_object_mut().expect("an object").remove(field).expect("it was written");
    }
    std::fs::write(&path, json.to_string()).expect("writable");
    assert_eq!(Bundle::read(&folder).expect("readable"), bundle());
    std::fs::remove_dir_all(&folder).expect("removable");
    let missing = Bundle::read(&folder).expect_err("nothing there");
    assert!(matches!(missing, BundleError::Read { .. }), "{missing}");
}

#[test]
fn folders_of_bundles_are_replayed_one_by_one() {
    let folder = folder("several");
    let good = bundle();
    let mut wrong = bundle();
    wrong.expected.get_mut("exact").expect("there").bytes[9] ^= 0x10;
    good.write(&folder.join("000-twice")).expect("writable");
    good.write(&folder.join("001-twice")).expect("writable");
    std::fs::write(folder.join("notes.txt"), "no bundle").expect("writable");
    let output = replay(&folder, &[]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("text");
    let (first, second) = (text.find("000-twice"), text.find("001-twice"));
    assert!(first.is_some() && first < second, "{text}");
    assert_eq!(text.matches("close: 64 elements as expected").count(), 2, "{text}");
    wrong.write(&folder.join("0005-twice")).expect("writable");
    let output = replay(&folder, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let statuses: Vec<&Value> =
        json.as_array().expect("a list").iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, ["done", "different", "done"]);
    // A folder with neither is refused as before.
    std::fs::remove_dir_all(&folder).expect("removable");
    std::fs::create_dir_all(&folder).expect("writable");
    assert_eq!(replay(&folder, &[]).status.code(), Some(2));
    std::fs::remove_dir_all(&folder).expect("removable");
}

/// `--out` writes a bundle that expects what the launch left; the launch wrote 264 bytes of `y`.
#[test]
fn what_a_launch_left_is_written() {
    let (folder, out) = (folder("left"), folder("left-out"));
    let mut wrong = bundle();
    wrong.expected.get_mut("close").expect("there").bytes[12..16].copy_from_slice(&[0; 4]);
    wrong.expected.remove("exact");
    wrong.write(&folder).expect("writable");
    let out_text = out.to_str().expect("UTF-8");
    let output = replay(&folder, &["--out", out_text]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let left = Bundle::read(&out).expect("a bundle");
    let names: Vec<&str> = left.expected.keys().map(String::as_str).collect();
    assert_eq!(names, ["close", "the output: y"]);
    assert_eq!(left.expected["close"].bytes, bundle().expected["close"].bytes);
    assert_eq!(left.expected["the output: y"].bytes, bundle().expected["exact"].bytes);
    assert_eq!(left.expected["close"].compare, wrong.expected["close"].compare);
    assert_eq!((&left.memory, &left.params), (&wrong.memory, &wrong.params));
    assert_eq!(replay(&out, &[]).status.code(), Some(0));
    // A file that exists is not replaced.
    let again = replay(&folder, &["--out", out_text]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("cannot be written"));
    std::fs::remove_dir_all(&folder).expect("removable");
    std::fs::remove_dir_all(&out).expect("removable");
    // Each of several bundles has its own folder.
    bundle().write(&folder.join("0-twice")).expect("writable");
    bundle().write(&folder.join("1-twice")).expect("writable");
    assert_eq!(replay(&folder, &["--out", out_text]).status.code(), Some(0));
    for name in ["0-twice", "1-twice"] {
        assert_eq!(Bundle::read(&out.join(name)).expect("a bundle").expected, bundle().expected);
    }
    std::fs::remove_dir_all(&folder).expect("removable");
    std::fs::remove_dir_all(&out).expect("removable");
}

/// Outputs may be compared as elements, by the bundle or by `--dtype`.
#[test]
fn elements_have_types() {
    let folder = folder("types");
    let mut wrong = bundle();
    wrong.expected.get_mut("exact").expect("there").bytes[8..12].copy_from_slice(&[0, 0, 64, 64]);
    wrong.write(&folder).expect("writable");
    let said = |more: &[&str]| {
        let output = replay(&folder, more);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    };
    for (dtype, line) in [
        ("f32", "exact: 1 of 66 elements differ, first [2]: expected 3, got 2"),
        ("exact=s16", "exact: 1 of 132 elements differ, first [5]: expected 16448, got 16384"),
        ("u64", "exact: 1 of 33 elements differ, first [1]: expected 4629700418014806016, got"),
    ] {
        let (code, text) = said(&["--dtype", dtype]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(line), "{dtype}: {text}");
        assert!(text.contains("close: 64 elements as expected"), "{dtype}: {text}");
    }
    for (dtype, line) in [
        ("f8", "required one of u8, u16"),
        ("other=f32", "--dtype: required the name of an output: close, exact, actual other"),
    ] {
        let (code, text) = said(&["--dtype", dtype]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(line), "{dtype}: {text}");
    }
    std::fs::remove_dir_all(&folder).expect("removable");
    for (compare, line) in [
        (
            json!({ "dtype": "s32" }),
            "exact: 1 of 66 elements differ, first [2]: expected 1077936128",
        ),
        (json!({ "dtype": "f32" }), "exact: 1 of 66 elements differ, first [2]: expected 3, got 2"),
        (json!({ "dtype": "u32", "atol": 1 }), "required a type of floats beside rtol and atol"),
        (json!({ "dtype": "q4" }), "exact.compare.dtype: required one of u8, u16"),
    ] {
        wrong.write(&folder).expect("writable");
        let path = folder.join(BUNDLE_FILE);
        let mut json: Value =
            serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
        json["expected"]["exact"]["compare"] = compare;
        std::fs::write(&path, json.to_string()).expect("writable");
        let (_, text) = said(&[]);
        assert!(text.contains(line), "{text}");
        std::fs::remove_dir_all(&folder).expect("removable");
    }
    // Types that are written are read.
    for (name, compare) in [("s8", Compare::equal("s8")), ("u32", Compare::equal("u32"))] {
        let mut typed = bundle();
        typed.expected.get_mut("exact").expect("there").compare = compare.expect("a type");
        typed.write(&folder).expect("writable");
        assert_eq!(Bundle::read(&folder).expect("readable"), typed, "{name}");
        std::fs::remove_dir_all(&folder).expect("removable");
    }
}
