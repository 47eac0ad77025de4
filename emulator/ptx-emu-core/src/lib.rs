//! Runs PTX modules for Hopper and Blackwell GPUs on a CPU, and reports their errors.
//!
//! ```
//! use ptx_emu_core::{Checks, GlobalMemory, Gpu, Launch, Module, Schedule};
//!
//! let text = "
//!     .version 9.0
//!     .target sm_90a
//!     .address_size 64
//!     .visible .entry double(.param .u64 data) {
//!         .reg .b64 %a; .reg .b32 %t, %v;
//!         ld.param.u64 %a, [data];
//!         mov.u32 %t, %tid.x;
//!         mad.wide.u32 %a, %t, 4, %a;
//!         ld.global.u32 %v, [%a];
//!         add.u32 %v, %v, %v;
//!         st.global.u32 [%a], %v;
//!         ret;
//!     }";
//! let module = Module::load(text, &Gpu::h200())?;
//! let mut memory = GlobalMemory::new();
//! let data = memory.alloc_from("data", &[1, 0, 0, 0, 2, 0, 0, 0])?;
//! let report = module.launch(
//!     &mut memory,
//!     &Launch {
//!         entry: "double",
//!         grid: [1, 1, 1],
//!         block: [2, 1, 1],
//!         cluster: None,
//!         dynamic_shared: 0,
//!         params: &data.to_le_bytes(),
//!         schedule: Schedule::Eager,
//!         threads: None,
//!         instruction_limit: None,
//!         checks: Checks::default(),
//!     },
//! )?;
//! assert_eq!(memory.read(data, 8)?, [2, 0, 0, 0, 4, 0, 0, 0]);
//! assert_eq!(report.counters.global.bytes_read, 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Under [`Schedule::Lazy`] and [`Schedule::Random`], data races in shared and tensor memory
//! are reported too ([`DiagnosticKind::Race`]); under [`Schedule::Eager`] they are not detected.
//!
//! Which orders hold is the launch's [`Model`]; what becomes of each [`Kind`] of finding its
//! [`Checks`]. By default the first denied one ends the launch.
//!
//! The package `ptx-emu` has the tools around a launch, which repeat it under other schedules or with
//! mutated synchronisation, or write it as a bundle or a timeline, and the program of that name.
//!
//! # Testing
//!
//! Arithmetic, copies and tensor-core sums are compared with recordings of an H200
//! (package `ptx-emu-conformance`, `tests/data/conformance`). Parser, loader and machine
//! are fuzzed with mutated real PTX, for a number of seconds:
//! `PTX_EMU_FUZZ_SECONDS=600 cargo test -p ptx-emu-conformance --test machine_fuzz`.
//!
//! # Code map
//!
//! Imports go one way: a module uses those above it in this table, and none below it.
//!
//! | module | what |
//! |---|---|
//! | [`num`] | arithmetic on single values |
//! | [`tensor`] | arithmetic and layouts of tensor cores |
//! | [`syntax`], `readable`, `sources` | PTX text to syntax tree; names and lines of source in messages |
//! | `gpu`, `language` | machines; what the targets and versions of PTX have |
//! | [`tensor_map`] | tensor maps and the geometry of tile copies |
//! | `schedule`, `checks`, `counters` | schedules, kinds of findings and their levels, counts |
//! | `memory` | memories tracked per byte |
//! | `load_error`, `diagnostic` | what is wrong with a module, and with a launch |
//! | [`trace`] | what a timeline holds |
//! | `machine` | decoded modules and what runs them: registers, warps, barriers, clusters, asynchronous units, launches |
//! | `decode` | what the decoders of all families share: modifiers, operands, names |
//! | `isa` | one file per instruction family: decoding and semantics |
//! | `load` | modules decoded instruction by instruction |

mod checks;
mod counters;
mod decode;
mod diagnostic;
mod gpu;
mod isa;
mod language;
mod load;
mod load_error;
mod machine;
mod memory;
pub mod num;
mod readable;
mod schedule;
mod sources;
pub mod syntax;
pub mod tensor;
pub mod tensor_map;
pub mod trace;

pub use checks::{Checks, Kind, Level, Model, ParseKindError, ParseModelError, not_looked_for};
pub use counters::{
    AsyncCount, Counters, Family, FamilyCount, LevelBytes, Levels, Limit, LowerBound, SpaceCount,
    TensorCount, Traffic,
};
pub use diagnostic::{
    Access, AccessKind, AllocationSite, AsyncFault, DataRace, Diagnostic, DiagnosticKind, LeftUse,
    MbarrierFault, MissingOrder, OperationSite, RaceAccess, RaceSite, Space, TensorFault, Waiter,
};
pub use gpu::Gpu;
pub use language::targets;
pub use load::{Examination, Examined, ModuleText, entry_names, examine};
pub use load_error::{LoadError, Unsupported};
pub use machine::journal;
pub use machine::module::{KernelInfo, Module, ParamInfo, VariableInfo};
pub use machine::{
    Executed, Executions, FunctionExecutions, Issued, Launch, LaunchError, LaunchReport, Step,
    launch_sequence,
};
pub use memory::{GlobalMemory, MemoryError};
pub use readable::readable_name;
pub use schedule::{ParseScheduleError, Schedule};
pub use sources::SourceLine;
