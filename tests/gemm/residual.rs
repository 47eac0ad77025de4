//! Residuals: `C = round(epilogue(..) + R)`, against the f64 oracle on the emulated machines. Results and
//! residuals of every type, in aligned rows and in others, apart and in place, strided and shared by the
//! entries of a batch, through every kernel.

use fp4_formats::gemm::groups::STATUS_BAD_COUNTS;
use fp4_formats::gemm::{Split, sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, FloatType, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::Error;
use nvfp4::floats;
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, Activations, Gemm, GemmOptions, GemmOverrides,
    GroupedRun, HalfMatrix, Repacked, Residual, ResidualValues, ResultBuffers, Vectors, gemm,
};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::{
    ActivationType, BF16, BLOCKED, Case, F16, FLOATS, GatedForm, LINEAR, Placement, RESULTS,
    ResidualAt, blocks, refused,
};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, also_gpu, emulated};
use ptx_emu::Schedule;

/// The residual's type for a result, in turn.
fn residual_type(index: usize) -> FloatType {
    FLOATS[index % FLOATS.len()]
}

/// A case's residual, of exact inputs and of full-range ones by turns.
fn varied(case: Case, index: usize) -> Case {
    let mut case = case.residual(ResidualAt::dense(residual_type(index)));
    case.generator = [Generator::Exact, Generator::FullRange][index % 2];
    case.seed = index as u64;
    case.magnitude = index.is_multiple_of(3);
    case.vectors = [false, index % 4 == 1, index % 4 > 1];
    case
}

/// Every configuration of sm_90a, also on a GPU that there is: rows in step with 16 bytes and others, whole and divided K, every
/// type of result.
#[test]
fn every_configuration_of_sm_90a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[0], schedule));
    let gpu = also_gpu().filter(|gpu| gpu.device().choice().arch == Arch::Sm90a);
    for (at, config) in sm90::CONFIGS.iter().enumerate() {
        let splits = [Split::None, Split::Cluster(3), Split::StreamK];
        for (i, (k, columns)) in [(160, 72), (672, 75), (672, 40)].into_iter().enumerate() {
            let index = 3 * at + i;
            let result = RESULTS[(index + at) % RESULTS.len()];
            let n = (config.rows as usize + columns).next_multiple_of(result.block());
            let case = Case::new([config.tokens as usize + 3, n, k, 1])
                .decoded_to(config.scheme.format, config.scheme.operand, index)
                .result(result)
                .kernel(config.name, splits[i].at_most(config.max_split()));
            let case = varied(case, index);
            case.check(&machines[index % 5]);
            if let Some(gpu) = &gpu {
                case.check(gpu);
            }
        }
    }
}

/// Every configuration of sm_100a, with the weights on either side of the product.
#[test]
fn every_configuration_of_sm_100a() {
    let machines = SCHEDULES.map(|schedule| emulated(DEVICES[1], schedule));
    for (at, config) in sm100::CONFIGS.iter().enumerate() {
        for (i, [m, n]) in [[3, 83], [70, 160]].into_iter().enumerate() {
            let index = 2 * at + i;
            let result = RESULTS[index % if i == 0 { FLOATS.len() } else { RESULTS.len() }];
            let k = (config.step() * config.k_parts()) as usize + 32;
            let mut case = Case::new([m, n, k, 1 + i]).format(config.format).result(result);
            case.activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => ActivationType::Blocks(ScaleLayout::ALL[index % 2]),
            };
            varied(case.kernel(config.name, config.split), index).check(&machines[index % 5]);
        }
    }
}

/// Ragged shapes as the plan chooses, on both machines, of every pair of types of result and residual.
#[test]
fn ragged_shapes() {
    let machines = SCHEDULES.map(|schedule| MACHINES.map(|device| emulated(device, schedule)));
    let mut index = 0;
    for m in [1, 7, 65, 129] {
        for n in [1, 8, 40, 203] {
            index += 1;
            let all = [LINEAR, BLOCKED, F16, BF16, ActivationType::Fp8(None)];
            let case = Case::new([m, n, [32, 144, 416][index % 3], 1])
                .activations(all[index % all.len()])
                .result(FLOATS[index / 3 % 3]);
            varied(case, index).check_on(&machines[index % 5]);
        }
    }
}

