//! Timelines: well-formed, and they say who ended each wait.

use crate::async_support::{Case, barriers};
use ptx_emu::trace::Trace;
use ptx_emu::{Checks, GlobalMemory, Gpu, Launch, LaunchError, LaunchReport, Module, Schedule};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Four tiles through two stages: warp 0 loads, warp 1 adds up; then both meet.
fn ring() -> Case {
    let body = format!(
        "{}
        mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r20, 0;
        setp.ne.u32 %p1, %wid, 0; @%p1 bra CONSUMER;
        xor.b32 %r12, %r12, 1;
        LOAD: mad.lo.u32 %r13, %r11, 8, %b;
        EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r13+16], %r12; @!%p3 bra EMPTY;
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r13], 128;
        mad.lo.u32 %r14, %r11, 128, %s; mad.wide.u32 %d2, %r10, 128, %in;
        @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r14], [%d2], 128, [%r13];
        add.u32 %r11, %r11, 1; setp.eq.u32 %p4, %r11, 2; @%p4 xor.b32 %r12, %r12, 1;
        @%p4 mov.u32 %r11, 0;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 4; @%p5 bra LOAD;
        bra END;
        CONSUMER: mad.lo.u32 %r13, %r11, 8, %b;
        FULL: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r13], %r12; @!%p3 bra FULL;
        mad.lo.u32 %r14, %r11, 128, %s; mad.lo.u32 %r14, %lane, 4, %r14;
        ld.shared.u32 %r16, [%r14]; add.u32 %r20, %r20, %r16;
        bar.warp.sync -1; setp.eq.u32 %p6, %lane, 0;
        @%p6 mbarrier.arrive.shared::cta.b64 _, [%r13+16];
        add.u32 %r11, %r11, 1; setp.eq.u32 %p4, %r11, 2; @%p4 xor.b32 %r12, %r12, 1;
        @%p4 mov.u32 %r11, 0;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, 4; @%p5 bra CONSUMER;
        END: bar.sync 0;
        mad.lo.u32 %r15, %cta, 64, %tid; mad.wide.u32 %d3, %r15, 4, %out; st.global.u32 [%d3], %r20;",
        barriers(&[1, 1, 1, 1]),
    );
    Case { grid: 2, ..Case::new(&body).block(64).out(512) }
}

/// Launches with a timeline; what is in the output after it.
fn traced(
    case: &Case,
    schedule: Schedule,
    limit: u64,
) -> (Result<LaunchReport, LaunchError>, Trace, Vec<u8>) {
    let module = Module::load(&case.text(), &Gpu::h200()).expect("it loads");
    let mut memory = GlobalMemory::new();
    let input = memory.alloc_from("in", &case.input).expect("room");
    let out = memory.alloc("out", case.out_bytes, 1024).expect("room");
    let mut params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
    params.resize(64 + 128, 0);
    let launch = Launch {
        entry: "k",
        grid: [case.grid, 1, 1],
        block: [case.block, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        params: &params,
        schedule,
        threads: None,
        instruction_limit: Some(case.limit),
        checks: Checks::default(),
    };
    let (result, trace) = module.launch_traced(&mut memory, &launch, limit);
    (result, trace, memory.read_raw(out, case.out_bytes).expect("there"))
}

fn trace(case: &Case, schedule: Schedule, limit: u64) -> (Value, bool) {
    let (result, trace, _) = traced(case, schedule, limit);
    assert!(!matches!(result, Err(LaunchError::BadLaunch { .. })), "{result:?}");
    (ptx_emu::trace::to_json(&trace), result.is_ok())
}

fn events(trace: &Value) -> &Vec<Value> {
    trace["traceEvents"].as_array().expect("a list")
}

fn text<'v>(event: &'v Value, field: &str) -> &'v str {
    event[field].as_str().unwrap_or_else(|| panic!("{field} of {event}"))
}

