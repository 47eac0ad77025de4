//! Builds probes: kernels that apply an instruction to arrays of operands, and kernels given as
//! text.

use super::compare::{Comparison, Element};
use super::probe::{Checksum, Family, Input, Probe};
use super::values::{Kind, operands};
use std::fmt::Write as _;

/// Threads of a CTA of an elementwise probe.
const BLOCK: u32 = 128;
/// Elements of an elementwise probe, unless it says otherwise.
const COUNT: usize = 512;
/// The byte of an output before the launch, if a probe does not say: no result is all of this.
pub(super) const UNTOUCHED: u8 = 0xcb;

/// Names of operand registers.
const OPERANDS: [&str; 4] = ["%a", "%b", "%c", "%e"];

/// Registers that every body may use: `%i` is the thread's number in the grid.
const SCRATCH: &str = "    .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<40>; .reg .b64 %d<24>; \
    .reg .b128 %q<4>;\n    .reg .b32 %i, %t; .reg .b64 %at;\n";

/// Collects the probes of a family.
#[derive(Debug)]
pub(super) struct Set {
    family: Family,
    probes: Vec<Probe>,
}

/// The element of a register that holds a value of PTX type `ty`, which in a
/// packed type is a half.
pub(super) fn element(ty: &str) -> Element {
    match ty {
        "f16" | "f16x2" => Element::F16,
        "bf16" | "bf16x2" => Element::Bf16,
        "f32" => Element::F32,
        "f64" => Element::F64,
        _ => Element::Bits(Kind::of(ty).width()),
    }
}

/// The name of a probe's kernel.
pub(super) fn entry(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    "probe_".chars().chain(letters).collect()
}

impl Set {
    pub(super) fn new(family: Family) -> Self {
        Self { family, probes: Vec::new() }
    }

    pub(super) fn finish(self) -> Vec<Probe> {
        self.probes
    }

    pub(super) const fn family(&self) -> Family {
        self.family
    }

    pub(super) fn push(&mut self, probe: Probe) {
        self.probes.push(probe);
    }

    /// The probe added last, to change what is unusual about it.
    pub(super) fn last(&mut self) -> Option<&mut Probe> {
        self.probes.last_mut()
    }

    /// `instruction %o, operands..;` with operands and result of these types.
    pub(super) fn simple(&mut self, instruction: &str, from: &[&str], to: &str) {
        let kinds: Vec<Kind> = from.iter().map(|ty| Kind::of(ty)).collect();
        self.kinds(instruction, &kinds, to);
    }

    /// Adds a probe as [`simple`](Self::simple) does, with values of these kinds.
    pub(super) fn kinds(&mut self, instruction: &str, kinds: &[Kind], to: &str) {
        let operands = OPERANDS[..kinds.len()].join(", ");
        self.body(instruction, kinds, to, &format!("{instruction} %o, {operands};"));
    }

    /// Runs `body` on operands in `%a`, `%b`, `%c`, `%e`; the result is in `%o`, a
    /// register of the width of `to`.
    pub(super) fn body(&mut self, name: &str, kinds: &[Kind], to: &str, body: &str) {
        self.counted(name, kinds, to, body, COUNT);
    }

    /// Adds a probe as [`body`](Self::body) does, with `count` elements, a multiple of 128.
    pub(super) fn counted(
        &mut self,
        name: &str,
        kinds: &[Kind],
        to: &str,
        body: &str,
        count: usize,
    ) {
        let seed = Checksum::of(name.as_bytes());
        self.values(name, kinds, &operands(kinds, count, seed), to, body);
    }

    /// Adds a probe as [`body`](Self::body) does, with these operand columns of equal length, a
    /// multiple of 128.
    pub(super) fn values(
        &mut self,
        name: &str,
        kinds: &[Kind],
        columns: &[Vec<u64>],
        to: &str,
        body: &str,
    ) {
        let width = Kind::of(to).width();
        let mut code = String::new();
        for (kind, register) in kinds.iter().zip(OPERANDS) {
            let _ = writeln!(code, "    .reg .b{} {register};", 8 * kind.width());
        }
        let _ = writeln!(code, "    .reg .b{} %o;", 8 * width);
        for (index, (kind, register)) in kinds.iter().zip(OPERANDS).enumerate() {
            let bytes = kind.width();
            let _ = writeln!(
                code,
                "    mad.wide.u32 %at, %i, {bytes}, %in{index};\n    \
                 ld.global.b{} {register}, [%at];",
                8 * bytes
            );
        }
        let _ = writeln!(
            code,
            "    {body}\n    mad.wide.u32 %at, %i, {width}, %out;\n    st.global.b{} [%at], %o;",
            8 * width
        );
        let count = columns.first().map_or(COUNT, Vec::len);
        let inputs = kinds.iter().zip(columns).map(|(kind, values)| {
            let width = kind.width();
            let bytes = values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(width));
            Input { width, bytes: bytes.collect() }
        });
        let inputs = inputs.collect();
        let output = vec![UNTOUCHED; count * width];
        self.kernel(name, [count as u32 / BLOCK, BLOCK], inputs, output, element(to), &code);
    }

    /// A kernel around `code`, which has the inputs' addresses in `%in0`, .. and
    /// the output's in `%out`. `shape`: CTAs and threads in x.
    pub(super) fn kernel(
        &mut self,
        name: &str,
        shape: [u32; 2],
        inputs: Vec<Input>,
        output: Vec<u8>,
        element: Element,
        code: &str,
    ) {
        let entry = entry(name);
        let mut params: Vec<String> =
            (0..inputs.len()).map(|index| format!(".param .u64 in{index}")).collect();
        params.push(".param .u64 out".into());
        let mut kernel = format!(".visible .entry {entry}({}) {{\n{SCRATCH}", params.join(", "));
        for index in 0..inputs.len() {
            let _ =
                writeln!(kernel, "    .reg .b64 %in{index}; ld.param.u64 %in{index}, [in{index}];");
        }
        let _ = writeln!(
            kernel,
            "    .reg .b64 %out; ld.param.u64 %out, [out];\n    \
             mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t; \
             mov.u32 %t, %tid.x; add.u32 %i, %i, %t;\n{code}    ret;\n}}"
        );
        self.probes.push(Probe {
            name: name.to_owned(),
            family: self.family,
            entry,
            kernel,
            grid: [shape[0], 1, 1],
            block: [shape[1], 1, 1],
            cluster: None,
            dynamic_shared: 0,
            inputs,
            maps: Vec::new(),
            output,
            element,
            comparison: Comparison::Exact,
        });
    }
}