/// Sums of integers whose results are exact, so that one wrong bit is found: a residual that is not
/// added, or twice, or of another element, is.
#[test]
fn sums_are_exact() {
    for (device, schedule) in DEVICES.into_iter().zip([SCHEDULES[2], SCHEDULES[4]]) {
        let kernels = emulated(device, schedule);
        for (of, other) in FLOATS.into_iter().flat_map(|x| FLOATS.map(|y| (x, y))) {
            for n in [33, 64] {
                let case = Case::new([9, n, 64, 1]).activations(F16).result(of);
                let case = case.residual(ResidualAt::dense(other));
                assert!(case.exact());
                let with = case.check(&kernels);
                let without = Case { residual: None, ..case.clone() }.product(&kernels);
                let values = case.inputs::<Nvfp4>().options.residual.expect("it was asked for");
                let sums = without.values().into_iter().zip(values.values());
                let sums = sums.map(|(x, added)| f64::from(x) + f64::from(*added));
                if of == FloatType::F32 {
                    assert_eq!(with.bytes, floats::encode(of, sums), "{device} {other:?} {n}");
                }
                assert_ne!(with.bytes, without.bytes, "{device} {of:?} {other:?} {n}");
            }
        }
    }
}

/// Gated products: every activation, each form of the weights, results in floats and in blocks; no
/// bias, which kernels of sm_90a would store from registers, and biases.
#[test]
fn gated() {
    for (at, device) in DEVICES.into_iter().enumerate() {
        let machines = SCHEDULES.map(|schedule| emulated(device, schedule));
        for (index, activation) in Activation::ALL.into_iter().enumerate() {
            for (i, [m, n]) in [[5, 43], [130, 64], [33, 160]].into_iter().enumerate() {
                let index = 3 * index + i;
                let result = RESULTS[index % if i == 0 { FLOATS.len() } else { RESULTS.len() }];
                let mut case = Case::new([m, n, 160, 1])
                    .activations([F16, BLOCKED, BF16][(index + at) % 3])
                    .result(result)
                    .activation(activation)
                    .gated_as(GatedForm::ALL[index % 3])
                    .up(-1.5, [index % 2 == 1; 2])
                    .residual(ResidualAt::dense(residual_type(index / 2)));
                case.generator = Generator::FullRange;
                case.seed = index as u64;
                case.magnitude = index.is_multiple_of(2);
                case.check(&machines[index % 5]);
            }
        }
    }
}

/// Residuals in place, in dense batches and with strides; apart, in batches whose matrices are in step with 16
/// bytes and in others; one matrix for all entries.
#[test]
fn places() {
    let in_place = |of| ResidualAt::in_place(of);
    let apart = |float_type, place| ResidualAt { float_type, place: Some(place) };
    let [f16, bf16, f32] = FLOATS;
    let mut cases = Vec::new();
    for (index, of) in FLOATS.into_iter().enumerate() {
        for [m, n] in [[5, 40], [70, 136], [3, 33], [1, 64]] {
            let case = Case::new([m, n, 96, 1 + index]).activations(F16).result(of);
            cases.push(case.clone().residual(in_place(of)));
            cases.push(
                case.result_at([Placement::Padded(3), Placement::Dense]).residual(in_place(of)),
            );
        }
    }
    for (of, other, padding) in [(f16, f16, 8), (f16, f16, 1), (bf16, f32, 2), (f32, bf16, 3)] {
        for [m, n] in [[5, 40], [35, 64]] {
            let case = Case::new([m, n, 96, 3]).activations(BF16).result(of);
            cases.push(case.clone().residual(apart(other, Placement::Padded(padding))));
            cases.push(case.residual(apart(other, Placement::Shared)));
        }
    }
    for (kind, padding) in RESULTS[3..].iter().zip([8, 16, 24, 8]) {
        let case = Case::new([5, 96, 96, 2]).activations(BF16).format(Format::Mxfp4).result(*kind);
        cases.push(case.residual(apart(f16, Placement::Padded(padding))));
    }
    for device in MACHINES {
        for (index, case) in cases.iter().enumerate() {
            let mut case = case.clone();
            case.generator = [Generator::Exact, Generator::FullRange][index % 2];
            case.check(&emulated(device, SCHEDULES[index % 5]));
        }
    }
    if let Some(gpu) = &also_gpu() {
        for case in &cases {
            case.check(gpu);
        }
    }
}

/// A gated product whose result takes the residual's place, in a kernel that would store it from
/// registers and in others.
#[test]
fn gated_in_place() {
    for device in MACHINES {
        for (index, of) in FLOATS.into_iter().enumerate() {
            let mut case = Case::new([130, 72, 160, 1])
                .activations(F16)
                .result(of)
                .activation(Activation::Silu)
                .gated()
                .residual(ResidualAt::in_place(of));
            case.generator = Generator::FullRange;
            case.check(&emulated(device, SCHEDULES[index]));
        }
    }
}

