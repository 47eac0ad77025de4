//! Vector clocks.

/// Knowledge of every agent: entry `a` is the latest epoch of agent `a` whose accesses come before.
/// Entries that are not there are 0, before every epoch, so clocks grow with the agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    /// Latest known epoch of an agent.
    #[inline(always)]
    pub(super) fn get(&self, agent: usize) -> u32 {
        self.0.get(agent).copied().unwrap_or(0)
    }

    /// Learns an epoch of an agent.
    pub(super) fn set(&mut self, agent: usize, epoch: u32) {
        if self.0.len() <= agent {
            self.0.resize(agent + 1, 0);
        }
        self.0[agent] = epoch;
    }

    /// Learns all that another clock knows.
    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Becomes a copy of another clock, memory reused.
    pub(super) fn copy(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }

    /// Takes the entries of the agents from `first` on from another clock.
    pub(super) fn replace(&mut self, first: usize, other: &Self) {
        self.0.truncate(first);
        if other.0.len() > first {
            self.0.resize(first, 0);
            self.0.extend_from_slice(&other.0[first..]);
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn joins_take_the_later_epoch_of_each_agent() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.set(0, 7);
        a.set(2, 1);
        b.set(2, 5);
        b.set(4, 3);
        a.join(&b);
        assert_eq!([0, 1, 2, 3, 4, 9].map(|agent| a.get(agent)), [7, 0, 5, 0, 3, 0]);
        b.join(&a);
        assert_eq!(a, b);
        b.replace(3, &a);
        assert_eq!([0, 2, 3, 4, 9].map(|agent| b.get(agent)), [7, 5, 0, 3, 0]);
        a.clear();
        assert!(a.is_empty());
        b.copy(&a);
        assert_eq!(b.get(0), 0);
    }
}
