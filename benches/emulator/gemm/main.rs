//! Speed of whole matrix products of 128 x 7168 x K on one core: small warp-specialised
//! kernels with tensor-map copies, as real ones are built. Results are compared with
//! sums of integers before anything is timed.
//!
//! `cargo bench --bench gemm -- 2048` runs the short ones.

mod gemm;

use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use gemm::{Gemm, ROWS, TCGEN05, WGMMA};
use ptx_emu_core::Schedule;
use std::time::Duration;

const COLUMNS: usize = 7168;

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("gemm");
    group.sample_size(10).sampling_mode(SamplingMode::Flat).warm_up_time(Duration::from_millis(1));
    let schedules = [Schedule::Eager, Schedule::Lazy, Schedule::Random(1)];
    for (kernel, k) in [(TCGEN05, 2048), (WGMMA, 2048), (TCGEN05, 16384)] {
        let mut gemm = None;
        group.throughput(Throughput::Elements((ROWS * COLUMNS * k) as u64));
        for schedule in schedules.into_iter().take(if k == 2048 { 3 } else { 1 }) {
            let name = format!("{ROWS}x{COLUMNS}x{k} {schedule}");
            group.bench_function(BenchmarkId::new(kernel.name, name), |b| {
                let gemm = gemm.get_or_insert_with(|| Gemm::new(kernel, COLUMNS, k));
                gemm.run(schedule, 1).expect("a run");
                gemm.check();
                b.iter(|| gemm.run(schedule, 1));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
