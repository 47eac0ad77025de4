//! Builds compile the modules that they are asked for and no others. The kernel is that which only reads,
//! which takes the least time to compile.

use fp4_formats::{Arch, Family};
use nvfp4_kernels_build::{Inventory, Progress, Workshop};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const ARCH: Arch = Arch::Sm90a;
const FAMILY: Family = Family::Ceiling;

/// A workshop whose modules go to a temporary folder, and the summaries of its builds.
struct Case {
    folder: PathBuf,
    workshop: Workshop,
    summaries: Arc<Mutex<Vec<String>>>,
}

impl Drop for Case {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the system's cleaning of temporary folders.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Case {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("nvfp4-{name}-{}", std::process::id()));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a checkout");
        let summaries = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&summaries);
        let checkout = Workshop::of_checkout(root, move |progress| {
            if let Progress::End { summary } = progress {
                let compiled = summary.split(" in ").next().unwrap_or(summary).to_owned();
                told.lock().expect("no thread panics").push(compiled);
            }
        });
        let workshop = Workshop { kernels: folder.clone(), ..checkout };
        Self { folder, workshop, summaries }
    }

    fn build(&self, families: &[Family]) {
        self.workshop.build(&[ARCH], families, false, None).expect("the kernel compiles");
    }

    /// Takes the summaries of the builds since the last call.
    fn compiled(&self) -> Vec<String> {
        std::mem::take(&mut *self.summaries.lock().expect("no thread panics"))
    }

    fn listed(&self) -> Vec<Family> {
        let manifest = self.workshop.manifest(ARCH).expect("a manifest");
        manifest.modules.iter().map(|module| module.family).collect()
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.workshop.folder(ARCH)).expect("a folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Makes the manifest say that a module was made of other sources.
    fn make_stale(&self) {
        let path = self.workshop.folder(ARCH).join(nvfp4_manifest::FILE_NAME);
        let mut manifest = self.workshop.manifest(ARCH).expect("a manifest");
        manifest.modules[0].sources.digest = "other sources".into();
        let text = serde_json::to_string(&manifest).expect("JSON");
        std::fs::write(path, text).expect("written");
    }

    fn inventory(&self) -> Inventory {
        let all = self.workshop.inventory(&[ARCH], &Family::ALL).expect("the sources are there");
        all.into_iter().next().expect("one architecture")
    }
}

#[test]
fn only_the_modules_that_are_asked_for_are_compiled() {
    let case = Case::new("only");
    assert_eq!(case.inventory().compiled, []);
    case.build(&[FAMILY]);
    assert_eq!(case.compiled(), ["compiled 1 modules"]);
    assert_eq!(
        (case.listed(), case.files()),
        (vec![FAMILY], vec!["ceiling.ptx".to_owned(), "manifest.json".to_owned(),])
    );
    let inventory = case.inventory();
    assert_eq!(inventory.compiled, [FAMILY]);
    assert_eq!(inventory.missing.len() + 1, Family::of(ARCH).count());

    case.build(&[FAMILY]);
    assert_eq!(case.compiled(), [""; 0], "it is there");

    case.make_stale();
    assert_eq!(case.inventory().compiled, []);
    case.build(&[FAMILY]);
    assert_eq!(case.compiled(), ["compiled 1 modules"], "a stale module is compiled again");

    // A stale one that nobody asks for goes.
    case.make_stale();
    case.workshop.sweep(&[ARCH]).expect("the folder can be written");
    assert_eq!((case.listed(), case.files()), (vec![], vec!["manifest.json".to_owned()]));
    assert_eq!(case.compiled(), [""; 0]);
}

#[test]
fn builds_that_run_at_once_compile_a_module_once() {
    let case = Case::new("at-once");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| case.build(&[FAMILY]));
        }
    });
    // One that began after another was over had nothing to do.
    let mut compiled = case.compiled();
    compiled.sort();
    compiled.retain(|summary| summary != "compiled 0 modules");
    assert_eq!(compiled, ["compiled 1 modules"]);
    assert_eq!(case.listed(), [FAMILY]);
}

/// Writes a manifest in which a kernel's resources are those of one target, as builds wrote it before a
/// module could have machine code for several.
fn write_old_manifest(case: &Case) {
    let path = case.workshop.folder(ARCH).join(nvfp4_manifest::FILE_NAME);
    let manifest = case.workshop.manifest(ARCH).expect("a manifest");
    let mut manifest = serde_json::to_value(&manifest).expect("JSON");
    manifest["modules"][0]["kernels"][0]["resources"] = serde_json::json!({
        "name": "ceiling_read", "registers": 48, "stack": 0, "spill_stores": 0, "spill_loads": 0,
        "shared": 0, "barriers": 0, "serialized": false,
    });
    std::fs::write(path, manifest.to_string()).expect("written");
    assert!(case.workshop.manifest(ARCH).is_err(), "it can be read");
}

#[test]
fn a_manifest_of_another_version_counts_as_absent() {
    let case = Case::new("version");
    case.build(&[FAMILY]);
    assert_eq!(case.workshop.modules(ARCH).len(), 1);
    assert_eq!(case.compiled(), ["compiled 1 modules"]);

    write_old_manifest(&case);
    assert_eq!((case.workshop.modules(ARCH).len(), case.inventory().compiled), (0, vec![]));
    case.build(&[FAMILY]);
    assert_eq!(case.compiled(), ["compiled 1 modules"]);
    assert_eq!(case.listed(), [FAMILY]);

    write_old_manifest(&case);
    case.workshop.sweep(&[ARCH]).expect("the folder can be written");
    assert_eq!((case.listed(), case.files()), (vec![], vec!["manifest.json".to_owned()]));
}
