//! The items of a CTA's run as the consumers see them. In a grouped product the producer, which
//! looks for a tile while stages are full, hands them over in shared memory ([`Message`]). In other
//! products they are computed before the main loop and again after it, to save registers.
//!
//! The first item, which no stage hides, is handed over by another warp than the producer's, while
//! the producer begins to copy; the consumers wait for it at the barrier `first_message`. A later item is written
//! before the first stage of its tile is filled, so that a consumer that has waited for that stage
//! sees it. Before the producer writes a message to the same place again, all consumers have released a stage
//! of a later tile.

use core::mem::offset_of;

use cuda_std::ptx::memory as words;
use fp4_formats::gemm::Item;
use fp4_formats::gemm::sm90::config::Sm90Config;
use fp4_formats::gemm::sm90::message::{LAST, Message, OWNED};

use super::memory::Memory;
use super::tile::{self, Tile};
use super::{Cta, Sm90};
use crate::gemm::walk::{Source, Visit, Walk};
use crate::gemm::work::WorkList;

/// Writes an item of the CTA's run as message number `index`.
///
/// # Safety
/// `tile` is the item's tile, and no consumer needs that message's old contents.
#[inline(always)]
pub unsafe fn hand_over<L: WorkList>(cta: &Cta<'_, L>, index: u32, (item, tile): (&Item, &Tile)) {
    // SAFETY: the tile's problem exists.
    let alphas = unsafe { cta.alphas(tile.problem) };
    let last = Walk::behind(cta, item).is_done(cta);
    let flag = |is: bool, flag| if is { flag } else { 0 };
    let flags = flag(L::owned(cta, item), OWNED) | flag(last, LAST);
    let Tile { problem, matrix, row_tile, token, end, rows, width } = *tile;
    let all = [
        (offset_of!(Message, first_step), item.first),
        (offset_of!(Message, end_step), item.end),
        (offset_of!(Message, flags), flags),
        (offset_of!(Message, first_cta), L::first_cta(cta, item)),
        (offset_of!(Message, tile.problem), problem),
        (offset_of!(Message, tile.matrix), matrix),
        (offset_of!(Message, tile.row_tile), row_tile),
        (offset_of!(Message, tile.token), token),
        (offset_of!(Message, tile.end), end),
        (offset_of!(Message, tile.rows), rows),
        (offset_of!(Message, tile.width), width),
        // The last ones: they are loaded meanwhile.
        (offset_of!(Message, alphas), alphas[0].to_bits()),
        (offset_of!(Message, alphas) + size_of::<u32>(), alphas[1].to_bits()),
    ];
    let message = cta.memory.message(index);
    for (field, word) in all {
        // SAFETY: a word of the message.
        unsafe { words::st_shared_b32(message + field as u32, word) };
    }
}

/// The number of the message after number `index`.
#[inline(always)]
pub fn next(config: &Sm90Config, index: u32) -> u32 {
    if index + 1 == config.messages() { 0 } else { index + 1 }
}

/// The consumers' source of items: in grouped products the messages of the producer, in others the CTA's
/// run. An item of a message has the message's number in place of the tile's.
#[derive(Clone, Copy)]
pub struct Received;

impl<L: WorkList> Source<Sm90, L> for Received {
    #[inline(always)]
    fn start(cta: &Cta<'_, L>) -> (Self, u32) {
        (Self, if L::GROUPED { 0 } else { L::run(cta).end })
    }

    /// Only a CTA without items begins behind its last one: consumers leave their loop at the last item.
    #[inline(always)]
    fn is_done(&self, cta: &Cta<'_, L>, at: u32) -> bool {
        if L::GROUPED { L::run(cta).is_empty() } else { L::rest(cta, at).is_empty() }
    }

    #[inline(always)]
    unsafe fn item(&self, cta: &Cta<'_, L>, at: u32) -> Item {
        if L::GROUPED {
            return message_item::<L>(cta.memory, at);
        }
        // SAFETY: the caller's.
        unsafe { Walk::resumed(cta, at).item(cta) }
    }

