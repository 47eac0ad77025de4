//! Matrices of a checkpoint, made layers: in four bits where the file has them so, in floats otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Result, Tensor};
use nvfp4::tensor::Blocks;
use nvfp4_checkpoint::{FloatTensor, Order, decoded_floats};

use super::layers::{Experts, Gated, Joined, Projection};
use super::matrices::{Below, Matrices, Stored, joined_bias};
use super::meter::Meter;
use super::values::{self, Floats};
use crate::builder::quantized;
use crate::error::{shape, wrap};
use crate::weights::by_all_cores;
use crate::{Gate, Linear, MoeLinear, PackedBuilder};

/// Reads the tensors of a model.
#[derive(Clone)]
pub(super) struct Loader {
    pub builder: PackedBuilder,
    pub dtype: DType,
    pub meter: Arc<Meter>,
    /// Bytes of the weights as they are kept.
    pub bytes: Arc<AtomicU64>,
}

impl Loader {
    pub fn at(&self, path: impl std::fmt::Display) -> Self {
        Self { builder: self.builder.pp(path), ..self.clone() }
    }

    fn device(&self) -> &Device {
        self.builder.engine().device()
    }

    /// A tensor of floats where it is computed with.
    fn place(&self, floats: &Floats, dims: &[usize]) -> Result<Tensor> {
        let bytes = (floats.len() * self.dtype.size_in_bytes()) as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        floats.open(self.builder.model())?.tensor(dims, self.dtype, self.device())
    }

    /// The bias of a layer in four bits.
    fn bias_of_packed(&self, bias: Option<&Floats>, dims: &[usize]) -> Result<Option<Tensor>> {
        let place =
            |bias: &Floats| bias.open(self.builder.model())?.tensor(dims, DType::F32, &Device::Cpu);
        bias.map(place).transpose()
    }

    /// A number, which any tensor of the model can be combined with.
    pub fn number(&self, value: f64) -> Result<Tensor> {
        Tensor::new(value, &Device::Cpu)?.to_dtype(self.dtype)?.to_device(self.device())
    }

