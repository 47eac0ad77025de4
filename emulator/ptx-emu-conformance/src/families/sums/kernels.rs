//! Kernels of the sums, with `mma.sync` and with `wgmma`.

use super::{COLUMNS, Form, Sums};
use crate::builder::Set;
use crate::compare::Element;
use crate::probe::Input;
use crate::program::{Program, fill, words};
use ptx_emu_core::num::half;
use ptx_emu_core::tensor::fragment::{Fragment, accumulator, wgmma_a, wgmma_accumulator};
use std::fmt::Write as _;

const THREADS: usize = 128;

/// A word of `count` codes from `(row, k)` on.
fn pack(form: &Form, line: &[u32], k: usize) -> u32 {
    let count = 32 / form.bits as usize;
    (0..count).fold(0, |word, n| word | line[k + n] << (n as u32 * form.bits))
}

/// Accumulators of a thread, `place(index)` being where they are.
fn pack_c(form: &Form, sums: &Sums, place: impl Fn(usize) -> (usize, usize)) -> Vec<u32> {
    let value = |index: usize| {
        let (row, column) = place(index);
        sums.c[row][column] as f32
    };
    if form.sum == "f16" {
        let code = |index: usize| u32::from(half::from_f32(value(index)));
        (0..2).map(|n| code(2 * n) | code(2 * n + 1) << 16).collect()
    } else {
        (0..4).map(|n| value(n).to_bits()).collect()
    }
}

/// Adds a program that stores the accumulators in `%c0`, ...
fn add(set: &mut Set, form: &Form, name: String, inputs: Vec<Input>, code: &str) {
    let count = if form.sum == "f16" { 2 } else { 4 };
    let mut body = String::from("    .reg .b32 %a<8>, %c<4>;\n");
    let mut load = |prefix: &str, input: usize, count: usize| {
        let _ = writeln!(body, "    mad.wide.u32 %d1, %me, {}, %in{input};", 4 * count);
        for n in 0..count {
            let _ = writeln!(body, "    ld.global.b32 %{prefix}{n}, [%d1+{}];", 4 * n);
        }
    };
    load("a", 0, 4);
    load("c", 1, count);
    body += code;
    let _ = writeln!(body, "    mad.wide.u32 %d1, %me, {}, %out;", 4 * count);
    for n in 0..count {
        let _ = writeln!(body, "    st.global.b32 [%d1+{}], %c{n};", 4 * n);
    }
    let element = if form.sum == "f16" { Element::F16 } else { Element::F32 };
    set.program(Program {
        block: THREADS as u32,
        inputs,
        element,
        ..Program::new(name, THREADS * 4 * count, body)
    });
}

fn list(prefix: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|n| format!("%{prefix}{n}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Adds with `mma.sync`: each of four warps has 16 of the rows.
pub(super) fn by_warp(set: &mut Set, form: &Form, sums: &Sums) {
    let Form { ty, sum, k, bits, .. } = *form;
    let (left, right) = (Fragment::new(16, k, bits), Fragment::new(COLUMNS, k, bits));
    let mut inputs: [Vec<u32>; 3] = Default::default();
    for thread in 0..THREADS {
        let (warp, lane) = (thread / 32, thread % 32);
        for register in 0..left.registers() {
            let (row, k) = left.place(lane, register);
            inputs[0].push(pack(form, &sums.a[16 * warp + row], k));
        }
        inputs[1].extend(pack_c(form, sums, |index| {
            let (row, column) = accumulator(lane, index);
            (16 * warp + row, column)
        }));
        for register in 0..right.registers() {
            let (column, k) = right.place(lane, register);
            inputs[2].push(pack(form, &sums.b[column], k));
        }
    }
    let count = if sum == "f16" { 2 } else { 4 };
    let instruction = format!("mma.sync.aligned.m16n8k{k}.row.col.{sum}.{ty}.{ty}.{sum}");
    let code = format!(
        "    mad.wide.u32 %d1, %me, 8, %in2; ld.global.b32 %r1, [%d1]; \
         ld.global.b32 %r2, [%d1+4];\n    \
         {instruction} {c}, {a}, {{%r1, %r2}}, {c};\n",
        c = list("c", count),
        a = list("a", 4),
    );
    let name = format!("{instruction}: {}", sums.name);
    add(set, form, name, inputs.map(words).to_vec(), &code);
}

/// Adds with `wgmma`: `A` from registers, `B` as two columns of 16-byte pieces.
pub(super) fn by_warpgroup(set: &mut Set, form: &Form, sums: &Sums) {
    let Form { ty, sum, k, bits, .. } = *form;
    let mut inputs: [Vec<u32>; 3] = Default::default();
    for thread in 0..THREADS {
        let (warp, lane) = (thread / 32, thread % 32);
        for register in 0..4 {
            let (row, k) = wgmma_a(warp, lane, register, bits);
            inputs[0].push(pack(form, &sums.a[row], k));
        }
        inputs[1].extend(pack_c(form, sums, |index| wgmma_accumulator(warp, lane, index)));
    }
    let per_piece = 128 / bits as usize;
    for piece in 0..2 {
        for line in &sums.b {
            for word in 0..4 {
                let k = piece * per_piece + word * (32 / bits as usize);
                inputs[2].push(pack(form, line, k));
            }
        }
    }
    let count = if sum == "f16" { 2 } else { 4 };
    let instruction = format!("wgmma.mma_async.sync.aligned.m64n8k{k}.{sum}.{ty}.{ty}");
    // Leading dimension 128 bytes, stride dimension 256.
    let descriptor: u64 = 128 >> 4 << 16 | 256 >> 4 << 32;
    let transposed = if bits == 16 { ", 0" } else { "" };
    let code = format!(
        "{}    fence.proxy.async; bar.sync 0; shr.u32 %r1, %s, 4; and.b32 %r1, %r1, 0x3fff; \
         cvt.u64.u32 %d1, %r1; or.b64 %d1, %d1, {descriptor:#x}; setp.eq.u32 %p1, %r1, %r1;\n    \
         wgmma.fence.sync.aligned; {instruction} {}, {}, %d1, %p1, 1, 1{transposed};\n    \
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n",
        fill("%in2", 0, 256, THREADS as u32, "FILL"),
        list("c", count),
        list("a", 4),
    );
    let name = format!("{instruction}: {}", sums.name);
    add(set, form, name, inputs.map(words).to_vec(), &code);
}
