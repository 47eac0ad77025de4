//! The places where cuBLAS is looked for.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::CublasError;

/// Environment variable naming `libcublas.so.*` or the folder it is in; several
/// may be given, separated by colons.
pub const CUBLAS_PATH_VARIABLE: &str = "NVFP4_CUBLAS_PATH";

/// The versions whose interface is the one used here, newest first.
const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];

/// Opens the first libcublas that loads.
pub(super) fn open() -> Result<(libloading::Library, String), CublasError> {
    first(candidates(|name| env::var_os(name)), load)
}

/// Opens the first libcublasLt that loads, from the same places.
pub(super) fn open_lt() -> Result<(libloading::Library, String), CublasError> {
    let paths =
        candidates(|name| env::var_os(name)).iter().filter_map(|path| companion(path)).collect();
    // SAFETY: NVIDIA's libraries have initialisers without preconditions.
    first(paths, |path| unsafe { libloading::Library::new(path) })
}

fn first(
    paths: Vec<PathBuf>,
    load: impl Fn(&Path) -> Result<libloading::Library, libloading::Error>,
) -> Result<(libloading::Library, String), CublasError> {
    let mut tried = Vec::new();
    for path in paths {
        // A path that is a name is for the loader to find; others must exist.
        if path.components().count() > 1 && !path.is_file() {
            continue;
        }
        match load(&path) {
            Ok(library) => return Ok((library, path.display().to_string())),
            Err(error) => tried.push(reason(&path, &error)),
        }
    }
    Err(CublasError::Missing { tried })
}

fn load(path: &Path) -> Result<libloading::Library, libloading::Error> {
    // libcublas needs its companion, which the loader does not look for beside it
    // in every distribution. Once open under its name it is found.
    if let Some(companion) = companion(path) {
        // SAFETY: NVIDIA's libraries have initialisers without preconditions. The handle is kept open
        // on purpose: libcublas lives from it.
        if let Ok(companion) = unsafe { libloading::Library::new(companion) } {
            std::mem::forget(companion);
        }
    }
    // SAFETY: as above.
    unsafe { libloading::Library::new(path) }
}

/// The libcublasLt beside a libcublas, or itself; none beside a library of another name.
fn companion(path: &Path) -> Option<PathBuf> {
    let name = path.file_name().and_then(OsStr::to_str)?;
    if name.starts_with("libcublasLt.") {
        return Some(path.to_owned());
    }
    let version = name.strip_prefix("libcublas.")?;
    Some(path.with_file_name(format!("libcublasLt.{version}")))
}

fn reason(path: &Path, error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => format!("{}: {error}", path.display()),
    }
}

/// Paths to try, in order; those with a folder need not exist.
fn candidates(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let in_folder = |paths: &mut Vec<PathBuf>, folder: &Path| {
        paths.extend(NAMES.map(|name| folder.join(name)));
    };

    let named = variable(CUBLAS_PATH_VARIABLE).unwrap_or_default();
    for path in env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()) {
        if path.is_dir() {
            in_folder(&mut paths, &path);
        } else {
            paths.push(path);
        }
    }
    paths.extend(NAMES.map(PathBuf::from));
    in_folder(&mut paths, Path::new("/usr/local/cuda/lib64"));
    for prefix in prefixes(&variable) {
        for packages in site_packages(&prefix) {
            for folder in ["nvidia/cu13/lib", "nvidia/cublas/lib"] {
                in_folder(&mut paths, &packages.join(folder));
            }
        }
    }
    paths
}

/// Installation prefixes of Python: environments first, then every `python3` on
/// `PATH`, then the system's.
fn prefixes(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(|name| variable(name).map(PathBuf::from))
        .collect();
    let path = variable("PATH").unwrap_or_default();
    prefixes.extend(
        env::split_paths(&path)
            .filter(|folder| folder.join("python3").exists())
            .filter_map(|folder| folder.parent().map(Path::to_owned)),
    );
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    prefixes
}

/// `PREFIX/lib/python3*/{site,dist}-packages`, newest Python first.
fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(prefix.join("lib")).into_iter().flatten();
    let mut pythons: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str);
            name.is_some_and(|name| name.starts_with("python3"))
        })
        .collect();
    pythons.sort_unstable();
    pythons.reverse();
    pythons
        .iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_comes_first_then_the_loader() {
        let paths = candidates(|name| {
            (name == CUBLAS_PATH_VARIABLE).then(|| OsString::from("/a/libcublas.so.12:/b/own.so"))
        });
        let expected = [
            "/a/libcublas.so.12",
            "/b/own.so",
            "libcublas.so.13",
            "libcublas.so.12",
            "/usr/local/cuda/lib64/libcublas.so.13",
        ];
        assert_eq!(paths[..5], expected.map(PathBuf::from));
    }

    #[test]
    fn the_companion_is_beside_its_library() {
        for (path, expected) in [
            ("libcublas.so.13", "libcublasLt.so.13"),
            ("/libcublas.d/libcublas.so.12", "/libcublas.d/libcublasLt.so.12"),
            ("/a/libcublasLt.so.13", "/a/libcublasLt.so.13"),
        ] {
            assert_eq!(companion(Path::new(path)), Some(PathBuf::from(expected)));
        }
        assert_eq!(companion(Path::new("/b/own.so")), None);
    }

    #[test]
    fn a_virtual_environments_packages_are_searched() -> std::io::Result<()> {
        let prefix = env::temp_dir().join(format!("nvfp4-find-{}", std::process::id()));
        let packages = prefix.join("lib/python3.12/site-packages");
        fs::create_dir_all(&packages)?;
        let paths = candidates(|name| (name == "VIRTUAL_ENV").then(|| prefix.clone().into()));
        fs::remove_dir_all(&prefix)?;
        let expected = packages.join("nvidia/cu13/lib/libcublas.so.13");
        assert!(paths.contains(&expected), "{expected:?} not in {paths:?}");
        Ok(())
    }

    #[test]
    fn a_missing_library_names_the_variable() {
        let error =
            CublasError::Missing { tried: vec!["libcublas.so.13: no such file".to_owned()] };
        let text = error.to_string();
        assert!(text.contains(CUBLAS_PATH_VARIABLE), "{text}");
        assert!(text.contains("libcublas.so.13: no such file"), "{text}");
    }
}
