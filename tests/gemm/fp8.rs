//! Products in e4m3 (W4A8): exact sums, the quantiser of tokens, what is refused, and what folding costs.

use fp4_formats::gemm::fragments::Scheme;
use fp4_formats::gemm::{Adding, Operands, Split, sm90, sm100, sm120};
use fp4_formats::quantize::tokens::TokensConfig;
use fp4_formats::{
    Arch, BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, Operand, ScaleLayout, e2m1, e4m3,
};
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    ActivationKind, Activations, Fp8Matrix, Gemm, GemmOptions, GemmOverrides, GemmPlan, GemmRun,
    HalfMatrix, Repacked, Weights, gemm, plan_for,
};
use nvfp4::quantize::{Format, TensorScale, quantize};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_checkpoint::Checkpoint;
use nvfp4_lab::gemm::{reference, reference_for};
use nvfp4_lab::oracle::{decibels, sqnr_db};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{adding_of, refused};
use nvfp4_tests::{REAL_LAYERS, SCHEDULES, TARGETS, emulated, real_model};

/// Weights with these codes and scale bytes by row and column or block.
fn weights<F: BlockFormat>(
    [n, k]: [usize; 2],
    code: impl Fn(usize, usize) -> u8,
    scale: impl Fn(usize, usize) -> u8,
) -> BlockScaled<F> {
    let dims = Dims::new(1, n, k).expect("dims");
    let codes = (0..n * k / 2).map(|at| {
        let (row, column) = (2 * at / k, 2 * at % k);
        code(row, column) | code(row, column + 1) << 4
    });
    let blocks = k / F::BLOCK;
    let scales = (0..n * blocks).map(|at| scale(at / blocks, at % blocks)).collect();
    BlockScaled::new("b", dims, ScaleLayout::Linear, codes.collect(), scales, 1.0).expect("valid")
}

/// f32 results of a kernel, or of the plan's.
fn run<F: BlockFormat>(
    kernels: &Kernels,
    a: &Activations<'_, F>,
    b: &BlockScaled<F>,
    kernel: Option<&str>,
) -> Vec<f32> {
    let overrides = GemmOverrides::new().kernel(kernel.map(str::to_owned));
    let options = GemmOptions::new().output(FloatType::F32);
    let options = options.adding(adding_of(&overrides)).overrides(overrides);
    let weights = Repacked::rounded(kernels.device(), Weights::Plain(b), a.kind()).expect("fits");
    let run = GemmRun::new(kernels, a, &weights, &options).expect("planned");
    run.run().expect("runs").values()
}

/// Sums that e4m3 products keep exactly, with their own factors for each row and column: all bits
/// are those of the sum, by every kernel, under every schedule.
fn exact_sums<F: BlockFormat>(one: u8) {
    let [m, n, k] = [130, 139, 416];
    // Signs from a hash, so that sums stay below 2^11 units.
    let hash = |i: usize| SplitMix64::new(i as u64).next_u64();
    let code = |row: usize, column: usize| (hash(row * k + column) % 16) as u8;
    let step = if F::BLOCK == 16 { 8 } else { 1 };
    let scale = |row: usize, block: usize| one + step * ((row + block) % 2) as u8;
    let b = weights::<F>([n, k], code, scale);
    let value =
        |row: usize, column: usize| [-1.0, 0.0, 1.0, 2.0][(hash(row * 977 + column) % 4) as usize];
    let of_token = |row: usize| [0.5, 1.0, 4.0][row % 3];
    let codes = (0..m * k).map(|at| e4m3::encode(value(at / k, at % k))).collect();
    let dims = Dims::new(1, m, k).expect("dims");
    let scales = (0..m).map(of_token).collect();
    let a = Fp8Matrix::new("a", dims, codes, scales).expect("valid");
    let expected: Vec<f32> = (0..m * n)
        .map(|at| {
            let (row, column) = (at / n, at % n);
            let sum: f64 = (0..k)
                .map(|i| {
                    let weight = f64::from(e2m1::decode(code(column, i)))
                        * f64::from(F::decode_scale(scale(column, i / F::BLOCK)));
                    weight * f64::from(value(row, i))
                })
                .sum();
            (sum * f64::from(of_token(row))) as f32
        })
        .collect();
    let format = nvfp4::gemm::format_of::<F>();
    let sm90 = sm90::CONFIGS
        .iter()
        .filter(|config| config.scheme == Scheme { format, operand: Operand::E4m3 });
    let sm100 = sm100::CONFIGS
        .iter()
        .filter(|config| config.format == format && config.activations == Some(Operand::E4m3));
    let operands = Operands { weights: format, activations: Some(Operand::E4m3) };
    let sm120 = sm120::CONFIGS.iter().filter(|config| config.operands() == operands);
    let of_sm90 = sm90.map(|config| (TARGETS[0], config.name));
    let of_sm100 = sm100.map(|config| (TARGETS[1], config.name));
    let of_sm120 = sm120.map(|config| (TARGETS[2], config.name));
    for (index, (device, name)) in of_sm90.chain(of_sm100).chain(of_sm120).enumerate() {
        for schedule in SCHEDULES.iter().skip(index % 2).step_by(2) {
            let kernels = emulated(device, *schedule);
            let got = run(&kernels, &Activations::Fp8(&a), &b, Some(name));
            let wrong = got.iter().zip(&expected).position(|(got, expected)| got != expected);
            if let Some(at) = wrong {
                let (row, column) = (at / n, at % n);
                let (got, expected) = (got[at], expected[at]);
                panic!("{name} [{row}, {column}]: {got}, not {expected}");
            }
        }
    }
}

