//! A folder as MLX writes it. Behind the first byte is config.json up to the first byte of zero, then the header
//! of model.safetensors, which is completed as in the target `loader`.

#![no_main]

mod common;

use common::{FOLDER, read_everything, with_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&fill, rest)) = input.split_first() else { return };
    let Some(end) = rest.iter().position(|&byte| byte == 0) else { return };
    let (config, header) = (&rest[..end], &rest[end + 1..]);
    let folder = FOLDER.join("mlx");
    std::fs::create_dir_all(&folder).expect("room");
    std::fs::write(folder.join("config.json"), config).expect("room");
    std::fs::write(folder.join("model.safetensors"), with_header(header, fill)).expect("room");
    read_everything(&folder);
});
