//! Products of sizes of their own in one launch, on the emulated machines, against the f64 oracle.

use fp4_formats::gemm::{Split, sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, Mxfp4, Nvfp4};
use nvfp4::device::Kernels;
use nvfp4::gemm::{
    Activation, GemmOptions, GemmOverrides, MixedGemm, MixedProduct, Output, ResultBuffers,
    UpOptions,
};
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::mixed::{MixedOperands, check_mixed};
use nvfp4_tests::gemm::{
    ActivationType, BF16, BLOCKED, Case, F16, GatedForm, LINEAR, RESULTS, refused,
};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, b200, emulated, emulated_on};
use ptx_emu::{Gpu, Schedule};

/// Sizes around those of a tile of `tokens` by `rows`, K from one block to several steps.
fn sizes(rows: usize, tokens: usize) -> [[usize; 3]; 6] {
    [
        [tokens + 3, rows + 40, 160],
        [1, 24, 32],
        [tokens, rows, 416],
        [7, 2 * rows - 8, 1056],
        [2 * tokens + 1, 8, 64],
        [33, 72, 672],
    ]
}

/// A case with everything that may differ between the products of a launch chosen by `index`.
fn varied(
    [m, n, k]: [usize; 3],
    format: Format,
    activations: ActivationType,
    index: usize,
) -> Case {
    let result = RESULTS[index % RESULTS.len()];
    let n = n.next_multiple_of(result.block());
    let mut case = Case::new([m, n, k, 1]).format(format).activations(activations).result(result);
    case.generator = Generator::FullRange;
    case.seed = index as u64;
    case.alpha = [4.0, -0.75, 16.0][index % 3];
    case.vectors = [index.is_multiple_of(2), index.is_multiple_of(3), index / 2 % 2 == 1];
    case.activation = Activation::ALL[index % Activation::ALL.len()];
    case.magnitude = index % 3 != 2;
    if index % 4 == 1 {
        case =
            case.gated_as(GatedForm::ALL[index / 4 % 3]).up(-2.0, [true, index.is_multiple_of(3)]);
    }
    case
}

/// The cases of a launch.
pub fn launch(
    [rows, tokens]: [usize; 2],
    format: Format,
    activations: ActivationType,
    index: usize,
) -> Vec<Case> {
    let sizes = sizes(rows, tokens);
    let case = |(at, sizes)| varied(sizes, format, activations, 7 * index + at);
    sizes.into_iter().enumerate().map(case).collect()
}

/// Checks the cases on a machine, and that the kernel `name` runs them.
pub fn check(machine: &Kernels, cases: &[Case], name: &str) {
    for result in check_mixed(machine, cases) {
        assert_eq!(result.plan.kernel, name);
    }
}

/// Every configuration of sm_90a, under all schedules.
#[test]
fn every_configuration_of_sm_90a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    for (at, config) in sm90::MIXED.iter().enumerate() {
        let size = [config.rows as usize, config.tokens as usize];
        let format = config.scheme.format;
        for (i, machine) in machines.iter().enumerate() {
            // 16-bit ones first.
            let activations = ActivationType::of_operand(format, config.scheme.operand, i + 1);
            check(machine, &launch(size, format, activations, 5 * at + i), config.name);
        }
    }
}

/// Every configuration of sm_100a, under all schedules.
#[test]
fn every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (at, config) in sm100::MIXED.iter().enumerate() {
        let size = [config.rows() as usize, config.columns as usize];
        for (i, machine) in machines.iter().enumerate() {
            let activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => [LINEAR, BLOCKED][i % 2],
            };
            check(machine, &launch(size, config.format, activations, 5 * at + i), config.name);
        }
    }
}

/// Many tokens and few rows of weights, and the reverse: on sm_100a both orientations of the tile.
#[test]
fn both_orientations() {
    let machine = emulated_on(Gpu { sms: 4, ..b200() }, Schedule::Random(7));
    let orientation = |sizes: [[usize; 3]; 2]| {
        let cases = sizes.map(|[m, n, k]| Case::new([m, n, k, 1]).activations(BLOCKED));
        check_mixed(&machine, &cases)[0].plan.tile
    };
    assert_eq!(orientation([[3, 700, 128], [9, 300, 64]]), [256, 128]);
    assert_eq!(orientation([[700, 40, 128], [300, 24, 64]]), [128, 256]);
}

