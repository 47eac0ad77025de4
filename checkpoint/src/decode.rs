//! Weights in FP8, in e2m1 and in packed integers, decoded to f32: the sources of `quantize` and the other layers of
//! `dequantize`.
//!
//! | encoding | codes | scales of `m.weight` |
//! | --- | --- | --- |
//! | FP8 | F8_E4M3 or F8_E5M2 `[.., N, K]` | multipliers of the tensor, of rows or of blocks: `m.weight_scale_inv` (DeepSeek), `m.weight_scale` (ModelOpt, compressed-tensors), `m.scale` (DeepSeek V4), `m.qscale_weight` (Mistral); F32, F16, BF16, and E8M0 as F8_E8M0 or U8 |
//! | DeepSeek V4's experts | I8 `[N, K/2]`, two e2m1 codes each | `m.scale` F8_E8M0 `[N, K/32]` |
//! | compressed-tensors' integers | `m.weight_packed` I32 `[N, K/8]` | `m.weight_scale` `[N, K/g]`, `m.weight_zero_point`, `m.weight_g_idx` |
//! | GPTQ | `m.qweight` I32 `[K/8, N]` | `m.scales` `[K/g, N]`, `m.qzeros`, one less than the zero points, `m.g_idx` |
//! | MLX's integers | `m.weight` U32 `[.., N, K * bits / 32]` | `m.scales`, `m.biases` `[.., N, K/g]` |
//! | GGUF's Q8_0 | `m.weight`, blocks of an F16 scale and 32 integers | in the blocks |
//! | AWQ | `m.qweight` I32 `[K, N/8]` | `m.scales` `[K/g, N]`, `m.qzeros`, both in the order 0, 2, 4, 6, 1, 3, 5, 7 |
//!
//! A value is the code, less the zero point, times the scale, rounded once to f32: exact for every type of
//! scales except F32.

use fp4_formats::{e2m1, e4m3, pack, ue8m0};
use half::f16;
use nvfp4_gguf::Kind;
use rayon::prelude::*;
use safetensors::tensor::Dtype;
use serde_json::Value;

use super::error::CheckpointError;
use super::file::{Checkpoint, FloatTensor};
use super::ggml;
use super::mlx_integers::Integers;
use super::model::Model;
use super::weight::module;
use crate::error::Result;
use nvfp4::error::filled;

/// The columns of AWQ that the nibbles of a word hold, the lowest nibble first.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Sides of blocks that are tried where the configuration states none.
const SIDES: [usize; 4] = [128, 32, 64, 16];

/// A weight that is stored in FP8 or in packed integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    /// Name of the tensor before it was quantised.
    pub name: String,
    /// Its shape, `[.., N, K]`.
    pub shape: Vec<usize>,
    /// The tensors that hold it, its codes first, scales of inputs included.
    pub tensors: Vec<String>,
    encoding: Encoding,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Encoding {
    /// A scale for each `block` of `[rows, columns]`; without scales, codes are values.
    Fp8 {
        scales: Option<String>,
        block: [usize; 2],
    },
    Packed(Packed),
    Gptq {
        bits: u32,
        zero_is_less_one: bool,
    },
    Awq,
    /// Pairs of e2m1 codes in I8, the element of lower index in the low nibble, and E8M0 scales of 32.
    E2m1 {
        scales: String,
    },
    /// ggml's blocks of 32 integers after an F16 scale.
    Q8_0,
    Mlx(Integers),
}

/// compressed-tensors' integers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packed {
    bits: u32,
    scales: String,
    zeros: Option<String>,
    groups: Option<String>,
}

/// The name of the weight whose codes a tensor holds, if it can be such a tensor.
pub(super) fn weight_of(name: &str, dtype: Dtype, rank: usize) -> Option<String> {
    match dtype {
        Dtype::F8_E4M3 | Dtype::F8_E5M2 if rank >= 2 && !name.ends_with("_scale") => {
            Some(name.into())
        }
        // Blocks of GGUF, and codes with E8M0 scales; the integers of others are not read.
        Dtype::I8 if rank >= 2 => Some(name.into()),
        // MLX's integers, if there are biases.
        Dtype::U32 if rank >= 2 && name.ends_with(".weight") => Some(name.into()),
        Dtype::I32 if rank == 2 => match name.strip_suffix("weight_packed") {
            Some(of) => Some(format!("{of}weight")),
            None => name.strip_suffix("qweight").map(|of| format!("{of}weight")),
        },
        _ => None,
    }
}

