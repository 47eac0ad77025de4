//! GEMM with a result in NVFP4 or MXFP4: codes and scales are those that the CPU's quantiser makes of the
//! f32 result of the same kernel, bit for bit, and within the f64 oracle's bound.

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemm::Split;
use fp4_formats::gemm::{OUT_MX_RECIPE, OUT_RECIPE, sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::recipe::{Nvfp4Tensor, Software};
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, e4m3, pack, ue8m0};
use nvfp4::gemm::{Activations, GemmOptions, GemmRun, Output, Repacked, gemm};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::tune::ResultKind;
use nvfp4_checkpoint::Checkpoint;
use nvfp4_lab::bench::{self, ActivationInput, GemmBench, Protocol};
use nvfp4_lab::gemm::{Verify, reference};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::gemm::write_result;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{ActivationType, BF16, Case};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, emulated};
use ptx_emu::Schedule;

/// N = 16, 48, 208 and 1008, of MXFP4 rounded up to whole blocks, ragged M, L = 1 to 3, K in parts,
/// both layouts, all formats and activations, with and without factors and bias, scales that
/// saturate and scales that leave only subnormal blocks. On both machines, in turn under all
/// schedules.
#[test]
fn ragged_shapes() {
    let machines = SCHEDULES.map(|schedule| MACHINES.map(|device| emulated(device, schedule)));
    let mut index = 0;
    for m in [1, 5, 64, 130, 257] {
        for n in [16usize, 48, 208, 1008] {
            for k in [16, 304, 1040] {
                let of = Format::ALL[index / 3 % 2];
                let result = ResultKind::Blocks(of, ScaleLayout::ALL[index / 2 % 2]);
                let n = n.next_multiple_of(result.block());
                let mut case = Case::new([m, n, k, 1 + index % 3]).result(result);
                case.seed = index as u64;
                case.shared_weights = index.is_multiple_of(2);
                case.generator = Generator::ALL[index % 3];
                case.result_scale = [1.0, 0.25, 1e-3, 300.0][index / 5 % 4];
                if index % 4 == 1 {
                    case.activations = BF16;
                }
                if index % 6 == 2 {
                    case = case.format(Format::Mxfp4);
                }
                case.magnitude = index / 2 % 2 == 1;
                case.alpha = [1.0, -0.375, 3.0][index / 7 % 3];
                case.vectors = [index % 3 == 1, index % 5 == 2, index % 7 < 3];
                case.check_on(&machines[index % 5]);
                index += 1;
            }
        }
    }
}

/// Every configuration of both tables, alone and with K in parts.
#[test]
fn every_configuration() {
    let h200 = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    for (index, config) in sm90::CONFIGS.iter().enumerate() {
        let (m, n) = (config.tokens as usize + 3, config.rows as usize + 48);
        for (k, split) in [(160, Split::None), (672, Split::Cluster(3)), (1056, Split::Cluster(8))]
        {
            let split = split.at_most(config.max_split());
            for of in Format::ALL {
                let layout = ScaleLayout::ALL[(index + split.cluster() as usize) % 2];
                let mut case = Case::new([m, n.next_multiple_of(of.block() as usize), k, 1])
                    .decoded_to(config.scheme.format, config.scheme.operand, 0)
                    .result(ResultKind::Blocks(of, layout))
                    .kernel(config.name, split);
                case.generator = Generator::FullRange;
                case.magnitude = k != 672;
                case.check(&h200[(index + of as usize) % 5]);
            }
        }
    }
    let b200 = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (index, config) in sm100::CONFIGS.iter().enumerate() {
        // Few tokens and few columns, so that both orientations are chosen.
        let k = (config.step() * (config.k_parts() + 1) + 192) as usize;
        let shapes = [[9, config.rows() as usize + 48], [config.rows() as usize + 9, 80]];
        for ([m, n], of) in shapes.into_iter().flat_map(|shape| Format::ALL.map(|of| (shape, of))) {
            let layout = ScaleLayout::ALL[(index + m) % 2];
            let n = n.next_multiple_of(of.block() as usize);
            let mut case = Case::new([m, n, k, 1])
                .format(config.format)
                .result(ResultKind::Blocks(of, layout))
                .kernel(config.name, config.split);
            if let Some(operand) = config.activations {
                case.activations = ActivationType::as_they_are(operand);
            }
            case.generator = Generator::FullRange;
            case.magnitude = true;
            case.check(&b200[(index + of as usize) % 5]);
        }
    }
}

/// Operands of one block per row, whose products are a bias alone.
fn zeros(rows: usize) -> BlockScaled<Nvfp4> {
    let dims = Dims::new(1, rows, 16).expect("dims");
    BlockScaled::new("zeros", dims, Linear, vec![0; rows * 8], vec![0x38; rows], 1.0)
        .expect("an operand")
}

