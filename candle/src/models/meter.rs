//! The time that products in four bits take.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use candle_core::{Device, Result};

/// Adds up the time of products while it runs. It waits for the device before and after each then.
#[derive(Debug, Default)]
pub(super) struct Meter {
    runs: AtomicBool,
    nanoseconds: AtomicU64,
}

impl Meter {
    /// Starts from zero.
    pub fn start(&self) {
        self.nanoseconds.store(0, Ordering::Relaxed);
        self.runs.store(true, Ordering::Relaxed);
    }

    /// Stops; the time since the start.
    pub fn stop(&self) -> Duration {
        self.runs.store(false, Ordering::Relaxed);
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        self.runs.load(Ordering::Relaxed)
    }

    pub fn time<R>(&self, device: &Device, product: impl FnOnce() -> Result<R>) -> Result<R> {
        if !self.runs() {
            return product();
        }
        device.synchronize()?;
        let begin = Instant::now();
        let result = product()?;
        device.synchronize()?;
        let nanoseconds = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        Ok(result)
    }
}
