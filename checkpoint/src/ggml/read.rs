//! Reading: the tensors of a file under transformers' names, and the configuration that its metadata states.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use nvfp4_gguf::{Gguf, Kind, Tensor, Value};
use safetensors::tensor::Dtype;
use serde_json::{Map, Value as Json, json};

use super::names::{self, Names, SIZES};
use super::place::Place;
use super::rope::{self, FREQUENCIES};
use crate::data::Edit;
use crate::error::CheckpointError;

/// Endings of a module's tensors, ggml's other spelling of scales first.
const ENDINGS: [(&str, &str); 6] = [
    (".weight.scale", ".scale"),
    (".weight.input_scale", ".input_scale"),
    (".input_scale", ".input_scale"),
    (".scale", ".scale"),
    (".weight", ".weight"),
    (".bias", ".bias"),
];

/// The metadata of a file.
#[derive(Clone, Debug)]
pub(crate) struct Stated {
    /// The architecture, if its names are known.
    pub names: Option<&'static Names>,
    /// The file's own metadata.
    pub metadata: BTreeMap<String, Value>,
    /// Whether the file has an output head.
    pub has_head: bool,
    /// The scaling of rotary positions in the terms of `config.json`.
    scaling: Option<Json>,
    /// Whether it has all that the tensor [`FREQUENCIES`] says.
    has_factors: bool,
}

impl Stated {
    fn of(file: &Gguf<'_>) -> Self {
        let architecture = file.metadata.get("general.architecture").and_then(Value::as_str);
        let experts = file.tensors.iter().any(|tensor| tensor.name.contains("_exps."));
        let factors = file.tensors.iter().find(|tensor| tensor.name == FREQUENCIES);
        let factors = factors.filter(|tensor| tensor.kind == Kind::F32).map(|tensor| {
            let chunks = tensor.data.as_chunks().0.iter();
            chunks.map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>()
        });
        let mut stated = Self {
            names: architecture.and_then(|name| Names::of_ggml(name, experts)),
            metadata: file.metadata.clone(),
            has_head: file.tensors.iter().any(|tensor| tensor.name == "output.weight"),
            scaling: None,
            has_factors: false,
        };
        if let Some(config) = stated.config(true) {
            let (scaling, whole) =
                rope::to_config(&config, |key| stated.size(key), factors.as_deref());
            (stated.scaling, stated.has_factors) = (scaling, whole);
        }
        stated
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Option<&str> {
        self.metadata.get("general.architecture")?.as_str()
    }

    fn size(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&format!("{}.{key}", self.architecture()?))
    }

    /// The place of the file among those of a model, and their number; `None` if it is the only one.
    pub fn split(&self) -> Option<(u64, u64)> {
        let number = |key: &str| self.metadata.get(key).and_then(Value::as_u64);
        Some((number("split.no")?, number("split.count").filter(|&count| count > 1)?))
    }

    /// `config.json` as far as the metadata say it; `None` for an architecture whose names are not known.
    pub fn config(&self, has_head: bool) -> Option<Json> {
        let names = self.names?;
        let mut config = Map::new();
        config.insert("architectures".into(), json!([names.class]));
        config.insert("model_type".into(), names.model_type.into());
        for (own, key, _) in SIZES {
            if let Some(value) = self.size(own).and_then(names::to_json) {
                config.insert(names.size_key(key).into(), value);
            }
        }
        if let Some(Value::Array(_, tokens)) = self.metadata.get("tokenizer.ggml.tokens") {
            config.entry("vocab_size").or_insert(tokens.len().into());
        }
        config.insert("tie_word_embeddings".into(), (!has_head).into());
        if let Some(scaling) = &self.scaling {
            config.insert("rope_scaling".into(), scaling.clone());
        }
        Some(config.into())
    }

    /// Number of heads of q or k.
    fn heads(&self, module: &str) -> Option<usize> {
        let own = self.size("attention.head_count");
        let value = match module.rsplit('.').next()? {
            "q_proj" => own,
            "k_proj" => self.size("attention.head_count_kv").or(own),
            _ => return None,
        };
        usize::try_from(value?.as_u64()?).ok()
    }
}

/// The tensors of a file in memory, by name. The metadata of a model in several files are those of `first`,
/// if that is another one.
///
/// # Errors
/// [`CheckpointError::Malformed`].
pub(crate) fn places(
    path: &Path,
    bytes: &[u8],
    first: Option<&Stated>,
) -> Result<(HashMap<String, Place>, Stated), CheckpointError> {
    let malformed = |reason| CheckpointError::Malformed { path: path.into(), reason };
    let file = Gguf::parse(bytes).map_err(|error| malformed(error.to_string()))?;
    let own = Stated::of(&file);
    let stated = first.unwrap_or(&own);
    let mut places = HashMap::with_capacity(file.tensors.len());
    for tensor in &file.tensors {
        // Every reader of the configuration computes them.
        if stated.has_factors && tensor.name == FREQUENCIES {
            continue;
        }
        let found = translate(bytes, tensor, stated);
        for (name, place) in found.map_err(malformed)? {
            if places.contains_key(&name) {
                let reason = format!("two tensors are `{name}`, `{}` one of them", tensor.name);
                return Err(malformed(reason));
            }
            places.insert(name, place);
        }
    }
    Ok((places, own))
}

