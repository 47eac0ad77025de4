//! Divergence, reconvergence, calls and independent progress of lanes.

use crate::support::{Run, SCHEDULES, check, module};

#[test]
fn a_straight_kernel_runs() {
    let run = Run::body("ld.global.u32 %r1, [%pi]; add.u32 %r1, %r1, 7; st.global.u32 [%po], %r1;")
        .u32s(&(0..32).map(|i| i * i).collect::<Vec<_>>());
    let expected: Vec<u32> = (0..32).map(|i| i * i + 7).collect();
    check("add", &run.words(), &expected);
}

#[test]
fn nested_ifs() {
    let run = Run::body(
        "mov.u32 %r1, 0;
         setp.lt.u32 %p1, %tid, 20;
         @!%p1 bra ELSE;
           and.b32 %r2, %tid, 1;
           setp.eq.u32 %p2, %r2, 0;
           @%p2 bra EVEN;
             add.u32 %r1, %r1, 100;
             bra INNER;
           EVEN:
             add.u32 %r1, %r1, 200;
           INNER:
           add.u32 %r1, %r1, 1;
           bra END;
         ELSE:
           add.u32 %r1, %r1, 300;
         END:
         activemask.b32 %r3;
         shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;
         st.global.u32 [%po], %r1;
         mad.wide.u32 %d1, %tid, 4, %out;
         st.global.u32 [%d1+128], %r4;",
    );
    let run = Run { out_bytes: 256, ..run };
    let words = run.words();
    for lane in 0..32 {
        let expected = match lane {
            0..20 if lane % 2 == 0 => 201,
            0..20 => 101,
            _ => 300,
        };
        assert_eq!(words[lane], expected, "lane {lane}");
        assert_eq!(words[32 + lane], u32::MAX, "reconverged: lane {lane}");
    }
}

#[test]
fn loops_of_different_length_and_early_exit() {
    for schedule in SCHEDULES {
        let run = Run::body(
            "mov.u32 %r1, 0; mov.u32 %r2, 0;
             LOOP:
               setp.ge.u32 %p1, %r2, %tid;
               @%p1 bra DONE;
               add.u32 %r1, %r1, %r2;
               add.u32 %r2, %r2, 1;
               bra LOOP;
             DONE:
             st.global.u32 [%po], %r1;
             setp.gt.u32 %p2, %tid, 3;
             @%p2 exit;
             add.u32 %r1, %r1, 1000;
             st.global.u32 [%po], %r1;",
        );
        let run = Run { schedule, block: 70, out_bytes: 280, ..run };
        let expected: Vec<u32> = (0..70u32)
            .map(|t| t * t.saturating_sub(1) / 2 + if t <= 3 { 1000 } else { 0 })
            .collect();
        check(&format!("{schedule}"), &run.words(), &expected);
    }
}

#[test]
fn scopes_repeat_labels_and_shadow_registers() {
    let run = Run::body(
        "mov.u32 %r1, 1;
         { .reg .b32 %r1; .reg .pred %p1; mov.u32 %r1, 5; setp.lt.u32 %p1, %tid, 16;
           @%p1 bra L; add.u32 %r1, %r1, 10; L: mov.u32 %r2, %r1; }
         { .reg .b32 %r1; .reg .pred %p1; mov.u32 %r1, 50; setp.lt.u32 %p1, %tid, 8;
           @%p1 bra L; add.u32 %r1, %r1, 100; L: add.u32 %r2, %r2, %r1; }
         add.u32 %r2, %r2, %r1;
         st.global.u32 [%po], %r2;",
    );
    let expected: Vec<u32> =
        (0..32).map(|t| 1 + if t < 16 { 5 } else { 15 } + if t < 8 { 50 } else { 150 }).collect();
    check("scopes", &run.words(), &expected);
}

#[test]
fn divergent_calls_recursion_and_reconvergence() {
    let text = module(
        ".visible .func (.param .b32 r) fact(.param .b32 n) {
            .reg .b32 %n, %m, %v; .reg .pred %p;
            ld.param.u32 %n, [n];
            setp.gt.u32 %p, %n, 1;
            @%p bra MORE;
            st.param.b32 [r], 1;
            ret;
            MORE:
            sub.u32 %m, %n, 1;
            { .param .b32 a; .param .b32 b;
              st.param.b32 [a], %m;
              call.uni (b), fact, (a);
              ld.param.b32 %v, [b]; }
            mul.lo.u32 %v, %v, %n;
            st.param.b32 [r], %v;
            ret;
        }
        .visible .entry k(.param .u64 out, .param .u64 in) {
            .reg .b32 %t, %n, %v, %m; .reg .b64 %o; .reg .pred %p;
            ld.param.u64 %o, [out];
            mov.u32 %t, %tid.x;
            and.b32 %n, %t, 7;
            mov.u32 %v, 77;
            setp.eq.u32 %p, %n, 3;
            @%p bra SKIP;
            { .param .b32 a; .param .b32 b;
              st.param.b32 [a], %n;
              call (b), fact, (a);
              ld.param.b32 %v, [b]; }
            SKIP:
            activemask.b32 %m;
            add.u32 %v, %v, %m;
            mad.wide.u32 %o, %t, 4, %o;
            st.global.u32 [%o], %v;
            ret;
        }",
    );
    let fact = |n: u32| (1..=n).product::<u32>();
    let expected: Vec<u32> =
        (0..32).map(|t| if t & 7 == 3 { 77 } else { fact(t & 7) }.wrapping_sub(1)).collect();
    for schedule in SCHEDULES {
        let run = Run { schedule, ..Run::new(text.clone()) };
        check(&format!("{schedule}"), &run.words(), &expected);
    }
}

