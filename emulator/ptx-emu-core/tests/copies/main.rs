//! Asynchronous copies, mbarriers and clusters.

#[path = "../async_support/mod.rs"]
mod async_support;

mod bulk;
mod cluster;
mod fail;
mod forms;
mod tensor;
