//! Arguments of launches, which driver and runtime pass alike.

use crate::abi::{In, host_bytes};
use crate::errors::{Failure, INVALID_VALUE};
use crate::launch::Launch;
use crate::state::State;

/// An attribute of a launch: its number, and 64 bytes that depend on it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attribute {
    id: u32,
    padding: u32,
    value: [u64; 8],
}

impl Attribute {
    pub(crate) const COOPERATIVE: u32 = 2;
    pub(crate) const CLUSTER: u32 = 4;
    pub(crate) const PROGRAMMATIC: u32 = 6;

    pub(crate) const fn new(id: u32, value: [u64; 8]) -> Self {
        Self { id, padding: 0, value }
    }
}

/// The effect of attributes on a launch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) cooperative: bool,
    pub(crate) programmatic: bool,
}

impl Attributes {
    /// Reads them.
    pub(crate) fn read(all: &[Attribute]) -> Result<Self, Failure> {
        let mut read = Self::default();
        for Attribute { id, value, .. } in all {
            let low = value[0] as u32;
            match *id {
                Attribute::COOPERATIVE => read.cooperative = low != 0,
                Attribute::CLUSTER => {
                    let cluster = [low, (value[0] >> 32) as u32, value[1] as u32];
                    read.cluster = (cluster != [0; 3]).then_some(cluster);
                }
                Attribute::PROGRAMMATIC => read.programmatic = low != 0,
                // Hints and priorities, which change no result: access policy, synchronisation
                // of the host, scheduling of clusters, priority, domains of fences, a larger
                // cluster where there is room, carve-out of shared memory, NVLink.
                0 | 1 | 3 | 5 | 8 | 9 | 10 | 11 | 14 | 16 => {}
                7 => return Err(Failure::not_modelled("a launch attribute (programmatic event)")),
                12 => {
                    return Err(Failure::not_modelled(
                        "a launch attribute (launch completion event)",
                    ));
                }
                13 => {
                    let what = "a launch attribute (kernel node updatable from the device)";
                    return Err(Failure::not_modelled(what));
                }
                id => return Err(Failure::not_modelled(&format!("launch attribute {id}"))),
            }
        }
        Ok(read)
    }
}

/// Shape of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u64,
    pub(crate) stream: u64,
}

impl State {
    /// A launch with the arguments at addresses of the program, `pointers` to one for each
    /// parameter.
    pub(crate) fn launch_with(
        &mut self,
        kernel: u64,
        shape: Shape,
        attributes: Attributes,
        pointers: In<u64>,
    ) -> Result<(), Failure> {
        let launch = self.launch_of(kernel, shape, attributes, pointers)?;
        self.launch(launch)
    }

    /// The launch itself.
    pub(crate) fn launch_of(
        &mut self,
        kernel: u64,
        shape: Shape,
        attributes: Attributes,
        pointers: In<u64>,
    ) -> Result<Launch, Failure> {
        let params = self.parameters(kernel, pointers)?;
        Ok(launch(kernel, shape, attributes, params))
    }

    /// The parameter block.
    pub(crate) fn parameters(
        &mut self,
        kernel: u64,
        pointers: In<u64>,
    ) -> Result<Vec<u8>, Failure> {
        let info = self.kernel_info(kernel)?;
        let mut block = vec![0; info.param_bytes as usize];
        for (pointer, param) in pointers.all(info.params.len())?.into_iter().zip(&info.params) {
            if pointer == 0 {
                let message = format!("parameter `{}`: the pointer to it is null", param.name);
                return Err(Failure::new(INVALID_VALUE, message));
            }
            let range = param.offset as usize..(param.offset + param.size) as usize;
            block[range].copy_from_slice(&host_bytes(pointer, u64::from(param.size)));
        }
        Ok(block)
    }

    /// Runs a launch as [`launch_with`](Self::launch_with) does, for the driver's calls: `extra`
    /// may have the whole parameter block instead.
    pub(crate) fn launch_with_extra(
        &mut self,
        kernel: u64,
        shape: Shape,
        attributes: Attributes,
        pointers: In<u64>,
        extra: In<u64>,
    ) -> Result<(), Failure> {
        let launch = self.launch_of_either(kernel, shape, attributes, pointers, extra)?;
        self.launch(launch)
    }

    /// The launch itself, as [`launch_of`](Self::launch_of) makes it, or with the block in `extra`.
    pub(crate) fn launch_of_either(
        &mut self,
        kernel: u64,
        shape: Shape,
        attributes: Attributes,
        pointers: In<u64>,
        extra: In<u64>,
    ) -> Result<Launch, Failure> {
        if pointers.address() != 0 || extra.address() == 0 {
            return self.launch_of(kernel, shape, attributes, pointers);
        }
        let block = self.extra_parameters(kernel, extra)?;
        Ok(launch(kernel, shape, attributes, block))
    }

    fn extra_parameters(&mut self, kernel: u64, extra: In<u64>) -> Result<Vec<u8>, Failure> {
        const END: u64 = 0;
        const BUFFER: u64 = 1;
        const SIZE: u64 = 2;
        let (mut buffer, mut size, mut at) = (0, 0, 0);
        loop {
            let words = extra.all(at + 1)?;
            match words[at] {
                END => break,
                key @ (BUFFER | SIZE) => {
                    let value = extra.all(at + 2)?[at + 1];
                    if key == BUFFER {
                        buffer = value;
                    } else {
                        let bytes = host_bytes(value, 8);
                        size = bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
                    }
                }
                other => {
                    let message = format!("extra: required 0, 1 or 2, actual {other}");
                    return Err(Failure::new(INVALID_VALUE, message));
                }
            }
            at += 2;
        }
        let wanted = u64::from(self.kernel_info(kernel)?.param_bytes);
        if buffer == 0 || size < wanted {
            let message = format!("parameters: required {wanted} bytes, actual {size}");
            return Err(Failure::new(INVALID_VALUE, message));
        }
        Ok(host_bytes(buffer, wanted))
    }
}

fn launch(kernel: u64, shape: Shape, attributes: Attributes, params: Vec<u8>) -> Launch {
    let Shape { grid, block, dynamic_shared, stream } = shape;
    let Attributes { cluster, cooperative, programmatic } = attributes;
    Launch {
        kernel,
        grid,
        block,
        cluster,
        dynamic_shared,
        params,
        cooperative,
        programmatic,
        stream,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(id: u32, value: [u64; 2]) -> Attribute {
        Attribute::new(id, [value[0], value[1], 0, 0, 0, 0, 0, 0])
    }

    #[test]
    fn attributes_are_read() {
        let all = [attribute(4, [2 | 3 << 32, 1]), attribute(6, [1, 0]), attribute(8, [5, 0])];
        let read = Attributes::read(&all).expect("modelled");
        let expected =
            Attributes { cluster: Some([2, 3, 1]), cooperative: false, programmatic: true };
        assert_eq!(read, expected);
        for id in [7, 12, 13, 99] {
            let error = Attributes::read(&[attribute(id, [1, 0])]).expect_err("not modelled");
            assert_eq!(error.code, crate::errors::NOT_SUPPORTED);
        }
    }
}
