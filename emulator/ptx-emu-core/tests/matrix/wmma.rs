//! `wmma.load`, `wmma.mma` and `wmma.store` in kernels, against products of the matrices in memory:
//! every shape and type, every layout, strides, state spaces; what is refused and what is reported.

use crate::support::{Run, kernel, load_error};
use ptx_emu_core::{Checks, DiagnosticKind, Launch, LoadError, Model, Module};
use ptx_emu_core::{GlobalMemory, Gpu, LaunchError, Schedule};

/// Reproducible numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 % end
    }
}

/// Type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ty {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S4,
    U4,
    B1,
    S32,
}

use Ty::{B1, Bf16, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};

impl Ty {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    const fn bits(self) -> usize {
        match self {
            F64 => 64,
            Tf32 | F32 | S32 => 32,
            F16 | Bf16 => 16,
            S8 | U8 => 8,
            S4 | U4 => 4,
            B1 => 1,
        }
    }

    /// A code of a number whose products and their sums are exact.
    fn code(self, random: &mut Random) -> u64 {
        let number = f64::from(random.below(33)) / 4.0 - 4.0;
        match self {
            F16 => half::f16::from_f64(number).to_bits().into(),
            Bf16 => half::bf16::from_f64(number).to_bits().into(),
            // Low bits that must be ignored.
            Tf32 => u64::from((number as f32).to_bits() | 0x1fff),
            F32 => u64::from((number as f32).to_bits()),
            F64 => number.to_bits(),
            S32 => random.below(2000).wrapping_sub(1000).into(),
            _ => random.below(1 << self.bits()).into(),
        }
    }

    fn value(self, code: u64) -> f64 {
        match self {
            F16 => half::f16::from_bits(code as u16).to_f64(),
            Bf16 => half::bf16::from_bits(code as u16).to_f64(),
            Tf32 => f64::from(f32::from_bits(code as u32 & !0x1fff)),
            F32 => f64::from(f32::from_bits(code as u32)),
            F64 => f64::from_bits(code),
            S8 => f64::from(code as u8 as i8),
            S4 => f64::from((code as u8 as i8) << 4 >> 4),
            S32 => f64::from(code as u32 as i32),
            U8 | U4 | B1 => code as f64,
        }
    }

    /// The nearest code.
    fn round(self, number: f64) -> u64 {
        match self {
            F16 => half::f16::from_f64(number).to_bits().into(),
            F32 => u64::from((number as f32).to_bits()),
            F64 => number.to_bits(),
            S32 => u64::from(number as i64 as u32),
            other => panic!("no result is {other:?}"),
        }
    }

    /// Prefix of registers.
    const fn register(self) -> &'static str {
        match self {
            F64 => "%fd",
            F32 => "%f",
            _ => "%r",
        }
    }
}

/// A matrix in memory.
#[derive(Clone)]
struct Matrix {
    ty: Ty,
    rows: usize,
    columns: usize,
    row_major: bool,
    /// Elements from one row, or column, to the next.
    stride: usize,
    codes: Vec<u64>,
}

impl Matrix {
    fn new(ty: Ty, [rows, columns]: [usize; 2], row_major: bool, random: &mut Random) -> Self {
        let length = if row_major { columns } else { rows };
        let codes = (0..rows * columns).map(|_| ty.code(random)).collect();
        Self { ty, rows, columns, row_major, stride: length, codes }
    }

    /// Adds 32 bytes of padding from one row to the next.
    fn padded(mut self) -> Self {
        self.stride += 256 / self.ty.bits();
        self
    }

