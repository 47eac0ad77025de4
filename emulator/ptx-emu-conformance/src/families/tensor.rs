//! Tensor copies through tensor maps, tile mode, no interleave: 1 to 5 dimensions,
//! every type and swizzle, boxes that leave the tensor, element strides, stores,
//! reductions, multicast, prefetches.

use crate::builder::Set;
use crate::compare::Element;
use crate::probe::{Buffer, Input, MapParameter};
use crate::program::{Program, barriers, dump, fill, random, wait};
use crate::values::{Kind, operands};
use ptx_emu_core::tensor_map::{ElementType, Fill, ReduceOp, Reduction, Swizzle, TensorMap};

const BLOCK: u32 = 64;
const MEET: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
const COMPLETE: &str = "mbarrier::complete_tx::bytes";
/// Types of whole bytes.
const TYPES: [ElementType; 13] = [
    ElementType::U8,
    ElementType::U16,
    ElementType::U32,
    ElementType::S32,
    ElementType::U64,
    ElementType::S64,
    ElementType::F16,
    ElementType::F32,
    ElementType::F64,
    ElementType::Bf16,
    ElementType::F32Ftz,
    ElementType::Tf32,
    ElementType::Tf32Ftz,
];
const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

/// A map and a box of it.
#[derive(Debug, Clone)]
pub(super) struct Tile {
    pub(super) map: TensorMap,
    pub(super) coordinates: Vec<i64>,
    /// Place of the box in shared memory.
    pub(super) at: u32,
}

impl Tile {
    pub(super) fn new(map: TensorMap, coordinates: &[i64]) -> Self {
        Self { map, coordinates: coordinates.to_vec(), at: 0 }
    }

    /// Steps of the box through dimension `axis`.
    fn steps(&self, axis: usize) -> u32 {
        let step = if axis == 0 { 1 } else { self.map.element_strides[axis] };
        self.map.box_dims[axis].div_ceil(step)
    }

    /// Bytes of a row of the box, and of its place in shared memory.
    fn row(&self) -> (u32, u32) {
        let row = self.steps(0) * self.map.element.bits() / 8;
        (row, if self.map.swizzle == Swizzle::None { row } else { self.map.swizzle.span() })
    }

    /// Bytes of the box, and of shared memory that it takes.
    pub(super) fn bytes(&self) -> (u32, u32) {
        let rows: u32 = (1..self.map.rank()).map(|axis| self.steps(axis)).product();
        (self.row().0 * rows, self.row().1 * rows)
    }

    /// `{x, y}`
    fn list(&self) -> String {
        let numbers: Vec<String> = self.coordinates.iter().map(i64::to_string).collect();
        format!("{{{}}}", numbers.join(", "))
    }

    fn rank(&self) -> usize {
        self.map.rank()
    }
}

/// `dims` of an element type packed as densely as strides allow; boxes of `extents`.
fn packed(element: ElementType, dims: &[u64], extents: &[u32]) -> TensorMap {
    let mut strides = Vec::new();
    let mut stride = dims[0] * u64::from(element.bits()) / 8;
    for dim in &dims[1..] {
        stride = stride.next_multiple_of(16);
        strides.push(stride);
        stride *= dim;
    }
    TensorMap::tiled(element, 0, dims, &strides, extents)
}

/// Values of a type: all kinds of floats, random integers.
fn values(element: ElementType, bytes: usize, seed: u64) -> Input {
    let ty = match element {
        ElementType::F16 => "f16",
        ElementType::Bf16 => "bf16",
        ElementType::F64 => "f64",
        ElementType::F32 | ElementType::F32Ftz | ElementType::Tf32 | ElementType::Tf32Ftz => "f32",
        _ => return random(bytes, seed),
    };
    let kind = Kind::of(ty);
    let width = kind.width();
    let column = operands(&[kind], bytes / width, seed).swap_remove(0);
    let bytes = column.iter().flat_map(|v| v.to_le_bytes().into_iter().take(width)).collect();
    Input { width, bytes }
}

pub(super) fn probes(set: &mut Set) {
    ranks(set);
    types(set);
    swizzles(set);
    edges(set);
    strides(set);
    stores(set);
    reductions(set);
    multicast(set);
    spellings(set);
    prefetches(set);
}

