//! Embeddings of sentences by all-MiniLM-L6-v2 with all linear layers in NVFP4, beside those of f32.
//!
//! ```text
//! cargo xtask fetch-model
//! cargo run --release --manifest-path candle/Cargo.toml --example embed -- [FOLDER] [cpu|emu:h200|cuda:0]
//! ```
//!
//! For `cuda:0` it is built with `--features cuda`, which takes nvcc.
//!
//! FOLDER has `model.safetensors` and `vocab.txt`; without it, or where they are missing, a random model of
//! the same architecture and smaller size embeds random words. Ends with an error if the embeddings in
//! NVFP4 are not those of f32 but for what four bits lose.

mod bert;
mod words;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bert::{Bert, Config, Layers};
use candle_core::{DType, Device, Tensor};
use nvfp4::HalfType;
use nvfp4::device::{Device as Machine, DeviceRequest};
use nvfp4_candle::{Engine, PackedBuilder};
use words::Vocabulary;

const SENTENCES: [&str; 8] = [
    "A man is playing a guitar on the stage.",
    "Somebody performs music with a string instrument.",
    "The weather in Lisbon is sunny today.",
    "It will rain in Portugal tomorrow.",
    "Matrix multiplication dominates the cost of inference.",
    "Most of the time of a language model goes into products of matrices.",
    "The cat sleeps on the warm windowsill.",
    "Interest rates were raised by the central bank.",
];

/// Least cosine of an embedding in NVFP4 with that of f32.
const LEAST_COSINE: f32 = 0.9;

/// Time that is spent on measuring on a GPU; elsewhere one run is.
const MEASURED: Duration = Duration::from_secs(2);

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    let is_place = |text: &String| text.contains(':') || text == "cpu";
    let (folder, place) = match first {
        Some(place) if is_place(&place) => (None, Some(place)),
        folder => (folder.map(PathBuf::from), arguments.next()),
    };
    let place = place.unwrap_or_else(|| "cpu".to_owned());
    let (device, engine) = open(&place)?;

    let random;
    let there = folder.filter(|folder| {
        let missing = ["model.safetensors", "vocab.txt"]
            .into_iter()
            .find(|name| !folder.join(name).is_file());
        if let Some(name) = missing {
            println!("skipped: the real model, because {} has no {name}", folder.display());
        }
        missing.is_none()
    });
    let (path, config, tokens, names) = match there {
        Some(folder) => {
            let vocabulary = Vocabulary::read(&folder.join("vocab.txt"))?;
            let tokens = SENTENCES.map(|sentence| vocabulary.tokens(sentence));
            let names = SENTENCES.map(str::to_owned);
            (folder.join("model.safetensors"), Config::MINI_LM, tokens, names)
        }
        None => {
            println!("a random model embeds random words");
            random = Scratch::new()?;
            let path = random.0.join("model.safetensors");
            bert::write_random(&path, Config::SMALL)?;
            let tokens = words::random(Config::SMALL.vocabulary);
            let names = tokens.each_ref().map(|tokens| format!("{} random words", tokens.len()));
            (path, Config::SMALL, tokens, names)
        }
    };
    let (ids, mask) = words::batch(&tokens, &device)?;

    let floats = bert::floats(&path, &device)?;
    let exact = Bert::new(config, &floats, &Layers::Floats, DType::F32)?;
    // Kernels take 16-bit activations; the reference takes any.
    let dtype = if matches!(device, Device::Cpu) { DType::F32 } else { DType::F16 };
    let packed = Layers::Packed(PackedBuilder::open(&path, &engine)?.quantizing());
    let packed = Bert::new(config, &floats, &packed, dtype)?;

    let [(right, of_floats), (found, of_packed)] =
        [embed(&exact, &ids, &mask)?, embed(&packed, &ids, &mask)?];
    let own = (&right * &found)?.sum(1)?.to_vec1::<f32>()?;
    let [right, found] = [similarities(&right)?, similarities(&found)?];
    println!("{:>6} {:>6} {:>8}   sentences", "f32", "nvfp4", "own");
    let mut largest = 0f32;
    for pair in (0..SENTENCES.len()).step_by(2) {
        let (right, found) = (right[pair][pair + 1], found[pair][pair + 1]);
        println!("{right:>6.3} {found:>6.3} {:>8.4}   {}", own[pair], names[pair]);
        println!("{:>6} {:>6} {:>8.4}   {}", "", "", own[pair + 1], names[pair + 1]);
    }
    for (right, found) in right.iter().flatten().zip(found.iter().flatten()) {
        largest = largest.max((right - found).abs());
    }
    println!(
        "similarities differ by {largest:.3} at most; `own` is an embedding's cosine with that of f32"
    );
    let rate = |time: Duration| SENTENCES.len() as f64 / time.as_secs_f64();
    println!(
        "{engine:?}: {:.0} sentences per second, f32 {:.0}, batches of {}",
        rate(of_packed),
        rate(of_floats),
        SENTENCES.len()
    );
    let least = own.into_iter().fold(f32::INFINITY, f32::min);
    ensure!(least > LEAST_COSINE, "an embedding has a cosine of {least} with that of f32");
    ensure!(largest > 0., "NVFP4 loses something");
    Ok(())
}

/// The device of the tensors, and what computes the linear layers.
fn open(place: &str) -> anyhow::Result<(Device, std::sync::Arc<Engine>)> {
    const HALF: HalfType = HalfType::F16;
    if place == "cpu" {
        return Ok((Device::Cpu, Engine::reference()));
    }
    if let Some(ordinal) = place.strip_prefix("cuda:") {
        let device = Device::new_cuda(ordinal.parse().context("the GPU's number")?)?;
        let engine = Engine::for_device(&device, HALF)?;
        return Ok((device, engine));
    }
    let request: DeviceRequest = place.parse()?;
    Ok((Device::Cpu, Engine::emulated(Machine::open(&request)?.kernels(None)?, HALF)?))
}

/// Embeddings, and the time that they take.
fn embed(model: &Bert, ids: &Tensor, mask: &Tensor) -> anyhow::Result<(Tensor, Duration)> {
    let gpu = !matches!(ids.device(), Device::Cpu);
    let run = || -> anyhow::Result<Tensor> {
        let result = model.embed(ids, mask)?.to_dtype(DType::F32)?;
        ids.device().synchronize()?;
        Ok(result)
    };
    if gpu {
        run()?;
    }
    let (begin, mut runs) = (Instant::now(), 0);
    loop {
        let result = run()?;
        runs += 1;
        if !gpu || begin.elapsed() > MEASURED {
            return Ok((result.to_device(&Device::Cpu)?, begin.elapsed() / runs));
        }
    }
}

/// Cosines of all pairs of unit vectors.
fn similarities(embeddings: &Tensor) -> anyhow::Result<Vec<Vec<f32>>> {
    Ok(embeddings.matmul(&embeddings.t()?)?.to_vec2()?)
}

/// A folder that goes with the program.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("nvfp4-embed-{}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the system's cleaning of temporary folders.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
