//! Files of operands of GEMV and GEMM, and tuning tables. The first byte chooses. Headers are
//! completed as in the target `loader`.

#![no_main]

mod common;

use common::{FOLDER, with_header};
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
    let path = FOLDER.join("operands.safetensors");
    std::fs::write(&path, with_header(rest, mode / 8)).expect("room");
    let Ok(file) = Checkpoint::open(&path) else { return };
    let _ = operands::read(&file);
    let _ = operands::gemm::read(&file);
});
