//! Invalid layers of experts are an error before any launch, with the field, the required and the actual value.

use fp4_formats::ScaleLayout::Linear;
use fp4_formats::arch::TensorFamily;
use fp4_formats::quantize::Format;
use fp4_formats::{HalfType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::error::{Error, ErrorKind, Result};
use nvfp4::gemm::{ActivationKind, DeviceWeights, GatedWeights, HalfMatrix};
use nvfp4::moe::{
    MoeBiases, MoeInputs, MoeLayer, MoeMemory, MoeOptions, MoeShape, TokenFormat, TokenScales,
};
use nvfp4::tensor::Dims;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::{MoeOperands, MoeRun};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::gemm::blocks;
use nvfp4_tests::mixture::{Mixture, MixtureCase};
use nvfp4_tests::refusals::{Watched, refused};
use nvfp4_tests::{DEVICES, SCHEDULES, emulated};

const GOOD: MoeShape = MoeShape { tokens: 4, top_k: 2, experts: 8, first: 1, count: 3 };
/// Columns of the tokens, and between the products.
const HIDDEN: usize = 64;
const BETWEEN: usize = 32;
const HALF: HalfType = HalfType::F16;

/// A layer's weights on a device.
struct Operands {
    first: DeviceWeights,
    second: DeviceWeights,
}

impl Operands {
    /// Makes valid arguments.
    fn new(machine: &Watched, kind: ActivationKind) -> Self {
        let made = |sizes, gated| machine.weights::<Nvfp4>(sizes, gated, kind);
        let (first, second) = ([GOOD.count, BETWEEN, HIDDEN], [GOOD.count, HIDDEN, BETWEEN]);
        Self { first: made(first, true), second: made(second, false) }
    }

    fn layer(&self, machine: &Watched, shape: MoeShape, options: &MoeOptions) -> Result<MoeLayer> {
        MoeLayer::new(&machine.kernels, shape, &self.first, &self.second, HALF, options)
    }
}

/// Weights that do not fit each other, the shape or the activations.
#[test]
fn weights_of_layers() {
    let halves = ActivationKind::Halves(HALF);
    for machine in DEVICES.map(Watched::new) {
        let plain = MoeOptions::new();
        let (first, second) = ((3, [BETWEEN, HIDDEN], true), (3, [HIDDEN, BETWEEN], false));
        for ([first, second], error) in [
            ([(2, first.1, true), second], ["experts in the first weights", "3", "2"]),
            ([first, (4, second.1, false)], ["experts in the second weights", "3", "4"]),
            ([first, (3, [HIDDEN, 48], false)], ["K of the second weights", "32", "48"]),
            ([first, (3, [72, BETWEEN], false)], ["N of the second weights", "64", "72"]),
            (
                [(3, first.1, false), second],
                ["weights", "gated, as there are options for up", "not gated"],
            ),
            ([first, (3, second.1, true)], ["options for up", "there for gated weights", "absent"]),
        ] {
            let made = |(count, [n, k], gated): (_, [_; 2], _)| {
                machine.weights::<Nvfp4>([count, n, k], gated, halves)
            };
            let operands = Operands { first: made(first), second: made(second) };
            machine.refused(operands.layer(&machine, GOOD, &plain), error, &[]);
        }

        let operands = Operands::new(&machine, halves);
        for (shape, error) in [
            (MoeShape { top_k: 0, ..GOOD }, ["experts of a token", "from 1 to 256", "0"]),
            (MoeShape { first: 6, ..GOOD }, ["experts of this device", "within 8", "3 from 6 on"]),
        ] {
            machine.refused(operands.layer(&machine, shape, &plain), error, &[]);
        }
        match machine.kernels.device().choice().arch.tensor() {
            TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => {
                let Operands { first, second } = &operands;
                let bf16 = HalfType::Bf16;
                let layer = MoeLayer::new(&machine.kernels, GOOD, first, second, bf16, &plain);
                let required = "f16, which the weights were repacked for";
                machine.refused(layer, ["type of activations", required, "bf16"], &[]);
            }
            // Weights are the same for all activations but e4m3.
            TensorFamily::Tcgen05 => {}
        }
        operands.layer(&machine, GOOD, &plain).expect("as it must be");
    }
}

/// Activations that are quantised to a format that only one of the weights has, or by scales that it has not.
#[test]
fn quantised_layers() {
    let kind = |format| ActivationKind::Blocks { format, layout: Linear };
    for machine in DEVICES.map(Watched::new) {
        let (first, second) = ([GOOD.count, BETWEEN, HIDDEN], [GOOD.count, HIDDEN, BETWEEN]);
        let nvfp4 = |sizes, gated| machine.weights::<Nvfp4>(sizes, gated, kind(Format::Nvfp4));
        let mxfp4 = |sizes, gated| machine.weights::<Mxfp4>(sizes, gated, kind(Format::Mxfp4));
        let quantised = MoeOptions::new().quantized(TokenFormat::Blocks(TokenScales::ONE));
        let of_first = nvfp4(first, true);
        let operands = Operands { first: of_first, second: mxfp4(second, false) };
        let error = ["format of activations", "mxfp4, as the weights", "nvfp4"];
        machine.refused(operands.layer(&machine, GOOD, &quantised), error, &[]);

        let operands = Operands { first: mxfp4(first, true), second: mxfp4(second, false) };
        for (name, scales) in [
            ("tokens", TokenScales { tokens: 0.5, ..TokenScales::ONE }),
            ("between", TokenScales { between: 0.5, ..TokenScales::ONE }),
        ] {
            let layer = operands.layer(
                &machine,
                GOOD,
                &MoeOptions::new().quantized(TokenFormat::Blocks(scales)),
            );
            let error = layer.expect_err("a scale that MXFP4 has not");
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::InvalidArgument, 2));
            let Error::Scalar { field, required, actual } = error else { panic!("{error}") };
            let of = format!("tensor scale `{name}` of activations in mxfp4");
            assert_eq!((field, required, actual), (of, "1", 0.5));
        }
        operands.layer(&machine, GOOD, &quantised).expect("as it must be");
    }
}

