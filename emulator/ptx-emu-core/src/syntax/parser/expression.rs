//! Constant expressions (PTX ISA 4.5.4 to 4.5.6), folded while they are read.
//!
//! Integers are 64 bits wide and signed unless they carry `U`, exceed
//! `i64::MAX`, or come out of `~`, `%` or a `(.u64)` cast; an unsigned operand
//! makes an operation unsigned. `%` always works on unsigned values, shifts take
//! the type of their left operand and the low six bits of their count, `?:` has
//! the type of the operand it chooses: what the toolkit's assembler does where
//! PTX ISA 4.5.6 leaves room. Integers and floats do not mix.

use super::super::ast::{Imm, Pos};
use super::super::error::SyntaxErrorKind;
use super::{Parser, Result, Token, fail_at};
use std::cmp::Ordering;

/// Binary operators with their binding strength, weakest 1.
const OPERATORS: [(&str, u8); 18] = [
    ("||", 1),
    ("&&", 2),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("==", 6),
    ("!=", 6),
    ("<", 7),
    ("<=", 7),
    (">", 7),
    (">=", 7),
    ("<<", 8),
    (">>", 8),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

fn signed(value: i64) -> Imm {
    Imm::Int { bits: value as u64, unsigned: false }
}

fn truth(value: bool) -> Imm {
    signed(i64::from(value))
}

impl Parser<'_> {
    /// Whether the current token begins a constant and not a name.
    pub(super) fn at_constant(&self) -> Result<bool> {
        Ok(match self.token() {
            Token::Literal(_) | Token::Word("WARP_SZ") | Token::Punct("(") => true,
            Token::Dot(word) => word.starts_with(|c: char| c.is_ascii_digit()),
            Token::Punct("+" | "-" | "!" | "~") => {
                !matches!(self.peek()?, Token::Word(word) if word != "WARP_SZ")
            }
            _ => false,
        })
    }

    /// A constant expression.
    pub(super) fn constant(&mut self) -> Result<Imm> {
        let condition = self.binary(1)?;
        if !self.at("?") {
            return Ok(condition);
        }
        let at = self.bump()?.pos;
        let chosen = integer_operand(at, "?:", condition)?.0 != 0;
        let (yes, no) = self.nested(|parser| {
            let yes = parser.constant()?;
            parser.expect(":")?;
            Ok((yes, parser.constant()?))
        })?;
        match (yes, no) {
            (Imm::Int { .. }, Imm::F32(_) | Imm::F64(_))
            | (Imm::F32(_) | Imm::F64(_), Imm::Int { .. }) => mixed(at, "?:"),
            _ => Ok(if chosen { yes } else { no }),
        }
    }

    /// A constant expression that must be an integer; its bits, and whether they
    /// are meant unsigned. `what` names it in the error.
    pub(super) fn integer(&mut self, what: &'static str) -> Result<(u64, bool)> {
        let at = self.pos();
        let value = self.constant()?;
        integer_operand(at, what, value)
    }

    /// A non-negative integer constant.
    pub(super) fn unsigned(&mut self, what: &'static str) -> Result<u64> {
        let at = self.pos();
        let (bits, unsigned) = self.integer(what)?;
        let negative = i64::try_from(bits).is_err() && !unsigned;
        if negative {
            return fail_at(
                at,
                SyntaxErrorKind::OutOfRange {
                    what,
                    required: "non-negative",
                    actual: i128::from(bits as i64),
                },
            );
        }
        Ok(bits)
    }

    /// A non-negative integer constant of 32 bits.
    pub(super) fn unsigned32(&mut self, what: &'static str) -> Result<u32> {
        let at = self.pos();
        let value = self.unsigned(what)?;
        u32::try_from(value).or_else(|_| {
            fail_at(
                at,
                SyntaxErrorKind::OutOfRange {
                    what,
                    required: "below 2^32",
                    actual: i128::from(value),
                },
            )
        })
    }

    fn binary(&mut self, weakest: u8) -> Result<Imm> {
        let mut left = self.unary()?;
        loop {
            if let Token::Word(word) = self.token()
                && word.starts_with('%')
            {
                self.current = self.lexer.split_percent(&self.current);
            }
            let Token::Punct(symbol) = self.token() else {
                return Ok(left);
            };
            let Some(&(operator, strength)) = OPERATORS.iter().find(|(name, _)| *name == symbol)
            else {
                return Ok(left);
            };
            if strength < weakest {
                return Ok(left);
            }
            let at = self.bump()?.pos;
            let right = self.binary(strength + 1)?;
            left = apply(at, operator, left, right)?;
        }
    }

    fn unary(&mut self) -> Result<Imm> {
        match self.token() {
            Token::Literal(imm) => {
                self.bump()?;
                Ok(imm)
            }
            Token::Word("WARP_SZ") => {
                self.bump()?;
                Ok(signed(32))
            }
            Token::Dot(word) if word.starts_with(|c: char| c.is_ascii_digit()) => {
                self.current = self.lexer.fraction(&self.current)?;
                self.unary()
            }
            Token::Punct("(") => self.parenthesised(),
            Token::Punct(operator @ ("+" | "-" | "!" | "~")) => {
                let at = self.bump()?.pos;
                let operand = self.nested(Self::unary)?;
                apply_unary(at, operator, operand)
            }
            _ => self.unexpected("a constant"),
        }
    }

    /// `(expression)`, or a cast and its operand.
    fn parenthesised(&mut self) -> Result<Imm> {
        let at = self.bump()?.pos;
        let (unsigned, operator) = match self.token() {
            Token::Dot("s64") => (false, "(.s64)"),
            Token::Dot("u64") => (true, "(.u64)"),
            _ => {
                let value = self.nested(Self::constant)?;
                self.expect(")")?;
                return Ok(value);
            }
        };
        self.bump()?;
        self.expect(")")?;
        let operand = self.nested(Self::unary)?;
        let (bits, _) = integer_operand(at, operator, operand)?;
        Ok(Imm::Int { bits, unsigned })
    }
}

