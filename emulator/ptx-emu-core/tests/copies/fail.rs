//! Every diagnostic of the asynchronous units has a small program that must
//! trigger it, with its text, and a twin that must not.

use crate::async_support::{Case, barriers, kind, wait};
use ptx_emu_core::tensor_map::{ElementType, Swizzle, TensorMap};
use ptx_emu_core::{AsyncFault, DiagnosticKind, Gpu, MbarrierFault, Schedule};

const ALL: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(1), Schedule::Random(2)];
const LAZY: [Schedule; 1] = [Schedule::Lazy];

const LOAD: &str = "@%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
    @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];";
const WORD_OUT: &str = "mad.lo.u32 %r1, %tid, 4, %s; ld.shared.u32 %r2, [%r1];
    mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %r2;";

#[test]
fn a_read_of_a_destination_in_flight() {
    let text = |waits: &str| format!("{}{LOAD}\n{waits}{WORD_OUT}", barriers(&[1]));
    let diagnostic = Case::new(&text("")).says(
        &LAZY,
        &[
            "asynchronous operation in flight: read of 4 bytes at 0x400",
            "a destination, in flight, of cp.async.bulk of line",
            "`@%leader cp.async.bulk.shared::cta.global",
            "warp 0",
        ],
    );
    let DiagnosticKind::Async(AsyncFault::InFlight { source, write, operation, .. }) =
        kind(&diagnostic)
    else {
        panic!("{diagnostic}");
    };
    assert!(!source && !write && operation.line < diagnostic.line);
    Case::new(&text(&wait(0, "0", "W0"))).passes();
    // Some seed of the random schedule finds it too.
    let found = (0..64)
        .filter(|&seed| Case::new(&text("")).launch(Schedule::Random(seed)).is_err())
        .count();
    assert!(found > 32, "{found} of 64 seeds");
}

#[test]
fn a_write_to_a_source_that_was_not_read() {
    let text = |read: &str| {
        format!(
            "{} mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid; fence.proxy.async; bar.sync 0;
            @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;
            @%leader cp.async.bulk.commit_group;
            {read} bar.sync 0;
            st.shared.u32 [%r1], 0;
            @%leader cp.async.bulk.wait_group 0;",
            barriers(&[1])
        )
    };
    Case::new(&text("")).says(
        &LAZY,
        &["in flight: write of 4 bytes at 0x400, a source, not read yet, of cp.async.bulk of line"],
    );
    Case::new(&text("@%leader cp.async.bulk.wait_group.read 0;")).passes();
}

#[test]
fn a_store_read_back_before_it_is_written() {
    let text = |keep: u32, read: &str| {
        format!(
            "setp.eq.u32 %leader, %tid, 0; @!%leader bra END;
            st.shared.v4.u32 [%s], {{1, 2, 3, 4}}; fence.proxy.async;
            cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 16;
            cp.async.bulk.commit_group; cp.async.bulk.wait_group{read} {keep};
            ld.global.u32 %r1, [%out+4]; END:"
        )
    };
    let parts = ["in flight: read of 4 bytes at 0x7", "a destination, in flight, of cp.async.bulk"];
    Case::new(&text(0, ".read")).says(&LAZY, &parts);
    Case::new(&text(1, "")).says(&LAZY, &parts);
    Case::new(&text(0, "")).passes();
}

#[test]
fn a_load_into_memory_that_another_operation_uses() {
    let text = |waits: &str| {
        format!(
            "{} @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b+8], 128;
            {LOAD}{waits}
            @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in+128], 128, [%b+8];
            {}",
            barriers(&[1, 1]),
            wait(1, "0", "W1"),
        )
    };
    Case::new(&text("")).says(&LAZY, &["in flight: write of 128 bytes at 0x400, a destination"]);
    Case::new(&text(&wait(0, "0", "W0"))).passes();
}

#[test]
fn cp_async_needs_its_wait() {
    let text = |keep: u32| {
        format!(
            "mad.lo.u32 %r1, %tid, 4, %s; mad.wide.u32 %d2, %tid, 4, %in;
            cp.async.ca.shared.global [%r1], [%d2], 4; cp.async.commit_group;
            cp.async.wait_group {keep}; {WORD_OUT} cp.async.wait_all;"
        )
    };
    Case::new(&text(1)).says(&LAZY, &["in flight: read of 4 bytes", "of cp.async of line"]);
    Case::new(&text(0)).passes();
}

