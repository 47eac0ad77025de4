//! PTX programs that say in their heads what is wrong with them, and their twins that are right.
//!
//! A program is a module with a kernel `k(out, in, map)`: 4 KiB that were
//! never written, 16 KiB of data, and the tensor map of an 8 by 8 tile of `in`.
//! Its head says which kind of finding it has, parts of the text, how it is launched,
//! under which schedules it must fail, and by which models (both, if it does not say; with
//! `level: warn`, both warn, and it must fail where the kind is denied); it runs
//! without a finding under all schedules and by both models without the lines that end in `//-`
//! and with those that begin with `//+`.

use ptx_emu_core::tensor_map::{ElementType, TensorMap};
use ptx_emu_core::{
    Checks, Diagnostic, GlobalMemory, Gpu, Kind, Launch, LaunchError, LaunchReport,
};
use ptx_emu_core::{Level, Model, Module, Schedule};
use std::path::Path;

/// Both.
pub const MODELS: [Model; 2] = [Model::Hardware, Model::Ptx];

#[derive(Debug, Default)]
pub struct Program {
    pub file: String,
    pub kind: Option<Kind>,
    pub models: Vec<Model>,
    /// Both models only warn.
    pub warned: bool,
    pub says: Vec<String>,
    pub schedules: Vec<Schedule>,
    pub sm100: bool,
    pub block: u32,
    pub cluster: u32,
    pub limit: Option<u64>,
    pub text: String,
}

impl Program {
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("readable");
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        let mut program =
            Self { file, block: 32, cluster: 1, models: MODELS.into(), ..Self::default() };
        for line in text.lines() {
            let Some((key, value)) = line.strip_prefix("// ").and_then(|l| l.split_once(": "))
            else {
                break;
            };
            match key {
                "kind" => program.kind = Some(value.parse().expect("a kind")),
                "models" => {
                    let model = |text: &str| text.parse().expect("a model");
                    program.models = value.split(' ').map(model).collect();
                }
                "level" => {
                    assert_eq!(value, "warn", "{}", program.file);
                    program.warned = true;
                }
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
            Some(("gpu", gpu)) => self.sm100 = gpu == "b200",
            Some(("block", count)) => self.block = count.parse().expect("a number"),
            Some(("cluster", count)) => self.cluster = count.parse().expect("a number"),
            Some(("limit", count)) => self.limit = Some(count.parse().expect("a number")),
            _ => panic!("{}: unknown launch item {item}", self.file),
        }
    }

    pub fn twin(&self) -> String {
        let lines = self.text.lines().filter(|line| !line.ends_with("//-"));
        let lines = lines.map(|line| line.replacen("//+ ", "", 1));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub fn launch(
        &self,
        text: &str,
        schedule: Schedule,
        checks: Checks,
    ) -> Result<LaunchReport, LaunchError> {
        let gpu = if self.sm100 { Gpu::b200() } else { Gpu::h200() };
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
            checks,
        };
        module.launch(&mut memory, &launch)
    }
}

/// The programs of a folder of the emulator.
pub fn programs(folder: &str) -> Vec<Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(folder).expect("programs").flatten().map(|entry| entry.path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|ext| ext == "ptx")).collect();
    paths.sort();
    paths.iter().map(|path| Program::read(path)).collect()
}

/// Every program must fail as it says.
pub fn check_failures(programs: &[Program]) {
    for program in programs {
        let file = &program.file;
        let kind = program.kind.expect("a kind");
        assert!(!program.says.is_empty() && !program.schedules.is_empty(), "{file}");
        for (&schedule, model) in program
            .schedules
            .iter()
            .zip(MODELS.into_iter().cycle())
            .chain(program.schedules.iter().zip(MODELS.into_iter().rev().cycle()))
        {
            let mut checks = Checks::new(model);
            if program.warned {
                let report = program.launch(&program.text, schedule, checks);
                let findings =
                    report.unwrap_or_else(|e| panic!("{file}, {schedule}: {e}")).findings;
                let warned =
                    |found: &Diagnostic| (found.kind(), found.level) == (kind, Level::Warn);
                assert!(
                    !findings.is_empty() && findings.iter().all(warned),
                    "{file}: {findings:?}"
                );
                checks = checks.with(kind, Level::Deny);
            }
            let result = program.launch(&program.text, schedule, checks);
            if !program.models.contains(&model) {
                // It is no error there, or something else is found before it.
                if checks.level(kind) < Level::Deny {
                    let report = result.unwrap_or_else(|e| panic!("{file}, {schedule}: {e}"));
                    assert_eq!(checks.level(kind) == Level::Warn, !report.findings.is_empty());
                }
                continue;
            }
            let diagnostic = match result {
                Err(LaunchError::Diagnostic(diagnostic)) => diagnostic,
                other => panic!("{file}, {schedule}, {model}: {other:?}"),
            };
            let text = diagnostic.to_string();
            assert_eq!(diagnostic.kind(), kind, "{file}, {schedule}, {model}: {text}");
            for part in &program.says {
                assert!(text.contains(part), "{file}, {schedule}: `{part}` is not in: {text}");
            }
            assert!(diagnostic.line > 0 && text.contains("kernel `k`"), "{file}: {text}");
            let all = match program.launch(&program.text, schedule, checks.collecting(20)) {
                Ok(report) => report.findings,
                Err(LaunchError::Diagnostic(first)) => with_first(*first),
                Err(error) => panic!("{file}, {schedule}: {error}"),
            };
            let found = all.iter().find(|found| found.kind() == kind);
            assert!(found.is_some_and(|found| found.level == Level::Deny), "{file}: {all:?}");
            assert!(
                !kind.is_fatal() || all.last().is_some_and(|last| last.kind() == kind),
                "{file}"
            );
        }
    }
}

/// The findings of a run that one of them ended.
fn with_first(mut first: Diagnostic) -> Vec<Diagnostic> {
    let others = std::mem::take(&mut first.others);
    [first].into_iter().chain(others).collect()
}

/// Every twin must run.
pub fn check_twins(programs: &[Program]) {
    for program in programs {
        let twin = program.twin();
        assert_ne!(twin, program.text, "{}: the twin is the program", program.file);
        let schedules = [Schedule::Eager, Schedule::Lazy];
        for schedule in schedules.into_iter().chain((0..16).map(Schedule::Random)) {
            for model in MODELS {
                match program.launch(&twin, schedule, Checks::new(model)) {
                    Ok(report) => assert_eq!(report.findings, [], "{}", program.file),
                    Err(error) => panic!("{}, {model}: {error}\n{twin}", program.file),
                }
            }
        }
    }
}
