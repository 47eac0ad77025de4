//! Reasons why instructions are not reached: a list, as `ptx-emu mutate` has one of equivalents.
//!
//! There is one reason per line, with three fields between bars:
//!
//! ```text
//! # kernel | instructions                               | reason
//! gemm_*   | trap;                                      | another CTA has failed
//! gemv_*   | setp.ge.u32 %p, %r, %r; @%p bra $; #2      | no launch has more CTAs than tiles
//! ~gemm_*  | setp.eq.b32 %p, %r, 0; @%p bra $;          | a wait that succeeds at once is not repeated
//! ```
//!
//! `*` stands for any text. The instructions stand in the text one behind the other, each
//! without the numbers of registers, the names of labels and unneeded white space: `bra $;`.
//! `#2` at the end means the second such place of a kernel. Empty lines and lines that begin with `#`
//! are ignored.
//!
//! A place that ends in a branch under a guard explains that threads which come to the branch do not
//! take it. Any other explains those of its instructions that were not reached; of a straight-line piece of
//! which nothing was reached, the whole piece; and every instruction to which all ways lead through
//! explained ones, or from which all lead to explained ones. So one place of a region that no thread
//! comes to is enough, if it stands on all ways through the region.
//!
//! If all instructions of a place were reached, the reason is wrong. `~` before the kernel says
//! that it depends on the place: that some are reached is then no fault.

use super::flow::{Flow, Next, Step};
use super::share::FunctionShare;
use crate::mutate::glob;
use std::ops::Range;

/// The reason why the instructions of a place, or of several, are not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Line in the list, from 1.
    pub line: usize,
    /// Kernel.
    pub kernel: String,
    /// Instructions, one behind the other.
    pub instructions: Vec<String>,
    /// The number among the places of a kernel, from 1; `None`: all.
    pub occurrence: Option<usize>,
    /// Other places may be reached.
    pub in_some_places: bool,
    /// The reason why they are not reached.
    pub reason: String,
}

/// A list that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: required {required}, actual `{actual}`")]
pub struct ParseExplanationsError {
    /// Line, from 1.
    pub line: usize,
    /// The required value.
    pub required: &'static str,
    /// The actual value.
    pub actual: String,
}

/// The explained instructions of functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// Lines of explanations of which no place is there that was not reached.
    pub unused: Vec<usize>,
    /// Lines of explanations, and functions that have a place which was reached all the same.
    pub reached: Vec<(usize, String)>,
}

impl Explanation {
    /// Reads a list.
    ///
    /// # Errors
    /// A line that has not three fields, an empty one, or no instruction.
    pub fn parse(text: &str) -> Result<Vec<Self>, ParseExplanationsError> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(line, text)| {
                let error =
                    |required| ParseExplanationsError { line, required, actual: text.to_owned() };
                let fields: Vec<&str> = text.split(" | ").map(str::trim).collect();
                let [kernel, place, reason] = fields[..] else {
                    return Err(error("`kernel | instructions | reason`"));
                };
                let (kernel, in_some_places) = match kernel.strip_prefix('~') {
                    Some(kernel) => (kernel, true),
                    None => (kernel, false),
                };
                if kernel.is_empty() || reason.is_empty() {
                    return Err(error("three fields that are not empty"));
                }
                let numbered = place.rsplit_once('#').and_then(|(before, number)| {
                    Some((before.trim_end(), number.parse().ok().filter(|&n| n > 0)?))
                });
                let (place, occurrence) = match numbered {
                    Some((place, number)) => (place, Some(number)),
                    None => (place, None),
                };
                let ended = place.strip_suffix(';').ok_or_else(|| error("instructions and `;`"))?;
                let instructions = ended.split(';').map(|text| format!("{};", text.trim()));
                Ok(Self {
                    line,
                    kernel: kernel.to_owned(),
                    instructions: instructions.collect(),
                    occurrence,
                    in_some_places,
                    reason: reason.to_owned(),
                })
            })
            .collect()
    }

    /// The first instruction of each of its places.
    fn places<'a>(&'a self, flow: &'a Flow) -> impl Iterator<Item = usize> + 'a {
        let matches = |at: &usize| {
            let here = flow.instructions[*at..].iter().zip(&self.instructions);
            here.filter(|(instruction, pattern)| glob(pattern, &instruction.shape)).count()
                == self.instructions.len()
        };
        let places = (0..flow.instructions.len()).filter(matches).enumerate();
        places
            .filter(|(at, _)| self.occurrence.is_none_or(|which| which == at + 1))
            .map(|(_, place)| place)
    }
}

