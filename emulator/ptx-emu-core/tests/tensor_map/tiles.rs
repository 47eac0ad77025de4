//! Geometry of tile copies, against an oracle that goes element by element.

use super::common::{GLOBAL, SHARED, TENSOR, contents, load, store};
use proptest::prelude::*;
use ptx_emu_core::tensor_map::{
    ElementType, ReduceOp, Reduction, Swizzle, TensorMap, Tile, TileError,
};
use serde_json::Value;

const SWIZZLES: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../tests/data/formats/swizzle_offsets.json"
));

#[test]
fn golden_swizzles() {
    let file: Value = serde_json::from_str(SWIZZLES).unwrap();
    let cases = file["k_major"].as_array().unwrap();
    for case in cases {
        let name = case["swizzle"].as_str().unwrap();
        let swizzle: Swizzle = name.replace("none", "NONE").parse().unwrap();
        let width = case["row_bytes"].as_u64().unwrap() as usize;
        let rows = case["offset_of_16B_chunk"].as_array().unwrap();
        for (r, row) in rows.iter().enumerate() {
            for (c, offset) in row.as_array().unwrap().iter().enumerate() {
                let k = 16 * c;
                let unswizzled = k / width * rows.len() * width + r * width + k % width;
                let actual = u64::from(swizzle.apply(unswizzled as u32));
                assert_eq!(actual, offset.as_u64().unwrap(), "{name} row {r} chunk {c}");
            }
        }
    }
    assert!(cases.len() >= 4);
}

#[test]
fn swizzles_are_involutions_within_their_span() {
    for &swizzle in Swizzle::ALL {
        let span = swizzle.span().max(1);
        for address in 0..4096u32 {
            let there = swizzle.apply(address);
            assert_eq!(swizzle.apply(there), address, "{swizzle} at {address}");
            assert_eq!(there / span, address / span, "{swizzle} at {address}");
            // The CTA rank in high bits passes through.
            assert_eq!(swizzle.apply(address | 3 << 24), there | 3 << 24, "{swizzle}");
        }
    }
}

/// One byte of a box: shared address, and global address if in bounds.
type Byte = (u32, Option<u64>);

/// The box element by element, from the definitions of PTX ISA 5.5.
fn oracle(map: &TensorMap, coordinates: &[i32], shared: u32, stored: bool) -> Vec<Byte> {
    let bits = map.element.bits() as i64;
    let counts: Vec<u32> = (0..map.rank())
        .map(|d| {
            if d == 0 { map.box_dims[0] } else { map.box_dims[d].div_ceil(map.element_strides[d]) }
        })
        .collect();
    let row_bytes = (counts[0] as i64 * bits / 8) as u32;
    let payload = map.element.padded_payload();
    let row_shared = payload.map_or(row_bytes, |payload| row_bytes / payload * 16);
    let pitch = if map.swizzle == Swizzle::None { row_shared } else { map.swizzle.span() };
    let rows: u32 = counts[1..].iter().product();
    let mut bytes = Vec::new();
    for row in 0..rows {
        let mut rest = row;
        let mut address = map.address as i64;
        let mut inside = true;
        for d in 1..map.rank() {
            let index = i64::from(coordinates[d])
                + i64::from(rest % counts[d]) * i64::from(map.element_strides[d]);
            rest /= counts[d];
            inside &= (0..map.dims[d] as i64).contains(&index);
            address += index * map.strides[d - 1] as i64;
        }
        for byte in 0..row_bytes {
            let position = i64::from(coordinates[0]) * bits / 8 + i64::from(byte);
            let mut end = map.dims[0] as i64 * bits / 8;
            if stored {
                end = (end + 15) / 16 * 16;
            }
            let inside = inside && (0..end).contains(&position);
            let unswizzled = payload.map_or(byte, |payload| byte / payload * 16 + byte % payload);
            let at = map.swizzle.apply(shared + row * pitch + unswizzled);
            bytes.push((at, inside.then_some((address + position) as u64)));
        }
    }
    bytes
}

