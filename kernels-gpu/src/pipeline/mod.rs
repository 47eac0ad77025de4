//! Pieces that warp-specialised kernels share: rings of buffers between roles.

pub mod ring;

pub use ring::{Cursor, Ring};
