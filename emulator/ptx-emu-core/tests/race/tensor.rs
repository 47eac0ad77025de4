//! Data races in tensor memory: warps and `tcgen05` operations that nothing orders,
//! and twins that are ordered.

use crate::async_support::{Case, barriers, wait};
use ptx_emu_core::{DataRace, DiagnosticKind, RaceAccess, Schedule};

fn schedules() -> impl Iterator<Item = Schedule> {
    std::iter::once(Schedule::Lazy).chain((0..16).map(Schedule::Random))
}

const FENCED: &str =
    "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;";

/// A body of eight warps with 64 columns of tensor memory at `%r50`; warps 0 to 3
/// and 4 to 7 may access the same lanes, those of `%r51`.
fn case(body: &str) -> Case {
    let text = format!(
        "{} setp.ne.u32 %p10, %wid, 0; @%p10 bra ALLOCATED;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%b+56], 64;
        tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
        ALLOCATED: {FENCED}
        ld.shared.u32 %r50, [%b+56]; and.b32 %r51, %wid, 3; shl.b32 %r51, %r51, 21;
        add.u32 %r51, %r51, %r50; setp.lt.u32 %p11, %wid, 4;
        {body}
        {FENCED}
        @%p10 bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r50, 64; FREED:",
        barriers(&[1, 128]),
    );
    Case { sm100: true, ..Case::new(&text).block(256) }
}

const STORE: &str = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r51+4], {%tid};";
const STORED: &str = "tcgen05.wait::st.sync.aligned;";
const LOAD: &str = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r51+4];";
const LOADED: &str = "tcgen05.wait::ld.sync.aligned;";

/// Every schedule that looks must report something; the races.
#[track_caller]
fn races(case: &Case) -> Vec<DataRace> {
    let mut found = Vec::new();
    for schedule in schedules() {
        let diagnostic = case.fails(schedule);
        match diagnostic.kind {
            DiagnosticKind::Race(race) => {
                assert!(race.tensor && race.to_string().contains("tensor memory address"));
                found.push(*race);
            }
            // The operations meet in flight, or a phase is missed.
            DiagnosticKind::Async(_) | DiagnosticKind::Deadlock { .. } => {}
            _ => panic!("{schedule}: {diagnostic}"),
        }
    }
    found
}

#[test]
fn a_load_by_another_warp_needs_a_barrier() {
    // Written by warps 0 to 3, read by warps 4 to 7.
    let body = |sync: &str| {
        format!(
            "@!%p11 bra READ; {STORE} {STORED} READ: {sync} @%p11 bra DONE; {LOAD} {LOADED} DONE:"
        )
    };
    case(&body(FENCED)).passes();
    // A first store makes the words known, so that a read that comes too early is
    // no uninitialised one.
    let known =
        |sync: &str| format!("@!%p11 bra KNOWN; {STORE} {STORED} KNOWN: {FENCED} {}", body(sync));
    case(&known(FENCED)).passes();
    // The readers come late, and with their fence: only the order is missing.
    let late = "mov.u32 %r1, 0; @%p11 bra GO;
        L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra L;
        GO: tcgen05.fence::after_thread_sync;";
    let found = races(&case(&known(late)));
    assert!(found.len() > 8, "{}", found.len());
    for race in &found {
        assert_eq!(race.address & 0xffff, 4, "the column");
        let kinds = [race.kind, race.earlier.kind];
        assert!(kinds.contains(&RaceAccess::AsyncRead), "{kinds:?}");
        assert!(kinds.contains(&RaceAccess::AsyncWrite), "{kinds:?}");
    }
}

#[test]
fn a_store_over_what_another_warp_reads_needs_its_wait() {
    // Warps 4 to 7 load and then meet warps 0 to 3, which store: the barrier is
    // only worth something behind wait::ld.
    let body = |before: &str, after: &str| {
        format!(
            "@!%p11 bra KNOWN; {STORE} {STORED} KNOWN: {FENCED}
            @%p11 bra MEET; {LOAD} {before} MEET: {FENCED} @%p11 bra WRITE; {after} bra DONE;
            WRITE: {STORE} {STORED} DONE:"
        )
    };
    case(&body(LOADED, "")).passes();
    let found = races(&case(&body("", LOADED)));
    assert!(found.len() < 17, "some schedules meet the load in flight");
}

