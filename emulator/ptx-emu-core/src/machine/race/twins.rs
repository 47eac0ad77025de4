//! The tables against the shadow alone: the same accesses find the same races, also after others were found.

use super::{AgentId, Found, Kind, Object, Origin, Races};
use crate::machine::RANK_SHIFT;
use crate::machine::regs::{FULL, LANES};
use proptest::prelude::*;

const CTAS: usize = 2;
const WARPS: usize = 3;
const BYTES: usize = 1024;

/// Addresses of the lanes of a warp.
#[derive(Debug, Clone)]
enum Pattern {
    /// Groups of lanes, the number of which is a power of two, have consecutive addresses or all one.
    Groups {
        count: u32,
        uniform: bool,
        starts: Vec<usize>,
    },
    /// A row of a table with some bytes a row for each lane.
    Columns {
        start: usize,
        stride: usize,
    },
    Any(Vec<usize>),
}

impl Pattern {
    fn addrs(&self, rank: usize, bytes: usize) -> [u64; LANES] {
        let places = BYTES / bytes;
        std::array::from_fn(|lane| {
            let place = match self {
                Self::Groups { count, uniform, starts } => {
                    let (group, at) = (lane >> count, lane & ((1 << count) - 1));
                    starts[group % starts.len()] + if *uniform { 0 } else { at }
                }
                Self::Columns { start, stride } => start + lane * stride,
                Self::Any(places) => places[lane],
            };
            (rank as u64) << RANK_SHIFT | (place % places * bytes) as u64
        })
    }
}

#[derive(Debug, Clone)]
enum Step {
    Warp {
        warp: AgentId,
        rank: usize,
        kind: Kind,
        bytes: usize,
        mask: u32,
        pattern: Pattern,
    },
    Single {
        warp: AgentId,
        rank: usize,
        kind: Kind,
        place: (u64, u64),
    },
    /// The first agent learns what the second did.
    Order(AgentId, AgentId),
    /// All warps of a CTA learn what all did.
    Barrier(usize),
    Branch(AgentId),
    Meet(AgentId),
    /// Some lanes publish, another warp learns of it.
    Lanes(AgentId, u32, AgentId),
    FenceReads(AgentId),
    /// An asynchronous operation after a warp, which another one waits for.
    Copy {
        after: AgentId,
        rank: usize,
        kind: Kind,
        place: (u64, u64),
        waiter: Option<AgentId>,
    },
    Proxy {
        after: AgentId,
        rank: usize,
        place: (u64, u64),
    },
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        6 => Just(Kind::Read),
        4 => Just(Kind::Write),
        1 => Just(Kind::StrongRead),
        1 => Just(Kind::StrongWrite),
    ]
}

