//! The layout of GGUF, and its files.
//!
//! | file | topic |
//! | --- | --- |
//! | `layout` | blocks with scales in them, tensor-level scales beside them |
//! | `write` | the files of a checkpoint: stacked experts, metadata, places of tensors |
//! | `tokenizer` | a tokenizer of byte pairs in the metadata |

mod layout;
mod tokenizer;
mod write;

pub(crate) use layout::{blocks, bytes, find, pieces};
pub(crate) use write::{Files, files};
