//! Steps: places in the cache, positions and masks, which all layers share.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Tensor};

use crate::error::shape;

/// A step's tokens: the same for all layers.
pub(super) enum Step {
    /// One token of each text, for the kernel that has all that attention does.
    Fused(Fused),
    /// Tokens for candle's operations.
    Apart(Apart),
}

impl Step {
    /// The step of `tokens` tokens from the place `begin` on, of texts that begin at the places `pads`. `tables` are cosines
    /// and sines of all positions. One token of each text is for the kernel where `fuses` says so.
    pub fn new(
        windows: &[Option<usize>],
        tables: &[Tensor; 2],
        pads: &[usize],
        [begin, tokens]: [usize; 2],
        fuses: bool,
    ) -> Result<Self> {
        if !fuses || tokens != 1 {
            return Apart::new(windows, tables, pads, [begin, tokens]).map(Self::Apart);
        }
        let device = tables[0].device();
        let place = Tensor::from_vec(vec![begin as u32], 1, device)?;
        let expected = expected_places(begin, tables[0].dim(0)?);
        let (begins, tables) = (begins(pads, device)?, tables.clone());
        Ok(Self::Fused(Fused { place, begins, tables, expected }))
    }

    /// The step for candle's operations.
    ///
    /// # Errors
    /// For one that is for the kernel.
    pub fn apart(&self) -> Result<&Apart> {
        match self {
            Self::Apart(step) => Ok(step),
            Self::Fused(_) => Err(shape("a step", "for candle's operations", "for the kernel")),
        }
    }
}

/// Places of the cache by which steps look at more of it, of `capacity`: a step at `place` looks at those below the result.
pub(super) fn expected_places(place: usize, capacity: usize) -> usize {
    const STRIDE: usize = 256;
    (place + 1).next_multiple_of(STRIDE).min(capacity)
}

/// The places at which texts begin, u32 `[texts]`, if not all begin at the first.
fn begins(pads: &[usize], device: &Device) -> Result<Option<Tensor>> {
    if pads.iter().all(|&pad| pad == 0) {
        return Ok(None);
    }
    let begins: Vec<u32> = pads.iter().map(|&pad| pad as u32).collect();
    Tensor::from_vec(begins, pads.len(), device).map(Some)
}

/// One token of each text, whose place the device knows.
pub(super) struct Fused {
    /// u32 `[1]`: the place in the cache.
    pub place: Tensor,
    /// u32 `[texts]`: the place at which each text begins, if not all begin at the first.
    pub begins: Option<Tensor>,
    /// Cosines and sines of all positions.
    pub tables: [Tensor; 2],
    /// The end of the places that are expected to be looked at.
    pub expected: usize,
}

/// Tokens with what candle's operations need of them.
pub(super) struct Apart {
    place: Place,
    /// The place behind the last one that is looked at.
    end: usize,
    /// Cosines and sines of the tokens' positions.
    rope: [Tensor; 2],
    /// The windows that the model has, each with the sums for scores: 0, and minus infinity for hidden tokens.
    masks: Vec<(Option<usize>, Option<Tensor>)>,
}

/// The place of a step's first token in the cache.
pub(super) enum Place {
    /// A number that the host knows.
    Host(usize),
    /// The number for each element of a layer's keys, `[texts, heads, 1, elements of a head]`, and of its values, in the memory of
    /// the device.
    Device([Tensor; 2]),
}

impl Apart {
    fn new(
        windows: &[Option<usize>],
        tables: &[Tensor; 2],
        pads: &[usize],
        [begin, tokens]: [usize; 2],
    ) -> Result<Self> {
        let device = tables[0].device();
        let is_even = pads.iter().all(|&pad| pad == 0);
        let of_table = |table: &Tensor| -> Result<Tensor> {
            if is_even {
                return table.narrow(0, begin, tokens)?.contiguous();
            }
            let places = |&pad: &usize| {
                (begin..begin + tokens).map(move |place| place.saturating_sub(pad) as u32)
            };
            let positions: Vec<u32> = pads.iter().flat_map(places).collect();
            let positions = Tensor::from_vec(positions, pads.len() * tokens, device)?;
            table.index_select(&positions, 0)?.reshape((pads.len(), tokens, ()))
        };
        let rope = [of_table(&tables[0])?, of_table(&tables[1])?];
        let masks = of_each(windows, |window| {
            mask(window, pads, [begin, tokens], tables[0].dtype(), device)
        })?;
        Ok(Self { place: Place::Host(begin), end: begin + tokens, rope, masks })
    }

