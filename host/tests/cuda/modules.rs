//! The code that a GPU is given to load: machine code if the driver takes it, else PTX, with the
//! reason. `fake_driver` has a driver that refuses all machine code.

use std::fs;
use std::path::{Path, PathBuf};

use fp4_formats::stamp::STAMP;
use fp4_formats::{Arch, Family};
use nvfp4::device::{Device, DeviceRequest};
use nvfp4::modules::{Code, CodeRequest};
use nvfp4_manifest::{Callable, Cubin, FILE_NAME, File, Manifest, Module, Sources};

use crate::fake_driver::Driver;

const PTX: &str = ".version 9.0
.target sm_90a
.address_size 64
.visible .entry first(.param .align 8 .b8 p[24]) { ret; }
";

/// The code of the driver's refusal (`CUDA_ERROR_NO_BINARY_FOR_GPU`), which it has no name for.
const NO_BINARY: &str = "209";

/// A folder with the module of `first`, which has machine code that is no more than a head, and
/// the module of `second`, which has none.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-modules/sm_90a");
    fs::create_dir_all(&folder).expect("a folder");
    let module = |family: Family, kernel: &str, cubin: Option<&[u8]>| {
        let text = nvfp4_manifest::stamped(&PTX.replace("first", kernel), STAMP);
        let names = [format!("{family}.ptx"), format!("{family}.cubin")];
        fs::write(folder.join(&names[0]), &text).expect("written");
        let [ptx, cubin_name] = names;
        let cubin = cubin.map(|bytes| {
            fs::write(folder.join(&cubin_name), bytes).expect("written");
            Cubin { file: File::of(cubin_name, bytes), assembler: "ptxas 0.0".into() }
        });
        Module {
            family,
            ptx: File::of(ptx, text.as_bytes()),
            cubin,
            stamp: nvfp4_manifest::stamp(Some(STAMP)),
            compiler: "none".into(),
            sources: Sources::default(),
            kernels: vec![Callable { name: kernel.into(), parameters: 1 }],
        }
    };
    let manifest = Manifest {
        arch: Arch::Sm90a,
        ptx_version: "9.0".into(),
        sources: String::new(),
        modules: vec![
            module(Family::Ceiling, "first", Some(b"\x7fELF...")),
            module(Family::Gemv, "second", None),
        ],
    };
    let text = serde_json::to_string(&manifest).expect("JSON");
    fs::write(folder.join(FILE_NAME), text).expect("written");
    folder.parent().expect("a folder above").to_owned()
}

#[test]
fn machine_code_that_is_refused_is_replaced_by_ptx() {
    let Some(driver) = Driver::compile("modules") else { return };
    let output = driver.run("modules::load_from_a_driver_that_refuses", "13020,0,1,90,1");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("the child has run"), "{text}");
}

#[test]
#[ignore = "the child of machine_code_that_is_refused_is_replaced_by_ptx"]
fn load_from_a_driver_that_refuses() {
    let device = Device::open(&DeviceRequest::Cuda(0)).expect("a driver");
    let dir = folder();
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
    assert!(error.contains("there is no machine code of gemv"), "{error}");
    assert!(cubin.loaded().is_empty());
    println!("\nthe child has run");
}
