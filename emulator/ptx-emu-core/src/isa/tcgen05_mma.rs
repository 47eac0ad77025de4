//! Products of tensor memory: PTX ISA 9.7.16.10 (`tcgen05.mma`).
//!
//! Every dense kind, block-scaled or not, `A` from shared or tensor memory, masks of
//! lanes that are not written, `scale-input-d`; collector hints have no effect. With
//! `cta_group::2` one CTA's thread issues for both, and the descriptors name the same
//! offsets in both shared memories.
//!
//! Not modelled: `.ws`, `.sp`, `.ashift`. Limits: alignment rules of addresses in tensor memory
//! beyond those of the layouts; see also `tensor` for the sums.

use super::mem::Address;
use super::tcgen05::{cta_group, issue_ordered};
use super::tcgen05_data::tensor_address;
use crate::decode::{Decode, Decoded, Reject};
use crate::diagnostic::Exec;
use crate::machine::Context;
use crate::machine::code::Op;
use crate::machine::regs::{Pred, Slot};
use crate::machine::units::tcgen05_product::{Part, ProductWork, Tcgen05A, tensor_container};
use crate::machine::units::tensor_memory::{LANES, region, split};
use crate::machine::units::wgmma_tile::{SharedTile, invalid};
use crate::machine::units::{GroupKind, lanes};
use crate::syntax::ast;
use crate::tensor::element::{Element, ScaleVec};
use crate::tensor::instruction::{Accumulator, InstructionDescriptor, Kind};
use crate::tensor::product::Addend;
use crate::tensor::shared::{Generation, Operand, SharedDescriptor};
use crate::tensor::tmem::DataPath;

/// `A` as an operand.
#[derive(Debug, Clone, Copy)]
enum Source {
    Descriptor(Slot),
    Tensor(Address),
}

/// A decoded instruction.
#[derive(Debug)]
struct Form {
    kind: Kind,
    group: u32,
    d: Address,
    a: Source,
    b: Slot,
    instruction: Slot,
    scales: Option<(Address, Address)>,
    /// Registers of `disable-output-lane`.
    mask: Vec<Slot>,
    enable: Pred,
    shift: u32,
}

fn scale_vec(d: &mut Decode<'_>, kind: &str) -> Option<ScaleVec> {
    d.pick(|m| {
        Some(match (m, kind) {
            ("scale_vec::1X", _) | ("block32", "mxf8f6f4") => ScaleVec::X1,
            ("scale_vec::2X" | "block32", _) => ScaleVec::X2,
            ("scale_vec::4X" | "block16", _) => ScaleVec::X4,
            _ => return None,
        })
    })
}

pub(super) fn decode(d: &mut Decode<'_>) -> Decoded<Op> {
    if let Some(other) = ["ws", "sp", "ashift"].into_iter().find(|name| d.has(name)) {
        return Err(Reject::unsupported(format!(".{other}")));
    }
    d.module.async_proxy = true;
    let group = cta_group(d)?;
    let name = d
        .pick(|m| m.strip_prefix("kind::").map(str::to_owned))
        .ok_or_else(|| Reject::unsupported("no kind"))?;
    let scaled = d.has("block_scale");
    let vec = if scaled { scale_vec(d, &name) } else { None };
    let kind = Kind::parse(&name, vec)
        .filter(|kind| kind.scale_vec().is_some() == scaled)
        .ok_or_else(|| Reject::unsupported(format!("kind::{name} with these modifiers")))?;
    while d.pick(|m| m.starts_with("collector::").then_some(())).is_some() {}
    let target = tensor_address(d, 0)?;
    let left = d.operand(1)?;
    let a = if matches!(left, ast::Operand::Address { .. }) {
        Source::Tensor(tensor_address(d, 1)?)
    } else {
        Source::Descriptor(d.src::<u64>(1)?)
    };
    let (b, instruction) = (d.src::<u64>(2)?, d.src::<u32>(3)?);
    let mut at = 4;
    let mut mask = Vec::new();
    let mut scales = None;
    if scaled {
        scales = Some((tensor_address(d, 4)?, tensor_address(d, 5)?));
        at = 6;
    } else if let ast::Operand::Vector(items) = d.operand(at)? {
        let required = 4 * group as usize;
        if items.len() != required {
            let actual = items.len();
            let why =
                format!("disable-output-lane: required {required} registers, actual {actual}");
            return Err(Reject::operand(why));
        }
        mask = items.iter().map(|item| d.src_of::<u32>(item)).collect::<Decoded<_>>()?;
        at += 1;
    }
    let enable = d.operand(at)?;
    let enable = d.pred(enable)?;
    let mut shift = 0;
    if d.count() == at + 2 && matches!(kind, Kind::F16 | Kind::Tf32) {
        shift = d.constant_u32(at + 1)?;
        if shift > 15 {
            return Err(Reject::operand(format!(
                "scale-input-d: required 0 to 15, actual {shift}"
            )));
        }
    } else if d.count() != at + 1 {
        let why = format!("operands: required {}, actual {}", at + 1, d.count());
        return Err(Reject::operand(why));
    }
    let form = Form { kind, group, d: target, a, b, instruction, scales, mask, enable, shift };
    Ok(Op::Effect(Box::new(move |cx, mask| lanes(mask).try_for_each(|lane| form.issue(cx, lane)))))
}

fn descriptor(
    cx: &Context<'_>,
    slot: Slot,
    lane: usize,
    name: &'static str,
) -> Exec<SharedDescriptor> {
    SharedDescriptor::decode(Generation::Sm100, cx.regs.row64(slot)[lane])
        .map_err(|error| invalid(name, error))
}