fn place() -> impl Strategy<Value = (u64, u64)> {
    let (bytes, line) = (BYTES as u64, 128);
    prop_oneof![
        1 => (0..bytes - 20, 1..21u64),
        1 => (0..bytes / 16 - 8, 1..9u64).prop_map(|(at, count)| (16 * at, 16 * count)),
        2 => (0..bytes / line - 1, 1..3u64).prop_map(move |(at, count)| (line * at, line * count)),
    ]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let starts = prop_oneof![
        (0..BYTES / 32).prop_map(|row| vec![32 * row]),
        prop::collection::vec(0..BYTES, 1..5),
    ];
    prop_oneof![
        6 => (0..6u32, prop::bool::weighted(0.3), starts)
            .prop_map(|(count, uniform, starts)| Pattern::Groups { count, uniform, starts }),
        2 => (0..BYTES, 0..40usize).prop_map(|(start, stride)| Pattern::Columns { start, stride }),
        1 => prop::collection::vec(0..BYTES, LANES).prop_map(Pattern::Any),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0..CTAS * WARPS;
    // Most accesses are to the warp's own CTA.
    let warp = || (agent(), prop::bool::weighted(0.05));
    let rank = |warp: AgentId, other: bool| (warp / WARPS + usize::from(other)) % CTAS;
    let bytes = prop_oneof![1 => Just(1), 1 => Just(2), 8 => Just(4), 2 => Just(8), 2 => Just(16)];
    let mask = prop_oneof![3 => Just(FULL), 1 => any::<u32>().prop_map(|mask| mask | 1 << 7)];
    prop_oneof![
        24 => (warp(), kind(), bytes, mask, pattern()).prop_map(
            move |((warp, other), kind, bytes, mask, pattern)| {
                Step::Warp { warp, rank: rank(warp, other), kind, bytes, mask, pattern }
            }
        ),
        1 => (warp(), kind(), place()).prop_map(move |((warp, other), kind, place)| {
            Step::Single { warp, rank: rank(warp, other), kind, place }
        }),
        4 => (agent(), agent()).prop_map(|(agent, after)| Step::Order(agent, after)),
        8 => (0..CTAS).prop_map(Step::Barrier),
        1 => agent().prop_map(Step::Branch),
        2 => agent().prop_map(Step::Meet),
        1 => (agent(), any::<u32>(), agent()).prop_map(|(of, lanes, to)| Step::Lanes(of, lanes, to)),
        1 => agent().prop_map(Step::FenceReads),
        1 => (warp(), kind(), place(), prop::option::of(agent())).prop_map(
            move |((after, other), kind, place, waiter)| {
                Step::Copy { after, rank: rank(after, other), kind, place, waiter }
            }
        ),
        1 => (warp(), place()).prop_map(move |((after, other), place)| {
            Step::Proxy { after, rank: rank(after, other), place }
        }),
    ]
}

/// The parts of a race that a report has.
fn told(found: Found) -> impl PartialEq + std::fmt::Debug {
    let Found { place, clash, asynchronous, fence, unchanged, at_once } = found;
    let access = |of: super::Record| (of.agent, of.warp, of.epoch, of.pc, of.kind);
    let clash = (clash.offset, access(clash.old), access(clash.new), clash.lanes);
    (place, clash, asynchronous, fence, unchanged, at_once)
}

/// The race that a step finds.
fn take(races: &mut Races, pc: usize, step: &Step) -> impl PartialEq + std::fmt::Debug + use<> {
    let origin = |warp: AgentId| Origin { pc, warp, lane: 3 };
    let mut read = None;
    let found = match *step {
        Step::Warp { warp, rank, kind, bytes, mask, ref pattern } => {
            let addrs = pattern.addrs(rank, bytes);
            let record = races.record(warp, Origin { pc, warp, lane: 0 }, kind);
            let word_each = (kind, bytes, mask) == (Kind::Read, 4, FULL);
            let news = match word_each {
                true => races.read_words(warp, pc, &addrs),
                false => races.news(&addrs, (mask, bytes), &record),
            };
            match news {
                0 => Ok(()),
                news => races.warp_access(warp, pc, kind, &addrs, (news, bytes)),
            }
        }
        Step::Single { warp, rank, kind, place } => {
            races.access(warp, origin(warp), kind, rank as u32, place)
        }
        Step::Order(agent, after) => {
            races.order(agent, after);
            Ok(())
        }
        Step::Barrier(cta) => {
            let warps = cta * WARPS..(cta + 1) * WARPS;
            for warp in warps.clone() {
                races.meet(warp);
                races.order(warps.start, warp);
            }
            warps.clone().for_each(|warp| races.order(warp, warps.start));
            Ok(())
        }
        Step::Branch(warp) => {
            races.branch(warp);
            Ok(())
        }
        Step::Meet(warp) => {
            races.meet(warp);
            Ok(())
        }
        Step::Lanes(of, lanes, to) => {
            let object = Object::Mbarrier(0, 8);
            races.release(of, lanes, object);
            races.close(object);
            races.acquire(to, object, false);
            Ok(())
        }
        Step::FenceReads(warp) => {
            races.fence_reads(warp, FULL);
            Ok(())
        }
        Step::Copy { after, rank, kind, place, waiter } => {
            let agent = races.new_agent(after, FULL, false);
            let found = races.access(agent, origin(after), kind, rank as u32, place);
            if let Some(waiter) = waiter {
                races.order(waiter, agent);
            }
            races.retire(agent);
            found
        }
        Step::Proxy { after, rank, place } => {
            let agent = races.new_agent(after, FULL, false);
            let looked = races.proxy_write(agent, origin(after), Kind::Write, rank as u32, place);
            read = looked.1.map(|read| (read.pc, read.warp));
            races.order(after, agent);
            races.retire(agent);
            looked.0
        }
    };
    (found.map_err(told), read)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn tables_find_what_the_shadow_finds(
        runs in prop::collection::vec(prop::collection::vec(step(), 0..60), 1..3),
        strict in prop::bool::weighted(0.1),
    ) {
        let mut twins = [false, true].map(|without_tables| {
            Races { without_tables, ..Races::default() }
        });
        for steps in runs {
            let threads = 32 * WARPS as u32;
            twins.iter_mut().for_each(|races| races.start(CTAS, (WARPS, threads), BYTES, strict));
            for (pc, step) in steps.iter().enumerate() {
                let [with, without] = twins.each_mut().map(|races| take(races, pc, step));
                prop_assert_eq!(with, without, "step {}: {:?}", pc, step);
            }
        }
    }
}
