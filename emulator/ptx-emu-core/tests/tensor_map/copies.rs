//! Tile copies and reductions against recordings of an H200.

use super::common::{COPIES, GLOBAL, SHARED, TENSOR, contents, hex, load, narrow, numbers, store};
use ptx_emu_core::tensor_map::{Fill, ReduceOp, Reduction, TensorMap, Tile, TileError};
use serde_json::Value;
use std::collections::BTreeMap;

fn recorded_map(case: &Value) -> TensorMap {
    TensorMap {
        element_strides: narrow(&case["estrides"]),
        swizzle: case["swizzle"].as_str().unwrap().parse().unwrap(),
        fill: Fill::from_number(case["oob"].as_u64().unwrap() as u32).unwrap(),
        ..TensorMap::tiled(
            case["dtype"].as_str().unwrap().parse().unwrap(),
            TENSOR,
            &numbers(&case["dims"]),
            &numbers(&case["strides"]),
            &narrow(&case["box"]),
        )
    }
}

fn plan(case: &Value) -> Result<(Tile, Option<Reduction>), TileError> {
    let map = recorded_map(case);
    let coordinates: Vec<i32> =
        case["coords"].as_array().unwrap().iter().map(|v| v.as_i64().unwrap() as i32).collect();
    let shared = case["shared"].as_u64().unwrap() as u32;
    Ok(match case["kind"].as_str().unwrap() {
        "load" => (Tile::load(&map, &coordinates, shared)?, None),
        "store" => (Tile::store(&map, &coordinates, shared)?, None),
        op => {
            let reduction = Reduction::new(ReduceOp::from_name(op).unwrap(), map.element)?;
            (Tile::store(&map, &coordinates, shared)?, Some(reduction))
        }
    })
}

fn summary(index: usize, case: &Value) -> String {
    let mut case = case.clone();
    let object = case.as_object_mut().unwrap();
    object.remove("after");
    object.remove("changed");
    format!("copy {index}: {case}")
}

#[test]
fn golden_copies() {
    let file: Value = serde_json::from_str(COPIES).unwrap();
    let special = numbers(&file["special"]);
    let mut seen: BTreeMap<(String, bool), u32> = BTreeMap::new();
    for (index, case) in file["copies"].as_array().unwrap().iter().enumerate() {
        let about = summary(index, case);
        let kind = case["kind"].as_str().unwrap().to_owned();
        let planned = plan(case);
        *seen.entry((kind, planned.is_ok())).or_default() += 1;
        assert_eq!(planned.is_err(), case.get("error").is_some(), "{about}: {:?}", planned.err());
        let Ok((tile, reduction)) = planned else {
            continue;
        };
        let (mut global, mut shared) = contents(case["source"].as_str().unwrap(), &special);
        if let Some(after) = case.get("after") {
            assert_eq!(u64::from(tile.bytes()), case["tx"].as_u64().unwrap(), "{about}");
            shared.fill(0xCB);
            load(&tile, &global, &mut shared);
            let start = (case["shared"].as_u64().unwrap() as u32 - SHARED) as usize;
            let mut expected = vec![0xCB; shared.len()];
            let after = hex(after.as_str().unwrap());
            expected[start..start + after.len()].copy_from_slice(&after);
            let wrong = (0..shared.len()).find(|&i| shared[i] != expected[i]);
            assert_eq!(wrong, None, "{about}: first wrong shared offset");
            continue;
        }
        let mut expected = global.clone();
        for change in case["changed"].as_array().unwrap() {
            let start = (TENSOR as i64 + change[0].as_i64().unwrap()) as usize;
            let bytes = hex(change[1].as_str().unwrap());
            expected[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        store(&tile, reduction.as_ref(), &shared, &mut global);
        let wrong = (0..GLOBAL).find(|&i| global[i] != expected[i]);
        let wrong = wrong.map(|i| (i as i64 - TENSOR as i64, global[i], expected[i]));
        assert_eq!(wrong, None, "{about}: first wrong global byte (offset, actual, expected)");
    }
    assert!(seen[&("load".to_owned(), true)] > 60, "{seen:?}");
    assert!(seen[&("store".to_owned(), true)] > 30, "{seen:?}");
    assert_eq!(seen.len(), 20, "{seen:?}");
}
