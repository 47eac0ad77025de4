//! Every diagnostic of `wgmma` has a small program that must trigger it, with its text,
//! and a twin that must not.

use crate::async_support::{Case, kind};
use crate::tensor_cores::copy_in;
use ptx_emu_core::{AsyncFault, DiagnosticKind, Gpu, Module, Schedule, TensorFault};

const ALL: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)];
const LAZY: [Schedule; 1] = [Schedule::Lazy];

/// `A` of 64x16 f16 at `s`, `B` of 8x16 behind it, both without swizzle.
const A: u64 = 1024 >> 4 | (1024 >> 4) << 16 | (128 >> 4) << 32;
const B: u64 = (1024 + 2048) >> 4 | (128 >> 4) << 16 | (128 >> 4) << 32;
const BYTES: usize = 2048 + 256;

const FENCE: &str = "wgmma.fence.sync.aligned;";
const COMMIT: &str = "wgmma.commit_group.sync.aligned;";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;";
const PRODUCT: &str = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {x0, x1, x2, x3}, da, db, yes, 1, 1, 0, 0;";
const FROM_REGISTERS: &str = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {x0, x1, x2, x3}, {a0, a1, a2, a3}, db, yes, 1, 1, 0;";
const OUT: &str = "mad.wide.u32 %d2, %tid, 16, %out; st.global.v4.b32 [%d2], {x0, x1, x2, x3};";

/// A kernel of one warpgroup with operands in shared memory and zeros in registers.
fn bare(setup: &str, body: &str) -> Case {
    let text = format!(
        "{{ .reg .b32 x<4>, y<4>, a<4>; .reg .b64 da, db; .reg .pred yes;
        setp.eq.u32 yes, 0, 0; mov.b64 da, {A:#x}; mov.b64 db, {B:#x};
        mov.b32 x0, 0; mov.b32 x1, 0; mov.b32 x2, 0; mov.b32 x3, 0;
        mov.b32 a0, 0; mov.b32 a1, 0; mov.b32 a2, 0; mov.b32 a3, 0;
        mov.u64 %d0, %in; mov.u32 %r0, %s;
        {setup} {body} }}"
    );
    let mut case = Case::new(&text).block(128).out(2048);
    case.input = [0x00, 0x3c].repeat(BYTES / 2);
    case.shared = 4096;
    case
}

fn kernel(body: &str) -> Case {
    bare(&copy_in(BYTES, 128), body)
}

#[test]
fn an_accumulator_touched_before_the_wait() {
    let text = |touch: &str| format!("{FENCE} {PRODUCT} {COMMIT} {touch} {WAIT} {OUT}");
    let diagnostic = kernel(&text("add.u32 %r10, x1, 1;")).says(
        &ALL,
        &[
            "registers in flight: wgmma.mma_async of line",
            "m64n8k16.f32.f16.f16",
            "still uses a register of this instruction; wgmma.wait_group must come first",
            "add.u32 %r10, x1, 1;",
            "CTA (0, 0, 0), warp ",
        ],
    );
    let DiagnosticKind::Async(AsyncFault::Tensor(TensorFault::RegistersInFlight {
        operation,
        wait,
        ..
    })) = kind(&diagnostic)
    else {
        panic!("{diagnostic}");
    };
    assert!(operation.line < diagnostic.line && *wait == "wgmma.wait_group");
    kernel(&text("mov.b32 x3, 0;")).says(&ALL, &["registers in flight", "mov.b32 x3, 0;"]);
    kernel(&text("st.shared.v2.b32 [%s+4000], {x0, x1};")).says(&ALL, &["registers in flight"]);
    kernel(&text("add.u32 %r10, %r11, 1;")).passes();
}

#[test]
fn waits_that_keep_too_many_groups() {
    let text = |keep: u32| {
        format!(
            "{FENCE} {PRODUCT} {COMMIT} wgmma.wait_group.sync.aligned {keep};
            mov.b32 y0, x0; {WAIT} {OUT}"
        )
    };
    kernel(&text(1)).says(&ALL, &["registers in flight", "mov.b32 y0, x0;"]);
    kernel(&text(0)).passes();
    // The first of two groups of different registers is over when one may be left.
    let two = |keep: u32| {
        format!(
            "mov.b32 y0, 0; mov.b32 y1, 0; mov.b32 y2, 0; mov.b32 y3, 0; {FENCE} {PRODUCT} {COMMIT}
            wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
            {{y0, y1, y2, y3}}, da, db, yes, 1, 1, 0, 0; {COMMIT}
            wgmma.wait_group.sync.aligned {keep}; {OUT} {WAIT}"
        )
    };
    kernel(&two(2)).says(&ALL, &["registers in flight"]);
    kernel(&two(1)).passes();
    // Uncommitted ones are not waited for.
    let uncommitted = format!("{FENCE} {PRODUCT} {WAIT} {OUT} {COMMIT} {WAIT}");
    kernel(&uncommitted).says(&ALL, &["registers in flight"]);
}

