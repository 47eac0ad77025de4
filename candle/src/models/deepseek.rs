//! Fields of `config.json` that DeepSeek V3's kind has: latent attention, and experts that are chosen by scores in groups.

use candle_core::Result;

use super::architecture::Architecture;
use super::config::Weighing;
use super::fields::Fields;

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatentConfig {
    /// Numbers that queries are made of; `None` if they are made of the inputs at once.
    pub query_rank: Option<usize>,
    /// Numbers that keys and values are made of.
    pub rank: usize,
    /// Elements of a head's query and key without and with a position, and of its value.
    pub plain: usize,
    pub turned: usize,
    pub value: usize,
    /// Whether elements that are turned together follow each other.
    pub alternating: bool,
}

/// The sizes of latent attention, for architectures that have it.
pub(super) fn latent(
    fields: &Fields<'_>,
    architecture: Architecture,
    [heads, kv_heads]: [usize; 2],
) -> Result<Option<LatentConfig>> {
    match architecture {
        Architecture::Llama
        | Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::Mixtral
        | Architecture::GptOss => return Ok(None),
        Architecture::DeepseekV3 => (),
    }
    if kv_heads != heads {
        return Err(fields.wrong("num_key_value_heads", format!("{heads}, the heads")));
    }
    let turned = fields.size("qk_rope_head_dim")?;
    if fields.optional_size("head_dim")?.is_some_and(|size| size != turned) {
        return Err(fields.wrong("head_dim", format!("absent or {turned}, qk_rope_head_dim")));
    }
    Ok(Some(LatentConfig {
        query_rank: fields.optional_size("q_lora_rank")?,
        rank: fields.size("kv_lora_rank")?,
        plain: fields.size("qk_nope_head_dim")?,
        turned,
        value: fields.size("v_head_dim")?,
        alternating: fields.flag("rope_interleave", true)?,
    }))
}

/// The choice of experts by scores.
pub(super) fn scores(fields: &Fields<'_>) -> Result<Weighing> {
    for (field, computed) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if fields.text(field)?.is_some_and(|value| value != computed) {
            return Err(fields.wrong(field, format!("\"{computed}\"")));
        }
    }
    if fields.optional_size("moe_layer_freq")?.is_some_and(|step| step != 1) {
        return Err(fields.wrong("moe_layer_freq", "1"));
    }
    let (experts, chosen) = (fields.size("n_routed_experts")?, fields.size("num_experts_per_tok")?);
    let (groups, kept) = (fields.size("n_group")?, fields.size("topk_group")?);
    // Two experts of a group say how good it is.
    if !experts.is_multiple_of(groups) || experts / groups < 2 {
        let required =
            format!("a divisor of {experts}, the experts, with a quotient of 2 at least");
        return Err(fields.wrong("n_group", required));
    }
    if kept > groups || kept * (experts / groups) < chosen {
        let required = format!("at most {groups}, the groups, with {chosen} experts at least");
        return Err(fields.wrong("topk_group", required));
    }
    let Some(normalized) = fields.value("norm_topk_prob").as_bool() else {
        return Err(fields.wrong("norm_topk_prob", "true or false"));
    };
    Ok(Weighing::Scores {
        groups,
        kept,
        normalized,
        factor: fields.number("routed_scaling_factor")?,
    })
}
