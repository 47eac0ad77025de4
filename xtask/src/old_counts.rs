//! scratch
use fp4_formats::Arch;
use fp4_formats::arch::TensorFamily;
fn expected_synchronisation() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
    use fp4_formats::{gemv, quantize};
    let mut expected = Vec::new();
    for config in &gemv::CONFIGS {
        let rows = config.rows_per_warp as usize;
        let shuffles = rows - 1 + 5 - rows.ilog2() as usize;
        expected.push((config.name, vec![("bar.sync", 2), ("shfl.sync.bfly.b32", shuffles)]));
    }
    for config in &quantize::QUANTIZE {
        expected.push((config.name, vec![("bar.warp.sync", 2)]));
    }
    for config in &quantize::AMAX {
        expected.push((config.name, vec![("bar.sync", 1), ("redux.sync.max.u32", 2)]));
    }
    for config in &quantize::DEQUANTIZE {
        expected.push((config.name, Vec::new()));
    }
    expected
}

/// The same for the GEMM of sm_100a. Warps come together before each of the two meetings
/// of all threads; those that use tensor memory meet behind its allocation; storing ones once they have sums, at each of the places where they give
/// an accumulator back, which are as many as read it last, after a chunk on either way out,
/// a part of one, a block of NVFP4, and for the next tile; before a box of results is filled
/// and before it is stored, in code of its own for either size of results and, of a chunk
/// of wide ones, for either box; in a split around the exchange's writes and after
/// its reads. Decoding ones before and after a K step, and for the next tile. Boxes take what
/// belongs to columns from the lanes: one vector if swapped, else two. Chunks for boxes are
/// read ahead, one or those that accumulators share, then in a loop, and in the loop of the
/// other way out. Blocks of swapped products are transposed by shuffles.
fn blackwell_synchronisation() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
    use fp4_formats::gemm::blackwell::CONFIGS;
    use fp4_formats::{BlockFormat, Nvfp4};
    let mut expected = Vec::new();
    for config in &CONFIGS {
        let (split, halves) = (config.splits > 1, config.left.is_some());
        let [alloc, dealloc, relinquish] = if config.pair == 1 {
            [
                "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32",
                "tcgen05.dealloc.cta_group::1.sync.aligned.b32",
                "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned",
            ]
        } else {
            [
                "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32",
                "tcgen05.dealloc.cta_group::2.sync.aligned.b32",
                "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned",
            ]
        };
        let block = Nvfp4::BLOCK;
        let mut counts = vec![
            ("bar.warp.sync", if split { 15 } else { 18 } + if halves { 3 } else { 0 }),
            ("elect.sync", 4),
            (alloc, 1),
            (dealloc, 1),
            ("tcgen05.ld.sync.aligned.32x32b.x8.b32", if split { 2 } else { 1 }),
            ("tcgen05.ld.sync.aligned.32x32b.x16.b32", 1),
            ("shfl.sync.bfly.b32", block / 2 * block.ilog2() as usize),
            (relinquish, 1),
            ("shfl.sync.idx.b32", if split { 3 * 8 } else { 3 * 32 }),
        ];
        if split {
            counts.push(("tcgen05.wait::ld.sync.aligned", 3));
        } else {
            let wide = if config.accumulators_overlap() && !halves { 5 } else { 3 };
            counts.push(("tcgen05.ld.sync.aligned.32x32b.x32.b32", wide));
            counts.push(("tcgen05.wait::ld.sync.aligned", 2 + wide));
        }
        if config.cluster() > 1 {
            counts.push(("bar.sync", 1));
            counts.push(("barrier.cluster.arrive.relaxed.aligned", 1));
            counts.push(("barrier.cluster.arrive.release.aligned", 1));
            counts.push(("barrier.cluster.wait.acquire.aligned", 2));
        } else {
            counts.push(("bar.sync", 3));
        }
        if halves {
            counts.push(("tcgen05.st.sync.aligned.32x32b.x16.b32", 4));
            counts.push(("tcgen05.wait::st.sync.aligned", 1));
        }
        counts.sort_unstable();
        expected.push((config.name, counts));
    }
    expected
}

/// The same for the GEMM of sm_90a. Of a CTA: all threads once; consumers when they give, take,
/// have read and have summed, and in a cluster when they have read, and where they send, when all
/// CTAs have offered. Warps after waiting for flags, and around sending. The cluster meets twice;
/// where sums are loaded, the second time in two ways. CTAs that share activations meet instead
/// of all threads, and in the end, each time behind their warps, which also come together before
/// they tell the other CTA: of a stage in the loop and behind it, and of stored sums.
fn hopper_synchronisation() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
    use fp4_formats::gemm::hopper::{CONFIGS, Operand};
    let mut expected = Vec::new();
    for config in &CONFIGS {
        let mut counts = if config.sharers > 1 {
            vec![
                ("bar.sync", 4),
                ("bar.warp.sync", 7),
                ("barrier.cluster.arrive.release.aligned", 2),
                ("barrier.cluster.wait.acquire.aligned", 2),
            ]
        } else if config.loads_remote() {
            vec![
                ("bar.sync", 6),
                ("bar.warp.sync", 1),
                ("barrier.cluster.arrive.relaxed.aligned", 1),
                ("barrier.cluster.arrive.release.aligned", 2),
                ("barrier.cluster.wait.acquire.aligned", 3),
            ]
        } else {
            vec![
                ("bar.sync", 7),
                ("bar.warp.sync", 4),
                ("barrier.cluster.arrive.relaxed.aligned", 2),
                ("barrier.cluster.wait.acquire.aligned", 2),
            ]
        };
        counts.push(("setmaxnreg.dec.sync.aligned.u32", 1));
        counts.push(("setmaxnreg.inc.sync.aligned.u32", 1));
        if config.by_warp() {
            // Of each group of eight tokens, four pieces and eight products a step.
            let groups = config.tokens as usize / 8;
            let product = match config.scheme.operand {
                Operand::F16 => "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
                Operand::Bf16 => "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            };
            counts.push(("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4 * groups));
            counts.push((product, 8 * groups));
        } else {
            // Two units of four products a step, of each block of rows.
            let units = 2 * config.row_blocks() as usize;
            let product = match (config.tokens, config.scheme.operand) {
                (32, Operand::F16) => "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16",
                (32, Operand::Bf16) => "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16",
                (64, Operand::F16) => "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
                (64, Operand::Bf16) => "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16",
                (_, Operand::F16) => "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16",
                (_, Operand::Bf16) => "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
            };
            counts.push((product, 4 * units));
            counts.push(("wgmma.commit_group.sync.aligned", units));
            counts.push(("wgmma.fence.sync.aligned", units));
            counts.push(("wgmma.wait_group.sync.aligned", units + 1));
        }
        counts.sort_unstable();
        expected.push((config.name, counts));
    }
    expected
}

#[test]
fn formulas_agree_with_the_file() {
    for arch in Arch::ALL {
        let counts = crate::counts::expected(arch).unwrap();
        let mut all = expected_synchronisation();
        all.extend(match arch.tensor() {
            TensorFamily::Wgmma => hopper_synchronisation(),
            TensorFamily::Tcgen05 => blackwell_synchronisation(),
        });
        for (entry, expected) in &all {
            let found: Vec<(&str, usize)> =
                counts[*entry].iter().map(|(o, c)| (o.as_str(), *c)).collect();
            assert_eq!(&found, expected, "{entry}");
        }
        println!("{arch}: {} formulas of {} kernels", all.len(), counts.len());
    }
}