impl Encoded {
    /// Finds the encoding of a weight; `None` if it is stored as floats, or not at all.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`], [`CheckpointError::Type`] and [`CheckpointError::Shape`] for
    /// scales that are missing or do not fit the codes.
    pub fn of(model: &Model, name: &str) -> Result<Option<Self>> {
        if let Ok(raw) = model.raw(name) {
            if raw.shape.contains(&0) {
                return Ok(None);
            }
            if model.kind(name) == Some(Kind::Q8_0) && raw.shape.len() >= 2 {
                let (name, tensors) = (name.to_owned(), vec![name.to_owned()]);
                let shape = ggml::shape(Kind::Q8_0, &raw.shape);
                return Ok(Some(Self { name, shape, tensors, encoding: Encoding::Q8_0 }));
            }
            return match weight_of(name, raw.dtype, raw.shape.len()) {
                Some(_) if raw.dtype == Dtype::I8 => Self::e2m1(model, name),
                Some(_) if raw.dtype == Dtype::U32 => Self::mlx(model, name),
                Some(_) => Self::fp8(model, name).map(Some),
                None => Ok(None),
            };
        }
        let Some(of) = name.strip_suffix("weight") else { return Ok(None) };
        let is_packed = |codes: &str| model.raw(codes).is_ok_and(|raw| raw.dtype == Dtype::I32);
        let (packed, words) = (format!("{of}weight_packed"), format!("{of}qweight"));
        if is_packed(&packed) {
            return Self::packed(model, name, packed).map(Some);
        }
        if is_packed(&words) {
            return Self::words(model, name, of, words).map(Some);
        }
        Ok(None)
    }

    fn fp8(model: &Model, name: &str) -> Result<Self> {
        let of = module(name);
        let shape = model.raw(name)?.shape;
        let mut names = vec![format!("{name}_scale_inv"), format!("{name}_scale")];
        names.extend([format!("{of}.scale"), format!("{of}.qscale_weight")]);
        names.push(format!("{name}_weight_scale"));
        let scales = names.into_iter().find(|scales| model.contains(scales));
        let mut tensors = vec![name.to_owned()];
        tensors.extend(scales.clone());
        let inputs = ["input_scale", "activation_scale", "qscale_act"];
        let inputs = inputs.map(|input| format!("{of}.{input}"));
        let inputs = inputs.into_iter().chain([format!("{name}_input_scale")]);
        tensors.extend(inputs.filter(|input| model.contains(input)));
        let block = match &scales {
            Some(scales) => block_of(model, name, &shape, scales)?,
            // Codes that a configuration calls quantised mean nothing without their scales.
            None if model.quantization_config().is_some() => {
                model.raw(&format!("{name}_scale"))?;
                [1, 1]
            }
            None => [1, 1],
        };
        let encoding = Encoding::Fp8 { scales, block };
        Ok(Self { name: name.into(), shape, tensors, encoding })
    }

    fn e2m1(model: &Model, name: &str) -> Result<Option<Self>> {
        let scales = format!("{}.scale", module(name));
        let Some(of_scales) = model.optional(&scales) else { return Ok(None) };
        let shape = model.raw(name)?.shape;
        let &[rows, pairs] = shape.as_slice() else { return Ok(None) };
        if of_scales.dtype != Dtype::F8_E8M0 {
            return Ok(None);
        }
        if !pairs.is_multiple_of(16) || of_scales.shape != [rows, pairs / 16] {
            let required = format!("[{rows}, {}]: a scale for each 32 of `{name}`", pairs / 16);
            return Err(model.file(&scales)?.wrong_shape(&scales, required, &of_scales.shape));
        }
        let (shape, tensors) = (vec![rows, pairs * 2], vec![name.to_owned(), scales.clone()]);
        let encoding = Encoding::E2m1 { scales };
        Ok(Some(Self { name: name.into(), shape, tensors, encoding }))
    }

    fn mlx(model: &Model, name: &str) -> Result<Option<Self>> {
        let Some((integers, shape)) = Integers::of(model, name)? else { return Ok(None) };
        let tensors = vec![name.to_owned(), integers.scales.clone(), integers.biases.clone()];
        Ok(Some(Self { name: name.into(), shape, tensors, encoding: Encoding::Mlx(integers) }))
    }

