//! The order of tiles, and the cluster's K steps in each:
//!
//! | order | when | tiles | K steps |
//! |---|---|---|---|
//! | asked for | `dynamic` | as the hardware hands them out | all, or the CTA's part of a split |
//! | run | otherwise, where the configuration takes stream-K | the cluster's run of the launch's schedule, from its end | those in the run |
//! | in turn | otherwise, and of grouped and mixed products, whose number of tiles only the device knows | each `clusters`-th one | all, or the CTA's part of a split |
//!
//! With `dynamic`, the grid has a cluster for each tile. A cluster begins with its own,
//! then takes over clusters that have not begun: one lane of the cluster asks, the
//! response reaches all its CTAs, and every role reads it there. It asks for the next tile when
//! the cluster's first copying lane begins one: a cluster that held more in advance would keep
//! them from clusters that have nothing to do.

use super::memory::{Memory, arrive_at};
use super::role::Sm100;
use super::{Cta, WorkList};
use crate::gemm::cta::Target;
use crate::pipeline::Cursor;
use cuda_std::ptx::{cluster, fence, grid, mbarrier, memory};
use cuda_std::{thread, warp};
use fp4_formats::gemm::work::Tile;
use fp4_formats::gemm::{Item, Run, Schedule};

/// A role's walk over the tiles.
pub struct Tiles<'a, L: WorkList> {
    /// The context of the launch.
    cta: Cta<'a, L>,
    /// The number of tiles.
    count: u32,
    /// The tile's number, and the K steps; in a mixed product, the steps of the first one.
    item: Item,
    order: Order<'a>,
    cursor: Cursor,
}

/// The source of the next tile.
enum Order<'a> {
    /// The hardware's scheduler.
    Asked,
    /// The rest of the cluster's run.
    Run { schedule: &'a Schedule, rest: Run },
    /// The distance of a cluster's tiles.
    InTurn { step: u32 },
}

/// The number of a tile past the last one.
const NONE: u32 = u32::MAX;

impl<'a, L: WorkList> Tiles<'a, L> {
    /// Starts at the cluster's first tile.
    #[inline(always)]
    pub fn new(cta: &Cta<'a, L>) -> Self {
        let (config, params) = (cta.config, cta.params);
        let (first, end) = cta.steps();
        let index = Sm100::run_index(config);
        let mut item = Item { tile: index, first, end };
        let order = if !L::GROUPED && params.dynamic != 0 {
            Order::Asked
        } else if config.takes_stream_k() {
            let schedule = &params.schedule;
            let mut rest = schedule.run(index);
            item = rest.take(schedule);
            Order::Run { schedule, rest }
        } else {
            Order::InTurn { step: thread::grid_dim_x() / config.cluster() }
        };
        let cursor = cta.memory.responses().consumer();
        Self { cta: *cta, count: L::count(cta), item, order, cursor }
    }

    /// The number of the tile. Roles walk upwards, through mixed products from the highest number down:
    /// the longest tiles have the highest ones.
    #[inline(always)]
    fn number(&self) -> u32 {
        if L::MIXED { self.count - 1 - self.item.tile } else { self.item.tile }
    }

    /// The tile, or none if there are no more.
    #[inline(always)]
    pub fn current(&self) -> Option<Tile> {
        self.is_at_tile().then(|| L::tile(&self.cta, self.number()))
    }

    /// The CTA's K steps of the tile, whose problem's context this is: first, and one past the last.
    #[inline(always)]
    pub fn steps(&self, cta: &Cta<'_, L>) -> (u32, u32) {
        if L::MIXED { cta.steps() } else { (self.item.first, self.item.end) }
    }

    /// The tile as one of the launch's schedule, if the cluster has a run of it.
    #[inline(always)]
    pub fn item(&self) -> Option<Item> {
        match self.order {
            Order::Run { .. } => Some(self.item),
            Order::Asked | Order::InTurn { .. } => None,
        }
    }

