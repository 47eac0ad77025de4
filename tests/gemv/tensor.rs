//! A GEMV as a product of one token on sm_100a's tensor cores, against the f64 oracle.

use fp4_formats::gemm::sm100::CONFIGS;
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::Workspace;
use nvfp4::gemv::{
    Gemv, GemvOptions, GemvOverrides, GemvPlan, GemvResult, GemvRun, Repacked, WeightForm,
    fastest_layout, plan_with_workspace,
};
use nvfp4::plan::vector;
use nvfp4::tensor::BlockScaled;
use nvfp4::{
    Nvfp4,
    ScaleLayout::{Blocked128x4, Linear},
};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::oracle;
use nvfp4_lab::shape::{GEMV_CONTEST, GEMV_CORRECTNESS, GemvShape};
use nvfp4_tests::{SCHEDULES, b200, emulated, emulated_on};
use ptx_emu::{Gpu, Schedule};

/// Operands, how they are launched, and what is expected.
struct Case {
    shape: GemvShape,
    generator: Generator,
    /// Layouts of activations and of weights as they are stored.
    layouts: [ScaleLayout; 2],
    options: GemvOptions,
    seed: u64,
}

impl Case {
    fn new(shape: GemvShape, seed: u64) -> Self {
        let (generator, options) = (Generator::FullRange, GemvOptions::default());
        Self { shape, generator, layouts: [Linear; 2], options, seed }
    }

    fn operands(&self) -> (BlockScaled<Nvfp4>, BlockScaled<Nvfp4>) {
        self.generator.gemv(self.shape, self.layouts, self.seed).expect("inputs")
    }

    /// Runs it, with the weights' scales put in 128x4 order, and compares with the oracle.
    fn check(&self, kernels: &Kernels) -> GemvResult {
        let (a, b) = self.operands();
        let weights = Repacked::new(&b, Blocked128x4).expect("repacked");
        let run = GemvRun::of_weights(kernels, &a, &weights, self.options.clone());
        let result = run.and_then(|run| run.run());
        let result = result.unwrap_or_else(|e| panic!("{} {:?}: {e}", self.shape, self.options));
        let reference = oracle::gemv(&a, &b, self.options.alpha).expect("the oracle");
        let reference = reference.with_additions(result.plan.additions);
        let verification = reference.verify(&result.values(), result.output);
        assert!(
            verification.passed(),
            "{}\n{}\n{}",
            self.shape,
            result.plan,
            verification.summary()
        );
        result
    }
}

fn named(kernel: &str) -> GemvOverrides {
    GemvOverrides::new().kernel(kernel.to_owned())
}

fn is_product(plan: &GemvPlan) -> bool {
    let found = CONFIGS.iter().any(|config| config.name == plan.kernel);
    // Wide tiles have their activations laid out before.
    let wide = CONFIGS.iter().any(|config| config.name == plan.kernel && !config.loads_tokens());
    assert_eq!(plan.before.len(), usize::from(wide), "{plan}");
    assert!(!wide || plan.workspace_bytes > 0, "{plan}");
    assert_eq!(found, plan.load_bytes == 0, "{plan}");
    found
}

/// Every kernel of two NVFP4 operands, under all schedules: one row of weights, tiles that are not full,
/// more than one, K of a block's pair and of no whole step or scale tile, batches; every type of the result,
/// both layouts of the activations' scales, whose padding holds NaN.
#[test]
fn every_kernel() {
    let machines = SCHEDULES.map(|schedule| emulated("emu:b200", schedule));
    let mut i = 0;
    let configs = CONFIGS.iter().filter(|c| c.format == Format::Nvfp4 && c.activations.is_none());
    for config in configs {
        let step = (config.step() * config.k_parts()) as usize;
        for [m, k, l] in [
            [1, step - 224, 1],
            [7, step + 32, 3],
            [129, step, 2],
            [136, 2 * step + 96, 5],
            [250, step + 160, 1],
        ] {
            let mut case = Case::new(GemvShape { m, k, l }, i as u64);
            case.layouts = [ScaleLayout::ALL[i % 2], Linear];
            case.options = GemvOptions::new()
                .overrides(named(config.name))
                .output(FloatType::ALL[i % 3])
                .alpha([1.0, -0.375, 3.0][i / 3 % 3]);
            let result = case.check(&machines[i % 5]);
            assert_eq!(result.plan.kernel, config.name);
            assert!(is_product(&result.plan));
            i += 1;
        }
    }
    assert!(i > 50);
}

/// Weights as they are stored, in whole scale tiles; the same bytes as from weights that were put in that
/// order.
#[test]
fn weights_as_they_are_stored() {
    for schedule in SCHEDULES {
        let kernels = emulated("emu:b200", schedule);
        let shape = GemvShape { m: 256, k: 576, l: 3 };
        let mut case = Case::new(shape, 5);
        case.options = GemvOptions::new().overrides(named("gemm_sm100_nvfp4_128x8"));
        let moved = case.check(&kernels);
        case.layouts[1] = Blocked128x4;
        let stored = case.check(&kernels);
        assert_eq!(moved.bytes, stored.bytes);
        assert_eq!(stored.plan.repack, "none");
        assert!(moved.plan.repack.contains("128x4 at load"), "{}", moved.plan);
    }
}

