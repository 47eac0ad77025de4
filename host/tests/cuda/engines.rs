//! Streams and slices of the crate cudarc, as a driver sees them. `fake_driver` has the driver.

use std::sync::Arc;
use std::thread;

use nvfp4::buffer::DeviceBuffer;
use nvfp4::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use nvfp4::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use nvfp4::cudarc::{read, write};
use nvfp4::device::{Device, DeviceRequest};
use nvfp4::error::{Error, Result};

use crate::fake_driver::Driver;

/// Runs the child with a driver; what it said.
fn said(test: &str) -> Option<String> {
    let driver = Driver::compile(test)?;
    let output = driver.run(&format!("engines::{test}"), "13020,0,1,90,1,0,0");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}:\n{text}\n{errors}");
    Some(text)
}

/// The calls between the lines `begin` and `end`.
fn marked(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| *line != "begin").skip(1);
    lines.take_while(|line| *line != "end").collect()
}

fn context() -> Arc<CudaContext> {
    CudaContext::new(0).expect("the fake driver has a context")
}

fn slice(stream: &Arc<CudaStream>, elements: usize) -> CudaSlice<f32> {
    // SAFETY: nothing reads it.
    unsafe { stream.alloc(elements).expect("allocated") }
}

/// Work that only queues: a fill stands for a kernel.
fn fill(buffer: &DeviceBuffer) -> Result<()> {
    buffer.fill(0)
}

#[test]
fn uses_of_slices_are_recorded_behind_what_was_queued() {
    let Some(text) = said("lend_slices") else { return };
    // Events 1 and 2 are the first slice's, of reads and of writes; 3 and 4 the second's.
    let expected = [
        "call: cuStreamWaitEvent 2 0x51",
        "call: cuStreamWaitEvent 3 0x51",
        "call: cuStreamWaitEvent 4 0x51",
        "call: cuMemsetD8Async 0x51",
        "call: cuMemsetD8Async 0x51",
        "call: cuEventRecord 4 0x51",
        "call: cuEventRecord 1 0x51",
    ];
    assert_eq!(marked(&text), expected, "{text}");
    // The device keeps the stream, until it is dropped itself.
    let destroyed = text.lines().position(|line| line == "call: cuStreamDestroy 0x51");
    let dropped = text.lines().position(|line| line == "dropped by cudarc").expect("printed");
    assert!(destroyed.expect("destroyed") > dropped, "{text}");
}

#[test]
#[ignore = "a child"]
fn lend_slices() {
    println!();
    let context = context();
    let stream = context.new_stream().expect("created");
    let device = Device::from_cudarc(&stream).expect("a supported GPU");
    let [first, mut second] = [8, 4].map(|elements| slice(&stream, elements));
    let other = Device::open(&DeviceRequest::Cuda(0)).expect("opens");
    println!("begin");
    let lent: Result<[usize; 2]> = read(&device, "x", &first, |x| {
        write(&device, "y", &mut second, |y| {
            fill(x)?;
            fill(y)?;
            Ok([x.len(), y.len()])
        })
    });
    println!("end");
    assert_eq!(lent.expect("queued"), [32, 16]);

    // Parts, if they are aligned.
    read(&device, "part", &first.slice(4..8), fill).expect("aligned");
    let error = read(&device, "part", &first.slice(1..8), fill).expect_err("not aligned");
    assert!(error.to_string().starts_with("address of `part` must be a multiple of 16"), "{error}");
    write(&device, "part", &mut second.slice_mut(0..2), fill).expect("aligned");

    // Devices of other streams.
    let error = read(&other, "x", &first, fill).expect_err("no stream of cudarc's");
    assert!(matches!(error, Error::WrongDevice { .. }), "{error}");

    drop((first, second));
    drop(stream);
    println!("dropped by cudarc");
}

#[test]
fn a_slice_is_used_on_the_stream_it_was_lent_to() {
    said("lend_to_another_stream");
}