/// All results at given values, by the bias of zero products: of every binade and sign, ties
/// between codes, zeros of either sign, and numbers that are not finite.
#[test]
fn given_values() {
    let (m, blocks) = (3, 40);
    let n = 16 * blocks;
    let value = |i: usize| {
        let (block, at) = (i / 16, i % 16);
        let steps = [0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 5.9, 0.1, 1.0, 1.5, 2.2];
        let size = 2f32.powi(block as i32 * 7 - 130);
        let value = steps.get(at).map_or(f32::from_bits(i as u32), |step| step * size);
        match (block, at) {
            (20, 3) | (23, 15) => f32::INFINITY,
            (21, 15) => f32::NEG_INFINITY,
            (22, 0) | (23, 9) => f32::NAN,
            _ if i % 3 == 1 => -value,
            _ => value,
        }
    };
    let bias: Vec<f32> = (0..n).map(value).collect();
    let (a, b) = (zeros(m), zeros(n));
    for device in MACHINES {
        let kernels = emulated(device, SCHEDULES[3]);
        for scale in [1.0, 2f32.powi(-121), 0.37, 3e38] {
            for layout in ScaleLayout::ALL {
                let options = GemmOptions::new()
                    .output(Output::Nvfp4 { scale, layout })
                    .alpha(-1.0)
                    .bias(bias.clone());
                let result = gemm(&kernels, &Activations::Blocks(&a), &b, &options);
                let result = result.unwrap_or_else(|e| panic!("{device} {scale:e}: {e}"));
                let tensor = Nvfp4Tensor::new(OUT_RECIPE, scale);
                let decoded = result.values();
                for row in 0..m {
                    for block in 0..blocks {
                        let values = &bias[block * 16..][..16];
                        let nan = values.iter().any(|x| x.is_nan());
                        let amax = values.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                        let amax = if nan { f32::NAN } else { amax };
                        let expected = tensor.block::<Software>(amax);
                        let at = layout.offset(row, block, blocks);
                        let what = format!("{device} {scale:e} {layout} row {row} block {block}");
                        assert_eq!(result.scales[at], expected.byte, "{what}: scale");
                        assert_eq!(expected.byte == e4m3::NAN, nan, "{what}");
                        let dead = decoded[(row * blocks + block) * 16..][..16].iter();
                        assert!(!nan || dead.copied().all(f32::is_nan), "{what}: a NaN is lost");
                        let got = &result.bytes[(row * blocks + block) * 8..][..8];
                        for (i, half) in got.as_chunks::<4>().0.iter().enumerate() {
                            let eight = values[8 * i..][..8].try_into().expect("eight");
                            let codes = expected.codes::<Software>(eight);
                            let got = u32::from_le_bytes(*half);
                            assert!(nan || got == codes, "{what}: {got:08x} for {codes:08x}");
                        }
                    }
                }
                let error = result.into_blocks::<Nvfp4>("c").expect_err("NaN").to_string();
                assert!(error.contains("`c` has a scale that is not finite"), "{error}");
            }
        }
    }
}

/// The same in MXFP4, whose scales span all binades of f32: no magnitude but infinity is lost.
#[test]
fn given_values_in_mxfp4() {
    let (m, blocks) = (3, 40);
    let n = Mxfp4::BLOCK * blocks;
    let value = |i: usize| {
        let (block, at) = (i / Mxfp4::BLOCK, i % Mxfp4::BLOCK);
        let steps = [0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.9, 0.1, 1.0, 1.5, 2.2];
        let size = 2f32.powi(block as i32 * 7 - 149);
        let value = steps.get(at).map_or(f32::from_bits(i as u32), |step| step * size);
        match (block, at) {
            (20, 3) | (23, 15) => f32::INFINITY,
            (21, 31) => f32::NEG_INFINITY,
            (22, 0) | (24, 16) => f32::NAN,
            (39, _) if value.is_infinite() => f32::MAX,
            _ if i % 3 == 1 => -value,
            _ => value,
        }
    };
    let bias: Vec<f32> = (0..n).map(value).collect();
    let (a, b) = (zeros(m), zeros(n));
    for device in MACHINES {
        let kernels = emulated(device, SCHEDULES[3]);
        for layout in ScaleLayout::ALL {
            let options =
                GemmOptions::new().output(Output::Mxfp4 { layout }).alpha(-1.0).bias(bias.clone());
            let result = gemm(&kernels, &Activations::Blocks(&a), &b, &options);
            let result = result.unwrap_or_else(|e| panic!("{device} {layout}: {e}"));
            let decoded = result.values();
            let mut finite = 0;
            for (row, block) in (0..m).flat_map(|row| (0..blocks).map(move |block| (row, block))) {
                let values = &bias[block * Mxfp4::BLOCK..][..Mxfp4::BLOCK];
                let lost = values.iter().any(|x| !x.is_finite());
                let nan = values.iter().any(|x| x.is_nan());
                let amax = values.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                let expected = OUT_MX_RECIPE.block(if nan { f32::NAN } else { amax });
                let what = format!("{device} {layout} row {row} block {block}");
                let at = layout.offset(row, block, blocks);
                assert_eq!(result.scales[at], expected.byte, "{what}: scale");
                assert_eq!(expected.byte == ue8m0::NAN, lost, "{what}");
                let index = (row * blocks + block) * Mxfp4::BLOCK;
                let mut dead = decoded[index..][..Mxfp4::BLOCK].iter().copied();
                assert!(!lost || dead.all(f32::is_nan), "{what}: a NaN is lost");
                finite += usize::from(!lost);
                let got = &result.bytes[index / 2..][..Mxfp4::BLOCK_BYTES];
                for (i, word) in got.as_chunks::<4>().0.iter().enumerate() {
                    let eight = values[8 * i..][..8].try_into().expect("eight");
                    let codes = expected.codes::<Software>(eight);
                    let got = u32::from_le_bytes(*word);
                    assert!(lost || got == codes, "{what}: {got:08x} for {codes:08x}");
                }
            }
            assert_eq!(finite, m * (blocks - 5));
            let error = result.into_blocks::<Mxfp4>("c").expect_err("NaN").to_string();
            assert!(error.contains("`c` has a scale that is not finite"), "{error}");
        }
    }
}

