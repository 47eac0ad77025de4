//! Batch-invariant plans on the four emulated targets: a row's result has the same bits in batches of 1 to 300 tokens, at
//! every place in them and beside any other rows; dense, gated, and grouped by any counts. Without the option bits differ
//! somewhere on each target: so the comparison can see it.

use fp4_formats::gemm::Split;
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    Activation, Activations, Fp8Matrix, GatedWeights, Gemm, GemmOptions, GemmOverrides, GemmPlan,
    GemmRun, GroupedRun, HalfMatrix, Output, Repacked, RowScaled, UpOptions, Weights, format_of,
};
use nvfp4::quantize::{QuantizeOptions, TensorScale, quantize_matrix, recipe_by_name};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{blocks, refused};
use nvfp4_tests::{TARGETS, emulated_on};
use ptx_emu::{Gpu, Schedule};

/// Sizes of batches, around those of tiles.
const BATCHES: [usize; 13] = [1, 2, 3, 7, 16, 17, 33, 64, 65, 128, 129, 200, 300];
/// Rows whose results are compared.
const ROWS: usize = 3;

/// A target's machine with few SMs: they have several tiles each, and runs of stream-K end within tiles.
fn few_sms(target: &str) -> Kernels {
    let name = target.strip_prefix("emu:").expect("an emulated machine");
    let gpu = Gpu::by_name(name).expect("known");
    emulated_on(Gpu { sms: 12, ..gpu }, Schedule::Eager)
}

/// The activations of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tokens {
    Halves(HalfType),
    Blocks(ScaleLayout),
    ScaledRows,
    Fp8,
}

/// A batch of tokens of K columns: rows of normal values by number.
struct Batch {
    k: usize,
    /// The number of each row; rows below [`ROWS`] are compared.
    rows: Vec<usize>,
}

impl Batch {
    /// A batch in which the compared rows are at different places for each seed, beside others.
    fn new(k: usize, tokens: usize, seed: usize) -> Self {
        let mut rows: Vec<usize> = (0..tokens).map(|at| ROWS + seed * 1000 + at).collect();
        for row in 0..ROWS.min(tokens) {
            let at = (seed * 31 + row * 97 + tokens / 2) % tokens;
            let free = (0..tokens).map(|by| (at + by) % tokens).find(|&at| rows[at] >= ROWS);
            rows[free.expect("room")] = row;
        }
        Self { k, rows }
    }

    fn values(&self) -> Vec<f32> {
        let row = |&number: &usize| {
            let mut rng = SplitMix64::new(number as u64);
            (0..self.k).map(|_| rng.normal() as f32).collect::<Vec<_>>()
        };
        self.rows.iter().flat_map(row).collect()
    }

    fn dims(&self) -> Dims {
        Dims::new(1, self.rows.len(), self.k).expect("dims")
    }

