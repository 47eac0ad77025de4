//! Opens `libcuda.so.1` once, and looks up each of its functions once.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::{CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CUDA_ERROR_STUB_LIBRARY};

/// The paths that are tried for the driver library, in order: by name (`LD_LIBRARY_PATH` and the
/// loader's cache), then the folders of NVIDIA's container images and of WSL, which the loader
/// does not know.
pub const LIBRARY_PATHS: [&str; 3] =
    ["libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];

/// The open driver library.
#[derive(Debug)]
pub struct Library {
    handle: libloading::Library,
    path: &'static str,
}

impl Library {
    /// The entry of [`LIBRARY_PATHS`] that was opened.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// Whether the driver exports a function with this name.
    #[cfg(test)]
    pub(crate) fn has(&self, name: &str) -> bool {
        std::ffi::CString::new(name).is_ok_and(|name| self.symbol(&name).is_some())
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the symbol is only taken as an address; the typed call is made
        // by the table, which states the function's signature.
        let symbol = unsafe { self.handle.get::<*mut c_void>(name.to_bytes_with_nul()) };
        symbol.ok().and_then(|address| NonNull::new(*address))
    }
}

/// The reason why no driver library is open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no CUDA driver library could be opened ({})", attempts.join("; "))]
pub struct LoadError {
    /// The loader's message for each of [`LIBRARY_PATHS`], in that order.
    pub attempts: Vec<String>,
}

/// The driver library, opened on the first call.
///
/// # Errors
/// The loader's messages if there is no such library. The result is kept, so a driver that is
/// installed while the program runs is not found.
pub fn library() -> Result<&'static Library, &'static LoadError> {
    static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
    LIBRARY.get_or_init(open).as_ref()
}

fn open() -> Result<Library, LoadError> {
    let mut attempts = Vec::new();
    for path in LIBRARY_PATHS {
        // SAFETY: loading runs the library's initialisers. By its name this is
        // NVIDIA's user-mode driver, whose initialisers have no preconditions.
        match unsafe { libloading::Library::new(path) } {
            Ok(handle) => return Ok(Library { handle, path }),
            Err(error) => attempts.push(reason(path, &error)),
        }
    }
    Err(LoadError { attempts })
}

/// The loader's message, if any, which libloading keeps as the source of its error.
fn reason(path: &str, error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => format!("{path}: {error}"),
    }
}

/// The address of one driver function, looked up on first use.
pub(crate) struct Entry {
    name: &'static CStr,
    address: OnceLock<Result<Address, u32>>,
}

#[derive(Clone, Copy)]
struct Address(NonNull<c_void>);

// SAFETY: the address of a function is valid on every thread, and the library
// that holds it is never closed.
unsafe impl Send for Address {}
// SAFETY: the address is valid on every thread, and nothing writes through it.
unsafe impl Sync for Address {}

impl Entry {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: OnceLock::new() }
    }

    /// The function's address, or the code that its callers return.
    pub(crate) fn address(&self) -> Result<NonNull<c_void>, u32> {
        self.address
            .get_or_init(|| {
                let library = library().map_err(|_| CUDA_ERROR_STUB_LIBRARY)?;
                let address = library.symbol(self.name).map(Address);
                address.ok_or(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
            })
            .map(|address| address.0)
    }
}
