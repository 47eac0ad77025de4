//! `wgmma` with operands whose sums are exact: every type, size and source, and
//! descriptors of every layout and swizzle.
//!
//! Shared memory is filled with arbitrary codes, so that a descriptor chooses which of
//! them are multiplied: the result shows where the hardware looks for each element.

use crate::builder::Set;
use crate::compare::Element;
use crate::probe::Input;
use crate::program::{Program, fill, words};
use crate::values::SplitMix;
use ptx_emu_core::num::minifloat::Minifloat;
use ptx_emu_core::num::{bfloat, half};
use std::fmt::Write as _;

const THREADS: u32 = 128;
/// Bytes of shared memory; `B` begins in the middle.
const SHARED: u32 = 32768;
const B_AT: u32 = SHARED / 2;

/// A matrix in shared memory.
#[derive(Debug, Clone, Copy)]
struct Tile {
    /// Bytes from the area's start.
    start: u32,
    leading: u32,
    stride: u32,
    /// Width in bytes: 16 is none.
    swizzle: u32,
    base_offset: u32,
    transposed: bool,
}

impl Tile {
    const fn k_major(swizzle: u32) -> Self {
        let (leading, stride) = if swizzle == 16 { (128, 256) } else { (16, 8 * swizzle) };
        Self { start: 0, leading, stride, swizzle, base_offset: 0, transposed: false }
    }

    /// The descriptor without its address.
    const fn constant(self) -> u64 {
        let code = match self.swizzle {
            128 => 1,
            64 => 2,
            32 => 3,
            _ => 0,
        };
        (self.leading as u64 >> 4) << 16
            | (self.stride as u64 >> 4) << 32
            | (self.base_offset as u64) << 49
            | code << 62
    }
}

/// An instruction with its operands.
#[derive(Debug, Clone)]
struct Product {
    n: usize,
    k: usize,
    d: &'static str,
    a: &'static str,
    b: &'static str,
    satfinite: bool,
    /// `None`: from registers.
    left: Option<Tile>,
    right: Tile,
    scale_d: bool,
    signs: [i32; 2],
    /// Issued so many times, each 32 bytes further along K.
    steps: u32,
    /// A word per thread instead of all results.
    folded: bool,
}

impl Product {
    fn new(n: usize, d: &'static str, a: &'static str, b: &'static str) -> Self {
        let k = match a {
            "f16" | "bf16" => 16,
            "tf32" => 8,
            _ => 32,
        };
        let plain = Tile::k_major(16);
        Self {
            n,
            k,
            d,
            a,
            b,
            satfinite: false,
            left: Some(plain),
            right: plain,
            scale_d: true,
            signs: [1, 1],
            steps: 1,
            folded: false,
        }
    }

    fn integer(&self) -> bool {
        self.d == "s32"
    }

    fn registers(&self) -> usize {
        if self.d == "f16" { self.n / 4 } else { self.n / 2 }
    }

    fn instruction(&self) -> String {
        let Self { n, k, d, a, b, .. } = self;
        let satfinite = if self.satfinite { ".satfinite" } else { "" };
        format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}{satfinite}.{d}.{a}.{b}")
    }
}

/// Small integers of a type, as words.
fn codes(ty: &str, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = SplitMix::new(seed);
    let mut number = || (rng.next() % 7) as f32 - 3.0;
    let mut word = || match ty {
        "f16" => u32::from(half::from_f32(number())) | u32::from(half::from_f32(number())) << 16,
        "bf16" => {
            u32::from(bfloat::from_f32(number())) | u32::from(bfloat::from_f32(number())) << 16
        }
        "e4m3" | "e5m2" => {
            let format = if ty == "e4m3" { Minifloat::E4m3 } else { Minifloat::E5m2 };
            u32::from_le_bytes(std::array::from_fn(|_| format.from_f32(number(), false)))
        }
        _ => number().to_bits(),
    };
    (0..count).map(|_| word()).collect()
}

fn operand(ty: &str, bytes: u32, seed: u64) -> Input {
    if matches!(ty, "s8" | "u8") {
        let mut rng = SplitMix::new(seed);
        return words((0..bytes / 4).map(|_| rng.next() as u32));
    }
    words(codes(ty, bytes as usize / 4, seed))
}

