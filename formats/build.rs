//! Hashes the source of this crate: `stamp.rs` says what for.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=src");
    let root = env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from);
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files)?;
    files.sort();
    // FNV-1a, 64 bits.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    for file in &files {
        // Line ends are those of the checkout.
        fs::read(file)?.into_iter().filter(|&byte| byte != b'\r').for_each(&mut add);
        add(0);
    }
    println!("cargo:rustc-env=FP4_FORMATS_STAMP={hash}");
    Ok(())
}

/// The Rust files below `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
