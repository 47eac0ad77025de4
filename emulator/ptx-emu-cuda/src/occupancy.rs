//! The number of CTAs of a kernel that the machine holds, as the emulator has it: by threads,
//! shared memory and the number of CTAs, and by registers if the kernel's PTX bounds them.

use ptx_emu_core::{Gpu, KernelInfo};

/// Shared memory that the system takes of each CTA's, bytes.
pub(crate) const RESERVED_SHARED: u32 = 1024;
/// Registers of an SM.
pub(crate) const REGISTERS: u32 = 1 << 16;

/// CTAs of an SM.
pub(crate) fn resident_ctas(gpu: &Gpu, info: &KernelInfo, threads: u32, dynamic: u32) -> u32 {
    let threads = threads.max(1);
    let shared = info.static_shared.saturating_add(dynamic);
    if threads > gpu.max_threads_per_cta || shared > gpu.shared_per_cta {
        return 0;
    }
    let warps = threads.next_multiple_of(32);
    let by_registers = info.maxnreg.map_or(u32::MAX, |each| REGISTERS / (each.max(1) * warps));
    (gpu.max_threads_per_sm / warps)
        .min(gpu.max_ctas_per_sm)
        .min(gpu.shared_per_sm / (shared + RESERVED_SHARED))
        .min(by_registers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptx_emu_core::Module;

    #[test]
    fn the_scarcest_resource_decides() {
        let gpu = Gpu::b200();
        let text = ".version 9.0\n.target sm_100a\n.address_size 64\n.entry k() { ret; }";
        let module = Module::load(text, &gpu).expect("modelled");
        let info = module.entries().next().expect("a kernel");
        let of = |threads, dynamic| resident_ctas(&gpu, info, threads, dynamic);
        assert_eq!(of(1024, 0), 2);
        assert_eq!(of(32, 0), 32);
        assert_eq!(of(128, 100 << 10), 2);
        assert_eq!(of(128, 227 << 10), 1);
        assert_eq!(of(128, 228 << 10), 0);
        assert_eq!(of(2048, 0), 0);
    }
}
