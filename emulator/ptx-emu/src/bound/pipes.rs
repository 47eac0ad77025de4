//! The pipe that executes an instruction, and its time there.
//!
//! An SM has four schedulers, each with its own pipes; the unit of memory instructions is the SM's. Costs are clocks
//! of a scheduler's pipe for one warp. If sources differ or say nothing, the shorter cost stands here, so that the
//! bound stays one.
//!
//! | resource | cost | source |
//! |---|---|---|
//! | issue | 1 per instruction | A scheduler issues one warp instruction per clock (CUDA C++ Programming Guide, compute capability 9.0, "Architecture"). That predicated-off instructions and `NOP` take a slot is an assumption, which profilers' counts of issued instructions support |
//! | ALU | 2 | Guide, table "Throughput of Native Arithmetic Instructions", 9.0: 64 results per clock and SM of integer additions, comparisons, shifts, logic, conversions. That selections, `PRMT`, `F2FP`, `FMNMX`, `FSETP` share the pipe is an assumption, from Nsight Compute's description of the pipe |
//! | FMA | 1, of FP32 | Guide: 128 results |
//! | FMA | 1, of integer multiply-add | Half of the pipe executes them, see the next line: of both halves together an instruction takes one clock |
//! | FMA heavy | 2, of integer multiply-add | Guide: 64 results of 32-bit multiplication and multiply-add. `IMAD.WIDE` may take longer. Nsight Compute's documentation has integer dot products (`IDP`) on this half alone; that they have the same rate is an assumption |
//! | half | 1, of packed halves | Guide: 256 results, two in an instruction. Whether they share a pipe with FP32 is not published, so that they are not added to it. `HFMA2.MMA` counts its slot only |
//! | XU | 8 | Guide: 16 results of reciprocals, logarithms, counts of leading zeros and of bits |
//! | LSU | 4, of an SM: 1 | Guide: 32 results of shuffles. That addresses of 32 lanes take a clock at least is an assumption; bytes and bank conflicts are left to the bound from counters |
//! | uniform | 1 | An assumption: no source for the rate of the uniform datapath |
//! | tensor | from the counters | Multiply-adds that PTX asks for, at the data sheet's dense rate |
//! | only issue | - | Everything whose pipe or rate is not published: branches, barriers, constants, special registers, moves, `VIADD`, mbarriers, copies, tensor memory. So do all instructions under a predicate: where no thread has it, they may not reach their pipe |
//!
//! The guide is the CUDA C++ Programming Guide, whose table CUDA 13 has moved to the Best Practices Guide, 12.1.1. It
//! was read as others quote it, for there was no copy at hand: 9.0 as of version 12.6.
//!
//! On sm_100a the same rates are *assumed*, but for minima and maxima, whose rate there is 128 for FP32, so that
//! they count their slot only; packed FP32 (`FFMA2`) takes two clocks, because the data sheet's FP32
//! rate is 128 multiply-adds per clock and SM.
//!
//! Before sm_90 the guide has the same rates, but for these:
//!
//! | target | cost | source |
//! |---|---|---|
//! | sm_80 | FMA 2, of FP32 and of integer multiply-add | Guide, 8.0: 64 results of either. Nsight Compute's documentation has one FMA pipe there, whose halves are later |
//! | sm_86, sm_89 | half 2, of packed halves | Guide, 8.6 and 8.9: 128 results; the architecture papers of GA102 and AD102 give halves the rate of FP32 |
//!
//! On sm_120a and sm_121a rates are *assumed* to be those of sm_89 with faster integers, because the guide's column
//! was not at hand:
//!
//! | cost | source |
//! |---|---|
//! | ALU 1, FMA heavy 1 | Architecture paper of GB202: all of its FP32 units take INT32 operations, twice as many as in AD102 |
//! | half 2, of packed halves | The same paper gives halves the rate of FP32 |
//!
//! `IADD` is on sm_120a only, and taken to be on the ALU, as `IADD3` is.
//!
//! That the opcodes before sm_90 are those of sm_90 or `IMNMX`, integer minima and maxima on the ALU, is from kernels for
//! `mma.sync` that ptxas 13.0 compiled.

use super::counts::Counts;
use super::disassembly::Instruction;
use crate::Gpu;
use serde::Serialize;

