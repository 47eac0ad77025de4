//! Writes a whole checkpoint tensor by tensor: shards and index, configuration, other files.
//!
//! The names, types and shapes of all tensors are known before their data. Headers are therefore
//! written first and each tensor directly to its place, so that memory holds one tensor at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use fp4_formats::ScaleLayout;
use serde::Serialize;
use serde_json::{Value, json};

use super::contents::{Contents, Description, Extras, config};
use super::error::CheckpointError;
use super::gguf;
use super::model::{HF_QUANT_CONFIG, Model};
use super::options::SaveOptions;
use super::orientation::transposed;
use super::parts::{Content, Layout, Piece};
use super::plan::{Bias, Item, Plan, Shard};
use super::split::Slice;
use super::stack;
use super::staging::{Replaced, Staging};
use super::weight::{Weight, WeightSpec};
use super::write::{TensorSpec, TensorWriter};
use crate::error::Result;
use nvfp4::error::Error;

/// Observes the progress of a long operation, and may stop it.
pub trait Observer {
    /// Called first, with the total bytes of input.
    fn begin(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Called before each tensor.
    fn tensor(&mut self, name: &str) {
        let _ = name;
    }

    /// Called when so many more bytes of input have been processed.
    fn done(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether to stop; called between tensors.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores everything.
impl Observer for () {}

/// A written checkpoint, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// The folder.
    pub path: PathBuf,
    /// Files with tensors.
    pub shards: Vec<String>,
    /// Bytes of tensors.
    pub bytes: u64,
    /// The facts that readers of the output should know, in words.
    pub notes: Vec<String>,
    /// The fate of a checkpoint that was there before.
    pub replaced: Replaced,
}

/// A checkpoint that is being written.
pub(super) struct Save {
    staging: Staging,
    options: SaveOptions,
    shards: Vec<(String, TensorWriter<File>)>,
    /// Shard of each tensor.
    places: BTreeMap<String, usize>,
    pieces: BTreeMap<String, Vec<Piece>>,
    /// The matrices of weights that are taken apart.
    splits: BTreeMap<String, Vec<Slice>>,
    biases: BTreeMap<String, Bias>,
    /// Tensors that the output has no place for because every reader computes them.
    dropped: BTreeSet<String>,
    /// The facts that readers of the output should know.
    notes: Vec<String>,
    bytes: u64,
}

impl Save {
    /// Writes headers and configuration for `items`, in their order; their data follows later.
    /// Configuration and other files are those of `source`.
    pub fn create(
        target: &Path,
        source: &Model,
        items: &[Item],
        extras: Extras,
        options: SaveOptions,
    ) -> Result<Self> {
        refuse_source(target, source)?;
        let plan = Plan::of(items, extras, &options)?;
        let staging = Staging::create(target, options.force)?;
        let mut save = Self {
            staging,
            bytes: plan.shards.iter().map(|shard| shard.bytes).sum(),
            options,
            shards: Vec::new(),
            places: BTreeMap::new(),
            pieces: plan.pieces,
            splits: plan.splits,
            biases: plan.biases,
            dropped: BTreeSet::new(),
            notes: Vec::new(),
        };
        if save.options.layout == Layout::Gguf && !save.pieces.is_empty() {
            save.ggufs(plan.shards, source)?;
        } else {
            save.headers(plan.shards, &plan.contents)?;
        }
        save.describe(source, &plan.contents)?;
        Ok(save)
    }

    /// Begins the files of GGUF, in which tensors of several weights may be one.
    fn ggufs(&mut self, shards: Vec<Shard>, source: &Model) -> Result<()> {
        let specs: Vec<TensorSpec> = shards.into_iter().flat_map(|shard| shard.specs).collect();
        let config = source.config();
        let bytes = self.options.shard_bytes;
        let files = gguf::files(source, config, &specs, &self.pieces, bytes)?;
        let gguf::Files { outputs, computed, notes } = files;
        for (at, output) in outputs.into_iter().enumerate() {
            self.places.extend(output.places.keys().map(|name| (name.clone(), at)));
            let path = self.staging.path().join(&output.name);
            let sink = create(&path)?;
            let name = output.name.clone();
            self.shards.push((name, TensorWriter::gguf(sink, &path, output)?));
        }
        for spec in specs {
            if !self.places.contains_key(&spec.name) {
                self.dropped.insert(spec.name);
            }
        }
        for (name, data) in computed {
            self.bytes += data.len() as u64;
            self.put(&name, &data)?;
        }
        self.notes = notes;
        Ok(())
    }

    fn headers(&mut self, shards: Vec<Shard>, contents: &Contents) -> Result<()> {
        let shards = match self.options.layout == Layout::Mlx && !self.pieces.is_empty() {
            true => stack::together(shards, contents.extras.family, self.options.shard_bytes)?,
            false => shards,
        };
        let count = shards.len();
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for (at, shard) in shards.into_iter().enumerate() {
            let file = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
            };
            let path = self.staging.path().join(&file);
            for spec in &shard.specs {
                files.insert(spec.name.clone(), file.clone());
                let parts = shard.members.get(&spec.name);
                let parts = parts.or_else(|| contents.extras.parts.get(&spec.name));
                let parts = parts.map(Vec::as_slice);
                for name in parts.unwrap_or(std::slice::from_ref(&spec.name)) {
                    if self.places.insert(name.clone(), at).is_some() {
                        let reason = format!("two tensors would have the name `{name}`");
                        return Err(CheckpointError::Malformed { path, reason });
                    }
                }
            }
            let weights: Vec<(WeightSpec, ScaleLayout)> =
                shard.weights.into_iter().map(|spec| (spec, self.options.scales)).collect();
            let metadata = if self.pieces.is_empty() {
                // Nothing is quantised: what every file of a model says.
                BTreeMap::from([("format".to_owned(), "pt".to_owned())])
            } else {
                self.options.layout.metadata(&weights, &shard.others, &contents.extras)
            };
            let sink = create(&path)?;
            let mut writer = TensorWriter::new(sink, &path, shard.specs, &metadata)?;
            let parts = shard.members.iter().chain(&contents.extras.parts);
            parts.for_each(|(name, parts)| writer.announce(name, parts));
            self.shards.push((file, writer));
        }
        if count > 1 {
            let index = json!({"metadata": {"total_size": self.bytes}, "weight_map": files});
            self.json("model.safetensors.index.json", &index)?;
        }
        Ok(())
    }

    fn describe(&self, source: &Model, contents: &Contents) -> Result<()> {
        let description = match contents.extras.verbatim {
            true => Description {
                expert_dtype: source
                    .config()
                    .and_then(|config| config.get("expert_dtype"))
                    .cloned(),
                quantization_config: source.quantization_config().cloned(),
                quantization: source
                    .config()
                    .and_then(|config| config.get("quantization"))
                    .cloned(),
                files: source
                    .hf_quant_config()
                    .map(|config| (HF_QUANT_CONFIG, config.clone()))
                    .into_iter()
                    .collect(),
            },
            false if contents.weights.is_empty() => Description::default(),
            false => self.options.layout.describe(contents),
        };
        if let Some(config) = config(source, &description) {
            self.json("config.json", &config)?;
        }
        for (name, value) in &description.files {
            self.json(name, value)?;
        }
        for path in source.companions()?.into_iter().chain(contents.extras.beside.clone()) {
            let Some(name) = path.file_name() else { continue };
            let copy = self.staging.path().join(name);
            if copy.exists() {
                let reason = format!("it has the name of a file of the output, {}", copy.display());
                return Err(CheckpointError::Malformed { path, reason });
            }
            std::fs::copy(&path, copy).map_err(|source| Error::Io {
                action: "copy",
                path: path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn json(&self, name: &str, value: &Value) -> Result<()> {
        let path = self.staging.path().join(name);
        let io = |source| Error::Io { action: "write", path: path.clone(), source };
        let mut text = format!("{value:#}");
        text.push('\n');
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        Ok(write().map_err(io)?)
    }

    /// Writes an unchanged tensor, or the parts of the bias of experts that are taken apart.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let Some(Bias { slices, rows, width }) = self.biases.remove(name) else {
            return self.put(name, data);
        };
        for slice in slices {
            let name = format!("{}.bias", slice.module);
            self.put(&name, &slice.bytes(data, rows, width))?;
        }
        Ok(())
    }

    fn put(&mut self, name: &str, data: &[u8]) -> Result<()> {
        match self.places.get(name).and_then(|&at| self.shards.get_mut(at)) {
            Some((_, shard)) => shard.put(name, data),
            None if self.dropped.contains(name) => Ok(()),
            None => Err(CheckpointError::shape("tensor to write", "one that was announced", name)),
        }
    }

    /// Writes a weight, or its matrices.
    pub fn weight(&mut self, weight: &Weight) -> Result<()> {
        let Some(slices) = self.splits.remove(&weight.spec.name) else {
            return self.pieces(weight);
        };
        for slice in slices {
            self.pieces(&slice.weight(weight)?)?;
        }
        Ok(())
    }

    fn pieces(&mut self, weight: &Weight) -> Result<()> {
        let convention = self.options.layout.convention();
        let pieces = self.pieces.remove(&weight.spec.name).unwrap_or_default();
        let rows = weight.blocks.dims().rows();
        let ordered = |name: &str, data: &[u8], transpose: bool| -> Result<Vec<u8>> {
            let cols = data.len() / (weight.blocks.dims().batch() * rows);
            match transpose {
                true => transposed(name, data, [rows, cols]),
                false => Ok(data.to_vec()),
            }
        };
        for Piece { spec, content, transposed } in pieces {
            let scalar = |scale: Option<super::weight::GlobalScale>| {
                scale.map_or(1.0, |scale| scale.stored(convention)).to_le_bytes()
            };
            match content {
                Content::Codes if transposed => {
                    let codes = ordered(&spec.name, weight.blocks.codes(), transposed)?;
                    self.put(&spec.name, &codes)?;
                }
                Content::Codes => self.put(&spec.name, weight.blocks.codes())?,
                Content::Scales(ScaleLayout::Linear) => {
                    let all = weight.blocks.scales();
                    let stored = spec.shape.iter().product::<usize>();
                    let step = all.len() / stored.max(1);
                    if step == 1 && !transposed {
                        self.put(&spec.name, all)?;
                    } else {
                        let scales: Vec<u8> = all.iter().copied().step_by(step.max(1)).collect();
                        self.put(&spec.name, &ordered(&spec.name, &scales, transposed)?)?;
                    }
                }
                Content::Scales(ScaleLayout::Blocked128x4) => {
                    self.put(&spec.name, &weight.blocks.blocked_scales()?)?;
                }
                Content::Global => match weight.experts.as_ref().filter(|_| !spec.shape.is_empty())
                {
                    Some(scales) => {
                        let stored = scales.iter().map(|scale| scale.stored(convention));
                        let bytes: Vec<u8> = stored.flat_map(f32::to_le_bytes).collect();
                        self.put(&spec.name, &bytes)?;
                    }
                    None => self.put(&spec.name, &scalar(weight.global))?,
                },
                Content::Input => self.put(&spec.name, &scalar(weight.input))?,
                Content::Blocks(format) => {
                    let (codes, scales) =
                        (weight.blocks.codes().to_vec(), weight.blocks.scales().to_vec());
                    let bytes = gguf::bytes(&spec.name, format, codes, scales)?;
                    self.put(&spec.name, &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Fails if the observer stops the operation.
    pub fn go_on(&self, observer: &dyn Observer) -> Result<()> {
        if observer.cancelled() {
            let path = self.staging.target().to_path_buf();
            return Err(CheckpointError::Interrupted { path });
        }
        Ok(())
    }

    /// Renames the output to its final name, after all data is on disk, if `source` has stayed as it
    /// was.
    pub fn finish(self, source: &Model) -> Result<Saved> {
        source.unchanged()?;
        let mut names = Vec::new();
        for (name, shard) in self.shards {
            let file = shard.finish()?;
            file.sync_all().map_err(|source| Error::Io {
                action: "write",
                path: self.staging.path().join(&name),
                source,
            })?;
            names.push(name);
        }
        let path = self.staging.target().to_path_buf();
        let replaced = self.staging.commit()?;
        Ok(Saved { path, shards: names, bytes: self.bytes, notes: self.notes, replaced })
    }
}

fn create(path: &Path) -> Result<File> {
    let io = |source| Error::Io { action: "create", path: path.into(), source };
    Ok(File::create_new(path).map_err(io)?)
}

/// Refuses an output that is or contains the input, which would be replaced before it is read.
fn refuse_source(target: &Path, source: &Model) -> Result<()> {
    let (Ok(target), Ok(source)) = (target.canonicalize(), source.path().canonicalize()) else {
        return Ok(());
    };
    if source.starts_with(&target) {
        let advice = "it holds the input, which is never replaced";
        return Err(CheckpointError::Exists { path: target, advice });
    }
    Ok(())
}
