//! GEMM with a tuning table written by hand, on both emulated machines: the table's kernel runs,
//! and its results are right.

use fp4_formats::gemm::{Adding, Split};
use fp4_formats::{FloatType, HalfType, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activation, GemmOptions, GemmResult, Source, UpOptions};
use nvfp4::quantize::Format;
use nvfp4::tune::{Measured, Table, TuneGroups, TuneProblem, Tuning};
use nvfp4_lab::bench::{self, ActivationInput, GemmBench, Protocol, TuneTarget};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{GemmShape, MixtureShape, Shape};
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::{ActivationType, Case, F16, LINEAR};
use nvfp4_tests::{SCHEDULES, emulated};

/// An emulated GPU, and for each kind of activations a kernel that its model does not choose for few
/// tokens, with its parts of K.
type TunedGpu = (&'static str, [(ActivationType, &'static str, Split); 2]);

const TUNED_GPUS: [TunedGpu; 2] = [
    (
        "emu:h200",
        [
            (LINEAR, "gemm_sm90_nvfp4_f16_128x64", Split::Cluster(3)),
            (F16, "gemm_sm90_nvfp4_f16_128x32", Split::StreamK),
        ],
    ),
    (
        "emu:b200",
        [
            (LINEAR, "gemm_sm100_nvfp4_128x64_split2", Split::Cluster(2)),
            (F16, "gemm_sm100_nvfp4_f16_256x128", Split::None),
        ],
    ),
];

/// An exact product, checked against the oracle.
fn run(kernels: &Kernels, activations: ActivationType, shape: GemmShape) -> GemmResult {
    let GemmShape { m, n, k, l } = shape;
    Case::new([m, n, k, l]).activations(activations).check(kernels)
}

/// An entry of the table.
fn problem(activations: ActivationType, shape: GemmShape) -> TuneProblem {
    let (format, output) = (Format::Nvfp4, FloatType::F32.into());
    TuneProblem {
        format,
        activations: activations.kind(format),
        output,
        gated: false,
        shape,
        groups: None,
        adding: Adding::default(),
    }
}

#[test]
fn the_tables_kernel_runs_and_is_right() {
    let shape = GemmShape { m: 5, n: 150, k: 560, l: 2 };
    for (device, entries) in TUNED_GPUS {
        for schedule in SCHEDULES {
            let kernels = emulated(device, schedule).with_tuning(Tuning::off());
            let (kernels, reports) = kernels.observed();
            let mut table = Table::new(kernels.tune_key().clone());
            for (activations, kernel, split) in entries {
                let problem = problem(activations, shape);
                table.insert(problem, Measured { kernel: kernel.into(), split, median_ns: 1 });
            }
            // As a file would bring it.
            let table = Table::parse(&table.text(), "t").expect("valid");
            let tuned = kernels.clone().with_tuning(Tuning::new(table));
            for (kind, kernel, split) in entries {
                let by_model = run(&kernels, kind, shape);
                assert_eq!(by_model.plan.source, Source::Model);
                assert_ne!((by_model.plan.kernel, by_model.plan.split), (kernel, split));
                // The same tokens, and another number of the class.
                for m in [5, 7] {
                    let result = run(&tuned, kind, GemmShape { m, ..shape });
                    let plan = &result.plan;
                    assert_eq!((plan.kernel, plan.split), (kernel, split), "{device}: {plan}");
                    assert_eq!(plan.source, Source::Table { m: 5 });
                    let launches = reports.take();
                    let product = launches.last().expect("an emulated launch");
                    assert!(product.counters.warp_instructions > 0);
                    if m == 5 {
                        // Exact inputs: no rounding that depends on the kernel.
                        assert_eq!(result.bytes, by_model.bytes, "{device} {kernel}");
                    }
                }
            }
        }
    }
}

/// A table whose entry is for another kernel's formats does not make a wrong result: the model's
/// kernel runs.
#[test]
fn a_wrong_table_makes_no_wrong_result() {
    let shape = GemmShape { m: 3, n: 40, k: 96, l: 1 };
    for (device, kernel) in
        [("emu:h200", "gemm_sm90_mxfp4_bf16_128x8"), ("emu:b200", "gemm_sm100_mxfp4_128x64")]
    {
        let kernels = emulated(device, SCHEDULES[4]);
        let mut table = Table::new(kernels.tune_key().clone());
        table.insert(
            problem(LINEAR, shape),
            Measured { kernel: kernel.into(), split: Split::None, median_ns: 1 },
        );
        let result = run(&kernels.with_tuning(Tuning::new(table)), LINEAR, shape);
        assert_eq!(result.plan.source, Source::Model);
        assert!(result.plan.why.iter().any(|why| why.contains("is rejected")), "{}", result.plan);
    }
}

/// A grouped product, gated or not, that a table may be for.
fn grouped_problem(case: &GroupedCase) -> TuneProblem {
    let [n, k] = case.sizes;
    let count = case.counts.len();
    let (m, l) = match case.slot {
        Some(slot) => (slot, count),
        None => (case.counts.iter().sum::<usize>() + case.spare, 1),
    };
    TuneProblem {
        format: case.format,
        activations: case.activations.kind(case.format),
        output: case.result,
        gated: case.gated,
        shape: GemmShape { m, n, k, l },
        groups: Some(TuneGroups { count, slots: case.slot.is_some() }),
        adding: Adding::default(),
    }
}

