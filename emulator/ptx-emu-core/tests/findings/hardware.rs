//! Orders and values that hardware gives and PTX does not promise: each is allowed by
//! `Model::Hardware` and denied by `Model::Ptx`, and has a twin that both deny.

use super::relied_on::{by, finding, store};
use crate::async_support::{Case, barriers, schedules, wait};
use ptx_emu_core::{Kind, Level, Model, Schedule};

/// Both models find this.
#[track_caller]
fn both_find(case: &Case, kind: Kind) {
    for model in [Model::Hardware, Model::Ptx] {
        assert_eq!(finding(case, model), Some(kind), "{model}");
    }
}

#[test]
fn a_relaxed_arrival_comes_behind_the_writes_of_its_thread() {
    let init = "@%leader mbarrier.init.shared::cta.b64 [%b], 1;";
    let body = |before: &str, between: &str| {
        format!(
            "setp.eq.u32 %leader, %tid, 0; @%leader mbarrier.init.shared::cta.b64 [%b+8], 1;
            fence.mbarrier_init.release.cluster; {before}
            barrier.cluster.arrive.relaxed.aligned; {between} barrier.cluster.wait.acquire.aligned;
            xor.b32 %r1, %rank, 1; mapa.shared::cluster.u32 %r2, %b, %r1;
            @%leader mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
            {} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
            wait(0, "0", "ARRIVED").replace("try_wait.parity", "try_wait.parity.acquire.cluster"),
        )
    };
    let case = Case::new(&body(init, "")).cluster(2);
    by(&case, Model::Hardware).passes();
    assert_eq!(finding(&case, Model::Ptx), Some(Kind::DataRace));
    // Accesses behind the arrival may be late.
    let late = Case::new(&body("", init)).cluster(2);
    for model in [Model::Hardware, Model::Ptx] {
        let found = finding(&late, model);
        assert!(matches!(found, Some(Kind::DataRace | Kind::MbarrierNotInitialised)), "{found:?}");
    }
}

#[test]
fn warps_of_a_warpgroup_may_have_different_counts_of_registers() {
    let body = |other: &str| {
        format!(
            "setp.eq.u32 %p1, %wid, 3; @%p1 bra OTHER; setmaxnreg.dec.sync.aligned.u32 104; bra END;
            OTHER: {other} END: {}",
            store("%tid")
        )
    };
    let case = |other: &str| Case {
        directives: ".maxntid 128 .minnctapersm 1".to_owned(),
        ..Case::new(&body(other)).block(128).out(512)
    };
    let uneven = case("setmaxnreg.dec.sync.aligned.u32 40;");
    by(&uneven, Model::Hardware).gives_words(0..128);
    assert_eq!(finding(&uneven, Model::Ptx), Some(Kind::UnevenRegisters));
    both_find(&case(""), Kind::MaxRegisters);
}

#[test]
fn addresses_in_the_cta_are_the_low_half_of_generic_ones() {
    let body = |to_generic: &str| {
        format!(
            "setp.eq.u32 %leader, %tid, 0; cvt.u64.u32 %d1, %b; cvt.u64.u32 %d2, %s; {to_generic}
            @%leader mbarrier.init.shared::cta.b64 [%d1], 32; bar.sync 0;
            mad.wide.u32 %d3, %tid, 4, %d2; st.shared.u32 [%d3], %tid;
            mbarrier.arrive.shared::cta.b64 _, [%d1];
            W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%d1], 0; @!%p1 bra W;
            xor.b32 %r1, %tid, 1; mad.wide.u32 %d3, %r1, 4, %d2; ld.shared.u32 %r2, [%d3]; {}",
            store("%r2")
        )
    };
    let generic = "cvta.shared.u64 %d1, %d1; cvta.shared.u64 %d2, %d2;";
    let case = Case::new(&body(generic));
    let swapped = (0..32).map(|tid| tid ^ 1);
    Case::new(&body("")).gives_words(swapped.clone());
    by(&case, Model::Hardware).gives_words(swapped);
    assert_eq!(finding(&case, Model::Ptx), Some(Kind::GenericSharedAddress));
    let (_, plain) = Case::new(&body("")).launch(ptx_emu_core::Schedule::Eager).unwrap();
    let (_, low) = by(&case, Model::Hardware).launch(ptx_emu_core::Schedule::Eager).unwrap();
    assert_eq!(low.counters.shared, plain.counters.shared);
    assert_eq!(low.counters.shared_wavefronts, plain.counters.shared_wavefronts);
    // Addresses of other memory are not.
    both_find(&Case::new(&body("mov.u64 %d2, %out;")), Kind::OutOfBounds);
    both_find(&Case::new(&body("mov.u64 %d1, %out;")), Kind::OutOfBounds);
}

