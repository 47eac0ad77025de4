//! The dequantise kernels on the emulator, both architectures, against the CPU: bit for bit.

use fp4_formats::params;
use fp4_formats::quantize::{DequantizeParams, Format, ScaleSource, dequantize_config};
use fp4_formats::{FloatType, ScaleLayout, e2m1, e4m3, ue8m0};
use nvfp4::floats;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::SCHEDULES;
use nvfp4_tests::quantize::{EMULATED_GPUS, encode, same_bytes, value};
use ptx_emu::GlobalMemory;

/// Every code with every scale, both layouts (padding is uninitialised), one
/// multiplier or one per row, all types; more than the CTAs of a wave take at once.
#[test]
fn dequantised() {
    let mut random = SplitMix64::new(7);
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let block = format.block() as usize;
        for (turn, (m, blocks)) in
            [(1, 1), (3, 7), (131, 5), (64, 16), (150, 65)].into_iter().enumerate()
        {
            for layout in ScaleLayout::ALL {
                for ty in FloatType::ALL {
                    let k = blocks * block;
                    let codes: Vec<u8> = (0..m * k / 2).map(|_| random.next_u64() as u8).collect();
                    // NaN is one of them.
                    let count = match format {
                        Format::Nvfp4 => 0x80,
                        Format::Mxfp4 => 0x100,
                    };
                    let scales: Vec<u8> =
                        (0..m * blocks).map(|_| (random.next_u64() % count) as u8).collect();
                    // MXFP4 has no other scale, and its own reach infinity.
                    let multiplier = |random: &mut SplitMix64| match format {
                        Format::Nvfp4 => value(random).abs() + 0.1,
                        Format::Mxfp4 => 1.0,
                    };
                    let rows: Vec<f32> = (0..m).map(|_| multiplier(&mut random)).collect();
                    let source =
                        [ScaleSource::Given, ScaleSource::TensorAmax, ScaleSource::RowAmax]
                            [turn % 3];
                    let mut expected = Vec::new();
                    for at in 0..m * k {
                        let (row, kb) = (at / k, at % k / block);
                        let byte = scales[row * blocks + kb];
                        let scale = match format {
                            Format::Nvfp4 => e4m3::decode(byte),
                            Format::Mxfp4 => ue8m0::decode(byte),
                        };
                        let tensor =
                            if source == ScaleSource::RowAmax { rows[row] } else { rows[0] };
                        expected
                            .push(e2m1::decode(codes[at / 2] >> (at % 2 * 4)) * (scale * tensor));
                    }
                    let (expected, _) = encode(ty, &expected);
                    for machine in EMULATED_GPUS.iter() {
                        let mut memory = GlobalMemory::new();
                        let bytes = layout.bytes(m, blocks).expect("small") as u64;
                        let scale_address = memory.alloc("scales", bytes, 256).expect("room");
                        for (at, scale) in scales.iter().enumerate() {
                            let offset = layout.offset(at / blocks, at % blocks, blocks) as u64;
                            memory.write(scale_address + offset, &[*scale]).expect("inside");
                        }
                        let multipliers: Vec<u8> =
                            rows.iter().flat_map(|x| x.to_le_bytes()).collect();
                        let out = memory.alloc("out", expected.len() as u64, 256).expect("room");
                        let params = DequantizeParams {
                            codes: memory.alloc_from("codes", &codes).expect("room"),
                            scales: scale_address,
                            tensor: memory.alloc_from("tensor", &multipliers).expect("room"),
                            out,
                            m: m as u32,
                            k: k as u32,
                            given: rows[0],
                            source: source as u32,
                            blocked: u32::from(layout == ScaleLayout::Blocked128x4),
                            reserved: 0,
                        };
                        let config = dequantize_config(format, ty);
                        let grid = config.grid(m as u32, k as u32, layout, machine.sms);
                        machine.launch(
                            &mut memory,
                            config.name,
                            grid,
                            config.threads(),
                            params::bytes(&params),
                            SCHEDULES[1 + turn % 4],
                        );
                        let mut got =
                            memory.read(out, expected.len() as u64).expect("all of it written");
                        // NaN has many bits.
                        let values = floats::decode(ty, &got);
                        let bytes = ty.bytes() as usize;
                        for (at, value) in floats::decode(ty, &expected).iter().enumerate() {
                            if value.is_nan() && values[at].is_nan() {
                                let of = at * bytes..(at + 1) * bytes;
                                got[of.clone()].copy_from_slice(&expected[of]);
                            }
                        }
                        same_bytes(
                            &format!("{} {} {layout} {m} x {k}", machine.name, config.name),
                            &got,
                            &expected,
                        );
                    }
                }
            }
        }
    }
}
