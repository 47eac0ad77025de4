//! Programs of a few warps whose races are known: the emulator must find those under every schedule, and
//! no others, and runs without a finding must give the same values.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_emu_conformance::orders::Program;

/// Seeds of the random schedule beside `eager` and `lazy`.
const SEEDS: u64 = 48;

fuzz_target!(|input: &[u8]| {
    if let Err(failure) = Program::from_bytes(input).check(0, SEEDS) {
        panic!("{failure}");
    }
});
