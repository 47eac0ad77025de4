//! Clusters and mbarriers, equal under every schedule.

use crate::async_support::{Case, SEEDS, barriers, wait};
use ptx_emu_core::Schedule;

/// Thread `%tid` of each CTA stores `%r3` as word `cta * 32 + tid`.
const OUT: &str = "mad.lo.u32 %r58, %cta, 32, %tid; mad.wide.u32 %d58, %r58, 4, %out;
    st.global.u32 [%d58], %r3;";
const MEET: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";

#[test]
fn cluster_registers_and_addresses() {
    let body = format!(
        "mov.u32 %r1, %cluster_nctarank; mov.u32 %r2, %cluster_ctaid.x; mov.u32 %r4, %clusterid.x;
        mapa.shared::cluster.u32 %r5, %s, 3; getctarank.shared::cluster.u32 %r6, %r5;
        cvta.shared.u64 %d1, %d1; cvt.u64.u32 %d2, %s; cvta.shared.u64 %d2, %d2;
        mapa.u64 %d3, %d2, 2; getctarank.u64 %r7, %d3;
        mad.lo.u32 %r3, %r1, 1000, %r2; mad.lo.u32 %r3, %r4, 100, %r3;
        mad.lo.u32 %r3, %r6, 10000, %r3; mad.lo.u32 %r3, %r7, 100000, %r3; {OUT}"
    );
    let case = Case { grid: 8, ..Case::new(&body).cluster(4).out(1024) };
    case.gives_words((0..8).flat_map(|cta| {
        std::iter::repeat_n(4000 + cta % 4 + 100 * (cta / 4) + 30000 + 200_000, 32)
    }));
}

#[test]
fn shared_memory_of_the_cluster() {
    // Every CTA stores into its right neighbour, adds atomically to rank 0 and
    // reads its left neighbour, once by generic address.
    let body = format!(
        "mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1+256], 0; {MEET}
        add.u32 %r2, %rank, 1; and.b32 %r2, %r2, 3; mapa.shared::cluster.u32 %r4, %r1, %r2;
        mad.lo.u32 %r5, %rank, 100, %tid; st.shared::cluster.u32 [%r4], %r5;
        mapa.shared::cluster.u32 %r6, %r1, 0;
        red.relaxed.cluster.shared::cluster.add.u32 [%r6+256], %r5;
        atom.shared::cluster.add.u32 %r7, [%r6+256], 1;
        {MEET}
        ld.shared.u32 %r8, [%r1];
        cvt.u64.u32 %d1, %r4; cvta.shared::cluster.u64 %d1, %d1; ld.u32 %r9, [%d1];
        mad.lo.u32 %r3, %r8, 1000, %r9; {OUT}
        ld.shared::cluster.u32 %r3, [%r6+256]; add.u64 %d58, %d58, 512; st.global.u32 [%d58], %r3;
        {MEET}"
    );
    let case = Case::new(&body).cluster(4).out(1024);
    let values = (0..128u32).map(|i| {
        let (cta, tid) = (i / 32, i % 32);
        ((cta + 3) % 4 * 100 + tid) * 1000 + cta * 100 + tid
    });
    let sums = (0..128u32).map(|i| (0..4).map(|cta| cta * 100 + i % 32 + 1).sum());
    case.gives_words(values.chain(sums));
    let (_, report) = case.launch(Schedule::Eager).unwrap();
    assert!(report.counters.asynchronous.cluster_accesses.operations > 0);
}

