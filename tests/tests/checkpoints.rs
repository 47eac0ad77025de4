//! The real all-MiniLM-L6-v2 through every layout, byte-stable and verified.
//!
//! `NVFP4_TEST_MODEL` names its `model.safetensors`; without it the tests say on stderr that they
//! were skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvfp4::checkpoint::{
    Layout, Model, ModelOptions, SaveOptions, convert_model, quantize_model, verify,
};
use nvfp4::quantize::{Format, recipe_by_name};

/// The model, or `None` with a note.
fn model(test: &str) -> Option<Model> {
    let Some(path) = std::env::var_os("NVFP4_TEST_MODEL") else {
        eprintln!("{test}: skipped: NVFP4_TEST_MODEL does not name a model.safetensors");
        return None;
    };
    Some(Model::open(PathBuf::from(path)).expect("the model opens"))
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
    let Some(model) = model("the_real_model_through_each_layout") else { return };
    let folder = Folder::new("layouts");
    for (format, recipe, layout, least_db) in [
        (Format::Nvfp4, "modelopt", Layout::ModelOpt, 19.5),
        (Format::Nvfp4, "compressed-tensors", Layout::CompressedTensors, 19.5),
        (Format::Nvfp4, "torchao", Layout::TorchAo, 19.5),
        (Format::Nvfp4, "te", Layout::ModelOpt, 19.5),
        (Format::Mxfp4, "torchao", Layout::TorchAo, 17.0),
        (Format::Mxfp4, "compressed-tensors", Layout::CompressedTensors, 17.0),
        (Format::Mxfp4, "rceil", Layout::GptOss, 17.0),
    ] {
        let what = format!("{} {recipe} {layout}", format.name());
        let recipe = recipe_by_name(format, recipe).expect("known");
        let options = ModelOptions::new(recipe, layout);
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

        let save = SaveOptions::new(layout);
        convert_model(&checkpoint, None, &save, &converted, &mut ()).expect("onto itself");
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
    let Some(model) = model("the_real_model_from_layout_to_layout") else { return };
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
