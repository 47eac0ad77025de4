//! Names as addresses: variables of the module, of the frame, parameters.

use super::scope::Name;
use super::{AddressBase, Decode, Decoded, Reject, Source};
use crate::Family;
use crate::machine::code::Op;
use crate::machine::module::{Relocation, Symbol, function_address};
use crate::machine::regs::{Class, LANES, Slot};
use crate::syntax::ast;

/// A name used as an address: where it is, and which space it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) base: AddressBase,
    pub(crate) offset: i64,
    /// Space of a named variable; `None` for a register.
    pub(crate) space: Option<ast::Space>,
}

impl Decode<'_> {
    /// A row that holds an address.
    pub(super) fn address_value(&mut self, place: Place, bits: u32) -> Decoded<Source> {
        match place.base {
            AddressBase::R64(slot) if bits == 64 => Ok(Source { class: Class::R64, slot }),
            AddressBase::R32(slot) if bits == 32 => Ok(Source { class: Class::R32, slot }),
            AddressBase::Frame => {
                let offset = place.offset as u64;
                if bits == 64 {
                    let slot = self.scratch::<u64>();
                    self.emit(
                        Family::Move,
                        Op::Effect(Box::new(move |cx, mask| {
                            let value = u64::from(cx.frame) + offset;
                            cx.regs.put(slot, mask, &[value; LANES]);
                            Ok(())
                        })),
                    );
                    Ok(Source { class: Class::R64, slot })
                } else {
                    let slot = self.scratch::<u32>();
                    self.emit(
                        Family::Move,
                        Op::Effect(Box::new(move |cx, mask| {
                            let value = cx.frame + offset as u32;
                            cx.regs.put(slot, mask, &[value; LANES]);
                            Ok(())
                        })),
                    );
                    Ok(Source { class: Class::R32, slot })
                }
            }
            _ => Err(Reject::operand(format!(
                "an address as a value: required 32 or 64 bits, actual {bits}"
            ))),
        }
    }

    /// Finds the place of a name, as an address `offset` bytes on. The base is a 64-bit constant
    /// row for variables of module lifetime.
    pub(crate) fn place(&mut self, name: &str, offset: i64) -> Decoded<Place> {
        let found = self.function.scopes.find(name);
        let symbol = match found {
            Some(Name::Reg(reg)) => {
                let base = match reg.class {
                    Class::R64 => AddressBase::R64(reg.slot()),
                    Class::R32 => AddressBase::R32(reg.slot()),
                    _ => return Err(Reject::operand(format!("`{name}` as an address"))),
                };
                return Ok(Place { base, offset, space: None });
            }
            Some(Name::Frame { offset: at, .. }) => {
                return Ok(Place {
                    base: AddressBase::Frame,
                    offset: i64::from(at) + offset,
                    space: Some(ast::Space::Local),
                });
            }
            Some(Name::Param { offset: at }) => {
                let value = u64::from(at).wrapping_add_signed(offset);
                return Ok(self.fixed(value, ast::Space::Param));
            }
            Some(Name::Vector(_)) => {
                return Err(Reject::operand(format!("vector `{name}` as an address")));
            }
            Some(Name::Module(symbol)) => symbol,
            None => match self.module.symbols.get(name) {
                Some(symbol) => *symbol,
                None => return Err(Reject::UnknownSymbol(name.to_owned())),
            },
        };
        Ok(match symbol {
            Symbol::Global(index) => Place {
                base: AddressBase::R64(
                    self.module.pool.address64(Relocation::Global(index), offset as u64),
                ),
                offset: 0,
                space: Some(ast::Space::Global),
            },
            Symbol::Const(at) => {
                self.fixed(u64::from(at).wrapping_add_signed(offset), ast::Space::Const)
            }
            Symbol::Shared(index) => {
                self.uses_shared(index);
                Place {
                    base: AddressBase::R64(
                        self.module.pool.address64(Relocation::Shared(index), offset as u64),
                    ),
                    offset: 0,
                    space: Some(ast::Space::Shared),
                }
            }
            Symbol::Function(index) => {
                // Its address may be called from anywhere.
                self.function.calls.push(index);
                self.fixed(function_address(index), ast::Space::Global)
            }
        })
    }

    fn fixed(&mut self, value: u64, space: ast::Space) -> Place {
        Place { base: AddressBase::R64(self.module.pool.u64(value)), offset: 0, space: Some(space) }
    }

    fn uses_shared(&mut self, index: usize) {
        if !self.function.shared.contains(&index) {
            self.function.shared.push(index);
        }
    }

    /// A 32-bit row with the shared or constant address of a variable, which
    /// `mov.u32` may take.
    pub(crate) fn address32(&mut self, name: &str, offset: i64) -> Option<Slot> {
        let symbol = match self.function.scopes.find(name) {
            Some(Name::Module(symbol)) => symbol,
            Some(_) => return None,
            None => *self.module.symbols.get(name)?,
        };
        match symbol {
            Symbol::Shared(index) => {
                self.uses_shared(index);
                let relocation = Relocation::Shared(index);
                Some(self.module.pool.address32(relocation, offset as u32))
            }
            Symbol::Const(at) => Some(self.module.pool.u32(at.wrapping_add(offset as u32))),
            _ => None,
        }
    }
}
