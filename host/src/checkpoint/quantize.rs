//! Quantising a model: which tensors, by what recipe, into what layout.

use std::fmt;
use std::path::Path;

use fp4_formats::quantize::Recipe;
use safetensors::tensor::Dtype;
use serde::Serialize;

use super::error::CheckpointError;
use super::file::RawTensor;
use super::layout::Layout;
use super::model::Model;
use super::orientation::{EXPERTS, Orientation, transposed};
use super::pattern;
use super::save::{Item, Observer, Save, SaveOptions, Saved};
use super::weight::{Weight, WeightSpec};
use super::write::TensorSpec;
use crate::device::Kernels;
use crate::error::{Error, Result};
use crate::quantize::{QuantizeOptions, TensorScale, device, quantize_matrix};
use crate::tensor::Dims;

/// Names that are left out unless asked for otherwise: what the projects' own tools leave out,
/// because it is no linear layer or costs too much accuracy.
pub const DEFAULT_EXCLUDES: [&str; 5] =
    ["*embed*", "*lm_head*", "*router*", "*.gate.weight", "*relative_attention_bias*"];

/// How to quantise a model.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Whose arithmetic.
    pub recipe: Recipe,
    /// Tensor-level scale of NVFP4; rows cannot have scales of their own in any layout.
    pub scale: TensorScale,
    /// Patterns of tensors to leave as they are; see [`pattern::matches`].
    pub exclude: Vec<String>,
    /// How the result is written.
    pub save: SaveOptions,
}

impl ModelOptions {
    /// A recipe in its usual form, with [`DEFAULT_EXCLUDES`].
    #[must_use]
    pub fn new(recipe: Recipe, layout: Layout) -> Self {
        Self {
            recipe,
            scale: TensorScale::FromAmax,
            exclude: DEFAULT_EXCLUDES.map(str::to_owned).to_vec(),
            save: SaveOptions::new(layout),
        }
    }
}

/// A tensor that was left as it is, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unquantized {
    /// The tensor.
    pub tensor: String,
    /// The reason.
    pub reason: String,
}

/// What was quantised, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuantizeReport {
    /// The input.
    pub source: String,
    /// The format.
    pub format: &'static str,
    /// The recipe.
    pub recipe: &'static str,
    /// The layout.
    pub layout: Layout,
    /// What computed it: `cpu`, or a device.
    pub device: String,
    /// Tensors that were quantised.
    pub quantized: Vec<String>,
    /// Those of them that were `[experts, K, N]` and are `[experts, N, K]` now.
    pub transposed: Vec<String>,
    /// Those that were not.
    pub left: Vec<Unquantized>,
    /// Bytes of tensors before.
    pub bytes_before: u64,
    /// The output.
    pub saved: Saved,
}

/// Why a tensor is not quantised; `None` if it is.
fn reason_to_leave(
    name: &str,
    dtype: Dtype,
    shape: &[usize],
    options: &ModelOptions,
) -> Option<String> {
    if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        return Some(format!("type {dtype:?}"));
    }
    let is_weight = match shape.len() {
        2 => name.ends_with(".weight") || name.ends_with("_weight"),
        // Experts in one tensor go without the ending.
        3 => name.ends_with("weight") || name.ends_with(EXPERTS),
        _ => false,
    };
    if !is_weight {
        return Some("no matrix called weight".into());
    }
    if let Some(pattern) = options.exclude.iter().find(|pattern| pattern::matches(pattern, name)) {
        return Some(format!("excluded by {pattern}"));
    }
    shape.contains(&0).then(|| "no elements".into())
}

/// What happens to a tensor.
enum Decision {
    Leave(String),
    /// Quantise it, with this shape once it is `[.., N, K]`.
    Quantize(Orientation, Vec<usize>),
}

