//! Verifies a checkpoint: its tensors, scales and conventions and, given the original, its values.
//!
//! Without the original, the checks find missing tensors, wrong types and shapes, scales that are
//! NaN, negative, or zero for a block with other codes, and tensor-level scales in the wrong
//! convention (from the magnitude of the weights). They cannot find a wrong order of nibbles or of
//! scales. With the original, each weight has a signal-to-noise ratio. If it is low, the known
//! mistakes are tried, and the one that explains it is named.

use std::collections::BTreeSet;
use std::fmt;

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout, e2m1, pack};
use rayon::prelude::*;
use serde::Serialize;

use super::configuration;
use super::error::CheckpointError;
use super::layout::{Layout, Parts};
use super::load::load;
use super::model::Model;
use super::orientation::{Orientation, transposed};
use super::products::{ProductNoise, product_noise};
use super::rounding::misrounded;
use super::save::Observer;
use super::shared::{self, Unshared};
use super::weight::{Blocks, GlobalScale, Weight};
use crate::error::{Error, Result};

/// A weight with a lower ratio against its original is wrong. NVFP4 of normal values has about
/// 20 dB, MXFP4 about 18 dB, and noise as large as the signal 0 dB.
pub const LEAST_SQNR_DB: f64 = 8.0;

/// Difference by which another interpretation must be better to be named as the explanation.
const CLEARLY_BETTER_DB: f64 = 6.0;

/// Plausible largest magnitudes of a tensor of weights.
const PLAUSIBLE: std::ops::RangeInclusive<f32> = 1e-6..=1e3;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The checkpoint is wrong, or a loader would refuse it.
    Error,
    /// It may be wrong.
    Warning,
}

/// A finding of the verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Kind, for programs: `missing`, `type`, `shape`, `scale`, `reciprocal`, `nibble-order`,
    /// `scale-order`, `factor`, `shared-scale`, `sqnr`, `rounding`, `differs`, `zero-scale`, `orphan`, `unlisted`,
    /// `configuration`, `unreadable`.
    pub kind: &'static str,
    /// The tensor, if it concerns one.
    pub tensor: Option<String>,
    /// Description.
    pub message: String,
}

/// The measurements of one weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightCheck {
    /// Name before it was quantised.
    pub name: String,
    /// The format.
    pub format: &'static str,
    /// Shape before it was quantised.
    pub shape: Vec<usize>,
    /// The multiplier of values besides block scales.
    pub multiplier: f32,
    /// Largest magnitude of the dequantised weight.
    pub amax: f32,
    /// Blocks with a scale of zero and codes that are not zero.
    pub zero_scales: usize,
    /// Signal-to-quantisation-noise ratio against the original, dB.
    pub sqnr_db: Option<f64>,
    /// Blocks of which a code is not the one to which the original rounds.
    pub misrounded_blocks: Option<usize>,
    /// The noise of products with it.
    pub products: Option<ProductNoise>,
}

/// What is measured against the original.
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// The report of a verification, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerifyReport {
    /// The checkpoint.
    pub path: String,
    /// Its layout.
    pub layout: Layout,
    /// The original, if it was compared with one.
    pub against: Option<String>,
    /// Whether no finding is an error.
    pub verified: bool,
    /// Whether the order of nibbles and scales was checked, which needs the original.
    pub order_checked: bool,
    /// All findings.
    pub findings: Vec<Finding>,
    /// Weights that could be read.
    pub weights: Vec<WeightCheck>,
    /// The worst ratio.
    pub least_sqnr_db: Option<f64>,
    /// The worst ratios of products.
    pub least_products: Option<ProductNoise>,
}

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
    let Some(layout) = Layout::detect(model) else {
        let what = "quantised weight in a known layout".to_owned();
        return Err(CheckpointError::Nothing { path: model.path().into(), what }.into());
    };
    let parts = layout.find(model);
    let (findings, joined) = (Vec::new(), Vec::new());
    let mut check = Check { model, original, options, layout, findings, joined };
    check.configuration(&parts);
    check.names(&parts);
    observer.begin(parts.iter().map(|part| check.bytes(part)).sum());
    let mut weights = Vec::new();
    for part in &parts {
        if observer.cancelled() {
            return Err(CheckpointError::Interrupted { path: model.path().into() }.into());
        }
        observer.tensor(&part.name);
        match check.weight(part) {
            Ok(found) => weights.push(found),
            Err(error) => check.unreadable(&part.name, &error),
        }
        observer.done(check.bytes(part));
        part.tensors().chain([part.name.as_str()]).for_each(|name| {
            [Some(model), original].into_iter().flatten().for_each(|model| model.release(name));
        });
    }
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