    fn packed(model: &Model, name: &str, codes: String) -> Result<Self> {
        let file = model.file(&codes)?;
        let words = file.raw(&codes)?.shape;
        let stated = format!("{name}_shape");
        let shape = integers(model.file(&stated)?, &stated)?;
        let required = "[N, K/8] in 4 bits or [N, K/4] in 8";
        let (&[rows, words_of_row], [n, k]) = (words.as_slice(), shape.as_slice()) else {
            return Err(file.wrong_shape(&codes, required, &words));
        };
        let (n, k) = (usize::try_from(*n).unwrap_or(0), usize::try_from(*k).unwrap_or(0));
        let fits = |bits: &u32| k.div_ceil(32 / *bits as usize) == words_of_row;
        let bits = [4, 8].into_iter().find(fits).filter(|_| rows == n && n > 0 && k > 0);
        let Some(bits) = bits else {
            let required = format!("{required}, for {stated} {shape:?}");
            return Err(file.wrong_shape(&codes, required, &words));
        };
        let scales = format!("{name}_scale");
        model.raw(&scales)?;
        let optional = |name: String| model.contains(&name).then_some(name);
        let zeros = optional(format!("{name}_zero_point"));
        let groups = optional(format!("{name}_g_idx"));
        let mut tensors = vec![codes, stated, scales.clone()];
        tensors.extend([&zeros, &groups].into_iter().flatten().cloned());
        let encoding = Encoding::Packed(Packed { bits, scales, zeros, groups });
        Ok(Self { name: name.into(), shape: vec![n, k], tensors, encoding })
    }

    fn words(model: &Model, name: &str, of: &str, codes: String) -> Result<Self> {
        let config = model.quantization_config();
        let file = model.file(&codes)?;
        let words = file.raw(&codes)?.shape;
        let [scales, zeros] = ["scales", "qzeros"].map(|tensor| format!("{of}{tensor}"));
        let of_scales = model.raw(&scales)?.shape;
        model.raw(&zeros)?;
        let bits = config.map_or(Some(4), |config| {
            [&config["bits"], &config["w_bit"]].into_iter().find_map(Value::as_u64).or(Some(4))
        });
        let wrong = |required: &str| file.wrong_shape(&codes, required, &words);
        let (&[first, second], &[_, n]) = (words.as_slice(), of_scales.as_slice()) else {
            return Err(wrong("[K/8, N] or [K, N/8]"));
        };
        let mut tensors = vec![codes.clone(), scales, zeros];
        // gptqmodel's scale of inputs in NVFP4, an F32 in an I32.
        let input = format!("{of}activation_global_scale_bits");
        tensors.extend(model.contains(&input).then_some(input));
        let (shape, encoding) = match bits {
            Some(bits @ (4 | 8)) if second == n => {
                let groups = format!("{of}g_idx");
                if model.contains(&groups) {
                    tensors.push(groups);
                }
                let format = config.and_then(|config| config["checkpoint_format"].as_str());
                let bits = bits as u32;
                let encoding = Encoding::Gptq { bits, zero_is_less_one: format != Some("gptq_v2") };
                (vec![n, first.saturating_mul(32 / bits as usize)], encoding)
            }
            Some(4) if second.checked_mul(8) == Some(n) => (vec![n, first], Encoding::Awq),
            _ => return Err(wrong("[K/8, N] (GPTQ) or [K, N/8] (AWQ) in 4 bits, for its scales")),
        };
        if shape.contains(&0) {
            return Err(wrong("no dimension of 0"));
        }
        Ok(Self { name: name.into(), shape, tensors, encoding })
    }

