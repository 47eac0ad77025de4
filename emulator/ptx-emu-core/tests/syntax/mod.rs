//! PTX text to syntax tree.

mod errors;
mod grammar;
mod properties;
mod samples;
