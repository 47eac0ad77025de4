//! Which steps of which tiles a CTA does.
//!
//! The steps of all tiles stand in one row, tile after tile, and are divided among the CTAs
//! as evenly as whole steps allow, so that no SM is left over. A CTA's run is then the end of
//! a tile, perhaps whole tiles, and the beginning of another. The CTA that does a tile's end
//! *owns* it: the others give it their sums, through memory.
//!
//! A CTA takes its run from the back. What it gives, the beginning of its last tile, it
//! therefore gives before it waits for anything, and it waits only for CTAs with lower
//! numbers, which the machine starts first: no CTA waits for one that may not have started.
//!
//! Where tiles are few and short, clusters of CTAs instead share a tile each, whose parts of K
//! are as even; the machine starts a cluster's CTAs together, and they exchange their sums
//! through their shared memory.

/// The division of the steps among CTAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Division {
    /// Steps of a tile.
    pub steps: u32,
    /// Steps of a CTA; at least 1.
    pub share: u32,
    /// The first so many CTAs have one more.
    pub longer: u32,
    /// CTAs of a cluster that share a tile; 1 where the steps are divided regardless of tiles.
    pub cluster: u32,
}

/// Some steps of one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Which tile.
    pub tile: u32,
    /// First of its steps.
    pub first: u32,
    /// The step after the last.
    pub end: u32,
}

/// What is left of a CTA's run: steps of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First.
    pub first: u32,
    /// After the last.
    pub end: u32,
}

impl Division {
    /// Of `tiles` tiles of `steps` steps among `ctas` CTAs. `None` where a CTA would have
    /// none, or where the steps' numbers exceed 32 bits.
    pub const fn new(tiles: u64, steps: u32, ctas: u32) -> Option<Self> {
        let total = match tiles.checked_mul(steps as u64) {
            Some(total) if total <= u32::MAX as u64 => total as u32,
            _ => return None,
        };
        if ctas == 0 || ctas > total {
            return None;
        }
        Some(Self { steps, share: total / ctas, longer: total % ctas, cluster: 1 })
    }

    /// Of tiles of `steps` steps, each by a cluster of `cluster` CTAs, more than one. `None` where
    /// a CTA would have none, or where the steps' numbers exceed 32 bits.
    pub const fn by_clusters(tiles: u64, steps: u32, cluster: u32) -> Option<Self> {
        if cluster < 2 || cluster > steps || steps.checked_mul(cluster).is_none() {
            return None;
        }
        match tiles.checked_mul(steps as u64) {
            Some(total) if total <= u32::MAX as u64 => {}
            _ => return None,
        }
        Some(Self { steps, share: steps / cluster, longer: 0, cluster })
    }

    /// First step of CTA `cta`'s run.
    const fn first(&self, cta: u32) -> u32 {
        cta * self.share + if cta < self.longer { cta } else { self.longer }
    }

    /// CTA `cta`'s run.
    pub const fn run(&self, cta: u32) -> Run {
        if self.cluster > 1 {
            let (start, rank) = (cta / self.cluster * self.steps, cta % self.cluster);
            let first = start + self.steps * rank / self.cluster;
            return Run { first, end: start + self.steps * (rank + 1) / self.cluster };
        }
        Run { first: self.first(cta), end: self.first(cta + 1) }
    }

    /// What is left of CTA `cta`'s run that ends at `end`.
    pub const fn rest(&self, cta: u32, end: u32) -> Run {
        Run { end, ..self.run(cta) }
    }

    /// The CTA that does a step of the row.
    pub const fn cta_of(&self, step: u32) -> u32 {
        // The longer runs' end fits 32 bits: it is one of the row's steps.
        let longer = self.longer * (self.share + 1);
        if step < longer {
            step / (self.share + 1)
        } else {
            self.longer + (step - longer) / self.share
        }
    }

    /// The most CTAs that have steps of the same tile.
    pub const fn parts(&self) -> u32 {
        if self.cluster > 1 {
            return self.cluster;
        }
        if self.steps <= 1 { 1 } else { (self.steps - 2) / self.share + 2 }
    }

    /// Whether sums go from CTA to CTA through global memory.
    pub const fn gives(&self) -> bool {
        self.cluster == 1 && (self.longer > 0 || !self.share.is_multiple_of(self.steps))
    }

