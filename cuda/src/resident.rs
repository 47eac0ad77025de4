//! The number of clusters that a machine runs at a time.

/// Clusters that a machine holds at a time, by size, if each of their CTAs takes an SM for itself.
///
/// The CTAs of a cluster are on SMs of one graphics processing cluster (GPC), and GPCs have
/// different numbers of SMs, so fewer clusters fit than SMs divided by the size. A driver has the
/// numbers (`cuOccupancyMaxActiveClusters`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentClusters([u32; Self::SIZES.len()]);

impl ResidentClusters {
    /// Cluster sizes in CTAs: all that every GPU launches.
    pub const SIZES: [u32; 4] = [1, 2, 4, 8];

    /// Makes a machine with these numbers of clusters of [`SIZES`](Self::SIZES).
    #[must_use]
    pub const fn new(counts: [u32; Self::SIZES.len()]) -> Self {
        Self(counts)
    }

    /// Returns the clusters of a machine whose SMs are all in one GPC.
    #[must_use]
    pub const fn of_sms(sms: u32) -> Self {
        Self::of_gpcs(&[sms])
    }

    /// Returns the clusters of a machine whose GPCs have so many SMs.
    #[must_use]
    pub const fn of_gpcs(gpcs: &[u32]) -> Self {
        let mut counts = [0; Self::SIZES.len()];
        let mut size = 0;
        while size < counts.len() {
            let mut gpc = 0;
            while gpc < gpcs.len() {
                counts[size] += gpcs[gpc] / Self::SIZES[size];
                gpc += 1;
            }
            size += 1;
        }
        Self(counts)
    }

    /// Returns the clusters of `size` CTAs; for a size that is not in [`SIZES`](Self::SIZES), those
    /// of the next larger one. 0 for more than the largest.
    #[must_use]
    pub const fn of(&self, size: u32) -> u32 {
        let mut at = 0;
        while at < Self::SIZES.len() {
            if size <= Self::SIZES[at] {
                return self.0[at];
            }
            at += 1;
        }
        0
    }

    /// Returns the same, but with at least one of each size: clusters that do not run at all are
    /// refused at launch.
    #[must_use]
    pub fn at_least_one(self) -> Self {
        Self(self.0.map(|count| count.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpcs_hold_whole_clusters() {
        let clusters = ResidentClusters::of_gpcs(&[18, 18, 16, 12, 7]);
        assert_eq!([1, 2, 4, 8].map(|size| clusters.of(size)), [71, 35, 16, 7]);
        assert_eq!([3, 6, 9].map(|size| clusters.of(size)), [16, 7, 0]);
        assert_eq!(ResidentClusters::of_sms(7), ResidentClusters::new([7, 3, 1, 0]));
        assert_eq!(ResidentClusters::of_sms(7).at_least_one().of(8), 1);
    }
}
