//! Operands on their way to a file.

use std::path::Path;

use fp4_formats::{BlockFormat, HalfType, ScaleLayout};
use safetensors::Dtype;

use super::gemm::{GemmActivations, HALVES, Halves, ROW_SCALE};
use super::stack::GroupWeights;
use super::{result_type, scalar_tensor, scale_type, tensor};
use nvfp4::gemm::{GemmOptions, HalfMatrix, UpOptions};
use nvfp4::tensor::BlockScaled;
use nvfp4_checkpoint::Result;
use nvfp4_checkpoint::{self as checkpoint, NewTensor};

/// Tensors and metadata of a file.
pub(super) struct Written {
    tensors: Vec<(String, NewTensor)>,
    metadata: Vec<(String, String)>,
}

impl Written {
    /// Nothing yet, with weights in format `F`.
    pub fn of<F: BlockFormat>() -> Self {
        Self { tensors: Vec::new(), metadata: vec![("format".into(), F::NAME.into())] }
    }

    /// Adds a tensor.
    pub fn push(&mut self, name: &str, tensor: NewTensor) {
        self.tensors.push((name.into(), tensor));
    }

    /// Adds a word of metadata.
    pub fn say(&mut self, key: String, word: &str) {
        self.metadata.push((key, word.into()));
    }

    /// Adds floats.
    pub fn floats(&mut self, name: &str, shape: Vec<usize>, values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.push(name, tensor(Dtype::F32, shape, bytes));
    }

