//! Modules that the program loads, and the PTX in them.

use crate::abi::{self, bytes, text, word};
use crate::driver;
use ptx_emu_core::{Gpu, KernelInfo, entry_names, examine};
use ptx_emu_images::fatbin::{self, Contents};
use ptx_emu_images::{latest, target, values};
use std::collections::BTreeMap;

/// A module or library.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The driver's handle is of a library.
    pub(crate) library: bool,
    /// PTX that the GPU runs, or why there is none.
    pub(crate) ptx: Result<String, String>,
    /// Its kernels.
    names: Vec<String>,
    /// Contents of its variables before anything ran, once they are known.
    initial: Option<BTreeMap<String, Vec<u8>>>,
    /// The kernels that were launched, as far as they are known.
    known: BTreeMap<String, KernelInfo>,
}

/// Reads the image where the program has it.
fn image(address: u64) -> Result<Contents, String> {
    match word(address) as u32 {
        fatbin::WRAPPER_MAGIC => image(word(address + 8)),
        fatbin::MAGIC => {
            let size = fatbin::size(&bytes(address, fatbin::HEADER));
            let read = size.and_then(|size| fatbin::read(&bytes(address, size)));
            read.map_err(|error| error.to_string())
        }
        // The start of an ELF file.
        0x464c_457f => Ok(Contents::default()),
        _ => {
            let text = String::from_utf8(text(address)).map_err(|_| "it is not PTX".to_owned())?;
            Ok(Contents { ptx: vec![text], machine_code: Vec::new() })
        }
    }
}

/// Whether a GPU runs PTX for a target (PTX ISA 11.1.2).
fn accepts(target: &str, (major, minor): (u32, u32)) -> bool {
    let digits = target.trim_start_matches("sm_");
    let number = digits.trim_end_matches(char::is_alphabetic).parse::<u32>().unwrap_or(u32::MAX);
    let own = 10 * major + minor;
    match digits.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "" => number <= own,
        "f" => number / 10 == major && number <= own,
        _ => number == own,
    }
}

impl Loaded {
    /// The module of an image: bytes where the program has them.
    pub(crate) fn new(address: u64, library: bool) -> Self {
        let of = abi::file_of(address).map_or_else(String::new, |file| format!(" of {file}"));
        let capability = driver::capability();
        let runs = |target: &str| capability.is_none_or(|own| accepts(target, own));
        let ptx = image(address).and_then(|contents| {
            let all: Vec<String> = contents.ptx.iter().map(|text| target(text)).collect();
            latest(contents.ptx, runs).ok_or_else(|| match all.is_empty() {
                true => format!("its module{of} has machine code only"),
                false => format!("its module{of} has PTX for {} only", all.join(", ")),
            })
        });
        let names =
            ptx.as_ref().map_or_else(|_| Vec::new(), |ptx| entry_names(ptx).unwrap_or_default());
        Self { library, ptx, names, initial: None, known: BTreeMap::new() }
    }

    pub(crate) fn has(&self, kernel: &str) -> bool {
        self.names.iter().any(|name| name == kernel)
    }

    fn variables(&self, handle: u64) -> BTreeMap<String, Vec<u8>> {
        let names = self.ptx.as_ref().map_or_else(|_| Vec::new(), |ptx| values::names(ptx));
        let found = names.into_iter().filter_map(|name| {
            let (address, size) = driver::variable(handle, self.library, &name)?;
            Some((name, driver::copy_down(address, size).ok()?))
        });
        found.collect()
    }

    /// Notes what the variables hold, the first time that it is called.
    pub(crate) fn note_initial(&mut self, handle: u64) {
        if self.initial.is_none() {
            self.initial = Some(self.variables(handle));
        }
    }

    /// The variables that hold something else than at first.
    pub(crate) fn changed(&self, handle: u64) -> Vec<(String, Vec<u8>)> {
        let initial = self.initial.as_ref();
        let now = self.variables(handle).into_iter();
        now.filter(|(name, value)| initial.and_then(|all| all.get(name)) != Some(value)).collect()
    }

    /// A kernel's parameters. Instructions that the emulator does not model do not matter.
    pub(crate) fn kernel(&mut self, name: &str) -> Result<KernelInfo, String> {
        if let Some(known) = self.known.get(name) {
            return Ok(known.clone());
        }
        let ptx = self.ptx.as_ref().map_err(String::clone)?;
        let found = examine(ptx, &Gpu::for_module(ptx), Some(name));
        let found = found.map_err(|error| error.to_string())?;
        let outcome = found.entries.into_iter().next().map(|entry| entry.outcome);
        let (kernel, _) = match outcome {
            Some(outcome) => outcome.map_err(|error| error.to_string())?,
            None => return Err("its module's PTX does not have it".to_owned()),
        };
        self.known.insert(name.to_owned(), kernel.clone());
        Ok(kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_run_on_gpus() {
        let h200 = (9, 0);
        for (target, runs) in [
            ("sm_80", true),
            ("sm_90", true),
            ("sm_90a", true),
            ("sm_100", false),
            ("sm_80a", false),
        ] {
            assert_eq!(accepts(target, h200), runs, "{target}");
        }
        assert!(accepts("sm_100f", (10, 3)) && !accepts("sm_100f", (12, 0)));
        assert!(!accepts("sm_103f", (10, 0)) && !accepts("", (10, 0)));
    }
}
