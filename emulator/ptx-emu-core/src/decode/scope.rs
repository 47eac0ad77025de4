//! Names inside a function: registers, variables and labels, block by block.

use crate::machine::code::Passed;
use crate::machine::module::Symbol;
use crate::machine::regs::{Class, FrameSize, Slot};
use crate::syntax::Type;
use std::collections::HashMap;

/// A register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reg {
    pub(crate) class: Class,
    /// Row of its class in the frame.
    pub(crate) index: u32,
    /// Width in bits.
    pub(crate) bits: u32,
}

impl Reg {
    pub(crate) fn slot(self) -> Slot {
        Slot::register(self.index)
    }

    /// The register as a call passes it.
    pub(crate) fn passed(self) -> Option<Passed> {
        match self.class {
            Class::Pred => None,
            Class::R32 => Some(Passed::R32(self.slot(), self.bits.div_ceil(8))),
            Class::R64 => Some(Passed::R64(self.slot())),
            Class::R128 => Some(Passed::R128(self.slot())),
        }
    }
}

/// The meaning of a name in a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    Reg(Reg),
    /// A `.v2`, `.v4` register.
    Vector(Vec<Reg>),
    /// Bytes of the local frame: `.local` and `.param` variables.
    Frame {
        offset: u32,
        bytes: u32,
    },
    /// A kernel parameter.
    Param {
        offset: u32,
    },
    /// Something of module lifetime.
    Module(Symbol),
}

/// `%r<10>`: registers that exist when used.
#[derive(Debug, Clone)]
struct FamilyDecl {
    prefix: String,
    count: u32,
    ty: Type,
}

#[derive(Debug, Default)]
struct Scope {
    families: Vec<FamilyDecl>,
    names: HashMap<String, Name>,
    labels: HashMap<String, usize>,
    targets: HashMap<String, Vec<String>>,
    prototypes: HashMap<String, Option<Vec<String>>>,
}

/// The open scopes of a function and what its frame needs so far.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    open: Vec<Scope>,
    pub(crate) frame: FrameSize,
    pub(crate) local: u32,
    /// Instruction of each label, once it has been passed.
    pub(crate) labels: Vec<Option<usize>>,
}

const COMPONENTS: [[&str; 4]; 2] = [["x", "y", "z", "w"], ["r", "g", "b", "a"]];

impl Scopes {
    pub(crate) fn push(&mut self) {
        self.open.push(Scope::default());
    }

    pub(crate) fn pop(&mut self) {
        self.open.pop();
    }

    fn top(&mut self) -> &mut Scope {
        if self.open.is_empty() {
            self.push();
        }
        let last = self.open.len() - 1;
        &mut self.open[last]
    }

    /// A fresh register.
    pub(crate) fn fresh(&mut self, class: Class, bits: u32) -> Reg {
        let (counter, rows) = match class {
            Class::Pred => (&mut self.frame.preds, 1),
            Class::R32 => (&mut self.frame.r32, 1),
            Class::R64 => (&mut self.frame.r64, 1),
            Class::R128 => (&mut self.frame.r64, 2),
        };
        let index = *counter;
        *counter += rows;
        Reg { class, index, bits }
    }

    fn fresh_of(&mut self, ty: Type) -> Reg {
        let class = match ty.bits() {
            _ if ty == Type::Pred => Class::Pred,
            64 => Class::R64,
            128 => Class::R128,
            _ => Class::R32,
        };
        self.fresh(class, ty.bits())
    }

    /// Room in the local frame.
    pub(crate) fn reserve(&mut self, bytes: u32, align: u32) -> Option<u32> {
        let start = self.local.checked_next_multiple_of(align.max(1))?;
        self.local = start.checked_add(bytes)?;
        Some(start)
    }

    pub(crate) fn declare(&mut self, name: &str, what: Name) {
        self.top().names.insert(name.to_owned(), what);
    }

    /// `.reg` declaration of one name.
    pub(crate) fn declare_register(
        &mut self,
        name: &str,
        count: Option<u32>,
        ty: Type,
        vector: u32,
    ) {
        if let Some(count) = count {
            let prefix = name.to_owned();
            return self.top().families.push(FamilyDecl { prefix, count, ty });
        }
        if vector <= 1 {
            let reg = self.fresh_of(ty);
            return self.declare(name, Name::Reg(reg));
        }
        let regs: Vec<Reg> = (0..vector).map(|_| self.fresh_of(ty)).collect();
        for names in COMPONENTS {
            for (component, reg) in names.iter().zip(&regs) {
                self.declare(&format!("{name}.{component}"), Name::Reg(*reg));
            }
        }
        self.declare(name, Name::Vector(regs));
    }

    /// A register as a function parameter.
    pub(crate) fn declare_formal(&mut self, name: &str, ty: Type) -> Reg {
        let reg = self.fresh_of(ty);
        self.declare(name, Name::Reg(reg));
        reg
    }

    /// Returns the meaning of a name here, innermost scope first.
    pub(crate) fn find(&mut self, name: &str) -> Option<Name> {
        for depth in (0..self.open.len()).rev() {
            if let Some(found) = self.open[depth].names.get(name) {
                return Some(found.clone());
            }
            if let Some(ty) = self.open[depth].family_type(name) {
                let reg = Name::Reg(self.fresh_of(ty));
                self.open[depth].names.insert(name.to_owned(), reg.clone());
                return Some(reg);
            }
        }
        None
    }

    pub(crate) fn declare_label(&mut self, name: &str) {
        let id = self.labels.len();
        self.labels.push(None);
        self.top().labels.insert(name.to_owned(), id);
    }

    pub(crate) fn find_label(&self, name: &str) -> Option<usize> {
        self.open.iter().rev().find_map(|s| s.labels.get(name).copied())
    }

    pub(crate) fn declare_targets(&mut self, name: &str, targets: Vec<String>) {
        self.top().targets.insert(name.to_owned(), targets);
    }

    pub(crate) fn find_targets(&self, name: &str) -> Option<&[String]> {
        self.open.iter().rev().find_map(|s| s.targets.get(name)).map(Vec::as_slice)
    }

    /// `.callprototype` (no list) or `.calltargets` of an indirect call.
    pub(crate) fn declare_prototype(&mut self, name: &str, targets: Option<Vec<String>>) {
        self.top().prototypes.insert(name.to_owned(), targets);
    }

    pub(crate) fn find_prototype(&self, name: &str) -> Option<Option<&[String]>> {
        self.open
            .iter()
            .rev()
            .find_map(|s| s.prototypes.get(name))
            .map(|targets| targets.as_deref())
    }
}

impl Scope {
    fn family_type(&self, name: &str) -> Option<Type> {
        self.families.iter().rev().find_map(|family| {
            let number = name.strip_prefix(family.prefix.as_str())?;
            let canonical = number == "0"
                || number.starts_with(|c: char| ('1'..='9').contains(&c))
                    && number.bytes().all(|b| b.is_ascii_digit());
            let index: u32 = number.parse().ok()?;
            (canonical && index < family.count).then_some(family.ty)
        })
    }
}
