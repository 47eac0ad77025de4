//! `test`: everything that can be tested on this machine.
//!
//! Steps that need something this machine lacks are skipped by name, with the
//! reason, and counted in the last line.

use crate::build_kernels::{self, Assembler};
use crate::{fetch_model, run};
use anyhow::{Context, Result};
use clap::Args;
use cuda_builder::{Compiler, Fetch, ptx};
use fp4_formats::arch::TensorFamily;
use fp4_formats::{Arch, Family};
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

#[derive(Args)]
pub struct Options {
    /// Leave out what needs the network: the real model, and ptxas if it is not
    /// installed
    #[arg(long)]
    offline: bool,
}

/// What came of everything so far.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    fn step(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => {
                println!("step {name} ... ok");
                self.passed += 1;
            }
            Err(error) => {
                println!("step {name} ... FAILED: {error:#}");
                self.failed += 1;
            }
        }
    }

    fn skip(&mut self, name: &str, why: &str) {
        println!("step {name} ... skipped: {why}");
        self.skipped += 1;
    }
}

/// Runs the command; exit code 1 if anything failed.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let compiler = Compiler::find(Fetch::Allowed)?;
    build_kernels::refresh()?;
    compilers(&mut tally, &compiler);
    machine_code(&mut tally, options);

    let model = if options.offline {
        tally.skip("real model", "--offline");
        None
    } else {
        match fetch_model::run() {
            Ok(path) => Some(path),
            Err(error) => {
                tally.skip("real model", &format!("{error:#}"));
                None
            }
        }
    };
    let mut tests = run::cargo();
    tests
        .args(["test", "--workspace", "--release", "--no-fail-fast"])
        .env("NVFP4_KERNELS_DIR", run::kernels())
        // What this machine was tuned for is no part of what is tested.
        .env("NVFP4_TUNE", "off");
    if let Some(model) = model {
        tests.env("NVFP4_TEST_MODEL", model);
    }
    cargo_tests(&mut tally, tests)?;

    println!(
        "\ntests: {} passed, {} failed, {} skipped",
        tally.passed, tally.failed, tally.skipped
    );
    Ok(ExitCode::from(u8::from(tally.failed > 0)))
}

/// Every accepted compiler builds the kernels, and each result keeps the
/// contract that `cuda_builder` checks and the synchronisation that the source
/// asks for.
fn compilers(tally: &mut Tally, default: &Compiler) {
    let all = Compiler::all();
    for compiler in &all {
        for arch in Arch::ALL {
            let name = format!("kernels for {arch} with rustc {}", compiler.release);
            tally.step(&name, of_compiler(arch, compiler));
        }
    }
    for (wanted, origin) in
        [("rustup's toolchain", "active toolchain"), ("Debian's rustc-web", "Debian's rustc-web")]
    {
        if all.iter().all(|c| c.origin != origin) {
            tally.skip(
                &format!("kernels with {wanted}"),
                &format!("not on this machine; used {}", default.describe()),
            );
        }
    }
}

/// Compiles all modules for `arch` and counts what synchronises in them.
fn of_compiler(arch: Arch, compiler: &Compiler) -> Result<()> {
    let targets = Family::of(arch).map(|family| (arch, family)).collect();
    let mut text = String::new();
    for ((_, family), built) in build_kernels::compile(targets, compiler)? {
        text += &built.with_context(|| family.to_string())?.ptx;
    }
    synchronisation(arch, &text)
}

/// What the sources of the kernels ask threads to execute together: entry,
/// opcode, how often.
///
/// GEMV: two barriers around staging; the epilogue's five shuffles and, for R
/// rows, R - 1 transposing ones in place of the first log2(R). Quantise: a warp
/// barrier before blocks are taken from a stage, and one before the stage is
/// filled again, which only persistent CTAs do. Amax: the maximum over a warp by
/// row and for the matrix, and one barrier before a CTA's. Dequantise: nothing.
fn expected_synchronisation() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
    use fp4_formats::{gemv, quantize};
    let mut expected = Vec::new();
    for config in &gemv::CONFIGS {
        let rows = config.rows_per_warp as usize;
        let shuffles = rows - 1 + 5 - rows.ilog2() as usize;
        expected.push((config.name, vec![("bar.sync", 2), ("shfl.sync.bfly.b32", shuffles)]));
    }
    for config in &quantize::QUANTIZE {
        let barriers = if config.persistent { 2 } else { 1 };
        expected.push((config.name, vec![("bar.warp.sync", barriers)]));
    }
    for config in &quantize::AMAX {
        expected.push((config.name, vec![("bar.sync", 1), ("redux.sync.max.u32", 2)]));
    }
    for config in &quantize::DEQUANTIZE {
        expected.push((config.name, Vec::new()));
    }
    expected
}

