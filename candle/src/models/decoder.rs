//! A whole model: layers, cache, logits.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::Embedding;
use nvfp4::quantize::Format;
use nvfp4_checkpoint::{Model, refuse_changed};

use super::cache::KeyValues;
use super::config::Config;
use super::feed::Forward;
use super::latent::Attending;
use super::layers::Projection;
use super::meter::Meter;
use super::norm::Norm;
use super::step::{Inputs, Step};
use super::store::Loader;
use crate::engine::dtype;
use crate::error::{shape, wrap};
use crate::graph::refuse_recording;
use crate::memory::Lease;
use crate::{Engine, PackedBuilder};

/// Tokens of a text that are computed at once: scores take memory for each pair of a token and one before it.
const CHUNK: usize = 512;

/// Options of loading a model.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The format of matrices of layers that the file has in floats, by TorchAO's recipe; they stay floats without it.
    /// Embeddings and routers always do.
    pub quantize: Option<Format>,
    /// Whether [`quantize`](Self::quantize) is for the head, too, tied to the embeddings or not.
    pub quantize_head: bool,
}

impl LoadOptions {
    /// Matrices as the file has them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`quantize`](Self::quantize).
    #[must_use]
    pub fn quantize(self, quantize: impl Into<Option<Format>>) -> Self {
        Self { quantize: quantize.into(), ..self }
    }

    /// Sets [`quantize_head`](Self::quantize_head).
    #[must_use]
    pub fn quantize_head(self, quantize_head: bool) -> Self {
        Self { quantize_head, ..self }
    }
}

struct Block {
    attention_norm: Norm,
    attention: Attending,
    feed_norm: Norm,
    feed: Forward,
}

/// A decoder with its weights.
///
/// On the CPU it computes in f32, on a GPU in the [half](Engine::half) of its engine.
pub struct Decoder {
    config: Config,
    engine: Arc<Engine>,
    /// The same for the layers, whose launches steps may record.
    computing: Arc<Engine>,
    dtype: DType,
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: Norm,
    head: Projection,
    meter: Arc<Meter>,
    bytes: u64,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decoder({}, {:?})", self.config.architecture().model_type(), self.engine)
    }
}

impl Decoder {
    /// Opens the checkpoint of a model and loads it as it is.
    ///
    /// # Errors
    /// The same as [`load`](Self::load), and those of [`Model::open`].
    pub fn open(path: impl Into<PathBuf>, engine: &Arc<Engine>) -> Result<Self> {
        let model = Model::open(path).map_err(wrap)?;
        Self::load(model, engine, &LoadOptions::new(), &mut |_, _| ())
    }

