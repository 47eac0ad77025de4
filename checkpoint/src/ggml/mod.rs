//! Files in GGUF under transformers' names: those of ggml are translated when a file is opened, and back when
//! one is written.
//!
//! | file | topic |
//! | --- | --- |
//! | `names` | architectures that both have, as data |
//! | `read` | the tensors of a file under transformers' names, and the configuration |
//! | `rope` | the scaling of rotary positions in both forms |
//! | `place` | where a tensor is in a file, and how its bytes differ |

pub(crate) mod names;
mod place;
mod read;
pub(crate) mod rope;

pub(crate) use place::{Change, Output, Place, shape};
pub(crate) use read::{Stated, places};

/// Elements of a row that are stored together in NVFP4; rows are a whole number of them.
pub(crate) const NVFP4_ROW: usize = 64;
