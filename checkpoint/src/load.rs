//! Reads a quantised weight from any layout and checks every scale.

use fp4_formats::layout::TILE_ROWS;
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout};
use safetensors::tensor::Dtype;

use super::error::CheckpointError;
use super::ggml;
use super::gguf;
use super::measured::largest;
use super::model::Model;
use super::orientation::transposed;
use super::parts::{Layout, Parts};
use super::weight::{Blocks, Convention, GlobalScale, Weight, WeightSpec};
use crate::error::Result;
use nvfp4::error::{Error, reserve};
use nvfp4::tensor::Dims;

/// The description of a weight from its tensors' types and shapes, which are checked; their data is
/// not read.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The weight.
    pub spec: WeightSpec,
    /// Experts, N, K.
    pub dims: Dims,
    /// Layout of its scales.
    pub scales: ScaleLayout,
}

/// Checks types and shapes of a weight's tensors.
///
/// # Errors
/// [`CheckpointError::MissingTensor`], [`CheckpointError::Type`], [`CheckpointError::Shape`].
pub fn outline(model: &Model, parts: &Parts) -> Result<Outline> {
    let format = parts.format;
    let block = format.block() as usize;
    let shape = dense_shape(model, parts)?;
    let (&cols, leading) = shape.split_last().unwrap_or((&0, &[]));
    let dims = match *leading {
        [rows] => Dims::new(1, rows, cols)?,
        [experts, rows] => Dims::new(experts, rows, cols)?,
        // `dense_shape` has seen to it.
        _ => {
            return Err(CheckpointError::shape(
                format!("rank of `{}`", parts.name),
                "2 or 3",
                shape.len(),
            ));
        }
    };
    let mut spec = WeightSpec {
        name: parts.name.clone(),
        shape,
        format,
        global: parts.global.is_some(),
        input: parts.input.is_some(),
        original: parts.original,
        group: block,
        order: parts.order,
        expert_scales: false,
    };
    if let Some(global) = parts.global.as_deref().filter(|global| model.contains(global)) {
        let stored = model.raw(global)?.shape;
        let (_, others) = stored.split_first().unwrap_or((&0, &[]));
        let one_by_one = dims.batch() > 1 && stored.first() == Some(&dims.batch());
        spec.expert_scales = one_by_one && others.iter().all(|&size| size == 1);
    }

    let file = model.file(&parts.scales)?;
    let scales = file.raw(&parts.scales)?;
    if file.kind(&parts.codes).is_some() {
        return Ok(Outline { spec, dims, scales: ScaleLayout::Linear });
    }
    let (fits, required) = match format {
        Format::Nvfp4 => (matches!(scales.dtype, Dtype::F8_E4M3 | Dtype::U8), "F8_E4M3 or U8"),
        Format::Mxfp4 => (matches!(scales.dtype, Dtype::F8_E8M0 | Dtype::U8), "F8_E8M0 or U8"),
    };
    if !fits {
        return Err(file.wrong_type(&parts.scales, required, scales.dtype));
    }
    let mut linear = spec.scale_shape();
    if format == Format::Nvfp4 && cols.is_multiple_of(2 * block) {
        // ModelOpt's groups of 32, which are two blocks with one scale.
        let pairs = stored_shape(&spec.with_last(&[cols / (2 * block)]), parts.transposed);
        if scales.shape == pairs {
            (spec.group, linear) = (2 * block, spec.with_last(&[cols / (2 * block)]));
        }
    }
    let linear = stored_shape(&linear, parts.transposed);
    let tiles = ScaleLayout::Blocked128x4
        .bytes(dims.batch() * dims.rows(), cols / block)
        .map_err(|error| Error::overflow(format!("scales of `{}`", parts.name), error))?;
    let layout = match parts.swizzled {
        Some(true) => ScaleLayout::Blocked128x4,
        Some(false) => ScaleLayout::Linear,
        None if scales.shape == linear => ScaleLayout::Linear,
        None => ScaleLayout::Blocked128x4,
    };
    match layout {
        ScaleLayout::Linear if scales.shape != linear => {
            let required = format!("{linear:?}: a scale for each {block} of `{}`", parts.codes);
            Err(file.wrong_shape(&parts.scales, required, &scales.shape))
        }
        // The tiles of one matrix end where those of the next begin only at whole tiles.
        ScaleLayout::Blocked128x4
            if scales.data.len() != tiles
                || (dims.batch() > 1 && !dims.rows().is_multiple_of(TILE_ROWS)) =>
        {
            let required =
                format!("{linear:?}, or {tiles} bytes in 128x4 tiles, to fit `{}`", parts.codes);
            Err(file.wrong_shape(&parts.scales, required, &scales.shape))
        }
        scales => Ok(Outline { spec, dims, scales }),
    }
}

