//! The ranks that experts are on.

use super::Shard;
use crate::error::{Error, Result};
use crate::moe::ExpertMap;

/// The rank of each expert. A rank numbers its experts in the order of all.
///
/// ```
/// use nvfp4::parallel::ExpertPlaces;
///
/// # fn main() -> nvfp4::Result<()> {
/// let even = ExpertPlaces::even(5, 2)?;
/// assert_eq!((even.experts(0), even.experts(1)), (vec![0, 1, 2], vec![3, 4]));
/// let table = ExpertPlaces::new(vec![1, 0, 1, 1], 2)?;
/// assert_eq!(table.experts(1), [0, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertPlaces {
    owners: Vec<usize>,
    ranks: usize,
}

impl ExpertPlaces {
    /// Experts on these of `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that is not below their number, and for a rank without an expert.
    pub fn new(owners: Vec<usize>, ranks: usize) -> Result<Self> {
        if let Some(expert) = owners.iter().position(|owner| *owner >= ranks) {
            let field = format!("rank of expert {expert}");
            return Err(Error::shape(field, format!("below {ranks}"), owners[expert]));
        }
        let places = Self { owners, ranks };
        match (0..ranks).find(|&rank| places.experts(rank).is_empty()) {
            Some(rank) => Err(Error::shape(format!("experts of rank {rank}"), "at least 1", 0)),
            None if ranks == 0 => Err(Error::shape("ranks", "at least 1", 0)),
            None => Ok(places),
        }
    }

    /// The same number of experts on each rank, or one more on the first ones, each rank's a range
    /// ([`Shard::experts`]).
    ///
    /// # Errors
    /// [`Error::Shape`] where there are fewer experts than ranks.
    pub fn even(experts: usize, ranks: usize) -> Result<Self> {
        let mut owners = Vec::new();
        for rank in 0..ranks {
            owners.extend(Shard::new(rank, ranks)?.experts(experts)?.map(|_| rank));
        }
        Self::new(owners, ranks)
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Returns the number of experts of all ranks.
    #[must_use]
    pub fn all(&self) -> usize {
        self.owners.len()
    }

    /// The experts of a rank, in the order in which it has their weights.
    #[must_use]
    pub fn experts(&self, rank: usize) -> Vec<usize> {
        (0..self.all()).filter(|&expert| self.owners[expert] == rank).collect()
    }

    /// The experts of a rank as a layer without exchange takes them.
    ///
    /// # Errors
    /// [`Error::Shape`] for a rank that is not below their number.
    pub fn map(&self, rank: usize) -> Result<ExpertMap> {
        ExpertMap::of(self.all(), &self.experts(rank))
    }

    /// The rank of each expert, as a map that routes by rank.
    pub(super) fn owners(&self) -> Result<ExpertMap> {
        ExpertMap::new(self.owners.iter().map(|&owner| owner as i32).collect())
    }

    /// The number of each expert on its rank.
    pub(super) fn locals(&self) -> Vec<u32> {
        let mut next = vec![0; self.ranks];
        let local = |&owner: &usize| {
            let local = next[owner];
            next[owner] += 1;
            local
        };
        self.owners.iter().map(local).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_number_their_experts_in_order() {
        let places = ExpertPlaces::new(vec![2, 0, 1, 0, 2, 2], 3).expect("valid");
        assert_eq!(places.locals(), [0, 0, 0, 1, 1, 2]);
        for rank in 0..3 {
            let map = places.map(rank).expect("experts");
            for (local, expert) in (0..).zip(places.experts(rank)) {
                assert_eq!((map.entries()[expert], places.locals()[expert]), (local, local as u32));
            }
        }
        assert!(ExpertPlaces::new(vec![0, 2], 2).is_err());
        assert!(ExpertPlaces::new(vec![0, 0], 2).is_err());
        assert!(ExpertPlaces::even(1, 2).is_err() && ExpertPlaces::even(1, 0).is_err());
    }
}
