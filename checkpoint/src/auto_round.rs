//! AutoRound's own export (auto-round 0.16), which is read, and copied where nothing changes: compressed-tensors'
//! tensors under the description of `auto_round_config`.

use super::auto_round_config::Stated;
use super::compressed_tensors;
use super::model::Model;
use super::parts::Parts;

/// compressed-tensors' tensors under AutoRound's configuration.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    match Stated::of(model) {
        Some(_) => compressed_tensors::find(model),
        None => Vec::new(),
    }
}
