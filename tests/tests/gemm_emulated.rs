//! GEMM on the emulated H200, against the f64 oracle.

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemm::Split;
use fp4_formats::gemm::hopper::{CONFIGS, Operand};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, e2m1, pack};
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::gemm::{
    Activations, GemmOptions, GemmOverrides, GemmResult, HalfMatrix, gemm, reference,
};
use nvfp4::generate::Generator;
use nvfp4::rng::SplitMix64;
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_tests::{Left, SCHEDULES, emulated, kernels_dir, split_within};
use ptx_emu::{Gpu, Schedule};

const DEVICE: &str = "emu:h200";

/// One GEMM, its inputs and how it is run.
#[derive(Debug, Clone)]
struct Case {
    shape: GemmShape,
    format: Format,
    left: Left,
    /// Layout of the weights' scales.
    layout: ScaleLayout,
    /// Whether all batch entries have the same weights.
    shared: bool,
    generator: Generator,
    options: GemmOptions,
    seed: u64,
}

impl Case {
    fn new(shape: GemmShape) -> Self {
        Self {
            shape,
            format: Format::Nvfp4,
            left: Left::Blocks(Linear),
            layout: Linear,
            shared: false,
            generator: Generator::Exact,
            options: GemmOptions { output: FloatType::F32.into(), ..GemmOptions::default() },
            seed: 1,
        }
    }

    fn kernel(mut self, name: &str, split: Split) -> Self {
        self.options.overrides = GemmOverrides { kernel: Some(name.into()), split: Some(split) };
        self
    }

    /// Runs it and fails with the first mismatch.
    fn check(&self, kernels: &Kernels) -> GemmResult {
        match self.format {
            Format::Nvfp4 => self.check_as::<Nvfp4>(kernels),
            Format::Mxfp4 => self.check_as::<Mxfp4>(kernels),
        }
    }

    fn check_as<F: BlockFormat>(&self, kernels: &Kernels) -> GemmResult {
        let GemmShape { m, n, k, l } = self.shape;
        let mut rng = SplitMix64::new(self.seed);
        let dims = Dims::new(if self.shared { 1 } else { l }, n, k).expect("dims");
        let b = self.generator.blocks::<F>("b", dims, self.layout, &mut rng).expect("b");
        let dims = Dims::new(l, m, k).expect("dims");
        let (blocks, halves);
        let a = match self.left {
            Left::Blocks(layout) => {
                blocks = self.generator.blocks::<F>("a", dims, layout, &mut rng).expect("a");
                Activations::Blocks(&blocks)
            }
            Left::Halves(operand) => {
                halves = self.generator.halves("a", dims, operand, &mut rng).expect("a");
                Activations::Halves(&halves)
            }
        };
        let result =
            gemm(kernels, &a, &b, &self.options).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let reference = reference(&a, &b, &self.options).expect("the oracle");
        let check = result.verify(&reference);
        assert!(check.passed(), "{self:?}\n{}\n{}", result.plan, check.summary());
        result
    }
}

/// Every configuration of the table, on a shape that fills no tile, alone and with K in
/// parts, under all schedules.
#[test]
fn every_configuration() {
    let schedules = [Schedule::Eager, Schedule::Lazy, Schedule::Random(3), Schedule::Random(4)];
    let machines = schedules.map(|schedule| emulated(DEVICE, schedule));
    for (config, kernels) in CONFIGS.iter().flat_map(|c| machines.iter().map(move |k| (c, k))) {
        let (m, n) = (config.tokens as usize + 3, config.rows as usize + 72);
        for (k, split) in [(160, Split::None), (672, Split::Cluster(3)), (672, Split::StreamK)] {
            let split = split_within(config, split);
            let mut case = Case::new(GemmShape::of(m, n, k)).kernel(config.name, split);
            case.format = config.scheme.format;
            if (config.scheme.format, config.scheme.operand) == (Format::Nvfp4, Operand::Bf16) {
                case.left = Left::Halves(Operand::Bf16);
            }
            let result = case.check(kernels);
            assert_eq!(result.plan.kernel, config.name);
        }
    }
}

const LEFTS: [Left; 4] = [
    Left::Blocks(Linear),
    Left::Blocks(Blocked128x4),
    Left::Halves(Operand::Bf16),
    Left::Halves(Operand::F16),
];

