//! Behaviour that real kernels silently rely on, one test a point: 67 Hopper and Blackwell kernels
//! of other projects take it for granted.

use crate::async_support::{Case, barriers, wait};
use ptx_emu_core::tensor_map::{ElementType, Swizzle, TensorMap};
use ptx_emu_core::{Checks, GlobalMemory, Gpu, Launch, LaunchReport, Module, Schedule};

const ALL: [Schedule; 5] = [
    Schedule::Eager,
    Schedule::Lazy,
    Schedule::Random(1),
    Schedule::Random(2),
    Schedule::Random(3),
];

/// A store of `%r{n}` to the word of the thread, CTA after CTA.
fn store(register: &str) -> String {
    format!(
        "mov.u32 %r58, %ntid.x; mad.lo.u32 %r58, %r58, %cta, %tid;
        mad.wide.u32 %d58, %r58, 4, %out; st.global.u32 [%d58], {register};"
    )
}

/// A launch of a module that has one kernel.
struct Kernel<'a> {
    text: &'a str,
    gpu: Gpu,
    block: u32,
    dynamic_shared: u32,
    params: Vec<u8>,
}

impl Kernel<'_> {
    fn run(&self, memory: &mut GlobalMemory, schedule: Schedule) -> LaunchReport {
        let module = Module::load(self.text, &self.gpu).unwrap_or_else(|error| panic!("{error}"));
        let launch = Launch {
            entry: "k",
            grid: [1, 1, 1],
            block: [self.block, 1, 1],
            cluster: None,
            dynamic_shared: self.dynamic_shared,
            params: &self.params,
            schedule,
            threads: Some(1),
            instruction_limit: Some(10_000_000),
            checks: Checks::default(),
        };
        module.launch(memory, &launch).unwrap_or_else(|error| panic!("{schedule}: {error}"))
    }
}

fn words(memory: &GlobalMemory, at: u64, count: usize) -> Vec<u32> {
    let bytes = memory.read(at, 4 * count as u64).expect("written");
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4"))).collect()
}

#[test]
fn p01_shared_addresses_carry_the_rank_from_bit_24() {
    // Rank 1 clears bit 24 of one of its addresses and stores there: rank 0
    // finds it. Each writes the address of its variable.
    let body = format!(
        "st.shared.u32 [%s], 0; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        and.b32 %r1, %s, 0xfeffffff; setp.eq.and.u32 %p1, %rank, 1, 1;
        setp.eq.u32 %p1, %rank, 1; setp.eq.and.u32 %p1, %tid, 0, %p1;
        @%p1 st.shared::cluster.u32 [%r1], 77;
        mapa.shared::cluster.u32 %r2, %s, 0; xor.b32 %r2, %r2, %r1;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        ld.shared.u32 %r3, [%s]; add.u32 %r3, %r3, %r2;
        setp.eq.u32 %p2, %tid, 1; @%p2 mov.u32 %r3, %s; {}
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        store("%r3")
    );
    let body = body.replace("setp.eq.and.u32 %p1, %rank, 1, 1;\n", "\n");
    let mut expected = [0u32; 64];
    expected[..32].fill(77);
    (expected[1], expected[33]) = (1024, 1 << 24 | 1024);
    Case::new(&body).cluster(2).out(256).gives_words(expected);
}

/// A body that runs with 64 columns of tensor memory, their address in `%r50`.
fn with_columns(body: &str) -> String {
    format!(
        "setp.ne.u32 %p10, %wid, 0; @%p10 bra ALLOCATED;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%b+56], 64;
        tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
        ALLOCATED: tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
        ld.shared.u32 %r50, [%b+56];
        {body}
        tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
        @%p10 bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r50, 64; FREED:"
    )
}

fn sm100(body: &str) -> Case {
    Case { sm100: true, ..Case::new(body) }
}

#[test]
fn p02_the_first_columns_allocated_are_0() {
    sm100(&with_columns(&store("%r50"))).block(128).out(512).gives_words([0; 128]);
}