/// Every lane loads a word, of which only the lower half of the warp wrote its own.
fn half_written(then: &str) -> Case {
    Case::new(&format!(
        "setp.lt.u32 %p1, %lane, 16; mad.lo.u32 %r1, %lane, 4, %s; add.u32 %r9, %lane, 100;
        @%p1 st.shared.u32 [%r1], %r9; ld.shared.u32 %r2, [%r1]; {then}"
    ))
}

#[test]
fn what_was_never_written_may_be_loaded_but_not_used() {
    // Through registers of both widths, a selection, a shuffle and shared memory.
    for unused in [
        "",
        "add.u32 %r2, %r2, 0;",
        "cvt.u64.u32 %d1, %r2; shl.b64 %d1, %d1, 1; shr.u64 %d1, %d1, 1; cvt.u32.u64 %r2, %d1;",
        "shfl.sync.idx.b32 %r2, %r2, %lane, 31, -1;",
        "st.shared.u32 [%r1+1024], %r2; mov.u32 %r2, 0; ld.shared.u32 %r2, [%r1+1024];",
        "cvt.u64.u32 %d2, %r1; cvta.shared.u64 %d2, %d2; st.u32 [%d2], %r2; ld.u32 %r2, [%d2];",
        ".local .b32 x[2]; st.local.u32 [x], %r2;",
    ] {
        let then = format!("{unused} selp.b32 %r4, %r2, 7, %p1; {}", store("%r4"));
        let expected = (0..32).map(|lane| if lane < 16 { 100 + lane } else { 7 });
        by(&half_written(&then), Model::Hardware).gives_words(expected);
        assert_eq!(finding(&half_written(&then), Model::Ptx), Some(Kind::UninitialisedRead));
    }
    for used in [
        store("%r2"),
        format!("add.u32 %r3, %r2, %r2; {}", store("%r3")),
        "cvt.u64.u32 %d1, %r2; add.u64 %d1, %d1, %out; st.global.u32 [%d1], 1;".to_owned(),
        format!("setp.eq.u32 %p2, %r2, 3; @%p2 bra END; {} END:", store("%lane")),
        "setp.eq.u32 %p2, %r2, 3; @%p2 st.global.u32 [%out], 1;".to_owned(),
        format!("shfl.sync.bfly.b32 %r2, %r2, 16, 31, -1; {}", store("%r2")),
        format!(
            "st.shared.u32 [%r1+1024], %r2; mov.u32 %r2, 0; ld.shared.u32 %r2, [%r1+1024]; {}",
            store("%r2")
        ),
        "red.global.add.u32 [%out], %r2;".to_owned(),
        "@!%p1 ld.shared.u32 %r3, [%r2];".to_owned(),
    ] {
        both_find(&half_written(&used), Kind::UninitialisedRead);
    }
    let text = by(&half_written(&store("%r2")), Model::Hardware)
        .fails(ptx_emu_core::Schedule::Lazy)
        .to_string();
    assert!(text.contains("was never written and on which line "), "{text}");
    assert!(text.contains("ld.shared.u32 %r2"), "{text}");
}

/// Compilers load a variable before they know whether a function has set it.
#[test]
fn local_memory_that_was_never_written_may_be_loaded_but_not_used() {
    let case = |then: &str| {
        let body = format!(
            ".local .align 8 .b8 x[16]; setp.lt.u32 %p1, %lane, 16; @%p1 st.local.u32 [x+4], %lane;
            ld.local.u32 %r2, [x+4]; {then}"
        );
        Case::new(&body).out(128)
    };
    let generic = "mov.u64 %d1, x; cvta.local.u64 %d1, %d1; ld.u32 %r2, [%d1+4];";
    for more in ["", generic] {
        let unused = case(&format!("{more} selp.b32 %r4, %r2, 7, %p1; {}", store("%r4")));
        let expected = (0..32).map(|lane| if lane < 16 { lane } else { 7 });
        by(&unused, Model::Hardware).gives_words(expected);
        assert_eq!(finding(&unused, Model::Ptx), Some(Kind::UninitialisedRead));
        both_find(&case(&format!("{more} {}", store("%r2"))), Kind::UninitialisedRead);
    }
    let text = by(&case(&store("%r2")), Model::Hardware).fails(Schedule::Lazy).to_string();
    assert!(text.contains("at local address 0x4") && text.contains("on which line "), "{text}");
}

