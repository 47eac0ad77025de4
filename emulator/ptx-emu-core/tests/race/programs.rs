//! Random programs of two and three warps, with barriers of both kinds and
//! plain and atomic accesses to two words, against a checker that walks every
//! interleaving: a program has a race if, somewhere, two conflicting accesses
//! of different warps are both next. Lane 0 of each warp makes its accesses.

use crate::support::Run;
use proptest::prelude::*;
use ptx_emu_core::{DiagnosticKind, GlobalMemory, LaunchError, Schedule};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const WORDS: u8 = 2;
const BARRIERS: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Read(u8),
    Write(u8),
    /// A store to the lower half of a word.
    WriteHalf(u8),
    StrongRead(u8),
    Atomic(u8),
    Sync(u8),
    Arrive(u8),
}

impl Step {
    /// Bytes of the words it touches, whether it writes, whether it is strong.
    fn access(self) -> Option<(u8, bool, bool)> {
        Some(match self {
            Self::Read(word) => (3 << (2 * word), false, false),
            Self::Write(word) => (3 << (2 * word), true, false),
            Self::WriteHalf(word) => (1 << (2 * word), true, false),
            Self::StrongRead(word) => (3 << (2 * word), false, true),
            Self::Atomic(word) => (3 << (2 * word), true, true),
            Self::Sync(_) | Self::Arrive(_) => return None,
        })
    }

    fn conflicts(self, other: Self) -> bool {
        match (self.access(), other.access()) {
            (Some((a, writes, strong)), Some((b, also_writes, also_strong))) => {
                a & b != 0 && (writes || also_writes) && !(strong && also_strong)
            }
            _ => false,
        }
    }

    fn ptx(self, threads: usize) -> String {
        match self {
            Self::Read(word) => format!("@%p3 ld.shared.u32 %r9, [s+{}];", 4 * word),
            Self::Write(word) => format!("@%p3 st.shared.u32 [s+{}], 1;", 4 * word),
            Self::WriteHalf(word) => format!("@%p3 st.shared.u16 [s+{}], 1;", 4 * word),
            Self::StrongRead(word) => {
                format!("@%p3 ld.relaxed.cta.shared.u32 %r9, [s+{}];", 4 * word)
            }
            Self::Atomic(word) => {
                format!("@%p3 red.relaxed.cta.shared.add.u32 [s+{}], 1;", 4 * word)
            }
            Self::Sync(id) => format!("bar.sync {}, {threads};", id + 1),
            Self::Arrive(id) => format!("bar.arrive {}, {threads};", id + 1),
        }
    }
}

/// The state of a program: the next step of each warp, and who has arrived at each barrier (bit of
/// the warp) and waits for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    next: Vec<usize>,
    arrived: [u8; BARRIERS as usize],
    waiting: Vec<Option<u8>>,
}

/// Walks over all interleavings and returns whether one has a race; `None` for a program that
/// misuses barriers or can hang.
fn has_race(program: &[Vec<Step>]) -> Option<bool> {
    let warps = program.len();
    let start = State { next: vec![0; warps], arrived: [0; 3], waiting: vec![None; warps] };
    let (mut seen, mut todo) = (BTreeSet::new(), vec![start]);
    let mut race = false;
    while let Some(state) = todo.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let enabled: Vec<(usize, Step)> = (0..warps)
            .filter(|&warp| state.waiting[warp].is_none())
            .filter_map(|warp| Some((warp, *program[warp].get(state.next[warp])?)))
            .collect();
        if enabled.is_empty() && state.waiting.iter().any(Option::is_some) {
            return None;
        }
        for (k, (_, step)) in enabled.iter().enumerate() {
            race |= enabled[..k].iter().any(|(_, other)| step.conflicts(*other));
        }
        for (warp, step) in enabled {
            let mut after = state.clone();
            after.next[warp] += 1;
            if let Step::Sync(id) | Step::Arrive(id) = step {
                let arrived = &mut after.arrived[usize::from(id)];
                if *arrived >> warp & 1 != 0 {
                    return None;
                }
                *arrived |= 1 << warp;
                if step == Step::Sync(id) {
                    after.waiting[warp] = Some(id);
                }
                if arrived.count_ones() as usize == warps {
                    *arrived = 0;
                    for waiting in &mut after.waiting {
                        if *waiting == Some(id) {
                            *waiting = None;
                        }
                    }
                }
            }
            todo.push(after);
        }
        // Arrivals that nobody completes leave the barrier open at the end.
    }
    Some(race)
}