#[test]
fn matrix_a_in_registers_written_before_the_wait() {
    let text = |touch: &str| format!("{FENCE} {FROM_REGISTERS} {COMMIT} {touch} {WAIT} {OUT}");
    let parts = ["registers in flight: wgmma.mma_async", "mov.b32 a2, 7;"];
    kernel(&text("mov.b32 a2, 7;")).says(&ALL, &parts);
    kernel(&text("")).passes();
    kernel(&format!("{} mov.b32 a2, 7;", text(""))).passes();
    // An accumulator in flight is no matrix A.
    let chained = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
        {y0, y1, y2, y3}, {x0, x1, x2, x3}, db, yes, 1, 1, 0;";
    let text = |between: &str| {
        format!(
            "mov.b32 y0, 0; mov.b32 y1, 0; mov.b32 y2, 0; mov.b32 y3, 0;
            {FENCE} {PRODUCT} {between} {chained} {COMMIT} {WAIT} {OUT}"
        )
    };
    kernel(&text("")).says(&ALL, &["registers in flight"]);
    kernel(&text(&format!("{COMMIT} {WAIT} {FENCE}"))).passes();
}

#[test]
fn a_missing_fence() {
    let text =
        |fence: &str, again: &str| format!("{fence} {PRODUCT} {again} {COMMIT} {WAIT} {OUT}");
    let parts = [
        "missing wgmma.fence: registers of the accumulator were written by other instructions",
        "since the warp's last wgmma.fence",
    ];
    kernel(&text("", "")).says(&ALL, &parts);
    kernel(&text(&format!("{FENCE} mov.b32 x1, 0;"), "")).says(&ALL, &parts);
    kernel(&text(&format!("mov.b32 x1, 0; {FENCE}"), "")).passes();
    // None between products of one shape into the same registers.
    kernel(&text(FENCE, PRODUCT)).passes();
    let a = format!("{FENCE} mov.b32 a0, 1; {FROM_REGISTERS} {COMMIT} {WAIT} {OUT}");
    kernel(&a).says(&ALL, &["missing wgmma.fence: registers of the matrix A"]);
    kernel(&a.replace("mov.b32 a0, 1;", "")).passes();
}

#[test]
fn accumulators_that_overlap_in_flight() {
    let other = "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16
        {x0, x1}, da, db, yes, 1, 1, 0, 0;";
    let text = |between: &str| format!("{FENCE} {PRODUCT} {between} {other} {COMMIT} {WAIT} {OUT}");
    kernel(&text("")).says(&ALL, &["registers in flight: wgmma.mma_async"]);
    kernel(&text(&format!("{COMMIT} {WAIT} {FENCE}"))).passes();
}

#[test]
fn shared_operands_written_while_in_flight() {
    let text = |wait: &str, at: u32| {
        format!(
            "{FENCE} {PRODUCT} {COMMIT} {wait} bar.sync 0;
            mad.lo.u32 %r10, %tid, 4, %s; st.shared.u32 [%r10+{at}], 0; {WAIT} {OUT}"
        )
    };
    let parts = ["in flight: write of 4 bytes at 0x", "a source, not read yet, of wgmma.mma_async"];
    kernel(&text("", 0)).says(&LAZY, &parts);
    kernel(&text("", 2048)).says(&LAZY, &parts);
    kernel(&text("", 3072)).passes();
    kernel(&text(WAIT, 0)).passes();
}

#[test]
fn operands_written_without_a_proxy_fence() {
    let copy = copy_in(BYTES, 128);
    let body = format!("{FENCE} {PRODUCT} {COMMIT} {WAIT} {OUT}");
    bare(&copy.replace("fence.proxy.async;", ""), &body).says(
        &ALL,
        &[
            "missing proxy fence: wgmma.mma_async reads 0x",
            "st.shared.v4.u32",
            "without fence.proxy.async since",
        ],
    );
    bare(&copy, &body).passes();
    let late = copy.replace("fence.proxy.async; bar.sync 0;", "bar.sync 0; fence.proxy.async;");
    bare(&late, &body).passes();
}

#[test]
fn instructions_that_not_all_lanes_execute() {
    let text = |guard: &str| {
        format!(
            "and.b32 %r10, %tid, 31; setp.ge.u32 %p3, %r10, {guard}; @%p3 bra PAST;
            {FENCE} {PRODUCT} {COMMIT} {WAIT} PAST: bar.sync 0; {OUT}"
        )
    };
    kernel(&text("16")).says(&ALL, &["divergent", "lanes", "wgmma.fence.sync.aligned"]);
    kernel(&text("32")).passes();
}

