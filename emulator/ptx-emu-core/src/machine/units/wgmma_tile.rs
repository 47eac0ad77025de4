//! Operand tiles of `wgmma` and `tcgen05` in shared memory: their bytes, and how an operation
//! reads them.

use super::engine::StepContext;
use super::flight::{GRANULE, Home, Range};
use crate::diagnostic::{AsyncFault, DiagnosticKind, Exec, Fault, TensorFault};
use crate::machine::{Context, SHARED_BASE};
use crate::tensor::TensorError;
use crate::tensor::shared::{GatherError, Operand, SharedDescriptor};
use crate::tensor::tile::{Packing, Tile};

/// Bits of the addresses that a descriptor can hold.
const ADDRESS_BITS: u32 = 18;
/// 64-bit words of a bitmap over the granules of shared memory.
const WORDS: usize = (1 << ADDRESS_BITS) / GRANULE as usize / 64;

/// A fault of a tensor operation.
#[cold]
pub(crate) fn fault(fault: TensorFault) -> Box<Fault> {
    Fault::warp(DiagnosticKind::Async(AsyncFault::Tensor(fault)))
}

/// A descriptor that the instruction does not have.
#[cold]
pub(crate) fn invalid(operand: &'static str, error: TensorError) -> Box<Fault> {
    fault(TensorFault::Descriptor { operand, error })
}

/// A set of granules of a CTA's shared memory.
#[derive(Debug)]
pub(crate) struct Granules {
    words: Box<[u64; WORDS]>,
}

impl Granules {
    pub(crate) fn new() -> Self {
        Self { words: Box::new([0; WORDS]) }
    }

    /// Adds the granule at an address.
    #[inline]
    pub(crate) fn add(&mut self, address: u32) {
        let granule = (address / GRANULE as u32) as usize;
        if let Some(word) = self.words.get_mut(granule / 64) {
            *word |= 1 << (granule % 64);
        }
    }

    /// Runs of granules as ranges in the CTA of `rank`.
    pub(crate) fn ranges(&self, rank: u32, ranges: &mut Vec<Range>) {
        let mut start: Option<u64> = None;
        let mut close = |start: &mut Option<u64>, end: u64| {
            if let Some(start) = start.take() {
                ranges.push(Range {
                    home: Home::Shared(rank),
                    start: start * GRANULE,
                    bytes: (end - start) * GRANULE,
                });
            }
        };
        for (at, &word) in self.words.iter().enumerate() {
            let first = at as u64 * 64;
            if word == 0 {
                close(&mut start, first);
                continue;
            }
            let mut bit = 0;
            while bit < 64 {
                let rest = word >> bit;
                let run = if rest & 1 != 0 {
                    start.get_or_insert(first + bit);
                    rest.trailing_ones()
                } else {
                    close(&mut start, first + bit);
                    rest.trailing_zeros()
                };
                bit += u64::from(run);
            }
        }
        close(&mut start, WORDS as u64 * 64);
    }
}

/// An operand tile in the shared memory of a CTA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedTile {
    /// The name in diagnostics.
    pub(crate) name: &'static str,
    pub(crate) descriptor: SharedDescriptor,
    pub(crate) operand: Operand,
    pub(crate) rank: u32,
    /// Every element is negated.
    pub(crate) negate: bool,
}

impl SharedTile {
    /// The ranges that it reads, checked against the CTA's shared window.
    pub(crate) fn reads(&self, cx: &Context<'_>, ranges: &mut Vec<Range>) -> Exec {
        let end = cx.shared[self.rank as usize].len();
        if let Err(error) = self.descriptor.check_leading(&self.operand) {
            cx.report(fault(TensorFault::LeadingOffset { operand: self.name, error }))?;
        }
        let mut granules = Granules::new();
        let mut scratch = Vec::new();
        let gathered = self.descriptor.gather(
            &self.operand,
            |address| {
                if address < SHARED_BASE || address as usize + 16 > end {
                    return Err(address);
                }
                granules.add(address);
                Ok([0; 16])
            },
            &mut scratch,
        );
        match gathered {
            Ok(()) => {}
            Err(GatherError::Read(address)) => {
                let (operand, end) = (self.name, end as u32);
                return Err(fault(TensorFault::OutOfBounds { operand, address, end }));
            }
            Err(GatherError::Operand(error)) => return Err(invalid(self.name, error)),
        }
        granules.ranges(self.rank, ranges);
        Ok(())
    }

    /// Takes the tile out of shared memory. Padding need not be initialised.
    pub(crate) fn gather(&self, context: &mut StepContext<'_>) -> Exec<Vec<u8>> {
        let memory = &context.shared[self.rank as usize];
        let used = match self.operand.packing {
            Packing::Padded => 2 * self.operand.element.bits() as usize,
            Packing::Dense => 16,
        };
        let mut out = Vec::new();
        let (mut chunks, mut unwritten) = (0, None);
        let gathered = self.descriptor.gather(
            &self.operand,
            |address| {
                chunks += 1;
                if let Some(first) = memory.first_uninitialised(address as usize, used) {
                    unwritten.get_or_insert(first as u32);
                }
                let [low, high, ..] = memory.load(address as usize, 16);
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&low.to_le_bytes());
                bytes[8..].copy_from_slice(&high.to_le_bytes());
                Ok::<_, std::convert::Infallible>(bytes)
            },
            &mut out,
        );
        if let Err(GatherError::Operand(error)) = gathered {
            return Err(invalid(self.name, error));
        }
        if let Some(address) = unwritten {
            let operand = self.name;
            context.faults.push(fault(TensorFault::UninitialisedTile { operand, address }));
        }
        context.stats.space(crate::diagnostic::Space::Shared).bytes_read += chunks * 16;
        Ok(out)
    }

    /// The tile's elements, of the bytes that [`Self::gather`] took.
    pub(crate) fn tile<'a>(&self, bytes: &'a [u8]) -> Tile<'a> {
        let Operand { element, rows, k, .. } = self.operand;
        let container = self.operand.container();
        Tile { element, container, rows, k, bytes, negate: self.negate }
    }
}
