//! Products of `tcgen05.mma`: every kind, shape class, scale vector and place of the
//! operands, against a naive product in f64. All of tensor memory is compared.

mod product;

use crate::tensor_cores::{ATOM32, Sum, Ty};
use product::Product;
use ptx_emu_core::Schedule;

const SOME: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)];

/// `cta_group` and M.
const SHAPES: [(usize, usize); 4] = [(1, 64), (1, 128), (2, 128), (2, 256)];

/// Kinds without scales, with their types.
fn dense() -> Vec<(&'static str, Ty, Sum)> {
    let mut kinds = vec![
        ("f16", Ty::F16, Sum::F32),
        ("f16", Ty::F16, Sum::F16),
        ("f16", Ty::Bf16, Sum::F32),
        ("tf32", Ty::Tf32, Sum::F32),
        ("i8", Ty::S8, Sum::S32),
        ("i8", Ty::U8, Sum::S32),
    ];
    for ty in Ty::F8F6F4 {
        kinds.extend([("f8f6f4", ty, Sum::F32), ("f8f6f4", ty, Sum::F16)]);
    }
    kinds
}

#[test]
fn every_dense_kind_in_every_shape() {
    for (kind, ty, d) in dense() {
        for (group, m) in SHAPES {
            let n = 32 * group;
            Product::new(kind, group, m, n, ty, d).check(1);
        }
    }
}

#[test]
fn every_number_of_columns() {
    for (group, m) in SHAPES {
        for n in (8 * group..=256).step_by(8 * group) {
            let (kind, ty, d) = dense()[n / 8 % 3];
            Product::new(kind, group, m, n, ty, d).check(2);
        }
    }
    for (group, n) in [(1, 8), (1, 64), (1, 248), (1, 256), (2, 16), (2, 96), (2, 256)] {
        Product::scaled("mxf4.block_scale", group, 128, n, Ty::E2m1, false).check(3);
    }
}

#[test]
fn types_of_a_and_b_that_differ() {
    for a in Ty::F8F6F4 {
        for b in Ty::F8F6F4 {
            Product { a, b, ..Product::new("f8f6f4", 1, 128, 16, a, Sum::F32) }.check(4);
            let kind = "mxf8f6f4.block_scale";
            Product { a, b, ..Product::scaled(kind, 1, 128, 16, a, false) }.check(5);
        }
    }
    Product { b: Ty::U8, ..Product::new("i8", 1, 64, 32, Ty::S8, Sum::S32) }.check(6);
    Product { a: Ty::U8, ..Product::new("i8", 2, 256, 32, Ty::S8, Sum::S32) }.check(7);
}

#[test]
fn every_swizzle_and_transposition() {
    let widths = [16, 32, 64, 128];
    for widths in widths.into_iter().flat_map(|a| widths.map(|b| (a, b))) {
        for mn_major in [(false, false), (true, false), (false, true), (true, true)] {
            Product { widths, mn_major, ..Product::new("f16", 1, 128, 64, Ty::F16, Sum::F32) }
                .check(8);
        }
        Product { widths, ..Product::new("tf32", 1, 64, 16, Ty::Tf32, Sum::F32) }.check(9);
        Product { widths, ..Product::scaled("mxf4.block_scale", 1, 128, 64, Ty::E2m1, false) }
            .check(10);
    }
    for width in [16, 32, 64, 128] {
        for (kind, ty, d) in dense() {
            let product = Product::new(kind, 1, 128, 64, ty, d);
            let mn_major = (true, true);
            Product { widths: (width, width), mn_major, ..product }.check(11);
        }
    }
    for (group, m) in SHAPES {
        let product = Product::new("tf32", group, m, 64, Ty::Tf32, Sum::F32);
        Product { widths: (ATOM32, ATOM32), mn_major: (true, true), ..product }.check(12);
    }
}

