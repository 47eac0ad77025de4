//! The same kernels through the host library: planning, repacking, preparation.

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemm::Split;
use fp4_formats::gemm::blackwell::prepare;
use fp4_formats::gemm::hopper::Operand;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, e2m1, pack};
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    Activations, GemmOptions, GemmOverrides, HalfMatrix, format_of, gemm, reference,
};
use nvfp4::generate::Generator;
use nvfp4::rng::SplitMix64;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_tests::emulated;
use ptx_emu::Schedule;

const DEVICE: &str = "emu:b200";

/// One product: M, N, K, L; layouts of the scales; whether weights are shared.
struct Product {
    sizes: [usize; 4],
    layouts: [ScaleLayout; 2],
    shared: bool,
    options: GemmOptions,
}

impl Product {
    fn check<F: BlockFormat>(&self, kernels: &Kernels, seed: u64) {
        let [m, n, k, l] = self.sizes;
        let mut rng = SplitMix64::new(seed);
        let generator = Generator::ALL[seed as usize % 3];
        let dims = Dims::new(if self.shared { 1 } else { l }, n, k).expect("dims");
        let b = generator.blocks::<F>("b", dims, self.layouts[1], &mut rng).expect("b");
        let dims = Dims::new(l, m, k).expect("dims");
        let a = generator.blocks::<F>("a", dims, self.layouts[0], &mut rng).expect("a");
        let a = Activations::Blocks(&a);
        let what = format!("{} {:?} {:?} {generator:?}", F::NAME, self.sizes, self.layouts);
        let result = gemm(kernels, &a, &b, &self.options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let reference = reference(&a, &b, &self.options).expect("the oracle");
        let check = result.verify(&reference);
        assert!(check.passed(), "{what}\n{}\n{}", result.plan, check.summary());
        // The plan says how results get to memory.
        let counters = &result.reports.last().expect("a report").counters;
        let copied = counters.asynchronous.tensor_stores.operations > 0;
        let says = |text| result.plan.why.iter().any(|reason: &String| reason.contains(text));
        let said = [says("the copy engine stores"), says("threads store")];
        assert_eq!(said, [copied, !copied], "{what}\n{}", result.plan);
        // And what is laid out before: scales, and rows that the copy engine cannot take.
        let format = format_of::<F>();
        let laid_out = [
            prepare::codes_need_it(k as u32),
            prepare::scales_need_it(format, self.layouts[0], m as u32, k as u32),
        ];
        let said = [
            says("rows of activations are not multiples of 16 bytes: padded before"),
            says("scales of activations are laid out in whole 128x4 tiles before"),
        ];
        assert_eq!(said, laid_out, "{what}\n{}", result.plan);
        let launched = [prepare::CODES_NAME, prepare::SCALES_NAME]
            .map(|name| result.plan.before.iter().any(|step| step.kernel == name));
        assert_eq!(launched, laid_out, "{what}\n{}", result.plan);
        assert_eq!(result.reports.len(), result.plan.before.len() + 1, "{what}");
        let meanwhile = says("the product begins to copy weights while that is done");
        assert_eq!(meanwhile, laid_out.contains(&true), "{what}\n{}", result.plan);
    }
}

/// Shapes that need no preparation, one, the other, both; shared and own weights; factors
/// and bias; every type of the result.
#[test]
fn products_as_planned() {
    let layouts =
        [[Linear, Linear], [Blocked128x4, Linear], [Linear, Blocked128x4], [Blocked128x4; 2]];
    let outputs = [FloatType::F32, FloatType::F16, FloatType::Bf16];
    let mut seed = 0;
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(9)] {
        let kernels = emulated(DEVICE, schedule);
        for [m, n, k, l] in
            [[128, 256, 512, 1], [1, 301, 1040, 2], [130, 40, 272, 3], [17, 1000, 2048, 1]]
        {
            seed += 1;
            let vector = |count: usize| Some((0..count).map(|i| 0.5 + (i % 7) as f32).collect());
            let product = Product {
                sizes: [m, n, k, l],
                layouts: layouts[seed as usize % 4],
                shared: seed % 2 == 0,
                options: GemmOptions {
                    alpha: -0.375,
                    output: outputs[seed as usize % 3].into(),
                    row_factors: if seed % 2 == 1 { vector(m) } else { None },
                    column_factors: if seed % 3 == 1 { vector(n) } else { None },
                    bias: if seed % 5 < 3 { vector(n) } else { None },
                    overrides: GemmOverrides::default(),
                },
            };
            product.check::<Nvfp4>(&kernels, seed);
            let sizes = [m, n, k.next_multiple_of(32), l];
            Product { sizes, ..product }.check::<Mxfp4>(&kernels, seed);
        }
    }
}

