//! Conflicts of accesses to shared memory for its banks.
//!
//! How many passes an access takes depends on the differences of its addresses alone: a common offset of
//! whole units turns the banks. Instructions repeat the same differences, so the counts of each one's last
//! are kept.

use super::lanes;
use crate::machine::regs::{FULL, LANES};

/// Instructions whose differences are kept, a power of two.
const KEPT: usize = 32;

/// The differences of an access's addresses from that of its first lane, 0 in lanes that do not take part.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    differences: [u32; LANES],
    mask: u32,
    bytes: u32,
    /// Bits of the first address below a unit of 4 bytes.
    low: u32,
    counts: (u64, u64),
}

/// The counts of recent accesses, by instruction.
#[derive(Debug, Clone)]
pub(crate) struct Banks(Box<[Pattern; KEPT]>);

impl Default for Banks {
    fn default() -> Self {
        // No access has such a mask.
        let none = Pattern { differences: [0; LANES], mask: 0, bytes: 0, low: 0, counts: (0, 0) };
        Self(Box::new([none; KEPT]))
    }
}

impl Banks {
    /// Passes of an access by the instruction at `pc`, and how many it would take without conflicts.
    #[inline(always)]
    pub(super) fn wavefronts(
        &mut self,
        pc: usize,
        addrs: &[u64; LANES],
        mask: u32,
        bytes: usize,
    ) -> (u64, u64) {
        if mask & mask.wrapping_sub(1) == 0 {
            return (1, 1);
        }
        let first = addrs[mask.trailing_zeros() as usize & 31];
        let mut differences = [0; LANES];
        if mask == FULL {
            for (difference, addr) in differences.iter_mut().zip(addrs) {
                *difference = addr.wrapping_sub(first) as u32;
            }
        } else {
            for (lane, (difference, addr)) in differences.iter_mut().zip(addrs).enumerate() {
                let active = 0u32.wrapping_sub(mask >> lane & 1);
                *difference = addr.wrapping_sub(first) as u32 & active;
            }
        }
        let (mut spread, mut uneven) = (0, 0);
        for (lane, difference) in differences.iter().enumerate() {
            spread |= difference;
            uneven |= difference ^ (lane * bytes) as u32;
        }
        if spread == 0 && mask == FULL {
            return (1, 1);
        }
        if uneven == 0 && mask == FULL {
            let passes = (bytes as u64 / 4).max(1);
            return (passes, passes);
        }
        let low = first as u32 & 3;
        let kept = &mut self.0[pc % KEPT];
        let mut other = (kept.mask ^ mask) | (kept.bytes ^ bytes as u32) | (kept.low ^ low);
        for (a, b) in kept.differences.iter().zip(&differences) {
            other |= a ^ b;
        }
        if other != 0 {
            let counts = wavefronts(addrs, mask, bytes);
            *kept = Pattern { differences, mask, bytes: bytes as u32, low, counts };
        }
        kept.counts
    }
}

/// Passes over the 32 banks that a shared access takes, and how many it would
/// take without conflicts. Accesses wider than 4 bytes go in groups of lanes
/// that move 128 bytes; an aligned access of `b` bytes then occupies one of
/// `128 / b` groups of banks.
#[inline]
fn wavefronts(addrs: &[u64; LANES], mask: u32, bytes: usize) -> (u64, u64) {
    let bytes = bytes.clamp(4, 32);
    let shift = bytes.trailing_zeros();
    let group = 128 / bytes;
    let (mut passes, mut ideal) = (0, 0);
    for first in (0..LANES).step_by(group) {
        let here = mask >> first & (((1u64 << group) - 1) as u32);
        if here == 0 {
            continue;
        }
        ideal += 1;
        let mut banks = 0u32;
        for lane in 0..group {
            let bank = (addrs[first + lane] >> shift) as usize & (group - 1);
            banks |= (here >> lane & 1) << bank;
        }
        if banks.count_ones() == here.count_ones() {
            passes += 1;
            continue;
        }
        let mut owner = [u64::MAX; 32];
        let mut conflicts = 0;
        for lane in 0..group {
            let unit = addrs[first + lane] >> shift;
            let bank = &mut owner[unit as usize % group];
            if here >> lane & 1 != 0 {
                conflicts |= u64::from(*bank != u64::MAX && *bank != unit);
                *bank = unit;
            }
        }
        passes += if conflicts == 0 { 1 } else { deepest_bank(addrs, first, here, shift, group) };
    }
    (passes, ideal)
}

/// Largest number of distinct units that lanes of a group want of one bank.
#[cold]
fn deepest_bank(addrs: &[u64; LANES], first: usize, here: u32, shift: u32, group: usize) -> u64 {
    let mut units = [0; LANES];
    let mut len = 0;
    let mut depth = [0u64; 32];
    for lane in lanes(here) {
        let unit = addrs[first + lane] >> shift;
        if !units[..len].contains(&unit) {
            units[len] = unit;
            len += 1;
            depth[unit as usize % group] += 1;
        }
    }
    depth.iter().max().copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::{Banks, wavefronts};
    use crate::machine::regs::LANES;

    /// Kept counts are those of the addresses, wherever a pattern lies and whatever came before.
    #[test]
    fn kept_counts_are_those_of_the_access() {
        let mut banks = Banks::default();
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let bytes = 1usize << random(6);
            let strides = [0, 1, 2, 3, 8, 33, 81];
            let stride = strides[random(strides.len() as u64) as usize];
            let noise = 1 + random(2) * random(64);
            let mask = [u32::MAX, 1 << random(32), random(u64::from(u32::MAX)) as u32 | 2]
                [random(3) as usize];
            let units: [u64; LANES] =
                std::array::from_fn(|lane| lane as u64 * stride + random(noise));
            for _ in 0..3 {
                let base = 1024 + random(100);
                let addrs = units.map(|unit| (base + unit) * bytes as u64);
                let kept = banks.wavefronts(random(40) as usize, &addrs, mask, bytes);
                let one = mask == u32::MAX && addrs.iter().all(|addr| *addr == addrs[0]);
                let counts = if one { (1, 1) } else { wavefronts(&addrs, mask, bytes) };
                assert_eq!(kept, counts, "{addrs:?} {mask:#x} {bytes}");
            }
        }
    }
}
