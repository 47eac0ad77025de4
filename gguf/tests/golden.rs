//! Files against the package `gguf` of PyPI: what it wrote is read with its values, and written again with its
//! bytes. Damaged files are errors.

use nvfp4_gguf::{Blocks, Error, Gguf, Header, Kind, Scalar, Spec, Value, dequantize};
use proptest::prelude::*;

const GOLDEN: &[u8] = include_bytes!("data/golden.gguf");

#[test]
fn every_type_has_the_values_of_their_decoder() {
    let file = Gguf::parse(GOLDEN).expect("valid");
    let mut kinds = Vec::new();
    for tensor in &file.tensors {
        let Some(expected) = file.tensor(&format!("{}.values", tensor.name)) else { continue };
        let values = dequantize(&tensor.name, tensor.kind, tensor.data).expect("floats");
        let expected = dequantize("values", expected.kind, expected.data).expect("floats");
        assert_eq!(values, expected, "{}", tensor.kind);
        assert_eq!(tensor.shape, [3, 128]);
        kinds.push(tensor.kind);
    }
    kinds.sort_by_key(|kind| kind.number());
    assert_eq!(kinds, [Kind::F32, Kind::F16, Kind::Q8_0, Kind::Bf16, Kind::Mxfp4, Kind::Nvfp4]);
}

#[test]
fn metadata_is_read() {
    let file = Gguf::parse(GOLDEN).expect("valid");
    let value = |key: &str| file.metadata.get(key).unwrap_or_else(|| panic!("{key}"));
    assert_eq!(value("general.architecture").as_str(), Some("llama"));
    assert_eq!(value("llama.block_count").as_u64(), Some(2));
    assert_eq!(*value("golden.float"), Value::Scalar(Scalar::F32(0.5)));
    assert_eq!(*value("golden.bool"), Value::Scalar(Scalar::Bool(true)));
    let Value::Array(_, names) = value("golden.names") else { panic!("an array") };
    assert_eq!(
        names.iter().map(Value::as_str).collect::<Vec<_>>(),
        [Some("a"), Some(""), Some("é")]
    );
}

/// A file laid out here has the content of the one that it was read from.
#[test]
fn what_is_written_is_read() {
    let file = Gguf::parse(GOLDEN).expect("valid");
    let specs: Vec<Spec> = (file.tensors.iter())
        .map(|tensor| Spec {
            name: tensor.name.clone(),
            kind: tensor.kind,
            shape: tensor.shape.clone(),
        })
        .collect();
    let header = Header::new(&file.metadata, &specs).expect("valid");
    let mut bytes = header.bytes.clone();
    bytes.resize(header.end as usize, 0);
    for (tensor, &(first, size)) in file.tensors.iter().zip(&header.places) {
        bytes[first as usize..][..size as usize].copy_from_slice(tensor.data);
    }
    assert_eq!(Gguf::parse(&bytes).expect("valid"), file);
    let twice = [specs[0].clone(), specs[0].clone()];
    assert!(matches!(Header::new(&file.metadata, &twice), Err(Error::Tensor { .. })));
    let odd = Spec { name: "odd".into(), kind: Kind::Nvfp4, shape: vec![2, 32] };
    assert!(matches!(Header::new(&file.metadata, &[odd]), Err(Error::Tensor { .. })));
}

#[test]
fn blocks_are_their_bytes() {
    let file = Gguf::parse(GOLDEN).expect("valid");
    for name in ["mxfp4.weight", "nvfp4.weight"] {
        let tensor = file.tensor(name).expect("there");
        let blocks = Blocks::of(name, tensor.kind, tensor.data).expect("valid");
        assert_eq!(blocks.bytes(name, tensor.kind).expect("valid"), tensor.data);
    }
}

/// ggml reads these scales as something else than every other format does.
#[test]
fn scales_that_ggml_reads_otherwise_are_refused() {
    for scale in [0x7f, 0x80, 0xb8, 0xff] {
        let blocks = Blocks { codes: vec![0x11; 32], scales: vec![0x38, 0x38, scale, 0x38] };
        let error = blocks.bytes("w", Kind::Nvfp4).expect_err("refused").to_string();
        assert!(error.contains("at index 2"), "{error}");
        let mut data = vec![0x11; 36];
        data[..4].copy_from_slice(&blocks.scales);
        assert!(Blocks::of("w", Kind::Nvfp4, &data).is_err());
    }
    // 256 to 448 are read as they are; only their encoder loses them.
    let blocks = Blocks { codes: vec![0x11; 32], scales: vec![0x78, 0x79, 0x7d, 0x7e] };
    let data = blocks.bytes("w", Kind::Nvfp4).expect("valid");
    assert_eq!(dequantize("w", Kind::Nvfp4, &data).expect("floats")[63], 0.5 * 448.0);
}

#[test]
fn every_truncated_file_is_an_error() {
    for length in 0..GOLDEN.len() - 64 {
        Gguf::parse(&GOLDEN[..length]).expect_err("truncated");
    }
}

proptest! {
    /// Any byte may be any other: the file is read or refused, and nothing panics.
    #[test]
    fn damaged_files_never_panic(at in 0..2000usize, value in any::<u8>()) {
        let mut bytes = GOLDEN.to_vec();
        bytes[at] = value;
        if let Ok(file) = Gguf::parse(&bytes) {
            for tensor in &file.tensors {
                let _ = dequantize(&tensor.name, tensor.kind, tensor.data);
            }
        }
    }
}
