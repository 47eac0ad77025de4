//! Verifies a checkpoint: its tensors, scales and conventions and, given the original, its values.
//!
//! Without the original, the checks find missing tensors, wrong types and shapes, scales that are
//! NaN, negative, or zero for a block with other codes, and tensor-level scales in the wrong
//! convention (from the magnitude of the weights). They cannot find a wrong order of nibbles or of
//! scales. With the original, each weight has a signal-to-noise ratio. If it is low, the known
//! mistakes are tried, and the one that explains it is named.

use std::collections::{BTreeMap, BTreeSet};

use half::{bf16, f16};
use safetensors::tensor::Dtype;

use super::auto_round_config as auto_round;
use super::configuration;
use super::counterpart::Counterpart;
use super::decode::{self, Encoded};
use super::deepseek;
use super::error::CheckpointError;
use super::load::{load, outline, reciprocal};
use super::measured::{Measured, largest, reordered, split, swapped};
use super::model::Model;
use super::modelopt;
use super::others::{self, OtherFormat, OtherLayer};
use super::parts::{Layout, Parts};
use super::products::{ProductNoise, product_noise};
use super::quark_config as quark;
use super::repair;
use super::report::{Finding, Severity, VerifyReport, WeightCheck};
use super::rounding::{Misrounded, TWICE, misrounded};
use super::save::Observer;
use super::schemes;
use super::shared::{self, Unshared};
use super::side;
use super::stated;
use super::weight::{GlobalScale, Order, Weight, module};
use crate::error::Result;
use nvfp4::error::Error;

/// A weight with a lower ratio against its original is wrong. NVFP4 of normal values has about
/// 20 dB, MXFP4 about 18 dB, and noise as large as the signal 0 dB.
pub const LEAST_SQNR_DB: f64 = 8.0;

/// Difference by which another interpretation must be better to be named as the explanation.
const CLEARLY_BETTER_DB: f64 = 6.0;

/// The measurements against the original.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Largest error of a code, in multiples of what rounding to the nearest explains.
    pub block_bound: f64,
    /// Seed of the activations of [`ProductNoise`].
    pub seed: u64,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { block_bound: 1.0, seed: 1 }
    }
}

impl VerifyOptions {
    /// Codes as rounded to the nearest.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

nvfp4::setters!(VerifyOptions { block_bound: f64, seed: u64 });

/// Checks a checkpoint, also against the unquantised model that it was made from.
///
/// # Errors
/// [`CheckpointError::Nothing`] if nothing is quantised in a known layout,
/// [`CheckpointError::Interrupted`]. Damage is not an error but a finding.
pub fn verify(
    model: &Model,
    original: Option<&Model>,
    observer: &mut dyn Observer,
) -> Result<VerifyReport> {
    verify_with(model, original, VerifyOptions::default(), observer)
}

/// The same with other options.
///
/// # Errors
/// The errors of [`verify`].
pub fn verify_with(
    model: &Model,
    original: Option<&Model>,
    options: VerifyOptions,
    observer: &mut dyn Observer,
) -> Result<VerifyReport> {
    let found = Layout::detect_weights(model).ok_or_else(|| others::nothing(model))?;
    let (layout, parts) = found;
    let others = others::find(model, &parts);
    let (findings, joined, misrounded) = (Vec::new(), Vec::new(), Vec::new());
    let mut check =
        Check { model, original, options, layout, findings, others, joined, misrounded };
    check.configuration(&parts);
    check.unread();
    check.names(&parts);
    observer.begin(parts.iter().map(|part| check.bytes(part)).sum());
    let mut weights = Vec::new();
    // Calls `f` with the tensors of a weight, in both models.
    let tensors = |part: &Parts, f: fn(&Model, &str)| {
        part.tensors().chain([part.name.as_str()]).for_each(|name| {
            [Some(model), original].into_iter().flatten().for_each(|model| f(model, name));
        });
    };
    for (at, part) in parts.iter().enumerate() {
        if observer.cancelled() {
            return Err(CheckpointError::Interrupted { path: model.path().into() });
        }
        observer.tensor(&part.name);
        if let Some(next) = parts.get(at + 1) {
            tensors(next, Model::prefetch);
        }
        match check.weight(part) {
            Ok(found) => weights.push(found),
            Err(error) => check.unreadable_weight(part, &error),
        }
        observer.done(check.bytes(part));
        tensors(part, Model::release);
    }
    check.misrounded();
    check.shared();
    let findings = check.findings;
    Ok(VerifyReport {
        path: model.path().display().to_string(),
        layout,
        against: original.map(|original| original.path().display().to_string()),
        verified: findings.iter().all(|finding| finding.severity != Severity::Error),
        order_checked: original.is_some(),
        findings,
        least_products: weights.iter().filter_map(|x| x.products).reduce(ProductNoise::least),
        least_sqnr_db: weights.iter().filter_map(|weight| weight.sqnr_db).reduce(f64::min),
        weights,
    })
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Whether two models have the same finite values in a float tensor, or the same bytes.
fn same_values(model: &Model, original: &Model, name: &str) -> bool {
    let (Ok(after), Ok(before)) = (model.raw(name), original.raw(name)) else { return false };
    if after.dtype == before.dtype {
        return after.data == before.data;
    }
    let values = |model: &Model| decode::values(model, name).ok().map(|tensor| tensor.values);
    values(model).is_some_and(|values_after| values(original) == Some(values_after))
}

struct Check<'a> {
    model: &'a Model,
    original: Option<&'a Model>,
    options: VerifyOptions,
    layout: Layout,
    findings: Vec<Finding>,
    /// Layers in formats that are not read.
    others: Vec<OtherLayer>,
    /// Weights with a tensor-level scale, and the sums over them if there is an original.
    joined: Vec<(String, GlobalScale, Option<Measured>)>,
    /// Weights with blocks that are not what the original rounds to, and their blocks in a row.
    misrounded: Vec<(String, Misrounded, usize)>,
}

impl Check<'_> {
    fn add(
        &mut self,
        severity: Severity,
        kind: &'static str,
        tensor: impl Into<Option<String>>,
        message: String,
    ) {
        self.findings.push(Finding { severity, kind, tensor: tensor.into(), message });
    }

