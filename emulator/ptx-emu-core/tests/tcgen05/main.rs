//! Tensor memory and what works on it.

#[path = "../async_support/mod.rs"]
mod async_support;
#[path = "../tensor_cores/mod.rs"]
mod tensor_cores;

mod data;
mod fail;
mod pairs;
mod products;
