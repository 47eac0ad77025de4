//! A safetensors file. The first byte says whether the rest is the whole file, or a header to which
//! its length is added in front and zeros behind, which a fuzzer would take long to find.

#![no_main]

mod common;

use common::{FOLDER, read_everything};
use libfuzzer_sys::fuzz_target;

/// Bytes of data behind a header.
const DATA: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else { return };
    let whole = if mode % 2 == 0 {
        rest.to_vec()
    } else {
        // The header describes as many bytes as it says, if they are few.
        let text = String::from_utf8_lossy(rest);
        let ends = text.split(|c: char| !c.is_ascii_digit()).filter_map(|x| x.parse().ok());
        let data = ends.filter(|end: &usize| *end <= DATA).max().unwrap_or(0);
        let length = (rest.len() as u64).to_le_bytes();
        [&length[..], rest, &vec![mode / 2; data]].concat()
    };
    let path = FOLDER.join("model.safetensors");
    std::fs::write(&path, whole).expect("room");
    read_everything(&path);
});
