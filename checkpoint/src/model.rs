//! A whole checkpoint: one safetensors file, or a folder of shards with their index and the
//! model's configuration.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::io::Read;
use std::path::{Path, PathBuf};

use nvfp4_gguf::Kind;
use serde_json::Value;

use super::error::{CheckpointError, similar};
use super::expert_names::apart;
use super::families;
use super::file::{Checkpoint, RawTensor, TensorEntry, open_at_once};
use super::ggml::Stated;
use crate::error::Result;
use nvfp4::error::Error;

/// Ending of the file that says which shard has which tensor.
const INDEX_ENDING: &str = ".safetensors.index.json";
/// The model's configuration, beside the shards.
const CONFIG: &str = "config.json";
/// ModelOpt's description of the quantisation.
pub(super) const HF_QUANT_CONFIG: &str = "hf_quant_config.json";
/// The key of MLX's description of the quantisation in the configuration.
pub(super) const MLX: &str = "quantization";
/// Most tensors among which similar names are suggested for a missing tensor. If many of more
/// tensors were missing, comparing all names would take minutes.
const MAX_COMPARED: usize = 2000;
/// Larger files beside the tensors are not read.
const MAX_SMALL_BYTES: u64 = 256 << 20;

/// An open checkpoint. Shards are mapped, not read, so it may be larger than memory.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    shards: Vec<Checkpoint>,
    /// Tensor names, each with its shard.
    tensors: BTreeMap<String, usize>,
    /// The same for looking names up: their long common beginnings make comparisons slow.
    shard_of: HashMap<String, usize>,
    unlisted: Vec<String>,
    /// Files of tensors in the folder that the index does not name.
    beside: Vec<PathBuf>,
    config: Option<Value>,
    hf_quant_config: Option<Value>,
}

