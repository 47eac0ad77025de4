//! Instructions, one file per family, with decoding and semantics next to each other. Each
//! module head states which sections of the PTX ISA it models and which errors it can miss. An
//! instruction that belongs to no family is reported as unsupported when a module is loaded.

mod atom;
mod bits;
mod bulk;
mod cluster;
mod compare;
mod control;
mod cp_async;
mod cvt;
mod double;
mod float;
mod grid;
mod half;
mod hint;
mod int;
mod matrix;
mod mbarrier;
mod mem;
mod mma;
mod mov;
pub(crate) mod special;
mod sync;
mod system_call;
mod tcgen05;
mod tcgen05_data;
mod tcgen05_mma;
mod tensormap;
mod tma;
mod warp;
mod wgmma;
mod wmma;

use crate::Family;
use crate::machine::code::Op;
use crate::module::{Decode, Decoded, Reject, Type};
use crate::simd::on_host;

/// Decodes one instruction.
pub(crate) fn decode(d: &mut Decode<'_>) -> Decoded<(Family, Op)> {
    if let Some(found) = asynchronous(d)? {
        return Ok(found);
    }
    match d.ins.opcode.as_str() {
        "add" | "sub" | "mul" | "fma" | "mad" | "div" | "abs" | "neg" | "min" | "max" => {
            arithmetic(d)
        }
        "addc" | "subc" | "madc" | "rem" | "sad" | "mul24" | "mad24" | "dp4a" | "dp2a" => {
            Ok((Family::Integer, on_host!(h => int::decode(d, h))?))
        }
        "popc" | "clz" | "bfind" | "fns" | "brev" | "bfe" | "bfi" | "bmsk" | "szext" | "prmt"
        | "lop3" | "shf" | "shl" | "shr" => {
            Ok((Family::Integer, on_host!(h => bits::decode(d, h))?))
        }
        "and" | "or" | "xor" | "not" | "cnot" => on_host!(h => bits::logic(d, h)),
        "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign"
        | "testp" => transcendental(d),
        "cvt" => Ok((Family::Convert, on_host!(h => cvt::decode(d, h))?)),
        "setp" | "set" | "selp" | "slct" => {
            Ok((Family::Predicate, on_host!(h => compare::decode(d, h))?))
        }
        "mov" | "cvta" | "isspacep" => Ok((Family::Move, on_host!(h => mov::decode(d, h))?)),
        "ld" | "ldu" | "st" => Ok((Family::Memory, on_host!(h => mem::decode(d, h))?)),
        "atom" | "red" => Ok((Family::Atomic, atom::decode(d)?)),
        "shfl" | "vote" | "match" | "redux" | "elect" | "activemask" => {
            Ok((Family::Warp, warp::decode(d)?))
        }
        "bar" | "barrier" | "membar" | "fence" => Ok((Family::Sync, sync::decode(d)?)),
        "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" => {
            Ok((Family::Control, control::decode(d)?))
        }
        "mma" => Ok((Family::Matrix, mma::decode(d)?)),
        "wmma" => Ok((Family::Matrix, wmma::decode(d)?)),
        "ldmatrix" | "stmatrix" | "movmatrix" => Ok((Family::Matrix, matrix::decode(d)?)),
        "nanosleep" | "prefetch" | "prefetchu" | "createpolicy" | "applypriority" | "discard"
        | "pmevent" => Ok((Family::Hint, hint::decode(d)?)),
        other => Err(Reject::unsupported(format!("instruction {other}"))),
    }
}

/// Instructions of the asynchronous units.
fn asynchronous(d: &mut Decode<'_>) -> Decoded<Option<(Family, Op)>> {
    let first = d.ins.modifiers.first().map(String::as_str).unwrap_or_default();
    Ok(Some(match (d.ins.opcode.as_str(), first) {
        ("cp", _) => (Family::Copy, cp_async::decode(d)?),
        ("mbarrier", _) => (Family::Mbarrier, mbarrier::decode(d)?),
        ("st" | "red", "async") => (Family::Copy, cluster::decode_async(d)?),
        ("tensormap", _) => (Family::Copy, tensormap::decode(d)?),
        ("fence", "proxy") => (Family::Sync, tensormap::fence(d)?),
        ("barrier", "cluster") => (Family::Cluster, cluster::barrier(d)?),
        ("mapa" | "getctarank" | "setmaxnreg", _) => (Family::Cluster, cluster::decode(d)?),
        ("griddepcontrol" | "clusterlaunchcontrol", _) => (Family::Cluster, grid::decode(d)?),
        ("wgmma", _) => (Family::Tensor, wgmma::decode(d)?),
        ("tcgen05", _) => (Family::Tensor, tcgen05::decode(d)?),
        _ => return Ok(None),
    }))
}

/// The type of an instruction whose last type modifier is that of its operands.
fn peek_type(d: &Decode<'_>) -> Option<Type> {
    d.ins.modifiers.iter().rev().find_map(|name| Type::parse(name))
}

/// Opcodes that integers and all floating-point types share.
fn arithmetic(d: &mut Decode<'_>) -> Decoded<(Family, Op)> {
    match peek_type(d) {
        Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2) => {
            on_host!(h => half::decode(d, h))
        }
        Some(Type::F32 | Type::F32x2) => Ok((Family::Float, float::decode(d)?)),
        Some(Type::F64) => Ok((Family::Double, double::decode(d)?)),
        Some(_) => Ok((Family::Integer, on_host!(h => int::decode(d, h))?)),
        None => Err(Reject::unsupported("no known type modifier")),
    }
}

fn transcendental(d: &mut Decode<'_>) -> Decoded<(Family, Op)> {
    match peek_type(d) {
        Some(Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2) => {
            on_host!(h => half::decode(d, h))
        }
        Some(Type::F64) => Ok((Family::Double, double::decode(d)?)),
        _ => Ok((Family::Float, float::decode(d)?)),
    }
}
