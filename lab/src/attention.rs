//! The oracle of attention: operands on the host, and the result in f64 from its definition.

use fp4_formats::{FloatType, HalfType};
use nvfp4::attention::{AttentionOptions, AttentionShape, Operands};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Device;
use nvfp4::error::Result;
use nvfp4::floats;

/// Operands on the host, as [`Operands`] has them. Elements are numbers that the type has.
#[derive(Clone, Debug)]
pub struct HostOperands {
    /// Type of the tensors.
    pub half: HalfType,
    /// Queries, keys and values of the tokens.
    pub projected: Vec<f64>,
    /// Cosines and sines.
    pub turns: [Vec<f64>; 2],
    /// Weights of the norms.
    pub norms: Option<[Vec<f64>; 2]>,
    /// Sinks.
    pub sinks: Option<Vec<f64>>,
    /// The place of the tokens.
    pub place: u32,
    /// The places at which texts begin.
    pub begins: Option<Vec<u32>>,
    /// Keys and values so far.
    pub cache: [Vec<f64>; 2],
}

/// Operands on a device.
#[derive(Debug)]
pub struct Uploaded {
    projected: DeviceBuffer,
    turns: [DeviceBuffer; 2],
    norms: Option<[DeviceBuffer; 2]>,
    sinks: Option<DeviceBuffer>,
    /// The place of the tokens.
    pub place: DeviceBuffer,
    begins: Option<DeviceBuffer>,
    /// Keys and values.
    pub cache: [DeviceBuffer; 2],
}

impl HostOperands {
    /// Copies them to a device.
    ///
    /// # Errors
    /// [`DeviceError`](nvfp4::device::DeviceError).
    pub fn upload(&self, device: &Device) -> Result<Uploaded> {
        let halves = |name: &str, values: &[f64]| {
            let bytes = floats::encode(self.half.float(), values.iter().copied());
            DeviceBuffer::upload(device, name, &bytes)
        };
        let words = |name: &str, words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            DeviceBuffer::upload(device, name, &bytes)
        };
        let pair = |names: [&str; 2], [a, b]: &[Vec<f64>; 2]| {
            Ok::<_, nvfp4::Error>([halves(names[0], a)?, halves(names[1], b)?])
        };
        let norms = self.norms.as_ref().map(|norms| pair(["query norm", "key norm"], norms));
        Ok(Uploaded {
            projected: halves("projected", &self.projected)?,
            turns: pair(["cosines", "sines"], &self.turns)?,
            norms: norms.transpose()?,
            sinks: self.sinks.as_ref().map(|sinks| halves("sinks", sinks)).transpose()?,
            place: words("place", &[self.place])?,
            begins: self.begins.as_ref().map(|begins| words("begins", begins)).transpose()?,
            cache: pair(["keys", "values"], &self.cache)?,
        })
    }
}

impl Uploaded {
    /// The operands of a launch.
    #[must_use]
    pub fn operands(&self) -> Operands<'_> {
        let Self { projected, turns, norms, sinks, place, begins, cache } = self;
        Operands::new(projected, turns.each_ref(), place, cache.each_ref())
            .norms(norms.as_ref().map(<[_; 2]>::each_ref))
            .sinks(sinks.as_ref())
            .begins(begins.as_ref())
    }
}

/// A result in f64.
#[derive(Clone, Debug)]
pub struct Exact {
    /// `[texts, heads, dim]`.
    pub result: Vec<f64>,
    /// The same of the values' magnitudes: errors are parts of it.
    pub magnitudes: Vec<f64>,
    /// The tokens' keys and values as the cache gets them, `[texts, kv_heads, dim]`.
    pub appended: [Vec<f64>; 2],
}

/// The nearest number of a type.
fn rounded(half: HalfType, value: f64) -> f64 {
    floats::decode(half.float(), &floats::encode(half.float(), [value]))[0].into()
}

