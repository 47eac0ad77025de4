//! Instruction operands (PTX ISA 6), without knowledge of the instruction.

use super::super::ast::{Call, Operand};
use super::{Parser, Result, Token};

impl Parser<'_> {
    /// An operand, with the second destination of `d|p` if there is one.
    pub(super) fn operand(&mut self) -> Result<Operand> {
        let first = self.single_operand()?;
        if !self.eat("|")? {
            return Ok(first);
        }
        let second = self.single_operand()?;
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    fn single_operand(&mut self) -> Result<Operand> {
        if self.at_constant()? {
            return Ok(Operand::Imm(self.constant()?));
        }
        match self.token() {
            Token::Word("_") => {
                self.bump()?;
                Ok(Operand::Sink)
            }
            Token::Word(_) => self.named_operand(),
            Token::Punct("{") => Ok(Operand::Vector(self.enclosed("{", "}", Self::operand)?)),
            Token::Punct("[") => self.nested(Self::address),
            Token::Punct(symbol @ ("-" | "!" | "~")) => {
                self.bump()?;
                Ok(Operand::Unary {
                    op: char::from(symbol.as_bytes()[0]),
                    operand: Box::new(self.named_operand()?),
                })
            }
            _ => self.unexpected("an operand"),
        }
    }

    /// A name with its components: `%r1`, `%tid.x`, `%v.b0`.
    pub(super) fn component_name(&mut self) -> Result<String> {
        let mut name = self.word("a name")?.to_owned();
        while let Token::Dot(component) = self.token() {
            self.bump()?;
            name.push('.');
            name.push_str(component);
        }
        Ok(name)
    }

    fn named_operand(&mut self) -> Result<Operand> {
        let name = self.component_name()?;
        match self.token() {
            Token::Punct("[") => self.element(name),
            Token::Punct("+" | "-") => Ok(Operand::SymbolOffset { name, offset: self.offset()? }),
            _ => Ok(Operand::Ident(name)),
        }
    }

    /// `+ expression`, `- expression`, or nothing; the sign is part of the
    /// expression, so that `-4 + 8` is 4.
    pub(super) fn offset(&mut self) -> Result<i64> {
        if self.at("+") || self.at("-") { Ok(self.integer("offset")?.0 as i64) } else { Ok(0) }
    }

    /// `name[...]`, with `[` as the current token.
    fn element(&mut self, name: String) -> Result<Operand> {
        self.bump()?;
        let operand = if self.at_constant()? {
            Operand::Element { name, index: self.integer("index")?.0 as i64 }
        } else {
            Operand::IndexedElement { name, index: self.component_name()?, offset: self.offset()? }
        };
        self.expect("]")?;
        Ok(operand)
    }

    /// `[base + offset, rest...]`, with `[` as the current token.
    fn address(&mut self) -> Result<Operand> {
        self.bump()?;
        let (base, offset) = if self.at_constant()? {
            (None, self.integer("address")?.0 as i64)
        } else if matches!(self.token(), Token::Word(_)) {
            (Some(self.component_name()?), self.offset()?)
        } else {
            return self.unexpected("an address");
        };
        let rest = if self.eat(",")? { self.comma_separated(Self::operand)? } else { Vec::new() };
        if !self.at("]") {
            return self.unexpected("`,` or `]`");
        }
        self.bump()?;
        Ok(Operand::Address { base, offset, rest })
    }

    /// The operands of a `call` (PTX ISA 9.7.12.5):
    /// `(returns), target, (args), prototype`, all but the target optional.
    pub(super) fn call_operands(&mut self) -> Result<Operand> {
        let mut returns = Vec::new();
        if self.at("(") {
            returns = self.enclosed("(", ")", Self::operand)?;
            self.expect(",")?;
        }
        let target = self.word("a function or a register")?.to_owned();
        let mut args = Vec::new();
        let mut prototype = None;
        let mut more = self.eat(",")?;
        if more && self.at("(") {
            args = self.enclosed("(", ")", Self::operand)?;
            more = self.eat(",")?;
        }
        if more {
            prototype = Some(self.word("a prototype or a list of targets")?.to_owned());
        }
        Ok(Operand::Call(Box::new(Call { returns, target, args, prototype })))
    }
}
