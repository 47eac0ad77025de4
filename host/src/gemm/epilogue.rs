//! The epilogue of a GEMM: its options as kernels take them, and the vectors in device memory. The
//! oracle's epilogue is `gemm/exact.rs` of the crate `nvfp4-lab`. A new step is written here, in the
//! contract (`fp4_formats::gemm::epilogue`) and in the kernels; [`GemmOptions`] has the option.

use fp4_formats::FloatType;
use fp4_formats::gemm::{self, Activation, Affine, Combine, Epilogue, Half, Sink};

use super::strides::{Rule, Strides};
use super::{GemmOptions, Output, UpOptions};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Dims;

/// The options of a product's epilogue that do not depend on a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// The type of the result.
    pub output: Output,
    activation: Activation,
    /// Scale of all activations.
    pub activation_scale: f32,
    alpha: f32,
    /// Alpha of the other half of a gated product.
    up_alpha: Option<f32>,
}

impl Steps {
    /// Checks what does not depend on the shape.
    ///
    /// # Errors
    /// [`Error::Scalar`].
    pub fn new(options: &GemmOptions) -> Result<Self> {
        let &GemmOptions { alpha, activation_scale, output, activation, ref up, .. } = options;
        output.check()?;
        if let Activation::ClampedSwiglu { limit, slope } = activation {
            scalar("limit of the activation", limit, limit > 0.0, "positive and finite")?;
            scalar("slope of the activation", slope, true, "finite")?;
        }
        let up_alpha = up.as_ref().map(|up| up.alpha);
        Ok(Self { output, activation, activation_scale, alpha, up_alpha })
    }

    /// Whether two sums make a result.
    pub fn is_gated(&self) -> bool {
        self.up_alpha.is_some()
    }

    /// Returns the combine step, from values to results.
    pub fn combine(&self) -> Combine {
        self.activation.combine(self.is_gated())
    }

    /// A sentence for the plan; none where values are results.
    pub fn reason(&self) -> Option<String> {
        let activation = self.activation;
        if self.is_gated() {
            return Some(format!(
                "dual: each result is made of a gate and up, activation {activation}"
            ));
        }
        (!self.combine().is_none()).then(|| format!("activation {activation}"))
    }

    /// Factors of the sums of both halves, those of a plain product twice: `combined` makes them of
    /// alpha and the scales of the operands.
    ///
    /// # Errors
    /// As `combined`.
    pub fn factors(&self, combined: impl Fn(f32, Half) -> Result<f32>) -> Result<[f32; 2]> {
        let gate = combined(self.alpha, Half::Gate)?;
        Ok([gate, self.up_alpha.map_or(Ok(gate), |alpha| combined(alpha, Half::Up))?])
    }

    /// The kernels' parameters for a result that `sink` stores; `factors` are those of
    /// [`factors`](Self::factors), `lengths` those of the vectors of rows and of columns.
    ///
    /// # Errors
    /// [`Error::Shape`] for vectors of other lengths, elsewhere than on `device`, and those of a
    /// half that there is not.
    pub fn place(
        &self,
        [gate, up]: [f32; 2],
        vectors: Vectors<'_>,
        [m, n]: [usize; 2],
        sink: Sink,
        device: &Device,
    ) -> Result<Epilogue> {
        let place = |what: &str, buffer: Option<&DeviceBuffer>, len: usize| {
            let bytes = len * size_of::<f32>();
            buffer.map_or(Ok(0), |buffer| buffer.checked(what, bytes, device))
        };
        let affine = Affine {
            row_factors: place("the row factors", vectors.row_factors, m)?,
            column_factors: place("the column factors", vectors.column_factors, n)?,
            bias: place("the bias", vectors.bias, n)?,
            alpha: gate,
            bias_type: FloatType::F32 as u32,
        };
        let of_up = [
            ("the column factors of up", vectors.up_column_factors),
            ("the bias of up", vectors.up_bias),
        ];
        if !self.is_gated() {
            let given = of_up.into_iter().find(|(_, buffer)| buffer.is_some());
            let Some((what, _)) = given else { return Ok(self.of(affine, affine, sink)) };
            return Err(Error::shape(what, "absent, as the product is not gated", "there"));
        }
        let [column_factors, bias] = of_up.map(|(what, buffer)| place(what, buffer, n));
        let up = Affine { column_factors: column_factors?, bias: bias?, alpha: up, ..affine };
        Ok(self.of(affine, up, sink))
    }

