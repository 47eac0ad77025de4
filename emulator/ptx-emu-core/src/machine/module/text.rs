//! The text of a module, for messages.

use std::sync::{Arc, OnceLock};

/// The text, and where its lines begin once that is asked for.
#[derive(Debug)]
pub(crate) struct Text {
    text: Arc<str>,
    starts: OnceLock<Vec<usize>>,
}

impl Text {
    pub(crate) fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), starts: OnceLock::new() }
    }

    /// A line, from 1, trimmed; empty if there is none.
    pub(crate) fn line(&self, line: u32) -> &str {
        let starts = self.starts.get_or_init(|| {
            let bytes = self.text.bytes().enumerate();
            let ends = bytes.filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
            std::iter::once(0).chain(ends).collect()
        });
        let start = (line as usize).checked_sub(1).and_then(|at| starts.get(at));
        let rest = start.and_then(|&start| self.text.get(start..)).unwrap_or_default();
        rest.lines().next().unwrap_or_default().trim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        let text = Text::new("a\n  b \r\n\nd");
        assert_eq!([0, 1, 2, 3, 4, 5].map(|line| text.line(line)), ["", "a", "b", "", "d", ""]);
    }
}
