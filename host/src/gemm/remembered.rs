//! The plans of the last problems, which opened kernels keep.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::GemmPlan;
use crate::error::Result;
use crate::tune::{MAX_PLANS, TuneProblem};

/// A problem, and whether its plan is batch invariant.
type Key = (TuneProblem, bool);

/// Plans by problem, at most [`MAX_PLANS`].
#[derive(Debug)]
pub(super) struct Plans(Mutex<Bounded<Key, GemmPlan>>);

impl Default for Plans {
    fn default() -> Self {
        Self(Mutex::new(Bounded::new(MAX_PLANS)))
    }
}

impl Plans {
    fn plans(&self) -> MutexGuard<'_, Bounded<Key, GemmPlan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The remembered plan for `problem`, or a new one from `make`.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn plan(&self, problem: Key, make: impl FnOnce() -> Result<GemmPlan>) -> Result<GemmPlan> {
        if let Some(plan) = self.plans().get(&problem) {
            return Ok(plan.clone());
        }
        let plan = make()?;
        self.plans().put(problem, plan.clone());
        Ok(plan)
    }
}

/// A map that discards its oldest entry when it is full.
#[derive(Debug)]
struct Bounded<K, V> {
    most: usize,
    entries: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Copy + Eq + Hash, V> Bounded<K, V> {
    pub fn new(most: usize) -> Self {
        Self { most, entries: HashMap::new(), order: VecDeque::new() }
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub fn put(&mut self, key: K, value: V) {
        if self.entries.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The newest are kept: after any sequence, it contains exactly the keys that were added
        /// last, each with its last value.
        #[test]
        fn the_newest_are_kept(most in 1usize..5, keys in prop::collection::vec(0u8..9, 0..40)) {
            let mut bounded = Bounded::new(most);
            let mut model: Vec<(u8, usize)> = Vec::new();
            for (value, &key) in keys.iter().enumerate() {
                bounded.put(key, value);
                match model.iter_mut().find(|(known, _)| *known == key) {
                    Some(entry) => entry.1 = value,
                    None => model.push((key, value)),
                }
                if model.len() > most {
                    model.remove(0);
                }
                prop_assert_eq!(bounded.entries.len(), model.len());
                prop_assert_eq!(bounded.order.len(), model.len());
                for (key, value) in &model {
                    prop_assert_eq!(bounded.get(key), Some(value));
                }
            }
        }
    }
}
