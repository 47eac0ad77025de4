//! Steps of one token by the library's attention kernel, beside the same tokens by candle's operations.

use std::sync::{Arc, Mutex};

use candle_core::Result;
use nvfp4::HalfType;
use nvfp4::device::LaunchSpec;
use nvfp4::observe::{LaunchObserver, LaunchReport};
use nvfp4_candle::Engine;
use nvfp4_candle::models::{Choice, Decoder, Generation};

use super::{EMULATED_BOUND, Expected, MODELS, difference, machine, open};

/// Counts launches of attention.
#[derive(Debug, Default)]
struct Counted(Mutex<usize>);

impl LaunchObserver for Counted {
    fn launching(&self, spec: &LaunchSpec<'_>) {
        *self.0.lock().expect("nobody failed") += usize::from(spec.entry.starts_with("attention_"));
    }

    fn launched(&self, _: &LaunchReport) {}
}

/// Logits behind each of the last tokens of a text that is given token by token.
fn stepped(decoder: &Decoder, text: &[u32], from: usize) -> Result<Vec<candle_core::Tensor>> {
    let mut cache = decoder.cache(1, text.len())?;
    decoder.start(&[&text[..from]], &mut cache)?;
    text[from..].iter().map(|&token| decoder.next(&[token], &mut cache)).collect()
}

/// Each layer of every family but latent ones launches the kernel once for each step, and logits behind tokens that are given
/// one at a time are those of the text as a whole: with windows, sinks and norms.
#[test]
fn steps_of_one_token_are_one_launch() -> Result<()> {
    const STEPS: usize = 6;
    let Some(kernels) = machine("emu:h200") else { return Ok(()) };
    for model in MODELS {
        let counted = Arc::new(Counted::default());
        let kernels = kernels.with_observer(counted.clone());
        let decoder = open(model, &Engine::emulated(kernels, HalfType::Bf16)?);
        let expected = Expected::of(model)?;
        let text = &expected.prompt[..];
        let logits = stepped(&decoder, text, text.len() - STEPS)?;
        let is_latent = model.starts_with("deepseek");
        let layers = super::config(model)["num_hidden_layers"].as_u64().expect("a number") as usize;
        let launches = *counted.0.lock().expect("nobody failed");
        assert_eq!(launches, if is_latent { 0 } else { layers * STEPS }, "{model}");
        // Tokens of mixtures choose other experts where scores are nearly equal.
        if ["llama", "qwen3"].contains(&model) {
            for (at, own) in logits.iter().enumerate() {
                let right = expected.logits.narrow(0, text.len() - STEPS + at, 1)?;
                let off = difference(own, &right)?;
                assert!(off < EMULATED_BOUND, "{model}: token {at} differs by {off}");
            }
        }
    }
    Ok(())
}

/// Texts of different lengths, of which one is a single token, give the tokens of each alone.
#[test]
fn texts_together_are_those_alone() -> Result<()> {
    let Some(kernels) = machine("emu:h200") else { return Ok(()) };
    for model in ["llama", "gpt-oss"] {
        let decoder = open(model, &Engine::emulated(kernels.clone(), HalfType::Bf16)?);
        let expected = Expected::of(model)?;
        let prompt = &expected.prompt[..];
        let texts = [prompt, &prompt[..1], &prompt[3..20]];
        let tokens = |texts: &[&[u32]]| -> Result<Vec<Vec<u32>>> {
            let generation = Generation::new(&decoder, texts, 3, Choice::new())?;
            super::finish(generation, texts.len())
        };
        let together = tokens(&texts)?;
        for (text, together) in texts.iter().zip(together) {
            assert_eq!(tokens(&[text])?, [together], "{model}: {} tokens", text.len());
        }
    }
    Ok(())
}
