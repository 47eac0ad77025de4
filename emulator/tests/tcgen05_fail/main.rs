//! Every diagnostic of `tcgen05` has a small program that must trigger it, with its
//! text, and a twin that must not.

#[path = "../async_support/mod.rs"]
mod async_support;
mod kernel;
mod memory;
mod operands;
mod order;
#[path = "../tensor_cores/mod.rs"]
mod tensor_cores;
