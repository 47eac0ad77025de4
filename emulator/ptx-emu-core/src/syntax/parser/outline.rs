//! Modules of which only some bodies are read: a text of many kernels is read to its end much
//! faster than all of it is parsed.

use super::super::ast::{Block, Item, Module};
use super::super::error::SyntaxError;
use super::{Lexer, Parser, Place, Result};

/// A module whose functions have empty bodies, until they are asked for.
#[derive(Debug, Clone)]
pub(crate) struct Outline {
    /// The module.
    pub(crate) module: Module,
    /// Beginnings of the items' bodies that were not read.
    bodies: Vec<Option<Place>>,
    numbered_variables: u32,
}

impl Outline {
    /// Reads all of `text` but the bodies.
    ///
    /// # Errors
    /// The first place outside a body that is not PTX.
    pub(crate) fn new(text: &str) -> std::result::Result<Self, SyntaxError> {
        let mut parser = Parser::new(text)?;
        parser.skipped = Some(Vec::new());
        let module = parser.whole()?;
        let mut places = parser.skipped.take().unwrap_or_default().into_iter();
        let bodies = module.items.iter().map(|item| match item {
            Item::Function(function) if function.body.is_some() => places.next().flatten(),
            _ => None,
        });
        let bodies = bodies.collect();
        Ok(Self { module, bodies, numbered_variables: parser.numbered_variables })
    }

    /// Reads the body of item `at`, if it has one and that was not read; `text` is the one that the outline is of.
    ///
    /// # Errors
    /// The first place in it that is not PTX.
    pub(crate) fn read_body(
        &mut self,
        text: &str,
        at: usize,
    ) -> std::result::Result<(), SyntaxError> {
        let (Some(place), Some(Item::Function(function))) =
            (self.bodies.get_mut(at).and_then(Option::take), self.module.items.get_mut(at))
        else {
            return Ok(());
        };
        let mut parser = Parser::with(Lexer::from_place(text, place))?;
        parser.numbered_variables = self.numbered_variables;
        function.body = Some(parser.block()?);
        self.module.files.append(&mut parser.files);
        self.numbered_variables = parser.numbered_variables;
        Ok(())
    }
}

impl Parser<'_> {
    /// Passes a body, from its brace on, and remembers where it is.
    pub(super) fn skip_body(&mut self) -> Result<Block> {
        let (brace, behind) = (self.lexer.place_of(&self.current), self.lexer);
        let end = self.lexer.skip_braces();
        self.skipped.get_or_insert_default().push(end.map(|_| brace));
        let Some(end) = end else {
            // Reading it says what is wrong.
            self.lexer = behind;
            return self.block();
        };
        self.current = self.lexer.next()?;
        Ok(Block { statements: Vec::new(), end })
    }
}
