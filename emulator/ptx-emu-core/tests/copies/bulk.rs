//! Values of asynchronous copies, equal under every schedule.

use crate::async_support::{Case, barriers, wait};
use ptx_emu_core::Schedule;

/// Thread `%tid` copies word `%tid` of shared memory to the output.
const WORD_OUT: &str = "shl.b32 %r1, %tid, 2; add.u32 %r2, %s, %r1; ld.shared.u32 %r3, [%r2];
    cvt.u64.u32 %d1, %r1; add.u64 %d1, %out, %d1; st.global.u32 [%d1], %r3;";

#[test]
fn a_bulk_load_is_waited_for() {
    for space in ["shared::cta", "shared::cluster"] {
        let case = Case::new(&format!(
            "{}
            @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
            @%leader cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];
            {} {WORD_OUT}",
            barriers(&[1]),
            wait(0, "0", "W0"),
        ));
        case.gives(&case.input[..128]);
    }
}

#[test]
fn a_pipeline_of_bulk_loads() {
    // Warp 0 loads 16 tiles of 256 bytes through 3 stages, warps 1 and 2 add
    // them up, one word of a tile a thread.
    let body = format!(
        "{}
        mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r20, 0;
        setp.ne.u32 %p1, %wid, 0; @%p1 bra CONSUMER;
        elect.sync _|%p2, -1; @!%p2 bra END; xor.b32 %r12, %r12, 1;
        LOAD: mad.lo.u32 %r13, %r11, 8, %b;
        EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r13+24], %r12; @!%p3 bra EMPTY;
        mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r13], 256;
        mad.lo.u32 %r14, %r11, 256, %s; mad.wide.u32 %d2, %r10, 256, %in;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r14], [%d2], 256, [%r13];
        add.u32 %r11, %r11, 1; setp.eq.u32 %p4, %r11, 3; @%p4 xor.b32 %r12, %r12, 1;
        @%p4 mov.u32 %r11, 0;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 16; @%p5 bra LOAD;
        bra END;
        CONSUMER: sub.u32 %r15, %tid, 32;
        USE: mad.lo.u32 %r13, %r11, 8, %b;
        FULL: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [%r13], %r12, 1000;
        @!%p3 bra FULL;
        mad.lo.u32 %r14, %r11, 256, %s; mad.lo.u32 %r14, %r15, 4, %r14;
        ld.shared.u32 %r16, [%r14]; add.u32 %r20, %r20, %r16;
        bar.warp.sync -1; setp.eq.u32 %p6, %lane, 0;
        @%p6 mbarrier.arrive.release.cta.shared::cta.b64 _, [%r13+24];
        add.u32 %r11, %r11, 1; setp.eq.u32 %p4, %r11, 3; @%p4 xor.b32 %r12, %r12, 1;
        @%p4 mov.u32 %r11, 0;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 16; @%p5 bra USE;
        mad.wide.u32 %d3, %r15, 4, %out; st.global.u32 [%d3], %r20;
        END:",
        barriers(&[1, 1, 1, 2, 2, 2]),
    );
    let values: Vec<u32> = (0..1024u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let case = Case::new(&body).block(96).out(256).u32s(values.iter().copied());
    case.gives_words(
        (0..64).map(|i| (0..16).fold(0u32, |sum, tile| sum.wrapping_add(values[tile * 64 + i]))),
    );
}

#[test]
fn cp_async_sizes_and_groups() {
    for (cache, size) in [("ca", 4u32), ("ca", 8), ("ca", 16), ("cg", 16)] {
        // Two groups of one copy each; the first is read while the second may be
        // in flight.
        let body = format!(
            "mul.lo.u32 %r1, %tid, {size}; add.u32 %r2, %s, %r1; cvt.u64.u32 %d1, %r1;
            add.u64 %d2, %in, %d1; add.u64 %d3, %out, %d1;
            cp.async.{cache}.shared.global.L2::128B [%r2], [%d2], {size};
            cp.async.commit_group;
            cp.async.{cache}.shared.global [%r2+4096], [%d2+4096], {size};
            cp.async.commit_group;
            cp.async.wait_group 1;
            ld.shared.u32 %r3, [%r2]; st.global.u32 [%d3], %r3;
            cp.async.wait_group 0;
            ld.shared.u32 %r3, [%r2+4096]; st.global.u32 [%d3+4096], %r3;"
        );
        let case = Case::new(&body).out(4096 + 512);
        for schedule in crate::async_support::schedules() {
            let (out, report) = case.launch(schedule).unwrap();
            for thread in 0..32 {
                let at = thread * size as usize;
                assert_eq!(out[at..at + 4], case.input[at..at + 4], "{size} {schedule}");
                let at = at + 4096;
                assert_eq!(out[at..at + 4], case.input[at..at + 4], "{size} {schedule}");
            }
            assert_eq!(report.counters.asynchronous.copies.operations, 64);
            assert_eq!(report.counters.asynchronous.copies.bytes, 64 * u64::from(size));
        }
    }
}

