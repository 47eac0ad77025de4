//! The device's memory, and the program's where the device may use it.
//!
//! Device memory is the emulator's, at addresses that the program cannot follow. Pinned,
//! registered and managed memory is the program's own, at its own address; the emulator has a
//! copy, which takes over the program's contents before each launch and gives them back
//! afterwards. All of it counts as written: nobody sees what the program writes.

use crate::abi::{host_bytes, set_host_bytes};
use crate::errors::{Failure, INVALID_COPY_DIRECTION, INVALID_VALUE, OUT_OF_MEMORY};
use crate::report;
use ptx_emu_core::{GlobalMemory, MemoryError};
use std::collections::{BTreeMap, BTreeSet};

/// The owner of an allocation's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The device's.
    Device,
    /// The device's, mapped at an address of the program's choice.
    Mapped,
    /// A variable of a module.
    Variable,
    /// The program's, allocated here.
    Pinned,
    /// The program's, registered.
    Registered,
    /// The program's, allocated here for both.
    Managed,
}

impl Kind {
    /// The program uses it at its address.
    pub(crate) fn is_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Registered | Self::Managed)
    }
}

/// An allocation.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// The program's memory that was allocated here: words, so that it is aligned, with room for
    /// a start at a page.
    words: Vec<u64>,
}

/// The spaces between which a copy says it moves: the runtime's `cudaMemcpyKind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Direction {
    /// Whether each end is on the device; `None`: as its address says.
    from: Option<bool>,
    to: Option<bool>,
}

impl Direction {
    pub(crate) const ANY: Self = Self { from: None, to: None };
    pub(crate) const TO_DEVICE: Self = Self { from: Some(false), to: Some(true) };
    pub(crate) const TO_HOST: Self = Self { from: Some(true), to: Some(false) };
    pub(crate) const ON_DEVICE: Self = Self { from: Some(true), to: Some(true) };

    pub(crate) fn of(kind: i32) -> Result<Self, Failure> {
        Ok(match kind {
            0 => Self { from: Some(false), to: Some(false) },
            1 => Self::TO_DEVICE,
            2 => Self::TO_HOST,
            3 => Self::ON_DEVICE,
            4 => Self::ANY,
            _ => {
                let message = format!("kind: required 0 to 4, actual {kind}");
                return Err(Failure::new(INVALID_COPY_DIRECTION, message));
            }
        })
    }
}

impl Direction {
    /// A copy between such ends: whether each is on the device, or `None`.
    pub(crate) const fn between(from: Option<bool>, to: Option<bool>) -> Self {
        Self { from, to }
    }

    /// The two ends, as [`between`](Self::between) takes them.
    pub(crate) const fn ends(self) -> (Option<bool>, Option<bool>) {
        (self.from, self.to)
    }

    /// The runtime's number of a direction, which [`of`](Self::of) takes.
    pub(crate) fn number(self) -> i32 {
        match (self.from, self.to) {
            (Some(false), Some(false)) => 0,
            (Some(false), Some(true)) => 1,
            (Some(true), Some(false)) => 2,
            (Some(true), Some(true)) => 3,
            (None, _) | (_, None) => 4,
        }
    }
}

const PAGE: u64 = 4096;
/// Pages of memory that the program maps itself, bytes.
pub(crate) const MAPPED_PAGE: u64 = 2 << 20;
/// The range in which addresses are reserved that the program leaves open.
const RESERVED_FIRST: u64 = 0x4000_0000_0000;
const ADDRESSES: u64 = 0x7000_0000_0000;

fn whole_pages(what: &str, bytes: u64) -> Result<(), Failure> {
    if bytes == 0 || !bytes.is_multiple_of(MAPPED_PAGE) {
        let message = format!("{what}: required a multiple of {MAPPED_PAGE} bytes, actual {bytes}");
        return Err(Failure::new(INVALID_VALUE, message));
    }
    Ok(())
}

/// All memory that the device may use.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) global: GlobalMemory,
    pub(crate) ranges: BTreeMap<u64, Range>,
    made: u64,
    /// Addresses that the program reserved: start and size.
    reserved: BTreeMap<u64, u64>,
    /// Memory without an address, by its handle: size.
    unplaced: BTreeMap<u64, u64>,
    /// Copies that took bytes that nobody wrote.
    unwritten: u32,
    /// Memory that graphs have allocated.
    pub(crate) of_graphs: OfGraphs,
}

