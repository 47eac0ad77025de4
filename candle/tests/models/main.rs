//! Whole models against transformers: `tests/data/models` has tiny ones with random weights, and logits and tokens that
//! transformers computed in f32 of the dequantised weights (`tests/exporters/decoders.py`).

mod one_token;
mod recorded;
mod refused;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use nvfp4::HalfType;
use nvfp4::device::{Device as Machine, DeviceRequest, Kernels};
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_candle::Engine;
use nvfp4_candle::models::{Choice, Decoder, Generation, LoadOptions};
use nvfp4_checkpoint::{
    DequantizeOptions, Layout, Model, ModelOptions, SaveOptions, convert_model, dequantize_model,
    quantize_model,
};
use serde_json::{Value, json};

const MODELS: [&str; 7] =
    ["llama", "qwen3", "mixtral", "qwen3-moe", "gpt-oss", "deepseek-v3", "deepseek-v3-plain"];

/// The largest difference of a logit, as a part of the largest logit, of two programs in f32 that add in other orders.
const BOUND: f32 = 1e-4;
/// The same where products are of bf16 activations.
const EMULATED_BOUND: f32 = 0.05;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data")
}

fn folder(model: &str) -> PathBuf {
    data().join("models").join(model)
}

/// Results of transformers.
struct Expected {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logits: Tensor,
}

fn ids(tensors: &HashMap<String, Tensor>, name: &str) -> Result<Vec<u32>> {
    tensors[name].to_dtype(DType::U32)?.to_vec1()
}

impl Expected {
    fn of(model: &str) -> Result<Self> {
        let path = data().join("models").join(format!("{model}.safetensors"));
        let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
        let logits = tensors["logits"].clone();
        Ok(Self { prompt: ids(&tensors, "prompt")?, tokens: ids(&tensors, "tokens")?, logits })
    }
}

/// The largest difference as a part of the largest magnitude of what is right.
fn difference(found: &Tensor, right: &Tensor) -> Result<f32> {
    assert_eq!(found.dims(), right.dims());
    let largest = |tensor: &Tensor| tensor.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
    Ok(largest(&(found - right)?)? / largest(right)?)
}

/// Tokens whose logits differ by more than the bound of bf16.
fn far(found: &Tensor, right: &Tensor) -> Result<usize> {
    let largest = right.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    let each = (found - right)?.abs()?.max(1)?.to_vec1::<f32>()?;
    Ok(each.iter().filter(|off| **off >= EMULATED_BOUND * largest).count())
}

fn open(model: &str, engine: &Arc<Engine>) -> Decoder {
    Decoder::open(folder(model), engine).unwrap_or_else(|error| panic!("{model}: {error}"))
}

/// The tokens that follow each text.
fn follow(
    decoder: &Decoder,
    texts: &[&[u32]],
    count: usize,
    choice: Choice,
) -> Result<Vec<Vec<u32>>> {
    let generation = Generation::new(decoder, texts, count, choice)?;
    finish(generation, texts.len())
}

/// The tokens of texts that go on to their ends.
fn finish(mut generation: Generation<'_>, texts: usize) -> Result<Vec<Vec<u32>>> {
    let mut all = vec![Vec::new(); texts];
    while let Some(tokens) = generation.step()? {
        all.iter_mut().zip(tokens).for_each(|(text, token)| text.extend(token));
    }
    Ok(all)
}

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("nvfp4-models-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the system's cleaning of temporary folders.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_reference_is_transformers() -> Result<()> {
    for model in MODELS {
        let (decoder, expected) = (open(model, &Engine::reference()), Expected::of(model)?);
        let off = difference(&decoder.logits(&expected.prompt)?, &expected.logits)?;
        assert!(off < BOUND, "{model} {off}");
        let count = expected.tokens.len();
        let found = follow(&decoder, &[&expected.prompt], count, Choice::new())?;
        assert_eq!(found, [expected.tokens], "{model}");
    }
    Ok(())
}

/// The kernels of an emulated machine. Without them, the part of the test is skipped.
fn machine(name: &str) -> Option<Kernels> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernels");
    let named = std::env::var_os("NVFP4_KERNELS_DIR");
    let folder = named.as_ref().map_or(built, PathBuf::from);
    let request: DeviceRequest = name.parse().expect("a machine");
    match Machine::open(&request).and_then(|machine| machine.kernels(Some(&folder))) {
        Ok(kernels) => Some(kernels),
        Err(error) if named.is_some() => panic!("{name}: {error}"),
        Err(error) => {
            skipped::part(name, error);
            None
        }
    }
}