#[test]
fn p03_tensor_memory_lanes_count_modulo_128() {
    // Rank 1 stores to lanes 128 + 32 * warp and loads from 32 * warp.
    let body = with_columns(&format!(
        "mad.lo.u32 %r1, %rank, 128, 0; mad.lo.u32 %r1, %wid, 32, %r1; shl.b32 %r1, %r1, 16;
        mad.lo.u32 %r3, %rank, 1000, %tid;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {{%r3}}; tcgen05.wait::st.sync.aligned;
        shl.b32 %r2, %wid, 21; mov.u32 %r4, 0;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r2]; tcgen05.wait::ld.sync.aligned; {}",
        store("%r4")
    ));
    let expected = (0..256).map(|i| i / 128 * 1000 + i % 128);
    sm100(&body).cluster(2).block(128).out(1024).gives_words(expected);
}

#[test]
fn p04_lanes_of_a_warp_progress_on_their_own() {
    // One elected lane of warp 0 waits for the mbarrier while the other 31 are at
    // bar.warp.sync; warp 1 arrives only behind a named barrier with warp 2.
    let body = format!(
        "{} setp.eq.u32 %p1, %wid, 0; @%p1 bra WAITER;
        bar.sync 2, 64; setp.ne.u32 %p2, %tid, 32; @%p2 bra JOIN;
        mbarrier.arrive.shared::cta.b64 _, [%b]; bra JOIN;
        WAITER: elect.sync _|%p3, -1; @!%p3 bra MEET; {}
        MEET: bar.warp.sync -1;
        JOIN: bar.sync 1, 96; {}",
        barriers(&[1]),
        wait(0, "0", "W0"),
        store("%tid")
    );
    Case::new(&body).block(96).out(384).gives_words(0..96);
}

#[test]
fn p05_labels_and_registers_repeat_in_scopes() {
    let wait = |parity: &str| {
        format!(
            "{{ .reg .pred %p1; .reg .b32 %r1; mov.u32 %r1, {parity};
            LAB_WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%b], %r1;
            @%p1 bra DONE; bra LAB_WAIT; DONE: }}\n"
        )
    };
    let arrive = "@%leader mbarrier.arrive.shared::cta.b64 _, [%b];\n";
    // A lane that stayed two phases behind would take the next parity for its own.
    let together = "bar.warp.sync -1;\n";
    let blocks: String =
        (0..24).map(|phase| format!("{together}{arrive}{}", wait(["0", "1"][phase % 2]))).collect();
    let body = format!("{} mov.u32 %r1, %tid; {blocks} {}", barriers(&[1]), store("%r1"));
    Case::new(&body).gives_words(0..32);
}

#[test]
fn p06_large_shared_memory_at_multiples_of_1024() {
    let text = |variable: &str| {
        format!(
            ".version 9.0\n.target sm_90a\n.address_size 64\n{variable}
            .visible .entry k(.param .u64 out) {{
            .reg .b64 %o; .reg .b32 %s, %t, %a, %v; ld.param.u64 %o, [out]; mov.u32 %s, s;
            mov.u32 %t, %tid.x; mad.lo.u32 %a, %t, 4, %s;
            st.shared.u32 [%a+SIZE], %t; and.b32 %s, %s, 1023; ld.shared.u32 %v, [%a+SIZE];
            add.u32 %v, %v, %s; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %v; ret; }}"
        )
    };
    let fixed = text(&format!(".shared .align 16 .b8 s[{}];", 221 << 10));
    let dynamic = text(".extern .shared .align 16 .b8 s[];");
    for (text, size, dynamic_shared) in [(fixed, 221 << 10, 0), (dynamic, 230_400, 230_400)] {
        let text = text.replace("SIZE", &(size - 128).to_string());
        let mut memory = GlobalMemory::new();
        let out = memory.alloc("out", 128, 256).expect("room");
        let params = out.to_le_bytes().to_vec();
        let kernel = Kernel { text: &text, gpu: Gpu::h200(), block: 32, dynamic_shared, params };
        kernel.run(&mut memory, Schedule::Lazy);
        assert_eq!(words(&memory, out, 32), (0..32).collect::<Vec<u32>>(), "{size} bytes");
    }
}

