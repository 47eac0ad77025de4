//! A mixture of experts on the emulated machines: each step against its definition, and the whole
//! layer against an f64 reference.

use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, HalfType, Nvfp4, ScaleLayout, TensorFamily};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::{
    Activation, ActivationKind, Activations, DeviceWeights, GatedWeights, GemmOptions, HalfMatrix,
    Repacked, UpOptions, Weights,
};
use nvfp4::moe::{
    CombineTypes, ExpertMap, MoeBiases, MoeInputs, MoeLayer, MoeOptions, MoeProblem, MoeShape,
    MoeStep, Routes, Routing,
};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::gemm::reference;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::MoeOperands;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::{POISON, blocks};
use nvfp4_tests::mixture::{Mixture, MixtureCase};
use nvfp4_tests::{SCHEDULES, TARGETS, emulated};
use ptx_emu::Schedule;

pub const NOWHERE: u32 = u32::MAX;
const BAD: u32 = u32::MAX - 1;

fn bytes_of<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

fn words(buffer: &DeviceBuffer) -> Vec<u32> {
    let bytes = buffer.read().expect("readable");
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn upload(kernels: &Kernels, bytes: &[u8]) -> DeviceBuffer {
    DeviceBuffer::upload(kernels.device(), "x", bytes).expect("memory")
}

/// Ids of a token without doubles, mostly of few experts.
fn ids(shape: MoeShape, rng: &mut SplitMix64) -> Vec<i32> {
    let mut all = Vec::new();
    for _ in 0..shape.tokens {
        let mut own: Vec<i32> = Vec::new();
        while own.len() < shape.top_k {
            let most = if rng.below(2) == 0 { shape.experts } else { shape.experts.div_ceil(4) };
            let id = rng.below(most.max(shape.top_k) as u32) as i32;
            if !own.contains(&id) {
                own.push(id);
            }
        }
        all.extend(own);
    }
    all
}

/// Positions, sources and offsets as a stable sort on the host makes them.
pub fn routed(shape: MoeShape, ids: &[i32]) -> [Vec<u32>; 3] {
    let local = |id: i32| {
        let at = usize::try_from(id).ok()?.checked_sub(shape.first)?;
        (at < shape.count).then_some(at)
    };
    let mut order: Vec<usize> = (0..ids.len()).filter(|&slot| local(ids[slot]).is_some()).collect();
    order.sort_by_key(|&slot| local(ids[slot]));
    let mut positions: Vec<u32> = ids
        .iter()
        .map(|&id| if (0..shape.experts as i32).contains(&id) { NOWHERE } else { BAD })
        .collect();
    let mut sources = vec![NOWHERE; ids.len()];
    for (row, &slot) in order.iter().enumerate() {
        positions[slot] = row as u32;
        sources[row] = slot as u32;
    }
    let before = |expert| order.iter().filter(|&&slot| local(ids[slot]) < Some(expert)).count();
    let offsets = (0..=shape.count).map(|expert| before(expert) as u32).collect();
    [positions, sources, offsets]
}

const SHAPES: [MoeShape; 7] = [
    MoeShape { tokens: 1, top_k: 1, experts: 1, first: 0, count: 1 },
    MoeShape { tokens: 7, top_k: 2, experts: 5, first: 1, count: 4 },
    MoeShape { tokens: 150, top_k: 8, experts: 256, first: 0, count: 256 },
    MoeShape { tokens: 33, top_k: 4, experts: 64, first: 16, count: 24 },
    MoeShape { tokens: 90, top_k: 10, experts: 512, first: 0, count: 512 },
    MoeShape { tokens: 1, top_k: 6, experts: 1300, first: 200, count: 1024 },
    MoeShape { tokens: 300, top_k: 7, experts: 9, first: 8, count: 1 },
];

/// Routing is a stable sort by expert, whatever the schedule, for any number of experts, some of
/// them elsewhere, and gathering copies tokens accordingly.
#[test]
fn routing_and_gathering() {
    for (at, shape) in SHAPES.into_iter().enumerate() {
        for device in TARGETS {
            let kernels = emulated(device, SCHEDULES[at % 5]);
            let ids = ids(shape, &mut SplitMix64::new(at as u64));
            let routing = Routing::new(&kernels, shape).expect("a shape");
            let routes = routing.routes().expect("memory");
            let on_device = upload(&kernels, &bytes_of(&ids, i32::to_le_bytes));
            routing.route(&on_device, &routes).expect("a launch");
            let [positions, sources, offsets] = routed(shape, &ids);
            assert_eq!(words(&routes.positions), positions, "{shape:?}");
            assert_eq!(words(&routes.sources), sources, "{shape:?}");
            assert_eq!(words(&routes.offsets), offsets, "{shape:?}");
            assert_eq!(routes.problem().expect("readable"), None);

            gathered_halves(&kernels, &routing, &routes, 24 * (at + 1));
            gathered_blocks(&kernels, &routing, &routes, 16 * (at + 1));
            // Longer rows than all threads have on their way, of bytes, words and pieces of 16 bytes.
            if shape.tokens * shape.top_k < 16 {
                gathered_halves(&kernels, &routing, &routes, 8 * 1030);
                for blocks in [1031, 4 * 1031, 16 * 1030] {
                    gathered_blocks(&kernels, &routing, &routes, 16 * blocks);
                }
            }
        }
    }
}

/// Routing by a table, with ids of -1, and with a fixed number of rows for each expert, of which some have more choices.
#[test]
fn routing_by_tables() {
    for (at, shape) in SHAPES.into_iter().enumerate() {
        let shape = MoeShape { first: 0, ..shape };
        let mut rng = SplitMix64::new(70 + at as u64);
        let mut ids = ids(shape, &mut rng);
        for id in ids.iter_mut().skip(1).step_by(4) {
            *id = -1;
        }
        let bad = (at % 2 == 1).then_some(shape.experts as i32);
        ids[0] = bad.unwrap_or(ids[0]);
        // The last expert has its number, so that the map has as many as the shape.
        let numbers = (0..shape.experts).map(|_| rng.below(shape.count as u32 + 1) as i32 - 1);
        let mut entries: Vec<i32> = numbers.collect();
        *entries.last_mut().expect("experts") = shape.count as i32 - 1;
        let map = ExpertMap::new(entries.clone()).expect("numbers");
        let local = |id: i32| match usize::try_from(id) {
            Ok(id) => entries.get(id).map_or(BAD, |&entry| entry as u32),
            Err(_) => NOWHERE,
        };
        for device in TARGETS {
            let kernels = emulated(device, SCHEDULES[at % 5]);
            let mapped = Routing::mapped(&kernels, shape, &map).expect("a shape");
            let on_device = upload(&kernels, &bytes_of(&ids, i32::to_le_bytes));
            let routes = mapped.routes().expect("memory");
            mapped.route(&on_device, &routes).expect("a launch");
            let mut counts = vec![0u32; shape.count];
            let mut places = vec![];
            for &id in &ids {
                let expert = local(id);
                let count = counts.get_mut(expert as usize);
                places
                    .push((expert, count.map_or(0, |count| std::mem::replace(count, *count + 1))));
            }
            let mut offsets = vec![0];
            offsets.extend(counts.iter().scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            }));
            assert_eq!(words(&routes.offsets), offsets, "{shape:?}");
            let fault = bad.map(|_| MoeProblem::BadId);
            assert_eq!(routes.problem().expect("readable"), fault);
            let expert_of = |&(expert, _): &(u32, u32)| (expert as usize) < shape.count;
            let first_row = |expert: u32, capacity: Option<u32>| {
                capacity.map_or(offsets[expert as usize], |capacity| expert * capacity)
            };
            let positions = |capacity: Option<u32>| -> Vec<u32> {
                let row = |place: &(u32, u32)| match (*place, capacity) {
                    (_, Some(capacity)) if expert_of(place) && place.1 >= capacity => BAD,
                    ((expert, at), _) if expert_of(place) => first_row(expert, capacity) + at,
                    ((expert, _), _) => expert,
                };
                places.iter().map(row).collect()
            };
            assert_eq!(words(&routes.positions), positions(None), "{shape:?}");

            let largest = *counts.iter().max().expect("experts");
            for capacity in [largest.max(1), (largest / 2).max(1)] {
                let fixed = mapped.clone().with_capacity(capacity as usize).expect("rows");
                let routes = fixed.routes().expect("memory");
                assert_eq!(fixed.rows(), shape.count * capacity as usize);
                fixed.route(&on_device, &routes).expect("a launch");
                let right = positions(Some(capacity));
                assert_eq!(words(&routes.positions), right, "{shape:?}, {capacity} rows");
                let mut sources = vec![NOWHERE; fixed.rows()];
                for (slot, row) in (0..).zip(&right) {
                    if let Some(source) = sources.get_mut(*row as usize) {
                        *source = slot;
                    }
                }
                assert_eq!(words(&routes.sources), sources, "{shape:?}, {capacity} rows");
                assert_eq!(words(routes.most.as_ref().expect("counted")), counts);
                assert_eq!(words(&routes.offsets), offsets);
                let over = largest > capacity;
                let found = routes.problem().expect("readable");
                assert_eq!(found.is_some(), over || bad.is_some(), "{found:?}");
                assert!(bad.is_some() || found == over.then_some(MoeProblem::OverCapacity));
            }
        }
    }
}

