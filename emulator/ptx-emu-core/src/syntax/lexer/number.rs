//! Numbers (PTX ISA 4.5.1, 4.5.2).

use super::super::ast::{Imm, Pos};
use super::super::error::{SyntaxError, SyntaxErrorKind};
use super::{Lexer, is_word};

impl Lexer<'_> {
    /// An integer in base 2, 8, 10 or 16, a decimal float, or the bits of a
    /// float (`0f3F800000`, `0d3FF0000000000000`); PTX ISA 4.5.1, 4.5.2.
    pub(super) fn number(&mut self) -> Result<Imm, SyntaxError> {
        if self.byte(0) == Some(b'0') {
            match self.byte(1) {
                Some(b'x' | b'X') => return self.integer(2, 16),
                Some(b'b' | b'B') => return self.integer(2, 2),
                Some(b'f' | b'F') => return self.float_bits(8),
                Some(b'd' | b'D') => return self.float_bits(16),
                _ => {}
            }
        }
        let digits =
            self.text.as_bytes()[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        let is_float = match self.byte(digits) {
            Some(b'e' | b'E') => true,
            // `1.`, `1.5`, `1.e3`, but not `4.b8`.
            Some(b'.') => match self.byte(digits + 1) {
                Some(b'e' | b'E') => self
                    .byte(digits + 2)
                    .is_some_and(|b| b.is_ascii_digit() || b == b'-' || b == b'+'),
                next => next.is_none_or(|b| b.is_ascii_digit() || !is_word(b)),
            },
            _ => false,
        };
        if is_float {
            self.decimal()
        } else if digits > 1 && self.byte(0) == Some(b'0') {
            self.integer(1, 8)
        } else {
            self.integer(0, 10)
        }
    }

    /// The word at `start`, for an error about a number.
    fn bad_number<T>(&self, pos: Pos, start: usize, why: &'static str) -> Result<T, SyntaxError> {
        let found: String = self.text[start..]
            .chars()
            .take(40)
            .take_while(|&c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.'))
            .collect();
        Self::error(pos, SyntaxErrorKind::BadNumber { found, why })
    }

    fn integer(&mut self, prefix: usize, radix: u32) -> Result<Imm, SyntaxError> {
        let (pos, start) = (self.pos(), self.at);
        self.at += prefix;
        let digits = self.take_while(|b| char::from(b).is_digit(radix));
        if digits.is_empty() {
            return match radix {
                8 => self.bad_number(pos, start, "8 and 9 are no octal digits"),
                _ => self.bad_number(pos, start, "no digits"),
            };
        }
        let Ok(bits) = u64::from_str_radix(digits, radix) else {
            return self.bad_number(pos, start, "it does not fit 64 bits");
        };
        let suffix = self.byte(0) == Some(b'U');
        self.at += usize::from(suffix);
        if self.byte(0).is_some_and(is_word) {
            return self.bad_number(pos, start, "a digit or suffix is out of place");
        }
        Ok(Imm::Int { bits, unsigned: suffix || bits > i64::MAX as u64 })
    }

    fn float_bits(&mut self, length: usize) -> Result<Imm, SyntaxError> {
        let (pos, start) = (self.pos(), self.at);
        self.at += 2;
        let digits = self.take_while(|b| b.is_ascii_hexdigit());
        let bits = u64::from_str_radix(digits, 16);
        match bits {
            Ok(bits) if digits.len() == length && !self.byte(0).is_some_and(is_word) => {
                Ok(if length == 8 { Imm::F32(bits as u32) } else { Imm::F64(bits) })
            }
            _ if length == 8 => self.bad_number(pos, start, "0f takes 8 hexadecimal digits"),
            _ => self.bad_number(pos, start, "0d takes 16 hexadecimal digits"),
        }
    }

    pub(super) fn decimal(&mut self) -> Result<Imm, SyntaxError> {
        let (pos, start) = (self.pos(), self.at);
        let mut digits = self.take_while(|b| b.is_ascii_digit()).len();
        if self.byte(0) == Some(b'.') {
            self.at += 1;
            digits += self.take_while(|b| b.is_ascii_digit()).len();
        }
        if matches!(self.byte(0), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(0), Some(b'+' | b'-')));
            if self.take_while(|b| b.is_ascii_digit()).is_empty() {
                return self.bad_number(pos, start, "its exponent has no digits");
            }
        }
        if digits == 0 || self.byte(0).is_some_and(is_word) {
            return self.bad_number(pos, start, "a digit or suffix is out of place");
        }
        match self.slice(start, self.at).parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Imm::F64(value.to_bits())),
            _ => self.bad_number(pos, start, "it does not fit a 64-bit float"),
        }
    }
}
