//! Gated layers, sums in products, and whole mixtures, against sums in f64 of the dequantised weights.

use candle_core::{D, DType, Device, Module, Result, Tensor};
use nvfp4::HalfType;
use nvfp4::ScaleLayout;
use nvfp4::gemm::Activation;
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;
use nvfp4_candle::{Activations, Engine, Gate, GateOrder, Linear, MoeLinear, MoeMlp};
use nvfp4_checkpoint::Blocks;

use super::{dense, emulated, error, in_e4m3, message, observed, tensor, wave};

/// Inputs, and elements between the projections.
const HIDDEN: usize = 64;
const INNER: usize = 48;
const EXPERTS: usize = 4;

fn blocks(rows: usize, columns: usize, seed: f32) -> Blocks {
    let dims = Dims::new(1, rows, columns).expect("dims");
    let values = wave(rows * columns, 0.7 + seed);
    let scale = TensorScale::FromAmax;
    Blocks::Nvfp4(quantize("w", &values, dims, scale, ScaleLayout::Linear).expect("quantised"))
}

fn f64s(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.contiguous()?.flatten_all()?.to_vec1()
}

/// The error function by its series, which converges for the arguments of these tests.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * 2. / std::f64::consts::PI.sqrt()
}

fn gated(activation: Activation, gate: f64, up: f64) -> f64 {
    let sigmoid = |x: f64| 1. / (1. + (-x).exp());
    match activation {
        Activation::Identity => gate * up,
        Activation::Silu => gate * sigmoid(gate) * up,
        Activation::GeluTanh => {
            let inner = (2. / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
            0.5 * gate * (1. + inner.tanh()) * up
        }
        Activation::Gelu => 0.5 * gate * (1. + erf(gate / 2f64.sqrt())) * up,
        Activation::ReluSquared => gate.max(0.).powi(2) * up,
        Activation::ClampedSwiglu { limit, slope } => {
            let (limit, slope) = (f64::from(limit), f64::from(slope));
            let gate = gate.min(limit);
            gate * sigmoid(slope * gate) * (up.clamp(-limit, limit) + 1.)
        }
    }
}

/// `x w^T + b` of a row.
fn product(row: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let dot = |(weight, bias): (&[f64], &f64)| {
        bias + row.iter().zip(weight).map(|(x, w)| x * w).sum::<f64>()
    };
    weight.chunks_exact(row.len()).zip(bias).map(dot).collect()
}

/// The results of the rows of a gate and of up.
fn combined(both: &[f64], gate: Gate) -> Vec<f64> {
    let n = both.len() / 2;
    let pair = |at: usize| match gate.order {
        GateOrder::Halves => (both[at], both[n + at]),
        GateOrder::Alternating => (both[2 * at], both[2 * at + 1]),
    };
    (0..n).map(|at| gated(gate.activation, pair(at).0, pair(at).1)).collect()
}

fn of(values: Vec<f64>, like: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(values, like, &Device::Cpu)?.to_dtype(DType::F32)
}

fn gates() -> impl Iterator<Item = Gate> {
    let orders = [GateOrder::Halves, GateOrder::Alternating];
    Activation::ALL
        .into_iter()
        .flat_map(move |activation| orders.map(|order| Gate { activation, order }))
}

#[test]
fn a_gate_and_up_are_one_product() -> Result<()> {
    let (weight, bias) = (blocks(2 * INNER, HIDDEN, 0.), tensor(&[2 * INNER], 1.1));
    // Rounded first, so that products differ by the order of sums alone.
    let x = tensor(&[5, HIDDEN], 0.3).to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
    let (rows, values, biases) = (f64s(&x)?, f64s(&dense(&weight))?, f64s(&bias)?);
    let engines = emulated(HalfType::Bf16);
    for gate in gates() {
        let results = rows
            .chunks_exact(HIDDEN)
            .flat_map(|row| combined(&product(row, &values, &biases), gate))
            .collect();
        let right = of(results, &[5, INNER])?;
        for engine in std::iter::once(&Engine::reference()).chain(&engines) {
            let layer = Linear::gated(engine, &weight, Some(&bias), gate)?;
            assert_eq!([layer.in_features(), layer.out_features()], [HIDDEN, INNER]);
            for x in [x.clone(), x.t()?.contiguous()?.t()?] {
                let off = error(&layer.forward(&x)?, &right)?;
                assert!(off < 2e-5, "{engine:?} {gate:?} {off}");
            }
            let one = layer.forward(&x.narrow(0, 3, 1)?)?;
            let off = error(&one, &right.narrow(0, 3, 1)?)?;
            assert!(off < 2e-5, "{engine:?} {gate:?} {off}");
        }
    }
    Ok(())
}

#[test]
fn sums_are_rounded_once() -> Result<()> {
    let (weight, bias) = (blocks(INNER, HIDDEN, 0.2), tensor(&[INNER], 1.1));
    let x = tensor(&[2, 3, HIDDEN], 0.3).to_dtype(DType::BF16)?;
    let added = tensor(&[3, 2, INNER], 0.9).to_dtype(DType::BF16)?.transpose(0, 1)?;
    let (values, biases) = (f64s(&dense(&weight))?, f64s(&bias)?);
    let sums = f64s(&x)?
        .chunks_exact(HIDDEN)
        .flat_map(|row| product(row, &values, &biases))
        .zip(f64s(&added)?)
        .map(|(value, added)| value + added)
        .collect();
    let right = of(sums, &[2, 3, INNER])?;
    for engine in std::iter::once(&Engine::reference()).chain(&emulated(HalfType::Bf16)) {
        let layer = Linear::new(engine, &weight, Some(&bias))?;
        let wide = layer.forward_add(&x.to_dtype(DType::F32)?, &added.to_dtype(DType::F32)?)?;
        let off = error(&wide, &right)?;
        assert!(off < 1e-5, "{engine:?} {off}");
        // No further from the right value than rounding alone brings it.
        let found = f64s(&layer.forward_add(&x, &added)?)?;
        for (found, right) in found.into_iter().zip(f64s(&right)?) {
            let most = right.abs() / 256. + 1e-5;
            assert!((found - right).abs() < most, "{engine:?} {found} {right}");
        }
        for other in [added.narrow(2, 0, INNER - 1)?, added.to_dtype(DType::F32)?] {
            let said = message(layer.forward_add(&x, &other));
            assert!(said.contains("what is added"), "{said}");
        }
    }
    Ok(())
}

/// Experts' projections to a gate and up, and down, with their biases.
struct Mixture {
    first: Vec<Blocks>,
    second: Vec<Blocks>,
    biases: [Tensor; 2],
}

impl Mixture {
    fn new() -> Self {
        let seeds = [0., 0.13, 0.29, 0.41];
        Self {
            first: seeds.map(|seed| blocks(2 * INNER, HIDDEN, seed)).to_vec(),
            second: seeds.map(|seed| blocks(HIDDEN, INNER, seed + 0.05)).to_vec(),
            biases: [tensor(&[EXPERTS, 2 * INNER], 0.9), tensor(&[EXPERTS, HIDDEN], 0.8)],
        }
    }

    fn layer(&self, engine: &std::sync::Arc<Engine>, gate: Gate) -> Result<MoeMlp> {
        let [first, second] = self.biases.each_ref();
        MoeMlp::new(
            MoeLinear::gated(engine, &self.first, Some(first), gate)?,
            MoeLinear::new(engine, &self.second, Some(second))?,
        )
    }

    /// The weighted sums of the chosen experts' results.
    fn right(&self, x: &Tensor, ids: &[u32], weights: &Tensor, gate: Gate) -> Result<Tensor> {
        let (rows, tokens) = (f64s(x)?, x.dim(0)?);
        let (weights, top_k) = (f64s(weights)?, ids.len() / tokens);
        let of_all = |blocks: &[Blocks]| -> Result<Vec<Vec<f64>>> {
            blocks.iter().map(|blocks| f64s(&dense(blocks))).collect()
        };
        let (first, second) = (of_all(&self.first)?, of_all(&self.second)?);
        let [first_bias, second_bias] = self.biases.each_ref();
        let mut results = vec![0f64; tokens * HIDDEN];
        for choice in 0..ids.len() {
            let (token, expert) = (choice / top_k, ids[choice] as usize);
            let bias = |bias: &Tensor| f64s(&bias.get(expert)?);
            let row = &rows[token * HIDDEN..][..HIDDEN];
            let between = combined(&product(row, &first[expert], &bias(first_bias)?), gate);
            let result = product(&between, &second[expert], &bias(second_bias)?);
            let sums = results[token * HIDDEN..].iter_mut().zip(result);
            sums.for_each(|(sum, value)| *sum += weights[choice] * value);
        }
        of(results, &[tokens, HIDDEN])
    }
}

/// Six tokens that choose two of four experts each; nobody chooses the third.
const IDS: [u32; 12] = [0, 1, 3, 0, 1, 3, 0, 3, 3, 1, 1, 0];

#[test]
fn a_mixture_is_its_experts_weighted_sum() -> Result<()> {
    let mixture = Mixture::new();
    let gate = |activation, order| Gate { activation, order };
    let gates = [
        gate(Activation::Silu, GateOrder::Halves),
        gate(Activation::GPT_OSS, GateOrder::Alternating),
    ];
    let engines = emulated(HalfType::Bf16);
    for (gate, tokens) in gates.into_iter().flat_map(|gate| [1usize, 6].map(|of| (gate, of))) {
        let x = tensor(&[tokens, HIDDEN], 0.3).to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
        let ids = &IDS[..2 * tokens];
        let weights = tensor(&[tokens, 2], 0.4);
        let added = tensor(&[tokens, HIDDEN], 0.6).to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
        let right = mixture.right(&x, ids, &weights, gate)?;
        let ids = Tensor::from_slice(ids, (tokens, 2), &Device::Cpu)?;
        for engine in std::iter::once(&Engine::reference()).chain(&engines) {
            // Rows between the products and their results have 16 bits in kernels.
            let bound = if format!("{engine:?}").contains("reference") { 5e-6 } else { 1.2e-2 };
            let layer = mixture.layer(engine, gate)?;
            for ids in [ids.clone(), ids.to_dtype(DType::I64)?, ids.to_dtype(DType::U8)?] {
                let off = error(&layer.forward(&x, &ids, &weights)?, &right)?;
                assert!(off < bound, "{engine:?} {gate:?} {tokens} {off}");
            }
            let sum = layer.forward_add(&x, &ids, &weights, &added)?;
            let off = error(&(sum - &added)?, &right)?;
            assert!(off < bound, "{engine:?} {gate:?} {tokens} {off}");
            let half = layer.forward(&x.to_dtype(DType::BF16)?, &ids, &weights)?;
            let off = error(&half, &right)?;
            assert!(half.dtype() == DType::BF16 && off < 1.6e-2, "{engine:?} {gate:?} {off}");
            let apart = MoeLinear::gated(engine, &mixture.first, Some(&mixture.biases[0]), gate)?;
            let between = apart.gather_forward(&x, &ids)?;
            let second = MoeLinear::new(engine, &mixture.second, Some(&mixture.biases[1]))?;
            let rows = second.gather_forward(&between, &ids)?;
            let sum = rows.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?.sum(1)?;
            let off = error(&sum, &right)?;
            assert!(off < bound, "{engine:?} {gate:?} {tokens} {off}");
        }
    }
    Ok(())
}

/// Layers of the same sizes share their plans and the memory of launches, and neither weights nor scales.
#[test]
fn mixtures_share_memory_alone() -> Result<()> {
    let gate = Gate { activation: Activation::Silu, order: GateOrder::Halves };
    let (one, mut other) = (Mixture::new(), Mixture::new());
    other.first.rotate_left(1);
    other.second = (0..EXPERTS).map(|at| blocks(HIDDEN, INNER, 0.6 + at as f32)).collect();
    let x = tensor(&[6, HIDDEN], 0.3).to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
    let ids = Tensor::from_slice(&IDS, (6, 2), &Device::Cpu)?;
    let weights = tensor(&[6, 2], 0.4);
    for (engine, reports) in observed(HalfType::Bf16) {
        let layers = [one.layer(&engine, gate)?, other.layer(&engine, gate)?];
        for _ in 0..2 {
            for (mixture, layer) in [&one, &other].into_iter().zip(&layers) {
                let right = mixture.right(&x, &IDS, &weights, gate)?;
                let off = error(&layer.forward(&x, &ids, &weights)?, &right)?;
                assert!(off < 1.2e-2 && !reports.take().is_empty(), "{engine:?} {off}");
            }
        }
    }
    Ok(())
}

#[test]
fn mixtures_take_e4m3() -> Result<()> {
    let (mixture, order) = (Mixture::new(), GateOrder::Halves);
    let gate = Gate { activation: Activation::Silu, order };
    let x = tensor(&[6, HIDDEN], 0.3);
    let ids = Tensor::from_slice(&IDS, (6, 2), &Device::Cpu)?;
    let weights = tensor(&[6, 2], 0.4);
    let right = mixture.right(&in_e4m3(&x)?, &IDS, &weights, gate)?;
    for engine in emulated(HalfType::Bf16) {
        let layer = mixture.layer(&engine.with_activations(Activations::Fp8), gate)?;
        let off = error(&layer.forward(&x, &ids, &weights)?, &right)?;
        // Rows between the products are in e4m3, too, of three bits.
        assert!(off < 0.2, "{engine:?} {off}");
    }
    Ok(())
}

#[test]
fn other_gates_and_mixtures_are_refused() -> Result<()> {
    let engine = Engine::reference();
    let gate = Gate { activation: Activation::Silu, order: GateOrder::Halves };
    let odd = blocks(2 * INNER + 1, HIDDEN, 0.);
    let said = message(Linear::gated(&engine, &odd, None, gate));
    assert!(said.contains("rows of gated weights") && said.contains("97"), "{said}");
    let short = tensor(&[INNER], 1.);
    let even = blocks(2 * INNER, HIDDEN, 0.);
    let said = message(Linear::gated(&engine, &even, Some(&short), gate));
    assert!(said.contains("bias"), "{said}");
    let Mixture { first, second, biases: _ } = Mixture::new();
    let gate_up = MoeLinear::gated(&engine, &first, None, gate)?;
    let down = MoeLinear::new(&engine, &second, None)?;
    for (first, second, part) in [
        (down.clone(), down.clone(), "projections to the activation"),
        (gate_up.clone(), gate_up.clone(), "projections behind it"),
        (gate_up.clone(), MoeLinear::new(&engine, &second[1..], None)?, "experts"),
        (gate_up.clone(), MoeLinear::new(&Engine::reference(), &second, None)?, "engine"),
    ] {
        let said = message(MoeMlp::new(first, second));
        assert!(said.contains(part), "{said}");
    }
    let layer = MoeMlp::new(gate_up, down)?;
    let x = tensor(&[6, HIDDEN], 0.3);
    let ids = Tensor::from_slice(&IDS, (6, 2), &Device::Cpu)?;
    let weights = tensor(&[6, 2], 0.4);
    for (x, ids, weights, part) in [
        (x.narrow(1, 0, 48)?, ids.clone(), weights.clone(), "activations"),
        (x.narrow(0, 0, 5)?, ids.clone(), weights.clone(), "activations"),
        (x.clone(), ids.flatten_all()?, weights.clone(), "ids"),
        (x.clone(), ids.clone(), weights.narrow(1, 0, 1)?, "weights"),
    ] {
        let said = message(layer.forward(&x, &ids, &weights));
        assert!(said.contains(part), "{said}");
    }
    let said = message(layer.forward_add(&x, &ids, &weights, &x.to_dtype(DType::BF16)?));
    assert!(said.contains("what is added"), "{said}");
    let none = Tensor::from_slice(&[4u32, 0], (1, 2), &Device::Cpu)?;
    let one = (x.narrow(0, 0, 1)?, weights.narrow(0, 0, 1)?);
    let said = message(layer.forward(&one.0, &none, &one.1));
    assert!(said.contains("an id"), "{said}");
    for engine in emulated(HalfType::Bf16) {
        let first = MoeLinear::gated(&engine, &first, None, gate)?;
        let layer = MoeMlp::new(first, MoeLinear::new(&engine, &second, None)?)?;
        let y = layer.forward(&one.0, &none, &one.1)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(y.iter().all(|value| value.is_nan()), "{engine:?} {y:?}");
    }
    Ok(())
}
