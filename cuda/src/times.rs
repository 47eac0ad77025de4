//! Samples of a duration and their order statistics.

use serde::Serialize;

/// Repeated measurements of one duration, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Times {
    /// The middle value (mean of the two middle ones for an even number).
    pub median: f64,
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// Every sample, in the order taken.
    pub all: Vec<f64>,
}

impl Times {
    /// Statistics of the samples, or `None` if there are none. Percentiles are
    /// interpolated linearly between the two nearest ranks.
    pub fn new(all: Vec<f64>) -> Option<Self> {
        let mut sorted = all.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: percentile(&sorted, 0.5)?,
            p10: percentile(&sorted, 0.1)?,
            p90: percentile(&sorted, 0.9)?,
            all,
        })
    }
}

fn percentile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = fraction * last as f64;
    let below = rank.floor() as usize;
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    Some(low + (high - low) * (rank - below as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn statistics_of_known_samples() {
        assert_eq!(Times::new(vec![]), None);
        let one = Times::new(vec![3.0]).map(|times| (times.median, times.p10, times.p90));
        assert_eq!(one, Some((3.0, 3.0, 3.0)));
        let all: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let eleven = Times::new(all.clone()).map(|times| (times.median, times.p10, times.p90));
        assert_eq!(eleven, Some((5.0, 1.0, 9.0)));
        assert_eq!(Times::new(all.clone()).map(|times| times.all), Some(all));
        let even = Times::new(vec![4.0, 1.0, 2.0, 3.0]).map(|times| times.median);
        assert_eq!(even, Some(2.5));
    }

    proptest! {
        #[test]
        fn statistics_are_ordered_and_within_the_samples(
            samples in prop::collection::vec(0.0..1e3f64, 1..40),
        ) {
            let low = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let high = samples.iter().copied().fold(0.0, f64::max);
            let times = Times::new(samples).expect("there are samples");
            prop_assert!(low <= times.p10 && times.p10 <= times.median);
            prop_assert!(times.median <= times.p90 && times.p90 <= high);
        }
    }
}
