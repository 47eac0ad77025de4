//! Writing: the tensors of a checkpoint in ggml's files, experts of a layer in one tensor.

use std::collections::BTreeMap;

use nvfp4_gguf::{Header, Kind, Scalar, Spec, Value};
use safetensors::tensor::Dtype;
use serde_json::Value as Json;

use super::{layout, tokenizer};
use crate::data::Edit;
use crate::error::{CheckpointError, Result};
use crate::ggml::names::{self, Names, SIZES};
use crate::ggml::rope::{FREQUENCIES, Rope};
use crate::ggml::{self, Change, Output};
use crate::model::Model;
use crate::parts::{Content, Layout, Piece};
use crate::write::TensorSpec;

/// `general.file_type`: most weights are in this format.
const MOSTLY_MXFP4: u32 = 38;
const MOSTLY_NVFP4: u32 = 39;
/// The kind of tokenizer, without which readers refuse a file, and the one of files that have none.
const TOKENIZER: &str = "tokenizer.ggml.model";
const NO_TOKENIZER: &str = "no_vocab";

/// A tensor of ggml.
struct Whole {
    kind: Kind,
    /// The shape of one expert, if it is one's.
    shape: Vec<usize>,
    /// Names in the checkpoint, by expert.
    members: BTreeMap<Option<usize>, (String, Change)>,
}

/// The files of a checkpoint, and what its reader should know.
#[derive(Debug)]
pub(crate) struct Files {
    pub outputs: Vec<Output>,
    /// Tensors that the checkpoint has none of: name and bytes.
    pub computed: Vec<(String, Vec<u8>)>,
    pub notes: Vec<String>,
}

/// Lays out the files that hold `specs`, of which `pieces` are those of quantised weights.
///
/// # Errors
/// [`CheckpointError::Unsupported`] for an architecture or a tensor that ggml has no name for, for experts of one
/// layer that are stored differently, and for a scaling of rotary positions that ggml has no form of.
pub(crate) fn files(
    source: &Model,
    config: Option<&Json>,
    specs: &[TensorSpec],
    pieces: &BTreeMap<String, Vec<Piece>>,
    shard_bytes: u64,
) -> Result<Files> {
    let refuse = |tensor: &str, reason: String| CheckpointError::Unsupported {
        layout: Layout::Gguf.name(),
        tensor: tensor.into(),
        reason,
    };
    let stated = source.gguf();
    let of_file = stated.and_then(|stated| stated.names);
    let Some(names) = of_file.or_else(|| config.and_then(Names::of_config)) else {
        let known: Vec<&str> = names::ALL.iter().map(|names| names.model_type).collect();
        let reason = format!(
            "ggml's names are known for the model types {}, and config.json names none of them",
            known.join(", ")
        );
        return Err(refuse(specs.first().map_or("", |spec| spec.name.as_str()), reason));
    };
    let contents: BTreeMap<&str, &Piece> =
        pieces.values().flatten().map(|piece| (piece.spec.name.as_str(), piece)).collect();
    let mut order: Vec<String> = Vec::new();
    let mut wholes: BTreeMap<String, Whole> = BTreeMap::new();
    for spec in specs {
        // Computed from the configuration by every reader.
        if spec.name.ends_with("rotary_emb.inv_freq") {
            continue;
        }
        let found = named(names, &spec.name);
        let found = found.or_else(|| stated.map(|_| (spec.name.clone(), None, "")));
        let Some((name, expert, module)) = found else {
            let reason = format!("ggml has no name for it in architecture {}", names.ggml);
            return Err(refuse(&spec.name, reason));
        };
        let piece = contents.get(spec.name.as_str()).copied();
        let is_scale = piece.is_some_and(|piece| piece.content == Content::Global);
        let ignored = names.unscaled.iter().any(|own| name.split('.').any(|part| part == *own));
        if is_scale && ignored && stated.is_none() {
            let reason = format!(
                "llama.cpp does not apply tensor-level scales to `{name}` of architecture {}; MXFP4 has none",
                names.ggml
            );
            return Err(refuse(&spec.name, reason));
        }
        let (kind, change) = stored(names, config, spec, piece, module)
            .map_err(|reason| refuse(&spec.name, reason))?;
        let shape = match piece.map(|piece| piece.content) {
            Some(Content::Blocks(_)) => ggml::shape(kind, &spec.shape),
            // One for each expert, in a tensor of them.
            Some(Content::Global | Content::Input) if expert.is_some() => Vec::new(),
            _ => spec.shape.clone(),
        };
        let whole = wholes.entry(name.clone()).or_insert_with(|| {
            order.push(name.clone());
            Whole { kind, shape: shape.clone(), members: BTreeMap::new() }
        });
        if (whole.kind, &whole.shape) != (kind, &shape) {
            let reason = format!(
                "it is {kind} {shape:?}, and another expert in `{name}` is {} {:?}",
                whole.kind, whole.shape
            );
            return Err(refuse(&spec.name, reason));
        }
        if let Some((other, _)) = whole.members.insert(expert, (spec.name.clone(), change)) {
            return Err(refuse(&spec.name, format!("it and `{other}` are both `{name}`")));
        }
    }
    for whole in wholes.values() {
        let missing = whole
            .members
            .keys()
            .enumerate()
            .find(|(at, expert)| expert.is_some_and(|expert| expert != *at));
        if let (Some((at, _)), Some((name, _))) = (missing, whole.members.values().next()) {
            let reason = format!(
                "expert {at} of its layer is not stored so, and ggml has one tensor of all"
            );
            return Err(refuse(name, reason));
        }
    }
    let rope = config.map(Rope::of_config).transpose();
    let rope = rope.map_err(|reason| refuse("config.json", reason))?.unwrap_or_default();
    let mut computed = Vec::new();
    if let Some(factors) = &rope.factors {
        let members =
            [(None, (FREQUENCIES.into(), Change { from: None, edit: None }))].into_iter().collect();
        let whole = Whole { kind: Kind::F32, shape: vec![factors.len()], members };
        order.insert(0, FREQUENCIES.into());
        wholes.insert(FREQUENCIES.into(), whole);
        computed.push((FREQUENCIES.into(), factors.iter().flat_map(|x| x.to_le_bytes()).collect()));
    }
    let mut metadata = metadata(source, names, config, &wholes)?;
    metadata.extend(rope.keys.into_iter().map(|(key, x)| (format!("{}.{key}", names.ggml), x)));
    let mut notes = Vec::new();
    metadata.entry(TOKENIZER.into()).or_insert_with(|| {
        notes.push(
            "the file has no tokenizer, and its readers take and give token ids only: a tokenizer is written from \
             SentencePiece's tokenizer.model or tokenizer.json, or from a tokenizer.json of byte pairs whose \
             splitting ggml knows for the architecture"
                .into(),
        );
        Value::String(NO_TOKENIZER.into())
    });
    let outputs = place(&order, &wholes, metadata, shard_bytes)?;
    Ok(Files { outputs, computed, notes })
}

