//! Kernels with one product of ones, around what a test puts in.

use crate::async_support::{Case, wait};
use crate::tensor_cores::{copy_in, vector};
use ptx_emu_core::Schedule;

pub const ALL: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)];
pub const LAZY: [Schedule; 1] = [Schedule::Lazy];

/// `A` of 128x16 f16 at `s`, `B` of 16x16 behind it, both without swizzle.
pub const A: u64 = 1 << 46 | 1024 >> 4 | (2048 >> 4) << 16 | (128 >> 4) << 32;
pub const B: u64 = 1 << 46 | (1024 + 4096) >> 4 | (256 >> 4) << 16 | (128 >> 4) << 32;
pub const BYTES: usize = 4096 + 512;
/// M = 128, N = 16, f16, sums in f32.
pub const SHAPE: u32 = 1 << 4 | 2 << 17 | 8 << 24;

pub const PRODUCT: &str = "tcgen05.mma.cta_group::1.kind::f16 [%r50], %d10, %d11, %r10, %p5;";
pub const COMMIT: &str =
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b];";
pub const BEFORE: &str = "tcgen05.fence::before_thread_sync;";
pub const AFTER: &str = "tcgen05.fence::after_thread_sync;";
pub const LOAD: &str =
    "tcgen05.ld.sync.aligned.32x32b.x2.b32 {x0, x1}, [%r51]; tcgen05.wait::ld.sync.aligned;";
pub const OUT: &str = "mad.wide.u32 %d2, %tid, 8, %out; st.global.v2.b32 [%d2], {x0, x1};";

pub fn alloc(columns: u32) -> String {
    format!(
        "setp.ne.u32 %p2, %wid, 0; @%p2 bra ALLOCATED; add.u32 %r49, %b, 8;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r49], {columns};
        ALLOCATED: bar.sync 0; ld.shared.u32 %r50, [%b+8];
        shl.b32 %r51, %wid, 21; add.u32 %r51, %r51, %r50;"
    )
}

pub const FREE: &str = "bar.sync 0; setp.ne.u32 %p2, %wid, 0; @%p2 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r50, 64; FREED:";

/// Zeros in the first 32 columns.
pub fn zeros() -> String {
    let values = vector("x", 32);
    let movs: String = (0..32).map(|i| format!("mov.b32 x{i}, 0;\n")).collect();
    format!(
        "{movs} tcgen05.st.sync.aligned.32x32b.x32.b32 [%r51], {values};
        tcgen05.wait::st.sync.aligned; {BEFORE} bar.sync 0; {AFTER}"
    )
}

/// A kernel of 128 threads with operands in shared memory, before anything else.
pub fn bare(body: &str) -> Case {
    let text = format!(
        "{{ .reg .b32 x<32>;
        setp.eq.u32 %leader, %tid, 0; setp.eq.u32 %p5, 0, 0;
        mov.b64 %d10, {A:#x}; mov.b64 %d11, {B:#x}; mov.b32 %r10, {SHAPE:#x};
        @%leader mbarrier.init.shared::cta.b64 [%b], 1; fence.mbarrier_init.release.cluster;
        mov.u64 %d0, %in; mov.u32 %r0, %s; {}
        {body} }}",
        copy_in(BYTES, 128)
    );
    let mut case = Case::new(&text).block(128).out(1024);
    case.input = [0x00, 0x3c].repeat(BYTES / 2);
    case.shared = 8192;
    case.sm100 = true;
    case
}

/// Makes a kernel with 64 columns, the first 32 zero, and their end.
pub fn kernel(body: &str) -> Case {
    bare(&format!("{} {} {body} {FREE}", alloc(64), zeros()))
}

/// A product of the leader, committed, and what comes after.
pub fn product(edit: &str, after: &str) -> Case {
    kernel(&format!("@!%leader bra ISSUED; {edit} {PRODUCT} {COMMIT} ISSUED: {after}"))
}

pub fn committed() -> String {
    wait(0, "0", "COMMITTED")
}
