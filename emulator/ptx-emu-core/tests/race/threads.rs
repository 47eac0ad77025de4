//! Data races: small programs that have one, with the text, and twins that have
//! none. `lazy` and every seed must report them, `eager` does not look.

use crate::races::race;
use crate::support::Run;
use ptx_emu_core::{
    DiagnosticKind, GlobalMemory, LaunchError, MissingOrder, RaceAccess, RaceSite, Schedule,
};

/// The schedules that look for races.
fn schedules() -> impl Iterator<Item = Schedule> {
    std::iter::once(Schedule::Lazy).chain((0..8).map(Schedule::Random))
}

/// A kernel of `warps` warps with 1 KiB of shared memory at `s`: `%r1` is its
/// address, `%r2` that of the thread's word in it, `%r3` the thread's lane;
/// `%p1` to `%p4` hold in warps 0 to 3.
fn run(warps: u32, body: &str) -> Run {
    let body = format!(
        ".shared .align 16 .b8 s[1024]; mov.u32 %r1, s; shl.b32 %r2, %tid, 2;
        add.u32 %r2, %r1, %r2; and.b32 %r3, %tid, 31; shr.u32 %r4, %tid, 5;
        setp.eq.u32 %p1, %r4, 0; setp.eq.u32 %p2, %r4, 1; setp.eq.u32 %p3, %r4, 2;
        setp.eq.u32 %p4, %r4, 3; setp.eq.u32 %p5, %tid, 0; mov.u32 %r9, 0;
        {body}
        st.global.u32 [%po], %r9;"
    );
    Run { block: 32 * warps, out_bytes: u64::from(128 * warps), ..Run::body(&body) }
}

/// Every schedule but `eager` must report a race with these parts of text.
#[track_caller]
fn races(warps: u32, body: &str, parts: &[&str]) -> Vec<ptx_emu_core::DataRace> {
    schedules()
        .map(|schedule| race(Run { schedule, ..run(warps, body) }.diagnostic(), schedule, parts))
        .collect()
}

/// No schedule may report anything.
#[track_caller]
fn passes(warps: u32, body: &str) {
    for schedule in schedules().chain([Schedule::Eager]) {
        let mut memory = GlobalMemory::new();
        if let Err(error) = (Run { schedule, ..run(warps, body) }).launch(&mut memory) {
            panic!("{schedule}: {error}\n{body}");
        }
    }
}

/// `body` races as it is, and does not with `{}` replaced by `sync`.
#[track_caller]
fn twins(warps: u32, body: &str, sync: &str, parts: &[&str]) {
    races(warps, &body.replace("{}", ""), parts);
    passes(warps, &body.replace("{}", sync));
}

#[test]
fn a_read_behind_a_write_needs_a_barrier() {
    let body = "st.shared.u32 [%r2], %tid; {} xor.b32 %r5, %r2, 128; @%p1 ld.shared.u32 %r9, [%r5];
        @%p2 bra END; END:";
    // A write that comes last races with the read; a reader that comes first finds memory
    // uninitialised.
    let body = format!("st.shared.u32 [%r2], 0; bar.sync 0; {body}");
    twins(2, &body, "bar.sync 0;", &["data race", "shared address 0x48", "no CTA barrier"]);
}

#[test]
fn both_sites_are_named() {
    let body = "st.shared.u32 [%r2], %tid; bar.sync 0;
        @%p1 st.shared.u32 [%r1+20], 7;
        @%p2 ld.shared.u32 %r9, [%r1+20];";
    let write = RaceSite {
        kind: RaceAccess::Write,
        line: 0,
        instruction: "@%p1 st.shared.u32 [%r1+20], 7;".to_owned(),
        source: None,
        cta: [0; 3],
        warp: 0,
        lane: 0,
    };
    let read = RaceSite {
        kind: RaceAccess::Read,
        instruction: "@%p2 ld.shared.u32 %r9, [%r1+20];".to_owned(),
        warp: 1,
        ..write.clone()
    };
    for schedule in schedules() {
        let diagnostic = Run { schedule, ..run(2, body) }.diagnostic();
        let DiagnosticKind::Race(race) = &diagnostic.kind else { panic!("{diagnostic}") };
        let earlier = RaceSite { line: 0, ..race.earlier.clone() };
        let (first, second) = if diagnostic.warp == 1 { (&write, &read) } else { (&read, &write) };
        assert_eq!(&earlier, first, "{diagnostic}");
        assert_eq!(diagnostic.instruction, second.instruction);
        assert_eq!((race.kind, diagnostic.lane), (second.kind, Some(0)));
        assert_eq!((race.address, race.missing), (0x414, MissingOrder::CtaBarrier));
        assert_eq!(diagnostic.line.abs_diff(race.earlier.line), 1);
        let text = diagnostic.to_string();
        let said = format!("behind the {} by line {} (`{}", first.kind, race.earlier.line, "@%p");
        assert!(text.contains(&said), "{text}");
        assert!(text.contains("kernel `k`"), "{text}");
        assert!(text.contains(&format!("schedule {schedule}")), "{text}");
    }
}

