//! Fields of `config.json`, whose errors name the field, its value and what is supported.

use std::cell::RefCell;
use std::collections::BTreeSet;

use candle_core::{Error, Result};
use serde_json::{Map, Value};

use crate::error::shape;

/// An object of the configuration, which remembers what has been read.
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// The object's own name, if it is a field itself.
    path: &'static str,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Fields<'a> {
    pub fn new(value: &'a Value) -> Result<Self> {
        Self::within(value, "")
    }

    /// The fields of an object that is the field `path`.
    pub fn within(value: &'a Value, path: &'static str) -> Result<Self> {
        let what = if path.is_empty() { "config.json" } else { path };
        let object = value.as_object();
        let object = object.ok_or_else(|| shape(what, "an object", value.to_string()))?;
        Ok(Self { object, path, read: RefCell::default() })
    }

    /// A field; null if it is absent.
    pub fn value(&self, name: &str) -> &'a Value {
        self.read.borrow_mut().insert(name.to_owned());
        self.object.get(name).unwrap_or(&Value::Null)
    }

    /// The error for a field's value.
    pub fn wrong(&self, name: &str, required: impl Into<String>) -> Error {
        let dot = if self.path.is_empty() { "" } else { "." };
        let field = format!("`{}{dot}{name}` of config.json", self.path);
        let actual = match self.object.get(name) {
            Some(value) => value.to_string(),
            None => "absent".to_owned(),
        };
        crate::error::wrap(nvfp4::Error::Shape { field, required: required.into(), actual })
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        match self.value(name) {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text)),
            _ => Err(self.wrong(name, "a text")),
        }
    }

    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.value(name) {
            Value::Null => Ok(default),
            Value::Bool(value) => Ok(*value),
            _ => Err(self.wrong(name, "true or false")),
        }
    }

    pub fn optional_size(&self, name: &str) -> Result<Option<usize>> {
        const LARGEST: u64 = 1 << 32;
        match self.value(name) {
            Value::Null => Ok(None),
            value => match value.as_u64().filter(|size| (1..=LARGEST).contains(size)) {
                Some(size) => Ok(Some(size as usize)),
                None => Err(self.wrong(name, format!("an integer from 1 to {LARGEST}"))),
            },
        }
    }

    pub fn size(&self, name: &str) -> Result<usize> {
        self.optional_size(name)?.ok_or_else(|| self.wrong(name, "an integer from 1 on"))
    }

    /// A number of things, which may be none.
    pub fn count(&self, name: &str) -> Result<usize> {
        match self.value(name).as_u64() {
            Some(0) => Ok(0),
            Some(_) => self.size(name),
            None => Err(self.wrong(name, "an integer from 0 on")),
        }
    }

    pub fn optional_number(&self, name: &str) -> Result<Option<f64>> {
        match self.value(name) {
            Value::Null => Ok(None),
            value => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(name, "a number")),
            },
        }
    }

    pub fn number(&self, name: &str) -> Result<f64> {
        self.optional_number(name)?.ok_or_else(|| self.wrong(name, "a number"))
    }

    /// A token's number, or a list of them.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match self.value(name) {
            Value::Null => Some(Vec::new()),
            Value::Array(ids) => ids.iter().map(id).collect(),
            value => id(value).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.wrong(name, "a token's number or a list of them"))
    }

    /// Fields that were not read and are not among `known`; nulls aside.
    pub fn unread(&self, known: &[&str]) -> Vec<String> {
        let read = self.read.borrow();
        let is_unread = |(name, value): &(&String, &Value)| {
            !(value.is_null() || read.contains(*name) || known.contains(&name.as_str()))
        };
        self.object.iter().filter(is_unread).map(|(name, _)| name.clone()).collect()
    }
}
