//! The quantise kernels at the edges of their arithmetic: extreme magnitudes, ties, and every
//! mantissa or element where a single rounding decides.

use fp4_formats::quantize::{Recipe, ScaleSource};
use fp4_formats::recipe::{
    AdaptiveRecipe, Mxfp4Recipe, Nvfp4Recipe, Nvfp4Tensor, Reciprocal, Software,
};
use fp4_formats::{FloatType, ScaleLayout, e2m1, e4m3, ue8m0};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::quantize::{Case, check, value};
use ptx_emu::num::narrow::ue8m0x2_from_f32;

/// Magnitudes at which single steps of a quotient or product would overflow or lose
/// digits: parameters from the smallest to the largest, elements from subnormals
/// to the largest f32.
#[test]
fn extreme_magnitudes() {
    let mut random = SplitMix64::new(3);
    for recipe in Nvfp4Recipe::ALL {
        for exponent in (-120..=120).step_by(12) {
            let given = 2f32.powi(exponent) * 1.37;
            let mut case = Case::new(Recipe::Nvfp4(recipe), 16, 64);
            case.given = given;
            let scale = recipe.multiplier(given);
            let element = |random: &mut SplitMix64| match random.next_u64() % 8 {
                0 => f32::from_bits(random.next_u64() as u32 & 0x800f_ffff),
                1 => f32::from_bits(random.next_u64() as u32 & 0xbfff_ffff),
                2 => f32::from_bits(random.next_u64() as u32 & 0x8000_0007),
                _ => (value(random) * scale * 100.0).clamp(-f32::MAX, f32::MAX),
            };
            let values: Vec<f32> = (0..16 * 64).map(|_| element(&mut random)).collect();
            check(&case, &values);
        }
    }
}

/// The same of adaptive scaling, where also errors overflow and vanish; with parameters from the
/// tensors' maxima, and given ones.
#[test]
fn extreme_magnitudes_with_two_scales() {
    let mut random = SplitMix64::new(7);
    for recipe in AdaptiveRecipe::ALL {
        for exponent in (-120..=120).step_by(20) {
            let given = 2f32.powi(exponent) * 1.37;
            let scale = recipe.project().multiplier(given);
            let element = |random: &mut SplitMix64| match random.next_u64() % 8 {
                0 => f32::from_bits(random.next_u64() as u32 & 0x800f_ffff),
                1 => f32::from_bits(random.next_u64() as u32 & 0xbfff_ffff),
                _ => (value(random) * scale * 100.0).clamp(-f32::MAX, f32::MAX),
            };
            let values: Vec<f32> = (0..16 * 64).map(|_| element(&mut random)).collect();
            for source in [ScaleSource::Given, ScaleSource::TensorAmax] {
                let mut case = Case::new(Recipe::Adaptive(recipe), 16, 64);
                (case.given, case.source) = (given, source);
                check(&case, &values);
            }
        }
    }
}

/// Elements one unit in the last place around every tie of every block scale: where
/// a quotient that is not correctly rounded shows.
#[test]
fn quotients_around_ties() {
    let mut random = SplitMix64::new(4);
    for recipe in Nvfp4Recipe::ALL {
        for ty in FloatType::ALL {
            let mut values = Vec::new();
            let mut case = Case::new(Recipe::Nvfp4(recipe), 512, 64);
            case.ty = ty;
            case.given = [0.013, 91.7][usize::from(recipe.parameter_is_divisor())];
            let tensor = Nvfp4Tensor::new(recipe, case.given);
            while values.len() < case.m * case.k {
                let largest = value(&mut random).abs().max(1e-3);
                let scale = e4m3::decode(tensor.block::<Software>(largest).byte)
                    * recipe.multiplier(case.given);
                let mut block = vec![largest];
                for _ in 1..16 {
                    let tie = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
                        [random.next_u64() as usize % 7]
                        * scale;
                    let bits = (tie.min(largest)).to_bits();
                    block.push(
                        f32::from_bits(bits + (random.next_u64() % 5) as u32 - 2).min(largest),
                    );
                }
                values.extend(block);
            }
            check(&case, &values);
        }
    }
}