/// More tiles than CTAs, on machines with few SMs: CTAs go from product to product.
#[test]
fn tiles_in_turn() {
    for (at, schedule) in SCHEDULES.into_iter().enumerate() {
        let sm90 = emulated_on(Gpu { sms: 3, ..Gpu::h200() }, schedule);
        let sm100 = emulated_on(Gpu { sms: 4, ..b200() }, schedule);
        for machine in [sm90, sm100] {
            let cases: Vec<Case> = (0..9)
                .map(|i| {
                    let (m, n) = (1 + 31 * i % 140, 8 * (1 + (5 * i + at) % 60));
                    let mut case = Case::new([m, n, 32 + 96 * ((i + at) % 7), 1]);
                    case.activations = [F16, BF16, BLOCKED][at % 3];
                    case.seed = i as u64;
                    case
                })
                .collect();
            check_mixed(&machine, &cases);
        }
    }
}

/// Results of several types follow each other in a CTA. Storing warps of sm_100a use the same shared
/// memory for boxes of floats and for what blocks of MXFP4 need.
#[test]
fn types_in_turn() {
    for (at, schedule) in SCHEDULES.into_iter().enumerate() {
        let sm90 = emulated_on(Gpu { sms: 1, ..Gpu::h200() }, schedule);
        let sm100 = emulated_on(Gpu { sms: 2, ..b200() }, schedule);
        for machine in [sm90, sm100] {
            for ([m, n], gated) in [([40, 256], true), ([40, 256], false), ([512, 128], false)] {
                let results = [RESULTS[at % 3], RESULTS[5 + at % 2], RESULTS[(at + 1) % 3]];
                let cases = results.into_iter().cycle().take(6).enumerate().map(|(i, result)| {
                    let mut case = Case::new([m, n, 64, 1]).activations(BLOCKED).result(result);
                    case.seed = i as u64;
                    if gated && result.block() > 1 { case.gated() } else { case }
                });
                check_mixed(&machine, &cases.collect::<Vec<_>>());
            }
        }
    }
}

/// Two hundred small products; products without tokens between others.
#[test]
fn many_products() {
    for device in MACHINES {
        let (machine, reports) = emulated(device, Schedule::Lazy).observed();
        let case = |i: usize| {
            let mut case = Case::new([1 + i % 5, 8 * (1 + i % 3), 16 * (1 + i % 11), 1]);
            case.activations = F16;
            case.seed = i as u64;
            case
        };
        let cases: Vec<Case> = (0..200).map(case).collect();
        check_mixed(&machine, &cases);

        let inputs: Vec<_> = cases[..4].iter().map(Case::inputs::<Nvfp4>).collect();
        let output = Output::Floats(FloatType::F32);
        let operands: Vec<_> = (0..4)
            .map(|at| MixedOperands::new(&machine, &cases[at], &inputs[at], output).expect("small"))
            .collect();
        let product = |at: usize| {
            let product = operands[at].product();
            MixedProduct {
                tokens: if at.is_multiple_of(2) { 0 } else { product.tokens },
                ..product
            }
        };
        let products: Vec<_> = (0..4).map(product).collect();
        let kind = inputs[0].activations().kind();
        let mixed = MixedGemm::new(&machine, &products, kind).expect("it takes them");
        assert!(mixed.plans().map(|plan| plan.is_some()).eq([false, true, false, true]));
        mixed.launch().expect("runs");
        for (at, operands) in operands.iter().enumerate() {
            // The emulator knows what was written.
            let written = operands.out[0].as_ref().expect("floats").read().is_ok();
            assert_eq!(written, at % 2 == 1, "product {at}");
        }
        let none: Vec<_> = products.iter().map(|p| MixedProduct { tokens: 0, ..*p }).collect();
        let none = MixedGemm::new(&machine, &none, kind).expect("nothing to do");
        assert!(!reports.take().is_empty());
        none.launch().expect("nothing to launch");
        assert!(reports.take().is_empty());
    }
}

