//! Recordings of streams, and threads, as a driver sees them. `fake_driver` has the driver, which
//! refuses what a driver refuses while a stream is recorded.

use std::ffi::c_void;
use std::ptr;
use std::thread;

use cuda_lazy::raw;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::cuda::{CudaDevice, CudaError, CudaLaunch};
use nvfp4::device::{Device, DeviceRequest};
use nvfp4::gemm::Workspace;

use crate::fake_driver::Driver;

/// A stream of an engine's.
const ENGINES: usize = 0x88;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

fn stream(number: usize) -> *mut c_void {
    ptr::without_provenance_mut(number)
}

/// Runs the child with a driver; what it said. `failures`: how many of the first calls that free
/// memory, and that set attributes, fail.
fn said(test: &str, failures: [u32; 2]) -> Option<String> {
    let driver = Driver::compile(test)?;
    let [unfreed, unset] = failures;
    let answers = format!("13020,0,1,90,1,{unfreed},{unset}");
    let output = driver.run(&format!("recordings::{test}"), &answers);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}:\n{text}\n{errors}");
    Some(text)
}

#[test]
fn memory_can_be_used_while_an_engine_records() {
    said("use_memory_in_a_recording", [0, 0]);
}

/// An engine records its stream on this thread; a handle of another stream allocates, copies, waits
/// and frees. Nothing fails, and the recording survives.
#[test]
#[ignore = "a child"]
fn use_memory_in_a_recording() {
    let device = CudaDevice::open(0).expect("opens");
    let memory = device.upload(&[1, 2, 3]).expect("uploaded");
    let dropped = device.alloc(16).expect("allocated");
    // SAFETY: the driver takes any number for a stream.
    let begun = unsafe { raw::cuStreamBeginCapture_v2(stream(ENGINES), 0) };
    assert_eq!(begun, 0);
    assert_eq!(memory.to_vec(), Ok(vec![1, 2, 3]));
    memory.write(1, &[7]).expect("written");
    memory.fill(9).expect("filled");
    device.synchronize().expect("nothing is in the way");
    drop(dropped);
    drop(device.upload(&[4]).expect("uploaded"));
    let mut graph = ptr::null_mut();
    // SAFETY: `graph` is writable.
    let ended = unsafe { raw::cuStreamEndCapture(stream(ENGINES), &mut graph) };
    assert_eq!(ended, 0, "the recording was destroyed");
    // The thread's mode was restored: without a handle's care, a wait destroys a recording. SAFETY:
    // as above.
    unsafe {
        raw::cuStreamBeginCapture_v2(stream(ENGINES), 0);
        assert_eq!(raw::cuStreamSynchronize(stream(0x51)), 900);
        assert_eq!(raw::cuStreamEndCapture(stream(ENGINES), &mut graph), 901);
    }
}

#[test]
fn waiting_for_a_recorded_stream_is_refused_and_harmless() {
    said("wait_in_a_recording", [0, 0]);
}

#[test]
#[ignore = "a child"]
fn wait_in_a_recording() {
    let device = CudaDevice::open(0).expect("opens");
    let recorded = device.capture(|| {
        let error = device.synchronize().expect_err("the stream is being recorded");
        assert!(matches!(error, CudaError::BadArgument { field: "the stream", .. }), "{error}");
        Ok::<(), CudaError>(())
    });
    // The fake driver has no graphs, so that the recording is all that can succeed.
    let error = recorded.expect_err("no graphs").to_string();
    assert!(error.starts_with("cuGraphGetNodes"), "{error}");
}

#[test]
fn memory_that_is_not_freed_is_freed_later() {
    let Some(text) = said("free_later", [2, 0]) else { return };
    let frees: Vec<&str> = text.lines().filter(|line| line.contains("cuMemFree")).collect();
    assert_eq!(frees.len(), 5, "{text}");
    assert!(frees[..2].iter().all(|line| line.ends_with("fails")), "{frees:?}");
    let mut freed = frees[2..].to_vec();
    freed.sort_unstable();
    freed.dedup();
    assert_eq!(freed.len(), 3, "each once: {frees:?}");
}

#[test]
#[ignore = "a child"]
fn free_later() {
    let device = CudaDevice::open(0).expect("opens");
    let [a, b, c] = [16, 32, 48].map(|bytes| device.alloc(bytes).expect("allocated"));
    // Fails; then fails for one of two, and frees the other; then frees the last.
    drop(a);
    drop(b);
    drop(c);
}

#[test]
fn what_threads_share_is_refused_while_one_records() {
    said("record_on_one_of_two_threads", [0, 0]);
}

