//! The harness of the quantise tests: kernels launched with any parameters, the CPU's reference,
//! and the comparison, bit for bit.

use fp4_formats::params::bytes;
use fp4_formats::quantize::{
    AmaxParams, NO_ERROR, QuantizeParams, Recipe, ScaleSource, amax_config, quantize_config,
};
use fp4_formats::recipe::{
    AdaptiveRecipe, AdaptiveTensor, Mxfp4Recipe, Nvfp4Recipe, Nvfp4Tensor, Software,
};
use fp4_formats::{Arch, FloatType, ScaleLayout};
use nvfp4::floats;
use nvfp4_lab::rng::SplitMix64;
use ptx_emu::{Checks, GlobalMemory, Launch, Schedule};

/// Returns all recipes of both formats.
pub fn recipes() -> impl Iterator<Item = Recipe> {
    let nvfp4 = Nvfp4Recipe::ALL.into_iter().map(Recipe::Nvfp4);
    let nvfp4 = nvfp4.chain(AdaptiveRecipe::ALL.into_iter().map(Recipe::Adaptive));
    nvfp4.chain(Mxfp4Recipe::ALL.into_iter().map(Recipe::Mxfp4))
}

/// Rounds `values` to `ty`; returns the bytes and the rounded values.
#[must_use]
pub fn encode(ty: FloatType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let bytes = floats::encode(ty, values.iter().map(|&x| f64::from(x)));
    let rounded = floats::decode(ty, &bytes);
    (bytes, rounded)
}

/// Returns a value of one of many magnitudes, with zeros of both signs, ties of e2m1 times powers
/// of two, and subnormals; finite also as f16.
pub fn value(random: &mut SplitMix64) -> f32 {
    let word = random.next_u64();
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

/// Returns so many of them.
pub fn values(random: &mut SplitMix64, count: usize) -> Vec<f32> {
    (0..count).map(|_| value(random)).collect()
}

/// An emulated GPU, as these tests launch on it.
pub struct EmulatedGpu {
    /// The name in messages.
    pub name: &'static str,
    /// SMs that launches are made for.
    pub sms: u32,
    /// The architecture of its kernels.
    pub arch: Arch,
}

/// One of each target that kernels are compiled for.
pub static EMULATED_GPUS: [EmulatedGpu; 4] = [
    EmulatedGpu { name: "rtx4090", sms: 2, arch: Arch::Sm80 },
    EmulatedGpu { name: "h200", sms: 3, arch: Arch::Sm90a },
    EmulatedGpu { name: "b200", sms: 2, arch: Arch::Sm100a },
    EmulatedGpu { name: "rtx5090", sms: 3, arch: Arch::Sm120f },
];

impl EmulatedGpu {
    /// Launches one kernel.
    ///
    /// # Panics
    /// With the emulator's diagnosis.
    pub fn launch(
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
            checks: Checks::default(),
        };
        if let Err(error) = crate::module(self.arch, entry).launch(memory, &launch) {
            panic!("{} {entry}: {error}", self.name);
        }
    }
}

/// Returns the largest magnitude; NaN if there is one.
fn amax(values: &[f32]) -> f32 {
    let worse =
        |max: f32, x: &f32| if x.is_nan() || max.is_nan() { f32::NAN } else { max.max(x.abs()) };
    values.iter().fold(0.0, worse)
}

/// The input of a quantiser, its recipe and its layout.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The recipe whose arithmetic is used.
    pub recipe: Recipe,
    /// Type of the input.
    pub ty: FloatType,
    /// Order of the block scales.
    pub layout: ScaleLayout,
    /// The source of the tensor-level scale.
    pub source: ScaleSource,
    /// The tensor-level scale, if it is given.
    pub given: f32,
    /// Rows.
    pub m: usize,
    /// Columns.
    pub k: usize,
    /// The order of all asynchronous operations.
    pub schedule: Schedule,
    /// SMs that launches are made for, if they are not the machine's.
    pub sms: Option<u32>,
}

