//! Decoded instructions.
//!
//! An instruction is decoded once, at load, into a closure over its register
//! rows and modifiers: pure register operations have access only to the register file,
//! effects to the whole context. Instructions that change the flow of control or wait for
//! other lanes are plain data, which the warp interprets.

use super::context::Context;
use super::regs::{FrameSize, Pred, Regs, Slot};
use super::units::Poll;
use crate::Family;
use crate::diagnostic::Exec;

/// Operation on registers only.
pub(crate) type Alu = Box<dyn Fn(&mut Regs, u32) + Send + Sync>;
/// Operation on memory or the environment.
pub(crate) type Effect = Box<dyn Fn(&mut Context<'_>, u32) -> Exec + Send + Sync>;

/// Operation after which others may have to run.
pub(crate) type Looking = Box<dyn Fn(&mut Context<'_>, u32) -> Exec<bool> + Send + Sync>;

/// Operation that may have to wait for an asynchronous unit, and is executed
/// again then.
pub(crate) type Polling = Box<dyn Fn(&mut Context<'_>, u32) -> Exec<Poll> + Send + Sync>;

/// One instruction.
pub(crate) struct Instr {
    pub(crate) op: Op,
    pub(crate) guard: Pred,
    pub(crate) line: u32,
    pub(crate) family: Family,
}

/// The effect of an instruction.
pub(crate) enum Op {
    /// Register operation.
    Alu(Alu),
    /// Memory or environment operation.
    Effect(Effect),
    /// Memory operation that may be a look for what another thread does; true
    /// when others should run.
    Look(Looking),
    /// Nothing.
    Nop,
    /// `bra`
    Branch(usize),
    /// `brx.idx`
    BranchIndex { index: Slot, targets: Box<[usize]> },
    /// `call`
    Call(Box<CallSite>),
    /// `ret`
    Return,
    /// `exit`
    Exit,
    /// `trap`
    Trap,
    /// `brkpt`
    Breakpoint,
    /// Needs all lanes of a member mask at this instruction.
    Exchange { members: Slot, run: Effect },
    /// `bar.warp.sync`
    WarpBarrier { members: Slot },
    /// `bar`, `barrier`
    Barrier(Box<BarrierOp>),
    /// Waits for an asynchronous unit; `aligned`: needs all live lanes.
    Poll { aligned: bool, run: Polling },
}

/// A CTA barrier instruction.
#[derive(Debug, Clone)]
pub(crate) struct BarrierOp {
    pub(crate) id: Slot,
    /// Threads; all of the CTA when absent.
    pub(crate) count: Option<Slot>,
    pub(crate) aligned: bool,
    /// False for `arrive`.
    pub(crate) wait: bool,
    /// `red`: what to reduce, over which predicate, into what.
    pub(crate) reduction: Option<(super::Reduction, Pred, RedTarget)>,
}

/// Destination of a barrier reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedTarget {
    /// `.popc`: a 32-bit register.
    Count(Slot),
    /// `.and`, `.or`: a predicate register.
    Pred(u32),
}

/// The target of a call.
#[derive(Debug, Clone)]
pub(crate) enum Callee {
    /// A function by index.
    Direct(usize),
    /// An address in a 64-bit register; the functions it may name, none given
    /// meaning any.
    Indirect(Slot, Option<Box<[usize]>>),
}

/// A value that crosses a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Bytes of the caller's or callee's local frame.
    Frame { offset: u32, bytes: u32 },
    /// A 32-bit row, of which `bytes` count.
    R32(Slot, u32),
    /// A 64-bit row.
    R64(Slot),
    /// A 128-bit register.
    R128(Slot),
}

/// `call`
#[derive(Debug, Clone)]
pub(crate) struct CallSite {
    pub(crate) callee: Callee,
    pub(crate) args: Box<[Passed]>,
    pub(crate) returns: Box<[Passed]>,
}

/// A decoded function.
#[derive(Debug, Clone)]
pub(crate) struct FunctionCode {
    pub(crate) name: String,
    /// Whether it has a body.
    pub(crate) defined: bool,
    /// First instruction in the module's code.
    pub(crate) start: usize,
    pub(crate) frame: FrameSize,
    /// Local memory of a frame, bytes, a multiple of 16.
    pub(crate) local: u32,
    pub(crate) params: Box<[Passed]>,
    pub(crate) returns: Box<[Passed]>,
    /// Functions it may call; `None` in place of a list when it calls through
    /// a pointer.
    pub(crate) calls: Vec<usize>,
    /// Whether it calls through a pointer, so that it may reach every function.
    pub(crate) calls_any: bool,
    /// Shared variables it names.
    pub(crate) shared: Vec<usize>,
    /// Whether it communicates through global memory while running: atomics, volatile or ordered
    /// accesses.
    pub(crate) global_sync: bool,
    /// Whether it asks for clusters of its grid that have not begun.
    pub(crate) takes_over: bool,
}
