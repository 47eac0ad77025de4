//! Plans over the shape tables: every shape has a kernel that takes it, and errors say why not.

use std::collections::BTreeSet;

use fp4_formats::gemm::{Operands, sm80};
use fp4_formats::gemv::{CONFIGS, MAX_WARPS};
use fp4_formats::{Arch, HalfType, ScaleLayout, WARP};
use nvfp4::device::{DeviceProperties, ResidentClusters};
use nvfp4::gemm::{self, ActivationKind, GemmOverrides};
use nvfp4::gemv::{self, GemvOverrides, GemvPlan};
use nvfp4::plan::gemv::MAX_ROWS;
use nvfp4::quantize::Format;
use nvfp4::shape::GemmShape;
use nvfp4_lab::shape::{GEMV_CONTEST, GEMV_CORRECTNESS, GemvShape, gemv_ragged};
use proptest::prelude::*;

const H200: DeviceProperties = DeviceProperties {
    sms: 132,
    clusters: ResidentClusters::of_sms(132),
    l2_bytes: 50 << 20,
    shared_per_block: 227 << 10,
};

fn plan(shape: GemvShape, layout: ScaleLayout, arch: Arch) -> GemvPlan {
    let plan = gemv::plan(shape, layout, arch, H200, &GemvOverrides::default());
    plan.unwrap_or_else(|error| panic!("{shape} {layout} {arch}: {error}"))
}

/// Checks a plan for `shape`.
fn check(shape: GemvShape, layout: ScaleLayout, arch: Arch) {
    let plan = plan(shape, layout, arch);
    let what = format!("{shape} {layout} {arch}: {plan}");
    let config = CONFIGS.iter().find(|c| c.name == plan.kernel).expect("a kernel of the table");
    assert_eq!(config.scale_layout, layout, "{what}");
    assert!(config.takes_k(shape.k as u32), "{what}");
    assert_eq!(plan.load_bytes == 16, shape.k.is_multiple_of(32), "{what}");
    assert!(plan.panel <= plan.threads && plan.threads <= MAX_WARPS * WARP, "{what}");
    assert!(plan.dynamic_shared <= MAX_ROWS * MAX_WARPS * 4, "{what}");
    assert_eq!(plan.grid[0] * plan.share + plan.rest, config.row_groups(shape.m as u32), "{what}");
    assert!(plan.grid[0] >= 1 && plan.share >= 1, "{what}");
    assert_eq!(plan.grid[1] as usize * plan.launches.min(1), shape.l.min(65_535), "{what}");
    assert!(plan.why.len() >= 3, "{what}");
}

#[test]
fn every_table_shape_has_a_plan() {
    let tables = GEMV_CONTEST.into_iter().chain(GEMV_CORRECTNESS).chain(gemv_ragged());
    for shape in tables {
        for layout in ScaleLayout::ALL {
            Arch::ALL.into_iter().for_each(|arch| check(shape, layout, arch));
        }
    }
}

#[test]
fn contest_shapes_keep_most_of_the_machine_busy() {
    for shape in GEMV_CONTEST {
        for layout in ScaleLayout::ALL {
            let plan = plan(shape, layout, Arch::Sm90a);
            let ctas = plan.grid[0] * plan.grid[1];
            assert!(ctas >= H200.sms * 3 / 4, "{shape} {layout}: {plan}");
        }
    }
}

