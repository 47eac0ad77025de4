//! Reading safetensors: every kind of damage is a typed error, and writing is all or nothing.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use nvfp4::error::Error;
use nvfp4_checkpoint::{self as checkpoint, Checkpoint, CheckpointError, NewTensor};
use proptest::prelude::*;
use safetensors::Dtype;

/// A folder of its own for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoint-{test}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn with(&self, bytes: &[u8]) -> PathBuf {
        let path = self.file("x.safetensors");
        std::fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tensor(dtype: Dtype, shape: &[usize], data: Vec<u8>) -> NewTensor {
    NewTensor { dtype, shape: shape.to_vec(), data }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn sample(folder: &Folder) -> PathBuf {
    let path = folder.file("sample.safetensors");
    let halves = [1.5f32, -2.0].map(f16::from_f32).iter().flat_map(|v| v.to_le_bytes()).collect();
    let brains = [1.5f32, -2.0].map(bf16::from_f32).iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensors = [
        ("layer.weight", tensor(Dtype::F32, &[2, 3], f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))),
        ("half", tensor(Dtype::F16, &[1, 2], halves)),
        ("brain", tensor(Dtype::BF16, &[2], brains)),
        ("codes", tensor(Dtype::U8, &[4], vec![1, 2, 3, 4])),
        ("scale", tensor(Dtype::F32, &[], f32s(&[0.25]))),
        ("bad", tensor(Dtype::F32, &[2], f32s(&[0.0, f32::NAN]))),
        ("empty", tensor(Dtype::F32, &[0, 4], vec![])),
    ];
    checkpoint::write(&path, &tensors, &[("made_by", "test".into())]).expect("written");
    path
}

#[test]
fn values_come_back() {
    let folder = Folder::new("values");
    let file = Checkpoint::open(sample(&folder)).expect("valid");
    assert_eq!(file.metadata("made_by"), Some("test"));
    let weight = file.matrix("layer.weight").expect("a matrix");
    assert_eq!(weight, (2, 3, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(file.matrix("half").expect("a matrix").2, [1.5, -2.0]);
    assert_eq!(file.floats("brain").expect("floats").values, [1.5, -2.0]);
    assert_eq!(file.raw("codes").expect("bytes").data, [1, 2, 3, 4]);
    assert_eq!(file.scalar("scale").expect("a scalar"), 0.25);
    let entries = file.entries();
    assert_eq!(entries.len(), 7);
    let bytes = std::fs::read(file.path()).expect("readable");
    let codes = entries.iter().find(|entry| entry.name == "codes").expect("listed");
    assert_eq!(bytes[codes.offset as usize..][..codes.bytes], [1, 2, 3, 4]);
}

#[test]
fn wrong_tensors_are_typed_errors() {
    let folder = Folder::new("wrong");
    let file = Checkpoint::open(sample(&folder)).expect("valid");
    let is = |result: Result<_, CheckpointError>, expected: &str| {
        let text = result.map(|_: ()| ()).expect_err(expected).to_string();
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
    };
    is(file.floats("layer.bias").map(drop), "no tensor `layer.bias`; there are layer.weight");
    is(file.floats("codes").map(drop), "has type U8; required F32, F16 or BF16");
    is(file.matrix("brain").map(drop), "has shape [2]; required [rows, columns]");
    is(file.matrix("empty").map(drop), "has shape [0, 4]");
    is(file.scalar("bad").map(drop), "has shape [2]; required [] or [1]");
    match file.floats("bad") {
        Err(CheckpointError::NonFinite { index: 1, byte, value, .. }) => {
            assert!(value.is_nan());
            let bytes = std::fs::read(file.path()).expect("readable");
            let at = &bytes[byte as usize..][..4];
            assert_eq!(at, f32::NAN.to_le_bytes());
        }
        other => panic!("expected NonFinite at index 1, got {other:?}"),
    }
}

#[test]
fn truncated_at_every_byte() {
    let folder = Folder::new("truncated");
    let bytes = std::fs::read(sample(&folder)).expect("readable");
    for len in 0..bytes.len() {
        let error = Checkpoint::open(folder.with(&bytes[..len])).expect_err("truncated");
        let malformed = matches!(error, CheckpointError::Malformed { .. });
        assert!(malformed, "{len} bytes: {error}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(Checkpoint::open(folder.with(&longer)).is_err(), "one byte too many");
}

#[test]
fn malformed_headers() {
    let folder = Folder::new("malformed");
    let with_header = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        Checkpoint::open(folder.with(&bytes)).map(drop)
    };
    assert!(with_header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4).is_ok());
    for (header, data) in [
        ("", 0),
        ("{", 0),
        ("[]", 0),
        (r#"{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 3),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#, 12),
        (r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}"#, 4),
        (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4),
    ] {
        let result = with_header(header, data);
        let malformed = matches!(result, Err(CheckpointError::Malformed { .. }));
        assert!(malformed, "{header} + {data}: {result:?}");
    }
    let huge = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
    let text = Checkpoint::open(folder.with(&huge)).expect_err("huge header").to_string();
    assert!(text.contains("18446744073709551615"), "{text}");
    assert!(matches!(
        Checkpoint::open(folder.file("none")),
        Err(CheckpointError::Library(Error::Io { .. }))
    ));
    assert!(Checkpoint::open(&folder.0).is_err(), "a folder is no file");
}

#[test]
fn a_failed_write_leaves_nothing() {
    let folder = Folder::new("write");
    let path = folder.file("out.safetensors");
    let wrong = tensor(Dtype::F32, &[3], vec![0; 4]);
    assert!(checkpoint::write(&path, &[("x", wrong)], &[]).is_err());
    assert!(checkpoint::write_whole(&folder.file("no/such/folder"), b"x").is_err());
    assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 0);
    checkpoint::write_whole(&path, b"first").expect("written");
    checkpoint::write_whole(&path, b"second").expect("replaced");
    assert_eq!(std::fs::read(&path).expect("readable"), b"second");
    assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Flipping bytes of a valid file never panics, whatever is then read from it.
    #[test]
    fn damaged_files_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let folder = Folder::new("damaged");
        let mut bytes = std::fs::read(sample(&folder)).expect("readable");
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(file) = Checkpoint::open(folder.with(&bytes)) {
            for entry in file.entries() {
                let _ = file.floats(&entry.name);
                let _ = file.matrix(&entry.name);
                let _ = file.scalar(&entry.name);
            }
        }
    }
}
