//! Experts of a layer in one tensor for each projection, as mlx-lm has them. Here they are a matrix each: a file's
//! tensors of all experts are taken apart when it is opened, and put together when one is written.

use std::collections::BTreeMap;

use super::error::CheckpointError;
use super::expert_names::whole;
use super::experts::Family;
use super::parts::Layout;
use super::plan::Shard;
use super::write::TensorSpec;
use crate::error::Result;

/// Files whose tensors of experts are put together.
///
/// # Errors
/// [`CheckpointError::Unsupported`] for experts of a layer that are stored differently, or of which one is missing.
pub(super) fn together(shards: Vec<Shard>, family: Family, shard_bytes: u64) -> Result<Vec<Shard>> {
    let refuse = |tensor: &str, reason: String| CheckpointError::Unsupported {
        layout: Layout::Mlx.name(),
        tensor: tensor.into(),
        reason,
    };
    let mut order: Vec<TensorSpec> = Vec::new();
    let mut members: BTreeMap<String, BTreeMap<usize, TensorSpec>> = BTreeMap::new();
    for spec in shards.into_iter().flat_map(|shard| shard.specs) {
        let Some((name, expert)) = whole(family.known(), &spec.name) else {
            order.push(spec);
            continue;
        };
        if !members.contains_key(&name) {
            // Its shape follows once the experts are counted.
            order.push(TensorSpec { name: name.clone(), ..spec.clone() });
        }
        if let Some(other) = members.entry(name).or_default().insert(expert, spec.clone()) {
            let reason = format!("it and `{}` are both of expert {expert}", other.name);
            return Err(refuse(&spec.name, reason));
        }
    }
    let mut placed: Vec<Shard> = Vec::new();
    for mut spec in order {
        let own = members.remove(&spec.name).unwrap_or_default();
        for (at, (expert, other)) in own.iter().enumerate() {
            if *expert != at {
                let reason = format!("expert {at} is not stored so, and MLX has one tensor of all");
                return Err(refuse(&other.name, reason));
            }
            if (spec.dtype, &spec.shape) != (other.dtype, &other.shape) {
                let reason = format!(
                    "it is {:?} {:?}, and another expert of `{}` is {:?} {:?}",
                    other.dtype, other.shape, spec.name, spec.dtype, spec.shape
                );
                return Err(refuse(&other.name, reason));
            }
        }
        if !own.is_empty() {
            spec.shape.insert(0, own.len());
        }
        let bytes = spec.bytes()? as u64;
        if placed.last().is_none_or(|shard| shard.bytes + bytes > shard_bytes) {
            placed.push(Shard::default());
        }
        let Some(shard) = placed.last_mut() else { continue };
        if !own.is_empty() {
            let names = own.into_values().map(|spec| spec.name).collect();
            shard.members.insert(spec.name.clone(), names);
        }
        shard.bytes += bytes;
        shard.specs.push(spec);
    }
    Ok(placed)
}
