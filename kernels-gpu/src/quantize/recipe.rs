//! The recipes on the device: from a block's maximum to its scale.

use super::convert::{AnyRange, LARGEST_MODERATE, LEAST_MODERATE, Moderate, is_moderate};
use super::input::Input;
use cuda_std::ptx::{marker, memory};
use fp4_formats::quantize::{QuantizeParams, ScaleSource};
use fp4_formats::recipe::{BlockScale, Mxfp4Recipe, Mxfp4Steps, Nvfp4Recipe, Nvfp4Tensor};
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4};

/// The recipe is chosen by the parameters.
pub const ANY: u32 = u32::MAX;

/// A recipe on the device.
pub trait Recipe {
    /// The format of its blocks.
    type Format: BlockFormat;
    /// The values that the blocks of a tensor or row share.
    type Tensor: Copy;

    /// Reads the parameters of the tensor, or of row `row` of it. Returns the tensor parameter too.
    ///
    /// # Safety
    /// `p` keeps its contract, and row `row` exists.
    unsafe fn tensor(p: &QuantizeParams, row: u32) -> (Self::Tensor, f32);

    /// The values of a tensor or row with this parameter.
    fn of_parameter(p: &QuantizeParams, parameter: f32) -> Self::Tensor;

    /// The parameter for a largest magnitude; 1 if the format has none.
    fn parameter(p: &QuantizeParams, amax: f32) -> f32;

    /// The factor of dequantised elements, of the parameter; 1 if the format has none.
    fn multiplier(p: &QuantizeParams, parameter: f32) -> f32;

    /// Reads as [`tensor`](Self::tensor) does, for rows with their own parameters; `tensor` is
    /// that of another row.
    ///
    /// # Safety
    /// The same as [`tensor`](Self::tensor).
    unsafe fn row(p: &QuantizeParams, tensor: &Self::Tensor, row: u32) -> (Self::Tensor, f32);

    /// The scale of a block of largest magnitude `amax` of elements of `I`, for the fast path:
    /// of use only if the block [is moderate](Self::is_moderate).
    fn block<I: Input>(p: &QuantizeParams, tensor: &Self::Tensor, amax: f32) -> BlockScale;

    /// Whether `scale`, from [`block`](Self::block), is the block's scale, and [`Moderate`]
    /// rounds its elements exactly.
    fn is_moderate<I: Input>(
        p: &QuantizeParams,
        tensor: &Self::Tensor,
        scale: &BlockScale,
        amax: f32,
    ) -> bool;

    /// The scale of any block, for the slow path, where [`AnyRange`] rounds the elements.
    /// `scale` is from [`block`](Self::block).
    fn any<I: Input>(
        p: &QuantizeParams,
        tensor: &Self::Tensor,
        scale: BlockScale,
        amax: f32,
    ) -> BlockScale;
}

/// An [`Nvfp4Recipe`] by its code, or [`ANY`].
pub struct Nv<const RECIPE: u32>;

/// The values that the blocks of an NVFP4 tensor or row share.
#[derive(Clone, Copy)]
pub struct NvTensor {
    /// [`Nvfp4Tensor::numbers`].
    numbers: [f32; 2],
    /// Blocks of a larger maximum are not moderate. Below 0 if no block is, because the
    /// parameter is not.
    largest: f32,
}

impl<const RECIPE: u32> Nv<RECIPE> {
    #[inline(always)]
    fn recipe(p: &QuantizeParams) -> Nvfp4Recipe {
        Nvfp4Recipe::from_code(if RECIPE == ANY { p.recipe } else { RECIPE })
    }

    #[inline(always)]
    fn of(p: &QuantizeParams, tensor: &NvTensor) -> Nvfp4Tensor {
        Nvfp4Tensor::from_numbers(Self::recipe(p), tensor.numbers)
    }
}

impl<const RECIPE: u32> Recipe for Nv<RECIPE> {
    type Format = Nvfp4;
    type Tensor = NvTensor;

    #[inline(always)]
    unsafe fn tensor(p: &QuantizeParams, row: u32) -> (NvTensor, f32) {
        let recipe = Self::recipe(p);
        let parameter = if p.source == ScaleSource::Given as u32 {
            p.given
        } else {
            let index = if p.source == ScaleSource::RowAmax as u32 { row } else { 0 };
            // SAFETY: the parameters name a maximum for each row, or one.
            let amax = unsafe { memory::ld_global_nc_b32(p.tensor + u64::from(index) * 4) };
            recipe.tensor_parameter(f32::from_bits(amax))
        };
        (Self::of_parameter(p, parameter), parameter)
    }

    #[inline(always)]
    fn of_parameter(p: &QuantizeParams, parameter: f32) -> NvTensor {
        // The pins keep the compiler from merging this computation with the one for rows,
        // which would repeat it for each block.
        let keep = |x: f32| f32::from_bits(marker::pin(x.to_bits()));
        let numbers = Nvfp4Tensor::new(Self::recipe(p), parameter).numbers().map(keep);
        let largest = if is_moderate(parameter) { LARGEST_MODERATE } else { -1.0 };
        NvTensor { numbers, largest: keep(largest) }
    }

