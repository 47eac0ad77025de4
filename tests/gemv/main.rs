//! GEMVs: batches, tensors with scales, and their checksums.

mod checksums;
mod products;
mod tensor;
