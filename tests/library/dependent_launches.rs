//! Launches that overlap, as the library makes them: on a GPU each may begin before the one before
//! it has ended. The emulator's device runs them one by one, so the launches are captured, and
//! run again overlapped.

use fp4_formats::gemm::Split;
use std::path::PathBuf;

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::quantize::Recipe;
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{FloatType, HalfType, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};
use nvfp4::gemv::{Gemv, GemvBuffers, GemvLayouts, GemvOptions, Repacked};
use nvfp4::moe::{MoeBiases, MoeInputs, MoeLayer, MoeShape, Routing};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, TensorScale};
use nvfp4::shape::GemvShape;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::MoeRun;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::SCHEDULES;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::{ActivationType, Case};
use nvfp4_tests::mixture::{Mixture, MixtureCase};
use ptx_emu::bundle::{Bundle, RunBundle as _};
use ptx_emu::{Checks, Gpu, Launch, Module, Schedule, Step, launch_sequence};

/// Captured launches of one stream, in order; the folder goes with them.
struct Chain {
    folder: PathBuf,
    gpu: Gpu,
    bundles: Vec<Bundle>,
}

impl Drop for Chain {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Chain {
    /// Captures the launches of `work` on an emulated machine.
    fn new(name: &str, gpu: Gpu, work: impl FnOnce(&Kernels)) -> Self {
        let folder =
            std::env::temp_dir().join(format!("nvfp4-chain-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let request = format!("emu:{}", gpu.name).parse().expect("a machine");
        let device = Device::open(&request).expect("opens anywhere").with_capture(&folder);
        work(&device.kernels(Some(&nvfp4_tests::kernels_dir())).expect("kernels are built"));
        let entries = std::fs::read_dir(&folder).expect("bundles");
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| entry.expect("readable").path()).collect();
        paths.sort();
        let read = |path: &PathBuf| Bundle::read(path).unwrap_or_else(|e| panic!("{e}"));
        let bundles = paths.iter().map(read).collect();
        Self { folder, gpu, bundles }
    }

    fn entries(&self) -> Vec<&str> {
        self.bundles.iter().map(|bundle| bundle.entry.as_str()).collect()
    }

    /// Runs all of them overlapped, each from its module of `modules`, and says whether what the
    /// last one wrote is what it wrote behind the others; or what was diagnosed.
    fn overlapped(&self, modules: &[Module], schedule: Schedule) -> Result<bool, String> {
        let experiments: Vec<_> = self
            .bundles
            .iter()
            .map(|bundle| bundle.experiment(Some(&self.gpu)).expect("a whole bundle"))
            .collect();
        let steps: Vec<Step<'_>> = experiments
            .iter()
            .enumerate()
            .map(|(index, experiment)| Step {
                module: &modules[index],
                launch: Launch {
                    entry: &experiment.entry,
                    grid: experiment.grid,
                    block: experiment.block,
                    cluster: experiment.cluster,
                    dynamic_shared: experiment.dynamic_shared,
                    params: &experiment.params,
                    schedule,
                    threads: None,
                    instruction_limit: Some(50_000_000),
                    checks: Checks::default(),
                },
                programmatic: index > 0,
            })
            .collect();
        let mut memory = self.bundles[0].experiment(Some(&self.gpu)).expect("a bundle").memory;
        launch_sequence(&mut memory, &steps).map_err(|error| error.to_string())?;
        let outputs = &experiments.last().expect("a launch").outputs;
        assert!(!outputs.is_empty(), "the last launch writes something");
        let right = outputs.iter().all(|output| {
            let (expected, _) = output.expected.as_ref().expect("recorded");
            memory.read_raw(output.addr, output.bytes).expect("inside") == *expected
        });
        Ok(right)
    }

    fn load(&self, text: &str) -> Module {
        Module::load(text, &self.gpu).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The module of each launch.
    fn modules(&self) -> Vec<Module> {
        self.bundles.iter().map(|bundle| self.load(&bundle.ptx)).collect()
    }

    /// The module of launch `index`, in which its kernel has `instead` wherever it waits for the launch
    /// before it.
    fn mutant(&self, index: usize, instead: &str) -> Module {
        let Bundle { ptx: text, entry, .. } = &self.bundles[index];
        let start = text.find(&format!(".entry {entry}(")).expect("the kernel");
        let end = start + text[start..].find("\n}").expect("its end");
        let body = &text[start..end];
        assert!(body.contains(WAIT), "{entry}");
        let text = format!("{}{}{}", &text[..start], body.replace(WAIT, instead), &text[end..]);
        self.load(&text)
    }

    /// Right under every schedule.
    fn right(&self, what: &str) {
        let modules = self.modules();
        for schedule in SCHEDULES {
            let right = self.overlapped(&modules, schedule);
            assert_eq!(right, Ok(true), "{what}, {schedule}: {:?}", self.entries());
        }
    }

    /// Wrong or diagnosed under some schedule where launch `index` has `instead` of its waits: only where
    /// it happens to run into what is not there yet.
    fn noticed(&self, what: &str, index: usize, instead: &str) {
        let mut modules = self.modules();
        modules[index] = self.mutant(index, instead);
        let found =
            (0..24).find(|&seed| self.overlapped(&modules, Schedule::Random(seed)) != Ok(true));
        let entry = self.entries()[index];
        assert!(found.is_some(), "{what}: {entry} has `{instead}` for waits, and nothing notices");
    }

    /// Right under every schedule, and what the last kernel waits for is needed.
    fn check(&self, what: &str) {
        self.right(what);
        self.noticed(what, self.bundles.len() - 1, "");
    }
}

const WAIT: &str = "griddepcontrol.wait;";

/// A product on sm_90a whose FP4 activations are decoded before. Cases are both layouts, batches
/// (with 128x4 scales one launch per entry decodes them), and every kind of split.
fn product(layout: ScaleLayout, l: usize, split: Split) -> Chain {
    let name = format!("{layout}-{l}-{split}").replace(':', "-");
    Chain::new(&name, Gpu::h200(), |kernels| {
        let mut case = Case::new([19, 200, 528, l]).activations(ActivationType::Blocks(layout));
        case.generator = Generator::FullRange;
        case.seed = u64::from(split.cluster()) + 5;
        case.overrides.split = Some(split);
        case.check(kernels);
    })
}

#[test]
fn products_wait_for_their_decoded_activations() {
    for (layout, l, split, launches) in [
        (Linear, 1, Split::None, 2),
        (Blocked128x4, 2, Split::Cluster(2), 3),
        (Linear, 2, Split::StreamK, 2),
        (Blocked128x4, 1, Split::Cluster(3), 2),
    ] {
        let chain = product(layout, l, split);
        let entries = chain.entries();
        assert_eq!(entries.len(), launches, "{entries:?}");
        let [before @ .., last] = &entries[..] else { panic!("launches") };
        assert!(before.iter().all(|entry| entry.starts_with("dequantize_")), "{entries:?}");
        assert!(last.starts_with("gemm_sm90_"), "{entries:?}");
        chain.check(&format!("{layout} scales, {l} entries, split {split}"));
    }
}

/// A grouped product whose counts are settled makes its work list and copies weights at once, and waits
/// for its activations: with work for few CTAs of many, and for all of them.
#[test]
fn grouped_products_wait_for_their_activations() {
    let made = [
        (Gpu::h200(), ActivationType::Blocks(Linear), "dequantize_"),
        (Gpu::h200(), ActivationType::Fp8(Some(HalfType::F16)), "quantize_"),
        (Gpu::b200(), ActivationType::Fp8(Some(HalfType::Bf16)), "quantize_"),
    ];
    for (gpu, activations, before) in made {
        for (at, counts) in [&[3, 0, 9][..], &[70, 1, 0, 140]].into_iter().enumerate() {
            let chain =
                Chain::new(&format!("grouped-{at}-{before}{}", gpu.name), gpu.clone(), |kernels| {
                    let mut case = GroupedCase::new(counts, [264, 544]);
                    case.generator = Generator::FullRange;
                    case.activations = activations;
                    case.factors = true;
                    case.check(kernels);
                });
            let entries = chain.entries();
            assert!(entries.len() == 2 && entries[0].starts_with(before), "{entries:?}");
            assert!(chain.bundles[1].programmatic, "{entries:?}");
            let what = format!("{counts:?} {activations:?} on {}", gpu.name);
            chain.right(&what);
            // With more work the activations are there in time under all schedules that are tried.
            if at == 0 {
                chain.noticed(&what, 1, "");
            }
        }
    }
}

/// The products of a layer read the routes while tokens are still gathered: gathering lets them begin
/// when routing is complete.
#[test]
fn layers_overlap_behind_their_routes() {
    for gpu in [Gpu::h200(), Gpu::b200()] {
        let chain = Chain::new(&format!("layer-{}", gpu.name), gpu.clone(), |kernels| {
            // Routing of so many experts takes long enough that a launch which begins too early is
            // noticed.
            let case = MixtureCase::new([9, 300, 2], [64, 96], HalfType::Bf16);
            let mixture = Mixture::<Nvfp4>::new(case, 3);
            let step = mixture.step(4);
            let operands = mixture.operands(&step);
            let weights = operands.repack(kernels.device()).expect("weights");
            let run = MoeRun::new(kernels, &operands, weights.each_ref()).expect("a layer");
            run.launch().expect("launched");
        });
        let entries = chain.entries();
        let at = |name: &str| entries.iter().position(|entry| entry.starts_with(name));
        let (route, gather) =
            (at("moe_route").expect("routing"), at("moe_gather").expect("gathering"));
        assert!(route < gather && gather < at("gemm_").expect("a product"), "{entries:?}");
        let what = format!("a layer on {}", gpu.name);
        chain.check(&what);
        let early = format!("griddepcontrol.launch_dependents;\n{WAIT}");
        for instead in ["", &early] {
            chain.noticed(&what, gather, instead);
        }
    }
}

/// A layer for one token reads its ids in each of its kernels. The first product lets the others begin when what was
/// queued before is complete, here routing, which makes the ids.
#[test]
fn layers_of_one_token_overlap_behind_their_ids() {
    const TOP_K: usize = 3;
    const TOKENS: usize = 3000;
    for gpu in [Gpu::h200(), Gpu::b200()] {
        let chain = Chain::new(&format!("token-{}", gpu.name), gpu.clone(), |kernels| {
            let device = kernels.device();
            let upload = |bytes: &[u8]| DeviceBuffer::upload(device, "x", bytes).expect("memory");
            // Sources are numbers below three for routing. It waits for more of it, so that it is late,
            // and both need little shared memory, so that CTAs of the products fit beside them.
            let shape = MoeShape { tokens: 1, top_k: TOP_K, experts: 300, first: 0, count: 8 };
            let more = MoeShape { tokens: TOKENS, ..shape };
            let [more, routing] =
                [more, shape].map(|shape| Routing::new(kernels, shape).expect("a shape"));
            let [more_routes, routes] =
                [&more, &routing].map(|routing| routing.routes().expect("memory"));
            let before = [7i32, 1, 5].map(i32::to_le_bytes).concat();
            let [more_ids, before] = [before.repeat(TOKENS), before].map(|ids| upload(&ids));

            let case = MixtureCase::new([1, TOP_K, TOP_K], [64, 96], HalfType::Bf16);
            let mixture = Mixture::<Nvfp4>::new(case, 3);
            let step = mixture.step(4);
            let operands = mixture.operands(&step);
            let weights = operands.repack(device).expect("weights");
            let [first, second] = weights.map(|w| w.upload(device).expect("memory"));
            let (half, options) = (HalfType::Bf16, &operands.options);
            let layer = MoeLayer::new(kernels, operands.shape, &first, &second, half, options);
            let layer = layer.expect("a layer");
            let memory = layer.memory().expect("memory");
            let out = upload(&vec![0xee; layer.out_bytes()]);
            let inputs = MoeInputs {
                activations: &upload(operands.tokens.bytes()),
                ids: &routes.sources,
                weights: &upload(&[0.5f32, 2.0, -1.0].map(f32::to_le_bytes).concat()),
                shared: None,
            };
            more.route(&more_ids, &more_routes).expect("launched");
            routing.route(&before, &routes).expect("launched");
            let biases = MoeBiases::default();
            layer.launch(&inputs, [&first, &second], &memory, &out, biases).expect("launched");
        });
        let entries = chain.entries();
        assert_eq!(entries.len(), 5, "{entries:?}");
        assert_eq!([entries[1], entries[4]], ["moe_route", "moe_combine"]);
        let what = format!("a layer for one token on {}", gpu.name);
        chain.check(&what);
        let early = format!("griddepcontrol.launch_dependents;\n{WAIT}");
        chain.noticed(&what, 2, "");
        // On an H200 the first product's CTAs, until they have waited, leave no room for others.
        if gpu.name == "b200" {
            chain.noticed(&what, 2, &early);
        }
    }
}

/// A quantiser waits for the largest magnitude, of the tensor and of each row.
#[test]
fn quantisers_wait_for_the_largest_magnitude() {
    for gpu in [Gpu::h200(), Gpu::b200()] {
        for (name, scale) in [("tensor", TensorScale::FromAmax), ("rows", TensorScale::PerRow)] {
            let (rows, columns) = (70, 512);
            let chain = Chain::new(&format!("{name}-{}", gpu.name), gpu.clone(), |kernels| {
                let mut rng = SplitMix64::new(3);
                let values = (0..rows * columns).flat_map(|_| (rng.normal() as f32).to_le_bytes());
                let values: Vec<u8> = values.collect();
                let recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);
                let options = QuantizeOptions::new(recipe).scale(scale).layout(Linear);
                let kind = Input::plain(FloatType::F32);
                let quantizer =
                    Quantizer::new(kernels, rows, columns, kind, &options).expect("planned");
                let input = DeviceBuffer::upload(kernels.device(), "x", &values).expect("uploaded");
                quantizer.launch(&input, None).expect("launched");
            });
            let entries = chain.entries();
            assert!(entries.len() == 2 && entries[1].starts_with("quantize_"), "{entries:?}");
            chain.check(&format!("{} of a {name}", gpu.name));
        }
    }
}

/// A GEMV, which loads weights at once, waits for its activations: rows of either alignment, both layouts
/// of the weights' scales.
#[test]
fn vectors_wait_for_their_quantised_activations() {
    let cases = [(Linear, 544), (Linear, 528), (Blocked128x4, 544), (Blocked128x4, 528)];
    for gpu in [Gpu::h200(), Gpu::b200()] {
        for (layout, k) in cases {
            let shape = GemvShape { m: 70, k, l: 1 };
            let chain =
                Chain::new(&format!("gemv-{layout}-{k}-{}", gpu.name), gpu.clone(), |kernels| {
                    let device = kernels.device();
                    let (_, b) =
                        Generator::FullRange.gemv(shape, [Linear, layout], 5).expect("small");
                    let weights = Repacked::new(&b, layout).and_then(|b| b.upload(device));
                    let weights = weights.expect("uploaded");
                    let mut rng = SplitMix64::new(9);
                    let values = (0..k).flat_map(|_| (rng.normal() as f32).to_le_bytes());
                    let values: Vec<u8> = values.collect();
                    let input = DeviceBuffer::upload(device, "x", &values).expect("uploaded");
                    let recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);
                    let scale = TensorScale::Given(1.0);
                    let options = QuantizeOptions::new(recipe).scale(scale).layout(Linear);
                    let kind = Input::plain(FloatType::F32);
                    let quantizer = Quantizer::new(kernels, 1, k, kind, &options).expect("planned");
                    let product =
                        Gemv::of_weights(kernels, weights.form(), Linear, GemvOptions::new());
                    let product = product.expect("planned");
                    let out =
                        DeviceBuffer::poisoned(device, "c", product.out_bytes()).expect("room");
                    quantizer.launch(&input, None).expect("launched");
                    let activations = [quantizer.codes(), quantizer.scales()];
                    product.launch_weights(activations, &weights, &out).expect("launched");
                });
            let entries = chain.entries();
            assert!(entries.len() == 2 && entries[1].starts_with("gemv_"), "{entries:?}");
            assert!(chain.bundles[1].programmatic, "weights of `DeviceWeights` are complete");
            chain.check(&format!("{} {shape} with {layout} scales", gpu.name));
        }
    }
}

/// A GEMV of buffers that a kernel before may be writing starts when that has ended.
#[test]
fn weights_that_may_be_incomplete_are_not_read_early() {
    let shape = GemvShape { m: 40, k: 64, l: 1 };
    let chain = Chain::new("gemv-of-buffers", Gpu::h200(), |kernels| {
        let (a, b) = Generator::Exact.gemv(shape, [Linear; 2], 1).expect("small");
        let upload = |name: &str, bytes: &[u8]| {
            DeviceBuffer::upload(kernels.device(), name, bytes).expect("uploaded")
        };
        let [a_codes, a_scales] = [&upload("a", a.codes()), &upload("a scales", a.scales())];
        let [b_codes, b_scales] = [&upload("b", b.codes()), &upload("b scales", b.scales())];
        let layouts = GemvLayouts { activations: Linear, weights: Linear };
        let product = Gemv::new(kernels, shape, layouts, GemvOptions::new()).expect("planned");
        let out = DeviceBuffer::poisoned(kernels.device(), "c", product.out_bytes());
        let out = &out.expect("allocated");
        let buffers = GemvBuffers { a_codes, a_scales, b_codes, b_scales, out };
        product.launch(buffers).expect("launched");
    });
    assert!(!chain.bundles[0].programmatic);
}