/// 16-bit activations, of each type that weights are decoded to.
#[test]
fn halves_as_planned() {
    fn check<F: BlockFormat>(kernels: &Kernels, operand: Operand, [m, n, k, l]: [usize; 4]) {
        let mut rng = SplitMix64::new(k as u64);
        let generator = Generator::FullRange;
        let dims = Dims::new(1, n, k).expect("dims");
        let b = generator.blocks::<F>("b", dims, Linear, &mut rng).expect("b");
        let dims = Dims::new(l, m, k).expect("dims");
        let a = generator.halves("a", dims, operand, &mut rng).expect("a");
        let a = Activations::Halves(&a);
        let options = GemmOptions { output: FloatType::F32.into(), ..GemmOptions::default() };
        let what = format!("{} x {}: {m} {n} {k} {l}", F::NAME, operand.name());
        let result = gemm(kernels, &a, &b, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let reference = reference(&a, &b, &options).expect("the oracle");
        let check = result.verify(&reference);
        assert!(check.passed(), "{what}\n{}\n{}", result.plan, check.summary());
    }
    for schedule in [Schedule::Eager, Schedule::Random(4)] {
        let kernels = emulated(DEVICE, schedule);
        for [m, n, k, l] in [[1, 300, 1040, 1], [70, 200, 272, 2], [33, 1000, 4096, 1]] {
            check::<Nvfp4>(&kernels, Operand::F16, [m, n, k, l]);
            check::<Nvfp4>(&kernels, Operand::Bf16, [m, n, k, l]);
            check::<Mxfp4>(&kernels, Operand::Bf16, [m, n, k.next_multiple_of(32), l]);
        }
    }
}

/// Every code with every scale, alone: activations pick one column each, in the weights'
/// format and as 16-bit floats.
#[test]
fn every_code_with_every_scale() {
    every_code::<Nvfp4>(&[Operand::F16, Operand::Bf16], 0x38);
    every_code::<Mxfp4>(&[Operand::Bf16], 127);
}

/// `one` is the scale of value 1.
fn every_code<F: BlockFormat>(operands: &[Operand], one: u8) {
    let kernels = emulated(DEVICE, Schedule::Eager);
    let scales: Vec<u8> = (0..=255).filter(|&byte| F::scale_is_valid(byte)).collect();
    let (n, k) = (scales.len(), F::BLOCK);
    // Row n has scale n; column c has code c % 16.
    let row: Vec<u8> = (0..k as u8 / 2).map(|j| (2 * j % 16) | (((2 * j + 1) % 16) << 4)).collect();
    let dims = Dims::new(1, n, k).expect("dims");
    let b = BlockScaled::<F>::new("b", dims, Linear, row.repeat(n), scales.clone(), 1.0);
    let b = b.expect("weights");
    let check = |a: &Activations<'_, F>, what: &str| {
        let options = GemmOptions { output: FloatType::F32.into(), ..GemmOptions::default() };
        let got = gemm(&kernels, a, &b, &options).expect("runs").values();
        for (index, got) in got.into_iter().enumerate() {
            let (code, scale) = ((index / n % 16) as u8, scales[index % n]);
            let expected = e2m1::decode(code) * F::decode_scale(scale);
            assert_eq!(got, expected, "{} x {what}: code {code} scale {scale:#x}", F::NAME);
        }
    };
    let dims = Dims::new(1, k, k).expect("dims");
    let identity = |i: usize| i / k == i % k;
    for &operand in operands {
        let values: Vec<f32> = (0..k * k).map(|i| f32::from(u8::from(identity(i)))).collect();
        let a = HalfMatrix::round("a", dims, operand, &values).expect("activations");
        check(&Activations::Halves(&a), operand.name());
    }
    let code = |i| if identity(i) { e2m1::encode(1.0) } else { 0 };
    let codes = (0..k * k / 2).map(|i| pack::pair(code(2 * i), code(2 * i + 1))).collect();
    let a = BlockScaled::<F>::new("a", dims, Linear, codes, vec![one; k], 1.0);
    check(&Activations::Blocks(&a.expect("activations")), F::NAME);
}

/// What has no kernel is an error that says so, before any launch.
#[test]
fn what_no_kernel_takes() {
    let kernels = emulated(DEVICE, Schedule::Eager);
    let mut rng = SplitMix64::new(1);
    let generator = Generator::Exact;
    let dims = Dims::new(1, 8, 64).unwrap();
    let b = generator.blocks::<Mxfp4>("b", dims, Linear, &mut rng).unwrap();
    let halves = generator.halves("a", dims, Operand::F16, &mut rng).unwrap();
    let error = gemm(&kernels, &Activations::Halves(&halves), &b, &GemmOptions::default());
    let text = error.expect_err("f16 does not hold MXFP4's range").to_string();
    assert!(text.contains("bf16") && text.contains("f16"), "{text}");

    let b = generator.blocks::<Nvfp4>("b", dims, Linear, &mut rng).unwrap();
    let a = generator.blocks::<Nvfp4>("a", dims, Linear, &mut rng).unwrap();
    for (kernel, split, named) in [
        (Some("gemm_nvfp4_1x1"), None, "gemm_nvfp4_128x64"),
        (Some("gemm_nvfp4_f16_128x64"), None, "gemm_nvfp4_128x64"),
        (Some("gemm_nvfp4_128x64_split2"), None, "configuration"),
        (None, Some(Split::Cluster(3)), "configuration"),
        (None, Some(Split::StreamK), "configuration"),
    ] {
        let overrides = GemmOverrides { kernel: kernel.map(Into::into), split };
        let options = GemmOptions { overrides, ..GemmOptions::default() };
        let error = gemm(&kernels, &Activations::Blocks(&a), &b, &options);
        let text = error.expect_err("an unsuitable override").to_string();
        assert!(text.contains(named), "{text}");
    }
}
