//! Placement of a batch's matrices in a buffer, with poison around them.

use fp4_formats::FloatType;
use nvfp4::gemm::ResidualValues;
use nvfp4_lab::rng::SplitMix64;

/// The byte between matrices, and behind the last: NaN in every float type and every scale type.
pub const POISON: u8 = 0xff;
/// Bytes of poison behind the last matrix.
pub const GUARD: usize = 48;

/// The placement of an operand's matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Placement {
    /// Matrices one after the other; no stride is given.
    Dense,
    /// Matrices with so many elements, or bytes of scales, of padding between them.
    Padded(usize),
    /// One matrix for all entries.
    Shared,
}

/// The residual of a case: its type, and its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResidualAt {
    /// The type of its elements.
    pub float_type: FloatType,
    /// The placement of its own matrices; `None` if they are in the result's place, of the same type.
    pub place: Option<Placement>,
}

impl ResidualAt {
    /// Makes a residual whose matrices follow each other in a buffer of their own.
    #[must_use]
    pub fn dense(float_type: FloatType) -> Self {
        Self { float_type, place: Some(Placement::Dense) }
    }

    /// Makes a residual in the place of a result of this type.
    #[must_use]
    pub fn in_place(float_type: FloatType) -> Self {
        Self { float_type, place: None }
    }

    /// Makes values for `batch` matrices of `elements` results: small integers if sums are `exact`. A
    /// shared matrix is repeated.
    pub(super) fn values(
        self,
        [batch, elements]: [usize; 2],
        exact: bool,
        rng: &mut SplitMix64,
    ) -> ResidualValues {
        let value = |rng: &mut SplitMix64| match exact {
            true => rng.below(17) as f32 - 8.0,
            // From far below to far above the results' magnitudes.
            false => rng.normal() as f32 * (rng.below(24) as f32 - 12.0).exp2(),
        };
        let shared = self.place == Some(Placement::Shared);
        let [own, copies] = if shared { [1, batch] } else { [batch, 1] };
        let values: Vec<f32> = (0..own * elements).map(|_| value(rng)).collect();
        ResidualValues::round(self.float_type, &values.repeat(copies))
    }
}

/// One buffer of an operand: elements or codes, or scales.
#[derive(Debug, Clone, Copy)]
pub struct OperandBuffer {
    /// The placement of its matrices.
    pub placement: Placement,
    /// The number of matrices.
    pub batch: usize,
    /// Bytes of a matrix; 0 if the operand has no such buffer.
    pub size: usize,
    /// The unit of strides in bits.
    pub bits: usize,
}

impl OperandBuffer {
    /// Returns the bytes between two matrices.
    fn padding(&self) -> usize {
        match self.placement {
            Placement::Padded(units) => units * self.bits / 8,
            Placement::Dense | Placement::Shared => 0,
        }
    }

    /// Returns the stride as it is given.
    #[must_use]
    pub fn stride(&self) -> Option<usize> {
        match self.placement {
            Placement::Dense => None,
            Placement::Padded(_) => Some((self.size + self.padding()) * 8 / self.bits),
            Placement::Shared => Some(0),
        }
    }

    /// Returns a buffer with `matrices`, which follow each other here. If a stride is given, a
    /// guard is behind them.
    #[must_use]
    pub fn spread(&self, matrices: &[u8]) -> Vec<u8> {
        let guard = match self.placement {
            _ if self.size == 0 => return vec![POISON],
            Placement::Dense => return matrices.to_vec(),
            Placement::Shared => return [&matrices[..self.size], &[POISON; GUARD]].concat(),
            Placement::Padded(_) => [POISON; GUARD],
        };
        let padding = vec![POISON; self.padding()];
        let matrices: Vec<&[u8]> = matrices.chunks_exact(self.size).collect();
        [matrices.join(&padding[..]), guard.to_vec()].concat()
    }

    /// Returns the contents of a buffer before a result is written to it.
    #[must_use]
    pub fn poisoned(&self) -> Vec<u8> {
        self.spread(&vec![POISON; self.size * self.batch])
    }

    /// Returns the matrices in a buffer, one after the other.
    ///
    /// # Errors
    /// The first byte that was written anywhere else.
    pub fn gather(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        if self.size == 0 {
            return Ok(Vec::new());
        }
        let stride = self.size + self.padding();
        let inside = |at: usize| at / stride < self.batch && at % stride < self.size;
        if let Some(at) = (0..bytes.len()).find(|&at| !inside(at) && bytes[at] != POISON) {
            let (size, byte) = (self.size, bytes[at]);
            return Err(format!(
                "byte {at} is {byte:#x}; matrices have {size} bytes, {stride} apart"
            ));
        }
        let matrices = bytes.chunks(stride).take(self.batch);
        Ok(matrices.flat_map(|matrix| &matrix[..self.size]).copied().collect())
    }
}
