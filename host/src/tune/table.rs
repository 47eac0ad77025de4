//! The table itself: problems, the fastest kernel measured for each, and the text of a file.

use std::collections::HashMap;
use std::fmt::Write;

use fp4_formats::gemm::split::UnknownSplit;
use fp4_formats::gemm::{Adding, Split};
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, HalfType, ScaleLayout};
use serde::{Deserialize, Serialize};

use super::{DeviceKey, ResultKind, TuneError, TuneGroups, TuneProblem, VERSION};
use crate::plan::ActivationKind;
use crate::shape::GemmShape;

/// The fastest of the candidates that were measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Kernel by name.
    pub kernel: String,
    /// The split of K.
    pub split: Split,
    /// Median time of a product, nanoseconds; at least 1.
    pub median_ns: u64,
}

/// The measurements of one device with one driver and one set of kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    device: DeviceKey,
    entries: HashMap<TuneProblem, Measured>,
}

/// The version alone, to be read before anything that may have changed.
#[derive(Deserialize)]
struct Head {
    version: u64,
}

/// A whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(rename = "version")]
    _version: u64,
    device: DeviceKey,
    entries: Vec<Line>,
}

/// An entry as a file has it, on its own line.
#[derive(Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(deny_unknown_fields)]
struct Line {
    format: String,
    activations: String,
    /// Layout of the activations' scales, where they have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scales: Option<String>,
    output: String,
    /// Layout of the result's scales, where it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output_scales: Option<String>,
    /// Whether two matrices of weights make the result; left out where it is one.
    #[serde(default, skip_serializing_if = "is_false")]
    gated: bool,
    /// The way of adding products of e4m3; left out where it is the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adding: Option<String>,
    /// Groups of a grouped product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<usize>,
    /// Whether each of them has its own matrix; left out where they share one.
    #[serde(default, skip_serializing_if = "is_false")]
    slots: bool,
    n: usize,
    k: usize,
    l: usize,
    m: usize,
    kernel: String,
    split: String,
    median_ns: u64,
}

/// Whether a field is left out.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

/// Name of activations in the weights' format.
const BLOCKS: &str = "fp4";

/// The layout of this name, or what is wrong with it.
fn layout(name: &str) -> Result<ScaleLayout, String> {
    let known = ScaleLayout::ALL.into_iter().find(|layout| layout.name() == name);
    known.ok_or_else(|| format!("unknown layout of scales `{name}`"))
}

impl Line {
    fn new(problem: &TuneProblem, measured: &Measured) -> Self {
        let TuneProblem { format, activations, output, gated, shape, groups, adding } = *problem;
        let (activations, scales) = match activations {
            ActivationKind::Blocks { layout, .. } => (BLOCKS, Some(layout.name().to_owned())),
            ActivationKind::Halves(_) | ActivationKind::Fp8(_) => (activations.name(), None),
        };
        let output_scales = match output {
            ResultKind::Floats(_) => None,
            ResultKind::Blocks(_, layout) => Some(layout.name().to_owned()),
        };
        let GemmShape { m, n, k, l } = shape;
        let Measured { kernel, split, median_ns } = measured.clone();
        Self {
            format: format.name().to_owned(),
            activations: activations.to_owned(),
            scales,
            output: output.name().to_owned(),
            output_scales,
            gated,
            adding: (adding != Adding::default()).then(|| adding.name().to_owned()),
            groups: groups.map(|groups| groups.count),
            slots: groups.is_some_and(|groups| groups.slots),
            n,
            k,
            l,
            m,
            kernel,
            split: split.to_string(),
            median_ns,
        }
    }

