//! The folder `<arch>` of compiled kernels: one module for each family of kernels, as PTX and, where
//! an assembler was found, as machine code; and `manifest.json`, which lists them.
//!
//! `cargo xtask build-kernels` writes such folders and the host library reads them. The type
//! parameter `K` says which facts about a kernel a reader wants: [`Callable`] has the fewest, and all
//! others are skipped.

use std::path::{Path, PathBuf};

use fp4_formats::{Arch, Family};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Name of the manifest's file.
pub const FILE_NAME: &str = "manifest.json";

/// The reason why a manifest cannot be read.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// A file that is not there or not text.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file that is no manifest of this version.
    #[error(
        "{} is not a manifest of these kernels ({source}); `cargo xtask build-kernels` writes one",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
}

/// The modules of an architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest<K = Callable> {
    /// The architecture.
    pub arch: Arch,
    /// PTX ISA version of the modules.
    pub ptx_version: String,
    /// A digest of the sources of all families, whether their modules are here or not.
    #[serde(default)]
    pub sources: String,
    /// The modules, one for each family that is compiled.
    pub modules: Vec<Module<K>>,
}

/// A family's module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module<K = Callable> {
    /// The family.
    pub family: Family,
    /// The PTX.
    pub ptx: File,
    /// The machine code, where an assembler was found, for some or all targets of
    /// [`Arch::machine_code`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cubins: Vec<Cubin>,
    /// The version of `fp4-formats` that it was compiled with, by its stamp in hexadecimal.
    #[serde(default)]
    pub stamp: String,
    /// Release of the compiler, and its LLVM's.
    pub compiler: String,
    /// The sources that it was made of.
    pub sources: Sources,
    /// The kernels.
    pub kernels: Vec<K>,
}

/// A file beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// [`fingerprint`] of its contents.
    pub fingerprint: String,
}

/// Machine code of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cubin {
    /// The target that it was made for, by [`MachineCode::target`](fp4_formats::arch::MachineCode::target).
    pub target: String,
    /// The file.
    #[serde(flatten)]
    pub file: File,
    /// The assembler that made it of the PTX, with its version.
    pub assembler: String,
}

/// The sources of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// A digest of all of them.
    pub digest: String,
    /// Sources that only some modules have, relative to the repository's root.
    pub files: Vec<PathBuf>,
}

/// A kernel as launches need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callable {
    /// Its entry name.
    pub name: String,
    /// The number of its parameters.
    pub parameters: usize,
    /// Bytes of its parameter block.
    pub param_bytes: usize,
}

impl File {
    /// Describes a file called `name` with these `contents`.
    #[must_use]
    pub fn of(name: impl Into<String>, contents: &[u8]) -> Self {
        let (name, bytes) = (name.into(), contents.len() as u64);
        Self { name, bytes, fingerprint: fingerprint(contents) }
    }

    /// Whether these are the file's contents.
    #[must_use]
    pub fn is(&self, contents: &[u8]) -> bool {
        self.bytes == contents.len() as u64 && self.fingerprint == fingerprint(contents)
    }
}

impl<K> Manifest<K> {
    /// The module of a family.
    #[must_use]
    pub fn module(&self, family: Family) -> Option<&Module<K>> {
        self.modules.iter().find(|module| module.family == family)
    }
}

impl<K> Module<K> {
    /// The machine code for a target.
    #[must_use]
    pub fn cubin(&self, target: &str) -> Option<&Cubin> {
        self.cubins.iter().find(|cubin| cubin.target == target)
    }

    /// The machine code that a GPU of this compute capability loads, the closest if there are several; `arch`
    /// is the manifest's.
    #[must_use]
    pub fn cubin_for(&self, arch: Arch, capability: (u32, u32)) -> Option<&Cubin> {
        let loads = arch.machine_code().iter().filter(|code| code.capabilities.contain(capability));
        loads.rev().find_map(|code| self.cubin(code.target))
    }

    /// The module's files.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        [&self.ptx].into_iter().chain(self.cubins.iter().map(|cubin| &cubin.file))
    }
}

impl<K: DeserializeOwned> Manifest<K> {
    /// Reads the manifest at `path`.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ManifestError::Unreadable { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| ManifestError::Malformed { path: path.to_owned(), source })
    }
}

/// A stamp as manifests and messages have it; `none` for a module without one.
#[must_use]
pub fn stamp(stamp: Option<u64>) -> String {
    stamp.map_or_else(|| "none".into(), |stamp| format!("{stamp:016x}"))
}

/// PTX with the declaration of a stamp behind its head: what the compiler makes of the variable.
#[must_use]
pub fn stamped(ptx: &str, stamp: u64) -> String {
    const HEAD: &str = ".address_size 64\n";
    let bytes = stamp.to_le_bytes().map(|byte| byte.to_string()).join(", ");
    let symbol = fp4_formats::stamp::SYMBOL;
    ptx.replacen(
        HEAD,
        &format!("{HEAD}.visible .global .align 8 .b8 {symbol}[8] = {{{bytes}}};\n"),
        1,
    )
}