    /// The format in words.
    pub fn format(&self) -> &'static str {
        match &self.encoding {
            Encoding::Fp8 { scales: None, .. } => "FP8 without scales",
            Encoding::Fp8 { .. } => "FP8",
            Encoding::Packed(_) => "integers of compressed-tensors",
            Encoding::Gptq { .. } => "integers of GPTQ",
            Encoding::Awq => "integers of AWQ",
            Encoding::E2m1 { .. } => "e2m1 in I8 with E8M0 scales",
            Encoding::Q8_0 => "Q8_0",
            Encoding::Mlx(_) => "MLX's integers",
        }
    }

    /// The scales of FP8 with one for each 128 x 128 elements.
    pub fn scales_of_128(&self) -> Option<&str> {
        let Encoding::Fp8 { scales: Some(scales), block } = &self.encoding else { return None };
        // A single block may be smaller.
        let fits = |(size, side): (usize, usize)| side == 128 || (side == size && size < 128);
        self.sizes().into_iter().zip(*block).all(fits).then_some(scales)
    }

    /// All values in f32.
    ///
    /// # Errors
    /// [`CheckpointError::NonFinite`] for a code or scale that is not finite, and for a product that
    /// overflows; [`CheckpointError::Shape`] for tensors that do not fit each other.
    pub fn decode(&self, model: &Model) -> Result<Vec<f32>> {
        match &self.encoding {
            Encoding::Fp8 { scales, block } => self.decode_fp8(model, scales.as_deref(), *block),
            Encoding::Packed(packed) => self.decode_packed(model, packed),
            Encoding::Gptq { bits, zero_is_less_one } => {
                self.decode_gptq(model, *bits, u32::from(*zero_is_less_one))
            }
            Encoding::Awq => self.decode_awq(model),
            Encoding::E2m1 { scales } => self.decode_e2m1(model, scales),
            Encoding::Mlx(integers) => {
                let mut values = self.empty()?;
                integers.decode(model, &self.name, &mut values, self.sizes()[1])?;
                self.finite(model.file(&self.name)?, &self.name, 4, values)
            }
            Encoding::Q8_0 => {
                let file = model.file(&self.name)?;
                let raw = file.raw(&self.name)?;
                let values = nvfp4_gguf::dequantize(&self.name, Kind::Q8_0, &raw.data);
                let values = values.map_err(|error| CheckpointError::Malformed {
                    path: file.path().into(),
                    reason: error.to_string(),
                })?;
                self.finite(file, &self.name, 1, values)
            }
        }
    }

    fn sizes(&self) -> [usize; 2] {
        match self.shape.as_slice() {
            &[.., rows, cols] => [rows, cols],
            _ => [1, 1],
        }
    }

    fn empty(&self) -> Result<Vec<f32>> {
        Ok(filled(&self.name, self.shape.iter().product(), 0f32)?)
    }

    fn decode_fp8(
        &self,
        model: &Model,
        scales: Option<&str>,
        block: [usize; 2],
    ) -> Result<Vec<f32>> {
        let file = model.file(&self.name)?;
        let raw = file.raw(&self.name)?;
        let [rows, cols] = self.sizes();
        let [across, down] = [cols.div_ceil(block[1]), rows.div_ceil(block[0])];
        let scales = match scales {
            Some(scales) => multipliers(model, scales)?,
            None => vec![1.0; across * down],
        };
        let single = scales.len() == 1;
        let decode: fn(u8) -> f32 = match raw.dtype {
            Dtype::F8_E5M2 => |byte| f16::from_bits(u16::from(byte) << 8).to_f32(),
            _ => e4m3::decode,
        };
        let table: Vec<f32> = (0..=255).map(decode).collect();
        let mut values = self.empty()?;
        values.par_chunks_mut(cols).zip(raw.data.par_chunks(cols)).enumerate().for_each(
            |(row, (values, codes))| {
                let (expert, row) = (row / rows, row % rows);
                let of_row = (expert * down + row / block[0]) * across;
                for (at, (value, &code)) in values.iter_mut().zip(codes).enumerate() {
                    let scale = if single { scales[0] } else { scales[of_row + at / block[1]] };
                    *value = table[usize::from(code)] * scale;
                }
            },
        );
        self.finite(file, &self.name, 1, values)
    }

    fn decode_e2m1(&self, model: &Model, scales: &str) -> Result<Vec<f32>> {
        let [_, cols] = self.sizes();
        let file = model.file(&self.name)?;
        let codes = file.raw(&self.name)?.data;
        let codes: &[u8] = &codes;
        let scales = multipliers(model, scales)?;
        let mut values = self.empty()?;
        values.par_chunks_mut(cols).enumerate().for_each(|(row, values)| {
            for (at, value) in values.iter_mut().enumerate() {
                let (low, high) = pack::unpair(codes[(row * cols + at) / 2]);
                let code = if at.is_multiple_of(2) { low } else { high };
                *value = e2m1::decode(code) * scales[(row * cols + at) / 32];
            }
        });
        self.finite(file, &self.name, 1, values)
    }

    fn decode_packed(&self, model: &Model, packed: &Packed) -> Result<Vec<f32>> {
        let Packed { bits, scales: scale_name, zeros, groups } = packed;
        let [rows, cols] = self.sizes();
        let file = model.file(&self.tensors[0])?;
        let words = words(file, &self.tensors[0])?;
        let scales = model.file(scale_name)?.floats(scale_name)?;
        let of_row = scales.values.len() / rows;
        let fits =
            of_row > 0 && of_row * rows == scales.values.len() && cols.is_multiple_of(of_row);
        if !fits || scales.shape.first() != Some(&rows) {
            let required = format!("[{rows}, groups of {cols} columns]");
            return Err(model.file(scale_name)?.wrong_shape(scale_name, required, &scales.shape));
        }
        let group_of = group_indices(model, groups.as_deref(), cols, cols / of_row, of_row)?;
        let per_word = 32 / *bits as usize;
        let zeros = match zeros {
            Some(name) => {
                let zeros = self::words(model.file(name)?, name)?;
                if zeros.len() != rows.div_ceil(per_word) * of_row {
                    let required = format!("[{}, {of_row}]", rows.div_ceil(per_word));
                    let file = model.file(name)?;
                    return Err(file.wrong_shape(name, required, &file.raw(name)?.shape));
                }
                Some(zeros)
            }
            None => None,
        };
        let mask = (1u32 << bits) - 1;
        let field = |word: u32, at: usize| ((word >> (at as u32 * bits)) & mask) as f32;
        let words_of_row = cols.div_ceil(per_word);
        let mut values = self.empty()?;
        values.par_chunks_mut(cols).enumerate().for_each(|(row, values)| {
            for (at, value) in values.iter_mut().enumerate() {
                let code = field(words[row * words_of_row + at / per_word], at % per_word);
                let group = group_of[at];
                let zero = zeros.as_ref().map_or((mask / 2 + 1) as f32, |zeros| {
                    field(zeros[row / per_word * of_row + group], row % per_word)
                });
                *value = (code - zero) * scales.values[row * of_row + group];
            }
        });
        self.finite(file, &self.tensors[0], 4, values)
    }

    fn decode_gptq(&self, model: &Model, bits: u32, less: u32) -> Result<Vec<f32>> {
        let [rows, cols] = self.sizes();
        let per_word = 32 / bits as usize;
        let (file, words, scales, zeros, groups) = self.grouped(model, per_word)?;
        let name = self.tensors.iter().find(|name| name.ends_with("g_idx")).map(String::as_str);
        let group_of = group_indices(model, name, cols, cols.div_ceil(groups), groups)?;
        let mask = (1u32 << bits) - 1;
        let field = |word: u32, at: usize| (word >> (at as u32 * bits)) & mask;
        let zeros_of_group = rows.div_ceil(per_word);
        let mut values = self.empty()?;
        values.par_chunks_mut(cols).enumerate().for_each(|(row, values)| {
            for (at, value) in values.iter_mut().enumerate() {
                let group = group_of[at];
                let code = field(words[at / per_word * rows + row], at % per_word);
                let zero = zeros[group * zeros_of_group + row / per_word];
                // Stored one less, a zero point of 0 is stored as all ones.
                let zero = (field(zero, row % per_word) + less) & mask;
                *value = (code as f32 - zero as f32) * scales[group * rows + row];
            }
        });
        self.finite(file, &self.tensors[0], 4, values)
    }

    fn decode_awq(&self, model: &Model) -> Result<Vec<f32>> {
        let [rows, cols] = self.sizes();
        let (file, words, scales, zeros, groups) = self.grouped(model, 8)?;
        let size = cols.div_ceil(groups);
        let mut place = [0; 8];
        AWQ_ORDER.iter().enumerate().for_each(|(at, &column)| place[column] = at);
        let field = |word: u32, row: usize| ((word >> (4 * place[row % 8])) & 15) as f32;
        let mut values = self.empty()?;
        values.par_chunks_mut(cols).enumerate().for_each(|(row, values)| {
            for (at, value) in values.iter_mut().enumerate() {
                let code = field(words[at * (rows / 8) + row / 8], row);
                let zero = field(zeros[at / size * (rows / 8) + row / 8], row);
                *value = (code - zero) * scales[at / size * rows + row];
            }
        });
        self.finite(file, &self.tensors[0], 4, values)
    }

    /// Codes, scales and zero points of GPTQ and AWQ, and the number of groups; lengths are checked.
    #[expect(clippy::type_complexity, reason = "the parts of one weight, taken apart at once")]
    fn grouped<'a>(
        &self,
        model: &'a Model,
        per_word: usize,
    ) -> Result<(&'a Checkpoint, Vec<u32>, Vec<f32>, Vec<u32>, usize)> {
        let [rows, cols] = self.sizes();
        let file = model.file(&self.tensors[0])?;
        let codes = words(file, &self.tensors[0])?;
        let scales = model.file(&self.tensors[1])?.floats(&self.tensors[1])?;
        let groups = scales.values.len() / rows;
        if groups == 0 || groups > cols || !cols.is_multiple_of(groups) {
            let required = format!("[groups of {cols} rows, {rows}]");
            let file = model.file(&self.tensors[1])?;
            return Err(file.wrong_shape(&self.tensors[1], required, &scales.shape));
        }
        let zeros = words(model.file(&self.tensors[2])?, &self.tensors[2])?;
        if zeros.len() != groups * rows.div_ceil(per_word) {
            let file = model.file(&self.tensors[2])?;
            let required = format!("[{groups}, {}]", rows.div_ceil(per_word));
            let shape = file.raw(&self.tensors[2])?.shape;
            return Err(file.wrong_shape(&self.tensors[2], required, &shape));
        }
        Ok((file, codes, scales.values, zeros, groups))
    }

    /// Returns the values if all are finite. Elements of the tensor `codes` have `width` bytes.
    fn finite(
        &self,
        file: &Checkpoint,
        codes: &str,
        width: usize,
        values: Vec<f32>,
    ) -> Result<Vec<f32>> {
        let Some(index) = values.par_iter().position_first(|value| !value.is_finite()) else {
            return Ok(values);
        };
        let elements = values.len().max(1);
        let bytes = file.raw(codes)?.data.len();
        let within = (index * (bytes / width) / elements * width) as u64;
        Err(CheckpointError::NonFinite {
            path: file.path().into(),
            tensor: codes.into(),
            index,
            byte: file.offset(codes) + within,
            value: values[index],
        })
    }
}

