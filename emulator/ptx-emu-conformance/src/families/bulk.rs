//! `cp.async.bulk` in all directions, multicast, `cp.reduce.async.bulk` of every
//! operation and type.

use crate::builder::{Set, element};
use crate::probe::Input;
use crate::program::{Program, barriers, dump, fill, wait};
use crate::values::{Kind, operands};

const BLOCK: u32 = 32;
const MEET: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
const COMPLETE: &str = "mbarrier::complete_tx::bytes";
/// Ends a store and shows that it is over.
const STORED: &str = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";

pub(super) fn probes(set: &mut Set) {
    for space in ["shared::cta", "shared::cluster"] {
        for bytes in [16, 48, 1024, 4096] {
            load(set, space, bytes);
        }
    }
    for bytes in [16, 80, 2048] {
        store(set, bytes);
    }
    between_ctas(set);
    for mask in [0b0001, 0b0110, 0b1011, 0b1111] {
        multicast(set, mask);
    }
    prefetch(set);
    reductions(set);
}

/// Two copies to places 16 bytes apart from where they came from, one barrier.
fn load(set: &mut Set, space: &str, bytes: u32) {
    let copy = format!("cp.async.bulk.{space}.global.{COMPLETE}");
    let body = format!(
        "{}    @!%leader bra WAIT; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {};\n    \
         {copy} [%s+16], [%in0], {bytes}, [%b];\n    \
         {copy} [%s+{}], [%in0+{}], 16, [%b];\n{}{}    add.u64 %d1, %out, {bytes};\n{}",
        barriers(&[1]),
        bytes + 16,
        bytes + 32,
        bytes + 48,
        wait(0, 0, "WAIT"),
        dump("%out", 16, bytes, BLOCK, "OUT"),
        dump("%d1", bytes + 32, 16, BLOCK, "MORE"),
    );
    let name = format!("cp.async.bulk.{space}.global of {bytes}");
    let program = Program { shared: 8192, ..Program::new(name, bytes as usize + 16, body) };
    set.program(program.random(8192));
}

fn store(set: &mut Set, bytes: u32) {
    for (how, wait) in
        [("", STORED), (" read", "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;")]
    {
        let copy = "cp.async.bulk.global.shared::cta.bulk_group";
        let body = format!(
            "{}    fence.proxy.async.shared::cta; bar.sync 0; @!%leader bra END;\n    \
             {copy} [%out+16], [%s+32], {bytes}; {wait}\nEND:\n",
            fill("%in0", 0, bytes + 32, BLOCK, "FILL"),
        );
        let name = format!("cp.async.bulk.global.shared::cta of {bytes}{how}");
        set.program(Program::new(name, bytes as usize + 32, body).random(4096));
    }
}

/// Each CTA of four copies into its right neighbour.
fn between_ctas(set: &mut Set) {
    let body = format!(
        "{}{}    mov.u32 %r0, 0xcbcbcbcb; mad.lo.u32 %r1, %me, 16, %s; \
         st.shared.v4.b32 [%r1+1024], {{%r0, %r0, %r0, %r0}};\n    \
         @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 352; \
         fence.proxy.async; {MEET}\n    \
         add.u32 %r2, %rank, 1; and.b32 %r2, %r2, 3; mapa.shared::cluster.u32 %r3, %s, %r2; \
         mapa.shared::cluster.u32 %r4, %b, %r2; @!%leader bra WAIT;\n    \
         cp.async.bulk.shared::cluster.shared::cta.{COMPLETE} [%r3+1040], [%s+64], 256, [%r4];\n    \
         cp.async.bulk.shared::cluster.shared::cta.{COMPLETE} [%r3+1408], [%s], 96, [%r4];\n{}{}    {MEET}",
        barriers(&[1]),
        format_args!(
            "    mad.wide.u32 %d1, %cta, 512, %in0;\n{}",
            fill("%d1", 0, 512, BLOCK, "FILL")
        ),
        wait(0, 0, "WAIT"),
        own_dump(1024, 512),
    );
    let name = "cp.async.bulk.shared::cluster.shared::cta";
    set.program(Program::new(name, 2048, body).in_cluster(4).random(2048));
}

/// Shows a part of shared memory, each CTA its own.
fn own_dump(offset: u32, bytes: u32) -> String {
    let own = dump("%d1", offset, bytes, BLOCK, "OUT");
    format!("    mad.wide.u32 %d1, %cta, {bytes}, %out;\n{own}")
}