/// A head after its norm and rotation, rounded.
fn turned(
    half: HalfType,
    head: &[f64],
    (norm, epsilon): (Option<&[f64]>, Option<f32>),
    [cosines, sines]: [&[f64]; 2],
) -> Vec<f64> {
    let dim = head.len();
    let mean = head.iter().map(|x| x * x).sum::<f64>() / dim as f64;
    let factor = epsilon.map_or(1.0, |epsilon| (mean + f64::from(epsilon)).sqrt().recip());
    let x = |at: usize| head[at] * factor * norm.map_or(1.0, |norm| norm[at]);
    let turned = |at: usize| {
        let pair = at % (dim / 2);
        let (low, high) = (x(pair), x(pair + dim / 2));
        match at < dim / 2 {
            true => low * cosines[pair] - high * sines[pair],
            false => high * cosines[pair] + low * sines[pair],
        }
    };
    (0..dim).map(|at| rounded(half, turned(at))).collect()
}

/// Attention in f64 of heads that are rounded as the cache is. The place is one that the cache has.
#[must_use]
pub fn exact(shape: AttentionShape, options: &AttentionOptions, operands: &HostOperands) -> Exact {
    let AttentionShape { texts, heads, kv_heads, dim, capacity } = shape;
    let HostOperands { half, projected, turns, norms, sinks, place, begins, cache } = operands;
    let (place, row) = (*place as usize, (heads + 2 * kv_heads) * dim);
    let mut exact =
        Exact { result: Vec::new(), magnitudes: Vec::new(), appended: [Vec::new(), Vec::new()] };
    for text in 0..texts {
        let own = &projected[text * row..(text + 1) * row];
        let begin = begins.as_ref().map_or(0, |begins| begins[text] as usize).min(place);
        let hidden = options.window.map_or(0, |window| (place + 1).saturating_sub(window));
        let table = turns.each_ref().map(|table| &table[(place - begin) * dim / 2..][..dim / 2]);
        let weights =
            |which: usize| (norms.as_ref().map(|norms| norms[which].as_slice()), options.norm);
        let head = |at: usize| &own[at * dim..(at + 1) * dim];
        for of_text in 0..kv_heads {
            let key = turned(*half, head(heads + of_text), weights(1), table);
            let value = head(heads + kv_heads + of_text);
            let from = (text * kv_heads + of_text) * capacity * dim;
            let seen: Vec<[&[f64]; 2]> = (begin.max(hidden)..place)
                .map(|at| cache.each_ref().map(|all| &all[from + at * dim..][..dim]))
                .chain([[&key[..], value]])
                .collect();
            for at in of_text * (heads / kv_heads)..(of_text + 1) * (heads / kv_heads) {
                let query = turned(*half, head(at), weights(0), table);
                let dot = |key: &[f64]| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
                let scores: Vec<f64> =
                    seen.iter().map(|[key, _]| dot(key) * f64::from(options.scale)).collect();
                let sink = sinks.as_ref().map(|sinks| sinks[at]);
                let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let shares: Vec<f64> = scores.iter().map(|x| (x - largest).exp()).collect();
                let sum = shares.iter().sum::<f64>() + sink.map_or(0.0, |x| (x - largest).exp());
                let mixed = |column: usize, of: fn(f64) -> f64| {
                    let of_place =
                        |(share, [_, value]): (&f64, &[&[f64]; 2])| share * of(value[column]);
                    shares.iter().zip(&seen).map(of_place).sum::<f64>() / sum
                };
                exact.result.extend((0..dim).map(|column| mixed(column, |x| x)));
                exact.magnitudes.extend((0..dim).map(|column| mixed(column, f64::abs)));
            }
            exact.appended[0].extend(&key);
            exact.appended[1].extend(value);
        }
    }
    exact
}

/// The first element of a result that is not within `parts` of half a unit in the last place of its magnitude: its place, and what it
/// is and should be.
#[must_use]
pub fn first_wrong(
    half: HalfType,
    got: &[f32],
    exact: &Exact,
    parts: f64,
) -> Option<(usize, f32, f64)> {
    let unit = match half.float() {
        FloatType::F16 => 2f64.powi(-11),
        FloatType::Bf16 => 2f64.powi(-8),
        FloatType::F32 => 2f64.powi(-24),
    };
    let Exact { result, magnitudes, .. } = exact;
    let is_right = |at: usize| {
        let bound = parts * unit * magnitudes[at] + 2f64.powi(-24);
        (f64::from(got[at]) - result[at]).abs() <= bound
    };
    (0..result.len()).find(|&at| !is_right(at)).map(|at| (at, got[at], result[at]))
}
