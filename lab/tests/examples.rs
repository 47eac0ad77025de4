//! The library's examples on the emulated machines: what they run is verified, and a block of a
//! checkpoint on disk is near a reference in f32.
//!
//! Runs need the compiled kernels (`cargo xtask build-kernels`); without them, a test
//! leaves them out, or fails if `NVFP4_KERNELS_DIR` promises them.

#[path = "../examples/moe_block/block.rs"]
mod block;
#[path = "../examples/dual.rs"]
#[allow(dead_code, reason = "`main` is the program's")]
mod dual;
#[path = "../examples/moe_block/f32_reference.rs"]
mod f32_reference;
#[path = "../examples/grouped.rs"]
#[allow(dead_code, reason = "`main` is the program's")]
mod grouped;
#[path = "../examples/moe.rs"]
#[allow(dead_code, reason = "`main` is the program's")]
mod moe;
#[path = "../examples/shared_expert.rs"]
#[allow(dead_code, reason = "`main` is the program's")]
mod shared_expert;
use crate::support;
use crate::support::{Folder, machines, normal, random, tensor};
use fp4_formats::TensorFamily;
use half::bf16;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{self as checkpoint, Layout, Model, ModelOptions, NewTensor};
use safetensors::Dtype;

#[test]
fn a_gated_product() {
    for kernels in machines() {
        let (plan, verification) = dual::run(&kernels).expect("runs");
        assert!(verification.passed(), "{}", verification.summary());
        assert_eq!(verification.outputs, 20 * 192);
        assert!(plan.contains("dual"), "{plan}");
    }
}

#[test]
fn a_grouped_product_of_changing_tokens() {
    for kernels in machines() {
        let (plan, launches) = grouped::run(&kernels).expect("runs");
        let outputs: Vec<usize> = launches.iter().map(|found| found.outputs).collect();
        assert_eq!(outputs, [32 * 192, 23 * 192]);
        for verification in launches {
            assert!(verification.passed(), "{}", verification.summary());
        }
        assert!(plan.contains("CTAs"), "{plan}");
    }
}

#[test]
fn a_mixture_of_experts() {
    for kernels in machines() {
        let (plans, launches) = moe::run(&kernels).expect("runs");
        assert!(plans.iter().all(|plan| plan.contains("CTAs")), "{plans:?}");
        assert_eq!(launches.len(), 2);
        for checks in launches {
            assert_eq!(checks.len(), 5);
            checks.iter().for_each(|check| assert!(check.verified, "{check}"));
        }
    }
}

#[test]
fn a_shared_expert() {
    for kernels in machines() {
        let ran = shared_expert::run(&kernels).expect("runs");
        for verification in ran.shared {
            assert!(verification.passed(), "{}", verification.summary());
        }
        assert_eq!(ran.steps.len(), 5);
        ran.steps.iter().for_each(|check| assert!(check.verified, "{check}"));
        assert!(ran.same, "{}", kernels.device().choice());
    }
}

/// The prefix of blocks' tensors.
const BLOCK: &str = "model.layers.0.mlp";
const EXPERTS: usize = 4;
const HIDDEN: usize = 64;
const BETWEEN: usize = 96;

