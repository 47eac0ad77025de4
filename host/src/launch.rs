//! A launch of a kernel, as devices and their observers are given it.

/// One launch of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSpec<'a> {
    /// The kernel's name in the PTX.
    pub entry: &'a str,
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster in x, y, z; `None` for the kernel's own, or no clusters.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// Whether CTAs may start before the last kernel has ended: the kernel waits for it itself.
    pub overlaps: bool,
    /// The whole parameter block as the PTX lays it out.
    pub params: &'a [u8],
}
