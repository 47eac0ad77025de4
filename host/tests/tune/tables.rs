//! Text, files and merging.

use fp4_formats::gemm::Split;
use nvfp4::error::Error;
use nvfp4::tune::{self, DeviceKey, MAX_BYTES, Table, TuneError, TuneProblem};
use proptest::prelude::*;

use super::{grouped, key, measured, nvfp4, tables};
use crate::support::Folder;

#[test]
fn the_text_of_a_table() {
    let mut table = Table::new(key());
    assert!(Table::parse(&table.text(), "t").expect("valid").is_empty());
    table.insert(nvfp4(128, 7168, 2048), measured("b", Split::Cluster(2), 15_300));
    table.insert(nvfp4(8, 7168, 2048), measured("a", Split::Cluster(4), 900));
    table.insert(grouped(nvfp4(64, 7168, 2048), 32, false), measured("c", Split::StreamK, 800));
    let slots = TuneProblem { gated: true, ..grouped(nvfp4(20, 7168, 2048), 4, true) };
    table.insert(slots, measured("d", Split::None, 700));
    let expected = r#"{
  "version": 4,
  "device": {
    "name": "NVIDIA \"H200\"",
    "compute_capability": "9.0",
    "sms": 132,
    "driver": "13.0 (580.65.06)",
    "kernels": "0123456789abcdef"
  },
  "entries": [
    {"format":"nvfp4","activations":"fp4","scales":"linear","output":"f16","n":7168,"k":2048,"l":1,"m":8,"kernel":"a","split":"cluster:4","median_ns":900},
    {"format":"nvfp4","activations":"fp4","scales":"linear","output":"f16","n":7168,"k":2048,"l":1,"m":128,"kernel":"b","split":"cluster:2","median_ns":15300},
    {"format":"nvfp4","activations":"fp4","scales":"linear","output":"f16","groups":32,"n":7168,"k":2048,"l":1,"m":64,"kernel":"c","split":"stream-k","median_ns":800},
    {"format":"nvfp4","activations":"fp4","scales":"linear","output":"f16","gated":true,"groups":4,"slots":true,"n":7168,"k":2048,"l":4,"m":20,"kernel":"d","split":"none","median_ns":700}
  ]
}
"#;
    assert_eq!(table.text(), expected);
}

proptest! {
    #[test]
    fn text_round_trips(table in tables()) {
        let text = table.text();
        let again = Table::parse(&text, "t").expect("valid");
        prop_assert_eq!(&again, &table);
        prop_assert_eq!(&again.text(), &text);
        let lines = text.lines().filter(|line| line.contains("median_ns")).count();
        prop_assert_eq!(lines, table.len());
    }

    /// The newer entry wins: after merging, every problem has it, or else the older one, and there
    /// are no others.
    #[test]
    fn the_newer_entry_wins(older in tables(), newer in tables()) {
        let mut merged = older.clone();
        merged.merge(newer.clone(), "newer").expect("of one device");
        for (problem, measured) in merged.entries() {
            let expected = newer.get(problem).or_else(|| older.get(problem));
            prop_assert_eq!(Some(measured), expected);
        }
        for (problem, _) in older.entries().chain(newer.entries()) {
            prop_assert!(merged.get(problem).is_some());
        }
        let mut again = merged.clone();
        again.merge(newer, "newer").expect("of one device");
        prop_assert_eq!(again, merged);
    }
}

#[test]
fn tables_of_two_devices_do_not_merge() {
    let mut table = Table::new(key());
    let mut other = Table::new(DeviceKey { sms: 114, ..key() });
    other.insert(nvfp4(1, 1, 16), measured("a", Split::None, 1));
    let error = table.merge(other, "other.json").expect_err("another device");
    let text = error.to_string();
    assert!(
        text.contains("other.json was measured with number of SMs `114`, here it is `132`"),
        "{text}"
    );
    assert!(table.is_empty());
}

#[test]
fn files_are_written_whole_and_read_back() {
    let folder = Folder::new("tune-files");
    let path = folder.file("a/b/tune.json");
    assert!(tune::read(&path).expect("no file is no error").is_none());
    let mut table = tune::open(&path, &key()).expect("an empty one");
    assert!(table.is_empty());
    for n in 1..=3 {
        table.insert(nvfp4(1, n, 16), measured("a", Split::None, n as u64));
        tune::write(&path, &table).expect("written");
        assert_eq!(tune::open(&path, &key()).expect("there"), table);
    }
    let names: Vec<_> = std::fs::read_dir(folder.file("a/b")).expect("a folder").collect();
    assert_eq!(names.len(), 1, "no temporary file stays: {names:?}");
}

