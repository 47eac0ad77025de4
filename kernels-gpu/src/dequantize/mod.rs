//! Dequantises an [M, K] matrix in NVFP4 or MXFP4 to f32, f16 or bf16.
//!
//! # Contract
//! The parameters are [`DequantizeParams`]. M is at least 1, K is a multiple of the block; the grid
//! and the threads are those of the [`DequantizeConfig`]. Each code and the scales of existing
//! blocks are read once, and each element is written once.
//!
//! # Pipeline
//! Every thread computes units of 16 bytes of the result, [`DEQUANTIZE_UNITS`] of them at a time:
//!
//! ```text
//! codes, scales --loads of all units--> registers --convert, multiply--> 16-byte stores
//! ```
//!
//! There is no shared memory and there are no barriers.
//!
//! # Dependent launches
//! While earlier kernels are still running, a thread prefetches its first units into L2, where
//! their writes still reach them. It reads the units after these kernels are complete.
//!
//! # Arithmetic
//! Codes and scales are decoded exactly. `scale * tensor` is rounded to f32, its product with the
//! element is rounded to f32, and the result is rounded to its type.

#[cfg(gpu_e2m1 = "hardware")]
#[path = "e2m1_hardware.rs"]
mod e2m1;
#[cfg(gpu_e2m1 = "emulated")]
#[path = "e2m1_half.rs"]
mod e2m1;

use cuda_std::ptx::{convert, memory};
use cuda_std::{kernel, thread};
use fp4_formats::quantize::{
    DEQUANTIZE, DEQUANTIZE_UNITS, DequantizeConfig, DequantizeParams, ScaleSource,
};
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, ScaleLayout, ue8m0};

use crate::floats;
use crate::pipeline::{follow_stream, release_stream};

/// Conversion of the scale byte of a format to a number.
trait Scale: BlockFormat {
    /// The value of the scale `byte`, which is below 256.
    fn scale(byte: u16) -> f32;
}

impl Scale for Nvfp4 {
    #[inline(always)]
    fn scale(byte: u16) -> f32 {
        convert::cvt_f32_f16(floats::halves_of_e4m3(byte) as u16)
    }
}

impl Scale for Mxfp4 {
    #[inline(always)]
    fn scale(byte: u16) -> f32 {
        ue8m0::decode(byte as u8)
    }
}

/// The type of the result, of which 16 bytes form a unit.
trait Output {
    /// The type.
    const TYPE: FloatType;

    /// Loads the codes of a unit's elements, the first in the lowest bits.
    ///
    /// # Safety
    /// `address` is the address of a unit's codes in global memory, aligned to their size.
    unsafe fn load(address: u64) -> u32;

    /// The 16 bytes of the unit: the decoded elements times `scale`.
    fn unit(codes: u32, scale: f32) -> [u32; 4];
}

/// IEEE binary32.
struct F32;
/// IEEE binary16.
struct F16;
/// bfloat16.
struct Bf16;

impl Output for F32 {
    const TYPE: FloatType = FloatType::F32;

    #[inline(always)]
    unsafe fn load(address: u64) -> u32 {
        // SAFETY: the caller guarantees the address; the codes of four elements are two bytes.
        u32::from(unsafe { memory::ld_global_nc_u16(address) })
    }

    #[inline(always)]
    fn unit(codes: u32, scale: f32) -> [u32; 4] {
        let values = e2m1::decode4(codes);
        let mut unit = [0; 4];
        for i in 0..4 {
            unit[i] = (values[i] * scale).to_bits();
        }
        unit
    }
}

impl Output for F16 {
    const TYPE: FloatType = FloatType::F16;

    #[inline(always)]
    unsafe fn load(address: u64) -> u32 {
        // SAFETY: the caller guarantees the address; the codes of eight elements are four bytes.
        unsafe { memory::ld_global_nc_b32(address) }
    }

    #[inline(always)]
    fn unit(codes: u32, scale: f32) -> [u32; 4] {
        let v = e2m1::decode8(codes);
        let mut unit = [0; 4];
        for i in 0..4 {
            unit[i] = convert::cvt_rn_f16x2_f32(v[2 * i + 1] * scale, v[2 * i] * scale);
        }
        unit
    }
}

impl Output for Bf16 {
    const TYPE: FloatType = FloatType::Bf16;

    #[inline(always)]
    unsafe fn load(address: u64) -> u32 {
        // SAFETY: the caller guarantees the address; a unit of bf16 has as many codes as one of f16.
        unsafe { F16::load(address) }
    }

