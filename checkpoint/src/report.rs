//! The report of a verification.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Serialize;

use super::parts::Layout;
use super::products::ProductNoise;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The checkpoint is wrong, or a loader would refuse it.
    Error,
    /// The checkpoint may be wrong.
    Warning,
    /// A difference that changes nothing.
    Note,
}

/// A finding of the verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Kind, for programs: `missing`, `type`, `shape`, `scale`, `reciprocal`, `nibble-order`,
    /// `scale-order`, `factor`, `shared-scale`, `sqnr`, `rounding`, `rounded-twice`, `differs`,
    /// `blocks`, `element-type`, `moved-factors`, `transform`, `unread`, `zero-scale`, `orphan`, `unlisted`,
    /// `configuration`, `unreadable`.
    pub kind: &'static str,
    /// The tensor, if it concerns one.
    pub tensor: Option<String>,
    /// Description.
    pub message: String,
}

/// Findings about the configuration, each once for all layers that it is said of alike.
#[derive(Default)]
pub(super) struct Once {
    pub all: Vec<Finding>,
    said: HashSet<(Option<String>, String)>,
}

impl Once {
    /// Adds a finding, unless the same was said of the same tensor.
    pub fn add(&mut self, severity: Severity, tensor: Option<&str>, message: String) {
        let tensor = tensor.map(str::to_owned);
        if self.said.insert((tensor.clone(), message.clone())) {
            self.all.push(Finding { severity, kind: "configuration", tensor, message });
        }
    }
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

/// A name from a file on one line of text.
pub(super) fn shown(name: &str) -> Cow<'_, str> {
    if !name.contains(char::is_control) {
        return name.into();
    }
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    name.chars().map(escaped).collect()
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.weights.iter().map(|weight| weight.name.len()).max().unwrap_or(0);
        for weight in &self.weights {
            let WeightCheck { format, amax, .. } = weight;
            let name = shown(&weight.name);
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
                Severity::Note => "note",
            };
            let tensor = shown(finding.tensor.as_deref().unwrap_or("-"));
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
