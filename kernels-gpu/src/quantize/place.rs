//! Where a warp's 32 blocks are in memory, task after task.

use super::TaskShape;
use cuda_std::{thread, warp};
use fp4_formats::ScaleLayout;
use fp4_formats::layout::{TILE_BLOCKS, TILE_BYTES, TILE_ROWS};
use fp4_formats::quantize::{QuantizeConfig, QuantizeParams, ROW_GROUPS_A_TILE};

/// A lane's own block.
pub struct Place {
    /// Whether it is a block of the matrix.
    pub exists: bool,
    /// Row.
    pub row: u32,
    /// Index in its row.
    pub column: u32,
    /// Index in the matrix.
    pub block: u64,
    /// Address of its scale; padding where the block does not exist, if the
    /// layout has any.
    pub scale: u64,
}

/// Where a lane loads from: its word of position `p` is at `offset + p * pitch`, from
/// the start of an operand.
pub struct Loads {
    offset: u64,
    /// Of the first word: a block of the task (linear) or a row (128x4).
    position: u32,
    /// Positions that exist; later ones are aliases of the last.
    limit: u32,
    /// Bytes.
    pitch: u64,
}

/// Which blocks a task has.
pub trait Walk: Sized {
    /// Of the scales; the padding of 128x4 must be written.
    const LAYOUT: ScaleLayout;

    fn new(p: &QuantizeParams, shape: &TaskShape) -> Self;

    /// Where this lane loads from.
    fn loads(&self, task: u32) -> Loads;

    /// This lane's block. Row and column of linear blocks, which take a division, only
    /// if `by_row`.
    fn place(&self, task: u32, by_row: bool) -> Place;

    /// How much further than slot 0's the position of slot `slots` is.
    fn step(slots: u32) -> u32;

    /// Byte offset of the lane's word `i` of `C`.
    ///
    /// The lanes' words `i` are consecutive.
    #[inline(always)]
    fn word<const C: usize>(loads: &Loads, i: usize) -> u64 {
        let step = Self::step(i as u32 * (warp::LANES / C as u32));
        let position = (loads.position + step).min(loads.limit - 1);
        loads.offset + u64::from(position) * loads.pitch
    }
}

/// Tasks of 32 consecutive blocks.
pub struct Linear {
    shape: TaskShape,
    /// Tasks of 32 blocks, and blocks after them.
    full: u32,
    rest: u32,
    scales: u64,
}

impl Linear {
    /// Blocks of the task, less than 32 only in the last.
    #[inline(always)]
    fn limit(&self, task: u32) -> u32 {
        if task < self.full { warp::LANES } else { self.rest }
    }
}

impl Walk for Linear {
    const LAYOUT: ScaleLayout = ScaleLayout::Linear;

    #[inline(always)]
    fn new(p: &QuantizeParams, shape: &TaskShape) -> Self {
        let all = u64::from(p.m) * u64::from(shape.blocks);
        Self {
            shape: *shape,
            full: (all / u64::from(warp::LANES)) as u32,
            rest: (all % u64::from(warp::LANES)) as u32,
            scales: p.scales,
        }
    }

    #[inline(always)]
    fn loads(&self, task: u32) -> Loads {
        let bytes = self.shape.block_bytes;
        Loads {
            offset: u64::from(task) * u64::from(warp::LANES * bytes)
                + u64::from(self.shape.first_byte),
            position: self.shape.first_slot,
            limit: self.limit(task),
            pitch: u64::from(bytes),
        }
    }

    #[inline(always)]
    fn place(&self, task: u32, by_row: bool) -> Place {
        let lane = warp::lane_id();
        let block = u64::from(task) * u64::from(warp::LANES) + u64::from(lane);
        let (mut row, mut column) = (0, 0);
        if by_row {
            let blocks = u64::from(self.shape.blocks);
            (row, column) = ((block / blocks) as u32, (block % blocks) as u32);
        }
        let exists = lane < self.limit(task);
        Place { exists, row, column, block, scale: self.scales + block }
    }

