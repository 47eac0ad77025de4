//! Box geometry of a tile copy.

use super::{ElementType, Fill, Interleave, MAX_RANK, Runs, Swizzle, TensorMap, TileError};

/// Required alignment of the shared address of a tile copy, bytes.
pub const SHARED_ALIGN: u32 = 128;

/// Bytes that stores and reductions write at once.
const STORE_GRANULE: i64 = 16;

/// Dimensions above the innermost one.
pub(super) const OUTER: usize = MAX_RANK - 1;

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Load,
    Store,
}

/// One dimension above the innermost one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outer {
    /// Steps of the box through it.
    pub(super) count: u32,
    /// Coordinate of each step.
    pub(super) at: Position,
    /// Size, elements.
    pub(super) size: u64,
    /// Distance of neighbours, bytes.
    pub(super) stride: u64,
}

/// Coordinates that a box takes in one dimension.
#[derive(Debug, Clone, Copy)]
pub(super) enum Position {
    /// `start + step * index`.
    Steps { start: i64, step: i64 },
    /// Four rows of `tile::gather4` and `tile::scatter4`.
    Rows([i32; 4]),
}

impl Outer {
    /// A dimension that the map does not have.
    const NONE: Self =
        Self { count: 1, at: Position::Steps { start: 0, step: 1 }, size: 1, stride: 0 };

    /// Offset of step `index` in bytes; `None` outside the tensor.
    pub(super) fn offset(&self, index: u32) -> Option<u64> {
        let coordinate = match &self.at {
            Position::Steps { start, step } => start + step * i64::from(index),
            Position::Rows(rows) => i64::from(*rows.get(index as usize)?),
        };
        let coordinate = u64::try_from(coordinate).ok()?;
        (coordinate < self.size).then(|| coordinate.wrapping_mul(self.stride))
    }
}

/// One copy of a box between global and shared memory.
///
/// PTX ISA 9.7.9.27, modes `.tile`, `.tile::gather4` and `.tile::scatter4`.
/// Shared addresses are offsets in the shared window of the CTA that is copied
/// to or from; a CTA rank in their high bits passes through.
#[derive(Debug, Clone)]
pub struct Tile {
    /// Global address of the byte where the row begins, if coordinates above
    /// dimension 0 are 0; the row may begin before the tensor.
    pub(super) row_start: u64,
    /// Bytes of data in a row of the box.
    pub(super) row_bytes: u32,
    /// Part of a row that is in bounds.
    pub(super) valid: std::ops::Range<u32>,
    pub(super) outer: [Outer; OUTER],
    /// Distance of rows in shared memory, bytes.
    pub(super) pitch: u32,
    pub(super) shared: u32,
    pub(super) map: Layout,
}

/// The parts of a map that a tile needs for each row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) swizzle: Swizzle,
    /// Bytes of data in each 16 of shared memory, for types with gaps.
    pub(super) payload: Option<u32>,
    pub(super) element: ElementType,
    pub(super) fill: Fill,
}

impl TensorMap {
    /// Checks what a machine of compute capability 12 requires of a map whose tiles are loaded to
    /// `.shared::cluster`: elements of whole bytes and swizzles of 16-byte chunks (PTX ISA
    /// 9.7.9.27.1.1).
    ///
    /// # Errors
    ///
    /// The map's type and swizzle.
    pub(crate) fn check_cluster_destination(&self) -> Result<(), TileError> {
        let whole = match self.swizzle {
            Swizzle::None | Swizzle::B32 | Swizzle::B64 | Swizzle::B128 => true,
            Swizzle::B128Atom32 | Swizzle::B128Atom32Flip8 | Swizzle::B128Atom64 => false,
        };
        if whole && !self.element.is_sub_byte() {
            return Ok(());
        }
        Err(TileError::field(
            "map",
            "elements of whole bytes and a swizzle without atoms, for .shared::cluster on compute capability 12",
            format!("{} with swizzle {}", self.element, self.swizzle),
        ))
    }
}

impl Tile {
    /// A load of the box at `coordinates`, innermost first, to `shared`.
    ///
    /// # Errors
    ///
    /// A map or an operand that hardware refuses, or that is not modelled.
    pub fn load(map: &TensorMap, coordinates: &[i32], shared: u32) -> Result<Self, TileError> {
        Self::tiled(map, coordinates, shared, Direction::Load)
    }

    /// A store, or the geometry of a reduction, of the box at `coordinates`
    /// from `shared`. Only runs with a global address take place.
    ///
    /// # Errors
    ///
    /// As for [`Tile::load`]; also a negative coordinate, and a type that can
    /// only be loaded.
    pub fn store(map: &TensorMap, coordinates: &[i32], shared: u32) -> Result<Self, TileError> {
        Self::tiled(map, coordinates, shared, Direction::Store)
    }

    /// A load in mode `.tile::gather4`: four rows, each of the box's width from
    /// `column`, of a map of rank 2 with boxes of one row.
    ///
    /// # Errors
    ///
    /// As for [`Tile::load`].
    pub fn gather4(
        map: &TensorMap,
        column: i32,
        rows: [i32; 4],
        shared: u32,
    ) -> Result<Self, TileError> {
        Self::rows4(map, column, rows, shared, Direction::Load)
    }

    /// A store in mode `.tile::scatter4`, the opposite of [`Tile::gather4`].
    ///
    /// # Errors
    ///
    /// As for [`Tile::store`].
    pub fn scatter4(
        map: &TensorMap,
        column: i32,
        rows: [i32; 4],
        shared: u32,
    ) -> Result<Self, TileError> {
        Self::rows4(map, column, rows, shared, Direction::Store)
    }

