//! State spaces, vector accesses, atomics, address conversion.

use crate::support::{Run, SCHEDULES, check, kernel, load_error, module};
use ptx_emu_core::{GlobalMemory, MemoryError};

#[test]
fn vector_loads_and_stores_of_all_widths() {
    // Each case copies 32 bytes per lane.
    for code in [
        "ld.global.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%d1]; st.global.v8.b32 [%d2], {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8};",
        "ld.global.v4.u64 {%d3,%d4,%d5,%d6}, [%d1]; st.global.v4.b64 [%d2], {%d3,%d4,%d5,%d6};",
        "ld.global.nc.L1::no_allocate.v2.u64 {%d3,%d4}, [%d1]; ld.global.nc.v2.u64 {%d5,%d6}, [%d1+16];
         st.global.v2.u64 [%d2], {%d3,%d4}; st.global.v2.u64 [%d2+16], {%d5,%d6};",
        "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%d1]; ld.global.v4.f32 {%f5,%f6,%f7,%f8}, [%d1+16];
         st.global.v4.f32 [%d2], {%f1,%f2,%f3,%f4}; st.global.wt.v4.f32 [%d2+16], {%f5,%f6,%f7,%f8};",
        "ld.global.b128 %q1, [%d1]; ld.global.b128 %q2, [%d1+16]; st.global.b128 [%d2], %q1; st.global.b128 [%d2+16], %q2;",
        "ld.global.v4.u8 {%h1,%h2,%h3,%h4}, [%d1]; st.global.v4.u8 [%d2], {%h1,%h2,%h3,%h4};
         ld.global.v2.b16 {%h5,%h6}, [%d1+4]; st.global.v2.b16 [%d2+4], {%h5,%h6};
         ld.global.u64.v2 {%d3,%d4}, [%d1+16]; st.global.v2.u64 [%d2+16], {%d3,%d4};
         ld.global.u64 %d5, [%d1+8]; st.global.u64 [%d2+8], %d5;",
        "ld.u32 %r1, [%d1]; st.u32 [%d2], %r1; ld.volatile.global.u32 %r1, [%d1+4]; st.relaxed.gpu.global.u32 [%d2+4], %r1;
         ld.acquire.gpu.global.u64 %d3, [%d1+8]; st.release.sys.global.u64 [%d2+8], %d3;
         ld.global.v4.b32 {%r1,%r2,_,%r4}, [%d1+16]; st.global.v2.b32 [%d2+16], {%r1,%r2}; ld.global.v2.u32 {%r5, _}, [%d1+24]; st.global.v2.u32 [%d2+24], {%r5, %r4};",
    ] {
        for block in [32, 45] {
            let input: Vec<u8> = (0..block * 32).map(|i| (i * 7 % 251) as u8).collect();
            let run = Run {
                block,
                out_bytes: u64::from(block) * 32,
                input: input.clone(),
                ..Run::body(&format!(
                    "mad.wide.u32 %d1, %tid, 32, %in; mad.wide.u32 %d2, %tid, 32, %out; {code}"
                ))
                .target("sm_100")
            };
            check(code, &run.bytes(), &input);
        }
    }
}

#[test]
fn loads_extend_to_the_register() {
    let input: Vec<u32> = (0..32).map(|i: u32| i.wrapping_mul(0x0837_9155) ^ 0x80).collect();
    let case = |code: &str, expected: &dyn Fn(u32) -> u64| {
        let run = Run {
            out_bytes: 256,
            ..Run::body(&format!(
                "mad.wide.u32 %d8, %tid, 8, %out; {code} st.global.u64 [%d8], %d1;"
            ))
        };
        let expected: Vec<u64> = input.iter().map(|&v| expected(v)).collect();
        check(code, &run.u32s(&input).longs(), &expected);
    };
    case("ld.global.s8 %d1, [%pi];", &|v| v as u8 as i8 as u64);
    case("ld.global.u8 %d1, [%pi+1];", &|v| u64::from(v >> 8 & 0xff));
    case("ld.global.s16 %r1, [%pi+2]; cvt.u64.u32 %d1, %r1;", &|v| {
        u64::from((v >> 16) as u16 as i16 as u32)
    });
    case("ld.global.u16 %r1, [%pi]; cvt.u64.u32 %d1, %r1;", &|v| u64::from(v & 0xffff));
    case("ld.global.s8 %h1, [%pi]; cvt.u64.u16 %d1, %h1;", &|v| u64::from(v as u8 as i8 as u16));
    case("ld.global.s32 %d1, [%pi];", &|v| v as i32 as u64);
    case("ld.global.b32 %d1, [%pi];", &u64::from);
}

