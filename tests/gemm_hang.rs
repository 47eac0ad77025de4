//! A stream-K product of which a CTA never sends its partial sums ends with an error, and does not hang.
//!
//! No input does that; the PTX is changed, so that flags are not raised, or partial sums that show by themselves that they
//! are there are not sent, and so that the CTA that waits for them gives up sooner. On the emulated H200, and on cuda:0 where there is one. A file of
//! its own: on a GPU nothing can be launched after the error.

use std::time::Instant;

use fp4_formats::arch::TensorFamily;
use fp4_formats::gemm::Split;
use fp4_formats::{FloatType, HalfType, Nvfp4, ScaleLayout};
use nvfp4::device::{Device, Kernels};
use nvfp4::error::Error;
use nvfp4::gemm::{
    ActivationKind, Activations, GemmOptions, GemmOverrides, GemmRun, HalfMatrix, Repacked,
};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;
use nvfp4_tests::{emulated, gpu, ptx};
use ptx_emu::Schedule;

/// A kernel that waits for partial sums themselves, and one that waits for flags; by what each sends them.
const MARKED: [&str; 2] = ["gemm_sm90_nvfp4_f16_128x8", "st.relaxed.gpu.global.v4.b32"];
const FLAGGED: [&str; 2] = ["gemm_sm90_nvfp4_f16_128x64", "st.release.gpu.global.b32"];

const M: usize = 8;
const N: usize = 256;
const K: usize = 16_384;
const KIND: ActivationKind = ActivationKind::Halves(HalfType::F16);
/// The kernel's number of polls.
const POLLS: u32 = 1 << 26;

/// A product by stream-K with the kernel `entry` of these.
fn run(kernels: &Kernels, entry: &str) -> Result<GemmRun, Error> {
    let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
    let weight = quantize("w", &[0.5; N * K], Dims::new(1, N, K)?, scale, layout)?;
    let x = HalfMatrix::round("x", Dims::new(1, M, K)?, HalfType::F16, &[1.0; M * K])?;
    let overrides = GemmOverrides::new().kernel(entry.to_owned()).split(Split::StreamK);
    let options = GemmOptions::new().output(FloatType::F32).overrides(overrides);
    let repacked = Repacked::for_device(kernels.device(), &weight, KIND)?;
    GemmRun::new(kernels, &Activations::<Nvfp4>::Halves(&x), &repacked, &options)
}

/// Kernels of which the CTAs of `entry` do not send, and poll `polls` times.
fn silent(device: &Device, [entry, sends]: [&str; 2], polls: u32) -> Kernels {
    let text = ptx(device.choice().arch, entry);
    let begin = text.find(&format!(".visible .entry {entry}(")).expect("the kernel");
    let end = begin + text[begin..].find("\n}").expect("its end");
    let bound = format!(", {POLLS};");
    let kernel = &text[begin..end];
    assert!(kernel.contains(sends), "{entry} sends by {sends}");
    assert_eq!(kernel.matches(&bound).count(), 1, "polls are counted in one place");
    let lines = kernel.lines().map(|line| if line.contains(sends) { "" } else { line });
    let changed = lines.collect::<Vec<_>>().join("\n").replace(&bound, &format!(", {polls};"));
    let text = [&text[..begin], &changed, &text[end..]].concat();
    // SAFETY: the kernel reads and writes what it did, but for what it sends.
    unsafe { Kernels::from_ptx(device, [text]) }.expect("ours")
}

#[test]
fn the_emulator_names_what_nobody_sends() {
    let whole = emulated("emu:h200", Schedule::Eager);
    assert_eq!(whole.device().choice().arch.tensor(), TensorFamily::Wgmma);
    // Few polls: the trap. As many as there are: a deadlock, long before.
    for sends in [MARKED, FLAGGED] {
        for (polls, expected) in [(3, "trap"), (POLLS, "deadlock")] {
            let (kernels, entry) = (silent(whole.device(), sends, polls), sends[0]);
            let error = run(&kernels, entry).and_then(|run| run.launch()).expect_err("never ends");
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains(entry), "{polls} polls: {text}");
        }
    }
}

#[test]
fn a_gpu_ends_the_launch() {
    let Some(whole) = gpu() else { return };
    if whole.device().choice().arch.tensor() != TensorFamily::Wgmma {
        let device = whole.device().choice();
        return skipped::test(format!("no kernel of {device} waits for other CTAs"));
    }
    let polls = 1 << 21;
    let (kernels, entry) = (silent(whole.device(), MARKED, polls), MARKED[0]);
    let run = run(&kernels, entry).expect("planned");
    let begin = Instant::now();
    let error = run.launch().and_then(|()| run.result().map(drop)).expect_err("never ends");
    let seconds = begin.elapsed().as_secs_f64();
    println!("{entry}: {polls} polls in {seconds:.2} s, then: {error}");
    assert!(seconds < 60.0);
}
