//! sm_100a's product begins before the kernels that lay out its activations have ended, or before
//! another product has.

use fp4_formats::gemm::sm100::CONFIGS;
use fp4_formats::layout::ScaleLayout::{Blocked128x4, Linear};
use nvfp4_tests::SCHEDULES;
use nvfp4_tests::gemm::tcgen05::{Product, config, without, without_each};
use ptx_emu::Schedule;

/// A product whose activations need `codes` and scales laid out, or are of few tokens and come from
/// a kernel before; fewer K steps than stages, or more.
fn product(name: &str, codes: bool, swapped: bool, steps: u32, schedule: Schedule) -> Product {
    let config = config(name);
    let k = config.step() * steps + if codes { 48 } else { 64 };
    let sizes = [config.rows() + 9, config.cluster_columns() + 16, k, 2];
    let mut product = Product::new(config, sizes).layouts([Linear, Blocked128x4]).full_range();
    (product.swapped, product.schedule) = (swapped | config.only_swapped(), schedule);
    product.late = config.loads_tokens();
    product
}

/// Weights as either operand, pairs, splits, shares; static and dynamic.
#[test]
fn the_product_waits_for_its_activations() {
    let mut seed = 0;
    for name in [
        "gemm_sm100_nvfp4_128x64",
        "gemm_sm100_nvfp4_256x64",
        "gemm_sm100_nvfp4_128x128_split4",
        "gemm_sm100_nvfp4_256x64_split2",
        "gemm_sm100_nvfp4_128x256_multicast2",
        "gemm_sm100_nvfp4_256x128_multicast2",
    ] {
        for swapped in [false, true] {
            for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(seed)] {
                let steps = [4, 13][seed as usize % 2];
                let mut product = product(name, seed % 3 == 0, swapped, steps, schedule);
                product.dynamic = seed % 4 > 1;
                product.case.seed = seed;
                product.check();
                seed += 1;
            }
        }
    }
}

/// A product behind a product, which writes the same result once the first one has ended.
#[test]
fn products_follow_each_other() {
    for name in ["gemm_sm100_nvfp4_128x64", "gemm_sm100_nvfp4_256x64_split4"] {
        for schedule in SCHEDULES {
            for dynamic in [false, true] {
                let mut product = product(name, false, dynamic, 5, schedule);
                (product.dynamic, product.launches) = (dynamic, 3);
                product.check();
            }
        }
    }
}

/// A product without the wait is found, because its activations are not there yet.
#[test]
fn a_product_that_does_not_wait_is_found() {
    let name = "gemm_sm100_nvfp4_128x64";
    let hasty = without(name, "griddepcontrol.wait;", "");
    for swapped in [false, true] {
        let found = [Schedule::Eager]
            .into_iter()
            .chain((0..7).map(Schedule::Random))
            .filter(|&schedule| {
                product(name, true, swapped, 3, schedule).run(&hasty).is_err_and(|error| {
                    let text = error.to_string();
                    assert!(text.contains("uninitialised"), "{text}");
                    true
                })
            })
            .count();
        assert!(found > 3, "{found} of 8 schedules");
    }
}

/// Every kernel for few tokens waits for their scales, in either layout and with any pieces, and
/// for codes that it loads.
#[test]
fn few_tokens_are_waited_for() {
    let configs = CONFIGS.iter().filter(|config| config.loads_tokens());
    let mut i = 0;
    for config in configs {
        for (rest, layout) in [(48, Linear), (64, Blocked128x4), (0, Linear), (48, Blocked128x4)] {
            let block = config.format.block();
            let k = 6 * config.k_parts() * config.step() + rest / block * block;
            let sizes = [config.columns + 3, config.rows() + 8, k, 2];
            let mut product = Product::new(config, sizes).layouts([layout, Blocked128x4]);
            product = product.full_range();
            product.schedule = SCHEDULES[i % 5];
            (product.dynamic, product.late) = (i / 2 % 2 == 1, true);
            product.case.seed = i as u64;
            product.check();
            i += 1;
        }
    }
}

/// The lane that copies codes of few tokens and the warp that loads scales wait each for itself: without
/// one of these waits activations that are not there yet are noticed under some schedules.
#[test]
fn few_tokens_that_one_role_does_not_wait_for_are_found() {
    let name = "gemm_sm100_nvfp4_128x8";
    let mut found = Vec::new();
    for hasty in without_each(name, "griddepcontrol.wait;") {
        let schedules = [Schedule::Eager].into_iter().chain((0..31).map(Schedule::Random));
        let errors = schedules.filter_map(|schedule| {
            product(name, false, true, 3, schedule).run(&hasty).err().map(|e| e.to_string())
        });
        let errors: Vec<String> = errors.collect();
        assert!(errors.iter().all(|text| text.contains("uninitialised")), "{errors:?}");
        found.push(errors.len());
    }
    println!("found under {found:?} of 32 schedules");
    // The storing warps read nothing that a kernel before writes here.
    found.sort_unstable();
    assert!(found[0] == 0 && found[1..].iter().all(|&count| count > 3), "{found:?}");
}
