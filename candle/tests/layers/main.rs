//! Layers on the reference and on the emulator, for tensors of every layout, and from every layout of
//! checkpoints.

mod gated;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Module, Result, Tensor};
use nvfp4::device::{Device as Machine, DeviceRequest};
use nvfp4::gemm::{Adding, Fp8Matrix, HalfMatrix};
use nvfp4::observe::Reports;
use nvfp4::parallel::Shard;
use nvfp4::quantize::{Format, TensorScale, quantize, recipe_by_name};
use nvfp4::tensor::Dims;
use nvfp4::{HalfType, ScaleLayout};
use nvfp4_candle::{Activations, Engine, Linear, MoeLinear, PackedBuilder};
use nvfp4_checkpoint::{Blocks, Layout, Model, ModelOptions, matrix, quantize_model};

const N: usize = 40;
const K: usize = 64;

fn wave(len: usize, step: f32) -> Vec<f32> {
    (0..len).map(|at| (at as f32 * step).sin()).collect()
}

fn blocks(seed: f32) -> Blocks {
    let dims = Dims::new(1, N, K).expect("dims");
    let values = wave(N * K, 0.7 + seed);
    let scale = TensorScale::FromAmax;
    Blocks::Nvfp4(quantize("w", &values, dims, scale, ScaleLayout::Linear).expect("quantised"))
}

fn dense(blocks: &Blocks) -> Tensor {
    let dims = blocks.dims();
    let values = blocks.dequantize().expect("small");
    Tensor::from_vec(values, (dims.rows(), dims.cols()), &Device::Cpu).expect("a matrix")
}

fn tensor(dims: &[usize], step: f32) -> Tensor {
    let values = wave(dims.iter().product(), step);
    Tensor::from_vec(values, dims, &Device::Cpu).expect("a tensor")
}

/// The emulated machines that have kernels, each with the reports of its launches.
fn observed(half: HalfType) -> Vec<(Arc<Engine>, Reports)> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernels");
    let folder = std::env::var_os("NVFP4_KERNELS_DIR").map_or(built, PathBuf::from);
    let open = |name: &str| {
        let request: DeviceRequest = name.parse().expect("a machine");
        let (kernels, reports) = Machine::open(&request)?.kernels(Some(&folder))?.observed();
        let engine = Engine::emulated(kernels, half).expect("an emulated device");
        Ok::<_, nvfp4::Error>((engine, reports))
    };
    ["emu:h200", "emu:b200", "emu:rtx4090"]
        .into_iter()
        .filter_map(|name| match open(name) {
            Ok(opened) => Some(opened),
            Err(error) if std::env::var_os("NVFP4_KERNELS_DIR").is_some() => {
                panic!("{name}: {error}")
            }
            Err(error) => {
                skipped::part(name, error);
                None
            }
        })
        .collect()
}

/// The emulated machines that have kernels.
fn emulated(half: HalfType) -> Vec<Arc<Engine>> {
    observed(half).into_iter().map(|(engine, _)| engine).collect()
}

/// The norm of the difference over that of what is right.
fn error(found: &Tensor, right: &Tensor) -> Result<f32> {
    assert_eq!(found.dims(), right.dims());
    let [found, right] = [found, right].map(|tensor| tensor.to_dtype(DType::F32));
    let (found, right) = (found?, right?);
    let norm = |tensor: Tensor| tensor.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>();
    Ok(norm((found - &right)?)? / norm(right)?)
}

/// Views of larger tensors, all `[5, 3, K]`.
fn views() -> Result<Vec<Tensor>> {
    Ok(vec![
        tensor(&[5, 3, K], 0.3),
        tensor(&[3, 5, K], 0.3).transpose(0, 1)?,
        tensor(&[K, 3, 5], 0.3).transpose(0, 2)?,
        tensor(&[5, 7, K], 0.3).narrow(1, 2, 3)?,
        tensor(&[5, 3, K + 9], 0.3).narrow(2, 5, K)?,
        tensor(&[5, 1, K], 0.3).broadcast_as((5, 3, K))?,
        tensor(&[6, 3, K], 0.3).narrow(0, 1, 5)?,
    ])
}