#[test]
fn cp_async_fills_with_zeros() {
    let body = |amount: &str| {
        format!(
            "shl.b32 %r1, %tid, 4; add.u32 %r2, %s, %r1; cvt.u64.u32 %d1, %r1;
            add.u64 %d2, %in, %d1; add.u64 %d3, %out, %d1;
            and.b32 %r4, %tid, 15; setp.lt.u32 %p1, %tid, 5;
            cp.async.ca.shared.global [%r2], [%d2], 16, {amount};
            cp.async.wait_all;
            ld.shared.v4.u32 {{%r5, %r6, %r7, %r8}}, [%r2];
            st.global.v4.u32 [%d3], {{%r5, %r6, %r7, %r8}};"
        )
    };
    let case = Case::new(&body("%r4")).out(512);
    let expected: Vec<u8> = (0..512usize)
        .map(|at| if at % 16 < ((at / 16) & 15) { case.input[at] } else { 0 })
        .collect();
    case.gives(&expected);
    let case = Case::new(&body("%p1")).out(512);
    let expected: Vec<u8> =
        (0..512usize).map(|at| if at / 16 < 5 { 0 } else { case.input[at] }).collect();
    case.gives(&expected);
}

#[test]
fn cp_async_arrives_at_mbarriers() {
    // Without .noinc the arrival brings its own pending count; with it the
    // barrier must expect it.
    for (form, count) in [("", 32), (".noinc", 64)] {
        let body = format!(
            "{}
            shl.b32 %r1, %tid, 2; add.u32 %r2, %s, %r1; cvt.u64.u32 %d1, %r1; add.u64 %d2, %in, %d1;
            cp.async.ca.shared.global [%r2], [%d2], 4;
            cp.async.mbarrier.arrive{form}.shared::cta.b64 [%b];
            mbarrier.arrive.shared::cta.b64 _, [%b];
            {} {WORD_OUT}",
            barriers(&[count]),
            wait(0, "0", "W0"),
        );
        let case = Case::new(&body);
        case.gives(&case.input[..128]);
    }
}

/// Fills 256 bytes of shared memory from the input, word by word.
const FILL: &str = "mad.lo.u32 %r1, %tid, 4, %s; mad.wide.u32 %d1, %tid, 4, %in;
    ld.global.u32 %r2, [%d1]; st.shared.u32 [%r1], %r2;
    ld.global.u32 %r2, [%d1+128]; st.shared.u32 [%r1+128], %r2;";

#[test]
fn bulk_stores() {
    let body = format!(
        "setp.eq.u32 %leader, %tid, 0;
        {FILL}
        fence.proxy.async.shared::cta; bar.sync 0;
        @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;
        @%leader cp.async.bulk.commit_group;
        @%leader cp.async.bulk.global.shared::cta.bulk_group [%out+128], [%s+128], 128;
        @%leader cp.async.bulk.commit_group;
        @%leader cp.async.bulk.wait_group.read 1;
        bar.sync 0;
        st.shared.u32 [%r1], 0;
        @%leader cp.async.bulk.wait_group 0;"
    );
    let case = Case::new(&body).out(256);
    case.gives(&case.input[..256]);
    let (_, report) = case.launch(Schedule::Lazy).unwrap();
    let stores = report.counters.asynchronous.bulk_stores;
    assert_eq!((stores.operations, stores.bytes), (2, 256));
    assert_eq!(report.counters.global.bytes_written, 256);
}

#[test]
fn a_masked_bulk_store_keeps_bytes() {
    let body = format!(
        "setp.eq.u32 %leader, %tid, 0; mov.b16 %h1, 0x8421;
        mad.wide.u32 %d2, %tid, 4, %out; st.global.u32 [%d2], 0;
        {FILL}
        fence.proxy.async; bar.sync 0;
        @%leader cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%out], [%s], 64, %h1;
        @%leader cp.async.bulk.commit_group;
        @%leader cp.async.bulk.wait_group 0;"
    );
    let case = Case { sm100: true, ..Case::new(&body) };
    let expected: Vec<u8> = (0..128usize)
        .map(|at| if at < 64 && 0x8421 >> (at % 16) & 1 != 0 { case.input[at] } else { 0 })
        .collect();
    case.gives(&expected);
}

#[test]
fn bulk_reductions() {
    let run = |op: &str, old: &str| {
        Case::new(&format!(
            "setp.eq.u32 %leader, %tid, 0;
            mad.wide.u32 %d2, %tid, 4, %out; st.global.u32 [%d2], {old};
            {FILL}
            fence.proxy.async; bar.sync 0;
            @%leader cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%out], [%s], 128;
            @%leader cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%out], [%s], 128;
            @%leader cp.async.bulk.commit_group;
            @%leader cp.async.bulk.wait_group 0;"
        ))
        .u32s((0..64).map(|i| i * 3))
    };
    run("add.u32", "100").gives_words((0..32).map(|i| 100 + i * 6));
    run("max.s32", "40").gives_words((0..32).map(|i| 40.max(i * 3)));
    run("min.u32", "40").gives_words((0..32).map(|i| 40.min(i * 3)));
    run("xor.b32", "5").gives_words((0..32).map(|_| 5));
    run("or.b32", "64").gives_words((0..32).map(|i| 64 | (i * 3)));
    run("inc.u32", "1").gives_words((0..32).map(|i| {
        let inc = |old: u32| if old >= i * 3 { 0 } else { old + 1 };
        inc(inc(1))
    }));
}

