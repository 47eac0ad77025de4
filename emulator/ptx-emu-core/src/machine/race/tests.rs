//! The shadow with its lines, chunks and dropped records against a model that
//! keeps every access and, for every agent, the set of accesses it knows.

use super::{AgentId, ENOUGH, Kind, Origin, Races};
use proptest::prelude::*;

const WARPS: usize = 3;
const BYTES: usize = 256;

#[derive(Debug, Clone)]
enum Step {
    /// An access; with `careful`, every access that would race with it is ordered before it.
    Access { agent: AgentId, kind: Kind, offset: usize, bytes: usize, careful: bool },
    /// The first agent learns what the second did.
    Order(AgentId, AgentId),
    /// An asynchronous write of a whole line after one agent, which another one
    /// waits for.
    Copy { after: AgentId, line: usize, waiter: Option<AgentId> },
}

struct Known {
    agent: AgentId,
    kind: Kind,
    span: std::ops::Range<usize>,
}

#[derive(Default)]
struct Model {
    accesses: Vec<Known>,
    /// Accesses that come before the agent's next one, by agent.
    before: Vec<Vec<bool>>,
}

impl Model {
    /// Bytes of an access that race.
    fn races(&self, agent: AgentId, kind: Kind, span: std::ops::Range<usize>) -> Vec<usize> {
        let strong = |kind| matches!(kind, Kind::StrongRead | Kind::StrongWrite);
        let writes = |kind| matches!(kind, Kind::Write | Kind::StrongWrite);
        let mut bytes = Vec::new();
        for (at, old) in self.accesses.iter().enumerate() {
            let ordered =
                old.agent == agent || self.before[agent].get(at).copied().unwrap_or(false);
            let conflict =
                (writes(kind) || writes(old.kind)) && !(strong(kind) && strong(old.kind));
            if conflict && !ordered {
                bytes.extend(span.clone().filter(|byte| old.span.contains(byte)));
            }
        }
        bytes
    }

    fn order(&mut self, agent: AgentId, after: AgentId) {
        let count = self.accesses.len();
        for at in 0..count {
            let known = self.accesses[at].agent == after
                || self.before[after].get(at).copied().unwrap_or(false);
            let row = &mut self.before[agent];
            row.resize(row.len().max(count), false);
            row[at] |= known;
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(Kind::Read),
        2 => Just(Kind::Write),
        1 => Just(Kind::StrongRead),
        1 => Just(Kind::StrongWrite),
    ];
    let span = prop_oneof![
        3 => (0..40usize, 1..21usize),
        1 => (0..BYTES / 16, 1..9usize).prop_map(|(at, count)| (16 * at, 16 * count)),
        1 => (0..BYTES / 128, 1..3usize).prop_map(|(at, count)| (128 * at, 128 * count)),
    ];
    prop_oneof![
        6 => (0..WARPS, kind, span, prop::bool::weighted(0.9)).prop_map(
            |(agent, kind, (offset, bytes), careful)| {
                Step::Access { agent, kind, offset, bytes: bytes.min(BYTES - offset), careful }
            }
        ),
        3 => (0..WARPS, 0..WARPS).prop_map(|(agent, after)| Step::Order(agent, after)),
        1 => (0..WARPS, 0..BYTES / 128, prop::option::of(0..WARPS))
            .prop_map(|(after, line, waiter)| Step::Copy { after, line, waiter }),
    ]
}

fn check(
    races: &mut Races,
    model: &mut Model,
    agents: (AgentId, AgentId),
    kind: Kind,
    (offset, bytes): (usize, usize),
) -> Result<bool, TestCaseError> {
    let span = offset..offset + bytes;
    let expected = model.races(agents.1, kind, span.clone());
    model.accesses.push(Known { agent: agents.1, kind, span });
    let origin = Origin { pc: 7, warp: agents.0 % WARPS, lane: 3 };
    let found = races.access(agents.0, origin, kind, 0, (offset as u64, bytes as u64));
    match found {
        Ok(()) => prop_assert!(expected.is_empty(), "missed at bytes {expected:?}"),
        Err(found) => {
            let at = found.clash.offset;
            prop_assert!(expected.contains(&at), "byte {at} is not one of {expected:?}");
            prop_assert_eq!((found.clash.new.pc, found.clash.lanes.1), (7, 3));
        }
    }
    Ok(!expected.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn finds_what_a_complete_record_finds(
        runs in prop::collection::vec(prop::collection::vec(step(), 0..60), 1..3),
    ) {
        let mut races = Races::default();
        for steps in runs {
            races.start(1, (WARPS, 32 * WARPS as u32), BYTES, true);
            let mut model = Model { before: vec![Vec::new(); WARPS], ..Model::default() };
            for step in steps {
                let race = match step {
                    Step::Access { agent, kind, offset, bytes, careful } => {
                        if careful && !model.races(agent, kind, offset..offset + bytes).is_empty()
                        {
                            for other in (0..WARPS).filter(|&other| other != agent) {
                                races.order(agent, other);
                                model.order(agent, other);
                            }
                        }
                        check(&mut races, &mut model, (agent, agent), kind, (offset, bytes))?
                    }
                    Step::Order(agent, after) => {
                        races.order(agent, after);
                        model.order(agent, after);
                        false
                    }
                    Step::Copy { after, line, waiter } => {
                        let agent = races.new_agent(after, u32::MAX, false);
                        let twin = model.before.len();
                        model.before.push(Vec::new());
                        model.order(twin, after);
                        let place = (128 * line, 128);
                        let race =
                            check(&mut races, &mut model, (agent, twin), Kind::Write, place)?;
                        if let Some(waiter) = waiter {
                            races.order(waiter, agent);
                            model.order(waiter, twin);
                        }
                        races.retire(agent);
                        race
                    }
                };
                if race {
                    break;
                }
            }
        }
    }
}

#[test]
fn agents_are_used_again_only_when_there_are_many() {
    let mut races = Races::default();
    races.start(1, (1, 32), BYTES, true);
    let origin = Origin { pc: 0, warp: 0, lane: 0 };
    for round in 0..1200 {
        let agent = races.new_agent(0, u32::MAX, false);
        // The warp has two: itself, and its reads that a fence follows.
        assert!(agent < 2 + ENOUGH, "agent {agent} in round {round}");
        assert_eq!(races.access(agent, origin, Kind::Write, 0, (0, 16)), Ok(()), "{round}");
        races.order(0, agent);
        races.retire(agent);
    }
    // Agents that have not ended are never used again.
    let live: Vec<AgentId> = (0..600).map(|_| races.new_agent(0, u32::MAX, false)).collect();
    assert!(live.iter().enumerate().all(|(at, agent)| !live[..at].contains(agent)));
}

#[test]
fn what_is_outside_the_memory_is_not_remembered() {
    let mut races = Races::default();
    races.start(1, (2, 64), BYTES, true);
    for warp in 0..2 {
        let origin = Origin { pc: 0, warp, lane: 0 };
        for (rank, offset) in [(0, BYTES as u64), (0, 1 << 40), (1, 0)] {
            assert_eq!(races.access(warp, origin, Kind::Write, rank, (offset, 64)), Ok(()));
        }
    }
}
