//! Attention of one token of each text to the tokens before it, in one kernel: norms of queries and keys, their rotation, the
//! append to the cache, and the softmax, with a window and sinks where a model has them.
//!
//! [`fp4_formats::attention`] defines shapes and arithmetic. An [`Attention`] is made once per shape and launched any number of
//! times; a launch allocates nothing and learns the tokens' place from device memory, so that a recorded one serves all
//! places.
//!
//! # Example
//! Without a GPU, this runs on the emulator. With `None` in place of the folder, kernels are looked for beside the program.
//! ```
//! use std::path::Path;
//!
//! use nvfp4::attention::{Attention, AttentionOptions, AttentionShape, Operands};
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::{FloatType, HalfType, floats};
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let device = Device::open(&DeviceRequest::Auto)?;
//! let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
//! let shape = AttentionShape { texts: 1, heads: 2, kv_heads: 1, dim: 64, capacity: 16 };
//! let options = AttentionOptions::new(0.125);
//! let attention = Attention::new(&kernels, shape, HalfType::Bf16, 16, &options)?;
//!
//! let bf16 = |name: &str, values: Vec<f64>| {
//!     DeviceBuffer::upload(&device, name, &floats::encode(FloatType::Bf16, values))
//! };
//! let projected = bf16("projected", (0..4 * 64).map(|at| f64::from(at / 64)).collect())?;
//! let [cosines, sines] = [bf16("cosines", vec![1.0; 16 * 32])?, bf16("sines", vec![0.0; 16 * 32])?];
//! let cache = |name: &str| DeviceBuffer::zeroed(&device, name, 16 * 64 * 2);
//! let [keys, values] = [cache("keys")?, cache("values")?];
//! let place = DeviceBuffer::upload(&device, "place", &0u32.to_le_bytes())?;
//! let result = DeviceBuffer::poisoned(&device, "result", 2 * 64 * 2)?;
//! let operands = Operands::new(&projected, [&cosines, &sines], &place, [&keys, &values]);
//! attention.launch(&operands, &result)?;
//! // The first token sees itself alone: its value, for both heads.
//! assert_eq!(floats::decode(FloatType::Bf16, &result.read()?), vec![3.0; 2 * 64]);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::{Mutex, PoisonError};

use fp4_formats::attention::{
    self as contract, AttentionParams, MAX_GROUP, NO_WINDOW, Shared, THREADS, attention_config,
};
use fp4_formats::params::bytes;
use fp4_formats::{Arch, HalfType};
use serde::Serialize;

use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, FoundKernel, Kernels, LaunchSpec, Queue, Target};
use crate::error::{Error, Result};
use crate::setters::setters;
use crate::stream::FirstStream;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AttentionShape {
    /// Texts, each with one token.
    pub texts: usize,
    /// Heads of queries of a text.
    pub heads: usize,
    /// Heads of keys and of values: a divisor of `heads`, at least a sixteenth.
    pub kv_heads: usize,
    /// Elements of a head: 32, 64 or 128.
    pub dim: usize,
    /// Places of the cache, for each text.
    pub capacity: usize,
}

/// Options of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttentionOptions {
    /// The factor of scores. Positive.
    pub scale: f32,
    /// Places that a token sees, with its own; all without.
    pub window: Option<usize>,
    /// The addend of the mean square where queries and keys of each head have an RMSNorm with weights before they are turned.
    /// Positive.
    pub norm: Option<f32>,
}

impl AttentionOptions {
    /// Scores times `scale`, without a window and without norms.
    #[must_use]
    pub const fn new(scale: f32) -> Self {
        Self { scale, window: None, norm: None }
    }
}

setters!(AttentionOptions { window: Option<usize>, norm: Option<f32> });

