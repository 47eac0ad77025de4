//! Grouped products: a case, its inputs, and the comparison with the oracle for each row of each
//! group.

use super::expected::{compare_largest, quantized};
use super::{ActivationType, LINEAR, POISON, ResidualAt, adding_of, blocks};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::Result;
use nvfp4::floats;
use nvfp4::gemm::{
    Activation, GatedWeights, Gemm, GemmOptions, GemmOverrides, GemmPlan, GroupBuffers, Grouping,
    Output, Repacked, Residual, ResultBuffers, SettledCounts, UpOptions, Vectors, Weights,
    Workspace, group_offsets,
};
use nvfp4::tensor::BlockScaled;
use nvfp4::tune::ResultKind;
use nvfp4_lab::gemm::reference_grouped_for;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands::gemm::GemmActivations;
use nvfp4_lab::oracle::Reference;
use nvfp4_lab::rng::SplitMix64;
use ptx_emu::LaunchReport;
use std::ops::Range;

/// One grouped product and the way it is run.
#[derive(Debug, Clone)]
pub struct GroupedCase {
    /// Tokens of each group.
    pub counts: Vec<usize>,
    /// Tokens of a slot; `None` if groups follow each other.
    pub slot: Option<usize>,
    /// Tokens of the matrices that no group has, if groups follow each other.
    pub spare: usize,
    /// N of the result, and K.
    pub sizes: [usize; 2],
    /// Format of the weights.
    pub format: Format,
    /// Type of the activations.
    pub activations: ActivationType,
    /// The generator of the inputs.
    pub generator: Generator,
    /// Seed of the inputs.
    pub seed: u64,
    /// The type of the result.
    pub result: ResultKind,
    /// Factor of the result.
    pub alpha: f32,
    /// Whether each group has its own factor.
    pub factors: bool,
    /// Whether there are row factors, column factors, a bias.
    pub vectors: [bool; 3],
    /// Whether column factors and biases are each group's own.
    pub own_vectors: bool,
    /// The activation function of the epilogue.
    pub activation: Activation,
    /// Whether the product is gated.
    pub gated: bool,
    /// Whether the largest magnitude of the results is asked for.
    pub magnitude: bool,
    /// The rows that are added to the results: dense, or in their place. Rows of no group are poison.
    pub residual: Option<ResidualAt>,
    /// Whether launches read the counts while kernels before them still run.
    pub settled: bool,
    /// Whether launches bring the same weights to L2 for a product behind them.
    pub next: bool,
    /// Choices that are taken from the plan.
    pub overrides: GemmOverrides,
}

/// The outcome of a case that was compared.
#[derive(Debug)]
pub struct Checked {
    /// The result of the case's own type.
    pub result: GroupedResult,
    /// Rows of weights and tokens of the tiles of the plan for floats, which a case of blocks runs, too.
    pub tile: [u32; 2],
}

/// The outcome of a case.
#[derive(Debug)]
pub struct GroupedResult {
    /// Elements, or codes.
    pub bytes: Vec<u8>,
    /// Scales of a result in NVFP4.
    pub scales: Vec<u8>,
    /// The status word.
    pub status: u32,
    /// The largest magnitude, if it was asked for.
    pub magnitude: Option<f32>,
    /// The plan.
    pub plan: GemmPlan,
    /// The launches' reports.
    pub reports: Vec<LaunchReport>,
}

/// The value of the status word before a launch.
const STATUS: u32 = 77;

struct GroupedInputs<F> {
    activations: GemmActivations<F>,
    experts: Vec<BlockScaled<F>>,
    ups: Vec<BlockScaled<F>>,
    /// The options of each group.
    options: Vec<GemmOptions>,
    factors: [Vec<f32>; 2],
}

impl<F: BlockFormat> GroupedInputs<F> {
    fn weights(&self) -> Vec<Weights<'_, F>> {
        let pair = |at: usize| match self.ups.get(at) {
            Some(up) => GatedWeights::pair(&self.experts[at], up).expect("a pair").into(),
            None => (&self.experts[at]).into(),
        };
        (0..self.experts.len()).map(pair).collect()
    }
}

/// Compares the largest magnitude, if there is one, with that of the results `values`.
fn compare_magnitude(result: &GroupedResult, of: FloatType, values: &[f32], what: &str) {
    if let Some(found) = result.magnitude {
        compare_largest(found, of, values).unwrap_or_else(|error| panic!("{what}\n{error}"));
    }
}

