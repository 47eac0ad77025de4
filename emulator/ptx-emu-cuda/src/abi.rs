//! Arguments as C passes them, and what every exported function does: lock the state, answer with
//! a code.
//!
//! The types of pointer arguments have no constructor. Their values come from C callers, who
//! promise what CUDA's documentation of the function demands of the pointer.

use crate::errors::{Code, Failure, INVALID_VALUE, SUCCESS};
use crate::state::{self, State};
use std::cell::Cell;
use std::ffi::{CStr, c_char};

/// The place of a result.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    pub(crate) fn set(self, value: T) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(null("a result"));
        }
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes a result that the caller need not ask for.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller passed a pointer to memory that the result may be written to.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes several results.
    pub(crate) fn set_all(self, values: Vec<T>) -> Result<(), Failure> {
        if self.0.is_null() && !values.is_empty() {
            return Err(null("results"));
        }
        for (at, value) in values.into_iter().enumerate() {
            // SAFETY: the caller passed room for as many results as the function has.
            unsafe { self.0.add(at).write_unaligned(value) }
        }
        Ok(())
    }
}

/// An argument that is passed by address, or an array of them.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The argument.
    pub(crate) fn get(self) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(null("an argument"));
        }
        // SAFETY: the caller passed a pointer to a valid argument.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// So many arguments.
    pub(crate) fn all(self, count: usize) -> Result<Vec<T>, Failure> {
        if self.0.is_null() && count != 0 {
            return Err(null("an array"));
        }
        // SAFETY: the caller passed an array of as many elements as it said.
        Ok((0..count).map(|at| unsafe { self.0.add(at).read_unaligned() }).collect())
    }

    /// The address.
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// A part of the argument, such as a member of a union that another member names: it begins so many bytes behind
    /// the argument's start.
    pub(crate) fn part<U: Copy>(self, bytes: usize) -> In<U> {
        const { assert!(size_of::<U>() <= size_of::<T>()) };
        if self.0.is_null() {
            return In(std::ptr::null());
        }
        In(self.0.wrapping_byte_add(bytes.min(size_of::<T>() - size_of::<U>())).cast())
    }
}

/// Text that ends with a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text.
    pub(crate) fn get(self) -> Result<String, Failure> {
        if self.0.is_null() {
            return Err(null("text"));
        }
        // SAFETY: the caller passed text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// A function of the program, with the arguments that it wants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Callback {
    /// A function of `cudaLaunchHostFunc`.
    Host { function: extern "C" fn(u64), argument: u64 },
    /// A callback of `cudaStreamAddCallback`: it gets the stream and the code of the work before
    /// it, too.
    Stream { function: extern "C" fn(u64, Code, u64), stream: u64, argument: u64 },
}

impl Callback {
    /// Calls it. The state must not be locked: it may call functions of CUDA.
    pub(crate) fn call(self) {
        match self {
            Self::Host { function, argument } => function(argument),
            Self::Stream { function, stream, argument } => function(stream, SUCCESS, argument),
        }
    }
}

/// Extents of a grid, a block or a cluster.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dim3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl From<Dim3> for [u32; 3] {
    fn from(dim: Dim3) -> Self {
        [dim.x, dim.y, dim.z]
    }
}

fn null(what: &str) -> Failure {
    Failure::new(INVALID_VALUE, format!("the pointer to {what} is null"))
}

/// Bytes of the program's memory, at an address that it passed.
pub(crate) fn host_bytes(address: u64, bytes: u64) -> Vec<u8> {
    let mut copy = vec![0; bytes as usize];
    // SAFETY: the program passed the address of that many readable bytes to a function that reads
    // them, and `copy` has as many.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, copy.as_mut_ptr(), copy.len()) }
    copy
}

/// Writes bytes to the program's memory, at an address that it passed.
pub(crate) fn set_host_bytes(address: u64, bytes: &[u8]) {
    // SAFETY: the program passed the address of that many writable bytes to a function that
    // writes them.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
}

/// Text of the program's memory up to a zero byte, at an address that it passed.
pub(crate) fn host_text(address: u64) -> Vec<u8> {
    // SAFETY: the program passed the address of text that ends with a zero byte.
    unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes().to_vec()
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
    fn printf(format: *const c_char, ...) -> i32;
}

/// Prints what a kernel printed, through the program's own buffer, so that the order holds.
pub(crate) fn print(text: &str) {
    for line in text.split_inclusive('\n') {
        let length = i32::try_from(line.len()).unwrap_or(i32::MAX);
        // SAFETY: the format takes a length and text of at least that length.
        unsafe { printf(c"%.*s".as_ptr(), length, line.as_ptr()) };
    }
}

/// Makes launches that wait run when the program ends.
pub(crate) fn flush_at_exit() {
    extern "C" fn flush() {
        state::lock().flush();
    }
    // SAFETY: the function takes nothing, and what it uses is never dropped.
    unsafe { atexit(flush) };
}

/// The address of an exported function.
#[derive(Clone, Copy)]
pub(crate) struct Pointer(pub(crate) *const ());

// SAFETY: the address of a function is the same for every thread, and nothing is read there.
unsafe impl Sync for Pointer {}

/// Functions of the driver.
pub(crate) mod driver {
    use super::{Code, Failure, State, answer, settled, state};

