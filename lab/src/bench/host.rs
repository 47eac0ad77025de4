//! The cost of launching on the host: the time from the call of an operation's launch to its
//! return, beside that of the driver's own calls for the same kernels.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ptx_emu_core::LaunchReport;
use serde::Serialize;

use super::Protocol;
use super::timing::microseconds;
use nvfp4::cuda::{CudaDevice, PreparedLaunch, Times};
use nvfp4::device::{Backend, Kernels, LaunchSpec};
use nvfp4::error::{Error, Result};
use nvfp4::observe::LaunchObserver;

/// Calls that are queued one after the other; then the GPU is waited for, so that its queue never
/// fills, as a call would wait for a place in it.
const CALLS: usize = 20;
/// Timed batches of calls.
const BATCHES: usize = 200;
/// Batches before them.
const WARMUP: usize = 10;

/// The cost of an operation's launch on the host.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum HostCost {
    /// Measured on a GPU.
    Measured(HostTimes),
    /// Not measured.
    NotMeasured {
        /// The reason.
        not_measured: String,
    },
}

/// Times on the host. The GPU is idle when a batch of calls begins.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostTimes {
    /// Kernels that a call launches.
    pub kernels: usize,
    /// Seconds from a call of the operation's launch to its return: the mean of each batch.
    pub call: Times,
    /// Seconds of the driver's calls that launch these kernels, with arguments that are ready.
    pub driver: Times,
    /// The difference of the medians: what the library adds, fills of device memory included.
    pub library: f64,
}

/// An observer that keeps launches while it is asked to.
#[derive(Default)]
struct Tape(Mutex<Option<Vec<Kept>>>);

/// A launch with its own parameters.
struct Kept {
    entry: String,
    params: Vec<u8>,
    grid: [u32; 3],
    block: [u32; 3],
    cluster: Option<[u32; 3]>,
    dynamic_shared: u32,
    overlaps: bool,
}

impl LaunchObserver for Tape {
    fn launching(&self, spec: &LaunchSpec<'_>) {
        let &LaunchSpec { entry, grid, block, cluster, dynamic_shared, overlaps, params } = spec;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.as_mut() {
            let (entry, params) = (entry.to_owned(), params.to_vec());
            kept.push(Kept { entry, params, grid, block, cluster, dynamic_shared, overlaps });
        }
    }

    fn launched(&self, _: &LaunchReport) {}
}

impl Tape {
    /// The launches of `launch`.
    fn record(&self, launch: impl FnOnce() -> Result<()>) -> Result<Vec<Kept>> {
        let set = |kept| {
            std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), kept)
        };
        set(Some(Vec::new()));
        let result = launch();
        let kept = set(None).unwrap_or_default();
        result.map(|()| kept)
    }
}

