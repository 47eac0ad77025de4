//! Decoders of the Llama kind from a folder of safetensors or a GGUF file, with weights in four bits where the file has them so.
//!
//! | `model_type` | what it has besides Llama's parts |
//! | --- | --- |
//! | `llama` | the positions of Llama 3; biases if the configuration says so |
//! | `qwen3`, `qwen3_moe` | norms of each head's queries and keys, windows; experts |
//! | `mixtral` | experts, a window |
//! | `gpt_oss` | sinks, windows of every other layer, biases, YaRN, experts with a clamped SwiGLU |
//! | `deepseek_v3`, `kimi_k2` | latent attention, YaRN, experts by scores in groups, shared experts |
//!
//! Weights are read from every layout of [`nvfp4_checkpoint`], layer by layer as the file says: those in four bits are
//! [`Linear`](crate::Linear) and [`MoeLinear`](crate::MoeLinear), all others floats. Projections of the same inputs
//! (q, k and v; gate and up) become one product if they are of one format and one tensor-level scale, or in floats.
//! Fields of `config.json` that change the mathematics are honoured or refused by name ([`Config::from_json`]). Scales of
//! inputs and of a KV cache that a file may have are not used: activations keep their 16 bits, and so does the cache.
//!
//! ```no_run
//! use nvfp4_candle::models::{Choice, Decoder, Generation};
//! use nvfp4_candle::Engine;
//!
//! # fn main() -> candle_core::Result<()> {
//! let decoder = Decoder::open("llama-nvfp4", &Engine::reference())?;
//! let mut generation = Generation::new(&decoder, &[&[1, 15043, 29892]], 20, Choice::new())?;
//! while let Some(tokens) = generation.step()? {
//!     println!("{tokens:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A batch of texts of different lengths is computed together: shorter ones begin later in the cache. The host is given the sums of
//! the logits and the chosen tokens of a step, or all logits if tokens are drawn at random, and the choice of experts that are in floats.

mod architecture;
mod attention;
mod cache;
mod config;
mod decoder;
mod deepseek;
mod feed;
mod fetch;
mod fields;
mod generation;
mod known;
mod latent;
mod layers;
mod matrices;
mod meter;
mod norm;
mod one_token;
mod recording;
mod rope;
mod routing;
mod step;
mod store;
mod values;

pub use architecture::Architecture;
pub use config::Config;
pub use decoder::{Cache, Decoder, LoadOptions};
pub use generation::{Choice, Generation};
pub(crate) use norm::PlannedNorm;
pub(crate) use one_token::PlannedAttention;
