//! Mutation check of our own kernels: each synchronisation they have, removed or
//! weakened, must be noticed within 64 seeds, but for those that are listed as
//! no faults.

use fp4_formats::ScaleLayout::{self, Blocked128x4, Linear};
use fp4_formats::gemm::Activation;
use fp4_formats::gemv::{self, GemvParams};
use fp4_formats::params;
use fp4_formats::quantize::{
    AmaxParams, NO_ERROR, QuantizeParams, Recipe, ScaleSource, amax_config, quantize_config,
};
use fp4_formats::recipe::{Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::rows::{Norm, RowsParams, RowsSink, RowsSource, rows_config};
use fp4_formats::{Arch, Divisor, FloatType, HalfType};
use nvfp4::plan::gemv::Geometry;
use nvfp4_tests::mutation::{self, Effort};
use ptx_emu::GlobalMemory;
use ptx_emu::experiment::{Experiment, Watched};

fn check(experiment: &Experiment, least: usize) {
    mutation::check(std::slice::from_ref(experiment), Effort { seeds: 64, least, caught: 95 });
}

/// Device memory and what is watched in it.
struct Memory {
    memory: GlobalMemory,
    outputs: Vec<Watched>,
    /// The input that the kernel before makes: address and bytes.
    made: Option<(u64, u64)>,
}

impl Memory {
    fn new() -> Self {
        Self { memory: GlobalMemory::new(), outputs: Vec::new(), made: None }
    }

    fn input(&mut self, name: &str, bytes: &[u8]) -> u64 {
        self.memory.alloc_from(name, bytes).expect("room")
    }

    /// An input that the kernel before makes.
    fn made(&mut self, name: &str, bytes: &[u8]) -> u64 {
        let addr = self.input(name, bytes);
        self.made = Some((addr, bytes.len() as u64));
        addr
    }

    fn output(&mut self, name: &str, bytes: u64) -> u64 {
        let addr = self.memory.alloc(name, bytes, 256).expect("room");
        self.watch(name, addr, bytes);
        addr
    }

    fn watch(&mut self, name: &str, addr: u64, bytes: u64) {
        self.outputs.push(Watched { name: name.to_owned(), addr, bytes, expected: None });
    }

    /// The launch of a kernel on this memory.
    fn launch(
        mut self,
        arch: Arch,
        entry: &str,
        grid: [u32; 3],
        threads: u32,
        params: &[u8],
    ) -> Experiment {
        let gpu = nvfp4_tests::machine(arch);
        let result = (self.outputs[0].addr, self.outputs[0].bytes);
        // Without dependent launches, every kernel begins when the one before has ended.
        let made = self.made.filter(|_| arch.dependent_launches());
        let earlier = made.map(|made| mutation::earlier(&mut self.memory, &gpu, made, result));
        Experiment {
            ptx: nvfp4_tests::ptx(arch, entry),
            gpu,
            entry: entry.to_owned(),
            grid,
            block: [threads, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: params.to_vec(),
            memory: self.memory,
            outputs: self.outputs,
            earlier,
        }
    }
}

/// Bytes that differ from their neighbours.
fn noise(count: usize, seed: u32) -> Vec<u8> {
    let word = |i: u32| (i ^ seed << 16).wrapping_mul(0x9e37_79b9).rotate_right(11);
    (0..count as u32).map(|i| word(word(i)) as u8).collect()
}

/// Scales from 0.5 to 16.
fn scales(count: usize, seed: u32) -> Vec<u8> {
    noise(count, seed).into_iter().map(|byte| 0x30 + byte % 0x29).collect()
}

/// A GEMV of two batch entries with two panels.
fn gemv(arch: Arch, config: &gemv::GemvConfig) -> Experiment {
    let (m, l) = (9usize, 2usize);
    // A multiple of 16 alone for the narrow loads.
    let k = 16_384 + if config.load_bytes == 8 { 48 } else { 32 };
    let geometry = Geometry::new(config, [m as u32, k as u32, l as u32], 132, Some(1));
    let layout = config.scale_layout;
    let (b_stride, a_stride) =
        (layout.bytes(m, k / 16).expect("small"), Linear.bytes(1, k / 16).expect("small"));
    let mut memory = Memory::new();
    let params = GemvParams {
        b_codes: memory.input("b codes", &noise(l * m * k / 2, 1)),
        b_scales: memory.input("b scales", &scales(l * b_stride, 2)),
        a_codes: memory.made("a codes", &noise(l * k / 2, 3)),
        a_scales: memory.input("a scales", &scales(l * a_stride, 4)),
        out: memory.output("c", (l * m * 4) as u64),
        b_scale_stride: b_stride as u64,
        a_scale_stride: a_stride as u64,
        m: m as u32,
        k: k as u32,
        alpha: 1.0,
        out_type: FloatType::F32 as u32,
        a_blocked: 0,
        panel: geometry.panel,
        share: geometry.share,
        rest: geometry.rest,
    };
    let (grid, threads) = ([geometry.ctas, l as u32, 1], geometry.threads());
    let mut launch = memory.launch(arch, config.name, grid, threads, params::bytes(&params));
    launch.dynamic_shared = geometry.shared_bytes();
    launch
}

/// Values of several magnitudes as `ty`.
fn values(ty: FloatType, count: usize, seed: u32) -> Vec<u8> {
    let value = |(i, byte): (usize, u8)| (f32::from(byte) - 127.5) * [0.01, 1.0, 30.0][i / 64 % 3];
    let values = noise(count, seed).into_iter().enumerate().map(value);
    match ty {
        FloatType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        FloatType::F16 => values.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
        FloatType::Bf16 => values.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
    }
}

fn amax(arch: Arch, ty: FloatType, silu: bool, per_row: bool) -> Experiment {
    let (m, k) = (40u32, 208u32);
    let config = amax_config(ty, silu);
    let mut memory = Memory::new();
    let bytes = values(ty, (m * k) as usize, 5);
    let input = memory.made("input", &bytes);
    let other = values(ty, (m * k) as usize, 6);
    let up = if silu { memory.input("up", &other) } else { 0 };
    let out = if per_row {
        memory.output("amax", u64::from(4 * m))
    } else {
        let out = memory.input("amax", &[0; 4]);
        memory.watch("amax", out, 4);
        out
    };
    let params = AmaxParams { input, up, out, m, k, per_row: u32::from(per_row), reserved: 0 };
    let grid = [config.grid(m, k, per_row, 2), 1, 1];
    memory.launch(arch, config.name, grid, config.threads(), params::bytes(&params))
}

fn quantize(
    arch: Arch,
    recipe: Recipe,
    ty: FloatType,
    layout: ScaleLayout,
    silu: bool,
) -> Experiment {
    // Several tasks for each warp: of one CTA, where one may take all tasks. No warp is without
    // a task, because it would not depend on the kernel before.
    let (m, k) = (68u32, 288u32);
    let config = quantize_config(recipe, ty, silu);
    let (ctas, depth) = config.launch(m, k, layout, 1);
    let grid = if config.persistent { 1 } else { ctas };
    let block = recipe.format().block();
    let mut memory = Memory::new();
    let bytes = values(ty, (m * k) as usize, 5);
    let input = memory.made("input", &bytes);
    let other = values(ty, (m * k) as usize, 6);
    let up = if silu { memory.input("up", &other) } else { 0 };
    let scale_bytes = layout.bytes(m as usize, (k / block) as usize).expect("small");
    let codes = memory.output("codes", u64::from(m * k / 2));
    let scales = memory.output("scales", scale_bytes as u64);
    let tensor_out = memory.output("parameters", 4);
    let errors = memory.input("errors", &NO_ERROR.to_le_bytes());
    memory.watch("errors", errors, 8);
    let params = QuantizeParams {
        input,
        up,
        codes,
        scales,
        tensor: 0,
        tensor_out,
        errors,
        m,
        k,
        given: 1.0,
        source: ScaleSource::Given as u32,
        blocked: u32::from(layout == Blocked128x4),
        recipe: recipe.code(),
        depth,
        element: ty as u32,
    };
    memory.launch(arch, config.name, [grid, 1, 1], config.threads(), params::bytes(&params))
}

/// Five rows by CTAs of three warps: two CTAs, in which one warp keeps more chunks than registers hold; few rows have two CTAs each.
fn rows(arch: Arch, source: RowsSource, sink: RowsSink, norm: Norm) -> Experiment {
    let m = 5u32;
    let (k, ctas, layout) = match source {
        RowsSource::One | RowsSource::Gated => (16 * (32 * 6 + 7), 2, Blocked128x4),
        RowsSource::Few => (16 * (32 * 2 + 7), 2 * m, Linear),
    };
    let gated = source == RowsSource::Gated;
    let config = rows_config(sink, source, HalfType::Bf16);
    let mut memory = Memory::new();
    let bytes = values(FloatType::Bf16, (m * k) as usize, 5);
    let input = memory.made("input", &bytes);
    let other = memory.input("other", &values(FloatType::Bf16, (m * k) as usize, 6));
    let codes = match sink {
        RowsSink::E4m3 => memory.output("codes", u64::from(m * k)),
        RowsSink::Half => memory.output("elements", u64::from(m * k * 2)),
        RowsSink::Nvfp4 | RowsSink::Adaptive | RowsSink::Mxfp4 => {
            memory.output("codes", u64::from(m * k / 2))
        }
    };
    let scale_bytes = layout.bytes(m as usize, (k / 16) as usize).expect("small");
    let has_scales = !matches!(sink, RowsSink::E4m3 | RowsSink::Half);
    let scales = if has_scales { memory.output("scales", scale_bytes as u64) } else { 0 };
    let has_levels = sink != RowsSink::Half;
    let multipliers = if has_levels { memory.output("multipliers", u64::from(4 * m)) } else { 0 };
    let residual_out = if gated { 0 } else { memory.output("residual", u64::from(m * k * 2)) };
    let errors = memory.input("errors", &NO_ERROR.to_le_bytes());
    memory.watch("errors", errors, 8);
    let weights = values(FloatType::Bf16, k as usize, 7);
    let weight = if gated { 0 } else { memory.input("weight", &weights) };
    let params = RowsParams {
        quantize: QuantizeParams {
            input,
            up: other,
            codes,
            scales,
            tensor: 0,
            tensor_out: 0,
            errors,
            m,
            k,
            given: 1.0,
            source: ScaleSource::RowAmax as u32,
            blocked: (has_scales && layout == Blocked128x4).into(),
            recipe: 0,
            depth: 0,
            element: FloatType::Bf16 as u32,
        },
        residual_out,
        index: 0,
        weight,
        bias: 0,
        multipliers,
        index_divisor: Divisor::ONE,
        norm: norm as u32,
        epsilon: 1e-5,
        rotation: 0,
        combine: Activation::Silu.combine(true),
    };
    memory.launch(arch, config.name, [ctas, 1, 1], 96, params::bytes(&params))
}

/// Reductions of a row: of a norm's sums and of maxima, alone and both; of rows that follow one another in one CTA, and of few.
#[test]
fn rows_kernels() {
    for arch in Arch::compiled() {
        for (source, sink, norm) in [
            (RowsSource::One, RowsSink::Nvfp4, Norm::Rms),
            (RowsSource::Gated, RowsSink::Nvfp4, Norm::None),
            (RowsSource::One, RowsSink::E4m3, Norm::Layer),
            (RowsSource::One, RowsSink::Half, Norm::Layer),
            (RowsSource::Few, RowsSink::Nvfp4, Norm::Rms),
            (RowsSource::Few, RowsSink::Half, Norm::Rms),
        ] {
            let least = usize::from(norm != Norm::None) + usize::from(sink != RowsSink::Half);
            check(&rows(arch, source, sink, norm), least);
        }
    }
}

#[test]
fn gemv_kernels() {
    for arch in Arch::compiled() {
        for config in &gemv::CONFIGS {
            check(&gemv(arch, config), mutation::overlapping(arch, 2));
        }
    }
}

#[test]
fn amax_kernels() {
    for arch in Arch::compiled() {
        for ty in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
            for silu in [false, true] {
                check(&amax(arch, ty, silu, false), mutation::overlapping(arch, 1));
            }
        }
        check(&amax(arch, FloatType::F32, false, true), 0);
    }
}

#[test]
fn quantize_kernels() {
    let recipes =
        [Recipe::Nvfp4(Nvfp4Recipe::TransformerEngine), Recipe::Mxfp4(Mxfp4Recipe::ALL[0])];
    for arch in Arch::compiled() {
        for recipe in recipes {
            for layout in [Linear, Blocked128x4] {
                for ty in [FloatType::F32, FloatType::Bf16] {
                    check(&quantize(arch, recipe, ty, layout, false), 0);
                }
                check(&quantize(arch, recipe, FloatType::F32, layout, true), 0);
            }
        }
    }
}
