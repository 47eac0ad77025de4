//! Writes a model of random bf16 weights in shards, to measure quantising and converting with:
//! `synthetic_model FOLDER GIGABYTES`.
//!
//! Names and shapes are those of a Llama of 8 billion parameters, with as many layers as the size
//! takes. Values repeat after 2^20 elements, from another place in each tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use half::bf16;
use nvfp4_checkpoint::rng::SplitMix64;
use nvfp4_checkpoint::{TensorSpec, TensorWriter};
use safetensors::Dtype;

/// Rows and columns of a layer's weights.
const LAYER: [(&str, [usize; 2]); 7] = [
    ("self_attn.q_proj", [4096, 4096]),
    ("self_attn.k_proj", [1024, 4096]),
    ("self_attn.v_proj", [1024, 4096]),
    ("self_attn.o_proj", [4096, 4096]),
    ("mlp.gate_proj", [14336, 4096]),
    ("mlp.up_proj", [14336, 4096]),
    ("mlp.down_proj", [4096, 14336]),
];
/// Layers of a shard.
const TOGETHER: usize = 10;
/// Elements after which values repeat.
const PERIOD: usize = 1 << 20;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(size)) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("usage: synthetic_model FOLDER GIGABYTES");
    };
    let folder = Path::new(&folder);
    let bytes = size.parse::<f64>()? * 1e9;
    let of_layer: usize = LAYER.iter().map(|(_, [rows, cols])| rows * cols * 2).sum();
    let layers = ((bytes / of_layer as f64).round() as usize).max(1);

    let mut rng = SplitMix64::new(8);
    let values: Vec<u8> = (0..2 * PERIOD)
        .flat_map(|at| {
            // The second half repeats the first, so that any start has a whole period.
            if at == PERIOD {
                rng = SplitMix64::new(8);
            }
            bf16::from_f64(rng.normal() * 0.02).to_le_bytes()
        })
        .collect();
    std::fs::create_dir_all(folder)?;
    let mut places: BTreeMap<String, String> = BTreeMap::new();
    let shards = layers.div_ceil(TOGETHER);
    for shard in 0..shards {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let first = shard * TOGETHER;
        let specs: Vec<TensorSpec> = (first..layers.min(first + TOGETHER))
            .flat_map(|layer| {
                LAYER.map(|(module, shape)| TensorSpec {
                    name: format!("model.layers.{layer}.{module}.weight"),
                    dtype: Dtype::BF16,
                    shape: shape.to_vec(),
                })
            })
            .collect();
        let path = folder.join(&name);
        let file = File::create_new(&path)?;
        let mut writer = TensorWriter::new(file, &path, specs.clone(), &BTreeMap::new())?;
        for spec in specs {
            let start = rng.below(PERIOD as u32) as usize * 2;
            let period = &values[start..start + 2 * PERIOD];
            let data: Vec<u8> = period.iter().copied().cycle().take(spec.bytes()?).collect();
            writer.put(&spec.name, &data)?;
            places.insert(spec.name, name.clone());
        }
        writer.finish()?;
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": places});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    std::fs::write(folder.join("config.json"), r#"{"model_type": "llama"}"#)?;
    Ok(())
}
