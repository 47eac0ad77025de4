//! One matrix of a checkpoint as the weights of a product, quantised or not.

use fp4_formats::quantize::Format;
use fp4_formats::{Nvfp4, ScaleLayout};

use super::error::CheckpointError;
use super::load::load;
use super::model::Model;
use super::parts::{Layout, Parts};
use super::side;
use super::weight::{Blocks, Order};
use crate::error::Result;
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::{BlockScaled, Dims};

/// A matrix `[N, K]` as the weights of a product.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Its name, with the expert if it is one of several.
    pub name: String,
    /// Codes and scales, with linear scales.
    pub blocks: Blocks,
    /// The values that `blocks` stands for, or those that it was made from, row-major.
    pub values: Vec<f32>,
    /// The layout in which it was stored; `None` if it was not quantised.
    pub layout: Option<Layout>,
}

/// Reads the weight `tensor` of a checkpoint, in any layout or unquantised. A name without its
/// ending `.weight` is understood. A float matrix is quantised to NVFP4 by TorchAO's recipe.
/// `expert` chooses one of several matrices in one tensor.
///
/// # Errors
/// [`CheckpointError`]; [`Error::Shape`](nvfp4::Error::Shape) if an expert is missing, or given for a single matrix; the
/// errors of [`quantize`].
pub fn matrix(model: &Model, tensor: &str, expert: Option<usize>) -> Result<Matrix> {
    let names = [tensor.to_owned(), format!("{tensor}.weight")];
    let quantised = Layout::detect(model).and_then(|layout| {
        let is_named = |parts: &Parts| names.contains(&parts.name) || parts.codes == tensor;
        layout.find(model).into_iter().find(is_named).map(|parts| (layout, parts))
    });
    if let Some((layout, parts)) = quantised {
        let weight = load(model, layout, &parts)?;
        let (name, dims) = (&weight.spec.name, weight.blocks.dims());
        let refuse = |reason: &str| {
            let (layout, tensor) = (layout.name(), name.clone());
            CheckpointError::Unsupported { layout, tensor, reason: reason.into() }
        };
        if weight.spec.order == Order::AlongOutput {
            return Err(refuse("its blocks run along the output dimension"));
        }
        if side::has(model, name) {
            return Err(refuse("other tensors change what it means, and products ignore them"));
        }
        let (name, at) = choose(name, dims.batch(), weight.spec.shape.len(), expert)?;
        let blocks = weight.entry(at)?;
        let values = blocks.dequantize()?;
        return Ok(Matrix { name, blocks, values, layout: Some(layout) });
    }
    let name = names.iter().find(|name| model.contains(name)).unwrap_or(&names[0]);
    let file = model.file(name)?;
    let shape = file.raw(name)?.shape;
    let (batch, rows, cols) = match *shape.as_slice() {
        [rows, cols] => (1, rows, cols),
        [experts, rows, cols] => (experts, rows, cols),
        _ => return Err(file.wrong_shape(name, "[N, K] or [experts, N, K]", &shape)),
    };
    let (label, at) = choose(name, batch, shape.len(), expert)?;
    let dims = Dims::new(1, rows, cols)?;
    let mut values = file.floats(name)?.values;
    values.drain(..at * dims.elements());
    values.truncate(dims.elements());
    let blocks = quantize(&label, &values, dims, TensorScale::FromAmax, ScaleLayout::Linear)?;
    Ok(Matrix { name: label, blocks: Blocks::Nvfp4(blocks), values, layout: None })
}

/// Name and index of the matrix that is asked for.
fn choose(name: &str, batch: usize, rank: usize, expert: Option<usize>) -> Result<(String, usize)> {
    match expert {
        None if rank <= 2 => Ok((name.to_owned(), 0)),
        Some(at) if rank > 2 && at < batch => Ok((format!("{name}[{at}]"), at)),
        None => Err(CheckpointError::shape(
            "expert",
            format!("below {batch}, of `{name}`"),
            "not given",
        )),
        Some(at) if rank > 2 => {
            Err(CheckpointError::shape("expert", format!("below {batch}, of `{name}`"), at))
        }
        Some(at) => {
            Err(CheckpointError::shape("expert", format!("absent, as `{name}` is a matrix"), at))
        }
    }
}

impl Matrix {
    /// The weights, if they are in NVFP4.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`] for MXFP4.
    pub fn nvfp4(self, operation: &str) -> Result<(BlockScaled<Nvfp4>, Vec<f32>)> {
        match self.blocks {
            Blocks::Nvfp4(blocks) => Ok((blocks, self.values)),
            Blocks::Mxfp4(_) => {
                let required = format!("{} for {operation}", Format::Nvfp4.name());
                let field = format!("format of `{}`", self.name);
                Err(CheckpointError::shape(field, required, Format::Mxfp4.name()))
            }
        }
    }
}
