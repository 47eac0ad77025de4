//! A ring of `cp.async` stages before `ldmatrix` and `mma.sync`, in PTX for sm_80: its results on every
//! machine and under every schedule, and the faults of a kernel that leaves out one of its waits.

use ptx_emu_core::{
    Checks, Diagnostic, DiagnosticKind, GlobalMemory, Gpu, Launch, LaunchError, Module, Schedule,
};

/// Elements along K; the last stage is filled up with zeros.
const K: usize = 60;
/// Stages that a kernel multiplies, 16 elements along K each.
const STEPS: usize = 4;
/// Columns of each matrix in memory; those from `K` on are NaN.
const STRIDE: usize = 64;

/// Schedules of the tests.
fn schedules() -> impl Iterator<Item = Schedule> {
    [Schedule::Eager, Schedule::Lazy].into_iter().chain((0..16).map(Schedule::Random))
}

/// The way in which threads learn that a stage has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// Groups of copies, then a barrier of the CTA.
    Groups,
    /// An mbarrier for each stage.
    Barriers,
}

/// Parts of the kernel, each of which it may lack.
#[derive(Debug, Clone, Copy)]
struct Ring {
    arrival: Arrival,
    /// Type of the operands, `f16` or `bf16`.
    ty: &'static str,
    /// The wait for a thread's own copies, or for the stage's mbarrier.
    wait: bool,
    /// The barrier behind it, which shows each thread the copies of the others.
    shown: bool,
    /// The barrier behind the products, before the stage is filled again.
    free: bool,
}

impl Ring {
    fn new(arrival: Arrival, ty: &'static str) -> Self {
        Self { arrival, ty, wait: true, shown: true, free: true }
    }

    /// Copies step `step` of both matrices: a thread copies 16 bytes of a row.
    fn copy(&self, step: usize) -> String {
        let stage = step % 2;
        let told = match self.arrival {
            Arrival::Groups => "cp.async.commit_group;".to_owned(),
            Arrival::Barriers => {
                format!("cp.async.mbarrier.arrive.noinc.shared.b64 [%b+{}];", 8 * stage)
            }
        };
        format!(
            "sub.s32 %r3, %left, {0}; max.s32 %r3, %r3, 0; min.s32 %r3, %r3, 16;
            cp.async.cg.shared.global [%to+{1}], [%from+{0}], 16, %r3; {told}\n",
            32 * step,
            1024 * stage,
        )
    }

