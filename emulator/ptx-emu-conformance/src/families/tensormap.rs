//! `tensormap.replace`: the 128 bytes after each edit, and copies through a map that
//! was edited in shared memory or in global memory.

use super::tensor::{Tile, load_code};
use crate::builder::Set;
use crate::probe::{Buffer, MapParameter};
use crate::program::Program;
use ptx_emu_core::tensor_map::{ElementType, ReplaceField, Swizzle, TensorMap};

/// A map of rank 5 that every field of can be seen.
fn template() -> TensorMap {
    let map = TensorMap::tiled(
        ElementType::U16,
        0,
        &[24, 5, 4, 3, 3],
        &[48, 240, 960, 2880],
        &[8, 3, 2, 2, 2],
    );
    TensorMap { element_strides: vec![1, 2, 1, 2, 1], swizzle: Swizzle::B32, ..map }
}

pub(super) fn probes(set: &mut Set) {
    for field in ReplaceField::ALL {
        // Atoms of a swizzle came after this architecture.
        if field != ReplaceField::SwizzleAtomicity {
            edits(set, field);
        }
    }
    for place in ["shared", "global"] {
        edited_and_used(set, place);
    }
}

/// Copies the map to shared memory with lanes 0 to 31, one word per lane.
const TO_SHARED: &str = "    mad.lo.u32 %r1, %me, 4, %s; cvt.u64.u32 %d1, %me; shl.b64 %d1, %d1, 2; \
     add.u64 %d2, %map0, %d1; setp.lt.u32 %p3, %me, 32; @%p3 ld.b32 %r2, [%d2]; \
     @%p3 st.shared.b32 [%r1], %r2; bar.warp.sync -1;\n";

/// `tensormap.replace` of a map in shared memory at `%s`.
fn replace(field: ReplaceField, ordinal: Option<u32>, value: &str) -> String {
    let ordinal = ordinal.map_or(String::new(), |ordinal| format!("{ordinal}, "));
    format!(
        "tensormap.replace.tile.{}.shared::cta.b1024.b{} [%s], {ordinal}{value};",
        field.name(),
        field.value_bits()
    )
}

/// Every value of a field, one after the other; the bytes after each. The address is
/// left out: it is where the driver put the buffer.
fn edits(set: &mut Set, field: ReplaceField) {
    let mut edits = Vec::new();
    let ordinals = match field.ordinals() {
        0 => vec![None],
        count => (0..count).map(Some).collect(),
    };
    for ordinal in ordinals {
        match (field, field.immediates()) {
            // Sub-byte types and interleaving are not this architecture's.
            (ReplaceField::ElementType, _) => {
                edits.extend((0..13).map(|n| replace(field, None, &n.to_string())));
            }
            (ReplaceField::SwizzleMode, _) => {
                edits.extend((0..4).map(|n| replace(field, None, &n.to_string())));
            }
            (_, Some(count)) => {
                edits.extend((0..count).map(|n| replace(field, None, &n.to_string())));
            }
            (ReplaceField::GlobalAddress, None) => {
                for value in ["0x0000123456789a00", "0x00ffedcba9876540"] {
                    edits.push(format!("mov.b64 %d3, {value}; {}", replace(field, None, "%d3")));
                }
            }
            (ReplaceField::GlobalStride, None) => {
                for value in ["0x10", "0x123456780", "0xfffffffff0"] {
                    edits.push(format!("mov.b64 %d3, {value}; {}", replace(field, ordinal, "%d3")));
                }
            }
            (ReplaceField::Rank, None) => {
                for value in 0..5 {
                    edits.push(format!("mov.b32 %r3, {value}; {}", replace(field, None, "%r3")));
                }
            }
            (_, None) => {
                let values: &[u32] = match field {
                    ReplaceField::BoxDim => &[1, 77, 256],
                    ReplaceField::ElementStride => &[1, 5, 8],
                    _ => &[1, 0x1234_5678, 0xffff_ffff],
                };
                for value in values {
                    edits.push(format!("mov.b32 %r3, {value}; {}", replace(field, ordinal, "%r3")));
                }
            }
        }
    }
    let mut body = TO_SHARED.to_owned();
    for (index, edit) in edits.iter().enumerate() {
        body += &format!(
            "    @!%leader bra SKIP{index}; {edit}\nSKIP{index}: bar.warp.sync -1; \
             ld.shared.b32 %r2, [%r1]; setp.lt.u32 %p1, %me, 2; @%p1 mov.b32 %r2, 0; \
             add.u64 %d2, %out, %d1; st.global.b32 [%d2+{}], %r2; bar.warp.sync -1;\n",
            128 * index
        );
    }
    // The address is shown where it is what is edited.
    if field == ReplaceField::GlobalAddress {
        body = body.replace("@%p1 mov.b32 %r2, 0; ", "");
    }
    let maps = vec![MapParameter { map: template(), buffer: Buffer::Input(0) }];
    let name = format!("tensormap.replace of {}", field.name());
    set.program(Program { maps, ..Program::new(name, 128 * edits.len(), body) }.random(16384));
}