#[test]
#[ignore = "a child"]
fn record_on_one_of_two_threads() {
    let device = CudaDevice::open(0).expect("opens");
    let memory = device.upload(&[1]).expect("uploaded");
    let other = CudaDevice::open(0).expect("opens again");
    let _ = device.capture(|| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let error = memory.queue_fill(1).expect_err("it would be recorded");
                assert!(error.to_string().ends_with("got recorded by another"), "{error}");
                assert!(memory.read(0, &mut [0]).is_err());
                other.upload(&[2]).expect("another stream");
            });
        });
        memory.queue_fill(2)
    });
    thread::scope(|scope| {
        scope.spawn(|| memory.queue_fill(1).expect("nobody records"));
    });
}

#[test]
fn a_stream_per_thread_is_each_threads_own() {
    let Some(text) = said("use_a_stream_per_thread", [0, 0]) else { return };
    // A new workspace, its reset, and three fills.
    assert_eq!(text.matches("call: cuMemsetD8Async 0x2\n").count(), 5, "{text}");
}

/// Runs on another thread.
fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
}

#[test]
#[ignore = "a child"]
fn use_a_stream_per_thread() {
    let device = Device::open(&DeviceRequest::Cuda(0)).expect("opens");
    // SAFETY: the handle is no stream's that could be destroyed.
    let device = unsafe { device.with_stream(stream(PER_THREAD)) }.expect("any stream");
    let gpu = device.gpu("streams").expect("a GPU");
    assert_eq!(gpu.stream_id(), gpu.stream_id());
    assert_ne!(gpu.stream_id(), elsewhere(|| gpu.stream_id()), "another stream");

    // A workspace has flags in memory, so it stays with the thread that used it first.
    let workspace = Workspace::new(&device, 64).expect("allocated");
    workspace.require_stream(&device).expect("the first stream");
    let workspace = elsewhere(|| {
        let workspace = workspace;
        let error = workspace.require_stream(&device).expect_err("another thread's").to_string();
        assert!(error.starts_with("the workspace's stream must be 0x2 of ThreadId"), "{error}");
        workspace.reset().expect_err("the flags are in use");
        workspace
    });
    workspace.require_stream(&device).expect("the first stream again");
    workspace.reset().expect("the same thread");

    // A thread records its own stream, and all others go on.
    let memory = gpu.upload(&[1]).expect("uploaded");
    let _ = gpu.capture(|| {
        elsewhere(|| memory.queue_fill(1).expect("this thread's stream is not recorded"));
        memory.queue_fill(2)
    });
    elsewhere(|| memory.queue_fill(3).expect("nobody records"));
}

#[test]
fn a_workspace_belongs_to_one_stream() {
    said("use_a_workspace_on_two_streams", [0, 0]);
}

#[test]
#[ignore = "a child"]
fn use_a_workspace_on_two_streams() {
    let device = Device::open(&DeviceRequest::Cuda(0)).expect("opens");
    // SAFETY: the driver takes any number for a stream.
    let engines = unsafe { device.with_stream(stream(ENGINES)) }.expect("the same context");
    let used = |workspace: &Workspace, device: &Device| workspace.require_stream(device);
    let mut workspace = Workspace::new(&device, 64).expect("allocated");
    used(&workspace, &engines).expect("the first stream");
    used(&workspace, &engines).expect("the same stream");
    let error = used(&workspace, &device).expect_err("another stream").to_string();
    assert!(error.contains("the workspace's stream must be 0x51, as the launch's"), "{error}");
    // SAFETY: nothing runs on the fake driver.
    workspace = unsafe { workspace.for_another_stream() };
    used(&workspace, &device).expect("the first stream again");

    // Memory that was cleared on a stream belongs to it.
    let memory = DeviceBuffer::zeroed(&engines, "memory", 64).expect("allocated");
    let workspace = Workspace::over(memory).expect("aligned");
    used(&workspace, &device).expect_err("another stream");
}

#[test]
fn an_attribute_that_was_not_set_is_set_again() {
    let Some(text) = said("launch_a_large_cluster", [0, 1]) else { return };
    // Clusters of more than 8 blocks.
    let set = text.lines().filter(|line| *line == "call: cuFuncSetAttribute 14").count();
    assert_eq!(set, 2, "{text}");
}

#[test]
#[ignore = "a child"]
fn launch_a_large_cluster() {
    let device = CudaDevice::open(0).expect("opens");
    let head = ".version 9.0\n.target sm_90a\n.address_size 64\n";
    let module = device.load(&format!("{head}.visible .entry k() {{ ret; }}\n")).expect("loads");
    let launch = CudaLaunch {
        entry: "k",
        grid: [16, 1, 1],
        block: [32, 1, 1],
        cluster: Some([16, 1, 1]),
        dynamic_shared: 0,
        overlaps: false,
        cooperative: false,
        params: &[],
    };
    // SAFETY: kernels do nothing on the fake driver.
    unsafe {
        module.launch(&launch).expect_err("the attribute is not set");
        module.launch(&launch).expect("the attribute is set");
        module.launch(&launch).expect("and stays so");
    }
}
