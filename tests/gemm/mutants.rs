//! Mutation check of the GEMM kernels but for grouped ones, as tests/library/mutants.rs does for the others.
//!
//! The host library makes the launch, on a machine with few SMs so that a CTA has several tiles;
//! its result is checked against the f64 oracle first.

use fp4_formats::FloatType;
use fp4_formats::ScaleLayout::Blocked128x4;
use fp4_formats::gemm::Split;
use fp4_formats::gemm::sm90;
use fp4_formats::gemm::sm100::{CONFIGS, Sm100Params};
use fp4_formats::quantize::Format;
use nvfp4::tune::ResultKind;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::{ActivationType, BLOCKED, Case, F16, LINEAR};
use nvfp4_tests::mutation::{Which, captured, check_briefly, check_one_role, first_written};
use ptx_emu::Gpu;
use ptx_emu::experiment::Experiment;
use std::mem::offset_of;

/// A product by a kernel with a split of K, of the sizes M, N and K; exact operands with
/// scales in the 128x4 layout.
fn case(
    kernel: &str,
    split: Split,
    [m, n, k]: [usize; 3],
    activations: ActivationType,
    result: ResultKind,
) -> Case {
    let case = Case::new([m, n, k, 1]).activations(activations).result(result);
    Case { layout: Blocked128x4, ..case }.kernel(kernel, split)
}

/// The launch of `case` on a machine, checked against the oracle. The kernel before makes the
/// activations or their codes, which are laid out, or the `input` of this name.
fn experiment_of(case: &Case, gpu: &Gpu, input: Option<&'static str>) -> Experiment {
    let kernel = case.overrides.kernel.as_deref().expect("a kernel");
    let which = if case.exact() { Which::Last } else { Which::First };
    let name = format!("{}-{}", case.shape, input.unwrap_or_default());
    captured(kernel, &name, gpu, which, |kernels| {
        let result = case.check(kernels);
        println!("{}", result.plan);
        let input = match (input, case.activations) {
            (Some(input), _) => input,
            _ if !result.plan.before.is_empty() => "workspace",
            (None, ActivationType::Halves(_) | ActivationType::Fp8(_)) => "a",
            (None, ActivationType::Blocks(_)) => "a codes",
        };
        [input, first_written(case.result)]
    })
}

/// The launch of `case` on a machine, checked against the oracle.
fn experiment(case: &Case, gpu: &Gpu) -> Experiment {
    experiment_of(case, gpu, None)
}

/// A launch on sm_90a on `sms` SMs, with activations of the type that the kernel takes.
fn sm90_on(sms: u32, kernel: &'static str, split: Split, shape: [usize; 3]) -> Experiment {
    let gpu = Gpu { sms, ..Gpu::h200() };
    experiment(&case(kernel, split, shape, sm90_activations(kernel), FLOATS), &gpu)
}

/// The activations that a kernel of sm_90a multiplies.
fn sm90_activations(kernel: &str) -> ActivationType {
    let config = sm90::CONFIGS.iter().find(|config| config.name == kernel);
    ActivationType::as_they_are(config.expect("a configuration").scheme.operand)
}

/// Planned for an SM, where two CTAs fit, or for a cluster.
fn sm90(kernel: &'static str, split: Split, shape: [usize; 3]) -> Experiment {
    let mut experiment = sm90_on(1, kernel, split, shape);
    // Beside a cluster there is room for the kernel before.
    experiment.gpu.sms = split.cluster();
    experiment
}

/// Tiles shared by a CTA on each of `sms` SMs. A CTA sends more steps than it has stages, so that
/// it waits for one when it begins the next tile, which has an odd number of steps: the loop is
/// unrolled twice, and the odd step has its own code.
fn shared(sms: u32, kernel: &'static str, shape: [usize; 3]) -> Experiment {
    sm90_on(sms, kernel, Split::StreamK, shape)
}

/// `wgmma`. Six tiles of 17 steps for two CTAs: each of the six stages is `free` eight times. One
/// `wait_group` covers its warpgroup, so a stage that a warp fewer has to free is overwritten too
/// early only after several rounds, when a whole warpgroup is missing. Three tiles of 15: the
/// middle one's sums meet in the workspace. Two CTAs of 13 steps: sums are loaded remotely.
#[test]
fn sm90_32_tokens() {
    let kernel = "gemm_sm90_nvfp4_f16_128x32";
    check_briefly(&[
        sm90(kernel, Split::None, [20, 740, 2160]),
        shared(2, kernel, [20, 332, 1904]),
        sm90(kernel, Split::Cluster(2), [20, 140, 3312]),
    ]);
}