#[test]
fn linear_takes_every_layout_and_type() -> Result<()> {
    let (weight, bias) = (blocks(0.), tensor(&[N], 1.1));
    let linear = Linear::new(&Engine::reference(), &weight, Some(&bias))?;
    assert_eq!((linear.in_features(), linear.out_features()), (K, N));
    for x in views()? {
        let flat = x.contiguous()?.reshape((15, K))?;
        let right = flat.matmul(&dense(&weight).t()?)?.broadcast_add(&bias)?.reshape((5, 3, N))?;
        assert!(error(&linear.forward(&x)?, &right)? < 1e-6, "{:?}", x.layout());
        for (dtype, bound) in [(DType::F16, 1e-3), (DType::BF16, 1e-2)] {
            let y = linear.forward(&x.to_dtype(dtype)?)?;
            assert_eq!(y.dtype(), dtype);
            assert!(error(&y, &right)? < bound, "{dtype:?} {:?}", x.layout());
        }
        // Into a part of a larger tensor, whose other elements stay.
        let all = Tensor::full(7f32, (3, 5, N + 2), &Device::Cpu)?;
        let y = all.narrow(2, 1, N)?.transpose(0, 1)?;
        linear.forward_into(&x, &y)?;
        assert!(error(&y.contiguous()?, &right)? < 1e-6);
        let edges = Tensor::cat(&[all.narrow(2, 0, 1)?, all.narrow(2, N + 1, 1)?], 2)?;
        assert_eq!(edges.flatten_all()?.to_vec1::<f32>()?, vec![7f32; 30]);
    }
    Ok(())
}

#[test]
fn the_emulator_agrees_with_the_reference() -> Result<()> {
    let (weight, bias) = (blocks(0.), tensor(&[N], 1.1));
    let reference = Linear::new(&Engine::reference(), &weight, Some(&bias))?;
    for engine in emulated(HalfType::Bf16) {
        let linear = Linear::new(&engine, &weight, Some(&bias))?;
        for x in views()? {
            let x = x.to_dtype(DType::BF16)?;
            let right = reference.forward(&x.to_dtype(DType::F32)?)?;
            let off = error(&linear.forward(&x)?, &right)?;
            assert!(off < 5e-3, "{engine:?} {off}");
            // Activations are rounded, results are not.
            let off = error(&linear.forward(&x.to_dtype(DType::F32)?)?, &right)?;
            assert!(off < 1e-5, "{engine:?} {off}");
        }
    }
    Ok(())
}

/// The values of a tensor's rows in e4m3, each row with its scale.
fn in_e4m3(x: &Tensor) -> Result<Tensor> {
    let rows = x.elem_count() / K;
    let values: Vec<f32> = x.to_dtype(DType::F32)?.contiguous()?.flatten_all()?.to_vec1()?;
    let dims = Dims::new(1, rows, K).expect("dims");
    let halves = HalfMatrix::round("x", dims, HalfType::Bf16, &values).expect("finite");
    let matrix = Fp8Matrix::quantize(&halves).expect("memory");
    let values: Vec<f32> = (0..rows).flat_map(|row| matrix.row(row)).map(|x| x as f32).collect();
    Tensor::from_vec(values, x.dims(), &Device::Cpu)
}

