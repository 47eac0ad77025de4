//! The features of PTX that some targets or versions lack: the PTX ISA's notes on each instruction, as
//! ptxas 13.0 and 13.5 apply them (`tests/data/ptx/targets.txt` and `legality.txt`). An instruction needs every feature whose
//! row matches it; one without a row is in all versions and from sm_75 on.

use super::{Feature, Named, Need, family, from, own, version};

/// The targets of `tcgen05`. `sm_110` was `sm_101` before PTX 9.0.
const DATACENTRE: &[Need] = &[own(&[100, 101, 103, 110], (8, 6)), family(&[100, 110], (8, 8))];
/// The targets of `tcgen05` with a suffix `a`.
const DATACENTRE_A: &[Need] = &[own(&[100, 101, 103, 110], (8, 6))];
/// The targets of `tcgen05`, for features of PTX 8.8.
const DATACENTRE_8_8: &[Need] = &[family(&[100, 110], (8, 8))];
/// All targets of Blackwell with a suffix.
const BLACKWELL_A: Need = own(&[100, 101, 103, 110, 120, 121], (8, 6));
const BLACKWELL_F: Need = family(&[100, 110, 120], (8, 8));
const BLACKWELL: &[Need] = &[BLACKWELL_A, BLACKWELL_F];
/// All targets of Blackwell with a suffix, for features of later versions.
const BLACKWELL_9_1: &[Need] = &[family(&[100, 110, 120], (9, 1))];
const BLACKWELL_9_2: &[Need] = &[family(&[100, 110, 120], (9, 2))];
/// No target.
const NEVER: &[Need] = &[];

