//! The layout of GGUF, and its files.
//!
//! | file | topic |
//! | --- | --- |
//! | `layout` | blocks with scales in them, tensor-level scales beside them |
//! | `write` | the files of a checkpoint: stacked experts, metadata, places of tensors |
//! | `tokenizer`, `sentencepiece` | a tokenizer in the metadata |

mod layout;
mod sentencepiece;
mod tokenizer;
mod write;

pub(crate) use layout::{blocks, bytes, find, pieces};
pub(crate) use write::{Files, files};
