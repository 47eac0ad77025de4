//! The figures that ptxas prints of a module: registers, spills, shared memory.

use crate::error::BuildError;
use crate::{note, toolkit};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The PyPI package that carries ptxas, in the version that matches
/// [`crate::build::PTX_VERSION`].
pub const PACKAGE: &str = "nvidia-cuda-nvcc==13.0.88";

/// Resources of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Kernel.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of a thread's local-memory frame.
    pub stack: u32,
    /// Bytes of spill stores.
    pub spill_stores: u32,
    /// Bytes of spill loads.
    pub spill_loads: u32,
    /// Static shared memory, bytes.
    pub shared: u32,
    /// Named barriers.
    pub barriers: u32,
    /// Whether ptxas says that it runs `wgmma`s one by one, each waited for: of registers that their operands
    /// need it has too few, or other instructions write them while products run.
    #[serde(default)]
    pub serialized: bool,
}

impl Usage {
    /// Whether nothing goes through local memory.
    pub fn is_clean(&self) -> bool {
        self.stack == 0 && self.spill_stores == 0 && self.spill_loads == 0
    }
}

/// The first ptxas of those that [`toolkit::candidates`] finds.
pub fn find(tools: &Path) -> Option<PathBuf> {
    toolkit::candidates("ptxas", tools).next()
}

/// Installs ptxas from PyPI into `tools`.
///
/// # Errors
/// The same as [`toolkit::install`]; [`BuildError::Ptxas`] if the package brought none.
pub fn install(tools: &Path) -> Result<PathBuf, BuildError> {
    let folder = tools.display();
    note(format_args!("ptxas is not here, installing {PACKAGE} from PyPI into {folder}"));
    toolkit::install(tools, &[PACKAGE], &["bin"])?;
    find(tools).ok_or_else(|| BuildError::Ptxas(format!("{PACKAGE} brought no ptxas")))
}

/// The version that a ptxas says it has, such as `13.0.88`.
///
/// # Errors
/// [`BuildError::Ptxas`] if it says none.
pub fn version(ptxas: &Path) -> Result<String, BuildError> {
    let out = Command::new(ptxas)
        .arg("--version")
        .output()
        .map_err(|source| BuildError::Spawn { program: ptxas.display().to_string(), source })?;
    let text = String::from_utf8_lossy(&out.stdout);
    let version = version_in(&text).map(str::to_owned);
    version.ok_or_else(|| BuildError::Ptxas(format!("no version in `{}`", text.trim())))
}

