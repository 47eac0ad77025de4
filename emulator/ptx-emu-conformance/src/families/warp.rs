//! Exchange between lanes: every mode of `shfl` with sources in and out of range,
//! votes, matches, reductions, with full and partial member masks.

use crate::builder::Set;
use crate::compare::Element;
use crate::values::Kind;

pub(super) fn probes(set: &mut Set) {
    shuffles(set);
    votes(set);
    let groups = [
        // All lanes, every third lane and the others, one lane alone.
        ("full", "mov.b32 %r30, -1;"),
        (
            "thirds",
            "rem.u32 %r31, %i, 32; rem.u32 %r31, %r31, 3; setp.eq.u32 %p7, %r31, 0; \
             selp.b32 %r30, 0x49249249, 0xb6db6db6, %p7;",
        ),
        ("alone", "rem.u32 %r31, %i, 32; shl.b32 %r30, 1, %r31;"),
    ];
    for (which, mask) in groups {
        for ty in ["u32", "s32"] {
            for op in ["add", "min", "max"] {
                let body = format!("{mask} redux.sync.{op}.{ty} %o, %a, %r30;");
                set.body(&format!("redux.sync.{op}.{ty} {which}"), &[Kind::Int32], ty, &body);
            }
        }
        for op in ["and", "or", "xor"] {
            let body = format!("{mask} redux.sync.{op}.b32 %o, %a, %r30;");
            set.body(&format!("redux.sync.{op}.b32 {which}"), &[Kind::Int32], "b32", &body);
        }
        for width in [32, 64] {
            let ty = format!("b{width}");
            // Few different values, so that lanes match.
            let few = format!("and.{ty} %a, %a, 3;");
            let body = format!("{few} {mask} match.any.sync.{ty} %o, %a, %r30;");
            let kind = Kind::of(&ty);
            set.body(&format!("match.any.sync.{ty} {which}"), &[kind], "b32", &body);
            let body = format!(
                "shr.u32 %r1, %i, 7; shl.b32 %r1, %r1, 1; shr.u{width} %a, %a, %r1; {few} \
                 and.b32 %r2, %i, 32; setp.eq.u32 %p1, %r2, 0; @%p1 mov.{ty} %a, 5; \
                 {mask} match.all.sync.{ty} %r0|%p0, %a, %r30; \
                 selp.b32 %r1, 1, 0, %p0; mov.b64 %o, {{%r0, %r1}};"
            );
            set.body(&format!("match.all.sync.{ty} {which}"), &[kind], "b64", &body);
        }
        let body = format!(
            "{mask} elect.sync %r0|%p0, %r30; selp.b32 %r1, 1, 0, %p0; \
             mov.b64 %o, {{%r0, %r1}};"
        );
        set.body(&format!("elect.sync {which}"), &[Kind::Int32], "b64", &body);
    }
    divergence(set);
    barriers(set);
}

fn shuffles(set: &mut Set) {
    for mode in ["up", "down", "bfly", "idx"] {
        // Distance or lane, clamp and segment of every lane from its inputs.
        let body = format!(
            "shfl.sync.{mode}.b32 %r0|%p0, %a, %b, %c, -1; selp.b32 %r1, 1, 0, %p0; \
             mov.b64 %o, {{%r0, %r1}};"
        );
        set.body(
            &format!("shfl.sync.{mode}.b32"),
            &[Kind::Int32, Kind::Count, Kind::Int32],
            "b64",
            &body,
        );
        for segment in [1, 2, 4, 8, 16, 32] {
            let clamp = if mode == "up" { 0 } else { 31 };
            let c = (32 - segment) << 8 | clamp;
            let body = format!(
                "and.b32 %r2, %b, 31; shfl.sync.{mode}.b32 %r0|%p0, %a, %r2, {c:#x}, -1; \
                 selp.b32 %r1, 1, 0, %p0; mov.b64 %o, {{%r0, %r1}};"
            );
            let name = format!("shfl.sync.{mode}.b32 segments of {segment}");
            set.body(&name, &[Kind::Int32, Kind::Count], "b64", &body);
        }
    }
    // Each half of the warp, with its own mask, in different branches.
    let body = "and.b32 %r0, %i, 16; setp.eq.u32 %p0, %r0, 0; and.b32 %r1, %b, 15; \
                @%p0 bra $low; shfl.sync.idx.b32 %o, %a, %r1, 0x101f, 0xffff0000; bra $done; \
                $low: shfl.sync.bfly.b32 %o, %a, %r1, 0x101f, 0x0000ffff; $done:";
    set.body("shfl.sync in halves", &[Kind::Int32, Kind::Count], "b32", body);
}

