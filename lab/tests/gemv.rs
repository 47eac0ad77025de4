//! GEMV on the emulator of both architectures, against the f64 oracle.
//!
//! Needs the compiled kernels (`cargo xtask build-kernels`); where there are none, each test
//! leaves them out, or fails if `NVFP4_KERNELS_DIR` promises them.

use std::path::Path;

use crate::support::{compiled, kernels_dir, machines};
use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemv::CONFIGS;
use fp4_formats::{FloatType, e4m3};
use nvfp4::device::{Device, Kernels};
use nvfp4::floats;
use nvfp4::gemv::{GemvOptions, GemvOverrides, GemvRun, Repacked, gemv};
use nvfp4::tensor::BlockScaled;
use nvfp4_checkpoint::{self as checkpoint, Model, NewTensor};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::layer::{self, ActivationSource};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_lab::shape::{GEMV_CORRECTNESS, GemvShape, gemv_ragged};
use nvfp4_lab::{bench, oracle};
use ptx_emu_core::Schedule;
use safetensors::Dtype;

fn name(kernels: &Kernels) -> &str {
    &kernels.device().choice().device
}

fn check(
    kernels: &Kernels,
    shape: GemvShape,
    generator: Generator,
    layouts: [ScaleLayout; 2],
    options: GemvOptions,
) {
    let (a, b) = generator.gemv(shape, layouts, 17).expect("fits");
    let what = format!("{shape} {generator} {layouts:?} on {}", name(kernels));
    let (alpha, dtype) = (options.alpha, options.output);
    let result = gemv(kernels, &a, &b, options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let report = oracle::gemv(&a, &b, alpha)
        .expect("operands fit")
        .with_additions(result.plan.additions)
        .verify(&result.values(), dtype);
    assert!(report.passed(), "{what}: {}\n{}", report.summary(), result.plan);
    assert_eq!(report.overflowed, 0, "{what}: results that cannot be compared");
}

#[test]
fn ragged_shapes_in_every_layout_and_type() {
    for machine in &machines() {
        for (index, shape) in gemv_ragged().into_iter().enumerate() {
            for a in ScaleLayout::ALL {
                for b in ScaleLayout::ALL {
                    let output = FloatType::ALL[index % FloatType::ALL.len()];
                    let options = GemvOptions::new().output(output).alpha(0.75);
                    check(machine, shape, Generator::FullRange, [a, b], options);
                }
            }
        }
    }
}

/// 128x4 scales in linear order at load: the bits are those of the same weights with linear scales, and
/// NaN in the padding reaches nothing. Rows are no multiple of 128 and blocks none of 4 in these shapes.
#[test]
fn scales_in_another_order_at_load() {
    for machine in &machines() {
        let shapes = gemv_ragged().into_iter().chain([GemvShape { m: 300, k: 32 * 33, l: 3 }]);
        for (index, shape) in shapes.enumerate() {
            for a_layout in ScaleLayout::ALL {
                let what = format!("{shape} {a_layout} on {}", name(machine));
                let (a, b) =
                    Generator::FullRange.gemv(shape, [a_layout, Blocked128x4], 23).expect("fits");
                assert!(b.scales().contains(&e4m3::NAN), "{what}: the padding is poisoned");
                let output = FloatType::ALL[index % FloatType::ALL.len()];
                let options = GemvOptions::new().output(output).alpha(-1.5).weight_scale(0.5);
                let weights = Repacked::new(&b, Linear).expect("fits");
                let run = GemvRun::of_weights(machine, &a, &weights, options.clone());
                let result =
                    run.and_then(|run| run.run()).unwrap_or_else(|e| panic!("{what}: {e}"));
                let plan = &result.plan;
                assert!(plan.kernel.starts_with("gemv_nvfp4_linear"), "{what}: {plan}");
                assert_eq!(plan.repack, "the weights' scales, to linear at load");
                let [read, written] = [b.scales().len(), shape.l * shape.m * shape.k / 16];
                let cost = format!("read {read} bytes and wrote {written}, once");
                assert!(plan.why.last().is_some_and(|why| why.ends_with(&cost)), "{what}: {plan}");

                let report = oracle::gemv(&a, &b, -0.75)
                    .expect("operands fit")
                    .with_additions(plan.additions)
                    .verify(&result.values(), output);
                assert!(report.passed(), "{what}: {}", report.summary());
                let linear = b.to_layout(Linear).expect("fits");
                let plain = gemv(machine, &a, &linear, options.clone()).expect("runs");
                assert_eq!(plain.bytes, result.bytes, "{what}");
                assert_eq!(plain.plan.repack, "none");

                // The other way, which no plan needs, has padding that changes nothing.
                let blocked = Repacked::new(&linear, Blocked128x4).expect("fits");
                let run = GemvRun::of_weights(machine, &a, &blocked, options.clone());
                let there = run.and_then(|run| run.run()).expect("runs");
                let stored = gemv(machine, &a, &b, options).expect("runs");
                assert_eq!(there.plan.kernel, stored.plan.kernel);
                assert_eq!(there.bytes, stored.bytes, "{what}");
            }
        }
    }
}

/// The bench puts 128x4 scales in linear order unless it is told to read them as they are stored.
#[test]
fn a_bench_of_128x4_scales_says_how_they_were_read() {
    let shape = GemvShape { m: 130, k: 96, l: 2 };
    for kernels in &machines() {
        for as_stored in [false, true] {
            let layouts = [Linear, Blocked128x4];
            let bench = bench::GemvBench { layouts, as_stored, ..bench::GemvBench::default() };
            let report = bench::gemv(kernels, shape, &bench).expect("runs");
            assert!(report.verified, "{report}");
            assert_eq!(report.b_scale_layout, "128x4");
            let layout = if as_stored { "128x4" } else { "linear" };
            assert!(report.plan.kernel.starts_with(&format!("gemv_nvfp4_{layout}")), "{report}");
            assert_eq!(report.plan.repack == "none", as_stored, "{report}");
        }
    }
}

#[test]
fn contest_correctness_shapes() {
    for machine in &machines() {
        for shape in GEMV_CORRECTNESS {
            for (generator, layouts) in
                [(Generator::Contest, [Linear; 2]), (Generator::FullRange, [Blocked128x4; 2])]
            {
                check(machine, shape, generator, layouts, GemvOptions::default());
            }
        }
    }
}

#[test]
fn every_kernel_of_the_table() {
    for machine in &machines() {
        for config in &CONFIGS {
            for m in [5, 128, 131] {
                // The narrow loads are for odd multiples of 16.
                let k = if config.load_bytes == 16 { 1280 } else { 1040 };
                let shape = GemvShape { m, k, l: 2 };
                let kernel = Some(config.name.to_owned());
                for ctas in [None, Some(1), Some(3)] {
                    let overrides = GemvOverrides::new().kernel(kernel.clone()).ctas(ctas);
                    let options = GemvOptions::new().overrides(overrides);
                    let layouts = [Linear, config.scale_layout];
                    check(machine, shape, Generator::FullRange, layouts, options);
                }
            }
        }
    }
}

/// Activations longer than the panel that is resident in shared memory.
#[test]
fn long_activations() {
    for machine in &machines() {
        for k in [16384 + 16, 2 * 16384, 40_000] {
            for layout in ScaleLayout::ALL {
                let shape = GemvShape { m: 5, k, l: 2 };
                check(machine, shape, Generator::FullRange, [layout; 2], GemvOptions::default());
            }
        }
    }
}

/// No rounding before the output, so the answer is the reference rounded once.
#[test]
fn exact_inputs_give_exactly_the_rounded_reference() {
    for kernels in &machines() {
        for dtype in FloatType::ALL {
            let shape = GemvShape { m: 67, k: 1024 + 16, l: 3 };
            let (a, b) = Generator::Exact.gemv(shape, [Blocked128x4, Linear], 3).expect("small");
            let options = GemvOptions::new().output(dtype);
            let got = gemv(kernels, &a, &b, options).expect("runs").values();
            let want = oracle::gemv(&a, &b, 1.0).expect("operands fit").values;
            let want = floats::decode(dtype, &floats::encode(dtype, want));
            for (index, (got, want)) in got.iter().zip(&want).enumerate() {
                let at = (index / shape.m, index % shape.m);
                assert_eq!(got, want, "{dtype:?} {at:?} on {}", name(kernels));
            }
        }
    }
}

#[test]
fn schedules_give_the_same_bytes() {
    for (device, _) in compiled() {
        let (a, b) = Generator::FullRange
            .gemv(GemvShape { m: 70, k: 512, l: 2 }, [Linear; 2], 9)
            .expect("small");
        let mut results = Vec::new();
        for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)]
        {
            let device = Device::open(&device.parse().expect("known")).expect("opens");
            let device = device.with_schedule(schedule);
            let kernels = device.kernels(Some(&kernels_dir())).expect("they load");
            results.push(gemv(&kernels, &a, &b, GemvOptions::default()).expect("runs").bytes);
        }
        assert!(results.iter().all(|bytes| *bytes == results[0]), "{device}");
    }
}

