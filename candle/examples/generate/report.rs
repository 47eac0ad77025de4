//! The table at the end.

use std::fmt;
use std::time::Duration;

use nvfp4_candle::models::Decoder;
use serde_json::{Value, json};

/// Times and sizes of a run.
pub struct Report<'a> {
    pub decoder: &'a Decoder,
    pub load: Duration,
    /// Tokens of all prompts.
    pub prompt: usize,
    /// The time to the first token.
    pub first: Duration,
    /// Tokens of the longest text, and the time of those after the first.
    pub steps: usize,
    /// Steps that a GPU repeated from a recording.
    pub replayed: usize,
    pub decode: Duration,
    /// The share of products in four bits in the time of a step.
    pub share: f64,
    pub texts: &'a [Vec<u32>],
}

impl Report<'_> {
    fn prefill_rate(&self) -> f64 {
        self.prompt as f64 / self.first.as_secs_f64()
    }

    /// Tokens of all texts after the first ones, per second; `None` if there are none.
    fn decode_rate(&self) -> Option<f64> {
        let after = self.texts.iter().map(|text| text.len().saturating_sub(1)).sum::<usize>();
        (after > 0).then(|| after as f64 / self.decode.as_secs_f64())
    }

    /// The same as one object, with the texts.
    pub fn json(&self, written: Option<&[String]>) -> Value {
        json!({
            "device": format!("{:?}", self.decoder.engine()),
            "architecture": self.decoder.config().architecture().model_type(),
            "layers": self.decoder.config().layers(),
            "products": self.decoder.products(),
            "load_seconds": self.load.as_secs_f64(),
            "weight_bytes": self.decoder.bytes(),
            "prompt_tokens": self.prompt,
            "first_token_seconds": self.first.as_secs_f64(),
            "prefill_tokens_per_second": self.prefill_rate(),
            "decode_steps": self.steps,
            "replayed_steps": self.replayed,
            "decode_tokens_per_second": self.decode_rate(),
            "share_of_products": self.share,
            "tokens": self.texts,
            "texts": written,
        })
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.decoder.config();
        let row = |f: &mut fmt::Formatter<'_>, name: &str, value: String| {
            writeln!(f, "{name:<22} {value}")
        };
        let model = config.architecture().model_type();
        row(f, "device", format!("{:?}", self.decoder.engine()))?;
        let (layers, products) = (config.layers(), self.decoder.products());
        row(f, "model", format!("{model}, {layers} layers, {products} products with weights"))?;
        row(f, "weights", format!("{:.1} MB", self.decoder.bytes() as f64 / 1e6))?;
        row(f, "load", format!("{:.2} s", self.load.as_secs_f64()))?;
        let first = self.first.as_secs_f64() * 1e3;
        let rate = self.prefill_rate();
        let (prompt, steps) = (self.prompt, self.steps);
        row(
            f,
            "prefill",
            format!("{prompt} tokens, {rate:.1} a second; first token after {first:.1} ms"),
        )?;
        let decode = match self.decode_rate() {
            Some(rate) => format!("{steps} steps, {rate:.1} tokens a second"),
            None => format!("{steps} steps"),
        };
        let decode = match self.replayed {
            0 => decode,
            replayed => format!("{decode}, {replayed} of them repeated from a recording"),
        };
        row(f, "decode", decode)?;
        row(f, "products in four bits", format!("{:.0} % of a step", self.share * 100.))
    }
}