/// The operands of a launch. All but places are of the attention's type.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Operands<'a> {
    /// Queries, keys and values of the tokens, `[texts, (heads + 2 kv_heads) dim]`.
    pub projected: &'a DeviceBuffer,
    /// Cosines and sines of positions, `[at least capacity, dim / 2]`.
    pub turns: [&'a DeviceBuffer; 2],
    /// Weights of the norms of queries and keys, `[dim]`.
    pub norms: Option<[&'a DeviceBuffer; 2]>,
    /// A score of each head that takes part in the softmax and has no value, `[heads]`.
    pub sinks: Option<&'a DeviceBuffer>,
    /// u32: the place of the tokens. Tokens at a place that the cache does not have become NaN.
    pub place: &'a DeviceBuffer,
    /// u32 `[texts]`: the place at which each text begins; without, all begin at the first.
    pub begins: Option<&'a DeviceBuffer>,
    /// Keys and values of the places so far, `[texts, kv_heads, capacity, dim]`, to which the tokens' own are added.
    pub cache: [&'a DeviceBuffer; 2],
}

impl<'a> Operands<'a> {
    /// Operands without norms and sinks, of texts that begin at the first place.
    #[must_use]
    pub const fn new(
        projected: &'a DeviceBuffer,
        turns: [&'a DeviceBuffer; 2],
        place: &'a DeviceBuffer,
        cache: [&'a DeviceBuffer; 2],
    ) -> Self {
        Self { projected, turns, norms: None, sinks: None, place, begins: None, cache }
    }

    /// The same with weights of the norms of queries and keys.
    #[must_use]
    pub const fn norms(self, norms: Option<[&'a DeviceBuffer; 2]>) -> Self {
        Self { norms, ..self }
    }

    /// The same with sinks.
    #[must_use]
    pub const fn sinks(self, sinks: Option<&'a DeviceBuffer>) -> Self {
        Self { sinks, ..self }
    }

    /// The same with places at which texts begin.
    #[must_use]
    pub const fn begins(self, begins: Option<&'a DeviceBuffer>) -> Self {
        Self { begins, ..self }
    }
}

/// The plan of an attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttentionPlan {
    /// Architecture of the kernel.
    pub arch: Arch,
    /// Kernel name in the PTX.
    pub kernel: &'static str,
    /// CTAs that share the places of a head of keys.
    pub splits: u32,
    /// Heads of keys of all texts.
    pub heads: u32,
    /// Bytes of a CTA's shared memory.
    pub shared_bytes: u32,
}

impl fmt::Display for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arch, kernel, splits, heads, shared_bytes } = self;
        write!(f, "{kernel}: {splits} x {heads} CTAs of {THREADS} threads for {arch}")?;
        write!(f, "\n  - {splits} CTAs share the places of each head of keys")?;
        write!(f, "\n  - {shared_bytes} bytes of shared memory")
    }
}

/// Sizes as the kernel takes them.
#[derive(Clone, Copy, Debug)]
struct Checked {
    kv_heads: u32,
    group: u32,
    capacity: u32,
    window: u32,
    expected: u32,
    /// Elements of a text's row of the projection.
    row: u32,
}

/// An attention as planned, before anything is allocated.
pub(crate) struct Planned {
    plan: AttentionPlan,
    checked: Checked,
}

impl Planned {
    /// Plans for a target.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Scalar`].
    pub fn new(
        &Target { arch, machine }: &Target,
        shape: AttentionShape,
        half: HalfType,
        expected: usize,
        options: &AttentionOptions,
    ) -> Result<Self> {
        let AttentionShape { texts, heads, kv_heads, dim, capacity } = shape;
        let AttentionOptions { scale, window, norm } = *options;
        let Some(config) = attention_config(half, dim) else {
            return Err(Error::shape("elements of a head", "32, 64 or 128", dim));
        };
        let most = MAX_GROUP as usize;
        if kv_heads == 0
            || !heads.is_multiple_of(kv_heads)
            || !(1..=most).contains(&(heads / kv_heads))
        {
            let required =
                format!("a multiple of {kv_heads}, the heads of keys, of at most {most} times");
            return Err(Error::shape("heads", required, heads));
        }
        let size = |field: &str, value: usize, most: u32| match u32::try_from(value) {
            Ok(value) if (1..=most).contains(&value) => Ok(value),
            Ok(_) | Err(_) => Err(Error::shape(field, format!("from 1 to {most}"), value)),
        };
        // The second extent of a grid is below 2^16.
        let all = size("heads of keys of all texts", texts.saturating_mul(kv_heads), 0xffff)?;
        let capacity = size("places of the cache", capacity, 1 << 30)?;
        let scalar = |field: &str, value: f32| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(Error::Scalar {
                field: field.into(),
                required: "positive and finite",
                actual: value.into(),
            }),
        };
        scalar("scale of the scores", scale)?;
        if let Some(epsilon) = norm {
            scalar("epsilon of the norm", epsilon)?;
        }
        let window = match window {
            Some(0) => return Err(Error::shape("places of the window", "at least 1", 0)),
            Some(window) if window < capacity as usize => window as u32,
            Some(_) | None => NO_WINDOW,
        };
        let expected = expected.clamp(1, capacity as usize) as u32;
        let row = (heads + 2 * kv_heads) * dim;
        let shared = Shared::of((heads / kv_heads) as u32, config.dim);
        let plan = AttentionPlan {
            arch,
            kernel: config.name,
            splits: contract::splits(all, expected.min(window), machine.sms),
            heads: all,
            shared_bytes: shared.bytes,
        };
        let checked = Checked {
            kv_heads: kv_heads as u32,
            group: (heads / kv_heads) as u32,
            capacity,
            window,
            expected,
            row: size("elements of a text's row", row, 1 << 30)?,
        };
        Ok(Self { plan, checked })
    }
}

