//! Mutation check of grouped products, and of the kernels around those of a mixture of experts, as
//! tests/gemm/mutants.rs does for other products.
//!
//! Launches are checked against the f64 oracle first, layers step by step.

use std::time::Duration;

use fp4_formats::ScaleLayout::Blocked128x4;
use fp4_formats::gemm::groups::STATUS_BAD_COUNTS;
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType, HalfType, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::gemm::{Activation, GemmOverrides};
use nvfp4::moe::{MoeBiases, MoeInputs};
use nvfp4::parallel::{ExpertPlaces, Experts, ExpertsShape, HostExchange};
use nvfp4::tune::ResultKind;
use nvfp4_lab::moe::MoeRun;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::{ActivationType, BLOCKED, F16, LINEAR};
use nvfp4_tests::mixture::{Mixture, MixtureCase};
use nvfp4_tests::mutation::{
    Effort, Which, captured, check, check_briefly, check_one_role, first_written, overlapping,
};
use ptx_emu::Gpu;
use ptx_emu::experiment::Experiment;

const BLOCKS: ResultKind = ResultKind::Blocks(Format::Nvfp4, Blocked128x4);

/// A launch of `kernel` for a grouped product, whose `input` a kernel before makes: "counts", "factors", or the
/// activations as the product takes them.
fn grouped(kernel: &str, gpu: &Gpu, case: GroupedCase, input: &'static str) -> Experiment {
    let overrides = GemmOverrides::new().kernel(kernel.to_string()).split(None);
    // Counts that the kernel before makes are not settled; others are.
    let settled = input != "counts";
    let case = GroupedCase { overrides, spare: 1, settled, ..case };
    let name = format!("{:?}-{:?}-{input}", case.counts, case.sizes);
    captured(kernel, &name, gpu, Which::Last, |kernels| {
        case.check(kernels);
        [input, first_written(case.result)]
    })
}

/// A launch whose token counts are bad, so that all results become NaN.
fn refused(kernel: &str, gpu: &Gpu, case: GroupedCase) -> Experiment {
    let overrides = GemmOverrides::new().kernel(kernel.to_string()).split(None);
    let case = GroupedCase { overrides, ..case };
    let mut counts = vec![0; case.counts.len() + 1];
    counts[0] = -1;
    captured(kernel, "refused", gpu, Which::Last, |kernels| {
        assert_eq!(case.run_with(kernels, &counts).status, STATUS_BAD_COUNTS);
        ["a", first_written(case.result)]
    })
}

/// The form of a layer's launches.
#[derive(Clone, Copy)]
enum Steps {
    /// All vectors at once: settled ones are read before the kernel before has ended.
    Together,
    /// One by one: nothing is known to be settled.
    Apart,
}

