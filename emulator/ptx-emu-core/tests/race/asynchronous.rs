//! Data races around mbarriers, asynchronous copies and clusters: programs that
//! have one, and twins that have none.

use crate::async_support::{Case, barriers, wait};
use crate::races::race;
use ptx_emu_core::{DataRace, DiagnosticKind, LaunchError, MissingOrder, RaceAccess, Schedule};

/// The schedules that look for races.
fn schedules() -> impl Iterator<Item = Schedule> {
    std::iter::once(Schedule::Lazy).chain((0..16).map(Schedule::Random))
}

/// Every schedule that looks must report a race, and `eager` nothing.
#[track_caller]
fn races(case: &Case, parts: &[&str]) -> Vec<DataRace> {
    if let Err(error) = case.launch(Schedule::Eager) {
        panic!("{error}");
    }
    schedules().map(|schedule| race(case.fails(schedule), schedule, parts)).collect()
}

/// Warp 0 hands two words to warp 1 through mbarrier 0, and gets one back
/// through mbarrier 1.
fn handover(arrive: &str, full: &str, empty: &str) -> Case {
    let body = format!(
        "{} mad.lo.u32 %r1, %lane, 4, %s; setp.ne.u32 %p1, %wid, 0; @%p1 bra CONSUMER;
        st.shared.u32 [%r1], 1; {arrive} {empty} st.shared.u32 [%r1], 2; bra END;
        CONSUMER: {full} ld.shared.u32 %r2, [%r1];
        mbarrier.arrive.shared::cta.b64 _, [%b+8]; END:",
        barriers(&[32, 32]),
    );
    Case::new(&format!("mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], 0; {body}")).block(64)
}

const ARRIVE: &str = "mbarrier.arrive.shared::cta.b64 _, [%b];";

#[test]
fn mbarrier_phases_order() {
    let (full, empty) = (wait(0, "0", "FULL"), wait(1, "0", "EMPTY"));
    handover(ARRIVE, &full, &empty).passes();
    // A consumer that does not wait, a producer that does not.
    races(&handover(ARRIVE, "", &empty), &["data race", "no mbarrier phase"]);
    races(&handover(ARRIVE, &full, ""), &["data race", "no mbarrier phase"]);
}

#[test]
fn relaxed_arrivals_and_waits_need_fences() {
    let empty = wait(1, "0", "EMPTY");
    let full = wait(0, "0", "FULL");
    let arrive = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%b];";
    races(&handover(arrive, &full, &empty), &["data race"]);
    let fenced = format!("fence.acq_rel.cta; {arrive}");
    handover(&fenced, &full, &empty).passes();
    let relaxed = full.replace("try_wait.parity", "try_wait.parity.relaxed.cta");
    races(&handover(ARRIVE, &relaxed, &empty), &["data race"]);
    let fenced = format!("{relaxed} fence.acq_rel.cta;");
    handover(ARRIVE, &fenced, &empty).passes();
}

/// CUTLASS's scheduler warps arrive first, write, fence, and complete the phase's bytes themselves.
#[test]
fn bytes_that_a_thread_completes_order_what_it_did_before_its_fence() {
    let (full, empty) = (wait(0, "0", "FULL"), wait(1, "0", "EMPTY"));
    let complete = |fence: &str| {
        format!(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 4; st.shared.u32 [%r1], 3; {fence}
            mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 4;"
        )
    };
    races(&handover(&complete(""), &full, &empty), &["data race"]);
    for fence in ["fence.acq_rel.cta;", "fence.release.sync_restrict::shared::cta.cluster;"] {
        handover(&complete(fence), &full, &empty).passes();
    }
}

#[test]
fn mbarriers_must_be_initialised_before_others_use_them() {
    let body = |sync: &str| {
        format!(
            "setp.eq.u32 %leader, %tid, 0; setp.eq.u32 %p2, %tid, 32;
            @%leader mbarrier.init.shared::cta.b64 [%b], 1; {sync}
            @%p2 mbarrier.arrive.shared::cta.b64 _, [%b];"
        )
    };
    Case::new(&body("bar.sync 0;")).block(64).passes();
    // A delay makes the order of the run right, but nothing else does.
    let delay = "mov.u32 %r1, 0; setp.eq.u32 %p3, %wid, 0; @%p3 bra GO;
        L: add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 30000; @%p4 bra L; GO:";
    let case = Case::new(&body(delay)).block(64);
    for schedule in schedules() {
        let diagnostic = case.fails(schedule);
        match &diagnostic.kind {
            DiagnosticKind::Race(race) => {
                assert_eq!(race.kind, RaceAccess::StrongWrite, "{diagnostic}");
                assert_eq!(race.earlier.kind, RaceAccess::Write, "{diagnostic}");
            }
            // An arrival that does come first finds no object.
            other => assert!(matches!(other, DiagnosticKind::Async(_)), "{diagnostic}"),
        }
    }
}

