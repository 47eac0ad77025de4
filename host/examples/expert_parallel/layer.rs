//! A mixture of experts whose weights and tokens are random, and the same in every process.

use std::thread;
use std::time::Duration;

use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};
use nvfp4::error::Result;
use nvfp4::gemm::{ActivationKind, DeviceWeights, GatedWeights, HalfMatrix, Repacked};
use nvfp4::moe::{MoeBiases, MoeInputs, MoeLayer, MoeMemory, MoeOptions, MoeShape, TokenFormat};
use nvfp4::parallel::{ExpertPlaces, Experts, ExpertsShape, HostExchange};
use nvfp4::quantize::{Format, TensorScale, quantize};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::{FloatType, HalfType, Nvfp4, ScaleLayout};
use nvfp4_lab::rng::SplitMix64;

/// Experts with weights of their own; others have the same as one of these.
const DISTINCT: usize = 4;

/// Sizes of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Experts of all ranks.
    pub experts: usize,
    /// Experts that a token chooses.
    pub top_k: usize,
    /// Columns of tokens.
    pub hidden: usize,
    /// Columns between the products.
    pub between: usize,
}

/// The form of rows, on the way to their experts and in the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 16 bits.
    Bf16,
    /// e4m3 with a scale for each row.
    E4m3,
    /// NVFP4 with a scale for each row.
    Fp4,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::E4m3, Self::Fp4];

    /// The layer's options. Results have 16 bits on the way back.
    pub fn options(self) -> MoeOptions {
        let quantized = match self {
            Self::Bf16 => None,
            Self::E4m3 => Some(TokenFormat::Fp8),
            Self::Fp4 => Some(TokenFormat::ScaledRows),
        };
        let bf16 = FloatType::Bf16;
        MoeOptions::new().quantized(quantized).rows(bf16).output(bf16)
    }
}

/// Weights in host memory.
pub struct Mixture {
    /// Gate, up and down.
    experts: Vec<[BlockScaled<Nvfp4>; 3]>,
}

impl Mixture {
    /// Random weights.
    pub fn random(sizes: Sizes) -> Result<Self> {
        let Sizes { hidden, between, .. } = sizes;
        let mut rng = SplitMix64::new(5);
        let mut matrix = |name, rows: usize, columns: usize| {
            let deviation = (columns as f64).sqrt().recip();
            let values: Vec<f32> =
                (0..rows * columns).map(|_| (rng.normal() * deviation) as f32).collect();
            let dims = Dims::new(1, rows, columns)?;
            quantize(name, &values, dims, TensorScale::FromAmax, ScaleLayout::Linear)
        };
        let mut expert = || {
            let [gate, up] = ["gate", "up"].map(|name| matrix(name, between, hidden));
            Ok([gate?, up?, matrix("down", hidden, between)?])
        };
        let experts = (0..DISTINCT).map(|_| expert()).collect::<Result<_>>()?;
        Ok(Self { experts })
    }

    /// The weights of some experts on a device.
    pub fn place(
        &self,
        device: &Device,
        experts: &[usize],
        form: Form,
    ) -> Result<[DeviceWeights; 2]> {
        let kind: ActivationKind = form.options().activations(HalfType::Bf16, Format::Nvfp4);
        let parts = |part: &dyn Fn(&[BlockScaled<Nvfp4>; 3]) -> Result<Repacked>| {
            let distinct = self.experts.iter().map(part).collect::<Result<Vec<_>>>()?;
            let all = experts.iter().map(|expert| (&distinct[expert % DISTINCT], 1.0));
            Repacked::stack_scaled(all)?.upload(device)
        };
        let first =
            parts(&|[gate, up, _]| Repacked::gated(device, &GatedWeights::pair(gate, up)?, kind))?;
        let second = parts(&|[_, _, down]| Repacked::for_device(device, down, kind))?;
        Ok([first, second])
    }
}

/// Tokens with their choices.
pub struct Tokens {
    /// Tokens.
    pub count: usize,
    x: HalfMatrix,
    /// The experts of each token.
    pub ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Tokens {
    /// `count` tokens of each of some ranks, whose choices are equally likely.
    pub fn random(sizes: Sizes, ranks: &[usize], count: usize) -> Result<Self> {
        let Sizes { experts, top_k, hidden, .. } = sizes;
        let (mut values, mut ids) = (Vec::new(), Vec::new());
        for &rank in ranks {
            let mut rng = SplitMix64::new(100 + rank as u64);
            for _ in 0..count {
                values.extend((0..hidden).map(|_| rng.normal() as f32));
                let mut own: Vec<i32> = Vec::new();
                while own.len() < top_k {
                    let id = rng.below(experts as u32) as i32;
                    if !own.contains(&id) {
                        own.push(id);
                    }
                }
                ids.extend(own);
            }
        }
        let count = count * ranks.len();
        let dims = Dims::new(1, count, hidden)?;
        let x = HalfMatrix::round("x", dims, HalfType::Bf16, &values)?;
        let weights = vec![(top_k as f32).recip(); ids.len()];
        Ok(Self { count, x, ids, weights })
    }

    /// Copies to a device.
    pub fn upload(&self, device: &Device) -> Result<OnDevice> {
        let ids: Vec<u8> = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let weights: Vec<u8> =
            self.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        Ok(OnDevice {
            x: DeviceBuffer::upload(device, "x", self.x.bytes())?,
            ids: DeviceBuffer::upload(device, "ids", &ids)?,
            weights: DeviceBuffer::upload(device, "weights", &weights)?,
        })
    }
}

/// Tokens on a device.
pub struct OnDevice {
    x: DeviceBuffer,
    ids: DeviceBuffer,
    weights: DeviceBuffer,
}

impl OnDevice {
    /// The inputs of a launch.
    pub fn inputs(&self) -> MoeInputs<'_> {
        let Self { x, ids, weights } = self;
        MoeInputs { activations: x, ids, weights, shared: None }
    }
}

