//! Knowledge that was published in flags. Atomics make flags of whole arrays in shared memory, so those are found by
//! their words.

use super::clock::Clock;
use super::objects::Flag;
use super::shadow::CHUNK as WORD;
use std::collections::BTreeMap;

/// Published knowledge, and that of `tcgen05` operations.
pub(super) type Knowledge = (Clock, Clock);

/// The flags of a cluster.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// One more than the place of each word in `shared`, by rank; 0: nothing was published there.
    places: Vec<Vec<u32>>,
    /// Knowledge published in shared memory, the first `used`; the rest is memory to be used again.
    shared: Vec<Knowledge>,
    used: usize,
    /// All others.
    others: BTreeMap<Flag, Knowledge>,
}

impl Flags {
    /// Forgets everything: a cluster of `ctas` CTAs with so many bytes of shared memory begins.
    pub(super) fn start(&mut self, ctas: usize, shared_bytes: usize) {
        if self.used != 0 {
            self.places.iter_mut().for_each(|places| places.fill(0));
        }
        self.places.resize_with(ctas, Vec::new);
        self.places.iter_mut().for_each(|places| places.resize(shared_bytes.div_ceil(WORD), 0));
        self.used = 0;
        self.others.clear();
    }

    fn place(&self, flag: Flag) -> Option<u32> {
        let Flag::Shared(rank, word) = flag else { return None };
        self.places.get(rank as usize)?.get(word as usize).copied()
    }

    /// Knowledge that was published in a flag.
    pub(super) fn get(&self, flag: Flag) -> Option<&Knowledge> {
        match self.place(flag) {
            Some(place) => self.shared.get((place as usize).checked_sub(1)?),
            None => self.others.get(&flag),
        }
    }

    /// The same, to publish more.
    pub(super) fn entry(&mut self, flag: Flag) -> &mut Knowledge {
        let place = match (self.place(flag), flag) {
            (Some(0), Flag::Shared(rank, word)) => {
                if self.used == self.shared.len() {
                    self.shared.push(Knowledge::default());
                }
                let (published, tensor) = &mut self.shared[self.used];
                published.clear();
                tensor.clear();
                self.used += 1;
                self.places[rank as usize][word as usize] = self.used as u32;
                self.used
            }
            (Some(place), _) => place as usize,
            (None, _) => return self.others.entry(flag).or_default(),
        };
        &mut self.shared[place - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::{Flag, Flags};

    #[test]
    fn flags_are_told_apart_and_forgotten() {
        let mut flags = Flags::default();
        flags.start(2, 16);
        let all = [
            Flag::Shared(0, 3),
            Flag::Shared(1, 3),
            Flag::Shared(0, 4),
            Flag::Global,
            Flag::Columns(0, false),
        ];
        assert!(all.iter().all(|&flag| flags.get(flag).is_none()));
        for (agent, flag) in all.into_iter().enumerate() {
            flags.entry(flag).0.set(agent, 7);
        }
        for (agent, flag) in all.into_iter().enumerate() {
            let known = |of: usize| flags.get(flag).map(|(clock, _)| clock.get(of));
            assert_eq!((known(agent), known(agent + 1)), (Some(7), Some(0)), "{flag:?}");
        }
        flags.start(1, 16);
        assert!(all.iter().all(|&flag| flags.get(flag).is_none()));
        flags.entry(Flag::Shared(0, 3)).0.set(5, 1);
        assert_eq!(flags.get(Flag::Shared(0, 3)).map(|(clock, _)| clock.get(0)), Some(0));
    }
}