    #[inline(always)]
    unsafe fn next(&mut self, cta: &Cta<'_, L>, at: u32, item: &Item) -> u32 {
        if L::GROUPED { next(cta.config, at) } else { L::end(cta, item) }
    }
}

/// The item of message number `index`.
#[inline(always)]
fn message_item<L: WorkList>(memory: Memory, index: u32) -> Item {
    let first = word(memory, index, offset_of!(Message, first_step));
    let end = word(memory, index, offset_of!(Message, end_step));
    // Kernels without a fix-up compile none of it.
    Item { tile: index, first: if L::WHOLE_TILES { 0 } else { first }, end }
}

/// Visits the item at position `at` of the consumers' walk: [`Walk::visit`], or its message if it has one.
///
/// # Safety
/// There is an item. In a grouped product, its message is written, and the thread has observed that.
#[inline(always)]
pub unsafe fn visit<L: WorkList>(cta: &Cta<'_, L>, at: u32) -> Visit {
    if L::GROUPED {
        let flags = word(cta.memory, at, offset_of!(Message, flags));
        return Visit {
            item: message_item::<L>(cta.memory, at),
            owned: L::WHOLE_TILES || flags & OWNED != 0,
            last: flags & LAST != 0,
            next: next(cta.config, at),
        };
    }
    Walk::resumed(cta, at).visit(cta)
}

/// The first CTA that computes steps of an item's tile.
///
/// # Safety
/// As [`visit`].
#[inline(always)]
pub unsafe fn first_cta<L: WorkList>(cta: &Cta<'_, L>, item: &Item) -> u32 {
    if L::GROUPED {
        return word(cta.memory, item.tile, offset_of!(Message, first_cta));
    }
    L::first_cta(cta, item)
}

/// An item's tile.
///
/// # Safety
/// As [`visit`].
#[inline(always)]
pub unsafe fn tile<L: WorkList>(cta: &Cta<'_, L>, item: &Item) -> Tile {
    if L::GROUPED {
        let word = |field| word(cta.memory, item.tile, field);
        return Tile {
            problem: word(offset_of!(Message, tile.problem)),
            matrix: word(offset_of!(Message, tile.matrix)),
            row_tile: word(offset_of!(Message, tile.row_tile)),
            token: word(offset_of!(Message, tile.token)),
            end: word(offset_of!(Message, tile.end)),
            rows: word(offset_of!(Message, tile.rows)),
            width: width(cta.memory, item),
        };
    }
    tile::find(cta, item.tile)
}

/// Alpha of each half of the problem of an item's tile, with the problem's factors.
///
/// # Safety
/// As [`visit`].
#[inline(always)]
pub unsafe fn alphas<L: WorkList>(cta: &Cta<'_, L>, item: &Item, tile: &Tile) -> [f32; 2] {
    if L::GROUPED {
        let alpha = |at| f32::from_bits(word(cta.memory, item.tile, at));
        let first = offset_of!(Message, alphas);
        return [alpha(first), alpha(first + size_of::<u32>())];
    }
    // SAFETY: the tile's problem exists.
    unsafe { cta.alphas(tile.problem) }
}

/// Returns [`Tile::width`] of an item's tile: the configuration's tokens, unless it has several
/// widths. Only grouped products have several, so the width is read from the item's message.
#[inline(always)]
pub fn width(memory: Memory, item: &Item) -> u32 {
    if memory.config.has_widths() {
        word(memory, item.tile, offset_of!(Message, tile.width))
    } else {
        memory.config.tokens
    }
}

/// A word of message number `index`.
#[inline(always)]
fn word(memory: Memory, index: u32, field: usize) -> u32 {
    // SAFETY: a word of the message, which is written.
    unsafe { words::ld_shared_b32(memory.message(index) + field as u32) }
}