/// Elements as counters distinguish them: 4-bit ones count as such where they are packed.
fn counted(kind: Kind, element: Element) -> (Element, bool) {
    (element, matches!(kind, Kind::Mxf4 | Kind::Mxf4nvf4(_)))
}

impl Form {
    fn issue(&self, cx: &mut Context<'_>, lane: usize) -> Exec {
        const A: &str = "tcgen05.mma matrix A";
        const B: &str = "tcgen05.mma matrix B";
        const D: &str = "tcgen05.mma accumulator D";
        let ranks = cx.units.tensor.ranks(self.group, cx.place.rank)?;
        let bits = cx.regs.row32(self.instruction)[lane];
        let what = InstructionDescriptor::decode(self.kind, self.group, bits)
            .map_err(|error| invalid("tcgen05.mma", error))?;
        if what.sparse || what.max_shift != 0 {
            let required = "neither sparse nor with a shift of .ws";
            let actual = format!("{bits:#010x}");
            return Err(cx.bad_operand(lane, "instruction descriptor", required, actual));
        }
        let Some(path) = DataPath::of(self.group, what.m) else {
            return Err(cx.bad_operand(
                lane,
                "instruction descriptor: M",
                "64, 128 or 256",
                what.m,
            ));
        };
        let enabled = cx.regs.pred(self.enable) >> lane & 1 != 0;
        let addend = match (enabled, self.shift) {
            (false, _) => Addend::Zero,
            (true, 0) => Addend::Old,
            (true, shift) => Addend::Scaled(shift),
        };
        let address = |cx: &Context<'_>, address: &Address| split(address.rows(cx)[lane] as u32);
        let d = address(cx, &self.d);
        let lanes: &[u32] = if path == DataPath::Quarters { &[0, 16] } else { &[0] };
        if !lanes.contains(&d.0) {
            let required = format!("one of {lanes:?}");
            return Err(cx.bad_operand(lane, "tcgen05.mma: lane of D", required, d.0));
        }
        let operand = |element, major, rows| Operand {
            element,
            packing: self.kind.packing(),
            major,
            rows,
            k: self.kind.k(),
        };
        let b = descriptor(cx, self.b, lane, B)?;
        let b_operand = operand(what.b, what.b_major, what.n / self.group as usize);
        let (a, a_descriptor) = match &self.a {
            Source::Descriptor(slot) => (Tcgen05A::Shared, Some(descriptor(cx, *slot, lane, A)?)),
            Source::Tensor(at) => (Tcgen05A::Tensor(address(cx, at)), None),
        };
        let scales = self.scales.as_ref().map(|(a, b)| (address(cx, a).1, address(cx, b).1));
        let (mut reads, mut writes, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (which, &rank) in ranks.iter().enumerate() {
            let tensor = &cx.units.tensor;
            let columns = path.columns(what.n) as u32;
            tensor.check_allocated(D, rank, d.1, columns)?;
            // 64 rows in quarters leave every other 16 lanes alone.
            match path {
                DataPath::Quarters => (0..4).for_each(|quarter| {
                    region(rank, (32 * quarter + d.0, 16), (d.1, columns), &mut writes);
                }),
                _ => region(rank, (0, LANES), (d.1, columns), &mut writes),
            }
            if let Tcgen05A::Tensor((_, column)) = a {
                let width = self.kind.k() as u32 * tensor_container(what.a, self.kind.packing());
                tensor.check_allocated(A, rank, column, width / 32)?;
                region(rank, (0, LANES), (column, width / 32), &mut reads);
            }
            if let Some((sfa, sfb)) = scales {
                let rows =
                    [path.rows(), if path == DataPath::Halves { what.n / 2 } else { what.n }];
                for ((name, column), rows) in
                    [("scales of A", sfa), ("scales of B", sfb)].into_iter().zip(rows)
                {
                    let columns = rows.div_ceil(32) as u32;
                    tensor.check_allocated(name, rank, column, columns)?;
                    region(rank, (0, LANES), (column, columns), &mut reads);
                }
            }
            let tile = |name, descriptor, operand| {
                let negate = false;
                SharedTile { name, descriptor, operand, rank, negate }
            };
            let a = a_descriptor
                .map(|descriptor| tile(A, descriptor, operand(what.a, what.a_major, path.rows())));
            if let Some(a) = &a {
                a.reads(cx, &mut reads)?;
            }
            let b = tile(B, b, b_operand);
            b.reads(cx, &mut reads)?;
            let words = self.mask.iter().skip(4 * which).take(4).enumerate();
            let disabled = words.fold(0, |all, (at, &slot)| {
                all | u128::from(cx.regs.row32(slot)[lane]) << (32 * at)
            });
            let memory = cx.units.tensor.memory(rank);
            let (a_bytes, scales) = Default::default();
            parts.push(Part { memory, a, b, disabled, a_bytes, scales });
        }
        let (element, packed) = counted(self.kind, what.a);
        let in_f32 = what.d == Accumulator::F32;
        let multiplies = (what.m * what.n * self.kind.k()) as u64;
        cx.stats.tensor.count(element, packed, in_f32, multiplies);
        // Each of a pair's CTAs has its rows of A and its half of B.
        let rows = what.n + if matches!(self.a, Source::Descriptor(_)) { what.m } else { 0 };
        let bits = if packed { 4 } else { element.bits().max(8) as usize };
        cx.stats.tensor.shared_bytes += (rows * self.kind.k() * bits / 8) as u64;
        let work = ProductWork {
            descriptor: what,
            path,
            d,
            a,
            scales,
            addend,
            parts,
            b_bytes: Vec::new(),
        };
        issue_ordered(cx, GroupKind::TensorProduct, lane, (reads, writes), Vec::new(), work)
    }
}
