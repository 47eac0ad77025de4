//! `ptx-emu conformance worker`: runs probes on a device for `record`, which communicates with
//! it over standard input and output. Failures of a probe stay in this process.
//!
//! A request is a line `FAMILY INDEX`. An answer is a line of JSON, an [`Answer`], followed by
//! the bytes of an output.

use clap::Args;
use serde::{Deserialize, Serialize};

#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    /// The driver's number of the device.
    #[arg(long, value_name = "N")]
    device: u32,
}

/// A message of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The device is open.
    Ready { name: String, arch: String, driver: String },
    /// There is no such device; the worker has ended.
    NoDevice { reason: String },
    /// The probe ran; so many bytes follow.
    Output { bytes: usize },
    /// The driver does not take the probe. The device goes on working.
    Refused { reason: String },
    /// The probe broke the context; the worker has ended.
    Fault { reason: String },
}

#[cfg(not(feature = "cuda"))]
pub(super) fn work(_: &WorkerArgs) -> u8 {
    let reason = "this program was built without the feature `cuda`".to_owned();
    let _ = device::say(&Answer::NoDevice { reason }, &[]);
    2
}

#[cfg(feature = "cuda")]
pub(super) fn work(args: &WorkerArgs) -> u8 {
    device::work(args.device)
}

mod device {
    use super::Answer;
    use std::io::{self, Write as _};

    /// Writes an answer and what follows it.
    pub(super) fn say(answer: &Answer, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, answer)?;
        out.write_all(b"\n")?;
        out.write_all(bytes)?;
        out.flush()
    }

    #[cfg(feature = "cuda")]
    pub(super) fn work(ordinal: u32) -> u8 {
        match cuda::serve(ordinal) {
            Ok(()) => 0,
            // Who would have read it is gone.
            Err(_) => 2,
        }
    }

    #[cfg(feature = "cuda")]
    mod cuda {
        use super::{Answer, say};
        use crate::cli::device;
        use nvfp4_cuda::{CudaDevice, CudaError, PtxBuffer, PtxLaunch};
        use ptx_emu::tensor_map::TensorMapError;
        use ptx_emu_conformance::{Family, Probe, probes};
        use std::collections::HashMap;
        use std::io::{self, BufRead as _};

        /// The reason why a probe has no output.
        #[derive(Debug, thiserror::Error)]
        enum Failure {
            #[error(transparent)]
            Cuda(#[from] CudaError),
            #[error(transparent)]
            Map(#[from] TensorMapError),
        }

        fn open(ordinal: u32) -> Result<(CudaDevice, Answer), CudaError> {
            let driver = nvfp4_cuda::probe().map_err(CudaError::from)?;
            let device = CudaDevice::open(ordinal)?;
            let ready = Answer::Ready {
                name: device.info().name.clone(),
                arch: device.arch().to_string(),
                driver: format!("CUDA {}", driver.version),
            };
            Ok((device, ready))
        }

        pub(super) fn serve(ordinal: u32) -> io::Result<()> {
            let (device, ready) = match open(ordinal) {
                Ok(opened) => opened,
                Err(error) => return say(&Answer::NoDevice { reason: error.to_string() }, &[]),
            };
            say(&ready, &[])?;
            let mut known: HashMap<Family, Vec<Probe>> = HashMap::new();
            for line in io::stdin().lock().lines() {
                let line = line?;
                let asked = line.split_once(' ').and_then(|(family, index)| {
                    Some((family.parse::<Family>().ok()?, index.parse::<usize>().ok()?))
                });
                let probe = asked.and_then(|(family, index)| {
                    known.entry(family).or_insert_with(|| probes(family)).get(index)
                });
                let Some(probe) = probe else {
                    say(&Answer::Refused { reason: format!("no probe `{line}`") }, &[])?;
                    continue;
                };
                match run(&device, probe) {
                    Ok(output) => say(&Answer::Output { bytes: output.len() }, &output)?,
                    Err(
                        error @ (Failure::Map(_)
                        | Failure::Cuda(
                            CudaError::Module { .. } | CudaError::BadLaunch { .. },
                        )),
                    ) => say(&Answer::Refused { reason: error.to_string() }, &[])?,
                    Err(error) => return say(&Answer::Fault { reason: error.to_string() }, &[]),
                }
            }
            Ok(())
        }

        /// Runs a probe on the GPU.
        fn run(device: &CudaDevice, probe: &Probe) -> Result<Vec<u8>, Failure> {
            let launch = PtxLaunch {
                entry: &probe.entry,
                grid: probe.grid,
                block: probe.block,
                cluster: probe.cluster,
                dynamic_shared: probe.dynamic_shared,
                ..PtxLaunch::default()
            };
            let params = |addresses: &[u64]| Ok::<_, Failure>(probe.arguments(addresses)?);
            let buffers: Vec<PtxBuffer<'_>> = probe.buffers().into_iter().map(Into::into).collect();
            let mut after = device::run(device, &probe.text(), &launch, &buffers, params)?;
            Ok(after.pop().unwrap_or_default())
        }
    }
}