/// A resource that can be the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Issue slots.
    Issue,
    /// Integer and logic.
    Alu,
    /// FP32 and integer multiply-add, both halves of the pipe together.
    Fma,
    /// The half of it that multiplies integers.
    FmaHeavy,
    /// Packed halves.
    Half,
    /// Transcendental functions and counts of bits.
    Xu,
    /// Memory instructions and shuffles, of the whole SM.
    Lsu,
    /// The uniform datapath.
    Uniform,
    /// Tensor cores.
    Tensor,
}

impl Resource {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Issue,
        Self::Alu,
        Self::Fma,
        Self::FmaHeavy,
        Self::Half,
        Self::Xu,
        Self::Lsu,
        Self::Uniform,
        Self::Tensor,
    ];

    /// Name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Issue => "issue slots",
            Self::Alu => "ALU",
            Self::Fma => "FMA",
            Self::FmaHeavy => "FMA heavy",
            Self::Half => "half",
            Self::Xu => "XU",
            Self::Lsu => "LSU",
            Self::Uniform => "uniform",
            Self::Tensor => "tensor",
        }
    }
}

/// Clocks of each resource.
pub type Cost = [f64; Resource::ALL.len()];

/// Instructions of one cost beside their slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pipe {
    Alu,
    Float,
    PackedFloat,
    Half,
    Multiply,
    Xu,
    Lsu,
    Uniform,
    /// Its time is counted in PTX.
    Tensor,
    /// Nothing but its slot.
    Slot,
}

/// Opcodes without modifiers, by pipe.
pub(super) const TABLE: &[(Pipe, &str)] = &[
    (
        Pipe::Alu,
        "ISETP IADD IADD3 IMNMX LOP3 SHF LEA SEL FSEL FMNMX FMNMX3 FSETP PRMT F2FP VIMNMX VIMNMX3 \
         VIADDMNMX VHMNMX SGXT PLOP3 P2R",
    ),
    (Pipe::Float, "FADD FMUL FFMA"),
    (Pipe::Half, "HADD2 HMUL2 HFMA2"),
    (Pipe::PackedFloat, "FADD2 FMUL2 FFMA2"),
    (Pipe::Multiply, "IMAD IDP"),
    (Pipe::Xu, "MUFU FLO POPC"),
    (Pipe::Lsu, "LD LDG LDS LDSM ST STG STS STSM STAS LDGSTS REDG RED ATOMG ATOMS SHFL"),
    (Pipe::Uniform, "UMOV UIADD3 USHF UIMAD UISETP ULOP3 ULEA USEL UP2UR UPLOP3 USGXT UFLO UPRMT"),
    (Pipe::Tensor, "HMMA IMMA OMMA QMMA HGMMA QGMMA UTCHMMA UTCOMMA UTCQMMA"),
    (
        Pipe::Slot,
        "BRA BRX BRXU CALL RET EXIT BSSY BSYNC BREAK BPT NOP YIELD NANOSLEEP WARPSYNC \
         ENDCOLLECTIVE ELECT MATCH VIADD IABS HMNMX2 VOTE VOTEU REDUX CREDUX FCHK I2F F2I I2FP MOV CS2R R2P R2UR S2R S2UR LDC \
         ULDC LDCU BAR MEMBAR FENCE ERRBAR CGAERRBAR CCTL SYNCS ACQBULK PREEXIT DEPBAR LDGDEPBAR \
         USETMAXREG WARPGROUP UBLKCP UTMALDG UTMASTG UTMACCTL UTMACMDFLUSH UCGABAR_ARV \
         UCGABAR_WAIT UTCCP UTCBAR UTCATOMSWS UVIRTCOUNT UGETNEXTWORKID LDTM STTM",
    ),
];

/// An opcode that the table of pipes lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "instruction at {address:#06x} of the disassembly: required an opcode with a known pipe, actual `{actual}`"
)]
pub struct UnknownOpcode {
    /// The address of the instruction.
    pub address: u64,
    /// The opcode with its modifiers.
    pub actual: String,
}

/// An architecture without rates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("architecture: required {required}, actual `{actual}`")]
pub struct UnknownArch {
    /// The architectures with rates.
    pub required: &'static str,
    /// The machine's.
    pub actual: String,
}

