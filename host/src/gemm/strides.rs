//! The places of a batch's matrices in their buffers.

use fp4_formats::ScaleLayout;
use fp4_formats::gemm::Problem;

use super::{ActivationKind, Output};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::quantize::device::scale_bytes;
use crate::setters::setters;
use crate::tensor::Dims;

/// Tensor maps have 40 bits for a stride in bytes, the lowest four of them 0.
const MAP_STRIDE_MAX: usize = (1 << 40) - MAP_STRIDE_UNIT;
/// Strides of tensor maps are multiples of so many bytes.
const MAP_STRIDE_UNIT: usize = 16;

/// Distances from one batch entry's matrix to the next, for [`Gemm::with_strides`]; none where a
/// matrix follows the one before. Rows within a matrix always follow each other.
///
/// | of | in | at least | a multiple of |
/// | --- | --- | --- | --- |
/// | 16-bit activations | elements | `M K`; 0 | 8 |
/// | activations' codes | elements, two to a byte | `M K`; 0 | 32, or 16 where K is an odd multiple of 16 |
/// | activations' scales | bytes | a padded matrix; 0, with that of the codes | 16 in the 128x4 layout |
/// | activations in e4m3 | elements | `M K`; 0 | 16 |
/// | tokens' scales | bytes | `4 M`; 0, with that of the elements | 4 |
/// | results in floats | elements | `M N` | 1 |
/// | codes of results in NVFP4 | elements, two to a byte | `M N` | 16 |
/// | scales of results in NVFP4 | bytes | a padded matrix | 1 |
///
/// Any number of whole rows, and of the 128x4 layout's tiles, is such a multiple. All entries have
/// the same activations where their stride is 0. Bytes between matrices are neither read nor
/// written. Strides of a batch of one are not looked at.
///
/// [`Gemm::with_strides`]: super::Gemm::with_strides
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchStrides {
    /// Elements from one entry's activations to the next's.
    pub activations: Option<usize>,
    /// Bytes from one entry's scales of block-scaled activations, or of tokens in e4m3, to the next's.
    pub activation_scales: Option<usize>,
    /// Elements from one entry's result to the next's.
    pub result: Option<usize>,
    /// Bytes from one entry's scales of a result in NVFP4 to the next's.
    pub result_scales: Option<usize>,
}

impl BatchStrides {
    /// Matrices follow each other.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

setters!(BatchStrides {
    activations: impl Into<Option<usize>>,
    activation_scales: impl Into<Option<usize>>,
    result: impl Into<Option<usize>>,
    result_scales: impl Into<Option<usize>>,
});

/// The places of a batch's activations in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    /// Matrices follow each other, those of scales too.
    Dense,
    /// There is one matrix for all.
    Shared,
    /// Something is between them.
    Apart,
}

/// The places of a batch's matrices in a buffer, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spacing {
    /// Distance from one matrix to the next; 0 for one that all entries share.
    pub stride: usize,
    /// Distance from the begin of the first matrix to the end of the last one.
    pub span: usize,
    /// Bytes of a matrix.
    matrix: usize,
    /// Whether the caller gave the stride: a buffer may then be longer than the span.
    given: bool,
}

impl Spacing {
    /// The span of an absent operand.
    const NONE: Self = Self { stride: 0, span: 0, matrix: 0, given: false };

    fn is_dense(&self) -> bool {
        self.stride == self.matrix
    }

    /// The address of `buffer` on `device`, where it holds all matrices; `what` is what errors call
    /// it.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn place(&self, what: &str, buffer: &DeviceBuffer, device: &Device) -> Result<u64> {
        if self.given {
            buffer.checked_from(what, self.span, device)
        } else {
            buffer.checked(what, self.span, device)
        }
    }
}

/// [`BatchStrides`] that fit a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strides {
    /// 16-bit elements, or codes.
    pub activations: Spacing,
    pub activation_scales: Spacing,
    /// Floats, or codes.
    pub result: Spacing,
    pub result_scales: Spacing,
}

impl Strides {
    /// Checks `given` for a problem with a result of these sizes.
    ///
    /// # Errors
    /// [`Error::Shape`] for strides that [`BatchStrides`] does not allow, and those of scales that
    /// there are not; [`Error::Overflow`].
    pub fn new(
        given: BatchStrides,
        problem: &Problem,
        result: Dims,
        kind: ActivationKind,
        output: Output,
    ) -> Result<Self> {
        let [activations, activation_scales] = of_activations(given, problem, kind)?;
        let [result, result_scales] = of_result(given, result, output)?;
        Ok(Self { activations, activation_scales, result, result_scales })
    }

    /// Lets all entries have the first one's activations.
    pub fn share_activations(&mut self) {
        let Spacing { matrix, .. } = self.activations;
        self.activations = Spacing { stride: 0, span: matrix, matrix, given: false };
    }

    /// Returns the places of the activations.
    pub fn entries(&self) -> Entries {
        if self.activations.stride == 0 {
            Entries::Shared
        } else if self.activations.is_dense() && self.activation_scales.is_dense() {
            Entries::Dense
        } else {
            Entries::Apart
        }
    }

    /// Elements from one entry's result to the next's.
    pub fn out_stride(&self, output: Output) -> u64 {
        (self.result.stride * 8 / output.element_bits()) as u64
    }
}

/// The rule for the strides of an operand.
pub(super) struct Rule {
    pub what: &'static str,
    pub unit: &'static str,
    /// Bits of a unit.
    pub bits: usize,
    /// Units of a matrix.
    pub matrix: usize,
    /// The factor of a valid stride, in units.
    pub multiple: usize,
    /// Whether it is only read, perhaps by the copy engine: entries may share a matrix.
    pub read: bool,
}

