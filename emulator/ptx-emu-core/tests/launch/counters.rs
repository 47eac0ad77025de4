//! Counters of asynchronous copies, tensor cores and memory levels, and the bound
//! that follows: exact numbers for small kernels.

use crate::async_support::{Case, barriers, wait};
use ptx_emu_core::{Counters, Family, Gpu, LevelBytes, Schedule};

fn counters(case: &Case, schedule: Schedule) -> Counters {
    case.launch(schedule).expect("it runs").1.counters
}

fn part(counters: &Counters, gpu: &Gpu, name: &str) -> f64 {
    let bound = counters.lower_bound(gpu);
    let part = bound.parts.iter().find(|part| part.name == name).expect("a known part");
    assert!(part.seconds <= bound.seconds);
    part.seconds
}

/// Zeros of f16, brought by a bulk copy, multiplied 64 by 8 by 16.
fn wgmma() -> Case {
    let body = format!(
        "{} {{ .reg .f32 x<4>; .reg .pred yes; setp.eq.u32 yes, 0, 0;
        mov.f32 x0, 0f00000000; mov.f32 x1, x0; mov.f32 x2, x0; mov.f32 x3, x0;
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 2304;
        @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 2304, [%b];
        {}
        shr.u32 %r25, %s, 4; cvt.u64.u32 %d10, %r25;
        or.b64 %d11, %d10, 0x800400000; add.u64 %d10, %d10, 128; or.b64 %d12, %d10, 0x800080000;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{x0, x1, x2, x3}}, %d11, %d12, yes, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        mul.wide.u32 %d1, %tid, 16; add.u64 %d1, %d1, %out;
        st.global.v4.f32 [%d1], {{x0, x1, x2, x3}}; }}",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    Case { input: vec![0; 2304], ..Case::new(&body).block(128).out(2048) }
}

#[test]
fn warpgroup_products_and_bulk_copies() {
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(1)] {
        let counters = counters(&wgmma(), schedule);
        let tensor = counters.tensor;
        assert_eq!((tensor.instructions, tensor.half, tensor.byte), (4, 64 * 8 * 16, 0));
        assert_eq!(tensor.shared_bytes, 2304);
        let levels = counters.levels;
        assert_eq!(levels.shared, LevelBytes { read: 4 * (512 + 256), written: 2304 });
        assert_eq!(levels.dram, LevelBytes { read: 2304, written: 2048 });
        assert_eq!(levels.l2, levels.dram);
        assert_eq!((levels.cluster_shared, levels.tensor_memory), Default::default());
        let gpu = Gpu::h200();
        // One SM: 8192 multiply-adds at 2048 per clock, 4608 bytes at 128 per clock.
        let tensor = part(&counters, &gpu, "tensor") * gpu.clock_hz;
        assert!((tensor - 4.0).abs() < 1e-9, "{tensor}");
        let shared = part(&counters, &gpu, "shared") * gpu.clock_hz;
        assert!((shared - 36.0).abs() < 1e-9, "{shared}");
    }
}

#[test]
fn products_of_a_warp() {
    let body = "{ .reg .b32 a<4>, b<2>; .reg .f32 x<4>;
        mov.b32 a0, 0; mov.b32 a1, 0; mov.b32 a2, 0; mov.b32 a3, 0; mov.b32 b0, 0; mov.b32 b1, 0;
        mov.f32 x0, 0f00000000; mov.f32 x1, x0; mov.f32 x2, x0; mov.f32 x3, x0;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {x0, x1, x2, x3}, {a0, a1, a2, a3}, {b0, b1}, {x0, x1, x2, x3};
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {a0, a1, a2, a3}, {a0, a1, a2, a3}, {b0, b1}, {a0, a1, a2, a3};
        mad.wide.u32 %d1, %tid, 4, %out; st.global.b32 [%d1], a0; }";
    let counters = counters(&Case::new(body).block(64).out(256), Schedule::Eager);
    let tensor = counters.tensor;
    assert_eq!((tensor.instructions, tensor.half, tensor.integer), (4, 2 * 2048, 2 * 4096));
    assert_eq!((tensor.half_in_f32, tensor.byte_in_f32), (2 * 2048, 0));
    // One SM: 8-bit products take half the time, and GeForce sums halves in f32 at half the rate.
    for (gpu, clocks) in [
        (Gpu::a100(), (4096.0 + 4096.0) / 1024.0),
        (Gpu::rtx3090(), (2.0 * 4096.0 + 4096.0) / 512.0),
        (Gpu::l40s(), (4096.0 + 4096.0) / 512.0),
    ] {
        let found = part(&counters, &gpu, "tensor") * gpu.clock_hz;
        assert!((found - clocks).abs() < 1e-9, "{} {found}", gpu.name);
    }
    assert_eq!(counters.family(Family::Matrix).warp, 4);
    assert_eq!(counters.family(Family::Warp).warp, 0);
}

#[test]
fn tensor_memory() {
    // 32 columns stored and loaded by each of four warps.
    let body = "{ .reg .b32 x<32>;
        setp.ne.u32 %p1, %wid, 0; @%p1 bra ALLOCATED;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%b], 32;
        tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
        ALLOCATED: bar.sync 0; ld.shared.u32 %r2, [%b];
        shl.b32 %r3, %wid, 21; add.u32 %r3, %r3, %r2; mov.b32 x0, %tid;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {x0};
        tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {x1}, [%r3];
        tcgen05.wait::ld.sync.aligned;
        mad.wide.u32 %d1, %tid, 4, %out; st.global.b32 [%d1], x1;
        bar.sync 0; @%p1 bra END;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
        END: }";
    let case = Case { sm100: true, ..Case::new(body).block(128).out(512) };
    let counters = counters(&case, Schedule::Eager);
    let both = LevelBytes { read: 4 * 128, written: 4 * 128 };
    assert_eq!(counters.levels.tensor_memory, both);
    let json = serde_json::to_value(&counters).expect("JSON");
    assert_eq!(json["levels"]["tensor_memory"]["read"], 512);
    assert!(json["families"]["tensor"]["warp"].as_u64() > Some(0));
    assert_eq!(json["tensor"]["instructions"], 0);
}

#[test]
fn what_crosses_a_cluster() {
    let body = "mad.lo.u32 %r2, %tid, 4, %s; xor.b32 %r1, %rank, 1;
        mapa.shared::cluster.u32 %r3, %r2, %r1;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        st.shared::cluster.u32 [%r3], %tid;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        ld.shared.u32 %r4, [%r2]; mad.lo.u32 %r5, %cta, 32, %tid; mad.wide.u32 %d1, %r5, 4, %out;
        st.global.u32 [%d1], %r4;";
    let counters = counters(&Case::new(body).cluster(2).out(256), Schedule::Eager);
    assert_eq!(counters.levels.cluster_shared.written, 256);
}
