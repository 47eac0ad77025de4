//! Launches as a whole: which clusters live, sequences, counts.

#[path = "../async_support/mod.rs"]
mod async_support;
#[path = "../support/mod.rs"]
mod support;

mod counters;
mod residency;
mod sequence;
