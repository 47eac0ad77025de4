//! Products of a warpgroup.

#[path = "../async_support/mod.rs"]
mod async_support;
#[path = "../tensor_cores/mod.rs"]
mod tensor_cores;

mod fail;
mod products;