    /// Returns the role's context for the tile, which there is.
    #[inline(always)]
    pub fn at<'b>(&self, cta: &Cta<'b, L>) -> Cta<'b, L> {
        if !L::MIXED {
            return *cta;
        }
        // SAFETY: the tile's problem exists.
        unsafe { cta.at(L::tile(&self.cta, self.number()).problem) }
    }

    /// Whether there is a tile.
    #[inline(always)]
    pub fn is_at_tile(&self) -> bool {
        self.item.tile < self.count
    }

    /// Says that the copying lane begins the tile: the next one may be asked for.
    ///
    /// # Safety
    /// Called by the copying lane, once for each tile.
    #[inline(always)]
    pub unsafe fn begin(&self) {
        if matches!(self.order, Order::Asked) && self.cta.rank == 0 {
            // SAFETY: each phase of the barrier expects one arrival. The lane's next arrival comes
            // behind the response to the request that this one allows, so after this phase.
            unsafe { mbarrier::mbarrier_arrive_shared_cta_b64(self.cta.memory.begun()) };
        }
    }

    /// Advances to the next tile.
    ///
    /// # Safety
    /// Called by one lane, or with `WARP` by a whole warp, of each role, after each tile.
    #[inline(always)]
    pub unsafe fn advance<const WARP: bool>(&mut self) {
        match &mut self.order {
            Order::Asked => {}
            Order::Run { schedule, rest } => {
                if rest.is_empty() {
                    self.item.tile = NONE;
                } else {
                    self.item = rest.take(schedule);
                }
                return;
            }
            Order::InTurn { step } => {
                self.item.tile += *step;
                return;
            }
        }
        // SAFETY: the response's bytes came before its barrier's phase ended; lanes are
        // together as the caller says.
        unsafe {
            self.cta.memory.responses().wait_full(&self.cursor);
            let next = read(&self.cta.memory, self.cursor.stage);
            self.item.tile = next.map_or(NONE, |cta| cta / self.cta.config.cluster());
            if WARP {
                warp::sync();
            }
            if !WARP || warp::lane_id() == 0 {
                arrive_at(self.cta.memory.responses().empty(self.cursor.stage), 0);
            }
        }
        self.cursor.advance();
    }
}

/// The first CTA of the cluster to take over, if there is one, from the response in
/// `stage`; a new response may overwrite it then.
///
/// # Safety
/// The response is there.
#[inline(always)]
unsafe fn read(map: &Memory, stage: u32) -> Option<u32> {
    // SAFETY: the caller's.
    let response = unsafe { memory::ld_shared_v2_b64(map.response(stage)) };
    fence::fence_proxy_async_shared_cta();
    grid::clusterlaunchcontrol_query_cancel_is_canceled(response)
        .then(|| grid::clusterlaunchcontrol_query_cancel_get_first_ctaid_x(response))
}

/// Asks for clusters to take over, one for each tile that is begun, until there are none.
///
/// # Safety
/// One lane of the cluster, of CTA 0.
#[inline(always)]
pub unsafe fn run(cta: &Cta<'_, impl WorkList>) {
    let responses = cta.memory.responses();
    let mut asked = responses.producer();
    let mut received = responses.consumer();
    let mut begun_parity = 0;
    loop {
        // SAFETY: all readers of all CTAs are done with the response before it is asked
        // for again; every CTA's barrier expects its bytes first.
        unsafe {
            mbarrier::wait_parity(cta.memory.begun(), begun_parity);
            begun_parity ^= 1;
            responses.wait_empty(&asked);
            let (response, barrier) =
                (cta.memory.response(asked.stage), responses.full(asked.stage));
            if cta.config.cluster() == 1 {
                responses.expect_bytes(asked.stage, grid::RESPONSE_BYTES);
                grid::clusterlaunchcontrol_try_cancel(response, barrier);
            } else {
                for rank in 0..cta.config.cluster() {
                    mbarrier::mbarrier_arrive_expect_tx_release_cta_shared_cluster_b64(
                        cluster::mapa_shared_cluster_u32(barrier, rank),
                        grid::RESPONSE_BYTES,
                    );
                }
                grid::clusterlaunchcontrol_try_cancel_multicast(response, barrier);
            }
            responses.wait_full(&received);
            if read(&cta.memory, received.stage).is_none() {
                return;
            }
        }
        asked.advance();
        received.advance();
    }
}
