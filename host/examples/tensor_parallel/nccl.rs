//! A process for each GPU; NCCL adds up what they compute.

use std::env;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use nvfp4::cudarc::driver::{CudaContext, CudaSlice};
use nvfp4::cudarc::nccl::{Comm, Id, NcclError, ReduceOp, find};
use nvfp4::cudarc::{read, write};
use nvfp4::device::Device;
use nvfp4::parallel::Shard;

use crate::RANKS;
use crate::mlp::{self, Mlp, Placed, Sizes, relative_error};

/// Sizes of a decoder's MLP of medium size.
const SIZES: Sizes = Sizes { tokens: 16, hidden: 4096, between: 14336 };
/// Runs that are timed.
const RUNS: u32 = 50;

/// Starts the processes, or is one of them: `RANK ID`.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    find()?;
    match arguments {
        [] => start(),
        [rank, id] => one_rank(rank.parse().context("the rank")?, id),
        _ => bail!("`nccl` takes no arguments"),
    }
}

fn nccl<T>(result: Result<T, NcclError>) -> anyhow::Result<T> {
    result.map_err(|error| anyhow::anyhow!("NCCL: {:?}", error.0))
}

fn start() -> anyhow::Result<()> {
    let found = nvfp4::cuda::probe()?.devices.len();
    ensure!(found >= RANKS, "{RANKS} GPUs are needed, {found} are here");
    let id = nccl(Id::new())?;
    let id: String =
        id.internal().iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect();
    let program = env::current_exe()?;
    let start = |rank: usize| {
        Command::new(&program).args(["nccl", &rank.to_string(), &id]).spawn().context("a process")
    };
    let processes = (0..RANKS).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    for mut process in processes {
        let status = process.wait()?;
        ensure!(status.success(), "a rank ended with {status}");
    }
    Ok(())
}

/// The bytes of an identifier from their digits.
fn id(digits: &str) -> anyhow::Result<Id> {
    let mut bytes = [0; 128];
    ensure!(digits.len() == 2 * bytes.len() && digits.is_ascii(), "the identifier has 256 digits");
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16)?.cast_signed();
    }
    Ok(Id::uninit(bytes))
}

fn one_rank(rank: usize, digits: &str) -> anyhow::Result<()> {
    let stream = CudaContext::new(rank)?.new_stream()?;
    let device = Device::from_cudarc(&stream)?;
    let kernels = device.kernels(None)?;
    let part = Shard::new(rank, RANKS)?;
    let mlp = Mlp::random(SIZES)?;
    let x = mlp::tokens(SIZES)?;
    let (words, _) = x.bytes().as_chunks();
    // An adapter needs no more of a bf16 than its bits.
    let bits: Vec<u16> = words.iter().map(|word| u16::from_le_bytes(*word)).collect();
    let x: CudaSlice<u16> = stream.clone_htod(&bits)?;
    let mut y: CudaSlice<f32> = stream.alloc_zeros(SIZES.tokens * SIZES.hidden)?;
    let compute = |placed: &Placed, y: &mut CudaSlice<f32>| {
        read(&device, "x", &x, |x| write(&device, "y", y, |y| placed.launch(x, y)))
    };
    let placed = mlp.part(part)?.place(&kernels, SIZES.tokens)?;
    let comm = nccl(Comm::from_rank(stream.clone(), rank, RANKS, id(digits)?))?;
    let run = |y: &mut CudaSlice<f32>| -> anyhow::Result<()> {
        compute(&placed, y)?;
        nccl(comm.all_reduce_in_place(y, &ReduceOp::Sum)).map(drop)
    };
    run(&mut y)?;
    let sum = stream.clone_dtoh(&y)?;
    let begin = Instant::now();
    for _ in 0..RUNS {
        run(&mut y)?;
    }
    stream.synchronize()?;
    let both = begin.elapsed() / RUNS;
    if rank > 0 {
        return Ok(());
    }
    let whole = mlp.place(&kernels, SIZES.tokens)?;
    compute(&whole, &mut y)?;
    let right = stream.clone_dtoh(&y)?;
    let begin = Instant::now();
    for _ in 0..RUNS {
        compute(&whole, &mut y)?;
    }
    stream.synchronize()?;
    let one = begin.elapsed() / RUNS;
    let error = relative_error(&sum, &right);
    println!("{SIZES:?}: {RANKS} GPUs {both:?}, one {one:?}; they differ by {error:.1e}");
    ensure!(error < mlp::BOUND, "the sum of parts is not the whole");
    Ok(())
}