#[test]
fn a_missing_proxy_fence() {
    let text = |before: &str, after: &str| {
        format!(
            "setp.eq.u32 %leader, %tid, 0; mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid;
            {before} bar.sync 0; {after}
            @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 256;
            @%leader cp.async.bulk.commit_group; @%leader cp.async.bulk.wait_group 0;"
        )
    };
    let case = |before: &str, after: &str| Case::new(&text(before, after)).block(64).out(256);
    let parts = [
        "missing proxy fence: cp.async.bulk reads 0x400 through the async proxy",
        "written through the generic proxy by the write of line",
        "st.shared.u32 [%r1], %tid;",
        "without fence.proxy.async since",
    ];
    case("", "").says(&ALL, &parts);
    // A fence of one warp covers its own writes only.
    case("@%leader fence.proxy.async;", "").says(&ALL, &["reads 0x480"]);
    case("fence.proxy.async.global;", "").says(&ALL, &parts[..1]);
    case("fence.proxy.async;", "").passes();
    case("fence.proxy.async.shared::cta;", "").passes();
    case("", "@%leader fence.proxy.async;").passes();
}

#[test]
fn a_missing_proxy_fence_of_global_memory() {
    let text = |fence: &str| {
        format!(
            "{} mad.wide.u32 %d2, %tid, 4, %out; st.global.u32 [%d2], %tid; {fence} bar.sync 0;
            @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
            @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%out], 128, [%b];
            {}",
            barriers(&[1]),
            wait(0, "0", "W0"),
        )
    };
    Case::new(&text("")).says(&ALL, &["missing proxy fence: cp.async.bulk reads 0x7"]);
    Case::new(&text("fence.proxy.async.global;")).passes();
}

/// Compute capability 12 takes 4-bit types and swizzles with atoms, but to `.shared::cta` only.
#[test]
fn narrow_types_to_a_cluster() {
    let body = |space: &str| {
        format!(
            "{}
            @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 512;
            @%leader cp.async.bulk.tensor.2d.{space}.global.mbarrier::complete_tx::bytes [%s], [%map, {{0, 0}}], [%b];
            {}",
            barriers(&[1]),
            wait(0, "0", "W0")
        )
    };
    let nibbles = TensorMap::tiled(ElementType::U4Align8, 0, &[256, 4], &[128], &[256, 4]);
    let atoms = TensorMap {
        swizzle: Swizzle::B128Atom32,
        ..TensorMap::tiled(ElementType::U32, 0, &[32, 4], &[128], &[32, 4])
    };
    let bytes = TensorMap {
        swizzle: Swizzle::B128,
        ..TensorMap::tiled(ElementType::U8, 0, &[128, 4], &[128], &[128, 4])
    };
    let case = |space, map: &TensorMap, gpu: Gpu| Case {
        map: Some(map.clone()),
        gpu: Some(gpu),
        ..Case::new(&body(space))
    };
    for gpu in [Gpu::rtx5090(), Gpu::rtx_pro_6000(), Gpu::dgx_spark()] {
        for (map, actual) in [
            (&nibbles, "16U4_ALIGN8B with swizzle NONE"),
            (&atoms, "UINT32 with swizzle 128B_ATOM_32B"),
        ] {
            case("shared::cta", map, gpu.clone()).passes();
            let required = "for .shared::cluster on compute capability 12, actual ";
            case("shared::cluster", map, gpu.clone())
                .says(&ALL, &["map: required", required, actual]);
        }
        case("shared::cluster", &bytes, gpu).passes();
    }
    case("shared::cluster", &nibbles, Gpu::b200()).passes();
    case("shared::cluster", &atoms, Gpu::b200()).passes();
}