    /// Calls `run` with the tokens.
    fn with<F: BlockFormat, R>(
        &self,
        tokens: Tokens,
        run: impl FnOnce(&Activations<'_, F>) -> R,
    ) -> R {
        let (values, dims) = (self.values(), self.dims());
        let quantized = |scale, layout| {
            let format = format_of::<F>();
            let recipe = if format == Format::Nvfp4 { "torchao" } else { "floor" };
            let options = QuantizeOptions::new(recipe_by_name(format, recipe).expect("known"));
            quantize_matrix("a", &values, dims, &options.scale(scale).layout(layout)).expect("a")
        };
        match tokens {
            Tokens::Halves(half) => {
                run(&Activations::Halves(&HalfMatrix::round("a", dims, half, &values).expect("a")))
            }
            Tokens::Blocks(layout) => {
                let matrix = quantized(TensorScale::Given(0.01), layout);
                let (codes, scales) = (matrix.codes, matrix.scales);
                let blocks = BlockScaled::new("a", dims, layout, codes, scales, 0.01);
                run(&Activations::Blocks(&blocks.expect("a")))
            }
            Tokens::ScaledRows => {
                let matrix = quantized(TensorScale::PerRow, ScaleLayout::Linear);
                let rows = RowScaled::of_matrix("a", matrix, dims).expect("a");
                run(&Activations::ScaledRows(&rows))
            }
            Tokens::Fp8 => {
                let halves = HalfMatrix::round("a", dims, HalfType::Bf16, &values).expect("a");
                run(&Activations::Fp8(&Fp8Matrix::quantize(&halves).expect("a")))
            }
        }
    }

    /// The bytes of the results of the compared rows that the batch has, of a row's bytes each.
    fn compared(&self, bytes: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let row = bytes.len() / self.rows.len();
        let found = self.rows.iter().enumerate().filter(|(_, number)| **number < ROWS);
        found.map(|(at, &number)| (number, bytes[at * row..][..row].to_vec())).collect()
    }
}

/// Results of rows, the first found of each.
#[derive(Default)]
struct Seen(Vec<Option<(usize, Vec<u8>)>>);

impl Seen {
    /// Compares the rows of a batch with those of others before; the first differing row and the batch it is of.
    fn differs(&mut self, tokens: usize, rows: Vec<(usize, Vec<u8>)>) -> Option<(usize, usize)> {
        self.0.resize(ROWS, None);
        let mut found = None;
        for (number, bytes) in rows {
            match &self.0[number] {
                None => self.0[number] = Some((tokens, bytes)),
                Some((first, right)) if *right != bytes => {
                    found = found.or(Some((number, *first)));
                }
                Some(_) => {}
            }
        }
        found
    }
}

/// The combinations of weights, activations and options that are compared.
struct Combination {
    tokens: Tokens,
    gated: bool,
    options: GemmOptions,
}

fn combinations(n: usize, format: Format) -> Vec<Combination> {
    let bias: Vec<f32> = (0..n).map(|at| at as f32 / 64.0 - 1.0).collect();
    let of = |tokens, options| Combination { tokens, gated: false, options };
    let nvfp4 = Output::Nvfp4 { scale: 0.5, layout: ScaleLayout::Linear };
    let plain = GemmOptions::new;
    let gated = || plain().activation(Activation::Silu).up(UpOptions::new().alpha(0.5));
    let linear = Tokens::Blocks(ScaleLayout::Linear);
    let bf16 = Tokens::Halves(HalfType::Bf16);
    let mut all = vec![
        of(bf16, plain().output(FloatType::F32)),
        of(bf16, plain()),
        of(bf16, plain().output(nvfp4).bias(bias)),
        of(linear, plain().output(FloatType::Bf16)),
        of(Tokens::Blocks(ScaleLayout::Blocked128x4), plain().output(FloatType::F32)),
        of(Tokens::Fp8, plain()),
        Combination { tokens: bf16, gated: true, options: gated() },
        Combination { tokens: linear, gated: true, options: gated().output(FloatType::F32) },
    ];
    if format == Format::Nvfp4 {
        all.push(of(Tokens::ScaledRows, plain().output(FloatType::F32)));
        all.push(of(Tokens::Halves(HalfType::F16), plain().output(FloatType::F32)));
    }
    all
}

/// Weights of one matrix or two.
struct Made<F>([BlockScaled<F>; 2]);

impl<F: BlockFormat> Made<F> {
    fn new([n, k]: [usize; 2], seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let mut one =
            || blocks(Generator::FullRange, [1, n, k], ScaleLayout::Linear, 1.0, &mut rng);
        Self([one(), one()])
    }

    fn of(&self, gated: bool) -> Weights<'_, F> {
        let Self([gate, up]) = self;
        if gated { GatedWeights::pair(gate, up).expect("a pair").into() } else { gate.into() }
    }
}

/// Runs a product of a batch of tokens; the results' bytes and the plan.
fn run<F: BlockFormat>(
    kernels: &Kernels,
    a: &Activations<'_, F>,
    weights: &Repacked,
    options: &GemmOptions,
) -> (Vec<u8>, GemmPlan) {
    let run = GemmRun::new(kernels, a, weights, options).expect("planned");
    let result = run.run().expect("runs");
    let mut bytes = result.bytes;
    if !result.scales.is_empty() {
        // Linear scales: those of a row beside its codes.
        let rows = result.dims.rows();
        let (codes, scales) = (bytes.len() / rows, result.scales.len() / rows);
        let row =
            |at: usize| [&bytes[at * codes..][..codes], &result.scales[at * scales..][..scales]];
        bytes = (0..rows).flat_map(|at| row(at).concat()).collect();
    }
    (bytes, result.plan)
}