    fn of(&self, affine: Affine, up: Affine, sink: Sink) -> Epilogue {
        Epilogue { affine, up, combine: self.combine(), sink }
    }
}

/// Checks that a product has no row factors, in whose place it has scales of tokens.
///
/// # Errors
/// [`Error::Shape`].
pub(super) fn check_no_row_factors(epilogue: &Epilogue) -> Result<()> {
    if epilogue.affine.row_factors == 0 {
        return Ok(());
    }
    let required = "absent: the tokens' scales take their place";
    Err(Error::shape("row factors", required, "there"))
}

/// The epilogue with scales of tokens at this address in the place of row factors.
pub(super) const fn scaling_rows(mut epilogue: Epilogue, scales: u64) -> Epilogue {
    epilogue.affine.row_factors = scales;
    epilogue.up.row_factors = scales;
    epilogue
}

/// Checks that a scalar is finite and `valid`.
fn scalar(field: &str, value: f32, valid: bool, required: &'static str) -> Result<()> {
    if value.is_finite() && valid {
        return Ok(());
    }
    Err(Error::Scalar { field: field.into(), required, actual: value.into() })
}

/// Buffers of the epilogue on a device: its vectors, the residual, and the word for the largest
/// magnitude. `N` is the number of the result's columns; factors are f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vectors<'a> {
    /// A factor for each row of `A`, `[M]`.
    pub row_factors: Option<&'a DeviceBuffer>,
    /// A factor for each row of `B`, `[N]`; of a gated product, of the gate.
    pub column_factors: Option<&'a DeviceBuffer>,
    /// The bias: added to each column, `[N]`; of a gated product, of the gate.
    pub bias: Option<&'a DeviceBuffer>,
    /// A factor for each row of the other half of a gated product, `[N]`.
    pub up_column_factors: Option<&'a DeviceBuffer>,
    /// The bias of the other half of a gated product, `[N]`.
    pub up_bias: Option<&'a DeviceBuffer>,
    /// One number, which the launch raises to the largest magnitude of its results, each as it is in
    /// f32 before it is rounded or quantised; NaN if one of them is, and of a grouped product whose
    /// token counts are bad. A launch never lowers it: it is set to zero by whoever reads it.
    pub magnitude: Option<&'a DeviceBuffer>,
    /// The matrices that are added to the results.
    pub residual: Option<Residual<'a>>,
}

impl Vectors<'_> {
    /// The sink with the places of the largest magnitude and of the residual.
    ///
    /// # Errors
    /// [`Error::Shape`] for buffers of other sizes, and for those that [`Residual`] does not allow;
    /// [`Error::WrongDevice`], [`Error::Overflow`].
    pub(super) fn place_in(
        &self,
        sink: Sink,
        result: (Dims, &Strides),
        device: &Device,
    ) -> Result<Sink> {
        let place = |buffer: &DeviceBuffer| {
            buffer.checked("the largest magnitude", size_of::<f32>(), device)
        };
        let magnitude = self.magnitude.map_or(Ok(0), place)?;
        let residual = self.residual.map(|residual| residual.place(&sink, result, device));
        let residual = residual.unwrap_or(Ok(gemm::epilogue::Residual::NONE))?;
        Ok(Sink { magnitude, residual, ..sink })
    }
}

/// Matrices of floats on a device that are added to the results in f32, behind activation and gate and
/// before the one rounding: `[L, M, N]` as the result, of a grouped product the rows of its tokens.
///
/// They may be the result's own buffer, if they have its type and stride: each element is read before
/// it is written. They may not overlap it otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    /// The matrices.
    pub buffer: &'a DeviceBuffer,
    /// Their type, which may differ from the result's.
    pub float_type: FloatType,
    /// Elements from one matrix of a batch to the next, at least `M N`, and beside results in NVFP4 or
    /// MXFP4 a multiple of 16 bytes; 0 for one matrix that all entries share, none where a matrix
    /// follows the one before. The buffer may be longer than it takes where this is given.
    pub stride: Option<usize>,
}

impl<'a> Residual<'a> {
    /// Matrices that follow each other.
    #[must_use]
    pub const fn of(buffer: &'a DeviceBuffer, float_type: FloatType) -> Self {
        Self { buffer, float_type, stride: None }
    }

