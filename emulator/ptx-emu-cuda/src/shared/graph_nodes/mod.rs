//! Nodes of graphs whose parameters are the same.

mod adding;
mod changing;
mod reading;

pub(super) use adding::EXPORTS as ADDING;
pub(super) use changing::EXPORTS as CHANGING;
pub(super) use reading::EXPORTS as READING;
