//! Products of a warpgroup.

mod fail;
mod products;