/// The arguments of a layer's launch.
struct Arguments<'a> {
    machine: &'a Watched,
    layer: MoeLayer,
    operands: Operands,
    memory: MoeMemory,
    /// Tokens, ids, weights of choices, a shared expert's result, biases of gate, up and down, and the result.
    buffers: [DeviceBuffer; 8],
}

impl<'a> Arguments<'a> {
    /// Zeros but for the result, which is poisoned.
    fn new(machine: &'a Watched, shape: MoeShape, options: &MoeOptions) -> Self {
        let operands = Operands::new(machine, options.activations(HALF, Format::Nvfp4));
        let layer = operands.layer(machine, shape, options).expect("planned");
        let memory = layer.memory().expect("memory");
        let MoeShape { tokens, top_k, count, .. } = shape;
        let [slots, out] = [tokens * top_k, tokens * HIDDEN].map(|count| 4 * count);
        let biases = [BETWEEN, BETWEEN, HIDDEN].map(|columns| 4 * count * columns);
        let [gate, up, down] = biases;
        let zeros = [tokens * HIDDEN * 2, slots, slots, out, gate, up, down]
            .map(|bytes| machine.upload(&vec![0; bytes]));
        let [x, ids, weights, shared, gate, up, down] = zeros;
        let buffers = [x, ids, weights, shared, gate, up, down, machine.poisoned(out)];
        Self { machine, layer, operands, memory, buffers }
    }

    /// Returns the names that errors of the steps give to the buffers.
    fn names(options: &MoeOptions) -> [&'static str; 8] {
        [
            if options.quantized.is_some() { "`input`" } else { "the activations" },
            "the ids",
            "the weights",
            "the shared experts' result",
            "the bias",
            "the bias of up",
            "the bias",
            "the result",
        ]
    }

    /// Launches with one of the buffers replaced.
    fn launch_with(&self, at: usize, buffer: &DeviceBuffer) -> Result<()> {
        let mut buffers = self.buffers.each_ref();
        buffers[at] = buffer;
        let Operands { first, second } = &self.operands;
        self.launch(buffers, [first, second], &self.memory)
    }

    fn launch(
        &self,
        [activations, ids, weights, shared, gate, up, down, out]: [&DeviceBuffer; 8],
        products: [&DeviceWeights; 2],
        memory: &MoeMemory,
    ) -> Result<()> {
        let inputs = MoeInputs { activations, ids, weights, shared: Some(shared) };
        let biases = MoeBiases { gate: Some(gate), up: Some(up), down: Some(down) };
        self.layer.launch(&inputs, products, memory, out, biases)
    }

    /// Checks that a launch was refused before any step was queued.
    #[track_caller]
    fn refused(&self, launched: Result<()>, error: [&str; 3]) {
        self.machine.refused(launched, error, &[&self.buffers[7]]);
    }
}

