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
use crate::gemm::walk::Source;
use crate::pipeline::Cursor;
use cuda_std::ptx::{cluster, fence, grid, mbarrier, memory};
use cuda_std::{thread, warp};
use fp4_formats::gemm::{Item, Run};

/// The source of a role's tiles; with `WARP` whole warps walk, otherwise one lane.
#[derive(Clone, Copy)]
pub struct Scheduled<const WARP: bool> {
    /// The next response of the hardware's scheduler.
    cursor: Cursor,
    /// The position behind the last item, in kernels with runs. Others count their tiles for each item, which
    /// takes no register.
    end: u32,
}

/// The order of a kernel's tiles, as the table above says.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Asked,
    Run,
    InTurn,
}

impl Order {
    #[inline(always)]
    fn of<L: WorkList>(cta: &Cta<'_, L>) -> Self {
        if !L::GROUPED && cta.params.dynamic != 0 {
            Self::Asked
        } else if cta.config.takes_stream_k() {
            Self::Run
        } else {
            Self::InTurn
        }
    }
}

/// The number of a tile past the last one.
const NONE: u32 = u32::MAX;

/// Positions are numbers of tiles, or the complements of a run's, which ascend like those: one comparison
/// finds the end in either order. Mixed products count from the last tile down: the longest tiles have the
/// highest numbers.
impl<L: WorkList, const WARP: bool> Source<Sm100, L> for Scheduled<WARP> {
    #[inline(always)]
    fn start(cta: &Cta<'_, L>) -> (Self, u32) {
        let (at, end) = match Order::of(cta) {
            Order::Run => {
                let Run { first, end } = L::run(cta);
                (!end, !first)
            }
            Order::Asked | Order::InTurn => {
                let kept = cta.config.takes_stream_k();
                (Sm100::run_index(cta.config), if kept { L::count(cta) } else { NONE })
            }
        };
        (Self { cursor: cta.memory.responses().consumer(), end }, at)
    }

    #[inline(always)]
    fn is_done(&self, cta: &Cta<'_, L>, at: u32) -> bool {
        at >= if cta.config.takes_stream_k() { self.end } else { L::count(cta) }
    }

    #[inline(always)]
    unsafe fn item(&self, cta: &Cta<'_, L>, at: u32) -> Item {
        match Order::of(cta) {
            Order::Run => L::take(cta, &mut Run { first: !self.end, end: !at }),
            Order::Asked | Order::InTurn => {
                let (first, end) = cta.steps();
                Item { tile: if L::MIXED { L::count(cta) - 1 - at } else { at }, first, end }
            }
        }
    }

    #[inline(always)]
    unsafe fn next(&mut self, cta: &Cta<'_, L>, at: u32, item: &Item) -> u32 {
        match Order::of(cta) {
            Order::Asked => {}
            Order::Run => return !L::end(cta, item),
            Order::InTurn => return at + thread::grid_dim_x() / cta.config.cluster(),
        }
        let responses = cta.memory.responses();
        // SAFETY: the response's bytes came before its barrier's phase ended; lanes are
        // together as the caller says.
        let next = unsafe {
            responses.wait_full(&self.cursor);
            let next = read(&cta.memory, self.cursor.stage);
            if WARP {
                warp::sync();
            }
            if !WARP || warp::lane_id() == 0 {
                arrive_at(responses.empty(self.cursor.stage), 0);
            }
            next
        };
        self.cursor.advance();
        next.map_or(NONE, |first| first / cta.config.cluster())
    }
}

/// The item as one of the launch's schedule, if the cluster has a run of it.
#[inline(always)]
pub fn of_run<L: WorkList>(cta: &Cta<'_, L>, item: Item) -> Option<Item> {
    (Order::of(cta) == Order::Run).then_some(item)
}

/// Says that the copying lane begins a tile: the next one may be asked for.
///
/// # Safety
/// Called by the copying lane, once for each tile.
#[inline(always)]
pub unsafe fn begin<L: WorkList>(cta: &Cta<'_, L>) {
    if Order::of(cta) == Order::Asked && cta.rank == 0 {
        // SAFETY: each phase of the barrier expects one arrival. The lane's next arrival comes
        // behind the response to the request that this one allows, so after this phase.
        unsafe { mbarrier::mbarrier_arrive_shared_cta_b64(cta.memory.begun()) };
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
