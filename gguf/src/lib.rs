//! GGUF, the file format of ggml and llama.cpp: reads and writes metadata and tensors, and converts the block
//! formats MXFP4 and NVFP4 to linear codes and scales and back without a float in between.
//!
//! | file | topic |
//! | --- | --- |
//! | `read` | [`Gguf`]: the header of a file in memory |
//! | `write` | [`Header`]: the bytes before the tensors, and their places |
//! | `value` | [`Value`]: metadata |
//! | `kind` | [`Kind`]: element types and their sizes |
//! | `blocks` | [`Blocks`]: codes and scales; values |
//!
//! Every length is checked before it is used: a damaged file is an error, never a panic or a large allocation.

mod blocks;
mod error;
mod kind;
mod read;
mod value;
mod write;

pub use blocks::{Blocks, dequantize};
pub use error::{Error, Result};
pub use kind::Kind;
pub use read::{Gguf, Tensor};
pub use value::{Scalar, Value};
pub use write::{Header, Spec};

/// Alignment of tensors' data where `general.alignment` states none, in bytes.
pub const ALIGNMENT: u64 = 32;
/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The version that is written; 2 is read, too.
pub const VERSION: u32 = 3;