    fn bytes(&self, part: &Parts) -> u64 {
        part.tensors()
            .filter_map(|name| self.model.raw(name).ok())
            .map(|x| x.data.len() as u64)
            .sum()
    }

    /// A finding for a weight that cannot be read, with the repair if there is one.
    fn unreadable_weight(&mut self, part: &Parts, error: &CheckpointError) {
        self.unreadable(&part.name, error);
        if repair::is_spoilt(self.model, self.layout, part)
            && let Some(finding) = self.findings.last_mut()
        {
            finding.message += "; writers leave a layer of zeros so, and convert \
                                --repair-zero-layers makes it zeros";
        }
    }

    fn unreadable(&mut self, tensor: &str, error: &CheckpointError) {
        let kind = match error {
            CheckpointError::MissingTensor { .. } => "missing",
            CheckpointError::Type { .. } => "type",
            CheckpointError::Shape { .. } | CheckpointError::Orientation { .. } => "shape",
            CheckpointError::Scale { .. } | CheckpointError::Library(Error::Scalar { .. }) => {
                "scale"
            }
            _ => "unreadable",
        };
        self.add(Severity::Error, kind, tensor.to_owned(), error.to_string());
    }

    /// Compares the configuration with the tensors.
    fn configuration(&mut self, parts: &[Parts]) {
        let expected = match self.layout {
            Layout::ModelOpt => "modelopt",
            Layout::CompressedTensors => "compressed-tensors",
            Layout::TorchAo => "torchao",
            Layout::GptOss => "mxfp4",
            Layout::DeepSeek => deepseek::METHOD,
            Layout::Quark => quark::METHOD,
            Layout::AutoRound => auto_round::METHOD,
            // Its tensors say so.
            Layout::Gguf => return,
            Layout::Mlx => {
                self.findings.extend(schemes::check(self.model, self.layout, parts));
                return;
            }
        };
        let stated = self.model.quantization_config().and_then(|x| x["quant_method"].as_str());
        // ModelOpt's own file says what the method of a first quantisation in config.json does not.
        let of_layout = |method: &str| ["compressed-tensors", "torchao", "mxfp4"].contains(&method);
        let by_file = self.layout == Layout::ModelOpt
            && (self.model.hf_quant_config().is_some() || modelopt::is_of_gptqmodel(self.model));
        if let Some(stated) =
            stated.filter(|stated| *stated != expected && (!by_file || of_layout(stated)))
        {
            let message = format!(
                "config.json says quant_method `{stated}`, the tensors are {}'s",
                self.layout
            );
            self.add(Severity::Error, "configuration", None, message);
        }
        self.findings.extend(configuration::check(self.model, self.layout, parts, &self.others));
    }

