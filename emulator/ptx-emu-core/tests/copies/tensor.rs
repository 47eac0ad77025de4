//! Values of tensor copies, equal under every schedule.

use crate::async_support::{Case, barriers, wait};
use ptx_emu_core::Schedule;
use ptx_emu_core::tensor_map::{ElementType, Swizzle, TensorMap};

/// A map of the output: the harness adds its address.
const OUT: u64 = 1 << 63;

fn load(rank: usize, coordinates: &str, bytes: u32, words: u32) -> String {
    format!(
        "{}
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {bytes};
        @%leader cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%s], [%map, {{{coordinates}}}], [%b];
        {}
        mov.u32 %r9, 0;
        L: mad.lo.u32 %r1, %r9, 32, %tid; mad.lo.u32 %r2, %r1, 4, %s; ld.shared.u32 %r3, [%r2];
        mad.wide.u32 %d1, %r1, 4, %out; st.global.u32 [%d1], %r3;
        add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, {}; @%p1 bra L;",
        barriers(&[1]),
        wait(0, "0", "W0"),
        words / 32,
    )
}

#[test]
fn a_box_that_leaves_the_tensor() {
    // 10 columns of 20 rows, 64 bytes apart; a box of 8 by 8 at (4, 15).
    let map = TensorMap::tiled(ElementType::U32, 0, &[10, 20], &[64], &[8, 8]);
    let case =
        Case { map: Some(map), ..Case::new(&load(2, "4, 15", 256, 64)).out(256).u32s(0..512) };
    let expected = (0..64u32).map(|i| {
        let (x, y) = (4 + i % 8, 15 + i / 8);
        if x < 10 && y < 20 { y * 16 + x } else { 0 }
    });
    case.gives_words(expected);
    let (_, report) = case.launch(Schedule::Eager).unwrap();
    let loads = report.counters.asynchronous.tensor_loads;
    assert_eq!((loads.operations, loads.bytes), (1, 256));
}

#[test]
fn ranks_one_to_five() {
    for rank in 1..=5usize {
        let dims = [8u64, 4, 3, 3, 2][..rank].to_vec();
        let boxes = [8u32, 2, 2, 2, 2][..rank].to_vec();
        let mut strides = Vec::new();
        let mut stride = 32;
        for &dim in &dims[1..] {
            strides.push(stride);
            stride *= dim;
        }
        let map = TensorMap::tiled(ElementType::U32, 0, &dims, &strides, &boxes);
        let elements: u32 = boxes.iter().product();
        let coordinates = ["0", "1", "1", "1", "0"][..rank].join(", ");
        let words = elements.max(32);
        let body = load(rank, &coordinates, elements * 4, words);
        let body = if elements < 32 {
            body.replace(
                "ld.shared.u32",
                &format!("setp.ge.u32 %p2, %tid, {elements}; @%p2 bra E; ld.shared.u32"),
            ) + " E:"
        } else {
            body
        };
        let case =
            Case { map: Some(map), ..Case::new(&body).out(u64::from(elements) * 4).u32s(0..600) };
        let expected = (0..elements).map(|i| {
            let (mut rest, mut at, mut scale) = (i, 0, 1);
            for d in 0..rank {
                let start = [0, 1, 1, 1, 0][d];
                at += (start + rest % boxes[d]) * scale;
                rest /= boxes[d];
                scale *= dims[d] as u32;
            }
            // Rows 2 and 3 of the 3-wide dimensions are outside for start 1.
            let inside = {
                let mut rest = i;
                (0..rank).all(|d| {
                    let c = [0, 1, 1, 1, 0][d] + rest % boxes[d];
                    rest /= boxes[d];
                    u64::from(c) < dims[d]
                })
            };
            if inside { at } else { 0 }
        });
        case.gives_words(expected);
    }
}

