//! Conformance with hardware: small kernels whose results on a real GPU are recorded. The
//! emulator must give the same results.
//!
//! A [`Probe`] is a PTX kernel with its launch, its inputs and a way to compare.
//! Inputs come from generators with fixed seeds, so that a [`Recording`] holds
//! only outputs, with a checksum of the text and of the inputs. A probe that has
//! changed since its recording is [`Outcome::Stale`], which is an error; it is not compared. A
//! probe without a recording is [`Outcome::NotRecorded`]; it is listed and proves nothing.
//!
//! | file | topic |
//! |---|---|
//! | `probe` | [`Probe`], [`Family`] |
//! | `builder` | kernels that apply an instruction to arrays |
//! | `program` | kernels of whole CTAs and clusters with shared memory and barriers |
//! | `values` | operands: special values of every format, and seeded bits |
//! | `families` | the probes, one file per family |
//! | `compare` | exact, or within a stated tolerance |
//! | `recording` | the container of a family's outputs |
//! | `check` | running probes on the emulator and comparing |
//! | `orders` | random programs whose races are known |
//!
//! Limits: probes show results, not timing. Instructions whose result depends on the order of
//! threads are probed only if every order gives the same result. A recording is valid for the
//! device and the driver that its header names (integer division and `div`, `sqrt` of floats are
//! sequences of instructions that the driver's compiler chooses).

mod builder;
mod check;
mod compare;
mod families;
pub mod orders;
mod probe;
mod program;
mod recording;
mod values;

pub use check::{
    Difference, EmulatorFailure, FamilyReport, Outcome, ProbeReport, StaleRecording, check,
    check_probe, emulate,
};
pub use compare::{Comparison, Element, Mismatch};
pub use probe::{Buffer, Family, Input, MapParameter, Probe, UnknownFamily, probes};
pub use recording::{RecordedProbe, Recording, RecordingError};
