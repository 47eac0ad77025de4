//! Random programs of a few warps whose races are known: the emulator must find a race under every
//! schedule if there is one, and no other, and every run without a finding must give the same values.
//!
//! A [`Program`] has loads, stores and atomic additions of shared memory, barriers of the CTA and of
//! warps, shuffles, phases of mbarriers and branches that part the lanes of a warp. It has no loops,
//! and no branch depends on what is loaded, so that what comes before what is the same in every run:
//! `oracle` follows it thread by thread. [`Program::check`] runs it by both models.
//!
//! Values that threads store differ, so that no store leaves what is there already. Atomic
//! additions give no result, because the order of such results is open without a race.
//!
//! | file | topic |
//! |---|---|
//! | `generate` | programs from bytes |
//! | `text` | their PTX |
//! | `oracle` | their races |

mod generate;
mod oracle;
mod text;

use ptx_emu_core::{
    Checks, GlobalMemory, Gpu, Kind, Launch, LaunchError, MemoryError, Model, Module, Schedule,
};
use std::fmt;

/// Lanes of a warp.
const LANES: usize = 32;
/// Words of shared memory that no thread has of its own.
const SHARED_WORDS: usize = 4;
/// Most mbarriers.
const MBARRIERS: usize = 4;

/// The word that each thread accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// One of the words that no thread has of its own.
    Common(u8),
    /// The word of the thread.
    Own,
    /// The word of the lane whose number differs in these bits.
    Neighbour(u8),
    /// The word of the same lane of the next warp.
    NextWarp,
}

/// An access of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Load,
    Store,
    /// A store to the lower half of the word.
    StoreHalf,
    /// `red.add`
    Add,
}

/// An instruction, or several with a purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// An access, by all lanes that are here, or by one of them by a predicate.
    Access { access: Access, place: Place, only: Option<u8> },
    /// `shfl.sync` of all lanes that are here.
    Shuffle(u8),
    /// `bar.warp.sync` of all lanes that are here.
    WarpBarrier,
    /// `bar.sync` of the CTA.
    Barrier,
    /// A thread arrives at an mbarrier for which all wait.
    Phase { warp: u8, lane: u8 },
    /// Steps of one warp.
    Warp(u8, Vec<Step>),
    /// Lanes below a number, 1 to 31, and the others.
    Branch(u8, Vec<Step>, Vec<Step>),
}

/// The end of a run that did not come to its own.
enum Stopped {
    Race(String),
    Otherwise(String),
}

/// A random program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    warps: usize,
    steps: Vec<Step>,
}

/// A way in which the emulator did not do what a program says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The model.
    pub model: Model,
    /// The schedule.
    pub schedule: Schedule,
    /// The difference, in words.
    pub what: String,
    /// The program's PTX.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, schedule, what, text } = self;
        write!(f, "model {model}, schedule {schedule}: {what}\n{text}")
    }
}

impl std::error::Error for Failure {}

impl Program {
    fn threads(&self) -> usize {
        self.warps * LANES
    }

    /// Whether the program has a race by a model.
    #[must_use]
    pub fn has_race(&self, model: Model) -> bool {
        oracle::has_race(self, model == Model::Ptx)
    }

    /// Runs the program by both models under `eager`, `lazy` and `seeds` seeds of `random` from
    /// `first` on.
    ///
    /// # Errors
    /// A run that finds a race which is none, or does not find one, or that gives values which
    /// depend on the schedule.
    pub fn check(&self, first: u64, seeds: u64) -> Result<(), Box<Failure>> {
        let text = self.text();
        for model in [Model::Hardware, Model::Ptx] {
            let race = self.has_race(model);
            let failure = |schedule, what: String| {
                Err(Box::new(Failure { model, schedule, what, text: text.clone() }))
            };
            let module = match Module::load(&text, &Gpu::h200()) {
                Ok(module) => module,
                Err(error) => return failure(Schedule::Eager, error.to_string()),
            };
            let mut values: Option<Vec<u8>> = None;
            let random = (first..first.saturating_add(seeds)).map(Schedule::Random);
            for schedule in [Schedule::Lazy].into_iter().chain(random).chain([Schedule::Eager]) {
                let found = match self.run(&module, model, schedule) {
                    Ok(bytes) => match values.get_or_insert_with(|| bytes.clone()) {
                        same if *same == bytes => None,
                        _ if race => None,
                        _ => return failure(schedule, "other values than before".to_owned()),
                    },
                    Err(Stopped::Race(text)) => Some(text),
                    Err(Stopped::Otherwise(text)) => return failure(schedule, text),
                };
                match found {
                    Some(text) if !race => return failure(schedule, format!("no race: {text}")),
                    None if race && schedule != Schedule::Eager => {
                        return failure(schedule, "a race is not found".to_owned());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn run(&self, module: &Module, model: Model, schedule: Schedule) -> Result<Vec<u8>, Stopped> {
        let mut memory = GlobalMemory::new();
        let words = 2 * self.threads() + SHARED_WORDS;
        let bytes = 4 * words as u64;
        let failed = |error: MemoryError| Stopped::Otherwise(error.to_string());
        let out = memory.alloc("out", bytes, 256).map_err(failed)?;
        let launch = Launch {
            entry: "k",
            grid: [1, 1, 1],
            block: [self.threads() as u32, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: &out.to_le_bytes(),
            schedule,
            threads: Some(1),
            instruction_limit: Some(1_000_000),
            checks: Checks::new(model),
        };
        match module.launch(&mut memory, &launch) {
            Ok(_) => memory.read(out, bytes).map_err(failed),
            Err(LaunchError::Diagnostic(found))
                if matches!(found.kind(), Kind::DataRace | Kind::SameValueRace) =>
            {
                Err(Stopped::Race(found.to_string()))
            }
            Err(error) => Err(Stopped::Otherwise(error.to_string())),
        }
    }
}