/// The map parameter describes something else; address, dimensions and a stride are
/// put right, and a box is loaded.
fn edited_and_used(set: &mut Set, place: &str) {
    let wrong = TensorMap::tiled(ElementType::U32, 1024, &[4, 8], &[128], &[8, 4]);
    let right = TensorMap::tiled(ElementType::U32, 0, &[16, 6], &[64], &[8, 4]);
    // Room for the map behind the box in the output.
    let target = "add.u64 %d5, %out, 128;";
    let prepare = if place == "shared" {
        format!(
            "{TO_SHARED}    {target} @!%leader bra SKIP;\n    \
             tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%s], %in0;\n    \
             tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%s], 0, 16;\n    \
             tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%s], 1, 6;\n    \
             tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%s], 0, 64;\n\
             SKIP: bar.sync 0; setp.ge.u32 %p2, %me, 32; @%p2 bra DONE;\n    \
             tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned \
             [%d5], [%s], 128;\nDONE: bar.sync 0; \
             fence.proxy.tensormap::generic.acquire.gpu [%d5], 128;\n"
        )
    } else {
        format!(
            "    {target} cvt.u64.u32 %d1, %me; shl.b64 %d1, %d1, 2; add.u64 %d2, %map0, %d1; \
             add.u64 %d3, %d5, %d1; setp.ge.u32 %p2, %me, 32; @%p2 bra LAID; \
             ld.b32 %r2, [%d2]; st.global.b32 [%d3], %r2;\nLAID: bar.sync 0; \
             @!%leader bra SKIP;\n    \
             tensormap.replace.tile.global_address.global.b1024.b64 [%d5], %in0;\n    \
             tensormap.replace.tile.global_dim.global.b1024.b32 [%d5], 0, 16;\n    \
             tensormap.replace.tile.global_dim.global.b1024.b32 [%d5], 1, 6;\n    \
             tensormap.replace.tile.global_stride.global.b1024.b64 [%d5], 0, 64;\n    \
             fence.proxy.tensormap::generic.release.gpu;\nSKIP: bar.sync 0; \
             fence.proxy.tensormap::generic.acquire.gpu [%d5], 128;\n"
        )
    };
    // The final bytes in the map's place depend on addresses: they are cleared.
    let clear = "    bar.sync 0; setp.ge.u32 %p2, %me, 32; @%p2 bra END; \
                 mad.wide.u32 %d6, %me, 4, %d5; st.global.b32 [%d6], 0;\nEND:\n";
    let body = format!("{prepare}{}{clear}", load_code(&Tile::new(right, &[8, 3]), "%d5"));
    let maps = vec![MapParameter { map: wrong, buffer: Buffer::Input(0) }];
    let name = format!("a map edited in {place} memory");
    set.program(Program { block: 64, maps, ..Program::new(name, 256, body) }.random(2048));
}