impl HostTimes {
    /// Measures `launch` of the operation that `make` makes with the kernels that it is given. The
    /// operation owns the buffers that it launches on.
    ///
    /// # Errors
    /// [`DeviceError::NeedsGpu`](nvfp4::device::DeviceError::NeedsGpu) on the emulator; those of `make`
    /// and `launch`, and of the device.
    pub fn measure<T>(
        kernels: &Kernels,
        make: impl FnOnce(&Kernels) -> Result<T>,
        launch: impl Fn(&T) -> Result<()>,
    ) -> Result<Self> {
        let gpu = kernels.device().gpu("timing launches on the host")?;
        let tape = Arc::new(Tape::default());
        let operation = make(&kernels.with_observer(tape.clone()))?;
        let launches = tape.record(|| launch(&operation))?;
        let mut prepared: Vec<PreparedLaunch> =
            launches.iter().map(|kept| kernels.prepare(&kept.spec())).collect::<Result<_>>()?;
        let mut call = || launch(&operation);
        let mut driver = || {
            prepared.iter_mut().try_for_each(|launch| {
                // SAFETY: the arguments are those of a launch of `operation`, which owns its buffers,
                // and the batch is waited for before it is dropped.
                unsafe { launch.queue() }.map_err(Error::from)
            })
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for batch in 0..WARMUP + BATCHES {
            // By turns, so that both have the same clocks and neighbours.
            let pair = [time(gpu, &mut call)?, time(gpu, &mut driver)?];
            if batch >= WARMUP {
                ours.push(pair[0]);
                theirs.push(pair[1]);
            }
        }
        let none = || Error::shape("timed batches", "at least 1", 0);
        let call = Times::new(ours).ok_or_else(none)?;
        let driver = Times::new(theirs).ok_or_else(none)?;
        let library = call.median - driver.median;
        Ok(Self { kernels: launches.len(), call, driver, library })
    }
}

impl HostCost {
    /// [`HostTimes::measure`], if the protocol asks for it. `verified` says whether the operation's result
    /// has been compared.
    ///
    /// # Errors
    /// The same as there.
    pub(super) fn measure<T>(
        kernels: &Kernels,
        protocol: Protocol,
        verified: bool,
        make: impl FnOnce(&Kernels) -> Result<T>,
        launch: impl Fn(&T) -> Result<()>,
    ) -> Result<Option<Self>> {
        if !protocol.host {
            return Ok(None);
        }
        let device = kernels.device();
        let not_measured = match device.backend() {
            Backend::Emulator(_) => {
                let device = &device.choice().device;
                format!("a launch on {device} is a run of the emulator; a GPU is needed")
            }
            Backend::Cuda(_) if !verified => "the result is wrong".into(),
            Backend::Cuda(_) => {
                let times = HostTimes::measure(kernels, make, launch)?;
                return Ok(Some(Self::Measured(times)));
            }
        };
        Ok(Some(Self::NotMeasured { not_measured }))
    }
}

impl Kept {
    fn spec(&self) -> LaunchSpec<'_> {
        LaunchSpec {
            entry: &self.entry,
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            dynamic_shared: self.dynamic_shared,
            overlaps: self.overlaps,
            params: &self.params,
        }
    }
}

/// Seconds of a call: the mean of a batch, after which the GPU is waited for.
fn time(gpu: &CudaDevice, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    let result = (0..CALLS).try_for_each(|_| call());
    let seconds = start.elapsed().as_secs_f64();
    gpu.synchronize()?;
    result.map(|()| seconds / CALLS as f64)
}

impl fmt::Display for HostTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernels, call, driver, library } = self;
        let [median, p10, p90] = [call.median, call.p10, call.p90].map(nanoseconds);
        let [driver, library] = [driver.median, *library].map(nanoseconds);
        let s = if *kernels == 1 { "" } else { "s" };
        write!(
            f,
            "{median:.0} ns per launch (p10 {p10:.0}, p90 {p90:.0}): {driver:.0} ns in the driver for \
             {kernels} kernel{s}, {library:.0} ns in the library"
        )
    }
}

impl fmt::Display for HostCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured(times) => writeln!(f, "  host      {times}"),
            Self::NotMeasured { not_measured } => {
                writeln!(f, "  host      not measured: {not_measured}")
            }
        }
    }
}

/// Converts to nanoseconds for reports.
fn nanoseconds(seconds: f64) -> f64 {
    microseconds(seconds) * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_was_measured_or_why_not() {
        let times = |seconds: f64| Times::new(vec![seconds; 3]).expect("three times");
        let (call, driver) = (times(2.5e-6), times(2e-6));
        let measured = HostCost::Measured(HostTimes { kernels: 2, call, driver, library: 0.5e-6 });
        assert_eq!(
            measured.to_string(),
            "  host      2500 ns per launch (p10 2500, p90 2500): 2000 ns in the driver for 2 \
             kernels, 500 ns in the library\n"
        );
        let json = serde_json::to_value(&measured).expect("JSON");
        assert_eq!((&json["kernels"], &json["library"]), (&2.into(), &0.5e-6.into()));

        let not_measured = HostCost::NotMeasured { not_measured: "no GPU".into() };
        assert_eq!(not_measured.to_string(), "  host      not measured: no GPU\n");
        let json = serde_json::to_value(&not_measured).expect("JSON");
        assert_eq!(json, serde_json::json!({ "not_measured": "no GPU" }));
    }
}
