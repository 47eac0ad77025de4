//! The real all-MiniLM-L6-v2 through every layout, byte-stable and verified.
//!
//! `NVFP4_TEST_MODEL` names its `model.safetensors`; without it the tests are skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fp4_formats::ScaleLayout;
use nvfp4::quantize::{Format, recipe_by_name};
use nvfp4_checkpoint::{
    Layout, Model, ModelOptions, Parts, SaveOptions, convert_model, load, quantize_model, verify,
};
use nvfp4_tests::real_model;

/// The model; without it the test is skipped.
fn model() -> Option<Model> {
    Some(Model::open(real_model()?).expect("the model opens"))
}

/// A folder of its own for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoints-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Contents of all files of a checkpoint.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).expect("readable"))
        })
        .collect()
}

fn same(what: &str, found: &Path, expected: &Path) {
    let (found, expected) = (files(found), files(expected));
    assert!(found.keys().eq(expected.keys()), "{what}: other files");
    for (name, bytes) in &found {
        let at = bytes.iter().zip(&expected[name]).position(|(x, y)| x != y);
        assert_eq!(at, None, "{what}: {name} differs at this byte");
        assert_eq!(bytes.len(), expected[name].len(), "{what}: {name}");
    }
}

/// Weights of the six layers and the pooler: four of attention, two of the feed-forward part.
const WEIGHTS: usize = 6 * 6 + 1;

#[test]
fn the_real_model_through_each_layout() {
    let Some(model) = model() else { return };
    let folder = Folder::new("layouts");
    const LINEAR: ScaleLayout = ScaleLayout::Linear;
    const SWIZZLED: ScaleLayout = ScaleLayout::Blocked128x4;
    for (format, recipe, layout, scales, least_db) in [
        (Format::Nvfp4, "modelopt", Layout::ModelOpt, LINEAR, 19.5),
        (Format::Nvfp4, "compressed-tensors", Layout::CompressedTensors, LINEAR, 19.5),
        (Format::Nvfp4, "torchao", Layout::TorchAo, LINEAR, 19.5),
        (Format::Nvfp4, "torchao", Layout::TorchAo, SWIZZLED, 19.5),
        (Format::Nvfp4, "te", Layout::ModelOpt, LINEAR, 19.5),
        (Format::Mxfp4, "torchao", Layout::TorchAo, LINEAR, 17.0),
        (Format::Mxfp4, "torchao", Layout::TorchAo, SWIZZLED, 17.0),
        (Format::Mxfp4, "compressed-tensors", Layout::CompressedTensors, LINEAR, 17.0),
        (Format::Mxfp4, "rceil", Layout::GptOss, LINEAR, 17.0),
    ] {
        let what = format!("{} {recipe} {layout} {scales}", format.name());
        let recipe = recipe_by_name(format, recipe).expect("known");
        let mut options = ModelOptions::new(recipe, layout);
        options.save.scales = scales;
        options.experts_only = false;
        let [first, again, converted] =
            ["first", "again", "converted"].map(|name| folder.0.join(format!("{what} {name}")));
        let report = quantize_model(&model, &options, &first, None, &mut ())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(report.quantized.len(), WEIGHTS, "{what}");
        quantize_model(&model, &options, &again, None, &mut ()).expect("as before");
        same(&format!("{what} again"), &again, &first);

        let checkpoint = Model::open(&first).expect("a checkpoint");
        let report = verify(&checkpoint, Some(&model), &mut ()).expect("verifiable");
        assert!(report.verified && report.findings.is_empty(), "{what}: {report}");
        let least = report.least_sqnr_db.expect("compared");
        assert!(least > least_db, "{what}: {least} dB");

        convert_model(&checkpoint, None, &options.save, &converted, &mut ()).expect("onto itself");
        same(&format!("{what} converted"), &converted, &first);
        for name in [first, again, converted] {
            std::fs::remove_dir_all(name).expect("removed");
        }
    }
}

