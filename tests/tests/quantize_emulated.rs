//! The quantise, amax and dequantise kernels on the emulator, both
//! architectures, against other projects' bytes and against the CPU reference:
//! bit for bit, wherever the arithmetic is not approximate by contract.

use fp4_formats::Arch;
use fp4_formats::quantize::{
    AmaxParams, DequantizeParams, Format, NO_ERROR, QuantizeParams, Recipe, ScaleSource,
    amax_config, dequantize_config, quantize_config,
};
use fp4_formats::recipe::{Mxfp4Recipe, Nvfp4Recipe, Nvfp4Tensor, Software};
use fp4_formats::{FloatType, ScaleLayout, e2m1, e4m3, ue8m0};
use nvfp4::quantize::TensorScale;
use nvfp4_tests::golden::{self, Golden};
use ptx_emu::num::narrow::ue8m0x2_from_f32;
use ptx_emu::{GlobalMemory, Launch, Schedule};

const TYPES: [FloatType; 3] = [FloatType::F32, FloatType::F16, FloatType::Bf16];

/// A machine with its kernels.
struct Machine {
    name: &'static str,
    sms: u32,
    arch: Arch,
}

/// An H200 and a B200.
const MACHINES: [Machine; 2] = [
    Machine { name: "h200", sms: 3, arch: Arch::Sm90a },
    Machine { name: "b200", sms: 2, arch: Arch::Sm100a },
];

impl Machine {
    fn launch(
        &self,
        memory: &mut GlobalMemory,
        entry: &str,
        grid: u32,
        block: u32,
        params: &[u8],
        schedule: Schedule,
    ) {
        let launch = Launch {
            entry,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params,
            schedule,
            threads: None,
            instruction_limit: None,
        };
        if let Err(error) = nvfp4_tests::module(self.arch, entry).launch(memory, &launch) {
            panic!("{} {entry}: {error}", self.name);
        }
    }
}

/// `values` rounded to `ty`: its bytes, and what they stand for.
fn encode(ty: FloatType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    match ty {
        FloatType::F32 => (values.iter().flat_map(|x| x.to_le_bytes()).collect(), values.to_vec()),
        FloatType::F16 => {
            let rounded: Vec<_> = values.iter().map(|&x| half::f16::from_f32(x)).collect();
            let bytes = rounded.iter().flat_map(|x| x.to_le_bytes()).collect();
            (bytes, rounded.iter().map(|x| x.to_f32()).collect())
        }
        FloatType::Bf16 => {
            let rounded: Vec<_> = values.iter().map(|&x| half::bf16::from_f32(x)).collect();
            let bytes = rounded.iter().flat_map(|x| x.to_le_bytes()).collect();
            (bytes, rounded.iter().map(|x| x.to_f32()).collect())
        }
    }
}

/// Largest magnitude; NaN if there is one.
fn amax(values: &[f32]) -> f32 {
    let worse =
        |max: f32, x: &f32| if x.is_nan() || max.is_nan() { f32::NAN } else { max.max(x.abs()) };
    values.iter().fold(0.0, worse)
}

/// What to quantise and how.
#[derive(Debug, Clone, Copy)]
struct Case {
    recipe: Recipe,
    ty: FloatType,
    layout: ScaleLayout,
    source: ScaleSource,
    given: f32,
    m: usize,
    k: usize,
    schedule: Schedule,
    sms: Option<u32>,
}

impl Case {
    fn new(recipe: Recipe, m: usize, k: usize) -> Self {
        Self {
            recipe,
            ty: FloatType::F32,
            layout: ScaleLayout::Linear,
            source: ScaleSource::Given,
            given: 1.0,
            m,
            k,
            schedule: Schedule::Eager,
            sms: None,
        }
    }

    fn block(&self) -> usize {
        self.recipe.format().block() as usize
    }
}

/// What a quantise kernel wrote. Padding included.
#[derive(Debug, PartialEq)]
struct Quantized {
    codes: Vec<u8>,
    scales: Vec<u8>,
    parameters: Vec<f32>,
    error: u64,
}