#[test]
fn lanes_are_named() {
    // Lane 9 of warp 1 writes the word that lane 9 of warp 0 reads: coalesced
    // accesses, one of a whole line and one of a part of it.
    let body = "st.shared.u32 [%r2], %tid; bar.sync 0; shl.b32 %r5, %r3, 2; add.u32 %r5, %r5, %r1;
        @%p1 ld.shared.u32 %r9, [%r5]; setp.eq.and.u32 %p6, %r3, 9, %p2;
        @%p6 st.shared.u32 [%r5], 1;";
    for race in races(2, body, &["shared address 0x424", "lane 9)", "lane 9, schedule"]) {
        assert_eq!((race.address, race.earlier.lane), (0x424, 9));
    }
}

#[test]
fn an_overwrite_behind_a_read_needs_a_barrier() {
    let body = "st.shared.u32 [%r2], %tid; bar.sync 0; @%p1 ld.shared.u32 %r9, [%r1+200];
        {} @%p2 st.shared.u32 [%r2], 5;";
    twins(2, body, "bar.sync 0;", &["data race", "shared address 0x4c8"]);
}

#[test]
fn two_writes_need_a_barrier() {
    let body = "@%p1 st.shared.u32 [%r1], 1; {} @%p2 st.shared.u32 [%r1], 1;";
    twins(2, body, "bar.sync 0;", &["data race: write of", "behind the write by line"]);
    passes(2, "st.shared.u32 [%r2], 1; ld.shared.u32 %r9, [%r2];");
}

#[test]
fn barriers_of_other_numbers_order_nothing() {
    let body = |writer: u32, reader: u32| {
        format!(
            "st.shared.u32 [%r2], 0; bar.sync 0;
            @%p1 bra A; @%p2 bra B; bra END;
            A: st.shared.u32 [%r1], 1; bar.sync {writer}, 64; bar.sync {reader}, 64; bra END;
            B: bar.sync {writer}, 64; ld.shared.u32 %r9, [%r1]; bar.sync {reader}, 64;
            END:"
        )
    };
    passes(3, &body(1, 2));
    // Warp 0 meets warp 2 at barrier 1 and warp 1 meets warp 2 at barrier 2,
    // but warp 1 reads before.
    let wrong = "st.shared.u32 [%r2], 0; bar.sync 0;
        @%p1 bra A; @%p2 bra B;
        bar.sync 1, 64; bar.sync 2, 64; bra END;
        A: st.shared.u32 [%r1], 1; bar.sync 1, 64; bra END;
        B: {1} ld.shared.u32 %r9, [%r1]; {2}
        END:";
    races(3, &wrong.replace("{1}", "").replace("{2}", "bar.sync 2, 64;"), &["data race"]);
    // In the right order it is transitive.
    passes(3, &wrong.replace("{1}", "bar.sync 2, 64;").replace("{2}", ""));
    // Two pairs with a barrier each.
    let pairs = "st.shared.u32 [%r2], 0; bar.sync 0;
        and.b32 %r5, %r4, 1; setp.eq.u32 %p6, %r5, 0; shr.u32 %r6, %r4, 1;
        @%p1 st.shared.u32 [%r1], 1;
        bar.sync {id}, {count}; @{reader} ld.shared.u32 %r9, [%r1];";
    let pairs = |id: &str, count: &str, reader: &str| {
        let add = "add.u32 %r5, %r5, 1; add.u32 %r6, %r6, 1; bar.sync";
        pairs
            .replace("bar.sync {", &format!("{add} {{"))
            .replace("{id}", id)
            .replace("{count}", count)
            .replace("{reader}", reader)
    };
    passes(4, &pairs("%r6", "64", "%p2"));
    races(4, &pairs("%r6", "64", "%p3"), &["data race"]);
    passes(4, &pairs("%r5", "64", "%p3"));
    races(4, &pairs("%r5", "64", "%p2"), &["data race"]);
}

