//! Invalid parts of a layer are an error before any launch, with the field, the required and the actual value:
//! routing, gathering and combining, and runs of a layer that is planned.

use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, HalfType, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::moe::{CombineTypes, MoeShape, Routes, Routing, TokenFormat, TokenScales};
use nvfp4_lab::moe::MoeRun;
use nvfp4_tests::mixture::{Mixture, MixtureCase};
use nvfp4_tests::refusals::Watched;
use nvfp4_tests::{DEVICES, SCHEDULES, emulated};

const GOOD: MoeShape = MoeShape { tokens: 4, top_k: 2, experts: 8, first: 1, count: 3 };

/// Sizes of nothing, beyond their limits, and experts that there are not.
#[test]
fn shapes() {
    let most = "from 1 to 1073741823";
    let of_device = "experts of this device";
    for machine in DEVICES.map(Watched::new) {
        for (shape, error) in [
            (MoeShape { tokens: 0, ..GOOD }, ["tokens", most, "0"]),
            (MoeShape { tokens: 1 << 30, ..GOOD }, ["tokens", most, "1073741824"]),
            (MoeShape { top_k: 0, ..GOOD }, ["experts of a token", "from 1 to 256", "0"]),
            (MoeShape { top_k: 257, ..GOOD }, ["experts of a token", "from 1 to 256", "257"]),
            (MoeShape { experts: 0, ..GOOD }, ["experts", "from 1 to 2147483647", "0"]),
            (
                MoeShape { experts: 1 << 31, ..GOOD },
                ["experts", "from 1 to 2147483647", "2147483648"],
            ),
            (MoeShape { count: 0, ..GOOD }, [of_device, "from 1 to 1024", "0"]),
            (
                MoeShape { experts: 2000, count: 1025, ..GOOD },
                [of_device, "from 1 to 1024", "1025"],
            ),
            (MoeShape { first: 6, ..GOOD }, [of_device, "within 8", "3 from 6 on"]),
            (MoeShape { count: 8, ..GOOD }, [of_device, "within 8", "8 from 1 on"]),
            (
                MoeShape { first: usize::MAX, ..GOOD },
                [of_device, "within 8", "3 from 18446744073709551615 on"],
            ),
            (
                MoeShape { tokens: 1 << 29, ..GOOD },
                ["tokens times their experts", "at most 1073741823", "1073741824"],
            ),
        ] {
            machine.refused(Routing::new(&machine.kernels, shape), error, &[]);
        }
        Routing::new(&machine.kernels, GOOD).expect("as it must be");
    }
}

