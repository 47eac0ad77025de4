//! GEMM by `mma.sync`.

use fp4_formats::TensorFamily;
use fp4_formats::gemm::sm80::{Sm80Config, Sm80GroupedParams, Sm80Own, Sm80Params};

use super::fragments::{FragmentKernel, Fragments, Placed};
use crate::device::Device;
use crate::error::Result;

impl Fragments for Sm80Config {
    const TENSOR: TensorFamily = TensorFamily::MmaSync;
    const NEXT_CHUNKS: u32 = 0;
    const TOKEN_BYTES: Option<u64> = Some(u32::MAX as u64);
    const FOLDS: bool = false;
    type Params = Sm80Params;
    type GroupedParams = Sm80GroupedParams;

    fn params(kernel: &FragmentKernel<Self>, placed: Placed, _: &Device) -> Result<Sm80Params> {
        Ok(placed.params(kernel, Sm80Own { one: 1, reserved: 0 }))
    }
}
