//! Matrices of a checkpoint, made layers: in four bits where the file has them so, in floats otherwise.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use nvfp4::ScaleLayout;
use nvfp4::tensor::{Blocks, Dims};
use nvfp4_checkpoint::{FloatTensor, Order, floats};

use super::layers::{Experts, Gated, Joined, Projection};
use super::meter::Meter;
use crate::builder::quantized;
use crate::error::{shape, wrap};
use crate::{Gate, Linear, MoeLinear, PackedBuilder};

/// Matrices of one size as the file has them.
pub(super) enum Stored {
    Packed(Vec<Blocks>),
    /// Values of all, one after the other.
    Floats(Vec<f32>),
}

/// Matrices `[N, K]` with their sizes: how many, N, K.
pub(super) struct Matrices {
    name: String,
    sizes: [usize; 3],
    stored: Stored,
}

/// Reads the tensors of a model.
#[derive(Clone)]
pub(super) struct Loader {
    pub builder: PackedBuilder,
    pub dtype: DType,
    pub meter: Arc<Meter>,
    /// Bytes of the weights as they are kept.
    pub bytes: Rc<Cell<u64>>,
}

impl Loader {
    pub fn at(&self, path: impl std::fmt::Display) -> Self {
        Self { builder: self.builder.pp(path), ..self.clone() }
    }

    fn device(&self) -> &Device {
        self.builder.engine().device()
    }

    /// A tensor of floats where it is computed with.
    fn place(&self, values: Vec<f32>, dims: &[usize]) -> Result<Tensor> {
        let tensor = Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(self.dtype)?;
        self.bytes
            .set(self.bytes.get() + (tensor.elem_count() * self.dtype.size_in_bytes()) as u64);
        tensor.to_device(self.device())
    }

    /// A number, which any tensor of the model can be combined with.
    pub fn number(&self, value: f64) -> Result<Tensor> {
        Tensor::new(value, &Device::Cpu)?.to_dtype(self.dtype)?.to_device(self.device())
    }