#[test]
fn shared_memory_static_dynamic_and_generic() {
    let text = module(
        ".extern .shared .align 16 .b8 dyn[];
         .shared .align 4 .u32 module_var[64];
         .visible .entry k(.param .u64 out, .param .u64 in) {
            .reg .b32 %t, %a, %v, %w, %s; .reg .b64 %o, %g, %x; .reg .pred %p;
            .shared .align 8 .b8 own[256];
            mov.u32 %t, %tid.x;
            shl.b32 %a, %t, 2;
            mov.u32 %s, module_var; add.u32 %s, %s, %a; st.shared.u32 [%s], %t;
            mov.u32 %s, own; add.u32 %s, %s, %a; st.shared::cta.u32 [%s], %t;
            mov.u32 %s, dyn; add.u32 %s, %s, %a; add.u32 %v, %t, 100; st.shared.u32 [%s], %v;
            bar.sync 0;
            // Read the neighbour's through a generic address.
            mov.u64 %x, dyn; cvta.shared.u64 %g, %x;
            xor.b32 %v, %t, 1; mul.wide.u32 %x, %v, 4; add.u64 %g, %g, %x;
            ld.u32 %w, [%g];
            isspacep.shared %p, %g;
            selp.u32 %v, 1000, 0, %p; add.u32 %w, %w, %v;
            cvta.to.shared.u64 %x, %g; cvt.u32.u64 %s, %x; ld.shared.u32 %v, [%s]; add.u32 %w, %w, %v;
            ld.shared.u32 %v, [own+8]; add.u32 %w, %w, %v;
            ld.shared.u32 %v, [module_var+12]; add.u32 %w, %w, %v;
            mov.u32 %v, %dynamic_smem_size; add.u32 %w, %w, %v;
            ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %w;
            ret; }",
    );
    for schedule in SCHEDULES {
        let run = Run {
            block: 64,
            out_bytes: 256,
            dynamic_shared: 256,
            schedule,
            ..Run::new(text.clone())
        };
        let expected: Vec<u32> =
            (0..64).map(|t| 2 * ((t ^ 1) + 100) + 1000 + 2 + 3 + 256).collect();
        check(&format!("{schedule}"), &run.words(), &expected);
    }
}

#[test]
fn globals_constants_and_their_initialisers() {
    let text = module(
        ".visible .global .align 8 .u64 pointers[2] = { generic(values)+4, table };
         .global .align 4 .u32 values[4] = { 10, 20, 30 };
         .const .align 4 .f32 table[2] = { 0f3F800000, 2.5 };
         .const .align 2 .u16 small[2][2] = { {1, 2}, {3, 4} };
         .visible .entry k(.param .u64 out, .param .u64 in) {
            .reg .b32 %t, %v, %w; .reg .b64 %o, %g; .reg .f32 %f; .reg .b16 %h;
            mov.u32 %t, %tid.x;
            mov.u64 %g, pointers; ld.global.u64 %g, [%g]; ld.u32 %w, [%g];
            ld.global.u32 %v, [values+8]; add.u32 %w, %w, %v;
            ld.global.u32 %v, [values+12]; add.u32 %w, %w, %v;
            ld.const.f32 %f, [table+4]; cvt.rzi.u32.f32 %v, %f; add.u32 %w, %w, %v;
            ld.const.u16 %h, [small+6]; cvt.u32.u16 %v, %h; mad.lo.u32 %w, %v, 1000, %w;
            cvta.const.u64 %g, table; ld.f32 %f, [%g]; cvt.rzi.u32.f32 %v, %f; mad.lo.u32 %w, %v, 10000, %w;
            ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %w;
            ret; }",
    )
    .replace("cvta.const.u64 %g, table;", "mov.u64 %g, table; cvta.const.u64 %g, %g;");
    check("globals", &Run::new(text).words(), &[20 + 30 + 2 + 4000 + 10000; 32]);
}

