//! Tensor maps.

use crate::abi::{In, Out, exports};
use crate::errors::{Failure, INVALID_VALUE};
use ptx_emu_core::tensor_map::{
    ElementType, Fill, Interleave, L2Promotion, MAX_RANK, Swizzle, TensorMap,
};

fn value<T>(field: &str, number: u32, found: Option<T>) -> Result<T, Failure> {
    found.ok_or_else(|| Failure::new(INVALID_VALUE, format!("{field}: {number} is none")))
}

exports! { driver;
    query cuTensorMapEncodeTiled(
        out: Out<[u8; 128]>, element: u32, rank: u32, address: u64, dims: In<u64>, strides: In<u64>,
        box_dims: In<u32>, element_strides: In<u32>, interleave: u32, swizzle: u32, l2: u32, fill: u32,
    ) |state| {
        let dimensions = rank as usize;
        if !(1..=MAX_RANK).contains(&dimensions) {
            let message = format!("rank: required 1 to {MAX_RANK}, actual {rank}");
            return Err(Failure::new(INVALID_VALUE, message));
        }
        let map = TensorMap {
            element: value("element type", element, ElementType::from_number(element))?,
            address,
            dims: dims.all(dimensions)?,
            strides: strides.all(dimensions - 1)?,
            box_dims: box_dims.all(dimensions)?,
            element_strides: element_strides.all(dimensions)?,
            interleave: value("interleave", interleave, Interleave::from_number(interleave))?,
            swizzle: value("swizzle", swizzle, Swizzle::from_number(swizzle))?,
            l2_promotion: value("L2 promotion", l2, L2Promotion::from_number(l2))?,
            fill: value("fill", fill, Fill::from_number(fill))?,
        };
        let bytes = map
            .encode_for(&state.gpu())
            .map_err(|error| Failure::new(INVALID_VALUE, error.to_string()))?;
        if !state.maps.iter().any(|(known, _)| *known == bytes) {
            state.maps.push((bytes, map));
        }
        out.set(bytes)
    }

    query cuTensorMapReplaceAddress(map: Out<[u8; 128]>, _address: u64) |_state| {
        let _ = map;
        Err(Failure::not_modelled("a change of a tensor map's address"))
    }
}