/// A producer warp hands two buffers to a consumer warp through barriers 1 and
/// 2 (full) and 3 and 4 (empty), as the PTX ISA's example of `bar.arrive` does.
fn pipeline(full: &str, empty: &str) -> String {
    format!(
        "mov.u32 %r5, 0; shl.b32 %r6, %r3, 2; add.u32 %r6, %r6, %r1;
        @%p2 bra CONSUMER;
        PRODUCER:
        and.b32 %r7, %r5, 1; add.u32 %r10, %r7, 1; add.u32 %r11, %r7, 3;
        setp.lt.u32 %p6, %r5, 2; @%p6 bra FIRST; {empty} FIRST:
        shl.b32 %r8, %r7, 7; add.u32 %r8, %r8, %r6; st.shared.u32 [%r8], %r5;
        bar.arrive %r10, 64;
        add.u32 %r5, %r5, 1; setp.lt.u32 %p6, %r5, 8; @%p6 bra PRODUCER; bra END;
        CONSUMER:
        and.b32 %r7, %r5, 1; add.u32 %r10, %r7, 1; add.u32 %r11, %r7, 3;
        {full} shl.b32 %r8, %r7, 7; add.u32 %r8, %r8, %r6; ld.shared.u32 %r9, [%r8];
        setp.ge.u32 %p6, %r5, 6; @%p6 bra LAST; {arrive} LAST:
        add.u32 %r5, %r5, 1; setp.lt.u32 %p6, %r5, 8; @%p6 bra CONSUMER;
        END:",
        arrive = if empty.is_empty() { "" } else { "bar.arrive %r11, 64;" },
    )
}

#[test]
fn producers_and_consumers_with_named_barriers() {
    passes(2, &pipeline("bar.sync %r10, 64;", "bar.sync %r11, 64;"));
}

#[test]
fn a_producer_that_does_not_wait_for_empty_buffers() {
    let body = "@%p2 bra CONSUMER;
        st.shared.u32 [%r1], 1; bar.arrive 1, 64; {} st.shared.u32 [%r1], 2; bar.arrive 2, 64;
        bra END;
        CONSUMER: bar.sync 1, 64; ld.shared.u32 %r9, [%r1]; {arrive} bar.sync 2, 64;
        END:";
    races(2, &body.replace("{}", "").replace("{arrive}", ""), &["data race"]);
    passes(2, &body.replace("{}", "bar.sync 3, 64;").replace("{arrive}", "bar.arrive 3, 64;"));
    // Arriving is not waiting.
    races(
        2,
        &body.replace("{}", "bar.arrive 3, 64;").replace("{arrive}", "bar.arrive 3, 64;"),
        &["data race"],
    );
}

#[test]
fn double_buffers_with_one_barrier_an_iteration() {
    let body = |sync: &str, buffers: u32| {
        format!(
            "st.shared.u32 [%r2], 0; st.shared.u32 [%r2+256], 0; bar.sync 0; mov.u32 %r5, 0;
            xor.b32 %r6, %r2, 128;
            L: rem.u32 %r7, %r5, {buffers}; shl.b32 %r7, %r7, 8;
            add.u32 %r8, %r7, %r2; st.shared.u32 [%r8], %r5; {sync}
            add.u32 %r8, %r7, %r6; ld.shared.u32 %r9, [%r8];
            add.u32 %r5, %r5, 1; setp.lt.u32 %p6, %r5, 6; @%p6 bra L;"
        )
    };
    passes(2, &body("bar.sync 0;", 2));
    races(2, &body("", 2), &["data race"]);
    // One buffer needs two barriers an iteration.
    races(2, &body("bar.sync 0;", 1), &["data race"]);
}

#[test]
fn neighbouring_bytes_are_no_race() {
    // Each of four warps writes and reads one byte of every word.
    let own = "add.u32 %r5, %r1, %r4; shl.b32 %r6, %r3, 2; add.u32 %r5, %r5, %r6;
        st.shared.u8 [%r5], %r3; ld.shared.u8 %r9, [%r5]; st.shared.u8 [%r5], %r9;";
    passes(4, own);
    let words = |sync: &str| {
        format!("st.shared.u32 [%r2], 0; bar.sync 0; {own} {sync} ld.shared.u32 %r9, [%r2];")
    };
    passes(4, &words("bar.sync 0;"));
    races(4, &words(""), &["data race"]);
    let halves = "shl.b32 %r6, %r4, 1; shl.b32 %r5, %r3, 2; add.u32 %r5, %r5, %r6;
        add.u32 %r5, %r5, %r1; st.shared.u16 [%r5], %r3; ld.shared.u16 %r9, [%r5];";
    passes(2, halves);
    let bytes = "@%p1 st.shared.u16 [%r1+2], 1; @%p2 st.shared.u8 [%r1+{at}], 1;";
    passes(2, &bytes.replace("{at}", "1"));
    races(2, &bytes.replace("{at}", "3"), &["shared address 0x40"]);
}

