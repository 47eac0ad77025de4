//! Every diagnostic has a small program that must trigger it, with its text,
//! and a twin that must not.

use crate::support::{Run, kernel, load_error, module};
use ptx_emu_core::{
    AccessKind, Checks, DiagnosticKind, GlobalMemory, Gpu, Launch, LaunchError, LoadError, Module,
    Schedule, Space,
};

#[track_caller]
fn says(run: &Run, parts: &[&str]) -> ptx_emu_core::Diagnostic {
    let diagnostic = run.diagnostic();
    let text = diagnostic.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    diagnostic
}

#[test]
fn out_of_bounds_names_the_allocation_and_distance() {
    let body =
        |count: u32| format!("setp.lt.u32 %p1, %tid, {count}; @%p1 st.global.u32 [%po], %tid;");
    let run = Run { out_bytes: 80, ..Run::body(&body(32)) };
    let diagnostic = says(
        &run,
        &[
            "out of bounds: write of 4 bytes at global address",
            "`out`",
            "ends 0 bytes before it",
            "kernel `k`",
            "warp 0, lane 20",
            "CTA (0, 0, 0)",
            "schedule eager",
        ],
    );
    assert_eq!(diagnostic.kind, DiagnosticKind::OutOfBounds);
    let access = diagnostic.access.unwrap();
    assert_eq!((access.space, access.kind, access.bytes), (Space::Global, AccessKind::Write, 4));
    Run { out_bytes: 80, ..Run::body(&body(20)) }.bytes();
}

#[test]
fn out_of_bounds_in_a_coalesced_load_names_the_first_lane_outside() {
    let load = "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1]; st.global.u32 [%po], %r1;";
    let address = |scale: u32| format!("mad.wide.u32 %d1, %tid, {scale}, %in; {load}");
    let short = Run { input: vec![1; 16 * 30], ..Run::body(&address(16)) };
    says(&short, &["out of bounds: read of 16 bytes", "`in`", "lane 30"]);
    let cut = Run { input: vec![1; 16 * 30 + 8], ..Run::body(&address(16)) };
    says(&cut, &["out of bounds: read of 16 bytes", "ends 8 bytes into it", "lane 30"]);
    Run { input: vec![1; 512], ..Run::body(&address(16)) }.bytes();
}

#[test]
fn misaligned() {
    let body =
        |at: u32| format!("ld.global.v2.u32 {{%r1, %r2}}, [%in+{at}]; st.global.u32 [%po], %r1;");
    let diagnostic =
        says(&Run::body(&body(4)), &["misaligned: read of 8 bytes", "not a multiple of 8"]);
    assert_eq!(diagnostic.kind, DiagnosticKind::Misaligned { required: 8 });
    Run::body(&body(8)).bytes();
}

#[test]
fn uninitialised_global_read() {
    let body = |value: &str| format!("{value} ld.global.u32 %r1, [%po]; st.global.u32 [%po], %r1;");
    says(
        &Run::body(&body("")),
        &[
            "uninitialised read: read of 4 bytes at global address",
            "`out`",
            "at offset 0",
            "lane 0",
        ],
    );
    Run::body(&body("st.global.u32 [%po], 1;")).bytes();
    // One byte of four is enough.
    let partial = "st.global.u16 [%po], 1; st.global.u8 [%po+2], 1;";
    let diagnostic = says(&Run::body(&body(partial)), &["uninitialised read"]);
    let access = diagnostic.access.unwrap();
    assert_eq!(
        diagnostic.kind,
        DiagnosticKind::UninitialisedRead { first: access.address + 3, user: None }
    );
}

#[test]
fn uninitialised_shared_and_local_reads() {
    let shared = |store: &str| {
        format!(
            ".shared .align 4 .b32 s[32]; shl.b32 %r1, %tid, 2; mov.u32 %r2, s;
            add.u32 %r2, %r2, %r1; {store} bar.sync 0;
            ld.shared.u32 %r3, [%r2]; st.global.u32 [%po], %r3;"
        )
    };
    says(
        &Run::body(&shared("setp.ne.u32 %p1, %tid, 5; @%p1 st.shared.u32 [%r2], %tid;")),
        &["uninitialised read: read of 4 bytes at shared address 0x414", "lane 5"],
    );
    Run::body(&shared("st.shared.u32 [%r2], %tid;")).bytes();
    let local = |store: &str| {
        format!(
            ".local .align 4 .b8 l[8]; {store} ld.local.u32 %r3, [l+4]; st.global.u32 [%po], %r3;"
        )
    };
    says(&Run::body(&local("")), &["uninitialised read", "local address 0x4", "thread"]);
    Run::body(&local("st.local.u32 [l+4], 3;")).bytes();
}