#[test]
fn remote_arrivals_and_asynchronous_stores() {
    // Each of ranks 1 to 3 sends a word to rank 0 by st.async, and add one by
    // red.async; rank 0 waits for the bytes. Then rank 0 arrives at theirs.
    let body = format!(
        "{} mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1+512], 1000;
        setp.eq.and.u32 %p1, %rank, 0, %leader;
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 768;
        {MEET}
        setp.eq.u32 %p2, %rank, 0; @%p2 bra SINK;
        mapa.shared::cluster.u32 %r4, %r1, 0; mapa.shared::cluster.u32 %r5, %b, 0;
        sub.u32 %r6, %rank, 1; mad.lo.u32 %r7, %r6, 128, %r4; mad.lo.u32 %r8, %rank, 100, %tid;
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r7], %r8, [%r5];
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r4+512], %rank, [%r5];
        {}
        mov.u32 %r3, 5; {OUT} bra END;
        SINK: {}
        ld.shared.u32 %r2, [%r1]; ld.shared.u32 %r9, [%r1+128]; ld.shared.u32 %r10, [%r1+256];
        ld.shared.u32 %r11, [%r1+512];
        add.u32 %r3, %r2, %r9; add.u32 %r3, %r3, %r10; add.u32 %r3, %r3, %r11; {OUT}
        @!%leader bra END;
        mapa.shared::cluster.u32 %r5, %b, 1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5+8];
        mapa.shared::cluster.u32 %r5, %b, 2; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5+8], 1;
        mapa.shared::cluster.u32 %r5, %b, 3; mbarrier.arrive.shared::cluster.b64 _, [%r5+8];
        END: bar.warp.sync -1; {MEET}",
        barriers(&[1, 1]),
        wait(1, "0", "W1"),
        wait(0, "0", "W0"),
    );
    let case = Case::new(&body).cluster(4).out(512);
    case.gives_words((0..128u32).map(|i| if i < 32 { 600 + 3 * i + 1006 } else { 5 }));
}

#[test]
fn unaligned_cluster_barrier_and_relaxed_arrivals() {
    // Half of the warp arrives on another path; exited threads are not waited
    // for.
    let body = format!(
        "setp.lt.u32 %p1, %tid, 16; @%p1 bra LOW;
        barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire; mov.u32 %r3, 1; bra JOIN;
        LOW: barrier.cluster.arrive.release; mov.u32 %r3, 2; barrier.cluster.wait;
        JOIN: {OUT}
        setp.lt.u32 %p2, %tid, 8; @%p2 exit;
        barrier.cluster.arrive; barrier.cluster.wait;"
    );
    let case = Case::new(&body).cluster(2).out(256);
    case.gives_words((0..64).map(|i| if i % 32 < 16 { 2 } else { 1 }));
}

#[test]
fn states_parities_and_counts() {
    let body = format!(
        "{}
        mov.u32 %r3, 0; @!%leader bra END;
        // A fresh barrier: parity 1 is over, 0 is not.
        mbarrier.test_wait.parity.shared::cta.b64 %p1, [%b], 1; @%p1 or.b32 %r3, %r3, 1;
        mbarrier.test_wait.parity.shared::cta.b64 %p1, [%b], 0; @!%p1 or.b32 %r3, %r3, 2;
        mbarrier.arrive.shared::cta.b64 %d1, [%b], 2;
        mbarrier.pending_count.b64 %r4, %d1; shl.b32 %r4, %r4, 8; or.b32 %r3, %r3, %r4;
        mbarrier.test_wait.shared::cta.b64 %p1, [%b], %d1; @!%p1 or.b32 %r3, %r3, 4;
        mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %d2, [%b], 1;
        mbarrier.pending_count.b64 %r4, %d2; shl.b32 %r4, %r4, 12; or.b32 %r3, %r3, %r4;
        mbarrier.arrive_drop.shared::cta.b64 %d2, [%b];
        mbarrier.try_wait.shared::cta.b64 %p1, [%b], %d1, 100; @%p1 or.b32 %r3, %r3, 8;
        // The next phase expects one arrival less.
        mbarrier.arrive.b64 %d3, [%b]; mbarrier.pending_count.b64 %r4, %d3;
        shl.b32 %r4, %r4, 16; or.b32 %r3, %r3, %r4;
        mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 24;
        mbarrier.arrive.shared.b64 _, [%b], 2;
        mbarrier.test_wait.parity.shared.b64 %p1, [%b], 1; @!%p1 or.b32 %r3, %r3, 16;
        mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%b], 24;
        mbarrier.test_wait.parity.shared.b64 %p1, [%b], 1; @%p1 or.b32 %r3, %r3, 32;
        mbarrier.inval.shared::cta.b64 [%b];
        st.shared.u64 [%b], 0;
        mbarrier.init.shared::cta.b64 [%b], 1;
        mbarrier.arrive.shared::cta.b64 _, [%b];
        mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%b], 0; @%p1 or.b32 %r3, %r3, 64;
        END: {OUT}",
        barriers(&[4]),
    );
    let first = 0x7f | 4 << 8 | 2 << 12 | 3 << 16;
    Case::new(&body).gives_words((0..32).map(|i| if i == 0 { first } else { 0 }));
}

