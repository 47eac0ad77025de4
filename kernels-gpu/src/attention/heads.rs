//! Queries, and the token's own key and value: norm, rotation, and the places where the tiles find them.

use cuda_std::ptx::{float, memory};
use cuda_std::{shared, warp};
use fp4_formats::attention::{AttentionParams, Shared, WARPS};

use super::element::Element;
use super::{Cta, Seen};

/// The most pairs of elements of a head that a lane has.
const PAIRS: usize = 2;
/// The most products of a score: 16 elements each.
const STEPS: usize = 8;

/// Rows `g` and `g + 8` of the queries, as the products of scores take them.
pub type Queries = [[u32; 4]; STEPS];

/// Prepares the heads: a warp takes one at a time.
///
/// # Safety
/// The launch satisfies the module's contract; all threads of the CTA are here.
#[inline(always)]
pub unsafe fn prepare<E: Element, const DIM: usize>(
    p: &AttentionParams,
    cta: &Cta,
    seen: &Seen,
    places: &Shared,
) {
    let row = u64::from(cta.text) * u64::from(p.row) * 2;
    let head = |at: u32| u64::from(at) * (DIM as u64 * 2);
    let own = cta.cached::<DIM>(p) + head(seen.place);
    let mut job = cta.warp;
    let jobs = p.group + if seen.is_last(cta) { 2 } else { 0 };
    while job < jobs {
        // SAFETY: the heads exist, in the projection, shared memory and caches.
        unsafe {
            if job < p.group {
                let from = p.query + row + head(cta.of_text * p.group + job);
                let to = shared::dynamic::<16>() + job * places.query;
                turned::<E, DIM>(p, cta, seen, (from, p.query_norm), |at, bits| {
                    memory::st_shared_b16(to + at * 2, bits);
                });
            } else if job == p.group {
                let from = p.key + row + head(cta.of_text);
                turned::<E, DIM>(p, cta, seen, (from, p.key_norm), |at, bits| {
                    memory::st_global_b16(p.keys + own + u64::from(at) * 2, bits);
                });
            } else {
                let from = p.value + row + head(cta.of_text);
                let mut at = u64::from(cta.lane) * 4;
                while at < DIM as u64 * 2 {
                    memory::st_global_b32(p.values + own + at, memory::ld_global_b32(from + at));
                    at += u64::from(warp::LANES) * 4;
                }
            }
        }
        job += WARPS;
    }
}

/// Stores the elements of a head after its norm, if it has one, and rotation.
///
/// # Safety
/// All lanes of the warp are here; there are the head and the norm's weights at the addresses.
#[inline(always)]
unsafe fn turned<E: Element, const DIM: usize>(
    p: &AttentionParams,
    cta: &Cta,
    seen: &Seen,
    (from, norm): (u64, u64),
    mut store: impl FnMut(u32, u16),
) {
    let half = DIM as u32 / 2;
    let element = |address: u64, at: u32| {
        // SAFETY: the element exists.
        E::value(unsafe { memory::ld_global_u16(address + u64::from(at) * 2) })
    };
    // The first of a lane's pair; past the end the last one, which it does not store.
    let place = |i: usize| (cta.lane + i as u32 * warp::LANES).min(half - 1);
    let exists = |i: usize| cta.lane + (i as u32 * warp::LANES) < half;
    let table = u64::from(seen.position) * u64::from(half) * 2;
    let mut pairs = [[0.0; 2]; PAIRS];
    let mut turns = [[0.0; 2]; PAIRS];
    for i in 0..PAIRS {
        if i == 0 || half > warp::LANES {
            let at = place(i);
            pairs[i] = [element(from, at), element(from, at + half)];
            turns[i] = [element(p.cosines + table, at), element(p.sines + table, at)];
        }
    }
    if norm != 0 {
        let mut squares = 0.0;
        for i in 0..PAIRS {
            if exists(i) {
                let [low, high] = pairs[i];
                squares = float::fma_rn_f32(low, low, float::fma_rn_f32(high, high, squares));
            }
        }
        for distance in [16, 8, 4, 2, 1] {
            // SAFETY: all lanes are here.
            squares += unsafe { warp::shuffle_xor_f32(squares, distance) };
        }
        let factor = 1.0 / float::sqrt_rn_f32(squares / DIM as f32 + p.epsilon);
        for i in 0..PAIRS {
            if i == 0 || half > warp::LANES {
                let weights = [element(norm, place(i)), element(norm, place(i) + half)];
                pairs[i] = [pairs[i][0] * factor * weights[0], pairs[i][1] * factor * weights[1]];
            }
        }
    }
    for i in 0..PAIRS {
        if exists(i) {
            let ([low, high], [cosine, sine]) = (pairs[i], turns[i]);
            store(place(i), E::round(low * cosine - high * sine));
            store(place(i) + half, E::round(high * cosine + low * sine));
        }
    }
}

/// Loads the queries of the lane's two rows. Rows that are no head's are zeros.
///
/// # Safety
/// The launch satisfies the module's contract; the queries are ready.
#[inline(always)]
pub unsafe fn load<const DIM: usize>(p: &AttentionParams, cta: &Cta, places: &Shared) -> Queries {
    let mut queries = [[0; 4]; STEPS];
    for high in 0..2 {
        let row = cta.lane / 4 + 8 * high as u32;
        if row < p.group {
            let from = shared::dynamic::<16>() + row * places.query + cta.lane % 4 * 16;
            for c in 0..STEPS / 2 {
                if c < DIM / 32 {
                    // SAFETY: the row is ready.
                    let words = unsafe { memory::ld_shared_v4_b32(from + c as u32 * 64) };
                    for step in 0..2 {
                        queries[2 * c + step][high] = words[2 * step];
                        queries[2 * c + step][high + 2] = words[2 * step + 1];
                    }
                }
            }
        }
    }
    queries
}