    const fn layout(&self) -> &'static str {
        if self.row_major { "row" } else { "col" }
    }

    fn parts(&self) -> usize {
        if self.row_major { self.rows } else { self.columns }
    }

    fn bytes(&self) -> usize {
        self.parts() * self.stride * self.ty.bits() / 8
    }

    fn number(&self, row: usize, column: usize) -> f64 {
        self.ty.value(self.codes[row * self.columns + column])
    }

    /// First bit of an element.
    fn place(&self, row: usize, column: usize) -> usize {
        let at =
            if self.row_major { row * self.stride + column } else { column * self.stride + row };
        at * self.ty.bits()
    }

    fn pack(&self) -> Vec<u8> {
        let mut out = vec![0xa5; self.bytes()];
        for row in 0..self.rows {
            for column in 0..self.columns {
                let (at, code) = (self.place(row, column), self.codes[row * self.columns + column]);
                for bit in 0..self.ty.bits() {
                    let (byte, mask) = ((at + bit) / 8, 1 << ((at + bit) % 8));
                    let set = code >> bit & 1 != 0;
                    out[byte] = if set { out[byte] | mask } else { out[byte] & !mask };
                }
            }
        }
        out
    }

    /// The code that `bytes` hold, of whole bytes.
    fn unpack(&self, bytes: &[u8], row: usize, column: usize) -> u64 {
        let at = self.place(row, column) / 8;
        let mut code = [0; 8];
        code[..self.ty.bits() / 8].copy_from_slice(&bytes[at..at + self.ty.bits() / 8]);
        u64::from_le_bytes(code)
    }
}

/// Registers that a matrix takes (PTX ISA 9.7.14.4.1).
fn registers(which: char, ty: Ty, [m, n, k]: [usize; 3]) -> usize {
    let elements = match which {
        'a' => m * k,
        'b' => k * n,
        _ => m * n,
    };
    match (which, ty) {
        ('a' | 'b', F16) => 8,
        (_, F64) => elements / 32,
        _ => elements * ty.bits() / 1024,
    }
}

