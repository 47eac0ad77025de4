//! Random programs whose races are known, under few schedules. `PTX_EMU_FUZZ_SECONDS=600 cargo test -p
//! ptx-emu-conformance --test orders` goes on for as long as it says, and `PTX_EMU_FUZZ_SEED=N` starts
//! elsewhere; `fuzz/run.sh orders` looks for programs that reach new code.

use ptx_emu_conformance::orders::Program;
use ptx_emu_core::Model;
use std::time::{Duration, Instant};

/// Programs of a run of the tests.
const PROGRAMS: u64 = 3000;
/// Seeds of the random schedule for each, and for each of a longer run.
const SEEDS: (u64, u64) = (4, 48);

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: required a number, actual `{text}`")))
}

#[test]
fn races_are_found_and_nothing_else() {
    let seconds = number("PTX_EMU_FUZZ_SECONDS").map(Duration::from_secs);
    let first = number("PTX_EMU_FUZZ_SEED").unwrap_or(0);
    let seeds = if seconds.is_some() { SEEDS.1 } else { SEEDS.0 };
    let begin = Instant::now();
    let goes_on = |count: u64| seconds.map_or(count < PROGRAMS, |most| begin.elapsed() < most);
    // Programs, those without a race by the promises of PTX, and on hardware.
    let (mut count, mut ordered, mut together) = (0, 0, 0);
    while goes_on(count) {
        let number = first.wrapping_add(count);
        let program = Program::from_seed(number);
        if let Err(failure) = program.check(number, seeds) {
            panic!("program {number}: {failure}");
        }
        count += 1;
        ordered += u64::from(!program.has_race(Model::Ptx));
        together += u64::from(!program.has_race(Model::Hardware));
    }
    println!("{count} programs, {ordered} without a race, {together} without one on hardware");
    assert!(ordered * 10 > count && together > ordered && together * 10 < count * 9);
}

/// The lanes of one load that are here reach one word in several runs, and a race is with those of the
/// first run alone.
#[test]
fn lanes_of_one_load_are_all_remembered() {
    let number = 1_116_768;
    let program = Program::from_seed(number);
    assert!(program.has_race(Model::Ptx));
    if let Err(failure) = program.check(number, SEEDS.1) {
        panic!("{failure}");
    }
}
