//! How a block's scale is made.

use cuda_std::ptx::memory;
use fp4_formats::quantize::{QuantizeParams, ScaleSource};
use fp4_formats::recipe::{BlockScale, Convert, Mxfp4Recipe, Nvfp4Recipe, Nvfp4Tensor};
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4};

/// The recipe is the one that the parameters say.
pub const ANY: u32 = u32::MAX;

/// How a block's scale is made.
pub trait Recipe {
    /// The block format that it makes.
    type Format: BlockFormat;
    /// What the blocks of a tensor or row share.
    type Tensor: Copy;

    /// For the tensor, or row `row` of it. Returns the tensor parameter too.
    ///
    /// # Safety
    /// `p` keeps its contract, and row `row` exists.
    unsafe fn tensor(p: &QuantizeParams, row: u32) -> (Self::Tensor, f32);

    /// The scale of a block of largest magnitude `amax`.
    fn block<V: Convert>(tensor: &Self::Tensor, amax: f32) -> BlockScale;
}

/// An [`Nvfp4Recipe`] by its code, or [`ANY`].
pub struct Nv<const RECIPE: u32>;

impl<const RECIPE: u32> Recipe for Nv<RECIPE> {
    type Format = Nvfp4;
    type Tensor = Nvfp4Tensor;

    #[inline(always)]
    unsafe fn tensor(p: &QuantizeParams, row: u32) -> (Nvfp4Tensor, f32) {
        let recipe = Nvfp4Recipe::from_code(if RECIPE == ANY { p.recipe } else { RECIPE });
        let parameter = if p.source == ScaleSource::Given as u32 {
            p.given
        } else {
            let index = if p.source == ScaleSource::RowAmax as u32 { row } else { 0 };
            // SAFETY: the parameters name a maximum for each row, or one.
            let amax = unsafe { memory::ld_global_nc_b32(p.tensor + u64::from(index) * 4) };
            recipe.tensor_parameter(f32::from_bits(amax))
        };
        (Nvfp4Tensor::new(recipe, parameter), parameter)
    }

    #[inline(always)]
    fn block<V: Convert>(tensor: &Nvfp4Tensor, amax: f32) -> BlockScale {
        tensor.block::<V>(amax)
    }
}

/// The [`Mxfp4Recipe`] that the parameters say.
pub struct Mx;

impl Recipe for Mx {
    type Format = Mxfp4;
    type Tensor = Mxfp4Recipe;

    #[inline(always)]
    unsafe fn tensor(p: &QuantizeParams, _row: u32) -> (Mxfp4Recipe, f32) {
        (Mxfp4Recipe::from_code(p.recipe), 1.0)
    }

    #[cfg(gpu_ue8m0 = "emulated")]
    #[inline(always)]
    fn block<V: Convert>(recipe: &Mxfp4Recipe, amax: f32) -> BlockScale {
        recipe.block(amax)
    }

    /// The machine's conversion does what one recipe asks for. The others' scales
    /// are two below the exponent of a maximum, which it would not make shorter, or
    /// ceilings of rounded logarithms, which it does not give.
    #[cfg(gpu_ue8m0 = "hardware")]
    #[inline(always)]
    fn block<V: Convert>(recipe: &Mxfp4Recipe, amax: f32) -> BlockScale {
        use cuda_std::ptx::convert::cvt_rp_satfinite_ue8m0x2_f32;
        recipe.block_by(amax, |x| u32::from(cvt_rp_satfinite_ue8m0x2_f32(0.0, x)))
    }
}