/// The pipes of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Schedulers of an SM.
    pub schedulers: u32,
    /// Rates are those of another architecture.
    pub(super) borrowed: bool,
    /// Clocks of FP32, and of integer multiply-add in both halves of its pipe.
    pub(super) float: f64,
    /// Clocks of integers and logic.
    pub(super) alu: f64,
    /// Clocks of the half of the pipe that multiplies integers.
    pub(super) heavy: f64,
    /// Clocks of packed halves.
    pub(super) half: f64,
    pub(super) table: &'static [(Pipe, &'static str)],
}

impl Machine {
    /// The pipes of a GPU.
    ///
    /// # Errors
    /// [`UnknownArch`].
    pub fn of(gpu: &Gpu) -> Result<Self, UnknownArch> {
        let hopper = Self {
            schedulers: 4,
            borrowed: false,
            float: 1.0,
            alu: 2.0,
            heavy: 2.0,
            half: 1.0,
            table: TABLE,
        };
        Ok(match gpu.arch {
            "sm_80" => Self { float: 2.0, ..hopper },
            "sm_86" | "sm_89" => Self { half: 2.0, ..hopper },
            "sm_90a" => hopper,
            "sm_100a" | "sm_103a" => Self { borrowed: true, ..hopper },
            "sm_120a" | "sm_121a" => {
                Self { borrowed: true, alu: 1.0, heavy: 1.0, half: 2.0, ..hopper }
            }
            other => {
                let required = "sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_103a, sm_120a or sm_121a";
                return Err(UnknownArch { required, actual: other.to_owned() });
            }
        })
    }

    /// The clocks of an instruction.
    ///
    /// # Errors
    /// [`UnknownOpcode`].
    pub fn cost(&self, instruction: &Instruction) -> Result<Cost, UnknownOpcode> {
        let base = instruction.base();
        let found =
            self.table.iter().find(|(_, all)| all.split_whitespace().any(|one| one == base));
        let Some(&(pipe, _)) = found else {
            let Instruction { address, opcode, .. } = instruction;
            return Err(UnknownOpcode { address: *address, actual: opcode.clone() });
        };
        let mut cost = Cost::default();
        cost[Resource::Issue as usize] = 1.0;
        let faster = self.borrowed && base.contains("MNMX");
        if instruction.guard.is_some() || instruction.has("MMA") || faster {
            return Ok(cost);
        }
        match pipe {
            Pipe::Alu => cost[Resource::Alu as usize] = self.alu,
            Pipe::Float => cost[Resource::Fma as usize] = self.float,
            Pipe::PackedFloat => cost[Resource::Fma as usize] = 2.0,
            Pipe::Half => cost[Resource::Half as usize] = self.half,
            Pipe::Multiply => {
                cost[Resource::Fma as usize] = self.float;
                cost[Resource::FmaHeavy as usize] = self.heavy;
            }
            Pipe::Xu => cost[Resource::Xu as usize] = 8.0,
            Pipe::Lsu => cost[Resource::Lsu as usize] = f64::from(self.schedulers),
            Pipe::Uniform => cost[Resource::Uniform as usize] = 1.0,
            Pipe::Tensor | Pipe::Slot => {}
        }
        Ok(cost)
    }

    /// The clocks of all blocks together.
    pub(super) fn sums(&self, costs: &[Cost], counts: &Counts) -> Cost {
        let mut sums = Cost::default();
        for (resource, sum) in sums.iter_mut().enumerate() {
            let certain = costs.iter().zip(&counts.warps);
            *sum = certain.map(|(cost, warps)| cost[resource] * *warps as f64).sum();
            for open in &counts.open {
                let ways = open
                    .copies
                    .iter()
                    .map(|&(block, copies)| costs[block][resource] / copies as f64);
                *sum += ways.fold(f64::INFINITY, f64::min) * open.executions as f64;
            }
        }
        sums
    }

    /// Whether the rate of a resource is an assumption.
    #[must_use]
    pub const fn assumes(&self, resource: Resource) -> bool {
        match resource {
            Resource::Lsu | Resource::Uniform => true,
            Resource::Issue
            | Resource::Alu
            | Resource::Fma
            | Resource::FmaHeavy
            | Resource::Half
            | Resource::Xu
            | Resource::Tensor => self.borrowed,
        }
    }
}
