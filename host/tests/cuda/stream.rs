//! A caller's stream and memory, as a driver sees them: which calls there are, on which stream.
//! `fake_driver` has the driver; kernels do nothing on it.

use nvfp4::device::ResidentClusters;
use std::ffi::c_void;
use std::path::Path;
use std::ptr;

use fp4_formats::quantize::Recipe;
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{Arch, FloatType, ScaleLayout, TensorFamily};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::cuda::CudaError;
use nvfp4::device::{Device, DeviceRequest};
use nvfp4::error::Result;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Gemm, GemmOptions, Repacked, ResultBuffers, Vectors,
    Workspace,
};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{Format, QuantizeOptions, TensorScale, quantize};
use nvfp4::tensor::Dims;

use crate::fake_driver::Driver;

const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/kernels");

/// A stream of the primary context for the fake driver, and one of another context.
const STREAM: usize = 0x77;
const FOREIGN: usize = 0x9077;

fn stream(number: usize) -> *mut c_void {
    ptr::without_provenance_mut(number)
}

/// The lines that the child printed between `begin: NAME` and `end: NAME`.
fn between<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let (begin, end) = (format!("begin: {name}"), format!("end: {name}"));
    let lines: Vec<&str> = text.lines().collect();
    let at = |mark: &str| {
        let found = lines.iter().position(|line| *line == mark);
        found.unwrap_or_else(|| panic!("no `{mark}` in\n{text}"))
    };
    lines[at(&begin) + 1..at(&end)].to_vec()
}

#[test]
fn all_work_goes_to_the_callers_stream_and_launches_only_launch() {
    for (arch, capability) in [
        (Arch::Sm80, 89),
        (Arch::Sm90a, 90),
        (Arch::Sm100a, 100),
        (Arch::Sm100f, 103),
        (Arch::Sm120f, 120),
    ] {
        if !Path::new(KERNELS).join(arch.name()).join("manifest.json").exists() {
            skipped::part(arch, "not built; `cargo xtask build-kernels` does it");
            continue;
        }
        let Some(driver) = Driver::compile(arch.name()) else { return };
        let answers = format!("13020,0,1,{capability},1");
        let output = driver.run("stream::launch_on_a_callers_stream", &answers);
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arch}:\n{text}\n{errors}");

        let asked = |line: &&str| line.starts_with("call: cuOccupancyMaxActiveClusters");
        let sizes = match arch.tensor() {
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => 0,
            TensorFamily::Tcgen05 => ResidentClusters::SIZES.len(),
        };
        assert_eq!(text.lines().filter(asked).count(), sizes, "{arch}");
        assert_eq!(between(&text, "view"), [] as [&str; 0], "{arch}");
        assert_eq!(
            between(&text, "write and read"),
            [
                "call: cuMemcpyHtoDAsync 0x77",
                "call: cuStreamSynchronize 0x77",
                "call: cuMemcpyDtoHAsync 0x77",
                "call: cuStreamSynchronize 0x77",
            ],
            "{arch}"
        );
        assert_eq!(between(&text, "workspace"), ["call: cuMemsetD8Async 0x77"], "{arch}");
        let all = between(&text, "launches");
        let encodes = |line: &&&str| **line == "call: cuTensorMapEncodeTiled";
        assert_eq!(
            all.iter().any(|line| encodes(&line)),
            matches!(arch.tensor(), TensorFamily::Wgmma | TensorFamily::Tcgen05),
            "{arch}: {all:#?}"
        );
        let launches: Vec<&str> = all.iter().filter(|line| !encodes(line)).copied().collect();
        // Tensor maps are encoded once per binding, and kernels are looked up once.
        assert_eq!(between(&text, "launches again"), launches, "{arch}");
        let launched = |line: &&&str| line.starts_with("call: cuLaunchKernelEx 0x77 ");
        // The largest magnitude, the quantiser; what prepares activations, where anything does; the product.
        let prepared = arch.tensor() != TensorFamily::MmaSyncScaled;
        let least = 3 + usize::from(prepared);
        assert!(launches.iter().filter(launched).count() >= least, "{arch}: {launches:#?}");
        let rest: Vec<_> = launches.iter().filter(|line| !launched(line)).collect();
        // The word that the largest magnitude is sought in.
        assert_eq!(rest, [&"call: cuMemsetD8Async 0x77"], "{arch}");
        assert_eq!(between(&text, "dropping views"), [] as [&str; 0], "{arch}");
        assert!(!text.contains("cuStreamDestroy 0x77"), "{arch}: the stream is the caller's");
    }
}

