//! The mutation check on small kernels that use each asynchronous unit the way
//! real ones do.

use crate::async_support::{Case, barriers, wait};
use ptx_emu::bundle::Compare;
use ptx_emu::experiment::{Earlier, Experiment, Watched};
use ptx_emu::mutate::{Equivalent, Fate, Mutants, MutateError, MutateOptions, mutate, mutate_all};
use ptx_emu::tensor_map::{ElementType, TensorMap};
use ptx_emu::{GlobalMemory, Gpu, Module};

/// The launch of a case, its output watched.
fn experiment(case: &Case) -> Experiment {
    let mut memory = GlobalMemory::new();
    let input = memory.alloc_from("in", &case.input).expect("it fits");
    let out = memory.alloc("out", case.out_bytes, 1024).expect("it fits");
    let mut params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
    params.resize(64, 0);
    params.extend(match &case.map {
        None => [0; 128],
        Some(map) => TensorMap { address: input, ..map.clone() }.encode().expect("a map that fits"),
    });
    let bytes = case.out_bytes;
    Experiment {
        ptx: case.text(),
        gpu: if case.sm100 { Gpu::b200() } else { Gpu::h200() },
        entry: "k".to_owned(),
        grid: [case.grid, 1, 1],
        block: [case.block, 1, 1],
        cluster: (case.cluster != 1).then_some([case.cluster, 1, 1]),
        dynamic_shared: 0,
        params,
        memory,
        outputs: vec![Watched { name: "out".to_owned(), addr: out, bytes, expected: None }],
        earlier: None,
    }
}

/// One line per mutant.
fn table(mutants: &Mutants) -> String {
    let line = |m: &ptx_emu::mutate::Mutant| {
        let fate = match &m.fate {
            Fate::Caught { schedule, finding } => format!("{schedule}: {}", finding.summary()),
            other => format!("{other:?} {:?}", m.equivalent),
        };
        format!("{:5} {:12} {} #{} -> {fate}\n", m.line, m.mutation, m.instruction, m.occurrence)
    };
    mutants.mutants.iter().map(line).collect()
}

/// Synchronisation that none of the kernels here needs.
const EVERYWHERE: &str = "
* | remove  | fence.mbarrier_init.release.cluster; | the CTA barrier behind it orders the initialisation for its CTA
* | relaxed | *mbarrier.arrive.expect_tx*          | the loading thread has written nothing that its arrival would publish
";

/// Runs the check with the listed equivalents; 95 % of the others must be caught,
/// and there must be at least `least`.
#[track_caller]
fn check(case: &Case, least: usize, equivalents: &str) -> Mutants {
    let equivalents = Equivalent::parse(equivalents).expect("a list");
    let options = MutateOptions { seeds: 64, equivalents, ..MutateOptions::default() };
    let mutants = mutate(&experiment(case), &options).expect("the kernel is right");
    let table = table(&mutants);
    println!("{table}{} of {} caught", mutants.caught(), mutants.counted());
    assert!(mutants.passes(95), "{table}");
    assert!(mutants.counted() >= least, "only {} mutants\n{table}", mutants.counted());
    mutants
}

