//! The bundle of a small launch.

use ptx_emu::bundle::{Allocation, Bundle, Compare, Expected};
use std::collections::BTreeMap;

/// Device address of the output.
const OUT: u64 = 0x7000_0000_0000;

/// A CTA of 64 threads of `entry`, whose one parameter is where each thread writes its index.
pub fn thread_indices(ptx: &str, entry: &str) -> Bundle {
    let bytes = (0..64u32).flat_map(u32::to_le_bytes).collect();
    let out = Expected { addr: OUT, bytes, compare: Compare::Exact };
    Bundle {
        ptx: ptx.to_owned(),
        entry: entry.to_owned(),
        grid: [1; 3],
        block: [64, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        cooperative: false,
        programmatic: false,
        params: OUT.to_le_bytes().to_vec(),
        memory: vec![Allocation { addr: OUT, size: 256, name: "out".into(), contents: None }],
        tensor_maps: Vec::new(),
        expected: BTreeMap::from([("out".to_owned(), out)]),
    }
}