/// The contest's correctness shapes by its inputs, as planned: on a machine with few SMs some are products.
#[test]
fn contest_correctness_shapes() {
    let kernels = emulated_on(Gpu { sms: 8, ..b200() }, Schedule::Eager);
    let mut products = 0;
    for (i, &shape) in GEMV_CORRECTNESS.iter().enumerate() {
        let mut case = Case::new(shape, i as u64);
        case.generator = [Generator::Contest, Generator::FullRange][i % 2];
        case.layouts = [Linear, Blocked128x4];
        products += usize::from(is_product(&case.check(&kernels).plan));
    }
    assert!(0 < products && products < GEMV_CORRECTNESS.len(), "{products}");
}

/// The plan of a form on a whole B200.
fn plan(form: &WeightForm, overrides: &GemvOverrides) -> nvfp4::Result<GemvPlan> {
    let machine = emulated("emu:b200", Schedule::Eager).device().properties();
    plan_with_workspace(form, Linear, FloatType::F16, Arch::Sm100a, machine, overrides)
}

/// The contest's batches are one launch; what is chosen, and why, is said. Small weights, and
/// weights that tensor cores do not take, have the kernels of a GEMV.
#[test]
fn choices() {
    let mut kernels = Vec::new();
    for shape in GEMV_CONTEST {
        let found = plan(&WeightForm::as_stored(shape, Blocked128x4), &GemvOverrides::new());
        let found = found.expect("planned");
        assert_eq!((found.launches, found.before.len()), (1, 0), "{found}");
        assert!(found.to_string().contains("clocks, and gemv_nvfp4_128x4"), "{found}");
        kernels.push((found.kernel, is_product(&found)));
    }
    assert_eq!(kernels, [("gemm_sm100_nvfp4_128x8", true); 3]);

    let shape = GEMV_CONTEST[0];
    let not = |form: &WeightForm, reason: &str| {
        let found = plan(form, &GemvOverrides::new()).expect("planned");
        assert!(!is_product(&found), "{found}");
        assert!(found.why.iter().any(|why| why.contains(reason)), "{found}");
    };
    not(&WeightForm::as_stored(shape, Linear), "scales are linear");
    not(&WeightForm::as_stored(GemvShape { m: 7169, ..shape }, Blocked128x4), "may hold anything");
    not(&WeightForm::as_stored(GemvShape { k: 16400, ..shape }, Blocked128x4), "16 bytes");
    not(&WeightForm::as_stored(GemvShape { m: 128, k: 256, l: 1 }, Blocked128x4), "clocks");
    let moved = |shape| WeightForm { shape, stored: Linear, scales: Blocked128x4 };
    let ragged = plan(&moved(GemvShape { m: 7169, ..shape }), &GemvOverrides::new());
    assert!(is_product(&ragged.expect("planned")));

    let machine = emulated("emu:b200", Schedule::Eager).device().properties();
    let none = GemvOverrides::new();
    let fastest = |shape, arch| fastest_layout(shape, FloatType::F16, arch, machine, &none);
    assert_eq!(fastest(shape, Arch::Sm100a), Blocked128x4);
    assert_eq!(fastest(GemvShape { k: 16400, ..shape }, Arch::Sm100a), Linear);
    assert_eq!(fastest(shape, Arch::Sm90a), Linear);
    let small = GemvShape { m: 128, k: 256, l: 1 };
    assert_eq!(fastest(small, Arch::Sm100a), Linear);
    let asked = named("gemm_sm100_nvfp4_128x8");
    let found = fastest_layout(small, FloatType::F16, Arch::Sm100a, machine, &asked);
    assert_eq!(found, Blocked128x4);
}