fn f16s(count: u32) -> Vec<u8> {
    let value = |i: u32| half::f16::from_f32(((i * 7 + i / 64) % 13) as f32 - 6.0);
    (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
}

#[test]
fn a_ring_of_tensor_copies() {
    // Warp 0 loads 12 tiles of 16 rows through 3 stages; warps 1 and 2 add each
    // word to a sum, which a bulk copy stores.
    let body = format!(
        "{}
        mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r20, 0;
        setp.ne.u32 %p1, %wid, 0; @%p1 bra CONSUMER;
        elect.sync _|%p2, -1; @!%p2 bra END; xor.b32 %r12, %r12, 1;
        LOAD: mad.lo.u32 %r13, %r11, 8, %b;
        EMPTY:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r13+24], %r12;
        @!%p3 bra EMPTY;
        mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r13], 1024;
        mad.lo.u32 %r14, %r11, 1024, %s; mul.lo.u32 %r15, %r10, 16; mov.u32 %r16, 0;
        cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r14], [%map, {{%r16, %r15}}], [%r13];
        add.u32 %r11, %r11, 1; setp.eq.u32 %p4, %r11, 3; @%p4 xor.b32 %r12, %r12, 1;
        @%p4 mov.u32 %r11, 0;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 12; @%p5 bra LOAD;
        bra END;
        CONSUMER: sub.u32 %r15, %tid, 32;
        USE: mad.lo.u32 %r13, %r11, 8, %b;
        FULL:
        mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [%r13], %r12;
        @!%p3 bra FULL;
        mad.lo.u32 %r14, %r11, 1024, %s; mad.lo.u32 %r14, %r15, 4, %r14; mov.u32 %r17, 0;
        WORD: ld.shared.u32 %r16, [%r14]; mad.lo.u32 %r20, %r20, 3, %r16;
        add.u32 %r14, %r14, 256; add.u32 %r17, %r17, 1; setp.lt.u32 %p5, %r17, 4; @%p5 bra WORD;
        bar.warp.sync -1;
        setp.eq.u32 %p6, %lane, 0;
        @%p6 mbarrier.arrive.release.cta.shared::cta.b64 _, [%r13+24];
        add.u32 %r11, %r11, 1; setp.eq.u32 %p4, %r11, 3; @%p4 xor.b32 %r12, %r12, 1;
        @%p4 mov.u32 %r11, 0;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 12; @%p5 bra USE;
        mad.lo.u32 %r14, %r15, 4, %s; st.shared.u32 [%r14+4096], %r20;
        fence.proxy.async.shared::cta;
        bar.sync 1, 64;
        setp.eq.u32 %p6, %r15, 0; @!%p6 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [%out], [%s+4096], 256;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;
        END:",
        barriers(&[1, 1, 1, 2, 2, 2]),
    );
    let map = TensorMap::tiled(ElementType::U32, 0, &[16, 192], &[64], &[16, 16]);
    let values = (0..3072u32).map(|i| i.wrapping_mul(2_654_435_761));
    let case = Case { map: Some(map), ..Case::new(&body).block(96).out(256).u32s(values) };
    check(&case, 29, EVERYWHERE);
}

#[test]
fn two_stages_of_cp_async() {
    let body = "mov.u32 %r10, 0; mad.lo.u32 %r1, %tid, 16, %s; mul.wide.u32 %d1, %tid, 16;
        add.u64 %d1, %in, %d1; mov.u32 %r20, 0;
        cp.async.cg.shared.global [%r1], [%d1], 16;
        cp.async.commit_group;
        NEXT: add.u32 %r11, %r10, 1; and.b32 %r12, %r11, 1; mad.lo.u32 %r13, %r12, 1024, %r1;
        mul.wide.u32 %d2, %r11, 1024; add.u64 %d2, %d1, %d2; setp.lt.u32 %p1, %r11, 8;
        @%p1 cp.async.cg.shared.global [%r13], [%d2], 16;
        cp.async.commit_group;
        cp.async.wait_group 1;
        bar.sync 0;
        and.b32 %r12, %r10, 1; mad.lo.u32 %r14, %r12, 1024, %s; xor.b32 %r15, %tid, 63;
        mad.lo.u32 %r14, %r15, 16, %r14; ld.shared.u32 %r16, [%r14]; mad.lo.u32 %r20, %r20, 3, %r16;
        bar.sync 0;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 8; @%p2 bra NEXT;
        mad.wide.u32 %d3, %tid, 4, %out; st.global.u32 [%d3], %r20;";
    let values = (0..2048u32).map(|i| i.wrapping_mul(2_654_435_761));
    check(&Case::new(body).block(64).out(256).u32s(values), 6, "");
}

#[test]
fn reductions_of_barriers() {
    // Each thread reads what another has written before a reduction: of counts, and of predicates.
    let exchange = |reduction: &str| {
        format!(
            "mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid; setp.lt.u32 %p1, %tid, 48;
            {reduction}
            xor.b32 %r2, %tid, 63; mad.lo.u32 %r2, %r2, 4, %s; ld.shared.u32 %r3, [%r2];
            add.u32 %r3, %r3, %r4; mad.wide.u32 %d3, %tid, 4, %out; st.global.u32 [%d3], %r3;"
        )
    };
    for reduction in [
        "bar.red.popc.u32 %r4, 0, 64, %p1;",
        "barrier.cta.red.popc.aligned.u32 %r4, 0, !%p1;",
        "bar.red.and.pred %p2, 0, 64, !%p1; selp.u32 %r4, 1, 0, %p2;",
        "bar.red.or.pred %p2, 0, %p1; selp.u32 %r4, 1, 0, %p2;",
    ] {
        let mutants = check(&Case::new(&exchange(reduction)).block(64).out(256), 1, "");
        let removed =
            |m: &&ptx_emu::mutate::Mutant| m.mutation == ptx_emu::mutate::Mutation::Remove;
        assert_eq!(mutants.mutants.iter().filter(removed).count(), 1, "{reduction}");
    }
}