/// The values of a tensor of floats, or of an encoded weight.
///
/// # Errors
/// The errors of [`Checkpoint::floats`] and of [`Encoded::decode`].
pub(super) fn values(model: &Model, name: &str) -> Result<FloatTensor> {
    match Encoded::of(model, name)? {
        Some(encoded) => {
            let values = encoded.decode(model)?;
            Ok(FloatTensor { shape: encoded.shape, values })
        }
        None => model.file(name)?.floats(name),
    }
}

/// Whether a weight is there, as floats or encoded.
pub(super) fn contains(model: &Model, name: &str) -> bool {
    let codes = |ending: &str| {
        let codes = name.strip_suffix("weight").map(|of| format!("{of}{ending}"));
        codes.is_some_and(|codes| model.raw(&codes).is_ok_and(|raw| raw.dtype == Dtype::I32))
    };
    model.contains(name) || codes("weight_packed") || codes("qweight")
}

/// Rows and columns with one scale.
fn block_of(model: &Model, name: &str, shape: &[usize], scales: &str) -> Result<[usize; 2]> {
    let file = model.file(scales)?;
    let stored = file.raw(scales)?.shape;
    let &[ref leading @ .., rows, cols] = shape else { return Ok([1, 1]) };
    let batch: usize = leading.iter().product();
    let count: usize = stored.iter().product();
    if count == 1 || (batch > 1 && count == batch) {
        return Ok([rows.max(1), cols.max(1)]);
    }
    let down_and_across = match *stored.as_slice() {
        [down, 1, across, 1] if batch == 1 => Some([down, across]),
        [down] if batch == 1 && down == rows => Some([down, 1]),
        [ref of @ .., down, across] if of.iter().product::<usize>() == batch => {
            Some([down, across])
        }
        [experts, down] if batch > 1 && experts == batch && down == rows => Some([down, 1]),
        _ => None,
    };
    let stated = stated_block(model);
    let side = |size: usize, count: usize, at: usize| match count {
        1 => Some(size.max(1)),
        count if count == size => Some(1),
        count => {
            let sides = stated.map(|stated| stated[at]).into_iter().chain(SIDES);
            sides.filter(|&side| side > 0).find(|&side| size.div_ceil(side) == count)
        }
    };
    let block = down_and_across
        .and_then(|[down, across]| Some([side(rows, down, 0)?, side(cols, across, 1)?]));
    block.ok_or_else(|| {
        let required = format!("a scale for {shape:?} of `{name}`, for each row or for each block");
        file.wrong_shape(scales, required, &stored)
    })
}

