//! Lane exchange, barriers, special registers, counters, determinism.

use crate::support::{Run, SCHEDULES, check, module};
use ptx_emu_core::{Family, GlobalMemory, Gpu, LaunchReport, Schedule};

fn lanes(code: &str, expected: impl Fn(u32) -> u32) {
    let expected: Vec<u32> = (0..32).map(expected).collect();
    let run = Run::body(&format!("mov.u32 %r0, 0; {code} st.global.u32 [%po], %r0;"));
    check(code, &run.words(), &expected);
}

#[test]
fn shuffles() {
    for width in [32u32, 16, 8, 4, 2, 1] {
        let segment = (32 - width) << 8;
        for by in [0, 1, 2, 3, 5, 16, 31] {
            let first = |t: u32| t / width * width;
            let value = |source: u32, inside: bool, t: u32| {
                if inside { source * 10 + 1000 } else { t * 10 }
            };
            let run = |mode: &str, c: u32, source: &dyn Fn(u32) -> (u32, bool)| {
                lanes(
                    &format!(
                        "mul.lo.u32 %r1, %tid, 10; shfl.sync.{mode}.b32 %r2|%p1, %r1, {by}, {c}, 0xffffffff;
                         selp.u32 %r3, 1000, 0, %p1; add.u32 %r0, %r2, %r3;"
                    ),
                    |t| {
                        let (source, inside) = source(t);
                        value(source, inside, t)
                    },
                );
            };
            run("up", segment, &|t| (t.wrapping_sub(by), t as i32 - by as i32 >= first(t) as i32));
            run("down", segment | 31, &|t| (t + by, t + by < first(t) + width));
            run("bfly", segment | 31, &|t| (t ^ by, t ^ by < first(t) + width));
            run("idx", segment | 31, &|t| (first(t) + by % width, true));
        }
    }
}

#[test]
fn votes_matches_reductions_and_election() {
    lanes("setp.lt.u32 %p1, %tid, 5; vote.sync.ballot.b32 %r0, %p1, -1;", |_| 0x1f);
    lanes(
        "setp.lt.u32 %p1, %tid, 5; vote.sync.any.pred %p2, !%p1, -1; selp.u32 %r0, 1, 0, %p2;",
        |_| 1,
    );
    lanes(
        "setp.lt.u32 %p1, %tid, 5; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r0, 1, 0, %p2;",
        |_| 0,
    );
    lanes(
        "setp.lt.u32 %p1, %tid, 50; vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r0, 1, 0, %p2;",
        |_| 1,
    );
    lanes("shr.u32 %r1, %tid, 3; match.any.sync.b32 %r0, %r1, -1;", |t| 0xff << (t / 8 * 8));
    lanes("mov.u64 %d1, 7; match.all.sync.b64 %r0|%p1, %d1, -1;", |_| u32::MAX);
    lanes("match.all.sync.b32 %r0|%p1, %tid, -1; @!%p1 add.u32 %r0, %r0, 3;", |_| 3);
    lanes("redux.sync.add.s32 %r0, %tid, -1;", |_| 496);
    lanes("redux.sync.max.u32 %r0, %tid, -1;", |_| 31);
    lanes("neg.s32 %r1, %tid; redux.sync.min.s32 %r0, %r1, -1;", |_| -31i32 as u32);
    lanes("redux.sync.xor.b32 %r0, %tid, -1;", |_| 0);
    lanes("elect.sync %r1|%p1, -1; selp.u32 %r0, 1, 0, %p1; add.u32 %r0, %r0, %r1;", |t| {
        u32::from(t == 0)
    });
    // Two groups with their own masks, at once.
    lanes(
        "setp.lt.u32 %p1, %tid, 12; selp.b32 %r1, 0xfff, 0xfffff000, %p1; redux.sync.add.u32 %r0, %tid, %r1;
         elect.sync _|%p2, %r1; @%p2 add.u32 %r0, %r0, 1000;",
        |t| match t {
            0..12 => 66,
            _ => 430,
        } + if t == 0 || t == 12 { 1000 } else { 0 },
    );
    // A predicate chooses who takes part.
    lanes(
        "setp.lt.u32 %p1, %tid, 8; @%p1 redux.sync.add.u32 %r0, %tid, 0xff; activemask.b32 %r1;
         setp.ne.b32 %p2, %r1, -1; @%p2 trap;",
        |t| if t < 8 { 28 } else { 0 },
    );
}

