//! Functions that answer with something else than a code.

use crate::errors::{Code, describe};
use std::ffi::{CStr, c_char};

const UNKNOWN: &CStr = c"unrecognized error code";

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: Code) -> *const c_char {
    describe(code).map_or(UNKNOWN, |(_, name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: Code) -> *const c_char {
    describe(code).map_or(UNKNOWN, |(.., text)| text).as_ptr()
}

/// `cudaChannelFormatDesc`
#[repr(C)]
struct Channels {
    bits: [i32; 4],
    kind: i32,
}

#[unsafe(no_mangle)]
extern "C" fn cudaCreateChannelDesc(x: i32, y: i32, z: i32, w: i32, kind: i32) -> Channels {
    Channels { bits: [x, y, z, w], kind }
}
