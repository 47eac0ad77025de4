//! The parts that the timings of all operations share: input sets in rotation, ceilings, peers, and
//! printing.

use std::fmt;

use fp4_formats::ceiling;
use serde::Serialize;

use super::Protocol;
use super::gpu::MAX_SETS;
use nvfp4::cuda::{CudaDevice, ReadRate, Times, rotation};
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};

/// Times over input sets in rotation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetTimes {
    /// Input sets in rotation, each launched once per replay.
    pub sets: usize,
    /// Whether the sets together exceed four times the L2 cache.
    pub cold: bool,
    /// Seconds per operation, all its launches included.
    pub times: Times,
}

/// Makes input sets of `bytes` bytes until together they exceed the caches, or there are
/// [`MAX_SETS`]. Returns the sets, and whether they exceed the caches.
pub(super) fn input_sets<T>(
    kernels: &Kernels,
    bytes: u64,
    make: impl Fn() -> Result<T>,
) -> Result<(Vec<T>, bool)> {
    let wanted = rotation(bytes, kernels.device().properties().l2_bytes);
    let sets: Vec<T> = (0..wanted.min(MAX_SETS)).map(|_| make()).collect::<Result<_>>()?;
    let cold = sets.len() >= wanted;
    Ok((sets, cold))
}

impl SetTimes {
    /// Times `launch` of all sets, recorded once, and then checks each result: `wrong` returns a
    /// description of an error, which follows the name of the result.
    ///
    /// # Errors
    /// [`Error::Wrong`] for the first wrong result, and the errors of `launch` and of the device.
    ///
    /// # Safety
    /// The memory that `launch` passes to kernels belongs to the sets, and the kernels' module
    /// outlives the call.
    pub(super) unsafe fn measure<T>(
        gpu: &CudaDevice,
        (sets, cold): (&[T], bool),
        protocol: Protocol,
        launch: impl Fn(&T) -> Result<()>,
        wrong: impl Fn(&T) -> Result<Option<String>>,
    ) -> Result<Self> {
        let graph = gpu.capture(|| sets.iter().try_for_each(&launch))?;
        // SAFETY: the caller guarantees memory and module; the call waits for its replays.
        let times = unsafe { graph.time(sets.len(), protocol.warmup, protocol.replays)? };
        for (index, set) in sets.iter().enumerate() {
            if let Some(how) = wrong(set)? {
                let what = format!("the timed result of input set {index}{how}");
                return Err(Error::Wrong { what });
            }
        }
        Ok(Self { sets: sets.len(), cold, times })
    }

    /// Writes a line with the times and the `rate` that follows from them.
    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        rate: fmt::Arguments<'_>,
    ) -> fmt::Result {
        let [median, p10, p90] =
            [self.times.median, self.times.p10, self.times.p90].map(microseconds);
        let (sets, caches) = (self.sets, if self.cold { "cold" } else { "WARM" });
        writeln!(
            f,
            "  time      {median:.3} us (p10 {p10:.3}, p90 {p90:.3}), {rate}; {sets} input sets in \
             rotation, {caches} caches"
        )
    }
}

/// Converts to microseconds for reports.
pub(super) fn microseconds(seconds: f64) -> f64 {
    seconds * 1e6
}

/// Writes a line that compares with a limit called `name`; `what` is the work done in its time.
pub(super) fn write_limit(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    what: &str,
    limit: &ReadRate,
    ratio: f64,
) -> fmt::Result {
    writeln!(
        f,
        "  {name:<9} {:.3} us {what} as many bytes, {:.1} GB/s; reached {:.1} %",
        microseconds(limit.times.median),
        limit.bytes_per_second * 1e-9,
        100.0 * ratio
    )
}

/// The GPU's own limit: the time of reading as many bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadCeiling {
    /// The kernel that only reads, over as many bytes.
    pub ceiling: Option<ReadRate>,
    /// Its time divided by ours; 1 is the GPU's own limit.
    pub ratio_to_ceiling: Option<f64>,
}

impl ReadCeiling {
    /// Times reading `bytes` bytes, if the protocol asks for it; `ours` are the operation's times.
    pub(super) fn measure(
        kernels: &Kernels,
        bytes: u64,
        protocol: Protocol,
        ours: &Times,
    ) -> Result<Self> {
        if !protocol.ceiling {
            return Ok(Self { ceiling: None, ratio_to_ceiling: None });
        }
        let device = kernels.device();
        let module = kernels.cuda("timing", ceiling::NAME)?;
        let (readable, Protocol { warmup, replays, .. }) = (bytes.next_multiple_of(16), protocol);
        let gpu = device.gpu("timing")?;
        // SAFETY: `ceiling_read` reads its input and writes at most 8 bytes per thread.
        let read = unsafe {
            gpu.time_reads(&module, ceiling::NAME, ceiling::THREADS, readable, warmup, replays)?
        };
        let ratio = read.times.median / ours.median;
        Ok(Self { ceiling: Some(read), ratio_to_ceiling: Some(ratio) })
    }

    /// Writes a line called `name`, if it was timed.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        match (&self.ceiling, self.ratio_to_ceiling) {
            (Some(read), Some(ratio)) => write_limit(f, name, "to read", read, ratio),
            _ => Ok(()),
        }
    }
}

/// One peer's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peer {
    /// Name and version of the peer.
    pub name: String,
    /// Input sets in rotation.
    pub sets: usize,
    /// Seconds per product.
    pub times: Times,
    /// Its median divided by ours; above 1, this library is faster.
    pub ratio: f64,
}