/// Activations in e4m3 are those of the reference. Weights are, too, on sm_80, whose kernels multiply both in bf16; others
/// round NVFP4 to e4m3.
#[test]
fn activations_become_e4m3() -> Result<()> {
    let (weight, bias) = (blocks(0.), tensor(&[N], 1.1));
    let reference = Linear::new(&Engine::reference(), &weight, Some(&bias))?;
    let experts = experts();
    let of_experts = MoeLinear::new(&Engine::reference(), &experts, None)?;
    let engines = emulated(HalfType::Bf16);
    for (engine, adding) in engines.iter().flat_map(|of| Adding::ALL.map(|adding| (of, adding))) {
        let bound = if format!("{engine:?}").contains("sm_80") { 1e-4 } else { 0.2 };
        let engine = engine.with_activations(Activations::Fp8).with_adding(adding);
        let is_near = |found: Tensor, right: Tensor| -> Result<()> {
            let off = error(&found, &right)?;
            assert!(off < bound, "{engine:?} {off}");
            Ok(())
        };
        let linear = Linear::new(&engine, &weight, Some(&bias))?;
        for x in views()? {
            is_near(linear.forward(&x)?, reference.forward(&in_e4m3(&x)?)?)?;
        }
        let moe = MoeLinear::new(&engine, &experts, None)?;
        // One token's rows are ordered by expert, too.
        let all = [
            (tensor(&[6, K], 0.3), Tensor::from_slice(&IDS, (6, 2), &Device::Cpu)?),
            (tensor(&[6, 2, K], 0.3), Tensor::from_slice(&IDS, (6, 2), &Device::Cpu)?),
            (tensor(&[1, K], 0.3), Tensor::from_slice(&[3u32, 0], (1, 2), &Device::Cpu)?),
        ];
        for (x, ids) in all {
            let right = of_experts.gather_forward(&in_e4m3(&x)?, &ids)?;
            is_near(moe.gather_forward(&x, &ids)?, right)?;
        }
    }
    Ok(())
}

fn experts() -> Vec<Blocks> {
    [0., 0.13, 0.29, 0.41].map(blocks).to_vec()
}

/// Six tokens that choose two of four experts each; nobody chooses the third.
const IDS: [u32; 12] = [0, 1, 3, 0, 1, 3, 0, 3, 3, 1, 1, 0];

#[test]
fn experts_are_gathered() -> Result<()> {
    let (experts, bias) = (experts(), tensor(&[4, N], 0.9));
    let ids = Tensor::from_slice(&IDS, (6, 2), &Device::Cpu)?;
    let swapped = Tensor::from_slice(&IDS, (6, 2), &Device::Cpu)?.t()?.contiguous()?.t()?;
    let reference = MoeLinear::new(&Engine::reference(), &experts, Some(&bias))?;
    let dense: Vec<Tensor> = experts.iter().map(dense).collect();
    for x in
        [tensor(&[6, K], 0.3), tensor(&[6, 1, K], 0.3), tensor(&[2, 6, K], 0.3).transpose(0, 1)?]
    {
        // Rounded first, so that products differ by the order of sums alone.
        let x = x.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
        let each = x.reshape((6, (), K))?.broadcast_as((6, 2, K))?.contiguous()?;
        let rows: Vec<Tensor> = (0..12)
            .map(|choice| {
                let expert = IDS[choice] as usize;
                let row = each.get(choice / 2)?.get(choice % 2)?.reshape((1, K))?;
                row.matmul(&dense[expert].t()?)?.broadcast_add(&bias.get(expert)?)
            })
            .collect::<Result<_>>()?;
        let right = Tensor::cat(&rows, 0)?.reshape((6, 2, N))?;
        for ids in [&ids, &swapped, &ids.to_dtype(DType::I64)?, &ids.to_dtype(DType::U8)?] {
            let off = error(&reference.gather_forward(&x, ids)?, &right)?;
            assert!(off < 1e-6, "{off}");
        }
        for engine in emulated(HalfType::Bf16) {
            let moe = MoeLinear::new(&engine, &experts, Some(&bias))?;
            for (dtype, bound) in [(DType::F32, 1e-5), (DType::BF16, 4e-3)] {
                // Twice: the second time with the memory of the first.
                for _ in 0..2 {
                    let y = moe.gather_forward(&x.to_dtype(dtype)?, &ids)?;
                    let off = error(&y, &right)?;
                    assert!(y.dtype() == dtype && off < bound, "{engine:?} {dtype:?} {off}");
                }
            }
        }
    }
    Ok(())
}

