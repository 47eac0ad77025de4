//! GGUF: names of tensors, sizes of models, files. Tensors have the names of transformers wherever a model is
//! read, and get ggml's when one is written.
//!
//! | file | topic |
//! | --- | --- |
//! | `names` | architectures that both have, as data |
//! | `read` | the tensors of a file under transformers' names, and the configuration |
//! | `layout` | the layout: blocks with scales in them, tensor-level scales beside them |
//! | `write` | the files of a checkpoint: stacked experts, metadata, places of tensors |
//! | `tokenizer` | a tokenizer of byte pairs in the metadata |

mod layout;
mod names;
mod read;
mod tokenizer;
mod write;

pub(crate) use layout::{blocks, bytes, find, pieces, shape};
pub(crate) use read::{Stated, places};
pub(crate) use write::{Change, Output, files};

/// Elements of a row that are stored together in NVFP4; rows are a whole number of them.
pub(crate) const NVFP4_ROW: usize = 64;