#[test]
fn divergent_lanes_meet_at_one_shuffle() {
    lanes(
        "setp.lt.u32 %p1, %tid, 10; mov.u32 %r1, 0; @!%p1 bra J;
         L: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 50; @%p2 bra L;
         J: shfl.sync.idx.b32 %r0, %r1, 3, 31, -1;",
        |_| 50,
    );
}

#[test]
fn named_barriers_between_producers_and_consumers() {
    // Warp 0 fills, warps 1 and 2 read, double handshake, several rounds.
    let body = "
        .shared .align 4 .b32 s[32];
        mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31;
        mov.u32 %r4, s; shl.b32 %r5, %r3, 2; add.u32 %r4, %r4, %r5;
        mov.u32 %r6, 0; mov.u32 %r7, 0;
        setp.eq.u32 %p1, %r2, 0;
        @!%p1 bra CONSUME;
        PRODUCE:
          setp.gt.u32 %p3, %r6, 0; @%p3 bar.sync 2, 96;
          mad.lo.u32 %r8, %r6, 100, %r3; st.shared.u32 [%r4], %r8;
          membar.cta;
          bar.arrive 1, 96;
          add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 5; @%p2 bra PRODUCE;
        bra END;
        CONSUME:
          bar.sync 1, 96;
          ld.shared.u32 %r8, [%r4]; add.u32 %r7, %r7, %r8;
          add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 5; @%p2 bar.arrive 2, 96; @%p2 bra CONSUME;
        END:
        st.global.u32 [%po], %r7;";
    for schedule in SCHEDULES {
        let run = Run { block: 96, out_bytes: 384, schedule, ..Run::body(body) };
        let expected: Vec<u32> =
            (0..96).map(|t| if t < 32 { 0 } else { 1000 + 5 * (t & 31) }).collect();
        check(&format!("{schedule}"), &run.words(), &expected);
    }
}