    /// Loads a model. `progress` is called with the layers that are loaded and all.
    ///
    /// # Errors
    /// For a configuration that is [not computed](Config::from_json), a head to be quantised to no format, tensors that are missing, damaged or of other sizes, and
    /// weights that further tensors change ([`refuse_changed`]).
    pub fn load(
        model: Model,
        engine: &Arc<Engine>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let Some(config) = model.config() else {
            return Err(shape("config.json", "beside the tensors", "absent"));
        };
        let config = Config::from_json(config)?;
        if options.quantize_head && options.quantize.is_none() {
            return Err(shape("`quantize_head`", "with a format to quantise to", "without"));
        }
        refuse_changed(&model).map_err(wrap)?;
        // SAFETY: a `Recording` keeps what it must, and records the thread's own stream, on which nobody else queues work
        // meanwhile. The owners of other recordings of such a stream are refused before any launch.
        let computing = unsafe { engine.recordable() };
        let plain = PackedBuilder::new(model, &computing);
        let builder = match options.quantize {
            Some(format) => plain.quantizing_to(format),
            None => plain.clone(),
        };
        let dtype = match engine.device() {
            Device::Cpu => DType::F32,
            _ => dtype(engine.half().float()),
        };
        let (meter, bytes) = (Arc::<Meter>::default(), Arc::<AtomicU64>::default());
        let loader = Loader { builder, dtype, meter: meter.clone(), bytes: bytes.clone() };
        let as_it_is = Loader { builder: plain, dtype, meter: meter.clone(), bytes: bytes.clone() };
        let (hidden, count) = (config.hidden, config.layers.len());
        let table = as_it_is.tensor("model.embed_tokens.weight", &[config.vocabulary, hidden])?;
        let norm = |at: &Loader, name: &str| -> Result<Norm> {
            Ok(Norm::new(&computing, at.tensor(name, &[hidden])?, config.epsilon))
        };
        let block = |at: usize| -> Result<Block> {
            progress(at, count);
            let (own, layer) = (loader.at(format!("model.layers.{at}")), config.layers[at]);
            Ok(Block {
                attention_norm: norm(&own, "input_layernorm.weight")?,
                attention: Attending::load(&own, &config, layer, &computing)?,
                feed_norm: norm(&own, "post_attention_layernorm.weight")?,
                feed: Forward::load(&own, config.architecture, hidden, layer)?,
            })
        };
        let blocks = (0..count).map(block).collect::<Result<_>>()?;
        let of_head = if options.quantize_head { &loader } else { &as_it_is };
        let head = match (config.tied, options.quantize_head) {
            (true, false) => Projection::Floats(candle_nn::Linear::new(table.clone(), None)),
            (true, true) => {
                of_head.linear("model.embed_tokens", [hidden, config.vocabulary], false)?
            }
            (false, _) => of_head.linear("lm_head", [hidden, config.vocabulary], false)?,
        };
        let norm = norm(&as_it_is, "model.norm.weight")?;
        progress(count, count);
        let (embedding, engine, bytes) =
            (Embedding::new(table, hidden), engine.clone(), bytes.load(Ordering::Relaxed));
        Ok(Self { config, engine, computing, dtype, embedding, blocks, norm, head, meter, bytes })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The engine that computes products in four bits.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The type of activations.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of the weights: codes and scales in four bits, and floats.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Products with weights in one step: fewer than matrices of the file where those of the same inputs are joined.
    #[must_use]
    pub fn products(&self) -> usize {
        let each = |block: &Block| block.attention.products() + block.feed.products();
        self.blocks.iter().map(each).sum::<usize>() + 1
    }

    /// An empty cache for so many texts of at most `capacity` tokens each.
    ///
    /// # Errors
    /// For no texts, and for more tokens than the model has positions for.
    pub fn cache(&self, texts: usize, capacity: usize) -> Result<Cache> {
        if texts == 0 {
            return Err(shape("texts", "at least one", texts));
        }
        if !(1..=self.config.positions).contains(&capacity) {
            let required = format!("from 1 to {}, max_position_embeddings", self.config.positions);
            return Err(shape("tokens of a text", required, capacity));
        }
        let tables = self.config.rope.tables(capacity, self.dtype, self.engine.device())?;
        let [heads, key, value] = self.config.cached();
        let layer = |_: &Block| {
            let place = (self.dtype, self.engine.device());
            KeyValues::new([texts, heads, capacity], [key, value], place)
        };
        let layers = self.blocks.iter().map(layer).collect::<Result<_>>()?;
        let fuses = self.blocks.iter().all(|block| block.attention.fuses(texts, capacity));
        Ok(Cache { layers, tables, pads: vec![0; texts], capacity, used: 0, fuses })
    }

    /// Logits `[texts, vocabulary]` in f32 after the last token of each text. Texts that are shorter than the longest begin
    /// later in the cache, which must be empty.
    ///
    /// # Errors
    /// For an empty text, another number of texts than the cache is for, more tokens than it has room for, a token that the
    /// vocabulary does not have, a cache that is not empty, and while the caller records the device's stream.
    pub fn start(&self, texts: &[&[u32]], cache: &mut Cache) -> Result<Tensor> {
        if cache.used != 0 {
            return Err(shape("the cache", "empty", format!("{} tokens", cache.used)));
        }
        if texts.iter().any(|text| text.is_empty()) {
            return Err(shape("a text", "at least one token", 0));
        }
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let padded: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| {
                // Any token will do before a text: nobody sees it.
                let before = std::iter::repeat_n(text[0], longest - text.len());
                before.chain(text.iter().copied()).collect()
            })
            .collect();
        if texts.len() == cache.pads.len() {
            cache.pads = texts.iter().map(|text| longest - text.len()).collect();
        }
        let mut last = None;
        for from in (0..longest).step_by(CHUNK) {
            let until = (from + CHUNK).min(longest);
            let chunk: Vec<&[u32]> = padded.iter().map(|text| &text[from..until]).collect();
            last = Some(self.hidden(&chunk, cache)?);
        }
        match last {
            Some(last) => self
                .logits_of(&last.narrow(1, last.dim(1)? - 1, 1)?)?
                .squeeze(1)?
                .to_dtype(DType::F32),
            None => Err(shape("texts", "at least one", texts.len())),
        }
    }