/// Shared memory before a copy: a pattern everywhere.
fn lay(bytes: u32) -> String {
    format!(
        "    mov.u32 %r1, %me; LAY: mad.lo.u32 %r2, %r1, 4, %s; \
         st.shared.b32 [%r2], 0xcbcbcbcb; add.u32 %r1, %r1, {BLOCK}; \
         setp.lt.u32 %p1, %r1, {}; @%p1 bra LAY;\n    fence.proxy.async; bar.sync 0;\n",
        bytes / 4
    )
}

/// Code that loads a box through `map`, whose address is in a register.
pub(super) fn load_code(tile: &Tile, map: &str) -> String {
    let (box_bytes, area) = tile.bytes();
    let Tile { at, .. } = tile;
    format!(
        "{}{}    @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {box_bytes};\n    \
         @%leader cp.async.bulk.tensor.{}d.shared::cluster.global.tile.{COMPLETE} [%s+{at}], \
         [{map}, {}], [%b];\n{}{}",
        barriers(&[1]),
        lay(at + area),
        tile.rank(),
        tile.list(),
        wait(0, 0, "WAIT"),
        dump("%out", *at, area, BLOCK, "OUT"),
    )
}

/// Loads a box and shows the shared memory that it takes.
fn load(set: &mut Set, name: impl Into<String>, tile: &Tile, input: Input) {
    let (_, area) = tile.bytes();
    let maps = vec![MapParameter { map: tile.map.clone(), buffer: Buffer::Input(0) }];
    let program = Program {
        block: BLOCK,
        shared: (tile.at + area).next_multiple_of(1024),
        inputs: vec![input],
        maps,
        ..Program::new(name, area as usize, load_code(tile, "%map0"))
    };
    set.program(program);
}

/// The same tensor in 1 to 5 dimensions; boxes inside and over the edges.
fn ranks(set: &mut Set) {
    const DIMS: [u64; 5] = [12, 5, 4, 3, 3];
    const BOX: [u32; 5] = [8, 3, 2, 2, 2];
    for rank in 1..=5 {
        let map = packed(ElementType::U32, &DIMS[..rank], &BOX[..rank]);
        for (which, start) in [("inside", [4, 1, 1, 1, 0]), ("over the edges", [8, 3, 3, 2, 2])] {
            let tile = Tile::new(map.clone(), &start[..rank]);
            load(set, format!("load {rank}d {which}"), &tile, random(12288, rank as u64));
        }
    }
}

/// Every type, with what loads do to elements; NaN fill for floats.
fn types(set: &mut Set) {
    for element in TYPES {
        let row = 64 / (element.bits() / 8);
        for fill in [Fill::Zero, Fill::Nan] {
            if fill == Fill::Nan && !element.is_float() {
                continue;
            }
            // The last 16 bytes of each row and the last two rows are outside.
            let inside = u64::from(row - row / 4);
            let map = packed(element, &[inside, 6], &[row, 8]);
            let tile = Tile::new(TensorMap { fill, ..map }, &[0, 0]);
            let fill = if fill == Fill::Nan { " with NaN fill" } else { "" };
            load(set, format!("load of {element}{fill}"), &tile, values(element, 512, 77));
        }
    }
}

/// Rows as wide as the span of a swizzle and narrower, from its start and from within
/// its period.
fn swizzles(set: &mut Set) {
    for swizzle in SWIZZLES {
        for width in [16, 32, 48, 64, 128] {
            if width > swizzle.span() && swizzle != Swizzle::None {
                continue;
            }
            for at in [0, 128, 896] {
                let map = TensorMap::tiled(ElementType::U8, 0, &[144, 16], &[144], &[width, 10]);
                let mut tile = Tile::new(TensorMap { swizzle, ..map }, &[16, 2]);
                tile.at = at;
                let name = format!("load of rows of {width} with swizzle {swizzle} at {at}");
                load(set, name, &tile, random(4096, 5));
            }
        }
        let map = packed(ElementType::F16, &[16, 5, 4], &[8, 3, 2]);
        let tile = Tile::new(TensorMap { swizzle, ..map }, &[8, 3, 1]);
        load(set, format!("load 3d with swizzle {swizzle}"), &tile, random(2048, 6));
    }
}

