//! Probes and their families.

use super::compare::{Comparison, Element};
use super::families;
use ptx_emu_core::tensor_map::{TensorMap, TensorMapError};
use std::fmt;
use std::str::FromStr;

macro_rules! families {
    ($($variant:ident, $name:literal, $what:literal;)*) => {
        /// A group of probes with one recording.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Family {
            $(#[doc = $what] $variant,)*
        }

        impl Family {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Name, as in `--family` and file names.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the subject of its probes, in a few words.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$variant => $what),* }
            }
        }
    };
}

families! {
    Integer, "integer", "Integer arithmetic and carry chains (PTX ISA 9.7.1, 9.7.2).";
    Bits, "bits", "Bit fields, logic, shifts, byte permutation (9.7.1, 9.7.8, 9.7.9.7).";
    Single, "single", "f32 arithmetic with every rounding and modifier (9.7.3).";
    Double, "double", "f64 arithmetic with every rounding (9.7.3).";
    Half, "half", "f16, bf16 and their packed forms (9.7.4).";
    Approximate, "approximate", "`.approx` and `.full` instructions (9.7.3, 9.7.4).";
    Convert, "convert", "`cvt` between scalar types (9.7.9.21).";
    Narrow, "narrow", "`cvt` to and from packed and narrow types, `cvt.pack` (9.7.9.21).";
    Compare, "compare", "Comparison and selection (9.7.6, 9.7.7).";
    Warp, "warp", "Exchange within a warp and barrier reductions (9.7.9.6, 9.7.13).";
    Atomic, "atomic", "Atomics in global and shared memory (9.7.13.10, 9.7.13.11).";
    Memory, "memory", "Loads and stores of every width, address conversion (9.7.9).";
    Matrix, "matrix", "`mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix` (9.7.14).";
    Sums, "sums", "Width, order and rounding of tensor-core sums (9.7.14, 9.7.15).";
    Wgmma, "wgmma", "Warpgroup products: types, sizes, layouts, swizzles (9.7.15).";
    Wmma, "wmma", "`wmma` products of matrices in memory (9.7.14.4).";
    Copy, "copy", "`cp.async` by threads (9.7.9.25.3).";
    Bulk, "bulk", "Bulk copies in all directions, bulk reductions (9.7.9.25.4).";
    Tensor, "tensor", "Tensor copies: tiles, swizzles, edges, reductions (9.7.9.27).";
    TensorMap, "tensormap", "`tensormap.replace`, maps edited on the device (9.7.9.28).";
    Mbarrier, "mbarrier", "mbarrier phases, counts and transaction bytes (9.7.13.15).";
    Cluster, "cluster", "Shared memory and barriers of a cluster (9.7.13.3, 9.7.9.22).";
    Control, "control", "Register counts, dependent grids, hints (9.7.19, 9.7.13.13).";
    Special, "special", "Special registers that do not depend on time (10).";
    Hardware, "hardware", "Orders and values beyond the promises of PTX ISA.";
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A family that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("family: required one of {names}, actual `{actual}`", names = names(), actual = .0)]
pub struct UnknownFamily(String);

fn names() -> String {
    Family::ALL.iter().map(|family| family.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Family {
    type Err = UnknownFamily;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().copied().find(|family| family.name() == text);
        found.ok_or_else(|| UnknownFamily(text.to_owned()))
    }
}

/// An input buffer: little-endian values of one width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Bytes a value.
    pub width: usize,
    /// The values.
    pub bytes: Vec<u8>,
}

/// A buffer of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// An input, from 0.
    Input(usize),
    /// The output.
    Output,
}

/// A tensor map among a kernel's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapParameter {
    /// The map; its address counts from the start of the buffer.
    pub map: TensorMap,
    /// Buffer that holds the tensor.
    pub buffer: Buffer,
}

/// One kernel to run on both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// Name, unique in its family; for most the instruction itself.
    pub name: String,
    /// Family.
    pub family: Family,
    /// Name of the kernel, unique in the family.
    pub entry: String,
    /// The kernel without the module's head. Its parameters are one `.u64`
    /// address an input, then that of the output, then the tensor maps, 128 bytes
    /// each at multiples of 64.
    pub kernel: String,
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster, if it is launched with clusters.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// Input buffers.
    pub inputs: Vec<Input>,
    /// Tensor maps.
    pub maps: Vec<MapParameter>,
    /// The output buffer before the launch.
    pub output: Vec<u8>,
    /// The type of the output's elements.
    pub element: Element,
    /// The comparison of outputs.
    pub comparison: Comparison,
}