/// Structures are copied word by word, with their padding; the end of an array of smaller elements is none.
#[test]
fn padding_of_structures_in_global_memory_is_a_warning() {
    let case = |stored: &str, load: &str| {
        let body = format!(
            "mad.wide.u32 %d1, %tid, 16, %out; {stored} {load}
            cvt.u32.u64 %r1, %d2; and.b32 %r1, %r1, 255; mad.wide.u32 %d4, %tid, 4, %out;
            st.global.u32 [%d4+1024], %r1;"
        );
        Case::new(&body).out(2048)
    };
    let (byte, half) = ("st.global.u8 [%d1], 7;", "st.global.u32 [%d1], 7;");
    let both = "st.global.u8 [%d1], 7; st.global.u32 [%d1+12], 7;";
    let (one, two) = ("ld.global.u64 %d2, [%d1];", "ld.global.v2.u64 {%d2, %d3}, [%d1];");
    for (stored, load) in [(byte, one), (half, one), (both, two)] {
        let (_, report) = by(&case(stored, load), Model::Hardware).launch(Schedule::Lazy).unwrap();
        let found: Vec<_> =
            report.findings.iter().map(|found| (found.kind(), found.level)).collect();
        assert_eq!(found, [(Kind::UninitialisedPadding, Level::Warn)], "{stored} {load}");
        assert_eq!(finding(&case(stored, load), Model::Ptx), Some(Kind::UninitialisedPadding));
    }
    for (stored, load) in [
        ("", one),
        (byte, two),
        (half, "ld.global.v2.u32 {%r2, %r3}, [%d1]; cvt.u64.u32 %d2, %r2;"),
        (byte, "ld.global.u32 %r2, [%d1]; cvt.u64.u32 %d2, %r2;"),
    ] {
        let load = format!("setp.eq.u32 %leader, %tid, 0; {load}");
        let stored = format!("setp.eq.u32 %leader, %tid, 0; {stored}");
        both_find(&case(&stored, &load), Kind::UninitialisedRead);
    }
    // Padding in one lane, and nothing written in the others.
    let leader = "setp.eq.u32 %leader, %tid, 0; @%leader st.global.u8 [%d1], 7;";
    assert_eq!(finding(&case(leader, one), Model::Hardware), Some(Kind::UninitialisedRead));
}

/// CUB's merge sort compares what lies behind the end of its keys, and a second predicate decides.
#[test]
fn a_predicate_that_decides_makes_up_for_one_of_what_was_never_written() {
    let case = |combine: &str| {
        half_written(&format!(
            "not.pred %p3, %p1; {combine} selp.b32 %r4, 1, 0, %p2; @%p2 bra STORE; STORE: {}",
            store("%r4")
        ))
    };
    let compare = "setp.ge.u32 %p2, %r2, 108;";
    let upper = |lane: u32| u32::from((8..16).contains(&lane));
    for (combine, others) in [
        (format!("{compare} and.pred %p2, %p2, %p1;"), 0),
        (format!("{compare} and.pred %p2, %p1, %p2;"), 0),
        (format!("{compare} or.pred %p2, %p2, %p3;"), 1),
        ("setp.ge.and.u32 %p2, %r2, 108, %p1;".to_owned(), 0),
        ("setp.ge.and.u32 %p2, %r2, 108, !%p3;".to_owned(), 0),
        ("setp.ge.or.u32 %p2, %r2, 108, %p3;".to_owned(), 1),
        ("setp.ge.or.u32 %p2, %r2, 108, !%p1;".to_owned(), 1),
    ] {
        let expected = (0..32).map(|lane| if lane < 16 { upper(lane) } else { others });
        by(&case(&combine), Model::Hardware).gives_words(expected);
        assert_eq!(finding(&case(&combine), Model::Ptx), Some(Kind::UninitialisedRead));
    }
    for combine in [
        format!("{compare} and.pred %p2, %p2, %p3;"),
        format!("{compare} or.pred %p2, %p2, %p1;"),
        format!("{compare} xor.pred %p2, %p2, %p1;"),
        format!("{compare} and.pred %p2, %p2, %p2;"),
        "setp.ge.and.u32 %p2, %r2, 108, !%p1;".to_owned(),
        "setp.ge.or.u32 %p2, %r2, 108, !%p3;".to_owned(),
        "setp.ge.xor.u32 %p2, %r2, 108, %p1;".to_owned(),
    ] {
        both_find(&case(&combine), Kind::UninitialisedRead);
    }
}