/// Memory of several splits.
#[derive(Debug)]
struct Splits {
    sums: DeviceBuffer,
    rows: DeviceBuffer,
    /// Zeros between launches.
    ready: DeviceBuffer,
}

/// An attention, prepared on a device.
#[derive(Debug)]
pub struct Attention {
    kernels: Kernels,
    plan: AttentionPlan,
    found: FoundKernel,
    shape: AttentionShape,
    options: AttentionOptions,
    checked: Checked,
    splits: Option<Splits>,
    /// Held while a launch is queued. The stream that the memory above belongs to.
    launching: Mutex<FirstStream>,
}

impl Attention {
    /// Plans for tensors of type `half`, and allocates the memory of several CTAs that share a head. Places below `expected` are
    /// fetched ahead, and decide how many CTAs there are: results at later ones are right, too.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Scalar`] for what no kernel takes, [`DeviceError`](crate::device::DeviceError).
    pub fn new(
        kernels: &Kernels,
        shape: AttentionShape,
        half: HalfType,
        expected: usize,
        options: &AttentionOptions,
    ) -> Result<Self> {
        let device = kernels.device();
        let Planned { plan, checked } =
            Planned::new(&device.into(), shape, half, expected, options)?;
        let found = kernels.find_all([plan.kernel])?.remove(0);
        let rows = plan.heads as usize * plan.splits as usize * checked.group as usize;
        let splits = match plan.splits {
            1 => None,
            _ => Some(Splits {
                sums: DeviceBuffer::poisoned(device, "sums of splits", rows * shape.dim * 4)?,
                rows: DeviceBuffer::poisoned(device, "rows of splits", rows * 8)?,
                ready: DeviceBuffer::zeroed(device, "splits ready", plan.heads as usize * 4)?,
            }),
        };
        Ok(Self {
            kernels: kernels.clone(),
            plan,
            found,
            shape,
            options: *options,
            checked,
            splits,
            launching: Mutex::default(),
        })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &AttentionPlan {
        &self.plan
    }

    /// Queues the attention without waiting for the result `[texts, heads, dim]`; it may be called while a CUDA graph is recorded.
    /// On the emulator it is complete when it returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands of other sizes, on another device, missing, or that the options do not ask for, and
    /// where kernels of another thread's own stream use the attention's memory;
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self, operands: &Operands<'_>, result: &DeviceBuffer) -> Result<()> {
        let launching = self.launching.lock().unwrap_or_else(PoisonError::into_inner);
        let params = self.parameter_block(operands, result)?;
        launching.require("attention", self.kernels.device())?;
        let AttentionPlan { splits, heads, shared_bytes, .. } = self.plan;
        let spec = LaunchSpec {
            entry: self.found.name(),
            grid: [splits, heads, 1],
            block: [THREADS, 1, 1],
            cluster: None,
            dynamic_shared: shared_bytes,
            overlaps: true,
            params: bytes(&params),
        };
        // SAFETY: the buffers have the sizes that the parameters state, and are alive until the launch is complete, because
        // freeing device memory waits for launches. The kernel checks the place.
        unsafe { AtOnce.launch(&self.kernels, &self.found, &spec) }
    }