impl Probe {
    /// Head of every module: the target that a probe needs at least.
    pub const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

    /// A module with this kernel alone.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}{}", Self::HEAD, self.kernel)
    }

    /// A module with this kernel alone, of this PTX version (`7.4`) and for this target (`sm_80`), which may lack
    /// some of its instructions.
    #[must_use]
    pub fn text_for(&self, version: impl fmt::Display, target: impl fmt::Display) -> String {
        format!(".version {version}\n.target {target}\n.address_size 64\n{}", self.kernel)
    }

    /// Threads of the launch.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.grid.iter().chain(&self.block).map(|&extent| extent as usize).product()
    }

    /// The buffers before the launch, in the order of their parameters.
    #[must_use]
    pub fn buffers(&self) -> Vec<&[u8]> {
        let inputs = self.inputs.iter().map(|input| &input.bytes[..]);
        inputs.chain([&self.output[..]]).collect()
    }

    /// The kernel's parameters, a value each, for buffers at these addresses.
    ///
    /// # Errors
    /// A tensor map that breaks the driver's rules.
    pub fn arguments(&self, addresses: &[u64]) -> Result<Vec<Vec<u8>>, TensorMapError> {
        let mut values: Vec<Vec<u8>> =
            addresses.iter().map(|at| at.to_le_bytes().to_vec()).collect();
        for parameter in &self.maps {
            let index = match parameter.buffer {
                Buffer::Input(index) => index,
                Buffer::Output => self.inputs.len(),
            };
            let base = addresses.get(index).copied().unwrap_or_default();
            let mut map = parameter.map.clone();
            map.address = map.address.wrapping_add(base);
            values.push(map.encode()?.to_vec());
        }
        Ok(values)
    }

    /// The parameter block of [`arguments`](Self::arguments) as PTX lays it out, which is
    /// not everywhere where a driver has them.
    ///
    /// # Errors
    /// A tensor map that breaks the driver's rules.
    pub fn params(&self, addresses: &[u64]) -> Result<Vec<u8>, TensorMapError> {
        let mut params = Vec::new();
        for (index, value) in self.arguments(addresses)?.into_iter().enumerate() {
            if index >= addresses.len() {
                params.resize(params.len().next_multiple_of(MAP_ALIGN), 0);
            }
            params.extend(value);
        }
        Ok(params)
    }

    /// Checksum of all that determines the output: text, launch, inputs.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        let mut sum = Checksum::default();
        sum.add(self.text().as_bytes());
        for extent in self.grid.iter().chain(&self.block).chain(self.cluster.iter().flatten()) {
            sum.add(&extent.to_le_bytes());
        }
        sum.add(&self.dynamic_shared.to_le_bytes());
        for input in &self.inputs {
            sum.add(&(input.bytes.len() as u64).to_le_bytes());
            sum.add(&input.bytes);
        }
        for map in &self.maps {
            // The fields of a map by name and value.
            sum.add(format!("{map:?}").as_bytes());
        }
        sum.add(&self.output);
        sum.0
    }

    /// The input values that thread `thread` gets, where inputs are one or more
    /// values per thread; others are left out.
    #[must_use]
    pub fn inputs_of(&self, thread: usize) -> Vec<u64> {
        let threads = self.threads();
        if thread >= threads {
            return Vec::new();
        }
        let of = |input: &Input| -> Option<u64> {
            if input.bytes.len() != threads * input.width || input.width > 8 {
                return None;
            }
            let value = input.bytes.get(thread * input.width..)?.get(..input.width)?;
            let mut wide = [0; 8];
            wide[..value.len()].copy_from_slice(value);
            Some(u64::from_le_bytes(wide))
        };
        self.inputs.iter().filter_map(of).collect()
    }
}

/// Alignment of a tensor map among the parameters.
const MAP_ALIGN: usize = 64;

/// FNV-1a, 64 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checksum(pub(super) u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Returns the hash of one slice.
    pub(super) fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.0
    }
}

/// All probes of a family.
#[must_use]
pub fn probes(family: Family) -> Vec<Probe> {
    families::probes(family)
}
