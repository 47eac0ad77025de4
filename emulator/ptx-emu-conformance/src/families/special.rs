//! Special registers that depend on the launch only, and the address of a shared
//! variable. `%warpid` is not among them, because the SM numbers its warps freely.

use crate::builder::Set;
use crate::compare::Element;
use std::fmt::Write as _;

const REGISTERS: [&str; 25] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%total_smem_size",
    "%dynamic_smem_size",
    "%aggr_smem_size",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
    "fixed",
];
const CLUSTER: [&str; 14] = [
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%cluster_ctarank",
    "%cluster_nctarank",
];

pub(super) fn probes(set: &mut Set) {
    for (name, grid, cluster, dynamic) in [
        ("a plain launch", [3, 2, 2], None, 0),
        ("dynamic shared memory", [2, 1, 1], None, 5000),
        ("clusters of 2", [4, 2, 1], Some([2, 1, 1]), 0),
        ("clusters of 1 x 2 x 2", [2, 2, 4], Some([1, 2, 2]), 128),
        ("clusters of 4 x 2", [4, 4, 1], Some([4, 2, 1]), 0),
    ] {
        launch(set, name, grid, cluster, dynamic);
    }
}

/// Every thread writes every register; its place is its number in the grid.
fn launch(set: &mut Set, name: &str, grid: [u32; 3], cluster: Option<[u32; 3]>, dynamic: u32) {
    const BLOCK: [u32; 3] = [8, 3, 2];
    let mut code = String::from(
        "    .shared .align 4 .b8 fixed[100]; mov.u32 %r0, %tid.y; mov.u32 %r1, %tid.z; \
         or.b32 %r0, %r0, %r1; or.b32 %r0, %r0, %t; setp.eq.u32 %p0, %r0, 0; \
         mov.u32 %r0, fixed; @%p0 st.shared.b32 [%r0], %t;\n    mov.u32 %r0, %ctaid.z; mov.u32 %r1, %nctaid.y; mov.u32 %r2, %ctaid.y; \
         mad.lo.u32 %r0, %r0, %r1, %r2; mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ctaid.x; \
         mad.lo.u32 %r0, %r0, %r1, %r2; mov.u32 %r1, %tid.z; mov.u32 %r2, %tid.y; \
         mad.lo.u32 %r1, %r1, 3, %r2; mov.u32 %r2, %tid.x; mad.lo.u32 %r1, %r1, 8, %r2; \
         mad.lo.u32 %r0, %r0, 48, %r1;\n",
    );
    let registers: Vec<&str> = REGISTERS.into_iter().chain(CLUSTER).collect();
    let bytes = 4 * (registers.len() + 1);
    let _ = writeln!(code, "    mad.wide.u32 %at, %r0, {bytes}, %out;");
    for (index, register) in registers.iter().enumerate() {
        let _ =
            writeln!(code, "    mov.u32 %r1, {register}; st.global.b32 [%at+{}], %r1;", 4 * index);
    }
    let _ = writeln!(
        code,
        "    mov.pred %p0, %is_explicit_cluster; selp.b32 %r1, 1, 0, %p0; \
         st.global.b32 [%at+{}], %r1;",
        bytes - 4
    );
    let threads = grid.iter().chain(&BLOCK).product::<u32>() as usize;
    set.kernel(name, [1, 1], Vec::new(), vec![0; threads * bytes], Element::Bits(4), &code);
    if let Some(probe) = set.last() {
        probe.grid = grid;
        probe.block = BLOCK;
        probe.cluster = cluster;
        probe.dynamic_shared = dynamic;
    }
}