/// The table's kernel runs for groups: the entry for as many groups, whose tokens are as many or of
/// one class, of groups in one matrix or in slots; gated ones are others.
#[test]
fn the_tables_kernel_runs_for_groups() {
    for (device, kernel, split) in [
        ("emu:h200", "gemm_sm90_nvfp4_f16_128x128_grouped", Split::StreamK),
        ("emu:b200", "gemm_sm100_nvfp4_256x128_grouped", Split::None),
    ] {
        for (at, (slot, gated)) in
            [(None, false), (None, true), (Some(9), false)].into_iter().enumerate()
        {
            let kernels = emulated(device, SCHEDULES[at]).with_tuning(Tuning::off());
            let mut case = GroupedCase::new(&[3, 0, 5, 2], [96, 160]);
            (case.slot, case.gated) = (slot, gated);
            let by_model = case.run(&kernels);
            assert_eq!(by_model.plan.source, Source::Model);
            assert_ne!(by_model.plan.kernel, kernel, "the model would choose it anyway");
            let measured = Measured { kernel: kernel.into(), split, median_ns: 1 };
            let problem = grouped_problem(&case);
            let m = problem.shape.m;
            let mut table = Table::new(kernels.tune_key().clone());
            table.insert(problem, measured);
            let table = Table::parse(&table.text(), "t").expect("valid");
            let tuned = kernels.clone().with_tuning(Tuning::new(table));
            case.check(&tuned);
            let source = |case: &GroupedCase| {
                let plan = case.run(&tuned).plan;
                (plan.source == Source::Table { m }).then_some(plan.kernel)
            };
            assert_eq!(source(&case), Some(kernel), "{device} {case:?}");
            // As many groups with other tokens of the class, and then more of them.
            let counts = |counts: &[usize]| GroupedCase { counts: counts.to_vec(), ..case.clone() };
            assert_eq!(source(&counts(&[1, 2, 2, 8])), Some(kernel), "{device} {case:?}");
            match slot {
                None => assert_eq!(source(&counts(&[90, 200, 9, 9])), None, "{device}"),
                Some(_) => {
                    assert_eq!(source(&GroupedCase { slot: Some(90), ..case.clone() }), None);
                }
            }
            assert_eq!(source(&counts(&[3, 5, 2])), None, "{device}: other groups");
            let gated = GroupedCase { gated: !gated, ..case.clone() };
            assert_eq!(source(&gated), None, "{device}: gated or not");
            let result = GroupedCase { result: FloatType::F16.into(), ..case.clone() };
            assert_eq!(source(&result), None, "{device}: another result");
        }
    }
}

/// A dense product's kernel does not run for groups.
#[test]
fn a_dense_kernel_in_the_table_is_rejected_for_groups() {
    for (device, entries) in TUNED_GPUS {
        let kernels = emulated(device, SCHEDULES[0]);
        let case = GroupedCase::new(&[3, 5], [96, 160]);
        let (_, kernel, split) = entries[0];
        let mut table = Table::new(kernels.tune_key().clone());
        let measured = Measured { kernel: kernel.into(), split, median_ns: 1 };
        table.insert(grouped_problem(&case), measured);
        let plan = case.run(&kernels.with_tuning(Tuning::new(table))).plan;
        assert_eq!(plan.source, Source::Model);
        assert!(plan.why.iter().any(|why| why.contains("is rejected")), "{plan}");
    }
}

/// Layers look up the entries of a mixture of experts that `bench --tune` measures.
#[test]
fn both_products_of_a_mixture_are_in_the_table() {
    let many = MixtureShape { tokens: 9, experts: 6, top_k: 2, hidden: 64, between: 96 };
    // One token's rows choose their experts: slots of one token.
    let one = MixtureShape { tokens: 1, ..many };
    let (fp4, halves) = (ActivationInput::Fp4, ActivationInput::Halves(HalfType::F16));
    for (device, shape, activations, kernel, split, m) in [
        ("emu:h200", many, fp4, "gemm_sm90_nvfp4_f16_128x128_grouped", Split::StreamK, 18),
        ("emu:b200", many, fp4, "gemm_sm100_nvfp4_256x128_grouped", Split::None, 18),
        ("emu:h200", one, fp4, "gemm_sm90_nvfp4_f16_128x128_grouped", Split::StreamK, 2),
        ("emu:h200", one, halves, "gemm_sm90_nvfp4_f16_128x128_grouped", Split::StreamK, 1),
        ("emu:b200", one, halves, "gemm_sm100_nvfp4_f16_256x128_grouped", Split::None, 1),
    ] {
        let options = GemmOptions::new().activation(Activation::Silu).up(UpOptions::new());
        let bench = GemmBench {
            format: Format::Nvfp4,
            activations,
            generator: Generator::FullRange,
            decoded: false,
            seed: 3,
            layout: ScaleLayout::Linear,
            options,
            quantized: None,
            protocol: Protocol::default(),
            explain: false,
            sweep: 0,
        };
        let targets = TuneTarget::of(&Shape::Moe(shape), &bench).expect("products");
        let kernels = emulated(device, SCHEDULES[1]);
        let mut table = Table::new(kernels.tune_key().clone());
        for target in &targets {
            let measured = Measured { kernel: kernel.into(), split, median_ns: 5 };
            table.insert(target.problem(), measured);
        }
        assert_eq!(table.len(), 2);
        let tuned = kernels.with_tuning(Tuning::new(table));
        let report = bench::moe(&tuned, shape, &bench).expect("runs");
        assert!(report.head.verified, "{report}");
        for plan in &report.plans {
            assert_eq!((plan.kernel, plan.source), (kernel, Source::Table { m }), "{plan}");
        }
        // Times come from a GPU alone.
        let error = bench::tune(&tuned, &targets[0]).expect_err("emulated").to_string();
        assert!(error.contains("GPU"), "{error}");
    }
}