/// A shape with its last two dimensions exchanged where a tensor is stored so.
fn stored_shape(shape: &[usize], transposed: bool) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let (true, [.., rows, cols]) = (transposed, shape.as_mut_slice()) {
        std::mem::swap(rows, cols);
    }
    shape
}

/// Shape before quantisation, from that of the codes.
fn dense_shape(model: &Model, parts: &Parts) -> Result<Vec<usize>> {
    let block = parts.format.block() as usize;
    let file = model.file(&parts.codes)?;
    let codes = file.raw(&parts.codes)?;
    let wrong = |required: String| file.wrong_shape(&parts.codes, required, &codes.shape);
    if let Some(kind) = file.kind(&parts.codes) {
        let shape = ggml::shape(kind, &codes.shape);
        return match matches!(shape.len(), 2 | 3) && !shape.contains(&0) {
            true => Ok(shape),
            false => Err(wrong("[N, K] or [experts, N, K], no 0".into())),
        };
    }
    let shape = stored_shape(&codes.shape, parts.transposed);
    if !matches!(codes.dtype, Dtype::U8 | Dtype::I8 | Dtype::U32 | Dtype::F4) {
        return Err(file.wrong_type(&parts.codes, "U8, I8, U32 or F4", codes.dtype));
    }
    let (leading, cols) = match (shape.as_slice(), parts.codes_in_blocks) {
        ([leading @ .., blocks, bytes], true) if *bytes == block / 2 => {
            (leading, blocks.checked_mul(block))
        }
        (_, true) => {
            return Err(wrong(format!("[.., rows, K/{block}, {}]", block / 2)));
        }
        // F4 counts elements, U8 and I8 pairs of them, U32 eights.
        ([leading @ .., words], false) if codes.dtype == Dtype::U32 => {
            (leading, words.checked_mul(8))
        }
        ([leading @ .., cols], false) if codes.dtype == Dtype::F4 => (leading, Some(*cols)),
        ([leading @ .., pairs], false) => (leading, pairs.checked_mul(2)),
        ([], false) => (&[][..], None),
    };
    let cols = cols.filter(|cols| *cols > 0 && cols.is_multiple_of(block));
    match cols {
        Some(cols) if matches!(leading.len(), 1 | 2) && !leading.contains(&0) => {
            Ok([leading, &[cols]].concat())
        }
        _ => {
            let required =
                format!("[N, K] or [experts, N, K] before packing, K a multiple of {block}, no 0");
            Err(wrong(required))
        }
    }
}