/// The word behind `V` in "Cuda compilation tools, release 13.0, V13.0.88".
fn version_in(text: &str) -> Option<&str> {
    let words = text.split([' ', ',', '\n']);
    words
        .filter_map(|word| word.strip_prefix('V'))
        .find(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Assembles a module and reads the report; `cubin` is where the machine code
/// goes.
///
/// # Errors
/// [`BuildError::Ptxas`] with ptxas' messages if it rejects the module.
pub fn report(
    ptxas: &Path,
    ptx: &Path,
    target: &str,
    cubin: &Path,
) -> Result<Vec<Usage>, BuildError> {
    let out = Command::new(ptxas)
        .args(["--verbose", "--gpu-name", target, "--output-file"])
        .arg(cubin)
        .arg(ptx)
        .output()
        .map_err(|source| BuildError::Spawn { program: ptxas.display().to_string(), source })?;
    let text =
        String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        return Err(BuildError::Ptxas(text));
    }
    Ok(parse(&text))
}

/// Assembles a module with tables of the lines of PTX that instructions come from. The machine code is
/// that of [`report`].
///
/// # Errors
/// [`BuildError::Ptxas`] with ptxas' messages if it rejects the module; [`BuildError::Spawn`].
pub fn with_lines(ptxas: &Path, ptx: &Path, target: &str, cubin: &Path) -> Result<(), BuildError> {
    let out = Command::new(ptxas)
        .args(["--generate-line-info", "--gpu-name", target, "--output-file"])
        .arg(cubin)
        .arg(ptx)
        .output()
        .map_err(|source| BuildError::Spawn { program: ptxas.display().to_string(), source })?;
    if out.status.success() {
        return Ok(());
    }
    Err(BuildError::Ptxas(String::from_utf8_lossy(&out.stderr).trim().to_owned()))
}

/// Reads the output of `ptxas --verbose`.
///
/// Frames and spills are given by function name, and of functions that a kernel
/// calls as well: those count for every kernel, since any of them may call one.
pub fn parse(text: &str) -> Vec<Usage> {
    let mut all: Vec<Usage> = Vec::new();
    let mut called = Usage::default();
    let mut properties_of = String::new();
    let mut serialized = Vec::new();
    for line in text.lines() {
        let between = |start: &str| line.split_once(start).map(|s| s.1.trim());
        if line.contains("instructions are serialized") {
            // "in the function" or "for the function", by the reason.
            serialized.extend(between(" the function '").and_then(|rest| rest.split('\'').next()));
            continue;
        }
        if let Some(rest) = between("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or("").to_string();
            properties_of.clone_from(&name);
            all.push(Usage { name, ..Usage::default() });
            continue;
        }
        if let Some(name) = between("Function properties for ") {
            properties_of = name.to_string();
            continue;
        }
        let Some(entry) = all.last_mut() else { continue };
        let usage = if properties_of == entry.name { entry } else { &mut called };
        // "16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads"
        // "Used 40 registers, used 1 barriers, 1024 bytes smem"
        for part in line.rsplit(':').next().unwrap_or("").split(',') {
            let words: Vec<&str> =
                part.split_whitespace().filter(|w| !w.eq_ignore_ascii_case("used")).collect();
            let Some(value) = words.first().and_then(|w| w.parse().ok()) else { continue };
            match words[1..].join(" ").as_str() {
                "bytes stack frame" => usage.stack = usage.stack.max(value),
                "bytes spill stores" => usage.spill_stores = usage.spill_stores.max(value),
                "bytes spill loads" => usage.spill_loads = usage.spill_loads.max(value),
                // Given once, for the entry, behind all properties.
                _ => {}
            }
        }
        if let Some(resources) = between(" : Used ") {
            let entry = all.last_mut().expect("an entry is open");
            for part in resources.split(',') {
                let words: Vec<&str> = part.split_whitespace().filter(|w| *w != "used").collect();
                let Some(value) = words.first().and_then(|w| w.parse().ok()) else { continue };
                match words[1..].join(" ").as_str() {
                    "registers" => entry.registers = value,
                    "barriers" => entry.barriers = value,
                    "bytes smem" => entry.shared = value,
                    _ => {}
                }
            }
        }
    }
    for usage in &mut all {
        usage.serialized = serialized.contains(&usage.name.as_str());
        usage.stack = usage.stack.max(called.stack);
        usage.spill_stores = usage.spill_stores.max(called.spill_stores);
        usage.spill_loads = usage.spill_loads.max(called.spill_loads);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_of_a_called_function_are_not_overwritten() {
        let text = "\
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
ptxas info    : Function properties for called
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Function properties for b
    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
ptxas info    : Function properties for other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";
        let all = parse(text);
        assert_eq!((all[0].registers, all[0].stack, all[0].spill_loads), (40, 8, 4));
        assert_eq!((all[1].registers, all[1].stack, all[1].spill_loads), (10, 24, 4));
    }

    #[test]
    fn products_that_run_one_by_one_are_known() {
        let text = "\
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to \
insufficient register resources for the wgmma pipeline in the function 'b'
ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to \
insufficient register resources for the function 'c'
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Used 40 registers
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Used 40 registers
ptxas info    : Compiling entry function 'c' for 'sm_90a'
ptxas info    : Used 40 registers
";
        let found: Vec<bool> = parse(text).iter().map(|usage| usage.serialized).collect();
        assert_eq!(found, [false, true, true]);
    }

    #[test]
    fn versions_are_found() {
        let text = "ptxas: NVIDIA (R) Ptx optimizing assembler\nBuilt on Wed_Aug_20\n\
                    Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0\n";
        assert_eq!(version_in(text), Some("13.0.88"));
        assert_eq!(version_in("Very new"), None);
    }

    #[test]
    fn the_report_is_read() {
        let text = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 3.2 ms
ptxas info    : Compiling entry function 'b' for 'sm_90a'
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers
";
        let all = parse(text);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].registers, all[0].barriers, all[0].shared), (40, 1, 1024));
        assert!(all[0].is_clean());
        assert_eq!((all[1].stack, all[1].spill_stores, all[1].spill_loads), (16, 8, 4));
        assert!(!all[1].is_clean());
    }
}