#[test]
fn rows_of_a_product_that_nobody_wrote_may_be_left() {
    // Eight of sixteen rows of A were written, and all of B: rows of the product depend on their own.
    let body = |written: &str, stored: &str| {
        format!(
            "mad.lo.u32 %r1, %lane, 16, %s; setp.lt.u32 %p1, %lane, 8;
            {written} st.shared.v4.u32 [%r1], {{0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00}};
            {written} st.shared.v4.u32 [%r1+512], {{0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00}};
            bar.warp.sync -1;
            ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r2, %r3}}, [%r1];
            ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r4, %r5}}, [%r1+512];
            mov.u32 %r10, 0x3c003c00; mov.f32 %f0, 0f00000000;
            mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f1, %f2, %f3, %f4}},
                {{%r2, %r3, %r4, %r5}}, {{%r10, %r10}}, {{%f0, %f0, %f0, %f0}};
            mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f1, %f2, %f3, %f4}},
                {{%r2, %r3, %r4, %r5}}, {{%r10, %r10}}, {{%f1, %f2, %f3, %f4}};
            mov.b32 %r6, %f1; mov.b32 %r7, %f3; {}",
            store(stored)
        )
    };
    let case = |written: &str, stored: &str| Case::new(&body(written, stored));
    // Rows below 8 are in the first register, rows from 8 on in the third.
    by(&case("@%p1", "%r6"), Model::Hardware).gives_words([32f32.to_bits(); 32]);
    assert_eq!(finding(&case("@%p1", "%r6"), Model::Ptx), Some(Kind::UninitialisedRead));
    both_find(&case("@%p1", "%r7"), Kind::UninitialisedRead);
    case("", "%r7").gives_words([32f32.to_bits(); 32]);
}

#[test]
fn copies_of_threads_may_outlast_the_cta() {
    let case = Case::new(
        "mad.lo.u32 %r1, %tid, 16, %s; mad.wide.u32 %d1, %tid, 16, %in;
        cp.async.cg.shared.global [%r1], [%d1], 16; cp.async.commit_group;",
    );
    for schedule in schedules() {
        let (_, report) = by(&case, Model::Hardware).launch(schedule).unwrap();
        let warned = |level| report.findings.iter().all(|found| found.level == level);
        assert!(warned(Level::Warn), "{:?}", report.findings);
    }
    let (_, report) = by(&case, Model::Hardware).launch(ptx_emu_core::Schedule::Lazy).unwrap();
    let kinds: Vec<Kind> = report.findings.iter().map(|found| found.kind()).collect();
    assert_eq!(kinds, [Kind::ExitCopyInFlight]);
    assert_eq!(finding(&case, Model::Ptx), Some(Kind::ExitCopyInFlight));
    let bulk = format!(
        "{} @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];",
        barriers(&[1])
    );
    both_find(&Case::new(&bulk), Kind::ExitInFlight);
}

/// Warp 1 reads what all lanes of warp 0 have stored, once one of them has arrived.
fn elected(stores: &str) -> Case {
    let text = format!(
        "{} mad.lo.u32 %r1, %lane, 4, %s; setp.eq.u32 %p1, %wid, 1; @%p1 bra OTHER;
        {stores} elect.sync %r5|%p2, -1; @!%p2 bra END;
        mbarrier.arrive.shared::cta.b64 _, [%b]; bra END;
        OTHER: {} ld.shared.u32 %r2, [%r1]; mad.wide.u32 %d1, %lane, 4, %out;
        st.global.u32 [%d1], %r2; END:",
        barriers(&[1]),
        wait(0, "0", "TOLD"),
    );
    Case::new(&text).block(64)
}