impl Rule {
    /// Places `count` matrices, `given` units apart.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Overflow`].
    pub fn space(&self, count: usize, given: Option<usize>) -> Result<Spacing> {
        let stride = match given {
            Some(stride) if count > 1 => self.check(stride)?,
            _ => self.matrix,
        };
        let overflow = || Error::Overflow {
            what: self.what.into(),
            detail: format!("{count} matrices of {} {}, {stride} apart", self.matrix, self.unit),
        };
        let bytes = |units: usize| units.checked_mul(self.bits).map(|bits| bits / 8);
        let (stride, matrix) = bytes(stride).zip(bytes(self.matrix)).ok_or_else(overflow)?;
        let before = stride.checked_mul(count - 1);
        let span = before.and_then(|before| before.checked_add(matrix)).ok_or_else(overflow)?;
        Ok(Spacing { stride, span, matrix, given: given.is_some() })
    }

    /// The stride, if it may be one.
    fn check(&self, stride: usize) -> Result<usize> {
        let &Self { unit, matrix, multiple, .. } = self;
        if self.read && stride == 0 {
            return Ok(stride);
        }
        let most = if self.read { MAP_STRIDE_MAX / self.bits * 8 } else { usize::MAX };
        if !(matrix..=most).contains(&stride) {
            let required = if self.read {
                format!("0 or from {matrix} to {most} {unit}")
            } else {
                format!("at least {matrix} {unit}")
            };
            return Err(self.refused(required, stride));
        }
        if !stride.is_multiple_of(multiple) {
            return Err(self.refused(format!("a multiple of {multiple} {unit}"), stride));
        }
        Ok(stride)
    }

    fn refused(&self, required: String, stride: usize) -> Error {
        refused(self.what, required, stride)
    }
}

/// The error for a stride of `what`.
fn refused(what: &str, required: impl Into<String>, stride: usize) -> Error {
    Error::shape(format!("batch stride of {what}"), required, stride)
}

/// Refuses a stride of scales that there are not, because the operand is `name`.
fn absent(what: &str, name: &str, given: Option<usize>) -> Result<()> {
    given.map_or(Ok(()), |stride| Err(refused(what, format!("absent beside {name}"), stride)))
}

/// Places activations and their scales.
fn of_activations(
    given: BatchStrides,
    problem: &Problem,
    kind: ActivationKind,
) -> Result<[Spacing; 2]> {
    const SCALES: &str = "the activations' scales";
    let [m, k, l] = [problem.m, problem.k, problem.l].map(|size| size as usize);
    let elements = Dims::new(1, m, k)?.elements();
    let of_elements = |what, bits, multiple| {
        let rule = Rule { what, unit: "elements", bits, matrix: elements, multiple, read: true };
        rule.space(l, given.activations)
    };
    let of_scales = |matrix, multiple| {
        let rule = Rule { what: SCALES, unit: "bytes", bits: 8, matrix, multiple, read: true };
        rule.space(l, given.activation_scales)
    };
    let (format, layout) = match kind {
        ActivationKind::Halves(_) | ActivationKind::Fp8(Some(_)) => {
            absent(SCALES, kind.name(), given.activation_scales)?;
            return Ok([of_elements("the activations", 16, MAP_STRIDE_UNIT / 2)?, Spacing::NONE]);
        }
        ActivationKind::Fp8(None) => {
            let codes = of_elements("the activations", 8, MAP_STRIDE_UNIT)?;
            let scales = of_scales(m * size_of::<f32>(), size_of::<f32>())?;
            return together(codes, scales);
        }
        ActivationKind::Blocks { format, layout } => (format, layout),
    };
    // Rows of half as many bytes are laid out anew, in words of 8 bytes.
    let multiple = if k.is_multiple_of(2 * MAP_STRIDE_UNIT) { 2 } else { 1 } * MAP_STRIDE_UNIT;
    let codes = of_elements("the activations' codes", 4, multiple)?;
    let multiple = match layout {
        ScaleLayout::Linear => 1,
        ScaleLayout::Blocked128x4 => MAP_STRIDE_UNIT,
    };
    together(codes, of_scales(scale_bytes(format, m, k, layout)?, multiple)?)
}

/// Elements and scales, both of one matrix for all entries or neither.
fn together(codes: Spacing, scales: Spacing) -> Result<[Spacing; 2]> {
    const SCALES: &str = "the activations' scales";
    match (codes.stride, scales.stride) {
        (0, 1..) => Err(refused(SCALES, "0, as that of the codes", scales.stride)),
        (1.., 0) => Err(refused(SCALES, "other than 0, as that of the codes", 0)),
        _ => Ok([codes, scales]),
    }
}

/// Places a result and its scales.
fn of_result(given: BatchStrides, dims: Dims, output: Output) -> Result<[Spacing; 2]> {
    const SCALES: &str = "the result's scales";
    let (l, matrix) = (dims.batch(), Dims::new(1, dims.rows(), dims.cols())?);
    let [_, scale_bytes] = output.bytes(matrix)?;
    let elements = Rule {
        what: match output {
            Output::Floats(_) => "the result",
            Output::Nvfp4 { .. } | Output::Mxfp4 { .. } => "the result's codes",
        },
        unit: "elements",
        bits: output.element_bits(),
        matrix: matrix.elements(),
        multiple: output.stored_together(),
        read: false,
    };
    let elements = elements.space(l, given.result)?;
    if let Output::Floats(_) = output {
        absent(SCALES, output.name(), given.result_scales)?;
        return Ok([elements, Spacing::NONE]);
    }
    let scales = Rule {
        what: SCALES,
        unit: "bytes",
        bits: 8,
        matrix: scale_bytes,
        multiple: 1,
        read: false,
    };
    Ok([elements, scales.space(l, given.result_scales)?])
}