fn decide(model: &Model, name: &str, options: &ModelOptions) -> Result<Decision> {
    let raw = model.raw(name)?;
    if let Some(reason) = reason_to_leave(name, raw.dtype, &raw.shape, options) {
        return Ok(Decision::Leave(reason));
    }
    let orientation = Orientation::of(model, name, &raw.shape)?;
    let shape = orientation.output_first(&raw.shape);
    let (cols, block) =
        (shape.last().copied().unwrap_or(0), options.recipe.format().block() as usize);
    if !cols.is_multiple_of(block) {
        return Ok(Decision::Leave(format!("K = {cols} is no multiple of {block}")));
    }
    let layout = options.save.layout;
    if orientation == Orientation::InputFirst && layout != Layout::GptOss {
        return Err(CheckpointError::Unsupported {
            layout: layout.name(),
            tensor: name.into(),
            reason: format!(
                "it is {:?}, [experts, K, N]; only gpt-oss's readers are known to expect its \
                 blocks transposed, [experts, N, K]",
                raw.shape
            ),
        }
        .into());
    }
    Ok(Decision::Quantize(orientation, shape))
}

/// Quantises the weights of `model` into a new folder `target`, on the CPU or, with `kernels`, on
/// a device with the same bytes as a result.
///
/// Experts whose input dimension comes first, as in gpt-oss's unquantised model, are transposed
/// for [`Layout::GptOss`], which has them so, and refused for the others.
///
/// Memory holds one tensor at a time, in f32 on the CPU; two where it is transposed.
///
/// # Errors
/// [`CheckpointError::Exists`], [`CheckpointError::Nothing`] where no tensor can be quantised,
/// [`CheckpointError::Orientation`] where it cannot be told which dimension is the input's,
/// [`CheckpointError::Unsupported`], [`CheckpointError::NonFinite`] with the byte of the file,
/// [`CheckpointError::Interrupted`], [`Error::Io`]. Nothing is left behind then.
pub fn quantize_model(
    model: &Model,
    options: &ModelOptions,
    target: &Path,
    kernels: Option<&Kernels>,
    observer: &mut dyn Observer,
) -> Result<QuantizeReport> {
    if let Some(layout) = Layout::detect(model) {
        let field = model.path().display().to_string();
        return Err(Error::shape(field, "not quantised yet", format!("in layout {layout}")));
    }
    if options.scale == TensorScale::PerRow {
        return Err(Error::shape("tensor-level scale", "one per tensor", "one per row"));
    }
    let format = options.recipe.format();
    let (mut items, mut left) = (Vec::new(), Vec::new());
    let (mut quantized, mut transposed) = (Vec::new(), Vec::new());
    for entry in model.entries() {
        let raw = model.raw(&entry.name)?;
        let name = entry.name;
        match decide(model, &name, options)? {
            Decision::Leave(reason) => {
                left.push(Unquantized { tensor: name.clone(), reason });
                items.push(Item::Tensor(TensorSpec { name, dtype: raw.dtype, shape: raw.shape }));
            }
            Decision::Quantize(orientation, shape) => {
                quantized.push(name.clone());
                if orientation == Orientation::InputFirst {
                    transposed.push(name.clone());
                }
                let global = options.recipe.parameter_of().is_some()
                    && options.scale != TensorScale::OneLevel;
                let original = Some(raw.dtype);
                let spec = WeightSpec { name, shape, format, global, input: false, original };
                items.push(Item::Weight(spec));
            }
        }
    }
    if quantized.is_empty() {
        let what = format!("tensor that can be quantised to {}", format.name());
        return Err(CheckpointError::Nothing { path: model.path().into(), what }.into());
    }

    let bytes_before = model.entries().iter().map(|entry| entry.bytes as u64).sum();
    observer.begin(bytes_before);
    let mut save = Save::create(target, model, &items, options.save.clone())?;
    for item in &items {
        save.go_on(observer)?;
        observer.tensor(item.name());
        let raw = model.raw(item.name())?;
        match item {
            Item::Tensor(spec) => save.tensor(&spec.name, raw.data)?,
            Item::Weight(spec) => {
                let transpose = transposed.contains(&spec.name);
                save.weight(&quantize_tensor(model, spec, transpose, options, kernels)?)?;
            }
        }
        observer.done(raw.data.len() as u64);
        model.release(item.name());
    }
    let device = kernels.map_or("cpu".into(), |kernels| kernels.device().choice().device.clone());
    Ok(QuantizeReport {
        source: model.path().display().to_string(),
        format: format.name(),
        recipe: options.recipe.name(),
        layout: options.save.layout,
        device,
        quantized,
        transposed,
        left,
        bytes_before,
        saved: save.finish(model)?,
    })
}

