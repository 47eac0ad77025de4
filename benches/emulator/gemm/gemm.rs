//! A matrix product on the emulator: operands, launch, and what it must give. Sums of
//! small integers, so that they are exact.

use ptx_emu_core::tensor_map::{ElementType, Swizzle, TensorMap};
use ptx_emu_core::{Checks, GlobalMemory, Gpu, Launch, LaunchError, Module, Schedule};

pub const ROWS: usize = 128;
/// Rows and columns of a CTA.
const TILE: usize = 128;
/// Bytes of K that a stage has of each row.
const STAGE: usize = 128;

/// A kernel and its format.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub name: &'static str,
    pub text: &'static str,
    /// Elements of K in a stage of [`STAGE`] bytes.
    stage: usize,
    threads: u32,
    sm100: bool,
}

pub const TCGEN05: Kernel = Kernel {
    name: "tcgen05 nvfp4",
    text: include_str!("tcgen05.ptx"),
    stage: 256,
    threads: 192,
    sm100: true,
};

pub const WGMMA: Kernel = Kernel {
    name: "wgmma f16",
    text: include_str!("wgmma.ptx"),
    stage: 64,
    threads: 384,
    sm100: false,
};

/// Small integers as e2m1 codes (0, 1, 2, 3, 4, 6 and their negatives).
const CODES: [(u8, i32); 8] = [(0, 0), (2, 1), (4, 2), (5, 3), (6, 4), (7, 6), (10, -1), (13, -3)];

/// A number for every element, from its row and column.
fn pick(row: usize, k: usize, seed: usize) -> (u8, i32) {
    CODES[(row * 7 + k * 3 + row * k / 5 + seed) % CODES.len()]
}

/// One product, ready to be launched.
pub struct Gemm {
    kernel: Kernel,
    module: Module,
    memory: GlobalMemory,
    params: Vec<u8>,
    result: u64,
    columns: usize,
    k: usize,
}

impl Gemm {
    /// `columns` a multiple of 128, `k` of the kernel's stage.
    pub fn new(kernel: Kernel, columns: usize, k: usize) -> Self {
        let gpu = if kernel.sm100 { Gpu::b200() } else { Gpu::h200() };
        Self::with_text(kernel, kernel.text, &gpu, columns, k)
    }

    /// Assembles the kernel from another text.
    pub fn with_text(kernel: Kernel, text: &str, gpu: &Gpu, columns: usize, k: usize) -> Self {
        let module = Module::load(text, gpu).expect("a module");
        let mut memory = GlobalMemory::new();
        let mut maps = Vec::new();
        for (name, rows, seed) in [("a", ROWS, 0), ("b", columns, 5)] {
            let bytes = operand(kernel, rows, k, seed);
            let row = bytes.len() / rows;
            let address = memory.alloc_from(name, &bytes).expect("memory");
            let (element, across) =
                if kernel.sm100 { (ElementType::U8, row) } else { (ElementType::F16, k) };
            let dims = [across as u64, rows as u64];
            let boxes = [(across * STAGE / row) as u32, TILE as u32];
            let mut map = TensorMap::tiled(element, address, &dims, &[row as u64], &boxes);
            map.swizzle = Swizzle::B128;
            maps.extend(map.encode().expect("a map"));
        }
        // Scales of one.
        let mut scales = |name, rows: usize| {
            memory.alloc_from(name, &vec![0x38; rows * k / 16]).expect("memory")
        };
        let scales = [scales("a scales", ROWS), scales("b scales", columns)];
        let result = memory.alloc("result", (ROWS * columns * 4) as u64, 256).expect("memory");
        let mut params = maps;
        params.extend(scales.iter().chain([&result]).flat_map(|address| address.to_le_bytes()));
        params.extend((columns as u32).to_le_bytes());
        params.extend(((k / kernel.stage) as u32).to_le_bytes());
        Self { kernel, module, memory, params, result, columns, k }
    }

    /// Launches it on so many host threads.
    pub fn run(&mut self, schedule: Schedule, threads: usize) -> Result<(), LaunchError> {
        let launch = Launch {
            entry: "gemm",
            grid: [(self.columns / TILE) as u32, 1, 1],
            block: [self.kernel.threads, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: &self.params,
            schedule,
            threads: Some(threads),
            instruction_limit: None,
            checks: Checks::default(),
        };
        self.module.launch(&mut self.memory, &launch).map(|_| ())
    }

    /// Compares some elements.
    pub fn check(&self) {
        let columns = self.columns;
        let bytes = self.memory.read_raw(self.result, (ROWS * columns * 4) as u64).expect("result");
        for (row, column) in (0..ROWS).map(|row| (row, (row * 523 + 11) % columns)) {
            let at = (row * columns + column) * 4;
            let word = bytes[at..at + 4].try_into().expect("four bytes");
            let expected: i32 = (0..self.k).map(|k| pick(row, k, 0).1 * pick(column, k, 5).1).sum();
            let actual = f32::from_le_bytes(word);
            assert_eq!(actual, expected as f32, "{}: {row}, {column}", self.kernel.name);
        }
    }
}

/// A matrix in the kernel's format.
fn operand(kernel: Kernel, rows: usize, k: usize, seed: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in 0..rows {
        if kernel.sm100 {
            bytes.extend(
                (0..k / 2).map(|at| pick(row, 2 * at, seed).0 | pick(row, 2 * at + 1, seed).0 << 4),
            );
        } else {
            let half = |k| half::f16::from_f32(pick(row, k, seed).1 as f32).to_le_bytes();
            bytes.extend((0..k).flat_map(half));
        }
    }
    bytes
}