#[test]
#[ignore = "a child"]
fn lend_to_another_stream() {
    use nvfp4::quantize::device::{Input, Quantizer};
    use nvfp4::quantize::{Format, QuantizeOptions, recipe_by_name};

    let context = context();
    let stream = context.per_thread_stream();
    let device = Device::from_cudarc(&stream).expect("a supported GPU");
    let kernels = match device.kernels(None) {
        Ok(kernels) => kernels,
        Err(error) => return skipped::test(error),
    };
    let elsewhere = kernels.on_cudarc(&context.default_stream()).expect("the same context");
    let recipe = recipe_by_name(Format::Nvfp4, "te").expect("known");
    let options = QuantizeOptions::new(recipe);
    let quantizer =
        |kernels| Quantizer::new(kernels, 1, 64, Input::plain(nvfp4::FloatType::F32), &options);
    let [here, there] = [&kernels, &elsewhere].map(|kernels| quantizer(kernels).expect("planned"));
    let input = slice(&stream, 64);
    read(&device, "x", &input, |x| here.launch(x, None)).expect("queued");
    let error = read(&device, "x", &input, |x| there.launch(x, None)).expect_err("elsewhere");
    let Error::WrongDevice { field, required, .. } = &error else { panic!("{error}") };
    assert_eq!([field.as_str(), required], ["stream of `input`", "0x0, as the kernels"]);

    // Largest magnitudes are sought in memory of the quantiser, which one thread's stream uses.
    let (here, device, input) = (&here, &device, &input);
    thread::scope(|scope| {
        scope.spawn(move || {
            let error = read(device, "x", input, |x| here.launch(x, None)).expect_err("in use");
            assert!(error.to_string().starts_with("the quantiser's stream must be 0x2"), "{error}");
        });
    });
}

#[test]
fn nothing_gets_into_a_graph_unknown_to_its_owner() {
    said("queue_in_a_recording");
}

#[test]
#[ignore = "a child"]
fn queue_in_a_recording() {
    let stream = context().new_stream().expect("created");
    let device = Device::from_cudarc(&stream).expect("a supported GPU");
    let mut result = slice(&stream, 4);
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("begun");
    let error = write(&device, "y", &mut result, fill).expect_err("recorded");
    assert!(error.to_string().contains("outside of a recording into a graph"), "{error}");
    // SAFETY: the graph is never replayed.
    let device = unsafe { device.recordable() };
    write(&device, "y", &mut result, fill).expect("the caller answers for the graph");
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    assert!(stream.end_capture(flags).expect("ended").is_none());
}

#[test]
fn a_raw_stream_lives_as_long_as_what_was_made_from_it() {
    let Some(text) = said("share_a_raw_stream") else { return };
    let fill = "call: cuMemsetD8Async 0x51";
    assert_eq!(marked(&text), [fill, "dropped by the engine", fill], "{text}");
    let at = |line: &str| text.lines().position(|found| found == line).expect("printed");
    assert!(at("dropped by the engine") < at("call: cuStreamDestroy 0x51"), "{text}");
    assert!(at("dropped by us") > at("call: cuStreamDestroy 0x51"), "{text}");
}

/// A stream as a library without an adapter has it: a handle, and an owner that destroys it.
#[test]
#[ignore = "a child"]
fn share_a_raw_stream() {
    println!();
    let stream = context().new_stream().expect("created");
    // SAFETY: the stream is destroyed when its last owner is dropped.
    let device = unsafe { Device::shared_by(0, stream.cu_stream().cast(), stream.clone()) };
    let device = device.expect("a supported GPU");
    let buffer = DeviceBuffer::zeroed(&device, "x", 64).expect("allocated");
    println!("begin");
    fill(&buffer).expect("queued");
    drop(stream);
    println!("dropped by the engine");
    fill(&buffer).expect("queued");
    println!("end");
    drop(buffer);
    drop(device);
    println!("dropped by us");

    // SAFETY: as above; there is no such GPU.
    let error = unsafe { Device::shared_by(7, std::ptr::null_mut(), Arc::new(())) };
    let error = error.expect_err("one GPU");
    assert_eq!(error.kind(), nvfp4::ErrorKind::Unsupported, "{error}");
}