#[test]
fn bulk_copies_between_ctas() {
    // Rank 0 sends its words to rank 1, which adds them to what it has there.
    let body = format!(
        "{}
        mad.lo.u32 %r1, %tid, 4, %s; mad.lo.u32 %r3, %rank, 1000, %tid; st.shared.u32 [%r1], %r3;
        st.shared.u32 [%r1+128], 7;
        fence.proxy.async; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        setp.eq.u32 %p1, %rank, 1; @%p1 bra RECEIVE;
        mapa.shared::cluster.u32 %r4, %s, 1; mapa.shared::cluster.u32 %r5, %b, 1;
        @%leader cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r4+256], [%s], 128, [%r5];
        @%leader cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r4+128], [%s], 128, [%r5];
        bra END;
        RECEIVE:
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 256;
        {}
        ld.shared.u32 %r6, [%r1+256]; mad.wide.u32 %d2, %tid, 4, %out; st.global.u32 [%d2], %r6;
        ld.shared.u32 %r6, [%r1+128]; st.global.u32 [%d2+128], %r6;
        END: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    let case = Case::new(&body).cluster(2).out(256);
    case.gives_words((0..32).chain((0..32).map(|i| i + 7)));
}

#[test]
fn multicast_bulk_loads() {
    // Each of four CTAs loads a quarter for all.
    let body = format!(
        "{}
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        mov.b16 %h1, 15; mad.lo.u32 %r1, %rank, 32, %s; mad.wide.u32 %d2, %rank, 32, %in;
        @%leader cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%d2], 32, [%b], %h1;
        {}
        mad.lo.u32 %r1, %tid, 4, %s; ld.shared.u32 %r3, [%r1];
        mad.lo.u32 %r4, %cta, 32, %tid; mad.wide.u32 %d3, %r4, 4, %out; st.global.u32 [%d3], %r3;
        barrier.cluster.arrive; barrier.cluster.wait;",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    let case = Case::new(&body).cluster(4).out(512);
    let expected: Vec<u8> = (0..4).flat_map(|_| case.input[..128].to_vec()).collect();
    case.gives(&expected);
    let (_, report) = case.launch(Schedule::Eager).unwrap();
    let count = report.counters.asynchronous;
    assert_eq!((count.bulk_loads.operations, count.bulk_loads.bytes), (4, 128));
    assert_eq!(count.multicast_bytes, 384);
    assert_eq!(report.counters.global.bytes_read, 128);
    // Each CTA gets 32 bytes from each of the four: one after the other, or all at a time.
    assert_eq!(count.most_bytes_in_flight, 32);
    let (_, report) = case.launch(Schedule::Lazy).unwrap();
    assert_eq!(report.counters.asynchronous.most_bytes_in_flight, 128);
}

#[test]
fn copies_take_missing_initialisation_along() {
    // Bytes that were never written stay so in the copy.
    let body = format!(
        "{}
        @%leader st.shared.u32 [%s], 1;
        fence.proxy.async; bar.sync 0;
        @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 16;
        @%leader cp.async.bulk.commit_group; @%leader cp.async.bulk.wait_group 0;
        @%leader ld.global.u32 %r1, [%out+4];",
        barriers(&[1])
    );
    let diagnostic = Case::new(&body).fails(Schedule::Eager);
    assert!(diagnostic.to_string().starts_with("uninitialised read: read of 4 bytes"));
}

#[test]
fn a_store_that_only_its_source_was_waited_for() {
    // The write is visible once the kernel is over.
    let body = format!(
        "setp.eq.u32 %leader, %tid, 0; {FILL}
        fence.proxy.async; bar.sync 0;
        @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;
        @%leader cp.async.bulk.commit_group;
        @%leader cp.async.bulk.wait_group.read 0;"
    );
    let case = Case::new(&body);
    case.gives(&case.input[..128]);
}

#[test]
fn runs_are_replayed_exactly() {
    let body = format!(
        "{}
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];
        {} {WORD_OUT}",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    let case = Case { grid: 3, ..Case::new(&body).block(96).out(384) };
    let case = Case { body: case.body.replace("128", "384"), ..case };
    for schedule in crate::async_support::schedules().take(10) {
        let first = case.launch(schedule).unwrap().1;
        assert_eq!(first, case.launch(schedule).unwrap().1, "{schedule}");
    }
}