/// Boxes before, over and behind every edge.
fn edges(set: &mut Set) {
    for (x, y) in
        [(-8, 0), (0, -3), (-4, -2), (16, 9), (20, 0), (0, 10), (-100, -100), (1 << 20, 5)]
    {
        let map = packed(ElementType::U32, &[20, 10], &[8, 4]);
        let tile = Tile::new(map, &[x, y]);
        load(set, format!("load at {x}, {y} of 20 x 10"), &tile, random(1024, 9));
    }
    // A box larger than the tensor on every side, and rows that are no whole pieces.
    let map = TensorMap::tiled(ElementType::U8, 16, &[37, 5], &[48], &[64, 9]);
    load(set, "load of a box larger than the tensor", &Tile::new(map, &[-16, -2]), random(512, 10));
    for width in 1..=16 {
        let map = TensorMap::tiled(ElementType::U8, 0, &[width, 3], &[16], &[16, 3]);
        load(
            set,
            format!("load of rows of {width} bytes"),
            &Tile::new(map, &[0, 0]),
            random(64, 11),
        );
    }
}

/// Steps of more than one element.
fn strides(set: &mut Set) {
    for steps in [[1, 2, 1], [1, 3, 2], [1, 1, 3]] {
        let map = packed(ElementType::U16, &[16, 11, 7], &[8, 6, 4]);
        let map = TensorMap { element_strides: steps.to_vec(), ..map };
        let name = format!("load with element strides {steps:?}");
        load(set, name, &Tile::new(map, &[8, 2, 1]), random(4096, 12));
    }
}

/// Writes a box from shared memory with `form` and shows the whole tensor.
fn write(set: &mut Set, name: String, form: &str, tile: &Tile, from: Input, before: Input) {
    let (_, area) = tile.bytes();
    let Tile { at, .. } = tile;
    let body = format!(
        "{}    fence.proxy.async; bar.sync 0; @!%leader bra END;\n    \
         {form} [%map0, {}], [%s+{at}]; cp.async.bulk.commit_group; \
         cp.async.bulk.wait_group 0;\nEND:\n",
        fill("%in0", *at, area.next_multiple_of(16), BLOCK, "FILL"),
        tile.list(),
    );
    let maps = vec![MapParameter { map: tile.map.clone(), buffer: Buffer::Output }];
    let program = Program {
        block: BLOCK,
        shared: (at + area).next_multiple_of(1024),
        inputs: vec![from],
        maps,
        element: Element::Bits((tile.map.element.bits() / 8) as usize),
        ..Program::new(name, 0, body)
    };
    set.program(Program { output: before.bytes, ..program });
}

fn store(set: &mut Set, name: String, tile: &Tile, bytes: usize) {
    let form = format!("cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group", tile.rank());
    let area = tile.bytes().1.next_multiple_of(16) as usize;
    let from = values(tile.map.element, area, 21);
    write(set, name, &form, tile, from, random(bytes, 22));
}

fn stores(set: &mut Set) {
    const DIMS: [u64; 5] = [12, 5, 4, 3, 3];
    const BOX: [u32; 5] = [8, 3, 2, 2, 2];
    for rank in 1..=5 {
        let map = packed(ElementType::U32, &DIMS[..rank], &BOX[..rank]);
        let bytes = 4 * DIMS[..rank].iter().product::<u64>() as usize;
        for (which, start) in [("inside", [4, 1, 1, 1, 0]), ("over the edges", [8, 3, 3, 2, 2])] {
            let tile = Tile::new(map.clone(), &start[..rank]);
            store(set, format!("store {rank}d {which}"), &tile, bytes);
        }
    }
    for element in TYPES {
        let row = 64 / (element.bits() / 8);
        let map = packed(element, &[u64::from(row), 5], &[row / 2, 4]);
        let tile = Tile::new(map, &[i64::from(row / 2), 2]);
        store(set, format!("store of {element}"), &tile, 320);
    }
    for swizzle in SWIZZLES {
        for width in [16, 32, 64, 128] {
            if width > swizzle.span() && swizzle != Swizzle::None {
                continue;
            }
            let map = TensorMap::tiled(ElementType::U8, 0, &[144, 9], &[144], &[width, 8]);
            let mut tile = Tile::new(TensorMap { swizzle, ..map }, &[16, 3]);
            tile.at = 256;
            store(set, format!("store of rows of {width} with swizzle {swizzle}"), &tile, 144 * 9);
        }
    }
    // Rows that end within 16 bytes: the bytes up to the next multiple are written too.
    for width in 1..=16 {
        let map = TensorMap::tiled(ElementType::U8, 0, &[16 + width, 3], &[32], &[32, 3]);
        store(set, format!("store of rows of {} bytes", 16 + width), &Tile::new(map, &[0, 0]), 96);
    }
    let map = packed(ElementType::U16, &[16, 11, 7], &[8, 6, 4]);
    let map = TensorMap { element_strides: vec![1, 3, 2], ..map };
    store(set, "store with element strides".into(), &Tile::new(map, &[8, 2, 1]), 2464);
}