/// Runs the kernels, with `up` the fused ones. Outputs start uninitialised, so
/// that a byte that is never written fails to be read.
fn run(machine: &Machine, case: &Case, input: &[u8], up: Option<&[u8]>) -> Quantized {
    let silu = up.is_some();
    let (m, k) = (case.m as u32, case.k as u32);
    let sms = case.sms.unwrap_or(machine.sms);
    let mut memory = GlobalMemory::new();
    let input = memory.alloc_from("input", input).expect("room");
    let up = up.map_or(0, |up| memory.alloc_from("up", up).expect("room"));
    let by_row = case.source == ScaleSource::RowAmax;
    let parameters = if by_row { case.m as u64 } else { 1 };
    let tensor = match case.source {
        ScaleSource::Given => 0,
        ScaleSource::TensorAmax => memory.alloc_from("amax", &[0; 4]).expect("room"),
        ScaleSource::RowAmax => memory.alloc("amax", 4 * parameters, 16).expect("room"),
    };
    if tensor != 0 {
        let config = amax_config(case.ty, silu);
        let params = AmaxParams { input, up, out: tensor, m, k, per_row: u32::from(by_row) };
        let grid = config.grid(m, k, by_row, sms);
        machine.launch(
            &mut memory,
            config.name,
            grid,
            config.threads(),
            &params.to_bytes(),
            case.schedule,
        );
    }
    let code_bytes = (case.m * case.k / 2) as u64;
    let scale_bytes = case.layout.bytes(case.m, case.k / case.block()).expect("small") as u64;
    let codes = memory.alloc("codes", code_bytes, 256).expect("room");
    let scales = memory.alloc("scales", scale_bytes, 256).expect("room");
    let tensor_out = memory.alloc("parameters", 4 * parameters, 256).expect("room");
    let errors = memory.alloc_from("errors", &NO_ERROR.to_le_bytes()).expect("room");
    let config = quantize_config(case.recipe, case.ty, silu);
    let (ctas, depth) = config.launch(m, k, case.layout, sms);
    // Few CTAs that live for the whole launch go round many times, also where the host would
    // have more of them.
    let grid = case.sms.filter(|_| config.persistent).map_or(ctas, |few| ctas.min(few));
    let params = QuantizeParams {
        input,
        up,
        codes,
        scales,
        tensor,
        tensor_out,
        errors,
        m,
        k,
        given: case.given,
        source: case.source as u32,
        blocked: u32::from(case.layout == ScaleLayout::Blocked128x4),
        recipe: case.recipe.code(),
        depth,
    };
    machine.launch(
        &mut memory,
        config.name,
        grid,
        config.threads(),
        &params.to_bytes(),
        case.schedule,
    );
    let read = |address, bytes| {
        memory.read(address, bytes).unwrap_or_else(|e| panic!("{} {case:?}: {e}", machine.name))
    };
    Quantized {
        codes: read(codes, code_bytes),
        scales: read(scales, scale_bytes),
        parameters: read(tensor_out, 4 * parameters)
            .as_chunks()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect(),
        error: u64::from_le_bytes(read(errors, 8).try_into().expect("eight bytes")),
    }
}

/// The CPU reference; 128x4 padding is zero.
fn reference(case: &Case, values: &[f32]) -> Quantized {
    let (block, blocks) = (case.block(), case.k / case.block());
    let all = amax(values);
    let mut scales = vec![0; case.layout.bytes(case.m, blocks).expect("small")];
    let (mut codes, mut parameters) = (Vec::new(), Vec::new());
    for (row, row_values) in values.chunks(case.k).enumerate() {
        let parameter = |recipe: Nvfp4Recipe| match case.source {
            ScaleSource::Given => case.given,
            ScaleSource::TensorAmax => recipe.tensor_parameter(all),
            ScaleSource::RowAmax => recipe.tensor_parameter(amax(row_values)),
        };
        let parameter = match case.recipe {
            Recipe::Nvfp4(recipe) => parameter(recipe),
            Recipe::Mxfp4(_) => 1.0,
        };
        if row == 0 || case.source == ScaleSource::RowAmax {
            parameters.push(parameter);
        }
        for (kb, values) in row_values.chunks(block).enumerate() {
            let scale = match case.recipe {
                Recipe::Nvfp4(recipe) => {
                    Nvfp4Tensor::new(recipe, parameter).block::<Software>(amax(values))
                }
                Recipe::Mxfp4(recipe) => recipe.block(amax(values)),
            };
            scales[case.layout.offset(row, kb, blocks)] = scale.byte;
            for group in values.as_chunks().0 {
                codes.extend(scale.codes::<Software>(*group).to_le_bytes());
            }
        }
    }
    let error = values.iter().position(|x| !x.is_finite());
    Quantized { codes, scales, parameters, error: error.map_or(NO_ERROR, |at| at as u64) }
}