    #[inline(always)]
    fn parameter(p: &QuantizeParams, amax: f32) -> f32 {
        Self::recipe(p).tensor_parameter(amax)
    }

    #[inline(always)]
    fn multiplier(p: &QuantizeParams, parameter: f32) -> f32 {
        Self::recipe(p).multiplier(parameter)
    }

    #[inline(always)]
    unsafe fn row(p: &QuantizeParams, _tensor: &NvTensor, row: u32) -> (NvTensor, f32) {
        // SAFETY: `p` keeps the module's contract, and row `row` exists.
        unsafe { Self::tensor(p, row) }
    }

    #[inline(always)]
    fn block<I: Input>(p: &QuantizeParams, tensor: &NvTensor, amax: f32) -> BlockScale {
        Self::of(p, tensor).block::<Moderate<I>>(amax)
    }

    #[inline(always)]
    fn is_moderate<I: Input>(
        p: &QuantizeParams,
        tensor: &NvTensor,
        scale: &BlockScale,
        amax: f32,
    ) -> bool {
        // Small maxima: where a quotient of such a maximum underflows, it is so far below the
        // least scale that its digits do not matter, because the parameter is moderate. Only
        // ModelOpt distinguishes a quotient that underflows to zero from others.
        let small = match Self::recipe(p) {
            Nvfp4Recipe::TorchAo
            | Nvfp4Recipe::TransformerEngine
            | Nvfp4Recipe::CompressedTensors => true,
            Nvfp4Recipe::ModelOpt => (amax >= LEAST_MODERATE) | (amax == 0.0),
        };
        // `&`, because one branch costs less than three.
        (amax <= tensor.largest) & small & scale.suits::<Moderate<I>>(amax)
    }

    #[inline(always)]
    fn any<I: Input>(
        p: &QuantizeParams,
        tensor: &NvTensor,
        _scale: BlockScale,
        amax: f32,
    ) -> BlockScale {
        Self::of(p, tensor).block::<AnyRange<I>>(amax)
    }
}

/// The [`Mxfp4Recipe`] that the parameters choose.
pub struct Mx;

/// The values that the blocks of an MXFP4 tensor share.
#[derive(Clone, Copy)]
pub struct MxTensor {
    steps: Mxfp4Steps,
    /// Blocks of at least this maximum are not moderate; 0 if no block is.
    large: f32,
}

impl Recipe for Mx {
    type Format = Mxfp4;
    type Tensor = MxTensor;

    /// A product with a power of two is exact, or so small that its code is zero, so that
    /// blocks of small magnitudes are moderate too. The blocks of the two recipes that do more
    /// to an element than multiply it are not.
    #[inline(always)]
    fn of_parameter(p: &QuantizeParams, _parameter: f32) -> MxTensor {
        let steps = Mxfp4Recipe::from_code(p.recipe).steps();
        let large = if steps.scales_only() { Mxfp4Steps::LARGE } else { 0.0 };
        MxTensor { steps, large }
    }

    #[inline(always)]
    unsafe fn tensor(p: &QuantizeParams, _row: u32) -> (MxTensor, f32) {
        (Self::of_parameter(p, 1.0), 1.0)
    }

    #[inline(always)]
    fn parameter(_p: &QuantizeParams, _amax: f32) -> f32 {
        1.0
    }

    #[inline(always)]
    fn multiplier(_p: &QuantizeParams, _parameter: f32) -> f32 {
        1.0
    }

    #[inline(always)]
    unsafe fn row(_p: &QuantizeParams, tensor: &MxTensor, _row: u32) -> (MxTensor, f32) {
        (*tensor, 1.0)
    }

    #[inline(always)]
    fn block<I: Input>(_p: &QuantizeParams, tensor: &MxTensor, amax: f32) -> BlockScale {
        tensor.steps.block_below_large(amax, round_up)
    }

    #[inline(always)]
    fn is_moderate<I: Input>(
        _p: &QuantizeParams,
        tensor: &MxTensor,
        _scale: &BlockScale,
        amax: f32,
    ) -> bool {
        amax < tensor.large
    }

    #[inline(always)]
    fn any<I: Input>(
        _p: &QuantizeParams,
        tensor: &MxTensor,
        scale: BlockScale,
        amax: f32,
    ) -> BlockScale {
        tensor.steps.completed(scale, amax)
    }
}

#[cfg(gpu_ue8m0 = "emulated")]
#[inline(always)]
fn round_up(x: f32) -> u32 {
    Mxfp4Steps::round_up(x)
}

/// Rounds as [`Mxfp4Steps::round_up`] does, by the instruction for it. The instruction implements
/// RCEIL only. FLOOR, CEIL and EVEN are integer arithmetic of the same length; ModelOpt and TorchAO
/// 0.18 round a logarithm, which the instruction cannot do.
#[cfg(gpu_ue8m0 = "hardware")]
#[inline(always)]
fn round_up(x: f32) -> u32 {
    u32::from(cuda_std::ptx::convert::cvt_rp_satfinite_ue8m0x2_f32(0.0, x))
}
