//! The code that a GPU is given to load: machine code if the driver takes it, else PTX, with the
//! reason; and drivers too old for the code of some targets. `fake_driver` has a driver that refuses all
//! machine code, and lacks what its version does not have.

use std::fs;
use std::path::{Path, PathBuf};

use fp4_formats::stamp::STAMP;
use fp4_formats::{Arch, Family};
use nvfp4::cuda::CudaLaunch;
use nvfp4::device::{Device, DeviceRequest};
use nvfp4::modules::{Code, CodeRequest};
use nvfp4_manifest::{Callable, Cubin, FILE_NAME, File, Manifest, Module, Sources};

use crate::fake_driver::Driver;

/// PTX for a target with the one kernel `first`.
fn ptx(arch: Arch) -> String {
    format!(
        ".version {}\n.target {arch}\n.address_size 64\n\
         .visible .entry first(.param .align 8 .b8 p[24]) {{ ret; }}\n",
        arch.ptx_version()
    )
}

/// The code of the driver's refusal (`CUDA_ERROR_NO_BINARY_FOR_GPU`), which it has no name for.
const NO_BINARY: &str = "209";

/// A folder with the module of `first`, which has machine code for `targets` that is no more than a head,
/// and the module of `second`, which has none.
fn folder(arch: Arch, targets: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-modules").join(arch.name());
    fs::create_dir_all(&folder).expect("a folder");
    let module = |family: Family, kernel: &str, targets: &[&str]| {
        let text = nvfp4_manifest::stamped(&ptx(arch).replace("first", kernel), STAMP);
        let name = format!("{family}.ptx");
        fs::write(folder.join(&name), &text).expect("written");
        let cubins = targets.iter().map(|&target| {
            let (name, bytes) = (format!("{family}.{target}.cubin"), b"\x7fELF...");
            fs::write(folder.join(&name), bytes).expect("written");
            let (target, file) = (target.into(), File::of(name, bytes));
            Cubin { target, file, assembler: "ptxas 0.0".into() }
        });
        Module {
            family,
            ptx: File::of(name, text.as_bytes()),
            cubins: cubins.collect(),
            stamp: nvfp4_manifest::stamp(Some(STAMP)),
            compiler: "none".into(),
            sources: Sources::default(),
            kernels: vec![Callable { name: kernel.into(), parameters: 1, param_bytes: 24 }],
        }
    };
    let manifest = Manifest {
        arch,
        ptx_version: arch.ptx_version().to_string(),
        sources: String::new(),
        modules: vec![
            module(Family::Ceiling, "first", targets),
            module(Family::Gemv, "second", &[]),
        ],
    };
    let text = serde_json::to_string(&manifest).expect("JSON");
    fs::write(folder.join(FILE_NAME), text).expect("written");
    folder.parent().expect("a folder above").to_owned()
}

