//! The required contents of a buffer after the launch.

use super::elements::Element;
use super::{Item, show};
use crate::cli::error::ArgumentError;
use ptx_emu::bundle::Compare;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The required contents of a buffer, and how nearly.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expect {
    /// The right contents.
    pub(crate) contents: Expected,
    /// The comparison with other contents.
    pub(crate) compare: Compare,
}

/// The source of the right contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A file.
    File(PathBuf),
}

impl Item {
    /// Reads `expect`.
    pub(super) fn expect(&self, path: &str, value: &Value) -> Result<Expect, ArgumentError> {
        let object = self.object(path, value)?;
        let tolerances = self.tolerances(path, object)?;
        let inline = Element::ALL.iter().find(|element| object.contains_key(element.name));
        let (contents, element) = match (object.get("file"), inline) {
            (None, Some(element)) => {
                self.only(path, object, &[element.name, "rtol", "atol"])?;
                let field = format!("{path}.{}", element.name);
                let bytes = self.elements(&field, &object[element.name], element)?;
                (Expected::Bytes(bytes), Some(element))
            }
            (Some(file), None) => {
                self.only(path, object, &["file", "dtype", "rtol", "atol"])?;
                let file = self.string(&format!("{path}.file"), file)?;
                (Expected::File(PathBuf::from(file)), self.dtype(path, object)?)
            }
            (Some(_), Some(element)) => {
                let actual = format!("file and {}", element.name);
                return Err(self.error(path, "either elements or file", actual));
            }
            (None, None) => {
                let required = format!("file, or elements of {}", Element::names());
                return Err(self.error(path, required, show(value)));
            }
        };
        let compare = match (element, tolerances) {
            (None, None) => Some(Compare::Exact),
            (None, Some(_)) => None,
            (Some(element), tolerances) => element.compare(tolerances),
        };
        let compare = compare.ok_or_else(|| {
            let actual = element.map_or("bytes", |element| element.name);
            self.error(path, "elements of a float type beside rtol and atol", actual)
        })?;
        Ok(Expect { contents, compare })
    }

    /// The type of the elements in a file, if it is given.
    fn dtype(
        &self,
        path: &str,
        object: &Map<String, Value>,
    ) -> Result<Option<&'static Element>, ArgumentError> {
        let Some(dtype) = object.get("dtype") else { return Ok(None) };
        let found = Element::ALL.iter().find(|element| dtype.as_str() == Some(element.name));
        found.map(Some).ok_or_else(|| {
            self.error(
                &format!("{path}.dtype"),
                format!("one of {}", Element::names()),
                show(dtype),
            )
        })
    }

    /// `rtol` and `atol`, if one of them is there.
    fn tolerances(
        &self,
        path: &str,
        object: &Map<String, Value>,
    ) -> Result<Option<[f64; 2]>, ArgumentError> {
        let one = |key: &str| -> Result<Option<f64>, ArgumentError> {
            let Some(value) = object.get(key) else { return Ok(None) };
            let number = value.as_f64().filter(|number| *number >= 0.0);
            number.map(Some).ok_or_else(|| {
                self.error(&format!("{path}.{key}"), "a number of at least 0", show(value))
            })
        };
        let tolerances = [one("rtol")?, one("atol")?];
        let given = tolerances.iter().any(Option::is_some);
        Ok(given.then(|| tolerances.map(Option::unwrap_or_default)))
    }
}