    /// The entry, or what is wrong with it.
    fn check(self) -> Result<(TuneProblem, Measured), String> {
        let Self { format, activations, scales, output, output_scales, .. } = self;
        let Self { gated, adding, groups, slots, n, k, l, m, kernel, split, median_ns, .. } = self;
        let unknown = |field: &str, name: &str| format!("unknown {field} `{name}`");
        let known = |name: &str| Format::ALL.into_iter().find(|known| known.name() == name);
        let format = known(&format).ok_or_else(|| unknown("format", &format))?;
        let activations = match (activations.as_str(), scales) {
            (BLOCKS, Some(name)) => ActivationKind::Blocks { format, layout: layout(&name)? },
            (BLOCKS, None) => return Err(format!("{BLOCKS} activations without `scales`")),
            (name, None) => {
                let halves = [HalfType::F16, HalfType::Bf16];
                let bytes = [None, Some(HalfType::F16), Some(HalfType::Bf16)];
                let kinds = halves.map(ActivationKind::Halves).into_iter();
                let mut kinds = kinds.chain(bytes.map(ActivationKind::Fp8));
                let kind = kinds.find(|kind| kind.name() == name);
                kind.ok_or_else(|| unknown("activations", name))?
            }
            (name, Some(_)) => return Err(format!("{name} activations with `scales`")),
        };
        let output = match (FloatType::by_name(&output), known(&output), output_scales) {
            (Some(dtype), _, None) => ResultKind::Floats(dtype),
            (Some(_), _, Some(_)) => return Err(format!("output {output} with `output_scales`")),
            (None, Some(format), Some(name)) => ResultKind::Blocks(format, layout(&name)?),
            (None, Some(_), None) => {
                return Err(format!("output {output} without `output_scales`"));
            }
            (None, None, _) => return Err(unknown("output", &output)),
        };
        let adding = match adding {
            None => Adding::default(),
            Some(name) => {
                let found = Adding::ALL.into_iter().find(|adding| adding.name() == name);
                found.ok_or_else(|| unknown("adding", &name))?
            }
        };
        for (field, is_zero) in [
            ("m", m == 0),
            ("n", n == 0),
            ("k", k == 0),
            ("l", l == 0),
            ("median_ns", median_ns == 0),
            ("groups", groups == Some(0)),
        ] {
            if is_zero {
                return Err(format!("`{field}` is 0"));
            }
        }
        let shape = GemmShape { m, n, k, l };
        let required = match (groups, slots) {
            (None, true) => return Err("`slots` without `groups`".into()),
            (None, false) => l,
            (Some(_), false) => 1,
            (Some(count), true) => count,
        };
        if l != required {
            return Err(format!("`l` is {l} for groups that need {required}"));
        }
        let groups = groups.map(|count| TuneGroups { count, slots });
        let problem = TuneProblem { format, activations, output, gated, shape, groups, adding };
        let split = split.parse().map_err(|error: UnknownSplit| error.to_string())?;
        Ok((problem, Measured { kernel, split, median_ns }))
    }
}

impl Table {
    /// A table without entries.
    #[must_use]
    pub fn new(device: DeviceKey) -> Self {
        Self { device, entries: HashMap::new() }
    }

    /// Reads a table from its text; errors call it `origin`.
    ///
    /// # Errors
    /// [`TuneError::Malformed`] for text that is no table, values out of range and two entries
    /// for one problem; [`TuneError::Version`].
    pub fn parse(text: &str, origin: &str) -> Result<Self, TuneError> {
        let malformed = |reason| TuneError::Malformed { origin: origin.into(), reason };
        let Head { version } =
            serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
        if version != VERSION {
            return Err(TuneError::Version { origin: origin.into(), found: version });
        }
        let Text { device, entries: lines, .. } =
            serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
        let mut entries = HashMap::with_capacity(lines.len());
        for (index, line) in lines.into_iter().enumerate() {
            let numbered = |reason| malformed(format!("entry {}: {reason}", index + 1));
            let (problem, measured) = line.check().map_err(numbered)?;
            if entries.insert(problem, measured).is_some() {
                return Err(numbered(format!("a second one for {problem}")));
            }
        }
        Ok(Self { device, entries })
    }

    /// The text that [`parse`](Self::parse) takes: an entry per line, sorted.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines: Vec<Line> =
            self.entries.iter().map(|(problem, measured)| Line::new(problem, measured)).collect();
        lines.sort();
        // Strings and whole numbers: nothing of it can fail to be written.
        let json = |line: &Line| serde_json::to_string(line).unwrap_or_default();
        let device = serde_json::to_string_pretty(&self.device).unwrap_or_default();
        let mut text = format!("{{\n  \"version\": {VERSION},\n  \"device\": ");
        text += &device.replace('\n', "\n  ");
        text += ",\n  \"entries\": [";
        for (index, line) in lines.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let _ = write!(text, "{separator}\n    {}", json(line));
        }
        text += if lines.is_empty() { "]\n}\n" } else { "\n  ]\n}\n" };
        text
    }

    /// Returns the measured device.
    #[must_use]
    pub fn device(&self) -> &DeviceKey {
        &self.device
    }

    /// Checks that it was measured on `device`; errors call it `origin`.
    ///
    /// # Errors
    /// [`TuneError::Elsewhere`] with the first field that differs.
    pub fn check_device(&self, device: &DeviceKey, origin: &str) -> Result<(), TuneError> {
        match device.difference(&self.device) {
            None => Ok(()),
            Some((field, required, found)) => {
                Err(TuneError::Elsewhere { origin: origin.into(), field, required, found })
            }
        }
    }

    /// Problems in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = (&TuneProblem, &Measured)> {
        self.entries.iter()
    }

    /// Returns the measurement of exactly this problem.
    #[must_use]
    pub fn get(&self, problem: &TuneProblem) -> Option<&Measured> {
        self.entries.get(problem)
    }

    /// Puts in what was measured for a problem, in place of what was there.
    pub fn insert(&mut self, problem: TuneProblem, measured: Measured) {
        self.entries.insert(problem, measured);
    }

    /// Takes over all entries of a table of the same device. If both have one, the `newer` wins.
    /// Errors call it `origin`.
    ///
    /// # Errors
    /// [`TuneError::Elsewhere`]; nothing is taken over then.
    pub fn merge(&mut self, newer: Self, origin: &str) -> Result<(), TuneError> {
        newer.check_device(&self.device, origin)?;
        self.entries.extend(newer.entries);
        Ok(())
    }
}
