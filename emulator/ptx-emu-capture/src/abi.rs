//! The driver's own functions, the program's pointers, and what an exported function does.
//!
//! Addresses and handles are numbers here: the C calling convention passes them alike.

use crate::settings::{complain, settings};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A `CUresult`.
pub(crate) type Code = i32;
pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_NOT_FOUND`: the driver does not have the function.
const NOT_FOUND: Code = 500;

/// The driver's library.
static DRIVER: LazyLock<libloading::Library> = LazyLock::new(|| {
    let path = &settings().driver;
    // SAFETY: this is the driver's library, which the linker has loaded before: its initialisers
    // have run.
    unsafe { libloading::Library::new(path) }.unwrap_or_else(|error| {
        complain(format_args!("{}: cannot be loaded: {error}", path.display()));
        std::process::exit(2);
    })
});

/// The address of a function of the driver's own library.
pub(crate) fn real(name: &'static str) -> Option<usize> {
    static KNOWN: LazyLock<Mutex<HashMap<&str, Option<usize>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(name).or_insert_with(|| {
        // SAFETY: only the address is taken.
        let symbol = unsafe { DRIVER.get::<*mut c_void>(name.as_bytes()) };
        symbol.ok().map(|symbol| (*symbol).addr())
    })
}

/// Calls a function of the driver's own library with these arguments, whose types are those of the
/// C declaration but for addresses and handles, which are numbers.
macro_rules! call {
    ($name:ident($($arg:expr => $ty:ty),* $(,)?)) => {
        match $crate::abi::real(stringify!($name)) {
            None => $crate::abi::not_found(),
            Some(address) => {
                type Function = unsafe extern "C" fn($($ty),*) -> $crate::abi::Code;
                // SAFETY: the driver's function of this name has these parameters; all of them are
                // passed in registers or words as in the declaration.
                let function = unsafe {
                    std::mem::transmute::<*const (), Function>(std::ptr::with_exposed_provenance(address))
                };
                // SAFETY: the arguments are what the program passed, or addresses of values of this
                // library that outlive the call.
                unsafe { function($($arg),*) }
            }
        }
    };
}
pub(crate) use call;

pub(crate) const fn not_found() -> Code {
    NOT_FOUND
}

thread_local! {
    /// A watched function is running on this thread: the driver's own calls of others are not the
    /// program's.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs what a watched function does, or `plain` if the driver called it.
pub(crate) fn watched(plain: impl FnOnce() -> Code, run: impl FnOnce() -> Code) -> Code {
    if INSIDE.replace(true) {
        return plain();
    }
    let code = run();
    INSIDE.set(false);
    code
}

/// Exported functions: name, arguments, and what is done; `real` calls the driver's own.
macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$real:ident| $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $ty),*) -> $crate::abi::Code {
                let $real = || $crate::abi::call!($name($($arg => $ty),*));
                $crate::abi::watched(&$real, || $body)
            }
        )*

        /// Watched functions by name.
        pub(crate) fn exports() -> Vec<(&'static str, u64)> {
            vec![$((stringify!($name), ($name as *const ()).expose_provenance() as u64)),*]
        }
    };
}
pub(crate) use hooks;

/// Bytes of the program's memory.
pub(crate) fn bytes(address: u64, count: usize) -> Vec<u8> {
    let mut copy = vec![0; count];
    if address != 0 {
        // SAFETY: the program passed the address of that many readable bytes to the driver.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, copy.as_mut_ptr(), count) }
    }
    copy
}

/// A word of the program's memory; 0 at the null pointer.
pub(crate) fn word(address: u64) -> u64 {
    bytes(address, 8).iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Writes a word to the program's memory.
pub(crate) fn set_word(address: u64, value: u64) {
    // SAFETY: the program passed the address of a word that the driver writes.
    unsafe { (address as *mut u64).write_unaligned(value) }
}

/// Text of the program's, or of the driver's.
pub(crate) fn text(address: u64) -> Vec<u8> {
    if address == 0 {
        return Vec::new();
    }
    // SAFETY: the address is of text that ends with a zero byte.
    unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes().to_vec()
}

/// The address of a value that the driver reads or writes.
pub(crate) fn address_of<T>(value: &mut T) -> u64 {
    (&raw mut *value).expose_provenance() as u64
}

#[repr(C)]
struct Found {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
}

/// The file that an address is of: a program, or a library.
pub(crate) fn file_of(address: u64) -> Option<String> {
    let null = std::ptr::null_mut();
    let mut found = Found { file: null, base: null.cast(), symbol: null, address: null.cast() };
    // SAFETY: `found` is writable; any address may be asked for.
    let known = unsafe { dladdr(address as *const c_void, &raw mut found) };
    if known == 0 || found.file.is_null() {
        return None;
    }
    // SAFETY: the linker's names are text that stays as long as the file is loaded.
    let path = unsafe { CStr::from_ptr(found.file) }.to_string_lossy().into_owned();
    Some(path.rsplit('/').next().unwrap_or(&path).to_owned())
}
