//! Shape strings, good and bad.

use nvfp4_lab::shape::{
    self, DUAL_CONTEST, DUAL_CORRECTNESS, GEMM_CONTEST, GEMM_CORRECTNESS, GEMM_LARGE, GEMV_CONTEST,
    GEMV_CORRECTNESS, GemvShape, QUANTIZE, Shape, ShapeError, gemv_ragged, grouped_contest, set,
};
use proptest::prelude::*;

fn check(text: &str, expected: &str) {
    let got = match text.parse::<Shape>() {
        Ok(shape) => format!("ok {shape}"),
        Err(error) => error.to_string(),
    };
    assert_eq!(got, expected, "parsing {text:?}");
}

#[test]
fn good_shapes_print_as_they_were_read() {
    for text in
        ["gemv:7168x16384x1", "gemv:1x16x1", "gemv:129x7184x8", "quantize:1x16", "dual:3x7x32x2"]
    {
        check(text, &format!("ok {text}"));
    }
}

#[test]
fn bad_shapes_say_what_is_wrong() {
    check(
        "conv:1x2",
        "unknown operation `conv` in shape `conv:1x2`; known: gemv, gemm, dual, grouped, grouped-dual, moe, quantize, norm, act, mlp",
    );
    check(
        "",
        "unknown operation `` in shape ``; known: gemv, gemm, dual, grouped, grouped-dual, moe, quantize, norm, act, mlp",
    );
    for text in [
        "gemv",
        "gemv:",
        "gemv:1x16",
        "gemv:1x16x1x1",
        "gemv:ax16x1",
        "gemv:-1x16x1",
        "gemv:1,2x16x1",
        "gemv:1x16x",
        "gemv:+1x16x1",
        "gemv: 1x16x1",
        "gemv:1.5x16x1",
    ] {
        check(text, &format!("shape `{text}` does not have the form gemv:MxKxL"));
    }
    check("gemv:0x16x1", "M of shape `gemv:0x16x1` is 0; every dimension is at least 1");
    check("gemv:1x0x1", "K of shape `gemv:1x0x1` is 0; every dimension is at least 1");
    check("gemv:1x16x0", "L of shape `gemv:1x16x0` is 0; every dimension is at least 1");
    check("gemv:1x17x1", "K of shape `gemv:1x17x1` is 17; it must be a multiple of 16");
    check("quantize:1x17", "K of shape `quantize:1x17` is 17; it must be a multiple of 16");
    check("quantize:0x16", "M of shape `quantize:0x16` is 0; every dimension is at least 1");
    check("dual:1x7x24", "K of shape `dual:1x7x24` is 24; it must be a multiple of 16");
    check("dual:1x7x16x0", "L of shape `dual:1x7x16x0` is 0; every dimension is at least 1");
    for text in ["dual:1x7", "dual:1x7x16x1x1", "dual:1x7x16,x1", "dual:1x7x16x"] {
        check(text, &format!("shape `{text}` does not have the form dual:MxNxK[xL]"));
    }
    check(
        "dual:2147483647x16x2147483632x16",
        "number of elements of shape `dual:2147483647x16x2147483632x16` is too large: \
         at most 9223372036854775807",
    );
    for text in ["norm:3x7168", "act:3x16"] {
        check(text, &format!("ok {text}"));
    }
    check("act:3x24", "K of shape `act:3x24` is 24; it must be a multiple of 16");
    check("mlp:3x64x96", "ok mlp:3x64x96");
    check("mlp:3x64x97", "I of shape `mlp:3x64x97` is 97; it must be a multiple of 16");
    check("mlp:3x8x96", "H of shape `mlp:3x8x96` is 8; it must be a multiple of 16");
    check("norm:3", "shape `norm:3` does not have the form norm:MxK");
    check("quantize:1x16x1", "shape `quantize:1x16x1` does not have the form quantize:MxK");
    check(
        "gemv:2147483648x16x1",
        "M of shape `gemv:2147483648x16x1` is too large: at most 2147483647",
    );
    check(
        "gemv:1x99999999999999999999999999x1",
        "K of shape `gemv:1x99999999999999999999999999x1` is too large: at most 2147483647",
    );
    check(
        "gemv:2147483647x2147483632x16",
        "number of elements M*K*L of shape `gemv:2147483647x2147483632x16` is too large: \
         at most 9223372036854775807",
    );
}