#[test]
fn nvfp4_sums_are_exact() {
    exact_sums::<Nvfp4>(0x38);
}

#[test]
fn mxfp4_sums_are_exact() {
    exact_sums::<Mxfp4>(127);
}

/// Sums of ones: promoted ones are exact, and fast ones stop growing where a product is lost beside the sum. A kernel that
/// adds fast is taken by name only where that is asked for.
#[test]
fn fast_sums_lose_what_is_documented() {
    let [m, n, k] = [3, 8, 1 << 15];
    let b = weights::<Mxfp4>([n, k], |_, _| 2, |_, _| 127);
    let dims = Dims::new(1, m, k).expect("dims");
    let a = Fp8Matrix::new("a", dims, vec![e4m3::encode(1.0); m * k], vec![1.0; m]).expect("valid");
    let a = Activations::<Mxfp4>::Fp8(&a);
    let kernels = emulated(TARGETS[0], SCHEDULES[1]);
    let weights = Repacked::rounded(kernels.device(), Weights::Plain(&b), a.kind()).expect("fits");
    let fast = "gemm_sm90_mxfp4_e4m3_128x128_fast";
    let result = |adding, kernel: Option<&str>| {
        let overrides = GemmOverrides::new().kernel(kernel.map(str::to_owned)).split(Split::None);
        let options = GemmOptions::new().output(FloatType::F32).adding(adding);
        let options = options.overrides(overrides);
        let run = GemmRun::new(&kernels, &a, &weights, &options)?;
        Ok(run.run().expect("runs").values())
    };
    assert_eq!(result(Adding::Promoted, None).expect("planned"), vec![k as f32; m * n]);
    let lost = result(Adding::Fast, Some(fast)).expect("planned");
    // 2^14 has a last bit of 2.
    assert_eq!(lost, vec![16384.0; m * n]);
    let text = refused("not asked for", result(Adding::Promoted, Some(fast)));
    assert!(text.contains("one of") && !text.contains("_fast,"), "{text}");
}

/// Plans may take kernels that add fast where that is asked for, and only there: dense, grouped and in mixtures of
/// experts.
#[test]
fn fast_sums_are_planned_where_they_are_asked_for() {
    let kernels = emulated(TARGETS[0], SCHEDULES[0]);
    let is_fast = |plan: &GemmPlan| plan.kernel.contains("_fast");
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let kind = ActivationKind::Fp8(None);
        for (adding, expected) in [(Adding::Promoted, false), (Adding::Fast, true)] {
            let options = GemmOptions::new().adding(adding);
            let shape = GemmShape::of(2304, 4608, 7168);
            let plan = plan_for(&kernels, shape, format, kind, &options).expect("planned");
            assert_eq!(is_fast(&plan), expected, "{plan}");
            let says = plan.why.iter().any(|why| why.contains("keeps fewer bits"));
            assert_eq!(says, expected, "{plan}");
            assert!(plan.candidates.iter().any(|other| !other.kernel.contains("_fast")), "{plan}");
            let halves = ActivationKind::Halves(HalfType::Bf16);
            let plan = plan_for(&kernels, shape, format, halves, &options).expect("planned");
            assert!(!is_fast(&plan), "{plan}");
        }
    }
    // Other tensor cores add in f32.
    for target in &TARGETS[1..] {
        let options = GemmOptions::new().adding(Adding::Fast);
        let (kernels, kind) = (emulated(target, SCHEDULES[0]), ActivationKind::Fp8(None));
        let shape = GemmShape::of(2304, 4608, 7168);
        let plan = plan_for(&kernels, shape, Format::Mxfp4, kind, &options).expect("planned");
        assert!(!is_fast(&plan), "{plan}");
    }
}