fn list(prefix: &str, from: usize, count: usize) -> String {
    let names: Vec<String> = (from..from + count).map(|r| format!("{prefix}{r}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// A product of a warp.
struct Product {
    shape: [usize; 3],
    a: Matrix,
    b: Matrix,
    c: Matrix,
    /// Layout and type of `D`; its codes do not matter.
    d: Matrix,
    /// Before the types of `wmma.mma`: an operation; behind the shape: rounding.
    operation: &'static str,
    behind: &'static str,
    /// The text behind the types.
    last: &'static str,
    /// State space, with its dot, and instructions before the loads and behind the store.
    space: &'static str,
    before: String,
    after: String,
    /// Between loads and product.
    between: String,
    strides: bool,
}

/// Places of `B` and `C` in the input.
const PLACES: [usize; 3] = [0, 2048, 4096];

impl Product {
    fn new(shape: [usize; 3], [a, b, c, d]: [Ty; 4], layouts: [bool; 4], seed: u64) -> Self {
        let mut random = Random(seed);
        let [m, n, k] = shape;
        Self {
            shape,
            a: Matrix::new(a, [m, k], layouts[0], &mut random).padded(),
            b: Matrix::new(b, [k, n], layouts[1], &mut random).padded(),
            c: Matrix::new(c, [m, n], layouts[2], &mut random).padded(),
            d: Matrix::new(d, [m, n], layouts[3], &mut random).padded(),
            operation: "",
            behind: "",
            last: "",
            space: ".global",
            before: String::new(),
            after: String::new(),
            between: String::new(),
            strides: true,
        }
    }

    fn types(&self) -> String {
        let [a, b, c, d] = [&self.a, &self.b, &self.c, &self.d].map(|matrix| matrix.ty.name());
        match self.a.ty {
            F16 => format!("{d}.{c}"),
            _ => format!("{d}.{a}.{b}.{c}"),
        }
    }

    fn body(&self) -> String {
        let shape = format!("m{}n{}k{}", self.shape[0], self.shape[1], self.shape[2]);
        let mut text = format!("mov.u64 %d50, %in; mov.u64 %d51, %out;\n{}\n", self.before);
        let stride = |matrix: &Matrix| match self.strides {
            true => format!(", {}", matrix.stride),
            false => String::new(),
        };
        // Registers of A, B, C and D, two types of which may have one prefix.
        let mut lists = Vec::new();
        let mut used = 0;
        let all = [('a', &self.a), ('b', &self.b), ('c', &self.c), ('d', &self.d)];
        for (which, matrix) in all {
            let count = registers(which, matrix.ty, self.shape);
            let from = if matrix.ty == F32 && which == 'd' { 8 } else { used };
            let from = if matrix.ty == F32 && which == 'c' { 0 } else { from };
            lists.push(list(matrix.ty.register(), from, count));
            used += count;
        }
        for ((which, matrix), (list, place)) in all[..3].iter().zip(lists.iter().zip(PLACES)) {
            text += &format!(
                "wmma.load.{which}.sync.aligned.{}.{shape}{}.{} {list}, [%d50+{place}]{};\n",
                matrix.layout(),
                self.space,
                matrix.ty.name(),
                stride(matrix),
            );
        }
        text += &format!(
            "{}\nwmma.mma{}.sync.aligned.{}.{}.{shape}{}.{}{} {}, {}, {}, {};\n",
            self.between,
            self.operation,
            self.a.layout(),
            self.b.layout(),
            self.behind,
            self.types(),
            self.last,
            lists[3],
            lists[0],
            lists[1],
            lists[2]
        );
        text += &format!(
            "wmma.store.d.sync.aligned.{}.{shape}{}.{} [%d51], {}{};\n{}\n",
            self.d.layout(),
            self.space,
            self.d.ty.name(),
            lists[3],
            stride(&self.d),
            self.after,
        );
        text
    }

    fn input(&self) -> Vec<u8> {
        let mut input = vec![0; 8192];
        for (matrix, place) in [&self.a, &self.b, &self.c].into_iter().zip(PLACES) {
            let bytes = matrix.pack();
            input[place..place + bytes.len()].copy_from_slice(&bytes);
        }
        input
    }

    fn run(&self) -> Vec<u8> {
        let run = Run { out_bytes: 8192, zeroed: true, ..Run::body(&self.body()) };
        Run { input: self.input(), ..run }.bytes()
    }

    /// Runs it: every element of D is the nearest to `sum(row, column)`, and nothing else is written.
    fn check_with(&self, sum: impl Fn(usize, usize) -> f64) {
        let out = self.run();
        let name = format!("{:?} {} {}", self.shape, self.types(), self.body());
        let mut rest = out.clone();
        for row in 0..self.shape[0] {
            for column in 0..self.shape[1] {
                let expected = self.d.ty.round(sum(row, column));
                let actual = self.d.unpack(&out, row, column);
                assert_eq!(actual, expected, "({row}, {column}) of {name}");
                let at = self.d.place(row, column) / 8;
                rest[at..at + self.d.ty.bits() / 8].fill(0);
            }
        }
        assert!(rest.iter().all(|byte| *byte == 0), "{name} writes elsewhere");
    }

    fn sum(&self, row: usize, column: usize) -> f64 {
        let terms = (0..self.shape[2]).map(|k| self.a.number(row, k) * self.b.number(k, column));
        terms.sum::<f64>() + self.c.number(row, column)
    }

    fn check(&self) {
        self.check_with(|row, column| self.sum(row, column));
    }
}

const WIDE: [[usize; 3]; 3] = [[16, 16, 16], [8, 32, 16], [32, 8, 16]];

/// All sixteen layouts of four matrices.
fn layouts() -> impl Iterator<Item = [bool; 4]> {
    (0..16).map(|bits| [1, 2, 4, 8].map(|bit| bits & bit != 0))
}

#[test]
fn every_shape_and_type_in_every_layout() {
    let of = |a: Ty, c: Ty, d: Ty| [a, a, c, d];
    let mut forms: Vec<([usize; 3], [Ty; 4])> = Vec::new();
    for shape in WIDE {
        let halves = [(F16, F16), (F16, F32), (F32, F16), (F32, F32)];
        forms.extend(halves.map(|(c, d)| (shape, of(F16, c, d))));
        forms.push((shape, of(Bf16, F32, F32)));
        forms.extend([S8, U8].map(|ty| (shape, of(ty, S32, S32))));
    }
    forms.push(([16, 16, 8], of(Tf32, F32, F32)));
    forms.push(([8, 8, 4], of(F64, F64, F64)));
    for (seed, (shape, types)) in forms.into_iter().enumerate() {
        for layouts in layouts() {
            Product::new(shape, types, layouts, seed as u64).check();
        }
    }
}

#[test]
fn elements_smaller_than_a_byte() {
    for ty in [S4, U4] {
        for rest in [[true, true], [false, true], [true, false], [false, false]] {
            let layouts = [true, false, rest[0], rest[1]];
            Product::new([8, 8, 32], [ty, ty, S32, S32], layouts, 3).check();
        }
    }
    for (operation, xor) in [(".xor.popc", true), (".and.popc", false)] {
        let types = [B1, B1, S32, S32];
        let mut product = Product::new([8, 8, 128], types, [true, false, true, false], 5);
        product.operation = operation;
        product.check_with(|row, column| {
            let bits = |k| [product.a.number(row, k), product.b.number(k, column)];
            let counted = |[a, b]: [f64; 2]| if xor { a != b } else { a + b == 2.0 };
            let count = (0..128).filter(|&k| counted(bits(k))).count();
            count as f64 + product.c.number(row, column)
        });
    }
}

#[test]
fn without_strides_rows_follow_each_other() {
    for (shape, types) in [
        ([16, 16, 16], [F16, F16, F32, F32]),
        ([8, 32, 16], [U8, U8, S32, S32]),
        ([32, 8, 16], [Bf16, Bf16, F32, F32]),
        ([8, 8, 4], [F64, F64, F64, F64]),
    ] {
        for layouts in [[true; 4], [false; 4]] {
            let mut product = Product::new(shape, types, layouts, 9);
            for matrix in [&mut product.a, &mut product.b, &mut product.c, &mut product.d] {
                matrix.stride = if matrix.row_major { matrix.columns } else { matrix.rows };
            }
            product.strides = false;
            product.check();
        }
    }
}

/// Copies 8 KiB from one address register to another, a word of each lane at a time.
fn copy(label: &str, from: &str, to: &str) -> String {
    format!(
        "mov.u32 %r55, 0; mad.wide.u32 %d40, %tid, 4, {from}; mad.wide.u32 %d41, %tid, 4, {to};
         {label}: ld.u32 %r56, [%d40]; st.u32 [%d41], %r56;
         add.u64 %d40, %d40, 128; add.u64 %d41, %d41, 128;
         add.u32 %r55, %r55, 1; setp.lt.u32 %p1, %r55, 64; @%p1 bra {label};
         bar.warp.sync -1;"
    )
}

#[test]
fn shared_and_generic_addresses() {
    for space in [".shared", "", ".shared::cta"] {
        let address = if space.is_empty() { "%d50" } else { "%d48" };
        let types = [F16, F16, F32, F32];
        let mut product = Product::new([16, 16, 16], types, [true, true, true, true], 11);
        product.space = space;
        // Input and output are in shared memory; the addresses are those of its own space, or generic.
        product.before = format!(
            ".shared .align 128 .b8 s[16384];
             mov.u64 %d48, s; cvta.shared.u64 %d50, %d48; {} {}
             mov.u64 %d50, {address}; add.u64 %d51, {address}, 8192;",
            copy("IN", "%in", "%d50"),
            "add.u64 %d42, %d50, 8192; mov.u64 %d43, %out;".to_owned()
                + &copy("ZERO", "%d43", "%d42"),
        );
        product.after =
            format!("bar.warp.sync -1; {}", copy("OUT", "%d42", "%d43")).replace("%d42", "%d44");
        product.before = product.before.replace("%d42", "%d44");
        product.check();
    }
}

#[test]
fn what_is_done_to_all_of_a_fragment_is_done_to_the_matrix() {
    // Several f16 registers have the same elements in the small matrices.
    for shape in WIDE {
        let mut product = Product::new(shape, [F16, F16, F32, F32], [true; 4], 13);
        for register in 0..8 {
            product.between += &format!("mul.f16x2 %r{register}, %r{register}, %r59;\n");
        }
        for register in 0..8 {
            product.between += &format!("mul.f32 %f{register}, %f{register}, 0f40800000;\n");
        }
        product.before = "mov.b32 %r59, 0x40004000;".to_owned();
        product.check_with(|row, column| {
            let c = product.c.number(row, column);
            2.0 * (product.sum(row, column) - c) + 4.0 * c
        });
    }
}

#[test]
fn integers_wrap_or_are_clamped() {
    for (last, clamped) in [("", false), (".satfinite", true)] {
        let mut product = Product::new([16, 16, 16], [S8, S8, S32, S32], [true; 4], 17);
        product.a.codes.fill(0x7f);
        product.b.codes.fill(0x7f);
        product.c.codes.fill(i32::MAX as u64 - 5);
        product.last = last;
        product.check_with(|row, column| {
            let sum = product.sum(row, column);
            if clamped { sum.min(f64::from(i32::MAX)) } else { sum }
        });
    }
}

#[test]
fn doubles_are_rounded_as_asked_after_each_product() {
    for (behind, up) in [("", false), (".rn", false), (".rz", false), (".rp", true), (".rm", false)]
    {
        let mut product = Product::new([8, 8, 4], [F64; 4], [true, false, true, true], 19);
        product.a.codes.fill(1f64.to_bits());
        // A quarter of the last place of the sum.
        product.b.codes.fill(2f64.powi(-54).to_bits());
        product.c.codes.fill(1f64.to_bits());
        product.behind = behind;
        product.check_with(|_, _| if up { 1.0 + 4.0 * f64::EPSILON } else { 1.0 });
    }
}

#[test]
fn a_sum_is_cut_as_sm90_does() {
    // 2^12 + 2^-14 has one bit more than the adder keeps below the largest exponent.
    let mut product = Product::new([16, 16, 16], [F16, F16, F32, F32], [true; 4], 23);
    product.a.codes.fill(0);
    product.b.codes.fill(0);
    for line in 0..16 {
        for (k, number) in [(0, 64.0), (1, 2f64.powi(-7))] {
            product.a.codes[line * 16 + k] = F16.round(number);
            product.b.codes[k * 16 + line] = F16.round(number);
        }
    }
    product.c.codes.fill(F32.round(-4096.0));
    product.check_with(|_, _| 0.0);
}

/// Returns the diagnostic of a product's launch under a model.
fn diagnostic(product: &Product, model: Model) -> Option<DiagnosticKind> {
    let module = Module::load(&kernel(&product.body()), &Gpu::h200()).expect("it loads");
    let mut memory = GlobalMemory::new();
    let input = memory.alloc_from("in", &product.input()).expect("memory");
    let out = memory.alloc("out", 8192, 256).expect("memory");
    let params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
    let launch = Launch {
        entry: "k",
        grid: [1; 3],
        block: [32, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        params: &params,
        schedule: Schedule::Eager,
        threads: None,
        instruction_limit: None,
        checks: Checks::new(model),
    };
    match module.launch(&mut memory, &launch) {
        Ok(_) => None,
        Err(LaunchError::Diagnostic(found)) => Some(found.kind),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn alignment_is_that_of_the_fragment() {
    let aligned_to = |stride: usize, model| {
        let mut product = Product::new([16, 16, 16], [F16, F16, F32, F32], [true; 4], 1);
        product.a.stride = stride;
        diagnostic(&product, model)
    };
    let misaligned = |required| Some(DiagnosticKind::Misaligned { required });
    assert_eq!(aligned_to(32, Model::Ptx), None);
    assert_eq!(aligned_to(24, Model::Ptx), misaligned(32));
    assert_eq!(aligned_to(24, Model::Hardware), None);
    assert_eq!(aligned_to(20, Model::Hardware), misaligned(16));
    // A fragment of four bytes need not be aligned better.
    let mut product = Product::new([8, 32, 16], [S8, S8, S32, S32], [true, false, true, true], 1);
    product.a.stride = 20;
    product.check();
    product.a.stride = 18;
    assert_eq!(diagnostic(&product, Model::Hardware), misaligned(4));
}

#[test]
fn what_goes_wrong_is_reported() {
    let wrong = |change: &dyn Fn(&mut Product)| {
        let mut product = Product::new([16, 16, 16], [F16, F16, F32, F32], [true; 4], 1);
        change(&mut product);
        diagnostic(&product, Model::Ptx).expect("a diagnostic")
    };
    let other_address = wrong(&|product| {
        product.before = "mad.wide.u32 %d50, %tid, 32, %in;".to_owned();
    });
    assert!(format!("{other_address:?}").contains("wmma: address"), "{other_address:?}");
    let divergent = wrong(&|product| {
        product.before = "setp.lt.u32 %p1, %tid, 7; @%p1 exit;".to_owned();
    });
    let missing = DiagnosticKind::MissingMembers { present: !0x7f, members: u32::MAX };
    assert_eq!(divergent, missing);
    let outside = wrong(&|product| product.before = "add.u64 %d50, %in, 7680;".to_owned());
    assert_eq!(outside, DiagnosticKind::OutOfBounds);
    let unwritten = wrong(&|product| product.before = "mov.u64 %d50, %out;".to_owned());
    assert!(matches!(unwritten, DiagnosticKind::UninitialisedRead { .. }), "{unwritten:?}");
}

#[test]
fn forms_that_do_not_exist() {
    let eight = list("%r", 0, 8);
    let load = |form: &str, registers: &str| format!("wmma.load.{form} {registers}, [%in];");
    let mma = |form: &str| format!("wmma.mma.{form} {eight}, {eight}, {eight}, {eight};");
    for (text, why) in [
        (load("a.sync.aligned.row.m16n8k16.f16", &eight), "m16n8k16 of F16"),
        (load("a.sync.aligned.row.m16n16k16.e4m3", &eight), "m16n16k16 of E4m3"),
        (load("a.sync.aligned.row.m16n16k16.f8", &eight), "no known type"),
        (load("c.sync.aligned.row.m16n16k16.f64", &eight), "m16n16k16 of F64"),
        (load("a.sync.aligned.m16n16k16.f16", &eight), "no layout"),
        (load("a.sync.row.m16n16k16.f16", &eight), "no .aligned"),
        (load("d.sync.aligned.row.m16n16k16.f32", &eight), "no matrix"),
        (load("a.sync.aligned.col.m8n8k32.s4", "{%r0}"), "this layout of elements smaller"),
        (load("b.sync.aligned.row.m8n8k128.b1", "{%r0}"), "this layout of elements smaller"),
        (mma("sync.aligned.row.col.m16n16k16.f32.bf16.f16.f32"), "m16n16k16 of Bf16 and F16"),
        (mma("sync.aligned.row.col.m16n16k16.s32.s8.u8.s32"), "m16n16k16 of S8 and U8"),
        (mma("sync.aligned.row.col.m16n16k16.f16.bf16.bf16.f32"), "Bf16 with F32 into F16"),
        (mma("sync.aligned.row.col.m16n16k8.f32.f32"), "m16n16k8 of F16 with F32 into F32"),
        (mma("sync.aligned.row.col.m16n16k16.f32.f32.satfinite"), "modifier .satfinite"),
        (mma("sync.aligned.row.col.m8n8k128.s32.b1.b1.s32"), "single bits need .xor.popc"),
        (mma("sync.aligned.row.row.m8n8k32.s32.s4.s4.s32"), "layouts other than .row.col"),
        (format!("wmma.fill.sync.aligned.m16n16k16.f32 {eight}, 0f00000000;"), "wmma other than"),
    ] {
        let error = load_error(&kernel(&text));
        let LoadError::Unsupported(items) = &error else { panic!("{text}: {error}") };
        assert!(items[0].why.contains(why), "{text}: {error}");
    }
    let short = load_error(&kernel(&load("a.sync.aligned.row.m16n16k16.f16", "{%r0, %r1}")));
    assert!(short.to_string().contains("registers: required 8, actual 2"), "{short}");
}
