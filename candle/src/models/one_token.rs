//! Attention of one token of each text by the library's kernel.

#[cfg(feature = "cuda")]
mod launch;

use std::sync::Arc;
use std::thread::{self, ThreadId};

use candle_core::{DType, Device, Result, Tensor};
use nvfp4::attention::{self, AttentionOptions, AttentionShape, Operands};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Kernels, Target};
use nvfp4::supports::Description;
use nvfp4::{floats, supports};

use super::cache::KeyValues;
use super::step::Fused;
use crate::Engine;
use crate::engine::{Computer, lock};
#[cfg(not(feature = "cuda"))]
use crate::error::shape;
use crate::error::wrap;

/// The attention of a layer where steps have one token of each text.
pub(super) struct OneToken {
    engine: Arc<Engine>,
    /// Heads of queries and of keys, elements of a head.
    heads: [usize; 3],
    options: AttentionOptions,
    /// Weights of the norms of queries and keys.
    norms: Option<[Tensor; 2]>,
    /// `[heads]`.
    sinks: Option<Tensor>,
}

/// An attention as planned, which layers of the same sizes share.
#[derive(Debug)]
pub(crate) struct PlannedAttention {
    key: Key,
    attention: attention::Attention,
}

/// The properties that a plan depends on, and the thread on whose stream its memory is used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    thread: ThreadId,
    shape: AttentionShape,
    options: AttentionOptions,
    expected: usize,
}

impl OneToken {
    /// The attention of so many heads, of queries and of keys, with so many elements.
    pub fn new(
        engine: &Arc<Engine>,
        heads: [usize; 3],
        options: AttentionOptions,
        norms: Option<[Tensor; 2]>,
        sinks: Option<Tensor>,
    ) -> Self {
        Self { engine: engine.clone(), heads, options, norms, sinks }
    }

    /// Whether there is a kernel for so many texts of at most `capacity` tokens.
    pub fn takes(&self, texts: usize, capacity: usize) -> bool {
        let Computer::Kernels(kernels) = self.engine.place() else { return false };
        let (shape, element) = (self.shape(texts, capacity), self.engine.half());
        let description = Description::Attention { shape, element, options: &self.options };
        supports(Target::from(kernels.device()), &description).is_ok()
    }

    fn shape(&self, texts: usize, capacity: usize) -> AttentionShape {
        let [heads, kv_heads, dim] = self.heads;
        AttentionShape { texts, heads, kv_heads, dim, capacity }
    }

    /// The result `[texts, 1, heads dim]` for queries, keys and values of the tokens, which follow each other in the rows of
    /// `projected`, `[texts, 1, (heads + 2 kv_heads) dim]`. Keys and values are appended to the cache.
    pub fn forward(&self, projected: &Tensor, step: &Fused, cache: &KeyValues) -> Result<Tensor> {
        match projected.device() {
            Device::Cpu => self.emulate(projected, step, cache),
            #[cfg(feature = "cuda")]
            _ => launch::launch(self, projected, step, cache),
            #[cfg(not(feature = "cuda"))]
            other => {
                Err(shape("the device", "the CPU, or with feature `cuda` a GPU", other.location()))
            }
        }
    }

    fn kernels(&self) -> &Kernels {
        match self.engine.place() {
            Computer::Kernels(kernels) => kernels,
            Computer::Reference => unreachable!("the reference takes no step so"),
        }
    }

    /// The operation for such a cache, planned once.
    fn plan(&self, step: &Fused, cache: &KeyValues) -> nvfp4::Result<Arc<PlannedAttention>> {
        let ([texts, capacity], kernels) = (cache.sizes(), self.kernels());
        let (shape, expected) = (self.shape(texts, capacity), step.expected);
        let key = Key { thread: thread::current().id(), shape, options: self.options, expected };
        let (memory, half) = (&self.engine.memory, self.engine.half());
        let mut plans = lock(&memory.attentions);
        let make = || {
            let attention =
                attention::Attention::new(kernels, shape, half, expected, &self.options)?;
            Ok(Arc::new(PlannedAttention { key, attention }))
        };
        plans.get(memory, |plan| plan.key == key, make).cloned()
    }

