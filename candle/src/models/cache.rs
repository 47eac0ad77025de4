//! Keys and values of the tokens so far.

use candle_core::{DType, Device, Result, Tensor};

use super::step::{Place, Step};

/// Keys and values of a layer: `[texts, heads, places, elements of a head]`.
#[derive(Debug)]
pub(super) struct KeyValues {
    keys: Tensor,
    values: Tensor,
}

impl KeyValues {
    /// Room for `places` tokens of `texts` texts. Places that have no token yet hold zeros, which a share of zero leaves zero.
    pub fn new(
        [texts, heads, places, dim]: [usize; 4],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let empty = || Tensor::zeros((texts, heads, places, dim), dtype, device);
        Ok(Self { keys: empty()?, values: empty()? })
    }

    /// Stores the step's keys and values, and returns those of the places that the step looks at through a window.
    pub fn append(
        &self,
        step: &Step,
        window: Option<usize>,
        [keys, values]: [&Tensor; 2],
    ) -> Result<[Tensor; 2]> {
        let put = |all: &Tensor, own: &Tensor| match step.place() {
            Place::Host(begin) => all.slice_set(own, 2, *begin),
            Place::Device(index) => all.scatter_set(index, own, 2),
        };
        put(&self.keys, keys)?;
        put(&self.values, values)?;
        let [from, places] = step.looks_at(window);
        Ok([self.keys.narrow(2, from, places)?, self.values.narrow(2, from, places)?])
    }
}
