//! Randomly damaged checkpoints: whatever then reads them, there is no panic, and it ends.

use std::path::Path;

use crate::support::*;
use nvfp4::quantize::Format;
use nvfp4_checkpoint::{
    Layout, Model, SaveOptions, convert_model, inspect, quantize_model, verify,
};
use proptest::prelude::*;

/// Everything that reads, on whatever is there.
fn read_everything(folder: &Folder, path: &Path) {
    let Ok(model) = Model::open(path) else { return };
    let source = Model::open(folder.file("source.safetensors")).expect("a model");
    let _ = inspect(&model).map(|contents| contents.to_string());
    let _ = verify(&model, Some(&source), &mut ()).map(|report| report.to_string());
    let _ = verify(&source, Some(&model), &mut ());
    for layout in Layout::ALL {
        let out = folder.file("converted");
        let _ = std::fs::remove_dir_all(&out);
        let _ = convert_model(&model, None, &SaveOptions::new(layout), &out, &mut ());
    }
}

/// The damaged part of a checkpoint, and the damage.
#[derive(Clone, Debug)]
enum Damage {
    Truncate(prop::sample::Index),
    Flip(Vec<(prop::sample::Index, u8)>),
    /// The header, in which a change most likely says something else.
    Header(Vec<(prop::sample::Index, u8)>),
    /// A number in the header.
    Number(prop::sample::Index, u64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let flips = || prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5);
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Damage::Truncate),
        flips().prop_map(Damage::Flip),
        flips().prop_map(Damage::Header),
        (any::<prop::sample::Index>(), prop_oneof![0..300u64, any::<u64>()])
            .prop_map(|(at, value)| Damage::Number(at, value)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let header = match bytes.first_chunk::<8>() {
        Some(length) => (u64::from_le_bytes(*length) as usize + 8).min(bytes.len()),
        None => bytes.len(),
    };
    match damage {
        Damage::Truncate(at) => bytes.truncate(at.index(bytes.len())),
        Damage::Flip(flips) => flips.iter().for_each(|(at, value)| {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }),
        Damage::Header(flips) => flips.iter().for_each(|(at, value)| {
            let at = 8 + at.index(header - 8);
            bytes[at] = *value;
        }),
        Damage::Number(at, value) => {
            let digits: Vec<usize> = (8..header).filter(|&at| bytes[at].is_ascii_digit()).collect();
            let start = digits[at.index(digits.len())];
            let len = bytes[start..].iter().take_while(|x| x.is_ascii_digit()).count();
            bytes.splice(start..start + len, value.to_string().into_bytes());
            // The length of the header stays true, so that the number is reached.
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            let length = length + value.to_string().len() as u64 - len as u64;
            bytes[..8].copy_from_slice(&length.to_le_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    /// Damaged tensors, whatever the layout: no panic, and it ends.
    #[test]
    fn damaged_checkpoints_never_panic(which in 0usize..7, damage in damage()) {
        let folder = Folder::new("damage-fuzz");
        let (layout, format) = combinations()[which];
        quantized(&folder, "m", layout, format);
        let path = folder.file("m/model.safetensors");
        let mut bytes = std::fs::read(&path).expect("readable");
        apply(&mut bytes, &damage);
        std::fs::write(&path, &bytes).expect("written");
        read_everything(&folder, &folder.file("m"));
    }

    /// Damaged JSON beside the tensors.
    #[test]
    fn damaged_json_never_panics(
        file in 0usize..3,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let folder = Folder::new("damage-fuzz-json");
        let source = folder.file("source.safetensors");
        write_model(&source);
        let model = Model::open(&source).expect("a model");
        let mut options = options(Format::Nvfp4, Layout::ModelOpt);
        options.save.shard_bytes = 3000;
        let out = folder.file("m");
        quantize_model(&model, &options, &out, None, &mut ()).expect("quantised");
        let file = ["model.safetensors.index.json", "config.json", "hf_quant_config.json"][file];
        let mut bytes = std::fs::read(out.join(file)).expect("readable");
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        std::fs::write(out.join(file), &bytes).expect("written");
        read_everything(&folder, &out);
    }
}
