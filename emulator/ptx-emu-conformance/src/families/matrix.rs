//! `ldmatrix`, `stmatrix`, `movmatrix` and `mma.sync`: layouts with operands whose
//! sums are exact, and the tensor cores' rounding of sums that are not.

use crate::builder::Set;
use crate::compare::Element;
use crate::probe::Input;
use crate::values::SplitMix;
use ptx_emu_core::num::minifloat::Minifloat;
use ptx_emu_core::num::{bfloat, half};
use std::fmt::Write as _;

/// Threads: four warps, each with its own product.
const THREADS: usize = 128;

pub(super) fn probes(set: &mut Set) {
    moves(set);
    for (k, types) in [(8, ["f16", "bf16"]), (16, ["f16", "bf16"])] {
        for ty in types {
            floats(set, k, [ty, ty], ["f32", "f32"]);
        }
    }
    for k in [8, 16] {
        floats(set, k, ["f16", "f16"], ["f16", "f16"]);
    }
    for k in [4, 8] {
        floats(set, k, ["tf32", "tf32"], ["f32", "f32"]);
    }
    for k in [16, 32] {
        for a in ["e4m3", "e5m2"] {
            for b in ["e4m3", "e5m2"] {
                for sum in ["f32", "f16"] {
                    floats(set, k, [a, b], [sum, sum]);
                }
            }
        }
    }
    for [m, k] in [[8, 16], [16, 16], [16, 32]] {
        for a in ["u8", "s8"] {
            for b in ["u8", "s8"] {
                integers(set, [m, k], 8, a, b);
            }
        }
    }
    for [m, k] in [[8, 32], [16, 32], [16, 64]] {
        for (a, b) in [("s4", "s4"), ("u4", "s4"), ("s4", "u4"), ("u4", "u4")] {
            integers(set, [m, k], 4, a, b);
        }
    }
    for [m, k] in [[8, 128], [16, 128], [16, 256]] {
        for op in ["and", "xor"] {
            let name = format!("mma.sync.aligned.m{m}n8k{k}.row.col.s32.b1.b1.s32.{op}.popc");
            let (a, b, c) = (m * k / 1024, 8 * k / 1024, m / 4);
            product(set, &name, "", [a, b, c, c], [Values::Bits; 2]);
        }
    }
    quads(set);
    doubles(set);
}

/// Four products of 8 x 8 x 4 in a warp, in every layout.
fn quads(set: &mut Set) {
    for a in ["row", "col"] {
        for b in ["row", "col"] {
            for (sum, registers) in [("f32", 8), ("f16", 4)] {
                let name = format!("mma.sync.aligned.m8n8k4.{a}.{b}.{sum}.f16.f16.{sum}");
                let counts = [2, 2, registers, registers];
                let values = [Values::Small("f16"); 2];
                product(set, &name, "exact sums", counts, values);
            }
        }
    }
}

