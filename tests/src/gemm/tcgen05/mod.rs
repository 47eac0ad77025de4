//! Launches of sm_100a's GEMM kernels with parameters that the host library does not choose: the
//! orientation, the order of tiles, the storing threads.

mod operands;

use super::{ActivationType, Case, Expected, GUARD, POISON};
use fp4_formats::gemm::sm100::config::flag_bytes;
use fp4_formats::gemm::sm100::store::RESULT_ALIGN;
use fp4_formats::gemm::sm100::{CONFIGS, Sm100Config, Sm100Params, result_map};
use fp4_formats::gemm::{
    Epilogue, OUT_MXFP4, OUT_NVFP4, Problem, ResultScales, Schedule as StreamK, Sink,
};
use fp4_formats::params::bytes;
use fp4_formats::quantize::Format;
use fp4_formats::tensor_map::TensorMapShape;
use fp4_formats::{Arch, BlockFormat, FloatType, Mxfp4, Nvfp4, ScaleLayout, TensorMap};
use nvfp4::floats;
use nvfp4::shape::GemmShape;
use nvfp4::tensor::Dims;
use nvfp4::tune::ResultKind;
use nvfp4_lab::generate::Generator;
use operands::encode;
use ptx_emu::{
    Checks, Counters, GlobalMemory, Launch, LaunchError, Module, Schedule, Step, launch_sequence,
};

/// Instructions after which a launch is stopped.
const INSTRUCTIONS: u64 = 200_000_000;

/// The configuration of this name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn config(name: &str) -> &'static Sm100Config {
    CONFIGS.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no configuration {name}"))
}

/// The modules that a product's kernels are in.
pub enum Modules {
    /// The module as built.
    Built,
    /// The module with one kernel altered.
    Altered {
        /// The kernel.
        kernel: &'static str,
        /// The module that has it.
        module: Box<Module>,
    },
}

impl Modules {
    /// Returns the module that has the kernel `entry`.
    fn of(&self, entry: &str) -> &Module {
        match self {
            Self::Altered { kernel, module } if *kernel == entry => module,
            Self::Built | Self::Altered { .. } => crate::module(Arch::Sm100a, entry),
        }
    }
}

/// Replaces each `from` by `to` in the kernel `name`.
///
/// # Panics
/// If the kernel has no `from`.
#[must_use]
pub fn without(name: &str, from: &str, to: &str) -> Modules {
    let kernel = config(name).name;
    altered(kernel, |body| {
        assert!(body.contains(from), "{name}: {from}");
        body.replace(from, to)
    })
}

/// Returns the kernel `name` without one `from` of it at a time, in order.
///
/// # Panics
/// If the kernel has no `from`.
pub fn without_each(name: &str, from: &'static str) -> impl Iterator<Item = Modules> {
    let kernel = config(name).name;
    let mut count = 0;
    altered(kernel, |body| {
        count = body.matches(from).count();
        body.to_owned()
    });
    assert!(count > 0, "{name}: {from}");
    (0..count).map(move |index| {
        altered(kernel, |body| {
            let (at, _) = body.match_indices(from).nth(index).expect("as many as before");
            [&body[..at], &body[at + from.len()..]].concat()
        })
    })
}

/// Returns a kernel with another body.
fn altered(kernel: &'static str, alter: impl FnOnce(&str) -> String) -> Modules {
    let text = crate::ptx(Arch::Sm100a, kernel);
    let start = text.find(&format!("\n.visible .entry {kernel}(")).expect("the kernel");
    let end = start + text[start..].find("\n}").expect("a body");
    let altered = text[..start].to_owned() + &alter(&text[start..end]) + &text[end..];
    let module = Module::load(&altered, &crate::b200()).unwrap_or_else(|e| panic!("{e}"));
    Modules::Altered { kernel, module: Box::new(module) }
}