impl GroupedCase {
    /// Makes a case with NVFP4 operands of exact sums, an f32 result, and the host library's plan.
    #[must_use]
    pub fn new(counts: &[usize], sizes: [usize; 2]) -> Self {
        Self {
            counts: counts.to_vec(),
            slot: None,
            spare: 0,
            sizes,
            format: Format::Nvfp4,
            activations: LINEAR,
            generator: Generator::Exact,
            seed: 1,
            result: FloatType::F32.into(),
            alpha: 1.0,
            factors: false,
            vectors: [false; 3],
            own_vectors: false,
            activation: Activation::Identity,
            gated: false,
            magnitude: false,
            residual: None,
            settled: true,
            next: false,
            overrides: GemmOverrides::default(),
        }
    }

    /// Returns the rows of all matrices.
    fn rows(&self) -> usize {
        match self.slot {
            Some(slot) => slot * self.counts.len(),
            None => self.counts.iter().sum::<usize>() + self.spare,
        }
    }

    /// Returns the number of matrices and the tokens of each.
    fn matrices(&self) -> [usize; 2] {
        match self.slot {
            Some(slot) => [self.counts.len(), slot],
            None => [1, self.rows()],
        }
    }

    fn grouping(&self) -> Grouping {
        match self.slot {
            Some(tokens) => Grouping::Slots { tokens },
            None => Grouping::Contiguous { bound: self.rows() },
        }
    }