/// One token's rows choose their experts' matrices by id, in two launches. Three of its choices are experts, and
/// the fourth is an id that is none's. More choices than experts are ordered first.
#[test]
fn one_token_chooses() -> Result<()> {
    let (experts, bias) = (experts(), tensor(&[4, N], 0.9));
    let ids = Tensor::from_slice(&[3i64, 0, 4, 1], (1, 4), &Device::Cpu)?;
    let reference = MoeLinear::new(&Engine::reference(), &experts, Some(&bias))?;
    let good = Tensor::from_slice(&[3u32, 0, 1], (1, 3), &Device::Cpu)?;
    for x in [tensor(&[1, K], 0.3), tensor(&[1, 4, K], 0.3)] {
        let x = x.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
        let of_good = match x.rank() {
            2 => x.clone(),
            _ => Tensor::cat(&[x.narrow(1, 0, 2)?, x.narrow(1, 3, 1)?], 1)?,
        };
        let right = reference.gather_forward(&of_good, &good)?;
        for (engine, reports) in observed(HalfType::Bf16) {
            let moe = MoeLinear::new(&engine, &experts, Some(&bias))?;
            for _ in 0..2 {
                let y = moe.gather_forward(&x, &ids)?;
                assert_eq!(reports.take().len(), 2);
                let of_good = Tensor::cat(&[y.narrow(1, 0, 2)?, y.narrow(1, 3, 1)?], 1)?;
                let off = error(&of_good, &right)?;
                assert!(off < 1e-5, "{engine:?} {off}");
                let bad = y.narrow(1, 2, 1)?.flatten_all()?.to_vec1::<f32>()?;
                assert!(bad.len() == N && bad.iter().all(|value| value.is_nan()), "{bad:?}");
            }
            let many = Tensor::from_slice(&[1u32, 3, 1, 0, 2], (1, 5), &Device::Cpu)?;
            let token = x.flatten_all()?.narrow(0, 0, K)?.reshape((1, K))?;
            let off = error(
                &moe.gather_forward(&token, &many)?,
                &reference.gather_forward(&token, &many)?,
            )?;
            assert!(off < 1e-5 && reports.take().len() == 4, "{engine:?} {off}");
        }
    }
    Ok(())
}

/// The message of a failure, without candle's backtrace.
fn message<T>(result: Result<T>) -> String {
    let error = result.err().expect("refused").to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let linear = Linear::new(&Engine::reference(), &blocks(0.), None)?;
    let x = tensor(&[2, 3, K], 0.3);
    let narrow = message(linear.forward(&x.narrow(2, 0, 48)?));
    assert_eq!(narrow, "shape of the activations must be [.., 64], no 0, but is [2, 3, 48]");
    let integers = message(linear.forward(&x.to_dtype(DType::U32)?));
    assert_eq!(integers, "type of the activations must be f32, f16 or bf16, but is \"u32\"");
    let into = |dims: &[usize], dtype| {
        message(linear.forward_into(&x, &Tensor::zeros(dims, dtype, &Device::Cpu).expect("zeros")))
    };
    let expected = "shape of the result must be [2, 3, 40], but is [6, 40]";
    assert_eq!(into(&[6, N], DType::F32), expected);
    let expected = "type of the result must be f32, as the activations, but is \"bf16\"";
    assert_eq!(into(&[2, 3, N], DType::BF16), expected);
    let bias = message(Linear::new(&Engine::reference(), &blocks(0.), Some(&tensor(&[N + 1], 1.))));
    assert_eq!(bias, "bias must be 1 x 40 elements, but is [41]");

    let moe = MoeLinear::new(&Engine::reference(), &experts(), None)?;
    let ids =
        |ids: &[u32], dims: &[usize]| Tensor::from_slice(ids, dims, &Device::Cpu).expect("ids");
    let x = tensor(&[2, K], 0.3);
    let bad = message(moe.gather_forward(&x, &ids(&[0, 4], &[2, 1])));
    assert_eq!(bad, "an id must be below 4, the experts, but is 4");
    let negative = Tensor::from_slice(&[0i64, -1], (2, 1), &Device::Cpu)?;
    let negative = message(moe.gather_forward(&x, &negative));
    assert_eq!(negative, "an id must be an expert's number, but is -1");
    let flat = message(moe.gather_forward(&x, &ids(&[0, 1], &[2])));
    assert_eq!(flat, "shape of the ids must be [tokens, choices], but is [2]");
    let rows = message(moe.gather_forward(&tensor(&[3, K], 0.3), &ids(&[0, 1], &[2, 1])));
    let expected = "[2, 64], [2, 1, 64] or [2, 1, 64], but is [3, 64]";
    assert_eq!(rows, format!("shape of the activations must be {expected}"));
    let none = message(MoeLinear::new(&Engine::reference(), &[], None));
    assert_eq!(none, "matrices of weights must be at least one, but is 0");
    Ok(())
}

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed is left to the system's cleaning of temporary folders.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nvfp4-candle-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }
}

