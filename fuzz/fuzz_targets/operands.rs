//! Files of operands of GEMV and GEMM, and tuning tables. The first byte chooses. Headers are
//! completed as in the target `loader`.

#![no_main]

mod common;

use common::FOLDER;
use libfuzzer_sys::fuzz_target;
use nvfp4::tune;
use nvfp4_checkpoint::Checkpoint;
use nvfp4_lab::operands;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else { return };
    if mode % 8 == 7 {
        let path = FOLDER.join("table.json");
        std::fs::write(&path, rest).expect("room");
        let _ = tune::read(&path);
        return;
    }
    let text = String::from_utf8_lossy(rest);
    let ends = text.split(|c: char| !c.is_ascii_digit()).filter_map(|x| x.parse().ok());
    let data = ends.filter(|end: &usize| *end <= 4096).max().unwrap_or(0);
    let length = (rest.len() as u64).to_le_bytes();
    let path = FOLDER.join("operands.safetensors");
    std::fs::write(&path, [&length[..], rest, &vec![mode / 8; data]].concat()).expect("room");
    let Ok(file) = Checkpoint::open(&path) else { return };
    let _ = operands::read(&file);
    let _ = operands::gemm::read(&file);
});