#[test]
fn a_cluster_that_exchanges() {
    // In two rounds each CTA sends its words to the other by remote stores and
    // arrives there, one lane per warp.
    let body = "setp.eq.u32 %leader, %tid, 0; mov.u32 %r10, 0; mov.u32 %r20, 0;
        @%leader mbarrier.init.shared::cta.b64 [%b], 2;
        fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed.aligned;
        barrier.cluster.wait.acquire.aligned;
        xor.b32 %r1, %rank, 1; mad.lo.u32 %r2, %tid, 4, %s; mapa.shared::cluster.u32 %r3, %r2, %r1;
        mapa.shared::cluster.u32 %r5, %b, %r1;
        ROUND: mad.lo.u32 %r4, %rank, 1000, %tid; mad.lo.u32 %r4, %r10, 10000, %r4;
        st.shared::cluster.u32 [%r3], %r4;
        bar.warp.sync -1;
        setp.eq.u32 %p2, %lane, 0;
        @%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
        WAIT:
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%b], %r10;
        @!%p1 bra WAIT;
        xor.b32 %r6, %tid, 33; mad.lo.u32 %r6, %r6, 4, %s; ld.shared.u32 %r7, [%r6];
        mad.lo.u32 %r20, %r20, 3, %r7;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 2; @%p3 bra ROUND;
        mad.lo.u32 %r8, %cta, 64, %tid; mad.wide.u32 %d1, %r8, 4, %out; st.global.u32 [%d1], %r20;";
    check(&Case::new(body).block(64).cluster(2).out(512), 12, "");
}

#[test]
fn a_warpgroup_product() {
    // Warp 4 loads six tiles of A (64 by 16) and B (8 by 16) through two stages.
    let body = format!(
        "{} {{ .reg .f32 x<4>; .reg .pred yes;
        mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r22, 0; setp.eq.u32 yes, 0, 0;
        setp.ge.u32 %p1, %wid, 4; @%p1 bra PRODUCER;
        mov.f32 x0, 0f00000000; mov.f32 x1, x0; mov.f32 x2, x0; mov.f32 x3, x0;
        LOOP: mad.lo.u32 %r23, %r21, 8, %b;
        FULL:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r23], %r22;
        @!%p3 bra FULL;
        mad.lo.u32 %r24, %r21, 4096, %s; shr.u32 %r25, %r24, 4; cvt.u64.u32 %d10, %r25;
        or.b64 %d11, %d10, 0x800400000; add.u64 %d10, %d10, 128; or.b64 %d12, %d10, 0x800080000;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{x0, x1, x2, x3}}, %d11, %d12, yes, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned;
        wgmma.wait_group.sync.aligned 0;
        setp.eq.u32 %p4, %lane, 0;
        @%p4 mbarrier.arrive.shared::cta.b64 _, [%r23+16];
        add.u32 %r21, %r21, 1; setp.eq.u32 %p5, %r21, 2; @%p5 xor.b32 %r22, %r22, 1;
        @%p5 mov.u32 %r21, 0;
        add.u32 %r20, %r20, 1; setp.lt.u32 %p6, %r20, 6; @%p6 bra LOOP;
        mul.wide.u32 %d1, %tid, 16; add.u64 %d1, %d1, %out;
        st.global.v4.f32 [%d1], {{x0, x1, x2, x3}};
        bra END;
        PRODUCER: elect.sync _|%p2, -1; @!%p2 bra END; mov.u32 %r22, 1;
        LOAD: mad.lo.u32 %r23, %r21, 8, %b;
        EMPTY:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r23+16], %r22;
        @!%p3 bra EMPTY;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r23], 2304;
        mad.lo.u32 %r24, %r21, 4096, %s; mad.wide.u32 %d2, %r20, 2304, %in;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r24], [%d2], 2048, [%r23];
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r24+2048], [%d2+2048], 256, [%r23];
        add.u32 %r21, %r21, 1; setp.eq.u32 %p5, %r21, 2; @%p5 xor.b32 %r22, %r22, 1;
        @%p5 mov.u32 %r21, 0;
        add.u32 %r20, %r20, 1; setp.lt.u32 %p6, %r20, 6; @%p6 bra LOAD;
        END: }}",
        barriers(&[1, 1, 4, 4]),
    );
    let case = Case { input: f16s(6 * 1152), ..Case::new(&body).block(160).out(2048) };
    let released = "