    /// All operands of a launch but the cache.
    fn tensors<'a>(&'a self, step: &'a Fused) -> Tensors<'a> {
        let Fused { place, begins, tables, expected: _ } = step;
        Tensors {
            turns: tables.each_ref(),
            norms: self.norms.as_ref().map(<[_; 2]>::each_ref),
            sinks: self.sinks.as_ref(),
            place,
            begins: begins.as_ref(),
        }
    }

    fn emulate(&self, projected: &Tensor, step: &Fused, cache: &KeyValues) -> Result<Tensor> {
        self.engine.require_cpu()?;
        let (device, float) = (self.kernels().device(), self.engine.half().float());
        let upload = |name: &str, tensor: &Tensor| -> Result<DeviceBuffer> {
            let all = tensor.flatten_all()?;
            let bytes = match all.dtype() {
                DType::U32 => all.to_vec1::<u32>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
                _ => {
                    let values = all.to_dtype(DType::F32)?.to_vec1::<f32>()?;
                    floats::encode(float, values.into_iter().map(f64::from))
                }
            };
            DeviceBuffer::upload(device, name, &bytes).map_err(wrap)
        };
        let tensors = self.tensors(step);
        let given = tensors.all().map(|(name, tensor)| upload(name, tensor));
        let given: Vec<DeviceBuffer> = given.collect::<Result<_>>()?;
        let given: Vec<&DeviceBuffer> = given.iter().collect();
        let projected_buffer = upload("projected", projected)?;
        let held = cache.tensors();
        let [keys, values] = [upload("keys", held[0])?, upload("values", held[1])?];
        let [heads, _, dim] = self.heads;
        let ([texts, _], columns) = (cache.sizes(), heads * dim);
        let y = DeviceBuffer::poisoned(device, "result", texts * columns * 2).map_err(wrap)?;
        let plan = self.plan(step, cache).map_err(wrap)?;
        let operands = tensors.operands(&given, &projected_buffer, [&keys, &values]);
        plan.attention.launch(&operands, &y).map_err(wrap)?;
        let place = step.place.to_vec1::<u32>()?[0] as usize;
        for (held, buffer) in held.into_iter().zip([&keys, &values]) {
            let all = floats::decode(float, &buffer.read().map_err(wrap)?);
            let all = Tensor::from_vec(all, held.shape(), &Device::Cpu)?.to_dtype(held.dtype())?;
            held.slice_set(&all.narrow(2, place, 1)?.contiguous()?, 2, place)?;
        }
        let y = floats::decode(float, &y.read().map_err(wrap)?);
        Tensor::from_vec(y, (texts, 1, columns), &Device::Cpu)?.to_dtype(projected.dtype())
    }
}

/// Operands of a launch that it reads.
struct Tensors<'a> {
    turns: [&'a Tensor; 2],
    norms: Option<[&'a Tensor; 2]>,
    sinks: Option<&'a Tensor>,
    place: &'a Tensor,
    begins: Option<&'a Tensor>,
}

impl<'a> Tensors<'a> {
    /// All of them with their names.
    fn all(&self) -> impl Iterator<Item = (&'static str, &'a Tensor)> {
        let Self { turns: [cosines, sines], norms, sinks, place, begins } = *self;
        let always = [("place", place), ("cosines", cosines), ("sines", sines)];
        let norms = norms.into_iter().flatten().map(|tensor| ("a norm", tensor));
        let rest = [("sinks", sinks), ("begins", begins)];
        let rest = rest.into_iter().filter_map(|(name, tensor)| Some((name, tensor?)));
        always.into_iter().chain(norms).chain(rest)
    }

    /// The operands, of which `given` are those of [`all`](Self::all).
    fn operands<'b>(
        &self,
        given: &[&'b DeviceBuffer],
        projected: &'b DeviceBuffer,
        cache: [&'b DeviceBuffer; 2],
    ) -> Operands<'b> {
        let mut given = given.iter().copied();
        let mut next = || given.next().expect("one for each tensor");
        let place = next();
        let operands = Operands::new(projected, [next(), next()], place, cache);
        let operands = operands.norms(self.norms.map(|norms| norms.map(|_| next())));
        let operands = operands.sinks(self.sinks.map(|_| next()));
        operands.begins(self.begins.map(|_| next()))
    }
}