/// Tokens that the kernel quantises give the bits of tokens that the CPU quantised: of one pass and of
/// two, with zeros, tiny and huge ones; a token that is not finite gives NaN, and no other does.
#[test]
fn tokens_are_quantised_as_on_the_cpu() {
    let one_pass = TokensConfig::KEPT * TokensConfig::THREADS as usize * 8;
    let halves = [HalfType::F16, HalfType::Bf16];
    for (device, half) in TARGETS.into_iter().flat_map(|device| halves.map(|half| (device, half))) {
        let kernels = emulated(device, SCHEDULES[1]);
        for k in [16, 2064, one_pass + 48] {
            let m = 9;
            let mut rng = SplitMix64::new(k as u64);
            let mut values: Vec<f32> = (0..m * k).map(|_| rng.normal() as f32).collect();
            values[k..2 * k].fill(0.0);
            values[2 * k..3 * k].iter_mut().for_each(|x| *x *= 1e-7);
            values[3 * k..4 * k].iter_mut().for_each(|x| *x *= 8e3);
            values[4 * k + k / 2] = f32::NAN;
            values[6 * k + k - 1] = f32::INFINITY;
            let dims = Dims::new(1, m, k).expect("dims");
            let x = HalfMatrix::round("x", dims, half, &values).expect("memory");
            let b = weights::<Nvfp4>(
                [24, k],
                |r, c| ((r * 5 + c) % 16) as u8,
                |r, c| 0x30 + ((r + c) % 9) as u8,
            );
            let quantized = Fp8Matrix::quantize(&x).expect("memory");
            let given = run(&kernels, &Activations::Fp8(&quantized), &b, None);
            let made = run(&kernels, &Activations::ToFp8(&x), &b, None);
            for (at, (given, made)) in given.iter().zip(&made).enumerate() {
                let (row, is_nan) = (at / 24, given.is_nan());
                assert_eq!(is_nan, [4, 6].contains(&row), "{half:?} {k} row {row}");
                let same = is_nan && made.is_nan() || given.to_bits() == made.to_bits();
                assert!(same, "{half:?} {k} [{row}, {}]: {made}, not {given}", at % 24);
            }
        }
    }
}

/// Operands that no kernel takes are refused with the reason; weights of MXFP4 that do not fit are
/// taken by callers who ask for it, and the changes are reported.
#[test]
fn refused_and_rounded() {
    let [sm90, sm100, sm120, sm80] = TARGETS.map(|name| emulated(name, SCHEDULES[0]));
    let (k, n) = (256, 16);
    let dims = Dims::new(1, 2, k).expect("dims");
    let x = HalfMatrix::round("x", dims, HalfType::Bf16, &vec![0.5; 2 * k]).expect("memory");
    let a = Fp8Matrix::quantize(&x).expect("memory");
    let far = weights::<Mxfp4>(
        [n, k],
        |_, _| 5,
        |row, block| 127 - 13 * u8::from(row == 3 && block == 1),
    );
    let options = GemmOptions::new().output(FloatType::F32);
    let text = refused("far scales", gemm(&sm90, &Activations::Fp8(&a), &far, &options));
    assert!(text.contains("scales of `b`") && text.contains("32 weights"), "{text}");
    let weights_of =
        |b| Repacked::rounded(sm90.device(), Weights::Plain(b), ActivationKind::Fp8(None));
    let lost = weights_of(&far).expect("rounded").lost();
    assert_eq!(lost.changed, 32);
    let got = run(&sm90, &Activations::Fp8(&a), &far, None);
    let a8 = Activations::Fp8(&a);
    let expected = reference_for(Arch::Sm90a, &a8, &far, &options).expect("fits");
    assert!(expected.verify(&got, FloatType::F32).passed());
    // Tensor cores that take scales take these, as do those that tokens are decoded for.
    let exact = reference(&a8, &far, &options).expect("fits");
    let right: Vec<f32> = exact.values.iter().map(|value| *value as f32).collect();
    for kernels in [&sm80, &sm100, &sm120] {
        let result = gemm(kernels, &a8, &far, &options).expect("exact");
        assert_eq!(result.values(), right);
    }
    let near = weights::<Mxfp4>(
        [n, k],
        |_, _| 5,
        |row, block| 127 - 11 * u8::from(row == 3 && block == 1),
    );
    assert_eq!(weights_of(&near).expect("fits").lost().changed, 0);
    gemm(&sm90, &Activations::Fp8(&a), &near, &options).expect("fits");

    let rows = options.clone().row_factors(vec![1.0; 2]);
    for kernels in [&sm80, &sm90, &sm120] {
        let text = refused("row factors", gemm(kernels, &Activations::Fp8(&a), &near, &rows));
        assert!(text.contains("row factors"), "{text}");
        gemm(kernels, &Activations::ToFp8(&x), &near, &rows).expect("multiplied into the scales");
    }
    for kernels in [&sm90, &sm100, &sm120] {
        let upload = |kind| Repacked::for_device(kernels.device(), &near, kind).expect("fits");
        let upload = |kind| upload(kind).upload(kernels.device()).expect("room");
        let [bytes, halves] = [ActivationKind::Fp8(None), ActivationKind::Halves(HalfType::Bf16)]
            .map(|kind| (kind, upload(kind)));
        for ((_, weights), (kind, _)) in [(&bytes, &halves), (&halves, &bytes)] {
            let text =
                refused("another order", Gemm::new(kernels, weights, [1, 2], *kind, &options));
            // Weights for 16-bit activations are those of sm_80 on sm_120f.
            let reasons = ["repacked for", "order of the weights"];
            assert!(reasons.iter().any(|reason| text.contains(reason)), "{text}");
        }
    }
    let text = refused("lengths", Fp8Matrix::new("a", dims, vec![0; 2 * k], vec![1.0; 3]));
    assert!(text.contains("scales of `a`"), "{text}");
}

