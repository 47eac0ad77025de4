//! Experts on several emulated devices in one process: the same bits as on one device, in all precisions.

use std::thread;
use std::time::Duration;

use fp4_formats::gemm::OUT_RECIPE;
use fp4_formats::moe::record::{Header, Record};
use fp4_formats::quantize::Recipe;
use fp4_formats::{BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, ErrorKind};
use nvfp4::floats;
use nvfp4::gemm::{Activation, DeviceWeights};
use nvfp4::moe::{
    ExpertMap, MoeBiases, MoeInputs, MoeLayer, MoeOptions, MoeShape, Routing, TokenFormat,
    TokenScales,
};
use nvfp4::parallel::{
    ExpertPlaces, Experts, ExpertsMemory, ExpertsShape, ExpertsStep, HostExchange, Transport,
};
use nvfp4::quantize::{QuantizeOptions, TensorScale};
use nvfp4::rows::{Made, Operands, Results, RowsOptions, Source, reference};
use nvfp4_lab::moe::{HostBiases, MoeOperands};
use nvfp4_tests::mixture::{Mixture, MixtureCase, Quantized};
use nvfp4_tests::{SCHEDULES, emulated};

const PATIENCE: Duration = Duration::from_secs(300);

fn upload(kernels: &Kernels, name: &str, bytes: &[u8]) -> DeviceBuffer {
    DeviceBuffer::upload(kernels.device(), name, bytes).expect("memory")
}

fn bytes_of<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

/// The tokens of a rank: the first, and their number.
type Own = (usize, usize);

/// A layer whose tokens several ranks have.
struct Case<'a, F> {
    operands: MoeOperands<'a, F>,
    ids: Vec<i32>,
    device: &'static str,
}

/// The device's operands of some tokens.
struct OnDevice {
    x: DeviceBuffer,
    ids: DeviceBuffer,
    weights: DeviceBuffer,
    shared: Option<DeviceBuffer>,
    biases: [Option<DeviceBuffer>; 3],
    products: [DeviceWeights; 2],
}

impl OnDevice {
    fn inputs(&self) -> MoeInputs<'_> {
        let Self { x, ids, weights, shared, .. } = self;
        MoeInputs { activations: x, ids, weights, shared: shared.as_ref() }
    }

    fn biases(&self) -> MoeBiases<'_> {
        let [gate, up, down] = self.biases.each_ref().map(Option::as_ref);
        MoeBiases { gate, up, down }
    }
}