/// cuBLAS, if it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Peers {
    /// Its time on dequantised f16 operands.
    pub cublas: Option<Peer>,
    /// The reason why that was not timed.
    pub cublas_error: Option<String>,
    /// The peer's times on weights and activations in e4m3, each tensor with one scale, if ours are
    /// e4m3. First with sums promoted to f32, as ours are, then with [fast
    /// ones](nvfp4::cuda::E4m3Sums::Fast). Quantising is not part of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cublas_e4m3: Vec<Peer>,
    /// The reason why one of those was not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cublas_e4m3_error: Option<String>,
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for peer in self.cublas.iter().chain(&self.cublas_e4m3) {
            let (time, ratio) = (microseconds(peer.times.median), peer.ratio);
            writeln!(f, "  peer      {} {time:.3} us: {ratio:.2} x our time", peer.name)?;
        }
        if let Some(error) = &self.cublas_error {
            writeln!(f, "  peer      not timed: {error}")?;
        }
        if let Some(error) = &self.cublas_e4m3_error {
            writeln!(f, "  peer      not timed in e4m3: {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::bench::{CopyTiming, GemmTiming, Timing};

    fn times(median: f64) -> Times {
        Times::new(vec![median]).expect("one time")
    }

    fn rate(median: f64) -> ReadRate {
        ReadRate { bytes: 1000, sets: 4, times: times(median), bytes_per_second: 1000.0 / median }
    }

    fn measured() -> (SetTimes, ReadCeiling, Peers) {
        let measured = SetTimes { sets: 3, cold: false, times: times(2e-6) };
        let ceiling = ReadCeiling { ceiling: Some(rate(1e-6)), ratio_to_ceiling: Some(0.5) };
        let peer = Peer { name: "cuBLAS 13 f16".into(), sets: 3, times: times(8e-6), ratio: 4.0 };
        (measured, ceiling, Peers { cublas: Some(peer), ..Peers::default() })
    }

    /// The fields of the parts are fields of the report.
    fn keys(report: &impl Serialize) -> BTreeSet<String> {
        let json = serde_json::to_value(report).expect("JSON");
        json.as_object().expect("an object").keys().cloned().collect()
    }

    fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[test]
    fn peers_in_e4m3_are_further_lines() {
        let (_, _, mut peers) = measured();
        let peer = |name: &str, ratio| Peer {
            name: name.into(),
            sets: 3,
            times: times(ratio * 2e-6),
            ratio,
        };
        peers.cublas_e4m3 =
            vec![peer("cuBLAS 13 e4m3", 2.0), peer("cuBLAS 13 e4m3, fast sums", 1.5)];
        peers.cublas_e4m3_error = Some("refused".into());
        assert_eq!(
            peers.to_string(),
            "  peer      cuBLAS 13 f16 8.000 us: 4.00 x our time\n  peer      cuBLAS 13 e4m3 4.000 \
             us: 2.00 x our time\n  peer      cuBLAS 13 e4m3, fast sums 3.000 us: 1.50 x our time\n  \
             peer      not timed in e4m3: refused\n"
        );
        let names = ["cublas", "cublas_error", "cublas_e4m3", "cublas_e4m3_error"];
        assert_eq!(keys(&peers), set(names));
    }

    #[test]
    fn reports_are_flat_and_each_line_says_one_thing() {
        let (measured, read, peers) = measured();
        let timing = Timing {
            measured: measured.clone(),
            bytes_per_second: 5e8,
            read: read.clone(),
            peers: peers.clone(),
        };
        let common = ["sets", "cold", "times", "ceiling", "ratio_to_ceiling", "cublas"];
        let mut expected = set(common);
        expected.extend(set(["cublas_error", "bytes_per_second"]));
        assert_eq!(keys(&timing), expected);
        assert_eq!(
            timing.to_string(),
            "  time      2.000 us (p10 2.000, p90 2.000), 0.5 GB/s; 3 input sets in rotation, WARM \
             caches\n  ceiling   1.000 us to read as many bytes, 1.0 GB/s; reached 50.0 %\n  \
             peer      cuBLAS 13 f16 8.000 us: 4.00 x our time\n"
        );

        let none = Peers { cublas_error: Some("no library".into()), ..Peers::default() };
        let timing = GemmTiming {
            measured: SetTimes { cold: true, ..measured.clone() },
            flops_per_second: 5e13,
            read,
            tensor_ceiling: Some(1e14),
            mma_ceiling: Some(2e14),
            peers: none,
        };
        let mut expected = set(common);
        expected.extend(set(["cublas_error", "flops_per_second", "tensor_ceiling", "mma_ceiling"]));
        assert_eq!(keys(&timing), expected);
        assert_eq!(
            timing.to_string(),
            "  time      2.000 us (p10 2.000, p90 2.000), 50.0 TFLOP/s; 3 input sets in rotation, \
             cold caches\n  memory    1.000 us to read as many bytes, 1.0 GB/s; reached 50.0 %\n  \
             tensor    100.0 TFLOP/s in a large f16 product; reached 50.0 %\n  mma.sync  \
             200.0 TFLOP/s with operands in registers; reached 25.0 %\n  peer      not timed: \
             no library\n"
        );

        let timing = CopyTiming {
            measured,
            bytes_per_second: 5e8,
            copy: Some(rate(1e-6)),
            ratio_to_copy: Some(0.5),
            launch_floor: times(1e-6),
        };
        let names =
            ["sets", "cold", "times", "bytes_per_second", "copy", "ratio_to_copy", "launch_floor"];
        assert_eq!(keys(&timing), set(names));
        assert_eq!(
            timing.to_string(),
            "  time      2.000 us (p10 2.000, p90 2.000), 0.5 GB/s read and written; 3 input sets in \
             rotation, WARM caches\n  copy      1.000 us for as many bytes, 1.0 GB/s; reached 50.0 \
             %\n  floor     1.000 us for a launch of one block\n"
        );
    }
}