    /// Runs a function that follows what the program began before.
    pub(crate) fn call(name: &str, run: impl FnOnce(&mut State) -> Result<(), Failure>) -> Code {
        answer(name, settled(name, run))
    }

    /// Runs a function that depends on nothing that runs on the device.
    pub(crate) fn query(name: &str, run: impl FnOnce(&mut State) -> Result<(), Failure>) -> Code {
        let result = run(&mut state::lock());
        answer(name, result)
    }

    /// Runs a function that locks the state itself.
    pub(crate) fn free(name: &str, run: impl FnOnce(()) -> Result<(), Failure>) -> Code {
        answer(name, run(()))
    }
}

thread_local! {
    /// The last error of this thread's calls of the runtime.
    static LAST: Cell<Code> = const { Cell::new(SUCCESS) };
}

/// Functions of the runtime, which remember the last error.
pub(crate) mod runtime {
    use super::{Code, Failure, LAST, SUCCESS, State, answer, settled, state};

    fn remember(code: Code) -> Code {
        if code != SUCCESS {
            LAST.set(code);
        }
        code
    }

    /// The last error; afterwards there is none if `forget`.
    pub(crate) fn last(forget: bool) -> Code {
        let code = LAST.get();
        if code != SUCCESS {
            state::lock().note_seen();
        }
        if forget {
            LAST.set(SUCCESS);
        }
        code
    }

    /// Calls as [`super::driver::call`] does.
    pub(crate) fn call(name: &str, run: impl FnOnce(&mut State) -> Result<(), Failure>) -> Code {
        remember(answer(name, settled(name, run)))
    }

    /// Queries as [`super::driver::query`] does.
    pub(crate) fn query(name: &str, run: impl FnOnce(&mut State) -> Result<(), Failure>) -> Code {
        let result = run(&mut state::lock());
        remember(answer(name, result))
    }

    /// Frees as [`super::driver::free`] does.
    pub(crate) fn free(name: &str, run: impl FnOnce(()) -> Result<(), Failure>) -> Code {
        remember(answer(name, run(())))
    }
}

fn settled(name: &str, run: impl FnOnce(&mut State) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut state = state::lock();
    state.caller = name.to_owned();
    state.settle()?;
    run(&mut state)
}

/// Whether a program calls the function for a kernel to run.
fn begins_kernels(name: &str) -> bool {
    name == "__cudaGetKernel" || name.contains("Launch") && !name.contains("HostFunc")
}

fn answer(name: &str, result: Result<(), Failure>) -> Code {
    match result {
        Ok(()) => SUCCESS,
        Err(failure) => {
            failure.complain(name);
            if begins_kernels(name) {
                state::lock().note_lost(failure.code);
            }
            failure.code
        }
    }
}

/// Exported functions: `call`, `query` or `free` (see [`driver`]), name and other names of the
/// same function, arguments, what it does with the state.
macro_rules! exports {
    ($api:ident; $($kind:ident $name:ident $(| $alias:ident)* ($($args:tt)*) |$state:ident| $body:block)*) => {
        $(
            $crate::abi::export!($api $kind $name ($($args)*) |$state| $body);
            $crate::abi::export_aliases!([$($alias)*] $name ($($args)*));
        )*

        $crate::abi::export_table!($api $($name $($alias)*)*);
    };
}

/// Exported functions as [`exports`] has them that the runtime and the driver have with the same arguments: the
/// runtime's names, an equals sign, and the driver's.
macro_rules! both {
    ($(
        $kind:ident $runtime:ident $(| $runtime_alias:ident)* = $driver:ident $(| $driver_alias:ident)*
        ($($args:tt)*) |$state:ident| $body:block
    )*) => {
        $crate::abi::exports! { runtime;
            $($kind $runtime $(| $runtime_alias)* ($($args)*) |$state| $body)*
        }
        $crate::abi::exports! { driver;
            $($kind $driver $(| $driver_alias)* ($($args)*) |$state| $body)*
        }
    };
}

/// The table of the driver's functions; nobody asks for the runtime's by name.
macro_rules! export_table {
    (driver $($name:ident)*) => {
        /// The functions by name.
        pub(crate) static EXPORTS: &[(&str, $crate::abi::Pointer)] =
            &[$((stringify!($name), $crate::abi::Pointer($name as *const ()))),*];
    };
    (runtime $($name:ident)*) => {};
}

macro_rules! export {
    ($api:ident $kind:ident $name:ident ($($arg:ident: $ty:ty),* $(,)?) |$state:ident| $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> $crate::errors::Code {
            $crate::abi::$api::$kind(stringify!($name), |$state| $body)
        }
    };
}

macro_rules! export_aliases {
    ([] $name:ident $args:tt) => {};
    ([$alias:ident $($rest:ident)*] $name:ident $args:tt) => {
        $crate::abi::export_alias!($alias $name $args);
        $crate::abi::export_aliases!([$($rest)*] $name $args);
    };
}

macro_rules! export_alias {
    ($alias:ident $name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[unsafe(no_mangle)]
        extern "C" fn $alias($($arg: $ty),*) -> $crate::errors::Code {
            $name($($arg),*)
        }
    };
}

pub(crate) use {both, export, export_alias, export_aliases, export_table, exports};