    /// Warnings for layers in other formats, a line for each format.
    fn unread(&mut self) {
        let mut formats: BTreeMap<OtherFormat, Vec<&str>> = BTreeMap::new();
        for other in &self.others {
            formats.entry(other.format).or_default().push(&other.module);
        }
        let found: Vec<(String, String)> = formats
            .iter()
            .map(|(format, modules)| {
                let (count, name) = (modules.len(), format.name());
                let message = match count {
                    1 => format!("it is in {name}, which is not checked"),
                    _ => format!("it and {} more are in {name}, which is not checked", count - 1),
                };
                (modules[0].to_owned(), message)
            })
            .collect();
        for (module, message) in found {
            self.add(Severity::Warning, "unread", module, message);
        }
    }

    /// Findings for missing tensors and for tensors that belong to no weight.
    fn names(&mut self, parts: &[Parts]) {
        for path in self.model.beside() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let message =
                "the index names no tensor of this file, so that it is not checked".into();
            self.add(Severity::Warning, "unlisted", name, message);
        }
        for name in self.model.unlisted() {
            let message = "it is in a file, but not in the index".to_owned();
            self.add(Severity::Warning, "unlisted", name.clone(), message);
        }
        let pieces: BTreeSet<&str> = parts.iter().flat_map(Parts::tensors).collect();
        let others: BTreeSet<String> =
            self.others.iter().map(|other| other.module.clone()).collect();
        let orphan = |name: &&str| {
            let ending = ["weight_scale", "weight_scale_2", "weight_global_scale", "_scales"];
            let other = others.contains(module(name));
            !other && !pieces.contains(name) && ending.iter().any(|ending| name.ends_with(ending))
        };
        let model = self.model;
        let orphans: Vec<&str> = model.names().filter(orphan).collect();
        for name in orphans {
            let message = "a scale whose weight is not there, or not 4 bits wide".to_owned();
            self.add(Severity::Warning, "orphan", name.to_owned(), message);
        }
        let Some(original) = self.original else { return };
        let found = parts.iter().filter_map(|part| Counterpart::of(original, &part.name));
        let mut compared: BTreeSet<String> = found
            .flat_map(|x| x.tensors().into_iter().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        // The biases of experts in one tensor are taken apart with them.
        let biases = compared.iter().map(|name| format!("{name}_bias"));
        let biases: Vec<String> = biases.filter(|name| !model.contains(name)).collect();
        compared.extend(biases);
        // Tensors of the original that hold encoded weights; of those that are floats here, the values.
        for name in original.names() {
            let encoded = original.raw(name).ok().and_then(|raw| {
                let weight = decode::weight_of(name, raw.dtype, raw.shape.len())?;
                Encoded::of(original, &weight).ok().flatten()
            });
            let Some(encoded) = encoded else { continue };
            let quantised = compared.contains(&encoded.name);
            if !quantised && model.raw(&encoded.name).is_ok_and(|raw| is_float(raw.dtype)) {
                self.decoded(original, &encoded);
                compared.insert(encoded.name.clone());
            }
            if quantised || compared.contains(&encoded.name) {
                compared.extend(encoded.tensors);
            }
        }
        let other = |name: &str| others.contains(module(name));
        let left = |name: &&str| !compared.contains(*name) && !other(name);
        let names: Vec<&str> = original.names().filter(left).collect();
        for name in names {
            let (Ok(before), after) = (original.raw(name), model.raw(name)) else { continue };
            match after {
                Err(error) => self.unreadable(name, &error),
                Ok(after) if after.shape == before.shape && same_values(model, original, name) => {
                    if after.dtype != before.dtype {
                        let message = format!(
                            "it is {:?}, in the original {:?}, with the same values",
                            after.dtype, before.dtype
                        );
                        self.add(Severity::Note, "element-type", name.to_owned(), message);
                    }
                }
                Ok(after) if (after.dtype, &after.shape) != (before.dtype, &before.shape) => {
                    let message = format!(
                        "it is {:?} {:?}, in the original {:?} {:?}",
                        after.dtype, after.shape, before.dtype, before.shape
                    );
                    self.add(Severity::Error, "shape", name.to_owned(), message);
                }
                Ok(after) if after.data != before.data => {
                    let at = after.data.iter().zip(before.data.iter()).position(|(x, y)| x != y);
                    let message = format!(
                        "it is not quantised and differs from the original at byte {}",
                        at.unwrap_or(0)
                    );
                    self.add(Severity::Warning, "differs", name.to_owned(), message);
                }
                Ok(_) => {}
            }
        }
    }