fn kernel(program: &[Vec<Step>]) -> String {
    let threads = 32 * program.len();
    let mut body = String::from(
        ".shared .align 4 .b8 s[8]; shr.u32 %r4, %tid, 5; mov.u32 %r9, 0;
        and.b32 %r5, %tid, 31; setp.eq.u32 %p3, %r5, 0;
        setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; @%p1 st.shared.u32 [s+4], 0;
        bar.sync 0;\n",
    );
    for (warp, steps) in program.iter().enumerate() {
        let _ = writeln!(body, "setp.ne.u32 %p2, %r4, {warp}; @%p2 bra W{};", warp + 1);
        for step in steps {
            let _ = writeln!(body, "{}", step.ptx(threads));
        }
        let _ = writeln!(body, "bra END;\nW{}:", warp + 1);
    }
    body + "END: st.global.u32 [%po], %r9;"
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..WORDS).prop_map(Step::Read),
        2 => (0..WORDS).prop_map(Step::Write),
        1 => (0..WORDS).prop_map(Step::WriteHalf),
        1 => (0..WORDS).prop_map(Step::StrongRead),
        2 => (0..WORDS).prop_map(Step::Atomic),
    ]
}

/// Programs whose warps meet at the same sequence of barriers, some of them
/// only arriving, with accesses between.
fn program(warps: usize) -> impl Strategy<Value = Vec<Vec<Step>>> {
    let meetings = prop::collection::vec((0..BARRIERS, 0u8..8), 0..6);
    meetings.prop_flat_map(move |meetings| {
        let gaps = prop::collection::vec(
            prop::collection::vec(prop::option::weighted(0.4, step()), meetings.len() + 1),
            warps,
        );
        gaps.prop_map(move |gaps| {
            gaps.into_iter()
                .enumerate()
                .map(|(warp, gaps)| {
                    let mut steps = Vec::new();
                    for (k, gap) in gaps.into_iter().enumerate() {
                        steps.extend(gap);
                        if let Some(&(id, arrivers)) = meetings.get(k) {
                            // One warp at least waits.
                            let only_arrives = arrivers >> warp & 1 != 0
                                && arrivers & ((1 << warps) - 1) != (1 << warps) - 1;
                            steps.push(if only_arrives {
                                Step::Arrive(id)
                            } else {
                                Step::Sync(id)
                            });
                        }
                    }
                    steps
                })
                .collect()
        })
    })
}

/// Whether a relaxed read of what a relaxed atomic wrote may order accesses in
/// some schedules: the writer passed a barrier before its atomic, the reader
/// passes one after its read. Barriers are fences as well, and two fences with
/// such a pair of accesses between them synchronise (PTX ISA 8.9), if the read
/// came after the write.
fn flags_may_order(program: &[Vec<Step>]) -> bool {
    let barrier = |step: &Step| matches!(step, Step::Sync(_) | Step::Arrive(_));
    let written = |steps: &[Step], word: u8| {
        let first = steps.iter().position(barrier).unwrap_or(steps.len());
        steps[first..].iter().any(|step| matches!(step, Step::Atomic(w) if *w == word))
    };
    let read = |steps: &[Step], word: u8| {
        let last = steps.iter().rposition(barrier).unwrap_or(0);
        steps[..last]
            .iter()
            .any(|step| matches!(step, Step::Atomic(w) | Step::StrongRead(w) if *w == word))
    };
    (0..WORDS).any(|word| {
        program.iter().enumerate().any(|(writer, theirs)| {
            written(theirs, word)
                && program
                    .iter()
                    .enumerate()
                    .any(|(reader, mine)| reader != writer && read(mine, word))
        })
    })
}