#[test]
#[ignore = "the child of all_work_goes_to_the_callers_stream_and_launches_only_launch"]
fn launch_on_a_callers_stream() {
    println!();
    child().unwrap_or_else(|error| panic!("{error}"));
}

fn marked<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("begin: {name}");
    let result = work()?;
    println!("end: {name}");
    Ok(result)
}

/// A piece of memory of the caller's, which the fake driver takes for a device's.
#[derive(Clone)]
#[repr(align(256))]
struct Piece([u8; 256]);

/// Bytes of the caller's memory, of which the workspace is the rest behind the other views.
const FOREIGN_BYTES: usize = 8 << 20;
const WORKSPACE_AT: usize = 16 << 10;

fn child() -> Result<()> {
    let device = Device::open(&DeviceRequest::Cuda(0))?;
    let kernels = device.kernels(Some(Path::new(KERNELS)))?;

    // SAFETY: the driver takes any number for a stream.
    let error = unsafe { device.with_stream(stream(FOREIGN)) }.expect_err("another context");
    let expected = "launching on a stream of the caller's: the stream's context must be the \
                    primary one of cuda:0, got another";
    assert_eq!((error.to_string().as_str(), error.exit_code()), (expected, 2));

    // SAFETY: as above.
    let kernels = unsafe { kernels.with_stream(stream(STREAM))? };
    let device = kernels.device();
    let gpu = device.gpu("streams")?;
    assert_eq!(gpu.stream(), stream(STREAM));

    // As many tokens as have their activations laid out or decoded before.
    let [m, n, k] = [40, 48, 96];
    let mut memory = vec![Piece([0; 256]); FOREIGN_BYTES / size_of::<Piece>()];
    let address = memory.as_mut_ptr() as u64;
    let [input, out, workspace] = marked("view", || {
        // SAFETY: parts of `memory` that do not overlap, which outlives the views.
        unsafe {
            Ok([
                DeviceBuffer::from_raw(device, "x", address, m * k * 2)?,
                DeviceBuffer::from_raw(device, "c", address + (8 << 10), m * n * 2)?,
                DeviceBuffer::from_raw(
                    device,
                    "workspace",
                    address + WORKSPACE_AT as u64,
                    FOREIGN_BYTES - WORKSPACE_AT,
                )?,
            ])
        }
    })?;
    let bytes: Vec<u8> = (0..m * k * 2).map(|at| at as u8 & 0x3f).collect();
    marked("write and read", || {
        input.write(&bytes)?;
        assert_eq!(input.read()?, bytes);
        Ok(())
    })?;
    let workspace = marked("workspace", || Workspace::over(workspace))?;

    let dims = Dims::new(1, n, k)?;
    let weight =
        quantize("w", &vec![0.5; n * k], dims, TensorScale::FromAmax, ScaleLayout::Linear)?;
    let kind = ActivationKind::Blocks { format: Format::Nvfp4, layout: ScaleLayout::Linear };
    let weights = Repacked::for_device(device, &weight, kind)?.upload(device)?;
    let options = QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo))
        .scale(TensorScale::FromAmax)
        .layout(ScaleLayout::Linear);
    let plain = Input::plain(FloatType::Bf16);
    let quantizer = Quantizer::new(&kernels, m, k, plain, &options)?;
    let product = Gemm::new(&kernels, &weights, [1, m], kind, &GemmOptions::default())?;
    // Nothing prepares activations on sm_120f, so that the workspace may be empty.
    assert!(product.workspace_bytes() <= workspace.len());
    let before = device.allocations();
    for name in ["launches", "launches again"] {
        marked(name, || {
            quantizer.launch(&input, None)?;
            let (codes, scales) = (quantizer.codes(), quantizer.scales());
            let a = ActivationBuffers::blocks(codes, scales);
            let result = ResultBuffers::Floats(&out);
            product.launch(a, &weights, result, Some(&workspace), Vectors::default())
        })?;
    }
    assert_eq!(device.allocations(), before);

    // Calls in which a graph would keep an address of the host are refused while one is recorded.
    let recorded = gpu.capture(|| {
        let refused = input.write(&bytes).expect_err("the stream is being recorded").to_string();
        let expected = "write to device memory: the stream must be outside of a recording into \
                        a graph, got inside one";
        assert_eq!(refused, expected);
        input.read().expect_err("the stream is being recorded");
        Err::<(), CudaError>(CudaError::NoSuchDevice { ordinal: 0, count: 0 })
    });
    assert!(matches!(recorded, Err(CudaError::NoSuchDevice { .. })));

    marked("dropping views", || {
        drop((input, out, workspace));
        Ok(())
    })?;
    assert!(memory.iter().flat_map(|piece| piece.0).take(bytes.len()).eq(bytes));
    Ok(())
}
