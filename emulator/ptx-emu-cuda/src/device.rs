//! Attributes and properties of the described machine.

use crate::errors::{Failure, INVALID_VALUE};
use crate::memory::free_bytes;
use crate::occupancy::{REGISTERS, RESERVED_SHARED};
use ptx_emu_core::Gpu;

/// The version of CUDA that is stood in for.
pub(crate) const CUDA_VERSION: i32 = 13000;
/// Threads of a warp.
const WARP: i32 = 32;
/// Constants of a module, bytes.
const CONSTANTS: i32 = 64 << 10;
/// Shared memory of a CTA that needs no attribute, bytes.
const SHARED: i32 = 48 << 10;
/// Alignment of textures and rows of two-dimensional memory, bytes.
pub(crate) const PITCH: u64 = 512;

fn int(value: impl TryInto<i32>) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

/// Name, as programs show it.
pub(crate) fn name(gpu: &Gpu) -> String {
    format!("NVIDIA {} (emulated by ptx-emu)", gpu.name.to_uppercase())
}

/// Memory of the device, bytes: what the host lets it have.
pub(crate) fn total_memory() -> u64 {
    free_bytes()
}

/// The width of the path to memory, bits (the vendor's data sheets).
fn memory_bus_bits(gpu: &Gpu) -> u32 {
    match gpu.name {
        "a100" => 5120,
        "rtx3090" | "rtx4090" | "l40s" => 384,
        "h200" => 6144,
        "b200" | "b300" => 8192,
        "dgx-spark" => 256,
        _ => 512,
    }
}

/// The clock of memory, of which programs compute the rate as two transfers of the path's width in each.
fn memory_clock_hz(gpu: &Gpu) -> f64 {
    gpu.dram_bytes_per_s * 8.0 / (2.0 * f64::from(memory_bus_bits(gpu)))
}

/// An attribute by the number that driver and runtime have for it.
///
/// # Errors
/// One that the description of the machine says nothing about.
pub(crate) fn attribute(gpu: &Gpu, number: i32) -> Result<i32, Failure> {
    let (major, minor) = gpu.compute_capability();
    Ok(match number {
        1 => int(gpu.max_threads_per_cta),
        2..=4 => int(gpu.max_block[number as usize - 2]),
        5..=7 => int(gpu.max_grid[number as usize - 5]),
        8 => SHARED,
        9 => CONSTANTS,
        10 => WARP,
        11 => i32::MAX,
        12 | 82 => int(REGISTERS),
        13 => int((gpu.clock_hz / 1000.0) as u64),
        14 | 30 => int(PITCH),
        // Copies and kernels overlap; so do kernels, and so may host and device.
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 90 | 91 | 95 | 99 | 102 | 115 => 1,
        // Clusters and tensor maps.
        120 | 127 => int(u8::from(major >= 9)),
        16 => int(gpu.sms),
        17 | 18 | 20 | 32 | 34 | 35 | 50 | 84 | 85 | 86 | 133 => 0,
        33 => 1,
        36 => int((memory_clock_hz(gpu) / 1000.0) as u64),
        37 => int(memory_bus_bits(gpu)),
        // Textures and surfaces, which are not modelled.
        21..=29 | 42..=49 | 52..=74 | 77 => 0,
        87 => int((gpu.float_lanes_per_clock / gpu.double_lanes_per_clock).round() as u64),
        38 => int(gpu.l2_bytes),
        39 => int(gpu.max_threads_per_sm),
        40 => 1,
        51 => 32,
        75 => int(major),
        76 => int(minor),
        81 => int(gpu.shared_per_sm),
        // Memory that the program allocates in the ordinary way stays its own, and it must not use
        // shared memory while a launch runs.
        88
        | 89
        | 92
        | 93
        | 94
        | 96
        | 98
        | 100
        | 101
        | 103
        | 104
        | 105
        | 107
        | 110
        | 112
        | 113
        | 114
        | 116
        | 117
        | 118
        | 119
        | 121
        | 122
        | 123
        | 124
        | 125
        | 128
        | 130
        | 132
        | 135
        | 136
        | 137
        | 138..=140
        | 141..=147 => 0,
        97 => int(gpu.shared_per_cta),
        106 => int(gpu.max_ctas_per_sm),
        108 | 109 => int(gpu.l2_bytes / 2),
        111 => int(RESERVED_SHARED),
        // Domains of memory synchronisation.
        126 => {
            if major >= 9 {
                4
            } else {
                1
            }
        }
        129 => 1,
        131 | 134 => -1,
        _ => {
            let message =
                format!("attribute {number}: the description of {} does not have it", gpu.name);
            return Err(Failure::new(INVALID_VALUE, message));
        }
    })
}

