//! Converts MXFP4 to NVFP4 without changing a value.
//!
//! A block of 32 with the scale 2^e becomes two blocks of 16. Their e4m3 scales can be 2^-9 ..
//! 2^8, times a tensor-level scale that is also a power of two, so the scales of a tensor may span
//! 18 binades. The codes of a block of 16 may allow more: twice a code up to 3 is a code, half of
//! 1, 2, 3, 4 and 6 is a code, and a block of zeros can have any scale. The conversion chooses the
//! tensor-level scale that leaves the most room, and fails if the scales of two blocks are too
//! different. Scales other than powers of two are not considered, because they would gain less
//! than one binade.

use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout, e2m1, e4m3, pack};

use super::error::CheckpointError;
use super::weight::{Blocks, GlobalScale, Weight};
use crate::error::Result;
use nvfp4::error::filled;
use nvfp4::tensor::BlockScaled;

/// Exponents of the powers of two that e4m3 represents.
const LEAST: i32 = -9;
const GREATEST: i32 = 8;

/// Exponents of tensor-level scales that are normal in f32.
const TENSOR: std::ops::RangeInclusive<i32> = -126..=127;

/// Exponents of the scales that a block of 16 can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    /// Smallest exponent, with the codes doubled as often as possible.
    least: i32,
    /// Largest exponent, with the codes halved as often as possible.
    greatest: i32,
}

/// The code of `2^shift` times the value of a code, if there is one.
fn shifted(code: u8, shift: i32) -> Option<u8> {
    let value = e2m1::decode(code) * (shift as f32).exp2();
    let shifted = e2m1::encode(value);
    (e2m1::decode(shifted) == value).then_some(shifted)
}

/// Returns the number of times that all codes of a block can be doubled and halved: at most 3 times
/// each (0.5 to 4 and back). `None` for a block of zeros.
fn shifts(codes: &[u8]) -> Option<(i32, i32)> {
    let present = codes.iter().fold(0u16, |set, &byte| {
        let (low, high) = pack::unpair(byte);
        set | 1 << (low & 7) | 1 << (high & 7)
    }) & !1;
    if present == 0 {
        return None;
    }
    let possible = |shift: i32| {
        (1..8u8).all(|code| present & (1 << code) == 0 || shifted(code, shift).is_some())
    };
    let most = |sign: i32| (1..4).take_while(|&n| possible(sign * n)).last().unwrap_or(0);
    Some((most(1), most(-1)))
}

/// Converts a weight to the same values, bit for bit.
///
/// # Errors
/// [`CheckpointError::Inexact`], which names the block that does not fit; [`Error::Shape`](nvfp4::Error::Shape) for a
/// weight that is not MXFP4.
pub fn to_nvfp4(weight: &Weight) -> Result<Weight> {
    let name = &weight.spec.name;
    let Blocks::Mxfp4(source) = &weight.blocks else {
        return Err(CheckpointError::shape(
            format!("format of `{name}`"),
            Mxfp4::NAME,
            Nvfp4::NAME,
        ));
    };
    let blocks: Vec<Option<Room>> = source
        .codes()
        .chunks_exact(Nvfp4::BLOCK_BYTES)
        .enumerate()
        .map(|(at, codes)| {
            let exponent = i32::from(source.scales()[at / 2]) - 127;
            shifts(codes).map(|(doublings, halvings)| Room {
                least: exponent - doublings,
                greatest: exponent + halvings,
            })
        })
        .collect();
    let tensor = tensor_exponent(weight, &blocks)?;

    let mut codes = source.codes().to_vec();
    let mut scales = filled("scales", blocks.len(), 0u8)?;
    let written = codes.chunks_exact_mut(Nvfp4::BLOCK_BYTES).zip(&mut scales).zip(&blocks);
    for (at, ((codes, scale), room)) in written.enumerate() {
        let own = i32::from(source.scales()[at / 2]) - 127;
        let exponent = match room {
            // Nearest to its own that both the block and e4m3 have.
            Some(room) => (own - tensor)
                .clamp(LEAST, GREATEST)
                .clamp(room.least - tensor, room.greatest - tensor),
            None => (own - tensor).clamp(LEAST, GREATEST),
        };
        *scale = e4m3::encode((exponent as f32).exp2());
        let shift = own - (exponent + tensor);
        if room.is_some() && shift != 0 {
            for byte in codes {
                let (low, high) = pack::unpair(*byte);
                let code = |code| shifted(code, shift).unwrap_or(code);
                *byte = pack::pair(code(low), code(high));
            }
        }
    }
    let multiplier = f32::from_bits(((tensor + 127) as u32) << 23);
    let blocks =
        BlockScaled::new(name, source.dims(), ScaleLayout::Linear, codes, scales, multiplier)?;
    let mut spec = weight.spec.clone();
    (spec.format, spec.global) = (fp4_formats::quantize::Format::Nvfp4, true);
    spec.group = Nvfp4::BLOCK;
    Ok(Weight {
        spec,
        blocks: Blocks::Nvfp4(blocks),
        global: Some(GlobalScale::Multiplier(multiplier)),
        experts: None,
        input: weight.input,
        inputs: weight.inputs.clone(),
    })
}