fn bytes_of(tile: &Tile) -> Vec<Byte> {
    tile.runs()
        .flat_map(|run| {
            (0..run.bytes).map(move |i| (run.shared + i, run.global.map(|at| at + u64::from(i))))
        })
        .collect()
}

fn compare(tile: &Tile, expected: &[Byte], about: &str) {
    let actual = bytes_of(tile);
    assert_eq!(actual.len(), expected.len(), "{about}");
    assert_eq!(tile.bytes() as usize, expected.len(), "{about}");
    let wrong = (0..actual.len()).find(|&i| actual[i] != expected[i]);
    assert_eq!(wrong, None, "{about}: {:?}", wrong.map(|i| (actual[i], expected[i])));
}

#[test]
fn boxes_across_every_edge() {
    // Every swizzle and rank, all combinations of before, across the begin,
    // inside, across the end, after.
    for &swizzle in Swizzle::ALL {
        for rank in 1..=4usize {
            let dims = [40, 5, 4, 3];
            let strides = [48, 240, 960];
            let mut map = TensorMap::tiled(
                ElementType::U8,
                0x10000,
                &dims[..rank],
                &strides[..rank - 1],
                &[32, 3, 2, 2][..rank],
            );
            map.swizzle = swizzle;
            if map.check().is_err() {
                map.swizzle = Swizzle::None;
            }
            for choice in 0..5usize.pow(rank as u32) {
                let coordinates: Vec<i32> = (0..rank)
                    .map(|d| {
                        let place = choice / 5usize.pow(d as u32) % 5;
                        [
                            [-32, -16, 0, 16, 48],
                            [-3, -1, 1, 4, 6],
                            [-2, -1, 0, 3, 4],
                            [-2, -1, 0, 2, 3],
                        ][d][place]
                    })
                    .collect();
                let about = format!("{swizzle} at {coordinates:?}");
                let tile = Tile::load(&map, &coordinates, 0x480).unwrap();
                compare(&tile, &oracle(&map, &coordinates, 0x480, false), &about);
                let stored = Tile::store(&map, &coordinates, 0x480);
                assert_eq!(stored.is_err(), coordinates.iter().any(|&c| c < 0), "{about}");
                if let Ok(tile) = stored {
                    compare(&tile, &oracle(&map, &coordinates, 0x480, true), &about);
                }
            }
        }
    }
}

#[test]
fn padded_types_leave_gaps() {
    for (element, payload) in [(ElementType::U4Align16, 8), (ElementType::U6Align16, 12)] {
        for swizzle in [Swizzle::None, Swizzle::B128, Swizzle::B128Atom32] {
            let row = 256 * u64::from(payload) / 16;
            let mut map = TensorMap::tiled(element, 0x8000, &[256, 6], &[row], &[128, 4]);
            map.swizzle = swizzle;
            let tile = Tile::load(&map, &[128, 4], 0x400).unwrap();
            assert_eq!(tile.bytes(), 4 * 8 * payload);
            assert_eq!(tile.shared_bytes(), 4 * 128);
            compare(&tile, &oracle(&map, &[128, 4], 0x400, false), &format!("{element} {swizzle}"));
            for (shared, _) in bytes_of(&tile) {
                assert!(shared % 16 < payload, "{element} {swizzle}: {shared:#x} is in a gap");
            }
        }
    }
}

#[test]
fn packed_fp4_is_copied_like_bytes() {
    let fp4 = TensorMap {
        swizzle: Swizzle::B128,
        ..TensorMap::tiled(ElementType::U4Align8, 0x8000, &[500, 9], &[256], &[256, 8])
    };
    let bytes = TensorMap {
        swizzle: Swizzle::B128,
        ..TensorMap::tiled(ElementType::U8, 0x8000, &[250, 9], &[256], &[128, 8])
    };
    let fp4 = Tile::load(&fp4, &[256, 3], 0x400).unwrap();
    let bytes = Tile::load(&bytes, &[128, 3], 0x400).unwrap();
    assert_eq!(bytes_of(&fp4), bytes_of(&bytes));
}

