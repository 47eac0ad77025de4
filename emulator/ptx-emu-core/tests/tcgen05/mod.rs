//! Tensor memory and what works on it.

mod data;
mod fail;
mod pairs;
mod products;