/// A model of one linear layer with a bias and two experts, in floats.
fn write_floats(path: &Path) -> Result<()> {
    let tensors = [
        ("mlp.up.weight", tensor(&[N, K], 0.7)),
        ("mlp.up.bias", tensor(&[N], 1.1)),
        ("mlp.experts.0.down.weight", tensor(&[N, K], 0.83)),
        ("mlp.experts.1.down.weight", tensor(&[N, K], 0.96)),
    ];
    candle_core::safetensors::save(
        &tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into(),
        path,
    )
}

#[test]
fn layers_come_from_every_layout() -> Result<()> {
    let folder = Folder::new("layouts");
    let floats = folder.0.join("model.safetensors");
    write_floats(&floats)?;
    let model = Model::open(&floats).expect("opens");
    let x = tensor(&[3, K], 0.3);
    let ids = Tensor::from_slice(&[0u32, 1, 1, 0, 0, 1], (3, 2), &Device::Cpu)?;
    let whole = x.matmul(&tensor(&[N, K], 0.7).t()?)?.broadcast_add(&tensor(&[N], 1.1))?;
    for (layout, format, recipe) in [
        (Layout::ModelOpt, Format::Nvfp4, "modelopt"),
        (Layout::CompressedTensors, Format::Nvfp4, "compressed-tensors"),
        (Layout::TorchAo, Format::Nvfp4, "torchao"),
    ] {
        let recipe = recipe_by_name(format, recipe).expect("known");
        let path = folder.0.join(layout.name());
        quantize_model(&model, &ModelOptions::new(recipe, layout), &path, None, &mut ())
            .expect("quantised");
        let builder = PackedBuilder::open(&path, &Engine::reference())?;
        let up = builder.pp("mlp").pp("up");
        let y = up.linear(K, N)?.forward(&x)?;
        let stored = matrix(&Model::open(&path).expect("opens"), "mlp.up", None).expect("a weight");
        let stored = Tensor::from_vec(stored.values, (N, K), &Device::Cpu)?;
        let right = x.matmul(&stored.t()?)?.broadcast_add(&tensor(&[N], 1.1))?;
        assert!(error(&y, &right)? < 1e-6, "{layout}");
        // Products of waves are small, so that what four bits lose is not.
        assert!(error(&y, &whole)? < 0.4, "{layout}");
        let wrong = message(up.linear(K + 16, N));
        assert!(wrong.contains("must be [1, 40, 80], but is [1, 40, 64]"), "{layout}: {wrong}");

        let parts = [0, 1].map(|rank| up.part(Shard::new(rank, 2).expect("valid")));
        let rows = parts.each_ref().map(|part| part.linear_by_rows(K, N)?.forward(&x));
        let [first, second] = rows;
        assert!(error(&Tensor::cat(&[first?, second?], 1)?, &y)? < 1e-6, "{layout}");
        let term = |rank: usize| {
            let own = x.narrow(1, rank * K / 2, K / 2)?;
            parts[rank].linear_by_columns(K, N)?.forward(&own)
        };
        assert!(error(&(term(0)? + term(1)?)?, &y)? < 1e-5, "{layout}");

        let experts = builder.pp("mlp").pp("experts");
        let moe = experts.experts(2, K, N, "down")?;
        let y = moe.gather_forward(&x, &ids)?;
        let one = experts.pp(1).pp("down").linear(K, N)?.forward(&x)?;
        assert!(
            error(&y.narrow(0, 0, 1)?.narrow(1, 1, 1)?.reshape((1, N))?, &one.narrow(0, 0, 1)?)?
                < 1e-6
        );
        let last = experts.part(Shard::new(1, 2).expect("valid")).experts(2, K, N, "down")?;
        assert_eq!((moe.experts(), last.experts()), (2, 1));
    }

    // Floats are quantised only where that is asked for.
    let builder = PackedBuilder::open(&floats, &Engine::reference())?.pp("mlp").pp("up");
    let refused = message(builder.linear(K, N));
    assert!(refused.starts_with("`mlp.up.weight` must be quantised"), "{refused}");
    assert!(error(&builder.quantizing().linear(K, N)?.forward(&x)?, &whole)? < 0.4);
    let missing = message(builder.pp("nothing").linear(K, N));
    assert!(missing.contains("mlp.up.nothing.weight"), "{missing}");
    Ok(())
}