fn same_bytes(what: &str, got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    if let Some(at) = (0..got.len()).find(|&at| got[at] != want[at]) {
        panic!("{what}: byte {at} is {:#04x}, expected {:#04x}", got[at], want[at]);
    }
}

/// Runs the case on every machine and compares everything.
fn check(case: &Case, values: &[f32]) {
    let (bytes, values) = encode(case.ty, values);
    let want = reference(case, &values);
    for machine in &MACHINES {
        let got = run(machine, case, &bytes, None);
        let what = format!("{} {case:?}", machine.name);
        same_bytes(&format!("{what} scales"), &got.scales, &want.scales);
        if let Some(at) = (0..got.codes.len()).find(|&at| got.codes[at] != want.codes[at]) {
            let (row, column) = (at * 2 / case.k, at * 2 % case.k);
            panic!(
                "{what}: codes of [{row}, {column}..] are {:#04x}, expected {:#04x}; values {:e} {:e}",
                got.codes[at],
                want.codes[at],
                values[at * 2],
                values[at * 2 + 1]
            );
        }
        let bits =
            |parameters: &[f32]| -> Vec<u32> { parameters.iter().map(|p| p.to_bits()).collect() };
        assert_eq!(bits(&got.parameters), bits(&want.parameters), "{what}: parameters");
        assert_eq!(got.error, want.error, "{what}: error word");
    }
}

/// A generator of 64-bit words (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Values of many magnitudes, with zeros of both signs, ties of e2m1 times
    /// powers of two, and subnormals; finite also as f16.
    fn value(&mut self) -> f32 {
        let word = self.next();
        let sign = if word & 1 == 0 { 1.0 } else { -1.0 };
        let uniform = (word >> 40) as f32 / (1 << 24) as f32;
        sign * match (word >> 1) % 16 {
            0 => 0.0,
            1 | 2 => [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0][(word >> 8) as usize % 8],
            3 => [0.25f32, 1.25, 2.5, 5.0][(word >> 8) as usize % 4].next_up(),
            4 => uniform * 2f32.powi(-20),
            5 => uniform * 1e-39,
            6 => uniform * 1000.0,
            _ => uniform * 4.0,
        }
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
}

/// Compares with what is recorded. Codes of blocks with NaN scales are not compared.
fn golden_case(golden: &Golden) {
    let Golden { name, recipe, scale, input, scales, codes, nan } = golden;
    let rows = input.len() / (golden::COLUMNS * size_of::<f32>());
    let mut case = Case::new(*recipe, rows, golden::COLUMNS);
    match *scale {
        TensorScale::Given(given) => case.given = given,
        TensorScale::FromAmax => case.source = ScaleSource::TensorAmax,
        TensorScale::PerRow => case.source = ScaleSource::RowAmax,
        TensorScale::OneLevel => {}
    }
    for machine in &MACHINES {
        let got = run(machine, &case, input, None);
        same_bytes(&format!("{} {name} scales", machine.name), &got.scales, scales);
        let of_block = case.block() / 2;
        for (block, (got, want)) in
            got.codes.chunks(of_block).zip(codes.chunks(of_block)).enumerate()
        {
            if scales[block] != *nan {
                same_bytes(&format!("{} {name} block {block}", machine.name), got, want);
            }
        }
    }
}

#[test]
fn golden_nvfp4_every_recipe() {
    golden::nvfp4().iter().for_each(golden_case);
}

