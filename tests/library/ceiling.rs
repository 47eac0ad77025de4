//! The kernel that only reads, on the emulated machines: each word once, and all of them.

use fp4_formats::Arch;
use fp4_formats::ceiling::{LOADS_IN_FLIGHT, NAME, ReadParams, SENTINEL, THREADS};
use fp4_formats::params;
use nvfp4_tests::SCHEDULES;
use ptx_emu::{Checks, GlobalMemory, Launch};

const CTAS: u32 = 2;

#[test]
fn every_word_is_read_once() {
    let round = (CTAS * THREADS) as usize;
    for arch in [Arch::Sm90a, Arch::Sm100a] {
        for (at, words) in [1, 300, round * LOADS_IN_FLIGHT, round * 19 + 5].into_iter().enumerate()
        {
            // One thread alone finds the sentinel, in its last word.
            let mut data = vec![0; words * 16];
            data[words * 16 - 4..].copy_from_slice(&SENTINEL.to_le_bytes());
            let mut memory = GlobalMemory::new();
            let address = memory.alloc_from("data", &data).expect("room");
            let out = memory.alloc_from("out", &[0; 4]).expect("room");
            let bytes = data.len() as u64;
            let params = ReadParams { data: address, bytes, out };
            let launch = Launch {
                entry: NAME,
                grid: [CTAS, 1, 1],
                block: [THREADS, 1, 1],
                cluster: None,
                dynamic_shared: 0,
                params: params::bytes(&params),
                schedule: SCHEDULES[1 + at],
                threads: None,
                instruction_limit: None,
                checks: Checks::default(),
            };
            let report = nvfp4_tests::module(arch, NAME).launch(&mut memory, &launch);
            let counters = report.unwrap_or_else(|e| panic!("{arch}, {words} words: {e}")).counters;
            assert_eq!(counters.global.bytes_read, bytes, "{arch}, {words} words");
            assert_eq!(
                memory.read(out, 4).expect("there"),
                SENTINEL.to_le_bytes(),
                "{arch} {words}"
            );
        }
    }
}