#[test]
fn what_is_no_table_is_said_and_left_alone() {
    let folder = Folder::new("tune-no-table");
    let path = folder.file("tune.json");
    let refused = |bytes: &[u8], message: &str| {
        std::fs::write(&path, bytes).expect("written");
        let error = tune::open(&path, &key()).expect_err(message).to_string();
        assert!(error.contains(message) && error.contains("tune.json"), "{error:?}: {message:?}");
        assert_eq!(std::fs::read(&path).expect("there"), bytes);
    };
    refused(b"", "is no tuning table: EOF");
    refused(b"\xff\xfe{}", "cannot read the tuning table");
    let driver = DeviceKey { driver: "13.1".into(), ..key() };
    refused(Table::new(driver).text().as_bytes(), "was measured with driver `13.1`, here it is");
    let large = vec![b' '; MAX_BYTES as usize + 1];
    refused(&large, "more than 16777216 bytes");

    let error = tune::read(folder.path()).expect_err("a folder");
    assert!(matches!(&error, TuneError::Read { .. }), "{error}");
    let error = tune::write(&folder.file("tune.json/x"), &Table::new(key()));
    assert!(matches!(error, Err(Error::Io { .. })), "{error:?}");
}

/// Several runs add to one table at once, and no entry is lost.
#[test]
fn runs_add_at_once() {
    const RUNS: usize = 16;
    let folder = Folder::new("tune-at-once");
    let path = folder.file("tables/tune.json");
    std::thread::scope(|scope| {
        for n in 1..=RUNS {
            let entry = (nvfp4(1, n, 16), measured("a", Split::None, 10));
            let path = &path;
            scope.spawn(move || tune::add(path, &key(), entry, false).expect("added"));
        }
    });
    assert_eq!(tune::open(&path, &key()).expect("a table").len(), RUNS);
}

/// Runs add to the table: measurements of two come together; a table that does not fit is only
/// replaced if asked for.
#[test]
fn runs_add_to_the_table() {
    let folder = Folder::new("tune-add");
    let path = folder.file("tune.json");
    let add = |device: &DeviceKey, n: usize, ns: u64, replace: bool| {
        tune::add(&path, device, (nvfp4(1, n, 16), measured("a", Split::None, ns)), replace)
    };
    assert_eq!(add(&key(), 1, 10, false).expect("a new one"), 1);
    assert_eq!(add(&key(), 2, 20, false).expect("added"), 2);
    assert_eq!(add(&key(), 1, 11, false).expect("measured again"), 2);
    let table = tune::open(&path, &key()).expect("there");
    assert_eq!(table.get(&nvfp4(1, 1, 16)), Some(&measured("a", Split::None, 11)));
    assert_eq!(table.get(&nvfp4(1, 2, 16)), Some(&measured("a", Split::None, 20)));

    let before = std::fs::read(&path).expect("there");
    let rebuilt = DeviceKey { kernels: "0".into(), ..key() };
    let error = add(&rebuilt, 3, 30, false).expect_err("other kernels");
    assert!(matches!(&error, Error::Tune(TuneError::Elsewhere { .. })), "{error}");
    assert_eq!(error.exit_code(), 2);
    assert_eq!(std::fs::read(&path).expect("there"), before);
    assert_eq!(add(&rebuilt, 3, 30, true).expect("replaced"), 1);
    assert_eq!(tune::open(&path, &rebuilt).expect("there").len(), 1);
    std::fs::write(&path, "{").expect("written");
    add(&rebuilt, 3, 30, false).expect_err("damaged");
    assert_eq!(std::fs::read(&path).expect("there"), b"{");
    assert_eq!(add(&rebuilt, 3, 30, true).expect("replaced"), 1);
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_without_waiting() {
    let folder = Folder::new("tune-pipe");
    let path = folder.file("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success());
    let error = tune::read(&path).expect_err("a pipe").to_string();
    assert!(error.contains("not a regular file"), "{error}");
}
