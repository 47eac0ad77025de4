//! Every grouped configuration, and mixtures of experts, give the bits that are recorded in
//! `tests/data/checksums`, whose README says when a change is legitimate.

use fp4_formats::gemm::{sm90, sm100};
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, Nvfp4, Operand};
use nvfp4::device::Kernels;
use nvfp4::gemm::{Activation, GemmOverrides};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::MoeRun;
use nvfp4_tests::checksums::{self, Checksums};
use nvfp4_tests::emulated_on;
use nvfp4_tests::gemm::grouped::GroupedCase;
use nvfp4_tests::gemm::{ActivationType, BLOCKED, LINEAR, RESULTS};
use nvfp4_tests::mixture::{Mixture, small};
use ptx_emu::Gpu;

/// Machines of few SMs, on which CTAs have several tiles, and parts of tiles.
fn machines() -> [Kernels; 2] {
    [(Gpu::h200(), 3), (nvfp4_tests::b200(), 8)]
        .map(|(gpu, sms)| emulated_on(Gpu { sms, ..gpu }, checksums::schedule()))
}

/// The differences between the products of a configuration.
struct Variant<'a> {
    kernel: &'a str,
    format: Format,
    activations: ActivationType,
    /// Tokens of a tile.
    tokens: usize,
    n: usize,
    index: usize,
}

impl Variant<'_> {
    /// Runs it, and adds its bits.
    fn add(&self, kernels: &Kernels, sums: &mut Checksums) {
        let &Self { kernel, format, activations, tokens, n, index } = self;
        let counts = [[tokens + 3, 0, 1], [2, tokens, 5]][index % 2];
        let mut case = GroupedCase::new(&counts, [n.next_multiple_of(16), 288]);
        case.generator = Generator::FullRange;
        case.seed = index as u64;
        (case.format, case.activations) = (format, activations);
        case.result = RESULTS[index % 5];
        case.gated = index % 3 == 1;
        case.activation = if case.gated { Activation::Silu } else { Activation::Identity };
        case.factors = index % 2 == 1;
        case.vectors = [index % 2 == 0, index % 3 == 0, index % 4 == 1];
        case.overrides = GemmOverrides::new().kernel(kernel.to_string());
        let result = case.run(kernels);
        assert_eq!(result.plan.kernel, kernel);
        let [rows, tokens] = result.plan.tile;
        let [n, k] = case.sizes;
        let key = format!(
            "{} {} x {activations:?}, grouped tile {rows}x{tokens}, {counts:?} x {n} x {k} on {} SMs, \
             {:?} gated {} factors {} vectors {:?}",
            result.plan.arch,
            format.name(),
            kernels.device().properties().sms,
            case.result,
            case.gated,
            case.factors,
            case.vectors,
        );
        sums.add(key, &[&result.bytes, &result.scales]);
    }
}

#[test]
fn grouped() {
    let [sm90, sm100] = machines();
    let mut sums = Checksums::default();
    for (at, config) in sm90::GROUPED.iter().enumerate() {
        let format = config.scheme.format;
        let halves = ActivationType::as_they_are(config.scheme.operand);
        let blocks = match (format, config.scheme.operand) {
            (Format::Nvfp4, Operand::BF16) | (_, Operand::E4m3) => false,
            (_, Operand::Half(_)) => true,
        };
        for i in 0..3 {
            let activations = if blocks { [halves, LINEAR, BLOCKED][i] } else { halves };
            let (tokens, n) = (config.tokens as usize, config.rows as usize / 2 + 40);
            Variant { kernel: config.name, format, activations, tokens, n, index: 3 * at + i }
                .add(&sm90, &mut sums);
        }
    }
    for (at, config) in sm100::GROUPED.iter().enumerate() {
        for i in 0..3 {
            let activations = match config.activations {
                Some(operand) => ActivationType::as_they_are(operand),
                None => [LINEAR, BLOCKED][i % 2],
            };
            let (format, tokens) = (config.format, config.columns as usize);
            let n = config.rows() as usize / 2 + 40;
            Variant { kernel: config.name, format, activations, tokens, n, index: 3 * at + i }
                .add(&sm100, &mut sums);
        }
    }
    sums.compare("grouped");
}

#[test]
fn mixtures() {
    let mut sums = Checksums::default();
    for kernels in machines() {
        let choice = kernels.device().choice();
        for (case, output) in small().into_iter().zip(FloatType::ALL.into_iter().cycle()) {
            let mixture = Mixture::<Nvfp4>::new(case, 11);
            let step = mixture.step(12);
            let mut operands = mixture.operands(&step);
            operands.options.output = output;
            let weights = operands.repack(kernels.device()).expect("weights");
            let run = MoeRun::new(&kernels, &operands, weights.each_ref()).expect("a layer");
            run.launch().expect("a launch");
            let key = format!("{} {} of {case:?}", choice.arch, output.name());
            sums.add(key, &[&run.result().expect("readable")]);
        }
    }
    sums.compare("moe");
}