    #[inline(always)]
    fn unit(codes: u32, scale: f32) -> [u32; 4] {
        let v = e2m1::decode8(codes);
        let mut unit = [0; 4];
        for i in 0..4 {
            unit[i] = convert::cvt_rn_bf16x2_f32(v[2 * i + 1] * scale, v[2 * i] * scale);
        }
        unit
    }
}

/// The order in which a thread visits units.
trait Walk {
    fn new(units: &Units, threads: u32) -> Self;

    /// Moves to the next of the [`DEQUANTIZE_UNITS`] units that are processed together, or from
    /// the `last` of them to the first of the following ones.
    fn advance(&mut self, last: bool);

    /// Whether the current unit exists.
    fn exists(&self, units: &Units) -> bool;

    /// Index of the unit, and offset of its block's scale.
    fn place(&self, units: &Units) -> (u64, u64);

    /// Row of the unit; 0 in walks that do not count rows.
    fn row(&self) -> u32;
}

/// The units of a matrix.
struct Units {
    rows: u32,
    /// Units per row.
    columns: u32,
    /// Units per block.
    a_block: u32,
    layout: ScaleLayout,
}

/// A walk for linear scales without factors per row, where the units that a CTA processes together
/// are consecutive. If there is at most one unit per thread, each thread has at most one.
struct Flat {
    index: u64,
    step: u32,
    leap: u64,
}

impl Walk for Flat {
    #[inline(always)]
    fn new(units: &Units, threads: u32) -> Self {
        let all = u64::from(thread::grid_dim_x()) * u64::from(threads);
        let one = u64::from(units.rows) * u64::from(units.columns) <= all;
        let chunk = u64::from(threads) * if one { 1 } else { DEQUANTIZE_UNITS as u64 };
        Self {
            index: u64::from(thread::block_idx_x()) * chunk + u64::from(thread::thread_idx_x()),
            step: if one { all as u32 } else { threads },
            leap: u64::from(thread::grid_dim_x() - 1) * chunk,
        }
    }

    #[inline(always)]
    fn advance(&mut self, last: bool) {
        self.index += u64::from(self.step);
        if last {
            self.index += self.leap;
        }
    }

    #[inline(always)]
    fn exists(&self, units: &Units) -> bool {
        self.index < u64::from(units.rows) * u64::from(units.columns)
    }

    #[inline(always)]
    fn place(&self, units: &Units) -> (u64, u64) {
        (self.index, self.index / u64::from(units.a_block))
    }

    #[inline(always)]
    fn row(&self) -> u32 {
        0
    }
}

/// A walk for any layout, in steps of the number of threads in the grid. The divisions at its start
/// take longer than a load from global memory.
struct ByRow {
    index: u64,
    row: u32,
    column: u32,
    step: u32,
    row_step: u32,
    column_step: u32,
    columns: u32,
}

impl Walk for ByRow {
    #[inline(always)]
    fn new(units: &Units, threads: u32) -> Self {
        let thread = thread::block_idx_x() * threads + thread::thread_idx_x();
        let threads = thread::grid_dim_x() * threads;
        Self {
            index: u64::from(thread),
            row: thread / units.columns,
            column: thread % units.columns,
            step: threads,
            row_step: threads / units.columns,
            column_step: threads % units.columns,
            columns: units.columns,
        }
    }

    #[inline(always)]
    fn advance(&mut self, _last: bool) {
        self.index += u64::from(self.step);
        self.row += self.row_step;
        self.column += self.column_step;
        if self.column >= self.columns {
            self.column -= self.columns;
            self.row += 1;
        }
    }

    #[inline(always)]
    fn exists(&self, units: &Units) -> bool {
        self.row < units.rows
    }

    #[inline(always)]
    fn place(&self, units: &Units) -> (u64, u64) {
        let blocks = (units.columns / units.a_block) as usize;
        let block = (self.column / units.a_block) as usize;
        (self.index, units.layout.offset(self.row as usize, block, blocks) as u64)
    }

    #[inline(always)]
    fn row(&self) -> u32 {
        self.row
    }
}

/// The kernel body.
///
/// # Safety
/// The launch satisfies the module's contract.
#[inline(always)]
unsafe fn dequantize<B: Scale, O: Output>(config: &DequantizeConfig, p: &DequantizeParams) {
    release_stream();
    let layout = if p.blocked == 0 { ScaleLayout::Linear } else { ScaleLayout::Blocked128x4 };
    // SAFETY: the caller guarantees the contract; the walk suits layout and source.
    unsafe {
        if DequantizeConfig::is_flat(layout, p.source == ScaleSource::RowAmax as u32) {
            walk::<B, O, Flat>(config, p, layout);
        } else {
            walk::<B, O, ByRow>(config, p, layout);
        }
    }
}