#[test]
fn shared_and_local_bounds() {
    let shared = |at: u32| {
        format!(
            ".shared .align 4 .b8 s[64]; mov.u32 %r1, s; add.u32 %r1, %r1, {at};
            st.shared.u32 [%r1], 1; st.global.u32 [%po], 1;"
        )
    };
    says(
        &Run::body(&shared(64)),
        &["out of bounds: write of 4 bytes at shared address", "shared memory of the CTA"],
    );
    Run::body(&shared(60)).bytes();
    says(&Run::body("st.shared.u32 [0], 1;"), &["out of bounds", "shared address 0x0"]);
    let local = |at: u32| {
        format!(".local .align 4 .b8 l[16]; st.local.u32 [l+{at}], 1; st.global.u32 [%po], 1;")
    };
    says(&Run::body(&local(16)), &["out of bounds: write of 4 bytes at local address 0x10"]);
    Run::body(&local(12)).bytes();
}

#[test]
fn writes_to_parameters_and_constants() {
    let text = |space: &str| {
        format!(
            "cvta.param.u64 %d1, in_param; cvta.global.u64 %d2, %po; setp.eq.u32 %p1, {space}, 1;
            selp.b64 %d3, %d1, %d2, %p1; st.u32 [%d3], 5;"
        )
    };
    says(&Run::body(&text("1")), &["read-only: write of 4 bytes at param address 0x8"]);
    assert_eq!(Run::body(&text("2")).words(), [5; 32]);
}

#[test]
fn divergent_aligned_barrier() {
    let body = |skip: &str| {
        format!(
            "setp.lt.u32 %p1, %tid, {skip}; @%p1 bra SKIP; bar.sync 0; bra END;
            SKIP: bar.sync 0; END: st.global.u32 [%po], 1;"
        )
    };
    let diagnostic = says(
        &Run::body(&body("4")),
        &["divergent .aligned instruction", "live lanes", "they are at line", "`setp"],
    );
    let DiagnosticKind::DivergentAligned { present, missing, .. } = diagnostic.kind else {
        panic!("{diagnostic}");
    };
    assert_eq!(present ^ missing, u32::MAX);
    Run::body(&body("32")).bytes();
    // A long divergent path before the barrier is no divergence at it.
    Run::body(
        "mov.u32 %r1, 0; setp.lt.u32 %p1, %tid, 3; @!%p1 bra JOIN;
         L: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 20000; @%p2 bra L;
         JOIN: bar.sync 0; st.global.u32 [%po], 1;",
    )
    .bytes();
}

#[test]
fn members_that_never_come() {
    let body = |members: &str| {
        format!(
            "setp.lt.u32 %p1, %tid, 16; @!%p1 bra OTHER;
            shfl.sync.bfly.b32 %r1, %tid, 1, 31, {members}; bra END;
            OTHER: bar.warp.sync 0xffff0000; mov.u32 %r1, 0; bar.sync 0;
            END: st.global.u32 [%po], %r1; bar.sync 0;"
        )
    };
    says(
        &Run::body(&body("0x0001ffff")),
        &["missing members: the member mask is 0x0001ffff", "lanes 0x00010000 of it never arrive"],
    );
    // Lanes may name the others only if they come: this twin names its own half.
    let twin = "setp.lt.u32 %p1, %tid, 16; @!%p1 bra OTHER;
        shfl.sync.bfly.b32 %r1, %tid, 1, 31, 0xffff; bra END;
        OTHER: bar.warp.sync 0xffff0000; mov.u32 %r1, 0;
        END: bar.sync 0; st.global.u32 [%po], %r1;";
    let words = Run::body(twin).words();
    assert_eq!(words[..16], std::array::from_fn::<u32, 16, _>(|i| i as u32 ^ 1));
}

