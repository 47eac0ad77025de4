//! The device memory of a launch besides weights, result and vectors: activations and workspace; and
//! whether it is what was planned for.

use fp4_formats::ScaleLayout;

use super::ActivationKind;
use super::strides::Strides;
use crate::buffer::{ALIGNMENT, DeviceBuffer};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::rows::Outputs;
use crate::stream::FirstStream;

/// The activations on a device. Buffers start at multiples of 16 bytes. The matrices of a batch
/// follow each other, unless [`BatchStrides`](super::BatchStrides) say otherwise.
#[derive(Clone, Copy, Debug)]
pub enum ActivationBuffers<'a> {
    /// Packed codes `[L, M, K/2]` and their scales, a padded matrix per batch entry.
    Blocks {
        /// Codes.
        codes: &'a DeviceBuffer,
        /// Scales, in the layout that was planned for.
        scales: &'a DeviceBuffer,
        /// A scale for each row of NVFP4, f32, `[M]`, or `[T]` for all tokens of a grouped product: the multipliers of
        /// [`rows::Outputs`](crate::rows::Outputs). They take the place of row factors. A batch of products of separate
        /// matrices has none.
        row_scales: Option<&'a DeviceBuffer>,
    },
    /// `[L, M, K]` elements; of products in e4m3, what is quantised before.
    Halves(&'a DeviceBuffer),
    /// `[L, M, K]` elements in e4m3, with a scale for each row.
    Fp8 {
        /// Elements.
        codes: &'a DeviceBuffer,
        /// Scales, f32, `[L, M]`.
        scales: &'a DeviceBuffer,
    },
}

impl<'a> From<Outputs<'a>> for ActivationBuffers<'a> {
    /// Takes the results of an operation on rows: blocks, with a scale for each row where they have one, e4m3 or 16-bit elements.
    fn from(made: Outputs<'a>) -> Self {
        let Outputs { elements, scales, multipliers } = made;
        match (scales, multipliers) {
            (Some(scales), row_scales) => Self::Blocks { codes: elements, scales, row_scales },
            (None, Some(scales)) => Self::Fp8 { codes: elements, scales },
            (None, None) => Self::Halves(elements),
        }
    }
}

/// [`ActivationBuffers`] of the kind and sizes that a plan is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum CheckedActivations {
    /// Address of 16-bit elements that are multiplied.
    Halves(u64),
    /// Address of 16-bit elements that become e4m3 before.
    ToFp8(u64),
    /// Addresses of elements in e4m3 and of their rows' scales.
    Fp8([u64; 2]),
    /// Block-scaled.
    Blocks {
        /// Address of the codes.
        codes: u64,
        /// Address of the scales.
        scales: u64,
        /// Order of the scales.
        layout: ScaleLayout,
    },
}

impl<'a> ActivationBuffers<'a> {
    /// Codes and scales of blocks, without a scale for each row.
    #[must_use]
    pub const fn blocks(codes: &'a DeviceBuffer, scales: &'a DeviceBuffer) -> Self {
        Self::Blocks { codes, scales, row_scales: None }
    }