#[test]
fn overrides_are_obeyed_or_refused() {
    let shape = GEMV_CONTEST[0];
    let with = |kernel: Option<&str>, ctas, layout| {
        let overrides = GemvOverrides::new().kernel(kernel.map(String::from)).ctas(ctas);
        gemv::plan(shape, layout, Arch::Sm90a, H200, &overrides)
    };
    for config in &CONFIGS {
        let result = with(Some(config.name), Some(70), config.scale_layout);
        let suitable = config.takes_k(shape.k as u32);
        assert!(suitable, "the contest's K suits every kernel");
        let plan = result.expect("a suitable kernel");
        assert_eq!((plan.kernel, plan.grid[0]), (config.name, 70));
    }
    let text = with(Some("gemv_x"), None, ScaleLayout::Linear).expect_err("unknown").to_string();
    assert!(
        text.starts_with("kernel for gemv:7168x16384x1 with linear scales must be one of"),
        "{text}"
    );
    assert!(text.ends_with("but is gemv_x"), "{text}");
    let text = with(None, Some(0), ScaleLayout::Linear).expect_err("no CTAs").to_string();
    assert_eq!(text, "number of CTAs must be at least 1, but is 0");
    for layout in ScaleLayout::ALL {
        let text = with(None, Some(27), layout).expect_err("more rows than fit").to_string();
        assert_eq!(text, "number of CTAs for 7168 rows must be at least 28, but is 27");
        assert_eq!(with(None, Some(28), layout).expect("fits").grid, [28, 1]);
    }
}

#[test]
fn sizes_that_no_kernel_takes_are_refused() {
    let text = |m, k, l| {
        let shape = GemvShape { m, k, l };
        let plan =
            gemv::plan(shape, ScaleLayout::Linear, Arch::Sm90a, H200, &GemvOverrides::default());
        plan.expect_err("refused").to_string()
    };
    assert_eq!(text(1, 24, 1), "K must be a multiple of 16, but is 24");
    assert_eq!(text(0, 16, 1), "M must be from 1 to 2147483647, but is 0");
    assert_eq!(text(1, 16, 1 << 32), "L must be from 1 to 2147483647, but is 4294967296");
}

#[test]
fn large_batches_take_several_launches() {
    let plan = plan(GemvShape { m: 1, k: 16, l: 65_536 }, ScaleLayout::Linear, Arch::Sm90a);
    assert_eq!((plan.launches, plan.grid), (2, [1, 65_535]));
}