    /// A tensor in floats, whatever it is stored in.
    pub fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        self.place(self.values(name, dims, false)?, dims)
    }

    fn values(&self, name: &str, dims: &[usize], is_turned: bool) -> Result<Vec<f32>> {
        let full = self.builder.name(name);
        let mut required = dims.to_vec();
        let (shape_of, values, turned) = match self.builder.stored(name)? {
            Some(weight) => {
                let values = weight.dequantize().map_err(wrap)?;
                (weight.spec.shape, values, weight.spec.order == Order::AlongOutput)
            }
            None => {
                let FloatTensor { shape, values } =
                    floats(self.builder.model(), &full).map_err(wrap)?;
                (shape, values, is_turned)
            }
        };
        if let (true, [.., rows, columns]) = (turned, required.as_mut_slice()) {
            std::mem::swap(rows, columns);
        }
        if shape_of != required {
            return Err(shape(format!("shape of `{full}`"), format!("{required:?}"), shape_of));
        }
        match *dims {
            [.., rows, columns] if turned => {
                let each = values.chunks_exact(rows * columns);
                let element = |each: &[f32], at: usize| each[at % columns * rows + at / columns];
                Ok(each.flat_map(|each| (0..rows * columns).map(|at| element(each, at))).collect())
            }
            _ => Ok(values),
        }
    }

    /// The bias of a module, which is there if and only if the configuration says so.
    fn bias(&self, names: &[&str], dims: &[usize], has: bool) -> Result<Option<Vec<f32>>> {
        let found = names.iter().find(|name| self.builder.contains(name));
        match (found, has) {
            (Some(name), true) => self.values(name, dims, false).map(Some),
            (None, true) => self.values(names[0], dims, false).map(Some),
            (None, false) => Ok(None),
            (Some(name), false) => {
                let name = self.builder.name(name);
                Err(shape(format!("`{name}`"), "absent, as config.json says", "there"))
            }
        }
    }

    /// Matrices of a tensor. `is_turned` says that floats are stored with the inputs first.
    pub fn matrices(&self, name: &str, sizes: [usize; 3], is_turned: bool) -> Result<Matrices> {
        let full = self.builder.name(name);
        let dims = if sizes[0] == 1 && !is_turned { &sizes[1..] } else { &sizes[..] };
        let packed = match self.builder.stored(name)? {
            Some(weight) if weight.spec.order != Order::AlongOutput => Some(weight),
            _ => None,
        };
        let stored = match packed {
            Some(weight) => {
                let found = weight.blocks.dims();
                let found = [found.batch(), found.rows(), found.cols()];
                if found != sizes {
                    let field = format!("shape of `{full}` (matrices, N, K)");
                    return Err(shape(field, format!("{sizes:?}"), found));
                }
                let each = (0..sizes[0]).map(|at| weight.entry(at));
                Stored::Packed(each.collect::<nvfp4::Result<_>>().map_err(wrap)?)
            }
            None => Stored::Floats(self.values(name, dims, is_turned)?),
        };
        Ok(Matrices { name: full, sizes, stored })
    }

    /// Floats become blocks if the builder says so and K is a whole number of them.
    fn settled(&self, matrices: Matrices) -> Result<Stored> {
        let Matrices { name, sizes: [_, rows, columns], stored } = matrices;
        let (values, format) = match (stored, self.builder.quantizes()) {
            (Stored::Floats(values), Some(format))
                if columns.is_multiple_of(format.block() as usize) =>
            {
                (values, format)
            }
            (stored, _) => return Ok(stored),
        };
        let each = values.chunks_exact(rows * columns);
        let each = each.map(|values| quantized(&name, values, [rows, columns], format));
        Ok(Stored::Packed(each.collect::<Result<_>>()?))
    }

    fn count(&self, blocks: &[Blocks]) {
        let bytes = |blocks: &Blocks| (blocks.codes().len() + blocks.scales().len()) as u64;
        self.bytes.set(self.bytes.get() + blocks.iter().map(bytes).sum::<u64>());
    }

    /// A layer of one matrix with its bias `[N]`.
    fn layer(&self, matrices: Matrices, bias: Option<Vec<f32>>) -> Result<Projection> {
        let [_, rows, columns] = matrices.sizes;
        match self.settled(matrices)? {
            Stored::Packed(blocks) => {
                self.count(&blocks);
                let bias =
                    bias.map(|bias| Tensor::from_vec(bias, rows, &Device::Cpu)).transpose()?;
                let linear = Linear::new(self.builder.engine(), &blocks[0], bias.as_ref())?;
                Ok(Projection::Packed(linear, self.meter.clone()))
            }
            Stored::Floats(values) => {
                let bias = bias.map(|bias| self.place(bias, &[rows])).transpose()?;
                let weight = self.place(values, &[rows, columns])?;
                Ok(Projection::Floats(candle_nn::Linear::new(weight, bias)))
            }
        }
    }

    /// The layer of the module `path`, of so many inputs and outputs.
    pub fn linear(
        &self,
        path: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
    ) -> Result<Projection> {
        let own = self.at(path);
        let bias = own.bias(&["bias"], &[outputs], bias)?;
        own.layer(own.matrices("weight", [1, outputs, inputs], false)?, bias)
    }

    /// Modules with the same inputs, joined into one if their formats and scales allow it.
    pub fn joined(
        &self,
        paths: &[&str],
        inputs: usize,
        outputs: &[usize],
        bias: bool,
    ) -> Result<Joined> {
        let (below, biases) = self.below(paths, inputs, outputs, bias)?;
        self.layers(below, biases, outputs)
    }

    /// The modules of a gate and of up: one product with the activation in it if that is in four bits.
    pub fn gated(
        &self,
        paths: [&str; 2],
        inputs: usize,
        inner: usize,
        bias: bool,
        gate: Gate,
    ) -> Result<Gated> {
        let outputs = [inner; 2];
        let (below, biases) = self.below(&paths, inputs, &outputs, bias)?;
        let below = match below {
            Below::One(one) => {
                let (name, sizes) = (one.name.clone(), one.sizes);
                match self.settled(one)? {
                    Stored::Packed(blocks) => {
                        self.count(&blocks);
                        let bias = joined_bias(biases);
                        let bias = bias.map(|bias| Tensor::from_vec(bias, 2 * inner, &Device::Cpu));
                        let (engine, bias) = (self.builder.engine(), bias.transpose()?);
                        let layer = Linear::gated(engine, &blocks[0], bias.as_ref(), gate)?;
                        return Ok(Gated::Whole(layer, self.meter.clone()));
                    }
                    stored @ Stored::Floats(_) => Below::One(Matrices { name, sizes, stored }),
                }
            }
            apart @ Below::Apart(_) => apart,
        };
        self.layers(below, biases, &outputs).map(Gated::Apart)
    }

    /// The matrices of modules with the same inputs, joined if possible, and their biases.
    fn below(
        &self,
        paths: &[&str],
        inputs: usize,
        outputs: &[usize],
        bias: bool,
    ) -> Result<(Below, Vec<Option<Vec<f32>>>)> {
        let (mut all, mut biases) = (Vec::new(), Vec::new());
        for (path, &rows) in paths.iter().zip(outputs) {
            let own = self.at(path);
            biases.push(own.bias(&["bias"], &[rows], bias)?);
            all.push(own.matrices("weight", [1, rows, inputs], false)?);
        }
        Ok((Matrices::joined(all)?, biases))
    }

    fn layers(
        &self,
        below: Below,
        biases: Vec<Option<Vec<f32>>>,
        outputs: &[usize],
    ) -> Result<Joined> {
        let layers = match below {
            Below::One(one) => vec![self.layer(one, joined_bias(biases))?],
            Below::Apart(all) => {
                let each = all.into_iter().zip(biases);
                each.map(|(one, bias)| self.layer(one, bias)).collect::<Result<_>>()?
            }
        };
        Ok(Joined::new(layers, outputs))
    }

    /// The layer of experts' matrices with biases `[experts, N]`. In four bits it applies the activation of matrices with a gate
    /// and up.
    pub fn experts(
        &self,
        matrices: Matrices,
        bias: Option<Vec<f32>>,
        gate: Option<Gate>,
    ) -> Result<Experts> {
        let [experts, rows, columns] = matrices.sizes;
        match self.settled(matrices)? {
            Stored::Packed(blocks) => {
                self.count(&blocks);
                let bias = bias.map(|bias| Tensor::from_vec(bias, (experts, rows), &Device::Cpu));
                let (engine, bias) = (self.builder.engine(), bias.transpose()?);
                let layer = match gate {
                    Some(gate) => MoeLinear::gated(engine, &blocks, bias.as_ref(), gate)?,
                    None => MoeLinear::new(engine, &blocks, bias.as_ref())?,
                };
                Ok(Experts::Packed(layer, self.meter.clone()))
            }
            Stored::Floats(values) => {
                let bias = bias.map(|bias| self.place(bias, &[experts, rows])).transpose()?;
                Ok(Experts::Floats { weight: self.place(values, &[experts, rows, columns])?, bias })
            }
        }
    }

    /// Biases of all experts, in one tensor under the first of these names.
    pub fn experts_bias(
        &self,
        names: &[&str],
        sizes: [usize; 2],
        has: bool,
    ) -> Result<Option<Vec<f32>>> {
        self.bias(names, &sizes, has)
    }

    /// The biases of the module `NAME` of each expert: `0.NAME`, `1.NAME` and so on.
    pub fn bias_of_each(
        &self,
        name: &str,
        [experts, rows]: [usize; 2],
        has: bool,
    ) -> Result<Option<Vec<f32>>> {
        let of = |at: usize| self.at(at).at(name).bias(&["bias"], &[rows], has);
        let each = (0..experts).map(of).collect::<Result<Option<Vec<_>>>>()?;
        Ok(each.map(|each| each.concat()))
    }

    /// The matrices of the module `NAME` of each expert.
    pub fn of_each(&self, name: &str, [experts, rows, columns]: [usize; 3]) -> Result<Matrices> {
        let of = |at: usize| self.at(at).at(name).matrices("weight", [1, rows, columns], false);
        let each = (0..experts).map(of).collect::<Result<Vec<_>>>()?;
        let (name, sizes) = (self.builder.name(name), [experts, rows, columns]);
        let (mut packed, mut values) = (Vec::new(), Vec::new());
        for one in each {
            match one.stored {
                Stored::Packed(blocks) => packed.extend(blocks),
                Stored::Floats(floats) => values.push(floats),
            }
        }
        let stored = match (packed.is_empty(), values.is_empty()) {
            (false, true) => Stored::Packed(packed),
            (true, _) => Stored::Floats(values.concat()),
            // Some experts in four bits and others not: a layer has one form.
            (false, false) => {
                let actual = format!("{} of {experts} experts in four bits", packed.len());
                return Err(shape(format!("experts of `{name}`"), "all in one form", actual));
            }
        };
        Ok(Matrices { name, sizes, stored })
    }
}

