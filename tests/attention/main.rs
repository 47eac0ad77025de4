//! Attention of one token on the emulators, against f64 and against answers that are exact.

mod mutants;
mod refused;

use fp4_formats::HalfType;
use nvfp4::attention::{Attention, AttentionOptions, AttentionShape};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4_lab::attention::{Exact, HostOperands, exact, first_wrong};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::{SCHEDULES, TARGETS, also_gpu, emulated};

/// A case: sizes, type, options, and the place of the tokens.
#[derive(Clone, Debug)]
struct Case {
    shape: AttentionShape,
    half: HalfType,
    options: AttentionOptions,
    place: u32,
    begins: Option<Vec<u32>>,
    sinks: bool,
    /// Places that the plan expects.
    expected: usize,
}

/// A case of one text that sees all places.
fn case([heads, kv_heads, dim]: [usize; 3], half: HalfType, place: u32) -> Case {
    let capacity = place as usize + 3;
    Case {
        shape: AttentionShape { texts: 1, heads, kv_heads, dim, capacity },
        half,
        options: AttentionOptions::new((dim as f32).sqrt().recip()),
        place,
        begins: None,
        sinks: false,
        expected: capacity,
    }
}

/// Cases of every size of a head and both types: groups that fill eight or sixteen rows and others, places at the bounds of
/// tiles, one CTA for a head and several, windows, norms, sinks, texts that begin later.
fn cases() -> Vec<Case> {
    use HalfType::{Bf16, F16};
    let with = |case: Case, change: fn(&mut Case)| {
        let mut case = case;
        change(&mut case);
        case
    };
    let texts = |case: &mut Case, begins: &[u32]| {
        (case.shape.texts, case.begins) = (begins.len(), Some(begins.to_vec()));
    };
    let mut later = case([4, 2, 64], F16, 40);
    texts(&mut later, &[0, 17, 40, 63]);
    let mut windowed = case([8, 1, 64], Bf16, 300);
    texts(&mut windowed, &[0, 200, 299]);
    (windowed.options.window, windowed.sinks) = (Some(128), true);
    vec![
        case([1, 1, 32], F16, 0),
        case([4, 1, 128], F16, 15),
        case([16, 2, 64], F16, 16),
        case([3, 1, 32], Bf16, 17),
        case([14, 2, 128], Bf16, 129),
        case([16, 1, 128], F16, 140),
        // Few places are expected: one CTA takes all.
        with(case([8, 2, 128], F16, 300), |case| case.expected = 1),
        case([32, 8, 128], F16, 530),
        with(case([4, 2, 32], F16, 150), |case| case.options.norm = Some(1e-6)),
        with(case([10, 2, 128], Bf16, 70), |case| case.options.norm = Some(1e-5)),
        with(case([4, 4, 64], F16, 95), |case| case.options.window = Some(1)),
        with(case([4, 2, 64], F16, 95), |case| case.options.window = Some(33)),
        with(case([9, 3, 64], F16, 31), |case| case.options.window = Some(1000)),
        with(case([64, 8, 64], Bf16, 33), |case| case.sinks = true),
        later,
        windowed,
    ]
}

/// Operands of a case: `key` and `value` give the elements of the cache and of the projection, and places that no token sees are
/// NaN.
fn operands(case: &Case, mut element: impl FnMut(Element) -> f64) -> HostOperands {
    let Case { shape, half, options, place, begins, sinks, expected: _ } = case;
    let AttentionShape { texts, heads, kv_heads, dim, capacity } = *shape;
    let mut rounded = |count: usize, kind: Element| -> Vec<f64> {
        let values: Vec<f64> = (0..count).map(|_| element(kind)).collect();
        let bytes = floats::encode(half.float(), values);
        floats::decode(half.float(), &bytes).into_iter().map(f64::from).collect()
    };
    let mut projected = Vec::new();
    for _ in 0..texts {
        projected.extend(rounded(heads * dim, Element::Query));
        projected.extend(rounded(kv_heads * dim, Element::Key));
        projected.extend(rounded(kv_heads * dim, Element::Value));
    }
    let cached = texts * kv_heads * capacity * dim;
    let mut cache = [Element::Key, Element::Value].map(|kind| rounded(cached, kind));
    for (at, head) in (0..texts * kv_heads).enumerate() {
        let begin = begins.as_ref().map_or(0, |begins| begins[head / kv_heads].min(*place));
        let hidden =
            options.window.map_or(0, |window| (*place as usize + 1).saturating_sub(window));
        let seen = hidden.max(begin as usize)..*place as usize;
        for each in (0..capacity).filter(|each| !seen.contains(each)) {
            let from = (at * capacity + each) * dim;
            cache.iter_mut().for_each(|all| all[from..from + dim].fill(f64::NAN));
        }
    }
    HostOperands {
        half: *half,
        projected,
        turns: [Element::Cosine, Element::Sine].map(|kind| rounded(capacity * dim / 2, kind)),
        norms: options.norm.map(|_| [Element::Weight; 2].map(|kind| rounded(dim, kind))),
        sinks: sinks.then(|| rounded(heads, Element::Sink)),
        place: *place,
        begins: begins.clone(),
        cache,
    }
}