impl<F: BlockFormat> Case<'_, F> {
    fn top_k(&self) -> usize {
        self.operands.shape.top_k
    }

    /// Some experts and tokens on a device.
    fn upload(&self, kernels: &Kernels, experts: &[usize], (first, count): Own) -> OnDevice {
        let MoeOperands { tokens, weights, biases, shared, .. } = &self.operands;
        let (hidden, top_k) = (tokens.dims().cols(), self.top_k());
        let of = MoeOperands {
            first: experts.iter().map(|&at| self.operands.first[at]).collect(),
            second: experts.iter().map(|&at| self.operands.second[at]).collect(),
            ..self.operands.clone()
        };
        let products = match of.options.quantized {
            Some(TokenFormat::Fp8) => of.repack_rounded(kernels.device()),
            _ => of.repack(kernels.device()),
        };
        let products = products.expect("weights");
        let products = products.map(|of| of.upload(kernels.device()).expect("memory"));
        let HostBiases { gate, up, down } = *biases;
        let all = self.operands.shape.count;
        let biases = [gate, up, down].map(|values| {
            let values = values?;
            let each = values.len() / all;
            let own: Vec<f32> =
                experts.iter().flat_map(|&at| values[at * each..][..each].to_vec()).collect();
            Some(upload(kernels, "biases", &bytes_of(&own, f32::to_le_bytes)))
        });
        let slots = first * top_k..(first + count) * top_k;
        OnDevice {
            x: upload(kernels, "x", &tokens.bytes()[first * hidden * 2..][..count * hidden * 2]),
            ids: upload(kernels, "ids", &bytes_of(&self.ids[slots.clone()], i32::to_le_bytes)),
            weights: upload(kernels, "weights", &bytes_of(&weights[slots], f32::to_le_bytes)),
            shared: shared.map(|values| {
                let own = &values[first * hidden..][..count * hidden];
                upload(kernels, "shared", &bytes_of(own, f32::to_le_bytes))
            }),
            biases,
            products,
        }
    }

    /// The result of one device that has all experts and tokens.
    fn on_one_device(&self) -> Vec<u8> {
        let kernels = emulated(self.device, SCHEDULES[0]);
        let shape = self.operands.shape;
        let experts: Vec<usize> = (0..shape.count).collect();
        let all = self.upload(&kernels, &experts, (0, shape.tokens));
        let (half, options) = (self.operands.tokens.operand(), &self.operands.options);
        let [first, second] = &all.products;
        let layer = MoeLayer::new(&kernels, shape, first, second, half, options).expect("a layer");
        let memory = layer.memory().expect("memory");
        let out = upload(&kernels, "out", &vec![0xee; layer.out_bytes()]);
        let inputs = all.inputs();
        let launched = layer.launch(&inputs, [first, second], &memory, &out, all.biases());
        launched.expect("launched");
        out.read().expect("readable")
    }

    /// Runs `one` for each rank on a thread and an emulated device of its own.
    fn on_ranks<T: Send>(
        &self,
        places: &ExpertPlaces,
        tokens: &[usize],
        capacity: usize,
        one: impl Fn(&Experts, &OnDevice, &ExpertsMemory, HostExchange, &DeviceBuffer) -> T + Sync,
    ) -> Vec<T>
    where
        F: Sync,
    {
        let options = &self.operands.options;
        let (half, ranks) = (self.operands.tokens.operand(), places.ranks());
        assert_eq!(tokens.len(), ranks);
        thread::scope(|scope| {
            let one = &one;
            let ends = HostExchange::all(ranks, PATIENCE).into_iter().enumerate();
            let threads: Vec<_> = ends
                .map(|(rank, end)| {
                    scope.spawn(move || {
                        let kernels = emulated(self.device, SCHEDULES[rank % SCHEDULES.len()]);
                        let own = (tokens[..rank].iter().sum(), tokens[rank]);
                        let uploaded = self.upload(&kernels, &places.experts(rank), own);
                        let shape =
                            ExpertsShape { tokens: tokens[rank], top_k: self.top_k(), capacity };
                        let products = uploaded.products.each_ref();
                        let place = (places, rank);
                        let experts = Experts::new(&kernels, shape, place, products, half, options);
                        let experts = experts.expect("a layer");
                        let memory = experts.memory().expect("memory");
                        let out = upload(&kernels, "out", &vec![0xee; experts.out_bytes()]);
                        one(&experts, &uploaded, &memory, end, &out)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank failed")).collect()
        })
    }

    /// The most rows that a rank has for another one.
    fn most_rows(&self, places: &ExpertPlaces, tokens: &[usize]) -> usize {
        let mut first = 0;
        let mut most = 1;
        for count in tokens {
            let ids = &self.ids[first * self.top_k()..(first + count) * self.top_k()];
            for rank in 0..places.ranks() {
                let experts = places.experts(rank);
                let here = |id: &&i32| usize::try_from(**id).is_ok_and(|id| experts.contains(&id));
                most = most.max(ids.iter().filter(here).count());
            }
            first += count;
        }
        most
    }

    /// Compares all ranks with one device.
    fn check(&self, places: &ExpertPlaces, tokens: &[usize], right: &[u8])
    where
        F: Sync,
    {
        let capacity = self.most_rows(places, tokens);
        let results = self.on_ranks(places, tokens, capacity, |experts, on, memory, end, out| {
            let products = on.products.each_ref();
            // Another launch before leaves other rows in all memory.
            let ids = on.ids.read().expect("readable");
            let other: Vec<u8> = ids.chunks(4).rev().flatten().copied().collect();
            on.ids.write(&other).expect("memory");
            let launch = || experts.launch(&on.inputs(), products, memory, &end, out, on.biases());
            launch().expect("launched");
            on.ids.write(&ids).expect("memory");
            memory.clear_problem().expect("memory");
            launch().expect("launched");
            assert_eq!(memory.problem().expect("within the capacity"), None);
            let whole = out.read().expect("readable");
            // Step by step it is the same.
            out.fill(0xee).expect("memory");
            for step in ExpertsStep::ALL {
                let step = experts.launch_step(
                    step,
                    &on.inputs(),
                    products,
                    memory,
                    &end,
                    out,
                    on.biases(),
                );
                step.expect("launched");
            }
            assert!(out.read().expect("readable") == whole, "steps differ from the launch");
            whole
        });
        let found = results.concat();
        let different = (0..right.len()).find(|&at| found[at] != right[at]);
        let what = format!("{}, {tokens:?} tokens, {places:?}", self.device);
        assert_eq!((found.len(), different), (right.len(), None), "{what}");
        let values = floats::decode(FloatType::F32, right);
        assert!(values.iter().all(|value| value.is_finite()) && values.iter().any(|x| *x != 0.0));
    }
}

/// A layer of these experts, tokens and choices; `quantized` is the form of tokens.
fn check_layers<F: BlockFormat + Sync>(
    device: &'static str,
    case: MixtureCase,
    scaled_rows: bool,
    all: &[(ExpertPlaces, Vec<usize>)],
) {
    for (at, (places, tokens)) in (0..).zip(all) {
        let shape = MoeShape { tokens: tokens.iter().sum(), ..case.shape };
        let mixture = Mixture::<F>::new(MixtureCase { shape, ..case }, 40 + at);
        let step = mixture.step(80 + at);
        let mut operands = mixture.operands(&step);
        operands.options.batch_invariant = true;
        if scaled_rows {
            operands.options.quantized = Some(TokenFormat::ScaledRows);
        }
        let case = Case { ids: with_holes(&operands), operands, device };
        case.check(places, tokens, &case.on_one_device());
    }
}

/// The same ids, of which some are nobody's.
fn with_holes<F>(operands: &MoeOperands<'_, F>) -> Vec<i32> {
    let top_k = operands.shape.top_k;
    let is_hole = |slot: usize| (slot / top_k) % 5 == 1 && slot.is_multiple_of(top_k);
    operands.ids.iter().enumerate().map(|(slot, id)| if is_hole(slot) { -1 } else { *id }).collect()
}

/// Ranks of 2, 4 and 8 devices: with ranges and tables of experts, different numbers of them, and different numbers of
/// tokens, of which some have one.
fn ranks(experts: usize) -> Vec<(ExpertPlaces, Vec<usize>)> {
    let even = |ranks| ExpertPlaces::even(experts, ranks).expect("enough experts");
    let table = (0..experts).map(|expert| usize::from(expert * expert % 5 == 1)).collect();
    vec![
        (even(2), vec![7, 3]),
        (ExpertPlaces::new(table, 2).expect("experts on both"), vec![1, 9]),
        (even(4), vec![2, 5, 1, 4]),
        (even(8), vec![1, 2, 1, 3, 1, 1, 4, 1]),
    ]
}

const H200: &str = "emu:h200";
const B200: &str = "emu:b200";

fn small(half: HalfType) -> MixtureCase {
    MixtureCase::new([1, 11, 3], [64, 96], half)
}

/// 16-bit rows, biases and shared experts, in both formats of weights.
#[test]
fn halves() {
    let case = MixtureCase { extras: true, ..small(HalfType::Bf16) };
    check_layers::<Nvfp4>(H200, case, false, &ranks(11));
    check_layers::<Mxfp4>(H200, case, false, &ranks(11)[1..3]);
    check_layers::<Nvfp4>(B200, small(HalfType::F16), false, &ranks(11)[1..2]);
}

/// Rows in blocks of both formats.
#[test]
fn blocks() {
    let case = MixtureCase { quantized: Quantized::Blocks, ..small(HalfType::Bf16) };
    let case = MixtureCase { activation: Activation::GPT_OSS, ..case };
    check_layers::<Nvfp4>(B200, case, false, &ranks(11));
    check_layers::<Mxfp4>(B200, case, false, &ranks(11)[1..3]);
    check_layers::<Nvfp4>(H200, case, false, &ranks(11)[1..2]);
}

/// NVFP4 with a scale for each row.
#[test]
fn scaled_rows() {
    let case = MixtureCase { extras: true, ..small(HalfType::Bf16) };
    check_layers::<Nvfp4>(B200, case, true, &ranks(11));
    check_layers::<Nvfp4>(H200, case, true, &ranks(11)[1..3]);
}

/// e4m3 with a scale for each row.
#[test]
fn e4m3() {
    let case = MixtureCase { quantized: Quantized::Fp8, extras: true, ..small(HalfType::F16) };
    check_layers::<Nvfp4>(H200, case, false, &ranks(11));
    check_layers::<Mxfp4>(H200, case, false, &ranks(11)[1..3]);
    check_layers::<Nvfp4>(B200, case, false, &ranks(11)[1..2]);
}

/// The words of a header.
fn header(record: &[u8]) -> Header {
    let words = record.as_chunks().0;
    Header::of_words(std::array::from_fn(|at| u32::from_le_bytes(words[at])))
}

/// Records as their definition says: of each choice in order the header, elements, scales of blocks and of the row; behind
/// them, headers that are no token's. The exchange brings each rank its own.
#[test]
fn records_are_packed_in_order() {
    let tokens = [6, 4];
    let shape = MoeShape { tokens: 10, top_k: 3, experts: 7, first: 0, count: 7 };
    let case = MixtureCase { shape, ..small(HalfType::Bf16) };
    let places = ExpertPlaces::new(vec![1, 0, 0, 1, 1, 0, 1], 2).expect("experts on both");
    let mixture = Mixture::<Nvfp4>::new(case, 3);
    let step = mixture.step(4);
    for (device, quantized) in [
        (H200, None),
        (H200, Some(TokenFormat::Fp8)),
        (B200, Some(TokenFormat::ScaledRows)),
        (B200, Some(TokenFormat::Blocks(TokenScales { tokens: 0.01, between: 1.0 }))),
    ] {
        let mut operands = mixture.operands(&step);
        operands.options.quantized = quantized;
        let factors = operands.weights.to_vec();
        let case = Case { ids: with_holes(&operands), operands, device };
        // One more than any rank needs.
        let capacity = case.most_rows(&places, &tokens) + 1;
        let all = case.on_ranks(&places, &tokens, capacity, |experts, on, memory, end, out| {
            for step in [ExpertsStep::Pack, ExpertsStep::Send] {
                let products = on.products.each_ref();
                experts
                    .launch_step(step, &on.inputs(), products, memory, &end, out, on.biases())
                    .expect("launched");
            }
            let [sent, received] =
                memory.records().each_ref().map(|records| records.read().expect("readable"));
            let rows = [on.x.len() / 128, 64];
            let x = on.x.read().expect("readable");
            (sent, received, as_sent(quantized, HalfType::Bf16, rows, &x))
        });
        let record = match quantized {
            None => Record { elements: 128, scales: 0 },
            Some(TokenFormat::Fp8) => Record { elements: 64, scales: 0 },
            Some(_) => Record { elements: 32, scales: 4 },
        };
        let (bytes, mut first) = (record.bytes() as usize, 0);
        for (rank, (sent, _, ([elements, scales], of_rows))) in all.iter().enumerate() {
            for (to, (_, received, _)) in all.iter().enumerate() {
                let [sent, received] = [(sent, to), (received, rank)]
                    .map(|(of, at)| &of[at * capacity * bytes..][..capacity * bytes]);
                assert!(sent == received, "{device}, {quantized:?}: from {rank} to {to}");
                let experts = places.experts(to);
                let mut records = sent.chunks_exact(bytes);
                for slot in 0..tokens[rank] * 3 {
                    let id = case.ids[first + slot];
                    let Some(local) = experts.iter().position(|expert| *expert as i32 == id) else {
                        continue;
                    };
                    let found = records.next().expect("a record");
                    let token = slot / 3;
                    let scale = of_rows.as_ref().map_or(1.0, |scales| scales[token]);
                    let weight = factors[first + slot];
                    let right = Header { expert: local as u32, place: slot as u32, weight, scale };
                    assert_eq!(header(found), right, "{device}, {quantized:?}");
                    for (at, len, of) in [
                        (Record::ELEMENTS_AT, record.elements, elements),
                        (record.scales_at(), record.scales, scales),
                    ] {
                        let (at, len) = (at as usize, len as usize);
                        let row = &of[token * len..][..len];
                        assert!(found[at..][..len] == *row, "{device}, {quantized:?}, {slot}");
                    }
                }
                let rest: Vec<Header> = records.map(header).collect();
                assert!(!rest.is_empty() && rest.iter().all(|header| *header == Header::NONE));
            }
            first += tokens[rank] * 3;
        }
    }
}

/// Elements, scales of blocks and scales of rows of tokens, by the references on the CPU.
fn as_sent(
    quantized: Option<TokenFormat>,
    half: HalfType,
    [m, k]: [usize; 2],
    x: &[u8],
) -> ([Vec<u8>; 2], Option<Vec<f32>>) {
    let blocks = |scale| {
        let options = QuantizeOptions::new(Recipe::Nvfp4(OUT_RECIPE)).scale(scale);
        Results::Blocks(options.layout(ScaleLayout::Linear))
    };
    let results = match quantized {
        None => return ([x.to_vec(), Vec::new()], None),
        Some(TokenFormat::Blocks(scales)) => blocks(TensorScale::Given(scales.tokens)),
        Some(TokenFormat::ScaledRows) => blocks(TensorScale::PerRow),
        Some(TokenFormat::Fp8) => Results::E4m3,
    };
    let options = RowsOptions::new(Source::Plain, results);
    let reference = reference(m, k, half, &options, &Operands::plain(x)).expect("finite");
    match reference.made {
        Made::Blocks(matrix) => {
            let of_rows =
                (quantized == Some(TokenFormat::ScaledRows)).then(|| matrix.multipliers());
            ([matrix.codes, matrix.scales], of_rows)
        }
        Made::E4m3 { codes, scales } => ([codes, Vec::new()], Some(scales)),
        Made::Half(_) => unreachable!("no such result was asked for"),
    }
}

/// Choices beyond the capacity are an error that names ranks and counts; their tokens become NaN, and no others.
#[test]
fn capacity() {
    let tokens = [6, 4];
    let shape = MoeShape { tokens: 10, top_k: 3, experts: 7, first: 0, count: 7 };
    let places = ExpertPlaces::even(7, 2).expect("experts on both");
    let mixture = Mixture::<Nvfp4>::new(MixtureCase { shape, ..small(HalfType::Bf16) }, 3);
    let step = mixture.step(4);
    let mut operands = mixture.operands(&step);
    operands.options.batch_invariant = true;
    // All choices but one of the first rank's are of the second's experts; the second has few.
    let mut ids: Vec<i32> = (0..18).map(|slot| 4 + slot % 3).collect();
    ids[4] = 1;
    ids.extend([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0]);
    let case = Case { ids, operands, device: H200 };
    let right = floats::decode(FloatType::F32, &case.on_one_device());
    let most = case.most_rows(&places, &tokens);
    assert_eq!(most, 17);
    for capacity in [most, most - 4] {
        let all = case.on_ranks(&places, &tokens, capacity, |experts, on, memory, end, out| {
            let products = on.products.each_ref();
            let launch = || experts.launch(&on.inputs(), products, memory, &end, out, on.biases());
            launch().expect("launched");
            let found = memory.problem();
            let values = floats::decode(FloatType::F32, &out.read().expect("readable"));
            // The fault stays until it is cleared.
            memory.clear_problem().expect("memory");
            let cleared = memory.problem().expect("cleared");
            (found, cleared, values)
        });
        let [(first, ..), (second, ..)] = &all[..] else { panic!("two ranks") };
        assert!(matches!(second, Ok(None)), "{second:?}");
        assert!(all.iter().all(|(_, cleared, _)| cleared.is_none()));
        let expected =
            (capacity < most).then_some("rank 0 has 17 rows for rank 1, but the capacity is 13");
        let found = first.as_ref().err().map(|error| {
            let is_right =
                matches!(error, Error::Capacity { from: 0, to: 1, rows: 17, capacity: 13 });
            assert!(is_right, "{error}");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.to_string()
        });
        assert_eq!(found.as_deref(), expected);
        let values: Vec<f32> = all.into_iter().flat_map(|(_, _, values)| values).collect();
        for (token, (found, right)) in values.chunks(64).zip(right.chunks(64)).enumerate() {
            // The first rank's last four choices are of its tokens 4 and 5.
            let is_right = match capacity < most && (4..6).contains(&token) {
                true => found.iter().all(|value| value.is_nan()),
                false => found == right,
            };
            assert!(is_right, "token {token}, capacity {capacity}");
        }
    }
}

/// A rank that ends, is too late or sends something else ends the exchange of the others with an error.
#[test]
fn lost_ranks() {
    let kernels = emulated(H200, SCHEDULES[0]);
    let buffer = |bytes| DeviceBuffer::zeroed(kernels.device(), "x", bytes).expect("memory");
    let error = |result: nvfp4::Result<()>| {
        let error = result.expect_err("no rank answers");
        assert!(matches!(error, Error::Exchange { rank: 0, .. }));
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Exchange, 1));
        error.to_string()
    };
    let (from, to) = (buffer(32), buffer(32));
    let mut ends = HostExchange::all(2, PATIENCE);
    let own = ends.remove(0);
    assert_eq!([own.rank(), own.ranks(), ends[0].rank()], [0, 2, 1]);
    drop(ends);
    let found = error(own.exchange(&from, &to, 16));
    assert_eq!(found, "rank 0 cannot exchange rows with rank 1: it has ended");

    let ends = HostExchange::all(2, Duration::from_millis(10));
    let found = error(ends[0].exchange(&from, &to, 16));
    assert_eq!(found, "rank 0 cannot exchange rows with rank 1: nothing came within 10ms");

    let ends = HostExchange::all(2, Duration::from_millis(10));
    ends[1].exchange(&from, &to, 8).expect_err("the other has sent nothing");
    let found = error(ends[0].exchange(&from, &to, 16));
    let right = "rank 0 cannot exchange rows with rank 1: 8 bytes came in place of 16";
    assert_eq!(found, right);
    let found = ends[0].exchange(&from, &to, 17).expect_err("too small").to_string();
    assert_eq!(found, "bytes to send must be 17 for each of 2 ranks, but is 32");
}

/// Wrong sizes and things of other ranks are refused before anything is launched.
#[test]
fn refused() {
    let tokens = [2, 2];
    let shape = MoeShape { tokens: 4, top_k: 3, experts: 7, first: 0, count: 7 };
    let places = ExpertPlaces::even(7, 2).expect("experts on both");
    let mixture = Mixture::<Nvfp4>::new(MixtureCase { shape, ..small(HalfType::Bf16) }, 3);
    let step = mixture.step(4);
    let operands = mixture.operands(&step);
    let (options, half) = (operands.options.clone(), operands.tokens.operand());
    let case = Case { ids: operands.ids.to_vec(), operands, device: H200 };
    case.on_ranks(&places, &tokens, 6, |experts, on, memory, end, out| {
        let kernels = emulated(H200, SCHEDULES[0]);
        let rank = end.rank();
        let products = on.products.each_ref();
        let new = |shape, place, options: &MoeOptions| {
            let made = Experts::new(&kernels, shape, (&places, place), products, half, options);
            made.map(drop).expect_err("wrong").to_string()
        };
        let good = ExpertsShape { tokens: 2, top_k: 3, capacity: 6 };
        let map = places.map(rank).expect("a rank");
        let mapped = options.clone().map(map);
        for (found, right) in [
            (new(good, 2, &options), "rank must be below 2, but is 2"),
            (
                new(ExpertsShape { capacity: 0, ..good }, rank, &options),
                "rows of each expert must be from 1 to 536870911, but is 0",
            ),
            (
                new(ExpertsShape { top_k: 0, ..good }, rank, &options),
                "experts of a token must be from 1 to 256, but is 0",
            ),
            (
                new(good, rank, &mapped),
                "map of experts must be absent, but is beside the places of experts",
            ),
            (
                new(good, 1 - rank, &options),
                [
                    "experts in the first weights must be 3, but is 4",
                    "experts in the first weights must be 4, but is 3",
                ][rank],
            ),
        ] {
            assert_eq!(found, right);
        }
        let launch = |inputs: &MoeInputs<'_>, end: &HostExchange, out: &DeviceBuffer| {
            let launched = experts.launch(inputs, products, memory, end, out, on.biases());
            launched.expect_err("wrong").to_string()
        };
        let others = HostExchange::all(3, PATIENCE);
        let found = launch(&on.inputs(), &others[2], out);
        assert_eq!(found, format!("transport must be rank {rank} of 2, but is rank 2 of 3"));
        let inputs = MoeInputs { ids: out, ..on.inputs() };
        assert_eq!(launch(&inputs, &end, out), "bytes of the ids must be 24, but is 512");
        let found = launch(&on.inputs(), &end, &on.ids);
        assert_eq!(found, "bytes of the result must be 512, but is 24");
        let untouched = out.read().expect("readable");
        assert!(untouched.iter().all(|byte| *byte == 0xee), "something was launched");
    });
}