    /// Waits for a step, multiplies it, and frees its stage.
    fn multiply(&self, step: usize) -> String {
        let stage = step % 2;
        let wait = match self.arrival {
            _ if !self.wait => String::new(),
            // The copies of the next step may be in flight.
            Arrival::Groups => format!("cp.async.wait_group {};", usize::from(step + 1 < STEPS)),
            Arrival::Barriers => format!(
                "W{step}: mbarrier.test_wait.parity.shared.b64 %p1, [%b+{}], {}; @!%p1 bra W{step};",
                8 * stage,
                step / 2 % 2,
            ),
        };
        let shown = if self.shown && self.arrival == Arrival::Groups { "bar.sync 0;" } else { "" };
        let free = if self.free { "bar.sync 0;" } else { "" };
        format!(
            "{wait} {shown}
            ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%a0, %a1, %a2, %a3}}, [%sa+{0}];
            ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%b0, %b1}}, [%sb+{0}];
            mma.sync.aligned.m16n8k16.row.col.f32.{1}.{1}.f32 {{%f0, %f1, %f2, %f3}},
                {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{%f0, %f1, %f2, %f3}};
            {free}\n",
            1024 * stage,
            self.ty,
        )
    }

    /// A kernel of 64 threads: C of 16 x 16 is A times the transpose of B, warp w its columns from 8w on.
    fn text(&self) -> String {
        let mut body = self.copy(0);
        for step in 0..STEPS {
            if step + 1 < STEPS {
                body += &self.copy(step + 1);
            }
            body += &self.multiply(step);
        }
        // `test_wait.parity` came with PTX 7.1.
        let version = if self.arrival == Arrival::Groups { "7.0" } else { "7.1" };
        format!(
            ".version {version}
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out_param, .param .u64 in_param)
{{
    .shared .align 128 .b8 s[2048]; .shared .align 8 .b64 b[2];
    .reg .pred %p1; .reg .b32 %r<10>, %t, %lane, %warp, %s, %b, %to, %left, %sa, %sb;
    .reg .b32 %a<4>, %b<2>; .reg .f32 %f<4>; .reg .b64 %d<4>, %out, %in, %from;
    ld.param.u64 %out, [out_param]; ld.param.u64 %in, [in_param];
    mov.u32 %t, %tid.x; and.b32 %lane, %t, 31; shr.u32 %warp, %t, 5; mov.u32 %s, s; mov.u32 %b, b;
    setp.ne.u32 %p1, %t, 0;
    @!%p1 mbarrier.init.shared.b64 [%b], 64; @!%p1 mbarrier.init.shared.b64 [%b+8], 64;
    bar.sync 0;
    // Rows of A, then of B: row t/2, chunk t%2 of 16 bytes.
    shr.u32 %r1, %t, 1; and.b32 %r2, %t, 1; mul.lo.u32 %r2, %r2, 16;
    mad.wide.u32 %from, %r1, {row}, %in; cvt.u64.u32 %d1, %r2; add.u64 %from, %from, %d1;
    mad.lo.u32 %to, %t, 16, %s; sub.u32 %left, {bytes}, %r2;
    // Row lane%16 of A, half lane/16 of K; row 8w + lane%8 of B, half lane/8%2.
    and.b32 %r1, %lane, 15; shr.u32 %r2, %lane, 4; mul.lo.u32 %r2, %r2, 16;
    mad.lo.u32 %sa, %r1, 32, %r2; add.u32 %sa, %sa, %s;
    and.b32 %r1, %lane, 7; mad.lo.u32 %r1, %warp, 8, %r1; bfe.u32 %r2, %lane, 3, 1;
    mul.lo.u32 %r2, %r2, 16; mad.lo.u32 %sb, %r1, 32, %r2; add.u32 %sb, %sb, %s;
    add.u32 %sb, %sb, 512;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    {body}
    cp.async.wait_all;
    // Row lane/4, columns 8w + 2 (lane%4).
    shr.u32 %r1, %lane, 2; and.b32 %r2, %lane, 3; mul.lo.u32 %r2, %r2, 2;
    mad.lo.u32 %r2, %warp, 8, %r2; mad.lo.u32 %r1, %r1, 16, %r2;
    mad.wide.u32 %d1, %r1, 4, %out;
    st.global.v2.f32 [%d1], {{%f0, %f1}}; st.global.v2.f32 [%d1+512], {{%f2, %f3}};
    ret;
}}",
            row = 2 * STRIDE,
            bytes = 2 * K,
        )
        .replace("%b<2>", "%c<2>")
        .replace("{%b0, %b1}", "{%c0, %c1}")
    }

    fn launch(&self, gpu: &Gpu, schedule: Schedule) -> Result<Vec<f32>, Box<Diagnostic>> {
        let text = self.text();
        let module = Module::load(&text, gpu).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut memory = GlobalMemory::new();
        let input = memory.alloc_from("in", &self.input()).unwrap();
        let out = memory.alloc("out", 1024, 256).unwrap();
        let params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
        let launch = Launch {
            entry: "k",
            grid: [1; 3],
            block: [64, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: &params,
            schedule,
            threads: Some(1),
            instruction_limit: Some(1_000_000),
            checks: Checks::default(),
        };
        match module.launch(&mut memory, &launch) {
            Ok(_) => {}
            Err(LaunchError::Diagnostic(diagnostic)) => return Err(diagnostic),
            Err(error) => panic!("{error}"),
        }
        let bytes = memory.read(out, 1024).unwrap();
        Ok(bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect())
    }

    /// Both matrices, 32 rows: multiples of 1/4, whose sums are exact.
    fn input(&self) -> Vec<u8> {
        let code = |row: usize, k: usize| match (k < K, self.ty) {
            (false, _) => 0x7fff,
            (true, "f16") => half::f16::from_f32(value(row, k)).to_bits(),
            (true, _) => half::bf16::from_f32(value(row, k)).to_bits(),
        };
        let places = (0..32).flat_map(|row| (0..STRIDE).map(move |k| (row, k)));
        places.flat_map(|(row, k)| code(row, k).to_le_bytes()).collect()
    }

    /// Whether some schedule finds a fault that `expected` accepts, and none another one.
    fn fails(&self, expected: fn(&DiagnosticKind) -> bool) {
        let mut found = 0;
        for schedule in schedules() {
            if let Err(diagnostic) = self.launch(&Gpu::a100(), schedule) {
                assert!(expected(&diagnostic.kind), "{self:?} {schedule}: {diagnostic}");
                found += 1;
            }
        }
        assert!(found > 8, "{self:?}: {found} of 18 schedules");
    }
}

fn value(row: usize, k: usize) -> f32 {
    ((row * 7 + k * 5 + row * k) % 23) as f32 / 4.0 - 2.0
}

const RINGS: [(Arrival, &str); 4] = [
    (Arrival::Groups, "f16"),
    (Arrival::Groups, "bf16"),
    (Arrival::Barriers, "f16"),
    (Arrival::Barriers, "bf16"),
];

#[test]
fn products_are_right_on_every_machine() {
    let product = |row: usize, column: usize| -> f32 {
        (0..K).map(|k| value(row, k) * value(16 + column, k)).sum()
    };
    let expected: Vec<f32> = (0..256).map(|at| product(at / 16, at % 16)).collect();
    for (arrival, ty) in RINGS {
        let ring = Ring::new(arrival, ty);
        for gpu in Gpu::ALL {
            let actual = ring.launch(&gpu, Schedule::Random(7)).expect("no finding");
            assert_eq!(actual, expected, "{ring:?} {}", gpu.name);
        }
        for schedule in schedules() {
            let actual = ring.launch(&Gpu::rtx4090(), schedule).expect("no finding");
            assert_eq!(actual, expected, "{ring:?} {schedule}");
        }
    }
}

#[test]
fn a_missing_wait_is_found() {
    for (arrival, ty) in RINGS {
        let ring = Ring { wait: false, ..Ring::new(arrival, ty) };
        ring.fails(|kind| {
            matches!(
                kind,
                DiagnosticKind::Async(_)
                    | DiagnosticKind::Race(_)
                    | DiagnosticKind::UninitialisedRead { .. }
            )
        });
    }
}

#[test]
fn copies_of_other_threads_are_seen_behind_a_barrier() {
    let ring = Ring { shown: false, ..Ring::new(Arrival::Groups, "f16") };
    ring.fails(|kind| {
        matches!(
            kind,
            DiagnosticKind::Async(_)
                | DiagnosticKind::Race(_)
                | DiagnosticKind::UninitialisedRead { .. }
        )
    });
}

#[test]
fn a_stage_is_not_filled_while_it_is_read() {
    for (arrival, ty) in RINGS {
        let ring = Ring { free: false, ..Ring::new(arrival, ty) };
        ring.fails(|kind| matches!(kind, DiagnosticKind::Async(_) | DiagnosticKind::Race(_)));
    }
}
