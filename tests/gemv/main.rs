//! GEMVs: batches, tensors with scales, and their checksums.

mod bounds;
mod checksums;
mod products;
mod tensor;
