//! The device's heap: `malloc` and `free` of kernels.

use ptx_emu_core::{
    Checks, Diagnostic, GlobalMemory, Gpu, Kind, Launch, LaunchError, Model, Module, Schedule,
};

/// Kernels that have a pointer for each thread at `%at`: `make` allocates `bytes` and stores the thread's number
/// there; `take` loads it, adds it to `out` and frees.
const PTX: &str = "
.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b64 r) malloc (.param .b64 bytes);
.extern .func free (.param .b64 at);
.visible .entry make(.param .u64 pointers, .param .u64 bytes) {
    .reg .b64 %at, %p, %n; .reg .b32 %t, %c; .reg .pred %none;
    ld.param.u64 %at, [pointers]; ld.param.u64 %n, [bytes];
    mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mad.lo.u32 %t, %c, 32, %t;
    mad.wide.u32 %at, %t, 8, %at;
    { .param .b64 a; .param .b64 r; st.param.b64 [a], %n; call.uni (r), malloc, (a); ld.param.b64 %p, [r]; }
    st.global.u64 [%at], %p;
    setp.eq.u64 %none, %p, 0;
    @!%none st.u32 [%p], %t;
    ret;
}
.visible .entry take(.param .u64 pointers, .param .u64 offset) {
    .reg .b64 %at, %p, %q, %n; .reg .b32 %t, %c, %v;
    ld.param.u64 %at, [pointers]; ld.param.u64 %n, [offset];
    mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mad.lo.u32 %t, %c, 32, %t;
    mad.wide.u32 %at, %t, 8, %at;
    ld.global.u64 %p, [%at];
    add.u64 %q, %p, %n;
    ld.u32 %v, [%q];
    st.global.u32 [%at], %v;
    { .param .b64 a; st.param.b64 [a], %p; call.uni free, (a); }
    ret;
}";

const CTAS: u32 = 40;
const THREADS: usize = 32 * CTAS as usize;

struct Device {
    module: Module,
    memory: GlobalMemory,
    pointers: u64,
}

impl Device {
    fn new() -> Self {
        let module = Module::load(PTX, &Gpu::h200()).expect("it loads");
        let mut memory = GlobalMemory::new();
        let pointers = memory.alloc("pointers", 8 * THREADS as u64, 256).expect("room");
        Self { module, memory, pointers }
    }

    /// Launches; on so many threads of the host.
    fn launch(
        &mut self,
        entry: &str,
        second: u64,
        schedule: Schedule,
        threads: usize,
    ) -> Result<(), Box<Diagnostic>> {
        let params = [self.pointers, second].map(u64::to_le_bytes).concat();
        let launch = Launch {
            entry,
            grid: [CTAS, 1, 1],
            block: [32, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: &params,
            schedule,
            threads: Some(threads),
            instruction_limit: None,
            checks: Checks::new(Model::Ptx),
        };
        match self.module.launch(&mut self.memory, &launch) {
            Ok(_) => Ok(()),
            Err(LaunchError::Diagnostic(found)) => Err(found),
            Err(other) => panic!("{other}"),
        }
    }

    fn words(&self) -> Vec<u64> {
        let bytes = self.memory.read(self.pointers, 8 * THREADS as u64).expect("written");
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }
}

#[test]
fn memory_lasts_until_it_is_freed() {
    for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(3)] {
        let mut device = Device::new();
        device.memory.set_heap_limit(THREADS as u64 * 20);
        device.launch("make", 20, schedule, 1).expect("right");
        let mut given = device.words();
        assert!(given.iter().all(|pointer| *pointer != 0 && pointer.is_multiple_of(16)));
        // A copy of the memory has the heap, too.
        let copy = device.memory.duplicate().expect("room");
        for memory in [copy, std::mem::take(&mut device.memory)] {
            device.memory = memory;
            device.launch("take", 0, schedule, 1).expect("right");
            let taken: Vec<u64> = device.words().iter().map(|word| word & 0xffff_ffff).collect();
            assert_eq!(taken, (0..THREADS as u64).collect::<Vec<_>>(), "{schedule}");
        }
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), THREADS);
        // There is room again, and none beyond the limit.
        device.launch("make", 20, schedule, 1).expect("right");
        device.launch("make", 1, schedule, 1).expect("right");
        assert!(device.words().iter().all(|pointer| *pointer == 0));
    }
}

#[test]
fn addresses_do_not_depend_on_the_host() {
    let given = |schedule, threads| {
        let mut device = Device::new();
        device.launch("make", 48, schedule, threads).expect("right");
        device.words()
    };
    for schedule in [Schedule::Eager, Schedule::Random(7)] {
        assert_eq!(given(schedule, 1), given(schedule, 4), "{schedule}");
    }
    assert_ne!(given(Schedule::Eager, 1), given(Schedule::Random(7), 1));
}

#[test]
fn misuse_is_found() {
    let made = || {
        let mut device = Device::new();
        device.launch("make", 20, Schedule::Eager, 1).expect("right");
        device
    };
    let found = |device: &mut Device, offset| {
        let found = device.launch("take", offset, Schedule::Eager, 1).expect_err("wrong");
        (found.kind(), found.to_string())
    };
    let (kind, text) = found(&mut made(), 4);
    assert_eq!(kind, Kind::UninitialisedRead, "{text}");
    assert!(text.contains("`memory of the device's heap`"), "{text}");
    let (kind, text) = found(&mut made(), 20);
    assert_eq!(kind, Kind::OutOfBounds, "{text}");
    // Every thread has the pointer of the first one: the second frees it again, or reads it when it is freed.
    let mut device = made();
    let first = device.words()[0];
    device.memory.write(device.pointers, &first.to_le_bytes().repeat(THREADS)).expect("inside");
    let (kind, text) = found(&mut device, 0);
    assert_eq!(kind, Kind::InvalidFree, "{text}");
    assert!(text.contains("was freed before"), "{text}");
    // Memory that the host allocated.
    let mut device = made();
    let host = device.memory.alloc_from("host", &[0; 64]).expect("room");
    device.memory.write(device.pointers, &host.to_le_bytes()).expect("inside");
    let (kind, text) = found(&mut device, 0);
    assert_eq!(kind, Kind::InvalidFree, "{text}");
    assert!(text.contains("no address that malloc gave"), "{text}");
}

#[test]
fn a_use_of_freed_memory_names_it() {
    let ptx = PTX.replace(
        "call.uni free, (a); }",
        "call.uni free, (a); }\n    ld.u32 %v, [%p];\n    st.global.u32 [%at], %v;",
    );
    let mut device = Device::new();
    device.launch("make", 20, Schedule::Eager, 1).expect("right");
    device.module = Module::load(&ptx, &Gpu::h200()).expect("it loads");
    let found = device.launch("take", 0, Schedule::Eager, 1).expect_err("wrong");
    assert_eq!(found.kind(), Kind::OutOfBounds, "{found}");
    assert!(found.to_string().contains("`memory of the device's heap, freed`"), "{found}");
}
