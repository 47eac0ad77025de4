//! Modules that a program gives as PTX.

use std::collections::BTreeMap;

use fp4_formats::{Arch, Family, stamp};
use nvfp4_manifest::{Callable, File, Manifest, Module, Sources};

use super::KernelsError;
use crate::cuda::{DeclaredParameters, declared_parameters};

/// The architecture that a module is for.
pub(super) fn target(text: &str) -> Result<Arch, KernelsError> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(".target"));
    let target = line.and_then(|line| line.trim().split([',', ' ']).next()).unwrap_or_default();
    target.parse().map_err(|_| KernelsError::NotOurs {
        field: "target",
        required: Arch::ALL.map(Arch::name).join(", "),
        actual: if target.is_empty() { "none".into() } else { target.into() },
    })
}

/// A manifest without modules, of the version of PTX that a text says.
pub(super) fn empty(arch: Arch, text: &str) -> Manifest {
    let version = text.lines().find_map(|line| line.trim_start().strip_prefix(".version"));
    let ptx_version = version.unwrap_or_default().trim().to_owned();
    Manifest { arch, ptx_version, sources: String::new(), modules: Vec::new() }
}

/// The text that a file of such a manifest stands for.
pub(super) fn text<'a>(texts: &'a [String], file: &File) -> &'a str {
    let index = file.name.parse::<usize>().ok();
    index.and_then(|index| texts.get(index)).map_or("", String::as_str)
}

/// The kernels of a text, a module for each family.
pub(super) fn modules(arch: Arch, index: usize, text: &str) -> Result<Vec<Module>, KernelsError> {
    let mut families: BTreeMap<Family, Vec<Callable>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for (name, declared) in declared_parameters(text) {
        let DeclaredParameters { count: parameters, bytes: param_bytes } = declared;
        match Family::of_kernel(arch, &name) {
            Some(family) => {
                let callable = Callable { name, parameters, param_bytes };
                families.entry(family).or_default().push(callable);
            }
            None => unknown.push(name),
        }
    }
    if families.is_empty() {
        return Err(KernelsError::NotOurs {
            field: "kernels",
            required: format!("some of this library's for {arch}"),
            actual: if unknown.is_empty() { "none".into() } else { unknown.join(", ") },
        });
    }
    let stamp = nvfp4_manifest::stamp(stamp::of_ptx(text));
    let modules = families.into_iter().map(|(family, kernels)| Module {
        family,
        ptx: File::of(index.to_string(), text.as_bytes()),
        cubins: Vec::new(),
        stamp: stamp.clone(),
        compiler: String::new(),
        sources: Sources::default(),
        kernels,
    });
    Ok(modules.collect())
}