/// The same for the GEMM of sm_100a. Warps come together before each of the two meetings
/// of all threads; those that use tensor memory meet behind its allocation; storing ones once they have sums, at each of the places where they give
/// an accumulator back, which are as many as read it last, after a chunk on either way out,
/// a part of one, a block of NVFP4, and for the next tile; before a box of results is filled
/// and before it is stored, in code of its own for either size of results and, of a chunk
/// of wide ones, for either box; in a split around the exchange's writes and after
/// its reads. Decoding ones before and after a K step, and for the next tile. Boxes take what
/// belongs to columns from the lanes: one vector if swapped, else two. Chunks for boxes are
/// read ahead, one or those that accumulators share, then in a loop, and in the loop of the
/// other way out. Blocks of swapped products are transposed by shuffles.
fn blackwell_synchronisation() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
    use fp4_formats::gemm::blackwell::CONFIGS;
    use fp4_formats::{BlockFormat, Nvfp4};
    let mut expected = Vec::new();
    for config in &CONFIGS {
        let (split, halves) = (config.splits > 1, config.left.is_some());
        let [alloc, dealloc, relinquish] = if config.pair == 1 {
            [
                "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32",
                "tcgen05.dealloc.cta_group::1.sync.aligned.b32",
                "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned",
            ]
        } else {
            [
                "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32",
                "tcgen05.dealloc.cta_group::2.sync.aligned.b32",
                "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned",
            ]
        };
        let block = Nvfp4::BLOCK;
        let mut counts = vec![
            ("bar.warp.sync", if split { 15 } else { 17 } + if halves { 3 } else { 0 }),
            ("elect.sync", 4),
            (alloc, 1),
            (dealloc, 1),
            ("tcgen05.ld.sync.aligned.32x32b.x8.b32", if split { 2 } else { 1 }),
            ("tcgen05.ld.sync.aligned.32x32b.x16.b32", 1),
            ("shfl.sync.bfly.b32", block / 2 * block.ilog2() as usize),
            (relinquish, 1),
            ("shfl.sync.idx.b32", if split { 3 * 8 } else { 3 * 32 }),
        ];
        if split {
            counts.push(("tcgen05.wait::ld.sync.aligned", 3));
        } else {
            let wide = if config.accumulators_overlap() && !halves { 4 } else { 2 };
            counts.push(("tcgen05.ld.sync.aligned.32x32b.x32.b32", wide));
            counts.push(("tcgen05.wait::ld.sync.aligned", 2 + wide));
        }
        if config.cluster() > 1 {
            counts.push(("bar.sync", 1));
            counts.push(("barrier.cluster.arrive.relaxed.aligned", 1));
            counts.push(("barrier.cluster.arrive.release.aligned", 1));
            counts.push(("barrier.cluster.wait.acquire.aligned", 2));
        } else {
            counts.push(("bar.sync", 3));
        }
        if halves {
            counts.push(("tcgen05.st.sync.aligned.32x32b.x16.b32", 4));
            counts.push(("tcgen05.wait::st.sync.aligned", 1));
        }
        counts.sort_unstable();
        expected.push((config.name, counts));
    }
    expected
}