#[test]
fn runs_are_as_long_as_they_can_be() {
    let mut map = TensorMap::tiled(ElementType::U8, 0, &[256, 256], &[256], &[128, 128]);
    let lengths = |map: &TensorMap| -> Vec<u32> {
        Tile::load(map, &[128, 0], 0).unwrap().runs().map(|run| run.bytes).collect()
    };
    assert_eq!(lengths(&map), vec![128; 128]);
    map.swizzle = Swizzle::B128;
    assert_eq!(lengths(&map), vec![16; 1024]);
    map.swizzle = Swizzle::B128Atom64;
    assert_eq!(lengths(&map), vec![64; 256]);
}

#[test]
fn rows_of_gather_and_scatter() {
    let map = TensorMap::tiled(ElementType::F16, 0x1000, &[40, 10], &[80], &[32, 1]);
    let rows = [7, -1, 2, 10];
    let tile = Tile::gather4(&map, 16, rows, 0x400).unwrap();
    let mut expected = Vec::new();
    for (i, row) in rows.into_iter().enumerate() {
        let mut one = oracle(&map, &[16, row], 0x400, false);
        one.iter_mut().for_each(|(shared, _)| *shared += 64 * i as u32);
        expected.extend(one);
    }
    compare(&tile, &expected, "gather4");
    assert!(Tile::scatter4(&map, 16, rows, 0x400).is_err());
    let tile = Tile::scatter4(&map, 16, [7, 0, 2, 10], 0x400).unwrap();
    assert_eq!(tile.runs().filter(|run| run.global.is_none()).count(), 3 + 1);
    let tall = TensorMap::tiled(ElementType::F16, 0x1000, &[40, 10], &[80], &[32, 2]);
    assert_eq!(
        Tile::gather4(&tall, 0, [0; 4], 0).unwrap_err().to_string(),
        "box[1]: required 1 for gather4 and scatter4, actual 2"
    );
}

#[test]
fn refusals_name_the_operand() {
    let map = TensorMap::tiled(ElementType::F32, 0x1000, &[40, 10], &[160], &[32, 2]);
    let message = |result: Result<Tile, TileError>| result.unwrap_err().to_string();
    assert_eq!(
        message(Tile::load(&map, &[0], 0)),
        "coordinates: required 2, the map's rank, actual 1"
    );
    assert_eq!(
        message(Tile::load(&map, &[-2, 0], 0)),
        "coordinates[0]: required a multiple of 4 for elements of type FLOAT32, actual -2"
    );
    assert_eq!(
        message(Tile::load(&map, &[0, 0], 0x440)),
        "shared address: required a multiple of 128, actual 0x440"
    );
    assert_eq!(
        message(Tile::store(&map, &[0, -1], 0)),
        "coordinates[1]: required 0 or more in a store, actual -1"
    );
    let mut bad = map.clone();
    bad.box_dims[0] = 6;
    assert_eq!(
        message(Tile::load(&bad, &[0, 0], 0)),
        "tensor map: box[0]: required a multiple of 16 bytes of FLOAT32, actual 6"
    );
    let padded = TensorMap::tiled(ElementType::U4Align16, 0, &[128, 8], &[64], &[128, 8]);
    assert_eq!(
        message(Tile::store(&padded, &[0, 0], 0)),
        "map: required a type and swizzle that can be stored, actual 16U4_ALIGN16B with swizzle NONE"
    );
    let mut interleaved = TensorMap::tiled(ElementType::U16, 0, &[8, 8, 8], &[16, 128], &[8, 8, 1]);
    interleaved.interleave = ptx_emu_core::tensor_map::Interleave::B16;
    assert_eq!(
        message(Tile::load(&interleaved, &[0, 0, 0], 0)),
        "not modelled: copies with an interleaved layout"
    );
    assert_eq!(
        Reduction::new(ReduceOp::Min, ElementType::F32).unwrap_err().to_string(),
        "reduction: required an operation that exists for elements of type FLOAT32, actual min"
    );
}

