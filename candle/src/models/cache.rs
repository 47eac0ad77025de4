//! Keys and values of the tokens so far.

use candle_core::{DType, Device, Result, Tensor};

use super::step::{Apart, Place};

/// Keys and values of a layer: `[texts, heads, places, elements of a head]`. Latent attention has one head, with latent vectors as
/// keys and turned keys as values.
#[derive(Debug)]
pub(super) struct KeyValues {
    keys: Tensor,
    values: Tensor,
}

impl KeyValues {
    /// Room for `places` tokens of `texts` texts. Places that have no token yet hold zeros, which a share of zero leaves zero.
    pub fn new(
        [texts, heads, places]: [usize; 3],
        [key, value]: [usize; 2],
        (dtype, device): (DType, &Device),
    ) -> Result<Self> {
        let empty = |dim: usize| Tensor::zeros((texts, heads, places, dim), dtype, device);
        Ok(Self { keys: empty(key)?, values: empty(value)? })
    }

    /// Texts, and places of each.
    pub fn sizes(&self) -> [usize; 2] {
        [self.keys.dims()[0], self.keys.dims()[2]]
    }

    /// Keys and values of all places.
    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.keys, &self.values]
    }

    /// Stores the step's keys and values, and returns those of the places that the step looks at through a window.
    pub fn append(
        &self,
        step: &Apart,
        window: Option<usize>,
        [keys, values]: [&Tensor; 2],
    ) -> Result<[Tensor; 2]> {
        match step.place() {
            Place::Host(begin) => {
                self.keys.slice_set(keys, 2, *begin)?;
                self.values.slice_set(values, 2, *begin)?;
            }
            Place::Device([of_keys, of_values]) => {
                self.keys.scatter_set(of_keys, keys, 2)?;
                self.values.scatter_set(of_values, values, 2)?;
            }
        }
        let [from, places] = step.looks_at(window);
        Ok([self.keys.narrow(2, from, places)?, self.values.narrow(2, from, places)?])
    }
}
