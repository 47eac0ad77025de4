//! Architectures as data: which weights readers join, which stay floats, where experts lie and what other
//! formats call them. One file per family; a new one is a file and a line in [`ALL`].

mod bert;
mod deepseek;
mod gemma;
mod glm;
mod gpt2;
mod gpt_oss;
mod hunyuan;
mod kimi;
mod llama;
mod llama4;
mod minimax;
mod mistral;
mod mixtral;
mod nemotron;
mod phi;
mod qwen;
mod qwen_next;
mod t5;
mod vision;

use serde_json::Value;

use super::pattern;

/// Tensors that stay as they are, by a pattern over names, and the reason.
pub(super) type Kept = (&'static str, &'static str);

/// The names that ModelOpt's export gives an expert's gate, up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpertNames {
    /// `gate_proj`, `up_proj`, `down_proj`.
    General,
    /// `w1`, `w3`, `w2`.
    Numbered,
    /// All experts in one tensor, `gate_up_proj` and `down_proj`.
    Joint,
}

/// The experts of a layer in transformers' files of a model that is not quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatExperts {
    /// A matrix for each.
    Matrices,
    /// All in `gate_up_proj` and `down_proj`, each with the input dimension first: `[experts, K, N]`.
    InputFirst {
        /// Whether columns of gate and up alternate; otherwise those of the gate come first.
        alternate: bool,
    },
}

/// The form of a family in mlx-lm 0.32, as far as it is not that of transformers' files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mlx {
    /// The module of all experts of a layer, in the place of `experts`: a tensor `[experts, N, K]` for each projection.
    pub experts: &'static str,
    /// Matrices that its models take in floats only.
    pub floats: &'static [Kept],
    /// Modules that only its models have.
    pub own: &'static [Kept],
    /// The difference of other tensors, with which nothing is written for it, and its files are not written in other
    /// forms.
    pub differs: Option<&'static str>,
}

/// Experts under `switch_mlp`, and nothing else that differs.
pub(super) const SWITCH_MLP: Mlx =
    Mlx { experts: "switch_mlp", floats: &[], own: &[], differs: None };

/// Multi-head latent attention, whose `kv_b_proj` mlx-lm takes apart when it loads it in floats.
const LATENT: Mlx = Mlx {
    floats: &[("*.kv_b_proj.weight", "mlx-lm makes two tensors of it, from floats")],
    own: &[
        ("*.embed_q.*", "mlx-lm has kv_b_proj in two tensors, one of them transposed"),
        ("*.unembed_out.*", "mlx-lm has kv_b_proj in two tensors, one of them transposed"),
    ],
    ..SWITCH_MLP
};

/// Models with several parts, of which mlx-lm has the text alone.
const RENAMED: &str = "mlx-lm has its tensors under other names, and none of the encoder of images";

/// A family of models that are built alike.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Architecture {
    /// Its name in reports.
    pub name: &'static str,
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// Classes in `architectures` of `config.json`.
    pub classes: &'static [&'static str],
    /// Endings of modules that readers join, besides the general ones.
    pub joined: &'static [&'static [&'static str]],
    /// Tensors that stay floats, besides the general ones.
    pub floats: &'static [Kept],
    /// Its experts in ModelOpt's export.
    pub experts: ExpertNames,
    /// Its experts in transformers' files of floats.
    pub float_experts: FloatExperts,
    /// Its form in mlx-lm.
    pub mlx: Mlx,
}

/// A family in which nothing differs from the general rules.
const GENERAL: Architecture = Architecture {
    name: "",
    model_types: &[],
    classes: &[],
    joined: &[],
    floats: &[],
    experts: ExpertNames::General,
    float_experts: FloatExperts::Matrices,
    mlx: SWITCH_MLP,
};

/// All known families.
const ALL: [&Architecture; 23] = [
    &bert::BERT,
    &deepseek::DEEPSEEK,
    &deepseek::DEEPSEEK_V4,
    &gemma::GEMMA,
    &gemma::GEMMA4,
    &glm::GLM,
    &gpt2::GPT2,
    &gpt_oss::GPT_OSS,
    &hunyuan::HUNYUAN,
    &kimi::KIMI,
    &llama::LLAMA,
    &llama4::LLAMA4,
    &minimax::MINIMAX,
    &minimax::MINIMAX_M3,
    &mistral::MISTRAL,
    &mixtral::MIXTRAL,
    &nemotron::NEMOTRON,
    &phi::PHI,
    &qwen::QWEN,
    &qwen::QWEN_VL,
    &qwen_next::QWEN_NEXT,
    &t5::T5,
    &vision::VISION,
];

/// Endings of modules that readers of any model join, as in ModelOpt (layers with the same input) and
/// llmcompressor (`FUSED_LAYER_NAMES`).
const JOINED: [&[&str]; 4] = [
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
];

/// Returns the index of the first table of joined modules that has this ending, among those of all families.
pub(super) fn joined(ending: &str) -> Option<usize> {
    let tables = JOINED.iter().chain(ALL.iter().flat_map(|family| family.joined));
    tables.into_iter().position(|table| table.contains(&ending))
}

