//! Module scope (PTX ISA 11.1, 11.6).

use super::super::ast::{Item, Linkage, Module};
use super::super::error::SyntaxErrorKind;
use super::declaration::{linkage, space};
use super::{Parser, Result, Token, fail_at};

impl Parser<'_> {
    /// The `.target` list at the head of the text.
    pub(crate) fn targets(mut self) -> Result<Vec<String>> {
        self.version()?;
        self.target()
    }

    /// The whole text.
    pub(crate) fn whole(&mut self) -> Result<Module> {
        let mut module = Module {
            version: self.version()?,
            targets: self.target()?,
            address_size: 64,
            items: Vec::new(),
            directives: Vec::new(),
            files: Vec::new(),
        };
        loop {
            match self.token() {
                Token::End => {
                    module.files.append(&mut self.files);
                    return Ok(module);
                }
                Token::Dot("address_size") => module.address_size = self.address_size()?,
                // A later `.target` adds features (PTX ISA 11.1.2).
                Token::Dot("target") => module.targets.extend(self.target()?),
                Token::Dot("pragma") => module.directives.push(self.pragma()?),
                Token::Dot(word @ ("file" | "loc" | "section")) => {
                    self.debug_directive(word)?;
                }
                Token::Dot("alias") => module.items.push(self.alias()?),
                Token::Dot(_) => self.item(&mut module.items)?,
                _ => return self.unexpected("a directive"),
            }
        }
    }

    fn version(&mut self) -> Result<(u32, u32)> {
        if self.token() != Token::Dot("version") {
            return self.unexpected("`.version`");
        }
        self.bump()?;
        let text = self.lexer.slice(self.current.start, self.current.end);
        let numbers = text
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let Some(version) = numbers else {
            return self.unexpected("a version such as `9.0`");
        };
        self.bump()?;
        Ok(version)
    }

    fn target(&mut self) -> Result<Vec<String>> {
        if self.token() != Token::Dot("target") {
            return self.unexpected("`.target`");
        }
        self.bump()?;
        self.comma_separated(|parser| Ok(parser.word("a target")?.to_owned()))
    }

    fn address_size(&mut self) -> Result<u32> {
        self.bump()?;
        let pos = self.pos();
        let size = self.unsigned32("address size")?;
        if size == 32 || size == 64 {
            return Ok(size);
        }
        fail_at(
            pos,
            SyntaxErrorKind::OutOfRange {
                what: "address size",
                required: "32 or 64",
                actual: i128::from(size),
            },
        )
    }

    /// `.alias name, target;`
    fn alias(&mut self) -> Result<Item> {
        let pos = self.bump()?.pos;
        let name = self.word("an alias")?.to_owned();
        self.expect(",")?;
        let target = self.word("a function")?.to_owned();
        self.expect(";")?;
        Ok(Item::Alias { name, target, pos })
    }

    /// A function, or the variables of one declaration.
    fn item(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let mut link = Linkage::None;
        if let Token::Dot(word) = self.token()
            && let Some(found) = linkage(word)
        {
            link = found;
            self.bump()?;
        }
        let Token::Dot(word) = self.token() else {
            return self.unexpected("a directive");
        };
        if let Some(space) = space(word) {
            self.bump()?;
            let variables = self.variables(link, space)?;
            items.extend(variables.into_iter().map(Item::Variable));
        } else if matches!(word, "entry" | "func") {
            self.bump()?;
            let function = self.function(link, word == "entry")?;
            items.push(Item::Function(function));
        } else {
            return self.fail(SyntaxErrorKind::UnknownDirective {
                name: word.to_owned(),
                place: "at module scope",
            });
        }
        Ok(())
    }
}
