//! Special registers: PTX ISA 10.
//!
//! `%clock` and `%globaltimer` count the warp instructions that the cluster has
//! run (one a nanosecond), `%smid` is the CTA's number modulo the SM count,
//! `%gridid` is 1, `%envreg` and `%pm` are 0. `%warpid` is the number in the
//! CTA, `%nwarpid` the most an SM holds.

use crate::Gpu;
use crate::machine::Context;
use crate::machine::SHARED_BASE;
use crate::machine::code::Op;
use crate::machine::regs::{Class, FULL, LANES, Slot};

/// End of what the system uses of the start of shared memory, as on an H200 with
/// driver 580.
const RESERVED_END: u32 = 288;
/// Shared memory is allocated in multiples of this, bytes (CUDA occupancy
/// calculator, compute capability 9.0).
const SHARED_GRANULE: u32 = 128;

/// A special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Clusterid(usize),
    Nclusterid(usize),
    ClusterCtaid(usize),
    ClusterNctaid(usize),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
    Laneid,
    Warpid,
    Smid,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    Clock,
    ClockHi,
    Clock64,
    Globaltimer,
    GlobaltimerLo,
    GlobaltimerHi,
    DynamicSmemSize,
    TotalSmemSize,
    AggrSmemSize,
    Gridid,
    /// One 32-bit value.
    Fixed(u32),
    /// A 64-bit zero.
    Zero64,
}

impl Special {
    /// The register of a name with its `%` and component.
    pub(crate) fn parse(name: &str, gpu: &Gpu) -> Option<Self> {
        let name = name.strip_prefix('%')?;
        let (stem, component) = match name.split_once('.') {
            None => (name, None),
            Some((stem, component)) => {
                let index = ["x", "y", "z", "w"].iter().position(|c| *c == component)?;
                (stem, Some(index))
            }
        };
        if let Some(component) = component {
            // The fourth component is always 0 (10.1).
            if component == 3 {
                return Some(Self::Fixed(0));
            }
            return Some(match stem {
                "tid" => Self::Tid(component),
                "ntid" => Self::Ntid(component),
                "ctaid" => Self::Ctaid(component),
                "nctaid" => Self::Nctaid(component),
                "clusterid" => Self::Clusterid(component),
                "nclusterid" => Self::Nclusterid(component),
                "cluster_ctaid" => Self::ClusterCtaid(component),
                "cluster_nctaid" => Self::ClusterNctaid(component),
                _ => return None,
            });
        }
        Some(match stem {
            "cluster_ctarank" => Self::ClusterCtarank,
            "cluster_nctarank" => Self::ClusterNctarank,
            "is_explicit_cluster" => Self::IsExplicitCluster,
            "laneid" => Self::Laneid,
            "warpid" => Self::Warpid,
            "nwarpid" => Self::Fixed(gpu.max_threads_per_sm / LANES as u32),
            "smid" => Self::Smid,
            "nsmid" => Self::Fixed(gpu.sms),
            "gridid" => Self::Gridid,
            "lanemask_eq" => Self::LanemaskEq,
            "lanemask_le" => Self::LanemaskLe,
            "lanemask_lt" => Self::LanemaskLt,
            "lanemask_ge" => Self::LanemaskGe,
            "lanemask_gt" => Self::LanemaskGt,
            "clock" => Self::Clock,
            "clock_hi" => Self::ClockHi,
            "clock64" => Self::Clock64,
            "globaltimer" => Self::Globaltimer,
            "globaltimer_lo" => Self::GlobaltimerLo,
            "globaltimer_hi" => Self::GlobaltimerHi,
            "dynamic_smem_size" => Self::DynamicSmemSize,
            "total_smem_size" => Self::TotalSmemSize,
            "aggr_smem_size" => Self::AggrSmemSize,
            "reserved_smem_offset_begin" => Self::Fixed(0),
            "reserved_smem_offset_end" => Self::Fixed(RESERVED_END),
            "reserved_smem_offset_cap" => Self::Fixed(SHARED_BASE),
            _ if stem.starts_with("envreg") => Self::Fixed(0),
            _ if stem.starts_with("pm") && stem.ends_with("_64") => Self::Zero64,
            _ if stem.strip_prefix("pm").is_some_and(|n| n.parse::<u8>().is_ok()) => Self::Fixed(0),
            _ => return None,
        })
    }

