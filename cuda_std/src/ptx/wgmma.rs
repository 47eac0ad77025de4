//! Products of a warpgroup: `wgmma` with the A operand in registers.
//!
//! Four warps execute each instruction together. A [`wgmma_fence`] orders earlier writes of the
//! operand and accumulator registers before the product. From then on the tensor core uses these
//! registers, until a [`wgmma_wait_group`] covers the product's group. [`pin`](super::marker::pin)
//! keeps values on their side of such an instruction, because the compiler may move arithmetic
//! across inline assembly.

use core::arch::asm;

/// `wgmma.fence.sync.aligned;` ISA 9.7.15.7.1. sm_90a. The warpgroup. Orders
/// writes of registers before the products that use them.
///
/// # Safety
/// All threads of the warpgroup reach this same call.
#[inline(always)]
pub unsafe fn wgmma_fence() {
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack, preserves_flags)) }
}

/// `wgmma.commit_group.sync.aligned;` ISA 9.7.15.7.2. sm_90a. The warpgroup.
/// Its products since the last commit become a group.
///
/// # Safety
/// All threads of the warpgroup reach this same call.
#[inline(always)]
pub unsafe fn wgmma_commit_group() {
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack, preserves_flags)) }
}

/// `wgmma.wait_group.sync.aligned N;` ISA 9.7.15.7.3. sm_90a. The warpgroup. Waits
/// until at most its last `N` groups are incomplete.
///
/// # Safety
/// All threads of the warpgroup reach this same call.
#[inline(always)]
pub unsafe fn wgmma_wait_group<const N: u32>() {
    // SAFETY: the caller guarantees convergence; no nomem/readonly/pure.
    unsafe {
        asm!("wgmma.wait_group.sync.aligned {};", const N, options(nostack, preserves_flags));
    }
}

