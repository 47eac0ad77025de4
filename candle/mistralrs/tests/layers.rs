//! Layers as mistral.rs calls them, against its own layers of the dequantised weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use candle_core::{DType, Device, Result, Tensor};
use half::bf16;
use mistralrs_quant::{IsqType, QuantMethod, QuantMethodConfig, QuantizeOntoGuard, UnquantLinear};
use nvfp4::HalfType;
use nvfp4::device::{Device as Machine, DeviceRequest};
use nvfp4::quantize::{Format, QuantizeOptions, quantize_matrix, recipe_by_name};
use nvfp4::tensor::{Blocks, Dims};
use nvfp4_mistralrs::{Engine, Linear, MoeLinear, PackedBuilder, PackedExperts, PackedLinear};

const N: usize = 40;
const K: usize = 64;
const EXPERTS: usize = 5;
/// Products differ in the order of their sums.
const BOUND: f32 = 1e-5;

fn wave(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|at| (at as f32 * step).sin()).collect()
}

/// Numbers that bf16 holds, as the kernels take them.
fn tensor(dims: &[usize], step: f32) -> Tensor {
    let values = wave(dims.iter().product(), step).into_iter().map(|x| bf16::from_f32(x).to_f32());
    Tensor::from_vec(values.collect(), dims, &Device::Cpu).expect("a tensor")
}

fn blocks(seed: usize, format: Format) -> Blocks {
    let dims = Dims::new(1, N, K).expect("dims");
    let values = wave(N * K, 0.7 + seed as f32);
    let options = QuantizeOptions::new(recipe_by_name(format, "torchao").expect("a recipe"));
    let matrix = quantize_matrix("w", &values, dims, &options).expect("quantised");
    matrix.into_blocks("w", dims).expect("blocks")
}

fn dense(blocks: &Blocks) -> Tensor {
    let values = blocks.dequantize().expect("small");
    Tensor::from_vec(values, (N, K), &Device::Cpu).expect("a matrix")
}

/// Mistral.rs' layer of floats.
fn judge(weight: Tensor, bias: Option<Tensor>) -> Result<Arc<dyn QuantMethod>> {
    let linear = candle_nn::Linear::new(weight, bias);
    Ok(Arc::new(<UnquantLinear as QuantMethod>::new(QuantMethodConfig::Unquantized(linear))?))
}

/// The reference, and the emulated machines that have kernels.
fn engines() -> Vec<Arc<Engine>> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernels");
    let folder = std::env::var_os("NVFP4_KERNELS_DIR").map_or(built, PathBuf::from);
    let open = |name: &str| {
        let request: DeviceRequest = name.parse().expect("a machine");
        let kernels = Machine::open(&request)?.kernels(Some(&folder))?;
        Ok::<_, nvfp4::Error>(Engine::emulated(kernels, HalfType::Bf16).expect("emulated"))
    };
    let mut engines = vec![Engine::reference()];
    for name in ["emu:h200", "emu:rtx4090"] {
        match open(name) {
            Ok(engine) => engines.push(engine),
            Err(error) if std::env::var_os("NVFP4_KERNELS_DIR").is_some() => {
                panic!("{name}: {error}")
            }
            Err(error) => skipped::part(name, error),
        }
    }
    engines
}

/// The norm of the difference over that of what is right.
fn error(found: &Tensor, right: &Tensor) -> Result<f32> {
    assert_eq!((found.dims(), found.dtype()), (right.dims(), right.dtype()));
    let norm = |tensor: Tensor| tensor.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>();
    let [found, right] = [found, right].map(|tensor| tensor.to_dtype(DType::F32));
    let (found, right) = (found?, right?);
    Ok(norm((found - &right)?)? / norm(right)?)
}