* | count -1 | @%leader mbarrier.init.shared::cta.b64 [%b+16], 4; | behind one warp's wait_group the products of all four are complete
* | count -1 | @%leader mbarrier.init.shared::cta.b64 [%b+24], 4; | behind one warp's wait_group the products of all four are complete
";
    check(&case, 20, &format!("{EVERYWHERE}{}", released.trim_start()));
}

#[test]
fn a_tensor_memory_product() {
    // Warp 4 loads and in the end waits for commits, warp 5 multiplies (128 by 16 by 16),
    // warps 0 to 3 read D.
    let body = format!(
        "{} {{ .reg .b32 x<16>; .reg .pred add;
        mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r22, 0;
        setp.ne.u32 %p1, %wid, 0; @%p1 bra ALLOCATED;
        add.u32 %r1, %b, 56;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
        tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
        ALLOCATED:
        bar.sync 0;
        ld.shared.u32 %r2, [%b+56];
        setp.eq.u32 %p1, %wid, 4; @%p1 bra PRODUCER;
        setp.eq.u32 %p1, %wid, 5; @%p1 bra MULTIPLY;
        DONE:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%b+32], 0;
        @!%p3 bra DONE;
        tcgen05.fence::after_thread_sync;
        shl.b32 %r3, %wid, 21; add.u32 %r3, %r3, %r2;
        tcgen05.ld.sync.aligned.32x32b.x16.b32 {{x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15}}, [%r3];
        tcgen05.wait::ld.sync.aligned;
        mul.wide.u32 %d1, %tid, 64; add.u64 %d1, %d1, %out;
        st.global.v4.b32 [%d1], {{x0, x1, x2, x3}}; st.global.v4.b32 [%d1+16], {{x4, x5, x6, x7}};
        st.global.v4.b32 [%d1+32], {{x8, x9, x10, x11}}; st.global.v4.b32 [%d1+48], {{x12, x13, x14, x15}};
        bar.sync 1, 128;
        setp.ne.u32 %p1, %wid, 0; @%p1 bra END;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
        bra END;
        MULTIPLY: elect.sync _|%p2, -1; @!%p2 bra END; setp.ne.u32 add, 0, 0;
        TILE: mad.lo.u32 %r23, %r21, 8, %b;
        FULL:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r23], %r22;
        @!%p3 bra FULL;
        tcgen05.fence::after_thread_sync;
        mad.lo.u32 %r24, %r21, 5120, %s; shr.u32 %r25, %r24, 4; cvt.u64.u32 %d10, %r25;
        or.b64 %d11, %d10, 0x400800800000; add.u64 %d10, %d10, 256; or.b64 %d12, %d10, 0x400800100000;
        tcgen05.mma.cta_group::1.kind::f16 [%r2], %d11, %d12, 0x8040010, add;
        tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r23+16];
        setp.eq.u32 add, 0, 0;
        add.u32 %r21, %r21, 1; setp.eq.u32 %p5, %r21, 2; @%p5 xor.b32 %r22, %r22, 1;
        @%p5 mov.u32 %r21, 0;
        add.u32 %r20, %r20, 1; setp.lt.u32 %p6, %r20, 6; @%p6 bra TILE;
        tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b+32];
        bra END;
        PRODUCER: elect.sync _|%p2, -1; @!%p2 bra END; mov.u32 %r22, 1;
        LOAD: mad.lo.u32 %r23, %r21, 8, %b;
        EMPTY:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r23+16], %r22;
        @!%p3 bra EMPTY;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r23], 4608;
        mad.lo.u32 %r24, %r21, 5120, %s; mad.wide.u32 %d2, %r20, 4608, %in;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r24], [%d2], 4608, [%r23];
        add.u32 %r21, %r21, 1; setp.eq.u32 %p5, %r21, 2; @%p5 xor.b32 %r22, %r22, 1;
        @%p5 mov.u32 %r21, 0;
        add.u32 %r20, %r20, 1; setp.lt.u32 %p6, %r20, 6; @%p6 bra LOAD;
        TAIL: mad.lo.u32 %r23, %r21, 8, %b;
        LAST:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r23+16], %r22;
        @!%p3 bra LAST;
        xor.b32 %r21, %r21, 1;
        add.u32 %r20, %r20, 1; setp.lt.u32 %p6, %r20, 8; @%p6 bra TAIL;
        END: }}",
        barriers(&[1, 1, 1, 1, 1]).replace("bar.sync 0;", ""),
    );
    let case = Case { input: f16s(6 * 2304), sm100: true, ..Case::new(&body).block(192).out(8192) };
    let list = "