/// Kinds of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    Query,
    Key,
    Value,
    Cosine,
    Sine,
    Weight,
    Sink,
}

/// The result and the cache that a launch leaves.
struct Left {
    result: Vec<f32>,
    cache: [Vec<f32>; 2],
}

/// Launches a case twice on the same operands: the second finds what the first leaves, and gives the same.
fn run(kernels: &Kernels, case: &Case, operands: &HostOperands) -> Left {
    let Case { shape, half, options, expected, .. } = case;
    let device = kernels.device();
    let attention = Attention::new(kernels, *shape, *half, *expected, options).expect("a plan");
    let uploaded = operands.upload(device).expect("uploaded");
    let bytes = shape.texts * shape.heads * shape.dim * 2;
    let read =
        |buffer: &DeviceBuffer| floats::decode(half.float(), &buffer.read().expect("readable"));
    let launch = || {
        let result = DeviceBuffer::poisoned(device, "result", bytes).expect("room");
        attention
            .launch(&uploaded.operands(), &result)
            .unwrap_or_else(|error| panic!("{case:?} on {}: {error}", device.choice()));
        read(&result)
    };
    let (first, second) = (launch(), launch());
    let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&first), bits(&second), "{case:?}");
    Left { result: first, cache: uploaded.cache.each_ref().map(read) }
}

/// Compares the cache: the tokens' own keys and values were added, and nothing else has changed.
fn check_cache(case: &Case, operands: &HostOperands, exact: &Exact, left: &Left) {
    let AttentionShape { texts, kv_heads, dim, capacity, .. } = case.shape;
    for which in 0..2 {
        for at in 0..texts * kv_heads * capacity * dim {
            let (head, place) = (at / dim / capacity, at / dim % capacity);
            let (got, before) = (f64::from(left.cache[which][at]), operands.cache[which][at]);
            if place == case.place as usize {
                let right = exact.appended[which][head * dim + at % dim];
                // Keys are computed in f32, and may be rounded otherwise near a tie.
                let bound = if which == 0 { 2f64.powi(-7) * right.abs() + 1e-6 } else { 0.0 };
                assert!((got - right).abs() <= bound, "{case:?}: {which} at {at}: {got}, {right}");
            } else {
                let same = got.is_nan() && before.is_nan() || got.to_bits() == before.to_bits();
                assert!(same, "{case:?}: {which} at {at}: {got} in place of {before}");
            }
        }
    }
}

/// The machines, with schedules in turn, and the GPU.
fn machines(turn: usize) -> impl Iterator<Item = Kernels> {
    let of = move |(at, machine): (usize, &&str)| {
        emulated(machine, SCHEDULES[(turn + at) % SCHEDULES.len()])
    };
    TARGETS.iter().enumerate().map(of)
}

/// Shares are equal and values small integers: results are exact quotients.
#[test]
fn equal_shares_are_exact() {
    let gpu = also_gpu();
    for (turn, case) in cases().into_iter().enumerate() {
        let mut next = 0i32;
        let operands = operands(&case, |kind| match kind {
            Element::Key | Element::Sine | Element::Sink => 0.0,
            Element::Query | Element::Cosine | Element::Weight => 1.0,
            Element::Value => {
                next = (next + 7) % 31;
                f64::from(next - 15)
            }
        });
        let exact = exact(case.shape, &case.options, &operands);
        for kernels in machines(turn).chain(gpu.clone()) {
            let left = run(&kernels, &case, &operands);
            check_cache(&case, &operands, &exact, &left);
            for (at, (got, right)) in left.result.iter().zip(&exact.result).enumerate() {
                let once = f64::from(*right as f32);
                let bytes = floats::encode(case.half.float(), [once]);
                let right = floats::decode(case.half.float(), &bytes)[0];
                assert_eq!(*got, right, "{case:?} at {at}");
            }
        }
    }
}

