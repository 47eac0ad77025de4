//! Device memory of the caller's, and what becomes of a workspace, on the emulator of both
//! architectures.
//!
//! Launches need the compiled kernels (`cargo xtask build-kernels`); without them, the test
//! leaves them out.

use fp4_formats::arch::TensorFamily;
use std::path::Path;
use std::ptr;

use fp4_formats::gemm::Split;
use fp4_formats::quantize::Recipe;
use fp4_formats::recipe::Nvfp4Recipe;
use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::dequantize::{Dequantizer, Multiplier};
use nvfp4::device::{Device, DeviceError, Kernels};
use nvfp4::error::Error;
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Gemm, GemmOptions, GemmOverrides, Repacked, ResultBuffers,
    Vectors, Workspace,
};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{Format, QuantizeOptions, TensorScale, quantize};
use nvfp4::tensor::Dims;

const MACHINES: [&str; 3] = ["emu:h200", "emu:b200", "emu:rtx5090"];

fn open(name: &str) -> Device {
    Device::open(&name.parse().expect("known")).expect("opens")
}

/// A view on the emulator, where nothing is unsafe about it.
fn view(device: &Device, address: u64, len: usize) -> Result<DeviceBuffer, Error> {
    // SAFETY: the emulator checks every access.
    unsafe { DeviceBuffer::from_raw(device, "view", address, len) }
}

#[test]
fn contents_can_be_replaced_as_a_whole() {
    for name in MACHINES {
        let device = open(name);
        let buffer = DeviceBuffer::poisoned(&device, "x", 4).expect("memory");
        buffer.read().expect_err("nothing was written");
        buffer.write(&[1, 2, 3, 4]).expect("fits");
        assert_eq!(buffer.read().expect("written"), [1, 2, 3, 4]);
        for bytes in [&[0; 3][..], &[0; 5]] {
            let error = buffer.write(bytes).expect_err("another size");
            let expected =
                format!("bytes to write must be 4, the buffer's, but is {}", bytes.len());
            assert_eq!((error.to_string(), error.exit_code()), (expected, 2));
        }
        assert_eq!(
            DeviceBuffer::zeroed(&device, "z", 3).expect("memory").read().ok(),
            Some(vec![0; 3])
        );
    }
}

#[test]
fn views_share_memory_and_free_nothing() {
    for name in MACHINES {
        let device = open(name);
        let owner = DeviceBuffer::upload(&device, "owner", &[7; 64]).expect("memory");
        let allocations = device.allocations();
        let part = view(&device, owner.address() + 16, 32).expect("a part");
        part.write(&[9; 32]).expect("fits");
        assert_eq!(device.allocations(), allocations);
        drop(part);
        let whole = view(&device, owner.address(), 64).expect("the whole");
        assert_eq!(whole.read().expect("written"), [[7; 16], [9; 16], [9; 16], [7; 16]].concat());
        drop(owner);
        assert!(matches!(whole.read(), Err(Error::Device(DeviceError::Memory(_)))));
    }
}

