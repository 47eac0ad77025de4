//! The walk of a role over the items of its CTA: which tile is next, and which K steps of it. Every role of
//! both architectures takes tiles in this form:
//!
//! ```text
//! let mut walk = Walk::<S>::start(cta);
//! while let Some(item) = walk.current(cta) {
//!     for step in item.first..item.end { .. }
//!     walk.advance(cta, &item);
//! }
//! ```
//!
//! A walk holds a position, from which its [`Source`] computes the item when it is asked for:
//!
//! | source | position | roles |
//! |---|---|---|
//! | [`OwnRun`] | the end of the rest of the CTA's run | sm_90a: producer, consumers of dense products |
//! | `sm90::message::Received` | number of a message in shared memory | sm_90a: consumers of grouped and mixed products |
//! | `sm100::schedule::Scheduled` | number of a tile, which the hardware hands out or which is the cluster's in turn; or the complement of [`OwnRun`]'s | sm_100a: all |
//!
//! sm_90a's consumers have no register left for more than the position. For the same reason they leave their
//! loop where an item is [the last](Visit::last) instead of testing for the end at its head: with that test
//! ptxas keeps addresses of the main loop out of uniform registers, and the loop of the 128x128 kernel grows
//! from 180 instructions to 200.

use cuda_std::ptx::marker;
use fp4_formats::gemm::{Item, Run};

use super::cta::{Cta, Target};
use super::work::WorkList;

/// A source of items, which computes them from positions.
pub trait Source<T: Target, L: WorkList>: Copy {
    /// The source, and the position of the CTA's first item.
    fn start(cta: &Cta<'_, T, L>) -> (Self, u32);

    /// Whether the position is behind the last item.
    fn is_done(&self, cta: &Cta<'_, T, L>, at: u32) -> bool;

    /// The item at a position.
    ///
    /// # Safety
    /// There is one. The table of the work list, if it has one, is made; a message, if the item comes by one,
    /// is written; and the thread has observed that.
    unsafe fn item(&self, cta: &Cta<'_, T, L>, at: u32) -> Item;

    /// The position behind an item, which is at `at`.
    ///
    /// # Safety
    /// Called once for each item, by all threads of the role.
    unsafe fn next(&mut self, cta: &Cta<'_, T, L>, at: u32, item: &Item) -> u32;
}

/// A role's walk.
#[derive(Clone, Copy)]
pub struct Walk<S> {
    source: S,
    at: u32,
}

impl<S: Copy> Walk<S> {
    /// Starts at the CTA's first item.
    #[inline(always)]
    pub fn start<T: Target, L: WorkList>(cta: &Cta<'_, T, L>) -> Self
    where
        S: Source<T, L>,
    {
        let (source, at) = S::start(cta);
        Self { source, at }
    }

    /// Whether there are no more items.
    #[inline(always)]
    pub fn is_done<T: Target, L: WorkList>(&self, cta: &Cta<'_, T, L>) -> bool
    where
        S: Source<T, L>,
    {
        self.source.is_done(cta, self.at)
    }

    /// The item, which there is.
    ///
    /// # Safety
    /// As [`Source::item`].
    #[inline(always)]
    pub unsafe fn item<T: Target, L: WorkList>(&self, cta: &Cta<'_, T, L>) -> Item
    where
        S: Source<T, L>,
    {
        // SAFETY: the caller's.
        unsafe { self.source.item(cta, self.at) }
    }

    /// The item, or none if there are no more.
    ///
    /// # Safety
    /// As [`Source::item`], if there is one.
    #[inline(always)]
    pub unsafe fn current<T: Target, L: WorkList>(&self, cta: &Cta<'_, T, L>) -> Option<Item>
    where
        S: Source<T, L>,
    {
        // SAFETY: the caller's; there is an item.
        (!self.is_done(cta)).then(|| unsafe { self.item(cta) })
    }

    /// Advances to the next item.
    ///
    /// # Safety
    /// As [`Source::next`]; `item` is the [current](Self::current) one.
    #[inline(always)]
    pub unsafe fn advance<T: Target, L: WorkList>(&mut self, cta: &Cta<'_, T, L>, item: &Item)
    where
        S: Source<T, L>,
    {
        // SAFETY: the caller's.
        self.at = unsafe { self.source.next(cta, self.at, item) };
    }

    /// The position.
    #[inline(always)]
    pub fn position(&self) -> u32 {
        self.at
    }

    /// The same walk at another position.
    #[inline(always)]
    pub fn at(self, position: u32) -> Self {
        Self { at: position, ..self }
    }

    /// The same walk. The compiler does not know that, so that what it computes from the position before a
    /// main loop does not stay in registers for uses behind it.
    #[inline(always)]
    pub fn pinned(self) -> Self {
        self.at(marker::pin(self.at))
    }
}

/// The items of the CTA's [run](WorkList::run), the last one first.
#[derive(Clone, Copy)]
pub struct OwnRun {
    /// Begin of the run.
    first: u32,
}

impl<T: Target, L: WorkList> Source<T, L> for OwnRun {
    #[inline(always)]
    fn start(cta: &Cta<'_, T, L>) -> (Self, u32) {
        let Run { first, end } = L::run(cta);
        (Self { first }, end)
    }

    #[inline(always)]
    fn is_done(&self, _: &Cta<'_, T, L>, at: u32) -> bool {
        Run { first: self.first, end: at }.is_empty()
    }

    #[inline(always)]
    unsafe fn item(&self, cta: &Cta<'_, T, L>, at: u32) -> Item {
        L::take(cta, &mut Run { first: self.first, end: at })
    }

    #[inline(always)]
    unsafe fn next(&mut self, cta: &Cta<'_, T, L>, _: u32, item: &Item) -> u32 {
        L::end(cta, item)
    }
}

/// An item with all that a role asks about it, for roles that keep no item across their main loop.
#[derive(Clone, Copy)]
pub struct Visit {
    /// The item.
    pub item: Item,
    /// Whether the CTA stores the tile.
    pub owned: bool,
    /// Whether the item is the walk's last.
    pub last: bool,
    /// The position behind it.
    pub next: u32,
}

impl Walk<OwnRun> {
    /// The walk at a position: the run is computed again.
    #[inline(always)]
    pub fn resumed<T: Target, L: WorkList>(cta: &Cta<'_, T, L>, position: u32) -> Self {
        let Run { first, end } = L::rest(cta, position);
        Self { source: OwnRun { first }, at: end }
    }

    /// The walk behind `item`, one of the CTA's.
    #[inline(always)]
    pub fn behind<T: Target, L: WorkList>(cta: &Cta<'_, T, L>, item: &Item) -> Self {
        Self::resumed(cta, L::end(cta, item))
    }

    /// The item, which there is, and its answers.
    #[inline(always)]
    pub fn visit<T: Target, L: WorkList>(&self, cta: &Cta<'_, T, L>) -> Visit {
        let mut run = Run { first: self.source.first, end: self.at };
        let item = L::take(cta, &mut run);
        Visit { item, owned: L::owned(cta, &item), last: run.is_empty(), next: run.end }
    }
}
