//! Instructions about the execution itself: register counts, dependent grids, hints
//! that must not change results.

use crate::builder::Set;
use crate::program::Program;

pub(super) fn probes(set: &mut Set) {
    registers(set);
    grids(set);
    hints(set);
}

/// Writes `%r3` as the thread's word.
const OUT: &str = "mov.u32 %r47, %ntid.x; mad.lo.u32 %r48, %cta, %r47, %me; \
                   mad.wide.u32 %d48, %r48, 4, %out; st.global.b32 [%d48], %r3;";

/// One warpgroup gives registers up, the others take them; values stay.
fn registers(set: &mut Set) {
    for (threads, directives, more) in
        [(384, ".maxntid 384 .minnctapersm 1", 232), (256, ".maxntid 256 .minnctapersm 2", 208)]
    {
        let body = format!(
            "    mad.wide.u32 %d1, %me, 4, %in0; ld.global.b32 %r1, [%d1]; \
             mul.lo.u32 %r2, %r1, 40503; setp.ge.u32 %p1, %me, 128; @%p1 bra TAKE;\n    \
             setmaxnreg.dec.sync.aligned.u32 40; xor.b32 %r3, %r1, %r2; bra JOIN;\n\
             TAKE: setmaxnreg.inc.sync.aligned.u32 {more}; add.u32 %r3, %r1, %r2;\nJOIN: {}\n",
            OUT
        );
        let bytes = 4 * threads as usize;
        let name = format!("setmaxnreg of {threads} threads");
        let program = Program { block: threads, directives, ..Program::new(name, bytes, body) };
        set.program(program.random(bytes));
    }
    // Down and up again.
    let body = format!(
        "    mad.wide.u32 %d1, %me, 4, %in0; ld.global.b32 %r3, [%d1]; \
         setmaxnreg.dec.sync.aligned.u32 64; mad.lo.u32 %r3, %r3, 17, %me; \
         setmaxnreg.inc.sync.aligned.u32 128; xor.b32 %r3, %r3, 0x5a5a5a5a; {}\n",
        OUT
    );
    let program = Program {
        block: 128,
        directives: ".maxntid 128 .minnctapersm 4",
        ..Program::new("setmaxnreg down and up", 512, body)
    };
    set.program(program.random(512));
}

/// A grid without an earlier one to depend on: the wait is over at once.
fn grids(set: &mut Set) {
    let body = format!(
        "    griddepcontrol.wait; mad.lo.u32 %r3, %cta, 100, %me; {}\n    \
         griddepcontrol.launch_dependents;\n",
        OUT
    );
    set.program(Program { grid: 4, ..Program::new("griddepcontrol", 512, body) });
    let body = format!(
        "    griddepcontrol.launch_dependents; griddepcontrol.launch_dependents; \
         griddepcontrol.wait; griddepcontrol.wait; mov.u32 %r3, %me; {}\n",
        OUT
    );
    set.program(Program::new("griddepcontrol twice", 128, body));
}

fn hints(set: &mut Set) {
    let load = "mad.wide.u32 %d1, %me, 4, %in0;";
    for (name, code) in [
        ("nanosleep.u32", "nanosleep.u32 200; ld.global.b32 %r3, [%d1];"),
        (
            "prefetch",
            "prefetch.global.L1 [%d1]; prefetch.global.L2 [%d1]; ld.global.b32 %r3, [%d1];",
        ),
        (
            "prefetch to a level of eviction",
            "prefetch.global.L2::evict_last [%d1]; prefetch.global.L2::evict_normal [%d1]; ld.global.b32 %r3, [%d1];",
        ),
        (
            "applypriority",
            "and.b64 %d2, %in0, -128; applypriority.global.L2::evict_normal [%d2], 128; ld.global.b32 %r3, [%d1];",
        ),
        (
            "createpolicy.fractional",
            "createpolicy.fractional.L2::evict_first.b64 %d2, 1.0; ld.global.L2::cache_hint.b32 %r3, [%d1], %d2;",
        ),
        (
            "createpolicy.range",
            "createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %d2, [%in0], 64, 128; ld.global.L2::cache_hint.b32 %r3, [%d1], %d2;",
        ),
        ("ld.global.nc.L1::no_allocate", "ld.global.nc.L1::no_allocate.L2::128B.b32 %r3, [%d1];"),
        ("ld.global.L1::evict_last", "ld.global.L1::evict_last.b32 %r3, [%d1];"),
    ] {
        let body = format!("    {load} {code} {OUT}\n");
        set.program(Program::new(name, 128, body).random(128));
    }
}