impl Model {
    /// Opens a `.safetensors` file, a `.safetensors.index.json` file, a `.gguf` file with the others of its
    /// model, or a folder that has one of these.
    ///
    /// A folder without an index has all of its `.safetensors` files opened. `config.json` and
    /// `hf_quant_config.json` are read from the folder, or from the file's folder, if they exist.
    /// [`Checkpoint::open`] states the condition on open files.
    ///
    /// # Errors
    /// [`Error::Io`]; [`CheckpointError::Malformed`] for a file whose content does not fit its
    /// name, an index that names a path outside the folder, or a tensor in two shards;
    /// [`CheckpointError::MissingTensor`] for a tensor of the index that its shard does not have;
    /// [`CheckpointError::Nothing`] for a folder without tensors.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let info = std::fs::metadata(&path).map_err(|source| Error::Io {
            action: "read",
            path: path.clone(),
            source,
        })?;
        let is_index = |path: &Path| path.to_string_lossy().ends_with(INDEX_ENDING);
        let (folder, index) = if info.is_dir() {
            let indices = files(&path, INDEX_ENDING)?;
            if let [first, second, ..] = indices.as_slice() {
                let reason = format!("two indices, {} and {}", first.display(), second.display());
                return Err(CheckpointError::Malformed { path, reason });
            }
            (path.clone(), indices.into_iter().next())
        } else {
            let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
            (folder, is_index(&path).then(|| path.clone()))
        };
        let is_gguf = |path: &Path| path.extension().is_some_and(|ending| ending == "gguf");
        let ggufs = match info.is_dir() {
            true if index.is_none() && files(&path, ".safetensors")?.is_empty() => {
                files(&path, ".gguf")?
            }
            false if is_gguf(&path) => siblings(&path)?,
            _ => Vec::new(),
        };
        let mut model = match index {
            None if !ggufs.is_empty() => Self::from_ggufs(&path, ggufs)?,
            Some(index) => Self::from_index(&folder, &index)?,
            None if info.is_dir() => Self::from_files(&path, files(&folder, ".safetensors")?)?,
            None => Self::from_files(&path, vec![path.clone()])?,
        };
        if info.is_dir() && model.path.to_string_lossy().ends_with(INDEX_ENDING) {
            let read = |path: &PathBuf| model.shards.iter().any(|shard| shard.path() == path);
            model.beside = files(&folder, ".safetensors")?;
            model.beside.retain(|path| !read(path));
        }
        model.config = match json(&folder.join(CONFIG))? {
            None => model.gguf().and_then(|stated| {
                let has_head = model.shards.iter().filter_map(Checkpoint::gguf);
                stated.config(has_head.into_iter().any(|stated| stated.has_head))
            }),
            config => config,
        };
        model.hf_quant_config = json(&folder.join(HF_QUANT_CONFIG))?;
        model.path = path;
        if model.config().is_some_and(|config| config[MLX].is_object()) {
            model.take_experts_apart()?;
        }
        Ok(model)
    }

    /// Makes a matrix each of experts that mlx-lm has in one tensor.
    fn take_experts_apart(&mut self) -> Result<()> {
        let family = families::find(self.config());
        for at in 0..self.shards.len() {
            let apart = |name: &str, shape: &[usize]| apart(family, name, shape);
            for (whole, parts) in self.shards[at].take_apart(apart)? {
                if self.shard_of.get(&whole) != Some(&at) {
                    self.unlisted.retain(|name| *name != whole);
                    self.unlisted.extend(parts);
                    continue;
                }
                self.tensors.remove(&whole);
                self.shard_of.remove(&whole);
                for part in parts {
                    if let Some(other) = self.tensors.insert(part.clone(), at) {
                        let other = self.shards[other].path().display();
                        let reason = format!("tensor `{part}` is also in {other}");
                        let path = self.shards[at].path().to_path_buf();
                        return Err(CheckpointError::Malformed { path, reason });
                    }
                    self.shard_of.insert(part, at);
                }
            }
        }
        Ok(())
    }

    /// Opens the files of a model in GGUF. The first of several has the metadata for all.
    fn from_ggufs(path: &Path, files: Vec<PathBuf>) -> Result<Self> {
        let malformed =
            |path: &Path, reason| CheckpointError::Malformed { path: path.into(), reason };
        let split = |file: &Checkpoint| file.gguf().and_then(Stated::split);
        let mut first = None;
        for path in &files {
            let file = Checkpoint::open(path)?;
            if split(&file).is_none_or(|(place, _)| place == 0) {
                if let (Some(other), true) = (&first, files.len() > 1) {
                    let other: &Checkpoint = other;
                    let reason =
                        format!("it and {} are models of their own", other.path().display());
                    return Err(malformed(path, reason));
                }
                first = Some(file);
            }
        }
        let Some(first) = first else {
            let reason = "the first of its files is missing, which has the metadata".to_owned();
            return Err(malformed(path, reason));
        };
        let count = split(&first).map_or(1, |(_, count)| count);
        if count != files.len() as u64 {
            let reason = format!("it is one of {count} files, and {} are there", files.len());
            return Err(malformed(first.path(), reason));
        }
        let stated = first.gguf().cloned();
        let open = |path: PathBuf| Checkpoint::open_part(path, stated.as_ref());
        let shards = files.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        Self::of_shards(path, shards)
    }

    fn from_files(path: &Path, files: Vec<PathBuf>) -> Result<Self> {
        if files.is_empty() {
            let what = "file that ends in .safetensors or .gguf".to_owned();
            return Err(CheckpointError::Nothing { path: path.into(), what });
        }
        let shards = files.into_iter().map(Checkpoint::open).collect::<Result<Vec<_>>>()?;
        Self::of_shards(path, shards)
    }

    /// A model of all tensors of these files.
    fn of_shards(path: &Path, shards: Vec<Checkpoint>) -> Result<Self> {
        let all = shards.iter().enumerate();
        let all = all.flat_map(|(at, shard)| shard.names().map(move |name| (name, at)));
        let mut all: Vec<(&str, usize)> = all.collect();
        all.sort_unstable();
        if let Some(&[(name, other), (_, at)]) =
            all.array_windows().find(|[(name, _), (next, _)]| name == next)
        {
            let reason = format!("tensor `{name}` is also in {}", shards[other].path().display());
            let path = shards[at].path().to_path_buf();
            return Err(CheckpointError::Malformed { path, reason });
        }
        let tensors = all.into_iter().map(|(name, at)| (name.to_owned(), at)).collect();
        Ok(Self::new(path, shards, tensors, Vec::new()))
    }

    fn from_index(folder: &Path, index: &Path) -> Result<Self> {
        let malformed = |reason| CheckpointError::Malformed { path: index.into(), reason };
        let value = json(index)?.unwrap_or_default();
        let map = value["weight_map"].as_object();
        let map = map.ok_or_else(|| malformed("it has no object `weight_map`".into()))?;
        let mut names: Vec<&str> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut tensors = BTreeMap::new();
        for (tensor, file) in map {
            let file = file.as_str().filter(|file| {
                let mut parts = Path::new(file).components();
                matches!(parts.next(), Some(std::path::Component::Normal(_)))
                    && parts.next().is_none()
            });
            let Some(file) = file else {
                let reason = format!("tensor `{tensor}` is in {}, no file name", map[tensor]);
                return Err(malformed(reason));
            };
            let at = *places.entry(file).or_insert_with(|| {
                names.push(file);
                names.len() - 1
            });
            tensors.insert(tensor.clone(), at);
        }
        if names.is_empty() {
            let what = "tensor".to_owned();
            return Err(CheckpointError::Nothing { path: index.into(), what });
        }
        let open = |(at, name): (usize, &&str)| {
            let path = folder.join(name);
            Checkpoint::open(&path).map_err(|error| match error {
                CheckpointError::Library(Error::Io { source, .. })
                    if source.kind() == ErrorKind::NotFound =>
                {
                    let of_shard = tensors.iter().filter(|(_, shard)| **shard == at);
                    let mut names = of_shard.map(|(name, _)| name.as_str());
                    let tensor = names.next().unwrap_or_default().to_owned();
                    let others = names.count();
                    let index = index.to_path_buf();
                    CheckpointError::MissingShard { index, shard: path, tensor, others }
                }
                error => error,
            })
        };
        let shards = names.iter().enumerate().map(open).collect::<Result<Vec<_>>>()?;
        for (tensor, &at) in &tensors {
            shards[at].raw(tensor)?;
        }
        let mut unlisted = Vec::new();
        for (at, shard) in shards.iter().enumerate() {
            let names = shard.names().filter(|name| tensors.get(*name) != Some(&at));
            let mut names: Vec<&str> = names.collect();
            names.sort_by_key(|name| (shard.offset(name), *name));
            unlisted.extend(names.into_iter().map(str::to_owned));
        }
        Ok(Self::new(index, shards, tensors, unlisted))
    }

    fn new(
        path: &Path,
        shards: Vec<Checkpoint>,
        tensors: BTreeMap<String, usize>,
        unlisted: Vec<String>,
    ) -> Self {
        let (config, hf_quant_config) = (None, None);
        let beside = Vec::new();
        let shard_of = tensors.iter().map(|(name, &at)| (name.clone(), at)).collect();
        let path = path.into();
        Self { path, shards, tensors, shard_of, unlisted, beside, config, hf_quant_config }
    }

    /// The path that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files, in the order in which the index or the folder names them.
    #[must_use]
    pub fn shards(&self) -> &[Checkpoint] {
        &self.shards
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Tensors of shards that the index does not list; loaders ignore them.
    #[must_use]
    pub fn unlisted(&self) -> &[String] {
        &self.unlisted
    }

    /// Files of tensors in the folder that the index does not name; their tensors are not among
    /// [`names`](Self::names).
    #[must_use]
    pub fn beside(&self) -> &[PathBuf] {
        &self.beside
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.shard_of.contains_key(name)
    }

    /// The file that has a tensor.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`].
    pub fn file(&self, name: &str) -> Result<&Checkpoint, CheckpointError> {
        match self.shard_of.get(name).and_then(|&at| self.shards.get(at)) {
            Some(file) => Ok(file),
            None => {
                let few = self.tensors.len() <= MAX_COMPARED;
                let similar =
                    if few { similar(name, self.tensors.keys().cloned()) } else { Vec::new() };
                let (path, tensor) = (self.path.clone(), name.into());
                Err(CheckpointError::MissingTensor { path, tensor, similar })
            }
        }
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`].
    pub fn raw(&self, name: &str) -> Result<RawTensor<'_>, CheckpointError> {
        self.file(name)?.raw(name)
    }

    /// The bytes of a tensor, if there is one of this name; names that are similar are not searched for.
    pub(super) fn optional(&self, name: &str) -> Option<RawTensor<'_>> {
        self.contains(name).then(|| self.raw(name).ok()).flatten()
    }

    /// The metadata of a model in GGUF.
    pub(super) fn gguf(&self) -> Option<&Stated> {
        self.shards
            .iter()
            .filter_map(Checkpoint::gguf)
            .find(|stated| stated.architecture().is_some())
    }

    /// The blocks of GGUF that a tensor consists of.
    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        self.shards.get(*self.shard_of.get(name)?)?.kind(name)
    }

    /// Whether any of the files is GGUF.
    pub(super) fn has_ggml_blocks(&self) -> bool {
        self.shards.iter().any(|shard| shard.gguf().is_some())
    }

    /// A JSON file of the model's folder; `None` if it does not exist, or if a single file was opened.
    ///
    /// # Errors
    /// [`Error::Io`], [`CheckpointError::Malformed`].
    pub(super) fn json(&self, name: &str) -> Result<Option<Value>> {
        if self.path.is_dir() { json(&self.path.join(name)) } else { Ok(None) }
    }

    /// A small file of the model's folder; `None` if it does not exist, or if a single file was opened.
    ///
    /// # Errors
    /// [`Error::Io`], [`CheckpointError::Malformed`].
    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if self.path.is_dir() { small(&self.path.join(name)) } else { Ok(None) }
    }

    /// [`Checkpoint::release`] in the file that has the tensor.
    pub fn release(&self, name: &str) {
        if let Ok(file) = self.file(name) {
            file.release(name);
        }
    }

    /// [`Checkpoint::prefetch`] in the file that has the tensor.
    pub fn prefetch(&self, name: &str) {
        if let Ok(file) = self.file(name) {
            file.prefetch(name);
        }
    }

    /// [`Checkpoint::unchanged`] of all files.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::unchanged`].
    pub fn unchanged(&self) -> Result<()> {
        self.shards.iter().try_for_each(Checkpoint::unchanged)
    }

    /// All tensors, shard by shard in the order of their data.
    #[must_use]
    pub fn entries(&self) -> Vec<TensorEntry> {
        let listed =
            |at: usize| move |entry: &TensorEntry| self.shard_of.get(&entry.name) == Some(&at);
        let shards = self.shards.iter().enumerate();
        shards.flat_map(|(at, shard)| shard.entries().into_iter().filter(listed(at))).collect()
    }

    /// Value of a key in the free-form metadata of the first file that has it.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.shards.iter().find_map(|shard| shard.metadata(key))
    }

    /// `config.json`.
    #[must_use]
    pub fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// `quantization_config` of `config.json`.
    #[must_use]
    pub fn quantization_config(&self) -> Option<&Value> {
        self.config.as_ref()?.get("quantization_config")
    }

    /// `hf_quant_config.json`.
    #[must_use]
    pub fn hf_quant_config(&self) -> Option<&Value> {
        self.hf_quant_config.as_ref()
    }

    /// The other files of the folder: tokenizer, templates and so on; none if a single file was
    /// opened.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn companions(&self) -> Result<Vec<PathBuf>> {
        const KEPT: [&str; 6] = ["json", "txt", "model", "jinja", "md", "py"];
        if !self.path.is_dir() {
            return Ok(Vec::new());
        }
        let mut paths = files(&self.path, "")?;
        paths.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let kept = path.extension().is_some_and(|e| KEPT.iter().any(|kept| e == *kept));
            kept && !name.ends_with(INDEX_ENDING) && name != CONFIG && name != HF_QUANT_CONFIG
        });
        Ok(paths)
    }
}

