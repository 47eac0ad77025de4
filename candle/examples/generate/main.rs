//! Text from a model with weights in four bits, and how fast it came.
//!
//! ```text
//! cargo run --release --manifest-path candle/Cargo.toml --example generate -- \
//!     --model tests/data/models/llama --prompt "Hello" --max-tokens 20
//! ```
//!
//! `--model` is a folder with `config.json`, safetensors and `tokenizer.json`. Tokens are printed as they come, and then a
//! table. For `cuda:0` it is built with `--features cuda`, which takes nvcc.

mod arguments;
mod report;
mod text;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use arguments::Arguments;
use candle_core::Device;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nvfp4::HalfType;
use nvfp4::device::{Device as Machine, DeviceRequest};
use nvfp4_candle::Engine;
use nvfp4_candle::models::{Decoder, Generation, LoadOptions};
use nvfp4_checkpoint::Model;
use report::Report;
use text::Words;

/// The exit code after Control-C.
const INTERRUPTED: u8 = 130;

/// The stage of the program, which decides what Control-C does.
static STATE: AtomicU8 = AtomicU8::new(LOADING);
/// Control-C ends the program.
const LOADING: u8 = 0;
/// Control-C ends the text.
const GENERATING: u8 = 1;
/// Control-C has ended the text.
const STOPPED: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let handled = ctrlc::set_handler(|| {
        let was = STATE.compare_exchange(GENERATING, STOPPED, Ordering::AcqRel, Ordering::Acquire);
        if was.is_err() {
            std::process::exit(INTERRUPTED.into());
        }
    });
    let result = handled.context("handling Control-C").and_then(|()| prepare(&arguments));
    let prepared = match result {
        Ok(prepared) => prepared,
        Err(error) => return failed(&error, 2),
    };
    match generate(&arguments, &prepared) {
        Ok(()) if STATE.load(Ordering::Acquire) == STOPPED => ExitCode::from(INTERRUPTED),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error, 1),
    }
}

/// Says what failed in one line: candle's errors have a backtrace below theirs, and many say their cause.
fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    let mut said = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let line = cause.lines().next().unwrap_or_default();
        match said.is_empty() {
            true => said.push_str(line),
            false if said.contains(line) => {}
            false => said = format!("{said}: {line}"),
        }
    }
    eprintln!("error: {said}");
    ExitCode::from(code)
}

/// A model with the texts that it continues.
struct Prepared {
    decoder: Decoder,
    words: Option<Words>,
    texts: Vec<Vec<u32>>,
    /// Tokens that end a text, besides those of config.json.
    ends: Vec<u32>,
    load: std::time::Duration,
}