    /// The place of the first token.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The first place that the step looks at through a window, and the number of places.
    pub fn looks_at(&self, window: Option<usize>) -> [usize; 2] {
        let from = match self.place {
            Place::Host(begin) => first_seen(window, begin),
            Place::Device(_) => 0,
        };
        [from, self.end - from]
    }

    /// Cosines and sines.
    pub fn rope(&self) -> [&Tensor; 2] {
        self.rope.each_ref()
    }

    /// The sums for scores of the places that are looked at through a window, if any is hidden.
    pub fn mask(&self, window: Option<usize>) -> Option<&Tensor> {
        self.masks.iter().find(|(own, _)| *own == window)?.1.as_ref()
    }
}

/// A value for each of the windows, once.
fn of_each<T>(
    windows: &[Option<usize>],
    value: impl Fn(Option<usize>) -> Result<T>,
) -> Result<Vec<(Option<usize>, T)>> {
    let mut all: Vec<(Option<usize>, T)> = Vec::new();
    for &window in windows {
        if all.iter().all(|(known, _)| *known != window) {
            all.push((window, value(window)?));
        }
    }
    Ok(all)
}

/// The first place that a token of the step sees through a window.
fn first_seen(window: Option<usize>, begin: usize) -> usize {
    window.map_or(0, |window| (begin + 1).saturating_sub(window))
}

/// The mask `[texts, 1, tokens, places]` from the first place that is seen on; `None` if nothing is hidden.
fn mask(
    window: Option<usize>,
    pads: &[usize],
    [begin, tokens]: [usize; 2],
    dtype: DType,
    device: &Device,
) -> Result<Option<Tensor>> {
    let from = first_seen(window, begin);
    let even = pads.iter().all(|&pad| pad <= from);
    if even && tokens == 1 {
        return Ok(None);
    }
    let (pads, end) = (if even { &pads[..1] } else { pads }, begin + tokens);
    let mut values = Vec::with_capacity(pads.len() * tokens * (end - from));
    for &pad in pads {
        for query in begin..end {
            // A place before a text sees itself, so that its scores, which nobody uses, are numbers.
            values.extend((from..end).map(|key| {
                let seen =
                    key <= query && key >= pad && window.is_none_or(|window| query - key < window);
                if seen || key == query { 0f32 } else { f32::NEG_INFINITY }
            }));
        }
    }
    let mask = Tensor::from_vec(values, (pads.len(), 1, tokens, end - from), &Device::Cpu)?;
    mask.to_dtype(dtype)?.to_device(device).map(Some)
}

/// The inputs of steps of one token of each text. From step to step only their values change, so that the operations of a step
/// can be recorded.
pub(super) struct Inputs {
    /// Place in the cache, at a multiple of 16 bytes as kernels need it, then positions of the tokens, and the tokens:
    /// `[FIRST_POSITION + 2 * texts]`.
    numbers: Tensor,
    /// Ones, as many as there are numbers before the tokens.
    ones: Tensor,
    pads: Vec<usize>,
    /// The place at which each text begins, if not all begin at the first: `[texts]`.
    begins: Option<Tensor>,
    /// Inputs of candle's operations; none for the kernel.
    masks: Option<Masks>,
}

/// Numbers of the host that take the place of a whole tensor's.
struct Written<'a>(&'a [u32]);

impl InplaceOp1 for Written<'_> {
    fn name(&self) -> &'static str {
        "nvfp4-inputs"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        match storage {
            CpuStorage::U32(numbers) => numbers.copy_from_slice(self.0),
            other => return Err(shape("type of the inputs", "u32", other.dtype().as_str())),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let device = storage.device().clone();
        device.memcpy_htod(self.0, storage.as_cuda_slice_mut::<u32>()?)
    }
}

/// The first position among [`Inputs::numbers`].
const FIRST_POSITION: usize = 4;

/// Inputs of candle's operations.
struct Masks {
    /// The places of the cache, `[places]`, and for each window the first place that no longer sees through it.
    places: Tensor,
    beyond: Vec<(Option<usize>, Option<Tensor>)>,
    /// The sums for scores of a place that is seen, and of a hidden one: `[1]`.
    sums: [Tensor; 2],
    /// Heads of queries; heads of the cache, and elements of a key and of a value.
    sizes: (usize, [usize; 3]),
}

impl Masks {
    fn new(
        windows: &[Option<usize>],
        capacity: usize,
        sizes: (usize, [usize; 3]),
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        // A window beyond the cache hides nothing.
        let every = |ahead: usize| {
            let ahead = ahead.min(capacity);
            let places: Vec<u32> = (ahead..ahead + capacity).map(|at| at as u32).collect();
            Tensor::from_vec(places, capacity, device)
        };
        let sum = |sum: f32| Tensor::full(sum, 1, &Device::Cpu)?.to_dtype(dtype)?.to_device(device);
        Ok(Self {
            places: every(0)?,
            beyond: of_each(windows, |window| window.map(every).transpose())?,
            sums: [sum(0.)?, sum(f32::NEG_INFINITY)?],
            sizes,
        })
    }
}

