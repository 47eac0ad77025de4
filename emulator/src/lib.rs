//! Runs PTX modules for Hopper and Blackwell GPUs on a CPU, and says what is
//! wrong with them.
//!
//! ```
//! use ptx_emu::{GlobalMemory, Gpu, Launch, Module, Schedule};
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
//!     },
//! )?;
//! assert_eq!(memory.read(data, 8)?, [2, 0, 0, 0, 4, 0, 0, 0]);
//! assert_eq!(report.counters.global.bytes_read, 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Code map
//!
//! | module | what |
//! |---|---|
//! | [`syntax`] | PTX text to syntax tree |
//! | `module` | syntax tree to decoded code: scopes, variables, operands |
//! | `isa` | one file an instruction family: decoding and meaning |
//! | [`num`] | arithmetic on single values |
//! | `machine` | registers, warps, barriers, clusters, launches, memory accesses |
//! | `memory` | memories tracked per byte |

mod counters;
mod diagnostic;
mod gpu;
mod isa;
mod machine;
mod memory;
mod module;
pub mod num;
mod schedule;
pub mod syntax;

pub use counters::{Counters, Family, FamilyCount, Limit, LowerBound, SpaceCount};
pub use diagnostic::{
    Access, AccessKind, AllocationSite, Diagnostic, DiagnosticKind, Space, Waiter,
};
pub use gpu::Gpu;
pub use machine::{Launch, LaunchError, LaunchReport};
pub use memory::{GlobalMemory, MemoryError};
pub use module::{KernelInfo, LoadError, Module, ParamInfo, Unsupported};
pub use schedule::{ParseScheduleError, Schedule};
