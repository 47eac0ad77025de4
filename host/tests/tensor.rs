//! Construction of block-scaled tensors: what is checked, and what the errors say.

use fp4_formats::{BlockFormat, HalfType, Mxfp4, Nvfp4, ScaleLayout, e2m1, e4m3, pack};
use nvfp4::error::{Error, Position, Result};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;
use proptest::prelude::*;

const LINEAR: ScaleLayout = ScaleLayout::Linear;

fn dims(batch: usize, rows: usize, cols: usize) -> Dims {
    Dims::new(batch, rows, cols).expect("valid sizes")
}

fn nvfp4(dims: Dims, codes: usize, scales: Vec<u8>, global: f32) -> Result<BlockScaled<Nvfp4>> {
    BlockScaled::new("w", dims, LINEAR, vec![0; codes], scales, global)
}

#[test]
fn zero_and_overflowing_sizes_are_refused() {
    let text = |b, r, c| Dims::new(b, r, c).expect_err("invalid").to_string();
    assert_eq!(text(0, 1, 16), "batch must be at least 1, but is 0");
    assert_eq!(text(1, 0, 16), "rows must be at least 1, but is 0");
    assert_eq!(text(1, 1, 0), "columns must be at least 1, but is 0");
    assert!(matches!(Dims::new(2, usize::MAX / 2, 16), Err(Error::Overflow { .. })));
    // The elements fit and the padded scales do not.
    let wide = dims(1 << 58, 1, 16);
    let tensor =
        BlockScaled::<Nvfp4>::new("w", wide, ScaleLayout::Blocked128x4, vec![], vec![], 1.0);
    assert!(matches!(tensor, Err(Error::Overflow { .. })), "{tensor:?}");
}

#[test]
fn lengths_and_k_are_checked() {
    let text = |codes, scales: usize, d| {
        nvfp4(d, codes, vec![0; scales], 1.0).expect_err("invalid").to_string()
    };
    assert_eq!(
        text(95, 12, dims(2, 3, 32)),
        "length of `w` codes must be 96 bytes for 2 x 3 x 32 nvfp4 with linear scales, but is 95"
    );
    assert_eq!(
        text(96, 13, dims(2, 3, 32)),
        "length of `w` scales must be 12 bytes for 2 x 3 x 32 nvfp4 with linear scales, but is 13"
    );
    assert_eq!(text(20, 3, dims(1, 1, 40)), "K of `w` must be a multiple of 16 (nvfp4), but is 40");
    let mx = BlockScaled::<Mxfp4>::new("w", dims(1, 1, 48), LINEAR, vec![0; 24], vec![0; 2], 1.0);
    assert_eq!(
        mx.expect_err("invalid").to_string(),
        "K of `w` must be a multiple of 32 (mxfp4), but is 48"
    );
}

#[test]
fn bad_scales_are_named_by_position() {
    for (byte, finite) in [(0x7f, false), (0xff, false), (0x80, true), (0xb8, true)] {
        let mut scales = vec![0x38; 2 * 3 * 2];
        scales[3 * 2 + 2 * 2 + 1] = byte;
        let want = Position { batch: 1, row: 2, column: 1 };
        match nvfp4(dims(2, 3, 32), 96, scales, 1.0) {
            Err(Error::ScaleNotFinite { tensor, index, byte: got }) if !finite => {
                assert_eq!((tensor.as_str(), index, got), ("w", want, byte));
            }
            Err(Error::ScaleNegative { tensor, index, byte: got }) if finite => {
                assert_eq!((tensor.as_str(), index, got), ("w", want, byte));
            }
            other => panic!("{byte:#x}: {other:?}"),
        }
    }
    let mx = BlockScaled::<Mxfp4>::new("w", dims(1, 1, 32), LINEAR, vec![0; 16], vec![0xff], 1.0);
    assert!(matches!(mx, Err(Error::ScaleNotFinite { .. })), "{mx:?}");
}

#[test]
fn bad_global_scales_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let tensor = nvfp4(dims(1, 1, 16), 8, vec![0x38], bad);
        assert!(matches!(tensor, Err(Error::Scalar { .. })), "{bad}: {tensor:?}");
    }
    assert!(nvfp4(dims(1, 1, 16), 8, vec![0x38], 0.0).is_ok());
}

#[test]
fn padding_of_the_blocked_layout_is_not_looked_at() {
    let mut scales = vec![e4m3::NAN; 512];
    scales[0] = 0x38;
    let layout = ScaleLayout::Blocked128x4;
    let tensor = BlockScaled::<Nvfp4>::new("w", dims(1, 1, 16), layout, vec![0; 8], scales, 1.0)
        .expect("valid");
    let again = tensor.to_layout(layout).expect("small");
    assert!(again.scales()[1..].iter().all(|&byte| byte == 0), "new padding is zero");
}

#[test]
fn generators_give_the_same_values_in_both_layouts() {
    for generator in Generator::ALL {
        let make = |layout| {
            generator
                .operand("a", dims(2, 130, 80), layout, &mut SplitMix64::new(3))
                .expect("small")
        };
        let (linear, blocked) = (make(LINEAR), make(ScaleLayout::Blocked128x4));
        assert_eq!(blocked.to_layout(LINEAR).expect("small"), linear, "{generator}");
        assert_eq!(generator.to_string().parse::<Generator>().expect("its name"), generator);
    }
}

