//! Clusters: addresses of other CTAs' shared memory, loads, stores and atomics there,
//! `st.async`, `red.async`, remote mbarriers, cluster barriers.

use crate::builder::{Set, element};
use crate::probe::Input;
use crate::program::{Program, barriers, wait, words};
use crate::values::{Kind, operands};

const MEET: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
const COMPLETE: &str = "mbarrier::complete_tx::bytes";

/// Writes `%r3` as word `cta * 32 + tid`.
const OUT: &str = "mad.lo.u32 %r48, %cta, 32, %me; mad.wide.u32 %d48, %r48, 4, %out; \
                   st.global.b32 [%d48], %r3;";

pub(super) fn probes(set: &mut Set) {
    for ctas in [2, 4, 8] {
        addresses(set, ctas);
        neighbours(set, ctas);
    }
    for (op, ty) in [
        ("add", "u32"),
        ("min", "s32"),
        ("max", "u32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
        ("add", "u64"),
        // Not min and max of 64 bits: ptxas 13.0 makes loads and stores of them where the
        // address is another CTA's, and an H200 loses updates.
    ] {
        atomics(set, op, ty);
    }
    for ty in ["b32", "b64", "v2.b32", "v4.b32", "v2.b64", "u32", "s64", "f32", "v4.f32"] {
        stores(set, ty);
    }
    for (op, ty) in [
        ("add", "u32"),
        ("add", "s32"),
        ("add", "u64"),
        ("min", "u32"),
        ("min", "s32"),
        ("max", "u32"),
        ("max", "s32"),
        ("inc", "u32"),
        ("dec", "u32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
    ] {
        reductions(set, op, ty);
    }
    remote_barriers(set);
    barrier_forms(set);
}

/// Offsets of mapped addresses, ranks read back from them, windows of generic
/// addresses.
fn addresses(set: &mut Set, ctas: u32) {
    let body = format!(
        "    and.b32 %r0, %me, {mask}; mapa.shared::cluster.u32 %r1, %s, %r0; \
         getctarank.shared::cluster.u32 %r3, %r1; mapa.shared::cluster.u32 %r4, %s, %rank; \
         sub.u32 %r4, %r4, %s; shr.u32 %r4, %r4, 24; mad.lo.u32 %r3, %r4, 16, %r3;\n    \
         cvt.u64.u32 %d1, %s; cvta.shared.u64 %d1, %d1; mapa.u64 %d2, %d1, %r0; \
         getctarank.u64 %r4, %d2; mad.lo.u32 %r3, %r4, 256, %r3;\n    \
         isspacep.shared::cta %p0, %d2; isspacep.shared::cluster %p1, %d2; \
         isspacep.global %p2, %d2; selp.b32 %r4, 4096, 0, %p0; selp.b32 %r5, 8192, 0, %p1; \
         selp.b32 %r6, 16384, 0, %p2; or.b32 %r3, %r3, %r4; or.b32 %r3, %r3, %r5; \
         or.b32 %r3, %r3, %r6;\n    {OUT}\n    {MEET}",
        mask = ctas - 1
    );
    let name = format!("mapa and getctarank of {ctas} CTAs");
    set.program(Program::new(name, 128 * ctas as usize, body).in_cluster(ctas));
}

/// Stores to the right neighbour by shared address, loads from the left one by
/// generic address.
fn neighbours(set: &mut Set, ctas: u32) {
    let body = format!(
        "    mad.lo.u32 %r1, %me, 4, %s; add.u32 %r2, %rank, 1; and.b32 %r2, %r2, {mask}; \
         mapa.shared::cluster.u32 %r4, %r1, %r2; mad.lo.u32 %r5, %rank, 1000, %me; \
         {MEET} st.shared::cluster.b32 [%r4], %r5; {MEET}\n    \
         ld.shared.b32 %r3, [%r1]; add.u32 %r2, %rank, {mask}; and.b32 %r2, %r2, {mask}; \
         cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d1, %d1; mapa.u64 %d1, %d1, %r2; \
         ld.b32 %r6, [%d1]; mad.lo.u32 %r3, %r3, 10000, %r6;\n    {OUT}\n    {MEET}",
        mask = ctas - 1
    );
    let name = format!("st.shared::cluster and ld of neighbours, {ctas} CTAs");
    set.program(Program::new(name, 128 * ctas as usize, body).in_cluster(ctas));
}

fn column(ty: &str, count: usize, seed: u64) -> Input {
    let kind = Kind::of(ty);
    let width = kind.width();
    let values = operands(&[kind], count, seed).swap_remove(0);
    let bytes = values.iter().flat_map(|v| v.to_le_bytes().into_iter().take(width)).collect();
    Input { width, bytes }
}

/// All threads of four CTAs on 8 places of rank 2; commutative, so that what remains
/// does not depend on the order.
fn atomics(set: &mut Set, op: &str, ty: &str) {
    let kind = Kind::of(ty);
    let (width, bits) = (kind.width(), 8 * kind.width());
    let (value, old) = if bits == 64 { ("%d3", "%d4") } else { ("%r8", "%r9") };
    let body = format!(
        "    and.b32 %r0, %me, 7; mad.lo.u32 %r1, %r0, {width}, %s; \
         setp.lt.u32 %p0, %me, 8; mad.wide.u32 %d1, %me, {width}, %in0; \
         @%p0 ld.global.b{bits} {value}, [%d1]; @%p0 st.shared.b{bits} [%r1], {value}; {MEET}\n    \
         mapa.shared::cluster.u32 %r2, %r1, 2; mad.lo.u32 %r4, %cta, 32, %me; \
         mad.wide.u32 %d1, %r4, {width}, %in1; ld.global.b{bits} {value}, [%d1]; \
         setp.lt.u32 %p1, %me, 16;\n    \
         @%p1 atom.shared::cluster.{op}.{ty} {old}, [%r2], {value}; \
         @!%p1 red.shared::cluster.{op}.{ty} [%r2], {value}; {MEET}\n    \
         setp.eq.and.u32 %p2, %rank, 2, %p0; mad.wide.u32 %d2, %me, {width}, %out; \
         @%p2 ld.shared.b{bits} {value}, [%r1]; @%p2 st.global.b{bits} [%d2], {value};\n"
    );
    let name = format!("atom and red.shared::cluster.{op}.{ty}");
    let inputs = vec![column(ty, 8, 3), column(ty, 128, 5)];
    let program = Program { inputs, ..Program::new(name, 8 * width, body) };
    set.program(Program { element: element(ty), ..program }.in_cluster(4));
}

/// `st.async` from rank 0 to rank 1, which waits for the bytes.
fn stores(set: &mut Set, ty: &str) {
    let (count, scalar) = match ty.split_once('.') {
        Some((vector, scalar)) => (if vector == "v2" { 2 } else { 4 }, scalar),
        None => (1, ty),
    };
    let width = Kind::of(scalar).width();
    let bytes = count * width;
    let registers: Vec<String> =
        (0..count).map(|n| format!("%{}{}", if width == 8 { "d1" } else { "r1" }, n)).collect();
    let (list, vector) = match count {
        1 => (registers[0].clone(), String::new()),
        _ => (format!("{{{}}}", registers.join(", ")), format!(".v{count}")),
    };
    let bits = 8 * width;
    let form = format!("st.async.weak.shared::cluster.{COMPLETE}.{ty}");
    let body = format!(
        "{}    @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {}; {MEET}\n    \
         mapa.shared::cluster.u32 %r2, %s, 1; mapa.shared::cluster.u32 %r3, %b, 1; \
         mad.lo.u32 %r4, %me, {bytes}, %r2; xor.b32 %r5, %me, 13; \
         mad.wide.u32 %d1, %r5, {bytes}, %in0; ld.global{vector}.b{bits} {list}, [%d1];\n    \
         setp.eq.u32 %p0, %rank, 0; @%p0 {form} [%r4], {list}, [%r3]; @%p0 bra END;\n{}    \
         mad.lo.u32 %r4, %me, {bytes}, %s; ld.shared{vector}.b{bits} {list}, [%r4]; \
         mad.wide.u32 %d1, %me, {bytes}, %out; st.global{vector}.b{bits} [%d1], {list};\n\
         END: bar.warp.sync -1; {MEET}",
        barriers(&[1]),
        32 * bytes,
        wait(0, 0, "WAIT"),
    );
    set.program(Program::new(form, 32 * bytes, body).in_cluster(2).random(32 * bytes));
}

/// `red.async` from rank 0 to a place of the thread's own in rank 1.
fn reductions(set: &mut Set, op: &str, ty: &str) {
    let kind = Kind::of(ty);
    let (width, bits) = (kind.width(), 8 * kind.width());
    let value = if bits == 64 { "%d3" } else { "%r8" };
    let form = format!("red.async.relaxed.cluster.shared::cluster.{COMPLETE}.{op}.{ty}");
    let body = format!(
        "{}    mad.lo.u32 %r1, %me, {width}, %s; mad.wide.u32 %d1, %me, {width}, %in0; \
         ld.global.b{bits} {value}, [%d1]; st.shared.b{bits} [%r1], {value}; \
         @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {}; {MEET}\n    \
         mapa.shared::cluster.u32 %r2, %r1, 1; mapa.shared::cluster.u32 %r3, %b, 1; \
         mad.wide.u32 %d1, %me, {width}, %in1; ld.global.b{bits} {value}, [%d1];\n    \
         setp.eq.u32 %p0, %rank, 0; @%p0 {form} [%r2], {value}, [%r3]; @%p0 bra END;\n{}    \
         ld.shared.b{bits} {value}, [%r1]; mad.wide.u32 %d1, %me, {width}, %out; \
         st.global.b{bits} [%d1], {value};\nEND: bar.warp.sync -1; {MEET}",
        barriers(&[1]),
        32 * width,
        wait(0, 0, "WAIT"),
    );
    let inputs = vec![column(ty, 32, 11), column(ty, 32, 12)];
    let program = Program { inputs, ..Program::new(form, 32 * width, body) };
    set.program(Program { element: element(ty), ..program }.in_cluster(2));
}

/// Arrivals and transaction counts from other CTAs.
fn remote_barriers(set: &mut Set) {
    // Everyone arrives at rank 0, which alone waits and lets the others go.
    let body = format!(
        "{}    {MEET} mapa.shared::cluster.u32 %r1, %b, 0; mov.u32 %r3, 7;\n    \
         mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1]; \
         setp.ne.u32 %p0, %rank, 0; @%p0 bra OTHERS;\n{}    \
         mov.u32 %r3, 9; setp.ge.u32 %p1, %me, 4; @%p1 bra DONE; \
         mapa.shared::cluster.u32 %r2, %b, %me; \
         mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2+8], 3; bra DONE;\n\
         OTHERS: {}DONE: bar.warp.sync -1; {OUT} {MEET}",
        barriers(&[128, 3]),
        wait(0, 0, "FIRST"),
        wait(1, 0, "SECOND"),
    );
    let name = "mbarrier.arrive.shared::cluster";
    set.program(Program::new(name, 512, body).in_cluster(4));
    // Bytes expected and completed by others, without data.
    let body = format!(
        "{}    {MEET} mapa.shared::cluster.u32 %r1, %b, 0; mov.u32 %r3, 5; \
         setp.eq.and.u32 %p0, %rank, 1, %leader; \
         @%p0 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], 96; {MEET}\n    \
         setp.ne.u32 %p1, %rank, 0; @%p1 bra GIVE; \
         mbarrier.test_wait.parity.shared::cta.b64 %p2, [%b], 0; selp.b32 %r3, 1, 2, %p2;\n\
         GIVE: bar.warp.sync -1; {MEET} setp.eq.and.u32 %p0, %rank, 2, %leader; \
         @%p0 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], 96; {MEET}\n    \
         @%p1 bra END;\n{}    add.u32 %r3, %r3, 16;\nEND: bar.warp.sync -1; {OUT} {MEET}",
        barriers(&[1]),
        wait(0, 0, "WAIT"),
    );
    let name = "mbarrier.arrive.expect_tx and complete_tx of other CTAs";
    set.program(Program::new(name, 512, body).in_cluster(4));
}

/// Forms of `barrier.cluster`, in halves of a warp and after threads have left.
fn barrier_forms(set: &mut Set) {
    let cross = |how: &str, name: &str, set: &mut Set| {
        let body = format!(
            "    mad.lo.u32 %r1, %me, 4, %s; xor.b32 %r2, %rank, 1; \
             mapa.shared::cluster.u32 %r4, %r1, %r2; mad.wide.u32 %d1, %me, 4, %in0; \
             ld.global.b32 %r5, [%d1]; add.u32 %r5, %r5, %rank; {MEET} \
             st.shared::cluster.b32 [%r4], %r5; {how} ld.shared.b32 %r3, [%r1]; {OUT}\n"
        );
        let program = Program { inputs: vec![words(100..132)], ..Program::new(name, 256, body) };
        set.program(program.in_cluster(2));
    };
    cross("barrier.cluster.arrive; barrier.cluster.wait;", "barrier.cluster", set);
    cross(
        "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
        "barrier.cluster.arrive.release and wait.acquire",
        set,
    );
    cross(
        "fence.acq_rel.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait; \
         fence.acq_rel.cluster;",
        "barrier.cluster.arrive.relaxed with fences",
        set,
    );
    cross(
        "setp.lt.u32 %p1, %lane, 11; @%p1 bra LOW; barrier.cluster.arrive; \
         barrier.cluster.wait; bra JOIN; LOW: barrier.cluster.arrive.release; \
         barrier.cluster.wait.acquire; JOIN: bar.warp.sync -1;",
        "barrier.cluster in two branches",
        set,
    );
    let body = format!(
        "    mov.u32 %r3, 1; setp.lt.u32 %p1, %lane, 5; @%p1 bra LEAVE; \
         barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r3, 2;\nLEAVE: {OUT}\n"
    );
    set.program(Program::new("barrier.cluster after threads have left", 256, body).in_cluster(2));
}
