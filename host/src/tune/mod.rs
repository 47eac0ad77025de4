//! Measured choices of GEMM kernels: which of a plan's candidates was the fastest on a device.
//!
//! A [`Table`] belongs to one device with its driver and its kernels ([`DeviceKey`]) and says for
//! each [`TuneProblem`] which kernel was the fastest, with which split of K, and how long it
//! took. `bench::tune` of the crate `nvfp4-lab` measures, on a GPU only; `nvfp4 bench --tune` writes
//! the result to a file.
//!
//! Opening kernels ([`Device::kernels`](crate::device::Device::kernels)) reads the device's table
//! once: the file that `NVFP4_TUNE` names, or else `nvfp4/tune-<device>.json` in the user's cache
//! folder (`$XDG_CACHE_HOME`, `~/.cache`); `NVFP4_TUNE=off` uses none.
//! [`Kernels::with_tuning`](crate::device::Kernels::with_tuning) takes another. A table that cannot be used -
//! unreadable, damaged, of another version, device, driver or set of kernels - is ignored, and
//! every plan says why. [`gemm::plan_for`](crate::gemm::plan_for) says how a problem is looked
//! up. Files are never read later, and launches know nothing of tables.
//!
//! The file is JSON, with an entry per line:
//!
//! ```json
//! {
//!   "version": 4,
//!   "device": {
//!     "name": "NVIDIA H200",
//!     "compute_capability": "9.0",
//!     "sms": 132,
//!     "driver": "13.0 (580.65.06)",
//!     "kernels": "85944171f73967e8"
//!   },
//!   "entries": [
//!     {"format":"nvfp4","activations":"fp4","scales":"linear","output":"f16","n":7168,"k":2048,"l":1,"m":128,"kernel":"gemm_sm90_nvfp4_f16_128x64","split":"cluster:2","median_ns":15300}
//!   ]
//! }
//! ```
//!
//! Entries of grouped products have `groups`, their number, and then `m` is the most tokens of all; with
//! `slots`, the most of each group. A mixture of experts is two grouped products.
//!
//! | file | topic |
//! | --- | --- |
//! | `key` | [`DeviceKey`], [`TuneProblem`], [`TuneGroups`], [`ResultKind`]: what a measurement belongs to |
//! | `table` | [`Table`], [`Measured`]: entries, text, merging |
//! | `file` | [`Location`], [`read`], [`open`], [`add`], [`write`](write()): places and files |

mod file;
mod key;
mod table;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use crate::error::TuneError;
pub use crate::error::tune::{VARIABLE, VERSION};
pub use file::{Location, MAX_BYTES, add, open, read, write};
pub use key::{DeviceKey, ResultKind, TuneGroups, TuneProblem};
pub use table::{Measured, Table};

/// Most plans that opened kernels remember; the oldest is discarded first.
pub const MAX_PLANS: usize = 256;

/// The table that plans are made with, or why there is none. Clones share it.
#[derive(Clone, Debug)]
pub struct Tuning(State);

#[derive(Clone, Debug)]
enum State {
    /// Nothing to look up in, and nothing wrong with that.
    Without { why: String },
    /// A table is there and cannot be used.
    Ignored { why: String },
    /// `origin` is what reasons call it.
    Table { table: Arc<Table>, origin: String },
}

impl Tuning {
    /// No table: the comparator's model decides.
    #[must_use]
    pub fn off() -> Self {
        Self(State::Without { why: "no tuning table: switched off".into() })
    }

    /// This table.
    #[must_use]
    pub fn new(table: Table) -> Self {
        Self::from_table(table, "the tuning table given".into())
    }

    fn from_table(table: Table, origin: String) -> Self {
        Self(State::Table { table: Arc::new(table), origin })
    }

    /// The table in a file.
    ///
    /// # Errors
    /// The same as [`read`]; [`TuneError::Read`] also where there is no such file.
    pub fn from_file(path: &Path) -> Result<Self, TuneError> {
        match read(path)? {
            Some(table) => Ok(Self::from_table(table, origin(path))),
            None => Err(TuneError::Read {
                path: path.into(),
                source: std::io::ErrorKind::NotFound.into(),
            }),
        }
    }

    /// The table at `location`, if it can be used; otherwise none, with the reason.
    #[must_use]
    pub fn at(location: &Location) -> Self {
        let without = |why: String| Self(State::Without { why });
        match location {
            Location::Off => without(format!("no tuning table: {VARIABLE} is off")),
            Location::NoFolder => without("no tuning table: no folder for caches".into()),
            Location::Named(path) => Self::from_file(path).unwrap_or_else(|error| {
                Self(State::Ignored { why: format!("the tuning table is ignored: {error}") })
            }),
            Location::Default(path) => match read(path) {
                Ok(Some(table)) => Self::from_table(table, origin(path)),
                Ok(None) => without(format!("no tuning table: no {}", path.display())),
                Err(error) => {
                    Self(State::Ignored { why: format!("the tuning table is ignored: {error}") })
                }
            },
        }
    }

    /// The same where the table was measured on `device`; otherwise none, with the reason.
    #[must_use]
    pub(crate) fn on(self, device: &DeviceKey) -> Self {
        match &self.0 {
            State::Table { table, origin } => match table.check_device(device, origin) {
                Ok(()) => self,
                Err(error) => {
                    Self(State::Ignored { why: format!("the tuning table is ignored: {error}") })
                }
            },
            State::Without { .. } | State::Ignored { .. } => self,
        }
    }

    /// The table in use.
    #[must_use]
    pub fn table(&self) -> Option<&Table> {
        match &self.0 {
            State::Table { table, .. } => Some(table),
            State::Without { .. } | State::Ignored { .. } => None,
        }
    }

    /// Returns the reason why an existing table is not used.
    #[must_use]
    pub fn ignored(&self) -> Option<&str> {
        match &self.0 {
            State::Ignored { why } => Some(why),
            State::Without { .. } | State::Table { .. } => None,
        }
    }

    /// Returns the name of the table in reasons.
    pub(crate) fn origin(&self) -> &str {
        match &self.0 {
            State::Table { origin, .. } => origin,
            State::Without { .. } | State::Ignored { .. } => "no tuning table",
        }
    }
}

/// Returns the name of a file's table in reasons.
fn origin(path: &Path) -> String {
    format!("the tuning table {}", path.display())
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::Without { why } | State::Ignored { why } => f.write_str(why),
            State::Table { table, origin } => write!(f, "{origin}, {} problems", table.len()),
        }
    }
}
