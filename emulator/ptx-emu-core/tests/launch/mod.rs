//! Launches as a whole: which clusters live, sequences, counts.

mod counters;
mod residency;
mod sequence;
