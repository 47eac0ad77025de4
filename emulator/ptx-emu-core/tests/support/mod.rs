//! Helpers that the machine tests share: kernels as PTX text, launched on small data.

#![allow(dead_code, reason = "each test binary uses a part")]

use ptx_emu_core::{
    Checks, Diagnostic, GlobalMemory, Gpu, Launch, LaunchError, LaunchReport, LoadError, Module,
    Schedule,
};

/// All schedules that tests run under.
pub const SCHEDULES: [Schedule; 5] = [
    Schedule::Eager,
    Schedule::Lazy,
    Schedule::Random(1),
    Schedule::Random(2),
    Schedule::Random(3),
];

/// Header of every module.
pub fn module(body: &str) -> String {
    format!(".version 9.0\n.target sm_90a\n.address_size 64\n{body}")
}

/// A kernel `k(.param .u64 out, .param .u64 in)` around `body`: `%out` and
/// `%in` are generic-to-global converted pointers, `%tid` the thread in the
/// grid, `%po` and `%pi` 4-byte indexed pointers, and registers of each type.
pub fn kernel(body: &str) -> String {
    module(&format!(
        ".visible .entry k(.param .u64 out_param, .param .u64 in_param) {{
            .reg .pred %p<20>; .reg .b16 %h<30>; .reg .b32 %r<60>; .reg .f32 %f<30>;
            .reg .b64 %d<60>; .reg .f64 %fd<10>; .reg .b128 %q<6>; .reg .b8 %b<10>;
            .reg .b64 %out, %in, %po, %pi; .reg .b32 %tid, %bid, %nt;
            ld.param.u64 %out, [out_param]; ld.param.u64 %in, [in_param];
            mov.u32 %tid, %tid.x; mov.u32 %bid, %ctaid.x; mov.u32 %nt, %ntid.x;
            mad.lo.u32 %tid, %bid, %nt, %tid;
            mad.wide.u32 %po, %tid, 4, %out; mad.wide.u32 %pi, %tid, 4, %in;
            {body}
            ret;
        }}"
    ))
}

/// The same module for another target than `sm_90a`.
pub fn for_target(text: &str, target: &str) -> String {
    text.replace(".target sm_90a", &format!(".target {target}"))
}

/// A machine that runs a module.
pub fn machine(text: &str) -> Gpu {
    Gpu::for_module(text)
}

/// A launch of `k` that can be varied.
#[derive(Clone)]
pub struct Run {
    pub text: String,
    pub grid: u32,
    pub block: u32,
    pub input: Vec<u8>,
    pub out_bytes: u64,
    pub schedule: Schedule,
    pub threads: Option<usize>,
    pub limit: Option<u64>,
    pub dynamic_shared: u32,
    /// Fill the output with zeros first, instead of poison.
    pub zeroed: bool,
}

impl Run {
    pub fn new(text: String) -> Self {
        Self {
            text,
            grid: 1,
            block: 32,
            input: vec![0; 4096],
            out_bytes: 128,
            schedule: Schedule::Eager,
            threads: Some(1),
            limit: Some(10_000_000),
            dynamic_shared: 0,
            zeroed: false,
        }
    }

    pub fn body(body: &str) -> Self {
        Self::new(kernel(body))
    }

    /// Compiles for another target than `sm_90a`.
    pub fn target(self, target: &str) -> Self {
        Self { text: for_target(&self.text, target), ..self }
    }

    pub fn input<T: Copy>(mut self, values: &[T], bytes: impl Fn(T) -> Vec<u8>) -> Self {
        self.input = values.iter().flat_map(|&value| bytes(value)).collect();
        self
    }

    pub fn u32s(self, values: &[u32]) -> Self {
        self.input(values, |value| value.to_le_bytes().to_vec())
    }

    pub fn u64s(self, values: &[u64]) -> Self {
        self.input(values, |value| value.to_le_bytes().to_vec())
    }

    pub fn launch(&self, memory: &mut GlobalMemory) -> Result<(u64, LaunchReport), LaunchError> {
        let module = match Module::load(&self.text, &machine(&self.text)) {
            Ok(module) => module,
            Err(error) => panic!("load: {error}\n{}", self.text),
        };
        let input = memory.alloc_from("in", &self.input).unwrap();
        let out = memory.alloc("out", self.out_bytes, 256).unwrap();
        if self.zeroed {
            memory.fill(out, self.out_bytes, 0).unwrap();
        }
        let params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
        let report = module.launch(
            memory,
            &Launch {
                entry: "k",
                grid: [self.grid, 1, 1],
                block: [self.block, 1, 1],
                cluster: None,
                dynamic_shared: self.dynamic_shared,
                params: &params,
                schedule: self.schedule,
                threads: self.threads,
                instruction_limit: self.limit,
                checks: Checks::default(),
            },
        )?;
        Ok((out, report))
    }

    /// Output bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut memory = GlobalMemory::new();
        match self.launch(&mut memory) {
            Ok((out, _)) => memory.read(out, self.out_bytes).unwrap(),
            Err(error) => panic!("launch: {error}"),
        }
    }

    /// Output as 32-bit words.
    pub fn words(&self) -> Vec<u32> {
        self.bytes()
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    /// Output as 64-bit words.
    pub fn longs(&self) -> Vec<u64> {
        self.bytes()
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    /// The diagnostic that the launch must raise.
    pub fn diagnostic(&self) -> Diagnostic {
        let mut memory = GlobalMemory::new();
        match self.launch(&mut memory) {
            Err(LaunchError::Diagnostic(diagnostic)) => *diagnostic,
            Err(error) => panic!("launch: {error}"),
            Ok(_) => panic!("no diagnostic\n{}", self.text),
        }
    }
}

/// The error with which a module must be refused.
pub fn load_error(text: &str) -> LoadError {
    match Module::load(text, &Gpu::h200()) {
        Err(error) => error,
        Ok(_) => panic!("loaded:\n{text}"),
    }
}

/// The error with which a kernel around `body` must be refused for a target.
pub fn error_of(body: &str, target: &str) -> LoadError {
    let text = for_target(&kernel(body), target);
    match Module::load(&text, &machine(&text)) {
        Err(error) => error,
        Ok(_) => panic!("loaded:\n{text}"),
    }
}

/// Compares lane by lane.
#[track_caller]
pub fn check<T: PartialEq + std::fmt::Debug>(what: &str, actual: &[T], expected: &[T]) {
    assert_eq!(actual.len(), expected.len(), "{what}: length");
    for (lane, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert_eq!(actual, expected, "{what}: lane {lane}");
    }
}
