//! The groups of a grouped product, as far as the host knows them.

use fp4_formats::Divisor;
use fp4_formats::gemm::groups::MAX_PROBLEMS;
use fp4_formats::gemm::{EvenRuns, Groups, NextWeights, Problem};
use fp4_formats::moe::{Chosen, Experts};

use super::check::size;
use crate::error::{Error, Result};
use crate::shape::{GemmShape, MAX_DIM};
use crate::tune::{TuneGroups, TuneProblem};

/// Tokens of a group from which on one more tile costs less than a wider one.
const SCATTERED: u32 = 64;

/// The order of a grouped product's tokens in the activations, and of their results in the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// One matrix of `bound` tokens; group `g` has the tokens from `offsets[g]` up to
    /// `offsets[g + 1]`, for `[G + 1]` offsets. No group needs padding, and a group may be empty.
    Contiguous {
        /// Tokens that the matrices have room for.
        bound: usize,
    },
    /// A matrix of `tokens` tokens for each group, whose first `counts[g]` tokens are the group's,
    /// for `[G]` counts.
    Slots {
        /// Tokens of a matrix.
        tokens: usize,
    },
    /// A matrix of one token for each choice of an expert, for `[rows]` ids in place of counts: the form of a
    /// layer of experts with one token, whose choices need no order.
    Chosen(ChosenRows),
}

/// Rows that each have an expert, the one with its id. The weights are the experts' of this device, `first` and
/// the ones behind it; factors, column factors and biases belong to them, too. Rows with other ids have no
/// product, and their part of the result is left alone.
///
/// Activations are 16-bit floats, and rows have no factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenRows {
    /// The number of rows, at most 1024.
    pub rows: usize,
    /// Whether all rows are products of one token, `[1, K]`, and not of one each, `[rows, K]`. The
    /// strides of [`Gemm::with_strides`](super::Gemm::with_strides) replace that.
    pub shared: bool,
    /// Experts of all devices: ids are below it.
    pub experts: usize,
    /// The expert that the first matrix of weights belongs to.
    pub first: usize,
}

impl ChosenRows {
    /// Returns the device's experts, `count` of them.
    ///
    /// # Errors
    /// [`Error::Shape`] for more than there are.
    pub(super) fn experts(&self, count: usize) -> Result<Experts> {
        let all = size("experts", self.experts, i32::MAX as u64)?;
        if self.first.saturating_add(count) > self.experts {
            let found = format!("{count} from {} on", self.first);
            return Err(Error::shape("experts of this device", format!("within {all}"), found));
        }
        Ok(Experts { all, first: self.first as u32, count: count as u32 })
    }
}

/// The problems of a grouped product, as far as the host knows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupRequest {
    /// The number of problems.
    pub problems: u32,
    /// The order of their tokens.
    pub grouping: Grouping,
    /// The number of problems that are expected to have tokens, and the tokens of each.
    pub expected: [u32; 2],
}

impl GroupRequest {
    /// The groups of a problem, if it has any.
    ///
    /// # Errors
    /// [`Error::Shape`] for more groups, or more tokens, than can be numbered.
    pub fn of(asked: &TuneProblem) -> Result<Option<Self>> {
        let Some(TuneGroups { count, slots }) = asked.groups else { return Ok(None) };
        let problems = size("groups", count, MAX_PROBLEMS.into())?;
        // Token counts and their sum are i32.
        let GemmShape { m, l, .. } = asked.shape;
        size("tokens", l.saturating_mul(m), MAX_DIM)?;
        if slots {
            let grouping = Grouping::Slots { tokens: m };
            return Ok(Some(Self { problems, grouping, expected: [problems, m as u32] }));
        }
        let used = count.min(m);
        // Counts scatter around their mean: if few tokens just fill a tile, many groups would take
        // two.
        let mean = m.div_ceil(used.max(1)) as u32;
        let scattered = used > 1 && mean < SCATTERED;
        let expected = [used as u32, mean + if scattered { mean.isqrt() } else { 0 }];
        Ok(Some(Self { problems, grouping: Grouping::Contiguous { bound: m }, expected }))
    }

    /// The most token tiles of all problems; `matrix` are the sizes of a matrix.
    pub fn most_token_tiles(&self, matrix: &Problem, tile_tokens: u32) -> u64 {
        self.memory(matrix).most_token_tiles(tile_tokens)
    }

    /// The kernels' parameters, of which row tiles and runs are not set, with nothing in memory.
    pub fn memory(&self, matrix: &Problem) -> Groups {
        let (slot, bound) = match self.grouping {
            Grouping::Contiguous { .. } => (0, matrix.m),
            Grouping::Slots { .. } | Grouping::Chosen(_) => {
                (matrix.m, matrix.m.saturating_mul(matrix.l))
            }
        };
        Groups {
            counts: 0,
            status: 0,
            factors: [[0; 2]; 2],
            next: NextWeights::NONE,
            problems: self.problems,
            slot,
            bound,
            vector_stride: 0,
            settled: 0,
            chosen: Chosen::NONE,
            row_tiles: Divisor::ONE,
            runs: EvenRuns { ctas: Divisor::ONE, tile: Divisor::ONE, least: 1, slack: 0 },
        }
    }
}

/// The groups of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedGroups {
    pub request: GroupRequest,
    /// Matrices of weights.
    pub matrices: u32,
    /// Whether ids say which of them problems have.
    pub chosen: Chosen,
}

/// The host's decisions about a grouped product's work list.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupedRuns {
    /// Problems that are expected to have tokens, and the tokens of each.
    pub expected: [u32; 2],
    /// The least K steps of a CTA's run.
    pub least: u32,
    /// Whether no tile is cut, whatever the counts.
    pub whole: bool,
}

impl GroupedRuns {
    /// Work by which the longest run of whole tiles may exceed an even one, where tiles are never cut: no run has more.
    pub const MOST_SLACK: u32 = Divisor::DIVIDENDS - 1;
    /// The most parts of a tile: their partial sums are added one after the other.
    pub const MOST_PARTS: u32 = 8;
}
