//! Kernels whose machine instructions are counted by hand in `tests/data/bound/steps.sass`, which is what
//! nvdisasm 13.2.51 prints of what ptxas 13.0.88 makes of `steps.ptx`.

use super::anchor::{Anchor, anchors};
use super::blocks::Graph;
use super::counts::{Counts, Entered};
use super::disassembly::{Disassembly, Instruction};
use super::pipes::{Machine, Pipe, Resource, TABLE};
use super::{BoundError, Launched, MachineBound, bound, on_machine};
use crate::{Checks, Counters, Executed, GlobalMemory, Gpu, Issued, Launch, Module, Schedule};

const PTX: &str = include_str!("../../tests/data/bound/steps.ptx");
const SASS: &str = include_str!("../../tests/data/bound/steps.sass");

/// The counts of a kernel's run of [`PTX`].
struct Ran {
    kernel: &'static str,
    issued: Vec<Issued>,
    counters: Counters,
}

impl Ran {
    fn launched(&self) -> Launched<'_> {
        let Self { kernel, issued, counters } = self;
        Launched { ptx: PTX, kernel, threads_of_cta: 32, issued, counters }
    }
}

/// Runs `ctas` warps, each of whose threads writes `n` numbers.
fn ran(kernel: &'static str, ctas: u32, n: u32) -> Ran {
    let gpu = Gpu::h200();
    let module = Module::load(PTX, &gpu).expect("the module loads");
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", u64::from(n) * 128, 128).expect("memory");
    let mut params = out.to_le_bytes().to_vec();
    params.extend(n.to_le_bytes());
    let launch = Launch {
        entry: kernel,
        grid: [ctas, 1, 1],
        block: [32, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        params: &params,
        schedule: Schedule::Eager,
        threads: Some(1),
        instruction_limit: None,
        checks: Checks::default(),
    };
    let report = module.launch(&mut memory, &launch).expect("the kernel runs");
    let issued = module.issued(&report.executed).collect();
    Ran { kernel, issued, counters: report.counters }
}

/// Clocks of a pipe of a scheduler, all warps together, where each is on an SM of its own.
fn clocks(found: &MachineBound, resource: Resource, ctas: u32) -> f64 {
    let limit = found.limits.iter().find(|limit| limit.resource == resource);
    limit.expect("all resources are there").clocks * 4.0 * f64::from(ctas)
}

#[test]
fn a_loop_counts_as_often_as_it_ran() {
    for (ctas, n) in [(1, 10), (3, 10), (2, 1)] {
        let ran = ran("kept", ctas, n);
        let found = bound(&ran.launched(), SASS, &Gpu::h200()).expect("a bound");
        // 7 instructions before the loop, 7 in it, one behind it.
        let warps = u64::from(ctas);
        assert_eq!(found.instructions, warps * u64::from(7 + 7 * n + 1));
        let (of, n) = (f64::from(ctas), f64::from(n));
        let all = [
            (Resource::Issue, 8.0 + 7.0 * n),
            // ISETP, IADD3, IADD3.X
            (Resource::Alu, 2.0 * 3.0 * n),
            // IMAD.WIDE before the loop, IMAD in it
            (Resource::Fma, 1.0 + n),
            (Resource::FmaHeavy, 2.0 + 2.0 * n),
            // STG
            (Resource::Lsu, 4.0 * n),
            // UIADD3
            (Resource::Uniform, n),
            (Resource::Half, 0.0),
            (Resource::Xu, 0.0),
            (Resource::Tensor, 0.0),
        ];
        assert_eq!(all.len(), Resource::ALL.len());
        for (resource, expected) in all {
            let actual = clocks(&found, resource, ctas);
            assert!((actual - of * expected).abs() < 1e-6, "{resource:?}: {actual}, {expected}");
        }
        assert_eq!(found.by, Resource::Issue);
        assert_eq!((found.anchors, found.moved_loads), (1, 0));
    }
}

/// ptxas has made four copies of the store's block: the cheapest of them may have stored everything.
#[test]
fn of_copies_the_cheapest_counts() {
    let ran = ran("unrolled", 1, 10);
    let found = bound(&ran.launched(), SASS, &Gpu::h200()).expect("a bound");
    // Certain are 13, 4, 4 and 2 instructions between the copies. In the copies, 15 instructions store four times.
    let certain = 13.0 + 4.0 + 4.0 + 2.0;
    let issue = clocks(&found, Resource::Issue, 1);
    assert!((issue - (certain + 15.0 / 4.0 * 10.0)).abs() < 1e-6, "{issue}");
    // The machine goes through the loop of four twice, with two instructions before, then stores two.
    let executed = certain + 2.0 + 2.0 * 15.0 + 10.0;
    assert!(issue <= executed);
}

#[test]
fn code_of_another_kernel_is_refused() {
    let ran = ran("kept", 1, 10);
    let renamed = SASS.replace("kept", "other");
    let error = bound(&ran.launched(), &renamed, &Gpu::h200()).expect_err("no such kernel");
    assert!(matches!(&error, BoundError::Kernel { actual, .. } if actual == "unrolled, other"));
}

/// Code that cannot have run is refused: without its backward branch the loop's block runs once,
/// but the store ran ten times.
#[test]
fn code_that_cannot_have_run_is_refused() {
    let ran = ran("kept", 1, 10);
    let straight = SASS.replace("@P0 BRA `(.L_x_5)", "NOP");
    let error = bound(&ran.launched(), &straight, &Gpu::h200()).expect_err("a contradiction");
    assert!(matches!(error, BoundError::Contradiction(_)), "{error}");
}

#[test]
fn unknown_opcodes_are_refused() {
    let ran = ran("kept", 1, 10);
    let changed = SASS.replace("IMAD R5, R5, 0x3, R0", "FROB R5, R5, 0x3, R0");
    let error = bound(&ran.launched(), &changed, &Gpu::h200()).expect_err("an unknown opcode");
    assert!(matches!(&error, BoundError::Opcode(found) if found.actual == "FROB"), "{error}");
}

#[test]
fn a_branch_to_nowhere_is_refused() {
    let ran = ran("kept", 1, 10);
    let changed = SASS.replace("@P0 BRA `(.L_x_5)", "@P0 BRA `(.L_x_99)");
    let error = bound(&ran.launched(), &changed, &Gpu::h200()).expect_err("an unknown label");
    assert!(matches!(error, BoundError::Graph(_)), "{error}");
}

/// Each entry of the table that the loop uses matters: without it, or in another pipe, clocks differ.
#[test]
fn a_changed_table_is_noticed() {
    let ran = ran("kept", 1, 10);
    let gpu = Gpu::h200();
    let right = Machine::of(&gpu).expect("rates");
    let limits = |machine: &Machine| {
        on_machine(&ran.launched(), SASS, &gpu, machine).map(|found| found.limits)
    };
    let expected = limits(&right).expect("a bound");
    for opcode in ["IMAD", "ISETP", "STG", "IADD3", "UIADD3", "BRA", "LDC"] {
        let without = |all: &str| -> &'static str {
            let rest: Vec<&str> = all.split_whitespace().filter(|one| *one != opcode).collect();
            rest.join(" ").leak()
        };
        let lacking: Vec<(Pipe, &'static str)> =
            TABLE.iter().map(|(pipe, all)| (*pipe, without(all))).collect();
        let mut moved = lacking.clone();
        let lacking = Machine { table: lacking.leak(), ..right };
        assert!(matches!(limits(&lacking), Err(BoundError::Opcode(_))), "{opcode}");
        moved.push((Pipe::Xu, opcode));
        let moved = Machine { table: moved.leak(), ..right };
        let changed = limits(&moved).expect("a bound");
        // A branch under a predicate counts its slot in any pipe.
        assert_eq!(changed == expected, opcode == "BRA", "{opcode}");
    }
}

/// `tests/data/bound/opcodes.txt`: those of the machine code of all our kernels, sm_90a and sm_100a;
/// `opcodes.sm_80.txt`: those of a sample for sm_80 to sm_89; `opcodes.sm_120.txt`: those of one for sm_120a.
#[test]
fn opcodes_of_our_kernels_have_one_pipe_each() {
    let machine = Machine::of(&Gpu::h200()).expect("rates");
    let opcodes: Vec<&str> = [
        include_str!("../../tests/data/bound/opcodes.txt"),
        include_str!("../../tests/data/bound/opcodes.sm_80.txt"),
        include_str!("../../tests/data/bound/opcodes.sm_120.txt"),
    ]
    .into_iter()
    .flat_map(str::lines)
    .collect();
    assert!(opcodes.len() > 100);
    for opcode in &opcodes {
        let instruction = Instruction {
            address: 0,
            line: None,
            guard: None,
            opcode: (*opcode).to_owned(),
            operands: String::new(),
        };
        let cost = machine.cost(&instruction).expect("a known opcode");
        assert!((cost[Resource::Issue as usize] - 1.0).abs() < 1e-9);
    }
    let mut all: Vec<&str> = TABLE.iter().flat_map(|(_, all)| all.split_whitespace()).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "an opcode is in two rows");
    let other = all.iter().filter(|one| !opcodes.contains(one)).collect::<Vec<_>>();
    assert!(other.is_empty(), "no kernel has {other:?}");
}

