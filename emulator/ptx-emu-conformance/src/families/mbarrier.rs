//! mbarriers: phases and parities, pending counts, arrivals of all kinds, transaction
//! counts, and how many bytes tensor copies count whose boxes leave the tensor.
//!
//! States are opaque, so only what `pending_count` and `test_wait` make of them is
//! shown.

use crate::builder::Set;
use crate::probe::{Buffer, MapParameter};
use crate::program::{Program, barriers, wait};
use ptx_emu_core::tensor_map::{ElementType, TensorMap};
use std::fmt::Write as _;

/// Notes whether the phases of parity 0 and 1 are over, as a word.
fn note(code: &mut String, slot: u32) {
    let _ = write!(
        code,
        "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%b], 0; \
         mbarrier.test_wait.parity.shared::cta.b64 %p2, [%b], 1; selp.b32 %r40, 1, 0, %p1; \
         selp.b32 %r41, 2, 0, %p2; or.b32 %r40, %r40, %r41; st.global.b32 [%out+{}], %r40;\n    ",
        4 * slot
    );
}

/// Notes the pending count of the state in `%d1`.
fn note_count(code: &mut String, slot: u32) {
    let _ = write!(
        code,
        "mbarrier.pending_count.b64 %r40, %d1; st.global.b32 [%out+{}], %r40;\n    ",
        4 * slot
    );
}

pub(super) fn probes(set: &mut Set) {
    for count in [1, 2, 5, 1000, (1 << 20) - 1] {
        phases(set, count);
    }
    steps(set);
    threads(set);
    for (dims, coordinates) in [
        // Inside, over one edge, over both, before the first element, all outside.
        ([64, 16], [16, 4]),
        ([20, 16], [16, 4]),
        ([20, 6], [16, 4]),
        ([64, 16], [-4, -2]),
        ([64, 16], [100, 40]),
    ] {
        clipped(set, dims, coordinates);
    }
}

/// A program of thread 0 with `words` results.
fn alone(set: &mut Set, name: &str, count: u32, words: u32, code: &str) {
    let body = format!("{}    @!%leader bra END;\n    {code}\nEND:\n", barriers(&[count]));
    set.program(Program::new(name, 4 * words as usize, body));
}

/// Two whole phases with arrivals one by one and by count.
fn phases(set: &mut Set, count: u32) {
    let mut code = String::new();
    note(&mut code, 0);
    if count > 1 {
        let _ = write!(code, "mbarrier.arrive.shared::cta.b64 %d1, [%b], {};\n    ", count - 1);
        note_count(&mut code, 1);
        note(&mut code, 2);
    }
    code += "mbarrier.arrive.shared::cta.b64 %d1, [%b];\n    ";
    note_count(&mut code, 3);
    note(&mut code, 4);
    let _ = write!(code, "mbarrier.arrive.release.cta.shared::cta.b64 %d1, [%b], {count};\n    ");
    note_count(&mut code, 5);
    note(&mut code, 6);
    alone(set, &format!("phases of an mbarrier of {count}"), count, 8, &code);
}

