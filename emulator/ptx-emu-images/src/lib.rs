//! PTX in what CUDA programs give the driver as modules: what the library that stands in for the
//! driver and the one that watches the driver have in common.

pub mod fatbin;
pub mod values;

use ptx_emu_core::{readable_name, syntax};

/// The target of PTX text.
#[must_use]
pub fn target(text: &str) -> String {
    syntax::targets(text).unwrap_or_default().into_iter().next().unwrap_or_default()
}

/// Chooses among several PTX modules that of the latest architecture which a machine accepts.
#[must_use]
pub fn latest(all: Vec<String>, accepts: impl Fn(&str) -> bool) -> Option<String> {
    let number = |target: &str| {
        let digits = target.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic);
        digits.parse::<u32>().unwrap_or(0)
    };
    let found = all.into_iter().map(|text| (target(&text), text));
    let accepted = found.filter(|(target, _)| accepts(target));
    accepted.max_by_key(|(target, _)| (number(target), target.len())).map(|(_, text)| text)
}

/// The name of the folder of a launch: its number, and the kernel's name without arguments.
#[must_use]
pub fn folder_name(number: u64, kernel: &str) -> String {
    let name: String = readable_name(kernel)
        .chars()
        .take_while(|c| *c != '(' && *c != '<')
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    format!("{number:04}-{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_that_runs_is_taken() {
        let text = |target: &str| format!(".version 9.0\n.target {target}\n.address_size 64\n");
        let all = ["sm_80", "sm_90a", "sm_90", "sm_100a"].map(text).to_vec();
        let gpu = ptx_emu_core::Gpu::h200();
        let found = latest(all.clone(), |target| gpu.accepts(target)).expect("one runs");
        assert_eq!(target(&found), "sm_90a");
        assert_eq!(latest(all, |_| false), None);
    }

    #[test]
    fn folders_are_named_after_kernels() {
        assert_eq!(folder_name(7, "_Z3addPfi"), "0007-add");
        assert_eq!(folder_name(12345, "a$b"), "12345-a-b");
    }
}
