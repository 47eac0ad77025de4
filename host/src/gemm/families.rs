//! The families of tensor cores that there are kernels for.

use std::marker::PhantomData;

use fp4_formats::gemm::{sm80::Sm80Config, sm90::Sm90Config};
use fp4_formats::{Arch, TensorFamily};

use super::family::Family;
use super::fragments::FragmentFamily;
use super::sm100::Sm100;
use super::sm120::Sm120;

/// The family of a target.
pub(super) fn family(arch: Arch) -> &'static dyn Family {
    of_tensor(arch.tensor())
}

/// The family of the targets with these tensor cores.
pub(super) fn of_tensor(tensor: TensorFamily) -> &'static dyn Family {
    match tensor {
        TensorFamily::MmaSync => &FragmentFamily::<Sm80Config>(PhantomData),
        TensorFamily::MmaSyncScaled => &Sm120,
        TensorFamily::Wgmma => &FragmentFamily::<Sm90Config>(PhantomData),
        TensorFamily::Tcgen05 => &Sm100,
    }
}
