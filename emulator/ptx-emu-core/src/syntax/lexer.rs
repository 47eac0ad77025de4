//! Tokens (PTX ISA 4.1, 4.2, 4.4, 4.5).
//!
//! A dot belongs to the word after it, so that modifiers which begin with a
//! digit (`.2d`, `.16x256b`) and qualified modifiers (`.L2::128B`) are one token. A
//! decimal fraction without a leading digit (`.5`) has the same form; the parser,
//! which knows where a constant is expected, reads it with [`Lexer::fraction`].

mod number;

use super::ast::{Imm, Pos};
use super::error::{SyntaxError, SyntaxErrorKind};

/// A token's kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token<'a> {
    /// Identifier, with its leading `%`, `$` or `_`; also a lone `_`.
    Word(&'a str),
    /// `.word`, without the dot.
    Dot(&'a str),
    /// A number.
    Literal(Imm),
    /// `"..."`, without the quotes.
    Str(&'a str),
    /// Punctuation or operator.
    Punct(&'static str),
    /// End of the text.
    End,
}

/// A token and the place where it stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spanned<'a> {
    pub token: Token<'a>,
    pub pos: Pos,
    /// Byte offsets into the text.
    pub start: usize,
    pub end: usize,
}

/// Splits a text into tokens; a copy of it is a place to return to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    line_start: usize,
}

/// A place in a text, to read on from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    at: usize,
    line: u32,
    line_start: usize,
}