/// Quotients `x / d` of the kernels are on the same side of each tie of e2m1 as the rounded
/// quotient: for every mantissa of `d` (powers of two change nothing), and every `x` whose quotient
/// is within a unit in the last place of a tie. Farther away no rounding matters. The three
/// divisors that do not suit take the slow path.
#[test]
fn quotients_of_all_mantissas() {
    for mantissa in 0..1u32 << 23 {
        let d = f32::from_bits(1f32.to_bits() | mantissa);
        let reciprocal = Reciprocal::new(d, 1.0 / d, f32::mul_add);
        if !Reciprocal::suits(d) {
            assert!(mantissa >= 0x7f_fffd);
            continue;
        }
        for tie in [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] {
            let nearest = (tie * d).to_bits();
            for bits in nearest - 2..=nearest + 2 {
                let x = f32::from_bits(bits);
                let step = reciprocal.times(x, f32::mul_add);
                let quotient = x / d;
                assert_eq!(
                    (step < tie, step > tie),
                    (quotient < tie, quotient > tie),
                    "{x:e} / {d:e}: {step:e} and {quotient:e}"
                );
            }
        }
    }
}

/// Rceil's scale is the hardware's conversion of a sixth of the maximum: for every mantissa in the
/// smallest binades, where numbers and codes are subnormal, in the largest, and in one between,
/// which stands for all others.
#[test]
fn rceil_of_all_mantissas() {
    for exponent in [0u32, 1, 2, 3, 127, 253, 254] {
        for mantissa in 0..1u32 << 23 {
            let amax = f32::from_bits(exponent << 23 | mantissa);
            let byte = Mxfp4Recipe::Rceil.block(amax).byte;
            let converted = ue8m0x2_from_f32(0.0, amax * (1.0 / e2m1::MAX), true, true);
            assert_eq!(u16::from(byte), converted, "{amax:e}");
        }
    }
}

/// Maxima in every binade, around each mantissa at which a recipe's scale changes.
#[test]
fn every_exponent_of_a_maximum() {
    // Powers of two, halves of e2m1's steps, and six, which Rceil divides by.
    let near = [0u32, 1 << 21, 1 << 22, 3 << 21, 0x55_5555, 0x7f_ffff];
    let mantissas = near.iter().flat_map(|&m| [m.wrapping_sub(1), m, m + 1]);
    let mantissas: Vec<u32> = mantissas.filter(|m| *m < 1 << 23).collect();
    let all = (0..255u32).flat_map(|e| mantissas.iter().map(move |m| f32::from_bits(e << 23 | m)));
    let all: Vec<f32> = all.collect();
    for recipe in Mxfp4Recipe::ALL {
        // Even rounds the largest to infinity, and codes under NaN are not specified.
        let maxima = all.iter().copied().filter(|max| recipe.block(*max).byte != ue8m0::NAN);
        let maxima: Vec<f32> = maxima.collect();
        let elements = |(at, &max): (usize, &f32)| -> Vec<f32> {
            let place = at % 32;
            (0..32).map(|i| if i == place { -max } else { max * (i as f32 / 32.0) }).collect()
        };
        let values: Vec<f32> = maxima.iter().enumerate().flat_map(elements).collect();
        let mut case = Case::new(Recipe::Mxfp4(recipe), maxima.len(), 32);
        case.layout = ScaleLayout::ALL[recipe as usize % 2];
        check(&case, &values);
    }
}

/// All bf16 and f16 magnitudes up to 6, and the f32 next to every tie, at scale 1.
#[test]
fn every_short_element() {
    for ty in [FloatType::Bf16, FloatType::F16, FloatType::F32] {
        let all = (0..=u16::MAX).map(|bits| match ty {
            FloatType::Bf16 => half::bf16::from_bits(bits).to_f32(),
            FloatType::F16 => half::f16::from_bits(bits).to_f32(),
            FloatType::F32 => {
                f32::from_bits(0x3e00_0000 + u32::from(bits) * 0x400 - 0x200 + u32::from(bits % 3))
            }
        });
        let elements: Vec<f32> = all.filter(|x| x.abs() <= 6.0).collect();
        let mut values: Vec<f32> = elements.chunks(15).flat_map(|c| [&[6.0], c].concat()).collect();
        values.resize(values.len().next_multiple_of(64), 6.0);
        let mut case = Case::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo), values.len() / 64, 64);
        case.ty = ty;
        check(&case, &values);
    }
}
