//! Tensor memory: who may use which cells, and when.

use super::kernel::{
    AFTER, ALL, BEFORE, COMMIT, FREE, LAZY, LOAD, OUT, PRODUCT, SHAPE, alloc, bare, committed,
    kernel, product, zeros,
};
use crate::async_support::{kind, wait};
use ptx_emu_core::{AsyncFault, DiagnosticKind, Schedule, TensorFault};

#[test]
fn the_twin_of_all_gives_the_product() {
    product("", &format!("{} {AFTER} {LOAD} {OUT}", committed()))
        .gives_words([16.0f32.to_bits(); 256]);
}

#[test]
fn columns_that_are_not_allocated() {
    let after = committed();
    let cases: [(&str, &str, &[&str]); 4] = [
        (
            "",
            "add.u32 %r51, %r51, 63;",
            &["unallocated tensor memory: tcgen05.ld: columns 63 to 64"],
        ),
        ("add.u32 %r50, %r50, 56;", "", &["accumulator D: columns 56 to 71 of CTA rank 0"]),
        ("add.u32 %r12, %r50, 100;", "", &[]),
        (
            "add.u32 %r12, %r50, 62; tcgen05.cp.cta_group::1.128x128b [%r12], %d10;",
            "",
            &["unallocated tensor memory: tcgen05.cp: columns 62 to 65"],
        ),
    ];
    for (edit, late, parts) in cases {
        let case = product(edit, &format!("{after} {AFTER} {late} {LOAD}"));
        if parts.is_empty() {
            case.passes();
        } else {
            let diagnostic = case.says(&ALL, parts);
            let DiagnosticKind::Async(AsyncFault::Tensor(TensorFault::Unallocated {
                rank, ..
            })) = kind(&diagnostic)
            else {
                panic!("{diagnostic}");
            };
            assert_eq!(*rank, 0);
        }
    }
}

#[test]
fn lanes_of_another_warp() {
    let text = |lanes: u32| {
        kernel(&format!(
            "add.u32 %r51, %r50, {lanes}; shl.b32 %r12, %wid, 21; add.u32 %r51, %r51, %r12; {LOAD}"
        ))
    };
    let parts = ["of tensor memory: required ", "actual"];
    text(32 << 16).says(&ALL, &parts);
    text(16 << 16).says(&ALL, &parts);
    text(0).passes();
    // Lanes count modulo 128: a second CTA's rank does not matter.
    text(128 << 16).passes();
    let store =
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r50], {x0}; tcgen05.wait::st.sync.aligned;";
    kernel(store)
        .says(&ALL, &["lane of tensor memory: required ", "the first of the warp's own, actual 0"]);
    kernel(&format!("setp.eq.u32 %p6, %wid, 0; @!%p6 bra PAST; {store} PAST:")).passes();
}

#[test]
fn sums_read_before_their_commit_was_waited_for() {
    let parts = [
        "tensor memory in flight: read of columns 0 to 1 from lane",
        "a destination, in flight, of tcgen05.mma of line",
    ];
    product("", &format!("bar.sync 0; {AFTER} {LOAD} {}", committed())).says(&LAZY, &parts);
    product("", &format!("bar.sync 0; {} {AFTER} {LOAD}", committed())).passes();
}

#[test]
fn cells_written_while_a_product_uses_them() {
    let store =
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r51], {x0}; tcgen05.wait::st.sync.aligned;";
    let text = |before: &str| product("", &format!("bar.sync 0; {before} {store} {}", committed()));
    text("").says(&LAZY, &["tensor memory in flight: write of columns 0 to 0", "of tcgen05.mma"]);
    product("", &format!("{} {AFTER} {store}", committed())).passes();
    // The same before the product has been issued, but not waited for.
    let text = |wait: &str| {
        let store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r51], {x0};";
        kernel(&format!(
            "setp.ne.u32 %p6, %wid, 0; @%p6 bra ISSUED; {store} {wait}
            @!%leader bra ISSUED; {PRODUCT} {COMMIT} ISSUED: {} tcgen05.wait::st.sync.aligned;",
            committed()
        ))
    };
    text("").says(&LAZY, &["tensor memory in flight: write of columns 0 to 15", "of tcgen05.st"]);
    text("tcgen05.wait::st.sync.aligned;").passes();
}

