//! The costs of the contest's gated and grouped GEMMs on the emulated B200, by its counters, with
//! the plans that are made for them: bytes and products.

use fp4_formats::FloatType;
use fp4_formats::ScaleLayout::Blocked128x4;
use nvfp4::gemm::{Activation, GemmPlan};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{DUAL_CONTEST, GemmShape, GroupedShape, grouped_contest};
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::{BLOCKED, Case};
use nvfp4_tests::{DEVICES, emulated};
use ptx_emu::{LaunchReport, Schedule};

/// Bytes of rows of codes and scales in NVFP4.
fn blocks(rows: usize, k: usize) -> u64 {
    (rows * (k / 2 + k / 16)) as u64
}

/// Checks that at most 1.02 times the operands' bytes are read from memory, at most 1.1 times the
/// useful products are made, and results are written once. Checks the last launch, which is the
/// product.
fn check(reports: &[LaunchReport], plan: &GemmPlan, operands: u64, products: u64, stored: u64) {
    let counters = &reports.last().expect("a launch").counters;
    let what = format!("{plan}\n{:?}\n{:?}", counters.asynchronous, counters.tensor);
    let once = counters.global_unique_bytes_read;
    assert!(once >= operands && 100 * once <= 102 * operands, "{once} of {operands}: {what}");
    let made = counters.tensor.nibble;
    assert!(made >= products && 10 * made <= 11 * products, "{made} of {products}: {what}");
    assert_eq!(counters.global_unique_bytes_written, stored, "{what}");
}

/// Gate and up are `2 N` rows of weights for N columns of the result.
#[test]
fn dual_shapes_are_within_budget() {
    let (kernels, reports) = emulated(DEVICES[1], Schedule::Eager).observed();
    for GemmShape { m, n, k, l } in DUAL_CONTEST {
        let case = Case::new([m, n, k, l]).activations(BLOCKED).result(FloatType::F16).gated();
        let case = Case { layout: Blocked128x4, generator: Generator::ContestGemm, ..case };
        let result = case.activation(Activation::Silu).product(&kernels);
        let operands = blocks(m + 2 * n, k);
        let products = (m * 2 * n * k) as u64;
        let stored = (m * n * 2) as u64;
        check(&reports.take(), &result.plan, operands, products, stored);
    }
}

/// The useful products of a group are those of its tokens rounded up to the plan's tile.
#[test]
fn grouped_shapes_are_within_budget() {
    let kernels = emulated(DEVICES[1], Schedule::Eager);
    for GroupedShape { counts, n, k } in grouped_contest() {
        let mut case = GroupedCase::new(&counts, [n, k]);
        case.activations = BLOCKED;
        case.generator = Generator::ContestGemm;
        case.result = FloatType::F16.into();
        let result = case.run(&kernels);
        let [_, tile] = result.plan.tile.map(|size| size as usize);
        let tokens: usize = counts.iter().sum();
        let rounded: usize = counts.iter().map(|count| count.next_multiple_of(tile)).sum();
        let operands = blocks(tokens + counts.len() * n, k);
        let (products, stored) = ((rounded * n * k) as u64, (tokens * n * 2) as u64);
        check(&result.reports, &result.plan, operands, products, stored);
    }
}
