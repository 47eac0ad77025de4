//! Kernels of whole CTAs and clusters: shared memory, mbarriers, tensor maps.
//!
//! A body finds `%in0`, .. and `%out` (global addresses), `%map0`, .. (generic
//! addresses of the tensor maps), `%me`, `%wid`, `%lane`, `%cta`, `%rank`, `%s` (shared
//! memory of the stated size at a multiple of 1024) and `%b` (mbarriers), and has
//! registers `%p`, `%h`, `%r`, `%f`, `%d` to use. `%leader` is thread 0 of the CTA.
//! Registers from 50 up, and `%p18`, `%p19`, are for the pieces of code below.

use super::builder::{Set, UNTOUCHED, entry};
use super::compare::{Comparison, Element};
use super::probe::{Input, MapParameter, Probe};
use super::values::SplitMix;
use std::fmt::Write as _;

/// mbarriers of a CTA.
const BARRIERS: u32 = 16;

/// A kernel and its launch.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) name: String,
    /// CTAs.
    pub(super) grid: u32,
    /// Threads of a CTA.
    pub(super) block: u32,
    /// CTAs of a cluster; 1 launches without clusters.
    pub(super) cluster: u32,
    /// Shared memory, bytes.
    pub(super) shared: u32,
    /// Between parameters and body, `.maxntid` and the like.
    pub(super) directives: &'static str,
    pub(super) inputs: Vec<Input>,
    pub(super) maps: Vec<MapParameter>,
    /// The output before the launch.
    pub(super) output: Vec<u8>,
    pub(super) element: Element,
    pub(super) comparison: Comparison,
    pub(super) body: String,
}

impl Program {
    /// One CTA of a warp with 4 KiB of shared memory, an output of `bytes` bytes that
    /// nothing has touched, compared bit by bit.
    pub(super) fn new(name: impl Into<String>, bytes: usize, body: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            grid: 1,
            block: 32,
            cluster: 1,
            shared: 4096,
            directives: "",
            inputs: Vec::new(),
            maps: Vec::new(),
            output: vec![UNTOUCHED; bytes],
            element: Element::Bits(4),
            comparison: Comparison::Exact,
            body: body.into(),
        }
    }

    /// One cluster of `ctas` CTAs.
    pub(super) fn in_cluster(self, ctas: u32) -> Self {
        Self { grid: ctas, cluster: ctas, ..self }
    }

    /// Adds an input of random bytes.
    pub(super) fn random(mut self, bytes: usize) -> Self {
        self.inputs.push(random(bytes, self.inputs.len() as u64 + 1));
        self
    }

    fn kernel(&self) -> String {
        let Self { inputs, maps, shared, directives, body, .. } = self;
        let mut params: Vec<String> =
            (0..inputs.len()).map(|index| format!(".param .u64 in{index}")).collect();
        params.push(".param .u64 out".into());
        params.extend((0..maps.len()).map(|n| format!(".param .align 64 .b8 map{n}[128]")));
        let mut text = format!(".visible .entry {}({})", entry(&self.name), params.join(", "));
        let _ = write!(
            text,
            " {directives} {{\n    \
             .shared .align 1024 .b8 room[{shared}]; .shared .align 8 .b64 bars[{BARRIERS}];\n    \
             .reg .pred %p<20>, %leader; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .f32 %f<20>; \
             .reg .b64 %d<60>; .reg .b64 %out;\n    \
             .reg .b32 %me, %wid, %lane, %cta, %rank, %s, %b;\n    \
             ld.param.u64 %out, [out];\n"
        );
        for index in 0..inputs.len() {
            let _ =
                writeln!(text, "    .reg .b64 %in{index}; ld.param.u64 %in{index}, [in{index}];");
        }
        for n in 0..maps.len() {
            let _ = writeln!(
                text,
                "    .reg .b64 %map{n}; mov.u64 %map{n}, map{n}; cvta.param.u64 %map{n}, %map{n};"
            );
        }
        let _ = write!(
            text,
            "    mov.u32 %me, %tid.x; shr.u32 %wid, %me, 5; mov.u32 %lane, %laneid; \
             mov.u32 %cta, %ctaid.x; mov.u32 %rank, %cluster_ctarank;\n    \
             mov.u32 %s, room; mov.u32 %b, bars; setp.eq.u32 %leader, %me, 0;\n\
             {body}\n    ret;\n}}"
        );
        text
    }
}