impl Case {
    /// Makes a case of an f32 matrix with linear scales, and 1 as the tensor-level scale.
    #[must_use]
    pub fn new(recipe: Recipe, m: usize, k: usize) -> Self {
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

    /// Returns the elements of a block.
    #[must_use]
    pub fn block(&self) -> usize {
        self.recipe.format().block() as usize
    }
}

/// The result of a quantise kernel, padding included.
#[derive(Debug, PartialEq)]
pub struct Quantized {
    /// Packed codes.
    pub codes: Vec<u8>,
    /// Block scales.
    pub scales: Vec<u8>,
    /// Tensor-level scales.
    pub parameters: Vec<f32>,
    /// The first element that is not finite, or [`NO_ERROR`].
    pub error: u64,
}

/// Runs the kernels, with `up` the fused ones. Outputs start uninitialised, so that reading a byte
/// that was never written fails.
///
/// # Panics
/// With the emulator's diagnosis.
#[must_use]
pub fn run(machine: &EmulatedGpu, case: &Case, input: &[u8], up: Option<&[u8]>) -> Quantized {
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
        let params =
            AmaxParams { input, up, out: tensor, m, k, per_row: u32::from(by_row), reserved: 0 };
        let grid = config.grid(m, k, by_row, sms);
        machine.launch(
            &mut memory,
            config.name,
            grid,
            config.threads(),
            bytes(&params),
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
    // Few CTAs that live for the whole launch go round many times, also if the host would launch
    // more of them.
    let grid = case
        .sms
        .filter(|_| config.persistent)
        .map_or(ctas, |few| ctas.min(few * config.grid_unit()));
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
        element: case.ty as u32,
    };
    machine.launch(&mut memory, config.name, grid, config.threads(), bytes(&params), case.schedule);
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

/// Returns the CPU's reference; 128x4 padding is zero.
fn reference(case: &Case, values: &[f32]) -> Quantized {
    let (block, blocks) = (case.block(), case.k / case.block());
    let all = amax(values);
    let mut scales = vec![0; case.layout.bytes(case.m, blocks).expect("small")];
    let (mut codes, mut parameters) = (Vec::new(), Vec::new());
    for (row, row_values) in values.chunks(case.k).enumerate() {
        let (given, amax_here) = match case.source {
            ScaleSource::Given => (true, 0.0),
            ScaleSource::TensorAmax => (false, all),
            ScaleSource::RowAmax => (false, amax(row_values)),
        };
        let computed = case.recipe.tensor_parameter(amax_here).unwrap_or(1.0);
        let is_nvfp4 = case.recipe.parameter_of().is_some();
        let parameter = if given && is_nvfp4 { case.given } else { computed };
        if row == 0 || case.source == ScaleSource::RowAmax {
            parameters.push(parameter);
        }
        for (kb, values) in row_values.chunks(block).enumerate() {
            let scale = match case.recipe {
                Recipe::Nvfp4(recipe) => {
                    Nvfp4Tensor::new(recipe, parameter).block::<Software>(amax(values))
                }
                Recipe::Adaptive(recipe) => {
                    let amax = if given { recipe.tensor_maximum(parameter) } else { amax_here };
                    let groups = values.as_chunks().0;
                    AdaptiveTensor::new(recipe, parameter, amax).block::<Software>(groups)
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

/// Fails with the first byte that differs.
pub fn same_bytes(what: &str, got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    if let Some(at) = (0..got.len()).find(|&at| got[at] != want[at]) {
        panic!("{what}: byte {at} is {:#04x}, expected {:#04x}", got[at], want[at]);
    }
}

/// Runs the case on every machine and compares everything.
///
/// # Panics
/// With the first mismatch.
pub fn check(case: &Case, values: &[f32]) {
    let (bytes, values) = encode(case.ty, values);
    let want = reference(case, &values);
    for machine in EMULATED_GPUS.iter() {
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