    fn tiled(
        map: &TensorMap,
        coordinates: &[i32],
        shared: u32,
        direction: Direction,
    ) -> Result<Self, TileError> {
        map.check()?;
        let &[column, ref rest @ ..] = coordinates else {
            return Err(TileError::field("coordinates", format!("{}", map.rank()), 0));
        };
        if coordinates.len() != map.rank() {
            return Err(TileError::field(
                "coordinates",
                format!("{}, the map's rank", map.rank()),
                coordinates.len(),
            ));
        }
        if direction == Direction::Store
            && let Some(i) = coordinates.iter().position(|&c| c < 0)
        {
            let field = format!("coordinates[{i}]");
            return Err(TileError::field(field, "0 or more in a store", coordinates[i]));
        }
        let mut outer = [Outer::NONE; OUTER];
        for (i, slot) in outer.iter_mut().enumerate().take(rest.len()) {
            let step = map.element_strides[i + 1];
            *slot = Outer {
                count: map.box_dims[i + 1].div_ceil(step),
                at: Position::Steps { start: rest[i].into(), step: step.into() },
                size: map.dims[i + 1],
                stride: map.strides[i],
            };
        }
        Self::new(map, column, outer, shared, direction)
    }

    fn rows4(
        map: &TensorMap,
        column: i32,
        rows: [i32; 4],
        shared: u32,
        direction: Direction,
    ) -> Result<Self, TileError> {
        map.check()?;
        if map.rank() != 2 {
            return Err(TileError::field("rank", "2 for gather4 and scatter4", map.rank()));
        }
        if map.box_dims[1] != 1 {
            return Err(TileError::field("box[1]", "1 for gather4 and scatter4", map.box_dims[1]));
        }
        if direction == Direction::Store
            && let Some(negative) = std::iter::once(column).chain(rows).find(|&c| c < 0)
        {
            return Err(TileError::field("coordinates", "0 or more in a store", negative));
        }
        let mut outer = [Outer::NONE; OUTER];
        outer[0] =
            Outer { count: 4, at: Position::Rows(rows), size: map.dims[1], stride: map.strides[0] };
        Self::new(map, column, outer, shared, direction)
    }

    fn new(
        map: &TensorMap,
        column: i32,
        outer: [Outer; OUTER],
        shared: u32,
        direction: Direction,
    ) -> Result<Self, TileError> {
        if map.interleave != Interleave::None {
            return Err(TileError::Unsupported { what: "copies with an interleaved layout" });
        }
        if !shared.is_multiple_of(SHARED_ALIGN) {
            return Err(TileError::field(
                "shared address",
                format!("a multiple of {SHARED_ALIGN}"),
                format!("{shared:#x}"),
            ));
        }
        let element = map.element;
        let refused = match direction {
            Direction::Load => {
                (element, map.swizzle) == (ElementType::U6Align16, Swizzle::B128Atom64)
            }
            Direction::Store => element == ElementType::U4Align16,
        };
        if refused {
            let what = if direction == Direction::Load { "loaded" } else { "stored" };
            return Err(TileError::field(
                "map",
                format!("a type and swizzle that can be {what}"),
                format!("{element} with swizzle {}", map.swizzle),
            ));
        }
        let unit = column_unit(map);
        if i64::from(column) % unit != 0 {
            return Err(TileError::field(
                "coordinates[0]",
                format!("a multiple of {unit} for elements of type {element}"),
                column,
            ));
        }
        let bits = i64::from(element.bits());
        let start = i64::from(column) * bits / 8;
        let row_bytes = map.box_dims[0] * element.bits() / 8;
        // At most 2^32 elements of 8 bytes.
        let mut end = map.dims[0] as i64 * bits / 8;
        if direction == Direction::Store {
            end = (end + STORE_GRANULE - 1) / STORE_GRANULE * STORE_GRANULE;
        }
        let within = |byte: i64| (byte - start).clamp(0, row_bytes.into()) as u32;
        let payload = element.padded_payload();
        let pitch = match (map.swizzle.span(), payload) {
            (0, None) => row_bytes,
            (0, Some(payload)) => row_bytes / payload * 16,
            (span, _) => span,
        };
        Ok(Self {
            row_start: map.address.wrapping_add_signed(start),
            row_bytes,
            valid: within(0)..within(end),
            outer,
            pitch,
            shared,
            map: Layout { swizzle: map.swizzle, payload, element, fill: map.fill },
        })
    }

    /// Rows of the box.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.outer.iter().map(|outer| outer.count).product()
    }

    /// Bytes of data in the whole box, in bounds or not: what a load subtracts
    /// from its barrier's tx-count. Gaps of padded types do not count.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.rows() * self.row_bytes
    }

    /// Bytes of shared memory within which the runs lie, from the tile's shared
    /// address on.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.rows() * self.pitch
    }

    /// Returns the bytes that a load writes if a run has no global address, repeated from any even
    /// address on.
    #[must_use]
    pub fn fill_pattern(&self) -> [u8; 2] {
        self.map.fill.pattern()
    }

    /// Converts bytes of a run on their way to shared memory, for the types
    /// that loads convert.
    pub fn convert_loaded(&self, bytes: &mut [u8]) {
        self.map.element.convert_loaded(bytes);
    }

    /// The runs of the copy, in the order of the box: every byte of data once.
    #[must_use]
    pub fn runs(&self) -> Runs<'_> {
        Runs::new(self)
    }
}

/// Multiple that the first coordinate must be of, elements: 16 bytes, or one
/// unit of a sub-byte type.
fn column_unit(map: &TensorMap) -> i64 {
    match map.element {
        ElementType::U4Align8 => 16,
        ElementType::U4Align16 | ElementType::U6Align16 => 128,
        element => 128 / i64::from(element.bits()),
    }
}