#[test]
fn atomics_do_not_race_with_each_other() {
    let body = "st.shared.u32 [%r2], 0; bar.sync 0; red.shared.add.u32 [%r1], 1;
        atom.shared.add.u32 %r5, [%r1+4], 1; {} @%p1 ld.shared.u32 %r9, [%r1];";
    twins(2, body, "bar.sync 0;", &["data race", "strong or atomic write", "read"]);
    passes(2, &body.replace("{}", "").replace("ld.shared", "ld.relaxed.cta.shared"));
    passes(2, &body.replace("{}", "").replace("ld.shared", "ld.volatile.shared"));
    // A plain store is no atomic.
    let body = "st.shared.u32 [%r2], 0; bar.sync 0; @%p1 red.shared.add.u32 [%r1], 1;
        {} @%p2 st.shared.u32 [%r1], 5;";
    twins(2, body, "bar.sync 0;", &["data race"]);
}

/// Warp 0 hands a word to warp 1 through a flag.
fn flag(write: &str, read: &str) -> String {
    format!(
        "st.shared.u32 [%r2], 0; bar.sync 0; @%p2 bra READER;
        st.shared.u32 [%r1+128], 5; bar.warp.sync -1; {write} bra END;
        READER: {read} setp.eq.u32 %p6, %r5, 0; @%p6 bra READER;
        {{}} ld.shared.u32 %r9, [%r1+128];
        END:"
    )
}

#[test]
fn released_and_acquired_flags() {
    let release = "st.release.cta.shared.u32 [%r1], 1;";
    let acquire = "ld.acquire.cta.shared.u32 %r5, [%r1];";
    let relaxed_write = "st.relaxed.cta.shared.u32 [%r1], 1;";
    let relaxed_read = "ld.relaxed.cta.shared.u32 %r5, [%r1];";
    let fence = "fence.acq_rel.cta;";
    passes(2, &flag(release, acquire).replace("{}", ""));
    races(2, &flag(relaxed_write, acquire).replace("{}", ""), &["data race", "released"]);
    passes(2, &flag(&format!("{fence} {relaxed_write}"), acquire).replace("{}", ""));
    let half = flag(release, relaxed_read);
    races(2, &half.replace("{}", ""), &["data race"]);
    passes(2, &half.replace("{}", fence));
    passes(2, &half.replace("{}", "membar.cta;"));
    let volatile =
        flag("membar.cta; st.volatile.shared.u32 [%r1], 1;", "ld.volatile.shared.u32 %r5, [%r1];");
    passes(2, &volatile.replace("{}", "membar.cta;"));
    let atomic = flag(
        "atom.release.cta.shared.exch.b32 %r6, [%r1], 1;",
        "atom.acquire.cta.shared.or.b32 %r5, [%r1], 0;",
    );
    passes(2, &atomic.replace("{}", ""));
    let relaxed = flag(
        "atom.relaxed.cta.shared.exch.b32 %r6, [%r1], 1;",
        "atom.shared.or.b32 %r5, [%r1], 0;",
    );
    races(2, &relaxed.replace("{}", ""), &["data race"]);
    // Another word says nothing of this one.
    let other =
        flag("st.release.cta.shared.u32 [%r1+64], 1; st.relaxed.cta.shared.u32 [%r1], 1;", acquire);
    races(2, &other.replace("{}", ""), &["data race"]);
}

#[test]
fn a_release_publishes_what_came_before_it_only() {
    let acquire = "ld.acquire.cta.shared.u32 %r5, [%r1];";
    for release in
        ["st.release.cta.shared.u32 [%r1], 1;", "atom.release.cta.shared.exch.b32 %r6, [%r1], 1;"]
    {
        let late = format!("{release} st.shared.u32 [%r1+128], 6;");
        races(2, &flag(&late, acquire).replace("{}", ""), &["data race", "0x480"]);
    }
}

