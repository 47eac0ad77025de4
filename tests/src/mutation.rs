//! Helpers that the mutation checks of our kernels share.

use fp4_formats::Arch;
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::tune::ResultKind;
use ptx_emu::bundle::{Bundle, RunBundle as _};
use ptx_emu::experiment::{Earlier, Experiment};
use ptx_emu::mutate::{Equivalent, Fate, Mutant, MutateOptions, mutate_all};
use ptx_emu::{GlobalMemory, Gpu, Module};

/// Reads the project's list of mutants that are no faults.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn equivalents() -> Vec<Equivalent> {
    let path = crate::root().join("kernels-gpu/equivalent-mutants.txt");
    let text = std::fs::read_to_string(&path).expect("the list is there");
    Equivalent::parse(&text).expect("the list can be read")
}

/// Seeds, see [`MutateOptions`], and the required share of caught mutants.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Seeds besides `eager` and `lazy`.
    pub seeds: u64,
    /// Mutants that must run.
    pub least: usize,
    /// Share of the faults among them that must be caught, percent.
    pub caught: u32,
}

/// Mutants that may be faults, and that the emulator cannot notice. They count as not caught.
const MISSED: &str = "
# kernel | mutation | instruction | reason
gemm_* | relaxed | st.release.gpu.global.b32* | orders in global memory are not looked at (machine::race)
gemm_* | relaxed | ld.acquire.gpu.global.b32* | orders in global memory are not looked at (machine::race)
gemm_sm90_* | remove | fence.proxy.async.global; | likewise, before a copy of what other CTAs wrote there
gemm_sm100_nvfp4_128x64 | remove | bar.warp.sync %r; ~28fa | as the flag's order: lanes also come together for a load of tensor memory
gemm_sm100_nvfp4_128x8 | remove | bar.warp.sync %r; ~28fa | as that of 128x64
gemm_sm100_mxfp4_e4m3_128x64 | remove | bar.warp.sync %r; ~28fa | as that of 128x64
gemm_sm100_nvfp4_e4m3_256x128 | remove | bar.warp.sync %r; ~28fa | as that of 128x64
gemm_sm90_nvfp4_f16_128x32 | remove | bar.sync 1, 256; ~219c | as the flag's order: no schedule of these launches sets it before the sums behind it
gemm_sm90_nvfp4_f16_128x128_grouped | remove | bar.sync 1, 256; ~7ba2 | as that of 128x32
gemm_sm90_nvfp4_e4m3_128x32 | remove | bar.sync 1, 256; ~4212 | as that of 128x32
gemm_sm90_nvfp4_f16_128x128_grouped | remove | bar.warp.sync %r; ~7357 | lanes write the same words of a run, but no launch parts them just there
gemm_sm90_nvfp4_f16_128x8_grouped | remove | griddepcontrol.wait; ~2d52 | of a CTA without work: only a kernel behind this one could begin too early
gemm_sm100_nvfp4_256x128_grouped | remove | bar.warp.sync %r; ~87ea | lanes hand token counts to one another; shuffles behind it, which order no memory, keep them together
gemm_sm100_nvfp4_f16_128x64_grouped | remove | bar.warp.sync %r; ~87ea | as that of 256x128
gemm_sm90_nvfp4_f16_128x256_multicast2_grouped | remove | bar.warp.sync %r; ~f96b #3 | lanes write the same words of a run, but no launch parts them just there
gemm_sm90_nvfp4_f16_128x256_multicast2_grouped | relaxed | @arrives mbarrier.arrive.release.cta.shared::cta.b64 _, [%r]; } ~1a0d #4 | a barrier of the warp before it is taken for a fence
gemm_sm90_nvfp4_f16_128x256_multicast2_grouped | relaxed | @arrives mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r]; } ~398b #10 | a barrier of the warp before it is taken for a fence
gemm_sm90_nvfp4_f16_128x256_multicast2_grouped | remove | bar.sync 2, 128; ~7dd5 #50 | the next tile's products, which a warpgroup's warps wait for together, are taken to order the reads before them
gemm_sm90_nvfp4_f16_128x256_multicast2_grouped | remove | bar.sync 3, 128; ~9ef5 #53 | the next tile's products, which a warpgroup's warps wait for together, are taken to order the reads before them
gemm_*_mixed | remove | fence.proxy.tensormap::generic.acquire.sys [%rd], 128; | of maps that the host wrote, no launch finds an older one in a cache
gemm_sm90_* | relaxed | barrier.cluster.arrive.release.aligned; #2 | a remote load is over when it is issued, so none is under way when its CTA ends
gemm_sm80_* | remove | bar.sync 0; ~e27c | as the flag's order: no schedule of these launches sets it before the sums behind it
gemm_sm120_* | remove | bar.sync 0; ~e27c | as that of sm_80
attention_* | relaxed | atom.acq_rel.gpu.global.inc.u32* | orders in global memory are not looked at (machine::race)
attention_* | remove | bar.sync 0; ~0abb | as the flag's order: no schedule of these launches counts a split before its sums are stored
gemm_sm120_nvfp4_128x16_grouped | remove | bar.warp.sync %r; ~b852 | lanes write the same words of a run, but no launch parts them just there
";