#[test]
fn local_memory_is_each_threads_own() {
    let run = Run::body(
        ".local .align 16 .b8 stack[64];
         mov.u64 %d1, stack; cvta.local.u64 %d2, %d1;
         and.b32 %r1, %tid, 15; mul.wide.u32 %d3, %r1, 4; add.u64 %d4, %d2, %d3;
         st.u32 [%d4], %tid;
         add.u64 %d5, %d1, %d3;
         ld.local.u32 %r2, [%d5]; st.global.u32 [%po], %r2;",
    );
    check("local", &run.words(), &(0..32).collect::<Vec<_>>());
}

#[test]
fn parameters_by_value_and_by_address() {
    let text = module(
        ".visible .entry k(.param .u64 out, .param .u64 in) {
            .reg .b32 %t, %v; .reg .b64 %o, %g, %h;
            mov.b64 %g, in; cvta.param.u64 %g, %g; ld.param.u64 %h, [in]; ld.u64 %g, [%g];
            sub.u64 %g, %g, %h; cvt.u32.u64 %v, %g;
            mov.b64 %h, out; ld.param.u64 %o, [%h]; ld.param.v2.u32 {%v, _}, [in];
            ld.param.u32 %t, [in]; sub.u32 %v, %v, %t;
            mov.u32 %t, %tid.x; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %v; ret; }",
    );
    check("params", &Run::new(text).words(), &[0; 32]);
}

