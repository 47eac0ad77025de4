//! A driver without a GPU, compiled as `libcuda.so.1` by `fake_driver`. It answers from the
//! environment, `FAKE_CUDA=version,init,count,cc,opens,unfreed,unset,silent`; device memory is the host's,
//! kernels do nothing, and every call that a launch could make is printed on standard output, one per line,
//! unless it is silent.
//! The first `unfreed` calls that free memory fail, and the first `unset` that set an attribute. A
//! thread that records a stream in another than
//! the relaxed mode is refused what a driver refuses it, and its recording is destroyed.

use std::alloc::{Layout, alloc};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread::ThreadId;

/// Whether calls are printed.
static PRINTS: OnceLock<bool> = OnceLock::new();

/// Prints a call.
macro_rules! call {
    ($($text:tt)*) => {
        if *PRINTS.get_or_init(|| field(7) == 0) {
            println!("call: {}", format_args!($($text)*));
        }
    };
}

/// The primary context of device 0; streams from this number on belong to another one.
const PRIMARY: usize = 0x1000;
const FOREIGN_STREAMS: usize = 0x9000;

/// The stream that is recorded, if one is, the thread that does, and its `CUstreamCaptureStatus`.
static RECORDING: Mutex<Option<(usize, ThreadId, u32)>> = Mutex::new(None);
/// Calls that freed memory, or should have.
static FREED: AtomicU32 = AtomicU32::new(0);

/// The stream that is created next.
static STREAMS: AtomicUsize = AtomicUsize::new(0x51);
/// Calls that set an attribute, or should have.
static SET: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// `CUstreamCaptureMode` of the thread.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

const RELAXED: u32 = 2;
const UNSUPPORTED: u32 = 900;

/// Returns a driver's answer to a call that could disturb a recording of this thread.
fn disturbs() -> u32 {
    let mut recording = RECORDING.lock().expect("no panic before");
    match &mut *recording {
        Some((_, thread, status))
            if *thread == std::thread::current().id() && MODE.get() != RELAXED =>
        {
            *status = 2;
            UNSUPPORTED
        }
        _ => 0,
    }
}
/// Names and bytes of parameters of the kernels looked up so far: a handle is an index plus 1.
static KERNELS: Mutex<Vec<(String, usize)>> = Mutex::new(Vec::new());
/// Bytes of parameters by the names of the kernels in the loaded PTX.
static LOADED: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

/// The code that a caller has for a function that the driver lacks.
const LACKS: u32 = 36;

/// Whether the driver is older than the release of CUDA with this number, 11080 for 11.8.
fn is_before(release: i32) -> bool {
    field(0) < release
}

