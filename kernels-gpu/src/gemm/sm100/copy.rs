//! The copying lane: brings codes and scales of one K step after the other into the ring
//! of stages. The first stages get the weights before the kernel that makes the
//! activations has ended, if there is one.

use super::schedule::{self, Scheduled};
use super::{Cta, RESULT, WorkList};
use crate::gemm::walk::Walk;
use cuda_std::ptx::{bulk, cluster, grid, tensor_copy};
use fp4_formats::gemm::sm100::config::Products;
use fp4_formats::gemm::sm100::{STEP_BYTES, Sm100Config};
use fp4_formats::layout::{TILE_BYTES, TILE_ROWS};

/// Indices of the maps in the parameter block.
const X_CODES: u32 = 0;
const Y_CODES: u32 = 1;
const X_SCALES: u32 = 2;
/// The copy of the scales of a 4-bit `Y`.
const Y_SCALES: u32 = 3;

/// Fetches the operands' maps before the first copy needs them.
///
/// # Safety
/// The parameter block holds the maps of a kernel of this configuration.
#[inline(always)]
pub unsafe fn prefetch_maps(cta: &Cta<'_, impl WorkList>) {
    // SAFETY: these maps are in the parameter block; those of `Y` are left out where nothing is
    // copied by them.
    unsafe {
        tensor_copy::prefetch_tensormap(cta.map(X_CODES));
        if !cta.loads_codes() {
            tensor_copy::prefetch_tensormap(cta.map(Y_CODES));
        }
        tensor_copy::prefetch_tensormap(cta.map(X_SCALES));
        if copies_scales(cta.config) {
            tensor_copy::prefetch_tensormap(cta.map(Y_SCALES));
        }
    }
}

/// Whether scales of `Y` are copied.
#[inline(always)]
const fn copies_scales(config: &Sm100Config) -> bool {
    config.y_copied_scale_bytes() > 0
}

