//! Device memory at addresses that the caller names, by the driver's management of virtual memory.

use std::ffi::c_void;

use cuda_lazy::raw;

use super::device::CudaDevice;
use super::error::{CudaError, check};

/// Addresses from `start` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The spans as whole pages of `page` bytes, in order, those that touch as one.
fn pages(spans: impl Iterator<Item = Span>, page: u64) -> Vec<Span> {
    let whole = spans.filter(|span| span.start < span.end).map(|Span { start, end }| Span {
        start: start / page * page,
        end: end.checked_next_multiple_of(page).unwrap_or(u64::MAX / page * page),
    });
    let mut sorted: Vec<Span> = whole.collect();
    sorted.sort_by_key(|span| span.start);
    let mut merged: Vec<Span> = Vec::new();
    for span in sorted {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

/// `CUmemAllocationProp` (CUDA Driver API, Data types): pinned memory of a device.
#[repr(C)]
struct Properties {
    kind: u32,
    handles: u32,
    location: Location,
    meta: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: u32,
    id: i32,
}

/// `CUmemAccessDesc`
#[repr(C)]
struct Access {
    location: Location,
    flags: u32,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

const PINNED: u32 = 1;
const DEVICE: u32 = 1;
const READ_AND_WRITE: u32 = 3;
const GRANULARITY_MINIMUM: u32 = 0;

/// Granularity of reserved addresses in bytes: driver 580 ignores the requested address if it or the
/// size is not a multiple of this.
const RESERVED: u64 = 32 << 20;

/// Memory that is mapped at addresses of the caller's. Its contents are undefined at first.
#[derive(Debug)]
pub(crate) struct FixedMemory {
    device: CudaDevice,
    reserved: Vec<Span>,
    mapped: Vec<Mapping>,
}

/// Whole pages, and how far their mapping has come.
#[derive(Debug)]
struct Mapping {
    span: Span,
    memory: Option<u64>,
    mapped: bool,
}

impl Mapping {
    fn bytes(&self) -> usize {
        (self.span.end - self.span.start) as usize
    }
}

impl FixedMemory {
    /// Maps memory for all addresses of the spans.
    ///
    /// # Errors
    /// [`CudaError::AddressTaken`] where the process uses an address already, or a failed call.
    pub(crate) fn reserve(
        device: &CudaDevice,
        spans: impl Iterator<Item = Span>,
    ) -> Result<Self, CudaError> {
        let mut spans = spans.peekable();
        let mut memory = Self { device: device.clone(), reserved: Vec::new(), mapped: Vec::new() };
        if spans.peek().is_none() {
            return Ok(memory);
        }
        device.bind()?;
        let location = Location { kind: DEVICE, id: device.info().ordinal.cast_signed() };
        let mut properties = Properties {
            kind: PINNED,
            handles: 0,
            location,
            meta: std::ptr::null_mut(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let properties = (&raw mut properties).cast::<c_void>();
        let mut page = 0;
        // SAFETY: `page` is writable and the properties are whole.
        check("cuMemGetAllocationGranularity", unsafe {
            raw::cuMemGetAllocationGranularity(&mut page, properties, GRANULARITY_MINIMUM)
        })?;
        // All addresses first: what is allocated then cannot be put there.
        let spans = pages(spans, page.max(1) as u64);
        for span in pages(spans.iter().copied(), RESERVED) {
            memory.reserve_one(span)?;
        }
        let mapping = |span| Mapping { span, memory: None, mapped: false };
        memory.mapped = spans.into_iter().map(mapping).collect();
        for mapping in &mut memory.mapped {
            let (start, bytes, mut handle) = (mapping.span.start, mapping.bytes(), 0);
            // SAFETY: `handle` is writable, the properties are whole, and the size is one of
            // whole pages.
            check("cuMemCreate", unsafe { raw::cuMemCreate(&mut handle, bytes, properties, 0) })?;
            mapping.memory = Some(handle);
            // SAFETY: the addresses are reserved and the memory is as large.
            check("cuMemMap", unsafe { raw::cuMemMap(start, bytes, 0, handle, 0) })?;
            mapping.mapped = true;
            let mut access = Access { location, flags: READ_AND_WRITE };
            // SAFETY: the addresses are mapped, and there is one description.
            check("cuMemSetAccess", unsafe {
                raw::cuMemSetAccess(start, bytes, (&raw mut access).cast(), 1)
            })?;
        }
        Ok(memory)
    }

    fn reserve_one(&mut self, span: Span) -> Result<(), CudaError> {
        let (mut found, bytes) = (0, (span.end - span.start) as usize);
        // SAFETY: `found` is writable; the address is a wish.
        check("cuMemAddressReserve", unsafe {
            raw::cuMemAddressReserve(&mut found, bytes, 0, span.start, 0)
        })?;
        let reserved = Span { start: found, end: found + bytes as u64 };
        self.reserved.push(reserved);
        if reserved != span {
            return Err(CudaError::AddressTaken { address: span.start, bytes });
        }
        Ok(())
    }
}

impl Drop for FixedMemory {
    fn drop(&mut self) {
        // A failure cannot be handled here; the driver releases all of it with the process.
        let _ = self.device.bind();
        for mapping in &self.mapped {
            let (start, bytes) = (mapping.span.start, mapping.bytes());
            if mapping.mapped {
                // SAFETY: it was mapped here, and whoever had views of it has dropped them.
                unsafe { raw::cuMemUnmap(start, bytes) };
            }
            if let Some(memory) = mapping.memory {
                // SAFETY: it was created here, and is mapped no more.
                unsafe { raw::cuMemRelease(memory) };
            }
        }
        for span in &self.reserved {
            // SAFETY: the addresses were reserved here, and nothing is mapped there any more.
            unsafe { raw::cuMemAddressFree(span.start, (span.end - span.start) as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_become_whole_pages() {
        let span = |start, end| Span { start, end };
        let found = |spans: &[Span]| pages(spans.iter().copied(), 16);
        assert_eq!(found(&[span(17, 20), span(3, 5), span(40, 41)]), [span(0, 48)]);
        assert_eq!(found(&[span(64, 64), span(100, 130)]), [span(96, 144)]);
        assert_eq!(found(&[span(0, 16), span(48, 49), span(1, 2)]), [span(0, 16), span(48, 64)]);
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[span(8, u64::MAX)])[0].end, u64::MAX - 15);
    }
}