/// Warp 0 loads 128 bytes, warp 1 reads them.
fn bulk(warp0: &str, warp1: &str) -> Case {
    Case::new(&format!(
        "{} mad.lo.u32 %r1, %lane, 4, %s; setp.ne.u32 %p1, %wid, 0; @%p1 bra OTHER;
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];
        {warp0} bra END;
        OTHER: {warp1}
        END:",
        barriers(&[1]),
    ))
    .block(64)
}

#[test]
fn copies_are_waited_for_by_every_reader() {
    let (first, second) = (wait(0, "0", "W0"), wait(0, "0", "W1"));
    let read = "ld.shared.u32 %r2, [%r1];";
    bulk(&first, &format!("{second} {read}")).passes();
    // Warp 1 learns from warp 0's wait through a barrier.
    bulk(&format!("{first} bar.sync 1;"), &format!("bar.sync 1; {read}")).passes();
    // Another barrier before the wait says nothing: the copy is in flight, or
    // it is over by chance.
    let case = bulk(&format!("bar.sync 1; {first}"), &format!("bar.sync 1; {read}"));
    let mut found = 0;
    for schedule in (0..64).map(Schedule::Random).chain([Schedule::Lazy]) {
        let diagnostic = case.fails(schedule);
        match &diagnostic.kind {
            DiagnosticKind::Race(race) => {
                assert_eq!(race.earlier.kind, RaceAccess::AsyncWrite, "{diagnostic}");
                // If warp 0 has waited by then, only the way from there is missing.
                let released = MissingOrder::Release { cta: [0; 3], warp: 0 };
                let missing = [MissingOrder::Completion, released];
                assert!(missing.contains(&race.missing), "{diagnostic}");
                let text = diagnostic.to_string();
                assert!(text.contains("cp.async.bulk"), "{text}");
                found += 1;
            }
            other => assert!(
                matches!(
                    other,
                    DiagnosticKind::Async(_) | DiagnosticKind::UninitialisedRead { .. }
                ),
                "{diagnostic}"
            ),
        }
    }
    assert!(found > 4, "{found} of 65 schedules let the copy end before the read");
}

#[test]
fn copies_into_buffers_that_others_still_read() {
    // Warp 1 reads what an earlier copy left, warp 0 loads into it again.
    let body = |sync: &str| {
        format!(
            "{} mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid;
            fence.proxy.async.shared::cta; bar.sync 0;
            mad.lo.u32 %r1, %lane, 4, %s; setp.ne.u32 %p1, %wid, 0; @%p1 bra OTHER;
            {sync}
            @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
            @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];
            {} bra END;
            OTHER: ld.shared.u32 %r2, [%r1]; {sync}
            END:",
            barriers(&[1]),
            wait(0, "0", "W0")
        )
    };
    Case::new(&body("bar.sync 1;")).block(64).passes();
    let case = Case::new(&body("")).block(64);
    let mut found = 0;
    for schedule in schedules() {
        match case.launch(schedule) {
            Err(LaunchError::Diagnostic(diagnostic)) => match diagnostic.kind {
                DiagnosticKind::Race(_) => found += 1,
                DiagnosticKind::Async(_) => {}
                _ => panic!("{diagnostic}"),
            },
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("no diagnostic under {schedule}"),
        }
    }
    assert!(found > 4, "{found} of 17 schedules");
}