/// Rows return to the order of choices, and those of choices elsewhere stay what they are.
#[test]
fn scattering() {
    for (device, (at, shape)) in TARGETS.into_iter().zip(SHAPES.into_iter().enumerate().skip(1)) {
        let kernels = emulated(device, SCHEDULES[at % 5]);
        let mut ids = ids(shape, &mut SplitMix64::new(at as u64));
        ids[1] = i32::MAX;
        let routing = Routing::new(&kernels, shape).expect("a shape");
        let routes = routing.routes().expect("memory");
        routing.route(&upload(&kernels, &bytes_of(&ids, i32::to_le_bytes)), &routes).expect("done");
        for row in [1, 12, 48] {
            let bytes: Vec<u8> = (0..routing.rows() * row).map(|i| (i * 7) as u8).collect();
            let from = upload(&kernels, &bytes);
            let to = upload(&kernels, &vec![POISON; routing.slots() * row]);
            routing.scatter(&from, &routes, &to, row).expect("a launch");
            let found = to.read().expect("readable");
            for (slot, position) in words(&routes.positions).into_iter().enumerate() {
                let right = match position {
                    BAD | NOWHERE => vec![POISON; row],
                    position => bytes[position as usize * row..][..row].to_vec(),
                };
                assert_eq!(found[slot * row..][..row], right, "{shape:?}, slot {slot}");
            }
        }
    }
}