#[test]
fn spinning_sees_an_end() {
    // A thread spins on test_wait while another warp arrives late; one spins on
    // memory that a bulk store will write.
    let body = format!(
        "{}
        @%leader st.global.u32 [%out], 0; bar.sync 0;
        setp.eq.u32 %p1, %wid, 1; @%p1 bra LATE;
        SPIN: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%b], 0; @!%p2 bra SPIN;
        @%leader st.global.u32 [%out+4], 1; bra END;
        LATE: mov.u32 %r1, 0;
        COUNT: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5000; @%p2 bra COUNT;
        setp.eq.u32 %p3, %lane, 0; @!%p3 bra END;
        mbarrier.arrive.shared::cta.b64 _, [%b];
        st.shared.v4.u32 [%s], {{7, 8, 9, 10}};
        fence.proxy.async; cp.async.bulk.global.shared::cta.bulk_group [%out+16], [%s], 16;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        END:",
        barriers(&[1]),
    );
    let case = Case::new(&body).block(64).out(32);
    for schedule in crate::async_support::schedules() {
        let (out, _) = case.launch(schedule).unwrap();
        assert_eq!(out[..8], [0, 0, 0, 0, 1, 0, 0, 0], "{schedule}");
        assert_eq!(out[16], 7, "{schedule}");
    }
}

#[test]
fn cancelled_clusters_are_taken_over() {
    // Each CTA counts its own tile and those it takes over.
    let body = format!(
        "{} mov.u32 %r10, %cta; mov.u32 %r12, 0;
        TILE: mad.lo.u32 %r58, %r10, 32, %tid; mad.wide.u32 %d58, %r58, 4, %out;
        st.global.u32 [%d58], %r58;
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 16;
        @%leader clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%s], [%b];
        {}
        xor.b32 %r12, %r12, 1;
        ld.shared.b128 %q1, [%s];
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;
        @%p1 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r10, %r14, %r15, %r16}}, %q1;
        @%p1 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r10, %q1;
        fence.proxy.async; bar.sync 0;
        @%p1 bra TILE;",
        barriers(&[1]),
        wait(0, "%r12", "W0"),
    );
    let case = Case { grid: 20, sm100: true, ..Case::new(&body).out(20 * 128) };
    case.gives_words(0..640);
}

#[test]
fn grid_dependencies_and_register_counts() {
    let body = "griddepcontrol.wait; griddepcontrol.launch_dependents;
        setp.ge.u32 %p1, %tid, 128; @%p1 bra CONSUMER;
        setmaxnreg.dec.sync.aligned.u32 40; bra JOIN;
        CONSUMER: setmaxnreg.inc.sync.aligned.u32 232;
        JOIN: mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %tid;";
    let case = Case {
        directives: ".maxntid 384 .minnctapersm 1".to_owned(),
        ..Case::new(body).block(384).out(1536)
    };
    case.gives_words(0..384);
}

/// CTAs of a cluster start at different times: one may have done all its work before another
/// begins. Nothing orders them here, so what one finds of the other depends on the schedule.
#[test]
fn ctas_start_at_different_times() {
    for worker in [0, 1] {
        let body = format!(
            "mov.u32 %r3, 0; setp.eq.u32 %p1, %rank, {worker}; @%p1 bra WORK;
            ld.relaxed.gpu.global.u32 %r3, [%in]; bra END;
            WORK: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 2000; @%p2 bra WORK;
            st.relaxed.gpu.global.u32 [%in], %r3;
            END: {OUT}"
        );
        let case = Case::new(&body).cluster(2).out(256).u32s([0]);
        let found = |schedule| {
            let (out, _) = case.launch(schedule).unwrap();
            let at = 128 * (1 - worker);
            u32::from_le_bytes(out[at..at + 4].try_into().unwrap())
        };
        // The last CTA starts first.
        assert_eq!(found(Schedule::Lazy), if worker == 1 { 2000 } else { 0 });
        let late = (0..SEEDS).filter(|&seed| found(Schedule::Random(seed)) == 2000).count();
        assert!((1..SEEDS as usize / 2).contains(&late), "CTA {worker}: {late} of {SEEDS} seeds");
    }
}