* | remove | tcgen05.fence::after_thread_sync; #2 | what the product reads came by bulk copies, not by tcgen05 instructions of other threads
* | relaxed | mbarrier.try_wait.parity.shared::cta.b64 %p3, [%b+32], 0; | a relaxed wait and the fence order what follows
* | relaxed | mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r23+16], %r22; #2 | only that commits have arrived matters
";
    check(&case, 23, &[EVERYWHERE, list].concat());
}

#[test]
fn a_kernel_that_is_wrong_already() {
    let case = Case::new("mad.lo.u32 %r1, %tid, 4, %s; ld.shared.u32 %r2, [%r1]; bar.sync 0;");
    let error = mutate(&experiment(&case), &MutateOptions::default()).expect_err("it fails");
    assert!(matches!(error, MutateError::Original(_)), "{error}");
    assert!(error.to_string().contains("uninitialised read"), "{error}");
}

#[test]
fn survivors_and_what_is_never_reached() {
    // The barrier orders nothing; that behind the branch is never met.
    let body = "bar.sync 0;
        mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %tid;
        setp.lt.u32 %p1, %tid, 64; @%p1 bra END;
        bar.sync 1, 64;
        END:";
    let experiment = experiment(&Case::new(body).block(64).out(256));
    let run = |equivalents: &str| {
        let equivalents = Equivalent::parse(equivalents).expect("a list");
        let options =
            MutateOptions { seeds: 3, equivalents, workers: Some(2), ..MutateOptions::default() };
        mutate(&experiment, &options).expect("it runs")
    };
    let found = run("");
    let fates: Vec<_> = found.mutants.iter().map(|m| &m.fate).collect();
    assert_eq!(fates[0], &Fate::Survived);
    assert!(fates[1..].iter().all(|fate| **fate == Fate::NotReached), "{fates:?}");
    assert_eq!((found.counted(), found.caught(), found.passes(95)), (1, 0, false));
    let listed = run("k | remove | bar.sync 0; | nothing is shared");
    assert_eq!((listed.counted(), listed.passes(95)), (0, true));
    assert_eq!(listed.mutants[0].equivalent.as_deref(), Some("nothing is shared"));
}

#[test]
fn a_wrong_list_is_noticed() {
    let body = "mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid;
        bar.sync 0;
        xor.b32 %r2, %tid, 63; mad.lo.u32 %r2, %r2, 4, %s; ld.shared.u32 %r3, [%r2];
        mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %r3;";
    let experiment = experiment(&Case::new(body).block(64).out(256));
    let equivalents = Equivalent::parse("* | remove | bar.sync 0; | it is not").expect("a list");
    let options = MutateOptions { seeds: 3, equivalents, ..MutateOptions::default() };
    let found = mutate(&experiment, &options).expect("it runs");
    assert_eq!((found.contradicted().count(), found.passes(95)), (1, false));
    // An expected result counts like the result under `eager`.
    let mut expecting = experiment;
    let bytes = (0..64u32).rev().flat_map(u32::to_le_bytes).collect();
    expecting.outputs[0].expected = Some((bytes, Compare::Exact));
    let found = mutate(&expecting, &MutateOptions::default()).expect("it runs");
    assert_eq!((found.caught(), found.counted()), (1, 1));
}

