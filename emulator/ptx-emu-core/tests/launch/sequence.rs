//! Kernels in stream order with programmatic dependent launches: what may overlap
//! does, under every schedule, and what waits is waited for.

use ptx_emu_core::{
    Checks, GlobalMemory, Gpu, Launch, LaunchError, LaunchReport, Module, Schedule, Step,
    launch_sequence,
};

const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

/// `first`: `a[i] = 3 i`; with a trigger before or behind its stores. `second`:
/// `b[i] = a[i'] + 1` for an `i'` of another CTA, behind its wait or before.
fn module(trigger: &str, late: &str, wait: &str) -> Module {
    let text = format!(
        "{HEAD}
        .visible .entry first(.param .u64 a, .param .u64 b) {{
            .reg .b64 %a; .reg .b32 %t, %c, %n, %v, %i; .reg .pred %p; ld.param.u64 %a, [a];
            mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %t, %c, %n, %t;
            {trigger}
            mov.u32 %i, 0; L: add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 300; @%p bra L;
            mad.wide.u32 %a, %t, 4, %a; mul.lo.u32 %v, %t, 3; st.global.u32 [%a], %v; {late} ret;
        }}
        .visible .entry second(.param .u64 a, .param .u64 b) {{
            .reg .b64 %a, %b; .reg .b32 %t, %c, %n, %v; ld.param.u64 %a, [a]; ld.param.u64 %b, [b];
            mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %t, %c, %n, %t;
            mad.wide.u32 %b, %t, 4, %b; xor.b32 %t, %t, 224; mad.wide.u32 %a, %t, 4, %a;
            griddepcontrol.launch_dependents;
            {wait} ld.global.u32 %v, [%a]; add.u32 %v, %v, 1; st.global.u32 [%b], %v; ret;
        }}"
    );
    Module::load(&text, &Gpu::h200()).expect("modelled")
}

const GRID: u32 = 8;

struct Sequence {
    memory: GlobalMemory,
    b: u64,
    params: Vec<u8>,
}

impl Sequence {
    fn new() -> Self {
        let mut memory = GlobalMemory::new();
        let [a, b] = ["a", "b"].map(|name| memory.alloc(name, 4 * 32 * u64::from(GRID), 256));
        let (a, b) = (a.expect("room"), b.expect("room"));
        Self { memory, b, params: [a, b].iter().flat_map(|p| p.to_le_bytes()).collect() }
    }

    fn run(
        &mut self,
        schedule: Schedule,
        steps: &[(&Module, &str, bool)],
    ) -> Result<Vec<LaunchReport>, LaunchError> {
        let step = |&(module, entry, programmatic)| Step {
            module,
            launch: Launch {
                entry,
                grid: [GRID, 1, 1],
                block: [32, 1, 1],
                cluster: None,
                dynamic_shared: 0,
                params: &self.params,
                schedule,
                threads: None,
                instruction_limit: Some(1_000_000),
                checks: Checks::default(),
            },
            programmatic,
        };
        let steps: Vec<Step<'_>> = steps.iter().map(step).collect();
        launch_sequence(&mut self.memory, &steps)
    }

    fn b(&self) -> Vec<u32> {
        let bytes = self.memory.read(self.b, 4 * 32 * u64::from(GRID)).expect("written");
        bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().expect("4"))).collect()
    }
}

fn schedules() -> impl Iterator<Item = Schedule> {
    [Schedule::Eager, Schedule::Lazy].into_iter().chain((0..32).map(Schedule::Random))
}

fn expected() -> Vec<u32> {
    (0..32 * GRID).map(|i| 3 * (i ^ 224) + 1).collect()
}

#[test]
fn a_dependent_kernel_that_waits_is_right() {
    let trigger = "griddepcontrol.launch_dependents;";
    for module in
        [module(trigger, "", "griddepcontrol.wait;"), module("", trigger, "griddepcontrol.wait;")]
    {
        for schedule in schedules() {
            let mut sequence = Sequence::new();
            let steps = [(&module, "first", false), (&module, "second", true)];
            let reports =
                sequence.run(schedule, &steps).unwrap_or_else(|e| panic!("{schedule}: {e}"));
            assert_eq!(sequence.b(), expected(), "{schedule}");
            let ctas: Vec<u64> = reports.iter().map(|report| report.counters.ctas).collect();
            assert_eq!(ctas, [8, 8]);
        }
    }
}

#[test]
fn a_dependent_kernel_that_does_not_wait_is_found() {
    let module = module("griddepcontrol.launch_dependents;", "", "");
    let steps = [(&module, "first", false), (&module, "second", true)];
    let wrong = schedules()
        .filter(|&schedule| match Sequence::new().run(schedule, &steps) {
            Ok(_) => false,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("uninitialised read") && text.contains("`second`"), "{text}");
                true
            }
        })
        .count();
    assert!(wrong > 16, "{wrong} of 34 schedules");
    // Without the attribute nothing overlaps.
    let steps = [(&module, "first", false), (&module, "second", false)];
    for schedule in schedules() {
        let mut sequence = Sequence::new();
        sequence.run(schedule, &steps).unwrap_or_else(|e| panic!("{schedule}: {e}"));
        assert_eq!(sequence.b(), expected(), "{schedule}");
    }
}

#[test]
fn without_a_trigger_the_end_of_every_cta_counts() {
    // A kernel that never triggers: dependents begin when its CTAs have ended, and
    // what it wrote is there even without a wait.
    let module = module("", "", "");
    let steps = [(&module, "first", false), (&module, "second", true)];
    for schedule in schedules() {
        let mut sequence = Sequence::new();
        sequence.run(schedule, &steps).unwrap_or_else(|e| panic!("{schedule}: {e}"));
        assert_eq!(sequence.b(), expected(), "{schedule}");
    }
}

#[test]
fn chains_of_three_and_several_groups() {
    let module = module("griddepcontrol.launch_dependents;", "", "griddepcontrol.wait;");
    let steps = [
        (&module, "first", false),
        (&module, "second", true),
        (&module, "second", true),
        (&module, "first", false),
        (&module, "second", true),
    ];
    for schedule in schedules() {
        let mut sequence = Sequence::new();
        let reports = sequence.run(schedule, &steps).unwrap_or_else(|e| panic!("{schedule}: {e}"));
        assert_eq!(reports.len(), 5);
        assert_eq!(sequence.b(), expected(), "{schedule}");
    }
}

#[test]
fn a_bad_step_is_refused_before_its_group_runs() {
    let module = module("", "", "");
    let steps = [(&module, "first", false), (&module, "third", true)];
    let error = Sequence::new().run(Schedule::Eager, &steps).expect_err("no such kernel");
    assert!(error.to_string().contains("entry: required one of: first, second"), "{error}");
    assert!(launch_sequence(&mut GlobalMemory::new(), &[]).expect("nothing").is_empty());
}
