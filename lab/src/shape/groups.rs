//! Shapes of grouped products and of mixtures of experts.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::{MAX_DIM, ShapeError, parse_count, parse_size, whole_blocks, whole_blocks_of};

/// Sizes of a grouped GEMM: problems with their own token counts, and N and K in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GroupedShape {
    /// Tokens of each problem; some may have none.
    pub counts: Vec<usize>,
    /// Output columns.
    pub n: usize,
    /// Columns of both operands, a multiple of the format's block.
    pub k: usize,
}

impl GroupedShape {
    /// Tokens of all problems.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Additions and multiplications with weights of `rows` rows: N, of a gated product 2 N.
    #[must_use]
    pub fn flops(&self, rows: usize) -> f64 {
        2.0 * self.tokens() as f64 * rows as f64 * self.k as f64
    }

    /// The tokens of each group, counted over all.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let mut next = 0;
        let range = |&count: &usize| {
            let first = next;
            next += count;
            first..next
        };
        self.counts.iter().map(range).collect()
    }

    /// The shape as text, of a product that is gated or not.
    pub(crate) fn text(&self, gated: bool) -> String {
        let op = if gated { "grouped-dual" } else { "grouped" };
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &count in &self.counts {
            match runs.last_mut() {
                Some((times, last)) if *last == count => *times += 1,
                _ => runs.push((1, count)),
            }
        }
        let counts: Vec<String> = runs
            .into_iter()
            .map(|(times, count)| match times {
                1 => count.to_string(),
                times => format!("{times}*{count}"),
            })
            .collect();
        format!("{op}:{}x{}x{}", counts.join(","), self.n, self.k)
    }
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct MixtureShape {
    /// Tokens, T.
    pub tokens: usize,
    /// Experts, E.
    pub experts: usize,
    /// Experts that each token takes, K; at most E.
    pub top_k: usize,
    /// Columns of activations and of the result, H, a multiple of the format's block.
    pub hidden: usize,
    /// Columns between the two products, I, a multiple of the format's block.
    pub between: usize,
}

impl MixtureShape {
    /// Additions and multiplications of the two products, of which the first is gated.
    #[must_use]
    pub fn flops(self) -> f64 {
        let Self { tokens, top_k, hidden, between, .. } = self;
        6.0 * (tokens * top_k) as f64 * hidden as f64 * between as f64
    }
}

impl fmt::Display for MixtureShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tokens, experts, top_k, hidden, between } = self;
        write!(f, "moe:{tokens}x{experts}x{top_k}x{hidden}x{between}")
    }
}

/// A grouped shape from what follows the colon: `G*M` is G groups of M tokens.
pub(super) fn grouped(
    text: &str,
    sizes: &str,
    form: &'static str,
) -> Result<GroupedShape, ShapeError> {
    let wrong_form = || ShapeError::Form { text: text.into(), expected: form };
    let sizes: Vec<&str> = sizes.split('x').collect();
    let &[list, n, k] = sizes.as_slice() else { return Err(wrong_form()) };
    let too_many = |field: &str, max| {
        Err(ShapeError::Overflow { text: text.into(), field: field.into(), max })
    };
    let mut counts = Vec::new();
    for item in list.split(',') {
        let (times, count) = item.split_once('*').unwrap_or(("1", item));
        let times = parse_size(text, "G", times, form)?;
        let count = parse_count(text, &format!("M{}", counts.len() + 1), count, form)?;
        if counts.len() as u64 + times > MAX_GROUPS {
            return too_many("number of groups", MAX_GROUPS);
        }
        counts.extend(std::iter::repeat_n(count as usize, times as usize));
    }
    let tokens: u64 = counts.iter().map(|&count| count as u64).sum();
    match tokens {
        0 => return Err(ShapeError::Zero { text: text.into(), field: "sum of M".into() }),
        1..=MAX_DIM => {}
        _ => return too_many("sum of M", MAX_DIM),
    }
    let n = parse_size(text, "N", n, form)?;
    let k = parse_size(text, "K", k, form)?;
    // Two matrices of weights for each group, and results of four bytes.
    let max = isize::MAX as u64;
    let groups = counts.len() as u64;
    for (a, b) in [(tokens, k), (2 * n * groups, k), (tokens, 4 * n)] {
        if a.checked_mul(b).is_none_or(|all| all > max) {
            return too_many("number of elements", max);
        }
    }
    Ok(GroupedShape { counts, n: n as usize, k: whole_blocks(text, k)? })
}

/// The most groups of a launch.
const MAX_GROUPS: u64 = fp4_formats::gemm::groups::MAX_PROBLEMS as u64;

/// A mixture of experts from its five sizes.
pub(super) fn mixture(text: &str, [t, e, k, h, i]: [u64; 5]) -> Result<MixtureShape, ShapeError> {
    let too_large = |field: &str, max| {
        Err(ShapeError::Overflow { text: text.into(), field: field.into(), max })
    };
    if e > MAX_GROUPS {
        return too_large("E", MAX_GROUPS);
    }
    if k > e {
        return too_large("K", e);
    }
    let max = isize::MAX as u64;
    for (a, b) in [(2 * e * h, i), (t * k, 4 * h), (t * k, 4 * i)] {
        if a.checked_mul(b).is_none_or(|all| all > max) {
            return too_large("number of elements", max);
        }
    }
    Ok(MixtureShape {
        tokens: t as usize,
        experts: e as usize,
        top_k: k as usize,
        hidden: whole_blocks_of(text, "H", h)?,
        between: whole_blocks_of(text, "I", i)?,
    })
}