/// gpt-oss has all experts in a tensor, in MXFP4.
#[test]
fn experts_come_from_gpt_oss() -> Result<()> {
    const OUTPUTS: usize = 192;
    let folder = Folder::new("gpt-oss");
    let floats = folder.0.join("model.safetensors");
    let tensors = [
        ("mlp.experts.gate_up_proj", tensor(&[2, K, OUTPUTS], 0.7)),
        ("mlp.experts.gate_up_proj_bias", tensor(&[2, OUTPUTS], 1.1)),
        ("mlp.experts.down_proj", tensor(&[2, OUTPUTS / 2, K], 0.83)),
        ("mlp.experts.down_proj_bias", tensor(&[2, K], 0.4)),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    candle_core::safetensors::save(&tensors, &floats)?;
    let recipe = recipe_by_name(Format::Mxfp4, "rceil").expect("known");
    let path = folder.0.join("packed");
    let options = ModelOptions::new(recipe, Layout::GptOss);
    quantize_model(&Model::open(&floats).expect("opens"), &options, &path, None, &mut ())
        .expect("quantised");

    let experts = PackedBuilder::open(&path, &Engine::reference())?.pp("mlp").pp("experts");
    let moe = experts.experts(2, K, OUTPUTS, "gate_up_proj")?;
    let (x, ids) =
        (tensor(&[2, K], 0.3), Tensor::from_slice(&[0u32, 1, 1, 0], (2, 2), &Device::Cpu)?);
    let y = moe.gather_forward(&x, &ids)?;
    let model = Model::open(&path).expect("opens");
    let bias = tensor(&[2, OUTPUTS], 1.1);
    for (choice, expert) in [0usize, 1, 1, 0].into_iter().enumerate() {
        let stored = matrix(&model, "mlp.experts.gate_up_proj", Some(expert)).expect("a weight");
        let stored = Tensor::from_vec(stored.values, (OUTPUTS, K), &Device::Cpu)?;
        let right =
            x.narrow(0, choice / 2, 1)?.matmul(&stored.t()?)?.broadcast_add(&bias.get(expert)?)?;
        let found = y.get(choice / 2)?.narrow(0, choice % 2, 1)?;
        assert!(error(&found, &right)? < 1e-6, "{choice}");
    }
    for engine in emulated(HalfType::Bf16) {
        let builder = PackedBuilder::open(&path, &engine)?.pp("mlp").pp("experts");
        let emulated = builder.experts(2, K, OUTPUTS, "gate_up_proj")?.gather_forward(&x, &ids)?;
        assert!(error(&emulated, &y)? < 5e-3, "{engine:?}");
    }
    Ok(())
}