#[test]
fn the_emulator_gives_the_same_tokens() -> Result<()> {
    for name in ["emu:h200", "emu:rtx4090"] {
        let Some(kernels) = machine(name) else { continue };
        let engine = Engine::emulated(kernels, HalfType::Bf16)?;
        for model in MODELS {
            let (decoder, expected) = (open(model, &engine), Expected::of(model)?);
            let logits = decoder.logits(&expected.prompt)?;
            let off = difference(&logits, &expected.logits)?;
            println!("{name} {model}: logits differ by {off}");
            // Activations are rounded, so that it cannot be as near as the reference.
            assert!(off > BOUND, "{name} {model} {off}");
            let far = far(&logits, &expected.logits)?;
            // A token or two has groups or experts with nearly equal scores, and takes the others.
            let allowed = if model.starts_with("deepseek") { 2 } else { 0 };
            assert!(far <= allowed, "{name} {model}: {far} tokens differ by more than the bound");
            let few = 4;
            let found = follow(&decoder, &[&expected.prompt], few, Choice::new())?;
            assert_eq!(found[0], expected.tokens[..few], "{name} {model}");
        }
    }
    Ok(())
}

/// A model in another layout, in floats, and in floats that are quantised again, is the same model.
#[test]
fn every_layout_is_the_same_model() -> Result<()> {
    let scratch = Scratch::new("layouts");
    let engine = Engine::reference();
    let mut read = 0;
    for name in MODELS {
        let (model, expected) = (Model::open(folder(name)).expect("a model"), Expected::of(name)?);
        let check = |path: &Path, what: &str| -> Result<()> {
            let decoder = Decoder::open(path, &engine);
            let decoder = decoder.unwrap_or_else(|error| panic!("{name} as {what}: {error}"));
            let off = difference(&decoder.logits(&expected.prompt)?, &expected.logits)?;
            assert!(off < BOUND, "{name} as {what}: {off}");
            Ok(())
        };
        for layout in [
            Layout::ModelOpt,
            Layout::CompressedTensors,
            Layout::TorchAo,
            Layout::Gguf,
            Layout::Mlx,
        ] {
            let path = scratch.0.join(format!("{name}-{layout}"));
            // Some cannot be: gpt-oss's experts in one tensor of TorchAO, a scale for each tensor in MLX.
            if let Err(error) =
                convert_model(&model, None, &SaveOptions::new(layout), &path, &mut ())
            {
                println!("{name} as {layout}: {error}");
                continue;
            }
            check(&path, layout.name())?;
            read += 1;
            if layout == Layout::Gguf {
                // The file alone, whose metadata say what the model is.
                let alone = scratch.0.join(format!("{name}.gguf"));
                std::fs::rename(path.join("model.gguf"), &alone).expect("a file");
                let unsaid = match name {
                    "qwen3" => "q_proj.bias",
                    "qwen3-moe" => "norm_topk_prob",
                    "gpt-oss" => "truncate",
                    _ => {
                        check(&alone, "a GGUF file alone")?;
                        continue;
                    }
                };
                let found = message(Decoder::open(&alone, &engine));
                assert!(found.contains(unsaid), "{found}");
            }
        }
        let path = scratch.0.join(format!("{name}-floats"));
        let options = DequantizeOptions::new().dtype(nvfp4::FloatType::F32);
        dequantize_model(&model, &options, &path, &mut ()).expect("dequantised");
        check(&path, "floats")?;
    }
    assert_eq!(read, 23, "layouts were read");
    Ok(())
}

/// Floats that are quantised when they are loaded are the model that `quantize_model` writes, and the model that they were
/// dequantised from.
#[test]
fn floats_are_quantised_if_asked_for() -> Result<()> {
    let scratch = Scratch::new("quantised");
    let engine = Engine::reference();
    for (name, own) in [("llama", Format::Nvfp4), ("mixtral", Format::Mxfp4)] {
        let path = scratch.0.join(name);
        let model = Model::open(folder(name)).expect("a model");
        let options = DequantizeOptions::new().dtype(nvfp4::FloatType::F32);
        dequantize_model(&model, &options, &path, &mut ()).expect("dequantised");
        let expected = Expected::of(name)?;
        let load = |options: &LoadOptions| {
            let model = Model::open(&path).expect("floats");
            Decoder::load(model, &engine, options, &mut |_, _| ())
        };
        let floats = load(&LoadOptions::new())?;
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let packed = load(&LoadOptions::new().quantize(format))?;
            assert!(packed.bytes() < floats.bytes() / 2, "{} {}", packed.bytes(), floats.bytes());
            let logits = packed.logits(&expected.prompt)?;
            let off = difference(&logits, &expected.logits)?;
            assert_eq!(off < BOUND, format == own, "{name} {format:?} {off}");
        }
        // MXFP4 has no tensor-level scale, of which joined matrices would have another.
        let recipe = recipe_by_name(Format::Mxfp4, "torchao").expect("a recipe");
        let written = scratch.0.join(format!("{name}-written"));
        let options = ModelOptions::new(recipe, Layout::CompressedTensors);
        let model = Model::open(&path).expect("floats");
        quantize_model(&model, &options, &written, None, &mut ()).expect("quantised");
        let written = Decoder::open(&written, &engine)?.logits(&expected.prompt)?;
        let packed = load(&LoadOptions::new().quantize(Format::Mxfp4))?;
        let off = difference(&packed.logits(&expected.prompt)?, &written)?;
        assert!(off < BOUND, "{name} {off}");
    }
    Ok(())
}

