//! Checkpoints that exporters wrote, in tests/data/exporters: what is in them, the values of their
//! weights, and what conversions make of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::support::{Folder, is_general};
use fp4_formats::ScaleLayout;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    Contents, Inputs, Layout, Model, ModelOptions, SaveOptions, Severity, Weight, convert_model,
    floats, inspect, load, pattern, quantize_model, refuse_changed, verify,
};
use serde::Deserialize;

/// `expected.json`, which was computed from the exporter's file in Python.
#[derive(Deserialize)]
struct Expected {
    /// Absent if its names are those of no original here.
    original: Option<String>,
    inputs: String,
    kv_cache: Option<String>,
    others: BTreeMap<String, String>,
    side_data: Vec<String>,
    transforms: Vec<String>,
    weights: BTreeMap<String, ExpectedWeight>,
}

#[derive(Deserialize)]
struct ExpectedWeight {
    format: String,
    shape: Vec<usize>,
    sum: f64,
    squares: f64,
    moment: f64,
    sqnr_db: Option<f64>,
}

/// The sum of the values, of their squares, and of their products with the indices modulo 1021.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: usize,
    sum: f64,
    squares: f64,
    moment: f64,
}

impl Sums {
    fn of(values: &[f32]) -> Self {
        let mut sums = Self { count: values.len(), ..Self::default() };
        for (at, &value) in values.iter().enumerate() {
            let value = f64::from(value);
            sums.sum += value;
            sums.squares += value * value;
            sums.moment += value * (at % 1021) as f64;
        }
        sums
    }

    fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
            moment: self.moment + other.moment,
        }
    }
}

/// Each value may be off by its rounding to f32, in the worst case all in one direction.
#[track_caller]
fn assert_near(what: &str, actual: f64, expected: f64, magnitude: f64) {
    let slack = 2f64.powi(-22) * magnitude;
    assert!((actual - expected).abs() <= slack, "{what}: {actual}, required {expected}");
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/exporters")
}

/// Every export with what is expected of it.
fn exports() -> Vec<(String, Model, Expected)> {
    let mut exports = Vec::new();
    for entry in std::fs::read_dir(data()).expect("a folder").flatten() {
        let Ok(text) = std::fs::read(entry.path().join("expected.json")) else { continue };
        let expected = serde_json::from_slice(&text).expect("JSON as above");
        let model = Model::open(entry.path()).expect("a model");
        exports.push((entry.file_name().to_string_lossy().into_owned(), model, expected));
    }
    assert!(exports.len() >= 30, "{} exports", exports.len());
    exports
}

/// Weights by name, decoded.
fn weights(model: &Model) -> Vec<(Weight, Vec<f32>)> {
    let layout = Layout::detect(model).expect("quantised");
    let parts = layout.find(model);
    let decoded = parts.iter().map(|part| {
        let weight = load(model, layout, part).unwrap_or_else(|error| panic!("{error}"));
        let values = weight.dequantize().expect("small");
        (weight, values)
    });
    decoded.collect()
}

fn serialized<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).expect("JSON").as_str().expect("a name").to_owned()
}

/// The way in which all weights' inputs are quantised.
fn inputs(contents: &Contents) -> String {
    let ways: BTreeSet<Inputs> = contents.weights.iter().map(|weight| weight.inputs).collect();
    assert_eq!(ways.len(), 1, "{ways:?}");
    ways.first().map(serialized).expect("a weight")
}

