//! PTX text to syntax tree.
//!
//! The parser accepts the whole PTX grammar and knows nothing of what an
//! instruction means: modifiers stay strings, in source order. Meaning is given
//! by the decoder, so that an unknown instruction is reported there, with all
//! the others, and never as a syntax error.

pub mod ast;
