//! The queue of an operation's launches: the stream at once, or a list that is queued when the
//! arguments of all of them are checked.

use std::ops::Range;

use smallvec::SmallVec;

use super::{FoundKernel, Kernels, LaunchSpec};
use crate::error::Result;

/// Takes the launches of an operation in their order. `'k` is how long its kernels live.
pub(crate) trait Queue<'k> {
    /// Takes a launch of a kernel that `kernels`, or others of the same device, have found.
    ///
    /// # Errors
    /// As [`Kernels::launch`], from a queue that passes launches on at once.
    ///
    /// # Safety
    /// The obligations of [`Kernels::launch`] hold as long as the operation's arguments live. Whoever passes
    /// launches on later sees to it that they do.
    unsafe fn launch(
        &mut self,
        kernels: &'k Kernels,
        kernel: &'k FoundKernel,
        spec: &LaunchSpec<'_>,
    ) -> Result<()>;
}

/// Passes each launch on at once.
pub(crate) struct AtOnce;

impl<'k> Queue<'k> for AtOnce {
    unsafe fn launch(
        &mut self,
        kernels: &'k Kernels,
        kernel: &'k FoundKernel,
        spec: &LaunchSpec<'_>,
    ) -> Result<()> {
        // SAFETY: passed on to the caller, whose operation's arguments live.
        unsafe { kernels.launch_found(kernel, spec) }
    }
}

/// Launches whose arguments are checked, in order. A layer of experts has at most eight, with 4 KiB of
/// parameters, so that its list needs no memory of the heap.
pub(crate) struct Prepared<'k> {
    launches: SmallVec<[CheckedLaunch<'k>; 16]>,
    /// The parameter blocks of all, one after the other.
    params: SmallVec<[u8; 8192]>,
}

/// A launch whose arguments are checked.
struct CheckedLaunch<'k> {
    kernels: &'k Kernels,
    kernel: &'k FoundKernel,
    /// The launch without its parameters.
    spec: LaunchSpec<'k>,
    /// Place of its parameter block in [`Prepared::params`].
    params: Range<usize>,
}

impl<'k> Prepared<'k> {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self { launches: SmallVec::new(), params: SmallVec::new() }
    }

    /// Queues all launches on their kernels' stream, in order.
    ///
    /// # Errors
    /// As [`Kernels::launch`]; launches behind the one that failed are not queued.
    ///
    /// # Safety
    /// The arguments of all operations whose launches these are live, and no other thread launches with memory
    /// that one of them owns.
    pub unsafe fn queue(&self) -> Result<()> {
        for CheckedLaunch { kernels, kernel, spec, params } in &self.launches {
            let spec = LaunchSpec { params: &self.params[params.clone()], ..*spec };
            // SAFETY: the obligations hold, as the callers of `launch` and of this function state.
            unsafe { kernels.launch_found(kernel, &spec)? };
        }
        Ok(())
    }
}

impl<'k> Queue<'k> for Prepared<'k> {
    unsafe fn launch(
        &mut self,
        kernels: &'k Kernels,
        kernel: &'k FoundKernel,
        &LaunchSpec { entry: _, grid, block, cluster, dynamic_shared, overlaps, params }: &LaunchSpec<'_>,
    ) -> Result<()> {
        let first = self.params.len();
        self.params.extend_from_slice(params);
        let entry = kernel.name();
        let spec =
            LaunchSpec { entry, grid, block, cluster, dynamic_shared, overlaps, params: &[] };
        self.launches.push(CheckedLaunch {
            kernels,
            kernel,
            spec,
            params: first..self.params.len(),
        });
        Ok(())
    }
}