fn integer_operand(at: Pos, operator: &'static str, value: Imm) -> Result<(u64, bool)> {
    match value {
        Imm::Int { bits, unsigned } => Ok((bits, unsigned)),
        Imm::F32(_) | Imm::F64(_) => fail_at(
            at,
            SyntaxErrorKind::ConstantType { operator, required: "an integer", actual: "a float" },
        ),
    }
}

fn mixed<T>(at: Pos, operator: &'static str) -> Result<T> {
    fail_at(
        at,
        SyntaxErrorKind::ConstantType {
            operator,
            required: "two integers or two 64-bit floats",
            actual: "a mixture",
        },
    )
}

fn apply_unary(at: Pos, operator: &'static str, value: Imm) -> Result<Imm> {
    Ok(match (operator, value) {
        ("+", value) => value,
        ("-", Imm::Int { bits, unsigned }) => Imm::Int { bits: bits.wrapping_neg(), unsigned },
        ("-", Imm::F32(bits)) => Imm::F32(bits ^ 1 << 31),
        ("-", Imm::F64(bits)) => Imm::F64(bits ^ 1 << 63),
        ("!", value) => truth(integer_operand(at, "!", value)?.0 == 0),
        (_, value) => Imm::Int { bits: !integer_operand(at, "~", value)?.0, unsigned: true },
    })
}

fn apply(at: Pos, operator: &'static str, left: Imm, right: Imm) -> Result<Imm> {
    match (left, right) {
        (Imm::Int { bits: a, unsigned: u }, Imm::Int { bits: b, unsigned: v }) => {
            apply_integers(at, operator, (a, u), (b, v))
        }
        (Imm::F64(a), Imm::F64(b)) => {
            apply_floats(at, operator, f64::from_bits(a), f64::from_bits(b))
        }
        _ => mixed(at, operator),
    }
}

fn apply_floats(at: Pos, operator: &'static str, a: f64, b: f64) -> Result<Imm> {
    let float = |value: f64| Ok(Imm::F64(value.to_bits()));
    match operator {
        "+" => float(a + b),
        "-" => float(a - b),
        "*" => float(a * b),
        "/" => float(a / b),
        "==" => Ok(truth(a == b)),
        "!=" => Ok(truth(a != b)),
        "<" => Ok(truth(a < b)),
        "<=" => Ok(truth(a <= b)),
        ">" => Ok(truth(a > b)),
        ">=" => Ok(truth(a >= b)),
        _ => fail_at(
            at,
            SyntaxErrorKind::ConstantType { operator, required: "integers", actual: "floats" },
        ),
    }
}

fn apply_integers(
    at: Pos,
    operator: &'static str,
    (a, a_unsigned): (u64, bool),
    (b, b_unsigned): (u64, bool),
) -> Result<Imm> {
    let unsigned = a_unsigned || b_unsigned;
    let order = if unsigned { a.cmp(&b) } else { (a as i64).cmp(&(b as i64)) };
    let usual = |bits: u64| Ok(Imm::Int { bits, unsigned });
    if b == 0 && matches!(operator, "/" | "%") {
        return fail_at(at, SyntaxErrorKind::DivisionByZero);
    }
    let shift = (b % 64) as u32;
    match operator {
        "+" => usual(a.wrapping_add(b)),
        "-" => usual(a.wrapping_sub(b)),
        "*" => usual(a.wrapping_mul(b)),
        "/" if unsigned => usual(a / b),
        "/" => usual((a as i64).wrapping_div(b as i64) as u64),
        "%" => Ok(Imm::Int { bits: a % b, unsigned: true }),
        "<<" => Ok(Imm::Int { bits: a << shift, unsigned: a_unsigned }),
        ">>" => Ok(Imm::Int {
            bits: if a_unsigned { a >> shift } else { ((a as i64) >> shift) as u64 },
            unsigned: a_unsigned,
        }),
        "&" => usual(a & b),
        "|" => usual(a | b),
        "^" => usual(a ^ b),
        "&&" => Ok(truth(a != 0 && b != 0)),
        "||" => Ok(truth(a != 0 || b != 0)),
        "==" => Ok(truth(a == b)),
        "!=" => Ok(truth(a != b)),
        "<" => Ok(truth(order == Ordering::Less)),
        "<=" => Ok(truth(order != Ordering::Greater)),
        ">" => Ok(truth(order == Ordering::Greater)),
        _ => Ok(truth(order != Ordering::Less)),
    }
}
