//! Scales copied again and again to the same columns, as CUTLASS' block-scaled main loop
//! does: PTX does not order a `tcgen05.mma` before a later `tcgen05.cp` of its thread,
//! hardware does.

use super::kernel::{
    AFTER, BYTES, COMMIT, LAZY, LOAD, OUT, PRODUCT, SHAPE, committed, kernel, product,
};
use crate::async_support::{Case, kind, wait};
use ptx_emu_core::{AsyncFault, DiagnosticKind, Model, Schedule, TensorFault};

/// K steps, and the e4m3 scale of each: of a step the same in `A` and `B`.
const SCALES: [(u32, f32); 4] = [(0x38, 1.0), (0x40, 2.0), (0x30, 0.5), (0x48, 4.0)];
/// M = 128, N = 16, e2m1, e4m3 scales of blocks of 16.
const BLOCKS: u32 = 1 << 7 | 1 << 10 | 2 << 17 | 1 << 27;
/// The first tile of scales in shared memory: 32 rows of 16 bytes.
const TILES: u64 = 1 << 46 | (128 >> 4) << 32 | (1024 + BYTES as u64) >> 4;

const PARITY: &str = "and.b32 %r23, %r22, 1;";

/// The first thread multiplies the K steps, `copier` copies their scales; what comes behind
/// each copy and each product.
fn main_loop(copier: &str, copied: &str, multiplied: &str) -> Case {
    let mut store = format!("mad.lo.u32 %r20, %tid, 4, {};", 1024 + BYTES);
    for (step, (code, _)) in SCALES.iter().enumerate() {
        let word = code * 0x0101_0101;
        store += &format!("mov.b32 %r21, {word}; st.shared.u32 [%r20+{}], %r21;", 512 * step);
    }
    let mut case = kernel(&format!(
        "{store} fence.proxy.async; bar.sync 0;
        mov.b32 %r10, {BLOCKS:#x}; add.u32 %r12, %r50, 40; mov.b64 %d12, {TILES:#x};
        mov.u32 %r22, 0; setp.eq.u32 %p7, %tid, 32;
        STEP: {copier} tcgen05.cp.cta_group::1.32x128b.warpx4 [%r12], %d12;
        {copied} bar.sync 0;
        @!%leader bra MULTIPLIED;
        tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16
        [%r50], %d10, %d11, %r10, [%r12], [%r12], %p5;
        MULTIPLIED: {multiplied} bar.sync 0;
        add.u64 %d12, %d12, {}; add.u32 %r22, %r22, 1;
        setp.lt.u32 %p6, %r22, {}; @%p6 bra STEP;
        mov.b32 %r10, {SHAPE:#x};
        @%leader {COMMIT}
        {} {AFTER} {LOAD} {OUT}",
        512 >> 4,
        SCALES.len(),
        committed(),
    ));
    // Each code is 1.
    case.input = vec![0x22; BYTES];
    case
}

fn sums() -> [u32; 256] {
    let sum: f32 = SCALES.iter().map(|(_, scale)| 64.0 * scale * scale).sum();
    [sum.to_bits(); 256]
}

fn hardware(case: Case) -> Case {
    Case { model: Model::Hardware, ..case }
}

fn looking() -> impl Iterator<Item = Schedule> {
    std::iter::once(Schedule::Lazy).chain((0..64).map(Schedule::Random))
}

#[test]
fn a_copy_waits_for_products_of_its_thread() {
    hardware(main_loop("@%leader", "", "")).gives_words(sums());
}

#[test]
fn unless_only_what_ptx_promises_holds() {
    let case = main_loop("@%leader", "", "");
    let parts = ["in flight: write of columns 40 to 43", "not read yet, of tcgen05.mma"];
    let diagnostic = case.says(&LAZY, &parts);
    let DiagnosticKind::Async(AsyncFault::Tensor(TensorFault::InFlight { write, source, .. })) =
        kind(&diagnostic)
    else {
        panic!("{diagnostic}");
    };
    assert!(*write && *source);
    for schedule in looking() {
        let diagnostic = case.fails(schedule);
        let text = diagnostic.to_string();
        assert!(text.contains("tcgen05.cp") && text.contains("tcgen05.mma"), "{text}");
    }
    // The twin waits for the products of each step.
    let done = format!("{PARITY} @%leader {COMMIT} {} {AFTER}", wait(0, "%r23", "WAITED"));
    main_loop("@%leader", "", &done).gives_words(sums());
}

#[test]
fn sums_copied_over_are_the_same() {
    let copy = "tcgen05.cp.cta_group::1.128x128b [%r50], %d10;";
    let parts = ["tensor memory in flight: write of columns 0 to 3", "of tcgen05.mma"];
    let end = committed();
    let case = kernel(&format!("@!%leader bra ISSUED; {PRODUCT} {copy} {COMMIT} ISSUED: {end}"));
    case.says(&LAZY, &parts);
    hardware(case).passes();
    let again = format!("@!%leader bra AGAIN; {copy} {COMMIT} AGAIN: {}", wait(0, "1", "LATE"));
    product("", &format!("{end} bar.sync 0; {AFTER} {again}")).passes();
}

#[test]
fn a_copy_of_another_thread_needs_a_wait_in_any_case() {
    let copied = format!("@%p7 {COMMIT} {} {AFTER}", wait(0, "0", "COPIED1"));
    let done = format!("@%leader {COMMIT} {} {AFTER}", wait(0, "1", "MULTIPLIED1"));
    for by in [|case| case, hardware] {
        by(main_loop("@%p7", &copied, &done)).gives_words(sums());
        // Nobody waits for products, only for copies.
        let copied = format!("{PARITY} {}", copied.replace("+0], 0", "+0], %r23"));
        let case = by(main_loop("@%p7", &copied, ""));
        for schedule in looking() {
            let text = case.fails(schedule).to_string();
            assert!(text.contains("tcgen05.cp") && text.contains("tcgen05.mma"), "{text}");
        }
    }
}