/// A sample of Student's t with 4 degrees of freedom: weights with outliers.
fn student(rng: &mut SplitMix64) -> f64 {
    let squares: f64 = (0..4).map(|_| rng.normal().powi(2)).sum();
    rng.normal() / (squares / 4.0).sqrt()
}

/// Measures the loss of products in e4m3 beside those of 16-bit activations, in dB of the result: folding
/// NVFP4 weights `w`, [n, k], and rounding `m` Gaussian tokens. The loss by folding is less than `most`;
/// bounds are above the printed values.
fn rounding_costs(name: &str, [m, n, k]: [usize; 3], w: &[f32], rng: &mut SplitMix64, most: f64) {
    let x: Vec<f32> = (0..m * k).map(|_| rng.normal() as f32).collect();
    let dims = |rows| Dims::new(1, rows, k).expect("dims");
    let layout = ScaleLayout::Linear;
    let b = quantize("w", w, dims(n), TensorScale::FromAmax, layout).expect("finite");
    let halves = HalfMatrix::round("x", dims(m), HalfType::F16, &x).expect("memory");
    let fp8 = Fp8Matrix::quantize(&halves).expect("memory");
    let exact: Vec<f64> = (0..m * n)
        .map(|at| {
            let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
            x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
        })
        .collect();
    let options = GemmOptions::new().output(FloatType::F32);
    let snr = |a: &Activations<'_, Nvfp4>| {
        let product = reference(a, &b, &options).expect("fits");
        sqnr_db(&exact, &product.values.iter().map(|x| *x as f32).collect::<Vec<_>>())
    };
    let halves_snr = snr(&Activations::Halves(&halves));
    let folded_snr = snr(&Activations::Fp8(&fp8));
    // Activations in e4m3 without folding: as f16, which holds them but for the scale.
    let rounded: Vec<f32> =
        (0..m * k).map(|at| e4m3::decode(fp8.codes()[at]) * fp8.scales()[at / k]).collect();
    let rounded = HalfMatrix::round("x", dims(m), HalfType::F16, &rounded).expect("memory");
    let rounded_snr = snr(&Activations::Halves(&rounded));
    let weights =
        Repacked::for_arch(fp4_formats::Arch::Sm90a, &b, ActivationKind::Fp8(None)).expect("fits");
    let lost = weights.lost();
    println!(
        "{name}: 16-bit activations {halves_snr:.2} dB, e4m3 activations {rounded_snr:.2}, and \
         folded weights {folded_snr:.2}; folding changes {} of {} weights, {:.2} dB beside them",
        lost.changed,
        n * k,
        decibels(lost.signal, lost.noise),
    );
    assert!(halves_snr - rounded_snr < 0.6, "{name}");
    assert!(rounded_snr - folded_snr < most, "{name}");
}

/// Measures weights from distributions.
#[test]
fn what_rounding_costs() {
    let [m, n, k] = [16, 64, 2048];
    for (name, sample) in [
        ("Gaussian", (|rng| rng.normal()) as fn(&mut SplitMix64) -> f64),
        ("Student's t", student as fn(&mut SplitMix64) -> f64),
    ] {
        let mut rng = SplitMix64::new(5);
        let w: Vec<f32> = (0..n * k).map(|_| sample(&mut rng) as f32).collect();
        rounding_costs(name, [m, n, k], &w, &mut rng, 0.25);
    }
}

/// Measures the weights of a real model, the linear layers of the first and the last block.
#[test]
fn what_rounding_costs_of_a_real_model() {
    let Some(path) = real_model() else { return };
    let model = Checkpoint::open(&path).expect("a readable checkpoint");
    for block in [0, 5] {
        for (layer, rows, columns) in REAL_LAYERS {
            let name = format!("encoder.layer.{block}.{layer}.weight");
            let (n, k, w) = model.matrix(&name).expect("a matrix");
            assert_eq!([n, k], [rows, columns], "{name}");
            rounding_costs(&name, [16, n, k], &w, &mut SplitMix64::new(5), 0.3);
        }
    }
}