#[test]
fn p07_tensor_maps_in_structs_global_and_edited_in_shared_memory() {
    // The second map of a struct by a run-time index; a template with address 0
    // and stride 0 that is edited in shared memory, released to global memory and
    // used there.
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64
        .visible .entry k(.param .u64 out, .param .u64 in, .param .u64 slot, .param .u32 index,
                          .param .align 64 .b8 maps[384]) {{
        .shared .align 1024 .b8 s[2048]; .shared .align 8 .b64 b[8];
        .reg .pred %p<20>, %leader; .reg .b32 %r<60>, %tid, %s, %b; .reg .b64 %d<60>, %out, %in, %m, %slot;
        ld.param.u64 %out, [out]; ld.param.u64 %in, [in]; ld.param.u64 %slot, [slot];
        ld.param.u32 %r1, [index]; mov.u32 %s, s; mov.u32 %b, b; mov.u32 %tid, %tid.x;
        mov.u64 %m, maps; cvta.param.u64 %m, %m; mad.wide.u32 %d1, %r1, 128, %m;
        {}
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%d1, {{0, 1}}], [%b];
        {}
        mad.lo.u32 %r2, %tid, 4, %s; ld.shared.u32 %r3, [%r2];
        mad.wide.u32 %d2, %tid, 4, %out; st.global.u32 [%d2], %r3; bar.sync 0;
        // The template: copied word by word, edited, released.
        mul.wide.u32 %d3, %tid, 4; add.u64 %d4, %m, %d3; ld.u32 %r4, [%d4+256];
        st.shared.u32 [%r2+1024], %r4; bar.sync 0;
        @%leader tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%s+1024], %in;
        @%leader tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%s+1024], 1, 3;
        @%leader tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%s+1024], 0, 64;
        bar.sync 0; setp.ge.u32 %p2, %tid, 32;
        tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%slot], [%s+1024], 128;
        fence.proxy.tensormap::generic.acquire.gpu [%slot], 128;
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
        @%leader cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%slot, {{4, 1}}], [%b];
        {}
        ld.shared.u32 %r5, [%r2]; st.global.u32 [%d2+128], %r5;
        ret; }}",
        barriers(&[1]),
        wait(0, "0", "W0"),
        wait(0, "1", "W1"),
    );
    for schedule in ALL {
        let mut memory = GlobalMemory::new();
        let input: Vec<u8> = (0..1024u32).flat_map(u32::to_le_bytes).collect();
        let input = memory.alloc_from("in", &input).expect("room");
        let out = memory.alloc("out", 256, 256).expect("room");
        let slot = memory.alloc("slot", 128, 128).expect("room");
        let mut params: Vec<u8> = [out, input, slot].iter().flat_map(|p| p.to_le_bytes()).collect();
        params.extend(1u32.to_le_bytes());
        params.resize(64, 0);
        let map = |address, dims: &[u64], stride| {
            let mut map = TensorMap::tiled(ElementType::U32, address, dims, &[stride], &[8, 4]);
            map.swizzle = Swizzle::None;
            map.encode().expect("a map that fits")
        };
        params.extend(map(input + 2048, &[8, 8], 32));
        params.extend(map(input, &[8, 8], 32));
        params.extend(map(0, &[8, 1], 0));
        let kernel = Kernel { text: &text, gpu: Gpu::h200(), block: 32, dynamic_shared: 0, params };
        kernel.run(&mut memory, schedule);
        let found = words(&memory, out, 64);
        let plain = (0..32).map(|i| 8 + i);
        // Columns 4 to 11 of 8, rows 1 to 4 of 3, 16 words per row.
        let edited = (0..32).map(|i| {
            let (x, y) = (4 + i % 8, 1 + i / 8);
            if x < 8 && y < 3 { 16 * y + x } else { 0 }
        });
        assert_eq!(found, plain.chain(edited).collect::<Vec<u32>>(), "{schedule}");
    }
}

