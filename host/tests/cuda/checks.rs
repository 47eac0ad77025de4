//! Checks of the CUDA backend on a real device.

use std::error::Error;
use std::fmt;

use fp4_formats::e4m3;
use half::f16;
use nvfp4::cuda::{
    Cublas, CublasError, CublasLt, CublasShape, CudaDevice, CudaError, CudaLaunch, CudaMemory,
    CudaModule, E4m3Sums,
};
use nvfp4::device::ResidentClusters;

/// The outcome of a check.
pub enum Outcome {
    Pass(String),
    Skip(String),
    Fail(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, text) = match self {
            Outcome::Pass(text) => ("PASS", text),
            Outcome::Skip(text) => ("SKIP", text),
            Outcome::Fail(text) => ("FAIL", text),
        };
        write!(f, "{word} {text}")
    }
}

type Checked = Result<Outcome, Box<dyn Error>>;
type Check = fn(&CudaDevice, &CudaModule) -> Checked;

const CHECKS: [(&str, Check); 15] = [
    ("memory", memory),
    ("module cache", module_cache),
    ("vector_add", vector_add),
    ("dynamic shared memory", dynamic_shared),
    ("clusters", clusters),
    ("resident clusters", resident_clusters),
    ("launch checks", launch_checks),
    ("refused PTX", refused_ptx),
    ("graph", graph),
    ("broken recordings", broken_recordings),
    ("threads", threads),
    ("read ceiling", ceiling_read),
    ("cuBLAS", cublas),
    ("cuBLAS e4m3", cublas_e4m3),
    ("fault", fault),
];

/// Runs every check. After the last one, `fault`, the process can no longer use the device.
pub fn run(device: &CudaDevice) -> Vec<(&'static str, Outcome)> {
    let ptx = include_str!("checks.ptx");
    let ptx = ptx.replace(".target TARGET", &format!(".target {}", device.arch()));
    let module = match device.load(&ptx) {
        Ok(module) => module,
        Err(error) => return vec![("module", Outcome::Fail(error.to_string()))],
    };
    CHECKS
        .into_iter()
        .map(|(name, check)| {
            let outcome = check(device, &module);
            let fail = |error: Box<dyn Error>| Outcome::Fail(error.to_string());
            (name, outcome.unwrap_or_else(fail))
        })
        .collect()
}

fn pass(text: impl Into<String>) -> Checked {
    Ok(Outcome::Pass(text.into()))
}

fn ensure(condition: bool, what: impl FnOnce() -> String) -> Result<(), Box<dyn Error>> {
    if condition { Ok(()) } else { Err(what().into()) }
}

/// The driver's counts of clusters that run at a time: of one block as many as there are
/// multiprocessors, of more no more than fit without the borders of GPCs.
fn resident_clusters(device: &CudaDevice, _: &CudaModule) -> Checked {
    let clusters = device.query_clusters()?;
    let sms = device.info().sms;
    let counts = ResidentClusters::SIZES.map(|size| (size, clusters.of(size)));
    let text = format!("{counts:?} on {sms} multiprocessors");
    ensure(clusters.of(1) == sms, || format!("one block each: {text}"))?;
    let fit = |&(size, count): &(u32, u32)| count > 0 && count <= sms / size;
    ensure(counts.iter().all(fit), || text.clone())?;
    pass(text)
}