/// Ids, what is routed, rows, weights and results of other sizes or devices; columns that no kernel takes.
#[test]
fn buffers_of_routing() {
    for device in DEVICES {
        let (machine, other) = (Watched::new(device), emulated(device, SCHEDULES[0]));
        let elsewhere = |bytes| DeviceBuffer::zeroed(other.device(), "x", bytes).expect("memory");
        let routing = Routing::new(&machine.kernels, GOOD).expect("a shape");
        let sized = |bytes| machine.poisoned(bytes);
        let routes = Routes {
            offsets: sized(16),
            positions: sized(32),
            sources: sized(32),
            status: sized(4),
            most: None,
        };
        let of_routes = [&routes.offsets, &routes.positions, &routes.sources, &routes.status];
        let (ids, weights) = (machine.upload(&[0; 32]), sized(32));

        for (bytes, found) in [(28, "28"), (36, "36")] {
            let launched = routing.route(&sized(bytes), &routes);
            machine.refused(launched, ["bytes of the ids", "32", found], &of_routes);
        }
        machine.refused_elsewhere(routing.route(&elsewhere(32), &routes), "the ids", &of_routes);

        // Tokens, gathered rows, rows to combine, a shared expert's result, and the result: 24 columns.
        let (x, gathered) = (sized(4 * 48), sized(8 * 48));
        let (rows, shared, out) = (sized(8 * 24 * 4), sized(4 * 48), sized(4 * 48));
        let half = FloatType::F16;
        let types = (24, CombineTypes { rows: FloatType::F32, result: half, shared: half });
        let combine = |rows: &DeviceBuffer,
                       routes: &Routes,
                       weights: &DeviceBuffer,
                       shared: &DeviceBuffer,
                       out: &DeviceBuffer| {
            routing.combine(rows, routes, weights, Some(shared), out, types)
        };
        for (at, what, bytes) in
            [(0, "offsets", 16), (1, "positions", 32), (2, "sources", 32), (3, "status word", 4)]
        {
            for found in [bytes - 1, bytes + 4] {
                let mut wrong = routing.routes().expect("memory");
                let parts = [
                    &mut wrong.offsets,
                    &mut wrong.positions,
                    &mut wrong.sources,
                    &mut wrong.status,
                ];
                *parts.into_iter().nth(at).expect("one of four") = sized(found);
                let error =
                    [&format!("bytes of the {what}"), &bytes.to_string(), &found.to_string()];
                let kept = [&gathered, &out];
                machine.refused(routing.route(&ids, &wrong), error.map(|x| x.as_str()), &[]);
                let launched = routing.gather(&x, &wrong, &gathered, 24);
                machine.refused(launched, error.map(|x| x.as_str()), &kept);
                let launched = combine(&rows, &wrong, &weights, &shared, &out);
                machine.refused(launched, error.map(|x| x.as_str()), &kept);
            }
        }

        let gather = |from: &DeviceBuffer, to: &DeviceBuffer, columns| {
            routing.gather(from, &routes, to, columns)
        };
        let error = ["bytes of the activations", "192", "191"];
        machine.refused(gather(&sized(191), &gathered, 24), error, &[&gathered]);
        let error = ["bytes of the gathered activations", "384", "192"];
        machine.refused(gather(&x, &x, 24), error, &[&x]);
        let what = "the gathered activations";
        machine.refused_elsewhere(gather(&x, &elsewhere(384), 24), what, &[&gathered]);
        let columns = "columns to gather";
        for (count, required) in
            [(12, "a multiple of 8"), (0, "from 1 to 536870911"), (1 << 29, "from 1 to 536870911")]
        {
            let error = [columns, required, &count.to_string()];
            machine.refused(gather(&x, &gathered, count), error, &[&gathered]);
        }

        // 32 columns in blocks.
        let [codes, to_codes, scales, to_scales] = [64, 128, 8, 16].map(sized);
        let kept = [&to_codes, &to_scales];
        let gather = |format, codes, scales, columns| {
            routing.gather_blocks(format, codes, scales, &routes, columns)
        };
        let nvfp4 = |codes, scales| gather(Format::Nvfp4, codes, scales, 32);
        let from = [&codes, &to_codes];
        let error = ["bytes of the activations", "64", "128"];
        machine.refused(nvfp4([&to_codes, &to_codes], [&scales, &to_scales]), error, &kept);
        let error = ["bytes of the gathered activations", "128", "64"];
        machine.refused(nvfp4([&codes, &codes], [&scales, &to_scales]), error, &kept);
        let error = ["bytes of the activations", "8", "16"];
        machine.refused(nvfp4(from, [&to_scales, &to_scales]), error, &kept);
        let error = ["bytes of the gathered activations", "16", "8"];
        machine.refused(nvfp4(from, [&scales, &scales]), error, &kept);
        for (format, count, block) in [(Format::Nvfp4, 24, "16"), (Format::Mxfp4, 48, "32")] {
            let error = [columns, &format!("a multiple of {block}"), &count.to_string()];
            let launched = gather(format, from, [&scales, &to_scales], count);
            machine.refused(launched, error, &kept);
        }

        let kept = [&out];
        let combined = combine(&shared, &routes, &weights, &shared, &out);
        machine.refused(combined, ["bytes of the rows to combine", "768", "192"], &kept);
        let combined = combine(&rows, &routes, &routes.status, &shared, &out);
        machine.refused(combined, ["bytes of the weights", "32", "4"], &kept);
        let combined = combine(&rows, &routes, &weights, &gathered, &out);
        let what = "bytes of the shared experts' result";
        machine.refused(combined, [what, "192", "384"], &kept);
        let combined = combine(&rows, &routes, &weights, &shared, &gathered);
        machine.refused(combined, ["bytes of the result", "192", "384"], &[&gathered]);
        let combined = combine(&rows, &routes, &weights, &shared, &elsewhere(192));
        machine.refused_elsewhere(combined, "the result", &kept);
        // As large, and of another type.
        let other = CombineTypes { shared: FloatType::Bf16, ..types.1 };
        let combined = routing.combine(&rows, &routes, &weights, Some(&out), &out, (24, other));
        let what = "the shared experts' result";
        let required = "apart from the result, which has another type";
        machine.refused(combined, [what, required, "the same memory"], &kept);
        let choices = (&out, &routes);
        let combined = routing.combine_choices(&rows, choices, &weights, None, &out, types);
        machine.refused(combined, ["bytes of the ids", "32", "192"], &kept);
        let most = "a multiple of 8, at most 134215680";
        for count in [12, 0, 134_215_688] {
            let types = (count, types.1);
            let combined = routing.combine(&rows, &routes, &weights, None, &out, types);
            machine.refused(combined, ["columns to combine", most, &count.to_string()], &kept);
        }

        routes.clear_status().expect("cleared");
        machine.launched(routing.route(&ids, &routes));
        machine.launched(routing.gather(&x, &routes, &gathered, 24));
        machine.launched(nvfp4(from, [&scales, &to_scales]));
        let zeros = machine.upload(&[0; 32]);
        machine.launched(combine(&machine.upload(&[0; 768]), &routes, &zeros, &out, &out));
    }
}