/// Single operations on a barrier of 4, and what is seen after each.
fn steps(set: &mut Set) {
    let state = "mbarrier.arrive.shared::cta.b64 %d1, [%b];";
    for (name, steps) in [
        (
            "arrive_drop",
            vec![state, "mbarrier.arrive_drop.shared::cta.b64 %d1, [%b];", state, state],
        ),
        (
            "arrive_drop by count",
            vec!["mbarrier.arrive_drop.shared::cta.b64 %d1, [%b], 2;", state, state, state, state],
        ),
        (
            "arrive.noComplete",
            vec!["mbarrier.arrive.noComplete.shared::cta.b64 %d1, [%b], 3;", state, state],
        ),
        (
            "arrive_drop.noComplete",
            vec![
                "mbarrier.arrive_drop.noComplete.shared::cta.b64 %d1, [%b], 2;",
                state,
                state,
                state,
                state,
            ],
        ),
        (
            "expect_tx before the arrivals",
            vec![
                "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 100;",
                "mbarrier.arrive.shared::cta.b64 %d1, [%b], 4;",
                "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 60;",
                "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 40;",
                state,
            ],
        ),
        (
            "complete_tx before expect_tx",
            vec![
                "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 100;",
                "mbarrier.arrive.shared::cta.b64 %d1, [%b], 3;",
                "mbarrier.arrive.expect_tx.shared::cta.b64 %d1, [%b], 100;",
                state,
            ],
        ),
        (
            "expect_tx of nothing",
            vec![
                "mbarrier.arrive.expect_tx.shared::cta.b64 %d1, [%b], 0;",
                "mbarrier.arrive.shared::cta.b64 %d1, [%b], 3;",
                "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 0;",
                "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 0;",
            ],
        ),
        (
            "the largest transaction count",
            vec![
                "mbarrier.arrive.expect_tx.shared::cta.b64 %d1, [%b], 1048575;",
                "mbarrier.arrive.shared::cta.b64 %d1, [%b], 3;",
                "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 1048575;",
            ],
        ),
        (
            "arrive_drop.expect_tx",
            vec![
                "mbarrier.arrive_drop.expect_tx.shared::cta.b64 %d1, [%b], 8;",
                "mbarrier.arrive.shared::cta.b64 %d1, [%b], 3;",
                "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 8;",
                "mbarrier.arrive.shared::cta.b64 %d1, [%b], 3;",
            ],
        ),
        (
            "inval and init",
            vec![
                state,
                "mbarrier.inval.shared::cta.b64 [%b]; mbarrier.init.shared::cta.b64 [%b], 1;",
                state,
                state,
            ],
        ),
    ] {
        let mut code = String::from("mov.b64 %d1, 0; mov.b64 %d2, 0;\n    ");
        for (index, step) in steps.iter().enumerate() {
            let slot = 2 * index as u32;
            let _ = write!(code, "{step}\n    ");
            note(&mut code, slot);
            // A state is there once a step has given one.
            if steps[..=index].iter().any(|step| step.contains("%d1,")) {
                note_count(&mut code, slot + 1);
            }
        }
        alone(set, &format!("mbarrier: {name}"), 4, 2 * steps.len() as u32, &code);
    }
    // States instead of parities.
    let code = "mbarrier.arrive.shared::cta.b64 %d1, [%b];\n    \
                mbarrier.test_wait.shared::cta.b64 %p1, [%b], %d1; selp.b32 %r1, 1, 2, %p1; \
                st.global.b32 [%out], %r1; mbarrier.arrive.shared::cta.b64 %d2, [%b];\n    \
                mbarrier.test_wait.shared::cta.b64 %p1, [%b], %d1; selp.b32 %r1, 1, 2, %p1; \
                st.global.b32 [%out+4], %r1; mbarrier.arrive.shared::cta.b64 %d3, [%b];\n    \
                mbarrier.try_wait.acquire.cta.shared::cta.b64 %p1, [%b], %d2; \
                selp.b32 %r1, 1, 2, %p1; st.global.b32 [%out+8], %r1;\n    \
                mbarrier.test_wait.acquire.cta.shared::cta.b64 %p1, [%b], %d3; \
                selp.b32 %r1, 1, 2, %p1; st.global.b32 [%out+12], %r1;";
    alone(set, "mbarrier.test_wait of states", 2, 4, code);
}

/// All threads of four warps on one barrier, three phases; values move through
/// shared memory.
fn threads(set: &mut Set) {
    let mut body =
        format!("{}    mad.wide.u32 %d1, %me, 4, %out; mov.u32 %r3, %me;\n", barriers(&[128]));
    for phase in 0..3 {
        let _ = write!(
            body,
            "    mad.lo.u32 %r1, %me, 4, %s; mad.lo.u32 %r3, %r3, 3, %me; \
             st.shared.b32 [%r1+{at}], %r3; mbarrier.arrive.shared::cta.b64 _, [%b];\n{wait}    \
             xor.b32 %r2, %me, {other}; mad.lo.u32 %r2, %r2, 4, %s; \
             ld.shared.b32 %r3, [%r2+{at}];\n",
            at = 512 * phase,
            wait = wait(0, phase & 1, &format!("WAIT{phase}")),
            other = [127, 32, 85][phase as usize],
        );
    }
    body += "    st.global.b32 [%d1], %r3;\n";
    set.program(Program { block: 128, ..Program::new("mbarrier of four warps", 512, body) });
}

/// A box of 8 by 4 words, 128 bytes, of which some leave the tensor. It counts for as
/// many bytes as are expected, neither more nor fewer: the phase ends, and so does the
/// next one, which expects none.
fn clipped(set: &mut Set, dims: [u64; 2], [x, y]: [i64; 2]) {
    let body = format!(
        "{}    @!%leader bra END; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;\n    \
         cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
         [%s], [%map0, {{{x}, {y}}}], [%b];\n{}    \
         st.global.b32 [%out], 1; mbarrier.arrive.shared::cta.b64 %d1, [%b]; \
         mbarrier.pending_count.b64 %r1, %d1; st.global.b32 [%out+4], %r1; \
         mbarrier.test_wait.parity.shared::cta.b64 %p1, [%b], 1; selp.b32 %r1, 1, 2, %p1; \
         st.global.b32 [%out+8], %r1;\nEND:\n",
        barriers(&[1]),
        wait(0, 0, "WAIT"),
    );
    let name = format!("bytes of a box at {x}, {y} of {} x {}", dims[0], dims[1]);
    let map = TensorMap::tiled(ElementType::U32, 0, &dims, &[256], &[8, 4]);
    let maps = vec![MapParameter { map, buffer: Buffer::Input(0) }];
    set.program(Program { maps, ..Program::new(name, 12, body) }.random(8192));
}
