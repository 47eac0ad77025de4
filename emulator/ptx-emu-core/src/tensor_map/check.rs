//! The rules of `cuTensorMapEncodeTiled`.
//!
//! The rules are those of `cuda.h`, except where a driver behaves differently: it
//! does not require `32B` swizzle with `32B` interleave, nor strides as
//! large as the dimension they step over, nor a non-zero address.

use super::{ElementType, Fill, Interleave, MAX_RANK, Swizzle, TensorMap, TensorMapError};
use crate::Gpu;

/// Addresses have 57 bits.
const ADDRESS_LIMIT: u64 = 1 << 57;
/// Strides have 40 bits.
const STRIDE_LIMIT: u64 = 1 << 40;
/// Largest dimension, elements.
const DIM_LIMIT: u64 = 1 << 32;
/// Largest box extent, elements.
const BOX_LIMIT: u32 = 256;
/// Largest element stride.
const ELEMENT_STRIDE_LIMIT: u32 = 8;
/// Largest box, bytes: the shared memory of a CTA.
const BOX_BYTES_LIMIT: u64 = 227 << 10;
/// Width of the boxes of padded types, elements.
const PADDED_BOX: u32 = 128;

type Check = Result<(), TensorMapError>;

fn range<T: PartialOrd + std::fmt::Display>(
    field: impl Fn() -> String,
    value: T,
    least: T,
    most: T,
) -> Check {
    if value < least || value > most {
        return Err(TensorMapError::field(field(), format!("{least} to {most}"), value));
    }
    Ok(())
}

fn multiple(field: impl Fn() -> String, value: u64, of: u64) -> Check {
    if !value.is_multiple_of(of) {
        return Err(TensorMapError::field(field(), format!("a multiple of {of}"), value));
    }
    Ok(())
}

fn length(field: &'static str, actual: usize, required: usize) -> Check {
    if actual != required {
        return Err(TensorMapError::field(field, format!("{required} values"), actual));
    }
    Ok(())
}

impl TensorMap {
    /// Checks the rules that hold on every GPU.
    ///
    /// # Errors
    ///
    /// The first field that breaks one.
    pub fn check(&self) -> Result<(), TensorMapError> {
        let rank = self.rank();
        let least = if self.interleave == Interleave::None { 1 } else { 3 };
        range(|| "rank".to_owned(), rank, least, MAX_RANK)?;
        length("strides", self.strides.len(), rank - 1)?;
        length("box", self.box_dims.len(), rank)?;
        length("estrides", self.element_strides.len(), rank)?;
        let padded = self.element.padded_payload().is_some();
        let align = if padded || self.interleave == Interleave::B32 { 32 } else { 16 };
        self.check_global(align)?;
        self.check_box()?;
        for (i, &stride) in self.element_strides.iter().enumerate() {
            range(|| format!("estrides[{i}]"), stride, 1, ELEMENT_STRIDE_LIMIT)?;
        }
        self.check_swizzle()?;
        if self.fill == Fill::Nan && !self.element.is_float() {
            return Err(TensorMapError::field(
                "oob",
                format!("{} for elements of type {}", Fill::Zero, self.element),
                self.fill,
            ));
        }
        Ok(())
    }

    /// Checks the rules of a GPU's driver too: before sm_90 there are no tensor maps, and sm_90 has
    /// neither sub-byte types nor swizzle atoms above 16 bytes.
    ///
    /// # Errors
    ///
    /// The first field that breaks one.
    pub fn check_for(&self, gpu: &Gpu) -> Result<(), TensorMapError> {
        self.check()?;
        if gpu.compute_capability() < (9, 0) {
            let required = "one of compute capability 9.0 or higher".to_owned();
            return Err(TensorMapError::field("gpu", required, gpu.name));
        }
        if !gpu.arch.starts_with("sm_90") {
            return Ok(());
        }
        if self.element.is_sub_byte() {
            return Err(TensorMapError::field(
                "dtype",
                format!("a type of whole bytes on {}", gpu.name),
                self.element,
            ));
        }
        if self.swizzle > Swizzle::B128 {
            return Err(TensorMapError::field(
                "swizzle",
                format!("NONE, 32B, 64B or 128B on {}", gpu.name),
                self.swizzle,
            ));
        }
        Ok(())
    }

