//! Variables, parameters, registers and initialisers (PTX ISA 5.4, 11.6).

use super::super::ast::{Imm, Init, Linkage, PtrAttr, RegDecl, Space, Variable};
use super::super::error::SyntaxErrorKind;
use super::{Parser, Result, Token, fail_at};

/// Most variables that `name<N>` may make in a module; outside `.reg` each is a
/// variable of its own, so that a short text could ask for any number.
const MAX_NUMBERED_VARIABLES: u32 = 65_536;

/// Longest type and attributes of a declaration, bytes; each of its variables
/// has a copy.
const MAX_ATTRIBUTE_BYTES: usize = 1024;

/// The attributes between the state space and the name of a variable.
struct Attributes {
    align: Option<u32>,
    vector: u32,
    ty: String,
    ptr: Option<PtrAttr>,
    attributes: Vec<String>,
}

/// The state space that a directive names.
pub(super) fn space(directive: &str) -> Option<Space> {
    Some(match directive {
        "reg" => Space::Reg,
        "sreg" => Space::Sreg,
        "const" => Space::Const,
        "global" => Space::Global,
        "local" => Space::Local,
        "param" => Space::Param,
        "shared" => Space::Shared,
        "tex" => Space::Tex,
        _ => return None,
    })
}

/// The linkage that a directive names.
pub(super) fn linkage(directive: &str) -> Option<Linkage> {
    Some(match directive {
        "visible" => Linkage::Visible,
        "extern" => Linkage::Extern,
        "weak" => Linkage::Weak,
        "common" => Linkage::Common,
        _ => return None,
    })
}

impl<'a> Parser<'a> {
    /// The variables of one declaration, from behind its state space to its
    /// semicolon.
    pub(super) fn variables(&mut self, linkage: Linkage, space: Space) -> Result<Vec<Variable>> {
        let attributes = self.attributes()?;
        let mut variables = Vec::new();
        loop {
            let (variable, count) = self.variable(linkage, space, &attributes)?;
            match count {
                None => variables.push(variable),
                Some(count) => variables.extend((0..count).map(|index| Variable {
                    name: format!("{}{index}", variable.name),
                    ..variable.clone()
                })),
            }
            if self.eat(";")? {
                return Ok(variables);
            }
            if !self.eat(",")? {
                return self.unexpected("`,` or `;`");
            }
        }
    }

    /// A parameter of a function, from its state space on.
    pub(super) fn parameter(&mut self) -> Result<Variable> {
        let space = match self.token() {
            Token::Dot("param") => Space::Param,
            Token::Dot("reg") => Space::Reg,
            _ => return self.unexpected("`.param` or `.reg`"),
        };
        self.bump()?;
        let attributes = self.attributes()?;
        let pos = self.pos();
        let name = self.word("a parameter name")?.to_owned();
        Ok(Variable {
            pos,
            linkage: Linkage::None,
            space,
            align: attributes.align,
            vector: attributes.vector,
            ty: attributes.ty,
            name,
            dims: self.dimensions()?,
            init: None,
            ptr: attributes.ptr,
            attributes: attributes.attributes,
        })
    }

    /// `.align`, `.attribute`, `.ptr`, vector and element type, in any order.
    fn attributes(&mut self) -> Result<Attributes> {
        let mut found = Attributes {
            align: None,
            vector: 1,
            ty: String::new(),
            ptr: None,
            attributes: Vec::new(),
        };
        while let Token::Dot(word) = self.token() {
            if word == "attribute" {
                self.bump()?;
                found.attributes.extend(self.attribute_list()?);
                continue;
            }
            let is_type = !matches!(word, "align" | "v2" | "v4" | "v8" | "ptr")
                && (found.ptr.is_none() || space(word).is_none());
            if is_type && !found.ty.is_empty() {
                return self.unexpected("a name");
            }
            self.bump()?;
            match word {
                "align" => {
                    let align = Some(self.alignment()?);
                    match &mut found.ptr {
                        Some(ptr) => ptr.align = align,
                        None => found.align = align,
                    }
                }
                "v2" => found.vector = 2,
                "v4" => found.vector = 4,
                "v8" => found.vector = 8,
                "ptr" => {
                    found.ptr = Some(PtrAttr { space: None, align: None });
                }
                _ => match (&mut found.ptr, space(word)) {
                    (Some(ptr), Some(space)) => ptr.space = Some(space),
                    _ => found.ty = word.to_owned(),
                },
            }
        }
        if found.ty.is_empty() {
            return self.unexpected("a type");
        }
        let bytes = found.ty.len() + found.attributes.iter().map(String::len).sum::<usize>();
        if bytes > MAX_ATTRIBUTE_BYTES {
            return self.fail(SyntaxErrorKind::OutOfRange {
                what: "length of a declaration's type and attributes",
                required: "at most 1024 bytes",
                actual: bytes as i128,
            });
        }
        Ok(found)
    }

    fn alignment(&mut self) -> Result<u32> {
        let pos = self.pos();
        let align = self.unsigned32("alignment")?;
        if align.is_power_of_two() {
            return Ok(align);
        }
        fail_at(
            pos,
            SyntaxErrorKind::OutOfRange {
                what: "alignment",
                required: "a power of two",
                actual: i128::from(align),
            },
        )
    }

