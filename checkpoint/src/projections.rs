//! The names of an expert's matrices.

/// Names of an expert's matrices, and Mixtral's.
pub(super) const PROJECTIONS: [(&str, &str); 3] =
    [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")];
