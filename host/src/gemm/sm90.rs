//! GEMM by `wgmma`: activations come through a tensor map.

use fp4_formats::TensorFamily;
use fp4_formats::gemm::sm90::config::MAX_STAGES;
use fp4_formats::gemm::sm90::{Sm90Config, Sm90GroupedParams, Sm90Params, activations_map};

use super::fragments::{FragmentKernel, Fragments, Placed};
use crate::device::Device;
use crate::error::Result;

impl Fragments for Sm90Config {
    const TENSOR: TensorFamily = TensorFamily::Wgmma;
    /// Half of what the stages of a CTA hold. On an H200 a layer of one token then takes 0.9 us less, and 1.0 with
    /// as much as they hold; of 64 tokens, 2.3 us less, and with as much as they hold as long as without.
    const NEXT_CHUNKS: u32 = MAX_STAGES / 2;
    const TOKEN_BYTES: Option<u64> = None;
    const FOLDS: bool = true;
    type Params = Sm90Params;
    type GroupedParams = Sm90GroupedParams;

    fn params(
        kernel: &FragmentKernel<Self>,
        placed: Placed,
        device: &Device,
    ) -> Result<Sm90Params> {
        let Placed {
            activations,
            activation_stride,
            blocks: _,
            weights,
            weight_stride,
            partials,
            flags,
            epilogue,
            scale_stride,
        } = placed;
        let config = kernel.estimate.config;
        let map = activations_map(config, &kernel.problem, activation_stride);
        Ok(Sm90Params {
            activations: device.tensor_map(&map, activations)?,
            weights,
            weight_stride,
            partials,
            flags,
            epilogue,
            problem: kernel.problem,
            schedule: kernel.estimate.schedule,
            row_factor_stride: scale_stride,
            from_registers: u32::from(!kernel.mixed && config.stores_from_registers(&epilogue)),
            plain: u32::from(epilogue.is_plain()),
            one: 1,
            walk: kernel.tiles().counts.walk,
        })
    }
}
