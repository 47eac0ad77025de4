//! One product on the emulator, against the sums in f64.

use crate::operand::{Halves, Operand, Random, Scales};
use fp4_formats::Arch;
use fp4_formats::gemm::blackwell::prepare::{
    self, CODES_NAME, PrepareCodes, PrepareScales, SCALES_NAME,
};
use fp4_formats::gemm::blackwell::store::RESULT_ALIGN;
use fp4_formats::gemm::blackwell::{
    BlackwellConfig, BlackwellParams, CONFIGS, Side, Tiling, codes_map, halves_map, result_map,
    scales_map,
};
use fp4_formats::gemm::{Affine, Epilogue, Problem, ResultScales, Sink};
use fp4_formats::layout::ScaleLayout;
use fp4_formats::tensor_map::{MapElement, TensorMapShape};
use fp4_formats::{FloatType, Swizzle, TensorMap};
use half::{bf16, f16};
use ptx_emu::tensor_map::{self, ElementType};
use ptx_emu::{
    Counters, GlobalMemory, Launch, LaunchError, Module, Schedule, Step, launch_sequence,
};

/// Bytes after the result that nobody may write.
pub const GUARD: u64 = 64;
pub const POISON: u8 = 0xd5;

/// Everything about one product but its inputs.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub config: &'static BlackwellConfig,
    pub problem: Problem,
    pub swapped: bool,
    pub dynamic: bool,
    /// Clusters of a static launch.
    pub clusters: u32,
    pub layouts: [ScaleLayout; 2],
    pub scales: Scales,
    pub output: FloatType,
    /// Whether, and in which layout of the scales, the product is made once more in NVFP4.
    pub quantized: Option<ScaleLayout>,
    /// Row factors, column factors, bias.
    pub vectors: [bool; 3],
    pub alpha: f32,
    /// Threads store results, also where the copy engine can.
    pub direct: bool,
    /// Bytes from a multiple of 256 to the result.
    pub shift: u64,
    /// How often the product is launched.
    pub launches: usize,
    pub schedule: Schedule,
    pub seed: u64,
}

pub fn config(name: &str) -> &'static BlackwellConfig {
    CONFIGS.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no configuration {name}"))
}

/// The module that has a kernel.
fn module(entry: &str) -> &'static Module {
    nvfp4_tests::module(Arch::Sm100a, entry)
}

/// The kernels of a text.
pub fn load(ptx: &str) -> Module {
    Module::load(ptx, &nvfp4_tests::b200()).unwrap_or_else(|e| panic!("{e}"))
}

fn encode(shape: &TensorMapShape, address: u64) -> TensorMap {
    let element = match shape.element {
        MapElement::U8 => ElementType::U8,
        MapElement::U16 => ElementType::U16,
        MapElement::U32 => ElementType::U32,
    };
    let rank = shape.rank;
    let mut map = tensor_map::TensorMap::tiled(
        element,
        address,
        &shape.dims[..rank],
        &shape.strides[..rank - 1],
        &shape.box_dims[..rank],
    );
    map.swizzle = match shape.swizzle {
        Swizzle::None => tensor_map::Swizzle::None,
        Swizzle::B32 => tensor_map::Swizzle::B32,
        Swizzle::B64 => tensor_map::Swizzle::B64,
        Swizzle::B128 => tensor_map::Swizzle::B128,
    };
    TensorMap::from_bytes(&map.encode().unwrap_or_else(|e| panic!("{e}: {map:?}")))
}

/// The activations.
enum Left {
    Blocks(Operand),
    Halves(Halves),
}

impl Left {
    fn values(&self, batch: u32) -> Vec<f64> {
        match self {
            Self::Blocks(blocks) => blocks.values(batch),
            Self::Halves(halves) => halves.values(batch),
        }
    }
}

/// An operand in device memory as the kernel takes it, once `before` has run.
struct Placed {
    codes: u64,
    row_stride: u64,
    scales: u64,
    scale_stride: u64,
    before: Vec<Kernel>,
}

/// A launch.
#[derive(Clone)]
struct Kernel {
    entry: &'static str,
    grid: u32,
    threads: u32,
    shared: u32,
    params: Vec<u8>,
}

