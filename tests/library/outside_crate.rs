//! A crate outside the workspace that depends on `nvfp4` builds without CUDA and without a variable
//! of this workspace, and its program runs. The kernels are embedded: its build takes those of this
//! checkout if they are up to date, and compiles them otherwise.

use std::path::PathBuf;
use std::process::{Command, Output};

/// The program of the crate, as the front page of the documentation has it: one product, on the
/// device that its argument names.
const PROGRAM: &str = r#"
use nvfp4::ScaleLayout;
use nvfp4::device::Device;
use nvfp4::gemv::{GemvOptions, gemv};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or("auto".into());
    let device = Device::open(&name.parse()?)?;
    let kernels = device.kernels(None)?;
    let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
    let weight = quantize("w", &[0.5; 64 * 256], Dims::new(1, 64, 256)?, scale, layout)?;
    let input = quantize("x", &[1.0; 256], Dims::new(1, 1, 256)?, scale, layout)?;
    let result = gemv(&kernels, &input, &weight, GemvOptions::default())?;
    let near = result.values().iter().filter(|c| (**c - 128.0).abs() < 0.25).count();
    let (device, place) = (&device.choice().device, kernels.files().place());
    println!("{device}, kernels {place}: {near} of {}", result.values().len());
    for family in kernels.files().missing() {
        println!("{}", kernels.files().module(family).expect_err("is not in this program"));
    }
    Ok(())
}
"#;

/// Variables of this workspace, of cargo and of the test run. A dependent has none of them, except
/// those that say where cargo keeps what it downloads, and how.
fn is_ours(name: &str) -> bool {
    const KEPT: [&str; 5] =
        ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_"];
    let ours = ["CARGO", "CUDA_", "NVFP4_", "RUSTC", "RUSTFLAGS"];
    ours.iter().any(|prefix| name.starts_with(prefix))
        && !KEPT.iter().any(|prefix| name.starts_with(prefix))
}

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the system's cleaning of temporary folders.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    /// A new folder outside the workspace, so that cargo does not read the workspace's settings.
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("nvfp4-outside-{}", std::process::id()));
        std::fs::create_dir_all(path.join("src")).expect("a temporary folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("a file in a temporary folder");
    }
}

fn run(command: &mut Command) -> Output {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    output
}

#[test]
fn a_crate_outside_the_workspace_builds_and_runs() {
    let root = nvfp4_tests::root();
    let folder = Folder::new();
    folder.write(
        "Cargo.toml",
        &format!(
            "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\nnvfp4 = {{ path = {:?} }}\n\n\
             [profile.dev]\ndebug = false\n",
            root.join("host"),
        ),
    );
    folder.write("src/main.rs", PROGRAM);
    // The same versions as in the workspace, so that nothing else is downloaded.
    std::fs::copy(root.join("Cargo.lock"), folder.0.join("Cargo.lock")).expect("a lock file");

    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run(Command::new(cargo).args(["build", "--quiet"]).current_dir(&folder.0));

    let program = folder.0.join("target/debug/outside");
    let on = |device: &str| {
        let output = run(Command::new(&program).arg(device).current_dir(&folder.0));
        String::from_utf8(output.stdout).expect("text")
    };
    let check = |device: &str| {
        let output = on(device);
        let (result, missing) = output.split_once('\n').expect("lines");
        assert_eq!(result, format!("{device}, kernels in this program: 64 of 64"));
        // The default features leave out products with matrices and mixtures of experts, and the
        // errors name those that add them.
        let missing: Vec<&str> = missing.lines().collect();
        assert!(missing.len() > 10, "{missing:?}");
        for line in missing {
            let feature =
                if line.contains("no module of gemm_") { "`embed-gemm`" } else { "`embed-moe`" };
            assert!(line.contains(feature), "{line}");
        }
    };
    for machine in ["emu:rtx4090", "emu:h200", "emu:b200"] {
        check(machine);
    }
    match nvfp4::cuda::probe() {
        Ok(_) => check("cuda:0"),
        Err(error) => skipped::part("cuda:0", error),
    }
}
