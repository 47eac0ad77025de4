//! Tensor-level scales that several weights share.
//!
//! Readers of ModelOpt's and compressed-tensors' layouts join the weights of q, k and v, and those
//! of gate and up, into one matrix with one tensor-level scale. They take the largest of the stored
//! numbers and leave the block scales as they are, so that weights with another number are read
//! with a wrong factor. Both projects therefore write one number for all weights of such a group.
//!
//! [`groups`] finds the groups by name. [`Shared`] is the scale that a group of stored weights gets:
//! where the scales differ by powers of two that the block scales have room for, no value changes;
//! otherwise block scales are rounded anew.

use std::collections::BTreeMap;
use std::fmt;

use fp4_formats::{BlockFormat, Nvfp4, ScaleLayout, e2m1, e4m3, pack};
use serde::Serialize;

use super::families;
use super::weight::{Blocks, Convention, GlobalScale, Weight, module};
use crate::error::Result;
use crate::measured::decibels;
use nvfp4::error::filled;
use nvfp4::tensor::BlockScaled;

/// Groups of at least two of `names` that readers join, as indices in the order of `names`.
pub(super) fn groups<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<(&str, usize, &str), Vec<usize>> = BTreeMap::new();
    for (at, name) in names.into_iter().enumerate() {
        let of = module(name);
        let (parent, last) = of.rsplit_once('.').unwrap_or(("", of));
        if let Some(which) = families::joined(last) {
            groups.entry((parent, which, &name[of.len()..])).or_default().push(at);
        }
    }
    let mut groups: Vec<Vec<usize>> =
        groups.into_values().filter(|members| members.len() > 1).collect();
    groups.sort();
    groups
}

/// The name of a module with the indices of experts replaced, which those of one layer have in common.
pub(super) fn among_experts(module: &str) -> Option<String> {
    let (experts, rest) = module.split_once("experts.")?;
    let (index, projection) = rest.split_once('.')?;
    index.parse::<usize>().ok()?;
    Some(format!("{experts}experts.*.{projection}"))
}

/// A weight of a group as readers that join the group read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Misread {
    /// The weight.
    pub weight: String,
    /// The factor of its values.
    pub factor: f64,
    /// Its signal-to-noise ratio then, dB: against the original where there is one, otherwise
    /// against its own values.
    pub db: f64,
}

/// Weights that readers of the layout join although their tensor-level scales differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unshared {
    /// The weights.
    pub weights: Vec<String>,
    /// The number that readers take for all of them.
    pub taken: f32,
    /// Members whose number is another.
    pub misread: Vec<Misread>,
}

impl Unshared {
    /// The group of these weights and scales; `None` if the stored numbers are the same. `db` is
    /// the ratio of a member, by index, once its values are multiplied by a factor.
    pub(super) fn of(
        convention: Convention,
        members: &[(&str, GlobalScale)],
        db: impl Fn(usize, f64) -> f64,
    ) -> Option<Self> {
        let stored = |scale: GlobalScale| scale.stored(convention);
        let taken = members.iter().map(|(_, scale)| stored(*scale)).reduce(f32::max)?;
        let multiplier = f64::from(GlobalScale::new(convention, taken).multiplier());
        let others = members.iter().enumerate().filter(|(_, (_, scale))| stored(*scale) != taken);
        let misread: Vec<Misread> = others
            .map(|(at, (weight, scale))| {
                let factor = multiplier / f64::from(scale.multiplier());
                Misread { weight: (*weight).into(), factor, db: db(at, factor) }
            })
            .collect();
        let weights = members.iter().map(|(weight, _)| (*weight).into()).collect();
        (!misread.is_empty()).then_some(Self { weights, taken, misread })
    }
}

impl fmt::Display for Unshared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "readers join {} and take {:e} for all", self.weights.join(", "), self.taken)?;
        for Misread { weight, factor, db } in &self.misread {
            write!(f, "; {weight} is {factor:.4} times as large then, {db:.1} dB")?;
        }
        Ok(())
    }
}

/// Ratio in dB of values to the error that a factor makes of them.
pub(super) fn factor_db(factor: f64) -> f64 {
    -20.0 * (factor - 1.0).abs().log10()
}

/// The shifts by powers of two that all block scales of a weight allow, 0 among them. Blocks of
/// zeros allow any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    down: i32,
    up: i32,
}

/// Exponent of the smallest e4m3 number, 2^-9.
const LEAST: i32 = -9;
/// More binades than e4m3 has.
const ANY: i32 = 32;