/// Tokens follow their slot; slots of experts elsewhere have zeros.
fn gathered_halves(kernels: &Kernels, routing: &Routing, routes: &Routes, columns: usize) {
    let MoeShape { tokens, top_k, .. } = routing.shape();
    let tokens: Vec<u16> = (0..tokens * columns).map(|i| i as u16).collect();
    let from = upload(kernels, &bytes_of(&tokens, u16::to_le_bytes));
    let to = upload(kernels, &vec![0xee; routing.slots() * columns * 2]);
    routing.gather(&from, routes, &to, columns).expect("a launch");
    let gathered = to.read().expect("readable");
    for (row, &slot) in words(&routes.sources).iter().enumerate() {
        let got = &gathered[row * columns * 2..][..columns * 2];
        let token = slot as usize / top_k;
        let right = match slot {
            NOWHERE => vec![0; columns * 2],
            _ => bytes_of(&tokens[token * columns..][..columns], u16::to_le_bytes),
        };
        assert_eq!(got, right, "{:?}, row {row}", routing.shape());
    }
}

/// Codes and scales follow their token, whatever their rows are multiples of.
fn gathered_blocks(kernels: &Kernels, routing: &Routing, routes: &Routes, columns: usize) {
    let MoeShape { tokens, top_k, .. } = routing.shape();
    let rows = [columns / 2, columns / 16];
    let from = rows.map(|row| (0..tokens * row).map(|i| (i * 7 + row) as u8).collect::<Vec<u8>>());
    let to = rows.map(|row| upload(kernels, &vec![0xee; routing.slots() * row]));
    let on_device = from.each_ref().map(|bytes| upload(kernels, bytes));
    let [codes, scales] = [0, 1].map(|at: usize| [&on_device[at], &to[at]]);
    routing.gather_blocks(Format::Nvfp4, codes, scales, routes, columns).expect("a launch");
    let sources = words(&routes.sources);
    for ((row, from), to) in rows.into_iter().zip(&from).zip(&to) {
        let got = to.read().expect("readable");
        for (at, &slot) in sources.iter().enumerate() {
            let right = match slot {
                NOWHERE => vec![0; row],
                slot => from[slot as usize / top_k * row..][..row].to_vec(),
            };
            assert_eq!(got[at * row..][..row], right, "{:?}, row {at}", routing.shape());
        }
    }
}