/// Checks the rules of the format: order, B and E in pairs, every wait with its cause.
fn check(trace: &Value) {
    let mut last = 0;
    let mut open: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    for event in events(trace) {
        let ts = event["ts"].as_u64().expect("a step");
        let kind = text(event, "ph");
        assert!(kind == "M" || ts >= last, "{event} after {last}");
        last = if kind == "M" { 0 } else { ts };
        let track = (event["pid"].as_u64().expect("pid"), event["tid"].as_u64().expect("tid"));
        let name = text(event, "name").to_owned();
        match kind {
            "B" => {
                let row = open.entry(track).or_default();
                assert!(row.is_empty(), "{event} inside {row:?}");
                if name.starts_with("wait: ") {
                    assert!(!text(&event["args"], "ended_by").is_empty(), "{event}");
                    assert!(!text(&event["args"], "for").is_empty(), "{event}");
                }
                row.push(name);
            }
            "E" => assert_eq!(open.entry(track).or_default().pop(), Some(name), "{event}"),
            "i" | "C" | "M" => {}
            other => panic!("{other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
}

/// Spans that begin with `name`: their arguments.
fn spans<'v>(trace: &'v Value, name: &str) -> Vec<&'v Value> {
    let begin = |e: &&Value| e["ph"] == "B" && text(e, "name").starts_with(name);
    events(trace).iter().filter(begin).map(|event| &event["args"]).collect()
}

#[test]
fn a_ring_under_every_schedule() {
    for schedule in crate::async_support::schedules() {
        let (trace, right) = trace(&ring(), schedule, 1 << 20);
        assert!(right, "{schedule}");
        check(&trace);
        assert_eq!(trace["otherData"]["cut"], false);
        assert_eq!(spans(&trace, "cp.async.bulk").len(), 8, "{schedule}");
        // Full and empty barriers: two phases of each stage and CTA; `bar.sync` twice per CTA.
        let over = |what: &str| {
            let is = |e: &&Value| e["ph"] == "i" && text(e, "name").starts_with(what);
            events(&trace).iter().filter(is).count()
        };
        assert_eq!((over("mbarrier"), over("barrier 0")), (16, 4), "{schedule}");
    }
}

#[test]
fn waits_name_what_ended_them() {
    let (trace, _) = trace(&ring(), Schedule::Lazy, 1 << 20);
    let full = spans(&trace, "wait: mbarrier 0x4400");
    assert!(!full.is_empty());
    for args in full {
        assert!(text(args, "ended_by").starts_with("cp.async.bulk (operation"), "{args}");
        assert!(text(args, "line").contains("FULL"), "{args}");
    }
    let meet = spans(&trace, "wait: barrier 0");
    assert!(meet.iter().all(|args| text(args, "ended_by").starts_with("CTA (")), "{meet:?}");
    let empty = spans(&trace, "wait: mbarrier 0x4410");
    assert!(empty.iter().all(|args| text(args, "ended_by").contains("warp 1, line")), "{empty:?}");
    // The warp that loads is named by what it gives work to.
    let named = |name: &str| events(&trace).iter().any(|e| e["args"]["name"] == name);
    assert!(named("warp 0: bulk copies") && named("warp 1") && named("CTA (1, 0, 0)"));
    assert!(text(&trace["otherData"], "time_axis").contains("steps"));
}

#[test]
fn a_launch_that_goes_wrong_is_whole_too() {
    // Nobody loads: the consumer waits for ever.
    let case = Case::new(&ring().body.replace("@%leader cp.async.bulk", "@%p19 cp.async.bulk"))
        .block(64)
        .out(512);
    let (trace, right) = trace(&case, Schedule::Eager, 1 << 20);
    assert!(!right);
    check(&trace);
    let ended: Vec<&str> =
        spans(&trace, "wait: mbarrier").into_iter().map(|args| text(args, "ended_by")).collect();
    assert!(ended.contains(&"nobody: the launch ended"), "{ended:?}");
}

#[test]
fn the_limit_cuts() {
    let (trace, _) = trace(&ring(), Schedule::Random(3), 40);
    check(&trace);
    let count = events(&trace).iter().filter(|event| event["ph"] != "M").count();
    assert!(count <= 40, "{count}");
    assert_eq!(trace["otherData"]["cut"], true);
    assert!(trace["otherData"]["dropped"].as_u64() > Some(0));
}

#[test]
fn tracing_changes_nothing() {
    let case = ring();
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(5)] {
        let (plain, report) = case.launch(schedule).expect("it runs");
        let (result, _, out) = traced(&case, schedule, 1000);
        assert_eq!(result.expect("it runs"), report, "{schedule}");
        assert_eq!(out, plain, "{schedule}");
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trace-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn the_program_writes_the_file() {
    let folder = folder("program");
    let kernel = ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {
        .reg .pred %p; .reg .b32 %t; mov.u32 %t, %tid.x; bar.sync 0; setp.eq.u32 %p, %t, 99;
        @%p trap; ret; }";
    std::fs::write(folder.join("k.ptx"), kernel).expect("writable");
    let run = |block: &str, out: &Path| {
        Command::new(env!("CARGO_BIN_EXE_ptx-emu"))
            .arg("run")
            .arg(folder.join("k.ptx"))
            .args(["--entry", "k", "--grid", "1", "--block", block, "--trace"])
            .arg(out)
            .output()
            .expect("the program starts")
    };
    for (block, code) in [("64", 0), ("128", 1)] {
        let out = folder.join(format!("{block}.json"));
        let output = run(block, &out);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let json = std::fs::read_to_string(&out).expect("written");
        check(&serde_json::from_str(&json).expect("JSON"));
    }
    let output = run("64", &folder.join("missing/out.json"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