/// A grouped case with full-range inputs; what varies is chosen by `index`.
fn group(counts: &[usize], sizes: [usize; 2], index: usize) -> GroupedCase {
    let mut case = GroupedCase::new(counts, sizes);
    case.generator = [Generator::FullRange, Generator::Exact][index % 2];
    case.seed = index as u64;
    case.factors = index % 3 == 1;
    case.vectors = [index % 4 == 1, index % 3 == 2, index.is_multiple_of(3)];
    case.gated = index % 4 > 1;
    case.activation = Activation::ALL[index % Activation::ALL.len()];
    case.spare = index % 3;
    case.magnitude = index.is_multiple_of(2);
    case.result = RESULTS[index % RESULTS.len()];
    case.sizes[0] = sizes[0].next_multiple_of(case.result.block());
    case.residual = Some(match case.result {
        ResultKind::Floats(of) if index % 2 == 1 => ResidualAt::in_place(of),
        ResultKind::Floats(_) | ResultKind::Blocks(..) => ResidualAt::dense(residual_type(index)),
    });
    case
}

/// Grouped products of every configuration, with empty groups and tokens of no group, one after another
/// and in slots.
#[test]
fn groups() {
    let gpu = also_gpu().filter(|gpu| gpu.device().choice().arch == Arch::Sm90a);
    for (device, sm90) in DEVICES.into_iter().zip([true, false]) {
        let machines = SCHEDULES.map(|schedule| emulated(device, schedule));
        let configs: Vec<_> = if sm90 {
            let all = sm90::GROUPED.iter();
            all.map(|c| (c.name, c.scheme.format, Some(c.scheme.operand), c.tokens)).collect()
        } else {
            let all = sm100::GROUPED.iter();
            all.map(|c| (c.name, c.format, c.activations, c.columns)).collect()
        };
        for (at, (name, format, operand, tokens)) in configs.into_iter().enumerate() {
            let tokens = tokens as usize;
            for (i, n) in [72, 83].into_iter().enumerate() {
                let index = 2 * at + i;
                let counts =
                    [vec![tokens + 3, 0, 1, 5], vec![0, 7, 0, tokens]][(at + i) % 2].clone();
                let mut case = group(&counts, [n, 160], index);
                case.format = format;
                case.activations = operand.map_or(LINEAR, ActivationType::as_they_are);
                if index % 5 == 3 {
                    case.slot = Some(tokens + 6);
                }
                case.overrides = GemmOverrides::new().kernel(name.to_owned()).split(None);
                case.check(&machines[index % 5]);
                if let Some(gpu) = gpu.as_ref().filter(|_| sm90) {
                    case.check(gpu);
                }
            }
        }
    }
}

/// Bad counts make all results NaN, whatever the residual.
#[test]
fn bad_counts_of_groups() {
    for device in MACHINES {
        let kernels = emulated(device, Schedule::Eager);
        for of in FLOATS {
            let mut case = GroupedCase::new(&[3, 2], [40, 64]);
            (case.result, case.magnitude) = (of.into(), true);
            case.residual = Some(ResidualAt::in_place(of));
            let got = case.run_with(&kernels, &[0, 4, 2]);
            assert_eq!(got.status, STATUS_BAD_COUNTS, "{device} {of:?}");
            assert!(got.magnitude.is_some_and(f32::is_nan), "{device} {of:?}");
            let values = floats::decode(of, &got.bytes);
            assert!(values.iter().all(|value| value.is_nan()), "{device} {of:?}");
        }
    }
}

/// Products of one launch, with and without residuals.
#[test]
fn mixed() {
    for (device, schedule) in DEVICES.into_iter().zip([SCHEDULES[1], SCHEDULES[3]]) {
        let kernels = emulated(device, schedule);
        for activations in [F16, BF16] {
            let case = |index: usize, m, n| {
                let result = RESULTS[index % RESULTS.len()];
                let mut case = Case::new([m, n, 96, 1]).activations(activations).result(result);
                case.generator = Generator::FullRange;
                case.magnitude = index.is_multiple_of(2);
                case.residual = (index != 2).then(|| ResidualAt::dense(residual_type(index)));
                case
            };
            let cases =
                [case(0, 5, 40), case(1, 70, 83), case(2, 33, 72), case(3, 9, 64), case(6, 3, 96)];
            check_mixed(&kernels, &cases);
        }
    }
}

/// Runs of the library's own buffers refuse a residual of another size, as the oracle does.
#[test]
fn refused_by_runs() {
    let kernels = emulated(DEVICES[0], Schedule::Eager);
    let mut rng = nvfp4_lab::rng::SplitMix64::new(1);
    let mut zeros =
        |rows| blocks::<Nvfp4>(Generator::Exact, [1, rows, 64], ScaleLayout::Linear, 1.0, &mut rng);
    let (a, b): (BlockScaled<Nvfp4>, BlockScaled<Nvfp4>) = (zeros(3), zeros(40));
    let activations = Activations::Blocks(&a);
    let residual = ResidualValues::round(FloatType::F16, &[0.0; 3 * 40 - 1]);
    let options = GemmOptions::new().residual(residual);
    let text = "elements of the residual must be 1 x 3 x 40 = 120, but is 119";
    assert_eq!(refused("a GEMM", gemm(&kernels, &activations, &b, &options)), text);
    let of_oracle = nvfp4_lab::gemm::reference(&activations, &b, &options);
    assert_eq!(refused("the oracle", of_oracle), text);
    let weights = Repacked::for_device(kernels.device(), &b, activations.kind()).expect("repacked");
    let grouped = GroupedRun::new(&kernels, &activations, &weights, &[3], &options);
    assert_eq!(refused("groups", grouped), text);
}

