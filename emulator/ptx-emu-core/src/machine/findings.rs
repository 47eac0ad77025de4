//! Findings that do not end a run.
//!
//! Each cluster has those of its own, one for each kind and pair of lines, in the order in which
//! they were made; the grid's are those of its clusters, in the order in which these began. So
//! they do not depend on the host's threads.

use super::context::Context;
use super::launch::Env;
use super::units::Units;
use crate::checks::{Kind, Level};
use crate::diagnostic::{AsyncFault, Diagnostic, DiagnosticKind, Exec, Fault};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The identity of a finding: kind, line, and the line of the other instruction that it is about.
type Key = (Kind, u32, u32);

fn key(found: &Diagnostic) -> Key {
    (found.kind(), found.line, found.kind.other_line())
}

/// The findings of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Findings(RefCell<Found>);

#[derive(Debug, Default)]
struct Found {
    all: Vec<Diagnostic>,
    seen: BTreeSet<Key>,
}

impl Findings {
    /// Another cluster begins.
    pub(crate) fn reset(&mut self) {
        *self.0.get_mut() = Found::default();
    }

    /// Whether there is a finding of a kind at a line already. Findings that cost much to describe
    /// need not be described again.
    pub(crate) fn has(&self, kind: Kind, line: u32, other: u32) -> bool {
        self.0.borrow().seen.contains(&(kind, line, other))
    }

    fn add(&self, found: Diagnostic) {
        let mut mine = self.0.borrow_mut();
        if mine.seen.insert(key(&found)) {
            mine.all.push(found);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Diagnostic> {
        std::mem::take(&mut self.0.get_mut().all)
    }
}

/// The findings of a grid: each with the place of its cluster in the order of their beginning.
#[derive(Debug, Default)]
pub(crate) struct Collected(Mutex<Vec<(u64, Diagnostic)>>);

impl Collected {
    /// Adds those of the cluster that began at a place.
    pub(crate) fn add(&self, place: u64, found: Vec<Diagnostic>) {
        if found.is_empty() {
            return;
        }
        if let Ok(mut all) = self.0.lock() {
            for one in found {
                match all.iter_mut().find(|(_, other)| key(other) == key(&one)) {
                    Some(other) if place < other.0 => *other = (place, one),
                    Some(_) => {}
                    None => all.push((place, one)),
                }
            }
        }
    }

    /// The distinct ones of the clusters up to a place, at most `most`, the denied ones first;
    /// and how many were left out.
    pub(crate) fn finish(&self, last: u64, most: usize) -> (Vec<Diagnostic>, usize) {
        let mut all = match self.0.lock() {
            Ok(mut all) => std::mem::take(&mut *all),
            Err(_) => Vec::new(),
        };
        all.retain(|(place, _)| *place <= last);
        // Findings of one cluster stay in their order.
        all.sort_by_key(|(place, found)| (std::cmp::Reverse(found.level), *place));
        let left_out = all.len().saturating_sub(most);
        all.truncate(most);
        (all.into_iter().map(|(_, found)| found).collect(), left_out)
    }
}

impl Units {
    /// A fault at an instruction of a warp of the cluster, behind which the machine could go on:
    /// whether it does.
    ///
    /// # Errors
    /// The fault, if it ends the run.
    #[cold]
    pub(crate) fn report(
        &self,
        env: &Env<'_>,
        (pc, warp): (usize, usize),
        fault: Box<Fault>,
    ) -> Exec {
        let level = env.checks.level(fault.kind.kind());
        match level {
            Level::Allow => return Ok(()),
            Level::Deny if env.checks.stop || fault.kind.kind().is_fatal() => return Err(fault),
            Level::Deny | Level::Warn => {}
        }
        let (pc, warp) = fault.site.map_or((pc, warp), |site| (site.pc, site.warp));
        let (cta, warp) = self.place(warp);
        let line = env.code[pc].line;
        let Fault { kind, lane, access, .. } = *fault;
        self.findings.add(Diagnostic {
            kind,
            kernel: env.functions[env.entry].name.clone(),
            line,
            instruction: env.source_line(line).to_owned(),
            source: env.module.source_of(line),
            cta,
            warp,
            lane,
            access,
            schedule: env.schedule,
            level,
            others: Vec::new(),
        });
        Ok(())
    }

    /// Whether a finding need not be described: it is allowed, or there is one of its kind and
    /// instructions already.
    #[inline]
    pub(crate) fn is_known(&self, env: &Env<'_>, kind: Kind, pc: usize, other_line: u32) -> bool {
        env.checks.level(kind) == Level::Allow
            || self.findings.has(kind, env.code[pc].line, other_line)
    }
}

impl Context<'_> {
    /// A fault of the executing instruction behind which the machine could go on.
    ///
    /// # Errors
    /// The fault, if it ends the run.
    #[cold]
    pub(crate) fn report(&self, fault: Box<Fault>) -> Exec {
        self.units.report(self.env, (self.pc, self.warp()), fault)
    }

    /// A lane of the executing warp uses memory of another CTA: that must have started, as far as
    /// the warp can know, and not have exited.
    pub(crate) fn check_peer(&self, rank: u32, lane: usize) -> Exec {
        self.check_started(rank, lane)?;
        let alive = self.units.cluster.check_alive(rank);
        alive.map_err(|fault| Fault::lane(fault.kind, lane as u32))
    }

    /// Something that the executing warp waited for must say that the CTA of `rank` has started.
    pub(crate) fn check_started(&self, rank: u32, lane: usize) -> Exec {
        if self.units.knows_start(self.warp(), rank) {
            return Ok(());
        }
        let kind = DiagnosticKind::Async(AsyncFault::Unstarted { rank });
        self.report(Fault::lane(kind, lane as u32))
    }
}