/// A launch reads its operands anew, and may be repeated; it is one launch but for activations that are
/// laid out or decoded.
#[test]
fn launches_are_repeated() {
    for (device, laid_out) in [(DEVICES[0], 2), (DEVICES[1], 1)] {
        let (machine, reports) = emulated(device, Schedule::Random(5)).observed();
        for (activations, before) in [(F16, 0), (LINEAR, 2), (BLOCKED, laid_out)] {
            let output = Output::Floats(FloatType::F32);
            let case = |[m, n, k]: [usize; 3]| Case::new([m, n, k, 1]).activations(activations);
            let cases = [case([128, 40, 64]), case([9, 72, 96])];
            let inputs = cases.each_ref().map(Case::inputs::<Nvfp4>);
            let operands: Vec<_> = cases
                .iter()
                .zip(&inputs)
                .map(|(case, inputs)| {
                    MixedOperands::new(&machine, case, inputs, output).expect("small")
                })
                .collect();
            let products: Vec<_> = operands.iter().map(MixedOperands::product).collect();
            let kind = inputs[0].activations().kind();
            let mixed = MixedGemm::new(&machine, &products, kind).expect("it takes them");
            let read = || {
                let out = operands.iter().map(|operands| operands.out[0].as_ref());
                out.map(|out| out.expect("floats").read().expect("written")).collect::<Vec<_>>()
            };
            mixed.launch().expect("runs");
            let launches = reports.take().len();
            // Two products have two launches before; scales of whole tiles in the 128x4 layout are
            // taken as they are.
            assert_eq!(launches, 1 + before, "{device} {activations:?}");
            let first = read();
            for operands in &operands {
                operands.out[0].as_ref().expect("floats").fill(0xff).expect("filled");
            }
            mixed.launch().expect("runs again");
            assert_eq!(reports.take().len(), launches);
            assert_eq!(read(), first);
        }
    }
}

/// Bad input is an error with the field's name, before any launch.
#[test]
fn what_is_refused() {
    for device in MACHINES {
        let machine = emulated(device, Schedule::Eager);
        let case = |[m, n, k]: [usize; 3]| Case::new([m, n, k, 1]).activations(F16);
        let output = Output::Floats(FloatType::F32);
        let cases = [case([5, 24, 64]), case([9, 72, 96])];
        let inputs = cases.each_ref().map(Case::inputs::<Nvfp4>);
        let kind = inputs[0].activations().kind();
        let made = |at: usize| {
            MixedOperands::new(&machine, &cases[at], &inputs[at], output).expect("small")
        };
        let operands = [made(0), made(1)];
        let [first, second] = operands.each_ref().map(MixedOperands::product);
        let message = |products: &[MixedProduct<'_>]| {
            refused("products", MixedGemm::new(&machine, products, kind).map(|_| ()))
        };
        let has = |text: String, part: &str| assert!(text.contains(part), "{part}: {text}");

        has(message(&[]), "products must be from 1 to 1024");
        has(message(&vec![first; 1025]), "products must be from 1 to 1024");
        has(message(&[first, MixedProduct { tokens: 8, ..second }]), "bytes of the result");
        let activations = first.activations;
        has(message(&[first, MixedProduct { activations, ..second }]), "bytes of the activations");
        has(message(&[first, MixedProduct { out: first.out, ..second }]), "bytes of the result");
        let one = operands[0].out[0].as_ref().expect("floats");
        let blocks = ResultBuffers::Blocks { codes: one, scales: one };
        has(message(&[first, MixedProduct { out: blocks, ..second }]), "result must be f32");
        let options = || GemmOptions::new().output(output);
        let other = GemmOverrides::new().kernel("gemm_sm100_nvfp4_128x64".to_string());
        let other = options().overrides(other);
        has(message(&[first, MixedProduct { options: &other, ..second }]), "kernel must be one of");
        let split = options().overrides(GemmOverrides::new().split(Split::StreamK));
        has(
            message(&[first, MixedProduct { options: &split, ..second }]),
            "split of K must be none",
        );
        let gated = options().up(UpOptions::new());
        has(message(&[first, MixedProduct { options: &gated, ..second }]), "weights must be gated");
        let quantized = Output::Nvfp4 { scale: 1.0, layout: fp4_formats::ScaleLayout::Linear };
        let quantized = options().output(quantized);
        let text = message(&[first, MixedProduct { options: &quantized, ..second }]);
        has(text, "N must be a multiple of 16");

        let batch = Case::new([5, 24, 64, 2]).activations(F16);
        let of_two = MixedOperands::new(&machine, &batch, &batch.inputs::<Nvfp4>(), output);
        let of_two = of_two.expect("small");
        has(message(&[first, of_two.product()]), "matrices of weights of product 1 must be 1");
        let other = Case::new([5, 24, 64, 1]).format(Format::Mxfp4).activations(BF16);
        let other_operands = MixedOperands::new(&machine, &other, &other.inputs::<Mxfp4>(), output);
        let other_operands = other_operands.expect("small");
        // The same holds for the other type of activations.
        let text = message(&[first, other_operands.product()]);
        assert!(text.contains("activations") || text.contains("format"), "{text}");
    }
}
