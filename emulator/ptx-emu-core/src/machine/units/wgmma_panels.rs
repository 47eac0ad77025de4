//! Decoded `B` tiles of `wgmma`. The warps of a warpgroup, and often several
//! warpgroups, multiply with the same tile. It is decoded once and found again by its
//! bytes, which is correct whatever is written to shared memory between the products.

use crate::tensor::element::Element;
use crate::tensor::product::FloatColumns;
use crate::tensor::tile::Tile;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Tiles that are kept: those of a few stages, which warps pass at different times.
const KEPT: usize = 16;

#[derive(Debug)]
struct Entry {
    element: Element,
    shape: (usize, usize),
    negate: bool,
    bytes: Vec<u8>,
    columns: Rc<FloatColumns>,
}

/// The latest tiles of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Panels {
    entries: VecDeque<Entry>,
}

/// [`Panels`], shared by the operations that use them.
pub(crate) type SharedPanels = Rc<RefCell<Panels>>;

impl Panels {
    /// The columns of a tile.
    pub(crate) fn columns(&mut self, tile: &Tile<'_>) -> Rc<FloatColumns> {
        let Tile { element, rows, k, negate, bytes, .. } = *tile;
        let same = |entry: &&Entry| {
            (entry.element, entry.shape, entry.negate) == (element, (rows, k), negate)
                && entry.bytes == bytes
        };
        if let Some(entry) = self.entries.iter().find(same) {
            return Rc::clone(&entry.columns);
        }
        let mut columns = FloatColumns::default();
        tile.float_columns(&mut columns);
        let columns = Rc::new(columns);
        self.entries.truncate(KEPT - 1);
        self.entries.push_front(Entry {
            element,
            shape: (rows, k),
            negate,
            bytes: bytes.to_vec(),
            columns: Rc::clone(&columns),
        });
        columns
    }
}