fn add(set: &mut Set, what: &str, product: &Product) {
    let registers = product.registers();
    let mut body = format!("    .reg .b32 %a<4>, %w<{registers}>;\n");
    body += &fill("%in0", 0, B_AT, THREADS, "LEFT");
    body += &fill("%in1", B_AT, SHARED - B_AT, THREADS, "RIGHT");
    let _ = writeln!(body, "    mad.wide.u32 %d1, %me, {}, %in2;", 4 * registers);
    for n in 0..registers {
        let _ = writeln!(body, "    ld.global.b32 %w{n}, [%d1+{}];", 4 * n);
    }
    // `A` from registers is whatever is in the first bytes.
    body += "    mad.wide.u32 %d1, %me, 16, %in0; \
             ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%d1];\n";
    let _ = writeln!(
        body,
        "    fence.proxy.async; bar.sync 0; setp.{}.u32 %p1, %me, %me;\n    \
         wgmma.fence.sync.aligned;",
        if product.scale_d { "eq" } else { "ne" }
    );
    let sums: Vec<String> = (0..registers).map(|n| format!("%w{n}")).collect();
    for step in 0..product.steps {
        let mut descriptor = |register: &str, at: u32, tile: &Tile| {
            let _ = writeln!(
                body,
                "    add.u32 %r1, %s, {}; and.b32 %r1, %r1, 0x3ffff; shr.u32 %r1, %r1, 4; \
                 cvt.u64.u32 {register}, %r1; or.b64 {register}, {register}, {:#x};",
                at + tile.start + 32 * step,
                tile.constant()
            );
        };
        if let Some(tile) = &product.left {
            descriptor("%d2", 0, tile);
        }
        descriptor("%d3", B_AT, &product.right);
        let left = if product.left.is_some() { "%d2" } else { "{%a0, %a1, %a2, %a3}" };
        let _ =
            write!(body, "    {} {{{}}}, {left}, %d3, %p1", product.instruction(), sums.join(", "));
        if !product.integer() {
            let _ = write!(body, ", {}, {}", product.signs[0], product.signs[1]);
        }
        if matches!(product.a, "f16" | "bf16") {
            if let Some(tile) = &product.left {
                let _ = write!(body, ", {}", u32::from(tile.transposed));
            }
            let _ = write!(body, ", {}", u32::from(product.right.transposed));
        }
        body += ";\n";
    }
    body += "    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n";
    let shown = if product.folded { 1 } else { registers };
    let _ = writeln!(body, "    mad.wide.u32 %d1, %me, {}, %out;", 4 * shown);
    if product.folded {
        body += "    mov.u32 %r1, 0;\n";
        for n in 0..registers {
            let _ = writeln!(body, "    mad.lo.u32 %r1, %r1, 31, %w{n};");
        }
        body += "    st.global.b32 [%d1], %r1;\n";
    } else {
        for n in 0..registers {
            let _ = writeln!(body, "    st.global.b32 [%d1+{}], %w{n};", 4 * n);
        }
    }
    let start = match product.d {
        "f16" => codes("f16", registers * THREADS as usize, 3),
        "f32" => codes("f32", registers * THREADS as usize, 3),
        // Some near the ends of the range, so that they saturate.
        _ => (0..registers as u32 * THREADS)
            .map(|n| match n % 3 {
                0 => n * 7919,
                1 => i32::MAX as u32 - n,
                _ => i32::MIN as u32 + n,
            })
            .collect(),
    };
    let name = format!("{}{}{what}", product.instruction(), if what.is_empty() { "" } else { " " });
    let program = Program {
        block: THREADS,
        shared: SHARED,
        inputs: vec![
            operand(product.a, B_AT, 1),
            operand(product.b, SHARED - B_AT, 2),
            words(start),
        ],
        element: match product.d {
            _ if product.folded => Element::Bits(4),
            "f16" => Element::F16,
            "f32" => Element::F32,
            _ => Element::Bits(4),
        },
        ..Program::new(name, 4 * shown * THREADS as usize, body)
    };
    set.program(program);
}