impl Room {
    /// The room of a weight; none for a format without tensor-level scales.
    pub fn of(blocks: &Blocks) -> Self {
        let Blocks::Nvfp4(tensor) = blocks else { return Self { down: 0, up: 0 } };
        let mut room = Self { down: ANY, up: ANY };
        for (codes, &scale) in tensor.codes().chunks_exact(Nvfp4::BLOCK_BYTES).zip(tensor.scales())
        {
            let value = e4m3::decode(scale);
            if value > 0.0 && !is_zero(codes) {
                room.up = room.up.min((e4m3::MAX / value).log2().floor() as i32);
                room.down = room.down.min(lowest_bit(value) - LEAST);
            }
        }
        room
    }

    /// Whether block scales times 2^`exponent` are numbers of e4m3.
    fn allows(self, exponent: i32) -> bool {
        (-self.down..=self.up).contains(&exponent)
    }
}

fn is_zero(codes: &[u8]) -> bool {
    codes.iter().all(|byte| byte & 0x77 == 0)
}

/// Exponent of the lowest bit that is set in the significand of a normal f32.
fn lowest_bit(value: f32) -> i32 {
    let bits = value.to_bits();
    let significand = bits & 0x7f_ffff | 0x80_0000;
    (bits >> 23) as i32 - 127 - 23 + significand.trailing_zeros() as i32
}

/// `e` if the ratio is exactly 2^e.
fn exponent_of(ratio: f64) -> Option<i32> {
    let bits = ratio.to_bits();
    let power = ratio.is_normal() && bits & ((1 << 52) - 1) == 0;
    power.then(|| (bits >> 52) as i32 - 1023)
}

/// The tensor-level scale that a group gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shared {
    /// The scale.
    pub scale: GlobalScale,
    /// Whether no value of the group changes.
    pub exact: bool,
}

impl Shared {
    /// One of the group's own scales: the largest for which no value changes or, if there is none,
    /// the one with the largest multiplier, which no block scale overflows with.
    pub fn of(members: &[(GlobalScale, Room)]) -> Option<Self> {
        let multiplier = |scale: &GlobalScale| f64::from(scale.multiplier());
        let mut scales: Vec<GlobalScale> = members.iter().map(|(scale, _)| *scale).collect();
        scales.sort_by(|x, y| multiplier(y).total_cmp(&multiplier(x)));
        let exact = |shared: &&GlobalScale| {
            members.iter().all(|(own, room)| {
                let exponent = exponent_of(multiplier(own) / multiplier(shared));
                exponent.is_some_and(|exponent| room.allows(exponent))
            })
        };
        let found = scales.iter().find(exact);
        let scale = *found.or(scales.first())?;
        Some(Self { scale, exact: found.is_some() })
    }

    /// The weight with this scale, and the ratio in dB of its values to the error, `None` if there
    /// is no error. Codes are rounded anew where a block scale was.
    pub fn apply(self, weight: Weight) -> Result<(Weight, Option<f64>)> {
        let Blocks::Nvfp4(tensor) = &weight.blocks else { return Ok((weight, None)) };
        let own = weight.global.unwrap_or(GlobalScale::Multiplier(1.0));
        let (from, to) = (f64::from(own.multiplier()), f64::from(self.scale.multiplier()));
        let mut codes = tensor.codes().to_vec();
        let mut scales = filled("scales", tensor.scales().len(), 0u8)?;
        let (mut signal, mut noise) = (0f64, 0f64);
        let blocks = codes.chunks_exact_mut(Nvfp4::BLOCK_BYTES).zip(&mut scales);
        for ((codes, scale), &before) in blocks.zip(tensor.scales()) {
            let wanted = f64::from(e4m3::decode(before)) * (from / to);
            *scale = e4m3::encode((wanted as f32).min(e4m3::MAX));
            let after = f64::from(e4m3::decode(*scale));
            for byte in codes {
                let (low, high) = pack::unpair(*byte);
                let mut code = |code: u8| {
                    let value = f64::from(e2m1::decode(code)) * wanted;
                    let new = if after == wanted || after == 0.0 {
                        code
                    } else {
                        e2m1::encode((value / after) as f32)
                    };
                    signal += value * value;
                    noise += (value - f64::from(e2m1::decode(new)) * after).powi(2);
                    new
                };
                *byte = pack::pair(code(low), code(high));
            }
        }
        let (name, layout) = (&weight.spec.name, ScaleLayout::Linear);
        let multiplier = self.scale.multiplier();
        let blocks = BlockScaled::new(name, tensor.dims(), layout, codes, scales, multiplier)?;
        let db = (noise > 0.0).then(|| decibels(signal, noise));
        let (blocks, global) = (Blocks::Nvfp4(blocks), Some(self.scale));
        Ok((Weight { blocks, global, ..weight }, db))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, WeightSpec};
    use fp4_formats::quantize::Format;
    use nvfp4::tensor::Dims;
    use proptest::prelude::*;