#[test]
fn atomics_return_old_values_in_lane_order() {
    let body = |code: &str| {
        format!(".shared .align 16 .b8 s[16]; setp.eq.u32 %p1, %tid, 0;
            @%p1 st.shared.v4.u32 [s], {{5, 0, 0, 0}}; bar.sync 0; {code} st.global.u32 [%po], %r1;")
    };
    let case = |code: &str, expected: &dyn Fn(u32) -> u32| {
        let expected: Vec<u32> = (0..32).map(expected).collect();
        check(code, &Run::body(&body(code)).words(), &expected);
    };
    case("atom.shared.add.u32 %r1, [s], 2;", &|t| 5 + 2 * t);
    case("atom.shared.exch.b32 %r1, [s], %tid;", &|t| if t == 0 { 5 } else { t - 1 });
    case("atom.shared.cas.b32 %r1, [s], 5, 6;", &|t| if t == 0 { 5 } else { 6 });
    case("atom.shared.max.s32 %r1, [s], %tid;", &|t| if t == 0 { 5 } else { 5.max(t - 1) });
    case("atom.shared.min.u32 %r1, [s], %tid;", &|t| if t == 0 { 5 } else { 0 });
    case("atom.shared.inc.u32 %r1, [s], 7;", &|t| (5 + t) % 8);
    case("atom.shared.dec.u32 %r1, [s], 7;", &|t| (5 + 32 - t) % 8);
    case("atom.shared.xor.b32 %r1, [s], 1;", &|t| 5 ^ (t & 1));
    case("red.shared.or.b32 [s], 8; ld.shared.u32 %r1, [s];", &|_| 13);
    case("red.shared.and.b32 [s], 4; ld.shared.u32 %r1, [s];", &|_| 4);
    case("atom.shared.add.u64 %d1, [s], 3; cvt.u32.u64 %r1, %d1;", &|t| 5 + 3 * t);
    case("atom.shared.add.noftz.f16x2 %r1, [s+4], 0x3c003c00; ld.shared.u32 %r1, [s+4];", &|_| {
        0x5000_5000
    });
    case(
        "red.shared.add.f64 [s+8], 0d3FF0000000000000; ld.shared.f64 %fd1, [s+8]; cvt.rzi.u32.f64 %r1, %fd1;",
        &|_| 32,
    );
    case("atom.shared.cas.b16 %h1, [s], 5, 9; ld.shared.u32 %r1, [s];", &|_| 9);
    case(
        "mov.b64 %d1, {5, 0}; mov.b64 %d2, 0; mov.b128 %q1, {%d1, %d2}; mov.u64 %d3, 77; mov.b128 %q2, {%d3, %d2};
         atom.shared.cas.b128 %q3, [s], %q1, %q2; mov.b128 {%d4, _}, %q3; cvt.u32.u64 %r1, %d4;",
        &|t| if t == 0 { 5 } else { 77 },
    );
}

#[test]
fn global_reductions_sum_over_the_grid() {
    for schedule in SCHEDULES {
        let run = Run {
            grid: 5,
            block: 64,
            out_bytes: 48,
            zeroed: true,
            schedule,
            threads: None,
            ..Run::body(
                "red.relaxed.gpu.global.add.s32 [%out], 1; atom.global.add.f32 %f1, [%out+4], 0f3F800000;
                 atom.add.u64 %d1, [%out+8], 2;
                 red.global.v2.f32.add [%out+16], {0f3F800000, 0f40000000};
                 atom.global.v4.bf16x2.add.noftz {%r1,%r2,%r3,%r4}, [%out+32], {0x3f80, 0, 0, 0x3f800000};",
            )
        };
        let f = |x: f32| x.to_bits();
        let bf16_256 = 0x4380;
        check(
            &format!("{schedule}"),
            &run.words(),
            &[320, f(320.0), 640, 0, f(320.0), f(640.0), 0, 0, bf16_256, 0, 0, bf16_256 << 16],
        );
    }
}

#[test]
fn subnormal_sums_flush_in_global_memory_only() {
    let run = Run {
        block: 1,
        out_bytes: 8,
        zeroed: true,
        ..Run::body(
            ".shared .align 4 .f32 s; st.shared.f32 [s], 0f00000001; atom.shared.add.f32 %f1, [s], 0f00000001;
             ld.shared.f32 %f2, [s]; st.global.f32 [%out], 0f00000001; atom.global.add.f32 %f1, [%out], 0f00000001;
             st.global.f32 [%out+4], %f2;",
        )
    };
    check("flush", &run.words(), &[0, 2]);
}

#[test]
fn memory_of_the_host_side() {
    let mut memory = GlobalMemory::new();
    let a = memory.alloc("a", 10, 1024).unwrap();
    assert_eq!(a % 1024, 0);
    memory.write(a + 3, &[1, 2, 3]).unwrap();
    assert_eq!(memory.read(a + 3, 3).unwrap(), [1, 2, 3]);
    assert_eq!(memory.read_raw(a, 5).unwrap(), [0xcb, 0xcb, 0xcb, 1, 2]);
    assert_eq!(
        memory.read(a, 10),
        Err(MemoryError::Uninitialised { name: "a".into(), offset: 0, addr: a })
    );
    assert_eq!(
        memory.read(a + 3, 5).unwrap_err().to_string(),
        format!("`a`: byte 6 (address {:#x}) was never written", a + 6)
    );
    assert!(matches!(memory.write(a + 8, &[0; 3]), Err(MemoryError::OutOfBounds { .. })));
    assert!(matches!(memory.alloc("z", 0, 4), Err(MemoryError::Empty { .. })));
    assert!(matches!(memory.alloc("z", 4, 3), Err(MemoryError::Align { .. })));
    assert!(matches!(memory.alloc("z", u64::MAX, 4), Err(MemoryError::TooLarge { .. })));
    let fixed = memory.alloc_at(0x7f12_3400_0007, "fixed", 100).unwrap();
    memory.fill(fixed, 100, 9).unwrap();
    assert_eq!(memory.read(fixed + 1, 99).unwrap(), [9; 99]);
    assert!(matches!(memory.alloc_at(fixed + 99, "b", 1), Err(MemoryError::Overlap { .. })));
    memory.free(fixed).unwrap();
    assert!(matches!(memory.free(fixed), Err(MemoryError::NotAllocated { .. })));
    assert!(memory.read(fixed, 1).is_err());
    // New allocations step over fixed ones.
    memory.alloc_at(a + 8192, "ahead", 64).unwrap();
    let b = memory.alloc("b", 100_000, 1).unwrap();
    assert!(b > a + 8192);
}

#[test]
fn a_space_that_contradicts_the_variable_is_refused() {
    let text = kernel(".shared .align 4 .b32 s; ld.global.u32 %r1, [s];");
    assert!(load_error(&text).to_string().contains("required .global, actual a .shared variable"));
}