/// The block that the configuration states: `weight_block_size`, or `block_structure` of a group.
fn stated_block(model: &Model) -> Option<[usize; 2]> {
    let config = model.quantization_config()?;
    let groups = config["config_groups"].as_object();
    let of_groups = groups.into_iter().flat_map(|groups| groups.values());
    let mut stated = std::iter::once(&config["weight_block_size"])
        .chain(of_groups.map(|group| &group["weights"]["block_structure"]));
    stated.find_map(|sizes| match sizes.as_array()?.as_slice() {
        [rows, cols] => {
            let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
            Some([size(rows)?, size(cols)?])
        }
        _ => None,
    })
}

/// Scales as numbers, whatever type they have.
fn multipliers(model: &Model, name: &str) -> Result<Vec<f32>> {
    let file = model.file(name)?;
    let raw = file.raw(name)?;
    match raw.dtype {
        Dtype::F8_E8M0 | Dtype::U8 => {
            if let Some(index) = raw.data.iter().position(|&byte| byte == u8::MAX) {
                return Err(CheckpointError::Scale {
                    path: file.path().into(),
                    tensor: name.into(),
                    index,
                    byte: file.offset(name) + index as u64,
                    found: "0xff".into(),
                    required: "a ue8m0 number: not 0xff, which is NaN",
                });
            }
            Ok(raw.data.iter().map(|&byte| ue8m0::decode(byte)).collect())
        }
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(file.floats(name)?.values),
        other => Err(file.wrong_type(name, "F32, F16, BF16, F8_E8M0 or U8", other)),
    }
}