/// The first place where two slices differ.
fn equal<T: PartialEq + fmt::Debug>(
    what: &str,
    actual: &[T],
    expected: &[T],
) -> Result<(), String> {
    if actual.len() != expected.len() {
        let (actual, expected) = (actual.len(), expected.len());
        return Err(format!("{what}: {actual} elements, expected {expected}"));
    }
    match (0..actual.len()).find(|&i| actual[i] != expected[i]) {
        None => Ok(()),
        Some(i) => Err(format!("{what}[{i}] = {:?}, expected {:?}", actual[i], expected[i])),
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

fn params(addresses: &[u64], count: Option<u32>) -> Vec<u8> {
    let addresses = addresses.iter().flat_map(|address| address.to_le_bytes());
    let count = count.into_iter().flat_map(u32::to_le_bytes);
    addresses.chain(count).collect()
}

fn plain<'a>(entry: &'a str, blocks: u32, threads: u32, params: &'a [u8]) -> CudaLaunch<'a> {
    CudaLaunch {
        entry,
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        overlaps: false,
        cooperative: false,
        params,
    }
}

fn memory(device: &CudaDevice, _: &CudaModule) -> Checked {
    let bytes: Vec<u8> = (0..100_003_u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let memory = device.upload(&bytes)?;
    ensure(memory.address() % 256 == 0, || {
        format!("address {:#x} is not 256-byte aligned", memory.address())
    })?;
    equal("upload", &memory.to_vec()?, &bytes)?;
    memory.write(99_999, &[1, 2, 3, 4])?;
    let mut tail = [0; 6];
    memory.read(99_997, &mut tail)?;
    equal("tail", &tail[2..], &[1, 2, 3, 4])?;
    equal("untouched", &tail[..2], &bytes[99_997..99_999])?;
    memory.fill(0xcb)?;
    equal("fill", &memory.to_vec()?, &vec![0xcb; bytes.len()])?;
    let beyond = memory.write(100_000, &[0; 4]).map_err(|error| error.to_string());
    let expected = "write to device memory: offset + length must be at most 100003 bytes, \
                    got 100000 + 4";
    ensure(beyond == Err(expected.to_owned()), || format!("{beyond:?}"))?;
    let empty = device.alloc(0)?;
    empty.fill(1)?;
    empty.write(0, &[])?;
    ensure(empty.is_empty() && empty.to_vec()?.is_empty(), || "not empty".into())?;
    let huge = device.alloc(1 << 44).map_err(|error| error.to_string());
    ensure(huge.as_ref().is_err_and(|text| text.contains("CUDA_ERROR_OUT_OF_MEMORY (2)")), || {
        format!("allocating 2^44 bytes: {:?}", huge.map(|memory| memory.len()))
    })?;
    pass("upload, partial copies, fill, bounds, empty, out of memory")
}

fn module_cache(device: &CudaDevice, module: &CudaModule) -> Checked {
    let kernels = module.kernels()?;
    let expected =
        ["bump", "cluster_fixed", "cluster_rank", "fault", "read_all", "reverse", "vector_add"];
    equal("kernels", &kernels, &expected.map(str::to_owned))?;
    let limits = module.limits("vector_add")?;
    ensure(limits.param_bytes == 28 && limits.local == 0, || format!("{limits:?}"))?;
    ensure(module.limits("bump")?.max_threads == 32, || "maxntid is not seen".into())?;
    ensure(module.limits("cluster_fixed")?.cluster == Some([2, 1, 1]), || {
        "reqnctapercluster is not seen".into()
    })?;
    let again = CudaDevice::open(device.info().ordinal)?;
    ensure(again.info() == device.info(), || "the second handle differs".into())?;
    pass(format!("{} kernels; vector_add {limits:?}", kernels.len()))
}

fn vector_add(device: &CudaDevice, module: &CudaModule) -> Checked {
    let n = 100_003_u32;
    let bytes = |f: fn(u32) -> f32| (0..n).flat_map(|i| f(i).to_le_bytes()).collect::<Vec<_>>();
    let a = device.upload(&bytes(|i| i as f32))?;
    let b = device.upload(&bytes(|i| 0.25 * i as f32))?;
    let c = device.alloc(4 * n as usize)?;
    c.fill(0xcb)?;
    let params = params(&[a.address(), b.address(), c.address()], Some(n));
    // SAFETY: three arrays of n words, read back before they are dropped.
    unsafe { module.launch(&plain("vector_add", n.div_ceil(256), 256, &params))? };
    let expected: Vec<u32> = (0..n).map(|i| (i as f32 + 0.25 * i as f32).to_bits()).collect();
    equal("sum bits", &words(&c.to_vec()?), &expected)?;
    pass(format!("{n} sums"))
}

fn dynamic_shared(device: &CudaDevice, module: &CudaModule) -> Checked {
    let mut sizes = Vec::new();
    // Below the 48 KiB that need no opt-in, above, and all there is.
    for bytes in [4096, 100 << 10, device.info().shared_per_block] {
        let n = bytes / 4;
        let out = device.alloc(bytes as usize)?;
        let params = params(&[out.address()], Some(n));
        let launch = CudaLaunch { dynamic_shared: bytes, ..plain("reverse", 1, 256, &params) };
        // SAFETY: `out` has n words and is read back before it is dropped.
        unsafe { module.launch(&launch)? };
        let expected: Vec<u32> = (0..n).rev().collect();
        equal("reversed", &words(&out.to_vec()?), &expected)?;
        sizes.push(bytes);
    }
    pass(format!("{sizes:?} bytes"))
}

fn clusters(device: &CudaDevice, module: &CudaModule) -> Checked {
    let cases = [
        ("cluster_rank", None, 1),
        ("cluster_rank", Some([2, 1, 1]), 2),
        ("cluster_rank", Some([8, 1, 1]), 8),
        ("cluster_rank", Some([16, 1, 1]), 16),
        ("cluster_fixed", None, 2),
        ("cluster_fixed", Some([2, 1, 1]), 2),
    ];
    for (entry, cluster, size) in cases {
        let out = device.alloc(4 * 32)?;
        let params = params(&[out.address()], None);
        let launch = CudaLaunch { cluster, ..plain(entry, 32, 32, &params) };
        // SAFETY: one word per block, read back before `out` is dropped.
        unsafe { module.launch(&launch)? };
        let expected: Vec<u32> = (0..32).map(|i| i % size + 256 * size).collect();
        let what = format!("{entry} with {cluster:?}: rank + 256 * size");
        equal(&what, &words(&out.to_vec()?), &expected)?;
    }
    pass("none, 2, 8, 16, and fixed in the kernel")
}

fn launch_checks(device: &CudaDevice, module: &CudaModule) -> Checked {
    let out = device.alloc(4 * 64)?;
    let good = params(&[out.address()], None);
    let rank = plain("cluster_rank", 32, 32, &good);
    let max_threads = module.limits("cluster_rank")?.max_threads;
    let shared = device.info().shared_per_block;
    let cases = [
        (
            CudaLaunch { params: &good[..7], ..rank },
            "launch of cluster_rank: params must be 8 bytes, got 7 bytes".to_owned(),
        ),
        (
            CudaLaunch { grid: [1, 0, 1], ..rank },
            "launch of cluster_rank: grid must be from 1 to [2147483647, 65535, 65535], \
             got [1, 0, 1]"
                .to_owned(),
        ),
        (
            CudaLaunch { block: [1024, 2, 1], ..rank },
            format!(
                "launch of cluster_rank: block must be 1 to {max_threads} threads, \
                 got [1024, 2, 1] = 2048 threads"
            ),
        ),
        (
            CudaLaunch { dynamic_shared: shared + 1, ..rank },
            format!(
                "launch of cluster_rank: dynamic_shared must be at most {shared} bytes \
                 beside 0 static ones, got {} bytes",
                shared + 1
            ),
        ),
        (
            CudaLaunch { cluster: Some([3, 1, 1]), ..rank },
            "launch of cluster_rank: grid must be a multiple of the cluster [3, 1, 1], \
             got [32, 1, 1]"
                .to_owned(),
        ),
        (
            CudaLaunch { cluster: Some([32, 1, 1]), ..rank },
            "launch of cluster_rank: cluster must be 1 to 16 blocks, \
             got [32, 1, 1] = 32 blocks"
                .to_owned(),
        ),
        (
            CudaLaunch { entry: "cluster_fixed", cluster: Some([4, 1, 1]), ..rank },
            "launch of cluster_fixed: cluster must be [2, 1, 1], as the kernel says, \
             got [4, 1, 1]"
                .to_owned(),
        ),
        (
            CudaLaunch { entry: "gemv", ..rank },
            "no kernel \"gemv\" in the module; it has: bump, cluster_fixed, cluster_rank, \
             fault, read_all, reverse, vector_add"
                .to_owned(),
        ),
    ];
    let count = cases.len();
    for (launch, expected) in cases {
        // SAFETY: refused before anything runs.
        let refused = unsafe { module.launch(&launch) };
        let refused = refused.map_err(|error| error.to_string());
        ensure(refused.as_ref() == Err(&expected), || {
            format!("expected {expected:?}, got {refused:?}")
        })?;
    }
    device.synchronize()?;
    pass(format!("{count} refusals"))
}

fn refused_ptx(device: &CudaDevice, _: &CudaModule) -> Checked {
    let ptx = format!(
        ".version 9.0\n.target {}\n.address_size 64\n.visible .entry k() {{ no.such.op; ret; }}\n",
        device.arch()
    );
    let log = match device.load(&ptx) {
        Err(CudaError::Module { log, .. }) => log,
        other => return Err(format!("{:?}", other.map(|_| "accepted")).into()),
    };
    ensure(log.contains("line 4"), || format!("no line in the log: {log:?}"))?;
    let nul = device.load(".version\0").map(|_| ()).map_err(|error| error.to_string());
    let expected = "loading PTX: text must be free of nul characters, got one at byte 8";
    ensure(nul == Err(expected.to_owned()), || format!("{nul:?}"))?;
    pass(log.lines().next().unwrap_or_default())
}

fn graph(device: &CudaDevice, module: &CudaModule) -> Checked {
    let counter = device.upload(&0_u32.to_le_bytes())?;
    let bump = params(&[counter.address()], None);
    let graph = device.capture(|| {
        for _ in 0..5 {
            // SAFETY: one word, alive until the end of this check.
            unsafe { module.launch(&plain("bump", 1, 1, &bump))? };
        }
        Ok::<(), CudaError>(())
    })?;
    ensure(graph.nodes() == 5, || format!("{} nodes", graph.nodes()))?;
    equal("before a replay", &words(&counter.to_vec()?), &[0])?;
    for _ in 0..3 {
        // SAFETY: as above.
        unsafe { graph.replay()? };
    }
    equal("after 3 replays", &words(&counter.to_vec()?), &[15])?;
    counter.fill(0)?;
    // SAFETY: as above.
    let times = unsafe { graph.time(5, 2, 20)? };
    equal("after timing", &words(&counter.to_vec()?), &[22 * 5])?;
    ensure(times.all.len() == 20 && times.p10 > 0.0, || format!("{times:?}"))?;
    // SAFETY: refused before anything runs.
    let none = unsafe { graph.time(5, 0, 0) };
    ensure(none.is_err(), || "0 replays are accepted".into())?;
    pass(format!(
        "{:.2} us a dependent launch (p10 {:.2}, p90 {:.2})",
        times.median * 1e6,
        times.p10 * 1e6,
        times.p90 * 1e6
    ))
}

fn broken_recordings(device: &CudaDevice, module: &CudaModule) -> Checked {
    #[derive(Debug)]
    enum Stop {
        Here,
        Cuda(CudaError),
    }
    impl From<CudaError> for Stop {
        fn from(error: CudaError) -> Self {
            Stop::Cuda(error)
        }
    }
    let counter = device.upload(&0_u32.to_le_bytes())?;
    let bump = params(&[counter.address()], None);
    // SAFETY: one word, alive until the end of this check.
    let launch = || unsafe { module.launch(&plain("bump", 1, 1, &bump)) };

    let stopped = device.capture(|| {
        launch()?;
        Err(Stop::Here)
    });
    ensure(matches!(stopped, Err(Stop::Here)), || "the error is lost".into())?;
    let copied = device.capture(|| {
        launch()?;
        counter.to_vec().map(drop).map_err(Stop::Cuda)
    });
    let text = match copied {
        Err(Stop::Cuda(error)) => error.to_string(),
        _ => return Err("a copy was recorded".into()),
    };
    launch()?;
    equal("after both", &words(&counter.to_vec()?), &[1])?;
    pass(format!("copy refused with: {text}"))
}

/// Two threads and two streams: one records while the other launches, copies, allocates and frees.
fn threads(device: &CudaDevice, module: &CudaModule) -> Checked {
    const ROUNDS: u32 = 200;
    let other = CudaDevice::open(device.info().ordinal)?;
    let counters = [device.upload(&[0; 4])?, other.upload(&[0; 4])?];
    let modules = [module.clone(), module.on(&other)?];
    let launch = |which: usize| {
        let bump = params(&[counters[which].address()], None);
        // SAFETY: one word, alive until the end of this check.
        unsafe { modules[which].launch(&plain("bump", 1, 1, &bump)) }
    };
    let [recorded, worked] = std::thread::scope(|scope| {
        let record = scope.spawn(|| -> Result<(), CudaError> {
            for _ in 0..ROUNDS {
                let graph = device.capture(|| {
                    launch(0)?;
                    // Another stream's copies do not disturb the recording, nor does memory.
                    other.upload(&[1; 64])?.to_vec().map(drop)
                })?;
                // SAFETY: the counter and the module outlive the replay.
                unsafe { graph.replay()? };
            }
            device.synchronize()
        });
        let work = scope.spawn(|| -> Result<(), CudaError> {
            for _ in 0..ROUNDS {
                launch(1)?;
                other.upload(&[2; 64])?.to_vec()?;
            }
            other.synchronize()
        });
        [record, work].map(|thread| thread.join())
    });
    for result in [recorded, worked] {
        result.map_err(|_| "a thread panicked")??;
    }
    for counter in &counters {
        equal("rounds", &words(&counter.to_vec()?), &[ROUNDS])?;
    }
    pass(format!("{ROUNDS} rounds on each of two threads and streams"))
}

fn ceiling_read(device: &CudaDevice, module: &CudaModule) -> Checked {
    let mut rates = Vec::new();
    for bytes in [33 << 20, 66 << 20, 132 << 20] {
        // SAFETY: the kernel reads its input and writes at most 8 bytes per thread.
        let rate = unsafe { device.time_reads(module, "read_all", 512, bytes, 3, 20)? };
        ensure(rate.bytes_per_second > 0.0, || format!("{rate:?}"))?;
        rates.push(format!(
            "{} MiB x {} in {:.1} us = {:.2} TB/s",
            bytes >> 20,
            rate.sets,
            rate.times.median * 1e6,
            rate.bytes_per_second * 1e-12
        ));
    }
    pass(rates.join(", "))
}

fn cublas(device: &CudaDevice, _: &CudaModule) -> Checked {
    let cublas = match Cublas::open(device) {
        Ok(cublas) => cublas,
        Err(error @ CublasError::Missing { .. }) => return Ok(Outcome::Skip(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let halves = |count: usize, f: fn(usize) -> f32| -> Vec<u8> {
        (0..count).flat_map(|i| f16::from_f32(f(i)).to_le_bytes()).collect()
    };
    for n in [1, 3] {
        let shape = CublasShape { m: 200, n, k: 328, batch: 2 };
        let CublasShape { m, k, batch, .. } = shape;
        let a = device.upload(&halves(batch * m * k, a_value))?;
        let b = device.upload(&halves(batch * n * k, b_value))?;
        let c = device.alloc(2 * batch * n * m)?;
        let product = || -> Result<(), CublasError> {
            // SAFETY: sizes as computed above; alive until the end of the loop.
            unsafe { cublas.half_product(shape, a.address(), b.address(), c.address()) }
        };
        // SAFETY: as above.
        unsafe { both_ways(device, shape, product, &c)? };
    }
    pass(format!("version {} from {}", cublas.version()?, cublas.path()))
}

fn cublas_e4m3(device: &CudaDevice, _: &CudaModule) -> Checked {
    let cublas = match CublasLt::open(device) {
        Ok(cublas) => cublas,
        Err(error @ CublasError::Missing { .. }) => return Ok(Outcome::Skip(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let bytes = |count: usize, f: fn(usize) -> f32| -> Vec<u8> {
        (0..count).map(|i| e4m3::encode(f(i))).collect()
    };
    let mut refused = Vec::new();
    for (n, batch) in [(16, 1), (3, 1), (48, 2)] {
        let shape = CublasShape { m: 208, n, k: 336, batch };
        let CublasShape { m, k, .. } = shape;
        let a = device.upload(&bytes(batch * m * k, a_value))?;
        let b = device.upload(&bytes(batch * n * k, b_value))?;
        let c = device.alloc(2 * batch * n * m)?;
        for sums in [E4m3Sums::Promoted, E4m3Sums::Fast] {
            let planned = match cublas.e4m3_product(shape, sums, 256) {
                // Documented products must be there; batches and odd columns are not.
                Err(error @ CublasError::Refused { .. }) if (n, batch) != (16, 1) => {
                    refused.push(error.to_string());
                    continue;
                }
                planned => planned?,
            };
            let product = || -> Result<(), CublasError> {
                // SAFETY: sizes as computed above; alive until the end of the loop.
                unsafe { planned.launch(a.address(), b.address(), c.address()) }
            };
            c.fill(0xcb)?;
            // SAFETY: as above.
            unsafe { both_ways(device, shape, product, &c)? };
        }
    }
    // Rows that are no multiple of 16 bytes.
    let shape = CublasShape { m: 200, n: 16, k: 328, batch: 1 };
    match cublas.e4m3_product(shape, E4m3Sums::Promoted, 256) {
        Err(CublasError::Refused { .. } | CublasError::Call { .. }) => {}
        other => return Err(format!("K = 328 gave {other:?}").into()),
    }
    let (version, path) = (cublas.version(), cublas.path());
    let refused: String = refused.iter().map(|error| format!("; {error}")).collect();
    pass(format!("version {version} from {path}{refused}"))
}

// Small integers, so that every sum is exact in f16 too.
fn a_value(i: usize) -> f32 {
    (i * 7 % 5) as f32 - 2.0
}

fn b_value(i: usize) -> f32 {
    (i * 3 % 4) as f32 - 1.0
}

/// Checks the product of `a_value`s and `b_value`s, as it is launched and as it is recorded.
///
/// # Safety
/// The product writes `c` alone, and its operands live until this returns.
unsafe fn both_ways(
    device: &CudaDevice,
    shape: CublasShape,
    product: impl Fn() -> Result<(), CublasError>,
    c: &CudaMemory,
) -> Result<(), Box<dyn Error>> {
    let CublasShape { m, n, k, batch } = shape;
    let expected: Vec<f16> = (0..batch * n * m)
        .map(|at| {
            let (l, j, i) = (at / (n * m), at / m % n, at % m);
            let term = |p| a_value((l * m + i) * k + p) * b_value((l * n + j) * k + p);
            f16::from_f32((0..k).map(term).sum())
        })
        .collect();
    let read = |bytes: Vec<u8>| -> Vec<f16> {
        let half = |pair: &[u8]| f16::from_le_bytes([pair[0], pair[1]]);
        bytes.chunks_exact(2).map(half).collect()
    };
    product()?;
    equal("product", &read(c.to_vec()?), &expected)?;
    let graph = device.capture(product)?;
    c.fill(0xcb)?;
    // SAFETY: the caller guarantees the memory.
    let times = unsafe { graph.time(1, 1, 3)? };
    equal("recorded product", &read(c.to_vec()?), &expected)?;
    ensure(times.median > 0.0, || format!("{times:?}"))
}

fn fault(device: &CudaDevice, module: &CudaModule) -> Checked {
    // SAFETY: the kernel stores to address 16, which is no allocation's: the point
    // of this check. Nothing runs on the device after it.
    unsafe { module.launch(&plain("fault", 1, 1, &[]))? };
    let text = match device.synchronize() {
        Err(error @ CudaError::Call { .. }) => error.to_string(),
        other => return Err(format!("a store to address 16 gave {other:?}").into()),
    };
    ensure(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), || text.clone())?;
    ensure(device.alloc(16).is_err(), || "the device still allocates".into())?;
    pass(text)
}
