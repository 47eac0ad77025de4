//! Products on the emulated machines of sm_120f with the plans that are made for them: what is read, what is multiplied,
//! and the bound of the time that follows, as a multiple of the larger of the times that memory and tensor cores need.

use fp4_formats::FloatType;
use nvfp4::gemm::{GemmOverrides, GemmPlan};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{GEMM_CONTEST, GemmShape, GroupedShape, grouped_contest};
use nvfp4_tests::bounds::{Needed, Spread, bound, machines};
use nvfp4_tests::emulated_on;
use nvfp4_tests::gemm::BLOCKED;
use nvfp4_tests::gemm::grouped::GroupedCase;
use ptx_emu::{Schedule, TensorCount};

use super::budgets::{blocks, run};

/// Bytes and products that a product with an f16 result needs.
fn needed(GemmShape { m, n, k, .. }: GemmShape) -> Needed {
    let (operands, result) = (blocks(m, k) + blocks(n, k), (m * n * 2) as u64);
    Needed { operands, result, products: (m * n * k) as u64 }
}

/// Says how a plan spreads `tiles`.
fn spread(plan: &GemmPlan, tiles: usize) -> Spread {
    // Only sums that CTAs give to others are in the workspace: they share the tiles that are left over.
    match plan.workspace_bytes {
        0 => Spread::Tiles(tiles as u64),
        _ => Spread::Even,
    }
}

/// Whole contest problems: memory is read once, no product is for nothing, and the bound is near what is needed.
#[test]
fn contest_shapes_are_within_budget_on_sm_120f() {
    for gpu in machines() {
        let kernels = emulated_on(gpu.clone(), Schedule::Eager);
        for shape in GEMM_CONTEST {
            let result = run(&kernels, shape, GemmOverrides::default());
            let (plan, counters) = (&result.plan, result.counters());
            let what = format!("{}: {plan}", gpu.name);
            let operands = blocks(shape.m, shape.k) + blocks(shape.n, shape.k);
            // Sums that CTAs give to others are all that is in the workspace.
            let given = plan.workspace_bytes as u64;
            let once = counters.global_unique_bytes_read;
            let of = format!("{once} of {operands} and {given} of sums, {what}");
            assert!(once >= operands, "{of}");
            assert!(50 * once.saturating_sub(given) <= 51 * operands, "{of}");
            let useful = (shape.m * shape.n * shape.k) as u64;
            let TensorCount { nibble, half, .. } = counters.tensor;
            assert_eq!((nibble, half), (useful, 0), "{what}");
            let [rows, tokens] = plan.tile.map(|size| size as usize);
            let tiles = shape.n.div_ceil(rows) * shape.m.div_ceil(tokens);
            let bound = bound(&result.reports, &gpu, needed(shape), spread(plan, tiles));
            assert!(bound.over <= 1.25, "{bound:?}, {what}");
        }
    }
}

/// Decoding: one token, for which CTAs share tiles, and 16 and 64. Partial sums of tokens that do not exist are not sent, so
/// that little is read beside the operands of one: per mille of these, with those of the machine that has most CTAs.
#[test]
fn decoding_is_within_budget_on_sm_120f() {
    for (gpu, most) in machines().into_iter().zip([12, 12, 7]) {
        let kernels = emulated_on(gpu.clone(), Schedule::Eager);
        for (n, k) in [(4096, 7168), (7168, 4096)] {
            for (m, limit) in [(1, 1.05), (16, 1.05), (64, 1.15)] {
                let shape = GemmShape::of(m, n, k);
                let result = run(&kernels, shape, GemmOverrides::default());
                let what = format!("{}: {}", gpu.name, result.plan);
                let operands = blocks(m, k) + blocks(n, k);
                let once = result.counters().global_unique_bytes_read;
                let of = format!("{once} of {operands}, {what}");
                assert!(once >= operands, "{of}");
                assert!(m > 1 || 1000 * once <= (1000 + most) * operands, "{of}");
                let [rows, tokens] = result.plan.tile.map(|size| size as usize);
                let spread = spread(&result.plan, n.div_ceil(rows) * m.div_ceil(tokens));
                let bound = bound(&result.reports, &gpu, needed(shape), spread);
                assert!(bound.over <= limit, "{bound:?}, {what}");
            }
        }
    }
}

/// The grouped contest's problems: those of two groups on all machines, each of the others, which take long, on one.
/// Operands are read from memory once, beside sums that CTAs give to others.
#[test]
fn grouped_shapes_are_within_budget_on_sm_120f() {
    let mut over = Vec::new();
    for (machine, gpu) in machines().into_iter().enumerate() {
        let kernels = emulated_on(gpu.clone(), Schedule::Eager);
        let all = grouped_contest().into_iter().enumerate();
        let shapes = all.filter(|(at, shape)| *at == machine || shape.counts.len() == 2);
        for (_, GroupedShape { counts, n, k }) in shapes {
            let mut case = GroupedCase::new(&counts, [n, k]);
            case.activations = BLOCKED;
            case.generator = Generator::ContestGemm;
            case.result = FloatType::F16.into();
            let result = case.run(&kernels);
            let counters = &result.reports.last().expect("a launch").counters;
            let all: usize = counts.iter().sum();
            let needed = Needed {
                operands: blocks(all + counts.len() * n, k),
                result: (all * n * 2) as u64,
                products: (all * n * k) as u64,
            };
            // The kernel decides whether CTAs share tiles, whose sums are all that is written beside the result.
            let sums = counters.global_unique_bytes_written - needed.result;
            let [rows, tokens] = result.plan.tile.map(|size| size as usize);
            let of_tokens: usize = counts.iter().map(|count| count.div_ceil(tokens)).sum();
            let spread = match sums {
                0 => Spread::Tiles((n.div_ceil(rows) * of_tokens) as u64),
                _ => Spread::Even,
            };
            let bound = bound(&result.reports, &gpu, needed, spread);
            let what = format!("{}: {bound:?}, {}", gpu.name, result.plan);
            let Needed { operands, .. } = needed;
            let once = counters.global_unique_bytes_read;
            let of = format!("{once} of {operands} and {sums} of sums, {what}");
            assert!(once >= operands && 50 * once.saturating_sub(sums) <= 51 * operands, "{of}");
            if bound.over > 1.3 {
                over.push(what);
            }
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}
