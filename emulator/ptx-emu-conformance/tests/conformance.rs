//! The conformance probes: well formed, accepted by ptxas, run by the emulator the
//! same way under every schedule, and in agreement with the recordings.

use ptx_emu_conformance::{
    Family, Outcome, Probe, RecordedProbe, Recording, check, check_probe, emulate, probes,
};
use ptx_emu_core::{Gpu, Module, Schedule};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The recordings of the checkout.
fn recordings() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/conformance"))
}

#[test]
fn probes_have_names_of_their_own_and_whole_outputs() {
    for &family in Family::ALL {
        let mut names = HashSet::new();
        let mut entries = HashSet::new();
        for probe in probes(family) {
            let what = format!("{family}: {}", probe.name);
            assert!(names.insert(probe.name.clone()), "{what}: name");
            assert!(entries.insert(probe.entry.clone()), "{what}: entry {}", probe.entry);
            assert_eq!(probe.output.len() % probe.element.bytes(), 0, "{what}: output");
            assert!(!probe.output.is_empty(), "{what}: output");
        }
        assert!(!names.is_empty(), "{family}: no probes");
        assert_eq!(family.name().parse(), Ok(family));
    }
    let error = "float".parse::<Family>().expect_err("no such family").to_string();
    assert!(error.starts_with("family: required one of integer, bits, "), "{error}");
}

#[test]
fn the_checksum_covers_what_determines_the_output() {
    let probe = probes(Family::Integer).swap_remove(0);
    let changes: [fn(&mut Probe); 6] = [
        |probe| probe.kernel.push(' '),
        |probe| probe.grid[1] += 1,
        |probe| probe.cluster = Some([2, 1, 1]),
        |probe| probe.dynamic_shared = 16,
        |probe| probe.inputs[0].bytes[3] ^= 1,
        |probe| probe.output[0] ^= 1,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = probe.clone();
        change(&mut changed);
        assert_ne!(changed.checksum(), probe.checksum(), "change {index}");
    }
    assert_eq!(probe.clone().checksum(), probe.checksum());
}

/// Families whose probes are instructions of one thread.
const ARITHMETIC: [Family; 9] = [
    Family::Integer,
    Family::Bits,
    Family::Single,
    Family::Double,
    Family::Half,
    Family::Approximate,
    Family::Convert,
    Family::Narrow,
    Family::Compare,
];

