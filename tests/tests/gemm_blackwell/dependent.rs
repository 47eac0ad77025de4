//! The product begins before the kernels that lay out its activations have ended, or before
//! another product has.

use crate::case::{Case, config};
use crate::mutated::without;
use crate::operand::Scales;
use fp4_formats::gemm::blackwell::prepare::{CODES_NAME, SCALES_NAME};
use fp4_formats::layout::ScaleLayout::{Blocked128x4, Linear};
use ptx_emu::Schedule;

/// A product whose activations need `codes` and scales laid out; fewer K steps than stages,
/// or more.
fn case(name: &str, codes: bool, swapped: bool, steps: u32, schedule: Schedule) -> Case {
    let config = config(name);
    let k = config.step() * steps + if codes { 48 } else { 64 };
    let mut case = Case::new(config, [config.rows() + 9, config.cluster_columns() + 16, k, 2]);
    case.layouts = [Linear, Blocked128x4];
    case.scales = Scales::FullRange;
    (case.swapped, case.schedule) = (swapped, schedule);
    case
}

/// Weights as either operand, pairs, splits, shares; static and dynamic.
#[test]
fn the_product_waits_for_its_activations() {
    let mut seed = 0;
    for name in [
        "gemm_nvfp4_128x64",
        "gemm_nvfp4_256x128",
        "gemm_nvfp4_128x128_split4",
        "gemm_nvfp4_256x64_split2",
        "gemm_nvfp4_128x256_share2",
        "gemm_nvfp4_256x128_share2",
    ] {
        for swapped in [false, true] {
            for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(0)] {
                let steps = [4, 13][seed as usize % 2];
                let mut case = case(name, seed % 3 == 0, swapped, steps, schedule);
                if let Schedule::Random(random) = &mut case.schedule {
                    *random = seed;
                }
                case.dynamic = seed % 4 > 1;
                case.seed = seed;
                case.check();
                seed += 1;
            }
        }
    }
}

/// A product behind a product, which writes the same result once the first one has ended.
#[test]
fn products_follow_each_other() {
    for (seed, name) in [(1, "gemm_nvfp4_128x128"), (2, "gemm_nvfp4_256x64_split4")] {
        for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(seed)] {
            for dynamic in [false, true] {
                let mut case = case(name, false, dynamic, 5, schedule);
                (case.dynamic, case.launches) = (dynamic, 3);
                case.check();
            }
        }
    }
}

/// Without the wait, activations that are not there yet are noticed.
#[test]
fn a_product_that_does_not_wait_is_found() {
    let name = "gemm_nvfp4_128x64";
    let hasty = without(&[name, CODES_NAME, SCALES_NAME], "griddepcontrol.wait;", "");
    for swapped in [false, true] {
        let found = [Schedule::Eager]
            .into_iter()
            .chain((0..7).map(Schedule::Random))
            .filter(|&schedule| {
                let case = case(name, true, swapped, 3, schedule);
                let outcome = case.run(&|entry| hasty.module(entry));
                outcome.is_err_and(|error| {
                    let text = error.to_string();
                    assert!(text.contains("uninitialised"), "{text}");
                    true
                })
            })
            .count();
        assert!(found > 3, "{found} of 8 schedules");
    }
}
