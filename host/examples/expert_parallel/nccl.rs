//! A process for each GPU; NCCL exchanges the rows.

use std::env;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::cudarc::driver::CudaContext;
use nvfp4::cudarc::nccl::{Id, NcclExchange, find};
use nvfp4::device::{Device, Kernels};
use nvfp4::moe::MoeBiases;
use nvfp4::parallel::{ExpertPlaces, Experts, ExpertsMemory, ExpertsShape, ExpertsStep};
use nvfp4::{FloatType, HalfType, floats};

use crate::layer::{Form, Mixture, OnDevice, Sizes, Tokens, Whole, capacity};

/// The most processes.
const MOST_RANKS: usize = 8;
/// Experts of all ranks, if none are given.
const EXPERTS: [usize; 2] = [128, 256];
/// Tokens of each rank.
const TOKENS: [usize; 5] = [1, 16, 64, 512, 2048];
/// Rounds that are timed, whose median is printed, and runs of a round.
const ROUNDS: usize = 5;
const RUNS: u32 = 20;
/// Time after which work is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// Largest relative error beside one GPU: products may add up in another order, and what is between them is rounded.
const BOUND: f64 = 3e-2;
/// Most tokens of which the bits are compared, too.
const EXACT: usize = 64;

/// Starts the processes, or is one of them: `rank RANK RANKS EXPERTS ID`.
pub fn run(arguments: &[&str]) -> anyhow::Result<()> {
    find()?;
    match arguments {
        [] => EXPERTS.into_iter().try_for_each(start),
        ["rank", rank, ranks, experts, id] => {
            let [rank, ranks, experts] = [rank, ranks, experts].map(|number| number.parse());
            one_rank([rank?, ranks?], experts?, id)
        }
        [experts] => start(experts.parse().context("the number of experts")?),
        _ => bail!("`nccl` takes the number of experts"),
    }
}

fn start(experts: usize) -> anyhow::Result<()> {
    let ranks = nvfp4::cuda::probe()?.devices.len().min(MOST_RANKS);
    ensure!(ranks >= 2, "2 GPUs are needed, {ranks} are here");
    let id = Id::new().map_err(|error| anyhow::anyhow!("NCCL: {:?}", error.0))?;
    let id: String =
        id.internal().iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect();
    let program = env::current_exe()?;
    let start = |rank: usize| {
        let numbers = [rank, ranks, experts].map(|number| number.to_string());
        let mut command = Command::new(&program);
        command.args(["nccl", "rank"]).args(numbers).arg(&id).spawn().context("a process")
    };
    let mut processes = (0..ranks).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let ended = wait_for_all(&mut processes);
    if ended.is_err() {
        // The others may wait for a rank that has ended.
        processes.iter_mut().for_each(|process| drop(process.kill()));
    }
    processes.iter_mut().for_each(|process| drop(process.wait()));
    ended
}

