//! The least time of a launch, computed from machine code.
//!
//! PTX says what must be computed, not how many machine instructions it takes. This bound counts the
//! instructions that ptxas made of a kernel, as nvdisasm prints them with the lines of PTX that they
//! come from, and weighs them with how often the emulator executed those lines.
//!
//! Line information is not proof of how often an instruction runs: ptxas copies, moves and merges code. Counts are
//! therefore those of *basic blocks* of the machine code, and what is known of them is an interval:
//!
//! 1. The first block is executed once by each warp.
//! 2. [`anchor`]s tie blocks to lines: instructions with an effect, which ptxas cannot repeat or leave
//!    out, and loads. All copies of a line's instruction together execute at least as often as the
//!    line did.
//! 3. Threads that enter a block leave it ([`counts`]), and a block that no way leads around executes as
//!    often as those around it ([`follow`]), so that blocks between anchors are known too. Blocks with a trap
//!    were not executed, because the launch ended well.
//!
//! A block counts as often as its interval's lower end says, with all its instructions: those without a
//! line, and those whose predicate is false, which take a slot all the same. If copies of a line leave
//! open which of them ran, the cheapest is assumed to have run.
//!
//! The bound leaves out dependences and latencies, memory, barriers, polls that fail (lines that wait are
//! no anchors), divergence of warps, functions that the kernel calls if ptxas did not put them in its
//! section, and the time that a launch takes to begin and end. Work is spread evenly over the SMs that
//! have a CTA. [`pipes`] has the rates and their sources.

pub mod anchor;
pub mod blocks;
pub mod counts;
pub mod disassembly;
pub mod follow;
pub mod pipes;
#[cfg(test)]
mod tests;

use crate::{Counters, Gpu, Issued};
use blocks::{Graph, GraphError};
use counts::{Contradiction, Counts};
use disassembly::{Disassembly, DisassemblyError, Instruction};
use pipes::{Machine, Resource, UnknownArch, UnknownOpcode};
use serde::Serialize;

/// The reason why there is no bound.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    /// The disassembly cannot be read.
    #[error(transparent)]
    Disassembly(#[from] DisassemblyError),
    /// The disassembly lacks the kernel.
    #[error("disassembly: required the kernel `{required}`, actual {actual}")]
    Kernel {
        /// Kernel of the launch.
        required: String,
        /// The value in the disassembly.
        actual: String,
    },
    /// A branch to nowhere.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An architecture without rates.
    #[error(transparent)]
    Arch(#[from] UnknownArch),
    /// An instruction without a pipe.
    #[error(transparent)]
    Opcode(#[from] UnknownOpcode),
    /// The disassembly is not that of what ran.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
}

/// The launch that ran on the emulator.
#[derive(Debug, Clone, Copy)]
pub struct Launched<'a> {
    /// The module's text.
    pub ptx: &'a str,
    /// Kernel.
    pub kernel: &'a str,
    /// Threads of a CTA.
    pub threads_of_cta: u64,
    /// The number of issues of the module's instructions ([`crate::Module::issued`]).
    pub issued: &'a [Issued],
    /// Counters of the launch.
    pub counters: &'a Counters,
}

/// One resource and the time that it alone would take.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// The resource.
    pub resource: Resource,
    /// Clocks of an SM.
    pub clocks: f64,
    /// Seconds at the machine's clock.
    pub seconds: f64,
}

/// The least number of executions of a block of machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BlockCount {
    /// The address of its begin in its section.
    pub address: u64,
    /// Its instructions.
    pub instructions: usize,
    /// Warps.
    pub warps: u64,
}

