//! Arithmetic on single values.

mod convert;
mod float;
mod hosts;
mod int;
mod narrow;
mod unrounded;