/// The tensors of transformers that one of ggml is.
fn translate(
    bytes: &[u8],
    tensor: &Tensor<'_>,
    stated: &Stated,
) -> Result<Vec<(String, Place)>, String> {
    let whole = place(bytes, tensor)?;
    let ending = ENDINGS
        .iter()
        .find_map(|(ending, general)| Some((tensor.name.strip_suffix(ending)?, *general)));
    let named = ending.and_then(|(own, ending)| Some((stated.names?.module(own)?, ending)));
    let Some((module, ending)) = named else {
        let name = match ending {
            // Scales have one spelling, also where the architecture is not known.
            Some((own, ending)) => format!("{own}{ending}"),
            None => tensor.name.clone(),
        };
        return Ok(vec![(name, whole)]);
    };
    let ending = if module.ends_with(".sinks") && ending == ".weight" { "" } else { ending };
    if let Some((before, after)) = module.split_once("{}") {
        let Some((&experts, shape)) = whole.shape.split_first() else {
            return Err(format!("tensor `{}` has no dimension of experts", tensor.name));
        };
        let size = (whole.end - whole.start) / experts.max(1);
        // Without data, any number of experts would fit the file.
        if size == 0 {
            return Err(format!(
                "tensor `{}` is {:?}, without elements",
                tensor.name, tensor.shape
            ));
        }
        let expert = |expert: usize| {
            let start = whole.start + expert * size;
            let own = Place { shape: shape.to_vec(), start, end: start + size, ..whole.clone() };
            (format!("{before}{expert}{after}{ending}"), own)
        };
        return Ok((0..experts).map(expert).collect());
    }
    let edit = edit(tensor, &whole, stated, &module, ending)?;
    Ok(vec![(format!("{module}{ending}"), Place { edit, ..whole })])
}

fn edit(
    tensor: &Tensor<'_>,
    place: &Place,
    stated: &Stated,
    module: &str,
    ending: &str,
) -> Result<Option<Edit>, String> {
    let Some(names) = stated.names.filter(|_| matches!(ending, ".weight" | ".bias")) else {
        return Ok(None);
    };
    let name = &tensor.name;
    if names.turns && (module.ends_with(".q_proj") || module.ends_with(".k_proj")) {
        let rows = place.shape.first().copied().unwrap_or(0);
        let heads =
            stated.heads(module).filter(|&heads| heads > 0 && rows.is_multiple_of(2 * heads));
        let heads = heads.ok_or_else(|| {
            format!("tensor `{name}` has {rows} rows, which attention.head_count does not divide into pairs")
        })?;
        return Ok(Some(Edit::Heads { heads, rows }));
    }
    if names.is_one_more(module) && ending == ".weight" {
        return match tensor.kind {
            Kind::F32 => Ok(Some(Edit::OneMore)),
            kind => Err(format!("tensor `{name}` is {kind}; required F32 for a norm")),
        };
    }
    Ok(None)
}

/// A tensor as it is in the file.
fn place(bytes: &[u8], tensor: &Tensor<'_>) -> Result<Place, String> {
    // The parser hands out slices of `bytes`.
    let start = tensor.data.as_ptr().addr() - bytes.as_ptr().addr();
    let (dtype, kind) = match tensor.kind {
        Kind::F32 => (Dtype::F32, None),
        Kind::F16 => (Dtype::F16, None),
        Kind::Bf16 => (Dtype::BF16, None),
        Kind::F64 => (Dtype::F64, None),
        Kind::I8 => (Dtype::I8, None),
        Kind::I16 => (Dtype::I16, None),
        Kind::I32 => (Dtype::I32, None),
        Kind::I64 => (Dtype::I64, None),
        Kind::Q8_0 => (Dtype::I8, Some(Kind::Q8_0)),
        kind @ (Kind::Mxfp4 | Kind::Nvfp4) => (Dtype::U8, Some(kind)),
    };
    let (elements, size) = tensor.kind.block();
    let sizes = tensor.shape.iter().map(|&size| usize::try_from(size));
    let mut shape: Vec<usize> = sizes
        .collect::<Result<_, _>>()
        .map_err(|_| format!("tensor `{}` is {:?}", tensor.name, tensor.shape))?;
    if let (Some(_), Some(last)) = (kind, shape.last_mut()) {
        *last = *last / elements as usize * size as usize;
    }
    Ok(Place { dtype, shape, start, end: start + tensor.data.len(), kind, edit: None })
}
