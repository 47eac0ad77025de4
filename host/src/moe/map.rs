//! The experts of a device as a table.

use super::MoeShape;
use crate::error::{Error, Result};

/// The number on a device of each expert of all, or -1 for experts that are elsewhere: `expert_map` of vLLM.
///
/// ```
/// use nvfp4::moe::ExpertMap;
///
/// # fn main() -> nvfp4::Result<()> {
/// // Experts 1 and 4 of five.
/// let map = ExpertMap::new(vec![-1, 0, -1, -1, 1])?;
/// assert_eq!(map, ExpertMap::of(5, &[1, 4])?);
/// assert_eq!((map.len(), map.count()), (5, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertMap {
    entries: Vec<i32>,
    count: usize,
}

impl ExpertMap {
    /// A map with these entries. Several experts may have the same number.
    ///
    /// # Errors
    /// [`Error::Shape`] for an entry below -1, and for a map without a number.
    pub fn new(entries: Vec<i32>) -> Result<Self> {
        if let Some(at) = entries.iter().position(|entry| *entry < -1) {
            let field = format!("entry {at} of a map of experts");
            return Err(Error::shape(field, "-1 or an expert's number", entries[at]));
        }
        let most = entries.iter().copied().max().unwrap_or(-1);
        let count = usize::try_from(most + 1).unwrap_or(0);
        if count == 0 {
            return Err(Error::shape("experts in a map", "at least 1", 0));
        }
        Ok(Self { entries, count })
    }

    /// The map of a device that has these of `all` experts, in this order.
    ///
    /// # Errors
    /// [`Error::Shape`] for an expert that is not below `all` or is there twice, and for none.
    pub fn of(all: usize, experts: &[usize]) -> Result<Self> {
        let mut entries = vec![-1; all];
        for (number, &expert) in (0..).zip(experts) {
            match entries.get_mut(expert) {
                Some(entry @ -1) => *entry = number,
                _ => {
                    let required = format!("below {all} and there once");
                    return Err(Error::shape("expert of a device", required, expert));
                }
            }
        }
        Self::new(entries)
    }

    /// Returns the number of experts of all devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no entries, which no map is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the experts that the device needs: one more than the largest number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of each expert on the device, or -1.
    #[must_use]
    pub fn entries(&self) -> &[i32] {
        &self.entries
    }

    /// Checks that a map is for a layer.
    pub(crate) fn check(&self, shape: MoeShape) -> Result<()> {
        let MoeShape { tokens: _, top_k: _, experts, first, count } = shape;
        if self.len() != experts {
            return Err(Error::shape(
                "entries of a map of experts",
                experts.to_string(),
                self.len(),
            ));
        }
        if self.count > count {
            let required = format!("at most {count}");
            return Err(Error::shape("experts in a map", required, self.count));
        }
        if first != 0 {
            return Err(Error::shape("first expert beside a map", "0", first));
        }
        Ok(())
    }

    /// The entries as the device has them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }
}