#[test]
fn a_lane_outside_its_member_mask() {
    let body = |members: &str| {
        format!("vote.sync.ballot.b32 %r1, 1, {members}; st.global.u32 [%po], %r1;")
    };
    says(&Run::body(&body("0x7fffffff")), &["not a member", "0x7fffffff", "lane 31"]);
    assert_eq!(Run::body(&body("-1")).words(), [u32::MAX; 32]);
}

#[test]
fn shuffles_from_lanes_that_do_not_take_part() {
    let body = |limit: u32| {
        format!(
            "setp.ge.u32 %p1, %tid, {limit}; st.global.u32 [%po], 0; @%p1 exit;
            shfl.sync.down.b32 %r1, %tid, 1, 31, -1; st.global.u32 [%po], %r1;"
        )
    };
    says(&Run::body(&body(20)), &["undefined value: this depends on what shfl.sync", "lane 19"]);
    Run::body(&body(32)).bytes();
}

#[test]
fn barrier_mismatches() {
    let body = |count: &str| {
        format!(
            "setp.lt.u32 %p1, %tid, 32; @%p1 bra A; bar.sync 1, {count}; bra END;
            A: bar.sync 1, 64; END: st.global.u32 [%po], 1;"
        )
    };
    let run = |count| Run { block: 64, out_bytes: 256, ..Run::body(&body(count)) };
    says(&run("32"), &["barrier mismatch: barrier 1: required 64 threads", "actual 32 threads"]);
    says(&run("48"), &["positive multiple of 32", "48"]);
    run("64").bytes();
    let over = "bar.arrive 2, 32; st.global.u32 [%po], 1;";
    Run { block: 64, out_bytes: 256, ..Run::body(over) }.bytes();
    says(&Run::body("bar.sync 16; st.global.u32 [%po], 1;"), &["a number below 16", "16"]);
}

#[test]
fn deadlock_says_who_waits_for_what() {
    let body = |count: u32| {
        format!(
            "setp.lt.u32 %p1, %tid, 32; @%p1 bra A; bar.sync 3, {count};
            A: st.global.u32 [%po], 1;"
        )
    };
    for schedule in crate::support::SCHEDULES {
        let run = Run { block: 96, out_bytes: 384, schedule, ..Run::body(&body(96)) };
        let diagnostic = says(
            &run,
            &[
                "deadlock: CTA (0, 0, 0) warp 1 lanes 0xffffffff line",
                "warp 2",
                "waits for barrier 3 (64 of 96 threads arrived)",
            ],
        );
        assert_eq!(diagnostic.schedule, schedule);
        Run { block: 96, out_bytes: 384, schedule, ..Run::body(&body(64)) }.bytes();
    }
}

#[test]
fn trap_breakpoint_and_bad_targets() {
    let body =
        |what: &str| format!("setp.eq.u32 %p1, %tid, 9; @%p1 {what}; st.global.u32 [%po], 1;");
    says(
        &Run::body(&body("trap")),
        &["trap executed", "`ld.param", "lane 9"]
            .map(|s| if s.starts_with('`') { "lane 9" } else { s }),
    );
    says(&Run::body(&body("brkpt")), &["breakpoint executed", "lane 9"]);
    let branch = |limit: u32| {
        format!(
            "min.u32 %r1, %tid, {limit}; T: .branchtargets A, B; brx.idx %r1, T;
            A: B: st.global.u32 [%po], 1;"
        )
    };
    says(&Run::body(&branch(2)), &["bad target 0x2", "lane 2"]);
    Run::body(&branch(1)).bytes();
    let call = "P: .callprototype _ (); mov.u64 %d1, 64; call %d1, (), P; st.global.u32 [%po], 1;";
    says(&Run::body(call), &["bad target 0x40"]);
}

#[test]
fn endless_recursion() {
    let text = |limit: u32| {
        module(&format!(
            ".func f(.reg .b32 n) {{ .reg .pred %p; .reg .b32 %m;
                setp.ge.u32 %p, n, {limit}; @%p ret; add.u32 %m, n, 1; call f, (%m); ret; }}
             .visible .entry k(.param .u64 out, .param .u64 in) {{ call f, (0);
                .reg .b64 %o; .reg .b32 %t; ld.param.u64 %o, [out]; mov.u32 %t, %tid.x;
                mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], 1; ret; }}"
        ))
    };
    says(&Run::new(text(1_000_000)), &["stack overflow: 4096 nested calls"]);
    assert_eq!(Run::new(text(1000)).words(), [1; 32]);
}

