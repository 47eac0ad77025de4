//! Conflicting accesses that nothing orders.

#[path = "../async_support/mod.rs"]
mod async_support;
#[path = "../support/races.rs"]
mod races;
#[path = "../support/mod.rs"]
mod support;

mod asynchronous;
mod programs;
mod tensor;
mod threads;