#[test]
fn warpgroups() {
    let body = format!("{FENCE} {PRODUCT} {COMMIT} {WAIT} {OUT}");
    let short = bare(&copy_in(BYTES, 96), &body).block(96);
    short.says(&ALL, &["warpgroup: required four warps", "actual a CTA of 3 warps"]);
    let text = |warp: u32| format!("setp.eq.u32 %p3, %wid, {warp}; @%p3 bra END; {body} END:");
    kernel(&text(2)).says(
        &ALL,
        &["warpgroup: required the same wgmma instructions in all four warps", "only some of them"],
    );
    kernel(&text(4)).passes();
    let text = |warp: u32| {
        format!(
            "setp.eq.u32 %p3, %wid, {warp}; {FENCE} @%p3 bra B; {PRODUCT} bra C;
            B: {PRODUCT} C: {COMMIT} {WAIT} {OUT}"
        )
    };
    kernel(&text(1)).says(&ALL, &["another warp of the warpgroup executed a different one"]);
    kernel(&text(4)).passes();
}

#[test]
fn descriptors() {
    let text = |edit: &str| format!("{edit} {FENCE} {PRODUCT} {COMMIT} {WAIT} {OUT}");
    let cases: [(&str, &[&str]); 6] = [
        ("or.b64 da, da, 0x400000000000;", &["invalid descriptor of wgmma matrix A", "bits 46-48"]),
        (
            "or.b64 db, db, 0x10000000000000;",
            &["invalid descriptor of wgmma matrix B", "bits 52-61"],
        ),
        // Lanes that disagree.
        (
            "cvt.u64.u32 %d10, %lane; add.u64 da, da, %d10;",
            &["wgmma matrix A: required 0x", "in all lanes"],
        ),
        // Beyond the CTA's shared memory, and below it.
        (
            "add.u64 db, db, 0x2000;",
            &["out of bounds: wgmma matrix B: 16 bytes at shared address 0x2"],
        ),
        ("and.b64 da, da, 0xffffffffffff0000;", &["out of bounds: wgmma matrix A"]),
        // Behind what was written.
        ("add.u64 db, db, 0x20;", &["uninitialised read: wgmma matrix B", "was never written"]),
    ];
    for (edit, parts) in cases {
        kernel(&text(edit)).says(&ALL, parts);
    }
    kernel(&text("")).passes();
}

#[test]
fn scale_d_must_be_uniform() {
    let text = |limit: u32| {
        format!("setp.lt.u32 yes, %lane, {limit}; {FENCE} {PRODUCT} {COMMIT} {WAIT} {OUT}")
    };
    kernel(&text(31)).says(&ALL, &["scale-d: required the same in all lanes"]);
    kernel(&text(32)).passes();
    kernel(&text(0)).passes();
}

#[test]
fn a_cta_that_ends_with_a_product_in_flight() {
    let text = |wait: &str| format!("{FENCE} {PRODUCT} {COMMIT} {wait}");
    kernel(&text("")).says(&LAZY, &["exit with an operation in flight: wgmma.mma_async"]);
    kernel(&text(WAIT)).passes();
}

#[test]
fn values_appear_at_the_wait() {
    // 16 products of ones in each of two steps.
    let expected = [32.0f32.to_bits(); 512];
    kernel(&format!("{FENCE} {PRODUCT} {PRODUCT} {COMMIT} {WAIT} {OUT}")).gives_words(expected);
    kernel(&format!("{FENCE} {PRODUCT} {COMMIT} {PRODUCT} {COMMIT} {WAIT} {OUT}"))
        .gives_words(expected);
}

fn rejects(body: &str, target: &str, part: &str) {
    let text = kernel(body).text().replace("sm_90a", target);
    let gpu = if target == "sm_90a" { Gpu::h200() } else { Gpu::b200() };
    match Module::load(&text, &gpu) {
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        Ok(_) => panic!("{body} was loaded"),
    }
}

#[test]
fn forms_that_do_not_exist() {
    let form = |from: &str, to: &str| PRODUCT.replace(from, to);
    rejects(&form("n8k16", "n12k16"), "sm_90a", "no such combination");
    rejects(&form("n8k16", "n8k32"), "sm_90a", "no such combination");
    rejects(&form("f32.f16.f16", "f32.f16.bf16"), "sm_90a", "no such combination");
    rejects(&form("f32.f16.f16", "f16.bf16.bf16"), "sm_90a", "no such combination");
    rejects(&form("{x0, x1, x2, x3}", "{x0, x1, x2}"), "sm_90a", "4");
    rejects(&form("1, 1, 0, 0", "2, 1, 0, 0"), "sm_90a", "imm-scale-a: required 1 or -1, actual 2");
    rejects(&form("1, 1, 0, 0", "1, 1, 0, 2"), "sm_90a", "imm-trans-b: required 0 or 1, actual 2");
    rejects(&form("1, 1, 0, 0", "1, 1"), "sm_90a", "operand");
    rejects(&form("mma_async.sync", "mma_async.sp.sync"), "sm_90a", "sparse operands");
    rejects(PRODUCT, "sm_100a", "target for wgmma: required sm_90a");
}
