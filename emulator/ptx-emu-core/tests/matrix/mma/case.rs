//! Layouts as the PTX ISA lists them, and kernels around one instruction.

use crate::support::{Run, for_target, kernel};
use ptx_emu_core::tensor::element::Element;

/// Reproducible numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
}

/// Row and k of element `i` of `A` (PTX ISA 9.7.14.5.2 to .13), by shape and the bits
/// of an element.
pub fn a_place(m: usize, k: usize, bits: usize, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    let down = |first: bool| if first { group } else { group + 8 };
    match (m, k, bits) {
        (16, 4, 32 | 64) => (down(i == 0), thread),
        (16, 8, 32 | 64) => (down(i.is_multiple_of(2)), if i < 2 { thread } else { thread + 4 }),
        (16, 16, 64) => {
            let k = if i.is_multiple_of(2) { i * 2 + thread } else { i * 2 - 2 + thread };
            (down(i.is_multiple_of(2)), k)
        }
        (16, 8, 16) => (down(i < 2), thread * 2 + (i & 1)),
        (16, 16, 16) => {
            let first = i < 2 || (4..6).contains(&i);
            (down(first), thread * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
        }
        (16, 16, 8) => (down(i < 4), thread * 4 + (i & 3)),
        (16, 32, 8) => {
            let first = i < 4 || (8..12).contains(&i);
            (down(first), thread * 4 + (i & 3) + if i < 8 { 0 } else { 16 })
        }
        (16, 32, 4) => (down(i < 8), thread * 8 + (i & 7)),
        (16, 64, 4) => {
            let first = i < 8 || (16..24).contains(&i);
            (down(first), thread * 8 + (i & 7) + if i < 16 { 0 } else { 32 })
        }
        (16, 128, 1) => (down(i < 32), thread * 32 + (i & 31)),
        (16, 256, 1) => {
            let first = i < 32 || (64..96).contains(&i);
            (down(first), thread * 32 + (i & 31) + if i < 64 { 0 } else { 128 })
        }
        (8, 4, 64) => (group, thread),
        (8, 16, 8) => (group, thread * 4 + i),
        (8, 32, 4) => (group, thread * 8 + i),
        (8, 128, 1) => (group, thread * 32 + i),
        other => panic!("no shape {other:?}"),
    }
}

/// Column and k of element `i` of `B`.
pub fn b_place(k: usize, bits: usize, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    let k = match (k, bits) {
        (4, 32 | 64) => thread,
        (8, 32 | 64) => thread + if i == 0 { 0 } else { 4 },
        (16, 64) => i * 4 + thread,
        (8, 16) => thread * 2 + i,
        (16, 16) => thread * 2 + (i & 1) + if i < 2 { 0 } else { 8 },
        (16, 8) => thread * 4 + i,
        (32, 8) => thread * 4 + (i & 3) + if i < 4 { 0 } else { 16 },
        (32, 4) => thread * 8 + i,
        (64, 4) => thread * 8 + (i & 7) + if i < 8 { 0 } else { 32 },
        (128, 1) => thread * 32 + i,
        (256, 1) => thread * 32 + (i & 31) + if i < 32 { 0 } else { 128 },
        other => panic!("no shape {other:?}"),
    };
    (group, k)
}

/// Row and column of element `i` of `C` or `D`.
pub fn d_place(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 2 { lane >> 2 } else { (lane >> 2) + 8 };
    (row, (lane % 4) * 2 + (i & 1))
}

/// A warp instruction in a kernel that loads its registers from the input, register by
/// register, and stores `D`.
pub struct Case {
    /// Modifiers after `mma.sync.aligned.`
    pub modifiers: String,
    pub m: usize,
    pub k: usize,
    /// Bits that an element takes.
    pub bits: usize,
    /// Register widths of operands in words, and registers of D, A, B, C.
    pub words: usize,
    pub registers: [usize; 4],
    /// The text behind the operands: scales.
    pub tail: String,
}

impl Case {
    pub fn new(
        modifiers: &str,
        m: usize,
        k: usize,
        bits: usize,
        d_half: bool,
        c_half: bool,
    ) -> Self {
        let per = if bits >= 32 { 1 } else { 32 / bits };
        let acc = |half: bool| m * 8 / 32 / if half { 2 } else { 1 };
        Self {
            modifiers: modifiers.to_owned(),
            m,
            k,
            bits,
            words: if bits == 64 { 2 } else { 1 },
            registers: [acc(d_half), m * k / 32 / per, 8 * k / 32 / per, acc(c_half)],
            tail: String::new(),
        }
    }

    pub fn text(&self) -> String {
        let [d, a, b, c] = self.registers;
        let (class, ty) = if self.words == 2 { ("%d", "u64") } else { ("%r", "u32") };
        let bytes = 4 * self.words;
        let mut body = format!(
            "mad.wide.u32 %d58, %tid, {bytes}, %in; mad.wide.u32 %d59, %tid, {bytes}, %out;\n"
        );
        let list = |from: usize, count: usize| -> String {
            let names: Vec<String> = (from..from + count).map(|r| format!("{class}{r}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let scales = if self.tail.is_empty() { 0 } else { 2 };
        for r in 0..a + b + c + scales {
            body += &format!("ld.global.{ty} {class}{}, [%d58+{}];\n", 20 + r, r * 32 * bytes);
        }
        body += &format!(
            "mma.sync.aligned.{} {}, {}, {}, {}{};\n",
            self.modifiers,
            list(0, d),
            list(20, a),
            list(20 + a, b),
            list(20 + a + b, c),
            self.tail
                .replace("SA", &format!("{class}{}", 20 + a + b + c))
                .replace("SB", &format!("{class}{}", 20 + a + b + c + 1)),
        );
        for r in 0..d {
            body += &format!("st.global.{ty} [%d59+{}], {class}{r};\n", r * 32 * bytes);
        }
        let text = for_target(&kernel(&body), "sm_120a");
        // Four scales of ue8m0 came with PTX 9.1.
        if self.modifiers.contains("4X") && self.modifiers.contains("ue8m0") {
            text.replace(".version 9.0", ".version 9.1")
        } else {
            text
        }
    }

    pub fn run(&self, input: &[u32]) -> Vec<u32> {
        let out_bytes = (self.registers[0] * 32 * 4 * self.words) as u64;
        Run { out_bytes, ..Run::new(self.text()).u32s(input) }.words()
    }

    /// Registers of `A` and `B` from codes by (line, k); `shift`: bits below a code.
    pub fn pack(&self, b: bool, shift: usize, code: impl Fn(usize, usize) -> u32) -> Vec<u32> {
        let per = 32 / self.bits;
        let registers = self.registers[if b { 2 } else { 1 }];
        let mut out = vec![0; registers * 32];
        for lane in 0..32 {
            for i in 0..registers * per {
                let (line, k) = if b {
                    b_place(self.k, self.bits, lane, i)
                } else {
                    a_place(self.m, self.k, self.bits, lane, i)
                };
                let place = i % per * self.bits + shift;
                out[i / per * 32 + lane] |= code(line, k) << place;
            }
        }
        out
    }
}

/// A code of a number that is a small multiple of 1/8, so that all sums are exact.
pub fn small(element: Element, random: &mut Random) -> u32 {
    let value = (random.next() % 33) as f32 / 4.0 - 4.0;
    match element {
        Element::F16 => u32::from(half::f16::from_f32(value).to_bits()),
        Element::Bf16 => u32::from(half::bf16::from_f32(value).to_bits()),
        // Low bits that must be ignored.
        Element::Tf32 => value.to_bits() | 0x1fff,
        _ => {
            let code = random.next() & ((1 << element.bits()) - 1);
            // No NaN, no infinity.
            match element {
                Element::E4m3 if code & 0x7f == 0x7f => 0x38,
                Element::E5m2 if code & 0x7f >= 0x7c => 0x3c,
                _ => code,
            }
        }
    }
}

/// Type of `C` or `D`.
#[derive(Clone, Copy)]
pub enum Acc {
    Half,
    Single,
}

/// Element `i` of a lane.
pub fn read(acc: Acc, words: &[u32], lane: usize, i: usize) -> f64 {
    match acc {
        Acc::Single => f64::from(f32::from_bits(words[i * 32 + lane])),
        Acc::Half => {
            let code = (words[i / 2 * 32 + lane] >> (i % 2 * 16)) as u16;
            half::f16::from_bits(code).to_f64()
        }
    }
}
