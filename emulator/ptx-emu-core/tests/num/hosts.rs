//! Conversions and products by vector instructions of the host, beside those of `num`.

use ptx_emu_core::num::{FloatFlags, half};
use ptx_emu_simd::{Host, on_host};

/// Every pattern of f16 as each operand, beside patterns that vary.
#[test]
fn products_of_halves_are_those_of_num() {
    let mut random = 1u32;
    let mut pair = |first: u16| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u32::from(first) | random & 0xffff_0000
    };
    for from in (0..=u16::MAX).step_by(32) {
        let counted = std::array::from_fn(|lane| pair(from + lane as u16));
        let [x, y] = [7, 11].map(|step| {
            std::array::from_fn(|lane| pair((from + lane as u16).wrapping_mul(step) ^ 0x3c5a))
        });
        for [a, b, c] in [[counted, x, y], [x, counted, y], [x, y, counted]] {
            let Some(row) = on_host!(host => host.fma_f16x2([&a, &b], &c)) else {
                return skipped::test("this host has no AVX2");
            };
            for lane in 0..32 {
                let expected = half::fma_x2(a[lane], b[lane], c[lane], FloatFlags::NONE);
                assert_eq!(row[lane], expected, "{:#x} * {:#x} + {:#x}", a[lane], b[lane], c[lane]);
            }
        }
    }
}