    fn check_global(&self, align: u64) -> Check {
        multiple(|| "addr".to_owned(), self.address, align)?;
        if self.address >= ADDRESS_LIMIT {
            return Err(TensorMapError::field(
                "addr",
                format!("below {ADDRESS_LIMIT:#x}"),
                format!("{:#x}", self.address),
            ));
        }
        for (i, &dim) in self.dims.iter().enumerate() {
            range(|| format!("dims[{i}]"), dim, 1, DIM_LIMIT)?;
        }
        let unit = match self.element {
            ElementType::U4Align8 => 2,
            ElementType::U4Align16 | ElementType::U6Align16 => 128,
            _ => 1,
        };
        multiple(|| "dims[0]".to_owned(), self.dims[0], unit)?;
        for (i, &stride) in self.strides.iter().enumerate() {
            multiple(|| format!("strides[{i}]"), stride, align)?;
            range(|| format!("strides[{i}]"), stride, 0, STRIDE_LIMIT - align)?;
        }
        Ok(())
    }

    fn check_box(&self) -> Check {
        for (i, &extent) in self.box_dims.iter().enumerate() {
            range(|| format!("box[{i}]"), extent, 1, BOX_LIMIT)?;
        }
        if self.element.padded_payload().is_some() {
            range(|| "box[0]".to_owned(), self.box_dims[0], PADDED_BOX, PADDED_BOX)?;
        } else if self.interleave == Interleave::None {
            let bits = u64::from(self.box_dims[0]) * u64::from(self.element.bits());
            if !bits.is_multiple_of(128) {
                return Err(TensorMapError::field(
                    "box[0]",
                    format!("a multiple of 16 bytes of {}", self.element),
                    self.box_dims[0],
                ));
            }
        }
        let elements: u64 = self.box_dims.iter().map(|&extent| u64::from(extent)).product();
        let bytes = elements * u64::from(self.element.bits()) / 8;
        if bytes > BOX_BYTES_LIMIT {
            return Err(TensorMapError::field(
                "box",
                format!("at most {BOX_BYTES_LIMIT} bytes"),
                bytes,
            ));
        }
        Ok(())
    }

    fn check_swizzle(&self) -> Check {
        let allowed: &[Swizzle] = match self.element {
            ElementType::U4Align16 => &[Swizzle::None, Swizzle::B128, Swizzle::B128Atom32],
            ElementType::U6Align16 => {
                &[Swizzle::None, Swizzle::B128, Swizzle::B128Atom32, Swizzle::B128Atom64]
            }
            _ => Swizzle::ALL,
        };
        if !allowed.contains(&self.swizzle) {
            let names: Vec<&str> = allowed.iter().map(|swizzle| swizzle.name()).collect();
            return Err(TensorMapError::field(
                "swizzle",
                format!("one of {} for elements of type {}", names.join(", "), self.element),
                self.swizzle,
            ));
        }
        if self.element == ElementType::U6Align16 && self.interleave != Interleave::None {
            return Err(TensorMapError::field(
                "interleave",
                format!("NONE for elements of type {}", self.element),
                self.interleave,
            ));
        }
        let row = self.box_dims[0] * self.element.bits() / 8;
        let span = self.swizzle.span();
        if self.interleave == Interleave::None && span != 0 && row > span {
            return Err(TensorMapError::field(
                "box[0]",
                format!("at most {span} bytes, the span of swizzle {}", self.swizzle),
                format!("{} elements of {}, {row} bytes", self.box_dims[0], self.element),
            ));
        }
        Ok(())
    }
}