/// Ragged shapes under all schedules; formats, activations, layouts, outputs, alpha and inputs
/// change from case to case. Padding of the 128x4 layout is NaN.
#[test]
fn ragged_shapes() {
    let outputs = [FloatType::F16, FloatType::Bf16, FloatType::F32];
    let schedules = [Schedule::Eager, Schedule::Lazy, Schedule::Random(11)];
    let kernels = schedules.map(|schedule| emulated(DEVICE, schedule));
    let mut index = 0;
    for m in [1, 7, 65, 127, 129, 300] {
        for n in [8, 40, 72, 200, 1000] {
            for k in [16, 32, 144, 416] {
                index += 1;
                let mut case = Case::new(GemmShape::of(m, n, k));
                case.seed = index as u64;
                case.generator = Generator::ALL[index % 3];
                case.left = LEFTS[index % 4];
                case.layout = ScaleLayout::ALL[index / 2 % 2];
                if k.is_multiple_of(32) && index % 3 != 0 && case.left != LEFTS[3] {
                    case.format = Format::Mxfp4;
                }
                case.options.output = outputs[index / 5 % 3].into();
                case.options.alpha = [1.0, -0.375, 3.0][index / 7 % 3];
                case.check(&kernels[index / 3 % 3]);
            }
        }
    }
}

/// Long K that is no multiple of a step, in as many parts as there can be.
#[test]
fn long_k() {
    for (schedule, split) in [
        (Schedule::Lazy, Split::Cluster(8)),
        (Schedule::Random(2), Split::Cluster(5)),
        (Schedule::Eager, Split::None),
        (Schedule::Lazy, Split::StreamK),
        (Schedule::Random(3), Split::StreamK),
    ] {
        let kernels = emulated(DEVICE, schedule);
        for left in LEFTS {
            let mut case = Case::new(GemmShape::of(9, 130, 7184));
            case.left = left;
            case.options.overrides.split = Some(split);
            case.check(&kernels);
        }
    }
}

/// Batches, with weights of their own and shared.
#[test]
fn batches() {
    let kernels = emulated(DEVICE, Schedule::Random(5));
    for l in [2, 3] {
        for shared in [false, true] {
            for (format, left) in LEFTS
                .map(|left| (Format::Nvfp4, left))
                .into_iter()
                .chain(LEFTS[..3].iter().map(|&left| (Format::Mxfp4, left)))
            {
                let k = if format == Format::Nvfp4 { 304 } else { 288 };
                let mut case = Case::new(GemmShape { m: 5, n: 136, k, l });
                (case.left, case.shared, case.layout) = (left, shared, Blocked128x4);
                case.format = format;
                case.check(&kernels);
            }
        }
    }
}

/// Factors of rows and columns and a bias, at the edges of vectors that do not fill a tile.
#[test]
fn factors_and_bias() {
    let kernels = emulated(DEVICE, Schedule::Random(8));
    let outputs = [FloatType::F16, FloatType::Bf16, FloatType::F32];
    let formats = [Format::Nvfp4, Format::Mxfp4];
    for (output, format) in outputs.into_iter().flat_map(|o| formats.map(|f| (o, f))) {
        let (m, n) = (37, 203);
        let mut case = Case::new(GemmShape::of(m, n, 288));
        case.generator = Generator::FullRange;
        case.format = format;
        case.options.output = output.into();
        case.options.alpha = -1.5;
        let ramp = |count: usize, step: f32| (0..count).map(|i| 1.0 + step * i as f32).collect();
        case.options.row_factors = Some(ramp(m, 0.25));
        case.options.column_factors = Some(ramp(n, -0.125));
        case.options.bias = Some(ramp(n, 0.5));
        case.check(&kernels);
    }
}

/// The kernels of an H200 with few SMs, on which a CTA has several tiles.
fn small(sms: u32, schedule: Schedule) -> Kernels {
    let request = DeviceRequest::Emulator(Gpu { sms, ..Gpu::h200() });
    let device = Device::open(&request).expect("opens anywhere").with_schedule(schedule);
    device.kernels(Some(&kernels_dir())).expect("kernels are built")
}