/// `wgmma`, sums are sent; four stages, each of them `free` eight times. One tile of two CTAs: the
/// flag is set when its reader waits for it.
#[test]
fn sm90_64_tokens() {
    let kernel = "gemm_sm90_nvfp4_f16_128x64";
    check_briefly(&[
        sm90(kernel, Split::None, [36, 740, 1392]),
        shared(2, kernel, [36, 332, 1136]),
        shared(2, kernel, [36, 100, 1136]),
        sm90(kernel, Split::Cluster(2), [36, 140, 2288]),
    ]);
}

/// Products in e4m3, whose sums are promoted every four steps: the launches of [`sm90_32_tokens`].
#[test]
fn sm90_folded() {
    let kernel = "gemm_sm90_nvfp4_e4m3_128x32";
    check_briefly(&[
        sm90(kernel, Split::None, [20, 740, 2160]),
        shared(2, kernel, [20, 332, 1904]),
        sm90(kernel, Split::Cluster(2), [20, 140, 3312]),
    ]);
}

/// A launch whose CTAs share activations, planned for so many SMs.
fn sharing(kernel: &'static str, split: Split, shape: [usize; 3], sms: u32) -> Experiment {
    let gpu = Gpu { sms, ..Gpu::h200() };
    let case = case(kernel, split, shape, sm90_activations(kernel), FLOATS);
    let mut experiment = experiment(&case, &gpu);
    // Beside two clusters there is room for the kernel before.
    experiment.gpu.sms = 4;
    experiment
}

/// A cluster makes three pairs of tiles, one without its second, of 13 steps in eight stages;
/// four divide three pairs of 20 steps: 10 are given, more than there are stages, 5 follow.
#[test]
fn sm90_pairs() {
    let kernel = "gemm_sm90_nvfp4_f16_128x64_multicast2";
    check_briefly(&[
        sharing(kernel, Split::None, [36, 588, 1648], 1),
        sharing(kernel, Split::StreamK, [36, 740, 2544], 16),
    ]);
}

/// The launches of [`sm90_pairs`] in e4m3, of 160 tokens: seven stages, sums that are promoted every four steps.
#[test]
fn sm90_folded_pairs() {
    let kernel = "gemm_sm90_nvfp4_e4m3_128x160_multicast2";
    check_briefly(&[
        sharing(kernel, Split::None, [150, 588, 1648], 1),
        sharing(kernel, Split::StreamK, [150, 740, 2544], 16),
    ]);
}

/// Warps on their own, eight stages.
#[test]
fn sm90_8_tokens() {
    let kernel = "gemm_sm90_nvfp4_f16_128x8";
    check_briefly(&[
        shared(3, kernel, [5, 460, 2160]),
        sm90(kernel, Split::None, [5, 740, 752]),
        sm90(kernel, Split::Cluster(2), [5, 140, 4336]),
    ]);
}

/// A launch on sm_100a. A cluster makes several tiles: those that it asks for, with `dynamic`, and otherwise
/// every so many-th one or, where the kernel takes stream-K, those of one of three runs, of which the middle
/// one begins and ends within tiles. In one launch of each kernel the clusters ask for four of eight tiles, so
/// that both places for responses are used again.
fn sm100(kernel: &'static str, result: ResultKind, shape: [usize; 3], dynamic: bool) -> Experiment {
    sm100_of(kernel, result, shape, dynamic, (BLOCKED, None))
}