/// The exponent of the tensor-level scale, as near as possible to the one for which the largest
/// block scale is 2^8.
fn tensor_exponent(weight: &Weight, blocks: &[Option<Room>]) -> Result<i32> {
    let rooms = || blocks.iter().enumerate().filter_map(|(at, room)| Some((at, (*room)?)));
    let Some((high_at, high)) = rooms().max_by_key(|(_, room)| room.least) else {
        return Ok(0);
    };
    let Some((low_at, low)) = rooms().min_by_key(|(_, room)| room.greatest) else {
        return Ok(0);
    };
    let (from, to) = (high.least - GREATEST, low.greatest - LEAST);
    if from > to {
        let index = |at: usize| {
            let cols = weight.spec.cols() / Nvfp4::BLOCK;
            let rows = at / cols;
            let mut index = vec![at % cols];
            match *weight.spec.shape.as_slice() {
                [_, n, _] => index.splice(0..0, [rows / n, rows % n]).for_each(drop),
                _ => index.insert(0, rows),
            }
            index
        };
        let reason = format!(
            "needs a scale of at most 2^{}, and block {:?} one of at least 2^{}; nvfp4 scales of \
             one tensor are at most 2^{} apart",
            low.greatest,
            index(high_at),
            high.least,
            GREATEST - LEAST
        );
        let tensor = weight.spec.name.clone();
        return Err(CheckpointError::Inexact { tensor, index: index(low_at), reason });
    }
    let (from, to) = (from.max(*TENSOR.start()), to.min(*TENSOR.end()));
    let natural = rooms().map(|(at, _)| i32::from(weight.blocks.scales()[at / 2]) - 127).max();
    Ok(natural.map_or(0, |exponent| (exponent - GREATEST).clamp(from, to.max(from))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, WeightSpec};
    use fp4_formats::quantize::Format;
    use nvfp4::tensor::Dims;
    use proptest::prelude::*;

    fn weight(rows: usize, cols: usize, codes: Vec<u8>, scales: Vec<u8>) -> Weight {
        let dims = Dims::new(1, rows, cols).expect("sizes above zero");
        let spec = WeightSpec {
            name: "w".into(),
            shape: vec![rows, cols],
            format: Format::Mxfp4,
            global: false,
            input: false,
            original: None,
            group: 32,
            order: Order::OutputFirst,
            expert_scales: false,
        };
        let linear = ScaleLayout::Linear;
        let blocks = Blocks::new(Format::Mxfp4, "w", dims, linear, codes, scales, 1.0);
        Weight {
            spec,
            blocks: blocks.expect("valid"),
            global: None,
            experts: None,
            input: None,
            inputs: None,
        }
    }

    /// Bits of all values, with their signs of zero.
    fn bits(weight: &Weight) -> Vec<u32> {
        weight.blocks.dequantize().expect("small").iter().map(|x| x.to_bits()).collect()
    }

    /// Two blocks of 16 codes that can be neither doubled nor halved, with scales `distance`
    /// binades apart; 18 binades fit.
    #[test]
    fn the_limit_is_seventeen_binades_of_rigid_blocks() {
        // 0.5 with 6: neither can be doubled nor halved.
        let rigid = vec![0x71; 32];
        for distance in 0..40u8 {
            let tensor = weight(1, 64, rigid.clone(), vec![100, 100 + distance]);
            match to_nvfp4(&tensor) {
                Ok(converted) => {
                    assert!(distance <= 17, "{distance}");
                    assert_eq!(bits(&converted), bits(&tensor), "{distance}");
                }
                Err(CheckpointError::Inexact { index, .. }) => {
                    assert!(distance > 17, "{distance}");
                    assert_eq!(index, [0, 0], "{distance}");
                }
                Err(other) => panic!("{distance}: {other}"),
            }
        }
    }

    #[test]
    fn codes_that_can_move_make_room() {
        // Blocks of 4 and of 0.5 can each move three binades towards the other.
        let mut codes = vec![0x66; 16];
        codes.extend([0x11; 16]);
        let tensor = weight(1, 64, codes, vec![100, 100 + 17 + 6]);
        assert_eq!(bits(&to_nvfp4(&tensor).expect("exact")), bits(&tensor));
        // Blocks of zeros can have any scale.
        let mut codes = vec![0x80; 16];
        codes.extend([0x71; 16]);
        let tensor = weight(1, 64, codes, vec![0, 254]);
        assert_eq!(bits(&to_nvfp4(&tensor).expect("exact")), bits(&tensor));
    }

    proptest! {
        /// If it succeeds, the values are unchanged; with scales within 17 binades it succeeds.
        #[test]
        fn values_never_change(
            codes in prop::collection::vec(any::<u8>(), 96),
            base in 0u8..230,
            spread in prop::collection::vec(0u8..24, 6),
        ) {
            let scales: Vec<u8> = spread.iter().map(|x| base + x).collect();
            let tensor = weight(2, 96, codes, scales);
            match to_nvfp4(&tensor) {
                Ok(converted) => prop_assert_eq!(bits(&converted), bits(&tensor)),
                Err(error) => prop_assert!(spread.iter().any(|&x| x > 17), "{}", error),
            }
        }
    }
}