    /// Its register class.
    pub(crate) fn class(self) -> Class {
        match self {
            Self::Clock64 | Self::Globaltimer | Self::Gridid | Self::Zero64 => Class::R64,
            Self::IsExplicitCluster => Class::Pred,
            _ => Class::R32,
        }
    }

    /// An instruction that copies it to a register of its class.
    pub(crate) fn read_into(self, slot: Slot) -> Op {
        let wide = self.class() == Class::R64;
        Op::Effect(Box::new(move |cx, mask| {
            if wide {
                let value = self.value64(cx);
                cx.regs.put(slot, mask, &[value; LANES]);
            } else {
                let row = self.row32(cx);
                cx.regs.put(slot, mask, &row);
            }
            Ok(())
        }))
    }

    /// An instruction that copies a predicate one.
    pub(crate) fn read_into_pred(self, index: u32) -> Op {
        Op::Effect(Box::new(move |cx, mask| {
            let value = if cx.env.explicit_cluster { FULL } else { 0 };
            cx.regs.set_pred(index, mask, value);
            Ok(())
        }))
    }

    fn value64(self, cx: &Context<'_>) -> u64 {
        match self {
            Self::Gridid => 1,
            Self::Zero64 => 0,
            _ => cx.clock,
        }
    }

    fn row32(self, cx: &Context<'_>) -> [u32; LANES] {
        let (env, place) = (cx.env, cx.place);
        let by_lane = |f: fn(u32) -> u32| std::array::from_fn(|lane| f(lane as u32));
        let value = match self {
            Self::Tid(d) => return place.tid[d],
            Self::Laneid => return by_lane(|lane| lane),
            Self::LanemaskEq => return by_lane(|lane| 1 << lane),
            Self::LanemaskLt => return by_lane(|lane| (1 << lane) - 1),
            Self::LanemaskLe => return by_lane(|lane| u32::MAX >> (31 - lane)),
            Self::LanemaskGe => return by_lane(|lane| u32::MAX << lane),
            Self::LanemaskGt => return by_lane(|lane| !(u32::MAX >> (31 - lane))),
            Self::Ntid(d) => env.block[d],
            Self::Ctaid(d) => place.cta[d],
            Self::Nctaid(d) => env.grid[d],
            Self::Clusterid(d) => place.cluster[d],
            Self::Nclusterid(d) => env.grid[d] / env.cluster[d],
            Self::ClusterCtaid(d) => place.cta_in_cluster[d],
            Self::ClusterNctaid(d) => env.cluster[d],
            Self::ClusterCtarank => place.rank,
            Self::ClusterNctarank => env.cluster.iter().product(),
            Self::IsExplicitCluster => u32::from(env.explicit_cluster),
            Self::Warpid => place.warp,
            Self::Smid => place.sm,
            Self::Clock | Self::GlobaltimerLo => cx.clock as u32,
            Self::ClockHi | Self::GlobaltimerHi => (cx.clock >> 32) as u32,
            Self::DynamicSmemSize => env.dynamic_shared,
            Self::TotalSmemSize => {
                (env.shared_bytes - SHARED_BASE).next_multiple_of(SHARED_GRANULE)
            }
            Self::AggrSmemSize => env.shared_bytes,
            Self::Fixed(value) => value,
            Self::Clock64 | Self::Globaltimer | Self::Gridid | Self::Zero64 => 0,
        };
        [value; LANES]
    }
}