#[test]
fn a_swizzled_load() {
    let map = TensorMap {
        swizzle: Swizzle::B128,
        ..TensorMap::tiled(ElementType::U32, 0, &[32, 16], &[128], &[32, 16])
    };
    let case =
        Case { map: Some(map), ..Case::new(&load(2, "0, 0", 2048, 512)).out(2048).u32s(0..512) };
    case.gives_words((0..512u32).map(|i| {
        let (row, chunk) = (i / 32, i / 4 % 8);
        row * 32 + (chunk ^ (row % 8)) * 4 + i % 4
    }));
    let (_, report) = case.launch(Schedule::Eager).unwrap();
    assert_eq!(report.counters.global.sectors_read, 2048 / 32);
}

#[test]
fn stores_are_clipped_and_reductions_add() {
    for (form, factor) in [
        ("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", 1u32),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group", 2),
    ] {
        // Twice the same box of 8 by 4 at (4, 2) of a tensor of 8 by 5.
        let map = TensorMap::tiled(ElementType::U32, OUT, &[8, 5], &[32], &[8, 4]);
        let body = format!(
            "{}
            mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], 0; st.global.u32 [%d1+128], 0;
            mad.lo.u32 %r1, %tid, 4, %s; add.u32 %r2, %tid, 1; st.shared.u32 [%r1], %r2;
            fence.proxy.async; bar.sync 0;
            @!%leader bra END;
            {form} [%map, {{4, 2}}], [%s];
            cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
            {form} [%map, {{4, 2}}], [%s];
            cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
            END:",
            barriers(&[1]),
        );
        let case = Case { map: Some(map), ..Case::new(&body).out(256) };
        case.gives_words((0..64u32).map(|i| {
            let (x, y) = (i % 8, i / 8);
            let inside = x >= 4 && (2..5).contains(&y);
            if inside { factor * ((y - 2) * 8 + x - 4 + 1) } else { 0 }
        }));
    }
}

/// A box of the third dimension from swizzled shared memory, clipped at two edges; sectors
/// are counted once, though the swizzle cuts rows into half sectors.
#[test]
fn a_swizzled_store() {
    let map = TensorMap {
        swizzle: Swizzle::B64,
        ..TensorMap::tiled(ElementType::U32, OUT, &[24, 6, 2], &[96, 576], &[16, 8, 1])
    };
    let body = format!(
        "{}
        mov.u32 %r9, 0;
        Z: mad.lo.u32 %r1, %r9, 32, %tid; mad.wide.u32 %d1, %r1, 4, %out; st.global.u32 [%d1], 0;
        add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 9; @%p1 bra Z;
        mov.u32 %r9, 0;
        L: mad.lo.u32 %r1, %r9, 32, %tid; mul.lo.u32 %r2, %r1, 4;
        shr.u32 %r3, %r2, 7; and.b32 %r3, %r3, 3; shl.b32 %r3, %r3, 4; xor.b32 %r2, %r2, %r3;
        add.u32 %r2, %r2, %s; add.u32 %r1, %r1, 1; st.shared.u32 [%r2], %r1;
        add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 4; @%p1 bra L;
        fence.proxy.async.shared::cta; bar.warp.sync -1;
        @!%leader bra END;
        cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%map, {{8, 2, 1}}], [%s];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
        cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%map, {{16, 0, 0}}], [%s];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        END:",
        barriers(&[1]),
    );
    let case = Case { map: Some(map), ..Case::new(&body).out(1152) };
    case.gives_words((0..288u32).map(|i| {
        let (x, y, z) = (i % 24, i / 24 % 6, i / 144);
        match (x, y, z) {
            (8.., 2.., 1) => (y - 2) * 16 + (x - 8) + 1,
            (16.., _, 0) => y * 16 + (x - 16) + 1,
            _ => 0,
        }
    }));
    let (_, report) = case.launch(Schedule::Eager).unwrap();
    let stores = report.counters.asynchronous.tensor_stores;
    assert_eq!((stores.operations, stores.bytes), (2, 4 * 64 + 6 * 32));
    // 36 of the zeros.
    assert_eq!(report.counters.global.sectors_written, 36 + 4 * 2 + 6);
}

