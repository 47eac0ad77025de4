//! The target of plans: the kernels' architecture and the machine that runs them.

use fp4_formats::Arch;

use super::{Device, DeviceProperties, Kernels, ResidentClusters};

/// All that plans depend on besides the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Architecture of the kernels.
    pub arch: Arch,
    /// The machine.
    pub machine: DeviceProperties,
}

impl DeviceProperties {
    /// Properties of the machine that an architecture's kernels are tuned for or, where that is none, of the first one that
    /// runs them: A100, H200, B200, B300, RTX 5090.
    #[must_use]
    pub const fn usual(arch: Arch) -> Self {
        const B200: DeviceProperties = DeviceProperties {
            sms: 148,
            clusters: ResidentClusters::of_gpcs(&[20, 20, 18, 18, 18, 18, 18, 18]),
            l2_bytes: 126 << 20,
            shared_per_block: 227 << 10,
        };
        match arch {
            Arch::Sm80 => Self {
                sms: 108,
                clusters: ResidentClusters::of_sms(108),
                l2_bytes: 40 << 20,
                shared_per_block: 163 << 10,
            },
            Arch::Sm90a => Self {
                sms: 132,
                clusters: ResidentClusters::of_gpcs(&[18, 18, 18, 18, 16, 16, 16, 12]),
                l2_bytes: 60 << 20,
                shared_per_block: 227 << 10,
            },
            Arch::Sm100a | Arch::Sm100f => B200,
            Arch::Sm120f => Self {
                sms: 170,
                clusters: ResidentClusters::of_sms(170),
                l2_bytes: 96 << 20,
                shared_per_block: 99 << 10,
            },
        }
    }
}

impl From<Arch> for Target {
    /// The [usual](DeviceProperties::usual) machine of an architecture.
    fn from(arch: Arch) -> Self {
        Self { arch, machine: DeviceProperties::usual(arch) }
    }
}

impl From<&Device> for Target {
    fn from(device: &Device) -> Self {
        Self { arch: device.choice().arch, machine: device.properties() }
    }
}

impl From<&Kernels> for Target {
    fn from(kernels: &Kernels) -> Self {
        kernels.device().into()
    }
}
