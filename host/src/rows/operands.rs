//! Operands and results of an operation on rows.

use crate::buffer::DeviceBuffer;

/// The operands: device memory of a launch, or bytes of the [reference](super::reference()). All but the index have the
/// input's type.
#[derive(Debug)]
pub struct Operands<'a, T: ?Sized> {
    /// `[M, K]`, or with an index as many rows as [`Gather`](super::Gather) says. The gate of a gated input.
    pub input: &'a T,
    /// The second factor of a gated input, of the input's shape.
    pub up: Option<&'a T>,
    /// The residual that is added to the input, `[M, K]`.
    pub residual: Option<&'a T>,
    /// The place of the sums, `[M, K]`, if it is not that of the residual.
    pub residual_out: Option<&'a T>,
    /// The weights of a norm, `[K]`.
    pub weight: Option<&'a T>,
    /// The addends behind them, `[K]`.
    pub bias: Option<&'a T>,
    /// The index, u32 `[M]`.
    pub index: Option<&'a T>,
}

impl<T: ?Sized> Clone for Operands<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Operands<'_, T> {}

impl<'a, T: ?Sized> Operands<'a, T> {
    /// One matrix, without a norm.
    #[must_use]
    pub const fn plain(input: &'a T) -> Self {
        Self {
            input,
            up: None,
            residual: None,
            residual_out: None,
            weight: None,
            bias: None,
            index: None,
        }
    }

    /// One matrix with a norm's weights.
    #[must_use]
    pub const fn normed(input: &'a T, weight: &'a T) -> Self {
        Self { weight: Some(weight), ..Self::plain(input) }
    }

    /// Two matrices.
    #[must_use]
    pub const fn gated(gate: &'a T, up: &'a T) -> Self {
        Self { up: Some(up), ..Self::plain(gate) }
    }

    /// The same with a residual, which is updated in its place unless there is another for the sums.
    #[must_use]
    pub const fn residual(self, residual: &'a T) -> Self {
        Self { residual: Some(residual), ..self }
    }

    /// The same with a place for the sums.
    #[must_use]
    pub const fn residual_out(self, residual_out: &'a T) -> Self {
        Self { residual_out: Some(residual_out), ..self }
    }

    /// The same with addends behind a norm's weights.
    #[must_use]
    pub const fn bias(self, bias: &'a T) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// The same with an index.
    #[must_use]
    pub const fn index(self, index: &'a T) -> Self {
        Self { index: Some(index), ..self }
    }
}

/// Results in memory of the caller's, of the sizes that [`Rows`](super::Rows)' own buffers have.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// Codes of a block format, `[M, K/2]` bytes; e4m3, `[M, K]`; or elements of the input's type, `[M, K]`,
    /// which alone may take the place of the input or of the residual, from its beginning on.
    pub elements: &'a DeviceBuffer,
    /// Block scales in the options' layout; none for other results.
    pub scales: Option<&'a DeviceBuffer>,
    /// f32 `[M]`, for e4m3 and for NVFP4 with a scale of each row: the factors of a row's products, which GEMMs take with
    /// the elements ([`ActivationBuffers`](crate::gemm::ActivationBuffers) are made of these outputs). None for other
    /// results.
    pub multipliers: Option<&'a DeviceBuffer>,
}