#[test]
fn golden_mxfp4_every_recipe() {
    golden::mxfp4().iter().for_each(golden_case);
}

fn recipes() -> impl Iterator<Item = Recipe> {
    let nvfp4 = Nvfp4Recipe::ALL.into_iter().map(Recipe::Nvfp4);
    nvfp4.chain(Mxfp4Recipe::ALL.into_iter().map(Recipe::Mxfp4))
}

/// M and blocks a row that fill no task, tile or wave, in both layouts, for all
/// types, with fewer CTAs than tasks too.
#[test]
fn ragged_shapes() {
    let sources = [ScaleSource::Given, ScaleSource::TensorAmax, ScaleSource::RowAmax];
    let schedules = [Schedule::Eager, Schedule::Lazy, Schedule::Random(5)];
    let mut random = Random(1);
    let mut turn = 0;
    for recipe in recipes() {
        for (m, blocks) in [(1, 1), (1, 67), (3, 5), (33, 2), (129, 3), (131, 9), (257, 4)] {
            for layout in ScaleLayout::ALL {
                turn += 1;
                let block = recipe.format().block() as usize;
                let mut case = Case::new(recipe, m, blocks * block);
                case.ty = TYPES[turn % 3];
                case.source = sources[turn / 3 % 3];
                case.given = [0.01, 1.0, 3.7][turn / 9 % 3];
                case.schedule = schedules[turn / 2 % 3];
                case.layout = layout;
                case.sms = [None, Some(1)][turn / 5 % 2];
                check(&case, &random.values(m * blocks * block));
            }
        }
    }
}

/// Each type with each recipe and source on one shape.
#[test]
fn every_entry() {
    let mut random = Random(2);
    for recipe in recipes() {
        for ty in TYPES {
            for source in [ScaleSource::Given, ScaleSource::TensorAmax, ScaleSource::RowAmax] {
                let mut case = Case::new(recipe, 37, 96);
                (case.ty, case.source, case.given) = (ty, source, 0.02);
                check(&case, &random.values(37 * 96));
            }
        }
    }
}

/// Magnitudes at which single steps of a quotient or product would overflow or lose
/// digits: parameters from the smallest to the largest, elements from subnormals
/// to the largest f32.
#[test]
fn extreme_magnitudes() {
    let mut random = Random(3);
    for recipe in Nvfp4Recipe::ALL {
        for exponent in (-120..=120).step_by(12) {
            let given = 2f32.powi(exponent) * 1.37;
            let mut case = Case::new(Recipe::Nvfp4(recipe), 16, 64);
            case.given = given;
            let scale = recipe.multiplier(given);
            let value = |random: &mut Random| match random.next() % 8 {
                0 => f32::from_bits(random.next() as u32 & 0x800f_ffff),
                1 => f32::from_bits(random.next() as u32 & 0xbfff_ffff),
                2 => f32::from_bits(random.next() as u32 & 0x8000_0007),
                _ => (random.value() * scale * 100.0).clamp(-f32::MAX, f32::MAX),
            };
            let values: Vec<f32> = (0..16 * 64).map(|_| value(&mut random)).collect();
            check(&case, &values);
        }
    }
}

/// Elements one unit in the last place around every tie of every block scale: where
/// a quotient that is not correctly rounded shows.
#[test]
fn quotients_around_ties() {
    let mut random = Random(4);
    for recipe in Nvfp4Recipe::ALL {
        for ty in TYPES {
            let mut values = Vec::new();
            let mut case = Case::new(Recipe::Nvfp4(recipe), 512, 64);
            case.ty = ty;
            case.given = [0.013, 91.7][usize::from(recipe.parameter_is_divisor())];
            let tensor = Nvfp4Tensor::new(recipe, case.given);
            while values.len() < case.m * case.k {
                let largest = random.value().abs().max(1e-3);
                let scale = e4m3::decode(tensor.block::<Software>(largest).byte)
                    * recipe.multiplier(case.given);
                let mut block = vec![largest];
                for _ in 1..16 {
                    let tie =
                        [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0][random.next() as usize % 7] * scale;
                    let bits = (tie.min(largest)).to_bits();
                    block.push(f32::from_bits(bits + (random.next() % 5) as u32 - 2).min(largest));
                }
                values.extend(block);
            }
            check(&case, &values);
        }
    }
}

