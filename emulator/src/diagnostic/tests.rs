//! Every variant of the diagnostics has a program in `tests/fail` that must
//! trigger it, with its text, and a twin that must not. A variant without a
//! program does not pass, a new one without a name here does not compile.
//!
//! A program is a PTX module with a kernel `k(out, in, map)`: 4 KiB that were
//! never written, 16 KiB of data, and the tensor map of an 8 by 8 tile of `in`.
//! Its head says which variant it triggers, parts of the text, how it is launched
//! and under which schedules it must fail; it runs without diagnostic under all
//! schedules without the lines that end in `//-` and with those that begin with
//! `//+`.

use super::{AsyncFault, DiagnosticKind, MbarrierFault};
use crate::tensor_map::{ElementType, TensorMap};
use crate::{GlobalMemory, Gpu, Launch, LaunchError, Module, Schedule};
use std::collections::BTreeSet;
use std::path::Path;

/// Names of variants: a function over all of them, and the list.
macro_rules! names {
    ($function:ident, $list:ident, $type:ty: $($pattern:pat => $name:literal),+ $(,)?) => {
        fn $function(kind: &$type) -> &'static str {
            match kind { $($pattern => $name),+ }
        }
        const $list: &[&str] = &[$($name),+];
    };
}

names! { kind_name, KINDS, DiagnosticKind:
    DiagnosticKind::OutOfBounds => "OutOfBounds",
    DiagnosticKind::Misaligned { .. } => "Misaligned",
    DiagnosticKind::UninitialisedRead { .. } => "UninitialisedRead",
    DiagnosticKind::ReadOnly => "ReadOnly",
    DiagnosticKind::DivergentAligned { .. } => "DivergentAligned",
    DiagnosticKind::MissingMembers { .. } => "MissingMembers",
    DiagnosticKind::NotAMember { .. } => "NotAMember",
    DiagnosticKind::InactiveSource { .. } => "InactiveSource",
    DiagnosticKind::BarrierMismatch { .. } => "BarrierMismatch",
    DiagnosticKind::Deadlock { .. } => "Deadlock",
    DiagnosticKind::Assertion { .. } => "Assertion",
    DiagnosticKind::Trap => "Trap",
    DiagnosticKind::Breakpoint => "Breakpoint",
    DiagnosticKind::BadTarget { .. } => "BadTarget",
    DiagnosticKind::StackOverflow { .. } => "StackOverflow",
    DiagnosticKind::Async(_) => "Async",
    DiagnosticKind::Race(_) => "Race",
    DiagnosticKind::InstructionLimit { .. } => "InstructionLimit",
}

names! { async_name, ASYNC, AsyncFault:
    AsyncFault::InFlight { .. } => "InFlight",
    AsyncFault::MissingProxyFence { .. } => "MissingProxyFence",
    AsyncFault::MissingTensormapFence { .. } => "MissingTensormapFence",
    AsyncFault::Mbarrier { .. } => "Mbarrier",
    AsyncFault::ClusterBarrier { .. } => "ClusterBarrier",
    AsyncFault::Unstarted { .. } => "Unstarted",
    AsyncFault::Exited { .. } => "Exited",
    AsyncFault::LeftInFlight { .. } => "LeftInFlight",
    AsyncFault::Outlasts { .. } => "Outlasts",
    AsyncFault::Operand { .. } => "Operand",
    AsyncFault::TensorMap(_) => "TensorMap",
    AsyncFault::Tile(_) => "Tile",
    AsyncFault::Replace(_) => "Replace",
    AsyncFault::Tensor(_) => "Tensor",
    AsyncFault::MaxRegisters { .. } => "MaxRegisters",
}

names! { mbarrier_name, MBARRIER, MbarrierFault:
    MbarrierFault::NotInitialised => "NotInitialised",
    MbarrierFault::Overwritten { .. } => "Overwritten",
    MbarrierFault::InUse => "InUse",
    MbarrierFault::Count { .. } => "Count",
    MbarrierFault::OverArrival { .. } => "OverArrival",
    MbarrierFault::Completes { .. } => "Completes",
    MbarrierFault::Transactions { .. } => "Transactions",
    MbarrierFault::StalePhase { .. } => "StalePhase",
    MbarrierFault::MissedPhase { .. } => "MissedPhase",
}

/// The innermost name.
fn name(kind: &DiagnosticKind) -> &'static str {
    match kind {
        DiagnosticKind::Async(AsyncFault::Mbarrier { fault, .. }) => mbarrier_name(fault),
        DiagnosticKind::Async(fault) => async_name(fault),
        kind => kind_name(kind),
    }
}

/// Names that stand for others.
const OUTER: [&str; 2] = ["Async", "Mbarrier"];

