//! Operands, descriptors, shared memory, forms.

use super::kernel::{ALL, COMMIT, LAZY, LOAD, PRODUCT, SHAPE, bare, committed, kernel, product};
use crate::async_support::Case;
use ptx_emu_core::{Gpu, Module};

#[test]
fn shared_operands_written_while_a_product_reads_them() {
    let store = "mad.lo.u32 %r12, %tid, 4, %s; st.shared.u32 [%r12+4096], 0;";
    let parts = ["in flight: write of 4 bytes", "a source, not read yet, of tcgen05.mma of line"];
    product("", &format!("bar.sync 0; {store} {}", committed())).says(&LAZY, &parts);
    product("", &format!("{} {store}", committed())).passes();
    let copy = "add.u32 %r12, %r50, 32; tcgen05.cp.cta_group::1.128x128b [%r12], %d10;";
    let first = "mad.lo.u32 %r12, %tid, 4, %s; st.shared.u32 [%r12], 0;";
    product(copy, &format!("bar.sync 0; {first} {}", committed()))
        .says(&LAZY, &["a source, not read yet, of tcgen05."]);
}

#[test]
fn operands_written_without_a_proxy_fence() {
    let case = product("", &committed());
    let without = |case: &Case, from: &str, to: &str| {
        let mut case = case.clone();
        case.body = case.body.replacen(from, to, 1);
        case
    };
    without(&case, "fence.proxy.async;", "").says(
        &ALL,
        &[
            "missing proxy fence: tcgen05.mma reads 0x400 through the async proxy",
            "st.shared.v4.u32",
        ],
    );
    case.passes();
}

#[test]
fn instruction_descriptors() {
    let edit = |bits: u32| format!("mov.b32 %r10, {bits:#x};");
    let cases: [(u32, &str); 8] = [
        (SHAPE & !(31 << 24) | 2 << 24, "M: required one of [64, 128], actual 32"),
        (SHAPE & !(63 << 17), "N: required a multiple of 8, up to 256, actual 0"),
        (SHAPE | 63 << 17, "N: required a multiple of 8, up to 256, actual 504"),
        (SHAPE | 2 << 7 | 2 << 10, "type of A, bits 7-9: required 0 (f16) or 1 (bf16), actual 2"),
        (SHAPE | 1 << 10, "type of B, bits 10-12: required F16, as A"),
        (SHAPE & !(3 << 4) | 2 << 4, "type of D, bits 4-5: required 0 (f16) or 1 (f32), actual 2"),
        (SHAPE | 1 << 23, "bit 23: required 0"),
        (SHAPE | 1 << 2, "instruction descriptor: required neither sparse"),
    ];
    for (bits, part) in cases {
        product(&edit(bits), &committed()).says(&ALL, &[part]);
    }
    product(&edit(SHAPE), &committed()).passes();
}

#[test]
fn other_operands() {
    let cases: [(&str, &[&str]); 8] = [
        (
            "xor.b64 %d10, %d10, 0x400000000000;",
            &["invalid descriptor of tcgen05.mma matrix A", "bits 46-48"],
        ),
        ("or.b64 %d11, %d11, 0x6000000000000000;", &["matrix B", "swizzle, bits 61-63"]),
        (
            "add.u64 %d11, %d11, 0x200;",
            &["out of bounds: tcgen05.mma matrix B: 16 bytes at shared address"],
        ),
        ("add.u64 %d11, %d11, 0x40;", &["uninitialised read: tcgen05.mma matrix B"]),
        (
            "add.u32 %r50, %r50, 0x100000;",
            &["tcgen05.mma: lane of D: required one of [0], actual 16"],
        ),
        (
            "add.u32 %r12, %r50, 0x100000; tcgen05.cp.cta_group::1.128x128b [%r12], %d10;",
            &["tcgen05.cp: address: required lane 0"],
        ),
        (
            "add.u32 %r12, %r50, 0x100000; tcgen05.shift.cta_group::1.down [%r12];",
            &["tcgen05.shift: address: required a multiple of 32 lanes, actual 16"],
        ),
        (
            "tcgen05.shift.cta_group::2.down [%r50];",
            &["cta_group: required 1, as the kernel's other tcgen05 instructions, actual 2"],
        ),
    ];
    for (edit, parts) in cases {
        product(edit, &committed()).says(&ALL, parts);
    }
    let lanes = |limit: u32| {
        kernel(&format!("setp.ge.u32 %p6, %lane, {limit}; @%p6 add.u32 %r51, %r51, 1; {LOAD}"))
    };
    lanes(31).says(&ALL, &["tcgen05.ld: address: required 0x", "in all lanes", "lane 31"]);
    lanes(32).passes();
}

#[test]
fn instructions_that_not_all_lanes_execute() {
    let text = |limit: u32| {
        kernel(&format!("setp.ge.u32 %p6, %lane, {limit}; @%p6 bra PAST; {LOAD} PAST: bar.sync 0;"))
    };
    text(16).says(&ALL, &["divergent .aligned instruction: lanes 0x0000ffff", "tcgen05.ld"]);
    text(32).passes();
}