/// Memory that graphs have allocated.
#[derive(Debug, Default)]
pub(crate) struct OfGraphs {
    /// Its addresses.
    addresses: BTreeSet<u64>,
    /// Bytes that are allocated.
    pub(crate) used: u64,
    /// The most that were, since the program set this back.
    pub(crate) most: u64,
}

fn failed(error: &MemoryError) -> Failure {
    let code = match error {
        MemoryError::TooLarge { .. } => OUT_OF_MEMORY,
        _ => INVALID_VALUE,
    };
    Failure::new(code, error.to_string())
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { global: GlobalMemory::new(), ..Self::default() }
    }

    /// Allocates memory of the device. `maker`: the function that the program called.
    pub(crate) fn allocate(&mut self, maker: &str, bytes: u64) -> Result<u64, Failure> {
        if bytes > free_bytes() {
            let message = format!("{bytes} bytes: the host has {} free", free_bytes());
            return Err(Failure::new(OUT_OF_MEMORY, message));
        }
        self.made += 1;
        let name = format!("{maker} {}", self.made);
        let address = self.global.alloc(&name, bytes, 512).map_err(|error| failed(&error))?;
        self.ranges.insert(address, Range { bytes, kind: Kind::Device, words: Vec::new() });
        Ok(address)
    }

    /// Notes where a module's variable is.
    pub(crate) fn note_variable(&mut self, address: u64, bytes: u64) {
        let range = Range { bytes, kind: Kind::Variable, words: Vec::new() };
        self.ranges.insert(address, range);
    }

    /// Allocates memory of the program that the device may use.
    pub(crate) fn allocate_host(
        &mut self,
        maker: &str,
        bytes: u64,
        kind: Kind,
    ) -> Result<u64, Failure> {
        let words = bytes.div_ceil(8).saturating_add(PAGE / 8);
        if words.saturating_mul(8) > free_bytes() {
            return Err(Failure::new(OUT_OF_MEMORY, format!("{bytes} bytes do not fit the host")));
        }
        let words = vec![0u64; words as usize];
        let address = (words.as_ptr() as u64).next_multiple_of(PAGE);
        self.share(maker, address, bytes, kind)?;
        if let Some(range) = self.ranges.get_mut(&address) {
            range.words = words;
        }
        Ok(address)
    }

    /// Reserves whole pages of addresses, at `wish` if those are free.
    pub(crate) fn reserve(&mut self, bytes: u64, wish: u64) -> Result<u64, Failure> {
        whole_pages("size", bytes)?;
        let free = |start: u64| {
            let end = start.checked_add(bytes)?;
            let reserved = self.reserved.iter().any(|(at, size)| *at < end && start < at + size);
            let used = self.ranges.iter().any(|(at, range)| *at < end && start < at + range.bytes);
            (start != 0 && !reserved && !used).then_some(start)
        };
        let wish = Some(wish).filter(|wish| wish.is_multiple_of(MAPPED_PAGE)).and_then(free);
        // Behind the addresses that are given out otherwise.
        let mut places = (RESERVED_FIRST..ADDRESSES).step_by(MAPPED_PAGE as usize);
        let found = wish.or_else(|| places.find_map(free));
        let start = found.ok_or_else(|| Failure::new(OUT_OF_MEMORY, "no addresses are free"))?;
        self.reserved.insert(start, bytes);
        Ok(start)
    }

    /// Gives reserved addresses back.
    pub(crate) fn release_addresses(&mut self, start: u64, bytes: u64) -> Result<(), Failure> {
        let mapped = self.ranges.range(start..start.saturating_add(bytes)).next().is_some();
        if self.reserved.get(&start) != Some(&bytes) || mapped {
            let message = format!(
                "{bytes} bytes at {start:#x}: required reserved addresses where nothing is mapped"
            );
            return Err(Failure::new(INVALID_VALUE, message));
        }
        self.reserved.remove(&start);
        Ok(())
    }

    /// Reserves addresses for memory that a graph allocates, with a gap behind them.
    pub(crate) fn reserve_for(&mut self, bytes: u64) -> Result<u64, Failure> {
        let pages =
            bytes.checked_add(1).and_then(|bytes| bytes.checked_next_multiple_of(MAPPED_PAGE));
        let Some(pages) = pages.filter(|_| bytes <= free_bytes()) else {
            let message = format!("{bytes} bytes: the host has {} free", free_bytes());
            return Err(Failure::new(OUT_OF_MEMORY, message));
        };
        self.reserve(pages, 0)
    }

    /// Allocates memory of the device at an address that was reserved for it.
    pub(crate) fn place(&mut self, address: u64, bytes: u64) -> Result<(), Failure> {
        if self.ranges.contains_key(&address) {
            let message = format!(
                "memory of the graph at {address:#x}: required none, actual what an earlier launch \
                 allocated and nothing has freed"
            );
            return Err(Failure::new(INVALID_VALUE, message));
        }
        self.made += 1;
        let name = format!("memory of a graph {}", self.made);
        self.global.alloc_at(address, &name, bytes).map_err(|error| failed(&error))?;
        self.ranges.insert(address, Range { bytes, kind: Kind::Device, words: Vec::new() });
        self.of_graphs.addresses.insert(address);
        self.of_graphs.used += bytes;
        self.of_graphs.most = self.of_graphs.most.max(self.of_graphs.used);
        Ok(())
    }

    /// Memory that is not at any address yet.
    pub(crate) fn create(&mut self, handle: u64, bytes: u64) -> Result<u64, Failure> {
        whole_pages("size", bytes)?;
        if bytes > free_bytes() {
            let message = format!("{bytes} bytes: the host has {} free", free_bytes());
            return Err(Failure::new(OUT_OF_MEMORY, message));
        }
        self.unplaced.insert(handle, bytes);
        Ok(handle)
    }

    /// Gives up a handle of memory; what is mapped stays.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Failure> {
        let message = || format!("{handle:#x} is no memory");
        let found = self.unplaced.remove(&handle);
        found.map(drop).ok_or_else(|| Failure::new(INVALID_VALUE, message()))
    }

    /// Puts memory at reserved addresses: all of it, at one place.
    pub(crate) fn map(&mut self, start: u64, bytes: u64, handle: u64) -> Result<(), Failure> {
        let Some(&size) = self.unplaced.get(&handle) else {
            return Err(Failure::new(INVALID_VALUE, format!("{handle:#x} is no memory")));
        };
        if size != bytes {
            return Err(Failure::not_modelled("mapping a part of an allocation"));
        }
        let reserved = self.reserved.range(..=start).next_back();
        if reserved.is_none_or(|(at, size)| start + bytes > at + size) {
            let message = format!("{bytes} bytes at {start:#x}: required reserved addresses");
            return Err(Failure::new(INVALID_VALUE, message));
        }
        self.made += 1;
        let name = format!("cuMemMap {}", self.made);
        self.global.alloc_at(start, &name, bytes).map_err(|error| failed(&error))?;
        self.ranges.insert(start, Range { bytes, kind: Kind::Mapped, words: Vec::new() });
        Ok(())
    }

    /// Lets the device use memory of the program.
    pub(crate) fn share(
        &mut self,
        maker: &str,
        address: u64,
        bytes: u64,
        kind: Kind,
    ) -> Result<(), Failure> {
        self.made += 1;
        let name = format!("{maker} {}", self.made);
        self.global.alloc_at(address, &name, bytes).map_err(|error| failed(&error))?;
        self.ranges.insert(address, Range { bytes, kind, words: Vec::new() });
        Ok(())
    }

    /// Frees an allocation of one of these kinds.
    pub(crate) fn free(&mut self, address: u64, kinds: &[Kind]) -> Result<(), Failure> {
        match self.ranges.get(&address) {
            Some(range) if kinds.contains(&range.kind) => {}
            other => {
                let actual = other.map_or("none", |_| "one of another kind");
                let message = format!(
                    "address {address:#x}: required the start of an allocation, actual {actual}"
                );
                return Err(Failure::new(INVALID_VALUE, message));
            }
        }
        self.global.free(address).map_err(|error| failed(&error))?;
        let freed = self.ranges.remove(&address).map_or(0, |range| range.bytes);
        if self.of_graphs.addresses.remove(&address) {
            self.of_graphs.used -= freed;
        }
        Ok(())
    }

    /// The allocation that an address is in, and its start.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Range)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.bytes).then_some((*start, range))
    }

    /// Checks that the program and the device both use the memory at an address.
    pub(crate) fn check_pinned(&self, address: u64) -> Result<(), Failure> {
        match self.find(address) {
            Some((_, range)) if range.kind.is_host() => Ok(()),
            _ => Err(Failure::new(INVALID_VALUE, format!("{address:#x} is not pinned memory"))),
        }
    }

    /// Whether a range is in the emulator's memory; the program's otherwise. `said`: what the
    /// call said of it.
    fn on_device(&self, address: u64, bytes: u64, said: Option<bool>) -> Result<bool, Failure> {
        let found = self.find(address);
        let fits = found.is_none_or(|(start, range)| bytes <= range.bytes - (address - start));
        if !fits {
            let message =
                format!("{bytes} bytes at {address:#x} are more than are allocated there");
            return Err(Failure::new(INVALID_VALUE, message));
        }
        let kind = found.map(|(_, range)| range.kind);
        match (kind, said) {
            (None, Some(true)) => {
                let message =
                    format!("address {address:#x}: required one of the device, actual none");
                Err(Failure::new(INVALID_VALUE, message))
            }
            (Some(kind), Some(false)) if !kind.is_host() => {
                let message =
                    format!("address {address:#x}: required one of the host, actual the device's");
                Err(Failure::new(INVALID_VALUE, message))
            }
            (kind, _) => Ok(kind.is_some_and(|kind| !kind.is_host())),
        }
    }

    /// Copies bytes.
    pub(crate) fn copy(
        &mut self,
        to: u64,
        from: u64,
        bytes: u64,
        direction: Direction,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let from_device = self.on_device(from, bytes, direction.from)?;
        let to_device = self.on_device(to, bytes, direction.to)?;
        match (from_device, to_device) {
            (true, true) => self.global.copy(to, from, bytes).map_err(|error| failed(&error)),
            (true, false) => {
                let contents = self.read_out(from, bytes)?;
                set_host_bytes(to, &contents);
                Ok(())
            }
            (false, true) => {
                let contents = host_bytes(from, bytes);
                self.global.write(to, &contents).map_err(|error| failed(&error))
            }
            (false, false) => {
                let contents = host_bytes(from, bytes);
                set_host_bytes(to, &contents);
                Ok(())
            }
        }
    }

    /// Reads device memory for the program; it is told of bytes that were never written.
    fn read_out(&mut self, from: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        if let Err(error @ MemoryError::Uninitialised { .. }) = self.global.read(from, bytes) {
            self.unwritten += 1;
            if self.unwritten <= 10 {
                report::complain(format_args!(
                    "warning: copy of {bytes} bytes to the host: {error}; such bytes are 0xCB"
                ));
            }
        }
        self.global.read_raw(from, bytes).map_err(|error| failed(&error))
    }

    /// Writes a pattern of 1, 2 or 4 bytes, `count` times.
    pub(crate) fn fill(&mut self, to: u64, pattern: &[u8], count: u64) -> Result<(), Failure> {
        let bytes = count.saturating_mul(pattern.len() as u64);
        if bytes == 0 {
            return Ok(());
        }
        if !to.is_multiple_of(pattern.len() as u64) {
            let message = format!("address {to:#x}: required a multiple of {}", pattern.len());
            return Err(Failure::new(INVALID_VALUE, message));
        }
        let device = self.on_device(to, bytes, Some(true))?;
        match pattern {
            [byte] if device => self.global.fill(to, bytes, *byte).map_err(|error| failed(&error)),
            _ => {
                let contents = pattern.repeat(count as usize);
                if device {
                    return self.global.write(to, &contents).map_err(|error| failed(&error));
                }
                set_host_bytes(to, &contents);
                Ok(())
            }
        }
    }

    /// Gives the emulator what the program's memory holds; what that is.
    pub(crate) fn take_over(&mut self) -> Result<Vec<(u64, Vec<u8>)>, Failure> {
        let mut taken = Vec::new();
        for (address, range) in self.ranges.iter().filter(|(_, range)| range.kind.is_host()) {
            let contents = host_bytes(*address, range.bytes);
            self.global.write(*address, &contents).map_err(|error| failed(&error))?;
            taken.push((*address, contents));
        }
        Ok(taken)
    }

    /// Gives the program what launches wrote to its memory since it was taken over.
    pub(crate) fn give_back(&self, taken: &[(u64, Vec<u8>)]) -> Result<(), Failure> {
        for (start, before) in taken {
            let length = before.len() as u64;
            let after = self.global.read_raw(*start, length).map_err(|error| failed(&error))?;
            // Only what changed: the program may write elsewhere meanwhile.
            let mut at = 0;
            while at < after.len() {
                if after[at] == before[at] {
                    at += 1;
                    continue;
                }
                let end = (at..after.len()).find(|&end| after[end] == before[end]);
                let end = end.unwrap_or(after.len());
                set_host_bytes(start + at as u64, &after[at..end]);
                at = end;
            }
        }
        Ok(())
    }
}