struct Check<'a> {
    model: &'a Model,
    original: Option<&'a Model>,
    options: VerifyOptions,
    layout: Layout,
    findings: Vec<Finding>,
    /// Weights with a tensor-level scale, and the sums over them if there is an original.
    joined: Vec<(String, GlobalScale, Option<Measured>)>,
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

    fn unreadable(&mut self, tensor: &str, error: &Error) {
        let kind = match error {
            Error::Checkpoint(CheckpointError::MissingTensor { .. }) => "missing",
            Error::Checkpoint(CheckpointError::Type { .. }) => "type",
            Error::Checkpoint(
                CheckpointError::Shape { .. } | CheckpointError::Orientation { .. },
            ) => "shape",
            Error::Checkpoint(CheckpointError::Scale { .. }) | Error::Scalar { .. } => "scale",
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
        };
        let stated = self.model.quantization_config().and_then(|x| x["quant_method"].as_str());
        if let Some(stated) = stated.filter(|stated| *stated != expected) {
            let message = format!(
                "config.json says quant_method `{stated}`, the tensors are {}'s",
                self.layout
            );
            self.add(Severity::Error, "configuration", None, message);
        }
        self.findings.extend(configuration::check(self.model, self.layout, parts));
    }

    /// Findings for missing tensors and for tensors that belong to no weight.
    fn names(&mut self, parts: &[Parts]) {
        for name in self.model.unlisted() {
            let message = "it is in a file, but not in the index".to_owned();
            self.add(Severity::Warning, "unlisted", name.clone(), message);
        }
        let pieces: BTreeSet<&str> = parts.iter().flat_map(Parts::tensors).collect();
        let weights: BTreeSet<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        let orphan = |name: &&str| {
            let ending = ["weight_scale", "weight_scale_2", "weight_global_scale", "_scales"];
            !pieces.contains(name) && ending.iter().any(|ending| name.ends_with(ending))
        };
        let model = self.model;
        for name in model.names().filter(orphan) {
            let message = "a scale whose weight is not there, or not 4 bits wide".to_owned();
            self.add(Severity::Warning, "orphan", name.to_owned(), message);
        }
        let Some(original) = self.original else { return };
        for name in original.names().filter(|name| !weights.contains(name)) {
            let (Ok(before), after) = (original.raw(name), model.raw(name)) else { continue };
            match after {
                Err(error) => self.unreadable(name, &error.into()),
                Ok(after) if (after.dtype, &after.shape) != (before.dtype, &before.shape) => {
                    let message = format!(
                        "it is {:?} {:?}, in the original {:?} {:?}",
                        after.dtype, after.shape, before.dtype, before.shape
                    );
                    self.add(Severity::Error, "shape", name.to_owned(), message);
                }
                Ok(after) if after.data != before.data => {
                    let at = after.data.iter().zip(before.data).position(|(x, y)| x != y);
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
        self.reciprocal(part, weight.global, largest);
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
        let file = original.file(&part.name)?;
        let before = file.floats(&part.name)?;
        let orientation = orientation(original, &part.name, &before.shape, &found.shape)?;
        if orientation.output_first(&before.shape) != found.shape {
            let order = match orientation {
                Orientation::OutputFirst => "",
                Orientation::InputFirst => " with the input dimension first",
            };
            let shape = orientation.output_first(&found.shape);
            let required = format!("{shape:?}, that of the quantised weight{order}");
            return Err(file.wrong_shape(&part.name, required, &before.shape).into());
        }
        let values = match (orientation, before.shape.as_slice()) {
            (Orientation::InputFirst, &[.., rows, cols]) => {
                transposed(&part.name, &before.values, [rows, cols])?
            }
            _ => before.values,
        };
        self.values(part, &weight, &values, &mut found)?;
        Ok(found)
    }

    /// A divisor read as a multiplier makes weights of 10^6 and more out of ordinary ones.
    fn reciprocal(&mut self, part: &Parts, global: Option<GlobalScale>, largest: f32) {
        let Some(global) = global else { return };
        let (multiplier, stored) = (global.multiplier(), global.stored(self.layout.convention()));
        let (as_is, inverted) = (largest * multiplier, largest / multiplier);
        if largest == 0.0 || PLAUSIBLE.contains(&as_is) || !PLAUSIBLE.contains(&inverted) {
            return;
        }
        let (is, belongs) = match global {
            GlobalScale::Multiplier(_) => ("divisor", "multiplier"),
            GlobalScale::Divisor(_) => ("multiplier", "divisor"),
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
        let after = weight.blocks.dequantize()?;
        let measured = Measured::of(before, &after);
        if let Some((.., sums)) = self.joined.last_mut().filter(|(name, ..)| *name == part.name) {
            *sums = Some(measured);
        }
        let sqnr = measured.sqnr_db();
        found.sqnr_db = Some(sqnr);
        let name = part.name.clone();
        if sqnr >= LEAST_SQNR_DB {
            let VerifyOptions { block_bound, seed } = self.options;
            let bad = misrounded(&weight.blocks, before, block_bound);
            found.misrounded_blocks = Some(bad.blocks);
            if bad.blocks > 0 {
                let blocks = weight.spec.cols() / part.format.block() as usize;
                let message = format!(
                    "in {} of {} blocks, first block {} of row {}, a code is not the one to which \
                     the original rounds with the block's scale; the largest error is {:.1} times \
                     that of rounding",
                    bad.blocks,
                    bad.of,
                    bad.first % blocks.max(1),
                    bad.first / blocks.max(1),
                    bad.worst
                );
                self.add(Severity::Error, "rounding", name, message);
            }
            found.products = Some(product_noise(&weight.blocks, before, &after, seed)?);
            return Ok(());
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

/// The order in which the original stores a weight. If no other tensor determines it, the shape of
/// the quantised weight does, unless it is square.
fn orientation(
    original: &Model,
    name: &str,
    before: &[usize],
    quantised: &[usize],
) -> Result<Orientation> {
    let fits = |orientation: &Orientation| orientation.output_first(before) == quantised;
    let both = [Orientation::OutputFirst, Orientation::InputFirst];
    match (Orientation::of(original, name, before), both.map(|order| fits(&order))) {
        (Err(_), [true, false]) => Ok(Orientation::OutputFirst),
        (Err(_), [false, true]) => Ok(Orientation::InputFirst),
        (found, _) => Ok(found?),
    }
}

/// Sums over two versions of a tensor.
#[derive(Clone, Copy)]
struct Measured {
    before: f64,
    after: f64,
    product: f64,
    noise: f64,
}

impl Measured {
    fn of(before: &[f32], after: &[f32]) -> Self {
        const CHUNK: usize = 1 << 16;
        let sums = |(before, after): (&[f32], &[f32])| {
            before.iter().zip(after).fold([0f64; 4], |sums, (&x, &y)| {
                let (x, y) = (f64::from(x), f64::from(y));
                let d = x - y;
                [sums[0] + x * x, sums[1] + y * y, sums[2] + x * y, sums[3] + d * d]
            })
        };
        // Collected in order, so that the result does not depend on the threads.
        let parts: Vec<[f64; 4]> =
            before.par_chunks(CHUNK).zip(after.par_chunks(CHUNK)).map(sums).collect();
        let [before, after, product, noise] = parts
            .iter()
            .fold([0f64; 4], |sums, part| std::array::from_fn(|at| sums[at] + part[at]));
        Self { before, after, product, noise }
    }

    fn sqnr_db(&self) -> f64 {
        db(self.before, self.noise)
    }

    /// The ratio with the later version multiplied by a factor.
    fn scaled_db(&self, factor: f64) -> f64 {
        db(self.before, self.before - factor * (2.0 * self.product - factor * self.after))
    }

    /// The factor that brings the later version nearest to the earlier one.
    fn fit(&self) -> f64 {
        if self.after > 0.0 { self.product / self.after } else { 1.0 }
    }

    /// The ratio with that factor.
    fn fitted_db(&self) -> f64 {
        db(self.before, self.before - self.product * self.fit())
    }
}

/// 10 log10 of a ratio; for equal tensors 200, because JSON has no infinity.
pub(super) fn db(signal: f64, noise: f64) -> f64 {
    const EXACT: f64 = 200.0;
    if noise <= 0.0 {
        EXACT
    } else if signal <= 0.0 {
        -EXACT
    } else {
        (10.0 * (signal / noise).log10()).clamp(-EXACT, EXACT)
    }
}

/// The codes with the two elements of each byte exchanged.
fn swapped(values: &[f32]) -> Vec<f32> {
    values.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect()
}

/// The codes with the low nibbles first, then the high nibbles, block by block.
fn split(values: &[f32], block: usize) -> Vec<f32> {
    let order = |half: usize| {
        move |block: &[f32]| -> Vec<f32> { block.iter().skip(half).step_by(2).copied().collect() }
    };
    values.chunks_exact(block).flat_map(|x| [order(0)(x), order(1)(x)].concat()).collect()
}

/// The values if the scales, which were read as linear, were 128x4 tiles; `None` if the sizes do
/// not fit.
fn reordered(weight: &Weight) -> Result<Option<Vec<f32>>> {
    let (blocks, dims) = (&weight.blocks, weight.blocks.dims());
    let layout = ScaleLayout::Blocked128x4;
    let kblocks = dims.cols() / weight.spec.format.block() as usize;
    if dims.batch() != 1 || layout.bytes(dims.rows(), kblocks) != Ok(blocks.scales().len()) {
        return Ok(None);
    }
    let multiplier = weight.global.map_or(1.0, GlobalScale::multiplier);
    let (codes, scales) = (blocks.codes().to_vec(), blocks.scales().to_vec());
    let name = &weight.spec.name;
    let blocks = Blocks::new(weight.spec.format, name, dims, layout, codes, scales, multiplier)?;
    Ok(Some(blocks.dequantize()?))
}

/// The largest magnitude before the tensor-level scale, and the number of blocks with scale 0 and
/// other codes.
fn largest(blocks: &Blocks) -> (f32, usize) {
    fn of<F: BlockFormat>(codes: &[u8], scales: &[u8]) -> (f32, usize) {
        let blocks = codes.par_chunks_exact(F::BLOCK_BYTES).zip(scales);
        let each = blocks.map(|(codes, &scale)| {
            let code = codes.iter().fold(0, |max, &byte| {
                let (low, high) = pack::unpair(byte);
                max.max(low & 7).max(high & 7)
            });
            let scale = F::decode_scale(scale);
            (e2m1::decode(code) * scale, usize::from(scale == 0.0 && code > 0))
        });
        each.reduce(|| (0.0, 0), |x, y| (x.0.max(y.0), x.1 + y.1))
    }
    match blocks.format() {
        Format::Nvfp4 => of::<Nvfp4>(blocks.codes(), blocks.scales()),
        Format::Mxfp4 => of::<Mxfp4>(blocks.codes(), blocks.scales()),
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.weights.iter().map(|weight| weight.name.len()).max().unwrap_or(0);
        for weight in &self.weights {
            let WeightCheck { name, format, amax, .. } = weight;
            write!(f, "{name:width$}  {format}  amax {amax:<12.6e}")?;
            if let Some(db) = weight.sqnr_db {
                write!(f, "  SQNR {db:.2} dB")?;
            }
            match weight.products {
                Some(ProductNoise { weight_only_db, fp8_db, fp4_db }) => writeln!(
                    f,
                    "  products {weight_only_db:.2} w4a16, {fp8_db:.2} w4a8, {fp4_db:.2} w4a4"
                )?,
                None => writeln!(f)?,
            }
        }
        if self.least_products.is_some() {
            writeln!(
                f,
                "products: dB, with standard normal activations (as they are, in FP8, in FP4)"
            )?;
        }
        for finding in &self.findings {
            let severity = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let tensor = finding.tensor.as_deref().unwrap_or("-");
            writeln!(f, "{severity}: {}: {tensor}: {}", finding.kind, finding.message)?;
        }
        if !self.order_checked {
            writeln!(
                f,
                "order of nibbles and scales: not checked, which takes --against ORIGINAL"
            )?;
        }
        let verdict = if self.verified { "ok" } else { "WRONG" };
        write!(f, "{verdict}: {} weights, layout {}", self.weights.len(), self.layout)?;
        match self.least_sqnr_db {
            Some(db) => writeln!(f, ", SQNR at least {db:.2} dB"),
            None => writeln!(f),
        }
    }
}
