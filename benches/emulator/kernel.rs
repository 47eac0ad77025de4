//! A kernel that the benches of the machine time.

use ptx_emu_core::{Checks, GlobalMemory, Launch, Module, Schedule};

/// A kernel, its memory and its launch.
pub(crate) struct Kernel {
    pub(crate) entry: &'static str,
    pub(crate) memory: GlobalMemory,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) params: Vec<u8>,
}

impl Kernel {
    /// Runs it on so many threads; lane instructions.
    pub(crate) fn run(
        &mut self,
        module: &Module,
        schedule: Schedule,
        checks: Checks,
        threads: usize,
    ) -> u64 {
        let launch = Launch {
            entry: self.entry,
            grid: self.grid,
            block: self.block,
            cluster: None,
            dynamic_shared: self.dynamic_shared,
            params: &self.params,
            schedule,
            threads: Some(threads),
            instruction_limit: None,
            checks,
        };
        let report = module.launch(&mut self.memory, &launch).expect("the kernel is right");
        report.counters.lane_instructions
    }
}
