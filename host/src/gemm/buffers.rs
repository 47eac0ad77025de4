//! What a launch gets, in device memory: activations, vectors, workspace; and whether that is what
//! was planned for.

use fp4_formats::ScaleLayout;
use fp4_formats::gemm::Problem;
use fp4_formats::quantize::Format;

use super::ActivationKind;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::quantize::device::scale_bytes;

/// The left operand on a device. Buffers start at multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub enum ActivationBuffers<'a> {
    /// Packed codes `[L, M, K/2]` and their scales, a padded matrix a batch entry.
    Blocks {
        /// Codes.
        codes: &'a DeviceBuffer,
        /// Scales, in the layout that was planned for.
        scales: &'a DeviceBuffer,
    },
    /// `[L, M, K]` elements.
    Halves(&'a DeviceBuffer),
}

/// [`ActivationBuffers`] of the kind and sizes that a plan is for.
pub(super) enum CheckedActivations {
    /// Address of 16-bit elements.
    Halves(u64),
    /// Block-scaled.
    Blocks {
        /// Address of the codes.
        codes: u64,
        /// Address of the scales.
        scales: u64,
        /// Bytes from one batch entry's scales to the next.
        stride: usize,
        /// What they are in.
        format: Format,
        /// Order of the scales.
        layout: ScaleLayout,
    },
}

impl ActivationBuffers<'_> {
    /// Checks that they are activations of `kind` of the problem.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Overflow`].
    pub(super) fn check(
        self,
        kind: ActivationKind,
        problem: &Problem,
    ) -> Result<CheckedActivations> {
        let [m, k, l] = [problem.m, problem.k, problem.l].map(|size| size as usize);
        match (self, kind) {
            (Self::Halves(buffer), ActivationKind::Halves(_)) => {
                let address = buffer.sized("the activations", l * m * k * 2)?;
                Ok(CheckedActivations::Halves(address))
            }
            (Self::Blocks { codes, scales }, ActivationKind::Blocks { format, layout }) => {
                let stride = scale_bytes(format, m, k, layout)?;
                Ok(CheckedActivations::Blocks {
                    codes: codes.sized("the activations' codes", l * m * (k / 2))?,
                    scales: scales.sized("the activations' scales", l * stride)?,
                    stride,
                    format,
                    layout,
                })
            }
            (Self::Blocks { .. }, _) => {
                Err(Error::shape("activations", kind.name(), "codes and scales"))
            }
            (Self::Halves(_), _) => {
                Err(Error::shape("activations", kind.name(), "16-bit elements"))
            }
        }
    }
}

/// Vectors of the epilogue on a device, f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vectors<'a> {
    /// A factor for each row of `A`, `[M]`.
    pub row_factors: Option<&'a DeviceBuffer>,
    /// A factor for each row of `B`, `[N]`.
    pub column_factors: Option<&'a DeviceBuffer>,
    /// What is added to each column, `[N]`.
    pub bias: Option<&'a DeviceBuffer>,
}

impl Vectors<'_> {
    /// Checks lengths. The addresses of row factors, column factors and bias; 0 for none.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(super) fn place(self, problem: &Problem) -> Result<[u64; 3]> {
        let place = |what: &str, buffer: Option<&DeviceBuffer>, len: u32| {
            buffer.map_or(Ok(0), |buffer| buffer.sized(what, len as usize * size_of::<f32>()))
        };
        Ok([
            place("the row factors", self.row_factors, problem.m)?,
            place("the column factors", self.column_factors, problem.n)?,
            place("the bias", self.bias, problem.n)?,
        ])
    }
}

/// Device memory that a GEMM needs besides its operands and its result. What the kernels count
/// in it is zero at first, and after every launch.
#[derive(Debug)]
pub struct Workspace(DeviceBuffer);

impl Workspace {
    /// Allocates `bytes` bytes.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let buffer = DeviceBuffer::poisoned(device, "workspace", bytes)?;
        buffer.fill(0)?;
        Ok(Self(buffer))
    }

    /// Its size.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The address of a workspace of at least `bytes` bytes; 0 where none is needed.
    ///
    /// # Errors
    /// [`Error::Shape`] where it is absent or too small.
    pub(super) fn place(given: Option<&Self>, bytes: usize) -> Result<u64> {
        match given {
            _ if bytes == 0 => Ok(0),
            Some(workspace) if workspace.len() >= bytes => Ok(workspace.0.address()),
            other => {
                let required = format!("at least {bytes} bytes");
                Err(Error::shape("workspace", required, other.map_or(0, Self::len)))
            }
        }
    }
}