#[test]
fn flags_in_global_memory_order_shared_accesses() {
    let body = flag(
        "fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%in], 1;",
        "ld.acquire.gpu.global.u32 %r5, [%in];",
    );
    passes(2, &body.replace("{}", ""));
    let weak = body.replace("acquire", "relaxed");
    races(2, &weak.replace("{}", ""), &["data race"]);
    passes(2, &weak.replace("{}", "fence.acq_rel.gpu;"));
}

#[test]
fn exits_count_as_arrivals() {
    // Warp 1 leaves early; the barrier of those that remain comes after.
    let body = "st.shared.u32 [%r2], %tid; st.global.u32 [%po], 0; @%p2 exit; {}
        xor.b32 %r5, %r2, 128; setp.lt.u32 %p6, %tid, 64; @%p6 ld.shared.u32 %r9, [%r5];";
    let body = format!("st.shared.u32 [%r2], 0; bar.sync 0; {body}");
    twins(3, &body, "bar.sync 0;", &["data race", "warp 1"]);
    // Half of each warp leaves, the rest goes on with barriers.
    let half = "setp.ge.u32 %p6, %r3, 16; st.shared.u32 [%r2], 0; st.global.u32 [%po], 0;
        bar.sync 0; @%p6 exit; st.shared.u32 [%r2], 1; {}
        xor.b32 %r5, %r2, 128; ld.shared.u32 %r9, [%r5];";
    twins(2, half, "bar.sync 0;", &["data race"]);
}

#[test]
fn divergent_halves_of_a_warp_are_told_apart() {
    let halves = "setp.lt.u32 %p6, %r3, 16; @%p6 bra A; st.shared.u32 [%r1], 1; bra END;
        A: st.shared.u32 [%r1+{at}], 2; END: bar.warp.sync -1; ld.shared.u32 %r9, [%r1];";
    passes(1, &halves.replace("{at}", "4"));
    let parts = ["data race", "no bar.warp.sync of both lanes is between them"];
    races(1, &halves.replace("{at}", "0"), &parts);
}

#[test]
fn wide_and_scattered_accesses() {
    // 16 bytes per lane, permuted, against words.
    let body = "shl.b32 %r5, %r3, 4; xor.b32 %r6, %r5, 112; add.u32 %r5, %r5, %r1;
        add.u32 %r6, %r6, %r1;
        @%p1 st.shared.v4.u32 [%r6], {%r3, %r3, %r3, %r3}; SYNC
        @%p2 ld.shared.v4.u32 {%r9, %r10, %r11, %r12}, [%r5];
        mov.u32 %r9, 0;";
    let first = format!(
        "mov.u32 %r20, 0; shl.b32 %r21, %r3, 4; add.u32 %r21, %r21, %r1;
        @%p1 st.shared.v4.u32 [%r21], {{%r20, %r20, %r20, %r20}}; bar.sync 0; {body}"
    );
    races(2, &first.replace("SYNC", ""), &["data race"]);
    passes(2, &first.replace("SYNC", "bar.sync 0;"));
}

#[test]
fn uniform_reads_by_all_warps() {
    let body = "@%p5 st.shared.u32 [%r1], 9; bar.sync 0; ld.shared.u32 %r9, [%r1];
        ld.shared.v2.u32 {%r5, %r6}, [%r1]; {} @%p5 st.shared.u32 [%r1], 8;";
    let body = format!("@%p5 st.shared.u32 [%r1+4], 9; {body}");
    twins(4, &body, "bar.sync 0;", &["data race", "shared address 0x400"]);
}

#[test]
fn every_cluster_starts_afresh() {
    let body = "mov.u32 %r5, %tid.x; shl.b32 %r5, %r5, 2;
        add.u32 %r5, %r5, %r1; st.shared.u32 [%r5], %tid; bar.sync 0; xor.b32 %r5, %r5, 128;
        ld.shared.u32 %r9, [%r5];";
    for schedule in schedules() {
        for threads in [1, 3] {
            let mut memory = GlobalMemory::new();
            let run = Run {
                schedule,
                grid: 5,
                threads: Some(threads),
                out_bytes: 5 * 256,
                ..run(2, body)
            };
            run.launch(&mut memory).map(|_| ()).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn eager_does_not_look() {
    let body = "@%p1 st.shared.u32 [%r1], 1; @%p2 st.shared.u32 [%r1], 1;";
    run(2, body).bytes();
    let mut memory = GlobalMemory::new();
    let lazy = Run { schedule: Schedule::Lazy, ..run(2, body) };
    assert!(matches!(lazy.launch(&mut memory), Err(LaunchError::Diagnostic(_))));
}