/// A layer on one device whose experts a map has: the same bits as with ids that were mapped before, also for one token.
#[test]
fn mapped_layers() {
    let all = [2, 4, 5, 9];
    let map = ExpertMap::of(11, &all).expect("valid");
    for (at, tokens) in [1, 6].into_iter().enumerate() {
        let shape = MoeShape { tokens, top_k: 3, experts: 4, first: 0, count: 4 };
        let case = MixtureCase { shape, ..small(HalfType::Bf16) };
        let mixture = Mixture::<Nvfp4>::new(case, 3);
        let step = mixture.step(5 + at as u64);
        let mut operands = mixture.operands(&step);
        operands.options.batch_invariant = true;
        let mut ids = operands.ids.to_vec();
        ids[1] = -1;
        let global: Vec<i32> =
            ids.iter().map(|&id| usize::try_from(id).map_or(3, |id| all[id] as i32)).collect();
        let case = Case { ids, operands, device: [B200, H200][at] };
        let right = case.on_one_device();
        let Case { mut operands, device, .. } = case;
        operands.shape.experts = 11;
        operands.options.map = Some(map.clone());
        let mapped = Case { ids: global, operands, device };
        assert!(mapped.on_one_device() == right, "{tokens} tokens");
        let wrong = ExpertMap::of(10, &all).expect("valid");
        let error = wrong_map(&mapped, wrong);
        assert_eq!(error, "entries of a map of experts must be 11, but is 10");
        let wrong = ExpertMap::of(11, &[0, 1, 2, 3, 4]).expect("valid");
        assert_eq!(wrong_map(&mapped, wrong), "experts in a map must be at most 4, but is 5");
    }
    let error = |map: nvfp4::Result<ExpertMap>| map.expect_err("no map").to_string();
    let required = "-1 or an expert's number";
    assert_eq!(
        error(ExpertMap::new(vec![0, -2])),
        format!("entry 1 of a map of experts must be {required}, but is -2")
    );
    assert_eq!(error(ExpertMap::new(vec![-1])), "experts in a map must be at least 1, but is 0");
    let required = "below 3 and there once";
    for experts in [[0, 3], [1, 1]] {
        let found = format!("expert of a device must be {required}, but is {}", experts[1]);
        assert_eq!(error(ExpertMap::of(3, &experts)), found);
    }
}

/// The error of routing by a map.
fn wrong_map<F: BlockFormat>(case: &Case<'_, F>, map: ExpertMap) -> String {
    let kernels = emulated(case.device, SCHEDULES[0]);
    let routing = Routing::mapped(&kernels, case.operands.shape, &map);
    routing.map(drop).expect_err("wrong").to_string()
}