    #[test]
    fn groups_are_found_by_name() {
        let names = [
            "l.0.attn.k_proj.weight",
            "l.0.attn.o_proj.weight",
            "l.0.attn.q_proj.weight",
            "l.0.mlp.experts.0.gate_proj.weight",
            "l.0.mlp.experts.0.up_proj.weight",
            "l.0.mlp.experts.1.up_proj.weight",
            "l.1.attn.k_proj.weight",
            "l.1.moe.experts.3.w1.weight",
            "l.1.moe.experts.3.w2.weight",
            "l.1.moe.experts.3.w3.weight",
            "up_proj.weight",
            "gate_proj.weight",
            "l.2.linear_attn.in_proj_a.weight",
            "l.2.linear_attn.in_proj_b.weight",
            "l.2.linear_attn.in_proj_qkv.weight",
            "l.2.linear_attn.in_proj_z.weight",
            "layers.3.attention.wk.weight",
            "layers.3.attention.wo.weight",
            "layers.3.attention.wq.weight",
            "layers.3.attention.wv.weight",
        ];
        let expected: [&[usize]; 7] =
            [&[0, 2], &[3, 4], &[7, 9], &[10, 11], &[12, 13], &[14, 15], &[16, 18, 19]];
        assert_eq!(groups(names), expected);
    }

    fn weight(codes: Vec<u8>, scales: Vec<u8>, multiplier: f32) -> Weight {
        let cols = scales.len() * 16;
        let dims = Dims::new(1, 1, cols).expect("sizes above zero");
        let linear = ScaleLayout::Linear;
        let blocks = Blocks::new(Format::Nvfp4, "w", dims, linear, codes, scales, multiplier);
        let spec = WeightSpec {
            name: "w".into(),
            shape: vec![1, cols],
            format: Format::Nvfp4,
            global: true,
            input: false,
            original: None,
            group: 16,
            order: Order::OutputFirst,
            expert_scales: false,
        };
        let global = Some(GlobalScale::Multiplier(multiplier));
        Weight {
            spec,
            blocks: blocks.expect("valid"),
            global,
            experts: None,
            input: None,
            inputs: None,
        }
    }

    fn member(weight: &Weight) -> (GlobalScale, Room) {
        (weight.global.expect("two levels"), Room::of(&weight.blocks))
    }

    proptest! {
        /// Said to be exact, no value changes; otherwise the error is what the values say, and no
        /// larger than that of rounding scales of four significant bits where they are normal.
        #[test]
        fn the_error_is_as_stated(
            codes in prop::collection::vec(any::<u8>(), 64),
            scales in prop::collection::vec(0x20u8..0x7f, 8),
            multipliers in prop::collection::vec(
                prop_oneof![Just(0.5f32), Just(1.0), Just(4.0), 0.7f32..1.4], 2),
        ) {
            let two: Vec<Weight> = codes.chunks(32).zip(scales.chunks(4)).zip(&multipliers)
                .map(|((codes, scales), &m)| weight(codes.to_vec(), scales.to_vec(), m))
                .collect();
            let shared = Shared::of(&[member(&two[0]), member(&two[1])]).expect("two");
            for before in two {
                let values = before.blocks.dequantize().expect("small");
                let (after, db) = shared.apply(before).expect("fits");
                prop_assert_eq!(after.global, Some(shared.scale));
                let new = after.blocks.dequantize().expect("small");
                let noise: f64 =
                    values.iter().zip(&new).map(|(x, y)| f64::from(x - y).powi(2)).sum();
                let signal: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
                match db {
                    None => prop_assert_eq!(noise, 0.0),
                    Some(db) => {
                        prop_assert!(!shared.exact);
                        prop_assert!((db - decibels(signal, noise)).abs() < 0.01);
                        prop_assert!(db > 20.0, "{}", db);
                    }
                }
            }
        }
    }

    /// 448 cannot be doubled, 2^-9 cannot be halved, and a block of zeros can be anything.
    #[test]
    fn room_is_exact() {
        let room = |scale: u8, code: u8| Room::of(&weight(vec![code; 8], vec![scale], 1.0).blocks);
        assert_eq!(room(0x7e, 0x11), Room { down: 15, up: 0 });
        assert_eq!(room(0x01, 0x11), Room { down: 0, up: 17 });
        assert_eq!(room(0x38, 0x11), Room { down: 9, up: 8 });
        assert_eq!(room(0x7e, 0x80), Room { down: ANY, up: ANY });
    }
}