    /// The kernels' parameters, beside a result of these sizes and strides.
    fn place(
        self,
        sink: &Sink,
        (dims, strides): (Dims, &Strides),
        device: &Device,
    ) -> Result<gemm::epilogue::Residual> {
        const WHAT: &str = "the residual";
        /// Bytes of a load.
        const VECTOR: usize = 16;
        let Self { buffer, float_type, stride } = self;
        let bytes = float_type.bytes() as usize;
        let matrix = Dims::new(1, dims.rows(), dims.cols())?.elements();
        let (bits, unit) = (8 * bytes, "elements");
        // Results in blocks are made from aligned rows alone.
        let multiple = if sink.out_type < gemm::OUT_NVFP4 { 1 } else { VECTOR / bytes };
        let rule = Rule { what: WHAT, unit, bits, matrix, multiple, read: true };
        let own = rule.space(dims.batch(), stride)?;
        let address = own.place(WHAT, buffer, device)?;
        let Strides { activations: _, activation_scales: _, result, result_scales } = strides;
        let in_place = address == sink.out
            && float_type as u32 == sink.out_type
            && (dims.batch() == 1 || own.stride == result.stride);
        let overlap = |at: u64, len: usize| {
            address < at.saturating_add(len as u64) && at < address.saturating_add(own.span as u64)
        };
        if !in_place && overlap(sink.out, result.span)
            || overlap(sink.scales.out, result_scales.span)
        {
            let required = "apart from the result, or in its place with its type and stride";
            let actual = format!("{} bytes at {address:#x}", own.span);
            return Err(Error::shape(format!("place of {WHAT}"), required, actual));
        }
        let stride = (own.stride / bytes) as u64;
        Ok(gemm::epilogue::Residual::new(address, stride, float_type, sink.columns))
    }
}

/// The options' vectors on a device.
#[derive(Debug)]
pub(super) struct OwnedVectors {
    row_factors: Option<DeviceBuffer>,
    column_factors: Option<DeviceBuffer>,
    bias: Option<DeviceBuffer>,
    up_column_factors: Option<DeviceBuffer>,
    up_bias: Option<DeviceBuffer>,
    magnitude: Option<DeviceBuffer>,
    residual: Option<(DeviceBuffer, FloatType)>,
}

impl OwnedVectors {
    /// Copies them.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn upload(device: &Device, options: &GemmOptions) -> Result<Self> {
        let [row_factors, column_factors, bias, up_column_factors, up_bias] = of_options(options)
            .map(|Vector { what, values, .. }| {
                let Some(values) = values else { return Ok(None) };
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                DeviceBuffer::upload(device, what, &bytes).map(Some)
            });
        Ok(Self {
            row_factors: row_factors?,
            column_factors: column_factors?,
            bias: bias?,
            up_column_factors: up_column_factors?,
            up_bias: up_bias?,
            magnitude: options
                .magnitude
                .then(|| DeviceBuffer::zeroed(device, "magnitude", size_of::<f32>()))
                .transpose()?,
            residual: options
                .residual
                .as_ref()
                .map(|residual| residual.upload(device))
                .transpose()?,
        })
    }

    /// Returns the vectors for a launch.
    pub fn vectors(&self) -> Vectors<'_> {
        Vectors {
            row_factors: self.row_factors.as_ref(),
            column_factors: self.column_factors.as_ref(),
            bias: self.bias.as_ref(),
            up_column_factors: self.up_column_factors.as_ref(),
            up_bias: self.up_bias.as_ref(),
            magnitude: self.magnitude.as_ref(),
            residual: self.residual.as_ref().map(|(buffer, dtype)| Residual::of(buffer, *dtype)),
        }
    }

    /// The largest magnitude of the results of all launches, if it was asked for.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn largest(&self) -> Result<Option<f32>> {
        let Some(buffer) = &self.magnitude else { return Ok(None) };
        let bytes = buffer.read()?;
        Ok(bytes.first_chunk().map(|bytes| f32::from_le_bytes(*bytes)))
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        let Self {
            row_factors,
            column_factors,
            bias,
            up_column_factors,
            up_bias,
            magnitude: _,
            residual,
        } = self;
        let vectors = [row_factors, column_factors, bias, up_column_factors, up_bias];
        let all = vectors.into_iter().flatten().chain(residual.iter().map(|(buffer, _)| buffer));
        all.map(|buffer| buffer.len() as u64).sum()
    }
}