/// A product into columns 32 on by thread 0, which warps 0 to 3 load.
fn product(before: &str, after_commit: &str, again: &str) -> Case {
    let mma = "@%leader tcgen05.mma.cta_group::1.kind::f16 [%r9], %d1, %d1, %r8, %p2;
        @%leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b];";
    let load = format!(
        "@!%p11 bra LOADED; {after_commit}
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r12}}, [%r51+32]; {LOADED}
        LOADED:"
    );
    case(&format!(
        "mov.u32 %r1, 0;
        FILL: mad.lo.u32 %r2, %r1, 1024, %s; mad.lo.u32 %r2, %tid, 4, %r2; st.shared.u32 [%r2], 0x3c003c00;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4; @%p1 bra FILL;
        fence.proxy.async; {before} {FENCED}
        shr.u32 %r7, %s, 4; and.b32 %r7, %r7, 0x3fff; cvt.u64.u32 %d1, %r7;
        or.b64 %d1, %d1, 0x0000400800800000; add.u32 %r9, %r50, 32;
        mov.u32 %r8, {:#x}; setp.ne.u32 %p2, %r8, %r8;
        {mma} {load} {again}",
        1 << 4 | (16 >> 3) << 17 | (128 >> 4) << 24,
    ))
}

#[test]
fn products_are_waited_for_and_not_overwritten_early() {
    let committed = format!("{} tcgen05.fence::after_thread_sync;", wait(0, "0", "W0"));
    // Loads behind the commit's mbarrier; a second product behind a barrier that
    // the readers arrive at behind wait::ld.
    let second = |sync: &str| {
        format!(
            "{sync}
            @%leader tcgen05.mma.cta_group::1.kind::f16 [%r9], %d1, %d1, %r8, %p2;
            @%leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b];
            {}",
            wait(0, "1", "W1")
        )
    };
    product("", &committed, "").passes();
    let arrive =
        "@%p11 tcgen05.fence::before_thread_sync; @%p11 mbarrier.arrive.shared::cta.b64 _, [%b+8];";
    let empty = format!("{arrive} {} tcgen05.fence::after_thread_sync;", wait(1, "0", "E0"));
    product("", &committed, &second(&empty)).passes();
    // A relaxed arrival is enough between fences; lanes that did not meet are not.
    let relaxed = empty.replace("mbarrier.arrive", "mbarrier.arrive.relaxed.cta");
    product("", &committed, &second(&relaxed)).passes();
    let elected = |meet: &str| {
        format!(
            "@%p11 tcgen05.fence::before_thread_sync; {meet}
            setp.eq.u32 %p12, %lane, 0; and.pred %p12, %p12, %p11;
            @%p12 mbarrier.arrive.shared::cta.b64 _, [%b+8], 32;
            {} tcgen05.fence::after_thread_sync;",
            wait(1, "0", "E1")
        )
    };
    product("", &committed, &second(&elected("bar.warp.sync -1;"))).passes();
    let found = product("", &committed, &second(&elected(""))).fails(Schedule::Lazy).to_string();
    assert!(found.contains("missing tcgen05.fence::before_thread_sync"), "{found}");
    let found = races(&product("", &committed, &second("")));
    assert!(!found.is_empty());
}

#[test]
fn columns_that_are_freed_are_no_longer_used() {
    // The last barrier before dealloc is missing for warps 4 to 7.
    let body = |sync: &str| {
        format!(
            "{} setp.ne.u32 %p10, %wid, 0; @%p10 bra ALLOCATED;
            tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%b+56], 64;
            ALLOCATED: {FENCED}
            ld.shared.u32 %r50, [%b+56]; and.b32 %r51, %wid, 3; shl.b32 %r51, %r51, 21;
            setp.ge.u32 %p11, %wid, 4; @!%p11 bra USED; {STORE} {STORED} USED: {sync}
            @%p10 bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r50, 64;
            tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%b+56], 64;
            tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
            ld.shared.u32 %r50, [%b+56]; {STORE} {STORED}
            tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r50, 64; FREED:",
            barriers(&[1, 128]),
        )
    };
    let case = |sync: &str| Case { sm100: true, ..Case::new(&body(sync)).block(256) };
    case(FENCED).passes();
    let wrong = schedules().filter(|&schedule| case("").launch(schedule).is_err()).count();
    assert_eq!(wrong, 17, "every schedule finds something");
}