impl Set {
    /// Adds a program.
    pub(super) fn program(&mut self, program: Program) {
        let probe = Probe {
            family: self.family(),
            entry: entry(&program.name),
            kernel: program.kernel(),
            grid: [program.grid, 1, 1],
            block: [program.block, 1, 1],
            cluster: (program.cluster > 1).then_some([program.cluster, 1, 1]),
            dynamic_shared: 0,
            inputs: program.inputs,
            maps: program.maps,
            output: program.output,
            element: program.element,
            comparison: program.comparison,
            name: program.name,
        };
        self.push(probe);
    }
}

/// Bytes from a seed.
pub(super) fn random(bytes: usize, seed: u64) -> Input {
    let mut rng = SplitMix::new(seed);
    Input { width: 1, bytes: (0..bytes).map(|_| rng.next() as u8).collect() }
}

/// 32-bit words.
pub(super) fn words(values: impl IntoIterator<Item = u32>) -> Input {
    Input { width: 4, bytes: values.into_iter().flat_map(u32::to_le_bytes).collect() }
}

/// Initialises the mbarriers with these counts and lets every thread know.
pub(super) fn barriers(counts: &[u32]) -> String {
    let mut code = String::new();
    for (index, count) in counts.iter().enumerate() {
        let _ =
            write!(code, "@%leader mbarrier.init.shared::cta.b64 [%b+{}], {count}; ", 8 * index);
    }
    format!("{code}fence.mbarrier_init.release.cluster; bar.sync 0;\n")
}

/// Waits for the phase of this parity of mbarrier `index`.
pub(super) fn wait(index: u32, parity: u32, label: &str) -> String {
    format!(
        "{label}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p19, [%b+{}], {parity}; \
         @!%p19 bra {label};\n",
        8 * index
    )
}

/// Copies `bytes` bytes, a multiple of 16, between `%s + to` and global memory at
/// `address`, all threads of the CTA (`block` of them) together.
fn transfer(bytes: u32, block: u32, label: &str, body: &str) -> String {
    format!(
        "    mov.u32 %r50, %me; setp.ge.u32 %p18, %r50, {count}; @%p18 bra {label}_END;\n\
         {label}: {body} add.u32 %r50, %r50, {block}; setp.lt.u32 %p18, %r50, {count}; \
         @%p18 bra {label};\n{label}_END:\n",
        count = bytes / 16
    )
}

/// Fills `bytes` bytes of shared memory from `%s + offset` on with those at global
/// address `from`.
pub(super) fn fill(from: &str, offset: u32, bytes: u32, block: u32, label: &str) -> String {
    let body = format!(
        "mad.wide.u32 %d50, %r50, 16, {from}; \
         ld.global.v4.b32 {{%r51, %r52, %r53, %r54}}, [%d50]; mad.lo.u32 %r55, %r50, 16, %s; \
         st.shared.v4.b32 [%r55+{offset}], {{%r51, %r52, %r53, %r54}};"
    );
    transfer(bytes, block, label, &body)
}

/// Writes `bytes` bytes of shared memory from `%s + offset` on to global address `to`.
pub(super) fn dump(to: &str, offset: u32, bytes: u32, block: u32, label: &str) -> String {
    let body = format!(
        "mad.lo.u32 %r55, %r50, 16, %s; \
         ld.shared.v4.b32 {{%r51, %r52, %r53, %r54}}, [%r55+{offset}]; \
         mad.wide.u32 %d50, %r50, 16, {to}; \
         st.global.v4.b32 [%d50], {{%r51, %r52, %r53, %r54}};"
    );
    transfer(bytes, block, label, &body)
}