#[test]
fn cells_that_were_never_written() {
    let body = |after: &str| bare(&format!("{} {after} {FREE}", alloc(64)));
    let parts = ["uninitialised tensor memory: tcgen05.ld: lane", "column 0 was never written"];
    body(LOAD).says(&ALL, &parts);
    let text = |enable: &str| {
        let enable = format!("setp.{enable}.u32 %p5, 0, 0;");
        body(&format!("{enable} @!%leader bra ISSUED; {PRODUCT} {COMMIT} ISSUED: {}", committed()))
    };
    text("eq").says(&ALL, &["uninitialised tensor memory: accumulator D: lane 0, column 0"]);
    text("ne").passes();
    // An A, and scales, that nobody wrote.
    let from = "add.u32 %r12, %r50, 40;
        tcgen05.mma.cta_group::1.kind::f16 [%r50], [%r12], %d11, %r10, %p5;";
    product(from, &committed()).says(&ALL, &["matrix A in tensor memory: lane 0, column 40"]);
    let scaled = |column: u32| {
        format!(
            "mov.b32 %r10, {:#x}; add.u32 %r12, %r50, {column}; setp.ne.u32 %p5, 0, 0;
            tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16
            [%r50], %d10, %d11, %r10, [%r12], [%r12], %p5; setp.eq.u32 %p5, 0, 0;
            mov.b32 %r10, {SHAPE:#x};",
            1 << 7 | 1 << 10 | 2 << 17 | 1 << 27
        )
    };
    product(&scaled(40), &committed()).says(&ALL, &["scales of A: lane 0, column 40"]);
    product(&scaled(20), &committed()).passes();
    // Allocating columns again forgets what was there.
    let again = format!("{FREE} {} {LOAD}", alloc(64).replace("ALLOCATED", "AGAIN"));
    kernel(&again.replace("FREED", "FIRST"))
        .says(&ALL, &["uninitialised tensor memory: tcgen05.ld"]);
}

#[test]
fn registers_used_before_their_load_was_waited_for() {
    let text = |wait: &str, rest: &str| {
        kernel(&format!(
            "tcgen05.ld.sync.aligned.32x32b.x2.b32 {{x0, x1}}, [%r51]; {wait} {OUT} {rest}"
        ))
    };
    let late = "tcgen05.wait::ld.sync.aligned;";
    text("", late).says(
        &ALL,
        &[
            "registers in flight: tcgen05.ld of line",
            "tcgen05.wait::ld must come first",
            "st.global.v2.b32",
        ],
    );
    text("tcgen05.wait::st.sync.aligned;", late).says(&ALL, &["tcgen05.wait::ld must come first"]);
    text(late, "").passes();
}

#[test]
fn a_missing_fence_after_a_barrier() {
    let text = |fence: &str| product("", &format!("{} {fence} {LOAD}", committed()));
    let parts = [
        "missing tcgen05.fence::after_thread_sync: column 0 was written by tcgen05.mma of line",
        "this warp has not executed the fence",
    ];
    text("").says(&LAZY, &parts);
    // Under the random schedule the product may be over before the other warps' first
    // fence.
    let missing = text("");
    let found = (0..64).filter(|&seed| missing.launch(Schedule::Random(seed)).is_err()).count();
    assert!(found > 32, "{found} of 64 seeds");
    text(AFTER).passes();
}

#[test]
fn a_missing_fence_before_a_barrier() {
    // All warps load what a product then overwrites.
    let text = |fence: &str| {
        kernel(&format!(
            "\n{LOAD}\n{fence} bar.sync 0; {AFTER} @!%leader bra ISSUED;\n{PRODUCT} {COMMIT}
            ISSUED: {}",
            committed()
        ))
    };
    let parts = [
        "missing tcgen05.fence::before_thread_sync: column 0 was read by tcgen05.ld of line",
        "has not executed the fence between it and what this warp waited for",
    ];
    text("").says(&LAZY, &parts);
    text(BEFORE).passes();
}

#[test]
fn commits_arrive_in_any_order() {
    let second = COMMIT.replace("[%b]", "[%b+16]");
    let text = |first: &str| {
        kernel(&format!(
            "@%leader mbarrier.init.shared::cta.b64 [%b+16], 1; bar.sync 0;
            @!%leader bra ISSUED; {PRODUCT} {COMMIT} {second} ISSUED: {} {first}",
            wait(2, "0", "SECOND")
        ))
    };
    text("").says(&LAZY, &["exit with an operation in flight: tcgen05.commit of line"]);
    text(&committed()).passes();
}

#[test]
fn allocations() {
    let text = |columns: &str| {
        bare(&format!(
            "setp.ne.u32 %p2, %wid, 0; @%p2 bra END; add.u32 %r49, %b, 8; {columns} END:"
        ))
    };
    let alloc = |columns: u32| {
        format!(
            "mov.u32 %r48, {columns};
            tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r49], %r48;"
        )
    };
    let free = |at: u32, columns: u32| {
        format!("tcgen05.dealloc.cta_group::1.sync.aligned.b32 {at}, {columns};")
    };
    let permit = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;";
    for columns in [0, 16, 33, 48, 96, 1024] {
        let parts = ["tcgen05.alloc: columns: required a power of two from 32 to 512, actual"];
        text(&alloc(columns)).says(&ALL, &parts);
    }
    for columns in [32, 64, 128, 256, 512] {
        text(&(alloc(columns) + &free(0, columns))).passes();
    }
    let cases: [(String, &[&str]); 9] = [
        (
            alloc(64),
            &["tensor memory not freed: columns 0 to 63 of tcgen05.alloc of line", "CTA exits"],
        ),
        (alloc(32) + &alloc(64), &["required at most 32, as the CTA's last allocation, actual 64"]),
        (
            permit.to_owned() + &alloc(32),
            &["tcgen05.alloc: required no allocation after relinquish"],
        ),
        (permit.to_owned() + permit, &["tcgen05.relinquish_alloc_permit: required once in a CTA"]),
        (
            free(0, 32),
            &["tcgen05.dealloc: required one of the CTA's allocations (), actual 32 columns"],
        ),
        (alloc(64) + &free(0, 32), &["(64 columns at 0x0), actual 32 columns at 0x0"]),
        (alloc(64) + &free(32, 64), &["actual 64 columns at 0x20"]),
        (alloc(64) + &free(1 << 16, 64), &["actual 64 columns at 0x10000"]),
        (alloc(64) + &free(0, 64) + &free(0, 64), &["tcgen05.dealloc: required one of"]),
    ];
    for (body, parts) in cases {
        text(&body).says(&ALL, parts);
    }
    let two = alloc(64) + &alloc(32) + permit + &free(0, 64) + &free(64, 32);
    text(&two).passes();
    // The address goes where the instruction says.
    text(
        "mov.u32 %r49, 90000; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r49], 32;",
    )
    .says(&ALL, &["out of bounds"]);
}