/// A product by a kernel of sm_100a.
#[derive(Debug, Clone)]
pub struct Product {
    /// Operands and result. They are dense, and not by the plan of the host library.
    pub case: Case,
    /// The kernel.
    pub config: &'static Sm100Config,
    /// Whether the weights are the rows of the tensor core's tiles; always true if they must be.
    pub swapped: bool,
    /// Whether clusters ask for tiles.
    pub dynamic: bool,
    /// Clusters of a launch whose clusters do not ask for tiles. With stream-K they share all K steps in
    /// even runs; otherwise cluster `i` computes every `clusters`-th tile from `i` on.
    pub clusters: u32,
    /// Whether threads store results that the copy engine could store.
    pub direct: bool,
    /// Bytes from a multiple of 256 to the result.
    pub shift: u64,
    /// The number of launches.
    pub launches: usize,
    /// Whether a kernel before makes activations that the product loads as they are. Other
    /// activations are laid out by a kernel if they must be.
    pub late: bool,
    /// The order of all asynchronous operations.
    pub schedule: Schedule,
}

/// The outcome of a product.
#[derive(Debug)]
pub struct Outcome {
    /// Counters of the product's launch for floats.
    pub counters: Counters,
    /// The result in floats.
    pub bytes: Vec<u8>,
}

/// A launch.
#[derive(Clone)]
struct Kernel {
    entry: &'static str,
    grid: u32,
    threads: u32,
    shared: u32,
    params: Vec<u8>,
}

/// Poisons `bytes` bytes, and a guard behind them.
fn poisoned(memory: &mut GlobalMemory, name: &str, bytes: u64) -> u64 {
    let whole = bytes + GUARD as u64;
    let at = memory.alloc(name, whole, 256).expect("room");
    memory.fill(at, whole, POISON).expect("inside");
    at
}

/// Reads the bytes that a kernel wrote to [`poisoned`] memory.
fn written(memory: &GlobalMemory, what: &str, at: u64, bytes: u64) -> Vec<u8> {
    let mut all = memory.read(at, bytes + GUARD as u64).expect("inside");
    let guard = all.split_off(bytes as usize);
    assert!(guard.iter().all(|&byte| byte == POISON), "{what}: wrote past the result");
    all
}

impl Product {
    /// Makes a product of exact operands by `config`, under the schedule `eager`.
    #[must_use]
    pub fn new(config: &'static Sm100Config, [m, n, k, l]: [u32; 4]) -> Self {
        let mut case = Case::new([m, n, k, l].map(|size| size as usize));
        assert!(k.is_multiple_of(config.format.block()), "{k} for {}", config.name);
        case.format = config.format;
        case.layout = ScaleLayout::Blocked128x4;
        case.activations = match config.activations {
            Some(operand) => ActivationType::as_they_are(operand),
            None => ActivationType::Blocks(ScaleLayout::Blocked128x4),
        };
        Self {
            case,
            config,
            swapped: config.only_swapped(),
            dynamic: false,
            clusters: 2,
            direct: false,
            shift: 0,
            launches: 1,
            late: false,
            schedule: Schedule::Eager,
        }
    }

    /// Sets the layouts of the scales of activations, if they have any, and of weights.
    #[must_use]
    pub fn layouts(mut self, [activations, weights]: [ScaleLayout; 2]) -> Self {
        if let ActivationType::Blocks(layout) = &mut self.case.activations {
            *layout = activations;
        }
        self.case.layout = weights;
        self
    }

    /// Uses full-range operands, of MXFP4 with exponents from -40 to 40.
    #[must_use]
    pub fn full_range(mut self) -> Self {
        self.case.generator = Generator::FullRange;
        self.case.spread = match self.config.format {
            Format::Nvfp4 => 1,
            Format::Mxfp4 => 4,
        };
        self
    }

    /// Runs the product and compares. In NVFP4 it is made twice: in f32, and as the CPU's
    /// quantisation of that.
    ///
    /// # Panics
    /// With the first mismatch, or the emulator's diagnosis.
    pub fn check(&self) -> Outcome {
        self.run(&Modules::Built).unwrap_or_else(|e| panic!("{self:?}\n{e}"))
    }

