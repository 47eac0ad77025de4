//! Commit groups: PTX ISA 9.7.9.25.3 (`cp.async.commit_group`, `wait_group`)
//! and 9.7.9.28 (`cp.async.bulk.commit_group`, `wait_group`).
//!
//! Groups belong to threads. An operation joins the group that its issuers will
//! commit next; operations issued by lanes whose groups differ are issued
//! separately.

use super::engine::Queued;
use super::wgmma::WARPS;
use crate::machine::regs::LANES;
use std::ops::Range;

/// The kind of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupKind {
    /// `cp.async`
    Copy,
    /// `cp.async.bulk`
    Bulk,
    /// `wgmma.mma_async`
    Wgmma,
    /// `tcgen05.ld`: never committed, as the others of `tcgen05`.
    TensorLoad,
    /// `tcgen05.st`
    TensorStore,
    /// `tcgen05.mma`
    TensorProduct,
    /// `tcgen05.cp`
    TensorCopy,
    /// `tcgen05.shift`
    TensorShift,
    /// `tcgen05.commit`
    TensorCommit,
}

const KINDS: usize = 9;

impl GroupKind {
    /// Whether it is a group of `tcgen05`.
    pub(crate) fn of_tensor(self) -> bool {
        !matches!(self, Self::Copy | Self::Bulk | Self::Wgmma)
    }

    /// Whether it is a group of `tcgen05` that is in some order with others of the same thread.
    pub(super) fn in_order(self) -> bool {
        use GroupKind::{TensorCommit, TensorCopy, TensorProduct, TensorShift};
        matches!(self, TensorProduct | TensorCopy | TensorShift | TensorCommit)
    }

    /// Kinds whose operations come before a later one of the same thread (PTX ISA
    /// 9.7.16.6.2). Unless the order is `strict`, a copy waits for products, and a commit for
    /// earlier ones ([`Model::Hardware`](crate::Model)).
    pub(crate) fn ordered_behind(self, strict: bool) -> &'static [Self] {
        match self {
            Self::TensorCopy if !strict => Self::TensorProduct.ordered_behind(strict),
            Self::TensorCommit if !strict => {
                &[Self::TensorProduct, Self::TensorCopy, Self::TensorShift, Self::TensorCommit]
            }
            Self::TensorProduct | Self::TensorShift | Self::TensorCommit => {
                &[Self::TensorProduct, Self::TensorCopy, Self::TensorShift]
            }
            Self::TensorCopy => &[Self::TensorCopy, Self::TensorShift],
            _ => &[],
        }
    }
}

/// The group an operation is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) kind: GroupKind,
    /// Groups that its issuers had committed before.
    pub(crate) index: u32,
}

/// The condition of a `wait_group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupWait {
    pub(crate) kind: GroupKind,
    pub(crate) warp: usize,
    pub(crate) lanes: u32,
    /// Newest groups that may still be in flight; `None` waits for uncommitted
    /// operations too.
    pub(crate) keep: Option<u32>,
    /// `.read`: only the sources matter.
    pub(crate) reads_only: bool,
}

/// Number of groups that each thread of the cluster has committed.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    committed: Vec<[[u32; LANES]; KINDS]>,
    warps_per_cta: usize,
    /// Warps of which no lane lives.
    gone: Vec<bool>,
}

impl Groups {
    pub(crate) fn reset(&mut self, warps: usize, warps_per_cta: usize) {
        self.warps_per_cta = warps_per_cta;
        self.gone.clear();
        self.gone.resize(warps, false);
        self.committed.clear();
        self.committed.resize(warps, [[0; LANES]; KINDS]);
    }

    /// Lanes of `mask` by the group that they would join.
    pub(crate) fn split(&self, kind: GroupKind, warp: usize, mask: u32) -> Vec<(Membership, u32)> {
        let row = &self.committed[warp][kind as usize];
        let mut parts = Vec::with_capacity(1);
        let mut rest = mask;
        while rest != 0 {
            let index = row[rest.trailing_zeros() as usize];
            let same = (0..LANES).filter(|&lane| rest >> lane & 1 != 0 && row[lane] == index);
            let lanes = same.fold(0, |lanes, lane| lanes | 1 << lane);
            parts.push((Membership { kind, index }, lanes));
            rest &= !lanes;
        }
        parts
    }

    /// The group that an operation of a lane joins.
    pub(crate) fn membership(&self, kind: GroupKind, warp: usize, lane: usize) -> Membership {
        Membership { kind, index: self.committed[warp][kind as usize][lane] }
    }

    /// Closes the current group of each lane.
    pub(crate) fn commit(&mut self, kind: GroupKind, warp: usize, mask: u32) {
        for (lane, count) in self.committed[warp][kind as usize].iter_mut().enumerate() {
            *count += mask >> lane & 1;
        }
    }

    /// Groups of a lane that are over behind a wait: those of smaller number.
    pub(crate) fn over(&self, wait: &GroupWait, lane: usize) -> u32 {
        let committed = self.committed[wait.warp][wait.kind as usize][lane];
        match wait.keep {
            Some(keep) => committed.saturating_sub(keep),
            None => committed + 1,
        }
    }

    /// A warp has exited.
    pub(crate) fn exit(&mut self, warp: usize) {
        self.gone[warp] = true;
    }

    /// Warps whose groups a wait of a warp is for: those of its warpgroup for `wgmma`, whose
    /// groups all four commit together (PTX ISA 9.7.15.7).
    pub(crate) fn together(&self, kind: GroupKind, warp: usize) -> Range<usize> {
        match kind {
            GroupKind::Wgmma => {
                let cta = warp / self.warps_per_cta * self.warps_per_cta;
                let first = cta + (warp - cta) / WARPS * WARPS;
                first..(first + WARPS).min(cta + self.warps_per_cta)
            }
            _ => warp..warp + 1,
        }
    }

    /// Whether another warp of the warpgroup has yet to commit a group that a wait is for.
    pub(super) fn uncommitted(&self, wait: &GroupWait) -> bool {
        let end = self.over(wait, wait.lanes.trailing_zeros() as usize);
        wait.kind == GroupKind::Wgmma
            && self
                .together(wait.kind, wait.warp)
                .any(|warp| !self.gone[warp] && self.committed[warp][wait.kind as usize][0] < end)
    }

    /// Whether an operation keeps a wait from ending.
    pub(super) fn blocks(&self, wait: &GroupWait, queued: &Queued) -> bool {
        let operation = &queued.operation;
        let Some(group) = operation.group.filter(|group| group.kind == wait.kind) else {
            return false;
        };
        if wait.kind == GroupKind::Wgmma {
            let end = self.over(wait, wait.lanes.trailing_zeros() as usize);
            let ours = self.together(wait.kind, wait.warp).contains(&operation.site.warp);
            return ours && group.index < end;
        }
        let lanes = operation.lanes & wait.lanes;
        if operation.site.warp != wait.warp || lanes == 0 || wait.reads_only && queued.has_read {
            return false;
        }
        let Some(keep) = wait.keep else {
            return true;
        };
        let row = &self.committed[wait.warp][wait.kind as usize];
        (0..LANES).any(|lane| {
            lanes >> lane & 1 != 0 && u64::from(group.index) + u64::from(keep) < row[lane].into()
        })
    }
}