/// ggml's name of a tensor, the expert, and the module in the checkpoint.
fn named<'a>(names: &Names, name: &'a str) -> Option<(String, Option<usize>, &'a str)> {
    if name.ends_with(".sinks") {
        let (own, expert) = names.ggml_module(name)?;
        return Some((format!("{own}.weight"), expert, name));
    }
    let (module, ending) = name.rsplit_once('.')?;
    if !matches!(ending, "weight" | "bias" | "scale" | "input_scale") {
        return None;
    }
    let (own, expert) = names.ggml_module(module)?;
    Some((format!("{own}.{ending}"), expert, module))
}

/// The type of a tensor in a file, and what changes.
fn stored(
    names: &Names,
    config: Option<&Json>,
    spec: &TensorSpec,
    piece: Option<&Piece>,
    module: &str,
) -> Result<(Kind, Change), String> {
    let rows = spec.shape.first().copied().unwrap_or(0);
    let weight = spec.name.ends_with(".weight") || spec.name.ends_with(".bias");
    let turned = names.turns && weight;
    let heads = match module.rsplit('.').next() {
        Some("q_proj") if turned => Some("num_attention_heads"),
        Some("k_proj") if turned => Some("num_key_value_heads"),
        _ => None,
    };
    let mut edit = None;
    if let Some(key) = heads {
        let number = |key| config.and_then(|config| names::size(config, key)?.as_u64());
        let heads = number(key).or_else(|| number("num_attention_heads"));
        let heads = heads.and_then(|heads| usize::try_from(heads).ok());
        let heads = heads.filter(|&heads| heads > 0 && rows.is_multiple_of(2 * heads));
        let heads = heads.ok_or_else(|| {
            format!("ggml has its rows in another order, and {key} does not divide {rows} of them into pairs")
        })?;
        edit = Some(Edit::Heads { heads, rows });
    }
    if let Some(Piece { content: Content::Blocks(format), .. }) = piece {
        return Ok((layout::kind_of(*format), Change { from: None, edit }));
    }
    if names.is_one_more(module) && spec.name.ends_with(".weight") {
        edit = Some(Edit::OneMore);
    }
    // ggml computes with these in F32 only.
    let single = spec.shape.len() < 2
        || spec.name.ends_with(".bias")
        || ["norm", "mlp.gate", "mlp.router", "block_sparse_moe.gate"]
            .iter()
            .any(|ending| module.ends_with(ending));
    match spec.dtype {
        Dtype::F32 => Ok((Kind::F32, Change { from: None, edit })),
        Dtype::F16 | Dtype::BF16 if single => {
            Ok((Kind::F32, Change { from: Some(spec.dtype), edit }))
        }
        Dtype::F16 => Ok((Kind::F16, Change { from: None, edit })),
        Dtype::BF16 => Ok((Kind::Bf16, Change { from: None, edit })),
        other => Err(format!("it is {other:?}, and floats of 16 or 32 bits are written")),
    }
}