#[rustfmt::skip]
pub(super) const FEATURES: &[Feature] = &[
    // State spaces and memory.
    Feature("ld|st|atom|red|isspacep|cvta|mbarrier|ldmatrix|wmma", "shared::cta", &[version(7, 8)]),
    Feature("*", "shared::cluster", &[from(90, (7, 8))]),
    Feature("*", "cluster", &[from(90, (7, 8))]),
    Feature("*", "param::entry", &[version(8, 3)]),
    Feature("ld|ldu|st|mov", "b128", &[version(8, 3)]),
    Feature("ld|st", "mmio", &[version(8, 2)]),
    Feature("ld|st", "mmio acquire|release", &[version(9, 3)]),
    Feature("ld|st", "volatile local", &[version(9, 1)]),
    Feature("ld", "^L2:: shared|shared::cta|shared::cluster|local|const|param|param::entry", NEVER),
    Feature("mov", "u16|s16|u32|s32|f32|u64|s64|f64 (vector)", NEVER),
    Feature("ld|st", "^L1::", &[version(7, 4)]),
    Feature("ld", "L2::64B|L2::128B", &[version(7, 4)]),
    Feature("ld", "L2::256B", &[from(80, (7, 4))]),
    Feature("ld|st|atom|red", "L2::cache_hint", &[from(80, (7, 4))]),
    Feature("ld|st", "v8 b32|u32|s32|f32", &[from(100, (8, 8))]),
    Feature("ld|st", "v4 b64|u64|s64|f64", &[from(100, (8, 8))]),
    Feature("st", "async", &[from(90, (8, 1))]),
    Feature("st", "async global", &[from(100, (8, 7))]),
    Feature("st", "bulk", &[from(100, (8, 6))]),
    Feature("red", "async", &[from(90, (8, 1))]),
    Feature("multimem", "", &[from(90, (8, 1))]),
    Feature("prefetch", "L2::evict_last|L2::evict_normal", &[from(80, (7, 4))]),
    Feature("prefetch", "tensormap", &[from(90, (8, 0))]),
    Feature("createpolicy|applypriority|discard", "", &[from(80, (7, 4))]),
    Feature("cvta", "param|to param", &[version(7, 7)]),
    Feature("isspacep", "param", &[version(7, 7)]),
    Feature("getctarank|mapa", "", &[from(90, (7, 8))]),
    Feature("alloca|stacksave|stackrestore", "", &[version(7, 3)]),
    // Atomics.
    Feature("atom|red", "L2::cache_hint shared|shared::cta|shared::cluster", NEVER),
    Feature("atom|red|cp", "noftz f32", &[from(90, (9, 4))]),
    Feature("atom|red", "b128", &[from(90, (8, 3))]),
    Feature("atom|red", "bf16|bf16x2", &[from(90, (7, 8))]),
    Feature("atom|red", "v2|v4|v8", &[from(90, (8, 1))]),
    // Arithmetic and conversions.
    Feature("add|sub|mul", "bf16|bf16x2 !f32", &[from(90, (7, 8))]),
    Feature("add|sub|mul|fma", "f32x2", &[from(100, (8, 6))]),
    Feature("add|sub|fma", "f32 f16|bf16", &[from(100, (8, 6))]),
    Feature("add", "u16x2|s16x2", &[from(90, (8, 0))]),
    Feature("fma|abs|neg|min|max", "bf16|bf16x2 !f32", &[from(80, (7, 0))]),
    Feature("fma", "relu", &[from(80, (7, 0))]),
    Feature("fma", "oob", &[from(90, (8, 1))]),
    Feature("abs", "f16|f16x2", &[version(6, 5)]),
    Feature("min|max", "f16|f16x2", &[from(80, (7, 0))]),
    Feature("min|max", "NaN", &[from(80, (7, 0))]),
    Feature("min|max", "xorsign", &[from(86, (7, 2))]),
    Feature("min|max", "f32 #4", &[from(100, (8, 8))]),
    Feature("min|max", "f16|f16x2|bf16|bf16x2|f64|u16|s16|u32|s32|u64|s64 #4", NEVER),
    Feature("min|max", "xorsign #4", NEVER),
    Feature("min|max", "u16x2|s16x2|relu", &[from(90, (8, 0))]),
    Feature("tanh", "", &[version(7, 0)]),
    Feature("tanh", "bf16|bf16x2", &[from(90, (7, 8))]),
    Feature("ex2", "f16|f16x2", &[version(7, 0)]),
    Feature("ex2", "bf16|bf16x2", &[from(90, (7, 8))]),
    Feature("setp|set", "bf16|bf16x2", &[from(90, (7, 8))]),
    Feature("set", "u16|s16|u32|s32 $f16|f16x2", &[version(6, 5)]),
    Feature("bmsk|szext", "", &[version(7, 6)]),
    Feature("lop3", "or|and", &[version(8, 2)]),
    Feature("cvt", "bf16|bf16x2 f32", &[from(80, (7, 0))]),
    Feature("cvt", "f32 $bf16", &[from(80, (7, 1))]),
    Feature("cvt", "ftz f32 $bf16", &[from(90, (7, 8))]),
    Feature("cvt", "bf16 !f32", &[from(90, (7, 8))]),
    Feature("cvt", "f16x2 f32", &[from(80, (7, 0))]),
    Feature("cvt", "f16|f16x2 relu", &[from(80, (7, 0))]),
    Feature("cvt", "tf32", &[from(80, (7, 0))]),
    Feature("cvt", "tf32 rn|rz", &[from(90, (7, 8))]),
    Feature("cvt", "tf32 rn|rz satfinite", &[from(100, (8, 6))]),
    Feature("cvt", "satfinite f16|f16x2|bf16|bf16x2|tf32 f32", &[version(8, 1)]),
    Feature("cvt", "e4m3x2|e5m2x2", &[from(90, (7, 8)), from(89, (8, 1))]),
    Feature("cvt", "e2m1x2|e2m3x2|e3m2x2|ue8m0x2", BLACKWELL),
    Feature("cvt", "satfinite e2m3x2|e3m2x2 f16x2", BLACKWELL_9_1),
    Feature("cvt", "satfinite e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2 bf16x2", BLACKWELL_9_1),
    Feature("cvt", "bf16x2 e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2 !satfinite", BLACKWELL_9_2),
    Feature("cvt", "rs", &[own(&[100, 103], (8, 7))]),
    Feature("cvt", "pack", &[version(6, 5)]),
    // Warps, barriers and fences.
    Feature("match", "any (pair)", NEVER),
    Feature("redux", "", &[from(80, (7, 0))]),
    Feature("redux", "f32", &[own(&[100, 101, 103], (8, 6)), family(&[100], (8, 8))]),
    Feature("elect", "", &[from(90, (8, 0))]),
    Feature("bar|barrier", "cta", &[version(7, 8)]),
    Feature("barrier", "cluster", &[from(90, (7, 8))]),
    Feature("barrier", "cluster relaxed|release|acquire", &[from(90, (8, 0))]),
    Feature("griddepcontrol", "", &[from(90, (7, 8))]),
    Feature("setmaxnreg", "", &[own(&[90], (8, 0)), BLACKWELL_A, BLACKWELL_F]),
    Feature("clusterlaunchcontrol", "", &[from(100, (8, 6))]),
    Feature("clusterlaunchcontrol", "multicast::cluster::all", BLACKWELL),
    Feature("fence|membar", "proxy", &[version(7, 5)]),
    Feature("fence", "acquire|release !proxy !mbarrier_init", &[from(90, (8, 6))]),
    Feature("fence", "async|async::generic", &[from(90, (8, 0))]),
    Feature("fence", "mbarrier_init", &[from(90, (8, 0))]),
    Feature("fence", "tensormap::generic", &[from(90, (8, 3))]),
    Feature("fence", "^sync_restrict::", &[from(90, (8, 6))]),
    // mbarrier and asynchronous copies.
    Feature("mbarrier", "", &[from(80, (7, 0))]),
    Feature("mbarrier", "test_wait parity", &[from(80, (7, 1))]),
    Feature("mbarrier", "arrive _", &[from(80, (7, 1))]),
    Feature("mbarrier", "arrive|arrive_drop #3 !noComplete !expect_tx", &[from(90, (7, 8))]),
    Feature("mbarrier", "test_wait #4", NEVER),
    Feature("mbarrier", "arrive|arrive_drop shared::cluster !_", NEVER),
    Feature("mbarrier", "try_wait", &[from(90, (7, 8))]),
    Feature("mbarrier", "expect_tx|complete_tx", &[from(90, (8, 0))]),
    Feature("mbarrier", "release|acquire", &[from(80, (8, 0))]),
    Feature("mbarrier", "relaxed|shared::cluster", &[from(90, (8, 0))]),
    Feature("mbarrier", "arrive|arrive_drop|test_wait|try_wait relaxed", &[from(90, (8, 6))]),
    Feature("cp", "async", &[from(80, (7, 0))]),
    Feature("cp", "mbarrier shared::cta", &[from(80, (7, 8))]),
    Feature("cp", "async ^L2::", &[from(80, (7, 4))]),
    Feature("cp", "bulk", &[from(90, (8, 0))]),
    Feature("cp", "bulk cp_mask", &[from(100, (8, 6))]),
    Feature("cp", "bulk shared::cta mbarrier::complete_tx::bytes !shared::cluster", &[from(90, (8, 6))]),
    Feature("cp", "cta_group::1|cta_group::2", DATACENTRE),
    Feature("cp", "tile::gather4", &[from(100, (8, 6))]),
    Feature("cp", "tile::gather4 !shared::cta", DATACENTRE),
    Feature("cp", "tile::scatter4", DATACENTRE),
    Feature("tensormap", "replace", &[own(&[90], (8, 3)), BLACKWELL_A, BLACKWELL_F]),
    Feature("tensormap", "swizzle_atomicity", BLACKWELL),
    Feature("tensormap", "cp_fenceproxy", &[from(90, (8, 3))]),
    // Matrices.
    Feature("ldmatrix", "", &[version(6, 5)]),
    Feature("ldmatrix", "b8|b8x16", BLACKWELL),
    Feature("stmatrix", "", &[from(90, (7, 8))]),
    Feature("stmatrix", "b8", BLACKWELL),
    Feature("movmatrix", "", &[version(7, 8)]),
    Feature("mma", "", &[version(6, 4)]),
    Feature("mma", "m16n8k8|m8n8k16|m8n8k32", &[version(6, 5)]),
    Feature("mma", "m8n8k128", &[version(7, 0)]),
    Feature("mma", "m16n8k16|m16n8k4|m16n8k32|m16n8k64|m16n8k128|m16n8k256", &[from(80, (7, 0))]),
    Feature("mma|wmma", "bf16|tf32|f64", &[from(80, (7, 0))]),
    Feature("wmma", "local", NEVER),
    Feature("wmma", "m16n16k8", &[from(80, (7, 0))]),
    Feature("mma|wmma", "and popc", &[from(80, (7, 1))]),
    Feature("mma", "m16n8k4|m16n8k8|m16n8k16 f64", &[from(90, (7, 8))]),
    Feature("mma", "e4m3|e5m2", &[from(89, (8, 4))]),
    Feature("mma", "m16n8k16 e4m3|e5m2", &[from(89, (8, 7))]),
    Feature("mma", "e4m3|e5m2 m16n8k32 f16 !kind::f8f6f4", &[from(89, (8, 7))]),
    Feature("mma", "kind::f8f6f4", BLACKWELL),
    Feature("mma", "kind::f8f6f4 f16", &[own(&[100, 101, 103, 110, 120, 121], (8, 7)), BLACKWELL_F]),
    Feature("mma", "e2m1|e2m3|e3m2|block_scale", &[own(&[120, 121], (8, 7)), family(&[120], (8, 8))]),
    Feature("mma", "kind::mxf4nvf4 scale_vec::4X ue8m0", &[family(&[120], (9, 1))]),
    // Tensor cores of warpgroups and CTAs.
    Feature("wgmma", "", &[own(&[90], (8, 0))]),
    Feature("wgmma", "s8 u8", &[own(&[90], (8, 4))]),
    Feature("tcgen05", "", DATACENTRE),
    Feature("tcgen05", "alloc shared|shared::cluster", NEVER),
    Feature("tcgen05", "commit shared::cta", NEVER),
    Feature("tcgen05", "mma !ws ^collector::b", NEVER),
    Feature("tcgen05", "^scale_vec::", DATACENTRE_A),
    Feature("tcgen05", "shift", DATACENTRE_A),
    Feature("tcgen05", "block16|block32", DATACENTRE_8_8),
    Feature("tcgen05", "kind::mxf4nvf4", &[own(&[100, 101, 103, 110], (8, 7)), family(&[100, 110], (8, 8))]),
    // Without `.scale_vec` its scales are `.block32`.
    Feature("tcgen05", "kind::mxf8f6f4 !scale_vec::1X", DATACENTRE_8_8),
    Feature("tcgen05", "kind::i8", &[own(&[100, 101, 110], (8, 6))]),
];

