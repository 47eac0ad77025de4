//! Arithmetic on single values.

#[path = "../support/roundings.rs"]
mod roundings;

mod convert;
mod float;
mod hosts;
mod int;
mod narrow;
mod unrounded;
