//! Orders and values that hardware gives beyond the promises of PTX ISA, and that published kernels
//! rely on: what `Model::Hardware` allows. A recording that differs from the emulator's result says
//! that it allows too much.

use crate::builder::Set;
use crate::program::{Program, wait};

pub(super) fn probes(set: &mut Set) {
    relaxed_arrivals(set);
    uneven_registers(set);
    generic_addresses(set);
    unwritten(set);
    together(set);
    copies(set);
}

/// Writes `%r3` as the thread's word.
const OUT: &str = "mov.u32 %r47, %ntid.x; mad.lo.u32 %r48, %cta, %r47, %me; \
                   mad.wide.u32 %d48, %r48, 4, %out; st.global.b32 [%d48], %r3;";

/// An mbarrier that is initialised behind the fence, before a relaxed arrival at the cluster barrier:
/// the other CTA arrives at it at once, and its phase ends.
fn relaxed_arrivals(set: &mut Set) {
    let body = format!(
        "    fence.mbarrier_init.release.cluster; @%leader mbarrier.init.shared::cta.b64 [%b], 1; \
         barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;\n    \
         xor.b32 %r1, %rank, 1; mapa.shared::cluster.u32 %r2, %b, %r1; \
         @%leader mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];\n{}    \
         mov.u32 %r3, %me; {OUT} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n",
        wait(0, 0, "ARRIVED")
    );
    set.program(Program::new("mbarrier.init, relaxed cluster arrival", 256, body).in_cluster(2));
}

/// One warp of a warpgroup gives up more registers than the others.
fn uneven_registers(set: &mut Set) {
    let body = format!(
        "    mad.wide.u32 %d1, %me, 4, %in0; ld.global.b32 %r1, [%d1]; mul.lo.u32 %r2, %r1, 40503; \
         setp.eq.u32 %p1, %wid, 3; @%p1 bra FEW;\n    setmaxnreg.dec.sync.aligned.u32 104; bra JOIN;\n\
         FEW: setmaxnreg.dec.sync.aligned.u32 40;\nJOIN: xor.b32 %r3, %r1, %r2; {OUT}\n"
    );
    let directives = ".maxntid 128 .minnctapersm 1";
    let program = Program::new("setmaxnreg of different counts", 512, body);
    set.program(Program { block: 128, directives, ..program }.random(512));
}

/// 64-bit generic addresses in operands of `.shared::cta`.
fn generic_addresses(set: &mut Set) {
    let body = format!(
        "    cvt.u64.u32 %d1, %b; cvta.shared.u64 %d1, %d1; cvt.u64.u32 %d2, %s; \
         cvta.shared.u64 %d2, %d2;\n    @%leader mbarrier.init.shared::cta.b64 [%d1], 32; bar.sync 0; \
         mad.wide.u32 %d3, %me, 4, %d2; mul.lo.u32 %r1, %me, 77; st.shared::cta.u32 [%d3], %r1; \
         mbarrier.arrive.shared::cta.b64 _, [%d1];\n{}    xor.b32 %r2, %me, 5; \
         mad.wide.u32 %d3, %r2, 4, %d2; ld.shared::cta.u32 %r3, [%d3]; {OUT}\n",
        wait(0, 0, "TOLD")
    );
    set.program(Program::new("generic addresses of .shared::cta", 128, body));
}

/// Shared memory that was never written is loaded, and a row of a product of it is left.
fn unwritten(set: &mut Set) {
    let half = "{0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00}";
    let body = format!(
        "    mad.lo.u32 %r1, %me, 16, %s; setp.lt.u32 %p1, %me, 8; @%p1 st.shared.v4.u32 [%r1], {half}; \
         @%p1 st.shared.v4.u32 [%r1+512], {half}; bar.warp.sync -1;\n    \
         ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r4, %r5}}, [%r1]; \
         ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r6, %r7}}, [%r1+512];\n    \
         mov.u32 %r8, 0x3c003c00; mov.f32 %f0, 0f00000000; \
         mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f1, %f2, %f3, %f4}}, \
         {{%r4, %r5, %r6, %r7}}, {{%r8, %r8}}, {{%f0, %f0, %f0, %f0}};\n    mov.b32 %r3, %f1; {OUT}\n"
    );
    set.program(Program::new("rows of mma.sync that nobody wrote", 128, body));
}

/// All lanes add a word of shared memory to another one, without a barrier of the warp.
fn together(set: &mut Set) {
    let body = format!(
        "    setp.eq.u32 %p1, %lane, 0; shl.b32 %r1, %wid, 2; add.u32 %r1, %r1, %s; \
         @%p1 st.shared.u32 [%r1], 1; bar.sync 0; setp.ne.u32 %p2, %wid, 0; @%p2 bra DONE;\n    \
         ld.shared.u32 %r2, [%s]; ld.shared.u32 %r4, [%s+4]; add.u32 %r2, %r2, %r4; \
         st.shared.u32 [%s], %r2;\nDONE: bar.sync 0; ld.shared.u32 %r3, [%s]; {OUT}\n"
    );
    let program = Program::new("lanes of a warp that go together", 512 * 64 * 4, body);
    set.program(Program { block: 64, grid: 512, ..program });
}

/// A kernel ends with copies of its threads in flight.
fn copies(set: &mut Set) {
    let body = format!(
        "    mad.lo.u32 %r1, %me, 16, %s; mad.wide.u32 %d1, %me, 16, %in0; \
         cp.async.cg.shared.global [%r1], [%d1], 16; cp.async.commit_group; mov.u32 %r3, %me; {OUT}\n"
    );
    set.program(Program::new("cp.async in flight at the end", 128, body).random(512));
}
