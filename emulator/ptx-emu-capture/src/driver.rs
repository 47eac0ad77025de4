//! Calls of the driver that this library makes itself.

use crate::abi::{Code, SUCCESS, address_of, call, text};

/// Waits for all work of the context.
pub(crate) fn synchronize() -> Code {
    call!(cuCtxSynchronize())
}

/// Copies memory of the device, or memory that it shares with the program.
pub(crate) fn copy_down(address: u64, count: u64) -> Result<Vec<u8>, Code> {
    let mut copy = vec![0u8; count as usize];
    let to = copy.as_mut_ptr().expose_provenance() as u64;
    match call!(cuMemcpyDtoH_v2(to => u64, address => u64, count => u64)) {
        SUCCESS => Ok(copy),
        code => Err(code),
    }
}

/// Whether a stream is recorded into a graph.
pub(crate) fn is_recorded(stream: u64) -> bool {
    let mut status = 0u32;
    let to = address_of(&mut status);
    let code = call!(cuStreamIsCapturing(stream => u64, to => u64));
    // The legacy stream may not be asked while another is recorded.
    code != SUCCESS || status != 0
}

/// The compute capability of the current device.
pub(crate) fn capability() -> Option<(u32, u32)> {
    let mut device = 0i32;
    let to = address_of(&mut device);
    if call!(cuCtxGetDevice(to => u64)) != SUCCESS {
        return None;
    }
    let attribute = |number: i32| {
        let mut value = 0i32;
        let to = address_of(&mut value);
        let code = call!(cuDeviceGetAttribute(to => u64, number => i32, device => i32));
        (code == SUCCESS).then_some(value as u32)
    };
    Some((attribute(75)?, attribute(76)?))
}

/// The name of a kernel.
pub(crate) fn name(kernel: u64) -> Option<String> {
    let mut name = 0u64;
    let to = address_of(&mut name);
    let code = call!(cuFuncGetName(to => u64, kernel => u64));
    let found = (code == SUCCESS && name != 0).then(|| text(name));
    found.map(|name| String::from_utf8_lossy(&name).into_owned())
}

/// Returns the driver's offset of a parameter in a kernel's block.
pub(crate) fn parameter_offset(kernel: u64, index: u64) -> Option<u64> {
    let (mut offset, mut size) = (0u64, 0u64);
    let (at, bytes) = (address_of(&mut offset), address_of(&mut size));
    let code = call!(cuFuncGetParamInfo(kernel => u64, index => u64, at => u64, bytes => u64));
    (code == SUCCESS).then_some(offset)
}

/// Address and size of a variable of a module or a library.
pub(crate) fn variable(module: u64, library: bool, name: &str) -> Option<(u64, u64)> {
    let name = std::ffi::CString::new(name).ok()?;
    let name = name.as_ptr().expose_provenance() as u64;
    let (mut address, mut size) = (0u64, 0u64);
    let (at, bytes) = (address_of(&mut address), address_of(&mut size));
    let code = match library {
        true => call!(cuLibraryGetGlobal(at => u64, bytes => u64, module => u64, name => u64)),
        false => call!(cuModuleGetGlobal_v2(at => u64, bytes => u64, module => u64, name => u64)),
    };
    (code == SUCCESS && size != 0).then_some((address, size))
}
