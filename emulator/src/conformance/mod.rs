//! Conformance with hardware: small programs whose results on a real GPU are
//! kept as recordings, and must be the emulator's as well.
//!
//! A [`Probe`] is a PTX kernel with its launch, its inputs and a way to compare.
//! Inputs come from generators with fixed seeds, so that a [`Recording`] holds
//! outputs only, with a checksum of the text and the inputs they belong to: a
//! probe that has changed since is [`Outcome::Stale`], an error and never compared. A
//! probe that is still to be recorded is [`Outcome::NotRecorded`]: it is listed, and
//! nothing is claimed of it.
//!
//! | file | topic |
//! |---|---|
//! | `probe` | [`Probe`], [`Family`] |
//! | `builder` | kernels that apply an instruction to arrays |
//! | `program` | kernels of whole CTAs and clusters with shared memory and barriers |
//! | `values` | operands: special values of every format, and seeded bits |
//! | `families` | the probes, a file a family |
//! | `compare` | exact, or within a stated tolerance |
//! | `recording` | the container of a family's outputs |
//! | `check` | running probes on the emulator and comparing |
//!
//! What this can miss: probes show results, not timing; instructions whose
//! result depends on the order of threads are probed only where every order
//! gives the same; a recording stands for the device and the driver that its
//! header names (integer division and `div`, `sqrt` of floats are sequences that
//! the driver's compiler chooses).

mod builder;
mod check;
mod compare;
mod families;
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
