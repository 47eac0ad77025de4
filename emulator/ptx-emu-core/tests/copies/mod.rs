//! Asynchronous copies, mbarriers and clusters.

mod bulk;
mod cluster;
mod fail;
mod forms;
mod tensor;
