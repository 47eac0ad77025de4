//! Products that are complete behind one warp's `wgmma.wait_group`: one thread of the warpgroup
//! releases the operands right behind it, and another warp overwrites them, while the other warps
//! of the warpgroup are late.

use crate::builder::Set;
use crate::program::{Program, barriers, fill, wait, words};
use crate::values::SplitMix;
use ptx_emu_core::num::half;
use std::fmt::Write as _;

/// A warpgroup, and the warp that overwrites.
const THREADS: u32 = 160;
const CTAS: u32 = 64;
/// Bytes of either operand; `m64n256k16` reads less of A.
const OPERAND: u32 = 8192;
/// f32 accumulators of a thread.
const SUMS: u32 = 128;
/// Products on the same operands.
const STEPS: u32 = 8;

/// The time at which warps are late.
#[derive(Debug, Clone, Copy)]
enum Late {
    No,
    BeforeProducts,
    BeforeWaiting,
}

impl Late {
    const fn name(self) -> &'static str {
        match self {
            Self::No => "together",
            Self::BeforeProducts => "others late to the products",
            Self::BeforeWaiting => "others late to wait",
        }
    }
}

/// Small f16 integers.
fn operand(seed: u64) -> Vec<u32> {
    let mut rng = SplitMix::new(seed);
    let mut number = || u32::from(half::from_f32((rng.next() % 7) as f32 - 3.0));
    (0..OPERAND / 4).map(|_| number() | number() << 16).collect()
}

/// A descriptor of a K-major tile without swizzle at `%s + at`.
fn descriptor(register: &str, at: u32) -> String {
    let constant = (128u64 >> 4) << 16 | (256u64 >> 4) << 32;
    format!(
        "    add.u32 %r1, %s, {at}; and.b32 %r1, %r1, 0x3ffff; shr.u32 %r1, %r1, 4; \
         cvt.u64.u32 {register}, %r1; or.b64 {register}, {register}, {constant:#x};\n"
    )
}

fn add(set: &mut Set, warp: u32, late: Late) {
    // Farther from the warp that releases is later.
    let delay = format!(
        "    sub.s32 %r2, %wid, {warp}; abs.s32 %r2, %r2; mul.lo.u32 %r2, %r2, 4000; \
         nanosleep.u32 %r2;\n"
    );
    let mut body = format!("    .reg .b32 %w<{SUMS}>;\n");
    body += &fill("%in0", 0, OPERAND, THREADS, "LEFT");
    body += &fill("%in1", OPERAND, OPERAND, THREADS, "RIGHT");
    body += "    fence.proxy.async;\n    ";
    body += &barriers(&[1]);
    body += "    setp.ge.u32 %p1, %me, 128; @%p1 bra OVERWRITE;\n";
    for sum in 0..SUMS {
        let _ = writeln!(body, "    mov.b32 %w{sum}, 0;");
    }
    body += &descriptor("%d2", 0);
    body += &descriptor("%d3", OPERAND);
    if matches!(late, Late::BeforeProducts) {
        body += &delay;
    }
    body += "    wgmma.fence.sync.aligned;\n";
    let sums: Vec<String> = (0..SUMS).map(|sum| format!("%w{sum}")).collect();
    for _ in 0..STEPS {
        let _ = writeln!(
            body,
            "    wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {{{}}}, %d2, %d3, 1, 1, 1, 0, 0;",
            sums.join(", ")
        );
    }
    body += "    wgmma.commit_group.sync.aligned;\n";
    if matches!(late, Late::BeforeWaiting) {
        body += &delay;
    }
    let _ = writeln!(
        body,
        "    wgmma.wait_group.sync.aligned 0; setp.eq.u32 %p2, %me, {};\n    \
         @%p2 mbarrier.arrive.shared::cta.b64 _, [%b];\n    mov.u32 %r1, 0;",
        32 * warp
    );
    for sum in 0..SUMS {
        let _ = writeln!(body, "    mad.lo.u32 %r1, %r1, 31, %w{sum};");
    }
    body += "    mad.lo.u32 %r2, %cta, 128, %me; mad.wide.u32 %d1, %r2, 4, %out; \
             st.global.b32 [%d1], %r1; bra DONE;\nOVERWRITE:\n    ";
    body += &wait(0, 0, "RELEASED");
    body += "    mad.lo.u32 %r1, %lane, 16, %s; mov.u32 %r2, 0;\n";
    for at in (0..2 * OPERAND).step_by(512) {
        let _ = writeln!(body, "    st.shared.v4.b32 [%r1+{at}], {{%r2, %r2, %r2, %r2}};");
    }
    body += "DONE:";
    let name = format!("wgmma.wait_group released by warp {warp}, {}", late.name());
    set.program(Program {
        grid: CTAS,
        block: THREADS,
        shared: 2 * OPERAND,
        inputs: vec![words(operand(1)), words(operand(2))],
        ..Program::new(name, (4 * 128 * CTAS) as usize, body)
    });
}

pub(super) fn probes(set: &mut Set) {
    for warp in [0, 3] {
        for late in [Late::No, Late::BeforeProducts, Late::BeforeWaiting] {
            add(set, warp, late);
        }
    }
}