#[test]
fn commits() {
    let to = |operands: &str| {
        let form = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64";
        kernel(&format!(
            "@!%leader bra ISSUED; {PRODUCT} mov.u16 %h1, {operands}; {form} [%b], %h1; ISSUED: {}",
            committed()
        ))
    };
    let parts = ["tcgen05.commit: CTA mask: required bits of the 1 CTAs of the cluster, actual 0x"];
    to("2").says(&ALL, &parts);
    to("0").says(&ALL, &parts);
    to("1").passes();
    let at = |offset: u32| {
        product("", &committed()).body.replace("[%b];\n", "[%b];").replacen(
            COMMIT,
            &COMMIT.replace("[%b]", &format!("[%b+{offset}]")),
            1,
        )
    };
    let mut case = product("", &committed());
    case.body = at(4);
    case.says(&ALL, &["misaligned"]);
    case.body = at(1 << 20);
    case.says(&ALL, &["out of bounds"]);
    // Without a commit nobody arrives.
    let lost = product("", &committed());
    let lost = Case { body: lost.body.replacen(COMMIT, "", 1), ..lost };
    for schedule in ALL {
        let text = lost.fails(schedule).to_string();
        assert!(text.contains("deadlock"), "{text}");
    }
}

#[test]
fn pairs_need_a_cluster_and_each_other() {
    let pair = |columns: &str| {
        let mut case = bare(&format!(
            "barrier.cluster.arrive; barrier.cluster.wait;
            setp.ne.u32 %p2, %wid, 0; @%p2 bra END; add.u32 %r49, %b, 8;
            mov.u32 %r12, 64; {columns}
            tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r49], %r12;
            tcgen05.dealloc.cta_group::2.sync.aligned.b32 0, %r12;
            END: barrier.cluster.arrive; barrier.cluster.wait;"
        ));
        case.grid = 2;
        case
    };
    pair("")
        .says(&ALL, &["cta_group::2: required a cluster of CTA pairs, actual a cluster of 1 CTAs"]);
    pair("").cluster(2).passes();
    let parts = ["tcgen05.alloc: columns: required", "as the other CTA of the pair, actual"];
    pair("setp.eq.u32 %p6, %rank, 1; @%p6 mov.u32 %r12, 128;").cluster(2).says(&ALL, &parts);
    let alone = pair("setp.eq.u32 %p6, %rank, 1; @%p6 bra END;").cluster(2);
    for schedule in ALL {
        let text = alone.fails(schedule).to_string();
        assert!(
            text.contains("deadlock") && text.contains("with the other CTA of the pair"),
            "{text}"
        );
    }
}

#[test]
fn forms_that_do_not_exist() {
    let rejects = |instruction: &str, target: &str, part: &str| {
        let text = kernel(instruction).text().replace("sm_100a", target);
        let gpu = if target == "sm_90a" { Gpu::h200() } else { Gpu::b200() };
        match Module::load(&text, &gpu) {
            Ok(_) => panic!("{instruction} was loaded"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(part), "`{part}` is not in: {error}");
            }
        }
    };
    let f16 = |kind: &str, operands: &str| {
        format!("tcgen05.mma.cta_group::1.kind::{kind} [%r50], %d10, %d11, %r10, {operands};")
    };
    let cases = [
        (f16("f64", "%p5"), "kind::f64"),
        (f16("f16.block_scale", "[%r1], [%r2], %p5"), "kind::f16 with these modifiers"),
        (f16("mxf4nvf4.block_scale", "[%r1], [%r2], %p5"), "kind::mxf4nvf4 with these modifiers"),
        (f16("mxf4", "%p5"), "kind::mxf4 with these modifiers"),
        (f16("mxf4.block_scale.scale_vec::4X", "[%r1], [%r2], %p5"), "kind::mxf4"),
        (f16("mxf4.block_scale", "[%r1], [%r2], {%r1, %r2, %r3, %r4}, %p5"), "as a predicate"),
        (f16("f16", "{%r1, %r2, %r3}, %p5"), "disable-output-lane: required 4 registers, actual 3"),
        (f16("f16", "%p5, 16"), "scale-input-d: required 0 to 15, actual 16"),
        (f16("f8f6f4", "%p5, 1"), "operands: required 5, actual 6"),
        (PRODUCT.replace("mma.", "mma.ws."), ".ws"),
        (PRODUCT.replace("mma.", "mma.sp."), ".sp"),
        (LOAD.replace("x2.b32", "x3.b32"), ".x3 of this shape"),
        (LOAD.replace("32x32b.x2", "16x256b.x64"), ".x64 of this shape"),
        (LOAD.replace("ld.sync", "ld.red.sync"), "red"),
        (
            "tcgen05.cp.cta_group::1.32x128b [%r50], %d10;".to_owned(),
            "shape 32x128b with multicast",
        ),
        ("tcgen05.cp.cta_group::1.128x128b.b8x16.b5 [%r50], %d10;".to_owned(), "source format"),
        ("tcgen05.shift.cta_group::1.up [%r50];".to_owned(), "direction"),
        ("tcgen05.shift.down [%r50];".to_owned(), "no .cta_group"),
    ];
    for (instruction, part) in cases {
        rejects(&instruction, "sm_100a", part);
    }
    rejects(PRODUCT, "sm_90a", "target for tcgen05: required sm_100a");
    rejects("tcgen05.shift.cta_group::1.down [%r50];", "sm_100f", "target for tcgen05.shift");
}