fn votes(set: &mut Set) {
    let predicate = "setp.lt.s32 %p0, %a, %b;";
    let masks = [("full", "-1"), ("low half", "0x0000ffff"), ("one", "0x00000400")];
    for (which, mask) in masks {
        // Lanes outside of the mask keep what `%o` had.
        let inside = format!(
            "rem.u32 %r1, %i, 32; shr.u32 %r2, {mask}, %r1; and.b32 %r2, %r2, 1; \
             setp.ne.u32 %p1, %r2, 0; mov.b32 %o, 7;"
        );
        for mode in ["all", "any", "uni"] {
            let body = format!(
                "{predicate} {inside} @!%p1 bra $done; vote.sync.{mode}.pred %p2, %p0, {mask}; \
                 selp.b32 %o, 1, 0, %p2; $done:"
            );
            set.body(&format!("vote.sync.{mode} {which}"), &[Kind::Int32; 2], "b32", &body);
        }
        let body = format!(
            "{predicate} {inside} @!%p1 bra $done; vote.sync.ballot.b32 %o, !%p0, {mask}; $done:"
        );
        set.body(&format!("vote.sync.ballot {which}"), &[Kind::Int32; 2], "b32", &body);
    }
    // Warps that agree: all true in even ones, all false in odd ones.
    let body = "and.b32 %r0, %i, 32; setp.eq.u32 %p0, %r0, 0; vote.sync.all.pred %p1, %p0, -1; \
                vote.sync.any.pred %p2, %p0, -1; vote.sync.uni.pred %p3, %p0, -1; \
                selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; selp.b32 %r3, 4, 0, %p3; \
                or.b32 %r1, %r1, %r2; or.b32 %o, %r1, %r3;";
    set.body("vote.sync of warps that agree", &[Kind::Int32], "b32", body);
}

/// Exchanges of lanes after some have left.
fn divergence(set: &mut Set) {
    let body = "rem.u32 %r0, %i, 32; setp.gt.u32 %p0, %r0, 20; @%p0 bra $done; \
                bar.warp.sync 0x001fffff; activemask.b32 %r1; $done: mov.b32 %o, 9; \
                @%p0 bra $end; vote.sync.ballot.b32 %o, %p0, 0x001fffff; $end: bar.warp.sync -1;";
    set.body("ballot of those that stayed", &[Kind::Int32], "b32", body);
    set.body("activemask of a whole warp", &[Kind::Int32], "b32", "activemask.b32 %o;");
}

fn barriers(set: &mut Set) {
    for spelling in ["bar", "barrier"] {
        let body = format!(
            "setp.lt.s32 %p0, %a, %b; {spelling}.red.popc.u32 %r0, 1, %p0; \
             {spelling}.red.and.pred %p1, 2, %p0; {spelling}.red.or.pred %p2, 3, %p0; \
             selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; or.b32 %r1, %r1, %r2; \
             mov.b64 %o, {{%r0, %r1}};"
        );
        set.body(&format!("{spelling}.red"), &[Kind::Int32; 2], "b64", &body);
        // The first two warps only, over a barrier of 64 threads.
        let body = format!(
            "mov.b32 %o, 77; setp.ge.u32 %p3, %t, 64; @%p3 bra $done; \
             setp.gt.u32 %p0, %a, 0x40000000; {spelling}.red.popc.u32 %o, 4, 64, !%p0; $done:"
        );
        set.body(&format!("{spelling}.red of 64"), &[Kind::Int32], "b32", &body);
    }
    // Neighbours' values through shared memory.
    let code = "    .shared .align 4 .b8 row[512]; .reg .b32 %s; mov.u32 %t, %tid.x;\n    \
                mov.u32 %s, row; mad.lo.u32 %s, %t, 4, %s; mul.lo.u32 %r0, %i, 40503; \
                st.shared.b32 [%s], %r0; bar.sync 0; xor.b32 %r1, %t, 85; mov.u32 %s, row; \
                mad.lo.u32 %s, %r1, 4, %s; ld.shared.b32 %r2, [%s];\n    \
                mad.wide.u32 %at, %i, 4, %out; st.global.b32 [%at], %r2;\n";
    set.kernel("bar.sync", [4, 128], Vec::new(), vec![0; 2048], Element::Bits(4), code);
}
