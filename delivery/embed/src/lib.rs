//! The compiled kernels of `nvfp4`, compressed, in the program that depends on this crate.
//!
//! Every program with this crate has products with vectors and quantising; the features `gemm` and `moe` add
//! products with matrices and mixtures of experts.
//!
//! The build script puts them here. In this order, it takes
//!
//! 1. nothing, where the variable `NVFP4_KERNELS_AT` is set: the program then looks in the folder
//!    that the variable names ([`FOLDER`]). This repository's `.cargo/config.toml` sets it, so that
//!    kernels and programs are built apart;
//! 2. the modules in `compiled/` beside this crate's `Cargo.toml`, which `cargo xtask package`
//!    makes for a crate that is published;
//! 3. the modules in the checkout's `target/kernels`, if they are up to date;
//! 4. modules that it compiles from the checkout, by rustc's own NVPTX back end. That takes less than a
//!    minute of processor time without and several with the features, and the source of `core`
//!    (`rustup component add rust-src`).

mod parts;

use fp4_formats::{Arch, Family};
use miniz_oxide::inflate::decompress_to_vec_with_limit;
use nvfp4_manifest::{File, Manifest};
pub use parts::Part;
use thiserror::Error;

/// The folder of kernels that this build was told to use instead of embedding them.
pub const FOLDER: Option<&str> = option_env!("NVFP4_KERNELS_AT");

/// The modules of an architecture.
#[derive(Debug)]
pub struct Embedded {
    /// Name of the architecture.
    arch: &'static str,
    /// The manifest as JSON.
    manifest: &'static str,
    /// Names and compressed contents of its files.
    files: &'static [(&'static str, &'static [u8])],
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The reason why embedded modules cannot be read: the program is damaged.
#[derive(Debug, Error)]
pub enum EmbeddedError {
    /// The manifest is not JSON of this version.
    #[error("the embedded manifest: {0}")]
    Manifest(#[from] serde_json::Error),
    /// The manifest lists a file that is not embedded.
    #[error("{name} is not embedded")]
    Missing {
        /// The file.
        name: String,
    },
    /// The compressed contents are damaged.
    #[error("the embedded {name}: {reason}")]
    Damaged {
        /// The file.
        name: String,
        /// The fault.
        reason: String,
    },
}

/// The embedded modules for `arch`, if there are any.
#[must_use]
pub fn embedded(arch: Arch) -> Option<&'static Embedded> {
    EMBEDDED.iter().find(|embedded| embedded.arch == arch.name())
}

/// The part of the kernels that a family is in, for kernels in two the first.
#[must_use]
pub const fn part(family: Family) -> Part {
    parts::parts(family)[0]
}

impl Embedded {
    /// Returns the manifest of the embedded kernels.
    ///
    /// # Errors
    /// [`EmbeddedError::Manifest`].
    pub fn manifest(&self) -> Result<Manifest, EmbeddedError> {
        Ok(serde_json::from_str(self.manifest)?)
    }

    /// The contents of a file that the manifest lists.
    ///
    /// # Errors
    /// [`EmbeddedError::Missing`], [`EmbeddedError::Damaged`].
    pub fn contents(&self, file: &File) -> Result<Vec<u8>, EmbeddedError> {
        let found = self.files.iter().find(|(name, _)| *name == file.name);
        let Some((name, compressed)) = found else {
            return Err(EmbeddedError::Missing { name: file.name.clone() });
        };
        let limit = usize::try_from(file.bytes).unwrap_or(usize::MAX);
        decompress_to_vec_with_limit(compressed, limit).map_err(|error| EmbeddedError::Damaged {
            name: (*name).to_owned(),
            reason: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfp4_manifest::Module;

    #[test]
    fn what_is_embedded_is_whole() {
        for arch in Arch::ALL {
            let Some(embedded) = embedded(arch) else {
                skipped::part(arch, "this build embeds no kernels");
                continue;
            };
            let manifest = embedded.manifest().expect("a manifest");
            assert_eq!(manifest.arch, arch);
            let has = |family| manifest.module(family).is_some();
            assert!(has(Family::Gemv) && has(Family::Dequantize));
            assert_eq!(has(Family::Moe), cfg!(feature = "moe"));
            assert_eq!(
                manifest.modules.iter().any(|m| m.family.name().starts_with("gemm_nvfp4")),
                cfg!(feature = "gemm")
            );
            for file in manifest.modules.iter().flat_map(Module::files) {
                assert!(file.is(&embedded.contents(file).expect("embedded")), "{}", file.name);
            }
        }
    }

    #[test]
    fn damage_is_named() {
        let embedded = Embedded { arch: "sm_90a", manifest: "{", files: &[("a.ptx", &[0xff; 4])] };
        assert!(matches!(embedded.manifest(), Err(EmbeddedError::Manifest(_))));
        let error = embedded.contents(&File::of("a.ptx", b"text")).expect_err("damaged");
        assert!(matches!(error, EmbeddedError::Damaged { .. }), "{error}");
        let error = embedded.contents(&File::of("b.ptx", b"text")).expect_err("missing");
        assert_eq!(error.to_string(), "b.ptx is not embedded");
    }
}