/// Rank 1 of four copies to the CTAs of a mask; the others have what they had.
fn multicast(set: &mut Set, mask: u32) {
    let body = format!(
        "{}    mov.u32 %r0, 0xcbcbcbcb; mad.lo.u32 %r1, %me, 16, %s; \
         st.shared.v4.b32 [%r1], {{%r0, %r0, %r0, %r0}}; fence.proxy.async;\n    \
         mov.u32 %r2, {mask}; shr.u32 %r2, %r2, %rank; and.b32 %r2, %r2, 1; \
         setp.eq.u32 %p1, %r2, 1; mul.lo.u32 %r3, %r2, 384;\n    \
         @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], %r3; {MEET}\n    \
         setp.eq.and.u32 %p2, %rank, 1, %leader; mov.b16 %h1, {mask}; \
         @%p2 cp.async.bulk.shared::cluster.global.{COMPLETE}.multicast::cluster \
         [%s+64], [%in0+32], 384, [%b], %h1;\n{}{}    {MEET}",
        barriers(&[1]),
        wait(0, 0, "WAIT"),
        own_dump(0, 512),
    );
    let name = format!("cp.async.bulk multicast to {mask:04b}");
    set.program(Program::new(name, 2048, body).in_cluster(4).random(1024));
}

fn prefetch(set: &mut Set) {
    let body = "    @%leader cp.async.bulk.prefetch.L2.global [%in0], 512;\n    \
                mad.wide.u32 %d1, %me, 4, %in0; ld.global.b32 %r1, [%d1]; \
                mad.wide.u32 %d2, %me, 4, %out; st.global.b32 [%d2], %r1;\n";
    set.program(Program::new("cp.async.bulk.prefetch.L2.global", 128, body).random(512));
}

/// Values of a type as they are used by reductions.
fn values(ty: &str, count: usize, seed: u64) -> (Input, Input) {
    let kind = Kind::of(ty);
    let columns = operands(&[kind, kind], count, seed);
    let width = kind.width();
    let mut inputs = columns.iter().map(|column| Input {
        width,
        bytes: column.iter().flat_map(|v| v.to_le_bytes().into_iter().take(width)).collect(),
    });
    let empty = || Input { width, bytes: Vec::new() };
    (inputs.next().unwrap_or_else(empty), inputs.next().unwrap_or_else(empty))
}

fn reductions(set: &mut Set) {
    let mut global = Vec::new();
    for ty in ["u32", "s32", "u64", "f32", "f64"] {
        global.push(("add", ty));
    }
    for ty in ["f16", "bf16"] {
        global.extend([("add.noftz", ty), ("min", ty), ("max", ty)]);
    }
    for ty in ["u32", "s32", "u64", "s64"] {
        global.extend([("min", ty), ("max", ty)]);
    }
    global.extend([("inc", "u32"), ("dec", "u32")]);
    for ty in ["b32", "b64"] {
        global.extend([("and", ty), ("or", ty), ("xor", ty)]);
    }
    for (op, ty) in global {
        let form = format!("cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{ty}");
        let (old, operand) = values(ty, 256, 41);
        let bytes = old.bytes.len() as u32;
        let body = format!(
            "{}    fence.proxy.async; bar.sync 0; @!%leader bra END;\n    \
             {form} [%out], [%s], {bytes}; {STORED}\nEND:\n",
            fill("%in0", 0, bytes, BLOCK, "FILL"),
        );
        let mut program = Program { inputs: vec![operand], ..Program::new(form, 0, body) };
        program.output = old.bytes;
        program.element = element(ty);
        set.program(program);
    }
    let mut cluster = vec![("add", "u64")];
    for ty in ["u32", "s32"] {
        cluster.extend([("add", ty), ("min", ty), ("max", ty)]);
    }
    cluster.extend([("inc", "u32"), ("dec", "u32")]);
    cluster.extend([("and", "b32"), ("or", "b32"), ("xor", "b32")]);
    for (op, ty) in cluster {
        in_cluster(set, op, ty);
    }
}

/// Rank 0 reduces into shared memory of rank 1.
fn in_cluster(set: &mut Set, op: &str, ty: &str) {
    let form = format!("cp.reduce.async.bulk.shared::cluster.shared::cta.{COMPLETE}.{op}.{ty}");
    let (old, operand) = values(ty, 128, 43);
    let bytes = old.bytes.len() as u32;
    let body = format!(
        "{}{}{}    @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {bytes}; \
         fence.proxy.async; {MEET}\n    \
         mapa.shared::cluster.u32 %r3, %s, 1; mapa.shared::cluster.u32 %r4, %b, 1; \
         setp.eq.and.u32 %p1, %rank, 0, %leader;\n    \
         @%p1 {form} [%r3+2048], [%s], {bytes}, [%r4]; setp.eq.u32 %p2, %rank, 0; \
         @%p2 bra END;\n{}{}END: {MEET}",
        barriers(&[1]),
        fill("%in0", 0, bytes, BLOCK, "FILL"),
        fill("%in1", 2048, bytes, BLOCK, "OLD"),
        wait(0, 0, "WAIT"),
        dump("%out", 2048, bytes, BLOCK, "OUT"),
    );
    let program =
        Program { inputs: vec![operand, old], ..Program::new(form, bytes as usize, body) };
    set.program(program.in_cluster(2));
}