#[test]
fn a_in_tensor_memory() {
    for (kind, ty, d) in dense() {
        for (group, m) in SHAPES {
            let product = Product::new(kind, group, m, 32, ty, d);
            Product { a_tensor: true, ..product }.check(13);
        }
    }
    for kind in ["mxf4.block_scale", "mxf4nvf4.block_scale.scale_vec::2X"] {
        let product = Product::scaled(kind, 1, 128, 64, Ty::E2m1, false);
        Product { a_tensor: true, ..product }.check(14);
    }
    let product = Product::scaled("mxf8f6f4.block_scale", 2, 256, 64, Ty::E3m2, false);
    Product { a_tensor: true, ..product }.check(15);
    let product = Product::scaled("mxf4nvf4.block_scale.block16", 2, 128, 64, Ty::E2m1, true);
    Product { a_tensor: true, ..product }.check(16);
}

/// Kinds with scales: types of `A`, whether scales may be ue4m3, and ids.
type Scaled = (&'static str, Ty, &'static [bool], &'static [usize]);

const SCALED: [Scaled; 10] = [
    ("mxf8f6f4.block_scale", Ty::E4m3, &[false], &[0, 1, 2, 3]),
    ("mxf8f6f4.block_scale.scale_vec::1X", Ty::E5m2, &[false], &[0, 3]),
    ("mxf8f6f4.block_scale.block32", Ty::E2m1, &[false], &[0, 2]),
    ("mxf4.block_scale", Ty::E2m1, &[false], &[0, 2]),
    ("mxf4.block_scale.scale_vec::2X", Ty::E2m1, &[false], &[0, 2]),
    ("mxf4.block_scale.block32", Ty::E2m1, &[false], &[0, 2]),
    ("mxf4nvf4.block_scale.scale_vec::2X", Ty::E2m1, &[false], &[0, 2]),
    ("mxf4nvf4.block_scale.scale_vec::4X", Ty::E2m1, &[true, false], &[0]),
    ("mxf4nvf4.block_scale.block32", Ty::E2m1, &[false], &[0, 2]),
    ("mxf4nvf4.block_scale.block16", Ty::E2m1, &[true, false], &[0]),
];

#[test]
fn every_scaled_kind_with_every_scale_id() {
    for (kind, ty, types, ids) in SCALED {
        for &ue4m3 in types {
            for (group, m) in [(1, 128), (2, 128), (2, 256)] {
                for ids in ids.iter().flat_map(|&a| ids.iter().map(move |&b| (a, b))) {
                    let mut product = Product::scaled(kind, group, m, 96, ty, ue4m3);
                    if let Some(scales) = &mut product.scales {
                        scales.ids = ids;
                    }
                    product.check(17);
                }
            }
        }
    }
}

#[test]
fn scales_of_b_that_start_inside_a_group_of_128() {
    for (kind, ue4m3) in [("mxf4nvf4.block_scale.block16", true), ("mxf4.block_scale", false)] {
        for (n, offset) in [(64, 2), (32, 1), (32, 3), (96, 1)] {
            let mut product = Product::scaled(kind, 1, 128, n, Ty::E2m1, ue4m3);
            if let Some(scales) = &mut product.scales {
                scales.offset = offset;
            }
            product.check(18);
        }
    }
}

#[test]
fn a_scale_that_is_nan_spoils_its_block() {
    for (kind, ue4m3) in [("mxf4nvf4.block_scale.block16", true), ("mxf4.block_scale", false)] {
        let nan = if ue4m3 { 0x7f } else { 0xff };
        Product::scaled(kind, 1, 128, 64, Ty::E2m1, ue4m3).check_with(19, &SOME, |operands| {
            operands.sfa[0][77][1] = nan;
            operands.sfb[13][0] = nan;
        });
    }
}

#[test]
fn special_values() {
    for ty in [Ty::E4m3, Ty::E5m2, Ty::F16] {
        let kind = if ty == Ty::F16 { "f16" } else { "f8f6f4" };
        Product::new(kind, 1, 128, 32, ty, Sum::F32).check_with(20, &SOME, |operands| {
            let k = operands.b.k;
            // NaN, infinity (e4m3 has none), the largest and the smallest number.
            let codes: &[u32] = match ty {
                Ty::E4m3 => &[0x7f, 0xff, 0x7e, 1, 0x80],
                Ty::E5m2 => &[0x7f, 0x7c, 0xfc, 0x7b, 1, 0x80],
                _ => &[0x7e00, 0x7c00, 0xfc00, 0x7bff, 1, 0x8000],
            };
            for (row, &code) in codes.iter().enumerate() {
                operands.a[0].codes[3 * row * k + row] = code;
                operands.b.codes[2 * row * k + 7] = code;
            }
        });
    }
}

#[test]
fn negation_and_addition() {
    for (kind, ty, d) in dense() {
        for (negate, accumulate) in
            [((true, false), true), ((false, true), false), ((true, true), true)]
        {
            let negate = if d == Sum::S32 { (false, false) } else { negate };
            let product = Product::new(kind, 1, 128, 16, ty, d);
            Product { negate, accumulate, ..product }.check(21);
        }
    }
    for (kind, ue4m3) in [("mxf4nvf4.block_scale.block16", true), ("mxf8f6f4.block_scale", false)] {
        let ty = if ue4m3 { Ty::E2m1 } else { Ty::E2m3 };
        let product = Product::scaled(kind, 1, 128, 32, ty, ue4m3);
        Product { negate: (true, false), accumulate: false, ..product }.check(22);
        Product { negate: (false, true), ..product }.check(23);
    }
}

#[test]
fn old_sums_scaled_by_a_power_of_two() {
    for shift in [0, 1, 7, 15] {
        for (kind, ty, d) in &dense()[..4] {
            let product = Product::new(kind, 1, 128, 32, *ty, *d);
            Product { shift: Some(shift), ..product }.check(24);
        }
        let product = Product::new("f16", 2, 256, 32, Ty::Bf16, Sum::F32);
        let disabled = Some([1 << 100, 0xff]);
        Product { shift: Some(shift), disabled, ..product }.check(25);
    }
}

#[test]
fn lanes_that_are_not_written() {
    let disabled = Some([0xf0f0_1234_0000_ffff_8765_4321_dead_beef, 0x1111 << 64 | 0xabcd]);
    for (kind, ty, d) in dense() {
        for (group, m) in SHAPES {
            let product = Product::new(kind, group, m, 32, ty, d);
            Product { disabled, ..product }.check(26);
        }
    }
}

#[test]
fn sixty_four_rows_in_the_upper_lanes_of_each_quarter() {
    for (kind, ty, d) in &dense()[..5] {
        Product { lane: 16, ..Product::new(kind, 1, 64, 40, *ty, *d) }.check(27);
    }
}

#[test]
fn integers_wrap_or_saturate() {
    for seed in 0..10 {
        let product = Product::new("i8", 1, 64, 16, Ty::S8, Sum::S32);
        product.check(seed);
        Product { saturate: true, ..product }.check(seed);
    }
}

#[test]
fn steps_along_k_in_every_schedule() {
    for (kind, ty, d) in [("f16", Ty::F16, Sum::F32), ("f8f6f4", Ty::E3m2, Sum::F16)] {
        for (group, m) in SHAPES {
            let product = Product::new(kind, group, m, 64, ty, d);
            Product { steps: 4, accumulate: false, ..product }.check_with(28, &SOME, |_| {});
        }
    }
    for (kind, ty, types, _) in SCALED {
        for (group, m) in [(1, 128), (2, 128), (2, 256)] {
            let product = Product::scaled(kind, group, m, 160, ty, types[0]);
            Product { steps: 4, ..product }.check_with(29, &SOME[1..3], |_| {});
        }
    }
}

#[test]
fn hints_for_the_collector_change_nothing() {
    for hint in [
        "f16.collector::a::fill",
        "f16.collector::a::use",
        "f16.collector::a::lastuse",
        "f16.collector::a::discard",
    ] {
        Product::new(hint, 1, 128, 32, Ty::F16, Sum::F32).check(30);
    }
    let mut product = Product::scaled("mxf4nvf4.block_scale.block16", 2, 256, 64, Ty::E2m1, true);
    product.kind = "mxf4nvf4.block_scale.block16.collector::a::lastuse";
    product.check(31);
}