/// Every operation on every type that has it; part of the box is outside.
fn reductions(set: &mut Set) {
    for element in TYPES {
        for op in ReduceOp::ALL {
            if Reduction::new(op, element).is_err() {
                continue;
            }
            let row = 64 / (element.bits() / 8);
            let map = packed(element, &[u64::from(row), 6], &[row / 2, 4]);
            let tile = Tile::new(map, &[i64::from(row / 2), 3]);
            let form = format!(
                "cp.reduce.async.bulk.tensor.2d.global.shared::cta.{}.tile.bulk_group",
                op.name()
            );
            let area = tile.bytes().1 as usize;
            let (from, before) = (values(element, area, 31), values(element, 384, 32));
            write(set, format!("{} of {element}", op.name()), &form, &tile, from, before);
        }
    }
}

/// Rank 2 of four loads for the CTAs of a mask.
fn multicast(set: &mut Set) {
    for mask in [0b0101, 0b1110, 0b1111] {
        let map = TensorMap::tiled(ElementType::U8, 0, &[128, 8], &[128], &[64, 4]);
        let map = TensorMap { swizzle: Swizzle::B64, ..map };
        let body = format!(
            "{}{}    mov.u32 %r2, {mask}; shr.u32 %r2, %r2, %rank; and.b32 %r2, %r2, 1; \
             mul.lo.u32 %r3, %r2, 256;\n    \
             @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], %r3; {MEET}\n    \
             setp.eq.and.u32 %p2, %rank, 2, %leader; mov.b16 %h1, {mask}; \
             @%p2 cp.async.bulk.tensor.2d.shared::cluster.global.tile.{COMPLETE}\
             .multicast::cluster [%s], [%map0, {{32, 3}}], [%b], %h1;\n{}    \
             mad.wide.u32 %d1, %cta, 256, %out;\n{}    {MEET}",
            barriers(&[1]),
            lay(256),
            wait(0, 0, "WAIT"),
            dump("%d1", 0, 256, BLOCK, "OUT"),
        );
        let maps = vec![MapParameter { map, buffer: Buffer::Input(0) }];
        let name = format!("load with multicast to {mask:04b}");
        let program = Program { block: BLOCK, maps, ..Program::new(name, 1024, body) };
        set.program(program.in_cluster(4).random(1024));
    }
}

/// The other spelling of the destination, and the mode left out.
fn spellings(set: &mut Set) {
    let tile = Tile::new(packed(ElementType::U32, &[20, 10], &[8, 4]), &[12, 2]);
    for (what, spelling) in
        [("shared::cta", "shared::cta.global.tile"), ("no mode", "shared::cluster.global")]
    {
        let body = load_code(&tile, "%map0").replace("shared::cluster.global.tile", spelling);
        let maps = vec![MapParameter { map: tile.map.clone(), buffer: Buffer::Input(0) }];
        let name = format!("load with {what}");
        let program = Program { block: BLOCK, maps, ..Program::new(name, 128, body) };
        set.program(program.random(1024));
    }
}

/// Hints change nothing.
fn prefetches(set: &mut Set) {
    let tile = Tile::new(packed(ElementType::U32, &[20, 10], &[8, 4]), &[4, 2]);
    let hints = "    @%leader prefetch.tensormap [%map0]; \
                 @%leader cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map0, {4, 2}];\n";
    let body = format!("{hints}{}", load_code(&tile, "%map0"));
    let maps = vec![MapParameter { map: tile.map, buffer: Buffer::Input(0) }];
    let program =
        Program { block: BLOCK, maps, ..Program::new("prefetches before a load", 128, body) };
    set.program(program.random(1024));
}