    /// Runs [`check`](Self::check) with other kernels.
    ///
    /// # Errors
    /// The emulator's diagnosis.
    ///
    /// # Panics
    /// With the first mismatch.
    pub fn run(&self, modules: &Modules) -> Result<Outcome, LaunchError> {
        match self.config.format {
            Format::Nvfp4 => self.run_as::<Nvfp4>(modules),
            Format::Mxfp4 => self.run_as::<Mxfp4>(modules),
        }
    }

    fn problem(&self) -> Problem {
        let GemmShape { m, n, k, l } = self.case.shape;
        let [m, n, k, l] = [m, n, k, l].map(|size| size as u32);
        Problem { m, n, k, l }
    }

    /// Type of the result in floats.
    fn floats(&self) -> FloatType {
        match self.case.result {
            ResultKind::Floats(floats) => floats,
            ResultKind::Blocks(..) => FloatType::F32,
        }
    }

    fn run_as<F: BlockFormat>(&self, modules: &Modules) -> Result<Outcome, LaunchError> {
        let what = format!("{self:?}");
        let inputs = self.case.inputs::<F>();
        let floats = self.floats();
        let expected =
            Case { result: floats.into(), ..self.case.clone() }.expected(&inputs, Arch::Sm100a);
        let mut memory = GlobalMemory::new();
        let (mut params, mut kernels) = self.place_operands(modules, &mut memory, &inputs)?;
        let Problem { m, n, k, l } = self.problem();
        let bytes = u64::from(m) * u64::from(n) * u64::from(l) * u64::from(floats.bytes());
        params.epilogue.sink.out = poisoned(&mut memory, "C", self.shift + bytes) + self.shift;
        params.epilogue.sink.out_type = floats as u32;
        let map = self.result_map().map(|shape| encode(&shape, params.epilogue.sink.out));
        params.result = map.unwrap_or(TensorMap::NONE);
        params.copied = u32::from(map.is_some());
        let ctas = u64::from(self.clusters() * self.config.cluster());
        let flags = vec![0; flag_bytes(ctas as u32) as usize];
        params.flags = memory.alloc_from("flags", &flags).expect("room");
        let partials = ctas * u64::from(self.config.partial_bytes());
        params.partials = memory.alloc("partial sums", partials, 256).expect("room");
        let product = self.kernel(&params);
        kernels.extend(std::iter::repeat_n(product, self.launches));
        let counters = self.launch(modules, &mut memory, &kernels)?;
        let left = memory.read(params.flags, flags.len() as u64).expect("inside");
        assert_eq!(left, flags, "{what}: flags are not as they were");
        let result = written(&memory, &what, params.epilogue.sink.out, bytes);
        // The bound of a sum of K / 16 terms in f32, and the epilogue.
        let comparison = expected.compare_floats(&result, floats, k / 16 + 12);
        comparison.unwrap_or_else(|e| panic!("{what}\n{e}"));
        if let ResultKind::Blocks(format, layout) = self.case.result {
            let right =
                expected.quantized(format, layout, &floats::decode(FloatType::F32, &result));
            self.check_blocks(modules, &mut memory, params, &result, &right)?;
        }
        Ok(Outcome { counters, bytes: result })
    }