#[test]
fn groups_and_experts() {
    for text in [
        "grouped:80,176,128x4096x7168",
        "grouped-dual:3,0,2*9x48x96",
        "grouped:64*2x4096x7168",
        "moe:16x256x8x7168x2048",
    ] {
        check(text, &format!("ok {text}"));
    }
    check("grouped:2,1*2,3*2,5x1x16", "ok grouped:5*2,5x1x16");
    check("gemm:128x7168", "shape `gemm:128x7168` does not have the form gemm:MxNxK");
    for text in ["grouped:80,,1x1x16", "grouped:80x1", "grouped:*2x1x16", "grouped:2*x1x16"] {
        let form = "grouped:M1,G*M,..xNxK";
        check(text, &format!("shape `{text}` does not have the form {form}"));
    }
    for (text, field) in [
        ("grouped:0,0x1x16", "sum of M"),
        ("grouped:0*3x1x16", "G"),
        ("grouped:3x0x16", "N"),
        ("moe:1x2x0x16x16", "K"),
    ] {
        let wrong = format!("{field} of shape `{text}` is 0; every dimension is at least 1");
        check(text, &wrong);
    }
    for (text, field, max) in [
        ("grouped:1025*1x1x16", "number of groups", 1024),
        ("grouped:2147483647,1x1x16", "sum of M", 2_147_483_647),
        ("moe:1x2000x1x16x16", "E", 1024),
        ("moe:1x4x5x16x16", "K", 4),
    ] {
        check(text, &format!("{field} of shape `{text}` is too large: at most {max}"));
    }
    check("grouped:3x1x24", "K of shape `grouped:3x1x24` is 24; it must be a multiple of 16");
    check("moe:1x1x1x24x16", "H of shape `moe:1x1x1x24x16` is 24; it must be a multiple of 16");
    check("moe:1x1x1x16x24", "I of shape `moe:1x1x1x16x24` is 24; it must be a multiple of 16");
}

#[test]
fn sets_hold_valid_shapes() {
    let contest = set("gemv").expect("built");
    assert_eq!(contest, GEMV_CONTEST.map(Shape::Gemv));
    let quantize = set("quantize").expect("built");
    assert_eq!(quantize, QUANTIZE.map(Shape::Quantize));
    let gemm = set("gemm").expect("built");
    assert_eq!(
        gemm,
        [GEMM_CONTEST, GEMM_LARGE].concat().into_iter().map(Shape::Gemm).collect::<Vec<_>>()
    );
    let large = gemm.iter().filter(|shape| shape.is_large()).count();
    assert_eq!(large, GEMM_LARGE.len(), "the contest's shapes run on emulated devices, too");
    let decode = set("decode").expect("built");
    assert_eq!(decode.len(), 14);
    assert_eq!(set("gemm-correctness").expect("built").len(), GEMM_CORRECTNESS.len());
    let dual = set("dual").expect("built");
    assert_eq!(dual, DUAL_CONTEST.map(Shape::Dual));
    let grouped = set("grouped").expect("built");
    assert_eq!(grouped, grouped_contest().into_iter().map(Shape::Grouped).collect::<Vec<_>>());
    let [few, moe] = ["grouped-decode", "moe"].map(|name| set(name).expect("built"));
    let timed = [contest, gemm, dual, grouped.clone(), decode, quantize, few.clone(), moe.clone()];
    assert_eq!(set("all").expect("built"), timed.concat());
    for shape in grouped.into_iter().chain(few).chain(moe) {
        assert_eq!(shape.to_string().parse(), Ok(shape));
    }
    assert_eq!(set("gemv-correctness").expect("built").len(), GEMV_CORRECTNESS.len());
    assert_eq!(set("gemv-ragged").expect("built").len(), 27);
    let dual = set("dual-correctness").expect("built");
    assert_eq!(dual, DUAL_CORRECTNESS.map(Shape::Dual));
    for shape in dual.into_iter().chain(DUAL_CONTEST.map(Shape::Dual)) {
        assert_eq!(shape.to_string().parse(), Ok(shape));
    }
    for shape in GEMM_CONTEST.into_iter().chain(GEMM_CORRECTNESS).chain(shape::decode()) {
        assert_eq!(shape.to_string().parse(), Ok(Shape::Gemm(shape)));
    }
    assert!(matches!(set("x"), Err(ShapeError::UnknownSet { .. })));
    for shape in GEMV_CONTEST.into_iter().chain(GEMV_CORRECTNESS).chain(gemv_ragged()) {
        assert_eq!(shape.to_string().parse(), Ok(Shape::Gemv(shape)));
    }
    assert_eq!(gemv_ragged().len(), 27);
}

#[test]
fn bytes_of_the_largest_contest_shape() {
    // 7168 x 16384 codes and scales, one vector, f16 results.
    let expected = 7169 * (8192 + 1024) + 7168 * 2;
    assert_eq!(GEMV_CONTEST[0].bytes(2), expected);
    assert_eq!(GemvShape { m: 1, k: 16, l: 2 }.bytes(4), 2 * (2 * 9 + 4));
}

proptest! {
    #[test]
    fn no_string_panics(text in "(gemv|gemm|grouped|dual|x)?:?[0-9x,]{0,40}.{0,3}") {
        let _ = text.parse::<Shape>();
    }
}

#[test]
fn products_have_operations_and_quantisers_none() {
    for (text, flops) in [
        ("gemv:3x16x2", Some(192.0)),
        ("gemm:2x3x16", Some(192.0)),
        ("dual:2x3x16", Some(384.0)),
        ("dual:2x3x16x5", Some(1920.0)),
        ("grouped:1,2*3x3x16", Some(672.0)),
        ("grouped-dual:1,2*3x3x16", Some(1344.0)),
        ("moe:2x4x3x16x32", Some(18432.0)),
        ("quantize:2x16", None),
    ] {
        let shape: Shape = text.parse().expect("a shape");
        assert_eq!(shape.flops(), flops, "{text}");
    }
}