#[test]
fn barrier_reductions_and_unaligned_barriers() {
    for schedule in SCHEDULES {
        let run = |body: &str| Run { block: 96, out_bytes: 384, schedule, ..Run::body(body) };
        let odd = "and.b32 %r1, %tid, 1; setp.eq.u32 %p1, %r1, 1; setp.lt.u32 %p3, %tid, 96;";
        let popc = run(&format!(
            "{odd} bar.red.popc.u32 %r2, 0, %p1; bar.red.popc.u32 %r3, 0, !%p1; add.u32 %r2, %r2, %r3; st.global.u32 [%po], %r2;"
        ));
        check("popc", &popc.words(), &[96; 96]);
        let logic = run(&format!("{odd} barrier.cta.red.and.pred %p2, 1, 96, %p1; barrier.red.or.aligned.pred %p4, 2, %p1;
            barrier.cta.red.and.aligned.pred %p5, 3, %p3;
            selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 2, 0, %p4; selp.u32 %r4, 4, 0, %p5;
            add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; st.global.u32 [%po], %r2;"));
        check("and, or", &logic.words(), &[6; 96]);
        // Halves of a warp at different barrier instructions.
        let split = run("and.b32 %r1, %tid, 16; setp.eq.u32 %p1, %r1, 0; @%p1 bra A;
            barrier.sync 4; bra E; A: barrier.sync 4; E: st.global.u32 [%po], %tid;");
        check("split", &split.words(), &(0..96).collect::<Vec<_>>());
        // Exited warps are not waited for.
        let early =
            run("st.global.u32 [%po], 1; setp.gt.u32 %p1, %tid, 63; @%p1 exit; bar.sync 0;");
        check("early", &early.words(), &[1; 96]);
    }
}

#[test]
fn special_registers() {
    lanes("mov.u32 %r0, %laneid;", |t| t);
    lanes("mov.u32 %r0, %lanemask_lt;", |t| (1 << t) - 1);
    lanes("mov.u32 %r0, %lanemask_ge;", |t| u32::MAX << t);
    lanes("add.u32 %r0, %ntid.x, %nctaid.y;", |_| 33);
    lanes("mov.u32 %r0, %nsmid;", |_| 132);
    lanes(
        "mov.u64 %d1, %clock64; mov.u64 %d2, %clock64; setp.gt.u64 %p1, %d2, %d1; selp.u32 %r0, 1, 0, %p1;",
        |_| 1,
    );
    lanes(
        "mov.u32 %r0, %cluster_nctarank; mov.u32 %r1, %cluster_ctarank; add.u32 %r0, %r0, %r1;",
        |_| 1,
    );
    lanes("mov.u32 %r0, %tid.w;", |_| 0);
    let run = Run {
        grid: 3,
        block: 40,
        out_bytes: 480,
        ..Run::body(
            "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %warpid; mov.u32 %r3, %tid.x; mad.lo.u32 %r3, %r1, 100, %r3;
             mad.lo.u32 %r3, %r2, 1000, %r3; st.global.u32 [%po], %r3;",
        )
    };
    let expected: Vec<u32> = (0..120).map(|i| i / 40 * 100 + i % 40 / 32 * 1000 + i % 40).collect();
    check("ids", &run.words(), &expected);
}

#[test]
fn clusters_give_ranks_and_shared_addresses_that_carry_them() {
    let text = module(
        ".visible .entry k(.param .u64 out, .param .u64 in) .reqnctapercluster 2, 1, 1 {
            .reg .b32 %v, %w, %t; .reg .b64 %o; .reg .pred %p;
            .shared .align 4 .b32 s;
            mov.u32 %v, s; shr.u32 %w, %v, 24; and.b32 %v, %v, 0xffffff;
            st.shared.u32 [s], %w; ld.shared.u32 %w, [s];
            mad.lo.u32 %v, %w, 10000, %v;
            mov.u32 %w, %cluster_ctarank; mad.lo.u32 %v, %w, 100000, %v;
            mov.u32 %w, %clusterid.x; mad.lo.u32 %v, %w, 1000000, %v;
            selp.u32 %w, 10000000, 0, %is_explicit_cluster; add.u32 %v, %v, %w;
            ld.param.u64 %o, [out]; mov.u32 %t, %ctaid.x; mad.wide.u32 %o, %t, 4, %o;
            st.global.u32 [%o], %v; ret; }",
    );
    let run = Run { grid: 6, block: 1, out_bytes: 24, ..Run::new(text) };
    let expected: Vec<u32> =
        (0..6).map(|cta| 10_001_024 + cta % 2 * 110_000 + cta / 2 * 1_000_000).collect();
    check("cluster", &run.words(), &expected);
}

#[test]
fn counters_say_what_was_done() {
    let run = Run {
        grid: 2,
        block: 64,
        out_bytes: 512,
        input: vec![1; 2048],
        ..Run::body(
            ".shared .align 16 .b8 s[4096];
             mad.wide.u32 %d1, %tid, 16, %in; ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%d1];
             mov.u32 %r5, %tid.x; shl.b32 %r6, %r5, 6; mov.u32 %r7, s; add.u32 %r7, %r7, %r6;
             st.shared.u32 [%r7], %r1; bar.sync 0; ld.shared.u32 %r8, [s];
             fma.rn.f32 %f1, %f2, %f3, %f4; st.global.u32 [%po], %r8;",
        )
    };
    let mut memory = GlobalMemory::new();
    let (_, report) = run.launch(&mut memory).unwrap();
    let counters = report.counters;
    assert_eq!((counters.ctas, counters.clusters, counters.threads), (2, 2, 128));
    assert_eq!(counters.global.bytes_read, 128 * 16);
    assert_eq!(counters.global.sectors_read, 64);
    assert_eq!(counters.global_unique_bytes_read, 2048);
    assert_eq!(counters.global_unique_bytes_written, 512);
    assert_eq!(counters.global.bytes_written, 512);
    assert_eq!(counters.global.sectors_written, 16);
    assert_eq!((counters.shared.reads, counters.shared.writes), (4, 4));
    // A stride of 64 bytes over 32 banks: 16 lanes a bank; the read is uniform.
    assert_eq!((counters.shared_wavefronts, counters.shared_wavefronts_ideal), (4 * 16 + 4, 8));
    assert_eq!(counters.barrier_arrivals, 4);
    assert_eq!(counters.family(Family::Float).lane, 128);
    assert_eq!(counters.family(Family::Float).warp, 4);
    assert_eq!(counters.lane_instructions, 32 * counters.warp_instructions);
    let json = serde_json::to_value(&counters).unwrap();
    assert_eq!(json["families"]["float"]["lane"], 128);
    assert_eq!(json["global"]["bytes_read"], 2048);
    let bound = counters.lower_bound(&Gpu::h200());
    let dram = bound.parts.iter().find(|part| part.name == "dram").unwrap();
    assert!((dram.seconds - 2560.0 / 4.8e12).abs() < 1e-18);
    assert!(bound.parts.iter().all(|part| part.seconds <= bound.seconds));
}

#[test]
fn results_do_not_depend_on_host_threads_or_schedule() {
    let body = "
        .shared .align 4 .b32 s[96];
        mov.u32 %r1, %tid.x; mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3;
        mov.u32 %r9, 0; mov.u32 %r4, %tid;
        LOOP:
          st.shared.u32 [%r2], %r4; bar.sync 0;
          xor.b32 %r5, %r3, 128; mov.u32 %r6, s; setp.lt.u32 %p1, %r1, 64; @!%p1 mov.u32 %r5, %r3;
          add.u32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6]; mad.lo.u32 %r4, %r4, 31, %r7;
          bar.sync 0;
          add.u32 %r9, %r9, 1; setp.le.u32 %p2, %r9, %bid; @%p2 bra LOOP;
        shl.b32 %r8, %tid, 1; cvt.u64.u32 %d1, %r8; add.u64 %d1, %out, %d1;
        st.global.u16 [%d1], %r4;";
    let base = Run { grid: 17, block: 96, out_bytes: 17 * 96 * 2, ..Run::body(body) };
    let run = |threads, schedule| {
        let mut memory = GlobalMemory::new();
        let run = Run { threads, schedule, ..base.clone() };
        let (out, report) = run.launch(&mut memory).unwrap();
        (memory.read(out, base.out_bytes).unwrap(), report)
    };
    let (bytes, report) = run(Some(1), Schedule::Eager);
    for threads in [None, Some(2), Some(5)] {
        for schedule in SCHEDULES {
            let (other, other_report) = run(threads, schedule);
            assert_eq!(bytes, other, "{threads:?} {schedule}");
            // A warp whose lanes part issues more instructions.
            let (_, alone) = run(Some(1), schedule);
            assert_eq!(alone, other_report, "{threads:?} {schedule}");
            let bytes = |report: &LaunchReport| report.counters.shared.bytes_read;
            assert_eq!(bytes(&report), bytes(&other_report), "{threads:?} {schedule}");
        }
    }
}

#[test]
fn the_first_cluster_in_order_is_the_one_that_is_blamed() {
    let body = "setp.gt.u32 %p1, %bid, 6; @%p1 trap; st.global.u32 [%po], 1;";
    for threads in [1, 2, 4] {
        let run = |schedule| Run {
            grid: 40,
            out_bytes: 40 * 128,
            threads: Some(threads),
            schedule,
            ..Run::body(body)
        };
        assert_eq!(run(Schedule::Eager).diagnostic().cta, [7, 0, 0]);
        assert_eq!(run(Schedule::Lazy).diagnostic().cta, [39, 0, 0]);
        let random = run(Schedule::Random(9)).diagnostic();
        assert_eq!(random, Run { threads: Some(1), ..run(Schedule::Random(9)) }.diagnostic());
    }
}

#[test]
fn schedules_are_written_as_they_are_read() {
    for text in ["eager", "lazy", "random:0", "random:18446744073709551615"] {
        assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
    }
    for text in ["", "Eager", "random", "random:", "random:-1", "random:x"] {
        let error = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(error.contains("required eager, lazy or random:SEED"), "{error}");
    }
}
