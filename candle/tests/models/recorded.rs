//! Steps that are recorded, and a GPU, which records them.

use candle_core::Result;
use nvfp4_candle::Engine;
use nvfp4_candle::models::{Choice, Decoder, Generation};
use serde_json::json;

use super::{Expected, MODELS, Scratch, config, finish, follow, open, with_config};

/// Texts that are continued together. The last ones cross the places at which shapes change.
fn batches<'a>(prompt: &'a [u32], long: &'a [u32]) -> [Vec<&'a [u32]>; 3] {
    [vec![prompt], vec![&prompt[..7], prompt, &prompt[5..6]], vec![long, &prompt[..9]]]
}

/// So many tokens, of the prompt again and again.
fn repeated(prompt: &[u32], count: usize) -> Vec<u32> {
    prompt.iter().copied().cycle().take(count).collect()
}

/// The same tokens follow with and without a recording, and from the middle on without.
fn is_the_same(decoder: &Decoder, texts: &[&[u32]], choice: Choice, what: &str) -> Result<()> {
    const COUNT: usize = 12;
    let generation = || Generation::new(decoder, texts, COUNT, choice);
    let plain = finish(generation()?.recorded(false)?, texts.len())?;
    assert_eq!(finish(generation()?.recorded(true)?, texts.len())?, plain, "{what} {choice:?}");
    let mut generation = generation()?.recorded(true)?;
    let first: Vec<_> = (0..5).map(|_| generation.step()).collect::<Result<_>>()?;
    let rest = finish(generation.recorded(false)?, texts.len())?;
    for (at, (text, rest)) in plain.iter().zip(rest).enumerate() {
        let own = first.iter().flatten().filter_map(|step| step[at]);
        assert_eq!(own.chain(rest).collect::<Vec<_>>(), *text, "{what} {choice:?}");
    }
    Ok(())
}

/// The likeliest tokens, and some that are drawn.
fn choices() -> [Choice; 2] {
    [Choice::new(), Choice::new().temperature(0.8).top_k(20).top_p(0.9).seed(7)]
}

/// Steps as a GPU records them, of shapes and places that the host does not know, on the CPU.
#[test]
fn steps_to_be_recorded_are_the_same_steps() -> Result<()> {
    for model in MODELS {
        let (decoder, expected) = (open(model, &Engine::reference()), Expected::of(model)?);
        let prompt = expected.prompt.as_slice();
        for texts in batches(prompt, &repeated(prompt, 250)) {
            for choice in choices() {
                is_the_same(&decoder, &texts, choice, model)?;
            }
        }
    }
    Ok(())
}

/// The largest windows, which 32 bits do not hold or just hold, hide nothing.
#[test]
fn windows_beyond_the_cache_hide_nothing() -> Result<()> {
    let (scratch, expected) = (Scratch::new("windows"), Expected::of("mixtral")?);
    let unhidden = open_with_window(&scratch, json!(null))?;
    let texts = [expected.prompt.as_slice()];
    let right = follow(&unhidden, &texts, 12, Choice::new())?;
    for window in [u64::from(u32::MAX), 1 << 32] {
        let decoder = open_with_window(&scratch, json!(window))?;
        let generation = Generation::new(&decoder, &texts, 12, Choice::new())?.recorded(true)?;
        assert_eq!(finish(generation, 1)?, right, "{window}");
    }
    Ok(())
}

fn open_with_window(scratch: &Scratch, window: serde_json::Value) -> Result<Decoder> {
    let mut config = config("mixtral");
    config["sliding_window"] = window;
    Decoder::open(with_config("mixtral", &config, scratch), &Engine::reference())
}

#[cfg(feature = "cuda")]
mod gpu {
    use std::sync::Arc;

    use candle_core::Device;
    use nvfp4::HalfType;
    use nvfp4_checkpoint::{DequantizeOptions, Model, dequantize_model};

    use super::super::{difference, far, folder};
    use super::*;

    fn engine() -> Result<Option<Arc<Engine>>> {
        match Device::new_cuda(0) {
            Ok(device) => Engine::for_device(&device, HalfType::Bf16).map(Some),
            Err(error) => {
                skipped::part("cuda:0", error);
                Ok(None)
            }
        }
    }