#[test]
fn p08_boxes_of_all_kinds_at_the_edges() {
    // 256 fp4 elements, 128 bytes, of a tensor of 192: zero behind it, and the
    // whole box counts.
    let load = |bytes: u32| {
        format!(
            "{}
            @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {bytes};
            @%leader cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%s], [%map, {{0, 0}}], [%b];
            {} mad.lo.u32 %r1, %tid, 4, %s; ld.shared.u32 %r2, [%r1]; {}",
            barriers(&[1]),
            wait(0, "0", "W0"),
            store("%r2")
        )
    };
    let data = |i: u32| 0x0101_0101 * (i + 1);
    let map = TensorMap::tiled(ElementType::U4Align8, 0, &[192, 1], &[96], &[256, 1]);
    let case =
        Case { map: Some(map), sm100: true, ..Case::new(&load(128)).u32s((0..64).map(data)) };
    case.gives_words((0..32).map(|i| if i < 24 { data(i) } else { 0 }));
    // 16-bit elements over pairs of scale bytes, a box of 72 by 4 of a tensor of 40
    // columns: more columns than there are.
    let map = TensorMap::tiled(ElementType::U16, 0, &[40, 2], &[96], &[64, 1]);
    let case = Case { map: Some(map), ..Case::new(&load(128)).u32s((0..64).map(data)) };
    case.gives_words((0..32).map(|i| if i < 20 { data(i) } else { 0 }));
    // A store of 8 rows to a tensor of 5, through a box that is wider than it too.
    let body = "setp.eq.u32 %leader, %tid, 0; mov.u32 %r1, 0;
        L: mad.lo.u32 %r2, %r1, 32, %tid; mad.lo.u32 %r3, %r2, 4, %s; st.shared.u32 [%r3], %r2;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4; @%p1 bra L;
        fence.proxy.async.shared::cta; bar.sync 0;
        @%leader cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {0, 0}], [%s];
        @%leader cp.async.bulk.commit_group; @%leader cp.async.bulk.wait_group 0;";
    let map = TensorMap::tiled(ElementType::U32, 1 << 63, &[12, 5], &[64], &[16, 8]);
    let case = Case { map: Some(map), ..Case::new(body).out(640) };
    let poison = 0xcbcb_cbcb;
    case.gives_words((0..160).map(|i| if i % 16 < 12 && i / 16 < 5 { i } else { poison }));
}

