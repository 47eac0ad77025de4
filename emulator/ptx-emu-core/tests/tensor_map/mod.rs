//! Tensor maps, and the copies that they describe.

mod bytes;
mod common;
mod copies;
mod tiles;