/// No two rows of an operand for exact sums are alike, even of one block, whatever the type: not
/// in the magnitudes of eight elements.
#[test]
fn exact_rows_have_signatures() {
    let mut rng = SplitMix64::new(5);
    let shape = dims(3, 1000, 32);
    let distinct = |what: &str, rows: Vec<Vec<u8>>| {
        let count = rows.len();
        let distinct = rows.into_iter().collect::<std::collections::HashSet<_>>().len();
        assert_eq!(distinct, count, "{what}");
    };
    let generator = Generator::Exact;
    let magnitudes = |codes: &[u8], k: usize| -> Vec<Vec<u8>> {
        codes.chunks(k / 2).map(|row| row[..4].iter().map(|byte| byte & 0x77).collect()).collect()
    };
    let x = generator.blocks::<Nvfp4>("a", dims(3, 1000, 16), LINEAR, &mut rng).expect("small");
    distinct("nvfp4", magnitudes(x.codes(), 16));
    let x = generator.blocks::<Mxfp4>("a", shape, LINEAR, &mut rng).expect("small");
    distinct("mxfp4", magnitudes(x.codes(), 32));
    // Signs and the codes after the signature stay random.
    assert!((0..=255).all(|byte: u8| x.codes().contains(&byte)));
    for operand in [HalfType::F16, HalfType::Bf16] {
        let x = generator.halves("a", shape, operand, &mut rng).expect("small");
        distinct(operand.name(), x.bytes().chunks(64).map(|row| row[..16].to_vec()).collect());
    }
}

#[test]
fn the_full_range_generator_reaches_every_code_and_scale() {
    let mut rng = SplitMix64::new(5);
    let x = Generator::FullRange.operand("a", dims(1, 64, 1024), LINEAR, &mut rng).expect("small");
    for byte in 0..=255u8 {
        assert!(x.codes().contains(&byte), "code byte {byte:#x}");
        assert_eq!(x.scales().contains(&byte), byte < 0x7f, "scale byte {byte:#x}");
    }
}

#[test]
fn the_contest_generators_stay_in_their_sets() {
    let mut rng = SplitMix64::new(5);
    let x = Generator::Contest.operand("a", dims(1, 16, 256), LINEAR, &mut rng).expect("small");
    assert!(x.codes().iter().all(|&byte| byte < 4));
    assert!(x.scales().iter().all(|&byte| [0.0, 1.0, 2.0].contains(&e4m3::decode(byte))));
    let gemm = Generator::ContestGemm;
    let x = gemm.operand("a", dims(1, 16, 1024), LINEAR, &mut rng).expect("small");
    assert!((0..=255).all(|byte: u8| x.codes().contains(&byte)));
    let scales = [0.0, 1.0, 2.0, 3.0];
    assert!(x.scales().iter().all(|&byte| scales.contains(&e4m3::decode(byte))));
    assert!(scales.iter().all(|&scale| x.scales().contains(&e4m3::encode(scale))));
    let x = Generator::ContestDual.operand("a", dims(1, 64, 1024), LINEAR, &mut rng);
    let x = x.expect("small");
    let is_small = |byte: u8| byte & 7 < 4 && byte >> 4 & 7 < 4;
    assert!((0..=255).all(|byte| x.codes().contains(&byte) == is_small(byte)));
    // Half of them are from 1/2 on; rounded, they may be 1.
    let scales: Vec<f32> = x.scales().iter().map(|&byte| e4m3::decode(byte)).collect();
    assert!(scales.iter().all(|scale| (0.0..=1.0).contains(scale)));
    let large = scales.iter().filter(|&&scale| scale >= 0.5).count() as f64;
    assert!((large / scales.len() as f64 - 0.5).abs() < 0.05);
}

proptest! {
    /// Dequantisation against element-by-element lookup, in both layouts.
    #[test]
    fn dequantize_equals_the_definition(
        batch in 1usize..3, rows in 1usize..140, kblocks in 1usize..7, seed: u64, blocked: bool,
        global in 1e-3f32..1e3,
    ) {
        let layout = if blocked { ScaleLayout::Blocked128x4 } else { LINEAR };
        let d = dims(batch, rows, kblocks * Nvfp4::BLOCK);
        let mut rng = SplitMix64::new(seed);
        let x = Generator::FullRange.operand("x", d, layout, &mut rng).expect("small");
        let x: BlockScaled<Nvfp4> =
            BlockScaled::new("x", d, layout, x.codes().to_vec(), x.scales().to_vec(), global)
                .expect("valid");
        let values = x.dequantize().expect("small");
        prop_assert_eq!(values.len(), d.elements());
        for (index, value) in values.iter().enumerate() {
            let (row, k) = (index / d.cols(), index % d.cols());
            let code = pack::get(x.codes(), index).expect("inside");
            let matrix = &x.scales()[row / rows * x.scale_stride()..];
            let scale = matrix[layout.offset(row % rows, k / 16, kblocks)];
            let want = e2m1::decode(code) * (global * e4m3::decode(scale));
            prop_assert_eq!(value.to_bits(), want.to_bits(), "row {} k {}", row, k);
        }
    }
}