    /// Returns the rows of each group.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let mut next = 0;
        let range = |(group, &count): (usize, &usize)| {
            let first = self.slot.map_or(next, |slot| slot * group);
            next += count;
            first..first + count
        };
        self.counts.iter().enumerate().map(range).collect()
    }

    /// Returns the counts as the device takes them.
    fn counts_on_device(&self) -> Vec<i32> {
        match self.slot {
            Some(_) => self.counts.iter().map(|&count| count as i32).collect(),
            None => group_offsets(&self.counts).expect("few tokens"),
        }
    }

    fn inputs<F: BlockFormat>(&self) -> GroupedInputs<F> {
        let ([n, k], [matrices, rows]) = (self.sizes, self.matrices());
        let mut rng = SplitMix64::new(self.seed);
        let groups = self.counts.len();
        // Tensors with their own scales.
        let own_scale = |group: usize| [1.0, 0.5, 4.0][group % 3];
        let expert = |rng: &mut SplitMix64, group: usize| {
            let layout = ScaleLayout::ALL[group % 2];
            blocks::<F>(self.generator, [1, n, k], layout, own_scale(group), rng)
        };
        let experts: Vec<_> = (0..groups).map(|group| expert(&mut rng, group)).collect();
        let ups = if self.gated { groups } else { 0 };
        let ups = (0..ups).map(|group| expert(&mut rng, group + 1)).collect();
        let activations = match self.activations {
            ActivationType::Blocks(layout) => GemmActivations::Blocks(blocks::<F>(
                self.generator,
                [matrices, rows, k],
                layout,
                1.0,
                &mut rng,
            )),
            ActivationType::Halves(_) | ActivationType::Fp8(_) => {
                self.activations.floats(self.generator, [matrices, rows, k], 1, &mut rng)
            }
        };
        let exact = self.generator == Generator::Exact;
        let mut vector = |wanted: bool, count: usize| -> Option<Vec<f32>> {
            let choice = |rng: &mut SplitMix64| match exact {
                true => [0.5, -1.0, 2.0, 4.0][rng.below(4) as usize],
                false => rng.normal() as f32,
            };
            wanted.then(|| (0..count).map(|_| choice(&mut rng)).collect())
        };
        // The scales of tokens take the place of row factors.
        let has_rows = self.vectors[0] && self.activations != ActivationType::Fp8(None);
        let row_factors = vector(has_rows, matrices * rows);
        let ones = || vec![1.0; groups];
        let factors = [vector(self.factors, groups), vector(self.factors && self.gated, groups)]
            .map(|factors| factors.unwrap_or_else(ones));
        let [_, has_columns, has_bias] = self.vectors;
        let shared: [Option<Vec<f32>>; 4] =
            [has_columns, has_bias, has_columns && self.gated, has_bias && self.gated]
                .map(|wanted| vector(wanted, n));
        let residual = self.residual.map(|residual| {
            let mut rng = SplitMix64::new(self.seed + 1000);
            let exact = exact && !self.gated && self.activation == Activation::Identity;
            residual.values([matrices, rows * n], exact, &mut rng)
        });
        let options = (0..groups).map(|_| {
            let [column_factors, bias, up_factors, up_bias] = match self.own_vectors {
                true => shared.clone().map(|shared| vector(shared.is_some(), n)),
                false => shared.clone(),
            };
            let up = UpOptions::new().alpha(-1.5).column_factors(up_factors).bias(up_bias);
            GemmOptions::new()
                .alpha(self.alpha)
                .row_factors(row_factors.clone())
                .column_factors(column_factors)
                .bias(bias)
                .activation(self.activation)
                .residual(residual.clone())
                .up(self.gated.then_some(up))
                .overrides(self.overrides.clone())
                .adding(adding_of(&self.overrides))
        });
        let options = options.collect();
        GroupedInputs { activations, experts, ups, options, factors }
    }

    /// The residual's elements, with poison in rows that belong to no group.
    fn residual_bytes(&self, options: &GemmOptions) -> Vec<u8> {
        let Some(residual) = &options.residual else { return Vec::new() };
        let (mut bytes, ranges) = (residual.bytes(), self.ranges());
        let row_bytes = bytes.len() / self.rows();
        for (row, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            if !ranges.iter().any(|range| range.contains(&row)) {
                bytes.fill(POISON);
            }
        }
        bytes
    }

    /// Runs the case with these counts on the device, which may differ from the case's.
    ///
    /// # Panics
    /// If the library refuses it.
    #[must_use]
    pub fn run_with(&self, kernels: &Kernels, counts: &[i32]) -> GroupedResult {
        let result = match self.format {
            Format::Nvfp4 => {
                self.run_on::<Nvfp4>(kernels, &self.inputs(), counts, self.result.output(1.0))
            }
            Format::Mxfp4 => {
                self.run_on::<Mxfp4>(kernels, &self.inputs(), counts, self.result.output(1.0))
            }
        };
        result.unwrap_or_else(|error| panic!("{self:?}\n{error}"))
    }

    /// Runs the case and compares nothing.
    ///
    /// # Panics
    /// If the library refuses it.
    #[must_use]
    pub fn run(&self, kernels: &Kernels) -> GroupedResult {
        self.run_with(kernels, &self.counts_on_device())
    }

    fn run_on<F: BlockFormat>(
        &self,
        kernels: &Kernels,
        inputs: &GroupedInputs<F>,
        counts: &[i32],
        output: Output,
    ) -> Result<GroupedResult> {
        let (kernels, reports) = &kernels.observed();
        let device = kernels.device();
        let upload = |name: &str, bytes: &[u8]| DeviceBuffer::upload(device, name, bytes);
        let a = inputs.activations.activations();
        let kind = a.kind();
        let parts: Result<Vec<Repacked>> = inputs
            .weights()
            .iter()
            .map(|weights| Repacked::rounded(device, *weights, kind))
            .collect();
        let weights = Repacked::stack(&parts?)?.upload(device)?;
        let options = inputs.options[0].clone().output(output).activation_scale(a.global_scale());
        let product = Gemm::grouped(kernels, &weights, self.grouping(), kind, &options)?;
        let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let vector = |name: &str, of: &dyn Fn(&GemmOptions) -> Option<Vec<f32>>, own: bool| {
            let groups = if own { inputs.options.len() } else { 1 };
            let all: Option<Vec<Vec<f32>>> = inputs.options[..groups].iter().map(of).collect();
            let all: Option<Vec<u8>> = all.map(|all| floats(&all.concat()));
            all.map(|bytes| upload(name, &bytes)).transpose()
        };
        let own = self.own_vectors;
        let rows = vector("rows", &|o| o.row_factors.clone(), false)?;
        let columns = vector("columns", &|o| o.column_factors.clone(), own)?;
        let bias = vector("bias", &|o| o.bias.clone(), own)?;
        let of_up = |o: &GemmOptions| o.up.clone().unwrap_or_default();
        let up_columns = vector("up columns", &|o| of_up(o).column_factors, own)?;
        let up_bias = vector("up bias", &|o| of_up(o).bias, own)?;
        let counts: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        let counts = upload("counts", &counts)?;
        let status = upload("status", &STATUS.to_le_bytes())?;
        let factors = upload("factors", &floats(&inputs.factors[0]))?;
        let up_factors = upload("factors of up", &floats(&inputs.factors[1]))?;
        let [bytes, scale_bytes] = product.out_bytes()?;
        let residual_bytes = self.residual_bytes(&inputs.options[0]);
        let in_place = self.residual.is_some_and(|residual| residual.place.is_none());
        let poison = vec![POISON; bytes];
        let out = upload("c", if in_place { &residual_bytes } else { &poison })?;
        let apart = match self.residual {
            Some(ResidualAt { place: Some(_), .. }) => Some(upload("residual", &residual_bytes)?),
            Some(ResidualAt { place: None, .. }) | None => None,
        };
        let residual = self
            .residual
            .map(|residual| Residual::of(apart.as_ref().unwrap_or(&out), residual.float_type));
        let out_scales = upload("c scales", &vec![POISON; scale_bytes.max(1)])?;
        let out_buffers = match output {
            Output::Floats(_) => ResultBuffers::Floats(&out),
            Output::Nvfp4 { .. } | Output::Mxfp4 { .. } => {
                ResultBuffers::Blocks { codes: &out, scales: &out_scales }
            }
        };
        let magnitude = DeviceBuffer::zeroed(device, "magnitude", size_of::<f32>())?;
        let workspace = Workspace::new(device, product.workspace_bytes())?;
        let [codes, scales] = inputs
            .activations
            .bytes()
            .map(|bytes| upload("a", if bytes.is_empty() { &[0] } else { &bytes }));
        let buffers = [codes?, scales?];
        let input = self.activations.buffers(&buffers[0], Some(&buffers[1]));
        product.launch_grouped(
            GroupBuffers {
                counts: &counts,
                status: Some(&status),
                factors: self.factors.then_some(&factors),
                up_factors: (self.factors && self.gated).then_some(&up_factors),
                own_vectors: own,
                // SAFETY: they were uploaded above.
                settled: self.settled.then(|| unsafe { SettledCounts::new() }),
                next: self.next.then_some(&weights),
            },
            input,
            &weights,
            out_buffers,
            Some(&workspace),
            Vectors {
                row_factors: rows.as_ref(),
                column_factors: columns.as_ref(),
                bias: bias.as_ref(),
                up_column_factors: up_columns.as_ref(),
                up_bias: up_bias.as_ref(),
                magnitude: self.magnitude.then_some(&magnitude),
                residual,
            },
        )?;
        let (status, magnitude) =
            (status.read()?, floats::decode(FloatType::F32, &magnitude.read()?));
        Ok(GroupedResult {
            bytes: out.read()?,
            scales: if scale_bytes == 0 { Vec::new() } else { out_scales.read()? },
            status: u32::from_le_bytes([status[0], status[1], status[2], status[3]]),
            magnitude: self.magnitude.then(|| magnitude[0]),
            plan: product.plan().clone(),
            reports: reports.take(),
        })
    }

    /// Runs the case on a device whose results are poisoned before, and compares: rows of groups
    /// with the oracle, all others with the poison.
    ///
    /// # Panics
    /// With the first mismatch.
    pub fn check(&self, kernels: &Kernels) -> Checked {
        match self.format {
            Format::Nvfp4 => self.check_as::<Nvfp4>(kernels),
            Format::Mxfp4 => self.check_as::<Mxfp4>(kernels),
        }
    }

    fn check_as<F: BlockFormat>(&self, kernels: &Kernels) -> Checked {
        let what = format!("{}: {self:?}", kernels.device().choice());
        let inputs = self.inputs::<F>();
        let mut exact = inputs.options.clone();
        for (group, options) in exact.iter_mut().enumerate() {
            options.alpha *= inputs.factors[0][group];
            if let Some(up) = &mut options.up {
                up.alpha *= inputs.factors[1][group];
            }
        }
        let a = inputs.activations.activations();
        let arch = kernels.device().choice().arch;
        let reference = reference_grouped_for(arch, &a, &inputs.weights(), &self.ranges(), &exact);
        let reference = reference.unwrap_or_else(|error| panic!("{what}\n{error}"));
        let counts = self.counts_on_device();
        let run = |output| {
            let result = self.run_on::<F>(kernels, &inputs, &counts, output);
            let result = result.unwrap_or_else(|error| panic!("{what}\n{error}"));
            assert_eq!(result.status, STATUS, "{what}");
            if let Some(name) = &self.overrides.kernel {
                assert_eq!(result.plan.kernel, name, "{what}");
            }
            result
        };
        let of = match self.result {
            ResultKind::Floats(floats) => floats,
            ResultKind::Blocks(..) => FloatType::F32,
        };
        let result = run(of.into());
        let values = self.compare(&reference, &result, of, &what);
        compare_magnitude(&result, of, &values, &what);
        let tile = result.plan.tile;
        let result = match self.result {
            ResultKind::Floats(_) => result,
            ResultKind::Blocks(format, layout) => {
                let amax = values.iter().fold(0f32, |amax, x| amax.max(x.abs()));
                let scale = fp4_formats::gemm::OUT_RECIPE.tensor_parameter(amax);
                let result = run(self.result.output(scale));
                self.compare_blocks(&values, &result, (format, scale, layout), &what);
                compare_magnitude(&result, FloatType::F32, &values, &what);
                result
            }
        };
        Checked { result, tile }
    }

    /// Compares floats and returns the values, 0 for rows of no group.
    fn compare(
        &self,
        reference: &Reference,
        result: &GroupedResult,
        of: FloatType,
        what: &str,
    ) -> Vec<f32> {
        let n = self.sizes[0];
        let element = of.bytes() as usize;
        let mut values = floats::decode(of, &result.bytes);
        let ranges = self.ranges();
        for row in 0..self.rows() {
            let group = ranges.iter().position(|range| range.contains(&row));
            for column in 0..n {
                let at = row * n + column;
                let place = format!("group {group:?}, row {row}, column {column}");
                if group.is_none() {
                    let bytes = &result.bytes[at * element..][..element];
                    assert!(bytes.iter().all(|&byte| byte == POISON), "{what}\n{place}: written");
                    values[at] = 0.0;
                    continue;
                }
                let (got, right) = (f64::from(values[at]), reference.values[at]);
                let allowed = reference.allowed(at, of);
                let fits = (got - right).abs() <= allowed
                    || got.is_infinite() && right.abs() + allowed >= floats::max(of);
                assert!(fits, "{what}\n{place}: {got:e}, not {right:e} +- {allowed:e}");
            }
        }
        values
    }

    /// Compares a result in NVFP4 with the CPU's quantisation of `values`.
    fn compare_blocks(
        &self,
        values: &[f32],
        result: &GroupedResult,
        blocks @ (format, _, layout): (Format, f32, ScaleLayout),
        what: &str,
    ) {
        let ([n, _], [matrices, rows]) = (self.sizes, self.matrices());
        let [right, right_scales] = quantized([matrices, rows, n], values, blocks);
        let (columns, stride) = (format.block() as usize, right_scales.len() / matrices);
        for (group, range) in self.ranges().iter().enumerate() {
            for row in range.clone() {
                let (matrix, within) = (row / rows, row % rows);
                for block in 0..n / columns {
                    let place = format!("{what}\ngroup {group}, row {row}, block {block}");
                    let at = matrix * stride + layout.offset(within, block, n / columns);
                    assert_eq!(result.scales[at], right_scales[at], "{place}");
                    let codes = (row * n + block * columns) / 2;
                    let codes = codes..codes + columns / 2;
                    let (codes, right) = (&result.bytes[codes.clone()], &right[codes]);
                    let same = |x: &u8, y: &u8| {
                        [x & 15, x >> 4]
                            .into_iter()
                            .zip([y & 15, y >> 4])
                            .all(|(x, y)| x == y || x & 7 == 0 && y & 7 == 0)
                    };
                    let equal = codes.iter().zip(right).all(|(x, y)| same(x, y));
                    assert!(equal, "{place}: {codes:x?}, not {right:x?}");
                }
            }
        }
        let ranges = self.ranges();
        for row in (0..self.rows()).filter(|row| !ranges.iter().any(|range| range.contains(row))) {
            let codes = &result.bytes[row * n / 2..(row + 1) * n / 2];
            assert!(codes.iter().all(|&byte| byte == POISON), "{what}\nrow {row}: written");
        }
    }
}