/// The words of a tensor of 32-bit integers.
fn words(file: &Checkpoint, name: &str) -> Result<Vec<u32>> {
    let raw = file.raw(name)?;
    if raw.dtype != Dtype::I32 {
        return Err(file.wrong_type(name, "I32", raw.dtype));
    }
    Ok(raw.data.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// The elements of a small tensor of integers.
fn integers(file: &Checkpoint, name: &str) -> Result<Vec<i64>> {
    let raw = file.raw(name)?;
    match raw.dtype {
        Dtype::I64 => {
            let words = raw.data.as_chunks::<8>().0.iter();
            Ok(words.map(|word| i64::from_le_bytes(*word)).collect())
        }
        Dtype::I32 => {
            let words = raw.data.as_chunks::<4>().0.iter();
            Ok(words.map(|word| i64::from(i32::from_le_bytes(*word))).collect())
        }
        other => Err(file.wrong_type(name, "I64 or I32", other)),
    }
}

/// The group of each column: stated, or in the order of columns with `size` each.
fn group_indices(
    model: &Model,
    name: Option<&str>,
    cols: usize,
    size: usize,
    groups: usize,
) -> Result<Vec<usize>> {
    let in_order = || (0..cols).map(|at| at / size.max(1)).collect();
    let Some(name) = name else { return Ok(in_order()) };
    let file = model.file(name)?;
    let stated = integers(file, name)?;
    // Without an order of its own, compressed-tensors has -1 in every place.
    if stated.iter().all(|&index| index == -1) {
        return Ok(in_order());
    }
    let indices: Option<Vec<usize>> = stated
        .iter()
        .map(|&index| usize::try_from(index).ok().filter(|&index| index < groups))
        .collect();
    match indices.filter(|indices| indices.len() == cols) {
        Some(indices) => Ok(indices),
        None => {
            let required = format!("{cols} indices of {groups} groups");
            Err(file.wrong_shape(name, required, &file.raw(name)?.shape))
        }
    }
}