    #[inline(always)]
    fn step(slots: u32) -> u32 {
        slots
    }
}

/// Tasks of four consecutive blocks of eight rows of a 128x4 tile.
pub struct Tiled {
    shape: TaskShape,
    /// Tiles of a row.
    tiles: u32,
    m: u32,
    scales: u64,
}

impl Tiled {
    /// Row group and tile of a task.
    #[inline(always)]
    fn group(&self, task: u32) -> (u32, u32) {
        (task / self.tiles, task % self.tiles)
    }

    /// First row of a group.
    #[inline(always)]
    fn first_row(group: u32) -> u32 {
        let in_tile = group % ROW_GROUPS_A_TILE;
        group / ROW_GROUPS_A_TILE * TILE_ROWS as u32 + in_tile * 2
    }
}

impl Walk for Tiled {
    const LAYOUT: ScaleLayout = ScaleLayout::Blocked128x4;

    #[inline(always)]
    fn new(p: &QuantizeParams, shape: &TaskShape) -> Self {
        // Not zero, seen by the compiler, for any number of blocks.
        let tiles = (shape.blocks - 1) / TILE_BLOCKS as u32 + 1;
        Self { shape: *shape, tiles, m: p.m, scales: p.scales }
    }

    #[inline(always)]
    fn loads(&self, task: u32) -> Loads {
        let (group, tile) = self.group(task);
        let slot = self.shape.first_slot;
        let column = tile * TILE_BLOCKS as u32 + slot % TILE_BLOCKS as u32;
        let bytes = u64::from(self.shape.block_bytes);
        Loads {
            offset: u64::from(column.min(self.shape.blocks - 1)) * bytes
                + u64::from(self.shape.first_byte),
            position: Self::first_row(group) + Self::step(slot),
            limit: self.m,
            pitch: u64::from(self.shape.blocks) * bytes,
        }
    }

    #[inline(always)]
    fn place(&self, task: u32, _by_row: bool) -> Place {
        let (group, tile) = self.group(task);
        let lane = warp::lane_id();
        let row = Self::first_row(group) + Self::step(lane);
        let column = tile * TILE_BLOCKS as u32 + lane % TILE_BLOCKS as u32;
        let index = u64::from(group / ROW_GROUPS_A_TILE) * u64::from(self.tiles) + u64::from(tile);
        let in_tile = group % ROW_GROUPS_A_TILE * warp::LANES + lane;
        Place {
            exists: row < self.m && column < self.shape.blocks,
            row,
            column,
            block: u64::from(row) * u64::from(self.shape.blocks) + u64::from(column),
            scale: self.scales + index * TILE_BYTES as u64 + u64::from(in_tile),
        }
    }

    /// Slots `4 i .. 4 i + 4` are four consecutive blocks of a row; rows 32 apart
    /// share 16 bytes of scales, so that the scales of the slots are consecutive.
    #[inline(always)]
    fn step(slots: u32) -> u32 {
        slots / 16 + slots % 16 / 4 * 32
    }
}

/// The tasks of a warp: [`QuantizeParams::depth`] within what its CTA has under way
/// together, then as many further on.
#[derive(Clone, Copy)]
pub struct Steps {
    /// Below 2^32 by [`fp4_formats::quantize::MAX_ELEMENTS`].
    pub task: u32,
    /// Left at this place.
    left: u32,
    depth: u32,
    step: u32,
    leap: u32,
}

impl Steps {
    #[inline(always)]
    pub fn new(config: &QuantizeConfig, depth: u32, warp_index: u32) -> Self {
        let chunk = config.warps * depth;
        Self {
            task: thread::block_idx_x() * chunk + warp_index,
            left: depth,
            depth,
            step: config.warps,
            leap: (thread::grid_dim_x() - 1) * chunk,
        }
    }

    #[inline(always)]
    pub fn advance(&mut self) {
        self.task += self.step;
        self.left -= 1;
        if self.left == 0 {
            self.left = self.depth;
            self.task += self.leap;
        }
    }
}
