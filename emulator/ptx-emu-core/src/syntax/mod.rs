//! PTX text to syntax tree.
//!
//! The parser accepts the whole PTX grammar and does not know the semantics of
//! instructions: modifiers are strings in source order. The decoder interprets them, so that an
//! unknown instruction is reported there, together with all others, and never as a syntax
//! error.
//!
//! Text that either NVIDIA's assembler or PTX ISA 4 accepts is accepted (`[%rd-4]` for example),
//! and constant expressions have the values that the assembler gives them.
//!
//! Parsing takes time linear in the text and recurses at most [`MAX_DEPTH`]
//! levels.

pub mod ast;
mod error;
mod lexer;
mod parser;
mod types;

pub use error::{SyntaxError, SyntaxErrorKind};
pub(crate) use parser::Outline;
pub(crate) use types::Type;

/// Deepest nesting of scopes, lists, parentheses and unary operators; text that
/// goes deeper is a [`SyntaxErrorKind::TooDeep`].
pub const MAX_DEPTH: u32 = 128;

/// Parses a whole PTX module.
///
/// # Errors
///
/// The first place where the text is not PTX. [`SyntaxError::render`] shows it
/// in its line.
pub fn parse(text: &str) -> Result<ast::Module, SyntaxError> {
    parser::Parser::new(text)?.whole()
}

/// The `.target` list at the head of a module, of which nothing else is read.
///
/// # Errors
///
/// A text that does not begin as a module.
pub fn targets(text: &str) -> Result<Vec<String>, SyntaxError> {
    parser::Parser::new(text)?.targets()
}