#[test]
fn a_tensor_map_that_was_not_acquired() {
    let map = TensorMap::tiled(ElementType::U32, 0, &[8, 8], &[32], &[8, 4]);
    let text = |fence: &str| {
        format!(
            "{}
            mad.lo.u32 %r1, %tid, 4, %s; cvt.u64.u32 %d1, %tid; shl.b64 %d1, %d1, 2;
            add.u64 %d2, %map, %d1; ld.u32 %r2, [%d2]; st.shared.u32 [%r1], %r2; bar.warp.sync -1;
            tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%out], [%s], 128;
            {fence}
            @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 128;
            @%leader cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%s+1024], [%out, {{0, 0}}], [%b];
            {}",
            barriers(&[1]),
            wait(0, "0", "W0"),
        )
    };
    let case = |fence| Case { map: Some(map.clone()), ..Case::new(&text(fence)) };
    case("")
        .says(&ALL, &["missing proxy fence: the tensor map at 0x7", "was written on the device"]);
    case("fence.proxy.tensormap::generic.acquire.gpu [%out], 128;").passes();
}

/// Runs a body of thread 0 with one mbarrier of count 2.
fn alone(body: &str) -> Case {
    Case::new(&format!("{} @!%leader bra END; {body} END:", barriers(&[2])))
}

#[track_caller]
fn mbarrier(body: &str, part: &str) -> MbarrierFault {
    let diagnostic = alone(body).says(&ALL, &["mbarrier 0x", part]);
    match kind(&diagnostic) {
        DiagnosticKind::Async(AsyncFault::Mbarrier { fault, .. }) => fault.clone(),
        _ => panic!("{diagnostic}"),
    }
}

#[test]
fn misused_mbarriers() {
    let fault = mbarrier("mbarrier.arrive.shared::cta.b64 _, [%b+8];", "not initialised");
    assert_eq!(fault, MbarrierFault::NotInitialised);
    mbarrier(
        "mbarrier.inval.shared::cta.b64 [%b]; mbarrier.arrive.b64 _, [%b];",
        "not initialised",
    );
    mbarrier(
        "st.shared.u64 [%b], 5; mbarrier.arrive.shared::cta.b64 _, [%b];",
        "overwritten: the object's bits are now 0x0000000000000005",
    );
    let fault = mbarrier(
        "mbarrier.arrive.shared::cta.b64 _, [%b], 3;",
        "over-arrival: 3 arrivals, but only 2 are pending",
    );
    assert_eq!(fault, MbarrierFault::OverArrival { pending: 2, count: 3 });
    mbarrier("mbarrier.init.shared::cta.b64 [%b+8], 0;", "count: required 1 to 1048575, actual 0");
    mbarrier("mbarrier.arrive.shared::cta.b64 _, [%b], 0;", "actual 0");
    mbarrier(
        "mbarrier.arrive.noComplete.shared::cta.b64 %d1, [%b], 2;",
        ".noComplete, but 2 arrivals complete the phase",
    );
    mbarrier(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 1048575;
        mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 1;",
        "tx-count: required -1048575 to 1048575, actual 1048576",
    );
    mbarrier(
        "mbarrier.arrive.shared::cta.b64 _, [%b]; mbarrier.init.shared::cta.b64 [%b], 2;",
        "initialised again while in use",
    );
    let two = "mbarrier.arrive.shared::cta.b64 _, [%b], 2;";
    mbarrier(
        &format!(
            "mbarrier.arrive.shared::cta.b64 %d1, [%b]; mbarrier.arrive.shared::cta.b64 _, [%b];
            {two} mbarrier.test_wait.shared::cta.b64 %p1, [%b], %d1;"
        ),
        "phase 0 asked too late: the object is in phase 2",
    );
    // The correct program.
    alone(&format!(
        "mbarrier.arrive.shared::cta.b64 %d1, [%b]; mbarrier.arrive.shared::cta.b64 _, [%b];
        mbarrier.test_wait.shared::cta.b64 %p1, [%b], %d1; {two}
        mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 1048575;
        mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%b], 1048575;
        mbarrier.inval.shared::cta.b64 [%b]; st.shared.u64 [%b], 5;
        mbarrier.init.shared::cta.b64 [%b], 1;"
    ))
    .passes();
}

#[test]
fn a_missed_phase() {
    // Warp 0 lets two phases pass before warp 1, which waits for the first, runs
    // again.
    let text = |phases: u32| {
        let arrive = "@%p2 mbarrier.arrive.shared::cta.b64 _, [%b];".repeat(phases as usize);
        format!(
            "{} setp.eq.u32 %p1, %wid, 1; setp.eq.u32 %p2, %tid, 0; @!%p1 bra OTHER; {} bra END;
            OTHER: {arrive} END:",
            barriers(&[1]),
            wait(0, "0", "W0"),
        )
    };
    Case::new(&text(2)).block(64).says(
        &[Schedule::Eager],
        &["phase missed: the wait is for the end of phase 0", "went on to phase 2"],
    );
    Case::new(&text(1)).block(64).passes();
}