/// Runs the check on launches of one kernel. Every survivor must be listed.
pub fn check(launches: &[Experiment], effort: Effort) {
    let options = MutateOptions {
        seeds: effort.seeds,
        equivalents: equivalents(),
        ..MutateOptions::default()
    };
    let name = &launches[0].entry;
    let mutants = mutate_all(launches, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut text = String::new();
    for m in &mutants.mutants {
        let fate = match &m.fate {
            Fate::Caught { schedule, finding } => format!("{schedule}: {}", finding.summary()),
            other => format!("{other:?} {}", m.equivalent.as_deref().unwrap_or_default()),
        };
        let Mutant { line, mutation, shape, place, nth, .. } = m;
        text += &format!("  {line} {mutation} | {shape} ~{place} #{nth}: {fate}\n");
    }
    let count = |fate: Fate| mutants.mutants.iter().filter(|m| m.fate == fate).count();
    let unreached = count(Fate::NotReached);
    let run = mutants.mutants.len() - unreached;
    let missed = Equivalent::parse(MISSED).expect("the list can be read");
    let known = |m: &&Mutant| missed.iter().any(|missed| missed.covers(name, m));
    println!(
        "{} {name}: {run} mutants run in {} launches, {unreached} not reached; {} of {} that \
         are faults caught, {} known to be missed\n{text}",
        launches[0].gpu.name,
        launches.len(),
        mutants.caught(),
        mutants.counted(),
        mutants.unexplained().filter(known).count(),
    );
    assert!(run >= effort.least, "{name}: {run} mutants\n{text}");
    assert!(mutants.passes(effort.caught), "{name}\n{text}");
    let survivor = mutants.unexplained().find(|m| !known(m));
    assert!(survivor.is_none(), "{name}: no reason why this survived: {survivor:?}\n{text}");
}

/// Seeds of kernels whose launches take long, besides `eager` and `lazy`.
const FEW_SEEDS: u64 = 6;

/// Returns the least mutants of a kernel on `arch`, which are `least` where launches overlap: kernels that only wait for
/// the one before have no others.
#[must_use]
pub fn overlapping(arch: Arch, least: usize) -> usize {
    if arch.dependent_launches() { least } else { 0 }
}

/// Checks a GEMM kernel as [`check`] does, with few seeds. The variable `NVFP4_ALL_SEEDS` makes them 64, which
/// takes many minutes.
///
/// # Panics
/// The same as [`check`].
pub fn check_briefly(launches: &[Experiment]) {
    check(launches, Effort { seeds: few_seeds(), least: 60, caught: 95 });
}

/// [`check_briefly`] of a kernel on `mma.sync`, whose warps have one role and at least `least` faults between them, of
/// which `caught` percent must be noticed. Three of these are orders in global memory, which the emulator does not notice.
///
/// # Panics
/// The same as [`check`].
pub fn check_one_role(launches: &[Experiment], (least, caught): (usize, u32)) {
    check(launches, Effort { seeds: few_seeds(), least, caught });
}

/// Seeds of kernels whose launches take long.
fn few_seeds() -> u64 {
    if std::env::var_os("NVFP4_ALL_SEEDS").is_some() { 64 } else { FEW_SEEDS }
}

/// Selects a launch of a kernel.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// The first one. Quantised results are compared with floats of a launch behind it.
    First,
    /// The last one. Floats come before quantised results, which are scaled by their magnitude.
    Last,
}

/// Returns the part of a result that the harness of products writes first.
#[must_use]
pub fn first_written(result: ResultKind) -> &'static str {
    match result {
        // The padding of scales.
        ResultKind::Blocks(..) => "c scales",
        ResultKind::Floats(_) => "c",
    }
}