/// Quantises a model of one block with random weights into `name` of the folder.
fn quantised(
    folder: &Folder,
    name: &str,
    tensors: &[(String, NewTensor)],
    model_type: &str,
    (format, layout): (Format, Layout),
) -> Model {
    let source = folder.file(&format!("{name}-source"));
    std::fs::create_dir_all(&source).expect("a folder");
    let tensors: Vec<(&str, NewTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    checkpoint::write(&source.join("model.safetensors"), &tensors, &[]).expect("written");
    let config = serde_json::json!({
        "model_type": model_type, "num_experts_per_tok": 2, "hidden_size": HIDDEN,
    });
    std::fs::write(source.join("config.json"), config.to_string()).expect("written");
    let model = Model::open(&source).expect("a model");
    let options = ModelOptions::new(recipe_by_name(format, "torchao").expect("known"), layout);
    let out = folder.file(name);
    checkpoint::quantize_model(&model, &options, &out, None, &mut ())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    Model::open(out).expect("a checkpoint")
}

/// Runs the block on all machines.
fn blocks_run(model: &Model, names: &[&str], least_db: &[f64]) {
    for kernels in machines() {
        let all = block::run(&kernels, model, BLOCK, 7).unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(all.iter().map(|ran| ran.name).collect::<Vec<_>>(), names);
        for (ran, least) in all.iter().zip(least_db) {
            assert!(ran.verified, "{ran}");
            assert!(ran.sqnr_db > *least && ran.relative_error < 0.2, "{ran}");
            // The choice of kernels is that of the machine.
            let prefix = match kernels.device().choice().arch.tensor() {
                TensorFamily::MmaSync => "sm_80",
                TensorFamily::MmaSyncScaled => "sm_120f",
                TensorFamily::Wgmma => "sm_90a",
                TensorFamily::Tcgen05 => "sm_100",
            };
            assert!(ran.plans.iter().all(|plan| plan.contains(prefix)), "{ran}");
            let printed = ran.to_string();
            assert!(printed.contains("SQNR") && printed.contains(&ran.plans[1]), "{printed}");
        }
    }
}

/// gpt-oss: experts in one tensor, the gate's rows at even places, biases, the clamped activation.
#[test]
fn a_block_in_gpt_oss_layout() {
    let folder = Folder::new("examples-gpt-oss");
    let of = |name: &str| format!("{BLOCK}.{name}");
    // transformers stores experts as `[experts, K, N]`.
    let transposed = |[n, k]: [usize; 2], seed: u64| {
        let values = normal(EXPERTS * k, n, seed);
        let bytes = values.iter().flat_map(|&x| bf16::from_f32(10.0 * x).to_le_bytes()).collect();
        tensor(Dtype::BF16, &[EXPERTS, k, n], bytes)
    };
    let tensors = [
        (of("router.weight"), random(&[EXPERTS, HIDDEN], 1)),
        (of("router.bias"), random(&[EXPERTS], 2)),
        (of("experts.gate_up_proj"), transposed([2 * BETWEEN, HIDDEN], 3)),
        (of("experts.gate_up_proj_bias"), random(&[EXPERTS, 2 * BETWEEN], 4)),
        (of("experts.down_proj"), transposed([HIDDEN, BETWEEN], 5)),
        (of("experts.down_proj_bias"), random(&[EXPERTS, HIDDEN], 6)),
    ];
    let kind = (Format::Mxfp4, Layout::GptOss);
    let model = quantised(&folder, "gpt-oss", &tensors, "gpt_oss", kind);
    assert_eq!(Layout::detect(&model), Some(Layout::GptOss));
    blocks_run(&model, &["W4A16"], &[40.0]);
}

/// ModelOpt: a matrix for each expert's gate, up and down, each with its tensor's scale.
#[test]
fn a_block_in_modelopts_layout() {
    let folder = Folder::new("examples-modelopt");
    let mut tensors = vec![(format!("{BLOCK}.gate.weight"), random(&[EXPERTS, HIDDEN], 1))];
    for expert in 0..EXPERTS {
        for (at, (name, [n, k])) in [
            ("gate_proj", [BETWEEN, HIDDEN]),
            ("up_proj", [BETWEEN, HIDDEN]),
            ("down_proj", [HIDDEN, BETWEEN]),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("{BLOCK}.experts.{expert}.{name}.weight");
            tensors.push((name, random(&[n, k], 10 * expert as u64 + at as u64)));
        }
    }
    let kind = (Format::Nvfp4, Layout::ModelOpt);
    let model = quantised(&folder, "modelopt", &tensors, "qwen3_moe", kind);
    assert_eq!(Layout::detect(&model), Some(Layout::ModelOpt));
    blocks_run(&model, &["W4A16", "W4A4"], &[40.0, 12.0]);
}

/// Layouts that the example cannot run are refused with the reason.
#[test]
fn other_layouts_are_refused() {
    let folder = Folder::new("examples-refused");
    let model = support::quantized(&folder, "torchao", Layout::TorchAo, Format::Nvfp4);
    for kernels in machines() {
        let refused = block::run(&kernels, &model, BLOCK, 3).err().expect("another layout");
        assert!(refused.to_string().contains("not torchao"), "{refused}");
    }
    let source = Model::open(folder.file("source.safetensors")).expect("a model");
    for kernels in machines() {
        let refused = block::run(&kernels, &source, BLOCK, 3).err().expect("not quantised");
        assert!(refused.to_string().contains("no quantised weight"), "{refused}");
    }
}
