//! A GGUF file. The first byte says whether the rest is the whole file, or its beginning to which data is
//! added. A file that is read is written again, and is then the same.

#![no_main]

mod common;

use common::{FOLDER, read_everything};
use libfuzzer_sys::fuzz_target;
use nvfp4_gguf::{Blocks, Gguf, Header, Spec, Value, dequantize};

/// Bytes of data behind a beginning.
const DATA: usize = 16 << 10;
/// Largest alignment for which a file is written again: every file is at least as large.
const ALIGNMENT: u64 = 4096;

/// Writes a file, reads it again and compares both. Metadata is compared as text, since NaN equals nothing.
fn write_and_read(file: &Gguf<'_>) {
    let alignment = file.metadata.get("general.alignment").and_then(Value::as_u64);
    if alignment.is_some_and(|alignment| alignment > ALIGNMENT) {
        return;
    }
    let specs = file.tensors.iter().map(|tensor| Spec {
        name: tensor.name.clone(),
        kind: tensor.kind,
        shape: tensor.shape.clone(),
    });
    let specs: Vec<Spec> = specs.collect();
    let header = Header::new(&file.metadata, &specs).expect("it was read");
    let mut bytes = header.bytes;
    for (tensor, (first, length)) in file.tensors.iter().zip(header.places) {
        assert_eq!(length, tensor.data.len() as u64, "`{}`", tensor.name);
        bytes.resize(usize::try_from(first).expect("few bytes"), 0);
        bytes.extend_from_slice(tensor.data);
    }
    bytes.resize(usize::try_from(header.end).expect("few bytes"), 0);
    let again = Gguf::parse(&bytes).expect("it was written");
    assert_eq!(again.tensors, file.tensors);
    assert_eq!(format!("{:?}", again.metadata), format!("{:?}", file.metadata));
}

fuzz_target!(|input: &[u8]| {
    let Some((&mode, rest)) = input.split_first() else { return };
    let data = vec![mode / 2; if mode % 2 == 0 { 0 } else { DATA }];
    let whole = [rest, &data].concat();
    let Ok(file) = Gguf::parse(&whole) else { return };
    for tensor in &file.tensors {
        let _ = dequantize(&tensor.name, tensor.kind, tensor.data);
        if let Ok(blocks) = Blocks::of(&tensor.name, tensor.kind, tensor.data) {
            let bytes = blocks.bytes(&tensor.name, tensor.kind);
            assert_eq!(bytes.as_deref(), Ok(tensor.data), "`{}`", tensor.name);
        }
    }
    // Tensors may have their data in common, so that a file of them all is larger.
    if file.tensors.iter().map(|tensor| tensor.data.len()).sum::<usize>() <= whole.len() {
        write_and_read(&file);
    }
    let path = FOLDER.join("model.gguf");
    std::fs::write(&path, &whole).expect("room");
    read_everything(&path);
});
