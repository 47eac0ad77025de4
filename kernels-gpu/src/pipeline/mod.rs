//! Pieces that warp-specialised kernels share: rings of buffers between roles; and how a
//! kernel follows those before it in a stream.

pub mod ring;

use cuda_std::ptx::grid;
pub use ring::{Cursor, Ring};

/// Lets CTAs of the stream's next kernel start as soon as all of this one have. Where a launch
/// does not ask for overlap (`LaunchSpec::overlaps` of the host), does nothing.
#[inline(always)]
pub fn release_stream() {
    grid::griddepcontrol_launch_dependents();
}

/// Waits for the kernels before in the stream: nothing that they write may be read, and nothing
/// at all be written, earlier.
#[inline(always)]
pub fn follow_stream() {
    grid::griddepcontrol_wait();
}