/// The batches of one combination.
struct Compared {
    /// The row that differs first, the batch that it was found in, and the one in which it differs.
    differs: Option<[usize; 3]>,
    /// Kernels and splits that ran.
    ran: Vec<(&'static str, Split)>,
}

/// Compares all batches of one combination.
fn batches<F: BlockFormat>(
    kernels: &Kernels,
    (made, [_, k]): (&Made<F>, [usize; 2]),
    combination: &Combination,
    invariant: bool,
) -> Compared {
    let Combination { tokens, gated, options } = combination;
    let options = options.clone().batch_invariant(invariant);
    let (mut seen, mut all) = (Seen::default(), Compared { differs: None, ran: Vec::new() });
    for (seed, size) in BATCHES.into_iter().enumerate() {
        let batch = Batch::new(k, size, seed);
        batch.with::<F, _>(*tokens, |a| {
            let weights = Repacked::rounded(kernels.device(), made.of(*gated), a.kind());
            let (bytes, plan) = run(kernels, a, &weights.expect("kernels"), &options);
            let different = seen.differs(size, batch.compared(&bytes));
            all.differs = all.differs.or(different.map(|(row, first)| [row, first, size]));
            if !all.ran.contains(&(plan.kernel, plan.split)) {
                all.ran.push((plan.kernel, plan.split));
            }
        });
    }
    all
}

fn dense<F: BlockFormat>(sizes: [usize; 2]) {
    for target in TARGETS {
        let kernels = few_sms(target);
        let made = Made::<F>::new(sizes, 7);
        let mut differs = false;
        for combination in combinations(sizes[0], format_of::<F>()) {
            let Combination { tokens, gated, .. } = &combination;
            let Compared { differs: found, ran } =
                batches(&kernels, (&made, sizes), &combination, true);
            let what = format!("{target} {tokens:?} {gated} {sizes:?}");
            assert_eq!(found, None, "{what}: row, and batches in which it differs; {ran:?}");
            let split = ran[0].1;
            let one = split != Split::StreamK && ran.iter().all(|(_, other)| *other == split);
            assert!(one, "{what}: {ran:?}");
            if !differs {
                let without = batches(&kernels, (&made, sizes), &combination, false);
                differs = without.differs.is_some();
            }
        }
        assert!(differs, "{target}: nothing differs without the option");
    }
}

/// All kernels that a plan may have give all results the same bits, with each split that there is for all M.
fn every_kernel<F: BlockFormat>() {
    let ([m, n, k], format) = ([130, 144, 656 / F::BLOCK * F::BLOCK], format_of::<F>());
    let mut kernels_seen = Vec::new();
    for target in TARGETS {
        let kernels = few_sms(target);
        let made = Made::<F>::new([n, k], 3);
        for Combination { tokens, gated, options } in combinations(n, format) {
            Batch::new(k, m, 1).with::<F, _>(tokens, |a| {
                let weights = Repacked::rounded(kernels.device(), made.of(gated), a.kind());
                let weights = weights.expect("kernels");
                for split in [Split::None, Split::Cluster(2), Split::Cluster(4)] {
                    let invariant = GemmOverrides::new().batch_invariant(true).split(split);
                    let by = |overrides: GemmOverrides| options.clone().overrides(overrides);
                    let of_split = by(invariant.clone());
                    let Ok(plan) = GemmRun::new(&kernels, a, &weights, &of_split) else {
                        assert!(split != Split::None, "{target} {tokens:?}: whole tiles");
                        continue;
                    };
                    let mut first = None;
                    for candidate in &plan.plan().candidates {
                        assert_eq!(candidate.split, split);
                        let named = invariant.clone().kernel(candidate.kernel.to_owned());
                        let (bytes, ran) = run(&kernels, a, &weights, &by(named));
                        assert_eq!(ran.kernel, candidate.kernel);
                        kernels_seen.push(ran.kernel);
                        let (of, right) = first.get_or_insert((ran.kernel, bytes.clone()));
                        let at = bytes.iter().zip(&*right).position(|(got, right)| got != right);
                        let what = format!("{target} {tokens:?} {gated} {split}");
                        assert_eq!(at, None, "{what}: {} beside {of}, byte", ran.kernel);
                    }
                }
            });
        }
    }
    kernels_seen.sort_unstable();
    kernels_seen.dedup();
    assert!(kernels_seen.len() > 40, "{kernels_seen:?}");
}

#[test]
fn every_nvfp4_kernel_adds_in_one_order() {
    every_kernel::<Nvfp4>();
}

#[test]
fn every_mxfp4_kernel_adds_in_one_order() {
    every_kernel::<Mxfp4>();
}

#[test]
fn nvfp4_rows_have_the_same_bits_in_any_batch() {
    dense::<Nvfp4>([144, 656]);
}

#[test]
fn mxfp4_rows_have_the_same_bits_in_any_batch() {
    dense::<Mxfp4>([64, 1056]);
}

/// Grouped products: a row of a group has the same bits whatever the group's and the other groups' tokens are.
#[test]
fn grouped_rows_have_the_same_bits_by_any_counts() {
    let (n, k, groups) = (144, 656, 3);
    for target in TARGETS {
        let kernels = few_sms(target);
        let made: Vec<_> = (0..groups).map(|seed| Made::<Nvfp4>::new([n, k], seed)).collect();
        let mut differs = false;
        for combination in combinations(n, Format::Nvfp4) {
            let Combination { tokens, gated, options } = &combination;
            // Fewer: activations in e4m3 and the layouts of results are those of dense products.
            if !matches!(
                tokens,
                Tokens::Halves(_) | Tokens::Blocks(ScaleLayout::Linear) | Tokens::Fp8
            ) {
                continue;
            }
            let mut weights = None;
            // Without the option until something differs.
            for invariant in [true, false] {
                if !invariant && differs {
                    continue;
                }
                let options = options.clone().batch_invariant(invariant);
                let mut seen = Seen::default();
                let mut found = None;
                for (seed, size) in BATCHES.into_iter().enumerate().step_by(2) {
                    let batch = Batch::new(k, size, seed);
                    // The compared rows' group has them alone, in front of one group and behind another.
                    let counts = [[2 * seed, size, 5], [0, size, 0], [130, size, 40]][seed % 3];
                    let others = |count: usize, by: usize| {
                        (0..count).map(move |at| ROWS + 100_000 + by + seed * 500 + at)
                    };
                    let rows = others(counts[0], 0).chain(batch.rows.iter().copied());
                    let rows = rows.chain(others(counts[2], 50_000)).collect();
                    let all = Batch { k, rows };
                    all.with::<Nvfp4, _>(*tokens, |a| {
                        let weights = weights.get_or_insert_with(|| {
                            let part = |made: &Made<Nvfp4>| {
                                let of = made.of(*gated);
                                Repacked::rounded(kernels.device(), of, a.kind()).expect("kernels")
                            };
                            let parts: Vec<_> = made.iter().map(part).collect();
                            Repacked::stack(&parts).expect("of one size")
                        });
                        let run = GroupedRun::new(&kernels, a, weights, &counts, &options);
                        let result = run.expect("planned").run().expect("runs");
                        let row = result.bytes.len() / all.rows.len();
                        let own = &result.bytes[counts[0] * row..][..size * row];
                        let different = seen.differs(size, batch.compared(own));
                        found = found.or(different.map(|(row, first)| (row, first, size)));
                    });
                }
                let what = format!("{target} {tokens:?} {gated}");
                match invariant {
                    true => assert_eq!(found, None, "{what}: row, and batches in which it differs"),
                    false => differs |= found.is_some(),
                }
            }
        }
        // sm_100a's kernels take whole tiles of groups, and multiply by one instruction.
        let whole = target == TARGETS[1];
        assert!(differs || whole, "{target}: nothing differs without the option");
    }
}

/// Kernels and splits that do not add K in the one order are refused.
#[test]
fn what_is_asked_for_beside_it_has_one_order() {
    for target in TARGETS {
        let kernels = few_sms(target);
        let made = Made::<Nvfp4>::new([64, 512], 1);
        Batch::new(512, 4, 0).with::<Nvfp4, _>(Tokens::Halves(HalfType::Bf16), |a| {
            let weights = Repacked::rounded(kernels.device(), made.of(false), a.kind());
            let weights = weights.expect("kernels").upload(kernels.device()).expect("memory");
            let plan = |overrides: GemmOverrides| {
                let options = GemmOptions::new().overrides(overrides.batch_invariant(true));
                Gemm::new(&kernels, &weights, [1, 4], a.kind(), &options)
            };
            let text = refused("a split", plan(GemmOverrides::new().split(Split::StreamK)));
            assert!(text.starts_with("split of K must be none"), "{target}: {text}");
            plan(GemmOverrides::new().split(Split::None)).expect("whole tiles");
            let few = match target {
                _ if target == TARGETS[0] => "gemm_sm90_nvfp4_bf16_128x16",
                _ if target == TARGETS[1] => return,
                _ => "gemm_sm80_nvfp4_bf16_128x16",
            };
            let text = refused("a kernel", plan(GemmOverrides::new().kernel(few.to_owned())));
            assert!(text.starts_with("kernel must be one of"), "{target}: {text}");
        });
    }
}