/// Returns what the ignored test `child` prints, which passes with a driver of its own library `library` and these settings;
/// none if there is no compiler for it.
fn printed(library: &str, child: &str, settings: &str) -> Option<String> {
    let output = Driver::compile(library)?.run(&format!("modules::{child}"), settings);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn machine_code_that_is_refused_is_replaced_by_ptx() {
    let child = "load_from_a_driver_that_refuses";
    let Some(text) = printed("modules", child, "13020,0,1,90,1") else { return };
    assert!(text.contains("the child has run"), "{text}");
}

#[test]
#[ignore = "the child of machine_code_that_is_refused_is_replaced_by_ptx"]
fn load_from_a_driver_that_refuses() {
    let device = Device::open(&DeviceRequest::Cuda(0)).expect("a driver");
    let dir = folder(Arch::Sm90a, &["sm_90a"]);
    let kernels = |code| device.kernels_as(Some(&dir), code).expect("a manifest");

    let auto = kernels(CodeRequest::Auto);
    auto.load(["first"]).expect("PTX is taken");
    let loaded = auto.loaded();
    assert_eq!((loaded.len(), loaded[0].family, loaded[0].code), (1, Family::Ceiling, Code::Ptx));
    let why = "the machine code was refused: the driver refused the module with ";
    assert!(loaded[0].reason.starts_with(why), "{}", loaded[0]);
    assert!(loaded[0].reason.contains(NO_BINARY), "{}", loaded[0]);
    auto.load(["second", "first", "second"]).expect("PTX is taken");
    let loaded = auto.loaded();
    assert_eq!((loaded.len(), loaded[1].family, loaded[1].code), (2, Family::Gemv, Code::Ptx));
    assert!(loaded[1].reason.contains("there was no ptxas"), "{}", loaded[1]);

    let ptx = kernels(CodeRequest::Ptx);
    ptx.load(["first"]).expect("PTX is taken");
    assert!(ptx.loaded()[0].reason.contains("NVFP4_KERNELS_CODE"), "{}", ptx.loaded()[0]);

    let cubin = kernels(CodeRequest::Cubin);
    let error = cubin.load(["first"]).expect_err("refused").to_string();
    assert!(error.contains(NO_BINARY), "{error}");
    let error = cubin.load(["second"]).expect_err("there is none").to_string();
    assert!(
        error.contains("there is no machine code of gemv for compute capability 9.0"),
        "{error}"
    );
    assert!(cubin.loaded().is_empty());
    println!("\nthe child has run");
}

/// A GPU of compute capability 8.7 is given no machine code of 8.6, though its number is lower.
#[test]
fn machine_code_of_other_gpus_is_not_tried() {
    let Some(text) = printed("others", "load_without_machine_code", "13020,0,1,87,1") else {
        return;
    };
    // PTX alone.
    assert_eq!(text.matches("call: cuModuleLoadDataEx").count(), 1, "{text}");
}

#[test]
#[ignore = "the child of machine_code_of_other_gpus_is_not_tried"]
fn load_without_machine_code() {
    let device = Device::open(&DeviceRequest::Cuda(0)).expect("a driver");
    let dir = folder(Arch::Sm80, &["sm_80", "sm_86", "sm_89"]);
    let cubin = device.kernels_as(Some(&dir), CodeRequest::Cubin).expect("a manifest");
    let error = cubin.load(["first"]).expect_err("there is none").to_string();
    assert!(error.contains("no machine code of ceiling for compute capability 8.7"), "{error}");
    let kernels = device.kernels_as(Some(&dir), CodeRequest::Auto).expect("a manifest");
    kernels.load(["first"]).expect("PTX is taken");
    let why = "no machine code of sm_80 loads on compute capability 8.7";
    assert_eq!(kernels.loaded()[0].reason, why);
}

/// The driver of CUDA 11.4 lists no parameters and has no launches with attributes.
#[test]
fn portable_code_asks_an_old_driver_for_nothing_newer() {
    let Some(text) = printed("old", "run_on_an_old_driver", "11040,0,1,86,1") else { return };
    let launches: Vec<&str> = text.lines().filter(|line| line.contains("cuLaunch")).collect();
    let [plain, cooperative] = launches[..] else { panic!("{text}") };
    assert!(plain.starts_with("call: cuLaunchKernel 0x"), "{plain}");
    assert!(cooperative.starts_with("call: cuLaunchCooperativeKernel 0x"), "{cooperative}");
    assert!(launches.iter().all(|line| line.ends_with(" first of 24 bytes")), "{text}");
}

#[test]
#[ignore = "the child of portable_code_asks_an_old_driver_for_nothing_newer"]
fn run_on_an_old_driver() {
    println!();
    let device = Device::open(&DeviceRequest::Cuda(0)).expect("a driver");
    assert_eq!(device.choice().arch, Arch::Sm80);
    let dir = folder(Arch::Sm80, &["sm_86"]);
    let kernels = device.kernels_as(Some(&dir), CodeRequest::Auto).expect("a driver of 11.4");
    kernels.load(["first"]).expect("PTX is taken");
    let gpu = device.gpu("a launch").expect("a GPU");
    let module = gpu.load(&ptx(Arch::Sm80)).expect("loads");
    let launch = CudaLaunch {
        entry: "first",
        grid: [1; 3],
        block: [32, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        overlaps: false,
        cooperative: false,
        params: &[0; 24],
    };
    for (cooperative, overlaps) in [(false, false), (true, false), (false, true)] {
        let launch = CudaLaunch { cooperative, overlaps, ..launch };
        // SAFETY: the fake driver runs nothing.
        let queued = unsafe { module.launch(&launch) }.map_err(|error| error.to_string());
        match overlaps {
            false => assert_eq!(queued, Ok(())),
            // The missing call is an error where it is needed.
            true => assert!(queued.expect_err("refused").contains("(36)")),
        }
    }
    let short = CudaLaunch { params: &[0; 16], ..launch };
    // SAFETY: as above.
    let error = unsafe { module.launch(&short) }.expect_err("refused").to_string();
    assert_eq!(error, "launch of first: params must be 24 bytes, got 16 bytes");
    let error = module.limits("second").expect_err("refused").to_string();
    assert!(error.starts_with("no kernel \"second\" in the module"), "{error}");
}

#[test]
fn an_old_driver_is_told_of_the_code_that_it_runs() {
    printed("hopper", "ask_an_old_driver_for_hopper", "12040,0,1,90,1");
}

#[test]
#[ignore = "the child of an_old_driver_is_told_of_the_code_that_it_runs"]
fn ask_an_old_driver_for_hopper() {
    let device = Device::open(&DeviceRequest::Cuda(0)).expect("a driver");
    let dir = folder(Arch::Sm90a, &[]);
    let error = device.kernels(Some(&dir)).expect_err("too old");
    let expected = "cuda:0 would run code for sm_90a, whose PTX needs a driver for CUDA 12.7 or newer, \
                    got one for CUDA 12.4; code for sm_80 runs with it (`Device::with_arch`, \
                    `--arch sm_80`)";
    assert_eq!((error.to_string().as_str(), error.exit_code()), (expected, 2));
    let dir = folder(Arch::Sm80, &[]);
    let portable = device.with_arch(Arch::Sm80).expect("it runs that");
    let kernels = portable.kernels(Some(&dir)).expect("a driver of 12.4");
    kernels.load(["first"]).expect("PTX is taken");
    // Without a request, the emulator takes the place of a GPU whose driver is too old.
    let auto = Device::open(&DeviceRequest::Auto);
    let why = "the driver is for CUDA 12.4, code for sm_90a needs one for CUDA 12.7 or newer";
    match auto {
        Ok(device) => {
            let choice = device.choice();
            assert!(choice.device == "emu:h200" && choice.reason.starts_with(why), "{choice}");
        }
        Err(error) => assert!(error.to_string().contains(why), "{error}"),
    }
}