    /// Logits `[texts, vocabulary]` in f32 after one more token of each text.
    ///
    /// # Errors
    /// The same as [`start`](Self::start), but for the cache.
    pub fn next(&self, tokens: &[u32], cache: &mut Cache) -> Result<Tensor> {
        let tokens: Vec<&[u32]> = tokens.iter().map(std::slice::from_ref).collect();
        self.logits_of(&self.hidden(&tokens, cache)?)?.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Logits `[tokens, vocabulary]` in f32 after each token of a text.
    ///
    /// # Errors
    /// The same as [`start`](Self::start).
    pub fn logits(&self, text: &[u32]) -> Result<Tensor> {
        let mut cache = self.cache(1, text.len().max(1))?;
        self.logits_of(&self.hidden(&[text], &mut cache)?)?.squeeze(0)?.to_dtype(DType::F32)
    }

    fn logits_of(&self, hidden: &Tensor) -> Result<Tensor> {
        let hidden = self.norm.forward(hidden)?;
        self.head.forward(&hidden)
    }

    /// The last layer's result `[texts, tokens, hidden]` for further tokens of texts, as many of each.
    fn hidden(&self, texts: &[&[u32]], cache: &mut Cache) -> Result<Tensor> {
        let tokens = texts.first().map_or(0, |text| text.len());
        let ids = texts.concat();
        self.check(&ids, [texts.len(), tokens], cache)?;
        refuse_recording(self.engine.device())?;
        let ids = Tensor::from_vec(ids, (texts.len(), tokens), self.engine.device())?;
        let (windows, range) = (self.windows(), [cache.used, tokens]);
        let step = Step::new(&windows, &cache.tables, &cache.pads, range, cache.fuses)?;
        let x = self.through_layers(&ids, &step, cache)?;
        cache.used += tokens;
        Ok(x)
    }

    /// Checks ids of further tokens of texts.
    fn check(&self, ids: &[u32], [texts, tokens]: [usize; 2], cache: &Cache) -> Result<()> {
        if texts != cache.pads.len() || tokens == 0 {
            let required = format!("{}, as the cache has, of at least one token", cache.pads.len());
            return Err(shape("texts", required, (texts, tokens)));
        }
        if tokens > cache.capacity - cache.used {
            let required = format!("at most {}, as the cache is for", cache.capacity);
            return Err(shape("tokens of a text", required, cache.used + tokens));
        }
        match ids.iter().find(|&&id| id as usize >= self.config.vocabulary) {
            Some(id) => {
                let required = format!("below {}, vocab_size", self.config.vocabulary);
                Err(shape("a token", required, id))
            }
            None => Ok(()),
        }
    }

    /// The result of all layers for ids `[texts, tokens]`.
    fn through_layers(&self, ids: &Tensor, step: &Step, cache: &Cache) -> Result<Tensor> {
        let mut x = self.embedding.forward(ids)?;
        for (block, cache) in self.blocks.iter().zip(&cache.layers) {
            let normed = block.attention_norm.forward(&x)?;
            x = block.attention.forward(&normed, &x, step, cache)?;
            let normed = block.feed_norm.forward(&x)?;
            x = block.feed.forward(&normed, &x)?;
        }
        debug_assert_eq!(x.dim(D::Minus1)?, self.config.hidden);
        Ok(x)
    }

    fn windows(&self) -> Vec<Option<usize>> {
        self.config.layers.iter().map(|layer| layer.window).collect()
    }

    /// Inputs of steps of one token of each text of a cache.
    pub(super) fn inputs(&self, cache: &Cache) -> Result<Inputs> {
        let sizes = (self.config.heads, self.config.cached());
        let place = (self.dtype, self.engine.device());
        let capacity = (cache.capacity, cache.fuses);
        Inputs::new(&self.windows(), &cache.pads, capacity, sizes, place)
    }

    /// Checks one more token of each text, as [`next`](Self::next) does; those of a step before are not looked at.
    pub(super) fn check_next(&self, tokens: Option<&[u32]>, cache: &Cache) -> Result<()> {
        let texts = tokens.map_or(cache.texts(), <[u32]>::len);
        self.check(tokens.unwrap_or_default(), [texts, 1], cache)?;
        refuse_recording(self.engine.device())
    }

    /// Logits `[texts, vocabulary]`, of the type of activations, of a step of one token of each text, which looks at all places of the cache below
    /// `end`. The host neither knows nor counts the tokens.
    pub(super) fn fixed_step(&self, inputs: &Inputs, cache: &Cache, end: usize) -> Result<Tensor> {
        let step = inputs.step(&cache.tables, end)?;
        let hidden = self.through_layers(&inputs.tokens()?.unsqueeze(1)?, &step, cache)?;
        self.logits_of(&hidden)?.squeeze(1)
    }

    /// Whether products are being timed.
    pub(super) fn is_metered(&self) -> bool {
        self.meter.runs()
    }

    /// Keeps what layers have allocated.
    pub(super) fn lease(&self) -> Lease {
        self.computing.memory.lease()
    }

    /// The time of products in four bits during `work`. The device is waited for before and after each, which makes the whole
    /// slower on a GPU, and a [`Generation`](super::Generation) repeats no recording meanwhile.
    ///
    /// # Errors
    /// The errors of `work`.
    pub fn metered<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<(R, Duration)> {
        self.meter.start();
        let result = work();
        let time = self.meter.stop();
        Ok((result?, time))
    }
}

/// Keys and values of the tokens so far.
#[derive(Debug)]
pub struct Cache {
    layers: Vec<KeyValues>,
    /// Cosines and sines of positions.
    tables: [Tensor; 2],
    /// The place at which each text begins.
    pads: Vec<usize>,
    capacity: usize,
    used: usize,
    /// Whether the library's kernel takes steps of one token of each text.
    fuses: bool,
}

impl Cache {
    /// Tokens of the longest text.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// The most tokens of a text.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn texts(&self) -> usize {
        self.pads.len()
    }

    /// Counts a token of each text, which a fixed step has appended.
    pub(super) fn advance(&mut self) {
        self.used += 1;
    }
}
