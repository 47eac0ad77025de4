//! The arithmetic of a row, in f32 and in exactly the written order. The fused multiply-add is a parameter, because
//! `core` has none.
//!
//! *Sums over a row.* The terms of a chunk of [`CHUNK`] elements are added to 0 in two runs of eight, in order; the two
//! are added. Chunks whose numbers differ in their lowest five bits are a group: its sums are added in pairs of lanes of
//! distance 16, then 8, 4, 2 and 1. The sums of groups `l`, `l + 32`, `l + 64` and `l + 96` are added to 0 in order, for
//! `l` from 0 to 31, and the results in pairs as before. Absent chunks and groups are 0, which changes no sum.

/// Elements that a thread has at a time: a block of NVFP4.
pub const CHUNK: usize = 16;
/// Chunks whose sums the lanes of a warp add.
pub const GROUP: usize = crate::WARP as usize;
/// Most groups of a row.
pub const MAX_GROUPS: usize = super::MAX_COLUMNS as usize / (CHUNK * GROUP);

/// The elements of a chunk, in groups of eight.
pub type Chunk = [[f32; 8]; 2];

/// The number that normalised elements are multiplied by, and the one that is subtracted before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// 0 for RMSNorm.
    pub mean: f32,
    /// `1 / sqrt(mean of squares + epsilon)`.
    pub factor: f32,
}

/// The sum of a chunk's elements.
#[inline(always)]
#[must_use]
pub fn sum(chunk: &Chunk) -> f32 {
    let mut sums = [0.0; 2];
    for half in 0..2 {
        for x in &chunk[half] {
            sums[half] += x;
        }
    }
    sums[0] + sums[1]
}

/// The sum of the squares of a chunk's elements, each added by a fused multiply-add.
#[inline(always)]
#[must_use]
pub fn squares(chunk: &Chunk, fma: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut sums = [0.0; 2];
    for half in 0..2 {
        for &x in &chunk[half] {
            sums[half] = fma(x, x, sums[half]);
        }
    }
    sums[0] + sums[1]
}

/// The factor of a row of `k` elements, of the sum of its squares. A sum that overflows gives 0.
#[inline(always)]
#[must_use]
pub fn factor(squares: f32, k: u32, epsilon: f32, sqrt: impl Fn(f32) -> f32) -> f32 {
    1.0 / sqrt(squares / k as f32 + epsilon)
}

/// The distance of an element from the mean, which is the element if the mean is 0.
#[inline(always)]
#[must_use]
pub fn centred(x: f32, statistics: &Statistics) -> f32 {
    x - statistics.mean
}

/// Normalises an element that is [`centred`]: `(x * factor) * weight`.
#[inline(always)]
#[must_use]
pub fn normalised(x: f32, statistics: &Statistics, weight: f32) -> f32 {
    x * statistics.factor * weight
}

/// The product of a chunk with `diag(signs) H / 4`, where `H` is the Hadamard matrix of 16 rows in Sylvester's order: the
/// rotation is its own inverse but for the signs. Bit `i` of `signs` negates element `i` first. Pairs of distance 1, 2, 4
/// and 8 become sum and difference; the product with 1/4 is last.
#[inline(always)]
#[must_use]
pub fn rotated(chunk: &Chunk, signs: u32) -> Chunk {
    let mut values = [0.0; CHUNK];
    for i in 0..CHUNK {
        let sign = (signs >> i & 1) << 31;
        values[i] = f32::from_bits(chunk[i / 8][i % 8].to_bits() ^ sign);
    }
    let values = butterflies::<8>(butterflies::<4>(butterflies::<2>(butterflies::<1>(values))));
    let mut rotated = [[0.0; 8]; 2];
    for i in 0..CHUNK {
        rotated[i / 8][i % 8] = values[i] * 0.25;
    }
    rotated
}

/// Sums and differences of elements of a distance.
#[inline(always)]
fn butterflies<const DISTANCE: usize>(values: [f32; CHUNK]) -> [f32; CHUNK] {
    let mut results = values;
    for i in 0..CHUNK {
        let (low, high) = (values[i & !DISTANCE], values[i | DISTANCE]);
        results[i] = if i & DISTANCE == 0 { low + high } else { low - high };
    }
    results
}

/// The sum over a row of `chunks` chunks from the sum of each, as the kernels add them.
#[must_use]
pub fn row_sum(chunks: usize, sum_of: impl Fn(usize) -> f32) -> f32 {
    let groups = chunks.div_ceil(GROUP);
    let mut lanes = [0.0; GROUP];
    for (lane, total) in lanes.iter_mut().enumerate() {
        let mut group = lane;
        while group < groups {
            let mut sums = [0.0; GROUP];
            for (of_lane, sum) in sums.iter_mut().enumerate() {
                let chunk = group * GROUP + of_lane;
                if chunk < chunks {
                    *sum = sum_of(chunk);
                }
            }
            *total += in_pairs(sums);
            group += GROUP;
        }
    }
    in_pairs(lanes)
}

/// The sum of all lanes' numbers.
fn in_pairs(mut lanes: [f32; GROUP]) -> f32 {
    let mut distance = GROUP / 2;
    while distance > 0 {
        for lane in 0..distance {
            lanes[lane] += lanes[lane + distance];
        }
        distance /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rotation is `H[i][j] = (-1)^popcount(i & j) / 4` behind the signs.
    #[test]
    fn rotations_are_hadamard_matrices() {
        let mut chunk = [[0.0; 8]; 2];
        for i in 0..CHUNK {
            chunk[i / 8][i % 8] = (i * i) as f32 - 50.0;
        }
        for signs in [0, 0xffff, 0x5a0f] {
            let rotated = rotated(&chunk, signs);
            for j in 0..CHUNK {
                let mut expected = 0.0;
                for i in 0..CHUNK {
                    let odd = ((i & j).count_ones() + (signs >> i & 1)) % 2 == 1;
                    let x = chunk[i / 8][i % 8];
                    expected += if odd { -x } else { x };
                }
                assert_eq!(rotated[j / 8][j % 8], expected / 4.0, "{signs:#x}, {j}");
            }
        }
    }

    #[test]
    fn every_chunk_is_added_once() {
        for chunks in [1, 2, 31, 32, 33, 1000, 1024, 1025, 4096] {
            assert_eq!(row_sum(chunks, |chunk| chunk as f32), (chunks * (chunks - 1) / 2) as f32);
        }
        assert_eq!(MAX_GROUPS, 128);
    }

    #[test]
    fn statistics_of_known_rows() {
        let fma = |a: f32, b: f32, c: f32| a * b + c;
        let chunk = [[3.0; 8], [-3.0; 8]];
        assert_eq!((sum(&chunk), squares(&chunk, fma)), (0.0, 144.0));
        let sqrt = |x: f32| if x == 9.0 { 3.0 } else { x };
        assert_eq!(factor(144.0, 16, 0.0, sqrt), 1.0 / 3.0);
        assert_eq!(factor(f32::INFINITY, 16, 1e-6, sqrt), 0.0);
        let statistics = Statistics { mean: 1.0, factor: 0.5 };
        assert_eq!(normalised(centred(5.0, &statistics), &statistics, 3.0), 6.0);
    }
}
