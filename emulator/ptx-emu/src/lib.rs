//! Tools that repeat or watch launches of PTX kernels on the emulator, and the program `ptx-emu`.
//!
//! The machine itself is [`ptx_emu_core`], whose whole interface is here too; bundles are those of
//! [`ptx_emu_bundle`].
//!
//! | question | where | command |
//! |---|---|---|
//! | does any of N schedules give an error or another result? | [`explore`] | `ptx-emu run --explore N`, `replay --explore N` |
//! | would the loss or weakening of a synchronisation be noticed? | [`mutate`] | `ptx-emu mutate` |
//! | which instructions did launches reach? | [`coverage`] | `--coverage FILE`, `ptx-emu coverage` |
//! | which thread waits for which, and what is in flight at that time? | [`trace`] | `--trace out.json` |
//! | does a launch that was written down give the expected results? | [`bundle`] | `ptx-emu replay` |
//! | what was found, for code hosts and editors? | [`sarif`] | `--sarif FILE` |
//! | what is the least time for the machine code? | [`bound`] | `ptx-emu bound` |
//! | how much was copied and computed, and what is the least time for it? | [`Counters`], [`LowerBound`] | `--json` |
//!
//! The first two repeat an [`experiment::Experiment`], which is a launch with its initial memory;
//! [`bundle::RunBundle::experiment`] makes one.

pub mod bound;
pub mod coverage;
pub mod experiment;
pub mod explore;
pub mod mutate;
mod replay;
pub mod sarif;
pub mod trace;

/// Launch bundles: a launch with all its inputs and its expected outputs, as a folder.
pub mod bundle {
    pub use crate::replay::{Replay, ReplayOptions, RunBundle, load};
    pub use ptx_emu_bundle::*;
}

pub use ptx_emu_core::*;