    /// The scales of the rows of blocks.
    pub(super) const fn row_scales(self) -> Option<&'a DeviceBuffer> {
        match self {
            Self::Blocks { row_scales, codes: _, scales: _ } => row_scales,
            Self::Halves(_) | Self::Fp8 { .. } => None,
        }
    }

    /// Checks that they are activations of `kind` where `strides` say, on `device`.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Overflow`].
    pub(super) fn check(
        self,
        kind: ActivationKind,
        strides: &Strides,
        device: &Device,
    ) -> Result<CheckedActivations> {
        let Strides { activations, activation_scales, .. } = strides;
        match (self, kind) {
            (Self::Halves(buffer), ActivationKind::Halves(_)) => {
                let address = activations.place("the activations", buffer, device)?;
                Ok(CheckedActivations::Halves(address))
            }
            (Self::Halves(buffer), ActivationKind::Fp8(Some(_))) => {
                let address = activations.place("the activations", buffer, device)?;
                Ok(CheckedActivations::ToFp8(address))
            }
            (
                Self::Blocks { codes, scales, row_scales: _ },
                ActivationKind::Blocks { layout, .. },
            ) => Ok(CheckedActivations::Blocks {
                codes: activations.place("the activations' codes", codes, device)?,
                scales: activation_scales.place("the activations' scales", scales, device)?,
                layout,
            }),
            (Self::Fp8 { codes, scales }, ActivationKind::Fp8(None)) => {
                let codes = activations.place("the activations", codes, device)?;
                let scales = activation_scales.place("the tokens' scales", scales, device)?;
                Ok(CheckedActivations::Fp8([codes, scales]))
            }
            (Self::Fp8 { .. }, _) => {
                Err(Error::shape("activations", kind.name(), "fp8, elements and scales"))
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

/// The name in errors.
const WORKSPACE: &str = "workspace";

/// Device memory that a GEMM needs besides its operands and its result.
///
/// One serves all launches of a stream, one after the other, of any plan that it is large enough
/// for, those recorded in graphs included. It belongs to the stream that it is first used on, and
/// launches on another are refused: launches that may run at the same time need a workspace each,
/// and so do two graphs replayed on two streams.
///
/// The kernels' flags in it must be zero when a launch begins. They are in a new workspace, and
/// after a launch that ran to its end; a launch that was refused has not touched them. A kernel that
/// was stopped, by a diagnostic of the emulator for example, leaves the flags in any state:
/// [`reset`](Self::reset) makes the workspace usable again. (An error of a kernel on a GPU makes the
/// whole context unusable.)
#[derive(Debug)]
pub struct Workspace {
    buffer: DeviceBuffer,
    stream: FirstStream,
}

impl Workspace {
    /// Allocates `bytes` bytes, also where plans need none, for launches on any one stream of the
    /// device.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let buffer = DeviceBuffer::zeroed(device, "workspace", bytes.max(1))?;
        Ok(Self { buffer, stream: FirstStream::default() })
    }

    /// Takes memory that is there: a buffer, or a view of the caller's, at a multiple of
    /// [`ALIGNMENT`](crate::buffer::ALIGNMENT). Queues clearing it, as [`reset`](Self::reset).
    ///
    /// # Errors
    /// [`Error::Shape`] for another alignment; [`DeviceError`](crate::device::DeviceError).
    pub fn over(buffer: DeviceBuffer) -> Result<Self> {
        if !buffer.address().is_multiple_of(ALIGNMENT) {
            let required = format!("a multiple of {ALIGNMENT}");
            let address = format!("{:#x}", buffer.address());
            return Err(Error::shape("address of the workspace", required, address));
        }
        let stream = FirstStream::of(buffer.gpu());
        let workspace = Self { buffer, stream };
        workspace.reset()?;
        Ok(workspace)
    }

    /// Queues setting all of it to zero without waiting, on the stream that the workspace belongs
    /// to: the one that it was first used on, or that of its memory. May be recorded. Needed after a
    /// launch that was stopped.
    ///
    /// # Errors
    /// [`Error::Shape`] where the workspace belongs to another thread's own stream;
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn reset(&self) -> Result<()> {
        let Some(memory) = self.buffer.gpu() else { return self.buffer.fill(0) };
        self.buffer.fill_on(&self.stream.handle_or(WORKSPACE, memory)?, 0)
    }

    /// The same workspace, which belongs to no stream until it is used again.
    ///
    /// # Safety
    /// All launches with it have ended, or the next stream that it is used on waits for them. No
    /// graph that was recorded with it is replayed at the same time as launches with it, or as
    /// another such graph.
    #[must_use]
    pub unsafe fn for_another_stream(self) -> Self {
        Self { stream: FirstStream::default(), ..self }
    }

    /// Its size.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The address of a workspace of at least `bytes` bytes on `device`, for a launch on its stream;
    /// 0 where none is needed.
    ///
    /// # Errors
    /// [`Error::Shape`] where it is absent, too small, elsewhere, or another stream's.
    pub(crate) fn place(given: Option<&Self>, bytes: usize, device: &Device) -> Result<u64> {
        match given {
            _ if bytes == 0 => Ok(0),
            Some(workspace) if workspace.len() >= bytes => {
                workspace.buffer.require_on("the workspace", device)?;
                workspace.require_stream(device)?;
                Ok(workspace.buffer.address())
            }
            other => {
                let required = format!("at least {bytes} bytes");
                Err(Error::shape("workspace", required, other.map_or(0, Self::len)))
            }
        }
    }

    /// Makes it belong to the stream of `device`, if it belongs to none, as a launch does.
    ///
    /// # Errors
    /// [`Error::Shape`] where it belongs to another.
    pub fn require_stream(&self, device: &Device) -> Result<()> {
        self.stream.require(WORKSPACE, device)
    }
}
