//! Instructions that the PTX of the kernels must not contain, whatever they compute.

use fp4_formats::arch::{PtxVersion, TensorFamily};
use fp4_formats::gemm::table::kernels;
use fp4_formats::{Arch, Family};
use nvfp4::kernels::KernelFiles;
use nvfp4_tests::{kernels_dir, machine, mutation};
use ptx_emu::mutate::{Mutant, list};
use ptx_emu::{Gpu, Module};
use std::collections::BTreeMap;

/// The text of every module, and what it is of.
fn modules() -> Vec<(Arch, Family, String)> {
    let of = |arch: Arch| {
        let files = KernelFiles::find(arch, Some(&kernels_dir())).expect("kernels are built");
        let modules = files.modules().expect("all are compiled");
        modules.into_iter().map(move |module| {
            let text = files.ptx(&module).expect("the file is there");
            (arch, module.family, text)
        })
    };
    Arch::ALL.into_iter().flat_map(of).collect()
}

/// The entries of a module: name and instructions.
fn entries(text: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    text.split(".visible .entry ").skip(1).map(|entry| {
        let name = entry.split(['(', '\n']).next().expect("a name");
        (name, entry.lines().map(str::trim).collect())
    })
}

/// Instructions among `lines` that begin with one of `opcodes`, behind a predicate or not.
fn found<'a>(lines: &[&'a str], opcodes: &[&str]) -> Vec<&'a str> {
    let opcode = |line: &str| match line.strip_prefix('@') {
        Some(guarded) => guarded.split_once(' ').map_or("", |(_, rest)| rest).trim().to_owned(),
        None => line.to_owned(),
    };
    let matches = |line: &&&str| opcodes.iter().any(|prefix| opcode(line).starts_with(prefix));
    lines.iter().filter(matches).copied().collect()
}

#[test]
fn instructions_are_found_with_and_without_predicates() {
    let lines = ["@%p1 call.uni f, ();", "div.u32 %r1, %r2, %r3;", "// call", "div.rn.f32 %f1;"];
    assert_eq!(found(&lines, &["call"]), [lines[0]]);
    assert_eq!(found(&lines, &["div.u", "rem.u"]), [lines[1]]);
    let text = ".visible .entry a(\n\tret;\n}\n.visible .entry b()\n{\n\ttrap;\n}";
    let names: Vec<_> =
        entries(text).map(|(name, lines)| (name, lines.contains(&"trap;"))).collect();
    assert_eq!(names, [("a", false), ("b", true)]);
}

/// A panic is a call of a function that traps, and reserves a stack: no kernel has one, nor any
/// other call. Kernels that wait for flags of other CTAs, or for partial sums that show by themselves that they are there, and
/// only those, trap where that has no end.
#[test]
fn no_kernel_panics() {
    for (arch, family, text) in modules() {
        let panics =
            text.lines().filter(|line| line.contains("panic") || line.starts_with(".func"));
        assert_eq!(panics.collect::<Vec<_>>(), [""; 0], "{arch} {family}");
        for (name, lines) in entries(&text) {
            assert_eq!(found(&lines, &["call"]), [""; 0], "{arch} {name}");
            let marked = found(&lines, &["st.relaxed.gpu.global.v4.b32"]).len();
            let waits = found(&lines, &["ld.acquire.gpu.global"]).len() + marked.min(1);
            assert_eq!(found(&lines, &["trap"]).len(), waits, "{arch} {name}");
        }
    }
}

/// Each tensor map is prefetched once.
#[test]
fn tensor_maps_are_prefetched_once() {
    let mut maps = Vec::new();
    for (arch, _, text) in modules() {
        for (name, lines) in entries(&text) {
            let count = found(&lines, &["prefetch.tensormap"]).len();
            // The operands' codes and scales, and the result; on sm_90a the activations.
            let most = match arch.tensor() {
                TensorFamily::MmaSync | TensorFamily::MmaSyncScaled => 0,
                TensorFamily::Wgmma => 1,
                TensorFamily::Tcgen05 => 5,
            };
            assert!(count <= most, "{arch} {name}: {count} maps");
            maps.push(count);
        }
    }
    assert!(maps.contains(&1) && maps.contains(&5));
}

/// No product divides integers: the host makes reciprocals of what tiles and steps are divided by.
/// Other kernels divide when they begin, and not by tile.
#[test]
fn products_do_not_divide() {
    let mut products = 0;
    for (arch, _, text) in modules() {
        for (name, lines) in entries(&text) {
            let is = kernels(arch.tensor()).iter().any(|kernel| kernel.name == name);
            let divisions = found(&lines, &["div.u", "div.s", "rem.u", "rem.s"]);
            assert!(!is || divisions.is_empty(), "{arch} {name}: {divisions:?}");
            products += usize::from(is);
        }
    }
    assert_eq!(
        products,
        Arch::ALL.into_iter().map(|arch| kernels(arch.tensor()).len()).sum::<usize>()
    );
}

/// Each line of the list of mutants that are no faults names one that there is.
#[test]
fn known_mutants_are_there() {
    let modules = modules();
    let kernels = modules.iter().flat_map(|(arch, _, text)| {
        entries(text).map(move |(name, _)| (machine(*arch), text.as_str(), name))
    });
    let kernels: Vec<(Gpu, &str, &str)> = kernels.collect();
    // Only of those that a line needs.
    let mut listed: BTreeMap<usize, Vec<Mutant>> = BTreeMap::new();
    for known in mutation::equivalents() {
        let begins = known.kernel.split('*').next().unwrap_or_default();
        let mut of_name = (0..kernels.len()).filter(|&at| kernels[at].2.starts_with(begins));
        let names_one = of_name.any(|at| {
            let (gpu, text, name) = &kernels[at];
            let mutants = listed.entry(at).or_insert_with(|| {
                list(text, name, gpu).unwrap_or_else(|error| panic!("{name}: {error}"))
            });
            mutants.iter().any(|mutant| known.covers(name, mutant))
        });
        assert!(names_one, "{known:?}");
    }
}

/// Returns `text` with another `.version`; all else is as it was.
fn labelled(text: &str, from: PtxVersion, to: PtxVersion) -> String {
    let line = format!(".version {from}\n");
    assert_eq!(text.matches(&line).count(), 1, "a module begins with {line}");
    text.replacen(&line, &format!(".version {to}\n"), 1)
}

/// Every module says its target, and the lowest version of PTX that has all instructions of the target's
/// modules: the version decides how old a driver may be. With an earlier one, the emulator refuses the first
/// instruction that is not in it.
#[test]
fn modules_say_their_target_and_the_lowest_version() {
    let mut texts: BTreeMap<Arch, Vec<(Family, String)>> = BTreeMap::new();
    for (arch, family, text) in modules() {
        texts.entry(arch).or_default().push((family, text));
    }
    for arch in Arch::ALL {
        let (written, gpu, texts) = (arch.ptx_version(), machine(arch), &texts[&arch]);
        let refused = |version: PtxVersion| {
            texts.iter().find_map(|(family, text)| {
                assert_eq!(text.matches(&format!(".target {arch}\n")).count(), 1, "{family}");
                let error = Module::load(&labelled(text, written, version), &gpu).err()?;
                Some(format!("{family}: {error}"))
            })
        };
        assert_eq!(refused(written), None, "{arch}");
        let before = PtxVersion::ALL.into_iter().rfind(|&version| version < written);
        let before = before.expect("an earlier version");
        let reason = refused(before).unwrap_or_else(|| panic!("{arch}: {before} has everything"));
        assert!(reason.contains("required") && reason.contains(&written.to_string()), "{reason}");
    }
}