/// # Safety
/// One lane of the copying warp of each CTA.
#[inline(always)]
pub unsafe fn run<L: WorkList>(cta: &Cta<'_, L>) {
    let config = cta.config;
    let ring = cta.memory.ring();
    let mut cursor = ring.producer();
    // A launch behind this kernel may set itself up.
    L::release();
    let policy = |once: u32| {
        if once != 0 {
            bulk::createpolicy_fractional_l2_evict_first_b64()
        } else {
            bulk::createpolicy_fractional_l2_evict_last_b64()
        }
    };
    let (mut x_policy, mut y_policy) = (policy(cta.params.x_once), policy(cta.params.y_once));
    let targets = Targets::new(cta);
    // The CTA's share of a multicast copy: rows and scale tiles of `X` by share, scale tiles of `Y`
    // by place in the pair.
    let x_part = cta.multicast_rank() * config.x_box_rows();
    let x_tile_part = cta.multicast_rank() * config.x_box_tiles();
    let y_tile_part = cta.pair_rank() * config.y_box_tiles();
    let y_part_bytes = config.y_scale_bytes() / config.cta_group;
    let mut walk = Walk::<Scheduled<false>>::start(cta);
    let x_is_weights = cta.swapped();
    // K steps of the tile whose weights are copied before all activations.
    let mut early = if cta.list.begins_early() { config.stages() } else { 0 };
    let mut known = u32::MAX;
    // SAFETY: the table of the work list, if it has one, is made.
    while let Some(item) = unsafe { walk.current(cta) } {
        let tile = L::tile(cta, item.tile);
        // SAFETY: this is the copying lane, and each tile comes by here once; its problem exists.
        let cta = unsafe {
            schedule::begin(cta);
            cta.acquire(&tile, [X_CODES, RESULT], &mut known)
        };
        let (first, end) = cta.steps_of(&item);
        early = early.min(end - first);
        if L::MIXED {
            (x_policy, y_policy) = (policy(cta.params.x_once), policy(cta.params.y_once));
        }
        let x_row = cta.x_row(tile);
        let y_row = cta.y_row(tile);
        let (weights, activations) = (tile.problem, tile.tokens.matrix);
        let (x, y) = if x_is_weights { (weights, activations) } else { (activations, weights) };
        let entry = |shared: u32, matrix: u32| if shared != 0 { 0 } else { matrix as i32 };
        let (x_batch, y_batch) = (entry(cta.params.x_shared, x), entry(cta.params.y_shared, y));
        let (scales, _) = cta.list.scales(&tile);
        let (x, y) = if x_is_weights { (weights, scales) } else { (scales, weights) };
        let x_matrix = entry(cta.params.x_shared, x);
        let y_matrix = entry(cta.params.y_shared, y);
        let x_group = (cta.x_scale_row(tile) / TILE_ROWS as u32) as i32;
        let y_group = (cta.y_scale_row(tile) / TILE_ROWS as u32) as i32;
        let x_at = (x_row + x_part) as i32;
        let y_at = (y_row + cta.pair_rank() * config.cta_columns()) as i32;
        for i in 0..end - first + early {
            // Weights of the early steps, then their activations, then both of the rest.
            let alone = i < 2 * early;
            let weights = !alone || i < early;
            let activations = !alone || i >= early;
            let (copy_x, copy_y) =
                if x_is_weights { (weights, activations) } else { (activations, weights) };
            let step = if i < early { first + i } else { first + i - early };
            if alone && i == early {
                // Back to the first stage: this is the first tile.
                cursor = ring.producer();
                grid::griddepcontrol_wait();
            }
            let x = cta.memory.stage(cursor.stage);
            let y = x + config.y_codes_at();
            let (x_scales, y_scales) = (x + config.x_scales_at(), x + config.y_scales_at());
            // Codes are counted in bytes, unless they are padded.
            let place = match config.products() {
                Products::Blocks | Products::Halves(_) | Products::Folded => {
                    (step * config.step() / 2) as i32
                }
                Products::Bytes => (step * config.step()) as i32,
            };
            let scale = step * config.scale_tiles();
            let full = targets.barrier(ring.full(cursor.stage));
            // Who decodes `X` waits for its own.
            let x_full =
                if !config.decodes() { full } else { targets.own_address(ring.full(cursor.stage)) };
            // SAFETY: the stage is empty in all CTAs that the copies reach, and its
            // barriers expect what the boxes bring; boxes count in full, also where they
            // leave the operand.
            unsafe {
                if weights {
                    ring.wait_empty(&cursor);
                    if cta.pair_rank() == 0 {
                        let loaded = if cta.loads_codes() { config.y_bytes() } else { 0 };
                        ring.expect_bytes(cursor.stage, config.leader_bytes() - loaded);
                    } else if config.decodes() {
                        ring.expect_bytes(cursor.stage, config.decoded_bytes());
                    }
                }
                if copy_x {
                    let to = x + x_part * config.step() / 2;
                    let at = [place, x_at, x_batch];
                    targets.codes(targets.receivers, to, cta.map(X_CODES), at, x_full, x_policy);
                    let to = x_scales + x_tile_part * TILE_BYTES as u32;
                    let at = [0, (scale + x_tile_part) as i32, x_group, x_matrix];
                    targets.scales(targets.receivers, to, cta.map(X_SCALES), at, x_full, x_policy);
                }
                if copy_y && config.activations.is_none() {
                    if !cta.loads_codes() {
                        let at = [place, y_at, y_batch];
                        targets.codes(targets.own, y, cta.map(Y_CODES), at, full, y_policy);
                    }
                    if copies_scales(config) {
                        let to = y_scales + cta.pair_rank() * y_part_bytes;
                        let at = [0, (scale + y_tile_part) as i32, y_group, y_matrix];
                        targets.scales(targets.pair, to, cta.map(Y_SCALES), at, full, y_policy);
                    }
                } else if copy_y {
                    for i in 0..config.step() / config.y_box() {
                        let to = y + i * config.cta_columns() * STEP_BYTES;
                        let element = step * config.step() + i * config.y_box();
                        let at = [element as i32, y_at, y_batch];
                        targets.codes(targets.own, to, cta.map(Y_CODES), at, full, y_policy);
                    }
                }
            }
            cursor.advance();
        }
        early = 0;
        // SAFETY: this is the copying lane, and each tile comes by here once.
        unsafe { walk.advance(&cta, &item) };
    }
    // Commits may still be on their way to these barriers, in all CTAs that they reach.
    // SAFETY: as above.
    unsafe { ring.wait_all_empty(&mut cursor) };
}