prop_compose! {
    /// A map within a 64 KiB tensor, coordinates around it, a shared address.
    fn any_copy()(
        element in prop::sample::select(&ElementType::ALL[..14]),
        dims in prop_oneof![
            prop::collection::vec(1u64..=9, 0..=2),
            prop::collection::vec(1u64..=3, 3..=4),
        ],
        columns in 1u64..=40,
        swizzle in prop::sample::select(Swizzle::ALL),
        slot in 0u32..16,
    )(
        extents in prop::collection::vec(1u32..=5, dims.len()),
        steps in prop::collection::vec(1u32..=8, dims.len() + 1),
        at in prop::collection::vec(-6i32..=10, dims.len()),
        width in 1u32..=8,
        column in -4i32..=4,
        dims in Just(dims),
        columns in Just(columns),
        element in Just(element),
        swizzle in Just(swizzle),
        slot in Just(slot),
    ) -> (TensorMap, Vec<i32>, u32) {
        let per_16 = 128 / element.bits();
        let columns = columns * if element.is_sub_byte() { 2 } else { 1 };
        // Room for the 16 bytes that stores write past a row's end.
        let mut strides = vec![(columns * u64::from(element.bits())).div_ceil(128) * 16];
        for dim in &dims {
            strides.push(strides[strides.len() - 1] * dim);
        }
        strides.pop();
        let mut map = TensorMap::tiled(
            element,
            TENSOR,
            &std::iter::once(columns).chain(dims).collect::<Vec<_>>(),
            &strides,
            &std::iter::once(width * per_16).chain(extents).collect::<Vec<_>>(),
        );
        map.box_dims[0] = map.box_dims[0].min(256);
        map.element_strides = steps;
        map.swizzle = swizzle;
        if map.check().is_err() {
            map.swizzle = Swizzle::None;
        }
        let coordinates = std::iter::once(column * per_16 as i32).chain(at).collect();
        (map, coordinates, SHARED + 128 * slot)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn tiles_match_the_oracle((map, coordinates, shared) in any_copy()) {
        let tile = Tile::load(&map, &coordinates, shared).unwrap();
        compare(&tile, &oracle(&map, &coordinates, shared, false), "load");
        // Every shared byte once, within the stated range.
        let mut places: Vec<u32> = bytes_of(&tile).iter().map(|byte| byte.0).collect();
        places.sort_unstable();
        prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
        let first = shared / 128 * 128;
        prop_assert!(places[0] >= first);
        prop_assert!(places[places.len() - 1] < shared + tile.shared_bytes());
        if let Ok(tile) = Tile::store(&map, &coordinates, shared) {
            compare(&tile, &oracle(&map, &coordinates, shared, true), "store");
        }
    }

    /// A store of what a load brought changes nothing; after the tensor was
    /// poisoned it restores every element of the box.
    #[test]
    fn stores_undo_loads((mut map, coordinates, shared) in any_copy()) {
        if matches!(map.element, ElementType::Tf32 | ElementType::Tf32Ftz) {
            map.element = ElementType::F32;
        }
        let coordinates: Vec<i32> = coordinates.iter().map(|c| c.abs()).collect();
        let (global, mut buffer) = contents("hash", &[]);
        let loaded = Tile::load(&map, &coordinates, shared).unwrap();
        load(&loaded, &global, &mut buffer);
        let mut after = vec![0xEE; GLOBAL];
        store(&Tile::store(&map, &coordinates, shared).unwrap(), None, &buffer, &mut after);
        for run in loaded.runs() {
            if let Some(address) = run.global {
                let range = address as usize..address as usize + run.bytes as usize;
                prop_assert_eq!(&after[range.clone()], &global[range]);
            }
        }
    }
}