/// Captures a launch of `kernel` by the host library while `run` works on a machine. `run` returns the names of an
/// input that a [kernel before](earlier) makes and of a result that it writes. No other capture of the kernel has
/// this `name` at the same time.
///
/// # Panics
/// If there is no such launch, or no such memory.
pub fn captured(
    kernel: &str,
    name: &str,
    gpu: &Gpu,
    which: Which,
    run: impl FnOnce(&Kernels) -> [&'static str; 2],
) -> Experiment {
    let folder = format!("nvfp4-mutants-{}-{kernel}-{name}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let device = Device::open(&DeviceRequest::Emulator(gpu.clone())).expect("opens anywhere");
    // Its kernels run on request where there are closer ones.
    let device = match kernel.starts_with("gemm_sm80_") {
        true => device.with_arch(Arch::Sm80).expect("any machine runs it"),
        false => device,
    };
    let device = device.with_capture(&folder);
    let kernels = device.kernels(Some(&crate::kernels_dir())).expect("kernels are built");
    let places = run(&kernels);
    // Other kernels may have been launched before.
    let launches = device.capture().expect("it captures").launches();
    let bundles = (0..launches).map(|at| folder.join(format!("{at:03}-{kernel}")));
    let mut bundles = bundles.filter(|bundle| bundle.is_dir());
    let bundle = match which {
        Which::First => bundles.next(),
        Which::Last => bundles.next_back(),
    };
    let bundle = bundle.unwrap_or_else(|| panic!("no launch of {kernel} in {}", folder.display()));
    let bundle = Bundle::read(&bundle).expect("a bundle");
    std::fs::remove_dir_all(&folder).expect("it was there");
    let mut experiment = bundle.experiment(Some(gpu)).expect("it fits");
    let [input, result] = places.map(|name| {
        let mut found = experiment.memory.allocations().filter(|(of, ..)| *of == name);
        found.next().map(|(_, addr, bytes)| (addr, bytes)).unwrap_or_else(|| {
            let all: Vec<_> = experiment.memory.allocations().collect();
            panic!("{kernel}: no {name} in {all:?}")
        })
    });
    // Without dependent launches, every kernel begins when the one before has ended.
    if device.choice().arch.dependent_launches() {
        experiment.earlier = Some(earlier(&mut experiment.memory, gpu, input, result));
    }
    experiment
}

/// The kernel before: it lets the next one begin, takes its time, then copies from one place to
/// another, twice; 32 threads.
const BEFORE: &str = ".version 9.0
.target sm_90
.address_size 64
.visible .entry before(.param .align 8 .b8 copies[48]) {
    .reg .b64 %from, %to, %at; .reg .b32 %n, %i, %v; .reg .pred %p;
    griddepcontrol.launch_dependents;
    mov.u32 %i, 0;
WAIT:
    add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 20000; @%p bra WAIT;
    ld.param.u64 %from, [copies]; ld.param.u64 %to, [copies+8]; ld.param.u32 %n, [copies+16];
    mov.u32 %i, %tid.x;
FIRST:
    setp.ge.u32 %p, %i, %n; @%p bra COPIED;
    mad.wide.u32 %at, %i, 4, %from; ld.global.u32 %v, [%at];
    mad.wide.u32 %at, %i, 4, %to; st.global.u32 [%at], %v;
    add.u32 %i, %i, 32; bra FIRST;
COPIED:
    ld.param.u64 %from, [copies+24]; ld.param.u64 %to, [copies+32]; ld.param.u32 %n, [copies+40];
    mov.u32 %i, %tid.x;
SECOND:
    setp.ge.u32 %p, %i, %n; @%p bra DONE;
    mad.wide.u32 %at, %i, 4, %from; ld.global.u32 %v, [%at];
    mad.wide.u32 %at, %i, 4, %to; st.global.u32 [%at], %v;
    add.u32 %i, %i, 32; bra SECOND;
DONE:
    ret;
}
";

/// The bytes of memory before a kernel has written there.
const POISON: u8 = 0xff;

/// Returns a kernel before in the stream that makes an input, which is in `memory` already, and
/// writes a result that the kernel replaces: addresses and bytes, multiples of four. A kernel that
/// reads the one or writes the other before it has ended goes wrong.
pub fn earlier(
    memory: &mut GlobalMemory,
    gpu: &Gpu,
    input: (u64, u64),
    result: (u64, u64),
) -> Earlier {
    let mut params = Vec::new();
    for (to, bytes) in [input, result] {
        assert!(bytes.is_multiple_of(4), "{bytes} bytes");
        // The result may have initial contents.
        let poison = |_| vec![POISON; bytes as usize];
        let contents = memory.read(to, bytes).unwrap_or_else(poison);
        memory.fill(to, bytes, POISON).expect("it is there");
        let from = memory.alloc_from("before", &contents).expect("room");
        params.extend([from, to, bytes / 4].into_iter().flat_map(u64::to_le_bytes));
    }
    let module = Module::load(BEFORE, gpu).unwrap_or_else(|e| panic!("{e}"));
    Earlier { module, entry: "before".to_owned(), grid: [1; 3], block: [32, 1, 1], params }
}
