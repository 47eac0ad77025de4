//! Helpers that the tests of asynchronous units share: kernels as PTX text, launched under every
//! kind of schedule.

#![allow(dead_code, reason = "each test binary uses a part")]

use ptx_emu_core::{
    Checks, Diagnostic, DiagnosticKind, GlobalMemory, Gpu, Launch, LaunchError, LaunchReport,
    Model, Module, Schedule,
};

/// Seeds of the random schedule that value tests run under.
pub const SEEDS: u64 = 64;

/// Eager, lazy and every seed.
pub fn schedules() -> impl Iterator<Item = Schedule> {
    [Schedule::Eager, Schedule::Lazy].into_iter().chain((0..SEEDS).map(Schedule::Random))
}

/// A kernel `k(out, in, map)` around a body, and how it is launched.
///
/// The body has registers of every type; `%out` and `%in` are global pointers,
/// `%tid`, `%wid`, `%lane`, `%cta` (`%ctaid.x`) and `%rank` are set, `%map` is
/// the generic address of the tensor map parameter. Shared memory is `.shared
/// .align 1024 .b8 s[SHARED]`, its address `%s`; mbarriers are `.b64 b[8]`,
/// their address `%b`.
#[derive(Clone)]
pub struct Case {
    pub body: String,
    pub shared: u32,
    pub grid: u32,
    pub block: u32,
    pub cluster: u32,
    pub directives: String,
    pub input: Vec<u8>,
    pub out_bytes: u64,
    pub map: Option<ptx_emu_core::tensor_map::TensorMap>,
    /// Instruction limit of a cluster.
    pub limit: u64,
    /// Whether the kernel is for `sm_100a` and a B200.
    pub sm100: bool,
    /// The machine, if it is neither a B200 nor an H200.
    pub gpu: Option<Gpu>,
    pub model: Model,
}

impl Case {
    pub fn new(body: &str) -> Self {
        Self {
            body: body.to_owned(),
            shared: 16384,
            grid: 1,
            block: 32,
            cluster: 1,
            directives: String::new(),
            input: (0..16384u32).map(|i| (i * 7 + (i >> 8)) as u8).collect(),
            out_bytes: 128,
            map: None,
            limit: 4_000_000,
            sm100: false,
            gpu: None,
            model: Model::Ptx,
        }
    }

    pub fn block(self, block: u32) -> Self {
        Self { block, ..self }
    }

    pub fn out(self, out_bytes: u64) -> Self {
        Self { out_bytes, ..self }
    }

    /// One cluster of `ctas` CTAs.
    pub fn cluster(self, ctas: u32) -> Self {
        Self { grid: ctas, cluster: ctas, ..self }
    }

    pub fn u32s(self, values: impl IntoIterator<Item = u32>) -> Self {
        let input = values.into_iter().flat_map(u32::to_le_bytes).collect();
        Self { input, ..self }
    }

    fn gpu(&self) -> Gpu {
        let data_centre = || if self.sm100 { Gpu::b200() } else { Gpu::h200() };
        self.gpu.clone().unwrap_or_else(data_centre)
    }

    pub fn text(&self) -> String {
        let Self { body, shared, directives, .. } = self;
        let target = self.gpu().arch;
        format!(
            ".version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 out_param, .param .u64 in_param, .param .align 64 .b8 map_param[128])
{directives}
{{
    .shared .align 1024 .b8 s[{shared}];
    .shared .align 8 .b64 b[8];
    .reg .pred %p<20>, %leader; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .f32 %f<20>;
    .reg .b64 %d<60>; .reg .b128 %q<6>; .reg .b64 %out, %in, %map;
    .reg .b32 %tid, %wid, %lane, %cta, %rank, %s, %b;
    ld.param.u64 %out, [out_param]; ld.param.u64 %in, [in_param];
    mov.u64 %map, map_param; cvta.param.u64 %map, %map;
    mov.u32 %tid, %tid.x; shr.u32 %wid, %tid, 5; mov.u32 %lane, %laneid;
    mov.u32 %cta, %ctaid.x; mov.u32 %rank, %cluster_ctarank;
    mov.u32 %s, s; mov.u32 %b, b;
    {body}
    ret;
}}"
        )
    }

