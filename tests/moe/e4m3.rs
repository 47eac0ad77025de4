//! Mixtures of experts whose tokens are quantised to e4m3 before each product (W4A8), each step on its own inputs.

use fp4_formats::gemm::{sm80, sm120};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat, HalfType, Mxfp4, Nvfp4};
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activation, Adding, Gemm, format_of};
use nvfp4::moe::{MoeShape, MoeStep};
use nvfp4_lab::moe::MoeRun;
use nvfp4_tests::mixture::{Mixture, MixtureCase, Quantized};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, emulated};

/// Checks which kernels a product of a layer may have: those that add fast where they are asked for, block-scaled products take e4m3 beside MXFP4 as they are, and the
/// kernels of sm_80 take them decoded beside NVFP4.
fn check_plan<F: BlockFormat>(product: &Gemm, adding: Adding) {
    let plan = product.plan();
    let fast = plan.candidates.iter().any(|candidate| candidate.kernel.contains("_fast"));
    assert_eq!(fast, plan.arch == Arch::Sm90a && adding == Adding::Fast, "{plan}");
    if plan.arch == Arch::Sm120f {
        let native = sm120::GROUPED.iter().any(|config| config.name == plan.kernel);
        let decoded = sm80::GROUPED.iter().any(|config| config.name == plan.kernel);
        let of_mx = format_of::<F>() == Format::Mxfp4;
        assert_eq!([native, decoded], [of_mx, !of_mx], "{plan}");
        assert_eq!(plan.to_string().contains("as they are, exactly"), of_mx, "{plan}");
    }
}

/// Runs a layer and compares each step.
fn check<F: BlockFormat>(kernels: &Kernels, case: MixtureCase, seed: u64) {
    let adding = Adding::ALL[seed as usize % 2];
    let what = format!("{}: {case:?}", kernels.device().choice());
    let mixture = Mixture::<F>::new(case, seed);
    let step = mixture.step(seed + 1);
    let mut operands = mixture.operands(&step);
    operands.options.adding = adding;
    let weights = operands.repack_rounded(kernels.device()).expect("weights");
    let run = MoeRun::new(kernels, &operands, weights.each_ref()).expect("planned");
    let products = run.layer().products().into_iter();
    products.for_each(|product| check_plan::<F>(product, adding));
    assert!(run.layer().steps().all(|step| step != MoeStep::Quantize), "{what}");
    run.launch().expect("a launch");
    assert_eq!(run.problem().expect("readable"), None, "{what}");
    let steps = run.check(&operands).expect("the oracle");
    assert_eq!(steps.len(), run.layer().steps().count(), "{what}");
    for step in steps {
        assert!(step.verified, "{what}\n{step}");
    }
}

/// Layers in both formats on a machine: few tokens and many, experts elsewhere and without tokens, biases and a shared
/// expert.
fn layers(device: &str) {
    for (at, schedule) in SCHEDULES.into_iter().enumerate() {
        let half = [HalfType::Bf16, HalfType::F16][at % 2];
        let case = |sizes, columns| MixtureCase {
            quantized: Quantized::Fp8,
            ..MixtureCase::new(sizes, columns, half)
        };
        let few = case([9, 6, 2], [64, 96]);
        let elsewhere = MoeShape { first: 1, count: 3, ..few.shape };
        let kernels = emulated(device, schedule);
        for case in [
            MixtureCase { extras: true, ..few },
            MixtureCase { shape: elsewhere, extras: true, activation: Activation::GPT_OSS, ..few },
            case([70, 3, 2], [288, 160]),
            case([1, 12, 4], [160, 64]),
        ] {
            check::<Mxfp4>(&kernels, case, at as u64);
            check::<Nvfp4>(&kernels, case, 10 + at as u64);
        }
    }
}

#[test]
fn layers_of_e4m3() {
    DEVICES.into_iter().for_each(layers);
}

#[test]
fn layers_of_e4m3_on_sm_120f() {
    layers(MACHINES[2]);
}
