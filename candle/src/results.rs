//! Memory of results while a GPU's launches are recorded.
//!
//! An allocation is an element of a graph. Between two kernels it would have the second wait for the end of the first, where a
//! launch that overlaps begins earlier. So a recording allocates all results before its first launch, in the order in which a
//! rehearsal asked for them, and frees them behind its last.

use std::cell::RefCell;
use std::collections::VecDeque;

use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DeviceRepr};
use candle_core::{Result, Tensor};

thread_local! {
    static RESULTS: RefCell<Results> = const { RefCell::new(Results::Apart) };
}

/// The way in which this thread makes results.
enum Results {
    /// Each is allocated when it is made.
    Apart,
    /// The same, and sizes in bytes are noted.
    Rehearsing(Vec<usize>),
    /// Results are made in memory that is there.
    Recording(Memory),
}

/// Memory of a recording's results.
struct Memory {
    device: CudaDevice,
    /// Memory that no result has taken.
    left: VecDeque<CudaSlice<u8>>,
    /// Results, which would be freed between the launches otherwise.
    kept: Vec<Tensor>,
}

/// Restores the usual way of making results, and frees the memory of others.
#[cfg(feature = "models")]
struct Until;

#[cfg(feature = "models")]
impl Drop for Until {
    fn drop(&mut self) {
        drop(RESULTS.replace(Results::Apart));
    }
}

/// Runs `work` and notes the bytes of its results.
#[cfg(feature = "models")]
pub(crate) fn rehearse<R>(work: impl FnOnce() -> R) -> (R, Vec<usize>) {
    RESULTS.set(Results::Rehearsing(Vec::new()));
    let until = Until;
    let result = work();
    let sizes = match RESULTS.replace(Results::Apart) {
        Results::Rehearsing(sizes) => sizes,
        Results::Apart | Results::Recording(_) => Vec::new(),
    };
    drop(until);
    (result, sizes)
}

/// Runs `work` with results of so many bytes in memory that is allocated before. Results that differ are allocated when they are
/// made.
#[cfg(feature = "models")]
pub(crate) fn record<R>(
    device: &CudaDevice,
    sizes: &[usize],
    work: impl FnOnce() -> Result<R>,
) -> Result<R> {
    // SAFETY: results are written before they are read.
    let memory = |&bytes: &usize| unsafe { device.alloc::<u8>(bytes) };
    let left = sizes.iter().map(memory).collect::<Result<_>>()?;
    RESULTS.set(Results::Recording(Memory { device: device.clone(), left, kept: Vec::new() }));
    let _until = Until;
    work()
}

/// New memory for a result.
///
/// # Safety
/// The caller writes all of it before anybody reads it.
pub(crate) unsafe fn allocate<T: DeviceRepr>(
    device: &CudaDevice,
    elements: usize,
) -> Result<CudaSlice<T>> {
    let bytes = elements * size_of::<T>();
    let there = RESULTS.with_borrow_mut(|results| match results {
        Results::Apart => None,
        Results::Rehearsing(sizes) => {
            sizes.push(bytes);
            None
        }
        Results::Recording(Memory { device: own, left, .. }) => {
            let fits = left.front().is_some_and(|memory| memory.len() == bytes);
            let is_own = own.cuda_stream().cu_stream() == device.cuda_stream().cu_stream();
            if fits && is_own { left.pop_front() } else { None }
        }
    });
    match there {
        Some(memory) => {
            let pointer = memory.leak();
            // SAFETY: nobody else has the memory, which candle has allocated on this stream, and it is as long; all bits are
            // elements.
            Ok(unsafe { device.cuda_stream().upgrade_device_ptr(pointer, elements) })
        }
        // SAFETY: passed on to the caller.
        None => unsafe { device.alloc::<T>(elements) },
    }
}

/// Keeps a result until the recording, if there is one, is over.
pub(crate) fn keep(result: &Tensor) {
    RESULTS.with_borrow_mut(|results| match results {
        Results::Apart | Results::Rehearsing(_) => {}
        Results::Recording(memory) => memory.kept.push(result.clone()),
    });
}