/// The contents of operand registers.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// Any bits.
    Bits,
    /// Small integers of this type: every sum is exact.
    Small(&'static str),
    /// Numbers of this type from 2^-4 to 2^4.
    Wide(&'static str),
    /// f64, which take two registers.
    Double,
}

impl Values {
    /// A register.
    pub(super) fn register(self, rng: &mut SplitMix) -> u32 {
        let (ty, wide) = match self {
            Self::Bits | Self::Double => return rng.next() as u32,
            Self::Small(ty) => (ty, false),
            Self::Wide(ty) => (ty, true),
        };
        let mut number = || {
            let random = rng.next();
            let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
            if wide {
                let exponent = (random >> 1 & 7) as i32 - 4;
                sign * (1.0 + (random >> 40) as f32 / (1 << 24) as f32) * 2f32.powi(exponent)
            } else {
                sign * (random >> 1 & 3) as f32
            }
        };
        match ty {
            "f16" => {
                let low = half::from_f32(number());
                u32::from(low) | u32::from(half::from_f32(number())) << 16
            }
            "bf16" => {
                let low = bfloat::from_f32(number());
                u32::from(low) | u32::from(bfloat::from_f32(number())) << 16
            }
            "e4m3" | "e5m2" => {
                let format = if ty == "e4m3" { Minifloat::E4m3 } else { Minifloat::E5m2 };
                u32::from_le_bytes(std::array::from_fn(|_| format.from_f32(number(), false)))
            }
            // f32 has no use for its low bits as tf32.
            "tf32" => number().to_bits() & 0xffff_e000,
            _ => number().to_bits(),
        }
    }
}

/// Operands of types `a` and `b`; `D` and `C` of types `sums`.
fn floats(set: &mut Set, k: usize, [a, b]: [&'static str; 2], [d, c]: [&'static str; 2]) {
    let width = match a {
        "tf32" => 32,
        "e4m3" | "e5m2" => 8,
        _ => 16,
    };
    let name = format!("mma.sync.aligned.m16n8k{k}.row.col.{d}.{a}.{b}.{c}");
    let sums = |ty: &str| if ty == "f32" { 4 } else { 2 };
    let counts = [16 * k * width / 1024, 8 * k * width / 1024, sums(c), sums(d)];
    product(set, &name, "exact sums", counts, [Values::Small(a), Values::Small(b)]);
    product(set, &name, "rounded sums", counts, [Values::Wide(a), Values::Wide(b)]);
    if let Some(probe) = set.last() {
        probe.element = if d == "f32" { Element::F32 } else { Element::F16 };
    }
}

fn integers(set: &mut Set, [m, k]: [usize; 2], width: usize, a: &str, b: &str) {
    for saturate in ["", ".satfinite"] {
        let name = format!("mma.sync.aligned.m{m}n8k{k}.row.col{saturate}.s32.{a}.{b}.s32");
        let counts = [m * k * width / 1024, 8 * k * width / 1024, m / 4, m / 4];
        product(set, &name, "", counts, [Values::Bits; 2]);
    }
}

/// `instruction` on `counts` registers of A, B, C and D.
fn product(set: &mut Set, instruction: &str, which: &str, counts: [usize; 4], values: [Values; 2]) {
    let name = format!("{instruction} {which}");
    let name = name.trim_end();
    let mut code = String::new();
    let mut lists = Vec::new();
    for (operand, (&count, prefix)) in counts.iter().zip(["x", "y", "z", "w"]).enumerate() {
        let names: Vec<String> = (0..count).map(|n| format!("%{prefix}{n}")).collect();
        let _ = writeln!(code, "    .reg .b32 {};", names.join(", "));
        if operand < 3 {
            let _ = writeln!(code, "    mad.wide.u32 %at, %i, {}, %in{operand};", 4 * count);
            for (n, name) in names.iter().enumerate() {
                let _ = writeln!(code, "    ld.global.b32 {name}, [%at+{}];", 4 * n);
            }
        }
        lists.push((format!("{{{}}}", names.join(", ")), names));
    }
    let _ = writeln!(
        code,
        "    {instruction} {}, {}, {}, {};\n    mad.wide.u32 %at, %i, {}, %out;",
        lists[3].0,
        lists[0].0,
        lists[1].0,
        lists[2].0,
        4 * counts[3]
    );
    for (n, name) in lists[3].1.iter().enumerate() {
        let _ = writeln!(code, "    st.global.b32 [%at+{}], {name};", 4 * n);
    }
    let mut rng = SplitMix::new(name.len() as u64);
    // The accumulator's type is the last of the name.
    let sum = if instruction.ends_with(".f16") { "f16" } else { "f32" };
    let sums = match values[0] {
        Values::Small(_) => Values::Small(sum),
        Values::Wide(_) => Values::Wide(sum),
        Values::Bits | Values::Double => Values::Bits,
    };
    let inputs = [(counts[0], values[0]), (counts[1], values[1]), (counts[2], sums)].map(
        |(count, values)| {
            let registers = (0..THREADS * count).map(|_| values.register(&mut rng));
            Input { width: 4 * count, bytes: registers.flat_map(u32::to_le_bytes).collect() }
        },
    );
    let output = vec![0; THREADS * 4 * counts[3]];
    let shape = [1, THREADS as u32];
    set.kernel(name, shape, inputs.to_vec(), output, Element::Bits(4), &code);
}

/// f64 products of small integers, which are exact.
fn doubles(set: &mut Set) {
    for (shape, [a, b, c]) in [
        ("m8n8k4", [1, 1, 2]),
        ("m16n8k4", [2, 1, 4]),
        ("m16n8k8", [4, 2, 4]),
        ("m16n8k16", [8, 4, 4]),
    ] {
        let name = format!("mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64");
        let mut code = String::new();
        let list = |prefix: &str, count: usize| -> String {
            (0..count).map(|n| format!("%{prefix}{n}")).collect::<Vec<_>>().join(", ")
        };
        for (operand, (count, prefix)) in [(a, "x"), (b, "y"), (c, "z")].into_iter().enumerate() {
            let _ = writeln!(
                code,
                "    .reg .b64 {};\n    mad.wide.u32 %at, %i, {}, %in{operand};",
                list(prefix, count),
                8 * count
            );
            for n in 0..count {
                let _ = writeln!(code, "    ld.global.b64 %{prefix}{n}, [%at+{}];", 8 * n);
            }
        }
        let _ = writeln!(
            code,
            "    {name} {{{0}}}, {{{1}}}, {{{2}}}, {{{0}}};\n    mad.wide.u32 %at, %i, {3}, %out;",
            list("z", c),
            list("x", a),
            list("y", b),
            8 * c
        );
        for n in 0..c {
            let _ = writeln!(code, "    st.global.b64 [%at+{}], %z{n};", 8 * n);
        }
        let mut rng = SplitMix::new(64);
        let inputs = [a, b, c].map(|count| {
            let numbers = (0..THREADS * count).map(|_| (rng.next() % 201) as f64 - 100.0);
            Input { width: 8 * count, bytes: numbers.flat_map(f64::to_le_bytes).collect() }
        });
        let output = vec![0; THREADS * 8 * c];
        let shape = [1, THREADS as u32];
        set.kernel(&name, shape, inputs.to_vec(), output, Element::F64, &code);
    }
}

/// Matrices between shared memory and registers. Rows are 16 bytes; lane `l` names
/// row `7 l + 3` modulo 32, so that every lane's address matters.
fn moves(set: &mut Set) {
    let room = "    .shared .align 128 .b8 room[2048]; .reg .b32 %s, %row;\n    \
                shr.u32 %s, %t, 5; and.b32 %row, %t, 31; mov.u32 %r20, room; \
                mad.lo.u32 %s, %s, 512, %r20; mad.lo.u32 %r21, %row, 16, %s; \
                mad.lo.u32 %row, %row, 7, 3; and.b32 %row, %row, 31; \
                mad.lo.u32 %row, %row, 16, %s;\n";
    let fill = "    mad.wide.u32 %at, %i, 16, %in0; ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%at]; \
                st.shared.v4.b32 [%r21], {%r0, %r1, %r2, %r3}; bar.warp.sync -1;\n";
    let mut rng = SplitMix::new(16);
    let bytes: Vec<u8> = (0..THREADS * 16).map(|_| rng.next() as u8).collect();
    let input = || vec![Input { width: 16, bytes: bytes.clone() }];
    let shape = [1, THREADS as u32];
    for (count, list) in [(1, "{%r4}"), (2, "{%r4, %r5}"), (4, "{%r4, %r5, %r6, %r7}")] {
        for trans in ["", ".trans"] {
            let name = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16");
            let store: String = (0..count)
                .map(|n| format!(" st.global.b32 [%at+{}], %r{};", 4 * n, 4 + n))
                .collect();
            let code = format!(
                "{room}{fill}    {name} {list}, [%row];\n    \
                 mad.wide.u32 %at, %i, {}, %out;{store}\n",
                4 * count
            );
            let output = vec![0; THREADS * 4 * count];
            set.kernel(&name, shape, input(), output, Element::Bits(2), &code);

            let name = format!("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16");
            let names = ["{%r0}", "{%r0, %r1}", "{%r0, %r1, %r2, %r3}"][count / 2];
            let code = format!(
                "{room}{fill}    {name} [%row], {names}; bar.warp.sync -1;\n    \
                 ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r21]; mad.wide.u32 %at, %i, 16, %out; \
                 st.global.v4.b32 [%at], {{%r4, %r5, %r6, %r7}};\n"
            );
            let output = vec![0; THREADS * 16];
            set.kernel(&name, shape, input(), output, Element::Bits(2), &code);
        }
    }
    let name = "movmatrix.sync.aligned.m8n8.trans.b16";
    let code = format!(
        "    mad.wide.u32 %at, %i, 16, %in0; ld.global.b32 %r0, [%at];\n    {name} %r1, %r0;\n    \
         mad.wide.u32 %at, %i, 4, %out; st.global.b32 [%at], %r1;\n"
    );
    set.kernel(name, shape, input(), vec![0; THREADS * 4], Element::Bits(2), &code);
}