/// What the kernels compute for `x / d` is on the same side of each tie of e2m1 as
/// the rounded quotient: for every mantissa of `d` (powers of two change nothing), and
/// every `x` whose quotient is within a unit in the last place of a tie. Farther away
/// no rounding matters.
#[test]
fn quotients_of_all_mantissas() {
    for mantissa in 0..1u32 << 23 {
        let d = f32::from_bits(1f32.to_bits() | mantissa);
        let reciprocal = 1.0 / d;
        for tie in [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] {
            let nearest = (tie * d).to_bits();
            for bits in nearest - 2..=nearest + 2 {
                let x = f32::from_bits(bits);
                let first = x * reciprocal;
                let step = (-first).mul_add(d, x).mul_add(reciprocal, first);
                let quotient = x / d;
                assert_eq!(
                    (step < tie, step > tie),
                    (quotient < tie, quotient > tie),
                    "{x:e} / {d:e}: {step:e} and {quotient:e}"
                );
            }
        }
    }
}

/// Rceil's scale is the hardware's conversion of a sixth of the maximum: for every mantissa in the
/// smallest binades, where numbers and codes are subnormal, in the largest, and in one between,
/// which stands for all others.
#[test]
fn rceil_of_all_mantissas() {
    for exponent in [0u32, 1, 2, 3, 127, 253, 254] {
        for mantissa in 0..1u32 << 23 {
            let amax = f32::from_bits(exponent << 23 | mantissa);
            let byte = Mxfp4Recipe::Rceil.block(amax).byte;
            let converted = ue8m0x2_from_f32(0.0, amax * (1.0 / e2m1::MAX), true, true);
            assert_eq!(u16::from(byte), converted, "{amax:e}");
        }
    }
}

/// Maxima in every binade, around each mantissa at which a recipe's scale changes.
#[test]
fn every_exponent_of_a_maximum() {
    // Powers of two, halves of e2m1's steps, and six, which Rceil divides by.
    let near = [0u32, 1 << 21, 1 << 22, 3 << 21, 0x55_5555, 0x7f_ffff];
    let mantissas = near.iter().flat_map(|&m| [m.wrapping_sub(1), m, m + 1]);
    let mantissas: Vec<u32> = mantissas.filter(|m| *m < 1 << 23).collect();
    let all = (0..255u32).flat_map(|e| mantissas.iter().map(move |m| f32::from_bits(e << 23 | m)));
    let all: Vec<f32> = all.collect();
    for recipe in Mxfp4Recipe::ALL {
        // Even rounds the largest to infinity, and codes under NaN are not specified.
        let maxima = all.iter().copied().filter(|max| recipe.block(*max).byte != ue8m0::NAN);
        let maxima: Vec<f32> = maxima.collect();
        let elements = |(at, &max): (usize, &f32)| -> Vec<f32> {
            let place = at % 32;
            (0..32).map(|i| if i == place { -max } else { max * (i as f32 / 32.0) }).collect()
        };
        let values: Vec<f32> = maxima.iter().enumerate().flat_map(elements).collect();
        let mut case = Case::new(Recipe::Mxfp4(recipe), maxima.len(), 32);
        case.layout = ScaleLayout::ALL[recipe as usize % 2];
        check(&case, &values);
    }
}

/// All bf16 and f16 magnitudes up to 6, and the f32 next to every tie, at scale 1.
#[test]
fn every_short_element() {
    for ty in [FloatType::Bf16, FloatType::F16, FloatType::F32] {
        let all = (0..=u16::MAX).map(|bits| match ty {
            FloatType::Bf16 => half::bf16::from_bits(bits).to_f32(),
            FloatType::F16 => half::f16::from_bits(bits).to_f32(),
            FloatType::F32 => {
                f32::from_bits(0x3e00_0000 + u32::from(bits) * 0x400 - 0x200 + u32::from(bits % 3))
            }
        });
        let elements: Vec<f32> = all.filter(|x| x.abs() <= 6.0).collect();
        let mut values: Vec<f32> = elements.chunks(15).flat_map(|c| [&[6.0], c].concat()).collect();
        values.resize(values.len().next_multiple_of(64), 6.0);
        let mut case = Case::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo), values.len() / 64, 64);
        case.ty = ty;
        check(&case, &values);
    }
}

