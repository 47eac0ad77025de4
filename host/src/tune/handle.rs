//! The planning state of opened kernels: the tuning table in use, and the plans made with it.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{DeviceKey, TuneProblem, Tuning};
use crate::device::Kernels;
use crate::error::Result;
use crate::gemm::GemmPlan;

/// Most plans that are remembered; the oldest is discarded first.
pub const MAX_PLANS: usize = 256;

/// The planning state of [`Kernels`].
#[derive(Debug)]
pub(crate) struct Tuned {
    device: DeviceKey,
    tuning: Tuning,
    plans: Mutex<Bounded<TuneProblem, GemmPlan>>,
}

impl Tuned {
    /// The state with `tuning`, if it was measured on `device`.
    pub(crate) fn new(device: DeviceKey, tuning: Tuning) -> Arc<Self> {
        let tuning = tuning.on(&device);
        Arc::new(Self { device, tuning, plans: Mutex::new(Bounded::new(MAX_PLANS)) })
    }

    fn plans(&self) -> MutexGuard<'_, Bounded<TuneProblem, GemmPlan>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The remembered plan for `problem`, or a new one from `make`.
    pub(crate) fn plan(
        &self,
        problem: TuneProblem,
        make: impl FnOnce() -> Result<GemmPlan>,
    ) -> Result<GemmPlan> {
        if let Some(plan) = self.plans().get(&problem) {
            return Ok(plan.clone());
        }
        let plan = make()?;
        self.plans().put(problem, plan.clone());
        Ok(plan)
    }
}

impl Kernels {
    /// The same kernels with another tuning table. A table of another device, driver or set of
    /// kernels is ignored, and plans say so.
    #[must_use]
    pub fn with_tuning(mut self, tuning: Tuning) -> Self {
        self.tuned = Tuned::new(self.tuned.device.clone(), tuning);
        self
    }

    /// The tuning table in use, or the reason why there is none.
    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.tuned.tuning
    }

    /// The key of tables for these kernels.
    #[must_use]
    pub fn tune_key(&self) -> &DeviceKey {
        &self.tuned.device
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
    fn new(most: usize) -> Self {
        Self { most, entries: HashMap::new(), order: VecDeque::new() }
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    fn put(&mut self, key: K, value: V) {
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
