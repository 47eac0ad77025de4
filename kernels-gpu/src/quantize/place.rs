//! Places of a warp's 32 blocks in memory, task after task.
//!
//! The layout of the scales determines the tasks ([`QuantizeConfig::tasks`]): there is one
//! [`Walk`] for each layout. One main loop serves both. In it the layout is a uniform branch
//! around the address arithmetic only.

use cuda_std::ptx::marker;
use cuda_std::{thread, warp};
use fp4_formats::ScaleLayout;
use fp4_formats::layout::{TILE_BLOCKS, TILE_BYTES, TILE_ROWS};
use fp4_formats::quantize::{QuantizeConfig, QuantizeParams, ROW_GROUPS_A_TILE, tasks};

/// The scales of a tile's tasks are all of the tile's.
const _: () = assert!(TILE_BYTES == (ROW_GROUPS_A_TILE * warp::LANES) as usize);

/// A lane's own block.
pub struct Place {
    /// Whether it is a block of the matrix.
    pub exists: bool,
    /// Index in the matrix.
    pub block: u64,
    /// Address of its scale; padding where the block does not exist, if the
    /// layout has any.
    pub scale: u64,
}

/// A task of a warp.
#[derive(Clone, Copy)]
pub struct Cursor {
    /// Below 2^32 by [`fp4_formats::quantize::MAX_ELEMENTS`].
    pub task: u32,
    /// Tile of the task in the 128x4 layout: its number in a column of tiles, and in a row of them.
    /// Kept beside `task`, because finding them takes a division.
    row_tile: u32,
    tile: u32,
}

/// Values that all tasks of a warp have in common, seen by one lane. A block has `C` 16-byte words.
pub struct Tasks<const C: usize> {
    /// One past the last task that the warp may take.
    pub end: u32,
    /// Distance from one task of the warp to the next.
    step: u32,
    /// The lane.
    pub lane: u32,
    m: u32,
    /// Blocks of a row.
    blocks: u32,
    /// Address of the scale of the lane's block of task 0.
    scale: u64,
    /// Tiles of a row, and `step` in rows of tiles and tiles, in the 128x4 layout.
    tiles: u32,
    row_step: u32,
    tile_step: u32,
    /// Whether all tasks of a warp are at the same place in their tiles, in the 128x4 layout.
    keeps_place: bool,
    /// Rows and columns, in the 128x4 layout, from a tile's first block, or if not all tasks are at
    /// the same place in it from the task's, to the block that the lane's first word belongs to, and
    /// to the lane's own block.
    of_word: [u32; 2],
    of_lane: [u32; 2],
}

impl<const C: usize> Tasks<C> {
    /// Bytes of a block's elements.
    const BYTES: u64 = C as u64 * 16;
    /// Blocks that the lanes' words of one number belong to.
    const SLOTS: u32 = warp::LANES / C as u32;

    /// The tasks of warp `warp_index` of the CTA, and the first of them. A row has `blocks`
    /// blocks, which is not zero.
    #[inline(always)]
    pub fn new<W: Walk>(
        config: &QuantizeConfig,
        p: &QuantizeParams,
        blocks: u32,
        warp_index: u32,
    ) -> (Self, Cursor) {
        let count = tasks(p.m, blocks, W::LAYOUT) as u32;
        // Persistent CTAs stride over all tasks; others take `depth` tasks per warp, which
        // are consecutive over the CTA.
        let (chunk, step, most) = if config.persistent {
            (config.warps, thread::grid_dim_x() * config.warps, u32::MAX)
        } else {
            let chunk = config.warps * p.depth;
            (chunk, config.warps, thread::block_idx_x() * chunk + chunk)
        };
        let task = thread::block_idx_x() * chunk + warp_index;
        // In this form the compiler sees that it is not zero.
        let tiles = (blocks - 1) / TILE_BLOCKS as u32 + 1;
        let (row_tile, tile) = W::split(task, tiles);
        let (row_step, tile_step) = W::split(step, tiles);
        let lane = warp::lane_id();
        let keeps_place = config.persistent;
        let row = if keeps_place { row_of_task(task) } else { 0 };
        let tasks = Self {
            end: count.min(most),
            step,
            lane,
            m: p.m,
            blocks,
            scale: p.scales + u64::from(lane),
            tiles,
            row_step,
            tile_step,
            keeps_place,
            of_word: W::slot(row, lane / C as u32),
            of_lane: W::slot(row, lane),
        };
        (tasks, Cursor { task, row_tile, tile })
    }

