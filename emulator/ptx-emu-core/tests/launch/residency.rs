//! CTAs that wait for each other through global memory: all that the machine
//! holds are live together, under every schedule.

use crate::support::{Run, SCHEDULES, check};
use ptx_emu_core::{DiagnosticKind, GlobalMemory, LaunchError, Schedule};

/// Zeroed flags in `%in`, zeroed output.
fn run(grid: u32, block: u32, body: &str) -> Run {
    Run {
        grid,
        block,
        input: vec![0; 8192],
        out_bytes: u64::from(4 * grid * block),
        zeroed: true,
        limit: Some(500_000_000),
        ..Run::body(body)
    }
}

fn schedules() -> impl Iterator<Item = Schedule> {
    SCHEDULES.into_iter().chain((4..12).map(Schedule::Random))
}

#[track_caller]
fn gives(run: &Run, expected: &[u32]) {
    for schedule in schedules() {
        let actual = Run { schedule, ..run.clone() }.words();
        check(&format!("{schedule}"), &actual, expected);
    }
}

/// Each CTA waits for the flag of a neighbour, adds its number to what it finds
/// and raises its own; CTA `first` does not wait.
fn chain(grid: u32, load: &str, next: &str, first: u32) -> Run {
    run(
        grid,
        32,
        &format!(
            "setp.ne.u32 %p1, %laneid, 0; @%p1 bra END;
            mad.wide.u32 %d1, %bid, 4, %in;
            mov.u32 %r3, 1; setp.eq.u32 %p2, %bid, {first}; @%p2 bra SET;
            {next} mad.wide.u32 %d2, %r1, 4, %in;
            WAIT: {load} %r3, [%d2]; setp.eq.u32 %p3, %r3, 0; @%p3 bra WAIT;
            SET: add.u32 %r4, %r3, %bid; st.global.u32 [%po], %r4;
            st.release.gpu.global.u32 [%d1], %r4;
            END:"
        )
        .replace("%laneid, 0", "%r9, 0")
        .replace("setp.ne.u32 %p1, %r9", "mov.u32 %r9, %laneid; setp.ne.u32 %p1, %r9"),
    )
}

fn chained(grid: u32, order: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut out = vec![0; 32 * grid as usize];
    let mut sum = 1;
    for cta in order {
        sum += cta;
        out[32 * cta as usize] = sum;
    }
    out
}

#[test]
fn chains_of_flags_in_both_directions() {
    const GRID: u32 = 150;
    for load in ["ld.acquire.gpu.global.u32", "ld.volatile.global.u32", "ld.relaxed.sys.u32"] {
        gives(&chain(GRID, load, "sub.u32 %r1, %bid, 1;", 0), &chained(GRID, 0..GRID));
        let last = GRID - 1;
        gives(&chain(GRID, load, "add.u32 %r1, %bid, 1;", last), &chained(GRID, (0..GRID).rev()));
    }
}

#[test]
fn a_flag_polled_by_an_atomic() {
    let poll = "mov.u32 %r7, 0; atom.global.or.b32";
    let run = chain(40, poll, "add.u32 %r1, %bid, 1;", 39);
    let text =
        run.text.replace("atom.global.or.b32 %r3, [%d2];", "atom.global.or.b32 %r3, [%d2], %r7;");
    gives(&Run { text, ..run }, &chained(40, (0..40).rev()));
}

#[test]
fn locks_exclude_and_everybody_gets_them() {
    // A weak read-modify-write under a spin lock, four warps per CTA.
    let body = "mov.u32 %r9, %laneid; setp.ne.u32 %p1, %r9, 0; @%p1 bra END; mov.u32 %r1, 0;
        AGAIN:
        LOCK: atom.acquire.gpu.global.cas.b32 %r2, [%in], 0, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra LOCK;
        ld.global.u32 %r3, [%in+4]; add.u32 %r3, %r3, 1; st.global.u32 [%in+4], %r3;
        membar.gl; st.relaxed.gpu.global.u32 [%in], 0;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 10; @%p3 bra AGAIN;
        END:";
    for schedule in schedules() {
        let run = Run { schedule, ..run(20, 128, body) };
        let mut memory = GlobalMemory::new();
        run.launch(&mut memory).unwrap();
        let input = memory.read(0x7_0000_0000, 8).unwrap();
        assert_eq!(input[4..], 800u32.to_le_bytes(), "{schedule}");
    }
}