    /// A tensor in floats, whatever it is stored in.
    pub fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        self.place(&self.floats(name, dims, false)?, dims)
    }

    fn floats(&self, name: &str, dims: &[usize], is_turned: bool) -> Result<Floats> {
        let (full, model) = (self.builder.name(name), self.builder.model());
        let (found, values, turned) = match self.builder.stored(name)? {
            Some(weight) => {
                let values = weight.dequantize().map_err(wrap)?;
                (weight.spec.shape, Some(values), weight.spec.order == Order::AlongOutput)
            }
            None => match decoded_floats(model, &full).map_err(wrap)? {
                Some(FloatTensor { shape, values }) => (shape, Some(values), is_turned),
                None => (model.raw(&full).map_err(wrap)?.shape, None, is_turned),
            },
        };
        let mut required = dims.to_vec();
        if let (true, [.., rows, columns]) = (turned, required.as_mut_slice()) {
            std::mem::swap(rows, columns);
        }
        if found != required {
            return Err(shape(format!("shape of `{full}`"), format!("{required:?}"), found));
        }
        Ok(match (values, dims) {
            (None, &[.., rows, columns]) if turned => {
                Floats::turned(full, dims.iter().product(), [rows, columns])
            }
            (None, _) => Floats::stored(full, dims.iter().product()),
            (Some(values), &[.., rows, columns]) if turned => {
                Floats::decoded(values::turned(&values, [rows, columns])?)
            }
            (Some(values), _) => Floats::decoded(values),
        })
    }

    /// The bias of a module, which is there if and only if the configuration says so.
    fn bias(&self, names: &[&str], dims: &[usize], has: bool) -> Result<Option<Floats>> {
        let found = names.iter().find(|name| self.builder.contains(name));
        match (found, has) {
            (Some(name), true) => self.floats(name, dims, false).map(Some),
            (None, true) => self.floats(names[0], dims, false).map(Some),
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
                Stored::Packed(match sizes[0] {
                    1 => vec![weight.blocks],
                    count => by_all_cores(0..count, |at| weight.entry(at)).map_err(wrap)?,
                })
            }
            None => Stored::Floats(self.floats(name, dims, is_turned)?),
        };
        Ok(Matrices { name: full, sizes, stored })
    }

    /// Floats become blocks if the builder says so and K is a whole number of them.
    fn settled(&self, matrices: Matrices) -> Result<Stored> {
        let Matrices { name, sizes: [count, rows, columns], stored } = matrices;
        let (floats, format) = match (stored, self.builder.quantizes()) {
            (Stored::Floats(floats), Some(format))
                if columns.is_multiple_of(format.block() as usize) =>
            {
                (floats, format)
            }
            (stored, _) => return Ok(stored),
        };
        let (open, size) = (floats.open(self.builder.model())?, rows * columns);
        let of = |at: usize| {
            let elements = open.elements(at * size..(at + 1) * size)?;
            quantized(&name, elements.source(), [rows, columns], format)
        };
        by_all_cores(0..count, of).map(Stored::Packed)
    }

    fn count(&self, blocks: &[Blocks]) {
        let bytes = |blocks: &Blocks| (blocks.codes().len() + blocks.scales().len()) as u64;
        self.bytes.fetch_add(blocks.iter().map(bytes).sum(), Ordering::Relaxed);
    }

    /// A layer of one matrix with its bias `[N]`.
    fn layer(&self, matrices: Matrices, bias: Option<&Floats>) -> Result<Projection> {
        let [_, rows, columns] = matrices.sizes;
        match self.settled(matrices)? {
            Stored::Packed(blocks) => {
                self.count(&blocks);
                let bias = self.bias_of_packed(bias, &[rows])?;
                let linear = Linear::new(self.builder.engine(), &blocks[0], bias.as_ref())?;
                Ok(Projection::Packed(linear, self.meter.clone()))
            }
            Stored::Floats(floats) => {
                let bias = bias.map(|bias| self.place(bias, &[rows])).transpose()?;
                let weight = self.place(&floats, &[rows, columns])?;
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
        own.layer(own.matrices("weight", [1, outputs, inputs], false)?, bias.as_ref())
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
                        let bias = self.bias_of_packed(bias.as_ref(), &[2 * inner])?;
                        let engine = self.builder.engine();
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
    ) -> Result<(Below, Vec<Option<Floats>>)> {
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
        biases: Vec<Option<Floats>>,
        outputs: &[usize],
    ) -> Result<Joined> {
        let layers = match below {
            Below::One(one) => vec![self.layer(one, joined_bias(biases).as_ref())?],
            Below::Apart(all) => {
                let each = all.into_iter().zip(biases);
                each.map(|(one, bias)| self.layer(one, bias.as_ref())).collect::<Result<_>>()?
            }
        };
        Ok(Joined::new(layers, outputs))
    }

    /// The layer of experts' matrices with biases `[experts, N]`. In four bits it applies the activation of matrices with a gate
    /// and up.
    pub fn experts(
        &self,
        matrices: Matrices,
        bias: Option<&Floats>,
        gate: Option<Gate>,
    ) -> Result<Experts> {
        let [experts, rows, columns] = matrices.sizes;
        match self.settled(matrices)? {
            Stored::Packed(blocks) => {
                self.count(&blocks);
                let bias = self.bias_of_packed(bias, &[experts, rows])?;
                let engine = self.builder.engine();
                let layer = match gate {
                    Some(gate) => MoeLinear::gated(engine, &blocks, bias.as_ref(), gate)?,
                    None => MoeLinear::new(engine, &blocks, bias.as_ref())?,
                };
                Ok(Experts::Packed(layer, self.meter.clone()))
            }
            Stored::Floats(floats) => {
                let bias = bias.map(|bias| self.place(bias, &[experts, rows])).transpose()?;
                let weight = self.place(&floats, &[experts, rows, columns])?;
                Ok(Experts::Floats { weight, bias })
            }
        }
    }

    /// Biases of all experts, in one tensor under the first of these names.
    pub fn experts_bias(
        &self,
        names: &[&str],
        sizes: [usize; 2],
        has: bool,
    ) -> Result<Option<Floats>> {
        self.bias(names, &sizes, has)
    }

    /// The biases of the module `NAME` of each expert: `0.NAME`, `1.NAME` and so on.
    pub fn bias_of_each(
        &self,
        name: &str,
        [experts, rows]: [usize; 2],
        has: bool,
    ) -> Result<Option<Floats>> {
        let of = |at: usize| self.at(at).at(name).bias(&["bias"], &[rows], has);
        let each = (0..experts).map(of).collect::<Result<Option<Vec<_>>>>()?;
        Ok(each.map(|each| Floats::joined(each, 1)))
    }

    /// The matrices of the module `NAME` of each expert.
    pub fn of_each(&self, name: &str, [experts, rows, columns]: [usize; 3]) -> Result<Matrices> {
        let of = |at: usize| self.at(at).at(name).matrices("weight", [1, rows, columns], false);
        let all = by_all_cores(0..experts, of)?;
        let (name, sizes) = (self.builder.name(name), [experts, rows, columns]);
        let (mut packed, mut others) = (Vec::new(), Vec::new());
        for one in all {
            match one.stored {
                Stored::Packed(blocks) => packed.extend(blocks),
                Stored::Floats(floats) => others.push(floats),
            }
        }
        let stored = match (packed.is_empty(), others.is_empty()) {
            (false, true) => Stored::Packed(packed),
            (true, _) => Stored::Floats(Floats::joined(others, 1)),
            // Some experts in four bits and others not: a layer has one form.
            (false, false) => {
                let actual = format!("{} of {experts} experts in four bits", packed.len());
                return Err(shape(format!("experts of `{name}`"), "all in one form", actual));
            }
        };
        Ok(Matrices { name, sizes, stored })
    }
}