/// Quantises one tensor of the model; `transpose` says that it is `[experts, K, N]`.
fn quantize_tensor(
    model: &Model,
    spec: &WeightSpec,
    transpose: bool,
    options: &ModelOptions,
    kernels: Option<&Kernels>,
) -> Result<Weight> {
    let dims = match *spec.shape.as_slice() {
        [rows, cols] => Dims::new(1, rows, cols)?,
        [experts, rows, cols] => Dims::new(experts, rows, cols)?,
        _ => return Err(Error::shape(&spec.name, "a matrix or several", spec.shape.len())),
    };
    let (recipe, scale) = (options.recipe, options.scale);
    let how = QuantizeOptions { recipe, scale, ..QuantizeOptions::new(recipe) };
    let file = model.file(&spec.name)?;
    let matrix = match kernels {
        None => {
            let mut values = file.floats(&spec.name)?.values;
            if transpose {
                values = transposed(&spec.name, &values, [dims.cols(), dims.rows()])?;
            }
            quantize_matrix(&spec.name, &values, dims, &how)?
        }
        Some(kernels) => {
            let raw = file.raw(&spec.name)?;
            let copy =
                if transpose { Some(transposed_bytes(&spec.name, &raw, dims)?) } else { None };
            let data = copy.as_deref().unwrap_or(raw.data);
            match device::quantize_once(kernels, data, raw.dtype, dims, &how) {
                // The device knows where; the file says what and at which byte.
                Err(Error::NonFiniteAt { index, .. }) => {
                    file.floats(&spec.name)?;
                    return Err(Error::NonFiniteAt { tensor: spec.name.clone(), index });
                }
                matrix => matrix?,
            }
        }
    };
    let global = matrix.global();
    let blocks = matrix.into_blocks(&spec.name, dims)?;
    Ok(Weight { spec: spec.clone(), blocks, global, input: None })
}

/// The elements of a float tensor `[experts, K, N]` as `[experts, N, K]`, which `dims` is.
fn transposed_bytes(name: &str, raw: &RawTensor, dims: Dims) -> Result<Vec<u8>> {
    let stored = [dims.cols(), dims.rows()];
    Ok(match raw.dtype {
        Dtype::F32 => transposed(name, raw.data.as_chunks::<4>().0, stored)?.into_flattened(),
        _ => transposed(name, raw.data.as_chunks::<2>().0, stored)?.into_flattened(),
    })
}

impl fmt::Display for QuantizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, recipe, layout, device, saved, .. } = self;
        for left in &self.left {
            writeln!(f, "left as it is: {}: {}", left.tensor, left.reason)?;
        }
        for tensor in &self.transposed {
            writeln!(f, "transposed to [experts, N, K]: {tensor}")?;
        }
        writeln!(
            f,
            "{} weights quantised to {format} by recipe {recipe} on {device}, {} tensors left",
            self.quantized.len(),
            self.left.len()
        )?;
        writeln!(
            f,
            "{}: layout {layout}, {} bytes of tensors, before {}",
            saved.path.display(),
            saved.bytes,
            self.bytes_before
        )?;
        saved.replaced.fmt(f)
    }
}