#[test]
fn deadlocks_say_what_is_missing() {
    let text = |bytes: u32| {
        format!(
            "{} @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {bytes};
            @%leader cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%in], 128, [%b];
            {}",
            barriers(&[1]),
            wait(0, "0", "W0"),
        )
    };
    Case::new(&text(144)).says(
        &ALL,
        &[
            "deadlock: CTA (0, 0, 0) warp 0 lanes 0xffffffff line",
            "waits for phase 0 (parity 0) of mbarrier 0x4400 (0 of 1 arrivals pending, 16 bytes missing)",
        ],
    );
    Case::new(&text(112)).says(&ALL, &["16 bytes more than expected"]);
    Case::new(&text(128)).passes();
    // Too few arrivals, with the other lanes of the warp at a barrier.
    let text = |count: u32| {
        format!(
            "{} @!%leader bra JOIN; mbarrier.arrive.shared::cta.b64 _, [%b]; {} JOIN: bar.warp.sync -1;",
            barriers(&[count]),
            wait(0, "0", "W0"),
        )
    };
    Case::new(&text(2)).says(&ALL, &["deadlock: ", "(1 of 2 arrivals pending, 0 bytes missing)"]);
    Case::new(&text(1)).passes();
}

#[test]
fn a_cluster_barrier_out_of_turn() {
    let text = |more: &str| {
        format!("barrier.cluster.arrive.aligned; {more} barrier.cluster.wait.aligned;")
    };
    Case::new(&text("barrier.cluster.arrive.aligned;"))
        .cluster(2)
        .says(&ALL, &["cluster barrier: required barrier.cluster.wait between two arrivals"]);
    Case::new("barrier.cluster.wait.aligned;")
        .cluster(2)
        .says(&ALL, &["cluster barrier: required barrier.cluster.arrive before the wait"]);
    Case::new(&text("")).cluster(2).passes();
    Case::new("setp.eq.u32 %p1, %rank, 0; @%p1 barrier.cluster.arrive; @%p1 barrier.cluster.wait;
        setp.ne.u32 %p3, %tid, 0; or.pred %p3, %p3, %p1; @!%p3 mbarrier.init.shared.b64 [%b], 1;
        @!%p1 bar.sync 0;
        W: @!%p1 mbarrier.try_wait.parity.shared.b64 %p2, [%b], 0; @%p1 mov.pred %p2, 1; @!%p2 bra W;")
        .cluster(2)
        .says(&ALL, &["deadlock: ", "waits for the cluster barrier (32 of 64 threads arrived)"]);
}

#[test]
fn the_memory_of_an_exited_cta() {
    let text = |meet: &str| {
        format!(
            "mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid;
            barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
            setp.eq.u32 %p1, %rank, 1; @%p1 bra END;
            mov.u32 %r2, 0; L: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 40000; @%p2 bra L;
            mapa.shared::cluster.u32 %r3, %r1, 1; ld.shared::cluster.u32 %r4, [%r3];
            END: {meet}"
        )
    };
    Case::new(&text(""))
        .cluster(2)
        .says(&ALL, &["exited CTA: the shared memory of rank 1 of the cluster is gone"]);
    Case::new(&text("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"))
        .cluster(2)
        .passes();
    Case::new("mapa.shared::cluster.u32 %r3, %s, 5; st.shared::cluster.u32 [%r3], 1;")
        .cluster(2)
        .says(&ALL, &["out of bounds: write of 4 bytes at shared address 0x5000400"]);
}

#[test]
fn an_exit_with_a_copy_in_flight() {
    let text = |waits: &str| format!("{}{LOAD}{waits}", barriers(&[1]));
    Case::new(&text("")).says(
        &LAZY,
        &[
            "exit with an operation in flight: cp.async.bulk of line",
            "still uses the CTA's shared memory",
        ],
    );
    Case::new(&text(&wait(0, "0", "W0"))).passes();
}

#[test]
fn operands_that_do_not_fit() {
    let copy = |size: u32, more: &str| {
        format!(
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 64; {more}
            cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%in], {size}, [%b];
            mbarrier.arrive.shared::cta.b64 _, [%b], 2; {}",
            wait(0, "0", "W0")
        )
    };
    alone(&copy(60, "")).says(&ALL, &["bulk copy: size: required a multiple of 16, actual 60"]);
    alone(&copy(64, "")).passes();
    alone(&copy(64, "add.u64 %in, %in, 8;"))
        .says(&ALL, &["misaligned: read of 64 bytes at global address", "multiple of 16"]);
    alone(&copy(64, "add.u64 %in, %in, 16352;"))
        .says(&ALL, &["out of bounds: read of 64 bytes at global address", "`in`"]);
    alone(&copy(64, "mov.u32 %s, 2048; add.u32 %s, %s, 0x1000000;"))
        .says(&ALL, &["out of bounds: write of 64 bytes at shared address 0x1000800"]);
    let map = TensorMap::tiled(ElementType::U32, 0, &[8, 8], &[32], &[8, 4]);
    let tensor = |form: &str, dst: &str| {
        alone(&format!(
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%b], 128;
            cp.async.bulk.tensor.{form}.mbarrier::complete_tx::bytes {dst}, [%b];
            mbarrier.arrive.shared::cta.b64 _, [%b], 2; {}",
            wait(0, "0", "W0")
        ))
    };
    let with = |case: Case| Case { map: Some(map.clone()), ..case };
    with(tensor("2d.shared::cta.global", "[%s], [%map, {0, 0}]")).passes();
    with(tensor("1d.shared::cta.global", "[%s], [%map, {0}]"))
        .says(&ALL, &["tensor copy: rank of the map: required 1, as the instruction's, actual 2"]);
    with(tensor("2d.shared::cta.global", "[%s+64], [%map, {0, 0}]"))
        .says(&ALL, &["misaligned: write of 1 bytes at shared address", "multiple of 128"]);
    with(tensor("2d.shared::cta.global", "[%s], [%map, {1, 0}]")).says(&ALL, &["tensor copy: "]);
    tensor("2d.shared::cta.global", "[%s], [%in, {0, 0}]").says(&ALL, &["tensor"]);
}

