//! A grouped product with device memory of its own.

use fp4_formats::BlockFormat;
use fp4_formats::gemm::groups::STATUS_BAD_COUNTS;

use super::epilogue::{check_residual, check_vectors, of_groups};
use super::run::{Owned, scaled};
use super::{
    Activations, DeviceWeights, Gemm, GemmOptions, GemmPlan, GemmResult, GroupBuffers, Grouping,
    Repacked, SettledCounts, group_offsets,
};
use crate::buffer::DeviceBuffer;
use crate::device::Kernels;
use crate::error::{Error, Result};

/// A grouped product of tokens that lie one group after another, with operands, result and workspace
/// of its own on a device, ready to launch any number of times.
///
/// The token counts are on the device: the plan knows their sum alone.
#[derive(Debug)]
pub struct GroupedRun {
    owned: Owned,
    offsets: DeviceBuffer,
    status: DeviceBuffer,
    /// Whether column factors and biases are each group's own.
    own_vectors: bool,
}

impl GroupedRun {
    /// Checks, plans, and copies the operands to the device; launches nothing. Group `g` has
    /// `counts[g]` tokens. Row factors are those of all tokens. Column factors and biases are `[N]`,
    /// for all groups, or `[G, N]`, one after another in one vector.
    ///
    /// # Errors
    /// The same as [`Gemm::grouped`]; [`Error::Shape`] where the counts are not the activations' or not the
    /// weights', and for vectors of other lengths; [`DeviceError`](crate::device::DeviceError).
    pub fn new<F: BlockFormat>(
        kernels: &Kernels,
        a: &Activations<'_, F>,
        weights: &Repacked,
        counts: &[usize],
        options: &GemmOptions,
    ) -> Result<Self> {
        let device = kernels.device();
        let dims = a.dims();
        let tokens: usize = counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
        if [dims.batch(), dims.rows()] != [1, tokens] {
            let required = format!("1 x {tokens}, as the groups' tokens");
            let found = format!("{} x {}", dims.batch(), dims.rows());
            return Err(Error::shape(format!("rows of `{}`", a.name()), required, found));
        }
        if weights.batch() != counts.len() {
            let required = format!("{}, one for each group", counts.len());
            return Err(Error::shape("matrices of weights", required, weights.batch()));
        }
        let n = weights.form().result_columns() as usize;
        let (options, own_vectors) = of_groups(options, counts.len(), n);
        check_residual(&options, [1, tokens, n])?;
        check_vectors(&options, tokens, if own_vectors { counts.len() * n } else { n })?;
        let offsets = group_offsets(counts)?;
        let offsets: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        let grouping = Grouping::Contiguous { bound: tokens };
        let plan = |weights: &DeviceWeights| {
            Gemm::grouped(kernels, weights, grouping, a.kind(), &scaled(a, &options))
        };
        Ok(Self {
            owned: Owned::new(device, a, weights, &options, plan)?,
            offsets: DeviceBuffer::upload(device, "offsets", &offsets)?,
            status: DeviceBuffer::zeroed(device, "status", size_of::<u32>())?,
            own_vectors,
        })
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &GemmPlan {
        self.owned.gemm.plan()
    }

    /// Launches without waiting for the result, also while a CUDA graph is recorded.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self) -> Result<()> {
        self.owned.launch(Some(GroupBuffers {
            status: Some(&self.status),
            own_vectors: self.own_vectors,
            // SAFETY: the host wrote them, and nobody has since.
            settled: Some(unsafe { SettledCounts::new() }),
            ..GroupBuffers::of(&self.offsets)
        }))
    }

    /// Launches and brings the result back.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError): also what the emulator diagnoses, and on it a
    /// result that the kernel did not write.
    pub fn run(&self) -> Result<GemmResult> {
        self.launch()?;
        self.result()
    }

    /// Brings back the result of what was launched before, without launching.
    ///
    /// # Errors
    /// The same as [`run`](Self::run); [`Error::Wrong`] where the kernel rejected the token counts.
    pub fn result(&self) -> Result<GemmResult> {
        let status = self.status.read()?;
        if status == STATUS_BAD_COUNTS.to_le_bytes() {
            return Err(Error::Wrong { what: "the kernel's reading of the token counts".into() });
        }
        self.owned.result()
    }
}