/// [`sm100`] with block-scaled activations of this type, where the kernel takes them, of which
/// a kernel before makes what has the name.
fn sm100_of(
    kernel: &'static str,
    result: ResultKind,
    shape: [usize; 3],
    dynamic: bool,
    (blocks, input): (ActivationType, Option<&'static str>),
) -> Experiment {
    let config = CONFIGS.iter().find(|config| config.name == kernel).expect("a configuration");
    let activations = config.activations.map_or(blocks, ActivationType::as_they_are);
    let runs = !dynamic && config.takes_stream_k();
    let split = if runs { Split::StreamK } else { config.split };
    let sms = if runs { 3 * config.cluster() } else { 8 };
    let gpu = Gpu { sms, ..nvfp4_tests::b200() };
    let case = case(kernel, split, shape, activations, result).format(config.format);
    let mut experiment = experiment_of(&case, &gpu, input);
    if runs {
        // Beside the clusters there is room for the kernel before.
        experiment.gpu.sms += config.cluster();
        return experiment;
    }
    // Beside a cluster there is room for the kernel before, or for another cluster.
    experiment.gpu.sms = 2 * config.cluster();
    if !dynamic {
        experiment.grid = [config.cluster(), 1, 1];
    }
    let at = offset_of!(Sm100Params, dynamic);
    experiment.params[at..at + size_of::<u32>()].copy_from_slice(&u32::from(dynamic).to_le_bytes());
    experiment
}

/// A launch of a kernel of sm_80 on `sms` SMs of an H200, of weights in NVFP4.
fn sm80(
    kernel: &'static str,
    split: Split,
    shape: [usize; 3],
    sms: u32,
    result: ResultKind,
) -> Experiment {
    let gpu = Gpu { sms, ..Gpu::h200() };
    experiment(&case(kernel, split, shape, F16, result), &gpu)
}

/// Faults of a kernel of sm_80, and the percentage of them that must be noticed.
const SM80: (usize, u32) = (18, 80);
/// The same of sm_120f, whose main loop has fewer.
const SM120: (usize, u32) = (16, 75);

/// `cp.async` and `mma.sync`, few tokens: tiles in turn by the CTAs of one SM, K longer than the ring; tiles that two
/// or more CTAs share, whose sums meet in the workspace; results in blocks.
#[test]
fn sm80_16_tokens() {
    let kernel = "gemm_sm80_nvfp4_f16_128x16";
    check_one_role(
        &[
            sm80(kernel, Split::None, [12, 460, 1136], 1, FLOATS),
            sm80(kernel, Split::StreamK, [12, 332, 1904], 3, HALVES),
            sm80(kernel, Split::None, [12, 272, 304], 1, BLOCKS),
        ],
        SM80,
    );
}

/// The same of wide tiles.
#[test]
fn sm80_128_tokens() {
    let kernel = "gemm_sm80_nvfp4_f16_128x128";
    check_one_role(
        &[
            sm80(kernel, Split::None, [100, 332, 624], 1, FLOATS),
            sm80(kernel, Split::StreamK, [100, 332, 1136], 2, HALVES),
        ],
        SM80,
    );
}

/// The same of products of sizes of their own.
#[test]
fn sm80_mixed() {
    let kernel = "gemm_sm80_nvfp4_f16_128x64_mixed";
    let gpu = Gpu { sms: 1, ..Gpu::h200() };
    let sizes = [[36, 332, 624], [70, 140, 880]];
    let experiment = mixed(kernel, &gpu, &sizes, F16, FLOATS, "a");
    check_one_role(&[experiment], SM80);
}

/// A launch of a kernel of sm_120f on `sms` SMs of an RTX 5090, of NVFP4 with scales of activations in this layout.
fn sm120(
    kernel: &'static str,
    split: Split,
    shape: [usize; 3],
    (sms, activations): (u32, ActivationType),
    result: ResultKind,
) -> Experiment {
    let gpu = Gpu { sms, ..Gpu::rtx5090() };
    let mut experiment = experiment(&case(kernel, split, shape, activations, result), &gpu);
    // Beside the CTAs there is room for the kernel before.
    experiment.gpu.sms += 1;
    experiment
}

/// Block-scaled `mma.sync`, few tokens: tiles in turn by the CTAs of one SM, K longer than the ring; tiles that two
/// or more CTAs share; scales in either layout, by words and, as their rows end inside a word, by bytes; results in
/// blocks.
#[test]
fn sm120_16_tokens() {
    let kernel = "gemm_sm120_nvfp4_128x16";
    check_one_role(
        &[
            sm120(kernel, Split::None, [12, 460, 1136], (1, BLOCKED), FLOATS),
            sm120(kernel, Split::StreamK, [12, 332, 1904], (3, LINEAR), HALVES),
            sm120(kernel, Split::None, [12, 272, 1264], (1, LINEAR), BLOCKS),
        ],
        SM120,
    );
}

/// The same of weights in MXFP4 and activations in e4m3, whose tokens have scales in the epilogue.
#[test]
fn sm120_e4m3() {
    let kernel = "gemm_sm120_mxfp4_e4m3_128x16";
    let on = |split, shape, sms, result| {
        let gpu = Gpu { sms, ..Gpu::rtx5090() };
        let case = case(kernel, split, shape, ActivationType::Fp8(None), result);
        let mut experiment = experiment(&case.format(Format::Mxfp4), &gpu);
        experiment.gpu.sms += 1;
        experiment
    };
    check_one_role(
        &[
            on(Split::None, [12, 460, 1120], 1, FLOATS),
            on(Split::StreamK, [12, 332, 1888], 3, HALVES),
            on(Split::None, [12, 288, 1248], 1, BLOCKS),
        ],
        SM120,
    );
}

/// The same of wide tiles.
#[test]
fn sm120_128_tokens() {
    let kernel = "gemm_sm120_nvfp4_128x128";
    check_one_role(
        &[
            sm120(kernel, Split::None, [100, 332, 880], (1, BLOCKED), FLOATS),
            sm120(kernel, Split::StreamK, [100, 332, 1136], (2, LINEAR), HALVES),
        ],
        SM120,
    );
}

/// The same of products of sizes of their own. The one with the longest K, whose activations are late, comes first.
#[test]
fn sm120_mixed() {
    let kernel = "gemm_sm120_nvfp4_128x64_mixed";
    let gpu = Gpu { sms: 1, ..Gpu::rtx5090() };
    let sizes = [[36, 332, 1264], [70, 140, 1136]];
    let mut experiment = mixed(kernel, &gpu, &sizes, LINEAR, FLOATS, "a");
    experiment.gpu.sms += 1;
    check_one_role(&[experiment], SM120);
}

/// Products of sizes of their own, of types of `activations`, with results of type `result`.
fn mixed(
    kernel: &str,
    gpu: &Gpu,
    sizes: &[[usize; 3]],
    activations: ActivationType,
    result: ResultKind,
    input: &'static str,
) -> Experiment {
    let case = |&[m, n, k]: &[usize; 3]| {
        let case = Case::new([m, n, k, 1]).activations(activations).result(result);
        Case { layout: Blocked128x4, ..case }
    };
    let cases: Vec<Case> = sizes.iter().map(case).collect();
    products(kernel, gpu, &cases, result, input)
}

/// Products of sizes of their own, of which one has results of type `result`.
fn products(
    kernel: &str,
    gpu: &Gpu,
    cases: &[Case],
    result: ResultKind,
    input: &'static str,
) -> Experiment {
    let label = format!("{}-{}-{input}", cases[0].shape, cases.len());
    captured(kernel, &label, gpu, Which::First, |kernels| {
        check_mixed(kernels, cases);
        [input, first_written(result)]
    })
}

/// One CTA makes the tiles of two products, of which the second has a longer K: each of the six stages
/// is `free` eight times and more.
#[test]
fn sm90_mixed() {
    let kernel = "gemm_sm90_nvfp4_f16_128x64_mixed";
    let gpu = Gpu { sms: 1, ..Gpu::h200() };
    let on = |sizes: &[[usize; 3]]| {
        let mut experiment = mixed(kernel, &gpu, sizes, F16, FLOATS, "a");
        // Beside the kernel there is room for the one before.
        experiment.gpu.sms = 2;
        experiment
    };
    check_briefly(&[
        on(&[[36, 332, 1904], [70, 140, 2160]]),
        on(&[[9, 260, 1136], [40, 100, 1392], [1, 24, 144]]),
    ]);
}

/// One cluster makes the tiles of two products: results by the copy engine, by threads and as blocks.
#[test]
fn sm100_mixed() {
    let kernel = "gemm_sm100_nvfp4_256x128_mixed";
    let gpu = Gpu { sms: 4, ..nvfp4_tests::b200() };
    let on = |sizes: &[[usize; 3]], result, input| {
        let mut experiment = mixed(kernel, &gpu, sizes, BLOCKED, result, input);
        // Beside the cluster there is room for the kernel before.
        experiment.grid = [2, 1, 1];
        experiment
    };
    // Floats and blocks in turn, which use the same shared memory.
    let in_turn = |[m, n]: [usize; 2], floats, gated| {
        let case = |result: ResultKind| {
            let case = Case::new([m, n, 64, 1]).activations(BLOCKED).result(result);
            let case = Case { layout: Blocked128x4, ..case };
            if gated && result == WIDE_BLOCKS { case.gated() } else { case }
        };
        let cases = [floats, WIDE_BLOCKS, floats, floats, WIDE_BLOCKS, floats].map(case);
        // Planned for a pair of CTAs, with the weights as the rows of tiles where tokens are few.
        let one = Gpu { sms: 2, ..gpu.clone() };
        let mut experiment = products(kernel, &one, &cases, floats, "a");
        experiment.gpu.sms = gpu.sms;
        experiment.grid = [2, 1, 1];
        experiment
    };
    check_briefly(&[
        on(&[[300, 520, 2288], [256, 264, 1024]], FLOATS, "workspace"),
        on(&[[300, 101, 1024], [128, 246, 768]], FLOATS, "a"),
        on(&[[300, 112, 768], [17, 528, 1264]], BLOCKS, "workspace"),
        in_turn([40, 256], HALVES, true),
        in_turn([512, 128], FLOATS, false),
    ]);
}

const FLOATS: ResultKind = ResultKind::Floats(FloatType::F32);
const HALVES: ResultKind = ResultKind::Floats(FloatType::F16);
const BLOCKS: ResultKind = ResultKind::Blocks(Format::Nvfp4, Blocked128x4);
const WIDE_BLOCKS: ResultKind = ResultKind::Blocks(Format::Mxfp4, Blocked128x4);

/// Both orders of tiles; the ring of eight stages wraps. Results are stored by the copy engine, by threads
/// (rows are not multiples of 16 bytes), and as blocks. In runs, a cluster sends sums and makes two tiles
/// after that, whose accumulators are then used again; and one tile is of three clusters: flags are raised
/// when they are waited for.
#[test]
fn sm100_tiles() {
    let kernel = "gemm_sm100_nvfp4_128x64";
    check_briefly(&[
        sm100(kernel, FLOATS, [240, 248, 1264], false),
        sm100(kernel, FLOATS, [60, 120, 1264], false),
        sm100(kernel, FLOATS, [240, 246, 768], true),
        sm100(kernel, BLOCKS, [240, 160, 768], true),
    ]);
}

/// Few tokens, whose scales a warp loads: at once, by fours, and one by one with codes. A kernel before
/// makes scales or codes. Tiles, runs and ways to store are those of [`sm100_tiles`].
#[test]
fn sm100_few_tokens() {
    let kernel = "gemm_sm100_nvfp4_128x8";
    let (scales, codes) = (Some("a scales"), Some("a codes"));
    check_briefly(&[
        sm100_of(kernel, FLOATS, [30, 248, 1280], false, (LINEAR, scales)),
        sm100_of(kernel, FLOATS, [5, 120, 1280], false, (BLOCKED, scales)),
        sm100_of(kernel, FLOATS, [30, 248, 1264], false, (LINEAR, codes)),
        sm100_of(kernel, FLOATS, [30, 248, 768], true, (BLOCKED, scales)),
        sm100_of(kernel, FLOATS, [28, 246, 1264], true, (BLOCKED, codes)),
        sm100_of(kernel, BLOCKS, [30, 160, 768], true, (LINEAR, codes)),
    ]);
}

/// Activations in e4m3 with MXFP4 weights as they are: the ring wraps, and the sets of columns.
#[test]
fn sm100_bytes() {
    let kernel = "gemm_sm100_mxfp4_e4m3_128x64";
    check_briefly(&[
        sm100(kernel, FLOATS, [250, 240, 1248], false),
        sm100(kernel, FLOATS, [60, 120, 1248], false),
        sm100(kernel, BLOCKS, [240, 240, 768], true),
    ]);
}

/// Pairs of CTAs that fold NVFP4 weights to e4m3 in tensor memory.
#[test]
fn sm100_folded() {
    let kernel = "gemm_sm100_nvfp4_e4m3_256x128";
    check_briefly(&[
        sm100(kernel, FLOATS, [500, 500, 1264], false),
        sm100(kernel, FLOATS, [120, 250, 1264], false),
        sm100(kernel, FLOATS, [240, 500, 768], true),
        sm100(kernel, BLOCKS, [500, 496, 768], true),
    ]);
}

/// Pairs of CTAs that share rows by multicast.
#[test]
fn sm100_pairs_and_shares() {
    let kernel = "gemm_sm100_nvfp4_256x128_multicast2";
    check_briefly(&[
        sm100(kernel, FLOATS, [500, 500, 1008], true),
        sm100(kernel, BLOCKS, [500, 1008, 512], true),
    ]);
}

/// A cluster of two that split K.
#[test]
fn sm100_splits() {
    let kernel = "gemm_sm100_nvfp4_128x64_split2";
    check_briefly(&[
        sm100(kernel, FLOATS, [240, 120, 2544], true),
        sm100(kernel, FLOATS, [240, 246, 1024], true),
        sm100(kernel, BLOCKS, [240, 112, 1024], true),
    ]);
}