/// Reads a weight: codes and scales are copied, every scale is checked.
///
/// # Errors
/// The errors of [`outline`]; [`CheckpointError::Scale`] for the first block scale that is NaN or
/// has its sign bit set, and for a tensor-level scale that is not positive and finite.
pub fn load(model: &Model, layout: Layout, parts: &Parts) -> Result<Weight> {
    let Outline { spec, dims, scales: order } = outline(model, parts)?;
    let convention = layout.convention();
    let stored = |name: &Option<String>| -> Result<Option<GlobalScale>> {
        let value = name.as_deref().map(|name| global_scale(model, name)).transpose()?;
        Ok(value.map(|value| GlobalScale::new(convention, value)))
    };
    let experts = match parts.global.as_deref().filter(|_| spec.expert_scales) {
        Some(name) => Some(expert_scales(model, name, convention)?),
        None => None,
    };
    let greatest = |scales: &Vec<GlobalScale>| {
        let multiplier = |scale: &GlobalScale| scale.multiplier();
        scales.iter().copied().max_by(|x, y| multiplier(x).total_cmp(&multiplier(y)))
    };
    let global = match &experts {
        Some(scales) => greatest(scales),
        None => stored(&parts.global)?,
    };
    let one_by_one = |name: &&str| {
        let shape = model.raw(name).map(|raw| raw.shape).unwrap_or_default();
        let (first, others) = (shape.first(), shape.get(1..).unwrap_or_default());
        dims.batch() > 1 && first == Some(&dims.batch()) && others.iter().all(|&size| size == 1)
    };
    let inputs = match parts.input.as_deref().filter(one_by_one) {
        Some(name) => Some(expert_scales(model, name, convention)?),
        None => None,
    };
    let input = match &inputs {
        Some(scales) => greatest(scales),
        None => stored(&parts.input)?,
    };
    if model.kind(&parts.codes).is_some() {
        let stored = gguf::blocks(model, &parts.codes, spec.format)?;
        let nvfp4_gguf::Blocks { codes, scales } = stored;
        let multiplier = global.map_or(1.0, GlobalScale::multiplier);
        let blocks = Blocks::new(spec.format, &parts.name, dims, order, codes, scales, multiplier)?;
        return Ok(Weight { spec, blocks, global, experts, input, inputs });
    }
    check_scales(model, parts, dims, order)?;

    let copy = |name: &str| -> Result<Vec<u8>> {
        let raw = model.raw(name)?;
        if let (true, &[.., rows, cols]) = (parts.transposed, raw.shape.as_slice()) {
            return transposed(name, &raw.data, [rows, cols]);
        }
        let mut bytes = reserve(name, raw.data.len())?;
        bytes.extend_from_slice(&raw.data);
        Ok(bytes)
    };
    let (codes, mut scales) = (copy(&parts.codes)?, copy(&parts.scales)?);
    if spec.group > spec.format.block() as usize {
        scales = scales.into_iter().flat_map(|scale| [scale; 2]).collect();
    }
    let multiplier = global.map_or(1.0, GlobalScale::multiplier);
    let blocks = Blocks::new(spec.format, &parts.name, dims, order, codes, scales, multiplier)?;
    Ok(Weight { spec, blocks, global, experts, input, inputs })
}

/// Plausible largest magnitudes of a tensor of weights.
const PLAUSIBLE: std::ops::RangeInclusive<f32> = 1e-6..=1e3;

/// The largest magnitudes of a weight as it is and with the reciprocal of its tensor-level scale, if only the
/// latter is plausible: a divisor read as a multiplier makes weights of 10^6 and more out of ordinary ones.
pub(super) fn reciprocal(weight: &Weight, largest: f32) -> Option<(GlobalScale, f32, f32)> {
    let global = weight.global?;
    let multiplier = global.multiplier();
    let (as_is, inverted) = (largest * multiplier, largest / multiplier);
    let wrong = largest != 0.0 && !PLAUSIBLE.contains(&as_is) && PLAUSIBLE.contains(&inverted);
    wrong.then_some((global, as_is, inverted))
}

