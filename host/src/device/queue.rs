//! The queue of an operation's launches: the stream at once, or a list that is queued when the
//! arguments of all of them are checked.

use std::ops::Range;

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

/// Launches whose arguments are checked, in order.
pub(crate) struct Prepared<'k> {
    launches: Vec<PreparedLaunch<'k>>,
    /// The parameter blocks of all, one after the other.
    params: Vec<u8>,
}

/// One of them.
struct PreparedLaunch<'k> {
    kernels: &'k Kernels,
    kernel: &'k FoundKernel,
    /// The launch, of whose parameters there are none.
    spec: LaunchSpec<'k>,
    /// Its parameter block in [`Prepared::params`].
    params: Range<usize>,
}

impl<'k> Prepared<'k> {
    /// Makes an empty list, with room for so many launches of usual parameter blocks.
    pub fn with_capacity(launches: usize) -> Self {
        const BLOCK: usize = 512;
        Self {
            launches: Vec::with_capacity(launches),
            params: Vec::with_capacity(launches * BLOCK),
        }
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
        for PreparedLaunch { kernels, kernel, spec, params } in &self.launches {
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
        self.launches.push(PreparedLaunch {
            kernels,
            kernel,
            spec,
            params: first..self.params.len(),
        });
        Ok(())
    }
}
