//! Configurations that are not computed, and damaged files.

use candle_core::Result;
use nvfp4_candle::Engine;
use nvfp4_candle::models::{Config, Decoder};
use serde_json::{Value, json};

use crate::{MODELS, Scratch, config, message, open, with_config};

/// Every field that changes what a model computes, with a value that is not computed, is refused with field and value.
#[test]
fn what_is_not_computed_is_refused_by_name() {
    let rope = |model: &str, key: &str, value: Value| {
        let mut rope = config(model)["rope_parameters"].clone();
        rope[key] = value;
        rope
    };
    for (model, field, value, parts) in [
        ("llama", "model_type", json!("mamba"), ["model_type", "mamba"]),
        ("llama", "hidden_act", json!("gelu"), ["hidden_act", "gelu"]),
        ("llama", "num_key_value_heads", json!(3), ["num_key_value_heads", "3"]),
        ("llama", "head_dim", json!(33), ["head_dim", "33"]),
        ("llama", "hidden_size", json!(-64), ["hidden_size", "-64"]),
        ("llama", "rms_norm_eps", Value::Null, ["rms_norm_eps", "null"]),
        ("llama", "partial_rotary_factor", json!(0.5), ["partial_rotary_factor", "0.5"]),
        ("llama", "final_logit_softcapping", json!(30.0), ["final_logit_softcapping", "30"]),
        ("llama", "residual_multiplier", json!(0.2), ["residual_multiplier", "0.2"]),
        (
            "llama",
            "rope_parameters",
            rope("llama", "rope_type", json!("longrope")),
            ["rope_type", "longrope"],
        ),
        (
            "llama",
            "rope_parameters",
            rope("llama", "high_freq_factor", json!(1.0)),
            ["high_freq_factor", "1"],
        ),
        (
            "llama",
            "rope_parameters",
            rope("llama", "short_factor", json!([1.0])),
            ["short_factor", "1"],
        ),
        ("llama", "rope_parameters", json!({"rope_theta": "x"}), ["rope_theta", "x"]),
        ("qwen3", "rope_parameters", json!({"rope_type": "default"}), ["rope_theta", "absent"]),
        ("qwen3", "layer_types", json!(["full_attention"]), ["layer_types", "full_attention"]),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention", "chunked_attention"]),
            ["layer_types", "chunked"],
        ),
        ("qwen3-moe", "norm_topk_prob", Value::Null, ["norm_topk_prob", "null"]),
        ("qwen3-moe", "num_experts_per_tok", json!(5), ["num_experts_per_tok", "5"]),
        ("qwen3-moe", "shared_expert_intermediate_size", json!(64), ["shared_expert", "64"]),
        ("gpt-oss", "swiglu_limit", json!(0), ["swiglu_limit", "0"]),
        ("gpt-oss", "swiglu_alpha", json!("x"), ["swiglu_alpha", "x"]),
        ("llama", "kv_lora_rank", json!(32), ["kv_lora_rank", "32"]),
        ("llama", "n_shared_experts", json!(1), ["n_shared_experts", "1"]),
        ("deepseek-v3", "num_key_value_heads", json!(2), ["num_key_value_heads", "2"]),
        ("deepseek-v3", "head_dim", json!(48), ["head_dim", "48"]),
        ("deepseek-v3", "qk_rope_head_dim", json!(15), ["head_dim", "15"]),
        ("deepseek-v3", "kv_lora_rank", Value::Null, ["kv_lora_rank", "null"]),
        ("deepseek-v3", "rope_interleave", json!(1), ["rope_interleave", "1"]),
        ("deepseek-v3", "scoring_func", json!("softmax"), ["scoring_func", "softmax"]),
        ("deepseek-v3", "topk_method", json!("greedy"), ["topk_method", "greedy"]),
        ("deepseek-v3", "moe_layer_freq", json!(2), ["moe_layer_freq", "2"]),
        ("deepseek-v3", "n_group", json!(8), ["n_group", "8"]),
        ("deepseek-v3", "n_group", json!(3), ["n_group", "3"]),
        ("deepseek-v3", "topk_group", json!(5), ["topk_group", "5"]),
        ("deepseek-v3", "topk_group", json!(1), ["topk_group", "1"]),
        ("deepseek-v3", "norm_topk_prob", Value::Null, ["norm_topk_prob", "null"]),
        ("deepseek-v3", "routed_scaling_factor", json!("x"), ["routed_scaling_factor", "x"]),
        ("deepseek-v3", "first_k_dense_replace", json!(-1), ["first_k_dense_replace", "-1"]),
        ("qwen3", "sliding_window", Value::Null, ["sliding_window", "null"]),
        ("gpt-oss", "sliding_window", Value::Null, ["sliding_window", "null"]),
        (
            "gpt-oss",
            "rope_parameters",
            rope("gpt-oss", "beta_slow", json!(64)),
            ["beta_fast", "32"],
        ),
        (
            "gpt-oss",
            "rope_parameters",
            rope("gpt-oss", "attention_factor", json!(-1)),
            ["attention_factor", "-1"],
        ),
    ] {
        let mut config = config(model);
        let known = Config::from_json(&config).expect("computed");
        assert!(known.unread().is_empty(), "{model} {:?}", known.unread());
        config[field] = value;
        let message = message(Config::from_json(&config));
        assert!(parts.iter().all(|part| message.contains(part)), "{model} {field}: {message}");
    }
    // Fields of DeepSeek's own files, and the name of Kimi K2's.
    let mut other = config("deepseek-v3");
    for (field, value) in [
        ("model_type", json!("kimi_k2")),
        ("scoring_func", json!("sigmoid")),
        ("topk_method", json!("noaux_tc")),
        ("moe_layer_freq", json!(1)),
        ("ep_size", json!(1)),
        ("aux_loss_alpha", json!(0.001)),
        ("head_dim", Value::Null),
    ] {
        other[field] = value;
    }
    let known = Config::from_json(&config("deepseek-v3")).expect("computed");
    assert_eq!(Config::from_json(&other).expect("computed"), known);
    let mut other = config("llama");
    other["from_another_program"] = json!(1);
    assert_eq!(Config::from_json(&other).expect("harmless").unread(), ["from_another_program"]);
}

