//! A warp's tile: scores, shares, and products with values.
//!
//! Lane `4 g + j` has rows `g` and `g + 8`. Its keys are `g` of each eight, its scores those of keys `2 j` and `2 j + 1`, and
//! these are the keys whose values it loads.

use cuda_std::ptx::{float, integer, memory};
use cuda_std::{shared, warp};
use fp4_formats::attention::{AttentionParams, MAX_GROUP, Shared, TILE};

use super::element::Element;
use super::heads::Queries;
use super::{Cta, Seen};

/// The most parts of 64 elements that a head has.
const PARTS: usize = 2;
/// The most loads of 32 elements of a key.
const LOADS: usize = 4;
/// Elements of a lane's load.
const LOADED: usize = 8;

/// Selectors of `prmt` for the low halves of two words, and for the high ones.
const HALVES: [u32; 2] = [0x5410, 0x7632];

/// A lane's keys and values of a tile.
#[derive(Clone, Copy)]
pub struct Loaded {
    keys: [[[u32; 4]; LOADS]; 2],
    values: [[[u32; 4]; PARTS]; 4],
}

impl Loaded {
    /// Before a tile is loaded.
    pub const NOTHING: Self = Self { keys: [[[0; 4]; LOADS]; 2], values: [[[0; 4]; PARTS]; 4] };

    /// Loads the places from `base` on.
    ///
    /// # Safety
    /// The launch satisfies the module's contract; the token sees a place of the tile, and nobody writes those that it sees.
    #[inline(always)]
    pub unsafe fn of<const DIM: usize>(
        p: &AttentionParams,
        cta: &Cta,
        seen: &Seen,
        base: u32,
    ) -> Self {
        let (g, j) = (cta.lane / 4, cta.lane % 4);
        let cached = cta.cached::<DIM>(p);
        // Places that are not seen are read as one that is: nothing else is known to be a number.
        let row = |place: u32| {
            cached + u64::from(place.max(seen.first).min(seen.place)) * (DIM as u64 * 2)
        };
        let mut keys = [[[0; 4]; LOADS]; 2];
        for i in 0..2 {
            let from = p.keys + row(base + 8 * i as u32 + g) + u64::from(j) * 16;
            for c in 0..LOADS {
                if c < DIM / 32 {
                    // SAFETY: the place is one that the token sees.
                    keys[i][c] =
                        unsafe { memory::ld_global_no_allocate_v4_b32(from + c as u64 * 64) };
                }
            }
        }
        let mut values = [[[0; 4]; PARTS]; 4];
        // Half as many lanes are enough for 32 elements; the others have the same again.
        let column = if DIM < 64 { g % 4 } else { g };
        for i in 0..4 {
            let place = place_of_value(base, j, i);
            let from = p.values + row(place) + u64::from(column) * 16;
            for part in 0..PARTS {
                if part < DIM.div_ceil(64) {
                    // SAFETY: the place is one that the token sees.
                    values[i][part] =
                        unsafe { memory::ld_global_no_allocate_v4_b32(from + part as u64 * 128) };
                }
            }
        }
        Self { keys, values }
    }
}

/// A warp's sums. Two numbers are those of rows `g` and `g + 8`.
pub struct Sums {
    /// Products with values: columns `2 j`, `2 j + 1` of each row, of each part and product.
    products: [[[f32; 4]; LOADED]; PARTS],
    /// The largest scores so far.
    largest: [f32; 2],
    /// Sums of the lane's shares.
    shares: [f32; 2],
}

impl Sums {
    /// The sums of no places.
    pub const NOTHING: Self = Self {
        products: [[[0.0; 4]; LOADED]; PARTS],
        largest: [f32::NEG_INFINITY; 2],
        shares: [0.0; 2],
    };

    /// Adds the places from `base` on, whose keys and values are given.
    ///
    /// # Safety
    /// The launch satisfies the module's contract; the queries are those of the lane; all lanes of the warp are here; the
    /// token sees a place of the tile.
    #[inline(always)]
    pub unsafe fn add<E: Element, const DIM: usize>(
        &mut self,
        p: &AttentionParams,
        (seen, j): (&Seen, u32),
        queries: &Queries,
        (base, loaded): (u32, &Loaded),
    ) {
        let Loaded { keys, mut values } = *loaded;
        if base < seen.first || base + (TILE - 1) > seen.place {
            // The share of a place that is not seen is 0, which infinity would make NaN.
            for i in 0..4 {
                if !seen.has(place_of_value(base, j, i)) {
                    values[i] = [[0; 4]; PARTS];
                }
            }
        }
        let mut scores = [[0.0; 4]; 2];
        for i in 0..2 {
            for c in 0..LOADS {
                for step in 0..2 {
                    if c < DIM / 32 {
                        let words = [keys[i][c][2 * step], keys[i][c][2 * step + 1]];
                        // SAFETY: all lanes are here.
                        unsafe { E::multiply(&mut scores[i], queries[2 * c + step], words) };
                    }
                }
            }
        }
        for i in 0..2 {
            for at in 0..4 {
                let place = base + 8 * i as u32 + 2 * j + at as u32 % 2;
                scores[i][at] =
                    if seen.has(place) { scores[i][at] * p.scale } else { f32::NEG_INFINITY };
            }
        }
        // SAFETY: all lanes are here.
        unsafe {
            self.take_shares::<DIM>(&mut scores);
            self.multiply::<E, DIM>(&scores, &values);
        }
    }

