//! Errors of loading a module.

use crate::Gpu;
use crate::readable;
use crate::syntax::SyntaxError;
use crate::syntax::ast::Variable;
use std::fmt;

/// An instruction, directive or declaration that is not modelled, or that the module's target lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The line, trimmed.
    pub instruction: String,
    /// The part that is not modelled, or the targets that have it.
    pub why: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}: `{}`: {}",
            self.line,
            readable::instruction(&self.instruction),
            self.why
        )
    }
}

/// A module that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The text is not PTX.
    #[error("{0}")]
    Syntax(#[from] SyntaxError),
    /// The module is for a machine that this one is not.
    #[error("target: required one that {gpu} runs ({targets}), actual {actual}; {}", others(.gpu, .actual))]
    Target {
        /// Machine.
        gpu: &'static str,
        /// The targets that it runs, in words.
        targets: String,
        /// `.target` of the module.
        actual: String,
    },
    /// A `.version` that does not have the module's `.target`.
    #[error(".version: required {required}, actual {actual}")]
    Version {
        /// The first version that has it.
        required: String,
        /// `.version` of the module.
        actual: String,
    },
    /// `.address_size 32`.
    #[error("address size: required 64, actual {actual}")]
    AddressSize {
        /// `.address_size` of the module.
        actual: u32,
    },
    /// A kernel that the module lacks.
    #[error("entry: required one of: {required}, actual {actual}")]
    Entry {
        /// Its kernels.
        required: String,
        /// The one asked for.
        actual: String,
    },
    /// A kernel with more static shared memory than its target allows.
    #[error(
        "static shared memory of `{kernel}`: required at most {required}, actual {actual} bytes"
    )]
    StaticShared {
        /// The kernel.
        kernel: String,
        /// The most bytes, and the target.
        required: String,
        /// Its bytes.
        actual: u32,
    },
    /// Everything in the module that is not modelled or that its target lacks.
    #[error("{}", list(.0))]
    Unsupported(Vec<Unsupported>),
    /// A name that nothing declares.
    #[error("line {line}: `{}`: unknown name `{name}`", readable::instruction(.instruction))]
    UnknownSymbol {
        /// Line.
        line: u32,
        /// The line, trimmed.
        instruction: String,
        /// The name.
        name: String,
    },
    /// Operands that do not fit the instruction.
    #[error("line {line}: `{}`: {why}", readable::instruction(.instruction))]
    BadOperand {
        /// Line.
        line: u32,
        /// The line, trimmed.
        instruction: String,
        /// The fault.
        why: String,
    },
    /// A declaration that makes no sense.
    #[error("line {line}: `{name}`: {field}: required {required}, actual {actual}")]
    BadDeclaration {
        /// Line.
        line: u32,
        /// The declared name.
        name: String,
        /// The part of the declaration.
        field: &'static str,
        /// The required value.
        required: String,
        /// The actual value.
        actual: String,
    },
}

impl LoadError {
    /// A variable or parameter that cannot be declared so.
    pub(crate) fn declaration(
        variable: &Variable,
        field: &'static str,
        required: &str,
        actual: String,
    ) -> Self {
        Self::BadDeclaration {
            line: variable.pos.line,
            name: variable.name.clone(),
            field,
            required: required.to_owned(),
            actual,
        }
    }
}

/// Describes the machines that have a target.
fn others(gpu: &str, target: &str) -> String {
    let others = || Gpu::ALL.into_iter().filter(|other| other.name != gpu);
    let able: Vec<&str> = others().filter(|gpu| gpu.accepts(target)).map(|gpu| gpu.name).collect();
    if !able.is_empty() {
        return format!("{} runs it", able.join(" or "));
    }
    let all: Vec<String> =
        others().map(|gpu| format!("{} runs {}", gpu.name, gpu.targets())).collect();
    all.join("; ")
}

fn list(items: &[Unsupported]) -> String {
    let mut text = format!("{} unsupported:", items.len());
    for item in items {
        text.push_str("\n  ");
        text.push_str(&item.to_string());
    }
    text
}
