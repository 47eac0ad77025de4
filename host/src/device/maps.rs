//! Tensor maps that were encoded before.
//!
//! A map is a function of the tensor's shape and address, so that one that is kept is never stale, and
//! launches on buffers that were used before make no call of the driver but the launch itself.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use fp4_formats::tensor_map::{TensorMap, TensorMapShape};

use crate::error::Result;

/// Sets of places; a map has one set where it can be.
const SETS: usize = 512;
/// Places of a set.
const WAYS: usize = 4;

/// The maps of a device, as many as there are places: a later map takes the place of an earlier one.
/// The places, half a megabyte, are allocated with the first map, and each set has its own lock.
#[derive(Default)]
pub(super) struct Maps(OnceLock<Box<[Mutex<Set>]>>);

#[derive(Clone, Copy)]
struct Kept {
    address: u64,
    shape: TensorMapShape,
    map: TensorMap,
}

#[derive(Default)]
struct Set {
    kept: [Option<Kept>; WAYS],
    /// The place that is taken next.
    next: usize,
}

impl Maps {
    /// The map of a tensor: the one that is kept, or else what `encode` makes.
    ///
    /// # Errors
    /// As `encode`.
    pub fn get(
        &self,
        shape: &TensorMapShape,
        address: u64,
        encode: impl FnOnce() -> Result<TensorMap>,
    ) -> Result<TensorMap> {
        let sets = self.0.get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect());
        let mut set = sets[place(shape, address)].lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = |kept: &&Kept| kept.address == address && kept.shape == *shape;
        if let Some(kept) = set.kept.iter().flatten().find(is_wanted) {
            return Ok(kept.map);
        }
        let map = encode()?;
        let Set { kept, next } = &mut *set;
        kept[*next] = Some(Kept { address, shape: *shape, map });
        *next = (*next + 1) % WAYS;
        Ok(map)
    }
}

/// The set of a map. Addresses are multiples of 16, and often of much more; tensors at one address
/// differ in their rows, or in the boxes of the kernels that read them.
fn place(shape: &TensorMapShape, address: u64) -> usize {
    /// 2^64 divided by the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let boxes = u64::from(shape.box_dims[0]) << 32 | u64::from(shape.box_dims[1]);
    let mixed = (address >> 4) ^ shape.dims[1].rotate_left(40) ^ boxes.rotate_left(20);
    (mixed.wrapping_mul(SPREAD) >> (u64::BITS - SETS.ilog2())) as usize
}

impl fmt::Debug for Maps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maps").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fp4_formats::Swizzle;
    use fp4_formats::tensor_map::MapElement;

    use super::*;
    use crate::error::Error;

    fn shape(rows: u64) -> TensorMapShape {
        TensorMapShape {
            element: MapElement::U16,
            rank: 3,
            dims: [64, rows, 1, 1, 1],
            strides: [128, 128 * rows, 0, 0],
            box_dims: [64, 8, 1, 1, 1],
            swizzle: Swizzle::B128,
        }
    }

    /// A map that says which tensor it is of.
    fn encoded(shape: &TensorMapShape, address: u64) -> TensorMap {
        TensorMap(std::array::from_fn(|at| if at == 0 { address } else { shape.dims[1] }))
    }

    #[test]
    fn maps_are_encoded_once_and_belong_to_shape_and_address() {
        let (maps, count) = (Maps::default(), Cell::new(0));
        let get = |rows: u64, address: u64| {
            let shape = shape(rows);
            let map = maps.get(&shape, address, || {
                count.set(count.get() + 1);
                Ok(encoded(&shape, address))
            });
            assert_eq!(map.expect("encoded"), encoded(&shape, address));
        };
        // As many as a model has: each with its own shape and address.
        let all = || (1..300).map(|at| (at % 7 + 1, at * 0x20_0000));
        for _ in 0..3 {
            all().for_each(|(rows, address)| get(rows, address));
        }
        assert_eq!(count.get(), all().count());
        // Another shape at an address, and another address of a shape.
        get(8, 0x20_0000);
        get(2, 0x20_0100);
        assert_eq!(count.get(), all().count() + 2);
    }

    #[test]
    fn more_maps_than_places_replace_one_another() {
        let maps = Maps::default();
        let tensors = || (0..4 * (SETS * WAYS) as u64).map(|at| (shape(at % 5 + 1), at * 256));
        for _ in 0..2 {
            for (shape, address) in tensors() {
                let map = maps.get(&shape, address, || Ok(encoded(&shape, address)));
                assert_eq!(map.expect("encoded"), encoded(&shape, address));
            }
        }
    }

    #[test]
    fn what_cannot_be_encoded_is_not_kept() {
        let (maps, shape) = (Maps::default(), shape(3));
        let refused = || Err(Error::shape("map", "one", "none"));
        assert!(maps.get(&shape, 256, refused).is_err());
        let map = maps.get(&shape, 256, || Ok(encoded(&shape, 256)));
        assert_eq!(map.expect("encoded"), encoded(&shape, 256));
    }
}
