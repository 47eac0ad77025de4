//! Functions that the CUDA driver provides and PTX modules only declare: `vprintf`
//! (device-side `printf`), `__assertfail` (device-side `assert`), `malloc` and `free` (also those of
//! `new` and `delete`), as the CUDA C++ Programming Guide describes them.
//!
//! Memory of `malloc` comes from a heap of 8 MiB unless the launch's memory has another limit; its
//! result is null where that is full, and for 0 bytes. It stays allocated from launch to launch until
//! a kernel frees it. Memory that is never freed is no finding.
//!
//! The output is collected, cluster after cluster and lane after lane, and is part of the launch's
//! report; the result is the number of arguments, -1 for a null format. A failed assertion is a
//! diagnostic. Limits: the buffer never overflows here.

use crate::decode::{Decoded, Reject};
use crate::diagnostic::{DiagnosticKind, Exec, Fault};
use crate::machine::code::{Op, Passed};
use crate::machine::regs::{LANES, map_row};
use crate::machine::units::lanes;
use crate::machine::{AddressSpace, Context, print};
use crate::memory::NotFreed;

/// Longest string that is read.
const LONGEST: usize = 1 << 16;

/// The instruction for a call of a function of that name; `None`, it is none of
/// the driver's.
pub(super) fn decode(name: &str, args: &[Passed], returns: &[Passed]) -> Option<Decoded<Op>> {
    let fits = |wanted: usize, results: usize| {
        if args.len() == wanted && returns.len() <= results {
            return Ok(());
        }
        Err(Reject::operand(format!(
            "call of {name}: required {wanted} arguments and {results} results, actual {} and {}",
            args.len(),
            returns.len()
        )))
    };
    Some(match name {
        "vprintf" => fits(2, 1).map(|()| vprintf([args[0], args[1]], returns.first().copied())),
        "malloc" => fits(1, 1).map(|()| malloc(args[0], returns.first().copied())),
        "free" => fits(1, 0).map(|()| free(args[0])),
        "__assertfail" => fits(5, 0).map(|()| assertion([args[0], args[1], args[2], args[3]])),
        _ => return None,
    })
}

/// Value of an argument in each lane.
fn argument(cx: &Context<'_>, passed: Passed, mask: u32) -> [u64; LANES] {
    match passed {
        Passed::R32(slot, _) => map_row(cx.regs.row32(slot), u64::from),
        Passed::R64(slot) | Passed::R128(slot) => *cx.regs.row64(slot),
        Passed::Frame { offset, bytes } => {
            let mut row = [0; LANES];
            let bytes = if bytes >= 8 { 8 } else { 4 };
            for lane in lanes(mask) {
                row[lane] = cx.local.load(lane, (cx.frame + offset) as usize, bytes)[0];
            }
            row
        }
    }
}

/// `bytes` bytes at a generic address of a lane, up to 8.
fn load(cx: &mut Context<'_>, lane: usize, address: u64, bytes: usize) -> Exec<u64> {
    let mut words = [[0; LANES]; 4];
    cx.load(AddressSpace::Generic, &[address; LANES], 1 << lane, bytes, &mut words)?;
    Ok(words[0][lane])
}

/// A string that ends with a zero byte, at a generic address of a lane.
fn string(cx: &mut Context<'_>, lane: usize, address: u64) -> Exec<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < LONGEST {
        match load(cx, lane, address + text.len() as u64, 1)? as u8 {
            0 => break,
            byte => text.push(byte),
        }
    }
    Ok(text)
}

fn vprintf([format, values]: [Passed; 2], result: Option<Passed>) -> Op {
    Op::Effect(Box::new(move |cx, mask| {
        let (formats, values) = (argument(cx, format, mask), argument(cx, values, mask));
        for lane in lanes(mask) {
            let mut count = u32::MAX;
            if formats[lane] != 0 {
                let format = string(cx, lane, formats[lane])?;
                count = 0;
                let mut next = values[lane];
                let text = print::format(&format, |wanted| {
                    // A struct with the arguments as its fields.
                    let bytes = wanted.bytes() as u64;
                    let at = next.next_multiple_of(bytes);
                    next = at + bytes;
                    count += 1;
                    let value = load(cx, lane, at, bytes as usize)?;
                    Ok(match wanted {
                        print::Wanted::Text if value == 0 => print::Value::Text(b"(null)".to_vec()),
                        print::Wanted::Text => print::Value::Text(string(cx, lane, value)?),
                        _ => print::Value::Bits(value),
                    })
                })?;
                let [x, y, z] = cx.place.cluster.map(u64::from);
                let clusters = [0, 1].map(|d| u64::from(cx.env.grid[d] / cx.env.cluster[d]));
                let cluster = x + clusters[0] * (y + clusters[1] * z);
                cx.stats.printed.push((cluster, text));
            }
            put(cx, result, lane, count.into());
        }
        Ok(())
    }))
}

/// Gives a lane the result of a call.
fn put(cx: &mut Context<'_>, result: Option<Passed>, lane: usize, value: u64) {
    match result {
        Some(Passed::R32(slot, _)) => cx.regs.put_lane(slot, lane, value as u32),
        Some(Passed::R64(slot) | Passed::R128(slot)) => cx.regs.put_lane(slot, lane, value),
        Some(Passed::Frame { offset, bytes }) => {
            let at = (cx.frame + offset) as usize;
            let bytes = if bytes >= 8 { 8 } else { 4 };
            cx.local.store(lane, at, bytes, &[value, 0, 0, 0]);
        }
        None => {}
    }
}

/// Whether a function allocates memory of the device's heap, or frees it.
pub(super) fn uses_heap(name: &str) -> bool {
    matches!(name, "malloc" | "free")
}

fn malloc(bytes: Passed, result: Option<Passed>) -> Op {
    Op::Effect(Box::new(move |cx, mask| {
        let sizes = argument(cx, bytes, mask);
        for lane in lanes(mask) {
            let address = cx.env.global.heap_allocate(sizes[lane]).unwrap_or(0);
            put(cx, result, lane, address);
        }
        Ok(())
    }))
}

fn free(address: Passed) -> Op {
    Op::Effect(Box::new(move |cx, mask| {
        let addresses = argument(cx, address, mask);
        for lane in lanes(mask) {
            let address = addresses[lane];
            if address == 0 {
                continue;
            }
            if let Err(why) = cx.env.global.heap_free(address) {
                let kind = DiagnosticKind::InvalidFree { address, twice: why == NotFreed::Twice };
                return Err(Fault::lane(kind, lane as u32));
            }
        }
        Ok(())
    }))
}

fn assertion([message, file, line, function]: [Passed; 4]) -> Op {
    Op::Effect(Box::new(move |cx, mask| {
        let lane = mask.trailing_zeros() as usize;
        let mut text = |passed: Passed| -> Exec<String> {
            match argument(cx, passed, mask)[lane] {
                0 => Ok(String::new()),
                address => Ok(String::from_utf8_lossy(&string(cx, lane, address)?).into_owned()),
            }
        };
        let (condition, file, function) = (text(message)?, text(file)?, text(function)?);
        let line = argument(cx, line, mask)[lane] as u32;
        let kind = DiagnosticKind::Assertion { condition, file, line, function };
        Err(Fault::lane(kind, lane as u32))
    }))
}
