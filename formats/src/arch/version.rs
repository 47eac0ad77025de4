//! Versions of PTX, and the CUDA release whose driver loads each first.

use core::fmt;

/// A version of CUDA, as a driver says which it supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CudaVersion {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor } = self;
        write!(f, "{major}.{minor}")
    }
}

/// A version of PTX, which decides how old a driver may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PtxVersion {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// The oldest driver that loads such PTX.
    driver: CudaVersion,
}

const fn release(major: u32, minor: u32, driver: (u32, u32)) -> PtxVersion {
    let driver = CudaVersion { major: driver.0, minor: driver.1 };
    PtxVersion { major, minor, driver }
}

impl PtxVersion {
    /// The versions since Ampere, which 7.0 introduced (PTX ISA, release history).
    pub const ALL: [Self; 19] = [
        release(7, 0, (11, 0)),
        release(7, 1, (11, 1)),
        release(7, 2, (11, 2)),
        release(7, 3, (11, 3)),
        release(7, 4, (11, 4)),
        release(7, 5, (11, 5)),
        release(7, 6, (11, 6)),
        release(7, 7, (11, 7)),
        release(7, 8, (11, 8)),
        release(8, 0, (12, 0)),
        release(8, 1, (12, 1)),
        release(8, 2, (12, 2)),
        release(8, 3, (12, 3)),
        release(8, 4, (12, 4)),
        // CUDA 12.6 has PTX 8.5 as well.
        release(8, 5, (12, 5)),
        release(8, 6, (12, 7)),
        release(8, 7, (12, 8)),
        release(8, 8, (12, 9)),
        release(9, 0, (13, 0)),
    ];

    /// The version with these numbers.
    ///
    /// # Panics
    /// For none of [`ALL`](Self::ALL); constants are computed with it, so that the compiler reports it.
    pub(super) const fn of(major: u32, minor: u32) -> Self {
        let mut index = 0;
        while index < Self::ALL.len() {
            let version = Self::ALL[index];
            if version.major == major && version.minor == minor {
                return version;
            }
            index += 1;
        }
        panic!("no known version of PTX")
    }

    /// The version that a text names, such as `7.4`; `None` for none of [`ALL`](Self::ALL).
    #[must_use]
    pub fn from_name(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        let numbers = (major.parse().ok()?, minor.parse().ok()?);
        Self::ALL.into_iter().find(|version| (version.major, version.minor) == numbers)
    }

    /// The oldest driver that loads such PTX, by the CUDA version that it supports.
    #[must_use]
    pub const fn driver(self) -> CudaVersion {
        self.driver
    }
}

impl fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, driver: _ } = self;
        write!(f, "{major}.{minor}")
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::string::ToString;

    #[test]
    fn later_versions_need_later_drivers() {
        for [before, after] in PtxVersion::ALL.array_windows() {
            assert!(before < after && before.driver() < after.driver(), "{before} {after}");
            assert_eq!(PtxVersion::of(after.major, after.minor), *after);
        }
        let driver = |major, minor| PtxVersion::of(major, minor).driver().to_string();
        assert_eq!([driver(7, 4), driver(8, 6), driver(9, 0)], ["11.4", "12.7", "13.0"]);
        for version in PtxVersion::ALL {
            assert_eq!(PtxVersion::from_name(&version.to_string()), Some(version));
        }
        assert_eq!(["", "9", "6.5", "9.x"].map(PtxVersion::from_name), [None; 4]);
    }
}
