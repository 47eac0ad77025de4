//! Batch-invariant mixtures of experts on the four emulated targets: a token's result has the same bits in layers of 1 to 129
//! tokens, at every place and whatever the other tokens are and choose.

use fp4_formats::{FloatType, HalfType, Nvfp4, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::gemm::{GatedWeights, HalfMatrix, Repacked, Weights};
use nvfp4::moe::{MoeOptions, MoeShape, TokenFormat, TokenScales};
use nvfp4::tensor::Dims;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::{HostBiases, MoeOperands, MoeRun};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::blocks;
use nvfp4_tests::{TARGETS, emulated_on};
use ptx_emu::{Gpu, Schedule};

const TOKENS: [usize; 6] = [1, 2, 7, 33, 65, 129];
const EXPERTS: usize = 5;
const TOP_K: usize = 2;

/// A target's machine with few SMs: they have several tiles each, and runs of stream-K end within tiles.
fn few_sms(target: &str) -> Kernels {
    let name = target.strip_prefix("emu:").expect("an emulated machine");
    let gpu = Gpu::by_name(name).expect("known");
    emulated_on(Gpu { sms: 12, ..gpu }, Schedule::Eager)
}

/// The token whose result is compared, its choices and their weights: number 0; others are made of their numbers.
fn token(number: usize, hidden: usize) -> (Vec<f32>, [i32; TOP_K], [f32; TOP_K]) {
    let mut rng = SplitMix64::new(number as u64);
    let values = (0..hidden).map(|_| rng.normal() as f32).collect();
    let first = rng.next_u64() as usize % EXPERTS;
    let second = (first + 1 + rng.next_u64() as usize % (EXPERTS - 1)) % EXPERTS;
    (values, [first as i32, second as i32], [0.625, 0.375])
}

#[test]
fn tokens_have_the_same_bits_beside_any_others() {
    let (hidden, between) = (656, 272);
    let formats = [
        None,
        Some(TokenFormat::Blocks(TokenScales { tokens: 0.01, between: 0.01 })),
        Some(TokenFormat::ScaledRows),
        Some(TokenFormat::Fp8),
    ];
    for target in TARGETS {
        let kernels = few_sms(target);
        let mut rng = SplitMix64::new(3);
        let mut made = |sizes| -> Vec<_> {
            let layout = ScaleLayout::Linear;
            (0..EXPERTS)
                .map(|_| blocks::<Nvfp4>(Generator::FullRange, sizes, layout, 1.0, &mut rng))
                .collect()
        };
        let (gate, up) = (made([1, between, hidden]), made([1, between, hidden]));
        let down = made([1, hidden, between]);
        let mut differs = false;
        for quantized in formats {
            let mut weights: Option<[Repacked; 2]> = None;
            for invariant in [true, false] {
                if !invariant && differs {
                    continue;
                }
                let mut right: Option<Vec<u8>> = None;
                for (seed, tokens) in TOKENS.into_iter().enumerate() {
                    let place = (seed * 37 + tokens / 2) % tokens;
                    let number = |at: usize| if at == place { 0 } else { 1 + seed * 1000 + at };
                    let all: Vec<_> = (0..tokens).map(|at| token(number(at), hidden)).collect();
                    let values: Vec<f32> =
                        all.iter().flat_map(|(values, ..)| values.iter().copied()).collect();
                    let dims = Dims::new(1, tokens, hidden).expect("dims");
                    let x = HalfMatrix::round("x", dims, HalfType::Bf16, &values).expect("x");
                    let ids: Vec<i32> = all.iter().flat_map(|(_, ids, _)| *ids).collect();
                    let of_choices: Vec<f32> = all.iter().flat_map(|(.., of)| *of).collect();
                    let pair = |at: usize| GatedWeights::pair(&gate[at], &up[at]).expect("a pair");
                    let operands = MoeOperands {
                        shape: MoeShape {
                            tokens,
                            top_k: TOP_K,
                            experts: EXPERTS,
                            first: 0,
                            count: EXPERTS,
                        },
                        tokens: &x,
                        ids: &ids,
                        weights: &of_choices,
                        first: (0..EXPERTS).map(|at| Weights::Gated(pair(at))).collect(),
                        second: down.iter().map(Weights::Plain).collect(),
                        factors: None,
                        biases: HostBiases::default(),
                        shared: None,
                        options: MoeOptions::new()
                            .quantized(quantized)
                            .output(FloatType::F32)
                            .batch_invariant(invariant),
                    };
                    let weights = weights.get_or_insert_with(|| {
                        operands.repack_rounded(kernels.device()).expect("kernels")
                    });
                    let run = MoeRun::new(&kernels, &operands, weights.each_ref());
                    let run = run.expect("planned");
                    run.launch().expect("runs");
                    assert_eq!(run.problem().expect("readable"), None);
                    let row = hidden * 4;
                    let got = run.result().expect("written")[place * row..][..row].to_vec();
                    let right = right.get_or_insert_with(|| got.clone());
                    if invariant {
                        assert!(*right == got, "{target} {quantized:?}: {tokens} tokens");
                    } else {
                        differs |= *right != got;
                    }
                }
            }
        }
        // sm_100a's kernels take whole tiles of groups, and multiply by one instruction.
        let whole = target == TARGETS[1];
        assert!(differs || whole, "{target}: nothing differs without the option");
    }
}
