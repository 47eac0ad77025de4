//! Instructions that are refused.

/// The reason why one instruction was refused; the place is added later.
#[derive(Debug)]
pub(crate) enum Reject {
    Unsupported(String),
    UnknownSymbol(String),
    BadOperand(String),
}

impl Reject {
    pub(crate) fn unsupported(why: impl Into<String>) -> Self {
        Self::Unsupported(why.into())
    }

    pub(crate) fn operand(why: impl Into<String>) -> Self {
        Self::BadOperand(why.into())
    }
}

/// Result of decoding something.
pub(crate) type Decoded<T> = Result<T, Reject>;