    fn parameter_block(
        &self,
        operands: &Operands<'_>,
        result: &DeviceBuffer,
    ) -> Result<AttentionParams> {
        let device = self.kernels.device();
        let AttentionShape { texts, heads, kv_heads, dim, capacity } = self.shape;
        let Checked { kv_heads: _, group, capacity: places, window, expected, row } = self.checked;
        let &Operands { projected, turns, norms, sinks, place, begins, cache } = operands;
        let halves = |what: &str, buffer: &DeviceBuffer, elements: usize| {
            buffer.checked(what, elements * 2, device)
        };
        let optional = |what: &str, buffer: Option<&DeviceBuffer>, bytes: usize| {
            buffer.map_or(Ok(0), |buffer| buffer.checked(what, bytes, device))
        };
        if norms.is_some() != self.options.norm.is_some() {
            let said = |is: bool| if is { "there" } else { "absent" };
            let (required, actual) = (said(self.options.norm.is_some()), said(norms.is_some()));
            return Err(Error::shape("weights of the norms", required, actual));
        }
        let turn =
            |what: &str, buffer: &DeviceBuffer| buffer.checked_from(what, capacity * dim, device);
        let cached = texts * kv_heads * capacity * dim;
        let query = halves("the projection", projected, texts * row as usize)?;
        let key = query + (heads * dim * 2) as u64;
        let [query_norm, key_norm] = norms.map_or([None; 2], |norms| norms.map(Some));
        let split = |of: fn(&Splits) -> &DeviceBuffer| {
            self.splits.as_ref().map_or(0, |splits| of(splits).address())
        };
        Ok(AttentionParams {
            query,
            key,
            value: key + (kv_heads * dim * 2) as u64,
            cosines: turn("the cosines", turns[0])?,
            sines: turn("the sines", turns[1])?,
            query_norm: optional("weights of the queries' norm", query_norm, dim * 2)?,
            key_norm: optional("weights of the keys' norm", key_norm, dim * 2)?,
            sinks: optional("the sinks", sinks, heads * 2)?,
            place: place.checked("the place", size_of::<u32>(), device)?,
            begins: optional("the places at which texts begin", begins, texts * 4)?,
            keys: halves("the keys", cache[0], cached)?,
            values: halves("the values", cache[1], cached)?,
            out: halves("the result", result, texts * heads * dim)?,
            sums: split(|splits| &splits.sums),
            rows: split(|splits| &splits.rows),
            ready: split(|splits| &splits.ready),
            row,
            kv_heads: self.checked.kv_heads,
            group,
            capacity: places,
            window,
            expected,
            epsilon: self.options.norm.unwrap_or(0.0),
            scale: self.options.scale * std::f32::consts::LOG2_E,
        })
    }
}