impl Kernel {
    fn preparation(entry: &'static str, grid: u32, params: &[u8]) -> Self {
        Self { entry, grid, threads: prepare::THREADS, shared: 0, params: params.to_vec() }
    }
}

/// What a product left.
pub struct Outcome {
    /// Of the product's launch.
    pub counters: Counters,
    /// The result.
    pub bytes: Vec<u8>,
}

impl Case {
    pub fn new(config: &'static BlackwellConfig, [m, n, k, l]: [u32; 4]) -> Self {
        Self {
            config,
            problem: Problem { m, n, k, l },
            // 16-bit activations are always `Y`.
            swapped: config.left.is_some(),
            dynamic: false,
            clusters: 2,
            layouts: [ScaleLayout::Blocked128x4; 2],
            scales: Scales::Exact,
            output: FloatType::F32,
            quantized: None,
            vectors: [false; 3],
            alpha: 1.0,
            direct: false,
            shift: 0,
            launches: 1,
            schedule: Schedule::Eager,
            seed: 1,
        }
    }

    /// Launches kernels in stream order, each so that it may begin before the one before has
    /// ended. The last one's counters, or what went wrong.
    fn launch<'m>(
        &self,
        module: &dyn Fn(&str) -> &'m Module,
        memory: &mut GlobalMemory,
        kernels: &[Kernel],
    ) -> Result<Counters, LaunchError> {
        let steps: Vec<Step<'_>> = (1..=kernels.len())
            .zip(kernels)
            .map(|(count, kernel)| Step {
                module: module(kernel.entry),
                launch: Launch {
                    entry: kernel.entry,
                    grid: [kernel.grid, 1, 1],
                    block: [kernel.threads, 1, 1],
                    cluster: None,
                    dynamic_shared: kernel.shared,
                    params: &kernel.params,
                    schedule: self.schedule,
                    threads: None,
                    instruction_limit: Some(200_000_000),
                },
                programmatic: count > 1,
            })
            .collect();
        let reports = launch_sequence(memory, &steps)?;
        Ok(reports.last().expect("a kernel").counters.clone())
    }

    /// Puts an operand into memory; kernels lay it out anew where they must.
    fn place(
        &self,
        memory: &mut GlobalMemory,
        name: &str,
        operand: &Operand,
        layout: ScaleLayout,
    ) -> Placed {
        let row_bytes = operand.k / 2;
        let mut codes = memory.alloc_from(&format!("{name} codes"), &operand.codes).unwrap();
        let mut row_stride = u64::from(row_bytes);
        let mut before = Vec::new();
        if prepare::codes_need_it(operand.k) {
            row_stride = u64::from(PrepareCodes::padded(row_bytes));
            let rows = u64::from(operand.rows * operand.batch);
            let to = memory.alloc(&format!("{name} padded"), rows * row_stride, 256).unwrap();
            let params = PrepareCodes { from: codes, to, rows, row_bytes, reserved: 0 };
            before.push(Kernel::preparation(CODES_NAME, params.grid(), &params.to_bytes()));
            codes = to;
        }
        // 0xff is NaN in either format.
        let bytes = operand.scales_in(layout, 0xff);
        let mut scales = memory.alloc_from(&format!("{name} scales"), &bytes).unwrap();
        let each = prepare::scale_bytes(operand.format, operand.rows, operand.k).unwrap() as u64;
        if prepare::scales_need_it(operand.format, layout, operand.rows, operand.k) {
            let batch = operand.batch;
            let to =
                memory.alloc(&format!("{name} laid out"), each * u64::from(batch), 256).unwrap();
            let params = PrepareScales {
                from: scales,
                to,
                from_stride: bytes.len() as u64 / u64::from(batch),
                to_stride: each,
                rows: operand.rows,
                blocks: operand.blocks(),
                batch,
                blocked: u32::from(layout == ScaleLayout::Blocked128x4),
            };
            before.push(Kernel::preparation(SCALES_NAME, params.grid(), &params.to_bytes()));
            scales = to;
        }
        Placed { codes, row_stride, scales, scale_stride: each, before }
    }

    /// What the copy engine stores by, if it does.
    fn result_map(&self) -> Option<TensorMapShape> {
        let Problem { m, n, .. } = self.problem;
        let stride = u64::from(m) * u64::from(n);
        let map = result_map(self.config, self.swapped, self.output, &self.problem, stride);
        map.filter(|_| !self.direct && self.shift.is_multiple_of(RESULT_ALIGN))
    }

    fn maps(&self, side: Side, operand: &Operand, placed: &Placed) -> [TensorMap; 2] {
        let Operand { rows, k, batch, .. } = *operand;
        let sizes = [rows, k, batch];
        let stride = placed.row_stride * u64::from(rows);
        let codes = codes_map(self.config, side, sizes, placed.row_stride, stride);
        let scales = scales_map(self.config, side, sizes, placed.scale_stride);
        [encode(&codes, placed.codes), encode(&scales, placed.scales)]
    }

    /// Runs it and fails with the first mismatch.
    pub fn check(&self) -> Outcome {
        self.run(&module).unwrap_or_else(|e| panic!("{self:?}\n{e}"))
    }

    /// [`Case::check`] with other kernels; what the emulator diagnoses.
    pub fn run<'m>(&self, module: &dyn Fn(&str) -> &'m Module) -> Result<Outcome, LaunchError> {
        let Problem { m, n, k, l } = self.problem;
        let mut random = Random(self.seed);
        let a = match self.config.left {
            None => Left::Blocks(Operand::random(
                self.config.format,
                [m, k, l],
                self.scales,
                &mut random,
            )),
            Some(kind) => Left::Halves(Halves::random(kind, [m, k, l], self.scales, &mut random)),
        };
        let b = Operand::random(self.config.format, [n, k, l], self.scales, &mut random);
        let vector = |random: &mut Random, count: u32| -> Vec<f32> {
            (0..count).map(|_| [0.5, -1.0, 2.0, 4.0][random.below(4) as usize]).collect()
        };
        let vectors = [vector(&mut random, m), vector(&mut random, n), vector(&mut random, n)];

        let mut memory = GlobalMemory::new();
        let mut kernels = Vec::new();
        let mut a_maps = |side, memory: &mut GlobalMemory| match &a {
            Left::Blocks(a) => {
                let placed = self.place(memory, "A", a, self.layouts[0]);
                let maps = self.maps(side, a, &placed);
                kernels.extend(placed.before);
                maps
            }
            Left::Halves(a) => {
                let bytes: Vec<u8> = a.bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                let at = memory.alloc_from("A", &bytes).unwrap();
                let matrix = 2 * u64::from(m) * u64::from(k);
                [encode(&halves_map(self.config, [m, k, l], matrix), at), TensorMap::NONE]
            }
        };
        let b_placed = self.place(&mut memory, "B", &b, self.layouts[1]);
        // At load.
        for kernel in &b_placed.before {
            self.launch(module, &mut memory, std::slice::from_ref(kernel))?;
        }
        let bytes = u64::from(m) * u64::from(n) * u64::from(l) * u64::from(self.output.bytes());
        let whole = self.shift + bytes + GUARD;
        let out = memory.alloc("C", whole, 256).unwrap();
        memory.fill(out, whole, POISON).unwrap();
        let out = out + self.shift;
        let addresses: Vec<u64> = (0..3)
            .map(|i| {
                let bytes: Vec<u8> = vectors[i].iter().flat_map(|v| v.to_le_bytes()).collect();
                let at = memory.alloc_from("vector", &bytes).unwrap();
                if self.vectors[i] { at } else { 0 }
            })
            .collect();

        let config = self.config;
        let [[x_codes, x_scales], [y_codes, y_scales]] = if self.swapped {
            [self.maps(Side::X, &b, &b_placed), a_maps(Side::Y, &mut memory)]
        } else {
            [a_maps(Side::X, &mut memory), self.maps(Side::Y, &b, &b_placed)]
        };
        let (x_rows, y_rows) = if self.swapped { (n, m) } else { (m, n) };
        let result = self.result_map().map(|shape| encode(&shape, out));
        let params = BlackwellParams {
            x_codes,
            y_codes,
            x_scales,
            y_scales,
            result: result.unwrap_or(TensorMap::NONE),
            epilogue: Epilogue {
                affine: Affine {
                    row_factors: addresses[0],
                    column_factors: addresses[1],
                    bias: addresses[2],
                    alpha: self.alpha,
                    bias_type: FloatType::F32 as u32,
                },
                sink: Sink {
                    out,
                    out_stride: u64::from(m) * u64::from(n),
                    out_type: self.output as u32,
                    reserved: 0,
                    scales: ResultScales::NONE,
                },
            },
            problem: self.problem,
            swapped: u32::from(self.swapped),
            dynamic: u32::from(self.dynamic),
            x_once: 1,
            y_once: 0,
            x_shared: 0,
            y_shared: 0,
            copied: u32::from(result.is_some()),
            reserved: 0,
        };
        let tiles = Tiling::new(config, x_rows, y_rows, l).count;
        let clusters = if self.dynamic { tiles } else { self.clusters.min(tiles) };
        let product = Kernel {
            entry: config.name,
            grid: clusters * config.cluster(),
            threads: config.threads(),
            shared: config.shared_bytes(),
            params: params.to_bytes().to_vec(),
        };
        kernels.extend(std::iter::repeat_n(product.clone(), self.launches));
        let counters = self.launch(module, &mut memory, &kernels)?;
        let result = memory.read(out, bytes).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        self.compare(&result, &a, &b, &vectors);
        let guard = memory.read(out + bytes, GUARD).unwrap();
        assert!(guard.iter().all(|&byte| byte == POISON), "{self:?}: wrote past the result");
        if let Some(layout) = self.quantized {
            let scale = self.place_blocks(&mut memory, layout, &result);
            let epilogue = scale.epilogue(params.epilogue);
            let params = BlackwellParams { epilogue, copied: 0, ..params };
            let blocks = Kernel { params: params.to_bytes().to_vec(), ..product };
            self.launch(module, &mut memory, &[blocks])?;
            self.compare_blocks(&memory, layout, &result, &scale);
        }
        Ok(Outcome { counters, bytes: result })
    }

    fn compare(&self, bytes: &[u8], a: &Left, b: &Operand, vectors: &[Vec<f32>; 3]) {
        let Problem { m, n, k, l } = self.problem;
        let width = self.output.bytes() as usize;
        let (m, n, k) = (m as usize, n as usize, k as usize);
        for batch in 0..l as usize {
            let (left, right) = (a.values(batch as u32), b.values(batch as u32));
            for row in 0..m {
                for column in 0..n {
                    let pairs = left[row * k..][..k].iter().zip(&right[column * k..][..k]);
                    let (sum, size) = pairs.fold((0.0, 0.0), |(s, a): (f64, f64), (x, y)| {
                        (s + x * y, a + (x * y).abs())
                    });
                    let pick = |which: usize, i: usize, none: f64| {
                        if self.vectors[which] { f64::from(vectors[which][i]) } else { none }
                    };
                    let factor = f64::from(self.alpha) * pick(0, row, 1.0) * pick(1, column, 1.0);
                    let bias = pick(2, column, 0.0);
                    let wanted = factor * sum + bias;
                    let at = ((batch * m + row) * n + column) * width;
                    let actual = value(&bytes[at..at + width], self.output);
                    // A sum of k/16 terms in f32, the epilogue, then the output's rounding.
                    let terms = (k / 16 + 16) as f64;
                    let slack = match self.scales {
                        Scales::Exact => 0.0,
                        Scales::FullRange => size * factor.abs() * terms * 2f64.powi(-23),
                    };
                    let good = rounded(wanted - slack, self.output) <= actual
                        && actual <= rounded(wanted + slack, self.output);
                    assert!(
                        good,
                        "{self:?}\nC[{batch}, {row}, {column}]: expected {wanted} +- {slack}, actual {actual}"
                    );
                }
            }
        }
    }
}

fn value(bytes: &[u8], kind: FloatType) -> f64 {
    match kind {
        FloatType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        FloatType::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
        FloatType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
    }
}

/// Nearest even in the output's type.
fn rounded(value: f64, kind: FloatType) -> f64 {
    match kind {
        FloatType::F16 => f16::from_f64(value).to_f64(),
        FloatType::Bf16 => bf16::from_f64(value).to_f64(),
        FloatType::F32 => f64::from(value as f32),
    }
}
