//! Mixtures of experts whose activations are quantised, on the emulated machines.

use fp4_formats::quantize::Format;
use fp4_formats::{HalfType, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::gemm::{Activation, ActivationKind, GatedWeights, GemmOptions, Repacked, UpOptions};
use nvfp4::moe::{
    MoeBiases, MoeInputs, MoeLayer, MoeOptions, MoeProblem, MoeShape, TokenFormat, TokenScales,
};
use nvfp4_lab::bench::{self, ActivationInput, GemmBench, Protocol};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_lab::shape::MixtureShape;
use nvfp4_tests::gemm::blocks;
use nvfp4_tests::{DEVICES, SCHEDULES, TARGETS, emulated};
use ptx_emu::Schedule;

/// Layers whose activations are quantised, in both formats, and layers of MXFP4 beside bf16: each
/// step on its own inputs, as the bench compares it.
#[test]
fn steps_of_layers() {
    let shape = |[tokens, experts, top_k, hidden, between]: [usize; 5]| MixtureShape {
        tokens,
        experts,
        top_k,
        hidden,
        between,
    };
    let cases = [
        (shape([5, 6, 2, 64, 96]), ActivationInput::Fp4, Format::Nvfp4),
        (shape([1, 40, 3, 96, 48]), ActivationInput::Fp4, Format::Nvfp4),
        (shape([70, 3, 2, 272, 144]), ActivationInput::Fp4, Format::Nvfp4),
        (shape([9, 12, 4, 160, 64]), ActivationInput::Halves(HalfType::Bf16), Format::Mxfp4),
        (shape([5, 6, 2, 64, 96]), ActivationInput::Fp4, Format::Mxfp4),
        (shape([70, 3, 2, 288, 160]), ActivationInput::Fp4, Format::Mxfp4),
        (shape([1, 40, 3, 96, 64]), ActivationInput::Fp8(Some(HalfType::F16)), Format::Mxfp4),
        (shape([40, 5, 2, 272, 144]), ActivationInput::Fp8(Some(HalfType::Bf16)), Format::Nvfp4),
        (shape([5, 6, 2, 64, 96]), ActivationInput::Fp4Rows, Format::Nvfp4),
        (shape([1, 40, 3, 96, 48]), ActivationInput::Fp4Rows, Format::Nvfp4),
        (shape([70, 3, 2, 272, 144]), ActivationInput::Fp4Rows, Format::Nvfp4),
    ];
    for (at, (shape, activations, format)) in cases.into_iter().enumerate() {
        for (device, schedule) in TARGETS
            .into_iter()
            .flat_map(|device| [at, at + 2].map(|of| (device, SCHEDULES[of % 5])))
        {
            let kernels = emulated(device, schedule);
            let bench = GemmBench {
                format,
                activations,
                generator: Generator::FullRange,
                decoded: false,
                seed: at as u64,
                layout: ScaleLayout::Linear,
                options: GemmOptions::new().activation(Activation::Silu).up(UpOptions::default()),
                quantized: None,
                protocol: Protocol::default(),
                explain: false,
                sweep: 0,
            };
            let report = bench::moe(&kernels, shape, &bench);
            let report = report.unwrap_or_else(|error| panic!("{shape}: {error}"));
            assert!(report.head.verified, "{report}");
            assert_eq!(report.steps.len(), if activations == ActivationInput::Fp4 { 6 } else { 5 });
        }
    }
}

/// An activation that has no quantised form is reported.
#[test]
fn activations_that_are_not_finite() {
    let kernels = emulated(DEVICES[0], Schedule::Eager);
    let device = kernels.device();
    let shape = MoeShape { tokens: 2, top_k: 1, experts: 1, first: 0, count: 1 };
    let mut rng = SplitMix64::new(1);
    let mut tensor = |rows, columns| {
        blocks::<Nvfp4>(Generator::Exact, [1, rows, columns], ScaleLayout::Linear, 1.0, &mut rng)
    };
    let (gate, up, down) = (tensor(16, 32), tensor(16, 32), tensor(32, 16));
    let layout = ScaleLayout::Linear;
    let kind = ActivationKind::Blocks { format: Format::Nvfp4, layout };
    let pair = GatedWeights::pair(&gate, &up).expect("a pair");
    let first = [Repacked::gated(device, &pair, kind).expect("weights")];
    let second = [Repacked::for_device(device, &down, kind).expect("weights")];
    let [first, second] = [first, second]
        .map(|parts| Repacked::stack(&parts).expect("one").upload(device).expect("memory"));
    let scales = TokenScales { tokens: 1.0, between: 1.0 };
    let options = MoeOptions::new().quantized(TokenFormat::Blocks(scales));
    let layer = MoeLayer::new(&kernels, shape, &first, &second, HalfType::Bf16, &options);
    let layer = layer.expect("a layer");
    let memory = layer.memory().expect("memory");
    let upload = |bytes: &[u8]| DeviceBuffer::upload(device, "x", bytes).expect("memory");
    let one = 0x3f80u16;
    for (bad, problem) in [(one, None), (0x7f80, Some(MoeProblem::NotFinite)), (one, None)] {
        let mut x = [one; 64];
        x[40] = bad;
        let x = upload(&x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        let (ids, weights) = (upload(&[0; 8]), upload(&[1f32.to_le_bytes(); 2].concat()));
        let inputs = MoeInputs { activations: &x, ids: &ids, weights: &weights, shared: None };
        let out = upload(&vec![0xee; layer.out_bytes()]);
        layer
            .launch(&inputs, [&first, &second], &memory, &out, MoeBiases::default())
            .expect("a launch");
        assert_eq!(memory.problem().expect("readable"), problem);
    }
    let half = ActivationKind::Halves(HalfType::Bf16);
    let pair = Repacked::gated(device, &pair, half).expect("weights");
    let wrong = Repacked::stack(&[pair]).expect("one").upload(device).expect("memory");
    let error = MoeLayer::new(&kernels, shape, &wrong, &second, HalfType::Bf16, &options)
        .expect_err("weights for bf16")
        .to_string();
    assert!(error.contains("type of activations"), "{error}");
}