#[test]
fn p09_scale_addresses_that_are_no_multiple_of_four_columns() {
    // mxf4nvf4 with N = 64: every element and scale of A is 1, those of B have
    // scale 2 in columns 8 and 9, and 4 in columns 10 and 11, which hold those of
    // n from 64 on.
    let body = with_columns(&format!(
        "mov.u32 %r1, 0;
        FILL: mad.lo.u32 %r2, %r1, 512, %s; mad.lo.u32 %r2, %tid, 4, %r2; st.shared.u32 [%r2], 0x22222222;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 24; @%p1 bra FILL;
        {} shl.b32 %r3, %wid, 21;
        mov.u32 %r4, 0x38383838; mov.u32 %r5, 0x40404040; mov.u32 %r6, 0x48484848;
        tcgen05.st.sync.aligned.32x32b.x4.b32 [%r3], {{%r4, %r4, %r4, %r4}};
        tcgen05.st.sync.aligned.32x32b.x4.b32 [%r3+8], {{%r5, %r5, %r6, %r6}};
        tcgen05.wait::st.sync.aligned; fence.proxy.async;
        tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
        // No swizzle: chunks of 16 bytes, 128 bytes per group of 8 rows.
        shr.u32 %r7, %s, 4; and.b32 %r7, %r7, 0x3fff; cvt.u64.u32 %d1, %r7;
        or.b64 %d1, %d1, 0x0000400800800000; or.b64 %d2, %d1, 0;
        mov.u32 %r8, {:#x}; add.u32 %r9, %r50, 32; add.u32 %r10, %r50, 10;
        setp.ne.u32 %p2, %r8, %r8;
        @%leader tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%r9], %d1, %d2, %r8, [%r50], [%r10], %p2;
        @%leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b];
        {} tcgen05.fence::after_thread_sync;
        add.u32 %r11, %r3, 32; mov.u32 %r12, 0;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r12}}, [%r11]; tcgen05.wait::ld.sync.aligned; {}",
        barriers(&[1]),
        1 << 7 | 1 << 10 | (64 >> 3) << 17 | (128 >> 7) << 27,
        wait(0, "0", "W0"),
        store("%r12"),
    ))
    .replace(", 64;", ", 128;");
    let case = Case { shared: 16384, ..sm100(&body) }.block(128).out(512);
    case.gives_words([256f32.to_bits(); 128]);
}

#[test]
fn p10_a_commit_without_state_space() {
    let body = with_columns(&format!(
        "{} @%leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%b]; {} {}",
        barriers(&[1]),
        wait(0, "0", "W0"),
        store("%tid")
    ));
    sm100(&body).block(128).out(512).gives_words(0..128);
}

#[test]
fn p11_mbarrier_operations_of_all_spellings() {
    // Each CTA of two expects bytes and arrives on the other's mbarrier through
    // mapa, and completes the bytes; waits with and without state space and with a
    // time limit.
    let body = format!(
        "{} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        xor.b32 %r1, %rank, 1; mapa.shared::cluster.u32 %r2, %b, %r1;
        @!%leader bra WAIT;
        mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r2], 16;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
        mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r2], 16;
        cvt.u64.u32 %d3, %b; cvta.shared.u64 %d3, %d3; mbarrier.arrive.b64 %d4, [%d3];
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 0;
        WAIT: mov.u32 %r5, 0x989680;
        W0: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%b], 0, %r5; @!%p1 bra W0;
        W1: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%b], 0; @!%p1 bra W1;
        cvt.u64.u32 %d5, %b; cvta.shared.u64 %d5, %d5;
        W2: mbarrier.test_wait.parity.b64 %p1, [%d5], 0; @!%p1 bra W2; {}
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        barriers(&[3]),
        store("%r58")
    );
    Case::new(&body).cluster(2).out(256).gives_words(0..64);
}

#[test]
fn p12_grids_as_large_as_the_tiles_with_launch_control() {
    // Workers count tiles that they take over; every tile is done exactly once.
    let body = format!(
        "{} mov.u32 %r10, %cta; mov.u32 %r12, 0;
        TILE: mad.lo.u32 %r13, %r10, 4, 0; cvt.u64.u32 %d1, %r13; add.u64 %d1, %out, %d1;
        @%leader mul.lo.u32 %r14, %r10, 3; @%leader st.global.u32 [%d1], %r14;
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 16;
        @%leader clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%s], [%b];
        {}
        xor.b32 %r12, %r12, 1; ld.shared.b128 %q1, [%s];
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;
        @%p1 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r10, %q1;
        fence.proxy.async; bar.sync 0; @%p1 bra TILE;",
        barriers(&[1]),
        wait(0, "%r12", "W0"),
    );
    let case = Case { grid: 500, sm100: true, ..Case::new(&body).out(2000) };
    case.gives_words((0..500).map(|tile| 3 * tile));
}

