//! Threads that poll memory until another thread has written there.
//!
//! A strong load, or an atomic whose old value is used, that returns the same value as
//! the same instruction before is a repeated poll. A warp that executes only repeated polls
//! spins: other warps should run. If every warp of the machine spins or waits, it is a
//! deadlock.
//!
//! Limits: a loop whose polls return a different value every time (a counter that others advance, a
//! ring of more than [`RECENT`] flags) does not count as spinning; it is interrupted when its turn
//! is over.

use crate::machine::access::lanes;
use crate::machine::regs::LANES;

/// Looks that are remembered of a warp.
const RECENT: usize = 8;
/// Repeated looks in a row from which on a warp spins.
const REPEATS: u32 = 4;
/// Instructions without a look after which a warp no longer spins.
const UNREAD: u64 = 4096;

/// A look, as a deadlock report names it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) pc: usize,
    /// Address of the first lane, in the space the instruction names.
    pub(crate) address: u64,
    /// The value that it found.
    pub(crate) value: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Spin {
    recent: [u64; RECENT],
    next: usize,
    repeats: u32,
    /// Instructions since the last look.
    unread: u64,
    last: Look,
}

/// The looks of a cluster's warps.
#[derive(Debug, Default)]
pub(crate) struct Spins(Vec<Spin>);

impl Spins {
    pub(crate) fn reset(&mut self, warps: usize) {
        self.0.clear();
        self.0.resize(warps, Spin::default());
    }

    /// A warp looked at memory. True when others should run.
    pub(crate) fn looked(
        &mut self,
        warp: usize,
        pc: usize,
        addrs: &[u64; LANES],
        values: &[u64; LANES],
        mask: u32,
    ) -> bool {
        const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(MIX).rotate_left(29);
        let found = lanes(mask).fold(mix(u64::from(mask), pc as u64 + 1), |hash, lane| {
            mix(mix(hash, addrs[lane]), values[lane])
        });
        let first = mask.trailing_zeros() as usize;
        let spin = &mut self.0[warp];
        spin.last = Look { pc, address: addrs[first], value: values[first] };
        spin.unread = 0;
        if spin.recent.contains(&found) {
            spin.repeats += 1;
        } else {
            spin.repeats = 0;
            spin.recent[spin.next] = found;
            spin.next = (spin.next + 1) % RECENT;
        }
        spin.repeats >= REPEATS
    }

    /// A warp ran for so many instructions.
    pub(crate) fn ran(&mut self, warp: usize, instructions: u64) {
        self.0[warp].unread += instructions;
    }

    /// Whether a warp spins, and on what.
    pub(crate) fn spinning(&self, warp: usize) -> Option<Look> {
        let spin = &self.0[warp];
        (spin.repeats >= REPEATS && spin.unread < UNREAD).then_some(spin.last)
    }
}

#[cfg(test)]
mod tests {
    use super::{RECENT, Spins, UNREAD};
    use crate::machine::regs::LANES;

    fn looked(spins: &mut Spins, pc: usize, address: u64, value: u64) -> bool {
        spins.looked(0, pc, &[address; LANES], &[value; LANES], 1)
    }

    #[test]
    fn repeated_looks_are_spinning_until_something_changes() {
        let mut spins = Spins::default();
        spins.reset(1);
        let answers: Vec<bool> = (0..6).map(|_| looked(&mut spins, 3, 64, 0)).collect();
        assert_eq!(answers, [false, false, false, false, true, true]);
        assert_eq!(
            spins.spinning(0).map(|look| (look.pc, look.address, look.value)),
            Some((3, 64, 0))
        );
        spins.ran(0, UNREAD);
        assert_eq!(spins.spinning(0), None);
        assert!(looked(&mut spins, 3, 64, 0));
        assert!(spins.spinning(0).is_some());
        assert!(!looked(&mut spins, 3, 64, 1), "another value");
        assert_eq!(spins.spinning(0), None);
    }

    #[test]
    fn a_round_of_several_flags_is_spinning_and_a_walk_is_not() {
        let mut spins = Spins::default();
        spins.reset(1);
        let round =
            |spins: &mut Spins| (0..RECENT as u64).fold(false, |_, at| looked(spins, 5, at * 4, 0));
        assert!(!round(&mut spins));
        assert!(round(&mut spins));
        assert!((0..100).all(|at| !looked(&mut spins, 6, at * 4, 0)), "addresses that grow");
        assert!((0..100).all(|at| !looked(&mut spins, 7, 4, at)), "a counter that grows");
    }
}