#[test]
fn global_scales_and_alpha_multiply_the_result() {
    for kernels in &machines() {
        let shape = GemvShape { m: 9, k: 64, l: 1 };
        let (a, b) = Generator::FullRange.gemv(shape, [Linear; 2], 5).expect("small");
        let scaled = |x: &BlockScaled<_>, global| {
            let (codes, scales) = (x.codes().to_vec(), x.scales().to_vec());
            BlockScaled::new(x.name(), x.dims(), x.layout(), codes, scales, global).expect("valid")
        };
        let (a, b) = (scaled(&a, 0.37), scaled(&b, 1.9));
        let output = FloatType::F32;
        let options = GemvOptions::new().alpha(-2.5).output(output);
        let result = gemv(kernels, &a, &b, options).expect("runs");
        let reference = oracle::gemv(&a, &b, -2.5).expect("operands fit");
        let report = reference.verify(&result.values(), output);
        assert!(report.passed(), "{}", report.summary());
    }
}

/// One row of weights and the activations can be exchanged: shapes do not tell them apart, and
/// neither do results.
#[test]
fn one_row_of_weights_and_the_activations_can_be_exchanged() {
    for kernels in &machines() {
        let shape = GemvShape { m: 1, k: 7184, l: 1 };
        let (a, b) = Generator::FullRange.gemv(shape, [Linear; 2], 5).expect("small");
        let output = FloatType::F32;
        let run = |a, b| {
            let options = GemvOptions::new().output(output);
            gemv(kernels, a, b, options).expect("runs").bytes
        };
        assert_eq!(run(&a, &b), run(&b, &a), "{}", name(kernels));
    }
}