/// Processes the thread's units.
///
/// # Safety
/// The launch satisfies the module's contract. `W` is [`Flat`] only if scales are linear and there
/// are no factors per row.
#[inline(always)]
unsafe fn walk<B: Scale, O: Output, W: Walk>(
    config: &DequantizeConfig,
    p: &DequantizeParams,
    layout: ScaleLayout,
) {
    let unit = const { 16 / O::TYPE.bytes() };
    let units = Units { rows: p.m, columns: p.k / unit, a_block: B::BLOCK as u32 / unit, layout };
    // SAFETY: K is at least one block. Divisions by `columns` then need no check.
    unsafe { core::hint::assert_unchecked(units.columns > 0) };
    let by_row = p.source == ScaleSource::RowAmax as u32;
    let mut walk = W::new(&units, config.threads());
    let mut ahead = W::new(&units, config.threads());
    for i in 0..DEQUANTIZE_UNITS {
        if ahead.exists(&units) {
            let (index, scale) = ahead.place(&units);
            // SAFETY: the unit exists, so its codes and its scale are inside the matrix.
            unsafe {
                memory::prefetch_global_l2(p.codes + index * u64::from(unit / 2));
                memory::prefetch_global_l2(p.scales + scale);
            }
        }
        ahead.advance(i + 1 == DEQUANTIZE_UNITS);
    }
    follow_stream();
    let mut tensor = p.given;
    if p.source == ScaleSource::TensorAmax as u32 {
        // SAFETY: with this source, `tensor` is the address of one f32.
        tensor = f32::from_bits(unsafe { memory::ld_global_nc_b32(p.tensor) });
    }
    while walk.exists(&units) {
        let mut index = [0; DEQUANTIZE_UNITS];
        let mut exists = [false; DEQUANTIZE_UNITS];
        let mut codes = [0; DEQUANTIZE_UNITS];
        let mut scales = [0; DEQUANTIZE_UNITS];
        let mut tensors = [tensor; DEQUANTIZE_UNITS];
        for i in 0..DEQUANTIZE_UNITS {
            let scale;
            (index[i], scale) = walk.place(&units);
            exists[i] = walk.exists(&units);
            if exists[i] {
                // SAFETY: the unit exists, so its codes, its scale and its row's factor are
                // inside their arrays.
                unsafe {
                    codes[i] = O::load(p.codes + index[i] * u64::from(unit / 2));
                    scales[i] = memory::ld_global_nc_u8(p.scales + scale);
                    if by_row {
                        let address = p.tensor + u64::from(walk.row()) * 4;
                        tensors[i] = f32::from_bits(memory::ld_global_nc_b32(address));
                    }
                }
            }
            walk.advance(i + 1 == DEQUANTIZE_UNITS);
        }
        for i in 0..DEQUANTIZE_UNITS {
            if exists[i] {
                let words = O::unit(codes[i], B::scale(scales[i]) * tensors[i]);
                // SAFETY: the unit exists, is 16-byte aligned, and belongs to this thread alone.
                unsafe { memory::st_global_v4_b32(p.out + index[i] * 16, words) };
            }
        }
    }
}

/// Entry points: name, index in [`DEQUANTIZE`], format, type of the result.
macro_rules! entries {
    ($($name:ident = $index:literal, $format:ident, $output:ident;)*) => {
        $(
            #[doc = concat!("[`DEQUANTIZE`]`[", stringify!($index), "]`.")]
            ///
            /// # Safety
            /// The launch satisfies the module's contract.
            #[kernel(threads = DEQUANTIZE[$index].threads(), min_blocks = DEQUANTIZE[$index].min_blocks)]
            pub unsafe fn $name(params: DequantizeParams) {
                const CONFIG: &DequantizeConfig = &DEQUANTIZE[$index];
                const { assert!(CONFIG.output as u32 == <$output as Output>::TYPE as u32) };
                const { assert!(CONFIG.format.block() as usize == $format::BLOCK) };
                // SAFETY: the caller guarantees the contract.
                unsafe { dequantize::<$format, $output>(CONFIG, &params) }
            }
        )*
        crate::assert_names!([$($name),*], DEQUANTIZE);
    };
}

entries! {
    dequantize_nvfp4_f32 = 0, Nvfp4, F32;
    dequantize_nvfp4_f16 = 1, Nvfp4, F16;
    dequantize_nvfp4_bf16 = 2, Nvfp4, Bf16;
    dequantize_mxfp4_f32 = 3, Mxfp4, F32;
    dequantize_mxfp4_f16 = 4, Mxfp4, F16;
    dequantize_mxfp4_bf16 = 5, Mxfp4, Bf16;
}