/// CTAs that share activations: tiles without a neighbour, halves without tokens, rings that do
/// not fill and that wrap, a tile a CTA and several, sums through the workspace.
#[test]
fn shared_activations() {
    let sharing: Vec<_> = CONFIGS.iter().filter(|config| config.multicast > 1).collect();
    assert_eq!(sharing.len(), 6);
    let machines = SCHEDULES.map(|schedule| [132, 2, 14].map(|sms| small(sms, schedule)));
    let mut index = 0;
    for m in [1, 33, 64, 129, 300] {
        for n in [8, 129, 300, 640, 1000] {
            for k in [16, 160, 1424, 1936] {
                let config = sharing[index % 6];
                let split = [Split::StreamK, Split::None][index / 6 % 2];
                let mut case = Case::new(GemmShape::of(m, n, k)).kernel(config.name, split);
                case.format = config.scheme.format;
                if case.format == Format::Mxfp4 {
                    case.shape.k = k.next_multiple_of(32);
                }
                case.left = match index % 4 {
                    0 if config.scheme.operand == Operand::F16 => Left::Blocks(Blocked128x4),
                    1 if case.format == Format::Mxfp4 => Left::Blocks(Linear),
                    _ => Left::Halves(config.scheme.operand),
                };
                case.shape.l = [1, 1, 1, 2][index % 4];
                case.shared = index % 8 == 3;
                case.generator = Generator::ALL[index % 3];
                case.seed = index as u64;
                let result = case.check(&machines[index % 5][index / 5 % 3]);
                assert_eq!((result.plan.kernel, result.plan.cluster), (config.name, 2));
                index += 1;
            }
        }
    }
}

/// Shared activations are read once for two CTAs, and are the same results.
#[test]
fn sharing_halves_what_is_read() {
    let kernels = emulated(DEVICE, Schedule::Random(7));
    for (name, pair, tokens) in [
        ("gemm_sm90_nvfp4_f16_128x64", "gemm_sm90_nvfp4_f16_128x64_multicast2", 64),
        ("gemm_sm90_nvfp4_f16_128x128", "gemm_sm90_nvfp4_f16_128x128_multicast2", 128),
    ] {
        for split in [Split::StreamK, Split::None] {
            // Three row tiles: the last one's CTA has its half of the activations still to copy.
            let [one, two] = [name, pair].map(|name| {
                let mut case = Case::new(GemmShape::of(tokens, 384, 1280)).kernel(name, split);
                case.left = Left::Halves(Operand::F16);
                case.generator = Generator::FullRange;
                case.check(&kernels)
            });
            if split == Split::None {
                assert_eq!(one.bytes, two.bytes, "{pair}");
            }
            let [one, two] = [one, two].map(|result| result.reports[0].counters.asynchronous);
            let each = (tokens * 1280 * 2) as u64;
            assert_eq!((one.tensor_loads.bytes, one.multicast_bytes), (3 * each, 0), "{name}");
            assert_eq!(two.tensor_loads.bytes, 2 * each, "{pair}");
            assert_eq!(two.multicast_bytes, 2 * each, "{pair}");
        }
    }
}

/// CTAs that share activations do not share tiles along K.
#[test]
fn sharing_does_not_split_k() {
    let kernels = emulated(DEVICE, Schedule::Eager);
    let case = Case::new(GemmShape::of(64, 256, 1280)).kernel(CONFIGS[15].name, Split::Cluster(2));
    let mut rng = SplitMix64::new(1);
    let mut operand = |rows| {
        let dims = Dims::new(1, rows, 1280).expect("dims");
        Generator::Exact.operand("x", dims, Linear, &mut rng).expect("operand")
    };
    let (a, b): (_, BlockScaled<Nvfp4>) = (operand(64), operand(256));
    let error = gemm(&kernels, &Activations::Blocks(&a), &b, &case.options).expect_err("refused");
    assert!(error.to_string().contains("split of K must be none or stream-k"), "{error}");
}

/// Neither the schedule nor the split of K changes the bits of an exact result; with one split no
/// result depends on the schedule.
#[test]
fn results_do_not_depend_on_timing() {
    for (generator, splits) in [
        (Generator::Exact, Split::up_to(8).collect()),
        (Generator::FullRange, vec![Split::StreamK]),
        (Generator::FullRange, vec![Split::Cluster(4)]),
    ] {
        let mut first = None;
        for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)]
        {
            let kernels = emulated(DEVICE, schedule);
            for &split in &splits {
                let mut case = Case::new(GemmShape::of(20, 144, 1040));
                case.generator = generator;
                case.options.overrides.split = Some(split);
                let bytes = case.check(&kernels).bytes;
                let expected = first.get_or_insert_with(|| bytes.clone());
                assert_eq!(*expected, bytes, "{generator} {schedule}, split {split}");
            }
        }
    }
}