/// A wrong code or a wrong scale is found by the oracle, at its place.
#[test]
fn the_oracle_sees_wrong_codes_and_scales() {
    let kernels = emulated(DEVICES[0], Schedule::Eager);
    let mut rng = SplitMix64::new(3);
    let dims = |rows| Dims::new(1, rows, 256).expect("dims");
    let a = Generator::FullRange.operand("a", dims(4), Linear, &mut rng).expect("a");
    let b = Generator::FullRange.operand("b", dims(48), Linear, &mut rng).expect("b");
    let a = Activations::Blocks(&a);
    let mut options = GemmOptions::default();
    let reference = reference(&a, &b, &options).expect("the oracle");
    let amax = reference.values.iter().fold(0f64, |amax, x| amax.max(x.abs()));
    let scale = OUT_RECIPE.tensor_parameter(amax as f32);
    options.output = Output::Nvfp4 { scale, layout: Linear };
    let good = gemm(&kernels, &a, &b, &options).expect("runs");
    assert!(good.verify(&reference).passed());
    for at in 0..good.bytes.len() {
        let mut bad = good.clone();
        let (low, high) = pack::unpair(bad.bytes[at]);
        // The next magnitude: one code away, which half a step's tolerance would not see.
        let next = if low & 7 == 7 { low - 1 } else { low + 1 };
        bad.bytes[at] = pack::pair(next, high);
        let check = bad.verify(&reference);
        let first = check.first_mismatch.unwrap_or_else(|| panic!("code {at} is not seen"));
        assert_eq!((first.batch, first.row), (at / 24, at % 24 * 2));
    }
    for at in 0..good.scales.len() {
        let mut bad = good.clone();
        bad.scales[at] ^= 1;
        let first = bad.verify(&reference).first_mismatch;
        let first = first.unwrap_or_else(|| panic!("scale {at} is not seen"));
        assert_eq!((first.batch, first.row / 16), (at / 3, at % 3));
    }
}

/// A result is written in the form of an operand.
#[test]
fn results_are_written_as_operands() {
    let kernels = emulated(DEVICES[1], Schedule::Eager);
    let mut rng = SplitMix64::new(5);
    let mut operand = |batch, rows| {
        let dims = Dims::new(batch, rows, 32).expect("dims");
        Generator::FullRange.operand("x", dims, Linear, &mut rng).expect("operand")
    };
    let (a, b) = (operand(2, 5), operand(1, 48));
    let path = std::env::temp_dir().join(format!("nvfp4-result-{}", std::process::id()));
    for layout in ScaleLayout::ALL {
        let output = Output::Nvfp4 { scale: 0.25, layout };
        let options = GemmOptions::new().output(output);
        let result = gemm(&kernels, &Activations::Blocks(&a), &b, &options).expect("runs");
        write_result(&path, &result, GemmShape { m: 5, n: 48, k: 32, l: 2 }).expect("written");
        let file = Checkpoint::open(&path).expect("a file");
        assert_eq!(file.raw("c").expect("codes").shape, [2, 5, 24]);
        assert_eq!(file.raw("c").expect("codes").data, result.bytes);
        assert_eq!(file.raw("c_scale").expect("scales").data, result.scales);
        assert_eq!(file.scalar("c_global_scale").expect("scale"), 0.25);
        assert_eq!(file.metadata("c_scale_layout"), Some(layout.name()));
    }
    std::fs::remove_file(&path).expect("removed");
}

