//! Functions and their directives (PTX ISA 5.5, 11.2 to 11.8).

use super::super::ast::{Directive, Function, Imm, Linkage, Location, Variable};
use super::super::error::SyntaxErrorKind;
use super::{Parser, Result, Token, fail_at};

impl Parser<'_> {
    /// `( parameter, ... )`
    pub(super) fn parameters(&mut self) -> Result<Vec<Variable>> {
        self.enclosed("(", ")", Self::parameter)
    }

    /// A function from behind `.entry` or `.func` to the end of its body or the
    /// semicolon of its declaration.
    pub(super) fn function(&mut self, linkage: Linkage, is_entry: bool) -> Result<Function> {
        let mut directives = Vec::new();
        while self.token() == Token::Dot("attribute") {
            directives.push(self.attribute_directive()?);
        }
        let returns = if !is_entry && self.at("(") { self.parameters()? } else { Vec::new() };
        let pos = self.pos();
        let name = self.word("a function name")?.to_owned();
        let params = if self.at("(") { self.parameters()? } else { Vec::new() };
        let mut noreturn = false;
        while let Token::Dot(word) = self.token() {
            if word == "noreturn" {
                self.bump()?;
                noreturn = true;
            } else if word == "attribute" {
                directives.push(self.attribute_directive()?);
            } else {
                directives.extend(self.launch_directive(word)?);
            }
        }
        let body = match self.token() {
            Token::Punct("{") if self.skipped.is_some() => Some(self.skip_body()?),
            Token::Punct("{") => Some(self.block()?),
            Token::Punct(";") => {
                self.bump()?;
                None
            }
            _ => return self.unexpected("`{`, `;` or a directive"),
        };
        Ok(Function { pos, is_entry, linkage, name, returns, params, directives, body, noreturn })
    }

    fn attribute_directive(&mut self) -> Result<Directive> {
        let pos = self.bump()?.pos;
        Ok(Directive {
            pos,
            name: "attribute".to_owned(),
            args: Vec::new(),
            strings: self.attribute_list()?,
        })
    }

    /// A directive between a function's head and its body; `None` for one that
    /// only serves debuggers.
    fn launch_directive(&mut self, name: &str) -> Result<Option<Directive>> {
        let takes = match name {
            "pragma" => return self.pragma().map(Some),
            "loc" | "file" | "section" => {
                self.debug_directive(name)?;
                return Ok(None);
            }
            "maxntid" | "reqntid" | "reqnctapercluster" => 1..=3,
            "minnctapersm"
            | "maxnctapersm"
            | "maxnreg"
            | "maxclusterrank"
            | "abi_preserve"
            | "abi_preserve_control" => 1..=1,
            "explicitcluster" | "blocksareclusters" => 0..=0,
            _ => {
                return self.fail(SyntaxErrorKind::UnknownDirective {
                    name: name.to_owned(),
                    place: "between a function's head and its body",
                });
            }
        };
        let pos = self.bump()?.pos;
        let mut args = Vec::new();
        if *takes.end() > 0 {
            args = self.comma_separated(|parser| parser.unsigned("argument"))?;
        }
        if !takes.contains(&args.len()) {
            return fail_at(
                pos,
                SyntaxErrorKind::OutOfRange {
                    what: "number of the directive's arguments",
                    required: if *takes.end() == 3 { "1 to 3" } else { "1" },
                    actual: args.len() as i128,
                },
            );
        }
        Ok(Some(Directive { pos, name: name.to_owned(), args, strings: Vec::new() }))
    }

    /// `.pragma "string", ...;`
    pub(super) fn pragma(&mut self) -> Result<Directive> {
        let pos = self.bump()?.pos;
        let strings = self.comma_separated(|parser| match parser.token() {
            Token::Str(text) => {
                parser.bump()?;
                Ok(text.to_owned())
            }
            _ => parser.unexpected("a string"),
        })?;
        self.expect(";")?;
        Ok(Directive { pos, name: "pragma".to_owned(), args: Vec::new(), strings })
    }

    /// Reads `.file`, `.loc` or skips `.section` (PTX ISA 11.5), which carry nothing that
    /// execution needs. They have no terminator, so their arguments are read as the grammar
    /// gives them. The place that a `.loc` names is the result.
    pub(super) fn debug_directive(&mut self, name: &str) -> Result<Option<Location>> {
        let pos = self.bump()?.pos;
        match name {
            "file" => {
                let index = self.unsigned32("file index")?;
                let Token::Str(file) = self.token() else {
                    return self.unexpected("a file name");
                };
                self.bump()?;
                self.files.push((index, file.to_owned()));
                while self.eat(",")? {
                    self.unsigned("file time stamp or size")?;
                }
            }
            "loc" => {
                let [file, line, _] = self.location()?;
                while self.eat(",")? {
                    match self.word("`function_name` or `inlined_at`")? {
                        "function_name" => {
                            self.component_name()?;
                            self.offset()?;
                        }
                        "inlined_at" => {
                            self.location()?;
                        }
                        _ => return self.unexpected("`function_name` or `inlined_at`"),
                    }
                }
                return Ok(Some(Location { pos, file, line }));
            }
            _ => self.skip_section()?,
        }
        Ok(None)
    }

    /// File, line and column: plain numbers, which nothing separates.
    fn location(&mut self) -> Result<[u32; 3]> {
        let mut numbers = [0; 3];
        for number in &mut numbers {
            let Token::Literal(Imm::Int { bits, .. }) = self.token() else {
                return self.unexpected("a file, line or column number");
            };
            *number = u32::try_from(bits).unwrap_or(u32::MAX);
            self.bump()?;
        }
        Ok(numbers)
    }

    fn skip_section(&mut self) -> Result<()> {
        if !matches!(self.token(), Token::Dot(_) | Token::Word(_) | Token::Str(_)) {
            return self.unexpected("a section name");
        }
        self.bump()?;
        self.expect("{")?;
        let mut open = 1u32;
        while open > 0 {
            match self.token() {
                Token::End => return self.unexpected("`}`"),
                Token::Punct("{") => open += 1,
                Token::Punct("}") => open -= 1,
                _ => {}
            }
            self.bump()?;
        }
        Ok(())
    }
}