/// Operands of other sizes than a run's: none of its own is replaced, and no run is made.
#[test]
fn runs_keep_their_sizes() {
    let (f16, sizes) = (HalfType::F16, [64, 32]);
    let case = |shape, sizes, half| MixtureCase::new(shape, sizes, half);
    let with_extras = MixtureCase { extras: true, ..case([4, 8, 2], sizes, f16) };
    let some = |first, count| {
        let case = case([4, 8, 2], sizes, f16);
        MixtureCase { shape: MoeShape { first, count, ..case.shape }, ..case }
    };
    let tokens = "columns of the tokens";
    let shared = "shared experts' result";
    for machine in DEVICES.map(Watched::new) {
        for (own, others) in [
            (
                case([4, 8, 2], sizes, f16),
                vec![
                    (case([5, 8, 2], sizes, f16), ["tokens", "4, as planned", "5"]),
                    (case([4, 8, 3], sizes, f16), ["experts of a token", "2, as planned", "3"]),
                    (case([4, 9, 2], sizes, f16), ["experts", "8, as planned", "9"]),
                    (case([4, 8, 2], [96, 32], f16), [tokens, "64, as planned", "96"]),
                    (
                        case([4, 8, 2], sizes, HalfType::Bf16),
                        ["type of the tokens", "f16, as planned", "bf16"],
                    ),
                    (with_extras, [shared, "absent, as before", "there"]),
                ],
            ),
            (
                with_extras,
                vec![(case([4, 8, 2], sizes, f16), [shared, "there, as before", "absent"])],
            ),
            (
                some(1, 3),
                vec![
                    (some(2, 3), ["first expert of this device", "1, as planned", "2"]),
                    (some(1, 4), ["experts of this device", "3, as planned", "4"]),
                ],
            ),
        ] {
            let mixture = Mixture::<Nvfp4>::new(own, 5);
            let step = mixture.step(6);
            let operands = mixture.operands(&step);
            let device = machine.kernels.device();
            let weights = operands.repack(device).expect("weights");
            let run = MoeRun::new(&machine.kernels, &operands, weights.each_ref()).expect("a run");
            for (other, error) in others {
                let mixture = Mixture::<Nvfp4>::new(other, 7);
                let step = mixture.step(8);
                let operands = mixture.operands(&step);
                machine.refused(run.write(&operands), error, &[]);
                // A run beside this one may have another result to add, or none.
                if error[0] != shared {
                    machine.refused(run.beside(&operands), error, &[]);
                }
            }
            // A run with a result to add is refused as well, if its type is not the layer's.
            let mut typed = mixture.operands(&step);
            typed.options.output = FloatType::Bf16;
            let error = ["type of the result", "f32, as planned", "bf16"];
            machine.refused(run.write(&typed), error, &[]);
            machine.refused(run.beside(&typed), error, &[]);
            let mut typed = mixture.operands(&step);
            typed.options.rows = FloatType::F16;
            let error = ["type of the rows", "f32, as planned", "f16"];
            machine.refused(run.write(&typed), error, &[]);
            let mut quantised = mixture.operands(&step);
            quantised.options.quantized = Some(TokenFormat::Blocks(TokenScales::ONE));
            let found = "quantised to the weights' format";
            let error = ["activations", "as they are, as planned", found];
            machine.refused(run.write(&quantised), error, &[]);
            quantised.options.quantized = Some(TokenFormat::Fp8);
            let error = ["activations", "as they are, as planned", "quantised to e4m3"];
            machine.refused(run.write(&quantised), error, &[]);
            machine.launched(run.launch());
            for check in run.check(&operands).expect("readable") {
                assert!(check.verified, "{own:?}\n{check}");
            }
            let next = mixture.step(9);
            let next = mixture.next(&next, &operands);
            run.write(&next).expect("of its sizes");
            machine.launched(run.launch());
            for check in run.check(&next).expect("readable") {
                assert!(check.verified, "{own:?}, written\n{check}");
            }
        }
    }
}