    /// A finding if a weight of floats has other values than an encoded one, rounded to its type.
    fn decoded(&mut self, original: &Model, encoded: &Encoded) {
        let name = encoded.name.as_str();
        let both = || -> Result<bool> {
            let before = encoded.decode(original)?;
            let after = self.model.file(name)?.floats(name)?;
            let round = |value: f32| match self.model.raw(name).map(|raw| raw.dtype) {
                Ok(Dtype::BF16) => bf16::from_f32(value).to_f32(),
                Ok(Dtype::F16) => f16::from_f32(value).to_f32(),
                _ => value,
            };
            let same = before.iter().zip(&after.values).all(|(&x, &y)| round(x) == y);
            Ok(same && after.shape == encoded.shape)
        };
        match both() {
            Ok(true) => {}
            Ok(false) => {
                let message =
                    format!("it differs from the original, which is {}", encoded.format());
                self.add(Severity::Error, "differs", name.to_owned(), message);
            }
            Err(error) => self.unreadable(name, &error),
        }
    }

    /// Findings for blocks that are not what the original rounds to. A weight may have been rounded
    /// twice if it has its tensor-level scale in common with another that readers join it with.
    fn misrounded(&mut self) {
        let groups = shared::groups(self.joined.iter().map(|(name, ..)| name.as_str()));
        for (name, bad, blocks) in std::mem::take(&mut self.misrounded) {
            let shares = groups.iter().any(|group| {
                let of = |at: &usize| self.joined[*at].0 == name;
                let Some(own) = group.iter().copied().find(of) else { return false };
                let same = |at: &usize| *at != own && self.joined[*at].1 == self.joined[own].1;
                group.iter().any(same)
            });
            let mut message = format!(
                "in {} of {} blocks, first block {} of row {}, a code is not the one to which the \
                 original rounds with the block's scale; the largest error is {:.1} times that of \
                 rounding",
                bad.blocks,
                bad.of,
                bad.first % blocks.max(1),
                bad.first / blocks.max(1),
                bad.worst
            );
            if shares && bad.worst <= TWICE {
                message += ", as it can be if it was rounded once more to share its tensor-level \
                            scale";
                self.add(Severity::Warning, "rounded-twice", name, message);
            } else {
                self.add(Severity::Error, "rounding", name, message);
            }
        }
    }

    /// Warnings for weights that readers join although their tensor-level scales differ.
    fn shared(&mut self) {
        if !self.layout.joins_weights() {
            return;
        }
        let joined = std::mem::take(&mut self.joined);
        for group in shared::groups(joined.iter().map(|(name, ..)| name.as_str())) {
            let members: Vec<(&str, GlobalScale)> =
                group.iter().map(|&at| (joined[at].0.as_str(), joined[at].1)).collect();
            let db = |at: usize, factor| match &joined[group[at]].2 {
                Some(measured) => measured.scaled_db(factor),
                None => shared::factor_db(factor),
            };
            if let Some(unshared) = Unshared::of(self.layout.convention(), &members, db) {
                let first = unshared.misread[0].weight.clone();
                self.add(Severity::Warning, "shared-scale", first, unshared.to_string());
            }
        }
    }

    fn weight(&mut self, part: &Parts) -> Result<WeightCheck> {
        let weight = load(self.model, self.layout, part)?;
        if let Some(global) = weight.global {
            self.joined.push((part.name.clone(), global, None));
        }
        let multiplier = weight.global.map_or(1.0, GlobalScale::multiplier);
        let (largest, zero_scales) = largest(&weight.blocks);
        let amax = largest * multiplier;
        if zero_scales > 0 {
            let message = format!("{zero_scales} blocks have scale 0 and codes that are not");
            self.add(Severity::Warning, "zero-scale", part.name.clone(), message);
        }
        if part.order == Order::AlongOutput {
            let message = "its blocks run along the output dimension, which no product can use";
            self.add(Severity::Warning, "blocks", part.name.clone(), message.into());
        }
        self.reciprocal(part, &weight, largest);
        let mut found = WeightCheck {
            name: part.name.clone(),
            format: part.format.name(),
            shape: weight.spec.shape.clone(),
            multiplier,
            amax,
            zero_scales,
            sqnr_db: None,
            misrounded_blocks: None,
            products: None,
        };
        let Some(original) = self.original else { return Ok(found) };
        let Some(counterpart) = Counterpart::of(original, &part.name) else {
            return Err(original.file(&part.name).err().unwrap_or_else(|| {
                CheckpointError::shape(&part.name, "a tensor of the original", "none")
            }));
        };
        let values = counterpart.values(original, &outline(self.model, part)?)?;
        self.values(part, &weight, &values, &mut found)?;
        Ok(found)
    }