#[test]
fn rates_are_of_known_architectures() {
    let gpu = Gpu { arch: "sm_75", ..Gpu::h200() };
    let error = Machine::of(&gpu).expect_err("no rates");
    assert_eq!(
        error.to_string(),
        "architecture: required sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_103a, sm_120a or sm_121a, \
         actual `sm_75`"
    );
    for gpu in Gpu::ALL {
        assert!(Machine::of(&gpu).is_ok(), "{}", gpu.name);
    }
    let sm90 = Machine::of(&Gpu::h200()).expect("rates");
    let sm100 = Machine::of(&Gpu::b200()).expect("rates");
    assert!(!sm90.assumes(Resource::Issue) && sm100.assumes(Resource::Issue));
    let maximum = Instruction {
        address: 0,
        line: None,
        guard: None,
        opcode: "FMNMX".to_owned(),
        operands: String::new(),
    };
    let alu = |machine: &Machine| machine.cost(&maximum).expect("a cost")[Resource::Alu as usize];
    assert!(alu(&sm90) > 1.0 && alu(&sm100) < 1.0);
    let costs = |gpu: &Gpu, opcode: &str, resources: [Resource; 3]| {
        let instruction = Instruction { opcode: opcode.to_owned(), ..maximum.clone() };
        let cost = Machine::of(gpu).expect("rates").cost(&instruction).expect("a cost");
        resources.map(|resource| cost[resource as usize] as u32)
    };
    for (gpu, fp32, integer, half) in [
        (Gpu::a100(), 2, [2, 2, 0], 1),
        (Gpu::rtx3090(), 1, [1, 2, 0], 2),
        (Gpu::l40s(), 1, [1, 2, 0], 2),
        (Gpu::h200(), 1, [1, 2, 0], 1),
        (Gpu::rtx5090(), 1, [1, 1, 0], 2),
        (Gpu::dgx_spark(), 1, [1, 1, 0], 2),
    ] {
        let resources = [Resource::Fma, Resource::FmaHeavy, Resource::Half];
        assert_eq!(costs(&gpu, "FFMA", resources), [fp32, 0, 0], "{}", gpu.name);
        assert_eq!(costs(&gpu, "IMAD", resources), integer, "{}", gpu.name);
        assert_eq!(costs(&gpu, "HFMA2", resources), [0, 0, half], "{}", gpu.name);
    }
}