impl Explained {
    /// Marks in functions the instructions that are explained.
    pub fn of(functions: &mut [FunctionShare], list: &[Explanation]) -> Self {
        let mut used = vec![false; list.len()];
        let mut explained = Self::default();
        for function in functions {
            let flow = &function.flow;
            let mut given = vec![false; flow.instructions.len()];
            for (entry, used) in list.iter().zip(&mut used) {
                if !glob(&entry.kernel, &function.name) {
                    continue;
                }
                let mut was_reached = false;
                for place in entry.places(flow) {
                    let missed = flow.missed(place..place + entry.instructions.len());
                    let Some(missed) = missed else { continue };
                    was_reached |= missed.is_empty();
                    *used |= !missed.is_empty();
                    for at in missed.into_iter().flat_map(|at| flow.piece(at)) {
                        given[at] = true;
                    }
                }
                if was_reached && !entry.in_some_places {
                    explained.reached.push((entry.line, function.name.clone()));
                }
            }
            flow.lead_only_there(&mut given);
            let possible = flow.possible(&given);
            for missed in &mut function.unreached {
                missed.explained = given[missed.at] || !possible[missed.at];
            }
        }
        let unused = list.iter().zip(&used).filter(|(_, used)| !**used);
        explained.unused = unused.map(|(entry, _)| entry.line).collect();
        explained
    }

    /// Whether every explanation is one, and nothing else.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.unused.is_empty() && self.reached.is_empty()
    }
}

impl Flow {
    /// Returns the instructions of a place that were not reached. A place that ends in a branch
    /// under a guard has the branch alone; nothing if no thread came to that.
    fn missed(&self, place: Range<usize>) -> Option<Vec<usize>> {
        let missed = |at: &usize| !self.instructions[*at].reached;
        match place.end.checked_sub(1).map(|last| (last, &self.instructions[last])) {
            Some((last, Step { guarded: true, next: Next::Branch(_), .. })) => {
                (!self.is_skipped(last)).then(|| Some(last).filter(missed).into_iter().collect())
            }
            _ => Some(place.filter(missed).collect()),
        }
    }

    /// The instruction and, unless it is only its guard that is never true, those around it that
    /// run whenever it does, if none was reached.
    fn piece(&self, at: usize) -> Range<usize> {
        let all = &self.instructions;
        if all[at].guarded && !self.is_skipped(at) {
            return at..at + 1;
        }
        let joins = |at: usize| !all[at].reached && !all[at].labelled && !all[at - 1].ends_piece();
        let mut first = at;
        while first > 0 && joins(first) && !all[first - 1].reached {
            first -= 1;
        }
        let mut end = at + 1;
        while end < all.len() && joins(end) {
            end += 1;
        }
        first..end
    }

    /// Whether no thread came to an instruction, as far as its neighbours say: an unguarded one of
    /// its straight-line piece was not reached.
    fn is_skipped(&self, at: usize) -> bool {
        let all = &self.instructions;
        let mut before = at;
        while before > 0 && !all[before].labelled && !all[before - 1].ends_piece() {
            before -= 1;
            if !all[before].guarded {
                return !all[before].reached;
            }
        }
        all[at..].iter().skip(1).find(|one| !one.guarded).is_some_and(|next| !next.reached)
            && !all[at].ends_piece()
    }

    /// Adds those from which all ways lead to instructions that no thread comes to.
    fn lead_only_there(&self, given: &mut [bool]) {
        let all = &self.instructions;
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for at in (0..all.len()).rev() {
                let following = [at + 1];
                let next: &[usize] = match &all[at].next {
                    Next::Following if !all[at].guarded && at + 1 < all.len() => &following,
                    Next::Branch(targets) => targets,
                    Next::Following | Next::End => &[],
                };
                let never = |&to: &usize| {
                    all.get(to).is_some_and(|step| !step.reached && !step.guarded) && given[to]
                };
                if !all[at].reached && !given[at] && !next.is_empty() && next.iter().all(never) {
                    given[at] = true;
                    changed = true;
                }
            }
        }
    }

    /// Returns the instructions that threads may come to, if the guards of `given` ones are never
    /// true and others of them are never come to.
    fn possible(&self, given: &[bool]) -> Vec<bool> {
        let all = &self.instructions;
        let mut possible = vec![false; all.len()];
        let mut todo: Vec<usize> = (0..all.len()).filter(|&at| all[at].reached).collect();
        todo.extend((!all.is_empty()).then_some(0));
        while let Some(at) = todo.pop() {
            let is_given = given[at];
            if is_given && !all[at].guarded || std::mem::replace(&mut possible[at], true) {
                continue;
            }
            let goes_on = all[at].guarded || matches!(all[at].next, Next::Following);
            if goes_on && at + 1 < all.len() {
                todo.push(at + 1);
            }
            if let (Next::Branch(targets), false) = (&all[at].next, is_given) {
                todo.extend(targets);
            }
        }
        possible
    }
}