/// Combining adds in the order of choices, rounded to f32 after each step, for all types.
#[test]
fn combining() {
    // The kernel loads eight choices together.
    let together = 8;
    let tokens = 5 + together;
    let shape = MoeShape { tokens, top_k: 2 * together, experts: 17, first: 1, count: 4 };
    let types = FloatType::ALL;
    let pairs = types.into_iter().flat_map(|a| types.map(|b| [a, b]));
    let all = pairs.flat_map(|[a, b]| types.map(|c| [a, b, c]));
    let all = all.enumerate().flat_map(|case| TARGETS.map(|device| (device, case)));
    for (device, (at, [from_type, out_type, shared_type])) in all {
        let kernels = emulated(device, SCHEDULES[at % 5]);
        let mut rng = SplitMix64::new(at as u64);
        // One CTA's columns, and more.
        let columns = if at % 3 == 0 { 2088 } else { 40 };
        let slots = shape.tokens * shape.top_k;
        let mut ids = ids(shape, &mut rng);
        let mut weights: Vec<f32> = (0..slots).map(|_| rng.normal() as f32).collect();
        // One of those that are loaded together is bad, or has no weight.
        for choice in 0..together {
            ids[(5 + choice) * shape.top_k + choice] = -3;
            weights[4 * shape.top_k + choice] = f32::NAN;
        }
        for (id, at) in ids[4 * shape.top_k..][..shape.top_k].iter_mut().zip(0..) {
            *id = 1 + at % 4;
        }
        let routing = Routing::new(&kernels, shape).expect("a shape");
        let routes = routing.routes().expect("memory");
        let ids_on_device = upload(&kernels, &bytes_of(&ids, i32::to_le_bytes));
        routing.route(&ids_on_device, &routes).expect("a launch");
        assert_eq!(routes.problem().expect("readable"), Some(MoeProblem::BadId));
        let mut random = |of: FloatType, count: usize| {
            let values: Vec<f64> = (0..count).map(|_| rng.normal()).collect();
            floats::encode(of, values)
        };
        let (rows, shared) =
            (random(from_type, slots * columns), random(shared_type, tokens * columns));
        let out_bytes = tokens * columns * out_type.bytes() as usize;
        let [from, shared_buffer] = [&rows, &shared].map(|bytes| upload(&kernels, bytes));
        let out = upload(&kernels, &vec![0xee; out_bytes]);
        let on_device = upload(&kernels, &bytes_of(&weights, f32::to_le_bytes));
        let with = at % 2 == 0;
        let shared_buffer = with.then_some(&shared_buffer);
        let types = CombineTypes { rows: from_type, result: out_type, shared: shared_type };
        let types = (columns, types);
        routes.clear_status().expect("a launch");
        routing.combine(&from, &routes, &on_device, shared_buffer, &out, types).expect("a launch");
        assert_eq!(routes.problem().expect("readable"), Some(MoeProblem::NanWeight));
        let got = out.read().expect("readable");
        let [positions, ..] = routed(shape, &ids);

        // The same rows in the order of choices, between others that nobody may read: the same bits.
        let row_bytes = columns * from_type.bytes() as usize;
        let nothing = vec![POISON; row_bytes];
        let by_choice: Vec<u8> = positions
            .iter()
            .flat_map(|&row| match row {
                BAD | NOWHERE => &nothing,
                row => &rows[row as usize * row_bytes..][..row_bytes],
            })
            .copied()
            .collect();
        let from = upload(&kernels, &by_choice);
        let out = upload(&kernels, &vec![0xee; out_bytes]);
        routes.clear_status().expect("a launch");
        let choices = (&ids_on_device, &routes);
        let launched =
            routing.combine_choices(&from, choices, &on_device, shared_buffer, &out, types);
        launched.expect("a launch");
        let by_choice = out.read().expect("readable");
        // No weight is NaN, so the bad ids are the fault.
        routes.clear_status().expect("a launch");
        let ones = upload(&kernels, &1f32.to_le_bytes().repeat(slots));
        let launched = routing.combine_choices(&from, choices, &ones, None, &out, types);
        launched.expect("a launch");
        assert_eq!(routes.problem().expect("readable"), Some(MoeProblem::BadId));
        let other = (0..got.len()).find(|&at| got[at] != by_choice[at]);
        let of_row = columns * out_type.bytes() as usize;
        let place = other.map(|at| [at / of_row, at % of_row]);
        assert_eq!(place, None, "token and byte, {from_type:?} {out_type:?} {shared_type:?}");

        let (rows, shared) =
            (floats::decode(from_type, &rows), floats::decode(shared_type, &shared));
        for token in 0..shape.tokens {
            for column in 0..columns {
                let mut sum = 0f32;
                for slot in token * shape.top_k..(token + 1) * shape.top_k {
                    match positions[slot] {
                        BAD => sum = f32::NAN,
                        NOWHERE => {}
                        row => {
                            let value = rows[row as usize * columns + column];
                            sum += weights[slot] * value;
                        }
                    }
                }
                if with {
                    sum += shared[token * columns + column];
                }
                let at = token * columns + column;
                let bytes = out_type.bytes() as usize;
                let got = floats::decode(out_type, &got[at * bytes..][..bytes])[0];
                let place = format!("{from_type:?} {out_type:?} token {token}, column {column}");
                if token >= 4 {
                    assert!(got.is_nan(), "{place}: {got}");
                    continue;
                }
                let right = floats::decode(out_type, &floats::encode(out_type, [sum.into()]))[0];
                assert_eq!(got.to_bits(), right.to_bits(), "{place}: {got}, not {right}");
            }
        }
    }
}