/// Waits until all have ended well, or one has not.
fn wait_for_all(processes: &mut [Child]) -> anyhow::Result<()> {
    loop {
        let mut running = false;
        for process in &mut *processes {
            match process.try_wait()? {
                Some(status) => ensure!(status.success(), "a rank ended with {status}"),
                None => running = true,
            }
        }
        if !running {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
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

/// The parts of all runs of a rank.
struct Rank<'a> {
    kernels: &'a Kernels,
    exchange: &'a NcclExchange,
    places: &'a ExpertPlaces,
    rank: usize,
    sizes: Sizes,
    form: Form,
}

fn one_rank([rank, ranks]: [usize; 2], experts: usize, digits: &str) -> anyhow::Result<()> {
    let sizes = Sizes { experts, top_k: 8, hidden: 7168, between: 2048 };
    let stream = CudaContext::new(rank)?.new_stream()?;
    let device = Device::from_cudarc(&stream)?;
    let kernels = device.kernels(None)?;
    let exchange = NcclExchange::new(&device, [rank, ranks], &id(digits)?)?;
    let places = ExpertPlaces::even(experts, ranks)?;
    let mixture = Mixture::random(sizes)?;
    if rank == 0 {
        println!("{sizes:?} on {ranks} GPUs; times in us, bytes to each other rank");
        println!(
            "{:>5} {:>6} {:>8} {:>8} | {:>7} {:>7} {:>8} {:>7} {:>7} | {:>11} {:>11} | {:>8} {:>9}",
            "rows",
            "tokens",
            "capacity",
            "layer",
            "pack",
            "send",
            "products",
            "return",
            "combine",
            "sent",
            "returned",
            "one GPU",
            "error"
        );
    }
    for form in Form::ALL {
        let run =
            Rank { kernels: &kernels, exchange: &exchange, places: &places, rank, sizes, form };
        run.all(&mixture)?;
    }
    Ok(())
}

impl Rank<'_> {
    /// All numbers of tokens.
    fn all(&self, mixture: &Mixture) -> anyhow::Result<()> {
        let device = self.kernels.device();
        let own = mixture.place(device, &self.places.experts(self.rank), self.form)?;
        let every: Vec<usize> = (0..self.sizes.experts).collect();
        let whole = match self.rank {
            0 => Some(mixture.place(device, &every, self.form)?),
            _ => None,
        };
        for count in TOKENS {
            self.one(count, &own, whole.as_ref())?;
        }
        Ok(())
    }

    /// One number of tokens: checked, then timed.
    fn one(
        &self,
        count: usize,
        weights: &[nvfp4::gemm::DeviceWeights; 2],
        whole: Option<&[nvfp4::gemm::DeviceWeights; 2]>,
    ) -> anyhow::Result<()> {
        let Self { kernels, exchange, places, rank, sizes, form } = *self;
        let (device, ranks) = (kernels.device(), places.ranks());
        let capacity = capacity(places, sizes, count)?;
        let shape = ExpertsShape { tokens: count, top_k: sizes.top_k, capacity };
        let tokens = Tokens::random(sizes, &[rank], count)?;
        let on_device = tokens.upload(device)?;
        let plan = |invariant: bool| {
            let options = form.options().batch_invariant(invariant);
            let (place, half) = ((places, rank), HalfType::Bf16);
            Experts::new(kernels, shape, place, weights.each_ref(), half, &options)
        };
        let compare = |invariant: bool| -> anyhow::Result<Option<f64>> {
            let result = self.run(&plan(invariant)?, weights, &on_device)?;
            let Some(weights) = whole else { return Ok(None) };
            let options = form.options().batch_invariant(invariant);
            let one = Whole::new(kernels, sizes, &tokens, weights, &options)?;
            one.launch()?;
            let right = one.result()?;
            ensure!(!invariant || result == right, "{form:?}, {count} tokens: other bits");
            let [result, right] = [result, right].map(|b| floats::decode(FloatType::Bf16, &b));
            Ok(Some(relative_error(&result, &right)))
        };
        if count <= EXACT {
            compare(true)?;
        }
        let error = compare(false)?;
        ensure!(error.is_none_or(|error| error < BOUND), "{form:?}, {count} tokens: {error:?}");

        let experts = plan(false)?;
        let memory = experts.memory()?;
        let out = DeviceBuffer::poisoned(device, "out", experts.out_bytes())?;
        let products = weights.each_ref();
        let (inputs, biases) = (on_device.inputs(), MoeBiases::default());
        let layer =
            self.time(|| experts.launch(&inputs, products, &memory, exchange, &out, biases))?;
        let mut steps = Vec::new();
        for step in ExpertsStep::ALL {
            steps.push(self.time(|| {
                experts.launch_step(step, &inputs, products, &memory, exchange, &out, biases)
            })?);
        }
        check(&memory)?;
        let Some(weights) = whole else { return Ok(()) };
        let all: Vec<usize> = (0..ranks).collect();
        let all = Tokens::random(sizes, &all, count)?;
        let one = Whole::new(kernels, sizes, &all, weights, &form.options())?;
        let one = self.time(|| one.launch())?;
        let [sent, returned] = experts.exchanged_bytes();
        let form = format!("{form:?}");
        let [pack, send, products, back, combine] = steps[..] else { bail!("five steps") };
        println!(
            "{form:>5} {count:>6} {capacity:>8} {layer:>8.1} | {pack:>7.1} {send:>7.1} {products:>8.1} \
             {back:>7.1} {combine:>7.1} | {sent:>11} {returned:>11} | {one:>8.1} {:>9.1e}",
            error.unwrap_or(f64::NAN)
        );
        Ok(())
    }

    /// The result of a launch.
    fn run(
        &self,
        experts: &Experts,
        weights: &[nvfp4::gemm::DeviceWeights; 2],
        tokens: &OnDevice,
    ) -> anyhow::Result<Vec<u8>> {
        let device = self.kernels.device();
        let memory = experts.memory()?;
        let out = DeviceBuffer::poisoned(device, "out", experts.out_bytes())?;
        let (inputs, biases) = (tokens.inputs(), MoeBiases::default());
        experts.launch(&inputs, weights.each_ref(), &memory, self.exchange, &out, biases)?;
        self.exchange.wait(PATIENCE)?;
        check(&memory)?;
        Ok(out.read()?)
    }

    /// The time of what `launch` queues, in microseconds, replayed as a graph.
    fn time(&self, launch: impl Fn() -> nvfp4::Result<()>) -> anyhow::Result<f64> {
        launch()?;
        self.exchange.wait(PATIENCE)?;
        let gpu = self.kernels.device().gpu("recording a graph")?;
        let graph = gpu.capture(&launch)?;
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            let begin = Instant::now();
            for _ in 0..RUNS {
                // SAFETY: `launch` has borrowed all memory that the graph uses; modules are loaded for good.
                unsafe { graph.replay()? };
            }
            gpu.synchronize()?;
            // The first round warms up.
            if round > 0 {
                times.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(RUNS));
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }
}

/// Checks that nothing was wrong with launches.
fn check(memory: &ExpertsMemory) -> anyhow::Result<()> {
    match memory.problem()? {
        None => Ok(()),
        Some(problem) => bail!("{problem:?}"),
    }
}

/// The norm of the difference over that of what is right.
fn relative_error(found: &[f32], right: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = found.iter().zip(right).map(|(found, right)| square(found - right)).sum();
    let whole: f64 = right.iter().map(|&right| square(right)).sum();
    if found.len() == right.len() { (difference / whole).sqrt() } else { f64::INFINITY }
}
