//! Findings, and behaviour that real programs rely on, which is none.

#[path = "../async_support/mod.rs"]
mod async_support;
#[path = "../programs/mod.rs"]
mod programs;
#[path = "../tensor_cores/mod.rs"]
mod tensor_cores;

mod kinds;
mod known_faults;
mod relied_on;
mod requirements;
mod triton;