/// A result in MXFP4 is written and read as an operand, and is another product's activations.
#[test]
fn results_in_mxfp4_feed_products() {
    let mut rng = SplitMix64::new(9);
    let mut operand = |rows, k| {
        let dims = Dims::new(1, rows, k).expect("dims");
        Generator::FullRange.blocks::<Mxfp4>("x", dims, Linear, &mut rng).expect("operand")
    };
    let (x, first, second) = (operand(19, 64), operand(96, 64), operand(40, 96));
    for (device, layout) in DEVICES.into_iter().zip(ScaleLayout::ALL) {
        let kernels = emulated(device, Schedule::Lazy);
        let options = GemmOptions::new().output(Output::Mxfp4 { layout });
        let hidden = gemm(&kernels, &Activations::Blocks(&x), &first, &options).expect("runs");
        let path = std::env::temp_dir().join(format!("mxfp4-{device}-{}", std::process::id()));
        write_result(&path, &hidden, GemmShape::of(19, 96, 64)).expect("written");
        let file = Checkpoint::open(&path).expect("a file");
        assert_eq!(file.raw("c").expect("codes").data, hidden.bytes);
        assert_eq!(file.raw("c_scale").expect("scales").data, hidden.scales);
        assert!(file.raw("c_global_scale").is_err());
        std::fs::remove_file(&path).expect("removed");
        let wrong = hidden.clone().into_blocks::<Nvfp4>("hidden").expect_err("other blocks");
        assert!(wrong.to_string().contains("nvfp4"), "{wrong}");
        let hidden = hidden.into_blocks::<Mxfp4>("hidden").expect("finite");
        let options = GemmOptions::new().output(FloatType::F32);
        let a = Activations::Blocks(&hidden);
        let weights = Repacked::for_device(kernels.device(), &second, a.kind()).expect("weights");
        let run = GemmRun::new(&kernels, &a, &weights, &options).expect("planned");
        let check =
            run.run().expect("runs").verify(&reference(&a, &second, &options).expect("f64"));
        assert!(check.passed(), "{device}: {}", check.summary());
    }
}

/// A bench takes the tensor's scale from the oracle, and verifies.
#[test]
fn benches_verify() {
    for (device, layout) in DEVICES.into_iter().zip(ScaleLayout::ALL) {
        let kernels = emulated(device, Schedule::Eager);
        let bench = GemmBench {
            format: Format::Nvfp4,
            activations: ActivationInput::Fp4,
            generator: Generator::FullRange,
            decoded: false,
            seed: 1,
            layout: Linear,
            options: GemmOptions::default(),
            quantized: Some(layout),
            protocol: Protocol::default(),
            explain: false,
            sweep: 0,
        };
        let report = bench::gemm(&kernels, GemmShape::of(5, 48, 272), &bench).expect("runs");
        assert!(report.head.verified, "{report}");
        assert_eq!(report.verification.overflowed, 0, "{report}");
        assert_eq!(report.head.output, "nvfp4");
        // Rows of codes and scales of both operands, then of the result.
        let scales = layout.bytes(5, 3).expect("small");
        assert_eq!(report.head.bytes as usize, (5 + 48) * (136 + 17) + 5 * 24 + scales);
        let ragged = bench::gemm(&kernels, GemmShape::of(5, 40, 272), &bench);
        let text = ragged.expect_err("no whole blocks").to_string();
        assert!(text.starts_with("N must be a multiple of 16"), "{text}");
    }
}

/// The result of a product is another's activations.
#[test]
fn results_feed_products() {
    for device in MACHINES {
        let kernels = emulated(device, Schedule::Lazy);
        let mut rng = SplitMix64::new(8);
        let mut operand = |rows, k| {
            let dims = Dims::new(1, rows, k).expect("dims");
            Generator::FullRange.operand("x", dims, Linear, &mut rng).expect("operand")
        };
        let (x, first, second) = (operand(19, 64), operand(96, 64), operand(40, 96));
        let output = Output::Nvfp4 { scale: 0.125, layout: Blocked128x4 };
        let options = GemmOptions::new().output(output);
        let hidden = gemm(&kernels, &Activations::Blocks(&x), &first, &options).expect("runs");
        let hidden = hidden.into_blocks::<Nvfp4>("hidden").expect("finite");
        let options = GemmOptions::new().output(FloatType::F32);
        let a = Activations::Blocks(&hidden);
        let weights = Repacked::for_device(kernels.device(), &second, a.kind()).expect("weights");
        let run = GemmRun::new(&kernels, &a, &weights, &options).expect("planned");
        let check =
            run.run().expect("runs").verify(&reference(&a, &second, &options).expect("f64"));
        assert!(check.passed(), "{device}: {}", check.summary());
    }
}
