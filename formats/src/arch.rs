//! The targets that kernels are compiled for, and what each of them can do.
//!
//! Host, build and kernels ask for a capability rather than for a name: the host by the functions
//! of [`Arch`], kernels by the `cfg`s that [`Arch::cfgs`] lists and the build passes on. Every
//! match is exhaustive, so a new target or a new capability makes the compiler list what has to
//! be written for it:
//!
//! * a target is a variant of [`Arch`] with its row in each `match` of this file;
//! * a family of tensor cores is a variant of [`TensorFamily`], its name among the values of `gpu_tensor` in the
//!   `check-cfg` of `cuda_std` and `kernels-gpu`, and what those matches and `cfg`s lack: kernels, configurations,
//!   planning and launching.

mod version;

use core::error::Error;
use core::fmt;
use core::str::FromStr;

pub use version::{CudaVersion, PtxVersion};

/// A target that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// The portable target: every GPU since Ampere runs it, and those with no closer code are given it.
    Sm80,
    /// Hopper: H100, H200.
    Sm90a,
    /// Data-centre Blackwell: B200.
    Sm100a,
    /// The family of data-centre Blackwell: B200, B300.
    Sm100f,
    /// The family of Blackwell for desktops and workstations: RTX 50, RTX PRO 6000, DGX Spark.
    Sm120f,
}

/// The instructions by which tensor cores multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorFamily {
    /// `mma.sync`: products of 16-bit operands by a warp, all operands and sums in registers. Weights are
    /// decoded before.
    MmaSync,
    /// The same, and block-scaled products of 4-bit operands by `mma.sync`.
    MmaSyncScaled,
    /// `wgmma`: products of 16-bit operands by a warpgroup, sums in registers. Weights are
    /// decoded before.
    Wgmma,
    /// `tcgen05`: block-scaled products of 4-bit operands and products of 16-bit ones, by one
    /// thread of a CTA or of a CTA pair, sums in tensor memory.
    Tcgen05,
}

impl TensorFamily {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::MmaSync, Self::MmaSyncScaled, Self::Wgmma, Self::Tcgen05];

    /// The value of the `cfg` `gpu_tensor`: `mma_sync`, `mma_sync_scaled`, `wgmma`, `tcgen05`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MmaSync => "mma_sync",
            Self::MmaSyncScaled => "mma_sync_scaled",
            Self::Wgmma => "wgmma",
            Self::Tcgen05 => "tcgen05",
        }
    }
}

/// The conversion of a target between f32 or f16 and a narrow type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Conversion {
    /// Converted by the instruction `cvt`.
    Hardware,
    /// There is no such `cvt`; by integer and other floating-point instructions.
    Emulated,
}

impl Conversion {
    /// The value of a `cfg`: `hardware`, `emulated`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Emulated => "emulated",
        }
    }
}

/// A `cfg` with a value that kernels are compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfg {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: &'static str,
}

/// The changes that make the PTX for one target that for another one, which has the same
/// instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Respelling {
    /// The target of the PTX that there is.
    pub of: Arch,
    /// Modifiers of instructions, and how the other target spells them.
    pub modifiers: &'static [(&'static str, &'static str)],
}

/// The compute capabilities, major and minor, of the GPUs that run a target's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capabilities {
    /// These: an `a` target's code runs on exactly one, an `f` target's on those of its family.
    Only(&'static [(u32, u32)]),
    /// This one and all later ones.
    From((u32, u32)),
}

impl Capabilities {
    /// Whether a capability is one of them.
    #[must_use]
    pub fn contain(self, capability: (u32, u32)) -> bool {
        match self {
            Self::Only(all) => all.contains(&capability),
            Self::From(first) => capability >= first,
        }
    }
}

/// Shows the numbers: `10.0, 10.3`, `8.0 and later`.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only(all) => {
                for (index, (major, minor)) in all.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{major}.{minor}")?;
                }
                Ok(())
            }
            Self::From((major, minor)) => write!(f, "{major}.{minor} and later"),
        }
    }
}

/// Machine code that ptxas makes of a target's PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineCode {
    /// The name of its target, for ptxas and in manifests: `sm_86`.
    pub target: &'static str,
    /// The compute capabilities of the GPUs that load it.
    pub capabilities: Capabilities,
}

impl MachineCode {
    const fn new(target: &'static str, capabilities: Capabilities) -> Self {
        Self { target, capabilities }
    }

    /// The code for a target that has features of its own: all GPUs that run its PTX load it.
    const fn of(arch: Arch) -> Self {
        Self::new(arch.name(), arch.capabilities())
    }
}

impl Arch {
    /// All targets; of those that one GPU can run, the preferred one comes first, the portable one last.
    pub const ALL: [Self; 5] = [Self::Sm90a, Self::Sm100a, Self::Sm100f, Self::Sm120f, Self::Sm80];

