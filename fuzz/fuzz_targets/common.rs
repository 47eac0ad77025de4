//! Parts that the targets share: a folder in memory, a file around a header, and reading all of a checkpoint.

#![allow(dead_code, reason = "no target needs all of them")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use nvfp4_checkpoint::{
    DequantizeOptions, Layout, Model, dequantize_model, inspect, load, matrix, verify,
};

/// A folder of this process, in memory where the system has such a place.
pub static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let folder = parent.join(format!("nvfp4-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
});

/// Largest file that a matrix is read from. Larger ones are described by a few bytes of header, and
/// only take time.
const MOST: u64 = 1 << 20;

/// Bytes of data behind a header, at most.
const DATA: usize = 4096;

/// A safetensors file with this header: its length before it, and behind it as many bytes `fill` as the
/// header's largest number says, if they are few.
pub fn with_header(header: &[u8], fill: u8) -> Vec<u8> {
    let text = String::from_utf8_lossy(header);
    let ends = text.split(|c: char| !c.is_ascii_digit()).filter_map(|x| x.parse().ok());
    let data = ends.filter(|end: &usize| *end <= DATA).max().unwrap_or(0);
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header, &vec![fill; data]].concat()
}

/// Reads everything; whatever is there, nothing may panic.
pub fn read_everything(path: &Path) {
    let Ok(model) = Model::open(path) else { return };
    let Ok(contents) = inspect(&model) else { return };
    let _ = contents.to_string();
    if contents.bytes > MOST {
        return;
    }
    let _ = verify(&model, None, &mut ()).map(|report| report.to_string());
    for layout in Layout::ALL {
        for parts in layout.find(&model) {
            if let Ok(weight) = load(&model, layout, &parts) {
                let _ = weight.blocks.dequantize();
            }
        }
    }
    let out = FOLDER.join("out");
    let _ = dequantize_model(&model, &DequantizeOptions::new(), &out, &mut ());
    let _ = std::fs::remove_dir_all(&out);
    for name in model.names().take(8) {
        let _ = matrix(&model, name, None);
        let _ = matrix(&model, name, Some(1));
    }
}