#[test]
fn a_grid_barrier_of_as_many_ctas_as_the_machine_holds() {
    // 132 SMs, 8 CTAs of 256 threads each; three rounds, and after each the
    // CTA reads what another one wrote before it.
    const GRID: u32 = 132 * 8;
    let body = "mov.u32 %r20, %tid.x; mov.u32 %r21, %nctaid.x; mov.u32 %r1, 0; mov.u32 %r6, 0;
        mad.wide.u32 %d5, %bid, 4, %out;
        ROUND: add.u32 %r1, %r1, 1;
        setp.ne.u32 %p1, %r20, 0; @%p1 bra MEET;
        mad.lo.u32 %r2, %r1, 1000, %bid; st.global.u32 [%d5], %r2;
        membar.gl; red.global.add.u32 [%in], 1; mul.lo.u32 %r3, %r1, %r21;
        SPIN: ld.acquire.gpu.global.u32 %r4, [%in]; setp.lt.u32 %p2, %r4, %r3; @%p2 bra SPIN;
        add.u32 %r7, %bid, 17; rem.u32 %r7, %r7, %r21; mad.wide.u32 %d6, %r7, 4, %out;
        ld.global.u32 %r5, [%d6]; add.u32 %r6, %r6, %r5;
        membar.gl; red.global.add.u32 [%in+4], 1;
        SPIN2: ld.volatile.global.u32 %r4, [%in+4]; setp.lt.u32 %p2, %r4, %r3; @%p2 bra SPIN2;
        MEET: bar.sync 0;
        setp.lt.u32 %p3, %r1, 3; @%p3 bra ROUND;
        @%p1 bra END; add.s32 %r22, %bid, %r21; mad.wide.u32 %d7, %r22, 4, %out;
        st.global.u32 [%d7], %r6; END:";
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(5)] {
        let words = Run { schedule, ..run(GRID, 256, body) }.words();
        for cta in 0..GRID {
            let other = (cta + 17) % GRID;
            let expected = 6000 + 3 * other;
            assert_eq!(words[(GRID + cta) as usize], expected, "{schedule}: CTA {cta}");
        }
    }
}

#[test]
fn many_flags_looked_at_in_turn() {
    // CTA 0 waits for twelve others, by a loop over their flags, more of them
    // than looks are remembered.
    let body = "mov.u32 %r9, %laneid; setp.ne.u32 %p1, %r9, 0; @%p1 bra END;
        setp.ne.u32 %p2, %bid, 0; mad.wide.u32 %d1, %bid, 4, %in; @%p2 bra OTHER;
        AGAIN: mov.u32 %r1, 1; mov.u32 %r5, 0;
        L: mad.wide.u32 %d2, %r1, 4, %in; ld.acquire.gpu.global.u32 %r2, [%d2];
        add.u32 %r5, %r5, %r2; add.u32 %r1, %r1, 1; setp.le.u32 %p3, %r1, 12; @%p3 bra L;
        setp.ne.u32 %p4, %r5, 12; @%p4 bra AGAIN;
        st.global.u32 [%po], %r5; bra END;
        OTHER: st.release.gpu.global.u32 [%d1], 1;
        END:";
    let mut expected = vec![0; 13 * 32];
    expected[0] = 12;
    gives(&run(13, 32, body), &expected);
}

#[test]
fn a_warp_behind_an_mbarrier_whose_arrival_waits_for_another_cta() {
    // CTA 0: warp 0 waits at an mbarrier (polling it with test_wait), warp 1
    // spins on CTA 1's flag and then arrives.
    let body = "{.shared .align 8 .b64 bar; mov.u32 %r20, %tid.x; mov.u32 %r1, bar;
        setp.eq.u32 %p1, %r20, 0; @%p1 mbarrier.init.shared::cta.b64 [%r1], 1; bar.sync 0;
        setp.ne.u32 %p2, %bid, 0; @%p2 bra OTHER;
        setp.ge.u32 %p3, %r20, 32; @%p3 bra SPINNER;
        WAIT: mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r1], 0; @!%p4 bra WAIT;
        st.global.u32 [%po], 7; bra END;
        SPINNER: setp.ne.u32 %p5, %r20, 32; @%p5 bra END;
        SPIN: ld.acquire.gpu.global.u32 %r2, [%in]; setp.eq.u32 %p6, %r2, 0; @%p6 bra SPIN;
        mbarrier.arrive.shared::cta.b64 %d9, [%r1]; bra END;
        OTHER: @%p1 st.release.gpu.global.u32 [%in], 1;
        END:}";
    let mut expected = vec![0; 128];
    expected[..32].fill(7);
    gives(&run(2, 64, body), &expected);
}

#[test]
fn loops_of_ctas_are_interleaved_under_seeds() {
    // Increments that are not atomic: some seed loses one, none gains any.
    let body = "mov.u32 %r9, %laneid; setp.ne.u32 %p1, %r9, 0; @%p1 bra END; mov.u32 %r1, 0;
        L: ld.relaxed.gpu.global.u32 %r2, [%in]; add.u32 %r2, %r2, 1;
        st.relaxed.gpu.global.u32 [%in], %r2;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 50; @%p3 bra L; END:";
    let total = |schedule| {
        let mut memory = GlobalMemory::new();
        Run { schedule, ..run(4, 32, body) }.launch(&mut memory).unwrap();
        u32::from_le_bytes(memory.read(0x7_0000_0000, 4).unwrap().try_into().unwrap())
    };
    let totals: Vec<u32> = (0..16).map(|seed| total(Schedule::Random(seed))).collect();
    assert!(totals.iter().all(|&total| (50..=200).contains(&total)), "{totals:?}");
    assert!(totals.iter().filter(|&&total| total < 200).count() >= 8, "{totals:?}");
    let again: Vec<u32> = (0..16).map(|seed| total(Schedule::Random(seed))).collect();
    assert_eq!(totals, again, "a seed replays exactly");
}