    /// The targets that kernels are compiled for; the PTX for the others is made of theirs.
    pub fn compiled() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|arch| arch.respelled().is_none())
    }

    /// The spelling of PTX's `.target`, which also names the folder of the target's kernels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90a => "sm_90a",
            Self::Sm100a => "sm_100a",
            Self::Sm100f => "sm_100f",
            Self::Sm120f => "sm_120f",
        }
    }

    /// The target of that [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// The compute capabilities, major and minor, of the GPUs that run its code (PTX ISA, `.target`).
    #[must_use]
    pub const fn capabilities(self) -> Capabilities {
        match self {
            Self::Sm80 => Capabilities::From((8, 0)),
            Self::Sm90a => Capabilities::Only(&[(9, 0)]),
            Self::Sm100a => Capabilities::Only(&[(10, 0)]),
            Self::Sm100f => Capabilities::Only(&[(10, 0), (10, 3)]),
            Self::Sm120f => Capabilities::Only(&[(12, 0), (12, 1)]),
        }
    }

    /// The version of its PTX: the lowest that has all instructions of its kernels, so that the oldest drivers
    /// load them (`tests/library/kernel_code.rs`).
    #[must_use]
    pub const fn ptx_version(self) -> PtxVersion {
        // Hints for L1.
        const SM_80: PtxVersion = PtxVersion::of(7, 4);
        // Bulk copies to a CTA's own shared memory.
        const SM_90A: PtxVersion = PtxVersion::of(8, 6);
        // `tcgen05.mma` of NVFP4.
        const SM_100A: PtxVersion = PtxVersion::of(8, 7);
        // Targets of families.
        const FAMILIES: PtxVersion = PtxVersion::of(8, 8);
        match self {
            Self::Sm80 => SM_80,
            Self::Sm90a => SM_90A,
            Self::Sm100a => SM_100A,
            Self::Sm100f | Self::Sm120f => FAMILIES,
        }
    }

    /// The machine code that is made of its PTX where ptxas is found. A GPU is given the last of those
    /// that it loads, which is the closest.
    #[must_use]
    pub const fn machine_code(self) -> &'static [MachineCode] {
        // A GPU loads code of its major version with an equal or lower minor one; the modules of Tegra
        // (8.7, 8.8) load none but their own (CUDA C++ Programming Guide, Binary Compatibility).
        const AMPERE: [MachineCode; 3] = [
            MachineCode::new("sm_80", Capabilities::Only(&[(8, 0), (8, 6), (8, 9)])),
            MachineCode::new("sm_86", Capabilities::Only(&[(8, 6), (8, 9)])),
            MachineCode::new("sm_89", Capabilities::Only(&[(8, 9)])),
        ];
        const SM_90A: [MachineCode; 1] = [MachineCode::of(Arch::Sm90a)];
        const SM_100A: [MachineCode; 1] = [MachineCode::of(Arch::Sm100a)];
        const SM_100F: [MachineCode; 1] = [MachineCode::of(Arch::Sm100f)];
        const SM_120F: [MachineCode; 1] = [MachineCode::of(Arch::Sm120f)];
        match self {
            Self::Sm80 => &AMPERE,
            Self::Sm90a => &SM_90A,
            Self::Sm100a => &SM_100A,
            Self::Sm100f => &SM_100F,
            Self::Sm120f => &SM_120F,
        }
    }

    /// Whether its code runs on all later GPUs, too.
    #[must_use]
    pub const fn is_portable(self) -> bool {
        match self.capabilities() {
            Capabilities::Only(_) => false,
            Capabilities::From(_) => true,
        }
    }

    /// Returns the reason why a GPU of this compute capability, which runs its code, is given that
    /// and no other's.
    pub fn reason(self, capability: (u32, u32)) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            let (major, minor) = capability;
            let preferred = Self::of_capability(capability).next();
            match (self.capabilities(), preferred) {
                (Capabilities::Only([] | [_]), _) => {
                    write!(f, "the code for compute capability {major}.{minor} alone")
                }
                (Capabilities::Only(_), Some(preferred)) if preferred == self => {
                    write!(f, "the family's code: there is none for {major}.{minor} alone")
                }
                (Capabilities::Only(_), _) => {
                    write!(f, "the family's code: that for {major}.{minor} is not here")
                }
                (Capabilities::From(_), Some(preferred)) if preferred != self => {
                    let stands_in = Self::of_capability(capability).any(|arch| arch == self);
                    let or = if stands_in { " or because it is not here" } else { "" };
                    write!(f, "the portable code, on request{or}: that for {preferred} is closer")
                }
                (Capabilities::From(_), _) => write!(
                    f,
                    "the portable code: there is no closer one for compute capability {major}.{minor}"
                ),
            }
        })
    }

    /// The targets whose code a GPU of this compute capability is given, the preferred one first; none
    /// where the GPU is not supported. The portable target is one only where there is no other, and where the
    /// other's code has its kernels, too, whose place it then takes; elsewhere it runs on request.
    pub fn of_capability(capability: (u32, u32)) -> impl Iterator<Item = Self> {
        let runs = move |arch: &Self| arch.capabilities().contain(capability);
        let mut closer =
            Self::ALL.into_iter().filter(move |arch| !arch.is_portable() && runs(arch));
        let portable = closer.all(|arch| match arch.tensor() {
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled => true,
            TensorFamily::Wgmma | TensorFamily::Tcgen05 => false,
        });
        Self::ALL.into_iter().filter(move |arch| runs(arch) && (portable || !arch.is_portable()))
    }

    /// The target whose PTX its own is made of, see [`Respelling`]; `None` if kernels are compiled
    /// for it.
    #[must_use]
    pub const fn respelled(self) -> Option<Respelling> {
        match self {
            Self::Sm80 | Self::Sm90a | Self::Sm100a | Self::Sm120f => None,
            // The scale vectors of `tcgen05.mma` by their length, as `f` targets want it.
            Self::Sm100f => Some(Respelling {
                of: Self::Sm100a,
                modifiers: &[
                    (".scale_vec::4X", ".block16"),
                    (".scale_vec::2X", ".block32"),
                    (".scale_vec::1X", ".block32"),
                ],
            }),
        }
    }

    /// Its tensor cores.
    #[must_use]
    pub const fn tensor(self) -> TensorFamily {
        match self {
            Self::Sm80 => TensorFamily::MmaSync,
            Self::Sm90a => TensorFamily::Wgmma,
            Self::Sm100a | Self::Sm100f => TensorFamily::Tcgen05,
            Self::Sm120f => TensorFamily::MmaSyncScaled,
        }
    }

    /// Between e2m1 and f16 or f32: `cvt.rn.f16x2.e2m1x2`, `cvt.rn.satfinite.e2m1x2.f32`.
    #[must_use]
    pub const fn e2m1(self) -> Conversion {
        match self {
            Self::Sm80 | Self::Sm90a => Conversion::Emulated,
            Self::Sm100a | Self::Sm100f | Self::Sm120f => Conversion::Hardware,
        }
    }

    /// Returns how the architecture converts f32 to ue8m0: `cvt.rp.satfinite.ue8m0x2.f32`.
    #[must_use]
    pub const fn ue8m0(self) -> Conversion {
        match self {
            Self::Sm80 | Self::Sm90a => Conversion::Emulated,
            Self::Sm100a | Self::Sm100f | Self::Sm120f => Conversion::Hardware,
        }
    }

    /// Between e4m3 and f16 or f32: `cvt.rn.f16x2.e4m3x2`, `cvt.rn.satfinite.e4m3x2.f32`.
    #[must_use]
    pub const fn e4m3(self) -> Conversion {
        match self {
            Self::Sm80 => Conversion::Emulated,
            Self::Sm90a | Self::Sm100a | Self::Sm100f | Self::Sm120f => Conversion::Hardware,
        }
    }

    /// Whether pairs of bf16 are multiplied by `mul.rn.bf16x2`; otherwise by a multiply-add.
    #[must_use]
    pub const fn multiplies_bf16(self) -> bool {
        match self {
            Self::Sm80 => false,
            Self::Sm90a | Self::Sm100a | Self::Sm100f | Self::Sm120f => true,
        }
    }

    /// Whether a kernel can begin before the one that it depends on has ended (`griddepcontrol`).
    #[must_use]
    pub const fn dependent_launches(self) -> bool {
        match self {
            Self::Sm80 => false,
            Self::Sm90a | Self::Sm100a | Self::Sm100f | Self::Sm120f => true,
        }
    }

    /// Whether a running cluster can take over one that has not begun
    /// (`clusterlaunchcontrol.try_cancel`).
    #[must_use]
    pub const fn cluster_launch_control(self) -> bool {
        match self {
            Self::Sm80 | Self::Sm90a => false,
            Self::Sm100a | Self::Sm100f | Self::Sm120f => true,
        }
    }

    /// The capabilities as `cfg`s, with which kernels for this target are compiled.
    #[must_use]
    pub const fn cfgs(self) -> [Cfg; 7] {
        const fn answer(yes: bool) -> &'static str {
            if yes { "yes" } else { "no" }
        }
        [
            Cfg { name: "gpu_tensor", value: self.tensor().name() },
            Cfg { name: "gpu_e2m1", value: self.e2m1().name() },
            Cfg { name: "gpu_ue8m0", value: self.ue8m0().name() },
            Cfg { name: "gpu_e4m3", value: self.e4m3().name() },
            Cfg { name: "gpu_bf16_mul", value: answer(self.multiplies_bf16()) },
            Cfg { name: "gpu_dependent_launches", value: answer(self.dependent_launches()) },
            Cfg {
                name: "gpu_cluster_launch_control",
                value: answer(self.cluster_launch_control()),
            },
        ]
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownArch;