#[test]
fn indirect_calls_split_by_target() {
    let text = module(
        ".func (.reg .b32 r) twice(.reg .b32 x) { add.u32 r, x, x; ret; }
         .func (.reg .b32 r) plus(.reg .b32 x) { add.u32 r, x, 1000; ret; }
         .global .u64 table[2] = { twice, plus };
        .visible .entry k(.param .u64 out, .param .u64 in) {
            .reg .b32 %t, %n, %v; .reg .b64 %o, %f, %a;
            ld.param.u64 %o, [out];
            mov.u32 %t, %tid.x;
            and.b32 %n, %t, 1;
            mov.u64 %a, table;
            mad.wide.u32 %a, %n, 8, %a;
            ld.global.u64 %f, [%a];
            P: .callprototype (.reg .b32 _) _ (.reg .b32 _);
            call (%v), %f, (%t), P;
            mad.wide.u32 %o, %t, 4, %o;
            st.global.u32 [%o], %v;
            ret;
        }",
    );
    let expected: Vec<u32> = (0..32).map(|t| if t & 1 == 0 { 2 * t } else { t + 1000 }).collect();
    check("indirect", &Run::new(text).words(), &expected);
}

#[test]
fn indexed_branches() {
    let run = Run::body(
        "and.b32 %r1, %tid, 3;
         T: .branchtargets A, B, C, A;
         brx.idx %r1, T;
         A: mov.u32 %r2, 10; bra END;
         B: mov.u32 %r2, 20; bra END;
         C: mov.u32 %r2, 30;
         END: activemask.b32 %r3; add.u32 %r2, %r2, %r3; st.global.u32 [%po], %r2;",
    );
    let expected: Vec<u32> = (0..32).map(|t| [9, 19, 29, 9][t & 3]).collect();
    check("brx", &run.words(), &expected);
}

#[test]
fn one_lane_spins_while_the_others_wait_at_a_warp_barrier() {
    // Warp 0: lane 0 spins on a flag in shared memory that warp 1 sets after
    // lanes 1 to 31 of warp 0 have reached bar.warp.sync.
    let body = "
        .shared .align 4 .b32 flag;
        .shared .align 4 .b32 value;
        setp.eq.u32 %p1, %tid, 0;
        @%p1 st.shared.u32 [flag], 0;
        bar.sync 0;
        setp.ge.u32 %p2, %tid, 32;
        @%p2 bra SECOND;
        @!%p1 bra WAIT;
        SPIN:
          ld.volatile.shared.u32 %r1, [flag];
          setp.eq.u32 %p3, %r1, 0;
          @%p3 bra SPIN;
        membar.cta;
        WAIT:
        bar.warp.sync 0xffffffff;
        ld.shared.u32 %r2, [value];
        st.global.u32 [%po], %r2;
        ret;
        SECOND:
        setp.eq.u32 %p4, %tid, 32;
        @!%p4 ret;
        mov.u32 %r3, 0;
        DELAY: add.u32 %r3, %r3, 1; setp.lt.u32 %p5, %r3, 30000; @%p5 bra DELAY;
        st.shared.u32 [value], 42;
        membar.cta;
        st.volatile.shared.u32 [flag], 1;";
    for schedule in SCHEDULES {
        let run = Run { schedule, block: 64, ..Run::body(body) };
        check(&format!("{schedule}"), &run.words(), &[42; 32]);
    }
}

#[test]
fn a_spin_lock_between_lanes_of_a_warp() {
    let body = "
        .shared .align 4 .b32 lock;
        .shared .align 4 .b32 count;
        setp.eq.u32 %p1, %tid, 0;
        @%p1 st.shared.u32 [lock], 0;
        @%p1 st.shared.u32 [count], 0;
        bar.sync 0;
        TRY:
          atom.acquire.cta.shared.cas.b32 %r1, [lock], 0, 1;
          setp.ne.u32 %p2, %r1, 0;
          @%p2 bra TRY;
        ld.shared.u32 %r2, [count];
        add.u32 %r2, %r2, 1;
        st.shared.u32 [count], %r2;
        atom.release.cta.shared.exch.b32 %r3, [lock], 0;
        bar.sync 0;
        ld.shared.u32 %r4, [count];
        st.global.u32 [%po], %r4;";
    for schedule in SCHEDULES {
        let run = Run { schedule, block: 64, out_bytes: 256, ..Run::body(body) };
        check(&format!("{schedule}"), &run.words(), &[64; 64]);
    }
}

#[test]
fn clusters_that_wait_for_each_other_make_progress() {
    // CTA 0 waits for a flag that CTA 3 sets.
    let body = "
        setp.ne.u32 %p1, %bid, 0;
        @%p1 bra OTHER;
        SPIN: ld.volatile.global.u32 %r1, [%out+128]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN;
        st.global.u32 [%po], %r1;
        ret;
        OTHER:
        setp.ne.u32 %p3, %bid, 3; @%p3 ret;
        st.volatile.global.u32 [%out+128], 9;";
    let run = Run { grid: 4, out_bytes: 132, zeroed: true, limit: None, ..Run::body(body) };
    check("flag", &run.words()[..32], &[9; 32]);
}