/// The biases of joined modules.
fn joined_bias(biases: Vec<Option<Vec<f32>>>) -> Option<Vec<f32>> {
    let all: Option<Vec<Vec<f32>>> = biases.into_iter().collect();
    all.map(|all| all.concat())
}

/// Matrices whose rows were to be joined.
pub(super) enum Below {
    One(Matrices),
    /// The matrices that were given.
    Apart(Vec<Matrices>),
}

impl Matrices {
    /// Rows of all below each other, matrix by matrix, unless they differ in format or in a tensor-level scale.
    pub fn joined(all: Vec<Self>) -> Result<Below> {
        let Some(first) = all.first() else { return Ok(Below::Apart(all)) };
        let [count, _, columns] = first.sizes;
        let rows = all.iter().map(|matrices| matrices.sizes[1]).sum();
        let name = first.name.clone();
        let mut packed: Vec<&Vec<Blocks>> = Vec::new();
        let mut values: Vec<&[f32]> = Vec::new();
        for matrices in &all {
            match &matrices.stored {
                Stored::Packed(blocks) => packed.push(blocks),
                Stored::Floats(floats) => values.push(floats),
            }
        }
        let stored = if values.len() == all.len() {
            let mut joint = Vec::with_capacity(count * rows * columns);
            for at in 0..count {
                for part in &values {
                    let each = part.len() / count;
                    joint.extend_from_slice(&part[at * each..][..each]);
                }
            }
            Stored::Floats(joint)
        } else if packed.len() == all.len() {
            let each = (0..count).map(|at| {
                let parts: Vec<&Blocks> = packed.iter().map(|blocks| &blocks[at]).collect();
                below_each_other(&name, &parts, [rows, columns])
            });
            match each.collect::<Result<Option<Vec<_>>>>()? {
                Some(blocks) => Stored::Packed(blocks),
                None => return Ok(Below::Apart(all)),
            }
        } else {
            return Ok(Below::Apart(all));
        };
        Ok(Below::One(Self { name, sizes: [count, rows, columns], stored }))
    }
}

/// One matrix of the rows of several, if one format and one tensor-level scale are theirs.
fn below_each_other(
    name: &str,
    parts: &[&Blocks],
    [rows, columns]: [usize; 2],
) -> Result<Option<Blocks>> {
    let scale = |blocks: &Blocks| match blocks {
        Blocks::Nvfp4(blocks) => blocks.global_scale(),
        Blocks::Mxfp4(blocks) => blocks.global_scale(),
    };
    let (format, multiplier) = (parts[0].format(), scale(parts[0]));
    if parts.iter().any(|part| part.format() != format || scale(part) != multiplier) {
        return Ok(None);
    }
    let all = |of: fn(&Blocks) -> &[u8]| parts.iter().flat_map(|part| of(part)).copied().collect();
    let (codes, scales) = (all(Blocks::codes), all(Blocks::scales));
    let dims = Dims::new(1, rows, columns).map_err(wrap)?;
    let linear = ScaleLayout::Linear;
    Blocks::new(format, name, dims, linear, codes, scales, multiplier).map(Some).map_err(wrap)
}