#[test]
fn waits_are_for_the_barriers_that_they_name() {
    // A wait in its own loop: `wait` writes it that way.
    let body = format!(
        "{}
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];
        {}
        mad.lo.u32 %r1, %tid, 4, %s; ld.shared.u32 %r2, [%r1];
        mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %r2;",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    check(&Case::new(&body), 8, EVERYWHERE);
}

/// Some of many mutants are left out: the choice depends on the text alone.
#[test]
fn some_of_many() {
    let body = format!(
        "{} mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %tid;",
        "bar.sync 0; ".repeat(10)
    );
    let experiment = experiment(&Case::new(&body).block(64).out(256));
    let options = MutateOptions { seeds: 1, at_most: Some(4), ..MutateOptions::default() };
    let found = mutate(&experiment, &options).expect("it runs");
    let run = found.mutants.iter().filter(|m| m.fate == Fate::Survived).count();
    let left_out = found.mutants.iter().filter(|m| m.fate == Fate::LeftOut).count();
    assert_eq!((run, left_out, found.counted()), (4, 6, 4));
}

/// Launches of one kernel: what one of them does not reach, or does not show, another one may.
#[test]
fn several_launches() {
    // `bar.sync 0` is reached, and needed, where the first input is not 0.
    let body = "ld.global.u32 %r4, [%in]; setp.eq.u32 %p1, %r4, 0; @%p1 bra END;
        mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid;
        bar.sync 0;
        xor.b32 %r2, %tid, 63; mad.lo.u32 %r2, %r2, 4, %s; ld.shared.u32 %r3, [%r2];
        mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %r3;
        END: bar.sync 1;";
    let launch = |first: u32| {
        let case = Case { input: first.to_le_bytes().to_vec(), ..Case::new(body) };
        experiment(&case.block(64).out(256))
    };
    let options = MutateOptions { seeds: 3, ..MutateOptions::default() };
    let fates = |launches: &[Experiment]| -> Vec<Fate> {
        let found = mutate_all(launches, &options).expect("it runs");
        let removed = found.mutants.into_iter().filter(|m| m.mutation.to_string() == "remove");
        removed.map(|m| m.fate).collect()
    };
    let caught = |fate: &Fate| matches!(fate, Fate::Caught { .. });
    assert_eq!(fates(&[launch(0)]), [Fate::NotReached, Fate::Survived]);
    for inputs in [[0, 1], [1, 0]] {
        let [first, last] = &fates(&inputs.map(launch))[..] else { panic!("two barriers") };
        assert!(caught(first) && *last == Fate::Survived, "{first:?} {last:?}");
    }
    let other = experiment(&Case::new("bar.sync 0;"));
    let error = mutate_all(&[launch(0), other], &options).expect_err("two kernels");
    assert!(matches!(error, MutateError::Different { .. }), "{error}");
    let error = mutate_all(&[], &options).expect_err("none");
    assert!(matches!(error, MutateError::NoLaunch), "{error}");
}

/// An earlier launch is waited for; without the wait its result is missing.
#[test]
fn an_earlier_launch() {
    let before = ".version 9.0
        .target sm_90
        .address_size 64
        .visible .entry before(.param .u64 to) {
            .reg .b64 %to; .reg .b32 %i; .reg .pred %p;
            griddepcontrol.launch_dependents; mov.u32 %i, 0;
            L: add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 20000; @%p bra L;
            ld.param.u64 %to, [to]; st.global.u32 [%to], 7; ret;
        }";
    let body = "griddepcontrol.wait; ld.global.u32 %r1, [%in]; st.global.u32 [%out], %r1;";
    let case = Case::new(body).block(1).out(4);
    let mut experiment = experiment(&case);
    let input = experiment.params[8..16].to_vec();
    experiment.earlier = Some(Earlier {
        module: Module::load(before, &experiment.gpu).expect("modelled"),
        entry: "before".to_owned(),
        grid: [1; 3],
        block: [1, 1, 1],
        params: input,
    });
    let found = mutate(&experiment, &MutateOptions::default()).expect("it runs");
    assert_eq!((found.counted(), found.caught()), (1, 1), "{}", table(&found));
}