/// The metadata of the first file.
fn metadata(
    source: &Model,
    names: &Names,
    config: Option<&Json>,
    wholes: &BTreeMap<String, Whole>,
) -> Result<BTreeMap<String, Value>> {
    let mut metadata = match source.gguf() {
        Some(stated) => stated.metadata.clone(),
        None => BTreeMap::new(),
    };
    metadata.retain(|key, _| !key.starts_with("split."));
    if source.gguf().is_none() {
        let text = |text: &str| Value::String(text.into());
        metadata.insert("general.architecture".into(), text(names.ggml));
        metadata.insert("general.type".into(), text("model"));
        if let Some(name) = source.path().file_name() {
            metadata.insert("general.name".into(), text(&name.to_string_lossy()));
        }
        for (own, key, kind) in SIZES {
            let value = config.and_then(|config| names.size(config, key));
            if let Some(value) = value.and_then(|value| names::to_ggml(&value, kind)) {
                metadata.insert(format!("{}.{own}", names.ggml), value);
            }
        }
        if let Some(config) = config {
            metadata.extend(tokenizer::metadata(source, config, names.pre)?);
        }
    }
    let count = |kind: Kind| wholes.values().filter(|whole| whole.kind == kind).count();
    let mostly = if count(Kind::Nvfp4) > 0 { MOSTLY_NVFP4 } else { MOSTLY_MXFP4 };
    let number = |number| Value::Scalar(Scalar::U32(number));
    metadata.insert("general.file_type".into(), number(mostly));
    metadata.insert("general.quantization_version".into(), number(2));
    Ok(metadata)
}

/// Distributes tensors over files.
fn place(
    order: &[String],
    wholes: &BTreeMap<String, Whole>,
    metadata: BTreeMap<String, Value>,
    shard_bytes: u64,
) -> Result<Vec<Output>> {
    let spec = |name: &String, whole: &Whole| {
        let mut shape: Vec<u64> = whole.shape.iter().map(|&size| size as u64).collect();
        if whole.members.keys().any(Option::is_some) {
            shape.insert(0, whole.members.len() as u64);
        }
        Spec { name: name.clone(), kind: whole.kind, shape }
    };
    let mut groups: Vec<(u64, Vec<Spec>)> = Vec::new();
    for name in order {
        let Some(whole) = wholes.get(name) else { continue };
        let spec = spec(name, whole);
        let bytes = spec.kind.bytes(&spec.shape).unwrap_or(0);
        match groups.last_mut() {
            Some((sum, specs)) if *sum + bytes <= shard_bytes => {
                *sum += bytes;
                specs.push(spec);
            }
            _ => groups.push((bytes, vec![spec])),
        }
    }
    let (count, tensors) = (groups.len(), order.len());
    let mut outputs = Vec::new();
    for (at, (_, specs)) in groups.into_iter().enumerate() {
        let mut own = if at == 0 { metadata.clone() } else { BTreeMap::new() };
        let mut name = "model.gguf".to_owned();
        if count > 1 {
            name = format!("model-{:05}-of-{count:05}.gguf", at + 1);
            let number =
                |x: usize| Value::Scalar(Scalar::U16(u16::try_from(x).unwrap_or(u16::MAX)));
            own.insert("split.no".into(), number(at));
            own.insert("split.count".into(), number(count));
            let all = i32::try_from(tensors).unwrap_or(i32::MAX);
            own.insert("split.tensors.count".into(), Value::Scalar(Scalar::I32(all)));
        }
        let header = Header::new(&own, &specs).map_err(|error| CheckpointError::Malformed {
            path: name.clone().into(),
            reason: error.to_string(),
        })?;
        let mut places = BTreeMap::new();
        for (spec, &(first, length)) in specs.iter().zip(&header.places) {
            let Some(whole) = wholes.get(&spec.name) else { continue };
            let size = length / whole.members.len().max(1) as u64;
            for (at, (member, change)) in whole.members.values().enumerate() {
                let place = (first + at as u64 * size, size as usize, *change);
                places.insert(member.clone(), place);
            }
        }
        outputs.push(Output { name, header: header.bytes, end: header.end, places });
    }
    Ok(outputs)
}
