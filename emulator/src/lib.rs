//! Runs PTX modules for Hopper and Blackwell GPUs on a CPU, and reports their errors.
//!
//! ```
//! use ptx_emu::{Checks, GlobalMemory, Gpu, Launch, Module, Schedule};
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
//! # Around a launch
//!
//! | question | where | command |
//! |---|---|---|
//! | does any of N schedules give an error or another result? | [`explore`] | `ptx-emu run --explore N`, `replay --explore N` |
//! | would the loss or weakening of a synchronisation be noticed? | [`mutate`] | `ptx-emu mutate` |
//! | which instructions did launches reach? | [`coverage`] | `--coverage FILE`, `ptx-emu coverage` |
//! | which thread waits for which, and what is in flight at that time? | [`trace`] | `--trace out.json` |
//! | how much was copied and computed, and what is the least time for it? | [`Counters`], [`LowerBound`] | `--json` |
//!
//! The first two repeat an [`experiment::Experiment`], which is a launch with its initial memory;
//! [`bundle::Bundle::experiment`] makes one.
//!
//! # Testing
//!
//! Arithmetic, copies and tensor-core sums are compared with recordings of an H200
//! (`ptx-emu conformance check`, `tests/data/conformance`). Parser, loader and machine
//! are fuzzed with mutated real PTX, for a number of seconds:
//! `PTX_EMU_FUZZ_SECONDS=600 cargo test -p ptx-emu --test machine_fuzz`.
//!
//! # Code map
//!
//! | module | what |
//! |---|---|
//! | [`syntax`] | PTX text to syntax tree |
//! | `module` | syntax tree to decoded code: scopes, variables, operands |
//! | `isa` | one file per instruction family: decoding and semantics |
//! | [`num`] | arithmetic on single values |
//! | [`tensor`] | arithmetic and layouts of tensor cores |
//! | `machine` | registers, warps, barriers, clusters, launches, memory accesses |
//! | `memory` | memories tracked per byte |
//! | `simd` | loops compiled for the host's vector instructions too |
//! | [`bundle`] | launches with their memory, as folders |
//! | [`experiment`], [`explore`], [`mutate`] | launches repeated: under other schedules, with mutated synchronisation |
//! | [`coverage`] | which instructions launches reached |
//! | [`trace`] | timelines |
//! | [`conformance`] | probes, and recordings of them on real hardware |
//! | [`tensor_map`] | tensor maps and the geometry of tile copies |

pub mod bundle;
mod checks;
pub mod conformance;
mod counters;
pub mod coverage;
mod diagnostic;
pub mod experiment;
pub mod explore;
mod gpu;
mod isa;
mod machine;
mod memory;
mod module;
pub mod mutate;
pub mod num;
mod readable;
mod schedule;
mod simd;
pub mod syntax;
pub mod tensor;
pub mod tensor_map;
pub mod trace;

pub use checks::{Checks, Kind, Level, Model, ParseKindError, ParseModelError};
pub use counters::{
    AsyncCount, Counters, Family, FamilyCount, LevelBytes, Levels, Limit, LowerBound, SpaceCount,
    TensorCount, Traffic,
};
pub use diagnostic::{
    Access, AccessKind, AllocationSite, AsyncFault, DataRace, Diagnostic, DiagnosticKind,
    MbarrierFault, MissingOrder, OperationSite, RaceAccess, RaceSite, Space, TensorFault, Waiter,
};
pub use gpu::Gpu;
pub use machine::{Launch, LaunchError, LaunchReport, Step, launch_sequence};
pub use memory::{GlobalMemory, MemoryError};
pub use module::{
    Examination, Examined, KernelInfo, LoadError, Module, ParamInfo, SourceLine, Unsupported,
    VariableInfo, entry_names, examine,
};
pub use readable::readable_name;
pub use schedule::{ParseScheduleError, Schedule};