#[test]
fn a_prepared_gemv_can_run_again() {
    for kernels in &machines() {
        let (kernels, reports) = kernels.observed();
        let shape = GemvShape { m: 33, k: 96, l: 2 };
        let (a, b) = Generator::FullRange.gemv(shape, [Linear; 2], 5).expect("small");
        let prepared = GemvRun::new(&kernels, &a, &b, GemvOptions::default()).expect("fits");
        let first = prepared.run().expect("runs");
        assert_eq!(reports.take().len(), 1);
        assert_eq!(prepared.run().expect("runs again").bytes, first.bytes);
    }
}

#[test]
fn a_benchmark_report_is_verified_and_counts() {
    for kernels in &machines() {
        let shape = GemvShape { m: 256, k: 1024, l: 1 };
        let report = bench::gemv(kernels, shape, &bench::GemvBench::default()).expect("runs");
        assert!(report.verified, "{report}");
        let emulated = report.emulated.as_ref().expect("counters");
        let read = emulated.counters.global_unique_bytes_read;
        assert!(read >= shape.bytes(2) - 2 * 256, "{read} distinct bytes read");
        assert!(read < shape.bytes(2) * 11 / 10, "{read} distinct bytes read");
        let text = report.to_string();
        assert!(text.contains("computed, not measured"), "{text}");
        let json = serde_json::to_value(&report).expect("serialisable");
        for field in ["op", "shape", "device", "plan", "verified", "max_error"] {
            assert!(!json[field].is_null(), "{field} is missing: {json}");
        }
    }
}

/// A small model: an embedding, a weight of the same width, one of another width.
#[test]
fn layers_of_a_checkpoint() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gemv-model.safetensors");
    let mut rng = SplitMix64::new(3);
    let mut normal = |shape: [usize; 2], scale: f64| NewTensor {
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        data: (0..shape[0] * shape[1])
            .flat_map(|_| ((rng.normal() * scale) as f32).to_le_bytes())
            .collect(),
    };
    let tensors = [
        ("embeddings.word_embeddings.weight", normal([50, 96], 0.05)),
        ("embeddings.position_embeddings.weight", normal([20, 96], 0.05)),
        ("layer.0.dense.weight", normal([70, 96], 0.02)),
        ("layer.0.output.weight", normal([96, 160], 0.02)),
    ];
    checkpoint::write(&path, &tensors, &[]).expect("written");
    let model = Model::open(&path).expect("valid");
    for kernels in &machines() {
        let run = |tensor: &str, source: ActivationSource, layout| {
            let options = GemvOptions::default();
            let weight = |tensor| layer::Weight { tensor, expert: None };
            let (report, result) =
                layer::run(kernels, &model, weight(tensor), &source, layout, options)
                    .unwrap_or_else(|error| panic!("{tensor}: {error}"));
            assert!(report.verified, "{report}");
            // Two operands of 4 bits with well-fitted scales: each about 20 dB on normal data.
            assert!((14.0..30.0).contains(&report.sqnr_db), "{report}");
            assert_eq!(result.values().len(), report.verification.outputs);
            report.vector
        };
        let embedding = |token| ActivationSource::Embedding { token };
        assert_eq!(
            run("layer.0.dense.weight", embedding(None), Linear),
            "row 49 of `embeddings.word_embeddings.weight`"
        );
        assert_eq!(
            run("layer.0.dense.weight", embedding(Some(7)), Blocked128x4),
            "row 7 of `embeddings.word_embeddings.weight`"
        );
        assert_eq!(
            run("layer.0.output.weight", embedding(None), Linear),
            "standard normal, seed 1"
        );
        assert_eq!(
            run("layer.0.output.weight", ActivationSource::Normal { seed: 4 }, Linear),
            "standard normal, seed 4"
        );
    }
    std::fs::remove_file(&path).expect("removed");
}
