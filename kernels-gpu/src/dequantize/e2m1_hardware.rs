//! e2m1 to f32 for targets that convert pairs to f16 in hardware (sm_100a).

use cuda_std::ptx::convert;

/// The values of eight codes.
#[inline(always)]
pub fn decode8(codes: u32) -> [f32; 8] {
    let (a, b) =
        (convert::cvt_rn_f16x2_e2m1x2::<2>(codes), convert::cvt_rn_f16x2_e2m1x2::<3>(codes));
    let low = decode4(codes);
    [
        low[0],
        low[1],
        low[2],
        low[3],
        convert::cvt_f32_f16(a as u16),
        convert::cvt_f32_f16((a >> 16) as u16),
        convert::cvt_f32_f16(b as u16),
        convert::cvt_f32_f16((b >> 16) as u16),
    ]
}

/// The values of the four codes in the low half.
#[inline(always)]
pub fn decode4(codes: u32) -> [f32; 4] {
    let (a, b) =
        (convert::cvt_rn_f16x2_e2m1x2::<0>(codes), convert::cvt_rn_f16x2_e2m1x2::<1>(codes));
    [
        convert::cvt_f32_f16(a as u16),
        convert::cvt_f32_f16((a >> 16) as u16),
        convert::cvt_f32_f16(b as u16),
        convert::cvt_f32_f16((b >> 16) as u16),
    ]
}
