//! Syntax errors.

use super::ast::Pos;

/// The first place where a text stops being PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pos}: {kind}")]
pub struct SyntaxError {
    /// Its position.
    pub pos: Pos,
    /// The kind of the error.
    pub kind: SyntaxErrorKind,
}

/// Kinds of syntax error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyntaxErrorKind {
    /// Another token was needed.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// The text that would have been accepted.
        expected: String,
        /// The text that stands there.
        found: String,
    },
    /// A directive that the PTX ISA does not have at this place.
    #[error("unknown directive `.{name}` {place}")]
    UnknownDirective {
        /// Name without its dot.
        name: String,
        /// The place where it was met, e.g. "in a function body".
        place: &'static str,
    },
    /// A character outside PTX's alphabet.
    #[error("unexpected character {found:?}")]
    BadCharacter {
        /// The character.
        found: char,
    },
    /// A preprocessor directive other than a line marker.
    #[error("preprocessor directive: run the C preprocessor first")]
    Preprocessor,
    /// A comment or string that the text ends in.
    #[error("unterminated {what}")]
    Unterminated {
        /// "comment" or "string".
        what: &'static str,
    },
    /// A malformed number.
    #[error("bad number `{found}`: {why}")]
    BadNumber {
        /// Its text.
        found: String,
        /// The fault.
        why: &'static str,
    },
    /// A constant outside the range of the place where it stands.
    #[error("{what} must be {required}, found {actual}")]
    OutOfRange {
        /// The constant.
        what: &'static str,
        /// Allowed values.
        required: &'static str,
        /// Its value.
        actual: i128,
    },
    /// Operands of a constant expression that its operator does not take
    /// (PTX ISA 4.5.5): integers and floats do not mix.
    #[error("constant expression: `{operator}` takes {required}, found {actual}")]
    ConstantType {
        /// Operator, or the place that needs an integer.
        operator: &'static str,
        /// The required value.
        required: &'static str,
        /// The actual value.
        actual: &'static str,
    },
    /// Division by zero in a constant expression.
    #[error("division by zero in a constant expression")]
    DivisionByZero,
    /// Nesting beyond [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
}

impl SyntaxError {
    /// The message with the offending line of `text`, the text that was parsed,
    /// and a caret under the column. Long lines are cut around the caret.
    ///
    /// ```
    /// let text = ".version 9.0\n.target sm_90a\n.visible entry k() {}\n";
    /// let error = ptx_emu_core::syntax::parse(text).unwrap_err();
    /// assert_eq!(
    ///     error.render(text),
    ///     "3:10: expected a directive, found `entry`\n  \
    ///        |\n\
    ///      3 | .visible entry k() {}\n  \
    ///        |          ^\n"
    /// );
    /// ```
    pub fn render(&self, text: &str) -> String {
        const BEFORE: usize = 60;
        const AFTER: usize = 40;
        let line = (self.pos.line as usize)
            .checked_sub(1)
            .and_then(|index| text.lines().nth(index))
            .unwrap_or("");
        let column = (self.pos.column as usize).saturating_sub(1);
        let characters_before = line.char_indices().take_while(|&(at, _)| at < column).count();
        let skipped = characters_before.saturating_sub(BEFORE);
        let shown: String =
            line.chars().skip(skipped).take(characters_before - skipped + AFTER).collect();
        // Tabs stay tabs so that the caret lands in the same screen column.
        let padding: String = line
            .chars()
            .chain(std::iter::repeat(' '))
            .skip(skipped)
            .take(characters_before - skipped)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let number = self.pos.line.to_string();
        let margin = " ".repeat(number.len());
        format!("{self}\n{margin} |\n{number} | {shown}\n{margin} | {padding}^\n")
    }
}