/// A lower bound from machine code; never a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineBound {
    /// Machine that it is for.
    pub gpu: &'static str,
    /// The largest of `limits`.
    pub seconds: f64,
    /// The resource that it is of.
    pub by: Resource,
    /// All resources, as if each were the only one.
    pub limits: Vec<Limit>,
    /// Warp instructions of machine code that are counted, at least.
    pub instructions: u64,
    /// Warp instructions of PTX that the emulator issued.
    pub ptx_instructions: u64,
    /// Lines of PTX that tie blocks to counts.
    pub anchors: usize,
    /// Loads that are no anchors because ptxas executes them less often than the PTX.
    pub moved_loads: usize,
    /// Instructions of the kernel's section, and how many of them are in blocks that count.
    pub static_instructions: [usize; 2],
    /// The blocks that were executed at least once, in the order of the code.
    pub blocks: Vec<BlockCount>,
    /// Whether a rate that the bound's resource uses is an assumption.
    pub assumed: bool,
}

/// The bound of a launch on `gpu`. `disassembly`: what nvdisasm prints of the module with `-c -gp`.
///
/// # Errors
/// [`BoundError`]; an instruction whose pipe is not known is one.
pub fn bound(
    launched: &Launched<'_>,
    disassembly: &str,
    gpu: &Gpu,
) -> Result<MachineBound, BoundError> {
    on_machine(launched, disassembly, gpu, &Machine::of(gpu)?)
}

fn on_machine(
    launched: &Launched<'_>,
    disassembly: &str,
    gpu: &Gpu,
    machine: &Machine,
) -> Result<MachineBound, BoundError> {
    let all = Disassembly::parse(disassembly)?;
    let Some(code) = all.functions.iter().find(|function| function.name == launched.kernel) else {
        let names: Vec<&str> = all.functions.iter().map(|one| one.name.as_str()).collect();
        let actual = names.join(", ");
        return Err(BoundError::Kernel { required: launched.kernel.to_owned(), actual });
    };
    let graph = Graph::of(code)?;
    let (anchors, loads) = anchor::anchors(launched.ptx, launched.issued, &graph);
    let counters = launched.counters;
    let warps = counters.ctas * launched.threads_of_cta.div_ceil(32);
    let entered = counts::Entered { warps, threads: counters.threads };
    let counts = Counts::of(&graph, entered, &anchors, &loads)?;
    let costs = costs(machine, &graph)?;
    let mut sums = machine.sums(&costs, &counts);
    sums[Resource::Tensor as usize] = counters.tensor_clocks(gpu) * f64::from(machine.schedulers);
    let sms = f64::from(gpu.sms).min(counters.ctas.max(1) as f64);
    let limits = Resource::ALL.map(|resource| {
        let clocks = sums[resource as usize] / (f64::from(machine.schedulers) * sms);
        Limit { resource, clocks, seconds: clocks / gpu.clock_hz }
    });
    let least =
        |worst: Limit, one: &Limit| if one.clocks > worst.clocks { one.clone() } else { worst };
    let worst = limits.iter().fold(limits[0].clone(), least);
    let counted = graph.blocks.iter().zip(&counts.warps).filter(|(_, warps)| **warps != 0);
    let counted = counted.map(|(block, &warps)| BlockCount {
        address: block.instructions.first().map_or(0, |first| first.address),
        instructions: block.instructions.len(),
        warps,
    });
    let blocks: Vec<BlockCount> = counted.collect();
    Ok(MachineBound {
        gpu: gpu.name,
        seconds: worst.seconds,
        by: worst.resource,
        instructions: sums[Resource::Issue as usize] as u64,
        ptx_instructions: counters.warp_instructions,
        anchors: anchors.len() + loads.len() - counts.moved_loads,
        moved_loads: counts.moved_loads,
        static_instructions: [
            code.instructions.len(),
            blocks.iter().map(|block| block.instructions).sum(),
        ],
        blocks,
        assumed: machine.assumes(worst.resource),
        limits: limits.to_vec(),
    })
}

/// Returns the cost of each block.
fn costs(machine: &Machine, graph: &Graph<'_>) -> Result<Vec<pipes::Cost>, UnknownOpcode> {
    let of_block = |instructions: &[Instruction]| {
        let mut sum = pipes::Cost::default();
        for instruction in instructions {
            for (sum, more) in sum.iter_mut().zip(machine.cost(instruction)?) {
                *sum += more;
            }
        }
        Ok(sum)
    };
    graph.blocks.iter().map(|block| of_block(block.instructions)).collect()
}
