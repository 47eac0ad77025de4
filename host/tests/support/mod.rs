//! Test support of the library, checkpoints and the laboratory: a folder, and machines with and without
//! kernels.
#![allow(dead_code, reason = "each test takes what it needs")]

use fp4_formats::stamp::STAMP;
use fp4_formats::{Arch, Family};
use std::path::{Path, PathBuf};

use nvfp4::device::{Device, Kernels};
use nvfp4::kernels::{DIR_VARIABLE, KernelFiles};
use nvfp4_manifest::{Callable, FILE_NAME, File, Manifest, Module, Sources};

/// A folder of its own for one test, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Names of what is in it, hidden files included, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a folder").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The emulated machines, and their architectures.
pub const MACHINES: [(&str, Arch); 2] = [("emu:h200", Arch::Sm90a), ("emu:b200", Arch::Sm100a)];
/// The emulated machine of block-scaled `mma.sync`.
pub const SCALED: (&str, Arch) = ("emu:rtx5090", Arch::Sm120f);
/// The emulated machine that is given the portable kernels, without asking for them.
const PORTABLE: (&str, Arch) = ("emu:rtx4090", Arch::Sm80);

/// Writes a folder of kernels for `arch` in `folder`, with this program's stamp: of each family the
/// PTX, and the names of the kernels in it, which have `parameters` parameters each.
pub fn write_kernels(
    folder: &Path,
    arch: Arch,
    modules: &[(Family, &str, &[&str])],
    parameters: usize,
) {
    let folder = folder.join(arch.name());
    std::fs::create_dir_all(&folder).expect("a folder");
    let modules = modules.iter().map(|&(family, text, names)| {
        let name = format!("{family}.ptx");
        let text = nvfp4_manifest::stamped(text, STAMP);
        std::fs::write(folder.join(&name), &text).expect("written");
        let kernels = names.iter().map(|&name| {
            let param_bytes = 8 * parameters;
            Callable { name: name.into(), parameters, param_bytes }
        });
        Module {
            family,
            ptx: File::of(name, text.as_bytes()),
            cubins: Vec::new(),
            stamp: nvfp4_manifest::stamp(Some(STAMP)),
            compiler: "none".into(),
            sources: Sources::default(),
            kernels: kernels.collect(),
        }
    });
    let (ptx_version, sources) = (arch.ptx_version().to_string(), String::new());
    let manifest = Manifest { arch, ptx_version, sources, modules: modules.collect() };
    let text = serde_json::to_string(&manifest).expect("JSON");
    std::fs::write(folder.join(FILE_NAME), text).expect("written");
}

/// Writes a folder of kernels for `arch` whose modules load and have no code.
pub fn write_no_kernels(folder: &Path, arch: Arch) {
    let version = arch.ptx_version();
    let text = format!(".version {version}\n.target {arch}\n.address_size 64\n");
    let families: Vec<(Family, Vec<&str>)> =
        Family::of(arch).map(|family| (family, family.entries(arch).collect())).collect();
    let modules: Vec<_> =
        families.iter().map(|(family, names)| (*family, text.as_str(), names.as_slice())).collect();
    write_kernels(folder, arch, &modules, 1);
}

/// Kernels of an emulated machine, of modules that have none, for what does not launch any.
pub fn no_kernels(folder: &Folder, (device, arch): (&str, Arch)) -> Kernels {
    write_no_kernels(folder.path(), arch);
    let device = Device::open(&device.parse().expect("known")).expect("opens");
    device.kernels(Some(folder.path())).expect("loads")
}

/// The folder of the compiled kernels: the one that `NVFP4_KERNELS_DIR` names, else the one that
/// `cargo xtask build-kernels` writes to.
pub fn kernels_dir() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernels");
    std::env::var_os(DIR_VARIABLE).map_or_else(default, PathBuf::from)
}

/// The emulated machines that kernels are compiled for, with their architectures.
///
/// Kernels that are missing are a failure where `NVFP4_KERNELS_DIR` promises them, else the test
/// leaves them out.
pub fn compiled() -> Vec<(&'static str, Arch)> {
    let compiled = MACHINES.into_iter().chain([SCALED, PORTABLE]).filter(|(device, arch)| {
        match KernelFiles::find(*arch, Some(&kernels_dir())) {
            Ok(_) => true,
            Err(error) if std::env::var_os(DIR_VARIABLE).is_some() => panic!("{error}"),
            Err(error) => {
                skipped::part(device, error);
                false
            }
        }
    });
    compiled.collect()
}

/// The machines of [`compiled`], opened, with their kernels.
pub fn machines() -> Vec<Kernels> {
    let open = |(name, _): (&str, _)| {
        let device = Device::open(&name.parse().expect("known")).expect("opens");
        device.kernels(Some(&kernels_dir())).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    compiled().into_iter().map(open).collect()
}
