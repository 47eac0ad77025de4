//! Programs to mutate, and mutations.

pub mod corpus;
pub mod mutate;