/// The files of a model in GGUF, one of which is `path`: `x-00002-of-00003.gguf` and so on.
fn siblings(path: &Path) -> Result<Vec<PathBuf>> {
    let base = |path: &Path| {
        let stem = path.file_stem()?.to_string_lossy().into_owned();
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (base, place) = rest.rsplit_once('-')?;
        let numbers = [count, place].iter().all(|text| text.parse::<u32>().is_ok());
        numbers.then(|| (base.to_owned(), count.to_owned()))
    };
    let Some(own) = base(path) else { return Ok(vec![path.into()]) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut all = files(folder.unwrap_or(Path::new(".")), ".gguf")?;
    all.retain(|other| base(other).as_ref() == Some(&own));
    Ok(all)
}

/// Regular files of a folder with this ending, sorted.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { action: "read", path: folder.into(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(ending) && !name.starts_with('.') && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// A JSON file, or `None` if it does not exist.
fn json(path: &Path) -> Result<Option<Value>> {
    let Some(text) = small(path)? else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            let reason = format!("no valid JSON: {error}");
            Err(CheckpointError::Malformed { path: path.into(), reason })
        }
    }
}

/// The bytes of a file, or `None` if it does not exist.
fn small(path: &Path) -> Result<Option<Vec<u8>>> {
    let io = |source| Error::Io { action: "read", path: path.into(), source };
    let malformed = |reason| CheckpointError::Malformed { path: path.into(), reason };
    let (mut file, info) = match open_at_once(path) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error).into()),
    };
    if !info.is_file() || info.len() > MAX_SMALL_BYTES {
        let reason = format!("no regular file of at most {MAX_SMALL_BYTES} bytes");
        return Err(malformed(reason));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(io)?;
    Ok(Some(text))
}