/// A head that is quantised, the embeddings' or its own, takes fewer bytes and makes nearly the same logits.
#[test]
fn heads_are_quantised_if_asked_for() -> Result<()> {
    let scratch = Scratch::new("head");
    let engine = Engine::reference();
    let mut ties = Vec::new();
    for name in ["llama", "qwen3"] {
        let path = scratch.0.join(name);
        let model = Model::open(folder(name)).expect("a model");
        let options = DequantizeOptions::new().dtype(nvfp4::FloatType::F32);
        dequantize_model(&model, &options, &path, &mut ()).expect("dequantised");
        let load = |options: &LoadOptions| {
            let model = Model::open(&path).expect("floats");
            Decoder::load(model, &engine, options, &mut |_, _| ())
        };
        let options = LoadOptions::new().quantize(Format::Nvfp4);
        let (floats, packed) = (load(&options)?, load(&options.clone().quantize_head(true))?);
        let config = config(name);
        let size = |field: &str| config[field].as_u64().expect("a size");
        let (elements, tied) =
            (size("vocab_size") * size("hidden_size"), config["tie_word_embeddings"] == true);
        // Half a byte for each element and one for 16; embeddings stay floats.
        let own = elements / 2 + elements / 16;
        let without = if tied { 0 } else { elements * 4 };
        assert_eq!(packed.bytes(), floats.bytes() - without + own, "{name}");
        let prompt = Expected::of(name)?.prompt;
        let off = difference(&packed.logits(&prompt)?, &floats.logits(&prompt)?)?;
        assert!(off > 0. && off < 0.2, "{name} {off}");
        ties.push(tied);
        let refused = message(load(&LoadOptions::new().quantize_head(true)));
        assert!(refused.contains("quantize_head"), "{refused}");
    }
    assert!(ties.contains(&true) && ties.contains(&false), "{ties:?}");
    Ok(())
}

/// Models that ModelOpt, llmcompressor, TorchAO, Quark, AutoRound and mlx-lm wrote.
#[test]
fn exporters_models_are_transformers() -> Result<()> {
    let path = data().join("models/exporters.safetensors");
    let expected = candle_core::safetensors::load(path, &Device::Cpu)?;
    let prompt = ids(&expected, "prompt")?;
    let engine = Engine::reference();
    let (mut read, mut refused) = (0, Vec::new());
    for entry in std::fs::read_dir(data().join("exporters")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        match (Decoder::open(&path, &engine), expected.get(&name)) {
            (Ok(decoder), Some(right)) => {
                let logits = decoder.logits(&prompt)?;
                let (tokens, rows) = (logits.dim(0)?, right.dim(0)?);
                let each = tokens / rows;
                let rows = (1..=rows).map(|row| logits.get(row * each - 1));
                let off =
                    difference(&Tensor::stack(&rows.collect::<Result<Vec<_>>>()?, 0)?, right)?;
                assert!(off < BOUND, "{name} {off}");
                read += 1;
            }
            (Err(error), None) => refused.push((name, error.to_string())),
            (Ok(_), None) => panic!("{name} is read, and nothing says what it is"),
            (Err(error), Some(_)) => panic!("{name}: {error}"),
        }
    }
    assert_eq!(read, expected.len() - 1, "all but the prompt were read");
    for (part, cause) in [
        ("awq", "pre_quant_scale"),
        ("svdquant", "pre_quant_scale"),
        ("spinquant", "rotated"),
        ("openai", "model_type"),
    ] {
        let of = refused.iter().filter(|(name, _)| name.contains(part));
        let messages: Vec<&String> = of.map(|(_, message)| message).collect();
        assert!(!messages.is_empty() && messages.iter().all(|x| x.contains(cause)), "{messages:?}");
    }
    assert_eq!(refused.len(), 4, "{refused:?}");
    Ok(())
}