#[test]
fn the_emulator_runs_every_probe_the_same_way_under_every_schedule() {
    let mut failures = Vec::new();
    for &family in Family::ALL {
        for probe in probes(family) {
            let eager = match emulate(&probe, Schedule::Eager) {
                Ok(output) => output,
                Err(failure) => {
                    failures.push(format!("{family}: {}: {failure}", probe.name));
                    continue;
                }
            };
            // One warp's arithmetic does not depend on the order of warps.
            if ARITHMETIC.contains(&family) {
                continue;
            }
            for schedule in [Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)] {
                match emulate(&probe, schedule) {
                    Ok(output) if output == eager => {}
                    Ok(output) => {
                        let at = output.iter().zip(&eager).position(|(a, b)| a != b);
                        let name = &probe.name;
                        failures.push(format!("{family}: {name}: {schedule}: byte {at:?}"));
                    }
                    Err(failure) => {
                        failures.push(format!("{family}: {}: {schedule}: {failure}", probe.name));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// ptxas of `CUDA_HOME`, of the search path or in the usual folder.
fn ptxas() -> Option<PathBuf> {
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    home.into_iter()
        .chain(std::env::split_paths(&path))
        .chain([PathBuf::from("/usr/local/cuda/bin")])
        .map(|folder| folder.join("ptxas"))
        .find(|candidate| candidate.is_file())
}

#[test]
fn ptxas_accepts_every_probe() {
    let Some(ptxas) = ptxas() else {
        return skipped::test("no ptxas in CUDA_HOME or on PATH");
    };
    let folder = std::env::temp_dir().join(format!("ptx-emu-probes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    for &family in Family::ALL {
        let mut text = Probe::HEAD.to_owned();
        for probe in probes(family) {
            text.push_str(&probe.kernel);
            text.push('\n');
        }
        let file = folder.join(format!("{family}.ptx"));
        std::fs::write(&file, text).expect("writable");
        let run = Command::new(&ptxas)
            .args(["-arch", "sm_90a", "-o"])
            .arg(folder.join("out"))
            .arg(&file)
            .output()
            .expect("ptxas starts");
        let message = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{family}: {message}");
    }
    std::fs::remove_dir_all(&folder).expect("removable");
}

/// A probe as code for sm_80 loads on a GPU of compute capability 8.9, or lacks an instruction of a later target;
/// a selftest runs the former on the hardware.
#[test]
fn probes_for_another_target_load_or_lack_an_instruction() {
    let (mut loaded, mut lacking) = (0, 0);
    for &family in Family::ALL {
        for probe in probes(family) {
            let text = probe.text_for("7.4", "sm_80");
            match Module::load(&text, &Gpu::rtx4090()) {
                Ok(_) => loaded += 1,
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("actual sm_80 with PTX 7.4"), "{}: {text}", probe.name);
                    lacking += 1;
                }
            }
        }
    }
    assert!(loaded > 1000 && lacking > 0, "{loaded} load, {lacking} lack an instruction");
}

/// Recorded results of hardware are reproduced. Results that are not recorded yet are listed.
#[test]
fn golden_recordings_of_hardware_are_reproduced() {
    let mut failures = Vec::new();
    let mut compared = 0;
    for &family in Family::ALL {
        let recording = Recording::read(recordings(), family).expect("a whole recording");
        let report = check(family, recording.as_ref(), 2);
        for probe in &report.probes {
            match &probe.outcome {
                Outcome::NotRecorded => println!("{family}: {}: not recorded", probe.name),
                outcome if outcome.is_good() => compared += 1,
                Outcome::Stale(stale) => {
                    failures.push(format!("{family}: {}: {stale}", probe.name))
                }
                outcome => failures.push(format!("{family}: {}: {outcome:x?}", probe.name)),
            }
        }
        failures.extend(report.unknown.iter().map(|name| format!("{family}: unknown {name}")));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(compared > 1000, "only {compared} probes have a recording");
}

/// A recording of `probe` whose output is the emulator's.
fn recorded(probe: &Probe) -> RecordedProbe {
    RecordedProbe {
        name: probe.name.clone(),
        checksum: probe.checksum(),
        output: emulate(probe, Schedule::Eager).expect("a probe that runs"),
    }
}

#[test]
fn a_recording_that_differs_or_is_stale_is_found() {
    let probe = probes(Family::Integer).swap_remove(0);
    let good = recorded(&probe);
    assert_eq!(check_probe(&probe, Some(&good), 1), Outcome::Equal);
    let missing = check_probe(&probe, None, 1);
    assert_eq!(missing, Outcome::NotRecorded);
    assert!(missing.is_good());

    let mut wrong = good.clone();
    wrong.output[9] ^= 1;
    let outcome = check_probe(&probe, Some(&wrong), 1);
    assert!(!outcome.is_good());
    let Outcome::Different { count: 1, first } = outcome else { panic!("{outcome:?}") };
    assert_eq!(first[0].index, 9 / probe.element.bytes());

    let mut changed = probe.clone();
    changed.inputs[0].bytes[0] ^= 1;
    let outcome = check_probe(&changed, Some(&good), 1);
    assert!(!outcome.is_good());
    let Outcome::Stale(stale) = outcome else { panic!("{outcome:?}") };
    assert_eq!(stale.field, "checksum of text, launch and inputs");
    assert_eq!(stale.required, format!("{:016x}", changed.checksum()));

    let mut short = good;
    short.output.pop();
    let Outcome::Stale(stale) = check_probe(&probe, Some(&short), 1) else { panic!("not stale") };
    let length = probe.output.len();
    let expected = format!(
        "stale recording: length of the output: required {length} bytes, actual {} bytes",
        length - 1
    );
    assert_eq!(stale.to_string(), expected);
}
