//! Adaptive block scaling on a CPU: what [`AdaptiveTensor::block`] gives, in loops that compilers turn into vector
//! instructions.
//!
//! Errors need the values of codes, not the codes, and signs change no error, so that magnitudes are rounded to
//! e2m1's values as floats.

use fp4_formats::recipe::{AdaptiveRecipe, AdaptiveTensor, BlockScale, Candidate, Software};
use fp4_formats::{BlockFormat, Nvfp4};

use crate::floats::nearest_e2m1;

/// Elements of a block.
const BLOCK: usize = Nvfp4::BLOCK;

/// Values that the blocks of a tensor share, for the recipe with the code `CODE`, which is known when this is compiled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adaptive<const CODE: u32> {
    tensor: AdaptiveTensor,
    /// The tensor's largest magnitude.
    amax: f32,
    /// The value of the largest code with the largest scale, for a parameter of 1.
    whole: f32,
}

impl<const CODE: u32> Adaptive<CODE> {
    const RECIPE: AdaptiveRecipe = AdaptiveRecipe::from_code(CODE);

    /// Whether values are a product by the tensor's largest magnitude and a quotient, and whether errors are squared.
    const ERRORS: (bool, bool) = match Self::RECIPE {
        AdaptiveRecipe::TransformerEngine | AdaptiveRecipe::TransformerEngine448 => (true, false),
        AdaptiveRecipe::TransformerEngineMse | AdaptiveRecipe::TransformerEngine448Mse => {
            (true, true)
        }
        AdaptiveRecipe::ModelOpt => (false, true),
    };

    /// The same arguments as those of [`AdaptiveTensor::new`].
    pub fn new(parameter: f32, amax: f32) -> Self {
        let tensor = AdaptiveTensor::new(Self::RECIPE, parameter, amax);
        Self { tensor, amax, whole: Self::RECIPE.tensor_maximum(1.0) }
    }

    /// The better way to quantise a block of largest magnitude `amax`.
    #[inline(always)]
    pub fn block(&self, groups: &[[f32; 8]; 2], amax: f32) -> BlockScale {
        let mut magnitudes = *groups;
        for x in magnitudes.as_flattened_mut() {
            *x = x.abs();
        }
        let on_six = self.tensor.candidate::<Software>(amax, false);
        let on_four = self.tensor.candidate::<Software>(amax, true);
        let six = self.errors(&on_six, &magnitudes);
        let four = self.errors(&on_four, &magnitudes);
        // Both sums in one loop: neither waits for the other.
        let (mut error_on_six, mut error_on_four) = (0f32, 0f32);
        for at in 0..BLOCK {
            error_on_six += six[at];
            error_on_four += four[at];
        }
        if error_on_four < error_on_six { on_four.scale } else { on_six.scale }
    }

    /// The error of each element, from the block's magnitudes.
    #[inline(always)]
    fn errors(&self, way: &Candidate, magnitudes: &[[f32; 8]; 2]) -> [f32; BLOCK] {
        let prepared = way.tried.prepared::<Software, 2>(|group| magnitudes[group]);
        let (prepared, magnitudes) = (prepared.as_flattened(), magnitudes.as_flattened());
        let (in_parts, squares) = Self::ERRORS;
        let mut errors = [0f32; BLOCK];
        for at in 0..BLOCK {
            let mut value = nearest_e2m1(prepared[at]) * way.factor;
            if in_parts {
                value = value * self.amax / self.whole;
            }
            let error = value - magnitudes[at];
            errors[at] = if squares { error * error } else { error.abs() };
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees<const CODE: u32>() {
        let recipe = AdaptiveRecipe::from_code(CODE);
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let mut chosen = [0; 2];
        for at in 0..20_000u32 {
            // Blocks of all sizes, and with ties where elements have few bits.
            let size = f32::powi(2.0, (random() % 40) as i32 - 30);
            let bits = if at % 3 == 0 { 0xfff0_0000 } else { u32::MAX };
            let element = |random: &mut dyn FnMut() -> u32| {
                let x = (random() as f32 / (1 << 23) as f32 - 1.0) * size;
                if random().is_multiple_of(9) { 0.0 } else { f32::from_bits(x.to_bits() & bits) }
            };
            let groups = [(); 2].map(|()| [(); 8].map(|()| element(&mut random)));
            let amax = groups.as_flattened().iter().fold(0f32, |max, x| max.max(x.abs()));
            let largest = if at % 5 == 0 { amax } else { 3.0 * size };
            let parameter = recipe.tensor_parameter(largest);
            let expected =
                AdaptiveTensor::new(recipe, parameter, largest).block::<Software>(&groups);
            let adaptive = Adaptive::<CODE>::new(parameter, largest);
            assert_eq!(adaptive.block(&groups, amax), expected, "{recipe:?}: {groups:?}");
            let six = adaptive.tensor.candidate::<Software>(amax, false).scale;
            chosen[usize::from(expected != six)] += 1;
        }
        assert!(chosen.iter().all(|&count| count > 1000), "{recipe:?}: {chosen:?}");
    }

    #[test]
    fn blocks_are_those_of_the_definition() {
        agrees::<{ AdaptiveRecipe::TransformerEngine as u32 }>();
        agrees::<{ AdaptiveRecipe::TransformerEngineMse as u32 }>();
        agrees::<{ AdaptiveRecipe::TransformerEngine448 as u32 }>();
        agrees::<{ AdaptiveRecipe::TransformerEngine448Mse as u32 }>();
        agrees::<{ AdaptiveRecipe::ModelOpt as u32 }>();
    }
}