#[derive(Debug, Default)]
struct Program {
    file: String,
    variant: String,
    says: Vec<String>,
    schedules: Vec<Schedule>,
    blackwell: bool,
    block: u32,
    cluster: u32,
    limit: Option<u64>,
    text: String,
}

impl Program {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("readable");
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        let mut program = Self { file, block: 32, cluster: 1, ..Self::default() };
        for line in text.lines() {
            let Some((key, value)) = line.strip_prefix("// ").and_then(|l| l.split_once(": "))
            else {
                break;
            };
            match key {
                "variant" => program.variant = value.to_owned(),
                "says" => program.says.push(value.to_owned()),
                "schedules" => {
                    let schedule = |text: &str| text.parse().expect("a schedule");
                    program.schedules = value.split(' ').map(schedule).collect();
                }
                "launch" => value.split(' ').for_each(|item| program.launch_item(item)),
                _ => panic!("{}: unknown key {key}", program.file),
            }
        }
        program.text = text;
        program
    }

    fn launch_item(&mut self, item: &str) {
        match item.split_once('=') {
            Some(("gpu", gpu)) => self.blackwell = gpu == "b200",
            Some(("block", count)) => self.block = count.parse().expect("a number"),
            Some(("cluster", count)) => self.cluster = count.parse().expect("a number"),
            Some(("limit", count)) => self.limit = Some(count.parse().expect("a number")),
            _ => panic!("{}: unknown launch item {item}", self.file),
        }
    }

    fn twin(&self) -> String {
        let lines = self.text.lines().filter(|line| !line.ends_with("//-"));
        let lines = lines.map(|line| line.replacen("//+ ", "", 1));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn launch(&self, text: &str, schedule: Schedule) -> Result<(), LaunchError> {
        let gpu = if self.blackwell { Gpu::b200() } else { Gpu::h200() };
        let module = match Module::load(text, &gpu) {
            Ok(module) => module,
            Err(error) => panic!("{}: {error}", self.file),
        };
        let mut memory = GlobalMemory::new();
        let input: Vec<u8> = (0..16384u32).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        let input = memory.alloc_from("in", &input).expect("room");
        let out = memory.alloc("out", 4096, 1024).expect("room");
        let mut params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
        params.resize(64, 0);
        let map = TensorMap::tiled(ElementType::U32, input, &[8, 8], &[32], &[8, 4]);
        params.extend(map.encode().expect("a map that fits"));
        let launch = Launch {
            entry: "k",
            grid: [self.cluster, 1, 1],
            block: [self.block, 1, 1],
            cluster: (self.cluster != 1).then_some([self.cluster, 1, 1]),
            dynamic_shared: 0,
            params: &params,
            schedule,
            threads: Some(1),
            instruction_limit: Some(self.limit.unwrap_or(50_000_000)),
        };
        module.launch(&mut memory, &launch).map(|_| ())
    }
}

fn programs() -> Vec<Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fail");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("programs").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| Program::read(path)).collect()
}

#[test]
fn every_variant_has_a_program() {
    let programs = programs();
    let covered: BTreeSet<&str> = programs.iter().map(|p| p.variant.as_str()).collect();
    let wanted: BTreeSet<&str> = [KINDS, ASYNC, MBARRIER]
        .into_iter()
        .flatten()
        .copied()
        .filter(|name| !OUTER.contains(name))
        .collect();
    assert_eq!(covered, wanted);
}

#[test]
fn programs_fail_as_they_say() {
    for program in programs() {
        let file = &program.file;
        assert!(!program.says.is_empty() && !program.schedules.is_empty(), "{file}");
        for &schedule in &program.schedules {
            let diagnostic = match program.launch(&program.text, schedule) {
                Err(LaunchError::Diagnostic(diagnostic)) => diagnostic,
                other => panic!("{file}, {schedule}: {other:?}"),
            };
            let text = diagnostic.to_string();
            assert_eq!(name(&diagnostic.kind), program.variant, "{file}, {schedule}: {text}");
            for part in &program.says {
                assert!(text.contains(part), "{file}, {schedule}: `{part}` is not in: {text}");
            }
            assert!(diagnostic.line > 0 && text.contains("kernel `k`"), "{file}: {text}");
        }
    }
}

#[test]
fn twins_run() {
    for program in programs() {
        let twin = program.twin();
        assert_ne!(twin, program.text, "{}: the twin is the program", program.file);
        let schedules = [Schedule::Eager, Schedule::Lazy];
        for schedule in schedules.into_iter().chain((0..16).map(Schedule::Random)) {
            if let Err(error) = program.launch(&twin, schedule) {
                panic!("{}: {error}\n{twin}", program.file);
            }
        }
    }
}