/// Layers that route, that quantise, that do neither, and that quantise as they gather.
fn layers() -> [(MoeShape, MoeOptions); 4] {
    let plain = MoeOptions::new();
    let quantised = plain.clone().quantized(TokenFormat::Blocks(TokenScales::ONE));
    let fp8 = plain.clone().quantized(TokenFormat::Fp8);
    let one = MoeShape { tokens: 1, ..GOOD };
    [(GOOD, plain.clone()), (GOOD, quantised), (one, plain), (GOOD, fp8)]
}

/// A whole launch with one buffer of another size or device: no step is queued, whichever takes the buffer.
#[test]
fn buffers_of_launches() {
    for (shape, options) in layers() {
        for device in DEVICES {
            let (machine, other) = (Watched::new(device), emulated(device, SCHEDULES[0]));
            let arguments = Arguments::new(&machine, shape, &options);
            for (at, what) in Arguments::names(&options).into_iter().enumerate() {
                let bytes = arguments.buffers[at].len();
                for wrong in [bytes - 4, bytes + 4] {
                    let launched = arguments.launch_with(at, &machine.poisoned(wrong));
                    let field = format!("bytes of {what}");
                    arguments.refused(launched, [&field, &bytes.to_string(), &wrong.to_string()]);
                }
                let theirs = DeviceBuffer::zeroed(other.device(), "x", bytes).expect("memory");
                let launched = arguments.launch_with(at, &theirs);
                machine.refused_elsewhere(launched, what, &[&arguments.buffers[7]]);
            }
            machine.launched(arguments.launch_with(7, &arguments.buffers[7]));
        }
    }
}

/// A whole launch with other weights than were planned for, and with another layer's memory.
#[test]
fn weights_and_memory_of_launches() {
    for machine in DEVICES.map(Watched::new) {
        let all = layers().map(|(shape, options)| Arguments::new(&machine, shape, &options));
        for (at, (arguments, (_, options))) in all.iter().zip(layers()).enumerate() {
            let Arguments { buffers, operands: Operands { first, second }, memory, .. } = arguments;
            let buffers = buffers.each_ref();
            let kind = options.activations(HALF, Format::Nvfp4);
            let made = |count, [n, k]: [usize; 2], gated| {
                machine.weights::<Nvfp4>([count, n, k], gated, kind)
            };
            let refused = |products, error| {
                arguments.refused(arguments.launch(buffers, products, memory), error);
            };
            let fewer = made(2, [BETWEEN, HIDDEN], true);
            refused([&fewer, second], ["matrices of weights", "3, as planned", "2"]);
            // The first product is told what the second one reads.
            let fewer = made(2, [HIDDEN, BETWEEN], false);
            refused([first, &fewer], ["matrices of the next product's weights", "3", "2"]);
            let wider = made(3, [HIDDEN, 48], false);
            refused([first, &wider], ["K of the weights", "32, as planned", "48"]);
            let plain = made(3, [BETWEEN, HIDDEN], false);
            refused([&plain, second], ["weights", "gated, as planned", "not gated"]);
            // Each layer's memory lacks what another one has, or has what that one lacks.
            let lent = |from: usize| arguments.launch(buffers, [first, second], &all[from].memory);
            for from in (0..all.len()).filter(|&from| from != at) {
                let error = match from {
                    2 => ["bytes of the positions", "32", "8"],
                    _ => ["memory", "of this layer", "of another one"],
                };
                arguments.refused(lent(from), error);
            }
            machine.launched(lent(at));
        }
    }
}