/// A fingerprint of bytes, 16 hexadecimal digits: FNV-1a, which is the same everywhere and at all
/// times. Against accidents, not against forgery.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    format!("{:016x}", bytes.iter().fold(OFFSET, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_fingerprints() {
        // Test vectors of FNV-1a, 64 bits.
        for (text, hash) in
            [("", "cbf29ce484222325"), ("a", "af63dc4c8601ec8c"), ("foobar", "85944171f73967e8")]
        {
            assert_eq!(fingerprint(text.as_bytes()), hash, "{text:?}");
            let file = File::of("f", text.as_bytes());
            assert!(file.is(text.as_bytes()) && !file.is(b"b"));
        }
    }

    #[test]
    fn stamps_are_written_as_they_are_read() {
        let ptx = ".version 9.0\n.target sm_90a\n.address_size 64\n.entry k() { ret; }\n";
        for number in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            assert_eq!(fp4_formats::stamp::of_ptx(&stamped(ptx, number)), Some(number));
        }
        assert_eq!([stamp(Some(1)), stamp(None)], ["0000000000000001", "none"]);
    }

    #[test]
    fn what_is_not_asked_for_is_skipped() {
        let text = r#"{"arch": "sm_90a", "ptx_version": "9.0", "modules": [{"family": "gemv",
            "ptx": {"name": "gemv.ptx", "bytes": 1, "fingerprint": "0"}, "compiler": "c",
            "cubins": [{"target": "sm_90a", "name": "gemv.cubin", "bytes": 2, "fingerprint": "1",
                "assembler": "p"}],
            "sources": {"digest": "d", "files": []}, "kernels": [{"name": "k", "parameters": 1, "param_bytes": 8, "threads": 3}]}]}"#;
        let manifest: Manifest = serde_json::from_str(text).expect("a manifest");
        let module = manifest.module(Family::Gemv).expect("listed");
        assert_eq!((manifest.arch, module.kernels[0].name.as_str()), (Arch::Sm90a, "k"));
        assert_eq!(module.cubin("sm_90a").map(|cubin| cubin.file.bytes), Some(2));
        let names: Vec<&str> = module.files().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["gemv.ptx", "gemv.cubin"]);
        assert!(manifest.module(Family::Ceiling).is_none());
        let again = serde_json::to_string(&manifest).expect("serialised");
        assert_eq!(serde_json::from_str::<Manifest>(&again).expect("a manifest"), manifest);
        let unknown = text.replace("\"gemv\"", "\"gem\"");
        let error = serde_json::from_str::<Manifest>(&unknown).expect_err("refused").to_string();
        assert!(error.contains("`gem`: unknown family of kernels; known are ceiling"), "{error}");
    }

    /// A GPU is given the closest machine code that it loads, and none of another major version.
    #[test]
    fn machine_code_is_chosen_by_compute_capability() {
        let cubin = |target: &str| Cubin {
            target: target.into(),
            file: File::of(format!("gemv.{target}.cubin"), target.as_bytes()),
            assembler: "p".into(),
        };
        let module = |targets: &[&str]| Module::<Callable> {
            family: Family::Gemv,
            ptx: File::of("gemv.ptx", b"text"),
            cubins: targets.iter().map(|target| cubin(target)).collect(),
            stamp: String::new(),
            compiler: String::new(),
            sources: Sources::default(),
            kernels: Vec::new(),
        };
        let chosen = |module: &Module, arch, capability| {
            module.cubin_for(arch, capability).map(|cubin| cubin.target.clone()).unwrap_or_default()
        };
        let all = module(&["sm_80", "sm_86", "sm_89"]);
        for (capability, target) in [
            ((8, 0), "sm_80"),
            ((8, 6), "sm_86"),
            ((8, 7), ""),
            ((8, 9), "sm_89"),
            ((9, 0), ""),
            ((10, 0), ""),
            ((12, 0), ""),
        ] {
            assert_eq!(chosen(&all, Arch::Sm80, capability), target, "{capability:?}");
        }
        let some = module(&["sm_86", "sm_80"]);
        assert_eq!(chosen(&some, Arch::Sm80, (8, 9)), "sm_86");
        assert_eq!(chosen(&module(&["sm_86"]), Arch::Sm80, (8, 0)), "");
        assert_eq!(chosen(&module(&["sm_100f"]), Arch::Sm100f, (10, 3)), "sm_100f");
        assert_eq!(chosen(&module(&["sm_120f"]), Arch::Sm120f, (12, 1)), "sm_120f");
    }
}