/// ModelOpt to each other layout of NVFP4 and back gives the same files where no scale is
/// inverted; where one is, inverting twice more gives the first result again.
#[test]
fn the_real_model_from_layout_to_layout() {
    let Some(model) = model() else { return };
    let folder = Folder::new("conversions");
    let start = folder.0.join("start");
    let recipe = recipe_by_name(Format::Nvfp4, "torchao").expect("known");
    let options = ModelOptions::new(recipe, Layout::ModelOpt);
    quantize_model(&model, &options, &start, None, &mut ()).expect("quantised");
    let convert = |from: &Path, layout: Layout, name: &str| {
        let to = folder.0.join(name);
        let from = Model::open(from).expect("a checkpoint");
        convert_model(&from, None, &SaveOptions::new(layout), &to, &mut ()).expect("convertible");
        to
    };
    let torchao = convert(&start, Layout::TorchAo, "torchao");
    same("through torchao", &convert(&torchao, Layout::ModelOpt, "back"), &start);
    let divisor = convert(&start, Layout::CompressedTensors, "divisor");
    let multiplier = convert(&divisor, Layout::ModelOpt, "multiplier");
    let again = convert(&multiplier, Layout::CompressedTensors, "again");
    same("through compressed-tensors twice", &again, &divisor);
}

/// Swizzled scales are the linear ones in another order: there and back are the same files.
#[test]
fn the_real_model_with_swizzled_scales() {
    let Some(model) = model() else { return };
    let folder = Folder::new("swizzled");
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let name = |name: &str| folder.0.join(format!("{} {name}", format.name()));
        let [linear, swizzled, back] = ["linear", "swizzled", "back"].map(name);
        let recipe = recipe_by_name(format, "torchao").expect("known");
        let options = ModelOptions::new(recipe, Layout::TorchAo);
        quantize_model(&model, &options, &linear, None, &mut ()).expect("quantised");
        for (scales, from, to) in [
            (ScaleLayout::Blocked128x4, &linear, &swizzled),
            (ScaleLayout::Linear, &swizzled, &back),
        ] {
            let save = options.save.clone().scales(scales);
            let from = Model::open(from).expect("a checkpoint");
            convert_model(&from, None, &save, to, &mut ()).expect("convertible");
        }
        same("back from swizzled", &back, &linear);
        let scales = "encoder.layer.0.output.dense._weight_scale";
        let scales = |path: &Path| {
            let model = Model::open(path).expect("a checkpoint");
            let raw = model.raw(scales).expect("there");
            (raw.shape, raw.data.to_vec())
        };
        let (linear, swizzled) = (scales(&linear), scales(&swizzled));
        // 384 is a multiple of 128 and the blocks of a row are one of 4: no padding.
        assert_eq!(linear.1.len(), swizzled.1.len());
        assert!(linear.0 != swizzled.0 && linear.1 != swizzled.1, "{}", format.name());
    }
}

/// MXFP4 to NVFP4 changes no value, so the result is as near to the original as what it came from.
#[test]
fn the_real_model_from_mxfp4_to_nvfp4() {
    let Some(model) = model() else { return };
    let folder = Folder::new("reformatted");
    for (from, to) in
        [(Layout::GptOss, Layout::ModelOpt), (Layout::TorchAo, Layout::CompressedTensors)]
    {
        let what = format!("{from} to {to}");
        let name = |name: &str| folder.0.join(format!("{what} {name}"));
        let [mxfp4, nvfp4, again] = ["mxfp4", "nvfp4", "again"].map(name);
        let recipe = recipe_by_name(Format::Mxfp4, "torchao").expect("known");
        let mut options = ModelOptions::new(recipe, from);
        options.experts_only = false;
        quantize_model(&model, &options, &mxfp4, None, &mut ()).expect("quantised");
        let start = Model::open(&mxfp4).expect("a checkpoint");
        for out in [&nvfp4, &again] {
            let save = SaveOptions::new(to);
            let report = convert_model(&start, Some(Format::Nvfp4), &save, out, &mut ());
            let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((report.weights, report.reformatted), (WEIGHTS, WEIGHTS), "{what}");
        }
        same(&what, &again, &nvfp4);

        let result = Model::open(&nvfp4).expect("a checkpoint");
        let bits = |model: &Model| -> BTreeMap<String, Vec<u32>> {
            let layout = Layout::detect(model).expect("quantised");
            let parts = layout.find(model);
            let weight = |part: &Parts| {
                let blocks = load(model, layout, part).expect("valid").blocks;
                let values = blocks.dequantize().expect("small").into_iter();
                (part.name.clone(), values.map(f32::to_bits).collect())
            };
            parts.iter().map(weight).collect()
        };
        let (before, after) = (bits(&start), bits(&result));
        assert_eq!(before.len(), WEIGHTS, "{what}");
        assert!(before == after, "{what}: a value changed");
        let report = verify(&result, Some(&model), &mut ()).expect("verifiable");
        assert!(report.verified && report.findings.is_empty(), "{what}: {report}");
        let before = verify(&start, Some(&model), &mut ()).expect("verifiable");
        assert_eq!(report.least_sqnr_db, before.least_sqnr_db, "{what}");
    }
}
