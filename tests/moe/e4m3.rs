//! Mixtures of experts whose tokens are quantised to e4m3 before each product (W4A8), of the steps that a caller has:
//! each on its own inputs against its definition.

use fp4_formats::gemm::{sm80, sm120};
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat, FloatType, HalfType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, Activations, DeviceWeights, Gemm, GemmOptions,
    GroupBuffers, Grouping, HalfMatrix, Repacked, ResultBuffers, UpOptions, Vectors, Weights,
    Workspace, format_of,
};
use nvfp4::moe::{CombineTypes, MoeShape, Routing};
use nvfp4::tensor::Dims;
use nvfp4_lab::gemm::reference_grouped_for;
use nvfp4_lab::moe::MoeOperands;
use nvfp4_tests::mixture::{Mixture, MixtureCase};
use nvfp4_tests::{DEVICES, MACHINES, SCHEDULES, emulated};
use std::ops::Range;

use super::layers::{NOWHERE, routed};

fn upload(kernels: &Kernels, bytes: &[u8]) -> DeviceBuffer {
    DeviceBuffer::upload(kernels.device(), "x", bytes).expect("memory")
}

fn floats_on(kernels: &Kernels, values: &[f32]) -> DeviceBuffer {
    upload(kernels, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

/// A product of a layer with its weights, options of each expert, and biases.
struct Product<'a, F> {
    gemm: Gemm,
    on_device: DeviceWeights,
    weights: &'a [Weights<'a, F>],
    options: GemmOptions,
    /// Biases of the product, and of its other half.
    biases: [Option<&'a [f32]>; 2],
    /// The type of the result.
    result: FloatType,
}

impl<'a, F: BlockFormat> Product<'a, F> {
    /// Plans it for `slots` tokens of `half`.
    fn new(
        kernels: &Kernels,
        (slots, half): (usize, HalfType),
        weights: &'a [Weights<'a, F>],
        options: GemmOptions,
        biases: [Option<&'a [f32]>; 2],
        result: FloatType,
    ) -> Self {
        let (device, kind) = (kernels.device(), ActivationKind::Fp8(Some(half)));
        let part = |weights: &Weights<'_, F>| Repacked::rounded(device, *weights, kind);
        let parts: Vec<Repacked> = weights.iter().map(|w| part(w).expect("weights")).collect();
        let on_device = Repacked::stack(&parts).expect("alike").upload(device).expect("memory");
        let grouping = Grouping::Contiguous { bound: slots };
        let options = options.output(result);
        let gemm = Gemm::grouped(kernels, &on_device, grouping, kind, &options).expect("planned");
        Self { gemm, on_device, weights, options, biases, result }
    }

    /// Queues it on the tokens that `offsets` gives to each expert.
    fn launch(
        &self,
        kernels: &Kernels,
        offsets: &DeviceBuffer,
        tokens: &DeviceBuffer,
    ) -> DeviceBuffer {
        let device = kernels.device();
        let [bytes, _] = self.gemm.out_bytes().expect("few");
        // The product behind it quantises rows that no expert has, too.
        let out = DeviceBuffer::zeroed(device, "rows", bytes).expect("memory");
        let workspace = Workspace::new(device, self.gemm.workspace_bytes()).expect("memory");
        let [bias, up_bias] = self.biases.map(|bias| bias.map(|bias| floats_on(kernels, bias)));
        let groups = GroupBuffers { own_vectors: true, ..GroupBuffers::of(offsets) };
        let vectors =
            Vectors { bias: bias.as_ref(), up_bias: up_bias.as_ref(), ..Vectors::default() };
        let (a, to) = (ActivationBuffers::Halves(tokens), ResultBuffers::Floats(&out));
        let launched =
            self.gemm.launch_grouped(groups, a, &self.on_device, to, Some(&workspace), vectors);
        launched.expect("a launch");
        out
    }

    /// Compares the rows that it left for these tokens with the oracle.
    fn check(
        &self,
        arch: Arch,
        tokens: &HalfMatrix,
        groups: &[Range<usize>],
        rows: &[u8],
        what: &str,
    ) {
        let count = groups.len();
        let of = |bias: Option<&[f32]>, expert: usize| {
            let own =
                |bias: &[f32]| bias.chunks(bias.len() / count).nth(expert).map(<[f32]>::to_vec);
            bias.and_then(own)
        };
        let options = (0..count).map(|expert| {
            let [bias, up_bias] = self.biases.map(|bias| of(bias, expert));
            let up = self.options.up.clone().map(|up| up.bias(up_bias));
            self.options.clone().bias(bias).up(up)
        });
        let options: Vec<GemmOptions> = options.collect();
        let tokens = Activations::ToFp8(tokens);
        let reference = reference_grouped_for(arch, &tokens, self.weights, groups, &options);
        let reference = reference.expect("the oracle").with_additions(self.gemm.plan().additions);
        let found = reference.verify(&floats::decode(self.result, rows), self.result);
        assert!(found.passed(), "{what}\n{}\n{}", self.gemm.plan(), found.summary());
    }

    /// Checks which kernel the plan has: block-scaled products take e4m3 beside MXFP4 as they are, and the kernels of
    /// sm_80 take them decoded beside NVFP4.
    fn check_plan(&self, arch: Arch) {
        let plan = self.gemm.plan();
        if arch == Arch::Sm120f {
            let native = sm120::GROUPED.iter().any(|config| config.name == plan.kernel);
            let decoded = sm80::GROUPED.iter().any(|config| config.name == plan.kernel);
            let of_mx = format_of::<F>() == Format::Mxfp4;
            assert_eq!([native, decoded], [of_mx, !of_mx], "{plan}");
            assert_eq!(plan.to_string().contains("as they are, exactly"), of_mx, "{plan}");
        }
    }
}

/// Runs a layer and compares each step.
fn check<F: BlockFormat>(kernels: &Kernels, case: MixtureCase, seed: u64) {
    let what = format!("{}: {case:?}", kernels.device().choice());
    let arch = kernels.device().choice().arch;
    let mixture = Mixture::<F>::new(case, seed);
    let step = mixture.step(seed + 1);
    let operands = mixture.operands(&step);
    let MoeOperands { shape, tokens, ids, weights, ref biases, .. } = operands;
    let (half, [hidden, between]) = (tokens.operand(), case.sizes);

    let routing = Routing::new(kernels, shape).expect("a shape");
    let (slots, output) = (routing.slots(), operands.options.output);
    let gated = GemmOptions::new().activation(case.activation).up(UpOptions::new());
    let of = (slots, half);
    let gate = [biases.gate, biases.up];
    let first = Product::new(kernels, of, &operands.first, gated, gate, half.float());
    let down = [biases.down, None];
    let second =
        Product::new(kernels, of, &operands.second, GemmOptions::new(), down, FloatType::F32);
    first.check_plan(arch);
    second.check_plan(arch);

    let routes = routing.routes().expect("memory");
    let ids_bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    routing.route(&upload(kernels, &ids_bytes), &routes).expect("a launch");
    let x = upload(kernels, tokens.bytes());
    let gathered = upload(kernels, &vec![0xee; slots * hidden * 2]);
    routing.gather(&x, &routes, &gathered, hidden).expect("a launch");
    let inner = first.launch(kernels, &routes.offsets, &gathered);
    let rows = second.launch(kernels, &routes.offsets, &inner);
    let shared = operands.shared.map(|shared| floats_on(kernels, shared));
    let out = upload(kernels, &vec![0xee; shape.tokens * hidden * 4]);
    let types = CombineTypes { rows: FloatType::F32, result: output, shared: output };
    let factors = floats_on(kernels, weights);
    let combined =
        routing.combine(&rows, &routes, &factors, shared.as_ref(), &out, (hidden, types));
    combined.expect("a launch");
    assert_eq!(routes.problem().expect("readable"), None, "{what}");

    let [positions, sources, offsets] = routed(shape, ids);
    let groups: Vec<Range<usize>> =
        offsets.windows(2).map(|ends| ends[0] as usize..ends[1] as usize).collect();
    let count = groups.last().expect("experts").end;
    assert!(count > 0, "{what}: no token has an expert here");
    let right: Vec<u8> = sources[..count]
        .iter()
        .flat_map(|&slot| &tokens.bytes()[slot as usize / shape.top_k * hidden * 2..][..hidden * 2])
        .copied()
        .collect();
    let found = gathered.read().expect("readable");
    assert!(found[..right.len()] == right, "{what}: gathered");
    let matrix = |columns: usize, bytes: Vec<u8>| {
        let dims = Dims::new(1, count, columns).expect("dims");
        HalfMatrix::new("tokens", dims, half, bytes).expect("whole rows")
    };
    let inner = inner.read_range(0..count * between * 2).expect("readable");
    first.check(arch, &matrix(hidden, right), &groups, &inner, &what);
    let rows = rows.read_range(0..count * hidden * 4).expect("readable");
    second.check(arch, &matrix(between, inner), &groups, &rows, &what);

    // Combining rounds to f32 after each step.
    let rows = floats::decode(FloatType::F32, &rows);
    let out = floats::decode(output, &out.read().expect("readable"));
    for (at, &found) in out.iter().enumerate() {
        let (token, column) = (at / hidden, at % hidden);
        let mut sum = 0f32;
        for slot in token * shape.top_k..(token + 1) * shape.top_k {
            if positions[slot] != NOWHERE {
                sum += weights[slot] * rows[positions[slot] as usize * hidden + column];
            }
        }
        sum += operands.shared.map_or(0.0, |shared| shared[at]);
        assert_eq!(found, sum, "{what}: token {token}, column {column}");
    }
}

/// Layers in both formats on a machine: few tokens and many, experts elsewhere and without tokens, biases and a shared
/// expert.
fn layers(device: &str) {
    for (at, schedule) in SCHEDULES.into_iter().enumerate() {
        let half = [HalfType::Bf16, HalfType::F16][at % 2];
        let few = MixtureCase::new([9, 6, 2], [64, 96], half);
        let elsewhere = MoeShape { first: 1, count: 3, ..few.shape };
        let kernels = emulated(device, schedule);
        for case in [
            MixtureCase { extras: true, ..few },
            MixtureCase { shape: elsewhere, extras: true, activation: Activation::GPT_OSS, ..few },
            MixtureCase::new([70, 3, 2], [288, 160], half),
            MixtureCase::new([1, 12, 4], [160, 64], half),
        ] {
            check::<Mxfp4>(&kernels, case, at as u64);
            check::<Nvfp4>(&kernels, case, 10 + at as u64);
        }
    }
}

#[test]
fn layers_of_e4m3() {
    DEVICES.into_iter().for_each(layers);
}

#[test]
fn layers_of_e4m3_on_sm_120f() {
    layers(MACHINES[2]);
}
