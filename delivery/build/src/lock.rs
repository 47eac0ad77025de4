//! Locks between builds that run at once, in several processes or threads: files that the system
//! unlocks when their holder ends, however it ends.

use crate::{Target, Workshop};
use anyhow::{Context, Result};
use fp4_formats::Arch;
use std::fs::File;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until nobody else compiles that module.
    pub fn of_module(workshop: &Workshop, (arch, family): Target) -> Result<Self> {
        Self::named(workshop, &format!("{arch}-{family}"))
    }

    /// Waits until nobody else changes the folder of `arch`.
    pub fn of_manifest(workshop: &Workshop, arch: Arch) -> Result<Self> {
        Self::named(workshop, arch.name())
    }

    fn named(workshop: &Workshop, name: &str) -> Result<Self> {
        let folder = workshop.intermediate.join("locks");
        let path = folder.join(name);
        let opened = std::fs::create_dir_all(&folder).and_then(|()| {
            let file = File::options().create(true).append(true).open(&path)?;
            file.lock()?;
            Ok(file)
        });
        let file = opened.with_context(|| format!("locking {}", path.display()))?;
        Ok(Self { _file: file })
    }
}
