//! Function bodies (PTX ISA 4.3).

use super::super::ast::{Block, Guard, Instruction, Linkage, Pos, Statement};
use super::super::error::SyntaxErrorKind;
use super::declaration::{linkage, space};
use super::{Parser, Result, Token};

impl Parser<'_> {
    /// `{ statements }`
    pub(super) fn block(&mut self) -> Result<Block> {
        self.expect("{")?;
        let mut statements = Vec::new();
        self.nested(|parser| {
            while !parser.at("}") {
                parser.statement(&mut statements)?;
            }
            Ok(())
        })?;
        let end = self.expect("}")?;
        Ok(Block { statements, end })
    }

    /// Appends the next statement; a declaration may give several, debugging
    /// information none.
    fn statement(&mut self, statements: &mut Vec<Statement>) -> Result<()> {
        match self.token() {
            Token::Punct("{") => statements.push(Statement::Block(self.block()?)),
            Token::Dot(word) => self.directive_statement(word, statements)?,
            Token::Word(word) if self.peek()? == Token::Punct(":") => {
                let pos = self.bump()?.pos;
                self.bump()?;
                let labelled = self.labelled(word.to_owned(), pos)?;
                statements.push(labelled);
            }
            Token::Word(_) | Token::Punct("@") => {
                statements.push(Statement::Instruction(self.instruction()?));
            }
            _ => return self.unexpected("a statement or `}`"),
        }
        Ok(())
    }

    /// Parses the statement behind a label: a list of targets, a prototype, or any other statement,
    /// which is then left for the next call.
    fn labelled(&mut self, name: String, pos: Pos) -> Result<Statement> {
        let statement = match self.token() {
            Token::Dot("branchtargets") => {
                self.bump()?;
                Statement::BranchTargets {
                    name,
                    targets: self.comma_separated(|p| Ok(p.word("a label")?.to_owned()))?,
                    pos,
                }
            }
            Token::Dot("calltargets") => {
                self.bump()?;
                Statement::CallTargets {
                    name,
                    targets: self.comma_separated(|p| Ok(p.word("a function")?.to_owned()))?,
                    pos,
                }
            }
            Token::Dot("callprototype") => {
                self.bump()?;
                self.prototype(name, pos)?
            }
            _ => return Ok(Statement::Label { name, pos }),
        };
        self.expect(";")?;
        Ok(statement)
    }

    /// `.callprototype (returns) _ (params) .noreturn .abi_preserve N`, from behind its first word.
    /// Directives behind the parameters only inform the register allocation of the caller.
    fn prototype(&mut self, name: String, pos: Pos) -> Result<Statement> {
        let returns = if self.at("(") { self.parameters()? } else { Vec::new() };
        self.word("`_`")?;
        let params = if self.at("(") { self.parameters()? } else { Vec::new() };
        loop {
            match self.token() {
                Token::Dot("noreturn") => {
                    self.bump()?;
                }
                Token::Dot("abi_preserve" | "abi_preserve_control") => {
                    self.bump()?;
                    self.unsigned("number of preserved registers")?;
                }
                _ => break,
            }
        }
        Ok(Statement::CallPrototype { name, returns, params, pos })
    }

    fn directive_statement(&mut self, word: &str, statements: &mut Vec<Statement>) -> Result<()> {
        match word {
            "reg" => {
                self.bump()?;
                statements.push(Statement::Registers(self.registers()?));
            }
            "pragma" => statements.push(Statement::Directive(self.pragma()?)),
            "loc" | "file" | "section" => {
                let location = self.debug_directive(word)?;
                statements.extend(location.map(Statement::Location));
            }
            "branchtargets" | "calltargets" | "callprototype" => {
                return self.unexpected("a label before the list");
            }
            _ => {
                let mut link = Linkage::None;
                let mut word = word;
                if let Some(found) = linkage(word) {
                    link = found;
                    self.bump()?;
                    let Token::Dot(next) = self.token() else {
                        return self.unexpected("a state space");
                    };
                    word = next;
                }
                let Some(space) = space(word) else {
                    return self.fail(SyntaxErrorKind::UnknownDirective {
                        name: word.to_owned(),
                        place: "in a function body",
                    });
                };
                self.bump()?;
                let variables = self.variables(link, space)?;
                let boxed = variables.into_iter().map(Box::new);
                statements.extend(boxed.map(Statement::Variable));
            }
        }
        Ok(())
    }

    fn instruction(&mut self) -> Result<Instruction> {
        let guard = if self.eat("@")? {
            let negated = self.eat("!")?;
            let register = self.word("a predicate register")?.to_owned();
            Some(Guard { negated, register })
        } else {
            None
        };
        let pos = self.pos();
        let opcode = self.word("an instruction")?.to_owned();
        let mut modifiers = Vec::new();
        while let Token::Dot(word) = self.token() {
            self.bump()?;
            modifiers.push(word.to_owned());
        }
        let operands = if self.at(";") {
            Vec::new()
        } else if opcode == "call" {
            vec![self.call_operands()?]
        } else {
            self.comma_separated(Self::operand)?
        };
        if !self.at(";") {
            return self.unexpected("`,` or `;`");
        }
        self.bump()?;
        Ok(Instruction { pos, guard, opcode, modifiers, operands })
    }
}
