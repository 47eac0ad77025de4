//! Loading and running mutated programs never panics and always ends.
//!
//! Real PTX (the samples of `tests/data/ptx`, the conformance probes, the kernels if they
//! are built) is changed by bytes, tokens and instructions, then parsed, loaded and run
//! for a few thousand instructions. By default this takes a few seconds;
//! `PTX_EMU_FUZZ_SECONDS=600 cargo test -p ptx-emu --test machine_fuzz` goes on for as
//! long as it says, and `PTX_EMU_FUZZ_SEED=N` starts elsewhere. A text that fails is kept
//! in the folder that the message names.

mod fuzz;

use fuzz::corpus::{Program, corpus};
use fuzz::mutate::{Random, mutate};
use ptx_emu_conformance::Probe;
use ptx_emu_core::{Checks, GlobalMemory, Gpu, Launch, Module, Schedule};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest time for one text: loading, and running a few thousand instructions.
const LONGEST: Duration = Duration::from_secs(60);
const DEFAULT_SECONDS: u64 = 4;
/// Warp instructions of a launch.
const LIMIT: u64 = 5000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: required a number, actual `{text}`")))
}

/// Loads a text and runs its kernels. Whether they succeed does not matter.
fn attempt(text: &str, probe: Option<&Probe>, random: &mut Random) {
    let gpu = if text.contains("sm_100") { Gpu::b200() } else { Gpu::h200() };
    let Ok(module) = Module::load(text, &gpu) else {
        return;
    };
    let schedule = match random.below(3) {
        0 => Schedule::Eager,
        1 => Schedule::Lazy,
        _ => Schedule::Random(random.next()),
    };
    let kernels: Vec<_> = module.entries().take(3).cloned().collect();
    for kernel in kernels {
        let mut memory = GlobalMemory::new();
        let buffers = probe.map_or_else(|| vec![&[1; 8192][..]], Probe::buffers);
        let addresses: Result<Vec<u64>, _> =
            buffers.iter().map(|bytes| memory.alloc_from("buffer", bytes)).collect();
        let Ok(addresses) = addresses else { return };
        let params = probe.and_then(|probe| probe.params(&addresses).ok());
        let params = params.filter(|params| params.len() == kernel.param_bytes as usize);
        let params = params.unwrap_or_else(|| {
            let words = addresses.iter().flat_map(|at| at.to_le_bytes());
            words
                .collect::<Vec<_>>()
                .into_iter()
                .cycle()
                .take(kernel.param_bytes as usize)
                .collect()
        });
        let block = kernel.reqntid.unwrap_or(probe.map_or([64, 1, 1], |probe| probe.block));
        let _ = module.launch(
            &mut memory,
            &Launch {
                entry: &kernel.name,
                grid: probe.map_or([2, 1, 1], |probe| probe.grid),
                block,
                cluster: probe.and_then(|probe| probe.cluster),
                dynamic_shared: 512,
                params: &params,
                schedule,
                threads: Some(1),
                instruction_limit: Some(LIMIT),
                checks: Checks::default(),
            },
        );
    }
}

/// The text that is being tried, in a file while it is.
struct Attempted<'a> {
    file: &'a Path,
}

impl Attempted<'_> {
    fn run(&self, program: &Program, text: &str, seed: u64) -> Result<(), String> {
        let mut random = Random(seed);
        let probe = program.probe.as_ref();
        let ended = catch_unwind(AssertUnwindSafe(|| attempt(text, probe, &mut random)));
        ended.map_err(|_| {
            let _ = std::fs::write(self.file, text);
            format!("panic at {}, seed {seed}: see {}", program.name, self.file.display())
        })
    }
}

#[test]
fn mutated_programs_load_and_run_without_panicking() {
    let seconds = number("PTX_EMU_FUZZ_SECONDS").unwrap_or(DEFAULT_SECONDS);
    let first = number("PTX_EMU_FUZZ_SEED").unwrap_or(1);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-failure.ptx");
    let corpus = corpus();
    assert!(corpus.len() > 1000, "{} programs", corpus.len());
    let (started, results) = channel();
    let kept = file.clone();
    let end = Instant::now() + Duration::from_secs(seconds);
    let fuzzing = std::thread::spawn(move || {
        let attempted = Attempted { file: &kept };
        let mut failures = Vec::new();
        let mut seed = first;
        while Instant::now() < end && failures.is_empty() {
            let mut random = Random(seed);
            let program = &corpus[random.below(corpus.len())];
            let text = mutate(program, &corpus, &mut random);
            if started.send(text.clone()).is_err() {
                break;
            }
            failures.extend(attempted.run(program, &text, seed).err());
            seed += 1;
        }
        (failures, seed - first)
    });
    let mut last = String::new();
    loop {
        match results.recv_timeout(LONGEST) {
            Ok(text) => last = text,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                std::fs::write(&file, last).expect("writable");
                panic!("no end within {} s: see {}", LONGEST.as_secs(), file.display());
            }
        }
    }
    let (failures, count) = fuzzing.join().expect("attempts are caught");
    println!("{count} programs in {seconds} s");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 0, "no time for one program");
}