/// Special registers, by the beginnings of their names.
pub(super) const REGISTERS: &[Named] = &[
    Named("%cluster", from(90, (7, 8))),
    Named("%nclusterid", from(90, (7, 8))),
    Named("%is_explicit_cluster", from(90, (7, 8))),
    Named("%aggr_smem_size", from(90, (8, 1))),
    Named("%reserved_smem_offset_", from(80, (7, 6))),
];

/// Directives of kernels.
pub(super) const DIRECTIVES: &[Named] = &[
    Named("reqnctapercluster", from(90, (7, 8))),
    Named("explicitcluster", from(90, (7, 8))),
    Named("maxclusterrank", from(90, (7, 8))),
    Named("blocksareclusters", from(90, (9, 0))),
];

/// The first PTX version of each target, by its number and whether it has a suffix `a` or `f`.
pub(super) const TARGETS: &[(u32, Option<char>, (u32, u32))] = &[
    (75, None, (6, 3)),
    (80, None, (7, 0)),
    (86, None, (7, 1)),
    (87, None, (7, 4)),
    (88, None, (9, 0)),
    (89, None, (7, 8)),
    (90, None, (7, 8)),
    (90, Some('a'), (8, 0)),
    (100, None, (8, 6)),
    (100, Some('a'), (8, 6)),
    (100, Some('f'), (8, 8)),
    (101, None, (8, 6)),
    (101, Some('a'), (8, 6)),
    (101, Some('f'), (8, 8)),
    (103, None, (8, 8)),
    (103, Some('a'), (8, 8)),
    (103, Some('f'), (8, 8)),
    (110, None, (9, 0)),
    (110, Some('a'), (9, 0)),
    (110, Some('f'), (9, 0)),
    (120, None, (8, 7)),
    (120, Some('a'), (8, 7)),
    (120, Some('f'), (8, 8)),
    (121, None, (8, 8)),
    (121, Some('a'), (8, 8)),
    (121, Some('f'), (8, 8)),
];

/// All versions of PTX since the first target's.
pub(super) const VERSIONS: &[(u32, u32)] = &[
    (6, 3),
    (6, 4),
    (6, 5),
    (7, 0),
    (7, 1),
    (7, 2),
    (7, 3),
    (7, 4),
    (7, 5),
    (7, 6),
    (7, 7),
    (7, 8),
    (8, 0),
    (8, 1),
    (8, 2),
    (8, 3),
    (8, 4),
    (8, 5),
    (8, 6),
    (8, 7),
    (8, 8),
    (9, 0),
    (9, 1),
    (9, 2),
    (9, 3),
    (9, 4),
    (9, 5),
];

/// Static shared memory of a CTA in bytes: of targets without a suffix or with `f`, of those with `a` whose
/// numbers begin so, and of all others with `a` (ptxas 13.0).
pub(super) const STATIC_SHARED: (u32, &[(u32, u32)], u32) =
    (48 << 10, &[(12, 99 << 10)], 227 << 10);