struct Layer {
    shape: MoeShape,
    hidden: usize,
    between: usize,
    half: HalfType,
    options: MoeOptions,
    biases: bool,
    shared: bool,
}

type Tensor = BlockScaled<Nvfp4>;

impl Layer {
    /// Runs it and compares: with an f64 reference whose values between the products are rounded as
    /// the kernels'.
    fn check(&self, kernels: &Kernels, seed: u64) {
        let Self { shape, hidden, between, half, .. } = *self;
        let mut rng = SplitMix64::new(seed);
        let mut tensors = |rows: usize, columns: usize| -> Vec<Tensor> {
            let make = |scale| {
                let (of, layout) = (Generator::FullRange, ScaleLayout::Linear);
                blocks::<Nvfp4>(of, [1, rows, columns], layout, scale, &mut rng)
            };
            (0..shape.count).map(|e| [0.5, 1.0, 0.25][e % 3]).map(make).collect()
        };
        let [gates, ups] = [(); 2].map(|()| tensors(between, hidden));
        let downs = tensors(hidden, between);
        let vector = |rng: &mut SplitMix64, count: usize| -> Vec<f32> {
            (0..count).map(|_| rng.normal() as f32).collect()
        };
        let ids = ids(shape, &mut rng);
        let weights = vector(&mut rng, ids.len());
        let x = vector(&mut rng, shape.tokens * hidden);
        let x = HalfMatrix::round("x", Dims::new(1, shape.tokens, hidden).unwrap(), half, &x);
        let x = x.expect("finite");
        let biases =
            [between, between, hidden].map(|columns| vector(&mut rng, shape.count * columns));
        let shared = vector(&mut rng, shape.tokens * hidden);

        let (device, kind) = (kernels.device(), ActivationKind::Halves(half));
        let first: Vec<Repacked> = gates
            .iter()
            .zip(&ups)
            .map(|(gate, up)| {
                let pair = GatedWeights::pair(gate, up).expect("a pair");
                Repacked::gated(device, &pair, kind).expect("weights")
            })
            .collect();
        let second: Vec<Repacked> =
            downs.iter().map(|w| Repacked::for_device(device, w, kind).expect("weights")).collect();
        let [first, second] = [first, second]
            .map(|parts| Repacked::stack(&parts).expect("alike").upload(device).expect("memory"));
        let layer = MoeLayer::new(kernels, shape, &first, &second, half, &self.options)
            .unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        let memory = layer.memory().expect("memory");
        let floats = |values: &[f32]| upload(kernels, &bytes_of(values, f32::to_le_bytes));
        let on_device = biases.each_ref().map(|bias| floats(bias));
        let encoded = floats::encode(self.options.output, shared.iter().copied().map(f64::from));
        let shared_buffer = upload(kernels, &encoded);
        let (ids_buffer, weights_buffer) =
            (upload(kernels, &bytes_of(&ids, i32::to_le_bytes)), floats(&weights));
        let activations = upload(kernels, x.bytes());
        let inputs = MoeInputs {
            activations: &activations,
            ids: &ids_buffer,
            weights: &weights_buffer,
            shared: self.shared.then_some(&shared_buffer),
        };
        let [gate, up, down] = on_device.each_ref().map(|bias| self.biases.then_some(bias));
        let out = upload(kernels, &vec![0xee; layer.out_bytes()]);
        let mut results = Vec::new();
        for _ in 0..2 {
            let biases = MoeBiases { gate, up, down };
            layer
                .launch(&inputs, [&first, &second], &memory, &out, biases)
                .unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            results.push(out.read().expect("readable"));
        }
        assert_eq!(memory.problem().expect("readable"), None);
        assert!(results[0] == results[1], "{shape:?}: two launches differ");

        // Each choice of each token, one after the other.
        let of_type = half.float();
        let got = floats::decode(self.options.output, &results[0]);
        let shared = floats::decode(self.options.output, &encoded);
        for token in 0..shape.tokens {
            let own = &x.bytes()[token * hidden * 2..][..hidden * 2];
            let own = HalfMatrix::new("x", Dims::new(1, 1, hidden).unwrap(), half, own.to_vec());
            let own = own.expect("a row");
            let mut sums = vec![[0f64; 2]; hidden];
            for slot in token * shape.top_k..(token + 1) * shape.top_k {
                let Some(expert) = (ids[slot] as usize).checked_sub(shape.first) else { continue };
                if expert >= shape.count {
                    continue;
                }
                let part = |bias: &[f32], columns: usize| {
                    self.biases.then(|| bias[expert * columns..][..columns].to_vec())
                };
                let options = GemmOptions::new()
                    .activation(self.options.activation)
                    .bias(part(&biases[0], between))
                    .up(UpOptions::new().bias(part(&biases[1], between)));
                let pair = GatedWeights::pair(&gates[expert], &ups[expert]).expect("a pair");
                let inner = reference(&Activations::Halves(&own), pair, &options).expect("fits");
                let rounded =
                    floats::decode(of_type, &floats::encode(of_type, inner.values.iter().copied()));
                let inner_matrix =
                    HalfMatrix::round("h", Dims::new(1, 1, between).unwrap(), half, &rounded)
                        .expect("finite");
                let options = GemmOptions::new().bias(part(&biases[2], hidden));
                let weights_of: Weights<'_, Nvfp4> = (&downs[expert]).into();
                let outer = reference(&Activations::Halves(&inner_matrix), weights_of, &options);
                let outer = outer.expect("fits");
                for (sum, (value, magnitude)) in
                    sums.iter_mut().zip(outer.values.iter().zip(&outer.magnitudes))
                {
                    let weight = f64::from(weights[slot]);
                    sum[0] += weight * value;
                    sum[1] += (weight * magnitude).abs();
                }
            }
            for (column, [sum, magnitude]) in sums.into_iter().enumerate() {
                let extra =
                    if self.shared { f64::from(shared[token * hidden + column]) } else { 0.0 };
                let (got, right) = (f64::from(got[token * hidden + column]), sum + extra);
                // A value between the products may be rounded to either neighbour.
                let ulp = match half {
                    HalfType::F16 => 2f64.powi(-10),
                    HalfType::Bf16 => 2f64.powi(-7),
                };
                let of_result = match self.options.output {
                    FloatType::F32 => 2f64.powi(-22),
                    FloatType::F16 => 2f64.powi(-10),
                    FloatType::Bf16 => 2f64.powi(-7),
                };
                let allowed = ulp * magnitude + of_result * (right.abs() + magnitude) + 1e-6;
                assert!(
                    (got - right).abs() <= allowed,
                    "{shape:?} token {token}, column {column}: {got}, not {right} +- {allowed}"
                );
            }
        }
    }
}

