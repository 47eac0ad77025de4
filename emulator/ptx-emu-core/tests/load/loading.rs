//! The parts of a module that are read when one kernel of it is loaded, and how fast.

use ptx_emu_core::{
    Checks, GlobalMemory, Gpu, Launch, LoadError, Module, ModuleText, Schedule, entry_names,
    examine,
};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

/// The word that one thread of a kernel writes.
fn result(module: &Module, entry: &str) -> u32 {
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 4, 256).unwrap();
    let launch = Launch {
        entry,
        grid: [1, 1, 1],
        block: [1, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        params: &out.to_le_bytes(),
        schedule: Schedule::Eager,
        threads: Some(1),
        instruction_limit: Some(1_000_000),
        checks: Checks::default(),
    };
    module.launch(&mut memory, &launch).unwrap();
    u32::from_le_bytes(memory.read(out, 4).unwrap().try_into().unwrap())
}

/// Kernels `k0`, `k1`, ... of 200 instructions each, until the text has `bytes` bytes.
fn large(bytes: usize) -> (String, usize) {
    let mut text = HEAD.to_owned();
    let mut count = 0;
    while text.len() < bytes {
        let _ = write!(
            text,
            ".visible .entry k{count}(.param .u64 out)\n{{\n\t.reg .b32 %r<8>;\n\t.reg .b64 %d<2>;\n\tld.param.u64 %d1, [out];\n\tmov.u32 %r1, {count};\n"
        );
        for _ in 0..200 {
            text.push_str("\tmad.lo.s32 %r1, %r1, 1, 1; // }\n");
        }
        text.push_str("\tst.global.u32 [%d1], %r1;\n\tret;\n}\n");
        count += 1;
    }
    (text, count)
}

#[test]
fn a_kernel_of_a_large_module_loads_at_once() {
    let (text, count) = large(10 << 20);
    let entry = format!("k{}", count - 1);
    let fastest = (0..3).map(|_| {
        let start = Instant::now();
        let module = Module::load_entry(&text, &Gpu::for_module(&text), &entry).unwrap();
        let took = start.elapsed();
        assert_eq!(result(&module, &entry), count as u32 + 199);
        took
    });
    // It takes a twentieth of that where nothing else runs.
    assert!(fastest.min().unwrap() < Duration::from_secs(1));
}

#[test]
fn half_a_million_lines_load_in_seconds() {
    let (text, _) = large(18 << 20);
    let lines = text.lines().count();
    assert!(lines > 480_000, "{lines}");
    let gpu = Gpu::for_module(&text);
    let fastest = (0..3).map(|_| {
        let start = Instant::now();
        Module::load(&text, &gpu).unwrap();
        start.elapsed()
    });
    // It takes a quarter of that where nothing else runs.
    assert!(fastest.min().unwrap() < Duration::from_secs(3));
}

#[test]
fn kernels_of_a_large_text_cost_their_own_length() {
    let (text, count) = large(10 << 20);
    let gpu = Gpu::for_module(&text);
    let start = Instant::now();
    let text = ModuleText::new(text).unwrap();
    assert_eq!(text.entry_names().len(), count);
    let read = start.elapsed();
    let start = Instant::now();
    for at in 0..100 {
        let entry = format!("k{}", count - 1 - at);
        let module = text.load_entry(&gpu, &entry).unwrap();
        assert_eq!(result(&module, &entry), (count - at) as u32 + 199);
    }
    // If each had to read the text, they would take a hundred times as long as it.
    assert!(start.elapsed() < 30 * read, "{:?} for 100, {read:?} for the text", start.elapsed());
    let missing = text.load_entry(&gpu, "k").unwrap_err();
    assert!(matches!(missing, LoadError::Entry { .. }), "{missing}");
}

#[test]
fn bodies_that_are_not_reached_are_not_read() {
    let text = format!(
        "{HEAD}.func broken() {{ this is {{ no }} PTX; }}
        .func (.reg .b32 y) seven() {{ mov.u32 y, 7; ret; }}
        .visible .entry good(.param .u64 out) {{ .reg .b64 %o; .reg .b32 %r; // }} \"
            ld.param.u64 %o, [out]; call (%r), seven; st.global.u32 [%o], %r; ret; }}
        .visible .entry bad() {{ call broken; ret; }}"
    );
    let gpu = Gpu::h200();
    assert!(matches!(Module::load(&text, &gpu), Err(LoadError::Syntax(_))));
    let Err(LoadError::Syntax(error)) = Module::load_entry(&text, &gpu, "bad") else {
        panic!("a body that is reached is read")
    };
    assert_eq!((error.pos.line, error.pos.column), (4, 26));
    let module = Module::load_entry(&text, &gpu, "good").unwrap();
    assert_eq!(result(&module, "good"), 7);
    assert_eq!(entry_names(&text).unwrap(), ["good", "bad"]);
    let unclosed = text.replace("call broken; ret; }", "call broken; ret;");
    let Err(LoadError::Syntax(error)) = Module::load_entry(&unclosed, &gpu, "good") else {
        panic!("a body without an end")
    };
    assert!(error.to_string().contains("found the end of the text"), "{error}");
}

#[test]
fn an_outline_is_the_module_without_bodies() {
    // Declared before it is defined, called through an alias, its address in a variable.
    let text = format!(
        "{HEAD}.func (.reg .b32 y) one();
        .func (.reg .b32 y) two() {{ mov.u32 y, 2; ret; }}
        .alias other, two;
        .visible .entry k(.param .u64 out);
        .func (.reg .b32 y) one() {{ mov.u32 y, 1; ret; }}
        .visible .entry k(.param .u64 out) {{ .reg .b64 %o; .reg .b32 %r<3>;
            ld.param.u64 %o, [out]; call (%r1), one; call (%r2), other;
            add.u32 %r1, %r1, %r2; st.global.u32 [%o], %r1; ret; }}
        .visible .entry unused() {{ ret; }}"
    );
    for module in [
        Module::load(&text, &Gpu::h200()).unwrap(),
        Module::load_entry(&text, &Gpu::h200(), "k").unwrap(),
    ] {
        assert_eq!(result(&module, "k"), 3);
    }
    let found = examine(&text, &Gpu::h200(), None).unwrap();
    let names: Vec<_> = found.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["k", "unused"]);
    assert!(found.entries.iter().all(ptx_emu_core::Examined::loads));
}