    /// Logits on a GPU, and the same tokens from steps that are recorded and from those that are not.
    #[test]
    fn a_gpu_is_near() -> Result<()> {
        let Some(engine) = engine()? else { return Ok(()) };
        for model in MODELS {
            let (decoder, expected) = (open(model, &engine), Expected::of(model)?);
            let logits = decoder.logits(&expected.prompt)?.to_device(&Device::Cpu)?;
            let off = difference(&logits, &expected.logits)?;
            let far = far(&logits, &expected.logits)?;
            println!(
                "{model}: logits differ by {off}, those of {far} tokens by more than the bound"
            );
            // In bf16 throughout, tokens choose other experts where scores are nearly equal: fewer than half of them.
            let is_dense = ["llama", "qwen3"].contains(&model);
            let allowed = if is_dense { 0 } else { expected.prompt.len() / 2 };
            assert!(far <= allowed && off < 1., "{model}: {far} tokens, {off}");
            let prompt = expected.prompt.as_slice();
            for texts in batches(prompt, &repeated(prompt, 250)) {
                for choice in choices() {
                    is_the_same(&decoder, &texts, choice, model)?;
                }
                let mut generation = Generation::new(&decoder, &texts, 12, Choice::new())?;
                for _ in 0..12 {
                    generation.step()?;
                }
                assert_eq!(generation.unrecorded(), None, "{model}");
                ends_the_same(&decoder, &texts[..1], model)?;
                assert!(generation.replayed() > 4, "{model} {}", generation.replayed());
            }
        }
        Ok(())
    }

    /// A text ends at a token although the GPU has gone on.
    fn ends_the_same(decoder: &Decoder, texts: &[&[u32]], model: &str) -> Result<()> {
        let plain = Generation::new(decoder, texts, 12, Choice::new())?.recorded(false)?;
        let all = finish(plain, 1)?.remove(0);
        let last = all[all.len() / 2];
        let first = all.iter().position(|&token| token == last);
        let ended = |is_recorded| -> Result<(Vec<u32>, usize)> {
            let generation = Generation::new(decoder, texts, 12, Choice::new())?;
            let mut generation = generation.recorded(is_recorded)?.ending_at(&[last]);
            let mut found = Vec::new();
            while let Some(step) = generation.step()? {
                found.extend(step.into_iter().flatten());
            }
            Ok((found, generation.tokens()))
        };
        let (found, tokens) = ended(true)?;
        assert_eq!((found.clone(), tokens), ended(false)?, "{model}");
        assert_eq!(Some(found.len()), first.map(|first| first + 1), "{model}");
        Ok(())
    }

    /// A step that cannot be recorded runs nevertheless, and says why. Products are timed in steps that are not recorded.
    #[test]
    fn a_step_that_cannot_be_recorded_runs() -> Result<()> {
        let Some(engine) = engine()? else { return Ok(()) };
        let scratch = Scratch::new("unrecorded");
        let path = scratch.0.join("mixtral-floats");
        let model = Model::open(folder("mixtral")).expect("a model");
        let options = DequantizeOptions::new().dtype(nvfp4::FloatType::F32);
        dequantize_model(&model, &options, &path, &mut ()).expect("dequantised");
        let decoder = Decoder::open(&path, &engine)?;
        let prompt = Expected::of("mixtral")?.prompt;
        // More choices than experts, which are taken apart on the host.
        let texts: Vec<&[u32]> = (1..=20).map(|from| &prompt[from..]).collect();
        let plain = Generation::new(&decoder, &texts, 8, Choice::new())?.recorded(false)?;
        let plain = finish(plain, texts.len())?;
        let mut generation = Generation::new(&decoder, &texts, 8, Choice::new())?;
        let mut found = vec![Vec::new(); texts.len()];
        while let Some(step) = generation.step()? {
            found.iter_mut().zip(step).for_each(|(text, token)| text.extend(token));
        }
        assert_eq!(found, plain);
        assert!(generation.unrecorded().is_some() && generation.replayed() == 0);
        drop(generation);
        let decoder = open("llama", &engine);
        let mut generation = Generation::new(&decoder, &[&prompt], 12, Choice::new())?;
        for _ in 0..6 {
            generation.step()?;
        }
        let replayed = generation.replayed();
        let (_, time) = decoder.metered(|| generation.step())?;
        assert!(!time.is_zero() && generation.replayed() == replayed);
        generation.step()?;
        assert!(generation.unrecorded().is_none() && generation.replayed() > replayed);
        Ok(())
    }
}
