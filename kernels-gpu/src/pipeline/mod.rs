//! Parts that kernels share: rings of buffers between the roles of warp-specialised kernels, and
//! programmatic dependent launch.

pub mod ring;

use cuda_std::ptx::grid;
pub use ring::{Cursor, Ring};

/// Lets CTAs of the stream's next kernel start as soon as all CTAs of this one have executed this
/// call or ended. It has no effect if the next launch does not ask for overlap
/// (`LaunchSpec::overlaps` of the host).
#[inline(always)]
pub fn release_stream() {
    grid::griddepcontrol_launch_dependents();
}

/// Waits until the earlier kernels of the stream are complete. Before it, a kernel may not read
/// their results, and may not write global memory.
#[inline(always)]
pub fn follow_stream() {
    grid::griddepcontrol_wait();
}