/// Older files have the base of positions, and their scaling, in fields of their own.
#[test]
fn older_fields_of_positions_are_the_same() {
    for model in MODELS {
        let new = config(model);
        let mut old = new.clone();
        let mut rope = new["rope_parameters"].clone();
        old["rope_theta"] = rope["rope_theta"].clone();
        let fields = rope.as_object_mut().expect("an object");
        fields.remove("rope_theta");
        if let Some(kind) = fields.remove("rope_type").filter(|kind| kind != "default") {
            fields.insert("type".into(), kind);
            old["rope_scaling"] = rope;
        }
        old.as_object_mut().expect("an object").remove("rope_parameters");
        let [old, new] = [old, new].map(|config| Config::from_json(&config).expect("computed"));
        assert_eq!(old, new, "{model}");
    }
}

#[test]
fn damage_is_refused() -> Result<()> {
    let scratch = Scratch::new("damage");
    let engine = Engine::reference();
    // Biases that the file has, and others that it lacks.
    let mut config_of = config("qwen3");
    config_of["attention_bias"] = json!(false);
    let found = message(Decoder::open(with_config("qwen3", &config_of, &scratch), &engine));
    assert!(found.contains("q_proj.bias") && found.contains("absent"), "{found}");
    let mut config_of = config("llama");
    config_of["mlp_bias"] = json!(true);
    let found = message(Decoder::open(with_config("llama", &config_of, &scratch), &engine));
    assert!(found.contains("gate_proj.bias"), "{found}");
    let mut config_of = config("llama");
    config_of["num_hidden_layers"] = json!(3);
    let found = message(Decoder::open(with_config("llama", &config_of, &scratch), &engine));
    assert!(found.contains("model.layers.2"), "{found}");
    let mut config_of = config("llama");
    config_of["intermediate_size"] = json!(64);
    let found = message(Decoder::open(with_config("llama", &config_of, &scratch), &engine));
    assert!(found.contains("gate_proj") && found.contains("128"), "{found}");
    let path = with_config("llama", &config("llama"), &scratch);
    let bytes = std::fs::read(path.join("model.safetensors")).expect("a file");
    std::fs::write(path.join("model.safetensors"), &bytes[..bytes.len() - 100]).expect("written");
    assert!(message(Decoder::open(&path, &engine)).contains("model.safetensors"));

    let decoder = open("llama", &engine);
    let mut cache = decoder.cache(2, 8)?;
    for (found, part) in [
        (message(decoder.cache(1, 1025)), "max_position_embeddings"),
        (message(decoder.cache(0, 8)), "texts"),
        (message(decoder.start(&[&[3]], &mut cache)), "texts"),
        (message(decoder.start(&[&[3], &[]], &mut cache)), "text"),
        (message(decoder.start(&[&[3], &[128]], &mut cache)), "vocab_size"),
        (message(decoder.start(&[&[3; 9], &[4]], &mut cache)), "tokens of a text"),
    ] {
        assert!(found.contains(part), "{found}");
    }
    Ok(())
}