/// Whether a race is found in one launch.
fn found(program: &[Vec<Step>], text: &str, schedule: Schedule) -> Result<bool, TestCaseError> {
    let warps = program.len() as u32;
    let run =
        Run { schedule, block: 32 * warps, out_bytes: u64::from(128 * warps), ..Run::body(text) };
    match run.launch(&mut GlobalMemory::new()) {
        Ok(_) => Ok(false),
        Err(LaunchError::Diagnostic(diagnostic)) => {
            prop_assert!(
                matches!(diagnostic.kind, DiagnosticKind::Race(_)),
                "{diagnostic}\n{program:?}"
            );
            Ok(true)
        }
        Err(error) => Err(TestCaseError::fail(error.to_string())),
    }
}

/// A race is found under every schedule, unless a flag that was seen in time orders
/// the accesses in some; then one of many schedules finds it. A program without a
/// race is never reported.
fn agrees(program: &[Vec<Step>]) -> Result<(), TestCaseError> {
    let Some(expected) = has_race(program) else {
        return Err(TestCaseError::reject("misuses barriers"));
    };
    let text = kernel(program);
    let few = [Schedule::Lazy, Schedule::Random(0), Schedule::Random(1)];
    if expected && flags_may_order(program) {
        for schedule in few.into_iter().chain((2..256).map(Schedule::Random)) {
            if found(program, &text, schedule)? {
                return Ok(());
            }
        }
        return Err(TestCaseError::fail(format!("no schedule shows the race: {program:?}")));
    }
    for schedule in few {
        prop_assert_eq!(found(program, &text, schedule)?, expected, "{}: {:?}", schedule, program);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        max_global_rejects: 100_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn two_warps(program in program(2)) {
        agrees(&program)?;
    }

    #[test]
    fn three_warps(program in program(3)) {
        agrees(&program)?;
    }
}

/// Every program of two warps with two steps each over one word and one
/// barrier.
#[test]
fn all_small_programs() {
    let steps = [
        Step::Read(0),
        Step::Write(0),
        Step::WriteHalf(0),
        Step::StrongRead(0),
        Step::Atomic(0),
        Step::Sync(0),
        Step::Arrive(0),
    ];
    let pairs: Vec<Vec<Step>> =
        steps.iter().flat_map(|&a| steps.iter().map(move |&b| vec![a, b])).collect();
    let (mut racy, mut clean) = (0, 0);
    for first in &pairs {
        for second in &pairs {
            let program = [first.clone(), second.clone()];
            match has_race(&program) {
                None => continue,
                Some(true) => racy += 1,
                Some(false) => clean += 1,
            }
            agrees(&program).unwrap_or_else(|error| panic!("{program:?}: {error}"));
        }
    }
    assert!(racy > 500 && clean > 100, "{racy} with a race, {clean} without");
}

/// An atomic, seen in time, orders the write before the read under some schedules;
/// under others the two race.
#[test]
fn a_race_that_a_flag_hides_is_found_under_another_schedule() {
    use Step::{Arrive, Atomic, StrongRead, Sync, Write};
    let program = [
        vec![Arrive(1), Sync(2), Sync(1), Arrive(0), Write(0), Arrive(2), Atomic(1)],
        vec![Sync(1), Sync(2), Sync(1), Atomic(1), Sync(0), StrongRead(0), Sync(2)],
    ];
    assert_eq!(has_race(&program), Some(true));
    let text = kernel(&program);
    let seen = |schedule| found(&program, &text, schedule).unwrap_or_else(|e| panic!("{e}"));
    let (shown, hidden): (Vec<u64>, Vec<u64>) =
        (0..512).partition(|&seed| seen(Schedule::Random(seed)));
    assert!(!shown.is_empty() && !hidden.is_empty(), "{shown:?} {hidden:?}");
}
