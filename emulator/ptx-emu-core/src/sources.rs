//! Lines of source that the instructions come from: `.file` and `.loc` (PTX ISA 11.5).

use crate::syntax::ast::Location;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A line of the source that a module was compiled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    /// File, as the module names it.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The sources of the lines of a module's text.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: HashMap<u32, Arc<str>>,
    /// Line of the text from which on the instructions are of a file and line; file and line 0
    /// where a function begins.
    places: Vec<(u32, u32, u32)>,
}

impl Sources {
    pub(crate) fn new(files: &[(u32, String)]) -> Self {
        let files = files.iter().map(|(index, name)| (*index, name.as_str().into()));
        Self { files: files.collect(), places: Vec::new() }
    }

    /// A `.loc`, in the order of the text.
    pub(crate) fn at(&mut self, location: &Location) {
        self.places.push((location.pos.line, location.file, location.line));
    }

    /// A function begins at a line of the text.
    pub(crate) fn function(&mut self, line: u32) {
        self.places.push((line, 0, 0));
    }

    /// All of the text was looked at: functions may be decoded in another order.
    pub(crate) fn finish(&mut self) {
        self.places.sort_by_key(|(line, ..)| *line);
    }

    /// Source of a line of the text.
    pub(crate) fn of(&self, line: u32) -> Option<SourceLine> {
        let behind = self.places.partition_point(|(from, ..)| *from <= line);
        let (_, file, line) = *self.places.get(behind.checked_sub(1)?)?;
        let file = self.files.get(&file).filter(|_| line != 0)?;
        Some(SourceLine { file: file.clone(), line })
    }
}