    /// Compares the same product in NVFP4 or MXFP4 with the CPU's quantisation of its f32, bit for
    /// bit.
    fn check_blocks(
        &self,
        modules: &Modules,
        memory: &mut GlobalMemory,
        params: Sm100Params,
        floats: &[u8],
        expected: &Expected,
    ) -> Result<(), LaunchError> {
        let what = format!("{self:?}");
        let floats = floats::decode(FloatType::F32, floats);
        let (format, parameter, layout) = expected.output.blocks().expect("blocks");
        let GemmShape { m, n, l, .. } = self.case.shape;
        let [codes, scales] =
            expected.output.bytes(Dims::new(l, m, n).expect("dims")).expect("small");
        let [codes, scales] = [codes, scales].map(|bytes| bytes as u64);
        let sink = Sink {
            out: poisoned(memory, "C codes", codes),
            out_type: match format {
                Format::Nvfp4 => OUT_NVFP4,
                Format::Mxfp4 => OUT_MXFP4,
            },
            scales: ResultScales {
                out: poisoned(memory, "C scales", scales),
                stride: scales / l as u64,
                parameter,
                blocked: u32::from(layout == ScaleLayout::Blocked128x4),
            },
            ..params.epilogue.sink
        };
        let epilogue = Epilogue { sink, ..params.epilogue };
        let params = Sm100Params { epilogue, copied: 0, ..params };
        self.launch(modules, memory, &[self.kernel(&params)])?;
        let codes = written(memory, &what, epilogue.sink.out, codes);
        let scales = written(memory, &what, epilogue.sink.scales.out, scales);
        let comparison = expected.compare_quantized([&codes, &scales], &floats, true);
        comparison.unwrap_or_else(|e| panic!("{what}\n{e}"));
        Ok(())
    }

    fn tiles(&self) -> u32 {
        let tiles = self.config.tiles(&self.problem(), self.swapped).count();
        u32::try_from(tiles).expect("few tiles")
    }

    /// Returns the K steps of a tile.
    fn steps(&self) -> u32 {
        self.config.steps(self.problem().k)
    }

    /// Returns the clusters of a launch.
    fn clusters(&self) -> u32 {
        let tiles = self.tiles();
        if self.dynamic {
            tiles
        } else if self.config.takes_stream_k() {
            self.clusters.min(tiles * self.steps())
        } else {
            self.clusters.min(tiles)
        }
    }

    /// The schedule of K steps and tiles, if clusters do not ask for tiles.
    fn schedule_of_tiles(&self) -> StreamK {
        let clusters = if self.dynamic { 1 } else { self.clusters() };
        StreamK::stream_k(self.tiles().into(), self.steps(), clusters).expect("a step for each")
    }

    fn kernel(&self, params: &Sm100Params) -> Kernel {
        Kernel {
            entry: self.config.name,
            grid: self.clusters() * self.config.cluster(),
            threads: self.config.threads(),
            shared: self.config.shared_bytes(),
            params: bytes(params).to_vec(),
        }
    }

    /// Launches kernels in stream order, each so that it may begin before the one before has ended.
    /// Returns the last one's counters, or the diagnosis.
    fn launch(
        &self,
        modules: &Modules,
        memory: &mut GlobalMemory,
        kernels: &[Kernel],
    ) -> Result<Counters, LaunchError> {
        let steps: Vec<Step<'_>> = (1..=kernels.len())
            .zip(kernels)
            .map(|(count, kernel)| Step {
                module: modules.of(kernel.entry),
                launch: Launch {
                    entry: kernel.entry,
                    grid: [kernel.grid, 1, 1],
                    block: [kernel.threads, 1, 1],
                    cluster: None,
                    dynamic_shared: kernel.shared,
                    params: &kernel.params,
                    schedule: self.schedule,
                    threads: None,
                    instruction_limit: Some(INSTRUCTIONS),
                    checks: Checks::default(),
                },
                programmatic: count > 1,
            })
            .collect();
        let reports = launch_sequence(memory, &steps)?;
        Ok(reports.last().expect("a kernel").counters.clone())
    }

    /// The tensor map of the result, if the copy engine stores it.
    fn result_map(&self) -> Option<TensorMapShape> {
        let problem @ Problem { m, n, .. } = self.problem();
        let stride = u64::from(m) * u64::from(n);
        let map = result_map(self.config, self.swapped, self.floats(), &problem, stride);
        map.filter(|_| !self.direct && self.shift.is_multiple_of(RESULT_ALIGN))
    }
}