fn prepare(arguments: &Arguments) -> Result<Prepared> {
    let (_, engine) = open(&arguments.device)?;
    let engine = match arguments.activations {
        Some(activations) => engine.with_activations(activations.into()),
        None => engine,
    };
    let begin = Instant::now();
    let folder = &arguments.model;
    arguments.choice().check()?;
    let model = Model::open(folder)?;
    let words = Words::open(folder, arguments.needs_words())?;
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("loading {bar:40} {pos}/{len} layers, {elapsed}");
    bar.set_style(style.context("the style of the progress bar")?);
    let options = LoadOptions::new().quantize(arguments.quantize.map(Into::into));
    let options = options.quantize_head(arguments.quantize_head);
    let decoder = Decoder::load(model, &engine, &options, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    for field in decoder.config().unread() {
        eprintln!("note: `{field}` of config.json is not read");
    }
    let texts = arguments.texts(words.as_ref(), decoder.config().vocabulary())?;
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let positions = decoder.config().positions();
    ensure!(
        longest.saturating_add(arguments.max_tokens) <= positions,
        "a prompt's {longest} and --max-tokens {} must be at most {positions}, max_position_embeddings",
        arguments.max_tokens
    );
    let ends = text::ends(folder)?;
    decoder.engine().device().synchronize()?;
    Ok(Prepared { decoder, words, texts, ends, load: begin.elapsed() })
}

fn generate(arguments: &Arguments, prepared: &Prepared) -> Result<()> {
    let Prepared { decoder, words, texts, ends, load } = prepared;
    STATE.store(GENERATING, Ordering::Release);
    let inputs: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let device = decoder.engine().device();
    let begin = Instant::now();
    let generation = Generation::new(decoder, &inputs, arguments.max_tokens, arguments.choice())?;
    let mut generation = generation.ending_at(ends);
    if arguments.unrecorded {
        generation = generation.recorded(false)?;
    }
    let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); texts.len()];
    let is_shown = texts.len() == 1 && !arguments.json;
    let mut stream = words.as_ref().filter(|_| is_shown).map(Words::stream);
    let is_end = |token: &u32| decoder.config().end().contains(token) || ends.contains(token);
    let mut first = None;
    while STATE.load(Ordering::Acquire) != STOPPED
        && let Some(step) = generation.step()?
    {
        first.get_or_insert_with(|| begin.elapsed());
        for (own, token) in tokens.iter_mut().zip(step) {
            own.extend(token);
        }
        if let (Some(added), [only]) = (&mut stream, tokens.as_slice())
            && let Some(&token) = only.last()
            && !is_end(&token)
            && let Some(added) = added(token)?
        {
            print!("{added}");
        }
        std::io::stdout().flush()?;
    }
    device.synchronize()?;
    let whole = begin.elapsed();
    let first = first.unwrap_or(whole);
    let replayed = generation.replayed();
    if let Some(reason) = generation.unrecorded() {
        eprintln!("note: steps are not recorded: {reason}");
    }
    drop(generation);
    // One more step of the same texts, in which the host queues each launch and waits for products.
    let share = {
        let mut cache = decoder
            .cache(texts.len(), 1 + inputs.iter().map(|text| text.len()).max().unwrap_or(0))?;
        decoder.start(&inputs, &mut cache)?;
        let last: Vec<u32> = texts.iter().filter_map(|text| text.last()).copied().collect();
        device.synchronize()?;
        let begin = Instant::now();
        let (_, products) = decoder.metered(|| {
            let logits = decoder.next(&last, &mut cache)?;
            device.synchronize()?;
            Ok(logits)
        })?;
        products.as_secs_f64() / begin.elapsed().as_secs_f64()
    };
    let report = Report {
        decoder,
        load: *load,
        prompt: texts.iter().map(Vec::len).sum(),
        first,
        steps: tokens.iter().map(Vec::len).max().unwrap_or(0),
        replayed,
        decode: whole.saturating_sub(first),
        share,
        texts: &tokens,
    };
    let written: Option<Vec<String>> = match words {
        Some(words) => Some(tokens.iter().map(|text| words.decode(text)).collect::<Result<_>>()?),
        None => None,
    };
    if arguments.json {
        println!("{}", report.json(written.as_deref()));
        return Ok(());
    }
    match written.as_deref() {
        _ if stream.is_some() => println!(),
        Some(written) => written.iter().for_each(|text| println!("{text}")),
        None => tokens.iter().for_each(|text| println!("{text:?}")),
    }
    println!("\n{report}");
    Ok(())
}

/// The device of the tensors, and what computes products in four bits.
fn open(place: &str) -> Result<(Device, Arc<Engine>)> {
    const HALF: HalfType = HalfType::Bf16;
    let gpu = |ordinal: usize| -> Result<(Device, Arc<Engine>)> {
        let device = Device::new_cuda(ordinal)?;
        let engine = Engine::for_device(&device, HALF)?;
        Ok((device, engine))
    };
    match place {
        "cpu" => Ok((Device::Cpu, Engine::reference())),
        "auto" if candle_core::utils::cuda_is_available() => gpu(0),
        "auto" => Ok((Device::Cpu, Engine::reference())),
        _ => match place.strip_prefix("cuda:") {
            Some(ordinal) => gpu(ordinal.parse().context("--device: the GPU's number")?),
            None => {
                let request: DeviceRequest = place.parse().context("--device")?;
                let kernels = Machine::open(&request)?.kernels(kernels_folder().as_deref())?;
                Ok((Device::Cpu, Engine::emulated(kernels, HALF)?))
            }
        },
    }
}

/// The folder of kernels that are not in the program.
fn kernels_folder() -> Option<std::path::PathBuf> {
    std::env::var_os("NVFP4_KERNELS_DIR").map(std::path::PathBuf::from)
}

/// The text of a small file, or `None` if there is none.
fn optional(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => bail!("{}: {error}", path.display()),
    }
}