/// A layer of all experts on one device.
pub struct Whole<'a> {
    layer: MoeLayer,
    memory: MoeMemory,
    tokens: OnDevice,
    weights: &'a [DeviceWeights; 2],
    out: DeviceBuffer,
}

impl<'a> Whole<'a> {
    /// Plans it and copies the tokens.
    pub fn new(
        kernels: &Kernels,
        sizes: Sizes,
        tokens: &Tokens,
        weights: &'a [DeviceWeights; 2],
        options: &MoeOptions,
    ) -> Result<Self> {
        let Sizes { experts, top_k, .. } = sizes;
        let shape = MoeShape { tokens: tokens.count, top_k, experts, first: 0, count: experts };
        let [first, second] = weights;
        let layer = MoeLayer::new(kernels, shape, first, second, HalfType::Bf16, options)?;
        let out = DeviceBuffer::poisoned(kernels.device(), "out", layer.out_bytes())?;
        let memory = layer.memory()?;
        Ok(Self { layer, memory, tokens: tokens.upload(kernels.device())?, weights, out })
    }

    /// Queues it.
    pub fn launch(&self) -> Result<()> {
        let Self { layer, memory, tokens, weights, out } = self;
        layer.launch(&tokens.inputs(), weights.each_ref(), memory, out, MoeBiases::default())
    }

    /// The result of the last launch.
    pub fn result(&self) -> Result<Vec<u8>> {
        self.out.read()
    }
}

/// Rows that a rank may have for another one: what random choices need, and a quarter more than their mean.
pub fn capacity(places: &ExpertPlaces, sizes: Sizes, count: usize) -> Result<usize> {
    let (ranks, all) = (places.ranks(), count * sizes.top_k);
    let mut most = (all * 5).div_ceil(4 * ranks);
    let experts: Vec<Vec<usize>> = (0..ranks).map(|rank| places.experts(rank)).collect();
    for rank in 0..ranks {
        let ids = Tokens::random(sizes, &[rank], count)?.ids;
        for experts in &experts {
            let here = |id: &&i32| experts.binary_search(&(**id as usize)).is_ok();
            most = most.max(ids.iter().filter(here).count());
        }
    }
    Ok(most.min(all))
}

/// Whether several devices, each on its own thread, give the bits of one.
pub fn agrees(
    sizes: Sizes,
    form: Form,
    [ranks, count]: [usize; 2],
    open: impl Fn() -> Result<Kernels> + Sync,
) -> Result<bool> {
    let (mixture, places) = (Mixture::random(sizes)?, ExpertPlaces::even(sizes.experts, ranks)?);
    let options = form.options().batch_invariant(true);
    let capacity = capacity(&places, sizes, count)?;
    let one = |end: HostExchange, rank: usize| -> Result<Vec<u8>> {
        let kernels = open()?;
        let weights = mixture.place(kernels.device(), &places.experts(rank), form)?;
        let shape = ExpertsShape { tokens: count, top_k: sizes.top_k, capacity };
        let place = (&places, rank);
        let experts =
            Experts::new(&kernels, shape, place, weights.each_ref(), HalfType::Bf16, &options)?;
        let memory = experts.memory()?;
        let tokens = Tokens::random(sizes, &[rank], count)?.upload(kernels.device())?;
        let out = DeviceBuffer::poisoned(kernels.device(), "out", experts.out_bytes())?;
        let (inputs, biases) = (tokens.inputs(), MoeBiases::default());
        experts.launch(&inputs, weights.each_ref(), &memory, &end, &out, biases)?;
        memory.problem()?;
        out.read()
    };
    let results = thread::scope(|scope| {
        let one = &one;
        let ends = HostExchange::all(ranks, Duration::from_secs(300)).into_iter().zip(0..);
        let threads: Vec<_> = ends.map(|(end, rank)| scope.spawn(move || one(end, rank))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Vec<u8>>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let (kernels, all) = (open()?, (0..ranks).collect::<Vec<_>>());
    let every: Vec<usize> = (0..sizes.experts).collect();
    let weights = mixture.place(kernels.device(), &every, form)?;
    let tokens = Tokens::random(sizes, &all, count)?;
    let whole = Whole::new(&kernels, sizes, &tokens, &weights, &options)?;
    whole.launch()?;
    Ok(results.concat() == whole.result()?)
}
