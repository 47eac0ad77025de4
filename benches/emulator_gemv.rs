//! The emulator's speed on the GEMV kernels, in lane instructions per second on one host thread.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fp4_formats::gemv::GemvParams;
use fp4_formats::params::bytes;
use fp4_formats::{Arch, FloatType, ScaleLayout};
use nvfp4::plan::gemv::{Geometry, choose};
use nvfp4::shape::GemvShape;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::ptx;
use ptx_emu_core::{Checks, GlobalMemory, Launch, Module, Schedule};

const SHAPE: GemvShape = GemvShape { m: 512, k: 7168, l: 1 };

fn gemv_kernels(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("emulated gemv:512x7168x1");
    group.sample_size(10);
    for arch in Arch::compiled() {
        let gpu = nvfp4_tests::machine(arch);
        for layout in ScaleLayout::ALL {
            let (a, b) =
                Generator::FullRange.gemv(SHAPE, [ScaleLayout::Linear, layout], 1).expect("inputs");
            let mut memory = GlobalMemory::new();
            let mut put = |name, bytes| memory.alloc_from(name, bytes).expect("room");
            let (b_codes, b_scales) = (put("b codes", b.codes()), put("b scales", b.scales()));
            let (a_codes, a_scales) = (put("a codes", a.codes()), put("a scales", a.scales()));
            let out = memory.alloc("out", SHAPE.m as u64 * 4, 16).expect("room");
            let (m, k) = (SHAPE.m as u32, SHAPE.k as u32);
            let (config, _) = choose(k, layout).expect("a kernel");
            let geometry = Geometry::new(config, [m, k, 1], 132, None);
            let module = Module::load(&ptx(arch, config.name), &gpu).expect("the kernels load");
            let params = GemvParams {
                b_codes,
                b_scales,
                a_codes,
                a_scales,
                out,
                b_scale_stride: b.scale_stride() as u64,
                a_scale_stride: a.scale_stride() as u64,
                m,
                k,
                alpha: 1.0,
                out_type: FloatType::F32 as u32,
                a_blocked: 0,
                panel: geometry.panel,
                share: geometry.share,
                rest: geometry.rest,
            };
            let launch = Launch {
                entry: config.name,
                grid: [geometry.ctas, 1, 1],
                block: [geometry.threads(), 1, 1],
                cluster: None,
                dynamic_shared: geometry.shared_bytes(),
                params: bytes(&params),
                schedule: Schedule::Eager,
                threads: Some(1),
                instruction_limit: None,
                checks: Checks::default(),
            };
            let lanes =
                module.launch(&mut memory, &launch).expect("it runs").counters.lane_instructions;
            group.throughput(Throughput::Elements(lanes));
            group.bench_function(format!("{} {}", gpu.name, config.name), |bencher| {
                bencher.iter(|| module.launch(&mut memory, &launch).expect("it runs"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, gemv_kernels);
criterion_main!(benches);