fn field(index: usize) -> i32 {
    let fields = std::env::var("FAKE_CUDA").unwrap_or_default();
    fields.split(',').nth(index).and_then(|field| field.parse().ok()).unwrap_or(0)
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *version = field(0) };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: u32) -> u32 {
    field(1) as u32
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *count = field(2) };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *device = ordinal };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut u8, _: i32, _: i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { name.copy_from(c"Fake GPU".as_ptr().cast(), 9) };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *bytes = 8 << 30 };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, _: i32) -> u32 {
    let answer = match attribute {
        75 => field(3) / 10,
        76 => field(3) % 10,
        38 => 50 << 20,
        // Shared memory of a multiprocessor and of a block.
        97 => 227 << 10,
        // Withdrawn: the memory clock.
        36 => return 1,
        _ => 7,
    };
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *value = answer };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: u32, name: *mut *const u8) -> u32 {
    if code != 804 {
        return 1;
    }
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *name = c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE".as_ptr().cast() };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, _: i32) -> u32 {
    if field(4) == 0 {
        return 4242;
    }
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *context = PRIMARY };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_: i32) -> u32 {
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(_: usize) -> u32 {
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *context = PRIMARY };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _: u32) -> u32 {
    // SAFETY: passed on to the caller.
    unsafe { cuStreamCreateWithPriority(stream, 0, 0) }
}
/// Events are numbered from 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _: u32) -> u32 {
    static EVENTS: AtomicUsize = AtomicUsize::new(1);
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *event = EVENTS.fetch_add(1, Ordering::Relaxed) };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> u32 {
    call!("cuEventRecord {event} {stream:#x}");
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(_: usize) -> u32 {
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _: u32) -> u32 {
    call!("cuStreamWaitEvent {event} {stream:#x}");
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, _: usize) -> u32 {
    // SAFETY: passed on to the caller.
    unsafe { cuMemAlloc_v2(address, bytes) }
}
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, _: usize) -> u32 {
    cuMemFree_v2(address)
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut usize, _: u32, _: i32) -> u32 {
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *stream = STREAMS.fetch_add(1, Ordering::Relaxed) };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> u32 {
    call!("cuStreamDestroy {stream:#x}");
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: usize, context: *mut usize) -> u32 {
    let found = if stream < FOREIGN_STREAMS { PRIMARY } else { PRIMARY + 1 };
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *context = found };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut u32) -> u32 {
    let recording = RECORDING.lock().expect("no panic before");
    // `CU_STREAM_PER_THREAD` is another stream on each thread.
    let here = |thread| stream != 2 || thread == std::thread::current().id();
    let found = recording.filter(|(recorded, thread, _)| *recorded == stream && here(*thread));
    let found = found.map_or(0, |(.., status)| status);
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *status = found };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: usize, _: u32) -> u32 {
    let mut recording = RECORDING.lock().expect("no panic before");
    *recording = Some((stream, std::thread::current().id(), 1));
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(_: usize, graph: *mut usize) -> u32 {
    let recording = RECORDING.lock().expect("no panic before").take();
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *graph = 0 };
    // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    if recording.is_some_and(|(.., status)| status == 2) { 901 } else { 0 }
}
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> u32 {
    call!("cuStreamSynchronize {stream:#x}");
    disturbs()
}
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    call!("cuCtxSynchronize");
    disturbs()
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    call!("cuMemAlloc {bytes}");
    if disturbs() != 0 {
        return UNSUPPORTED;
    }
    let Ok(layout) = Layout::from_size_align(bytes, 256) else { return 1 };
    // SAFETY: callers of the driver allocate at least one byte and pass writable pointers.
    unsafe { *address = alloc(layout) as u64 };
    0
}
// Freed memory is leaked: nobody knows its size, and the process is short.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    if disturbs() != 0 || FREED.fetch_add(1, Ordering::Relaxed) < field(5) as u32 {
        call!("cuMemFree fails");
        return UNSUPPORTED;
    }
    call!("cuMemFree {address:#x}");
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize) -> u32 {
    call!("cuMemsetD8Async {stream:#x}");
    // SAFETY: device memory is the host's, and the caller says that these bytes are its own.
    unsafe { (to as *mut u8).write_bytes(value, bytes) };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const u8,
    bytes: usize,
    stream: usize,
) -> u32 {
    call!("cuMemcpyHtoDAsync {stream:#x}");
    // SAFETY: as above.
    unsafe { (to as *mut u8).copy_from(from, bytes) };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut u8,
    from: u64,
    bytes: usize,
    stream: usize,
) -> u32 {
    call!("cuMemcpyDtoHAsync {stream:#x}");
    // SAFETY: as above.
    unsafe { to.copy_from(from as *const u8, bytes) };
    0
}
/// The bytes of the one parameter that each kernel of a PTX text has.
fn parameters(text: &str) -> HashMap<String, usize> {
    let entries = text.split(".entry ").skip(1);
    let sizes = entries.filter_map(|entry| {
        let (name, rest) = entry.split_once('(')?;
        let size = match rest.split(')').next()?.split_once('[') {
            Some((_, size)) => size.split(']').next()?.parse().ok()?,
            None => 0,
        };
        Some((name.trim().to_owned(), size))
    });
    sizes.collect()
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut usize,
    image: *const i8,
    _: u32,
    _: usize,
    _: usize,
) -> u32 {
    call!("cuModuleLoadDataEx");
    // SAFETY: callers of the driver pass PTX with a nul behind it, or at least an ELF file's head.
    if unsafe { image.read() } == 0x7f {
        // CUDA_ERROR_NO_BINARY_FOR_GPU
        return 209;
    }
    // SAFETY: it is no ELF file, so it is PTX with a nul behind it.
    let text = unsafe { std::ffi::CStr::from_ptr(image.cast()) }.to_string_lossy();
    let mut loaded = LOADED.lock().expect("no panic before");
    loaded.get_or_insert_default().extend(parameters(&text));
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *module = 1 };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> u32 {
    // SAFETY: callers of the driver pass a pointer to a mode.
    unsafe { *mode = MODE.replace(*mode) };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(_: usize) -> u32 {
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut usize,
    _: usize,
    name: *const i8,
) -> u32 {
    // SAFETY: callers of the driver pass a name with a nul behind it.
    let name = unsafe { std::ffi::CStr::from_ptr(name.cast()) }.to_string_lossy().into_owned();
    let loaded = LOADED.lock().expect("no panic before");
    let Some(&bytes) = loaded.as_ref().and_then(|kernels| kernels.get(&name)) else { return 500 };
    let mut kernels = KERNELS.lock().expect("no panic before");
    kernels.push((name, bytes));
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { *function = kernels.len() };
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut i32, attribute: u32, _: usize) -> u32 {
    // Attributes of clusters came with CUDA 11.8.
    if (11..=14).contains(&attribute) && is_before(11080) {
        return 1;
    }
    // SAFETY: callers of the driver pass writable pointers. 0 is the most threads of a block.
    unsafe { *value = if attribute == 0 { 1024 } else { 0 } };
    0
}
/// Answers for seven multiprocessors; the configuration's only attribute is the shape of the
/// cluster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveClusters(
    clusters: *mut i32,
    _: usize,
    config: *const u8,
) -> u32 {
    const ATTRIBUTES: usize = 40;
    const VALUE: usize = 8;
    // SAFETY: callers of the driver pass writable pointers, and a configuration with an attribute.
    unsafe {
        let attribute = config.add(ATTRIBUTES).cast::<*const u8>().read();
        let size = attribute.add(VALUE).cast::<i32>().read();
        call!("cuOccupancyMaxActiveClusters {size}");
        *clusters = 7 / size;
    }
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(_: usize, attribute: u32, _: i32) -> u32 {
    // Only one attribute is asked about: clusters of more than 8 blocks.
    if attribute == 14 {
        call!("cuFuncSetAttribute {attribute}");
    }
    if SET.fetch_add(1, Ordering::Relaxed) < field(6) as u32 { 1 } else { 0 }
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetParamInfo(
    function: usize,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> u32 {
    if is_before(12040) {
        return LACKS;
    }
    if index != 0 {
        return 1;
    }
    let kernels = KERNELS.lock().expect("no panic before");
    // SAFETY: callers of the driver pass writable pointers.
    unsafe { (*offset, *size) = (0, kernels[function - 1].1) };
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeTiled(
    _: usize,
    _: u32,
    _: u32,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
) -> u32 {
    call!("cuTensorMapEncodeTiled");
    0
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const usize,
    function: usize,
    _: usize,
    _: usize,
) -> u32 {
    if is_before(11080) {
        return LACKS;
    }
    // SAFETY: the fifth word of `CUlaunchConfig` is the stream.
    let stream = unsafe { *config.add(4) };
    call!("cuLaunchKernelEx {stream:#x} {}", KERNELS.lock().expect("no panic before")[function - 1].0);
    0
}
/// Prints a launch by one of the calls that have no attributes.
fn launched(call: &str, stream: usize, function: usize) {
    let kernels = KERNELS.lock().expect("no panic before");
    call!("{call} {stream:#x} {} of {} bytes", kernels[function - 1].0, kernels[function - 1].1);
}
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: usize,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    stream: usize,
    _: usize,
    _: usize,
) -> u32 {
    launched("cuLaunchKernel", stream, function);
    0
}
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchCooperativeKernel(
    function: usize,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    stream: usize,
    _: usize,
) -> u32 {
    launched("cuLaunchCooperativeKernel", stream, function);
    0
}
