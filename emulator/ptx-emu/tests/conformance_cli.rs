//! `ptx-emu conformance record`.

use ptx_emu_conformance::{Family, Recording, probes};
use std::process::Command;

/// A program that behaves like a worker on a device, except that every fifth probe is
/// refused, faults or never ends.
#[cfg(unix)]
const WORKER: &str = r#"#!/bin/sh
echo '{"Ready":{"name":"test","arch":"sm_90a","driver":"none"}}'
while read family index; do
    case $((index % 15)) in
        4) echo '{"Refused":{"reason":"refused"}}' ;;
        9) echo '{"Fault":{"reason":"fault"}}'; exit 1 ;;
        14) exec sleep 100 ;;
        *) printf '{"Output":{"bytes":4}}\nabcd' ;;
    esac
done
"#;

/// A probe that faults or hangs loses its own output and no other.
#[cfg(unix)]
#[test]
fn recording_survives_faults_and_hangs() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = std::env::temp_dir().join(format!("ptx-emu-worker-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let worker = folder.join("worker");
    std::fs::write(&worker, WORKER).expect("writable");
    std::fs::set_permissions(&worker, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let run = Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
        .args(["conformance", "record", "--family", "narrow", "--limit", "1", "--jobs", "3"])
        .arg("--out")
        .arg(&folder)
        .arg("--worker")
        .arg(&worker)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&run.stderr));
    let recording = Recording::read(&folder, Family::Narrow).expect("whole").expect("there");
    let lost = |reason: &str| text.matches(reason).count();
    let all = probes(Family::Narrow);
    let expected = |which: usize| (0..all.len()).filter(|index| index % 15 == which).count();
    assert_eq!(lost("left out: refused"), expected(4), "{text}");
    assert_eq!(lost("left out: fault"), expected(9), "{text}");
    assert_eq!(lost("left out: no answer within 1 s"), expected(14), "{text}");
    assert_eq!(recording.probes.len(), (0..all.len()).filter(|index| index % 5 != 4).count());
    assert!(recording.probes.iter().all(|probe| probe.output == b"abcd"));
    std::fs::remove_dir_all(&folder).expect("removable");
}