    /// Adds integers of 32 bits.
    pub fn integers(&mut self, name: &str, shape: Vec<usize>, values: &[i32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.push(name, tensor(Dtype::I32, shape, bytes));
    }

    /// Adds a tensor of codes with its scales and its layout: `[L, rows, K/2]`.
    pub fn matrix<F: BlockFormat>(&mut self, name: &str, x: &BlockScaled<F>) {
        self.matrices(name, &[x], true);
    }

    /// Adds tensors of one size as one, each with its tensor's scale.
    pub fn stack<F: BlockFormat>(&mut self, name: &str, matrices: &[&BlockScaled<F>]) {
        self.matrices(name, matrices, true);
    }

    fn matrices<F: BlockFormat>(
        &mut self,
        name: &str,
        matrices: &[&BlockScaled<F>],
        with_batch: bool,
    ) {
        let Some(first) = matrices.first() else { return };
        let dims = first.dims();
        let batch = with_batch.then_some(matrices.len() * dims.batch());
        let shape = |rest: &[usize]| batch.iter().chain(rest).copied().collect::<Vec<_>>();
        let all = |part: fn(&BlockScaled<F>) -> &[u8]| -> Vec<u8> {
            matrices.iter().flat_map(|matrix| part(matrix)).copied().collect()
        };
        let codes = all(BlockScaled::codes);
        self.push(name, tensor(Dtype::U8, shape(&[dims.rows(), dims.cols() / 2]), codes));
        let of_scales = match first.layout() {
            ScaleLayout::Linear => shape(&[dims.rows(), first.kblocks()]),
            ScaleLayout::Blocked128x4 => shape(&[first.scale_stride()]),
        };
        let scales = tensor(scale_type::<F>(), of_scales, all(BlockScaled::scales));
        self.push(&format!("{name}_scale"), scales);
        let global = format!("{name}_global_scale");
        match matrices {
            [one] => self.push(&global, scalar_tensor(one.global_scale())),
            _ => {
                let scales: Vec<f32> = matrices.iter().map(|x| x.global_scale()).collect();
                self.floats(&global, vec![scales.len()], &scales);
            }
        }
        self.say(format!("{name}_scale_layout"), first.layout().name());
    }

    /// Adds activations, with their batch or without.
    pub fn activations<F: BlockFormat>(
        &mut self,
        name: &str,
        a: &GemmActivations<F>,
        with_batch: bool,
    ) {
        match a {
            GemmActivations::Blocks(a) => self.matrices(name, &[a], with_batch),
            GemmActivations::ScaledRows(a) => {
                let dims = a.blocks().dims();
                self.matrices(name, &[a.blocks()], with_batch);
                let batch = with_batch.then_some(dims.batch());
                let shape = batch.into_iter().chain([dims.rows()]).collect();
                self.floats(&format!("{name}{ROW_SCALE}"), shape, a.scales());
            }
            GemmActivations::Halves(a) | GemmActivations::ToFp8(a) => {
                self.halves_matrix(name, a, with_batch);
            }
            GemmActivations::Fp8(a) => {
                let dims = a.dims();
                let batch = with_batch.then_some(dims.batch());
                let rows: Vec<usize> = batch.into_iter().chain([dims.rows()]).collect();
                let shape = rows.iter().copied().chain([dims.cols()]).collect();
                self.push(name, tensor(Dtype::F8_E4M3, shape, a.codes().to_vec()));
                self.push(&format!("{name}_scale"), tensor(Dtype::F32, rows, a.scale_bytes()));
            }
        }
    }

    /// Adds 16-bit floats.
    pub fn halves_matrix(&mut self, name: &str, a: &HalfMatrix, with_batch: bool) {
        let dtype = match a.operand() {
            HalfType::F16 => Dtype::F16,
            HalfType::Bf16 => Dtype::BF16,
        };
        let dims = a.dims();
        let batch = with_batch.then_some(dims.batch());
        let shape = batch.into_iter().chain([dims.rows(), dims.cols()]).collect();
        self.push(name, tensor(dtype, shape, a.bytes().to_vec()));
    }

    /// Says how the weights `name` have both halves, if they do.
    pub fn halves<F>(&mut self, name: &str, halves: &Halves<F>) {
        if let Some(word) = halves.word() {
            self.say(format!("{name}{HALVES}"), word);
        }
    }

    /// Adds the weights `name` of groups, which all have the form of the first.
    pub fn groups<F: BlockFormat>(&mut self, name: &str, groups: &[GroupWeights<F>]) {
        self.stack(name, &groups.iter().map(|group| &group.b).collect::<Vec<_>>());
        let ups: Vec<&BlockScaled<F>> =
            groups.iter().filter_map(|group| group.halves.up()).collect();
        self.stack(&format!("{name}_up"), &ups);
        if let Some(first) = groups.first() {
            self.halves(name, &first.halves);
        }
    }

    /// Adds alpha, factors and biases; `shape` is that of a vector by name.
    pub fn options(&mut self, options: &GemmOptions, shape: impl Fn(&str, &[f32]) -> Vec<usize>) {
        self.push("alpha", scalar_tensor(options.alpha));
        let mut vectors = vec![
            ("row_factors", &options.row_factors),
            ("column_factors", &options.column_factors),
            ("bias", &options.bias),
        ];
        if let Some(UpOptions { alpha, column_factors, bias, .. }) = &options.up {
            self.push("up_alpha", scalar_tensor(*alpha));
            vectors.extend([("up_column_factors", column_factors), ("up_bias", bias)]);
        }
        for (name, vector) in vectors {
            if let Some(vector) = vector {
                self.floats(name, shape(name, vector), vector);
            }
        }
    }

    /// The residual of a result of these sizes, if there is one.
    pub fn residual(&mut self, options: &GemmOptions, sizes: [usize; 3]) {
        if let Some(residual) = &options.residual {
            let dtype = result_type(residual.float_type());
            self.push("residual", tensor(dtype, sizes.to_vec(), residual.bytes()));
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`Error::Io`](nvfp4::error::Error::Io).
    pub fn save(self, path: &Path) -> Result<()> {
        let (names, tensors): (Vec<String>, Vec<NewTensor>) = self.tensors.into_iter().unzip();
        let tensors: Vec<(&str, NewTensor)> =
            names.iter().map(String::as_str).zip(tensors).collect();
        let metadata: Vec<(&str, String)> =
            self.metadata.iter().map(|(key, word)| (key.as_str(), word.clone())).collect();
        checkpoint::write(path, &tensors, &metadata)
    }
}
