//! PTX's roundings as the library names them that results are compared with.

use ptx_emu_core::num::Rounding;
use rustc_apfloat::Round;

/// All of them.
pub const ROUNDINGS: [(Rounding, Round); 5] = [
    (Rounding::Rn, Round::NearestTiesToEven),
    (Rounding::Rz, Round::TowardZero),
    (Rounding::Rm, Round::TowardNegative),
    (Rounding::Rp, Round::TowardPositive),
    (Rounding::Rna, Round::NearestTiesToAway),
];