/// Whole layers: experts elsewhere, empty experts, biases, a shared expert, every activation.
#[test]
fn layers() {
    let shapes = [
        MoeShape { tokens: 5, top_k: 2, experts: 6, first: 0, count: 6 },
        MoeShape { tokens: 1, top_k: 3, experts: 40, first: 0, count: 40 },
        MoeShape { tokens: 40, top_k: 4, experts: 8, first: 2, count: 5 },
        MoeShape { tokens: 9, top_k: 1, experts: 3, first: 2, count: 1 },
    ];
    for (at, shape) in shapes.into_iter().enumerate() {
        for half in [HalfType::F16, HalfType::Bf16] {
            let kernels = emulated(TARGETS[(at + half as usize) % 4], SCHEDULES[at]);
            let layer = Layer {
                shape,
                hidden: [64, 96, 160, 48][at],
                between: [96, 32, 80, 16][at],
                half,
                options: MoeOptions::new()
                    .activation(Activation::ALL[at + usize::from(half == HalfType::Bf16)])
                    .output(FloatType::ALL[at % 3])
                    .rows(FloatType::F32)
                    .quantized(None),
                biases: at % 2 == 0,
                shared: at % 3 == 0,
            };
            layer.check(&kernels, at as u64);
        }
    }
}

/// A layer for one token has no routing: experts elsewhere, mostly elsewhere, the only expert; the layer for two
/// tokens has it.
#[test]
fn layers_of_one_token() {
    for (at, (shape, steps)) in [
        (MoeShape { tokens: 1, top_k: 8, experts: 64, first: 16, count: 24 }, 3),
        (MoeShape { tokens: 1, top_k: 2, experts: 500, first: 490, count: 2 }, 3),
        (MoeShape { tokens: 1, top_k: 1, experts: 1, first: 0, count: 1 }, 3),
        (MoeShape { tokens: 2, top_k: 2, experts: 4, first: 0, count: 4 }, 5),
    ]
    .into_iter()
    .enumerate()
    {
        for device in TARGETS {
            let (kernels, reports) = emulated(device, SCHEDULES[at]).observed();
            let layer = Layer {
                shape,
                hidden: [64, 80, 160, 48][at],
                between: [96, 32, 80, 16][at],
                half: [HalfType::F16, HalfType::Bf16][at % 2],
                options: MoeOptions::new().output(FloatType::ALL[at % 3]).rows(FloatType::F32),
                biases: at != 1,
                shared: at % 2 == 0,
            };
            layer.check(&kernels, at as u64 + 20);
            assert_eq!(reports.take().len(), 2 * steps, "{shape:?}: launches of two runs");
        }
    }
}