/// The same for the GEMM of sm_90a. Of a CTA: all threads once; consumers when they give, take,
/// have read and have summed, and in a cluster when they have read, and where they send, when all
/// CTAs have offered. Warps after waiting for flags, and around sending. The cluster meets twice;
/// where sums are loaded, the second time in two ways. CTAs that share activations meet instead
/// of all threads, and in the end, each time behind their warps, which also come together before
/// they tell the other CTA: of a stage in the loop and behind it, and of stored sums.
fn hopper_synchronisation() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
    use fp4_formats::gemm::hopper::{CONFIGS, Operand};
    let mut expected = Vec::new();
    for config in &CONFIGS {
        let mut counts = if config.multicast > 1 {
            vec![
                ("bar.sync", 4),
                ("bar.warp.sync", 7),
                ("barrier.cluster.arrive.release.aligned", 2),
                ("barrier.cluster.wait.acquire.aligned", 2),
            ]
        } else if config.loads_remote() {
            vec![
                ("bar.sync", 6),
                ("bar.warp.sync", 1),
                ("barrier.cluster.arrive.relaxed.aligned", 1),
                ("barrier.cluster.arrive.release.aligned", 2),
                ("barrier.cluster.wait.acquire.aligned", 3),
            ]
        } else {
            vec![
                ("bar.sync", 7),
                ("bar.warp.sync", 4),
                ("barrier.cluster.arrive.relaxed.aligned", 2),
                ("barrier.cluster.wait.acquire.aligned", 2),
            ]
        };
        counts.push(("setmaxnreg.dec.sync.aligned.u32", 1));
        counts.push(("setmaxnreg.inc.sync.aligned.u32", 1));
        if config.uses_mma_sync() {
            // Of each group of eight tokens, four pieces and eight products per step.
            let groups = config.tokens as usize / 8;
            let product = match config.scheme.operand {
                Operand::F16 => "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
                Operand::Bf16 => "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            };
            counts.push(("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4 * groups));
            counts.push((product, 8 * groups));
        } else {
            // Two units of four products per step, of each block of rows.
            let units = 2 * config.row_blocks() as usize;
            let product = match (config.tokens, config.scheme.operand) {
                (32, Operand::F16) => "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16",
                (32, Operand::Bf16) => "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16",
                (64, Operand::F16) => "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
                (64, Operand::Bf16) => "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16",
                (_, Operand::F16) => "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16",
                (_, Operand::Bf16) => "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
            };
            counts.push((product, 4 * units));
            counts.push(("wgmma.commit_group.sync.aligned", units));
            counts.push(("wgmma.fence.sync.aligned", units));
            counts.push(("wgmma.wait_group.sync.aligned", units + 1));
        }
        counts.sort_unstable();
        expected.push((config.name, counts));
    }
    expected
}

/// The synchronising instructions of every kernel are those its source asks for.
fn synchronisation(arch: Arch, text: &str) -> Result<()> {
    let counts = ptx::convergent_counts(text);
    let mut all = expected_synchronisation();
    all.extend(match arch.tensor() {
        TensorFamily::Wgmma => hopper_synchronisation(),
        TensorFamily::Tcgen05 => blackwell_synchronisation(),
    });
    for (entry, expected) in all {
        let found: Vec<(&str, usize)> = counts
            .iter()
            .filter(|((of, _), _)| of == entry)
            .map(|((_, opcode), count)| (opcode.as_str(), *count))
            .collect();
        anyhow::ensure!(
            found == expected,
            "{entry} has {found:?}, its source asks for {expected:?}"
        );
    }
    Ok(())
}

/// ptxas accepts every kernel and none goes through local memory.
fn machine_code(tally: &mut Tally, options: &Options) {
    let assembler = match options.offline {
        true => Assembler::find().and_then(|found| found.context("no ptxas, and --offline")),
        false => Assembler::find_or_install(),
    };
    let assembler = match assembler {
        Ok(assembler) => assembler,
        Err(why) => return tally.skip("machine code", &format!("{why:#}")),
    };
    match build_kernels::with_machine_code(&assembler) {
        Ok(manifests) => {
            for manifest in manifests {
                let name = format!("machine code for {}", manifest.arch);
                tally.step(&name, build_kernels::nothing_in_local_memory(&manifest));
            }
        }
        Err(error) => tally.step("machine code", Err(error)),
    }
}

/// Runs cargo test, shows its output, and adds up its summary lines.
fn cargo_tests(tally: &mut Tally, mut command: std::process::Command) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("running cargo test")?;
    let mut summaries = 0;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            let line = line.context("reading cargo test's output")?;
            println!("{line}");
            if let Some(summary) = line.strip_prefix("test result:") {
                summaries += 1;
                tally.passed += count(summary, "passed");
                tally.failed += count(summary, "failed");
                tally.skipped += count(summary, "ignored");
            }
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    // A failure that no summary shows: a compile error, an abort.
    if !status.success() && tally.failed == 0 || summaries == 0 {
        println!("step cargo test ... FAILED: {status}, {summaries} summaries");
        tally.failed += 1;
    }
    Ok(())
}

/// The number before `what;` in cargo's summary.
fn count(summary: &str, what: &str) -> usize {
    summary
        .split(';')
        .filter_map(|part| part.trim().strip_suffix(what))
        .filter_map(|number| number.split_whitespace().last()?.parse::<usize>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn summaries_are_added_up() {
        let line =
            " ok. 12 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(
            (count(line, "passed"), count(line, "failed"), count(line, "ignored")),
            (12, 3, 4)
        );
    }
}