/// A diamond: what one side has counted is missing on the other.
const DIAMOND: &str = "\
\t.section\t.text.k,\"ax\",@progbits
.text.k:
        /*0000*/              @P0 BRA `(.L_1) ;
        /*0010*/                   IADD3 R0, R0, R1, RZ ;
        /*0020*/                   BRA `(.L_2) ;
.L_1:
        /*0030*/                   STG.E desc[UR6][R2.64], R5 ;
.L_2:
        /*0040*/                   EXIT ;
";

#[test]
fn threads_that_enter_leave() {
    let code = Disassembly::parse(DIAMOND).expect("a disassembly");
    let graph = Graph::of(&code.functions[0]).expect("blocks");
    assert_eq!(graph.edges, [(0, 1), (0, 2), (1, 3), (2, 3)]);
    let stored = |first_lanes, threads| {
        let executed = Executed { warps: 10, threads, first_lanes };
        vec![Anchor { line: 1, executed, copies: vec![(2, 1)], at_most: vec![2] }]
    };
    let entered = Entered { warps: 10, threads: 320 };
    let counts = |anchors: &[Anchor]| Counts::of(&graph, entered, anchors, &[]);
    // Three whole warps store, so that seven go the other way.
    assert_eq!(counts(&stored(3, 96)).expect("counts").warps, [10, 7, 3, 10]);
    // The first thread of each warp stores: the others are at least 310 / 32 warps.
    assert_eq!(counts(&stored(10, 10)).expect("counts").warps, [10, 10, 10, 10]);
    // Some other thread of each warp stores: in one warp, as far as is known, though in ten parts.
    assert_eq!(counts(&stored(0, 10)).expect("counts").warps, [10, 10, 1, 10]);
    let error = counts(&stored(11, 352)).expect_err("more than there are");
    assert_eq!((error.address, error.at_least, error.at_most), (0x30, 352, 320));
}