impl fmt::Display for UnknownArch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown architecture; known are {Targets}")
    }
}

impl Error for UnknownArch {}

impl FromStr for Arch {
    type Err = UnknownArch;

    fn from_str(text: &str) -> Result<Self, UnknownArch> {
        Self::from_name(text).ok_or(UnknownArch)
    }
}

/// Shows all targets with their compute capabilities: `sm_90a (9.0), sm_100a (10.0) and ...`.
#[derive(Clone, Copy, Debug)]
pub struct Targets;

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = Arch::ALL.len() - 1;
        for (index, arch) in Arch::ALL.into_iter().enumerate() {
            f.write_str(if index == 0 {
                ""
            } else if index == last {
                " and "
            } else {
                ", "
            })?;
            write!(f, "{arch} ({})", arch.capabilities())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_are_read_back() {
        for arch in Arch::ALL {
            assert_eq!(arch.name().parse(), Ok(arch));
        }
        let error = "sm_75".parse::<Arch>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown architecture; known are sm_90a (9.0), sm_100a (10.0), sm_100f (10.0, 10.3), \
             sm_120f (12.0, 12.1) and sm_80 (8.0 and later)"
        );
    }

    #[test]
    fn targets_of_compute_capabilities() {
        let of = |major, minor| Arch::of_capability((major, minor));
        assert!(of(9, 0).eq([Arch::Sm90a]));
        assert!(of(10, 0).eq([Arch::Sm100a, Arch::Sm100f]));
        assert!(of(10, 3).eq([Arch::Sm100f]));
        assert!(of(12, 0).eq([Arch::Sm120f, Arch::Sm80]));
        assert!(of(12, 1).eq([Arch::Sm120f, Arch::Sm80]));
        let later = [(9, 1), (10, 1), (11, 0), (12, 2), (13, 0)];
        for (major, minor) in [(8, 0), (8, 6), (8, 7), (8, 9)].into_iter().chain(later) {
            assert!(of(major, minor).eq([Arch::Sm80]), "{major}.{minor}");
        }
        for (major, minor) in [(0, 0), (7, 0), (7, 5)] {
            assert_eq!(of(major, minor).next(), None, "{major}.{minor}");
        }
        assert_eq!(Arch::Sm80.capabilities().to_string(), "8.0 and later");
    }

    #[test]
    fn reasons_name_what_is_closer() {
        let reason = |arch: Arch, capability| arch.reason(capability).to_string();
        assert_eq!(reason(Arch::Sm100a, (10, 0)), "the code for compute capability 10.0 alone");
        assert_eq!(
            reason(Arch::Sm100f, (10, 3)),
            "the family's code: there is none for 10.3 alone"
        );
        assert_eq!(reason(Arch::Sm100f, (10, 0)), "the family's code: that for 10.0 is not here");
        assert_eq!(
            reason(Arch::Sm80, (8, 6)),
            "the portable code: there is no closer one for compute capability 8.6"
        );
        assert_eq!(
            reason(Arch::Sm80, (10, 3)),
            "the portable code, on request: that for sm_100f is closer"
        );
        assert_eq!(
            reason(Arch::Sm80, (12, 1)),
            "the portable code, on request or because it is not here: that for sm_120f is closer"
        );
    }

    /// A GPU loads machine code of its own major version alone.
    #[test]
    fn machine_code_is_for_gpus_that_load_it() {
        let closest = |arch: Arch, capability| {
            let mut all = arch.machine_code().iter().rev();
            all.find(|code| code.capabilities.contain(capability)).map(|code| code.target)
        };
        for (capability, target) in [
            ((8, 0), Some("sm_80")),
            ((8, 6), Some("sm_86")),
            ((8, 7), None),
            ((8, 9), Some("sm_89")),
            ((9, 0), None),
            ((12, 0), None),
        ] {
            assert_eq!(closest(Arch::Sm80, capability), target, "{capability:?}");
        }
        assert_eq!(closest(Arch::Sm90a, (9, 0)), Some("sm_90a"));
        assert_eq!(closest(Arch::Sm100f, (10, 3)), Some("sm_100f"));
        assert_eq!(closest(Arch::Sm100a, (10, 3)), None);
    }
}