    /// The most steps that a CTA does.
    pub const fn most(&self) -> u32 {
        if self.cluster > 1 {
            return self.steps.div_ceil(self.cluster);
        }
        if self.longer > 0 { self.share + 1 } else { self.share }
    }

    /// The most steps of a tile that one CTA does.
    pub const fn longest(&self) -> u32 {
        let run = self.most();
        if run < self.steps { run } else { self.steps }
    }
}

impl Run {
    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    /// Takes what is left of the last tile; there is something left.
    #[inline(always)]
    pub const fn take(&mut self, division: &Division) -> Item {
        let tile = (self.end - 1) / division.steps;
        let start = tile * division.steps;
        let first = if start > self.first { start } else { self.first };
        let item = Item { tile, first: first - start, end: self.end - start };
        self.end = first;
        item
    }
}

impl Item {
    /// How many steps.
    pub const fn count(&self) -> u32 {
        self.end - self.first
    }

    /// Whether the CTA owns the tile.
    pub const fn owned(&self, division: &Division) -> bool {
        self.end == division.steps
    }

    /// The first CTA that has steps of the tile.
    pub const fn first_cta(&self, division: &Division) -> u32 {
        division.cta_of(self.tile * division.steps)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    /// Every step of every tile is done once, a CTA gives at most one part and gives it first,
    /// and owners find the CTAs that give to them.
    #[test]
    fn every_step_is_done_once() {
        let sizes = [(1, 1), (1, 9), (3, 7), (32, 56), (56, 16), (56, 128), (200, 3), (5, 1)];
        for (tiles, steps) in sizes {
            for ctas in [1, 2, 3, 5, 31, 64, 112, 132, 133, 264, 777] {
                let Some(division) = Division::new(tiles, steps, ctas) else {
                    assert!(u64::from(ctas) > tiles * u64::from(steps));
                    continue;
                };
                let mut done = vec![0u32; (tiles * u64::from(steps)) as usize];
                let mut given = vec![None; ctas as usize];
                let mut parts = vec![0u32; tiles as usize];
                for cta in 0..ctas {
                    let mut run = division.run(cta);
                    assert!(!run.is_empty());
                    let mut at = 0;
                    while !run.is_empty() {
                        let item = run.take(&division);
                        assert!(item.count() > 0 && item.count() <= division.longest());
                        parts[item.tile as usize] += 1;
                        for step in item.first..item.end {
                            done[(item.tile * steps + step) as usize] += 1;
                            assert_eq!(division.cta_of(item.tile * steps + step), cta);
                        }
                        if item.owned(&division) {
                            for giver in item.first_cta(&division)..cta {
                                assert_eq!(given[giver as usize], Some(item.tile));
                            }
                        } else {
                            assert_eq!(at, 0, "what is given comes first");
                            given[cta as usize] = Some(item.tile);
                        }
                        at += 1;
                    }
                }
                assert!(done.iter().all(|&times| times == 1), "{tiles} x {steps} by {ctas}");
                assert!(parts.iter().all(|&parts| parts <= division.parts()));
            }
        }
    }

    /// The CTAs of a cluster do every step of their tile once.
    #[test]
    fn clusters_share_a_tile_each() {
        for (tiles, steps) in [(1, 2), (3, 7), (32, 56), (5, 129)] {
            for cluster in 2..=8.min(steps) {
                let division = Division::by_clusters(tiles, steps, cluster).unwrap();
                let mut next = 0;
                for cta in 0..tiles as u32 * cluster {
                    let mut run = division.run(cta);
                    assert_eq!(run.first, next);
                    next = run.end;
                    let item = run.take(&division);
                    assert!(run.is_empty() && item.count() > 0);
                    assert!(item.count() <= division.most());
                    assert_eq!(item.tile, cta / cluster);
                }
                assert_eq!(u64::from(next), tiles * u64::from(steps));
            }
        }
        assert_eq!(Division::by_clusters(1, 3, 4), None);
        assert_eq!(Division::by_clusters(1, 3, 1), None);
        assert_eq!(Division::by_clusters(1 << 31, 2, 2), None);
    }

    #[test]
    fn what_cannot_be_divided() {
        assert_eq!(Division::new(1, 3, 4), None);
        assert_eq!(Division::new(1, 3, 0), None);
        assert_eq!(Division::new(0, 3, 1), None);
        assert_eq!(Division::new(1 << 31, 2, 132), None);
        assert_eq!(Division::new(u64::MAX, 2, 132), None);
    }
}
