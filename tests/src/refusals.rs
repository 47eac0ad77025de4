//! Refusals: bad input is an error with the field, the required and the actual value, before anything is launched.

use fp4_formats::{BlockFormat, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, ErrorKind, Result};
use nvfp4::gemm::{ActivationKind, DeviceWeights, GatedWeights, Repacked};
use nvfp4::observe::Reports;
use nvfp4::tensor::BlockScaled;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use ptx_emu::Schedule;

use crate::emulated;
use crate::gemm::{POISON, blocks};

/// Checks that a result is the error with this field, requirement and actual value, of its kind and as bad
/// input.
///
/// # Panics
/// If it is none.
#[track_caller]
pub fn refused<T>(result: Result<T>, [field, required, actual]: [&str; 3]) {
    let Err(error) = result else { panic!("{field}: taken") };
    let (kind, found) = match &error {
        Error::Shape { field, required, actual } => {
            (ErrorKind::InvalidArgument, [field, required, actual])
        }
        Error::WrongDevice { field, required, actual } => {
            (ErrorKind::WrongDevice, [field, required, actual])
        }
        other => panic!("{field}: {other}"),
    };
    assert_eq!(found, [field, required, actual]);
    assert_eq!((error.kind(), error.exit_code()), (kind, 2), "{error}");
}

/// An emulated machine that counts launches, with memory that must keep its contents.
#[derive(Debug)]
pub struct Watched {
    /// Its kernels.
    pub kernels: Kernels,
    reports: Reports,
}

impl Watched {
    /// Opens one of [`DEVICES`](crate::DEVICES).
    #[must_use]
    pub fn new(device: &str) -> Self {
        let (kernels, reports) = emulated(device, Schedule::Eager).observed();
        Self { kernels, reports }
    }

    /// Allocates poisoned memory.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn poisoned(&self, bytes: usize) -> DeviceBuffer {
        self.upload(&vec![POISON; bytes])
    }

    /// Allocates memory with these bytes.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn upload(&self, bytes: &[u8]) -> DeviceBuffer {
        DeviceBuffer::upload(self.kernels.device(), "x", bytes).expect("memory")
    }

    /// Puts equal matrices of weights, batch, N and K, into memory; gated ones are two for each entry.
    ///
    /// # Panics
    /// If the sizes are impossible.
    #[must_use]
    pub fn weights<F: BlockFormat>(
        &self,
        sizes: [usize; 3],
        gated: bool,
        kind: ActivationKind,
    ) -> DeviceWeights {
        let repacked = self.repacked::<F>(sizes, gated, kind);
        repacked.upload(self.kernels.device()).expect("memory")
    }

    /// Makes the same weights on the host.
    ///
    /// # Panics
    /// The same as [`weights`](Self::weights).
    #[must_use]
    pub fn repacked<F: BlockFormat>(
        &self,
        sizes: [usize; 3],
        gated: bool,
        kind: ActivationKind,
    ) -> Repacked {
        let device = self.kernels.device();
        let gate: BlockScaled<F> =
            blocks(Generator::Exact, sizes, ScaleLayout::Linear, 1.0, &mut SplitMix64::new(1));
        let pair = || GatedWeights::pair(&gate, &gate).expect("alike");
        let repacked = match gated {
            true => Repacked::gated(device, &pair(), kind),
            false => Repacked::for_device(device, &gate, kind),
        };
        repacked.expect("weights")
    }

    /// Checks that the call succeeded and launched something.
    ///
    /// # Panics
    /// If it was not.
    #[track_caller]
    pub fn launched(&self, result: Result<()>) {
        result.unwrap_or_else(|error| panic!("{error}"));
        assert!(!self.reports.take().is_empty(), "nothing was launched");
    }

    /// Checks as [`refused`] does. Also asserts that nothing was launched and that the buffers in
    /// `kept` still hold only poison.
    ///
    /// # Panics
    /// If it is otherwise.
    #[track_caller]
    pub fn refused<T>(&self, result: Result<T>, error: [&str; 3], kept: &[&DeviceBuffer]) {
        refused(result, error);
        let launched = self.reports.take().len();
        assert_eq!(launched, 0, "{}: launches before the refusal", error[0]);
        for buffer in kept {
            let bytes = buffer.read().expect("readable");
            let changed = bytes.iter().position(|&byte| byte != POISON);
            assert_eq!(changed, None, "{}: first byte that was written", error[0]);
        }
    }

    /// Checks the [refusal](Self::refused) of memory of another device of the same kind; `what` is its
    /// name in errors.
    ///
    /// # Panics
    /// If it is otherwise.
    #[track_caller]
    pub fn refused_elsewhere<T>(&self, result: Result<T>, what: &str, kept: &[&DeviceBuffer]) {
        let (field, device) = (format!("memory of {what}"), &self.kernels.device().choice().device);
        let required = format!("on {device}, as the kernels");
        self.refused(result, [&field, &required, "on another emulated device"], kept);
    }
}