/// A function for one instruction: its documentation; its name, with the name of an argument that
/// says whether to add, where it has one; what stands before the instruction; shape and type of the
/// operands; the flags behind them; the number of sums per thread and their indices.
macro_rules! product {
    (
        $(#[$doc:meta])*
        $name:ident($($add:ident)?), $before:literal, $shape:literal, $type:literal, $flags:literal,
        $sums:literal, $first:literal $($rest:literal)*
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// * All threads of the warpgroup reach this same call.
        /// * `b` is the matrix descriptor of a tile whose writes are visible to the async proxy.
        /// * Nothing accesses the registers of `sums` and `a` until the product has been waited
        ///   for.
        #[inline(always)]
        pub unsafe fn $name(sums: &mut [f32; $sums], a: [u32; 4], b: u64 $(, $add: u32)?) {
            // SAFETY: the caller guarantees convergence, tile and registers; no
            // nomem/readonly/pure.
            unsafe {
                asm!(
                    concat!(
                        $before, "wgmma.mma_async.sync.aligned.", $shape, ".f32.", $type, ".", $type,
                        " {{{", $first, "}", $(", {", $rest, "}",)*
                        "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, ", $flags
                    ),
                    inout(reg32) sums[$first],
                    $(inout(reg32) sums[$rest],)*
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1],
                    a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b = in(reg64) b,
                    $($add = in(reg32) $add,)?
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

/// Functions for one N: names for f16 and bf16 operands, shape, number of sums per
/// thread, their indices.
macro_rules! halves {
    ($($f16:ident, $bf16:ident, $shape:literal, $sums:literal, $($indices:literal)*;)*) => {
        $(
            halves!($f16, "f16", $shape, $sums, $($indices)*);
            halves!($bf16, "bf16", $shape, $sums, $($indices)*);
        )*
    };
    ($name:ident, $type:literal, $shape:literal, $sums:literal, $($indices:literal)*) => {
        product! {
            #[doc = concat!("`wgmma.mma_async.sync.aligned.", $shape, ".f32.", $type, ".", $type, " {d}, {a}, b, 1, 1, 1, 0;`")]
            /// ISA 9.7.15.5. sm_90a. The warpgroup. Adds the product of 64 rows in
            /// registers with a K-major tile of shared memory to the sums.
            $name(), "", $shape, $type, "1, 1, 1, 0;", $sums, $($indices)*
        }
    };
}

halves! {
    wgmma_m64n8k16_f32_f16_f16, wgmma_m64n8k16_f32_bf16_bf16, "m64n8k16", 4,
        0 1 2 3;
    wgmma_m64n16k16_f32_f16_f16, wgmma_m64n16k16_f32_bf16_bf16, "m64n16k16", 8,
        0 1 2 3 4 5 6 7;
    wgmma_m64n32k16_f32_f16_f16, wgmma_m64n32k16_f32_bf16_bf16, "m64n32k16", 16,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15;
    wgmma_m64n40k16_f32_f16_f16, wgmma_m64n40k16_f32_bf16_bf16, "m64n40k16", 20,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19;
    wgmma_m64n48k16_f32_f16_f16, wgmma_m64n48k16_f32_bf16_bf16, "m64n48k16", 24,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23;
    wgmma_m64n64k16_f32_f16_f16, wgmma_m64n64k16_f32_bf16_bf16, "m64n64k16", 32,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31;
    wgmma_m64n80k16_f32_f16_f16, wgmma_m64n80k16_f32_bf16_bf16, "m64n80k16", 40,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39;
    wgmma_m64n96k16_f32_f16_f16, wgmma_m64n96k16_f32_bf16_bf16, "m64n96k16", 48,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47;
    wgmma_m64n112k16_f32_f16_f16, wgmma_m64n112k16_f32_bf16_bf16, "m64n112k16", 56,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55;
    wgmma_m64n128k16_f32_f16_f16, wgmma_m64n128k16_f32_bf16_bf16, "m64n128k16", 64,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63;
    wgmma_m64n160k16_f32_f16_f16, wgmma_m64n160k16_f32_bf16_bf16, "m64n160k16", 80,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79;
    wgmma_m64n176k16_f32_f16_f16, wgmma_m64n176k16_f32_bf16_bf16, "m64n176k16", 88,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87;
    wgmma_m64n192k16_f32_f16_f16, wgmma_m64n192k16_f32_bf16_bf16, "m64n192k16", 96,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90
        91 92 93 94 95;
    wgmma_m64n208k16_f32_f16_f16, wgmma_m64n208k16_f32_bf16_bf16, "m64n208k16", 104,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90
        91 92 93 94 95 96 97 98 99 100 101 102 103;
    wgmma_m64n224k16_f32_f16_f16, wgmma_m64n224k16_f32_bf16_bf16, "m64n224k16", 112,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90
        91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111;
    wgmma_m64n240k16_f32_f16_f16, wgmma_m64n240k16_f32_bf16_bf16, "m64n240k16", 120,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90
        91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114
        115 116 117 118 119;
    wgmma_m64n256k16_f32_f16_f16, wgmma_m64n256k16_f32_bf16_bf16, "m64n256k16", 128,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61
        62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90
        91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114
        115 116 117 118 119 120 121 122 123 124 125 126 127;
}

/// Functions for one N of e4m3 operands: names of the one that adds and of the one whose caller says
/// whether, shape, number of sums per thread, their indices.
macro_rules! bytes {
    ($($add:ident, $choose:ident, $shape:literal, $sums:literal, $($indices:literal)*;)*) => {
        $(bytes!($add, $choose, $shape, $sums, $($indices)*);)*
    };
    ($add:ident, $choose:ident, $shape:literal, $sums:literal, $($indices:literal)*) => {
        product! {
            #[doc = concat!("`wgmma.mma_async.sync.aligned.", $shape, ".f32.e4m3.e4m3 {d}, {a}, b, 1, 1, 1;`")]
            /// ISA 9.7.15.5. sm_90a. The warpgroup. Adds the product of 64 rows in registers, four
            /// columns in each, and a K-major tile of shared memory to the sums.
            $add(), "", $shape, "e4m3", "1, 1, 1;", $sums, $($indices)*
        }
        product! {
            #[doc = concat!("`wgmma.mma_async.sync.aligned.", $shape, ".f32.e4m3.e4m3 {d}, {a}, b, p, 1, 1;`")]
            #[doc = concat!("As [`", stringify!($add), "`], where `add` is not 0, and otherwise sets the sums")]
            /// to the product. The registers of `sums` are those of the old sums in either case.
            $choose(add), "{{ .reg .pred p; setp.ne.b32 p, {add}, 0; ", $shape, "e4m3",
            "p, 1, 1; }}", $sums, $($indices)*
        }
    };
}

bytes! {
    wgmma_m64n32k32_f32_e4m3_e4m3, wgmma_m64n32k32_f32_e4m3_e4m3_choose, "m64n32k32", 16,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15;
    wgmma_m64n64k32_f32_e4m3_e4m3, wgmma_m64n64k32_f32_e4m3_e4m3_choose, "m64n64k32", 32,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
        31;
    wgmma_m64n96k32_f32_e4m3_e4m3, wgmma_m64n96k32_f32_e4m3_e4m3_choose, "m64n96k32", 48,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
        31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47;
    wgmma_m64n112k32_f32_e4m3_e4m3, wgmma_m64n112k32_f32_e4m3_e4m3_choose, "m64n112k32", 56,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
        31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55;
    wgmma_m64n128k32_f32_e4m3_e4m3, wgmma_m64n128k32_f32_e4m3_e4m3_choose, "m64n128k32", 64,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
        31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57
        58 59 60 61 62 63;
    wgmma_m64n160k32_f32_e4m3_e4m3, wgmma_m64n160k32_f32_e4m3_e4m3_choose, "m64n160k32", 80,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60
        61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79;
    wgmma_m64n192k32_f32_e4m3_e4m3, wgmma_m64n192k32_f32_e4m3_e4m3_choose, "m64n192k32", 96,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60
        61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89
        90 91 92 93 94 95;
    wgmma_m64n224k32_f32_e4m3_e4m3, wgmma_m64n224k32_f32_e4m3_e4m3_choose, "m64n224k32", 112,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
        30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56
        57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83
        84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107
        108 109 110 111;
    wgmma_m64n256k32_f32_e4m3_e4m3, wgmma_m64n256k32_f32_e4m3_e4m3_choose, "m64n256k32", 128,
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
        30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56
        57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83
        84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107
        108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127;
}
