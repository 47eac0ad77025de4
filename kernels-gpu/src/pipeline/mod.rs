//! Parts that kernels share: rings of buffers between the roles of warp-specialised kernels, and
//! programmatic dependent launch.

pub mod ring;

#[cfg(gpu_dependent_launches = "yes")]
use cuda_std::ptx::grid;
pub use ring::{Cursor, Ring};

/// Lets CTAs of the stream's next kernel start as soon as all CTAs of this one have executed this
/// call or ended. It has no effect if the next launch does not ask for overlap
/// (`LaunchSpec::overlaps` of the host), or on a target where kernels of a stream never overlap.
#[inline(always)]
pub fn release_stream() {
    #[cfg(gpu_dependent_launches = "yes")]
    grid::griddepcontrol_launch_dependents();
}

/// Waits until the earlier kernels of the stream are complete. Before it, a kernel may not read
/// their results, and may not write global memory.
#[inline(always)]
pub fn follow_stream() {
    #[cfg(gpu_dependent_launches = "yes")]
    grid::griddepcontrol_wait();
}
