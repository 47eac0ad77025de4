//! Experts of a layer in one tensor for each projection, as mlx-lm has them. Here they are a matrix each: a file's
//! tensors of all experts are taken apart when it is opened, and put together when one is written.

use std::collections::BTreeMap;

use super::error::CheckpointError;
use super::experts::{Family, Matrix};
use super::parts::Layout;
use super::plan::Shard;
use super::projections::PROJECTIONS;
use super::write::TensorSpec;
use crate::error::Result;

/// Endings of tensors of all experts, and their dimensions.
const ENDINGS: [(&str, usize); 5] =
    [(".weight", 3), (".scales", 3), (".biases", 3), (".bias", 2), (".global_scale", 1)];
/// Most experts of a layer; a tensor of more is left as it is.
const MOST: usize = 1 << 14;

/// mlx-lm's tensor or module of all experts for that of one, and the expert.
pub(super) fn whole(family: Family, name: &str) -> Option<(String, usize)> {
    let Matrix { experts, index, projection } = Matrix::of(name)?;
    let general = PROJECTIONS.iter().find(|names| projection == names.0 || projection == names.1);
    let (general, _) = general?;
    let rest = &name[experts.len() + index.len() + projection.len() + 2..];
    let parent = experts.strip_suffix("experts")?;
    Some((format!("{parent}{}.{general}{rest}", family.mlx().experts), index.parse().ok()?))
}

/// The name of one expert's tensor before and after its index, for mlx-lm's tensor of all.
pub(super) fn apart(family: Family, name: &str, shape: &[usize]) -> Option<[String; 2]> {
    let fits = |(ending, _): &&(&str, usize)| name.ends_with(ending);
    let (ending, dimensions) = ENDINGS.iter().find(fits)?;
    let (module, projection) = name.strip_suffix(ending)?.rsplit_once('.')?;
    PROJECTIONS.iter().find(|(general, _)| *general == projection)?;
    let parent = module.strip_suffix(family.mlx().experts)?;
    let known = parent.is_empty() || parent.ends_with('.');
    let fits = shape.len() == *dimensions && shape.first().is_some_and(|&experts| experts <= MOST);
    let own = family.numbered(projection);
    (known && fits).then(|| [format!("{parent}experts."), format!(".{own}{ending}")])
}

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
        let Some((name, expert)) = whole(family, &spec.name) else {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Architecture;

    /// mlx-lm 0.32's names.
    #[test]
    fn names_are_those_of_mlx_lm() {
        for (kind, own, mlx) in [
            ("qwen3_moe", "mlp.experts.7.up_proj", "mlp.switch_mlp.up_proj"),
            ("deepseek_v3", "mlp.experts.7.gate_proj", "mlp.switch_mlp.gate_proj"),
            ("kimi_k2", "mlp.experts.7.down_proj", "mlp.switch_mlp.down_proj"),
            ("glm4_moe", "mlp.experts.7.up_proj", "mlp.switch_mlp.up_proj"),
            ("mixtral", "block_sparse_moe.experts.7.w1", "block_sparse_moe.switch_mlp.gate_proj"),
            (
                "minimax_m2",
                "block_sparse_moe.experts.7.w2",
                "block_sparse_moe.switch_mlp.down_proj",
            ),
            ("gpt_oss", "mlp.experts.7.up_proj", "mlp.experts.up_proj"),
            ("llama4", "feed_forward.experts.7.up_proj", "feed_forward.experts.up_proj"),
        ] {
            let family = Family::Known(Architecture::find(&[kind], &[]).expect("known"));
            for (ending, dimensions) in ENDINGS {
                let [own, mlx] = [own, mlx].map(|name| format!("model.layers.0.{name}{ending}"));
                assert_eq!(whole(family, &own), Some((mlx.clone(), 7)), "{kind}");
                let shape = vec![9; dimensions];
                let [before, after] = apart(family, &mlx, &shape).expect("known");
                assert_eq!(format!("{before}7{after}"), own, "{kind}");
                assert_eq!(apart(family, &mlx, &[9; 4]), None);
                assert_eq!(apart(family, &mlx, &vec![MOST + 1; dimensions]), None);
            }
            for other in ["model.layers.0.mlp.up_proj.weight", "experts.0", "experts.0.x.weight"] {
                assert_eq!(whole(family, other), None);
                assert_eq!(apart(family, other, &[4, 8, 8]), None);
            }
        }
    }
}