#[test]
fn linear_is_mistrals_linear_of_the_same_weights() -> Result<()> {
    let bias = tensor(&[N], 1.1);
    for engine in engines() {
        for format in [Format::Nvfp4, Format::Mxfp4] {
            let weight = blocks(0, format);
            let right = judge(dense(&weight), Some(bias.clone()))?;
            let kept = PackedLinear::keeping(&engine, weight.clone(), Some(&bias))?;
            let dequantized = kept.dequantize_w()?;
            let layers: [Arc<dyn QuantMethod>; 2] = [
                Arc::new(kept),
                Arc::new(PackedLinear::new(Linear::new(&engine, &weight, Some(&bias))?)),
            ];
            for layer in &layers {
                for x in [tensor(&[3, K], 0.3), tensor(&[2, 3, K], 0.3)] {
                    let found = layer.forward(&x)?;
                    assert!(error(&found, &right.forward(&x)?)? < BOUND, "{format:?} {engine:?}");
                    let x = x.to_dtype(DType::BF16)?;
                    assert_eq!(layer.forward_autocast(&x)?.dtype(), DType::BF16);
                }
            }
            // Four bits and a scale have more than bf16 holds, but for MXFP4's powers of two.
            let off = error(&dequantized.to_dtype(DType::F32)?, &dense(&weight))?;
            assert!(off < 1e-2, "{format:?} {off}");
            assert!(message(layers[1].dequantize_w()).contains("keeping"));
        }
    }
    Ok(())
}

#[test]
fn experts_are_mistrals_experts_of_the_same_weights() -> Result<()> {
    let matrices: Vec<Blocks> = (0..EXPERTS).map(|at| blocks(at, Format::Nvfp4)).collect();
    let all = Tensor::stack(&matrices.iter().map(dense).collect::<Vec<_>>(), 0)?;
    let right = judge(all, None)?;
    let ids = [0u32, 3, 4, 4, 1, 2, 2, 0, 3, 1, 0, 2];
    for engine in engines() {
        let layer = PackedExperts::new(MoeLinear::new(&engine, &matrices, None)?);
        let layer: Arc<dyn QuantMethod> = Arc::new(layer);
        for (x, dims) in [(vec![6, 1, K], vec![6, 2]), (vec![2, 3, 1, 1, K], vec![2, 3, 2])] {
            let (x, ids) = (tensor(&x, 0.3), Tensor::from_slice(&ids, dims, &Device::Cpu)?);
            let found = layer.gather_forward(&x, &ids)?;
            let off = error(&found, &right.gather_forward(&x, &ids)?)?;
            assert!(off < BOUND, "{engine:?} {off}");
        }
        // A row for each choice, as the projections down have.
        let (x, ids) = (tensor(&[6, 2, K], 0.2), Tensor::from_slice(&ids, (6, 2), &Device::Cpu)?);
        let found = layer.gather_forward(&x, &ids)?;
        for choice in 0..2 {
            let (x, ids) = (x.narrow(1, choice, 1)?, ids.narrow(1, choice, 1)?.contiguous()?);
            let right = right.gather_forward(&x.contiguous()?, &ids)?;
            let off = error(&found.narrow(1, choice, 1)?, &right)?;
            assert!(off < BOUND, "{engine:?} {off}");
        }
        assert!(message(layer.forward(&tensor(&[6, K], 0.2))).contains("gather_forward"));
    }
    Ok(())
}

/// A layer of a checkpoint that ModelOpt's layout has.
#[test]
fn layers_come_from_checkpoints() -> Result<()> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/models/llama");
    let builder = PackedBuilder::open(model, &Engine::reference())?;
    let own = builder.pp("model.layers.0.mlp.up_proj");
    let layer: Arc<dyn QuantMethod> = Arc::new(PackedLinear::new(own.linear(64, 128)?));
    let y = layer.forward(&tensor(&[2, 64], 0.3))?;
    assert_eq!((y.dims(), layer.name()), (&[2, 128][..], "nvfp4-linear"));
    assert!(y.abs()?.sum_all()?.to_scalar::<f32>()? > 0.);
    Ok(())
}

#[test]
fn what_four_bits_cannot_do_is_refused() -> Result<()> {
    let weight = blocks(0, Format::Nvfp4);
    let engine = Engine::reference();
    let layer = Arc::new(PackedLinear::keeping(&engine, weight, None)?);
    let guard = || QuantizeOntoGuard::new();
    let count = AtomicUsize::new(0);
    let isq = |asked| layer.clone().apply_isq(asked, Device::Cpu, &count, None, guard());
    assert!(message(isq(Some(IsqType::Q4K))).contains("four bits"));
    assert!(isq(None).is_ok());
    assert!(message(layer.add_delta_w(&tensor(&[N, K], 0.1))).contains("add_delta_w"));
    assert!(message(<PackedLinear as QuantMethod>::new(QuantMethodConfig::Dummy)).contains("new"));
    assert!(message(QuantMethod::forward(&*layer, &tensor(&[2, K + 1], 0.1))).contains("65"));
    assert_eq!(layer.dtype_and_device().0, DType::F16);
    Ok(())
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("refused").to_string()
}