    pub fn launch(&self, schedule: Schedule) -> Result<(Vec<u8>, LaunchReport), LaunchError> {
        let text = self.text();
        let gpu = self.gpu();
        let module = match Module::load(&text, &gpu) {
            Ok(module) => module,
            Err(error) => panic!("load: {error}\n{text}"),
        };
        let mut memory = GlobalMemory::new();
        let input = memory.alloc_from("in", &self.input).unwrap();
        let out = memory.alloc("out", self.out_bytes, 1024).unwrap();
        let mut params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
        params.resize(64, 0);
        let map = match &self.map {
            None => [0; 128],
            Some(map) => {
                // Maps are given relative to the input; negative ones to the output.
                let mut map = map.clone();
                map.address = map.address.wrapping_add(if map.address >> 63 == 0 {
                    input
                } else {
                    out.wrapping_sub(1 << 63)
                });
                map.encode().unwrap()
            }
        };
        params.extend(map);
        let report = module.launch(
            &mut memory,
            &Launch {
                entry: "k",
                grid: [self.grid, 1, 1],
                block: [self.block, 1, 1],
                cluster: (self.cluster != 1).then_some([self.cluster, 1, 1]),
                dynamic_shared: 0,
                params: &params,
                schedule,
                threads: Some(1),
                instruction_limit: Some(self.limit),
                checks: Checks::new(self.model),
            },
        )?;
        Ok((memory.read_raw(out, self.out_bytes).unwrap(), report))
    }

    /// Every schedule must give these bytes.
    #[track_caller]
    pub fn gives(&self, expected: &[u8]) -> &Self {
        for schedule in schedules() {
            match self.launch(schedule) {
                Ok((actual, _)) => {
                    assert_eq!(actual.len(), expected.len(), "length");
                    for (at, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                        assert_eq!(actual, expected, "byte {at}, schedule {schedule}");
                    }
                }
                Err(error) => panic!("{error}\n{}", numbered(&self.text())),
            }
        }
        self
    }

    /// Every schedule must give these words.
    #[track_caller]
    pub fn gives_words(&self, expected: impl IntoIterator<Item = u32>) -> &Self {
        let bytes: Vec<u8> = expected.into_iter().flat_map(u32::to_le_bytes).collect();
        self.gives(&bytes)
    }

    /// The diagnostic under a schedule.
    #[track_caller]
    pub fn fails(&self, schedule: Schedule) -> Diagnostic {
        match self.launch(schedule) {
            Err(LaunchError::Diagnostic(diagnostic)) => *diagnostic,
            Err(error) => panic!("launch: {error}"),
            Ok(_) => panic!("no diagnostic under {schedule}\n{}", numbered(&self.text())),
        }
    }

    /// Every schedule must run without a diagnostic.
    #[track_caller]
    pub fn passes(&self) -> &Self {
        for schedule in schedules() {
            if let Err(error) = self.launch(schedule) {
                panic!("{error}\n{}", numbered(&self.text()));
            }
        }
        self
    }

    /// Some of the given schedules must say all of `parts`, and those that fail
    /// must say the same.
    #[track_caller]
    pub fn says(&self, schedules: &[Schedule], parts: &[&str]) -> Diagnostic {
        let mut last = None;
        for &schedule in schedules {
            let diagnostic = self.fails(schedule);
            let text = diagnostic.to_string();
            for part in parts {
                assert!(text.contains(part), "`{part}` is not in: {text}");
            }
            last = Some(diagnostic);
        }
        last.expect("a schedule")
    }
}

/// The kind of a diagnostic, for tests that want it typed.
pub fn kind(diagnostic: &Diagnostic) -> &DiagnosticKind {
    &diagnostic.kind
}

fn numbered(text: &str) -> String {
    text.lines().enumerate().map(|(at, line)| format!("{:4} {line}\n", at + 1)).collect()
}

/// PTX that initialises mbarrier `index` with `count` in thread 0.
pub fn init(index: u32, count: u32) -> String {
    format!("@%leader mbarrier.init.shared::cta.b64 [%b+{}], {count};\n", index * 8)
}

/// PTX that waits for the phase of `parity` of mbarrier `index`; `label` must
/// be unique.
pub fn wait(index: u32, parity: &str, label: &str) -> String {
    format!(
        "{label}: mbarrier.try_wait.parity.shared::cta.b64 %p19, [%b+{}], {parity};
        @!%p19 bra {label};\n",
        index * 8
    )
}

/// PTX that makes thread 0 the leader and initialises the mbarriers.
pub fn barriers(counts: &[u32]) -> String {
    let inits: String = counts.iter().zip(0..).map(|(&count, index)| init(index, count)).collect();
    format!(
        "setp.eq.u32 %leader, %tid, 0;
        {inits}
        fence.mbarrier_init.release.cluster;
        bar.sync 0;\n"
    )
}
