//! The names of experts: of one's matrices, and of all of a layer's in mlx-lm.

use super::families::{self, Architecture, ExpertNames, Mlx};
use super::projections::PROJECTIONS;

/// Endings of tensors of all experts, and their dimensions.
const ENDINGS: [(&str, usize); 5] =
    [(".weight", 3), (".scales", 3), (".biases", 3), (".bias", 2), (".global_scale", 1)];
/// Most experts of a layer; a tensor of more is left as it is.
const MOST: usize = 1 << 14;

/// A name `experts.0.gate_proj`, with or without an ending, in its parts.
pub(super) struct Matrix<'a> {
    /// The name of the experts, with the part before it.
    pub experts: &'a str,
    pub index: &'a str,
    pub projection: &'a str,
    /// The rest, from the dot behind the projection: `.weight`, or nothing.
    pub ending: &'a str,
}

impl<'a> Matrix<'a> {
    pub fn of(name: &'a str) -> Option<Self> {
        const EXPERTS: &str = "experts.";
        let (at, _) = name.match_indices(EXPERTS).find(|(at, _)| {
            let rest = &name[at + EXPERTS.len()..];
            rest.split_once('.').is_some_and(|(index, _)| index.parse::<usize>().is_ok())
        })?;
        let experts = &name[..at + EXPERTS.len() - 1];
        let (index, rest) = name[at + EXPERTS.len()..].split_once('.')?;
        let (projection, ending) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
        Some(Self { experts, index, projection, ending })
    }

    /// Whether the names are not Mixtral's although those of the layers around them are. Only the
    /// model itself says which names it wants then.
    pub fn is_doubtful(&self) -> bool {
        let general = PROJECTIONS.iter().any(|(general, _)| *general == self.projection);
        general && self.experts.ends_with("block_sparse_moe.experts")
    }
}

/// A family's form in mlx-lm; the general one for a model that is not known.
pub(super) fn form(family: Option<&Architecture>) -> &Mlx {
    family.map_or(&families::SWITCH_MLP, |family| &family.mlx)
}

/// The name that the model itself has for an expert's `gate_proj`, `up_proj` or `down_proj`.
pub(super) fn numbered<'a>(family: Option<&Architecture>, name: &'a str) -> &'a str {
    let names = PROJECTIONS.iter().find(|(general, _)| *general == name);
    match (family.map(|family| family.experts), names) {
        (Some(ExpertNames::Numbered), Some((_, numbered))) => numbered,
        _ => name,
    }
}

/// mlx-lm's tensor or module of all experts for that of one, and the expert.
pub(super) fn whole(family: Option<&Architecture>, name: &str) -> Option<(String, usize)> {
    let Matrix { experts, index, projection, ending } = Matrix::of(name)?;
    let general = PROJECTIONS.iter().find(|names| projection == names.0 || projection == names.1);
    let (general, _) = general?;
    let parent = experts.strip_suffix("experts")?;
    Some((format!("{parent}{}.{general}{ending}", form(family).experts), index.parse().ok()?))
}

/// The name of one expert's tensor before and after its index, for mlx-lm's tensor of all.
pub(super) fn apart(
    family: Option<&Architecture>,
    name: &str,
    shape: &[usize],
) -> Option<[String; 2]> {
    let fits = |(ending, _): &&(&str, usize)| name.ends_with(ending);
    let (ending, dimensions) = ENDINGS.iter().find(fits)?;
    let (module, projection) = name.strip_suffix(ending)?.rsplit_once('.')?;
    PROJECTIONS.iter().find(|(general, _)| *general == projection)?;
    let parent = module.strip_suffix(form(family).experts)?;
    let known = parent.is_empty() || parent.ends_with('.');
    let fits = shape.len() == *dimensions && shape.first().is_some_and(|&experts| experts <= MOST);
    let own = numbered(family, projection);
    (known && fits).then(|| [format!("{parent}experts."), format!(".{own}{ending}")])
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let family = Architecture::find(&[kind], &[]);
            assert!(family.is_some(), "{kind}");
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
