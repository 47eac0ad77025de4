//! `wmma`: loads, a product and a store, so that which thread holds what does not matter. Every shape,
//! type and layout with operands whose sums are exact, and the rounding of sums that are not.

use super::matrix::Values;
use crate::builder::Set;
use crate::compare::Element;
use crate::probe::Input;
use crate::values::SplitMix;
use std::fmt::Write as _;

/// CTAs: a warp and a product each.
const TILES: usize = 4;

/// Shapes of 16-bit and 8-bit operands.
const SHAPES: [[usize; 3]; 3] = [[16, 16, 16], [8, 32, 16], [32, 8, 16]];

pub(super) fn probes(set: &mut Set) {
    for shape in SHAPES {
        for c in ["f16", "f32"] {
            for d in ["f16", "f32"] {
                floats(set, shape, "f16", [c, d]);
            }
        }
        floats(set, shape, "bf16", ["f32", "f32"]);
        for ty in ["s8", "u8"] {
            for last in ["", ".satfinite"] {
                let product = Product::new(shape, [ty, "s32", "s32"], last);
                product.in_all_layouts(set, "", Values::Bits);
            }
        }
    }
    floats(set, [16, 16, 8], "tf32", ["f32", "f32"]);
    for ty in ["s4", "u4"] {
        for last in ["", ".satfinite"] {
            Product::new([8, 8, 32], [ty, "s32", "s32"], last).probe(set, "", Values::Bits);
        }
    }
    for operation in [".xor.popc", ".and.popc"] {
        let product = Product::new([8, 8, 128], ["b1", "s32", "s32"], "");
        Product { operation, ..product }.probe(set, "", Values::Bits);
    }
    for rounding in ["", ".rn", ".rz", ".rm", ".rp"] {
        let product = Product::new([8, 8, 4], ["f64", "f64", "f64"], "");
        Product { rounding, ..product }.probe(set, "rounded sums", Values::Double);
    }
}

/// Floating-point operands of a type; `C` and `D` of types `sums`.
fn floats(set: &mut Set, shape: [usize; 3], ty: &'static str, [c, d]: [&'static str; 2]) {
    let product = Product::new(shape, [ty, c, d], "");
    product.in_all_layouts(set, "exact sums", Values::Small(ty));
    product.probe(set, "rounded sums", Values::Wide(ty));
}

/// A product and how its matrices lie in memory, rows or columns one after another.
#[derive(Clone, Copy)]
struct Product {
    shape: [usize; 3],
    /// Types of the operands, of `C` and of `D`.
    types: [&'static str; 3],
    layouts: [&'static str; 4],
    operation: &'static str,
    rounding: &'static str,
    last: &'static str,
}

/// Bits of an element.
fn bits(ty: &str) -> usize {
    match ty {
        "f64" => 64,
        "f32" | "s32" | "tf32" => 32,
        "f16" | "bf16" => 16,
        "s8" | "u8" => 8,
        "s4" | "u4" => 4,
        _ => 1,
    }
}

impl Product {
    fn new(shape: [usize; 3], types: [&'static str; 3], last: &'static str) -> Self {
        let layouts = ["row", "col", "row", "row"];
        Self { shape, types, layouts, operation: "", rounding: "", last }
    }

    fn in_all_layouts(self, set: &mut Set, which: &str, values: Values) {
        for a in ["row", "col"] {
            for b in ["row", "col"] {
                for sums in ["row", "col"] {
                    Self { layouts: [a, b, sums, sums], ..self }.probe(set, which, values);
                }
            }
        }
    }

    /// Elements of `A`, `B`, `C` and `D`.
    fn elements(&self) -> [usize; 4] {
        let [m, n, k] = self.shape;
        [m * k, k * n, m * n, m * n]
    }

    /// Type of each.
    fn all_types(&self) -> [&'static str; 4] {
        let [operands, c, d] = self.types;
        [operands, operands, c, d]
    }

    /// Registers that each takes.
    fn registers(&self, which: usize) -> usize {
        let ty = self.all_types()[which];
        match ty {
            "f16" if which < 2 => 8,
            _ => self.elements()[which] * bits(ty) / 32 / bits(ty).max(32),
        }
    }

    fn bytes(&self, which: usize) -> usize {
        self.elements()[which] * bits(self.all_types()[which]) / 8
    }

    fn probe(&self, set: &mut Set, which: &str, values: Values) {
        let Self { shape: [m, n, k], layouts, operation, rounding, last, .. } = *self;
        let [a, b, c, d] = self.all_types();
        let shape = format!("m{m}n{n}k{k}");
        let types = if a == "f16" { format!("{d}.{c}") } else { format!("{d}.{a}.{b}.{c}") };
        let instruction = format!(
            "wmma.mma{operation}.sync.aligned.{}.{}.{shape}{rounding}.{types}{last}",
            layouts[0], layouts[1]
        );
        let mut code = String::from("    mov.u32 %t, %ctaid.x;\n");
        let mut lists = Vec::new();
        for (at, prefix) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let width = if bits(self.all_types()[at]) == 64 { 64 } else { 32 };
            let names: Vec<String> =
                (0..self.registers(at)).map(|r| format!("%{prefix}{r}")).collect();
            let kind = match self.all_types()[at] {
                "f64" => "f64".to_owned(),
                "f32" => "f32".to_owned(),
                _ => format!("b{width}"),
            };
            let _ = writeln!(code, "    .reg .{kind} {};", names.join(", "));
            lists.push(format!("{{{}}}", names.join(", ")));
        }
        for (at, matrix) in ["a", "b", "c"].into_iter().enumerate() {
            let _ = writeln!(
                code,
                "    mad.wide.u32 %at, %t, {}, %in{at};\n    \
                 wmma.load.{matrix}.sync.aligned.{}.{shape}.global.{} {}, [%at];",
                self.bytes(at),
                layouts[at],
                self.all_types()[at],
                lists[at],
            );
        }
        let _ = writeln!(
            code,
            "    {instruction} {}, {}, {}, {};\n    mad.wide.u32 %at, %t, {}, %out;\n    \
             wmma.store.d.sync.aligned.{}.{shape}.global.{d} [%at], {};",
            lists[3],
            lists[0],
            lists[1],
            lists[2],
            self.bytes(3),
            layouts[3],
            lists[3],
        );
        let name = format!("{instruction} to {} {which}", layouts[3]);
        let mut rng = SplitMix::new(name.len() as u64);
        let inputs = [0, 1, 2].map(|at| {
            let values = match (at, values) {
                (2, Values::Small(_)) => Values::Small(c),
                (2, Values::Wide(_)) => Values::Wide(c),
                _ => values,
            };
            let words = TILES * self.bytes(at) / 4;
            let bytes = match values {
                Values::Double => {
                    let numbers = (0..words / 2).map(|_| {
                        let fraction = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
                        (1.0 + fraction) * 2f64.powi((rng.next() % 8) as i32 - 4)
                    });
                    numbers.flat_map(f64::to_le_bytes).collect()
                }
                values => {
                    (0..words).flat_map(|_| values.register(&mut rng).to_le_bytes()).collect()
                }
            };
            Input { width: 4, bytes }
        });
        let element = match d {
            "f16" => Element::F16,
            "f32" => Element::F32,
            "f64" => Element::F64,
            _ => Element::Bits(4),
        };
        let output = vec![0; TILES * self.bytes(3)];
        set.kernel(name.trim_end(), [TILES as u32, 32], inputs.to_vec(), output, element, &code);
    }
}