/// Size of the runtime's `cudaDeviceProp`, bytes.
pub(crate) const PROPERTIES: usize = 1008;

/// Places of fields in `cudaDeviceProp` (CUDA 13) whose values are attributes: offset, bytes,
/// attribute.
const FIELDS: &[(usize, usize, i32)] = &[
    (296, 8, 8),
    (304, 4, 12),
    (308, 4, 10),
    (312, 8, 11),
    (320, 4, 1),
    (324, 4, 2),
    (328, 4, 3),
    (332, 4, 4),
    (336, 4, 5),
    (340, 4, 6),
    (344, 4, 7),
    (352, 8, 9),
    (360, 4, 75),
    (364, 4, 76),
    (368, 8, 14),
    (376, 8, 51),
    (384, 4, 16),
    (388, 4, 18),
    (392, 4, 19),
    (560, 4, 31),
    (564, 4, 32),
    (568, 4, 33),
    (584, 4, 40),
    (588, 4, 41),
    (592, 4, 37),
    (596, 4, 38),
    (600, 4, 108),
    (604, 4, 39),
    (608, 4, 78),
    (612, 4, 79),
    (616, 4, 80),
    (624, 8, 81),
    (632, 4, 82),
    (636, 4, 83),
    (652, 4, 88),
    (656, 4, 89),
    (660, 4, 90),
    (668, 4, 95),
    (672, 8, 97),
    (688, 4, 106),
    (692, 4, 109),
    (696, 8, 111),
    (704, 4, 99),
    (720, 4, 115),
    (748, 4, 120),
    (752, 4, 129),
];

/// `cudaDeviceProp`; what the description says nothing about is 0.
///
/// # Errors
/// The same as [`attribute`].
pub(crate) fn properties(gpu: &Gpu) -> Result<[u8; PROPERTIES], Failure> {
    let mut bytes = [0; PROPERTIES];
    let name = name(gpu);
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes[256..272].copy_from_slice(&uuid(gpu));
    bytes[288..296].copy_from_slice(&total_memory().to_le_bytes());
    for (offset, length, number) in FIELDS {
        let value = i64::from(attribute(gpu, *number)?).to_le_bytes();
        bytes[*offset..offset + length].copy_from_slice(&value[..*length]);
    }
    Ok(bytes)
}

/// An identifier that no real device has.
pub(crate) fn uuid(gpu: &Gpu) -> [u8; 16] {
    let mut bytes = *b"ptx-emu         ";
    // The first eight letters tell the machines apart.
    for (byte, letter) in bytes[8..].iter_mut().zip(gpu.name.bytes()) {
        *byte = letter;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_the_machine_s() {
        for gpu in Gpu::ALL {
            let of = |number| attribute(&gpu, number).expect("described");
            assert_eq!((of(16), of(10), of(1)), (int(gpu.sms), 32, 1024));
            let (shared, resident, clusters) = match gpu.compute_capability() {
                (8, 0) => (163, (2048, 32), 0),
                (8, 6) => (99, (1536, 16), 0),
                (8, 9) => (99, (1536, 24), 0),
                (12, _) => (99, (1536, 24), 1),
                _ => (227, (2048, 32), 1),
            };
            assert_eq!((of(97), (of(39), of(106))), (shared << 10, resident));
            assert_eq!((of(81), of(111)), (of(97) + 1024, 1024));
            assert_eq!((of(120), of(127)), (clusters, clusters));
            assert_eq!((of(75) as u32, of(76) as u32), gpu.compute_capability());
            let rate = 2.0 * f64::from(of(36)) * 1e3 * f64::from(of(37)) / 8.0;
            assert!((rate / gpu.dram_bytes_per_s - 1.0).abs() < 1e-3, "{rate}");
            // The attributes of CUDA 12 begin with 1 and end with 147; two of them have no number there.
            assert!(
                (1..=147).all(|number| {
                    attribute(&gpu, number).is_ok() || [139, 140].contains(&number)
                })
            );
            assert!(attribute(&gpu, 4711).is_err());
            let properties = properties(&gpu).expect("described");
            assert_eq!(properties[384..388], int(gpu.sms).to_le_bytes());
            assert!(properties.starts_with(name(&gpu).as_bytes()));
        }
        let uuids: std::collections::BTreeSet<[u8; 16]> = Gpu::ALL.iter().map(uuid).collect();
        assert_eq!(uuids.len(), Gpu::ALL.len());
    }

    #[test]
    fn fields_do_not_overlap() {
        for pair in FIELDS.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
    }
}