    /// Address of the scale of the lane's block: the scales of a task are consecutive, and those of
    /// the next task follow.
    #[inline(always)]
    fn scale(&self, task: u32) -> u64 {
        self.scale + u64::from(task) * u64::from(warp::LANES)
    }

    /// Byte offset of the lane's words in their blocks.
    #[inline(always)]
    fn first_byte(&self) -> u64 {
        u64::from(self.lane % C as u32 * 16)
    }
}

/// Places from which a lane loads a task's words.
pub struct Loads {
    /// Byte offset of the words of position 0 in a matrix.
    pub start: u64,
    /// Position of word 0: a block of the task (linear) or a row (128x4).
    position: u32,
    /// The last position that exists; later ones are aliases of it.
    last: u32,
}

/// A layout's tasks.
pub trait Walk {
    /// Layout of the scales; the padding of 128x4 must be written.
    const LAYOUT: ScaleLayout;

    /// A number of tasks as rows of tiles and tiles; zeros if the layout has none.
    fn split(tasks: u32, tiles: u32) -> (u32, u32);

    /// `row`, and rows and columns from a task's first block to block `slot` of the task; zeros if
    /// the layout does not need them.
    fn slot(row: u32, slot: u32) -> [u32; 2];

    /// Advances to the warp's next task.
    fn advance<const C: usize>(tasks: &Tasks<C>, cursor: &mut Cursor);

    /// Returns the places of the lane's words of a task.
    fn loads<const C: usize>(tasks: &Tasks<C>, cursor: &Cursor) -> Loads;

    /// Returns the distance in bytes of the lane's word `i` of `C` behind [`Loads::start`]. The
    /// lanes' words of one number are consecutive; words of blocks that do not exist are aliases of
    /// others.
    fn word<const C: usize>(tasks: &Tasks<C>, loads: &Loads, i: u32) -> u64;

    /// This lane's block.
    fn place<const C: usize>(tasks: &Tasks<C>, cursor: &Cursor) -> Place;
}

/// Tasks of 32 consecutive blocks.
pub struct Linear;

impl Linear {
    /// Blocks of the task, less than 32 only in the last.
    #[inline(always)]
    fn blocks<const C: usize>(tasks: &Tasks<C>, task: u32) -> u32 {
        let all = u64::from(tasks.m) * u64::from(tasks.blocks);
        let lanes = u64::from(warp::LANES);
        if task < (all / lanes) as u32 { warp::LANES } else { (all % lanes) as u32 }
    }
}

impl Walk for Linear {
    const LAYOUT: ScaleLayout = ScaleLayout::Linear;

    #[inline(always)]
    fn split(_tasks: u32, _tiles: u32) -> (u32, u32) {
        (0, 0)
    }

    #[inline(always)]
    fn slot(_row: u32, _slot: u32) -> [u32; 2] {
        [0, 0]
    }

    #[inline(always)]
    fn advance<const C: usize>(tasks: &Tasks<C>, cursor: &mut Cursor) {
        cursor.task += tasks.step;
    }

    #[inline(always)]
    fn loads<const C: usize>(tasks: &Tasks<C>, cursor: &Cursor) -> Loads {
        let (slot, byte) = (tasks.lane / C as u32, tasks.first_byte());
        let task_bytes = u64::from(warp::LANES) * Tasks::<C>::BYTES;
        Loads {
            start: byte + u64::from(cursor.task) * task_bytes,
            // The pin keeps one sum per word from being computed before the loop, where each
            // would take a register.
            position: marker::pin(slot),
            last: Self::blocks(tasks, cursor.task) - 1,
        }
    }

    #[inline(always)]
    fn word<const C: usize>(_tasks: &Tasks<C>, loads: &Loads, i: u32) -> u64 {
        let slot = (loads.position + i * Tasks::<C>::SLOTS).min(loads.last);
        u64::from(slot) * Tasks::<C>::BYTES
    }