/// Launches refuse residuals of other sizes, on other devices, too near one another, and those that
/// overlap the result but are not in its place; nothing is written.
#[test]
fn refused_by_launches() {
    let overlaps = "place of the residual must be apart from the result, or in its place with its type and stride";
    for device in MACHINES {
        let kernels = emulated(device, Schedule::Eager);
        let [m, n, k, l] = [4, 40, 64, 2];
        let kind = ActivationKind::Halves(fp4_formats::HalfType::F16);
        let dims = Dims::new(1, n, k).expect("dims");
        let (codes, scales) = (vec![0; n * k / 2], vec![0; n * k / 16]);
        let weights = BlockScaled::<Nvfp4>::new("w", dims, ScaleLayout::Linear, codes, scales, 1.0);
        let weights = Repacked::for_device(kernels.device(), &weights.expect("zeros"), kind);
        let weights = weights.and_then(|w| w.upload(kernels.device())).expect("uploaded");
        let product = Gemm::new(&kernels, &weights, [l, m], kind, &GemmOptions::default());
        let product = product.expect("planned");
        let a = HalfMatrix::round(
            "a",
            Dims::new(l, m, k).expect("dims"),
            fp4_formats::HalfType::F16,
            &vec![0.0; l * m * k],
        );
        let a = DeviceBuffer::upload(kernels.device(), "a", a.expect("zeros").bytes());
        let a = a.expect("uploaded");
        let bytes = 2 * l * m * n;
        let make = |kernels: &Kernels, bytes: usize| {
            DeviceBuffer::upload(kernels.device(), "buffer", &vec![0x55; bytes]).expect("uploaded")
        };
        let memory = make(&kernels, 4 * bytes);
        let view = |at: usize, len: usize| {
            // SAFETY: it is inside the buffer, which outlives it.
            unsafe {
                DeviceBuffer::from_raw(kernels.device(), "view", memory.address() + at as u64, len)
            }
            .expect("inside")
        };
        let out = view(0, bytes);
        let launch = |buffer: &DeviceBuffer, float_type, stride| {
            let residual = Some(Residual { buffer, float_type, stride });
            let (a, out) = (ActivationBuffers::Halves(&a), ResultBuffers::Floats(&out));
            product.launch(a, &weights, out, None, Vectors { residual, ..Vectors::default() })
        };
        let (f16, bf16, f32) = (FloatType::F16, FloatType::Bf16, FloatType::F32);
        let short = make(&kernels, bytes - 2);
        let text = refused("a short one", launch(&short, f16, None));
        assert_eq!(text, "bytes of the residual must be 640, but is 638");
        let text = refused("another type's", launch(&out, f32, None));
        assert_eq!(text, "bytes of the residual must be 1280, but is 640");
        let text = refused("too near", launch(&make(&kernels, bytes), f16, Some(m * n - 1)));
        assert!(
            text.starts_with("batch stride of the residual must be 0 or from 160 to"),
            "{text}"
        );
        let text = refused("too short", launch(&make(&kernels, bytes), f16, Some(m * n + 1)));
        assert_eq!(text, "bytes of the residual must be at least 642, but is 640");
        let elsewhere = emulated(device, Schedule::Eager);
        let error = launch(&make(&elsewhere, bytes), f16, None).expect_err("another device");
        assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
        // Another type of the same size, the same begin with other strides, and a shifted place.
        for (what, buffer, float_type, stride) in [
            ("bf16", view(0, bytes), bf16, None),
            ("one matrix for both", view(0, bytes / 2), f16, Some(0)),
            ("strided", view(0, bytes + 16), f16, Some(m * n + 8)),
            ("shifted", view(16, bytes), f16, None),
            ("the last row", view(bytes - 16, bytes), f16, None),
        ] {
            let text = refused(what, launch(&buffer, float_type, stride));
            assert!(text.starts_with(overlaps), "{what}: {text}");
        }
        assert!(memory.read().expect("readable").iter().all(|&byte| byte == 0x55), "written");
        // Its neighbour, and the result itself.
        launch(&view(bytes, bytes), f16, None).expect("a neighbour");
        launch(&out, f16, None).expect("in place");
        launch(&out, f16, Some(m * n)).expect("in place, as it says");
    }
}