/// One of the options' vectors.
struct Vector<'a> {
    what: &'static str,
    values: Option<&'a Vec<f32>>,
    /// The size that is its length.
    letter: &'static str,
}

/// Row factors, column factors and bias, then column factors and bias of the other half.
fn of_options(options: &GemmOptions) -> [Vector<'_>; 5] {
    let GemmOptions { row_factors, column_factors, bias, up, .. } = options;
    let (up_column_factors, up_bias) = match up {
        Some(UpOptions { column_factors, bias, .. }) => (column_factors.as_ref(), bias.as_ref()),
        None => (None, None),
    };
    [
        Vector { what: "row factors", values: row_factors.as_ref(), letter: "M" },
        Vector { what: "column factors", values: column_factors.as_ref(), letter: "N" },
        Vector { what: "bias", values: bias.as_ref(), letter: "N" },
        Vector { what: "column factors of up", values: up_column_factors, letter: "N" },
        Vector { what: "bias of up", values: up_bias, letter: "N" },
    ]
}

/// Checks the lengths of the options' vectors for a result of `m` rows and `n` columns.
///
/// # Errors
/// [`Error::Shape`].
pub fn check_vectors(options: &GemmOptions, m: usize, n: usize) -> Result<()> {
    for Vector { what, values, letter } in of_options(options) {
        let required = if letter == "M" { m } else { n };
        match values {
            Some(values) if values.len() != required => {
                let required = format!("{letter} = {required}");
                return Err(Error::shape(format!("length of the {what}"), required, values.len()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that the options' residual, if there is one, has a value for each of `l` x `m` x `n` results.
///
/// # Errors
/// [`Error::Shape`].
pub fn check_residual(options: &GemmOptions, [l, m, n]: [usize; 3]) -> Result<()> {
    let Some(residual) = &options.residual else { return Ok(()) };
    let (results, found) = (l.saturating_mul(m).saturating_mul(n), residual.values().len());
    if found == results {
        return Ok(());
    }
    let required = format!("{l} x {m} x {n} = {results}");
    Err(Error::shape("elements of the residual", required, found))
}

/// The column vectors of these options.
fn column_vectors(options: &mut GemmOptions) -> impl Iterator<Item = &mut Vec<f32>> {
    let GemmOptions { column_factors, bias, up, .. } = options;
    let of_up = up.as_mut().map(|up| [&mut up.column_factors, &mut up.bias]);
    [column_factors, bias].into_iter().chain(of_up.into_iter().flatten()).flatten()
}

/// Options of `groups` groups of `n` columns whose column vectors are all of one length, and whether
/// that is `[G, N]`: where one of them is, those of `[N]` are repeated. Other lengths stay.
pub(super) fn of_groups(options: &GemmOptions, groups: usize, n: usize) -> (GemmOptions, bool) {
    let mut all = options.clone();
    let own = groups > 1 && column_vectors(&mut all).any(|vector| vector.len() == groups * n);
    for vector in column_vectors(&mut all).filter(|vector| own && vector.len() == n) {
        *vector = vector.repeat(groups);
    }
    (all, own)
}

/// The options of each of `groups` groups of `n` columns, as the oracle takes them: of column factors
/// and biases that are `[G, N]`, the group's.
#[must_use]
pub fn group_options(options: &GemmOptions, groups: usize, n: usize) -> Vec<GemmOptions> {
    let (all, own) = of_groups(options, groups, n);
    let of_group = |group: usize| {
        let mut options = all.clone();
        for vector in column_vectors(&mut options).filter(|_| own) {
            *vector = vector.iter().skip(group * n).take(n).copied().collect();
        }
        options
    };
    (0..groups).map(of_group).collect()
}

/// Multiplies the sums of each group with a factor, as
/// [`Repacked::stack_scaled`](super::Repacked::stack_scaled) multiplies its weights.
pub fn scale_options(options: &mut [GemmOptions], factors: &[f32]) {
    for (options, factor) in options.iter_mut().zip(factors) {
        options.alpha *= factor;
        if let Some(up) = &mut options.up {
            up.alpha *= factor;
        }
    }
}

impl GemmOptions {
    /// Checks the choices that do not depend on the operands.
    ///
    /// # Errors
    /// [`Error::Scalar`](crate::error::Error::Scalar).
    pub fn check(&self) -> Result<()> {
        Steps::new(self).map(|_| ())
    }
}