    /// `( ... )` of an `.attribute`: its members, verbatim.
    pub(super) fn attribute_list(&mut self) -> Result<Vec<String>> {
        self.expect("(")?;
        let mut members = Vec::new();
        let mut start = self.current.start;
        let mut open = 0u32;
        loop {
            match self.token() {
                Token::End => return self.unexpected("`)`"),
                Token::Punct("(") => open += 1,
                Token::Punct(")") if open > 0 => open -= 1,
                Token::Punct(mark @ (")" | ",")) if open == 0 => {
                    let member = self.lexer.slice(start, self.current.start).trim();
                    members.push(member.to_owned());
                    self.bump()?;
                    if mark == ")" {
                        return Ok(members);
                    }
                    start = self.current.start;
                    continue;
                }
                _ => {}
            }
            self.bump()?;
        }
    }

    /// One name of a declaration with its dimensions and initialiser, and N of
    /// `name<N>`.
    fn variable(
        &mut self,
        linkage: Linkage,
        space: Space,
        attributes: &Attributes,
    ) -> Result<(Variable, Option<u32>)> {
        let pos = self.pos();
        let name = self.word("a variable name")?.to_owned();
        let count = self.numbered()?;
        if let Some(count) = count {
            self.numbered_variables = self.numbered_variables.saturating_add(count);
            if self.numbered_variables > MAX_NUMBERED_VARIABLES {
                return self.fail(SyntaxErrorKind::OutOfRange {
                    what: "number of variables made by `name<N>`",
                    required: "at most 65536 in a module",
                    actual: i128::from(self.numbered_variables),
                });
            }
        }
        let dims = self.dimensions()?;
        let init = if self.eat("=")? { Some(self.initialiser()?) } else { None };
        let variable = Variable {
            pos,
            linkage,
            space,
            align: attributes.align,
            vector: attributes.vector,
            ty: attributes.ty.clone(),
            name,
            dims,
            init,
            ptr: attributes.ptr.clone(),
            attributes: attributes.attributes.clone(),
        };
        Ok((variable, count))
    }

    /// `<N>` behind a name.
    fn numbered(&mut self) -> Result<Option<u32>> {
        if !self.eat("<")? {
            return Ok(None);
        }
        let Token::Literal(Imm::Int { bits, .. }) = self.token() else {
            return self.unexpected("a number");
        };
        let Ok(count) = u32::try_from(bits) else {
            return self.fail(SyntaxErrorKind::OutOfRange {
                what: "number of names",
                required: "below 2^32",
                actual: i128::from(bits),
            });
        };
        self.bump()?;
        self.expect(">")?;
        Ok(Some(count))
    }

    fn dimensions(&mut self) -> Result<Vec<Option<u64>>> {
        let mut dims = Vec::new();
        while self.eat("[")? {
            if self.eat("]")? {
                dims.push(None);
                continue;
            }
            dims.push(Some(self.unsigned("array dimension")?));
            self.expect("]")?;
        }
        Ok(dims)
    }

    /// `.reg` declaration, from behind `.reg` to its semicolon.
    pub(super) fn registers(&mut self) -> Result<RegDecl> {
        let pos = self.pos();
        let attributes = self.attributes()?;
        let names = self.comma_separated(|parser| {
            let name = parser.word("a register name")?.to_owned();
            Ok((name, parser.numbered()?))
        })?;
        self.expect(";")?;
        Ok(RegDecl { pos, vector: attributes.vector, ty: attributes.ty, names })
    }

    fn initialiser(&mut self) -> Result<Init> {
        if self.at("{") {
            return Ok(Init::List(self.enclosed("{", "}", Self::list_member)?));
        }
        if !self.at_constant()? {
            return self.symbol_initialiser(None);
        }
        let value = self.constant()?;
        if !self.at("(") {
            return Ok(Init::Value(value));
        }
        // `0xff00(symbol)`: one byte of the symbol's address.
        let mask = match value {
            Imm::Int { bits, .. } => bits,
            _ => return self.unexpected("`,` or `;`"),
        };
        self.bump()?;
        let init = self.symbol_initialiser(Some(mask))?;
        self.expect(")")?;
        Ok(init)
    }

    fn list_member(&mut self) -> Result<Init> {
        if let Token::Word(name) = self.token()
            && self.peek()? == Token::Punct("=")
        {
            self.bump()?;
            self.bump()?;
            return Ok(Init::Field { name: name.to_owned(), value: Box::new(self.initialiser()?) });
        }
        self.initialiser()
    }

    /// `symbol`, `generic(symbol)`, either with an offset.
    fn symbol_initialiser(&mut self, mask: Option<u64>) -> Result<Init> {
        let generic = self.token() == Token::Word("generic") && self.peek()? == Token::Punct("(");
        if generic {
            self.bump()?;
            self.bump()?;
        }
        let name = self.word("an initialiser")?.to_owned();
        let inner = self.offset()?;
        if generic {
            self.expect(")")?;
        }
        let offset = inner.wrapping_add(if generic { self.offset()? } else { 0 });
        Ok(Init::Symbol { name, offset, generic, mask })
    }
}
