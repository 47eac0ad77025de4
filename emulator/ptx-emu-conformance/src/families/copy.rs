//! `cp.async`: sizes and cache operators, bytes that are filled with zeros, groups,
//! arrivals at mbarriers.

use crate::builder::Set;
use crate::program::{Program, barriers, dump, wait};

/// Threads of a probe.
const BLOCK: u32 = 64;
/// Bytes of shared memory that a probe shows.
const SHOWN: u32 = 2048;

pub(super) fn probes(set: &mut Set) {
    for (cache, size) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)] {
        let copy = format!("cp.async.{cache}.shared.global");
        plain(set, &format!("{copy} {size}"), &format!("{copy} [%r2], [%d1], {size};"), size);
        // Every number of bytes up to the size, which may be 0.
        let amount = format!("rem.u32 %r4, %me, {}; {copy} [%r2], [%d1], {size}, %r4;", size + 1);
        plain(set, &format!("{copy} {size} with a source size"), &amount, size);
        let ignored = format!(
            "and.b32 %r4, %me, 5; setp.eq.u32 %p1, %r4, 4; {copy} [%r2], [%d1], {size}, %p1;"
        );
        plain(set, &format!("{copy} {size} that ignores its source"), &ignored, size);
    }
    for hint in [".L2::64B", ".L2::128B", ".L2::256B"] {
        let name = format!("cp.async.ca.shared.global{hint} 16");
        let copy = format!("cp.async.ca.shared.global{hint} [%r2], [%d1], 16;");
        plain(set, &name, &copy, 16);
    }
    groups(set);
    arrivals(set);
}

/// Sets `%r2` to the thread's place of `size` bytes and `%d1` to a source that is
/// another thread's; shared memory begins as a pattern.
fn places(size: u32) -> String {
    format!(
        "    mov.u32 %r1, 0; mad.lo.u32 %r3, %me, 4, %s; LAY: st.shared.b32 [%r3], 0xcbcbcbcb; \
         add.u32 %r3, %r3, {}; add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, {}; @%p0 bra LAY;\n    \
         bar.sync 0; mad.lo.u32 %r2, %me, {size}, %s; xor.b32 %r3, %me, 37; \
         mad.wide.u32 %d1, %r3, {size}, %in0;\n",
        4 * BLOCK,
        SHOWN / (4 * BLOCK)
    )
}

fn program(name: &str, body: String) -> Program {
    Program { block: BLOCK, ..Program::new(name, SHOWN as usize, body) }.random(2 * SHOWN as usize)
}

/// A copy a thread, waited for with `wait_all`.
fn plain(set: &mut Set, name: &str, copy: &str, size: u32) {
    let body = format!(
        "{}    {copy} cp.async.wait_all; bar.sync 0;\n{}",
        places(size),
        dump("%out", 0, SHOWN, BLOCK, "OUT")
    );
    set.program(program(name, body));
}

/// Copies that a thread sees after waiting for all but some of its groups.
fn groups(set: &mut Set) {
    for kept in 0..=2 {
        let mut body = places(4);
        for group in 0..3 {
            body += &format!(
                "    cp.async.ca.shared.global [%r2+{0}], [%d1+{0}], 4; cp.async.commit_group;\n",
                256 * group
            );
        }
        body += &format!("    cp.async.wait_group {kept};\n");
        // The groups that are over, shown before the others are waited for.
        for group in 0..3 - kept {
            body += &format!(
                "    ld.shared.b32 %r5, [%r2+{0}]; mad.wide.u32 %d2, %me, 4, %out; \
                 st.global.b32 [%d2+{0}], %r5;\n",
                256 * group
            );
        }
        body += "    cp.async.wait_all;\n";
        set.program(program(&format!("cp.async.wait_group {kept} of 3"), body));
    }
    // An empty group and a copy that belongs to none before the wait.
    let body = format!(
        "{}    cp.async.commit_group; cp.async.ca.shared.global [%r2], [%d1], 4; \
         cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1; bar.sync 0;\n{}",
        places(4),
        dump("%out", 0, 256, BLOCK, "OUT")
    );
    set.program(program("cp.async with empty groups", body));
}

/// `cp.async.mbarrier.arrive`: with the arrival that it brings, and one that counts.
fn arrivals(set: &mut Set) {
    for (form, count) in [("", BLOCK), (".noinc", 2 * BLOCK)] {
        for space in ["shared", "shared::cta"] {
            let name = format!("cp.async.mbarrier.arrive{form}.{space}.b64");
            let body = format!(
                "{}{}    cp.async.ca.shared.global [%r2], [%d1], 16; {name} [%b]; \
                 mbarrier.arrive.shared::cta.b64 _, [%b];\n{}{}",
                barriers(&[count]),
                places(16),
                wait(0, 0, "WAIT"),
                dump("%out", 0, SHOWN, BLOCK, "OUT")
            );
            set.program(program(&name, body));
        }
    }
}
