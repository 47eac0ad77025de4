//! The CUDA driver API without linking the CUDA driver.
//!
//! Every function of [`raw`] opens the real `libcuda.so.1` when it is first called, and returns
//! the driver's unaltered `CUresult`. One binary therefore starts on every machine, building it
//! needs no CUDA, and a missing driver is a value ([`library`]).
//!
//! # Symbols for `cust`
//!
//! `cust` links `libcuda` when it is built. With the feature `symbols`, this crate takes the
//! driver's place at link time:
//!
//! 1. `cust_raw`'s build script looks for a CUDA installation. `CUDA_LIBRARY_PATH`
//!    (set in the workspace's `.cargo/config.toml`) names this crate's folder,
//!    whose `lib64/` satisfies it.
//! 2. `cust_raw` passes `-lcuda` to the linker. `lib64/libcuda.so` is an empty
//!    linker script, so the request adds nothing to the program.
//! 3. The symbols themselves, all that `cust` 0.3.2 refers to, are the `extern "C"` functions of
//!    [`mod@table`].
//!
//! Without the feature, no symbol is defined, so that a library with this crate in it can be
//! loaded into a process that has the driver's.
//!
//! # Codes of calls that cannot be forwarded
//!
//! | situation | code |
//! | --- | --- |
//! | `libcuda.so.1` is not installed or does not load | [`CUDA_ERROR_STUB_LIBRARY`] |
//! | the driver is too old to have the function | [`CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`] |
//!
//! # Codes that `cust` does not know
//!
//! `cust_raw` declares `CUresult` as a Rust enumeration of the codes of CUDA
//! 11.6. A newer driver returns codes outside it. Passing one on would be undefined
//! behaviour, so the symbols that `cust` calls replace an unknown code by
//! `CUDA_ERROR_UNKNOWN`. [`last_error`] returns the original.

mod load;
pub mod table;

pub use load::{LIBRARY_PATHS, Library, LoadError, library};
pub use table::raw;

use std::cell::Cell;

/// `CUDA_SUCCESS`.
pub const CUDA_SUCCESS: u32 = 0;
/// The code of every call when no driver library could be opened. NVIDIA's own
/// link-time stub of `libcuda` returns the same.
pub const CUDA_ERROR_STUB_LIBRARY: u32 = 34;
/// The code of a call to a function that the installed driver does not have.
pub const CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER: u32 = 36;
/// `CUDA_ERROR_UNKNOWN`.
pub const CUDA_ERROR_UNKNOWN: u32 = 999;

thread_local! {
    static LAST_ERROR: Cell<u32> = const { Cell::new(CUDA_SUCCESS) };
}

/// The code of the last call on this thread that failed, as the driver returned
/// it, or [`CUDA_SUCCESS`] if none has.
///
/// `cust` maps every code that it does not know to its `UnknownError`. Directly after such a
/// failure, this function returns the code.
pub fn last_error() -> u32 {
    LAST_ERROR.get()
}

fn record(code: u32) -> u32 {
    // CUDA_ERROR_NOT_READY is the result of a query, not a failure.
    if code != CUDA_SUCCESS && code != 600 {
        LAST_ERROR.set(code);
    }
    code
}

/// Replaces a code that the `CUresult` of `cust_raw` 0.11.3 does not have by
/// [`CUDA_ERROR_UNKNOWN`].
#[cfg(any(test, feature = "symbols"))]
fn known_to_cust(code: u32) -> u32 {
    match code {
        0..=8
        | 34
        | 100..=102
        | 200..=202
        | 205..=224
        | 300..=304
        | 400..=401
        | 500
        | 600
        | 700..=705
        | 708..=720
        | 800..=809
        | 900..=911
        | CUDA_ERROR_UNKNOWN => code,
        _ => CUDA_ERROR_UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The discriminants of `cust_raw` 0.11.3's `cudaError_enum`.
    const CUST_CODES: [u32; 87] = [
        0, 1, 2, 3, 4, 5, 6, 7, 8, 34, 100, 101, 102, 200, 201, 202, 205, 206, 207, 208, 209, 210,
        211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 300, 301, 302, 303,
        304, 400, 401, 500, 600, 700, 701, 702, 703, 704, 705, 708, 709, 710, 711, 712, 713, 714,
        715, 716, 717, 718, 719, 720, 800, 801, 802, 803, 804, 805, 806, 807, 808, 809, 900, 901,
        902, 903, 904, 905, 906, 907, 908, 909, 910, 911, 999,
    ];

    #[test]
    fn only_codes_of_custs_enumeration_reach_cust() {
        for code in (0..2000).chain([u32::MAX]) {
            let expected = if CUST_CODES.contains(&code) { code } else { CUDA_ERROR_UNKNOWN };
            assert_eq!(known_to_cust(code), expected, "code {code}");
        }
    }

    #[test]
    fn failures_are_kept_for_the_thread_and_queries_are_not() {
        assert_eq!(record(CUDA_SUCCESS), CUDA_SUCCESS);
        record(912);
        record(600);
        assert_eq!(last_error(), 912);
        let elsewhere = std::thread::spawn(last_error).join().ok();
        assert_eq!(elsewhere, Some(CUDA_SUCCESS));
    }

    #[test]
    fn without_a_driver_calls_return_the_stub_code() {
        let mut version = 0;
        // SAFETY: `version` is writable for the duration of the call.
        let code = unsafe { raw::cuDriverGetVersion(&mut version) };
        match library() {
            Ok(_) => assert_eq!(code, CUDA_SUCCESS),
            Err(error) => {
                assert_eq!(code, CUDA_ERROR_STUB_LIBRARY);
                assert!(error.to_string().contains("libcuda.so.1"), "{error}");
            }
        }
    }
}
