//! GEMM with a tuning table written by hand, on both emulated machines: the table's kernel runs,
//! and its results are right.

use fp4_formats::FloatType;
use fp4_formats::gemm::Split;
use nvfp4::device::Kernels;
use nvfp4::gemm::{GemmResult, Source};
use nvfp4::quantize::Format;
use nvfp4::shape::GemmShape;
use nvfp4::tune::{Measured, Table, TuneProblem, Tuning};
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
            (LINEAR, "gemm_nvfp4_128x64_split2", Split::Cluster(2)),
            (F16, "gemm_nvfp4_f16_256x128", Split::None),
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
    TuneProblem { format, activations: activations.kind(format), output, gated: false, shape }
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
        [("emu:h200", "gemm_sm90_mxfp4_bf16_128x8"), ("emu:b200", "gemm_mxfp4_128x64")]
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
