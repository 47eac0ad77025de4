//! Speed of the machine in lane instructions per second on one core.
//!
//! `gemv_like` is a fixed kernel of the shape of the project's own; the kernels
//! that `cargo xtask build-kernels` made are measured too where they exist.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernel::Kernel;
use ptx_emu_core::{Checks, GlobalMemory, Gpu, Module, Schedule};
use std::path::Path;

mod kernel;

struct Case {
    module: Module,
    kernel: Kernel,
}

impl Case {
    fn run(&mut self, schedule: Schedule) -> u64 {
        self.kernel.run(&self.module, schedule, Checks::default(), 1)
    }
}

/// Bytes that are not all the same, and valid e4m3 scales.
fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 37 % 113) as u8).collect()
}

fn bytes(values: &[u64], tail: &[u32]) -> Vec<u8> {
    let wide = values.iter().flat_map(|v| v.to_le_bytes());
    wide.chain(tail.iter().flat_map(|v| v.to_le_bytes())).collect()
}

fn gemv_like() -> Case {
    let (rows, chunks) = (512usize, 16usize);
    let mut memory = GlobalMemory::new();
    let mut upload = |name, count| memory.alloc_from(name, &pattern(count)).expect("fits");
    let codes = upload("codes", rows * chunks * 512);
    let scales = upload("scales", rows * chunks * 64);
    let out = memory.alloc("out", rows as u64 * 4, 256).expect("fits");
    let kernel = Kernel {
        memory,
        entry: "gemv_like",
        grid: [rows as u32 / 4, 1, 1],
        block: [128, 1, 1],
        dynamic_shared: 0,
        params: bytes(&[codes, scales, out], &[chunks as u32]),
    };
    let module = Module::load(include_str!("gemv_like.ptx"), &Gpu::h200()).expect("modelled");
    Case { module, kernel }
}

/// Rows of a CTA of the built kernel, and warps, of which each thread has 32 elements of each row.
const ROWS: usize = 16;
const WARPS: u32 = 16;

/// A built GEMV kernel on `m` rows of `k` elements with linear scales.
fn built(gpu: &Gpu) -> Option<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/kernels")
        .join(gpu.arch)
        .join("gemv.ptx");
    let text = std::fs::read_to_string(file).ok()?;
    let module = match Module::load(&text, gpu) {
        Ok(module) => module,
        Err(error) => panic!("{error}"),
    };
    let (m, k) = (512usize, 16384usize);
    let mut memory = GlobalMemory::new();
    let mut upload = |name, count| memory.alloc_from(name, &pattern(count)).expect("fits");
    let weights = upload("b_codes", m * k / 2);
    let weight_scales = upload("b_scales", m * k / 16);
    let activations = upload("a_codes", k / 2);
    let activation_scales = upload("a_scales", k / 16);
    let out = memory.alloc("out", m as u64 * 4, 256).expect("fits");
    let strides = [(m * k / 16) as u64, (k / 16) as u64];
    let kernel = Kernel {
        memory,
        entry: "gemv_nvfp4_linear",
        grid: [(m / ROWS) as u32, 1, 1],
        block: [WARPS * 32, 1, 1],
        dynamic_shared: ROWS as u32 * WARPS * 4,
        params: bytes(
            &[weights, weight_scales, activations, activation_scales, out, strides[0], strides[1]],
            &[m as u32, k as u32, 1f32.to_bits(), 2, 0, WARPS * 32, ROWS as u32, 0],
        ),
    };
    Some(Case { module, kernel })
}

fn lane_instructions(c: &mut Criterion) {
    let mut group = c.benchmark_group("lane_instructions");
    group.sample_size(10);
    let cases = [
        ("gemv_like", Some(gemv_like())),
        ("gemv_sm_90a", built(&Gpu::h200())),
        ("gemv_sm_100a", built(&Gpu::b200())),
    ];
    for (name, case) in cases {
        let Some(mut case) = case else {
            eprintln!("{name}: skipped, cargo xtask build-kernels has not made it");
            continue;
        };
        for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(1)] {
            group.throughput(Throughput::Elements(case.run(schedule)));
            group.bench_function(BenchmarkId::new(name, schedule), |b| {
                b.iter(|| case.run(schedule));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, lane_instructions);
criterion_main!(benches);
