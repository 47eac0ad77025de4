//! Every form of the asynchronous families that real kernels use is decoded.

use ptx_emu_core::{Gpu, LoadError, Module};

/// Statements for `sm_90a`, and those that need `sm_100a`.
const HOPPER: &[&str] = &[
    "barrier.cluster.arrive;",
    "barrier.cluster.arrive.aligned;",
    "barrier.cluster.arrive.relaxed;",
    "barrier.cluster.arrive.relaxed.aligned;",
    "barrier.cluster.arrive.release.aligned;",
    "barrier.cluster.wait;",
    "barrier.cluster.wait.acquire;",
    "barrier.cluster.wait.acquire.aligned;",
    "barrier.cluster.wait.aligned;",
    "cp.async.bulk.commit_group;",
    "cp.async.bulk.wait_group 1;",
    "cp.async.bulk.wait_group.read 0;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r2, [%r3];",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1], 512, [%r3], %d2;",
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {%r1, %r2}], [%r3];",
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%d1, {%r1, %r2}], [%r3], %d2;",
    "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r1, %r2}], [%r3];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, 0}], [%r3];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1, {%r2, 0}], [%r3], %d2;",
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%d1, {%r2, 0}], [%r3], %h1, %d2;",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, 0}], [%r3];",
    "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%d1, {%r1, %r2, 0}], [%r3], %d2;",
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%d1, {%r2, 0, 0}], [%r3], %h1;",
    "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1, {%r2, 0, 0, 0}], [%r3], %d2;",
    "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint [%d1, {%r1, %r2, 0, 0, 0}], [%r3], %d2;",
    "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, 0, 0, 0, 0}], [%r3];",
    "cp.async.ca.shared.global [%r1], [%d1], 4;",
    "cp.async.ca.shared.global.L2::128B [%r1], [%d1], 16, %r2;",
    "cp.async.cg.shared.global [%r1], [%d1], 16;",
    "cp.async.commit_group;",
    "cp.async.mbarrier.arrive.shared.b64 [%r1];",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];",
    "cp.async.wait_all;",
    "cp.async.wait_group 2;",
    "fence.mbarrier_init.release.cluster;",
    "fence.proxy.async;",
    "fence.proxy.async.global;",
    "fence.proxy.async.shared::cta;",
    "fence.proxy.alias;",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
    "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;",
    "fence.proxy.tensormap::generic.release.gpu;",
    "griddepcontrol.launch_dependents;",
    "griddepcontrol.wait;",
    "ld.shared::cluster.f32 %f1, [%r1];",
    "mapa.shared::cluster.u32 %r1, %r2, %r3;",
    "mapa.shared::cluster.u32 %r1, %r2, 0;",
    "mbarrier.arrive.expect_tx.release.cta.shared::cluster.b64 _, [%r1], %r2;",
    "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %d1, [%r1], 64;",
    "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], %r2;",
    "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%r1], %r2;",
    "mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r1];",
    "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r1];",
    "mbarrier.arrive.shared.b64 %d1, [%r1];",
    "mbarrier.arrive.shared::cluster.b64 _, [%r1], 3;",
    "mbarrier.expect_tx.shared::cta.b64 [%r1], %r2;",
    "mbarrier.init.shared.b64 [%r1], 1;",
    "mbarrier.init.shared::cta.b64 [%r1], %r2;",
    "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], %r2;",
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r1], %r2;",
    "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2, %r3;",
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 1, 0x989680;",
    "mbarrier.try_wait.shared.b64 %p1, [%r1], %d1;",
    "prefetch.tensormap [%d1];",
    "setmaxnreg.dec.sync.aligned.u32 40;",
    "setmaxnreg.inc.sync.aligned.u32 232;",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d1], [%r1], 128;",
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %d1;",
    "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 1, %r2;",
    "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r1], 0, %d1;",
];

const BLACKWELL: &[&str] = &[
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, %q1;",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1;",
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%r1], [%r2];",
    "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%d1, {%r2, 0}], [%r3], %h1, %d2;",
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::1 [%r1], [%d1, {%r2, 0, 0}], [%r3];",
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2.L2::cache_hint [%r1], [%d1, {%r2, 0, 0}], [%r3], %d2;",
    "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes.cta_group::1.L2::cache_hint [%r1], [%d1, {%r2, 0, 0}], [%r3], %d2;",
    "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint.cta_group::2 [%r1], [%d1, {%r2, 0, 0, 0}], [%r3], %h1, %d2;",
    "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2.multicast::cluster [%r1], [%d1, {%r2, 0, 0, 0, 0}], [%r3], %h1;",
];

fn load(target: &str, gpu: &Gpu, statement: &str) -> Result<Module, LoadError> {
    let text = format!(
        ".version 9.0\n.target {target}\n.address_size 64\n.visible .entry k() {{
        .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .f32 %f<4>;
        .reg .b64 %d<8>; .reg .b128 %q<4>;
        {statement}
        ret; }}"
    );
    Module::load(&text, gpu)
}

#[test]
fn forms_that_real_kernels_use() {
    for statement in HOPPER {
        load("sm_90a", &Gpu::h200(), statement).unwrap_or_else(|e| panic!("{statement}: {e}"));
    }
    for statement in HOPPER.iter().chain(BLACKWELL) {
        load("sm_100a", &Gpu::b200(), statement).unwrap_or_else(|e| panic!("{statement}: {e}"));
    }
}

#[test]
fn forms_that_do_not_exist() {
    for (statement, why) in [
        ("mbarrier.frob.b64 [%r1], 1;", "no known mbarrier operation"),
        ("mbarrier.init.shared::cta [%r1], 1;", "no .b64"),
        ("mbarrier.try_wait.parity.shared::cluster.b64 %p1, [%r1], 0;", "another CTA's mbarrier"),
        ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1];", "count: required"),
        ("cp.async.cg.shared.global [%r1], [%d1], 8;", "size: required 16, actual 8"),
        ("cp.async.bulk.global.global [%d1], [%d2], 16;", "a bulk copy between"),
        (
            "cp.async.bulk.shared::cta.global.bulk_group [%r1], [%d1], 16, [%r2];",
            "completion other than .mbarrier::complete_tx::bytes",
        ),
        (
            "cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r1], [%d1, {0, 0, 0}], [%r2], {%h1};",
            "mode .im2col",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1, {0}], [%r2];",
            "coordinates: required 2, actual 1",
        ),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.max.f32 [%d1], [%r1], 16;", "max"),
        ("barrier.cluster.sync;", "neither .arrive nor .wait"),
        ("tensormap.replace.tile.rank.shared::cta.b1024.b64 [%r1], %d1;", "replace"),
        ("multimem.red.relaxed.sys.global.add.u32 [%d1], 1;", "instruction multimem"),
    ] {
        let error = match load("sm_90a", &Gpu::h200(), statement) {
            Ok(_) => panic!("loaded: {statement}"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(why), "`{why}` is not in: {error}");
    }
}
