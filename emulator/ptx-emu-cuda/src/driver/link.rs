//! The linker. Its result for one module's PTX is that PTX, which the functions that load modules take.

use crate::abi::{Out, Text, exports, host_bytes};
use crate::errors::{FILE_NOT_FOUND, Failure, INVALID_IMAGE, INVALID_VALUE};
use crate::modules::unknown;
use crate::state::State;

/// `CU_JIT_INPUT_PTX`
const PTX: i32 = 1;

/// A linker's input.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// PTX with a zero byte behind it.
    text: Option<Box<[u8]>>,
}

fn link(state: &mut State, handle: u64) -> Result<&mut Link, Failure> {
    state.links.get_mut(&handle).ok_or_else(|| unknown("linker", handle))
}

fn add(state: &mut State, handle: u64, kind: i32, mut bytes: Vec<u8>) -> Result<(), Failure> {
    let link = link(state, handle)?;
    if kind != PTX {
        let what = format!("linking of other inputs than PTX (type {kind})");
        return Err(Failure::not_modelled(&what));
    }
    if link.text.is_some() {
        return Err(Failure::not_modelled("linking of more than one module"));
    }
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| Failure::new(INVALID_IMAGE, format!("not PTX: {error}")))?;
    ptx_emu_core::entry_names(text)
        .map_err(|error| Failure::new(crate::errors::INVALID_PTX, error.to_string()))?;
    bytes.push(0);
    link.text = Some(bytes.into());
    Ok(())
}

exports! { driver;
    query cuLinkCreate_v2(_count: u32, _options: u64, _values: u64, linker: Out<u64>) |state| {
        let handle = state.handle();
        state.links.insert(handle, Link::default());
        linker.set(handle)
    }

    query cuLinkAddData_v2(
        linker: u64, kind: i32, data: u64, bytes: u64, _name: u64, _count: u32, _options: u64, _values: u64,
    ) |state| {
        if data == 0 {
            return Err(Failure::new(INVALID_VALUE, "the pointer to the input is null"));
        }
        add(state, linker, kind, host_bytes(data, bytes))
    }

    query cuLinkAddFile_v2(
        linker: u64, kind: i32, path: Text, _count: u32, _options: u64, _values: u64,
    ) |state| {
        let path = path.get()?;
        let bytes = std::fs::read(&path).map_err(|error| {
            Failure::new(FILE_NOT_FOUND, format!("{path}: cannot be read: {error}"))
        })?;
        add(state, linker, kind, bytes)
    }

    query cuLinkComplete(linker: u64, image: Out<u64>, bytes: Out<u64>) |state| {
        let Some(text) = &link(state, linker)?.text else {
            return Err(Failure::new(INVALID_VALUE, "nothing was added to the linker"));
        };
        image.set(text.as_ptr() as u64)?;
        bytes.set_if_wanted(text.len() as u64);
        Ok(())
    }

    query cuLinkDestroy(linker: u64) |state| {
        state.links.remove(&linker).map(drop).ok_or_else(|| unknown("linker", linker))
    }
}
