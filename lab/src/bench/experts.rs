//! Weights of many matrices for a bench: the groups of a grouped product, the experts of a layer.

use fp4_formats::{BlockFormat, ScaleLayout};

use crate::generate::Generator;
use crate::rng::SplitMix64;
use nvfp4::device::Device;
use nvfp4::error::Result;
use nvfp4::gemm::{ActivationKind, GatedWeights, Repacked, Weights};
use nvfp4::tensor::{BlockScaled, Dims};

/// Different tensors. More matrices repeat them, each time with another scale, so that no two matrices
/// are equal: to make, keep and decode hundreds of large tensors would take longer than the bench.
const DISTINCT: usize = 16;

/// `count` matrices of weights, each a tensor with its own scale.
pub(super) struct Experts<F> {
    tensors: Vec<BlockScaled<F>>,
    count: usize,
    gated: bool,
}

impl<F: BlockFormat> Experts<F> {
    /// Random ones, `[n, k]` each; gated ones have as many rows for the gate and, behind them, for the
    /// other half.
    ///
    /// # Errors
    /// The same as [`Generator::blocks`].
    pub fn generate(
        generator: Generator,
        count: usize,
        [n, k]: [usize; 2],
        gated: bool,
        rng: &mut SplitMix64,
    ) -> Result<Self> {
        let dims = Dims::new(1, if gated { 2 * n } else { n }, k)?;
        let tensor = |_| generator.blocks("b", dims, ScaleLayout::Linear, rng);
        let tensors = (0..count.min(DISTINCT)).map(tensor).collect::<Result<_>>()?;
        Ok(Self { tensors, count, gated })
    }

    /// Returns the factor of matrix `index` besides its tensor's scale: exact in few bits.
    fn factor(index: usize) -> f32 {
        1.0 + (index / DISTINCT) as f32 / 16.0
    }

    /// The tensors of all matrices.
    ///
    /// # Errors
    /// The same as [`GatedWeights::stacked`].
    pub fn weights(&self) -> Result<Vec<Weights<'_, F>>> {
        (0..self.count).map(|index| self.view(&self.tensors[index % DISTINCT])).collect()
    }

    fn view<'a>(&self, tensor: &'a BlockScaled<F>) -> Result<Weights<'a, F>> {
        Ok(if self.gated { GatedWeights::stacked(tensor)?.into() } else { tensor.into() })
    }

    /// Returns the factor of each matrix besides its tensor's scale.
    pub fn factors(&self) -> Vec<f32> {
        (0..self.count).map(Self::factor).collect()
    }

    /// All matrices in the order of the device's kernels.
    ///
    /// # Errors
    /// The same as [`Repacked::for_device`] and [`Repacked::stack`].
    pub fn repack(&self, device: &Device, kind: ActivationKind) -> Result<Repacked> {
        let parts: Vec<Repacked> = self
            .tensors
            .iter()
            .map(|tensor| Repacked::rounded(device, self.view(tensor)?, kind))
            .collect::<Result<_>>()?;
        Repacked::stack_scaled((0..self.count).map(|at| (&parts[at % DISTINCT], Self::factor(at))))
    }
}