#[test]
fn register_counts_that_break_the_rules() {
    let case = |body: &str| Case {
        directives: ".maxntid 256 .minnctapersm 1".to_owned(),
        ..Case::new(&format!("setp.ge.u32 %p1, %tid, 128; {body}")).block(256)
    };
    case("@%p1 bra E; setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.dec.sync.aligned.u32 48; E:")
        .says(&ALL, &["setmaxnreg: required dec to at most 40, actual 48"]);
    case("setp.ge.u32 %p2, %tid, 64; @%p2 bra E; setmaxnreg.dec.sync.aligned.u32 40; E:")
        .says(&ALL, &["setmaxnreg: required execution by all warps of the warpgroup"]);
    case(
        "@%p1 bra E; setmaxnreg.dec.sync.aligned.u32 40; E: setmaxnreg.inc.sync.aligned.u32 256;
        setmaxnreg.dec.sync.aligned.u32 240; setmaxnreg.inc.sync.aligned.u32 256;",
    )
    .passes();
    let wait = Case {
        directives: ".maxntid 384 .minnctapersm 1".to_owned(),
        ..Case::new(
            "setp.ge.u32 %p1, %tid, 128; @!%p1 bra E; setmaxnreg.inc.sync.aligned.u32 232; E:",
        )
        .block(384)
    };
    wait.says(&ALL, &["deadlock: ", "waits for 64 registers per thread (the CTA's pool has 0)"]);
}

#[test]
fn cp_async_writes_through_the_generic_proxy() {
    let text = |fence: &str| {
        format!(
            "setp.eq.u32 %leader, %tid, 0; mad.lo.u32 %r1, %tid, 4, %s; mad.wide.u32 %d2, %tid, 4, %in;
            cp.async.ca.shared.global [%r1], [%d2], 4; cp.async.wait_all;
            {fence} bar.sync 0;
            @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;
            @%leader cp.async.bulk.commit_group; @%leader cp.async.bulk.wait_group 0;"
        )
    };
    Case::new(&text("")).says(&ALL, &["missing proxy fence: cp.async.bulk reads 0x400"]);
    let case = Case::new(&text("fence.proxy.async;"));
    case.gives(&case.input[..128]);
}