#[test]
fn groups_of_copies_order_for_their_threads() {
    // Each thread copies a word by cp.async; neighbours read it.
    let body = |wait: &str, sync: &str| {
        format!(
            "mad.lo.u32 %r1, %tid, 4, %s; mul.wide.u32 %d1, %tid, 4; add.u64 %d1, %in, %d1;
            cp.async.ca.shared.global [%r1], [%d1], 4; cp.async.commit_group; {wait}
            {sync} xor.b32 %r2, %r1, 128; ld.shared.u32 %r3, [%r2];
            cp.async.wait_all;"
        )
    };
    let group = "cp.async.wait_group 0;";
    let case = |wait, sync| Case::new(&body(wait, sync)).block(64);
    case(group, "bar.sync 0;").passes();
    // The order of the two matters.
    for schedule in schedules() {
        let diagnostic = case("bar.sync 0;", group).fails(schedule);
        assert!(
            matches!(
                diagnostic.kind,
                DiagnosticKind::Race(_)
                    | DiagnosticKind::Async(_)
                    | DiagnosticKind::UninitialisedRead { .. }
            ),
            "{diagnostic}"
        );
    }
}

/// Two CTAs of a cluster; rank 0 writes a word of rank 1, which reads it.
fn remote(sync: &str) -> Case {
    Case::new(&format!(
        "mad.lo.u32 %r1, %lane, 4, %s; st.shared.u32 [%r1], 0;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        setp.eq.u32 %p1, %rank, 0; setp.eq.u32 %p2, %rank, 1;
        mapa.shared::cluster.u32 %r2, %r1, 1;
        @%p1 st.shared::cluster.u32 [%r2], 7;
        {sync}
        @%p2 ld.shared.u32 %r3, [%r1];
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    ))
    .cluster(2)
}

#[test]
fn cluster_barriers_order() {
    remote("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;").passes();
    for race in races(&remote(""), &["data race", "no barrier.cluster"]) {
        assert_eq!(race.missing, MissingOrder::ClusterBarrier);
        assert_eq!(race.address >> 24, 1, "in the window of rank 1");
    }
    races(&remote("bar.sync 0;"), &["data race"]);
    let relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;";
    races(&remote(relaxed), &["data race"]);
    remote(&format!("fence.acq_rel.cluster; {relaxed}")).passes();
}

#[test]
fn exits_count_as_arrivals_at_the_cluster_barrier() {
    let body = |sync: &str| {
        format!(
            "mad.lo.u32 %r1, %lane, 4, %s; st.shared.u32 [%r1], 0;
            barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
            mapa.shared::cluster.u32 %r2, %r1, 0;
            setp.eq.u32 %p1, %rank, 0; @%p1 bra ZERO;
            st.shared::cluster.u32 [%r2], 7; bra END;
            ZERO: {sync} ld.shared.u32 %r3, [%r1];
            END:"
        )
    };
    Case::new(&body("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"))
        .cluster(2)
        .passes();
    let wrong = schedules().filter(|&s| Case::new(&body("")).cluster(2).launch(s).is_err());
    assert_eq!(wrong.count(), 17);
}

#[test]
fn sources_of_copies_are_overwritten_behind_a_wait_that_is_known() {
    // Warp 0 stores a buffer and waits until it was read; warp 1, which comes much
    // later, writes there again.
    let body = |sync: &str| {
        format!(
            "{} mad.lo.u32 %r1, %lane, 4, %s; setp.ne.u32 %p1, %wid, 0; @%p1 bra OTHER;
            st.shared.u32 [%r1], %tid; fence.proxy.async.shared::cta; bar.warp.sync -1;
            @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;
            @%leader cp.async.bulk.commit_group; @%leader cp.async.bulk.wait_group.read 0;
            bar.warp.sync -1; bar.sync 2; {sync} @%leader cp.async.bulk.wait_group 0; bra END;
            OTHER: bar.sync 2; mov.u32 %r2, 0;
            L: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 5000; @%p2 bra L;
            {sync} st.shared.u32 [%r1], 7;
            END:",
            barriers(&[1])
        )
    };
    Case::new(&body("bar.sync 1;")).block(64).passes();
    let early = body("").replace("bar.warp.sync -1; bar.sync 2;", "bar.warp.sync -1;");
    let early = early.replace("128;\n", "128; bar.sync 2;\n");
    let mut races = 0;
    for schedule in schedules() {
        let diagnostic = Case::new(&early).block(64).fails(schedule);
        if let DiagnosticKind::Race(race) = &diagnostic.kind {
            assert_eq!(race.earlier.kind, RaceAccess::AsyncRead, "{diagnostic}");
            races += 1;
        }
    }
    assert!(races > 4, "{races} of 17 schedules let the copy read in time");
}