/// The targets of copies: masks of CTAs of the cluster.
struct Targets {
    /// CTAs of a pair, or 1.
    cta_group: u32,
    /// The CTA itself.
    own: u16,
    /// The CTAs of its pair.
    pair: u16,
    /// The CTAs with the same rows of `X`.
    receivers: u16,
    rank: u32,
}

impl Targets {
    #[inline(always)]
    fn new(cta: &Cta<'_, impl WorkList>) -> Self {
        let cta_group = cta.config.cta_group;
        let own = 1 << cta.rank;
        let pair = ((1 << cta_group) - 1) << cta.leader();
        let receivers =
            if cta.config.multicast > 1 { (1 | 1 << cta_group) << cta.pair_rank() } else { own };
        Self { cta_group, own, pair, receivers, rank: cta.rank }
    }

    /// Whom copies report to: of a pair, the first CTA.
    #[inline(always)]
    fn barrier(&self, full: u32) -> u32 {
        if self.cta_group == 1 {
            full
        } else {
            cluster::mapa_shared_cluster_u32(full, self.rank & !1)
        }
    }

    /// The CTA's own `to`, in the cluster's window for the forms that take it.
    #[inline(always)]
    fn own_address(&self, to: u32) -> u32 {
        if self.cta_group == 1 { to } else { cluster::mapa_shared_cluster_u32(to, self.rank) }
    }

    /// # Safety
    /// As the copies'.
    #[inline(always)]
    unsafe fn codes(&self, ctas: u16, to: u32, map: u64, at: [i32; 3], barrier: u32, policy: u64) {
        let to = self.own_address(to);
        // SAFETY: the caller's.
        unsafe {
            match (self.cta_group, ctas == self.own) {
                (1, true) => tensor_copy::cp_async_bulk_tensor_3d_shared_cta_global(
                    to, map, at, barrier, policy,
                ),
                (1, false) => tensor_copy::cp_async_bulk_tensor_3d_shared_cluster_global_multicast(
                    to, map, at, barrier, ctas, policy,
                ),
                (_, true) => {
                    tensor_copy::cp_async_bulk_tensor_3d_shared_cluster_global_cta_group_2(
                        to, map, at, barrier, policy,
                    )
                }
                (_, false) => {
                    tensor_copy::cp_async_bulk_tensor_3d_shared_cluster_global_multicast_cta_group_2(
                        to, map, at, barrier, ctas, policy,
                    );
                }
            }
        }
    }

    /// # Safety
    /// As the copies'.
    #[inline(always)]
    unsafe fn scales(&self, ctas: u16, to: u32, map: u64, at: [i32; 4], barrier: u32, policy: u64) {
        let to = self.own_address(to);
        // SAFETY: the caller's.
        unsafe {
            match (self.cta_group, ctas == self.own) {
                (1, true) => tensor_copy::cp_async_bulk_tensor_4d_shared_cta_global(
                    to, map, at, barrier, policy,
                ),
                (1, false) => tensor_copy::cp_async_bulk_tensor_4d_shared_cluster_global_multicast(
                    to, map, at, barrier, ctas, policy,
                ),
                (_, true) => {
                    tensor_copy::cp_async_bulk_tensor_4d_shared_cluster_global_cta_group_2(
                        to, map, at, barrier, policy,
                    )
                }
                (_, false) => {
                    tensor_copy::cp_async_bulk_tensor_4d_shared_cluster_global_multicast_cta_group_2(
                        to, map, at, barrier, ctas, policy,
                    );
                }
            }
        }
    }
}
