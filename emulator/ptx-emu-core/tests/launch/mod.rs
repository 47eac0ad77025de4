//! Launches as a whole: which clusters live, sequences, counts.

mod counters;
mod heap;
mod residency;
mod sequence;