/// The smallest index is reported, whatever the schedule and wherever it is.
#[test]
fn elements_that_are_not_finite() {
    let mut random = Random(5);
    let clean = random.values(131 * 96);
    for recipe in [Recipe::Nvfp4(Nvfp4Recipe::ModelOpt), Recipe::Mxfp4(Mxfp4Recipe::Floor)] {
        for (turn, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
            for places in [&[0][..], &[131 * 96 - 1], &[5000, 4999, 12000], &[97, 96 * 130]] {
                let mut values = clean.clone();
                places.iter().for_each(|&at| values[at] = bad);
                let mut case = Case::new(recipe, 131, 96);
                case.ty = TYPES[turn];
                case.layout = ScaleLayout::ALL[turn % 2];
                case.schedule = Schedule::Random(turn as u64);
                let (bytes, _) = encode(case.ty, &values);
                for machine in &MACHINES {
                    let got = run(machine, &case, &bytes, None);
                    let first = places.iter().min().copied().map(|at| at as u64);
                    assert_eq!(Some(got.error), first, "{} {case:?} {bad}", machine.name);
                }
            }
        }
    }
}

/// Fused `silu(gate) * up`: every value within half a step of the exact product, plus
/// the product's own error of 2^-16; and an infinity is found.
#[test]
fn gated_products() {
    let mut random = Random(6);
    for recipe in recipes() {
        for (turn, (m, blocks)) in [(1, 1), (5, 7), (130, 5)].into_iter().enumerate() {
            let block = recipe.format().block() as usize;
            let count = m * blocks * block;
            let mut case = Case::new(recipe, m, blocks * block);
            case.ty = TYPES[turn];
            case.layout = ScaleLayout::ALL[turn % 2];
            case.source = [ScaleSource::TensorAmax, ScaleSource::RowAmax][turn % 2];
            let spread =
                |random: &mut Random| (random.next() >> 40) as f32 / (1 << 24) as f32 * 24.0 - 12.0;
            let gate: Vec<f32> = (0..count).map(|_| spread(&mut random)).collect();
            let up: Vec<f32> = (0..count).map(|_| spread(&mut random)).collect();
            let (gate_bytes, gate) = encode(case.ty, &gate);
            let (up_bytes, up) = encode(case.ty, &up);
            let exact: Vec<f64> = gate
                .iter()
                .zip(&up)
                .map(|(&g, &u)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u))
                .collect();
            for machine in &MACHINES {
                let got = run(machine, &case, &gate_bytes, Some(&up_bytes));
                assert_eq!(got.error, NO_ERROR);
                for (at, &exact) in exact.iter().enumerate() {
                    let (row, column) = (at / case.k, at % case.k);
                    let byte = got.scales[case.layout.offset(row, column / block, blocks)];
                    let parameter =
                        got.parameters[if case.source == ScaleSource::RowAmax { row } else { 0 }];
                    let scale = match recipe {
                        Recipe::Nvfp4(r) => {
                            f64::from(e4m3::decode(byte)) * f64::from(r.multiplier(parameter))
                        }
                        Recipe::Mxfp4(_) => f64::from(ue8m0::decode(byte)),
                    };
                    let code = got.codes[at / 2] >> (at % 2 * 4);
                    let scaled = (exact / scale).abs();
                    let step = if scaled < 2.0 {
                        0.5
                    } else if scaled < 4.0 {
                        1.0
                    } else {
                        2.0
                    };
                    let value = f64::from(e2m1::decode(code));
                    let error = (value - exact / scale).abs();
                    let bound = step / 2.0 + scaled * 2f64.powi(-16);
                    assert!(
                        error <= bound || scaled > 6.0 && value.abs() == 6.0 || scale == 0.0,
                        "{} {case:?} [{row}, {column}]: {exact:e} became {value} * {scale:e}",
                        machine.name
                    );
                }
                let mut broken = up_bytes.clone();
                let at = count - 3;
                let bytes = case.ty.bytes() as usize;
                let infinity = encode(case.ty, &[f32::INFINITY]).0;
                broken[at * bytes..(at + 1) * bytes].copy_from_slice(&infinity);
                let got = run(machine, &case, &gate_bytes, Some(&broken));
                assert_eq!(got.error, at as u64, "{} {case:?}", machine.name);
            }
        }
    }
}

