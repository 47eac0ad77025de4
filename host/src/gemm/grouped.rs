//! Grouped products: a launch for problems with their own token counts, which only the device
//! knows.

use fp4_formats::gemm::{Groups, NextWeights};

#[cfg(doc)]
use super::ChosenRows;
use super::described::{self, Planner, not_grouped};
use super::family::Launch;
use super::groups::PlannedGroups;
use super::product::check_kind;
use super::{
    ActivationBuffers, ActivationKind, DeviceWeights, Gemm, GemmOptions, Grouping, ResultBuffers,
    Vectors, Workspace,
};
use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, Device, Kernels, Queue};
use crate::error::{Error, Result};

/// The buffers of a launch's groups, on the device. The kernel looks at the counts: whatever comes
/// before in the stream may make them, and nobody on the host reads them.
#[derive(Clone, Copy, Debug)]
pub struct GroupBuffers<'a> {
    /// Offsets or counts, i32, as [`Grouping`] says. If they decrease, are negative, or exceed the
    /// matrices, the product is not made: all results become NaN, and the status word says so. With
    /// [`Grouping::Chosen`] they are the ids, which may have any value.
    pub counts: &'a DeviceBuffer,
    /// A word, u32, that becomes [`STATUS_BAD_COUNTS`](fp4_formats::gemm::groups::STATUS_BAD_COUNTS)
    /// if the counts are bad, and is left alone if they are good.
    pub status: Option<&'a DeviceBuffer>,
    /// A factor of each group's sums besides alpha and the scales, f32 `[G]` for G matrices of weights; of a
    /// gated product, of the gate's.
    pub factors: Option<&'a DeviceBuffer>,
    /// The same for the other half of a gated product.
    pub up_factors: Option<&'a DeviceBuffer>,
    /// Whether column factors and biases are `[G, N]`, one vector for each group. Otherwise they
    /// are `[N]`, and all groups share them.
    pub own_vectors: bool,
    /// Whether the launch may read the counts while kernels before it still run, so that it has made its
    /// work list and copied its first weights when they end. Without this it waits for them first.
    pub settled: Option<SettledCounts>,
    /// Weights of the product that is launched next on this stream, for the same groups and counts: the
    /// launch brings the first of them to L2 while its own results are stored. That changes nothing but
    /// time, and on sm_100a nothing at all.
    pub next: Option<&'a DeviceWeights>,
}

/// The caller's word that no kernel that may still run when a launch begins writes its token counts.
#[derive(Clone, Copy, Debug)]
pub struct SettledCounts(());

