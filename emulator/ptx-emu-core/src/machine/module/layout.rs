//! The layout of variables: sizes, alignments, initial bytes, and addresses that are known only
//! at launch.

use crate::load_error::LoadError;
use crate::machine::window;
use crate::syntax::Type;
use crate::syntax::ast::{Imm, Init, Variable};
use std::collections::HashMap;

/// A byte range of an initial image that is an address.
#[derive(Debug, Clone)]
pub(crate) struct Patch {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) symbol: String,
    pub(crate) addend: i64,
    pub(crate) generic: bool,
    pub(crate) mask: Option<u64>,
}

/// A `.global` variable.
#[derive(Debug, Clone)]
pub(crate) struct GlobalVariable {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) align: u64,
    /// Initial bytes, none without an initialiser: PTX zero-fills (5.4.4).
    pub(crate) image: Vec<u8>,
    pub(crate) patches: Vec<Patch>,
}

/// A `.shared` variable.
#[derive(Debug, Clone)]
pub(crate) struct SharedVariable {
    pub(crate) size: u32,
    pub(crate) align: u32,
    /// `.extern` without a size: starts where static shared memory ends.
    pub(crate) dynamic: bool,
}

/// Offsets of a kernel's shared variables from the first usable byte.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedLayout {
    pub(crate) offsets: HashMap<usize, u32>,
    /// Bytes of static shared memory, rounded up to where dynamic starts.
    pub(crate) end: u32,
}

/// The meaning of a module-level name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    Global(usize),
    /// Offset in the constant bank.
    Const(u32),
    Shared(usize),
    Function(usize),
}

/// An address that a launch fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Relocation {
    Global(usize),
    Shared(usize),
}

/// Value of a function's name.
pub(crate) const fn function_address(index: usize) -> u64 {
    window::FUNCTION | index as u64
}

/// Size and alignment of a variable, bytes; size 0 for an open array.
pub(crate) fn size_align(variable: &Variable) -> Result<(u64, u32), LoadError> {
    let bad = |field, required, actual| LoadError::declaration(variable, field, required, actual);
    let element = match Type::parse(&variable.ty) {
        Some(Type::Pred) | None => {
            return Err(bad("type", "a fundamental type of known size", variable.ty.clone()));
        }
        Some(ty) => u64::from(ty.bytes()),
    };
    let each = element * u64::from(variable.vector.max(1));
    let count = variable.dims.iter().enumerate().try_fold(1u64, |count, (at, dim)| match dim {
        Some(dim) => count.checked_mul(*dim),
        // `a[] = {..}` has as many elements as its initialiser.
        None if at == 0 => match &variable.init {
            Some(Init::List(items)) => count.checked_mul(items.len() as u64),
            _ => Some(0),
        },
        None => None,
    });
    let size = count
        .and_then(|count| count.checked_mul(each))
        .filter(|&size| size <= 1 << 40)
        .ok_or_else(|| bad("size", "at most 2^40 bytes", format!("{:?}", variable.dims)))?;
    let align = variable.align.unwrap_or(each as u32);
    if !align.is_power_of_two() || align > 1 << 16 {
        return Err(bad("align", "a power of two", align.to_string()));
    }
    Ok((size, align))
}

/// Initial bytes of a variable and the addresses among them.
pub(crate) fn image(variable: &Variable, size: u64) -> Result<(Vec<u8>, Vec<Patch>), LoadError> {
    let bad = |required: String, actual| {
        LoadError::declaration(variable, "initialiser", &required, actual)
    };
    let mut patches = Vec::new();
    let Some(init) = &variable.init else {
        return Ok((Vec::new(), patches));
    };
    // The text holds only so many values; the rest is zeros, but an image this
    // large is no variable with an initialiser.
    if size > 1 << 30 {
        return Err(bad("at most 2^30 bytes with an initialiser".to_owned(), size.to_string()));
    }
    let mut bytes = vec![0; size as usize];
    // Strides of each nesting level, outermost first, the element last.
    let element = Type::parse(&variable.ty).map_or(1, Type::bytes) as usize;
    let mut counts: Vec<usize> = Vec::new();
    for dim in &variable.dims {
        counts.push(dim.map_or(usize::MAX, |dim| dim as usize));
    }
    if variable.vector > 1 {
        counts.push(variable.vector as usize);
    }
    let strides: Vec<usize> = (0..counts.len())
        .map(|level| counts[level + 1..].iter().fold(element, |all, n| all.saturating_mul(*n)))
        .collect();
    let mut work = vec![(init, 0usize, 0usize)];
    while let Some((init, level, at)) = work.pop() {
        match init {
            Init::List(items) => {
                let stride = strides.get(level).copied().unwrap_or(element);
                for (k, item) in items.iter().enumerate() {
                    work.push((item, level + 1, at.saturating_add(k.saturating_mul(stride))));
                }
            }
            Init::Value(value) => {
                let bits = match (value, variable.ty.as_str()) {
                    (Imm::Int { bits, .. }, _) => *bits,
                    (Imm::F32(bits), "f64") => f64::from(f32::from_bits(*bits)).to_bits(),
                    (Imm::F32(bits), _) => u64::from(*bits),
                    (Imm::F64(bits), "f32") => u64::from((f64::from_bits(*bits) as f32).to_bits()),
                    (Imm::F64(bits), _) => *bits,
                };
                let Some(room) = bytes.get_mut(at..at.saturating_add(element.min(8))) else {
                    return Err(bad(format!("at most {size} bytes"), format!("more at byte {at}")));
                };
                room.copy_from_slice(&bits.to_le_bytes()[..element.min(8)]);
            }
            Init::Field { name, .. } => {
                return Err(bad("bytes".to_owned(), format!("the property {name}")));
            }
            Init::Symbol { name, offset, generic, mask } => {
                if at.saturating_add(element) > bytes.len() {
                    return Err(bad(format!("at most {size} bytes"), format!("more at byte {at}")));
                }
                patches.push(Patch {
                    offset: at,
                    bytes: element.min(8),
                    symbol: name.clone(),
                    addend: *offset,
                    generic: *generic,
                    mask: *mask,
                });
            }
        }
    }
    Ok((bytes, patches))
}