#[test]
fn a_plan_prints_kernel_tile_and_reasons() {
    let text = plan(GEMV_CONTEST[0], ScaleLayout::Blocked128x4, Arch::Sm100a).to_string();
    for part in [
        "gemv_nvfp4_128x4",
        "for sm_100a",
        "CTAs of",
        "16-byte loads",
        "repacking: none",
        "the weights' scales are 128x4",
        "K = 16384 allows 16-byte loads",
    ] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

proptest! {
    #[test]
    fn every_valid_shape_has_a_plan(m in 1usize..1 << 20, blocks in 1usize..1 << 12, l in 1usize..100, blocked: bool) {
        let layout = if blocked { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
        Arch::ALL.into_iter().for_each(|arch| check(GemvShape { m, k: blocks * 16, l }, layout, arch));
    }
}

/// A GPU of compute capability 8.x: its SMs, and the most shared memory of a CTA in KiB.
fn ampere(sms: u32, shared: u32) -> DeviceProperties {
    let clusters = ResidentClusters::of_sms(sms);
    DeviceProperties { sms, clusters, l2_bytes: 6 << 20, shared_per_block: shared << 10 }
}

/// The A100 has 163 KiB, GPUs of 8.6 and 8.9 as the RTX 3090 and 4090 have 99, and a CTA without a request 48: all of
/// them have a plan for every shape, whose CTAs are resident at a time, and no candidate that does not fit.
#[test]
fn sm80_plans_fit_every_gpu() {
    let kinds = [
        (Format::Nvfp4, ActivationKind::Halves(HalfType::F16)),
        (Format::Nvfp4, ActivationKind::Halves(HalfType::Bf16)),
        (Format::Mxfp4, ActivationKind::Halves(HalfType::Bf16)),
    ];
    let [a100, rtx3090, rtx4090] = [ampere(108, 163), ampere(82, 99), ampere(128, 99)];
    let others = [20, 28, 46, 58, 72, 142, 188]
        .into_iter()
        .flat_map(|sms| [48, 99].map(|shared| ampere(sms, shared)));
    for machine in [a100, rtx3090, rtx4090].into_iter().chain(others) {
        let most = machine.shared_per_block;
        for (format, kind) in kinds {
            let (mut kernels, mut left_out) = (BTreeSet::new(), BTreeSet::new());
            for config in &sm80::CONFIGS {
                let Operands { weights, activations } = config.operands();
                if (weights, activations) == (format, Some(kind.operand())) {
                    let set =
                        if config.shared_bytes() <= most { &mut kernels } else { &mut left_out };
                    set.insert(config.name);
                }
            }
            for [m, n, k] in [[1, 7168, 16384], [16, 4096, 7168], [64, 7168, 2048], [5, 200, 96]]
                .into_iter()
                .chain([[300, 512, 7200], [4096, 4096, 4096]])
            {
                let plan = |overrides: &GemmOverrides| {
                    let shape = GemmShape::of(m, n, k);
                    gemm::plan(shape, format, kind, Arch::Sm80, machine, overrides)
                };
                let found = plan(&GemmOverrides::default()).expect("every GPU has a plan");
                let what = format!("{m} x {n} x {k} on {machine:?}: {found}");
                assert!(found.dynamic_shared <= most, "{what}");
                let config = sm80::config::named(found.kernel);
                assert!(found.grid[0] <= machine.sms * config.min_blocks, "{what}");
                let candidates: BTreeSet<_> = found.candidates.iter().map(|c| c.kernel).collect();
                // Whole tiles take every problem.
                assert_eq!(candidates, kernels, "{what}");
                for name in &left_out {
                    let asked = GemmOverrides::new().kernel((*name).to_owned());
                    let error = plan(&asked).expect_err("does not fit").to_string();
                    assert!(error.contains("shared memory of a CTA"), "{error}");
                    assert!(error.contains(&most.to_string()), "{error}");
                }
            }
            // Tiles of which an SM has one CTA do not fit without a request.
            assert_eq!(left_out.is_empty(), most >= sm80::config::MAX_SHARED_BYTES, "{machine:?}");
        }
    }
}

/// Batch-invariant plans have one split for all M, never stream-K, and kernels that others may have, too.
#[test]
fn batch_invariant_plans_have_one_split() {
    let kinds = [
        ActivationKind::Blocks { format: Format::Nvfp4, layout: ScaleLayout::Linear },
        ActivationKind::Halves(HalfType::Bf16),
        ActivationKind::Fp8(None),
    ];
    let invariant = GemmOverrides::new().batch_invariant(true);
    for (arch, kind) in Arch::ALL.into_iter().flat_map(|arch| kinds.map(|kind| (arch, kind))) {
        let machine = DeviceProperties::usual(arch);
        for (n, k) in
            [(7168, 16384), (4096, 7168), (7168, 2048), (200, 7184), (8, 16), (57344, 8192)]
        {
            let mut found = BTreeSet::new();
            for m in [1, 2, 8, 16, 17, 64, 100, 256, 300, 2048, 16384] {
                let plan = |overrides: &GemmOverrides| {
                    let shape = GemmShape::of(m, n, k);
                    gemm::plan(shape, Format::Nvfp4, kind, arch, machine, overrides)
                };
                let what = format!("{arch} {kind:?} {m}x{n}x{k}");
                let planned = plan(&invariant).unwrap_or_else(|error| panic!("{what}: {error}"));
                let known = plan(&GemmOverrides::default()).expect("planned").candidates;
                let is_known = known.iter().any(|known| known.kernel == planned.kernel);
                assert!(is_known, "{what}: {}", planned.kernel);
                assert!(planned.why.iter().any(|why| why.starts_with("batch invariant")), "{what}");
                found.insert(planned.split.to_string());
            }
            assert!(found.len() == 1 && !found.contains("stream-k"), "{arch} {n}x{k}: {found:?}");
        }
    }
}