#[test]
fn what_is_no_memory_for_kernels_is_refused() {
    for name in MACHINES {
        let device = open(name);
        let owner = DeviceBuffer::upload(&device, "owner", &[7; 64]).expect("memory");
        let at = owner.address();
        for (address, len, expected) in [
            (0, 16, "address of `view` must be a multiple of 16, not 0, but is 0x0".into()),
            (
                at + 8,
                16,
                format!("address of `view` must be a multiple of 16, not 0, but is {:#x}", at + 8),
            ),
            (at, 0, "bytes of `view` must be at least 1, but is 0".into()),
        ] {
            let error = view(&device, address, len).expect_err("no memory for kernels");
            assert_eq!((error.to_string(), error.exit_code()), (expected, 2));
        }
        for (address, len) in [(at, 65), (at + 48, 17), (at + 64, 1), (16, 16), (at, usize::MAX)] {
            let error = view(&device, address, len).expect_err("not in an allocation");
            assert!(matches!(error, Error::Device(DeviceError::Memory(_))), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        let part = view(&device, at + 16, 32).expect("a part");
        let error = Workspace::over(part).expect_err("not aligned for a workspace");
        let expected =
            format!("address of the workspace must be a multiple of 256, but is {:#x}", at + 16);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn the_emulator_has_no_streams() {
    for name in MACHINES {
        // SAFETY: null is a stream.
        let error = unsafe { open(name).with_stream(ptr::null_mut()) }.expect_err("no streams");
        assert!(matches!(&error, Error::Device(DeviceError::NeedsGpu { .. })), "{error}");
        let expected =
            format!("launching on a stream of the caller's needs a GPU; the device is {name}");
        assert_eq!((error.to_string(), error.exit_code()), (expected, 2));
    }
}

/// Both machines with their kernels; fewer where there are none.
fn machines() -> Vec<Kernels> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernels");
    let kernels = |name| match open(name).kernels(Some(&dir)) {
        Ok(kernels) => Some(kernels),
        Err(error) => {
            skipped::part(name, error);
            None
        }
    };
    MACHINES.into_iter().filter_map(kernels).collect()
}

fn on_another_device<T>(what: &str, result: Result<T, Error>, field: &str, device: &Device) {
    let name = &device.choice().device;
    let expected = format!(
        "memory of {field} must be on {name}, as the kernels, but is on another emulated device"
    );
    match result {
        Ok(_) => panic!("{what}: {field} of another device was taken"),
        Err(error) => assert_eq!((error.to_string(), error.exit_code()), (expected, 2), "{what}"),
    }
}

#[test]
fn operands_of_another_device_are_refused() {
    for kernels in machines() {
        let device = kernels.device();
        let other = open(&device.choice().device);
        let buffer = |device, bytes: usize| {
            DeviceBuffer::upload(device, "x", &vec![0; bytes]).expect("memory")
        };
        let (ours, theirs) = (|bytes| buffer(device, bytes), |bytes| buffer(&other, bytes));

        let options = QuantizeOptions::new(Recipe::Nvfp4(Nvfp4Recipe::TorchAo))
            .scale(TensorScale::FromAmax)
            .layout(ScaleLayout::Linear);
        let input = Input { element: FloatType::F32, gated: true };
        let quantizer = Quantizer::new(&kernels, 2, 32, input, &options).expect("planned");
        quantizer.launch(&ours(256), Some(&ours(256))).expect("runs");
        let launched = quantizer.launch(&theirs(256), Some(&ours(256)));
        on_another_device("quantise", launched, "`input`", device);
        let launched = quantizer.launch(&ours(256), Some(&theirs(256)));
        on_another_device("quantise", launched, "`up`", device);

        let dequantizer =
            Dequantizer::new(&kernels, 2, 32, Format::Nvfp4, ScaleLayout::Linear, FloatType::F32)
                .expect("planned");
        let (codes, scales, rows) = (ours(32), ours(4), ours(8));
        let launched = dequantizer.launch(&codes, &scales, Multiplier::Rows(&rows));
        launched.expect("runs");
        let launched = dequantizer.launch(&theirs(32), &scales, Multiplier::Rows(&rows));
        on_another_device("dequantise", launched, "codes", device);
        let launched = dequantizer.launch(&codes, &theirs(4), Multiplier::Rows(&rows));
        on_another_device("dequantise", launched, "scales", device);
        let launched = dequantizer.launch(&codes, &scales, Multiplier::Rows(&theirs(8)));
        on_another_device("dequantise", launched, "multipliers", device);
        let launched = dequantizer.launch(&codes, &scales, Multiplier::Tensor(&theirs(4)));
        on_another_device("dequantise", launched, "multipliers", device);
    }
}

/// A launch that the emulator stops, as one that reads what nobody wrote, leaves the workspace as
/// it happens to be; cleared, it serves the next.
#[test]
fn a_workspace_is_usable_again_after_a_launch_that_was_stopped() {
    for kernels in machines() {
        let device = kernels.device().clone();
        let name = &device.choice().device;
        // All kinds of what can be in a workspace on sm_90a; there is one on sm_100a, of more tokens
        // than kernels load themselves.
        let (split, m) = match device.choice().arch.tensor() {
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => {
                (Some(Split::StreamK), 5)
            }
            TensorFamily::Tcgen05 => (None, 40),
        };
        let [n, k] = [264, 1056];
        let dims = |rows| Dims::new(1, rows, k).expect("dims");
        let layout = ScaleLayout::Linear;
        let quantized = |name, value, rows| {
            let values = vec![value; rows * k];
            quantize(name, &values, dims(rows), TensorScale::FromAmax, layout).expect("finite")
        };
        let (a, b) = (quantized("a", 1.0, m), quantized("b", 0.5, n));
        let kind = ActivationKind::Blocks { format: Format::Nvfp4, layout };
        let weights = Repacked::for_device(&device, &b, kind).expect("repacked");
        let weights = weights.upload(&device).expect("uploaded");
        let options =
            GemmOptions::new().output(FloatType::F32).overrides(GemmOverrides::new().split(split));
        let scale = a.global_scale();
        let product =
            Gemm::new(&kernels, &weights, [1, m], kind, &options.clone().activation_scale(scale))
                .expect("planned");
        let bytes = product.workspace_bytes();
        assert!(bytes > 0, "{name}: this test is about a workspace");
        let memory = DeviceBuffer::poisoned(&device, "memory", bytes).expect("memory");
        let contents = view(&device, memory.address(), bytes).expect("the same");
        let workspace = Workspace::over(memory).expect("aligned");
        assert!(contents.read().expect("cleared").iter().all(|&byte| byte == 0));

        let scales = DeviceBuffer::upload(&device, "a scales", a.scales()).expect("memory");
        let codes = DeviceBuffer::poisoned(&device, "a codes", a.codes().len()).expect("memory");
        let out = DeviceBuffer::poisoned(&device, "c", m * n * 4).expect("memory");
        let launch = || {
            let a = ActivationBuffers::blocks(&codes, &scales);
            let result = ResultBuffers::Floats(&out);
            product.launch(a, &weights, result, Some(&workspace), Vectors::default())
        };
        let error = launch().expect_err("nobody wrote the codes");
        assert_eq!(error.exit_code(), 1, "{name}: {error}");

        codes.write(a.codes()).expect("fits");
        contents.write(&vec![0xff; bytes]).expect("fits");
        workspace.reset().expect("cleared");
        let allocations = device.allocations();
        launch().expect("runs");
        assert_eq!(device.allocations(), allocations, "{name}: a launch allocates");
        let values = floats::decode(FloatType::F32, &out.read().expect("a result"));
        let expected = 0.5 * k as f32;
        assert!(values.iter().all(|c| (c - expected).abs() < 1e-3 * expected), "{name}");
    }
}