#[test]
fn p13_fp4_pairs_from_byte_registers() {
    let body = format!(
        ".reg .b8 %c<4>; shl.b32 %r1, %tid, 8; or.b32 %r1, %r1, 0x2100f0;
        mov.b32 {{%c0, %c1, %c2, %c3}}, %r1;
        cvt.rn.f16x2.e2m1x2 %r2, %c0; cvt.rn.f16x2.e2m1x2 %r3, %c1; cvt.rn.f16x2.e2m1x2 %r4, %c2;
        xor.b32 %r5, %r2, %r4; shl.b32 %r6, %r3, 1; xor.b32 %r5, %r5, %r6; {}",
        store("%r5")
    );
    let half = |code: u32| -> u32 {
        let magnitude = [0u32, 0x3800, 0x3c00, 0x3e00, 0x4000, 0x4200, 0x4400, 0x4600];
        magnitude[(code & 7) as usize] | (code & 8) << 12
    };
    let pair = |byte: u32| half(byte & 15) | half(byte >> 4 & 15) << 16;
    let expected = (0..32).map(|t| pair(0xf0) ^ pair(0x21) ^ pair(t) << 1);
    sm100(&body).gives_words(expected);
}

#[test]
fn p14_hints_have_no_effect() {
    let body = format!(
        "griddepcontrol.launch_dependents; griddepcontrol.wait;
        setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 64;
        prefetch.param.tensormap [%map]; prefetch.tensormap [%map];
        createpolicy.fractional.L2::evict_last.b64 %d1, 1.0;
        createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %d2, 0.5;
        mad.wide.u32 %d3, %tid, 4, %in; prefetch.global.L2 [%d3];
        ld.global.L1::no_allocate.L2::cache_hint.u32 %r1, [%d3], %d1;
        ld.global.nc.L1::evict_last.L2::128B.u32 %r2, [%d3];
        xor.b32 %r3, %r1, %r2; add.u32 %r3, %r3, %tid; {}",
        store("%r3")
    );
    let case = Case { directives: ".maxntid 128 .minnctapersm 8".to_owned(), ..Case::new(&body) };
    case.block(128).out(512).gives_words(0..128);
}

#[test]
fn p15_accesses_of_128_and_256_bits() {
    // 32 bytes per thread from global memory through shared memory and back.
    let body = "mad.wide.u32 %d1, %tid, 32, %in; mad.wide.u32 %d2, %tid, 32, %out;
        ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%d1];
        mad.lo.u32 %r9, %tid, 32, %s;
        st.shared.v4.b32 [%r9], {%r8, %r7, %r6, %r5}; st.shared.v4.b32 [%r9+16], {%r4, %r3, %r2, %r1};
        ld.shared.b128 %q1, [%r9]; ld.shared.b128 %q2, [%r9+16];
        mov.b128 {%d3, %d4}, %q1; mov.b128 {%d5, %d6}, %q2;
        mov.b64 {%r1, %r2}, %d3; mov.b64 {%r3, %r4}, %d4; mov.b64 {%r5, %r6}, %d5; mov.b64 {%r7, %r8}, %d6;
        st.global.v8.b32 [%d2], {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8};";
    let case = sm100(body).u32s((0..256).map(|i| i * 3 + 1)).out(1024);
    case.gives_words((0..256).map(|i| (i / 8 * 8 + 7 - i % 8) * 3 + 1));
}

