//! Kernels that lack a synchronisation must be noticed: what orders boxes of results.

use crate::OUTPUTS;
use crate::case::{Case, config, load};
use fp4_formats::gemm::blackwell::prepare::{CODES_NAME, SCALES_NAME};
use fp4_formats::{Arch, Family};
use ptx_emu::{Module, Schedule};
use std::collections::BTreeMap;

/// What the diagnoses name.
const STORE: &str = "cp.async.bulk.tensor.3d.global.shared::cta";

/// Modules of altered kernels.
pub struct Altered(BTreeMap<Family, Module>);

impl Altered {
    /// The module that has a kernel.
    pub fn module(&self, entry: &str) -> &Module {
        &self.0[&Family::of_kernel(Arch::Sm100a, entry).expect("a kernel")]
    }
}

/// The kernels `entries` alone, with `to` in place of each `from`.
pub fn without(entries: &[&str], from: &str, to: &str) -> Altered {
    let families = entries.iter().map(|entry| {
        let family = Family::of_kernel(Arch::Sm100a, entry).expect("a kernel");
        (family, altered(&nvfp4_tests::ptx(Arch::Sm100a, entry), entries, from, to))
    });
    Altered(families.collect())
}

fn altered(text: &str, entries: &[&str], from: &str, to: &str) -> Module {
    const ENTRY: &str = "\n.visible .entry ";
    let mut parts = text.split(ENTRY);
    let mut kept = parts.next().expect("a head").to_string();
    for part in parts {
        let end = part.find("\n}").expect("a body") + 2;
        let name = part.split('(').next().expect("a name");
        if entries.contains(&name) {
            assert!(!name.starts_with("gemm_nv") || part[..end].contains(from), "{name}: {from}");
            kept += ENTRY;
            kept += &part[..end].replace(from, to);
        }
        kept += &part[end..];
    }
    load(&kept)
}

/// Each step from a thread's results to memory, left out or weakened, is diagnosed: under
/// most schedules, or where the copy engine is late enough to outlive its CTA.
#[test]
fn boxes_that_are_not_ordered_are_found() {
    let name = "gemm_nvfp4_128x128";
    let read = "cp.async.bulk.wait_group.read";
    for (what, from, to, diagnosis, least) in [
        ("the proxy fence", "fence.proxy.async.shared::cta;", "", "fence.proxy.async", 5),
        ("waiting for reads", &format!("{read} 1;"), "", STORE, 5),
        ("waiting long enough", &format!("{read} 1;"), &format!("{read} 2;"), STORE, 5),
        ("waiting at the end", "cp.async.bulk.wait_group 0;", "", STORE, 1),
    ] {
        let altered = without(&[name, CODES_NAME, SCALES_NAME], from, to);
        let schedules = [Schedule::Lazy].into_iter().chain((0..7).map(Schedule::Random));
        let found = schedules
            .enumerate()
            .filter(|&(i, schedule)| {
                let mut case = Case::new(config(name), [250, 256, 272, 1]);
                case.output = OUTPUTS[i % 3];
                (case.schedule, case.clusters) = (schedule, 1);
                case.run(&|entry| altered.module(entry)).is_err_and(|error| {
                    let text = error.to_string();
                    assert!(text.contains(diagnosis), "{what}: {text}");
                    true
                })
            })
            .count();
        assert!(found >= least, "without {what}: {found} of 8 schedules");
    }
}