/// A launch of `kernel` in a layer. A kernel before makes the first of these `places` and writes the second.
fn layer(
    kernel: &str,
    gpu: &Gpu,
    case: MixtureCase,
    steps: Steps,
    which: Which,
    places: [&'static str; 2],
) -> Experiment {
    let MixtureCase { shape, sizes, .. } = case;
    let name = format!("{}-{sizes:?}-{}", shape.tokens, places.concat());
    captured(kernel, &name, gpu, which, |kernels| {
        let mixture = Mixture::<Nvfp4>::new(case, 7);
        let step = mixture.step(1);
        let operands = mixture.operands(&step);
        let weights = operands.repack(kernels.device()).expect("weights");
        let run = MoeRun::new(kernels, &operands, weights.each_ref()).expect("a layer");
        match steps {
            Steps::Together => run.launch().expect("a launch"),
            Steps::Apart => {
                run.layer().steps().for_each(|step| run.launch_step(step).expect("a launch"))
            }
        }
        for product in run.layer().products() {
            println!("{}", product.plan());
        }
        for check in run.check(&operands).expect("readable") {
            assert!(check.verified, "{case:?}\n{check}");
        }
        places
    })
}

/// A product of a layer for one token, whose rows choose their weights: the first one, gated, of which a kernel
/// before makes the ids; or the last one.
fn one_token(kernel: &str, gpu: Gpu, which: Which) -> Experiment {
    let case = MixtureCase::new([1, 6, 3], [1392, 144], HalfType::F16);
    let case = MixtureCase { extras: true, ..case };
    let places = match which {
        Which::First => ["ids", "between"],
        Which::Last => ["between", "rows"],
    };
    let mut experiment = layer(kernel, &gpu, case, Steps::Together, which, places);
    // Beside the kernel there is room for the one before.
    experiment.gpu.sms += 1;
    experiment
}

/// Two CTAs with whole tiles of two widths and an empty group, whose stages are `free` several times;
/// three tiles of each width, of which the middle one's sums meet in the workspace. One tile of two
/// CTAs: the flag is set when its reader waits for it. Many small groups: lanes hand their counts to
/// one another. The counts are late in one launch, the groups' factors in another one, the activations in
/// the others.
#[test]
fn sm90_groups() {
    let kernel = "gemm_sm90_nvfp4_f16_128x128_grouped";
    let on_sms = |sms: u32, counts: &[usize], sizes, input| {
        let gpu = Gpu { sms, ..Gpu::h200() };
        let (activations, factors) = (F16, true);
        let case = GroupedCase { activations, factors, ..GroupedCase::new(counts, sizes) };
        grouped(kernel, &gpu, case, input)
    };
    let on = |counts: &[usize], sizes, input| {
        let mut experiment = on_sms(2, counts, sizes, input);
        // Beside the kernel there is room for the one before.
        experiment.gpu.sms = 3;
        experiment
    };
    // No room for the kernel before: the flag is set at other times.
    let alone = |counts: &[usize], sizes| on_sms(2, counts, sizes, "a");
    // More partial sums of one tile than the ring has stages.
    let many = |counts: &[usize], sizes| on_sms(6, counts, sizes, "a");
    check_briefly(&[
        many(&[60], [128, 2560]),
        on(&[36, 0, 128], [332, 1328], "counts"),
        on(&[300], [128, 2160], "a"),
        on(&[276], [128, 2160], "factors"),
        on(&[384], [128, 2160], "a"),
        on(&[60], [128, 2800], "a"),
        alone(&[36], [100, 2800]),
        on_sms(16, &[1; 32], [128, 128], "a"),
        alone(&[60], [128, 2960]),
    ]);
}

/// Clusters make several tiles, of which some reach over a group's last token: results by the copy
/// engine and by threads, and as blocks. Activations, counts or factors are late.
#[test]
fn sm100_groups() {
    let kernel = "gemm_sm100_nvfp4_256x128_grouped";
    let gpu = Gpu { sms: 4, ..nvfp4_tests::b200() };
    let on = |counts: &[usize], sizes, result, input| {
        let (activations, factors) = (BLOCKED, true);
        let case = GroupedCase { activations, result, factors, ..GroupedCase::new(counts, sizes) };
        let mut experiment = grouped(kernel, &gpu, case, input);
        // One cluster makes all tiles; beside it there is room for the kernel before.
        experiment.grid = [2, 1, 1];
        experiment
    };
    let floats = FloatType::F32.into();
    check_briefly(&[
        on(&[150, 0, 33], [520, 2288], floats, "workspace"),
        on(&[300, 17], [100, 1024], floats, "counts"),
        on(&[17, 40], [100, 512], floats, "factors"),
        on(&[300, 17], [112, 768], BLOCKS, "counts"),
    ]);
}

/// Warps on their own. Gated products: CTAs with whole tiles, whose eight stages are `free` again and again,
/// and with parts of tiles, with and without room for the kernel before. Runs of many CTAs begin and end in
/// problems of different lanes of the warp that makes the table. Rows that choose their weights; bad counts.
#[test]
fn sm90_few_tokens() {
    let kernel = "gemm_sm90_nvfp4_f16_128x8_grouped";
    let on_sms = |sms: u32, counts: &[usize], sizes, input| {
        let (gpu, case) = (Gpu { sms, ..Gpu::h200() }, GroupedCase::new(counts, sizes));
        let (activations, activation) = (F16, Activation::Silu);
        let case = GroupedCase { activations, activation, gated: true, factors: true, ..case };
        grouped(kernel, &gpu, case, input)
    };
    let on = |counts: &[usize], sizes, input| {
        let mut experiment = on_sms(1, counts, sizes, input);
        // Beside the kernel there is room for the one before.
        experiment.gpu.sms = 2;
        experiment
    };
    let bad = GroupedCase { activations: F16, ..GroupedCase::new(&[5, 8, 3], [56, 400]) };
    check_briefly(&[
        on(&[5, 0, 8, 3], [200, 1392], "counts"),
        on(&[5, 8, 3], [56, 2480], "a"),
        on(&[5, 8, 3], [56, 2480], "factors"),
        on_sms(1, &[5, 8, 3], [56, 2480], "a"),
        one_token(kernel, Gpu { sms: 1, ..Gpu::h200() }, Which::First),
        one_token(kernel, Gpu { sms: 1, ..Gpu::h200() }, Which::Last),
        on_sms(8, &[1; 17], [56, 1424], "a"),
        // More groups than lanes: a lane of the warp that makes the table has two of them.
        on_sms(8, &[1; 33], [56, 1424], "a"),
        refused(kernel, &Gpu { sms: 1, ..Gpu::h200() }, bad),
    ]);
}

/// Pairs of CTAs that share tokens, in tiles of two widths, whose steps take one stage and two: results through
/// the stages, and from registers, in steps so few that the ring does not order one tile's results with the
/// next one's. Three tiles of two clusters, whose sums meet in the workspace. Many groups, whose order is not
/// that of the lanes that make the table.
#[test]
fn sm90_pairs_of_groups() {
    let kernel = "gemm_sm90_nvfp4_f16_128x256_multicast2_grouped";
    let on = |clusters: u32, counts: &[usize], sizes, result: FloatType, input| {
        let gpu = Gpu { sms: 2 * clusters, ..Gpu::h200() };
        let (activations, result, factors) = (F16, result.into(), true);
        let case = GroupedCase { activations, result, factors, ..GroupedCase::new(counts, sizes) };
        let mut experiment = grouped(kernel, &gpu, case, input);
        // Beside the clusters there is room for the kernel before.
        experiment.gpu.sms += 2;
        experiment
    };
    // The last one weighs most, and becomes the first.
    let many = std::array::from_fn::<_, 32, _>(|group| if group < 31 { 1 } else { 200 });
    check_briefly(&[
        on(1, &[36, 0, 200], [500, 656], FloatType::F32, "counts"),
        on(1, &[36, 0, 200], [504, 256], FloatType::F16, "a"),
        on(2, &[40], [750, 2800], FloatType::F32, "factors"),
        on(16, &many, [256, 128], FloatType::F32, "a"),
    ]);
}

/// Faults of a grouped kernel of sm_120f, and the percentage of them that must be noticed: as those of other problems, and
/// those of the table.
const SM120: (usize, u32) = (24, 75);

/// The launches of grouped products by `kernel`, which is a warp's role alone, on an RTX 5090: groups that fill no tile,
/// CTAs with several tiles and tiles of several CTAs, with and without room for the kernel before; counts, factors or
/// activations that are late; a CTA without work; many small groups; bad counts.
fn sm120(kernel: &'static str, format: Format, activations: ActivationType) {
    let on_sms = |sms: u32, counts: &[usize], sizes, input| {
        let gpu = Gpu { sms, ..Gpu::rtx5090() };
        let case =
            GroupedCase { format, activations, factors: true, ..GroupedCase::new(counts, sizes) };
        grouped(kernel, &gpu, case, input)
    };
    let on = |counts: &[usize], sizes, input| {
        let mut experiment = on_sms(1, counts, sizes, input);
        // Beside the kernel there is room for the one before.
        experiment.gpu.sms = 2;
        experiment
    };
    let bad = GroupedCase { format, activations, ..GroupedCase::new(&[5, 8, 3], [56, 416]) };
    check_one_role(
        &[
            // The last step's stage is the first, over which sums are put.
            on(&[5, 0, 18, 3], [200, 1248], "counts"),
            on(&[5, 8, 3], [56, 2464], "a"),
            on(&[5, 8, 3], [56, 2464], "factors"),
            on_sms(2, &[12], [128, 10240], "a"),
            on_sms(3, &[12], [140, 10240], "a"),
            on_sms(8, &[1; 33], [56, 1408], "a"),
            refused(kernel, &Gpu { sms: 1, ..Gpu::rtx5090() }, bad),
        ],
        SM120,
    );
}

/// Block-scaled `mma.sync` of groups.
#[test]
fn sm120_groups() {
    sm120("gemm_sm120_nvfp4_128x16_grouped", Format::Nvfp4, LINEAR);
}

/// Weights decoded to 16 bits: rows that choose their weights, groups whose results the copy engine stores, and
/// many small groups of a gated product.
#[test]
fn sm100_decoded() {
    let kernel = "gemm_sm100_nvfp4_f16_128x64_grouped";
    let on = |sms: u32, case: GroupedCase, input| {
        let gpu = Gpu { sms, ..nvfp4_tests::b200() };
        let case = GroupedCase { activations: F16, factors: true, ..case };
        let mut experiment = grouped(kernel, &gpu, case, input);
        // Beside the kernel there is room for the one before.
        experiment.gpu.sms += 1;
        experiment
    };
    let gated = GroupedCase { gated: true, ..GroupedCase::new(&[1; 32], [64, 128]) };
    check_briefly(&[
        one_token(kernel, Gpu { sms: 2, ..nvfp4_tests::b200() }, Which::First),
        one_token(kernel, Gpu { sms: 2, ..nvfp4_tests::b200() }, Which::Last),
        on(2, GroupedCase::new(&[70, 0, 33], [136, 1264]), "factors"),
        on(16, gated, "counts"),
    ]);
}

/// A launch of `moe_pack`, of a rank that exchanges rows with itself: a kernel before makes the sources.
fn packing(gpu: &Gpu) -> Experiment {
    captured("moe_pack", "one rank", gpu, Which::Last, |kernels| {
        let case = MixtureCase::new([20, 5, 3], [32, 32], HalfType::F16);
        let mixture = Mixture::<Nvfp4>::new(case, 7);
        let step = mixture.step(1);
        let operands = mixture.operands(&step);
        let device = kernels.device();
        let weights = operands.repack(device).expect("weights");
        let weights = weights.map(|of| of.upload(device).expect("memory"));
        let places = ExpertPlaces::even(5, 1).expect("one rank");
        let shape = ExpertsShape { tokens: 20, top_k: 3, capacity: 60 };
        let (products, half) = (weights.each_ref(), HalfType::F16);
        let options = &operands.options;
        let experts = Experts::new(kernels, shape, (&places, 0), products, half, options);
        let experts = experts.expect("a layer");
        let memory = experts.memory().expect("memory");
        let words = |bytes: Vec<u8>| DeviceBuffer::upload(device, "x", &bytes).expect("memory");
        let x = words(operands.tokens.bytes().to_vec());
        let ids = words(operands.ids.iter().flat_map(|id| id.to_le_bytes()).collect());
        let factors = words(operands.weights.iter().flat_map(|x| x.to_le_bytes()).collect());
        let out = words(vec![0; experts.out_bytes()]);
        let inputs = MoeInputs { activations: &x, ids: &ids, weights: &factors, shared: None };
        let ends = HostExchange::all(1, Duration::from_secs(60));
        let launched =
            experts.launch(&inputs, products, &memory, &ends[0], &out, MoeBiases::default());
        launched.expect("a launch");
        let run =
            MoeRun::new(kernels, &operands, operands.repack(device).expect("weights").each_ref());
        let run = run.expect("a layer");
        assert_eq!(out.read().expect("readable"), {
            run.launch().expect("a launch");
            run.result().expect("readable")
        });
        ["sources", "records to send"]
    })
}

/// The kernels around the products. Routing: warps with several rounds of slots, and more experts than a warp
/// has lanes. Combining reads positions behind the kernels before, or what is settled before that.
#[test]
fn around_the_products() {
    for arch in Arch::compiled() {
        let gpu = nvfp4_tests::machine(arch);
        let on = |kernel, shape, steps, places| {
            let case = MixtureCase::new(shape, [32, 32], HalfType::F16);
            let case = MixtureCase { extras: true, ..case };
            layer(kernel, &gpu, case, steps, Which::Last, places)
        };
        let run = |launches: &[Experiment], least| {
            check(launches, Effort { seeds: 64, least, caught: 95 });
        };
        let small = [20, 5, 3];
        run(&[on("moe_route", [300, 70, 4], Steps::Together, ["ids", "positions"])], 8);
        run(
            &[on("moe_gather", small, Steps::Together, ["sources", "gathered"])],
            overlapping(arch, 1),
        );
        run(&[packing(&gpu)], overlapping(arch, 1));
        run(
            &[
                on("moe_combine", small, Steps::Together, ["rows", "out"]),
                on("moe_combine", small, Steps::Apart, ["positions", "out"]),
            ],
            overlapping(arch, 2),
        );
    }
}
