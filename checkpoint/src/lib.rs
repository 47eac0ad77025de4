//! Checkpoints: files in safetensors and GGUF, models that consist of them, and the layouts in which projects
//! store quantised weights in them.
//!
//! | file | topic |
//! | --- | --- |
//! | `file`, `data`, `model` | [`Checkpoint`], one mapped file; [`Model`], a file or a folder of shards |
//! | `write`, `plan`, `save` | [`TensorWriter`]; [`SaveOptions`]: tensor by tensor |
//! | `staging` | [`Staging`], [`write_whole`]: all or nothing |
//! | `weight`, `parts`, `layout`, `load` | [`Weight`], a quantised weight; [`Layout`], how it is stored; [`load`] |
//! | `modelopt`, `compressed_tensors`, `torchao`, `gpt_oss`, `gguf`, `mlx`, `quark`, `auto_round` | one layout each |
//! | `quantize`, `quantize_tensor`, `convert`, `exact` | [`quantize_model`], [`convert_model`], [`to_nvfp4`] |
//! | `calibration` | scales of inputs from their largest magnitudes |
//! | `search` | block scales with less error than a recipe's |
//! | `decide`, `fate` | which tensors are quantised, and why others are not; [`plan_quantize`] |
//! | `decode`, `mlx_integers` | weights in FP8, e2m1 in I8 and packed integers as floats |
//! | `families` | architectures as data: joined weights, tensors that stay floats |
//! | `shared`, `split`, `stack`, `join`, `experts`, `expert_names` | tensor-level scales that several weights share; experts, a matrix each or all in one tensor, as readers expect them |
//! | `stated`, `others`, `side`, `carry` | what else a checkpoint says and has, and what a conversion does with it |
//! | `dequantize`, `encode`, `matrix`, `values` | [`dequantize_model`]; floats of a type; [`matrix`], one weight as that of a product; [`floats`], a weight that is not in four bits |
//! | `rounding`, `products` | what `verify` measures: each block, and products |
//! | `orientation` | the input dimension of experts in one tensor |
//! | `inspect` | [`inspect`]: what there is |
//! | `verify`, `counterpart`, `measured`, `report` | [`verify`]: tensors and values |
//! | [`rng`] | random numbers from a seed |
//! | `configuration`, `groups` | [`verify`]: what the configuration says |
//!
//! # A whole checkpoint
//! ```no_run
//! use nvfp4_checkpoint::{Layout, Model, ModelOptions, quantize_model, verify};
//! use nvfp4::quantize::recipe_by_name;
//! use nvfp4::Format;
//!
//! # fn main() -> nvfp4_checkpoint::Result<()> {
//! let model = Model::open("llama")?;
//! let options = ModelOptions::new(recipe_by_name(Format::Nvfp4, "modelopt")?, Layout::ModelOpt);
//! print!("{}", quantize_model(&model, &options, "llama-nvfp4".as_ref(), None, &mut ())?);
//! print!("{}", verify(&Model::open("llama-nvfp4")?, Some(&model), &mut ())?);
//! # Ok(())
//! # }
//! ```
//!
//! # A model of one layer
//! ```
//! use nvfp4_checkpoint::{Layout, Model, ModelOptions, NewTensor, quantize_model, verify, write};
//! use nvfp4::quantize::{Format, recipe_by_name};
//! use safetensors::Dtype;
//!
//! # fn main() -> nvfp4_checkpoint::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("nvfp4-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).expect("a folder");
//! // A model of one layer; a folder of shards with `config.json` is opened the same way.
//! let data = (0..64 * 128).flat_map(|at| (at as f32).sin().to_le_bytes()).collect();
//! let weight = NewTensor { dtype: Dtype::F32, shape: vec![64, 128], data };
//! let path = folder.join("model.safetensors");
//! write(&path, &[("layer.weight", weight)], &[])?;
//!
//! let model = Model::open(&path)?;
//! let recipe = recipe_by_name(Format::Nvfp4, "modelopt")?;
//! let options = ModelOptions::new(recipe, Layout::ModelOpt);
//! let out = folder.join("quantised");
//! let report = quantize_model(&model, &options, &out, None, &mut ())?;
//! assert_eq!(report.quantized, ["layer.weight"]);
//!
//! let report = verify(&Model::open(&out)?, Some(&model), &mut ())?;
//! assert!(report.verified, "{report}");
//! # std::fs::remove_dir_all(&folder).expect("removable");
//! # Ok(())
//! # }
//! ```
//!
//! Every byte that is read is checked before it is used. Errors name the tensor and, for a bad
//! value, its byte in the file. Outputs appear complete or not at all. Memory holds one tensor at a
//! time, so a checkpoint may be larger than memory.

mod auto_round;
mod auto_round_config;
mod calibration;
mod carry;
mod compressed_tensors;
mod configuration;
mod contents;
mod convert;
mod counterpart;
mod data;
mod decide;
mod decode;
mod deepseek;
mod dequantize;
mod encode;
mod error;
mod exact;
mod expert_names;
mod experts;
mod families;
mod fate;
mod file;
mod ggml;
mod gguf;
mod gpt_oss;
mod groups;
mod inputs;
mod inspect;
mod join;
mod kept;
mod layout;
mod load;
mod matrix;
mod measured;
mod mlx;
mod mlx_config;
mod mlx_integers;
mod model;
mod modelopt;
mod options;
mod orientation;
mod others;
mod parts;
pub mod pattern;
mod plan;
mod products;
mod projections;
mod quantize;
mod quantize_tensor;
mod quark;
mod quark_config;
mod repair;
mod report;
pub mod rng;
mod rounding;
mod save;
mod schemes;
mod search;
mod shared;
mod side;
mod split;
mod stack;
mod staging;
mod stated;
mod torchao;
mod values;
mod verify;
mod weight;
mod write;

pub use calibration::{Calibration, QuantizedInputs};
pub use convert::{ConvertReport, SharedGroup, convert_model};
pub use data::Data;
pub use dequantize::{DequantizeOptions, DequantizeReport, dequantize_model};
pub use error::{CheckpointError, Result};
pub use exact::to_nvfp4;
pub use fate::{Fate, QuantizePlan, plan_quantize};
pub use file::{Checkpoint, FloatTensor, RawTensor, TensorEntry};
pub use inputs::Inputs;
pub use inspect::{Contents, WeightEntry, inspect};
pub use load::{Outline, load, outline};
pub use matrix::{Matrix, matrix};
pub use measured::decibels;
pub use model::Model;
pub use options::{DEFAULT_EXCLUDES, ModelOptions, SHARD_BYTES, SaveOptions};
pub use others::{OtherFormat, OtherLayer};
pub use parts::{Content, Layout, Parts, Piece};
pub use products::ProductNoise;
pub use quantize::{Decoded, QuantizeReport, Unquantized, quantize_model};
pub use report::{Finding, Severity, VerifyReport, WeightCheck};
pub use save::{Observer, Saved};
pub use shared::{Misread, Unshared};
pub use staging::{Replaced, Staging, write_whole};
pub use values::{decoded_floats, floats, refuse_changed};
pub use verify::{LEAST_SQNR_DB, VerifyOptions, verify, verify_with};
pub use weight::{Blocks, Convention, GlobalScale, Order, Weight, WeightSpec};
pub use write::{NewTensor, TensorSpec, TensorWriter, write};