/// A layer with its weights and tokens on a device, and an f32 result.
struct PlannedLayer {
    layer: MoeLayer,
    weights: [DeviceWeights; 2],
    x: DeviceBuffer,
}

impl PlannedLayer {
    fn new(kernels: &Kernels, operands: &MoeOperands<'_, Nvfp4>) -> Self {
        let weights = operands.repack(kernels.device()).expect("weights");
        let weights = weights.map(|w| w.upload(kernels.device()).expect("memory"));
        let ([first, second], half) = (&weights, operands.tokens.operand());
        let layer = MoeLayer::new(kernels, operands.shape, first, second, half, &operands.options);
        let x = upload(kernels, operands.tokens.bytes());
        Self { layer: layer.expect("a layer"), weights, x }
    }

    /// The result with these choices and weights of them, and what was wrong.
    fn run(
        &self,
        kernels: &Kernels,
        ids: &[i32],
        factors: &[f32],
    ) -> (Vec<f32>, Option<MoeProblem>) {
        let Self { layer, weights, x } = self;
        let memory = layer.memory().expect("memory");
        let out = upload(kernels, &vec![0xee; layer.out_bytes()]);
        let inputs = MoeInputs {
            activations: x,
            ids: &upload(kernels, &bytes_of(ids, i32::to_le_bytes)),
            weights: &upload(kernels, &bytes_of(factors, f32::to_le_bytes)),
            shared: None,
        };
        let biases = MoeBiases::default();
        layer.launch(&inputs, weights.each_ref(), &memory, &out, biases).expect("launched");
        let values = floats::decode(FloatType::F32, &out.read().expect("readable"));
        (values, memory.problem().expect("readable"))
    }
}

/// A bad id of a layer for one token makes it NaN and says so, as a weight that is NaN does; of an expert that is
/// chosen twice, both rows count.
#[test]
fn bad_choices_of_one_token() {
    let case = MixtureCase::new([1, 6, 3], [64, 32], HalfType::F16);
    let mixture = Mixture::<Nvfp4>::new(case, 5);
    let step = mixture.step(6);
    let operands = mixture.operands(&step);
    for device in TARGETS {
        let kernels = emulated(device, SCHEDULES[2]);
        let planned = PlannedLayer::new(&kernels, &operands);
        let run = |ids: [i32; 3], factors: [f32; 3]| planned.run(&kernels, &ids, &factors);
        let (right, problem) = run([4, 1, 5], [0.5, 0.25, 0.0]);
        assert!(problem.is_none() && right.iter().all(|value| value.is_finite()));
        // An id of -1 is as one of an expert elsewhere.
        let (without, problem) = run([4, 1, -1], [0.5, 0.25, f32::NAN]);
        assert!(problem.is_none() && without == right, "{device}: a choice of -1");
        for id in [6, -2, i32::MIN, i32::MAX] {
            let (values, problem) = run([4, id, 5], [0.5, 0.25, 0.0]);
            assert!(values.iter().all(|value| value.is_nan()), "{device}, id {id}");
            assert_eq!(problem, Some(MoeProblem::BadId), "{device}, id {id}");
        }
        let (values, problem) = run([4, 1, 5], [0.5, f32::NAN, 0.0]);
        assert!(values.iter().all(|value| value.is_nan()), "{device}");
        assert_eq!(problem, Some(MoeProblem::NanWeight), "{device}");
        let (once, _) = run([4, 1, 5], [0.5, 0.0, 0.0]);
        let (twice, problem) = run([4, 4, 5], [0.25, 0.25, 0.0]);
        assert_eq!(problem, None);
        assert!(once == twice, "{device}: an expert chosen twice");
        // Steps that it has not are refused.
        let PlannedLayer { layer, weights, x } = &planned;
        let memory = layer.memory().expect("memory");
        let steps: Vec<MoeStep> = layer.steps().collect();
        assert_eq!(steps, [MoeStep::First, MoeStep::Second, MoeStep::Combine]);
        let ids = upload(&kernels, &[0; 12]);
        let inputs = MoeInputs { activations: x, ids: &ids, weights: &ids, shared: None };
        for step in [MoeStep::Route, MoeStep::Gather] {
            let biases = MoeBiases::default();
            let error = layer.launch_step(step, &inputs, weights.each_ref(), &memory, x, biases);
            let error = error.expect_err("no such step").to_string();
            assert!(error.contains("step"), "{error}");
        }
    }
}