/// Refuses a weight whose tensor-level scale is stored in the other convention.
pub(super) fn implausible(
    model: &Model,
    layout: Layout,
    parts: &Parts,
    weight: &Weight,
) -> Result<()> {
    let (largest, _) = largest(&weight.blocks);
    let Some((global, as_is, inverted)) = reciprocal(weight, largest) else { return Ok(()) };
    let name = parts.global.as_deref().unwrap_or(&parts.name);
    let file = model.file(name)?;
    Err(CheckpointError::Scale {
        path: file.path().into(),
        tensor: name.into(),
        index: 0,
        byte: file.offset(name),
        found: format!(
            "{:e}, with which the largest weight is {as_is:e}, and with its reciprocal {inverted:e}",
            global.stored(layout.convention())
        ),
        required: match layout.convention() {
            Convention::Multiplier => "a multiplier; this looks like a divisor",
            Convention::Divisor => "a divisor; this looks like a multiplier",
            Convention::Largest => "the largest magnitude; this looks like a divisor",
        },
    })
}

/// The tensor-level scale of a weight, without reading the rest; 1 if it has none.
pub(super) fn tensor_scale(model: &Model, layout: Layout, parts: &Parts) -> Result<GlobalScale> {
    let value = parts.global.as_deref().map(|name| global_scale(model, name)).transpose()?;
    let value = value.map(|value| GlobalScale::new(layout.convention(), value));
    Ok(value.unwrap_or(GlobalScale::Multiplier(1.0)))
}

/// A tensor-level scale; positive and finite.
pub(super) fn global_scale(model: &Model, name: &str) -> Result<f32> {
    let file = model.file(name)?;
    let bad = |found: String, byte| CheckpointError::Scale {
        path: file.path().into(),
        tensor: name.into(),
        index: 0,
        byte,
        found,
        required: "positive and finite",
    };
    match file.scalar(name) {
        Ok(value) if value > 0.0 => Ok(value),
        Ok(value) => Err(bad(value.to_string(), file.offset(name))),
        Err(CheckpointError::NonFinite { value, byte, .. }) => Err(bad(value.to_string(), byte)),
        Err(error) => Err(error),
    }
}

/// The tensor-level scales of all experts; each positive and finite.
fn expert_scales(model: &Model, name: &str, convention: Convention) -> Result<Vec<GlobalScale>> {
    let file = model.file(name)?;
    let values = file.floats(name)?.values;
    if let Some(index) = values.iter().position(|&value| value <= 0.0) {
        let width = file.raw(name)?.dtype.bitsize() / 8;
        return Err(CheckpointError::Scale {
            path: file.path().into(),
            tensor: name.into(),
            index,
            byte: file.offset(name) + (index * width) as u64,
            found: values[index].to_string(),
            required: "positive and finite",
        });
    }
    Ok(values.into_iter().map(|value| GlobalScale::new(convention, value)).collect())
}

/// Checks the block scales of the matrix. Padding may have any bytes.
fn check_scales(model: &Model, parts: &Parts, dims: Dims, order: ScaleLayout) -> Result<()> {
    let file = model.file(&parts.scales)?;
    let data = file.raw(&parts.scales)?.data;
    let valid = match parts.format {
        Format::Nvfp4 => Nvfp4::scale_is_valid,
        Format::Mxfp4 => Mxfp4::scale_is_valid,
    };
    let invalid: [bool; 256] = std::array::from_fn(|byte| !valid(byte as u8));
    let invalid = |byte: u8| invalid[usize::from(byte)];
    let blocks = dims.cols() / parts.format.block() as usize;
    let first = match order {
        ScaleLayout::Linear => data.iter().position(|&byte| invalid(byte)),
        ScaleLayout::Blocked128x4 => (0..dims.batch() * dims.rows() * blocks)
            .map(|at| order.offset(at / blocks, at % blocks, blocks))
            .find(|&at| invalid(data[at])),
    };
    let Some(index) = first else { return Ok(()) };
    Err(CheckpointError::Scale {
        path: file.path().into(),
        tensor: parts.scales.clone(),
        index,
        byte: file.offset(&parts.scales) + index as u64,
        found: format!("{:#04x}", data[index]),
        required: match parts.format {
            Format::Nvfp4 => "an e4m3 number without a sign: 0x00 to 0x7e",
            Format::Mxfp4 => "a ue8m0 number: not 0xff, which is NaN",
        },
    })
}