/// Every code with every scale, alone: the other operand picks one column each. In weights, beside
/// 16-bit activations and beside those in their format; and in such activations.
#[test]
fn every_code_with_every_scale() {
    every_code::<Nvfp4>(&[Operand::F16, Operand::Bf16], 0x38);
    every_code::<Mxfp4>(&[Operand::Bf16], 127);
}

/// `one` is the scale of value 1.
fn every_code<F: BlockFormat>(operands: &[Operand], one: u8) {
    let kernels = emulated(DEVICE, Schedule::Eager);
    let scales: Vec<u8> = (0..=255).filter(|&byte| F::scale_is_valid(byte)).collect();
    let (rows, k) = (scales.len(), F::BLOCK);
    // Row n has scale n; column c has code c % 16.
    let row: Vec<u8> = (0..k as u8 / 2).map(|j| (2 * j % 16) | (((2 * j + 1) % 16) << 4)).collect();
    let dims = Dims::new(1, rows, k).expect("dims");
    let all = BlockScaled::<F>::new("all", dims, Linear, row.repeat(rows), scales.clone(), 1.0);
    let all = all.expect("every code");
    let run = |a: &Activations<'_, F>, b: &BlockScaled<F>| {
        let options = GemmOptions { output: FloatType::F32.into(), ..GemmOptions::default() };
        gemm(&kernels, a, b, &options).expect("runs").values()
    };
    let expect = |got: f32, code: usize, row: usize, what: &str| {
        let (code, scale) = ((code % 16) as u8, scales[row]);
        let expected = e2m1::decode(code) * F::decode_scale(scale);
        assert_eq!(got, expected, "{} {what}: code {code} scale {scale:#x}", F::NAME);
    };
    let dims = Dims::new(1, k, k).expect("dims");
    let identity = |i: usize| i / k == i % k;
    for &operand in operands {
        let values: Vec<f32> = (0..k * k).map(|i| f32::from(u8::from(identity(i)))).collect();
        let a = HalfMatrix::round("a", dims, operand, &values).expect("activations");
        for (i, got) in run(&Activations::Halves(&a), &all).into_iter().enumerate() {
            expect(got, i / rows, i % rows, operand.name());
        }
    }
    let code = |i| if identity(i) { e2m1::encode(1.0) } else { 0 };
    let codes = (0..k * k / 2).map(|i| pack::pair(code(2 * i), code(2 * i + 1))).collect();
    let unit = BlockScaled::<F>::new("unit", dims, Linear, codes, vec![one; k], 1.0);
    let unit = unit.expect("an identity");
    for (i, got) in run(&Activations::Blocks(&unit), &all).into_iter().enumerate() {
        expect(got, i / rows, i % rows, "weights beside blocks");
    }
    for (i, got) in run(&Activations::Blocks(&all), &unit).into_iter().enumerate() {
        expect(got, i % k, i / k, "activations");
    }
}

/// What does not fit is refused before anything is launched, with the field's name.
#[test]
fn bad_operands_are_refused() {
    let kernels = emulated(DEVICE, Schedule::Eager);
    let mut rng = SplitMix64::new(1);
    let operand = |rows, k, rng: &mut SplitMix64| {
        let dims = Dims::new(1, rows, k).expect("dims");
        Generator::Exact.operand("x", dims, Linear, rng).expect("operand")
    };
    let (a, b, other) =
        (operand(3, 64, &mut rng), operand(8, 64, &mut rng), operand(8, 80, &mut rng));
    let run = |b: &BlockScaled<Nvfp4>, options: &GemmOptions| {
        gemm(&kernels, &Activations::Blocks(&a), b, options).expect_err("refused").to_string()
    };
    let plain = GemmOptions::default();
    assert!(run(&other, &plain).contains("K of `x` must be 64"), "{}", run(&other, &plain));
    let bias = GemmOptions { bias: Some(vec![0.0; 7]), ..plain.clone() };
    assert!(run(&b, &bias).contains("length of the bias must be N = 8"), "{}", run(&b, &bias));
    let overrides = GemmOverrides { split: Some(Split::Cluster(2)), ..GemmOverrides::default() };
    let text = run(&b, &GemmOptions { overrides, ..plain });
    assert!(text.contains("split of K must be none or stream-k, but is cluster:2"), "{text}");
}