#[test]
fn instruction_limit() {
    let body = |end: u32| {
        format!(
            "mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, {end}; @%p1 bra L; st.global.u32 [%po], 1;"
        )
    };
    let run = |end| Run { limit: Some(10_000), ..Run::body(&body(end)) };
    says(&run(0), &["instruction limit: more than 10000 warp instructions in one cluster"]);
    run(1000).bytes();
}

#[test]
fn everything_unsupported_is_listed_at_load() {
    let text = kernel(
        "multimem.red.relaxed.sys.global.add.u32 [%in], 1;
         add.u32 %r1, %r1, 1;
         suq.width.b32 %r1, [%d1];
         ld.global.frobnicate.u32 %r1, [%in];
         cvt.rn.satfinite.e4m3x2.bogus %h1, %f1, %f2;",
    );
    let LoadError::Unsupported(list) = load_error(&text) else {
        panic!("another error");
    };
    let lines: Vec<&str> = list.iter().map(|item| item.instruction.as_str()).collect();
    assert_eq!(list.len(), 4, "{lines:?}");
    assert!(list[0].why.contains("multimem"), "{}", list[0]);
    assert!(list[2].why.contains(".frobnicate"), "{}", list[2]);
    let text = load_error(&text).to_string();
    assert!(text.starts_with("4 unsupported:\n  line "), "{text}");
    Module::load(&kernel("add.u32 %r1, %r1, 1;"), &Gpu::h200()).unwrap();
}

#[test]
fn other_load_errors_name_line_and_reason() {
    let error = |body: &str| load_error(&kernel(body)).to_string();
    assert!(error("add.u32 %r1, %nothing, 1;").contains("unknown name `%nothing`"));
    assert!(error("bra NOWHERE;").contains("unknown name `NOWHERE`"));
    assert!(error("add.u64 %d1, %r1, 1;").contains("required 64 bits"));
    assert!(error("add.u32 %r1, %r2;").contains("operands: required at least 3, actual 2"));
    let target = ".version 9.0\n.target sm_100a\n.address_size 64\n";
    let message = load_error(target).to_string();
    assert!(message.contains("h200 runs (sm_90a") && message.contains("sm_100a"), "{message}");
    Module::load(target, &Gpu::b200()).unwrap();
    Module::load(&target.replace("sm_100a", "sm_80"), &Gpu::b200()).unwrap();
}

#[test]
fn bad_launches_name_field_required_and_actual() {
    let text = module(".visible .entry k(.param .u32 x) .reqntid 64, 1, 1 { ret; }");
    let module = Module::load(&text, &Gpu::h200()).unwrap();
    let good = Launch {
        entry: "k",
        grid: [2, 1, 1],
        block: [64, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        params: &[0; 4],
        schedule: Schedule::Eager,
        threads: None,
        instruction_limit: None,
        checks: Checks::default(),
    };
    let field = |launch: &Launch<'_>| match module.launch(&mut GlobalMemory::new(), launch) {
        Err(LaunchError::BadLaunch { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert!(module.launch(&mut GlobalMemory::new(), &good).is_ok());
    assert_eq!(field(&Launch { entry: "nope", ..good.clone() }), "entry");
    assert_eq!(field(&Launch { grid: [0, 1, 1], ..good.clone() }), "grid");
    assert_eq!(field(&Launch { grid: [1, 65536, 1], ..good.clone() }), "grid");
    assert_eq!(field(&Launch { block: [32, 1, 1], ..good.clone() }), "block");
    assert_eq!(field(&Launch { params: &[0; 8], ..good.clone() }), "params");
    assert_eq!(field(&Launch { cluster: Some([3, 1, 1]), ..good.clone() }), "grid");
    assert_eq!(field(&Launch { cluster: Some([32, 1, 1]), ..good.clone() }), "cluster");
    assert_eq!(field(&Launch { dynamic_shared: 240 << 10, ..good.clone() }), "shared memory");
    let error =
        module.launch(&mut GlobalMemory::new(), &Launch { block: [32, 1, 1], ..good }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "launch of `k`: block: required [64, 1, 1] (.reqntid), actual [32, 1, 1]"
    );
}