#[test]
fn a_batch_is_its_texts_one_at_a_time() -> Result<()> {
    for model in MODELS {
        let (decoder, expected) = (open(model, &Engine::reference()), Expected::of(model)?);
        let prompt = expected.prompt.as_slice();
        let texts = [&prompt[..7], prompt, &prompt[3..26], &prompt[5..6]];
        let random = Choice::new().temperature(0.8).top_k(20).top_p(0.9).seed(7);
        for choice in [Choice::new(), random] {
            let together = follow(&decoder, &texts, 12, choice)?;
            let apart =
                texts.iter().map(|text| Ok(follow(&decoder, &[text], 12, choice)?.remove(0)));
            assert_eq!(together, apart.collect::<Result<Vec<_>>>()?, "{model} {choice:?}");
        }
        let mut cache = decoder.cache(texts.len(), prompt.len())?;
        let together = decoder.start(&texts, &mut cache)?;
        for (row, text) in texts.iter().enumerate() {
            let mut cache = decoder.cache(1, text.len())?;
            let alone = decoder.start(&[text], &mut cache)?;
            let off = difference(&together.narrow(0, row, 1)?, &alone)?;
            assert!(off < 1e-5, "{model} text {row}: {off}");
        }
    }
    Ok(())
}

/// A long text is computed in chunks, and goes on token by token as if it were computed at once.
#[test]
fn texts_go_on_as_if_at_once() -> Result<()> {
    for model in MODELS {
        let (decoder, expected) = (open(model, &Engine::reference()), Expected::of(model)?);
        let prompt = expected.prompt.as_slice();
        let long: Vec<u32> = prompt.iter().cycle().take(530).copied().collect();
        for (text, begin) in [(prompt, 17), (&long, 520)] {
            let right = decoder.logits(text)?;
            let mut cache = decoder.cache(1, text.len())?;
            let mut logits = decoder.start(&[&text[..begin]], &mut cache)?;
            for (at, &token) in text.iter().enumerate().skip(begin) {
                let off = difference(&logits, &right.narrow(0, at - 1, 1)?)?;
                assert!(off < BOUND, "{model} token {at}: {off}");
                logits = decoder.next(&[token], &mut cache)?;
            }
            assert_eq!(cache.used(), text.len());
        }
    }
    Ok(())
}

#[test]
fn choices_have_seeds_and_ends() -> Result<()> {
    let (decoder, expected) = (open("llama", &Engine::reference()), Expected::of("llama")?);
    let text = expected.prompt.as_slice();
    let chosen = |choice| follow(&decoder, &[text], 12, choice);
    let random = Choice::new().temperature(2.);
    assert_eq!(chosen(random.seed(3))?, chosen(random.seed(3))?);
    assert_ne!(chosen(random.seed(3))?, chosen(random.seed(4))?);
    assert_eq!(chosen(random.top_k(1))?[0], expected.tokens[..12]);
    assert_eq!(chosen(random.top_p(1e-6))?[0], expected.tokens[..12]);
    for (choice, field) in [
        (Choice::new().top_k(3), "temperature"),
        (Choice::new().temperature(-1.), "temperature"),
        (random.top_k(0), "top-k"),
        (random.top_p(1.5), "top-p"),
    ] {
        let message = message(chosen(choice));
        assert!(message.contains(field), "{message}");
    }
    // A text ends with the token that ends texts, and others go on.
    let mut config = config("llama");
    config["eos_token_id"] = json!([127, expected.tokens[3]]);
    let scratch = Scratch::new("ends");
    let path = with_config("llama", &config, &scratch);
    let decoder = Decoder::open(path, &Engine::reference())?;
    let found = follow(&decoder, &[text, &text[..9]], 12, Choice::new())?;
    let first =
        expected.tokens.iter().position(|token| *token == expected.tokens[3]).expect("there");
    assert_eq!(found[0], expected.tokens[..=first]);
    assert!(found[1].len() > found[0].len(), "{found:?}");
    Ok(())
}

/// The message of a failure, without candle's backtrace.
fn message<T>(result: Result<T>) -> String {
    let error = result.err().expect("refused").to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

fn config(model: &str) -> Value {
    let text = std::fs::read_to_string(folder(model).join("config.json")).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

/// A copy of a model with another configuration.
fn with_config(model: &str, config: &Value, scratch: &Scratch) -> PathBuf {
    let path = scratch.0.join(model);
    std::fs::create_dir_all(&path).expect("a folder");
    std::fs::copy(folder(model).join("model.safetensors"), path.join("model.safetensors"))
        .expect("a copy");
    std::fs::write(path.join("config.json"), config.to_string()).expect("written");
    path
}