    /// Makes shares of scores, relative to the largest score so far.
    ///
    /// # Safety
    /// All lanes of the warp are here.
    #[inline(always)]
    unsafe fn take_shares<const DIM: usize>(&mut self, scores: &mut [[f32; 4]; 2]) {
        for row in 0..2 {
            let mut largest = self.largest[row];
            for i in 0..2 {
                for at in 0..2 {
                    largest = float::max_nan_f32(largest, scores[i][2 * row + at]);
                }
            }
            for distance in [1, 2] {
                // SAFETY: all lanes are here.
                let other = unsafe { warp::shuffle_xor_f32(largest, distance) };
                largest = float::max_nan_f32(largest, other);
            }
            let base = finite_base(largest);
            let kept = float::ex2_approx_ftz_f32(self.largest[row] - base);
            self.largest[row] = largest;
            let mut sum = self.shares[row] * kept;
            for i in 0..2 {
                for at in 0..2 {
                    let share = float::ex2_approx_ftz_f32(scores[i][2 * row + at] - base);
                    scores[i][2 * row + at] = share;
                    sum += share;
                }
            }
            self.shares[row] = sum;
            for part in 0..PARTS {
                if part < DIM.div_ceil(64) {
                    for t in 0..LOADED {
                        for at in 0..2 {
                            self.products[part][t][2 * row + at] *= kept;
                        }
                    }
                }
            }
        }
    }

    /// Adds the products of shares and values.
    ///
    /// # Safety
    /// All lanes of the warp are here.
    #[inline(always)]
    unsafe fn multiply<E: Element, const DIM: usize>(
        &mut self,
        shares: &[[f32; 4]; 2],
        values: &[[[u32; 4]; PARTS]; 4],
    ) {
        let a = [
            E::pair(shares[0][1], shares[0][0]),
            E::pair(shares[0][3], shares[0][2]),
            E::pair(shares[1][1], shares[1][0]),
            E::pair(shares[1][3], shares[1][2]),
        ];
        for part in 0..PARTS {
            if part < DIM.div_ceil(64) {
                for t in 0..LOADED {
                    let word = |i: usize| values[i][part][t / 2];
                    let pair = |i: usize| integer::prmt_b32(word(i), word(i + 1), HALVES[t % 2]);
                    // SAFETY: all lanes are here.
                    unsafe { E::multiply(&mut self.products[part][t], a, [pair(0), pair(2)]) };
                }
            }
        }
    }

    /// Stores the warp's sums in shared memory.
    ///
    /// # Safety
    /// The launch satisfies the module's contract; all lanes of the warp are here.
    #[inline(always)]
    pub unsafe fn store<const DIM: usize>(&self, p: &AttentionParams, cta: &Cta, places: &Shared) {
        let (g, j) = (cta.lane / 4, cta.lane % 4);
        let memory = shared::dynamic::<16>();
        for high in 0..2 {
            let mut shares = self.shares[high];
            for distance in [1, 2] {
                // SAFETY: all lanes are here.
                shares += unsafe { warp::shuffle_xor_f32(shares, distance) };
            }
            let row = g + 8 * high as u32;
            if row < p.group {
                let at = memory + places.rows + (cta.warp * MAX_GROUP + row) * 8;
                let to = memory + places.sums + (cta.warp * p.group + row) * (DIM as u32 * 4);
                // SAFETY: the row exists, in both buffers, and so do the columns.
                unsafe {
                    if j == 0 {
                        memory::st_shared_b32(at, self.largest[high].to_bits());
                        memory::st_shared_b32(at + 4, shares.to_bits());
                    }
                    for part in 0..PARTS {
                        for n in 0..2 {
                            for t in [0, 4] {
                                let column = (part * 8 + n) as u32 + 2 * j;
                                if part < DIM.div_ceil(64) && column < DIM as u32 / 8 {
                                    let product =
                                        |t: usize| self.products[part][t][2 * high + n].to_bits();
                                    let four = [0, 1, 2, 3].map(|i| product(t + i));
                                    let at = to + column * 32 + t as u32 * 4;
                                    memory::st_shared_v4_b32(at, four);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The place of the `i`-th value that a lane loads.
#[inline(always)]
fn place_of_value(base: u32, j: u32, i: usize) -> u32 {
    base + 2 * j + i as u32 % 2 + i as u32 / 2 * 8
}

/// The number that scores are relative to: the largest, and 0 if none is above minus infinity, so that differences are numbers.
#[inline(always)]
pub fn finite_base(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

const _: () = assert!(TILE == 16);