/// `printf("cta %d: %s %.2f %llx\n", ...)` by lanes 0 and 3, and an assertion.
const PRINTER: &str = r#"
.version 9.0
.target sm_90a
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e) .noreturn;
.global .align 1 .b8 format[23] = {99, 116, 97, 32, 37, 100, 58, 32, 37, 115, 32, 37, 46, 50, 102, 32, 37, 108, 108, 120, 10, 0};
.global .align 1 .b8 word[3] = {104, 105};
.visible .entry k(.param .u64 out, .param .u32 bad) {
    .local .align 8 .b8 args[32]; .reg .b64 %SP, %a, %d<10>, %o; .reg .b32 %r<10>; .reg .pred %p<4>;
    mov.u64 %SP, args; cvta.local.u64 %a, %SP; ld.param.u64 %o, [out]; ld.param.u32 %r5, [bad];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r4, 99;
    rem.u32 %r3, %r1, 3; setp.ne.u32 %p1, %r3, 0; setp.gt.u32 %p2, %r1, 3; or.pred %p1, %p1, %p2;
    setp.ge.u32 %p3, %r1, %r5; @%p3 bra ASSERT; @%p1 bra END;
    add.u32 %r3, %r2, %r1; st.local.u32 [%SP], %r3; mov.u64 %d1, word; cvta.global.u64 %d1, %d1;
    st.local.u64 [%SP+8], %d1; mov.f64 %d2, 0d4004000000000000; st.local.f64 [%SP+16], %d2;
    mov.u64 %d3, 0xfedcba9876543210; st.local.u64 [%SP+24], %d3;
    mov.u64 %d4, format; cvta.global.u64 %d4, %d4;
    {
        .param .b64 param0; st.param.b64 [param0], %d4;
        .param .b64 param1; st.param.b64 [param1], %a;
        .param .b32 retval0;
        call.uni (retval0), vprintf, (param0, param1);
        ld.param.b32 %r4, [retval0];
    }
    bra END;
ASSERT:
    mov.u64 %d5, word; cvta.global.u64 %d5, %d5;
    {
        .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
        st.param.b64 [p0], %d5; st.param.b64 [p1], %d5; st.param.b32 [p2], 7; st.param.b64 [p3], %d5; st.param.b64 [p4], 1;
        call.uni __assertfail, (p0, p1, p2, p3, p4);
    }
END:
    mad.wide.u32 %o, %r1, 4, %o; st.global.u32 [%o], %r4;
    ret;
}"#;

#[test]
fn p16_printf_assert_timer_and_sm() {
    for schedule in ALL {
        let mut memory = GlobalMemory::new();
        let out = memory.alloc("out", 128, 256).expect("room");
        let mut params = out.to_le_bytes().to_vec();
        params.extend(100u32.to_le_bytes());
        let kernel =
            Kernel { text: PRINTER, gpu: Gpu::h200(), block: 32, dynamic_shared: 0, params };
        let report = kernel.run(&mut memory, schedule);
        let lines = "cta 0: hi 2.50 fedcba9876543210\ncta 3: hi 2.50 fedcba9876543210\n";
        assert_eq!(report.printed, lines, "{schedule}");
        let counts = words(&memory, out, 32);
        assert_eq!((counts[0], counts[1], counts[3]), (4, 99, 4));
        let module = Module::load(PRINTER, &Gpu::h200()).expect("modelled");
        let params = [&out.to_le_bytes()[..], &5u32.to_le_bytes()].concat();
        let launch = Launch {
            entry: "k",
            grid: [1, 1, 1],
            block: [32, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: &params,
            schedule,
            threads: Some(1),
            instruction_limit: None,
            checks: Checks::default(),
        };
        let error = module.launch(&mut memory, &launch).expect_err("lane 5 asserts").to_string();
        assert!(error.contains("assertion failed: `hi`, hi:7, hi"), "{error}");
        assert!(error.contains("lane 5"), "{error}");
    }
    // A timer that runs, SM numbers that exist.
    let body = format!(
        "mov.u64 %d1, %globaltimer; mov.u32 %r1, 0;
        L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 100; @%p1 bra L;
        mov.u64 %d2, %globaltimer; setp.gt.u64 %p2, %d2, %d1;
        mov.u32 %r2, %smid; mov.u32 %r3, %nsmid; setp.lt.and.u32 %p3, %r2, %r3, %p2;
        selp.u32 %r4, 1, 0, %p3; {}",
        store("%r4")
    );
    Case { grid: 140, ..Case::new(&body).out(140 * 128) }.gives_words([1; 140 * 32]);
}