#[track_caller]
fn deadlock(run: &Run, parts: &[&str]) -> DiagnosticKind {
    let mut kind = None;
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(0)] {
        let diagnostic = Run { schedule, ..run.clone() }.diagnostic();
        let text = diagnostic.to_string();
        for part in parts {
            assert!(text.contains(part), "{schedule}: `{part}` is not in: {text}");
        }
        kind = Some(diagnostic.kind);
    }
    kind.expect("a schedule")
}

#[test]
fn flags_that_nobody_raises_are_a_deadlock() {
    let wait = "mov.u32 %r9, %laneid; setp.ne.u32 %p1, %r9, 0; @%p1 bra END;
        SPIN: ld.acquire.gpu.global.u32 %r2, [%in+64]; setp.eq.u32 %p6, %r2, 0; @%p6 bra SPIN; END:";
    let text = [
        "deadlock: CTA (",
        "waits for a change at address 0x700000040, where it finds 0x0 again and again",
        "ld.acquire.gpu.global.u32 %r2",
    ];
    deadlock(&run(1, 32, wait), &text);
    let kind = deadlock(&run(3, 64, wait), &text);
    let DiagnosticKind::Deadlock { waiting, unstarted: 0 } = kind else { panic!("{kind:?}") };
    assert_eq!(waiting.len(), 6);
    // With a pause in the loop, and a flag in shared memory.
    deadlock(&run(1, 32, &wait.replace("SPIN: ", "SPIN: nanosleep.u32 20; ")), &text);
    let shared = format!(".shared .b32 s; mov.u32 %r9, %laneid; setp.eq.u32 %p1, %r9, 0; @%p1 st.shared.u32 [s], 0; {wait}")
        .replace("ld.acquire.gpu.global.u32 %r2, [%in+64]", "ld.volatile.shared.u32 %r2, [s]");
    deadlock(&run(1, 32, &shared), &["deadlock: CTA (0, 0, 0) warp 0", "address 0x400"]);
    // The flag of the CTA itself, raised only behind the wait: the others end.
    let own = format!("setp.ne.u32 %p8, %bid, 1; @%p8 bra END; {wait}");
    let kind = deadlock(&run(4, 32, &own), &["CTA (1, 0, 0) warp 0 lanes 0x00000001"]);
    let DiagnosticKind::Deadlock { waiting, .. } = kind else { panic!("{kind:?}") };
    assert_eq!(waiting.len(), 1);
}

#[test]
fn a_wait_for_a_cta_that_does_not_fit_the_machine_is_a_deadlock() {
    // 512 threads, 33 SMs' worth too many: the last CTA of the schedule's order
    // raises the flag.
    let body = "mov.u32 %r9, %tid.x; setp.ne.u32 %p1, %r9, 0; @%p1 bra END;
        atom.relaxed.gpu.global.add.u32 %r1, [%in], 1; setp.eq.u32 %p2, %r1, 599; @%p2 bra RAISE;
        SPIN: ld.acquire.gpu.global.u32 %r2, [%in+64]; setp.eq.u32 %p6, %r2, 0; @%p6 bra SPIN;
        bra END; RAISE: st.release.gpu.global.u32 [%in+64], 1; END:";
    let kind = deadlock(&run(600, 512, body), &["; 72 clusters cannot begin, the machine is full"]);
    assert!(matches!(kind, DiagnosticKind::Deadlock { unstarted: 72, .. }), "{kind:?}");
    // As many as fit.
    let fits = body.replace("599", "527");
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(0)] {
        let run = Run { schedule, ..run(528, 512, &fits) };
        let result = run.launch(&mut GlobalMemory::new());
        assert!(result.is_ok(), "{schedule}: {}", result.unwrap_err());
    }
}

#[test]
fn long_loops_that_find_the_same_are_no_deadlock() {
    let body = "mov.u32 %r1, 0; mov.u32 %r3, 0;
        L: ld.relaxed.gpu.global.u32 %r2, [%in]; add.u32 %r3, %r3, %r2;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 200000; @%p3 bra L; st.global.u32 [%po], %r1;";
    gives(&run(2, 32, body), &[200_000; 64]);
}

#[test]
fn limits_hold_while_clusters_take_turns() {
    let body =
        "SPIN: ld.acquire.gpu.global.u32 %r2, [%in]; setp.eq.u32 %p6, %r2, 0; @%p6 bra SPIN;";
    let run = Run { limit: Some(1000), ..run(2, 32, body) };
    match run.launch(&mut GlobalMemory::new()) {
        Err(LaunchError::Diagnostic(diagnostic)) => {
            assert_eq!(diagnostic.kind, DiagnosticKind::InstructionLimit { limit: 1000 });
        }
        other => panic!("{other:?}"),
    }
}