    #[inline(always)]
    fn place<const C: usize>(tasks: &Tasks<C>, cursor: &Cursor) -> Place {
        let block = u64::from(cursor.task) * u64::from(warp::LANES) + u64::from(tasks.lane);
        let exists = tasks.lane < Self::blocks(tasks, cursor.task);
        Place { exists, block, scale: tasks.scale(cursor.task) }
    }
}

/// Tasks of four consecutive blocks of eight rows of a 128x4 tile, in the order of their scales: the
/// tasks of a tile follow one another, and so do the tiles of a row of tiles.
pub struct Tiled;

impl Walk for Tiled {
    const LAYOUT: ScaleLayout = ScaleLayout::Blocked128x4;

    #[inline(always)]
    fn split(tasks: u32, tiles: u32) -> (u32, u32) {
        let whole = tasks / ROW_GROUPS_A_TILE;
        (whole / tiles, whole % tiles)
    }

    #[inline(always)]
    fn slot(row: u32, slot: u32) -> [u32; 2] {
        [row + row_of_slot(slot), slot % TILE_BLOCKS as u32].map(marker::pin)
    }

    #[inline(always)]
    fn advance<const C: usize>(tasks: &Tasks<C>, cursor: &mut Cursor) {
        let before = cursor.task;
        cursor.task += tasks.step;
        cursor.row_tile += tasks.row_step;
        cursor.tile += tasks.tile_step;
        if !tasks.keeps_place {
            let [before, step] = [before, tasks.step].map(|tasks| tasks % ROW_GROUPS_A_TILE);
            cursor.tile += (before + step) / ROW_GROUPS_A_TILE;
        }
        if cursor.tile >= tasks.tiles {
            cursor.tile -= tasks.tiles;
            cursor.row_tile += 1;
        }
    }

    #[inline(always)]
    fn loads<const C: usize>(tasks: &Tasks<C>, cursor: &Cursor) -> Loads {
        let [row, column] = tasks.of_word;
        let column = cursor.tile * TILE_BLOCKS as u32 + column;
        Loads {
            start: tasks.first_byte() + u64::from(column.min(tasks.blocks - 1)) * Tasks::<C>::BYTES,
            position: first_row(tasks, cursor) + row,
            last: tasks.m - 1,
        }
    }

    #[inline(always)]
    fn word<const C: usize>(tasks: &Tasks<C>, loads: &Loads, i: u32) -> u64 {
        let pitch = u64::from(here(tasks.blocks)) * Tasks::<C>::BYTES;
        let row = (loads.position + row_of_slot(i * Tasks::<C>::SLOTS)).min(loads.last);
        u64::from(row) * pitch
    }

    #[inline(always)]
    fn place<const C: usize>(tasks: &Tasks<C>, cursor: &Cursor) -> Place {
        let [row, column] = tasks.of_lane;
        let row = first_row(tasks, cursor) + row;
        let column = cursor.tile * TILE_BLOCKS as u32 + column;
        Place {
            exists: row < tasks.m && column < tasks.blocks,
            block: u64::from(row) * u64::from(tasks.blocks) + u64::from(column),
            scale: tasks.scale(cursor.task),
        }
    }
}

/// The value, tied to this place: without the pin, what is computed from it would move in
/// front of the main loop, where it costs time in the other layout too.
#[inline(always)]
fn here(value: u32) -> u32 {
    marker::pin(value)
}

/// Returns the row, in the 128x4 layout, to which that of [`Tasks::of_word`] and [`Tasks::of_lane`]
/// is added.
#[inline(always)]
fn first_row<const C: usize>(tasks: &Tasks<C>, cursor: &Cursor) -> u32 {
    let in_tile = if tasks.keeps_place { 0 } else { row_of_task(cursor.task) };
    cursor.row_tile * TILE_ROWS as u32 + in_tile
}

/// First row of a task in its 128x4 tile.
#[inline(always)]
fn row_of_task(task: u32) -> u32 {
    task % ROW_GROUPS_A_TILE * 2
}

/// Rows from block 0 to block `slot` of a task in the 128x4 layout.
///
/// Blocks `4 i .. 4 i + 4` of a task are four consecutive blocks of a row. Rows 32 apart
/// share 16 bytes of scales, so that the scales of a task's blocks are consecutive.
#[inline(always)]
fn row_of_slot(slot: u32) -> u32 {
    slot / 16 + slot % 16 / 4 * 32
}