/// Overrides that are obeyed or refused, either way by name; a launch without its workspace, and weights
/// whose padding may hold anything.
#[test]
fn overrides_and_refusals() {
    let shape = GEMV_CONTEST[0];
    let form = WeightForm::as_stored(shape, Blocked128x4);
    let own = plan(&form, &named("gemv_nvfp4_128x4")).expect("a kernel of a GEMV");
    assert_eq!((own.kernel, is_product(&own)), ("gemv_nvfp4_128x4", false));
    let one = plan(&form, &named("gemm_sm100_nvfp4_128x32")).expect("a product");
    assert_eq!((one.kernel, is_product(&one)), ("gemm_sm100_nvfp4_128x32", true));
    assert!(!is_product(&plan(&form, &GemvOverrides::new().ctas(70)).expect("own")));
    let refused = |form: &WeightForm, overrides: &GemvOverrides, part: &str| {
        let text = plan(form, overrides).expect_err("refused").to_string();
        assert!(text.contains(part), "{text}");
    };
    refused(&form, &named("gemm_sm100_mxfp4_128x8"), "kernel");
    refused(&form, &named("gemm_sm100_nvfp4_128x8").ctas(3), "number of CTAs must be absent");
    refused(&WeightForm::as_stored(shape, Linear), &named("gemm_sm100_nvfp4_128x8"), "linear");
    let short = WeightForm::as_stored(GemvShape { m: 128, k: 256, l: 1 }, Blocked128x4);
    refused(&short, &named("gemm_sm100_nvfp4_128x32_split4"), "one that takes");

    let kernels = emulated("emu:b200", Schedule::Eager);
    let device = kernels.device();
    let mut case = Case::new(GemvShape { m: 100, k: 256, l: 1 }, 9);
    let options = GemvOptions::new().overrides(named("gemm_sm100_nvfp4_128x64"));
    let (a, b) = case.operands();
    let weights = Repacked::new(&b, Blocked128x4).expect("repacked");
    let product = Gemv::with_workspace(&kernels, weights.form(), Linear, options.clone());
    let product = product.expect("planned");
    let upload = |name, bytes| nvfp4::buffer::DeviceBuffer::upload(device, name, bytes);
    let [codes, scales] = [a.codes(), a.scales()].map(|bytes| upload("a", bytes).expect("room"));
    let out = upload("c", &vec![0; product.out_bytes()]).expect("room");
    let uploaded = weights.upload(device).expect("room");
    let text = product.launch_weights([&codes, &scales], &uploaded, &out).expect_err("none");
    assert!(text.to_string().starts_with("workspace must be at least 4608 bytes"), "{text}");
    let small = Workspace::new(device, product.workspace_bytes() - 1).expect("room");
    let inputs = [&codes, &scales];
    product.launch_weights_in(inputs, &uploaded, &out, Some(&small)).expect_err("too small");
    let workspace = Workspace::new(device, product.workspace_bytes()).expect("room");
    product.launch_weights_in(inputs, &uploaded, &out, Some(&workspace)).expect("launched");
    // Few tokens need none where no tile is cut.
    let options = GemvOptions::new().overrides(named("gemm_sm100_nvfp4_128x8"));
    let narrow = Gemv::with_workspace(&kernels, weights.form(), Linear, options);
    let narrow = narrow.expect("planned");
    assert_eq!(narrow.workspace_bytes(), 0);
    let before = out.read().expect("written");
    out.fill(0xff).expect("filled");
    narrow.launch_weights(inputs, &uploaded, &out).expect("launched");
    assert_eq!(out.read().expect("written"), before);

    case.layouts[1] = Blocked128x4;
    let (_, stored) = case.operands();
    let stored = Repacked::new(&stored, Blocked128x4).expect("as it is");
    let stored = stored.upload(device).expect("room");
    let text = product.launch_weights_in(inputs, &stored, &out, Some(&workspace));
    let text = text.expect_err("its padding holds NaN").to_string();
    assert!(text.contains("stored linear"), "{text}");
}

/// Instructions that warps issue for both ways of a product of middling size, where a GEMV's CTAs have as many
/// rows as those of a large one.
/// A GEMV's kernel issues what the model says, which counts its main loop, and at most a third more for
/// everything else.
#[test]
fn fewer_instructions() {
    let shape = GemvShape { m: 2048, k: 4096, l: 1 };
    let count = |layout: ScaleLayout, kernel: &str, ctas: Option<u32>| -> u64 {
        let (kernels, reports) = emulated("emu:b200", Schedule::Eager).observed();
        let (a, b) = Generator::FullRange.gemv(shape, [Linear, layout], 3).expect("inputs");
        let options = GemvOptions::new().overrides(named(kernel).ctas(ctas));
        let result = GemvRun::new(&kernels, &a, &b, options).and_then(|run| run.run());
        let reference = oracle::gemv(&a, &b, 1.0).expect("the oracle");
        let result = result.expect("runs");
        let reference = reference.with_additions(result.plan.additions);
        assert!(reference.verify(&result.values(), result.output).passed());
        reports.take().iter().map(|report| report.counters.warp_instructions).sum()
    };
    let product = count(Blocked128x4, "gemm_sm100_nvfp4_128x8", None);
    for (layout, kernel) in [(Linear, "gemv_nvfp4_linear"), (Blocked128x4, "gemv_nvfp4_128x4")] {
        let own = count(layout, kernel, Some(64));
        println!(
            "{shape}: {kernel} issues {own} warp instructions, gemm_sm100_nvfp4_128x8 {product}"
        );
        assert!(5 * own > 9 * product, "{kernel}: {own}, on the tensor cores {product}");
        let blocks = (shape.m * shape.k / 16 / 32) as u64;
        let modelled = vector::issued_per_block(layout) * blocks;
        assert!((modelled..=modelled * 4 / 3).contains(&own), "{kernel}: {own} {modelled}");
    }
}
