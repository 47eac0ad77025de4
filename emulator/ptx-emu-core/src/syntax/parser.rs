//! A recursive-descent parser, with one file per topic.

mod declaration;
mod expression;
mod function;
mod module;
mod operand;
mod outline;
mod statement;

pub(crate) use outline::Outline;

use super::MAX_DEPTH;
use super::ast::Pos;
use super::error::{SyntaxError, SyntaxErrorKind};
use super::lexer::{Lexer, Place, Spanned, Token};

type Result<T> = std::result::Result<T, SyntaxError>;

fn fail_at<T>(pos: Pos, kind: SyntaxErrorKind) -> Result<T> {
    Err(SyntaxError { pos, kind })
}

/// The parser's state: the current token, and the lexer behind it.
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    current: Spanned<'a>,
    depth: u32,
    /// Variables made by `name<N>` so far.
    numbered_variables: u32,
    /// `.file` directives so far.
    files: Vec<(u32, String)>,
    /// Beginnings of the functions' bodies, in order, if they are not read.
    skipped: Option<Vec<Option<Place>>>,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self> {
        Self::with(Lexer::new(text))
    }

    /// Reads what the lexer has yet to read.
    fn with(mut lexer: Lexer<'a>) -> Result<Self> {
        let current = lexer.next()?;
        let (numbered_variables, files) = (0, Vec::new());
        Ok(Self { lexer, current, depth: 0, numbered_variables, files, skipped: None })
    }

    fn token(&self) -> Token<'a> {
        self.current.token
    }

    fn pos(&self) -> Pos {
        self.current.pos
    }

    /// Returns the current token and moves to the next one.
    fn bump(&mut self) -> Result<Spanned<'a>> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.current, next))
    }

    /// The token behind the current one.
    fn peek(&self) -> Result<Token<'a>> {
        let mut lexer = self.lexer;
        Ok(lexer.next()?.token)
    }

    /// An error at the current token.
    fn fail<T>(&self, kind: SyntaxErrorKind) -> Result<T> {
        fail_at(self.pos(), kind)
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match self.token() {
            Token::End => "the end of the text".to_owned(),
            _ => {
                let text = self.lexer.slice(self.current.start, self.current.end);
                let mut shown: String = text.chars().take(40).collect();
                if shown.len() < text.len() {
                    shown.push('…');
                }
                format!("`{shown}`")
            }
        };
        self.fail(SyntaxErrorKind::Unexpected { expected: expected.to_owned(), found })
    }

    fn at(&self, punctuation: &'static str) -> bool {
        self.token() == Token::Punct(punctuation)
    }

    /// Takes `punctuation` if it is there.
    fn eat(&mut self, punctuation: &'static str) -> Result<bool> {
        let there = self.at(punctuation);
        if there {
            self.bump()?;
        }
        Ok(there)
    }

    fn expect(&mut self, punctuation: &'static str) -> Result<Pos> {
        if self.at(punctuation) {
            return Ok(self.bump()?.pos);
        }
        self.unexpected(&format!("`{punctuation}`"))
    }

    /// An identifier; `what` names it in the error.
    fn word(&mut self, what: &str) -> Result<&'a str> {
        match self.token() {
            Token::Word(word) => {
                self.bump()?;
                Ok(word)
            }
            _ => self.unexpected(what),
        }
    }

    /// `item (, item)*`
    fn comma_separated<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat(",")? {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// `open (item (, item)*)? close`, with `open` as the current token.
    fn enclosed<T>(
        &mut self,
        open: &'static str,
        close: &'static str,
        item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        if self.eat(close)? {
            return Ok(Vec::new());
        }
        let items = self.nested(|parser| parser.comma_separated(item))?;
        if !self.at(close) {
            return self.unexpected(&format!("`,` or `{close}`"));
        }
        self.bump()?;
        Ok(items)
    }

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return self.fail(SyntaxErrorKind::TooDeep { limit: MAX_DEPTH });
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }
}