#[test]
fn an_elected_lane_arrives_for_its_warp() {
    let case = elected("st.shared.u32 [%r1], %tid;");
    by(&case, Model::Hardware).gives_words(0..32);
    assert_eq!(finding(&case, Model::Ptx), Some(Kind::DataRace));
    // The instruction that elects brings lanes together that a branch has parted.
    let parted = "setp.lt.u32 %p3, %lane, 9; @%p3 bra LOW; st.shared.u32 [%r1], %tid; bra BOTH;
        LOW: st.shared.u32 [%r1], %tid; BOTH:";
    by(&elected(parted), Model::Hardware).gives_words(0..32);
    // A lane that arrives for itself before the others have stored speaks for none of them.
    let early = elected(
        "setp.eq.u32 %p3, %lane, 4; @%p3 bra EARLY; st.shared.u32 [%r1], %tid; bra END;
        EARLY: st.shared.u32 [%r1], %tid; mbarrier.arrive.shared::cta.b64 _, [%b]; bra END;",
    );
    both_find(&early, Kind::DataRace);
}

/// Lanes of warp 0 add a word of shared memory to another one, all to the same.
fn all_lanes_add(sync: &str) -> Case {
    let text = format!(
        "setp.eq.u32 %p1, %lane, 0; shl.b32 %r1, %wid, 2; add.u32 %r1, %r1, %s;
        @%p1 st.shared.u32 [%r1], 1; bar.sync 0; setp.ne.u32 %p2, %wid, 0; @%p2 bra DONE; {sync}
        ld.shared.u32 %r2, [%s]; ld.shared.u32 %r3, [%s+4]; add.u32 %r2, %r2, %r3;
        st.shared.u32 [%s], %r2; DONE: bar.sync 0; setp.ne.u32 %p3, %tid, 0; @%p3 bra END;
        ld.shared.u32 %r4, [%s]; st.global.u32 [%out], %r4; END:"
    );
    Case { out_bytes: 4, ..Case::new(&text).block(64) }
}

#[test]
fn lanes_that_no_branch_has_parted_go_together() {
    by(&all_lanes_add(""), Model::Hardware).gives_words([2]);
    // By PTX, and behind a branch that parts them, the sum may be any.
    assert_eq!(finding(&all_lanes_add(""), Model::Ptx), Some(Kind::DataRace));
    let parted = "setp.lt.u32 %p4, %lane, 5; @%p4 bra LOW; mov.u32 %r9, 1; LOW:";
    both_find(&all_lanes_add(parted), Kind::DataRace);
    let together = format!("{parted} bar.warp.sync -1;");
    by(&all_lanes_add(&together), Model::Hardware).gives_words([2]);
    // Every schedule that gives another sum says so.
    for schedule in schedules().skip(1) {
        for case in [all_lanes_add(parted), by(&all_lanes_add(parted), Model::Hardware)] {
            assert!(case.launch(schedule).is_err(), "{schedule}");
        }
    }
}

#[test]
fn lanes_of_one_store_leave_any_of_their_values() {
    let case = |value: &str| {
        let body = format!(
            "st.shared.u32 [%s], {value}; bar.sync 0; ld.shared.u32 %r2, [%s]; {}",
            store("%r2")
        );
        Case::new(&body)
    };
    both_find(&case("%lane"), Kind::DataRace);
    case("7").gives_words([7; 32]);
}

#[test]
fn some_lanes_that_meet_know_of_each_other_alone() {
    let body = |members: &str, from: &str| {
        format!(
            "setp.ge.u32 %p1, %lane, 8; mad.lo.u32 %r1, %lane, 4, %s; st.shared.u32 [%r1], %lane;
            @%p1 bra OTHERS; bar.warp.sync 0xff; OTHERS: xor.b32 %r2, %r1, {from};
            {members} ld.shared.u32 %r3, [%r2];"
        )
    };
    Case::new(&body("@!%p1", "4")).passes();
    assert_eq!(finding(&Case::new(&body("@!%p1", "32")), Model::Ptx), Some(Kind::DataRace));
    assert_eq!(finding(&Case::new(&body("@%p1", "4")), Model::Ptx), Some(Kind::DataRace));
}
