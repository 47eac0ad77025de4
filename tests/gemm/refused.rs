//! Invalid products are an error before any launch, with the field's name.

use fp4_formats::ScaleLayout::{self, Blocked128x4};
use fp4_formats::gemm::Split;
use fp4_formats::gemm::sm90::CONFIGS;
use fp4_formats::quantize::Format;
use fp4_formats::{Mxfp4, Nvfp4};
use nvfp4::device::Kernels;
use nvfp4::error::Error;
use nvfp4::gemm::{GemmOptions, GemmOverrides, Output, gemm};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{Case, F16, refused};
use nvfp4_tests::{DEVICES, emulated};
use ptx_emu::Schedule;

fn machines() -> [Kernels; 2] {
    DEVICES.map(|device| emulated(device, Schedule::Eager))
}

/// The message for NVFP4 operands of these sizes with such options.
fn message(kernels: &Kernels, sizes: [usize; 4], options: &GemmOptions) -> String {
    let inputs = Case::new(sizes).inputs::<Nvfp4>();
    refused("options", gemm(kernels, &inputs.activations(), &inputs.weights, options))
}

/// Operands and vectors that do not fit one another.
#[test]
fn operands_that_do_not_fit() {
    for kernels in machines() {
        let inputs = Case::new([3, 8, 64, 1]).inputs::<Nvfp4>();
        let dims = Dims::new(1, 8, 80).expect("dims");
        let mut rng = SplitMix64::new(1);
        let other: BlockScaled<Nvfp4> =
            Generator::Exact.operand("x", dims, ScaleLayout::Linear, &mut rng).expect("an operand");
        let plain = GemmOptions::default();
        let text = refused("K", gemm(&kernels, &inputs.activations(), &other, &plain));
        assert!(text.contains("must be 64"), "{text}");
        let bias = plain.bias(vec![0.0; 7]);
        let text = message(&kernels, [3, 8, 64, 1], &bias);
        assert!(text.contains("length of the bias must be N = 8"), "{text}");
    }
}

/// f16 does not hold MXFP4's range.
#[test]
fn activations_without_a_kernel() {
    for kernels in machines() {
        let case = Case::new([8, 8, 64, 1]).format(Format::Mxfp4).activations(F16);
        let inputs = case.inputs::<Mxfp4>();
        let options = GemmOptions::default();
        let text = refused("f16", gemm(&kernels, &inputs.activations(), &inputs.weights, &options));
        assert!(text.contains("bf16") && text.contains("f16"), "{text}");
    }
}

/// Kernels and parts of K that there are not, or not for these operands. CTAs that share
/// activations do not share tiles along K.
#[test]
fn unsuitable_overrides() {
    let [h200, b200] = machines();
    let pair = CONFIGS.iter().find(|config| config.multicast > 1).expect("one that shares");
    let (small, large) = ([3, 8, 64, 1], [64, 256, 1280, 1]);
    const UNDIVIDED: &str = "split of K must be none or stream-k, but is cluster:2";
    for (kernels, sizes, kernel, split, named) in [
        // K of one step, which no split divides; K of many steps, in more parts than are taken;
        // a kernel whose clusters share activations instead.
        (&h200, small, None, Some(Split::Cluster(2)), UNDIVIDED),
        (
            &h200,
            large,
            None,
            Some(Split::Cluster(64)),
            "split of K must be none, stream-k, or cluster:N with N of at most",
        ),
        (&h200, large, Some(pair.name), Some(Split::Cluster(2)), UNDIVIDED),
        (&h200, small, Some("gemm_sm100_nvfp4_128x64"), None, "gemm_sm90_nvfp4_f16_128x8"),
        (&b200, small, Some("gemm_sm100_nvfp4_1x1"), None, "gemm_sm100_nvfp4_128x64"),
        (&b200, small, Some("gemm_sm100_nvfp4_f16_128x64"), None, "gemm_sm100_nvfp4_128x64"),
        (&b200, small, Some("gemm_sm100_nvfp4_128x64_split2"), None, "configuration"),
        (&b200, small, None, Some(Split::Cluster(3)), "configuration"),
    ] {
        let overrides = GemmOverrides::new().kernel(kernel.map(String::from)).split(split);
        let options = GemmOptions::new().overrides(overrides);
        let text = message(kernels, sizes, &options);
        assert!(text.contains(named), "{text}");
    }
}

/// N of no whole blocks of a result in NVFP4, and scales that its recipe does not accept.
#[test]
fn results_that_cannot_be_made() {
    for kernels in machines() {
        let inputs = Case::new([3, 40, 16, 1]).inputs::<Nvfp4>();
        let run = |scale: f32| {
            let output = Output::Nvfp4 { scale, layout: Blocked128x4 };
            let options = GemmOptions::new().output(output);
            gemm(&kernels, &inputs.activations(), &inputs.weights, &options).map(|_| ())
        };
        let text = refused("N", run(1.0));
        assert_eq!(text, "N must be a multiple of 16 for a result in nvfp4, but is 40");
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 2f32.powi(-122)] {
            let error = run(scale).expect_err("refused");
            assert!(matches!(error, Error::Scalar { .. }), "{scale}: {error}");
            let text = error.to_string();
            assert!(text.contains("scale of the result must be finite"), "{scale}: {text}");
        }
    }
}