impl SettledCounts {
    /// Gives that word.
    ///
    /// # Safety
    /// Promises that the counts' last writer is complete when the kernel queued just before the launch lets
    /// it begin. That holds if the host wrote them and waited, as [`DeviceBuffer::upload`] does, and if
    /// anything except launches that [overlap](crate::device::LaunchSpec::overlaps) is between: a copy, an
    /// event, another library's kernel. Otherwise CTAs may read different counts and wait for one another,
    /// until the launch fails or forever (`docs/CONTRACTS.md`).
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

impl<'a> GroupBuffers<'a> {
    /// Makes the buffers of counts alone.
    #[must_use]
    pub fn of(counts: &'a DeviceBuffer) -> Self {
        Self {
            counts,
            status: None,
            factors: None,
            up_factors: None,
            own_vectors: false,
            settled: None,
            next: None,
        }
    }
}

/// The offsets of groups with these token counts, for [`Grouping::Contiguous`].
///
/// # Errors
/// [`Error::Overflow`] if they exceed i32.
pub fn group_offsets(counts: &[usize]) -> Result<Vec<i32>> {
    let mut end = 0usize;
    let ends = counts.iter().map(|&count| {
        end = end.saturating_add(count);
        end
    });
    std::iter::once(0)
        .chain(ends)
        .map(|offset| {
            i32::try_from(offset).map_err(|_| Error::Overflow {
                what: "offsets of groups".into(),
                detail: format!("{offset} tokens in i32"),
            })
        })
        .collect()
}

impl Gemm {
    /// Checks and plans a grouped product: of each group's tokens with its own one of the G matrices
    /// of `weights`, or of rows with the ones that they [choose](ChosenRows). See [`Gemm::new`] for the rest.
    ///
    /// The plan assumes that the tokens are spread about evenly over the groups; it is right for any
    /// other counts, too.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use fp4_formats::{HalfType, ScaleLayout};
    /// use nvfp4::buffer::DeviceBuffer;
    /// use nvfp4::device::{Device, DeviceRequest};
    /// use nvfp4::gemm::{
    ///     ActivationBuffers, ActivationKind, Gemm, GemmOptions, GroupBuffers, Grouping, HalfMatrix,
    ///     Repacked, ResultBuffers, Vectors, Workspace, group_offsets,
    /// };
    /// use nvfp4::quantize::{TensorScale, quantize};
    /// use nvfp4::tensor::Dims;
    ///
    /// # fn main() -> nvfp4::error::Result<()> {
    /// let device = Device::open(&"emu:h200".parse::<DeviceRequest>()?)?;
    /// let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
    /// let kind = ActivationKind::Halves(HalfType::F16);
    ///
    /// // Three experts, with 2, 0 and 3 of five tokens.
    /// let dims = Dims::new(3, 40, 64)?;
    /// let values: Vec<f32> = (1..=3).flat_map(|e| [6.0 * e as f32 / 64.0; 40 * 64]).collect();
    /// let experts = quantize("w", &values, dims, TensorScale::Given(1.0), ScaleLayout::Linear)?;
    /// let experts = Repacked::for_device(&device, &experts, kind)?.upload(&device)?;
    /// let grouping = Grouping::Contiguous { bound: 5 };
    /// let product =
    ///     Gemm::grouped(&kernels, &experts, grouping, kind, &GemmOptions::default())?;
    ///
    /// let offsets: Vec<u8> =
    ///     group_offsets(&[2, 0, 3])?.iter().flat_map(|at| at.to_le_bytes()).collect();
    /// let offsets = DeviceBuffer::upload(&device, "offsets", &offsets)?;
    /// let input = HalfMatrix::round("x", Dims::new(1, 5, 64)?, HalfType::F16, &[1.0; 5 * 64])?;
    /// let input = DeviceBuffer::upload(&device, "x", input.bytes())?;
    /// let out = DeviceBuffer::poisoned(&device, "c", product.out_bytes()?[0])?;
    /// let workspace = Workspace::new(&device, product.workspace_bytes())?;
    /// product.launch_grouped(
    ///     GroupBuffers::of(&offsets),
    ///     ActivationBuffers::Halves(&input),
    ///     &experts,
    ///     ResultBuffers::Floats(&out),
    ///     Some(&workspace),
    ///     Vectors::default(),
    /// )?;
    /// let bytes = out.read()?;
    /// let halves = bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32());
    /// let expected = [6.0, 6.0, 18.0, 18.0, 18.0].into_iter().flat_map(|value| [value; 40]);
    /// assert!(halves.eq(expected));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Gemm::new`]; [`Error::Shape`] for more than 1024 groups, for more tiles than
    /// can be numbered, and for rows that [`ChosenRows`] does not allow.
    pub fn grouped(
        kernels: &Kernels,
        weights: &DeviceWeights,
        grouping: Grouping,
        kind: ActivationKind,
        options: &GemmOptions,
    ) -> Result<Self> {
        check_kind(weights, kind)?;
        let sizes = weights.sizes();
        let planned =
            described::grouped(Planner::Kernels(kernels), sizes, grouping, kind, options)?;
        Self::planned(kernels, weights, planned)
    }