/// Every code with every scale, both layouts (padding is uninitialised), one
/// multiplier or one a row, all types.
#[test]
fn dequantised() {
    let mut random = Random(7);
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let block = format.block() as usize;
        for (turn, (m, blocks)) in [(1, 1), (3, 7), (131, 5), (64, 16)].into_iter().enumerate() {
            for layout in ScaleLayout::ALL {
                for ty in TYPES {
                    let k = blocks * block;
                    let codes: Vec<u8> = (0..m * k / 2).map(|_| random.next() as u8).collect();
                    let valid = match format {
                        Format::Nvfp4 => 0x7f,
                        Format::Mxfp4 => 0xff,
                    };
                    let scales: Vec<u8> =
                        (0..m * blocks).map(|_| (random.next() % valid) as u8).collect();
                    // MXFP4 has no other scale, and its own reach infinity.
                    let multiplier = |random: &mut Random| match format {
                        Format::Nvfp4 => random.value().abs() + 0.1,
                        Format::Mxfp4 => 1.0,
                    };
                    let rows: Vec<f32> = (0..m).map(|_| multiplier(&mut random)).collect();
                    let source =
                        [ScaleSource::Given, ScaleSource::TensorAmax, ScaleSource::RowAmax]
                            [turn % 3];
                    let mut expected = Vec::new();
                    for at in 0..m * k {
                        let (row, kb) = (at / k, at % k / block);
                        let byte = scales[row * blocks + kb];
                        let scale = match format {
                            Format::Nvfp4 => e4m3::decode(byte),
                            Format::Mxfp4 => ue8m0::decode(byte),
                        };
                        let tensor =
                            if source == ScaleSource::RowAmax { rows[row] } else { rows[0] };
                        expected
                            .push(e2m1::decode(codes[at / 2] >> (at % 2 * 4)) * (scale * tensor));
                    }
                    let (expected, _) = encode(ty, &expected);
                    for machine in &MACHINES {
                        let mut memory = GlobalMemory::new();
                        let bytes = layout.bytes(m, blocks).expect("small") as u64;
                        let scale_address = memory.alloc("scales", bytes, 256).expect("room");
                        for (at, scale) in scales.iter().enumerate() {
                            let offset = layout.offset(at / blocks, at % blocks, blocks) as u64;
                            memory.write(scale_address + offset, &[*scale]).expect("inside");
                        }
                        let multipliers: Vec<u8> =
                            rows.iter().flat_map(|x| x.to_le_bytes()).collect();
                        let out = memory.alloc("out", expected.len() as u64, 256).expect("room");
                        let params = DequantizeParams {
                            codes: memory.alloc_from("codes", &codes).expect("room"),
                            scales: scale_address,
                            tensor: memory.alloc_from("tensor", &multipliers).expect("room"),
                            out,
                            m: m as u32,
                            k: k as u32,
                            given: rows[0],
                            source: source as u32,
                            blocked: u32::from(layout == ScaleLayout::Blocked128x4),
                        };
                        let config = dequantize_config(format, ty);
                        let grid = config.grid(m as u32, k as u32, layout, machine.sms);
                        machine.launch(
                            &mut memory,
                            config.name,
                            grid,
                            config.threads(),
                            &params.to_bytes(),
                            Schedule::Random(turn as u64),
                        );
                        let got =
                            memory.read(out, expected.len() as u64).expect("all of it written");
                        same_bytes(
                            &format!("{} {} {layout} {m} x {k}", machine.name, config.name),
                            &got,
                            &expected,
                        );
                    }
                }
            }
        }
    }
}
