//! AutoRound's own export (auto-round 0.16), which is read, and copied where nothing changes: compressed-tensors'
//! tensors under the description of `auto_round_config`.

use super::auto_round_config::Stated;
use super::compressed_tensors;
use super::model::Model;
use super::parts::Parts;
use super::weight::module;

/// compressed-tensors' tensors under AutoRound's configuration.
pub(super) fn find(model: &Model) -> Vec<Parts> {
    let Some(stated) = Stated::of(model) else { return Vec::new() };
    let mut parts = compressed_tensors::find(model);
    // These scales would be read as numbers that they are not.
    parts.retain(|part| !stated.has_e5m3(module(&part.name)));
    parts
}
