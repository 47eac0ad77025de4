//! The families of tensor cores that there are kernels for.

use fp4_formats::{Arch, TensorFamily};

use super::family::Family;
use super::{sm80, sm90, sm100};

/// The family of a target.
pub(super) fn family(arch: Arch) -> &'static dyn Family {
    of_tensor(arch.tensor())
}

/// The family of the targets with these tensor cores.
pub(super) fn of_tensor(tensor: TensorFamily) -> &'static dyn Family {
    match tensor {
        TensorFamily::MmaSync => &sm80::Sm80,
        TensorFamily::Wgmma => &sm90::Sm90,
        TensorFamily::Tcgen05 => &sm100::Sm100,
    }
}
