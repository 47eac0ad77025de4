//! Every diagnostic of `tcgen05` has a small program that must trigger it, with its
//! text, and a twin that must not.

mod kernel;
mod memory;
mod operands;
mod order;