/// Random operands against f64, of ordinary size, and with scores so large that one place takes all.
#[test]
fn results_are_near_the_exact_ones() {
    let gpu = also_gpu();
    for (turn, case) in cases().into_iter().enumerate() {
        for scale in [1.0, 100.0] {
            let mut random = SplitMix64::new(turn as u64);
            let operands = operands(&case, |kind| {
                let x = random.normal();
                match kind {
                    Element::Query => x * scale,
                    Element::Key | Element::Value | Element::Sink => x,
                    Element::Cosine | Element::Sine => x.sin(),
                    Element::Weight => 1.0 + x / 4.0,
                }
            });
            let exact = exact(case.shape, &case.options, &operands);
            for kernels in machines(turn + 1).chain(gpu.clone()) {
                let left = run(&kernels, &case, &operands);
                check_cache(&case, &operands, &exact, &left);
                // A query or key that is rounded otherwise moves a score by half a unit of its largest product.
                let parts = if scale == 1.0 { 4.0 } else { 64.0 };
                let wrong = first_wrong(case.half, &left.result, &exact, parts);
                assert_eq!(wrong, None, "{case:?}, scale {scale}, {}", kernels.device().choice());
            }
        }
    }
}

/// Every schedule gives the same bits.
#[test]
fn schedules_agree() {
    let case = case([32, 8, 128], HalfType::F16, 530);
    let mut random = SplitMix64::new(7);
    let operands = operands(&case, |_| random.normal());
    for machine in TARGETS {
        let results = SCHEDULES.map(|schedule| run(&emulated(machine, schedule), &case, &operands));
        for left in &results[1..] {
            assert_eq!(left.result, results[0].result, "{machine}");
        }
    }
}

/// Values at the ends of the types' ranges: the largest ones stay finite, subnormals keep their bits, and infinities and NaN
/// among what is seen show in the result.
#[test]
fn the_whole_range_is_right() {
    for half in [HalfType::F16, HalfType::Bf16] {
        let case = case([4, 2, 64], half, 37);
        let (largest, smallest) = match half {
            HalfType::F16 => (65504.0, 2f64.powi(-24)),
            // Products are added before they are divided: the sum of 38 of them is one of f32.
            HalfType::Bf16 => (f64::from(f32::from_bits(0x7f7f_0000)) / 64.0, 2f64.powi(-133)),
        };
        for value in [largest, -largest, smallest, f64::INFINITY, f64::NAN] {
            let operands = operands(&case, |kind| match kind {
                Element::Value => value,
                Element::Cosine => 1.0,
                Element::Query | Element::Key | Element::Sine | Element::Weight | Element::Sink => {
                    0.0
                }
            });
            for kernels in machines(0) {
                let left = run(&kernels, &case, &operands);
                let is_right = |x: &f32| f64::from(*x) == value || value.is_nan() && x.is_nan();
                let wrong = left.result.iter().position(|x| !is_right(x));
                assert_eq!(wrong, None, "{half:?} {value}: {:?}", &left.result[..4]);
            }
        }
        // Scores beyond all others, of both signs, and one that is NaN.
        let mut random = SplitMix64::new(3);
        let operands = operands(&case, |kind| match kind {
            Element::Query => largest.sqrt(),
            Element::Key if random.next_u64().is_multiple_of(64) => -largest.sqrt(),
            Element::Cosine => 1.0,
            Element::Key | Element::Value => 1.0,
            Element::Sine | Element::Weight | Element::Sink => 0.0,
        });
        let exact = exact(case.shape, &case.options, &operands);
        for kernels in machines(1) {
            let left = run(&kernels, &case, &operands);
            assert_eq!(first_wrong(half, &left.result, &exact, 4.0), None, "{half:?}");
            let mut bad = operands.clone();
            bad.cache[0][0] = f64::NAN;
            let left = run(&kernels, &case, &bad);
            // The first head of keys is that of the first half of the heads.
            let heads = left.result.chunks(2 * 64).map(|head| head.iter().all(|x| x.is_nan()));
            assert_eq!(heads.collect::<Vec<_>>(), [true, false], "{half:?}");
        }
    }
}