    /// A tensor-level scale in the other convention.
    fn reciprocal(&mut self, part: &Parts, weight: &Weight, largest: f32) {
        let Some((global, as_is, inverted)) = reciprocal(weight, largest) else { return };
        let stored = global.stored(self.layout.convention());
        let (is, belongs) = match global {
            GlobalScale::Multiplier(_) => ("divisor", "multiplier"),
            GlobalScale::Divisor(_) => ("multiplier", "divisor"),
            GlobalScale::Largest(_) => ("divisor", "largest magnitude"),
        };
        let name = part.global.as_deref().unwrap_or(&part.name);
        let message = format!(
            "{stored:e} looks like a {is} where layout {} has a {belongs}: the largest weight would \
             be {as_is:e}, with the reciprocal {inverted:e}",
            self.layout
        );
        self.add(Severity::Error, "reciprocal", name.to_owned(), message);
    }

    /// The ratio against the original and, if it is low, its explanation; if it is not, every block,
    /// and products.
    fn values(
        &mut self,
        part: &Parts,
        weight: &Weight,
        before: &[f32],
        found: &mut WeightCheck,
    ) -> Result<()> {
        let cols = weight.spec.cols();
        let mut after = weight.dequantize()?;
        let folded = side::fold(self.model, &part.name, cols, &mut after)?;
        let measured = Measured::of(before, &after);
        if let Some((.., sums)) = self.joined.last_mut().filter(|(name, ..)| *name == part.name) {
            *sums = Some(measured);
        }
        let sqnr = measured.sqnr_db();
        found.sqnr_db = Some(sqnr);
        let name = part.name.clone();
        let moved =
            stated::modelopt_algorithm(self.model, module(&name)).is_some_and(side::moves_factors);
        if sqnr >= LEAST_SQNR_DB {
            let VerifyOptions { block_bound, seed } = self.options;
            // The codes differ from the original's if side data is part of the weight or factors
            // are moved, and blocks know one tensor-level scale only.
            if !folded && !moved && weight.experts.is_none() {
                let bad = misrounded(&weight.blocks, before, block_bound);
                found.misrounded_blocks = Some(bad.blocks);
                if bad.blocks > 0 {
                    let blocks = cols / part.format.block() as usize;
                    self.misrounded.push((name, bad, blocks));
                }
            }
            found.products = Some(product_noise(&weight.blocks, before, &after, seed)?);
            return Ok(());
        }
        let transforms = side::transforms(self.model);
        if !transforms.is_empty() {
            let message = format!(
                "{sqnr:.1} dB: transform_config rotates weights ({}), so that they are not those \
                 of the original and cannot be compared with them",
                transforms.join(", ")
            );
            self.add(Severity::Warning, "transform", name, message);
            found.sqnr_db = None;
            return Ok(());
        }
        if moved {
            let rescaled = side::rescaled(before, &after, cols);
            let db = Measured::of(before, &rescaled).sqnr_db();
            if db >= LEAST_SQNR_DB {
                let message = format!(
                    "{sqnr:.1} dB as it is, {db:.1} dB with factors for rows and columns, which \
                     AWQ moves into the layers before and after"
                );
                self.add(Severity::Warning, "moved-factors", name, message);
                found.sqnr_db = Some(db);
                return Ok(());
            }
        }
        let better = |other: &[f32]| {
            let other = Measured::of(before, other).fitted_db();
            (other > LEAST_SQNR_DB && other > measured.fitted_db() + CLEARLY_BETTER_DB)
                .then_some(other)
        };
        let block = part.format.block() as usize;
        if let Some(db) = better(&swapped(&after)) {
            let message = format!(
                "{sqnr:.1} dB as it is, {db:.1} dB with the element of lower index in the high \
                 nibble"
            );
            self.add(Severity::Error, "nibble-order", name, message);
        } else if let Some(db) = better(&split(&after, block)) {
            let message = format!(
                "{sqnr:.1} dB as it is, {db:.1} dB with low nibbles as the first half of each block"
            );
            self.add(Severity::Error, "nibble-order", name, message);
        } else if let Some(db) = reordered(weight)?.and_then(|values| better(&values)) {
            let message =
                format!("{sqnr:.1} dB as it is, {db:.1} dB with scales taken as 128x4 tiles");
            self.add(Severity::Error, "scale-order", name, message);
        } else if measured.fitted_db() > LEAST_SQNR_DB {
            let message = format!(
                "{sqnr:.1} dB; all values are {:e} times the original's: a wrong tensor-level scale?",
                1.0 / measured.fit()
            );
            self.add(Severity::Error, "factor", name, message);
        } else {
            let message =
                format!("{sqnr:.1} dB, less than {LEAST_SQNR_DB} dB: not the same weight");
            self.add(Severity::Error, "sqnr", name, message);
        }
        Ok(())
    }
}
