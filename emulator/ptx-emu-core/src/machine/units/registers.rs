//! `setmaxnreg`: PTX ISA 9.7.19.5.
//!
//! Each CTA has a pool of registers: those it was launched with that its warps do not
//! hold. `dec` releases registers to the pool, `inc` waits until the pool has enough. All
//! warps of a warpgroup must execute it equally often, and by PTX with the same counts. Values
//! do not depend on it, because released registers keep their contents.

use crate::diagnostic::{AsyncFault, DiagnosticKind, Exec, Fault};

/// Least and most registers of a thread.
pub(crate) const RANGE: std::ops::RangeInclusive<u32> = 24..=256;
/// Warps of a warpgroup.
const GROUP: usize = 4;

#[derive(Debug, Clone, Default)]
struct Warp {
    holds: u32,
    /// Values set so far, with their instructions.
    history: Vec<(u32, usize)>,
}

/// Register pools of a cluster's CTAs.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    /// Registers that a thread was launched with, if the kernel fixes them.
    launched: Option<u32>,
    warps_per_cta: usize,
    free: Vec<u32>,
    warps: Vec<Warp>,
}

fn misuse(required: String, actual: String) -> Box<Fault> {
    Fault::warp(DiagnosticKind::Async(AsyncFault::MaxRegisters { required, actual }))
}

impl Registers {
    pub(crate) fn reset(&mut self, launched: Option<u32>, ctas: usize, warps_per_cta: usize) {
        self.launched = launched;
        self.warps_per_cta = warps_per_cta;
        self.free.clear();
        self.free.resize(ctas, 0);
        self.warps.clear();
        let warp = Warp { holds: launched.unwrap_or(0), history: Vec::new() };
        self.warps.resize(ctas * warps_per_cta, warp);
    }

    /// Registers per thread that the pool of a CTA could give to one warp.
    pub(crate) fn free(&self, rank: u32) -> u32 {
        self.free[rank as usize]
    }

    /// Sets the number of registers of a warp. `Some(missing)` when the pool
    /// has to grow to so many first.
    pub(crate) fn set(
        &mut self,
        rank: u32,
        warp: usize,
        pc: usize,
        (grow, count): (bool, u32),
    ) -> Exec<Option<u32>> {
        if !RANGE.contains(&count) || !count.is_multiple_of(8) {
            return Err(misuse("a multiple of 8 in 24..=256".to_owned(), count.to_string()));
        }
        if self.launched.is_none() {
            return Ok(None);
        }
        let free = &mut self.free[rank as usize];
        let state = &mut self.warps[warp];
        if grow {
            if count < state.holds {
                return Err(misuse(format!("inc to at least {}", state.holds), count.to_string()));
            }
            let more = count - state.holds;
            if more > *free {
                return Ok(Some(more));
            }
            *free -= more;
        } else {
            if count > state.holds {
                return Err(misuse(format!("dec to at most {}", state.holds), count.to_string()));
            }
            *free += state.holds - count;
        }
        state.holds = count;
        state.history.push((count, pc));
        Ok(None)
    }

    /// The next `setmaxnreg` of a warp of a kernel that limits its registers: a fault if another
    /// warp of the warpgroup gave the same one another count.
    pub(crate) fn uneven_counts(&self, warp: usize, count: u32) -> Option<Box<Fault>> {
        self.launched?;
        let step = self.warps[warp].history.len();
        self.siblings(warp).find_map(|other| {
            let &(theirs, _) = self.warps[other].history.get(step)?;
            let warp = (other % self.warps_per_cta) as u32;
            let fault = AsyncFault::UnevenRegisters { required: theirs, warp, actual: count };
            (theirs != count).then(|| Fault::warp(DiagnosticKind::Async(fault)))
        })
    }

    /// Warps of the same warpgroup.
    fn siblings(&self, warp: usize) -> impl Iterator<Item = usize> + use<> {
        let (cta, within) = (warp / self.warps_per_cta, warp % self.warps_per_cta);
        let first = within / GROUP * GROUP;
        let base = cta * self.warps_per_cta;
        let end = (first + GROUP).min(self.warps_per_cta);
        (base + first..base + end).filter(move |&other| other != warp)
    }

    /// A CTA ended: every warpgroup must have done the same. The instruction
    /// that only a part executed, and its warp.
    pub(crate) fn uneven(&self, rank: u32) -> Option<(usize, usize)> {
        let base = rank as usize * self.warps_per_cta;
        (base..base + self.warps_per_cta).find_map(|warp| {
            let mine = &self.warps[warp].history;
            let shorter = self
                .siblings(warp)
                .map(|other| self.warps[other].history.len())
                .filter(|&len| len < mine.len())
                .min()?;
            Some((mine[shorter].1, warp))
        })
    }
}