    /// Queues a grouped product; see [`Gemm::launch`]. Activations that belong to no group may be read,
    /// as copies bring whole tiles, but change nothing. Rows of the result that belong to no group
    /// are left alone, but for zeros in the padding of scales in the 128x4 layout behind the last
    /// group, or behind each slot's tokens.
    ///
    /// # Errors
    /// The same as there; [`Error::Shape`] for counts and factors of other lengths, for row factors
    /// of chosen rows, and for a product that is not grouped.
    pub fn launch_grouped(
        &self,
        groups: GroupBuffers<'_>,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        out: ResultBuffers<'_>,
        workspace: Option<&Workspace>,
        vectors: Vectors<'_>,
    ) -> Result<()> {
        let launch = self.grouped_arguments(groups, a, weights, out, workspace, vectors)?;
        self.kernel().launch(&launch, &mut AtOnce)
    }

    /// Gives the launches of a grouped product to a queue, once all its arguments are checked.
    ///
    /// # Errors
    /// The same as [`launch_grouped`](Self::launch_grouped).
    #[expect(clippy::too_many_arguments, reason = "those of a public function, and one more")]
    pub(crate) fn prepare_grouped<'k>(
        &'k self,
        queue: &mut dyn Queue<'k>,
        groups: GroupBuffers<'_>,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        out: ResultBuffers<'_>,
        workspace: Option<&Workspace>,
        vectors: Vectors<'_>,
    ) -> Result<()> {
        let launch = self.grouped_arguments(groups, a, weights, out, workspace, vectors)?;
        self.kernel().launch(&launch, queue)
    }

    /// The arguments of a launch, all checked.
    fn grouped_arguments(
        &self,
        groups: GroupBuffers<'_>,
        a: ActivationBuffers<'_>,
        weights: &DeviceWeights,
        out: ResultBuffers<'_>,
        workspace: Option<&Workspace>,
        vectors: Vectors<'_>,
    ) -> Result<Launch<'_>> {
        let Some(planned) = self.groups else {
            return Err(not_grouped());
        };
        if let (true, Some(factors)) = (planned.chosen.is_given(), vectors.row_factors) {
            return Err(Error::shape("row factors of chosen rows", "absent", factors.len()));
        }
        let placed = self.place_groups(&planned, &groups, weights)?;
        let own = groups.own_vectors.then_some(planned.matrices as usize);
        self.arguments(a, weights, out, workspace, vectors, Some((placed, own)))
    }

    /// Places the groups in memory.
    fn place_groups(
        &self,
        &PlannedGroups { request, matrices, chosen }: &PlannedGroups,
        groups: &GroupBuffers<'_>,
        weights: &DeviceWeights,
    ) -> Result<Groups> {
        let device: &Device = self.kernels.device();
        let word = size_of::<u32>();
        let vector = matrices as usize * word;
        let place = |what: &str, buffer: Option<&DeviceBuffer>, bytes: usize| {
            buffer.map_or(Ok(0), |buffer| buffer.checked(what, bytes, device))
        };
        let placed = Groups { chosen, ..request.memory(self.plan.problem()) };
        let counts = placed.counts_len() as usize * word;
        let is_gated = self.epilogue.is_gated();
        if let (false, Some(factors)) = (is_gated, groups.up_factors) {
            let what = "the factors of the groups' other half";
            return Err(Error::shape(what, "absent, as the product is not gated", factors.len()));
        }
        let own = [
            place("the factors of the groups", groups.factors, vector)?,
            place("the factors of the groups' other half", groups.up_factors, vector)?,
        ];
        let scales = weights.scale_addresses();
        let next = groups.next.map(|next| next.next(matrices as usize, device));
        let what = if chosen.is_given() { "the ids" } else { "the token counts" };
        Ok(Groups {
            counts: place(what, Some(groups.counts), counts)?,
            status: place("the status word", groups.status, word)?,
            factors: [[scales[0], own[0]], [scales[1], own[1]]],
            vector_stride: if groups.own_vectors { self.plan.columns } else { 0 },
            settled: u32::from(groups.settled.is_some()),
            next: next.transpose()?.unwrap_or(NextWeights::NONE),
            ..placed
        })
    }
}