impl Architecture {
    /// The family of one of these values of `model_type` or, if there is none, of one of these classes, which
    /// several families have.
    pub fn find(types: &[&str], classes: &[&str]) -> Option<&'static Self> {
        let by_type = |family: &&Self| family.model_types.iter().any(|kind| types.contains(kind));
        let by_class = |family: &&Self| family.classes.iter().any(|class| classes.contains(class));
        ALL.into_iter().find(by_type).or_else(|| ALL.into_iter().find(by_class))
    }

    /// The reason why a tensor stays floats in this family.
    pub fn keeps(&self, name: &str) -> Option<&'static Kept> {
        self.floats.iter().find(|(pattern, _)| pattern::matches(pattern, name))
    }
}

/// `model_type` and `architectures` of `config.json`.
pub(super) fn stated(config: Option<&Value>) -> (Vec<&str>, Vec<&str>) {
    let Some(config) = config else { return (Vec::new(), Vec::new()) };
    let types = [&config["model_type"], &config["text_config"]["model_type"]];
    let classes = config["architectures"].as_array().into_iter().flatten();
    (
        types.into_iter().filter_map(Value::as_str).collect(),
        classes.filter_map(Value::as_str).collect(),
    )
}

/// The family of a model, from its configuration.
pub(super) fn find(config: Option<&Value>) -> Option<&'static Architecture> {
    let (types, classes) = stated(config);
    Architecture::find(&types, &classes)
}

/// Whether a tensor belongs to a layer past the model's own: `num_nextn_predict_layers` layers that predict
/// further tokens follow them under the same names.
pub(super) fn predicts(config: Option<&Value>, name: &str) -> bool {
    let Some(config) = config else { return false };
    let number = |key: &str| {
        let values = [&config[key], &config["text_config"][key]];
        values.into_iter().find_map(Value::as_u64)
    };
    let (Some(layers), Some(1..)) =
        (number("num_hidden_layers"), number("num_nextn_predict_layers"))
    else {
        return false;
    };
    let mut parts = name.split('.');
    let found = parts.any(|part| part == "layers");
    found && parts.next().and_then(|index| index.parse().ok()).is_some_and(|at: u64| at >= layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `model_type`, and classes, that the models of these names have in their config.json.
    #[test]
    fn models_have_their_families() {
        for (model, kind, class, family) in [
            ("Llama 3.3", "llama", "LlamaForCausalLM", "Llama"),
            ("Llama 4", "llama4", "Llama4ForConditionalGeneration", "Llama 4"),
            ("Qwen3-Next", "qwen3_next", "Qwen3NextForCausalLM", "Qwen3-Next"),
            ("Qwen3.5", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "Qwen3-Next"),
            ("DeepSeek V3", "deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek"),
            ("DeepSeek V3.2", "deepseek_v32", "DeepseekV32ForCausalLM", "DeepSeek"),
            ("DeepSeek V4", "deepseek_v4", "DeepseekV4ForCausalLM", "DeepSeek V4"),
            ("Kimi K2", "kimi_k2", "DeepseekV3ForCausalLM", "Kimi K2"),
            ("Kimi K2.5", "kimi_k25", "KimiK25ForConditionalGeneration", "Kimi K2"),
            ("GLM-4.5", "glm4_moe", "Glm4MoeForCausalLM", "GLM"),
            ("GLM-5", "glm_moe_dsa", "GlmMoeDsaForCausalLM", "GLM"),
            ("MiniMax-M2", "minimax_m2", "MiniMaxM2ForCausalLM", "MiniMax"),
            ("MiniMax-M3", "minimax_m3", "", "MiniMax-M3"),
            ("Gemma 3", "gemma3", "Gemma3ForConditionalGeneration", "Gemma"),
            ("Gemma 4", "gemma4", "Gemma4ForConditionalGeneration", "Gemma 4"),
            ("Phi-3", "phi3", "Phi3ForCausalLM", "Phi"),
            ("Phi-4", "phi3", "Phi3ForCausalLM", "Phi"),
            ("Phi-4-multimodal", "phi4mm", "Phi4MMForCausalLM", "Phi"),
            ("Mistral Small 3", "mistral3", "Mistral3ForConditionalGeneration", "Mistral"),
            ("Nemotron 3", "nemotron_h", "NemotronHForCausalLM", "Nemotron"),
            ("gpt-oss", "gpt_oss", "GptOssForCausalLM", "gpt-oss"),
        ] {
            let found = |types: &[&str], classes: &[&str]| {
                Architecture::find(types, classes).map(|family| family.name)
            };
            assert_eq!(found(&[kind], &[class]), Some(family), "{model}");
            assert_eq!(found(&[kind], &[]), Some(family), "{model}");
        }
        // A class of one family alone names it.
        let by_class = Architecture::find(&["joyai"], &["DeepseekV3ForCausalLM"]);
        assert_eq!(by_class.map(|family| family.name), Some("DeepSeek"));
        // Mistral's own names are joined whatever names the model.
        assert_eq!(joined("wq"), joined("wv"));
        assert!(joined("wq").is_some());
    }

    /// A model_type of two families, or a join that another table has too, would be found in one only.
    #[test]
    fn tables_do_not_contradict_each_other() {
        let mut kinds: Vec<&str> = ALL
            .iter()
            .flat_map(|family| family.model_types.iter().chain(family.classes))
            .copied()
            .collect();
        let mut endings: Vec<&str> = JOINED.iter().copied().flatten().copied().collect();
        endings.extend(ALL.iter().flat_map(|family| family.joined.iter().copied().flatten()));
        for names in [&mut kinds, &mut endings] {
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