/// Weights that other tensors or rotations change are refused where products are made of them alone.
#[test]
fn changed_weights_are_refused() {
    let mut refused = 0;
    for (name, model, expected) in exports() {
        let found = refuse_changed(&model).err().map(|error| error.to_string());
        match expected.side_data.iter().chain(&expected.transforms).next() {
            None => assert_eq!(found, None, "{name}"),
            Some(cause) => {
                assert!(
                    found.as_ref().is_some_and(|found| found.contains(cause)),
                    "{name}: {found:?}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused >= 3, "{refused}");
}

/// Layers in FP8 and packed integers beside those in four bits are near the originals in floats.
#[test]
fn other_layers_are_read_as_floats() {
    let mut read = 0;
    for (name, model, expected) in exports() {
        for module in expected.others.keys() {
            let original = expected.original.as_deref().expect("a mixture has one");
            let original = Model::open(data().join(original)).expect("a model");
            let weight = format!("{module}.weight");
            let found = floats(&model, &weight).expect("floats");
            let right = floats(&original, &weight).expect("floats");
            assert_eq!(found.shape, right.shape, "{name} {weight}");
            let pairs = found.values.iter().zip(&right.values);
            let noise: f32 = pairs.map(|(found, right)| (found - right).powi(2)).sum();
            let signal: f32 = right.values.iter().map(|value| value.powi(2)).sum();
            assert!(noise < 0.02 * signal, "{name} {weight}: {noise} of {signal}");
            read += 1;
        }
        assert!(floats(&model, "model.missing.weight").is_err());
    }
    assert!(read >= 4, "{read}");
}

#[test]
fn contents_are_listed_truthfully() {
    for (name, model, expected) in exports() {
        let contents = inspect(&model).expect("listed");
        let listed: BTreeMap<&str, &str> =
            contents.weights.iter().map(|weight| (weight.name.as_str(), weight.format)).collect();
        let wanted: BTreeMap<&str, &str> = expected
            .weights
            .iter()
            .map(|(name, weight)| (name.as_str(), weight.format.as_str()))
            .collect();
        assert_eq!(listed, wanted, "{name}");
        for weight in &contents.weights {
            assert_eq!(weight.problem, None, "{name}");
            let shape = &expected.weights[&weight.name].shape;
            assert_eq!(weight.shape.as_ref(), Some(shape), "{name} {}", weight.name);
        }
        assert_eq!(inputs(&contents), expected.inputs, "{name}");
        let others: BTreeMap<String, String> = contents
            .others
            .iter()
            .map(|other| (other.module.clone(), serialized(&other.format)))
            .collect();
        assert_eq!(others, expected.others, "{name}");
        let kv_cache = contents.kv_cache.map(|kv| kv.to_lowercase());
        assert_eq!(kv_cache, expected.kv_cache, "{name}");
        assert_eq!(contents.side_data, expected.side_data, "{name}");
        assert_eq!(contents.transforms, expected.transforms, "{name}");
    }
}

#[test]
fn values_are_those_that_the_exporter_wrote() {
    for (name, model, expected) in exports() {
        for (weight, values) in weights(&model) {
            let wanted = &expected.weights[&weight.spec.name];
            let what = format!("{name} {}", weight.spec.name);
            let sums = Sums::of(&values);
            // By Cauchy and Schwarz, the largest that the sum of magnitudes can be.
            let magnitudes = (sums.squares * sums.count as f64).sqrt();
            assert_near(&what, sums.sum, wanted.sum, magnitudes);
            assert_near(&what, sums.squares, wanted.squares, 2.0 * wanted.squares);
            assert_near(&what, sums.moment, wanted.moment, 1021.0 * magnitudes);
        }
    }
}

#[test]
fn ratios_to_the_originals_are_those_of_the_exporter() {
    let mut compared = 0;
    for (name, model, expected) in exports() {
        let open = |original| Model::open(data().join(original)).expect("a model");
        let original = expected.original.as_ref().map(open);
        let report = verify(&model, original.as_ref(), &mut ()).expect("verifiable");
        let ratios: BTreeMap<&str, Option<f64>> =
            report.weights.iter().map(|weight| (weight.name.as_str(), weight.sqnr_db)).collect();
        for (weight, wanted) in &expected.weights {
            let Some(wanted) = wanted.sqnr_db else { continue };
            let ratio = ratios[weight.as_str()];
            assert!(
                ratio.is_some_and(|db| (db - wanted).abs() < 0.01),
                "{name} {weight}: {ratio:?}, required {wanted}: {report}"
            );
            compared += 1;
        }
        if !expected.transforms.is_empty() {
            assert!(report.findings.iter().any(|finding| finding.kind == "transform"), "{name}");
        } else if expected.others.is_empty() {
            assert!(report.verified, "{name}: {report}");
        }
    }
    assert!(compared > 150, "{compared}");
}

/// A conversion that must end with an error: export, target or `*`, part of the message.
fn refusals() -> Vec<[String; 3]> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/exporters/refusals.tsv");
    let text = std::fs::read_to_string(path).expect("a file");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<String> = line.split('\t').map(str::to_owned).collect();
            columns.try_into().expect("three columns")
        })
        .collect()
}

#[test]
fn conversions_keep_everything_or_name_it() {
    let refusals = refusals();
    let folder = Folder::new("golden-conversions");
    let mut converted = 0;
    for (name, model, expected) in exports() {
        for layout in Layout::ALL.into_iter().filter(is_general) {
            let what = format!("{name} to {layout}");
            let out = folder.file(&what);
            let mut options = SaveOptions::new(layout);
            if layout == Layout::TorchAo {
                options.scales = ScaleLayout::Blocked128x4;
            }
            let refusal = refusals.iter().find(|[source, target, _]| {
                pattern::matches(source, &name) && ["*", layout.name()].contains(&target.as_str())
            });
            let report = match (convert_model(&model, None, &options, &out, &mut ()), refusal) {
                (Ok(report), None) => report,
                (Ok(_), Some([.., cause])) => panic!("{what} ought to be refused, for {cause}"),
                (Err(error), Some([.., cause])) => {
                    let message = error.to_string();
                    assert!(message.contains(cause), "{what}: {message}, without {cause}");
                    assert!(!out.exists(), "{what}: an output in spite of an error");
                    continue;
                }
                (Err(error), None) => panic!("{what}: {error}"),
            };
            converted += 1;
            let notes = report.notes.join("; ");
            let written = Model::open(&out).expect("a model");
            let report = verify(&written, None, &mut ()).expect("verifiable");
            // Conversions that do not share tensor-level scales say so as often as they verify.
            let errors = report.findings.iter().filter(|finding| {
                finding.severity == Severity::Error && finding.kind != "shared-scale"
            });
            assert_eq!(errors.count(), 0, "{what}: {report}");

            // Experts are taken apart or remain together, so only sums over all are the same. Embeddings in 4 bits,
            // as MLX has them, become floats.
            let all = |model: &Model| {
                weights(model)
                    .iter()
                    .filter(|(weight, _)| !weight.spec.name.contains("embed_tokens"))
                    .fold(Sums::default(), |sums, (_, values)| sums.and(Sums::of(values)))
            };
            let (before, after) = (all(&model), all(&written));
            assert_eq!(after.count, before.count, "{what}");
            let magnitudes = (before.squares * before.count as f64).sqrt();
            assert_near(&what, after.sum, before.sum, magnitudes);
            assert_near(&what, after.squares, before.squares, 2.0 * before.squares);

            let contents = inspect(&written).expect("listed");
            if inputs(&contents) != expected.inputs {
                assert!(notes.contains("inputs"), "{what}: {}, {notes}", inputs(&contents));
            }
            let kv_cache = contents.kv_cache.map(|kv| kv.to_lowercase());
            assert_eq!(kv_cache, expected.kv_cache, "{what}");
            assert_eq!(contents.others.len(), expected.others.len(), "{what}");
            assert_eq!(contents.side_data, expected.side_data, "{what}");
            assert_eq!(contents.transforms, expected.transforms, "{what}");
            everything_else_is_there(&what, &model, &written);
        }
    }
    assert!(converted > 60, "{converted}");
}

/// Every tensor that is no part of a quantised weight.
fn everything_else_is_there(what: &str, before: &Model, after: &Model) {
    let layout = Layout::detect(before).expect("quantised");
    let parts = layout.find(before);
    let pieces: BTreeSet<&str> = parts.iter().flat_map(|part| part.tensors()).collect();
    for name in before.names().filter(|name| !pieces.contains(name)) {
        let tensor = before.raw(name).expect("listed");
        let kv = [(".k_proj.k_scale", ".k_scale"), (".v_proj.v_scale", ".v_scale")];
        let renamed = kv.iter().flat_map(|&(modelopt, compressed_tensors)| {
            let there = name.strip_suffix(modelopt).map(|of| format!("{of}{compressed_tensors}"));
            let of = name.strip_suffix(compressed_tensors);
            [there, of.map(|of| format!("{of}{modelopt}"))].into_iter().flatten()
        });
        let names: Vec<String> = std::iter::once(name.to_owned()).chain(renamed).collect();
        let there = names.iter().find(|name| after.contains(name));
        let apart = name
            .strip_suffix("_proj_bias")
            .and_then(|name| Some(name.rsplit_once('.')?.0))
            .is_some_and(|experts| after.names().any(|name| name.starts_with(experts)));
        match there {
            // Scalars may change their type, with the same value.
            Some(_) if tensor.shape.iter().product::<usize>() == 1 => {}
            Some(name) => {
                let copy = after.raw(name).expect("listed");
                assert!(copy.data == tensor.data, "{what}: {name} differs");
            }
            None => assert!(apart, "{what}: {name} is not there"),
        }
    }
}

/// Quantising a model gives the exporters' bytes. compressed-tensors rounds a sixth of a block's
/// largest magnitude to bf16 in NVFP4, which the recipe does not: its divisors are the same, and few
/// block scales are neighbours.
#[test]
fn exporters_bytes_are_reproduced() {
    let original = Model::open(data().join("original-llama")).expect("a model");
    let folder = Folder::new("golden-bytes");
    for (export, format, layout, recipe) in [
        ("modelopt-nvfp4-llama", Format::Nvfp4, Layout::ModelOpt, "modelopt"),
        ("modelopt-mxfp4-llama", Format::Mxfp4, Layout::ModelOpt, "modelopt"),
        (
            "llmcompressor-mxfp4-llama",
            Format::Mxfp4,
            Layout::CompressedTensors,
            "compressed-tensors",
        ),
        (
            "llmcompressor-nvfp4-llama",
            Format::Nvfp4,
            Layout::CompressedTensors,
            "compressed-tensors",
        ),
    ] {
        let expected = Model::open(data().join(export)).expect("a model");
        let recipe = recipe_by_name(format, recipe).expect("known");
        let out = folder.file(export);
        let options = ModelOptions::new(recipe, layout);
        let report = quantize_model(&original, &options, &out, None, &mut ()).expect("quantised");
        assert_eq!(report.quantized.len(), 7, "{report}");
        let model = Model::open(&out).expect("a checkpoint");
        let (mut scales, mut neighbours) = (0, 0);
        for entry in model.entries() {
            let [got, want] =
                [&model, &expected].map(|model| model.raw(&entry.name).expect("there"));
            let in_bf16 = export == "llmcompressor-nvfp4-llama";
            if in_bf16 && entry.name.ends_with(".weight_packed") {
                continue;
            }
            if in_bf16 && entry.name.ends_with(".weight_scale") {
                scales += got.data.len();
                for (got, want) in got.data.iter().zip(want.data.iter()).filter(|(x, y)| x != y) {
                    assert_eq!(got.abs_diff(*want), 1, "{export} {}", entry.name);
                    neighbours += 1;
                }
                continue;
            }
            assert!(got.data == want.data, "{export} {}", entry.name);
        }
        assert!(neighbours * 50 < scales || scales == 0, "{neighbours} of {scales} scales");
    }
}
