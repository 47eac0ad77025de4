//! MLX's affine integers, in which mlx-lm keeps routers of models whose other layers have 4 bits, and whole models.
//!
//! | tensor | type | shape |
//! | --- | --- | --- |
//! | `m.weight` | U32: codes of 2 to 8 bits follow each other, the lowest bits first | `[.., N, K * bits / 32]` |
//! | `m.scales`, `m.biases` | F32, F16 or BF16 | `[.., N, K / g]` |
//!
//! A value is the code times the scale plus the bias, rounded to f32 after each. The size of a group, g, is
//! `group_size` of `quantization` in `config.json`, for the layer or for all.

use rayon::prelude::*;
use safetensors::tensor::Dtype;

use super::error::CheckpointError;
use super::mlx_config as mlx;
use super::model::Model;
use super::weight::module;
use crate::error::Result;

/// Bits of a code.
const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
/// Elements of a group where nothing says so.
const GROUP: usize = 64;

/// The codes of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Integers {
    pub bits: usize,
    /// Elements with one scale.
    pub group: usize,
    pub scales: String,
    pub biases: String,
}

impl Integers {
    /// Finds the codes of a weight, with its shape before it was quantised; `None` if it is not stored so.
    ///
    /// # Errors
    /// [`CheckpointError::Shape`] for tensors that do not fit each other.
    pub fn of(model: &Model, name: &str) -> Result<Option<(Self, Vec<usize>)>, CheckpointError> {
        let of = module(name);
        let [scales, biases] = ["scales", "biases"].map(|ending| format!("{of}.{ending}"));
        let float = |name: &str| {
            let raw = model.optional(name)?;
            matches!(raw.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16).then_some(raw.shape)
        };
        let (Some(groups), Some(others)) = (float(&scales), float(&biases)) else {
            return Ok(None);
        };
        let words = model.raw(name)?.shape;
        let stated = mlx::quantization(model).and_then(|stated| {
            let places = [mlx::layer(model, stated, of), stated];
            places.into_iter().find_map(|place| place["group_size"].as_u64())
        });
        let group = stated.and_then(|size| usize::try_from(size).ok()).unwrap_or(GROUP);
        let wrong = |name: &str, required: String, shape: &[usize]| match model.file(name) {
            Ok(file) => file.wrong_shape(name, required, shape),
            Err(error) => error,
        };
        if others != groups {
            return Err(wrong(&biases, format!("{groups:?}, that of `{scales}`"), &others));
        }
        let (Some((count, leading)), Some((of_row, rows))) =
            (groups.split_last(), words.split_last())
        else {
            return Ok(None);
        };
        let cols = count.checked_mul(group).filter(|&cols| cols > 0).unwrap_or(usize::MAX);
        let fits = |bits: &usize| cols.checked_mul(*bits) == of_row.checked_mul(32);
        let found = BITS.into_iter().find(fits).filter(|_| leading == rows && rows.len() <= 2);
        let Some(bits) = found else {
            let required = format!(
                "{leading:?} rows of codes of 2 to 8 bits in words of 32, {group} for each of `{scales}`"
            );
            return Err(wrong(name, required, &words));
        };
        let shape = [rows, &[cols]].concat();
        Ok(Some((Self { bits, group, scales, biases }, shape)))
    }

    /// Decodes the codes of a row of `cols` elements after the other into `values`, one for each.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::floats`](super::Checkpoint::floats).
    pub fn decode(&self, model: &Model, name: &str, values: &mut [f32], cols: usize) -> Result<()> {
        let codes = model.raw(name)?.data;
        let floats = |name: &str| Ok::<_, CheckpointError>(model.file(name)?.floats(name)?.values);
        let (scales, biases) = (floats(&self.scales)?, floats(&self.biases)?);
        let (bytes, mask) = (cols * self.bits / 8, (1u32 << self.bits) - 1);
        let groups = cols / self.group;
        let of_row = |(row, (values, codes)): (usize, (&mut [f32], &[u8]))| {
            for (at, value) in values.iter_mut().enumerate() {
                let (byte, shift) = (at * self.bits / 8, at * self.bits % 8);
                let next = codes.get(byte + 1).copied().unwrap_or(0);
                let code = u32::from(u16::from_le_bytes([codes[byte], next])) >> shift & mask;
                let group = row * groups + at / self.group;
                *value = code as f32 * scales[group] + biases[group];
            }
        };
        let rows = values.par_chunks_mut(cols).zip(codes.par_chunks(bytes));
        rows.enumerate().for_each(of_row);
        Ok(())
    }
}
