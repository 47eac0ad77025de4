//! Facts about a function while it is decoded.

use super::scope::Scopes;
use crate::load_error::{LoadError, Unsupported};

/// Inputs of decoding a function besides the module.
pub(crate) struct FunctionBuilder {
    pub(crate) scopes: Scopes,
    pub(crate) is_entry: bool,
    pub(crate) calls: Vec<usize>,
    pub(crate) calls_any: bool,
    pub(crate) shared: Vec<usize>,
    pub(crate) global_sync: bool,
    pub(crate) takes_over: bool,
    /// Row of the carry flag, once something used it.
    pub(crate) carry: Option<u32>,
    /// Instructions that are not modelled.
    pub(crate) unsupported: Vec<Unsupported>,
    /// First error other than something unsupported.
    pub(crate) error: Option<LoadError>,
}

impl FunctionBuilder {
    pub(crate) fn new(scopes: Scopes, is_entry: bool) -> Self {
        Self {
            scopes,
            is_entry,
            calls: Vec::new(),
            calls_any: false,
            shared: Vec::new(),
            global_sync: false,
            takes_over: false,
            carry: None,
            unsupported: Vec::new(),
            error: None,
        }
    }
}