/// Returns the bytes that can be allocated: half of the host's free memory, for the emulator keeps
/// books on each byte.
pub(crate) fn free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    // A host that does not say is trusted.
    kib.map_or(1 << 40, |kib| kib * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_follow_the_addresses() {
        let mut memory = Memory::new();
        let device = memory.allocate("cudaMalloc", 16).expect("room");
        let host = [1u8, 2, 3, 4];
        let from = host.as_ptr() as u64;
        memory.copy(device, from, 4, Direction::TO_DEVICE).expect("fits");
        let mut back = [0u8; 4];
        let to = back.as_mut_ptr() as u64;
        memory.copy(to, device, 4, Direction::ANY).expect("fits");
        assert_eq!(back, host);
        for (to, from, bytes, direction) in [
            (device, from, 17, Direction::ANY),
            (from, device, 4, Direction::TO_DEVICE),
            (to, from, 4, Direction::TO_DEVICE),
            (to, device, 4, Direction::of(0).expect("a kind")),
        ] {
            let error = memory.copy(to, from, bytes, direction).expect_err("does not fit");
            assert_eq!(error.code, INVALID_VALUE, "{error}");
        }
        assert!(Direction::of(5).is_err());
        memory.free(device, &[Kind::Pinned]).expect_err("another kind");
        memory.free(device, &[Kind::Device]).expect("allocated");
        memory.free(device, &[Kind::Device]).expect_err("freed");
    }

    #[test]
    fn memory_is_mapped_at_reserved_addresses() {
        let mut memory = Memory::new();
        let (wish, bytes) = (0x7f12_3400_0000, MAPPED_PAGE);
        assert_eq!(memory.reserve(bytes, wish), Ok(wish));
        let other = memory.reserve(2 * bytes, wish).expect("elsewhere");
        assert!(other != wish && other.is_multiple_of(bytes));
        memory.reserve(5, 0).expect_err("no whole pages");
        memory.create(7, bytes).expect("room");
        memory.map(wish + bytes, bytes, 7).expect_err("not reserved");
        memory.map(wish, 2 * bytes, 7).expect_err("another size");
        memory.map(wish, bytes, 8).expect_err("no memory");
        memory.map(wish, bytes, 7).expect("reserved");
        memory.release(7).expect("created");
        memory.release(7).expect_err("released");
        memory.fill(wish, &[3], bytes).expect("mapped");
        memory.release_addresses(wish, bytes).expect_err("mapped");
        memory.free(wish, &[Kind::Device]).expect_err("mapped by the program");
        memory.free(wish, &[Kind::Mapped]).expect("mapped");
        memory.release_addresses(wish, bytes).expect("reserved");
        memory.release_addresses(wish, bytes).expect_err("released");
    }

    #[test]
    fn unwritten_bytes_stay_so_in_copies() {
        let mut memory = Memory::new();
        let a = memory.allocate("cudaMalloc", 8).expect("room");
        let b = memory.allocate("cudaMalloc", 8).expect("room");
        memory.fill(a, &[7], 4).expect("inside");
        memory.fill(b, &[9], 8).expect("inside");
        memory.copy(b, a, 8, Direction::ON_DEVICE).expect("inside");
        let written = memory.global.written(b, 8).expect("inside");
        assert_eq!((written.len(), &written[0]), (1, &(b..b + 4)));
        assert_eq!(memory.global.read(b, 4).expect("written"), [7; 4]);
    }

    #[test]
    fn program_memory_is_taken_over_and_given_back() {
        let mut memory = Memory::new();
        let shared = memory.allocate_host("cudaMallocManaged", 8, Kind::Managed).expect("room");
        assert!(shared.is_multiple_of(PAGE));
        set_host_bytes(shared, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let taken = memory.take_over().expect("there");
        memory.global.write(shared + 2, &[0]).expect("inside");
        // The program writes another byte while the launch runs.
        set_host_bytes(shared, &[11]);
        memory.give_back(&taken).expect("there");
        assert_eq!(host_bytes(shared, 8), [11, 2, 0, 4, 5, 6, 7, 8]);
        memory.fill(shared, &[1, 2, 3, 4], 2).expect("inside");
        assert_eq!(host_bytes(shared, 8), [1, 2, 3, 4, 1, 2, 3, 4]);
    }
}