impl Inputs {
    /// Inputs for texts that begin at the places `pads` of a cache with `capacity` places. The steps are for the kernel where
    /// `fuses` says so.
    pub fn new(
        windows: &[Option<usize>],
        pads: &[usize],
        (capacity, fuses): (usize, bool),
        sizes: (usize, [usize; 3]),
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        let masks = match fuses {
            true => None,
            false => Some(Masks::new(windows, capacity, sizes, (dtype, device))?),
        };
        Ok(Self {
            numbers: Tensor::zeros(FIRST_POSITION + 2 * pads.len(), DType::U32, device)?,
            ones: Tensor::ones(FIRST_POSITION + pads.len(), DType::U32, device)?,
            pads: pads.to_vec(),
            begins: begins(pads, device)?,
            masks,
        })
    }

    /// Sets the tokens, which go to the place `place`.
    pub fn set(&self, tokens: &[u32], place: usize) -> Result<()> {
        let mut numbers = vec![0; FIRST_POSITION];
        numbers[0] = place as u32;
        numbers.extend(self.pads.iter().map(|&pad| place.saturating_sub(pad) as u32));
        numbers.extend(tokens);
        self.numbers.inplace_op1(&Written(&numbers))
    }

    /// Sets place and positions to those of the next step.
    pub fn advance(&self) -> Result<()> {
        let next = (self.numbers.narrow(0, 0, FIRST_POSITION + self.pads.len())? + &self.ones)?;
        self.numbers.slice_set(&next, 0, 0)
    }

    /// The tokens, `[texts]`, in the memory that steps take them from.
    pub fn tokens(&self) -> Result<Tensor> {
        let texts = self.pads.len();
        self.numbers.narrow(0, FIRST_POSITION + texts, texts)
    }

    /// The step of the tokens, which looks at all places below `end`.
    pub fn step(&self, tables: &[Tensor; 2], end: usize) -> Result<Step> {
        let texts = self.pads.len();
        let place = self.numbers.narrow(0, 0, 1)?;
        let Some(masks) = &self.masks else {
            let (begins, tables) = (self.begins.clone(), tables.clone());
            return Ok(Step::Fused(Fused { place, begins, tables, expected: end }));
        };
        let Masks { places, beyond, sums, sizes: (heads, [kv_heads, key, value]) } = masks;
        let positions = self.numbers.narrow(0, FIRST_POSITION, texts)?;
        let of_table = |table: &Tensor| table.index_select(&positions, 0)?.reshape((texts, 1, ()));
        let rope = [of_table(&tables[0])?, of_table(&tables[1])?];
        let places = places.narrow(0, 0, end)?;
        let until_now = places.broadcast_le(&place)?.unsqueeze(0)?;
        let of_texts = match &self.begins {
            Some(begins) => {
                let begun = places.unsqueeze(0)?.broadcast_ge(&begins.unsqueeze(1)?)?;
                until_now.broadcast_mul(&begun)?
            }
            None => until_now,
        };
        let mask = |beyond: &Option<Tensor>| -> Result<Option<Tensor>> {
            let seen = match beyond {
                Some(beyond) => {
                    let within = beyond.narrow(0, 0, end)?.broadcast_gt(&place)?.unsqueeze(0)?;
                    of_texts.broadcast_mul(&within)?
                }
                None => of_texts.clone(),
            };
            let [seen_sum, hidden] = sums.each_ref().map(|sum| sum.broadcast_as(seen.shape()));
            let sums = seen.where_cond(&seen_sum?, &hidden?)?.unsqueeze(1)?.unsqueeze(1)?;
            // One for each head, so that no layer spreads it again.
            sums.broadcast_as((texts, *heads, 1, end))?.contiguous().map(Some)
        };
        let masks = beyond.iter().map(|(window, beyond)| Ok((*window, mask(beyond)?)));
        let index = |dim: usize| place.broadcast_as((texts, *kv_heads, 1, dim))?.contiguous();
        let of_keys = index(*key)?;
        let of_values = if value == key { of_keys.clone() } else { index(*value)? };
        Ok(Step::Apart(Apart {
            place: Place::Device([of_keys, of_values]),
            end,
            rope,
            masks: masks.collect::<Result<_>>()?,
        }))
    }
}