#[test]
fn columns_freed_while_in_use() {
    let text = |before: &str, after: &str| {
        bare(&format!(
            "{} {} @!%leader bra ISSUED; {PRODUCT} {COMMIT} ISSUED: {before} bar.sync 0;
            setp.ne.u32 %p2, %wid, 0; @%p2 bra FREED;
            tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r50, 64; FREED: {after}",
            alloc(64),
            zeros()
        ))
    };
    let parts = ["tensor memory in flight: write of columns 0 to 63", "of tcgen05.mma"];
    text("", &committed()).says(&LAZY, &parts);
    text(&committed(), "").passes();
}

#[test]
fn more_columns_than_there_are_wait_for_others() {
    let alloc = |at: u32, columns: u32| {
        format!(
            "add.u32 %r49, %b, {at};
            tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r49], {columns};"
        )
    };
    let text = |free: &str| {
        bare(&format!(
            "setp.ge.u32 %p2, %wid, 2; @%p2 bra END; setp.eq.u32 %p2, %wid, 1; @%p2 bra SECOND;
            {} bar.arrive 1, 64; bar.sync 2, 64; {free} bra END;
            SECOND: bar.sync 1, 64; bar.arrive 2, 64; {}
            tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 512; END:",
            alloc(8, 512),
            alloc(16, 512)
        ))
    };
    text("tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 512;").passes();
    for schedule in ALL {
        let text = text("bar.sync 3, 64;").fails(schedule).to_string();
        assert!(
            text.contains("deadlock") && text.contains("512 columns of tensor memory"),
            "{text}"
        );
    }
}