/// A run's operands on the host, each of another size than the others say, or with a value that it cannot have.
#[test]
fn operands_of_runs() {
    let case = MixtureCase { extras: true, ..MixtureCase::new([4, 8, 2], [HIDDEN, BETWEEN], HALF) };
    let mixture = Mixture::<Nvfp4>::new(case, 5);
    let step = mixture.step(6);
    let good = mixture.operands(&step);
    for machine in DEVICES.map(Watched::new) {
        let weights = good.repack(machine.kernels.device()).expect("weights");
        let run = |operands: &MoeOperands<'_, Nvfp4>| {
            MoeRun::new(&machine.kernels, operands, weights.each_ref())
        };
        let refused = |change: &dyn Fn(&mut MoeOperands<'_, Nvfp4>), error: [&str; 3]| {
            let mut operands = good.clone();
            change(&mut operands);
            machine.refused(operands.check(), error, &[]);
            machine.refused(run(&operands), error, &[]);
        };
        refused(&|o| o.shape.tokens = 5, ["tokens", "5", "4"]);
        refused(&|o| o.shape.top_k = 0, ["experts of a token", "from 1 to 256", "0"]);
        refused(&|o| o.shape.top_k = 3, ["ids", "12", "8"]);
        refused(&|o| o.ids = &o.ids[1..], ["ids", "8", "7"]);
        refused(&|o| o.weights = &o.weights[1..], ["weights of the choices", "8", "7"]);
        refused(&|o| o.first.truncate(7), ["experts in the first weights", "8", "7"]);
        refused(&|o| o.second.truncate(7), ["experts in the second weights", "8", "7"]);
        refused(&|o| o.factors = Some(vec![1.0; 9]), ["factors of the experts", "8", "9"]);
        let shorter = |values: &mut Option<&[f32]>| *values = values.map(|values| &values[1..]);
        refused(&|o| shorter(&mut o.biases.gate), ["length of the gates' biases", "256", "255"]);
        refused(&|o| shorter(&mut o.biases.up), ["length of the biases of up", "256", "255"]);
        refused(&|o| shorter(&mut o.biases.down), ["length of the second biases", "512", "511"]);
        let error = ["length of the shared experts' result", "256", "255"];
        refused(&|o| shorter(&mut o.shared), error);
        // Weights of experts have their own names in checkpoints, here all are `x`.
        refused(&|o| o.first[3] = o.second[3], ["weights `x`", "gated", "otherwise"]);
        refused(&|o| o.second[3] = o.first[3], ["weights `x`", "not gated", "otherwise"]);
    }

    let dims = Dims::new(2, 4, HIDDEN).expect("dims");
    let tokens = HalfMatrix::new("x", dims, HALF, vec![0; 2 * 2 * 4 * HIDDEN]).expect("zeros");
    let two = MoeOperands { tokens: &tokens, ..good.clone() };
    refused(two.check(), ["batch of the tokens", "1", "2"]);
    let tensor =
        |sizes| blocks::<Nvfp4>(Generator::Exact, sizes, Linear, 1.0, &mut SplitMix64::new(1));
    for (sizes, gated, error) in [
        ([2, BETWEEN, HIDDEN], true, ["batch of `x`", "1", "2"]),
        ([1, 48, HIDDEN], true, ["rows of `x`", "32", "48"]),
        ([1, BETWEEN, 80], true, ["K of `x`", "64", "80"]),
        ([2, HIDDEN, BETWEEN], false, ["batch of `x`", "1", "2"]),
        ([1, 72, BETWEEN], false, ["rows of `x`", "64", "72"]),
        ([1, HIDDEN, 48], false, ["K of `x`", "32", "48"]),
    ] {
        let (other, mut operands) = (tensor(sizes), good.clone());
        match gated {
            true => operands.first[5] = GatedWeights::pair(&other, &other).expect("alike").into(),
            false => operands.second[5] = (&other).into(),
        }
        refused(operands.check(), error);
    }
    for (id, found) in [(8, "8"), (-1, "-1"), (i32::MIN, "-2147483648")] {
        let mut ids = good.ids.to_vec();
        ids[5] = id;
        let operands = MoeOperands { ids: &ids, ..good.clone() };
        refused(operands.check(), ["id 1 of token 2", "from 0 to 7", found]);
    }
    for weight in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut weights = good.weights.to_vec();
        weights[5] = weight;
        let error =
            MoeOperands { weights: &weights, ..good.clone() }.check().expect_err("no number");
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::InvalidArgument, 2));
        let Error::Scalar { field, required, actual } = error else { panic!("{error}") };
        assert_eq!((field.as_str(), required), ("weight 1 of token 2", "finite"));
        assert_eq!(actual.to_bits(), f64::from(weight).to_bits());
    }
    good.check().expect("as it must be");
}

/// Tokens that have fewer columns than a run's weights.
#[test]
fn tokens_of_other_columns() {
    let mixture =
        |hidden| Mixture::<Nvfp4>::new(MixtureCase::new([4, 8, 2], [hidden, BETWEEN], HALF), 5);
    let (narrow, wide) = (mixture(HIDDEN), mixture(96));
    let steps = [narrow.step(6), wide.step(6)];
    for machine in DEVICES.map(Watched::new) {
        let weights = wide.operands(&steps[1]).repack(machine.kernels.device()).expect("weights");
        let operands = narrow.operands(&steps[0]);
        let run = MoeRun::new(&machine.kernels, &operands, weights.each_ref());
        machine.refused(run, ["columns of the tokens", "96, as planned", "64"], &[]);
    }
}