/// The operator or punctuation that begins with these bytes, the longest one.
fn punctuation(first: u8, second: Option<u8>) -> Option<&'static str> {
    Some(match (first, second) {
        (b'<', Some(b'<')) => "<<",
        (b'>', Some(b'>')) => ">>",
        (b'<', Some(b'=')) => "<=",
        (b'>', Some(b'=')) => ">=",
        (b'=', Some(b'=')) => "==",
        (b'!', Some(b'=')) => "!=",
        (b'&', Some(b'&')) => "&&",
        (b'|', Some(b'|')) => "||",
        (b'(', _) => "(",
        (b')', _) => ")",
        (b'[', _) => "[",
        (b']', _) => "]",
        (b'{', _) => "{",
        (b'}', _) => "}",
        (b',', _) => ",",
        (b';', _) => ";",
        (b':', _) => ":",
        (b'=', _) => "=",
        (b'+', _) => "+",
        (b'-', _) => "-",
        (b'*', _) => "*",
        (b'/', _) => "/",
        (b'<', _) => "<",
        (b'>', _) => ">",
        (b'&', _) => "&",
        (b'|', _) => "|",
        (b'^', _) => "^",
        (b'~', _) => "~",
        (b'!', _) => "!",
        (b'?', _) => "?",
        (b'@', _) => "@",
        (b'%', _) => "%",
        _ => return None,
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1, line_start: 0 }
    }

    /// The place of a token that begins in the line of this lexer's own place.
    pub(super) fn place_of(&self, token: &Spanned<'_>) -> Place {
        Place { at: token.start, line: self.line, line_start: self.line_start }
    }

    /// Reads on from a place in the text.
    pub(super) fn from_place(text: &'a str, place: Place) -> Self {
        let Place { at, line, line_start } = place;
        Self { text, at, line, line_start }
    }

    /// The text from byte `start` to byte `end`.
    pub(super) fn slice(&self, start: usize, end: usize) -> &'a str {
        self.text.get(start..end).unwrap_or("")
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn pos(&self) -> Pos {
        let column = self.at - self.line_start + 1;
        Pos { line: self.line, column: u32::try_from(column).unwrap_or(u32::MAX) }
    }

    /// Moves to byte `end`, counting the lines passed.
    fn advance_to(&mut self, end: usize) {
        for (index, byte) in self.text.as_bytes()[self.at..end].iter().enumerate() {
            if *byte == b'\n' {
                self.line = self.line.saturating_add(1);
                self.line_start = self.at + index + 1;
            }
        }
        self.at = end;
    }

    fn skip_line(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
    }

    fn error<T>(pos: Pos, kind: SyntaxErrorKind) -> Result<T, SyntaxError> {
        Err(SyntaxError { pos, kind })
    }

    /// Skips blanks, comments, line markers (`# 1 "file"`) and `@@DWARF` lines.
    fn skip_trivia(&mut self) -> Result<(), SyntaxError> {
        loop {
            match (self.byte(0), self.byte(1)) {
                (Some(b'\n'), _) => self.advance_to(self.at + 1),
                (Some(b' ' | b'\t' | b'\r' | 0x0b | 0x0c), _) => self.at += 1,
                (Some(b'/'), Some(b'/')) | (Some(b'@'), Some(b'@')) => self.skip_line(),
                (Some(b'/'), Some(b'*')) => {
                    let Some(length) = self.text[self.at + 2..].find("*/") else {
                        return Self::error(
                            self.pos(),
                            SyntaxErrorKind::Unterminated { what: "comment" },
                        );
                    };
                    self.advance_to(self.at + 2 + length + 2);
                }
                (Some(b'#'), _) if self.slice(self.line_start, self.at).trim().is_empty() => {
                    let marker = self.text[self.at + 1..].trim_start_matches([' ', '\t']);
                    if !marker.starts_with(|c: char| c.is_ascii_digit())
                        && !marker.starts_with("line")
                    {
                        return Self::error(self.pos(), SyntaxErrorKind::Preprocessor);
                    }
                    self.skip_line();
                }
                _ => return Ok(()),
            }
        }
    }

    /// Moves behind the brace that closes the one just passed, without reading what is between
    /// them, and says where it is; `None` if the text ends before.
    pub(super) fn skip_braces(&mut self) -> Option<Pos> {
        let bytes = self.text.as_bytes();
        let mut open = 1u32;
        while open > 0 {
            match *bytes.get(self.at)? {
                b'{' => open += 1,
                b'}' => open -= 1,
                b'\n' => {
                    self.line = self.line.saturating_add(1);
                    self.line_start = self.at + 1;
                }
                b'"' | b'/' | b'@' | b'#' => {
                    let before = self.at;
                    if bytes[before] == b'"' {
                        self.string().ok()?;
                    } else {
                        self.skip_trivia().ok()?;
                    }
                    if self.at != before {
                        continue;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        let pos = self.pos();
        Some(Pos { column: pos.column - 1, ..pos })
    }

    /// The next token.
    pub(super) fn next(&mut self) -> Result<Spanned<'a>, SyntaxError> {
        self.skip_trivia()?;
        let (pos, start) = (self.pos(), self.at);
        let token = match self.byte(0) {
            None => Token::End,
            Some(b'0'..=b'9') => Token::Literal(self.number()?),
            Some(b'"') => self.string()?,
            Some(b'.') => self.dotted()?,
            Some(b'%') if self.byte(1).is_some_and(is_word) => self.word(),
            Some(first) if first != b'%' && is_word(first) => {
                // A lone `$` is no identifier, a lone `_` is the sink operand.
                if first == b'$' && !self.byte(1).is_some_and(is_word) {
                    return Self::error(pos, SyntaxErrorKind::BadCharacter { found: '$' });
                }
                self.word()
            }
            Some(_) => self.punctuation()?,
        };
        Ok(Spanned { token, pos, start, end: self.at })
    }

    /// Reads the token that begins at `start` of `dot` again, as the fraction
    /// `.5` or `.5e-3`.
    pub(super) fn fraction(&mut self, dot: &Spanned<'a>) -> Result<Spanned<'a>, SyntaxError> {
        self.at = dot.start;
        self.line = dot.pos.line;
        self.line_start = dot.start + 1 - dot.pos.column as usize;
        let imm = self.decimal()?;
        Ok(Spanned { token: Token::Literal(imm), end: self.at, ..*dot })
    }

    /// Goes back to just behind the `%` that begins the word `word`: where an
    /// operator is due, `%x` is the remainder operator and an operand.
    pub(super) fn split_percent(&mut self, word: &Spanned<'a>) -> Spanned<'a> {
        self.at = word.start + 1;
        self.line = word.pos.line;
        self.line_start = word.start + 1 - word.pos.column as usize;
        Spanned { token: Token::Punct("%"), end: self.at, ..*word }
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.byte(0).is_some_and(&accept) {
            self.at += 1;
        }
        self.slice(start, self.at)
    }

    fn word(&mut self) -> Token<'a> {
        let start = self.at;
        self.at += 1;
        self.take_while(is_word);
        Token::Word(self.slice(start, self.at))
    }

    fn dotted(&mut self) -> Result<Token<'a>, SyntaxError> {
        let pos = self.pos();
        self.at += 1;
        let start = self.at;
        loop {
            self.take_while(is_word);
            let qualified = self.byte(0) == Some(b':')
                && self.byte(1) == Some(b':')
                && self.byte(2).is_some_and(is_word);
            if self.at == start || !qualified {
                break;
            }
            self.at += 2;
        }
        if self.at == start {
            return Self::error(pos, SyntaxErrorKind::BadCharacter { found: '.' });
        }
        Ok(Token::Dot(self.slice(start, self.at)))
    }

    fn string(&mut self) -> Result<Token<'a>, SyntaxError> {
        let pos = self.pos();
        let start = self.at + 1;
        let bytes = self.text.as_bytes();
        let mut end = start;
        loop {
            match bytes.get(end) {
                None => {
                    return Self::error(pos, SyntaxErrorKind::Unterminated { what: "string" });
                }
                Some(b'"') => break,
                Some(b'\\') if end + 1 < bytes.len() => end += 2,
                Some(_) => end += 1,
            }
        }
        self.advance_to(end + 1);
        Ok(Token::Str(self.slice(start, end)))
    }

    fn punctuation(&mut self) -> Result<Token<'a>, SyntaxError> {
        if let Some(found) = self.byte(0).and_then(|first| punctuation(first, self.byte(1))) {
            self.at += found.len();
            return Ok(Token::Punct(found));
        }
        let found = self.text[self.at..].chars().next().unwrap_or('\0');
        Self::error(self.pos(), SyntaxErrorKind::BadCharacter { found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Result<Vec<Token<'_>>, SyntaxError> {
        let mut lexer = Lexer::new(text);
        let mut all = Vec::new();
        loop {
            match lexer.next()?.token {
                Token::End => return Ok(all),
                token => all.push(token),
            }
        }
    }

    fn int(bits: u64) -> Token<'static> {
        Token::Literal(Imm::Int { bits, unsigned: false })
    }

    #[test]
    fn words_and_dots() {
        assert_eq!(
            tokens("cp.async.2d.L2::128B.mbarrier::complete_tx::bytes%tid.x $L__a _ _a %p"),
            Ok(vec![
                Token::Word("cp"),
                Token::Dot("async"),
                Token::Dot("2d"),
                Token::Dot("L2::128B"),
                Token::Dot("mbarrier::complete_tx::bytes"),
                Token::Word("%tid"),
                Token::Dot("x"),
                Token::Word("$L__a"),
                Token::Word("_"),
                Token::Word("_a"),
                Token::Word("%p"),
            ])
        );
    }

    #[test]
    fn integers_in_all_bases() {
        assert_eq!(
            tokens("0 10 010 0x1F 0X1f 0b101 0B11 18446744073709551615 7U 0x7U 07U 0b1U"),
            Ok(vec![
                int(0),
                int(10),
                int(8),
                int(31),
                int(31),
                int(5),
                int(3),
                Token::Literal(Imm::Int { bits: u64::MAX, unsigned: true }),
                Token::Literal(Imm::Int { bits: 7, unsigned: true }),
                Token::Literal(Imm::Int { bits: 7, unsigned: true }),
                Token::Literal(Imm::Int { bits: 7, unsigned: true }),
                Token::Literal(Imm::Int { bits: 1, unsigned: true }),
            ])
        );
    }

    #[test]
    fn floats() {
        let float = |value: f64| Token::Literal(Imm::F64(value.to_bits()));
        assert_eq!(
            tokens("0f3F800000 0F7fffffff 0d3FF0000000000000 1.5 1. 1e3 1.5e-3 1.E+2"),
            Ok(vec![
                Token::Literal(Imm::F32(0x3F80_0000)),
                Token::Literal(Imm::F32(0x7FFF_FFFF)),
                float(1.0),
                float(1.5),
                float(1.0),
                float(1e3),
                float(1.5e-3),
                float(1e2),
            ])
        );
    }

    #[test]
    fn trivia() {
        assert_eq!(
            tokens("a // x\n/* y \n * /* */ b\n  # 1 \"f\"\n@@DWARF .byte 0\nc"),
            Ok(vec![Token::Word("a"), Token::Word("b"), Token::Word("c")])
        );
        let mut lexer = Lexer::new("/*\n\n*/\n  a \"x\ny\" b");
        assert_eq!(lexer.next().unwrap().pos, Pos { line: 4, column: 3 });
        assert_eq!(lexer.next().unwrap().pos, Pos { line: 4, column: 5 });
        assert_eq!(lexer.next().unwrap().pos, Pos { line: 5, column: 4 });
    }

    #[test]
    fn braces_are_skipped_to_the_one_that_closes() {
        let text = "{ a { \"}\" // }\n /* } \n */ @@DWARF }\n # 1 \"}\"\n { } @p / } } tail";
        let mut lexer = Lexer::new(text);
        lexer.next().unwrap();
        assert_eq!(lexer.skip_braces(), Some(Pos { line: 5, column: 13 }));
        let next = lexer.next().unwrap();
        assert_eq!((next.token, next.pos), (Token::Word("tail"), Pos { line: 5, column: 15 }));
        for text in ["{ a", "{ \"}", "{ /* }", "{ // }"] {
            let mut lexer = Lexer::new(text);
            lexer.next().unwrap();
            assert_eq!(lexer.skip_braces(), None, "{text}");
        }
    }

    #[test]
    fn malformed_tokens() {
        for (text, message) in [
            ("0x", "1:1: bad number `0x`: no digits"),
            ("0b102", "1:1: bad number `0b102`: a digit or suffix is out of place"),
            ("08", "1:1: bad number `08`: 8 and 9 are no octal digits"),
            ("12u", "1:1: bad number `12u`: a digit or suffix is out of place"),
            (
                "18446744073709551616",
                "1:1: bad number `18446744073709551616`: it does not fit 64 bits",
            ),
            ("0f3F80000", "1:1: bad number `0f3F80000`: 0f takes 8 hexadecimal digits"),
            ("0d3F800000", "1:1: bad number `0d3F800000`: 0d takes 16 hexadecimal digits"),
            ("1e", "1:1: bad number `1e`: its exponent has no digits"),
            ("1e999", "1:1: bad number `1e999`: it does not fit a 64-bit float"),
            ("\n /* x", "2:2: unterminated comment"),
            ("\"x", "1:1: unterminated string"),
            ("\"x\\", "1:1: unterminated string"),
            ("a é", "1:3: unexpected character 'é'"),
            ("$", "1:1: unexpected character '$'"),
            (". x", "1:1: unexpected character '.'"),
            ("#define A 1", "1:1: preprocessor directive: run the C preprocessor first"),
        ] {
            assert_eq!(tokens(text).unwrap_err().to_string(), message, "{text:?}");
        }
    }
}
