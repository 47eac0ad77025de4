//! Matrices as a file has them, and those of the same inputs below each other.

use candle_core::Result;
use nvfp4::ScaleLayout;
use nvfp4::tensor::{Blocks, Dims};

use super::values::Floats;
use crate::error::wrap;
use crate::weights::by_all_cores;

/// Matrices of one size as the file has them.
pub(super) enum Stored {
    Packed(Vec<Blocks>),
    /// Elements of all, one after the other.
    Floats(Floats),
}

/// Matrices `[N, K]` with their sizes: how many, N, K.
pub(super) struct Matrices {
    pub name: String,
    pub sizes: [usize; 3],
    pub stored: Stored,
}

/// The biases of joined modules.
pub(super) fn joined_bias(biases: Vec<Option<Floats>>) -> Option<Floats> {
    let all: Option<Vec<Floats>> = biases.into_iter().collect();
    all.map(|all| Floats::joined(all, 1))
}

/// Matrices whose rows were to be joined.
pub(super) enum Below {
    One(Matrices),
    /// The matrices that were given.
    Apart(Vec<Matrices>),
}

impl Matrices {
    /// Rows of all below each other, matrix by matrix, unless they differ in format or in a tensor-level scale.
    pub fn joined(all: Vec<Self>) -> Result<Below> {
        let Some(first) = all.first() else { return Ok(Below::Apart(all)) };
        let [count, _, columns] = first.sizes;
        let rows = all.iter().map(|matrices| matrices.sizes[1]).sum();
        let name = first.name.clone();
        let of_floats = |one: &Self| matches!(one.stored, Stored::Floats(_));
        let stored = if all.iter().all(of_floats) {
            let floats = all.into_iter().filter_map(|one| match one.stored {
                Stored::Floats(floats) => Some(floats),
                Stored::Packed(_) => None,
            });
            Stored::Floats(Floats::joined(floats.collect(), count))
        } else if !all.iter().any(of_floats) {
            let parts = |at: usize| -> Vec<&Blocks> {
                let parts = all.iter().filter_map(|one| match &one.stored {
                    Stored::Packed(blocks) => blocks.get(at),
                    Stored::Floats(_) => None,
                });
                parts.collect()
            };
            if !(0..count).all(|at| may_be_joined(&parts(at))) {
                return Ok(Below::Apart(all));
            }
            let below = |at: usize| below_each_other(&name, &parts(at), [rows, columns]);
            Stored::Packed(by_all_cores(0..count, below)?)
        } else {
            return Ok(Below::Apart(all));
        };
        Ok(Below::One(Self { name, sizes: [count, rows, columns], stored }))
    }
}

/// The tensor-level scale.
fn scale(blocks: &Blocks) -> f32 {
    match blocks {
        Blocks::Nvfp4(blocks) => blocks.global_scale(),
        Blocks::Mxfp4(blocks) => blocks.global_scale(),
    }
}

/// Whether matrices have one format and one tensor-level scale.
fn may_be_joined(parts: &[&Blocks]) -> bool {
    let (format, multiplier) = (parts[0].format(), scale(parts[0]));
    parts.iter().all(|part| part.format() == format && scale(part) == multiplier)
}

/// One matrix of the rows of several, which [may be joined](may_be_joined).
fn below_each_other(name: &str, parts: &[&Blocks], [rows, columns]: [usize; 2]) -> Result<Blocks> {
    let all =
        |of: fn(&Blocks) -> &[u8]| parts.iter().map(|part| of(part)).collect::<Vec<_>>().concat();
    let (codes, scales) = (all(Blocks::codes), all(Blocks::scales));
    let dims = Dims::new(1, rows, columns).map_err(wrap)?;
    let (format, linear) = (parts[0].format(), ScaleLayout::Linear);
    Blocks::new(format, name, dims, linear, codes, scales, scale(parts[0])).map_err(wrap)
}