/// Operand types and their accumulators.
const TYPES: [(&str, &str, &str); 16] = [
    ("f32", "f16", "f16"),
    ("f16", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e4m3"),
    ("f32", "e4m3", "e5m2"),
    ("f32", "e5m2", "e4m3"),
    ("f32", "e5m2", "e5m2"),
    ("f16", "e4m3", "e4m3"),
    ("f16", "e4m3", "e5m2"),
    ("f16", "e5m2", "e4m3"),
    ("f16", "e5m2", "e5m2"),
    ("s32", "s8", "s8"),
    ("s32", "s8", "u8"),
    ("s32", "u8", "s8"),
    ("s32", "u8", "u8"),
];

pub(super) fn probes(set: &mut Set) {
    for (d, a, b) in TYPES {
        let product = Product::new(24, d, a, b);
        add(set, "", &product);
        add(set, "from registers", &Product { left: None, ..product.clone() });
        let product = Product { folded: true, ..product };
        add(set, "without addend, folded", &Product { scale_d: false, ..product.clone() });
        if d == "s32" {
            add(set, "folded", &Product { satfinite: true, ..product });
        } else {
            for signs in [[-1, 1], [1, -1], [-1, -1]] {
                let what = format!("with signs {} {}, folded", signs[0], signs[1]);
                add(set, &what, &Product { signs, ..product.clone() });
            }
        }
    }
    sizes(set);
    swizzles(set);
    transposed(set);
    offsets(set);
    super::release::probes(set);
}

/// Every N, folded to a word per thread.
fn sizes(set: &mut Set) {
    for (d, a, b) in [("f32", "f16", "f16"), ("f16", "e4m3", "e4m3"), ("s32", "u8", "s8")] {
        for n in (8..=256).step_by(8) {
            if d == "s32" && n > 24 && n % 16 != 0 {
                continue;
            }
            let product = Product { folded: true, ..Product::new(n, d, a, b) };
            add(set, "folded", &product);
        }
    }
}

/// K-major tiles of every swizzle, from the start of a row and further along it.
fn swizzles(set: &mut Set) {
    for (d, a, b) in [("f32", "f16", "f16"), ("f32", "tf32", "tf32"), ("s32", "s8", "u8")] {
        for swizzle in [16, 32, 64, 128] {
            let tile = Tile::k_major(swizzle);
            for start in (0..swizzle.max(32)).step_by(32) {
                let tile = Tile { start, ..tile };
                let what = format!("swizzle {swizzle} from {start}");
                let product = Product::new(24, d, a, b);
                add(set, &what, &Product { left: Some(tile), right: tile, ..product });
            }
            // All of a row of the span.
            let steps = swizzle / 32;
            if steps > 1 {
                let product = Product { steps, ..Product::new(24, d, a, b) };
                let what = format!("swizzle {swizzle} in {steps} steps");
                add(set, &what, &Product { left: Some(tile), right: tile, ..product });
            }
        }
        // Distances that are not those of packed tiles.
        let wide = Tile { leading: 1040, stride: 144, ..Tile::k_major(16) };
        let product = Product { left: Some(wide), right: wide, ..Product::new(24, d, a, b) };
        add(set, "leading 1040, stride 144", &product);
        let wide = Tile { stride: 1536, ..Tile::k_major(128) };
        let product = Product { left: Some(wide), right: wide, ..Product::new(24, d, a, b) };
        add(set, "swizzle 128, stride 1536", &product);
    }
}

/// MN-major tiles. Without swizzle and with it, the two distances are of different
/// things, so they differ here.
fn transposed(set: &mut Set) {
    for (d, ty) in [("f32", "f16"), ("f32", "bf16"), ("f16", "f16")] {
        for swizzle in [16, 32, 64, 128] {
            for (leading, stride) in [(512, 2048), (2048, 512), (1024, 4096), (4096, 1024)] {
                let tile = Tile { leading, stride, transposed: true, ..Tile::k_major(swizzle) };
                // The bytes that either reading of the distances needs must be there.
                let product = Product::new(32, d, ty, ty);
                let name = format!("swizzle {swizzle}, leading {leading}, stride {stride}");
                if ty == "f16" && d == "f32" && fits(&tile, 32) {
                    let product = Product { right: tile, ..product.clone() };
                    add(set, &format!("B transposed, {name}"), &product);
                }
                if fits(&tile, 64) && (d == "f32" || stride == 2048) {
                    let both = Product { left: Some(tile), right: tile, ..product };
                    add(set, &format!("A and B transposed, {name}"), &both);
                }
            }
        }
        let tile = Tile { leading: 512, stride: 1024, transposed: true, ..Tile::k_major(64) };
        let product = Product { left: None, right: tile, ..Product::new(64, d, ty, ty) };
        add(set, "A from registers, B transposed", &product);
    }
}

/// Whether a tile of so many rows stays within its half of shared memory whichever of
/// its distances is which.
fn fits(tile: &Tile, rows: u32) -> bool {
    let groups = (2 * rows / tile.swizzle).max(2);
    (groups - 1) * tile.leading.max(tile.stride) + tile.leading.min(tile.stride) + 8 * tile.swizzle
        <= B_AT
}

/// Tiles that begin within a period of their swizzle, with and without a base offset.
fn offsets(set: &mut Set) {
    for swizzle in [32, 64, 128] {
        for line in [1, 3] {
            for base_offset in [0, line] {
                let start = 128 * line;
                let tile = Tile { start, base_offset, ..Tile::k_major(swizzle) };
                let what = format!("swizzle {swizzle} from {start} with base offset {base_offset}");
                let product = Product::new(8, "f32", "f16", "f16");
                add(set, &what, &Product { right: tile, ..product });
            }
        }
    }
}