#[test]
fn multicast_and_pairs() {
    // Two CTAs; each loads half of the box's rows for both. The even CTA's
    // barrier hears for the pair.
    let map = TensorMap::tiled(ElementType::U32, 0, &[32, 4], &[128], &[32, 2]);
    let body = format!(
        "{}
        setp.eq.and.u32 %p1, %rank, 0, %leader;
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 1024;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        mov.b16 %h1, 3; mad.lo.u32 %r1, %rank, 256, %s; shl.b32 %r2, %rank, 1;
        and.b32 %r3, %b, 0xfeffffff;
        @%leader cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%map, {{0, %r2}}], [%r3], %h1;
        setp.ne.u32 %p2, %rank, 0; @%p2 bra MEET;
        {}
        MEET: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        mov.u32 %r9, 0;
        L: mad.lo.u32 %r4, %r9, 32, %tid; mad.lo.u32 %r5, %r4, 4, %s; ld.shared.u32 %r6, [%r5];
        mad.lo.u32 %r7, %cta, 128, %r4; mad.wide.u32 %d1, %r7, 4, %out; st.global.u32 [%d1], %r6;
        add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, 4; @%p3 bra L;",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    let case =
        Case { map: Some(map), sm100: true, ..Case::new(&body).cluster(2).out(1024).u32s(0..512) };
    case.gives_words((0..128).chain(0..128));
}

#[test]
fn gather_and_scatter() {
    let map = TensorMap::tiled(ElementType::U32, 0, &[16, 30], &[64], &[8, 1]);
    let body = format!(
        "{}
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%s], [%map, {{4, 7, 29, 0, 30}}], [%b];
        {}
        mad.lo.u32 %r2, %tid, 4, %s; ld.shared.u32 %r3, [%r2];
        mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %r3;",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    let case = Case { map: Some(map), sm100: true, ..Case::new(&body).u32s(0..512) };
    case.gives_words((0..32u32).map(|i| {
        let row = [7, 29, 0, 30][i as usize / 8];
        if row == 30 { 0 } else { row * 16 + 4 + i % 8 }
    }));
}

#[test]
fn maps_edited_on_the_device() {
    // The map parameter's address is off; a copy in shared memory gets the right
    // one, goes to global memory and is used from there.
    let map = TensorMap::tiled(ElementType::U32, 1024, &[4, 8], &[128], &[8, 4]);
    let body = format!(
        "{}
        mad.lo.u32 %r1, %tid, 4, %s; cvt.u64.u32 %d1, %tid; shl.b64 %d1, %d1, 2;
        add.u64 %d2, %map, %d1; ld.u32 %r2, [%d2]; st.shared.u32 [%r1], %r2;
        bar.warp.sync -1;
        @%leader tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%s], %in;
        @%leader tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%s], 0, 16;
        @%leader tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%s], 0, 64;
        bar.warp.sync -1;
        tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%out+128], [%s], 128;
        add.u64 %d3, %out, 128;
        fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%s+1024], [%d3, {{8, 1}}], [%b];
        {}
        ld.shared.u32 %r3, [%r1+1024]; add.u64 %d4, %out, %d1; st.global.u32 [%d4], %r3;",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    let case = Case { map: Some(map), ..Case::new(&body).out(256).u32s(0..512) };
    for schedule in crate::async_support::schedules() {
        let (out, _) = case.launch(schedule).unwrap();
        for i in 0..32usize {
            let word = u32::from_le_bytes(out[4 * i..4 * i + 4].try_into().unwrap());
            let expected = (1 + i as u32 / 8) * 16 + 8 + i as u32 % 8;
            assert_eq!(word, expected, "word {i}, schedule {schedule}");
        }
    }
}

#[test]
fn prefetches_have_no_effect() {
    let map = TensorMap::tiled(ElementType::U32, 0, &[16, 16], &[64], &[8, 8]);
    let body = "prefetch.tensormap [%map];
        cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {0, 0}];
        cp.async.bulk.prefetch.L2.global [%in], 64;
        mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %tid;";
    let case = Case { map: Some(map), ..Case::new(body) };
    case.gives_words(0..32);
}
