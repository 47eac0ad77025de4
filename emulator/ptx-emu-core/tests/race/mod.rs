//! Conflicting accesses that nothing orders.

mod asynchronous;
mod programs;
mod tensor;
mod threads;
