//! What tests share: a folder, machines with and without kernels, a model, ways to look at and
//! damage files.
#![allow(dead_code, reason = "each test takes what it needs")]

use fp4_formats::stamp::STAMP;
use fp4_formats::{Arch, Family};
use std::path::{Path, PathBuf};

use nvfp4::checkpoint::{self, Layout, Model, ModelOptions, NewTensor};
use nvfp4::device::{Device, Kernels};
use nvfp4::kernels::{DIR_VARIABLE, KernelFiles};
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4::rng::SplitMix64;
use nvfp4_manifest::{Callable, FILE_NAME, File, Manifest, Module, Sources};
use safetensors::Dtype;

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

/// Writes a folder of kernels for `arch` in `folder`, with this program's stamp: of each family the PTX, and the names of the
/// kernels in it, which have `parameters` parameters each.
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
        let kernels = names.iter().map(|&name| Callable { name: name.into(), parameters });
        Module {
            family,
            ptx: File::of(name, text.as_bytes()),
            cubin: None,
            stamp: nvfp4_manifest::stamp(Some(STAMP)),
            compiler: "none".into(),
            sources: Sources::default(),
            kernels: kernels.collect(),
        }
    });
    let manifest = Manifest { arch, ptx_version: "9.0".into(), modules: modules.collect() };
    let text = serde_json::to_string(&manifest).expect("JSON");
    std::fs::write(folder.join(FILE_NAME), text).expect("written");
}

/// Writes a folder of kernels for `arch` whose modules load and have no code.
pub fn write_no_kernels(folder: &Path, arch: Arch) {
    let text = format!(".version 9.0\n.target {arch}\n.address_size 64\n");
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

/// Where the compiled kernels are: the folder that `NVFP4_KERNELS_DIR` names, else the one that
/// `cargo xtask build-kernels` writes to.
pub fn kernels_dir() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernels");
    std::env::var_os(DIR_VARIABLE).map_or_else(default, PathBuf::from)
}

/// The emulated machines that kernels are compiled for, with their architectures.
///
/// Kernels that are missing are a failure where `NVFP4_KERNELS_DIR` promises them, else a note on
/// stderr: a test without them has tested nothing.
pub fn compiled() -> Vec<(&'static str, Arch)> {
    let compiled = MACHINES.into_iter().filter(|(device, arch)| {
        match KernelFiles::find(*arch, Some(&kernels_dir())) {
            Ok(_) => true,
            Err(error) if std::env::var_os(DIR_VARIABLE).is_some() => panic!("{error}"),
            Err(error) => {
                eprintln!("skipped on {device}: {error}");
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

pub fn tensor(dtype: Dtype, shape: &[usize], data: Vec<u8>) -> NewTensor {
    NewTensor { dtype, shape: shape.to_vec(), data }
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Normal values, each row with a magnitude of its own.
pub fn normal(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut rng = SplitMix64::new(seed);
    let row_scale = |row: usize| 0.02 * ((row % 5) as f64 + 1.0);
    (0..rows * cols).map(|at| (rng.normal() * row_scale(at / cols)) as f32).collect()
}

pub fn random(shape: &[usize], seed: u64) -> NewTensor {
    let cols = *shape.last().expect("a dimension");
    let rows = shape.iter().product::<usize>() / cols;
    tensor(Dtype::F32, shape, f32s(&normal(rows, cols, seed)))
}

/// A model: two layers, one of them with experts in one tensor, and what is not quantised.
pub fn write_model(path: &Path) {
    let tensors = [
        ("model.embed_tokens.weight", random(&[7, 64], 1)),
        ("model.layers.0.mlp.up.weight", random(&[130, 64], 2)),
        ("model.layers.0.mlp.up.bias", random(&[130], 3)),
        ("model.layers.0.norm.weight", random(&[64], 4)),
        ("model.layers.1.experts.gate_up.weight", random(&[3, 10, 96], 5)),
        ("model.layers.1.experts.gate_up_bias", random(&[3, 10], 8)),
        ("model.layers.1.mlp.down.weight", random(&[5, 96], 6)),
        ("model.layers.1.mlp.odd.weight", random(&[4, 40], 7)),
        ("model.steps", tensor(Dtype::I64, &[], 7u64.to_le_bytes().to_vec())),
    ];
    checkpoint::write(path, &tensors, &[]).expect("written");
}

/// What of [`write_model`] is quantised.
pub const WEIGHTS: [&str; 3] = [
    "model.layers.0.mlp.up.weight",
    "model.layers.1.experts.gate_up.weight",
    "model.layers.1.mlp.down.weight",
];

/// Options under which all of [`WEIGHTS`] are quantised, whatever the layout.
pub fn options(format: Format, layout: Layout) -> ModelOptions {
    let recipe = recipe_by_name(format, "torchao").expect("known");
    ModelOptions::new(recipe, layout).experts_only(false)
}

/// Every layout with every format that it has.
pub fn combinations() -> Vec<(Layout, Format)> {
    let formats = [Format::Nvfp4, Format::Mxfp4];
    Layout::ALL
        .into_iter()
        .flat_map(|layout| formats.map(|format| (layout, format)))
        .filter(|(layout, format)| layout.supports(*format))
        .collect()
}

/// Quantises [`write_model`] into a subfolder, and opens the result.
pub fn quantized(folder: &Folder, name: &str, layout: Layout, format: Format) -> Model {
    let source = folder.file("source.safetensors");
    if !source.exists() {
        write_model(&source);
    }
    let model = Model::open(&source).expect("a model");
    let out = folder.file(name);
    checkpoint::quantize_model(&model, &options(format, layout), &out, None, &mut ())
        .unwrap_or_else(|error| panic!("{layout} {}: {error}", format.name()));
    Model::open(out).expect("a checkpoint")
}

/// Tensors by name, in the order of a file.
pub type Tensors = Vec<(String, NewTensor)>;

/// All tensors of a file as they could be written again.
pub fn tensors(path: &Path) -> Tensors {
    let file = checkpoint::Checkpoint::open(path).expect("a file");
    let entries = file.entries().into_iter();
    entries
        .map(|entry| {
            let raw = file.raw(&entry.name).expect("listed");
            (entry.name, tensor(raw.dtype, &raw.shape, raw.data.to_vec()))
        })
        .collect()
}

/// Writes a file again with its tensors changed by `edit`; metadata is lost.
pub fn rewrite(path: &Path, edit: impl FnOnce(&mut Tensors)) {
    let mut tensors = tensors(path);
    edit(&mut tensors);
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(path, &tensors, &[]).expect("written");
}

/// The tensor of this name among `tensors`.
pub fn named<'a>(tensors: &'a mut Tensors, name: &str) -> &'a mut NewTensor {
    let found = tensors.iter_mut().find(|(other, _)| other == name);
    &mut found.unwrap_or_else(|| panic!("there is a tensor {name}")).1
}
