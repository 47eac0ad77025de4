//! A safetensors file. The first byte says whether the rest is the whole file, or a header to which
//! its length is added in front and zeros behind, which a fuzzer would take long to find.

#![no_main]

mod common;

use common::{FOLDER, read_everything, with_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else { return };
    let whole = if mode % 2 == 0 { rest.to_vec() } else { with_header(rest, mode / 2) };
    let path = FOLDER.join("model.safetensors");
    std::fs::write(&path, whole).expect("room");
    read_everything(&path);
});
