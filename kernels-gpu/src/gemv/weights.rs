//! The weights: each thread streams its chunk of one row after the other through registers.

use super::activations::Activations;
use super::{BlockDot, ROWS, RowGroups};
use cuda_std::ptx::{integer, memory};
use fp4_formats::ScaleLayout;

/// The chunks that a thread has loaded, or is loading: one for each row in flight.
///
/// The registers of a row are refilled as soon as they have been used, so that the loads of all
/// rows stay in flight without a second set of registers.
pub struct Stream<const CHUNK: usize> {
    codes: [[u32; 4]; ROWS as usize],
    /// e4m3 scales, one for each block of the chunk, the first block's in the lowest byte.
    scales: [u16; ROWS as usize],
    next: Cursor,
}

/// The next load of a thread.
struct Cursor {
    /// Whether the thread has a chunk.
    here: bool,
    /// Linear layout: addresses of the chunk's codes and scales in the next row. 128x4 layout:
    /// bytes from a row's codes, and from its first scale, to those of the chunk.
    codes: u64,
    scales: u64,
}

impl Cursor {
    /// The first row group of the CTA, for a thread with chunk `chunk` of it if it is `here`.
    #[inline(always)]
    fn new(part: &RowGroups<'_>, chunk: u32, here: bool) -> Self {
        let config = part.config;
        let scales = part.scale_offset(0, chunk * config.chunk_blocks());
        let codes = u64::from(chunk) * u64::from(config.load_bytes);
        let [row_codes, row_scales] = match config.scale_layout {
            ScaleLayout::Linear => part.row_addresses(part.begin),
            ScaleLayout::Blocked128x4 => [0, 0],
        };
        Self { here, codes: row_codes + codes, scales: row_scales + scales }
    }

    /// Addresses of the chunk's codes and scales in the first row of the CTA's row group `group`.
    #[inline(always)]
    fn addresses(&self, part: &RowGroups<'_>, group: u32) -> [u64; 2] {
        // `mov`: the compiler would have pointers in more registers than additions take
        // instructions.
        match part.config.scale_layout {
            ScaleLayout::Linear => [integer::mov_b64(self.codes), integer::mov_b64(self.scales)],
            ScaleLayout::Blocked128x4 => {
                let row = part.row(group, 0);
                let [codes, scales] = part.row_addresses(row).map(integer::mov_b64);
                [codes + self.codes, scales + self.scales]
            }
        }
    }

    /// Whether row `i` from the CTA's row group `group` on exists and the thread has a chunk in it.
    #[inline(always)]
    fn has(&self, part: &RowGroups<'_>, group: u32, i: u32) -> bool {
        let exists = match part.config.scale_layout {
            ScaleLayout::Linear => group + i < part.count,
            ScaleLayout::Blocked128x4 => group < part.count && part.row(group, i) < part.p.m,
        };
        self.here && exists
    }
}

impl<const CHUNK: usize> Stream<CHUNK> {
    /// Starts loading the first rows of the CTA, of which the thread has chunk `chunk` if it is
    /// `here`. A thread without a chunk holds zeros.
    ///
    /// # Safety
    /// `part` is the CTA's, of a launch that satisfies the module's contract; if it is `here`, the
    /// chunk exists.
    #[inline(always)]
    pub unsafe fn start(part: &RowGroups<'_>, chunk: u32, here: bool) -> Self {
        let mut stream = Self {
            codes: [[0; 4]; ROWS as usize],
            scales: [0; ROWS as usize],
            next: Cursor::new(part, chunk, here),
        };
        // SAFETY: the cursor's row groups are the CTA's.
        unsafe { stream.refill(part, 0, |_, _, _| {}) };
        stream
    }

    /// The products of the rows in registers, from the CTA's row group `group` on, with the
    /// thread's chunk of the activations; starts loading the next rows in their place.
    ///
    /// # Safety
    /// `part` is that of [`start`](Self::start).
    #[inline(always)]
    pub unsafe fn multiply<D: BlockDot>(
        &mut self,
        dot: D,
        part: &RowGroups<'_>,
        group: u32,
        activations: &Activations<D, CHUNK>,
    ) -> [f32; ROWS as usize] {
        let mut sums = [0.0; ROWS as usize];
        // SAFETY: the caller guarantees what `refill` requires.
        unsafe {
            self.refill(part, group + part.config.groups_in_flight(), |i, codes, scales| {
                sums[i] = activations.multiply(dot, codes, scales);
            });
        }
        sums
    }

    /// Lets each row be `used`, by its number, codes and scales, and then starts loading the next
    /// into its registers, from the CTA's row group `group` on.
    ///
    /// The loads are not of the read-only kind (`.nc`), which ptxas would move behind the wait for
    /// the stream's earlier kernels.
    ///
    /// # Safety
    /// `part` is that of [`start`](Self::start).
    #[inline(always)]
    unsafe fn refill(
        &mut self,
        part: &RowGroups<'_>,
        group: u32,
        mut used: impl FnMut(usize, [u32; 4], u16),
    ) {
        let [mut codes, mut scales] = self.next.addresses(part, group);
        for i in 0..ROWS {
            let at = i as usize;
            used(at, self.codes[at], self.scales[at]);
            if self.next.has(part, group, i) {
                // SAFETY: the thread has a chunk in the row, which exists. With two blocks per
                // chunk a row has an even number of scales, so that pairs are aligned.
                unsafe {
                    self.codes[at] = load_codes::<CHUNK>(codes);
                    self.scales[at] = load_scales::<CHUNK>(scales);
                }
            }
            codes += u64::from(part.config.row_step()) * part.row_codes();
            scales += part.scale_offset(part.config.row_step(), 0);
        }
        match part.config.scale_layout {
            ScaleLayout::Linear => [self.next.codes, self.next.scales] = [codes, scales],
            ScaleLayout::Blocked128x4 => {}
        }
    }
}

/// The codes of a chunk.
///
/// # Safety
/// The chunk exists, and is aligned to its size.
#[inline(always)]
unsafe fn load_codes<const CHUNK: usize>(address: u64) -> [u32; 4] {
    // SAFETY: the caller guarantees address and alignment.
    unsafe {
        if CHUNK == 2 {
            memory::ld_global_no_allocate_v4_b32(address)
        } else {
            let [a, b] = memory::ld_global_no_allocate_v2_b32(address);
            [a, b, 0, 0]
        }
    }
}

/// The scales of a chunk's blocks, which are adjacent in either layout.
///
/// # Safety
/// The scales exist, and are aligned to their size.
#[inline(always)]
pub(super) unsafe fn load_scales<const CHUNK: usize>(address: u64) -> u16 {
    // SAFETY: the caller guarantees address and alignment.
    unsafe {
        if CHUNK == 2 { memory::ld_global_u16(address) } else { memory::ld_global_u8(address) }
    }
}
