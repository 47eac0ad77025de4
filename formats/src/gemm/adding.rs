//! The ways in which products of e4m3 are added.

/// The way in which products of e4m3 are added on tensor cores that keep fewer bits of sums than f32 has, those of
/// sm_90a. Others, and products of 16-bit operands, always add in f32.
///
/// `wgmma` aligns 32 products and the old sum to the largest of them, and drops all bits below 2^-13 of it. An
/// instruction so loses less than 33 * 2^-13 of the largest magnitude among its products and sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Adding {
    /// Sums of at most 512 columns are added in f32: only what is dropped of 16 instructions adds up before. The
    /// error is below 2^-9 of the sum of the products' magnitudes in all that was measured.
    #[default]
    Promoted,
    /// The tensor core may add all columns that a CTA multiplies, as in `torch._scaled_mm` and cuBLAS unless they are
    /// asked not to. The dropped bits of K / 32 instructions add up. With products of both signs the error was below 2^-9
    /// of the sum of magnitudes for each 512 columns, against which results are verified. Products of one sign vanish
    /// beside a sum that is 2^13 times as large, so that sums of more columns lose more.
    Fast,
}

impl Adding {
    /// Every way.
    pub const ALL: [Self; 2] = [Self::Promoted, Self::Fast];

    /// The name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Promoted => "promoted",
            Self::Fast => "fast",
        }
    }

    /// Returns whether a kernel that adds in the way `of` may do where this one is asked for: sums that are promoted
    /// are right for everybody.
    #[must_use]
    pub const fn allows(self, of: Self) -> bool {
        match (self, of) {
            (_, Self::Promoted) | (Self::Fast, Self::Fast) => true,
            (Self::Promoted, Self::Fast) => false,
        }
    }

    /// The way that a row of a table names, [`Promoted`](Self::Promoted) where it names none.
    pub(super) const fn of(named: &[Self]) -> Self {
        match named {
            [] => Self::Promoted,
            [only] => *only,
            _ => panic!("a kernel adds in one way"),
        }
    }
}
