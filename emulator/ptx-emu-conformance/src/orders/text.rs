//! The PTX of a program.

use super::{Access, LANES, MBARRIERS, Place, Program, SHARED_WORDS, Step};
use std::fmt::Write as _;

/// The lanes that are at a place, and what is unique so far.
struct Writer {
    text: String,
    labels: usize,
    stores: usize,
    phases: usize,
    threads: usize,
}

impl Program {
    /// The program as a module with the kernel `k(out)`: each thread leaves what it has seen, and
    /// shared memory follows.
    #[must_use]
    pub fn text(&self) -> String {
        let threads = self.threads();
        let words = threads + SHARED_WORDS;
        let mut writer = Writer { text: String::new(), labels: 0, stores: 0, phases: 0, threads };
        writer.line(&format!(
            ".version 9.0\n.target sm_90a\n.address_size 64
.visible .entry k(.param .u64 out_param)
{{
    .shared .align 8 .b64 b[{MBARRIERS}];
    .shared .align 4 .b32 s[{words}];
    .reg .pred %p<4>; .reg .b32 %r<8>, %seen, %tid, %lane, %wid, %s, %b; .reg .b64 %d<4>, %out;
    ld.param.u64 %out, [out_param]; mov.u32 %tid, %tid.x; mov.u32 %lane, %laneid;
    shr.u32 %wid, %tid, 5; mov.u32 %s, s; mov.u32 %b, b; mul.lo.u32 %seen, %tid, 0x9e3779b1;
    mad.lo.u32 %r0, %tid, 4, %s; st.shared.u32 [%r0], %tid; setp.ne.u32 %p0, %tid, 0;"
        ));
        for word in 0..SHARED_WORDS {
            writer.line(&format!("@!%p0 st.shared.u32 [%s+{}], {word};", 4 * (threads + word)));
        }
        for mbarrier in 0..MBARRIERS {
            writer.line(&format!("@!%p0 mbarrier.init.shared::cta.b64 [%b+{}], 1;", 8 * mbarrier));
        }
        writer.line("bar.sync 0;");
        writer.steps(&self.steps, u32::MAX);
        writer.line(&format!(
            "bar.sync 0;
mad.wide.u32 %d0, %tid, 4, %out; st.global.u32 [%d0], %seen;
ld.shared.u32 %r1, [%r0]; st.global.u32 [%d0+{}], %r1;
setp.ge.u32 %p0, %tid, {SHARED_WORDS}; @%p0 bra END;
ld.shared.u32 %r1, [%r0+{}]; st.global.u32 [%d0+{}], %r1;
END: ret;
}}",
            4 * threads,
            4 * threads,
            8 * threads
        ));
        writer.text
    }
}

impl Writer {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn label(&mut self) -> usize {
        self.labels += 1;
        self.labels
    }

    fn steps(&mut self, steps: &[Step], lanes: u32) {
        steps.iter().for_each(|step| self.step(step, lanes));
    }

    /// Puts the address of a place into `%r2`; its offset.
    fn place(&mut self, place: Place) -> usize {
        match place {
            Place::Common(word) => {
                self.line("mov.u32 %r2, %s;");
                4 * (self.threads + usize::from(word))
            }
            Place::Own => {
                self.line("mov.u32 %r2, %r0;");
                0
            }
            Place::Neighbour(bits) => {
                self.line(&format!("xor.b32 %r2, %tid, {bits}; mad.lo.u32 %r2, %r2, 4, %s;"));
                0
            }
            Place::NextWarp => {
                let (threads, lanes) = (self.threads, LANES);
                self.line(&format!(
                    "add.u32 %r2, %tid, {lanes}; rem.u32 %r2, %r2, {threads}; mad.lo.u32 %r2, %r2, 4, %s;"
                ));
                0
            }
        }
    }

    fn step(&mut self, step: &Step, lanes: u32) {
        match step {
            Step::Access { access, place, only } => {
                let at = self.place(*place);
                let guard = match only {
                    None => "",
                    Some(lane) => {
                        self.line(&format!("setp.eq.u32 %p1, %lane, {lane};"));
                        "@%p1 "
                    }
                };
                self.stores += 1;
                // No two stores of a program store the same value, whoever executes them.
                let unique = self.stores * 257 + 1;
                let _ = writeln!(self.text, "mad.lo.u32 %r3, %tid, 65537, {unique};");
                match access {
                    Access::Load => self.line(&format!(
                        "mov.u32 %r4, 0; {guard}ld.shared.u32 %r4, [%r2+{at}]; mad.lo.u32 %seen, %seen, 31, %r4;"
                    )),
                    Access::Store => self.line(&format!("{guard}st.shared.u32 [%r2+{at}], %r3;")),
                    Access::StoreHalf => {
                        self.line(&format!("{guard}st.shared.u16 [%r2+{at}], %r3;"));
                    }
                    Access::Add => {
                        self.line(&format!("{guard}red.shared.add.u32 [%r2+{at}], %r3;"));
                    }
                }
            }
            Step::Shuffle(lane) => self.line(&format!(
                "shfl.sync.bfly.b32 %r4, %seen, {lane}, 31, {lanes:#x}; xor.b32 %r5, %lane, {lane};
shl.b32 %r6, 1, %r5; and.b32 %r6, %r6, {lanes:#x}; setp.ne.u32 %p1, %r6, 0;
@%p1 mad.lo.u32 %seen, %seen, 31, %r4;"
            )),
            Step::WarpBarrier => self.line(&format!("bar.warp.sync {lanes:#x};")),
            Step::Barrier => self.line("bar.sync 0;"),
            Step::Phase { warp, lane } => {
                let thread = usize::from(*warp) * LANES + usize::from(*lane);
                let (at, label) = (8 * self.phases, self.label());
                self.phases += 1;
                self.line(&format!(
                    "setp.eq.u32 %p1, %tid, {thread}; @%p1 mbarrier.arrive.shared::cta.b64 _, [%b+{at}];
bar.warp.sync -1;
L{label}: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%b+{at}], 0; @!%p2 bra L{label};
bar.warp.sync -1;"
                ));
            }
            Step::Warp(warp, steps) => {
                let label = self.label();
                self.line(&format!("setp.ne.u32 %p1, %wid, {warp}; @%p1 bra L{label};"));
                self.steps(steps, lanes);
                self.line(&format!("L{label}:"));
            }
            Step::Branch(bound, lower, upper) => {
                let (other, end) = (self.label(), self.label());
                let below = (1u32 << bound) - 1;
                self.line(&format!("setp.ge.u32 %p1, %lane, {bound}; @%p1 bra L{other};"));
                self.steps(lower, below);
                self.line(&format!("bra L{end};\nL{other}:"));
                self.steps(upper, !below);
                self.line(&format!("L{end}:"));
            }
        }
    }
}