/// A bad id or weight of a layer's token makes that token NaN and no other.
#[test]
fn bad_choices_of_one_of_many_tokens() {
    const BAD_TOKEN: usize = 3;
    let case = MixtureCase::new([7, 6, 2], [64, 32], HalfType::Bf16);
    let mixture = Mixture::<Nvfp4>::new(case, 5);
    let step = mixture.step(6);
    let operands = mixture.operands(&step);
    for device in TARGETS {
        let kernels = emulated(device, SCHEDULES[1]);
        let planned = PlannedLayer::new(&kernels, &operands);
        let run = |ids: &[i32], factors: &[f32]| planned.run(&kernels, ids, factors);
        let (right, problem) = run(operands.ids, operands.weights);
        assert!(problem.is_none() && right.iter().all(|value| value.is_finite()));
        let (mut ids, mut factors) = (operands.ids.to_vec(), operands.weights.to_vec());
        ids[2 * BAD_TOKEN + 1] = 6;
        factors[2 * BAD_TOKEN] = f32::NAN;
        // An id of -1 adds nothing, as one of a weight of 0.
        let (mut holes, mut zeros) = (operands.ids.to_vec(), operands.weights.to_vec());
        holes[2 * BAD_TOKEN + 1] = -1;
        zeros[2 * BAD_TOKEN + 1] = 0.0;
        let (with, problem) = run(&holes, operands.weights);
        assert_eq!(problem, None, "{device}: a choice of -1");
        assert!(with == run(operands.ids, &zeros).0, "{device}: a choice of -1");
        for (ids, factors, problem) in [
            (&ids[..], operands.weights, MoeProblem::BadId),
            (operands.ids, &factors[..], MoeProblem::NanWeight),
        ] {
            let (values, found) = run(ids, factors);
            assert_eq!(found, Some(problem), "{device}");
            for (token, (got, right)) in values.chunks(64).zip(right.chunks(64)).enumerate() {
                let is_right = match token {
                    BAD_TOKEN => got.iter().all(|value| value.is_nan()),
                    _ => got == right,
                };
                assert!(is_right, "{device}, {problem:?}: token {token}");
            }
        }
    }
}

/// First products on sm_90a bring the beginnings of the second one's weights to L2, one for each CTA that has
/// a tile there; nothing else is brought, and other architectures bring nothing at all.
#[test]
fn first_products_prefetch_for_the_second() {
    for device in TARGETS {
        let (kernels, reports) = emulated(device, Schedule::Eager).observed();
        // All six experts have the three tokens, and ten row tiles in the second product. The first one has ten
        // steps, more than stages.
        let layer = Layer {
            shape: MoeShape { tokens: 3, top_k: 6, experts: 6, first: 0, count: 6 },
            hidden: 1168,
            between: 48,
            half: HalfType::F16,
            options: MoeOptions::new(),
            biases: false,
            shared: false,
        };
        layer.check(&kernels, 11);
        let prefetches: Vec<u64> = reports
            .take()
            .iter()
            .map(|report| report.counters.asynchronous.prefetches)
            .filter(|&count| count > 0)
            .collect();
        let twice = match kernels.device().choice().arch.tensor() {
            TensorFamily::Wgmma => vec![60; 2],
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Tcgen05 => {
                vec![]
            }
        };
        assert_eq!(prefetches, twice, "{device}");
    }
}