/// A load that the machine code executes less often than the PTX is no anchor.
#[test]
fn a_load_that_moved_is_left_out() {
    let code = Disassembly::parse(DIAMOND).expect("a disassembly");
    let graph = Graph::of(&code.functions[0]).expect("blocks");
    let executed = Executed { warps: 11, threads: 352, first_lanes: 11 };
    let load = Anchor { line: 1, executed, copies: vec![(1, 1)], at_most: vec![] };
    let counts = Counts::of(&graph, Entered { warps: 10, threads: 320 }, &[], &[load]);
    let counts = counts.expect("counts");
    assert_eq!((counts.moved_loads, counts.warps), (1, vec![10, 0, 0, 10]));
}

/// Merged stores bound nothing from above: a store into which ptxas merged another may run more
/// often than its line.
#[test]
fn merged_stores_bound_nothing_from_above() {
    let ptx = "\tst.global.u32 [%a], 1;\n\tst.global.u32 [%b], 2;\n";
    let code = "\t.section\t.text.k,\"ax\"\n\t//## File \".nv_debug_ptx_txt\", line 1\n\
                /*0000*/ STG.E desc[UR6][R2.64], R5 ;\n/*0010*/ EXIT ;\n";
    let issued =
        |line| Issued { line, executed: Executed { warps: 1, threads: 32, first_lanes: 1 } };
    let parsed = Disassembly::parse(code).expect("a disassembly");
    let graph = Graph::of(&parsed.functions[0]).expect("blocks");
    let (one, _) = anchors(ptx, &[issued(1)], &graph);
    assert_eq!((one.len(), one[0].at_most.as_slice()), (1, &[0][..]));
    let (merged, _) = anchors(ptx, &[issued(1), issued(2)], &graph);
    assert_eq!((merged.len(), merged[0].at_most.len()), (1, 0));
}

#[test]
fn what_is_no_instruction_is_refused() {
    let head = "\t.section\t.text.k,\"ax\"\n";
    for (line, required) in [
        ("/*00g0*/ EXIT ;", "a hexadecimal address"),
        ("/*0000*/ EXIT", "an instruction that ends with `;`"),
        ("/*0000*/ @P0 ;", "an opcode behind the predicate"),
        ("/*0000*/ ? ;", "an opcode"),
        ("/*0000 EXIT ;", "an address in a comment"),
    ] {
        let error = Disassembly::parse(&format!("{head}{line}\n")).expect_err(line);
        assert_eq!((error.line, error.required), (2, required));
    }
}
